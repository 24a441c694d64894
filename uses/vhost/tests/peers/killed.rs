//! A backend or a guest that is killed repeatedly: packets flow again, none of those in flight arrives twice or
//! changed, and lost packets are counted.

use crate::backend::{Backend, Endpoint, until, with_each_of_ours};
use crate::pair::{ENOUGH, LENGTHS, Pair};
use std::time::{Duration, Instant};
use telpher_vhost::peers::{LOOPING, Virtio, Work};

/// How often a side is killed at least; see [`more`].
const KILLS: u64 = 5;

/// Returns whether there is another kill: in a long run (`./soak`) until its time is over.
fn more(kills: u64, began: Instant) -> bool {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    kills < KILLS || began.elapsed() < Duration::from_secs(seconds)
}

with_each_of_ours! {
    fn repeatedly_killed_backends_lose_only_packets_in_flight(kind: Backend) {
        backends_killed("repeatedly_killed_backends_lose_only_packets_in_flight", kind, Virtio::SPLIT);
    }

    fn repeatedly_killed_backends_lose_only_packets_in_flight_with_packed_rings(kind: Backend) {
        let test = "repeatedly_killed_backends_lose_only_packets_in_flight_with_packed_rings";
        backends_killed(test, kind, Virtio::PACKED);
    }

    fn repeatedly_killed_guests_leave_nothing_behind(kind: Backend) {
        let test = "repeatedly_killed_guests_leave_nothing_behind";
        let Some(mut pair) = Pair::start(test, kind, Virtio::SPLIT) else { return };
        let (began, mut kills) = (Instant::now(), 0);
        loop {
            let before = pair.backend.counts();
            pair.guest.work(Work::Return);
            pair.backend.work(Work::Begin(LENGTHS[2]));
            until("packets come around", || pair.backend.counts() - before, |now| now.received >= ENOUGH / 2);
            if !more(kills, began) {
                break;
            }
            pair.another_guest(if kills % 2 == 0 { Virtio::PACKED } else { Virtio::SPLIT });
            kills += 1;
        }
        let errors = pair.backend.counts().errors;
        // Packets of one guest never reach its successor.
        assert_eq!((errors, pair.backend.earlier()), (0, 0));
        assert!(pair.backend.runs());
    }
}

/// Numbered packets circulate while the backend is killed repeatedly. Packets that come back to the next backend are
/// intact, in order, and not seen by its predecessor; the rest was lost with the predecessor.
fn backends_killed(test: &str, kind: Backend, virtio: Virtio) {
    let Some(mut pair) = Pair::start(test, kind, Virtio { server: true, ..virtio }) else { return };
    pair.guest.work(Work::Return);
    pair.backend.work(Work::Begin(LENGTHS[2]));
    let (began, mut kills, mut lost) = (Instant::now(), 0, 0);
    while more(kills, began) {
        until("packets come around", || pair.backend.counts(), |now| now.received >= ENOUGH / 2);
        assert_eq!(pair.backend.counts().errors, 0);
        let killed = Instant::now();
        pair.another_backend();
        let started = killed.elapsed();
        if virtio.packed {
            pair.guest.work(Work::Return);
        }
        pair.backend.work(Work::Begin(LENGTHS[2]));
        until("packets come around again", || pair.backend.counts(), |now| now.received > LOOPING);
        let came = pair.backend.earlier();
        assert!(came <= LOOPING, "{came} packets of {LOOPING} came again");
        (kills, lost) = (kills + 1, lost + LOOPING - came);
        println!(
            "another backend after {started:?}, packets after {:?}; {} were lost",
            killed.elapsed(),
            LOOPING - came
        );
    }
    until("packets come around", || pair.backend.counts(), |now| now.received >= ENOUGH / 2);
    assert_eq!(pair.backend.counts().errors, 0);
    pair.backend.rest();
    // No packet of the last instance was lost.
    println!("{kills} kills: {lost} packets were lost of {}", kills * LOOPING);
    assert!(pair.guest.runs() && pair.backend.runs());
}
