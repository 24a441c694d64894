//! Pages moved by the kernel, by its core or by a device: where a device pays, and the gain of a program.

use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{
    App, ExecutedBy, Machine, Migration, MigrationOffload, Picos, Promotion, QueueId, Scenario, Stream, Workload,
};

const KERNEL: QueueId = QueueId { device: 0, wq: 0, shared: false };

fn measured(app: App) -> impl Fn(&str) -> f64 {
    assert_eq!(ExecutedBy::DEDICATED, ExecutedBy::Device(KERNEL));
    let machine = Machine::built_in("gold-6430").unwrap();
    let scenario = Scenario::on(machine, Config::single(WqMode::Dedicated, 128, 1));
    let outcome = scenario.with("kernel", 1, Workload::App(app)).simulate().unwrap();
    let measures = outcome.loads[0].measures.clone();
    move |name| measures.iter().find(|measure| measure.name == name).unwrap().value
}

/// Microseconds for the copies of one call with `pages` pages.
fn copies_us(pages: u32, device: bool) -> f64 {
    let offload = device.then_some(MigrationOffload { above: 0, queue: KERNEL });
    let migration = Migration { together: pages, pages: 64 * u64::from(pages), offload, ..Migration::compacting() };
    measured(App::Migration(migration))("copies of a call")
}

#[test]
fn a_device_pays_beyond_thirty_two_pages() {
    for pages in [1, 8, 24, 31] {
        assert!(copies_us(pages, true) > copies_us(pages, false), "{pages} pages");
    }
    for pages in [33, 64, 512] {
        assert!(copies_us(pages, true) < copies_us(pages, false), "{pages} pages");
    }
}

#[test]
fn calls_of_few_pages_stay_with_the_core() {
    let of = |together| {
        let few = Migration { together, pages: 3200, ..Migration::compacting() };
        let [core, device] = [few, few.by(KERNEL)].map(|it| measured(App::Migration(it))("migration"));
        device / core
    };
    assert!((of(32) - 1.0).abs() < 1e-9, "{}", of(32));
    assert!(of(320) < 0.9, "{}", of(320));
}

#[test]
fn the_gain_is_limited_by_the_share_of_copying() {
    let core = measured(App::Migration(Migration::compacting()));
    let device = measured(App::Migration(Migration::compacting().by(KERNEL)));
    let (gain, most) = (core("migration") / device("migration"), 1.0 / (1.0 - core("copying") / 100.0));
    assert!(gain < most && gain > 0.8 * most, "{gain} of at most {most}");
    // Against Amdahl's formula.
    let copies = core("copies of a call") / device("copies of a call");
    let share = core("copying") / 100.0;
    let formula = 1.0 / (1.0 - share + share / copies);
    assert!((gain / formula - 1.0).abs() < 0.001, "{:.2} % from Amdahl", (gain / formula - 1.0) * 100.0);
}

#[test]
fn with_separate_engines_a_user_does_not_wait_for_kernel_batches() {
    let of = |groups: u32| {
        let group = |number: u32| {
            let mut of = Config::single(WqMode::Dedicated, 64, 1).groups.remove(0);
            of.dev = format!("group0.{number}");
            of.grouped_workqueues[0].dev = format!("wq0.{number}");
            of.grouped_engines[0].dev = format!("engine0.{number}");
            of
        };
        let mut config = Config::of_groups((0..2).map(group).collect());
        if groups == 1 {
            let other = config.groups.remove(1);
            config.groups[0].grouped_workqueues.extend(other.grouped_workqueues);
        }
        let user = ExecutedBy::Device(QueueId { wq: 1, ..KERNEL });
        let user = Stream { by: user, depth: 32, submissions: 20_000, ..Stream::of(Opcode::MemoryMove, 1024) };
        // More pages than the user's copies take, however slow they are.
        let kernel = Migration { pages: 1 << 17, besides: Picos::ZERO, ..Migration::compacting() }.by(KERNEL);
        let scenario = Scenario::on(Machine::built_in("gold-6430").unwrap(), config)
            .with("kernel", 1, Workload::App(App::Migration(kernel)))
            .with("user", 1, Workload::Stream(user));
        let outcome = scenario.simulate().unwrap();
        let user = &outcome.loads[1];
        assert!(user.elapsed < outcome.took, "the kernel works on");
        user.gigabytes_per_second()
    };
    let (shared, own) = (of(1), of(2));
    assert!(own > 1.5 * shared, "{own} against {shared} GB/s");
}

#[test]
fn faster_promotion_makes_a_program_faster() {
    let migration = Migration { pages: 1 << 15, to: 1, ..Migration::compacting() };
    let (work, slow_percent) = (Picos::from_nanos(100_000_000), 300);
    let of = |migration| measured(App::Promotion(Promotion { work, slow_percent, migration }));
    let never = of(Migration { pages: 0, ..migration });
    assert!((never("execution") / 300.0 - 1.0).abs() < 1e-3, "all of it in slow memory: {} ms", never("execution"));
    let (core, device) = (of(migration), of(migration.by(KERNEL)));
    assert!(device("execution") < core("execution"));
    for of in [core, device] {
        // Pages arrive evenly until `ends`: work proceeds at 1 / (1 + 2 (1 - t / ends)), and at 1 from then on.
        let ends = of("migration");
        let done = ends / 2.0 * 3.0_f64.ln();
        let formula =
            if done < 100.0 { ends + 100.0 - done } else { ends / 2.0 * (3.0 - (3.0_f64.ln() - 200.0 / ends).exp()) };
        let deviation = of("execution") / formula - 1.0;
        assert!(deviation.abs() < 0.02, "{:.2} % from {formula} ms", deviation * 100.0);
    }
}

#[test]
fn no_program_gains_more_than_the_speed_up_of_moving() {
    let ends = |migration: Migration, device: bool, work_ms: f64, slow_percent: u32| {
        let migration = if device { migration.by(KERNEL) } else { migration };
        let work = Picos::from_nanos_f64(work_ms * 1e6);
        let of = measured(App::Promotion(Promotion { work, slow_percent, migration }));
        (of("execution"), of("migration"))
    };
    let small = Migration { pages: 1 << 14, to: 1, ..Migration::compacting() };
    let (_, moved) = ends(small, false, 1.0, 100);
    let sooner = moved / ends(small, true, 1.0, 100).1;
    for slow in [150, 200, 300, 1000] {
        for part in [0.1, 0.4, 0.75, 1.5, 3.0] {
            let work = part * moved;
            let gain = ends(small, false, work, slow).0 / ends(small, true, work, slow).0;
            assert!(gain > 1.0 && gain <= sooner, "{slow} %, {work} ms: {gain} of {sooner}");
        }
    }
}
