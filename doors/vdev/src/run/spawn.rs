//! The program's process: its environment, what is preloaded into it, and how it starts.

use super::options::{RunError, RunOptions};
use super::program::Program;
use super::sanitizer;
use crate::host::Host;
use crate::image;
use crate::tree::Errno;
use crate::view::namespace::{self, Running};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_interpose::exec::{Name, Wanted, is_runtime};
use telpher_vdev_wire::settings::{EMULATED, INSTRUCTIONS, RUN, Settings, View};

/// The loader's list of what to load first.
const PRELOAD: &str = "LD_PRELOAD";

/// The preloaded part as a file that the loader can map, and nobody can change.
///
/// # Errors
/// For want of memory.
pub(super) fn guest_image() -> Result<OwnedFd, Errno> {
    in_memory("telpher-guest", image::GUEST)
}

/// A file in memory that the loader can map, and nobody can change.
///
/// # Errors
/// For want of memory.
pub(super) fn in_memory(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A kernel older than the flag maps any of them executable.
    let file = memfd_create(name, flags | MemfdFlags::EXEC).or_else(|_| memfd_create(name, flags))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?..];
    }
    seal(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// How long a file may be busy that is to be sealed. Source: assumed. The kernel waits 150 ms itself for whoever has hold of its pages (mm/memfd.c,
/// memfd_wait_for_pins), which on a loaded machine may be its own lists of pages just written; a mapping on its way out takes less.
const BUSY: Duration = Duration::from_secs(10);

/// Seals a file, once nobody has hold of it any more who could write it.
///
/// # Errors
/// EBUSY if somebody still has after [`BUSY`]; the system's others at once.
fn seal(file: &OwnedFd, seals: SealFlags) -> Result<(), Errno> {
    once_free(|| fcntl_add_seals(file, seals), BUSY)
}

/// Tries until it is not EBUSY that comes of it, for so long at most.
fn once_free(mut attempt: impl FnMut() -> Result<(), Errno>, within: Duration) -> Result<(), Errno> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(Errno::BUSY) if begun.elapsed() < within => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
}

/// Lets this process have as many descriptors as it may: each open queue takes two. Returns the limit the program shall have.
pub(super) fn raise_file_limit() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // Refused or not, the run begins; then fewer queues can be open at once.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    before
}

/// Folder of the run directory, and name in it, under which the guest's image stands inside a namespace.
const IMAGE: (&str, &str) = ("image", "guest.so");

/// A path under which other processes find a file of this one's.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Has a file loaded in front of what is loaded anyway.
pub(super) fn preload_too(command: &mut Command, image: &OwnedFd) {
    let first = sanitizer::runtime(Path::new(command.get_program()));
    command.env(PRELOAD, preload(&path_of(image), first.as_ref(), std::env::var_os(PRELOAD).as_deref(), false));
}

/// Fills a command in: arguments and environment.
pub(super) fn prepare(command: &mut Command, options: &RunOptions, view: View, directory: &Path, guest: &OwnedFd) {
    let directory_bytes = directory.as_os_str().as_bytes();
    let settings = Settings { view, rewrite: options.rewrite, follow: options.follow, directory: directory_bytes };
    let image = match view {
        View::Preload => path_of(guest),
        // A program in a user namespace may not look into its host's descriptors.
        View::Namespace => directory.join(IMAGE.0).join(IMAGE.1).display().to_string(),
    };
    let nested = std::env::var_os(RUN).is_some();
    let first = sanitizer::runtime(Path::new(command.get_program()));
    let preload = preload(&image, first.as_ref(), std::env::var_os(PRELOAD).as_deref(), nested);
    command
        .arg0(&options.program)
        .args(&options.args)
        .env(RUN, OsString::from_vec(settings.to_value()))
        .env(INSTRUCTIONS, EMULATED)
        .env(PRELOAD, preload);
}

/// The image in front of what is to be preloaded anyway, but for a sanitizer's runtime. In a run within a run the outer one's image is the
/// first in the list that is no such runtime, and is left out: one process cannot have two devices.
fn preload(image: &str, first: Option<&Name>, present: Option<&OsStr>, nested: bool) -> OsString {
    let present = present.map_or(&b""[..], OsStrExt::as_bytes);
    let mut names: Vec<&[u8]> =
        present.split(|byte| matches!(byte, b':' | b' ')).filter(|name| !name.is_empty()).collect();
    if nested && let Some(outer) = names.iter().position(|name| !is_runtime(name)) {
        names.remove(outer);
    }
    let mut list = Vec::new();
    let wanted = Wanted { image: image.as_bytes(), first: first.map(Name::as_bytes) };
    wanted.compose(&names.join(&b':'), &mut |piece| list.extend_from_slice(piece));
    OsString::from_vec(list)
}

/// Starts the program.
///
/// # Errors
/// If the system does not execute it.
pub(super) fn spawn(mut command: Command, program: &Program) -> Result<Pid, RunError> {
    let child = command.spawn().map_err(|source| refused(source, program))?;
    Pid::from_raw(child.id().cast_signed()).ok_or(RunError::NotFound { program: program.path.clone() })
}

/// Starts the program in a view of its own.
///
/// # Errors
/// If the system does not execute it, or refuses the view.
pub(super) fn spawn_in_namespace(
    mut command: Command,
    program: &Program,
    host: &Arc<Host>,
    directory: &Path,
    guest: OwnedFd,
) -> Result<(Pid, Running), RunError> {
    let no_view = |reason| RunError::Namespace { program: program.path.clone(), source: Box::new(reason) };
    let (mut entrance, running) = namespace::prepare(Arc::clone(host)).map_err(no_view)?;
    entrance.carry(guest, &directory.join(IMAGE.0), IMAGE.1).map_err(no_view)?;
    entrance.install(&mut command);
    let spawned = command.spawn();
    drop(command);
    running.outcome().map_err(no_view)?;
    let child = spawned.map_err(|source| refused(source, program))?;
    host.on_report(running.waker());
    let child = Pid::from_raw(child.id().cast_signed()).ok_or(RunError::NotFound { program: program.path.clone() })?;
    Ok((child, running))
}

fn refused(source: io::Error, program: &Program) -> RunError {
    match source.kind() {
        io::ErrorKind::NotFound => RunError::NotFound { program: program.path.clone() },
        _ => RunError::NotExecutable { program: program.path.clone(), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use telpher_mem::Shared;

    #[test]
    fn ours_comes_first_and_what_was_there_stays() {
        let list = |present: Option<&str>, nested| preload("/ours", None, present.map(OsStr::new), nested);
        assert_eq!(list(None, false), "/ours");
        assert_eq!(list(Some("a.so b.so:c.so"), false), "/ours:a.so:b.so:c.so");
        assert_eq!(list(Some("/proc/1/fd/3:a.so"), true), "/ours:a.so");
        assert_eq!(list(Some("/lib/libasan.so.8:/proc/1/fd/3:a.so"), true), "/lib/libasan.so.8:/ours:a.so");
        assert_eq!(list(Some(""), true), "/ours");
    }

    #[test]
    fn the_image_can_be_mapped_and_not_changed() {
        let image = guest_image().unwrap();
        assert_eq!(rustix::fs::fstat(&image).unwrap().st_size.cast_unsigned(), image::GUEST.len() as u64);
        assert_eq!(rustix::io::pwrite(&image, b"x", 0), Err(Errno::PERM));
    }

    /// What broke: sealing was refused on a loaded machine, and with it the run.
    #[test]
    fn a_file_that_is_busy_for_a_while_is_sealed_after_that() {
        let mut answers = [Err(Errno::BUSY), Err(Errno::BUSY), Ok(())].into_iter();
        assert_eq!(once_free(|| answers.next().expect("it is asked until it is done"), BUSY), Ok(()));
        assert_eq!(answers.len(), 0);
        // Another error is one at once, and busy for ever is one in the end.
        let mut answers = [Err(Errno::PERM), Ok(())].into_iter();
        assert_eq!(once_free(|| answers.next().expect("it is asked once"), BUSY), Err(Errno::PERM));
        let begun = Instant::now();
        assert_eq!(once_free(|| Err(Errno::BUSY), Duration::from_millis(20)), Err(Errno::BUSY));
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_file_that_another_can_write_is_sealed_when_he_cannot_any_more() {
        let file = memfd_create("busy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let mut mapped = Some(Shared::map(file.as_fd(), 0, 4096).unwrap());
        let mut refused = 0;
        let attempt = || {
            let done = fcntl_add_seals(&file, SealFlags::WRITE);
            refused += usize::from(done == Err(Errno::BUSY));
            if refused == 3 {
                mapped = None;
            }
            done
        };
        assert_eq!(once_free(attempt, BUSY), Ok(()));
        assert_eq!((refused, rustix::io::pwrite(&file, b"x", 0)), (3, Err(Errno::PERM)));
    }
}
