use super::*;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use telpher_os::Random;

const BLOCK: usize = 4096;

fn memory(blocks: usize) -> BlockMemory {
    let memory = BlockMemory::anonymous(blocks, BLOCK, BlockPages::Small).unwrap();
    memory.add(0..blocks);
    memory
}

#[test]
fn a_run_is_as_long_as_the_gaps_allow() {
    let memory = memory(64);
    let mut runs = memory.take(64).unwrap();
    assert_eq!((runs.len(), runs[0].blocks(), memory.free_blocks()), (1, 64, 0));
    assert!(memory.take(1).is_none());
    drop(runs.remove(0));
    // Every second block stays taken, and 8 blocks at the end are free.
    let mut singles: Vec<BlockRun> = (0..56).flat_map(|_| memory.take(1).unwrap()).collect();
    let mut number = 0;
    singles.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    let lens = |count| memory.take(count).unwrap().iter().map(BlockRun::blocks).collect::<Vec<_>>();
    assert_eq!(lens(8), [8]);
    assert_eq!(lens(10), [8, 1, 1]);
    assert_eq!(lens(1), [1]);
    assert_eq!(memory.free_blocks(), 36);
    drop(singles);
    assert_eq!((lens(64), memory.taken_blocks()), (vec![64], 0));
}

#[test]
fn a_run_is_divided_without_losing_a_block() {
    let (memory, other) = (memory(8), memory(1));
    let mut run = memory.take(8).unwrap().remove(0);
    assert!(run.is_of(&memory) && !run.is_of(&other));
    let mut rest = run.split_off(3).unwrap();
    rest.fill(2);
    run.fill(1);
    assert!(rest.split_off(5).is_none() && rest.iter().all(|&byte| byte == 2));
    assert_eq!((run.blocks(), rest.blocks(), memory.taken_blocks()), (3, 5, 8));
    drop(run);
    assert_eq!((memory.free_blocks(), rest.keep()), (3, 3..8));
}

#[test]
fn used_blocks_are_taken_before_blocks_without_memory() {
    let memory = memory(64);
    let first = memory.take(4).unwrap().remove(0).keep();
    memory.release(first.clone());
    assert_eq!((memory.free_blocks_with_memory(), memory.free_blocks()), (4, 64));
    assert_eq!(memory.take(3).unwrap().remove(0).keep(), first.start..first.start + 3);
    // A longer run is rather one run of blocks without memory.
    assert_eq!(memory.take(2).unwrap().remove(0).keep(), 4..6);
}

#[test]
fn a_block_is_free_after_its_last_reader() {
    let memory = memory(8);
    let mut run = memory.take(4).unwrap().remove(0);
    run.fill(7);
    let kept = run.keep();
    let (first, second) = (memory.share(kept.start..kept.start + 3), memory.share(kept.clone()));
    let copy = first.clone();
    assert_eq!(memory.shared_blocks(), 3 + 4 + 3);
    memory.release(kept);
    assert_eq!(memory.free_blocks(), 4);
    drop(second);
    assert_eq!(memory.free_blocks(), 5, "the block that only `second` had");
    drop(first);
    assert!(copy.iter().all(|&byte| byte == 7) && copy.len() == 3 * BLOCK);
    drop(copy);
    assert_eq!((memory.free_blocks(), memory.shared_blocks()), (8, 0));
}

#[test]
fn limits_refuse_what_exceeds_them() {
    let memory = memory(16);
    let runs = memory.take_within(4, 6).unwrap();
    assert!(memory.take_within(3, 6).is_none());
    let more = memory.take_within(2, 6).unwrap();
    assert_eq!(memory.taken_blocks(), 6);
    drop(more);
    let kept: Vec<Range<u32>> = runs.into_iter().map(BlockRun::keep).collect();
    let read = memory.share_within(kept[0].clone(), 7).unwrap();
    assert!(memory.share_within(kept[0].clone(), 7).is_none());
    assert!(memory.share_within(kept[0].clone(), 8).is_some());
    drop(read);
}

#[test]
fn wrong_block_numbers_panic_and_change_nothing() {
    let memory = memory(8);
    let kept = memory.take(2).unwrap().remove(0).keep();
    let taken = memory.take(1).unwrap();
    let wrong = [
        catch_unwind(AssertUnwindSafe(|| memory.release(kept.end..kept.end + 1))),
        catch_unwind(AssertUnwindSafe(|| memory.release([8]))),
        catch_unwind(AssertUnwindSafe(|| drop(memory.share(kept.start..kept.end + 1)))),
        catch_unwind(AssertUnwindSafe(|| drop(memory.share(9..9)))),
        catch_unwind(AssertUnwindSafe(|| memory.add(7..9))),
    ];
    assert!(wrong.iter().all(Result::is_err));
    assert!(!memory.keep(kept.start) && !memory.keep(2) && !memory.keep(8));
    assert_eq!((memory.shared_blocks(), memory.taken_blocks(), memory.free_blocks()), (0, 1, 5));
    memory.release(kept);
    drop(taken);
    assert_eq!(memory.free_blocks(), 8);
    // A block that is added although it is in use is never handed out twice.
    let all = memory.take(8).unwrap();
    memory.add(3..4);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(memory.take(1)))).is_err());
    drop(all);
    memory.add(0..1);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(memory.take(9)))).is_err());
    let all = memory.take(7).unwrap();
    assert_eq!(all.iter().map(BlockRun::blocks).sum::<usize>(), 7);
}

#[test]
fn memory_of_long_free_runs_is_given_back() {
    let memory = memory(64);
    let mut run = memory.take(64).unwrap().remove(0);
    run.fill(9);
    let kept = run.keep();
    memory.release((0..16).chain([20, 21]).chain(30..64));
    assert_eq!(memory.give_back(16).unwrap(), 16 + 34);
    assert_eq!((memory.free_blocks_with_memory(), memory.free_blocks()), (2, 52));
    assert_eq!(memory.give_back(16).unwrap(), 0);
    let runs = memory.take(34).unwrap();
    assert!(runs.len() == 1 && runs[0].iter().all(|&byte| byte == 0));
    assert!(memory.share(16..20).iter().all(|&byte| byte == 9));
    drop(runs);
    memory.release(kept.filter(|block| (16..20).contains(block) || (22..30).contains(block)));
    assert_eq!(memory.free_blocks(), 64);
}

#[test]
fn a_thread_waits_until_blocks_are_free() {
    let memory = memory(4);
    let runs = memory.take(3).unwrap();
    let (there, waiter) = (Barrier::new(2), memory.clone());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            there.wait();
            waiter.take_waiting(4).iter().map(BlockRun::blocks).sum::<usize>()
        });
        there.wait();
        drop(runs);
        assert_eq!(thread.join().unwrap(), 4);
    });
}

#[test]
fn threads_never_share_a_block_that_is_written() {
    let memory = memory(40);
    std::thread::scope(|scope| {
        for thread in 1..=4_u8 {
            let memory = &memory;
            scope.spawn(move || {
                let mut random = Random::new(thread.into());
                let mut kept: Vec<Range<u32>> = Vec::new();
                for _ in 0..3000 {
                    let count = 1 + usize::try_from(random.below(5)).unwrap();
                    for mut run in memory.take(count).into_iter().flatten() {
                        run.fill(thread);
                        kept.push(run.keep());
                    }
                    while kept.len() as u64 > random.below(4) {
                        let blocks = kept.swap_remove(0);
                        let read = memory.share(blocks.clone());
                        memory.release(blocks);
                        assert!(read.iter().all(|&byte| byte == thread));
                    }
                }
                memory.release(kept.into_iter().flatten());
            });
        }
    });
    assert_eq!((memory.free_blocks(), memory.taken_blocks(), memory.shared_blocks()), (40, 0, 0));
    let blocks: BTreeSet<u32> = memory.take(40).unwrap().into_iter().flat_map(BlockRun::keep).collect();
    assert_eq!(blocks.len(), 40);
}

#[test]
fn blocks_of_a_file_are_found_again() {
    let (file, kept) = PrivateFile::create_unnamed("test", 3 * BLOCK as u64).unwrap();
    let memory = BlockMemory::of_file(&Arc::new(file), BLOCK as u64, 2, BLOCK).unwrap();
    memory.add(0..2);
    let mut runs = memory.take(1).unwrap();
    runs[0].fill(5);
    assert_eq!(runs.remove(0).keep(), 0..1);
    drop(memory);
    let file = Arc::new(PrivateFile::adopt(kept.as_fd()).unwrap());
    let memory = BlockMemory::of_file(&file, BLOCK as u64, 2, BLOCK).unwrap();
    assert!(memory.keep(0) && !memory.keep(0));
    memory.add(1..2);
    assert!(memory.is_whole() && memory.share(0..1).iter().all(|&byte| byte == 5));
    assert!(BlockMemory::of_file(&file, BLOCK as u64, 3, BLOCK).is_err(), "the file is shorter");
    assert!(BlockMemory::of_file(&file, 0, usize::MAX / BLOCK, BLOCK).is_err());
    memory.release([0]);
    assert_eq!((memory.give_back(1).unwrap(), memory.free_blocks_with_memory()), (1, 0));
}

#[test]
fn missing_huge_pages_are_named_or_replaced() {
    // 2^40 blocks of huge pages are more than any system has reserved.
    let error = BlockMemory::anonymous(1 << 30, BLOCK, BlockPages::Reserved).unwrap_err().to_string();
    assert!(error.contains("vm.nr_hugepages") || error.contains("ask for less"), "{error}");
    let memory = BlockMemory::anonymous(1024, BLOCK, BlockPages::Transparent).unwrap();
    memory.add(0..1024);
    let mut runs = memory.take(1024).unwrap();
    assert_eq!(runs[0].address() % (2 << 20), 0);
    runs[0].fill(1);
    assert_eq!(runs[0].address_mut(), runs[0].address());
}

#[test]
fn shared_bytes_have_the_same_bytes_in_both_places() {
    let memory = memory(1);
    let mut run = memory.take(1).unwrap().remove(0);
    run.fill(3);
    let blocks = SharedBytes::Blocks(memory.share(run.keep()));
    let heap = SharedBytes::new(vec![3; BLOCK]);
    assert_eq!(*blocks, *heap);
    for bytes in [&blocks, &heap] {
        assert_eq!((bytes.address(), StableBuf::len(bytes)), (bytes.as_ptr().addr() as u64, BLOCK));
        assert_eq!(bytes.clone().address(), bytes.address());
    }
}
