//! Binding and unbinding: the drivers' checks before a device or queue is enabled, and the steps that disable it.
//! Source: K612 `device.c`; the checks are in its order.

use super::attribute::Id;
use super::device::{DEFAULT_QUEUE_DEPTH, Driver, QueueType, State};
use super::{Abi, Kernel, status};
use crate::tree::Errno;
use telpher_abi::registers::{CommandCode, CommandError, DeviceState};

/// PASID of the kernel's own address space. Source: chosen; programs get other PASIDs.
pub(super) const KERNEL_PASID: u32 = 1;

/// A device or queue that can be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Device(Id),
    Queue(Id),
}

impl Kernel {
    /// Handles a write to `bind`.
    pub(super) fn bind(&mut self, driver: Driver, name: &str) -> Result<(), Errno> {
        let target = self.target(name).ok_or(Errno::NODEV)?;
        let bound = self.driver_of(target).is_some();
        match (driver, target) {
            (Driver::Compat, _) if bound => Err(Errno::NODEV),
            (Driver::Compat, _) => self.bind(self.stands_for(target).ok_or(Errno::NODEV)?, name),
            (Driver::Idxd, Target::Device(_)) | (Driver::User | Driver::Dmaengine, Target::Queue(_)) if bound => {
                Err(Errno::BUSY)
            }
            (Driver::Idxd, Target::Device(id)) => self.probe_device(id),
            (Driver::User | Driver::Dmaengine, Target::Queue(id)) => self.probe_queue(driver, id),
            _ => Err(Errno::NODEV),
        }
    }

    /// Handles a write to `unbind`.
    pub(super) fn unbind(&mut self, driver: Driver, name: &str) -> Result<(), Errno> {
        let target = self.target(name).ok_or(Errno::NODEV)?;
        match self.driver_of(target) {
            Some(bound) if bound == driver || driver == Driver::Compat => self.detach(target),
            _ => return Err(Errno::NODEV),
        }
        Ok(())
    }

    /// Handles a write to `drivers_probe`: tries the drivers in turn; it is no error if none accepts the device.
    pub(super) fn probe(&mut self, name: &str) -> Result<(), Errno> {
        let target = self.target(name).ok_or(Errno::NODEV)?;
        if self.driver_of(target).is_none() {
            let drivers = [Driver::Idxd, Driver::Dmaengine, Driver::User];
            let _ = drivers.into_iter().any(|driver| self.bind(driver, name).is_ok());
        }
        Ok(())
    }

    fn target(&self, name: &str) -> Option<Target> {
        let queue = name.strip_prefix("wq").and_then(|rest| rest.split_once('.'));
        let number = queue.map_or_else(|| name.strip_prefix("dsa"), |(device, _)| Some(device))?;
        let device = self.devices.iter().position(|dsa| dsa.number.to_string() == number)?;
        let Some((_, wq)) = queue else { return Some(Target::Device(Id { device, index: 0 })) };
        let index = (0..self.devices[device].wqs.len()).find(|index| index.to_string() == wq)?;
        Some(Target::Queue(Id { device, index }))
    }

    fn driver_of(&self, target: Target) -> Option<Driver> {
        match target {
            Target::Device(id) => self.dsa(id).bound.then_some(Driver::Idxd),
            Target::Queue(id) => self.wq(id).driver,
        }
    }

    /// The driver for which the compatibility interface (before 5.15) binds this target.
    fn stands_for(&self, target: Target) -> Option<Driver> {
        match target {
            Target::Device(_) => Some(Driver::Idxd),
            Target::Queue(id) => match self.wq(id).settings.kind {
                QueueType::None => None,
                QueueType::Kernel => Some(Driver::Dmaengine),
                QueueType::User => Some(Driver::User),
            },
        }
    }

    fn probe_device(&mut self, id: Id) -> Result<(), Errno> {
        if self.dsa(id).state != State::Disabled {
            self.dsa_mut(id).cmd_status = status::DEVICE_ENABLED;
            return Err(Errno::NXIO);
        }
        self.configure(id).map_err(|_| Errno::NXIO)?;
        self.start_event_log(id);
        if self.abi() >= Abi::V6_6 && self.dsa(id).user_pasid() {
            let registers = &self.dsa(id).registers;
            registers.set_gen_cfg(registers.gen_cfg().with_user_interrupts(true));
        }
        if let Err(errno) = self.enable_device(id) {
            self.dsa(id).registers.set_event_log(0);
            return Err(errno);
        }
        let dsa = self.dsa_mut(id);
        dsa.cmd_status = 0;
        dsa.bound = true;
        self.show_bound(id, None, Driver::Idxd);
        Ok(())
    }

    fn enable_device(&mut self, id: Id) -> Result<(), Errno> {
        if self.dsa(id).registers.device().state() == DeviceState::Enabled {
            return Err(Errno::NXIO);
        }
        match self.command(id, CommandCode::EnableDevice, 0) {
            CommandError::None => {}
            _ => return Err(Errno::NXIO),
        }
        self.dsa_mut(id).state = State::Enabled;
        Ok(())
    }

    fn start_event_log(&mut self, id: Id) {
        let dsa = self.dsa_mut(id);
        if let Some(log) = &mut dsa.event_log {
            log.restart();
            dsa.registers.set_event_log(u16::try_from(log.size).unwrap_or(u16::MAX));
        }
    }

    fn probe_queue(&mut self, driver: Driver, id: Id) -> Result<(), Errno> {
        if self.dsa(id).state != State::Enabled {
            return Err(Errno::NXIO);
        }
        if self.abi() >= Abi::V6_12 && self.wq(id).driver_name != driver.name() {
            self.dsa_mut(id).cmd_status = status::WQ_NO_DRIVER_NAME;
            return Err(Errno::NODEV);
        }
        if self.abi() >= Abi::V6_1 && driver == Driver::User && !self.dsa(id).user_pasid() {
            self.dsa_mut(id).cmd_status = status::WQ_USER_NO_IOMMU;
            return Err(Errno::OPNOTSUPP);
        }
        self.wq_mut(id).settings.kind = if driver == Driver::User { QueueType::User } else { QueueType::Kernel };
        if let Err(errno) = self.enable_queue(id) {
            self.wq_mut(id).settings.kind = QueueType::None;
            return Err(errno);
        }
        self.dsa_mut(id).cmd_status = 0;
        self.wq_mut(id).driver = Some(driver);
        self.show_bound(id, Some(id.index), driver);
        if driver == Driver::User {
            self.show_node(id);
        }
        Ok(())
    }

    /// Enables a queue: the steps common to all queue drivers.
    fn enable_queue(&mut self, id: Id) -> Result<(), Errno> {
        let (wq, enabled) = (self.wq(id), self.dsa(id).state == State::Enabled);
        let refusals = [
            (!enabled, Errno::NXIO, status::DEVICE_NOT_ENABLED),
            (wq.enabled, Errno::BUSY, status::WQ_ENABLED),
            (wq.group.is_none(), Errno::NXIO, status::WQ_NO_GROUP),
            (wq.settings.name.is_empty(), Errno::NXIO, status::WQ_NO_NAME),
            (wq.shared() && !self.can_be_shared(id), Errno::NXIO, status::WQ_NO_SVM),
            (wq.shared() && wq.settings.threshold == 0, Errno::NXIO, status::WQ_NO_THRESHOLD),
        ];
        if let Some((_, errno, reason)) = refusals.iter().find(|(refused, ..)| *refused) {
            self.dsa_mut(id).cmd_status = *reason;
            return Err(*errno);
        }
        self.prepare_identity(id);
        self.configure(id)?;
        let operand = u32::try_from(id.index).unwrap_or(u32::MAX);
        match self.command(id, CommandCode::EnableWq, operand) {
            CommandError::None => {}
            _ => return Err(Errno::NXIO),
        }
        let wq = self.wq_mut(id);
        wq.enabled = true;
        wq.clients = 0;
        wq.generation += 1;
        Ok(())
    }

    /// Sets PASID and privilege of a queue before it is enabled; a user's dedicated queue gets its PASID at open().
    fn prepare_identity(&mut self, id: Id) {
        let (dsa, wq) = (self.dsa(id), self.wq(id));
        let kernel = wq.settings.kind == QueueType::Kernel;
        let mut config = dsa.registers.device().wq_cfg(id.index);
        if self.has_pasid(id) && (kernel || wq.shared()) {
            config = config.with_pasid(if wq.shared() { 0 } else { KERNEL_PASID }).with_pasid_enable(true);
        }
        // From 6.6 on, the kernel's own queues have user privilege.
        config = config.with_privileged(kernel && self.abi() < Abi::V6_6);
        dsa.registers.set_wq(id.index, &config);
    }

    /// Writes all tables from the driver's copy, as whenever a device or queue is enabled.
    fn configure(&mut self, id: Id) -> Result<(), Errno> {
        let queues = (0..self.dsa(id).wqs.len()).map(|index| Id { device: id.device, index });
        let grouped: Vec<Id> = queues.filter(|queue| self.wq(*queue).group.is_some()).collect();
        if grouped.iter().any(|queue| self.wq(*queue).shared() && !self.can_be_shared(*queue)) {
            self.dsa_mut(id).cmd_status = status::WQ_NO_SHARED_SUPPORT;
            return Err(Errno::INVAL);
        }
        if grouped.is_empty() {
            self.dsa_mut(id).cmd_status = status::WQ_NONE_CONFIGURED;
            return Err(Errno::INVAL);
        }
        if self.dsa(id).engines.iter().all(|engine| engine.group.is_none()) {
            return Err(Errno::INVAL);
        }
        for queue in grouped {
            let wq = self.wq_mut(queue);
            if wq.size == 0 && wq.settings.kind != QueueType::None {
                wq.size = DEFAULT_QUEUE_DEPTH;
            }
            let config = self.dsa(queue).wq_register(queue.index);
            let privileged = self.dsa(queue).registers.device().pci().privileged;
            if config.dedicated()
                && config.pasid_enable()
                && !privileged
                && self.wq(queue).settings.kind == QueueType::Kernel
            {
                self.dsa_mut(id).cmd_status = status::WQ_NO_PRIVILEGE;
                return Err(Errno::OPNOTSUPP);
            }
            self.dsa(queue).registers.set_wq(queue.index, &config);
        }
        let dsa = self.dsa(id);
        if dsa.read_buffer_limit != 0 {
            let limit = u8::try_from(dsa.read_buffer_limit).unwrap_or(u8::MAX);
            dsa.registers.set_gen_cfg(dsa.registers.gen_cfg().with_global_read_buffer_limit(limit));
        }
        for group in 0..dsa.groups.len() {
            dsa.registers.set_group(group, &dsa.group_register(group));
        }
        Ok(())
    }

    /// True if a queue of this type works with PASIDs.
    fn has_pasid(&self, id: Id) -> bool {
        self.wq(id).settings.kind != QueueType::None && self.dsa(id).user_pasid()
    }

    fn can_be_shared(&self, id: Id) -> bool {
        // 5.13 to 5.17 mask ENQCMD (the kernels' change logs).
        let enqcmd = self.abi() >= Abi::V6_1;
        enqcmd && self.has_pasid(id) && self.dsa(id).capabilities().wq_cap.shared_mode()
    }

    fn detach(&mut self, target: Target) {
        match target {
            Target::Device(id) => self.remove_device(id),
            Target::Queue(id) => self.remove_queue(id),
        }
    }

    fn remove_device(&mut self, id: Id) {
        for index in 0..self.dsa(id).wqs.len() {
            let queue = Id { index, ..id };
            if self.wq(queue).enabled {
                self.remove_queue(queue);
            }
        }
        if self.dsa(id).registers.device().state() == DeviceState::Enabled {
            self.command(id, CommandCode::DisableDevice, 0);
        }
        self.command(id, CommandCode::ResetDevice, 0);
        let dsa = self.dsa_mut(id);
        dsa.registers.unmask();
        dsa.clear();
        dsa.bound = false;
        self.hide_bound(id, None, Driver::Idxd);
    }

    fn remove_queue(&mut self, id: Id) {
        let Some(driver) = self.wq(id).driver else { return };
        if driver == Driver::User {
            self.hide_node(id);
        }
        if self.wq(id).enabled {
            self.command(id, CommandCode::DrainWq, bank(id.index));
            self.command(id, CommandCode::ResetWq, bank(id.index));
        }
        let caps = *self.dsa(id).capabilities();
        let wq = self.wq_mut(id);
        wq.reset(&caps);
        wq.clients = 0;
        wq.driver = None;
        self.hide_bound(id, Some(id.index), driver);
    }

    /// Executes a device command, unless the device is halted; its result becomes `cmd_status`.
    pub(super) fn command(&mut self, id: Id, code: CommandCode, operand: u32) -> CommandError {
        let dsa = self.dsa_mut(id);
        if dsa.registers.device().state() == DeviceState::Halted {
            return CommandError::Hardware;
        }
        let error = dsa.registers.command(code, operand);
        dsa.cmd_status = error.code().into();
        error
    }
}

/// Encodes a queue as the operand of commands that take a bitmap: a bank of 16 queues, and a bit in it.
pub(super) fn bank(wq: usize) -> u32 {
    let (bank, bit) = (u32::try_from(wq / 16).unwrap_or(u32::MAX), wq % 16);
    bank << 16 | 1 << bit
}
