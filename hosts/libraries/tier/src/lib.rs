//! The shared object of the manager of memory: all symbols of `telpher-tier-guest`.

extern crate telpher_tier_guest;
