//! A backend and a guest with DPDK's driver, and the packet directions between them.

use crate::backend::{Backend, Driven, Endpoint, Socket, until};
use crate::peer_slot::PeerSlot;
use crate::skip::skip;
use std::time::{Duration, Instant};
use telpher_vhost::peers::{self, Counts, HugePages, LOOPING, Memory, Testpmd, TestpmdSetup, Virtio, Work};

/// Enough packets to prove that they flow: many times the ring size.
pub(crate) const ENOUGH: u64 = 100_000;
/// The shortest and the longest packets of Ethernet without jumbo frames, without their checksum, and a length near a
/// threshold.
pub(crate) const LENGTHS: [u32; 3] = [60, 512, 1514];
/// The time for a backend to reconnect: DPDK's looks for its guest once a second, and both may be slow.
const RECONNECT: Duration = Duration::from_secs(60);

/// A backend and its guest. Fields are dropped in this order.
pub(crate) struct Pair {
    pub(crate) guest: Driven,
    pub(crate) backend: Box<dyn Endpoint>,
    kind: Backend,
    virtio: Virtio,
    socket: Socket,
    _pages: Option<HugePages>,
    slot: PeerSlot,
}

impl Pair {
    /// Both, connected; `None`, with a message, if they cannot run here.
    pub(crate) fn start(test: &str, kind: Backend, virtio: Virtio) -> Option<Pair> {
        Pair::with_memory(test, kind, virtio, Memory::Small)
    }

    /// Like `new`, with a guest, and perhaps a backend, in this memory.
    pub(crate) fn with_memory(test: &str, kind: Backend, virtio: Virtio, memory: Memory) -> Option<Pair> {
        let slot = PeerSlot::take();
        let missing = peers::missing().or_else(|| kind.missing());
        let needed = 2 * TestpmdSetup { memory, ..slot.seat("guest", 1) }.pages();
        let pages = match missing {
            None if needed > 0 => HugePages::reserve(needed).map(Some).map_err(|why| why.to_string()),
            None => Ok(None),
            Some(why) => Err(why),
        };
        let pages = pages.map_err(|why| skip(test, &why)).ok()?;
        let Virtio { queues, server, .. } = virtio;
        let socket = Socket { queues, memory, client: server, ..Socket::new(&slot, "socket") };
        let guest = || guest(&slot, &virtio, &socket);
        let backend = || kind.start(&slot, std::slice::from_ref(&socket));
        // The side that listens starts first.
        let (guest, backend) = if server {
            let (mut guest, backend) = (guest(), backend());
            guest.0.ready(RECONNECT).expect("a backend");
            (guest, backend)
        } else {
            let backend = backend();
            (guest(), backend)
        };
        Some(Pair { guest, backend, kind, virtio, socket, _pages: pages, slot })
    }

    /// Packets into the guest, out of it, and around.
    pub(crate) fn every_way(&mut self) {
        for len in LENGTHS {
            self.send(len);
            self.take(len);
        }
        self.around(LENGTHS[2]);
    }

    /// Sends packets to the guest. All must arrive.
    pub(crate) fn send(&mut self, len: u32) {
        one_way(&mut *self.backend, Work::Source(len), &mut self.guest, len);
    }

    /// Makes the guest send packets. All must arrive.
    pub(crate) fn take(&mut self, len: u32) {
        one_way(&mut self.guest, Work::Numbered(len), &mut *self.backend, len);
    }

    /// Lets some packets circulate: none is lost, changed, duplicated or reordered.
    pub(crate) fn around(&mut self, len: u32) {
        let Pair { guest, backend, .. } = self;
        let (backend_before, guest_before) = (backend.counts(), guest.counts());
        guest.work(Work::Return);
        backend.work(Work::Begin(len));
        until("packets come around", || backend.counts() - backend_before, |now| now.received >= ENOUGH);
        backend.rest();
        let there = backend.counts() - backend_before;
        let looping = LOOPING * u64::from(self.virtio.queues);
        assert_eq!((there.sent, there.errors), (there.received + looping, 0));
        let here = until("all packets arrive", || guest.counts() - guest_before, |now| now.received == there.sent);
        guest.rest();
        let here = Counts { sent: (guest.counts() - guest_before).sent, ..here };
        assert_eq!((here.sent, here.errors, here.received_bytes), (here.received, 0, there.sent_bytes));
    }

    /// Sends packets to the guest, which may also get packets that were in flight.
    pub(crate) fn some_sent(&mut self, len: u32) {
        some(&mut *self.backend, Work::Source(len), &mut self.guest);
    }

    /// The same out of the guest.
    pub(crate) fn some_taken(&mut self, len: u32) {
        some(&mut self.guest, Work::Numbered(len), &mut *self.backend);
    }

    /// Kills the backend and starts another at the same socket, where the guest listens. When this returns the guest
    /// has finished its reaction; a guest with packed rings has stopped forwarding.
    ///
    /// Reason, in DPDK 22.11: for a packed ring, the thread that notices the new backend frees all buffers in the
    /// driver's rings and fills the rings again (`virtio_user_dev_reset_queues_packed`). It tells the polling thread by
    /// a flag to pause, and gives it a millisecond to finish its current burst. If the polling thread is preempted
    /// meanwhile, it continues afterwards in changed rings. In 4 of 145 runs of five kills no packet came out of the
    /// guest any more. So the guest does not poll during this time, and packets wait in the rings.
    pub(crate) fn another_backend(&mut self) {
        if self.virtio.packed {
            self.guest.rest();
        }
        let before = self.guest.0.reconnections();
        self.backend.kill();
        self.backend = self.kind.start(&self.slot, std::slice::from_ref(&self.socket));
        let deadline = Instant::now() + RECONNECT;
        while self.guest.0.reconnections() == before {
            assert!(
                Instant::now() < deadline && self.guest.0.runs(),
                "the guest has not come to terms with another backend"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills the guest and starts another, with this device, at the same socket.
    pub(crate) fn another_guest(&mut self, virtio: Virtio) {
        self.guest.kill();
        self.guest = guest(&self.slot, &virtio, &self.socket);
    }
}

fn guest(slot: &PeerSlot, virtio: &Virtio, socket: &Socket) -> Driven {
    let seat = TestpmdSetup { memory: socket.memory, ..slot.seat("guest", 1) };
    Driven(Testpmd::guest(&seat, virtio, &[&socket.path]).unwrap_or_else(|error| panic!("{error}")))
}

fn one_way(from: &mut dyn Endpoint, work: Work, to: &mut dyn Endpoint, len: u32) {
    let (from_before, to_before) = (from.counts(), to.counts());
    to.work(Work::Sink);
    from.work(work);
    until("packets arrive", || to.counts() - to_before, |now| now.received >= ENOUGH);
    from.rest();
    let sent = from.counts() - from_before;
    let arrived = until("all packets arrive", || to.counts() - to_before, |now| now.received == sent.sent);
    to.rest();
    let bytes = sent.sent * u64::from(len);
    assert_eq!(sent, Counts { sent: sent.sent, sent_bytes: bytes, ..Counts::default() });
    assert_eq!(arrived, Counts { received: sent.sent, received_bytes: bytes, ..Counts::default() });
    // No packet is in flight any more that could be counted for another test.
    assert_eq!((from.counts() - from_before, to.counts() - to_before), (sent, arrived));
}

fn some(from: &mut dyn Endpoint, work: Work, to: &mut dyn Endpoint) {
    let before = to.counts();
    to.work(Work::Sink);
    from.work(work);
    let arrived = until("packets arrive", || to.counts() - before, |now| now.received >= ENOUGH);
    assert_eq!(arrived.errors, 0);
    from.rest();
    to.rest();
}
