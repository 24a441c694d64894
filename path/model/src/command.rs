//! Commands: what a write to CMD starts, and when it is complete. Source: SPEC §3.15, §9.2.11, §9.2.12.
//!
//! The device has no thread. If a command must wait, callers advance it with
//! [`advance_command`](Device::advance_command) until `CMDSTATUS.Active` is 0.

use crate::activity::Activity;
use crate::capabilities::MAX_WQS;
use crate::device::Device;
use crate::errors::ErrorReport;
use crate::group::bits;
use crate::sync::{TryLock, Word};
use crate::wq::Submitter;
use telpher_abi::DeviceError;
use telpher_abi::registers::{CmdStatus, Command, CommandCode, CommandError, DeviceState, IntCause, WqState};

/// The command in progress.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct CommandState {
    active: Activity,
    lock: TryLock,
    command: Word,
    status: Word,
    /// The affected queues, one bit each.
    queues: Word,
    /// Descriptors that began before it may use entries of the inter-domain permissions table.
    window_ticket: Word,
    /// By queue: the position before which descriptors are affected.
    ends: [Word; MAX_WQS],
}

impl Default for CommandState {
    fn default() -> Self {
        CommandState {
            active: Activity::default(),
            lock: TryLock::default(),
            command: Word::default(),
            status: Word::default(),
            queues: Word::default(),
            window_ticket: Word::default(),
            ends: std::array::from_fn(|_| Word::default()),
        }
    }
}

/// The descriptors that a command affects, and what to do with them.
struct CommandScope {
    /// Abandon waiting descriptors instead of executing them.
    abort: bool,
    /// Only descriptors of this PASID.
    pasid: Option<u32>,
}

impl Device {
    /// Returns CMDSTATUS as software reads it.
    #[must_use]
    pub fn cmd_status(&self) -> CmdStatus {
        let active = self.commands.active.is_active();
        CmdStatus([self.commands.status.get()]).with_active(active)
    }

    /// Starts a command, as a write to CMD does. If another command is active, the write is discarded and reported as
    /// 0x52, and this returns `false`.
    pub fn start_command(&self, command: Command) -> bool {
        if !self.commands.active.start() {
            self.report_device_error(&ErrorReport::of_device(DeviceError::CommandActive));
            return false;
        }
        self.commands.command.set(command.0[0]);
        match self.begin(command) {
            Ok(Some(result)) => self.finish(command, CommandError::None, result),
            Ok(None) => {
                self.commands.active.run();
                self.advance_command();
            }
            Err(error) => self.finish(command, error, 0),
        }
        true
    }

    /// Advances the active command, if its condition has been met. Never blocks.
    pub fn advance_command(&self) {
        if !self.commands.active.is_running() {
            return;
        }
        self.commands.lock.try_with(|| {
            // Checked again under the lock, before the command's words are read: it may be another command by now.
            if !self.commands.active.is_running() {
                return;
            }
            let command = Command([self.commands.command.get()]);
            let resets = CommandCode::from_code(command.code()) == CommandCode::ResetDevice;
            if self.state() == DeviceState::Halted && !resets {
                // The engines have stopped, so there is nothing to wait for; the halt stays.
                self.finish(command, CommandError::Halted, 0);
            } else if self.is_scope_done(&CommandScope::of(command)) {
                let error = if self.conclude(command) { CommandError::None } else { CommandError::Halted };
                self.finish(command, error, 0);
            }
        });
    }

    fn finish(&self, command: Command, error: CommandError, result: u16) {
        self.commands.status.set(CmdStatus::default().with_error_code(error.code()).with_result(result).0[0]);
        self.commands.active.end();
        if command.interrupt() {
            self.cause(IntCause::COMMAND, |_| true);
        }
    }

    /// Checks a command and starts it. Returns `Some(result)` if it completes at once.
    fn begin(&self, command: Command) -> Result<Option<u16>, CommandError> {
        let code = CommandCode::from_code(command.code());
        if command.reserved() != 0 {
            return Err(CommandError::NonZeroReserved);
        }
        if !self.is_known(code) {
            return Err(CommandError::UnknownCommand);
        }
        if self.state() == DeviceState::Halted && code != CommandCode::ResetDevice {
            return Err(CommandError::Halted);
        }
        match code {
            CommandCode::EnableDevice => self.enable_device().map(|()| Some(0)),
            CommandCode::EnableWq => self.enable_wq((command.operand() & 0xff) as usize).map(|()| Some(0)),
            CommandCode::DisableDevice => {
                if !self.general.state.change(&[DeviceState::Enabled], DeviceState::Draining) {
                    return Err(CommandError::DisableNotEnabled);
                }
                self.set_scope(self.all_queues(), true);
                Ok(None)
            }
            CommandCode::ResetDevice => {
                // A halted device stays halted until the end: none of its waiting descriptors is executed any more.
                self.general.state.change(&[DeviceState::Disabled, DeviceState::Enabled], DeviceState::Draining);
                self.set_scope(self.all_queues(), true);
                Ok(None)
            }
            CommandCode::DrainAll | CommandCode::AbortAll | CommandCode::DrainPasid | CommandCode::AbortPasid => {
                self.set_scope(self.all_queues(), false);
                Ok(None)
            }
            CommandCode::DisableWq | CommandCode::DrainWq | CommandCode::AbortWq => {
                let queues = self.queues_of(command)?;
                if bits(queues).any(|wq| self.wq_state(wq) != WqState::Enabled) {
                    return Err(CommandError::WqNotEnabled);
                }
                self.set_scope(queues, code == CommandCode::DisableWq);
                Ok(None)
            }
            CommandCode::ResetWq => {
                self.set_scope(self.queues_of(command)?, true);
                Ok(None)
            }
            CommandCode::RequestInterruptHandle | CommandCode::ReleaseInterruptHandle => {
                self.handle_command(command, code == CommandCode::RequestInterruptHandle).map(Some)
            }
            CommandCode::RequestIdptHandle | CommandCode::ReleaseIdptHandle => {
                self.idpt_handle_command(command.operand(), code == CommandCode::RequestIdptHandle).map(Some)
            }
            CommandCode::InvalidateBitmapCache => {
                self.invalidate_bitmaps(command.operand(), self.general.cmdparam.get()).map(Some)
            }
            _ => Err(CommandError::UnknownCommand),
        }
    }

    /// Without CMDCAP commands 1 to 12 exist; with it, the commands it lists. Source: SPEC §9.2.13.
    fn is_known(&self, code: CommandCode) -> bool {
        let caps = &self.capabilities;
        if caps.gen_cap.command_capability() {
            caps.cmd_cap >> code.code() & 1 == 1
        } else {
            (1..=12).contains(&code.code())
        }
    }

    fn all_queues(&self) -> u64 {
        (1 << self.queues()) - 1
    }

    /// Returns the queues of a bitmap operand: bits 15:0 within the bank of bits 19:16.
    fn queues_of(&self, command: Command) -> Result<u64, CommandError> {
        let operand = u64::from(command.operand());
        let queues = (operand & 0xffff) << (16 * (operand >> 16)).min(48);
        if operand >> 16 > 3 && operand & 0xffff != 0 || queues & !self.all_queues() != 0 {
            return Err(CommandError::WqIndex);
        }
        Ok(queues)
    }

    /// Records which descriptors a command waits for; `closing` also stops the queues from accepting more.
    fn set_scope(&self, queues: u64, closing: bool) {
        for wq in bits(queues) {
            let ring = &self.wqs[wq].ring;
            if closing && ring.state() == WqState::Enabled {
                ring.set_state(WqState::Draining);
            }
            self.commands.ends[wq].set(ring.tail_position());
        }
        self.commands.queues.set(queues);
        self.commands.window_ticket.set(self.window_ticket());
    }

    fn handle_command(&self, command: Command, request: bool) -> Result<u16, CommandError> {
        let operand = command.operand();
        let (index, ims) = ((operand & 0xffff) as usize, operand >> 16 & 1 == 1);
        if operand >> 17 != 0 {
            return Err(CommandError::NonZeroReserved);
        }
        let entries = if ims { self.capabilities.ims_entries() } else { self.capabilities.msix_entries.into() };
        if index >= entries {
            return Err(CommandError::InterruptIndex);
        }
        self.set_handle(ims, index, request);
        Ok(if request { u16::try_from(index).unwrap_or_default() } else { 0 })
    }

    /// True if none of the affected descriptors waits or is in progress any more.
    ///
    /// A descriptor of another PASID may access the memory of the one that is drained, by an entry of the inter-domain
    /// permissions table. It may have been changed since, so that all descriptors that use any entry count.
    fn is_scope_done(&self, wait: &CommandScope) -> bool {
        if wait.pasid.is_some() && self.windows_in_use(self.commands.window_ticket.get(), None) {
            return false;
        }
        bits(self.commands.queues.get()).all(|wq| {
            let queue = &self.wqs[wq];
            let (slots, end) = (self.slots_of(queue), self.commands.ends[wq].get());
            let chosen = |submitter: Submitter| wait.pasid.is_none_or(|pasid| submitter.pasid == Some(pasid));
            let group = self.group_of_wq(wq);
            self.groups[group]
                .0
                .lock
                .try_with(|| {
                    if wait.abort {
                        queue.ring.abandon(slots, end, chosen);
                    }
                    // Also discards what an earlier abort left behind others, so that a disabled queue is empty.
                    queue.ring.discard_abandoned(slots);
                    !queue.ring.any_waiting(slots, end, chosen) && !self.in_progress(wq, end, wait.pasid, None)
                })
                .unwrap_or(false)
        })
    }

    /// Completes the command once all affected descriptors are gone; returns `false` if the device has halted before
    /// that.
    fn conclude(&self, command: Command) -> bool {
        let queues = self.commands.queues.get();
        match CommandCode::from_code(command.code()) {
            CommandCode::DisableDevice => {
                self.close(queues);
                return self.general.state.change(&[DeviceState::Draining], DeviceState::Disabled);
            }
            CommandCode::ResetDevice => {
                self.close(queues);
                self.reset_configuration();
                self.reset_message_storage();
                self.perfmon.reset(u32::MAX);
            }
            CommandCode::DisableWq => self.close(queues),
            CommandCode::ResetWq => {
                self.close(queues);
                for wq in bits(queues) {
                    self.reset_wq_cfg(wq, self.wq_cfg(wq).size());
                }
            }
            _ => {}
        }
        true
    }

    fn close(&self, queues: u64) {
        for wq in bits(queues) {
            self.wqs[wq].ring.set_state(WqState::Disabled);
        }
    }
}

impl CommandScope {
    fn of(command: Command) -> Self {
        let code = CommandCode::from_code(command.code());
        let abort = matches!(
            code,
            CommandCode::AbortAll
                | CommandCode::ResetDevice
                | CommandCode::AbortWq
                | CommandCode::ResetWq
                | CommandCode::AbortPasid
        );
        let by_pasid = matches!(code, CommandCode::DrainPasid | CommandCode::AbortPasid);
        CommandScope { abort, pasid: by_pasid.then(|| command.operand()) }
    }
}
