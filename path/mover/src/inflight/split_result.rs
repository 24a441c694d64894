//! The result of a request that was split into parts.

use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use telpher_abi::Opcode;

/// The result of the whole request so far.
#[derive(Debug, Default)]
pub(super) struct SplitResult {
    /// The start and the failure of the first part that failed.
    pub(super) failed: Option<(u64, JobError)>,
    /// The first difference that a comparison found.
    pub(super) different: Option<u64>,
    /// Bytes done, in any parts.
    done: u64,
    /// A device did a part.
    device: bool,
    /// The CPU did a part.
    cpu: bool,
}

impl SplitResult {
    /// Records the end of the part `[start, start + len)`.
    pub(super) fn ended(&mut self, start: u64, len: u64, result: Result<Outcome, JobError>) {
        match result {
            Ok(Outcome::Different { at }) => {
                let at = start + at;
                self.different = Some(self.different.map_or(at, |first| first.min(at)));
                self.done += len;
            }
            Ok(_) => self.done += len,
            Err(error) => {
                if let JobError::Fault { done, .. } = error {
                    self.done += done;
                }
                if self.failed.as_ref().is_none_or(|(first, _)| start < *first) {
                    self.failed = Some((start, error));
                }
            }
        }
    }

    /// Records which side did a part.
    pub(super) fn by(&mut self, via: Via) {
        self.device |= via != Via::Cpu;
        self.cpu |= via != Via::Device;
    }

    /// Returns the result of the whole after all its parts have ended.
    pub(super) fn result(&self, op: Opcode) -> Result<Outcome, JobError> {
        match &self.failed {
            // A difference before the failed part makes everything behind it irrelevant.
            Some((at, _)) if self.different.is_some_and(|different| different < *at) => {}
            Some((_, JobError::Fault { address, write, .. })) => {
                return Err(JobError::Fault { address: *address, write: *write, done: self.done });
            }
            Some((_, error)) => return Err(error.clone()),
            None => {}
        }
        Ok(match (op, self.different) {
            (_, Some(at)) => Outcome::Different { at },
            (Opcode::Compare | Opcode::ComparePattern, None) => Outcome::Equal,
            _ => Outcome::Done,
        })
    }

    /// Returns whether devices, the CPU or both did the work so far.
    pub(super) fn via(&self) -> Via {
        match (self.device, self.cpu) {
            (true, false) => Via::Device,
            (true, true) => Via::Both,
            (false, _) => Via::Cpu,
        }
    }
}
