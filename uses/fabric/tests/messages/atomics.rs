//! Atomic operations on the memory of peers.

use crate::common::{Node, config, run_until, segments, unmapped};
use crate::rma::{BOTH, Nodes, ended, register, request, with_regions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use telpher_fabric::{
    AccessError, AccessKind, AccessRequest, Atomic, AtomicForm, AtomicOp, Config, Copier, Endpoint, FabricError,
    Failure, Number, Operation, Permissions, ProgressBy, Regions, Segments,
};
use telpher_os::Random;

/// Buffers of an atomic operation.
#[derive(Default)]
struct Buffers {
    operands: Vec<u8>,
    compares: Vec<u8>,
    results: Option<Vec<u8>>,
}

impl Buffers {
    /// Names the buffers, which the test keeps until the operation has ended.
    fn kind(&mut self, atomic: Atomic, len: usize) -> AccessKind {
        AccessKind::Atomic {
            atomic,
            len: len as u64,
            operands: segments(&mut self.operands),
            compares: segments(&mut self.compares),
            results: self.results.as_mut().map(|results| segments(results)),
        }
    }
}

fn of_one(operand: u64, results: bool) -> Buffers {
    Buffers { operands: operand.to_le_bytes().to_vec(), compares: Vec::new(), results: results.then(|| vec![0; 8]) }
}

const SUM: Atomic = Atomic { op: AtomicOp::Sum, of: Number::U64 };

/// What an operation makes of an element, written for each type once more.
macro_rules! oracle {
    ($name:ident, $type:ty, $sum:expr, $product:expr, $bits:expr) => {
        #[allow(clippy::float_cmp, clippy::redundant_closure_call, reason = "the operations compare exactly")]
        fn $name(op: AtomicOp, old: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
            let of = |bytes: &[u8]| <$type>::from_le_bytes(bytes.try_into().unwrap());
            let zero = <$type>::default();
            let truth =
                |is_true: bool| if is_true { $product(of(&[0; size_of::<$type>()]), zero) + 1 as $type } else { zero };
            let (a, b) = (of(old), of(operand));
            let c = if compare.is_empty() { zero } else { of(compare) };
            let new = match op {
                AtomicOp::Min if b < a => b,
                AtomicOp::Max if b > a => b,
                AtomicOp::Min | AtomicOp::Max | AtomicOp::Read => a,
                AtomicOp::Sum => $sum(a, b),
                AtomicOp::Product => $product(a, b),
                AtomicOp::LogicalOr => truth(a != zero || b != zero),
                AtomicOp::LogicalAnd => truth(a != zero && b != zero),
                AtomicOp::LogicalXor => truth((a != zero) ^ (b != zero)),
                AtomicOp::Write => b,
                AtomicOp::SwapIfEqual if c == a => b,
                AtomicOp::SwapIfNotEqual if c != a => b,
                AtomicOp::SwapIfLessOrEqual if c <= a => b,
                AtomicOp::SwapIfLess if c < a => b,
                AtomicOp::SwapIfGreaterOrEqual if c >= a => b,
                AtomicOp::SwapIfGreater if c > a => b,
                AtomicOp::BitOr | AtomicOp::BitAnd | AtomicOp::BitXor | AtomicOp::MaskedSwap => $bits(op, a, b, c),
                _ => a,
            };
            new.to_le_bytes().to_vec()
        }
    };
}

macro_rules! integer {
    ($name:ident, $type:ty) => {
        oracle!(
            $name,
            $type,
            <$type>::wrapping_add,
            <$type>::wrapping_mul,
            |op, a: $type, b: $type, c: $type| match op {
                AtomicOp::BitOr => a | b,
                AtomicOp::BitAnd => a & b,
                AtomicOp::BitXor => a ^ b,
                _ => (b & c) | (a & !c),
            }
        );
    };
}

integer!(of_i8, i8);
integer!(of_u8, u8);
integer!(of_i16, i16);
integer!(of_u16, u16);
integer!(of_i32, i32);
integer!(of_u32, u32);
integer!(of_i64, i64);
integer!(of_u64, u64);
oracle!(of_f32, f32, |a, b| a + b, |a, b| a * b, |_, _, _, _| unreachable!("no bits"));
oracle!(of_f64, f64, |a, b| a + b, |a, b| a * b, |_, _, _, _| unreachable!("no bits"));

fn expected(atomic: Atomic, old: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
    let of = match atomic.of {
        Number::I8 => of_i8,
        Number::U8 => of_u8,
        Number::I16 => of_i16,
        Number::U16 => of_u16,
        Number::I32 => of_i32,
        Number::U32 => of_u32,
        Number::I64 => of_i64,
        Number::U64 => of_u64,
        Number::F32 => of_f32,
        Number::F64 => of_f64,
    };
    of(atomic.op, old, operand, compare)
}

/// Elements of a type: small numbers that are often equal, edges of the type, and for floating point also what is no
/// number.
#[allow(clippy::cast_possible_truncation, reason = "any number of the type will do")]
fn elements(of: Number, count: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let float = [0.0, -0.0, 1.0, -2.5, f64::MAX, f64::INFINITY, f64::NAN, 3.0];
        let float = float[usize::try_from(random.below(8)).unwrap()];
        let word = match random.below(4) {
            0 => random.next(),
            1 => u64::MAX >> random.below(64),
            _ => random.below(3),
        };
        match of {
            Number::F32 => bytes.extend((float as f32).to_le_bytes()),
            Number::F64 => bytes.extend(float.to_le_bytes()),
            _ => bytes.extend_from_slice(&word.to_le_bytes()[..usize::try_from(of.bytes()).unwrap()]),
        }
    }
    bytes
}

/// Compares bytes of elements; any two that are no numbers are equal, since their bits are not defined.
fn assert_elements(atomic: Atomic, seen: &[u8], expected: &[u8], what: &str) {
    let size = usize::try_from(atomic.of.bytes()).unwrap();
    for (seen, expected) in seen.chunks(size).zip(expected.chunks(size)) {
        let is_nan = |bytes: &[u8]| match atomic.of {
            Number::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            Number::F64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            _ => false,
        };
        assert!(seen == expected || (is_nan(seen) && is_nan(expected)), "{what} of {atomic:?}: {seen:?}, {expected:?}");
    }
}

#[test]
fn every_operation_on_every_type_does_what_the_oracle_does() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0_u8; 4096 + 64];
    let key = register(&regions[1], &mut memory, BOTH);
    // The allocator aligns it to 8 at least.
    let align = memory.as_ptr().align_offset(8);
    let mut random = Random::new(1);
    let (mut context, mut kinds) = (0, 0);
    for (op, of) in AtomicOp::ALL.into_iter().flat_map(|op| Number::ALL.map(|of| (op, of))) {
        let atomic = Atomic { op, of };
        for form in [AtomicForm::Plain, AtomicForm::Fetch, AtomicForm::Compare] {
            if !atomic.exists(form) {
                continue;
            }
            kinds += 1;
            let size = usize::try_from(of.bytes()).unwrap();
            // In the entry, in the ring, and the most.
            for count in [1, 3, 24 / size, 24 / size + 1, 100, 4096 / size] {
                let (len, at) = (count * size, align + 8);
                let before = elements(of, count, &mut random);
                memory.fill(0xee);
                memory[at..at + len.min(4096)].copy_from_slice(&before);
                let mut buffers = Buffers::default();
                if op != AtomicOp::Read {
                    buffers.operands = elements(of, count, &mut random);
                }
                if op.compares() {
                    buffers.compares = elements(of, count, &mut random);
                }
                if form != AtomicForm::Plain {
                    buffers.results = Some(vec![0; len]);
                }
                context += 1;
                let kind = buffers.kind(atomic, len);
                nodes[0].endpoint.access(request(1, key, at as u64, kind, context)).unwrap();
                assert_eq!(ended(&mut nodes, context), Ok(()), "{atomic:?} {form:?}");
                let operation = if form == AtomicForm::Plain { Operation::Atomic } else { Operation::FetchAtomic };
                assert_eq!(nodes[0].end_of(context).operation, operation);
                let mut after = Vec::new();
                for (place, old) in before.chunks(size).enumerate() {
                    let of = |bytes: &[u8]| bytes.chunks(size).nth(place).unwrap_or(&[]).to_vec();
                    let operand = if op == AtomicOp::Read { vec![0; size] } else { of(&buffers.operands) };
                    after.extend(expected(atomic, old, &operand, &of(&buffers.compares)));
                }
                assert_elements(atomic, &memory[at..at + len], &after, "memory");
                assert!(memory[..at].iter().chain(&memory[at + len..]).all(|&byte| byte == 0xee), "{atomic:?}");
                if let Some(results) = &buffers.results {
                    assert_eq!(results, &before, "{atomic:?} {form:?}");
                }
            }
        }
    }
    // 8 integer types have 11 plain operations, 12 that fetch and 7 that compare; 2 others have no bits.
    assert_eq!(kinds, 8 * (11 + 12 + 7) + 2 * (8 + 9 + 6));
}

#[test]
fn atomic_operations_of_peers_and_of_the_target_lose_nothing() {
    const TURNS: u64 = 3000;
    let Nodes { mut nodes, regions } = with_regions(3, &Config::default(), Copier::cpu);
    // Words of one cache line: one that both peers and the target add to, and bytes beside it.
    let words: [AtomicU64; 8] = std::array::from_fn(|_| AtomicU64::new(0));
    let mut target = nodes.pop().unwrap();
    let address = words.as_ptr() as u64;
    #[allow(unsafe_code, reason = "atomics, which peers may change at any time")]
    // SAFETY: the words are atomics, and live longer than the region.
    let buffer = unsafe { telpher_fabric::Buffer::vouch(address, 64) };
    let region = telpher_fabric::Region { segments: Segments::new(&[buffer]).unwrap(), base: 0, permissions: BOTH };
    let key = regions[2].register(region, None).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let adder = scope.spawn(|| {
            for _ in 0..TURNS {
                words[0].fetch_add(1, Ordering::Relaxed);
                #[allow(unsafe_code, reason = "a byte of an atomic word")]
                // SAFETY: the byte is accessed by atomic instructions only.
                unsafe { AtomicU8::from_ptr((address + 8) as *mut u8) }.fetch_add(1, Ordering::Relaxed);
            }
        });
        let server = scope.spawn(|| {
            // Relaxed: only the end of a loop.
            while !is_over.load(Ordering::Relaxed) {
                target.poll();
            }
        });
        let peers: Vec<_> = nodes
            .iter_mut()
            .map(|node| {
                scope.spawn(|| {
                    let byte = Atomic { op: AtomicOp::Sum, of: Number::U8 };
                    for turn in 0..TURNS {
                        let mut sum = of_one(1, false);
                        add(node, key, 0, sum.kind(SUM, 8), 2 * turn);
                        let mut bytes = Buffers { operands: vec![1], ..Buffers::default() };
                        add(node, key, 9, bytes.kind(byte, 1), 2 * turn + 1);
                    }
                })
            })
            .collect();
        let results: Vec<_> = peers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
        adder.join().unwrap();
        server.join().unwrap();
    });
    assert_eq!(words[0].load(Ordering::Relaxed), 3 * TURNS);
    let bytes = words[1].load(Ordering::Relaxed).to_le_bytes();
    assert_eq!(u64::from(bytes[0]), TURNS & 0xff);
    assert_eq!(u64::from(bytes[1]), (2 * TURNS) & 0xff);
}

/// Does an operation on peer 2, to its end.
fn add(node: &mut Node, key: u64, address: u64, kind: AccessKind, context: u64) {
    node.endpoint.access(request(2, key, address, kind, context)).unwrap();
    let nodes = std::slice::from_mut(node);
    run_until(nodes, |nodes| !nodes[0].done.is_empty());
    assert_eq!(nodes[0].done.pop().unwrap().result, Ok(()));
}

#[test]
fn operations_on_a_peer_are_done_in_the_order_of_their_calls() {
    // A small ring and few slots, so that they wait for room.
    let config = config(|config| (config.ring_entries, config.slots) = (8, 2));
    let Nodes { mut nodes, regions } = with_regions(2, &config, Copier::cpu);
    let mut memory = vec![0_u64; 1];
    let bytes = memory.as_mut_ptr() as u64;
    #[allow(unsafe_code, reason = "the memory of the test")]
    // SAFETY: the word lives to the end of the test, and is read after all operations.
    let buffer = unsafe { telpher_fabric::Buffer::vouch(bytes, 8) };
    let region = telpher_fabric::Region { segments: Segments::new(&[buffer]).unwrap(), base: 0, permissions: BOTH };
    let key = regions[1].register(region, None).unwrap();
    let mut buffers: Vec<Buffers> = (0..2000).map(|turn| of_one(1, turn % 3 == 0)).collect();
    for (turn, buffers) in buffers.iter_mut().enumerate() {
        nodes[0].endpoint.access(request(1, key, 0, buffers.kind(SUM, 8), turn as u64)).unwrap();
    }
    run_until(&mut nodes, |nodes| nodes[0].done.len() == 2000);
    for (turn, buffers) in buffers.iter().enumerate().step_by(3) {
        let results = buffers.results.as_ref().unwrap();
        assert_eq!(results[..], (turn as u64).to_le_bytes(), "turn {turn}");
    }
    assert_eq!(memory[0], 2000);
}

#[test]
fn operations_that_are_not_permitted_fail_and_change_nothing() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = [0x11_u8; 72];
    let align = memory.as_ptr().align_offset(8);
    let of = &mut memory[align..align + 64];
    let both = register(&regions[1], of, BOTH);
    let readable = register(&regions[1], of, Permissions { read: true, write: false });
    let writable = register(&regions[1], of, Permissions { read: false, write: true });
    let not_mapped = telpher_fabric::Region { segments: unmapped(64), base: 0, permissions: BOTH };
    let not_mapped = regions[1].register(not_mapped, None).unwrap();
    let read = Atomic { op: AtomicOp::Read, of: Number::U64 };
    let cases = [
        (both + 50, 0, SUM, true, Err(AccessError::UnknownKey)),
        (both, 57, SUM, false, Err(AccessError::OutOfRange)),
        (both, 60, SUM, true, Err(AccessError::OutOfRange)),
        (both, u64::MAX - 3, SUM, true, Err(AccessError::OutOfRange)),
        (both, 4, SUM, true, Err(AccessError::Misaligned)),
        (both, 1, SUM, false, Err(AccessError::Misaligned)),
        (readable, 0, SUM, false, Err(AccessError::NotPermitted)),
        (readable, 0, SUM, true, Err(AccessError::NotPermitted)),
        (readable, 0, read, true, Ok(())),
        (writable, 0, read, true, Err(AccessError::NotPermitted)),
        (writable, 0, SUM, true, Err(AccessError::NotPermitted)),
        (not_mapped, 0, SUM, false, Err(AccessError::NotMapped)),
        (not_mapped, 0, read, true, Err(AccessError::NotMapped)),
    ];
    for (number, (key, address, atomic, fetches, result)) in cases.into_iter().enumerate() {
        let mut buffers = of_one(1, fetches);
        if atomic.op == AtomicOp::Read {
            buffers.operands.clear();
        }
        let context = number as u64;
        nodes[0].endpoint.access(request(1, key, address, buffers.kind(atomic, 8), context)).unwrap();
        assert_eq!(ended(&mut nodes, context), result.map_err(Failure::Access), "case {number}");
        assert!(memory.iter().all(|&byte| byte == 0x11), "case {number}");
    }
    let mut sum = of_one(1, false);
    nodes[0].endpoint.access(request(1, writable, 0, sum.kind(SUM, 8), 100)).unwrap();
    assert_eq!(ended(&mut nodes, 100), Ok(()));
    assert_eq!(memory[align], 0x12);
}

#[test]
fn operations_that_do_not_exist_are_refused_at_once() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = vec![0; 100];
    let key = register(&regions[1], &mut memory, BOTH);
    let atomic = |op, of| Atomic { op, of };
    let (u64_, f64_) = (Number::U64, Number::F64);
    let of = |operands, compares, results: Option<usize>| Buffers {
        operands: vec![0; operands],
        compares: vec![0; compares],
        results: results.map(|len| vec![0; len]),
    };
    let mut cases = [
        (atomic(AtomicOp::Read, u64_), 8, of(0, 0, None)),
        (atomic(AtomicOp::SwapIfEqual, u64_), 8, of(8, 8, None)),
        (atomic(AtomicOp::BitOr, f64_), 8, of(8, 0, None)),
        (atomic(AtomicOp::MaskedSwap, f64_), 8, of(8, 8, Some(8))),
        (atomic(AtomicOp::Sum, u64_), 8, of(7, 0, None)),
        (atomic(AtomicOp::Sum, u64_), 7, of(7, 0, None)),
        (atomic(AtomicOp::Sum, u64_), 0, of(0, 0, None)),
        (atomic(AtomicOp::Sum, u64_), 8, of(8, 8, Some(8))),
        (atomic(AtomicOp::Sum, u64_), 8, of(8, 0, Some(16))),
        (atomic(AtomicOp::SwapIfEqual, u64_), 8, of(8, 0, Some(8))),
        (atomic(AtomicOp::Read, u64_), 8, of(8, 0, Some(8))),
    ];
    for (number, (atomic, len, buffers)) in cases.iter_mut().enumerate() {
        let refused = nodes[0].endpoint.access(request(1, key, 0, buffers.kind(*atomic, *len), 1));
        assert!(matches!(refused, Err(FabricError::WrongAtomic)), "case {number}: {refused:?}");
    }
    let mut long = of(4104, 0, None);
    let refused = nodes[0].endpoint.access(request(1, key, 0, long.kind(SUM, 4104), 1));
    assert!(matches!(refused, Err(FabricError::Limit { limit: 4096, .. })), "{refused:?}");
    // Buffers that are not mapped fail the operation only.
    let swap = atomic(AtomicOp::SwapIfEqual, u64_);
    let mut results = [0; 8];
    let results = Some(segments(&mut results));
    let good = Buffers { operands: vec![0; 8], ..Buffers::default() }.kind(SUM, 8);
    let AccessKind::Atomic { operands: good, .. } = good else { unreachable!() };
    let bad = unmapped(8);
    let kinds = [
        AccessKind::Atomic { atomic: SUM, len: 8, operands: bad, compares: Segments::default(), results: None },
        AccessKind::Atomic { atomic: swap, len: 8, operands: bad, compares: bad, results },
        AccessKind::Atomic { atomic: swap, len: 8, operands: bad, compares: good, results },
    ];
    for (number, kind) in kinds.into_iter().enumerate() {
        let context = 10 + number as u64;
        nodes[0].endpoint.access(request(1, key, 0, kind, context)).unwrap();
        assert_eq!(ended(&mut nodes, context), Err(Failure::BadBuffer { address: 4096 }));
    }
    assert!(memory.iter().all(|&byte| byte == 0));
}

#[test]
fn injected_operands_are_taken_before_the_call_returns() {
    let Nodes { mut nodes, regions } = with_regions(2, &Config::default(), Copier::cpu);
    let mut memory = [0_u8; 72];
    let align = memory.as_ptr().align_offset(8);
    let key = register(&regions[1], &mut memory[align..], BOTH);
    // The first waits for its connection.
    for context in 0..10 {
        let mut buffers = of_one(3, false);
        let inject = AccessRequest { inject: true, ..request(1, key, 0, buffers.kind(SUM, 8), context) };
        nodes[0].endpoint.access(inject).unwrap();
        buffers.operands.fill(0xff);
        drop(buffers);
    }
    run_until(&mut nodes, |nodes| nodes[0].done.len() == 10);
    assert!(nodes[0].done.iter().all(|end| end.result.is_ok()));
    assert_eq!(memory[align], 30);
}

#[test]
fn operations_end_while_the_peer_makes_no_calls() {
    let regions = Arc::<Regions>::default();
    let config = Config::default();
    let target =
        Endpoint::open_with(config.clone(), Copier::cpu(), ProgressBy::HelperThread, Arc::clone(&regions)).unwrap();
    let node = Node::new(config, Copier::cpu(), ProgressBy::Caller);
    node.endpoint.insert_peer(&target.address()).unwrap();
    let mut memory = [0_u8; 72];
    let align = memory.as_ptr().align_offset(8);
    let key = register(&regions, &mut memory[align..], BOTH);
    let mut nodes = [node];
    for context in 0..20 {
        let mut buffers = of_one(1, true);
        nodes[0].endpoint.access(request(0, key, 0, buffers.kind(SUM, 8), context)).unwrap();
        assert_eq!(ended(&mut nodes, context), Ok(()));
        assert_eq!(buffers.results.unwrap()[..], context.to_le_bytes());
    }
}
