//! Hostile guests and frontends, including attacks that other implementations fell for: each is dropped and counted, or
//! breaks its ring, without any other effect.

use crate::frontend::wire::{SocketPath, Wire};
use crate::frontend::{Frontend, Guest, HEADER, MRG, Switch, count, event, same, u32s, u64s};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use telpher_vhost::layout::{DescriptorFlags, Features};
use telpher_vhost::ring::{Broken, Burst, Direction, Dropped, MockDriver, MockGuest, Ring};
use telpher_vhost::{DropReason, Role, Socket};

const LAYOUTS: [u64; 2] = [MRG, MRG | Features::RING_PACKED.bits()];

/// Sets the flag when it is dropped.
struct End<'a>(&'a AtomicBool);

impl std::ops::Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// CVE-2026-93683, CVE-2026-86847, CVE-2026-86848: a length was read, checked, and read again.
#[test]
fn a_length_changed_concurrently_is_used_as_it_was_checked() {
    for (layout, flags) in LAYOUTS.into_iter().flat_map(|it| [(it, 0), (it, DescriptorFlags::INDIRECT.bits())]) {
        let mut guest = MockGuest::new(1 << 20);
        let features = Features::from_bits_retain(layout) | Features::INDIRECT_DESC;
        let mut driver = MockDriver::new(&mut guest, 64, features, Direction::Transmit);
        let mut ring = Ring::new(guest.memory(), driver.setup()).unwrap();
        // At the end of memory: tables and buffers longer than a page extend beyond it.
        let end = guest.region().guest + guest.region().len;
        let at = end - 4096;
        for entry in 0..256 {
            let descriptor = [u64s(&[at]), u32s(&[8]), vec![0; 4]].concat();
            guest.write(at + 16 * entry, &descriptor);
        }
        driver.offer_links(&[(at, 16, DescriptorFlags::from_bits_retain(flags))]).unwrap();
        // Whichever descriptor the driver has taken.
        let lens = |place: u64| driver.parts().descriptors + 16 * place + 8;
        let place = (0..64).find(|place| guest.read(lens(*place), 4) == 16_u32.to_le_bytes()).unwrap();
        let (stop, turns, memory) = (AtomicBool::new(false), AtomicU64::new(0), guest.memory());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    for len in [16_u32, 4096, 4112, 1 << 31] {
                        guest.write(lens(place), &len.to_le_bytes());
                    }
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
            let _end = End(&stop);
            let mut burst = Burst::default();
            while turns.load(Ordering::Relaxed) < 20_000 {
                assert_eq!(ring.take(&mut burst, 1), Ok(1));
                let chain = &burst.chains()[0];
                let pieces = burst.pieces(chain);
                assert_eq!(pieces.iter().map(telpher_vhost::Piece::len).sum::<u32>(), chain.len);
                let known =
                    |piece: &telpher_vhost::Piece| memory.host(piece.guest(), piece.len()) == Some(piece.host());
                assert!(pieces.len() <= 64 && pieces.iter().all(known), "{pieces:?}");
                ring.untake(&mut burst, 0);
            }
        });
    }
}

/// CVE-2026-86566: a header was written to buffers too short for it, and the rest of the packet to where its wrapped
/// length pointed; at the end of a region, beyond it.
#[test]
fn runts_at_the_end_of_memory_are_returned_untouched() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let mut frontend = Frontend::new(&switch.port);
        frontend.agree(features);
        // The last page of the file does not belong to the guest.
        let region = guest.memory.region();
        let end = region.guest + region.len - 4096;
        let table = u64s(&[1, region.guest, region.len - 4096, region.user, region.offset]);
        frontend.tell(5, &table, vec![same(guest.memory.file())]);
        frontend.ring(0, &guest.receive);
        guest.memory.write(end - 64, &[0xc5; 64 + 4096]);
        for buffers in [&[(end - 2, 1), (end - 1, 1)][..], &[(end - 1, 1)], &[(end - 11, 11)], &[(end - 1, 0)]] {
            guest.receive.offer(buffers).unwrap();
            assert_eq!(switch.send(&[&[7; 64]]), 0);
            switch.send(&[]);
            assert_eq!(guest.receive.collect().iter().map(|(_, len)| *len).collect::<Vec<_>>(), [0], "{buffers:?}");
        }
        assert_eq!(switch.port.stats(0).drops(DropReason::Runt), 4);
        assert_eq!(guest.memory.read(end - 64, 64 + 4096), [0xc5; 64 + 4096]);
        // Room for the header and one byte, and for the rest in another buffer.
        guest.receive.offer(&[(end - 13, 13)]).unwrap();
        guest.listen();
        assert_eq!((switch.send(&[&[7; 64]]), guest.receive.collect().len()), (1, 2));
        assert_eq!(guest.memory.read(end - 1, 1 + 4096)[..2], [7, 0xc5]);
    }
}

#[test]
fn receive_buffers_without_the_write_flag_are_not_written() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let _frontend = guest.connect(&switch.port);
        let at = guest.memory.lend(2048);
        guest.memory.write(at, &[0xc5; 2048]);
        guest.receive.offer_links(&[(at, 2048, DescriptorFlags::empty())]).unwrap();
        let good = guest.listen();
        assert_eq!(switch.send(&[b"to the next"]), 1);
        assert_eq!(guest.receive.collect().iter().map(|(_, len)| *len).collect::<Vec<_>>(), [0, 23]);
        assert_eq!(guest.memory.read(good + HEADER as u64, 11), b"to the next");
        assert_eq!(guest.memory.read(at, 2048), [0xc5; 2048]);
        assert_eq!(switch.port.stats(0).drops(DropReason::Chain(Dropped::Direction)), 1);
    }
}

/// CVE-2020-10725: the invalid address of an empty buffer was looked up.
#[test]
fn empty_buffers_may_have_any_address() {
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let _frontend = guest.connect(&switch.port);
        let at = guest.memory.lend(2048);
        for address in [0, u64::MAX, 1 << 63] {
            guest.transmit.offer(&[(address, 0)]).unwrap();
            guest.transmit.offer(&[(address, 0), (at, 76), (address, 0)]).unwrap();
            assert_eq!(switch.packets().len(), 1);
            assert_eq!(guest.transmit.collect().len(), 2);
        }
        assert_eq!(switch.port.stats(1).drops(DropReason::Runt), 3);
    }
}

/// CVE-2024-11614 and later ones: offsets in the header were followed beyond the packet, then read twice. This crate
/// does not read it.
#[test]
fn a_packets_header_is_ignored() {
    let offered = telpher_vhost::message::FEATURES.bits();
    // CSUM, GUEST_CSUM, GSO and the segmentation offloads: VirtIO 1.2 §5.1.3, bits 0, 1, 6 to 14 and 54 to 57.
    let offloads = 0b11 | 0b1_1111_1111 << 6 | 0b1111 << 54;
    assert_eq!(offered & offloads, 0, "nothing that a header would have to say");
    for features in LAYOUTS {
        let (switch, mut guest) = (Switch::new(), Guest::new(features));
        let _frontend = guest.connect(&switch.port);
        for byte in [0, 1, 0x7f, 0xff] {
            let at = guest.say(b"a packet");
            // The driver has published it already; the device has not looked yet.
            guest.memory.write(at, &[byte; HEADER]);
            assert_eq!(switch.packets(), [b"a packet"]);
        }
        assert_eq!(guest.transmit.collect().len(), 4);
    }
}

#[test]
fn guest_writes_to_the_used_ring_are_ignored() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let _frontend = guest.connect(&switch.port);
    let device = guest.transmit.parts().device;
    for (count, index) in [(1_u16, 0_u16), (2, 40_000), (3, 1), (4, u16::MAX)] {
        guest.say(b"one more");
        guest.memory.write(device + 2, &index.to_le_bytes());
        assert_eq!(switch.packets(), [b"one more"]);
        assert_eq!(guest.memory.read(device + 2, 2), count.to_le_bytes());
    }
    assert_eq!((guest.transmit.collect().len(), switch.port.broken(1)), (4, None));
}

/// Packed: the guest flips its descriptors' wrap counters back and forth. Each descriptor is taken once until it was
/// returned.
#[test]
fn flipped_wrap_counters_make_no_chain_taken_twice() {
    let mut guest = MockGuest::new(1 << 20);
    let features = Features::from_bits_retain(LAYOUTS[1]);
    let driver = MockDriver::new(&mut guest, 16, features, Direction::Transmit);
    let buffer = guest.lend(4096);
    let mut ring = Ring::new(guest.memory(), driver.setup()).unwrap();
    let (available, used) = (DescriptorFlags::AVAIL.bits(), DescriptorFlags::USED.bits());
    let mut taken = 0;
    // Often enough to go around more than once.
    for flags in [available, used, available | used, 0].into_iter().cycle().take(60) {
        for place in 0..16 {
            let descriptor = [u64s(&[buffer]), u32s(&[64, u32::from(flags) << 16])].concat();
            guest.write(driver.parts().descriptors + 16 * place, &descriptor);
        }
        let mut burst = Burst::default();
        taken += ring.take(&mut burst, 5).unwrap_or(0);
        assert!(taken <= 16 && usize::from(ring.outstanding()) == taken);
    }
    assert_eq!(taken, 16);
    assert!(matches!(ring.broken(), Some(Broken::Ahead { .. })));
}

/// CVE-2020-10726: every requested record stayed mapped and open.
#[test]
fn repeated_record_requests_keep_no_record() {
    let (place, switch) = (SocketPath::new("records"), Switch::new());
    let _socket = Socket::serve(&switch.port, &place.0, Role::Server).unwrap();
    let wire = Wire(UnixStream::connect(&place.0).unwrap());
    wire.agree(MRG).unwrap();
    let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
    // Other tests of this process have records, too; only those of this test's session count.
    let kept = |records: &[u64]| {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let open = open.filter_map(|entry| std::fs::metadata(entry.path()).ok());
        let open = open.filter(|open| records.contains(&open.ino())).count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // Source: proc(5): the inode is the fifth column.
        let mapped = maps.lines().filter(|line| line.contains("vhost-inflight"));
        let mapped = mapped.filter_map(|line| line.split_whitespace().nth(4)?.parse().ok());
        (open, mapped.filter(|inode| records.contains(inode)).count())
    };
    let asked = [u64s(&[0, 0]), vec![4, 0, 0, 1]].concat();
    let (mut record, mut file) = wire.ask(31, &asked).unwrap();
    let mut records = vec![inode(file.as_ref().unwrap())];
    for _ in 0..100 {
        (record, file) = wire.ask(31, &asked).unwrap();
        let new = file.as_ref().unwrap();
        records.push(inode(new));
        wire.tell(32, &record, &[new.as_fd()]).unwrap();
    }
    // The test's own file, and the mapping of the last record.
    assert_eq!((kept(&records), record.len()), ((1, 1), 20));
    drop(file);
}

/// A thread may poll the ports of many guests. A frontend fills the eventfd for calls and makes it blocking, so that a
/// write would wait for it.
#[test]
fn a_full_blocking_eventfd_delays_no_neighbour() {
    let (switch, mut guest) = (Switch::new(), Guest::new(MRG));
    let mut frontend = guest.connect(&switch.port);
    let (other_switch, mut neighbour) = (Switch::new(), Guest::new(MRG));
    let mut other_frontend = neighbour.connect(&other_switch.port);
    let (call, kick, neighbour_call) = (event(), event(), event());
    frontend.tell(13, &u64s(&[1]), vec![same(&call)]);
    frontend.tell(12, &u64s(&[1]), vec![same(&kick)]);
    other_frontend.tell(13, &u64s(&[1]), vec![same(&neighbour_call)]);
    count(&neighbour_call);
    count(&call);
    for eventfd in [&call, &kick] {
        rustix::fs::fcntl_setfl(eventfd, rustix::fs::OFlags::RDWR).unwrap();
    }
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for _ in 0..3 {
        guest.say(b"from the hostile guest");
        neighbour.say(b"from its neighbour");
        assert_eq!(switch.packets(), [b"from the hostile guest"]);
        assert_eq!(other_switch.packets(), [b"from its neighbour"]);
        assert_eq!(count(&neighbour_call), 1);
        switch.port.wait(1, std::time::Duration::from_millis(1));
    }
    assert_eq!(count(&call), u64::MAX, "as far as there is room");
}
