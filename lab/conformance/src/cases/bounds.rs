//! Sizes, counts, alignment and overlap: the last legal value and the first illegal one.

use super::{List, liberal};
use crate::arena::place;
use crate::case::{Section, section};
use crate::expected::{Expect, ExpectedRecord};
use crate::sample;
use crate::subject::{DeviceSpec, QueueSpec};
use crate::table::row;
use telpher_abi::{Descriptor, Flags, Opcode};

/// Largest transfer of the queue in most of these cases.
const SHIFT: u8 = 14;
const MAX: u32 = 1 << SHIFT;

struct Bounds<'l, 'a> {
    list: &'l mut List<'a>,
    spec: DeviceSpec,
}

impl Bounds<'_, '_> {
    /// `code` is the status; 0x01 stands for a successful run whose values are checked elsewhere.
    fn put(&mut self, section: Section, name: String, d: Descriptor, code: u8) {
        let expected_record = match code {
            0x01 | 0x02 => ExpectedRecord::status(code).any_result().any_specific().any_bytes_completed(),
            code => ExpectedRecord::status(code),
        };
        if self.list.has(d.opcode()) {
            self.list.one(section, name, &self.spec, d, false, expected_record);
        }
    }

    fn at(&self, offset: u64) -> u64 {
        self.list.arena.at(offset)
    }

    fn sample(&self, code: u8) -> Descriptor {
        sample::of(row(code), self.list.arena)
    }
}

fn sizes(b: &mut Bounds) {
    // Operation, and unit of its size.
    let units: [(u8, u32); 19] = [
        (0x03, 1),
        (0x04, 1),
        (0x05, 1),
        (0x06, 1),
        (0x07, 8),
        (0x08, 8),
        (0x09, 1),
        (0x10, 1),
        (0x11, 1),
        (0x12, 520),
        (0x13, 512),
        (0x14, 520),
        (0x15, 520),
        (0x17, 512),
        (0x20, 1),
        (0x23, 1),
        (0x24, 1),
        (0x25, 1),
        (0x26, 1),
    ];
    for (code, unit) in units {
        let name = row(code).name;
        let base = b.sample(code);
        // DIF inputs of the largest size would not match their tags: only the refusals are checked there.
        let last = MAX / unit * unit;
        let first_bad = last + unit;
        b.put(section::SIZES, format!("{name} of 0 bytes is refused"), base.with_size(0), 0x13);
        b.put(
            section::SIZES,
            format!("{name} of {first_bad} bytes is refused where {MAX} is the limit"),
            base.with_size(first_bad),
            0x13,
        );
        b.put(
            section::SIZES,
            format!("{name} of the largest size is refused"),
            base.with_size(u32::MAX / unit * unit),
            0x13,
        );
        if !matches!(code, 0x12 | 0x14 | 0x15) {
            let base = if code == 0x09 { base.with_dst2(b.at(place::OUT2)) } else { base };
            b.put(
                section::SIZES,
                format!("{name} of {last} bytes is taken where {MAX} is the limit"),
                base.with_size(last),
                0x01,
            );
        }
        b.put(section::SIZES, format!("{name} of {unit} bytes is taken"), base.with_size(unit), 0x01);
    }
    for (code, size) in
        [(0x12, 519), (0x12, 521), (0x13, 511), (0x13, 513), (0x14, 1039), (0x15, 1), (0x17, 511), (0x17, 513)]
    {
        let d = b.sample(code).with_size(size);
        if !b.list.has(d.opcode()) {
            continue;
        }
        // SPEC §8.3.17 only says "should"; a device may refuse, or process the whole blocks.
        let name = format!("{} of {size} bytes is refused or works on whole blocks", row(code).name);
        b.list.script(section::SIZES, name, &b.spec.clone(), move |fixture| {
            let portal = fixture.portal(crate::subject::PortalSpec::of(0))?;
            let got = fixture.run(&*portal, &d)?;
            let fine = got.status_code() == 0x13 || got.status_code() == 0x01 && !fixture.promises.whole_dif_blocks;
            crate::case::holds("status 0x13, or 0x01 unless 0x13 is promised", fine, || crate::expected::line(&got))
        });
    }
}

fn delta_sizes(b: &mut Bounds) {
    let create = b.sample(0x07);
    for (max, code) in [(0, 0x15), (79, 0x15), (80, 0x01), (90, 0x01), (MAX, 0x01), (MAX + 1, 0x15), (u32::MAX, 0x15)] {
        let name = format!("create delta with room for {max} bytes gives {code:#04x}");
        b.put(section::SIZES, name, create.with_max_delta_size(max), code);
    }
    let apply = b.sample(0x08);
    for (size, code) in [(0, 0x15), (9, 0x15), (10, 0x01), (MAX + 1, 0x15), (u32::MAX, 0x15)] {
        let name = format!("apply delta with a record of {size} bytes gives {code:#04x}");
        b.put(section::SIZES, name, apply.with_delta_record_size(size), code);
    }
    // The delta operations end at 0x80000 bytes, whatever the queue allows.
    let wide = DeviceSpec::default().queue(QueueSpec { max_transfer_shift: 20, ..QueueSpec::default() });
    let narrow = std::mem::replace(&mut b.spec, wide);
    let create = create.with_src(b.at(place::INPUT)).with_dst(b.at(place::INPUT));
    for (size, code) in [(0x8_0000, 0x01), (0x8_0008, 0x13), (0x10_0000, 0x13)] {
        b.put(
            section::SIZES,
            format!("create delta of {size:#x} bytes gives {code:#04x}"),
            create.with_size(size),
            code,
        );
        b.put(section::SIZES, format!("apply delta of {size:#x} bytes gives {code:#04x}"), apply.with_size(size), code);
    }
    b.spec = narrow;
}

/// Regions and strides of Translation Fetch. The queue's largest transfer is no limit.
fn fetches(b: &mut Bounds) {
    let fetch = b.sample(0x0a);
    let put = |b: &mut Bounds, what: &str, d: Descriptor, code: u8| {
        b.put(section::SIZES, format!("translation fetch {what} gives {code:#04x}"), d, code);
    };
    put(b, "of 0 bytes", fetch.with_size(0), 0x13);
    put(b, "of more than the queue's largest transfer", fetch.with_size(4 * MAX), 0x01);
    put(
        b,
        "of the last page of the address space, and a byte more",
        fetch.with_src(u64::MAX - 4095).with_size(4097),
        0x15,
    );
    if b.list.capabilities.gen_cap.translation_fetch_stride() {
        let strides = [(0, 0x1c), (1, 0x1c), (2048, 0x1c), (4095, 0x1c), (4096, 0x01), (4097, 0x1c), (12_288, 0x1c)];
        for (stride, code) in strides.into_iter().chain([(8192, 0x01), (1 << 31, 0x01), (u32::MAX, 0x1c)]) {
            let d = fetch.and_flags(telpher_abi::OpFlags::FETCH_STRIDE).with_region_stride(stride);
            put(b, &format!("with stride {stride}"), d, code);
        }
    }
}

fn counts(list: &mut List) {
    let at = |offset| list.arena.at(offset);
    let (record, nops) = (at(sample::RECORD), at(place::LISTS + 0x2000));
    list.arena.write_list(nops, &[Descriptor::nop(); 40]);
    let mut cases = Vec::new();
    for bit in [false, true] {
        let spec = list.with_capability(&DeviceSpec::default(), 52, bit);
        let one = if bit { 0x01 } else { 0x14 };
        for (count, code) in [(0, 0x14), (1, one), (2, 0x01), (31, 0x01), (32, 0x01), (33, 0x14), (0xffff_ffff, 0x14)] {
            cases.push((bit, spec.clone(), count, code));
        }
    }
    for (bit, spec, count, code) in cases {
        let d = Descriptor::batch(nops, count).with_record(record);
        let expected_record = if code == 0x01 {
            ExpectedRecord::success().bytes_completed(count)
        } else {
            ExpectedRecord::status(code).any_bytes_completed()
        };
        let name = format!("a batch of {count} gives {code:#04x}, limit 32, GENCAP[52] = {}", u8::from(bit));
        // The arena is too small for this many members, so the list is outside of user space.
        let d = if count > 40 { d.with_src(1 << 63) } else { d };
        list.one(section::SIZES, name, &spec, d, false, expected_record);
    }
}

fn alignment(b: &mut Bounds) {
    for off in 1..8u64 {
        for (code, fields) in [(0x07, "src dst"), (0x08, "dst")] {
            let base = b.sample(code);
            for field in fields.split(' ') {
                let d = if field == "src" { base.with_src(base.src() + off) } else { base.with_dst(base.dst() + off) };
                let name = format!("{} with {field} {off} bytes off is refused", row(code).name);
                b.put(section::ALIGNMENT, name, d, 0x1c);
            }
            let size = sample::SIZE + u32::try_from(off).expect("less than 8");
            let name = format!("{} of {size} bytes is refused", row(code).name);
            b.put(section::ALIGNMENT, name, base.with_size(size), 0x1c);
        }
        let create = b.sample(0x07);
        let d = create.with_delta_address(create.delta_address() + off);
        b.put(section::ALIGNMENT, format!("create delta takes a delta record {off} bytes off"), d, 0x01);
    }
    for code in [0x10, 0x11] {
        let read_seed = |b: &Bounds, extra: u32, off: u64| {
            let d = b.sample(code).and_flags(Flags::from_bits_retain(1 << 16 | extra));
            d.with_crc64_seed(0).with_crc_seed_address(b.at(sample::SEED) + off)
        };
        for off in 0..8u64 {
            let status = if off % 4 == 0 { 0x01 } else { 0x1c };
            let name = format!("{} with its seed {off} bytes off gives {status:#04x}", row(code).name);
            let d = read_seed(b, 0, off);
            b.put(section::ALIGNMENT, name, d, status);
            if b.list.capabilities.gen_cap.crc64() {
                let status = if off == 0 { 0x01 } else { 0x1c };
                let name = format!("{} of 64 bits with its seed {off} bytes off gives {status:#04x}", row(code).name);
                let d = read_seed(b, 1 << 19, off);
                b.put(section::ALIGNMENT, name, d, status);
            }
        }
    }
    let dualcast = b.sample(0x09);
    for bit in 0..16u32 {
        let status = if bit < 12 { 0x17 } else { 0x01 };
        let d = dualcast.with_dst2(dualcast.dst2() ^ 1 << bit);
        let name = format!("dualcast to addresses that differ in bit {bit} gives {status:#04x}");
        b.put(section::ALIGNMENT, name, d, status);
    }
    for off in (0..64u64).chain([64, 128]) {
        let status = if off % 64 == 0 { 0x01 } else { 0x18 };
        let d = b.sample(0x01).with_src(b.at(place::LISTS + 0x2000) + off);
        b.put(section::ALIGNMENT, format!("a batch list {off} bytes off gives {status:#04x}"), d, status);
    }
    for off in 1..32u64 {
        let d = Descriptor::nop().with_record(b.at(sample::RECORD) + off);
        for member in [false, true] {
            let name = format!("a record address {off} bytes off goes to SWERROR, member: {member}");
            b.list.one(section::ALIGNMENT, name, &b.spec.clone(), d, member, Expect::Logged(0x1b, None));
        }
    }
    for off in [32, 64, 96] {
        let d = Descriptor::nop().with_record(b.at(sample::RECORD) + off);
        b.put(section::ALIGNMENT, format!("a record address at {off} is taken"), d, 0x01);
    }
    for off in 0..16u64 {
        let status = if off % 8 == 0 { 0x01 } else { 0x1c };
        let dix = b.sample(0x17);
        let name = format!("dix generate to a destination {off} bytes off gives {status:#04x}");
        b.put(section::ALIGNMENT, name, dix.with_dst(dix.dst() + off).with_src(dix.src() + off), status);
    }
    // No other operation has an alignment rule: odd addresses everywhere.
    for code in [0x03, 0x04, 0x05, 0x06, 0x0a, 0x10, 0x11, 0x13, 0x20, 0x23, 0x24, 0x25, 0x26] {
        let base = b.sample(code);
        let src = if matches!(code, 0x04 | 0x20 | 0x24) { base.src() } else { base.src() + 3 };
        let dst = if matches!(code, 0x06 | 0x0a | 0x10 | 0x26) { base.dst() } else { base.dst() + 3 };
        let name = format!("{} takes odd addresses", row(code).name);
        b.put(section::ALIGNMENT, name, base.with_src(src).with_dst(dst), 0x01);
    }
}

fn overlap(b: &mut Bounds) {
    let out = b.at(place::OUT1 + 0x2_0000);
    let record = b.at(sample::RECORD);
    // Source bytes, destination bytes, size field: adjacent buffers are legal, an overlap of one byte is not, from both
    // sides.
    for (code, size) in [(0x11, 100), (0x13, 1024), (0x14, 1040), (0x15, 1040), (0x17, 1024)] {
        let (src_bytes, dst_bytes) = match code {
            0x13 => (1024u64, 1040u64),
            0x14 => (1040, 1024),
            0x15 => (1040, 1040),
            0x17 => (1024, 16),
            _ => (100, 100),
        };
        let base = Descriptor::dif(Opcode::from_code(code), out, 0, size).with_record(record);
        // The destination area has nothing to check: source flags switch all checks of Strip and Update off.
        let base = if matches!(code, 0x14 | 0x15) {
            base.with_source_dif_flags(0x60).with_source_app_tag_mask(0xffff)
        } else {
            base
        };
        // DIX Generate has aligned destinations only.
        let step = if code == 0x17 { 8 } else { 1 };
        let places = [
            ("behind, touching", out + src_bytes, 0x01),
            ("behind, as little in as possible", out + src_bytes - step, 0x16),
            ("before, touching", out - dst_bytes, 0x01),
            ("before, as little in as possible", out - dst_bytes + step, 0x16),
            ("at the same place", out, 0x16),
        ];
        for (where_to, dst, status) in places {
            let name = format!("{} to a destination {where_to} gives {status:#04x}", row(code).name);
            b.put(section::OVERLAP, name, base.with_dst(dst), status);
        }
    }
    // Dualcast: every pair. Destinations with equal bits 11:0 overlap only from 4 KiB on.
    let far = b.at(place::OUT2 + 0x2_0000);
    let dualcast = |src, dst1, dst2, size| Descriptor::dualcast(src, dst1, dst2, size).with_record(record);
    let cases = [
        ("source touching destination 1", dualcast(out - 64, out, far, 64), 0x01),
        ("source one byte into destination 1", dualcast(out - 63, out, far, 64), 0x16),
        ("destination 1 one byte into the source", dualcast(out + 63, out, far, 64), 0x16),
        ("source touching destination 2", dualcast(far + 64, out, far, 64), 0x01),
        ("source one byte into destination 2", dualcast(far - 63, out, far, 64), 0x16),
        ("destination 2 one byte into the source", dualcast(far + 63, out, far, 64), 0x16),
        ("destinations touching", dualcast(far, out, out + 4096, 4096), 0x01),
        ("destinations one byte over", dualcast(far, out, out + 4096, 4097), 0x16),
        ("destinations one byte over the other way", dualcast(far, out + 4096, out, 4097), 0x16),
        ("both destinations the same", dualcast(far, out, out, 64), 0x16),
    ];
    for (what, d, status) in cases {
        b.put(section::OVERLAP, format!("dualcast, {what}, gives {status:#04x}"), d, status);
    }
    // Create Delta: the largest possible record against both sources, not only the bytes that it would use.
    let create = |src1, src2, record_at| Descriptor::create_delta(src1, src2, 64, record_at, 80).with_record(record);
    let cases = [
        ("record touching source 1 from behind", create(out, far, out + 64), 0x01),
        ("record one byte into source 1", create(out, far, out + 63), 0x16),
        ("record touching source 1 from before", create(out, far, out - 80), 0x01),
        ("record reaching one byte into source 1", create(out, far, out - 79), 0x16),
        ("record touching source 2 from behind", create(out, far, far + 64), 0x01),
        ("record one byte into source 2", create(out, far, far + 63), 0x16),
        ("record reaching one byte into source 2", create(out, far, far - 79), 0x16),
        ("both sources the same", create(out, out, far), 0x01),
    ];
    for (what, d, status) in cases {
        b.put(section::OVERLAP, format!("create delta, {what}, gives {status:#04x}"), d, status);
    }
    let apply = |record_at, dst| Descriptor::apply_delta(record_at, 10, dst, 64).with_record(record);
    let delta = b.at(sample::DELTA);
    let cases = [
        ("record one byte into the destination", apply(out + 63, out), 0x16),
        ("record reaching one byte into the destination", apply(out - 9, out), 0x16),
        ("destination right behind the record", apply(delta, (delta + 10).next_multiple_of(8)), 0x01),
    ];
    for (what, d, status) in cases {
        b.put(section::OVERLAP, format!("apply delta, {what}, gives {status:#04x}"), d, status);
    }
    // Memory Move: legal with GENCAP[1], refused without.
    for (bit, status) in [(true, 0x01), (false, 0x16)] {
        let spec = b.list.with_capability(&b.spec, 1, bit);
        for (what, src, dst) in [("up", out, out + 63), ("down", out + 63, out)] {
            let d = Descriptor::memory_move(src, dst, 64).with_record(record);
            let name = format!("an overlapping move {what} gives {status:#04x} where GENCAP[1] = {}", u8::from(bit));
            b.list.one(section::OVERLAP, name, &spec, d, false, ExpectedRecord::status(status));
        }
        let d = Descriptor::memory_move(out, out + 64, 64).with_record(record);
        let name = format!("a touching move is taken where GENCAP[1] = {}", u8::from(bit));
        b.list.one(section::OVERLAP, name, &spec, d, false, ExpectedRecord::success());
    }
}

pub(super) fn add(list: &mut List) {
    let mut spec = liberal(&list.capabilities);
    spec.groups[0].queues[0].max_transfer_shift = SHIFT;
    let mut b = Bounds { list, spec };
    sizes(&mut b);
    delta_sizes(&mut b);
    alignment(&mut b);
    overlap(&mut b);
    fetches(&mut b);
    counts(list);
}
