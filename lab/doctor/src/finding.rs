//! What the doctor says: a cause that was found, with what shows it and what to do.

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

/// Where on the way from the firmware to the program a cause lies.
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
    /// Nodes and who may open them.
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
}

impl Stage {
    /// In the order in which they are walked.
    pub(crate) const ALL: [Stage; 15] = [
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
        }
    }
}

/// One thing that was seen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Evidence {
    /// A path, or which question was asked.
    pub(crate) source: String,
    /// What it said.
    pub(crate) says: String,
}

/// A cause that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Finding {
    /// Its name, stable between versions.
    pub(crate) id: &'static str,
    /// Where it lies.
    pub(crate) stage: Stage,
    /// How much it matters.
    pub(crate) severity: Severity,
    /// What is affected: `wq0.1`, `dsa0`, a PCI address, or the machine.
    pub(crate) subject: String,
    /// What shows it.
    pub(crate) evidence: Vec<Evidence>,
    /// What is the matter.
    pub(crate) cause: String,
    /// What to do, one step a line; commands are whole.
    pub(crate) remedy: Vec<String>,
}

impl Finding {
    /// A cause at work.
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

    /// With something seen.
    pub(crate) fn seen(mut self, evidence: Evidence) -> Self {
        self.evidence.push(evidence);
        self
    }

    /// With several things seen.
    pub(crate) fn all_seen(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    /// With more about the cause, in whole sentences.
    pub(crate) fn because(mut self, more: impl AsRef<str>) -> Self {
        self.cause.push(' ');
        self.cause.push_str(more.as_ref());
        self
    }

    /// With a step to take.
    pub(crate) fn remedy(mut self, step: impl Into<String>) -> Self {
        self.remedy.push(step.into());
        self
    }

    /// With several steps.
    pub(crate) fn all_remedies(mut self, steps: impl IntoIterator<Item = String>) -> Self {
        self.remedy.extend(steps);
        self
    }

    /// It matters less, or more, here.
    pub(crate) fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }
}
