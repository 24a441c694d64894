//! `--inject`.
