//! Operations that must not allocate: allocations are counted.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a counting allocator")]

mod common;

use common::cpu_calls::CPU_CALLS;
use common::device::TestDevice;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use telpher_mover::{Channel, ChannelPolicy, MemoryCalls, MemoryCallsPolicy, Mover, OnFault, Order, Outcome, Policy};
use telpher_portal::Portal;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: our caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: our caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations<T>(f: impl FnOnce() -> T) -> (usize, T) {
    let before = COUNT.with(Cell::get);
    let value = f();
    (COUNT.with(Cell::get) - before, value)
}

/// Empties what the test device records, with room for more than a test submits.
fn make_room(device: &TestDevice) {
    device.state().taken = Vec::with_capacity(1000);
    device.state().move_flags = Vec::with_capacity(1000);
}

#[test]
fn a_small_copy_allocates_nothing() {
    let device: Arc<dyn Portal> = Arc::new(TestDevice::with(|_| {}));
    let mover = Mover::new([device], Policy::default());
    let (src, dst) = (vec![7; 1000], vec![0; 1000]);
    let (count, done) = allocations(|| mover.copy(src, dst).wait());
    assert_eq!((count, done.result), (0, Ok(Outcome::Done)));
    let (count, done) = allocations(|| mover.fill(done.buffers.1, 0).wait());
    assert_eq!((count, done.result), (0, Ok(Outcome::Done)));
}

#[test]
fn copy_slices_by_a_device_allocates_nothing() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = Mover::new([Arc::clone(&device) as Arc<dyn Portal>], common::policy());
    let (src, mut dst) = (vec![7; 100_000], vec![0; 100_000]);
    for round in 0..2 {
        // The test device's own queue and list have reached their capacity after the first round.
        dst.fill(0);
        make_room(&device);
        let (count, result) = allocations(|| mover.copy_slices(&src, &mut dst));
        assert_eq!((result, dst == src, device.state().taken.len()), (Ok(Outcome::Done), true, 1));
        assert!(round == 0 || count == 0, "{count} allocations");
    }
}

#[test]
fn a_channel_allocates_nothing_after_construction() {
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = 4096));
    // The test device's own queue and list have their capacity from the start.
    for round in 0..2 {
        for order in [Order::Submitted, Order::Arrival] {
            let policy = ChannelPolicy { order, on_fault: OnFault::FinishOnCpu, ..ChannelPolicy::default() };
            let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(Arc::clone(&device) as _, 16, policy).unwrap();
            let buffers: Vec<_> = (0..64).map(|_| (vec![7; 5000], vec![0; 5000])).collect();
            let mut out = Vec::with_capacity(64);
            make_room(&device);
            let mut buffers = buffers.into_iter();
            let (count, ()) = allocations(|| {
                while out.len() < 64 {
                    for _ in 0..5 {
                        if channel.pending() == 16 {
                            break;
                        }
                        let Some((src, dst)) = buffers.next() else { break };
                        channel.copy(src, dst).unwrap();
                    }
                    channel.submit();
                    channel.completed(&mut out);
                }
            });
            assert!(round == 0 || count == 0, "{order:?}: {count} allocations");
            assert!(out.iter().all(|finished| finished.result == Ok(Outcome::Done)));
        }
    }
}

#[test]
fn memory_calls_allocate_nothing_in_pieces_faults_and_refusals() {
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = 4096));
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let calls = MemoryCalls::new([portal], CPU_CALLS, MemoryCallsPolicy::default(), 8).unwrap();
    let (src, mut dst) = (vec![7_u8; 100_000], vec![0_u8; 100_000]);
    for round in 0..2 {
        // The test device's own queue and list have reached their capacity after the first round.
        dst.fill(0);
        device.fault(dst.as_ptr() as u64 + 50_000, 1);
        device.state().retries = 3;
        make_room(&device);
        let (count, ()) = allocations(|| {
            // SAFETY: all ranges lie in the two vectors, which nothing else uses.
            unsafe {
                assert_eq!(calls.copy(dst.as_mut_ptr(), src.as_ptr(), 100_000).faults, 1);
                assert_eq!(calls.compare(dst.as_ptr(), src.as_ptr(), 100_000).0, None);
                assert_eq!(calls.fill(dst.as_mut_ptr().add(1), 7, 99_999).cpu_bytes, 0);
                assert_eq!(calls.copy(dst.as_mut_ptr().add(1), dst.as_ptr(), 99_999).cpu_bytes, 0);
            }
        });
        assert!(round == 0 || count == 0, "{count} allocations");
        assert!(dst == src);
    }
}
