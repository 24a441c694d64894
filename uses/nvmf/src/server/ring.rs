//! The sockets of a loop through one io_uring.
//!
//! ```text
//! start: receives and sends of all connections ─► wait: one io_uring_enter for all of them ─► Event::Received, Sent
//! ```
//!
//! The ring owns the buffers and the socket of each transfer until the kernel has reported its end: also when the
//! connection has ended before, and when the ring is dropped. So the kernel never accesses memory that was freed. A
//! transfer of a connection that has ended is not waited for: its socket is shut down, which ends it.
#![allow(unsafe_code, reason = "entries name memory of this process by address")]

use super::event::{Destination, Event};
use super::handle::Signal;
use crate::connection::Outgoing;
use crate::stats::LoopStats;
use io_uring::opcode::{PollAdd, Read, Recv, SendMsg};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, squeue};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Entries that are handed to the kernel with one call. More of them take another call.
const ENTRIES: u32 = 256;
/// Transfers that may end before the loop looks. The kernel keeps those beyond, at a higher cost.
const ENDED_ENTRIES: u32 = 4096;
/// The most slices of one send. Source: Linux, UIO_MAXIOV.
const SLICES: usize = 1024;
/// Waits for bytes before the first attempt to receive. Source: Linux, IORING_RECVSEND_POLL_FIRST.
const POLL_FIRST: u16 = 1;
/// The pause after the kernel refused entries because it lacks memory.
const PAUSE: Duration = Duration::from_millis(1);

/// The number of the read of the handle's event. Transfers have smaller ones.
const WAKE: u64 = u64::MAX;
/// The number of the poll of the listeners.
const LISTENERS: u64 = u64::MAX - 1;

/// What sendmsg(2) takes: slices, and the header that points to them.
struct Message {
    header: libc::msghdr,
    slices: Vec<libc::iovec>,
}

impl Message {
    fn new() -> Box<Message> {
        // SAFETY: a header of zeroes is valid: it has neither an address nor slices.
        Box::new(Message { header: unsafe { std::mem::zeroed() }, slices: Vec::new() })
    }

    /// Points to the next bytes.
    fn point_to(&mut self, outgoing: &Outgoing) {
        self.slices.clear();
        self.slices.extend(
            outgoing
                .slices()
                .take(SLICES)
                .map(|slice| libc::iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() }),
        );
        self.header.msg_iov = self.slices.as_mut_ptr();
        self.header.msg_iovlen = self.slices.len();
    }
}

enum Transfer {
    Receive(Destination),
    Send(Outgoing, Box<Message>),
    /// A wait for room in the socket; the kernel does not access the bytes.
    Room(Outgoing),
}

/// A transfer in the kernel.
struct InFlight {
    number: u64,
    socket: Arc<TcpStream>,
    transfer: Transfer,
}

/// An io_uring for one loop.
pub(super) struct SocketRing {
    ring: IoUring,
    /// Transfers by their numbers. The kernel may access the memory of those that are present.
    in_flight: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// Memory for the next sends.
    #[allow(clippy::vec_box, reason = "a message stays where it is while the kernel uses it")]
    spare: Vec<Box<Message>>,
    signal: Arc<Signal>,
    /// The counter of the handle's event, which the kernel writes while `is_wake_armed`.
    wake_counter: Vec<u8>,
    is_wake_armed: bool,
    /// An epoll with the listeners. A listener in the ring would stay open until the ring lets go of it.
    listeners: Arc<OwnedFd>,
    is_listening: bool,
    /// The ring cannot be used any more, and the next `wait` reports this.
    failure: Option<io::Error>,
}

impl SocketRing {
    /// Creates the ring. The thread that creates it must use it.
    ///
    /// # Errors
    /// The kernel has no io_uring, or an old one, or refuses it to this process.
    pub(super) fn new(signal: &Arc<Signal>, listeners: &Arc<OwnedFd>) -> io::Result<SocketRing> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all().setup_cqsize(ENDED_ENTRIES);
        let ring = builder.build(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if ![Read::CODE, PollAdd::CODE, Recv::CODE, SendMsg::CODE].iter().all(|&code| probe.is_supported(code)) {
            return Err(ErrorKind::Unsupported.into());
        }
        Ok(SocketRing {
            ring,
            in_flight: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            signal: Arc::clone(signal),
            wake_counter: vec![0; 8],
            is_wake_armed: false,
            listeners: Arc::clone(listeners),
            is_listening: false,
            failure: None,
        })
    }

    /// Prepares a receive of a connection, which may have one at a time. `is_empty`: no bytes have arrived yet, as far
    /// as is known.
    pub(super) fn receive(&mut self, number: u64, socket: &Arc<TcpStream>, into: Destination, is_empty: bool) {
        let transfer = Transfer::Receive(into);
        let (index, in_flight) = self.keep(InFlight { number, socket: Arc::clone(socket), transfer });
        let fd = Fd(in_flight.socket.as_raw_fd());
        let Transfer::Receive(into) = &mut in_flight.transfer else { return };
        let (space, flags) = match into {
            Destination::Buffer(buffer) => (&mut buffer[..], 0),
            // Nothing can be done before all of the data is there.
            Destination::Data(data) => (data.space(), libc::MSG_WAITALL),
        };
        let len = u32::try_from(space.len()).unwrap_or(u32::MAX);
        let poll = if is_empty { POLL_FIRST } else { 0 };
        let entry = Recv::new(fd, space.as_mut_ptr(), len).flags(flags).ioprio(poll).build();
        // SAFETY: the socket and the buffer are in `in_flight`, which gives them back only after the kernel has
        // reported the end of this transfer; `drop` waits for it. Nothing else accesses the buffer until then. The
        // bytes of a Vec stay where they are when it moves.
        let pushed = unsafe { self.push(&entry.user_data(index as u64)) };
        self.forget_unless(pushed, index);
    }

    /// Prepares a send of a connection, which may have one at a time. The kernel waits for room in the socket, except
    /// for bytes in a file that may lose pages: zeroes may replace them during that time, so they are to be checked
    /// again after [`wait_for_room`](SocketRing::wait_for_room).
    pub(super) fn send(&mut self, number: u64, socket: &Arc<TcpStream>, outgoing: Outgoing) {
        let message = self.spare.pop().unwrap_or_else(Message::new);
        let transfer = Transfer::Send(outgoing, message);
        let (index, in_flight) = self.keep(InFlight { number, socket: Arc::clone(socket), transfer });
        let fd = Fd(in_flight.socket.as_raw_fd());
        let Transfer::Send(outgoing, message) = &mut in_flight.transfer else { return };
        message.point_to(outgoing);
        let wait = if outgoing.may_lose_pages() { libc::MSG_DONTWAIT } else { 0 };
        let flags = (libc::MSG_NOSIGNAL | wait).cast_unsigned();
        let entry = SendMsg::new(fd, &raw const message.header).flags(flags).build();
        // SAFETY: the socket, the header, its slices and the bytes that they name are in `in_flight`, which gives them
        // back only after the kernel has reported the end of this transfer; `drop` waits for it. The header is in a box
        // and the slices in a Vec, so they stay where they are. `Outgoing` is not changed meanwhile, and the bytes of
        // its segments are shared, so nothing writes them.
        let pushed = unsafe { self.push(&entry.user_data(index as u64)) };
        self.forget_unless(pushed, index);
    }

    /// Prepares a wait for room in a socket that had none for the first of these bytes.
    pub(super) fn wait_for_room(&mut self, number: u64, socket: &Arc<TcpStream>, outgoing: Outgoing) {
        let transfer = Transfer::Room(outgoing);
        let (index, in_flight) = self.keep(InFlight { number, socket: Arc::clone(socket), transfer });
        let entry = PollAdd::new(Fd(in_flight.socket.as_raw_fd()), libc::POLLOUT.cast_unsigned().into()).build();
        // SAFETY: the socket is in `in_flight`, as for `send`. A poll accesses no memory of this process.
        let pushed = unsafe { self.push(&entry.user_data(index as u64)) };
        self.forget_unless(pushed, index);
    }

    /// Gives a transfer a number and a place.
    fn keep(&mut self, transfer: InFlight) -> (usize, &mut InFlight) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() - 1
        });
        (index, self.in_flight[index].insert(transfer))
    }

    /// Forgets a transfer that the kernel will never see. The next [`wait`](SocketRing::wait) fails.
    fn forget_unless(&mut self, pushed: io::Result<()>, index: usize) {
        if let Err(error) = pushed {
            self.in_flight[index] = None;
            self.free.push(index);
            self.failure.get_or_insert(error);
        }
    }

    /// Hands the prepared transfers to the kernel, waits until something ends or the time is over, and appends what has
    /// ended.
    ///
    /// # Errors
    /// The kernel's, if the ring cannot be used any more: with what was tried.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
        stats: &mut LoopStats,
    ) -> io::Result<()> {
        if !self.is_wake_armed {
            let into = self.wake_counter.as_mut_ptr();
            let entry = Read::new(Fd(self.signal.event.as_raw_fd()), into, 8).build().user_data(WAKE);
            // SAFETY: the counter and the event belong to this value, whose `drop` waits for the end of this read, and
            // nothing else accesses the counter.
            unsafe { self.push(&entry) }?;
            self.is_wake_armed = true;
        }
        if !self.is_listening {
            let entry = PollAdd::new(Fd(self.listeners.as_raw_fd()), libc::POLLIN.cast_unsigned().into()).build();
            // SAFETY: a poll accesses no memory of this process.
            unsafe { self.push(&entry.user_data(LISTENERS)) }?;
            self.is_listening = true;
        }
        if self.failure.is_none() {
            self.enter(timeout)?;
            stats.system_calls += 1;
            self.take_ended(events, stats);
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let time = timeout.map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if let Some(time) = &time {
            arguments = arguments.timespec(time);
        }
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Err(error) => after_refusal(error),
            Ok(_) => Ok(()),
        }
    }

    fn take_ended(&mut self, events: &mut Vec<Event>, stats: &mut LoopStats) {
        for entry in self.ring.completion() {
            match entry.user_data() {
                WAKE => {
                    self.is_wake_armed = false;
                    match result_of(&entry, "to read the event by which other threads wake the loop up") {
                        Ok(_) => events.push(Event::Handle),
                        Err(error) => self.failure = self.failure.take().or(error),
                    }
                    continue;
                }
                LISTENERS => {
                    self.is_listening = false;
                    match result_of(&entry, "to wait for the listeners") {
                        Ok(_) => events.push(Event::Listeners),
                        Err(error) => self.failure = self.failure.take().or(error),
                    }
                    continue;
                }
                _ => {}
            }
            let index = usize::try_from(entry.user_data()).expect("64-bit system");
            let InFlight { number, transfer, .. } =
                self.in_flight[index].take().expect("the kernel reports each transfer once");
            self.free.push(index);
            let result = usize::try_from(entry.result());
            let result = result.map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            events.push(match transfer {
                Transfer::Receive(into) => {
                    stats.receives += 1;
                    let has_more = cqueue::sock_nonempty(entry.flags());
                    Event::Received { number, into, result, has_more }
                }
                Transfer::Send(outgoing, message) => {
                    stats.sends += 1;
                    self.spare.push(message);
                    Event::Sent { number, outgoing, result }
                }
                // Whatever the poll has found, the next send reports it.
                Transfer::Room(outgoing) => Event::Room { number, outgoing },
            });
        }
    }

    /// Adds an entry to the queue, which the kernel empties if it is full.
    ///
    /// # Errors
    /// The kernel's, if it takes no entries from the queue any more. It has not seen this entry and never will.
    ///
    /// # Safety
    /// If this succeeds, the memory and the file that the entry names stay valid until the kernel reports its end.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: as this function's caller promises.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            if let Err(error) = self.ring.submit() {
                after_refusal(error)?;
            }
        }
        Ok(())
    }
}

/// Pauses if the kernel may take the entries of the queue later; they stay there.
///
/// # Errors
/// The kernel's, if it never will.
fn after_refusal(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::ETIME) => Ok(()),
        // The kernel lacks memory.
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
            std::thread::sleep(PAUSE);
            Ok(())
        }
        _ => Err(failed("to hand transfers to io_uring", &error)),
    }
}

/// The result of an operation that the ring repeats. `Err(None)`: it has not happened, and is to be repeated.
fn result_of(entry: &cqueue::Entry, what: &str) -> Result<i32, Option<io::Error>> {
    match -entry.result() {
        ..=0 => Ok(entry.result()),
        libc::EINTR | libc::EAGAIN | libc::ENOMEM | libc::ECANCELED => {
            std::thread::sleep(PAUSE);
            Err(None)
        }
        errno => Err(Some(failed(what, &io::Error::from_raw_os_error(errno)))),
    }
}

fn failed(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the kernel refuses {what}: {error}"))
}

impl Drop for SocketRing {
    /// Ends the transfers in the kernel, and waits for it.
    fn drop(&mut self) {
        for transfer in self.in_flight.iter().flatten() {
            let _ = transfer.socket.shutdown(Shutdown::Both);
        }
        let (mut events, mut stats) = (Vec::new(), LoopStats::default());
        while self.is_wake_armed || self.in_flight.iter().any(Option::is_some) {
            if self.is_wake_armed {
                self.signal.wake();
            }
            if self.enter(None).is_err() {
                // The kernel may still access the buffers: they must never be freed.
                std::mem::forget(std::mem::take(&mut self.in_flight));
                std::mem::forget(std::mem::take(&mut self.wake_counter));
                return;
            }
            self.take_ended(&mut events, &mut stats);
            events.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Segment, Shared};
    use crate::loops::Loops;
    use std::io::Read as _;
    use std::mem::ManuallyDrop;
    use std::net::TcpListener;
    use std::os::fd::FromRawFd;

    /// A ring, unless the kernel refuses it; the tests of `tests/server` report that.
    fn ring() -> Option<SocketRing> {
        let signal = Arc::new(Signal::new(&Arc::new(Loops::default())).unwrap());
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        SocketRing::new(&signal, &Arc::new(epoll)).ok()
    }

    fn pair() -> (Arc<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Arc::new(listener.accept().unwrap().0), peer)
    }

    /// Everything that has ended by now.
    fn ended(ring: &mut SocketRing) -> Vec<Event> {
        let mut events = Vec::new();
        ring.wait(Some(Duration::ZERO), &mut events, &mut LoopStats::default()).unwrap();
        events
    }

    /// Sends until the sockets take no more. Returns the number of bytes that were sent; the others are in flight.
    fn fill(ring: &mut SocketRing, socket: &Arc<TcpStream>, bytes: &Arc<Vec<u8>>) -> usize {
        let mut outgoing = Outgoing::default();
        outgoing.push_segment(Segment::new(Shared::Heap(Arc::clone(bytes)), 0..bytes.len()), true);
        ring.send(1, socket, outgoing);
        let mut sent = 0;
        loop {
            let [Event::Sent { number: 1, outgoing, result }] = &mut ended(ring)[..] else { return sent };
            let count = *result.as_ref().unwrap();
            outgoing.sent(count);
            sent += count;
            ring.send(1, socket, std::mem::take(outgoing));
        }
    }

    #[test]
    fn a_dropped_ring_ends_its_transfers_and_frees_their_memory() {
        let Some(mut ring) = ring() else { return };
        let (socket, mut peer) = pair();
        // More than the buffers of two sockets hold.
        let bytes: Arc<Vec<u8>> = Arc::new((0..64_u32 << 20).map(|at| (at >> 8).to_le_bytes()[0]).collect());
        ring.receive(1, &socket, Destination::Buffer(vec![0; 4096]), true);
        let sent = fill(&mut ring, &socket, &bytes);
        assert!(sent > 0 && sent < bytes.len());
        assert_eq!((Arc::strong_count(&bytes), Arc::strong_count(&socket)), (2, 3));
        drop(ring);
        assert_eq!((Arc::strong_count(&bytes), Arc::strong_count(&socket)), (1, 1));
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        // The kernel may have sent more before the ring was dropped.
        assert!(received.len() >= sent && received == bytes[..received.len()]);
    }

    #[test]
    fn a_socket_that_is_shut_down_ends_its_transfers() {
        let Some(mut ring) = ring() else { return };
        let (socket, _peer) = pair();
        let bytes = Arc::new(vec![7; 64 << 20]);
        fill(&mut ring, &socket, &bytes);
        ring.receive(2, &socket, Destination::Buffer(vec![0; 4096]), true);
        socket.shutdown(Shutdown::Both).unwrap();
        let mut events = Vec::new();
        while events.len() < 2 {
            ring.wait(None, &mut events, &mut LoopStats::default()).unwrap();
        }
        let is_end = |event: &Event| matches!(event, Event::Received { number: 2, result: Ok(0), .. });
        let is_send = |event: &Event| matches!(event, Event::Sent { number: 1, .. });
        assert!(events.iter().any(is_end) && events.iter().any(is_send), "{events:?}");
        drop(events);
        assert_eq!((Arc::strong_count(&bytes), Arc::strong_count(&socket)), (1, 1));
    }

    #[test]
    fn more_transfers_than_entries_all_end() {
        let Some(mut ring) = ring() else { return };
        let pairs: Vec<_> = (0..ENTRIES + 10).map(|_| pair()).collect();
        for (number, (socket, _)) in (0..).zip(&pairs) {
            ring.receive(number, socket, Destination::Buffer(vec![0; 16]), number % 2 == 0);
        }
        for (number, (_, peer)) in (0_u32..).zip(&pairs) {
            std::io::Write::write_all(&mut &*peer, &number.to_le_bytes()).unwrap();
        }
        let (mut events, mut seen) = (Vec::new(), vec![false; pairs.len()]);
        while !seen.iter().all(|&seen| seen) {
            ring.wait(None, &mut events, &mut LoopStats::default()).unwrap();
            for event in events.drain(..) {
                let Event::Received { number, into: Destination::Buffer(buffer), result, .. } = event else { panic!() };
                let number = u32::try_from(number).unwrap();
                assert_eq!((result.unwrap(), &buffer[..4]), (4, &number.to_le_bytes()[..]));
                assert!(!std::mem::replace(&mut seen[number as usize], true));
            }
        }
    }

    /// Puts /dev/null in the place of a ring's descriptor: from then on the kernel refuses every call for it.
    fn break_ring(ring: &SocketRing) {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: the descriptor is the ring's, which stays open; it is not closed here.
        let mut own = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(ring.ring.as_raw_fd()) });
        rustix::io::dup2(&null, &mut own).unwrap();
    }

    /// Once, this was tried for ever.
    #[test]
    fn a_ring_whose_entries_the_kernel_refuses_fails_with_what_was_tried() {
        let Some(mut ring) = ring() else { return };
        let (socket, _peer) = pair();
        ended(&mut ring);
        break_ring(&ring);
        for number in 0..=u64::from(ENTRIES) {
            ring.receive(number, &socket, Destination::Buffer(vec![0; 16]), true);
        }
        assert_eq!(Arc::strong_count(&socket), 1 + ENTRIES as usize, "the last one is refused");
        let error = ring.wait(None, &mut Vec::new(), &mut LoopStats::default()).unwrap_err().to_string();
        assert!(error.starts_with("the kernel refuses to hand transfers to io_uring: "), "{error}");
    }

    /// Once, the results were ignored, and the loop asked again and again.
    #[test]
    fn a_ring_that_cannot_wait_for_the_loops_events_fails_with_what_was_tried() {
        // A descriptor that cannot be used is refused like a file that has failed.
        let unusable = || rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let epoll = Arc::new(epoll);
        let good = Arc::new(Signal::new(&Arc::new(Loops::default())).unwrap());
        let mut bad = Signal::new(&Arc::new(Loops::default())).unwrap();
        bad.event = unusable();
        let rings = [SocketRing::new(&Arc::new(bad), &epoll), SocketRing::new(&good, &Arc::new(unusable()))];
        let tried = ["to read the event by which other threads wake the loop up", "to wait for the listeners"];
        for (ring, tried) in rings.into_iter().zip(tried) {
            let Ok(mut ring) = ring else { return };
            let error = ring.wait(None, &mut Vec::new(), &mut LoopStats::default()).unwrap_err();
            assert_eq!(error.to_string(), format!("the kernel refuses {tried}: Bad file descriptor (os error 9)"));
        }
    }
}
