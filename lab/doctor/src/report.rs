//! An examination as text.

use super::causes;
use super::checks::{Examination, StepState};
use super::finding::{Finding, Severity};
use serde::Serialize;
use std::fmt::Write as _;
use telpher_report::table::{Align, Table};
use telpher_report::terminal::{self, Style};

/// Columns at which texts are wrapped, as in `--help`, if the terminal has as many.
const WIDTH: usize = 100;
/// Longest evidence that is shown whole, in characters; JSON has all of it.
const LONGEST: usize = 400;

/// Returns the results of the stages, the findings and the counts as text.
pub(super) fn text(examination: &Examination) -> String {
    let mut out = String::new();
    // Stages that were skipped for the same reason share a line.
    for steps in examination
        .walk
        .chunk_by(|a, b| (a.state, b.state) == (StepState::Skipped, StepState::Skipped) && a.says == b.says)
    {
        let stages = match steps {
            [first, .., last] => format!("{} … {}", first.stage.name(), last.stage.name()),
            _ => steps[0].stage.name().to_owned(),
        };
        let count = examination.findings.iter().filter(|finding| finding.stage == steps[0].stage).count();
        let state = match steps[0].state {
            StepState::Fine => "ok".into(),
            StepState::Skipped => "-".into(),
            StepState::Findings => format!("{count} finding{}", if count == 1 { "" } else { "s" }),
        };
        let state = format!("{state:<11}");
        let state = match steps[0].state {
            StepState::Fine => Style::Good.paint(&state),
            StepState::Skipped => state,
            StepState::Findings => Style::Warning.paint(&state),
        };
        wrapped(&mut out, &format!("{stages:<18} {state} "), &plain(&steps[0].says));
    }
    // A finding of several queues is printed once; JSON has each one.
    let alike = |a: &Finding, b: &Finding| (a.id, a.severity, &a.cause) == (b.id, b.severity, &b.cause);
    let mut rest: Vec<&Finding> = examination.findings.iter().collect();
    while let Some(first) = rest.first().copied() {
        let (same, others): (Vec<&Finding>, Vec<&Finding>) = rest.iter().partition(|finding| alike(first, finding));
        out.push('\n');
        write_finding(&mut out, first, &same[1..]);
        rest = others;
    }
    let count = |severity| examination.findings.iter().filter(|finding| finding.severity == severity).count();
    let counts = [Severity::Error, Severity::Warning, Severity::Note].map(|severity| {
        let n = count(severity);
        format!("{n} {}{}", severity.name(), if n == 1 { "" } else { "s" })
    });
    let verdict = match examination.worst {
        None => "no problem found".into(),
        Some(_) => counts.join(", "),
    };
    let _ = writeln!(out, "\n{verdict}");
    out
}

fn write_finding(out: &mut String, finding: &Finding, same: &[&Finding]) {
    let style = match finding.severity {
        Severity::Error => Style::Bad,
        Severity::Warning => Style::Warning,
        Severity::Note => Style::Note,
    };
    let severity = style.paint(&finding.severity.name().to_uppercase());
    let _ = writeln!(out, "{severity} {}: {}", plain(&finding.subject), finding.id);
    wrapped(out, "  cause   ", &plain(&finding.cause));
    if !same.is_empty() {
        let subjects = same.iter().map(|finding| plain(&finding.subject)).collect::<Vec<_>>().join(", ");
        wrapped(out, "  also    ", &format!("{subjects}    (all in --format json)"));
    }
    for (i, evidence) in finding.evidence.iter().enumerate() {
        let says = plain(&evidence.says);
        let shown: String = says.chars().take(LONGEST).collect();
        let more = if shown.len() < says.len() { " …" } else { "" };
        let says = if shown.is_empty() { "empty".into() } else { format!("{shown}{more}") };
        wrapped(out, if i == 0 { "  seen    " } else { "          " }, &format!("{}: {says}", plain(&evidence.source)));
    }
    for (i, step) in finding.remedy.iter().enumerate() {
        write_step(out, if i == 0 { "  do      " } else { "          " }, &plain(step));
    }
}

/// Programs of steps that are commands; every other step is a sentence.
const PROGRAMS: [&str; 13] = [
    "accel-config",
    "dmesg",
    "doors/dml/install.sh",
    "echo",
    "fuser",
    "grep",
    "journalctl",
    "modprobe",
    "mount",
    "numactl",
    "setcap",
    "setfacl",
    "sysctl",
];

/// Writes a step of a remedy. A command is not wrapped, so that it can be copied.
fn write_step(out: &mut String, heading: &str, step: &str) {
    let program = step.split(' ').next().unwrap_or_default();
    if PROGRAMS.contains(&program) {
        let _ = writeln!(out, "{heading}{step}");
    } else {
        wrapped(out, heading, step);
    }
}

/// Returns the text on one line and without control characters: a bundle may come from an untrusted author.
fn plain(text: &str) -> String {
    let pieces = text.split(|c: char| c.is_control()).map(str::trim).filter(|piece| !piece.is_empty());
    pieces.collect::<Vec<_>>().join(" ")
}

/// Writes a text after a heading, wrapped at blanks.
fn wrapped(out: &mut String, heading: &str, text: &str) {
    let indent = " ".repeat(terminal::width(heading));
    let columns = terminal::columns().min(WIDTH);
    let mut line = heading.to_owned();
    for word in text.split(' ') {
        if terminal::width(&line) + word.chars().count() > columns && line.trim() != heading.trim() && line != indent {
            let _ = writeln!(out, "{}", line.trim_end());
            line.clone_from(&indent);
        }
        line.push_str(word);
        line.push(' ');
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// A finding as a line of CSV.
#[derive(Serialize)]
struct FindingRow<'a> {
    severity: &'static str,
    subject: &'a str,
    id: &'static str,
    stage: &'static str,
    cause: &'a str,
    evidence: Vec<String>,
    remedy: &'a [String],
}

/// Returns one line for each finding.
pub(super) fn csv(examination: &Examination) -> String {
    fn row(finding: &Finding) -> FindingRow<'_> {
        FindingRow {
            severity: finding.severity.name(),
            subject: &finding.subject,
            id: finding.id,
            stage: finding.stage.name(),
            cause: &finding.cause,
            evidence: finding
                .evidence
                .iter()
                .map(|evidence| format!("{}: {}", evidence.source, evidence.says))
                .collect(),
            remedy: &finding.remedy,
        }
    }
    telpher_report::csv::rows(&examination.findings.iter().map(row).collect::<Vec<_>>())
}

/// Returns the list of all causes.
pub(super) fn causes() -> String {
    let mut columns = vec![("stage", Align::Left), ("cause", Align::Left), ("usual severity", Align::Left)];
    // In a narrow terminal, what is wrong stands below each cause.
    let is_narrow = terminal::columns() < WIDTH;
    if !is_narrow {
        columns.push(("what is wrong", Align::Left));
    }
    let mut table = Table::new(&columns);
    for cause in causes::ALL {
        table.row([cause.stage.name(), cause.id, cause.severity.name(), cause.what].map(String::from));
        if is_narrow {
            table.below(cause.what);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Evidence;
    use super::*;

    #[test]
    fn control_characters_of_a_bundle_do_not_reach_the_terminal() {
        let finding = Finding::of(&causes::ALL[0], "wq\u{1b}[2J0.0")
            .seen(Evidence { source: "/sys/\u{7}x".into(), says: "\u{1b}]0;title\u{7}\n\nlast".into() })
            .remedy("echo \u{9b}1 > x");
        let mut out = String::new();
        write_finding(&mut out, &finding, &[]);
        assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{out:?}");
        assert!(out.contains("last"));
    }

    #[test]
    fn long_texts_are_wrapped_and_commands_are_not() {
        let command = ["echo"; 60].join(" ");
        let finding = Finding::of(&causes::ALL[0], "x")
            .because("word ".repeat(100))
            .remedy(command.clone())
            .remedy("a sentence ".repeat(30));
        let mut out = String::new();
        write_finding(&mut out, &finding, &[]);
        assert!(out.lines().filter(|line| !line.contains(&command)).all(|line| line.chars().count() <= WIDTH + 2));
        assert!(out.contains(&command));
    }

    #[test]
    fn the_names_of_causes_are_distinct_words() {
        let mut ids: Vec<&str> = causes::ALL.iter().map(|cause| cause.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), causes::ALL.len());
        assert!(ids.iter().all(|id| id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')));
        assert!(causes::ALL.iter().all(|cause| !cause.what.ends_with('.')));
    }
}
