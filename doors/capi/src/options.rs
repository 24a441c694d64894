//! Options as text: `key=value` words, with one table for parsing, errors and help. Most of the table is the mover's
//! own list of settings ([`Policy::SETTINGS`]); the few keys of this crate are defined here.
//!
//! Text and not a structure, because policies grow: a new key is not a new ABI, and an existing program can accept a
//! new key from its user.

mod switch;
#[cfg(test)]
mod tests;
mod tier;

use crate::failure::{Failure, Refusal};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
pub(crate) use switch::SwitchWords;
use telpher_cache::{Eviction, Placement};
use telpher_device::{OpenOptions, Runner};
use telpher_mover::{ChannelPolicy, Opcode, Order, Policy, Tuning};
use telpher_vhost::layout::Features;
use telpher_vhost::{MOST_RINGS, Offer, PortOptions};
pub(crate) use tier::{HeapWords, ManagerWords};

/// Everything that can be set.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) open: OpenOptions,
    pub(crate) policy: Policy,
    pub(crate) channel: ChannelPolicy,
    /// The device's queues that a mover uses; all if not set.
    pub(crate) queues: Option<Vec<usize>>,
    /// A mover's initial settings, if there is a tuning file.
    pub(crate) tuning: Option<Tuning>,
    pub(crate) cache: CacheOptions,
    pub(crate) port: PortOptions,
    pub(crate) heap: HeapWords,
    pub(crate) manager: ManagerWords,
    pub(crate) packet_switch: SwitchWords,
}

/// The options of a cache.
#[derive(Debug, Default)]
pub(crate) struct CacheOptions {
    pub(crate) placement: Placement,
    pub(crate) eviction: Eviction,
    /// The cache's default if not set.
    pub(crate) in_flight: Option<usize>,
}

/// What the options are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    Device,
    Mover,
    Channel,
    Cache,
    Port,
    Heap,
    Manager,
    Switch,
}

/// A key that is not one of the mover's settings.
struct Key {
    name: &'static str,
    of: Of,
    /// The values it takes.
    takes: &'static str,
    /// Its effect.
    about: &'static str,
    /// Sets it; `None` if the value is invalid.
    set: fn(&mut Options, &str) -> Option<()>,
}

const KEYS: &[Key] = &[
    Key {
        name: "runner",
        of: Of::Device,
        takes: "auto, inline or threaded",
        about: "what runs a modelled device: the submitting thread, engine threads, or either by length",
        set: |o, v| {
            let runners = [("auto", Runner::Auto), ("inline", Runner::Inline), ("threaded", Runner::Threaded)];
            o.open.runner = word(v, &runners)?;
            Some(())
        },
    },
    Key {
        name: "queues",
        of: Of::Mover,
        takes: "a list of indices (0,2-3)",
        about: "the device's queues to use; all if not given",
        set: |o, v| {
            o.queues = Some(list(v)?);
            Some(())
        },
    },
    Key {
        name: TUNING,
        of: Of::Mover,
        takes: "a file that telpher tune wrote, or none",
        about: "the mover's initial settings, read before the other options; if not given, the file that \
                TELPHER_TUNING names",
        // Read before the others, see `begin`.
        set: |_, _| Some(()),
    },
    Key {
        name: "order",
        of: Of::Channel,
        takes: "submitted or arrival",
        about: "the order of completions",
        set: |o, v| {
            o.channel.order = word(v, &[("submitted", Order::Submitted), ("arrival", Order::Arrival)])?;
            Some(())
        },
    },
    Key {
        name: "bursts",
        of: Of::Channel,
        takes: "on or off",
        about: "whether waiting operations are sent as one batch descriptor",
        set: |o, v| {
            o.channel.bursts = word(v, &[("on", true), ("off", false)])?;
            Some(())
        },
    },
    Key {
        name: "deadline",
        of: Of::Channel,
        takes: "a time such as 10ms",
        about: "how long after its submission an operation is abandoned",
        set: |o, v| {
            o.channel.deadline = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "placement",
        of: Of::Cache,
        takes: "near, fixed:TIER or interleaved:SIZE",
        about: "the tier of a block: near the calling thread's node, always the same, or interleaved by address",
        set: |o, v| {
            o.cache.placement = match v.split_once(':') {
                None => word(v, &[("near", ())]).map(|()| Placement::Near)?,
                Some(("fixed", tier)) => Placement::Fixed(tier.parse().ok()?),
                Some(("interleaved", size)) => Placement::Interleaved { bytes: bytes(size)? },
                Some(_) => return None,
            };
            Some(())
        },
    },
    Key {
        name: "eviction",
        of: Of::Cache,
        takes: "least-recently-used, first-come or largest",
        about: "which unused entry is removed first when memory is needed",
        set: |o, v| {
            o.cache.eviction = match v {
                "least-recently-used" => Eviction::LeastRecentlyUsed,
                "first-come" => Eviction::FirstCome,
                "largest" => Eviction::Largest,
                _ => return None,
            };
            Some(())
        },
    },
    Key {
        name: "in-flight",
        of: Of::Cache,
        takes: "a number from 1 on",
        about: "the most copies in flight at a time; others wait, the highest priority first",
        set: |o, v| {
            o.cache.in_flight = Some(v.parse().ok().filter(|most| *most > 0)?);
            Some(())
        },
    },
    Key {
        name: "pairs",
        of: Of::Port,
        takes: "a number from 1 to 128",
        about: "the number of queue pairs that a frontend can have",
        set: |o, v| {
            let pairs = v.parse().ok().filter(|pairs| (1..=MOST_RINGS / 2).contains(pairs))?;
            o.port.offer.rings = Offer::of_pairs(pairs).rings;
            Some(())
        },
    },
    Key {
        name: "without",
        of: Of::Port,
        takes: "a list of VirtIO features such as ring_packed,event_idx",
        about: "features that are not offered to frontends",
        set: |o, v| {
            for name in v.split(',') {
                o.port.offer.features -= Features::from_name(&name.to_ascii_uppercase())?;
            }
            Some(())
        },
    },
    Key {
        name: "drain-timeout",
        of: Of::Port,
        takes: "a time such as 500ms",
        about: "how long a frontend's request waits for copies in flight, if virtqueues stop or memory changes",
        set: |o, v| {
            o.port.drain_timeout = time(v)?;
            Some(())
        },
    },
];

/// All keys.
fn own_keys() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().chain(tier::KEYS).chain(switch::KEYS)
}

/// The key that is read first.
const TUNING: &str = "tuning";

/// The mover's settings that a channel has too.
const SHARED_WITH_CHANNELS: [&str; 5] = ["on-fault", "hint", "patience", "limit", "linger"];

impl Options {
    /// The initial settings before the other words: a tuning file named by the last such word or by the environment.
    fn begin(of: Of, text: &str) -> Result<Options, Failure> {
        if of != Of::Mover {
            return Ok(Options::default());
        }
        let mut words = text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        let tuning = match words.rfind(|(key, _)| *key == TUNING) {
            Some((_, "none")) => None,
            Some((_, file)) => Some(Tuning::load(Path::new(file))?),
            None => Tuning::from_environment()?,
        };
        let policy = tuning.as_ref().map_or(Policy::default(), Tuning::policy);
        Ok(Options { tuning, policy, ..Options::default() })
    }

    /// Parses `key=value` words separated by spaces. Later ones override earlier ones.
    pub(crate) fn parse(of: Of, text: &str) -> Result<Options, Failure> {
        let mut options = Options::begin(of, text)?;
        for word in text.split_ascii_whitespace() {
            options.set(of, word).map_err(|why| Refusal::Option(format!("option '{word}': {why}")))?;
        }
        Ok(options)
    }

    fn set(&mut self, of: Of, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').ok_or("options are written key=value")?;
        if let Some(own) = own_keys().find(|own| own.of == of && own.name == key) {
            return (own.set)(self, value).ok_or_else(|| format!("'{key}' takes {}", own.takes));
        }
        if !settings(of).any(|(name, ..)| name == key) {
            let names: Vec<&str> = keys(of).map(|(name, ..)| name).collect();
            let names = names.join(", ");
            return Err(format!("a {} has {names}", of.name()));
        }
        self.policy.set(key, value).map_err(|error| error.to_string())?;
        let Policy { hint, on_fault, patience, limit, linger, .. } = self.policy;
        self.channel = ChannelPolicy { hint, on_fault, patience, limit, linger, ..self.channel };
        Ok(())
    }
}

impl Of {
    const ALL: [Of; 8] = [Of::Device, Of::Mover, Of::Channel, Of::Cache, Of::Port, Of::Heap, Of::Manager, Of::Switch];

    fn name(self) -> &'static str {
        match self {
            Of::Device => "device",
            Of::Mover => "mover",
            Of::Channel => "channel",
            Of::Cache => "cache",
            Of::Port => "port",
            Of::Heap => "heap",
            Of::Manager => "manager",
            Of::Switch => "switch",
        }
    }
}

/// Name, values and effect of a key.
type Line = (&'static str, &'static str, &'static str);

/// The mover's settings that apply to `of`.
fn settings(of: Of) -> impl Iterator<Item = Line> {
    let has = move |name: &str| match of {
        Of::Device | Of::Cache | Of::Port | Of::Heap | Of::Manager | Of::Switch => false,
        Of::Mover => true,
        Of::Channel => SHARED_WITH_CHANNELS.contains(&name),
    };
    let all = Policy::SETTINGS.iter().filter(move |setting| has(setting.name));
    all.map(|setting| (setting.name, setting.takes, setting.about))
}

fn keys(of: Of) -> impl Iterator<Item = Line> {
    let own = own_keys().filter(move |own| own.of == of).map(|own| (own.name, own.takes, own.about));
    own.chain(settings(of))
}

/// The help text: every key with its values.
pub(crate) fn help() -> String {
    let mut text = String::from("options are key=value words separated by spaces; later ones override earlier ones\n");
    for of in Of::ALL {
        // Writing to a string cannot fail.
        let _ = write!(text, "\nof a {}:\n", of.name());
        for (name, takes, about) in keys(of) {
            let _ = write!(text, "  {name}: {about}\n      takes {takes}\n");
        }
    }
    text
}

fn word<T: Copy>(value: &str, words: &[(&str, T)]) -> Option<T> {
    words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning)
}

/// Parses a time, with a setting that takes one.
fn time(value: &str) -> Option<Duration> {
    let mut time = Policy::default();
    time.set("linger", value).ok()?;
    Some(time.linger)
}

/// Parses a size like the mover's settings, at least 1 byte.
fn bytes(value: &str) -> Option<u64> {
    // Parsed by a setting that takes a size, without that setting's other words.
    let mut size = Policy::default();
    value.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some(())?;
    value.bytes().next().filter(u8::is_ascii_digit)?;
    size.set("threshold", value).ok()?;
    Some(size.threshold.of(Opcode::MemoryMove)).filter(|size| *size > 0)
}

/// Parses `0,2-5` as numbers.
fn list(value: &str) -> Option<Vec<usize>> {
    /// More queues than any machine has; prevents a mistyped range from filling the memory.
    const MOST: usize = 4096;
    let mut all = Vec::new();
    for part in value.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let parse = |digits: &str| digits.parse::<usize>().ok().filter(|n| *n < MOST);
        let (first, last) = (parse(first)?, parse(last)?);
        if first > last {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}
