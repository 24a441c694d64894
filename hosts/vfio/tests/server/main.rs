//! Placeholder.
#[test]
fn x() {}
