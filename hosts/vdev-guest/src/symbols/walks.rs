//! ftw and nftw: the C library's versions use internal calls, so trees that lead to our files are walked here, with the
//! interposed functions.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::directories::{self, closedir, opendir, readdir64};
use super::route::{find, refuse};
use super::status::{lstat, stat};
use crate::sys::{self, Errno};
use libc::AT_FDCWD;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use telpher_interpose::interpose;

// Source, here and below: glibc ftw.h.
const FTW_PHYS: c_int = 1;
const FTW_MOUNT: c_int = 2;
const FTW_CHDIR: c_int = 4;
const FTW_DEPTH: c_int = 8;
const FTW_ACTIONRETVAL: c_int = 16;

/// The type of an entry, as passed to the program's function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
enum Kind {
    File = 0,
    Directory = 1,
    Unreadable = 2,
    Unknown = 3,
    Link = 4,
    DirectoryAfterwards = 5,
    DanglingLink = 6,
}

impl Kind {
    /// ftw has fewer types. Source: glibc io/ftw.c, ftw_arr.
    fn for_ftw(self) -> c_int {
        match self {
            Kind::Link => Kind::File as c_int,
            Kind::DirectoryAfterwards => Kind::Directory as c_int,
            Kind::DanglingLink => Kind::Unknown as c_int,
            kind => kind as c_int,
        }
    }
}

/// Results of the program's function that are used with FTW_ACTIONRETVAL.
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

/// The position of an entry in the walk.
#[repr(C)]
pub(super) struct Position {
    /// Offset of its name in the path.
    base: c_int,
    /// Its depth.
    level: c_int,
}

/// ftw's callback.
type Visit = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int;
/// nftw's callback.
type VisitAt = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut Position) -> c_int;

/// A walk in progress.
struct Walk<'a> {
    flags: c_int,
    visit: &'a dyn Fn(&CStr, &libc::stat, Kind, Position) -> c_int,
    /// The program's working directory, if the walk changes it.
    home: Option<c_int>,
    /// The file system that the walk must not leave.
    device: Option<u64>,
    /// Directories that were entered, so that links do not lead to the same one twice.
    entered: BTreeSet<(u64, u64)>,
}

/// Ends a walk early: by the program's function, or by an error.
enum Stop {
    Answer(c_int),
    Error(Errno),
}

impl Walk<'_> {
    fn to(&mut self, path: &mut Vec<u8>, base: usize, level: c_int) -> Result<c_int, Stop> {
        let text = CString::new(path.clone()).map_err(|_| Stop::Error(Errno::INVAL))?;
        let (status, kind) = self.look(&text)?;
        if level == 0 && kind == Kind::Unknown {
            // There is no entry to pass to the program's function.
            return Err(Stop::Error(Errno::from_raw_os_error(sys::errno())));
        }
        if self.flags & FTW_MOUNT != 0
            && kind != Kind::Unknown
            && *self.device.get_or_insert(status.st_dev) != status.st_dev
        {
            return Ok(0);
        }
        if kind != Kind::Directory {
            return self.visit_entry(&text, &status, kind, base, level);
        }
        if self.flags & FTW_PHYS == 0 && !self.entered.insert((status.st_dev, status.st_ino)) {
            return Ok(0);
        }
        let Some(names) = names(&text)? else { return self.visit_entry(&text, &status, Kind::Unreadable, base, level) };
        let before = self.flags & FTW_DEPTH == 0;
        if before {
            let action = self.visit_entry(&text, &status, Kind::Directory, base, level)?;
            if action != 0 {
                return Ok(if action == SKIP_SUBTREE { 0 } else { action });
            }
        }
        for name in names {
            let len = path.len();
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            let base = path.len();
            path.extend_from_slice(&name);
            let action = self.to(path, base, level + 1)?;
            path.truncate(len);
            if action == SKIP_SIBLINGS {
                break;
            }
        }
        if before { Ok(0) } else { self.visit_entry(&text, &status, Kind::DirectoryAfterwards, base, level) }
    }

    /// Status and type of a path. Source: glibc io/ftw.c, process_entry.
    fn look(&self, path: &CStr) -> Result<(libc::stat, Kind), Stop> {
        let mut status = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: a string, and space for a status, for which all zeros are valid too.
        let (found, status) = unsafe {
            let by = if self.flags & FTW_PHYS != 0 { lstat } else { stat };
            (by(path.as_ptr(), status.as_mut_ptr()) == 0, status.assume_init())
        };
        if found {
            let kind = match status.st_mode & libc::S_IFMT {
                libc::S_IFDIR => Kind::Directory,
                libc::S_IFLNK => Kind::Link,
                _ => Kind::File,
            };
            return Ok((status, kind));
        }
        let error = Errno::from_raw_os_error(sys::errno());
        if error != Errno::ACCESS && error != Errno::NOENT {
            return Err(Stop::Error(error));
        }
        let mut link = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: as above.
        let (is_there, link) = unsafe { (lstat(path.as_ptr(), link.as_mut_ptr()) == 0, link.assume_init()) };
        sys::set_errno(error);
        let dangling = self.flags & FTW_PHYS == 0 && is_there && link.st_mode & libc::S_IFMT == libc::S_IFLNK;
        Ok(if dangling { (link, Kind::DanglingLink) } else { (status, Kind::Unknown) })
    }

    /// Calls the program's function; returns a result that does not end the walk.
    fn visit_entry(
        &self,
        path: &CStr,
        status: &libc::stat,
        kind: Kind,
        base: usize,
        level: c_int,
    ) -> Result<c_int, Stop> {
        if self.home.is_some() {
            self.go_to_folder(path, base)?;
        }
        let position = Position { base: c_int::try_from(base).unwrap_or(0), level };
        let action = (self.visit)(path, status, kind, position);
        if let Some(home) = self.home {
            // SAFETY: this walk owns the descriptor.
            unsafe { directories::fchdir(home) };
        }
        match action {
            0 => Ok(0),
            SKIP_SUBTREE | SKIP_SIBLINGS if self.flags & FTW_ACTIONRETVAL != 0 => Ok(action),
            answer => Err(Stop::Answer(answer)),
        }
    }

    fn go_to_folder(&self, path: &CStr, base: usize) -> Result<(), Stop> {
        let folder = path.to_bytes()[..base].to_vec();
        let Ok(folder) = CString::new(if folder.is_empty() { b".".to_vec() } else { folder }) else { return Ok(()) };
        // SAFETY: a string.
        match unsafe { directories::chdir(folder.as_ptr()) } {
            0 => Ok(()),
            _ => Err(Stop::Error(Errno::from_raw_os_error(sys::errno()))),
        }
    }
}

/// The names in a directory except `.` and `..`; `None` if it may not be read.
fn names(path: &CStr) -> Result<Option<Vec<Vec<u8>>>, Stop> {
    let mut names = Vec::new();
    // SAFETY: a string, and a stream that is closed at the end; an entry and its name are valid until the next read.
    unsafe {
        let stream = opendir(path.as_ptr());
        if stream.is_null() {
            return match Errno::from_raw_os_error(sys::errno()) {
                Errno::ACCESS => Ok(None),
                error => Err(Stop::Error(error)),
            };
        }
        while let entry = readdir64(stream)
            && !entry.is_null()
        {
            let name = CStr::from_ptr((&raw const (*entry).d_name).cast()).to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        closedir(stream);
    }
    Ok(Some(names))
}

/// Walks a tree if its path leads to our files.
unsafe fn walk_by(
    path: *const c_char,
    flags: c_int,
    visit: &dyn Fn(&CStr, &libc::stat, Kind, Position) -> c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: a string or null, as the C library requires.
    match unsafe { find(AT_FDCWD, path, flags & FTW_PHYS == 0) } {
        None => return next(),
        Some(Err(error)) => return refuse(error),
        Some(Ok(_)) => {}
    }
    // SAFETY: not null, because `find` returned a result.
    let mut text = unsafe { CStr::from_ptr(path) }.to_bytes().to_vec();
    while text.len() > 1 && text.last() == Some(&b'/') {
        text.pop();
    }
    let base = text.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let base = if text.len() == 1 { 0 } else { base };
    let home = if flags & FTW_CHDIR == 0 {
        None
    } else {
        // SAFETY: a string.
        match unsafe { super::files::open(c".".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0) } {
            -1 => return -1,
            fd => Some(fd),
        }
    };
    let mut walk = Walk { flags, visit, home, device: None, entered: BTreeSet::new() };
    let ended = walk.to(&mut text, base, 0);
    if let Some(home) = home {
        let _kept = sys::KeptErrno::new();
        // SAFETY: this walk owns the descriptor.
        unsafe { super::descriptors::close(home) };
    }
    match ended {
        Ok(_) => 0,
        Err(Stop::Answer(answer)) => answer,
        Err(Stop::Error(error)) => refuse(error),
    }
}

interpose! {
    fn ftw(path: *const c_char, visit: Visit, descriptors: c_int) -> c_int { |next|
        walk_by(path, 0, &|path, status, kind, _| visit(path.as_ptr(), status, kind.for_ftw()), || next(path, visit, descriptors))
    }
    fn ftw64(path: *const c_char, visit: Visit, descriptors: c_int) -> c_int { |next|
        walk_by(path, 0, &|path, status, kind, _| visit(path.as_ptr(), status, kind.for_ftw()), || next(path, visit, descriptors))
    }
    fn nftw(path: *const c_char, visit: VisitAt, descriptors: c_int, flags: c_int) -> c_int { |next|
        walk_by(
            path,
            flags,
            &|path, status, kind, mut position| visit(path.as_ptr(), status, kind as c_int, &raw mut position),
            || next(path, visit, descriptors, flags),
        )
    }
    fn nftw64(path: *const c_char, visit: VisitAt, descriptors: c_int, flags: c_int) -> c_int { |next|
        walk_by(
            path,
            flags,
            &|path, status, kind, mut position| visit(path.as_ptr(), status, kind as c_int, &raw mut position),
            || next(path, visit, descriptors, flags),
        )
    }
}
