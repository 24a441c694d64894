//! Advice is a configuration that devices accept, is based on simulations, and changes with the objective.

use telpher_abi::Opcode;
use telpher_device::{Preset, WqMode};
use telpher_sim::advise::{Advice, Objective, WorkRequest, advise};
use telpher_sim::{Machine, Scenario, Stream, Workload};

fn of(demands: &[WorkRequest], objective: Objective) -> Advice {
    let machine = Machine::built_in("spr-asplos").unwrap();
    advise(&machine, Preset::Spr.capabilities(), demands, objective).unwrap()
}

fn copies(size: u32) -> WorkRequest {
    WorkRequest::of(Opcode::MemoryMove, size)
}

fn chosen<'a>(advice: &'a Advice, what: &str) -> &'a str {
    &advice.choices.iter().find(|choice| choice.what == what).unwrap_or_else(|| panic!("{what}: {advice:?}")).chosen
}

#[test]
fn advised_configurations_are_accepted_and_no_other_choice_is_better() {
    for objective in [Objective::Throughput, Objective::PerCore, Objective::Latency, Objective::Cycles] {
        for size in [256, 65536] {
            let advice = of(&[WorkRequest { threads: 2, ..copies(size) }], objective);
            let machine = Machine::built_in("spr-asplos").unwrap();
            let mut scenario = Scenario::on(machine, telpher_device::Config::single(WqMode::Dedicated, 16, 1));
            scenario.devices.clone_from(&advice.configs);
            scenario
                .with(
                    "nothing",
                    1,
                    Workload::Stream(Stream {
                        submissions: 1,
                        by: telpher_sim::ExecutedBy::Cpu,
                        ..Stream::of(Opcode::MemoryMove, 64)
                    }),
                )
                .simulate()
                .unwrap_or_else(|error| panic!("{objective:?} of {size}: {error}: {:?}", advice.configs));
            for choice in &advice.choices {
                let (_, score) = choice.runner_up.clone().unwrap_or_default();
                assert!(score <= 1.021, "{objective:?} of {size}: {choice:?}");
                assert!(!choice.guideline.is_empty());
            }
            assert!(advice.gain >= 0.99, "{objective:?} of {size}: cores alone are better: {}", advice.gain);
        }
    }
}

#[test]
fn small_synchronous_copies_stay_on_the_core() {
    let sync = |size| WorkRequest { in_flight: 1, ..copies(size) };
    let small = of(&[sync(256)], Objective::Latency);
    assert_eq!((chosen(&small, "executed by"), small.configs.len()), ("the core", 0));
    let large = of(&[sync(1 << 20)], Objective::Latency);
    assert_eq!(chosen(&large, "executed by"), "the device");
    let threshold = large.works[0].threshold.unwrap();
    assert!((1024..=65536).contains(&threshold), "{threshold}");
}

#[test]
fn short_copies_get_batches_and_long_copies_more_devices() {
    let short = of(&[copies(512)], Objective::Throughput);
    assert!(chosen(&short, "in flight, and batches").contains("batch"), "{short:?}");
    let long = of(&[WorkRequest { threads: 4, ..copies(1 << 20) }], Objective::Throughput);
    assert_eq!(chosen(&long, "devices"), "dsa0, dsa1, dsa2, dsa3");
    assert_eq!(long.configs.len(), 4);
    // UMWAIT costs a little latency, and no throughput.
    assert_eq!(chosen(&of(&[copies(65536)], Objective::Cycles), "waiting"), "umwait");
    assert_eq!(chosen(&of(&[WorkRequest { in_flight: 1, ..copies(65536) }], Objective::Latency), "waiting"), "poll");
}

#[test]
fn threads_that_outnumber_the_queues_share_a_queue() {
    let many = of(&[WorkRequest { threads: 40, ..copies(4096) }], Objective::Throughput);
    assert!(chosen(&many, "queues").starts_with("shared"), "{many:?}");
    let few = of(&[WorkRequest { threads: 2, ..copies(1024) }], Objective::Throughput);
    assert!(chosen(&few, "queues").starts_with("dedicated"), "{few:?}");
}

#[test]
fn too_many_threads_are_refused_and_long_operations_are_not() {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let ask = |size, threads| {
        let demand = WorkRequest { threads, ..copies(size) };
        advise(&machine, Preset::Spr.capabilities(), &[demand], Objective::Throughput)
    };
    let message = ask(1 << 31, 1000).unwrap_err().to_string();
    assert!(message.contains("1000 threads") && message.contains("at most 128 are simulated"), "{message}");
    assert!(ask(1 << 31, 40).unwrap().gain > 1.0);
}

#[test]
fn pieces_of_work_are_separate_and_read_soon_means_the_cache() {
    let text = r#"
[[work]]
name = "packets"
op = "memory-move"
size = 1500
rate = 200_000
read_soon = true
[[work]]
name = "pages"
op = "memory-move"
size = "2m"
in_flight = 4
"#;
    let machine = Machine::built_in("spr-asplos").unwrap();
    let demands = WorkRequest::parse("my.toml", text, &machine).unwrap();
    let advice = of(&demands, Objective::Latency);
    assert_eq!(advice.works.len(), 2);
    assert!(advice.choices.iter().any(|choice| choice.what == "pages: waiting"), "{:?}", advice.choices);
    for (work, way) in demands.iter().zip(&advice.works) {
        assert!(!way.way.device || way.way.cache == work.read_soon);
    }
    let message = WorkRequest::parse("my.toml", &text.replace("1500", "\"15q\""), &machine).unwrap_err().to_string();
    assert!(message.contains("my.toml, line 5: work[0].size is 15q"), "{message}");
    let message =
        WorkRequest::parse("my.toml", "[[work]]\nop = \"drain\"\nsize = 64", &machine).unwrap_err().to_string();
    assert!(message.contains("my.toml, line 2: work[0].op is drain, which does nothing to bytes"), "{message}");
}

#[test]
fn the_same_question_has_the_same_answer() {
    let ask = || format!("{:?}", of(&[copies(2048)], Objective::Throughput));
    assert_eq!(ask(), ask());
}
