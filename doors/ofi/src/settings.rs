//! Settings from the environment.

use crate::log;
use std::error::Error;
use std::sync::OnceLock;
use std::time::Duration;
use telpher_device::Opened;
use telpher_fabric::copier::{DEFAULT_SHORTEST, DEVICE_VARIABLE};
use telpher_fabric::{Config, Copier};
use telpher_mover::{ChannelPolicy, MessageTuning, Tuning};

/// The variable with the shortest message that receivers may read from the memory of its sender; `off` for none.
const PULL: &str = "TELPHER_FABRIC_PULL";

/// Its default: none. Source: measured on an AMD EPYC (virtual machine) without other work, where messages from 256 KiB
/// on took 0.95 to 1.28 times as long with pulls.
const PULL_BYTES: u64 = u64::MAX;

/// The variable with the shortest message that receivers may read from a file in memory which both sides map; `off` for
/// none.
const MAPPED: &str = "TELPHER_FABRIC_MAPPED";

/// Copies that a queue may have at once; the CPU makes those beyond all queues. Source: the slots of two connections in
/// both directions. With the slots of one, the CPU makes a third of the copies of a sum in a ring, which then takes
/// half as long again (simulated, lab/sim/docs/fabric.md).
const IN_FLIGHT: u32 = 256;

/// A device that takes longer for a copy counts as stopped. Source: chosen; far more than a page fault takes.
const DEADLINE: Duration = Duration::from_secs(1);

/// Returns what copies the pieces of long messages of an endpoint. If the device cannot be used, a line says why, and
/// the CPU copies.
pub(crate) fn copier() -> Copier {
    let name = device();
    open(&name).unwrap_or_else(|error| {
        log::warn(format_args!("the CPU copies messages, not {DEVICE_VARIABLE}={name}: {error}"));
        Copier::cpu()
    })
}

/// Returns the name of the device; it may be empty.
fn device() -> String {
    std::env::var(DEVICE_VARIABLE).unwrap_or_default()
}

/// Opens queues of a device, or of several, which copy in turn.
fn open(name: &str) -> Result<Copier, Box<dyn Error>> {
    let Opened { portals, skipped } = telpher_device::open_requested(name)?;
    for queue in skipped {
        log::info(format_args!("{queue}"));
    }
    let policy = ChannelPolicy { deadline: Some(DEADLINE), ..ChannelPolicy::default() };
    let copier = Copier::with_queues(portals, IN_FLIGHT, policy)?;
    if copier.queues() > 0 {
        log::info(format_args!(
            "{name} copies pieces of {DEFAULT_SHORTEST} bytes or more, by queues in turn: {}",
            copier.queues()
        ));
    }
    Ok(copier)
}

/// Sets the lengths from which messages travel in another way: those of the variables, otherwise those of the tuning
/// file.
pub(crate) fn set_lengths(config: &mut Config) {
    let tuned = tuned();
    let has_device = !["", "cpu"].contains(&device().as_str());
    apply(&tuned, has_device, config);
    config.mapped_bytes = bytes(MAPPED, config.mapped_bytes);
    if !has_device {
        config.pull_bytes = bytes(PULL, config.pull_bytes);
    }
}

/// Returns what the tuning file says of messages. If it cannot be read, a line says why, once.
fn tuned() -> MessageTuning {
    static TUNED: OnceLock<MessageTuning> = OnceLock::new();
    *TUNED.get_or_init(|| match Tuning::from_environment() {
        Ok(tuning) => tuning.map(|tuning| tuning.messages).unwrap_or_default(),
        Err(error) => {
            log::warn(format_args!("the tuning file that {} names is not used: {error}", Tuning::VARIABLE));
            MessageTuning::default()
        }
    })
}

/// With a device, only the stores of the CPU are as tuned: the lengths were measured without one. It copies the pieces
/// of messages that are longer than those in the ring, and leaves the caller free, which a pull does not.
fn apply(tuned: &MessageTuning, has_device: bool, config: &mut Config) {
    config.streaming_bytes = tuned.streaming_bytes.unwrap_or(config.streaming_bytes);
    config.pull_bytes = u64::MAX;
    if !has_device {
        config.eager_bytes = tuned.eager_bytes.unwrap_or(config.eager_bytes);
        config.pull_bytes = tuned.pull_bytes.unwrap_or(PULL_BYTES);
    }
}

/// Returns the number of bytes that a variable says; `u64::MAX` for `off`.
fn bytes(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    parse_bytes(&text, default).unwrap_or_else(|| {
        log::warn(format_args!("{variable}={text} is not used: it must be a number of bytes, or `off`"));
        default
    })
}

fn parse_bytes(text: &str, default: u64) -> Option<u64> {
    match text {
        "" => Some(default),
        "off" => Some(u64::MAX),
        text => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuning_file_sets_what_it_says_and_nothing_else() {
        let (mut config, defaults) = (Config::default(), Config::default());
        let lengths = |config: &Config| (config.eager_bytes, config.streaming_bytes, config.mapped_bytes);
        for has_device in [false, true] {
            apply(&MessageTuning::default(), has_device, &mut config);
            assert_eq!((lengths(&config), config.pull_bytes), (lengths(&defaults), PULL_BYTES));
        }
        let tuned = MessageTuning { eager_bytes: Some(16 << 10), streaming_bytes: Some(u64::MAX), pull_bytes: None };
        apply(&tuned, false, &mut config);
        assert_eq!(lengths(&config), (16 << 10, u64::MAX, defaults.mapped_bytes));
    }

    #[test]
    fn a_device_copies_all_messages_that_are_too_long_for_the_ring_by_default() {
        let (mut config, defaults) = (Config::default(), Config::default());
        let tuned =
            MessageTuning { eager_bytes: Some(64 << 10), streaming_bytes: Some(4 << 10), pull_bytes: Some(64 << 10) };
        apply(&tuned, true, &mut config);
        assert_eq!(
            (config.eager_bytes, config.streaming_bytes, config.pull_bytes),
            (defaults.eager_bytes, 4 << 10, u64::MAX)
        );
    }

    #[test]
    fn a_length_is_a_number_or_off() {
        let cases = [("", Some(5)), ("off", Some(u64::MAX)), ("4096", Some(4096)), ("0", Some(0))];
        for (text, expected) in cases.into_iter().chain(["on", "-1", "4k"].map(|text| (text, None))) {
            assert_eq!(parse_bytes(text, 5), expected, "{text:?}");
        }
    }
}
