//! Sharing of a machine: engines, queues, pipes, links.

use telpher_abi::Opcode;
use telpher_device::{Config, Preset, WqMode};
use telpher_sim::machine::Node;
use telpher_sim::{BufferPlacement, ExecutedBy, Machine, Picos, Stream, Wait, World};

const THERE: BufferPlacement = BufferPlacement::on(1);

fn machine() -> Machine {
    Machine::built_in("spr-asplos").unwrap()
}

fn world(machine: Machine, mode: WqMode, size: u32, engines: u32) -> World {
    World::new(machine, Preset::Spr.capabilities(), &[Config::single(mode, size, engines)]).unwrap()
}

fn copies(size: u32, depth: u32, batch: u32, submissions: u64) -> Stream {
    Stream { depth, batch, submissions, ..Stream::of(Opcode::MemoryMove, size) }
}

/// Simulated gigabytes per second.
fn rate(world: &mut World, size: u32) -> f64 {
    let took = world.run();
    f64::from(size) * world.descriptors() as f64 / took.as_secs_f64() / 1e9
}

#[test]
fn every_batch_member_is_executed_and_each_batch_completes_once() {
    for engines in [1, 4] {
        let mut world = world(machine(), WqMode::Dedicated, 32, engines);
        world.add(copies(4096, 8, 32, 100));
        world.run();
        assert_eq!((world.descriptors(), world.timeline(0).completed), (3200, 100), "{engines} engines");
    }
}

#[test]
fn engines_share_the_rate_of_the_device() {
    let of = |engines| {
        let mut world = world(machine(), WqMode::Dedicated, 32, engines);
        world.add(copies(65536, 16, 1, 2000));
        let rate = rate(&mut world, 65536);
        let busy: Vec<Picos> =
            world.engines().filter(|engine| engine.data > Picos::ZERO).map(|engine| engine.data).collect();
        assert_eq!(busy.len(), engines as usize, "every engine had its part");
        rate
    };
    let (one, four) = (of(1), of(4));
    let most = machine().device.through as f64 / 1e9;
    assert!((one / four - 1.0).abs() < 0.02 && (0.98..1.0).contains(&(four / most)), "{one} and {four} GB/s of {most}");
}

#[test]
fn more_engines_help_short_transfers() {
    let of = |engines| {
        let mut world = world(machine(), WqMode::Dedicated, 32, engines);
        world.add(copies(512, 4, 32, 1000));
        rate(&mut world, 512)
    };
    assert!(of(4) > 1.2 * of(1), "{} against {} GB/s", of(4), of(1));
}

#[test]
fn a_full_shared_queue_refuses_and_loses_nothing() {
    let mut world = world(machine(), WqMode::Shared, 2, 1);
    for _ in 0..4 {
        world.add(Stream { by: ExecutedBy::SHARED, ..copies(65536, 8, 1, 200) });
    }
    world.run();
    let seen: Vec<_> = (0..4).map(|thread| world.timeline(thread)).map(|t| (t.completed, t.retries > 0)).collect();
    assert_eq!(seen, [(200, true); 4]);
    assert_eq!(world.descriptors(), 800);
}

#[test]
fn a_link_between_sockets_is_a_limit_like_any_other() {
    let mut machine = machine();
    machine.nodes.push(Node { socket: 1, ..machine.nodes[0].clone() });
    machine.link = Some(10_000_000_000);
    let mut world = world(machine, WqMode::Dedicated, 32, 4);
    world.add(Stream { src: THERE, ..copies(65536, 16, 1, 1000) });
    let rate = rate(&mut world, 65536);
    assert!((9.5..10.0).contains(&rate), "{rate} GB/s");
}

#[test]
fn the_parts_of_a_latency_add_up() {
    let mut world = world(machine(), WqMode::Dedicated, 32, 1);
    world.add(copies(4096, 1, 1, 1));
    let took = world.run();
    let timeline = world.timeline(0);
    // The thread sees the record one poll after the last event of the device; afterwards only the thread continues.
    assert_eq!(timeline.latency(), took);
    for (part, time) in [
        ("prepare", timeline.prepare),
        ("submit", timeline.submit),
        ("process", timeline.process),
        ("complete", timeline.complete),
        ("notice", timeline.notice),
    ] {
        assert!(time > Picos::ZERO, "{part} took no time");
    }
}

#[test]
fn a_program_behaves_like_a_thread() {
    let mut world = world(machine(), WqMode::Shared, 32, 1);
    let (src, dst) = (world.places.add(BufferPlacement::on(0)), world.places.add(BufferPlacement::on(0)));
    let barrier = world.barrier(2);
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    for late in [0, 700] {
        let (barrier, seen) = (barrier.clone(), seen.clone());
        world.spawn(0, move |core| async move {
            core.busy(Picos::from_nanos(late)).await;
            core.meet(&barrier).await;
            seen.borrow_mut().push(core.now());
            let ExecutedBy::Device(queue) = ExecutedBy::SHARED else { return };
            let copy = core.submit(queue, World::descriptor(Opcode::MemoryMove, src, dst, 4096)).await;
            assert!(!copy.is_done());
            core.wait(&copy, Wait::Poll).await;
            assert!(copy.is_done());
            core.software(Opcode::MemoryMove, 4096, BufferPlacement::on(0), BufferPlacement::on(0)).await;
            seen.borrow_mut().push(core.now());
        });
    }
    world.run();
    assert_eq!(world.descriptors(), 2);
    let seen = seen.borrow();
    assert_eq!(seen[..2], [Picos::from_nanos(700); 2], "both met when the later one came");
    assert!(seen[2] > Picos::from_nanos(1700) && seen[3] < Picos::from_nanos(3500), "{seen:?}");
}

#[test]
fn a_run_queue_serves_as_many_as_there_are_cores_in_order() {
    let mut world = world(machine(), WqMode::Shared, 32, 1);
    let cores = world.signal(2);
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    for number in 0..5 {
        let seen = seen.clone();
        world.spawn(0, move |core| async move {
            core.until(cores).await;
            core.busy(Picos::from_nanos(100)).await;
            seen.borrow_mut().push((number, core.now()));
            core.give(cores);
        });
    }
    world.run();
    let ends = [100, 100, 200, 200, 300].map(Picos::from_nanos);
    assert_eq!(*seen.borrow(), (0..5).zip(ends).collect::<Vec<_>>());
}

#[test]
fn core_reads_share_the_node_and_respect_the_limit_per_core() {
    let of = |cores| {
        let mut world = world(machine(), WqMode::Shared, 32, 1);
        for _ in 0..cores {
            world.spawn(0, |core| async move { core.traffic(1 << 20, 0, false, 12_250_000_000, 1).await });
        }
        world.run().as_nanos_f64() / ((1 << 20) as f64 / 12.25)
    };
    // The node reads 245 GB/s: twenty cores would saturate it. Twice as many take twice as long, plus the queueing
    // latency.
    for (cores, least, most) in [(1, 0.999, 1.001), (10, 0.999, 1.001), (40, 2.0, 2.15)] {
        assert!((least..most).contains(&of(cores)), "{cores} cores: {}", of(cores));
    }
}
