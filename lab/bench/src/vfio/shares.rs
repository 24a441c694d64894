//! Machines that always have work: their shares of one engine, and a machine with an engine of its own.

use super::guest::{ENTRIES, Guest, Server, at, failed};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Experiment;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use telpher_report::machine::Machine;

/// Two machines on one engine.
pub(super) const EQUAL: Experiment = Experiment {
    name: "shares",
    question: "How much of an engine do two machines of equal weight get?",
    cores: 1,
    weight: 1.0,
    measure: equal,
};

/// A machine beside a neighbour. Time in which its engine waits for a processor does not count: with few cores, that is
/// the share of the clients and of the neighbour's engine in this computer.
pub(super) const OWN_ENGINE: Experiment = Experiment {
    name: "own-engine",
    question: "How much does a machine with its own engine lose beside a busy neighbour?",
    cores: 2,
    weight: 1.0,
    measure: own_engine,
};

/// Most difference of two shares, and most loss. Source: goals of vfio.
pub(super) const MOST: f64 = 5.0;
/// Bytes of a copy, and copies in a batch.
pub(super) const SIZE: u32 = 256 << 10;
pub(super) const MEMBERS: u32 = 32;
/// Pause of a client whose queue is full. Source: chosen; far shorter than the work in a full queue.
const PAUSE: Duration = Duration::from_micros(200);
/// Turns of a neighbour that works and rests.
const TURNS: u32 = 10;

/// Keeps a guest's queue full until `stop`, and counts batches that have ended.
fn saturate(guest: &mut Guest, stop: &AtomicBool, done: &AtomicU64) -> io::Result<()> {
    let record = |n: u64| at::RECORDS + n % ENTRIES * 32;
    let batch = guest.batch(MEMBERS, SIZE);
    let (mut submitted, mut ended) = (0_u64, 0_u64);
    while !stop.load(Ordering::Relaxed) || ended < submitted {
        if !stop.load(Ordering::Relaxed) && submitted < ended + ENTRIES {
            guest.clear(record(submitted));
            guest.submit(&batch.with_record(record(submitted)))?;
            submitted += 1;
            continue;
        }
        guest.wait(record(ended), || thread::sleep(PAUSE))?;
        ended += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs a guest in a thread until `stop`.
fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    guest: &'scope mut Guest,
    stop: &'scope AtomicBool,
    done: &'scope AtomicU64,
) -> thread::ScopedJoinHandle<'scope, io::Result<()>> {
    scope.spawn(move || saturate(guest, stop, done))
}

fn joined(thread: thread::ScopedJoinHandle<'_, io::Result<()>>) -> Result<(), BenchError> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked"))).map_err(failed)
}

fn equal(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut server = Server::start(&["", ""], &["--engines", "1"])?;
    let mut guests = [server.guest(0)?, server.guest(1)?];
    guests.iter().for_each(|guest| guest.prepare(SIZE));
    let (stop, done) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    let [first, second] = &mut guests;
    let counts = thread::scope(|scope| {
        let threads = [spawn(scope, first, &stop, &done[0]), spawn(scope, second, &stop, &done[1])];
        let now = || done.each_ref().map(|done| done.load(Ordering::Relaxed));
        // Both have a full queue from then on.
        thread::sleep(time / 10);
        let before = now();
        thread::sleep(time);
        let after = now();
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(joined)?;
        Ok::<_, BenchError>([after[0] - before[0], after[1] - before[1]])
    })?;
    guests.iter().try_for_each(|guest| guest.check(SIZE))?;
    #[allow(clippy::cast_precision_loss, reason = "counts of some seconds")]
    let [first, second] = counts.map(|count| count as f64);
    let difference = (first - second).abs() / (first + second) * 100.0;
    let how = format!("batches of {MEMBERS} copies of {SIZE} bytes, queues always full: {first} and {second} batches");
    Ok(vec![
        Row::new("difference of the two shares", difference, "%", Some(Goal::AtMost(MOST)), how)
            .open_if(first + second < 200.0),
    ])
}

fn own_engine(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut server = Server::start(&[",own-engines", ""], &["--engines", "1"])?;
    let (mut guest, mut neighbour) = (server.guest(0)?, server.guest(1)?);
    guest.prepare(SIZE);
    neighbour.prepare(SIZE);
    let (stop, done, ignored) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let slice = time / (2 * TURNS);
    let mut losses = thread::scope(|scope| {
        let thread = spawn(scope, &mut guest, &stop, &done);
        // One thread for the neighbour at a time: it works in every second slice.
        let losses = (0..TURNS).map(|_| -> Result<f64, BenchError> {
            let rest = rate(&server, &done, slice)?;
            let until = AtomicBool::new(false);
            let busy = thread::scope(|inner| {
                let thread = inner.spawn(|| saturate(&mut neighbour, &until, &ignored));
                let busy = rate(&server, &done, slice);
                until.store(true, Ordering::Relaxed);
                joined(thread)?;
                busy
            })?;
            Ok((1.0 - busy / rest) * 100.0)
        });
        let losses: Result<Vec<f64>, BenchError> = losses.collect();
        stop.store(true, Ordering::Relaxed);
        joined(thread)?;
        losses
    })?;
    guest.check(SIZE)?;
    let how = format!(
        "copies of {SIZE} bytes in batches; the neighbour works in every second of {} slices; without the time in \
         which the engine's thread was ready and had no processor",
        2 * TURNS
    );
    Ok(vec![Row::new("loss of throughput", median(&mut losses), "%", Some(Goal::AtMost(MOST)), how)])
}

/// Batches per second during a slice, without the time in which the first machine's engine had no processor.
fn rate(server: &Server, done: &AtomicU64, slice: Duration) -> Result<f64, BenchError> {
    let waited_before = server.waited_for_processor(0)?;
    let (before, begun) = (done.load(Ordering::Relaxed), Instant::now());
    thread::sleep(slice);
    let (ended, elapsed) = (done.load(Ordering::Relaxed) - before, begun.elapsed());
    let waited = server.waited_for_processor(0)?.saturating_sub(waited_before);
    #[allow(clippy::cast_precision_loss, reason = "counts of a slice")]
    let ended = ended as f64;
    Ok(ended / elapsed.saturating_sub(waited).as_secs_f64().max(1e-9))
}
