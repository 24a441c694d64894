//! The data of a command as it arrives: in any order, in parts of any length.

use super::{Accepted, Executor, OpenCommand};
use crate::command::Submission;
use crate::engine::Segment;
use crate::limits::SMALL_PART;
use crate::storage::Piece;

impl OpenCommand {
    /// A command whose capsule was complete at the time `begun`.
    pub(super) fn new(command: Submission, accepted: Accepted, begun: u64) -> OpenCommand {
        OpenCommand {
            command,
            executor: accepted.executor,
            from_host: accepted.from_host,
            asked: 0,
            r2ts: 0,
            is_budgeted: false,
            is_waiting: false,
            pieces: Vec::new(),
            small_parts: Vec::new(),
            pending: Vec::new(),
            next_part: 0,
            failure: None,
            task: None,
            fused: None,
            buffer_bytes: 0,
            has_reply: false,
            begun,
        }
    }

    /// Gives back what the completed command used: its namespace, its part of the lock and its data.
    pub(super) fn release(&mut self) {
        (self.executor, self.task) = (Executor::Task, None);
        (self.pieces, self.small_parts, self.pending) = (Vec::new(), Vec::new(), Vec::new());
    }

    /// Keeps a part of the data whose digest is right or that has none.
    pub(super) fn add_data(&mut self, offset: u32, data: Vec<u8>) {
        if data.len() >= SMALL_PART {
            self.pieces.push((offset, Piece::Bytes(Segment::whole(data))));
            return;
        }
        // The R2Ts of a command may be answered in turns, so the part before this one need not be the last one.
        let ends_here = |(start, bytes): &&mut (u32, Vec<u8>)| *start as usize + bytes.len() == offset as usize;
        match self.small_parts.iter_mut().rev().find(ends_here) {
            Some((_, before)) => before.extend_from_slice(&data),
            None => self.small_parts.push((offset, data)),
        }
    }

    /// The data of the command, in the order of its offsets.
    pub(super) fn take_data(&mut self) -> Vec<Piece> {
        if self.pieces.is_empty() && self.small_parts.is_empty() {
            return Vec::new();
        }
        let mut pieces = std::mem::take(&mut self.pieces);
        let small = std::mem::take(&mut self.small_parts).into_iter();
        pieces.extend(small.map(|(offset, bytes)| (offset, Piece::Bytes(Segment::whole(bytes)))));
        // R2Ts may be answered, and digests may be computed, in any order.
        pieces.sort_by_key(|(offset, _)| *offset);
        pieces.into_iter().map(|(_, piece)| piece).collect()
    }
}
