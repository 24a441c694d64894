//! The symbols that win over the C library's.
