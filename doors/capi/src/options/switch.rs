//! Options of a packet switch.

use super::{Key, Of, bytes, list, time, word};
use telpher_switch::{Full, Mode, SwitchConfig};
use telpher_vhost::{CopyPolicy, QueueOptions};

/// The options of a switch.
#[derive(Debug)]
pub(crate) struct SwitchWords {
    /// The configuration, without its ports.
    pub(crate) config: SwitchConfig,
    /// The device's queues to use; all if not set.
    pub(crate) queues: Option<Vec<usize>>,
    /// Which packets the device copies; the switch measures it if not set.
    pub(crate) copies: CopyPolicy,
    /// The most packets of a virtqueue in flight.
    pub(crate) in_flight: usize,
}

impl Default for SwitchWords {
    fn default() -> Self {
        let in_flight = QueueOptions::default().in_flight;
        SwitchWords { config: SwitchConfig::default(), queues: None, copies: CopyPolicy::Learned, in_flight }
    }
}

/// The limits of numbers. Source: those of the options of `telpher vhost`.
const BURSTS: std::ops::RangeInclusive<usize> = 1..=512;
const SIZES: std::ops::RangeInclusive<u64> = 64..=9216;
const FLOWS: std::ops::RangeInclusive<u32> = 1..=32_768;
const IN_FLIGHT: std::ops::RangeInclusive<usize> = 1..=32_768;
const LONGEST: std::ops::RangeInclusive<u64> = 64..=65_535;
const BUFFERS: std::ops::RangeInclusive<u32> = 4096..=1_048_576;
const THREADS: std::ops::RangeInclusive<usize> = 1..=1024;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "forward",
        of: Of::Switch,
        takes: "io, mac, rxonly, txonly or flowgen",
        about: "how packets are handled: forwarded unchanged, forwarded with new addresses, received and dropped, \
                generated, or generated and received",
        set: |o, v| {
            o.packet_switch.config.settings.mode = word(
                v,
                &[
                    ("io", Mode::Io),
                    ("mac", Mode::Mac),
                    ("rxonly", Mode::RxOnly),
                    ("txonly", Mode::TxOnly),
                    ("flowgen", Mode::FlowGen),
                ],
            )?;
            Some(())
        },
    },
    Key {
        name: "burst",
        of: Of::Switch,
        takes: "a number from 1 to 512",
        about: "packets that are received and submitted together",
        set: |o, v| {
            o.packet_switch.config.settings.burst = v.parse().ok().filter(|burst| BURSTS.contains(burst))?;
            Some(())
        },
    },
    Key {
        name: "retry",
        of: Of::Switch,
        takes: "a time such as 1s, or none",
        about: "how long packets wait for a guest that takes none; with none, the initial value, they are dropped",
        set: |o, v| {
            let settings = &mut o.packet_switch.config.settings;
            if v == "none" {
                settings.full = Full::Drop;
            } else {
                (settings.full, settings.retry_for) = (Full::Retry, time(v)?);
            }
            Some(())
        },
    },
    Key {
        name: "size",
        of: Of::Switch,
        takes: "a size from 64 to 9216",
        about: "bytes of generated packets",
        set: |o, v| {
            let size = bytes(v).filter(|size| SIZES.contains(size))?;
            o.packet_switch.config.settings.len = u32::try_from(size).ok()?;
            Some(())
        },
    },
    Key {
        name: "flows",
        of: Of::Switch,
        takes: "a number from 1 to 32768",
        about: "the number of destinations of generated packets",
        set: |o, v| {
            o.packet_switch.config.settings.flows = v.parse().ok().filter(|flows| FLOWS.contains(flows))?;
            Some(())
        },
    },
    Key {
        name: "threads",
        of: Of::Switch,
        takes: "a number from 1 to 1024",
        about: "the number of forwarding threads, at most one for each queue that receives packets",
        set: |o, v| {
            o.packet_switch.config.threads = v.parse().ok().filter(|threads| THREADS.contains(threads))?;
            Some(())
        },
    },
    Key {
        name: "cpus",
        of: Of::Switch,
        takes: "a list of processors (2,4-5)",
        about: "one forwarding thread runs on each",
        set: |o, v| {
            let config = &mut o.packet_switch.config;
            config.cpus = list(v)?;
            config.threads = config.cpus.len();
            Some(())
        },
    },
    Key {
        name: "buffers",
        of: Of::Switch,
        takes: "a number from 4096 to 1048576",
        about: "the number of packet buffers",
        set: |o, v| {
            o.packet_switch.config.buffers = v.parse().ok().filter(|buffers| BUFFERS.contains(buffers))?;
            Some(())
        },
    },
    Key {
        name: "longest",
        of: Of::Switch,
        takes: "a size from 64 to 65535",
        about: "bytes of the longest packet; longer ones are dropped and counted",
        set: |o, v| {
            let longest = bytes(v).filter(|longest| LONGEST.contains(longest))?;
            o.packet_switch.config.longest = u32::try_from(longest).ok()?;
            Some(())
        },
    },
    Key {
        name: "captured",
        of: Of::Switch,
        takes: "a size such as 96",
        about: "the most bytes of each packet in a capture; whole packets if not given",
        set: |o, v| {
            o.packet_switch.config.captured_bytes = u32::try_from(bytes(v)?).ok()?;
            Some(())
        },
    },
    Key {
        name: "queues",
        of: Of::Switch,
        takes: "a list of indices (0,2-3)",
        about: "the device's queues to use; all if not given",
        set: |o, v| {
            o.packet_switch.queues = Some(list(v)?);
            Some(())
        },
    },
    Key {
        name: "threshold",
        of: Of::Switch,
        takes: "a size such as 512, or learned, all or off",
        about: "packets of at least this many bytes are copied by the device; learned, the initial value: where that \
                is measured to be cheaper",
        set: |o, v| {
            let words = [("learned", CopyPolicy::Learned), ("all", CopyPolicy::Device), ("off", CopyPolicy::Cpu)];
            o.packet_switch.copies = match word(v, &words) {
                Some(policy) => policy,
                None => CopyPolicy::From(u32::try_from(bytes(v)?).ok()?),
            };
            Some(())
        },
    },
    Key {
        name: "in-flight",
        of: Of::Switch,
        takes: "a number from 1 to 32768",
        about: "the most packets of a virtqueue in flight",
        set: |o, v| {
            o.packet_switch.in_flight = v.parse().ok().filter(|most| IN_FLIGHT.contains(most))?;
            Some(())
        },
    },
];
