//! Emulates the idxd driver as a program sees it: attributes, binding, open files. Has no I/O and no threads.
//!
//! ```text
//! path ─► tree ─► attribute (a row of `rows`) ─► device: the driver's copy ──bind──► registers: the model's registers
//!              └► node ─► files: open files, PASIDs ─► Opened: registers of one queue, for one program
//! hardware ─► load: accel-config's keys, written through the same rows
//! ```
//!
//! The driver's own checks are in `rows` and `bind`. The modelled device refuses everything else, and its error code
//! appears in `cmd_status`.

mod abi;
mod attribute;
mod bind;
mod cpuinfo;
mod device;
mod event_log;
mod files;
mod layout;
mod load;
mod pci;
mod registers;
mod rows;
mod status;
mod tree;

#[cfg(test)]
mod tests;

pub use abi::Abi;

use crate::hardware::{Hardware, HardwareError};
use crate::tree::{Caller, Entry, Errno};
use attribute::Id;
use cpuinfo::Cpus;
use device::{Dsa, Engine, Group, State, Wq};
use files::{Files, OpenFile};
use registers::DeviceRegisters;
use telpher_abi::SwError;
use telpher_abi::registers::{DeviceState, WqState};
use telpher_device::published::PublishedDevice;
use telpher_vdev_wire::message::{Opened, Report};
use tree::{Content, Item, Tree};

/// Major number of the nodes. Source: chosen: of the extended dynamic numbers, the one that the kernel assigns last.
pub(crate) const MAJOR: u32 = 511;

/// Most bytes that one write to an attribute accepts: a page. Source: K612 `fs/kernfs/file.c`.
const PAGE: usize = 4096;

/// The driver with all its devices.
#[derive(Debug)]
pub struct Kernel {
    abi: Abi,
    rawio: bool,
    parameters: Parameters,
    devices: Vec<Dsa>,
    files: Files,
    tree: Tree,
    cpus: Cpus,
}

/// The module's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parameters {
    /// Shared virtual addressing.
    pub(crate) sva: bool,
    /// Traffic classes may be changed on old devices too.
    pub(crate) tc_override: bool,
}

impl Kernel {
    /// Loads the driver on this hardware. Configures and enables the devices for which the hardware has a
    /// configuration.
    ///
    /// `rawio`: programs count as having CAP_SYS_RAWIO.
    ///
    /// # Errors
    /// If the driver or the device refuses the configuration.
    pub fn new(hardware: &Hardware, abi: Abi, rawio: bool) -> Result<Kernel, HardwareError> {
        let sva = hardware.shared_virtual_memory;
        let mut kernel = Kernel {
            abi,
            rawio,
            parameters: Parameters { sva: true, tc_override: false },
            devices: Vec::new(),
            files: Files::default(),
            tree: Tree::default(),
            cpus: Cpus::default(),
        };
        kernel.show_driver();
        for (index, found) in hardware.devices.iter().enumerate() {
            let registers = DeviceRegisters::power_on(found.capabilities, sva)?;
            kernel.devices.push(Dsa::new(found.number, found.address.clone(), registers, abi));
            kernel.show_device(Id { device: index, index: 0 });
        }
        load::load(&mut kernel, hardware)?;
        Ok(kernel)
    }

    /// Sets the machine's own /proc/cpuinfo, to which the emulated instructions are added.
    pub fn set_cpuinfo(&mut self, text: &str) {
        // 5.15 has no PASIDs for programs and does not list ENQCMD (instructions.md §1).
        self.cpus = Cpus::of(text, self.abi >= Abi::V6_1);
    }

    /// The entry at a physical path; a link at its end is not followed.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ELOOP.
    pub fn entry(&self, path: &str) -> Result<Entry, Errno> {
        self.tree.entry(path, |content, id| self.bytes(content, id).len() as u64)
    }

    /// The driver's entries of a directory, sorted by name.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ELOOP.
    pub fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        self.tree.list(path, |content, id| self.bytes(content, id).len() as u64)
    }

    /// The topmost paths of the driver's tree: everything at or below them belongs to it, nothing else does. Contains
    /// `/dev/dsa` also while there is no node.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        let mut roots = self.tree.roots();
        if !roots.iter().any(|root| root == layout::NODES) {
            roots.push(layout::NODES.into());
            roots.sort();
        }
        roots
    }

    /// Directories of the machine in which the driver adds entries, now or later. Some may not exist.
    #[must_use]
    pub fn merged(&self) -> Vec<String> {
        let mut merged = self.tree.merged();
        merged.extend(["/dev", "/dev/char", "/sys/dev/char"].map(String::from));
        merged.sort();
        merged.dedup();
        merged
    }

    /// A number that changes whenever a result of [`entry`](Kernel::entry) or [`list`](Kernel::list) may change.
    #[must_use]
    pub fn structure(&self) -> u64 {
        self.tree.structure()
    }

    /// Takes the directories whose own entries have changed since the last call, sorted, including removed directories.
    /// For a new directory, only its parent is listed.
    pub fn changed(&mut self) -> Vec<String> {
        self.tree.take_changed()
    }

    /// The text of an attribute, or the whole contents of an [`Entry::Binary`]. Links are followed.
    ///
    /// # Errors
    /// The errno of read(); EACCES if the file cannot be read at all, EISDIR for a directory.
    pub fn show(&mut self, path: &str) -> Result<Vec<u8>, Errno> {
        match self.tree.file(path)? {
            Item::Attribute(attribute, id) => attribute.show(self, *id).map(String::into_bytes),
            Item::Binary(content, id) => Ok(self.bytes(*content, *id)),
            Item::Node { .. } | Item::Link(_) | Item::Directory(_) => Err(Errno::INVAL),
        }
    }

    /// Writes an attribute; returns the bytes accepted: all, but at most a page. Links are followed.
    ///
    /// # Errors
    /// The errno of write(); EACCES if the file cannot be written at all, EISDIR for a directory.
    pub fn store(&mut self, path: &str, data: &[u8]) -> Result<usize, Errno> {
        match self.tree.file(path)? {
            Item::Attribute(attribute, id) => {
                let (attribute, id) = (*attribute, *id);
                let data = &data[..data.len().min(PAGE)];
                // An empty write does not reach the driver.
                if !data.is_empty() {
                    attribute.store(self, id, data)?;
                }
                Ok(data.len())
            }
            Item::Binary(..) => self.write_at(path, 0, data),
            Item::Node { .. } | Item::Link(_) | Item::Directory(_) => Err(Errno::INVAL),
        }
    }

    /// Reads up to `len` bytes of an [`Entry::Binary`] from an offset; returns fewer at its end.
    ///
    /// # Errors
    /// As for [`show`](Kernel::show); EINVAL for other entries.
    pub fn read_at(&mut self, path: &str, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        match self.tree.file(path)? {
            Item::Binary(Content::ConfigSpace, id) => Ok(self.dsa(*id).config_space.read(offset, len)),
            Item::Binary(content, id) => {
                let bytes = self.bytes(*content, *id);
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                Ok(bytes[from..from.saturating_add(len).min(bytes.len())].to_vec())
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Writes bytes of an [`Entry::Binary`] at an offset; returns the bytes accepted, 0 beyond its end.
    ///
    /// # Errors
    /// As for [`store`](Kernel::store); EINVAL for other entries.
    pub fn write_at(&mut self, path: &str, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        match self.tree.file(path)? {
            Item::Binary(Content::ConfigSpace, id) => {
                let id = *id;
                Ok(self.write_config_space(id, usize::try_from(offset).unwrap_or(usize::MAX), data))
            }
            Item::Binary(..) => Err(Errno::ACCESS),
            _ => Err(Errno::INVAL),
        }
    }

    /// Opens a queue's node (`/dev/dsa/wqM.N` or `/dev/char/MAJ:MIN`). The occupancy slot, the faults to inject and the
    /// flags that are not the driver's are left zero.
    ///
    /// # Errors
    /// ENOENT; ENXIO if the path is not a node, or the queue cannot be given its PASID; EBUSY for a dedicated queue
    /// that is open.
    pub fn open(&mut self, path: &str, caller: Caller) -> Result<Opened, Errno> {
        self.open_node(path, caller)
    }

    /// Attaches to an open file, as mmap() of it does. If the file was opened without an address space number, the
    /// first caller gives it one, if it is the process that opened the file.
    ///
    /// # Errors
    /// EBADF if there is no such file; EPERM for another address space than the opener's.
    pub fn attach(&mut self, open: u64, caller: Caller) -> Result<Opened, Errno> {
        self.attach_file(open, caller)
    }

    /// Releases an open file whose last reference is gone.
    pub fn release(&mut self, open: u64) {
        self.release_file(open);
    }

    /// Checks whether write() of a descriptor (`batch`: a Batch descriptor) is allowed.
    ///
    /// # Errors
    /// EBADF if there is no such file; EINVAL on kernels without write() and for a Batch; EPERM for another address
    /// space.
    pub fn may_write(&self, open: u64, caller: Caller, batch: bool) -> Result<(), Errno> {
        self.check_write(open, caller, batch)
    }

    /// Handles a report that a real device would make by an interrupt.
    ///
    /// # Errors
    /// EBADF if there is no such file; EINVAL for an unknown kind of report.
    pub fn report(&mut self, open: u64, report: &Report) -> Result<(), Errno> {
        self.take_report(open, report)
    }

    /// Sets the number of descriptors in a queue before its `occupancy` is shown. `device` is the number of `dsaN`.
    pub fn set_occupancy(&mut self, device: u32, wq: u32, waiting: u32) {
        let dsa = self.devices.iter_mut().find(|dsa| dsa.number == device);
        if let Some(wq) = dsa.and_then(|dsa| dsa.wqs.get_mut(usize::try_from(wq).ok()?)) {
            wq.occupancy = waiting;
        }
    }

    /// True if poll() of a node of this device reports POLLIN: an error has been latched.
    #[must_use]
    pub fn poll_ready(&self, device: u32) -> bool {
        self.devices.iter().any(|dsa| dsa.number == device && dsa.errors[0] & 1 == 1)
    }

    /// How often pollers of a queue's node have been woken. poll() returns the same result each time, but for an
    /// edge-triggered epoll(7) each wake is an event.
    #[must_use]
    pub fn alarms(&self, device: u32, wq: u32) -> u64 {
        let dsa = self.devices.iter().find(|dsa| dsa.number == device);
        dsa.and_then(|dsa| dsa.wqs.get(usize::try_from(wq).ok()?)).map_or(0, |wq| wq.alarms)
    }

    /// Every queue: the number of its device, its own number, and whether it accepts descriptors. The device's own
    /// state counts too: after a function-level reset it accepts none, whatever the driver's copy says.
    #[must_use]
    pub fn queues(&self) -> Vec<(u32, u32, bool)> {
        let mut queues = Vec::new();
        for dsa in &self.devices {
            for ((index, wq), number) in dsa.wqs.iter().enumerate().zip(0..) {
                let works = dsa.registers.device().wq_state(index) == WqState::Enabled;
                queues.push((dsa.number, number, wq.enabled && works));
            }
        }
        queues
    }

    /// Every device, as it is published for readers in other processes.
    #[must_use]
    pub fn published(&self) -> Vec<PublishedDevice> {
        self.devices.iter().map(|dsa| PublishedDevice::of(dsa.number, dsa.registers.device())).collect()
    }

    /// The number of a device's performance counters, and its version; `None` if there is no such device.
    #[must_use]
    pub fn counters(&self, device: u32) -> Option<(u8, u32)> {
        let device = self.devices.iter().find(|dsa| dsa.number == device)?;
        Some((device.capabilities().counters, device.capabilities().version))
    }

    /// The emulated kernel version.
    #[must_use]
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// True if programs may submit any descriptor: kernels before the fix for INTEL-SA-01084. Source: K612 `cdev.c`.
    fn user_submission_safe(&self) -> bool {
        self.abi < Abi::V6_1
    }

    /// True if write() submits descriptors.
    fn has_write(&self) -> bool {
        self.abi >= Abi::V6_1
    }

    fn bytes(&self, content: Content, id: Id) -> Vec<u8> {
        match content {
            Content::ConfigSpace => self.dsa(id).config_space.read(0, pci::BYTES),
            Content::CpuInfo => self.cpus.text().as_bytes().to_vec(),
            Content::EventLog => {
                self.dsa(id).event_log.as_ref().map(event_log::EventLog::text).unwrap_or_default().into()
            }
        }
    }

    fn write_config_space(&mut self, id: Id, offset: usize, data: &[u8]) -> usize {
        let dsa = self.dsa_mut(id);
        let reset = dsa.config_space.write(offset, data);
        if reset {
            dsa.registers.function_level_reset();
        }
        let control = dsa.config_space.control();
        if control != dsa.registers.device().pci() {
            dsa.registers.device().set_pci(control);
        }
        if dsa.registers.device().state() == DeviceState::Halted && dsa.state != State::Halted {
            let errors = dsa.registers.device().sw_error();
            self.latch(id, errors);
            self.notice_halt(id);
        }
        data.len().min(pci::BYTES.saturating_sub(offset))
    }

    /// Handles the error interrupt: stores the latched error and wakes pollers of the named queue, or of all queues if
    /// none is named. Source: K612 `irq.c`, idxd_misc_thread.
    fn latch(&mut self, id: Id, errors: SwError) {
        let dsa = self.dsa_mut(id);
        dsa.errors = errors.0;
        let named = errors.wq_index_valid().then(|| usize::from(errors.wq_index()));
        for (index, wq) in dsa.wqs.iter_mut().enumerate() {
            wq.alarms += u64::from(named.is_none_or(|named| named == index));
        }
    }

    /// Handles the halt interrupt. The modelled halt requires a function-level reset, which the driver leaves to the
    /// administrator: it clears its queues, and stays halted until `reset` is written and the device is bound again.
    fn notice_halt(&mut self, id: Id) {
        let dsa = self.dsa_mut(id);
        dsa.clear();
        dsa.state = State::Halted;
    }

    fn has_function(&self, address: &str) -> bool {
        self.devices.iter().any(|dsa| dsa.address == address)
    }

    fn open_files(&self) -> usize {
        self.files.open.len()
    }

    fn parameters(&self) -> Parameters {
        self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    fn file(&self, id: Id) -> Option<&OpenFile> {
        self.files.open.get(&(id.index as u64))
    }

    // Indexing cannot fail: the tree creates identifiers only for existing objects, and devices, queues, groups and
    // engines are never removed.

    fn dsa(&self, id: Id) -> &Dsa {
        &self.devices[id.device]
    }

    fn dsa_mut(&mut self, id: Id) -> &mut Dsa {
        &mut self.devices[id.device]
    }

    fn wq(&self, id: Id) -> &Wq {
        &self.dsa(id).wqs[id.index]
    }

    fn wq_mut(&mut self, id: Id) -> &mut Wq {
        &mut self.dsa_mut(id).wqs[id.index]
    }

    fn group(&self, id: Id) -> &Group {
        &self.dsa(id).groups[id.index]
    }

    fn group_mut(&mut self, id: Id) -> &mut Group {
        &mut self.dsa_mut(id).groups[id.index]
    }

    fn engine(&self, id: Id) -> &Engine {
        &self.dsa(id).engines[id.index]
    }

    fn engine_mut(&mut self, id: Id) -> &mut Engine {
        &mut self.dsa_mut(id).engines[id.index]
    }
}
