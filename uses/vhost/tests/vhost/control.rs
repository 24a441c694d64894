//! Requests on running rings, and invalid requests, which affect only their sender.

use crate::frontend::{
    ASK, Frontend, Guest, HEADER, MRG, Switch, addresses, count, dirty, event, holders, same, u32s, u64s,
};
use std::os::fd::OwnedFd;
use std::time::Duration;
use telpher_vhost::layout::Features;
use telpher_vhost::message::Reply;
use telpher_vhost::ring::{Broken, Direction, MockDriver, MockGuest};
use telpher_vhost::{Control, Packets};

const LAYOUTS: [u64; 2] = [MRG, MRG | Features::RING_PACKED.bits()];

#[test]
fn packets_flow_both_ways_once_rings_are_set_up() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        assert!(!switch.port.is_running(0));
        let mut frontend = guest.connect(&switch.port);
        assert!(switch.port.is_running(0) && switch.port.is_running(1) && !switch.port.is_running(2));
        guest.say(b"from the guest");
        assert_eq!(switch.packets(), [b"from the guest"]);
        let at = guest.listen();
        assert_eq!(switch.send(&[b"to the guest", b"too many"]), 1);
        assert_eq!(guest.heard(at), b"to the guest");
        let one = if features & Features::RING_PACKED.bits() == 0 { 1 } else { 0x8001_8001 };
        assert_eq!((frontend.stop(0), frontend.stop(1)), (one, one));
        assert!(!switch.port.is_running(0));
        guest.say(b"no call");
        assert!(switch.packets().is_empty());
        // It resumes where it stopped.
        frontend.ring_at(1, &guest.transmit, one);
        assert_eq!(switch.packets(), [b"no call"]);
    }
}

#[test]
fn the_driver_is_called_through_its_eventfd_on_request() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    let call = event();
    frontend.tell(13, &u64s(&[1]), vec![same(&call)]);
    // A call may have gone to the previous eventfd.
    assert_eq!(count(&call), 1);
    guest.say(b"one");
    switch.packets();
    assert_eq!(count(&call), 1);
    guest.transmit.want_calls(false);
    guest.say(b"two");
    switch.packets();
    assert_eq!(count(&call), 0);
    // Without an eventfd no driver is called.
    guest.transmit.want_calls(true);
    frontend.tell(13, &u64s(&[0x101]), Vec::new());
    guest.say(b"three");
    assert_eq!((switch.packets().len(), count(&call)), (1, 0));
}

#[test]
fn a_driver_is_never_called_before_its_ring_runs_nor_waited_for() {
    let (switch, guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = Frontend::new(&switch.port);
    frontend.agree(MRG);
    frontend.memory(&guest.memory);
    assert_eq!(count(&frontend.ring(1, &guest.transmit)), 0);
    // Where the kernel cannot signal it, it is written to, and must not block its writer.
    let waits = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    frontend.tell(13, &u64s(&[1]), vec![same(&waits)]);
    assert!(rustix::fs::fcntl_getfl(&waits).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
}

#[test]
fn a_frontends_eventfds_are_closed_with_its_session() {
    let (switch, guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    let events = [12, 13, 14].map(|request| {
        let event = event();
        frontend.tell(request, &u64s(&[1]), vec![same(&event)]);
        event
    });
    assert_eq!(events.each_ref().map(holders), [2; 3]);
    drop(frontend);
    assert_eq!(events.each_ref().map(holders), [1; 3]);
}

#[test]
fn a_ring_may_be_set_up_before_its_memory() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = Frontend::new(&switch.port);
        frontend.agree(features);
        frontend.ring(1, &guest.transmit);
        assert!(!switch.port.is_running(1));
        frontend.memory(&guest.memory);
        guest.say(b"here");
        assert_eq!(switch.packets(), [b"here"]);
    }
}

#[test]
fn a_ring_whose_address_changes_is_followed() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = guest.connect(&switch.port);
        let agreed = Features::from_bits_retain(features);
        let mut second = MockDriver::new(&mut guest.memory, 64, agreed, Direction::Transmit);
        frontend.tell(9, &addresses(1, &second, 0, 0), Vec::new());
        let at = guest.memory.lend(2048);
        guest.memory.write(at + HEADER as u64, b"there");
        second.offer(&[(at, u32::try_from(HEADER).unwrap() + 5)]).unwrap();
        guest.say(b"no call");
        assert_eq!(switch.packets(), [b"there"]);
    }
}

#[test]
fn only_an_eventfd_is_accepted_for_events() {
    let (switch, guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    for request in [12, 13, 14] {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(!frontend.ask(request, &u64s(&[0]), vec![writer.into()]));
        drop(reader);
        assert!(!frontend.ask(request, &u64s(&[0]), vec![same(guest.memory.file())]));
        assert!(frontend.ask(request, &u64s(&[0]), vec![event()]));
    }
}

#[test]
fn a_disabled_rings_packets_are_discarded_and_it_receives_none() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    for ring in [0, 1] {
        frontend.tell(18, &u32s(&[ring, 0]), Vec::new());
    }
    guest.say(b"lost");
    guest.listen();
    assert!(switch.packets().is_empty());
    assert!(!switch.port.is_running(0) && !switch.port.is_running(1));
    assert_eq!(switch.port.submit_enqueue_burst(0, &mut switch.pool.allocate(1)), 0);
    assert_eq!((guest.transmit.collect().len(), switch.send(&[b"x"]), guest.receive.collect().len()), (1, 0, 0));
    frontend.tell(18, &u32s(&[1, 1]), Vec::new());
    guest.say(b"heard");
    assert_eq!(switch.packets(), [b"heard"]);
    assert_eq!(switch.pool.free(), 256);
}

#[test]
fn memory_changes_while_rings_run() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = guest.connect(&switch.port);
        let more = MockGuest::new(1 << 20);
        let far = |offset| u64s(&[0, 1 << 40, 1 << 20, 1 << 50, offset]);
        // First a buffer outside all regions: dropped and counted. Then the region is added, and later removed.
        let stats = |switch: &Switch| (switch.port.stats(1).packets, switch.port.stats(1).all_drops());
        let offer = |guest: &mut Guest| guest.transmit.offer(&[((1 << 40) + 64, 100)]).unwrap();
        offer(&mut guest);
        assert!(switch.packets().is_empty());
        assert_eq!(stats(&switch), (0, 1));
        frontend.tell(37, &far(0), vec![same(more.file())]);
        assert_eq!(frontend.control.memory().regions(), 2);
        offer(&mut guest);
        assert_eq!(switch.packets().len(), 1);
        // Its file and offset are not needed, and a file sent with it is closed; QEMU sends one.
        frontend.tell(38, &far(77), vec![same(more.file())]);
        offer(&mut guest);
        assert!(switch.packets().is_empty());
        assert_eq!(stats(&switch), (1, 2));
        // A new memory table, repeatedly, under traffic.
        for _ in 0..50 {
            frontend.memory(&guest.memory);
            guest.say(b"still there");
            assert_eq!(switch.packets(), [b"still there"]);
        }
        // The ring's own memory is removed: the ring stops, and resumes when the memory is back.
        frontend.tell(5, &u64s(&[0]), Vec::new());
        guest.say(b"later");
        assert!(switch.packets().is_empty() && !switch.port.is_running(1));
        frontend.memory(&guest.memory);
        assert_eq!(switch.packets(), [b"later"]);
    }
}

/// What broke: QEMU before 8.1 sends a request per queue pair that applies to all pairs, and the second one was
/// refused.
#[test]
fn regions_added_or_removed_twice_count_once() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = guest.connect(&switch.port);
        let (more, other) = (MockGuest::new(1 << 20), MockGuest::new(1 << 20));
        let far = |len| u64s(&[0, 1 << 40, len, 1 << 50, 0]);
        let table = |frontend: &Frontend| (frontend.control.memory().regions(), frontend.control.memory().generation());
        for _ in 0..3 {
            frontend.tell(37, &far(1 << 20), vec![same(more.file())]);
            assert_eq!(table(&frontend), (2, 2));
            guest.transmit.offer(&[((1 << 40) + 64, 100)]).unwrap();
            assert_eq!(switch.packets().len(), 1);
        }
        // The same fields with another file, or a part of it: a different region.
        assert!(!frontend.ask(37, &far(1 << 20), vec![same(other.file())]));
        assert!(!frontend.ask(37, &far(1 << 12), vec![same(more.file())]));
        assert!(!frontend.ask(38, &far(1 << 12), Vec::new()));
        assert!(!frontend.ask(38, &u64s(&[0, 1 << 40, 1 << 20, (1 << 50) + 4096, 0]), Vec::new()));
        assert_eq!((table(&frontend), frontend.control.refused().0), ((2, 2), 4));
        for _ in 0..3 {
            frontend.tell(38, &far(1 << 20), Vec::new());
            assert_eq!(table(&frontend), (1, 3));
        }
        guest.transmit.offer(&[((1 << 40) + 64, 100)]).unwrap();
        guest.say(b"alive");
        assert_eq!(switch.packets(), [b"alive"]);
        assert_eq!((switch.port.stats(1).packets, switch.port.stats(1).all_drops()), (4, 1));
        // Added again, with another file.
        frontend.tell(37, &far(1 << 20), vec![same(other.file())]);
        assert_eq!(table(&frontend), (2, 4));
    }
}

/// CVE-2026-86561 and similar: a region that wraps, overlaps, is longer than its file, or exceeds the number of
/// regions.
#[test]
fn invalid_memory_is_refused_and_the_rest_keeps_running() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    let file = guest.memory.file();
    let len = guest.memory.region().len;
    for [at, size, user, offset] in [
        [1 << 40, len + 1, 1 << 50, 0],
        [1 << 40, len, 1 << 50, 1],
        [1 << 40, len, 1 << 50, u64::MAX],
        [1 << 40, u64::MAX, 1 << 50, 0],
        [u64::MAX, len, 1 << 50, 0],
        [1 << 40, len, u64::MAX, 0],
        [1 << 40, 0, 1 << 50, 0],
        [guest.memory.region().guest + len - 1, 4096, 1 << 50, 0],
    ] {
        assert!(!frontend.ask(37, &u64s(&[0, at, size, user, offset]), vec![same(file)]));
        assert!(
            !frontend.ask(5, &u64s(&[2, 0x10_0000, 4096, 0, 0, at, size, user, offset]), vec![same(file), same(file)])
                || at == guest.memory.region().guest + len - 1
        );
        frontend.memory(&guest.memory);
    }
    let (refused, why) = frontend.control.refused();
    assert!(refused >= 15 && why.is_some());
    guest.say(b"alive");
    assert_eq!(switch.packets(), [b"alive"]);
}

#[test]
fn a_refusal_without_reply_ends_the_session() {
    let (switch, guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    assert!(frontend.say(8, ASK, &u32s(&[9, 9]), Vec::new()).is_ok());
    assert!(frontend.say(8, 0, &u32s(&[9, 9]), Vec::new()).is_err());
    // A frontend that asks for a number would take "refused" for it.
    assert!(frontend.say(11, ASK, &u32s(&[9, 9]), Vec::new()).is_err());
}

#[test]
fn invalid_rings_are_refused() {
    let (switch, guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = Frontend::new(&switch.port);
    frontend.agree(MRG);
    frontend.memory(&guest.memory);
    let user = guest.memory.region().user;
    let place = |parts: [u64; 3]| [u32s(&[1, 0]), u64s(&parts), u64s(&[0])].concat();
    frontend.tell(8, &u32s(&[1, 256]), Vec::new());
    let end = user + guest.memory.region().len;
    for parts in [
        [0, user, user],
        [user, 0, user],
        [user, user, 0],
        [user + 8, user + 1, user],
        [end - 16, user, user],
        [user, user, u64::MAX],
    ] {
        frontend.tell(9, &place(parts), Vec::new());
        assert!(!frontend.ask(12, &u64s(&[0x101]), Vec::new()), "{parts:x?}");
        assert!(!switch.port.is_running(1));
        frontend.stop(1);
    }
    // A split ring needs a power of two.
    frontend.tell(8, &u32s(&[1, 255]), Vec::new());
    frontend.tell(9, &place([user, user + 8192, user + 16384]), Vec::new());
    assert!(!frontend.ask(12, &u64s(&[0x101]), Vec::new()));
}

#[test]
fn a_broken_ring_is_reported_once_and_others_keep_running() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    let error = event();
    frontend.tell(14, &u64s(&[1]), vec![same(&error)]);
    // The available index jumps beyond the ring.
    guest.memory.write(guest.transmit.parts().driver + 2, &40_000_u16.to_le_bytes());
    for _ in 0..3 {
        assert!(switch.packets().is_empty());
    }
    assert_eq!(count(&error), 1);
    assert!(matches!(switch.port.broken(1), Some(Broken::Ahead { .. })));
    // Set up again it can break again, which is reported again.
    let features = guest.transmit.setup().features;
    let second = MockDriver::new(&mut guest.memory, 64, features, Direction::Transmit);
    frontend.stop(1);
    frontend.ring_at(1, &second, 0);
    assert_eq!((switch.port.broken(1), count(&error)), (None, 0));
    guest.memory.write(second.parts().driver + 2, &40_000_u16.to_le_bytes());
    assert!(switch.packets().is_empty());
    assert_eq!((count(&error), switch.port.broken(1).is_some()), (1, true));
    let at = guest.listen();
    assert_eq!((switch.send(&[b"on"]), guest.heard(at).as_slice()), (1, &b"on"[..]));
}

#[test]
fn a_port_has_one_frontend_at_a_time() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let frontend = guest.connect(&switch.port);
    assert!(Control::take(&switch.port).is_none());
    guest.say(b"one");
    assert_eq!(switch.packets().len(), 1);
    drop(frontend);
    assert!(!switch.port.is_running(0));
    guest.say(b"two");
    assert!(switch.packets().is_empty());
    // A frontend that does not know how far the previous backend got: no chain twice, none lost.
    let _frontend = guest.connect(&switch.port);
    assert_eq!(switch.packets(), [b"two"]);
    assert_eq!(switch.port.stats(1).packets, 2);
}

/// The frontend knows how many chains a dead backend had *taken*; the ring still holds those it had not returned.
#[test]
fn chains_a_dead_backend_did_not_return_are_retaken() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    guest.say(b"one");
    guest.say(b"two");
    let mut frontend = Frontend::new(&switch.port);
    frontend.agree(MRG);
    frontend.memory(&guest.memory);
    frontend.ring_at(1, &guest.transmit, 2);
    assert_eq!(switch.packets(), [b"one", b"two"]);
}

#[test]
fn a_reset_stops_all_rings_and_keeps_the_memory() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    frontend.tell(34, &[], Vec::new());
    assert!(!switch.port.is_running(0) && !switch.port.is_running(1));
    frontend.tell(2, &u64s(&[MRG]), Vec::new());
    frontend.ring(1, &guest.transmit);
    guest.say(b"again");
    assert_eq!(switch.packets(), [b"again"]);
}

#[test]
fn a_migrated_guest_is_announced_once() {
    let (switch, guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    frontend.tell(19, &[0x52, 0x54, 0, 1, 2, 3, 0, 0], Vec::new());
    assert_eq!(switch.port.take_announcement(), Some([0x52, 0x54, 0, 1, 2, 3]));
    assert_eq!(switch.port.take_announcement(), None);
}

#[test]
fn writes_to_buffers_and_rings_are_marked_while_logging() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = guest.connect(&switch.port);
        let region = guest.memory.region();
        let pages = ((region.guest + region.len) / 4096).next_multiple_of(8);
        let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&log, pages / 8).unwrap();
        // CVE-2026-86563: too short for the guest; CVE-2020-10722: beyond its file.
        for [len, offset] in [[pages / 8 - 1, 0], [pages / 8, 1], [pages / 8, u64::MAX], [u64::MAX, 1]] {
            assert!(!frontend.ask(6, &u64s(&[len, offset]), vec![same(&log)]));
        }
        assert!(matches!(frontend.say(6, 0, &u64s(&[pages / 8, 0]), vec![same(&log)]), Ok(Some(_))));
        guest.listen();
        assert_eq!(switch.send(&[b"not logged yet"]), 1);
        guest.receive.collect();
        assert_eq!(dirty(&log, pages), [0_u64; 0]);
        frontend.tell(2, &u64s(&[features | Features::LOG_ALL.bits()]), Vec::new());
        let at = guest.listen();
        assert_eq!(switch.send(&[b"logged"]), 1);
        assert_eq!(guest.heard(at), b"logged");
        assert_eq!(dirty(&log, pages), [at / 4096]);
        // The ring as well, if the frontend asks for it.
        let used = guest.receive.parts().device;
        frontend.tell(9, &addresses(0, &guest.receive, 1, used), Vec::new());
        let at = guest.listen();
        assert_eq!(switch.send(&[b"logged"]), 1);
        assert_eq!(guest.heard(at), b"logged");
        let ring = if features & Features::RING_PACKED.bits() == 0 { used } else { guest.receive.parts().descriptors };
        let mut expected = [at / 4096, ring / 4096];
        expected.sort_unstable();
        assert_eq!(dirty(&log, pages), expected);
        // Reads are not marked.
        guest.say(b"read");
        assert_eq!(switch.packets().len(), 1);
        assert_eq!(dirty(&log, pages), [0_u64; 0]);
        // After a failed migration there are no more marks.
        frontend.tell(2, &u64s(&[features]), Vec::new());
        guest.listen();
        assert_eq!((switch.send(&[b"not logged"]), dirty(&log, pages)), (1, vec![]));
    }
}

/// A log for a guest, the message that announces it, and its bits.
fn log_of(guest: &Guest) -> (OwnedFd, Vec<u8>, u64) {
    let region = guest.memory.region();
    let pages = ((region.guest + region.len) / 4096).next_multiple_of(8);
    let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&log, pages / 8).unwrap();
    (log, u64s(&[pages / 8, 0]), pages)
}

#[test]
fn the_last_announced_log_is_used_until_a_reset() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = guest.connect(&switch.port);
        let ((first, words, pages), (second, ..)) = (log_of(&guest), log_of(&guest));
        let logging = u64s(&[features | Features::LOG_ALL.bits()]);
        frontend.say(6, 0, &words, vec![same(&first)]).unwrap();
        frontend.tell(2, &logging, Vec::new());
        frontend.say(6, 0, &words, vec![same(&second)]).unwrap();
        let at = guest.listen();
        assert_eq!(switch.send(&[b"logged"]), 1);
        assert_eq!((dirty(&first, pages), dirty(&second, pages)), (vec![], vec![at / 4096]));
        assert_eq!(frontend.control.unmarked(), 0);
        let base = frontend.stop(0);
        frontend.tell(34, &[], Vec::new());
        frontend.tell(2, &logging, Vec::new());
        frontend.ring_at(0, &guest.receive, base);
        guest.receive.collect();
        guest.listen();
        assert_eq!(switch.send(&[b"not logged"]), 1);
        assert_eq!((dirty(&first, pages), dirty(&second, pages)), (vec![], vec![]));
    }
}

#[test]
fn used_ring_marks_follow_the_frontends_address_and_misses_are_counted() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    let (log, words, pages) = log_of(&guest);
    frontend.say(6, 0, &words, vec![same(&log)]).unwrap();
    frontend.tell(2, &u64s(&[MRG | Features::LOG_ALL.bits()]), Vec::new());
    for (place, marked, missed) in [(0, Some(0), false), (1 << 60, None, true)] {
        frontend.tell(9, &addresses(0, &guest.receive, 1, place), Vec::new());
        let at = guest.listen();
        assert_eq!(switch.send(&[b"logged"]), 1);
        guest.receive.collect();
        assert_eq!(dirty(&log, pages), marked.into_iter().chain([at / 4096]).collect::<Vec<_>>());
        assert_eq!(frontend.control.unmarked() > 0, missed);
    }
}

/// The device's notification fields beside a ring are written like its used ring.
#[test]
fn kick_suppression_writes_are_marked() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let agreed = Features::from_bits_retain(features);
        // Large enough that a split ring's last field lies on another page than its first.
        let ring = MockDriver::new(&mut guest.memory, 1024, agreed, Direction::Receive);
        let mut frontend = Frontend::new(&switch.port);
        frontend.agree(features);
        frontend.memory(&guest.memory);
        frontend.ring(0, &ring);
        frontend.tell(12, &u64s(&[0]), vec![event()]);
        let (log, words, pages) = log_of(&guest);
        frontend.say(6, 0, &words, vec![same(&log)]).unwrap();
        frontend.tell(2, &u64s(&[features | Features::LOG_ALL.bits()]), Vec::new());
        let device = ring.parts().device;
        frontend.tell(9, &addresses(0, &ring, 1, device), Vec::new());
        dirty(&log, pages);
        switch.port.wait(0, Duration::ZERO);
        let event = if agreed.contains(Features::RING_PACKED) { 2 } else { 4 + 8 * 1024 };
        let mut expected = vec![device / 4096, (device + event) / 4096];
        expected.dedup();
        assert_eq!(dirty(&log, pages), expected);
    }
}

/// CVE-2026-86563: the log was checked against the memory at its announcement, not against memory added later.
#[test]
fn memory_the_log_does_not_cover_is_refused_while_logging() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = guest.connect(&switch.port);
        let more = MockGuest::new(1 << 20);
        let end = guest.memory.region().guest + guest.memory.region().len;
        let (pages, more_pages) = ((end / 4096).next_multiple_of(8), (1 << 20) / 4096);
        // Directly after the last page covered by the log.
        let behind = |file| (u64s(&[0, pages * 4096, 1 << 20, 1 << 50, 0]), vec![same(file)]);
        let table = |file: &std::os::fd::OwnedFd| {
            let region = guest.memory.region();
            let both = [2, region.guest, region.len, region.user, region.offset, pages * 4096, 1 << 20, 1 << 50, 0];
            (u64s(&both), vec![same(guest.memory.file()), same(file)])
        };
        let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&log, (pages + more_pages) / 8).unwrap();
        let announce = |frontend: &mut Frontend, pages: u64| {
            let answer = frontend.say(6, 0, &u64s(&[pages / 8, 0]), vec![same(&log)]);
            assert!(matches!(answer, Ok(Some(Reply::Log { .. }))), "{answer:?}");
        };
        let logging = |on| u64s(&[features | if on { Features::LOG_ALL.bits() } else { 0 }]);
        announce(&mut frontend, pages);
        frontend.tell(2, &logging(true), Vec::new());
        for (request, (words, files)) in [(37, behind(more.file())), (5, table(more.file()))] {
            assert!(!frontend.ask(request, &words, files));
            assert_eq!(frontend.control.memory().regions(), 1);
        }
        // Without logging the memory may be added; then logging may not start.
        frontend.tell(2, &logging(false), Vec::new());
        let (words, files) = behind(more.file());
        frontend.tell(37, &words, files);
        assert!(!frontend.ask(2, &logging(true), Vec::new()));
        frontend.tell(2, &logging(false), Vec::new());
        // With a longer log everything is marked, including memory added later.
        announce(&mut frontend, pages + more_pages);
        frontend.tell(2, &logging(true), Vec::new());
        guest.receive.offer(&[(pages * 4096 + 5 * 4096, 2048)]).unwrap();
        assert_eq!(switch.send(&[b"logged"]), 1);
        assert_eq!(dirty(&log, pages + more_pages), [pages + 5]);
        assert_eq!((frontend.control.unmarked(), guest.receive.collect().len()), (0, 1));
    }
}

/// What broke: testpmd wrote to the eventfd for each burst, which cost it a third of its time.
#[test]
fn a_polled_driver_need_not_kick() {
    for features in LAYOUTS {
        let (switch, guest) = (Switch::new(), Guest::new(features));
        assert!(guest.receive.kicks_are_wanted() && guest.transmit.kicks_are_wanted(), "the default");
        let _frontend = guest.connect(&switch.port);
        assert!(!guest.receive.kicks_are_wanted() && !guest.transmit.kicks_are_wanted());
    }
}

#[test]
fn a_waiting_thread_is_woken_by_a_kick_or_by_available_chains() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    let kick = event();
    frontend.tell(12, &u64s(&[1]), vec![same(&kick)]);
    let hour = Duration::from_secs(3600);
    // A polled ring needs no kicks, except while a thread waits for them.
    assert!(!guest.transmit.kicks_are_wanted());
    guest.say(b"there");
    switch.port.wait(1, hour);
    assert!(!guest.transmit.kicks_are_wanted());
    assert_eq!(switch.packets().len(), 1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| switch.port.wait(1, hour));
        while !guest.transmit.kicks_are_wanted() {
            assert!(!waits.is_finished(), "it did not wait");
            std::thread::yield_now();
        }
        rustix::io::write(&kick, &1_u64.to_ne_bytes()).unwrap();
    });
    assert_eq!((count(&kick), guest.transmit.kicks_are_wanted()), (0, false));
    // Waiting for a ring that does not run returns at once.
    switch.port.wait(2, hour);
    let rows: Packets = switch.pool.empty(0);
    assert!(rows.is_empty());
}

/// A new record of four rings with 64 descriptors each, and the message that hands it over again.
fn record_of(frontend: &mut Frontend) -> (OwnedFd, Vec<u8>) {
    let asked = |len: u64| [u64s(&[len, 0]), [4_u16, 64].map(u16::to_le_bytes).concat()].concat();
    let Ok(Some(Reply::Record { place, file })) = frontend.say(31, 0, &asked(0), Vec::new()) else {
        panic!("a record")
    };
    (file, asked(place.len))
}

fn bytes_of(file: &OwnedFd) -> Vec<u8> {
    let len = rustix::fs::fstat(file).unwrap().st_size;
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    rustix::io::pread(file, &mut bytes, 0).unwrap();
    bytes
}

#[test]
fn the_last_record_handed_over_is_used_until_a_reset() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = Frontend::new(&switch.port);
        frontend.agree(features);
        frontend.memory(&guest.memory);
        let ((first, words), (second, _)) = (record_of(&mut frontend), record_of(&mut frontend));
        for file in [&first, &second] {
            frontend.tell(32, &words, vec![same(file)]);
        }
        frontend.ring(1, &guest.transmit);
        guest.say(b"one");
        assert_eq!(switch.packets(), [b"one"]);
        assert!(bytes_of(&first).iter().all(|byte| *byte == 0));
        assert!(bytes_of(&second).iter().any(|byte| *byte != 0));
        let base = frontend.stop(1);
        frontend.tell(34, &[], Vec::new());
        let before = bytes_of(&second);
        frontend.tell(2, &u64s(&[features]), Vec::new());
        frontend.ring_at(1, &guest.transmit, base);
        guest.say(b"two");
        assert_eq!(switch.packets(), [b"two"]);
        assert!(before == bytes_of(&second), "the first record is not used any more");
    }
}

/// Source of the layout: vhost-user, "Inflight I/O tracking", `QueueRegionSplit`, `DescStateSplit`.
#[test]
fn chains_another_backend_took_out_of_order_are_retaken_in_its_order() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = Frontend::new(&switch.port);
    frontend.agree(MRG);
    frontend.memory(&guest.memory);
    let (file, words) = record_of(&mut frontend);
    let heads = [b"one", b"two"].map(|packet| {
        let at = guest.memory.lend(2048);
        guest.memory.write(at + HEADER as u64, packet);
        guest.transmit.offer(&[(at, u32::try_from(HEADER).unwrap() + 3)]).unwrap()
    });
    // Ring 1 of a record with parts of 136 words: version 1, 64 descriptors, nothing used; two in flight, the second
    // taken first.
    let part = 8 * 136;
    rustix::io::pwrite(&file, &[1, 0, 64, 0, 0, 0, 0, 0], part + 8).unwrap();
    for (head, counter) in heads.into_iter().zip([2, 1]) {
        rustix::io::pwrite(&file, &u64s(&[1, counter]), part + 16 + 16 * u64::from(head)).unwrap();
    }
    frontend.tell(32, &words, vec![file]);
    frontend.ring(1, &guest.transmit);
    assert_eq!(switch.packets(), [b"two", b"one"]);
}

#[test]
fn after_a_crash_a_ring_resumes_from_its_record() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let asked = |len, offset| [u64s(&[len, offset]), [4_u16, 64].map(u16::to_le_bytes).concat()].concat();
        let mut frontend = Frontend::new(&switch.port);
        frontend.agree(features);
        frontend.memory(&guest.memory);
        let Ok(Some(Reply::Record { place, file })) = frontend.say(31, 0, &asked(0, 0), Vec::new()) else {
            panic!("a record")
        };
        assert_eq!((place.offset, place.rings, place.size), (0, 4, 64));
        frontend.tell(32, &asked(place.len, 0), vec![same(&file)]);
        frontend.ring(1, &guest.transmit);
        for _ in 0..100 {
            guest.say(b"before");
            assert_eq!(switch.packets(), [b"before"]);
            guest.transmit.collect();
        }
        // The backend has disappeared without notice, and the frontend knows only the first base.
        std::mem::forget(frontend);
        guest.say(b"meanwhile");
        let next = Switch::new();
        let mut frontend = Frontend::new(&next.port);
        frontend.agree(features);
        frontend.memory(&guest.memory);
        frontend.tell(32, &asked(place.len, 0), vec![same(&file)]);
        frontend.ring(1, &guest.transmit);
        assert_eq!(next.packets(), [b"meanwhile"]);
        // A record that is not this ring's is refused, and so is the ring.
        frontend.stop(1);
        rustix::io::pwrite(&file, &[9; 4096], 0).unwrap();
        assert!(!frontend.ask(12, &u64s(&[0x101]), Vec::new()));
        assert!(!frontend.ask(32, &asked(place.len, 8), vec![same(&file)]));
    }
}
