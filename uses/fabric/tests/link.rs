//! Both ends of a connection in one process.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "vouches for buffers of the tests")]
#![allow(clippy::cast_possible_truncation, reason = "tests truncate small numbers")]

use std::time::{Duration, Instant};
use telpher_fabric::entry::{Answer, Envelope, INLINE_BYTES, Message, MessageId};
use telpher_fabric::{Arrived, Buffer, Config, FabricError, Payload, PushError, Segments, link};
use telpher_mem::{Local, Space};

/// Far more than any test takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Vouches for bytes that outlive the push.
fn segments(parts: &[&[u8]]) -> Segments {
    // SAFETY: the bytes are only read, before the test changes them.
    let buffers =
        parts.iter().map(|part| unsafe { Buffer::vouch(part.as_ptr().expose_provenance() as u64, part.len() as u64) });
    Segments::new(&buffers.collect::<Vec<_>>()).unwrap()
}

fn eager(tag: u64, len: usize) -> Message {
    let envelope = Envelope { is_tagged: true, tag, data: None, len: len as u64 };
    Message::Eager { envelope, wants_answer: None }
}

/// Returns the tag and the bytes of an eager message.
fn received(arrived: &Arrived<'_>) -> (u64, Vec<u8>) {
    let Message::Eager { envelope, .. } = arrived.message() else { panic!("{:?}", arrived.message()) };
    let bytes = match arrived.payload() {
        Payload::Inline(bytes) => bytes[..envelope.len as usize].to_vec(),
        Payload::Shared { address, len } => {
            let mut bytes = vec![0; *len as usize];
            // SAFETY: reads the connection's memory only.
            unsafe { Local::new() }.read(*address, &mut bytes).unwrap();
            bytes
        }
    };
    (envelope.tag, bytes)
}

/// Bytes that depend on a number.
fn bytes(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ number.wrapping_mul(7)) as u8).collect()
}

#[test]
fn messages_of_all_lengths_arrive_in_order() {
    let config = Config::default();
    let (mut outgoing, mut incoming) = link(&config).unwrap();
    assert!(incoming.next_message().unwrap().is_none());
    let lengths = [0, 1, 7, 31, 32, 33, 63, 64, 65, 1000, 4096, config.eager_bytes as usize];
    for number in 0..5000 {
        let len = lengths[number % lengths.len()];
        let sent = bytes(number, len);
        let (one, rest) = sent.split_at(len / 3);
        let (two, three) = rest.split_at(rest.len() / 2);
        outgoing.push(&eager(number as u64, len), &segments(&[one, two, &[], three])).unwrap();
        let arrived = incoming.next_message().unwrap().unwrap();
        assert_eq!(received(&arrived), (number as u64, sent));
    }
}

#[test]
fn a_full_connection_refuses_and_goes_on() {
    for len in [8, 100, 5000] {
        let (mut outgoing, mut incoming) = link(&Config::default()).unwrap();
        let (mut pushed, mut taken) = (0, 0);
        for _ in 0..20 {
            let sent = loop {
                let sent = bytes(pushed, len);
                match outgoing.push(&eager(pushed as u64, len), &segments(&[&sent])) {
                    Ok(()) => pushed += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(sent, PushError::Full);
            while let Some(arrived) = incoming.next_message().unwrap() {
                assert_eq!(received(&arrived), (taken as u64, bytes(taken, len)));
                taken += 1;
            }
            assert_eq!(taken, pushed);
        }
        assert!(pushed > 20);
    }
}

#[test]
fn a_message_that_is_left_in_the_ring_comes_again() {
    let (mut outgoing, mut incoming) = link(&Config::default()).unwrap();
    for number in 0..2 {
        outgoing.push(&eager(number, 50), &segments(&[&[number as u8; 50]])).unwrap();
    }
    for _ in 0..3 {
        let arrived = incoming.next_message().unwrap().unwrap();
        assert_eq!(received(&arrived), (0, vec![0; 50]));
        arrived.leave();
    }
    drop(incoming.next_message().unwrap());
    assert_eq!(received(&incoming.next_message().unwrap().unwrap()), (1, vec![1; 50]));
}

#[test]
fn answers_arrive_and_the_ring_of_answers_can_be_full() {
    let (mut outgoing, mut incoming) = link(&Config::default()).unwrap();
    let mut slots = [0; 24];
    slots[..3].copy_from_slice(&[5, 63, 7]);
    let sent = [
        Answer::Matched { id: MessageId(3), len: 1 << 40 },
        Answer::SlotsFree { count: 3, slots },
        Answer::Received { id: MessageId(u32::MAX) },
    ];
    for _ in 0..3 {
        let mut count = 0;
        while incoming.push_answer(&sent[count % 3]).is_ok() {
            count += 1;
        }
        assert_eq!(count, 512);
        for number in 0..count {
            assert_eq!(outgoing.next_answer().unwrap(), Some(sent[number % 3]));
        }
        assert_eq!(outgoing.next_answer().unwrap(), None);
    }
}

#[test]
fn a_bad_buffer_is_reported_and_nothing_is_pushed() {
    let (mut outgoing, mut incoming) = link(&Config::default()).unwrap();
    for len in [8_u64, INLINE_BYTES as u64 + 1, 5000] {
        // SAFETY: no byte of the first page is mapped, and the operation reports that.
        let bad = Segments::new(&[unsafe { Buffer::vouch(64, len) }]).unwrap();
        assert_eq!(outgoing.push(&eager(1, len as usize), &bad), Err(PushError::BadBuffer { address: 64 }));
    }
    assert!(incoming.next_message().unwrap().is_none());
    outgoing.push(&eager(2, 40), &segments(&[&[9; 40]])).unwrap();
    assert_eq!(received(&incoming.next_message().unwrap().unwrap()), (2, vec![9; 40]));
}

#[test]
fn a_payload_of_another_length_than_the_message_is_refused() {
    let (mut outgoing, mut incoming) = link(&Config::default()).unwrap();
    let long = vec![0; 9000];
    for (announced, given) in [(8, 7), (0, 1), (40, 41), (9000, 9000), (0, 9000)] {
        let pushed = outgoing.push(&eager(1, announced), &segments(&[&long[..given]]));
        assert_eq!(pushed, Err(PushError::WrongLength { len: given as u64 }), "{announced}");
    }
    assert!(incoming.next_message().unwrap().is_none());
}

#[test]
fn both_ends_see_the_same_slots() {
    let (outgoing, incoming) = link(&Config::default()).unwrap();
    // SAFETY: accesses the connection's memory only.
    let local = unsafe { Local::new() };
    for index in 0..outgoing.memory().slots() {
        local.write(outgoing.slot(index), &[index as u8; 100], telpher_mem::WriteHint::Cache).unwrap();
    }
    let mut found = [0; 100];
    for index in 0..incoming.memory().slots() {
        local.read(incoming.slot(index).unwrap(), &mut found).unwrap();
        assert_eq!(found, [index as u8; 100]);
    }
    assert_eq!(
        (incoming.slot(incoming.memory().slots()), outgoing.slot(outgoing.memory().slots())),
        (None, outgoing.slot(0))
    );
    assert_eq!((outgoing.memory().slot_bytes(), incoming.memory().slot_bytes()), (16 << 10, 16 << 10));
}

#[test]
fn a_size_outside_its_limits_is_named() {
    let mut config = Config::default();
    config.ring_entries = 500;
    let error = link(&config).unwrap_err();
    assert!(matches!(error, FabricError::WrongSize { .. }));
    assert_eq!(error.to_string(), "the number of ring entries is 500; it must be a power of two from 8 to 65536");
}

#[test]
fn two_threads_exchange_messages() {
    const COUNT: u64 = 5_000;
    let (mut outgoing, mut incoming) = link(&Config::default()).unwrap();
    let end = Instant::now() + LIMIT;
    let receiver = std::thread::spawn(move || {
        for number in 0..COUNT {
            let arrived = loop {
                assert!(Instant::now() < end, "message {number} does not arrive");
                if let Some(arrived) = incoming.next_message().unwrap() {
                    break received(&arrived);
                }
                std::thread::yield_now();
            };
            assert_eq!(arrived, (number, bytes(number as usize, (number % 600) as usize)));
            while incoming.push_answer(&Answer::Received { id: MessageId(number as u32) }).is_err() {
                assert!(Instant::now() < end, "answer {number} has no room");
                std::thread::yield_now();
            }
        }
    });
    let mut answered = 0;
    let mut number = 0;
    while answered < COUNT {
        assert!(Instant::now() < end, "only {answered} answers arrive");
        if number < COUNT {
            let sent = bytes(number as usize, (number % 600) as usize);
            match outgoing.push(&eager(number, sent.len()), &segments(&[&sent])) {
                Ok(()) => number += 1,
                Err(error) => assert_eq!(error, PushError::Full),
            }
        }
        match outgoing.next_answer().unwrap() {
            Some(answer) => {
                assert_eq!(answer, Answer::Received { id: MessageId(answered as u32) });
                answered += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    receiver.join().unwrap();
}

#[test]
fn lost_memory_ends_the_connection() {
    let (mut outgoing, mut incoming) = link(&Config::default()).unwrap();
    outgoing.push(&eager(1, 8), &segments(&[&[1; 8]])).unwrap();
    incoming.memory().mapping().revoke().unwrap();
    let broken = incoming.next_message().unwrap_err();
    assert_eq!(broken.to_string(), "the connection is broken: the system has no memory for it");
    assert_eq!(incoming.push_answer(&Answer::Received { id: MessageId(1) }), Err(PushError::Broken(broken)));
    assert!(!incoming.memory().is_whole());
    // The other end has its own mapping.
    assert_eq!(outgoing.next_answer(), Ok(None));
    outgoing.memory().mapping().revoke().unwrap();
    assert_eq!(outgoing.next_answer(), Err(broken));
    assert_eq!(outgoing.push(&eager(1, 100), &segments(&[&[1; 100]])), Err(PushError::Broken(broken)));
}
