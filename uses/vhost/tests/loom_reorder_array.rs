//! Loom: two threads that poll DMA queues mark a packet's copies, while the virtqueue's thread reads the array and goes
//! on to the next packet in the same slot. Properties: a thread that sees a packet complete sees the bytes of all its
//! copies, also of a packet with one copy, whose mark is a plain store. A copy that the virtqueue withdraws from its
//! DMA queue, under the queue's lock, is not marked in the slot's next packet.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-vhost --test loom_reorder_array`.
//! Seen to fail with the Release of either kind of `mark` weakened to Relaxed, with the Acquire of `is_complete`
//! weakened to Relaxed, with the decrement split into a load and a store, and with a DMA queue that marks withdrawn
//! copies.
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells")]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/reorder_array.rs"]
mod reorder_array;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use reorder_array::ReorderArray;

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

fn wait_for(array: &ReorderArray, packet: u64) {
    while !array.is_complete(packet) {
        thread::yield_now();
    }
}

#[test]
fn a_completed_packets_bytes_are_visible() {
    loom::model(|| {
        let array = Arc::new(ReorderArray::new(1));
        let bytes = Arc::new([Bytes::new(), Bytes::new()]);
        array.open(7, 2);
        let marker = |at: usize| {
            let (array, bytes) = (Arc::clone(&array), Arc::clone(&bytes));
            thread::spawn(move || {
                bytes[at].write();
                array.mark(7, false);
            })
        };
        let markers = [marker(0), marker(1)];
        wait_for(&array, 7);
        assert_eq!(bytes[0].read() + bytes[1].read(), 2);
        // The slot's next packet has none of these copies.
        array.open(8, 1);
        assert!(!array.is_complete(8));
        markers.into_iter().for_each(|marker| marker.join().unwrap());
    });
}

#[test]
fn a_completed_single_copy_packets_bytes_are_visible() {
    loom::model(|| {
        let array = Arc::new(ReorderArray::new(1));
        let bytes = Arc::new([Bytes::new(), Bytes::new()]);
        // What is handed over through a DMA queue's lock, and the packet after it.
        let dma_queue = Arc::new(Mutex::new(vec![7]));
        array.open(7, 1);
        let marker = {
            let (array, bytes, dma_queue) = (Arc::clone(&array), Arc::clone(&bytes), Arc::clone(&dma_queue));
            thread::spawn(move || {
                for byte in &*bytes {
                    let mut dma_queue = dma_queue.lock().unwrap();
                    if let Some(packet) = dma_queue.pop() {
                        byte.write();
                        array.mark(packet, true);
                    }
                }
            })
        };
        if array.is_complete(7) {
            assert_eq!(bytes[0].read() + bytes[1].read(), 1);
            array.open(8, 1);
            dma_queue.lock().unwrap().push(8);
        }
        marker.join().unwrap();
    });
}

#[test]
fn a_withdrawn_copy_is_not_marked_in_the_next_packet() {
    loom::model(|| {
        let array = Arc::new(ReorderArray::new(1));
        // The packet whose copy the DMA queue has, and whether it was withdrawn.
        let dma_queue = Arc::new(Mutex::new(Some((7, false))));
        array.open(7, 1);
        let poller = {
            let (array, dma_queue) = (Arc::clone(&array), Arc::clone(&dma_queue));
            thread::spawn(move || {
                let mut dma_queue = dma_queue.lock().unwrap();
                if let Some((packet, withdrawn)) = dma_queue.take()
                    && !withdrawn
                {
                    array.mark(packet, true);
                }
            })
        };
        if let Some((_, withdrawn)) = &mut *dma_queue.lock().unwrap() {
            *withdrawn = true;
        }
        // Complete, or ours to redo.
        array.open(7, 0);
        assert!(array.is_complete(7));
        array.open(8, 0);
        poller.join().unwrap();
        assert!(array.is_complete(8));
    });
}
