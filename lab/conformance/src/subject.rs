//! The interface to a device under test.
//!
//! A [`Subject`] creates fresh [`Device`]s for a [`DeviceSpec`]. If a subject cannot create such a device, it refuses,
//! and the case is counted as skipped. A subject that implements [`Registers`] need not configure anything:
//! [`bring_up`](crate::bring_up()) does it through the registers, like a driver.

use std::sync::Arc;
use telpher_abi::registers::{DsaCap0, DsaCap1, DsaCap2, EngCap, GenCap, GrpCap, IdCap, OpCap, PortalKind, WqCap};
use telpher_portal::{Portal, QueueMode};

/// PASID of the address space of this process.
pub const HERE: u32 = 0x1_2345;
/// PASID of an address space in which nothing is mapped.
pub const STRANGER: u32 = 0x5_4321;
/// The interrupt table entry that bring-up opens for [`HERE`] in both tables.
pub const HANDLE: u16 = 1;
/// The entry of the inter-domain permissions table that bring-up gives to [`HERE`]: its own memory as a whole.
pub const WINDOW: u16 = 3;

/// A kind of device under test.
pub trait Subject {
    /// Its name in the report, for example `model:spr inline`.
    fn name(&self) -> String;

    /// The capabilities of its devices, unless a spec has others.
    fn capabilities(&self) -> Capabilities;

    /// The freedoms of the specification that it does not use.
    fn promises(&self) -> Guarantees {
        Guarantees::default()
    }

    /// Creates a fresh device for a spec.
    ///
    /// # Errors
    ///
    /// [`Refusal::Cannot`] skips the case; [`Refusal::BringUp`] fails it.
    fn device(&self, spec: &DeviceSpec) -> Result<Box<dyn Device>, Refusal>;
}

/// One device, from bring-up until it is dropped.
pub trait Device {
    /// Opens a client's portal to a queue; `None` if this subject cannot create that kind of client.
    fn portal(&self, spec: &PortalSpec) -> Option<Arc<dyn Portal>>;

    /// The control registers, if they are accessible.
    fn registers(&self) -> Option<&dyn Registers> {
        None
    }

    /// Stops (`true`) or resumes (`false`) taking descriptors out of queues. Returns false if it cannot.
    fn hold(&self, stop: bool) -> bool {
        let _ = stop;
        false
    }

    /// Returns when every accepted descriptor has completed or can never complete. Must return in bounded time. Not
    /// called while held.
    fn settle(&self);

    /// Interrupts sent since the last call, oldest first; `None` if they are not observable.
    fn interrupts(&self) -> Option<Vec<Interrupt>> {
        None
    }
}

/// BAR0 of a device.
pub trait Registers {
    /// Reads 4 or 8 bytes at a naturally aligned offset.
    fn read(&self, offset: u64, bytes: u32) -> u64;

    /// Writes 4 or 8 bytes at a naturally aligned offset.
    fn write(&self, offset: u64, bytes: u32, value: u64);

    /// Lets a command make progress; called while CMDSTATUS shows it active.
    fn advance(&self) {}
}

/// The capability registers of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// VERSION.
    pub version: u32,
    /// GENCAP.
    pub gen_cap: GenCap,
    /// WQCAP.
    pub wq_cap: WqCap,
    /// GRPCAP.
    pub grp_cap: GrpCap,
    /// ENGCAP.
    pub eng_cap: EngCap,
    /// OPCAP.
    pub op_cap: OpCap,
    /// IDCAP; zero without inter-domain operations.
    pub id_cap: IdCap,
    /// DSACAP0; zero before 3.0.
    pub dsa_cap_0: DsaCap0,
    /// DSACAP1; zero before 3.0.
    pub dsa_cap_1: DsaCap1,
    /// DSACAP2; zero before 3.0.
    pub dsa_cap_2: DsaCap2,
}

/// Freedoms of the specification that a subject does not use. Hardware promises nothing; a model should promise all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Guarantees {
    /// Of several violations the first one in the usual order is reported.
    pub check_order: bool,
    /// Unused bytes of a completion record are zero.
    pub zero_unused: bool,
    /// Bytes Completed reaches exactly to the faulting page, and nothing is written beyond it.
    pub exact_faults: bool,
    /// Every reserved field is checked.
    pub reserved_checked: bool,
    /// An invalid interrupt handle is also reported to SWERROR or the event log.
    pub handle_logged: bool,
    /// A DIF transfer that is not a number of whole blocks is refused with 0x13. Otherwise its whole blocks may be
    /// processed.
    pub whole_dif_blocks: bool,
    /// Whether Apply Delta accepts an entry with the offset of the previous entry. The specification refuses it with
    /// 0x07; Intel's tests of hardware expect it to be accepted. `None`: either.
    pub equal_delta_offsets: Option<bool>,
    /// Whether Create Delta ignores bits 7:3 of the expected-result mask. The specification refuses them with 0x12;
    /// Intel's tests of hardware expect them to be accepted. `None`: either.
    pub result_mask_bits: Option<bool>,
}

impl Guarantees {
    /// All promises; follows the specification where silicon differs from it.
    pub const ALL: Guarantees = Guarantees {
        check_order: true,
        zero_unused: true,
        exact_faults: true,
        reserved_checked: true,
        handle_logged: true,
        whole_dif_blocks: true,
        equal_delta_offsets: Some(false),
        result_mask_bits: Some(false),
    };
}

/// Why a subject did not create a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The subject does not support this configuration. The report has the reason.
    Cannot(String),
    /// Bring-up should have worked and failed.
    BringUp(String),
}

/// The device that a case needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// Capabilities, if not the subject's own.
    pub capabilities: Option<Capabilities>,
    /// PCI configuration.
    pub pci: Pci,
    /// The result of an access to memory that is mapped but not yet backed by a page.
    pub residency: Residency,
    /// The device stays as it is after reset: not configured, disabled.
    pub bare: bool,
    /// GENCFG User-mode Interrupts Enable.
    pub user_interrupts: bool,
    /// Address and number of entries of the event log.
    pub event_log: Option<(u64, u16)>,
    /// Submitter bitmaps are in the memory of [`HERE`].
    pub submitter_bitmaps: bool,
    /// Groups, from group 0; engines and queues are numbered across groups.
    pub groups: Vec<GroupSpec>,
}

impl Default for DeviceSpec {
    /// One group with one engine and one dedicated queue.
    fn default() -> Self {
        DeviceSpec {
            capabilities: None,
            pci: Pci::default(),
            residency: Residency::Lenient,
            bare: false,
            user_interrupts: false,
            event_log: None,
            submitter_bitmaps: false,
            groups: vec![GroupSpec::default()],
        }
    }
}

impl DeviceSpec {
    /// The same device with this one queue.
    #[must_use]
    pub fn queue(mut self, queue: QueueSpec) -> Self {
        self.groups = vec![GroupSpec { queues: vec![queue], ..GroupSpec::default() }];
        self
    }

    /// The same device with these queues in one group with one engine.
    #[must_use]
    pub fn queues(mut self, queues: Vec<QueueSpec>) -> Self {
        self.groups = vec![GroupSpec { queues, ..GroupSpec::default() }];
        self
    }

    /// All queues by index.
    pub fn all_queues(&self) -> impl Iterator<Item = &QueueSpec> {
        self.groups.iter().flat_map(|g| &g.queues)
    }
}

/// A group of a spec.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSpec {
    /// Number of engines.
    pub engines: u32,
    /// Its queues.
    pub queues: Vec<QueueSpec>,
    /// GRPFLAGS TC-B; TC-A is 0.
    pub tc_b: u8,
}

impl Default for GroupSpec {
    fn default() -> Self {
        GroupSpec { engines: 1, queues: vec![QueueSpec::default()], tc_b: 0 }
    }
}

/// A queue of a spec, to be configured and enabled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueSpec {
    /// Dedicated or shared.
    pub mode: QueueMode,
    /// Entries.
    pub size: u16,
    /// Entries that limited portals may use (shared mode).
    pub threshold: u16,
    /// Priority, 1 to 15.
    pub priority: u8,
    /// The Block On Fault flag is allowed.
    pub block_on_fault: bool,
    /// Requests carry a PASID.
    pub pasid_enable: bool,
    /// Supervisor privilege (dedicated mode).
    pub privileged: bool,
    /// Page requests are off for this queue.
    pub prs_disable: bool,
    /// Largest transfer, 2^n bytes.
    pub max_transfer_shift: u8,
    /// Largest batch, 2^n descriptors.
    pub max_batch_shift: u8,
    /// Longest scatter-gather list, 2^n entries; less where the device has less.
    pub max_sgl_shift: u8,
    /// Operations allowed, if not all.
    pub operations: Option<OpCap>,
}

impl Default for QueueSpec {
    /// A dedicated queue of 16 entries, transfers to 1 MiB, batches to 32.
    fn default() -> Self {
        QueueSpec {
            mode: QueueMode::Dedicated,
            size: 16,
            threshold: 0,
            priority: 8,
            block_on_fault: false,
            pasid_enable: true,
            privileged: false,
            prs_disable: false,
            max_transfer_shift: 20,
            max_batch_shift: 5,
            max_sgl_shift: 15,
            operations: None,
        }
    }
}

impl QueueSpec {
    /// A shared queue of 16 entries, all of them below the threshold.
    #[must_use]
    pub fn shared() -> Self {
        QueueSpec { mode: QueueMode::Shared, threshold: 16, ..QueueSpec::default() }
    }
}

/// The settings in PCI configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pci {
    /// Bus Master Enable.
    pub bus_master: bool,
    /// PASID enabled.
    pub pasid: bool,
    /// Privileged Mode Enable.
    pub privileged_mode: bool,
    /// Address translation services enabled.
    pub ats: bool,
    /// Page request services enabled.
    pub prs: bool,
    /// PRSREQALLOC.
    pub page_requests: u32,
    /// Traffic classes mapped to an enabled virtual channel, one bit each.
    pub traffic_classes: u8,
}

impl Default for Pci {
    /// All settings on except Privileged Mode; traffic classes 0 and 1.
    fn default() -> Self {
        Pci {
            bus_master: true,
            pasid: true,
            privileged_mode: false,
            ats: true,
            prs: true,
            page_requests: 0x20,
            traffic_classes: 0b11,
        }
    }
}

/// The result of an access to mapped memory whose page was never touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residency {
    /// A page, as for the CPU.
    Lenient,
    /// A page fault, as for the device.
    Strict,
}

/// A portal that a case needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortalSpec {
    /// Index of the queue.
    pub queue: usize,
    /// Kind of the portal page.
    pub kind: PortalKind,
    /// PASID that a shared submission carries: [`HERE`] or [`STRANGER`].
    pub pasid: u32,
    /// The submitting instruction.
    pub instruction: Instruction,
}

impl PortalSpec {
    /// The unlimited portal of a queue, with the instruction of its mode.
    #[must_use]
    pub const fn of(queue: usize) -> Self {
        PortalSpec { queue, kind: PortalKind::UnlimitedMsix, pasid: HERE, instruction: Instruction::Fitting }
    }

    /// The same with another portal page.
    #[must_use]
    pub const fn kind(mut self, kind: PortalKind) -> Self {
        self.kind = kind;
        self
    }

    /// The same for another client.
    #[must_use]
    pub const fn pasid(mut self, pasid: u32) -> Self {
        self.pasid = pasid;
        self
    }

    /// The same with another instruction.
    #[must_use]
    pub const fn by(mut self, instruction: Instruction) -> Self {
        self.instruction = instruction;
        self
    }
}

/// How 64 bytes reach a portal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instruction {
    /// The instruction of the queue's mode: MOVDIR64B or ENQCMD.
    Fitting,
    /// MOVDIR64B: a posted write.
    Posted,
    /// ENQCMD: a deferrable write with the client's PASID, user privilege.
    Deferrable,
    /// ENQCMDS: a deferrable write with the client's PASID, supervisor privilege.
    DeferrableSupervisor,
}

/// An interrupt that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// Entry of the MSI-X table.
    Msix(u16),
    /// Entry of the interrupt message storage.
    Ims(u16),
}
