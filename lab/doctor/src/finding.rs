//! Findings: a cause with its evidence and its remedy.

use super::causes::Cause;
use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Works; worth knowing, mostly about speed.
    Note,
    /// Works, but not all of it, or slowly.
    Warning,
    /// A device or a queue cannot be used.
    Error,
}

impl Severity {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// The stages from the firmware to the program, in which causes are found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// What the firmware shows of the hardware.
    Firmware,
    /// Version and configuration.
    Kernel,
    /// The kernel's command line.
    Boot,
    /// Address translation, and whether devices may use programs' addresses.
    Iommu,
    /// The driver.
    Modules,
    /// A device of the driver.
    Device,
    /// Its groups.
    Groups,
    /// Its engines.
    Engines,
    /// Its work queues.
    Queues,
    /// Nodes and their permissions.
    Permissions,
    /// How descriptors may be submitted since INTEL-SA-01084.
    Submission,
    /// Distance between processors and devices.
    Numa,
    /// Instructions of the processor.
    Instructions,
    /// Huge pages.
    Memory,
    /// Limits of a container or service.
    Container,
    /// Libraries of the program that the user names.
    Program,
}

impl Stage {
    /// All stages, in the order in which they are examined.
    pub(crate) const ALL: [Stage; 16] = [
        Stage::Firmware,
        Stage::Kernel,
        Stage::Boot,
        Stage::Iommu,
        Stage::Modules,
        Stage::Device,
        Stage::Groups,
        Stage::Engines,
        Stage::Queues,
        Stage::Permissions,
        Stage::Submission,
        Stage::Numa,
        Stage::Instructions,
        Stage::Memory,
        Stage::Container,
        Stage::Program,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Firmware => "firmware",
            Stage::Kernel => "kernel",
            Stage::Boot => "boot",
            Stage::Iommu => "iommu",
            Stage::Modules => "modules",
            Stage::Device => "device",
            Stage::Groups => "groups",
            Stage::Engines => "engines",
            Stage::Queues => "queues",
            Stage::Permissions => "permissions",
            Stage::Submission => "submission",
            Stage::Numa => "numa",
            Stage::Instructions => "instructions",
            Stage::Memory => "memory",
            Stage::Container => "container",
            Stage::Program => "program",
        }
    }
}

/// One piece of evidence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Evidence {
    /// A path, or the call that was made.
    pub(crate) source: String,
    /// The content or result.
    pub(crate) says: String,
}

/// A cause that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Finding {
    /// The cause's name, stable between versions.
    pub(crate) id: &'static str,
    /// The stage that finds it.
    pub(crate) stage: Stage,
    /// Its severity on this machine.
    pub(crate) severity: Severity,
    /// What is affected: `wq0.1`, `dsa0`, a PCI address, or the machine.
    pub(crate) subject: String,
    /// The evidence.
    pub(crate) evidence: Vec<Evidence>,
    /// The cause, in sentences.
    pub(crate) cause: String,
    /// What to do, one step in each string; commands are complete.
    pub(crate) remedy: Vec<String>,
}

impl Finding {
    /// Creates a finding of this cause without evidence.
    pub(crate) fn of(cause: &Cause, subject: impl Into<String>) -> Self {
        Finding {
            id: cause.id,
            stage: cause.stage,
            severity: cause.severity,
            subject: subject.into(),
            evidence: Vec::new(),
            cause: format!("{}.", cause.what),
            remedy: Vec::new(),
        }
    }

    /// Adds evidence.
    pub(crate) fn seen(mut self, evidence: Evidence) -> Self {
        self.evidence.push(evidence);
        self
    }

    /// Adds several pieces of evidence.
    pub(crate) fn all_seen(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    /// Adds whole sentences to the cause.
    pub(crate) fn because(mut self, more: impl AsRef<str>) -> Self {
        self.cause.push(' ');
        self.cause.push_str(more.as_ref());
        self
    }

    /// Adds a step to the remedy.
    pub(crate) fn remedy(mut self, step: impl Into<String>) -> Self {
        self.remedy.push(step.into());
        self
    }

    /// Adds several steps to the remedy.
    pub(crate) fn all_remedies(mut self, steps: impl IntoIterator<Item = String>) -> Self {
        self.remedy.extend(steps);
        self
    }

    /// Changes the severity.
    pub(crate) fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }
}
