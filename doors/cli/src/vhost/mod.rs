//! `telpher vhost`: a small software switch between virtual machines, with copies by the CPU or a device.
//!
//! ```text
//! options ──► lanes: device queues ──► ends: sockets and interfaces ──► threads, each a Forwarder
//! Forwarder: one thread over its streams, turn after turn
//!   end ── collect ◄── completed copies are shown to the guest
//!   end ── take ──► work (mode) ──► submit ──► end
//!     └─ pens ──► capture: one file for each port
//! every second: look ──► live: lines on standard error          at the end: look ──► summary on standard output
//! ```

mod features;
mod lanes;
mod live;
mod look;
mod summary;

use crate::args::{Forward, Vhost};
use crate::{log, version};
use lanes::Lanes;
use live::Live;
use look::{Look, PortLook};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use summary::Summary;
use telpher_os::Termination;
use telpher_report::deliver::DeliverError;
use telpher_switch::{
    Capture, Counts, End, Forwarder, Full, Mode, PortCounts, Settings, SwitchError, Tap, partner, routes, shares,
    tap_queues,
};
use telpher_vhost::words::Features;
use telpher_vhost::{Offer, PacketPool, PoolOptions, Port, PortOptions, Role, Socket};

/// Why the switch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum VhostError {
    /// No port was given.
    #[error("a switch needs a port; give --socket PATH for a guest, or --tap NAME for this system")]
    NoPorts,
    /// A socket cannot be created or used.
    #[error("cannot open a port at {}{}", path.display(), advice(source))]
    Socket {
        /// The path.
        path: PathBuf,
        /// The attempt and the system's error.
        source: io::Error,
    },
    /// An interface or a capture cannot be made.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A port does not exist.
    #[error("--{option} names port {port}; the ports are 0 to {last}, sockets first, in the order given")]
    NoPort {
        /// The option.
        option: &'static str,
        /// The port that it names.
        port: usize,
        /// The last port.
        last: usize,
    },
    /// A device queue does not exist.
    #[error("--map names {lane}; {device} has {known}")]
    NoLane {
        /// The queue that was named.
        lane: String,
        /// The device.
        device: String,
        /// Its queues.
        known: String,
    },
    /// A threshold was given without a device.
    #[error("--threshold needs a device that copies; name one with --device, such as model:spr")]
    NoDevice,
    /// A processor is not available.
    #[error("cannot run on processor {cpu}: this process may use {allowed}; name one of them with --cpus")]
    Cpu {
        /// The one that was named.
        cpu: usize,
        /// The available processors.
        allowed: String,
    },
    /// There are more threads than queues.
    #[error("--cpus names {threads} processors, but there are only {routes} queues to forward; give at most {routes}")]
    Threads {
        /// Number of processors named.
        threads: usize,
        /// Number of queues.
        routes: usize,
    },
    /// Generated packets do not fit into a buffer.
    #[error("--size {size} exceeds the longest packet of {longest} bytes; give --longest {size}")]
    Size {
        /// The requested value.
        size: u32,
        /// The limit.
        longest: u32,
    },
    /// There is no memory for packets.
    #[error("no memory for {buffers} packet buffers; give fewer with --buffers")]
    Pool {
        /// The requested value.
        buffers: u32,
        /// The system's error.
        source: telpher_mem::MapError,
    },
    /// The device's name is invalid.
    #[error(transparent)]
    Name(#[from] telpher_device::NameError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] telpher_device::OpenError),
    /// No DMA queue can be created over its queue.
    #[error(transparent)]
    DmaQueue(#[from] telpher_vhost::DmaQueueError),
    /// The system refuses a thread or a file descriptor.
    #[error("cannot start the switch")]
    Start(#[source] io::Error),
    /// No frontend connected.
    #[error(
        "no frontend negotiated features within {seconds} s; start one at {path}, or omit --socket to see the offered \
         ones"
    )]
    NoFrontend {
        /// How long the switch waited.
        seconds: f64,
        /// The path.
        path: String,
    },
    /// The summary cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Returns advice for a socket that cannot be opened, unless its error has some.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists => "",
        _ => "; give another path with --socket",
    }
}

/// Interval of the live statistics.
const NEWS: Duration = Duration::from_secs(1);
/// Interval at which interfaces adopt their guests' queues. Source: chosen; a driver that enables a queue takes as
/// long.
const FOLLOWED: Duration = Duration::from_millis(100);

/// A port, its server, and its name.
#[derive(Debug)]
struct Seat {
    end: End,
    socket: Option<Socket>,
    name: String,
}

/// Runs the switch until --seconds, Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Vhost) -> Result<(), VhostError> {
    let pairs = args.socket.iter().map(|socket| socket.queues).max().unwrap_or(1);
    args.printed.check()?;
    if args.show_features && args.socket.is_empty() {
        return Ok(args
            .printed
            .write(features::Shown::new(&Offer::of_pairs(pairs), None).text(args.printed.format))?);
    }
    check(args)?;
    let endings = Termination::listen().map_err(VhostError::Start)?;
    let lanes = Lanes::open(args, |remark| eprintln!("telpher: {remark}"))?;
    log::info(|| {
        let queues: Vec<&str> = lanes.all().iter().map(|lane| lane.name()).collect();
        format!("--device {}: queues {queues:?}, runner {:?}; {}", args.device, args.runner, lanes.rule())
    });
    log::info(|| format!("kernels: {}", version::kernels()));
    // One byte more, with which interfaces recognise frames that are too long.
    let options = PoolOptions { buffers: args.buffers, longest: args.longest + 1 };
    let pool = PacketPool::new(options).map_err(|source| VhostError::Pool { buffers: args.buffers, source })?;
    let seats = seats(args, &lanes, &pool)?;
    if args.show_features {
        return show_agreed(args, &seats[0], &endings);
    }
    let captures = captures(args, seats.len())?;
    let ends: Vec<End> = seats.iter().map(|seat| seat.end.clone()).collect();
    let queues: Vec<usize> = ends.iter().map(End::queues).collect();
    let settings = settings(args);
    let all = routes(&queues, settings.mode);
    let shares = shares(&all, args.cpus.len().max(1));
    if let Some(threads) = Some(args.cpus.len()).filter(|threads| *threads > shares.len()) {
        return Err(VhostError::Threads { threads, routes: shares.len() });
    }
    for (number, seat) in seats.iter().enumerate() {
        log::info(|| format!("port {number} is {} with {} queues", seat.name, seat.end.queues()));
    }
    log::debug(|| format!("{} forwarding threads share {} queues", shares.len(), all.len()));
    let stop = AtomicBool::new(false);
    let boards: Vec<Mutex<Counts>> = shares.iter().map(|_| Mutex::default()).collect();
    let look = || look(&seats, &boards, &captures);
    let begun = look();
    let mut live = Live::new(!args.quiet);
    live.begin(&seats.iter().map(|seat| seat.name.as_str()).collect::<Vec<_>>(), settings.mode, &lanes.rule());
    thread::scope(|scope| {
        for (index, share) in shares.iter().enumerate() {
            let forwarder = Forwarder::new(&ends, share, &pool, settings).captured(&captures);
            let (board, stop, cpu) = (&boards[index], &stop, args.cpus.get(index).copied());
            let work = move || {
                let mut forwarder = forwarder;
                if let Some(cpu) = cpu {
                    // Cannot fail: the processors were checked before.
                    let _ = telpher_os::run_on(&[cpu]);
                }
                forwarder.run(stop, board);
            };
            let thread = thread::Builder::new().name(format!("forward-{index}"));
            if let Err(error) = thread.spawn_scoped(scope, work) {
                stop.store(true, Ordering::Relaxed);
                return Err(VhostError::Start(error));
            }
        }
        let end = args.seconds.map(|seconds| begun.at + Duration::from_secs_f64(seconds));
        let mut last = begun.clone();
        loop {
            let next = last.at + NEWS;
            follow(&seats);
            let until = end.map_or(next, |end| end.min(next)).min(Instant::now() + FOLLOWED);
            let asked = endings.wait(until.saturating_duration_since(Instant::now()));
            if asked || end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            if Instant::now() >= next {
                let now = look();
                live.news(&begun, &last, &now);
                last = now;
            }
        }
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let mut failed = Ok(());
    for capture in captures.iter().flatten() {
        failed = failed.and(capture.end());
    }
    let summary = Summary::new(args, settings, &lanes, &begun, &look());
    args.printed.write(summary.text(args.printed.format))?;
    Ok(failed?)
}

/// Checks the options before anything is created.
fn check(args: &Vhost) -> Result<(), VhostError> {
    let ports = args.socket.len() + args.tap.len();
    let Some(last) = ports.checked_sub(1) else { return Err(VhostError::NoPorts) };
    let captured = args.capture.iter().map(|capture| ("capture", capture.port));
    let mapped = args.map.iter().filter_map(|map| Some(("map", map.port?)));
    if let Some((option, port)) = captured.chain(mapped).find(|(_, port)| *port > last) {
        return Err(VhostError::NoPort { option, port, last });
    }
    if matches!(args.forward, Forward::Txonly | Forward::Flowgen) && args.size > args.longest {
        return Err(VhostError::Size { size: args.size, longest: args.longest });
    }
    let allowed = telpher_os::allowed_cpus().map_err(VhostError::Start)?;
    if let Some(&cpu) = args.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        let allowed = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        return Err(VhostError::Cpu { cpu, allowed });
    }
    Ok(())
}

fn settings(args: &Vhost) -> Settings {
    let mode = match args.forward {
        Forward::Io => Mode::Io,
        Forward::Mac => Mode::Mac,
        Forward::Rxonly => Mode::RxOnly,
        Forward::Txonly => Mode::TxOnly,
        Forward::Flowgen => Mode::FlowGen,
    };
    let flows = if mode == Mode::FlowGen { args.flows } else { 1 };
    let full = if args.retry { Full::Retry } else { Full::Drop };
    let retry_for = Duration::from_secs_f64(args.retry_for);
    Settings { mode, burst: args.burst.into(), full, retry_for, len: args.size, flows }
}

/// Creates the ports and starts to serve them: sockets, then interfaces.
fn seats(args: &Vhost, lanes: &Lanes, pool: &PacketPool) -> Result<Vec<Seat>, VhostError> {
    let (mut seats, mut rings) = (Vec::new(), 0);
    for (index, socket) in args.socket.iter().enumerate() {
        let pairs = usize::from(socket.queues);
        let options = PortOptions {
            offer: Offer::of_pairs(socket.queues),
            rings: lanes.rings(index, pairs, rings),
            ..PortOptions::default()
        };
        rings += 2 * pairs;
        let port = Port::new(pool, options);
        let role = if socket.client { Role::Client } else { Role::Server };
        let served = Socket::serve(&port, &socket.path, role)
            .map_err(|source| VhostError::Socket { path: socket.path.clone(), source })?;
        seats.push(Seat { end: End::Guest(port), socket: Some(served), name: socket.path.display().to_string() });
    }
    let queues = tap_queues(&args.socket.iter().map(|socket| socket.queues.into()).collect::<Vec<_>>(), args.tap.len());
    for (name, queues) in args.tap.iter().zip(queues) {
        let tap = Tap::open(name, queues, pool, args.longest)?;
        let name = format!("tap {}", tap.name());
        seats.push(Seat { end: End::Tap(Arc::new(tap)), socket: None, name });
    }
    Ok(seats)
}

/// Lets interfaces use the queues that their peers' guests use.
fn follow(seats: &[Seat]) {
    for (index, seat) in seats.iter().enumerate() {
        if let (End::Tap(tap), End::Guest(port)) = (&seat.end, &seats[partner(index, seats.len())].end) {
            tap.follow(|queue| port.is_running(2 * queue));
        }
    }
}

/// Creates the requested captures.
fn captures(args: &Vhost, ports: usize) -> Result<Vec<Option<Arc<Capture>>>, VhostError> {
    let mut captures: Vec<Option<Arc<Capture>>> = vec![None; ports];
    for capture in &args.capture {
        captures[capture.port] = Some(Capture::begin(&capture.file, args.snap)?);
    }
    Ok(captures)
}

/// Returns the present state of the switch.
fn look(seats: &[Seat], boards: &[Mutex<Counts>], captures: &[Option<Arc<Capture>>]) -> Look {
    let mut counts = Counts::default();
    for board in boards {
        counts += &*board.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    }
    counts.ports.resize(seats.len(), PortCounts::default());
    let port = |(index, seat): (usize, &Seat)| {
        let capture = captures.get(index).and_then(Option::as_ref);
        PortLook::new(&seat.name, &seat.end, seat.socket.as_ref().map(Socket::state), capture)
    };
    let ports = seats.iter().enumerate().map(port).collect();
    Look { at: Instant::now(), ticks: telpher_os::ticks(), counts, ports }
}

/// Waits for a frontend with a driver, and shows the negotiated features.
fn show_agreed(args: &Vhost, seat: &Seat, endings: &Termination) -> Result<(), VhostError> {
    let (End::Guest(port), Some(socket)) = (&seat.end, &seat.socket) else {
        unreachable!("the first port is a socket")
    };
    eprintln!("Waiting for a frontend at {}; Ctrl-C ends the wait.", seat.name);
    let (begun, moment) = (Instant::now(), Duration::from_millis(10));
    loop {
        let state = socket.state();
        if state.features != Features::empty() && (0..2 * port.pairs()).any(|ring| port.is_running(ring)) {
            let shown =
                features::Shown::new(&Offer::of_pairs(args.socket[0].queues), Some((state.features, state.protocol)));
            return Ok(args.printed.write(shown.text(args.printed.format))?);
        }
        let waited = begun.elapsed().as_secs_f64();
        if endings.wait(moment) || args.seconds.is_some_and(|seconds| waited >= seconds) {
            return Err(VhostError::NoFrontend { seconds: waited.round(), path: seat.name.clone() });
        }
    }
}
