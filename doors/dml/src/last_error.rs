//! The reason of a thread's last failed submission, or of its last status without a name.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use telpher_abi::StatusByte;

thread_local! {
    static REASON: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Stores a reason.
#[cold]
pub(crate) fn set(reason: String) {
    // A thread that is exiting has no storage for it.
    let _ = REASON.try_with(|stored| *stored.borrow_mut() = CString::new(reason).ok());
}

/// Stores the device's status for one that the interface has no name for.
#[cold]
pub(crate) fn explain(what: &dyn Display, ended: StatusByte) {
    set(format!("{what} ended with a status that DML has no name for: {}", ended.status()));
}

/// Returns the reason as a text of C, which lives until this thread's next reason.
pub(crate) fn get() -> *const c_char {
    let stored = REASON.try_with(|stored| stored.borrow().as_ref().map(|reason| reason.as_ptr()));
    stored.ok().flatten().unwrap_or(c"".as_ptr())
}
