//! Errors of opening a queue: the attempt, the machine's answer, what to do.

use crate::machine::{QueueType, State};
use std::io;
use std::path::PathBuf;
use telpher_abi::Status;

/// Error: a queue could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not a queue's name.
    #[error("'{0}' is not a queue; queues are named like wq0.1 (device 0, queue 1)")]
    Name(String),
    /// The driver is not loaded, or its bus cannot be read.
    #[error(
        "cannot open {queue}: {}",
        match .source.kind() {
            io::ErrorKind::NotFound =>
                "/sys/bus/dsa does not exist, so the idxd driver is not loaded; try `modprobe idxd`",
            _ => "/sys/bus/dsa cannot be listed; let this program read /sys (a sandbox, a container or a security \
                  module forbids it)",
        }
    )]
    NoDriver {
        /// The queue.
        queue: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The device does not exist.
    #[error(
        "cannot open {queue}: the driver has no device {device}{}",
        if .present.is_empty() {
            "; it has none at all: see whether `lspci -d 8086:` lists an accelerator, which firmware can hide, and \
             dmesg for why idxd did not take it".into()
        } else {
            known(.present)
        }
    )]
    NoDevice {
        /// The queue.
        queue: String,
        /// Its device.
        device: String,
        /// The devices that exist.
        present: Vec<String>,
    },
    /// The device has no such queue.
    #[error("cannot open {queue}: {device} has no such queue{}", known(.present))]
    NoQueue {
        /// The queue.
        queue: String,
        /// Its device.
        device: String,
        /// The queues that exist.
        present: Vec<String>,
    },
    /// The device does not work.
    #[error(
        "cannot open {queue}: {device} is {state}; {}",
        match .state {
            State::Halted => "it has to be reset: unbind it from idxd, write 1 to `reset` of its PCI function, and \
                              configure it again",
            _ => "configure and enable it, for example with `accel-config load-config -c FILE -e`",
        }
    )]
    Device {
        /// The queue.
        queue: String,
        /// Its device.
        device: String,
        /// Its state.
        state: State,
    },
    /// The device cannot use programs' address spaces.
    #[error(
        "cannot open {queue}: {device} works without PASIDs and would misinterpret this program's addresses; boot with \
         `intel_iommu=on,sm_on`, and load idxd with `sva=1`"
    )]
    NoPasids {
        /// The queue.
        queue: String,
        /// Its device.
        device: String,
    },
    /// The queue is for the kernel, or not configured.
    #[error(
        "cannot open {queue}: its type is {queue_type}; only queues of type user are for programs: disable it, set its \
         type and name, and enable it again, for example with accel-config"
    )]
    Type {
        /// The queue.
        queue: String,
        /// Its type.
        queue_type: QueueType,
    },
    /// The queue is disabled.
    #[error(
        "cannot open {queue}: it is disabled; enable it, for example with `accel-config enable-wq {device}/{queue}`"
    )]
    Disabled {
        /// The queue.
        queue: String,
        /// Its device.
        device: String,
    },
    /// The driver does not report a property that a client needs.
    #[error(
        "cannot open {queue}: its attribute `{attribute}` has no usable value; is this an idxd driver of Linux 5.15 or \
         later?"
    )]
    Attribute {
        /// The queue.
        queue: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// The node does not exist although the queue is enabled.
    #[error(
        "cannot open {}: there is no such node, though the queue is enabled; in a container, pass it in (`--device \
         {}`), otherwise check that /dev is managed (devtmpfs, udev)", .path.display(), .path.display()
    )]
    NoNode {
        /// The node.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// No permission.
    #[error(
        "cannot open {}: permission denied; give this user read and write access to it (chmod, chown, or a udev rule \
         for subsystem dsa); in a container its device cgroup has to allow it too", .path.display()
    )]
    Permission {
        /// The node.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another program has it open.
    #[error(
        "cannot open {}: it is dedicated and in use; close the other program (`fuser -v {}`), or configure a shared \
         queue",
        .path.display(), .path.display()
    )]
    Busy {
        /// The node.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The process got no PASID.
    #[error(
        "cannot open {}: the driver could not bind this process' address space (PASID); boot with \
         `intel_iommu=on,sm_on`, and look at dmesg", .path.display()
    )]
    AddressSpace {
        /// The node.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Any other error of open(2).
    #[error("cannot open {}; `telpher doctor` and dmesg may show more", .path.display())]
    Open {
        /// The node.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The portal cannot be mapped, and the driver does not submit by write() either.
    #[error(
        "cannot submit to {}: its portal cannot be mapped{}, and the driver refuses write(): {refused}",
        .path.display(),
        match .source.raw_os_error() {
            Some(libc::EPERM) => " without CAP_SYS_RAWIO (INTEL-SA-01084); give the program that capability, or use a \
                kernel with write() submission (6.9, or a stable update of 2024)",
            _ => "",
        }
    )]
    Map {
        /// The node.
        path: PathBuf,
        /// The error of write(2).
        refused: io::Error,
        /// The error of mmap(2).
        #[source]
        source: io::Error,
    },
    /// The processor lacks the instruction, and the driver does not submit by write() either.
    #[error(
        "cannot submit to {}: this processor or its kernel offers no {instruction}, and the driver refuses write(); {}",
        .path.display(),
        if *.instruction == "ENQCMD" {
            "use a dedicated queue, or Linux 5.18 or later"
        } else {
            "use a machine that has it"
        }
    )]
    Instruction {
        /// The node.
        path: PathBuf,
        /// `MOVDIR64B` or `ENQCMD`.
        instruction: &'static str,
        /// The error of write(2).
        #[source]
        source: io::Error,
    },
    /// The queue was opened, and did not complete a No-op.
    #[error(
        "{queue} was opened, but did not answer a No-op within {waited_ms} ms; see `errors` and `cmd_status` of its \
         device in /sys/bus/dsa/devices, and dmesg"
    )]
    Silent {
        /// The queue.
        queue: String,
        /// The time waited, in milliseconds.
        waited_ms: u128,
    },
    /// The queue was opened, and a No-op failed.
    #[error(
        "{queue} was opened, but a No-op failed: {status}; see `errors` of its device in /sys/bus/dsa/devices, and \
         dmesg"
    )]
    Refused {
        /// The queue.
        queue: String,
        /// The status in the record.
        status: Status,
    },
}

/// Formats `; there are wq0.0, wq0.1`.
fn known(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; there is {one}"),
        more => format!("; there are {}", more.join(", ")),
    }
}
