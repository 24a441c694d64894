//! Subsystems, the hosts that may use them, and where they are reached.

use crate::limits::Limits;
use crate::namespace::{Namespace, NamespaceError, NamespaceOptions};
use crate::sync::{read, write};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, RwLock};

pub(crate) use crate::sync::lock;

/// The NQN of every discovery subsystem. Source: NVMe over Fabrics 1.1 §1.5.6.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Bytes of an NQN. Source: NVMe Base 2.0 §4.5: at most 223 bytes.
pub const NQN_BYTES: std::ops::RangeInclusive<usize> = 11..=223;

/// How a subsystem is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemOptions {
    /// The NQN: `nqn.yyyy-mm.reverse.domain:name`, or `nqn.2014-08.org.nvmexpress:uuid:UUID`.
    pub nqn: String,
    /// The serial number, up to 20 ASCII characters. It must be the same after a restart.
    pub serial: String,
    /// The model number, up to 40 ASCII characters. It must be the same after a restart.
    pub model: String,
    /// The NQNs of the hosts that may connect; `None` for any host.
    pub hosts: Option<BTreeSet<String>>,
}

/// Why a subsystem is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubsystemError {
    /// The NQN has the wrong form.
    #[error("{nqn:?} is not an NQN such as nqn.2026-01.org.example:disk, of 11 to 223 characters")]
    Nqn {
        /// The name.
        nqn: String,
    },
    /// A text field is too long, or has characters other than printable ASCII.
    #[error("the {field} {text:?} is not 1 to {most} characters of ASCII")]
    Text {
        /// The field.
        field: &'static str,
        /// Its text.
        text: String,
        /// The longest text.
        most: usize,
    },
    /// There is a subsystem with this NQN.
    #[error("subsystem {nqn} exists")]
    Exists {
        /// The name.
        nqn: String,
    },
}

/// Returns whether a name has the form of an NQN. Source: NVMe Base 2.0 §4.5.
#[must_use]
pub fn is_nqn(name: &str) -> bool {
    let has_date = |rest: &str| {
        let bytes = rest.as_bytes();
        let digit = |index: usize| bytes.get(index).is_some_and(u8::is_ascii_digit);
        bytes.len() > 8
            && [0, 1, 2, 3, 5, 6].into_iter().all(digit)
            && bytes[4] == b'-'
            && bytes[7] == b'.'
            && matches!(&bytes[5..7], [b'0', b'1'..=b'9'] | [b'1', b'0'..=b'2'])
    };
    NQN_BYTES.contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic())
        && name.strip_prefix("nqn.").is_some_and(has_date)
}

/// A subsystem.
#[derive(Debug)]
pub struct Subsystem {
    options: SubsystemOptions,
    hosts: RwLock<Option<BTreeSet<String>>>,
    namespaces: RwLock<BTreeMap<u32, Arc<Namespace>>>,
}

impl Subsystem {
    /// Creates a subsystem without namespaces.
    ///
    /// # Errors
    /// [`SubsystemError`] if the options are invalid.
    pub fn new(options: SubsystemOptions) -> Result<Subsystem, SubsystemError> {
        if !is_nqn(&options.nqn) || options.nqn == DISCOVERY_NQN {
            return Err(SubsystemError::Nqn { nqn: options.nqn });
        }
        for (field, text, most) in [("serial", &options.serial, 20), ("model", &options.model, 40)] {
            let is_ascii = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            if text.is_empty() || text.len() > most || !is_ascii {
                return Err(SubsystemError::Text { field, text: text.clone(), most });
            }
        }
        let hosts = RwLock::new(options.hosts.clone());
        Ok(Subsystem { options, hosts, namespaces: RwLock::default() })
    }

    /// The discovery subsystem.
    pub(crate) fn discovery() -> Subsystem {
        let options = SubsystemOptions {
            nqn: DISCOVERY_NQN.into(),
            serial: "discovery".into(),
            model: "telpher".into(),
            hosts: None,
        };
        Subsystem { options, hosts: RwLock::new(None), namespaces: RwLock::default() }
    }

    /// Its options, with the hosts as they were at the start.
    #[must_use]
    pub fn options(&self) -> &SubsystemOptions {
        &self.options
    }

    /// Returns whether this is the discovery subsystem.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.options.nqn == DISCOVERY_NQN
    }

    /// Returns whether a host may connect.
    #[must_use]
    pub fn allows(&self, host: &str) -> bool {
        read(&self.hosts).as_ref().is_none_or(|hosts| hosts.contains(host))
    }

    /// The NQNs of the hosts that may connect; `None` for any host.
    #[must_use]
    pub fn hosts(&self) -> Option<BTreeSet<String>> {
        read(&self.hosts).clone()
    }

    /// Sets which hosts may connect from now on; `None` for any host.
    pub fn set_hosts(&self, hosts: Option<BTreeSet<String>>) {
        *write(&self.hosts) = hosts;
    }

    /// The namespace with this identifier.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<Arc<Namespace>> {
        read(&self.namespaces).get(&nsid).cloned()
    }

    /// The identifiers of the namespaces above `nsid`, rising.
    #[must_use]
    pub fn namespaces_above(&self, nsid: u32) -> Vec<u32> {
        read(&self.namespaces).keys().copied().filter(|&other| other > nsid).collect()
    }

    pub(crate) fn add_namespace(&self, options: NamespaceOptions) -> Result<(), NamespaceError> {
        let nsid = options.nsid;
        let namespace = Arc::new(Namespace::new(options)?);
        let mut namespaces = write(&self.namespaces);
        if namespaces.contains_key(&nsid) {
            return Err(NamespaceError::Exists { nsid });
        }
        namespaces.insert(nsid, namespace);
        Ok(())
    }

    pub(crate) fn remove_namespace(&self, nsid: u32) -> Result<(), NamespaceError> {
        // The end of a namespace can take long: its memory is unmapped. It comes after the lock.
        let removed = write(&self.namespaces).remove(&nsid);
        removed.map(drop).ok_or(NamespaceError::Missing { nsid })
    }
}

/// All subsystems of a target, and the addresses at which it listens.
#[derive(Debug)]
pub struct Subsystems {
    /// The limits of the target.
    pub limits: Limits,
    discovery: Arc<Subsystem>,
    list: RwLock<Vec<Arc<Subsystem>>>,
    listeners: RwLock<Vec<SocketAddr>>,
    generation: Mutex<u64>,
}

impl Subsystems {
    pub(crate) fn new(limits: Limits) -> Subsystems {
        Subsystems {
            limits,
            discovery: Arc::new(Subsystem::discovery()),
            list: RwLock::default(),
            listeners: RwLock::default(),
            generation: Mutex::new(1),
        }
    }

    /// The subsystem with this NQN, which may be the discovery subsystem.
    #[must_use]
    pub fn find(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        if nqn == DISCOVERY_NQN {
            return Some(Arc::clone(&self.discovery));
        }
        read(&self.list).iter().find(|subsystem| subsystem.options.nqn == nqn).cloned()
    }

    /// All subsystems but the discovery subsystem.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Subsystem>> {
        read(&self.list).clone()
    }

    /// The addresses at which the target listens.
    #[must_use]
    pub fn listeners(&self) -> Vec<SocketAddr> {
        read(&self.listeners).clone()
    }

    /// GENCTR: rises with every change of the discovery log.
    #[must_use]
    pub fn generation(&self) -> u64 {
        *lock(&self.generation)
    }

    pub(crate) fn changed(&self) {
        *lock(&self.generation) += 1;
    }

    pub(crate) fn add(&self, subsystem: Arc<Subsystem>) -> Result<(), SubsystemError> {
        let mut list = write(&self.list);
        if list.iter().any(|other| other.options.nqn == subsystem.options.nqn) {
            return Err(SubsystemError::Exists { nqn: subsystem.options.nqn.clone() });
        }
        list.push(subsystem);
        Ok(())
    }

    pub(crate) fn remove(&self, nqn: &str) -> Option<Arc<Subsystem>> {
        let mut list = write(&self.list);
        let index = list.iter().position(|subsystem| subsystem.options.nqn == nqn)?;
        Some(list.remove(index))
    }

    pub(crate) fn set_listeners(&self, listeners: Vec<SocketAddr>) {
        *write(&self.listeners) = listeners;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_for_their_form_and_length() {
        let longest = format!("nqn.2026-01.org.example:{}", "x".repeat(223 - 24));
        for name in ["nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff", "nqn.2026-12.a", &longest]
        {
            assert!(is_nqn(name), "{name}");
        }
        let too_long = format!("{longest}x");
        for name in [
            "",
            "nqn.",
            "nqn.2026-1.org",
            "nqn.2026-13.org",
            "nqn.2026-00.org",
            "iqn.2026-01.org",
            "nqn.2026-01",
            "nqn.2026-01.o g:x",
            &too_long,
        ] {
            assert!(!is_nqn(name), "{name}");
        }
    }

    #[test]
    fn a_serial_number_fits_its_field() {
        let options = |serial: &str| SubsystemOptions {
            nqn: "nqn.2026-01.org.example:disk".into(),
            serial: serial.into(),
            model: "telpher".into(),
            hosts: None,
        };
        for serial in ["", "123456789012345678901", "né", "a\nb"] {
            assert!(matches!(Subsystem::new(options(serial)), Err(SubsystemError::Text { field: "serial", .. })));
        }
        assert!(Subsystem::new(options("12345678901234567890")).is_ok());
    }
}
