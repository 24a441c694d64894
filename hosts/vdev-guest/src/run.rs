//! The run of this process: its host's socket, how files are seen, and the number of this address space.
//!
//! The settings are read from the environment at the first call: in this library's constructor, or in an earlier
//! constructor of another library that calls one of the symbols.
#![allow(unsafe_code, reason = "reads the environment before main, and keeps the socket's address in a static")]

use crate::sync::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::cell::UnsafeCell;
use telpher_interpose::exec::Words;
use telpher_interpose::preload::variable;
use telpher_vdev_wire::settings::{self, Settings, View};

/// Longest run directory in bytes; a Unix socket address has 108 bytes including the socket's name.
const MAX_DIRECTORY: usize = 96;

const UNKNOWN: u8 = 0;
const WORKING: u8 = 1;
const ABSENT: u8 = 2;
const PRELOAD: u8 = 3;
const NAMESPACE: u8 = 4;

/// The settings of the run.
struct State {
    /// One of the constants above.
    stage: AtomicU8,
    /// 1 if submission sites are to be rewritten.
    rewrite: AtomicU8,
    /// 1 if programs that are executed get this library too.
    follow: AtomicU8,
    /// 1 if queues have the ioctls for windows.
    windows: AtomicU8,
    /// Length of the directory's path in bytes.
    directory_len: AtomicUsize,
    /// Random number of this address space.
    space: AtomicU64,
    directory: UnsafeCell<[u8; MAX_DIRECTORY]>,
    address: UnsafeCell<libc::sockaddr_un>,
}

// SAFETY: the thread that moved `stage` from UNKNOWN to WORKING writes the cells once, before it releases the final
// stage; they are read only after that stage was acquired.
unsafe impl Sync for State {}

static STATE: State = State {
    stage: AtomicU8::new(UNKNOWN),
    rewrite: AtomicU8::new(0),
    follow: AtomicU8::new(0),
    windows: AtomicU8::new(0),
    directory_len: AtomicUsize::new(0),
    space: AtomicU64::new(0),
    directory: UnsafeCell::new([0; MAX_DIRECTORY]),
    address: UnsafeCell::new(libc::sockaddr_un { sun_family: 1, sun_path: [0; 108] }),
};

/// How files are seen; `None` outside a run, where this library does nothing.
#[inline]
pub(crate) fn view() -> Option<View> {
    match stage() {
        PRELOAD => Some(View::Preload),
        NAMESPACE => Some(View::Namespace),
        _ => None,
    }
}

/// True if submission sites are rewritten after their first trap.
pub(crate) fn rewrites() -> bool {
    // Relaxed: ordered by the stage, which was acquired.
    view().is_some() && STATE.rewrite.load(Ordering::Relaxed) == 1
}

/// True if queues have the ioctls for windows between processes.
pub(crate) fn has_windows() -> bool {
    // Relaxed: ordered by the stage, which was acquired.
    view().is_some() && STATE.windows.load(Ordering::Relaxed) == 1
}

/// Makes `interpose` restore the run's variables in the environments of programs that are executed.
pub(crate) fn follow() {
    // Relaxed: ordered by the stage, which was acquired.
    let Some(view) = view().filter(|_| STATE.follow.load(Ordering::Relaxed) == 1) else { return };
    let value = |name, otherwise| (name, environment(name).unwrap_or(otherwise));
    let variables = [value(settings::RUN, b""), value(settings::INSTRUCTIONS, settings::EMULATED.as_bytes())];
    let words = Words {
        prefix: "telpher run: ",
        consequence: "it runs without the device",
        otherwise: "use --view namespace, in which it sees the device's files and submits by write()",
    };
    // In the namespace view such programs see the device too.
    let words = (view == View::Preload).then_some(words);
    telpher_interpose::exec::start(&variables, words);
}

/// The run directory, absolute; empty outside a run.
pub(crate) fn directory() -> &'static [u8] {
    if view().is_none() {
        return &[];
    }
    let len = STATE.directory_len.load(Ordering::Relaxed);
    // SAFETY: a final stage was acquired, so the directory is complete and no longer changes.
    unsafe { &(&*STATE.directory.get())[..len] }
}

/// Address of the host's socket and its length; `None` outside a run.
pub(crate) fn socket_address() -> Option<(&'static libc::sockaddr_un, usize)> {
    view()?;
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + directory().len() + 1 + settings::SOCKET.len() + 1;
    // SAFETY: as in `directory`.
    Some((unsafe { &*STATE.address.get() }, len))
}

/// Random number of this address space.
pub(crate) fn space() -> u64 {
    // Relaxed: publishes nothing; a child that sees its parent's number has only one thread and renews it first.
    STATE.space.load(Ordering::Relaxed)
}

/// Gives this address space a new number: at the start, and in a forked child.
pub(crate) fn renew_space() {
    let mut random = [0; 8];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    // Without random numbers: process number and time are just as unlikely to repeat within a run.
    let number = match filled {
        Ok(8) => u64::from_ne_bytes(random),
        _ => crate::sys::now_ns() ^ u64::from(crate::sys::process()) << 40,
    };
    // Zero is reserved for programs without this library.
    STATE.space.store(number.max(1), Ordering::Relaxed);
}

#[inline]
fn stage() -> u8 {
    // Acquire: pairs with the Release in `find_out`; the settings are written.
    match STATE.stage.load(Ordering::Acquire) {
        UNKNOWN | WORKING => find_out(),
        stage => stage,
    }
}

#[cold]
fn find_out() -> u8 {
    // Relaxed on failure: the loop below acquires.
    if STATE.stage.compare_exchange(UNKNOWN, WORKING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        loop {
            // Acquire: as in `stage`.
            match STATE.stage.load(Ordering::Acquire) {
                WORKING => std::hint::spin_loop(),
                stage => return stage,
            }
        }
    }
    let found = environment(settings::RUN).and_then(Settings::parse).map_or(ABSENT, |found| keep(&found));
    // Release: pairs with the Acquire in `stage`.
    STATE.stage.store(found, Ordering::Release);
    found
}

/// Stores the settings; called once, in the WORKING stage.
fn keep(found: &Settings<'_>) -> u8 {
    let directory = found.directory;
    if directory.len() > MAX_DIRECTORY {
        return ABSENT;
    }
    // SAFETY: the only writer; there are no readers before the final stage.
    let (kept, address) = unsafe { (&mut *STATE.directory.get(), &mut *STATE.address.get()) };
    kept[..directory.len()].copy_from_slice(directory);
    let path = directory.iter().chain(b"/").chain(settings::SOCKET.as_bytes());
    for (target, byte) in address.sun_path.iter_mut().zip(path) {
        *target = byte.cast_signed();
    }
    STATE.directory_len.store(directory.len(), Ordering::Relaxed);
    STATE.rewrite.store(found.rewrite.into(), Ordering::Relaxed);
    STATE.follow.store(found.follow.into(), Ordering::Relaxed);
    STATE.windows.store(found.windows.into(), Ordering::Relaxed);
    renew_space();
    match found.view {
        View::Preload => PRELOAD,
        View::Namespace => NAMESPACE,
    }
}

/// A variable in the environment.
fn environment(name: &str) -> Option<&'static [u8]> {
    // SAFETY: this runs before main, or in the first call of a constructor, when no code changes the environment.
    unsafe { variable(name) }
}
