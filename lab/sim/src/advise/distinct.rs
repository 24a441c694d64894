//! What distinguishes the simulations of plans. Many plans of a search differ only in settings without an effect.

use crate::scenario::{Load, Scenario, Workload};
use std::collections::BTreeMap;

/// What a plan's scenario simulates, as a text. Equal texts have equal outcomes, so one of the scenarios is enough. A
/// device that no thread uses has no effect, and neither have entries of a queue that are never all occupied. A queue's
/// threshold, priority, and limits of batches and transfers are left out, because no knob of `advise` sets them.
pub(super) fn simulated(scenario: &Scenario) -> String {
    let mut in_flight: BTreeMap<(u16, usize), u32> = BTreeMap::new();
    for Load { what, queues, .. } in &scenario.loads {
        for queue in queues {
            let depth = if let Workload::Stream(stream) = what { stream.depth } else { u32::MAX };
            let all = in_flight.entry((queue.device, queue.wq)).or_default();
            *all = all.saturating_add(depth);
        }
    }
    let mut devices = Vec::new();
    for (device, config) in (0..).zip(&scenario.devices) {
        if !in_flight.keys().any(|(used, _)| *used == device) {
            continue;
        }
        // Queues are numbered in the order of the groups.
        let mut number = 0..;
        for group in &config.groups {
            let queues = group.grouped_workqueues.iter().zip(&mut number).map(|(queue, wq)| {
                let most = in_flight.get(&(device, wq)).copied().unwrap_or(0);
                (queue.mode, queue.size.min(most))
            });
            devices.push((device, group.grouped_engines.len(), queues.collect::<Vec<_>>()));
        }
    }
    format!("{devices:?} {:?}", scenario.loads)
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, WorkPlan, WorkRequest};
    use super::*;
    use crate::machine::Machine;
    use telpher_abi::Opcode;
    use telpher_device::{Preset, WqMode};

    /// The outcomes of all plans that are taken for the same are the same, and others are not taken for them.
    #[test]
    fn plans_that_simulate_the_same_have_the_same_outcome() {
        let (machine, capabilities) = (Machine::built_in("spr-asplos").unwrap(), Preset::Spr.capabilities());
        let copies = WorkRequest { threads: 2, in_flight: 32, ..WorkRequest::of(Opcode::MemoryMove, 1024) };
        let demands = [copies];
        let mut outcomes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for mode in [WqMode::Dedicated, WqMode::Shared] {
            for (count, wq_size) in
                [1, 2, 4].into_iter().flat_map(|count| [Some(8), Some(32), None].map(|of| (count, of)))
            {
                for (device, depth) in [(false, 1), (true, 2), (true, 16)] {
                    let simplest = Plan::simplest(&machine, &demands);
                    let ways = vec![WorkPlan { device, depth, ..simplest.ways[0] }];
                    let plan = Plan { count, wq_size, mode, ways, engines: 2, ..simplest };
                    let scenario = plan.scenario(&machine, capabilities, &demands).unwrap();
                    let outcome = scenario.simulate().unwrap();
                    let load = &outcome.loads[0];
                    let seen = format!("{:?} {:?} {}", load.timeline, load.latencies.at(0.99), outcome.events);
                    outcomes.entry(simulated(&scenario)).or_default().push(seen);
                }
            }
        }
        assert!(outcomes.values().all(|same| same.windows(2).all(|two| two[0] == two[1])), "{outcomes:?}");
        // The cores' own work; two in flight in one queue or in two on one or two devices; 16 with and without room.
        assert_eq!(outcomes.values().map(Vec::len).sum::<usize>(), 54);
        assert!((8..=16).contains(&outcomes.len()), "{:?}", outcomes.keys());
    }
}
