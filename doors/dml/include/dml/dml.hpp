// SPDX-License-Identifier: MIT OR Apache-2.0
//
// dml.hpp: memory operations by a DSA device, by a model of one, or by the CPU. For C++17. The interface is that of
// Intel's Data Mover Library 1.1 and 1.2; docs/dml.md lists where the answers differ.
//
//     #include <dml/dml.hpp>
//
//     auto result = dml::execute<dml::automatic>(dml::mem_move, dml::make_view(src), dml::make_view(dst));
//     if (result.status != dml::status_code::ok) { ... }
//
//     auto handler = dml::submit<dml::hardware>(dml::crc, dml::make_view(src), 0U);   // continues meanwhile
//     auto crc = handler.get().crc_value;                                             // waits
//
// The first argument is an operation (operations.hpp), the template argument the path (execution_path.hpp). Link with
// -ldml.
#ifndef DML_DML_HPP
#define DML_DML_HPP

#include <dml/hl/data_view.hpp>
#include <dml/hl/execute.hpp>
#include <dml/hl/execution_interface.hpp>
#include <dml/hl/execution_path.hpp>
#include <dml/hl/handler.hpp>
#include <dml/hl/operations.hpp>
#include <dml/hl/result.hpp>
#include <dml/hl/sequence.hpp>
#include <dml/hl/status_code.hpp>
#include <dml/hl/submit.hpp>
#include <dml/hl/types.hpp>

#endif
