//! Loom: a packet's copies are marked by two threads that poll the lanes, while the virtqueue's thread looks and goes on to the next packet
//! in the same slot. Properties: who sees that a packet has landed sees the bytes of all its copies, also if it has but one, whose mark is a
//! plain store; and a copy that the virtqueue withdraws from its lane, under the lane's lock, is not marked in its packet's successor.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-vhost --test loom_board`.
//! Seen to fail with the Release of either kind of `mark` weakened to Relaxed, with the Acquire of `has_landed` weakened to Relaxed, with the
//! decrement made a load and a store, and with a lane that marks what was withdrawn.
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells")]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/board.rs"]
mod board;

use board::Board;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// What a copy writes.
struct Bytes(UnsafeCell<u32>);
// SAFETY: loom's cell objects to every race.
unsafe impl Sync for Bytes {}
// SAFETY: as above.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new() -> Bytes {
        Bytes(UnsafeCell::new(0))
    }

    fn write(&self) {
        // SAFETY: loom's cell objects to every race.
        self.0.with_mut(|byte| unsafe { *byte = 1 });
    }

    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|byte| unsafe { *byte })
    }
}

fn wait_for(board: &Board, packet: u64) {
    while !board.has_landed(packet) {
        thread::yield_now();
    }
}

#[test]
fn who_sees_a_packet_landed_sees_its_bytes() {
    loom::model(|| {
        let board = Arc::new(Board::new(1));
        let bytes = Arc::new([Bytes::new(), Bytes::new()]);
        board.open(7, 2);
        let marker = |at: usize| {
            let (board, bytes) = (Arc::clone(&board), Arc::clone(&bytes));
            thread::spawn(move || {
                bytes[at].write();
                board.mark(7, false);
            })
        };
        let markers = [marker(0), marker(1)];
        wait_for(&board, 7);
        assert_eq!(bytes[0].read() + bytes[1].read(), 2);
        // The slot's next packet is nobody's of these.
        board.open(8, 1);
        assert!(!board.has_landed(8));
        markers.into_iter().for_each(|marker| marker.join().unwrap());
    });
}

#[test]
fn who_sees_a_packet_with_one_copy_landed_sees_its_bytes() {
    loom::model(|| {
        let board = Arc::new(Board::new(1));
        let bytes = Arc::new([Bytes::new(), Bytes::new()]);
        // What is handed over through a lane's lock, and the packet after it.
        let lane = Arc::new(Mutex::new(vec![7]));
        board.open(7, 1);
        let marker = {
            let (board, bytes, lane) = (Arc::clone(&board), Arc::clone(&bytes), Arc::clone(&lane));
            thread::spawn(move || {
                for byte in &*bytes {
                    let mut lane = lane.lock().unwrap();
                    if let Some(packet) = lane.pop() {
                        byte.write();
                        board.mark(packet, true);
                    }
                }
            })
        };
        if board.has_landed(7) {
            assert_eq!(bytes[0].read() + bytes[1].read(), 1);
            board.open(8, 1);
            lane.lock().unwrap().push(8);
        }
        marker.join().unwrap();
    });
}

#[test]
fn a_copy_that_was_withdrawn_is_not_marked_in_the_packet_after() {
    loom::model(|| {
        let board = Arc::new(Board::new(1));
        // The packet whose copy the lane has, and whether it was withdrawn.
        let lane = Arc::new(Mutex::new(Some((7, false))));
        board.open(7, 1);
        let poller = {
            let (board, lane) = (Arc::clone(&board), Arc::clone(&lane));
            thread::spawn(move || {
                let mut lane = lane.lock().unwrap();
                if let Some((packet, withdrawn)) = lane.take()
                    && !withdrawn
                {
                    board.mark(packet, true);
                }
            })
        };
        if let Some((_, withdrawn)) = &mut *lane.lock().unwrap() {
            *withdrawn = true;
        }
        // Landed, or ours to redo.
        board.open(7, 0);
        assert!(board.has_landed(7));
        board.open(8, 0);
        poller.join().unwrap();
        assert!(board.has_landed(8));
    });
}
