//! `TELPHER_DML_STRICT`: answers as the original gives them, also where they are wrong, for tests that compare.

use crate::sync::AtomicU8;
use std::sync::atomic::Ordering;

const UNREAD: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STRICT: AtomicU8 = AtomicU8::new(UNREAD);

/// Returns true if the original's answers are wanted. The variable is read once in a process.
#[inline]
pub(crate) fn strict() -> bool {
    // Relaxed: only the value itself matters, and every thread that reads the variable finds the same.
    match STRICT.load(Ordering::Relaxed) {
        UNREAD => read(),
        state => state == ON,
    }
}

#[cold]
fn read() -> bool {
    let on = std::env::var_os("TELPHER_DML_STRICT").is_some_and(|value| !value.is_empty() && value != "0");
    // Relaxed: as above.
    STRICT.store(if on { ON } else { OFF }, Ordering::Relaxed);
    on
}
