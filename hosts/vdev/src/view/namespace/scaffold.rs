//! The child's side: its own mount namespace, in which the driver's directories are mounted among the machine's.
//!
//! ```text
//! own namespace ─► private mounts ─► file system on a private mount point ─► its descriptor to the host, which serves
//!               ─► directories replaced, the driver's mounted ─► private mount point left ─► "ready" to the host
//!               ─► exec
//! ```
//!
//! All of this runs between fork and exec: system calls on memory that was allocated before; nothing is allocated. The
//! namespace owns the mounts, and its processes keep it alive: when the last one ends, everything is gone, however it
//! ended. The host serves the file system; without it every access to the tree returns ENOTCONN.

use super::child;
use super::plan::{Action, Member, MemberKind, Plan, Replacement};
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

/// The step at which the child failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u32)]
pub enum Step {
    /// unshare(2).
    #[error("create a mount namespace")]
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
    /// Sending the descriptor to the host.
    #[error("send the file system to its host")]
    Tell = 6,
    /// Finding the file system's root.
    #[error("find the mounted file system")]
    Root = 7,
    /// Mounting an entry of the driver.
    #[error("mount the device's files on")]
    Show = 8,
    /// Replacing a directory.
    #[error("add the device's files to a directory")]
    Replace = 9,
    /// Leaving the private mount point, or returning to the working directory.
    #[error("leave the mount point where the view was set up")]
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

/// The step that failed, the action of the plan, and the system's error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    /// The step.
    pub(super) step: Step,
    /// The index of the action, if an action failed.
    pub(super) action: Option<usize>,
    /// The system's error.
    pub(super) errno: Errno,
}

/// A message from the child to the host; [`MOUNTED`](Message::MOUNTED) carries the file system's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Message {
    /// One of the constants, or the [`Step`] that failed.
    kind: u32,
    /// The index of the action plus one, or 0.
    action: u32,
    /// The system's error.
    errno: i32,
}

impl Message {
    const MOUNTED: u32 = 100;
    const READY: u32 = 101;

    /// The meaning of the message: the file system is mounted (`None`), everything is ready, or a step failed.
    pub(super) fn meaning(self) -> Option<Result<(), Failure>> {
        match self.kind {
            Message::MOUNTED => None,
            Message::READY => Some(Ok(())),
            kind => {
                let step = Step::ALL.into_iter().find(|step| *step as u32 == kind).unwrap_or(Step::Tell);
                let action = (self.action as usize).checked_sub(1);
                Some(Err(Failure { step, action, errno: Errno::from_raw_os_error(self.errno) }))
            }
        }
    }
}

/// Mounts the file system and goes no further: checks whether a view is possible.
pub(super) fn try_out(plan: &Plan) -> Result<(), Failure> {
    let _fuse = mount_tree(plan)?;
    let root = open(&*plan.mount_point, DIRECTORY, Mode::empty()).map_err(at(Step::Root))?;
    // Checks that the kernel has the system calls for replacing directories (Linux 5.2). Accessing only the root needs
    // no answer from a host.
    open_tree(&root, c"", CLONE | OpenTreeFlags::AT_EMPTY_PATH).map_err(at(Step::Show))?;
    Ok(())
}

/// Sets up the view and reports to `host`, which forked this process, on `socket`.
pub(super) fn enter(plan: &Plan, host: Pid, socket: BorrowedFd<'_>) -> Result<(), Failure> {
    let fuse = mount_tree(plan)?;
    // This process also holds the host's end of the socket until exec. If the host is killed before it receives the
    // descriptor, the descriptor would stay in the socket, and this process would wait forever for a file system that
    // it keeps alive itself. So it asks to be killed when the host ends.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(Step::Tell))?;
    if getppid() != Some(host) {
        return Err(at(Step::Tell)(Errno::SRCH));
    }
    send(socket, Message { kind: Message::MOUNTED, action: 0, errno: 0 }, Some(fuse.as_fd()))
        .map_err(at(Step::Tell))?;
    // Only the host's descriptor stays open: when the host closes it, the file system ends.
    drop(fuse);
    let root = open(&*plan.mount_point, DIRECTORY, Mode::empty()).map_err(at(Step::Root))?;
    for (number, action) in plan.actions.iter().enumerate() {
        let (step, done) = match action {
            Action::Show { path, at } => (Step::Show, bind(root.as_fd(), path, CWD, at)),
            Action::Replace(replacement) => (Step::Replace, replace(replacement, root.as_fd())),
        };
        done.map_err(|errno| Failure { step, action: Some(number), errno })?;
    }
    // The mounts made from it keep the file system alive.
    unmount(&*plan.mount_point, UnmountFlags::DETACH).map_err(at(Step::Leave))?;
    if let Some(directory) = &plan.working {
        rustix::process::chdir(&**directory).map_err(at(Step::Leave))?;
    }
    set_parent_process_death_signal(None).map_err(at(Step::Tell))?;
    report_success(socket).map_err(at(Step::Tell))
}

/// Reports to the host that everything is ready.
pub(super) fn report_success(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    send(socket, Message { kind: Message::READY, action: 0, errno: 0 }, None)
}

/// Reports the failure to the host. If that fails too, the host only sees the child's end.
pub(super) fn report_failure(socket: BorrowedFd<'_>, failure: &Failure) {
    let action = failure.action.and_then(|action| u32::try_from(action + 1).ok()).unwrap_or(0);
    let message = Message { kind: failure.step as u32, action, errno: failure.errno.raw_os_error() };
    let _ = send(socket, message, None);
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);
/// Clones a mount with all mounts below it. A partial clone would reveal what the mounts below hide, so the kernel
/// refuses it in a user namespace.
const CLONE_ALL: OpenTreeFlags = CLONE
    .union(OpenTreeFlags::AT_RECURSIVE)
    .union(OpenTreeFlags::AT_NO_AUTOMOUNT)
    .union(OpenTreeFlags::AT_SYMLINK_NOFOLLOW);
const HARMLESS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

fn at(step: Step) -> impl Fn(Errno) -> Failure {
    move |errno| Failure { step, action: None, errno }
}

/// Creates the mount namespace and mounts the file system on its private mount point.
fn mount_tree(plan: &Plan) -> Result<OwnedFd, Failure> {
    match child::leave(false) {
        // Without CAP_SYS_ADMIN: a user namespace, in which all ids equal those outside.
        Err(Errno::PERM) => {
            child::leave(true).map_err(at(Step::Unshare))?;
            map_ids(plan).map_err(at(Step::Map))?;
        }
        other => other.map_err(at(Step::Unshare))?,
    }
    // Before any mount: no mount made here may propagate to the parent namespace.
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(at(Step::Private))?;
    // Opened only now: the kernel requires /dev/fuse to be opened in the user namespace that mounts it.
    let fuse = open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(at(Step::OpenFuse))?;
    let mut data = Text { bytes: [0; 192], len: 0 };
    let descriptor = rustix::fd::AsRawFd::as_raw_fd(&fuse);
    // Cannot overflow: the options are about a hundred fixed characters and two numbers of at most ten digits.
    let _ = write!(data, "fd={descriptor}").and_then(|()| data.push(plan.options.to_bytes()));
    let options = CStr::from_bytes_until_nul(&data.bytes).map_err(|_| at(Step::Mount)(Errno::NAMETOOLONG))?;
    mount(c"telpher", &*plan.mount_point, c"fuse", HARMLESS, options).map_err(at(Step::Mount))?;
    Ok(fuse)
}

fn map_ids(plan: &Plan) -> Result<(), Errno> {
    let [users, groups] = &plan.maps;
    // setgroups must be disabled before an unprivileged process may map a group.
    for (path, text) in
        [(c"/proc/self/setgroups", "deny"), (c"/proc/self/uid_map", users), (c"/proc/self/gid_map", groups)]
    {
        let file = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        write(&file, text.as_bytes())?;
    }
    Ok(())
}

/// Mounts the entry at `path` in `from` over `at` in `to`.
fn bind(from: BorrowedFd<'_>, path: &CStr, to: BorrowedFd<'_>, at: &CStr) -> Result<(), Errno> {
    let tree = open_tree(from, path, CLONE_ALL)?;
    move_mount(&tree, c"", to, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn replace(replacement: &Replacement, root: BorrowedFd<'_>) -> Result<(), Errno> {
    // A descriptor of the machine's directory, which stays reachable after the mount covers it.
    let real = open(&*replacement.at, DIRECTORY, Mode::empty())?;
    mount(c"telpher", &*replacement.at, c"tmpfs", HARMLESS, &*replacement.options)?;
    let new = open(&*replacement.at, DIRECTORY, Mode::empty())?;
    for Member { name, kind } in &replacement.members {
        match kind {
            MemberKind::Link(text) => symlinkat(&**text, &new, &**name)?,
            MemberKind::Tree { path, directory } => {
                make(new.as_fd(), name, *directory)?;
                bind(root, path, new.as_fd(), name)?;
            }
            MemberKind::Real { directory } => {
                // The entry was removed since the plan was made, or this user may not access it: it is left out.
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

/// Creates a mount point.
fn make(directory: BorrowedFd<'_>, name: &CStr, is_directory: bool) -> Result<(), Errno> {
    if is_directory {
        return mkdirat(directory, name, Mode::from_raw_mode(0o755));
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::from_raw_mode(0o644)).map(drop)
}

fn send(socket: BorrowedFd<'_>, message: Message, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        // Cannot fail: the space fits one descriptor.
        let _ = beside.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(message.as_bytes())], &mut beside, SendFlags::NOSIGNAL)).map(drop)
}

/// A text buffer on the stack.
struct Text {
    bytes: [u8; 192],
    len: usize,
}

impl Text {
    fn push(&mut self, bytes: &[u8]) -> std::fmt::Result {
        // One byte stays zero: the end of the text.
        let left = self.bytes.len() - 1 - self.len;
        let free = self.bytes.get_mut(self.len..self.len + bytes.len()).filter(|_| bytes.len() <= left);
        free.ok_or(std::fmt::Error)?.copy_from_slice(bytes);
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
    fn a_failure_survives_the_socket() {
        for step in Step::ALL {
            for action in [None, Some(0), Some(7)] {
                let failure = Failure { step, action, errno: Errno::PERM };
                let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
                report_failure(near.as_fd(), &failure);
                let mut bytes = [0; size_of::<Message>()];
                assert_eq!(far.recv(&mut bytes).unwrap(), bytes.len());
                assert_eq!(Message::read_from_bytes(&bytes).unwrap().meaning(), Some(Err(failure)));
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
