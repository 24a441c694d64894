//! The operations of 3.0 on memory that faults: any pattern of faults, each answered by making the page accessible and
//! by the continuation that SPEC §8.3.19 to §8.3.25 describe, leaves the same bytes and results as one run without
//! faults.

use telpher_abi::{
    CompletionRecord, ComputeFlags, ComputeType, DataType, Descriptor, Flags, Opcode, OperandId, Rounding, SglFormat,
    Status, WindowFlags,
};
use telpher_mem::{MockSpace, PAGE_BYTES, Protection, Space};
use telpher_model::{Action, Alternate, OperandSpaces, Outcome, Scratch, Window, execute};
use telpher_os::Random;

/// The areas of a descriptor's operands, each of this many pages.
const AREA_PAGES: u64 = 16;
const SOURCE: u64 = 0x10_0000;
const SOURCE2: u64 = 0x20_0000;
const RESULT: u64 = 0x30_0000;
const RESULT2: u64 = 0x40_0000;
const BUFFERS: u64 = 0x50_0000;
const LIST: u64 = 0x60_0000;
const AREAS: [u64; 6] = [SOURCE, SOURCE2, RESULT, RESULT2, BUFFERS, LIST];

const OPERATIONS: [Opcode; 7] = [
    Opcode::TypeConversion,
    Opcode::Reduce,
    Opcode::ReduceDualcast,
    Opcode::GatherReduce,
    Opcode::GatherCopy,
    Opcode::ScatterCopy,
    Opcode::ScatterFill,
];

/// Numbers that are drawn.
struct Draw(Random);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

fn memory(seed: u64) -> MockSpace {
    let space = MockSpace::new();
    for (area, number) in AREAS.into_iter().zip(0..) {
        let len = usize::try_from(AREA_PAGES * PAGE_BYTES).unwrap();
        space.map(area, len / 4096, Protection::ReadWrite);
        let mut bytes = vec![0; len];
        Random::new(seed ^ number).fill(&mut bytes);
        space.poke(area, &bytes);
    }
    space
}

fn typed(d: Descriptor, draw: &mut Draw) -> Descriptor {
    use DataType::{Bf16, Fp8E4M3, Fp16, Fp32, Fp64, Int8, Int16, Int32, Int64};
    let integers = draw.below(2) == 0;
    let types: &[DataType] = if integers { &[Int8, Int16, Int32, Int64] } else { &[Fp8E4M3, Fp16, Bf16, Fp32, Fp64] };
    let computes: &[ComputeType] = if integers { ComputeType::ALL } else { &[ComputeType::Add, ComputeType::Max] };
    let mut flags = ComputeFlags::empty();
    if integers {
        flags |= draw.of(&[ComputeFlags::empty(), ComputeFlags::SIGNED, ComputeFlags::SATURATE]);
    } else {
        flags = flags.with_rounding(draw.of(Rounding::ALL));
    }
    let compute = if d.opcode() == Opcode::TypeConversion { 0 } else { draw.of(computes).code() };
    d.with_input_type_code(draw.of(types).code())
        .with_output_type_code(draw.of(types).code())
        .with_compute_type_code(compute)
        .with_compute_flags(flags.bits())
}

/// Draws a legal descriptor, and writes its list.
fn descriptor(opcode: Opcode, draw: &mut Draw, spaces: [&MockSpace; 2]) -> Descriptor {
    let d = Descriptor::new(opcode);
    // Begins near the end of a page, so that few elements come before the first fault.
    let near = |draw: &mut Draw| 4096 - 8 * (1 + draw.below(500));
    match opcode {
        Opcode::TypeConversion => {
            let elements = u32::try_from(1 + draw.below(4000)).unwrap();
            let d = typed(d, draw);
            d.with_src(SOURCE + near(draw)).with_dst(RESULT + near(draw)).with_size(elements)
        }
        Opcode::Reduce | Opcode::ReduceDualcast => {
            let elements = u32::try_from(1 + draw.below(4000)).unwrap();
            let d = typed(d, draw).with_src(SOURCE + near(draw)).with_dst(SOURCE2 + near(draw)).with_size(elements);
            let offset = near(draw);
            let second = if opcode == Opcode::Reduce { 0 } else { RESULT2 + offset };
            d.with_reduce_dst(RESULT + offset).with_reduce_dst2(second)
        }
        _ => {
            let gathers = opcode == Opcode::GatherReduce;
            let d = if gathers { typed(d, draw) } else { d.with_input_type_code(draw.of(DataType::ALL).code()) };
            let bytes = DataType::from_code(d.input_type_code()).unwrap().bytes();
            let entries = 1 + draw.below(200);
            let elements = u32::try_from(1 + draw.below(if gathers { 100 } else { 30 })).unwrap();
            let block = u64::from(elements * bytes);
            let format = draw.of(SglFormat::ALL);
            let base = BUFFERS + 4096 - 8;
            // Buffers do not overlap, so that the order of writes does not matter.
            let room = (AREA_PAGES * PAGE_BYTES - 4096) / block;
            let mut places: Vec<u64> = (0..room).collect();
            for at in (1..places.len()).rev() {
                places.swap(at, usize::try_from(draw.below(at as u64 + 1)).unwrap());
            }
            places.truncate(usize::try_from(entries).unwrap());
            let entry = |place: &u64| match format {
                SglFormat::Offset64 => (place * block).to_le_bytes().to_vec(),
                SglFormat::Index64 => place.to_le_bytes().to_vec(),
                SglFormat::Index32 => u32::try_from(*place).unwrap().to_le_bytes().to_vec(),
            };
            let list: Vec<u8> = places.iter().flat_map(entry).collect();
            let at = LIST + near(draw) - 3;
            for space in spaces {
                space.poke(at, &list);
            }
            let d = d.with_sgl_size(u16::try_from(places.len()).unwrap()).with_sgl_format_code(format.code());
            let d = d.with_sgl_base(base);
            let size = u32::try_from(places.len()).unwrap() * elements * bytes;
            let odd = near(draw) + draw.below(8);
            match opcode {
                Opcode::GatherReduce => d.with_src(at).with_dst(RESULT + near(draw)).with_size(elements),
                Opcode::GatherCopy => {
                    d.with_src(at).with_dst(RESULT + odd).with_size(size).with_element_count(elements)
                }
                Opcode::ScatterCopy => {
                    d.with_src(SOURCE + odd).with_dst(at).with_size(size).with_element_count(elements)
                }
                _ => {
                    let d = d.with_src(0x0807_0605_0403_0201).with_dst(at).with_size(size);
                    d.with_element_count(elements)
                }
            }
        }
    }
}

fn run(d: &Descriptor, space: &dyn Space, block: bool) -> Outcome {
    let action = Action::of(d);
    assert_ne!(action, Action::Nop, "the descriptor is legal: {d:?}");
    execute(&action, &OperandSpaces::own(space), block, false, &mut Scratch::default())
}

/// Source: SPEC §8.3.19 to §8.3.25, as tabulated with each operation.
fn continuation(d: &Descriptor, record: &CompletionRecord) -> Descriptor {
    let bytes = |code| DataType::from_code(code).unwrap().bytes();
    let (input, output) = (bytes(d.input_type_code()), bytes(d.output_type_code()));
    let completed = record.bytes_completed();
    let elements = completed / input;
    let entries = record.sgl_entries_done();
    match d.opcode() {
        Opcode::TypeConversion => d
            .with_src(d.src() + u64::from(completed))
            .with_dst(d.dst() + u64::from(elements * output))
            .with_size(d.size() - elements),
        Opcode::Reduce | Opcode::ReduceDualcast => d
            .with_src(d.src() + u64::from(completed))
            .with_dst(d.dst() + u64::from(completed))
            .with_reduce_dst(d.reduce_dst() + u64::from(elements * output))
            .with_reduce_dst2(d.reduce_dst2() + u64::from(elements * output))
            .with_size(d.size() - elements),
        Opcode::GatherReduce => {
            assert_eq!(completed, 0);
            *d
        }
        opcode => {
            let moved = u32::from(entries) * d.element_count() * input;
            assert!((moved..=moved + d.element_count() * input).contains(&completed), "{completed} {entries}");
            let entry_bytes = SglFormat::from_code(d.sgl_format_code()).unwrap().entry_bytes();
            let list = u64::from(u32::from(entries) * entry_bytes);
            let d = d.with_sgl_size(d.sgl_size() - entries).with_size(d.size() - moved);
            match opcode {
                Opcode::GatherCopy => d.with_src(d.src() + list).with_dst(d.dst() + u64::from(moved)),
                Opcode::ScatterCopy => d.with_src(d.src() + u64::from(moved)).with_dst(d.dst() + list),
                _ => d.with_dst(d.dst() + list),
            }
        }
    }
}

#[test]
fn any_faults_and_their_continuations_leave_what_one_run_leaves() {
    for seed in 0..140 {
        let mut draw = Draw(Random::new(seed));
        let opcode = OPERATIONS[usize::try_from(seed).unwrap() % OPERATIONS.len()];
        let (whole, parts) = (memory(seed), memory(seed));
        let d = descriptor(opcode, &mut draw, [&whole, &parts]);
        let first = run(&d, &whole, false);
        assert_eq!(first.record.status(), Status::Success, "{opcode} {seed}");
        assert_eq!((first.record.bytes_completed(), first.record.sgl_entries_done()), (0, 0), "{opcode} {seed}");

        for page in AREAS.iter().flat_map(|area| (0..AREA_PAGES).map(move |page| area + page * PAGE_BYTES)) {
            match draw.below(3) {
                0 => parts.set_present(page, false),
                1 => parts.protect(page, Protection::Read),
                _ => {}
            }
        }
        let (mut rest, mut seen, mut faults) = (d, 0, 0);
        let last = loop {
            let outcome = run(&rest, &parts, false);
            let record = outcome.record;
            seen |= record.result();
            if record.status() != Status::PageFault {
                break record;
            }
            faults += 1;
            assert_ne!(outcome.operand, OperandId::Unknown);
            assert!(faults <= 6 * 2 * AREA_PAGES, "{opcode} {seed}: faults without an end");
            parts.set_present(record.fault_address(), true);
            if record.status_byte().is_write() {
                parts.protect(record.fault_address(), Protection::ReadWrite);
            }
            rest = continuation(&rest, &record);
        };
        assert_eq!(last.status(), Status::Success, "{opcode} {seed}");
        if opcode != Opcode::GatherReduce {
            assert_eq!(seen, first.record.result(), "{opcode} {seed}");
        }
        for area in AREAS {
            let len = usize::try_from(AREA_PAGES * PAGE_BYTES).unwrap();
            assert!(whole.peek(area, len) == parts.peek(area, len), "{opcode} {seed}: area {area:#x}, {faults} faults");
        }
    }
}

#[test]
fn waiting_for_pages_needs_no_continuation() {
    for seed in 0..35 {
        let mut draw = Draw(Random::new(seed));
        let opcode = OPERATIONS[usize::try_from(seed).unwrap() % OPERATIONS.len()];
        let (whole, parts) = (memory(seed), memory(seed));
        let d = descriptor(opcode, &mut draw, [&whole, &parts]);
        let first = run(&d, &whole, true);
        for page in AREAS.iter().flat_map(|area| (0..AREA_PAGES).map(move |page| area + page * PAGE_BYTES)) {
            parts.set_present(page, draw.below(2) == 0);
        }
        let outcome = run(&d, &parts, true);
        assert_eq!(outcome.record, first.record, "{opcode} {seed}");
        assert_eq!(outcome.pages_granted as usize, parts.requests().len());
        for area in AREAS {
            let len = usize::try_from(AREA_PAGES * PAGE_BYTES).unwrap();
            assert!(whole.peek(area, len) == parts.peek(area, len), "{opcode} {seed}");
        }
    }
}

/// A list of three buffers of 12 bytes as in the worked examples, at LIST.
fn worked_list(space: &MockSpace, indexes: [u32; 3]) {
    space.poke(LIST, indexes.map(u32::to_le_bytes).as_flattened());
}

fn worked(opcode: Opcode) -> Descriptor {
    Descriptor::new(opcode)
        .with_size(36)
        .with_element_count(3)
        .with_sgl_size(3)
        .with_sgl_base(BUFFERS)
        .with_input_type_code(DataType::Int32.code())
        .with_sgl_format_code(SglFormat::Index32.code())
}

#[test]
fn gather_and_scatter_are_the_worked_examples() {
    let space = memory(1);
    worked_list(&space, [4, 0, 9]);
    let gather = worked(Opcode::GatherCopy).with_src(LIST).with_dst(RESULT);
    let bytes = gather.to_bytes();
    assert_eq!((bytes[7], bytes[32], bytes[40], bytes[44], bytes[56], bytes[59]), (0x1c, 36, 3, 3, 0x02, 0x20));
    assert_eq!(run(&gather, &space, false).record.status(), Status::Success);
    let expected: Vec<u8> = [0x30, 0, 0x6c].iter().flat_map(|offset| space.peek(BUFFERS + offset, 12)).collect();
    assert_eq!(space.peek(RESULT, 36), expected);

    // A fault at the third buffer: two entries are done, and bytes between 24 and 35.
    let space = memory(2);
    let base = BUFFERS + PAGE_BYTES - 0x70;
    worked_list(&space, [4, 0, 9]);
    let scatter = worked(Opcode::ScatterCopy).with_src(SOURCE).with_dst(LIST).with_sgl_base(base);
    space.set_present(BUFFERS + PAGE_BYTES, false);
    let record = run(&scatter, &space, false).record;
    assert_eq!(record.status_code(), 0x83);
    assert_eq!((record.sgl_entries_done(), record.bytes_completed()), (2, 28));
    space.set_present(BUFFERS + PAGE_BYTES, true);
    let rest = continuation(&scatter, &record);
    assert_eq!((rest.dst(), rest.sgl_size(), rest.size(), rest.src()), (LIST + 8, 1, 12, SOURCE + 24));
    assert_eq!(run(&rest, &space, false).record.status(), Status::Success);
    assert_eq!(space.peek(base + 0x6c, 12), space.peek(SOURCE + 24, 12));
}

#[test]
fn a_misaligned_buffer_ends_a_gather_reduction() {
    let space = memory(3);
    space.poke(LIST, [0_u64, 8, 13].map(u64::to_le_bytes).as_flattened());
    let d = Descriptor::new(Opcode::GatherReduce)
        .with_src(LIST)
        .with_dst(RESULT)
        .with_size(2)
        .with_sgl_size(3)
        .with_sgl_base(BUFFERS)
        .with_input_type_code(DataType::Int32.code())
        .with_output_type_code(DataType::Int32.code())
        .with_compute_type_code(ComputeType::Add.code())
        .with_sgl_format_code(SglFormat::Offset64.code());
    let before = space.peek(RESULT, 8);
    let record = run(&d, &space, false).record;
    assert_eq!((record.status(), record.sgl_entries_done()), (Status::AddressAlignment, 2));
    assert_eq!(space.peek(RESULT, 8), before);
    // With Check Result, an overflow fails the predicate.
    space.poke(LIST, [0_u64, 8, 16].map(u64::to_le_bytes).as_flattened());
    space.poke(BUFFERS, &[0xff; 24]);
    let checked = run(&d.with_flags(Flags::CHECK_RESULT), &space, false).record;
    assert_eq!((checked.status(), checked.result()), (Status::SuccessPredicateFalse, 4));
    assert_eq!(run(&d, &space, false).record.status(), Status::Success);
}

#[test]
fn a_buffer_outside_of_its_window_ends_a_list_with_the_handle() {
    let (own, other) = (memory(4), memory(5));
    worked_list(&own, [4, 0, 9]);
    let window = |flags, size| Window { handle: 7, pasid: 1, flags, base: BUFFERS, size, generation: 0 };
    let windowed = WindowFlags::READ | WindowFlags::WRITE | WindowFlags::ENABLE | WindowFlags::OFFSET_MODE;
    let gather = worked(Opcode::GatherCopy).with_src(LIST).with_dst(RESULT).with_sgl_base(0).alternate(Some(7), None);
    let run = |d: &Descriptor, window: Window| {
        let alternates = if d.opcode() == Opcode::GatherCopy {
            [Some(Alternate { space: &other, window }), None]
        } else {
            [None, Some(Alternate { space: &other, window })]
        };
        let mut action = Action::of(d);
        action.locate(&alternates.map(|alternate| alternate.map(|alternate| alternate.window))).unwrap();
        let spaces = OperandSpaces { own: &own, alternates };
        execute(&action, &spaces, false, false, &mut Scratch::default()).record
    };
    // The window ends exactly with the last buffer.
    let record = run(&gather, window(windowed, 120));
    assert_eq!(record.status(), Status::Success);
    assert_eq!(own.peek(RESULT + 24, 12), other.peek(BUFFERS + 0x6c, 12));
    let record = run(&gather, window(windowed, 119));
    assert_eq!((record.status_code(), record.sgl_entries_done(), record.fault_handle()), (0x2b, 2, 7));
    let record = run(&gather, window(windowed - WindowFlags::READ, 120));
    assert_eq!((record.status_code(), record.sgl_entries_done(), record.fault_handle()), (0x2a, 0, 7));

    // A fault in the owner's memory: the submitter learns no address.
    let scatter = worked(Opcode::ScatterCopy).with_src(SOURCE).with_dst(LIST).with_sgl_base(0);
    other.set_present(BUFFERS, false);
    let record = run(&scatter.alternate(None, Some(7)), window(windowed, 120));
    assert_eq!((record.status_code(), record.fault_address_masked(), record.fault_address()), (0x83, true, 0));
    assert_eq!((record.fault_handle(), record.sgl_entries_done()), (7, 0));
}
