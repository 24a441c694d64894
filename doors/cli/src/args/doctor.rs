//! Options of `telpher doctor`.

use super::ListFormat;
use clap::Args;
use std::path::PathBuf;

/// Why does my device not come up, why is it slow? Examines this machine, or one that was recorded.
///
/// The doctor walks the way from the hardware to the program: firmware, kernel, boot parameters, IOMMU and shared virtual
/// addressing, modules, devices, groups, engines, queues, permissions, the restrictions of INTEL-SA-01084, NUMA distance,
/// instructions, huge pages, and limits of containers. Each finding says what was seen, what it means, and what to do.
///
/// It changes nothing and submits nothing. It opens the nodes of enabled queues for a moment and maps their portals, to learn
/// what the driver answers to this user; run it as the user, and in the container, whose programs do not work.
///
/// Exit code: 0 if nothing hinders (notes may remain), 2 if there are warnings, 3 if there are errors, 1 if the doctor could not
/// work.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher doctor                          this machine
  telpher doctor --format json | jq -r '.findings[].id'
  telpher doctor --record machine.json    writes what an examination would ask, to be sent to somebody
  telpher doctor --bundle machine.json    examines that machine
  telpher doctor --causes                 everything that can be found
  telpher run -- telpher doctor           a virtual machine with a device that nobody has configured yet

A recording holds: attributes of the driver and its queues (with the names given to them and who
has them open), version and configuration of the kernel as far as IDXD and IOMMU go, such words of
its command line and lines of its log, the name and flags of the processor, addresses of PCI
functions, names of ACPI tables, NUMA nodes, huge pages, and this process' user, groups,
capabilities, security label and control groups. It holds no host name, no serial number, no
environment, no command line of a program, and of other words of the kernel's command line the
names alone. It is text: read it first. Its format, every cause and the JSON of --format are
described in docs/doctor.md.")]
pub(crate) struct Doctor {
    /// Text for people, or JSON.
    #[arg(long, value_enum, default_value_t = ListFormat::Text)]
    pub(crate) format: ListFormat,
    /// Write this machine's answers to a file instead of examining it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bundle", "causes"])]
    pub(crate) record: Option<PathBuf>,
    /// Examine a machine that was recorded with --record.
    #[arg(long, value_name = "FILE", conflicts_with = "causes")]
    pub(crate) bundle: Option<PathBuf>,
    /// List every cause the doctor knows.
    #[arg(long)]
    pub(crate) causes: bool,
}
