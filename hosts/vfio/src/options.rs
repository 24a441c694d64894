//! What the caller of the servers chooses.

use crate::turns::Allowance;
use std::path::PathBuf;
use std::str::FromStr;
use telpher_model::Preset;
use telpher_os::parse_size;

/// Which virtual machines get a device, and what kind.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// One virtual machine each.
    pub machines: Vec<Machine>,
    /// The device that each of them sees.
    pub preset: Preset,
    /// Threads that execute for those without engines of their own, at the same time.
    pub engines: usize,
    /// Memory that a client maps without a file is accessed by messages; otherwise it faults.
    pub uses_messages: bool,
    /// Seconds until the servers end; without, they run until a signal ends them.
    pub seconds: Option<f64>,
}

/// One virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Its socket.
    pub path: PathBuf,
    /// Its share of the engines, relative to the others'.
    pub weight: u32,
    /// True if it has an engine that no other machine uses.
    pub own_engines: bool,
    /// The most work in a second: bytes, and 512 for each descriptor; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// The most descriptors that its queues hold, in all; `None` for what the device has.
    pub in_progress: Option<u16>,
    /// Power of two of its largest transfer; `None` for what the device has.
    pub transfer_shift: Option<u8>,
}

/// A machine as users write it.
const SYNTAX: &str = "PATH[,weight=N][,own-engines][,bandwidth=SIZE][,in-progress=N][,transfer=SIZE]";
/// Least work in a second, and smallest largest transfer: fewer would stop a guest. Source: chosen.
const LEAST_BANDWIDTH: u64 = 1 << 20;
const LEAST_TRANSFER_SHIFT: u32 = 12;
/// The largest transfer of any device. Source: the width of a descriptor's size field.
const MOST_TRANSFER_SHIFT: u32 = 31;

/// Why a text is not a machine.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

impl FromStr for Machine {
    type Err = ParseError;

    /// Parses `PATH[,weight=N][,own-engines][,bandwidth=SIZE][,in-progress=N][,transfer=SIZE]`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err(ParseError(format!("'{text}' has no path; a machine is {SYNTAX}")));
        }
        let mut machine = Machine::new(path);
        for part in parts {
            machine.set(part).ok_or_else(|| ParseError(refusal(part)))?;
        }
        Ok(machine)
    }
}

/// Why a part is not an option.
fn refusal(part: &str) -> String {
    let most = crate::turns::MOST_WEIGHT;
    let known = match part.split_once('=').map_or(part, |(name, _)| name) {
        "weight" => format!("weight is 1 to {most}"),
        "bandwidth" => "bandwidth is at least 1m: bytes a second, with k, m or g for KiB, MiB or GiB".to_owned(),
        "in-progress" => "in-progress is 1 to 65535 descriptors".to_owned(),
        "transfer" => "transfer is a power of two from 4k to 2g".to_owned(),
        _ => format!("a machine is {SYNTAX}"),
    };
    format!("'{part}' is not an option of a machine: {known}")
}

impl Machine {
    /// A machine with weight 1 and without limits.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Machine {
        Machine {
            path: path.into(),
            weight: 1,
            own_engines: false,
            bandwidth: None,
            in_progress: None,
            transfer_shift: None,
        }
    }

    /// Sets one option, `name` or `name=value`; `None` if there is no such option or value.
    fn set(&mut self, part: &str) -> Option<()> {
        let (name, value) = part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("own-engines", None) => self.own_engines = true,
            ("weight", Some(value)) => {
                self.weight = value.parse().ok().filter(|weight| (1..=crate::turns::MOST_WEIGHT).contains(weight))?;
            }
            ("bandwidth", Some(value)) => {
                self.bandwidth = Some(parse_size(value).filter(|bytes| *bytes >= LEAST_BANDWIDTH)?);
            }
            ("in-progress", Some(value)) => {
                self.in_progress = Some(value.parse().ok().filter(|most| *most > 0)?);
            }
            ("transfer", Some(value)) => {
                let shift = parse_size(value).filter(|bytes| bytes.is_power_of_two())?.ilog2();
                let shift = Some(shift).filter(|at| (LEAST_TRANSFER_SHIFT..=MOST_TRANSFER_SHIFT).contains(at))?;
                self.transfer_shift = Some(u8::try_from(shift).ok()?);
            }
            _ => return None,
        }
        Some(())
    }

    /// What it may have of a pool of engines.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance { weight: self.weight, bandwidth: self.bandwidth }
    }

    /// Returns `count` machines like this one. If there are several, their sockets have `.0`, `.1` and so on behind the
    /// path.
    #[must_use]
    pub fn repeated(&self, count: usize) -> Vec<Machine> {
        let numbered = |number: usize| {
            let mut path = self.path.clone().into_os_string();
            path.push(format!(".{number}"));
            Machine { path: path.into(), ..self.clone() }
        };
        if count == 1 { vec![self.clone()] } else { (0..count).map(numbered).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_parsed_with_their_options() {
        let machine = Machine::new("/tmp/a");
        assert_eq!("/tmp/a".parse(), Ok(machine.clone()));
        let weighted = Machine { weight: 3, own_engines: true, ..machine.clone() };
        assert_eq!("/tmp/a,weight=3,own-engines".parse(), Ok(weighted));
        let limited = Machine { bandwidth: Some(2 << 30), in_progress: Some(16), transfer_shift: Some(20), ..machine };
        assert_eq!("/tmp/a,bandwidth=2g,in-progress=16,transfer=1m".parse(), Ok(limited));
    }

    #[test]
    fn wrong_options_are_named_with_what_is_possible() {
        for (wrong, known) in [
            ("", "own-engines"),
            (",weight=1", "own-engines"),
            ("a,wait=1", "bandwidth=SIZE"),
            ("a,own-engines=1", "own-engines"),
            ("a,weight", "1 to 1000"),
            ("a,weight=0", "1 to 1000"),
            ("a,weight=1001", "1 to 1000"),
            ("a,bandwidth=1k", "at least 1m"),
            ("a,bandwidth=fast", "at least 1m"),
            ("a,in-progress=0", "1 to 65535"),
            ("a,in-progress=65536", "1 to 65535"),
            ("a,transfer=3m", "a power of two from 4k to 2g"),
            ("a,transfer=2k", "a power of two from 4k to 2g"),
        ] {
            let error = wrong.parse::<Machine>().unwrap_err().to_string();
            assert!(error.contains(known), "{error}");
        }
    }

    #[test]
    fn several_machines_have_numbered_sockets() {
        let machine: Machine = "vm.sock,weight=2".parse().unwrap();
        assert_eq!(machine.repeated(1), std::slice::from_ref(&machine));
        let paths: Vec<_> = machine.repeated(2).into_iter().map(|machine| machine.path).collect();
        assert_eq!(paths, [PathBuf::from("vm.sock.0"), PathBuf::from("vm.sock.1")]);
    }
}
