//! Error numbers beyond those of the system (`rdma/fi_errno.h`). libfabric's functions return them negated.

/// An error completion waits to be read.
pub(crate) const EAVAIL: i32 = 259;
/// The flags are not supported.
pub(crate) const EBADFLAGS: i32 = 260;
/// The buffer of the caller is too short.
pub(crate) const ETOOSMALL: i32 = 257;
/// The object is in a state that does not permit the call.
pub(crate) const EOPBADSTATE: i32 = 258;
/// No completion queue is bound.
pub(crate) const ENOCQ: i32 = 263;
/// A message was longer than the receive buffer.
pub(crate) const ETRUNC: i32 = 265;
/// No address vector is bound.
pub(crate) const ENOAV: i32 = 267;
/// No region has the key, or one has it already.
pub(crate) const ENOKEY: i32 = 266;
