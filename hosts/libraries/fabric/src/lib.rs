//! The shared object of the provider that libfabric loads: all symbols of `telpher-ofi`.

extern crate telpher_ofi;
