//! The functions that programs call. Each asks whether the call is taken, and otherwise calls the MPI's own.
//!
//! A handle is declared as a word: a C caller passes it in a register, or in a stack slot of eight bytes, whether it is
//! a pointer or an `int` (System V ABI for x86-64). Buffers are passed on as addresses; MPI requires that they belong
//! to the call until it returns.
#![allow(unsafe_code, reason = "the C ABI: functions that stand in front of the MPI's, and buffers of C programs")]
#![allow(non_snake_case, reason = "MPI's names")]

use crate::abi::Handle;
use crate::calls::{Call, Outcome};
use crate::communicators::forget_all;
use crate::counters::{COUNTERS, Operation};
use crate::log;
use crate::symbols::{Items, Mpi};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use telpher_fabric::Buffer;

/// Lends a buffer of the program, for the call that is running.
fn lend(address: usize, len: u64) -> Buffer {
    // SAFETY: MPI requires of the program that the buffers of a collective operation are not accessed by others until
    // the call returns, and no Rust code of this library refers to them.
    unsafe { Buffer::vouch(address as u64, len) }
}

/// Runs a call, or has the MPI do it.
fn run(
    operation: Operation,
    communicator: Handle,
    take: impl FnOnce(Call<'_>) -> Outcome,
    leave: impl FnOnce(&Mpi) -> c_int,
) -> c_int {
    let mpi = Mpi::get();
    let call = Call { mpi, communicator: mpi.abi.handle(communicator), lend };
    let outcome = catch_unwind(AssertUnwindSafe(|| take(call))).unwrap_or_else(|_| {
        log::warn(format_args!("a bug in telpher stopped {}; the line above says where", operation.name()));
        Outcome::Taken(mpi.abi.error_other)
    });
    match outcome {
        Outcome::Taken(code) => code,
        Outcome::Left => {
            COUNTERS.count(operation, false);
            leave(mpi)
        }
    }
}

fn kind(data_type: Handle, operation: Handle) -> (Handle, Handle) {
    let abi = &Mpi::get().abi;
    (abi.handle(data_type), abi.handle(operation))
}

fn items(address: usize, count: i64, data_type: Handle) -> Items {
    Items { address, count, data_type: Mpi::get().abi.handle(data_type) }
}

fn all_reduce(from: usize, to: usize, count: i64, data_type: Handle, operation: Handle, on: Handle) -> c_int {
    let kind = kind(data_type, operation);
    run(
        Operation::AllReduce,
        on,
        |call| call.all_reduce(from, to, count, kind),
        |mpi| mpi.all_reduce(from, to, count, kind, on),
    )
}

fn reduce(from: usize, to: usize, count: i64, data_type: Handle, operation: Handle, root: c_int, on: Handle) -> c_int {
    let kind = kind(data_type, operation);
    run(
        Operation::Reduce,
        on,
        |call| call.reduce(from, to, count, kind, root),
        |mpi| mpi.reduce(from, to, count, kind, root, on),
    )
}

fn broadcast(buffer: usize, count: i64, data_type: Handle, root: c_int, on: Handle) -> c_int {
    let items = items(buffer, count, data_type);
    run(
        Operation::Broadcast,
        on,
        |call| call.broadcast(items, root),
        |mpi| mpi.broadcast(buffer, count, data_type, root, on),
    )
}

fn all_gather(from: Items, to: Items, on: Handle) -> c_int {
    run(Operation::AllGather, on, |call| call.all_gather(from, to), |mpi| mpi.all_gather(from, to, on))
}

/// Exports the functions. Those for large counts (MPI 4) have the same names with `_c`; programs with an MPI that has
/// none may find ours, which then call the MPI's functions for small counts.
macro_rules! exports {
    ($($name:ident ($($argument:ident: $type:ty),*) $body:expr;)*) => {
        $(
            /// Stands in front of the MPI's function of this name.
            // SAFETY: the name is that of the MPI's function, whose place it takes, with the same parameters.
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> c_int {
                $body
            }
        )*
    };
}

exports! {
    MPI_Allreduce(from: usize, to: usize, count: c_int, data_type: Handle, operation: Handle, on: Handle)
        all_reduce(from, to, i64::from(count), data_type, operation, on);
    MPI_Allreduce_c(from: usize, to: usize, count: i64, data_type: Handle, operation: Handle, on: Handle)
        all_reduce(from, to, count, data_type, operation, on);
    MPI_Reduce(from: usize, to: usize, count: c_int, data_type: Handle, operation: Handle, root: c_int, on: Handle)
        reduce(from, to, i64::from(count), data_type, operation, root, on);
    MPI_Reduce_c(from: usize, to: usize, count: i64, data_type: Handle, operation: Handle, root: c_int, on: Handle)
        reduce(from, to, count, data_type, operation, root, on);
    MPI_Bcast(buffer: usize, count: c_int, data_type: Handle, root: c_int, on: Handle)
        broadcast(buffer, i64::from(count), data_type, root, on);
    MPI_Bcast_c(buffer: usize, count: i64, data_type: Handle, root: c_int, on: Handle)
        broadcast(buffer, count, data_type, root, on);
    MPI_Allgather(from: usize, sent: c_int, sent_type: Handle, to: usize, count: c_int, data_type: Handle, on: Handle)
        all_gather(items(from, i64::from(sent), sent_type), items(to, i64::from(count), data_type), on);
    MPI_Allgather_c(from: usize, sent: i64, sent_type: Handle, to: usize, count: i64, data_type: Handle, on: Handle)
        all_gather(items(from, sent, sent_type), items(to, count, data_type), on);
    MPI_Finalize()
        finalize();
}

/// Reports the counts, leaves all groups, and ends the MPI.
fn finalize() -> c_int {
    log::info(format_args!("{COUNTERS}"));
    forget_all();
    Mpi::get().finalize()
}
