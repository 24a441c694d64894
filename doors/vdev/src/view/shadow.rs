//! The tree as real directories in the run directory.
