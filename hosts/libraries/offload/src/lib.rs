//! The shared object of the memory functions: all symbols of `telpher-offload-guest`.

extern crate telpher_offload_guest;
