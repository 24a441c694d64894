//! `telpher exporter`: what devices do, for Prometheus.

use crate::args::{Exporter, Printable};
use crate::exit::Usage;
use crate::{log, published, top};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use telpher_os::chain;
use telpher_report::deliver::{DeliverError, write_result};
use telpher_telemetry::exporter;
use telpher_telemetry::exporter::kubelet::{self, CallError, Grants};
use telpher_telemetry::exporter::{ALERTS, DASHBOARD, Metrics, Server, TextFormat};
use telpher_telemetry::in_process::{DeviceRegion, DeviceSums};
use telpher_telemetry::pmu::{Pmus, SystemCounters};

/// Why the exporter ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ExporterError {
    /// The port cannot be opened.
    #[error("cannot listen at {address}; name another address or port with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The server cannot wait for clients.
    #[error("cannot wait for clients")]
    Serve(#[source] io::Error),
    /// node_exporter would ignore the file.
    #[error("node_exporter reads only files whose name ends in .prom, and {} does not", .0.display())]
    Name(PathBuf),
    /// The file cannot be written.
    #[error("cannot write {}; name another file with --textfile", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Standard output is closed.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

impl Usage for ExporterError {
    fn is_usage(&self) -> bool {
        matches!(self, ExporterError::Name(_))
    }
}

/// Serves the metrics, or writes them to a file, until the process is ended.
///
/// # Errors
/// If the port cannot be opened, or the file cannot be written the first time.
pub(crate) fn run(args: &Exporter) -> Result<(), ExporterError> {
    if let Some(what) = args.print {
        let text = match what {
            Printable::Dashboard => DASHBOARD,
            Printable::Alerts => ALERTS,
        };
        return Ok(write_result(None, text.to_owned())?);
    }
    // Counters of hardware count while they are open, so a single reading has none.
    let pmus = (!args.once).then(|| Pmus::new(Path::new("/sys"), Box::new(SystemCounters), false));
    let exporter = exporter::Exporter::new(args.per_process);
    let devices = DeviceSums::default();
    let kubelet = Kubelet::ask(args.kubelet.clone());
    let mut readings = Readings { exporter, devices, kubelet, times: args.times, renewed: None, pmus };
    match &args.textfile {
        Some(path) => write_files(path, args, &mut readings),
        None => serve(args.listen, &mut readings),
    }
}

fn serve(address: SocketAddr, readings: &mut Readings) -> Result<(), ExporterError> {
    let failed = |source| ExporterError::Listen { address, source };
    let server = Server::bind(address).map_err(failed)?;
    let address = server.address().map_err(failed)?;
    if !address.ip().is_loopback() {
        eprintln!(
            "telpher: every host that reaches {address} can read the metrics: nothing is encrypted, and no password is \
             asked for"
        );
    }
    write_result(None, format!("http://{address}/metrics\n"))?;
    server.run(readings).map_err(ExporterError::Serve)
}

fn write_files(path: &Path, args: &Exporter, readings: &mut Readings) -> Result<(), ExporterError> {
    if path.extension().is_none_or(|extension| extension != "prom") {
        return Err(ExporterError::Name(path.into()));
    }
    let mut is_first = true;
    loop {
        let text = readings.text(TextFormat::Prometheus);
        let written = telpher_os::write_file(path, text.as_bytes())
            .map_err(|source| ExporterError::File { path: path.into(), source });
        match written {
            Err(error) if is_first => return Err(error),
            // The disk may be full for a while. node_exporter reports how old a file is.
            Err(error) => eprintln!("telpher: {}", chain(&error)),
            Ok(()) => {}
        }
        if args.once {
            return Ok(());
        }
        is_first = false;
        let until = Instant::now() + Duration::from_secs_f64(args.every);
        // Subscriptions are shorter than the interval may be.
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(RENEWED_EVERY));
            readings.tick();
        }
    }
}

/// How often subscriptions are renewed. Source: they last ten seconds.
const RENEWED_EVERY: Duration = Duration::from_secs(4);

/// How often the kubelet is asked. Source: chosen; Prometheus scrapes as often.
const ASKED_EVERY: Duration = Duration::from_secs(15);

/// How long the start waits for the kubelet's first answer. Source: chosen; it answers within milliseconds.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// What the kubelet says about queues; `None` on a node without one.
type Answer = Option<Result<Grants, String>>;

/// Asks the kubelet again and again, on a thread of its own: no scrape waits for it.
struct Kubelet(Arc<Mutex<Answer>>);

impl Kubelet {
    fn ask(socket: PathBuf) -> Kubelet {
        let said = Arc::new(Mutex::new(Some(Err("the kubelet has not answered yet".to_owned()))));
        let kubelet = Kubelet(Arc::clone(&said));
        let (answered, first) = channel();
        std::thread::spawn(move || {
            loop {
                let now = grants(&socket);
                *said.lock().unwrap_or_else(PoisonError::into_inner) = now;
                // Nothing waits for later answers.
                let _ = answered.send(());
                std::thread::sleep(ASKED_EVERY);
            }
        });
        // So that the first scrape has the answer, unless the kubelet is slow or silent.
        let _ = first.recv_timeout(FIRST_ANSWER);
        kubelet
    }

    fn answer(&self) -> Answer {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn grants(socket: &Path) -> Answer {
    match kubelet::grants(socket) {
        Err(CallError::Connect { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        said => Some(said.map_err(|error| chain(&error))),
    }
}

/// Reads the devices and the processes.
struct Readings {
    exporter: exporter::Exporter,
    /// The devices that programs model themselves.
    devices: DeviceSums,
    /// Which queues containers were given.
    kubelet: Kubelet,
    /// Whether times are recorded.
    times: bool,
    /// When subscriptions were renewed last.
    renewed: Option<Instant>,
    /// The counters of hardware.
    pmus: Option<Pmus>,
}

impl Metrics for Readings {
    fn text(&mut self, format: TextFormat) -> String {
        let start = Instant::now();
        let mut snapshot = top::read(self.times);
        if let Some(pmus) = &mut self.pmus {
            pmus.fill(&mut snapshot);
        }
        let published = published::read();
        if self.times {
            published.devices.iter().for_each(DeviceRegion::subscribe);
        }
        snapshot.append(self.devices.rows(&published.devices));
        for problem in &snapshot.problems {
            log::info(|| problem.clone());
        }
        for problem in &published.unread {
            log::info(|| format!("process {}: {}", problem.pid, problem.why));
        }
        let grants = self.kubelet.answer();
        if let Some(missing) = grants.as_ref().and_then(|grants| grants.as_ref().ok()?.missing()) {
            log::info(|| missing);
        }
        self.exporter.set_grants(grants);
        let read = (&published.processes[..], &published.unread[..]);
        let families = self.exporter.families(&snapshot, read, start.elapsed());
        families.text(format)
    }

    fn tick(&mut self) {
        if self.times && self.renewed.is_none_or(|renewed| renewed.elapsed() >= RENEWED_EVERY) {
            // A reading subscribes.
            let _ = top::read(true);
            published::read().devices.iter().for_each(DeviceRegion::subscribe);
            self.renewed = Some(Instant::now());
        }
    }
}
