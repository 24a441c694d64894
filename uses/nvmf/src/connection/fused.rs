//! Fused pairs: a Compare and the Write behind it, which is executed only if the data is equal.
//!
//! Both commands receive their data as others do. When all data of both has arrived, one task executes them, under the
//! exclusive lock of their blocks.
//!
//! Source: NVMe Base 2.0 §3.4.2.

use super::{Accepted, Connection, Context, Executor, FirstOfPair, FusedCommand, OpenCommand};
use crate::command::{FABRICS, FUSED, FUSED_FIRST, FUSED_SECOND, Submission};
use crate::commands::{Plan, Task};
use crate::engine::JobId;
use crate::status::Status;

impl OpenCommand {
    fn plan(&self) -> Option<&Plan> {
        match &self.executor {
            Executor::Io(plan) => Some(plan),
            _ => None,
        }
    }
}

impl Connection {
    /// Decides whether a command is one of a fused pair, and ends a first command whose second one did not come next.
    pub(super) fn fuse(
        &mut self,
        command: &Submission,
        verdict: Result<Accepted, Status>,
        context: &mut Context<'_>,
    ) -> (Result<Accepted, Status>, Option<FusedCommand>) {
        let is_io = command.opcode != FABRICS && self.queue.as_ref().is_some_and(|queue| queue.qid > 0);
        let fused = if is_io { command.flags & FUSED } else { 0 };
        let first = std::mem::replace(&mut self.first_of_pair, FirstOfPair::None);
        match (fused, first) {
            (FUSED_SECOND, FirstOfPair::Waiting(index)) => {
                let first = self.open_command(index).and_then(|open| open.plan());
                let is_pair = match (&verdict, first) {
                    (Ok(Accepted { executor: Executor::Io(second), .. }), Some(first)) => first.is_pair_with(second),
                    _ => false,
                };
                if is_pair {
                    return (verdict, Some(FusedCommand { partner: Some(index), is_ready: false }));
                }
                let (first, verdict) = match verdict {
                    Ok(_) => {
                        let invalid = Status::INVALID_FIELD.do_not_retry();
                        (invalid, Err(invalid))
                    }
                    error => (Status::FAILED_FUSED, error),
                };
                self.fail(index, first, context);
                (verdict, None)
            }
            (FUSED_SECOND, FirstOfPair::Failed) => (verdict.and(Err(Status::FAILED_FUSED)), None),
            (FUSED_SECOND, FirstOfPair::None) => (verdict.and(Err(Status::MISSING_FUSED)), None),
            (_, first) => {
                if let FirstOfPair::Waiting(index) = first {
                    self.fail(index, Status::MISSING_FUSED, context);
                }
                if fused != FUSED_FIRST {
                    return (verdict, None);
                }
                if verdict.is_err() {
                    self.first_of_pair = FirstOfPair::Failed;
                    return (verdict, None);
                }
                (verdict, Some(FusedCommand { partner: None, is_ready: false }))
            }
        }
    }

    /// The command in this slot is one of a pair.
    pub(super) fn take_fused(&mut self, index: u32, fused: FusedCommand) {
        match fused.partner {
            Some(first) => self.set_partner(first, Some(index)),
            None => self.first_of_pair = FirstOfPair::Waiting(index),
        }
        if let Some(open) = self.open_command(index) {
            open.fused = Some(fused);
        }
    }

    fn set_partner(&mut self, index: u32, partner: Option<u32>) {
        if let Some(fused) = self.open_command(index).and_then(|open| open.fused.as_mut()) {
            fused.partner = partner;
        }
    }

    /// Ends a command with this status as soon as the data that was asked for has arrived.
    pub(super) fn fail(&mut self, index: u32, status: Status, context: &mut Context<'_>) {
        if let Some(open) = self.open_command(index) {
            open.failure.get_or_insert(status);
            self.proceed(index, context);
        }
    }

    /// A command of a pair ended before the pair was executed, so the other one ends too.
    pub(super) fn partner_fails(&mut self, index: u32, fused: FusedCommand, context: &mut Context<'_>) {
        match fused.partner {
            Some(partner) => {
                self.set_partner(partner, None);
                self.fail(partner, Status::FAILED_FUSED, context);
            }
            None if self.first_of_pair == FirstOfPair::Waiting(index) => self.first_of_pair = FirstOfPair::Failed,
            None => {}
        }
    }

    /// All data of a command of a pair has arrived. The pair is executed when that of the other one has, too.
    pub(super) fn fused_ready(&mut self, index: u32, context: &mut Context<'_>) {
        let Some(fused) = self.open_command(index).and_then(|open| open.fused.as_mut()) else { return };
        fused.is_ready = true;
        let Some(partner) = fused.partner else { return };
        let Some(other) = self.open_command(partner) else { return };
        if !other.fused.is_some_and(|fused| fused.is_ready) {
            return;
        }
        // The first command is the Compare.
        let is_second = other.command.flags & FUSED == FUSED_FIRST;
        let (first, second) = if is_second { (partner, index) } else { (index, partner) };
        let generation = self.slots[first as usize].generation;
        let id = JobId { connection: self.number, slot: first, generation, part: 0 };
        let [compare, write] = [first, second].map(|index| {
            let open = self.open_command(index)?;
            Some((open.plan()?.clone(), open.take_data()))
        });
        if let (Some((plan, data)), Some(write)) = (compare, write) {
            self.start(first, Task::new(plan, id, data, Some(write)), context);
        }
    }

    /// A pair was executed. `index` is the slot of its first command.
    pub(super) fn pair_ended(&mut self, index: u32, (first, second): (Status, Status)) {
        let partner = self.open_command(index).and_then(|open| open.fused).and_then(|fused| fused.partner);
        for (index, status) in std::iter::once((index, first)).chain(partner.map(|partner| (partner, second))) {
            let Some(cid) = self.open_command(index).map(|open| open.command.cid.get()) else { continue };
            self.stats.protection_errors += u64::from(status.is_protection_error());
            self.free_slot(index, status);
            self.respond(cid, status, 0);
        }
    }
}
