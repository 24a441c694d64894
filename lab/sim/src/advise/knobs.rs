//! The choices, a table row each, with the guideline that covers it. Source: Kuper et al., ASPLOS 2024, §6 and §4.4.

use super::{Plan, WorkPlan, WorkRequest};
use crate::machine::Machine;
use crate::workload::{NamedValue, Wait};
use telpher_device::WqMode;

/// Plans that differ from a plan in one setting; the simpler ones first.
type Choices = fn(&Machine, &[WorkRequest], &Plan, usize) -> Vec<Plan>;

/// A setting with its choices.
pub(super) struct Knob {
    /// Its name.
    pub(super) what: &'static str,
    /// The guideline that covers it.
    pub(super) guideline: &'static str,
    /// The text of the guideline.
    pub(super) why: &'static str,
    /// It is set for each piece of work.
    pub(super) of_each: bool,
    /// Its choices.
    pub(super) choices: Choices,
    /// The setting of a plan in words; `None` if it is not used.
    pub(super) describe: fn(&Plan, usize) -> Option<String>,
}

/// Numbers in flight and in a batch. Source: chosen; powers of two.
const COUNTS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, super::plan::MOST_IN_FLIGHT];

/// Sizes of queues. Source: KUPER §4.3: 32 entries give nearly all.
const SIZES: [u32; 4] = [8, 16, 32, 64];

pub(super) const KNOBS: &[Knob] = &[
    Knob {
        what: "in flight, and batches",
        guideline: "G1, G2",
        why: "use the device asynchronously; balance the size of batches and transfers",
        of_each: true,
        choices: |_, demands, plan, work| {
            let in_flight = demands[work].in_flight;
            let shapes = COUNTS.into_iter().flat_map(|batch| COUNTS.into_iter().map(move |depth| (depth, batch)));
            let fits = shapes.filter(|(depth, batch)| depth * batch <= in_flight);
            fits.map(|(depth, batch)| with(plan, work, |way| (way.depth, way.batch) = (depth, batch))).collect()
        },
        describe: |plan, work| {
            let way = device(plan, work)?;
            Some(match (way.depth, way.batch) {
                (1, 1) => "one at a time".into(),
                (depth, 1) => format!("{depth} in flight, no batches"),
                (1, batch) => format!("one batch of {batch}"),
                (depth, batch) => format!("{depth} batches of {batch}"),
            })
        },
    },
    Knob {
        what: "engines of a group",
        guideline: "G5",
        why: "more engines help, and small transfers most",
        of_each: false,
        choices: |_, _, plan, _| [1, 2, 3, 4].map(|engines| Plan { engines, ..plan.clone() }).into(),
        describe: |plan, _| used(plan).then(|| plan.engines.to_string()),
    },
    Knob {
        what: "devices",
        guideline: "G4",
        why: "use the devices nearest to memory first, and as many as the memory can feed",
        of_each: false,
        choices: |machine, _, plan, _| {
            (1..=machine.devices.len()).map(|count| Plan { count, ..plan.clone() }).collect()
        },
        describe: |plan, _| {
            let names: Vec<String> =
                plan.devices.iter().take(plan.count).map(|device| format!("dsa{device}")).collect();
            used(plan).then(|| names.join(", "))
        },
    },
    Knob {
        what: "queues",
        guideline: "G6",
        why: "dedicated queues and batches do better than shared ones, unless threads outnumber the queues",
        of_each: false,
        choices: |_, _, plan, _| [WqMode::Dedicated, WqMode::Shared].map(|mode| Plan { mode, ..plan.clone() }).into(),
        describe: |plan, _| {
            let (dedicated, shared) = ("dedicated, one for each thread", "shared, one in each group");
            used(plan).then(|| if plan.mode == WqMode::Dedicated { dedicated.into() } else { shared.into() })
        },
    },
    Knob {
        what: "groups",
        guideline: "G6",
        why: "queues in groups of their own do not delay each other",
        of_each: false,
        choices: |_, demands, plan, _| {
            let apart: &[bool] = if demands.len() > 1 { &[false, true] } else { &[false] };
            apart.iter().map(|apart| Plan { apart: *apart, ..plan.clone() }).collect()
        },
        describe: |plan, _| {
            let several = plan.ways.len() > 1 && used(plan);
            several.then(|| if plan.apart { "one for each piece of work".into() } else { "one for all".into() })
        },
    },
    Knob {
        what: "entries of a queue",
        guideline: "G6",
        why: "a queue needs room for the operations in flight, hardly more than 32",
        of_each: false,
        choices: |_, _, plan, _| {
            let sizes = SIZES.map(Some).into_iter().chain([None]);
            sizes.map(|wq_size| Plan { wq_size, ..plan.clone() }).collect()
        },
        describe: |plan, _| {
            let describe = || plan.wq_size.map_or("an equal share of all".into(), |size| size.to_string());
            used(plan).then(describe)
        },
    },
    Knob {
        what: "waiting",
        guideline: "§4.4",
        why: "UMWAIT leaves the core's cycles to others for a little latency",
        of_each: true,
        choices: |_, _, plan, work| {
            [Wait::Poll, Wait::Umwait, Wait::Interrupt].map(|wait| with(plan, work, |way| way.wait = wait)).into()
        },
        describe: |plan, work| device(plan, work).map(|way| way.wait.name().to_owned()),
    },
    Knob {
        what: "destination",
        guideline: "G3",
        why: "data that is read soon goes to the cache, everything else to memory, where it evicts no lines",
        of_each: true,
        // The later reader is not simulated; the user's statement is believed.
        choices: |_, demands, plan, work| vec![with(plan, work, |way| way.cache = demands[work].read_soon)],
        describe: |plan, work| {
            device(plan, work)
                .map(|way| if way.cache { "cache (Cache Control 1)" } else { "memory (Cache Control 0)" }.into())
        },
    },
    Knob {
        what: "executed by",
        guideline: "G2",
        why: "small synchronous operations are better done by the core",
        of_each: true,
        choices: |_, _, plan, work| [false, true].map(|device| with(plan, work, |way| way.device = device)).into(),
        describe: |plan, work| Some(if plan.ways[work].device { "the device" } else { "the core" }.into()),
    },
];

/// The plan with a change to one piece of work.
fn with(plan: &Plan, work: usize, change: impl FnOnce(&mut WorkPlan)) -> Plan {
    let mut plan = plan.clone();
    change(&mut plan.ways[work]);
    plan
}

/// The settings of a piece of work, if a device does it.
fn device(plan: &Plan, work: usize) -> Option<WorkPlan> {
    Some(plan.ways[work]).filter(|way| way.device)
}

fn used(plan: &Plan) -> bool {
    plan.ways.iter().any(|way| way.device)
}
