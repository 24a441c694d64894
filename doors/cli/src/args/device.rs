//! Options that choose a device and its work queues, the same in several commands.

use clap::{Args, ValueEnum};

/// The device of a command.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArg {
    /// Device: cpu, model:spr, model:spr-fw2, model:full, model:srf, model:v2-full, model:v3-full, model:FILE, hw:wqM.N
    /// (not simulated), or all.
    #[arg(
        id = "device",
        short = 'd',
        long = "device",
        value_name = "DEV",
        default_value = "all",
        help_heading = "Device",
        value_parser = super::values::parse_device
    )]
    pub(crate) name: String,
}

/// The work queues that a command configures on a modelled device.
#[derive(Clone, Debug, Args)]
pub(crate) struct QueueArgs {
    /// Work queues: dedicated (one for each thread) or shared by all threads [default: dedicated].
    #[arg(long, value_enum, value_name = "MODE", help_heading = "Device")]
    pub(crate) wq_mode: Option<WqMode>,
    /// Entries of a work queue [default: 128, divided among the queues].
    #[arg(long, value_name = "N", help_heading = "Device", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) wq_size: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum WqMode {
    /// One client, posted writes; does not report that it is full.
    Dedicated,
    /// Many clients; answers Retry when full.
    Shared,
}
