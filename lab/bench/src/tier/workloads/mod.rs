//! Two programs that use much memory at random, in the manner of the two that publications on tiered memory measure:
//! XSBench and the shortest paths of the GAP suite. Written from the descriptions of their algorithms.
//!
//! `telpher bench tier --only programs` starts them as processes: `telpher bench tier --workload NAME KEY=NUMBER...`.
//! Each sets up its data from a seed, works, checks results and data, and prints a checksum, which is the same for any
//! number of threads. Data and results are checked against values that are computed again and not read from memory, so
//! that a lost byte is noticed.

mod chunks;
mod cross_sections;
mod kronecker;
mod outcome;
mod parameters;
mod shortest_paths;

use crate::BenchError;
use outcome::{Answer, Clock, Failure};
use parameters::Parameters;
use std::io::Write;

/// A program: sets up its data, works, and checks.
struct Workload {
    /// Its name on the command line.
    name: &'static str,
    /// Its parameters and their default values, besides [`COMMON`].
    parameters: &'static [(&'static str, u64)],
    /// Runs it; an error says what is wrong with a result or with the data.
    run: fn(&Parameters, &mut Clock) -> Result<Answer, Failure>,
}

/// The programs.
const WORKLOADS: [Workload; 2] = [
    Workload { name: "cross-sections", parameters: cross_sections::PARAMETERS, run: cross_sections::run },
    Workload { name: "shortest-paths", parameters: shortest_paths::PARAMETERS, run: shortest_paths::run },
];

/// Parameters that both have. `damage=1` changes a bit before the check, which must notice it.
const COMMON: [(&str, u64); 3] = [("threads", 0), ("seed", 1), ("damage", 0)];

/// Runs a program, as in `cross-sections lookups=1000000 threads=2`, and prints its sizes, times and checksum.
///
/// # Errors
/// [`BenchError::Wrong`] if a result or the data is wrong; [`BenchError::Usage`] if the words are.
pub fn run(words: &[String]) -> Result<(), BenchError> {
    let usage = |why: String| BenchError::Usage(format!("--workload: {why}"));
    let name = words.first().map_or("", String::as_str);
    let Some(workload) = WORKLOADS.iter().find(|workload| workload.name == name) else {
        let known = WORKLOADS.each_ref().map(|workload| workload.name).join(" or ");
        return Err(usage(format!("'{name}' is not a program; use {known}")));
    };
    let known = [workload.parameters, &COMMON].concat();
    let given = Parameters::read(&words[1..], &known).map_err(usage)?;
    let mut clock = Clock::new();
    let answer = (workload.run)(&given, &mut clock).map_err(|failure| match failure {
        Failure::Usage(why) => usage(why),
        Failure::Memory(bytes) => BenchError::NotHere(format!(
            "{name} cannot allocate {} MiB; use smaller parameters",
            bytes.div_ceil(1 << 20)
        )),
        Failure::Wrong(why) => BenchError::Wrong { op: name.into(), route: why },
    })?;
    let [set_up, work, check] = clock.seconds[..] else { unreachable!("each program has three phases") };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{name}: {}\nset up: {set_up:.3} s\nwork: {work:.3} s\ncheck: {check:.3} s\nchecksum: {:016x}",
        answer.what, answer.checksum
    )
    .map_err(BenchError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(words: &str) -> Result<u64, Failure> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let workload = WORKLOADS.iter().find(|workload| workload.name == words[0]).unwrap();
        let given = Parameters::read(&words[1..], &[workload.parameters, &COMMON].concat()).unwrap();
        let mut clock = Clock::new();
        let answer = (workload.run)(&given, &mut clock).map(|answer| answer.checksum);
        assert!(answer.is_err() || clock.seconds.len() == 3);
        answer
    }

    const SMALL: [&str; 2] =
        ["cross-sections nuclides=9 points=40 lookups=3000", "shortest-paths scale=8 degree=6 sources=3"];

    #[test]
    fn a_checksum_depends_on_the_seed_and_not_on_the_threads() {
        for words in SMALL {
            let of = |more: &str| answer(&format!("{words} {more}")).unwrap();
            let one = of("threads=1");
            assert_eq!([of("threads=2"), of("threads=5")], [one, one], "{words}");
            assert_ne!(of("threads=1 seed=2"), one, "{words}");
        }
    }

    #[test]
    fn a_changed_bit_is_noticed() {
        for words in SMALL {
            for threads in [1, 3] {
                let failure = answer(&format!("{words} damage=1 threads={threads}")).unwrap_err();
                assert!(matches!(failure, Failure::Wrong(_)), "{words}: {failure:?}");
            }
        }
    }

    #[test]
    fn the_smallest_programs_have_answers_and_impossible_ones_are_refused() {
        for words in ["cross-sections nuclides=1 points=2 lookups=1", "shortest-paths scale=1 degree=1 sources=1"] {
            assert!(matches!(answer(words), Ok(_) | Err(Failure::Usage(_))), "{words}");
        }
        assert!(answer("cross-sections nuclides=1 points=2 lookups=1").is_ok());
        for words in [
            "cross-sections points=1",
            "cross-sections nuclides=0",
            "cross-sections nuclides=100000 points=100000000",
            "shortest-paths scale=0",
            "shortest-paths scale=32",
            "shortest-paths degree=0",
            "shortest-paths delta=0",
            "shortest-paths threads=100000",
        ] {
            assert!(matches!(answer(words), Err(Failure::Usage(_))), "{words}");
        }
    }

    #[test]
    fn unknown_programs_and_parameters_are_usage_errors() {
        for (words, part) in [
            ("sssp", "'sssp' is not a program; use cross-sections or shortest-paths"),
            ("cross-sections scale=3", "has no parameter 'scale'; use nuclides, points, lookups, threads, seed"),
            ("shortest-paths scale=big", "'scale=big'"),
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let error = run(&words).unwrap_err();
            assert!(matches!(error, BenchError::Usage(_)) && error.to_string().contains(part), "{error}");
        }
    }
}
