//! The Unix socket of an endpoint: opens and accepts connections, and notices peers that end.
//!
//! A helper thread does all of it. It sleeps until a socket has something for it, and hands events over through a
//! queue; an endpoint without events pays one load to ask.

#[cfg(test)]
mod tests;

use crate::address::Address;
use crate::config::Config;
use crate::error::FabricError;
use crate::events::{ConnectionId, ConnectorEvent, ConnectorStats, Progress};
use crate::handshake::WAKE;
use crate::helper::{Command, Helper, Shared};
use crate::layout::Sizes;
use crate::socket::{socket, socket_name};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SendFlags, bind, listen, send};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use telpher_os::{Lineage, spawn_unsignalled};

/// Connections that may wait to be accepted. Source: chosen; the kernel allows at most `net.core.somaxconn`, 4096 by
/// default.
const BACKLOG: i32 = 4096;
/// Identifies a boot of the machine. Source: Documentation/admin-guide/sysctl/kernel.rst, `random`.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The socket of an endpoint and its helper thread.
#[derive(Debug)]
pub struct Connector {
    address: Address,
    shared: Arc<Shared>,
    sizes: Sizes,
    created_in: Lineage,
    thread: Option<JoinHandle<()>>,
}

impl Connector {
    /// Opens a socket under a new random name, and starts the helper thread.
    ///
    /// # Errors
    /// A size outside its limits, or the system's refusal.
    pub fn open(config: &Config) -> Result<Connector, FabricError> {
        let sizes = Sizes::of(config)?;
        let failed = |action| move |error: Errno| FabricError::System { action, source: error.into() };
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(failed("get a random number"))?;
        let address = Address {
            boot: boot()?,
            user: rustix::process::geteuid().as_raw(),
            process: std::process::id(),
            number: u64::from_ne_bytes(random),
        };
        let listener = socket().map_err(failed("create a Unix socket"))?;
        let name = socket_name(&address).map_err(failed("name a Unix socket"))?;
        bind(&listener, &name).map_err(failed("bind a Unix socket"))?;
        listen(&listener, BACKLOG).map_err(failed("listen on a Unix socket"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed("create an eventfd"))?;
        let shared = Arc::new(Shared::new(wake, config));
        let helper = Helper::new(address, sizes, listener, Arc::clone(&shared)).map_err(failed("use epoll"))?;
        let thread = spawn_unsignalled("telpher-fabric", move || helper.run())
            .map_err(|source| FabricError::System { action: "start the helper thread", source })?;
        Ok(Connector { address, shared, sizes, created_in: Lineage::current(), thread: Some(thread) })
    }

    /// Returns the address by which other endpoints reach this one.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Starts to open a connection, and does not wait. Its end is an event: `Connected` or `Refused`. A peer that is
    /// stopped answers when it continues.
    ///
    /// # Errors
    /// [`FabricError`]: another machine or user, a limit, or a forked child. There will be no event.
    pub fn connect(&self, to: &Address) -> Result<ConnectionId, FabricError> {
        if !self.created_in.is_current() {
            return Err(FabricError::Forked);
        }
        self.address.check_reaches(to)?;
        let id = self.shared.reserve(self.sizes.total())?;
        self.command(Command::Connect { id, to: *to });
        Ok(id)
    }

    /// Moves the events since the last call to `into`. One load if there are none. A forked child gets none.
    #[inline]
    pub fn events(&self, into: &mut Vec<ConnectorEvent>) {
        if self.created_in.is_current() {
            self.shared.events.take(into);
        }
    }

    /// Returns the socket of an open connection.
    pub(crate) fn socket(&self, connection: ConnectionId) -> Option<Arc<OwnedFd>> {
        self.shared.socket(connection)
    }

    /// Wakes the peer's helper thread, which makes the peer's endpoint progress if it is set up so. Use it sparingly:
    /// it is a system call.
    pub fn wake(&self, connection: ConnectionId) {
        if !self.created_in.is_current() {
            return;
        }
        if let Some(socket) = self.shared.socket(connection) {
            // A full socket has enough wakes in it, and a closed one becomes an event.
            let _ = send(&*socket, &WAKE, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// Lets the helper thread call [`Progress`] after a while, see [`set_progress`](Connector::set_progress).
    pub(crate) fn ask_for_progress(&self) {
        self.command(Command::Progress);
    }

    /// Sets what is called when a peer wakes this process, and when there are events.
    pub fn set_progress(&self, progress: Weak<dyn Progress>) {
        if self.created_in.is_current() {
            self.shared.set_progress(progress);
        }
    }

    /// Closes a connection, or stops opening it. The peer notices; this side gets no further event of it, except for
    /// those that are already waiting.
    pub fn close(&self, connection: ConnectionId) {
        if self.created_in.is_current() {
            self.command(Command::Close { id: connection });
        }
    }

    /// Returns what was counted so far.
    #[must_use]
    pub fn stats(&self) -> ConnectorStats {
        if self.created_in.is_current() { self.shared.stats() } else { ConnectorStats::default() }
    }

    /// Closes the socket and all connections, and lets the helper thread end. Does not wait for it.
    pub(crate) fn stop(&self) {
        if self.created_in.is_current() {
            self.command(Command::Stop);
        }
    }

    fn command(&self, command: Command) {
        self.shared.commands.push(command);
        self.shared.wake_helper();
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        if !self.created_in.is_current() {
            // The thread and its sockets belong to the parent: do not join, and do not free what it may have locked.
            let _ = ManuallyDrop::new(self.thread.take());
            let _ = ManuallyDrop::new(Arc::clone(&self.shared));
            return;
        }
        self.command(Command::Stop);
        // On the helper thread itself, this is the end of an endpoint that a call of `progress` kept.
        let is_helper = self.thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id());
        if let Some(thread) = self.thread.take().filter(|_| !is_helper) {
            let _ = thread.join();
        }
    }
}

/// Checks whether endpoints of this process can reach an address: whether it is of this machine and this user.
///
/// # Errors
/// [`FabricError::OtherMachine`], [`FabricError::OtherUser`], or [`FabricError::System`] if the machine does not tell
/// its identity.
pub fn check_address(address: &Address) -> Result<(), FabricError> {
    let user = rustix::process::geteuid().as_raw();
    Address { boot: boot()?, user, process: 0, number: 0 }.check_reaches(address)
}

/// Returns the identity of this boot, from the text of a UUID.
pub(crate) fn boot() -> Result<[u8; 16], FabricError> {
    static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Ok(*boot);
    }
    let failed = |source| FabricError::System { action: "read the identity of this boot of the machine", source };
    let text = std::fs::read_to_string(BOOT_ID).map_err(failed)?;
    let digits: String = text.trim().split('-').collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(number) if digits.len() == 32 => Ok(*BOOT.get_or_init(|| number.to_be_bytes())),
        _ => Err(failed(io::Error::new(io::ErrorKind::InvalidData, format!("{BOOT_ID} has no UUID")))),
    }
}
