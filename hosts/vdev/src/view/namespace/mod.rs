//! The tree as a file system in a private mount namespace: for shell scripts, static programs and programs in any
//! language.
//!
//! ```text
//! host                                        the program's process, between fork and exec
//! prepare ─► plan: what is mounted where ─►    own mount namespace (and user namespace, if not root), private mounts
//!         ─► a thread waits             ◄─    file system mounted, its descriptor sent
//!            serves /dev/fuse           ◄─►   directories replaced, the driver's mounted among the machine's entries
//!            Running::outcome           ◄─    ready ─► exec
//! ```
//!
//! The namespace owns the mounts, and its processes keep it alive: when the last one has ended, nothing is left. When
//! the host has ended, accesses to the tree return ENOTCONN. Processes outside the namespace see none of this.
//!
//! `plan` decides, `scaffold` mounts in the child, `fuse` serves the file system, `entry` is the child's part between
//! fork and exec, and `child` is the call that gives the child its own namespace.
//!
//! The rest of the machine's tree stays real: /dev/shm, /dev/pts, /dev/mqueue and /sys/fs/cgroup are mounts of the real
//! directories. In a user namespace setuid programs do not gain their owner's rights; `sudo` reports this.

mod child;
mod entry;
mod fuse;
mod plan;
mod scaffold;
#[cfg(test)]
mod tests;
mod tree;

pub use entry::NamespaceEntry;
pub use fuse::{Nodes, OPEN_NUMBER};
pub use scaffold::Step;
pub use tree::Tree;

use crate::tree::Errno;
use fuse::{FileSystem, Waiters};
use fuser::{BackgroundSession, Config, Session, SessionACL};
use plan::{Action, Layout, Plan};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use rustix::process::getpid;
use scaffold::{Failure, Message};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Why a namespace view is impossible, or why creating one failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The kernel has no FUSE, or the system hides /dev/fuse.
    #[error("no namespace view: there is no usable /dev/fuse; load the module `fuse`, or use --view preload")]
    NoFuse(#[source] Errno),
    /// The user may not open /dev/fuse.
    #[error("no namespace view: this user may not open /dev/fuse; --view preload may work")]
    FuseForbidden(#[source] Errno),
    /// The system refused one of the steps.
    #[error("no namespace view: cannot {step}{}; --view preload may work", to(at.as_ref()))]
    Refused {
        /// The step that failed.
        step: Step,
        /// The path it was for.
        at: Option<PathBuf>,
        /// The system's error.
        #[source]
        errno: Errno,
    },
    /// The host cannot serve the view.
    #[error("cannot serve the namespace view")]
    Serve(#[source] std::io::Error),
    /// The child ended without a message.
    #[error("the process ended before it entered the namespace view")]
    Vanished,
}

fn to(at: Option<&PathBuf>) -> String {
    at.map(|at| format!(" {}", at.display())).unwrap_or_default()
}

/// Checks whether this user can have a namespace view on this machine. It tries in a short-lived process, because the
/// permission for namespaces and mounts depends on more settings than could be queried. Takes about as long as starting
/// a program.
///
/// # Errors
/// The reason, as one sentence.
pub fn available() -> Result<(), NamespaceError> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/fuse", flags, rustix::fs::Mode::empty()).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM => NamespaceError::FuseForbidden(errno),
        _ => NamespaceError::NoFuse(errno),
    })?;
    let (entrance, socket) = pair(Plan::empty(), true)?;
    // Nothing is executed: the trial always ends with an error between fork and exec.
    let mut command = Command::new("/");
    entrance.install(&mut command);
    let _ = command.spawn();
    drop(command);
    let plan = Plan::empty();
    match receive(&socket).map_err(NamespaceError::Serve)? {
        Some((message, _)) => match message.meaning() {
            Some(Err(failure)) => Err(reason(&plan, failure)),
            _ => Ok(()),
        },
        None => Err(NamespaceError::Vanished),
    }
}

/// Prepares a namespace view for a program: decides what is mounted where, and starts a thread that will serve it.
///
/// Call [`NamespaceEntry::install`] on the program's command, spawn it, drop the command, and call
/// [`Running::outcome`].
///
/// # Errors
/// [`NamespaceError::Serve`] if no descriptor or thread is available.
pub fn prepare<T: Tree>(tree: Arc<T>, nodes: Nodes) -> Result<(NamespaceEntry, Running), NamespaceError> {
    let (plan, layout) = plan::plan(&*tree, Path::new("/"));
    let (entrance, socket) = pair(plan, false)?;
    let waiters = Arc::new(Waiters::default());
    let (report, outcome) = channel();
    let wake = {
        // A weak reference, because the tree may hold this closure to report its own changes.
        let (tree, waiters) = (Arc::downgrade(&tree), Arc::clone(&waiters));
        Arc::new(move || {
            if let Some(tree) = tree.upgrade() {
                waiters.wake(&*tree);
            }
        })
    };
    let plan = Arc::clone(&entrance.plan);
    let (serves, served) = channel();
    let serve = move || {
        let _serves: Sender<()> = serves;
        let files = |layout| FileSystem::new(tree, layout, waiters, nodes);
        serve(&socket, &plan, layout, files, &report);
    };
    let server =
        std::thread::Builder::new().name("telpher-namespace".to_owned()).spawn(serve).map_err(NamespaceError::Serve)?;
    Ok((entrance, Running { server, outcome, served, wake }))
}

/// A namespace view that is served until the last of its processes has ended.
pub struct Running {
    server: JoinHandle<()>,
    outcome: Receiver<Result<(), NamespaceError>>,
    /// Disconnected when the server has ended.
    served: Receiver<()>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

impl Running {
    /// Waits until the program's process has entered the view, or failed to.
    ///
    /// # Errors
    /// The reason for the failure.
    pub fn outcome(&self) -> Result<(), NamespaceError> {
        // The thread ends without a message only if it panicked.
        self.outcome.recv().unwrap_or(Err(NamespaceError::Vanished))
    }

    /// Returns a callback that makes pollers check again. Call it when a device has latched an error that was not
    /// caused by a write through the view.
    pub fn waker(&self) -> impl Fn() + Send + Sync + use<> {
        let wake = Arc::clone(&self.wake);
        move || wake()
    }

    /// Waits until the last process in the namespace has ended and all its files are released, but at most this long.
    pub fn wait(&self, at_most: Duration) {
        // Nothing is ever sent: the wait ends when the server ends, or at the time limit.
        let _ = self.served.recv_timeout(at_most);
    }

    /// Waits until the last process in the namespace has gone.
    pub fn join(self) {
        // A panic of the thread has been printed; since then accesses have returned ENOTCONN.
        let _ = self.server.join();
    }
}

fn pair(plan: Plan, trial: bool) -> Result<(NamespaceEntry, OwnedFd), NamespaceError> {
    let (host, socket) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| NamespaceError::Serve(errno.into()))?;
    Ok((NamespaceEntry { plan: Arc::new(plan), socket, host: getpid(), trial }, host))
}

/// Receives the file system from the child, serves it, and reports the child's result.
fn serve<T: Tree>(
    socket: &OwnedFd,
    plan: &Plan,
    layout: Layout,
    files: impl FnOnce(Layout) -> FileSystem<T>,
    report: &Sender<Result<(), NamespaceError>>,
) {
    let mut make = Some((layout, files));
    let mut session: Option<BackgroundSession> = None;
    let outcome = loop {
        match receive(socket) {
            Err(error) => break Err(NamespaceError::Serve(error)),
            Ok(None) => break Err(NamespaceError::Vanished),
            Ok(Some((message, descriptor))) => match (message.meaning(), descriptor, make.take()) {
                (Some(outcome), ..) => break outcome.map_err(|failure| reason(plan, failure)),
                (None, Some(descriptor), Some((layout, files))) => match begin(files(layout), descriptor) {
                    Ok(begun) => session = Some(begun),
                    Err(error) => break Err(NamespaceError::Serve(error)),
                },
                (None, ..) => break Err(NamespaceError::Vanished),
            },
        }
    };
    // The receiver may be gone if the view is no longer wanted.
    let _ = report.send(outcome);
    if let Some(session) = session {
        // Ends when the last mount is gone; its result only says that.
        let _ = session.join();
    }
}

fn begin<T: Tree>(files: FileSystem<T>, descriptor: OwnedFd) -> std::io::Result<BackgroundSession> {
    let mut config = Config::default();
    // A program may change its user; the kernel checks each user against the files' modes.
    config.acl = SessionACL::All;
    Session::from_fd(files, descriptor, SessionACL::All, config)?.spawn()
}

/// The child's next message and the descriptor sent with it; `None` at the end of the connection.
fn receive(socket: &OwnedFd) -> std::io::Result<Option<(Message, Option<OwnedFd>)>> {
    let mut message = Message::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(message.as_mut_bytes())], &mut beside, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes == size_of::<Message>()).then_some((message, descriptor)))
}

fn reason(plan: &Plan, failure: Failure) -> NamespaceError {
    use std::os::unix::ffi::OsStrExt;
    let at = failure.action.and_then(|action| plan.actions.get(action)).map(|action| {
        let at = match action {
            Action::Show { at, .. } => at,
            Action::Replace(replacement) => &replacement.at,
        };
        PathBuf::from(std::ffi::OsStr::from_bytes(at.to_bytes()))
    });
    NamespaceError::Refused { step: failure.step, at, errno: failure.errno }
}
