//! A load generator: connects to any NVMe/TCP target, keeps commands in flight, and verifies all data that it knows.
//!
//! ```text
//! LoadOptions ─► Association (admin queue, Identify) ─► I/O queues ─► threads: Plan ─► Initiator ─► socket
//!                    └ keep alive, in order shut down                    └ Stamp: block, generation, checksum
//! ```
//!
//! The target may be hostile: every wait has a limit, and no memory is allocated by a length that the target chose.

pub mod association;
pub mod error;
pub mod options;
mod plan;
pub mod result;
pub mod socket;
pub mod stamp;
mod worker;

pub use association::{Association, Geometry};
pub use error::LoadError;
pub use options::{End, LoadOptions, Pattern};
pub use result::{ConnectionError, Counts, Latencies, LoadResult};

use plan::{Plan, Region};
use socket::HostSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;
use telpher_os::Random;
use worker::{Queue, Shared, WorkerResult};

/// Commands in flight on one I/O queue are at most this many. Source: issue; Linux nvmet's queues have 1024 entries.
pub const MOST_DEPTH: u16 = 1024;

/// The admin queues of a load.
#[derive(Debug)]
struct Associations<'a> {
    options: &'a LoadOptions,
    all: Vec<Association>,
    /// I/O queues that are still to be opened.
    wanted: u32,
}

impl Associations<'_> {
    /// Opens an I/O queue; on a new controller if the others have no queue left.
    fn open_queue(&mut self, depth: u16) -> Result<(HostSocket, u16), LoadError> {
        if self.all.last().is_none_or(|last| last.free_queues() == 0) {
            let wanted = u16::try_from(self.wanted).unwrap_or(u16::MAX);
            self.all.push(Association::connect(self.options, wanted)?);
        }
        self.wanted = self.wanted.saturating_sub(1);
        self.all.last_mut().expect("just added").open_queue(depth)
    }

    fn keep_alive(&mut self) -> Result<(), LoadError> {
        self.all.iter_mut().try_for_each(Association::keep_alive)
    }
}

/// Runs a load to its end. Connections that end early are in the result, with their errors.
///
/// # Errors
/// [`LoadError`] if the load cannot start.
pub fn run(options: &LoadOptions) -> Result<LoadResult, LoadError> {
    check(options)?;
    let wanted = u32::from(options.connections) + u32::from(options.idle_connections);
    let mut associations = Associations { options, all: Vec::new(), wanted };
    let mut sockets = Vec::new();
    for _ in 0..options.connections {
        sockets.push(associations.open_queue(options.depth)?);
    }
    let idle: Vec<HostSocket> = (0..options.idle_connections)
        .map(|_| associations.open_queue(1).map(|(socket, _)| socket))
        .collect::<Result<_, _>>()?;
    let geometry = associations.all[0].geometry();
    let depth = sockets.iter().map(|(_, depth)| *depth).min().unwrap_or(options.depth);
    let mut threads: Vec<Vec<Queue>> = (0..options.threads).map(|_| Vec::new()).collect();
    let regions = regions(options, &geometry)?;
    let run = Random::new(options.seed).next();
    for ((number, (socket, depth)), region) in (0_u16..).zip(sockets).zip(regions) {
        let plan = Plan::new(options.pattern, region, run, options.seed ^ u64::from(number) << 32, options.fill);
        let queue = Queue::new(number, socket, plan, options.nsid, geometry.capsule_bytes, depth);
        threads[usize::from(number % options.threads)].push(queue);
    }
    let (results, mut errors) = run_threads(threads, options, &mut associations);
    for mut socket in idle {
        if let Err(source) = socket.read(&mut [0; 1]) {
            errors.push(ConnectionError { connection: "an idle connection".into(), source });
        }
    }
    let controllers = associations.all.len();
    for association in associations.all {
        if let Err(source) = association.shut_down() {
            errors.push(ConnectionError { connection: "an admin queue".into(), source });
        }
    }
    let mut result = LoadResult {
        pattern: options.pattern,
        connections: options.connections,
        threads: options.threads,
        depth,
        controllers,
        idle_connections: options.idle_connections,
        geometry,
        elapsed: Duration::ZERO,
        counts: Counts::default(),
        latencies: Latencies::default(),
        cpu: Duration::ZERO,
        errors,
    };
    let begin = results.iter().map(|worker| worker.begin).min();
    let end = results.iter().map(|worker| worker.end).max();
    result.elapsed = end.zip(begin).map_or(Duration::ZERO, |(end, begin)| end - begin);
    for worker in results {
        result.counts.add(&worker.counts);
        result.latencies.merge(&worker.latencies);
        result.cpu += worker.cpu;
        result.errors.extend(
            worker
                .errors
                .into_iter()
                .map(|(number, source)| ConnectionError { connection: format!("connection {number}"), source }),
        );
    }
    Ok(result)
}

/// Runs the threads, and keeps the controllers alive meanwhile.
fn run_threads(
    threads: Vec<Vec<Queue>>,
    options: &LoadOptions,
    associations: &mut Associations<'_>,
) -> (Vec<WorkerResult>, Vec<ConnectionError>) {
    let shared = Shared {
        start: Barrier::new(threads.len()),
        is_stopping: AtomicBool::new(false),
        patience: options.patience,
        end: options.end,
        fill: options.fill,
    };
    let (sender, receiver) = channel();
    let (mut results, mut errors) = (Vec::new(), Vec::new());
    let count = threads.len();
    thread::scope(|scope| {
        for queues in threads {
            let (sender, shared): (mpsc::Sender<_>, _) = (sender.clone(), &shared);
            scope.spawn(move || {
                // The receiver lives until all results have come.
                let _ = sender.send(worker::run(queues, shared));
            });
        }
        let interval = Duration::from_millis(u64::from(options.keep_alive_ms / 2));
        let mut is_alive = !interval.is_zero();
        for _ in 0..count {
            let result = loop {
                let wait = if is_alive { interval } else { Duration::MAX };
                match receiver.recv_timeout(wait) {
                    Ok(result) => break result,
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(source) = associations.keep_alive() {
                            errors.push(ConnectionError { connection: "an admin queue".into(), source });
                            shared.is_stopping.store(true, Ordering::Relaxed);
                            is_alive = false;
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => unreachable!("this function has a sender"),
                }
            };
            match result {
                Ok(result) => results.push(result),
                Err(source) => errors.push(ConnectionError { connection: "a thread".into(), source }),
            }
        }
    });
    (results, errors)
}

/// Checks what the options ask for, before anything is sent.
fn check(options: &LoadOptions) -> Result<(), LoadError> {
    let unusable = |what: String| Err(LoadError::Unusable(what));
    if !(1..=MOST_DEPTH).contains(&options.depth) {
        return unusable(format!("a depth of {} is not between 1 and {MOST_DEPTH}", options.depth));
    }
    if options.connections == 0 || options.threads == 0 {
        return unusable("a load needs at least one connection and one thread".into());
    }
    for name in [&options.identity.host_nqn, &options.identity.subsystem_nqn] {
        if !(11..=223).contains(&name.len()) {
            return unusable(format!("the name '{name}' has {} bytes; NVMe names have 11 to 223", name.len()));
        }
    }
    Ok(())
}

/// Each connection's part of the namespace.
fn regions(options: &LoadOptions, geometry: &Geometry) -> Result<Vec<Region>, LoadError> {
    let unusable = |what: String| Err(LoadError::Unusable(what));
    let most_bytes = options.pattern.most_bytes();
    let block_bytes = geometry.block_bytes;
    if most_bytes > geometry.transfer_bytes {
        return unusable(format!(
            "{} needs transfers of {most_bytes} bytes; the controller allows {} (MDTS)",
            options.pattern, geometry.transfer_bytes
        ));
    }
    if block_bytes > most_bytes {
        return unusable(format!("{} needs blocks of at most {most_bytes} bytes, not {block_bytes}", options.pattern));
    }
    let extent = u64::from(most_bytes / block_bytes);
    let blocks = geometry.blocks.min(options.span_bytes / u64::from(block_bytes));
    let extents = blocks / extent / u64::from(options.connections);
    if extents == 0 {
        return unusable(format!(
            "{} connections need {} bytes each; {blocks} blocks of {block_bytes} bytes are too few",
            options.connections, most_bytes
        ));
    }
    let blocks = extents * extent;
    Ok((0..u64::from(options.connections))
        .map(|number| Region { first: number * blocks, blocks, block_bytes })
        .collect())
}
