//! The advised plan keeps the tenants' bounds, and each of its settings is needed.

use super::plan::{GroupPlan, QueuePlan};
use super::*;
use crate::picos::Picos;
use telpher_device::{Preset, WqMode};

fn machine() -> Machine {
    Machine::built_in("spr-asplos").unwrap()
}

fn parse(text: &str) -> Tenants {
    Tenants::parse("tenants.toml", text, &machine()).unwrap()
}

/// A tenant that copies, as text.
fn tenant(name: &str, size: &str, more: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\nop = \"memory-move\"\nsize = \"{size}\"\n{more}\n")
}

/// A tenant with short copies and a limit of latency, beside one with long copies.
fn two(devices: u32, p99_us: f64) -> Tenants {
    let short = tenant("short", "1k", &format!("rate = 500_000\nin_flight = 8\np99_us = {p99_us}"));
    parse(&format!("devices = {devices}\n{short}{}", tenant("long", "1m", "in_flight = 16")))
}

fn advice(tenants: &Tenants) -> SharingAdvice {
    advice_for(Preset::Spr.capabilities(), tenants)
}

/// Devices with one engine, which cannot be divided.
fn one_engine() -> Capabilities {
    let spr = Preset::Spr.capabilities();
    Capabilities { eng_cap: spr.eng_cap.with_engines(1), ..spr }
}

/// The advice. Shown with its numbers when a test fails.
fn advice_for(capabilities: Capabilities, tenants: &Tenants) -> SharingAdvice {
    let advice = advise(&machine(), capabilities, tenants).unwrap();
    let line = |outcome: &LoadOutcome| {
        let (rate, p99) = (outcome.gigabytes_per_second(), outcome.latencies.at(0.99).as_nanos_f64() / 1e3);
        format!("{} {rate:.2} GB/s p99 {p99:.2} us", outcome.name)
    };
    eprintln!("{} plans", advice.simulated);
    for (what, outcomes) in [("default", &advice.by_default), ("advised", &advice.tenants)] {
        for TenantOutcome { beside, alone, loss_percent, keeps, .. } in outcomes {
            eprintln!("{what}: {}, alone {}, loss {loss_percent:.1} %, keeps {keeps}", line(beside), line(alone));
        }
    }
    for SharingChoice { what, chosen, default, without, keeps_without, .. } in &advice.choices {
        let without: Vec<String> = without.iter().map(line).collect();
        eprintln!("{what}: {chosen}, not {default}: {}, keeps {keeps_without}", without.join("; "));
    }
    advice
}

/// The geometric mean of throughput.
fn mean(outcomes: impl Iterator<Item = f64>) -> f64 {
    let logarithms: Vec<f64> = outcomes.map(f64::ln).collect();
    #[allow(clippy::cast_precision_loss, reason = "a few tenants")]
    let count = logarithms.len() as f64;
    (logarithms.iter().sum::<f64>() / count).exp()
}

/// The settings that differ from the defaults.
fn settings(advice: &SharingAdvice) -> Vec<&str> {
    advice.choices.iter().map(|choice| choice.what.as_str()).collect()
}

/// Checks that the advice keeps all bounds, which the defaults do not, and that no setting is there for nothing.
fn assert_keeps_and_needs_each_setting(advice: &SharingAdvice) {
    assert!(advice.keeps() && advice.by_default.iter().any(|tenant| !tenant.keeps), "see above");
    assert!(!advice.choices.is_empty());
    // The advised plan has at least the best found throughput less 2 %, and without a needed setting there is less.
    let advised = mean(advice.tenants.iter().map(|tenant| tenant.beside.gigabytes_per_second()));
    for choice in &advice.choices {
        assert_ne!(choice.chosen, choice.default, "{}", choice.what);
        let without = mean(choice.without.iter().map(LoadOutcome::gigabytes_per_second));
        assert!(!choice.keeps_without || without < advised, "{} is not needed", choice.what);
    }
}

#[test]
fn short_copies_keep_their_limit_beside_long_ones() {
    let tenants = two(1, 4.0);
    let advice = advice(&tenants);
    assert_keeps_and_needs_each_setting(&advice);
    assert!(advice.tenants[0].beside.latencies.at(0.99) <= Picos::from_nanos(4000));
    assert_eq!(advice.configs.len(), 1);
    // The configuration says all of it: simulated again, it gives the same.
    let again = simulate(&machine(), Preset::Spr.capabilities(), &advice.configs, &tenants.tenants).unwrap();
    for (first, second) in advice.tenants.iter().zip(&again) {
        assert_eq!(first.beside.latencies, second.beside.latencies);
    }
}

#[test]
fn a_limit_near_the_latency_of_an_idle_device_needs_another_device() {
    let advice = advice(&two(4, 1.2));
    assert_keeps_and_needs_each_setting(&advice);
    assert_eq!(advice.choices[0].chosen, "one device each: short; long");
    assert_eq!(advice.configs.iter().filter(|config| !config.groups.is_empty()).count(), 2);
}

#[test]
fn a_limit_below_the_latency_of_an_idle_device_is_not_kept_and_said_so() {
    let advice = advice(&two(4, 0.5));
    assert!(!advice.keeps() && !advice.tenants[0].keeps && advice.tenants[1].keeps);
    let p99 = |outcomes: &[TenantOutcome]| outcomes[0].beside.latencies.at(0.99);
    assert!(p99(&advice.tenants) < p99(&advice.by_default));
}

#[test]
fn tenants_that_must_share_an_engine_have_shorter_transfers_or_batches() {
    let short = tenant("short", "1k", "rate = 100_000\nin_flight = 8\np99_us = 20");
    for long in [tenant("long", "1m", "in_flight = 16"), tenant("long", "64k", "in_flight = 128\nbatch = 32")] {
        let advice = advice_for(one_engine(), &parse(&format!("devices = 1\n{short}{long}")));
        assert_keeps_and_needs_each_setting(&advice);
        let is_shorter = |what: &&str| what.starts_with("largest") && what.ends_with(" of long");
        assert!(settings(&advice).iter().any(is_shorter), "{:?}", settings(&advice));
    }
}

#[test]
fn a_loss_is_kept_within_its_limit() {
    let noisy = tenant("noisy", "256k", "in_flight = 32\nbatch = 8");
    // Alone, the first one needs a part of one device, or most of it.
    for (devices, in_flight) in [(1, 1), (4, 8)] {
        let steady = tenant("steady", "8k", &format!("in_flight = {in_flight}\nloss_percent = 5"));
        let advice = advice(&parse(&format!("devices = {devices}\n{steady}{noisy}")));
        assert_keeps_and_needs_each_setting(&advice);
        assert!(advice.tenants[0].loss_percent <= 5.0);
    }
}

#[test]
fn equal_copies_on_one_engine_are_divided_by_priority() {
    let copies = |name: &str, more: &str| tenant(name, "4k", &format!("in_flight = 32\n{more}"));
    let tenants = format!("devices = 1\n{}{}", copies("first", "loss_percent = 30"), copies("second", ""));
    let advice = advice_for(one_engine(), &parse(&tenants));
    assert_keeps_and_needs_each_setting(&advice);
    assert!(settings(&advice).iter().all(|what| what.starts_with("priority of ")), "{:?}", settings(&advice));
    let queues = &advice.configs[0].groups[0].grouped_workqueues;
    assert!(queues[0].priority > queues[1].priority);
}

#[test]
fn one_tenant_may_have_a_group_and_the_rest_another() {
    let many: String = (0..4).map(|number| tenant(&format!("long-{number}"), "1m", "in_flight = 4")).collect();
    let short = tenant("short", "1k", "rate = 500_000\nin_flight = 8\np99_us = 6");
    let advice = advice(&parse(&format!("devices = 1\n{many}{short}")));
    assert_keeps_and_needs_each_setting(&advice);
    // Five groups would need five engines.
    assert!(advice.configs[0].groups.len() < 5);
}

#[test]
fn every_setting_stands_in_the_configuration() {
    let tenants = two(2, 4.0);
    let mut plan = SharingPlan::placed(&tenants, vec![0, 1], false);
    plan.groups = vec![
        GroupPlan { engines: Some(1), reserved: 24, allowed: None },
        GroupPlan { engines: Some(2), reserved: 0, allowed: Some(12) },
    ];
    plan.queues[1] = QueuePlan { priority: 1, most_transfer: 65536, most_batch: 8 };
    let caps = Preset::Spr.capabilities();
    let configs = plan.configs(&machine(), &caps, &tenants).unwrap();
    let [short, long] = &configs[0].groups[..] else { panic!("{configs:?}") };
    assert_eq!((short.read_buffers_reserved, short.read_buffers_allowed), (24, Some(96)));
    assert_eq!((long.read_buffers_reserved, long.read_buffers_allowed), (0, Some(12)));
    assert_eq!((short.grouped_engines.len(), long.grouped_engines.len()), (1, 2));
    let queue = &long.grouped_workqueues[0];
    assert_eq!((queue.priority, queue.max_transfer_size, queue.max_batch_size), (1, 65536, 8));
    assert_eq!((queue.name.as_deref(), queue.mode, queue.size), (Some("long"), WqMode::Dedicated, 64));
    assert_eq!(simulate(&machine(), caps, &configs, &tenants.tenants).unwrap().len(), 2);
    // On devices of their own, each group has all of its device.
    let plan = SharingPlan::placed(&tenants, vec![0, 1], true);
    let configs = plan.configs(&machine(), &caps, &tenants).unwrap();
    assert!(configs.len() > 1 && configs.iter().all(|config| config.groups.len() <= 1));
    let group = configs.iter().flat_map(|config| &config.groups).next().unwrap();
    assert_eq!((group.grouped_engines.len(), group.grouped_workqueues[0].size), (4, 128));
}

#[test]
fn groups_without_a_number_of_engines_share_what_others_leave() {
    let tenants = parse(&["a", "b", "c"].map(|name| tenant(name, "4k", "")).concat());
    let caps = Preset::Spr.capabilities();
    let mut plan = SharingPlan::placed(&tenants, vec![0, 1, 2], false);
    let engines = |plan: &SharingPlan| [0, 1, 2].map(|group| plan.engines(group, &caps));
    assert_eq!(engines(&plan), [1, 1, 2]);
    plan.groups[1].engines = Some(2);
    assert_eq!(engines(&plan), [1, 2, 1]);
    plan.groups[1].engines = Some(3);
    assert!(plan.configs(&machine(), &caps, &tenants).is_none(), "no engine is left for the first group");
}

#[test]
fn a_tenant_without_completed_operations_has_no_numbers() {
    let rare = tenant("rare", "4k", "rate = 1\np99_us = 10");
    let error = advise(&machine(), Preset::Spr.capabilities(), &parse(&rare)).err().unwrap().to_string();
    assert!(error.starts_with("load rare: none of its operations ended in 40 ms"), "{error}");
}

#[test]
fn every_knob_begins_with_the_default() {
    let tenants = two(4, 4.0);
    let caps = Preset::Spr.capabilities();
    let context = Context { capabilities: &caps, tenants: &tenants };
    let plain = SharingPlan::plain(&tenants);
    for (knob, at) in Search::turns(&plain) {
        assert_eq!((knob.choices)(context, &plain, at)[0], plain, "{}", knob.what);
    }
}

#[test]
fn more_tenants_than_queues_are_refused_with_a_reason() {
    let many: String = (0..9).map(|number| tenant(&format!("t{number}"), "4k", "")).collect();
    let error = advise(&machine(), Preset::Spr.capabilities(), &parse(&many)).err().unwrap().to_string();
    assert!(error.contains("9 tenants need a queue each, and a device has 8"), "{error}");
}
