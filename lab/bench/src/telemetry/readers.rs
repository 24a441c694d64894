//! The time of a scrape of `telpher exporter`, and of `telpher top --once`, with eight queues and a hundred processes.

use super::clients::{Clients, PROCESSES, QUEUES};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Experiment;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use telpher_report::machine::Machine;

/// The experiment with the exporter.
pub(super) const SCRAPE: Experiment = Experiment {
    name: "scrape",
    question: "How long does a scrape of the exporter take?",
    cores: 1,
    weight: 1.0,
    measure: scrape,
};

/// The experiment with `telpher top`.
pub(super) const TOP: Experiment = Experiment {
    name: "top",
    question: "How long does `telpher top --once` take from start to end?",
    cores: 1,
    weight: 1.0,
    measure: top,
};

/// Most milliseconds of a scrape. Source: goal of telemetry.
const SCRAPE_MS: f64 = 5.0;
/// Most milliseconds of `telpher top --once`. Source: goal of telemetry.
const TOP_MS: f64 = 100.0;
/// Fewest readings, even if the time is over.
const FEWEST: usize = 5;

/// A program that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failed(what: &str) -> impl Fn(io::Error) -> BenchError {
    let what = what.to_owned();
    move |source| BenchError::Program { what: what.clone(), source }
}

/// Calls `read` with the numbers of the ways in turn for about the time; returns milliseconds of each call by way.
fn times<const WAYS: usize>(
    time: Duration,
    mut read: impl FnMut(usize) -> Result<(), BenchError>,
) -> Result<[Vec<f64>; WAYS], BenchError> {
    // One of each is not measured: it loads files and code.
    (0..WAYS).try_for_each(&mut read)?;
    let (mut seen, begin) = (std::array::from_fn(|_| Vec::new()), Instant::now());
    while seen[0].len() < FEWEST || begin.elapsed() < time {
        for (way, seen) in seen.iter_mut().enumerate() {
            let start = Instant::now();
            read(way)?;
            seen.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(seen)
}

fn row(what: &'static str, seen: &mut [f64], most: f64, how: &str) -> Row {
    let how = format!("{how}; {QUEUES} queues, {PROCESSES} processes; median of {}", seen.len());
    Row::new(what, median(seen), "ms", Some(Goal::AtMost(most)), how)
}

/// An exporter, and the address at which it answers.
struct Exporter {
    _child: Killed,
    address: SocketAddr,
}

impl Exporter {
    fn start(clients: &Clients, option: Option<&str>) -> Result<Exporter, BenchError> {
        let failed = failed("telpher exporter");
        let mut command = clients.telpher(&["exporter", "--listen", "127.0.0.1:0"])?;
        let mut child = Killed(command.args(option).stdout(Stdio::piped()).spawn().map_err(&failed)?);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().expect("standard output is piped"))
            .read_line(&mut line)
            .map_err(&failed)?;
        let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")?.parse().ok());
        let address = address.ok_or_else(|| failed(io::Error::other(line)))?;
        Ok(Exporter { _child: child, address })
    }

    /// Scrapes once. All processes must be in the answer: the clients of the eight queues are a hundred. Inside of no
    /// run, hardware has none of them.
    fn scrape(&self) -> Result<(), BenchError> {
        let failed = failed("telpher exporter");
        let text = get(self.address).map_err(&failed)?;
        let clients = text.lines().filter_map(|line| line.strip_prefix("dsa_wq_clients{source=\"run-"));
        let clients: f64 = clients.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        if clients == PROCESSES as f64 { Ok(()) } else { Err(failed(io::Error::other(format!("{clients} clients")))) }
    }
}

fn scrape(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let clients = Clients::start()?;
    let plain = Exporter::start(&clients, None)?;
    let by_process = Exporter::start(&clients, Some("--per-process"))?;
    let mut seen = times::<3>(time, |way| match way {
        0 => plain.scrape(),
        1 => by_process.scrape(),
        _ => {
            let _stopped = clients.stop();
            plain.scrape()
        }
    })?;
    let how = "GET /metrics from connection to end";
    let stopped = format!("{how}; no thread of the device's processes runs an instruction, so none allocates or locks");
    let ways = [
        ("a scrape", how),
        ("a scrape with labels of processes", how),
        ("a scrape while all processes of the device are stopped", &stopped),
    ];
    Ok(ways.into_iter().zip(&mut seen).map(|((what, how), seen)| row(what, seen, SCRAPE_MS, how)).collect())
}

fn get(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: telpher\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn top(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let failed = failed("telpher top --once");
    let clients = Clients::start()?;
    let [mut seen] = times(time, |_| {
        let output = clients.telpher(&["top", "--once"])?.output().map_err(&failed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let rows = text.lines().filter(|line| line.contains(" wq0.") && line.contains(" sleep ")).count();
        if output.status.success() && rows == PROCESSES {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(failed(io::Error::other(format!("{}, {rows} processes: {}", output.status, stderr.trim()))))
    })?;
    Ok(vec![row("telpher top --once", &mut seen, TOP_MS, "start to end")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides_about_the_goal() {
        let rows = [&mut [4.0, 5.0, 90.0][..], &mut [4.0, 5.1, 5.2]].map(|seen| row("a scrape", seen, SCRAPE_MS, "x"));
        assert_eq!(rows.map(|row| row.reached()), [true, false]);
    }
}
