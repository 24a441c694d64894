//! Conversions, reductions, gather and scatter: the same result from devices that fault, stop or lack the operation.
#![allow(clippy::cast_possible_truncation, reason = "tests cut small numbers")]

use crate::array_device::execute;
use crate::common::device::{PAGE, TestDevice};
use crate::common::{Chance, mover, naive, on_fault, policy};
use crate::recovery::{LEN, check_via, disturbed, splits};
use proptest::prelude::*;
use std::sync::Arc;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};
use telpher_device::{ModelDevice, ModelOptions, Preset};
use telpher_mover::{
    Arithmetic, Blocks, Channel, ChannelPolicy, ComputeResult, ComputeType, DataType, DifConfig, E4m3Overflow,
    JobError, Mover, Opcode, Outcome, Policy, Rounding, SglFormat, Tags, Threshold, Via,
};
use telpher_portal::{Portal, QueueMode};

/// Types and options whose results round, overflow and underflow.
fn arithmetics() -> Vec<Arithmetic> {
    let signed = Arithmetic { signed: true, negate1: true, ..Arithmetic::new(DataType::Int16, DataType::Int32) };
    vec![
        Arithmetic::new(DataType::Fp32, DataType::Bf16),
        Arithmetic { rounding: Rounding::Up, ..Arithmetic::new(DataType::Fp16, DataType::Fp8E5M2) },
        Arithmetic { denormals_are_zero: true, ..Arithmetic::new(DataType::Fp8E4M3, DataType::Fp32) },
        Arithmetic { saturate: true, ..Arithmetic::new(DataType::Int32, DataType::Int8) },
        signed,
    ]
}

/// Numbers that fill a little more than three pages on the wider side.
fn elements(arithmetic: &Arithmetic) -> usize {
    LEN / arithmetic.input.bytes().max(arithmetic.output.bytes()) as usize
}

fn sizes(arithmetic: &Arithmetic) -> (usize, usize) {
    let n = elements(arithmetic);
    (n * arithmetic.input.bytes() as usize, n * arithmetic.output.bytes() as usize)
}

#[test]
fn conversions_resume_at_every_page() {
    for (i, arithmetic) in arithmetics().into_iter().enumerate() {
        let (from, to) = sizes(&arithmetic);
        let source = Chance::new(20 + i as u64).bytes(from);
        let mut expected = vec![0; to];
        let seen = telpher_ops::convert(&arithmetic, &source, &mut expected);
        for max in [1 << 21, 5000] {
            for split in splits(2).into_iter().filter(|split| !split.backward) {
                let (src, dst) = (source.clone(), vec![0; to]);
                let (mover, device) = disturbed(&split, max, &[&src, &dst]);
                let done = mover.convert(src, dst, arithmetic).wait();
                check_via(&split, done.via, &device);
                let (result, src, dst) = done.into_parts();
                assert_eq!(result, Ok(Outcome::Computed(seen)), "{arithmetic:?} {split:?}");
                assert!(src == source && dst == expected, "{arithmetic:?} {split:?}");
            }
        }
    }
}

#[test]
fn reductions_resume_at_every_page() {
    for (i, arithmetic) in arithmetics().into_iter().enumerate() {
        let (from, to) = sizes(&arithmetic);
        let (a, b) = (Chance::new(30 + i as u64).bytes(from), Chance::new(40 + i as u64).bytes(from));
        let mut expected = vec![0; to];
        let seen = telpher_ops::reduce(&arithmetic, ComputeType::Add, &a, &b, &mut expected);
        for split in splits(3).into_iter().filter(|split| !split.backward) {
            let (src, src2, dst) = (a.clone(), b.clone(), vec![0; to]);
            let (mover, device) = disturbed(&split, 5000, &[&src, &src2, &dst]);
            let done = mover.reduce(src, src2, dst, ComputeType::Add, arithmetic).wait();
            check_via(&split, done.via, &device);
            let (result, _, _, dst) = done.into_parts();
            assert_eq!(result, Ok(Outcome::Computed(seen)), "{arithmetic:?} {split:?}");
            assert!(dst == expected, "{arithmetic:?} {split:?}");
        }
    }
}

/// Two destinations that agree in their low 12 bits are written by the device, others by the CPU.
#[test]
fn a_reduction_to_two_destinations_resumes_at_every_page() {
    let arithmetic = Arithmetic::new(DataType::Int64, DataType::Int64);
    let (a, b) = (Chance::new(50).bytes(8192), Chance::new(51).bytes(8192));
    let mut expected = vec![0; 8192];
    let seen = telpher_ops::reduce(&arithmetic, ComputeType::Xor, &a, &b, &mut expected);
    for split in splits(4).into_iter().filter(|split| !split.backward) {
        for apart in [0, 8] {
            let whole = crate::common::pieces(vec![0; 8 * 4096], &[8192, 2 * 4096 + apart, 8192, 8192 - apart]);
            let [first, _, second, _] = whole.try_into().expect("four pieces");
            let (src, src2) = (a.clone(), b.clone());
            let (mover, device) = disturbed(&split, 5000, &[&src, &src2, first, second]);
            let done = mover.reduce_dualcast(src, src2, first, second, ComputeType::Xor, arithmetic).wait();
            if apart == 0 {
                check_via(&split, done.via, &device);
            } else {
                assert_eq!(done.via, Via::Cpu);
            }
            let (result, _, _, first, second) = done.into_parts();
            assert_eq!(result, Ok(Outcome::Computed(seen)), "{split:?}");
            assert!(*first == *expected && *second == *expected, "{split:?}");
        }
    }
}

/// Blocks of 512 bytes without flags.
fn plain() -> DifConfig {
    DifConfig {
        block: DifBlock::B512,
        flags: DifFlags::empty(),
        source: SourceDifFlags::empty(),
        dest: DestDifFlags::empty(),
    }
}

#[test]
fn generated_tuples_resume_at_every_page() {
    let config = DifConfig { dest: DestDifFlags::APP_TAG_INCREMENTS, ..plain() };
    let tags = Tags { ref_tag: 7, app_tag: 9, app_mask: 0 };
    let source = Chance::new(60).bytes(512 * 25);
    let protected = naive::insert(&source, &config, tags);
    let expected: Vec<u8> = protected.chunks(520).flat_map(|block| &block[512..]).copied().collect();
    let mut next = tags;
    (0..25).for_each(|_| naive::step_dest(&mut next, &config));
    for max in [1 << 21, 5000] {
        for split in splits(2).into_iter().filter(|split| !split.backward) {
            let (src, dst) = (source.clone(), vec![0; 25 * 8]);
            let (mover, device) = disturbed(&split, max, &[&src, &dst]);
            let done = mover.dix_generate(src, dst, config, tags).wait();
            check_via(&split, done.via, &device);
            let (result, _, dst) = done.into_parts();
            assert_eq!(result, Ok(Outcome::Dif { source: Tags::default(), dest: next }), "{split:?}");
            assert!(dst == expected, "{split:?}");
        }
    }
}

/// A list of `entries` distinct blocks of a memory of `places` blocks, and their offsets.
fn list(chance: &mut Chance, format: SglFormat, block: usize, places: usize, entries: usize) -> (Vec<u8>, Vec<usize>) {
    let mut order: Vec<usize> = (0..places).collect();
    (0..places).for_each(|i| order.swap(i, chance.below(places as u64) as usize));
    let offsets: Vec<usize> = order.into_iter().take(entries).map(|place| place * block).collect();
    let bytes = offsets.iter().flat_map(|&offset| match format {
        SglFormat::Offset64 => (offset as u64).to_le_bytes().to_vec(),
        SglFormat::Index32 => ((offset / block) as u32).to_le_bytes().to_vec(),
        SglFormat::Index64 => ((offset / block) as u64).to_le_bytes().to_vec(),
    });
    (bytes.collect(), offsets)
}

#[derive(Debug, Clone)]
struct World {
    seed: u64,
    format: SglFormat,
    block: usize,
    entries: usize,
    max_transfer: u64,
    faults: Vec<(u8, u32)>,
    policy: Policy,
}

fn world() -> impl Strategy<Value = World> {
    let shape = (proptest::sample::select(SglFormat::ALL), 1_usize..3000, 1_usize..60, 3000_u64..40_000);
    let faults = proptest::collection::vec((0_u8..12, 1_u32..3), 0..4);
    (any::<u64>(), shape, faults, on_fault()).prop_map(
        |(seed, (format, block, entries, max_transfer), faults, on_fault)| World {
            seed,
            format,
            block,
            entries,
            max_transfer,
            faults,
            policy: Policy { on_fault, ..policy() },
        },
    )
}

impl World {
    /// A mover over a device on which some pages of these buffers fault.
    fn mover(&self, buffers: &[&[u8]]) -> (Mover, Arc<TestDevice>) {
        let device = TestDevice::with(|info| info.max_transfer = self.max_transfer);
        let device = Arc::new(device.with_executor(execute));
        for &(page, times) in &self.faults {
            let buffer = buffers[usize::from(page) % buffers.len()];
            device.fault(buffer.as_ptr() as u64 + u64::from(page / 3) * PAGE, times);
        }
        (mover(&device, self.policy), device)
    }

    fn blocks(&self) -> Blocks {
        Blocks { format: self.format, bytes: self.block as u32 }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn lists_give_the_naive_bytes(world in world()) {
        let World { block, entries, .. } = world;
        let mut chance = Chance::new(world.seed);
        let (names, offsets) = list(&mut chance, world.format, block, entries + 5, entries);
        let memory = chance.bytes((entries + 5) * block);
        let gathered: Vec<u8> = offsets.iter().flat_map(|&at| &memory[at..at + block]).copied().collect();

        let (src, list, dst) = (memory.clone(), names.clone(), vec![0; entries * block]);
        let (mover, device) = world.mover(&[&src, &list, &dst]);
        let (result, src, list, dst) = mover.gather(src, list, dst, world.blocks()).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Done));
        prop_assert!(src == memory && list == names && dst == gathered);
        prop_assert!(device.state().taken.contains(&Opcode::GatherCopy));

        let source = chance.bytes(entries * block);
        let mut expected = memory.clone();
        for (at, piece) in offsets.iter().zip(source.chunks(block)) {
            expected[*at..at + block].copy_from_slice(piece);
        }
        let (src, dst) = (source.clone(), memory.clone());
        let (mover, _) = world.mover(&[&src, &list, &dst]);
        let (result, src, list, dst) = mover.scatter(src, list, dst, world.blocks()).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Done));
        prop_assert!(src == source && list == names && dst == expected);

        for &at in &offsets {
            expected[at..at + block].copy_from_slice(&naive::pattern(&world.seed.to_le_bytes(), block));
        }
        let (mover, _) = world.mover(&[&list, &dst]);
        let (result, _, dst) = mover.scatter_fill(list, dst, world.blocks(), world.seed).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Done));
        prop_assert!(dst == expected);
    }

    #[test]
    fn a_reduced_list_gives_the_sum_in_its_order(world in world(), numbers in 1_usize..300) {
        let arithmetic = Arithmetic { negate1: true, ..Arithmetic::new(DataType::Fp16, DataType::Fp32) };
        let (block, entries) = (2 * numbers, world.entries);
        let mut chance = Chance::new(world.seed);
        let (names, offsets) = list(&mut chance, world.format, block, entries + 5, entries);
        let memory = chance.bytes((entries + 5) * block);
        let mut expected = vec![0; 4 * numbers];
        let mut seen = ComputeResult::empty();
        for (i, &at) in offsets.iter().enumerate() {
            seen |= match i {
                0 => telpher_ops::convert(&arithmetic, &memory[at..at + block], &mut expected),
                _ => telpher_ops::fold(&arithmetic, ComputeType::Add, &memory[at..at + block], &mut expected),
            };
        }
        let (src, list, dst) = (memory, names, vec![0; 4 * numbers]);
        let (mover, device) = world.mover(&[&src, &list, &dst]);
        let blocks = Blocks { bytes: block as u32, ..world.blocks() };
        let done = mover.gather_reduce(src, list, dst, blocks, ComputeType::Add, arithmetic).wait();
        // Longer lists and larger blocks than the device has stay on the CPU.
        let fits = entries <= 16 && 4 * numbers <= 1024 && (entries * block) as u64 <= world.max_transfer;
        prop_assert_eq!(device.state().taken.is_empty(), !fits);
        let (result, _, _, dst) = done.into_parts();
        prop_assert_eq!(result, Ok(Outcome::Computed(seen)));
        prop_assert!(dst == expected);
    }
}

/// The device stops in the middle of an operation: the CPU does what is left, or all of it again.
#[test]
fn a_stopped_device_leaves_the_rest_to_the_cpu() {
    let arithmetic = Arithmetic::new(DataType::Int8, DataType::Int32);
    let source = Chance::new(70).bytes(3000);
    let mut expected = vec![0; 12_000];
    telpher_ops::convert(&arithmetic, &source, &mut expected);
    let manual = || {
        let device = Arc::new(TestDevice::new(QueueMode::Shared, 8).with_executor(execute));
        device.state().manual = true;
        device
    };
    for byte in [0, 1, 1500, 2999] {
        let device = manual();
        let mover = mover(&device, policy());
        let src = source.clone();
        let at = src.as_ptr() as u64 + byte;
        let mut job = mover.convert(src, vec![0; 12_000], arithmetic);
        assert!(!job.is_done());
        device.stop_within(at, "test");
        let done = job.wait();
        let (result, _, dst) = done.into_parts();
        assert!(matches!(result, Ok(Outcome::Computed(_))) && dst == expected, "at {byte}");

        let device = manual();
        let mover = crate::common::mover(&device, policy());
        let (list, memory) = ([2_u32, 0].map(u32::to_le_bytes).as_flattened().to_vec(), vec![0; 4500]);
        let src = source.clone();
        let at = src.as_ptr() as u64 + byte;
        let blocks = Blocks { format: SglFormat::Index32, bytes: 1500 };
        let mut job = mover.scatter(src, list, memory, blocks);
        assert!(!job.is_done());
        device.stop_within(at, "test");
        let (result, _, _, dst) = job.wait().into_parts();
        assert_eq!(result, Ok(Outcome::Done));
        assert!(dst[3000..] == source[..1500] && dst[..1500] == source[1500..] && dst[1500..3000] == [0; 1500]);
    }
}

fn model(preset: Preset) -> (ModelDevice, Vec<Arc<dyn Portal>>) {
    let device = ModelDevice::start(ModelOptions::of(preset)).unwrap();
    let portals = device.enabled_queues().into_iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap()).collect();
    (device, portals)
}

/// Every operation in one batch: done by the model of 3.0, and by the CPU for earlier devices, with the same result.
#[test]
fn devices_and_the_cpu_give_the_same_results() {
    let mut outcomes = Vec::new();
    for (preset, via) in [(Preset::V3Full, Via::Device), (Preset::V2Full, Via::Cpu), (Preset::Spr, Via::Cpu)] {
        let (_device, portals) = model(preset);
        let mover = Mover::new(portals, Policy { threshold: Threshold::DEVICE, ..Policy::default() });
        let mut chance = Chance::new(80);
        let (a, b) = (chance.bytes(96 << 10), chance.bytes(96 << 10));
        let (names, _) = list(&mut chance, SglFormat::Index32, 48, 2048, 1500);
        let blocks = Blocks { format: SglFormat::Index32, bytes: 48 };
        let to_half = Arithmetic::new(DataType::Fp32, DataType::Fp16);
        let sum = Arithmetic { saturate: true, signed: true, ..Arithmetic::new(DataType::Int16, DataType::Int16) };
        let mut batch = mover.batch();
        let converted = batch.convert(a.clone(), vec![0; 48 << 10], to_half);
        let reduced = batch.reduce(a.clone(), b.clone(), vec![0; 96 << 10], ComputeType::Max, sum);
        let gathered = batch.gather(a.clone(), names.clone(), vec![0; 1500 * 48], blocks);
        let scattered = batch.scatter(b[..1500 * 48].to_vec(), names.clone(), a.clone(), blocks);
        let filled = batch.scatter_fill(names.clone(), b.clone(), blocks, 0x0102_0304_0506_0708);
        let folded = batch.gather_reduce(a.clone(), names[..4000].to_vec(), vec![0; 48], blocks, ComputeType::Add, sum);
        let mut done = batch.submit().wait();
        let mut results = Vec::new();
        let mut take = |via_seen: Via, result: Result<Outcome, JobError>, bytes: Vec<u8>| {
            assert_eq!(via_seen, via, "{preset:?} {}", results.len());
            results.push((result, bytes));
        };
        let one = done.take(converted);
        take(one.via, one.result, one.buffers.1);
        let one = done.take(reduced);
        take(one.via, one.result, one.buffers.2);
        let one = done.take(gathered);
        take(one.via, one.result, one.buffers.2);
        let one = done.take(scattered);
        take(one.via, one.result, one.buffers.2);
        let one = done.take(filled);
        take(one.via, one.result, one.buffers.1);
        let one = done.take(folded);
        take(one.via, one.result, one.buffers.2);
        assert!(results.iter().all(|(result, _)| result.is_ok()), "{preset:?}");
        outcomes.push(results);
    }
    assert!(outcomes.iter().all(|results| *results == outcomes[0]));
}

#[test]
fn generated_tuples_come_from_devices_of_2_x() {
    let source = Chance::new(81).bytes(4096 * 3);
    let (config, tags) = (plain(), Tags { ref_tag: 1, ..Tags::default() });
    let mut results = Vec::new();
    for (preset, via) in [(Preset::Srf, Via::Device), (Preset::V3Full, Via::Device), (Preset::Spr, Via::Cpu)] {
        let (_device, portals) = model(preset);
        let mover = Mover::new(portals, Policy { threshold: Threshold::DEVICE, ..Policy::default() });
        let done = mover.dix_generate(source.clone(), vec![0; 24 * 8], config, tags).wait();
        assert_eq!(done.via, via, "{preset:?}");
        results.push((done.result, done.buffers.1));
    }
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn a_channel_has_the_operations() {
    let (_device, portals) = model(Preset::V3Full);
    let portal = Arc::clone(&portals[0]);
    let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(portal, 8, ChannelPolicy::default()).unwrap();
    let list = [1_u64, 0].map(u64::to_le_bytes).as_flattened().to_vec();
    let blocks = Blocks { format: SglFormat::Index64, bytes: 2 };
    channel.gather(vec![1, 2, 3, 4], list, vec![0; 4], blocks).unwrap();
    let add = Arithmetic::new(DataType::Int8, DataType::Int8);
    channel.reduce(vec![1; 64], vec![2; 64], vec![0; 64], ComputeType::Add, add).unwrap();
    channel.submit();
    let mut done = Vec::new();
    let begin = std::time::Instant::now();
    while done.len() < 2 {
        channel.completed(&mut done);
        assert!(begin.elapsed().as_secs() < 60, "the channel does not answer");
    }
    assert!(done.iter().all(|finished| finished.via == Via::Device));
    let outputs: Vec<Vec<u8>> = done.into_iter().map(|finished| finished.buffers.unwrap().dst.unwrap()).collect();
    assert_eq!(outputs, [vec![3, 4, 1, 2], vec![3; 64]]);
}

/// Nothing outside the memory is named, whatever the list holds.
#[test]
fn entries_outside_the_memory_are_refused() {
    let mover = Mover::cpu();
    for (format, entry, offset) in [
        (SglFormat::Offset64, 57_u64, 57),
        (SglFormat::Offset64, u64::MAX, u64::MAX),
        (SglFormat::Index32, 8, 64),
        (SglFormat::Index64, 1 << 61, u64::MAX),
    ] {
        let list: Vec<u8> =
            [0, entry].iter().flat_map(|e| e.to_le_bytes()[..format.entry_bytes() as usize].to_vec()).collect();
        let expected = Err(JobError::Outside { entry: 1, offset, len: 64 });
        let blocks = Blocks { format, bytes: 8 };
        assert_eq!(mover.gather(vec![0; 64], list.clone(), vec![0; 16], blocks).wait().result, expected);
        assert_eq!(mover.scatter(vec![0; 16], list.clone(), vec![0; 64], blocks).wait().result, expected);
        assert_eq!(mover.scatter_fill(list.clone(), vec![0; 64], blocks, 0).wait().result, expected);
        let add = Arithmetic::new(DataType::Int8, DataType::Int8);
        let job = mover.gather_reduce(vec![0; 64], list, vec![0; 8], blocks, ComputeType::Add, add);
        assert_eq!(job.wait().result, expected);
    }
}

#[test]
fn lengths_and_types_that_do_not_fit_are_refused() {
    let mover = Mover::cpu();
    let blocks = Blocks { format: SglFormat::Index32, bytes: 4 };
    let lengths = |result: Result<Outcome, JobError>| assert!(matches!(result, Err(JobError::Lengths { .. })));
    lengths(mover.gather(vec![0; 8], vec![0; 8], vec![0; 7], blocks).wait().result);
    lengths(mover.scatter(vec![0; 4], vec![0; 8], vec![0; 8], blocks).wait().result);
    let to_double = Arithmetic::new(DataType::Fp32, DataType::Fp64);
    lengths(mover.convert(vec![0; 8], vec![0; 8], to_double).wait().result);
    let unit = |result: Result<Outcome, JobError>| assert!(matches!(result, Err(JobError::Unit { .. })));
    unit(mover.gather(vec![0; 8], vec![0; 7], vec![0; 8], blocks).wait().result);
    unit(mover.convert(vec![0; 7], vec![0; 14], to_double).wait().result);
    let options = |result: Result<Outcome, JobError>| assert!(matches!(result, Err(JobError::Options { .. })));
    options(mover.gather(vec![0; 8], vec![0; 8], vec![], Blocks { bytes: 0, ..blocks }).wait().result);
    options(mover.convert(vec![0; 8], vec![0; 8], Arithmetic::new(DataType::Int32, DataType::Fp32)).wait().result);
    let fp8 = Arithmetic { e4m3_overflow: E4m3Overflow::Largest, ..Arithmetic::new(DataType::Fp16, DataType::Fp8E4M3) };
    options(mover.convert(vec![0; 8], vec![0; 4], fp8).wait().result);
    let floats = Arithmetic::new(DataType::Fp32, DataType::Fp32);
    options(mover.reduce(vec![0; 8], vec![0; 8], vec![0; 8], ComputeType::Xor, floats).wait().result);
    // Empty operations are done at once.
    let done = mover.gather(vec![0; 8], vec![], vec![], blocks).wait();
    assert_eq!(done.result, Ok(Outcome::Done));
}
