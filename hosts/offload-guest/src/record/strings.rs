//! Functions that copy strings: the C library copies inside them, where neither a recording nor a device can reach. So
//! their calls are counted while a process is recorded, by the bytes that they write. While nothing is recorded, a call
//! costs one jump more.
//!
//! Not counted are other functions that write strings, such as `strcat`, `snprintf` and `getline`.
#![allow(unsafe_code, reason = "exports functions with the C library's names, and calls the C library's by address")]

use super::calls::count;
use crate::entries::{__chk_fail, checked};
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicPtr, Ordering};
use telpher_interpose::preload::Original;
use telpher_recording::Operation;

/// Where the calls of one function go: to this library's own until the C library's is known, then to the C library's,
/// and while the process is recorded to the one that counts.
#[repr(transparent)]
struct Target(AtomicPtr<c_void>);

/// One function.
struct StringFunction {
    name: &'static CStr,
    target: &'static Target,
    /// The C library's function, or this library's own.
    original: Target,
    /// The function that counts.
    counted: *mut c_void,
}

// SAFETY: the pointer is the address of code.
unsafe impl Sync for StringFunction {}

type Text = *mut c_char;
type Source = *const c_char;

/// `strcpy`, `stpcpy`.
type Copy = unsafe extern "C" fn(Text, Source) -> Text;
/// `strncpy`, `__strcpy_chk`, `__stpcpy_chk`: the third argument is a number of bytes.
type CopyBounded = unsafe extern "C" fn(Text, Source, usize) -> Text;
/// `strdup`.
type Duplicate = unsafe extern "C" fn(Source) -> Text;

impl Target {
    fn get(&self) -> *mut c_void {
        // Relaxed: the address of code, which publishes nothing.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, function: *mut c_void) {
        self.0.store(function, Ordering::Relaxed);
    }
}

/// Defines an exported function, where its calls go, and the entry of both in a list.
macro_rules! string_function {
    ($name:ident($($argument:ident: $type:ty),*), $target:ident, $entry:ident, $own:ident, $counted:ident) => {
        static $target: Target = Target(AtomicPtr::new($own as *mut c_void));

        static $entry: StringFunction = StringFunction {
            // The name is a string without a zero byte.
            name: match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            },
            target: &$target,
            original: Target(AtomicPtr::new($own as *mut c_void)),
            counted: $counted as *mut c_void,
        };

        /// Continues where its calls go.
        ///
        /// # Safety
        /// As for the C library's function of this name.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> Text {
            naked_asm!("endbr64", "jmp qword ptr [rip + {target}]", target = sym $target)
        }
    };
}

string_function!(strcpy(to: Text, from: Source), STRCPY_TARGET, STRCPY, own_strcpy, counted_strcpy);
string_function!(stpcpy(to: Text, from: Source), STPCPY_TARGET, STPCPY, own_stpcpy, counted_stpcpy);
string_function!(strncpy(to: Text, from: Source, len: usize), STRNCPY_TARGET, STRNCPY, own_strncpy, counted_strncpy);
string_function!(strdup(from: Source), STRDUP_TARGET, STRDUP, own_strdup, counted_strdup);
string_function!(
    __strcpy_chk(to: Text, from: Source, room: usize),
    STRCPY_CHK_TARGET,
    STRCPY_CHK,
    own_strcpy_chk,
    counted_strcpy_chk
);
string_function!(
    __stpcpy_chk(to: Text, from: Source, room: usize),
    STPCPY_CHK_TARGET,
    STPCPY_CHK,
    own_stpcpy_chk,
    counted_stpcpy_chk
);

static ALL: [&StringFunction; 6] = [&STRCPY, &STPCPY, &STRNCPY, &STRDUP, &STRCPY_CHK, &STPCPY_CHK];

checked!(__strncpy_chk, Text, Source, strncpy);

/// Finds the C library's functions, and lets their calls continue there.
pub(crate) fn find_originals() {
    for function in ALL {
        if let Some(found) = Original::new(function.name).find() {
            function.original.set(found);
            function.target.set(found);
        }
    }
}

/// Counts all further calls.
pub(super) fn begin() {
    ALL.iter().for_each(|function| function.target.set(function.counted));
}

/// Counts no further calls.
pub(super) fn end() {
    ALL.iter().for_each(|function| function.target.set(function.original.get()));
}

/// Counts a call that wrote the bytes from `start` up to the zero byte at `end`.
fn count_up_to(start: Text, end: Text) {
    count(Operation::StringCopy, end.addr().wrapping_sub(start.addr()) + 1);
}

// In the functions below, the program's call is passed on; its promise is the C library's contract.

unsafe extern "C" fn counted_strcpy(to: Text, from: Source) -> Text {
    // The function that returns the end, so that the string need not be searched for it.
    // SAFETY: as for `strcpy`.
    let end = unsafe { transmute::<*mut c_void, Copy>(STPCPY.original.get())(to, from) };
    count_up_to(to, end);
    to
}

unsafe extern "C" fn counted_stpcpy(to: Text, from: Source) -> Text {
    // SAFETY: the program's own call.
    let end = unsafe { transmute::<*mut c_void, Copy>(STPCPY.original.get())(to, from) };
    count_up_to(to, end);
    end
}

unsafe extern "C" fn counted_strncpy(to: Text, from: Source, len: usize) -> Text {
    // SAFETY: the program's own call.
    unsafe { transmute::<*mut c_void, CopyBounded>(STRNCPY.original.get())(to, from, len) };
    // It fills the rest with zeros.
    count(Operation::StringCopy, len);
    to
}

unsafe extern "C" fn counted_strdup(from: Source) -> Text {
    // SAFETY: the program's own call.
    let copy = unsafe { transmute::<*mut c_void, Duplicate>(STRDUP.original.get())(from) };
    if !copy.is_null() {
        // SAFETY: a string that the C library has just written.
        count(Operation::StringCopy, unsafe { libc::strlen(copy) } + 1);
    }
    copy
}

unsafe extern "C" fn counted_strcpy_chk(to: Text, from: Source, room: usize) -> Text {
    // SAFETY: as for `__strcpy_chk`.
    let end = unsafe { transmute::<*mut c_void, CopyBounded>(STPCPY_CHK.original.get())(to, from, room) };
    count_up_to(to, end);
    to
}

unsafe extern "C" fn counted_stpcpy_chk(to: Text, from: Source, room: usize) -> Text {
    // SAFETY: the program's own call.
    let end = unsafe { transmute::<*mut c_void, CopyBounded>(STPCPY_CHK.original.get())(to, from, room) };
    count_up_to(to, end);
    end
}

// Until the C library's functions are known, constructors of other libraries may call these.

unsafe extern "C" fn own_stpcpy(to: Text, from: Source) -> Text {
    let mut at = 0;
    loop {
        // SAFETY: the string goes on up to its zero byte, and the destination has room for it.
        unsafe {
            let character = from.add(at).read();
            to.add(at).write(character);
            if character == 0 {
                return to.add(at);
            }
        }
        at += 1;
    }
}

unsafe extern "C" fn own_strcpy(to: Text, from: Source) -> Text {
    // SAFETY: the caller's promise, here and below.
    unsafe { own_stpcpy(to, from) };
    to
}

unsafe extern "C" fn own_strncpy(to: Text, from: Source, len: usize) -> Text {
    let mut has_ended = false;
    for at in 0..len {
        // SAFETY: the destination has these bytes, and the string is read up to its zero byte.
        unsafe {
            let character = if has_ended { 0 } else { from.add(at).read() };
            has_ended |= character == 0;
            to.add(at).write(character);
        }
    }
    to
}

unsafe extern "C" fn own_strdup(from: Source) -> Text {
    // SAFETY: the program frees the memory with the function that belongs to this malloc.
    unsafe {
        let copy: Text = libc::malloc(libc::strlen(from) + 1).cast();
        if !copy.is_null() {
            own_stpcpy(copy, from);
        }
        copy
    }
}

unsafe extern "C" fn own_stpcpy_chk(to: Text, from: Source, room: usize) -> Text {
    // SAFETY: the caller's promise.
    unsafe {
        if libc::strlen(from) >= room {
            __chk_fail();
        }
        own_stpcpy(to, from)
    }
}

unsafe extern "C" fn own_strcpy_chk(to: Text, from: Source, room: usize) -> Text {
    // SAFETY: the caller's promise.
    unsafe { own_stpcpy_chk(to, from, room) };
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The functions behind their targets, before and after the C library's are known, and while they count.
    #[test]
    fn strings_are_copied_whatever_executes_it() {
        let check = || {
            let mut to = [b'x'.cast_signed(); 16];
            let start = to.as_mut_ptr();
            let text = |to: &[c_char]| to.iter().map(|character| character.cast_unsigned()).collect::<Vec<_>>();
            // SAFETY: the destination has 16 bytes, and the sources are strings.
            unsafe {
                assert_eq!(strcpy(start, c"telpher".as_ptr()), start);
                assert_eq!(text(&to)[..9], *b"telpher\0x");
                assert_eq!(stpcpy(start, c"dsa".as_ptr()), start.add(3));
                assert_eq!(text(&to)[..9], *b"dsa\0her\0x");
                assert_eq!(strncpy(start, c"ab".as_ptr(), 6), start);
                assert_eq!(text(&to)[..9], *b"ab\0\0\0\0r\0x");
                assert_eq!(strncpy(start, c"abcdef".as_ptr(), 3), start);
                assert_eq!(text(&to)[..4], *b"abc\0");
                assert_eq!(__strcpy_chk(start, c"1234".as_ptr(), 16), start);
                assert_eq!(__stpcpy_chk(start.add(1), c"56".as_ptr(), 3), start.add(3));
                assert_eq!(text(&to)[..5], *b"156\0\0");
                assert_eq!(__strncpy_chk(start, c"9".as_ptr(), 2, 2), start);
                assert_eq!(text(&to)[..5], *b"9\x006\0\0");
                let copy = strdup(c"a copy".as_ptr());
                assert_eq!(CStr::from_ptr(copy), c"a copy");
                libc::free(copy.cast());
            }
        };
        check();
        find_originals();
        check();
        begin();
        check();
        end();
        check();
    }
}
