//! Half round trips of short messages between two threads on two CPUs, by way of the ends of two connections: pushed,
//! polled for, and copied out.
//!
//! `cargo run --release -p telpher-fabric --example ring_cost`
//!
//! Judge a result by the distance of the CPUs: half of a cache line's round trip is the least that a message can take.
//! On a busy machine the threads often wait for their CPUs; the lower decile is then closer to the cost than the
//! median. The last column is a thread that sends to itself, so it shows the instructions without the distance.
#![allow(unsafe_code, reason = "vouches for buffers of its own")]

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telpher_fabric::entry::{Envelope, Message};
use telpher_fabric::{Buffer, Config, Incoming, Outgoing, Payload, Segments, link};
use telpher_mem::{Local, Space};
use telpher_os::{Distance, allowed_cpus, line_round_trip, run_on};

/// Bytes of the messages.
const LENGTHS: [usize; 5] = [0, 8, 64, 1 << 10, 4 << 10];
/// Round trips between two reads of the clock.
const BATCH: u32 = 200;
/// Batches of a length in each turn. The lengths take turns, so that a change of the machine affects all.
const BATCHES: usize = 20;
const TURNS: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let cpus = allowed_cpus()?;
    let &[one, other, ..] = &cpus[..] else { return Err("two CPUs are needed".into()) };
    print_distance(one, other)?;
    let (there, arrives_there) = link(&Config::default())?;
    let (back, arrives_back) = link(&Config::default())?;
    let is_over = AtomicBool::new(false);
    let mut nanos = vec![Vec::new(); LENGTHS.len()];
    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let echo = scope.spawn(|| {
            let kept = run_on(&[other]);
            let mut end = End::new(back, arrives_there);
            while let Some(len) = end.receive(&is_over) {
                end.send(len);
            }
            kept
        });
        run_on(&[one])?;
        let mut end = End::new(there, arrives_back);
        for _ in 0..TURNS {
            for (len, nanos) in LENGTHS.into_iter().zip(&mut nanos) {
                for _ in 0..BATCHES {
                    let start = Instant::now();
                    for _ in 0..BATCH {
                        end.send(len);
                        end.receive(&is_over);
                    }
                    nanos.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(2 * BATCH));
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
        echo.join().expect("the thread does not panic")?;
        Ok(())
    })?;
    println!("{:>8} {:>12} {:>12} {:>16}", "bytes", "decile, ns", "median, ns", "one thread, ns");
    for (len, mut nanos) in LENGTHS.into_iter().zip(nanos) {
        nanos.sort_by(f64::total_cmp);
        let alone = on_one_thread(len)?;
        println!("{len:>8} {:>12.0} {:>12.0} {alone:>16.0}", nanos[nanos.len() / 10], nanos[nanos.len() / 2]);
    }
    print_distance(one, other)
}

/// Returns the median time of a message from a thread to itself: what remains if no cache line moves.
fn on_one_thread(len: usize) -> Result<f64, Box<dyn Error>> {
    let (outgoing, incoming) = link(&Config::default())?;
    let (mut end, is_over) = (End::new(outgoing, incoming), AtomicBool::new(false));
    let mut nanos: Vec<f64> = (0..TURNS * BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                end.send(len);
                end.receive(&is_over);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH)
        })
        .collect();
    nanos.sort_by(f64::total_cmp);
    Ok(nanos[nanos.len() / 2])
}

/// Prints how long a cache line takes from one CPU to the other.
fn print_distance(one: usize, other: usize) -> Result<(), Box<dyn Error>> {
    match line_round_trip(one, other, Duration::from_millis(200))? {
        Some(trip) => println!(
            "CPUs {one} and {other} are {}: half a round trip of a cache line takes {:.0} ns",
            Distance::of(trip).name(),
            trip.as_secs_f64() * 5e8
        ),
        None => println!("CPUs {one} and {other} are too busy to measure their distance"),
    }
    Ok(())
}

/// One thread's ends.
struct End {
    outgoing: Outgoing,
    incoming: Incoming,
    local: Local,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl End {
    fn new(outgoing: Outgoing, incoming: Incoming) -> End {
        // SAFETY: copies into and out of buffers of this thread, and the memory of the connections.
        let local = unsafe { Local::new() };
        let longest = LENGTHS[LENGTHS.len() - 1];
        End { outgoing, incoming, local, sent: vec![1; longest], received: vec![0; longest] }
    }

    fn send(&mut self, len: usize) {
        let address = self.sent.as_ptr().expose_provenance() as u64;
        // SAFETY: the bytes live, and are only read.
        let buffer = unsafe { Buffer::vouch(address, len as u64) };
        let envelope = Envelope { is_tagged: true, tag: 1, data: None, len: len as u64 };
        let message = Message::Eager { envelope, wants_answer: None };
        self.outgoing.push(&message, &Segments::new(&[buffer]).expect("one buffer")).expect("there is room");
    }

    /// Waits for a message, and returns its length; `None` at the end.
    fn receive(&mut self, is_over: &AtomicBool) -> Option<usize> {
        loop {
            if let Some(arrived) = self.incoming.next_message().expect("the peer keeps to the rules") {
                let Message::Eager { envelope, .. } = arrived.message() else { panic!("another message") };
                let len = usize::try_from(envelope.len).expect("a short message");
                let into = &mut self.received[..len];
                match arrived.payload() {
                    Payload::Inline(bytes) => into.copy_from_slice(&bytes[..len]),
                    Payload::Shared { address, .. } => self.local.read(*address, into).expect("it is mapped"),
                }
                return Some(len);
            }
            if is_over.load(Ordering::Relaxed) {
                return None;
            }
            // No pause: on some processors it takes as long as a message.
        }
    }
}
