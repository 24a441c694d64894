//! The C structures, field for field as in `telpher.h` (`tests/header.rs` compares the two), and their constants. The
//! header documents them. `Op` is `telpher_op` there, `OpResult` `telpher_result`, and so on.

use std::ffi::c_void;

/// Integrity settings of a DIF operation: the four bytes of its descriptor (SPEC §8.3.17).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dif {
    /// Block size: 0 is 512 bytes, 1 is 520, 2 is 4096, 3 is 4104.
    pub block: u8,
    /// Invert the CRC's seed (4) and result (8).
    pub flags: u8,
    /// How the source's tuples are checked.
    pub source: u8,
    /// How the destination's tuples are created.
    pub dest: u8,
}

/// Tags of a block.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tags {
    /// Reference tag.
    pub ref_tag: u32,
    /// Application tag.
    pub app_tag: u16,
    /// Bits of the application tag that are not checked.
    pub app_mask: u16,
}

/// Types and options of a conversion or computation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Arithmetic {
    /// The type of the sources: one of [`data_type`].
    pub input: u8,
    /// The type of the results: one of [`data_type`].
    pub output: u8,
    /// How two numbers become one: one of [`compute`].
    pub compute: u8,
    /// Bits of [`arithmetic_flag`].
    pub flags: u8,
}

/// One operation. Its opcode determines which fields it uses; the others are ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// What to do: one of [`opcode`].
    pub opcode: u32,
    /// Bits of [`flag`]; others are refused.
    pub flags: u32,
    /// Returned with a channel's completion.
    pub user_data: u64,
    /// The source, or the first of two.
    pub src: *const c_void,
    /// The second source.
    pub src2: *const c_void,
    /// The destination, or the first of two.
    pub dst: *mut c_void,
    /// The second destination.
    pub dst2: *mut c_void,
    /// Bytes of the source, or of each buffer if all have the same length.
    pub len: u64,
    /// Bytes of the destination, if it has its own length.
    pub dst_len: u64,
    /// The pattern of a fill; the CRC of 64 bits to continue from.
    pub pattern: [u64; 2],
    /// The CRC to continue from.
    pub seed: u32,
    /// Settings of a DIF operation.
    pub dif: Dif,
    /// Tags expected in the source, or created if there is only one kind.
    pub tags: Tags,
    /// Tags created by a DIF update.
    pub new_tags: Tags,
    /// Types and options of a conversion or computation.
    pub arithmetic: Arithmetic,
    /// Bytes of each block that a list names.
    pub block: u32,
    /// Bytes of the second source, if it has its own length.
    pub src2_len: u64,
    /// Zero.
    pub reserved: [u64; 1],
}

/// The result of an operation.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpResult {
    /// 0, or a negative errno.
    pub status: i32,
    /// One of [`outcome`].
    pub outcome: u32,
    /// What executed it: one of [`via`].
    pub via: u32,
    /// The kind of failure: one of [`error`].
    pub error: u32,
    /// The device's code of the operation that a failure is about.
    pub opcode: u32,
    /// The device's status byte, the DIF bits that do not match, or what happened to any of the numbers.
    pub device_status: u32,
    /// The CRC.
    pub crc: u32,
    /// 1 if a page fault was on a write.
    pub write: u32,
    /// An offset, by outcome and error.
    pub at: u64,
    /// A number of bytes, by outcome and error.
    pub bytes: u64,
    /// The address of a page fault.
    pub address: u64,
    /// Source tags of the next block.
    pub tags: Tags,
    /// Destination tags of the next block.
    pub new_tags: Tags,
    /// The CRC of 64 bits.
    pub crc64: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// A completed operation of a channel.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Its number from `telpher_channel_put`.
    pub ticket: u64,
    /// The operation's `user_data`.
    pub user_data: u64,
    /// Its result.
    pub result: OpResult,
    /// The device's last completion record, if `has_record` is 1.
    pub record: [u8; 32],
    /// 1 if there is a record.
    pub has_record: u32,
    /// Zero.
    pub reserved: u32,
}

/// A queue of a device.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueInfo {
    /// `wq0.1`, ended by a zero byte.
    pub name: [u8; 32],
    /// 1 if it is dedicated: one mover or channel at a time.
    pub dedicated: u32,
    /// Operations that may be in flight.
    pub size: u32,
    /// Longest transfer of one descriptor in bytes; longer operations are split.
    pub max_transfer: u64,
    /// Descriptors in a batch; 1 or less if batches are not supported.
    pub max_batch: u32,
    /// 1 if the device may wait for a page.
    pub block_on_fault: u32,
    /// NUMA node of the device; -1 if unknown.
    pub numa_node: i32,
    /// Zero.
    pub reserved: u32,
    /// Bit *n* is set if the queue supports the operation with the device's code *n*.
    pub operations: u64,
    /// Zero.
    pub reserved2: [u64; 3],
}

// No exception may leave these functions. If one does, it reaches the `catch_unwind` of the function that C called,
// which ends the process. They are "C-unwind" so that this unwinding is defined behaviour.

/// Allocates a tier's memory: returns `len` bytes, or NULL.
pub type Obtain = unsafe extern "C-unwind" fn(user: *mut c_void, len: usize) -> *mut c_void;
/// Releases such memory.
pub type Release = unsafe extern "C-unwind" fn(user: *mut c_void, start: *mut c_void, len: usize);
/// Chooses a tier by address, length and the calling thread's NUMA node.
pub type ChooseTier =
    unsafe extern "C-unwind" fn(user: *mut c_void, start: *const c_void, len: usize, node: i32) -> u32;
/// Returns the value of an unused entry.
pub type Worth = unsafe extern "C-unwind" fn(user: *mut c_void, entry: *const Resident) -> u64;

/// Fast memory of one kind.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tier {
    /// Bytes of pages that the cache allocates; with `obtain`, the most bytes it obtains, or 0 for no limit.
    pub size: u64,
    /// Bits of [`tier_flag`]; others are refused.
    pub flags: u32,
    /// The node of its pages, if a flag says so.
    pub node: u32,
    /// The node whose threads it is for, if a flag says so.
    pub near_node: u32,
    /// Zero.
    pub reserved: u32,
    /// The caller's allocator, instead of pages.
    pub obtain: Option<Obtain>,
    /// Takes back memory from `obtain`.
    pub release: Option<Release>,
    /// Passed to both.
    pub user: *mut c_void,
    /// Zero.
    pub reserved2: [u64; 3],
}

/// The caller's policies; the options decide where a function is NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CachePolicy {
    /// Returns the tier of a block.
    pub place: Option<ChooseTier>,
    /// Returns the value of an unused entry: the lowest is removed first.
    pub worth: Option<Worth>,
    /// Passed to both.
    pub user: *mut c_void,
    /// Zero.
    pub reserved: [u64; 5],
}

/// What a policy gets to know about an unused entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// The start of its source.
    pub address: *const c_void,
    /// Its length in bytes.
    pub size: u64,
    /// How many entries were added since it was last used.
    pub age: u32,
    /// 1 if it was prefetched and not used yet.
    pub unread: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// What a sync did.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Synced {
    /// Bytes that were compared.
    pub compared: u64,
    /// Bytes that were copied back.
    pub copied: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// The counters and state of a cache.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Accesses that found an entry.
    pub hits: u64,
    /// Accesses that found no entry.
    pub misses: u64,
    /// Of these, weak accesses.
    pub weak_misses: u64,
    /// Blocks prefetched.
    pub prefetches: u64,
    /// Of these, blocks cancelled before their copy started.
    pub cancelled: u64,
    /// Successful copies.
    pub copies: u64,
    /// Bytes of these copies.
    pub bytes_copied: u64,
    /// Blocks that stayed in their source.
    pub fallbacks: u64,
    /// Entries removed because memory was needed.
    pub evictions: u64,
    /// Entries that were invalidated.
    pub invalidations: u64,
    /// Entries in the cache.
    pub entries: u64,
    /// Copies in flight.
    pub in_flight: u64,
    /// Blocks whose copy has not started.
    pub waiting: u64,
    /// Bytes of the tiers' memory in use.
    pub bytes: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// Defines a group of constants.
macro_rules! numbers {
    ($(#[$doc:meta])* $module:ident: $($(#[$each:meta])* $name:ident = $value:literal;)*) => {
        $(#[$doc])*
        pub mod $module {
            $($(#[$each])* pub const $name: u32 = $value;)*
        }
    };
}

mod switch;
mod tier;
mod vhost;
pub use switch::*;
pub use tier::*;
pub use vhost::*;

numbers! {
    /// Operations. The low byte is the device's own code (SPEC Table 8-2).
    opcode:
    /// Nothing.
    TELPHER_NOP = 0x00;
    /// Waits for everything that the queues accepted before.
    TELPHER_DRAIN = 0x02;
    /// Copies between ranges that do not overlap.
    TELPHER_COPY = 0x03;
    /// Repeats 8 bytes.
    TELPHER_FILL = 0x04;
    /// Compares two ranges.
    TELPHER_COMPARE = 0x05;
    /// Compares a range with 8 bytes repeated.
    TELPHER_COMPARE_PATTERN = 0x06;
    /// Records the differences of two ranges.
    TELPHER_CREATE_DELTA = 0x07;
    /// Applies such a record.
    TELPHER_APPLY_DELTA = 0x08;
    /// Copies to two destinations.
    TELPHER_DUALCAST = 0x09;
    /// CRC32C.
    TELPHER_CRC = 0x10;
    /// Copies and computes the CRC32C.
    TELPHER_COPY_CRC = 0x11;
    /// Checks integrity tuples.
    TELPHER_DIF_CHECK = 0x12;
    /// Copies and inserts integrity tuples.
    TELPHER_DIF_INSERT = 0x13;
    /// Checks, and copies without them.
    TELPHER_DIF_STRIP = 0x14;
    /// Checks, and copies with new ones.
    TELPHER_DIF_UPDATE = 0x15;
    /// Writes integrity tuples alone.
    TELPHER_DIX_GENERATE = 0x17;
    /// Converts numbers.
    TELPHER_CONVERT = 0x18;
    /// Combines the numbers of two ranges.
    TELPHER_REDUCE = 0x19;
    /// Combines the numbers of two ranges, to two destinations.
    TELPHER_REDUCE_DUALCAST = 0x1a;
    /// Combines the numbers of all blocks that a list names.
    TELPHER_GATHER_REDUCE = 0x1b;
    /// Copies the blocks that a list names.
    TELPHER_GATHER = 0x1c;
    /// Copies to the blocks that a list names.
    TELPHER_SCATTER = 0x1d;
    /// Fills the blocks that a list names.
    TELPHER_SCATTER_FILL = 0x1e;
    /// Brings pages in.
    TELPHER_PREFETCH_PAGES = 0x0a;
    /// Flushes cache lines.
    TELPHER_FLUSH = 0x20;
    /// Copies between ranges that may overlap.
    TELPHER_MOVE = 0x103;
    /// Repeats 16 bytes.
    TELPHER_FILL16 = 0x104;
    /// CRC of 64 bits.
    TELPHER_CRC64 = 0x110;
    /// Copies and computes that CRC.
    TELPHER_COPY_CRC64 = 0x111;
    /// Copies to memory, not only to a cache.
    TELPHER_COPY_DURABLE = 0x203;
}

numbers! {
    /// Flags of an operation.
    flag:
    /// In a batch: starts after every member before it has succeeded.
    TELPHER_FENCE = 0x1;
    /// In a batch, compare: a difference counts as a failure at the next fence.
    TELPHER_EXPECT_EQUAL = 0x2;
    /// In a batch, compare: equality counts as a failure at the next fence.
    TELPHER_EXPECT_DIFFERENT = 0x4;
    /// CRC: neither invert nor reflect seed and result.
    TELPHER_CRC_BYPASS_INVERT_REFLECT = 0x8;
    /// CRC: do not reflect the data.
    TELPHER_CRC_BYPASS_DATA_REFLECT = 0x10;
    /// A list has 32-bit indexes of blocks.
    TELPHER_LIST_INDEX32 = 0x20;
    /// A list has 64-bit indexes of blocks.
    TELPHER_LIST_INDEX64 = 0x40;
}

numbers! {
    /// Types of numbers.
    data_type:
    /// 8-bit integer.
    TELPHER_INT8 = 0;
    /// 16-bit integer.
    TELPHER_INT16 = 1;
    /// 32-bit integer.
    TELPHER_INT32 = 2;
    /// 64-bit integer.
    TELPHER_INT64 = 3;
    /// 5 exponent and 2 fraction bits.
    TELPHER_FP8_E5M2 = 4;
    /// 4 exponent and 3 fraction bits.
    TELPHER_FP8_E4M3 = 5;
    /// IEEE half precision.
    TELPHER_FP16 = 6;
    /// The upper half of single precision.
    TELPHER_BF16 = 7;
    /// IEEE single precision.
    TELPHER_FP32 = 8;
    /// IEEE double precision.
    TELPHER_FP64 = 9;
}

numbers! {
    /// How two numbers become one.
    compute:
    /// Sum.
    TELPHER_ADD = 1;
    /// Bitwise and.
    TELPHER_AND = 3;
    /// Bitwise or.
    TELPHER_OR = 4;
    /// Bitwise exclusive or.
    TELPHER_XOR = 5;
    /// The smaller one.
    TELPHER_MIN = 6;
    /// The larger one.
    TELPHER_MAX = 7;
}

numbers! {
    /// Options of arithmetic.
    arithmetic_flag:
    /// Negate the first source.
    TELPHER_NEGATE_1 = 0x1;
    /// Negate the second source.
    TELPHER_NEGATE_2 = 0x2;
    /// Small results become zero.
    TELPHER_FLUSH_TO_ZERO = 0x4;
    /// Small operands count as zero.
    TELPHER_DENORMALS_ARE_ZERO = 0x8;
    /// Integers are signed.
    TELPHER_SIGNED = 0x10;
    /// Integer results saturate.
    TELPHER_SATURATE = 0x20;
    /// Round toward minus infinity.
    TELPHER_ROUND_DOWN = 0x40;
    /// Round toward plus infinity.
    TELPHER_ROUND_UP = 0x80;
    /// Round toward zero.
    TELPHER_ROUND_TOWARD_ZERO = 0xc0;
}

numbers! {
    /// What happened to any of the numbers.
    exception:
    /// A result is not a number.
    TELPHER_INVALID = 0x1;
    /// An operand was below the normal range.
    TELPHER_DENORMAL = 0x2;
    /// A result was out of range.
    TELPHER_OVERFLOW = 0x4;
    /// A result was below the normal range.
    TELPHER_UNDERFLOW = 0x8;
}

numbers! {
    /// The outcome of an operation.
    outcome:
    /// It failed: see `error`.
    TELPHER_FAILED = 0;
    /// Done.
    TELPHER_DONE = 1;
    /// No difference.
    TELPHER_EQUAL = 2;
    /// A difference at `at`.
    TELPHER_DIFFERENT = 3;
    /// A checksum in `crc`.
    TELPHER_CRC_VALUE = 4;
    /// The sources are equal; nothing was written.
    TELPHER_DELTA_IDENTICAL = 5;
    /// The record has `bytes` bytes.
    TELPHER_DELTA_COMPLETE = 6;
    /// The record is full after `bytes` bytes; `at` source bytes were compared.
    TELPHER_DELTA_OVERFLOW = 7;
    /// Every block was processed.
    TELPHER_DIF_DONE = 8;
    /// The block at `at` does not match in `device_status`.
    TELPHER_DIF_MISMATCH = 9;
    /// A checksum in `crc64`.
    TELPHER_CRC64_VALUE = 10;
    /// The numbers are computed; bits of `exception` in `device_status`.
    TELPHER_COMPUTED = 11;
}

numbers! {
    /// What executed it.
    via:
    /// The CPU only.
    TELPHER_VIA_CPU = 1;
    /// A device only.
    TELPHER_VIA_DEVICE = 2;
    /// A device started, the CPU finished.
    TELPHER_VIA_BOTH = 3;
}

numbers! {
    /// Kinds of failure, finer than an errno.
    error:
    /// None.
    TELPHER_ERROR_NONE = 0;
    /// An invalid argument.
    TELPHER_ERROR_ARGUMENT = 1;
    /// Lengths that must agree do not.
    TELPHER_ERROR_LENGTHS = 2;
    /// A length is not a multiple of the unit.
    TELPHER_ERROR_UNIT = 3;
    /// Longer than the operation supports.
    TELPHER_ERROR_TOO_LONG = 4;
    /// An invalid delta record.
    TELPHER_ERROR_BAD_DELTA = 5;
    /// A page fault that could not be resolved.
    TELPHER_ERROR_FAULT = 6;
    /// Every queue stayed full.
    TELPHER_ERROR_QUEUE_FULL = 7;
    /// The device refused.
    TELPHER_ERROR_REFUSED = 8;
    /// Neither a queue nor the CPU supports it.
    TELPHER_ERROR_UNSUPPORTED = 9;
    /// The device's completion record is contradictory.
    TELPHER_ERROR_NONSENSE = 10;
    /// Abandoned at a fence.
    TELPHER_ERROR_ABANDONED = 11;
    /// The deadline passed.
    TELPHER_ERROR_DEADLINE = 12;
    /// The queue stopped during an operation that cannot be repeated.
    TELPHER_ERROR_STOPPED = 13;
    /// Types or options that the operation does not have.
    TELPHER_ERROR_OPTIONS = 14;
    /// A list names a block outside of the memory.
    TELPHER_ERROR_OUTSIDE = 15;
    /// An error without a number in this table.
    TELPHER_ERROR_OTHER = 255;
}

numbers! {
    /// Flags of a tier.
    tier_flag:
    /// Its pages are on `node`.
    TELPHER_TIER_ON_NODE = 0x1;
    /// It is for threads of `near_node`.
    TELPHER_TIER_NEAR = 0x2;
    /// Pages of 2 MiB where the system has them.
    TELPHER_TIER_HUGE_PAGES = 0x4;
    /// Its pages are allocated when first written.
    TELPHER_TIER_ABSENT = 0x8;
}

numbers! {
    /// How to find the bytes of a block to copy back.
    find:
    /// The bytes announced for writing.
    TELPHER_FIND_WRITTEN = 0;
    /// Of these, the bytes that differ.
    TELPHER_FIND_DIFFERING = 1;
    /// All bytes that differ.
    TELPHER_FIND_ANYWHERE = 2;
}
