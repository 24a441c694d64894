//! Replacements of the C library's functions that execute programs.
//!
//! They may be called in a child of vfork(2), in a signal handler, and after fork(2) in a program with threads: nothing
//! allocates or takes a lock, and the original functions were looked up before `main`.
#![allow(unsafe_code, reason = "strings of the program, and the C library's functions")]

use super::environment::{Entries, Restored};
use super::list::PreloadRequirements;
use super::program::{Form, HEAD_BYTES, Name, Obstacle, examine};
use super::scratch::{ScratchError, with_scratch};
use super::state::{Kept, Words, kept};
use crate::kernel::{self, Errno};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

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

/// A function that the program would have called without this library.
struct Original {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Original {
    const fn new(name: &'static CStr) -> Self {
        Original { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns its address; null if this C library does not have it.
    fn get(&self) -> *mut c_void {
        // Relaxed: an address of code; it publishes no other memory, and every thread finds the same.
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is a string; RTLD_NEXT searches after the library that contains this code.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }
}

type Execve = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type Fexecve = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
type Execveat = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
type Spawn = unsafe extern "C" fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
type System = unsafe extern "C" fn(*const c_char) -> c_int;
type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

static EXECVE: Original = Original::new(c"execve");
static EXECVPE: Original = Original::new(c"execvpe");
static EXECVEAT: Original = Original::new(c"execveat");
static FEXECVE: Original = Original::new(c"fexecve");
static SPAWN: Original = Original::new(c"posix_spawn");
static SPAWNP: Original = Original::new(c"posix_spawnp");
static PIDFD_SPAWN: Original = Original::new(c"pidfd_spawn");
static PIDFD_SPAWNP: Original = Original::new(c"pidfd_spawnp");
static SYSTEM: Original = Original::new(c"system");
static POPEN: Original = Original::new(c"popen");

/// Looks all of them up; the dynamic linker takes locks for this.
pub(super) fn look_up() {
    let all = [&EXECVE, &EXECVPE, &EXECVEAT, &FEXECVE, &SPAWN, &SPAWNP, &PIDFD_SPAWN, &PIDFD_SPAWNP, &SYSTEM, &POPEN];
    all.iter().for_each(|next| _ = next.get());
}

fn set_errno(errno: Errno) {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns -1, with `errno` set.
fn refuse(errno: Errno) -> c_int {
    set_errno(errno);
    -1
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

/// Calls `act` with an environment in which all values are restored, or `refused` if it has become too large.
///
/// # Safety
/// `environment` is an array of strings, or null, and the program's strings are strings.
unsafe fn with_restored<R>(
    environment: Strings,
    program: Program,
    act: &mut dyn FnMut(Strings) -> R,
    refused: fn(Errno) -> R,
) -> R {
    let Some(kept) = kept() else { return act(environment) };
    // SAFETY: the caller's promise; the memory has the measured size of the same entries.
    let done = unsafe {
        restored(kept, environment, program, |restored| {
            let entries = Entries::new(environment);
            let size = restored.measure(entries)?;
            // Only the process that has loaded the library uses pages; any other may be a child of vfork.
            let pages = kernel::process() == kept.process;
            Some(with_scratch(size.bytes(), pages, &mut |scratch| act(restored.write(entries, size, scratch))))
        })
    };
    match done.flatten() {
        None => act(environment),
        Some(Ok(answer)) => answer,
        Some(Err(ScratchError::TooLarge)) => refused(libc::E2BIG),
        Some(Err(ScratchError::NoMemory)) => refused(libc::ENOMEM),
    }
}

/// Replaces execve(2).
///
/// # Safety
/// As for execve(2).
pub unsafe fn execute(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: forwarded; the function is the C library's of this type.
    let mut act = |environment| unsafe {
        match EXECVE.get() {
            next if next.is_null() => refuse(kernel::execute(libc::AT_FDCWD, path, arguments, environment, 0)),
            next => transmute::<*mut c_void, Execve>(next)(path, arguments, environment),
        }
    };
    // SAFETY: forwarded.
    unsafe { with_restored(environment, Program::At(libc::AT_FDCWD, path), &mut act, refuse) }
}

/// Replaces execvpe(3).
///
/// # Safety
/// As for execvpe(3).
pub unsafe fn execute_search(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: forwarded; the function is the C library's of this type.
    let mut act = |environment| unsafe {
        match EXECVPE.get() {
            next if next.is_null() => refuse(libc::ENOSYS),
            next => transmute::<*mut c_void, Execve>(next)(file, arguments, environment),
        }
    };
    // SAFETY: forwarded.
    unsafe { with_restored(environment, Program::Search(file), &mut act, refuse) }
}

/// Replaces execveat(2).
///
/// # Safety
/// As for execveat(2).
pub unsafe fn execute_at(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    // SAFETY: forwarded; the function is the C library's of this type.
    let mut act = |environment| unsafe {
        match EXECVEAT.get() {
            next if next.is_null() => refuse(kernel::execute(directory, path, arguments, environment, flags)),
            next => transmute::<*mut c_void, Execveat>(next)(directory, path, arguments, environment, flags),
        }
    };
    // SAFETY: a string if it is not null.
    let is_descriptor = flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && unsafe { *path } == 0;
    let program = if is_descriptor { Program::Descriptor(directory) } else { Program::At(directory, path) };
    // SAFETY: forwarded.
    unsafe { with_restored(environment, program, &mut act, refuse) }
}

/// Replaces fexecve(3).
///
/// # Safety
/// As for fexecve(3).
pub unsafe fn execute_descriptor(descriptor: c_int, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: forwarded; the function is the C library's of this type.
    let mut act = |environment| unsafe {
        match FEXECVE.get() {
            next if next.is_null() => refuse(libc::ENOSYS),
            next => transmute::<*mut c_void, Fexecve>(next)(descriptor, arguments, environment),
        }
    };
    // SAFETY: forwarded.
    unsafe { with_restored(environment, Program::Descriptor(descriptor), &mut act, refuse) }
}

/// Replaces execl(3), with its list of arguments as an array; uses this process' environment.
///
/// # Safety
/// As for execv(3).
pub unsafe extern "C" fn exec_list(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: forwarded.
    unsafe { execute(path, arguments, environment()) }
}

/// Replaces execlp(3), likewise.
///
/// # Safety
/// As for execvp(3).
pub unsafe extern "C" fn exec_list_search(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: forwarded.
    unsafe { execute_search(file, arguments, environment()) }
}

/// Replaces execle(3), likewise; the environment follows the null pointer that ends the list.
///
/// # Safety
/// As for execle(3).
pub unsafe extern "C" fn exec_list_environment(path: *const c_char, arguments: Strings) -> c_int {
    let mut end = arguments;
    // SAFETY: the list ends with a null pointer, and one more argument follows it.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execute(path, arguments, (*end.add(1)).cast())
    }
}

/// Replaces posix_spawn(3) and its relatives, which return the error number.
///
/// # Safety
/// As for posix_spawn(3); `next` has its type.
unsafe fn spawn_by(
    next: &Original,
    answer: *mut c_int,
    program: Program,
    (actions, attributes): (*const c_void, *const c_void),
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let (Program::At(_, path) | Program::Search(path)) = program else { return libc::EINVAL };
    // SAFETY: forwarded; the function is the C library's of this type.
    let mut act = |environment| unsafe {
        match next.get() {
            next if next.is_null() => libc::ENOSYS,
            next => transmute::<*mut c_void, Spawn>(next)(answer, path, actions, attributes, arguments, environment),
        }
    };
    // SAFETY: forwarded.
    unsafe { with_restored(environment, program, &mut act, |errno| errno) }
}

/// Replaces posix_spawn(3).
///
/// # Safety
/// As for posix_spawn(3).
pub unsafe fn spawn(
    process: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let program = Program::At(libc::AT_FDCWD, path);
    // SAFETY: forwarded.
    unsafe { spawn_by(&SPAWN, process, program, (actions, attributes), arguments, environment) }
}

/// Replaces posix_spawnp(3).
///
/// # Safety
/// As for posix_spawnp(3).
pub unsafe fn spawn_search(
    process: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: forwarded.
    unsafe { spawn_by(&SPAWNP, process, Program::Search(file), (actions, attributes), arguments, environment) }
}

/// Replaces pidfd_spawn of glibc 2.39. On older versions it does the same in two steps, because a program that looks
/// for the function finds ours.
///
/// # Safety
/// As for posix_spawn(3), except that the result is a descriptor.
pub unsafe fn spawn_descriptor(
    descriptor: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let program = Program::At(libc::AT_FDCWD, path);
    // SAFETY: forwarded.
    unsafe {
        if PIDFD_SPAWN.get().is_null() {
            opened(descriptor, |process| spawn(process, path, actions, attributes, arguments, environment))
        } else {
            spawn_by(&PIDFD_SPAWN, descriptor, program, (actions, attributes), arguments, environment)
        }
    }
}

/// Replaces pidfd_spawnp of glibc 2.39, likewise.
///
/// # Safety
/// As for posix_spawnp(3), except that the result is a descriptor.
pub unsafe fn spawn_search_descriptor(
    descriptor: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: forwarded.
    unsafe {
        if PIDFD_SPAWNP.get().is_null() {
            opened(descriptor, |process| spawn_search(process, file, actions, attributes, arguments, environment))
        } else {
            let program = Program::Search(file);
            spawn_by(&PIDFD_SPAWNP, descriptor, program, (actions, attributes), arguments, environment)
        }
    }
}

/// Spawns a process, and stores a descriptor of it.
///
/// # Safety
/// `descriptor` is writable.
unsafe fn opened(descriptor: *mut c_int, spawn: impl FnOnce(*mut c_int) -> c_int) -> c_int {
    let mut process = 0;
    let error = spawn(&raw mut process);
    if error != 0 {
        return error;
    }
    match kernel::open_process(process) {
        Ok(opened) => {
            // SAFETY: the caller's promise.
            unsafe { descriptor.write(opened) };
            0
        }
        Err(errno) => errno,
    }
}

/// Replaces system(3).
///
/// # Safety
/// As for system(3).
pub unsafe fn system(command: *const c_char) -> c_int {
    let next = SYSTEM.get();
    if next.is_null() {
        return refuse(libc::ENOSYS);
    }
    // SAFETY: the C library's function of this type; the command is a string or null.
    unsafe { super::shell::with_command(command, |command| transmute::<*mut c_void, System>(next)(command)) }
}

/// Replaces popen(3).
///
/// # Safety
/// As for popen(3).
pub unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let next = POPEN.get();
    if next.is_null() {
        set_errno(libc::ENOSYS);
        return ptr::null_mut();
    }
    // SAFETY: the C library's function of this type; the command is a string or null.
    unsafe { super::shell::with_command(command, |command| transmute::<*mut c_void, Popen>(next)(command, mode)) }
}
