//! The bytes that wait for the host.

use crate::digest::{DIGEST_BYTES, Digests, digest, digest_after};
use crate::engine::Segment;
use crate::pdu::{self, CapsuleResp, Kind};
use crate::status::Status;
use std::collections::VecDeque;

/// Small pieces are joined up to this length, so that a reply needs few slices.
const JOINED: usize = 4096;
/// Parts whose memory is kept while none waits.
const KEPT_PARTS: usize = 64;
/// Sent bytes that stay at the front of the buffer of small pieces while others wait behind them.
const MOST_SENT: usize = 64 << 10;

#[derive(Debug)]
enum Part {
    /// This many bytes of [`Outgoing::small`], behind those of the parts before.
    Small(usize),
    /// Data of a reply.
    Shared {
        segment: Segment,
        /// The reply ends with a response, which comes after the data and its digest.
        has_response: bool,
    },
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Small(len) => *len,
            Part::Shared { segment, .. } => segment.len(),
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
    /// The last part that was sent has data, so a first part with data belongs to the same reply.
    has_sent_data: bool,
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
    #[inline(always)]
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

    /// Appends data of a reply, which has a response behind its data or not.
    pub(crate) fn push_segment(&mut self, segment: Segment, has_response: bool) {
        self.len += segment.len();
        self.parts.push_back(Part::Shared { segment, has_response });
    }

    /// Returns whether bytes lie in a file that may lose pages.
    pub(crate) fn may_lose_pages(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Shared { segment, .. } if segment.may_lose_pages()))
    }

    /// True if bytes lie in a file that has lost pages. They may read as zeroes, since a page that was found lost is
    /// replaced for all replies that wait, of this connection and of others.
    pub(crate) fn has_lost(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Shared { segment, .. } if !segment.has_all_pages()))
    }

    /// The kernel could not read some bytes: another program has truncated the file in which they are. Puts zeroes in
    /// their place, and `status` into the responses of these replies. The data digests become those of the new bytes,
    /// except in a reply of which data was sent before: its bytes are not known any more, so the host may also see a
    /// digest that does not match. Returns false if there are no such bytes, or if a reply has no response.
    pub(crate) fn fail_lost(&mut self, digests: Digests, status: Status) -> bool {
        let (mut small, mut is_lost, mut has_failed) = (self.small_start, false, false);
        // The parts with the data of one reply.
        let mut data = 0..0;
        for (at, part) in self.parts.iter().enumerate() {
            match part {
                Part::Shared { segment, has_response } => {
                    is_lost |= !segment.probe();
                    if is_lost && !has_response {
                        return false;
                    }
                    data.end = at + 1;
                }
                Part::Small(len) => {
                    // The first bytes behind the data are its digest and its response.
                    if std::mem::take(&mut is_lost) {
                        let reply = &mut self.small[small..small + len];
                        let (data_digest, response) = reply.split_at_mut(if digests.data { DIGEST_BYTES } else { 0 });
                        let is_whole = data.start > 0 || !self.has_sent_data && self.sent == 0;
                        if digests.data && is_whole {
                            let sum = self.parts.range(data.clone()).fold(0, |sum, part| match part {
                                Part::Shared { segment, .. } => digest_after(sum, segment.as_slice()),
                                Part::Small(_) => sum,
                            });
                            data_digest.copy_from_slice(&sum.to_le_bytes());
                        }
                        set_status(response, digests, status);
                        has_failed = true;
                    }
                    small += len;
                    data = at + 1..at + 1;
                }
            }
        }
        has_failed
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
                Part::Shared { segment, .. } => segment.as_slice(),
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
            self.has_sent_data = match self.parts.pop_front() {
                Some(Part::Small(len)) => {
                    self.small_start += len;
                    false
                }
                _ => true,
            };
        }
        if self.parts.is_empty() {
            self.small_start = 0;
            self.small.clear();
            // An idle connection keeps little memory.
            self.small.shrink_to(JOINED);
            self.parts.shrink_to(KEPT_PARTS);
        } else if self.small_start > MOST_SENT {
            self.small.drain(..self.small_start);
            self.small_start = 0;
        }
    }
}

/// Sets the status of the response at the beginning of `bytes`.
fn set_status(bytes: &mut [u8], digests: Digests, status: Status) {
    let (response, rest) = bytes.split_at_mut(size_of::<CapsuleResp>());
    let end = response.len();
    // The status word is the last field of a completion, which is the last part of a response.
    response[end - size_of::<u16>()..].copy_from_slice(&status.word().to_le_bytes());
    if digests.header {
        rest[..DIGEST_BYTES].copy_from_slice(&digest(response).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::JobId;
    use crate::memory::{MemoryOptions, MemoryStorage};
    use crate::storage::{Piece, Started, Storage, StorageRequest};
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
                    output.push_segment(Segment::whole(bytes), false);
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

    /// Once, the digest stayed that of the bytes before.
    #[test]
    fn a_failed_reply_has_the_digest_of_the_bytes_that_are_sent() {
        const LEN: usize = 64 << 10;
        let id = JobId { connection: 0, slot: 0, generation: 0, part: 0 };
        for is_begun in [false, true] {
            let path = format!("/dev/shm/telpher-nvmf-{}-output-{is_begun}", std::process::id());
            let storage = MemoryStorage::create(path.as_ref(), MemoryOptions::fixed(1 << 20)).unwrap();
            let pieces = vec![Piece::Bytes(Segment::whole(vec![7; LEN]))];
            assert!(matches!(
                storage.start(id, StorageRequest::Write { start: 0, pieces, force: false }),
                Started::Done(Ok(_))
            ));
            let read = storage.start(id, StorageRequest::Read { start: 0, len: LEN as u64 });
            let Started::Done(Ok(segments)) = read else { panic!("memory answers at once") };
            let digests = Digests { header: true, data: true };
            let mut output = Outgoing::default();
            // A reply that was sent to its end, and one that waits.
            output.push(&[1; 24]);
            output.push_segment(Segment::whole(vec![2; 100]), true);
            output.push(&[3; 32]);
            output.sent(24 + 100);
            output.push(&[4; 24]);
            segments.into_iter().for_each(|segment| output.push_segment(segment, true));
            output.push(&digest(&[7; LEN]).to_le_bytes());
            output.push_pdu(Kind::CapsuleResp, 0, &[0; size_of::<CapsuleResp>()], 0, digests, 4);
            output.sent(32 + if is_begun { 24 + 100 } else { 0 });
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
            assert!(output.fail_lost(digests, Status::READ_ERROR) && output.has_lost());
            let bytes: Vec<u8> = output.slices().flatten().copied().collect();
            let header = if is_begun { 0 } else { 24 };
            let (data, rest) = bytes.split_at(header + LEN - if is_begun { 100 } else { 0 });
            assert!(data[header..].iter().all(|byte| *byte == 0));
            // What was sent is not known any more, so the digest stays.
            let expected = if is_begun { digest(&[7; LEN]) } else { digest(&[0; LEN]) };
            assert_eq!(rest[..DIGEST_BYTES], expected.to_le_bytes());
            let (response, sum) = rest[DIGEST_BYTES..].split_at(size_of::<CapsuleResp>());
            assert_eq!(response[response.len() - 2..], Status::READ_ERROR.word().to_le_bytes());
            assert_eq!(sum, digest(response).to_le_bytes());
            std::fs::remove_file(&path).unwrap();
        }
    }
}
