//! The program's files: what is ours among its descriptors and paths.
