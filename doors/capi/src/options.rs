//! Options as text: `key=value` words, one table for parsing, refusing and helping. What decides is the mover's own
//! list of settings ([`Policy::SETTINGS`]); here stand the few words that belong to this door.
//!
//! Text and not a structure, because policies grow: a new key is no new ABI, and a program built yesterday can take one from
//! its user today.

use crate::failure::{Failure, Refusal};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;
use telpher_cache::{Eviction, Placement};
use telpher_device::{OpenOptions, Runner};
use telpher_mover::{ChannelPolicy, Opcode, Order, Policy, Tuning};
use telpher_vhost::words::Features;
use telpher_vhost::{MOST_RINGS, Offer, PortOptions};

/// Everything that can be set.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) open: OpenOptions,
    pub(crate) policy: Policy,
    pub(crate) channel: ChannelPolicy,
    /// The device's queues that a mover uses; all of them if not set.
    pub(crate) queues: Option<Vec<usize>>,
    /// What a mover begins with, if there is a tuning file.
    pub(crate) tuning: Option<Tuning>,
    pub(crate) cache: CacheOptions,
    pub(crate) port: PortOptions,
}

/// What can be set of a cache.
#[derive(Debug, Default)]
pub(crate) struct CacheOptions {
    pub(crate) placement: Placement,
    pub(crate) eviction: Eviction,
    /// As the cache has it if not set.
    pub(crate) in_flight: Option<usize>,
}

/// What is made with the options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    Device,
    Mover,
    Channel,
    Cache,
    Port,
}

/// One key that the mover's settings do not have.
struct Key {
    name: &'static str,
    of: Of,
    /// What it takes.
    takes: &'static str,
    /// What it decides.
    about: &'static str,
    /// Sets it; nothing if the value is none.
    set: fn(&mut Options, &str) -> Option<()>,
}

const KEYS: &[Key] = &[
    Key {
        name: "runner",
        of: Of::Device,
        takes: "inline or threaded",
        about: "who executes for a modelled device: the submitting thread, or engines on threads",
        set: |o, v| {
            o.open.runner = word(v, &[("inline", Runner::Inline), ("threaded", Runner::Threaded)])?;
            Some(())
        },
    },
    Key {
        name: "queues",
        of: Of::Mover,
        takes: "a list of indices (0,2-3)",
        about: "which of the device's queues are used; all if not given",
        set: |o, v| {
            o.queues = Some(list(v)?);
            Some(())
        },
    },
    Key {
        name: TUNING,
        of: Of::Mover,
        takes: "a file that telpher tune wrote, or none",
        about: "what the mover begins with, before the other words; if not given, the file that TELPHER_TUNING names",
        // Read before the others, see `begin`.
        set: |_, _| Some(()),
    },
    Key {
        name: "order",
        of: Of::Channel,
        takes: "submitted or arrival",
        about: "in which order completions come",
        set: |o, v| {
            o.channel.order = word(v, &[("submitted", Order::Submitted), ("arrival", Order::Arrival)])?;
            Some(())
        },
    },
    Key {
        name: "bursts",
        of: Of::Channel,
        takes: "on or off",
        about: "whether waiting operations go as one batch descriptor",
        set: |o, v| {
            o.channel.bursts = word(v, &[("on", true), ("off", false)])?;
            Some(())
        },
    },
    Key {
        name: "deadline",
        of: Of::Channel,
        takes: "a time such as 10ms",
        about: "how long after its submission an operation is given up",
        set: |o, v| {
            o.channel.deadline = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "placement",
        of: Of::Cache,
        takes: "near, fixed:TIER or interleaved:SIZE",
        about: "in which tier a block is: one near the asking thread's node, always the same, or by address in turns",
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
        about: "which entry that nobody uses goes first when memory is needed",
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
        about: "how many copies may be under way at a time; others wait for their turn, the most urgent first",
        set: |o, v| {
            o.cache.in_flight = Some(v.parse().ok().filter(|most| *most > 0)?);
            Some(())
        },
    },
    Key {
        name: "pairs",
        of: Of::Port,
        takes: "a number from 1 to 128",
        about: "pairs of queues that a frontend can have",
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
        about: "what frontends are not offered",
        set: |o, v| {
            for name in v.split(',') {
                o.port.offer.features -= Features::from_name(&name.to_ascii_uppercase())?;
            }
            Some(())
        },
    },
    Key {
        name: "patience",
        of: Of::Port,
        takes: "a time such as 500ms",
        about: "how long a frontend's request waits for copies in flight, if virtqueues stop or memory changes",
        set: |o, v| {
            o.port.patience = time(v)?;
            Some(())
        },
    },
];

/// The key that is read first.
const TUNING: &str = "tuning";

/// The mover's settings that a channel has too.
const SHARED_WITH_CHANNELS: [&str; 5] = ["on-fault", "hint", "patience", "limit", "linger"];

impl Options {
    /// What there is before the words: a tuning, of the file that the last word about it names or that the environment does.
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

    /// Reads `key=value` words divided by spaces. Later ones win.
    pub(crate) fn parse(of: Of, text: &str) -> Result<Options, Failure> {
        let mut options = Options::begin(of, text)?;
        for word in text.split_ascii_whitespace() {
            options.set(of, word).map_err(|why| Refusal::Option(format!("option '{word}': {why}")))?;
        }
        Ok(options)
    }

    fn set(&mut self, of: Of, word: &str) -> Result<(), String> {
        let (key, value) = word.split_once('=').ok_or("options are written key=value")?;
        if let Some(own) = KEYS.iter().find(|own| own.of == of && own.name == key) {
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
    const ALL: [Of; 5] = [Of::Device, Of::Mover, Of::Channel, Of::Cache, Of::Port];

    fn name(self) -> &'static str {
        match self {
            Of::Device => "device",
            Of::Mover => "mover",
            Of::Channel => "channel",
            Of::Cache => "cache",
            Of::Port => "port",
        }
    }
}

/// Name, values and sense of a key.
type Line = (&'static str, &'static str, &'static str);

/// The mover's settings that something has.
fn settings(of: Of) -> impl Iterator<Item = Line> {
    let has = move |name: &str| match of {
        Of::Device | Of::Cache | Of::Port => false,
        Of::Mover => true,
        Of::Channel => SHARED_WITH_CHANNELS.contains(&name),
    };
    let all = Policy::SETTINGS.iter().filter(move |setting| has(setting.name));
    all.map(|setting| (setting.name, setting.takes, setting.about))
}

fn keys(of: Of) -> impl Iterator<Item = Line> {
    let own = KEYS.iter().filter(move |own| own.of == of).map(|own| (own.name, own.takes, own.about));
    own.chain(settings(of))
}

/// Every key with its values, a few lines each.
pub(crate) fn help() -> String {
    let mut text = String::from("options are key=value words divided by spaces; later ones win\n");
    for of in Of::ALL {
        // Writing to a string does not fail.
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

/// A time, read by a setting that takes one.
fn time(value: &str) -> Option<Duration> {
    let mut time = Policy::default();
    time.set("linger", value).ok()?;
    Some(time.linger)
}

/// A size, as the mover's settings have them, from 1 byte on.
fn bytes(value: &str) -> Option<u64> {
    // Read by a setting that takes a size, but not that setting's other words.
    let mut size = Policy::default();
    value.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some(())?;
    value.bytes().next().filter(u8::is_ascii_digit)?;
    size.set("threshold", value).ok()?;
    Some(size.threshold.of(Opcode::MemoryMove)).filter(|size| *size > 0)
}

/// `0,2-5` as numbers.
fn list(value: &str) -> Option<Vec<usize>> {
    /// More queues than any machine has; keeps a mistyped range from filling the memory.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use telpher_mover::{Hint, OnFault, Route, Threshold};

    fn parse(of: Of, text: &str) -> Result<Options, String> {
        Options::parse(of, text).map_err(|failure| match failure {
            Failure::Refused(refusal) => refusal.to_string(),
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn words_set_the_movers_settings_and_those_of_this_door() {
        let text = "threshold=1 threshold=16k route=first queues=0,2-3";
        let Options { policy, queues, .. } = parse(Of::Mover, text).unwrap();
        let expected = Policy { threshold: Threshold::all(16 << 10), route: Route::First, ..Policy::default() };
        assert_eq!((policy, queues), (expected, Some(vec![0, 2, 3])));
        let text = "order=arrival bursts=off deadline=10ms hint=memory on-fault=block linger=2s";
        let Options { channel, .. } = parse(Of::Channel, text).unwrap();
        let expected = ChannelPolicy {
            order: Order::Arrival,
            bursts: false,
            deadline: Some(Duration::from_millis(10)),
            hint: Hint::Memory,
            on_fault: OnFault::Block,
            linger: Duration::from_secs(2),
            patience: ChannelPolicy::default().patience,
            limit: ChannelPolicy::default().limit,
        };
        assert_eq!(channel, expected);
        assert_eq!(parse(Of::Device, " runner=threaded ").unwrap().open.runner, Runner::Threaded);
        assert_eq!(parse(Of::Channel, "").unwrap().channel, ChannelPolicy::default());
    }

    #[test]
    fn a_tuning_file_comes_before_the_words() {
        let file = std::env::temp_dir().join(format!("telpher-capi-{}.toml", std::process::id()));
        let text = "version = 1\n[machine]\ncpu = \"any\"\ndevice = \"cpu\"\nin-flight = 1\n\
                    [policy]\ncapacity = \"77\"\nroute = \"first\"\n[measured]\n";
        std::fs::write(&file, text).unwrap();
        let words = format!("route=local tuning={}", file.display());
        let parsed = parse(Of::Mover, &words);
        std::fs::remove_file(&file).unwrap();
        let Options { policy, tuning, .. } = parsed.unwrap();
        assert_eq!((policy.capacity, policy.route, tuning.is_some()), (77, Route::Local, true));
        assert!(parse(Of::Mover, "tuning=none").unwrap().tuning.is_none());
        let error = Options::parse(Of::Mover, "tuning=/no/such/file.toml").unwrap_err();
        assert_eq!(error.errno(), libc::ENOENT);
    }

    #[test]
    fn what_is_wrong_is_told_with_what_is_accepted() {
        for (of, text, said) in [
            (Of::Mover, "colour=red", "a mover has queues, tuning, threshold"),
            (Of::Device, "threshold=1", "a device has runner"),
            (Of::Channel, "capacity=9", "a channel has order, bursts, deadline"),
            (Of::Mover, "threshold", "key=value"),
            (Of::Mover, "threshold=", "it takes a size"),
            (Of::Mover, "linger=5", "it takes a time"),
            (Of::Mover, "queues=3-1", "takes a list"),
            (Of::Mover, "queues=0-99999999999", "takes a list"),
            (Of::Channel, "deadline=soon", "takes a time"),
            (Of::Channel, "order=random", "takes submitted or arrival"),
            (Of::Cache, "threshold=1", "a cache has placement, eviction, in-flight"),
            (Of::Cache, "placement=far", "takes near, fixed:TIER or interleaved:SIZE"),
            (Of::Cache, "placement=fixed", "takes near"),
            (Of::Cache, "placement=fixed:-1", "takes near"),
            (Of::Cache, "placement=interleaved:0", "takes near"),
            (Of::Cache, "placement=interleaved:always", "takes near"),
            (Of::Cache, "placement=interleaved:copy=4k", "takes near"),
            (Of::Cache, "eviction=lru", "takes least-recently-used"),
            (Of::Cache, "in-flight=0", "takes a number from 1 on"),
            (Of::Port, "in-flight=1", "a port has pairs, without, patience"),
            (Of::Port, "pairs=0", "takes a number from 1 to 128"),
            (Of::Port, "pairs=129", "takes a number from 1 to 128"),
            (Of::Port, "without=mq,colour", "takes a list of VirtIO features"),
            (Of::Port, "patience=5", "takes a time"),
        ] {
            let error = parse(of, text).unwrap_err();
            assert!(error.contains(said) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn words_set_a_caches_policies() {
        let CacheOptions { placement, eviction, in_flight } =
            parse(Of::Cache, "placement=interleaved:2m eviction=largest in-flight=7").unwrap().cache;
        assert!(matches!(placement, Placement::Interleaved { bytes: 2_097_152 }), "{placement:?}");
        assert!(matches!(eviction, Eviction::Largest) && in_flight == Some(7));
        let CacheOptions { placement, eviction, in_flight } =
            parse(Of::Cache, "placement=interleaved:64 placement=fixed:3 eviction=first-come").unwrap().cache;
        assert!(matches!(placement, Placement::Fixed(3)) && matches!(eviction, Eviction::FirstCome));
        assert_eq!(in_flight, None);
        let CacheOptions { placement, eviction, .. } = parse(Of::Cache, "").unwrap().cache;
        assert!(matches!(placement, Placement::Near) && matches!(eviction, Eviction::LeastRecentlyUsed));
        assert!(matches!(parse(Of::Cache, "placement=near").unwrap().cache.placement, Placement::Near));
    }

    #[test]
    fn words_set_what_a_port_offers() {
        let port = parse(Of::Port, "pairs=128 without=ring_packed,event_idx patience=20ms").unwrap().port;
        assert_eq!((port.offer.rings, port.patience), (256, Duration::from_millis(20)));
        let offered = PortOptions::default().offer.features;
        assert_eq!(offered - port.offer.features, Features::RING_PACKED | Features::EVENT_IDX);
        assert_eq!(parse(Of::Port, "").unwrap().port.offer.rings, 2);
    }

    #[test]
    fn the_help_has_every_key() {
        let help = help();
        for of in Of::ALL {
            assert!(keys(of).all(|(name, takes, _)| help.contains(&format!("  {name}: ")) && help.contains(takes)));
        }
    }
}
