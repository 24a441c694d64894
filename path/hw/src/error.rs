//! Why a queue cannot be used: what was attempted, what the machine said, what to do.

use crate::machine::{QueueType, State};
use std::io;
use std::path::PathBuf;
use telpher_abi::Status;

/// Why a queue could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not a queue's name.
    #[error("'{0}' is not a queue; queues are named like wq0.1 (device 0, queue 1)")]
    Name(String),
    /// The driver is not there.
    #[error(
        "cannot open {queue}: {}",
        match .source.kind() {
            io::ErrorKind::NotFound => "/sys/bus/dsa is not there, so the idxd driver is not loaded; try `modprobe idxd`",
            _ => "/sys/bus/dsa cannot be listed; let this program read /sys (a sandbox, a container or a security module forbids it)",
        }
    )]
    NoDriver {
        /// Which.
        queue: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The device is not there.
    #[error(
        "cannot open {queue}: the driver has no device {device}{}",
        if .present.is_empty() {
            "; it has none at all: see whether `lspci -d 8086:` lists an accelerator, which firmware can hide, and dmesg for why \
                idxd did not take it".into()
        } else {
            known(.present)
        }
    )]
    NoDevice {
        /// Which.
        queue: String,
        /// Its device.
        device: String,
        /// Those that are there.
        present: Vec<String>,
    },
    /// The device has no such queue.
    #[error("cannot open {queue}: {device} has no such queue{}", known(.present))]
    NoQueue {
        /// Which.
        queue: String,
        /// Its device.
        device: String,
        /// Those that are there.
        present: Vec<String>,
    },
    /// The device does not work.
    #[error(
        "cannot open {queue}: {device} is {state}; {}",
        match .state {
            State::Halted => "it has to be reset: unbind it from idxd, write 1 to `reset` of its PCI function, and configure it anew",
            _ => "configure and enable it, for example with `accel-config load-config -c FILE -e`",
        }
    )]
    Device {
        /// Which.
        queue: String,
        /// Its device.
        device: String,
        /// Its state.
        state: State,
    },
    /// The device does not know programs' address spaces.
    #[error(
        "cannot open {queue}: {device} works without PASIDs and would take this program's addresses for others; boot with \
         `intel_iommu=on,sm_on`, and load idxd with `sva=1`"
    )]
    NoPasids {
        /// Which.
        queue: String,
        /// Its device.
        device: String,
    },
    /// The queue is the kernel's, or nobody's.
    #[error(
        "cannot open {queue}: its type is {queue_type}; only queues of type user are for programs: disable it, set its type and \
         name, and enable it again, for example with accel-config"
    )]
    Type {
        /// Which.
        queue: String,
        /// What it is.
        queue_type: QueueType,
    },
    /// The queue is disabled.
    #[error(
        "cannot open {queue}: it is disabled; enable it, for example with `accel-config enable-wq {device}/{queue}`"
    )]
    Disabled {
        /// Which.
        queue: String,
        /// Its device.
        device: String,
    },
    /// The driver does not say what a client has to know.
    #[error(
        "cannot open {queue}: its attribute `{attribute}` says nothing usable; is this an idxd driver of Linux 5.15 or later?"
    )]
    Attribute {
        /// Which.
        queue: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// The node is not there although the queue is enabled.
    #[error(
        "cannot open {}: there is no such node, though the queue is enabled; in a container, pass it in (`--device {}`), \
         elsewhere look whether /dev is managed (devtmpfs, udev)", .path.display(), .path.display()
    )]
    NoNode {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No permission.
    #[error(
        "cannot open {}: permission denied; give this user read and write access to it (chmod, chown, or a udev rule for \
         subsystem dsa); in a container its device cgroup has to allow it too", .path.display()
    )]
    Permission {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Somebody has it.
    #[error(
        "cannot open {}: it is dedicated and in use; close the other program (`fuser -v {}`), or configure a shared queue",
        .path.display(), .path.display()
    )]
    Busy {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The process got no PASID.
    #[error(
        "cannot open {}: the driver could not bind this process' address space (PASID); boot with `intel_iommu=on,sm_on`, and \
         look at dmesg", .path.display()
    )]
    AddressSpace {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Anything else that open(2) answers.
    #[error("cannot open {}; `telpher doctor` and dmesg may tell more", .path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The portal cannot be mapped, and the driver submits nothing either.
    #[error(
        "cannot submit to {}: its portal cannot be mapped{}, and the driver refuses write(): {refused}", .path.display(),
        match .source.raw_os_error() {
            Some(libc::EPERM) => " without CAP_SYS_RAWIO (INTEL-SA-01084); give the program that capability, or use a kernel with \
                write() submission (6.9, or a stable update of 2024)",
            _ => "",
        }
    )]
    Map {
        /// Which.
        path: PathBuf,
        /// What write(2) said.
        refused: io::Error,
        /// What mmap(2) said.
        #[source]
        source: io::Error,
    },
    /// The processor lacks the instruction, and the driver submits nothing either.
    #[error(
        "cannot submit to {}: this processor or its kernel offers no {instruction}, and the driver refuses write(); {}",
        .path.display(),
        if *.instruction == "ENQCMD" { "use a dedicated queue, or Linux 5.18 or later" } else { "use a machine that has it" }
    )]
    Instruction {
        /// Which.
        path: PathBuf,
        /// `MOVDIR64B` or `ENQCMD`.
        instruction: &'static str,
        /// What write(2) said.
        #[source]
        source: io::Error,
    },
    /// It was opened, and a No-op was not answered.
    #[error(
        "{queue} was opened, but did not answer a No-op within {waited_ms} ms; see `errors` and `cmd_status` of its device in \
         /sys/bus/dsa/devices, and dmesg"
    )]
    Silent {
        /// Which.
        queue: String,
        /// Milliseconds.
        waited_ms: u128,
    },
    /// It was opened, and a No-op failed.
    #[error(
        "{queue} was opened, but a No-op failed: {status}; see `errors` of its device in /sys/bus/dsa/devices, and dmesg"
    )]
    Refused {
        /// Which.
        queue: String,
        /// What the record said.
        status: Status,
    },
}

/// `; there are wq0.0, wq0.1`
fn known(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; there is {one}"),
        more => format!("; there are {}", more.join(", ")),
    }
}
