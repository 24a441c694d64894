//! The tree as a file system in a private mount namespace.
