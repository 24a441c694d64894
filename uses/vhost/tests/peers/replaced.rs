//! A backend or a guest that is killed and replaced: packets flow again.

use crate::backend::{Backend, Endpoint, until, with_each_backend};
use crate::pair::{ENOUGH, LENGTHS, Pair};
use telpher_vhost::peers::{Virtio, Work};

with_each_backend! {
    fn a_killed_guest_is_replaced(kind: Backend) {
        let test = "a_killed_guest_is_replaced";
        let Some(mut pair) = Pair::start(test, kind, Virtio::SPLIT) else { return };
        pair.send(LENGTHS[1]);
        pair.another_guest(Virtio::PACKED);
        pair.send(LENGTHS[1]);
        pair.take(LENGTHS[1]);
        // Killed while packets flow to the guest, with its buffers held by the backend.
        pair.guest.work(Work::Sink);
        pair.backend.work(Work::Source(LENGTHS[1]));
        pair.another_guest(Virtio::SPLIT);
        pair.some_sent(LENGTHS[1]);
        pair.some_taken(LENGTHS[1]);
        assert!(pair.guest.runs() && pair.backend.runs());
    }

    fn a_backend_killed_while_idle_is_replaced(kind: Backend) {
        killed_at_rest("a_backend_killed_while_idle_is_replaced", kind, Virtio::SPLIT);
    }

    fn a_backend_killed_while_idle_is_replaced_with_packed_rings(kind: Backend) {
        killed_at_rest("a_backend_killed_while_idle_is_replaced_with_packed_rings", kind, Virtio::PACKED);
    }

    fn a_backend_killed_under_traffic_is_replaced(kind: Backend) {
        killed_at_work("a_backend_killed_under_traffic_is_replaced", kind, Virtio::SPLIT);
    }

    fn a_backend_killed_under_traffic_is_replaced_with_packed_rings(kind: Backend) {
        killed_at_work("a_backend_killed_under_traffic_is_replaced_with_packed_rings", kind, Virtio::PACKED);
    }
}

/// The guest listens at the socket; its backend dies with no packet in flight, so no packet may be lost.
fn killed_at_rest(test: &str, kind: Backend, virtio: Virtio) {
    let Some(mut pair) = Pair::start(test, kind, Virtio { server: true, ..virtio }) else { return };
    pair.send(LENGTHS[0]);
    pair.take(LENGTHS[0]);
    pair.another_backend();
    pair.send(LENGTHS[0]);
    pair.take(LENGTHS[0]);
}

/// The same with packets in flight.
fn killed_at_work(test: &str, kind: Backend, virtio: Virtio) {
    let Some(mut pair) = Pair::start(test, kind, Virtio { server: true, ..virtio }) else { return };
    let before = pair.guest.counts();
    pair.guest.work(Work::Sink);
    pair.backend.work(Work::Source(LENGTHS[0]));
    until("packets arrive", || pair.guest.counts() - before, |now| now.received >= ENOUGH);
    pair.another_backend();
    pair.some_sent(LENGTHS[0]);
    pair.some_taken(LENGTHS[0]);
    // Killed while packets come out of the guest.
    pair.backend.work(Work::Sink);
    pair.guest.work(Work::Numbered(LENGTHS[0]));
    pair.another_backend();
    pair.some_taken(LENGTHS[0]);
    pair.some_sent(LENGTHS[0]);
    assert!(pair.guest.runs() && pair.backend.runs());
}
