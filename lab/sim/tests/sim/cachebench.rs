//! A cache under load: the statistics of its copies, and the effect of a device on the long ones.

use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{
    App, CacheBench, DtoVersion, ExecutedBy, LineLocation, Machine, Outcome, Scenario, Stream, Workload,
};

fn run(what: Workload) -> Outcome {
    let config = Config::single(WqMode::Shared, 128, 4);
    let mut scenario = Scenario::on(Machine::built_in("spr-asplos").unwrap(), config.clone()).with("it", 1, what);
    scenario.devices = vec![config; 4];
    scenario.simulate().unwrap()
}

fn measure(outcome: &Outcome, name: &str) -> f64 {
    outcome.loads[0].measures.iter().find(|measure| measure.name == name).unwrap().value
}

fn bench(app: CacheBench) -> Outcome {
    run(Workload::App(App::CacheBench(app)))
}

#[test]
fn long_copies_are_few_and_have_most_bytes() {
    let outcome = bench(CacheBench::default());
    let (calls, bytes) = (measure(&outcome, "copies by device"), measure(&outcome, "bytes in long copies"));
    assert!((calls - 4.8).abs() < 0.5 && (bytes - 96.4).abs() < 0.5, "{calls} % of calls, {bytes} % of bytes");
}

#[test]
fn a_core_without_a_device_copies_sequentially() {
    let (source, long) = (LineLocation::Memory, vec![(32768, 1)]);
    let app = CacheBench { cores: 1, threads: 1, queues: Vec::new(), source, long, ..CacheBench::default() };
    let outcome = bench(app);
    let alone = |bytes| {
        let copies = Stream { by: ExecutedBy::Cpu, ..Stream::of(Opcode::MemoryMove, bytes) };
        run(Workload::Stream(copies)).loads[0].mean_latency_ns()
    };
    let bytes = measure(&outcome, "bytes copied") * 1e3 / measure(&outcome, "copies");
    let long = (bytes - 64.0) / (32768.0 - 64.0);
    let expected = 1e3 / (100.0 + long * alone(32768) + (1.0 - long) * alone(64));
    let deviation = (measure(&outcome, "copies") / expected - 1.0) * 100.0;
    assert!(deviation.abs() < 1.0, "{deviation:.2} % from {expected} M/s");
}

#[test]
fn more_cores_wait_for_the_same_queues() {
    let gain = |cores: u32, devices: usize| {
        let app = CacheBench { cores, threads: cores, copies: 10_000, ..CacheBench::default() };
        let queues = app.queues[..devices].to_vec();
        let by_core = bench(CacheBench { queues: Vec::new(), ..app.clone() });
        let by_device = bench(CacheBench { queues, ..app });
        let tail = |outcome: &Outcome| measure(outcome, "latency, 99.999 %");
        // With sixteen threads before four devices the longest wait includes others' copies.
        assert!(devices < 4 || cores > 8 || tail(&by_device) < tail(&by_core), "{cores} cores");
        measure(&by_device, "copies") / measure(&by_core, "copies")
    };
    let four = [8, 16].map(|cores| gain(cores, 4));
    assert!(four[0] > four[1] && four[0] > 1.0, "{four:?}");
    assert!(gain(16, 1) < 1.0, "eight cores saturate one device");
}

#[test]
fn a_thread_that_yields_its_core_gets_it_back() {
    let copies = 2000;
    let app = CacheBench { cores: 2, threads: 6, copies, switch_ns: Some(1000.0), ..CacheBench::default() };
    let outcome = bench(app);
    let seconds = outcome.took.as_secs_f64();
    let done = measure(&outcome, "copies") * 1e6 * seconds;
    assert!((done - 6.0 * copies as f64).abs() < 1.0, "{done} copies were done");
}

/// Where the paper's version retries a full queue, DTO of 2025 leaves the copy to the core at once.
#[test]
fn a_version_without_retries_submits_fewer_copies_to_a_full_queue() {
    let submitted = |version: DtoVersion| {
        let app = CacheBench {
            cores: 16,
            threads: 16,
            copies: 2000,
            queues: CacheBench::default().queues[..1].to_vec(),
            long_of_10_000: 10_000,
            retries: version.retries(),
            ..CacheBench::default()
        };
        let config = Config::single(WqMode::Shared, 4, 4);
        let app = Workload::App(App::CacheBench(app));
        let machine = Machine::built_in("spr-asplos").unwrap();
        Scenario::on(machine, config).with("it", 1, app).simulate().unwrap().descriptors
    };
    let (paper, today) = (submitted(DtoVersion::V2023), submitted(DtoVersion::V2025));
    assert!(today < paper && paper < 32_000, "{today} and {paper} of 32,000 copies");
}

/// With bounds of one and two rounds, as without `DTO_WAIT_METHOD`, DTO leaves most of a copy to the core.
#[test]
fn tuning_moves_work_from_a_busy_device_to_the_cores() {
    let long = vec![(200_000, 1)];
    let of = |tuning| {
        let app = CacheBench {
            cores: 4,
            threads: 4,
            copies: 20_000,
            long_of_10_000: 10_000,
            long: long.clone(),
            tuning,
            ..CacheBench::default()
        };
        bench(app)
    };
    let fixed = of(None);
    let tuned = of(DtoVersion::V2025.tuning());
    assert!((fixed.descriptors, tuned.descriptors) == (80_000, 80_000), "every copy needs a descriptor");
    let [fixed, tuned] = [&fixed, &tuned].map(|outcome| measure(outcome, "latency, median"));
    assert!(tuned < fixed, "the core's part shortens a copy: {tuned} us, without {fixed} us");
}
