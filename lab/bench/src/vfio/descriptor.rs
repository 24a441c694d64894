//! One descriptor from its store to its record, beside the round trip of a socket.

use super::guest::{ACCESS, Guest, HEADER, Server, at, failed};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::interleaved::{InterleavedLoad, rates, ratio};
use crate::measure::median;
use crate::questions::Experiment;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "descriptor",
    question: "How long does a descriptor take, compared with a message and its reply?",
    cores: 1,
    weight: 1.0,
    measure,
};

/// Most time of a descriptor by that of the socket's round trip. Source: goal of vfio.
const MOST: f64 = 3.0;
/// Bytes of a copy.
const SIZE: u32 = 4096;
/// Members of a batch.
const MEMBERS: u32 = 32;
/// Operations of a step.
const STEP: u64 = 8;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 64;

/// A thread that answers each message as the server answers a store, without doing anything.
struct Echo(UnixStream);

impl Echo {
    fn start() -> io::Result<Echo> {
        let (ours, mut theirs) = UnixStream::pair()?;
        std::thread::Builder::new().name("echo".into()).spawn(move || {
            let (mut header, mut body) = ([0; HEADER], [0; ACCESS + DESCRIPTOR]);
            // Ends when the other side is dropped.
            while theirs.read_exact(&mut header).and_then(|()| theirs.read_exact(&mut body)).is_ok() {
                if theirs.write_all(&[header, [0; ACCESS]].concat()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Echo(ours))
    }

    fn round_trip(&mut self) -> io::Result<()> {
        self.0.write_all(&[0; HEADER + ACCESS + DESCRIPTOR])?;
        self.0.read_exact(&mut [0; HEADER])?;
        self.0.read_exact(&mut [0; ACCESS])
    }
}

/// What takes turns.
enum RoundTrip {
    Echo(Echo),
    Single(Guest),
    Batch(Guest),
}

impl RoundTrip {
    fn step(&mut self) -> io::Result<()> {
        match self {
            RoundTrip::Echo(echo) => echo.round_trip(),
            RoundTrip::Single(guest) => {
                guest.clear(at::RECORDS);
                let copy = telpher_abi::Descriptor::memory_move(at::SRC, at::DST, SIZE).with_record(at::RECORDS);
                guest.submit(&copy)?;
                guest.wait(at::RECORDS, std::hint::spin_loop)
            }
            RoundTrip::Batch(guest) => {
                guest.clear(at::RECORDS);
                let batch = guest.batch(MEMBERS, SIZE).with_record(at::RECORDS);
                guest.submit(&batch)?;
                guest.wait(at::RECORDS, std::hint::spin_loop)
            }
        }
    }
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut server = Server::start(&["", ""], &[])?;
    let (single, batch) = (server.guest(0)?, server.guest(1)?);
    single.prepare(SIZE);
    batch.prepare(SIZE);
    let step = |round_trip: &mut RoundTrip| {
        for _ in 0..STEP {
            round_trip.step().map_err(failed)?;
        }
        Ok(STEP)
    };
    let all = [RoundTrip::Echo(Echo::start().map_err(failed)?), RoundTrip::Single(single), RoundTrip::Batch(batch)];
    let mut loads: Vec<_> = all.into_iter().map(|one| InterleavedLoad { states: vec![one], step: &step }).collect();
    let seen = rates(machine, time, &mut loads)?;
    for load in &loads {
        match &load.states[0] {
            RoundTrip::Echo(_) => {}
            RoundTrip::Single(guest) | RoundTrip::Batch(guest) => guest.check(SIZE)?,
        }
    }
    let us = |at: usize, by: f64| 1e6 / by / median(&mut seen[at].clone());
    let against = "times the round trip of the socket, median over the turns";
    let how = format!("copies of {SIZE} bytes; median of {} turns", seen[0].len());
    Ok(vec![
        Row::new("message and reply over a socket", us(0, 1.0), "µs", None, how.clone()),
        Row::new("one store of 64 bytes until the record is seen", us(1, 1.0), "µs", None, how.clone()),
        Row::new("the same, by the round trip", ratio(&seen[0], &seen[1]), "×", Some(Goal::AtMost(MOST)), against),
        Row::new("a copy in a batch of 32", us(2, MEMBERS.into()), "µs", None, how),
    ])
}
