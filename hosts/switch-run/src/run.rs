//! Opens the switch, and runs it to its end.

use crate::dma_queues::DmaQueues;
use crate::published::Published;
use crate::{RunOptions, SwitchRunError};
use std::time::{Duration, Instant};
use telpher_os::Termination;
use telpher_switch::{End, Mode, PortConfig, PortKind, Snapshot, Switch, SwitchConfig, SwitchPort};
use telpher_vhost::layout::Features;
use telpher_vhost::message::ProtocolFeatures;
use telpher_vhost::{Offer, PortOptions};

/// Interval of the counters that the caller gets.
const INTERVAL: Duration = Duration::from_secs(1);

/// A switch with its ports and DMA queues, before it forwards packets.
#[derive(Debug)]
pub struct SwitchRun {
    options: RunOptions,
    endings: Termination,
    dma_queues: DmaQueues,
    switch: Switch,
    /// What other processes can read; `None` if the system refuses shared memory.
    published: Option<Published>,
}

impl SwitchRun {
    /// Checks the options, opens the device and creates the ports. `tell` gets a sentence about each queue that is not
    /// used.
    ///
    /// # Errors
    /// If the options contradict each other or the machine, or the system refuses a port.
    pub fn open(options: RunOptions, tell: impl Fn(&str)) -> Result<SwitchRun, SwitchRunError> {
        check(&options)?;
        let endings = Termination::listen().map_err(SwitchRunError::Start)?;
        let dma_queues = DmaQueues::open(&options, tell)?;
        // Before the first guest can connect: the files that a switch has open then change only with its guests.
        let published = Published::new();
        let switch = Switch::new(config(&options, &dma_queues))?;
        Ok(SwitchRun { options, endings, dma_queues, switch, published })
    }

    /// Returns what the switch has chosen, as sentences.
    pub fn choices(&self) -> Vec<String> {
        let queues: Vec<&str> = self.dma_queues.all().iter().map(|dma_queue| dma_queue.name()).collect();
        let RunOptions { device, runner, .. } = &self.options;
        let device = format!("--device {device}: queues {queues:?}, runner {runner:?}; {}", self.dma_queues.rule());
        let port = |(number, port): (usize, &SwitchPort)| {
            format!("port {number} is {} with {} queues", port.name(), port.end().queues())
        };
        std::iter::once(device).chain(self.switch.ports().iter().enumerate().map(port)).collect()
    }

    /// Returns the options.
    pub fn options(&self) -> &RunOptions {
        &self.options
    }

    /// Returns the device's queues.
    pub fn dma_queues(&self) -> &DmaQueues {
        &self.dma_queues
    }

    /// Returns the names of the ports.
    pub fn port_names(&self) -> Vec<&str> {
        self.switch.ports().iter().map(SwitchPort::name).collect()
    }

    /// Returns all counters.
    pub fn snapshot(&self) -> Snapshot {
        self.switch.snapshot()
    }

    /// Opens the captures and starts to forward packets.
    ///
    /// # Errors
    /// If a file cannot be written, or the system refuses a thread.
    pub fn start(&mut self) -> Result<(), SwitchRunError> {
        Ok(self.switch.start()?)
    }

    /// Forwards packets until the time is over, or Ctrl-C or SIGTERM arrives. `each_second` gets the counters of the
    /// second before and of now.
    ///
    /// # Errors
    /// If the switch cannot be stopped in order, such as a capture that cannot be written.
    pub fn run(&mut self, mut each_second: impl FnMut(&Snapshot, &Snapshot)) -> Result<(), SwitchRunError> {
        let mut last = self.switch.snapshot();
        let end = self.options.seconds.map(|seconds| last.at + Duration::from_secs_f64(seconds));
        loop {
            let next = last.at + INTERVAL;
            let until = end.map_or(next, |end| end.min(next));
            let asked = self.endings.wait(until.saturating_duration_since(Instant::now()));
            if asked || end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            if Instant::now() >= next {
                let now = self.switch.snapshot();
                each_second(&last, &now);
                self.publish(&now);
                last = now;
            }
        }
        Ok(self.switch.stop()?)
    }

    /// Lets other processes read the sums.
    fn publish(&self, now: &Snapshot) {
        let Some(published) = &self.published else { return };
        let ports = (0..self.switch.ports().len()).filter_map(|port| self.switch.stats(port)).sum();
        let rings = now.ports.iter().filter_map(|port| port.rings).sum();
        let dma_queues = self.dma_queues.all().iter().map(|dma_queue| dma_queue.stats()).sum();
        let nics = now.ports.iter().filter_map(|port| Some(port.nic?.1)).sum();
        published.store(&ports, &now.counts.stages, &rings, &dma_queues, &nics);
    }

    /// Waits for a frontend with a driver on the first port, and returns the negotiated features.
    ///
    /// # Errors
    /// If none has connected when the time is over or a signal arrives.
    ///
    /// # Panics
    /// If the first port is no socket.
    pub fn negotiated_features(&self) -> Result<(Features, ProtocolFeatures), SwitchRunError> {
        let first = &self.switch.ports()[0];
        let (End::Guest(port), Some(socket)) = (first.end(), first.socket()) else {
            panic!("the first port is {}, not a socket", first.name())
        };
        eprintln!("Waiting for a frontend at {}; Ctrl-C ends the wait.", first.name());
        let (begun, moment) = (Instant::now(), Duration::from_millis(10));
        loop {
            let state = socket.state();
            if state.features != Features::empty() && (0..2 * port.pairs()).any(|ring| port.is_running(ring)) {
                return Ok((state.features, state.protocol));
            }
            let waited = begun.elapsed().as_secs_f64();
            if self.endings.wait(moment) || self.options.seconds.is_some_and(|seconds| waited >= seconds) {
                return Err(SwitchRunError::NoFrontend { seconds: waited.round(), path: first.name().to_owned() });
            }
        }
    }
}

/// Checks the options before anything is created.
fn check(options: &RunOptions) -> Result<(), SwitchRunError> {
    let ports = options.sockets.len() + options.taps.len() + options.nics.len();
    let Some(last) = ports.checked_sub(1) else { return Err(SwitchRunError::NoPorts) };
    let captured = options.captures.iter().map(|capture| ("capture", capture.port));
    let mapped = options.maps.iter().filter_map(|map| Some(("map", map.port?)));
    if let Some((option, port)) = captured.chain(mapped).find(|(_, port)| *port > last) {
        return Err(SwitchRunError::NoPort { option, port, last });
    }
    let (mode, size, longest) = (options.settings.mode, options.settings.len, options.longest);
    if matches!(mode, Mode::TxOnly | Mode::FlowGen) && size > longest {
        return Err(SwitchRunError::Size { size, longest });
    }
    let allowed = telpher_os::allowed_cpus().map_err(SwitchRunError::Start)?;
    if let Some(&cpu) = options.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        let allowed = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        return Err(SwitchRunError::Cpu { cpu, allowed });
    }
    Ok(())
}

/// Returns the configuration of the switch: sockets, then TAP interfaces, then network interfaces.
fn config(options: &RunOptions, dma_queues: &DmaQueues) -> SwitchConfig {
    let (mut kinds, mut rings) = (Vec::new(), 0);
    for (index, socket) in options.sockets.iter().enumerate() {
        let pairs = usize::from(socket.queues);
        let port = PortOptions {
            offer: Offer::of_pairs(socket.queues),
            rings: dma_queues.rings(index, pairs, rings),
            ..PortOptions::default()
        };
        rings += 2 * pairs;
        kinds.push(PortKind::Socket { path: socket.path.clone(), role: socket.role, options: port });
    }
    kinds.extend(options.taps.iter().map(|name| PortKind::Tap { name: name.clone() }));
    kinds.extend(options.nics.iter().map(|name| PortKind::Nic { name: name.clone() }));
    let mut ports: Vec<PortConfig> = kinds.into_iter().map(|kind| PortConfig { kind, capture: None }).collect();
    for capture in &options.captures {
        ports[capture.port].capture = Some(capture.file.clone());
    }
    SwitchConfig {
        ports,
        settings: options.settings,
        buffers: options.buffers,
        longest: options.longest,
        captured_bytes: options.captured_bytes,
        threads: options.cpus.len().max(1),
        cpus: options.cpus.clone(),
    }
}
