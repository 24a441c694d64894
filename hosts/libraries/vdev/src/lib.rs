//! The shared object of the virtual device: all symbols of `telpher-vdev-guest`.

extern crate telpher_vdev_guest;
