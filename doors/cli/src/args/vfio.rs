//! Options of `telpher vfio`.

use super::values::parse_seconds;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use telpher_vfio::{Machine, Preset, RunOptions};

/// Give virtual machines a Data Streaming Accelerator: a modelled device as a PCI function, over vfio-user.
///
/// Each --socket is a device for one virtual machine. QEMU 10.1 or later attaches it with vfio-user-pci; the guest's
/// own driver (idxd in Linux) finds it, and configures and uses it as a real one. Kernel work queues in dedicated mode
/// work: dmaengine clients and dmatest. Shared virtual addressing, shared queues and migration do not.
///
/// Machines share engines by weight, unless a machine has engines of its own. No guest reaches another guest's memory,
/// counters or errors. A guest may disconnect and reconnect, which resets its device.
#[derive(Debug, Args)]
#[command(after_help = "\
Options of a socket: weight=N, its share of the engines [default: 1]; own-engines, for an \
engine that no other machine uses; and limits: bandwidth=SIZE, bytes a second; in-progress=N, \
descriptors in its queues; transfer=SIZE, bytes of a descriptor.

Examples:
  telpher vfio --socket /tmp/vm.sock
  telpher vfio --socket a.sock --vm 4            a.sock.0 to a.sock.3
  telpher vfio --socket a.sock,weight=3 --socket b.sock
  telpher vfio --socket a.sock,own-engines --socket b.sock --preset full
  telpher vfio --socket a.sock --socket b.sock,bandwidth=1g,transfer=256k
  telpher vfio --socket a.sock --print-qemu      the command line of QEMU
  telpher vfio --socket a.sock --print-libvirt   the XML of libvirt

What works in a guest, and what does not: docs/vms.md")]
pub(crate) struct Vfio {
    /// The socket of a virtual machine; may be repeated.
    #[arg(long, help_heading = "Machines", value_name = "PATH[,OPTIONS]", required = true)]
    socket: Vec<Machine>,
    /// Devices for each --socket; for more than one, the sockets are PATH.0, PATH.1 and so on.
    #[arg(
        long,
        help_heading = "Machines",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    vm: u16,
    /// The device that each machine sees.
    #[arg(long, help_heading = "Device", value_name = "PRESET", default_value = "spr", value_parser = presets())]
    preset: Preset,
    /// Engines that the machines share: threads that execute at the same time [default: CPUs less one].
    #[arg(long, help_heading = "Device", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    engines: Option<u16>,
    /// Access memory that a client maps without a file by messages; without this it is a page fault. Not for QEMU,
    /// whose messages have another layout: copies would corrupt the guest's memory.
    #[arg(long, help_heading = "Device")]
    dma_messages: bool,
    /// Run time in seconds [default: until Ctrl-C].
    #[arg(long, help_heading = "Machines", value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Print QEMU's command line for the first machine and exit.
    #[arg(long, help_heading = "Output", conflicts_with = "print_libvirt")]
    pub(crate) print_qemu: bool,
    /// Print libvirt's XML for the first machine and exit.
    #[arg(long, help_heading = "Output")]
    pub(crate) print_libvirt: bool,
    /// Print nothing while the devices are served.
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
}

fn presets() -> impl clap::builder::TypedValueParser<Value = Preset> {
    PossibleValuesParser::new(Preset::ALL.map(Preset::name)).map(|name| Preset::from_name(&name).unwrap_or_default())
}

impl Vfio {
    /// Returns the options of the servers.
    pub(crate) fn run_options(&self) -> RunOptions {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        RunOptions {
            machines: self.socket.iter().flat_map(|machine| machine.repeated(self.vm.into())).collect(),
            preset: self.preset,
            engines: self.engines.map_or(cpus.saturating_sub(1).max(1), usize::from),
            uses_messages: self.dma_messages,
            seconds: self.seconds,
        }
    }
}
