//! Creates the file of a recording.
//!
//! The file is created in the middle of a call, if the process was forked: so all that needs memory or time is done
//! before, in the process that the program was started in.
#![allow(unsafe_code, reason = "maps the file, and keeps it for ever")]

use crate::scratch::Scratch;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, ftruncate, openat, readlinkat_raw};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Resource, getpid, getppid, getrlimit};
use rustix::time::ClockId;
use std::ffi::CStr;
use std::io::{Cursor, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;
use telpher_offload_wire::{RecordSettings, RecordedCurves};
use telpher_os::{clock_ns, ticks};
use telpher_recording::{Curves, Limits, Start, Writer, bytes_needed};

/// What all recordings of a family of processes have in common.
#[derive(Debug)]
pub(super) struct Template {
    settings: RecordSettings,
    limits: Limits,
    bytes: usize,
}

/// Bytes of the longest path, of the program's path, and of its arguments that are read.
const TEXT: usize = 4096;
/// Bytes at the beginning of the file that every process writes: the header, the directory, and the tables of its first
/// modules and its first thread. Source: `telpher_recording`'s layout.
const SURE_BYTES: u64 = 192 << 10;
/// Files of one process number that may exist: a process that executes another program keeps its number.
const MOST_FILES: u32 = 1000;

impl Template {
    /// Prepares recordings with these settings.
    ///
    /// # Errors
    /// Why there can be none, as a sentence.
    pub(super) fn new(settings: RecordSettings) -> Result<Template, String> {
        let limits = Limits::default();
        let bytes = bytes_needed(limits).map_err(|error| error.to_string())?;
        let bytes = usize::try_from(bytes).map_err(|_| "the tables of a recording are too large".to_owned())?;
        Ok(Template { settings, limits, bytes })
    }

    /// Returns the folder of the recordings.
    pub(super) fn folder(&self) -> std::path::Display<'_> {
        self.settings.folder.display()
    }

    /// Creates the file of this process, `PID.recording` in the folder, and begins to record in it. The file stays
    /// mapped for ever.
    ///
    /// Makes system calls only.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn create(&'static self) -> Result<Writer<'static>, Errno> {
        let mut path = Scratch::new(TEXT)?;
        let file = self.new_file(&mut path)?;
        // A larger file than the limit would end the program by SIGXFSZ, and a full file system by SIGBUS. The space of
        // what is surely written is taken now; what is written later may still find none.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < self.bytes as u64) {
            return Err(Errno::FBIG);
        }
        ftruncate(&file, self.bytes as u64)?;
        match fallocate(&file, FallocateFlags::empty(), 0, SURE_BYTES) {
            // Some file systems cannot reserve space.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe {
            mmap(ptr::null_mut(), self.bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        }?;
        let (mut program, mut arguments) = (Scratch::new(TEXT)?, Scratch::new(TEXT)?);
        let program = read_link(c"/proc/self/exe", &mut program);
        let arguments = read_file(c"/proc/self/cmdline", &mut arguments);
        let machine = &self.settings.machine;
        let number = |pid: rustix::process::RawPid| u32::try_from(pid).unwrap_or_default();
        let RecordedCurves { copy, fill, compare } = &self.settings.curves;
        let start = Start {
            limits: self.limits,
            pid: number(getpid().as_raw_nonzero().get()),
            parent_pid: getppid().map_or(0, |parent| number(parent.as_raw_nonzero().get())),
            program,
            arguments,
            options: if self.settings.follow { "" } else { "--no-follow" },
            cpu: &machine.cpu,
            cpu_signature: machine.cpu_signature,
            logical_cpus: machine.logical_cpus,
            cache_bytes: machine.cache_bytes,
            kernel: &machine.kernel,
            tsc_hz: machine.tsc_hz,
            start_ticks: ticks(),
            start_realtime_ns: clock_ns(ClockId::Realtime),
            timer_ticks: self.settings.timer_ticks,
            curves: Curves { copy, fill, compare },
            ..Start::default()
        };
        // SAFETY: the mapping has these bytes, is zero and writable, is never unmapped, and only this writer uses it.
        // The file is this user's alone.
        unsafe { Writer::create(memory.cast(), self.bytes, &start) }.map_err(|_| Errno::INVAL)
    }

    /// Creates a file that does not exist yet.
    fn new_file(&self, path: &mut [u8]) -> Result<rustix::fd::OwnedFd, Errno> {
        let folder = self.settings.folder.as_os_str().as_bytes();
        let pid = getpid().as_raw_nonzero();
        for number in 1..MOST_FILES {
            let mut text = Cursor::new(&mut *path);
            let name = text.write_all(folder).and_then(|()| match number {
                1 => write!(text, "/{pid}.recording\0"),
                _ => write!(text, "/{pid}-{number}.recording\0"),
            });
            name.map_err(|_| Errno::NAMETOOLONG)?;
            let name = CStr::from_bytes_until_nul(path).map_err(|_| Errno::INVAL)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(CWD, name, flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::EXIST) => {}
                result => return result,
            }
        }
        Err(Errno::EXIST)
    }
}

/// Returns where a link leads; nothing if it cannot be read.
fn read_link<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: bytes that are initialised may be written as if they were not.
    let space = unsafe { &mut *(ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) };
    match readlinkat_raw(CWD, path, space) {
        Ok((text, _)) => text,
        Err(_) => &[],
    }
}

/// Returns the first bytes of a file; nothing if it cannot be read.
fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let read = file.and_then(|file| rustix::io::read(&file, &mut *buffer)).unwrap_or(0);
    &buffer[..read]
}
