//! Plans of `telpher advise` for many workloads, loaded with accel-config on a machine with as many devices.

use std::path::Path;
use std::process::{Command, Output};
use telpher_abi::Opcode;
use telpher_device::{Config, Preset, WqMode};
use telpher_sim::Machine;
use telpher_sim::advise::{Objective, WorkRequest, advise};

/// Kernel versions, as `--abi` names them.
pub(crate) const FLAVOURS: [&str; 4] = ["5.15", "6.1", "6.6", "6.12"];

/// Fifty workloads of one or two loads, whose sizes, threads and placements lead to different queues, groups and
/// devices.
pub(crate) fn workloads() -> Vec<(&'static str, Vec<WorkRequest>, Objective)> {
    let mut all = Vec::new();
    for (profile, dst) in [("spr-asplos", 0), ("xeon-max-9468", 1)] {
        for (size, threads, in_flight) in [
            (16384, 1, 4),
            (65536, 2, 4),
            (65536, 4, 2),
            (65536, 3, 4),
            (65536, 6, 2),
            (65536, 8, 1),
            (1 << 20, 5, 2),
            (65536, 9, 2),
            (65536, 12, 2),
        ] {
            for objective in [Objective::Throughput, Objective::Cycles] {
                let demand = WorkRequest { threads, in_flight, dst, ..WorkRequest::of(Opcode::MemoryMove, size) };
                all.push((profile, vec![demand], objective));
            }
        }
        for (op, size, threads) in
            [(Opcode::CrcGeneration, 16384, 1), (Opcode::Fill, 65536, 2), (Opcode::Compare, 65536, 7)]
        {
            all.push((
                profile,
                vec![WorkRequest { threads, in_flight: 4, dst, ..WorkRequest::of(op, size) }],
                Objective::Throughput,
            ));
        }
        for threads in [1, 2, 3, 7] {
            let copy =
                |size, in_flight| WorkRequest { threads, in_flight, dst, ..WorkRequest::of(Opcode::MemoryMove, size) };
            all.push((profile, vec![copy(16384, 4), copy(1 << 20, 2)], Objective::Throughput));
        }
    }
    all
}

/// Returns the distinct configurations of every `nth` of these workloads, in order of first appearance.
pub(crate) fn plans(nth: usize) -> Vec<Vec<Config>> {
    let capabilities = Preset::default().capabilities();
    let workloads = workloads();
    assert_eq!(workloads.len(), 50);
    let workloads: Vec<_> = workloads.into_iter().step_by(nth).collect();
    let configs = |(profile, demands, objective): &(&str, Vec<WorkRequest>, Objective)| {
        let machine = Machine::built_in(profile).expect("a built-in profile");
        advise(&machine, capabilities, demands, *objective).expect("advice").configs
    };
    let mut plans: Vec<Vec<Config>> = Vec::new();
    for plan in on_two_threads(&workloads, |_, workload| configs(workload)) {
        if !plan.is_empty() && !plans.contains(&plan) {
            plans.push(plan);
        }
    }
    plans
}

/// Applies a function to each item on two threads; returns the results in the items' order.
pub(crate) fn on_two_threads<T: Sync, U: Send>(items: &[T], work: impl Fn(usize, &T) -> U + Sync) -> Vec<U> {
    std::thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            let work = &work;
            scope.spawn(move || {
                let mine = items.iter().enumerate().skip(half).step_by(2);
                mine.map(|(number, item)| (number, work(number, item))).collect::<Vec<_>>()
            })
        });
        let mut all: Vec<(usize, U)> =
            halves.into_iter().flat_map(|half| half.join().expect("workers do not panic")).collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, result)| result).collect()
    })
}

/// Returns whether a kernel supports the plan: 5.15 has no shared queues for users.
pub(crate) fn fits(plan: &[Config], flavour: &str) -> bool {
    let mut queues = plan.iter().flat_map(|device| &device.groups).flat_map(|group| &group.grouped_workqueues);
    flavour != "5.15" || queues.all(|queue| queue.mode == WqMode::Dedicated)
}

/// Runs `accel-config load-config -e` of a file, under a kernel, on unconfigured devices; prints the states of all
/// queues.
pub(crate) fn load(file: &Path, devices: usize, flavour: &str) -> Output {
    let presets = [(1, "spr-1"), (2, "spr-2"), (4, "spr-4"), (8, "xeon-max-8")];
    let (all, hardware) = presets.into_iter().find(|(all, _)| devices <= *all).expect("a machine with so many devices");
    let names = (0..all).map(|device| format!("dsa{device}")).collect::<Vec<_>>().join(" ");
    // Presets are already configured.
    let script = format!(
        "accel-config disable-device {names} >/dev/null 2>&1\naccel-config load-config -c '{}' -e >&2\n\
         cat /sys/bus/dsa/devices/wq*/state",
        file.display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    command.args([
        "run",
        "--view",
        "preload",
        "--hardware",
        hardware,
        "--abi",
        flavour,
        "--",
        "/bin/sh",
        "-ec",
        &script,
    ]);
    command.output().expect("the binary runs")
}

/// Loads a plan and checks that all its queues are enabled; returns what is wrong otherwise.
pub(crate) fn loads(plan: &[Config], file: &Path, flavour: &str) -> Result<(), String> {
    let text = serde_json::to_string_pretty(plan).expect("configurations are plain data");
    std::fs::write(file, &text).expect("our own folder");
    let queues =
        plan.iter().flat_map(|device| &device.groups).map(|group| group.grouped_workqueues.len()).sum::<usize>();
    // The plan omits unused devices before the last.
    let numbers = plan.iter().filter_map(|device| device.dev.strip_prefix("dsa")?.parse::<usize>().ok());
    let output = load(file, numbers.max().map_or(1, |last| last + 1), flavour);
    let (stderr, states) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    let enabled = states.lines().filter(|state| *state == "enabled").count();
    if output.status.success() && enabled == queues {
        return Ok(());
    }
    Err(format!("kernel {flavour}: {}, {enabled} of {queues} queues enabled\n{stderr}\n{text}", output.status))
}
