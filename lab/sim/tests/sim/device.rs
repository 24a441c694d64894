//! The device's own mechanisms: prefetched lists, partial lines, page faults, fences, drains.

use telpher_abi::{Flags, Opcode};
use telpher_device::{Config, Preset, WqConfig, WqMode};
use telpher_sim::{
    BufferPlacement, ExecutedBy, Library, Machine, Picos, QueueId, Scenario, Stream, Wait, Workload, World,
};

const LANE: QueueId = QueueId { device: 0, wq: 0, shared: false };

fn machine() -> Machine {
    Machine::built_in("spr-asplos").unwrap()
}

fn world(engines: u32) -> World {
    let mut config = Config::single(WqMode::Dedicated, 128, engines);
    config.groups[0].grouped_workqueues[0].block_on_fault = 1;
    World::new(machine(), Preset::Spr.capabilities(), &[config]).unwrap()
}

/// Simulated nanoseconds from one descriptor to the next.
fn period(engines: u32, stream: Stream) -> f64 {
    let mut world = world(engines);
    world.add(stream);
    let took = world.run();
    took.as_nanos_f64() / world.descriptors() as f64
}

#[test]
fn a_list_is_fetched_during_the_batch_before() {
    // Limited by the front end alone: with a list fetch between two batches it would be a 16th of the fetch more, 16
    // ns.
    let machine = machine();
    let front = machine.device.ops.of(Opcode::MemoryMove).front.as_nanos_f64();
    let fetch = machine.device.list_fetch.as_nanos_f64() / 16.0;
    let stream = Stream { depth: 16, batch: 16, submissions: 400, ..Stream::of(Opcode::MemoryMove, 64) };
    let period = period(1, stream);
    assert!((period / front - 1.0).abs() < 0.03 && period < front + fetch / 4.0, "{period} ns, front end {front} ns");
}

#[test]
fn a_batch_goes_to_the_idle_engine() {
    let mut world = world(4);
    world.add(Stream { depth: 4, batch: 32, submissions: 200, ..Stream::of(Opcode::MemoryMove, 16384) });
    world.run();
    let busy: Vec<f64> = world.engines().map(|engine| engine.data.as_nanos_f64()).collect();
    let (least, most) = (busy.iter().copied().fold(f64::MAX, f64::min), busy.iter().copied().fold(0.0, f64::max));
    assert!(least > 0.8 * most, "{busy:?}");
}

#[test]
fn partial_lines_block_the_whole_device() {
    // Measured with one engine (LightDSA): 0.73 us a descriptor, 0.37 us where the destination is aligned to 32 bytes.
    let of = |engines, skew| {
        let dst = BufferPlacement { skew, ..BufferPlacement::on(0) };
        period(engines, Stream { dst, depth: 64, submissions: 2000, ..Stream::of(Opcode::MemoryMove, 512) })
    };
    for (skew, measured) in [(8, 730.0), (16, 730.0), (32, 370.0)] {
        let deviation = of(1, skew) / measured - 1.0;
        assert!(deviation.abs() < 0.03, "{skew}: {:.1} %", deviation * 100.0);
    }
    // Four engines hide the time between two lines, and nothing else.
    let lines = 2.0 * machine().device.partial_line.as_nanos_f64();
    assert!((of(4, 8) / lines - 1.0).abs() < 0.03, "{} ns", of(4, 8));
    assert!(of(1, 64) < 200.0 && of(1, 0) < 200.0);
    let dst = BufferPlacement { skew: 8, ..BufferPlacement::on(0) };
    let cached = Stream { dst, cache_control: true, depth: 64, ..Stream::of(Opcode::MemoryMove, 512) };
    assert!(period(1, cached) < 200.0, "the cache merges lines");
}

#[test]
fn only_the_last_partial_line_of_a_long_transfer_costs_time() {
    let of = |skew| {
        let dst = BufferPlacement { skew, ..BufferPlacement::on(0) };
        period(4, Stream { dst, depth: 64, submissions: 500, ..Stream::of(Opcode::MemoryMove, 131_072) })
    };
    let more = of(5) - of(0);
    let partial = machine().device.partial_line.as_nanos_f64();
    assert!((more / partial - 1.0).abs() < 0.15, "{more} ns more, a line {partial} ns");
}

#[test]
fn alignment_does_not_matter_for_operations_that_only_read() {
    for op in [Opcode::Compare, Opcode::ComparePattern] {
        let of = |skew| {
            let place = BufferPlacement { skew, ..BufferPlacement::on(0) };
            let stream = Stream { src: place, dst: place, depth: 64, submissions: 500, ..Stream::of(op, 4096) };
            period(1, stream)
        };
        assert!((of(5) / of(0) - 1.0).abs() < 0.01, "{op:?}");
    }
}

/// Copies to missing pages, one descriptor after the other, with Block On Fault, beside other copies.
fn with_faults(engines: u32) -> (Picos, Picos) {
    let mut world = world(engines);
    let (src, new) = (
        world.places.add(BufferPlacement::on(0)),
        world.places.add(BufferPlacement { present: false, ..BufferPlacement::on(0) }),
    );
    let done = std::rc::Rc::new(std::cell::Cell::new((Picos::ZERO, Picos::ZERO)));
    let seen = done.clone();
    world.spawn(0, move |core| async move {
        let copy = |dst| World::descriptor(Opcode::MemoryMove, src, dst, 65536);
        let faults = copy(new);
        let faults = faults.with_flags(faults.flags().union(Flags::BLOCK_ON_FAULT));
        let faults = core.submit(LANE, faults).await;
        let beside = core.submit(LANE, copy(src + (1 << 30))).await;
        core.wait(&beside, Wait::Poll).await;
        let beside = core.now();
        core.wait(&faults, Wait::Poll).await;
        seen.set((core.now(), beside));
    });
    world.run();
    done.get()
}

#[test]
fn a_page_request_blocks_its_engine_only() {
    let pages = machine().translation.page_request * 16;
    let (faults, beside) = with_faults(1);
    assert!(faults > pages && faults < pages + Picos::from_nanos(10_000), "{faults:?} for sixteen pages");
    assert!(beside > pages, "the descriptor behind it waits: {beside:?}");
    let (faults, beside) = with_faults(2);
    assert!(faults > pages && beside < Picos::from_nanos(10_000), "another engine goes on: {beside:?}");
}

/// When the two copies of a batch, and one behind it, are done; the second one has these flags.
fn two(flags: Flags) -> Picos {
    let mut world = world(1);
    let (src, dst) = (world.places.add(BufferPlacement::on(0)), world.places.add(BufferPlacement::on(0)));
    let copy = World::descriptor(Opcode::MemoryMove, src, dst, 64);
    let list = world.places.add_list(BufferPlacement::on(0), vec![copy, copy.with_flags(copy.flags().union(flags))]);
    world.spawn(0, move |core| async move {
        let batch = core.submit(LANE, telpher_abi::Descriptor::batch(list, 2)).await;
        core.wait(&batch, Wait::Poll).await;
    });
    world.run()
}

#[test]
fn a_fence_waits_for_the_members_before_it() {
    let tail = machine().device.ops.of(Opcode::MemoryMove).tail(64);
    let more = two(Flags::FENCE).since(two(Flags::empty()));
    assert!(more > Picos(tail.0 * 9 / 10) && more < Picos(tail.0 * 11 / 10), "{more:?} more, a tail is {tail:?}");
}

#[test]
fn a_drain_waits_for_everything_before_it() {
    for engines in [1, 4] {
        let mut world = world(engines);
        let (src, dst) = (world.places.add(BufferPlacement::on(0)), world.places.add(BufferPlacement::on(0)));
        world.spawn(0, move |core| async move {
            let copy = core.submit(LANE, World::descriptor(Opcode::MemoryMove, src, dst, 1 << 20)).await;
            let drain = core.submit(LANE, telpher_abi::Descriptor::drain()).await;
            core.wait(&drain, Wait::Poll).await;
            assert!(copy.is_done(), "the copy came first");
        });
        let took = world.run();
        assert!(took > Picos::from_nanos(33_000), "{took:?}");
        assert_eq!(world.descriptors(), 2, "{engines} engines");
    }
}

#[test]
fn every_operation_takes_time() {
    for op in Opcode::ALL.iter().copied().filter(|op| !matches!(op, Opcode::Batch | Opcode::TranslationFetch)) {
        if !Preset::Spr.capabilities().op_cap.contains(op) {
            continue;
        }
        let mut world = world(1);
        world.add(Stream { by: ExecutedBy::DEDICATED, submissions: 10, ..Stream::of(op, 4096) });
        world.run();
        assert_eq!(world.timeline(0).completed, 10, "{op:?}");
        let each = world.timeline(0).latency().as_nanos_f64() / 10.0;
        assert!((200.0..3000.0).contains(&each), "{op:?}: {each} ns");
    }
}

/// Simulated microseconds a page of copies of 32 KiB to untouched pages.
fn a_page(block_on_fault: bool, depth: u32, batch: u32) -> f64 {
    let mut world = world(4);
    let dst = BufferPlacement { present: false, ..BufferPlacement::on(0) };
    let submissions = 64;
    let copies = Stream { dst, block_on_fault, depth, batch, submissions, ..Stream::of(Opcode::MemoryMove, 32768) };
    let thread = world.add(copies);
    let took = world.run();
    let timeline = world.timeline(thread);
    assert_eq!((timeline.completed, world.refused()), (submissions, 0));
    if (depth, batch) == (1, 1) {
        let rest = took.as_nanos_f64() - timeline.latency().as_nanos_f64();
        assert!(rest.abs() < 100.0 * submissions as f64, "the parts add up: {rest} ns are missing");
        let share = timeline.translate.as_nanos_f64() / took.as_nanos_f64();
        assert!(share > 0.8, "nearly all of the time is for pages: {share}");
    }
    took.as_nanos_f64() / 1000.0 / (submissions * u64::from(batch) * 8) as f64
}

#[test]
fn a_missing_page_costs_the_measured_time() {
    // Measured (LightDSA): 13.8 us by page request, 4.1 us reported, touched and resubmitted, 1.2 us for the touch
    // alone.
    for (route, simulated, measured) in [
        ("asked for", a_page(true, 1, 1), 13.8),
        ("asked for, many at once", a_page(true, 16, 1), 13.8),
        ("reported", a_page(false, 1, 1), 4.1),
    ] {
        let deviation = simulated / measured - 1.0;
        assert!(deviation.abs() < 0.1, "{route}: {simulated} us, {:.1} %", deviation * 100.0);
    }
    let touch = machine().translation.touch.as_nanos_f64() / 1000.0;
    let many = a_page(false, 16, 1);
    assert!(many >= touch && many < a_page(false, 1, 1), "{many} us: a core touches one page after the other");
    assert!(a_page(false, 4, 8) >= touch, "the same for batch members");
}

#[test]
fn present_pages_cost_nothing() {
    let of = |block_on_fault| period(1, Stream { block_on_fault, ..Stream::of(Opcode::MemoryMove, 32768) });
    assert_eq!(of(true), of(false));
}

#[test]
fn retries_at_a_full_queue_are_counted_and_not_simulated() {
    let mut world = World::new(machine(), Preset::Spr.capabilities(), &[Config::single(WqMode::Shared, 8, 1)]).unwrap();
    let queue = QueueId { shared: true, ..LANE };
    let stream =
        Stream { by: ExecutedBy::Device(queue), depth: 4, submissions: 8, ..Stream::of(Opcode::MemoryMove, 1 << 30) };
    let threads: Vec<usize> = (0..16).map(|_| world.add(stream)).collect();
    let took = world.run();
    assert_eq!(world.descriptors(), 16 * 8);
    // Of 64 submitters, 8 have an entry and each engine holds one; the others' cores only retry.
    let enqcmd = machine().submit.enqcmd;
    for thread in threads {
        let timeline = world.timeline(thread);
        let asked = enqcmd * (timeline.retries + timeline.completed);
        assert!(timeline.retries > took.0 / enqcmd.0 / 4, "{} attempts in {took:?}", timeline.retries);
        assert_eq!(asked, timeline.submitting, "an attempt is an instruction");
        assert!(timeline.submitting < took);
    }
    assert!(world.events() < 128 * 100, "{} events", world.events());
}

#[test]
fn every_operation_of_the_device_is_executed_at_legal_sizes() {
    let capabilities = Preset::Spr.capabilities();
    let config = Config::single(WqMode::Dedicated, 32, 1);
    let ops = Opcode::ALL.iter().filter(|op| capabilities.op_cap.contains(**op) && **op != Opcode::Batch);
    for op in ops {
        let block = match op {
            Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate => 520,
            _ => 512,
        };
        for (size, batch) in [(block, 1), (8 * block, 1), (8 * block, 4)] {
            if *op == Opcode::Drain && batch > 1 {
                continue;
            }
            let stream = Stream { batch, submissions: 5, ..Stream::of(*op, size) };
            let load = Workload::Stream(stream);
            let outcome = Scenario::on(machine(), config.clone()).with("one", 1, load).simulate().unwrap();
            assert_eq!((outcome.refused, outcome.descriptors), (0, 5 * u64::from(batch)), "{op:?} of {size}, {batch}");
            let moves = !matches!(op, Opcode::Nop | Opcode::Drain);
            let bytes = if moves { 5 * u64::from(batch) * u64::from(size) } else { 0 };
            assert_eq!(outcome.loads[0].bytes, bytes, "{op:?} of {size}, {batch}");
        }
    }
}

#[test]
fn a_refused_descriptor_is_counted() {
    let mut config = Config::single(WqMode::Dedicated, 32, 1);
    config.groups[0].grouped_workqueues[0].block_on_fault = 0;
    let mut world = World::new(machine(), Preset::Spr.capabilities(), &[config]).unwrap();
    let asked = Stream { block_on_fault: true, submissions: 7, ..Stream::of(Opcode::MemoryMove, 4096) };
    world.add(asked);
    world.run();
    assert_eq!((world.refused(), world.descriptors()), (7, 0), "the queue does not allow Block On Fault");
}

#[test]
fn fewer_read_buffers_reduce_bandwidth_and_other_groups_get_the_rest() {
    let rate = |allowed: [u32; 2]| -> Vec<f64> {
        let mut config = Config::of_groups((0..2).map(group).collect());
        for (group, allowed) in config.groups.iter_mut().zip(allowed) {
            group.read_buffers_allowed = Some(allowed);
        }
        let mut world = World::new(machine(), Preset::Spr.capabilities(), &[config]).unwrap();
        let of = |wq| ExecutedBy::Device(QueueId { wq, ..LANE });
        let copies = |wq| Stream { by: of(wq), depth: 16, submissions: 400, ..Stream::of(Opcode::MemoryMove, 65536) };
        let threads = [0, 1].map(|wq| world.add(copies(wq)));
        world.run();
        let until = |thread: usize| world.timeline(thread).until.as_nanos_f64();
        threads.map(|thread| 400.0 * 65536.0 / until(thread)).to_vec()
    };
    let rates: Vec<Vec<f64>> = [4, 8, 16, 32, 96].map(|allowed| rate([allowed, 96])).to_vec();
    for pair in rates.windows(2) {
        assert!(pair[1][0] >= pair[0][0] * 0.999, "{rates:?}");
        assert!(pair[1][1] <= pair[0][1] * 1.001, "the other group gets the rest: {rates:?}");
    }
    // Little's law: bytes in flight over latency, of which 200 ns are memory and the path to it.
    let (machine, few) = (machine(), &rates[0]);
    let latency = (machine.nodes[0].latency + machine.device.path).as_nanos_f64();
    let formula = machine.device.in_flight as f64 * 4.0 / 96.0 / latency;
    assert!((few[0] / formula - 1.0).abs() < 0.1, "{} GB/s, by the formula {formula}", few[0]);
    assert!((rates[4][0] / rates[4][1] - 1.0).abs() < 0.02, "with all buffers: halves");
}

/// A group with an engine and a queue of its own.
fn group(number: u32) -> telpher_device::GroupConfig {
    let one = Config::single(WqMode::Dedicated, 32, 1).groups.remove(0);
    let mut group = telpher_device::GroupConfig { dev: format!("group0.{number}"), ..one };
    group.grouped_workqueues[0].dev = format!("wq0.{number}");
    group.grouped_engines[0].dev = format!("engine0.{number}");
    group
}

#[test]
fn a_queue_of_lower_priority_is_served_less_often_but_not_starved() {
    let mut config = Config::single(WqMode::Dedicated, 64, 1);
    let mut second = config.groups[0].grouped_workqueues[0].clone();
    second.dev = "wq0.1".into();
    config.groups[0].grouped_workqueues.push(second);
    for (wq, priority) in config.groups[0].grouped_workqueues.iter_mut().zip([12, 4]) {
        wq.priority = priority;
    }
    let mut world = World::new(machine(), Preset::Spr.capabilities(), &[config]).unwrap();
    for wq in 0..2 {
        let by = ExecutedBy::Device(QueueId { wq, ..LANE });
        world.add(Stream { by, depth: 64, submissions: 2000, ..Stream::of(Opcode::MemoryMove, 4096) });
    }
    world.run();
    let until = |thread: usize| world.timeline(thread).until.as_nanos_f64();
    // By the formula: the first queue has 12 of 16 turns until it is done; by then the other has done a third of its
    // work.
    let share = until(0) / until(1);
    assert!((share / (4.0 / 6.0) - 1.0).abs() < 0.05, "{share}");
}

#[test]
fn page_walks_are_nearly_hidden_and_huge_pages_need_none() {
    let of = |op, page, footprint| {
        let place = BufferPlacement { page, footprint, ..BufferPlacement::on(0) };
        period(4, Stream { src: place, dst: place, depth: 32, submissions: 500, ..Stream::of(op, 32768) })
    };
    // Measured (LightDSA): operations that read lose 0.8 %, in pages of 4 KiB against one of 1 GiB; a fill loses
    // nothing.
    let ops = [(Opcode::MemoryMove, 0.8), (Opcode::Fill, 0.0), (Opcode::Compare, 0.8), (Opcode::ComparePattern, 0.8)];
    for (op, measured) in ops {
        let known = of(op, 1 << 30, 1 << 30);
        let loss = (of(op, 4096, 1 << 30) / known - 1.0) * 100.0;
        assert!((loss - measured).abs() < 0.05, "{op:?}: {loss:.2} %, measured {measured} %");
        assert!((of(op, 2 << 20, 1 << 30) / known - 1.0).abs() < 1e-6, "{op:?}");
        assert!((of(op, 4096, 0) / known - 1.0).abs() < 1e-6, "{op:?}: few pages are known");
    }
}

#[test]
fn translations_are_counted_by_kind() {
    let of = |op, size, footprint| {
        let mut world = world(4);
        let place = BufferPlacement { footprint, ..BufferPlacement::on(0) };
        world.add(Stream { src: place, dst: place, submissions: 640, ..Stream::of(op, size) });
        world.run();
        let seen = world.translations();
        (seen.remembered, seen.requested, seen.walked)
    };
    // Each page holds 64 of the 640 lines; each of the 3 pages is entered once.
    assert_eq!(of(Opcode::MemoryMove, 64, 0), (2 * 630, 20, 0));
    assert_eq!(of(Opcode::MemoryMove, 12288, 1 << 30), (0, 2 * 3 * 640, 2 * 3 * 640));
    assert_eq!(of(Opcode::ComparePattern, 4096, 1 << 30), (0, 640, 640));
    assert_eq!(of(Opcode::Nop, 64, 0), (0, 0, 0));
}

#[test]
fn lists_larger_than_the_first_level_cache_come_from_the_second() {
    let of = |depth| {
        let mut world = world(4);
        let library = Library::Lean;
        world.add(Stream { depth, batch: 32, submissions: 200, library, ..Stream::of(Opcode::Fill, 64) });
        world.run();
        world.timeline(0).prepare.as_nanos_f64() / f64::from(200 * 32)
    };
    let machine = machine();
    let (member, line) = (machine.library.lean.prepare_member, machine.cache.l2_latency);
    assert!((of(20) - member.as_nanos_f64()).abs() < 0.1 && (of(80) - (member + line).as_nanos_f64()).abs() < 0.1);
}

#[test]
fn readback_takes_longer() {
    let of = |op, readback| period(1, Stream { readback, ..Stream::of(op, 4096) });
    let more = machine().device.readback.as_nanos_f64();
    assert!((of(Opcode::MemoryMove, true) - of(Opcode::MemoryMove, false) - more).abs() < 1.0);
    assert!((of(Opcode::Fill, true) - of(Opcode::Fill, false) - more).abs() < 1.0);
    // An operation that writes nothing has nothing to read back.
    assert!((of(Opcode::Compare, true) - of(Opcode::Compare, false)).abs() < 1e-9);
}

#[test]
fn one_of_four_engines_has_a_quarter_of_the_bytes() {
    for size in [1 << 20, 2 << 20, 8 << 20] {
        let mut world = world(4);
        let (src, dst) = (world.places.add(BufferPlacement::on(0)), world.places.add(BufferPlacement::on(0)));
        world.spawn(0, move |core| async move {
            let copy = |size| World::descriptor(Opcode::MemoryMove, src, dst, size);
            let long = core.submit(LANE, copy(size)).await;
            let mut others = Vec::new();
            while !long.is_done() {
                others.push(core.submit(LANE, copy(16384)).await);
            }
            let beside = others.iter().filter(|other| other.is_done()).count() as f64 * 16384.0;
            let share = f64::from(size) / (f64::from(size) + beside);
            // Measured (LightDSA): 23.3, 23.4, 24.6 %.
            assert!((0.225..0.26).contains(&share), "{size} B: {share}");
        });
        world.run();
    }
}

/// GB/s of copies by `threads` threads, each with a queue of its own.
fn rate(engines: u32, threads: u32, copies: Stream) -> f64 {
    let mut config = Config::single(WqMode::Dedicated, 128 / threads, engines);
    let wqs = &mut config.groups[0].grouped_workqueues;
    *wqs = (0..threads).map(|number| WqConfig::new(number, WqMode::Dedicated, 128 / threads)).collect();
    let mut world = World::new(machine(), Preset::Spr.capabilities(), &[config]).unwrap();
    for wq in 0..threads as usize {
        world.add(Stream { by: ExecutedBy::Device(QueueId { wq, ..LANE }), ..copies });
    }
    let took = world.run();
    world.descriptors() as f64 * f64::from(copies.size) / took.as_nanos_f64()
}

#[test]
fn one_more_engine_costs_nothing_with_enough_work() {
    for (batch, threads, depth) in [(1, 1, 16), (1, 2, 16), (1, 4, 16), (8, 1, 16), (8, 2, 16), (32, 1, 16), (32, 4, 8)]
    {
        for size in [256, 512, 1024, 4096, 16384, 65536] {
            let submissions = u64::from((2000 / batch / threads).max(6 * depth));
            let copies = Stream { depth, batch, submissions, ..Stream::of(Opcode::MemoryMove, size) };
            let rates = [1, 2, 3, 4].map(|engines| rate(engines, threads, copies));
            let lost = rates.windows(2).any(|pair| pair[1] < pair[0] * 0.97);
            assert!(!lost, "{size} B, batches of {batch}, {threads} threads, {depth} deep: {rates:?} GB/s");
        }
    }
}

#[test]
fn two_transfers_on_two_engines_do_not_end_together() {
    // With equal sharing from the first byte they would end together, and the device would be idle for the time of a
    // tail: a quarter less.
    for (size, depth, threads) in [(4096, 4, 2), (4096, 1, 8), (16384, 1, 2), (65536, 2, 1), (65536, 1, 2)] {
        let copies = Stream { depth, submissions: 300, ..Stream::of(Opcode::MemoryMove, size) };
        let (one, two) = (rate(1, threads, copies), rate(2, threads, copies));
        assert!(two > one * 0.98, "{size} B, {depth} deep, {threads} threads: {one} GB/s, with two {two}");
    }
}
