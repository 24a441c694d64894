//! About the library: version, features, and texts for people.

use super::{answer, copy_text, look, text};
use crate::c_structs::OpResult;
use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

/// The version as text.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// What [`telpher_has`] knows.
const FEATURES: [&str; 11] =
    ["cpu", "model", "hw", "batch", "channel", "raw", "options", "cache", "vhost", "tier", "switch"];

/// `"0.1.0"`.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// The version as `major << 16 | minor << 8 | patch`.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_version_number() -> u32 {
    const fn part(text: &str) -> u32 {
        let (bytes, mut value, mut i) = (text.as_bytes(), 0, 0);
        while i < bytes.len() {
            value = value * 10 + (bytes[i] - b'0') as u32;
            i += 1;
        }
        value
    }
    const NUMBER: u32 = part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | part(env!("CARGO_PKG_VERSION_PATCH"));
    NUMBER
}

/// Returns 1 if the library has the feature, 0 if not or if the name is unknown.
///
/// # Safety
///
/// See the [module's rules](crate) for texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_has(feature: *const c_char) -> c_int {
    // SAFETY: guaranteed by our caller. Never an errno, which `if` would take for a yes.
    unsafe { text("the feature", feature) }.is_ok_and(|feature| FEATURES.contains(&feature)).into()
}

/// The message of this thread's last failed call; `""` if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_last_error() -> *const c_char {
    crate::failure::last_text()
}

/// Every option with its values.
#[unsafe(no_mangle)]
pub extern "C" fn telpher_options_help() -> *const c_char {
    static HELP: OnceLock<CString> = OnceLock::new();
    HELP.get_or_init(|| CString::new(crate::options::help()).unwrap_or_default()).as_ptr()
}

/// A result as a sentence.
///
/// # Safety
///
/// See the [module's rules](crate) for structures; and `buffer` is valid for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_result_text(result: *const OpResult, buffer: *mut c_char, size: usize) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let result = unsafe { look("the result", result) }?;
        // SAFETY: guaranteed by our caller.
        unsafe { copy_text(&result.text(), buffer, size) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Failure, Refusal};
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: a C string, valid until the next call.
        unsafe { CStr::from_ptr(telpher_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn the_last_failure_of_a_thread_is_told_by_that_thread_alone() {
        assert_eq!(last(), "");
        assert_eq!(answer(|| Err(Refusal::Null("the source").into())), -libc::EFAULT);
        assert_eq!((last(), last()), ("the source is NULL".into(), "the source is NULL".into()));
        assert_eq!(std::thread::spawn(|| last().len()).join().unwrap(), 0);
        assert_eq!(answer(|| Err(Failure::Other(libc::EIO, "with\0zero".into()))), -libc::EIO);
        assert_eq!(last(), "with zero");
    }

    #[test]
    fn a_panic_becomes_an_errno() {
        assert_eq!(answer(|| panic!("too {}", "bad")), -libc::ENOTRECOVERABLE);
        assert_eq!(last(), "a bug in telpher: too bad");
    }

    #[test]
    fn a_text_is_cut_to_its_buffer_and_told_whole() {
        let mut buffer = [1 as c_char; 4];
        for (size, left) in [(4, [b'f', b'o', b'u', 0]), (1, [0, 1, 1, 1]), (0, [1; 4])] {
            buffer.fill(1);
            // SAFETY: `size` bytes of the buffer.
            let whole = answer(|| unsafe { copy_text("fourteen bytes", buffer.as_mut_ptr(), size) });
            assert_eq!((whole, buffer), (14, left.map(|byte| byte as c_char)));
        }
    }
}
