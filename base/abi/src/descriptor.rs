//! The 64-byte work descriptor. Source: SPEC §8.1 and §8.3; field offsets are checked against UAPI
//! `struct dsa_hw_desc`.

use crate::{ComputeType, DataType, Flags, OpFlags, Opcode, SglFormat, WindowFlags};

/// The 64 bytes of a request to a device, as written to a portal or stored in a batch list.
///
/// Layout only: any bit pattern is a `Descriptor`, and the device decides what is legal. Addresses are virtual
/// addresses of the submitter, sizes are bytes.
///
/// ```
/// use telpher_abi::{Descriptor, Flags, Opcode};
/// let d = Descriptor::memory_move(0x1000, 0x2000, 64).with_record(0x3000);
/// assert_eq!(d.opcode(), Opcode::MemoryMove);
/// assert!(d.flags().contains(Flags::REQUEST_COMPLETION_RECORD));
/// assert_eq!(d.to_bytes()[7], 0x03);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(64))]
pub struct Descriptor(/** The eight little-endian words. */ pub [u64; 8]);

const _: () = assert!(size_of::<Descriptor>() == 64 && align_of::<Descriptor>() == 64);

/// Bit numbers below count from bit 0 of byte 0: byte 16 is bits 128 to 135.
impl Descriptor {
    /// Creates a descriptor of `opcode` with all other bits zero.
    #[must_use]
    #[inline]
    pub const fn new(opcode: Opcode) -> Self {
        Descriptor([(opcode.code() as u64) << 56, 0, 0, 0, 0, 0, 0, 0])
    }

    /// Decodes 64 bytes.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        let mut words = [0; 8];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        Descriptor(words)
    }

    /// Returns the 64 bytes of the layout.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (word, chunk) in self.0.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *chunk = word.to_le_bytes();
        }
        bytes
    }

    /// Returns the operation (byte 7).
    #[must_use]
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        Opcode::from_code((self.0[0] >> 56) as u8)
    }

    /// Returns the flags (bytes 4–6); unknown bits are kept.
    #[must_use]
    #[inline]
    pub const fn flags(&self) -> Flags {
        Flags::from_bits_retain((self.0[0] >> 32) as u32 & 0x00ff_ffff)
    }

    /// Replaces the flags.
    #[must_use]
    #[inline]
    pub const fn with_flags(mut self, flags: Flags) -> Self {
        self.0[0] = self.0[0] & !(0x00ff_ffff << 32) | ((flags.bits() & 0x00ff_ffff) as u64) << 32;
        self
    }

    /// Adds `flags` to the present flags.
    #[must_use]
    #[inline]
    pub const fn and_flags(self, flags: Flags) -> Self {
        let all = self.flags().union(flags);
        self.with_flags(all)
    }

    /// Requests a completion record at `address` (which must be 32-byte aligned to be accepted).
    #[must_use]
    #[inline]
    pub const fn with_record(self, address: u64) -> Self {
        let mut d = self.and_flags(Flags::RECORD);
        d.0[1] = address;
        d
    }
}

bit_fields!(Descriptor {
    /// The raw byte 7.
    opcode_code / with_opcode_code: u8 [56..63];
    /// Process address space identifier (bits 19:0 of the trusted dword). Set by the CPU or the device, not by the
    /// program.
    pasid / with_pasid: u32 [0..19];
    /// Bits 30:20 of the trusted dword; reserved.
    trusted_reserved / with_trusted_reserved: u16 [20..30];
    /// Supervisor privilege (bit 31 of the trusted dword).
    privileged / with_privileged: bool [31..31];
    /// Address of the completion record; reserved if the address-valid flag is 0.
    completion_address / with_completion_address: u64 [64..127];
    /// Source, source 1, pattern, descriptor list or first readback address (byte 16).
    src / with_src: u64 [128..191];
    /// Destination, source 2, compare pattern or second readback address (byte 24).
    dst / with_dst: u64 [192..255];
    /// Transfer or region size in bytes, descriptor count, or element count (byte 32).
    size / with_size: u32 [256..287];
    /// Completion interrupt handle (byte 36).
    interrupt_handle / with_interrupt_handle: u16 [288..303];
    /// Compare: expected result, bit 0 (byte 40).
    expected_result / with_expected_result: u8 [320..327];
    /// Fill: bytes 8–15 of a 16-byte pattern (byte 40).
    pattern_upper / with_pattern_upper: u64 [320..383];
    /// Create Delta: address of the delta record (byte 40).
    delta_address / with_delta_address: u64 [320..383];
    /// Create Delta: largest delta record in bytes (byte 48).
    max_delta_size / with_max_delta_size: u32 [384..415];
    /// Create Delta: expected result mask, bits 2:0 (byte 56).
    expected_result_mask / with_expected_result_mask: u8 [448..455];
    /// Apply Delta: delta record size in bytes (byte 40).
    delta_record_size / with_delta_record_size: u32 [320..351];
    /// Dualcast: second destination (byte 40).
    dst2 / with_dst2: u64 [320..383];
    /// CRC: 32-bit seed (byte 40).
    crc_seed / with_crc_seed: u32 [320..351];
    /// CRC64: 64-bit seed (byte 40).
    crc64_seed / with_crc64_seed: u64 [320..383];
    /// CRC: address of the seed (byte 48).
    crc_seed_address / with_crc_seed_address: u64 [384..447];
    /// DIF: source flags (byte 40).
    source_dif_flags / with_source_dif_flags: u8 [320..327];
    /// DIF: destination flags (byte 41).
    dest_dif_flags / with_dest_dif_flags: u8 [328..335];
    /// DIF: block size and guard flags (byte 42).
    dif_flags / with_dif_flags: u8 [336..343];
    /// DIF Check, Strip, Update: source reference tag seed (byte 48).
    source_ref_tag / with_source_ref_tag: u32 [384..415];
    /// DIF Check, Strip, Update: source application tag mask (byte 52).
    source_app_tag_mask / with_source_app_tag_mask: u16 [416..431];
    /// DIF Check, Strip, Update: source application tag seed (byte 54).
    source_app_tag / with_source_app_tag: u16 [432..447];
    /// DIF Insert, Update: destination reference tag seed (byte 56).
    dest_ref_tag / with_dest_ref_tag: u32 [448..479];
    /// DIF Insert, Update: destination application tag mask (byte 60).
    dest_app_tag_mask / with_dest_app_tag_mask: u16 [480..495];
    /// DIF Insert, Update: destination application tag seed (byte 62).
    dest_app_tag / with_dest_app_tag: u16 [496..511];
    /// Translation Fetch: distance of two requests in bytes (byte 48; needs `GENCAP[7]`).
    region_stride / with_region_stride: u32 [384..415];
    /// Update Window: permissions, enable and mode, a [`WindowFlags`](crate::WindowFlags) (byte 61).
    window_flags / with_window_flags: u8 [488..495];
    /// Operations with alternate address spaces: the IDPT handle of source or source 1, or handle 1 of an ID selector
    /// (byte 60).
    handle_1 / with_handle_1: u16 [480..495];
    /// The IDPT handle of destination or source 2, of the window to update, or handle 2 of an ID selector (byte 62).
    handle_2 / with_handle_2: u16 [496..511];
    /// Reduce, Reduce with Dualcast: destination 1 (byte 40).
    reduce_dst / with_reduce_dst: u64 [320..383];
    /// Reduce with Dualcast: destination 2 (byte 48).
    reduce_dst2 / with_reduce_dst2: u64 [384..447];
    /// Gather and scatter: elements in each buffer of the list (byte 40).
    element_count / with_element_count: u32 [320..351];
    /// Gather and scatter: entries of the scatter-gather list (byte 44).
    sgl_size / with_sgl_size: u16 [352..367];
    /// Gather and scatter: base address of the list's offsets or indexes (byte 48).
    sgl_base / with_sgl_base: u64 [384..447];
    /// Input type, a [`DataType`](crate::DataType) code (byte 56, bits 3:0).
    input_type_code / with_input_type_code: u8 [448..451];
    /// Output type, a [`DataType`](crate::DataType) code (byte 56, bits 7:4).
    output_type_code / with_output_type_code: u8 [452..455];
    /// Compute type, a [`ComputeType`](crate::ComputeType) code (byte 57, bits 3:0).
    compute_type_code / with_compute_type_code: u8 [456..459];
    /// [`ComputeFlags`](crate::ComputeFlags), 12 bits (byte 57, bits 7:4, and byte 58; the place is inferred).
    compute_flags / with_compute_flags: u16 [460..471];
    /// Reduce operations: the handle of each operand, two bits each: source 1, source 2, destination 1, destination 2;
    /// 0 none, 1 handle 1, 2 handle 2 (byte 59).
    id_selector / with_id_selector: u8 [472..479];
    /// Gather and scatter: format of the list, an [`SglFormat`](crate::SglFormat) code (byte 59, bits 7:4).
    sgl_format_code / with_sgl_format_code: u8 [476..479];
});

/// One constructor per operation; the `with_` and `and_` functions add completion record, cache hint and further flags.
impl Descriptor {
    /// No operation.
    #[must_use]
    pub const fn nop() -> Self {
        Self::new(Opcode::Nop)
    }

    #[inline]
    const fn three(opcode: Opcode, src: u64, dst: u64, size: u32) -> Self {
        let mut d = Self::new(opcode);
        d.0[2] = src;
        d.0[3] = dst;
        d.0[4] = size as u64;
        d
    }

    /// `count` descriptors at `list` (64-byte aligned).
    #[must_use]
    #[inline]
    pub const fn batch(list: u64, count: u32) -> Self {
        Self::three(Opcode::Batch, list, 0, count)
    }

    /// Completes when all descriptors submitted to the same queue before it have completed.
    #[must_use]
    pub const fn drain() -> Self {
        Self::new(Opcode::Drain)
    }

    /// Copies `size` bytes; the ranges may overlap.
    #[must_use]
    #[inline]
    pub const fn memory_move(src: u64, dst: u64, size: u32) -> Self {
        Self::three(Opcode::MemoryMove, src, dst, size)
    }

    /// Repeats the 8 bytes of `pattern` (byte 0 first) over `size` bytes at `dst`.
    #[must_use]
    pub const fn fill(pattern: u64, dst: u64, size: u32) -> Self {
        Self::three(Opcode::Fill, pattern, dst, size)
    }

    /// Repeats 16 bytes, `pattern[0]` first, over `size` bytes at `dst`.
    #[must_use]
    pub const fn fill16(pattern: [u64; 2], dst: u64, size: u32) -> Self {
        let mut d = Self::three(Opcode::Fill, pattern[0], dst, size).and_flags(OpFlags::FILL_16);
        d.0[5] = pattern[1];
        d
    }

    /// Compares two ranges of `size` bytes.
    #[must_use]
    pub const fn compare(src1: u64, src2: u64, size: u32) -> Self {
        Self::three(Opcode::Compare, src1, src2, size)
    }

    /// Compares `size` bytes with a repeated 8-byte pattern.
    #[must_use]
    pub const fn compare_pattern(src: u64, pattern: u64, size: u32) -> Self {
        Self::three(Opcode::ComparePattern, src, pattern, size)
    }

    /// Writes to `delta` (at most `max_delta` bytes) the changes that turn `src1` into `src2`.
    #[must_use]
    pub const fn create_delta(src1: u64, src2: u64, size: u32, delta: u64, max_delta: u32) -> Self {
        let mut d = Self::three(Opcode::CreateDelta, src1, src2, size);
        d.0[5] = delta;
        d.0[6] = max_delta as u64;
        d
    }

    /// Applies the `delta_size` bytes of the record at `delta` to the `size` bytes at `dst`.
    #[must_use]
    pub const fn apply_delta(delta: u64, delta_size: u32, dst: u64, size: u32) -> Self {
        let mut d = Self::three(Opcode::ApplyDelta, delta, dst, size);
        d.0[5] = delta_size as u64;
        d
    }

    /// Copies `size` bytes to two destinations, equal in their low 12 address bits.
    #[must_use]
    pub const fn dualcast(src: u64, dst1: u64, dst2: u64, size: u32) -> Self {
        let mut d = Self::three(Opcode::Dualcast, src, dst1, size);
        d.0[5] = dst2;
        d
    }

    /// CRC32C of `size` bytes, continued from `seed` (0 to start).
    #[must_use]
    #[inline]
    pub const fn crc_generation(src: u64, size: u32, seed: u32) -> Self {
        let mut d = Self::three(Opcode::CrcGeneration, src, 0, size);
        d.0[5] = seed as u64;
        d
    }

    /// Copies and computes the CRC32C in one pass.
    #[must_use]
    #[inline]
    pub const fn copy_crc(src: u64, dst: u64, size: u32, seed: u32) -> Self {
        let mut d = Self::three(Opcode::CopyCrc, src, dst, size);
        d.0[5] = seed as u64;
        d
    }

    /// Requests the translations of `size` bytes at `address`; moves no data.
    #[must_use]
    pub const fn translation_fetch(address: u64, size: u32) -> Self {
        Self::three(Opcode::TranslationFetch, address, 0, size)
    }

    /// CRC64 of `size` bytes, continued from `seed` (0 to start).
    #[must_use]
    pub const fn crc64_generation(src: u64, size: u32, seed: u64) -> Self {
        let mut d = Self::three(Opcode::CrcGeneration, src, 0, size).and_flags(OpFlags::CRC64);
        d.0[5] = seed;
        d
    }

    /// Copies and computes the CRC64 in one pass.
    #[must_use]
    pub const fn copy_crc64(src: u64, dst: u64, size: u32, seed: u64) -> Self {
        let mut d = Self::three(Opcode::CopyCrc, src, dst, size).and_flags(OpFlags::CRC64);
        d.0[5] = seed;
        d
    }

    /// Replaces base, size, permissions, enable and mode of the window of the IDPT entry `handle`.
    #[must_use]
    pub const fn update_window(handle: u16, base: u64, size: u64, flags: WindowFlags) -> Self {
        let mut d = Self::three(Opcode::UpdateWindow, base, size, 0);
        d.0[7] = (flags.bits() as u64) << 40 | (handle as u64) << 48;
        d
    }

    /// Copies `size` bytes between address spaces. An operand with a handle is accessed by that IDPT entry, an operand
    /// without one in the submitter's own space.
    #[must_use]
    pub const fn inter_domain_copy(
        src: u64,
        src_handle: Option<u16>,
        dst: u64,
        dst_handle: Option<u16>,
        size: u32,
    ) -> Self {
        Self::three(Opcode::InterDomainCopy, src, dst, size).alternate(src_handle, dst_handle)
    }

    /// Repeats the 8 bytes of `pattern` over `size` bytes at `dst` in the address space of an IDPT entry.
    #[must_use]
    pub const fn inter_domain_fill(pattern: u64, dst: u64, dst_handle: u16, size: u32) -> Self {
        Self::three(Opcode::InterDomainFill, pattern, dst, size).alternate(None, Some(dst_handle))
    }

    /// Compares `size` bytes of two address spaces.
    #[must_use]
    pub const fn inter_domain_compare(
        src1: u64,
        handle_1: Option<u16>,
        src2: u64,
        handle_2: Option<u16>,
        size: u32,
    ) -> Self {
        Self::three(Opcode::InterDomainCompare, src1, src2, size).alternate(handle_1, handle_2)
    }

    /// Compares `size` bytes in the address space of an IDPT entry with a repeated 8-byte pattern.
    #[must_use]
    pub const fn inter_domain_compare_pattern(src: u64, handle: u16, pattern: u64, size: u32) -> Self {
        Self::three(Opcode::InterDomainComparePattern, src, pattern, size).alternate(Some(handle), None)
    }

    /// Names the IDPT entries of source (or source 1) and destination (or source 2), and sets their flags.
    #[must_use]
    pub const fn alternate(mut self, first: Option<u16>, second: Option<u16>) -> Self {
        if let Some(handle) = first {
            self.0[7] |= (handle as u64) << 32;
            self = self.and_flags(OpFlags::ALTERNATE_SOURCE);
        }
        if let Some(handle) = second {
            self.0[7] |= (handle as u64) << 48;
            self = self.and_flags(OpFlags::ALTERNATE_DESTINATION);
        }
        self
    }

    /// Flushes every cache line that `size` bytes at `address` touch.
    #[must_use]
    pub const fn cache_flush(address: u64, size: u32) -> Self {
        Self::three(Opcode::CacheFlush, 0, address, size)
    }

    /// Converts `elements` numbers at `src` to `dst`; types and options are added by the `with_` functions.
    #[must_use]
    pub const fn type_conversion(src: u64, dst: u64, elements: u32) -> Self {
        Self::three(Opcode::TypeConversion, src, dst, elements)
    }

    /// Computes `elements` numbers at `dst` from those at `src1` and `src2`; types and options are added by the `with_`
    /// functions.
    #[must_use]
    pub const fn reduce(compute: ComputeType, src1: u64, src2: u64, dst: u64, elements: u32) -> Self {
        let mut d = Self::three(Opcode::Reduce, src1, src2, elements);
        d.0[5] = dst;
        d.0[7] = (compute.code() as u64) << 8;
        d
    }

    /// As [`reduce`](Self::reduce), to two destinations that are equal in their low 12 address bits.
    #[must_use]
    pub const fn reduce_dualcast(compute: ComputeType, src1: u64, src2: u64, dst: [u64; 2], elements: u32) -> Self {
        let mut d = Self::three(Opcode::ReduceDualcast, src1, src2, elements);
        d.0[5] = dst[0];
        d.0[6] = dst[1];
        d.0[7] = (compute.code() as u64) << 8;
        d
    }

    /// Copies the blocks of `block` bytes that the list at `list` names, relative to `base`, to `dst`, one after the
    /// other: `size` bytes in all.
    #[must_use]
    pub const fn gather_copy(list: u64, format: SglFormat, base: u64, block: u32, dst: u64, size: u32) -> Self {
        Self::three(Opcode::GatherCopy, list, dst, size).blocks(format, base, block, size)
    }

    /// Copies the `size` bytes at `src` to blocks of `block` bytes that the list at `list` names, relative to `base`.
    #[must_use]
    pub const fn scatter_copy(src: u64, list: u64, format: SglFormat, base: u64, block: u32, size: u32) -> Self {
        Self::three(Opcode::ScatterCopy, src, list, size).blocks(format, base, block, size)
    }

    /// Repeats the 8 bytes of `pattern` over each block of `block` bytes that the list at `list` names, relative to
    /// `base`: `size` bytes in all.
    #[must_use]
    pub const fn scatter_fill(pattern: u64, list: u64, format: SglFormat, base: u64, block: u32, size: u32) -> Self {
        Self::three(Opcode::ScatterFill, pattern, list, size).blocks(format, base, block, size)
    }

    /// Computes `elements` numbers at `dst` from those of all `entries` blocks that the list at `list` names, relative
    /// to `base`; types and options are added by the `with_` functions.
    #[must_use]
    pub const fn gather_reduce(
        compute: ComputeType,
        (list, entries): (u64, u16),
        format: SglFormat,
        base: u64,
        dst: u64,
        elements: u32,
    ) -> Self {
        let mut d = Self::three(Opcode::GatherReduce, list, dst, elements);
        d.0[5] = (entries as u64) << 32;
        d.0[6] = base;
        d.0[7] = (compute.code() as u64) << 8 | (format.code() as u64) << 28;
        d
    }

    /// Sets the fields of blocks of `block` bytes that a list names; all of them have `size` bytes.
    const fn blocks(mut self, format: SglFormat, base: u64, block: u32, size: u32) -> Self {
        let entries = match size.checked_div(block) {
            Some(entries) => entries & 0xffff,
            None => 0,
        };
        self.0[5] = block as u64 | (entries as u64) << 32;
        self.0[6] = base;
        self.0[7] = DataType::Int8.code() as u64 | (format.code() as u64) << 28;
        self
    }

    /// One of the DIF operations, or DIX Generate; flags and tags are added by the `with_` functions.
    #[must_use]
    #[inline]
    pub const fn dif(opcode: Opcode, src: u64, dst: u64, size: u32) -> Self {
        Self::three(opcode, src, dst, size)
    }
}

impl core::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Descriptor({}, {:?}", self.opcode(), self.flags())?;
        for word in &self.0[1..] {
            write!(f, ", {word:#x}")?;
        }
        f.write_str(")")
    }
}
