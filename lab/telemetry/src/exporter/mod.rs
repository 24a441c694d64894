//! Metrics for Prometheus.
//!
//! ```text
//! Snapshot: devices of runs, hardware ──► devices ─┐
//! published: what processes count     ──► systems ─┴─► family ──► text ──► server, or a file
//!          descriptions: names, units and labels of what processes count
//!          owner: pod, container, VM of a process; pods: their names
//!          kubelet: which queues it has given to which containers
//!          ledger: sums by owner that do not shrink when a process ends
//! ```
//!
//! A reading takes part in nothing: it reads shared memory and files of `/proc` and `/sys`. A value that is unknown has
//! no sample; `telpher_unknown_info` says why.

mod definitions;
mod descriptions;
mod devices;
mod family;
pub mod kubelet;
mod ledger;
mod owner;
mod pods;
mod server;
mod systems;

pub use definitions::DEFINITIONS;
pub use family::{Definition, Families, FamilyKind, Labels, Sample, TextFormat};
pub use owner::Owner;
pub use pods::PodName;
pub use server::{Metrics, Server};

use crate::published::{ProcessMetrics, Unread};
use crate::snapshot::Snapshot;
use devices::DeviceMemory;
use kubelet::Grants;
use pods::PodNames;
use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;
use systems::SystemMemory;

/// The dashboard for Grafana, in JSON.
pub const DASHBOARD: &str = include_str!("../../grafana/dashboard.json");
/// Prometheus' alert rules, in YAML.
pub const ALERTS: &str = include_str!("../../grafana/alerts.yml");

/// Turns readings into families. It remembers the totals of processes that have ended.
#[derive(Debug)]
pub struct Exporter {
    /// Whether the totals of clients have labels of their process.
    per_process: bool,
    sys: PathBuf,
    proc: PathBuf,
    log: PathBuf,
    devices: DeviceMemory,
    systems: SystemMemory,
    /// What the kubelet said last, or why it said nothing; `None` on a node without one.
    grants: Option<Result<Grants, String>>,
}

impl Exporter {
    /// Creates an exporter; with `per_process`, samples of clients have the labels `pid` and `command`.
    #[must_use]
    pub fn new(per_process: bool) -> Exporter {
        Exporter::with_roots(per_process, "/sys".into(), "/proc".into(), "/var/log".into())
    }

    /// Creates an exporter that reads other trees than `/sys`, `/proc` and `/var/log`, for tests.
    #[must_use]
    pub fn with_roots(per_process: bool, sys: PathBuf, proc: PathBuf, log: PathBuf) -> Exporter {
        let (devices, systems) = (DeviceMemory::default(), SystemMemory::default());
        Exporter { per_process, sys, proc, log, devices, systems, grants: None }
    }

    /// Takes what the kubelet says about queues, or why it says nothing; `None` on a node without a kubelet.
    pub fn set_grants(&mut self, grants: Option<Result<Grants, String>>) {
        self.grants = grants;
    }

    /// Returns the families of a reading, which took some time. Readings must be passed in their order.
    pub fn families(
        &mut self,
        snapshot: &Snapshot,
        (processes, unread): (&[ProcessMetrics], &[Unread]),
        took: Duration,
    ) -> Families {
        let mut families = Families::default();
        let version = (Cow::Borrowed("version"), env!("CARGO_PKG_VERSION").to_owned());
        families.add(&definitions::EXPORTER, vec![version], Sample::Info);
        families.add(&definitions::READING, Labels::new(), Sample::Real(took.as_secs_f64()));
        let names = PodNames::new(&self.log);
        let look_up = |pid| Owner::of(&self.proc, &names, pid);
        self.devices.add(&mut families, snapshot, self.per_process, &self.sys, &look_up);
        if let Some(grants) = &self.grants {
            devices::add_grants(&mut families, grants);
        }
        let refused = self.systems.add(&mut families, processes, self.per_process, &self.proc, &look_up);
        let are_grants_missing = matches!(&self.grants, Some(Ok(grants)) if grants.left_out != 0);
        let problems = snapshot.problems.len() as u64 + unread.len() as u64 + refused + u64::from(are_grants_missing);
        families.add(&definitions::PROBLEMS, Labels::new(), Sample::Whole(problems));
        families
    }
}
