//! Where packets come from and go to: a guest's port, or an interface of this system.

use crate::tap::Tap;
use std::sync::Arc;
use telpher_vhost::{Drop, Packets, Port, Stats};

/// One side of a switch.
#[derive(Clone, Debug)]
pub enum End {
    /// A guest, or nobody until one comes.
    Guest(Arc<Port>),
    /// This system.
    Tap(Arc<Tap>),
}

impl End {
    /// Queues that can be polled side by side.
    pub fn queues(&self) -> usize {
        match self {
            End::Guest(port) => port.pairs(),
            End::Tap(tap) => tap.queues(),
        }
    }

    /// Appends packets that have come to `into`, at most `most`, in buffers of `spare`. Returns how many.
    #[inline]
    pub fn take(&self, queue: usize, into: &mut Packets, spare: &mut Packets, most: usize) -> usize {
        match self {
            End::Guest(port) => port.transmit(queue, into, spare, most),
            End::Tap(tap) => tap.take(queue, into, spare, most),
        }
    }

    /// Begins to give packets, from the first on. Returns how many left the row; whoever called asks [`collect`](End::collect) for them later.
    #[inline]
    pub fn submit(&self, queue: usize, packets: &mut Packets) -> usize {
        match self {
            End::Guest(port) => port.submit_enqueue_burst(queue, packets),
            End::Tap(tap) => tap.submit(queue, packets),
        }
    }

    /// Appends packets that are through to `done`. Returns how many.
    #[inline]
    pub fn collect(&self, queue: usize, done: &mut Packets) -> usize {
        match self {
            End::Guest(port) => port.poll_enqueue_completed(queue, done),
            End::Tap(tap) => tap.collect(queue, done),
        }
    }

    /// The address of a guest that has moved here and is to be announced on the other side, once.
    #[inline]
    pub fn take_announcement(&self) -> Option<[u8; 6]> {
        match self {
            End::Guest(port) => port.take_announcement(),
            End::Tap(_) => None,
        }
    }

    /// Packets whose way to it began and that did not get there, as is known: of all queues.
    pub fn refused(&self) -> u64 {
        match self {
            End::Guest(port) => {
                let of = |stats: Stats| stats.drops(Drop::Short) + stats.drops(Drop::Silent);
                (0..port.pairs()).map(|pair| of(port.stats(2 * pair))).sum()
            }
            End::Tap(tap) => tap.refused(),
        }
    }

    /// Whether there is anybody to take packets from this queue. Waits for a burst that another thread has begun.
    pub fn is_there(&self, queue: usize) -> bool {
        match self {
            End::Guest(port) => port.is_running(2 * queue),
            End::Tap(tap) => tap.is_up(),
        }
    }
}
