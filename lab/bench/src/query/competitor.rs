//! DuckDB in a Python process, if a Python with DuckDB is available.

use crate::BenchError;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use telpher_query::{Answer, Kind, Table, Value};

/// The Python program.
const PROGRAM: &str = include_str!("duckdb.py");

/// A line of its output.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompetitorLine {
    version: String,
    missing: Option<String>,
    error: Option<String>,
    kinds: Vec<String>,
    ns: u64,
    rows: Vec<Vec<Option<String>>>,
}

/// DuckDB, waiting for commands.
#[derive(Debug)]
pub(super) struct Competitor {
    version: String,
    child: Child,
    /// `None` once the pipe is closed to end the process.
    questions: Option<BufWriter<ChildStdin>>,
    answers: BufReader<ChildStdout>,
}

/// Why DuckDB is not available: a sentence for the report's reader.
#[derive(Debug)]
pub(super) struct Missing(pub String);

impl Competitor {
    /// Starts it with `threads` threads per query.
    pub(super) fn start(python: &Path, threads: usize) -> Result<Result<Self, Missing>, BenchError> {
        let mut command = Command::new(python);
        // `-u`: standard output is not buffered.
        command.args(["-u", "-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return Ok(Err(Missing(format!("{} does not start: {error}", python.display())))),
        };
        let questions = child.stdin.take().map(BufWriter::new);
        let answers = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut rival = Competitor { version: String::new(), child, questions, answers };
        let reply = rival.hear().map_err(failed)?;
        if let Some(missing) = reply.missing {
            return Ok(Err(Missing(format!("{} says: {missing}", python.display()))));
        }
        rival.version = reply.version;
        rival.ask(&json!({ "threads": threads }), &[]).map_err(failed)?;
        Ok(Ok(rival))
    }

    /// Returns its version, such as `2.0.0`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Sends it a table's columns, with the types that they have here.
    pub(super) fn load(&mut self, name: &str, table: &Table) -> Result<(), BenchError> {
        let all = 0..table.rows();
        let bytes: Vec<&[u8]> = table.columns().iter().map(|column| column.bytes(all.clone())).collect();
        let kinds = table.columns().iter().map(|column| kind(column.kind()));
        let columns: Vec<_> = table
            .columns()
            .iter()
            .zip(kinds.clone())
            .zip(&bytes)
            .map(|((c, k), b)| json!([c.name(), k.0, b.len()]))
            .collect();
        let reply = self.ask(&json!({ "table": name, "columns": columns }), &bytes).map_err(failed)?;
        if !reply.kinds.iter().map(String::as_str).eq(kinds.map(|kind| kind.1)) {
            return Err(failed(io::Error::other(format!("its columns have other types: {}", reply.kinds.join(", ")))));
        }
        Ok(())
    }

    /// Makes it parse and plan the query for the next turns.
    pub(super) fn prepare(&mut self, sql: &str) -> Result<(), BenchError> {
        self.ask(&json!({ "prepare": sql }), &[]).map(drop).map_err(failed)
    }

    /// Runs the query; returns the time by DuckDB's own clock, and whether the answer equals `expected`.
    pub(super) fn turn(&mut self, expected: &Answer) -> Result<(Duration, bool), BenchError> {
        let reply = self.ask(&json!({ "ask": 1 }), &[]).map_err(failed)?;
        Ok((Duration::from_nanos(reply.ns), is_same(expected, &reply.rows)))
    }

    fn ask(&mut self, line: &impl Serialize, bytes: &[&[u8]]) -> io::Result<CompetitorLine> {
        let questions = self.questions.as_mut().expect("only dropping ends it");
        serde_json::to_writer(&mut *questions, line)?;
        questions.write_all(b"\n")?;
        for bytes in bytes {
            questions.write_all(bytes)?;
        }
        questions.flush()?;
        self.hear()
    }

    fn hear(&mut self) -> io::Result<CompetitorLine> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer"));
        }
        let reply: CompetitorLine =
            serde_json::from_str(&line).map_err(|_| io::Error::other(format!("it said {line:?}")))?;
        match reply.error {
            Some(error) => Err(io::Error::other(error)),
            None => Ok(reply),
        }
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        // The end of its input ends the process.
        drop(self.questions.take());
        // It has no more output, and an error was reported before.
        let _ = self.child.wait();
    }
}

fn failed(source: io::Error) -> BenchError {
    BenchError::Program { what: "DuckDB".into(), source }
}

/// Returns the names of a type in numpy and in DuckDB.
fn kind(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::U8 => ("uint8", "UTINYINT"),
        Kind::I32 => ("int32", "INTEGER"),
        Kind::I64 => ("int64", "BIGINT"),
    }
}

/// Whether these rows of keys and values as text equal the rows of an answer, in the same order.
fn is_same(answer: &Answer, rows: &[Vec<Option<String>>]) -> bool {
    let ours = answer.rows.iter().map(|row| {
        let text = |value: &Value| (*value != Value::Null).then(|| value.to_string());
        row.keys.iter().chain(&row.values).map(text).collect::<Vec<_>>()
    });
    ours.eq(rows.iter().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_query::Row;

    #[test]
    fn answers_are_equal_only_if_every_row_is() {
        let row = |key: i64, values: [Option<i128>; 2]| Row {
            keys: vec![key.into()],
            values: values.map(Value::from).into(),
        };
        let rows = vec![row(1, [Some(i128::from(i64::MAX) + 1), None]), row(2, [Some(-3), Some(0)])];
        let answer = Answer { keys: vec!["k".into()], values: vec!["a".into(), "b".into()], rows };
        let text = |cells: [&str; 3]| cells.map(|cell| (cell != "NULL").then(|| cell.to_owned())).to_vec();
        let right = [text(["1", "9223372036854775808", "NULL"]), text(["2", "-3", "0"])];
        assert!(is_same(&answer, &right));
        assert!(!is_same(&answer, &right[..1]));
        assert!(!is_same(&answer, &[right[1].clone(), right[0].clone()]));
        assert!(!is_same(&answer, &[right[0].clone(), text(["2", "-3", "NULL"])]));
        assert!(!is_same(&answer, &[right[0].clone(), text(["2", "-30", "0"])]));
        assert!(!is_same(&answer, &[right[0].clone(), right[1].clone(), right[1].clone()]));
        assert!(!is_same(&answer, &[right[0].clone(), right[1][..2].to_vec()]));
    }

    #[test]
    fn a_missing_python_is_reported() {
        let missing = Competitor::start(Path::new("/nowhere/python3"), 2).expect("no error").expect_err("no rival");
        assert!(missing.0.starts_with("/nowhere/python3 does not start: No such file"), "{missing:?}");
    }
}
