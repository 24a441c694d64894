//! Options of `telpher doctor`.

use super::output::Printed;
use clap::Args;
use std::path::PathBuf;

/// Find out why a device does not come up or is slow, on this machine or a recorded one.
///
/// The doctor checks everything from the hardware to the program: firmware, kernel, boot parameters, IOMMU and shared
/// virtual addressing, modules, devices, groups, engines, queues, permissions, the restrictions of INTEL-SA-01084, NUMA
/// distance, instructions, huge pages, and limits of containers. Each finding says what was found, what it means, and
/// what to do.
///
/// It changes nothing and submits nothing. It briefly opens the nodes of enabled queues and maps their portals, because
/// the driver's answer depends on the user. Run it as the user, and in the container, whose programs do not work.
///
/// Exit code: 0 without findings or with notes only, 2 if there are warnings, 3 if there are errors, 1 if the doctor
/// failed.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Machine",
    after_help = "\
Examples:
  telpher doctor                          this machine
  telpher doctor --format csv             one line for each finding
  telpher doctor --record machine.json    a recording, to send it to others
  telpher doctor --bundle machine.json    examines that machine
  telpher doctor --process 4242           also which DML that process has
  telpher doctor --causes                 everything that can be found
  telpher run -- telpher doctor           a device that is not configured

A recording contains: attributes of the driver and its queues (with their names and the PIDs that \
have them open); the kernel's version, and the parts of its configuration, command line and log \
that concern IDXD and IOMMU; the name and flags of the processor; addresses of PCI functions; names \
of ACPI tables; NUMA nodes; huge pages; and this process' user, groups, capabilities, security \
label and control groups; with --process also the files that the process has mapped as code. It \
contains no host name, no serial number, no environment and no command \
line of a program; other words of the kernel's command line appear without their values. It is \
text: read it before you send it. docs/doctor.md describes its format, every cause, and the JSON of \
--format."
)]
pub(crate) struct Doctor {
    /// Write the data of this machine to a file instead of examining it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bundle", "causes"])]
    pub(crate) record: Option<PathBuf>,
    /// Examine a machine that was recorded with --record.
    #[arg(long, value_name = "FILE", conflicts_with = "causes")]
    pub(crate) bundle: Option<PathBuf>,
    /// Also say which Data Mover Library (DML) a process has: Intel's or telpher's, its file and version.
    #[arg(long, value_name = "PID", conflicts_with_all = ["bundle", "causes"])]
    pub(crate) process: Option<u32>,
    /// List every cause the doctor knows.
    #[arg(long)]
    pub(crate) causes: bool,
    #[command(flatten)]
    pub(crate) printed: Printed,
}
