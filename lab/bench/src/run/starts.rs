//! The time from start to end of `telpher run -- true`, and of `true` alone.

use super::START_MS;
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::measure::median;
use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Minimum number of starts of each, even if the time is over.
const FEWEST: usize = 5;

/// Returns the rows about starting.
pub(super) fn rows(time: Duration) -> Result<Vec<Row>, BenchError> {
    let telpher = std::env::current_exe()
        .map_err(|source| BenchError::Program { what: "finding this program".into(), source })?;
    let mut ways = vec![vec!["true".into()]];
    for view in ["preload", "namespace"] {
        let mut words = vec![telpher.clone().into_os_string()];
        words.extend(["run", "--view", view, "--", "true"].map(Into::into));
        ways.push(words);
    }
    let mut seen: Vec<Vec<f64>> = ways.iter().map(|_| Vec::new()).collect();
    let mut left_out = None;
    let begin = Instant::now();
    while seen[0].len() < FEWEST || begin.elapsed() < time {
        for (number, (words, times)) in ways.iter().zip(&mut seen).enumerate() {
            // The namespace view is not available on every machine.
            if left_out == Some(number) {
                continue;
            }
            let start = Instant::now();
            let output = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output();
            let taken = start.elapsed();
            match output {
                Ok(output) if output.status.success() => times.push(taken.as_secs_f64() * 1e3),
                Ok(_) if number == 2 && times.is_empty() => left_out = Some(number),
                Ok(output) => {
                    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    let source = io::Error::other(format!("{}: {stderr}", output.status));
                    return Err(BenchError::Program { what: "telpher run -- true".into(), source });
                }
                Err(source) => return Err(BenchError::Program { what: "true".into(), source }),
            }
        }
    }
    let row = |what: &'static str, times: &mut Vec<f64>, goal| {
        Row::new(what, median(times), "ms", goal, format!("start to end, median of {}", times.len()))
    };
    let [alone, preload, namespace] = seen.as_mut_slice() else { unreachable!("three ways") };
    let mut rows = vec![
        row("true by itself", alone, None),
        row("telpher run -- true, preloaded", preload, Some(Goal::AtMost(START_MS))),
    ];
    if !namespace.is_empty() {
        rows.push(row("telpher run -- true, in a namespace", namespace, Some(Goal::AtMost(START_MS))));
    }
    Ok(rows)
}
