//! Open files of the queues' nodes, and their openers' address spaces. Source: K612 `cdev.c`.

use super::attribute::Id;
use super::bind::{KERNEL_PASID, bank};
use super::event_log::is_record_fault;
use super::tree::Item;
use super::{Abi, Kernel};
use crate::tree::{Caller, Errno};
use std::collections::{BTreeMap, HashMap};
use telpher_abi::registers::{CommandCode, CommandError};
use telpher_abi::{EventLogEntry, SwError};
use telpher_vdev_wire::message::{DEDICATED, Opened, Report, ReportKind};

/// First PASID for programs.
const FIRST_PASID: u32 = KERNEL_PASID + 1;
/// One past the last PASID: PASIDs have 20 bits.
const END_PASID: u32 = 1 << 20;
/// Address spaces remembered after their last file was closed, so that a program keeps its PASID across close and open.
const MAX_IDLE_SPACES: usize = 4096;

/// The address space that owns an open file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Owner {
    /// Identified by the guest's random number, and by the process: a forked child may send its parent's number.
    Space(u64, u32),
    /// Opened without a guest: identified by the process until a guest attaches.
    Process(u32),
}

impl Owner {
    fn of(caller: Caller) -> Self {
        if caller.space == 0 { Owner::Process(caller.process) } else { Owner::Space(caller.space, caller.process) }
    }
}

/// One open file.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    /// The queue of the node.
    pub(crate) queue: Id,
    /// K of `fileK`.
    pub(crate) number: u32,
    /// The queue's generation number when the file was opened.
    generation: u64,
    owner: Owner,
    /// The process that opened it.
    pub(crate) process: u32,
    pub(crate) minor: u32,
    /// Completion records that the driver wrote for the device.
    pub(crate) record_faults: u64,
    /// Completion records that the driver could not write either.
    pub(crate) record_fault_failures: u64,
    /// What the opener received.
    opened: Opened,
}

/// All open files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) open: BTreeMap<u64, OpenFile>,
    last: u64,
    spaces: HashMap<Owner, AddressSpace>,
    last_pasid: u32,
}

#[derive(Clone, Copy, Debug)]
struct AddressSpace {
    pasid: u32,
    /// Open files that use it.
    files: u32,
}

impl Files {
    /// The PASID of an address space: its own, or the next free one.
    fn bind(&mut self, owner: Owner) -> Result<u32, Errno> {
        if !self.spaces.contains_key(&owner) {
            if self.spaces.len() >= MAX_IDLE_SPACES {
                self.spaces.retain(|_, space| space.files > 0);
            }
            let pasid = self.free_pasid().ok_or(Errno::NOSPC)?;
            self.spaces.insert(owner, AddressSpace { pasid, files: 0 });
        }
        let space = self.spaces.get_mut(&owner).ok_or(Errno::NOSPC)?;
        space.files += 1;
        Ok(space.pasid)
    }

    fn unbind(&mut self, owner: Owner) {
        if let Some(space) = self.spaces.get_mut(&owner) {
            space.files = space.files.saturating_sub(1);
        }
    }

    fn free_pasid(&mut self) -> Option<u32> {
        let after = self.last_pasid.max(FIRST_PASID - 1) + 1;
        let free = (after..END_PASID)
            .chain(FIRST_PASID..after)
            .find(|pasid| self.spaces.values().all(|space| space.pasid != *pasid))?;
        self.last_pasid = free;
        Some(free)
    }

    /// Lowest number that no open file has.
    fn free_number(&self) -> u32 {
        (0..).find(|number| self.open.values().all(|file| file.number != *number)).unwrap_or_default()
    }
}

impl Kernel {
    pub(super) fn open_node(&mut self, path: &str, caller: Caller) -> Result<Opened, Errno> {
        let Item::Node { minor, id, .. } = self.tree.file(path)? else { return Err(Errno::NXIO) };
        let (minor, id) = (*minor, *id);
        let wq = self.wq(id);
        if wq.settings.dedicated && wq.clients > 0 {
            return Err(Errno::BUSY);
        }
        let owner = Owner::of(caller);
        let pasid = if self.dsa(id).user_pasid() { self.files.bind(owner)? } else { 0 };
        if wq_needs_pasid(self, id)
            && let Err(errno) = self.set_pasid(id, Some(pasid))
        {
            self.files.unbind(owner);
            return Err(errno);
        }
        self.wq_mut(id).clients += 1;
        self.files.last += 1;
        let open = self.files.last;
        let opened = self.opened(open, id, pasid);
        let file = OpenFile {
            queue: id,
            number: self.files.free_number(),
            generation: self.wq(id).generation,
            owner,
            process: caller.process,
            minor,
            record_faults: 0,
            record_fault_failures: 0,
            opened,
        };
        if self.abi() >= Abi::V6_6 {
            self.show_file(open, &file);
        }
        self.files.open.insert(open, file);
        Ok(opened)
    }

    /// Changes the PASID of a dedicated queue, which is disabled meanwhile.
    fn set_pasid(&mut self, id: Id, pasid: Option<u32>) -> Result<(), Errno> {
        let operand = u32::try_from(id.index).unwrap_or(u32::MAX);
        let done = |error| if error == CommandError::None { Ok(()) } else { Err(Errno::NXIO) };
        done(self.command(id, CommandCode::DisableWq, bank(id.index)))?;
        let registers = &self.dsa(id).registers;
        let config = registers.device().wq_cfg(id.index);
        registers.set_wq(id.index, &config.with_pasid(pasid.unwrap_or(0)).with_pasid_enable(pasid.is_some()));
        done(self.command(id, CommandCode::EnableWq, operand))
    }

    /// Everything that a guest needs to model the queue for its process.
    ///
    /// The register images describe a device with this queue only: its group has no other queue, so that Enable Device
    /// accepts the sizes. The queue's state and occupancy are left out.
    fn opened(&self, open: u64, id: Id, pasid: u32) -> Opened {
        let (dsa, wq) = (self.dsa(id), self.wq(id));
        let caps = dsa.capabilities();
        let group = wq.group.unwrap_or_default();
        let mut wq_cfg = dsa.registers.device().wq_cfg(id.index);
        wq_cfg.0[3] = 0;
        let errno = |refused: bool, errno: Errno| if refused { errno.raw_os_error() } else { 0 };
        let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        Opened {
            open,
            device: dsa.number,
            wq: number(id.index),
            group: number(group),
            pasid,
            flags: Opened::tolerance_flags(caps.tolerances) | if wq.settings.dedicated { DEDICATED } else { 0 },
            mmap_errno: errno(!self.user_submission_safe() && !self.rawio, Errno::PERM),
            write_errno: errno(!self.has_write(), Errno::INVAL),
            write_batch_errno: errno(!self.user_submission_safe(), Errno::INVAL),
            enqcmds_retries: wq.settings.enqcmds_retries,
            version: caps.version,
            page_request_capacity: caps.page_request_capacity,
            msix_entries: caps.msix_entries.into(),
            counters: caps.counters.into(),
            traffic_classes: caps.traffic_classes.into(),
            event_log_entries: dsa.event_log.as_ref().map_or(0, |log| log.size),
            gen_cap: caps.gen_cap.0[0],
            wq_cap: caps.wq_cap.0[0],
            grp_cap: caps.grp_cap.0[0],
            eng_cap: caps.eng_cap.0[0],
            cmd_cap: caps.cmd_cap,
            op_cap: caps.op_cap.0,
            dsa_cap: [caps.dsa_cap_0.0[0], caps.dsa_cap_1.0[0], caps.dsa_cap_2.0[0]],
            id_cap: caps.id_cap.0[0],
            gen_cfg: dsa.registers.gen_cfg().0[0],
            grp_cfg: dsa.registers.device().grp_cfg(group).with_wqs(1 << id.index).0,
            wq_cfg: wq_cfg.0,
            ..Opened::default()
        }
    }

    pub(super) fn attach_file(&mut self, open: u64, caller: Caller) -> Result<Opened, Errno> {
        let file = self.files.open.get(&open).ok_or(Errno::BADF)?;
        let (before, now) = (file.owner, Owner::of(caller));
        if before == now {
            return Ok(file.opened);
        }
        // Opened through the file system, which does not see address spaces: the first address space of the opener that
        // attaches becomes the owner.
        if before != Owner::Process(caller.process) {
            return Err(Errno::PERM);
        }
        let (queue, pasid) = (file.queue, file.opened.pasid);
        let current = file.generation == self.wq(queue).generation;
        let known = self.files.spaces.get(&now).map(|space| space.pasid);
        let pasid_now = match known {
            Some(_) if pasid != 0 => self.files.bind(now)?,
            _ => pasid,
        };
        if known.is_none() && pasid != 0 {
            self.files.spaces.insert(now, AddressSpace { pasid, files: 1 });
            // The process's other files keep the PASID too.
            self.files.spaces.entry(before).and_modify(|space| space.files = space.files.saturating_sub(1));
        } else {
            self.files.unbind(before);
        }
        if pasid_now != pasid && current && wq_needs_pasid(self, queue) {
            self.set_pasid(queue, Some(pasid_now))?;
        }
        let opened = if current {
            self.opened(open, queue, pasid_now)
        } else {
            Opened { pasid: pasid_now, ..self.files.open.get(&open).ok_or(Errno::BADF)?.opened }
        };
        let file = self.files.open.get_mut(&open).ok_or(Errno::BADF)?;
        file.owner = now;
        file.opened = opened;
        Ok(opened)
    }

    pub(super) fn release_file(&mut self, open: u64) {
        let Some(file) = self.files.open.remove(&open) else { return };
        self.hide_file(&file);
        self.files.unbind(file.owner);
        let id = file.queue;
        // A queue that was enabled again since then has forgotten this file.
        if file.generation != self.wq(id).generation {
            return;
        }
        if self.wq(id).enabled {
            self.drain(id, file.opened.pasid);
        }
        let wq = self.wq_mut(id);
        wq.clients = wq.clients.saturating_sub(1);
    }

    /// Waits for the opener's descriptors, and removes its PASID from a dedicated queue.
    fn drain(&mut self, id: Id, pasid: u32) {
        if self.wq(id).shared() {
            self.command(id, CommandCode::DrainPasid, pasid);
        } else if wq_needs_pasid(self, id) {
            // An error leaves the queue disabled, as in the driver; the next open() reports it.
            let _ = self.set_pasid(id, None);
        } else {
            self.command(id, CommandCode::DrainWq, bank(id.index));
        }
    }

    pub(super) fn check_write(&self, open: u64, caller: Caller, batch: bool) -> Result<(), Errno> {
        let file = self.files.open.get(&open).ok_or(Errno::BADF)?;
        if !self.has_write() {
            return Err(Errno::INVAL);
        }
        let adoptable = file.owner == Owner::Process(caller.process);
        if file.owner != Owner::of(caller) && !adoptable {
            return Err(Errno::PERM);
        }
        if batch && !self.user_submission_safe() { Err(Errno::INVAL) } else { Ok(()) }
    }

    pub(super) fn take_report(&mut self, open: u64, report: &Report) -> Result<(), Errno> {
        let file = self.files.open.get_mut(&open).ok_or(Errno::BADF)?;
        let id = file.queue;
        let kinds = [ReportKind::SwError, ReportKind::EventLog, ReportKind::EventLogFailed, ReportKind::Halted];
        let kind = kinds.into_iter().find(|kind| *kind as u32 == report.kind).ok_or(Errno::INVAL)?;
        let [a, b, c, d, ..] = report.words;
        match kind {
            ReportKind::SwError => self.latch(id, SwError([a, b, c, d])),
            ReportKind::EventLog => {
                let entry = EventLogEntry(report.words);
                file.record_faults += u64::from(is_record_fault(entry));
                if let Some(log) = &mut self.dsa_mut(id).event_log {
                    log.append(entry);
                }
            }
            ReportKind::EventLogFailed => file.record_fault_failures += 1,
            ReportKind::Halted => {
                self.latch(id, SwError([a, b, c, d]));
                self.dsa(id).registers.halt();
                self.notice_halt(id);
            }
        }
        Ok(())
    }
}

/// True for a user's dedicated queue on a device with PASIDs: the queue has its opener's PASID.
fn wq_needs_pasid(kernel: &Kernel, id: Id) -> bool {
    kernel.wq(id).settings.dedicated && kernel.dsa(id).user_pasid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_space_keeps_its_own_pasid() {
        let mut files = Files::default();
        let first = files.bind(Owner::Space(7, 1)).unwrap();
        let second = files.bind(Owner::Space(8, 1)).unwrap();
        assert_ne!(first, second);
        // Regression: a process that sent another one's number got its identifier, and so could report errors under it.
        assert_ne!(files.bind(Owner::of(Caller { process: 2, space: 7 })).unwrap(), first);
        files.unbind(Owner::Space(7, 1));
        assert_eq!(files.bind(Owner::Space(7, 1)).unwrap(), first);
    }

    #[test]
    fn short_lived_address_spaces_do_not_exhaust_the_pasids() {
        let mut files = Files::default();
        let held = files.bind(Owner::Space(u64::MAX, 1)).unwrap();
        for space in 1..3 * MAX_IDLE_SPACES as u64 {
            let pasid = files.bind(Owner::Space(space, 1)).unwrap();
            assert_ne!(pasid, held, "{space}");
            files.unbind(Owner::Space(space, 1));
        }
        assert!(files.spaces.len() <= MAX_IDLE_SPACES);
    }
}
