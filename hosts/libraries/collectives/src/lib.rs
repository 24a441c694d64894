//! The shared object of the collective operations: all symbols of `telpher-mpi`.

extern crate telpher_mpi;
