//! Listing directories, and changing the working directory.
//!
//! Our directories and merged ones have a stream of this library. `DIR` is opaque to programs, and all functions that
//! take one are interposed here.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::route::{Route, find, refuse, refuse_pointer, route};
use crate::files::listing::{self, Entry};
use crate::files::path::{LONGEST, Path};
use crate::files::shadow::{self, Ownership};
use crate::files::table::{self, Kind};
use crate::files::walk::{FileKind, Found};
use crate::files::{self, descriptor};
use crate::sys::{self, Errno, answer_int};
use libc::{AT_FDCWD, c_long, dirent64};
use rustix::fs::FileType;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of};
use telpher_interpose::interpose;

/// First word of our streams. The C library's streams begin with their descriptor, an int that is never negative, as
/// the lower half of this mark is.
const MARK: u64 = 0x7e1f_e795_ffff_ff01;
/// How a directory is opened for listing. Source: glibc opendir(3).
const FOR_LISTING: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;

/// A directory stream of this library.
#[repr(C)]
pub(super) struct Stream {
    mark: u64,
    fd: c_int,
    path: Path,
    ownership: Ownership,
    entries: Vec<Entry>,
    at: usize,
    current: MaybeUninit<dirent64>,
}

/// The program's opaque stream type.
pub(super) type Directory = c_void;

impl Stream {
    /// Creates a stream over an open directory; `None` if the C library's own stream serves it.
    fn over(fd: c_int) -> Option<Result<*mut Directory, Errno>> {
        if !files::are_served() || table::kind(fd) != Kind::Watched {
            return None;
        }
        let mut text = [0; LONGEST];
        let text = descriptor::text_of(fd, &mut text).ok()?;
        let tree = files::tree()?;
        let (path, ownership) = match tree.path_of(text) {
            Some(path) => (Path::new(path).ok()?, Ownership::Ours),
            None => {
                let path = Path::new(text).ok()?;
                let ownership = tree.ownership(&path);
                (path, ownership)
            }
        };
        if ownership == Ownership::Real {
            return None;
        }
        match descriptor::status(fd) {
            Ok(status) if shadow::kind(&status) != FileType::Directory => return Some(Err(Errno::NOTDIR)),
            Ok(_) => {}
            Err(error) => return Some(Err(error)),
        }
        let entries = match listing::list(tree, fd, &path, ownership) {
            Ok(entries) => entries,
            Err(error) => return Some(Err(error)),
        };
        let stream = Stream { mark: MARK, fd, path, ownership, entries, at: 0, current: MaybeUninit::zeroed() };
        Some(Ok(Box::into_raw(Box::new(stream)).cast()))
    }

    /// The stream behind a program's pointer, if it is ours.
    ///
    /// # Safety
    /// `directory` is an open stream of this library or of the C library, and no other thread uses it now.
    unsafe fn of<'a>(directory: *mut Directory) -> Option<&'a mut Stream> {
        if directory.is_null() {
            return None;
        }
        // SAFETY: either kind of stream has at least eight bytes; with our mark it is ours, created by `over`.
        unsafe { (directory.cast::<u64>().read() == MARK).then(|| &mut *directory.cast::<Stream>()) }
    }

    /// The next entry, in the stream's buffer for it.
    fn next(&mut self) -> Option<*mut dirent64> {
        let entry = self.entries.get(self.at)?;
        self.at += 1;
        // SAFETY: the buffer is a whole structure.
        unsafe { put(entry, self.at, self.current.as_mut_ptr()) };
        Some(self.current.as_mut_ptr())
    }

    /// Lists the directory again.
    fn rewind(&mut self) {
        self.at = 0;
        if descriptor::seek(self.fd, 0, libc::SEEK_SET).is_ok()
            && let Some(tree) = files::tree()
            && let Ok(entries) = listing::list(tree, self.fd, &self.path, self.ownership)
        {
            self.entries = entries;
        }
    }
}

/// Length of an entry in the kernel's layout: up to the final zero of its name, in whole words.
fn length(entry: &Entry) -> usize {
    (offset_of!(dirent64, d_name) + entry.name.len() + 1).next_multiple_of(8)
}

/// Writes an entry; `position` is that of the next one.
///
/// # Safety
/// `into` has space for [`length`] bytes and is aligned for a `dirent64`.
unsafe fn put(entry: &Entry, position: usize, into: *mut dirent64) {
    // SAFETY: each field lies within the length, as the caller promises; the kernel's names have at most 255 bytes.
    unsafe {
        (&raw mut (*into).d_ino).write(entry.inode);
        (&raw mut (*into).d_off).write(i64::try_from(position).unwrap_or(i64::MAX));
        (&raw mut (*into).d_reclen).write(u16::try_from(length(entry)).unwrap_or(u16::MAX));
        // The type's number is the file mode's upper bits. Source: UAPI dirent.h, IFTODT.
        (&raw mut (*into).d_type).write(u8::try_from(entry.kind.as_raw_mode() >> 12).unwrap_or(libc::DT_UNKNOWN));
        let name = (&raw mut (*into).d_name).cast::<u8>();
        std::ptr::copy_nonoverlapping(entry.name.as_ptr(), name, entry.name.len());
        name.add(entry.name.len()).write(0);
    }
}

/// Opens a resolved path and creates a stream for it.
unsafe fn stream_at(found: &Found, mode: c_int) -> *mut Directory {
    match found.kind {
        FileKind::Directory => {}
        FileKind::Missing => return refuse_pointer(Errno::NOENT),
        _ => return refuse_pointer(Errno::NOTDIR),
    }
    match files::open(found, mode, 0) {
        Err(error) => refuse_pointer(error),
        Ok(fd) => {
            // SAFETY: a descriptor opened above.
            let stream = unsafe { fdopendir(fd) };
            if stream.is_null() {
                let _kept = sys::KeptErrno::new();
                table::set(fd, Kind::Foreign);
                let _ = sys::close(fd);
            }
            stream
        }
    }
}

/// The next entry, by any of the functions; null at the end, without changing `errno`.
unsafe fn read_by(directory: *mut Directory, next: impl FnOnce() -> *mut dirent64) -> *mut dirent64 {
    // SAFETY: as the C library requires.
    match unsafe { Stream::of(directory) } {
        Some(stream) => stream.next().unwrap_or(std::ptr::null_mut()),
        None => next(),
    }
}

/// Writes the next entry into the program's structure.
unsafe fn read_into(
    directory: *mut Directory,
    into: *mut dirent64,
    result: *mut *mut dirent64,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: as the C library requires: a stream, a whole structure, and a variable for its address.
    unsafe {
        let Some(stream) = Stream::of(directory) else { return next() };
        match stream.entries.get(stream.at) {
            None => result.write(std::ptr::null_mut()),
            Some(entry) => {
                stream.at += 1;
                put(entry, stream.at, into);
                result.write(into);
            }
        }
    }
    0
}

/// The filter function of scandir's caller.
type Filter = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
/// The comparison function of scandir's caller.
type Compare = Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

/// scandir and its variants.
unsafe fn scan_at(
    directory: c_int,
    path: *const c_char,
    list: *mut *mut *mut dirent64,
    filter: Filter,
    compare: Compare,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the arguments are as the C library requires.
    let found = match unsafe { find(directory, path, true) } {
        None => return next(),
        Some(Err(error)) => return refuse(error),
        Some(Ok(found)) if found.ownership == Ownership::Real && !found.crossed => return next(),
        Some(Ok(found)) => found,
    };
    // SAFETY: the program frees the list and its entries, so they come from its malloc; each has the allocated size.
    unsafe {
        let stream = stream_at(&found, FOR_LISTING);
        if stream.is_null() {
            return -1;
        }
        let mut chosen = Vec::new();
        let mut short = false;
        while let entry = readdir64(stream)
            && !entry.is_null()
        {
            if filter.is_some_and(|filter| filter(entry) == 0) {
                continue;
            }
            let bytes = usize::from((*entry).d_reclen);
            let copy = libc::malloc(bytes);
            if copy.is_null() {
                short = true;
                break;
            }
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast(), bytes);
            chosen.push(copy.cast::<dirent64>());
        }
        closedir(stream);
        let array = libc::malloc((chosen.len() * size_of::<*mut dirent64>()).max(1)).cast::<*mut dirent64>();
        if short || array.is_null() {
            chosen.iter().for_each(|entry| libc::free(entry.cast()));
            libc::free(array.cast());
            return refuse(Errno::NOMEM);
        }
        std::ptr::copy_nonoverlapping(chosen.as_ptr(), array, chosen.len());
        if let Some(compare) = compare {
            let compare = std::mem::transmute::<
                unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int,
                unsafe extern "C" fn(*const c_void, *const c_void) -> c_int,
            >(compare);
            libc::qsort(array.cast(), chosen.len(), size_of::<*mut dirent64>(), Some(compare));
        }
        list.write(array);
        c_int::try_from(chosen.len()).unwrap_or(c_int::MAX)
    }
}

/// glob's results and, with [`libc::GLOB_ALTDIRFUNC`], its functions for directories. Source: glibc glob.h.
#[repr(C)]
pub(super) struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offsets: usize,
    flags: c_int,
    close: Option<unsafe extern "C" fn(*mut c_void)>,
    read: Option<unsafe extern "C" fn(*mut c_void) -> *mut dirent64>,
    open: Option<unsafe extern "C" fn(*const c_char) -> *mut c_void>,
    lstat: Option<unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
    stat: Option<unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int>,
}

/// glob and its variants: calls the C library's with our functions for directories.
unsafe fn glob_by(flags: c_int, results: *mut Glob, next: impl FnOnce(c_int) -> c_int) -> c_int {
    unsafe extern "C" fn close(stream: *mut c_void) {
        // SAFETY: glob closes the stream that it has opened.
        unsafe { closedir(stream) };
    }
    if !files::are_served() || flags & libc::GLOB_ALTDIRFUNC != 0 || results.is_null() {
        return next(flags);
    }
    // SAFETY: the program's structure; the former values of these fields are restored.
    unsafe {
        let kept = ((*results).close, (*results).read, (*results).open, (*results).lstat, (*results).stat);
        (*results).close = Some(close);
        (*results).read = Some(readdir64);
        (*results).open = Some(opendir);
        (*results).lstat = Some(super::status::lstat);
        (*results).stat = Some(super::status::stat);
        let answered = next(flags | libc::GLOB_ALTDIRFUNC);
        (*results).flags &= !libc::GLOB_ALTDIRFUNC;
        ((*results).close, (*results).read, (*results).open, (*results).lstat, (*results).stat) = kept;
        answered
    }
}

/// glob's callback for errors.
type GlobError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

interpose! {
    fn opendir(path: *const c_char) -> *mut Directory { |next|
        match find(AT_FDCWD, path, true) {
            None => next(path),
            Some(Err(error)) => refuse_pointer(error),
            Some(Ok(found)) => stream_at(&found, FOR_LISTING),
        }
    }
    fn fdopendir(fd: c_int) -> *mut Directory { |next|
        match Stream::over(fd) {
            None => next(fd),
            Some(stream) => stream.unwrap_or_else(refuse_pointer),
        }
    }
    fn readdir(directory: *mut Directory) -> *mut dirent64 { |next| read_by(directory, || next(directory)) }
    fn readdir64(directory: *mut Directory) -> *mut dirent64 { |next| read_by(directory, || next(directory)) }
    fn readdir_r(directory: *mut Directory, into: *mut dirent64, result: *mut *mut dirent64) -> c_int { |next|
        read_into(directory, into, result, || next(directory, into, result))
    }
    fn readdir64_r(directory: *mut Directory, into: *mut dirent64, result: *mut *mut dirent64) -> c_int { |next|
        read_into(directory, into, result, || next(directory, into, result))
    }
    fn closedir(directory: *mut Directory) -> c_int { |next|
        match Stream::of(directory) {
            None => next(directory),
            Some(stream) => {
                let fd = stream.fd;
                stream.mark = 0;
                drop(Box::from_raw(directory.cast::<Stream>()));
                table::set(fd, Kind::Foreign);
                answer_int(sys::close(fd).map(|()| 0))
            }
        }
    }
    fn dirfd(directory: *mut Directory) -> c_int { |next|
        match Stream::of(directory) { Some(stream) => stream.fd, None => next(directory) }
    }
    fn rewinddir(directory: *mut Directory) -> () { |next|
        match Stream::of(directory) { Some(stream) => stream.rewind(), None => next(directory) }
    }
    fn telldir(directory: *mut Directory) -> c_long { |next|
        match Stream::of(directory) {
            Some(stream) => c_long::try_from(stream.at).unwrap_or(c_long::MAX),
            None => next(directory),
        }
    }
    fn seekdir(directory: *mut Directory, position: c_long) -> () { |next|
        match Stream::of(directory) {
            Some(stream) => stream.at = usize::try_from(position).unwrap_or(0),
            None => next(directory, position),
        }
    }
    fn scandir(path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int { |next|
        scan_at(AT_FDCWD, path, list, filter, compare, || next(path, list, filter, compare))
    }
    fn scandir64(path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int { |next|
        scan_at(AT_FDCWD, path, list, filter, compare, || next(path, list, filter, compare))
    }
    fn scandirat(at: c_int, path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int { |next|
        scan_at(at, path, list, filter, compare, || next(at, path, list, filter, compare))
    }
    fn scandirat64(at: c_int, path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int { |next|
        scan_at(at, path, list, filter, compare, || next(at, path, list, filter, compare))
    }
    fn glob(pattern: *const c_char, flags: c_int, error: GlobError, results: *mut Glob) -> c_int { |next|
        glob_by(flags, results, |flags| next(pattern, flags, error, results))
    }
    fn glob64(pattern: *const c_char, flags: c_int, error: GlobError, results: *mut Glob) -> c_int { |next|
        glob_by(flags, results, |flags| next(pattern, flags, error, results))
    }
    fn chdir(path: *const c_char) -> c_int { |next| {
        let answered = match route(AT_FDCWD, path, true) {
            Route::Unchanged => next(path),
            Route::Resolved(path) => next(path.as_c_str().as_ptr()),
            Route::Refused(error) => refuse(error),
            Route::Ours(found) => match (found.kind, files::tree()) {
                (FileKind::Directory, Some(tree)) => {
                    let location = tree.location(&found.path);
                    answer_int(location.and_then(|location| descriptor::change_directory(&location)).map(|()| 0))
                }
                (FileKind::Missing, _) => refuse(Errno::NOENT),
                _ => refuse(Errno::NOTDIR),
            },
        };
        directory_changed(answered)
    } }
    fn fchdir(fd: c_int) -> c_int { |next| directory_changed(next(fd)) }
}

/// Updates the hint after the working directory may have changed.
fn directory_changed(answered: c_int) -> c_int {
    if answered == 0 && files::are_served() {
        let _kept = sys::KeptErrno::new();
        files::working_directory_changed();
    }
    answered
}
