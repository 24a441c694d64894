//! Replacements of the C library's functions that execute programs.
//!
//! They may be called in a child of vfork(2), in a signal handler, and after fork(2) in a program with threads: nothing
//! allocates or takes a lock, and the original functions were looked up before `main`.
#![allow(unsafe_code, reason = "strings of the program, and the C library's functions")]

use super::environment::Entries;
use super::scratch::{ScratchError, with_scratch};
use super::shell::with_command;
use super::state::kept;
use super::target::{Program, Strings, environment, restored};
use crate::kernel::{self, Errno};
use crate::preload::Original;
use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr;

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
    all.iter().for_each(|next| _ = next.find());
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
        match EXECVE.find() {
            None => refuse(kernel::execute(libc::AT_FDCWD, path, arguments, environment, 0)),
            Some(next) => transmute::<*mut c_void, Execve>(next)(path, arguments, environment),
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
        match EXECVPE.find() {
            None => refuse(libc::ENOSYS),
            Some(next) => transmute::<*mut c_void, Execve>(next)(file, arguments, environment),
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
        match EXECVEAT.find() {
            None => refuse(kernel::execute(directory, path, arguments, environment, flags)),
            Some(next) => transmute::<*mut c_void, Execveat>(next)(directory, path, arguments, environment, flags),
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
        match FEXECVE.find() {
            None => refuse(libc::ENOSYS),
            Some(next) => transmute::<*mut c_void, Fexecve>(next)(descriptor, arguments, environment),
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
        match next.find() {
            None => libc::ENOSYS,
            Some(next) => {
                transmute::<*mut c_void, Spawn>(next)(answer, path, actions, attributes, arguments, environment)
            }
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
        if PIDFD_SPAWN.find().is_none() {
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
        if PIDFD_SPAWNP.find().is_none() {
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
    let Some(next) = SYSTEM.find() else { return refuse(libc::ENOSYS) };
    // SAFETY: the C library's function of this type; the command is a string or null.
    unsafe { with_command(command, |command| transmute::<*mut c_void, System>(next)(command)) }
}

/// Replaces popen(3).
///
/// # Safety
/// As for popen(3).
pub unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let Some(next) = POPEN.find() else {
        set_errno(libc::ENOSYS);
        return ptr::null_mut();
    };
    // SAFETY: the C library's function of this type; the command is a string or null.
    unsafe { with_command(command, |command| transmute::<*mut c_void, Popen>(next)(command, mode)) }
}
