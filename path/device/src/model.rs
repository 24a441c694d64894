//! A running modelled device: capabilities, configuration, memory and a runner.

use crate::apply::{ApplyError, Image, OWN_PASID};
use crate::config::Config;
use crate::counting::{Counts, CountsIn};
use crate::imposed::{ImposedTimes, Schedule};
use crate::in_process::SlotLease;
use crate::listing::Listing;
use crate::name::WqName;
use crate::own_memory::own_memory;
use crate::portal::ModelPortal;
use crate::published::PublishedDevice;
use crate::replica::EventLog;
use crate::runner::{Core, Inline, Runner, Threaded};
use crate::spaces::SpaceTable;
use crate::windows::Windows;
use std::sync::{Arc, Mutex, PoisonError};
use telpher_abi::registers::{Command, CommandCode, CommandError, PortalKind, WqState};
use telpher_mem::Space;
use telpher_model::{
    AddressSpaces, Capabilities, CapabilityError, Device, DeviceCounts, Identity, MAX_LANES, Observer, PciControl,
    Preset, Progress, Write, layout,
};
use telpher_portal::{Portal, QueueInfo, QueueMode};

/// Whether pages that only the kernel's fault handler would bring in count as present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Residency {
    /// A page that an access would bring in counts as present. The fast path.
    #[default]
    Lenient,
    /// A page that is not present faults, as hardware reports it with block on fault off. Costs a check of the page
    /// tables for every page.
    Strict,
}

/// Options of a modelled device.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// The capabilities.
    pub capabilities: Capabilities,
    /// The configuration; `None` for the default of its capabilities.
    pub config: Option<Config>,
    /// The runner that executes descriptors.
    pub runner: Runner,
    /// Whether absent pages fault.
    pub residency: Residency,
    /// The settings of its PCI function.
    pub pci: PciControl,
    /// The most descriptors in progress in each engine, from 1 to [`MAX_LANES`]. More than 1 matters only if an
    /// observer delays some.
    pub lanes: usize,
    /// The observer, which is called for every descriptor and may interfere; `None` costs nothing.
    pub observer: Option<Arc<dyn Observer>>,
    /// Where it counts what it does.
    pub counts: CountsIn,
    /// The times of a device that are imposed on its descriptors; `None` if they end as soon as they are executed. They
    /// take the observer's place, and set the number of lanes. They are exact with the inline runner only.
    pub times: Option<Arc<ImposedTimes>>,
    /// The NUMA node that the device reports; callers use it to choose among devices. The device actually works where
    /// its runner's threads run.
    pub numa_node: Option<u32>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self::of(Preset::default())
    }
}

impl ModelOptions {
    /// A preset in its default configuration, with the inline runner.
    #[must_use]
    pub fn of(preset: Preset) -> Self {
        ModelOptions {
            capabilities: preset.capabilities(),
            config: None,
            runner: Runner::default(),
            residency: Residency::default(),
            pci: PciControl::SHARED_VIRTUAL_MEMORY,
            lanes: 1,
            observer: None,
            counts: CountsIn::default(),
            times: None,
            numa_node: None,
        }
    }

    /// Sets the configuration.
    #[must_use]
    pub fn with_config(self, config: Config) -> Self {
        ModelOptions { config: Some(config), ..self }
    }

    /// Sets the runner.
    #[must_use]
    pub fn with_runner(self, runner: Runner) -> Self {
        ModelOptions { runner, ..self }
    }

    /// Sets the residency.
    #[must_use]
    pub fn with_residency(self, residency: Residency) -> Self {
        ModelOptions { residency, ..self }
    }

    /// Sets the NUMA node.
    #[must_use]
    pub fn with_numa_node(self, node: u32) -> Self {
        ModelOptions { numa_node: Some(node), ..self }
    }

    /// Sets the times that are imposed.
    #[must_use]
    pub fn with_times(self, times: Arc<ImposedTimes>) -> Self {
        ModelOptions { times: Some(times), ..self }
    }

    /// Sets where it counts.
    #[must_use]
    pub fn with_counts(self, counts: CountsIn) -> Self {
        ModelOptions { counts, ..self }
    }

    /// Sets the observer.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        ModelOptions { observer: Some(observer), ..self }
    }
}

/// The lanes of an engine whose descriptors have imposed times: in each, a descriptor can wait until it is due. Source:
/// chosen; with four engines, a copy of 32 MiB has all 16 descriptors in flight. Each lane costs time in every step.
const LANES_WITH_TIMES: usize = 4;

/// Error: a modelled device does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The capabilities exceed the model.
    #[error("the model does not support these capabilities")]
    Capabilities(#[from] CapabilityError),
    /// The configuration does not fit the device.
    #[error("the configuration does not fit the device")]
    Config(#[from] ApplyError),
    /// The device refused a command.
    #[error("bringing up the modelled device failed")]
    Command(#[from] CommandFailed),
    /// No memory for the event log.
    #[error("no memory for the event log")]
    Log(#[from] telpher_mem::MapError),
    /// No thread for the engines.
    #[error("cannot start a thread for the engines; try the inline runner")]
    Thread(#[source] std::io::Error),
}

/// A command that the device refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("command '{}' with operand {operand:#x} failed: {error}", command.meaning())]
pub struct CommandFailed {
    /// The command.
    pub command: CommandCode,
    /// Its operand.
    pub operand: u32,
    /// The device's error.
    pub error: CommandError,
}

/// Error: a portal could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortalError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] crate::name::NameError),
    /// The queue does not exist, or is not enabled.
    #[error("queue {name} is not enabled; enabled are: {enabled}")]
    NotEnabled {
        /// The requested queue.
        name: String,
        /// The enabled queues.
        enabled: String,
    },
}

/// A running modelled device. Portals keep it alive.
#[derive(Clone, Debug)]
pub struct ModelDevice {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    /// Dropped before the core: fields drop in order.
    pub(crate) runner: RunnerState,
    pub(crate) core: Arc<Core>,
    residency: Residency,
    config: Config,
    numa_node: Option<u32>,
    /// The times of its descriptors, if some are imposed.
    pub(crate) schedule: Option<Arc<Schedule>>,
    /// Memory of the event log, if the device owns it. Dropped after the core, when nothing writes to it any more.
    pub(crate) log: Option<EventLog>,
    /// Its place among the devices that this process publishes. Dropped after the core, when all is counted.
    slot: Option<SlotLease>,
    /// Serialises commands.
    command_lock: Mutex<()>,
    /// Windows to memory of other processes.
    pub(crate) windows: Windows,
}

#[derive(Debug)]
pub(crate) enum RunnerState {
    Inline(Inline),
    Threaded(Threaded),
    /// Threads that a submitting thread replaces if that is quicker.
    Auto(Threaded),
}

impl ModelDevice {
    /// Powers a device on, configures and enables it, and starts its runner.
    ///
    /// # Errors
    /// If capabilities or configuration exceed the model, or the device refuses them.
    pub fn start(options: ModelOptions) -> Result<Self, StartError> {
        options.capabilities.validate()?;
        let config = options.config.clone().unwrap_or_else(|| Config::default_for(&options.capabilities));
        let image = Image::of(&config, &options.capabilities)?;
        let is_published = matches!(options.counts, CountsIn::Published);
        let slot = is_published.then(|| SlotLease::claim(&image.published(&options.capabilities))).flatten();
        let own = own_memory(options.residency);
        let options = ModelOptions { config: Some(config), ..options };
        let device = Self::assemble(options, vec![(OWN_PASID, own)], None, slot)?;
        device.unmask_interrupts();
        image.write(&device.inner.core.device);
        for command in image.enable_commands() {
            device.command(command)?;
        }
        Ok(device)
    }

    /// Creates a configured and enabled device without memory and without a runner, for callers that step its engines
    /// themselves, as a simulator does.
    ///
    /// # Errors
    /// As for [`start`](ModelDevice::start).
    pub fn unattended(capabilities: Capabilities, pci: PciControl, config: &Config) -> Result<Box<Device>, StartError> {
        let image = Image::of(config, &capabilities)?;
        let device = Device::new(capabilities, pci)?;
        image.write(&device);
        for command in image.enable_commands() {
            device.start_command(command);
            let error = CommandError::from_code(device.cmd_status().error_code());
            if error != CommandError::None {
                let (code, operand) = (CommandCode::from_code(command.code()), command.operand());
                return Err(CommandFailed { command: code, operand, error }.into());
            }
        }
        Ok(device)
    }

    /// Starts a device in its reset state, disabled and unconfigured, for callers that write the registers themselves.
    ///
    /// # Errors
    /// If the capabilities exceed the model, or the system refuses a thread.
    pub fn power_on(options: ModelOptions) -> Result<Self, StartError> {
        let own = own_memory(options.residency);
        Self::assemble(options, vec![(OWN_PASID, own)], None, None)
    }

    /// Assembles a device and the memory it accesses; the first space serves requests without a PASID.
    pub(crate) fn assemble(
        options: ModelOptions,
        spaces: Vec<(u32, Box<dyn Space>)>,
        log: Option<EventLog>,
        slot: Option<SlotLease>,
    ) -> Result<Self, StartError> {
        let schedule = options.times.map(|times| Arc::new(Schedule::new(times)));
        let core = Arc::new(Core {
            device: Device::new(options.capabilities, options.pci)?,
            spaces: SpaceTable::new(),
            observer: schedule.clone().map(|schedule| schedule as Arc<dyn Observer>).or(options.observer),
            counts: Counts::new(options.counts, slot.as_ref()),
        });
        for (pasid, space) in spaces {
            core.spaces.add(pasid, space);
        }
        let engines = options.capabilities.eng_cap.engines().into();
        let lanes = if schedule.is_some() { LANES_WITH_TIMES } else { options.lanes.clamp(1, MAX_LANES) };
        let runner = match options.runner {
            Runner::Inline => RunnerState::Inline(Inline::new(engines, lanes)),
            Runner::Threaded => RunnerState::Threaded(
                Threaded::start(&core, engines, lanes, options.runner).map_err(StartError::Thread)?,
            ),
            Runner::Auto => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                let threaded =
                    (cores > 1).then(|| Threaded::start(&core, engines, lanes, options.runner).ok()).flatten();
                threaded.map_or_else(|| RunnerState::Inline(Inline::new(engines, lanes)), RunnerState::Auto)
            }
        };
        let config = options.config.unwrap_or_else(|| Config::of_groups(Vec::new()));
        let (residency, numa_node) = (options.residency, options.numa_node);
        let (command_lock, windows) = (Mutex::new(()), Windows::default());
        let inner = Inner { runner, core, residency, config, numa_node, schedule, log, slot, command_lock, windows };
        Ok(ModelDevice { inner: Arc::new(inner) })
    }

    /// Returns the words in which it counts what it does; `None` if it counts nowhere.
    #[must_use]
    pub fn counts(&self) -> Option<&DeviceCounts> {
        self.inner.core.counts.words()
    }

    /// Unmasks every MSI-X entry, as the driver does when it sets up its interrupts.
    pub(crate) fn unmask_interrupts(&self) {
        let device = &self.inner.core.device;
        for entry in 0..u64::from(device.capabilities().msix_entries) {
            device.write_register(layout::MSIX_TABLE + entry * 16 + 12, 4, 0);
        }
    }

    /// Opens a portal to a queue by name for this process: the limited portal that Linux maps for users.
    ///
    /// # Errors
    /// If the name is not a queue's, or the queue is not enabled.
    pub fn portal(&self, name: &str) -> Result<Arc<dyn Portal>, PortalError> {
        let queue: WqName = name.parse()?;
        let enabled = self.enabled_queues();
        if queue.device != 0 || !enabled.contains(&queue.queue) {
            let enabled = enabled.iter().map(|queue| format!("wq0.{queue}")).collect::<Vec<_>>().join(", ");
            return Err(PortalError::NotEnabled { name: name.into(), enabled });
        }
        Ok(self.portal_as(queue.queue, PortalKind::LimitedMsix, None, OWN_PASID))
    }

    /// Opens a portal of any kind to any queue. `write` is the kind of write; the default is the queue's own (for a
    /// shared queue with this PASID).
    #[must_use]
    pub fn portal_as(&self, queue: u32, kind: PortalKind, write: Option<Write>, pasid: u32) -> Arc<dyn Portal> {
        let device = &self.inner.core.device;
        let wq = queue as usize;
        let config = device.wq_cfg(wq);
        let mode = if config.dedicated() { QueueMode::Dedicated } else { QueueMode::Shared };
        let limit = if mode == QueueMode::Shared && kind.is_limited() {
            config.threshold().min(config.size())
        } else {
            config.size()
        };
        let info = QueueInfo {
            name: format!("wq0.{queue}"),
            mode,
            size: limit.into(),
            max_transfer: 1 << config.max_transfer_shift(),
            max_batch: 1 << config.max_batch_shift(),
            block_on_fault: config.block_on_fault(),
            gen_cap: device.capabilities().gen_cap,
            dsa_cap_0: device.capabilities().dsa_cap_0.with_max_sgl_shift(config.max_sgl_shift()),
            operations: device.operations_of(wq),
            numa_node: self.inner.numa_node,
        };
        let write = write.unwrap_or(match mode {
            QueueMode::Dedicated => Write::Posted,
            // ENQCMD: the CPU adds the process's PASID and user privilege.
            QueueMode::Shared => Write::Deferrable(Identity { pasid, privileged: false }),
        });
        Arc::new(ModelPortal::new(Arc::clone(&self.inner), info, wq, kind, write))
    }

    /// Returns the numbers of the enabled queues.
    #[must_use]
    pub fn enabled_queues(&self) -> Vec<u32> {
        let device = &self.inner.core.device;
        let queues = u32::from(device.capabilities().wq_cap.queues());
        (0..queues).filter(|queue| device.wq_state(*queue as usize) == WqState::Enabled).collect()
    }

    /// Gives another PASID a view of this process' memory; returns `false` if the PASID has memory already or the table
    /// is full.
    #[must_use]
    pub fn add_pasid(&self, pasid: u32) -> bool {
        self.inner.core.spaces.add(pasid, own_memory(self.inner.residency))
    }

    /// Gives a PASID the caller's own memory; returns `false` if the PASID has memory already or the table is full.
    #[must_use]
    pub fn add_space(&self, pasid: u32, space: Box<dyn Space>) -> bool {
        self.inner.core.spaces.add(pasid, space)
    }

    /// Runs a command and waits for its completion; commands of several threads run one after the other. A command that
    /// waits for descriptors does not return while the engines are [held](ModelDevice::hold).
    ///
    /// # Errors
    /// The device's error.
    pub fn command(&self, command: Command) -> Result<u16, CommandFailed> {
        let device = &self.inner.core.device;
        let _one_at_a_time = self.inner.command_lock.lock().unwrap_or_else(PoisonError::into_inner);
        // A command that was written directly to the register may still be active.
        while device.cmd_status().active() || !device.start_command(command) {
            self.advance();
            std::thread::yield_now();
        }
        while device.cmd_status().active() {
            self.advance();
            std::thread::yield_now();
        }
        self.inner.publish_state();
        let status = device.cmd_status();
        match CommandError::from_code(status.error_code()) {
            CommandError::None => Ok(status.result()),
            error => Err(CommandFailed {
                command: CommandCode::from_code(command.code()),
                operand: command.operand(),
                error,
            }),
        }
    }

    /// Lets engines work that have no thread or whose thread is late, and advances the active command.
    pub fn advance(&self) {
        self.inner.drive(None);
        self.inner.core.device.advance_command();
    }

    /// Stops or restarts the engines: while held, descriptors wait in their queues.
    pub fn hold(&self, held: bool) {
        match &self.inner.runner {
            RunnerState::Inline(inline) => {
                inline.hold(held);
                if !held {
                    inline.run_engines(&self.inner.core, None);
                }
            }
            RunnerState::Threaded(threaded) | RunnerState::Auto(threaded) => threaded.hold(held),
        }
    }

    /// Steps one engine once, even while held; returns `None` for a runner with threads.
    pub fn step_engine(&self, engine: usize) -> Option<Progress> {
        match &self.inner.runner {
            RunnerState::Inline(inline) => Some(inline.step_one(&self.inner.core, engine)),
            RunnerState::Threaded(_) | RunnerState::Auto(_) => None,
        }
    }

    /// Returns its properties and configuration in accel-config's format.
    #[must_use]
    pub fn listing(&self) -> Listing {
        let listing = Listing::of(&self.inner.core.device, &self.inner.config);
        Listing { numa_node: self.inner.numa_node, ..listing }
    }

    /// Returns its capabilities.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.inner.core.device.capabilities()
    }

    /// Returns the device itself, whose registers can be written.
    ///
    /// # Safety
    /// EVLCFG makes the device write to memory on its own. A caller that enables an event log gives it memory that
    /// belongs to the device until the log is disabled again.
    #[must_use]
    #[allow(unsafe_code, reason = "register access is the caller's promise; nothing in here is unsafe")]
    pub unsafe fn device(&self) -> &Device {
        &self.inner.core.device
    }
}

impl Inner {
    #[inline]
    pub(crate) fn drive(&self, group: Option<usize>) {
        match &self.runner {
            RunnerState::Inline(inline) => inline.run_if_free(&self.core, group),
            RunnerState::Threaded(threaded) | RunnerState::Auto(threaded) => threaded.drive(&self.core, group),
        }
    }

    /// Has readers in other processes see the present state of the device and its queues.
    pub(crate) fn publish_state(&self) {
        if let Some(slot) = &self.slot {
            slot.describe(&PublishedDevice::of(0, &self.core.device), self.core.device.state());
        }
    }

    /// Returns the memory for the device's own requests.
    pub(crate) fn own_space(&self) -> &dyn Space {
        self.core.spaces.space(None)
    }
}
