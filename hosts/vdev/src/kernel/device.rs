//! The driver's own copy of a device: the state that attributes show and set before it is written to the registers.

use super::Abi;
use super::event_log::EventLog;
use super::pci::ConfigSpace;
use super::registers::DeviceRegisters;
use telpher_abi::registers::{GrpCfg, OpCap, WqCfg};
use telpher_model::Capabilities;

/// Largest transfer of a queue by default. Source: K612 `idxd.h`, WQ_DEFAULT_MAX_XFER.
pub(crate) const DEFAULT_MAX_TRANSFER: u64 = 2 << 20;
/// Largest batch of a queue by default. Source: K612 `idxd.h`, WQ_DEFAULT_MAX_BATCH.
pub(crate) const DEFAULT_MAX_BATCH: u64 = 32;
/// Entries of a queue that has a type but no size. Source: K612 `idxd.h`, WQ_DEFAULT_QUEUE_DEPTH.
pub(crate) const DEFAULT_QUEUE_DEPTH: u32 = 16;
/// Retries of write() after the first try. Source: K612 `idxd.h`, IDXD_ENQCMDS_RETRIES.
pub(crate) const DEFAULT_RETRIES: u32 = 32;
/// Traffic class of a group on version 1 and 2 devices. Source: K612 `init.c`.
pub(crate) const DEFAULT_CLASS: u8 = 1;

/// The driver's view of a device's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Disabled,
    Enabled,
    Halted,
}

/// A driver of the dsa bus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Driver {
    /// Binds devices.
    Idxd,
    /// Binds queues for the kernel's own copies.
    Dmaengine,
    /// Binds queues with a node for users.
    User,
    /// The interface before 5.15: forwards to the other drivers.
    Compat,
}

impl Driver {
    /// All drivers, in the order in which they register.
    pub(crate) const ALL: [Driver; 4] = [Driver::Idxd, Driver::Dmaengine, Driver::User, Driver::Compat];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Driver::Idxd => "idxd",
            Driver::Dmaengine => "dmaengine",
            Driver::User => "user",
            Driver::Compat => "dsa",
        }
    }
}

/// The use of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum QueueType {
    #[default]
    None,
    Kernel,
    User,
}

impl QueueType {
    pub(crate) const ALL: [QueueType; 3] = [QueueType::None, QueueType::Kernel, QueueType::User];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            QueueType::None => "none",
            QueueType::Kernel => "kernel",
            QueueType::User => "user",
        }
    }
}

/// One device.
#[derive(Debug)]
pub(crate) struct Dsa {
    /// N of `dsaN`.
    pub(crate) number: u32,
    /// `0000:6a:01.0`.
    pub(crate) address: String,
    pub(crate) registers: DeviceRegisters,
    pub(crate) config_space: ConfigSpace,
    pub(crate) state: State,
    /// The driver gives queues the longest list of buffers that the device has.
    sets_max_sgl: bool,
    /// Bound to `idxd`.
    pub(crate) bound: bool,
    /// The result of the last command or bind.
    pub(crate) cmd_status: u32,
    /// 0 means no limit.
    pub(crate) read_buffer_limit: u32,
    /// SWERROR as read in the last error interrupt.
    pub(crate) errors: [u64; 4],
    /// Present if the device has an event log and the driver version supports it.
    pub(crate) event_log: Option<EventLog>,
    pub(crate) groups: Vec<Group>,
    pub(crate) engines: Vec<Engine>,
    pub(crate) wqs: Vec<Wq>,
}

/// One group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    pub(crate) read_buffers_reserved: u32,
    pub(crate) read_buffers_allowed: u32,
    pub(crate) use_read_buffer_limit: bool,
    pub(crate) traffic_class_a: u8,
    pub(crate) traffic_class_b: u8,
    pub(crate) desc_progress_limit: u8,
    pub(crate) batch_progress_limit: u8,
}

/// One engine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Engine {
    pub(crate) group: Option<usize>,
}

/// One queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wq {
    pub(crate) enabled: bool,
    pub(crate) group: Option<usize>,
    pub(crate) size: u32,
    pub(crate) driver_name: String,
    /// The settings that a reset of the queue clears.
    pub(crate) settings: WqSettings,
    /// The driver that the queue is bound to.
    pub(crate) driver: Option<Driver>,
    /// Minor number of its node.
    pub(crate) minor: Option<u32>,
    /// Open files.
    pub(crate) clients: u32,
    /// Counts how often the queue was enabled: files opened at an earlier count no longer belong to it.
    pub(crate) generation: u64,
    /// Descriptors in the queue, as last reported.
    pub(crate) occupancy: u32,
    /// How often the driver has woken pollers because of an error.
    pub(crate) alarms: u64,
}

/// The settings that Reset WQ clears. Source: K612 `device.c`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WqSettings {
    pub(crate) dedicated: bool,
    pub(crate) priority: u32,
    pub(crate) threshold: u32,
    pub(crate) block_on_fault: bool,
    pub(crate) ats_disable: bool,
    pub(crate) prs_disable: bool,
    pub(crate) kind: QueueType,
    pub(crate) name: String,
    pub(crate) max_transfer: u64,
    pub(crate) max_batch: u64,
    pub(crate) enqcmds_retries: u32,
    pub(crate) op_config: OpCap,
}

impl Dsa {
    /// A device that the driver has just found.
    pub(crate) fn new(number: u32, address: String, registers: DeviceRegisters, abi: Abi) -> Self {
        let caps = *registers.capabilities();
        let has_log = abi >= Abi::V6_6 && caps.event_log_entry_bytes() > 0;
        let config_space = ConfigSpace::new(&caps, number, registers.device().pci());
        let mut dsa = Dsa {
            number,
            address,
            registers,
            config_space,
            state: State::Disabled,
            bound: false,
            cmd_status: 0,
            read_buffer_limit: 0,
            errors: [0; 4],
            event_log: has_log.then(EventLog::default),
            groups: Vec::new(),
            engines: Vec::new(),
            wqs: (0..caps.wq_cap.queues()).map(|_| Wq::new(&caps)).collect(),
            sets_max_sgl: abi >= Abi::V7_0 && caps.dsa_cap_0.sgl_formats() != 0,
        };
        dsa.clear();
        dsa
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.registers.capabilities()
    }

    pub(crate) fn name(&self) -> String {
        format!("dsa{}", self.number)
    }

    /// Resets the device's state: no groups, no sizes, default settings. The read buffer limit and driver names stay.
    /// Source: K612 `device.c`, idxd_device_clear_state.
    pub(crate) fn clear(&mut self) {
        let caps = *self.registers.capabilities();
        let buffers = u32::from(caps.grp_cap.read_buffers());
        self.groups = (0..caps.grp_cap.groups()).map(|_| Group::new(buffers)).collect();
        self.engines = (0..caps.eng_cap.engines()).map(|_| Engine::default()).collect();
        for wq in &mut self.wqs {
            wq.reset(&caps);
            wq.size = 0;
            wq.group = None;
        }
        self.state = State::Disabled;
    }

    /// Engines of a group.
    pub(crate) fn engines_of(&self, group: usize) -> u32 {
        let members = self.engines.iter().filter(|engine| engine.group == Some(group)).count();
        u32::try_from(members).unwrap_or(u32::MAX)
    }

    /// Sum of the entries of all queues.
    pub(crate) fn claimed_entries(&self) -> u32 {
        self.wqs.iter().map(|wq| wq.size).sum()
    }

    /// Read buffers that no group has reserved.
    pub(crate) fn free_read_buffers(&self) -> u32 {
        let reserved = self.groups.iter().map(|group| group.read_buffers_reserved).sum();
        u32::from(self.capabilities().grp_cap.read_buffers()).saturating_sub(reserved)
    }

    /// True if PASIDs are enabled, so that queues can use programs' address spaces.
    pub(crate) fn user_pasid(&self) -> bool {
        self.registers.device().pci().pasid
    }
}

impl Group {
    fn new(read_buffers: u32) -> Self {
        Group {
            read_buffers_reserved: 0,
            read_buffers_allowed: read_buffers,
            use_read_buffer_limit: false,
            traffic_class_a: DEFAULT_CLASS,
            traffic_class_b: DEFAULT_CLASS,
            desc_progress_limit: 0,
            batch_progress_limit: 0,
        }
    }
}

impl Wq {
    fn new(caps: &Capabilities) -> Self {
        Wq {
            enabled: false,
            group: None,
            size: 0,
            driver_name: String::new(),
            settings: WqSettings::new(caps),
            driver: None,
            minor: None,
            clients: 0,
            generation: 0,
            occupancy: 0,
            alarms: 0,
        }
    }

    /// Resets the queue; size, group and driver name stay.
    pub(crate) fn reset(&mut self, caps: &Capabilities) {
        self.enabled = false;
        self.settings = WqSettings::new(caps);
    }

    pub(crate) fn shared(&self) -> bool {
        !self.settings.dedicated
    }
}

impl WqSettings {
    fn new(caps: &Capabilities) -> Self {
        WqSettings {
            dedicated: false,
            priority: 0,
            threshold: 0,
            block_on_fault: false,
            ats_disable: false,
            prs_disable: false,
            kind: QueueType::None,
            name: String::new(),
            max_transfer: DEFAULT_MAX_TRANSFER,
            max_batch: DEFAULT_MAX_BATCH,
            enqcmds_retries: DEFAULT_RETRIES,
            op_config: caps.op_cap,
        }
    }
}

impl Dsa {
    /// GRPCFG of a group. Flags are written for every group, members or not (K612 `device.c`).
    pub(crate) fn group_register(&self, index: usize) -> GrpCfg {
        let Some(group) = self.groups.get(index) else { return GrpCfg::default() };
        let set = |members: &mut dyn Iterator<Item = Option<usize>>| {
            members.enumerate().filter(|(_, group)| *group == Some(index)).fold(0_u64, |set, (bit, _)| set | 1 << bit)
        };
        let byte = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let Group {
            read_buffers_reserved,
            read_buffers_allowed,
            use_read_buffer_limit,
            traffic_class_a,
            traffic_class_b,
            desc_progress_limit,
            batch_progress_limit,
        } = group;
        GrpCfg::default()
            .with_wqs(set(&mut self.wqs.iter().map(|wq| wq.group)))
            .with_engines(set(&mut self.engines.iter().map(|engine| engine.group)))
            .with_tc_a(*traffic_class_a)
            .with_tc_b(*traffic_class_b)
            .with_use_global_limit(*use_read_buffer_limit)
            .with_read_buffers_reserved(byte(*read_buffers_reserved))
            .with_read_buffers_allowed(byte(*read_buffers_allowed))
            .with_work_limit_code(*desc_progress_limit)
            .with_batch_limit_code(*batch_progress_limit)
    }

    /// WQCFG of a queue: the hardware's value with the driver's settings. Mode and block on fault are only added to the
    /// register's value until the queue is reset (K612 `device.c`). PASIDs are set elsewhere.
    pub(crate) fn wq_register(&self, index: usize) -> WqCfg {
        let hardware = self.registers.device().wq_cfg(index);
        let Some(wq) = self.wqs.get(index) else { return hardware };
        let Wq { size, settings, .. } = wq;
        let caps = self.capabilities();
        let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        let shift = |value: u64| u8::try_from(value.max(1).ilog2()).unwrap_or(u8::MAX);
        let config = hardware
            .with_size(short(*size))
            .with_threshold(short(settings.threshold))
            .with_dedicated(hardware.dedicated() || settings.dedicated)
            .with_priority(u8::try_from(settings.priority).unwrap_or(u8::MAX))
            .with_block_on_fault(hardware.block_on_fault() || caps.gen_cap.block_on_fault() && settings.block_on_fault)
            .with_ats_disable(caps.wq_cap.ats_disable() && settings.ats_disable)
            .with_prs_disable(caps.wq_cap.prs_disable() && settings.prs_disable)
            .with_max_transfer_shift(shift(settings.max_transfer))
            .with_max_batch_shift(shift(settings.max_batch))
            .with_max_sgl_shift(if self.sets_max_sgl { caps.dsa_cap_0.max_sgl_shift() } else { 0 });
        if caps.wq_cap.op_config() { config.with_op_config(settings.op_config) } else { config }
    }
}
