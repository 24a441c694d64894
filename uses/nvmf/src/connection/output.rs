//! The bytes that wait for the host.

use crate::engine::Segment;
use std::collections::VecDeque;

/// Small pieces are joined up to this length, so that a reply needs few slices.
const JOINED: usize = 4096;

#[derive(Debug)]
enum Part {
    Bytes(Vec<u8>),
    Shared(Segment),
}

impl Part {
    fn as_slice(&self) -> &[u8] {
        match self {
            Part::Bytes(bytes) => bytes,
            Part::Shared(segment) => segment.as_slice(),
        }
    }
}

/// A queue of bytes to send.
#[derive(Debug, Default)]
pub(crate) struct Output {
    parts: VecDeque<Part>,
    /// Bytes of the first part that were sent.
    sent: usize,
    len: usize,
}

impl Output {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        if let Some(Part::Bytes(last)) = self.parts.back_mut()
            && last.len() + bytes.len() <= JOINED
        {
            last.extend_from_slice(bytes);
            return;
        }
        self.parts.push_back(Part::Bytes(bytes.to_vec()));
    }

    pub(crate) fn push_segment(&mut self, segment: Segment) {
        self.len += segment.range.len();
        self.parts.push_back(Part::Shared(segment));
    }

    pub(crate) fn clear(&mut self) {
        *self = Output::default();
    }

    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.sent;
        self.parts.iter().map(move |part| {
            let (_, slice) = part.as_slice().split_at(std::mem::take(&mut skip));
            slice
        })
    }

    pub(crate) fn sent(&mut self, count: usize) {
        self.len = self.len.checked_sub(count).expect("at most what was queued");
        self.sent += count;
        while let Some(first) = self.parts.front() {
            let len = first.as_slice().len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.parts.pop_front();
        }
    }
}
