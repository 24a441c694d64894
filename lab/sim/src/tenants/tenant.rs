//! Tenants: work that shares devices with the work of others, and the interference that it accepts.

use crate::advise::WorkRequest;
use crate::machine::Machine;
use crate::picos::Picos;
use crate::profile::ProfileError;
use crate::scenario::{WorkloadError, workload};

/// Most characters of a name, which is also that of the tenant's queue. Source: chosen, for tables; Linux allows more.
const LONGEST_NAME: usize = 15;

/// The interference that a tenant accepts.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Bound {
    /// The most latency of 99 % of its operations.
    pub p99: Option<Picos>,
    /// The most throughput that it loses to the others, in per cent of what it has alone on the same configuration.
    pub loss_percent: Option<f64>,
}

impl Bound {
    /// True if there is one.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.p99.is_some() || self.loss_percent.is_some()
    }
}

/// A user of shared devices.
#[derive(Clone, PartialEq, Debug)]
pub struct Tenant {
    /// Its work; the name is that of its queue, too.
    pub work: WorkRequest,
    /// Operations of a batch; 1 for none.
    pub batch: u32,
    /// What it accepts.
    pub bound: Bound,
}

/// Tenants of the same devices.
#[derive(Clone, PartialEq, Debug)]
pub struct Tenants {
    /// Most devices that they use in all.
    pub devices: usize,
    /// At least one.
    pub tenants: Vec<Tenant>,
}

impl Tenants {
    /// True if a file has tenants.
    ///
    /// # Errors
    /// The file is not TOML.
    pub fn are_in(file: &str, text: &str) -> Result<bool, WorkloadError> {
        let document = workload::document(file, text)?;
        Ok(workload::root(file, text, &document).has("tenant"))
    }

    /// Reads the list `[[tenant]]` of a file; `file` is its name in errors.
    ///
    /// # Errors
    /// Names file, line and key of a missing, impossible or unknown value.
    pub fn parse(file: &str, text: &str, machine: &Machine) -> Result<Tenants, WorkloadError> {
        let document = workload::document(file, text)?;
        let root = workload::root(file, text, &document);
        let most = u32::try_from(machine.devices.len()).unwrap_or(u32::MAX).max(1);
        let devices = root.count_if_there("devices", 1..=most, "devices")?.unwrap_or(most);
        let mut tenants: Vec<Tenant> = Vec::new();
        for section in root.list("tenant")? {
            let work = WorkRequest::read(&section, machine)?;
            let is_short = (1..=LONGEST_NAME).contains(&work.name.len());
            if !is_short || !work.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
                let what = format!("is '{}', not 1 to {LONGEST_NAME} letters, digits, - or _", work.name);
                return Err(section.wrong("name", what).into());
            }
            if tenants.iter().any(|other| other.work.name == work.name) {
                return Err(section.wrong("name", format!("is {}, as of another tenant", work.name)).into());
            }
            let number = |key, possible, unit| -> Result<Option<f64>, ProfileError> {
                if section.has(key) { section.number(key, possible, unit).map(Some) } else { Ok(None) }
            };
            let bound = Bound {
                p99: number("p99_us", 0.001..=1e6, "us")?.map(|us| Picos::from_nanos_f64(us * 1e3)),
                loss_percent: number("loss_percent", 0.0..=100.0, "per cent")?,
            };
            let batch = section.count_if_there("batch", 1..=1024, "operations")?.unwrap_or(1);
            section.end()?;
            tenants.push(Tenant { work, batch, bound });
        }
        root.end()?;
        Ok(Tenants { devices: devices as usize, tenants })
    }
}
