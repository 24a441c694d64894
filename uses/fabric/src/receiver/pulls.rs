//! Long messages that the receiver reads where the sender has them, with one copy.
//!
//! ```text
//! in the sender's memory             the kernel copies, a part in each pass
//! in a file that both have mapped    the CPU copies, a part in each pass; or a device, all parts that it has room for
//! ```
//!
//! If that fails, or is slow, the bytes come in pieces, all of them.

use super::{Link, Receiver, State, reception};
use crate::completion::Failure;
use crate::copier::{Copier, CopyFor, Started};
use crate::entry::{Answer, MessageId};
use crate::error::Broken;
use crate::pull::Place;
use crate::receives::Receives;
use crate::ways::{FIRST_BYTES, PullFrom, Way};
use std::io::ErrorKind;
use std::time::Instant;

/// Bytes that the CPU copies in one pass. Source: chosen; a tenth of a millisecond.
const PULLED_AT_ONCE: u64 = 1 << 20;

/// Bytes that a device copies at once. Source: chosen; at this length the cost of a descriptor is small, and a message
/// has parts for several engines.
const PART_OF_DEVICE: u64 = 64 << 10;

impl Receiver {
    /// Starts to read a matched message.
    pub(super) fn start_pull(
        &mut self,
        id: MessageId,
        receives: &mut Receives,
        copier: &mut Copier,
    ) -> Result<(), Broken> {
        let Some(reception) = reception(&mut self.messages, id) else { return Ok(()) };
        if let Some(pull) = &reception.pull
            && let Place::File { address, .. } = pull.place
            && copier.has_device()
        {
            return self.pull_by_device(id, address, receives, copier);
        }
        self.stop_pull(id);
        self.pulls.push_back(id);
        if self.pulls.len() == 1 { self.pull(id, receives, copier) } else { Ok(()) }
    }

    /// Reads the next part of a message. If the system refuses that, or it is slow, the bytes come in pieces.
    pub(super) fn pull(&mut self, id: MessageId, receives: &mut Receives, copier: &mut Copier) -> Result<(), Broken> {
        let Some(Some(message)) = self.messages.get_mut(id.0 as usize) else {
            self.stop_pull(id);
            return Ok(());
        };
        let len = message.envelope.len;
        let State::Matched(reception) = &mut message.state else {
            self.stop_pull(id);
            return Ok(());
        };
        let Some(pull) = &mut reception.pull else {
            self.stop_pull(id);
            return Ok(());
        };
        let (takes, done) = (reception.target.takes, reception.handled);
        let is_first = done == 0 && takes >= 2 * FIRST_BYTES;
        let part = takes.saturating_sub(done).min(if is_first { FIRST_BYTES } else { PULLED_AT_ONCE });
        let start = Instant::now();
        let read = pull.read(self.process, copier, &reception.target.segments, done, part);
        let time = start.elapsed();
        pull.time += time;
        if is_first && read.is_ok() && self.ways.is_hopeless(len, part, time) {
            self.ways.took(len, Way::Pull, part, time);
            receives.reports.pulls_slow += 1;
            return self.take_pieces(id);
        }
        if let Err(error) = read {
            self.ways.refused(pull.place.pull_from(), &error);
            receives.reports.pulls_refused += 1;
            return self.take_pieces(id);
        }
        reception.handled += part;
        if reception.handled < takes {
            return if is_first { self.pull(id, receives, copier) } else { Ok(()) };
        }
        self.ways.took(len, Way::Pull, takes, pull.time);
        receives.reports.pulls += 1;
        receives.reports.pulls_mapped += u64::from(matches!(pull.place, Place::File { .. }));
        self.stop_pull(id);
        self.end_if_done(id, receives)
    }

    /// Lets a device copy a message from a mapping: as many parts as it has room for. The rest follows when one of them
    /// has ended.
    fn pull_by_device(
        &mut self,
        id: MessageId,
        address: u64,
        receives: &mut Receives,
        copier: &mut Copier,
    ) -> Result<(), Broken> {
        let Some(reception) = reception(&mut self.messages, id) else { return Ok(()) };
        let takes = reception.target.takes;
        let mut has_failed = false;
        while reception.handled < takes && !has_failed {
            let done = reception.handled;
            let part = (takes - done).min(PART_OF_DEVICE);
            let purpose = CopyFor::Receiver { index: self.index, slot: None, id: id.0 };
            let (from, into) = (address + done, &reception.target.segments);
            let started = match copier.start_out_if_room(from, into, done, part, purpose) {
                Some(started) => started,
                None => {
                    copier.submit();
                    if reception.copying > 0 {
                        break;
                    }
                    // Other messages have all the room, and no end of a part would continue this one.
                    copier.start_out(from, into, done, part, purpose)
                }
            };
            match started {
                Started::Ended(result) => has_failed |= result.is_err(),
                Started::Pending => {
                    reception.copying += 1;
                    self.copying += 1;
                }
            }
            reception.handled += part;
        }
        if let Some(pull) = &mut reception.pull {
            pull.has_failed |= has_failed;
        }
        if reception.copying > 0 { Ok(()) } else { self.parts_copied(id, receives) }
    }

    /// The copy of a part has ended.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it.
    pub(crate) fn part_copied(
        &mut self,
        id: MessageId,
        is_ok: bool,
        receives: &mut Receives,
        copier: &mut Copier,
    ) -> Result<(), Broken> {
        self.copying -= 1;
        let Some(reception) = reception(&mut self.messages, id) else { return Ok(()) };
        reception.copying -= 1;
        if let Some(pull) = &mut reception.pull {
            pull.has_failed |= !is_ok;
            let goes_on = !pull.has_failed && reception.failure.is_none() && self.link != Link::Ended;
            if goes_on
                && reception.handled < reception.target.takes
                && let Place::File { address, .. } = pull.place
            {
                return self.pull_by_device(id, address, receives, copier);
            }
        }
        if reception.copying > 0 { Ok(()) } else { self.parts_copied(id, receives) }
    }

    /// The device has done all parts of a message.
    fn parts_copied(&mut self, id: MessageId, receives: &mut Receives) -> Result<(), Broken> {
        let Some(Some(message)) = self.messages.get_mut(id.0 as usize) else { return Ok(()) };
        let State::Matched(reception) = &mut message.state else { return Ok(()) };
        let Some(pull) = &reception.pull else { return self.end_if_done(id, receives) };
        if pull.has_failed || !pull.is_whole() {
            self.ways.refused(PullFrom::File, &ErrorKind::UnexpectedEof.into());
            receives.reports.pulls_refused += 1;
            if self.link != Link::Ended {
                return self.take_pieces(id);
            }
            reception.failure.get_or_insert(Failure::PeerDied);
        } else if reception.failure.is_none() {
            let (len, takes, time) = (message.envelope.len, reception.target.takes, pull.since.elapsed());
            self.ways.took(len, Way::Pull, takes, time);
            receives.reports.pulls += 1;
            receives.reports.pulls_mapped += 1;
        }
        self.end_if_done(id, receives)
    }

    /// The CPU reads no more of a message.
    fn stop_pull(&mut self, id: MessageId) {
        self.pulls.retain(|&pulled| pulled != id);
    }

    /// Lets the bytes of an offered message come in pieces, all of them.
    fn take_pieces(&mut self, id: MessageId) -> Result<(), Broken> {
        self.stop_pull(id);
        let Some(reception) = reception(&mut self.messages, id) else { return Ok(()) };
        // The time of the pull would count as one of the pieces.
        (reception.pull, reception.handled, reception.since) = (None, 0, None);
        let len = reception.target.takes;
        self.answer(Answer::Matched { id, len })
    }
}
