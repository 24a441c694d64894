//! The bytes that wait for the host.

use crate::digest::Digests;
use crate::engine::Segment;
use crate::pdu::{self, Kind};
use std::collections::VecDeque;

/// Small pieces are joined up to this length, so that a reply needs few slices.
const JOINED: usize = 4096;
/// Sent bytes that stay at the front of the buffer of small pieces while others wait behind them.
const MOST_SENT: usize = 64 << 10;

#[derive(Debug)]
enum Part {
    /// This many bytes of [`Outgoing::small`], behind those of the parts before.
    Small(usize),
    Shared(Segment),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Small(len) => *len,
            Part::Shared(segment) => segment.range.len(),
        }
    }
}

/// Bytes to send, in their order.
#[derive(Debug, Default)]
pub struct Outgoing {
    parts: VecDeque<Part>,
    /// Headers, responses and digests, one after the other, so that they need no memory of their own.
    small: Vec<u8>,
    /// Where the first part's bytes are, if it is small.
    small_start: usize,
    /// Bytes of the first part that were sent.
    sent: usize,
    len: usize,
}

impl Outgoing {
    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
        self.add_small(bytes.len());
    }

    /// Appends what comes before the data of a PDU, as [`pdu::append`] builds it.
    pub(crate) fn push_pdu(
        &mut self,
        kind: Kind,
        flags: u8,
        header: &[u8],
        data_len: usize,
        digests: Digests,
        alignment: usize,
    ) {
        let start = self.small.len();
        pdu::append(&mut self.small, kind, flags, header, data_len, digests, alignment);
        self.add_small(self.small.len() - start);
    }

    /// The last `count` bytes of [`Outgoing::small`] are new.
    fn add_small(&mut self, count: usize) {
        self.len += count;
        match self.parts.back_mut() {
            Some(Part::Small(len)) if *len + count <= JOINED => *len += count,
            _ => self.parts.push_back(Part::Small(count)),
        }
    }

    pub(crate) fn push_segment(&mut self, segment: Segment) {
        self.len += segment.range.len();
        self.parts.push_back(Part::Shared(segment));
    }

    pub(crate) fn clear(&mut self) {
        *self = Outgoing::default();
    }

    /// The bytes. They stay where they are until `self` changes or is dropped, also when it moves.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (mut skip, mut small) = (self.sent, self.small_start);
        self.parts.iter().map(move |part| {
            let whole = match part {
                Part::Small(len) => {
                    let start = small;
                    small += len;
                    &self.small[start..small]
                }
                Part::Shared(segment) => segment.as_slice(),
            };
            &whole[std::mem::take(&mut skip)..]
        })
    }

    /// The first `count` bytes were sent, and are dropped.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn sent(&mut self, count: usize) {
        self.len = self.len.checked_sub(count).expect("at most what was queued");
        self.sent += count;
        while let Some(first) = self.parts.front() {
            let len = first.len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            if let Some(Part::Small(len)) = self.parts.pop_front() {
                self.small_start += len;
            }
        }
        if self.parts.is_empty() {
            self.small_start = 0;
            self.small.clear();
            // An idle connection keeps little memory.
            self.small.shrink_to(JOINED);
        } else if self.small_start > MOST_SENT {
            self.small.drain(..self.small_start);
            self.small_start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_os::Random;

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came() {
        let mut random = Random::new(24);
        let mut random = |below: usize| usize::try_from(random.below(below as u64)).unwrap();
        let (mut output, mut queued, mut sent) = (Outgoing::default(), Vec::new(), Vec::new());
        let mut next = 0_u8;
        for _ in 0..20_000 {
            if output.len() < 200_000 && random(2) == 0 {
                next = next.wrapping_add(7);
                let bytes: Vec<u8> = (0..=random(600)).map(|at| at.to_le_bytes()[0] ^ next).collect();
                queued.extend_from_slice(&bytes);
                if random(3) == 0 {
                    output.push_segment(Segment::whole(bytes));
                } else {
                    output.push(&bytes);
                }
            } else if !output.is_empty() {
                let waiting: Vec<u8> = output.slices().take(8).flatten().copied().collect();
                let count = random(waiting.len() + 1);
                sent.extend_from_slice(&waiting[..count]);
                output.sent(count);
            }
            assert_eq!(output.slices().map(<[u8]>::len).sum::<usize>(), output.len());
        }
        sent.extend(output.slices().flatten());
        assert!(sent == queued && sent.len() > 1_000_000);
        output.sent(output.len());
        assert_eq!((output.len(), output.slices().count(), output.small.capacity() <= JOINED), (0, 0, true));
    }
}
