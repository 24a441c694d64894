//! One requested operation: a descriptor with a 64-bit length, and the arithmetic of splitting and continuing it.
//!
//! A [`Request`] may have any length. A queue limits one descriptor, so a request is cut into [`Chunk`]s. After some
//! bytes were done, the request is the rest of itself (SPEC §8.3: each operation's continuation).

use crate::plan::limits::Limits;
use telpher_abi::{
    CompletionRecord, ComputeResult, DELTA_ENTRY_BYTES, DIF_TUPLE_BYTES, DataType, Descriptor, DifBlock, Flags,
    MAX_DELTA_TRANSFER, MIN_MAX_DELTA_RECORD, OpFlags, Opcode, SglFormat,
};
use telpher_mem::PAGE_BYTES;

/// An operation (copy, fill, compare, …) on raw addresses, as far as it is not done yet, and how far it has come.
///
/// Progress is counted in units of `len`: source bytes (destination bytes for fill and flush, bytes of all blocks for
/// operations with a list), bytes of the delta record for apply delta, queues for drain.
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
    /// The furthest byte (create delta) or list entry (gather reduce) that a restarted operation has reached.
    pub(crate) furthest: u32,
    /// What happened to any of the numbers computed before the rest.
    pub(crate) seen: ComputeResult,
    /// Bytes of the memory with the blocks of a list.
    memory: u64,
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

/// The longest region of one Translation Fetch: whole pages in 32 bits.
const LONGEST_REGION: u64 = u32::MAX as u64 / PAGE_BYTES * PAGE_BYTES;

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
            seen: ComputeResult::empty(),
            memory: 0,
            device: false,
            cpu: false,
        }
    }

    /// The request that a complete descriptor makes.
    pub(crate) fn of(descriptor: Descriptor) -> Self {
        let size = u64::from(descriptor.size());
        let len = match descriptor.opcode() {
            Opcode::Nop | Opcode::UpdateWindow => 0,
            Opcode::Drain => 1,
            Opcode::ApplyDelta => u64::from(descriptor.delta_record_size()),
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast => {
                size * Self::element_bytes(&descriptor).0
            }
            // Its size is the number of elements of a block.
            Opcode::GatherReduce => {
                u64::from(descriptor.sgl_size()).saturating_mul(Request::new(descriptor, 0).list_block())
            }
            _ => size,
        };
        Request::new(descriptor, len)
    }

    /// Says how long the memory is in which the blocks of a list lie.
    pub(crate) fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
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
            Opcode::Nop | Opcode::Drain | Opcode::UpdateWindow => 0,
            _ => self.len,
        }
    }

    /// Returns the data bytes of a DIF block.
    fn block(&self) -> u64 {
        u64::from(DifBlock::from_code(self.template().dif_flags()).bytes())
    }

    /// Returns the bytes of an element of the sources, and of the destinations. A type that does not exist counts as a
    /// byte: only a raw descriptor can have one, and the device refuses it.
    fn element_bytes(d: &Descriptor) -> (u64, u64) {
        let bytes = |code| DataType::from_code(code).map_or(1, |data_type| u64::from(data_type.bytes()));
        (bytes(d.input_type_code()), bytes(d.output_type_code()))
    }

    /// Returns the bytes of each block of a list.
    pub(crate) fn list_block(&self) -> u64 {
        let d = self.template();
        let elements = if self.opcode() == Opcode::GatherReduce { d.size() } else { d.element_count() };
        (u64::from(elements) * Self::element_bytes(&d).0).max(1)
    }

    /// Returns the bytes of an entry of the list.
    fn entry_bytes(&self) -> u64 {
        SglFormat::from_code(self.template().sgl_format_code()).map_or(1, |format| u64::from(format.entry_bytes()))
    }

    /// Returns the bytes of the list's part that names the next `n` bytes of blocks.
    pub(crate) fn list_bytes(&self, n: u64) -> u64 {
        n / self.list_block() * self.entry_bytes()
    }

    /// Returns the bytes of the results of `n` source bytes of numbers.
    pub(crate) fn result_bytes(&self, n: u64) -> u64 {
        let d = self.template();
        let (input, output) = Self::element_bytes(&d);
        if self.opcode() == Opcode::GatherReduce { u64::from(d.size()) * output } else { n / input * output }
    }

    /// Returns the most pages that one step of progress may need: each operand of an element may straddle two pages. A
    /// block is done as a whole, with its list entry and its place.
    pub(crate) fn pages_per_step(&self) -> u32 {
        let pages = match self.opcode() {
            Opcode::GatherReduce | Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => {
                2 * (self.list_block() / PAGE_BYTES + 2) + 2
            }
            _ => 8,
        };
        u32::try_from(pages).unwrap_or(u32::MAX)
    }

    /// Returns the unit of which all progress is a multiple.
    #[inline]
    pub(crate) fn unit(&self) -> u64 {
        match self.opcode() {
            Opcode::DifInsert | Opcode::DixGenerate => self.block(),
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast => Self::element_bytes(&self.template()).0,
            Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => self.list_block(),
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

    /// True for a memory move that ends when its bytes are in memory.
    #[inline]
    pub(crate) fn is_durable(&self) -> bool {
        self.template().flags().contains(Flags::DESTINATION_READBACK)
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
                | Opcode::DixGenerate
                | Opcode::TypeConversion
                | Opcode::Reduce
                | Opcode::ReduceDualcast
                | Opcode::GatherReduce
                | Opcode::GatherCopy
                | Opcode::ScatterCopy
                | Opcode::ScatterFill
                | Opcode::InterDomainCopy
                | Opcode::InterDomainFill
        )
    }

    /// Returns true if only one queue can do the request: a handle means something else to another device.
    #[inline]
    pub(crate) fn is_bound_to_queue(&self) -> bool {
        matches!(
            self.opcode(),
            Opcode::InterDomainCopy
                | Opcode::InterDomainFill
                | Opcode::InterDomainCompare
                | Opcode::InterDomainComparePattern
                | Opcode::UpdateWindow
        )
    }

    /// Returns the ranges of this process' memory that the request reads or writes. The last one of an operation with a
    /// list is all memory in which its blocks may lie.
    pub(crate) fn ranges(&self) -> [Option<Range>; 4] {
        let d = self.template();
        let len = self.len;
        let read = |address, len| Some(Range { address, len, written: false });
        let write = |address, len| Some(Range { address, len, written: true });
        match self.opcode() {
            Opcode::MemoryMove | Opcode::CopyCrc | Opcode::DifUpdate => {
                [read(d.src(), len), write(d.dst(), len), None, None]
            }
            Opcode::Fill => [None, write(d.dst(), len), None, None],
            Opcode::Compare => [read(d.src(), len), read(d.dst(), len), None, None],
            Opcode::ComparePattern | Opcode::CrcGeneration | Opcode::DifCheck => [read(d.src(), len), None, None, None],
            Opcode::CreateDelta => {
                let record = write(d.delta_address(), u64::from(d.max_delta_size()));
                [read(d.src(), len), read(d.dst(), len), record, None]
            }
            Opcode::ApplyDelta => [read(d.src(), len), write(d.dst(), u64::from(d.size())), None, None],
            Opcode::Dualcast => [read(d.src(), len), write(d.dst(), len), write(d.dst2(), len), None],
            Opcode::DifInsert | Opcode::DifStrip | Opcode::DixGenerate => {
                [read(d.src(), len), write(d.dst(), self.dif_dest(len)), None, None]
            }
            Opcode::TypeConversion => [read(d.src(), len), write(d.dst(), self.result_bytes(len)), None, None],
            Opcode::Reduce | Opcode::ReduceDualcast => {
                let result = self.result_bytes(len);
                let second = write(d.reduce_dst2(), result).filter(|_| self.opcode() == Opcode::ReduceDualcast);
                [read(d.src(), len), read(d.dst(), len), write(d.reduce_dst(), result), second]
            }
            Opcode::GatherCopy | Opcode::GatherReduce => {
                let result = if self.opcode() == Opcode::GatherCopy { len } else { self.result_bytes(len) };
                let list = read(d.src(), self.list_bytes(len));
                [list, write(d.dst(), result), read(d.sgl_base(), self.memory), None]
            }
            Opcode::ScatterCopy => {
                let list = read(d.dst(), self.list_bytes(len));
                [read(d.src(), len), list, write(d.sgl_base(), self.memory), None]
            }
            Opcode::ScatterFill => [read(d.dst(), self.list_bytes(len)), write(d.sgl_base(), self.memory), None, None],
            Opcode::CacheFlush => [None, read(d.dst(), len), None, None],
            Opcode::TranslationFetch => [read(d.src(), len), None, None, None],
            Opcode::InterDomainCopy | Opcode::InterDomainCompare => {
                let has = |flag| !d.flags().contains(flag);
                let second = Range { address: d.dst(), len, written: self.writes() };
                let first = read(d.src(), len).filter(|_| has(OpFlags::ALTERNATE_SOURCE));
                [first, Some(second).filter(|_| has(OpFlags::ALTERNATE_DESTINATION)), None, None]
            }
            _ => [None; 4],
        }
    }

    /// Returns the destination bytes for `n` source bytes of a DIF operation; `n` is whole blocks.
    pub(crate) fn dif_dest(&self, n: u64) -> u64 {
        let (block, tuple) = (self.block(), u64::from(DIF_TUPLE_BYTES));
        match self.opcode() {
            Opcode::DifInsert => n / block * (block + tuple),
            Opcode::DifStrip => n / (block + tuple) * block,
            Opcode::DixGenerate => n / block * tuple,
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
            Opcode::Nop | Opcode::UpdateWindow => 0,
            Opcode::Drain => 1,
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast => {
                let (input, output) = Self::element_bytes(&self.template());
                self.len.min(limits.max_transfer / input.max(output) * input)
            }
            Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => {
                let block = self.list_block();
                self.len.min((limits.max_transfer / block).min(limits.longest_list()) * block)
            }
            // It moves no bytes, so the queue's limit does not apply (SPEC §8.3.11).
            Opcode::TranslationFetch => self.len.min(LONGEST_REGION),
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
        if matches!(op, Opcode::Nop | Opcode::Drain | Opcode::UpdateWindow) {
            return true;
        }
        if self.len == 0 || limits.max_transfer < self.unit() {
            return false;
        }
        let delta_transfer = |len: u64| len.is_multiple_of(8) && len > 0 && len <= limits.max_transfer;
        match op {
            Opcode::MemoryMove => {
                (limits.gen_cap.overlapping_copy() || !self.overlaps())
                    && (limits.gen_cap.destination_readback() || !self.is_durable())
            }
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
            Opcode::DixGenerate => d.dst().is_multiple_of(u64::from(DIF_TUPLE_BYTES)),
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast => {
                let (input, output) = Self::element_bytes(&d);
                let (sources, results) = match op {
                    Opcode::TypeConversion => (d.src(), d.dst()),
                    Opcode::Reduce => (d.src() | d.dst(), d.reduce_dst()),
                    _ => (d.src() | d.dst(), d.reduce_dst() | d.reduce_dst2()),
                };
                sources.is_multiple_of(input)
                    && results.is_multiple_of(output)
                    && output <= limits.max_transfer
                    && (op != Opcode::ReduceDualcast || (d.reduce_dst() ^ d.reduce_dst2()) & 0xfff == 0)
            }
            Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => {
                limits.has_list_format(d.sgl_format_code())
            }
            Opcode::GatherReduce => {
                let (input, output) = Self::element_bytes(&d);
                let (block, most) = (self.list_block(), limits.longest_gather_block());
                limits.has_list_format(d.sgl_format_code())
                    && (d.sgl_base().is_multiple_of(input) && d.dst().is_multiple_of(output))
                    && self.len <= limits.max_transfer
                    && u64::from(d.sgl_size()) <= limits.longest_list()
                    && block <= most
                    && self.result_bytes(self.len) <= most.min(limits.max_transfer)
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
            Opcode::Nop | Opcode::Drain | Opcode::GatherReduce | Opcode::UpdateWindow => d,
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast => {
                // Shorter than `len`.
                d.with_size(u32::try_from(chunk.len / self.unit()).unwrap_or(u32::MAX))
            }
            Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => {
                // `cut` keeps it at the queue's longest list, whose number of entries has 16 bits.
                d.with_size(len).with_sgl_size(u16::try_from(chunk.len / self.unit()).unwrap_or(u16::MAX))
            }
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
            Opcode::MemoryMove
            | Opcode::CopyCrc
            | Opcode::DifUpdate
            | Opcode::Compare
            | Opcode::CreateDelta
            | Opcode::InterDomainCopy
            | Opcode::InterDomainCompare => d.with_src(src).with_dst(dst),
            Opcode::Fill | Opcode::InterDomainFill => fill_phase(d.with_dst(dst), n),
            Opcode::ComparePattern | Opcode::InterDomainComparePattern => d.with_src(src).with_dst(rotated(d.dst(), n)),
            Opcode::Dualcast => d.with_src(src).with_dst(dst).with_dst2(d.dst2().wrapping_add(n)),
            Opcode::DifInsert | Opcode::DifStrip => d.with_src(src).with_dst(d.dst().wrapping_add(self.dif_dest(n))),
            Opcode::DixGenerate => d.with_src(src).with_dst(d.dst().wrapping_add(self.dif_dest(n))),
            Opcode::ApplyDelta | Opcode::CrcGeneration | Opcode::DifCheck | Opcode::TranslationFetch => d.with_src(src),
            Opcode::CacheFlush => d.with_dst(dst),
            Opcode::TypeConversion => d.with_src(src).with_dst(d.dst().wrapping_add(self.result_bytes(n))),
            Opcode::Reduce => {
                d.with_src(src).with_dst(dst).with_reduce_dst(d.reduce_dst().wrapping_add(self.result_bytes(n)))
            }
            Opcode::ReduceDualcast => {
                let results = self.result_bytes(n);
                let d = d.with_src(src).with_dst(dst).with_reduce_dst(d.reduce_dst().wrapping_add(results));
                d.with_reduce_dst2(d.reduce_dst2().wrapping_add(results))
            }
            Opcode::GatherCopy => d.with_src(d.src().wrapping_add(self.list_bytes(n))).with_dst(dst),
            Opcode::ScatterCopy => d.with_src(src).with_dst(d.dst().wrapping_add(self.list_bytes(n))),
            Opcode::ScatterFill => d.with_dst(d.dst().wrapping_add(self.list_bytes(n))),
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

    /// Takes over what a record carries from one part to the next: checksum, tags, and what happened to numbers. `n` is
    /// how much was done; a record that did nothing carries nothing.
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
            Opcode::DifInsert | Opcode::DixGenerate => dest(d),
            Opcode::DifUpdate => source(dest(d)),
            Opcode::TypeConversion | Opcode::Reduce | Opcode::ReduceDualcast | Opcode::GatherReduce => {
                self.seen |= ComputeResult::from_bits_retain(record.result());
                d
            }
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

    /// Regression: it counted as long as its number of elements, and a fault record with more bytes than that was taken
    /// for nonsense.
    #[test]
    fn a_gather_reduce_is_as_long_as_its_blocks() {
        use telpher_abi::ComputeType;
        let list = (0x1000, 3);
        let d = Descriptor::gather_reduce(ComputeType::Add, list, SglFormat::Offset64, 0x2000, 0x9000, 5);
        // Five elements of two bytes, three times; the types are the lowest bits of byte 56.
        let mut d = Descriptor(d.0);
        d.0[7] |= u64::from(DataType::Int16.code()) | u64::from(DataType::Int16.code()) << 4;
        let request = Request::of(d);
        assert_eq!(request.len(), 3 * 5 * 2);
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
