//! The kinds of ports: a guest's, or an interface of this system.

use crate::nic::Nic;
use crate::tap::Tap;
use std::sync::Arc;
use telpher_vhost::{DropReason, Packets, Port, Stats};

/// A port of the switch.
#[derive(Clone, Debug)]
pub enum End {
    /// A guest; absent until one connects.
    Guest(Arc<Port>),
    /// A TAP interface of this system.
    Tap(Arc<Tap>),
    /// A network interface of this system.
    Nic(Arc<Nic>),
}

impl End {
    /// Returns the number of queues that can be polled in parallel.
    pub fn queues(&self) -> usize {
        match self {
            End::Guest(port) => port.pairs(),
            End::Tap(tap) => tap.queues(),
            End::Nic(nic) => nic.queues(),
        }
    }

    /// Appends at most `most` received packets to `into`, in buffers from `spare`. Returns how many.
    #[inline]
    pub fn take(&self, queue: usize, into: &mut Packets, spare: &mut Packets, most: usize) -> usize {
        match self {
            End::Guest(port) => port.transmit(queue, into, spare, most),
            End::Tap(tap) => tap.take(queue, into, spare, most),
            End::Nic(nic) => nic.take(queue, into, spare, most),
        }
    }

    /// Starts to send packets, from the first on. Returns how many left the burst; the caller gets them back from
    /// [`collect`](End::collect).
    #[inline]
    pub fn submit(&self, queue: usize, packets: &mut Packets) -> usize {
        match self {
            End::Guest(port) => port.submit_enqueue_burst(queue, packets),
            End::Tap(tap) => tap.submit(queue, packets),
            End::Nic(nic) => nic.submit(queue, packets),
        }
    }

    /// Appends packets that were sent completely to `done`. Returns how many.
    #[inline]
    pub fn collect(&self, queue: usize, done: &mut Packets) -> usize {
        match self {
            End::Guest(port) => port.poll_enqueue_completed(queue, done),
            End::Tap(tap) => tap.collect(queue, done),
            End::Nic(nic) => nic.collect(queue, done),
        }
    }

    /// Returns, once, the address of a guest that migrated here and must be announced on the other side.
    #[inline]
    pub fn take_announcement(&self) -> Option<[u8; 6]> {
        match self {
            End::Guest(port) => port.take_announcement(),
            End::Tap(_) | End::Nic(_) => None,
        }
    }

    /// Returns the packets of all queues whose sending started and is known to have failed.
    pub fn refused(&self) -> u64 {
        match self {
            End::Guest(port) => {
                let of = |stats: Stats| stats.drops(DropReason::Short) + stats.drops(DropReason::Silent);
                (0..port.pairs()).map(|pair| of(port.stats(2 * pair))).sum()
            }
            End::Tap(tap) => tap.refused(),
            End::Nic(nic) => nic.refused(),
        }
    }

    /// Returns whether a receiver takes packets from this queue. Waits for a burst that another thread has started.
    pub fn is_there(&self, queue: usize) -> bool {
        match self {
            End::Guest(port) => port.is_running(2 * queue),
            End::Tap(tap) => tap.is_up(),
            End::Nic(nic) => nic.is_up(),
        }
    }
}
