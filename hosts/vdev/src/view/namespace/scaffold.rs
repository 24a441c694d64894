//! The child's side: a mount namespace of its own, and in it the machine's directories with ours among them.
//!
//! ```text
//! own namespace ─► nothing spreads ─► file system at a private place ─► its descriptor to the host, which begins to serve
//!               ─► directories replaced, ours mounted ─► private place left ─► "ready" to the host ─► exec
//! ```
//!
//! Everything here runs between fork and exec: system calls on memory made before, nothing allocated. The mounts belong to the
//! namespace, and the namespace to its processes: with the last of them all is gone, however it went. The host holds the other
//! end of the file system; without it every call into the tree answers ENOTCONN.

use super::child;
use super::plan::{Action, Member, Plan, Replacement, What};
use crate::tree::Errno;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, open, openat, symlinkat};
use rustix::io::{retry_on_intr, write};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change, mount_remount,
    move_mount, open_tree, unmount,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::ffi::CStr;
use std::fmt::Write;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What the child was doing when it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u32)]
pub enum Step {
    /// unshare(2).
    #[error("make a mount namespace")]
    Unshare = 1,
    /// Writing uid_map and gid_map.
    #[error("map this user into a user namespace")]
    Map = 2,
    /// Making all mounts private.
    #[error("make the namespace's mounts private")]
    Private = 3,
    /// Opening /dev/fuse.
    #[error("open /dev/fuse")]
    OpenFuse = 4,
    /// Mounting the file system.
    #[error("mount a file system of its own (FUSE)")]
    Mount = 5,
    /// Telling the host.
    #[error("hand the file system to its host")]
    Tell = 6,
    /// Finding the file system's root.
    #[error("find the mounted file system")]
    Root = 7,
    /// Mounting something of ours.
    #[error("mount the device's files on")]
    Show = 8,
    /// Replacing a directory.
    #[error("add the device's files to a directory")]
    Replace = 9,
    /// Leaving the private place, or returning to the working directory.
    #[error("leave the place where the view was made")]
    Leave = 10,
}

impl Step {
    const ALL: [Step; 10] = [
        Step::Unshare,
        Step::Map,
        Step::Private,
        Step::OpenFuse,
        Step::Mount,
        Step::Tell,
        Step::Root,
        Step::Show,
        Step::Replace,
        Step::Leave,
    ];
}

/// Which step failed, at which of the plan's actions, and what the system said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    /// The step.
    pub(super) step: Step,
    /// The action, if it was one.
    pub(super) action: Option<usize>,
    /// The system's answer.
    pub(super) errno: Errno,
}

/// What the child tells the host; with [`MOUNTED`](Word::MOUNTED) comes the file system's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Word {
    /// One of the constants, or a [`Step`] that failed.
    kind: u32,
    /// The action plus one, or 0.
    action: u32,
    /// The system's answer.
    errno: i32,
}

impl Word {
    const MOUNTED: u32 = 100;
    const READY: u32 = 101;

    /// What the word says: the file system is mounted (`None`), all is ready, or something failed.
    pub(super) fn meaning(self) -> Option<Result<(), Failure>> {
        match self.kind {
            Word::MOUNTED => None,
            Word::READY => Some(Ok(())),
            kind => {
                let step = Step::ALL.into_iter().find(|step| *step as u32 == kind).unwrap_or(Step::Tell);
                let action = (self.action as usize).checked_sub(1);
                Some(Err(Failure { step, action, errno: Errno::from_raw_os_error(self.errno) }))
            }
        }
    }
}

/// Goes as far as the mounted file system, and no further: whether a view could be made.
pub(super) fn try_out(plan: &Plan) -> Result<(), Failure> {
    let _fuse = mount_tree(plan)?;
    let root = open(&*plan.place, DIRECTORY, Mode::empty()).map_err(at(Step::Root))?;
    // Whether the kernel has the calls by which directories are replaced (Linux 5.2). The root itself needs no answer from a
    // host, so none is asked.
    open_tree(&root, c"", CLONE | OpenTreeFlags::AT_EMPTY_PATH).map_err(at(Step::Show))?;
    Ok(())
}

/// Makes the view, telling `host`, which forked this process, on `socket`.
pub(super) fn enter(plan: &Plan, host: Pid, socket: BorrowedFd<'_>) -> Result<(), Failure> {
    let fuse = mount_tree(plan)?;
    // The host's end of the socket is open in this process, too, until it executes something. A host that is killed before it takes the
    // descriptor out of the socket would leave it there, and this process to wait for ever for answers from files that it keeps alive itself.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(Step::Tell))?;
    if getppid() != Some(host) {
        return Err(at(Step::Tell)(Errno::SRCH));
    }
    tell(socket, Word { kind: Word::MOUNTED, action: 0, errno: 0 }, Some(fuse.as_fd())).map_err(at(Step::Tell))?;
    // The host's is the only one that stays: when it goes, the file system goes.
    drop(fuse);
    let root = open(&*plan.place, DIRECTORY, Mode::empty()).map_err(at(Step::Root))?;
    for (number, action) in plan.actions.iter().enumerate() {
        let (step, done) = match action {
            Action::Show { path, at } => (Step::Show, bind(root.as_fd(), path, CWD, at)),
            Action::Replace(replacement) => (Step::Replace, replace(replacement, root.as_fd())),
        };
        done.map_err(|errno| Failure { step, action: Some(number), errno })?;
    }
    // What was mounted from it keeps the file system.
    unmount(&*plan.place, UnmountFlags::DETACH).map_err(at(Step::Leave))?;
    if let Some(directory) = &plan.working {
        rustix::process::chdir(&**directory).map_err(at(Step::Leave))?;
    }
    set_parent_process_death_signal(None).map_err(at(Step::Tell))?;
    tell_success(socket).map_err(at(Step::Tell))
}

/// Tells the host that all is ready.
pub(super) fn tell_success(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    tell(socket, Word { kind: Word::READY, action: 0, errno: 0 }, None)
}

/// Tells the host why there is no view. Nothing can be done if that fails too: then it hears of the child's end.
pub(super) fn tell_failure(socket: BorrowedFd<'_>, failure: &Failure) {
    let action = failure.action.and_then(|action| u32::try_from(action + 1).ok()).unwrap_or(0);
    let word = Word { kind: failure.step as u32, action, errno: failure.errno.raw_os_error() };
    let _ = tell(socket, word, None);
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);
/// A copy of a mount with all that is mounted below: a part of it alone would show what the mounts below hide, which the
/// kernel refuses to a user namespace.
const CLONE_ALL: OpenTreeFlags = CLONE
    .union(OpenTreeFlags::AT_RECURSIVE)
    .union(OpenTreeFlags::AT_NO_AUTOMOUNT)
    .union(OpenTreeFlags::AT_SYMLINK_NOFOLLOW);
const HARMLESS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

fn at(step: Step) -> impl Fn(Errno) -> Failure {
    move |errno| Failure { step, action: None, errno }
}

/// A namespace of one's own, and in it the file system at its private place.
fn mount_tree(plan: &Plan) -> Result<OwnedFd, Failure> {
    match child::leave(false) {
        // Without CAP_SYS_ADMIN: a user namespace, in which all ids are those outside.
        Err(Errno::PERM) => {
            child::leave(true).map_err(at(Step::Unshare))?;
            map_ids(plan).map_err(at(Step::Map))?;
        }
        other => other.map_err(at(Step::Unshare))?,
    }
    // Before anything is mounted: nothing done here may spread to where we came from.
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(at(Step::Private))?;
    // Only now: the kernel wants it opened in the user namespace in which it is mounted.
    let fuse = open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(at(Step::OpenFuse))?;
    let mut data = Text { bytes: [0; 192], len: 0 };
    let descriptor = rustix::fd::AsRawFd::as_raw_fd(&fuse);
    // Cannot overflow: the options have two numbers of at most ten digits among a hundred fixed characters.
    let _ = write!(data, "fd={descriptor}").and_then(|()| data.push(plan.options.to_bytes()));
    let options = CStr::from_bytes_until_nul(&data.bytes).map_err(|_| at(Step::Mount)(Errno::NAMETOOLONG))?;
    mount(c"telpher", &*plan.place, c"fuse", HARMLESS, options).map_err(at(Step::Mount))?;
    Ok(fuse)
}

fn map_ids(plan: &Plan) -> Result<(), Errno> {
    let [users, groups] = &plan.maps;
    // setgroups must be given up before a group may be mapped without privilege.
    for (path, text) in
        [(c"/proc/self/setgroups", "deny"), (c"/proc/self/uid_map", users), (c"/proc/self/gid_map", groups)]
    {
        let file = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(&file, text.as_bytes())?;
    }
    Ok(())
}

/// Mounts what stands at `path` below `from`, over `to` below `at`.
fn bind(from: BorrowedFd<'_>, path: &CStr, to: BorrowedFd<'_>, at: &CStr) -> Result<(), Errno> {
    let tree = open_tree(from, path, CLONE_ALL)?;
    move_mount(&tree, c"", to, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn replace(replacement: &Replacement, root: BorrowedFd<'_>) -> Result<(), Errno> {
    // The machine's, which stays reachable below what is about to cover it.
    let real = open(&*replacement.at, DIRECTORY, Mode::empty())?;
    mount(c"telpher", &*replacement.at, c"tmpfs", HARMLESS, &*replacement.options)?;
    let new = open(&*replacement.at, DIRECTORY, Mode::empty())?;
    for Member { name, what } in &replacement.members {
        match what {
            What::Link(text) => symlinkat(&**text, &new, &**name)?,
            What::Tree { path, directory } => {
                make(new.as_fd(), name, *directory)?;
                bind(root, path, new.as_fd(), name)?;
            }
            What::Real { directory } => {
                // Gone since the plan was made, or not for this user: then it is not there.
                let Ok(tree) = open_tree(&real, &**name, CLONE_ALL) else { continue };
                make(new.as_fd(), name, *directory)?;
                move_mount(&tree, c"", &new, &**name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
            }
        }
    }
    if replacement.sealed {
        let flags = MountFlags::BIND | MountFlags::RDONLY | HARMLESS;
        mount_remount(&*replacement.at, flags, c"")?;
    }
    Ok(())
}

/// Something to mount upon.
fn make(directory: BorrowedFd<'_>, name: &CStr, is_directory: bool) -> Result<(), Errno> {
    if is_directory {
        return mkdirat(directory, name, Mode::from_raw_mode(0o755));
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::from_raw_mode(0o644)).map(drop)
}

fn tell(socket: BorrowedFd<'_>, word: Word, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        // Cannot fail: the space is that of one descriptor.
        let _ = beside.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(word.as_bytes())], &mut beside, SendFlags::NOSIGNAL)).map(drop)
}

/// Text on the stack.
struct Text {
    bytes: [u8; 192],
    len: usize,
}

impl Text {
    fn push(&mut self, bytes: &[u8]) -> std::fmt::Result {
        // One byte stays zero: the text's end.
        let room = self.bytes.len() - 1 - self.len;
        let place = self.bytes.get_mut(self.len..self.len + bytes.len()).filter(|_| bytes.len() <= room);
        place.ok_or(std::fmt::Error)?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_itself_across_the_socket() {
        for step in Step::ALL {
            for action in [None, Some(0), Some(7)] {
                let failure = Failure { step, action, errno: Errno::PERM };
                let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
                tell_failure(near.as_fd(), &failure);
                let mut bytes = [0; size_of::<Word>()];
                assert_eq!(far.recv(&mut bytes).unwrap(), bytes.len());
                assert_eq!(Word::read_from_bytes(&bytes).unwrap().meaning(), Some(Err(failure)));
            }
        }
    }

    #[test]
    fn text_that_does_not_fit_is_refused_and_stays_terminated() {
        let mut text = Text { bytes: [0; 192], len: 0 };
        text.push(&[b'x'; 190]).unwrap();
        assert!(text.push(b"yz").is_err());
        text.push(b"y").unwrap();
        assert!(text.push(b"z").is_err());
        assert_eq!(CStr::from_bytes_until_nul(&text.bytes).unwrap().to_bytes().len(), 191);
    }
}
