//! Packets between a backend and a guest whose driver is DPDK's: each arrives once, whole, whatever the two agreed on.

use crate::backend::{Backend, Driven, Side, Socket, until, with_each_backend};
use crate::room::Room;
use crate::skip::skip;
use std::time::Duration;
use telpher_vhost::peers::{self, Counts, HugePages, LOOPING, Memory, Seat, Testpmd, Virtio, Work};

/// Packets that prove that they flow: rings many times around.
const ENOUGH: u64 = 100_000;
/// The shortest and the longest packets of an Ethernet without jumbo frames, without their checksum, and one that a threshold may divide.
const LENGTHS: [u32; 3] = [60, 512, 1514];
/// For a backend to come back, which looks for its guest once a second.
const RECONNECT: Duration = Duration::from_secs(10);

/// A backend and its guest. Dropped in this order.
struct Pair {
    guest: Driven,
    backend: Box<dyn Side>,
    who: Backend,
    socket: Socket,
    _pages: Option<HugePages>,
    room: Room,
}

impl Pair {
    /// Both, connected; `None`, and said, where they cannot run.
    fn start(test: &str, who: Backend, virtio: Virtio, memory: Memory) -> Option<Pair> {
        let missing = peers::missing().or_else(|| who.missing());
        let room = Room::take();
        // The guest's, and the backend's if it is one of the same kind.
        let needed = 2 * Seat { memory, ..room.seat("guest", 1) }.pages();
        let pages = missing.map_or_else(
            || if needed > 0 { HugePages::reserve(needed).map(Some).map_err(|why| why.to_string()) } else { Ok(None) },
            Err,
        );
        let pages = pages.map_err(|why| skip(test, &why)).ok()?;
        let Virtio { queues, server, .. } = virtio;
        let socket = Socket { queues, memory, client: server, ..Socket::new(&room, "socket") };
        let guest = || guest(&room, &virtio, &socket);
        let backend = || who.start(&room, std::slice::from_ref(&socket));
        // Who waits at the socket comes first.
        let (guest, backend) = if server {
            let (mut guest, backend) = (guest(), backend());
            guest.0.ready(RECONNECT).expect("a backend");
            (guest, backend)
        } else {
            let backend = backend();
            (guest(), backend)
        };
        Some(Pair { guest, backend, who, socket, _pages: pages, room })
    }

    /// Packets into the guest, out of it, and around.
    fn every_way(&mut self) {
        for len in LENGTHS {
            one_way(&mut *self.backend, &mut self.guest, len);
            one_way(&mut self.guest, &mut *self.backend, len);
        }
        around(&mut *self.backend, &mut self.guest, LENGTHS[1]);
    }

    /// Kills the backend and starts another at the same socket.
    fn another_backend(&mut self) {
        self.backend.kill();
        self.backend = self.who.start(&self.room, std::slice::from_ref(&self.socket));
    }
}

/// A guest at a socket.
fn guest(room: &Room, virtio: &Virtio, socket: &Socket) -> Driven {
    let seat = Seat { memory: socket.memory, ..room.seat("guest", 1) };
    Driven(Testpmd::guest(&seat, virtio, &[&socket.path]).unwrap_or_else(|error| panic!("{error}")))
}

/// Sends packets from one to the other. What is sent arrives.
fn one_way(from: &mut dyn Side, to: &mut dyn Side, len: u32) {
    let (from_before, to_before) = (from.counts(), to.counts());
    to.work(Work::Sink);
    from.work(Work::Source(len));
    until("packets arrive", || to.counts() - to_before, |now| now.received >= ENOUGH);
    from.rest();
    let sent = from.counts() - from_before;
    let arrived = until("all packets arrive", || to.counts() - to_before, |now| now.received == sent.sent);
    to.rest();
    let bytes = sent.sent * u64::from(len);
    assert_eq!(sent, Counts { sent: sent.sent, sent_bytes: bytes, ..Counts::default() });
    assert_eq!(arrived, Counts { received: sent.sent, received_bytes: bytes, ..Counts::default() });
    // No packet is on its way any more that would be taken for another's.
    assert_eq!((from.counts() - from_before, to.counts() - to_before), (sent, arrived));
}

/// Sends some packets around: none is lost, and none comes twice.
fn around(backend: &mut dyn Side, guest: &mut dyn Side, len: u32) {
    let (backend_before, guest_before) = (backend.counts(), guest.counts());
    guest.work(Work::Return);
    backend.work(Work::Begin(len));
    until("packets come around", || backend.counts() - backend_before, |now| now.received >= ENOUGH);
    backend.rest();
    let there = backend.counts() - backend_before;
    assert_eq!((there.sent, there.errors), (there.received + LOOPING, 0));
    let here = until("all packets arrive", || guest.counts() - guest_before, |now| now.received == there.sent);
    guest.rest();
    let here = Counts { sent: (guest.counts() - guest_before).sent, ..here };
    assert_eq!((here.sent, here.errors), (here.received, 0));
    assert_eq!(here.received_bytes, here.received * u64::from(len));
}

/// Everything, with what the two agreed on.
fn flows(test: &str, who: Backend, virtio: Virtio) {
    if let Some(mut pair) = Pair::start(test, who, virtio, Memory::Small) {
        pair.every_way();
    }
}

with_each_backend! {
    fn packets_flow_over_a_split_ring(who: Backend) {
        flows("packets_flow_over_a_split_ring", who, Virtio::SPLIT);
    }

    fn packets_flow_over_a_packed_ring(who: Backend) {
        flows("packets_flow_over_a_packed_ring", who, Virtio::PACKED);
    }

    fn packets_flow_over_a_split_ring_in_order(who: Backend) {
        flows("packets_flow_over_a_split_ring_in_order", who, Virtio { in_order: true, ..Virtio::SPLIT });
    }

    fn packets_flow_over_a_packed_ring_in_order(who: Backend) {
        let virtio = Virtio { in_order: true, mergeable: false, ..Virtio::PACKED };
        flows("packets_flow_over_a_packed_ring_in_order", who, virtio);
    }

    fn packets_flow_to_a_driver_with_vectors_over_a_split_ring(who: Backend) {
        let virtio = Virtio { mergeable: false, vectorised: true, ..Virtio::SPLIT };
        flows("packets_flow_to_a_driver_with_vectors_over_a_split_ring", who, virtio);
    }

    fn packets_flow_to_a_driver_with_vectors_over_a_packed_ring(who: Backend) {
        let test = "packets_flow_to_a_driver_with_vectors_over_a_packed_ring";
        let has = std::arch::is_x86_feature_detected!("avx512bw") && std::arch::is_x86_feature_detected!("avx512vl");
        if !has {
            return skip(test, "this processor has no AVX-512");
        }
        flows(test, who, Virtio { in_order: true, mergeable: false, vectorised: true, ..Virtio::PACKED });
    }

    fn packets_flow_over_a_packed_ring_of_1000(who: Backend) {
        flows("packets_flow_over_a_packed_ring_of_1000", who, Virtio { ring: 1000, ..Virtio::PACKED });
    }

    fn packets_flow_over_huge_pages(who: Backend) {
        let pair = Pair::start("packets_flow_over_huge_pages", who, Virtio::SPLIT, Memory::Huge);
        let Some(mut pair) = pair else { return };
        pair.every_way();
    }

    fn packets_flow_over_two_pairs_of_queues(who: Backend) {
        for virtio in [Virtio::SPLIT, Virtio::PACKED] {
            let virtio = Virtio { queues: 2, ..virtio };
            let Some(mut pair) = Pair::start("packets_flow_over_two_pairs_of_queues", who, virtio, Memory::Small) else { return };
            one_way(&mut *pair.backend, &mut pair.guest, LENGTHS[0]);
            one_way(&mut pair.guest, &mut *pair.backend, LENGTHS[0]);
            // Both were used, and no third.
            assert_eq!(pair.guest.0.queues_used(), 2);
        }
    }

    fn another_guest_comes_after_one_was_killed(who: Backend) {
        let test = "another_guest_comes_after_one_was_killed";
        let Some(mut pair) = Pair::start(test, who, Virtio::SPLIT, Memory::Small) else { return };
        one_way(&mut *pair.backend, &mut pair.guest, LENGTHS[1]);
        pair.guest.kill();
        pair.guest = guest(&pair.room, &Virtio::PACKED, &pair.socket);
        one_way(&mut *pair.backend, &mut pair.guest, LENGTHS[1]);
        one_way(&mut pair.guest, &mut *pair.backend, LENGTHS[1]);
        // Killed while packets go in, with its buffers in the backend's hands.
        pair.guest.work(Work::Sink);
        pair.backend.work(Work::Source(LENGTHS[1]));
        pair.guest.kill();
        pair.guest = guest(&pair.room, &Virtio::SPLIT, &pair.socket);
        some(&mut *pair.backend, &mut pair.guest);
        some(&mut pair.guest, &mut *pair.backend);
        assert!(pair.guest.runs() && pair.backend.runs());
    }

    fn a_backend_killed_at_rest_is_followed_by_another(who: Backend) {
        killed_at_rest("a_backend_killed_at_rest_is_followed_by_another", who, Virtio::SPLIT);
    }

    fn a_backend_killed_at_rest_is_followed_by_another_with_packed_rings(who: Backend) {
        killed_at_rest("a_backend_killed_at_rest_is_followed_by_another_with_packed_rings", who, Virtio::PACKED);
    }

    fn a_backend_killed_at_work_is_followed_by_another(who: Backend) {
        killed_at_work("a_backend_killed_at_work_is_followed_by_another", who, Virtio::SPLIT);
    }

    fn a_backend_killed_at_work_is_followed_by_another_with_packed_rings(who: Backend) {
        killed_at_work("a_backend_killed_at_work_is_followed_by_another_with_packed_rings", who, Virtio::PACKED);
    }
}

/// Sends packets from one to the other, which may get others, too, that were on their way.
fn some(from: &mut dyn Side, to: &mut dyn Side) {
    let before = to.counts();
    to.work(Work::Sink);
    from.work(Work::Source(LENGTHS[1]));
    let arrived = until("packets arrive", || to.counts() - before, |now| now.received >= ENOUGH);
    assert_eq!(arrived.errors, 0);
    from.rest();
    to.rest();
}

/// The guest waits at the socket; its backend dies with nothing on its way, so that nothing may be lost.
fn killed_at_rest(test: &str, who: Backend, virtio: Virtio) {
    let Some(mut pair) = Pair::start(test, who, Virtio { server: true, ..virtio }, Memory::Small) else { return };
    one_way(&mut *pair.backend, &mut pair.guest, LENGTHS[0]);
    one_way(&mut pair.guest, &mut *pair.backend, LENGTHS[0]);
    pair.another_backend();
    one_way(&mut *pair.backend, &mut pair.guest, LENGTHS[0]);
    one_way(&mut pair.guest, &mut *pair.backend, LENGTHS[0]);
}

/// The same with packets on their way.
fn killed_at_work(test: &str, who: Backend, virtio: Virtio) {
    let Some(mut pair) = Pair::start(test, who, Virtio { server: true, ..virtio }, Memory::Small) else { return };
    let before = pair.guest.counts();
    pair.guest.work(Work::Sink);
    pair.backend.work(Work::Source(LENGTHS[0]));
    until("packets arrive", || pair.guest.counts() - before, |now| now.received >= ENOUGH);
    pair.another_backend();
    some(&mut *pair.backend, &mut pair.guest);
    some(&mut pair.guest, &mut *pair.backend);
    // Killed while packets come out, now.
    pair.backend.work(Work::Sink);
    pair.guest.work(Work::Source(LENGTHS[0]));
    pair.another_backend();
    some(&mut pair.guest, &mut *pair.backend);
    some(&mut *pair.backend, &mut pair.guest);
    assert!(pair.guest.runs() && pair.backend.runs());
}
