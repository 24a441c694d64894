//! Loom: threads take, keep, share and release one block. Properties: a block has one writer, or readers, and loom's
//! cell objects to every access that races with another; exactly one caller learns that the block has become free.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-mem --test loom_block_state`.
//!
//! **Seen to fail** with each Release and each Acquire of `src/block_state.rs` weakened, without the fence, with `take`
//! and `share` divided into a load and a store, and with a `share` that does not check whether the block is kept.
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells")]

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/block_state.rs"]
mod block_state;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

use block_state::{BlockState, Released};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;
use sync::Ordering;

/// A block with its bytes, and how many callers learned that it became free.
struct Block {
    state: BlockState,
    bytes: UnsafeCell<u32>,
    freed: AtomicUsize,
}
// SAFETY: loom's cell objects to every race.
unsafe impl Sync for Block {}
// SAFETY: as above.
unsafe impl Send for Block {}

impl Block {
    /// A kept block with these bytes.
    fn kept(bytes: u32) -> Arc<Block> {
        let block = Block { state: BlockState::new(), bytes: UnsafeCell::new(0), freed: AtomicUsize::new(0) };
        assert!(block.state.take());
        block.write(bytes);
        block.state.keep();
        Arc::new(block)
    }

    fn write(&self, bytes: u32) {
        // SAFETY: loom's cell objects to every race.
        self.bytes.with_mut(|place| unsafe { *place = bytes });
    }

    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.bytes.with(|place| unsafe { *place })
    }

    /// Relaxed, so that the count orders nothing for the block.
    fn count_freed(&self, is_free: bool) {
        self.freed.fetch_add(usize::from(is_free), Ordering::Relaxed);
    }

    fn drop_reader(&self) {
        self.count_freed(self.state.drop_reader());
    }

    /// Reads the block if it is kept.
    fn read_if_kept(&self) -> Option<u32> {
        self.state.share().then(|| {
            let bytes = self.read();
            self.drop_reader();
            bytes
        })
    }
}

fn spawn(block: &Arc<Block>, run: impl FnOnce(&Block) + 'static) -> thread::JoinHandle<()> {
    let block = Arc::clone(block);
    thread::spawn(move || run(&block))
}

/// A thread writes and keeps a block, which another one reads as soon as it is kept.
#[test]
fn a_reader_sees_the_bytes_of_the_writer_that_kept_the_block() {
    loom::model(|| {
        let block = Block::kept(1);
        assert_eq!(block.state.release(), Released::Free);
        let writer = spawn(&block, |block| {
            assert!(block.state.take());
            block.write(2);
            block.state.keep();
        });
        assert!(matches!(block.read_if_kept(), None | Some(2)));
        writer.join().unwrap();
        assert_eq!((block.read_if_kept(), block.freed.load(Ordering::Relaxed)), (Some(2), 0));
    });
}

/// A reader, its copy on another thread, and the release of the block end in any order, while a writer waits for the
/// block and keeps new bytes.
#[test]
fn a_reader_never_sees_a_block_that_was_taken_again_and_one_caller_frees_it() {
    loom::model(|| {
        let block = Block::kept(1);
        assert!(block.state.share());
        block.state.share_again();
        let reader = spawn(&block, |block| {
            assert_eq!(block.read(), 1);
            block.drop_reader();
        });
        let next = spawn(&block, |block| {
            if block.state.take() {
                block.write(2);
                block.state.give_back();
            }
        });
        let released = block.state.release();
        assert_ne!(released, Released::NotKept);
        block.count_freed(released == Released::Free);
        assert_eq!(block.read(), 1);
        block.drop_reader();
        reader.join().unwrap();
        next.join().unwrap();
        assert_eq!(block.freed.load(Ordering::Relaxed), 1);
        assert!(block.state.take(), "it is free");
        assert_eq!(block.state.release(), Released::NotKept);
    });
}

#[test]
fn a_block_that_is_released_is_shared_before_or_not_at_all() {
    loom::model(|| {
        let block = Block::kept(1);
        let releaser = spawn(&block, |block| {
            assert_eq!(block.read(), 1);
            block.count_freed(block.state.release() == Released::Free);
        });
        let next = spawn(&block, |block| {
            if block.state.take() {
                block.write(2);
                block.state.keep();
            }
        });
        assert!(matches!(block.read_if_kept(), None | Some(1 | 2)));
        releaser.join().unwrap();
        next.join().unwrap();
        assert_eq!(block.freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn one_thread_at_a_time_owns_a_free_block() {
    loom::model(|| {
        let block = Block::kept(1);
        assert_eq!(block.state.release(), Released::Free);
        let other = spawn(&block, |block| {
            if block.state.take() {
                block.write(2);
            }
        });
        if block.state.take() {
            block.write(3);
        }
        other.join().unwrap();
        assert!(!block.state.take());
        block.state.give_back();
        // An owner that gives the block back has written it before the next owner does.
        let other = spawn(&block, |block| {
            if block.state.take() {
                block.write(4);
                block.state.give_back();
            }
        });
        if block.state.take() {
            block.write(5);
            block.state.give_back();
        }
        other.join().unwrap();
    });
}

/// The caller that frees a block may discard its memory before it makes the block available.
#[test]
fn the_caller_that_frees_a_block_comes_after_all_its_readers() {
    loom::model(|| {
        let block = Block::kept(1);
        assert!(block.state.share());
        let reader = spawn(&block, |block| {
            assert_eq!(block.read(), 1);
            if block.state.drop_reader() {
                block.write(0);
            }
        });
        assert_eq!(block.read(), 1);
        if block.state.release() == Released::Free {
            block.write(0);
        }
        reader.join().unwrap();
    });
}
