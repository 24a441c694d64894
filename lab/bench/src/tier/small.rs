//! The cost of moving a page of 4 KiB, by the number of pages moved together.

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
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "small",
    question: "What does it cost to move a page of 4 KiB, by the number moved together and by adjacency?",
    cores: 1,
    weight: 1.0,
    measure,
};

/// Pages moved together.
const TOGETHER: [usize; 5] = [1, 8, 32, 128, 512];
/// Upper limits in nanoseconds per page, for the largest batch of adjacent pages: in all, and without the copy. Source:
/// goal of the migrator.
const ALL: f64 = 450.0;
const BUT_THE_COPY: f64 = 200.0;

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let moves = TOGETHER.map(|pages| (pages, 1)).into_iter().chain([(32, 2), (512, 2)]).collect::<Vec<_>>();
    let mut sides = vec![MoveMethod::copier(PageSize::Small, 512)?.alone()];
    for &(pages, apart) in &moves {
        sides.push(MoveMethod::shuttle(PageSize::Small, pages, apart)?.alone());
    }
    let seen = rates(machine, time, &mut sides)?;
    for side in sides.iter().flat_map(|side| &side.states) {
        side.check(&EXPERIMENT)?;
    }
    let mut costs = seen.into_iter().map(|mut rates| (rates.len(), 1e9 / median(&mut rates)));
    let (turns, copy) = costs.next().unwrap_or((0, f64::NAN));
    let mut rows = Vec::new();
    let rests = sides[1..].iter().map(|side| side.states[0].without_copy());
    for (((pages, apart), (turns, cost)), rest) in moves.into_iter().zip(costs).zip(rests) {
        let how = format!("{:.1} GB/s; there and back, {turns} turns", 4096.0 / cost);
        let lie = if apart == 1 { "neighbours" } else { "every second one" };
        let most = (pages, apart) == (512, 1);
        let what = format!("a page of {pages} that go together, {lie}");
        rows.push(Row::new(what, cost, "ns", most.then_some(Goal::AtMost(ALL)), how));
        if most {
            let how = "by the heap's own clock: of what moving takes, all that is not the mover's copy";
            rows.push(Row::new("the same, all but the copy", rest, "ns", Some(Goal::AtMost(BUT_THE_COPY)), how));
            let how = format!("less the {copy:.0} ns that its copy takes by itself, {turns} turns");
            rows.push(Row::new("the same, less a copy by itself", cost - copy, "ns", None, how));
        }
    }
    let how = format!("{:.1} GB/s, 2 MiB at once, there and back; {turns} turns", 4096.0 / copy);
    rows.push(Row::new("the copy of a page, by itself", copy, "ns", None, how));
    Ok(rows)
}
