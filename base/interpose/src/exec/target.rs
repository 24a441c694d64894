//! The program that is to be executed: finds and examines it, and tells which values its environment needs.
#![allow(unsafe_code, reason = "strings of the program")]

use super::environment::{Entries, Restored};
use super::list::PreloadRequirements;
use super::program::{Form, HEAD_BYTES, Name, Obstacle, examine};
use super::state::{Kept, Words};
use crate::kernel;
use std::ffi::{CStr, c_char, c_int};

/// An array of strings that ends with a null pointer; or null.
pub(super) type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// Returns the C library's environment of this process.
pub(super) fn environment() -> Strings {
    // SAFETY: the C library's variable. A program that changes it in another thread has the same race with the C
    // library's own exec.
    unsafe { environ }
}

/// A program as a caller specifies it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    /// A path, relative to a directory.
    At(c_int, *const c_char),
    /// A path, or a name that is searched for in PATH.
    Search(*const c_char),
    /// An open file.
    Descriptor(c_int),
}

/// The findings about a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Findings {
    obstacle: Option<Obstacle>,
    /// The sanitizer runtime that it needs first.
    runtime: Option<Name>,
}

/// The longest chain of interpreters. Source: Linux `fs/exec.c`, exec_binprm(): five.
const MOST_INTERPRETERS: usize = 5;

/// Examines a program, and prints what keeps our library out of it. An unreadable file is treated as an ordinary
/// program.
///
/// # Safety
/// Strings are valid or null; null ones are not examined.
unsafe fn examine_program(program: Program, words: Option<Words>) -> Findings {
    // SAFETY: the caller's promise; the descriptor is the program's.
    unsafe {
        match program {
            Program::Descriptor(descriptor) => {
                let seen = examine_open(descriptor, c"".as_ptr(), words);
                return seen.unwrap_or_default();
            }
            Program::At(_, path) | Program::Search(path) if path.is_null() || *path == 0 => {}
            Program::Search(name) if !CStr::from_ptr(name).to_bytes().contains(&b'/') => {
                return search(name, words).unwrap_or_default();
            }
            Program::At(directory, path) => return examine_at(directory, path, words).unwrap_or_default(),
            Program::Search(path) => return examine_at(libc::AT_FDCWD, path, words).unwrap_or_default(),
        }
    }
    Findings::default()
}

/// Finds the first program of this name in PATH. Source: POSIX: an empty part is the working directory; without PATH:
/// glibc's default.
///
/// # Safety
/// `name` is a string.
unsafe fn search(name: *const c_char, words: Option<Words>) -> Option<Findings> {
    /// The longest directory that is examined. Source: chosen.
    const LONGEST: usize = 256;
    // SAFETY: the program's environment, which the C library's search reads, too.
    let mut entries = unsafe { Entries::new(environment()) };
    let path = entries.find_map(|entry| super::environment::value(entry, b"PATH")).unwrap_or(b"/bin:/usr/bin");
    path.split(|byte| *byte == b':').find_map(|part| {
        let mut text = [0; LONGEST];
        let part = if part.is_empty() { b"." } else { part };
        text.get_mut(..part.len())?.copy_from_slice(part);
        let directory = CStr::from_bytes_until_nul(&text).ok()?;
        // SAFETY: both are strings, and the directory is closed once.
        unsafe {
            let directory = kernel::open(libc::AT_FDCWD, directory.as_ptr(), libc::O_PATH | libc::O_DIRECTORY).ok()?;
            let seen = examine_at(directory, name, words);
            kernel::close(directory);
            seen
        }
    })
}

/// Examines a program at a path; `None` if no executable file is there.
///
/// # Safety
/// `path` is a string.
unsafe fn examine_at(directory: c_int, path: *const c_char, words: Option<Words>) -> Option<Findings> {
    // SAFETY: the caller's promise; the descriptor is closed once.
    unsafe {
        let status = kernel::status(directory, path, 0).ok()?;
        if status.st_mode & libc::S_IFMT != libc::S_IFREG || !kernel::may_execute(directory, path) {
            return None;
        }
        match kernel::open(directory, path, libc::O_RDONLY) {
            Ok(descriptor) => {
                let seen = examine_open(descriptor, path, words);
                kernel::close(descriptor);
                seen
            }
            // Executable but not readable.
            Err(_) => {
                Some(print_obstacle(Findings { obstacle: rights_gained(&status, None), runtime: None }, path, words))
            }
        }
    }
}

/// Examines an open program, or the interpreter that it leads to.
///
/// # Safety
/// `path`, the name in messages, is a string.
unsafe fn examine_open(descriptor: c_int, path: *const c_char, words: Option<Words>) -> Option<Findings> {
    let mut head = [0; HEAD_BYTES];
    let mut interpreter = [0; HEAD_BYTES];
    // The descriptor opened in addition to the caller's, and its name.
    let mut opened = None;
    let mut name = path;
    let mut seen = Findings::default();
    for _ in 0..=MOST_INTERPRETERS {
        let current = opened.unwrap_or(descriptor);
        match examine(&|offset, into| kernel::read_at(current, offset, into), &mut head) {
            Form::Other => break,
            Form::Elf { obstacle, runtime } => {
                // SAFETY: with an empty string the descriptor itself is meant.
                let status = unsafe { kernel::status(current, c"".as_ptr(), libc::AT_EMPTY_PATH) }.ok();
                let gained = status.and_then(|status| rights_gained(&status, Some(current)));
                seen = Findings { obstacle: gained.or(obstacle), runtime };
                break;
            }
            Form::Script { start, end } => {
                interpreter.fill(0);
                interpreter[..end - start].copy_from_slice(&head[start..end]);
                name = interpreter.as_ptr().cast();
                opened.into_iter().for_each(kernel::close);
                // SAFETY: a zero follows the path: it ends before the head does.
                opened = unsafe { kernel::open(libc::AT_FDCWD, name, libc::O_RDONLY) }.ok();
                if opened.is_none() {
                    break;
                }
            }
        }
    }
    opened.into_iter().for_each(kernel::close);
    // SAFETY: the caller's string, or the one above.
    Some(unsafe { print_obstacle(seen, name, words) })
}

/// Returns how a program gains rights that its user does not have, if it does.
fn rights_gained(status: &libc::stat, descriptor: Option<c_int>) -> Option<Obstacle> {
    let (user, group) = kernel::user_and_group();
    // Without the group's execute bit, setgid means mandatory locking.
    let setgid = libc::S_ISGID | libc::S_IXGRP;
    let how = if status.st_mode & libc::S_ISUID != 0 && status.st_uid != user {
        Obstacle::Setuid
    } else if status.st_mode & setgid == setgid && status.st_gid != group {
        Obstacle::Setgid
    } else if user != 0 && descriptor.is_some_and(|file| kernel::has_attribute(file, c"security.capability")) {
        // Root already has them.
        Obstacle::Capabilities
    } else {
        return None;
    };
    let gains = !kernel::gains_no_rights() && !descriptor.is_some_and(kernel::is_nosuid);
    gains.then_some(how)
}

/// Prints one line about what keeps our library out of a program.
///
/// # Safety
/// `path` is a string.
unsafe fn print_obstacle(seen: Findings, path: *const c_char, words: Option<Words>) -> Findings {
    if let (Some(obstacle), Some(words)) = (seen.obstacle, words) {
        // SAFETY: the caller's promise.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        let advice = if obstacle.gains_rights() {
            "run telpher itself as the user whose rights it needs"
        } else {
            words.otherwise
        };
        kernel::write_error(&[
            words.prefix.as_bytes(),
            if path.is_empty() { b"a program" } else { path },
            b" ",
            obstacle.phrase().as_bytes(),
            b", so nothing can be preloaded into it, and ",
            words.consequence.as_bytes(),
            b"; ",
            advice.as_bytes(),
            b"\n",
        ]);
    }
    seen
}

/// Calls `act` with the values to restore in an environment for a program; returns `None` if there are none.
///
/// # Safety
/// `environment` is an array of strings, or null, and the program's strings are strings.
pub(super) unsafe fn restored<R>(
    kept: &Kept,
    environment: Strings,
    program: Program,
    act: impl FnOnce(Restored<'_>) -> R,
) -> Option<R> {
    let variables = kept.variables();
    let wanted = |first| Restored { wanted: PreloadRequirements { image: kept.image, first }, variables };
    // SAFETY: the caller's promise.
    unsafe {
        if wanted(None).is_of_another_run(Entries::new(environment)) {
            return None;
        }
        let seen = examine_program(program, kept.words);
        Some(act(wanted(seen.runtime.as_ref().map(Name::as_bytes))))
    }
}
