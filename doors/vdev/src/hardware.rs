//! Which devices the virtual machine has.
