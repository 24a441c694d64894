//! The idxd driver as a program sees it: attributes, binding, open files. No I/O of its own.
