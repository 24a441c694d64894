//! `--trace` and `telpher trace`.
