//! Loom: a packet's copies are marked by two threads that poll the lanes, while the virtqueue's thread looks and goes on to the next packet
//! in the same slot. Property: who sees that a packet has landed sees the bytes of all its copies.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-vhost --test loom_board`.
//! Seen to fail with the Release of `mark` weakened to Relaxed, with the Acquire of `has_landed` weakened to Relaxed, and with a mark that
//! does not compare the packet's number.
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
use loom::sync::Arc;
use loom::thread;

/// What a copy writes.
struct Bytes(UnsafeCell<u32>);
// SAFETY: loom's cell objects to every race.
unsafe impl Sync for Bytes {}
// SAFETY: as above.
unsafe impl Send for Bytes {}

#[test]
fn who_sees_a_packet_landed_sees_its_bytes() {
    loom::model(|| {
        let board = Arc::new(Board::new(1));
        let bytes = Arc::new([Bytes(UnsafeCell::new(0)), Bytes(UnsafeCell::new(0))]);
        board.open(7, 2);
        let marker = |at: usize| {
            let (board, bytes) = (Arc::clone(&board), Arc::clone(&bytes));
            thread::spawn(move || {
                // SAFETY: loom's cell objects to every race.
                bytes[at].0.with_mut(|byte| unsafe { *byte = 1 });
                assert!(board.mark(7));
            })
        };
        let markers = [marker(0), marker(1)];
        // Late, of the packet before.
        assert!(!board.mark(6));
        while !board.has_landed(7) {
            thread::yield_now();
        }
        {
            // SAFETY: as above.
            let seen: u32 = bytes.iter().map(|byte| byte.0.with(|byte| unsafe { *byte })).sum();
            assert_eq!(seen, 2);
            // The slot's next packet is nobody's of these.
            board.open(8, 1);
            assert!(!board.has_landed(8));
        }
        markers.into_iter().for_each(|marker| marker.join().unwrap());
    });
}
