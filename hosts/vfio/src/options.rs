//! What the caller of the servers chooses.

use std::path::PathBuf;
use std::str::FromStr;
use telpher_model::Preset;

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
}

/// Why a text is not a machine.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

impl FromStr for Machine {
    type Err = ParseError;

    /// Parses `PATH[,weight=N][,own-engines]`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let most = crate::turns::MOST_WEIGHT;
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err(ParseError(format!("'{text}' has no path; a machine is PATH[,weight=N][,own-engines]")));
        }
        let mut machine = Machine { path: path.into(), weight: 1, own_engines: false };
        for part in parts {
            match (part, part.strip_prefix("weight=").map(str::parse::<u32>)) {
                ("own-engines", _) => machine.own_engines = true,
                (_, Some(Ok(weight))) if (1..=most).contains(&weight) => machine.weight = weight,
                _ => {
                    return Err(ParseError(format!(
                        "'{part}' is not an option of a machine; use weight=1 to weight={most}, or own-engines"
                    )));
                }
            }
        }
        Ok(machine)
    }
}

impl Machine {
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
        let machine = Machine { path: "/tmp/a".into(), weight: 1, own_engines: false };
        assert_eq!("/tmp/a".parse(), Ok(machine.clone()));
        assert_eq!("/tmp/a,weight=3,own-engines".parse(), Ok(Machine { weight: 3, own_engines: true, ..machine }));
        for wrong in ["", ",weight=1", "a,weight=0", "a,weight=1001", "a,wait=1", "a,weight"] {
            let error = wrong.parse::<Machine>().unwrap_err().to_string();
            assert!(error.contains("own-engines"), "{error}");
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
