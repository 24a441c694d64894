//! The operations of 3.0: which types, options, sizes, places and lists are legal, and what they compute.

use super::{List, liberal};
use crate::arena::place;
use crate::case::{Section, same_bytes, section};
use crate::expected::ExpectedRecord;
use crate::sample;
use crate::subject::{Capabilities, DeviceSpec, QueueSpec, WINDOW};
use crate::table::row;
use telpher_abi::{Descriptor, Flags, OpFlags, Opcode};

/// Largest transfer, and longest list, of the queue in these cases.
const MAX: u32 = 1 << 14;
const ENTRIES: u16 = 1 << 3;

/// Type codes: FP32 stands for floating point, and a 32-bit integer for integers.
const INT32: u8 = 2;
const FP32: u8 = 8;

/// The conversions to a wider floating-point type, by DSACAP1's bits. Source: SPEC §9.2.31.
const UP: [(u8, u8); 9] = [(4, 6), (4, 7), (4, 8), (5, 6), (5, 7), (5, 8), (6, 8), (7, 8), (8, 9)];

struct Arrays<'l, 'a> {
    list: &'l mut List<'a>,
    spec: DeviceSpec,
}

impl Arrays<'_, '_> {
    /// One descriptor and its status; values are checked elsewhere.
    fn put(&mut self, section: Section, name: &str, d: Descriptor, code: u8) {
        let spec = self.spec.clone();
        self.put_on(section, name, &spec, d, code);
    }

    fn put_on(&mut self, section: Section, name: &str, spec: &DeviceSpec, d: Descriptor, code: u8) {
        let expected = match code {
            0x01 => ExpectedRecord::status(code).any_result().any_specific(),
            code => ExpectedRecord::status(code),
        };
        let name = format!("{}, {name}, gives {code:#04x}", row(d.opcode().code()).name);
        self.list.one(section, name, spec, d, false, expected);
    }

    fn at(&self, offset: u64) -> u64 {
        self.list.arena.at(offset)
    }

    fn sample(&self, code: u8) -> Descriptor {
        sample::of(row(code), self.list.arena)
    }

    /// The typed operations with arrays of eight elements of one type, all of whose numbers are small.
    fn typed(&self, code: u8, input: u8, output: u8) -> Descriptor {
        let d = self.sample(code).with_size(8).with_input_type_code(input).with_output_type_code(output);
        if code == 0x18 { d } else { d.with_compute_type_code(6) }
    }

    /// The same device with other capabilities.
    fn with(&self, change: impl Fn(&mut Capabilities)) -> DeviceSpec {
        let mut capabilities = self.list.capabilities;
        change(&mut capabilities);
        DeviceSpec { capabilities: Some(capabilities), ..self.spec.clone() }
    }
}

fn sizes(a: &mut Arrays) {
    for code in [0x18, 0x19, 0x1a] {
        let d = a.sample(code);
        // The larger of both types counts: 32 bits.
        for (elements, status) in [(0, 0x13), (1, 0x01), (MAX / 4, 0x01), (MAX / 4 + 1, 0x13), (u32::MAX, 0x13)] {
            a.put(section::SIZES, &format!("{elements} elements"), d.with_size(elements), status);
        }
    }
    let narrow = a.sample(0x18).with_input_type_code(3).with_output_type_code(0);
    a.put(section::SIZES, "a source of the largest size", narrow.with_size(MAX / 8), 0x01);
    a.put(section::SIZES, "a source beyond the largest size", narrow.with_size(MAX / 8 + 1), 0x13);

    let gather = a.sample(0x1b);
    let block = 1 << a.list.capabilities.dsa_cap_0.max_gather_block_shift();
    for (elements, status) in [(0, 0x13), (1, 0x01), (block / 4, 0x01), (block / 4 + 1, 0x13), (u32::MAX, 0x13)] {
        a.put(section::SIZES, &format!("blocks of {elements} elements"), gather.with_size(elements), status);
    }
    let wide = gather.with_input_type_code(0);
    a.put(section::SIZES, "a result of the largest block", wide.with_size(block / 4), 0x01);
    a.put(section::SIZES, "a result beyond the largest block", wide.with_size(block / 4 + 1), 0x13);
    // All blocks together, in a queue whose largest transfer is four of them.
    let small = QueueSpec { max_transfer_shift: 12, ..QueueSpec::default() };
    let spec = a.spec.clone().queue(small);
    let whole = gather.with_size(1024 / 4);
    a.put_on(section::SIZES, "all blocks of the largest transfer", &spec, whole.with_sgl_size(4), 0x01);
    a.put_on(section::SIZES, "all blocks beyond the largest transfer", &spec, whole.with_sgl_size(5), 0x13);

    for code in [0x1b, 0x1c, 0x1d, 0x1e] {
        let d = a.sample(code);
        let sized = |entries: u16| {
            let d = d.with_sgl_size(entries);
            if code == 0x1b { d } else { d.with_size(sample::SIZE / 2 * u32::from(entries)) }
        };
        for (entries, status) in [(0, 0x14), (1, 0x01), (ENTRIES, 0x01), (ENTRIES + 1, 0x14), (u16::MAX, 0x14)] {
            // A transfer of 0 bytes, or of too many, is refused for that.
            let d = if matches!(entries, 1..=99) { sized(entries) } else { d.with_sgl_size(entries) };
            a.put(section::SIZES, &format!("a list of {entries} entries"), d, status);
        }
        if code == 0x1b {
            continue;
        }
        for size in [0, 1, sample::SIZE - 4, sample::SIZE + 4, MAX + 4, u32::MAX] {
            a.put(section::SIZES, &format!("{size} bytes instead of those of all buffers"), d.with_size(size), 0x13);
        }
        let largest = d.with_size(MAX).with_element_count(MAX / 8);
        a.put(section::SIZES, "the largest transfer", largest, 0x01);
        let beyond = d.with_size(MAX + 8).with_element_count(MAX / 8 + 1);
        a.put(section::SIZES, "more than the largest transfer", beyond, 0x13);
        a.put(section::SIZES, "buffers without elements", d.with_element_count(0), 0x13);
    }
}

fn types(a: &mut Arrays) {
    let float = |code: u8| code >= 4;
    for code in [0x18, 0x19, 0x1a, 0x1b] {
        for (input, output) in (0..16).flat_map(|input| (0..16).map(move |output| (input, output))) {
            let exists = input < 10 && output < 10;
            let converts =
                !float(input) || input == output || UP.contains(&(input, output)) || UP.contains(&(output, input));
            let legal = exists && float(input) == float(output) && converts;
            let status = if legal { 0x01 } else { 0x15 };
            a.put(section::ARRAYS, &format!("type {input} to {output}"), a.typed(code, input, output), status);
        }
    }
    for code in [0x1c, 0x1d, 0x1e] {
        let bytes = [1, 2, 4, 8, 1, 1, 2, 2, 4, 8];
        for data_type in 0..16_u8 {
            let d = a.sample(code).with_input_type_code(data_type);
            let (d, status) = match bytes.get(usize::from(data_type)) {
                Some(bytes) => (d.with_size(2 * 8 * bytes), 0x01),
                None => (d, 0x15),
            };
            a.put(section::ARRAYS, &format!("type {data_type}"), d.with_element_count(8), status);
        }
    }
    for code in [0x1b, 0x1c, 0x1d, 0x1e] {
        for format in 0..16_u8 {
            let status = if matches!(format, 1..=3) { 0x01 } else { 0x15 };
            // One entry of zeros is the base in every format.
            let d = a.sample(code).with_sgl_format_code(format).with_sgl_size(1);
            let list = a.at(sample::LIST) + 0x80;
            let d = if matches!(code, 0x1b | 0x1c) { d.with_src(list) } else { d.with_dst(list) };
            let d = if code == 0x1b { d } else { d.with_size(sample::SIZE / 2) };
            a.put(section::ARRAYS, &format!("list format {format}"), d, status);
        }
    }
    for code in [0x19, 0x1a, 0x1b] {
        for compute in 0..16_u8 {
            for (data_type, has) in [(INT32, matches!(compute, 1 | 3..=7)), (FP32, matches!(compute, 1 | 6 | 7))] {
                let d = a.typed(code, data_type, data_type).with_compute_type_code(compute);
                let name = format!("compute type {compute} of type {data_type}");
                a.put(section::ARRAYS, &name, d, if has { 0x01 } else { 0x15 });
            }
        }
    }
}

/// What one compute flag needs: bit, legal of integers, legal of floating point.
const COMPUTE_FLAGS: [(u8, bool, bool); 12] = [
    (0, true, true),
    (1, true, true),
    (2, false, true),
    (3, false, true),
    // Bits 6:4 are the rounding: 1 and 2 here, and 4, which does not exist.
    (4, false, true),
    (5, false, true),
    (6, false, false),
    (7, true, false),
    (8, true, false),
    (9, false, false),
    (10, false, false),
    (11, false, false),
];

fn compute_flags(a: &mut Arrays) {
    for code in [0x18, 0x19, 0x1a, 0x1b] {
        for (bit, of_integers, of_floats) in COMPUTE_FLAGS {
            for (data_type, legal) in [(INT32, of_integers), (FP32, of_floats)] {
                // Only these have a second source.
                let legal = legal && (bit != 1 || matches!(code, 0x19 | 0x1a));
                let d = a.typed(code, data_type, data_type).with_compute_flags(1 << bit);
                let name = format!("compute flag {bit} of type {data_type}");
                a.put(section::ARRAYS, &name, d, if legal { 0x01 } else { 0x15 });
            }
        }
        for rounding in 0..8 {
            let d = a.typed(code, FP32, FP32).with_compute_flags(rounding << 4);
            let status = if rounding < 4 { 0x01 } else { 0x15 };
            a.put(section::ARRAYS, &format!("rounding {rounding}"), d, status);
        }
    }
    // Without the capability. DSACAP2's bit, and the flags and type that need it.
    for (bit, flags, data_type) in [
        (0, 1 << 0, INT32),
        (0, 1 << 1, INT32),
        (2, 1 << 2, FP32),
        (3, 1 << 3, FP32),
        (7, 1 << 7, INT32),
        (8, 1 << 8, INT32),
        (12, 0, FP32),
        (13, 1 << 4, FP32),
        (14, 2 << 4, FP32),
        (15, 3 << 4, FP32),
    ] {
        let spec = a.with(|capabilities| capabilities.dsa_cap_2.0[0] &= !(1 << bit));
        let d = a.typed(0x19, data_type, data_type).with_compute_flags(flags);
        a.put_on(section::ARRAYS, &format!("compute flags {flags:#x} without DSACAP2[{bit}]"), &spec, d, 0x15);
        // Integers are not rounded.
        let d = a.typed(0x19, INT32, INT32);
        a.put_on(section::ARRAYS, &format!("no compute flags without DSACAP2[{bit}]"), &spec, d, 0x01);
    }
}

/// Types, conversions, computations and formats that a device may lack.
fn capabilities(a: &mut Arrays) {
    let without = |a: &Arrays, bit: usize| a.with(|capabilities| capabilities.dsa_cap_1.0[0] &= !(1 << bit));
    for data_type in 0..10_u8 {
        let spec = without(a, data_type.into());
        let other = if data_type < 4 { (data_type + 1) % 4 } else { data_type };
        let name = format!("type {data_type}, which the device lacks");
        for d in [a.typed(0x18, data_type, other), a.typed(0x18, other, data_type), a.typed(0x19, data_type, data_type)]
        {
            a.put_on(section::ARRAYS, &name, &spec, d, 0x15);
        }
        let d = a.sample(0x1c).with_input_type_code(data_type).with_size(16).with_sgl_size(1).with_element_count(2);
        a.put_on(
            section::ARRAYS,
            &name,
            &spec,
            d.with_size([2, 4, 8, 16, 2, 2, 4, 4, 8, 16][usize::from(data_type)]),
            0x15,
        );
    }
    for (at, (narrow, wide)) in UP.into_iter().enumerate() {
        for (bit, input, output) in [(16 + at, narrow, wide), (32 + at, wide, narrow)] {
            let spec = without(a, bit);
            let name = format!("type {input} to {output} without DSACAP1[{bit}]");
            a.put_on(section::ARRAYS, &name, &spec, a.typed(0x18, input, output), 0x15);
            a.put_on(section::ARRAYS, &name, &spec, a.typed(0x18, output, input), 0x01);
        }
    }
    for compute in [1, 3, 4, 5, 6, 7] {
        let spec = without(a, 48 + usize::from(compute));
        let d = a.typed(0x19, INT32, INT32).with_compute_type_code(compute);
        a.put_on(section::ARRAYS, &format!("compute type {compute}, which the device lacks"), &spec, d, 0x15);
    }
    for format in 1..4_u8 {
        let spec = a.with(|capabilities| capabilities.dsa_cap_0.0[0] &= !(1 << (32 + format)));
        let d = a.sample(0x1c).with_sgl_format_code(format);
        a.put_on(section::ARRAYS, &format!("list format {format}, which the device lacks"), &spec, d, 0x15);
    }
}

fn places(a: &mut Arrays) {
    let (out1, out2) = (a.at(place::OUT1), a.at(place::OUT2));
    // 16 to 32 bits: 64 bytes to 128.
    let d = a.sample(0x18);
    for (name, d, status) in [
        ("an odd source", d.with_src(d.src() + 1), 0x1c),
        ("a source aligned to its type", d.with_src(d.src() + 2), 0x01),
        ("a destination aligned to half of its type", d.with_dst(d.dst() + 2), 0x1c),
        ("a destination aligned to its type", d.with_dst(d.dst() + 4), 0x01),
    ] {
        a.put(section::ALIGNMENT, name, d, status);
    }
    let same = d.with_input_type_code(2).with_size(16);
    for (name, d, status) in [
        ("a destination behind the source", d.with_src(out1).with_dst(out1 + 64), 0x01),
        ("a destination four bytes into the source", d.with_src(out1).with_dst(out1 + 60), 0x16),
        ("a destination before the source", d.with_src(out1 + 128).with_dst(out1), 0x01),
        ("a source two bytes into the destination", d.with_src(out1 + 126).with_dst(out1), 0x16),
        ("source and destination at one place, of two types", d.with_src(out1).with_dst(out1), 0x16),
        ("source and destination at one place, of one type", same.with_src(out1).with_dst(out1), 0x01),
        ("source and destination an element apart", same.with_src(out1).with_dst(out1 + 4), 0x16),
    ] {
        a.put(section::OVERLAP, name, d, status);
    }
    for code in [0x19, 0x1a] {
        let d = a.sample(code);
        let d = if code == 0x1a { d.with_reduce_dst2(out2) } else { d };
        for (name, d, status) in [
            ("a misaligned source 1", d.with_src(d.src() + 2), 0x1c),
            ("a misaligned source 2", d.with_dst(d.dst() + 2), 0x1c),
            ("a misaligned destination", d.with_reduce_dst(out1 + 2), 0x1c),
        ] {
            a.put(section::ALIGNMENT, name, d, status);
        }
        for (name, d, status) in [
            ("source 1 in place", d.with_src(out1), 0x01),
            ("source 2 in place", d.with_dst(out1), 0x01),
            ("both sources in place", d.with_src(out1).with_dst(out1), 0x01),
            ("sources that overlap", d.with_src(d.dst() + 4), 0x01),
            ("source 1 an element into the destination", d.with_src(out1 + 60), 0x16),
            ("source 2 an element into the destination", d.with_dst(out1 + 60), 0x16),
            ("source 1 at the place of a wider destination", d.with_src(out1).with_output_type_code(3), 0x16),
            ("source 2 at the place of a wider destination", d.with_dst(out1).with_output_type_code(3), 0x16),
        ] {
            a.put(section::OVERLAP, name, d, status);
        }
    }
    let d = a.sample(0x1a);
    for (name, d, status) in [
        ("a misaligned destination 2", d.with_reduce_dst2(out2 + 2), 0x1c),
        ("destinations that differ in bit 6", d.with_reduce_dst2(out2 + 64), 0x17),
        ("destinations that differ in bit 11", d.with_reduce_dst2(out2 + 2048), 0x17),
        ("destinations that differ in bit 12", d.with_reduce_dst2(out2 + 4096), 0x01),
    ] {
        a.put(section::ALIGNMENT, name, d, status);
    }
    let long = d.with_size(2048);
    for (name, d, status) in [
        ("source 1 an element into destination 2", d.with_src(out2 + 60), 0x16),
        ("source 2 an element into destination 2", d.with_dst(out2 + 60), 0x16),
        ("source 1 in the place of destination 2", d.with_src(out2), 0x01),
        ("destinations that overlap", long.with_reduce_dst2(out1 + 4096), 0x16),
        ("destinations that touch", long.with_reduce_dst2(out1 + 8192), 0x01),
    ] {
        a.put(section::OVERLAP, name, d, status);
    }
    let (gather, list) = (a.sample(0x1b), a.at(sample::LIST));
    a.put(section::ALIGNMENT, "a misaligned destination", gather.with_dst(out1 + 2), 0x1c);
    a.put(section::ALIGNMENT, "a misaligned buffer", gather.with_sgl_base(gather.sgl_base() + 2), 0x1c);
    for code in [0x1b, 0x1c] {
        let d = a.sample(code);
        a.put(section::OVERLAP, "a destination before the list", d.with_dst(list - 64), 0x01);
        a.put(section::OVERLAP, "a destination four bytes into the list", d.with_dst(list - 60), 0x16);
        a.put(section::OVERLAP, "a list four bytes before the destination", d.with_dst(list + 4), 0x16);
    }
    for code in [0x1c, 0x1d, 0x1e] {
        let d = a.sample(code);
        let odd = |address: u64| address + 3;
        let d = d.with_sgl_base(odd(d.sgl_base()));
        let d = match code {
            0x1c => d.with_dst(odd(d.dst())),
            0x1d => d.with_src(odd(d.src())),
            _ => d,
        };
        a.put(section::ALIGNMENT, "odd addresses", d, 0x01);
    }
}

/// Operands in other address spaces, by handles and by the ID selector.
fn handles(a: &mut Arrays) {
    let selects = OpFlags::USE_ID_SELECTOR;
    for code in [0x19, 0x1a] {
        let d = a.sample(code).and_flags(selects);
        for selector in 0..=255_u8 {
            let fields = [0, 2, 4, 6].map(|at| selector >> at & 3);
            let legal = selector != 0 && !fields.contains(&3) && (code == 0x1a || fields[3] == 0);
            let handle = |which| if fields.contains(&which) { WINDOW } else { 0 };
            let d = d.with_id_selector(selector).with_handle_1(handle(1)).with_handle_2(handle(2));
            a.put(section::ARRAYS, &format!("ID selector {selector:#04x}"), d, if legal { 0x01 } else { 0x15 });
        }
        let named = |selector, first, second| d.with_id_selector(selector).with_handle_1(first).with_handle_2(second);
        a.put(section::RESERVED, "a handle 2 that is not named", named(1, WINDOW, WINDOW), 0x12);
        a.put(section::RESERVED, "a handle 1 that is not named", named(2, WINDOW, WINDOW), 0x12);
        // A place that is another operand's only in another address space.
        let d = named(0b01, WINDOW, 0).with_output_type_code(3);
        a.put(section::OVERLAP, "a source elsewhere, at the destination's place", d.with_src(d.reduce_dst()), 0x01);
        let d = named(0b01_0000, WINDOW, 0).with_output_type_code(3);
        a.put(section::OVERLAP, "a destination elsewhere, at a source's place", d.with_src(d.reduce_dst()), 0x01);
    }
    let apart = a.sample(0x1a).with_size(2048).and_flags(selects).with_id_selector(0b100_0000).with_handle_1(WINDOW);
    let d = apart.with_reduce_dst2(apart.reduce_dst() + 4096);
    a.put(section::OVERLAP, "a destination 2 elsewhere, at destination 1's place", d, 0x01);
    for flag in [OpFlags::ALTERNATE_SOURCE, OpFlags::ALTERNATE_DESTINATION] {
        let d = sample::with_flags(row(0x18), &a.sample(0x18), (Flags::RECORD | flag).bits(), a.list.arena);
        a.put(section::OVERLAP, "an operand elsewhere, at the other's place", d.with_src(d.dst()), 0x01);
    }
    let spec = a.with(|capabilities| capabilities.dsa_cap_0.0[0] |= 0x7700);
    let flags = (Flags::RECORD | OpFlags::ALTERNATE_DESTINATION).bits();
    let d = sample::with_flags(row(0x1c), &a.sample(0x1c), flags, a.list.arena);
    a.put_on(
        section::OVERLAP,
        "a destination elsewhere, at the list's place",
        &spec,
        d.with_dst(a.at(sample::LIST) + 64),
        0x01,
    );
}

/// Results of the specification's examples, and of one with every rounding.
fn values(a: &mut Arrays) {
    let (input, out, record) = (a.at(place::AREAS), a.at(place::OUT1), a.at(sample::RECORD));
    let spec = a.spec.clone();
    // FP32 to BF16 by four roundings: two ties, a negative one, and π.
    let numbers = [0x3f80_8000_u32, 0x3f81_8000, 0xbf80_8000, 0x4049_0fdb];
    let results: [[u16; 4]; 4] = [
        [0x3f80, 0x3f82, 0xbf80, 0x4049],
        [0x3f80, 0x3f81, 0xbf81, 0x4049],
        [0x3f81, 0x3f82, 0xbf80, 0x404a],
        [0x3f80, 0x3f81, 0xbf80, 0x4049],
    ];
    for (rounding, results) in (0..).zip(results) {
        let d = Descriptor::new(Opcode::TypeConversion).with_src(input).with_dst(out).with_size(4);
        let d = d.with_input_type_code(8).with_output_type_code(7).with_compute_flags(rounding << 4);
        let name = format!("FP32 to BF16 with rounding {rounding}");
        a.list.script(section::ARRAYS, name, &spec, move |fixture| {
            fixture.arena.write(input, numbers.map(u32::to_le_bytes).as_flattened());
            fixture.expect(&d.with_record(record), &ExpectedRecord::success())?;
            same_bytes("results", results.map(u16::to_le_bytes).as_flattened(), &fixture.arena.read(out, 8))
        });
    }
    // 1, −2.5, 0.1, 3.3, 17, 19 and 448 to the two 8-bit formats.
    let numbers = [0x3f80_0000_u32, 0xc020_0000, 0x3dcc_cccd, 0x4053_3333, 0x4188_0000, 0x4198_0000, 0x43e0_0000];
    for (format, results) in
        [(5, [0x38, 0xc2, 0x1d, 0x45, 0x58, 0x5a, 0x7e]), (4, [0x3c, 0xc1, 0x2e, 0x43, 0x4c, 0x4d, 0x5f])]
    {
        let d = Descriptor::new(Opcode::TypeConversion).with_src(input).with_dst(out).with_size(7);
        let d = d.with_input_type_code(8).with_output_type_code(format);
        a.list.script(section::ARRAYS, format!("FP32 to 8-bit type {format}"), &spec, move |fixture| {
            fixture.arena.write(input, numbers.map(u32::to_le_bytes).as_flattened());
            fixture.expect(&d.with_record(record), &ExpectedRecord::success())?;
            same_bytes("results", &results, &fixture.arena.read(out, 7))
        });
    }
    // Two blocks of four 16-bit integers.
    let blocks = [1_u16, 2, 3, 4, 100, 200, 300, 65535];
    for (saturate, check) in [(false, false), (true, false), (false, true), (true, true)] {
        let results = [101, 202, 303, if saturate { 65535_u16 } else { 3 }];
        let d = Descriptor::new(Opcode::GatherReduce).with_dst(out).with_size(4).with_sgl_size(2).with_sgl_base(input);
        let d = d.with_input_type_code(1).with_output_type_code(1).with_compute_type_code(1).with_sgl_format_code(2);
        let d = d.with_compute_flags(u16::from(saturate) << 8).with_src(input + 64);
        let d = d.and_flags(if check { Flags::CHECK_RESULT } else { Flags::empty() });
        let name = format!("the sum of two blocks, saturated: {saturate}, result checked: {check}");
        a.list.script(section::ARRAYS, name, &spec, move |fixture| {
            fixture.arena.write(input, blocks.map(u16::to_le_bytes).as_flattened());
            fixture.arena.write(input + 64, &[0, 0, 0, 0, 1, 0, 0, 0]);
            let expected = ExpectedRecord::status(if check { 0x02 } else { 0x01 }).result(4);
            fixture.expect(&d.with_record(record), &expected)?;
            same_bytes("sums", results.map(u16::to_le_bytes).as_flattened(), &fixture.arena.read(out, 8))
        });
    }
}

pub(super) fn add(list: &mut List) {
    if !list.has(Opcode::GatherCopy) {
        return;
    }
    let queue = QueueSpec { max_transfer_shift: 14, max_sgl_shift: 3, ..QueueSpec::default() };
    let spec = liberal(&list.capabilities).queue(queue);
    let mut arrays = Arrays { list, spec };
    sizes(&mut arrays);
    types(&mut arrays);
    compute_flags(&mut arrays);
    capabilities(&mut arrays);
    places(&mut arrays);
    handles(&mut arrays);
    values(&mut arrays);
}
