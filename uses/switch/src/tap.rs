//! A port that is a TAP interface of this system; it exchanges frames with this system's network stack.
//!
//! It has as many queues as its peer has pairs. Each has its own file descriptor, so that threads share none. The
//! kernel chooses the queue of a frame by its flow, so that flows keep their order. It chooses among the queues whose
//! guest's queue is enabled, and the first: see [`Tap::follow`].
//!
//! Source: the kernel's Documentation/networking/tuntap.rst. Whole frames without a header, read and written
//! non-blocking.

use crate::error::SwitchError;
use crate::interface;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use telpher_vhost::{PacketPool, Packets};

/// The longest name of an interface. Source: `IFNAMSIZ` of linux/if.h, without the terminating zero.
const LONGEST_NAME: usize = 15;

/// A TAP interface.
#[derive(Debug)]
pub struct Tap {
    queues: Box<[Queue]>,
    name: String,
    /// Bytes of the longest frame; buffers have one byte more, to recognise longer frames.
    longest: u32,
    /// Whether the interface was down at the last write.
    down: AtomicBool,
    /// Frames that the interface refused because they are too short.
    refused: AtomicU64,
    /// Frames from the interface that are too long.
    long: AtomicU64,
}

/// One queue of the interface.
#[derive(Debug)]
struct Queue {
    file: File,
    /// Whether the kernel sends frames through it.
    used: AtomicBool,
    /// Written frames that were not collected yet.
    written: Mutex<Packets>,
}

impl Tap {
    /// Opens or creates the interface with `queues` queues. Unless it is persistent, it vanishes when this value is
    /// dropped. Frames have at most `longest` bytes, and the pool's buffers one byte more.
    pub fn open(name: &str, queues: usize, pool: &PacketPool, longest: u32) -> Result<Tap, SwitchError> {
        let odd = |c: char| c.is_whitespace() || c.is_control() || ['/', ':', '%'].contains(&c);
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains(odd) || [".", ".."].contains(&name) {
            return Err(SwitchError::TapName(name.to_owned()));
        }
        let refused = |source| SwitchError::Tap { name: name.into(), remedy: remedy(&source, queues), source };
        let queue = |_| {
            let (file, used) = (open(name, queues)?, AtomicBool::new(true));
            Ok(Queue { file, used, written: Mutex::new(pool.empty(0)) })
        };
        let queues = (0..queues).map(queue).collect::<io::Result<_>>().map_err(refused)?;
        let (refused, long) = (AtomicU64::new(0), AtomicU64::new(0));
        let tap = Tap { queues, name: name.to_owned(), longest, down: AtomicBool::new(false), refused, long };
        tap.follow(|_| false);
        Ok(tap)
    }

    /// Lets the kernel send through the queues that have a receiver, and the first; otherwise frames of other flows
    /// would be lost. Called only by the thread that manages all ports.
    pub fn follow(&self, is_there: impl Fn(usize) -> bool) {
        for (index, queue) in self.queues.iter().enumerate().skip(1) {
            let used = is_there(index);
            // Relaxed: only that thread reads it. A refused change is tried again.
            if queue.used.load(Ordering::Relaxed) != used && interface::use_tap_queue(&queue.file, used).is_ok() {
                queue.used.store(used, Ordering::Relaxed);
            }
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

    /// Receives frames that this system sends through a queue.
    pub fn take(&self, queue: usize, into: &mut Packets, spare: &mut Packets, most: usize) -> usize {
        let mut taken = 0;
        for _ in 0..most {
            if spare.is_empty() {
                break;
            }
            spare.resize(0, self.longest + 1);
            let Some(room) = spare.get_mut(0) else { break };
            let Ok(read @ 1..) = (&self.queues[queue].file).read(room) else { break };
            match u32::try_from(read) {
                Ok(len) if len <= self.longest => {
                    spare.resize(0, len);
                    spare.move_to(1, into);
                    taken += 1;
                }
                // Relaxed, as all counts here: they publish no other data.
                _ => drop(self.long.fetch_add(1, Ordering::Relaxed)),
            }
        }
        taken
    }

    /// Sends frames to this system, from the first on. Frames for which the system has no room stay in the burst; all
    /// stay while the interface is down.
    pub fn submit(&self, queue: usize, packets: &mut Packets) -> usize {
        let Queue { file, written, .. } = &self.queues[queue];
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        let before = packets.len();
        while let Some(packet) = packets.get(0) {
            match { file }.write(packet) {
                Ok(_) => {
                    self.down.store(false, Ordering::Relaxed);
                    packets.move_to(1, &mut written);
                }
                // Shorter than an Ethernet header.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    let kept = written.len();
                    packets.move_to(1, &mut written);
                    written.truncate(kept);
                }
                Err(error) => {
                    self.down.store(error.kind() != io::ErrorKind::WouldBlock, Ordering::Relaxed);
                    break;
                }
            }
        }
        before - packets.len()
    }

    /// Returns the frames sent through a queue since the last call.
    pub fn collect(&self, queue: usize, done: &mut Packets) -> usize {
        let mut written = self.queues[queue].written.lock().unwrap_or_else(PoisonError::into_inner);
        let count = written.len();
        written.move_to(count, done);
        count
    }

    /// Returns whether the interface was up at the last write.
    pub fn is_up(&self) -> bool {
        !self.down.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that the interface refused as too short.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the number of frames from the interface that were too long.
    pub fn long(&self) -> u64 {
        self.long.load(Ordering::Relaxed)
    }
}

/// Opens one queue of an interface with `many` queues.
fn open(name: &str, queues: usize) -> io::Result<File> {
    match interface::tap(name, queues > 1) {
        // The interface was created with several queues; one queue is allowed.
        Err(error) if queues == 1 && error.raw_os_error() == Some(libc::EINVAL) => {
            interface::tap(name, true).or(Err(error))
        }
        opened => opened,
    }
}

/// Returns advice if the system refuses an interface with several queues.
fn remedy(error: &io::Error, queues: usize) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "make it as root first and give it away (ip tuntap add NAME mode tap user YOU), or run this as root"
        }
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => "load the kernel's module first (modprobe tun)",
        Some(libc::EINVAL) if queues > 1 => {
            "an interface of that name is no TAP interface, or one of a single queue, and its guest has several; make \
             it anew (ip tuntap add NAME mode tap multi_queue), give another name, or give its partner queues=1"
        }
        Some(libc::E2BIG) => "it has as many queues as the kernel allows already; give its partner fewer (queues=N)",
        Some(libc::EBUSY) => "another program has it; end that, or give another name",
        Some(libc::EINVAL) => "an interface of that name is no TAP interface; give another name",
        _ => "give another name, or do without",
    }
}
