//! The cost of moving a page of 2 MiB.

use super::interleaved::rates;
use super::shuttle::MoveMethod;
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Experiment;
use std::time::Duration;
use telpher_mem::PageSize;
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment =
    Experiment { name: "huge", question: "What does it cost to move a page of 2 MiB?", cores: 1, weight: 0.6, measure };

/// Small pages in a huge one.
const IN_HUGE: usize = 512;
/// Minimum rate in GB/s, and upper limit in microseconds of everything but the copy. Source: goal of the migrator.
const RATE: f64 = 18.0;
const BUT_THE_COPY: f64 = 8.0;

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut sides = [
        MoveMethod::copier(PageSize::Huge, IN_HUGE)?.alone(),
        MoveMethod::shuttle(PageSize::Huge, IN_HUGE, 1)?.alone(),
        MoveMethod::shuttle(PageSize::Huge, 4 * IN_HUGE, 1)?.alone(),
        MoveMethod::calls(PageSize::Huge, IN_HUGE)?.alone(),
    ];
    let seen = rates(machine, time, &mut sides)?;
    for side in sides.iter().flat_map(|side| &side.states) {
        side.check(&EXPERIMENT)?;
    }
    // Microseconds per huge page.
    let costs = seen.iter().map(|rates| IN_HUGE as f64 * 1e6 / median(&mut rates.clone())).collect::<Vec<_>>();
    let turns = seen[0].len();
    let rate = |micros: f64| (IN_HUGE * 4096) as f64 / micros / 1e3;
    let how = |micros: f64| format!("{micros:.1} µs; there and back, {turns} turns");
    let [look, out, back] = sides[3].states[0].calls_took();
    Ok(vec![
        Row::new("a huge page at a time", rate(costs[1]), "GB/s", Some(Goal::AtLeast(RATE)), how(costs[1])),
        Row::new(
            "the same, all but the copy",
            sides[1].states[0].without_copy() * IN_HUGE as f64 / 1e3,
            "µs",
            Some(Goal::AtMost(BUT_THE_COPY)),
            "by the heap's own clock: of what moving takes, all that is not the mover's copy",
        ),
        Row::new(
            "the same, less a copy by itself",
            costs[1] - costs[0],
            "µs",
            None,
            format!("less the {:.1} µs that its copy takes by itself", costs[0]),
        ),
        Row::new(
            "the kernel's calls for it, by themselves",
            look + out + back,
            "µs",
            None,
            format!("without a heap, around the same copy: a look {look:.2}, out {out:.2}, in {back:.2} µs"),
        ),
        Row::new("four at a time", rate(costs[2]), "GB/s", None, how(costs[2])),
        Row::new("the copy by itself", rate(costs[0]), "GB/s", None, format!("{:.1} µs", costs[0])),
    ])
}
