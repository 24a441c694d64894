//! The host's ear: answers guests' requests and sees their files closed.
//!
//! One thread, which never waits for anybody: a connection is looked at when a packet is there, and forgotten if none comes.

use super::packet::{self, MAX_PACKET};
use super::tracer::Tracer;
use super::{Host, peer};
use crate::tree::Errno;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::time::Timespec;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// How long a connection may wait for its packet: a guest sends it at once. Source: chosen.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that may wait at once; beyond it the oldest goes. Source: chosen, a share of the usual 1024 descriptors.
const MAX_WAITING: usize = 256;
/// Connections not yet taken from the system.
const BACKLOG: i32 = 4096;

/// What an event is about.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const ENDS: u64 = 2;
/// First number of a connection.
const CONNECTIONS: u64 = 16;

/// The thread; ends, and with it the service, when this is dropped.
#[derive(Debug)]
pub struct Server {
    thread: Option<JoinHandle<()>>,
    stop: Arc<OwnedFd>,
    /// Only if somebody wants traces.
    _tracer: Option<Tracer>,
}

impl Host {
    /// Answers guests at a socket of this name, which must not exist yet, until the value is dropped.
    ///
    /// # Errors
    /// If the name is taken or too long for a socket, or for want of descriptors or threads.
    pub fn serve(self: &Arc<Self>, socket: &Path) -> std::io::Result<Server> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(socket)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, source) in [(LISTENER, listener.as_fd()), (STOP, stop.as_fd()), (ENDS, self.ends.as_fd())] {
            epoll::add(&events, source, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        let tracer = if self.behaviour.trace || self.behaviour.check { Some(Tracer::start(self)?) } else { None };
        let service = Service {
            host: Arc::clone(self),
            listener,
            events,
            _stop: Arc::clone(&stop),
            waiting: BTreeMap::new(),
            next: CONNECTIONS,
        };
        let thread = std::thread::Builder::new().name("telpher-host".into()).spawn(move || service.run())?;
        Ok(Server { thread: Some(thread), stop, _tracer: tracer })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Service {
    host: Arc<Host>,
    listener: OwnedFd,
    events: OwnedFd,
    /// Stays open as long as it is waited for.
    _stop: Arc<OwnedFd>,
    /// Connections whose packet has not come, oldest first, and when they came.
    waiting: BTreeMap<u64, (OwnedFd, Instant)>,
    next: u64,
}

impl Service {
    fn run(mut self) {
        loop {
            let mut events = Vec::with_capacity(64);
            let timeout = self.patience().and_then(|left| Timespec::try_from(left).ok());
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Nothing that this thread does can make it fail.
                Err(_) => return,
            }
            self.host.release_closed();
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    STOP => return,
                    ENDS => {}
                    number => self.serve(number),
                }
            }
            self.forget(|came| came.elapsed() >= PATIENCE);
        }
    }

    /// Time until the oldest connection is forgotten.
    fn patience(&self) -> Option<Duration> {
        let (_, came) = self.waiting.first_key_value()?.1;
        Some(PATIENCE.saturating_sub(came.elapsed()) + Duration::from_millis(1))
    }

    fn forget(&mut self, is_late: impl Fn(&Instant) -> bool) {
        while let Some(oldest) = self.waiting.first_entry() {
            if !is_late(&oldest.get().1) {
                return;
            }
            // Closed, and with it taken out of the events.
            oldest.remove();
        }
    }

    fn accept(&mut self) {
        loop {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(connection) => {
                    let number = self.next;
                    self.next += 1;
                    let data = epoll::EventData::new_u64(number);
                    if epoll::add(&self.events, &connection, data, epoll::EventFlags::IN).is_ok() {
                        self.waiting.insert(number, (connection, Instant::now()));
                    }
                    if self.waiting.len() > MAX_WAITING {
                        self.serve_oldest();
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // For want of descriptors: whoever waits for nothing gives his. If nobody does, the others must close
                    // something first; the listener stays readable, so a short pause keeps this from spinning.
                    if !self.serve_oldest() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return;
                }
            }
        }
    }

    /// Answers the oldest connection, or forgets it if its packet has not come; false if there is none.
    fn serve_oldest(&mut self) -> bool {
        let oldest = self.waiting.first_key_value().map(|(number, _)| *number);
        oldest.map(|number| self.serve(number)).is_some()
    }

    /// Answers a connection whose packet has come, or which has hung up.
    fn serve(&mut self, number: u64) {
        let Some((connection, _)) = self.waiting.remove(&number) else { return };
        let mut packet = [0; MAX_PACKET + 1];
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        // Descriptors that a stranger sends along find no room and are closed by the kernel.
        let Ok((_, len)) = rustix::net::recv(&connection, &mut packet, flags) else { return };
        if len == 0 {
            return;
        }
        // What was closed before this was asked counts as closed.
        self.host.release_closed();
        let packet = packet.get(..len).filter(|_| len <= MAX_PACKET).ok_or(Errno::MSGSIZE);
        let answer = packet.and_then(|packet| self.host.answer(peer::process(connection.as_fd()), packet));
        let head = packet::head(&answer);
        let (data, descriptors) = match &answer {
            Ok(answer) => (answer.data(), answer.descriptors()),
            Err(_) => (&[][..], Vec::new()),
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(data)];
        // Who does not take his answer has no file: its descriptor is closed here, and the host sees that.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = rustix::net::sendmsg(&connection, &parts, &mut ancillary, flags);
    }
}
