//! Cores: submission, waiting, own operations, and movers.

use std::cell::RefCell;
use std::rc::Rc;
use telpher_abi::Opcode;
use telpher_device::{Config, Preset, WqMode};
use telpher_mover::{Route, Split};
use telpher_sim::{
    AccessPattern, Arrivals, BufferPlacement, Cycles, ExecutedBy, Library, LineLocation, LoadOutcome, Machine,
    MoverSettings, Outcome, Picos, Scenario, Sizes, Stream, SubmitBy, Wait, Workload, World,
};

const COPY: Opcode = Opcode::MemoryMove;

fn simulated(stream: Stream, devices: &[Config], threads: u32) -> Outcome {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let scenario =
        Scenario { devices: devices.to_vec(), ..Scenario::on(machine, Config::single(WqMode::Dedicated, 32, 4)) };
    scenario.with("load", threads, Workload::Stream(stream)).simulate().unwrap()
}

fn one(stream: Stream) -> LoadOutcome {
    let mode = if stream.by == ExecutedBy::SHARED { WqMode::Shared } else { WqMode::Dedicated };
    simulated(stream, &[Config::single(mode, 32, 4)], 1).loads.remove(0)
}

fn near(simulated_value: f64, expected: f64, part: f64) -> bool {
    (simulated_value / expected - 1.0).abs() <= part
}

/// Nanoseconds of one operation by a core.
fn by_core(stream: Stream) -> f64 {
    one(Stream { by: ExecutedBy::Cpu, ..stream }).mean_latency_ns()
}

#[test]
fn calibrated_end_points_are_reproduced() {
    // LightDSA artifact repository (EuroSys 2026), raw result files: MiB/s of one core at 64 B and at 1 MiB, 4 GiB.
    for (op, walk, small, large) in [
        (COPY, AccessPattern::Sequential, 5872.0, 9749.0),
        (COPY, AccessPattern::Random, 1780.0, 9725.0),
        (Opcode::Fill, AccessPattern::Sequential, 7673.0, 10574.0),
        (Opcode::Fill, AccessPattern::Random, 3029.0, 10558.0),
        (Opcode::Compare, AccessPattern::Sequential, 6015.0, 7454.0),
        (Opcode::Compare, AccessPattern::Random, 1103.0, 7466.0),
        (Opcode::ComparePattern, AccessPattern::Sequential, 6028.0, 9282.0),
        (Opcode::ComparePattern, AccessPattern::Random, 1553.0, 9264.0),
    ] {
        for (size, measured) in [(64, small), (1 << 20, large)] {
            let ns = by_core(Stream { walk, submissions: 20, ..Stream::of(op, size) });
            let simulated_value = f64::from(size) / ns / 1.048_576e-3;
            assert!(
                near(simulated_value, measured, 0.01),
                "{op:?} {walk:?} {size}: {simulated_value} for {measured} MiB/s"
            );
        }
    }
}

#[test]
fn the_walk_decides_the_time_of_a_copy() {
    let of = |walk, src, dst| {
        let place = |lines| BufferPlacement { lines, ..BufferPlacement::on(0) };
        by_core(Stream { walk, src: place(src), dst: place(dst), submissions: 10, ..Stream::of(COPY, 4096) })
    };
    let cold = of(AccessPattern::Alone, LineLocation::Memory, LineLocation::Memory);
    let random = of(AccessPattern::Random, LineLocation::Memory, LineLocation::Memory);
    let sequential = of(AccessPattern::Sequential, LineLocation::Memory, LineLocation::Memory);
    let cached = of(AccessPattern::Alone, LineLocation::Llc, LineLocation::Llc);
    let half = of(AccessPattern::Alone, LineLocation::Llc, LineLocation::Memory);
    assert!(sequential < random && random < cold, "{sequential} {random} {cold}");
    assert!(cached < half && half < cold, "{cached} {half} {cold}");
}

#[test]
fn short_random_operations_overlap_and_long_ones_do_not() {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let costs = &machine.software;
    let more = |size| {
        let of = |walk| by_core(Stream { walk, submissions: 10, ..Stream::of(COPY, size) });
        of(AccessPattern::Random) - of(AccessPattern::Sequential) - costs.ops.of(COPY).random.as_nanos_f64()
    };
    let lookups = (costs.walk * 2).as_nanos_f64();
    let wait = lookups + machine.nodes[0].latency.as_nanos_f64();
    // Longer ones, up to 2112 bytes, run backwards, so that sequential ones wait, too.
    for lines in [1, 2, 4, 8] {
        let (simulated_value, expected) = (more(64 * lines), wait * f64::from(lines) / 16.0);
        assert!(near(simulated_value, expected, 0.01), "{lines} lines: {simulated_value} ns for {expected}");
    }
    // While the first lines arrive, the prefetcher continues as soon as the page is translated.
    for size in [4096, 8192, 1 << 20] {
        assert!((more(size) - lookups).abs() < 0.5, "{size}: {} ns for {lookups}", more(size));
    }
}

#[test]
fn cores_share_their_memory() {
    let copy =
        Stream { by: ExecutedBy::Cpu, walk: AccessPattern::Sequential, submissions: 20, ..Stream::of(COPY, 1 << 20) };
    let rate = |threads| {
        let outcome = simulated(copy, &[], threads);
        outcome.loads[0].gigabytes_per_second()
    };
    let (one, four, many) = (rate(1), rate(4), rate(56));
    assert!(near(four, 4.0 * one, 0.01), "{one} {four}");
    assert!(many < 40.0 * one, "{one} {many}: no memory carries that");
}

#[test]
fn queues_of_a_core_or_mover_load_are_not_used_directly() {
    let ExecutedBy::Device(queue) = ExecutedBy::DEDICATED else { return };
    for by in [ExecutedBy::Cpu, moves(1 << 20, Route::Local, Split::NONE)] {
        let machine = Machine::built_in("spr-asplos").unwrap();
        let scenario = Scenario::on(machine, Config::single(WqMode::Dedicated, 32, 4));
        let small = Stream { by, submissions: 10, ..Stream::of(COPY, 4096) };
        let outcome = scenario.with_lanes("load", 2, small, vec![queue]).simulate().unwrap();
        assert_eq!((outcome.loads[0].operations, outcome.descriptors), (20, 0), "{by:?}");
    }
}

#[test]
fn a_core_with_poisson_arrivals_matches_queueing_theory() {
    let copy = Stream { by: ExecutedBy::Cpu, ..Stream::of(COPY, 4096) };
    let service = by_core(copy);
    let load = 0.7;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate")]
    let arrivals = Arrivals::Poisson((load / service * 1e9) as u64);
    let simulated_value = one(Stream { arrivals, submissions: 200_000, seed: 3, ..copy }).mean_latency_ns();
    // One server, Poisson arrivals, constant service (Pollaczek and Khinchine).
    let theory = service * (1.0 + load / (2.0 * (1.0 - load)));
    assert!(near(simulated_value, theory, 0.03), "{simulated_value} ns for {theory}");
}

#[test]
fn operations_arrive_at_their_rate_even_when_the_queue_is_full() {
    let of = |arrivals| one(Stream { arrivals, depth: 8, submissions: 20_000, ..Stream::of(COPY, 4096) });
    for arrivals in [Arrivals::Even(2_000_000), Arrivals::Poisson(2_000_000)] {
        let outcome = of(arrivals);
        assert!(near(outcome.operations_per_second(), 2e6, 0.02), "{}", outcome.operations_per_second());
        assert!(outcome.timeline.backlog < outcome.timeline.process);
    }
    let closed = of(Arrivals::Closed);
    let beyond = of(Arrivals::Even(50_000_000));
    assert!(near(beyond.operations_per_second(), closed.operations_per_second(), 0.02));
    assert!(beyond.mean_latency_ns() > 100.0 * closed.mean_latency_ns(), "they wait in the backlog");
}

#[test]
fn sizes_follow_their_weights_reproducibly() {
    let sizes = Sizes::new(&[(1024, 3), (65536, 1)]).unwrap();
    for by in [ExecutedBy::DEDICATED, ExecutedBy::Cpu] {
        let of = |seed| one(Stream { by, sizes, seed, depth: 4, submissions: 20_000, ..Stream::of(COPY, 1) });
        let outcome = of(1);
        #[allow(clippy::cast_precision_loss, reason = "small")]
        let mean = outcome.bytes as f64 / outcome.operations as f64;
        assert!(near(mean, (3.0 * 1024.0 + 65536.0) / 4.0, 0.02), "{mean}");
        assert_eq!(of(1).timeline, outcome.timeline);
        assert_ne!(of(2).timeline, outcome.timeline);
    }
    assert_eq!((Sizes::new(&[]), Sizes::new(&[(1, 0)]), Sizes::new(&[(1, 1); 17])), (None, None, None));
}

#[test]
fn a_dedicated_queue_is_never_overfilled() {
    let copy = Stream { depth: 64, submissions: 2000, ..Stream::of(COPY, 4096) };
    let of = |depth, queue, threads| {
        let outcome = simulated(Stream { depth, ..copy }, &[Config::single(WqMode::Dedicated, queue, 1)], threads);
        assert_eq!(outcome.loads[0].operations, 2000 * u64::from(threads));
        assert_eq!(outcome.loads[0].timeline.retries, 0);
        outcome.loads[0].gigabytes_per_second()
    };
    let (narrow, fitting, wide) = (of(64, 2, 1), of(2, 2, 1), of(64, 64, 1));
    assert!(near(narrow, fitting, 0.02) && narrow < 0.8 * wide, "{narrow} {fitting} {wide}");
    of(64, 4, 8);
}

#[test]
fn a_system_call_adds_its_time_to_each_descriptor() {
    let copy = Stream { depth: 32, submissions: 5000, ..Stream::of(COPY, 64) };
    let period = |through| 1e9 / one(Stream { through, ..copy }).operations_per_second();
    let costs = Machine::built_in("spr-asplos").unwrap().submit;
    let more = period(SubmitBy::Write) - period(SubmitBy::Portal);
    assert!(near(more, costs.system_call.as_nanos_f64(), 0.02), "{more} ns");
}

#[test]
fn the_fence_waits_for_flushed_descriptors() {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let memory = machine.nodes[0].latency.as_nanos_f64();
    for (by, batch) in [(ExecutedBy::DEDICATED, 1), (ExecutedBy::DEDICATED, 16), (ExecutedBy::SHARED, 4)] {
        let of = |cold_descriptors| one(Stream { by, batch, cold_descriptors, ..Stream::of(COPY, 4096) });
        let (cold, warm) = (of(true), of(false));
        let others = if batch > 1 { f64::from(batch) } else { 0.0 };
        let expected = memory * (1.0 + others / machine.software.fill_buffers as f64);
        let more = cold.mean_latency_ns() - warm.mean_latency_ns();
        assert!((more - expected).abs() < 1.0, "{by:?} {batch}: {more} ns for {expected}");
        assert_eq!(cold.timeline.prepare, warm.timeline.prepare);
        assert!(cold.timeline.submit > warm.timeline.submit && cold.cycles.busy > warm.cycles.busy);
    }
}

#[test]
fn each_library_adds_its_costs() {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let period =
        |library| 1e9 / one(Stream { library, submissions: 200, ..Stream::of(COPY, 1 << 20) }).operations_per_second();
    let raw = period(Library::Raw);
    for library in [Library::Lean, Library::Dml, Library::Kernel] {
        let (costs, none) = (machine.library.of(library), machine.library.of(Library::Raw));
        let expected = (costs.prepare + costs.complete).as_nanos_f64() - none.prepare.as_nanos_f64();
        let more = period(library) - raw;
        assert!((more - expected).abs() < 0.01 * raw, "{library:?}: {more} ns for {expected}");
    }
    // DML's benchmark guide: 52.06 us for a synchronous copy of 1 MiB, from cache to cache.
    let dml = period(Library::Dml);
    assert!(near(dml, 52_060.0, 0.25), "{dml} ns");
}

fn share(part: Picos, cycles: &Cycles) -> f64 {
    part.as_secs_f64() / cycles.total().as_secs_f64()
}

#[test]
fn umwait_takes_most_cycles_of_large_or_batched_operations() {
    let umwait = |size, batch| {
        let cycles = one(Stream { wait: Wait::Umwait, batch, submissions: 100, ..Stream::of(COPY, size) }).cycles;
        share(cycles.umwait, &cycles)
    };
    let singles: Vec<f64> = (6..=20).map(|power| umwait(1 << power, 1)).collect();
    assert!(singles.is_sorted() && singles[6..].iter().all(|share| *share > 0.5), "{singles:?}");
    for batch in [2, 16, 64, 128] {
        let batches: Vec<f64> = (6..=20).map(|power| umwait(1 << power, batch)).collect();
        assert!(batches.iter().all(|share| *share > 0.5), "{batch}: {batches:?}");
    }
}

#[test]
fn waiting_methods_trade_latency_for_core_time() {
    let of = |wait, size| one(Stream { wait, submissions: 200, ..Stream::of(COPY, size) });
    let large = 16 << 20;
    let [poll, umwait, interrupt, sleep] =
        [Wait::Poll, Wait::Umwait, Wait::Interrupt, Wait::Sleep].map(|wait| of(wait, large));
    assert_eq!(poll.cycles.idle + poll.cycles.umwait, Picos::ZERO);
    assert!(share(umwait.cycles.umwait, &umwait.cycles) > 0.99);
    assert!(share(interrupt.cycles.idle, &interrupt.cycles) > 0.98);
    // A sixteenth is left for polling, and the wake-up time is subtracted.
    assert!((0.85..0.97).contains(&share(sleep.cycles.idle, &sleep.cycles)), "{:?}", sleep.cycles);
    assert!(sleep.mean_latency_ns() < 1.02 * poll.mean_latency_ns());
    for other in [umwait, interrupt] {
        assert!(other.mean_latency_ns() > poll.mean_latency_ns());
    }
    // The mover does not sleep for short operations.
    let short = of(Wait::Sleep, 4096);
    assert_eq!(short.cycles.idle, Picos::ZERO);
    assert!(near(short.mean_latency_ns(), of(Wait::Poll, 4096).mean_latency_ns(), 0.01));
}

fn moves(threshold: u64, route: Route, split: Split) -> ExecutedBy {
    ExecutedBy::Mover(MoverSettings { threshold, route, split })
}

fn four() -> Vec<Config> {
    vec![Config::single(WqMode::Dedicated, 32, 4); 4]
}

#[test]
fn a_mover_leaves_small_operations_to_the_core() {
    let by = moves(4096, Route::Local, Split::NONE);
    let sizes = Sizes::new(&[(2048, 1), (8192, 1)]).unwrap();
    let outcome = simulated(Stream { by, sizes, submissions: 1000, ..Stream::of(COPY, 1) }, &four(), 1);
    let large = (outcome.loads[0].bytes - 1000 * 2048) / (8192 - 2048);
    assert_eq!((outcome.loads[0].operations, outcome.descriptors), (1000, large));
    assert!(near(large as f64, 500.0, 0.1));
    let below = simulated(Stream { by, submissions: 100, ..Stream::of(COPY, 4095) }, &four(), 2);
    assert_eq!((below.loads[0].operations, below.descriptors), (200, 0));
}

#[test]
fn a_route_over_several_devices_uses_all_of_them() {
    for route in [Route::RoundRobin, Route::LeastLoaded, Route::Local, Route::PushPull] {
        let by = moves(0, route, Split::NONE);
        let copy = Stream { by, depth: 32, submissions: 2000, ..Stream::of(COPY, 65536) };
        let (one, four) = (simulated(copy, &four()[..1], 2), simulated(copy, &four(), 2));
        let rates = [&one, &four].map(|outcome| outcome.loads[0].gigabytes_per_second());
        assert!(rates[1] > 2.0 * rates[0], "{route:?}: {rates:?}");
    }
    let first = moves(0, Route::First, Split::NONE);
    let outcome = simulated(Stream { by: first, depth: 8, submissions: 100, ..Stream::of(COPY, 65536) }, &four(), 1);
    assert!(outcome.resources.iter().all(|resource| !resource.what.to_string().contains("dsa1")));
}

#[test]
fn a_long_copy_is_split_and_the_waiting_thread_takes_parts() {
    let took = |split| {
        let by = moves(4096, Route::RoundRobin, split);
        let outcome = simulated(Stream { by, submissions: 20, ..Stream::of(COPY, 16 << 20) }, &four(), 1);
        assert_eq!(outcome.loads[0].bytes, 20 * (16 << 20));
        (outcome.loads[0].mean_latency_ns(), outcome.loads[0].cycles)
    };
    let whole = took(Split::NONE).0;
    let (two, cycles) = took(Split { above: 1 << 20, ways: 2, hybrid: false });
    let (with_core, busy) = took(Split { above: 1 << 20, ways: 2, hybrid: true });
    assert!(near(two, whole / 2.0, 0.05), "{whole} {two}");
    // A core's parts are as long as a device's, which is three times as fast and idle meanwhile: splitting helps only a
    // slower device.
    assert!(with_core < 1.3 * two && with_core > two, "{two} {with_core}");
    assert!(share(cycles.busy, &cycles) < 0.05 && share(busy.busy, &busy) > 0.7, "{cycles:?} {busy:?}");
}

#[test]
fn a_mover_sleeps_until_its_own_forecast_and_is_hardly_late() {
    let by = moves(4096, Route::Local, Split::NONE);
    let of = |wait| one(Stream { by, wait, submissions: 50, ..Stream::of(COPY, 16 << 20) });
    let (poll, sleep) = (of(Wait::Poll), of(Wait::Sleep));
    assert!(share(sleep.cycles.idle, &sleep.cycles) > 0.8, "{:?}", sleep.cycles);
    assert!(sleep.mean_latency_ns() < 1.05 * poll.mean_latency_ns());
}

#[test]
fn a_mover_with_full_queues_copies_on_the_core() {
    let by = moves(0, Route::Local, Split::NONE);
    let copy = Stream { by, depth: 64, submissions: 300, ..Stream::of(COPY, 1 << 20) };
    let outcome = simulated(copy, &[Config::single(WqMode::Dedicated, 2, 1)], 1);
    assert_eq!(outcome.loads[0].operations, 300);
    assert!((1..300).contains(&outcome.descriptors), "{}", outcome.descriptors);
}

#[test]
fn a_program_can_try_poll_batch_and_wait_for_any() {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let look = machine.wait.look;
    let config = Config::single(WqMode::Dedicated, 2, 1);
    let mut world = World::new(machine, Preset::Spr.capabilities(), &[config]).unwrap();
    let (src, dst) = (world.places.add(BufferPlacement::on(0)), world.places.add(BufferPlacement::on(0)));
    let seen = Rc::new(RefCell::new(Vec::new()));
    let tell = seen.clone();
    let program = world.spawn(0, move |core| async move {
        let ExecutedBy::Device(queue) = ExecutedBy::DEDICATED else { return };
        let copy = |size| World::descriptor(COPY, src, dst, size);
        let long = core.try_submit(queue, copy(1 << 20)).await;
        let batch = core.try_submit_batch(queue, &[copy(65536); 4]).await;
        let full = core.try_submit(queue, copy(64)).await;
        tell.borrow_mut().push(full.is_none());
        let (Some(long), Some(batch)) = (long, batch) else { return };
        let before = core.now();
        let there = core.look(&long).await;
        tell.borrow_mut().push(!there && core.now() == before + look);
        let first = core.wait_any(&[&batch, &long], Wait::Poll).await;
        tell.borrow_mut().push(first == 1 && long.is_done());
        core.wait(&batch, Wait::Umwait).await;
        // Both entries are free again; a patient submission waits for its own.
        for _ in 0..10 {
            drop(core.submit(queue, copy(4096)).await);
        }
        tell.borrow_mut().push(core.cycles().polling > Picos::ZERO);
    });
    let took = world.run();
    assert_eq!(*seen.borrow(), [true; 4]);
    assert_eq!(world.descriptors(), 1 + 4 + 10);
    assert!(world.cycles(program).total() <= took);
}
