//! A modelled device that runs: capabilities, configuration, memory and a runner put together.

use crate::apply::{ApplyError, Image, OWN_PASID};
use crate::config::Config;
use crate::listing::Listing;
use crate::name::WqName;
use crate::own::own_memory;
use crate::portal::ModelPortal;
use crate::replica::EventLog;
use crate::runner::{Core, Inline, Runner, Threaded};
use crate::spaces::SpaceTable;
use std::sync::{Arc, Mutex, PoisonError};
use telpher_abi::registers::{Command, CommandCode, CommandError, PortalKind, WqState};
use telpher_mem::Space;
use telpher_model::{
    Capabilities, CapabilityError, Device, Identity, MAX_LANES, Observer, PciControl, Preset, Progress, Spaces, Write,
    layout,
};
use telpher_portal::{Portal, QueueInfo, QueueMode};

/// Whether the model takes pages as present that only the kernel's fault handler would bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Residency {
    /// A page that an access would bring in counts as present. The fast path.
    #[default]
    Lenient,
    /// A page that is not present faults, as hardware reports it with block on fault off. Costs a look at the page tables
    /// for every page.
    Strict,
}

/// What a modelled device shall be.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// What it can do.
    pub capabilities: Capabilities,
    /// How it is configured; `None` for the default of its capabilities.
    pub config: Option<Config>,
    /// Who executes.
    pub runner: Runner,
    /// How strictly absent pages fault.
    pub residency: Residency,
    /// Settings of its PCI function.
    pub pci: PciControl,
    /// Descriptors each engine may have in hand, at least 1 and at most [`MAX_LANES`]. More than 1 matters only if an observer
    /// keeps some waiting.
    pub lanes: usize,
    /// Who hears of every descriptor, and may interfere; `None` costs nothing.
    pub observer: Option<Arc<dyn Observer>>,
    /// The NUMA node it says it is on. It works wherever its runner's threads do: this is for those who choose among devices.
    pub numa_node: Option<u32>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self::of(Preset::default())
    }
}

impl ModelOptions {
    /// A preset in its default configuration, inline.
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
            numa_node: None,
        }
    }

    /// The same with another configuration.
    #[must_use]
    pub fn with_config(self, config: Config) -> Self {
        ModelOptions { config: Some(config), ..self }
    }

    /// The same with another runner.
    #[must_use]
    pub fn with_runner(self, runner: Runner) -> Self {
        ModelOptions { runner, ..self }
    }

    /// The same with another residency.
    #[must_use]
    pub fn with_residency(self, residency: Residency) -> Self {
        ModelOptions { residency, ..self }
    }

    /// The same on a NUMA node.
    #[must_use]
    pub fn with_numa_node(self, node: u32) -> Self {
        ModelOptions { numa_node: Some(node), ..self }
    }

    /// The same with somebody looking on.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        ModelOptions { observer: Some(observer), ..self }
    }
}

/// Why a modelled device does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The capabilities are beyond the model.
    #[error("the model cannot be such a device")]
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
    /// Which.
    pub command: CommandCode,
    /// Its operand.
    pub operand: u32,
    /// What the device said.
    pub error: CommandError,
}

/// Why there is no portal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortalError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] crate::name::NameError),
    /// No such queue, or it is not enabled.
    #[error("queue {name} is not enabled; enabled are: {enabled}")]
    NotEnabled {
        /// Asked for.
        name: String,
        /// What there is.
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
    /// Ended before the core goes, since fields drop in order.
    pub(crate) crew: CrewKind,
    pub(crate) core: Arc<Core>,
    residency: Residency,
    config: Config,
    numa_node: Option<u32>,
    /// Memory of the event log, if the device owns it. Behind the core: nothing writes it any more when it goes.
    pub(crate) log: Option<EventLog>,
    /// One command at a time.
    commanding: Mutex<()>,
}

#[derive(Debug)]
pub(crate) enum CrewKind {
    Inline(Inline),
    Threaded(Threaded),
}

impl ModelDevice {
    /// Powers a device on, configures and enables it, and starts its runner.
    ///
    /// # Errors
    /// If capabilities or configuration are beyond the model, or the device refuses them.
    pub fn start(options: ModelOptions) -> Result<Self, StartError> {
        options.capabilities.validate()?;
        let config = options.config.clone().unwrap_or_else(|| Config::default_for(&options.capabilities));
        let image = Image::of(&config, &options.capabilities)?;
        let device = Self::power_on(ModelOptions { config: Some(config), ..options })?;
        device.unmask_interrupts();
        image.write(&device.inner.core.device);
        for command in image.enable_commands() {
            device.command(command)?;
        }
        Ok(device)
    }

    /// A configured and enabled device without memory and without a runner: for those who step its engines themselves, as a
    /// simulator does.
    ///
    /// # Errors
    /// As [`start`](ModelDevice::start).
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

    /// A device as after reset, disabled and unconfigured: for those who write the registers themselves.
    ///
    /// # Errors
    /// If the capabilities are beyond the model or a thread is refused.
    pub fn power_on(options: ModelOptions) -> Result<Self, StartError> {
        let own = own_memory(options.residency);
        Self::assemble(options, vec![(OWN_PASID, own)], None)
    }

    /// Puts a device together with the memory it reaches: the first space is that of requests without a PASID.
    pub(crate) fn assemble(
        options: ModelOptions,
        spaces: Vec<(u32, Box<dyn Space>)>,
        log: Option<EventLog>,
    ) -> Result<Self, StartError> {
        let core = Arc::new(Core {
            device: Device::new(options.capabilities, options.pci)?,
            spaces: SpaceTable::new(),
            observer: options.observer,
        });
        for (pasid, space) in spaces {
            core.spaces.add(pasid, space);
        }
        let engines = options.capabilities.eng_cap.engines().into();
        let lanes = options.lanes.clamp(1, MAX_LANES);
        let crew = match options.runner {
            Runner::Inline => CrewKind::Inline(Inline::new(engines, lanes)),
            Runner::Threaded => CrewKind::Threaded(Threaded::start(&core, engines, lanes).map_err(StartError::Thread)?),
        };
        let config = options.config.unwrap_or_else(|| Config::of_groups(Vec::new()));
        let (residency, numa_node) = (options.residency, options.numa_node);
        let inner = Inner { crew, core, residency, config, numa_node, log, commanding: Mutex::new(()) };
        Ok(ModelDevice { inner: Arc::new(inner) })
    }

    /// Unmasks every MSI-X entry, as the driver does when it sets up its interrupts.
    pub(crate) fn unmask_interrupts(&self) {
        let device = &self.inner.core.device;
        for entry in 0..u64::from(device.capabilities().msix_entries) {
            device.write_register(layout::MSIX_TABLE + entry * 16 + 12, 4, 0);
        }
    }

    /// A portal to a queue by name: the limited portal that Linux maps for users, for this process.
    ///
    /// # Errors
    /// If the name is no queue's, or the queue is not enabled.
    pub fn portal(&self, name: &str) -> Result<Arc<dyn Portal>, PortalError> {
        let queue: WqName = name.parse()?;
        let enabled = self.enabled_queues();
        if queue.device != 0 || !enabled.contains(&queue.queue) {
            let enabled = enabled.iter().map(|queue| format!("wq0.{queue}")).collect::<Vec<_>>().join(", ");
            return Err(PortalError::NotEnabled { name: name.into(), enabled });
        }
        Ok(self.portal_as(queue.queue, PortalKind::LimitedMsix, None, OWN_PASID))
    }

    /// A portal of any kind to any queue, with the queue's own kind of write (for a shared queue with this PASID) or another.
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
            operations: device.operations_of(wq),
            numa_node: self.inner.numa_node,
        };
        let write = write.unwrap_or(match mode {
            QueueMode::Dedicated => Write::Posted,
            // ENQCMD: the CPU puts the process's PASID in front, and user privilege.
            QueueMode::Shared => Write::Deferrable(Identity { pasid, privileged: false }),
        });
        Arc::new(ModelPortal::new(Arc::clone(&self.inner), info, wq, kind, write))
    }

    /// Numbers of the queues that are enabled.
    #[must_use]
    pub fn enabled_queues(&self) -> Vec<u32> {
        let device = &self.inner.core.device;
        let queues = u32::from(device.capabilities().wq_cap.queues());
        (0..queues).filter(|queue| device.wq_state(*queue as usize) == WqState::Enabled).collect()
    }

    /// Gives another PASID a view of this process's memory; `false` if the PASID has one or no room is left.
    #[must_use]
    pub fn add_pasid(&self, pasid: u32) -> bool {
        self.inner.core.spaces.add(pasid, own_memory(self.inner.residency))
    }

    /// Gives a PASID memory of one's own making; `false` if the PASID has some or no room is left.
    #[must_use]
    pub fn add_space(&self, pasid: u32, space: Box<dyn Space>) -> bool {
        self.inner.core.spaces.add(pasid, space)
    }

    /// Runs a command and waits for its end; commands of several threads take turns. A command that waits for descriptors
    /// does not return while the engines are [held](ModelDevice::hold).
    ///
    /// # Errors
    /// What the device says.
    pub fn command(&self, command: Command) -> Result<u16, CommandFailed> {
        let device = &self.inner.core.device;
        let _one_at_a_time = self.inner.commanding.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was written to the register directly may still be active.
        while device.cmd_status().active() || !device.start_command(command) {
            self.advance();
            std::thread::yield_now();
        }
        while device.cmd_status().active() {
            self.advance();
            std::thread::yield_now();
        }
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

    /// Lets engines without threads work, and the active command come to its end.
    pub fn advance(&self) {
        self.inner.drive(None);
        self.inner.core.device.advance_command();
    }

    /// Stops (or lets go on) the engines: while held, descriptors wait in their queues.
    pub fn hold(&self, held: bool) {
        match &self.inner.crew {
            CrewKind::Inline(inline) => {
                inline.hold(held);
                if !held {
                    inline.pump(&self.inner.core, None);
                }
            }
            CrewKind::Threaded(threaded) => threaded.hold(held),
        }
    }

    /// Takes one engine one step, held or not; `None` for a runner with threads.
    pub fn step_engine(&self, engine: usize) -> Option<Progress> {
        match &self.inner.crew {
            CrewKind::Inline(inline) => Some(inline.step_one(&self.inner.core, engine)),
            CrewKind::Threaded(_) => None,
        }
    }

    /// What it is and how it is configured, in accel-config's shape.
    #[must_use]
    pub fn listing(&self) -> Listing {
        let listing = Listing::of(&self.inner.core.device, &self.inner.config);
        Listing { numa_node: self.inner.numa_node, ..listing }
    }

    /// Capabilities.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.inner.core.device.capabilities()
    }

    /// The device itself, its registers open to writing.
    ///
    /// # Safety
    /// EVLCFG makes the device write to memory on its own: whoever enables an event log names memory that stays the
    /// device's until it is disabled again.
    #[must_use]
    #[allow(unsafe_code, reason = "register access is the caller's promise; nothing in here is unsafe")]
    pub unsafe fn device(&self) -> &Device {
        &self.inner.core.device
    }
}

impl Inner {
    #[inline]
    pub(crate) fn drive(&self, group: Option<usize>) {
        if let CrewKind::Inline(inline) = &self.crew {
            inline.pump(&self.core, group);
        }
    }

    /// Memory of the device's own requests.
    pub(crate) fn own_space(&self) -> &dyn Space {
        self.core.spaces.space(None)
    }
}
