//! After a page fault: touch the page, submit the continuation of SPEC §8.3, and get the same bytes as without a fault.

use super::faults::{Job, jobs};
use super::{List, liberal};
use crate::arena::{Access, PAGE, place};
use crate::case::{NotPassed, Verdict, fail, same_bytes, section};
use crate::expected::line;
use crate::fixture::Fixture;
use crate::oracle;
use crate::sample;
use crate::subject::{DeviceSpec, PortalSpec, Residency};
use telpher_abi::{CompletionRecord, Descriptor, OpFlags, Opcode};

/// Faults after which a resume loop counts as stuck.
const ROUNDS: u32 = 64;

/// The descriptor of the work that `record` left undone. Source: SPEC §8.3, the Bytes Completed paragraphs.
fn continuation(d: &Descriptor, record: &CompletionRecord) -> Descriptor {
    let done = record.bytes_completed();
    let n = u64::from(done);
    let (src, dst) = (d.src() + n, d.dst() + n);
    let rest = |d: Descriptor| d.with_size(d.size() - done);
    match d.opcode() {
        Opcode::MemoryMove if record.result() == 1 => rest(*d),
        Opcode::MemoryMove | Opcode::Compare | Opcode::InterDomainCopy | Opcode::InterDomainCompare => {
            rest(d.with_src(src).with_dst(dst))
        }
        Opcode::Fill | Opcode::InterDomainFill => {
            let d = d.with_dst(dst);
            rest(if d.flags().contains(OpFlags::FILL_16) {
                let pattern = u128::from(d.src()) | u128::from(d.pattern_upper()) << 64;
                let turned = pattern.rotate_right(8 * (done % 16));
                let half = |shift: u32| u64::try_from(turned >> shift & u128::from(u64::MAX)).expect("64 bits");
                d.with_src(half(0)).with_pattern_upper(half(64))
            } else {
                d.with_src(d.src().rotate_right(8 * (done % 8)))
            })
        }
        Opcode::ComparePattern | Opcode::InterDomainComparePattern => {
            rest(d.with_src(src).with_dst(d.dst().rotate_right(8 * (done % 8))))
        }
        Opcode::CreateDelta => {
            let written = record.delta_record_size();
            rest(d.with_src(src).with_dst(dst))
                .with_delta_address(d.delta_address() + u64::from(written))
                .with_max_delta_size(d.max_delta_size() - written)
        }
        Opcode::ApplyDelta => d.with_src(src).with_delta_record_size(d.delta_record_size() - done),
        Opcode::Dualcast => rest(d.with_src(src).with_dst(dst).with_dst2(d.dst2() + n)),
        Opcode::CrcGeneration | Opcode::CopyCrc => {
            let d = if d.opcode() == Opcode::CopyCrc { d.with_dst(dst) } else { *d };
            // Nothing done: the value is undefined, the seed stays.
            let wide = d.flags().contains(OpFlags::CRC64);
            let seeded = if wide { d.with_crc64_seed(record.crc64()) } else { d.with_crc_seed(record.crc()) };
            rest(if done == 0 { d } else { seeded.with_src(src) })
        }
        Opcode::DifCheck => rest(source_tags(d.with_src(src), record)),
        Opcode::DifStrip => rest(source_tags(d.with_src(src), record).with_dst(d.dst() + n / 520 * 512)),
        Opcode::DifInsert => rest(dest_tags(d.with_src(src), record).with_dst(d.dst() + n / 512 * 520)),
        Opcode::DixGenerate => rest(dest_tags(d.with_src(src), record).with_dst(d.dst() + n / 512 * 8)),
        Opcode::DifUpdate => rest(dest_tags(source_tags(d.with_src(src).with_dst(dst), record), record)),
        Opcode::CacheFlush => rest(d.with_dst(dst)),
        // The elements here keep their size of four bytes.
        Opcode::TypeConversion => d.with_src(src).with_dst(dst).with_size(d.size() - done / 4),
        Opcode::Reduce | Opcode::ReduceDualcast => d
            .with_src(src)
            .with_dst(dst)
            .with_reduce_dst(d.reduce_dst() + n)
            .with_reduce_dst2(if d.reduce_dst2() == 0 { 0 } else { d.reduce_dst2() + n })
            .with_size(d.size() - done / 4),
        Opcode::GatherReduce => *d,
        Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => {
            let entries = record.sgl_entries_done();
            // Buffers of 400 bytes, entries of eight.
            let (moved, list) = (400 * u32::from(entries), 8 * u64::from(entries));
            let d = d.with_sgl_size(d.sgl_size() - entries).with_size(d.size() - moved);
            match d.opcode() {
                Opcode::GatherCopy => d.with_src(d.src() + list).with_dst(d.dst() + u64::from(moved)),
                Opcode::ScatterCopy => d.with_src(d.src() + u64::from(moved)).with_dst(d.dst() + list),
                _ => d.with_dst(d.dst() + list),
            }
        }
        other => unreachable!("no continuation of {other}"),
    }
}

fn source_tags(d: Descriptor, record: &CompletionRecord) -> Descriptor {
    d.with_source_ref_tag(record.source_ref_tag())
        .with_source_app_tag_mask(record.source_app_tag_mask())
        .with_source_app_tag(record.source_app_tag())
}

fn dest_tags(d: Descriptor, record: &CompletionRecord) -> Descriptor {
    d.with_dest_ref_tag(record.dest_ref_tag())
        .with_dest_app_tag_mask(record.dest_app_tag_mask())
        .with_dest_app_tag(record.dest_app_tag())
}

/// The results of a resumed operation: its last record, and every delta record on the way (bytes compared before,
/// address, bytes).
/// bytes).
struct Resumed {
    last: CompletionRecord,
    deltas: Vec<(u64, u64, u64)>,
    faults: u32,
}

/// Submits `d`; after each fault makes the page accessible with `mend` and submits the rest.
fn resume(fixture: &Fixture, d: &Descriptor, mend: impl Fn(u64)) -> Result<Resumed, NotPassed> {
    let portal = fixture.portal(PortalSpec::of(0))?;
    let (mut d, mut compared, mut deltas) = (*d, 0, Vec::new());
    for faults in 0..ROUNDS {
        let record = fixture.run(&*portal, &d)?;
        if d.opcode() == Opcode::CreateDelta {
            deltas.push((compared, d.delta_address(), u64::from(record.delta_record_size())));
        }
        if !matches!(record.status_code() & 0x3f, 0x03 | 0x04) {
            return Ok(Resumed { last: record, deltas, faults });
        }
        // Elements have four bytes here.
        let arrays = [Opcode::TypeConversion, Opcode::Reduce, Opcode::ReduceDualcast].contains(&d.opcode());
        let bytes = d.size() * if arrays { 4 } else { 1 };
        if record.bytes_completed() >= bytes.max(d.delta_record_size()) {
            return fail("fewer bytes completed than asked for", line(&record));
        }
        compared += u64::from(record.bytes_completed());
        mend(record.fault_address() & !(PAGE - 1));
        d = continuation(&d, &record);
    }
    fail("an end of the faults", format!("{ROUNDS} of them"))
}

/// Combines the delta records of the parts, with their offsets relative to the whole operation.
fn joined(fixture: &Fixture, deltas: &[(u64, u64, u64)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (compared, address, bytes) in deltas {
        for entry in fixture.arena.read(*address, *bytes).chunks_exact(10) {
            let offset = u64::from(u16::from_le_bytes([entry[0], entry[1]])) + compared / 8;
            all.extend(u16::try_from(offset).expect("short").to_le_bytes());
            all.extend_from_slice(&entry[2..]);
        }
    }
    all
}

fn check(fixture: &Fixture, job: &Job, k: u32, resumed: &Resumed) -> Verdict {
    if resumed.faults == 0 {
        return fail("a page fault", "none");
    }
    if job.descriptor.opcode() == Opcode::CreateDelta {
        if resumed.last.status_code() != 0x01 {
            return fail("status 0x01", line(&resumed.last));
        }
        return same_bytes("joined delta records", &job.outputs[0].1, &joined(fixture, &resumed.deltas));
    }
    fixture.compare(&job.last, &resumed.last)?;
    for (area, expected) in job.outputs.iter() {
        let got = fixture.arena.read(fixture.at(Job::start(*area, k)), expected.len() as u64);
        same_bytes("destination", expected, &got)?;
    }
    Ok(())
}

fn restore_page(fixture: &Fixture, page: u64) {
    let areas = fixture.at(place::AREAS)..fixture.at(place::AREAS + 4 * place::AREA);
    // No other page is missing: the loop ends at its limit and the case fails.
    if areas.contains(&page) {
        fixture.arena.protect(page - fixture.at(0), PAGE, Access::All);
    }
}

pub(super) fn add(list: &mut List) {
    let spec = liberal(&list.capabilities);
    for k in [1u32, 8, 100, 1304, 4088] {
        for job in jobs(list, k) {
            // Each operand alone, then all at once.
            for chosen in 0..=job.operands.len() {
                let job = job.clone();
                let operands: Vec<_> = match job.operands.get(chosen) {
                    Some(operand) => vec![*operand],
                    None => job.operands.clone(),
                };
                // The tuples of DIX Generate are few; they end before the boundary.
                if operands.iter().any(|operand| operand.bytes <= k) {
                    continue;
                }
                let which = if operands.len() == 1 { format!("operand {chosen}") } else { "every operand".into() };
                let name = format!("{} resumed page by page of {which}, {k} bytes before the first", job.name);
                list.script(section::RESUME, name, &spec, move |fixture| {
                    job.prepare(fixture, k);
                    for operand in &operands {
                        let end = (u64::from(operand.bytes - k)).next_multiple_of(PAGE);
                        let access = if operand.write && chosen % 2 == 1 { Access::Read } else { Access::None };
                        fixture.arena.protect(Job::start(operand.area, 0), end, access);
                    }
                    let resumed = resume(fixture, &job.descriptor, |page| restore_page(fixture, page))?;
                    fixture.arena.restore();
                    check(fixture, &job, k, &resumed)
                });
            }
        }
    }
    overlapping(list, &spec);
    cold(list);
}

/// Overlapping moves, in both directions, with every page missing at first.
fn overlapping(list: &mut List, spec: &DeviceSpec) {
    if !list.capabilities.gen_cap.overlapping_copy() {
        return;
    }
    for (distance, size) in
        [(1i64, 20_000u32), (100, 20_000), (4096, 30_000), (5000, 9000), (-1, 20_000), (-777, 20_000), (-4096, 30_000)]
    {
        for from in [0u64, 1, 4095] {
            let src = list.arena.at(place::AREAS + 0x2_0000 + from);
            let dst = src.checked_add_signed(distance).expect("in the arena");
            let d = Descriptor::memory_move(src, dst, size).with_record(list.arena.at(sample::RECORD));
            for access in [Access::None, Access::Read] {
                let name = format!(
                    "an overlapping move of {size} bytes by {distance} from +{from}, pages {access:?}, resumed"
                );
                list.script(section::RESUME, name, spec, move |fixture| {
                    let data = oracle::noise(size.into(), size as usize);
                    fixture.arena.write(src, &data);
                    fixture.arena.protect(place::AREAS + 0x1_0000, 0x2_0000, access);
                    let resumed = resume(fixture, &d, |page| restore_page(fixture, page))?;
                    fixture.arena.restore();
                    if resumed.last.status_code() != 0x01 || resumed.faults == 0 {
                        return fail("status 0x01 after page faults", line(&resumed.last));
                    }
                    same_bytes("destination", &data, &fixture.arena.read(dst, size.into()))
                });
            }
        }
    }
}

/// Pages that are not present: the CPU touches them, as software would.
fn cold(list: &mut List) {
    let spec = DeviceSpec { residency: Residency::Strict, ..DeviceSpec::default() };
    let at = list.arena.at(place::COLD + 50);
    let record = list.arena.at(sample::RECORD);
    let fill = Descriptor::fill(0x0807_0605_0403_0201, at, 20_000).with_record(record);
    list.script(section::RESUME, "a fill of untouched pages, touched one by one", &spec, move |fixture| {
        fixture.arena.forget(place::COLD, 0x8000);
        let (low, high) = (fixture.at(place::COLD), fixture.at(place::COLD + 0x8000));
        let touch = |page: u64| {
            if (low..high).contains(&page) {
                fixture.arena.write(page, &fixture.arena.read(page, 1));
            }
        };
        let resumed = resume(fixture, &fill, touch)?;
        if resumed.last.status_code() != 0x01 || resumed.faults == 0 {
            return fail("status 0x01 after page faults", line(&resumed.last));
        }
        let expected: Vec<u8> = (1..=8).cycle().take(20_000).collect();
        same_bytes("destination", &expected, &fixture.arena.read(at, 20_000))
    });
}
