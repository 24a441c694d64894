//! Queues and portals: accepted, refused and lost descriptors, and the order of service.

use super::List;
use crate::arena::place;
use crate::bring_up::{Map, command};
use crate::case::{NotPassed, Verdict, fail, holds, same, same_bytes, section};
use crate::expected::ExpectedRecord;
use crate::fixture::Fixture;
use crate::sample;
use crate::subject::{DeviceSpec, GroupSpec, Instruction, PortalSpec, QueueSpec, STRANGER};
use telpher_abi::registers::{CommandCode, PortalKind};
use telpher_abi::{Descriptor, Flags, Opcode};
use telpher_portal::{Offer, Portal, QueueMode};

/// Records of the descriptors of these cases.
const RECORDS: u64 = place::RECORDS + 0x2000;
/// Batch lists of the dispatch log.
const LISTS: u64 = place::LISTS + 0x1_0000;

fn record(fixture: &Fixture, i: usize) -> u64 {
    fixture.at(RECORDS + 32 * i as u64)
}

fn nop(fixture: &Fixture, i: usize) -> Descriptor {
    fixture.arena.clear_record(record(fixture, i));
    Descriptor::nop().with_record(record(fixture, i))
}

/// Offers no-operations `range` until one is not taken; returns the number of taken ones.
fn offer_until_retry(fixture: &Fixture, portal: &dyn Portal, from: usize, most: usize) -> usize {
    (0..most)
        .take_while(|i| {
            let d = nop(fixture, from + i);
            fixture.arena.offer(portal, &d) == Offer::Taken
        })
        .count()
}

/// After release: exactly the descriptors `0..done` have succeeded, `done..all` have no record.
fn finished(fixture: &Fixture, portal: &dyn Portal, done: usize, all: usize) -> Verdict {
    fixture.release();
    for i in 0..done {
        let got = fixture.wait(portal, record(fixture, i)).map(|r| r.status_code());
        same(&format!("status of descriptor {i}"), Some(1), got)?;
    }
    fixture.device.settle();
    for i in done..all {
        same(&format!("record of descriptor {i}"), 0, fixture.arena.status_word(record(fixture, i)))?;
    }
    Ok(())
}

fn shared(list: &mut List) {
    for (size, threshold) in [(16u16, 8u16), (16, 1), (16, 15), (16, 16), (16, 40), (8, 0), (1, 1), (32, 20)] {
        let spec = DeviceSpec::default().queue(QueueSpec { size, threshold, ..QueueSpec::shared() });
        let (limit, all) = (usize::from(threshold.min(size)), usize::from(size));
        list.fresh(
            section::QUEUES,
            format!("a shared queue of {size} says Retry above threshold {threshold}"),
            &spec,
            move |fixture| {
                for i in 0..all + 2 {
                    fixture.arena.clear_record(record(fixture, i));
                }
                let limited = fixture.portal(PortalSpec::of(0).kind(PortalKind::LimitedMsix))?;
                let unlimited = fixture.portal(PortalSpec::of(0))?;
                fixture.hold()?;
                same("taken by the limited portal", limit, offer_until_retry(fixture, &*limited, 0, all + 2))?;
                let more = offer_until_retry(fixture, &*unlimited, limit, all + 2);
                same("taken more by the unlimited portal", all - limit, more)?;
                same("the limited portal", Offer::Retry, fixture.arena.offer(&*limited, &Descriptor::nop()))?;
                finished(fixture, &*unlimited, all, all + 2)?;
                fixture.no_sw_error()?;
                // Empty again.
                fixture.hold()?;
                same("taken again", limit, offer_until_retry(fixture, &*limited, 0, all + 2))?;
                finished(fixture, &*limited, limit, limit)
            },
        );
    }
    let spec = DeviceSpec::default().queue(QueueSpec { size: 16, threshold: 4, ..QueueSpec::shared() });
    list.fresh(section::QUEUES, "a threshold may change while the queue is enabled", &spec, |fixture| {
        let registers = fixture.registers()?;
        let limited = fixture.portal(PortalSpec::of(0).kind(PortalKind::LimitedMsix))?;
        let map = Map::of(registers);
        registers.write(map.wqcfg(0) + 4, 4, 9);
        fixture.hold()?;
        same("taken", 9, offer_until_retry(fixture, &*limited, 0, 20))?;
        finished(fixture, &*limited, 9, 9)
    });
}

fn dedicated(list: &mut List) {
    for size in [1u16, 4, 16, 64] {
        for kind in [PortalKind::UnlimitedMsix, PortalKind::LimitedMsix] {
            let spec = DeviceSpec::default().queue(QueueSpec { size, threshold: 1, ..QueueSpec::default() });
            list.fresh(
                section::QUEUES,
                format!("a dedicated queue of {size} loses what comes when it is full, {kind:?}"),
                &spec,
                move |fixture| {
                    let all = usize::from(size);
                    let portal = fixture.portal(PortalSpec::of(0).kind(kind))?;
                    fixture.hold()?;
                    same("taken", all, offer_until_retry(fixture, &*portal, 0, all))?;
                    fixture.no_sw_error()?;
                    let late = nop(fixture, all);
                    same("one too many", Offer::Taken, fixture.arena.offer(&*portal, &late))?;
                    if let Some(error) = fixture.sw_error() {
                        same("SWERROR valid, overflow", (true, false), (error.valid(), error.overflow()))?;
                        same("SWERROR's code", 0x53, error.error_code())?;
                        same("SWERROR's queue", (true, 0), (error.wq_index_valid(), error.wq_index()))?;
                    }
                    let later = nop(fixture, all + 1);
                    same("two too many", Offer::Taken, fixture.arena.offer(&*portal, &later))?;
                    if let Some(error) = fixture.sw_error() {
                        same("SWERROR valid, overflow", (true, true), (error.valid(), error.overflow()))?;
                    }
                    finished(fixture, &*portal, all, all + 2)
                },
            );
        }
    }
}

fn instructions(list: &mut List) {
    let shared = DeviceSpec::default().queue(QueueSpec::shared());
    list.script(section::QUEUES, "a posted write to a shared queue is ignored", &shared, |fixture| {
        fixture.clear_sw_error();
        let portal = fixture.portal(PortalSpec::of(0).by(Instruction::Posted))?;
        let d = nop(fixture, 0);
        same("the write", Offer::Taken, fixture.arena.offer(&*portal, &d))?;
        finished(fixture, &*portal, 0, 1)?;
        fixture.no_sw_error()
    });
    list.script(
        section::QUEUES,
        "a deferrable write to a dedicated queue gets Retry",
        &DeviceSpec::default(),
        |fixture| {
            fixture.clear_sw_error();
            let portal = fixture.portal(PortalSpec::of(0).by(Instruction::Deferrable))?;
            let d = nop(fixture, 0);
            same("the write", Offer::Retry, fixture.arena.offer(&*portal, &d))?;
            finished(fixture, &*portal, 0, 1)?;
            fixture.no_sw_error()
        },
    );
    // Supervisor privilege through ENQCMDS.
    for allowed in [false, true] {
        let mut spec = shared.clone();
        spec.pci.privileged_mode = allowed;
        list.script(
            section::QUEUES,
            format!("a privileged shared submission, Privileged Mode Enable = {allowed}"),
            &spec,
            move |fixture| {
                fixture.clear_sw_error();
                let portal = fixture.portal(PortalSpec::of(0).by(Instruction::DeferrableSupervisor))?;
                let d = nop(fixture, 0);
                fixture.submit(&*portal, &d)?;
                let done = finished(fixture, &*portal, allowed.into(), 1);
                match fixture.sw_error() {
                    Some(error) if !allowed => {
                        same("SWERROR's code", (true, 0x1d), (error.valid(), error.error_code()))?;
                        same("SWERROR's privilege", true, error.privileged())?;
                    }
                    _ => fixture.no_sw_error()?,
                }
                done
            },
        );
    }
}

fn disabled(list: &mut List) {
    for (mode, queue) in [(QueueMode::Shared, QueueSpec::shared()), (QueueMode::Dedicated, QueueSpec::default())] {
        for (what, code, operand) in [
            ("a disabled queue", CommandCode::DisableWq, 1),
            ("a reset queue", CommandCode::ResetWq, 1),
            ("a disabled device", CommandCode::DisableDevice, 0),
        ] {
            let spec = DeviceSpec::default().queue(queue.clone());
            let answer = if mode == QueueMode::Shared { Offer::Retry } else { Offer::Taken };
            list.fresh(
                section::QUEUES,
                format!("{what} that was {mode:?} answers {answer:?} and does nothing"),
                &spec,
                move |fixture| {
                    let portal = fixture.portal(PortalSpec::of(0))?;
                    if let Err(error) = command(fixture.registers()?, code, operand) {
                        return fail("the command succeeds", error);
                    }
                    let d = nop(fixture, 0);
                    same("the write", answer, fixture.arena.offer(&*portal, &d))?;
                    finished(fixture, &*portal, 0, 1)?;
                    fixture.no_sw_error()
                },
            );
        }
        // Without interrupt message storage there are no portals for it.
        let spec = DeviceSpec::default().queue(queue);
        let mut without = list.capabilities;
        without.gen_cap = without.gen_cap.with_ims_size(0);
        let spec = DeviceSpec { capabilities: (without != list.capabilities).then_some(without), ..spec };
        list.script(
            section::QUEUES,
            format!("without message storage the IMS portals of a {mode:?} queue are dead"),
            &spec,
            move |fixture| {
                let portal = fixture.portal(PortalSpec::of(0).kind(PortalKind::UnlimitedIms))?;
                let d = nop(fixture, 0);
                let answer = if mode == QueueMode::Shared { Offer::Retry } else { Offer::Taken };
                same("the write", answer, fixture.arena.offer(&*portal, &d))?;
                finished(fixture, &*portal, 0, 1)
            },
        );
    }
}

/// WQCFG's occupancy field counts waiting descriptors.
fn occupancy(list: &mut List) {
    if !list.capabilities.wq_cap.occupancy() {
        return;
    }
    for queue in [QueueSpec::shared(), QueueSpec::default()] {
        let spec = DeviceSpec::default().queue(queue.clone());
        list.fresh(
            section::QUEUES,
            format!("occupancy of a {:?} queue counts what waits", queue.mode),
            &spec,
            |fixture| {
                let registers = fixture.registers()?;
                let portal = fixture.portal(PortalSpec::of(0))?;
                let map = Map::of(registers);
                fixture.hold()?;
                for i in 0..7usize {
                    same("occupancy", i, map.read_wqcfg(registers, 0).occupancy().into())?;
                    let d = nop(fixture, i);
                    same("the write", Offer::Taken, fixture.arena.offer(&*portal, &d))?;
                }
                finished(fixture, &*portal, 7, 7)?;
                same("occupancy", 0, map.read_wqcfg(registers, 0).occupancy())
            },
        );
    }
}

/// A client never reaches another client's memory.
fn other_clients(list: &mut List) {
    let spec = DeviceSpec::default().queue(QueueSpec::shared());
    let (src, out) = (list.arena.at(sample::COUNT), list.arena.at(place::OUT1));
    for (what, d) in [
        ("read", Descriptor::crc_generation(src, 64, 0)),
        ("write", Descriptor::fill(0xffff_ffff, out, 64)),
        ("copy", Descriptor::memory_move(src, out, 64)),
    ] {
        list.script(
            section::PASID,
            format!("a stranger's {what} does not reach this process"),
            &spec,
            move |fixture| {
                fixture.clear_sw_error();
                fixture.arena.set(out, 64, 0x33);
                let at = record(fixture, 0);
                let _ = nop(fixture, 0);
                let stranger = fixture.portal(PortalSpec::of(0).pasid(STRANGER))?;
                fixture.submit(&*stranger, &d.with_record(at))?;
                fixture.device.settle();
                same_bytes("destination", &[0x33; 64], &fixture.arena.read(out, 64))?;
                same("the record", 0, fixture.arena.status_word(at))?;
                let Some(error) = fixture.sw_error() else { return Ok(()) };
                same("SWERROR", (true, 0x1a, STRANGER), (error.valid(), error.error_code(), error.pasid()))
            },
        );
    }
    list.script(section::PASID, "two clients of one queue do not disturb each other", &spec, move |fixture| {
        let (here, stranger) = (fixture.portal(PortalSpec::of(0))?, fixture.portal(PortalSpec::of(0).pasid(STRANGER))?);
        fixture.arena.set(out, 0x1000, 0x33);
        for i in 0..12u64 {
            let d = nop(fixture, usize::try_from(i).expect("small"));
            let mine = Descriptor::memory_move(src, out + 128 * i, 64).with_record(d.completion_address());
            fixture.submit(&*here, &mine)?;
            fixture.submit(&*stranger, &Descriptor::fill(0, out + 128 * i, 128))?;
        }
        finished(fixture, &*here, 12, 12)?;
        let mine: Vec<u8> = (0..64).collect();
        for i in 0..12 {
            same_bytes("what was copied here", &mine, &fixture.arena.read(out + 128 * i, 64))?;
            same_bytes("what lies behind", &[0x33; 64], &fixture.arena.read(out + 128 * i + 64, 64))?;
        }
        Ok(())
    });
    list.script(section::PASID, "a batch's list is read in its submitter's memory", &spec, move |fixture| {
        fixture.clear_sw_error();
        let stranger = fixture.portal(PortalSpec::of(0).pasid(STRANGER))?;
        let at = fixture.at(LISTS);
        fixture.arena.write_list(at, &[Descriptor::fill(0, out, 64), Descriptor::fill(0, out, 64)]);
        fixture.arena.set(out, 64, 0x33);
        fixture.submit(&*stranger, &Descriptor::batch(at, 2))?;
        fixture.device.settle();
        same_bytes("destination", &[0x33; 64], &fixture.arena.read(out, 64))?;
        let Some(error) = fixture.sw_error() else { return Ok(()) };
        same("SWERROR", (true, 0x06, STRANGER), (error.valid(), error.error_code(), error.pasid()))
    });
}

/// Lets a held device process `counts[q]` batches of every queue `q`, and returns the queues in the order of dispatch.
///
/// A batch moves the log up by one and writes its queue's number in front. In a group with one engine the log is the
/// order of dispatch, newest first. A Batch counts as one dispatch.
fn dispatch_log(fixture: &Fixture, counts: &[usize], round_robin: bool) -> Result<Vec<u8>, NotPassed> {
    let total: usize = counts.iter().sum();
    let log = fixture.at(place::OUT1);
    fixture.arena.set(log, total as u64 + 1, 0xff);
    let mut plan: Vec<usize> = Vec::new();
    if round_robin {
        for i in 0..counts.iter().copied().max().unwrap_or(0) {
            plan.extend((0..counts.len()).filter(|q| i < counts[*q]));
        }
    } else {
        plan.extend(counts.iter().enumerate().flat_map(|(q, n)| std::iter::repeat_n(q, *n)));
    }
    let length = u32::try_from(total).expect("short");
    fixture.hold()?;
    for (i, queue) in plan.iter().enumerate() {
        let list = fixture.at(LISTS + 128 * i as u64);
        let number = Descriptor::fill(*queue as u64, log, 1).and_flags(Flags::FENCE);
        fixture.arena.write_list(list, &[Descriptor::memory_move(log, log + 1, length), number]);
        let _ = nop(fixture, i);
        let batch = Descriptor::batch(list, 2).with_record(record(fixture, i));
        same("the offer", Offer::Taken, fixture.arena.offer(&*fixture.portal(PortalSpec::of(*queue))?, &batch))?;
    }
    let portal = fixture.portal(PortalSpec::of(0))?;
    fixture.release();
    for i in 0..total {
        let got = fixture.wait(&*portal, record(fixture, i)).map(|r| r.status_code());
        same(&format!("status of batch {i}"), Some(1), got)?;
    }
    let mut order = fixture.arena.read(log, total as u64);
    order.reverse();
    Ok(order)
}

/// Weighted shares under saturation: in every round of sum(priorities) dispatches each queue gets its priority, plus or
/// minus one, and at least one.
/// one, and never none.
fn priorities(list: &mut List) {
    let has = |opcode| list.has(opcode);
    if !(has(Opcode::Batch) && has(Opcode::Fill) && list.capabilities.gen_cap.overlapping_copy()) {
        return;
    }
    let mixes: [&'static [u8]; 9] =
        [&[6, 2], &[2, 6], &[1, 1], &[15, 1], &[1, 15], &[8, 8], &[4, 2, 1], &[3, 9], &[1, 2, 3, 4]];
    for priorities in mixes {
        for mode in [QueueMode::Dedicated, QueueMode::Shared] {
            for round_robin in [false, true] {
                let round: usize = priorities.iter().map(|p| usize::from(*p)).sum();
                let rounds = (120 / round).min(8);
                let counts: Vec<usize> = priorities.iter().map(|p| usize::from(*p) * rounds).collect();
                let queues = priorities
                    .iter()
                    .zip(&counts)
                    .map(|(priority, size)| {
                        let size = u16::try_from(*size).expect("short");
                        QueueSpec { mode, size, threshold: size, priority: *priority, ..QueueSpec::default() }
                    })
                    .collect();
                let spec = DeviceSpec::default().queues(queues);
                let how = if round_robin { "offered in turn" } else { "offered queue by queue" };
                list.fresh(
                    section::PRIORITY,
                    format!("priorities {priorities:?} share dispatches so, {mode:?}, {how}"),
                    &spec,
                    move |fixture| {
                        let order = dispatch_log(fixture, &counts, round_robin)?;
                        for (n, window) in order.chunks(round).enumerate() {
                            for (q, priority) in priorities.iter().enumerate() {
                                let got = window.iter().filter(|x| usize::from(**x) == q).count();
                                let so_far = order[..(n + 1) * round].iter().filter(|x| usize::from(**x) == q).count();
                                let fair = |got: usize, expected: usize| got.abs_diff(expected) <= 1;
                                holds(
                                    format!(
                                        "queue {q} is served {priority} times in round {n}, and in proportion so far"
                                    ),
                                    got > 0
                                        && fair(got, (*priority).into())
                                        && fair(so_far, usize::from(*priority) * (n + 1)),
                                    || format!("{got} times, {so_far} so far; order {order:?}"),
                                )?;
                            }
                        }
                        Ok(())
                    },
                );
            }
        }
    }
    // A single queue gets all dispatches, whatever its priority.
    let spec = DeviceSpec::default().queues(vec![
        QueueSpec { priority: 1, size: 40, ..QueueSpec::default() },
        QueueSpec { priority: 15, size: 40, ..QueueSpec::default() },
    ]);
    list.fresh(section::PRIORITY, "an idle queue of high priority costs nothing", &spec, |fixture| {
        same("order", vec![0; 40], dispatch_log(fixture, &[40, 0], false)?)
    });
    list.fresh(section::PRIORITY, "what runs out of one queue is followed by the other", &spec, |fixture| {
        let order = dispatch_log(fixture, &[30, 3], false)?;
        let last = order.iter().rposition(|q| *q == 1).unwrap_or(usize::MAX);
        holds("the three of the high queue within the first six dispatches", last < 6, || format!("{order:?}"))
    });
}

/// One queue of one engine: writes land in the order of submission.
fn order(list: &mut List) {
    for queue in [QueueSpec::default(), QueueSpec::shared()] {
        let spec = DeviceSpec::default().queue(queue.clone());
        let out = list.arena.at(place::OUT1);
        list.script(
            section::FENCE,
            format!("the last of many writes through a {:?} queue wins", queue.mode),
            &spec,
            move |fixture| {
                let portal = fixture.portal(PortalSpec::of(0))?;
                for i in 0..16u64 {
                    let d = nop(fixture, usize::try_from(i).expect("small"));
                    let fill =
                        Descriptor::fill(i * 0x0101_0101_0101_0101, out, 4096).with_record(d.completion_address());
                    fixture.submit(&*portal, &fill)?;
                }
                finished(fixture, &*portal, 16, 16)?;
                same_bytes("destination", &[15; 4096], &fixture.arena.read(out, 4096))
            },
        );
    }
    // Four engines, two groups: nothing is lost and nothing is executed twice.
    let (engines, groups) = (list.capabilities.eng_cap.engines(), list.capabilities.grp_cap.groups());
    if engines >= 4 && groups >= 2 {
        let queues = vec![QueueSpec::default(), QueueSpec::shared()];
        let group = |engines| GroupSpec { engines, queues: queues.clone(), tc_b: 0 };
        let spec = DeviceSpec { groups: vec![group(3), group(1)], ..DeviceSpec::default() };
        let (src, out) = (list.arena.at(sample::NOISE), list.arena.at(place::OUT1));
        list.script(section::QUEUES, "four queues in two groups each do their own work", &spec, move |fixture| {
            fixture.arena.set(out, 64 * 1024, 0);
            for i in 0..64usize {
                let d = nop(fixture, i);
                let at = 1024 * i as u64;
                let d = Descriptor::memory_move(src + at, out + at, 1000).with_record(d.completion_address());
                fixture.submit(&*fixture.portal(PortalSpec::of(i % 4))?, &d)?;
                if i % 16 == 15 {
                    fixture.device.settle();
                }
            }
            finished(fixture, &*fixture.portal(PortalSpec::of(0))?, 64, 64)?;
            for i in 0..64u64 {
                let expected = fixture.arena.read(src + 1024 * i, 1000);
                same_bytes("destination", &expected, &fixture.arena.read(out + 1024 * i, 1000))?;
                same_bytes("gap", &[0; 24], &fixture.arena.read(out + 1024 * i + 1000, 24))?;
            }
            Ok(())
        });
    }
}

/// SWERROR has the queue's own index.
fn indices(list: &mut List) {
    let spec = DeviceSpec::default().queues(vec![QueueSpec::default(), QueueSpec::shared(), QueueSpec::default()]);
    for queue in 0..3usize {
        list.script(section::SWERROR, format!("SWERROR names queue {queue}"), &spec, move |fixture| {
            fixture.registers()?;
            fixture.clear_sw_error();
            fixture.submit(&*fixture.portal(PortalSpec::of(queue))?, &Descriptor::memory_move(0, 0, 0))?;
            fixture.device.settle();
            let error = fixture.sw_error().expect("registers are there");
            same("code and queue", (0x13, queue), (error.error_code(), error.wq_index().into()))
        });
    }
    let d = Descriptor::nop().with_record(list.arena.at(sample::RECORD));
    list.script(section::QUEUES, "every portal page of a queue leads to it", &spec, move |fixture| {
        for kind in [PortalKind::UnlimitedMsix, PortalKind::LimitedMsix] {
            for queue in 0..3 {
                let got = fixture.run(&*fixture.portal(PortalSpec::of(queue).kind(kind))?, &d)?;
                fixture.compare(&ExpectedRecord::success(), &got)?;
            }
        }
        Ok(())
    });
}

pub(super) fn add(list: &mut List) {
    shared(list);
    dedicated(list);
    instructions(list);
    disabled(list);
    occupancy(list);
    other_clients(list);
    priorities(list);
    order(list);
    indices(list);
}
