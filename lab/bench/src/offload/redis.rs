//! An unmodified redis server: what recording costs it, and how exact a prediction for it is.

use super::runs::{Offloaded, Predicted, deviation, offload_as_predicted, offloaded, predict, record_into};
use crate::BenchError;
use crate::buffers::fill_known;
use crate::folder::Folder;
use crate::goal::{Goal, Row};
use crate::interleaved::ratio;
use crate::measure::median;
use crate::questions::Experiment;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "redis",
    question: "How much slower is redis while it is recorded, and how exact is the prediction for it?",
    cores: 2,
    weight: 3.0,
    measure,
};

/// Most time of the requests while the server is recorded, by that without. Source: goal of `telpher record`.
const RECORDED: f64 = 1.02;
/// Most deviation of predicted calls and bytes, and of their time, in per cent. Source: goal of
/// `telpher record predict`.
const COUNTS: f64 = 2.0;
const TIME: f64 = 10.0;
/// Requests with short values: in each turn 20,000 writes, then 20,000 reads.
const SHORT: [&str; 6] = ["-d", "100", "-n", "20000", "-t", "set,get"];
/// Bytes of a long value, and keys that have one. Source: chosen; together they are larger than the caches.
const LONG: usize = 256 << 10;
const KEYS: usize = 500;
/// How often each key is written, and then read.
const TURNS: usize = 2;
/// Fewest turns, even if the time is over.
const FEWEST: usize = 3;
/// The longest time until a server answers. Source: chosen; it takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// The programs, and their packages in Debian.
const PROGRAMS: [(&str, &str); 3] =
    [("redis-server", "redis-server"), ("redis-benchmark", "redis-tools"), ("redis-cli", "redis-tools")];

/// Returns the package of the first program that is not there.
pub(super) fn missing() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    PROGRAMS.iter().find(|(program, _)| !is_there(program)).map(|(_, package)| *package)
}

/// A server that answers at a socket of its own. Dropping it ends the server.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts it, under a telpher command if there is one.
    fn start(folder: &Folder, name: &str, under: &[OsString]) -> Result<Server, BenchError> {
        let failed = |source| BenchError::Program { what: format!("redis-server, {name}"), source };
        let socket = folder.file(&format!("{name}.sock"));
        let mut command = Command::new("redis-server");
        if !under.is_empty() {
            command = Command::new(std::env::current_exe().map_err(failed)?);
            command.args(under).args(["--", "redis-server"]);
        }
        command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Server { child: command.spawn().map_err(failed)?, socket };
        let started = Instant::now();
        while UnixStream::connect(&server.socket).is_err() {
            if let Some(status) = server.child.try_wait().map_err(failed)? {
                return Err(failed(io::Error::other(format!("it ended: {status}"))));
            }
            if started.elapsed() > PATIENCE {
                return Err(failed(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Returns the process of the server, which is a child of the telpher command that started it.
    fn process(&self) -> io::Result<u32> {
        let mut connection = UnixStream::connect(&self.socket)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.write_all(b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")?;
        let lines = BufReader::new(connection).lines().map_while(Result::ok);
        let number = lines.map(|line| line.strip_prefix("process_id:").and_then(|number| number.trim().parse().ok()));
        let no_number = || io::Error::new(io::ErrorKind::InvalidData, "INFO has no process_id");
        number.flatten().next().ok_or_else(no_number)
    }

    /// Returns the seconds that the server's main thread, which executes the requests, has run on a processor. Source:
    /// Documentation/scheduler/sched-stats.rst, `/proc/<pid>/schedstat`.
    fn cpu_seconds(&self) -> Result<f64, BenchError> {
        let failed = |source| BenchError::Program { what: "redis-server, its processor time".into(), source };
        let number = self.process().map_err(failed)?;
        let text = std::fs::read_to_string(format!("/proc/{number}/schedstat")).map_err(failed)?;
        let ns = text.split(' ').next().and_then(|first| first.parse::<f64>().ok());
        ns.map(|ns| ns / 1e9).ok_or_else(|| failed(io::Error::other(format!("schedstat has '{}'", text.trim()))))
    }

    /// Sends requests; returns the time until all are answered, and the server's processor time for them.
    fn serve(&self, requests: &[&str]) -> Result<[f64; 2], BenchError> {
        let failed = |source| BenchError::Program { what: "redis-benchmark".into(), source };
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(&self.socket).arg("-q").args(requests);
        let (before, begun) = (self.cpu_seconds()?, Instant::now());
        let output = command.stdin(Stdio::null()).output().map_err(failed)?;
        let seconds = begun.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(failed(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())));
        }
        Ok([seconds, self.cpu_seconds()? - before])
    }

    /// Writes and then reads long values, one request after the other, always the same ones in the same order.
    ///
    /// redis-benchmark takes its keys at random, so that the number of values that it reads differs between two runs.
    fn serve_long(&self) -> io::Result<()> {
        let mut value = vec![0; LONG];
        fill_known(&mut value, 1);
        let mut connection = UnixStream::connect(&self.socket)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let keys = || (0..TURNS * KEYS).map(|number| format!("$7\r\nkey:{:03}\r\n", number % KEYS));
        for key in keys() {
            let request = [format!("*3\r\n$3\r\nSET\r\n{key}${LONG}\r\n").as_bytes(), &value, b"\r\n"].concat();
            expect(&mut connection, &request, b"+OK\r\n")?;
        }
        let answer = [format!("${LONG}\r\n").as_bytes(), &value, b"\r\n"].concat();
        keys().try_for_each(|key| expect(&mut connection, format!("*2\r\n$3\r\nGET\r\n{key}").as_bytes(), &answer))
    }

    fn stop(&mut self) {
        let mut command = Command::new("redis-cli");
        command.arg("-s").arg(&self.socket).args(["shutdown", "nosave"]);
        // A server that has ended does not answer.
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends a request; an answer other than the expected one is an error.
fn expect(connection: &mut UnixStream, request: &[u8], expected: &[u8]) -> io::Result<()> {
    connection.write_all(request)?;
    let mut answer = vec![0; expected.len()];
    connection.read_exact(&mut answer)?;
    if answer == expected { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "it answers wrongly")) }
}

fn measure(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut rows = recording(time)?.to_vec();
    rows.extend(predicted()?);
    Ok(rows)
}

/// What recording costs the server. A third server is not recorded either: it tells how far two servers differ by
/// themselves, because they have their memory at other addresses.
fn recording(time: Duration) -> Result<[Row; 2], BenchError> {
    let folder = Folder::new()?;
    let servers = [
        Server::start(&folder, "alone", &[])?,
        Server::start(&folder, "recorded", &record_into(&folder))?,
        Server::start(&folder, "again", &[])?,
    ];
    // By server, what is measured, and turn.
    let mut seen = [const { [const { Vec::new() }; 2] }; 3];
    // One turn each is not measured: the servers allocate their memory.
    servers.iter().try_for_each(|server| server.serve(&SHORT).map(drop))?;
    let started = Instant::now();
    while seen[0][0].len() < FEWEST || started.elapsed() < time {
        let round = seen[0][0].len();
        // Each server begins some of the rounds.
        for place in 0..servers.len() {
            let at = (round + place) % servers.len();
            let measured = servers[at].serve(&SHORT)?;
            seen[at].iter_mut().zip(measured).for_each(|(of, value)| of.push(value));
        }
    }
    let [alone, recorded, again] = &seen;
    let row = |what: &str, kind: usize, goal| {
        let each = |seen: &[f64]| units::time(median(&mut seen.to_vec()) * 1e9);
        Row::new(
            format!("redis, 100-byte values, under telpher record: {what} by that without"),
            ratio(&recorded[kind], &alone[kind]),
            "of the time",
            goal,
            format!(
                "{}, and {} without, for 20,000 SET and 20,000 GET; median of {} turns; another server without: {:.3}",
                each(&recorded[kind]),
                each(&alone[kind]),
                alone[kind].len(),
                ratio(&again[kind], &alone[kind]),
            ),
        )
    };
    Ok([
        row("time of the requests", 0, Some(Goal::AtMost(RECORDED))),
        row("processor time of the server's main thread", 1, None),
    ])
}

/// How exact the prediction for the server is.
fn predicted() -> Result<[Row; 3], BenchError> {
    let run = |folder: &Folder, name: &str, under: &[OsString]| {
        let failed = |source| BenchError::Program { what: format!("redis-server, {name}"), source };
        Server::start(folder, name, under)?.serve_long().map_err(failed)
    };
    let record = || -> Result<(Folder, Predicted), BenchError> {
        let folder = Folder::new()?;
        run(&folder, "recorded", &record_into(&folder))?;
        let predicted = predict(&folder)?;
        Ok((folder, predicted))
    };
    // The second recording tells how far two runs differ by themselves.
    let ((folder, predicted), (_, again)) = (record()?, record()?);
    run(&folder, "offloaded", &offload_as_predicted(&folder))?;
    let done = offloaded(&folder.file("offload.json"))?;
    Ok(rows_of(predicted, again, done))
}

fn rows_of(predicted: Predicted, again: Predicted, done: Offloaded) -> [Row; 3] {
    let row = |what: &str, [predicted, again, done]: [f64; 3], goal, show: fn(f64) -> String| {
        Row::new(
            format!("redis, 256 KiB values, {what}: predicted, against the run's"),
            deviation(predicted, done),
            "%",
            Some(Goal::AtMost(goal)),
            match predicted > 0.0 {
                true => format!(
                    "{calls} SET and {calls} GET; {} predicted, {} by another recording, {} in the run",
                    show(predicted),
                    show(again),
                    show(done),
                    calls = TURNS * KEYS
                ),
                false => "on this machine the prediction leaves all calls of redis to the CPU".into(),
            },
        )
    };
    let count = |number: f64| format!("{number:.0}");
    [
        row("calls by the device", [predicted.calls, again.calls, done.calls], COUNTS, count),
        row("bytes by the device", [predicted.bytes, again.bytes, done.bytes], COUNTS, count),
        row("simulated time of these calls", [predicted.ns, again.ns, done.ns], TIME, units::time),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prediction(calls: f64, ns: f64) -> Predicted {
        Predicted { calls, bytes: 4.0 * calls, ns, faults: 0.0, section_error: 0.0, curve_error: None }
    }

    #[test]
    fn rows_name_both_recordings_and_the_run() {
        let done = Offloaded { calls: 1000.0, bytes: 4000.0, ns: 2000.0, late: 0.0 };
        let rows = rows_of(prediction(1010.0, 2300.0), prediction(990.0, 1900.0), done);
        assert_eq!(rows.each_ref().map(Row::reached), [true, true, false]);
        assert!(rows[0].how.ends_with("1010 predicted, 990 by another recording, 1000 in the run"), "{}", rows[0].how);
        let without = rows_of(prediction(0.0, 0.0), prediction(990.0, 1900.0), done);
        assert!(without.iter().all(|row| !row.reached() && row.how.ends_with("to the CPU")));
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"+OK\r\n-NO\r\n").unwrap();
        expect(&mut ours, b"SET", b"+OK\r\n").unwrap();
        let error = expect(&mut ours, b"SET", b"+OK\r\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
