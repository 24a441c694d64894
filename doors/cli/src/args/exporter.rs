use clap::{Args, ValueEnum};
use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::path::PathBuf;

/// Serve what DSA devices do to Prometheus, at http://127.0.0.1:19738/metrics.
///
/// Has the devices of this user's runs (`telpher run`), hardware as far as Linux shows it, and what this user's
/// processes count themselves: movers, servers, caches. Answers in Prometheus' format or in OpenMetrics, as the client
/// prefers. A value that cannot be known has no sample; telpher_unknown_info says why. docs/telemetry.md lists all
/// metrics.
///
/// Totals of clients are those of pods, containers and virtual machines; --per-process adds labels of each process,
/// which makes a new series for each. --textfile serves no port, and writes a file for node_exporter's textfile
/// collector.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher exporter
  telpher exporter --textfile /var/lib/prometheus/node-exporter/telpher.prom
  telpher exporter --print dashboard > telpher.json
  telpher exporter --print alerts > telpher.yml")]
pub(crate) struct Exporter {
    /// Address and port of the server. Other hosts can reach an address that is not loopback, and need no password.
    #[arg(long, value_name = "ADDRESS[:PORT]", default_value = "127.0.0.1:19738", help_heading = "Server",
          value_parser = parse_listen)]
    pub(crate) listen: SocketAddr,
    /// Write the metrics to this file instead, again and again; its name must end in .prom.
    #[arg(long, value_name = "FILE", help_heading = "File", conflicts_with = "listen")]
    pub(crate) textfile: Option<PathBuf>,
    /// Seconds between two updates.
    #[arg(long, value_name = "S", default_value = "15", value_parser = super::values::parse_seconds,
          help_heading = "File")]
    pub(crate) every: f64,
    /// Print once and exit.
    #[arg(long, help_heading = "File", requires = "textfile")]
    pub(crate) once: bool,
    /// Add labels of each process to the totals of clients.
    #[arg(long, help_heading = "Content")]
    pub(crate) per_process: bool,
    /// Have times of descriptors recorded while the exporter runs. This slows short descriptors down.
    #[arg(long, help_heading = "Content")]
    pub(crate) times: bool,
    /// The kubelet's socket for resources, which only root may open: it says which container was given which queue.
    #[arg(long, value_name = "SOCKET", default_value = telpher_telemetry::exporter::kubelet::KUBELET_SOCKET,
          help_heading = "Content")]
    pub(crate) kubelet: PathBuf,
    /// Print a file that is made for the metrics, and exit.
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Content", conflicts_with_all = ["textfile", "listen"])]
    pub(crate) print: Option<Printable>,
}

/// The port. Source: chosen; ten thousand above that of Intel's PCM, and in no list of exporters' ports.
const PORT: u16 = 19738;

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let address = |error: AddrParseError| format!("'{text}' is no address such as 127.0.0.1 or [::1]:{PORT}: {error}");
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, PORT)),
        Err(_) => text.parse().map_err(address),
    }
}

/// Files that come with the exporter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Printable {
    /// A dashboard for Grafana.
    Dashboard,
    /// Alert rules of Prometheus.
    Alerts,
}
