//! The target: its subsystems and controllers, shared by all connections.

use crate::command::Submission;
use crate::controller::{Answer, Controller, EndReason};
use crate::limits::{Limits, LimitsError};
use crate::loops::Loops;
use crate::namespace::{NamespaceError, NamespaceOptions};
use crate::status::Status;
use crate::subsystem::{Subsystem, SubsystemError, SubsystemOptions, Subsystems, lock};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// Bytes of Connect's data.
pub const CONNECT_BYTES: usize = 1024;

/// Offsets of fields that Connect's failures name.
mod field {
    /// SQSIZE in the command.
    pub(super) const QUEUE_SIZE: u16 = 44;
    /// QID in the command.
    pub(super) const QUEUE: u16 = 42;
    /// CNTLID in the data.
    pub(super) const CONTROLLER: u16 = 16;
    /// SUBNQN in the data.
    pub(super) const SUBSYSTEM: u16 = 256;
    /// HOSTNQN in the data.
    pub(super) const HOST: u16 = 512;
}

/// A queue that a Connect has made.
#[derive(Clone, Debug)]
pub struct Connected {
    /// The controller.
    pub controller: Arc<Controller>,
    /// The queue; 0 for the admin queue.
    pub qid: u16,
    /// The entries of the queue, SQSIZE + 1.
    pub entries: u32,
    /// SQ flow control is on: each completion has the head of the submission queue.
    pub flow_control: bool,
    /// The controller's reset count.
    pub epoch: u32,
}

#[derive(Debug, Default)]
struct Controllers {
    by_id: BTreeMap<u16, Arc<Controller>>,
    last: u16,
}

/// The target.
#[derive(Debug)]
pub struct Target {
    subsystems: Arc<Subsystems>,
    controllers: Mutex<Controllers>,
    connections: Mutex<u64>,
    loops: Arc<Loops>,
}

impl Target {
    /// A target without subsystems, except discovery.
    ///
    /// # Errors
    /// [`LimitsError`] if the protocol cannot express the limits.
    pub fn new(limits: Limits) -> Result<Arc<Target>, LimitsError> {
        limits.check()?;
        Ok(Arc::new(Target {
            subsystems: Arc::new(Subsystems::new(limits)),
            controllers: Mutex::default(),
            connections: Mutex::new(0),
            loops: Arc::default(),
        }))
    }

    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.subsystems.limits
    }

    /// Its subsystems.
    #[must_use]
    pub fn subsystems(&self) -> &Arc<Subsystems> {
        &self.subsystems
    }

    /// How the target and backends with threads of their own reach the loops that serve connections.
    #[must_use]
    pub fn loops(&self) -> &Arc<Loops> {
        &self.loops
    }

    /// The controllers that exist.
    #[must_use]
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        lock(&self.controllers).by_id.values().cloned().collect()
    }

    /// A number for a new connection; each is given once.
    pub(crate) fn next_connection(&self) -> u64 {
        let mut connections = lock(&self.connections);
        *connections += 1;
        *connections
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// [`SubsystemError`] if its options are invalid or it exists.
    pub fn add_subsystem(&self, options: SubsystemOptions) -> Result<Arc<Subsystem>, SubsystemError> {
        let subsystem = Arc::new(Subsystem::new(options)?);
        self.subsystems.add(Arc::clone(&subsystem))?;
        self.discovery_changed();
        Ok(subsystem)
    }

    /// Removes a subsystem and ends its controllers. Returns whether it existed.
    pub fn remove_subsystem(&self, nqn: &str) -> bool {
        let removed = self.subsystems.remove(nqn);
        for controller in self.controllers_of(nqn) {
            controller.end(EndReason::Removed);
        }
        self.discovery_changed();
        removed.is_some()
    }

    /// Sets the addresses that the discovery log lists.
    pub fn set_listeners(&self, listeners: Vec<SocketAddr>) {
        self.subsystems.set_listeners(listeners);
        self.discovery_changed();
    }

    /// Sets which hosts may use a subsystem. Connections that exist are kept.
    ///
    /// # Errors
    /// [`NamespaceError::Subsystem`] if it does not exist.
    pub fn set_hosts(
        &self,
        nqn: &str,
        hosts: Option<std::collections::BTreeSet<String>>,
    ) -> Result<(), NamespaceError> {
        self.subsystem(nqn)?.set_hosts(hosts);
        self.discovery_changed();
        Ok(())
    }

    /// Adds a namespace, and tells the hosts of the subsystem.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn add_namespace(&self, nqn: &str, options: NamespaceOptions) -> Result<(), NamespaceError> {
        let nsid = options.nsid;
        self.subsystem(nqn)?.add_namespace(options)?;
        self.namespace_changed(nqn, nsid);
        Ok(())
    }

    /// Removes a namespace, and tells the hosts of the subsystem. Commands that it has accepted still complete.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn remove_namespace(&self, nqn: &str, nsid: u32) -> Result<(), NamespaceError> {
        self.subsystem(nqn)?.remove_namespace(nsid)?;
        self.namespace_changed(nqn, nsid);
        Ok(())
    }

    /// Changes the capacity of a namespace in bytes, and tells the hosts of the subsystem.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn resize_namespace(&self, nqn: &str, nsid: u32, bytes: u64) -> Result<(), NamespaceError> {
        let namespace = self.subsystem(nqn)?.namespace(nsid).ok_or(NamespaceError::Missing { nsid })?;
        namespace.resize(bytes)?;
        self.namespace_changed(nqn, nsid);
        Ok(())
    }

    fn subsystem(&self, nqn: &str) -> Result<Arc<Subsystem>, NamespaceError> {
        let found = self.subsystems.find(nqn).filter(|subsystem| !subsystem.is_discovery());
        found.ok_or_else(|| NamespaceError::Subsystem { nqn: nqn.into() })
    }

    fn controllers_of(&self, nqn: &str) -> Vec<Arc<Controller>> {
        let mut controllers = self.controllers();
        controllers.retain(|controller| controller.subsystem().options().nqn == nqn);
        controllers
    }

    fn namespace_changed(&self, nqn: &str, nsid: u32) {
        for controller in self.controllers_of(nqn) {
            controller.namespace_changed(nsid);
        }
        self.loops.target_changed();
    }

    fn discovery_changed(&self) {
        self.subsystems.changed();
        for controller in self.controllers() {
            controller.discovery_changed();
        }
        self.loops.target_changed();
    }

    /// Executes Connect. The checks have the order of SPDK's.
    ///
    /// # Errors
    /// The answer for the host.
    pub fn connect(&self, command: &Submission, data: &[u8], now: u64) -> Result<Connected, Answer> {
        let invalid = |in_data: bool, offset: u16| {
            let result = u64::from(offset) | u64::from(in_data) << 16;
            Err(Answer { result, ..Status::CONNECT_PARAMETERS.do_not_retry().into() })
        };
        let Some((data, [])) = data.split_at_checked(CONNECT_BYTES) else {
            return Err(Status::INVALID_FIELD.do_not_retry().into());
        };
        let [record, queue] = split(command.dword(10));
        let [size, attributes] = split(command.dword(11));
        let Some(subsystem) = name(&data[256..512]).and_then(|nqn| self.subsystems.find(nqn)) else {
            return invalid(true, field::SUBSYSTEM);
        };
        let Some(host_nqn) = name(&data[512..768]) else { return invalid(true, field::HOST) };
        if !subsystem.is_discovery() && !subsystem.allows(host_nqn) {
            return Err(Status::INVALID_HOST.do_not_retry().into());
        }
        if record != 0 {
            return Err(Status::INCOMPATIBLE_FORMAT.do_not_retry().into());
        }
        let limits = self.limits();
        let depth = if queue == 0 { limits.admin_depth } else { limits.queue_depth };
        if size == 0 || size >= depth {
            return invalid(false, field::QUEUE_SIZE);
        }
        let host_id: [u8; 16] = data[..16].try_into().expect("16 bytes");
        let controller_id = u16::from_le_bytes([data[16], data[17]]);
        let flow_control = attributes & 1 << 2 == 0;
        let entries = u32::from(size) + 1;
        if queue == 0 {
            if controller_id != 0xffff {
                return invalid(true, field::CONTROLLER);
            }
            if !self.is_one_host(host_nqn, host_id) {
                return invalid(true, field::HOST);
            }
            let controller = self.create(subsystem, host_nqn, host_id, command.dword(12), now)?;
            let epoch = controller.epoch();
            return Ok(Connected { controller, qid: 0, entries, flow_control, epoch });
        }
        if subsystem.is_discovery() {
            return invalid(false, field::QUEUE);
        }
        let controller = lock(&self.controllers).by_id.get(&controller_id).cloned();
        let belongs = |controller: &Arc<Controller>| {
            controller.host() == (host_nqn, host_id) && Arc::ptr_eq(controller.subsystem(), &subsystem)
        };
        let Some(controller) = controller.filter(belongs) else { return invalid(true, field::CONTROLLER) };
        match controller.take_queue(queue) {
            Ok(epoch) => Ok(Connected { controller, qid: queue, entries, flow_control, epoch }),
            Err(Status::CONNECT_PARAMETERS) => invalid(false, field::QUEUE),
            // The old connection of this queue may be ending, so the host may try again.
            Err(status) => Err(status.into()),
        }
    }

    /// A host identifier belongs to one host NQN. Source: NVMe Base 2.0 §5.27.1.25.
    fn is_one_host(&self, nqn: &str, id: [u8; 16]) -> bool {
        self.controllers().iter().all(|controller| {
            let (other_nqn, other_id) = controller.host();
            other_id != id || other_nqn == nqn || controller.ended().is_some()
        })
    }

    fn create(
        &self,
        subsystem: Arc<Subsystem>,
        host_nqn: &str,
        host_id: [u8; 16],
        keep_alive_ms: u32,
        now: u64,
    ) -> Result<Arc<Controller>, Answer> {
        let mut controllers = lock(&self.controllers);
        let Limits { controllers: most, least_controller_id: least, most_controller_id: last, .. } = *self.limits();
        if controllers.by_id.len() >= usize::from(most.min(last - least + 1)) {
            return Err(Status::CONTROLLER_BUSY.into());
        }
        // Identifiers count up, so that one is not used again at once.
        let mut id = controllers.last;
        loop {
            id = if (least..last).contains(&id) { id + 1 } else { least };
            if !controllers.by_id.contains_key(&id) {
                break;
            }
        }
        controllers.last = id;
        let subsystems = Arc::clone(&self.subsystems);
        let controller = Controller::new(id, subsystem, subsystems, host_nqn.into(), host_id, keep_alive_ms, now);
        let controller = Arc::new(controller);
        controllers.by_id.insert(id, Arc::clone(&controller));
        Ok(controller)
    }

    /// The connection of a queue has ended. The admin queue takes its controller with it.
    pub(crate) fn disconnected(&self, queue: &Connected) {
        if queue.qid == 0 {
            queue.controller.end(EndReason::Closed);
            lock(&self.controllers).by_id.remove(&queue.controller.id());
            self.loops.target_changed();
        } else {
            queue.controller.release_queue(queue.qid, queue.epoch);
        }
    }
}

/// The NQN of the host in the data of Connect.
pub(crate) fn host_name(data: &[u8]) -> Option<String> {
    name(data.get(512..768)?).map(str::to_owned)
}

/// The low and the high half of a dword.
fn split(dword: u32) -> [u16; 2] {
    let [a, b, c, d] = dword.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

/// Parses an NQN that ends with NUL within its field (CVE-2023-6121: nvmet read beyond a field without NUL).
fn name(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    let name = std::str::from_utf8(&field[..end]).ok()?;
    crate::subsystem::NQN_BYTES.contains(&name.len()).then_some(name)
}
