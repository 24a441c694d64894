//! The tree in a private mount namespace, as a file system: for shell scripts, static programs and programs of any language.
//!
//! ```text
//! host                                        the program's process, between fork and exec
//! prepare ─► plan: what goes where      ─►    own mount namespace (and user namespace, if not root), nothing spreads
//!         ─► a thread waits             ◄─    file system mounted, its descriptor sent
//!            serves /dev/fuse           ◄─►   directories replaced, ours mounted among the machine's entries
//!            Running::outcome           ◄─    ready ─► exec
//! ```
//!
//! The mounts are the namespace's, and the namespace is its processes': when the last one has gone, nothing is left; when the
//! host has gone, the tree answers ENOTCONN. Nobody else sees anything of it.
//!
//! `plan` decides, `scaffold` does it in the child, `fuse` serves, `child` makes the two calls that concern the process as a
//! whole.
//!
//! What is the machine's stays the machine's: /dev/shm, /dev/pts, /dev/mqueue, /sys/fs/cgroup are mounts of the real ones. In a
//! user namespace setuid programs do not gain their owner's rights, and `sudo` says so.

mod child;
mod fuse;
mod plan;
mod scaffold;
#[cfg(test)]
mod tests;
mod tree;

pub use fuse::OPEN_NUMBER;
pub use scaffold::Step;
pub use tree::Tree;

use crate::tree::Errno;
use fuse::{FileSystem, Waiters};
use fuser::{BackgroundSession, Config, Session, SessionACL};
use plan::{Action, Layout, Plan};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use rustix::process::{Pid, getpid};
use scaffold::{Failure, Word};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

/// Why there can be no view of this kind, or why one was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The kernel has no FUSE, or the system hides it.
    #[error("no namespace view (the preloaded one may do): there is no usable /dev/fuse; load the module `fuse`")]
    NoFuse(#[source] Errno),
    /// The user may not open it.
    #[error("no namespace view (the preloaded one may do): this user may not open /dev/fuse")]
    FuseForbidden(#[source] Errno),
    /// The system refused something on the way.
    #[error("no namespace view (the preloaded one may do): cannot {step}{}", to(at.as_ref()))]
    Refused {
        /// What was being done.
        step: Step,
        /// To which path.
        at: Option<PathBuf>,
        /// The system's answer.
        #[source]
        errno: Errno,
    },
    /// The host cannot do its part.
    #[error("cannot serve the namespace view")]
    Serve(#[source] std::io::Error),
    /// The child ended without a word.
    #[error("the process that was to enter the namespace view ended before it was made")]
    Vanished,
}

fn to(at: Option<&PathBuf>) -> String {
    at.map(|at| format!(" {}", at.display())).unwrap_or_default()
}

/// Says whether this user can have such a view on this machine, by trying in a process that ends at once: whether namespaces and
/// mounts are allowed depends on more settings than could be asked for. Takes about as long as starting a program.
///
/// # Errors
/// Why not, in one sentence.
pub fn available() -> Result<(), Reason> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/fuse", flags, rustix::fs::Mode::empty()).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM => Reason::FuseForbidden(errno),
        _ => Reason::NoFuse(errno),
    })?;
    let (entrance, socket) = pair(Plan::of_nothing(), true)?;
    // Nothing is executed: the trial ends with an error between fork and exec, whatever it found.
    let mut command = Command::new("/");
    entrance.install(&mut command);
    let _ = command.spawn();
    drop(command);
    let plan = Plan::of_nothing();
    match receive(&socket).map_err(Reason::Serve)? {
        Some((word, _)) => match word.meaning() {
            Some(Err(failure)) => Err(reason(&plan, failure)),
            _ => Ok(()),
        },
        None => Err(Reason::Vanished),
    }
}

/// Makes ready to show the tree to a program: decides what goes where, and starts a thread that will serve.
///
/// [`Entrance::install`] it in the program's command, spawn, drop the command, and ask [`Running::outcome`].
///
/// # Errors
/// [`Reason::Serve`], for want of descriptors or threads.
pub fn prepare<T: Tree>(tree: Arc<T>) -> Result<(Entrance, Running), Reason> {
    let (plan, layout) = plan::plan(&*tree, Path::new("/"));
    let (entrance, socket) = pair(plan, false)?;
    let waiters = Arc::new(Waiters::default());
    let (report, outcome) = channel();
    let wake = {
        // The tree may keep this in turn, to be told of its own changes.
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
        let files = |layout| FileSystem::new(tree, layout, waiters);
        serve(&socket, &plan, layout, files, &report);
    };
    let server =
        std::thread::Builder::new().name("telpher-namespace".to_owned()).spawn(serve).map_err(Reason::Serve)?;
    Ok((entrance, Running { server, outcome, served, wake }))
}

/// What the program's process does between fork and exec.
#[derive(Debug)]
pub struct Entrance {
    plan: Arc<Plan>,
    socket: OwnedFd,
    /// Who made it, and will fork.
    host: Pid,
    /// Only to see whether it can be done.
    trial: bool,
}

impl Entrance {
    /// Has the command's process enter the view before it executes the program. The command must be dropped once it has been
    /// spawned, or [`Running::outcome`] may wait for ever if it never ran.
    pub fn install(self, command: &mut Command) {
        child::enter_before_exec(command, self);
    }

    /// Enters the view: to be called in a child that has one thread, between fork and exec. Makes system calls only; allocates
    /// nothing.
    ///
    /// # Errors
    /// The system's answer to the step that failed; [`Running::outcome`] says which.
    pub fn enter(&self) -> Result<(), Errno> {
        let result = if self.trial {
            scaffold::try_out(&self.plan)
        } else {
            scaffold::enter(&self.plan, self.host, self.socket.as_fd())
        };
        match result {
            Ok(()) if self.trial => scaffold::tell_success(self.socket.as_fd()).and(Err(Errno::CANCELED)),
            Ok(()) => Ok(()),
            Err(failure) => {
                scaffold::tell_failure(self.socket.as_fd(), &failure);
                Err(failure.errno)
            }
        }
    }
}

/// A view that is being served until the last of its processes has gone.
pub struct Running {
    server: JoinHandle<()>,
    outcome: Receiver<Result<(), Reason>>,
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
    /// Why it failed.
    pub fn outcome(&self) -> Result<(), Reason> {
        // The thread has ended without a word only if it panicked.
        self.outcome.recv().unwrap_or(Err(Reason::Vanished))
    }

    /// Has those who wait in poll(2) look again: to be called when a device has latched an error that no write through the view
    /// has caused.
    pub fn waker(&self) -> impl Fn() + Send + Sync + use<> {
        let wake = Arc::clone(&self.wake);
        move || wake()
    }

    /// Waits until the last process in the namespace has gone and everything that it had open is released, but no longer than this.
    pub fn wait(&self, at_most: Duration) {
        // Nothing is sent: it ends with the server, or with the time.
        let _ = self.served.recv_timeout(at_most);
    }

    /// Waits until the last process in the namespace has gone.
    pub fn join(self) {
        // A panic in it has been printed; the files answered ENOTCONN from then on.
        let _ = self.server.join();
    }
}

fn pair(plan: Plan, trial: bool) -> Result<(Entrance, OwnedFd), Reason> {
    let (host, socket) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Reason::Serve(errno.into()))?;
    Ok((Entrance { plan: Arc::new(plan), socket, host: getpid(), trial }, host))
}

/// Takes the file system from the child, serves it, and says how the child fared.
fn serve<T: Tree>(
    socket: &OwnedFd,
    plan: &Plan,
    layout: Layout,
    files: impl FnOnce(Layout) -> FileSystem<T>,
    report: &Sender<Result<(), Reason>>,
) {
    let mut make = Some((layout, files));
    let mut session: Option<BackgroundSession> = None;
    let outcome = loop {
        match receive(socket) {
            Err(error) => break Err(Reason::Serve(error)),
            Ok(None) => break Err(Reason::Vanished),
            Ok(Some((word, descriptor))) => match (word.meaning(), descriptor, make.take()) {
                (Some(outcome), ..) => break outcome.map_err(|failure| reason(plan, failure)),
                (None, Some(descriptor), Some((layout, files))) => match begin(files(layout), descriptor) {
                    Ok(begun) => session = Some(begun),
                    Err(error) => break Err(Reason::Serve(error)),
                },
                (None, ..) => break Err(Reason::Vanished),
            },
        }
    };
    // Nobody listens if the view is not wanted any more.
    let _ = report.send(outcome);
    if let Some(session) = session {
        // Ends when the last mount has gone. What it says then is that there is nobody to serve.
        let _ = session.join();
    }
}

fn begin<T: Tree>(files: FileSystem<T>, descriptor: OwnedFd) -> std::io::Result<BackgroundSession> {
    let mut config = Config::default();
    // A program may become another user; the kernel checks each against the files' modes.
    config.acl = SessionACL::All;
    Session::from_fd(files, descriptor, SessionACL::All, config)?.spawn()
}

/// The child's next word, and what came beside it; `None` if it will say no more.
fn receive(socket: &OwnedFd) -> std::io::Result<Option<(Word, Option<OwnedFd>)>> {
    let mut word = Word::new_zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(word.as_mut_bytes())], &mut beside, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes == size_of::<Word>()).then_some((word, descriptor)))
}

fn reason(plan: &Plan, failure: Failure) -> Reason {
    use std::os::unix::ffi::OsStrExt;
    let at = failure.action.and_then(|action| plan.actions.get(action)).map(|action| {
        let at = match action {
            Action::Show { at, .. } => at,
            Action::Replace(replacement) => &replacement.at,
        };
        PathBuf::from(std::ffi::OsStr::from_bytes(at.to_bytes()))
    });
    Reason::Refused { step: failure.step, at, errno: failure.errno }
}
