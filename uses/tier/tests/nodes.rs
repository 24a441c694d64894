//! Tiers that are real NUMA nodes, with each mechanism: the kernel reports on which node a page is. Needs two nodes
//! with memory.
#![allow(unsafe_code, reason = "forks, and locks a page of an arena")]

mod common;

use common::stress::lost_writes;
use common::{FAST, HOME, PAGE, nodes_with_memory, skip};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_mem::PageSize;
use telpher_os::{Nodes, Userfault, UserfaultFeatures};
use telpher_tier::{Arena, Heap, HeapOptions, Mechanism, TierError, TierId, TierOptions};

const FAST_BYTES: u64 = 32 << 20;

/// Returns options with tiers on these nodes.
fn options(nodes: [Option<u32>; 2], mechanism: Option<Mechanism>) -> HeapOptions {
    let tier = |name: &str, node, bytes| TierOptions { name: name.to_string(), node, bytes };
    let tiers = vec![tier("fast", nodes[0], FAST_BYTES), tier("slow", nodes[1], 0)];
    HeapOptions { mechanism, ..HeapOptions::new(tiers) }
}

/// Lets one test at a time use a node's memory.
fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a node for each tier: the second that has memory, and the first.
fn two_nodes(test: &str) -> Option<[u32; 2]> {
    let [first, second, ..] = nodes_with_memory()[..] else {
        skip::skip(test, "this machine has one NUMA node");
        return None;
    };
    Some([second, first])
}

/// Returns the mechanisms that this kernel has.
fn mechanisms() -> Vec<Mechanism> {
    match Userfault::open(UserfaultFeatures::MOVE) {
        Ok(_) => vec![Mechanism::Exchange, Mechanism::MovePages],
        Err(_) => vec![Mechanism::MovePages],
    }
}

/// Creates a heap for each mechanism that the kernel has.
fn heaps(test: &str) -> Vec<(Heap, [u32; 2])> {
    let Some(nodes) = two_nodes(test) else { return Vec::new() };
    let heap = |mechanism| (Heap::new(options(nodes.map(Some), Some(mechanism))).unwrap(), nodes);
    mechanisms().into_iter().map(heap).collect()
}

/// Asserts by the kernel's answer that every page is on this node.
fn assert_on(arena: &Arena, pages: std::ops::Range<u64>, node: u32) {
    let start = arena.addresses().start;
    let pages: Vec<u64> = pages.map(|page| start + page * PAGE).collect();
    let mut answers = vec![Ok(u32::MAX); pages.len()];
    Nodes::of_pages(&pages, &mut answers).unwrap();
    assert!(answers.iter().all(|answer| *answer == Ok(node)), "{answers:?}");
}

/// Returns the byte that fills a page. Not zero, because the kernel frees parts of a huge page that are all zeros when
/// it splits it.
fn byte(page: usize) -> u8 {
    u8::try_from(page % 251 + 1).unwrap()
}

fn number(arena: &mut Arena) {
    arena.chunks_exact_mut(4096).enumerate().for_each(|(page, bytes)| bytes.fill(byte(page)));
}

fn check(arena: &Arena) {
    let same = |(page, bytes): (usize, &[u8])| bytes.iter().all(|&found| found == byte(page));
    assert!(arena.chunks_exact(4096).enumerate().all(same));
}

#[test]
fn pages_are_on_the_node_of_their_tier() {
    let _exclusive = exclusive();
    for pages in [PageSize::Small, PageSize::Huge] {
        for (heap, [fast, slow]) in heaps("pages_are_on_the_node_of_their_tier") {
            let mut arena = heap.arena(4 << 20, pages).unwrap();
            number(&mut arena);
            assert_on(&arena, 0..1024, slow);
            let start = arena.addresses().start;
            for _ in 0..3 {
                let moved = heap.migrate(start + 100 * PAGE..start + 700 * PAGE, FAST).unwrap();
                let how = heap.mechanism();
                // With `move_pages`, a huge page moves as a whole with any of its parts.
                let whole = how == Mechanism::MovePages && pages == PageSize::Huge;
                if !whole {
                    assert_eq!((moved.pages, moved.left.all()), (600, 0), "{how:?}, {pages:?}: {moved:?}");
                    assert_eq!(heap.residency(arena.addresses()).unwrap(), [600, 424]);
                    assert_on(&arena, 0..100, slow);
                    assert_on(&arena, 700..1024, slow);
                }
                assert_on(&arena, 100..700, fast);
                check(&arena);
                let back = heap.migrate(arena.addresses(), HOME).unwrap();
                assert!(back.pages >= 600 && back.all() == 1024, "{how:?}, {pages:?}: {back:?}");
                assert_on(&arena, 0..1024, slow);
                check(&arena);
            }
            assert_eq!(heap.migrate(0..PAGE, FAST).unwrap().all(), 0, "not the heap's");
        }
    }
}

#[test]
fn pages_go_between_three_nodes() {
    let _exclusive = exclusive();
    let [first, second, third, ..] = nodes_with_memory()[..] else {
        return skip::skip("pages_go_between_three_nodes", "this machine has fewer than three NUMA nodes");
    };
    // The home tier is in the middle, as DDR is between HBM and CXL.
    let nodes = [second, first, third];
    let tier = |node| TierOptions { name: format!("node {node}"), node: Some(node), bytes: FAST_BYTES };
    for mechanism in mechanisms() {
        let mut options = HeapOptions::new(nodes.map(tier).to_vec());
        (options.home, options.mechanism) = (TierId(1), Some(mechanism));
        let heap = Heap::new(options).unwrap();
        let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
        number(&mut arena);
        assert_on(&arena, 0..1024, nodes[1]);
        // Each pair of tiers, in both directions.
        for to in [0, 2, 1, 2, 0, 1] {
            let moved = heap.migrate(arena.addresses(), TierId(to)).unwrap();
            assert_eq!((moved.pages, moved.left.all()), (1024, 0), "{mechanism:?} to {to}: {moved:?}");
            assert_on(&arena, 0..1024, nodes[usize::from(to)]);
            check(&arena);
        }
        // About a third of them on each.
        let start = arena.addresses().start;
        heap.migrate(start..start + 300 * PAGE, TierId(0)).unwrap();
        heap.migrate(start + 600 * PAGE..arena.addresses().end, TierId(2)).unwrap();
        assert_eq!(heap.residency(arena.addresses()).unwrap(), [300, 300, 424]);
        for (pages, node) in [(0..300, nodes[0]), (300..600, nodes[1]), (600..1024, nodes[2])] {
            assert_on(&arena, pages, node);
        }
        check(&arena);
        assert_eq!(heap.stats().lost, 0);
    }
}

#[test]
fn a_node_tier_takes_no_more_than_its_size() {
    let _exclusive = exclusive();
    for (heap, [fast, _]) in heaps("a_node_tier_takes_no_more_than_its_size") {
        let bytes = usize::try_from(FAST_BYTES).unwrap();
        let mut arena = heap.arena(bytes + (4 << 20), PageSize::Small).unwrap();
        number(&mut arena);
        let most = FAST_BYTES / PAGE;
        let moved = heap.migrate(arena.addresses(), FAST).unwrap();
        assert_eq!((moved.pages, moved.left.no_room), (most, 1024), "{:?}: {moved:?}", heap.mechanism());
        assert_on(&arena, 0..most, fast);
        // A discard on the fast tier makes room.
        arena.discard(0..100 * 4096).unwrap();
        let start = arena.addresses().start;
        let more = heap.migrate(start + most * PAGE..arena.addresses().end, FAST).unwrap();
        assert_eq!((more.pages, more.left.no_room), (100, 924), "{:?}: {more:?}", heap.mechanism());
        assert_on(&arena, most..most + 100, fast);
    }
}

/// The system would otherwise kill a process, most likely this one.
#[test]
fn a_tier_larger_than_its_node_takes_what_the_node_has() {
    let _exclusive = exclusive();
    let test = "a_tier_larger_than_its_node_takes_what_the_node_has";
    let Some(nodes) = two_nodes(test) else { return };
    let free = Nodes::free_bytes(nodes[0]).expect("the kernel reports it");
    let wanted = free + (16 << 20);
    if wanted > 512 << 20 {
        return skip::skip(test, "the node has more memory than a test may take");
    }
    for mechanism in mechanisms() {
        let mut options = options(nodes.map(Some), Some(mechanism));
        options.tiers[0].bytes = 8 << 30;
        let heap = Heap::new(options).unwrap();
        let mut arena = heap.arena(usize::try_from(wanted).unwrap(), PageSize::Small).unwrap();
        number(&mut arena);
        let moved = heap.migrate(arena.addresses(), FAST).unwrap();
        assert_eq!(moved.all(), arena.len() as u64 / PAGE, "{mechanism:?}: {moved:?}");
        // Some pages must fit, and not all of them can.
        assert!(moved.pages > 0 && moved.left.no_room > 0, "{mechanism:?}: {moved:?}");
        check(&arena);
    }
}

#[test]
fn no_write_is_lost_between_nodes() {
    let _exclusive = exclusive();
    for pages in [PageSize::Small, PageSize::Huge] {
        for (heap, _) in heaps("no_write_is_lost_between_nodes") {
            let mut arena = heap.arena(4 << 20, pages).unwrap();
            arena.fill(0);
            let lost = lost_writes(arena.addresses().start, 1024, &|range, to| {
                heap.migrate(range, TierId(to)).unwrap();
            });
            let stats = heap.stats();
            assert_eq!((lost, stats.lost), (0, 0), "{:?}: {stats:?}", heap.mechanism());
            assert!(stats.moved.pages > 1000, "{:?}: {stats:?}", heap.mechanism());
        }
    }
}

#[test]
fn pages_shared_with_a_child_move_or_are_counted() {
    let _exclusive = exclusive();
    for (heap, _) in heaps("pages_shared_with_a_child_move_or_are_counted") {
        let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
        number(&mut arena);
        let mut pipe = [0; 2];
        // SAFETY: the child waits for the end of the pipe, reads its memory and exits.
        let child = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            libc::fork()
        };
        if child == 0 {
            let mut end = 0_u8;
            // SAFETY: as above; a local variable.
            unsafe {
                libc::close(pipe[1]);
                libc::read(pipe[0], (&raw mut end).cast(), 1);
                let same = arena.chunks_exact(4096).enumerate().all(|(page, bytes)| bytes[0] == byte(page));
                libc::_exit(i32::from(!same));
            }
        }
        let moved = heap.migrate(arena.addresses(), FAST).unwrap();
        match heap.mechanism() {
            Mechanism::MovePages => assert_eq!((moved.pages, moved.left.pinned), (0, 512), "{moved:?}"),
            _ => assert_eq!(moved.pages, 512, "{moved:?}"),
        }
        check(&arena);
        let mut status = 0;
        // SAFETY: descriptors and a child of this test.
        unsafe {
            libc::close(pipe[1]);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::close(pipe[0]);
        }
        assert_eq!(status, 0);
        let rest = heap.migrate(arena.addresses(), FAST).unwrap();
        assert_eq!(rest.pages + rest.left.already, 512, "{:?}: {rest:?}", heap.mechanism());
    }
}

#[test]
fn a_heap_reports_its_mechanism() {
    let moves = match Userfault::open(UserfaultFeatures::MOVE) {
        Ok(_) => true,
        Err(telpher_os::UserfaultError::Forbidden(_)) => return,
        Err(_) => false,
    };
    let none = Heap::new(options([None; 2], None));
    if moves {
        assert_eq!(none.unwrap().mechanism(), Mechanism::Exchange);
    } else {
        // The error names what the better mechanism lacks.
        assert!(matches!(none, Err(TierError::Userfault(_) | TierError::Scan(_))), "{none:?}");
    }
    if let Some(nodes) = two_nodes("a_heap_reports_its_mechanism") {
        let heap = Heap::new(options(nodes.map(Some), None)).unwrap();
        assert_eq!(heap.mechanism(), if moves { Mechanism::Exchange } else { Mechanism::MovePages });
    }
}

#[test]
fn move_pages_needs_a_node_for_each_tier() {
    for nodes in [[None, None], [Some(0), None], [Some(0), Some(0)]] {
        let refused = Heap::new(options(nodes, Some(Mechanism::MovePages)));
        assert!(matches!(refused, Err(TierError::Nodes)), "{refused:?}");
    }
    for nodes in [[Some(0), Some(4711)], [Some(u32::MAX), Some(0)]] {
        let refused = Heap::new(options(nodes, Some(Mechanism::MovePages)));
        assert!(matches!(refused, Err(TierError::Node { node, .. }) if nodes.contains(&Some(node))), "{refused:?}");
    }
}
