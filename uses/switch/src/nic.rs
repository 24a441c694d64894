//! A port on a network interface of this system: a physical network card, or one side of a veth pair.
//!
//! It has as many queues as its peer has pairs. Each queue has a socket that receives and one that sends. The kernel
//! divides received frames among the queues by their flow, so that flows keep their order. A queue whose guest's queue
//! does not run is served by the first: see [`Nic::follow`].
//!
//! Guests get complete packets: checksums that the sender left to its network card are completed here, and large frames
//! are divided.
//!
//! While the interface is down, or was removed, the port has no receiver. It takes the interface again when it is back:
//! see [`Nic::watch`].

use crate::error::SwitchError;
use crate::packet_socket::{FanoutGroup, Found, Inquiry, Receiver, Sender};
use crate::segments::{OFFLOAD_BYTES, Offload, Segments, TAG_AT};
use crate::stats::NicStats;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_vhost::{PacketPool, Packets};

/// Slots of a queue's ring. Source: chosen, as many frames as a guest's largest usual ring holds, twice.
const SLOTS: usize = 2048;
/// The most bytes of a large frame. Source: 64 KiB of IP, and the headers before it (IEEE 802.3 §3, 802.1Q §9.6).
const LARGEST: usize = (64 << 10) + 32;

/// A network interface.
#[derive(Debug)]
pub struct Nic {
    queues: Box<[Queue]>,
    name: String,
    /// Bytes of the longest frame.
    longest: u32,
    /// The state of the interface, as [`NicState`] numbers them.
    state: AtomicU8,
    /// Whether the last frame could not be sent.
    unsent: AtomicBool,
    counters: Counters,
    /// What finds the interface, and the number of the interface that the sockets are for.
    inquiry: Mutex<(Inquiry, Option<i32>)>,
}

/// The state of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicState {
    /// It is up.
    Up,
    /// It is down.
    Down,
    /// There is none of that name.
    Absent,
}

/// One queue of the interface.
#[derive(Debug)]
struct Queue {
    input: Mutex<Input>,
    output: Mutex<Output>,
    /// Whether its guest's queue runs.
    used: AtomicBool,
}

/// What receives frames.
#[derive(Debug)]
struct Input {
    receiver: Option<Receiver>,
    /// The receiver after this one, once this has no frames left: the interface was removed and is back.
    following: Option<Receiver>,
    segments: Segments,
    /// Room for a large frame and its offload header.
    large: Box<[u8]>,
}

/// What sends frames.
#[derive(Debug)]
struct Output {
    sender: Option<Sender>,
    /// Frames that were sent and not collected yet.
    sent: Packets,
}

/// The counts of an interface.
#[derive(Debug, Default)]
struct Counters {
    short: AtomicU64,
    above_mtu: AtomicU64,
    long: AtomicU64,
    ring_full: AtomicU64,
    cut: AtomicU64,
    indivisible: AtomicU64,
    divided: AtomicU64,
    completed: AtomicU64,
    changes: AtomicU64,
}

impl Counters {
    /// Relaxed, as all accesses to the counts: they publish no other data.
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

impl Nic {
    /// Opens an existing interface with `queues` queues. It may be down. Frames have at most `longest` bytes.
    pub fn open(name: &str, queues: usize, pool: &PacketPool, longest: u32) -> Result<Nic, SwitchError> {
        let refused = |source: io::Error| SwitchError::Interface { name: name.into(), remedy: remedy(&source), source };
        let inquiry = Inquiry::open().map_err(refused)?;
        let found = inquiry.find(name).map_err(refused)?;
        let Found { ethernet, .. } = found.ok_or_else(|| refused(io::Error::from_raw_os_error(libc::ENODEV)))?;
        if !ethernet {
            return Err(refused(io::Error::from_raw_os_error(libc::EMEDIUMTYPE)));
        }
        let queue = |_| Queue {
            input: Mutex::new(Input {
                receiver: None,
                following: None,
                segments: Segments::default(),
                large: vec![0; OFFLOAD_BYTES + LARGEST].into(),
            }),
            output: Mutex::new(Output { sender: None, sent: pool.empty(0) }),
            used: AtomicBool::new(true),
        };
        let nic = Nic {
            queues: (0..queues).map(queue).collect(),
            name: name.to_owned(),
            longest,
            state: AtomicU8::new(NicState::Down as u8),
            unsent: AtomicBool::new(false),
            counters: Counters::default(),
            inquiry: Mutex::new((inquiry, None)),
        };
        nic.look().map_err(refused)?;
        nic.counters.changes.store(0, Ordering::Relaxed);
        Ok(nic)
    }

    /// Looks whether the interface is still there and up, and takes it again if it was removed and is back. Called
    /// only by the thread that manages all ports.
    pub fn watch(&self) {
        // What the kernel refuses now, it is asked for again at the next call; until then the state is not `Up`.
        let _ = self.look();
    }

    fn look(&self) -> io::Result<()> {
        let mut inquiry = lock(&self.inquiry);
        let (socket, taken) = &mut *inquiry;
        let (state, result) = match socket.find(&self.name)? {
            None => {
                // It may also have another name now, or be in another namespace. If it comes back, it gets new sockets,
                // and these must not receive its frames as well.
                if taken.take().is_some() {
                    self.queues.iter().for_each(|queue| lock(&queue.input).stop());
                }
                (NicState::Absent, Ok(()))
            }
            Some(Found { up: false, .. }) => (NicState::Down, Ok(())),
            Some(Found { index, .. }) if *taken == Some(index) => (NicState::Up, Ok(())),
            Some(Found { index, .. }) => match self.take_interface(index) {
                Ok(()) => {
                    *taken = Some(index);
                    (NicState::Up, Ok(()))
                }
                Err(error) => (NicState::Down, Err(error)),
            },
        };
        // Relaxed, as in `state`: it publishes no other data.
        if self.state.swap(state as u8, Ordering::Relaxed) != state as u8 {
            Counters::add(&self.counters.changes, 1);
        }
        result
    }

    /// Opens the sockets of all queues.
    fn take_interface(&self, index: i32) -> io::Result<()> {
        let shared = self.queues.len() > 1;
        let mut group: Option<FanoutGroup> = None;
        let mut sockets = Vec::new();
        for _ in &self.queues {
            // The room of a tag, which the kernel takes out, is not needed.
            let receiver = Receiver::open(self.longest as usize, SLOTS)?;
            group = receiver.start(index, shared, group)?;
            sockets.push((receiver, Sender::open(index)?));
        }
        for (queue, (receiver, sender)) in self.queues.iter().zip(sockets) {
            if shared {
                receiver.admit()?;
            }
            let mut input = lock(&queue.input);
            if input.receiver.is_some() {
                input.following = Some(receiver);
            } else {
                input.receiver = Some(receiver);
            }
            drop(input);
            lock(&queue.output).sender = Some(sender);
        }
        Ok(())
    }

    /// Lets the first queue serve the queues that have no receiver. Called only by the thread that manages all ports.
    pub fn follow(&self, is_there: impl Fn(usize) -> bool) {
        for (index, queue) in self.queues.iter().enumerate().skip(1) {
            // Relaxed: the receivers are locked.
            queue.used.store(is_there(index), Ordering::Relaxed);
        }
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of queues that can be polled in parallel.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Receives packets that arrived at the interface.
    pub fn take(&self, queue: usize, into: &mut Packets, spare: &mut Packets, most: usize) -> usize {
        let mut taken = 0;
        if queue > 0 {
            if self.queues[queue].used.load(Ordering::Relaxed) {
                taken = lock(&self.queues[queue].input).take(self, into, spare, most);
            }
            return taken;
        }
        for queue in &self.queues {
            // The first is always served here.
            if !std::ptr::eq(queue, &raw const self.queues[0]) && queue.used.load(Ordering::Relaxed) {
                continue;
            }
            taken += lock(&queue.input).take(self, into, spare, most - taken);
        }
        taken
    }

    /// Sends packets from the first on. Those for which the interface has no room stay in the burst; all stay while it
    /// is down or absent.
    pub fn submit(&self, queue: usize, packets: &mut Packets) -> usize {
        let mut output = lock(&self.queues[queue].output);
        let Output { sender, sent } = &mut *output;
        let Some(sender) = sender else {
            self.unsent.store(true, Ordering::Relaxed);
            return 0;
        };
        let before = packets.len();
        while !packets.is_empty() {
            let refusal = match sender.send(packets) {
                Ok(count) => {
                    packets.move_to(count, sent);
                    self.unsent.store(false, Ordering::Relaxed);
                    continue;
                }
                Err(error) => error,
            };
            let counter = match refusal.raw_os_error() {
                // The socket or the interface has no room now.
                Some(libc::EAGAIN | libc::ENOBUFS) => break,
                Some(libc::EINTR) => continue,
                Some(libc::EINVAL) => &self.counters.short,
                Some(libc::EMSGSIZE) => &self.counters.above_mtu,
                // Down (ENETDOWN) or removed (ENXIO).
                _ => {
                    self.unsent.store(true, Ordering::Relaxed);
                    break;
                }
            };
            Counters::add(counter, 1);
            let kept = sent.len();
            packets.move_to(1, sent);
            sent.truncate(kept);
        }
        before - packets.len()
    }

    /// Returns the packets sent through a queue since the last call.
    pub fn collect(&self, queue: usize, done: &mut Packets) -> usize {
        let mut output = lock(&self.queues[queue].output);
        let count = output.sent.len();
        output.sent.move_to(count, done);
        count
    }

    /// Returns whether the interface was up when it was last looked at, and took the last packet.
    pub fn is_up(&self) -> bool {
        self.state() == NicState::Up && !self.unsent.load(Ordering::Relaxed)
    }

    /// Returns the state of the interface when it was last looked at.
    pub fn state(&self) -> NicState {
        match self.state.load(Ordering::Relaxed) {
            state if state == NicState::Up as u8 => NicState::Up,
            state if state == NicState::Down as u8 => NicState::Down,
            _ => NicState::Absent,
        }
    }

    /// Returns the number of packets whose sending started and that the interface refused.
    pub fn refused(&self) -> u64 {
        [&self.counters.short, &self.counters.above_mtu].map(|counter| counter.load(Ordering::Relaxed)).iter().sum()
    }

    /// Returns its counts.
    pub fn stats(&self) -> NicStats {
        for queue in &self.queues {
            let input = lock(&queue.input);
            for receiver in [&input.receiver, &input.following].into_iter().flatten() {
                Counters::add(&self.counters.ring_full, receiver.dropped());
            }
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        NicStats {
            short: read(&counters.short),
            above_mtu: read(&counters.above_mtu),
            long: read(&counters.long),
            ring_full: read(&counters.ring_full),
            cut: read(&counters.cut),
            indivisible: read(&counters.indivisible),
            divided: read(&counters.divided),
            completed: read(&counters.completed),
            changes: read(&counters.changes),
        }
    }
}

impl Input {
    fn stop(&self) {
        for receiver in [&self.receiver, &self.following].into_iter().flatten() {
            // The socket of an interface that is gone may refuse it, and receives nothing either way.
            let _ = receiver.stop();
        }
    }

    /// Appends at most `most` packets to `into`, in buffers from `spare`. Returns how many.
    #[inline]
    fn take(&mut self, nic: &Nic, into: &mut Packets, spare: &mut Packets, most: usize) -> usize {
        let (counters, longest) = (&nic.counters, nic.longest as usize);
        let Input { receiver, following, segments, large } = self;
        let mut taken = 0;
        while taken < most && !spare.is_empty() {
            if let Some(len) = segments.next_len() {
                if len > longest {
                    segments.skip();
                    Counters::add(&counters.long, 1);
                } else if let Some(packet) = make_room(spare, len) {
                    segments.write(packet);
                    spare.move_to(1, into);
                    taken += 1;
                }
                continue;
            }
            let Some(current) = receiver else { break };
            let Some(frame) = current.peek() else {
                let Some(next) = following.take() else { break };
                Counters::add(&counters.ring_full, current.dropped());
                *current = next;
                continue;
            };
            let (mut bytes, mut offload, mut is_cut) = (frame.bytes, Offload::parse(frame.offload), frame.is_cut);
            if frame.in_socket {
                // The socket has it: the kernel puts it there before it marks the slot.
                let len = current.receive_whole(large).unwrap_or(usize::MAX);
                is_cut = len > large.len();
                if let Some((header, whole)) = large[..len.min(large.len())].split_first_chunk() {
                    (bytes, offload) = (whole, Offload::parse(header));
                }
            }
            let tag = frame.tag.filter(|_| bytes.len() >= TAG_AT);
            let len = bytes.len() + tag.map_or(0, |tag| tag.len());
            if is_cut {
                Counters::add(&counters.cut, 1);
            } else if offload.is_large() {
                match segments.begin(bytes, tag, offload) {
                    Ok(()) => Counters::add(&counters.divided, 1),
                    Err(_) => Counters::add(&counters.indivisible, 1),
                }
            } else if len > longest {
                Counters::add(&counters.long, 1);
            } else if let Some(packet) = make_room(spare, len) {
                if let Some(tag) = tag {
                    packet[..TAG_AT].copy_from_slice(&bytes[..TAG_AT]);
                    packet[TAG_AT..TAG_AT + tag.len()].copy_from_slice(&tag);
                    packet[TAG_AT + tag.len()..].copy_from_slice(&bytes[TAG_AT..]);
                } else {
                    packet.copy_from_slice(bytes);
                }
                if offload.needs_checksum() {
                    let offload = if tag.is_some() { offload.moved_by(4) } else { offload };
                    // A checksum outside of the frame is the sender's mistake; the guest gets the frame as it is.
                    Counters::add(&counters.completed, u64::from(offload.complete(packet)));
                }
                spare.move_to(1, into);
                taken += 1;
            }
            current.give_back();
        }
        taken
    }
}

/// Returns the first spare buffer, with `len` bytes, which fit it.
#[inline]
fn make_room(spare: &mut Packets, len: usize) -> Option<&mut [u8]> {
    spare.resize(0, u32::try_from(len).ok()?);
    spare.get_mut(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns advice if the system refuses an interface.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run this as root, or give the program the right to use packet sockets (setcap cap_net_raw+ep FILE)"
        }
        Some(libc::ENODEV | libc::ENXIO) => "'ip link' lists the interfaces of this system; name one of them",
        Some(libc::EMEDIUMTYPE) => "its frames have no Ethernet header; name another one",
        Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => "load the kernel's module first (modprobe af_packet)",
        Some(libc::ENOMEM | libc::ENOBUFS) => "the kernel has no memory for its rings; give its partner fewer queues",
        Some(libc::ENOPROTOOPT | libc::EINVAL) => "the kernel is too old for it (Linux 5.16 has all that is needed)",
        _ => "name another one, or do without",
    }
}
