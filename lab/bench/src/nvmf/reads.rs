//! Short reads without digests, against the bare loop.

use super::bare::BareLoop;
use super::driver::{DEPTH, Driver};
use super::target::RunningTarget;
use super::turns::{self, ServedHost, each};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::interleaved::ratio;
use crate::measure::median;
use crate::questions::Experiment;
use std::time::Duration;
use telpher_nvmf::server::SocketEngine;
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "reads",
    question: "What does a short read cost the target, against a bare loop of recv and writev?",
    cores: 2,
    weight: 2.0,
    measure,
};

/// Bytes of a read.
const BYTES: u32 = 4096;
/// Most CPU time of the target, by that of the bare loop. Source: issue.
const MOST: f64 = 1.2;

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let _ = telpher_os::run_on(&[machine.core(0)]);
    let target = RunningTarget::start(machine.core(1))?;
    let by_epoll = RunningTarget::start_with(machine.core(1), SocketEngine::Epoll)?;
    [&target, &by_epoll].into_iter().try_for_each(RunningTarget::fill)?;
    let bare = BareLoop::start(machine.core(1), BYTES)?;
    let ours = ServedHost { driver: Driver::connect(target.address, BYTES, false)?, served: &target };
    let theirs = ServedHost { driver: Driver::connect_bare(bare.address, BYTES)?, served: &bare };
    let epoll = ServedHost { driver: Driver::connect(by_epoll.address, BYTES, false)?, served: &by_epoll };
    let mut sides = [ours, theirs, epoll];
    let turns = turns::take(&mut sides, time)?;
    let [ours, theirs, epoll] = [0, 1, 2].map(|side| each(&turns[side], |turn| turn.cpu_ns));
    let how = format!(
        "random reads from 32 MiB, {DEPTH} in flight, loopback; thread CPU time; host and target on a core each; {} \
         turns",
        ours.len()
    );
    let micros = |numbers: &[f64]| median(&mut numbers.to_vec()) / 1000.0;
    let thousands = |side: usize| median(&mut each(&turns[side], |turn| turn.iops)) / 1000.0;
    let what = "4 KiB read: CPU time of the target";
    Ok(vec![
        Row::new(
            format!("{what}, by that of a bare loop with 8 replies for each writev"),
            ratio(&ours, &theirs),
            "times",
            Some(Goal::AtMost(MOST)),
            how.clone(),
        ),
        Row::new(
            format!("{what} with epoll in place of io_uring, by that of the bare loop"),
            ratio(&epoll, &theirs),
            "times",
            None,
            how.clone(),
        ),
        Row::new(what, micros(&ours), "µs", None, how.clone()),
        Row::new("4 KiB read: CPU time of the bare loop", micros(&theirs), "µs", None, how.clone()),
        Row::new("4 KiB reads of the target", thousands(0), "thousand a second", None, how.clone()),
        Row::new("4 KiB reads of the bare loop", thousands(1), "thousand a second", None, how),
    ])
}
