//! One requested operation: a descriptor with a 64-bit length, and the arithmetic of splitting and continuing it.
//!
//! A [`Request`] may have any length. A queue limits one descriptor, so a request is cut into [`Chunk`]s. After some
//! bytes were done, the request is the rest of itself (SPEC §8.3: each operation's continuation).

use crate::plan::limits::Limits;
use telpher_abi::{
    CompletionRecord, DELTA_ENTRY_BYTES, DIF_TUPLE_BYTES, Descriptor, DifBlock, Flags, MAX_DELTA_TRANSFER,
    MIN_MAX_DELTA_RECORD, OpFlags, Opcode,
};

/// An operation (copy, fill, compare, …) on raw addresses, as far as it is not done yet, and how far it has come.
///
/// Progress is counted in units of `len`: source bytes (destination bytes for fill and flush), bytes of the delta
/// record for apply delta, queues for drain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The descriptor of what no finished chunk covers yet, without policy flags, size and completion record.
    words: [u64; 8],
    /// The operation in `words`, decoded; it never changes.
    opcode: Opcode,
    /// The length of what no finished chunk covers yet.
    len: u64,
    /// The chunk that a device works on, or gets next.
    pub(crate) chunk: Option<Chunk>,
    /// Bytes of the original request before the rest (always 0 for a move that runs backward).
    pub(crate) base: u64,
    /// Bytes done, from either end.
    pub(crate) done: u64,
    /// Faults since the last progress.
    pub(crate) stalls: u32,
    /// Page of the last fault, and its faults since the last progress.
    pub(crate) page: (u64, u32),
    /// The furthest byte that a restarted operation (create delta) has reached.
    pub(crate) furthest: u32,
    /// A device did a part.
    pub(crate) device: bool,
    /// The CPU did a part.
    pub(crate) cpu: bool,
}

/// The part of a request that one descriptor does: `[start, start + whole)`. Of it, `[start + skip, start + skip +
/// len)` is still to be done. Only a memory move can have done bytes before or after the rest; all other operations
/// advance the request itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub(crate) start: u64,
    pub(crate) whole: u64,
    pub(crate) skip: u64,
    pub(crate) len: u64,
}

impl Chunk {
    /// True if it is all that is left of a request of `len`.
    #[inline]
    pub(crate) fn is_all_of(&self, len: u64) -> bool {
        self.start == 0 && self.whole == len
    }

    /// True if nothing of the chunk is done yet.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.skip == 0 && self.len == self.whole
    }
}

/// A range of memory that a request reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) written: bool,
}

impl Request {
    /// A request for `descriptor`, whose own size is ignored, over `len`.
    #[inline(always)]
    pub(crate) fn new(descriptor: Descriptor, len: u64) -> Self {
        let (page, furthest) = ((u64::MAX, 0), 0);
        let (words, opcode) = (descriptor.0, descriptor.opcode());
        Request {
            words,
            opcode,
            len,
            chunk: None,
            base: 0,
            done: 0,
            stalls: 0,
            page,
            furthest,
            device: false,
            cpu: false,
        }
    }

    /// The request that a complete descriptor makes.
    pub(crate) fn of(descriptor: Descriptor) -> Self {
        let len = match descriptor.opcode() {
            Opcode::Nop => 0,
            Opcode::Drain => 1,
            Opcode::ApplyDelta => u64::from(descriptor.delta_record_size()),
            _ => u64::from(descriptor.size()),
        };
        Request::new(descriptor, len)
    }

    /// Returns the descriptor without policy flags and completion record.
    #[inline]
    pub(crate) fn template(&self) -> Descriptor {
        Descriptor(self.words)
    }

    #[inline]
    pub(crate) fn opcode(&self) -> Opcode {
        self.opcode
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the bytes of the transfer, to compare with a threshold.
    pub(crate) fn transfer(&self) -> u64 {
        match self.opcode() {
            Opcode::ApplyDelta => u64::from(self.template().size()),
            Opcode::Nop | Opcode::Drain => 0,
            _ => self.len,
        }
    }

    /// Returns the data bytes of a DIF block.
    fn block(&self) -> u64 {
        u64::from(DifBlock::from_code(self.template().dif_flags()).bytes())
    }

    /// Returns the unit of which all progress is a multiple.
    #[inline]
    pub(crate) fn unit(&self) -> u64 {
        match self.opcode() {
            Opcode::DifInsert => self.block(),
            Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate => self.block() + u64::from(DIF_TUPLE_BYTES),
            Opcode::ApplyDelta => u64::from(DELTA_ENTRY_BYTES),
            _ => 1,
        }
    }

    /// True for a memory move that must run from its end: the destination begins inside the source.
    pub(crate) fn is_backward(&self) -> bool {
        let d = self.template();
        self.opcode() == Opcode::MemoryMove && d.dst() > d.src() && d.dst() - d.src() < self.len
    }

    /// True if source and destination of a memory move share bytes.
    pub(crate) fn overlaps(&self) -> bool {
        let d = self.template();
        self.opcode() == Opcode::MemoryMove && d.dst().abs_diff(d.src()) < self.len
    }

    /// Returns true if parts of the request may be done in any order and at the same time, with the same result as the
    /// whole. This holds if no part needs the result of another and no part reads what another writes.
    pub(crate) fn is_divisible(&self) -> bool {
        match self.opcode() {
            Opcode::MemoryMove => !self.overlaps(),
            Opcode::Fill | Opcode::Dualcast | Opcode::CacheFlush => true,
            // The first difference of the whole is the first difference of the first part that has one. An expected
            // result applies to the whole only.
            Opcode::Compare | Opcode::ComparePattern => self.expected().is_none(),
            _ => false,
        }
    }

    /// Returns the part `[start, start + len)` of a divisible request as a request that has not begun.
    pub(crate) fn part(&self, start: u64, len: u64) -> Request {
        debug_assert!(start.checked_add(len).is_some_and(|end| end <= self.len));
        let mut part = Request::new(self.template(), self.len);
        part.advance(start);
        part.len = len;
        part
    }

    /// Returns the address at whose page borders parts should meet: the destination, or the source if nothing is
    /// written.
    pub(crate) fn anchor(&self) -> u64 {
        let d = self.template();
        if self.opcode() == Opcode::ComparePattern { d.src() } else { d.dst() }
    }

    /// Returns true if the request writes memory besides its record, so that a cache hint is legal (SPEC Table 5-4).
    #[inline]
    pub(crate) fn writes(&self) -> bool {
        matches!(
            self.opcode(),
            Opcode::MemoryMove
                | Opcode::Fill
                | Opcode::CreateDelta
                | Opcode::ApplyDelta
                | Opcode::Dualcast
                | Opcode::CopyCrc
                | Opcode::DifInsert
                | Opcode::DifStrip
                | Opcode::DifUpdate
        )
    }

    /// Returns the ranges that the request reads or writes.
    pub(crate) fn ranges(&self) -> [Option<Range>; 3] {
        let d = self.template();
        let read = |address| Some(Range { address, len: self.len, written: false });
        let write = |address, len| Some(Range { address, len, written: true });
        match self.opcode() {
            Opcode::MemoryMove | Opcode::CopyCrc | Opcode::DifUpdate => [read(d.src()), write(d.dst(), self.len), None],
            Opcode::Fill => [None, write(d.dst(), self.len), None],
            Opcode::Compare => [read(d.src()), read(d.dst()), None],
            Opcode::ComparePattern | Opcode::CrcGeneration | Opcode::DifCheck => [read(d.src()), None, None],
            Opcode::CreateDelta => {
                [read(d.src()), read(d.dst()), write(d.delta_address(), u64::from(d.max_delta_size()))]
            }
            Opcode::ApplyDelta => [read(d.src()), write(d.dst(), u64::from(d.size())), None],
            Opcode::Dualcast => [read(d.src()), write(d.dst(), self.len), write(d.dst2(), self.len)],
            Opcode::DifInsert => [read(d.src()), write(d.dst(), self.dif_dest(self.len)), None],
            Opcode::DifStrip => [read(d.src()), write(d.dst(), self.dif_dest(self.len)), None],
            Opcode::CacheFlush => [None, read(d.dst()), None],
            _ => [None; 3],
        }
    }

    /// Returns the destination bytes for `n` source bytes of a DIF operation; `n` is whole blocks.
    pub(crate) fn dif_dest(&self, n: u64) -> u64 {
        let (block, tuple) = (self.block(), u64::from(DIF_TUPLE_BYTES));
        match self.opcode() {
            Opcode::DifInsert => n / block * (block + tuple),
            Opcode::DifStrip => n / (block + tuple) * block,
            _ => n,
        }
    }

    /// Returns the next chunk that one descriptor to this queue can do; `None` if the queue cannot do this request at
    /// all.
    #[inline]
    pub(crate) fn cut(&self, limits: &Limits) -> Option<Chunk> {
        if !self.suits(limits) {
            return None;
        }
        let whole = match self.opcode() {
            Opcode::Nop => 0,
            Opcode::Drain => 1,
            _ => match self.unit() {
                1 => self.len.min(limits.max_transfer),
                unit => self.len.min(limits.max_transfer / unit * unit),
            },
        };
        let start = if self.is_backward() { self.len - whole } else { 0 };
        Some(Chunk { start, whole, skip: 0, len: whole })
    }

    /// Returns true if the queue would accept the request, were it short enough. Source: SPEC §8.3, each operation's
    /// constraints.
    #[inline]
    fn suits(&self, limits: &Limits) -> bool {
        let d = self.template();
        let op = self.opcode();
        if !limits.operations.contains(op) {
            return false;
        }
        if matches!(op, Opcode::Nop | Opcode::Drain) {
            return true;
        }
        if self.len == 0 || limits.max_transfer < self.unit() {
            return false;
        }
        let delta_transfer = |len: u64| len.is_multiple_of(8) && len > 0 && len <= limits.max_transfer;
        match op {
            Opcode::MemoryMove => limits.gen_cap.overlapping_copy() || !self.overlaps(),
            Opcode::Fill => limits.gen_cap.fill_16() || !d.flags().contains(OpFlags::FILL_16),
            Opcode::CrcGeneration | Opcode::CopyCrc => limits.gen_cap.crc64() || !d.flags().contains(OpFlags::CRC64),
            Opcode::Dualcast => (d.dst() ^ d.dst2()) & 0xfff == 0,
            Opcode::CreateDelta => {
                delta_transfer(self.len)
                    && self.len <= u64::from(MAX_DELTA_TRANSFER)
                    && (d.src() | d.dst()).is_multiple_of(8)
                    && d.max_delta_size() >= MIN_MAX_DELTA_RECORD
                    && u64::from(d.max_delta_size()) <= limits.max_transfer
            }
            Opcode::ApplyDelta => {
                delta_transfer(u64::from(d.size()))
                    && d.dst().is_multiple_of(8)
                    && self.len.is_multiple_of(u64::from(DELTA_ENTRY_BYTES))
            }
            _ => true,
        }
    }

    /// Returns the descriptor for the rest of `chunk`, without policy flags and completion record.
    #[inline]
    pub(crate) fn descriptor(&self, chunk: &Chunk) -> Descriptor {
        let d = match chunk.start + chunk.skip {
            0 => self.template(),
            at => self.template_from(at),
        };
        // A chunk is never longer than `max_transfer`, which `Limits` keeps below 2^32.
        let len = u32::try_from(chunk.len).unwrap_or(u32::MAX);
        match self.opcode() {
            Opcode::Nop | Opcode::Drain => d,
            Opcode::ApplyDelta => d.with_delta_record_size(len),
            _ => d.with_size(len),
        }
    }

    /// Returns the template of the request without its first `at`.
    #[cold]
    fn template_from(&self, at: u64) -> Descriptor {
        let mut part = Request::new(self.template(), self.len);
        part.advance(at);
        part.template()
    }

    /// Drops the first `n` (a multiple of the unit) from the request; addresses and pattern follow.
    pub(crate) fn advance(&mut self, n: u64) {
        debug_assert!(n <= self.len);
        if n == 0 {
            return;
        }
        let d = self.template();
        // Wrapping: the device refuses an address past the end of the address space.
        let (src, dst) = (d.src().wrapping_add(n), d.dst().wrapping_add(n));
        let next = match self.opcode() {
            Opcode::MemoryMove | Opcode::CopyCrc | Opcode::DifUpdate | Opcode::Compare | Opcode::CreateDelta => {
                d.with_src(src).with_dst(dst)
            }
            Opcode::Fill => fill_phase(d.with_dst(dst), n),
            Opcode::ComparePattern => d.with_src(src).with_dst(rotated(d.dst(), n)),
            Opcode::Dualcast => d.with_src(src).with_dst(dst).with_dst2(d.dst2().wrapping_add(n)),
            Opcode::DifInsert | Opcode::DifStrip => d.with_src(src).with_dst(d.dst().wrapping_add(self.dif_dest(n))),
            Opcode::ApplyDelta | Opcode::CrcGeneration | Opcode::DifCheck => d.with_src(src),
            Opcode::CacheFlush => d.with_dst(dst),
            _ => d,
        };
        self.words = next.0;
        self.len -= n;
    }

    /// Drops the last `n` from the request (a memory move that ran backward).
    pub(crate) fn shorten(&mut self, n: u64) {
        self.len -= n;
    }

    /// Ends the request with its last chunk: nothing is left. Addresses and seed keep those of that chunk.
    #[inline]
    pub(crate) fn finish(&mut self) {
        self.len = 0;
        self.chunk = None;
    }

    /// Takes over what a record carries from one part to the next: checksum and tags. `n` is how much was done; a
    /// record that did nothing carries nothing.
    pub(crate) fn carry(&mut self, n: u64, record: &CompletionRecord) {
        if n == 0 {
            return;
        }
        let d = self.template();
        let source =
            |d: Descriptor| d.with_source_ref_tag(record.source_ref_tag()).with_source_app_tag(record.source_app_tag());
        let dest = |d: Descriptor| d.with_dest_ref_tag(record.dest_ref_tag()).with_dest_app_tag(record.dest_app_tag());
        let next = match self.opcode() {
            Opcode::CrcGeneration | Opcode::CopyCrc => {
                let flags = d.flags();
                let d = d.with_flags(flags - OpFlags::READ_SEED).with_crc_seed_address(0);
                if flags.contains(OpFlags::CRC64) {
                    d.with_crc64_seed(record.crc64())
                } else {
                    d.with_crc_seed(record.crc())
                }
            }
            Opcode::DifCheck | Opcode::DifStrip => source(d),
            Opcode::DifInsert => dest(d),
            Opcode::DifUpdate => source(dest(d)),
            _ => d,
        };
        self.words = next.0;
    }

    /// Returns the expected result if any other outcome counts as a failure (Check Result).
    pub(crate) fn expected(&self) -> Option<u8> {
        let d = self.template();
        d.flags().contains(Flags::CHECK_RESULT).then(|| d.expected_result())
    }
}

/// Returns the pattern rotated so that its byte `n mod 8` is byte 0.
fn rotated(pattern: u64, n: u64) -> u64 {
    // n mod 8 bytes are at most 56 bits.
    pattern.rotate_right(8 * u32::try_from(n % 8).unwrap_or(0))
}

fn fill_phase(d: Descriptor, n: u64) -> Descriptor {
    if !d.flags().contains(OpFlags::FILL_16) {
        return d.with_src(rotated(d.src(), n));
    }
    let pattern = u128::from(d.pattern_upper()) << 64 | u128::from(d.src());
    let pattern = pattern.rotate_right(8 * u32::try_from(n % 16).unwrap_or(0));
    let [low, high] = [pattern, pattern >> 64].map(|half| u64::try_from(half & u128::from(u64::MAX)).unwrap_or(0));
    d.with_src(low).with_pattern_upper(high)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn byte(d: Descriptor, i: usize) -> u8 {
        let mut pattern = d.src().to_le_bytes().to_vec();
        if d.flags().contains(OpFlags::FILL_16) {
            pattern.extend(d.pattern_upper().to_le_bytes());
        }
        pattern[i % pattern.len()]
    }

    #[test]
    fn a_fill_continues_in_phase_after_any_number_of_bytes() {
        let narrow = Descriptor::fill(0x0807_0605_0403_0201, 0x1000, 0);
        let wide = Descriptor::fill16([0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09], 0x1000, 0);
        for whole in [narrow, wide] {
            for n in 0..40 {
                let mut request = Request::new(whole, 64);
                request.advance(n);
                assert_eq!(request.template().dst(), 0x1000 + n);
                for i in 0..16 {
                    assert_eq!(byte(request.template(), i), byte(whole, usize::try_from(n).unwrap() + i), "after {n}");
                }
            }
        }
    }

    #[test]
    fn dif_destinations_advance_by_whole_blocks() {
        let strip = Request::new(Descriptor::dif(Opcode::DifStrip, 0x1000, 0x9000, 0), 520 * 4);
        let insert = Request::new(Descriptor::dif(Opcode::DifInsert, 0x1000, 0x9000, 0), 512 * 4);
        let (mut a, mut b) = (strip, insert);
        a.advance(520 * 3);
        b.advance(512 * 3);
        assert_eq!((a.template().src(), a.template().dst()), (0x1000 + 520 * 3, 0x9000 + 512 * 3));
        assert_eq!((b.template().src(), b.template().dst()), (0x1000 + 512 * 3, 0x9000 + 520 * 3));
    }
}
