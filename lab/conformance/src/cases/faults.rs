//! Page faults: every operation, every operand, every position.

use super::{List, liberal};
use crate::arena::{Access, PAGE, place};
use crate::case::{Verdict, holds, same, same_bytes, section};
use crate::expected::ExpectedRecord;
use crate::fixture::Fixture;
use crate::oracle::{self, Tags};
use crate::sample;
use crate::subject::{DeviceSpec, QueueSpec, Residency, WINDOW};
use std::rc::Rc;
use telpher_abi::{Descriptor, Flags, OpFlags, Opcode};

/// Offset in a buffer of the page that cases make inaccessible.
const BOUNDARY: u64 = 0x1_1000;
/// Bytes of the plain operations: somewhat more than four pages, if they begin before the boundary.
const SIZE: u32 = 12_400;
const BLOCKS: u32 = 24;

/// One buffer of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) area: u64,
    pub(super) bytes: u32,
    pub(super) write: bool,
    /// Number in fault information; 0 if the specification does not define one.
    id: u8,
}

/// The contents of a record after a fault.
struct Partial {
    completed: u32,
    result: u8,
    /// Words 2 and 3; `None` if they are undefined.
    specific: Option<(u64, u64)>,
}

/// Output bytes as a function of bytes completed, and whether no further byte may be written.
type Prefix = (fn(u32) -> u32, bool);

/// An operation whose buffers all begin `k` bytes before a page boundary.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) name: &'static str,
    pub(super) descriptor: Descriptor,
    pub(super) operands: Vec<Operand>,
    /// Contents of the inputs, by buffer.
    inputs: Rc<Vec<(u64, Vec<u8>)>>,
    /// Final contents of the outputs, by buffer.
    pub(super) outputs: Rc<Vec<(u64, Vec<u8>)>>,
    /// The contents of the last record.
    pub(super) last: ExpectedRecord,
    partial: Rc<dyn Fn(Operand, u32) -> Partial>,
    /// The part of the outputs that is written after a fault; `None` if that is not defined.
    prefix: Option<Prefix>,
}

const AREAS: [u64; 3] = [place::AREAS, place::AREAS + place::AREA, place::AREAS + 2 * place::AREA];

impl Job {
    /// Address of an operand.
    pub(super) fn start(area: u64, k: u32) -> u64 {
        area + BOUNDARY - u64::from(k)
    }

    /// Writes all inputs and clears all outputs.
    pub(super) fn prepare(&self, fixture: &Fixture, k: u32) {
        for (area, bytes) in self.inputs.iter() {
            fixture.arena.write(fixture.at(Job::start(*area, k)), bytes);
        }
        for (area, bytes) in self.outputs.iter().filter(|(area, _)| self.inputs.iter().all(|(l, _)| l != area)) {
            fixture.arena.set(fixture.at(Job::start(*area, k)), bytes.len() as u64, 0xee);
        }
    }
}

/// The operations of a device, with buffers that begin `k` bytes before the boundary.
pub(super) fn jobs(list: &List, k: u32) -> Vec<Job> {
    let at = |area: u64| list.arena.at(Job::start(area, k));
    let (a, b, c) = (at(AREAS[0]), at(AREAS[1]), at(AREAS[2]));
    let size = SIZE as usize;
    let data = oracle::noise(42, size);
    let pattern = 0x0807_0605_0403_0201u64;
    let repeated: Vec<u8> = (1..=8).cycle().take(size).collect();
    let input = |area: usize, bytes: &Vec<u8>| (AREAS[area], bytes.clone());
    let operand = |area: usize, bytes: u32, write, id| Operand { area: AREAS[area], bytes, write, id };
    let plain = |_: Operand, k: u32| Partial { completed: k, result: 0, specific: Some((0, 0)) };
    let exact: Option<Prefix> = Some((|n| n, true));
    let job = |name, descriptor: Descriptor| Job {
        name,
        descriptor: descriptor.with_record(list.arena.at(sample::RECORD)),
        operands: Vec::new(),
        inputs: Rc::default(),
        outputs: Rc::default(),
        last: ExpectedRecord::success(),
        partial: Rc::new(plain),
        prefix: None,
    };
    let mut jobs = vec![
        Job {
            operands: vec![operand(0, SIZE, false, 1), operand(1, SIZE, true, 3)],
            inputs: Rc::new(vec![input(0, &data)]),
            outputs: Rc::new(vec![input(1, &data)]),
            prefix: exact,
            ..job("move", Descriptor::memory_move(a, b, SIZE))
        },
        Job {
            operands: vec![operand(1, SIZE, true, 3)],
            outputs: Rc::new(vec![input(1, &repeated)]),
            prefix: exact,
            ..job("fill", Descriptor::fill(pattern, b, SIZE))
        },
        Job {
            operands: vec![operand(0, SIZE, false, 1), operand(1, SIZE, false, 2)],
            inputs: Rc::new(vec![input(0, &data), input(1, &data)]),
            last: ExpectedRecord::success().result(0),
            ..job("compare", Descriptor::compare(a, b, SIZE))
        },
        Job {
            operands: vec![operand(0, SIZE, false, 1)],
            inputs: Rc::new(vec![input(0, &repeated)]),
            last: ExpectedRecord::success().result(0),
            ..job("compare pattern", Descriptor::compare_pattern(a, pattern, SIZE))
        },
        Job {
            operands: vec![operand(0, SIZE, false, 1), operand(1, SIZE, true, 3), operand(2, SIZE, true, 4)],
            inputs: Rc::new(vec![input(0, &data)]),
            outputs: Rc::new(vec![input(1, &data), input(2, &data)]),
            prefix: exact,
            ..job("dualcast", Descriptor::dualcast(a, b, c, SIZE))
        },
        Job {
            operands: vec![operand(1, SIZE, false, 0)],
            inputs: Rc::new(vec![input(1, &data)]),
            outputs: Rc::new(vec![input(1, &data)]),
            ..job("cache flush", Descriptor::cache_flush(b, SIZE))
        },
    ];
    if list.capabilities.gen_cap.fill_16() {
        let repeated: Vec<u8> = (1..=16).cycle().take(size).collect();
        jobs.push(Job {
            operands: vec![operand(1, SIZE, true, 3)],
            outputs: Rc::new(vec![input(1, &repeated)]),
            prefix: exact,
            ..job("fill with 16 bytes", Descriptor::fill16([pattern, 0x100f_0e0d_0c0b_0a09], b, SIZE))
        });
    }
    let crc_of = |n: usize| u64::from(oracle::crc32(0x77, false, false, &data[..n]));
    let whole = crc_of(size);
    let crc_data = data.clone();
    let crc = Rc::new(move |_: Operand, k: u32| Partial {
        completed: k,
        result: 0,
        specific: (k > 0).then(|| (u64::from(oracle::crc32(0x77, false, false, &crc_data[..k as usize])), 0)),
    });
    jobs.push(Job {
        operands: vec![operand(0, SIZE, false, 1)],
        inputs: Rc::new(vec![input(0, &data)]),
        last: ExpectedRecord::success().specific(whole, 0),
        partial: crc.clone(),
        ..job("crc", Descriptor::crc_generation(a, SIZE, 0x77))
    });
    jobs.push(Job {
        operands: vec![operand(0, SIZE, false, 1), operand(1, SIZE, true, 3)],
        inputs: Rc::new(vec![input(0, &data)]),
        outputs: Rc::new(vec![input(1, &data)]),
        last: ExpectedRecord::success().specific(whole, 0),
        partial: crc,
        prefix: exact,
        ..job("copy with crc", Descriptor::copy_crc(a, b, SIZE, 0x77))
    });
    jobs.extend(domain_jobs([a, b], &data, &repeated, job));
    if list.capabilities.gen_cap.crc64() {
        let wide = data.clone();
        let value = move |n: usize| oracle::crc64(0x77, false, false, &wide[..n]);
        let last = ExpectedRecord::success().specific(value(size), 0);
        let partial = Rc::new(move |_: Operand, k: u32| Partial {
            completed: k,
            result: 0,
            specific: (k > 0).then(|| (value(k as usize), 0)),
        });
        jobs.push(Job {
            operands: vec![operand(0, SIZE, false, 1), operand(1, SIZE, true, 3)],
            inputs: Rc::new(vec![input(0, &data)]),
            outputs: Rc::new(vec![input(1, &data)]),
            last,
            partial,
            prefix: exact,
            ..job("copy with crc of 64 bits", Descriptor::copy_crc64(a, b, SIZE, 0x77))
        });
    }
    if k.is_multiple_of(8) {
        jobs.extend(delta_jobs([a, b, c], &data, job));
    }
    jobs.extend(dif_jobs([a, b], job));
    if list.has(Opcode::GatherCopy) {
        jobs.extend(list_jobs(list.arena.at(sample::OFFSETS), [a, b], &data, &repeated, job));
    }
    if k.is_multiple_of(4) {
        jobs.extend(array_jobs([a, b, c], &data, job));
    }
    // The destination of DIX Generate has an alignment.
    jobs.retain(|job| job.descriptor.opcode() != Opcode::DixGenerate || k.is_multiple_of(8));
    jobs.retain(|job| list.has(job.descriptor.opcode()));
    jobs
}

/// The inter-domain operations, through the window of the process's own memory.
fn domain_jobs(
    [a, b]: [u64; 2],
    data: &[u8],
    repeated: &[u8],
    job: impl Fn(&'static str, Descriptor) -> Job,
) -> Vec<Job> {
    let operand = |area: usize, write, id| Operand { area: AREAS[area], bytes: SIZE, write, id };
    let input = |area: usize, bytes: &[u8]| (AREAS[area], bytes.to_vec());
    // The operand in the submitter's own space names no handle.
    let partial = |with_handle: fn(&Operand) -> bool| {
        Rc::new(move |operand: Operand, k: u32| Partial {
            completed: k,
            result: 0,
            specific: Some((if with_handle(&operand) { WINDOW.into() } else { 0 }, 0)),
        })
    };
    let exact: Option<Prefix> = Some((|n| n, true));
    let copy = |name, src_handle, dst_handle, with_handle| Job {
        operands: vec![operand(0, false, 1), operand(1, true, 3)],
        inputs: Rc::new(vec![input(0, data)]),
        outputs: Rc::new(vec![input(1, data)]),
        partial: partial(with_handle),
        prefix: exact,
        ..job(name, Descriptor::inter_domain_copy(a, src_handle, b, dst_handle, SIZE))
    };
    let compare = |name, handle_1, handle_2, with_handle| Job {
        operands: vec![operand(0, false, 1), operand(1, false, 2)],
        inputs: Rc::new(vec![input(0, data), input(1, data)]),
        last: ExpectedRecord::success().result(0),
        partial: partial(with_handle),
        ..job(name, Descriptor::inter_domain_compare(a, handle_1, b, handle_2, SIZE))
    };
    let pattern = 0x0807_0605_0403_0201u64;
    vec![
        copy("inter-domain copy to a window", None, Some(WINDOW), |o| o.write),
        copy("inter-domain copy from a window", Some(WINDOW), None, |o| !o.write),
        copy("inter-domain copy between windows", Some(WINDOW), Some(WINDOW), |_| true),
        Job {
            operands: vec![operand(1, true, 3)],
            outputs: Rc::new(vec![input(1, repeated)]),
            partial: partial(|_| true),
            prefix: exact,
            ..job("inter-domain fill", Descriptor::inter_domain_fill(pattern, b, WINDOW, SIZE))
        },
        compare("inter-domain compare with a window", None, Some(WINDOW), |o| o.id == 2),
        compare("inter-domain compare of two windows", Some(WINDOW), Some(WINDOW), |_| true),
        Job {
            operands: vec![operand(0, false, 1)],
            inputs: Rc::new(vec![input(0, repeated)]),
            last: ExpectedRecord::success().result(0),
            partial: partial(|_| true),
            ..job("inter-domain compare pattern", Descriptor::inter_domain_compare_pattern(a, WINDOW, pattern, SIZE))
        },
    ]
}

/// Conversions and reductions of 32-bit integers.
fn array_jobs([a, b, c]: [u64; 3], data: &[u8], job: impl Fn(&'static str, Descriptor) -> Job) -> Vec<Job> {
    let negated: Vec<u8> =
        data.chunks_exact(4).flat_map(|word| (!u32_of(word)).wrapping_add(1).to_le_bytes()).collect();
    let other = oracle::noise(43, data.len());
    let least: Vec<u8> = data
        .chunks_exact(4)
        .zip(other.chunks_exact(4))
        .flat_map(|(a, b)| if u32_of(a) < u32_of(b) { a.to_vec() } else { b.to_vec() })
        .collect();
    let operand = |area: usize, write, id| Operand { area: AREAS[area], bytes: SIZE, write, id };
    let input = |area: usize, bytes: &[u8]| (AREAS[area], bytes.to_vec());
    let exact: Option<Prefix> = Some((|n| n, true));
    let typed = |opcode| Descriptor::new(opcode).with_input_type_code(2).with_output_type_code(2).with_size(SIZE / 4);
    // Negation of an unsigned number other than zero leaves its range.
    let overflow =
        |_: Operand, k: u32| Partial { completed: k, result: if k > 0 { 4 } else { 0 }, specific: Some((0, 0)) };
    vec![
        Job {
            operands: vec![operand(0, false, 1), operand(1, true, 3)],
            inputs: Rc::new(vec![input(0, data)]),
            outputs: Rc::new(vec![input(1, &negated)]),
            last: ExpectedRecord::success().result(4),
            partial: Rc::new(overflow),
            prefix: exact,
            ..job("type conversion", typed(Opcode::TypeConversion).with_compute_flags(1).with_src(a).with_dst(b))
        },
        Job {
            operands: vec![operand(0, false, 1), operand(1, false, 2), operand(2, true, 3)],
            inputs: Rc::new(vec![input(0, data), input(1, &other)]),
            outputs: Rc::new(vec![input(2, &least)]),
            prefix: exact,
            ..job("reduce", typed(Opcode::Reduce).with_compute_type_code(6).with_src(a).with_dst(b).with_reduce_dst(c))
        },
        Job {
            operands: vec![operand(0, false, 1), operand(1, true, 3), operand(2, true, 4)],
            inputs: Rc::new(vec![input(0, data)]),
            outputs: Rc::new(vec![input(1, data), input(2, data)]),
            prefix: exact,
            ..job(
                "reduce with dualcast",
                typed(Opcode::ReduceDualcast)
                    .with_compute_type_code(3)
                    .with_src(a)
                    .with_dst(a)
                    .with_reduce_dst(b)
                    .with_reduce_dst2(c),
            )
        },
    ]
}

fn u32_of(word: &[u8]) -> u32 {
    u32::from_le_bytes(word.try_into().expect("four bytes"))
}

/// Gather and scatter by the list of 31 offsets; the buffers are one after the other.
fn list_jobs(
    offsets: u64,
    [a, b]: [u64; 2],
    data: &[u8],
    repeated: &[u8],
    job: impl Fn(&'static str, Descriptor) -> Job,
) -> Vec<Job> {
    let operand = |area: usize, write, id| Operand { area: AREAS[area], bytes: SIZE, write, id };
    let input = |area: usize, bytes: &[u8]| (AREAS[area], bytes.to_vec());
    let exact: Option<Prefix> = Some((|n| n, true));
    let partial = Rc::new(|_: Operand, k: u32| Partial {
        completed: k,
        result: 0,
        specific: Some((u64::from(k / 400) << 32, 0)),
    });
    let listed = |opcode, base| {
        Descriptor::new(opcode)
            .with_input_type_code(2)
            .with_size(SIZE)
            .with_element_count(100)
            .with_sgl_size(31)
            .with_sgl_format_code(1)
            .with_sgl_base(base)
    };
    vec![
        Job {
            operands: vec![operand(0, false, 1), operand(1, true, 3)],
            inputs: Rc::new(vec![input(0, data)]),
            outputs: Rc::new(vec![input(1, data)]),
            partial: partial.clone(),
            prefix: exact,
            ..job("gather copy", listed(Opcode::GatherCopy, a).with_src(offsets).with_dst(b))
        },
        Job {
            operands: vec![operand(0, false, 1), operand(1, true, 3)],
            inputs: Rc::new(vec![input(0, data)]),
            outputs: Rc::new(vec![input(1, data)]),
            partial: partial.clone(),
            prefix: exact,
            ..job("scatter copy", listed(Opcode::ScatterCopy, b).with_src(a).with_dst(offsets))
        },
        Job {
            operands: vec![operand(1, true, 3)],
            outputs: Rc::new(vec![input(1, repeated)]),
            partial,
            prefix: exact,
            ..job("scatter fill", listed(Opcode::ScatterFill, b).with_src(0x0807_0605_0403_0201).with_dst(offsets))
        },
    ]
}

/// Every third word differs.
fn delta_jobs([a, b, c]: [u64; 3], data: &[u8], job: impl Fn(&'static str, Descriptor) -> Job) -> Vec<Job> {
    let mut new = data.to_vec();
    for word in (0..data.len() / 8).step_by(3) {
        new[8 * word + 2] ^= 0xff;
    }
    let (record, ..) = oracle::delta(data, &new, usize::MAX);
    let length = u32::try_from(record.len()).expect("short");
    // Large enough that even a continuation near the end has the 80 bytes that it must provide.
    let room = length + 200;
    // Words 0, 3, 6 …: the number of differing words among the first n.
    let differing = |bytes: u32| (bytes / 8).div_ceil(3);
    let operand = |area: usize, bytes, write, id| Operand { area: AREAS[area], bytes, write, id };
    let create = move |operand: Operand, k: u32| {
        // A fault on the record: the first entry that does not fit ends the operation, at its word.
        let (completed, entries) = if operand.write { (k / 10 * 24, k / 10) } else { (k, differing(k)) };
        Partial { completed, result: u8::from(entries > 0), specific: Some((u64::from(10 * entries), 0)) }
    };
    let apply = move |operand: Operand, k: u32| {
        let entries = if operand.write { differing(k) } else { k / 10 };
        Partial { completed: 10 * entries, result: 0, specific: Some((0, 0)) }
    };
    vec![
        Job {
            operands: vec![operand(0, SIZE, false, 1), operand(1, SIZE, false, 2), operand(2, length, true, 3)],
            inputs: Rc::new(vec![(AREAS[0], data.to_vec()), (AREAS[1], new.clone())]),
            outputs: Rc::new(vec![(AREAS[2], record.clone())]),
            last: ExpectedRecord::success().result(1).specific(length.into(), 0),
            partial: Rc::new(create),
            ..job("create delta", Descriptor::create_delta(a, b, SIZE, c, room))
        },
        Job {
            operands: vec![operand(0, length, false, 1), operand(1, SIZE, true, 3)],
            inputs: Rc::new(vec![(AREAS[0], record), (AREAS[1], data.to_vec())]),
            outputs: Rc::new(vec![(AREAS[1], new)]),
            partial: Rc::new(apply),
            ..job("apply delta", Descriptor::apply_delta(a, length, b, SIZE))
        },
    ]
}

fn dif_jobs([a, b]: [u64; 2], job: impl Fn(&'static str, Descriptor) -> Job) -> Vec<Job> {
    let from = Tags { reference: 5, mask: 0, app: 9, reference_fixed: false, app_counts: true };
    let to = Tags { reference: 0x1_0000, mask: 0, app: 3, reference_fixed: false, app_counts: true };
    let plain = oracle::noise(8, 512 * BLOCKS as usize);
    let long = oracle::protect(512, false, false, from, &plain);
    let other = oracle::protect(512, false, false, to, &plain);
    let tuples: Vec<u8> = other.chunks(520).flat_map(|block| block[512..].to_vec()).collect();
    let word = |tags: Tags, blocks| {
        let (app, reference) = tags.raw(blocks);
        u64::from(reference) | u64::from(app) << 48
    };
    let source = |d: Descriptor| d.with_source_dif_flags(1 << 4).with_source_ref_tag(5).with_source_app_tag(9);
    let dest = |d: Descriptor| d.with_dest_dif_flags(1 << 4).with_dest_ref_tag(0x1_0000).with_dest_app_tag(3);
    let operand = |area: usize, block: u32, write, id| Operand { area: AREAS[area], bytes: block * BLOCKS, write, id };
    // Whole blocks before the boundary, by the buffer that faults; bytes completed count the source.
    let partial = move |src: u32, dst: u32, source: bool, dest: bool| {
        Rc::new(move |operand: Operand, k: u32| {
            let blocks = k / if operand.write { dst } else { src };
            let low = if source { word(from, blocks) } else { 0 };
            let high = if dest { word(to, blocks) } else { 0 };
            Partial { completed: blocks * src, result: 0, specific: Some((low, high)) }
        })
    };
    let d = |opcode, dst, size| Descriptor::dif(opcode, a, dst, size * BLOCKS);
    vec![
        Job {
            operands: vec![operand(0, 520, false, 1)],
            inputs: Rc::new(vec![(AREAS[0], long.clone())]),
            last: ExpectedRecord::success().specific(word(from, BLOCKS), 0),
            partial: partial(520, 1, true, false),
            ..job("dif check", source(d(Opcode::DifCheck, 0, 520)))
        },
        Job {
            operands: vec![operand(0, 512, false, 1), operand(1, 520, true, 3)],
            inputs: Rc::new(vec![(AREAS[0], plain.clone())]),
            outputs: Rc::new(vec![(AREAS[1], other.clone())]),
            last: ExpectedRecord::success().specific(0, word(to, BLOCKS)),
            partial: partial(512, 520, false, true),
            prefix: Some((|n| n / 512 * 520, false)),
            ..job("dif insert", dest(d(Opcode::DifInsert, b, 512)))
        },
        Job {
            operands: vec![operand(0, 512, false, 1), operand(1, 8, true, 3)],
            inputs: Rc::new(vec![(AREAS[0], plain.clone())]),
            outputs: Rc::new(vec![(AREAS[1], tuples)]),
            last: ExpectedRecord::success().specific(0, word(to, BLOCKS)),
            partial: partial(512, 8, false, true),
            prefix: Some((|n| n / 512 * 8, false)),
            ..job("dix generate", dest(d(Opcode::DixGenerate, b, 512)))
        },
        Job {
            operands: vec![operand(0, 520, false, 1), operand(1, 512, true, 3)],
            inputs: Rc::new(vec![(AREAS[0], long.clone())]),
            outputs: Rc::new(vec![(AREAS[1], plain)]),
            last: ExpectedRecord::success().specific(word(from, BLOCKS), 0),
            partial: partial(520, 512, true, false),
            prefix: Some((|n| n / 520 * 512, false)),
            ..job("dif strip", source(d(Opcode::DifStrip, b, 520)))
        },
        Job {
            operands: vec![operand(0, 520, false, 1), operand(1, 520, true, 3)],
            inputs: Rc::new(vec![(AREAS[0], long)]),
            outputs: Rc::new(vec![(AREAS[1], other)]),
            last: ExpectedRecord::success().specific(word(from, BLOCKS), word(to, BLOCKS)),
            partial: partial(520, 520, true, true),
            prefix: Some((|n| n, false)),
            ..job("dif update", dest(source(d(Opcode::DifUpdate, b, 520))))
        },
    ]
}

/// Compares a partial record; a device that does not promise exact faults may stop earlier.
fn compare_partial(fixture: &Fixture, job: &Job, operand: Operand, k: u32, code: u8) -> Verdict {
    let got = fixture.run(&*fixture.portal(crate::subject::PortalSpec::of(0))?, &job.descriptor)?;
    let partial = (job.partial)(operand, k);
    let expected_record = ExpectedRecord::fault(code, operand.write, fixture.at(operand.area + BOUNDARY));
    let expected_record = if operand.id == 0 {
        expected_record.open_info()
    } else {
        expected_record.operand(fixture.operand(operand.id))
    };
    let expected_record = expected_record.result(partial.result).bytes_completed(partial.completed);
    let expected_record = match partial.specific {
        Some((low, high)) => expected_record.specific(low, high),
        None => expected_record.any_specific(),
    };
    if fixture.promises.exact_faults {
        return fixture.compare(&expected_record, &got);
    }
    fixture.compare(&expected_record.any_result().any_bytes_completed().any_specific(), &got)?;
    let done = got.bytes_completed();
    holds(format!("at most {} bytes completed", partial.completed), done <= partial.completed, || format!("{done}"))
}

fn take_away(fixture: &Fixture, operand: Operand, access: Access) {
    let pages = u64::from(operand.bytes).next_multiple_of(PAGE) + PAGE;
    fixture.arena.protect(operand.area + BOUNDARY, pages, access);
}

fn boundaries(list: &mut List, spec: &DeviceSpec) {
    for k in [0u32, 1, 8, 60, 64, 512, 520, 1040, 4088, 4096, 8192, 10_000] {
        for job in jobs(list, k) {
            for operand in job.operands.clone() {
                if k >= operand.bytes {
                    continue;
                }
                let kinds: &[Access] = if operand.write { &[Access::None, Access::Read] } else { &[Access::None] };
                for access in kinds.iter().copied() {
                    for block in [false, true] {
                        if block && !list.capabilities.gen_cap.block_on_fault() {
                            continue;
                        }
                        let mut job = job.clone();
                        if block {
                            job.descriptor = job.descriptor.and_flags(Flags::BLOCK_ON_FAULT);
                        }
                        let code = if block { 0x04 } else { 0x03 };
                        let name = format!(
                            "{} with operand {} {access:?} after {k} bytes gives {code:#04x}",
                            job.name, operand.id
                        );
                        list.script(section::FAULTS, name, spec, move |fixture| {
                            job.prepare(fixture, k);
                            take_away(fixture, operand, access);
                            compare_partial(fixture, &job, operand, k, code)?;
                            fixture.arena.restore();
                            check_prefix(fixture, &job, k)
                        });
                    }
                }
            }
        }
    }
}

/// The bytes written before the fault are correct, and no others were written.
fn check_prefix(fixture: &Fixture, job: &Job, k: u32) -> Verdict {
    let Some((bytes_out, nothing_more)) = job.prefix else { return Ok(()) };
    let completed = fixture.arena.record(job.descriptor.completion_address()).bytes_completed();
    for (area, expected) in job.outputs.iter() {
        let n = (bytes_out(completed) as usize).min(expected.len());
        let got = fixture.arena.read(fixture.at(Job::start(*area, k)), expected.len() as u64);
        same_bytes("what is completed", &expected[..n], &got[..n])?;
        if nothing_more && fixture.promises.exact_faults {
            same_bytes("what is not", &vec![0xee; expected.len() - n], &got[n..])?;
        }
    }
    Ok(())
}

/// Bad addresses of every kind, for a simple reader and a simple writer.
fn bad_addresses(list: &mut List, spec: &DeviceSpec) {
    let (record, good) = (list.arena.at(sample::RECORD), list.arena.at(place::OUT1));
    for (what, bad) in [
        ("0", 0u64),
        ("8", 8),
        ("unmapped memory", list.arena.unmapped()),
        ("the end of user space", 0x8000_0000_0000),
        ("a non-canonical address", 0x8000_0000_0000_0000),
        ("the end of the address space", u64::MAX - 63),
    ] {
        for (write, d) in [
            (false, Descriptor::memory_move(bad, good, 64)),
            (true, Descriptor::memory_move(good, bad, 64)),
            (true, Descriptor::fill(0, bad, 64)),
            (false, Descriptor::compare(bad, good, 64)),
            (false, Descriptor::crc_generation(bad, 64, 0)),
        ] {
            let d = d.with_record(record);
            let name = format!("{} of {what} is a page fault, write: {write}", d.opcode());
            let expected_record = ExpectedRecord::fault(0x03, write, bad).bytes_completed(0).any_specific();
            list.script(section::FAULTS, name, spec, move |fixture| fixture.expect(&d, &expected_record.open_info()));
        }
    }
    // A range that runs past the end of the address space ends there.
    let d = Descriptor::memory_move(u64::MAX - 15, good, 64).with_record(record);
    list.script(section::FAULTS, "a range past the end of the address space is a page fault", spec, move |fixture| {
        let expected_record = ExpectedRecord::fault(0x03, false, u64::MAX - 15).bytes_completed(0);
        fixture.expect(&d, &expected_record.open_info())
    });
    // The last byte before a hole is usable.
    let end = list.arena.end();
    let d = Descriptor::memory_move(end - 100, good, 100).with_record(record);
    list.script(section::FAULTS, "a source may end where mapped memory ends", spec, move |fixture| {
        fixture.expect(&d, &ExpectedRecord::success())
    });
    let d = Descriptor::fill(0, end - 100, 101).with_record(record);
    list.script(section::FAULTS, "a fill one byte too long faults at the last byte", spec, move |fixture| {
        fixture.expect(&d, &ExpectedRecord::fault(0x03, true, end).bytes_completed(100).open_info())
    });
}

/// A difference found before the fault is the result.
fn difference_first(list: &mut List, spec: &DeviceSpec) {
    let k = 200u32;
    let (a, b) = (list.arena.at(Job::start(AREAS[0], k)), list.arena.at(Job::start(AREAS[1], k)));
    let record = list.arena.at(sample::RECORD);
    for (what, d) in
        [("compare", Descriptor::compare(a, b, SIZE)), ("compare pattern", Descriptor::compare_pattern(a, 0, SIZE))]
    {
        let d = d.with_record(record);
        let exact = d.opcode() == Opcode::Compare;
        list.script(section::FAULTS, format!("{what}: a difference before the fault wins"), spec, move |fixture| {
            for at in [a, b] {
                fixture.arena.set(at, SIZE.into(), 0);
            }
            fixture.arena.write(a + 144, &[1]);
            fixture.arena.protect(AREAS[0] + BOUNDARY, 4 * PAGE, Access::None);
            let expected_record = ExpectedRecord::success().result(1).bytes_completed(144);
            fixture.expect(&d, &if exact { expected_record } else { expected_record.any_bytes_completed() })
        });
    }
}

/// A fault at the CRC's seed, before anything else.
fn seed(list: &mut List, spec: &DeviceSpec) {
    let bad = list.arena.at(AREAS[0] + BOUNDARY + 64);
    for opcode in [Opcode::CrcGeneration, Opcode::CopyCrc] {
        let dst = if opcode == Opcode::CopyCrc { list.arena.at(place::OUT1) } else { 0 };
        let d = Descriptor::dif(opcode, list.arena.at(sample::COUNT), dst, 64)
            .and_flags(OpFlags::READ_SEED)
            .with_crc_seed_address(bad)
            .with_record(list.arena.at(sample::RECORD));
        list.script(section::FAULTS, format!("{opcode} whose seed is in a hole"), spec, move |fixture| {
            fixture.arena.protect(AREAS[0] + BOUNDARY, PAGE, Access::None);
            let expected_record =
                ExpectedRecord::fault(0x03, false, bad).operand(fixture.operand(2)).bytes_completed(0).any_specific();
            fixture.expect(&d, &expected_record)
        });
    }
}

/// A move that must run backward faults from its end.
fn backward(list: &mut List, spec: &DeviceSpec) {
    if !list.capabilities.gen_cap.overlapping_copy() {
        return;
    }
    let record = list.arena.at(sample::RECORD);
    let area = AREAS[2];
    // Source [S, S+0x3000), destination 0x800 higher; the page at BOUNDARY is missing.
    for (what, start, write, access, address, completed, result) in [
        // The missing page is the source's first: everything behind it was copied.
        ("first source page", BOUNDARY, false, Access::None, BOUNDARY + 0x1000 - 1, 0x2000u32, 1u8),
        // The destination's last page is missing: nothing was copied.
        ("last destination page", BOUNDARY - 0x3000, true, Access::Read, BOUNDARY + 0x800 - 1, 0, 1),
        // Read-only in the middle: written down to the end of that page.
        ("middle destination page", BOUNDARY - 0x1000, true, Access::Read, BOUNDARY + 0x1000 - 1, 0x1800, 1),
    ] {
        let (src, dst) = (list.arena.at(area + start), list.arena.at(area + start + 0x800));
        let d = Descriptor::memory_move(src, dst, 0x3000).with_record(record);
        let missing = list.arena.at(area + address);
        list.script(section::FAULTS, format!("a backward move with its {what} missing"), spec, move |fixture| {
            let data = oracle::noise(77, 0x3000);
            fixture.arena.write(src, &data);
            fixture.arena.protect(area + BOUNDARY, PAGE, access);
            let expected_record =
                ExpectedRecord::fault(0x03, write, missing).operand(fixture.operand(if write { 3 } else { 1 }));
            let expected_record = expected_record.result(result).bytes_completed(completed);
            // If nothing was copied, either direction is correct.
            fixture.expect(&d, &if completed == 0 { expected_record.any_result() } else { expected_record })?;
            fixture.arena.restore();
            let n = u64::from(completed);
            same_bytes(
                "what is completed",
                &data[0x3000 - completed as usize..],
                &fixture.arena.read(dst + 0x3000 - n, n),
            )
        });
    }
}

/// Pages that are mapped but were never touched.
fn cold(list: &mut List, block_allowed: bool) {
    let record = list.arena.at(sample::RECORD);
    let (at, good) = (list.arena.at(place::COLD), list.arena.at(place::OUT1));
    let jobs = [
        ("read", false, Descriptor::memory_move(at, good, 8192)),
        ("write", true, Descriptor::memory_move(good, at, 8192)),
        ("fill", true, Descriptor::fill(0, at, 8192)),
    ];
    for (what, write, d) in jobs {
        for residency in [Residency::Lenient, Residency::Strict] {
            for block in [false, true] {
                if block && !block_allowed {
                    continue;
                }
                let flags = if block { Flags::BLOCK_ON_FAULT } else { Flags::empty() };
                let d = d.and_flags(flags).with_record(record);
                let spec = DeviceSpec { residency, ..liberal(&list.capabilities) };
                let fault = residency == Residency::Strict && !block;
                let name = format!("{what} of untouched pages, {residency:?}, block on fault: {block}");
                list.script(section::FAULTS, name, &spec, move |fixture| {
                    fixture.arena.forget(place::COLD, 0x4000);
                    fixture.arena.set(good, 8192, 0);
                    let expected_record = if fault {
                        ExpectedRecord::fault(0x03, write, at).bytes_completed(0).open_info()
                    } else {
                        ExpectedRecord::success()
                    };
                    fixture.expect(&d, &expected_record)
                });
            }
        }
    }
    // With page requests enabled, the device always waits for record and list.
    let spec = DeviceSpec { residency: Residency::Strict, ..DeviceSpec::default() };
    let d = Descriptor::nop().with_record(at);
    list.script(section::FAULTS, "an untouched record page is waited for", &spec, move |fixture| {
        fixture.arena.forget(place::COLD, 0x4000);
        let portal = fixture.portal(crate::subject::PortalSpec::of(0))?;
        fixture.submit(&*portal, &d)?;
        fixture.device.settle();
        same("status", 1, fixture.arena.status_word(at) & 0xff)
    });
}

pub(super) fn add(list: &mut List) {
    let spec = liberal(&list.capabilities);
    boundaries(list, &spec);
    let plain = DeviceSpec::default().queue(QueueSpec { max_transfer_shift: 20, ..QueueSpec::default() });
    bad_addresses(list, &plain);
    difference_first(list, &plain);
    seed(list, &plain);
    backward(list, &plain);
    cold(list, list.capabilities.gen_cap.block_on_fault());
}
