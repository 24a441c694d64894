//! One bench as a program: it is started, and its JSON is read.

use super::host::Quantity;
use crate::BenchError;
use crate::goal::Goal;
use serde::Deserialize;
use std::process::{Command, Stdio};

/// The JSON of a bench, as far as it is needed.
#[derive(Deserialize)]
struct Output {
    kind: String,
    /// Experiments, each with rows.
    #[serde(default)]
    contests: Vec<Experiment>,
    /// Rows without experiments. Those of `ops` are comparisons.
    #[serde(default)]
    rows: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Experiment {
    name: String,
    rows: Vec<Row>,
}

/// A number with its goal: [`crate::goal::Row`] as JSON.
#[derive(Deserialize)]
struct Row {
    what: String,
    /// `null` if it was not measured.
    measured: Option<f64>,
    unit: String,
    goal: Option<Goal>,
    how: String,
    open: bool,
}

/// A comparison at one size: [`crate::ops::Row`] as JSON.
#[derive(Deserialize)]
struct Comparison {
    op: String,
    against: String,
    size: u64,
    temperature: String,
    ratio: f64,
    goal: f64,
}

impl Comparison {
    fn share(&self) -> f64 {
        self.ratio / self.goal
    }
}

/// Runs a bench; returns its numbers with goals, or why it has none.
///
/// # Errors
/// If this program cannot be started.
pub(super) fn run(part: &str, seconds: Option<f64>) -> Result<Result<Vec<Quantity>, String>, BenchError> {
    let failed = |source| BenchError::Program { what: format!("telpher bench {part}"), source };
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["bench", part, "--format", "json"]);
    // The time of `vhost` is that of its rounds.
    if let Some(seconds) = seconds.filter(|_| part != "vhost") {
        command.args(["--seconds", &seconds.to_string()]);
    }
    let output = command.stdin(Stdio::null()).output().map_err(failed)?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        // The program's errors begin with its name; after a panic or a signal there is none.
        let error = errors.lines().find_map(|line| line.strip_prefix("telpher: "));
        let last = error.or(errors.lines().rfind(|line| !line.trim().is_empty())).unwrap_or("it printed no error");
        return Ok(Err(format!("{}: {}", output.status, telpher_report::table::printable(last.trim()))));
    }
    Ok(quantities(part, &output.stdout))
}

/// Reads the numbers that have goals from a bench's JSON.
fn quantities(part: &str, json: &[u8]) -> Result<Vec<Quantity>, String> {
    let output: Output =
        serde_json::from_slice(json).map_err(|error| format!("its JSON has another form than expected: {error}"))?;
    if output.kind == "ops" {
        return Ok(of_comparisons(part, typed(output.rows)?));
    }
    let mut all = Vec::new();
    for Experiment { name, rows } in output.contests {
        all.extend(rows.into_iter().filter_map(|row| quantity(part, &name, row)));
    }
    all.extend(typed(output.rows)?.into_iter().filter_map(|row| quantity(part, "", row)));
    Ok(all)
}

fn typed<T: serde::de::DeserializeOwned>(rows: Vec<serde_json::Value>) -> Result<Vec<T>, String> {
    serde_json::from_value(rows.into()).map_err(|error| format!("a row has another form than expected: {error}"))
}

fn quantity(part: &str, experiment: &str, row: Row) -> Option<Quantity> {
    let Row { what, measured, unit, goal, how, open } = row;
    Some(Quantity {
        bench: part.into(),
        experiment: experiment.into(),
        what,
        unit,
        goal: goal?,
        values: measured.into_iter().collect(),
        open,
        how,
    })
}

/// Returns one number for each comparison, cached and not: the lowest of its ratios over their goals. There are some
/// hundred ratios, one for each size.
fn of_comparisons(part: &str, rows: Vec<Comparison>) -> Vec<Quantity> {
    let mut lowest: Vec<(String, Comparison)> = Vec::new();
    for row in rows {
        let what = format!("{} against {}, {}: lowest ratio over its goal", row.op, row.against, row.temperature);
        match lowest.iter_mut().find(|(name, _)| *name == what) {
            Some((_, known)) if known.share() <= row.share() => {}
            Some((_, known)) => *known = row,
            None => lowest.push((what, row)),
        }
    }
    let quantity = |(what, row): (String, Comparison)| Quantity {
        bench: part.into(),
        experiment: String::new(),
        what,
        unit: "of its goal".into(),
        goal: Goal::AtLeast(1.0),
        values: vec![row.share()],
        open: false,
        how: format!("at {}: ratio {:.2}, goal {:.2}", telpher_os::size(row.size), row.ratio, row.goal),
    };
    lowest.into_iter().map(quantity).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::questions::{Answer, Answers};
    use telpher_report::machine::Machine;

    #[test]
    fn numbers_with_goals_are_read_from_experiments_and_rows() {
        let row = |measured, goal| crate::goal::Row::new("a", measured, "ns", goal, "in turns");
        let rows = vec![row(7.0, Some(Goal::AtMost(5.0))), row(8.0, None), row(f64::NAN, Some(Goal::AtMost(5.0)))];
        let contests = vec![Answer { name: "first", question: "?", rows: rows.clone() }];
        let answers = Answers { kind: "mover", machine: Machine::read(), remarks: Vec::new(), contests };
        let read = quantities("mover", &serde_json::to_vec(&answers).unwrap()).unwrap();
        assert_eq!(read.len(), 2, "the row without a goal is left out");
        assert_eq!(
            (read[0].experiment.as_str(), read[0].values.as_slice(), read[0].open),
            ("first", &[7.0][..], false)
        );
        assert!(read[1].values.is_empty() && read[1].open);
        let run = serde_json::json!({ "kind": "run", "rows": rows });
        assert_eq!(quantities("run", run.to_string().as_bytes()).unwrap()[0].how, "in turns");
    }

    #[test]
    fn a_comparison_has_one_number_its_worst_size() {
        let row = |size: u64, ratio: f64, goal: f64| {
            serde_json::json!({ "op": "crc", "against": "ISA-L", "size": size, "temperature": "cold",
                "ours_ns": 1.0, "theirs_ns": 1.0, "ratio": ratio, "goal": goal, "turns": 9 })
        };
        let rows = [row(256, 0.9, 0.9), row(4096, 0.75, 1.0), row(1 << 20, 0.8, 1.0)];
        let json = serde_json::json!({ "kind": "ops", "rows": rows });
        let [only] = &quantities("ops", json.to_string().as_bytes()).unwrap()[..] else { panic!() };
        assert_eq!(only.values, [0.75]);
        assert!(only.how.contains("0.75") && only.how.contains("4 KiB"), "{}", only.how);
    }

    #[test]
    fn other_output_is_no_result() {
        assert!(quantities("run", b"no JSON").unwrap_err().contains("another form"));
        assert!(quantities("run", br#"{"kind":"run","rows":[{"a":1}]}"#).unwrap_err().contains("another form"));
    }
}
