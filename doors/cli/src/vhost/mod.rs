//! `telpher vhost`: a small software switch between virtual machines, with copies by the CPU or a device.
//!
//! ```text
//! options ──► DMA queues: device queues ──► SwitchConfig ──► Switch: ports, captures and forwarding threads
//! every second: Snapshot ──► live: lines on standard error
//! at the end:   Snapshot ──► totals ──► telpher-report's switch, on standard output
//! ```

mod dma_queues;
mod error;
mod features;
mod live;
mod totals;

use crate::args::{Format, Forward, Vhost};
use crate::{log, version};
use dma_queues::DmaQueues;
pub(crate) use error::VhostError;
use live::Live;
use std::time::{Duration, Instant};
use telpher_os::Termination;
use telpher_switch::{End, Full, Mode, PortConfig, PortKind, Settings, Switch, SwitchConfig, SwitchPort};
use telpher_vhost::layout::Features;
use telpher_vhost::{Offer, PortOptions, Role};

/// Interval of the live statistics.
const NEWS: Duration = Duration::from_secs(1);

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
    let dma_queues = DmaQueues::open(args, |remark| eprintln!("telpher: {remark}"))?;
    log::info(|| {
        let queues: Vec<&str> = dma_queues.all().iter().map(|dma_queue| dma_queue.name()).collect();
        format!("--device {}: queues {queues:?}, runner {:?}; {}", args.device, args.runner, dma_queues.rule())
    });
    log::info(|| format!("kernels: {}", version::kernels()));
    let mut switch = Switch::new(config(args, &dma_queues))?;
    if args.show_features {
        return show_agreed(args, &switch.ports()[0], &endings);
    }
    let settings = settings(args);
    for (number, port) in switch.ports().iter().enumerate() {
        log::info(|| format!("port {number} is {} with {} queues", port.name(), port.end().queues()));
    }
    let begun = switch.snapshot();
    switch.start()?;
    let mut live = Live::new(!args.quiet);
    let names: Vec<&str> = switch.ports().iter().map(SwitchPort::name).collect();
    live.begin(&names, settings.mode, &dma_queues.rule());
    let end = args.seconds.map(|seconds| begun.at + Duration::from_secs_f64(seconds));
    let mut last = begun.clone();
    loop {
        let next = last.at + NEWS;
        let until = end.map_or(next, |end| end.min(next));
        let asked = endings.wait(until.saturating_duration_since(Instant::now()));
        if asked || end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        if Instant::now() >= next {
            let now = switch.snapshot();
            live.news(&begun, &last, &now);
            last = now;
        }
    }
    let stopped = switch.stop();
    let summary = totals::summary(args, settings, &dma_queues, &begun, &switch.snapshot());
    args.printed.write(match args.printed.format {
        Format::Table => summary.text(),
        Format::Json => serde_json::to_string_pretty(&summary).expect("plain data with string keys"),
        Format::Csv => summary.csv(),
    })?;
    Ok(stopped?)
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

/// Returns the configuration of the switch: sockets, then interfaces.
fn config(args: &Vhost, dma_queues: &DmaQueues) -> SwitchConfig {
    let (mut kinds, mut rings) = (Vec::new(), 0);
    for (index, socket) in args.socket.iter().enumerate() {
        let pairs = usize::from(socket.queues);
        let options = PortOptions {
            offer: Offer::of_pairs(socket.queues),
            rings: dma_queues.rings(index, pairs, rings),
            ..PortOptions::default()
        };
        rings += 2 * pairs;
        let role = if socket.client { Role::Client } else { Role::Server };
        kinds.push(PortKind::Socket { path: socket.path.clone(), role, options });
    }
    kinds.extend(args.tap.iter().map(|name| PortKind::Tap { name: name.clone() }));
    let mut ports: Vec<PortConfig> = kinds.into_iter().map(|kind| PortConfig { kind, capture: None }).collect();
    for capture in &args.capture {
        ports[capture.port].capture = Some(capture.file.clone());
    }
    SwitchConfig {
        ports,
        settings: settings(args),
        buffers: args.buffers,
        longest: args.longest,
        captured_bytes: args.snap,
        threads: args.cpus.len().max(1),
        cpus: args.cpus.clone(),
    }
}

/// Waits for a frontend with a driver, and shows the negotiated features.
fn show_agreed(args: &Vhost, first: &SwitchPort, endings: &Termination) -> Result<(), VhostError> {
    let (End::Guest(port), Some(socket)) = (first.end(), first.socket()) else {
        unreachable!("the first port is a socket")
    };
    eprintln!("Waiting for a frontend at {}; Ctrl-C ends the wait.", first.name());
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
            return Err(VhostError::NoFrontend { seconds: waited.round(), path: first.name().to_owned() });
        }
    }
}
