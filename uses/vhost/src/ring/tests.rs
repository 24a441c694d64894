//! Rings against a driver that follows the rules, and against memory that does not.

use super::*;
use crate::layout::DescriptorFlags;
use proptest::prelude::*;
use std::collections::VecDeque;

const ALL: [Features; 2] = [Features::empty(), Features::RING_PACKED];

fn modern(features: Features) -> Features {
    features | Features::VERSION_1 | Features::INDIRECT_DESC
}

fn pair(size: u16, features: Features, direction: Direction) -> (MockGuest, MockDriver, Ring) {
    let mut guest = MockGuest::new(8 << 20);
    let driver = MockDriver::new(&mut guest, size, modern(features), direction);
    let ring = Ring::new(guest.memory(), driver.setup()).unwrap();
    (guest, driver, ring)
}

fn lens(burst: &Burst) -> Vec<u32> {
    burst.chains().iter().map(|chain| chain.len).collect()
}

#[test]
fn chains_are_taken_in_order_and_returned_as_put() {
    for features in ALL {
        let (mut guest, mut driver, mut ring) = pair(8, features, Direction::Transmit);
        let buffer = guest.lend(4096);
        // Many times around the ring.
        for round in 0..100_u32 {
            let ids: Vec<u16> = (0..5).map(|n| driver.offer(&[(buffer, 100 * round + n + 1)]).unwrap()).collect();
            let mut burst = Burst::default();
            assert_eq!(ring.take(&mut burst, 3), Ok(3));
            assert_eq!(ring.take(&mut burst, 10), Ok(2));
            assert_eq!(ring.take(&mut burst, 10), Ok(0));
            assert_eq!(lens(&burst), (0..5).map(|n| 100 * round + n + 1).collect::<Vec<_>>());
            let host = guest.memory().host(buffer, 1).unwrap();
            for chain in burst.chains() {
                assert_eq!(burst.pieces(chain), [Piece { host, guest: buffer, len: chain.len }]);
            }
            assert_eq!((ring.outstanding(), ring.available()), (5, false));
            // The last chain first.
            let used: Vec<Used> = burst.chains().iter().rev().map(|chain| Used::of(chain, chain.len + 1)).collect();
            ring.put(&used);
            assert_eq!(driver.collect(), [], "no chain is visible before it is published");
            assert!(ring.publish());
            assert!(!ring.publish(), "nothing is new");
            let back: Vec<_> = (0..5).rev().map(|n| (ids[n as usize], 100 * round + n + 2)).collect();
            assert_eq!(driver.collect(), back);
            assert_eq!((ring.outstanding(), driver.lent()), (0, 0));
        }
    }
}

#[test]
fn a_packed_ring_may_have_any_size() {
    let (mut guest, mut driver, mut ring) = pair(1000, Features::RING_PACKED, Direction::Receive);
    let buffer = guest.lend(100_000);
    let mut burst = Burst::default();
    for n in 0..3000_u32 {
        driver.offer(&[(buffer, 7), (buffer, 8), (buffer, n + 1)]).unwrap();
        burst.clear();
        assert_eq!(ring.take(&mut burst, 2), Ok(1));
        assert_eq!((burst.chains()[0].descriptors, burst.chains()[0].len), (3, n + 16));
        ring.put(&[Used::of(&burst.chains()[0], 1)]);
        assert!(ring.publish());
        assert_eq!(driver.collect().len(), 1);
    }
    let odd = RingSetup { size: 1000, features: Features::VERSION_1, ..driver.setup() };
    assert_eq!(Ring::new(guest.memory(), odd).unwrap_err(), RingError::Size { size: 1000 });
}

#[test]
fn chains_and_tables_give_the_same_pieces() {
    for features in ALL {
        let (mut guest, mut driver, mut ring) = pair(16, features, Direction::Receive);
        let (buffer, table) = (guest.lend(3 << 20), guest.lend(4096));
        let buffers = [(buffer, 12), (buffer + 5000, 1500), (buffer + 9, 0), (buffer + (2 << 20), 1 << 19)];
        driver.offer(&buffers).unwrap();
        driver.offer_indirect(&guest, table, &buffers).unwrap();
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 10), Ok(2));
        let [plain, indirect] = burst.chains() else { panic!("two chains") };
        assert_eq!(burst.pieces(plain), burst.pieces(indirect));
        assert_eq!((plain.len, indirect.len), (1512 + (1 << 19), plain.len));
        assert_eq!(burst.pieces(plain).len(), 3, "an empty buffer is no piece");
        assert_eq!((plain.descriptors, indirect.descriptors), if features.is_empty() { (1, 1) } else { (4, 1) });
        ring.put(&burst.chains().iter().map(|chain| Used::of(chain, 5)).collect::<Vec<_>>());
        assert!(ring.publish());
        assert_eq!(driver.collect().len(), 2);
    }
}

#[test]
fn chains_of_any_number_of_descriptors_have_their_own_pieces() {
    for (features, size) in [(Features::empty(), 64), (Features::RING_PACKED, 61)] {
        let (mut guest, mut driver, mut ring) = pair(size, features, Direction::Receive);
        let memory = Arc::clone(guest.memory());
        let buffer = guest.lend(1 << 20);
        let (mut number, mut burst) = (0, Burst::default());
        // Many times around the ring, in bursts that start and end anywhere: adjacent chains of one descriptor, of two,
        // and of more than are followed at once.
        for round in 0..300 {
            let mut offered = VecDeque::new();
            while offered.len() < 20 {
                let buffers: Vec<_> = (0..[1, 1, 1, 2, 2, 3, 8, 9, 12][number % 9])
                    .map(|n: u32| (buffer + 16 * u64::from(n) + number as u64 % 4096, 1 + n))
                    .collect();
                let Some(id) = driver.offer(&buffers) else { break };
                offered.push_back((id, buffers));
                number += 1 + round % 4;
            }
            burst.clear();
            while ring.take(&mut burst, 1 + number % 7).unwrap() > 0 {}
            assert_eq!(burst.chains().len(), offered.len());
            for (chain, (id, buffers)) in burst.chains().iter().zip(&offered) {
                let host = |guest, len| memory.host(guest, len).unwrap();
                let pieces = buffers.iter().map(|&(guest, len)| Piece { host: host(guest, len), guest, len });
                assert_eq!(burst.pieces(chain), pieces.collect::<Vec<_>>());
                let descriptors = if features.is_empty() { 1 } else { buffers.len() };
                assert_eq!((chain.id, usize::from(chain.descriptors), chain.dropped), (*id, descriptors, None));
                assert_eq!(chain.len, buffers.iter().map(|buffer| buffer.1).sum::<u32>());
            }
            ring.put(&burst.chains().iter().map(|chain| Used::of(chain, 0)).collect::<Vec<_>>());
            let _ = ring.publish();
            assert_eq!(driver.collect().len(), offered.len());
        }
    }
}

#[test]
fn untaken_chains_are_taken_again() {
    for features in ALL {
        let (mut guest, mut driver, mut ring) = pair(4, features, Direction::Transmit);
        let buffer = guest.lend(4096);
        for round in 0..50 {
            let first = driver.offer(&[(buffer, 1), (buffer, 1)]).unwrap();
            let second = driver.offer(&[(buffer, 3)]).unwrap();
            let mut burst = Burst::default();
            assert_eq!(ring.take(&mut burst, 4), Ok(2), "round {round}");
            ring.untake(&mut burst, 1);
            assert_eq!((lens(&burst), ring.outstanding(), ring.available()), (vec![2], 1, true));
            ring.untake(&mut burst, 0);
            assert_eq!((lens(&burst), ring.outstanding()), (vec![], 0));
            assert_eq!(ring.take(&mut burst, 4), Ok(2));
            assert_eq!(burst.chains().iter().map(|chain| chain.id).collect::<Vec<_>>(), [first, second]);
            ring.put(&burst.chains().iter().map(|chain| Used::of(chain, 0)).collect::<Vec<_>>());
            assert!(ring.publish());
            assert_eq!(driver.collect(), [(first, 0), (second, 0)]);
        }
    }
}

/// What broke: a packed ring that was completely taken and untaken had the wrong wrap counter, and no chain was ever
/// available again.
#[test]
fn a_whole_ring_can_be_untaken() {
    for features in ALL {
        for before in 0..5 {
            let (mut guest, mut driver, mut ring) = pair(4, features, Direction::Transmit);
            let buffer = guest.lend(4096);
            let mut burst = Burst::default();
            for _ in 0..before {
                driver.offer(&[(buffer, 1)]).unwrap();
                assert_eq!(ring.take(&mut burst, 1), Ok(1));
                ring.put(&[Used::of(&burst.chains()[0], 0)]);
                assert!(ring.publish());
                driver.collect();
                burst.clear();
            }
            (0..4).for_each(|_| assert!(driver.offer(&[(buffer, 1)]).is_some()));
            let base = ring.base();
            for keep in 0..=4 {
                assert_eq!(ring.take(&mut burst, 4), Ok(4));
                ring.untake(&mut burst, 4 - keep);
                ring.untake(&mut burst, 0);
                assert_eq!((ring.base(), ring.available(), ring.outstanding()), (base, true, 0));
            }
        }
    }
}

#[test]
fn chains_longer_than_any_drivers_are_dropped() {
    for features in ALL {
        let (mut guest, mut driver, mut ring) = pair(2048, features, Direction::Transmit);
        let (buffer, table) = (guest.lend(4096), guest.lend(1 << 15));
        for (count, dropped) in [(1024, None), (1025, Some(Dropped::Loop))] {
            driver.offer(&vec![(buffer, 1); count]).unwrap();
            driver.offer_indirect(&guest, table, &vec![(buffer, 1); count]).unwrap();
            let mut burst = Burst::default();
            assert_eq!(ring.take(&mut burst, 3), Ok(2));
            let [plain, indirect] = burst.chains() else { panic!("two chains") };
            assert_eq!((plain.dropped, indirect.dropped), (dropped, dropped.map(|_| Dropped::Table)));
            assert_eq!(burst.pieces(indirect).len(), if dropped.is_none() { count } else { 0 });
            ring.put(&burst.chains().iter().map(|chain| Used::of(chain, 0)).collect::<Vec<_>>());
            let _ = ring.publish();
            assert_eq!(driver.collect().len(), 2);
        }
    }
}

#[test]
fn a_buffer_over_many_regions_is_bounded() {
    let mut guest = MockGuest::new(8 << 20);
    let mut memory = GuestMemory::clone(guest.memory());
    let far = 1 << 40;
    for n in 0..500 {
        let region = crate::Region { guest: far + n, len: 1, user: far + n, offset: n };
        memory = memory.with(region, std::os::fd::AsFd::as_fd(guest.file())).unwrap();
    }
    for features in ALL {
        let mut driver = MockDriver::new(&mut guest, 8, modern(features), Direction::Transmit);
        let mut ring = Ring::new(&Arc::new(memory.clone()), driver.setup()).unwrap();
        driver.offer(&[(far, 500), (far, 500)]).unwrap();
        driver.offer(&[(far, 500); 4]).unwrap();
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 8), Ok(2));
        assert_eq!(burst.pieces(&burst.chains()[0]).len(), 1000);
        assert_eq!(burst.chains()[1].dropped, Some(Dropped::Loop));
    }
}

#[test]
fn an_invalid_chain_is_returned_and_the_next_is_intact() {
    use DescriptorFlags as F;
    for features in ALL {
        let (mut guest, mut driver, mut ring) = pair(8, features, Direction::Transmit);
        let (good, table) = (guest.lend(4096), guest.lend(4096));
        let end = guest.region().guest + guest.region().len;
        guest.write(table, &[0xff; 64]);
        type Links = [(u64, u32, F)];
        let cases: [(&Links, Dropped); 12] = [
            (&[(good, 10, F::WRITE)], Dropped::Direction),
            (&[(good, 10, F::empty()), (good, 10, F::WRITE)], Dropped::Direction),
            (&[(0, 1, F::empty())], Dropped::Address),
            (&[(end - 1, 2, F::empty())], Dropped::Address),
            (&[(u64::MAX, 2, F::empty())], Dropped::Address),
            (&[(u64::MAX, u32::MAX, F::empty())], Dropped::Address),
            (&[(good, 10, F::empty()), (end, 1, F::empty())], Dropped::Address),
            (&[(table, 17, F::INDIRECT)], Dropped::Table),
            (&[(table, 0, F::INDIRECT)], Dropped::Table),
            (&[(table, 9 * 16, F::INDIRECT)], Dropped::Table),
            (&[(end - 16, 32, F::INDIRECT)], Dropped::Table),
            (&[(table, 16, F::INDIRECT)], Dropped::Indirect),
        ];
        for (links, reason) in cases {
            let bad = driver.offer_links(links).unwrap();
            let next = driver.offer(&[(good, 5)]).unwrap();
            let mut burst = Burst::default();
            assert_eq!(ring.take(&mut burst, 8), Ok(2));
            let [dropped, whole] = burst.chains() else { panic!("two chains") };
            assert_eq!((dropped.dropped, dropped.len, burst.pieces(dropped)), (Some(reason), 0, &[][..]), "{links:?}");
            assert_eq!((whole.dropped, whole.len), (None, 5));
            ring.put(&burst.chains().iter().map(|chain| Used::of(chain, 0)).collect::<Vec<_>>());
            assert!(ring.publish());
            assert_eq!(driver.collect(), [(bad, 0), (next, 0)]);
        }
    }
}

/// A table of a packed ring whose descriptors have the write flag: DPDK's driver sends such tables for packets without
/// room for the header in their buffers. They were dropped, and no more packets were sent.
#[test]
fn a_packed_rings_table_is_read_despite_its_write_flag() {
    for (direction, flags) in
        [(Direction::Transmit, DescriptorFlags::WRITE), (Direction::Receive, DescriptorFlags::empty())]
    {
        let (mut guest, mut driver, mut ring) = pair(8, Features::RING_PACKED | Features::INDIRECT_DESC, direction);
        let (buffer, table) = (guest.lend(4096), guest.lend(4096));
        driver.offer_indirect(&guest, table, &[(buffer, 12), (buffer, 60)]).unwrap();
        (0..2).for_each(|index| guest.write(table + 16 * index + 14, &flags.bits().to_le_bytes()));
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 8), Ok(1));
        // Buffers without the write flag are never written.
        let expected = if direction == Direction::Transmit { (None, 72) } else { (Some(Dropped::Direction), 0) };
        assert_eq!((burst.chains()[0].dropped, burst.chains()[0].len), expected);
    }
}

#[test]
fn lengths_that_wrap_are_detected() {
    for features in ALL {
        // Four buffers of nearly a gigabyte, all the same gigabyte.
        let mut guest = MockGuest::new(1 << 30);
        let mut driver = MockDriver::new(&mut guest, 8, modern(features), Direction::Receive);
        let mut ring = Ring::new(guest.memory(), driver.setup()).unwrap();
        let buffer = guest.lend(4096);
        let much = (1 << 30) - (1 << 20);
        driver.offer(&[(buffer, much); 5]).unwrap();
        driver.offer(&[(buffer, much); 3]).unwrap();
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 8), Ok(2));
        assert_eq!((burst.chains()[0].dropped, burst.chains()[1].len), (Some(Dropped::Length), 3 * much));
    }
}

#[test]
fn a_split_chain_that_loops_or_leaves_its_table_is_dropped() {
    let (mut guest, mut driver, mut ring) = pair(4, Features::empty(), Direction::Transmit);
    let buffer = guest.lend(4096);
    let id = driver.offer(&[(buffer, 1), (buffer, 1)]).unwrap();
    let next = |place: u16, to: u16| {
        let at = driver.parts().descriptors + 16 * u64::from(place);
        guest.write(at + 12, &DescriptorFlags::NEXT.bits().to_le_bytes());
        guest.write(at + 14, &to.to_le_bytes());
    };
    for (to, reason) in [(id, Dropped::Loop), (4, Dropped::Next), (u16::MAX, Dropped::Next)] {
        (0..4).for_each(|place| next(place, to));
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 1), Ok(1));
        assert_eq!(burst.chains()[0].dropped, Some(reason));
        ring.untake(&mut burst, 0);
    }
}

#[test]
fn invalid_indices_break_the_ring() {
    let (guest, driver, mut ring) = pair(8, Features::empty(), Direction::Transmit);
    let index = |value: u16| guest.write(driver.parts().driver + 2, &value.to_le_bytes());
    let mut burst = Burst::default();
    index(9);
    let ahead = Err(Broken::Ahead { ahead: 9, size: 8 });
    assert_eq!(ring.take(&mut burst, 1), ahead);
    index(0);
    assert_eq!((ring.take(&mut burst, 1), ring.broken()), (ahead, ahead.err()), "until it is set up again");

    let mut ring = Ring::new(guest.memory(), driver.setup()).unwrap();
    guest.write(driver.parts().driver + 4, &[0, 0, 8, 0]);
    index(2);
    assert_eq!(ring.take(&mut burst, 8), Ok(1), "earlier chains are still taken");
    assert_eq!(ring.take(&mut burst, 8), Err(Broken::Head { head: 8, size: 8 }));

    // More chains than the ring can hold, while some are taken.
    let mut ring = Ring::new(guest.memory(), driver.setup()).unwrap();
    guest.write(driver.parts().driver + 4, &[0; 16]);
    index(8);
    burst.clear();
    assert_eq!(ring.take(&mut burst, 8), Ok(8));
    index(9);
    assert_eq!(ring.take(&mut burst, 1), Err(Broken::Ahead { ahead: 9, size: 8 }));
}

#[test]
fn a_packed_ring_never_takes_a_descriptor_twice() {
    let (mut guest, mut driver, mut ring) = pair(8, Features::RING_PACKED, Direction::Transmit);
    let buffer = guest.lend(4096);
    (0..8).for_each(|_| assert!(driver.offer(&[(buffer, 1)]).is_some()));
    let mut burst = Burst::default();
    assert_eq!(ring.take(&mut burst, 100), Ok(8));
    // All chains made available again, as if they had been used.
    let flipped = DescriptorFlags::USED.bits().to_le_bytes();
    (0..8).for_each(|place| guest.write(driver.parts().descriptors + 16 * place + 14, &flipped));
    assert_eq!(ring.take(&mut burst, 100), Err(Broken::Ahead { ahead: 9, size: 8 }));
    // An endless chain takes the whole ring, once.
    let mut ring = Ring::new(guest.memory(), driver.setup()).unwrap();
    let next = (DescriptorFlags::AVAIL | DescriptorFlags::NEXT).bits().to_le_bytes();
    (0..8).for_each(|place| guest.write(driver.parts().descriptors + 16 * place + 14, &next));
    burst.clear();
    assert_eq!(ring.take(&mut burst, 100), Ok(1));
    assert_eq!((burst.chains()[0].dropped, burst.chains()[0].descriptors), (Some(Dropped::Loop), 8));
}

#[test]
fn memory_that_disappears_breaks_the_ring() {
    for features in ALL {
        let (guest, _, mut ring) = pair(8, features, Direction::Transmit);
        rustix::fs::ftruncate(guest.file(), 0).unwrap();
        let mut burst = Burst::default();
        // The first access detects it.
        let _ = ring.take(&mut burst, 1);
        assert_eq!(ring.take(&mut burst, 1), Err(Broken::Torn));
    }
}

/// What broke: a ring whose own memory had disappeared with its file, before or during its setup, looked empty for
/// ever.
#[test]
fn memory_missing_from_the_start_breaks_the_ring() {
    for features in ALL {
        for touched in [false, true] {
            let (guest, driver, _ring) = pair(8, features, Direction::Transmit);
            rustix::fs::ftruncate(guest.file(), 0).unwrap();
            if touched {
                guest.write(driver.parts().descriptors, &[0]);
            }
            let mut ring = Ring::new(guest.memory(), driver.setup()).unwrap();
            let mut burst = Burst::default();
            let _ = ring.take(&mut burst, 1);
            assert_eq!(ring.take(&mut burst, 1), Err(Broken::Torn));
        }
    }
}

/// What broke: the guest's used index moved the ring's own position when its memory changed.
#[test]
fn a_moved_ring_keeps_its_indices_whatever_the_guest_writes() {
    for features in ALL {
        let (mut guest, mut driver, mut ring) = pair(8, features, Direction::Transmit);
        let buffer = guest.lend(4096);
        (0..6).for_each(|_| assert!(driver.offer(&[(buffer, 1)]).is_some()));
        let mut burst = Burst::default();
        assert_eq!(ring.take(&mut burst, 4), Ok(4));
        ring.put(&[Used::of(&burst.chains()[0], 0), Used::of(&burst.chains()[1], 0)]);
        let _ = ring.publish();
        let (base, outstanding) = (ring.base(), ring.outstanding());
        guest.write(driver.parts().device + 2, &40_000_u16.to_le_bytes());
        let mut ring = ring.moved_to(guest.memory()).unwrap();
        assert_eq!((ring.base(), ring.outstanding()), (base, outstanding));
        assert_eq!(ring.take(&mut burst, 8), Ok(2));
    }
}

#[test]
fn invalid_rings_are_refused() {
    for features in ALL {
        let (guest, driver, _) = pair(8, features, Direction::Transmit);
        let setup = driver.setup();
        let refused = |setup| Ring::new(guest.memory(), setup).unwrap_err();
        assert_eq!(refused(RingSetup { size: 0, ..setup }), RingError::Size { size: 0 });
        assert_eq!(refused(RingSetup { size: 1 << 15 | 1, ..setup }), RingError::Size { size: 1 << 15 | 1 });
        for part in 0..3 {
            for address in [0, u64::MAX, u64::MAX - 100, driver.parts().descriptors, setup.addresses.descriptors + 1] {
                let mut addresses = setup.addresses;
                *[&mut addresses.descriptors, &mut addresses.driver, &mut addresses.device][part] = address;
                let error = refused(RingSetup { addresses, ..setup });
                assert!(matches!(error, RingError::Part { .. }), "{part} at {address:#x}: {error}");
            }
        }
    }
    let (guest, driver, _) = pair(8, Features::RING_PACKED, Direction::Transmit);
    let beyond = RingSetup { base: Base { available: 8, used: 0 }, ..driver.setup() };
    assert_eq!(Ring::new(guest.memory(), beyond).unwrap_err(), RingError::Base { base: 8, size: 8 });
}

#[test]
fn the_driver_is_called_when_it_wants_to_be() {
    for features in ALL {
        for events in [false, true] {
            let agreed = if events { features | Features::EVENT_IDX } else { features };
            let (mut guest, mut driver, mut ring) = pair(8, agreed, Direction::Receive);
            let buffer = guest.lend(4096);
            let mut use_some = |driver: &mut MockDriver, count: usize| {
                (0..count).for_each(|_| assert!(driver.offer(&[(buffer, 1)]).is_some()));
                let mut burst = Burst::default();
                assert_eq!(ring.take(&mut burst, 8), Ok(count));
                ring.put(&burst.chains().iter().map(|chain| Used::of(chain, 1)).collect::<Vec<_>>());
                let called = ring.publish();
                assert_eq!(driver.collect().len(), count);
                called
            };
            if events {
                assert!(use_some(&mut driver, 1), "the first always calls");
                for round in 0..60 {
                    driver.want_call_after(3);
                    assert!(!use_some(&mut driver, 2), "round {round}");
                    assert!(use_some(&mut driver, 1), "round {round}");
                    assert!(!use_some(&mut driver, 5), "round {round}");
                    driver.want_call_after(3);
                    assert!(use_some(&mut driver, 5), "round {round}");
                }
            } else {
                driver.want_calls(false);
                assert!(!use_some(&mut driver, 3));
                driver.want_calls(true);
                assert!(use_some(&mut driver, 3));
            }
        }
    }
}

#[test]
fn the_driver_kicks_when_kicks_are_wanted() {
    for features in ALL {
        let (_guest, driver, mut ring) = pair(8, features, Direction::Receive);
        ring.want_kicks(false);
        assert!(!driver.kicks_are_wanted());
        ring.want_kicks(true);
        assert!(driver.kicks_are_wanted());
    }
}

#[test]
fn every_ring_byte_written_is_reported_to_the_log() {
    for features in ALL {
        let (mut guest, mut driver, mut ring) = pair(8, features, Direction::Receive);
        let buffer = guest.lend(4096);
        let parts = driver.parts();
        let (at, len) = if features.is_empty() { (parts.device, 4 + 8 * 8) } else { (parts.descriptors, 16 * 8) };
        let user =
            if features.is_empty() { driver.setup().addresses.device } else { driver.setup().addresses.descriptors };
        for round in 0..20 {
            (0..5).for_each(|_| assert!(driver.offer(&[(buffer, 1)]).is_some()));
            let mut burst = Burst::default();
            ring.take(&mut burst, 8).unwrap();
            let before = guest.read(at, len);
            let used: Vec<_> = burst.chains().iter().map(|chain| Used::of(chain, round + 1)).collect();
            ring.put(&used[..2]);
            ring.put(&used[2..]);
            let _ = ring.publish();
            let mut logged = vec![false; len];
            ring.written(|from, bytes| {
                let from = usize::try_from(from - user).unwrap();
                logged[from..from + usize::try_from(bytes).unwrap()].fill(true);
            });
            let after = guest.read(at, len);
            assert!((0..len).all(|at| before[at] == after[at] || logged[at]), "round {round}");
            assert!(logged.iter().filter(|&&logged| logged).count() <= 16 * 5 + 2);
            driver.collect();
        }
    }
}

#[test]
fn a_ring_resumes_where_its_predecessor_stopped() {
    for features in ALL {
        let (mut guest, mut driver, mut ring) = pair(8, features, Direction::Receive);
        let buffer = guest.lend(4096);
        for n in 0..40_u32 {
            driver.offer(&[(buffer, n + 1)]).unwrap();
            driver.offer(&[(buffer, n + 1)]).unwrap();
            let mut burst = Burst::default();
            assert_eq!(ring.take(&mut burst, 1), Ok(1));
            ring.put(&[Used::of(&burst.chains()[0], 1)]);
            let _ = ring.publish();
            // As after a restart, and as after a change of memory.
            let again = RingSetup { base: ring.base(), ..driver.setup() };
            ring = if n % 2 == 0 {
                Ring::new(guest.memory(), again).unwrap()
            } else {
                ring.moved_to(guest.memory()).unwrap()
            };
            assert_eq!(ring.take(&mut burst, 8), Ok(1));
            assert_eq!(burst.chains()[1].len, n + 1);
            ring.put(&[Used::of(&burst.chains()[1], 1)]);
            let _ = ring.publish();
            assert_eq!(driver.collect().len(), 2);
        }
    }
}

#[test]
fn a_split_ring_with_an_invalid_base_resumes_at_its_used_index() {
    let (guest, driver, _) = pair(8, Features::empty(), Direction::Receive);
    guest.write(driver.parts().device + 2, &33920_u16.to_le_bytes());
    let ring = Ring::new(guest.memory(), driver.setup()).unwrap();
    assert_eq!(ring.base(), Base { available: 33920, used: 33920 });
}

proptest! {
    /// For any sizes, chains, tables and orders: every offered chain is taken, and every returned chain is collected.
    #[test]
    fn no_chain_is_lost_or_duplicated(
        packed: bool,
        size in 0_u32..7,
        steps in prop::collection::vec((0_u8..4, 1_usize..6, any::<u32>()), 1..200),
    ) {
        let features = if packed { Features::RING_PACKED } else { Features::empty() };
        let (mut guest, mut driver, mut ring) = pair(1 << size, features, Direction::Receive);
        let (buffer, table) = (guest.lend(4096), guest.lend(4096));
        let (mut offered, mut taken) = (VecDeque::new(), Vec::new());
        let mut burst = Burst::default();
        let mut shown = VecDeque::new();
        for (step, count, chance) in steps {
            match step {
                0 | 1 => {
                    let buffers: Vec<_> = (0_u32..).take(count).map(|n| (buffer, chance % 1000 + n)).collect();
                    let len: u32 = buffers.iter().map(|buffer| buffer.1).sum();
                    // The single table belongs to another chain while one is in flight.
                    let id = if step == 1 && count <= 1 << size && driver.lent() == 0 {
                        driver.offer_indirect(&guest, table, &buffers)
                    } else {
                        driver.offer(&buffers)
                    };
                    offered.extend(id.map(|id| (id, len)));
                }
                2 => {
                    let before = burst.chains().len();
                    let got = ring.take(&mut burst, count).unwrap();
                    prop_assert_eq!(got, count.min(offered.len()));
                    for chain in &burst.chains()[before..] {
                        prop_assert_eq!(Some((chain.id, chain.len)), offered.pop_front());
                        prop_assert_eq!(chain.dropped, None);
                        taken.push(Used::of(chain, chance % 100));
                    }
                }
                _ => {
                    let count = count.min(taken.len());
                    let at = chance as usize % (taken.len() - count + 1);
                    let used: Vec<_> = taken.drain(at..at + count).collect();
                    ring.put(&used);
                    shown.extend(used.iter().map(|used| (used.id, used.written)));
                    let _ = ring.publish();
                    prop_assert_eq!(driver.collect(), shown.drain(..).collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(usize::from(ring.outstanding()), taken.len());
            prop_assert_eq!(driver.lent(), taken.len() + offered.len());
        }
    }
}

#[test]
#[should_panic(expected = "chains of one memory only")]
fn a_burst_has_chains_of_one_memory() {
    let (_guest, mut driver, mut ring) = pair(8, Features::empty(), Direction::Receive);
    let (_other, _, mut other) = pair(8, Features::empty(), Direction::Receive);
    driver.offer(&[(0, 0)]).unwrap();
    let mut burst = Burst::default();
    assert_eq!(ring.take(&mut burst, 1), Ok(1));
    let _ = other.take(&mut burst, 1);
}
