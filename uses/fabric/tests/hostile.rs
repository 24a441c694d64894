//! A peer that writes random words all over the shared memory while traffic runs.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "vouches for buffers of the test, reads the connection's memory")]
#![allow(clippy::cast_possible_truncation, reason = "the test truncates small numbers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use telpher_fabric::entry::{Answer, Envelope, Message, MessageId};
use telpher_fabric::{Buffer, Config, Incoming, Outgoing, Payload, PushError, Segments, link};
use telpher_mem::{Local, SharedWords64, Space};
use telpher_os::Random;

/// Connections of the test; each ends when both of its ends are broken, or after `STEPS`.
const CONNECTIONS: u64 = 60;
/// Calls of each end on one connection.
const STEPS: u64 = 20_000;

/// Sends messages of all kinds. Returns true if a rule was broken.
fn send(outgoing: &mut Outgoing, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let bytes = vec![7_u8; outgoing.memory().eager_bytes() as usize];
    for step in 0..STEPS {
        let len = if step % 2 == 0 { random.below(40) } else { random.below(bytes.len() as u64 + 1) };
        let envelope = Envelope { is_tagged: false, tag: 0, data: None, len };
        let id = MessageId(step as u32 % 50);
        let (message, len) = match step % 5 {
            0 => (Message::Announce { envelope, id }, 0),
            1 => (Message::Piece { id, slot: step as u16 % outgoing.memory().slots(), len: 100, offset: 0 }, 0),
            _ => (Message::Eager { envelope, wants_answer: None }, len),
        };
        // SAFETY: the bytes live longer than the call, and are only read.
        let buffer = unsafe { Buffer::vouch(bytes.as_ptr().expose_provenance() as u64, len) };
        match outgoing.push(&message, &Segments::new(&[buffer]).unwrap()) {
            Ok(()) | Err(PushError::Full) => {}
            Err(PushError::Broken(_)) => return true,
            Err(error) => panic!("{error}"),
        }
        if outgoing.next_answer().is_err() {
            return true;
        }
    }
    false
}

/// Takes messages and reads all that they name. Returns true if a rule was broken.
fn receive(incoming: &mut Incoming) -> bool {
    // SAFETY: reads the connection's memory.
    let local = unsafe { Local::new() };
    let mut bytes = vec![0; incoming.memory().slot_bytes() as usize];
    for _ in 0..STEPS {
        let slot = match incoming.next_message() {
            Err(_) => return true,
            Ok(None) => None,
            Ok(Some(arrived)) => match (arrived.message(), arrived.payload()) {
                (Message::Eager { envelope, .. }, Payload::Shared { address, len }) => {
                    assert_eq!(envelope.len, u64::from(*len));
                    local.read(*address, &mut bytes[..*len as usize]).unwrap();
                    None
                }
                (Message::Piece { slot, len, .. }, _) => Some((*slot, *len)),
                _ => None,
            },
        };
        let answer = match slot {
            Some((slot, len)) => {
                local.read(incoming.slot(slot).unwrap(), &mut bytes[..len as usize]).unwrap();
                let mut slots = [0; 24];
                slots[0] = slot;
                Answer::SlotsFree { count: 1, slots }
            }
            None => Answer::Received { id: MessageId(1) },
        };
        if matches!(incoming.push_answer(&answer), Err(PushError::Broken(_))) {
            return true;
        }
    }
    false
}

#[test]
fn random_writes_over_the_whole_memory_break_only_the_connection() {
    let broken = AtomicU64::new(0);
    for number in 0..CONNECTIONS {
        let (mut outgoing, mut incoming) = link(&Config::default()).unwrap();
        let memory = Arc::clone(outgoing.memory().mapping());
        let words = SharedWords64::new(&memory, 0, memory.len() / 8).unwrap();
        let rings = 2 * (4096 + 512 * 64) / 8;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let scribbling = scope.spawn(|| {
                let mut random = Random::new(number);
                // Relaxed: only an end of the loop.
                while !is_over.load(Ordering::Relaxed) {
                    // Half of the writes go to the rings and counts, which are a small part of the memory.
                    let range = if random.below(2) == 0 { rings } else { words.len() as u64 };
                    // Small numbers and plausible heads are more dangerous than random ones.
                    let value = match random.below(4) {
                        0 => random.below(2000),
                        1 => random.below(2000) | (random.below(20) << 32),
                        2 => random.below(2000) | (3 << 32) | (random.below(70) << 48),
                        _ => random.next(),
                    };
                    words[random.below(range) as usize].store(value, Ordering::Relaxed);
                }
            });
            let sending = scope.spawn(|| send(&mut outgoing, number));
            let receiving = scope.spawn(|| receive(&mut incoming));
            for end in [sending.join().unwrap(), receiving.join().unwrap()] {
                broken.fetch_add(end.into(), Ordering::Relaxed);
            }
            is_over.store(true, Ordering::Relaxed);
            scribbling.join().unwrap();
        });
    }
    // Most connections break; without any, the writes would have missed.
    assert!(broken.into_inner() > CONNECTIONS / 4);
}
