//! A controller: properties and their sequence, admin commands, features, events and keep alive.
//!
//! A controller lives from the Connect of its admin queue until that connection ends. It has no I/O and no clock: each
//! call takes the time in milliseconds.
//!
//! Source: NVMe Base 2.0 §3.1, §3.5, §5; NVMe over Fabrics 1.1 §3, §4.

use crate::aborts::AbortTable;
use crate::command::{FUSED, Submission, admin};
use crate::identify::{self, DISCOVERY_EVENTS, NAMESPACE_EVENTS, VERSION};
use crate::status::Status;
use crate::subsystem::{Subsystem, Subsystems, lock};
use crate::{discovery, log_pages};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// Offsets of properties.
pub mod property {
    /// CAP, capabilities; 8 bytes.
    pub const CAP: u32 = 0x00;
    /// VS, version.
    pub const VS: u32 = 0x08;
    /// CC, configuration.
    pub const CC: u32 = 0x14;
    /// CSTS, status.
    pub const CSTS: u32 = 0x1c;
}

/// CC.EN.
pub const ENABLE: u32 = 1;
/// CC.SHN: a normal or an abrupt shutdown.
const SHUTDOWN: u32 = 3 << 14;
/// CC.IOSQES 6 and CC.IOCQES 4: entries of 64 and of 16 bytes.
pub const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
/// The bits of [`ENTRY_SIZES`].
const ENTRY_SIZES_MASK: u32 = 0xff << 16;
/// CC.MPS, CC.AMS and CC.CSS: each must be 0.
const FIXED_FIELDS: u32 = 0xf << 7 | 7 << 11 | 7 << 4;

/// CSTS.RDY.
pub const READY: u32 = 1;
/// CSTS.CFS: the controller has failed.
pub const FATAL_STATUS: u32 = 1 << 1;
/// CSTS.SHST: the shutdown is complete.
pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;

/// CAP.TO in units of 500 ms. Source: SPDK's is 30.
const READY_TIMEOUT: u64 = 30;

/// How long a discovery controller lives without a command if its host set no keep alive time-out. Source: SPDK.
const DISCOVERY_IDLE_MS: u64 = 120_000;

/// Changed namespaces that are remembered: one more than the log page lists, which then says "many".
const LONGEST_CHANGES: usize = 1025;

/// The first identifier that no namespace can have.
const MOST_NAMESPACES_PLUS_1: u32 = crate::limits::MOST_NAMESPACES + 1;

/// Why a controller has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// The connection of its admin queue ended.
    Closed,
    /// The host sent no command within the keep alive time-out.
    KeepAlive,
    /// The host did not enable it in time.
    Disabled,
    /// Its subsystem was removed.
    Removed,
}

/// An asynchronous event: dword 0 of its completion. Source: NVMe Base 2.0 §5.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Event {
    /// Namespaces were added, removed or resized; log 04h says which.
    NamespacesChanged = 0x0004_0002,
    /// The discovery log changed.
    DiscoveryChanged = 0x0070_f002,
}

/// What an I/O command needs to know of its controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandState {
    /// The controller is enabled, ready and not shut down.
    pub is_ready: bool,
    /// Writes may stay in a volatile cache until a Flush (feature 06h).
    pub has_write_cache: bool,
    /// The number of resets so far.
    pub epoch: u32,
}

/// The answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// Data for the host. The connection cuts it, or fills it with zeroes, to the length that the host gave.
    pub data: Option<Vec<u8>>,
}

impl From<Status> for Answer {
    fn from(status: Status) -> Answer {
        Answer { status, result: 0, data: None }
    }
}

impl Answer {
    /// Success with this result.
    #[must_use]
    pub fn result(result: u64) -> Answer {
        Answer { status: Status::SUCCESS, result, data: None }
    }

    /// Success with this data.
    #[must_use]
    pub fn data(data: Vec<u8>) -> Answer {
        Answer { status: Status::SUCCESS, result: 0, data: Some(data) }
    }
}

#[derive(Debug)]
struct State {
    configuration: u32,
    status: u32,
    /// Counts the resets. The I/O queues of an earlier count are dead.
    epoch: u32,
    keep_alive_ms: u32,
    alive_at: u64,
    /// While the controller is disabled: when it ends.
    enable_by: Option<u64>,
    /// I/O queues in use.
    queues: BTreeSet<u16>,
    /// Granted I/O queues.
    granted: u16,
    features: BTreeMap<u8, u32>,
    /// The volatile write cache is enabled.
    has_write_cache: bool,
    /// Events that the host wants (feature 0Bh).
    wanted: u32,
    /// Events that happened and were not reported.
    events: BTreeSet<Event>,
    /// Events that were reported, and whose log was not read since.
    masked: BTreeSet<Event>,
    changed: BTreeSet<u32>,
    ended: Option<EndReason>,
    /// The discovery log that a host reads in parts.
    discovery_log: Vec<u8>,
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    id: u16,
    subsystem: Arc<Subsystem>,
    subsystems: Arc<Subsystems>,
    host_nqn: String,
    host_id: [u8; 16],
    state: Mutex<State>,
    aborts: AbortTable,
}

/// Features with one number that has no effect here, and its default. Source: NVMe Base 2.0 §5.27.1.
const PLAIN_FEATURES: [(u8, u32); 5] = [
    (0x01, 0),      // arbitration
    (0x02, 0),      // power management
    (0x04, 0x0157), // temperature threshold: 343 K
    (0x05, 0),      // error recovery
    (0x0a, 0),      // write atomicity
];
/// Feature 06h: volatile write cache.
const WRITE_CACHE: u8 = 0x06;
/// Feature 07h: number of queues.
const QUEUES: u8 = 0x07;
/// Feature 0Bh: asynchronous event configuration.
const EVENTS: u8 = 0x0b;
/// Feature 0Fh: keep alive timer.
const KEEP_ALIVE: u8 = 0x0f;
/// Feature 81h: host identifier.
const HOST_IDENTIFIER: u8 = 0x81;

impl Controller {
    pub(crate) fn new(
        id: u16,
        subsystem: Arc<Subsystem>,
        subsystems: Arc<Subsystems>,
        host_nqn: String,
        host_id: [u8; 16],
        keep_alive_ms: u32,
        now: u64,
    ) -> Controller {
        let granted = subsystems.limits.io_queues;
        let enable_by = Some(now.saturating_add(subsystems.limits.disabled_ms));
        let controller = Controller {
            id,
            subsystem,
            subsystems,
            host_nqn,
            host_id,
            state: Mutex::new(State {
                configuration: 0,
                status: 0,
                epoch: 0,
                keep_alive_ms: 0,
                alive_at: now,
                enable_by,
                queues: BTreeSet::new(),
                granted,
                features: PLAIN_FEATURES.into(),
                has_write_cache: true,
                wanted: 0,
                events: BTreeSet::new(),
                masked: BTreeSet::new(),
                changed: BTreeSet::new(),
                ended: None,
                discovery_log: Vec::new(),
            }),
            aborts: AbortTable::default(),
        };
        let rounded = controller.rounded(keep_alive_ms);
        lock(&controller.state).keep_alive_ms = rounded;
        controller
    }

    /// CNTLID.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Its subsystem.
    #[must_use]
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// The NQN and the identifier of its host.
    #[must_use]
    pub fn host(&self) -> (&str, [u8; 16]) {
        (&self.host_nqn, self.host_id)
    }

    pub(crate) fn aborts(&self) -> &AbortTable {
        &self.aborts
    }

    /// Why the controller has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<EndReason> {
        lock(&self.state).ended
    }

    /// Ends the controller. All its connections close when they are polled the next time.
    pub fn end(&self, reason: EndReason) {
        let mut state = lock(&self.state);
        if reason == EndReason::KeepAlive {
            state.status |= FATAL_STATUS;
        }
        state.ended.get_or_insert(reason);
    }

    /// The number of resets so far. An I/O queue that connected under an earlier number is dead.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        lock(&self.state).epoch
    }

    /// Returns whether commands other than Fabrics commands are served: enabled, ready and not shut down.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        lock(&self.state).status == READY
    }

    /// Restarts the keep alive timer, which any command does (traffic based keep alive), and returns what the command
    /// needs to know.
    #[must_use]
    pub fn begin_command(&self, now: u64) -> CommandState {
        let mut state = lock(&self.state);
        state.alive_at = now;
        CommandState { is_ready: state.status == READY, has_write_cache: state.has_write_cache, epoch: state.epoch }
    }

    /// The time at which the controller ends if its host does nothing more, and the reason.
    fn expiry(&self) -> Option<(u64, EndReason)> {
        let state = lock(&self.state);
        let timeout: Option<u64> = match state.keep_alive_ms {
            0 if self.subsystem.is_discovery() => Some(DISCOVERY_IDLE_MS),
            0 => None,
            timeout => Some(timeout.into()),
        };
        let silent = timeout.map(|timeout| (state.alive_at.saturating_add(timeout), EndReason::KeepAlive));
        let disabled = state.enable_by.map(|at| (at, EndReason::Disabled));
        silent.into_iter().chain(disabled).min_by_key(|(at, _)| *at)
    }

    /// The time at which the controller ends if its host sends no command and does not enable it; `None` for never.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.expiry().map(|(at, _)| at)
    }

    /// Ends the controller if its time has come.
    pub fn check_expiry(&self, now: u64) {
        if let Some((at, reason)) = self.expiry()
            && now >= at
        {
            self.end(reason);
        }
    }

    /// Takes an identifier for an I/O queue. Returns the controller's reset count.
    ///
    /// # Errors
    /// The status for the host.
    pub fn take_queue(&self, qid: u16) -> Result<u32, Status> {
        let mut state = lock(&self.state);
        let is_enabled = state.status == READY && state.configuration & ENTRY_SIZES_MASK == ENTRY_SIZES;
        if state.ended.is_some() || !is_enabled || qid > state.granted {
            return Err(Status::CONNECT_PARAMETERS);
        }
        if state.queues.insert(qid) { Ok(state.epoch) } else { Err(Status::INVALID_QUEUE) }
    }

    /// Returns an I/O queue's identifier after its connection has ended.
    pub fn release_queue(&self, qid: u16, epoch: u32) {
        let mut state = lock(&self.state);
        if state.epoch == epoch {
            state.queues.remove(&qid);
        }
    }

    /// Property Get: `is_long` for 8 bytes.
    #[must_use]
    pub fn get_property(&self, offset: u32, is_long: bool) -> Answer {
        let state = lock(&self.state);
        let capabilities = self.capabilities();
        let [low, high] = crate::command::halves(capabilities);
        let value = match (offset, is_long) {
            (property::CAP, true) => capabilities,
            (property::CAP, false) => low.into(),
            (0x04, false) => high.into(),
            (property::VS, false) => VERSION.into(),
            (property::CC, false) => state.configuration.into(),
            (property::CSTS, false) => state.status.into(),
            _ => return Status::CONNECT_PARAMETERS.do_not_retry().into(),
        };
        Answer::result(value)
    }

    fn capabilities(&self) -> u64 {
        let limits = &self.subsystems.limits;
        let depth = if self.subsystem.is_discovery() { limits.admin_depth } else { limits.queue_depth };
        // MQES, CQR, TO, and CSS: the NVM command set.
        u64::from(depth - 1) | 1 << 16 | READY_TIMEOUT << 24 | 1 << 37
    }

    /// Property Set.
    pub fn set_property(&self, offset: u32, is_long: bool, value: u64, now: u64) -> Answer {
        if (offset, is_long) != (property::CC, false) {
            return Status::CONNECT_PARAMETERS.do_not_retry().into();
        }
        let [configuration, _] = crate::command::halves(value);
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.configuration, configuration);
        let (was_enabled, is_enabled) = (before & ENABLE != 0, configuration & ENABLE != 0);
        if !was_enabled && is_enabled {
            // A configuration that cannot be served is reported as a failed controller.
            state.status = if configuration & FIXED_FIELDS == 0 { READY } else { FATAL_STATUS };
            state.enable_by = None;
        } else if was_enabled && !is_enabled {
            let limits = &self.subsystems.limits;
            state.reset(limits.io_queues);
            state.enable_by = Some(now.saturating_add(limits.disabled_ms));
        }
        if configuration & SHUTDOWN != 0 && before & SHUTDOWN == 0 {
            // A controller caches no data, so a shutdown is complete at once. Linux nvmet clears RDY as well.
            state.status = SHUTDOWN_COMPLETE;
        }
        Answer::from(Status::SUCCESS)
    }

    /// Executes an admin command. `local` is the address at which the host came in. Asynchronous Event Requests and
    /// Abort belong to the connection.
    pub fn admin(&self, command: &Submission, local: SocketAddr) -> Answer {
        if let Err(status) = self.check_admin(command) {
            return status.do_not_retry().into();
        }
        match command.opcode {
            admin::IDENTIFY => self.identify(command),
            admin::GET_LOG_PAGE => self.log_page(command, local),
            admin::SET_FEATURES => self.set_feature(command),
            admin::GET_FEATURES => self.get_feature(command),
            admin::KEEP_ALIVE => Status::SUCCESS.into(),
            _ => Status::INVALID_OPCODE.do_not_retry().into(),
        }
    }

    /// Checks what all admin commands have in common.
    ///
    /// # Errors
    /// The status for the host.
    pub fn check_admin(&self, command: &Submission) -> Result<(), Status> {
        if !self.is_ready() {
            return Err(Status::SEQUENCE_ERROR);
        }
        let is_served = match command.opcode {
            admin::IDENTIFY | admin::GET_LOG_PAGE | admin::SET_FEATURES | admin::GET_FEATURES => true,
            admin::KEEP_ALIVE | admin::EVENT_REQUEST => true,
            admin::ABORT => !self.subsystem.is_discovery(),
            _ => false,
        };
        if !is_served {
            return Err(Status::INVALID_OPCODE);
        }
        let is_for_controller = matches!(command.opcode, admin::KEEP_ALIVE | admin::EVENT_REQUEST | admin::ABORT);
        if command.flags & FUSED != 0 || (is_for_controller && command.nsid.get() != 0) {
            return Err(Status::INVALID_FIELD);
        }
        Ok(())
    }

    fn identify(&self, command: &Submission) -> Answer {
        let invalid_field = Answer::from(Status::INVALID_FIELD.do_not_retry());
        let invalid_namespace = Answer::from(Status::INVALID_NAMESPACE.do_not_retry());
        let [kind, _, ..] = command.dword(10).to_le_bytes();
        let [_, _, _, command_set] = command.dword(11).to_le_bytes();
        let nsid = command.nsid.get();
        let limits = &self.subsystems.limits;
        if self.subsystem.is_discovery() && kind != 0x01 {
            return invalid_field;
        }
        let namespace = || match nsid {
            0 | MOST_NAMESPACES_PLUS_1.. => Err(invalid_namespace.clone()),
            _ => Ok(self.subsystem.namespace(nsid)),
        };
        match kind {
            0x00 => match namespace() {
                Err(answer) => answer,
                Ok(Some(namespace)) => Answer::data(identify::namespace(&namespace, limits)),
                Ok(None) => Answer::data(identify::no_namespace()),
            },
            0x01 => Answer::data(identify::controller(&self.subsystem, self.id, limits)),
            0x02 | 0x07 if nsid >= 0xffff_fffe => invalid_namespace,
            0x07 if command_set != 0 => invalid_field,
            0x02 | 0x07 => Answer::data(identify::namespace_list(&self.subsystem.namespaces_above(nsid))),
            0x03 => match namespace() {
                Ok(Some(namespace)) => Answer::data(identify::descriptors(&namespace)),
                _ => invalid_namespace,
            },
            0x06 if command_set == 0 => Answer::data(identify::nvm_controller(limits)),
            0x1c => Answer::data(identify::command_sets()),
            _ => invalid_field,
        }
    }

    fn log_page(&self, command: &Submission, local: SocketAddr) -> Answer {
        let [page, parameter, low, high] = command.dword(10).to_le_bytes();
        let [upper_low, upper_high, ..] = command.dword(11).to_le_bytes();
        let keeps_event = parameter & 0x80 != 0;
        // NUMD counts dwords from 0; it has 32 bits, so the bytes need more.
        let len = (u64::from(u32::from_le_bytes([low, high, upper_low, upper_high])) + 1) * 4;
        let offset = command.long(12);
        let mut state = lock(&self.state);
        let is_discovery = self.subsystem.is_discovery();
        let (bytes, event) = match (page, is_discovery) {
            (log_pages::id::ERRORS, _) => (log_pages::errors(), None),
            (log_pages::id::HEALTH, false) => (log_pages::health(), None),
            (log_pages::id::FIRMWARE, false) => (log_pages::firmware(), None),
            (log_pages::id::CHANGED_NAMESPACES, false) => {
                let bytes = log_pages::changed_namespaces(&state.changed);
                if !keeps_event {
                    state.changed.clear();
                }
                (bytes, Some(Event::NamespacesChanged))
            }
            (log_pages::id::EFFECTS, false) => (log_pages::effects(), None),
            (log_pages::id::DISCOVERY, true) => {
                // A read from the start takes a snapshot for the following parts.
                if offset == 0 || state.discovery_log.is_empty() {
                    state.discovery_log = discovery::log(&self.subsystems, &self.host_nqn, local);
                }
                (state.discovery_log.clone(), Some(Event::DiscoveryChanged))
            }
            _ => return Status::INVALID_LOG_PAGE.do_not_retry().into(),
        };
        if let Some(event) = event
            && !keeps_event
        {
            state.masked.remove(&event);
        }
        let invalid_field = Status::INVALID_FIELD.do_not_retry();
        let start = match usize::try_from(offset) {
            Ok(start) if start <= bytes.len() && start.is_multiple_of(4) => start,
            _ => return invalid_field.into(),
        };
        if len != u64::from(command.sgl_length.get()) {
            return Status::DATA_LENGTH.do_not_retry().into();
        }
        // A host may ask for more than the page has; the rest is zeroes. The caller checked the length of the data.
        let Ok(len) = usize::try_from(len) else { return invalid_field.into() };
        let mut part = bytes[start..].to_vec();
        part.resize(len, 0);
        Answer::data(part)
    }

    fn set_feature(&self, command: &Submission) -> Answer {
        let [feature, ..] = command.dword(10).to_le_bytes();
        let invalid_field = Answer::from(Status::INVALID_FIELD.do_not_retry());
        if command.dword(10) >> 31 != 0 {
            return Status::NOT_SAVEABLE.do_not_retry().into();
        }
        let value = command.dword(11);
        let is_discovery = self.subsystem.is_discovery();
        let mut state = lock(&self.state);
        match feature {
            EVENTS => {
                state.wanted = value & if is_discovery { DISCOVERY_EVENTS } else { NAMESPACE_EVENTS };
                Status::SUCCESS.into()
            }
            KEEP_ALIVE => {
                state.keep_alive_ms = self.rounded(value);
                Status::SUCCESS.into()
            }
            _ if is_discovery => invalid_field,
            QUEUES => {
                let [submission, completion] = [value & 0xffff, value >> 16];
                if submission == 0xffff || completion == 0xffff {
                    return invalid_field;
                }
                if !state.queues.is_empty() {
                    return Status::SEQUENCE_ERROR.do_not_retry().into();
                }
                let most = self.subsystems.limits.io_queues;
                let wanted = u16::try_from(submission.min(completion) + 1).unwrap_or(u16::MAX);
                state.granted = wanted.min(most);
                Answer::result(both(state.granted - 1))
            }
            WRITE_CACHE => {
                state.has_write_cache = value & 1 == 1;
                Status::SUCCESS.into()
            }
            // Only power state 0 exists.
            0x02 if value & 0x1f != 0 => invalid_field,
            _ => match state.features.get_mut(&feature) {
                Some(stored) => {
                    *stored = value;
                    Status::SUCCESS.into()
                }
                None => invalid_field,
            },
        }
    }

    fn get_feature(&self, command: &Submission) -> Answer {
        let [feature, select, ..] = command.dword(10).to_le_bytes();
        let select = select & 7;
        let invalid_field = Answer::from(Status::INVALID_FIELD.do_not_retry());
        if select > 1 {
            return invalid_field;
        }
        let is_default = select == 1;
        let is_discovery = self.subsystem.is_discovery();
        let state = lock(&self.state);
        match feature {
            EVENTS => Answer::result(if is_default { 0 } else { state.wanted.into() }),
            KEEP_ALIVE => Answer::result(if is_default { 0 } else { state.keep_alive_ms.into() }),
            _ if is_discovery => invalid_field,
            QUEUES => {
                let most = self.subsystems.limits.io_queues;
                Answer::result(both(if is_default { most } else { state.granted } - 1))
            }
            // EXHID: the long form is the only one in fabrics.
            HOST_IDENTIFIER if command.dword(11) & 1 == 1 => Answer::data(self.host_id.to_vec()),
            WRITE_CACHE => Answer::result((is_default || state.has_write_cache).into()),
            _ => match state.features.get(&feature) {
                Some(_) if is_default => {
                    let default = PLAIN_FEATURES.into_iter().find(|(id, _)| *id == feature);
                    Answer::result(default.map_or(0, |(_, value)| value).into())
                }
                Some(&value) => Answer::result(value.into()),
                None => invalid_field,
            },
        }
    }

    /// A keep alive time-out as it is used: at least the smallest one.
    fn rounded(&self, keep_alive_ms: u32) -> u32 {
        match keep_alive_ms {
            0 => 0,
            wanted => wanted.max(self.subsystems.limits.least_keep_alive_ms),
        }
    }

    /// A namespace was added, removed or resized.
    pub fn namespace_changed(&self, nsid: u32) {
        let mut state = lock(&self.state);
        if state.changed.len() < LONGEST_CHANGES {
            state.changed.insert(nsid);
        }
        if state.wanted & NAMESPACE_EVENTS != 0 {
            state.events.insert(Event::NamespacesChanged);
        }
    }

    /// The discovery log changed.
    pub fn discovery_changed(&self) {
        let mut state = lock(&self.state);
        if state.wanted & DISCOVERY_EVENTS != 0 {
            state.events.insert(Event::DiscoveryChanged);
        }
    }

    /// Takes an event to report to a waiting request. An event is reported once until its log is read.
    #[must_use]
    pub fn take_event(&self) -> Option<Event> {
        let mut state = lock(&self.state);
        let event = state.events.iter().copied().find(|event| !state.masked.contains(event))?;
        state.events.remove(&event);
        state.masked.insert(event);
        Some(event)
    }
}

/// The same number in both halves, as the number of queues is reported.
fn both(number: u16) -> u64 {
    u64::from(number) | u64::from(number) << 16
}

impl State {
    /// The effect of clearing CC.EN: all I/O queues are deleted, features have their defaults.
    fn reset(&mut self, io_queues: u16) {
        self.status = 0;
        self.epoch = self.epoch.wrapping_add(1);
        self.queues.clear();
        self.granted = io_queues;
        (self.features, self.has_write_cache) = (PLAIN_FEATURES.into(), true);
        (self.wanted, self.discovery_log) = (0, Vec::new());
        self.events.clear();
        self.masked.clear();
        self.changed.clear();
    }
}
