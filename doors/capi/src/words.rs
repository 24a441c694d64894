//! The structures that C sees, field for field as `telpher.h` has them (`tests/header.rs` compares the two), and their
//! numbers. What they mean is told in the header. `Op` is `telpher_op` there, `OpResult` `telpher_result`, and so on.

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
    /// How the destination's tuples are made.
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
    /// Bits of the application tag that are not looked at.
    pub app_mask: u16,
}

/// One operation. Which fields it uses its opcode says; the others are not looked at.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// What to do: one of [`opcode`].
    pub opcode: u32,
    /// Bits of [`flag`]; others are refused.
    pub flags: u32,
    /// Comes back with a channel's completion.
    pub user_data: u64,
    /// The source, or the first of two.
    pub src: *const c_void,
    /// The second source.
    pub src2: *const c_void,
    /// The destination, or the first of two.
    pub dst: *mut c_void,
    /// The second destination.
    pub dst2: *mut c_void,
    /// Bytes of the source, or of each buffer where all are equally long.
    pub len: u64,
    /// Bytes of the destination, where it has a length of its own.
    pub dst_len: u64,
    /// What a fill repeats.
    pub pattern: [u64; 2],
    /// What a CRC goes on from.
    pub seed: u32,
    /// Settings of a DIF operation.
    pub dif: Dif,
    /// Tags expected in the source, or made where there is only one kind.
    pub tags: Tags,
    /// Tags made by a DIF update.
    pub new_tags: Tags,
    /// Zero.
    pub reserved: [u64; 3],
}

/// What an operation came to.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpResult {
    /// 0, or a negative errno.
    pub status: i32,
    /// One of [`outcome`].
    pub outcome: u32,
    /// Who did the work: one of [`via`].
    pub via: u32,
    /// What kind of failure: one of [`error`].
    pub error: u32,
    /// The device's code of the operation a failure is about.
    pub opcode: u32,
    /// The device's status byte, or the DIF bits that do not match.
    pub device_status: u32,
    /// The CRC.
    pub crc: u32,
    /// 1 if a page fault was on a write.
    pub write: u32,
    /// An offset, by outcome and error.
    pub at: u64,
    /// A number of bytes, by outcome and error.
    pub bytes: u64,
    /// Where a page fault was.
    pub address: u64,
    /// Source tags that the next block would have.
    pub tags: Tags,
    /// Destination tags that the next block would have.
    pub new_tags: Tags,
    /// Zero.
    pub reserved: [u64; 3],
}

/// An operation of a channel that has ended.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Its number, as `telpher_channel_put` told.
    pub ticket: u64,
    /// As the operation had it.
    pub user_data: u64,
    /// What it came to.
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
    /// Operations that may be under way.
    pub size: u32,
    /// Longest transfer of one descriptor in bytes; longer operations go in pieces.
    pub max_transfer: u64,
    /// Descriptors in a batch; 1 or less if it takes none.
    pub max_batch: u32,
    /// 1 if the device may wait for a page.
    pub block_on_fault: u32,
    /// NUMA node of the device; -1 if unknown.
    pub numa_node: i32,
    /// Zero.
    pub reserved: u32,
    /// Bit *n* is set if the queue does the operation with the device's code *n*.
    pub operations: u64,
    /// Zero.
    pub reserved2: [u64; 3],
}

// None of these may let an exception out. Where one does, it meets the `catch_unwind` of the function that C called, which ends the
// process; hence "C-unwind", from which unwinding is not undefined.

/// How C gives a tier memory: `len` bytes, or NULL.
pub type Obtain = unsafe extern "C-unwind" fn(user: *mut c_void, len: usize) -> *mut c_void;
/// How C takes it back.
pub type Release = unsafe extern "C-unwind" fn(user: *mut c_void, start: *mut c_void, len: usize);
/// How C chooses a tier: by address, length and the asking thread's NUMA node.
pub type Place = unsafe extern "C-unwind" fn(user: *mut c_void, start: *const c_void, len: usize, node: i32) -> u32;
/// How C values an unused entry.
pub type Worth = unsafe extern "C-unwind" fn(user: *mut c_void, entry: *const Resident) -> u64;

/// Fast memory of one kind.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tier {
    /// Bytes of pages that the cache is to have; of memory of `obtain`, if that is there, at most so many, or 0 for any number.
    pub size: u64,
    /// Bits of [`tier_flag`]; others are refused.
    pub flags: u32,
    /// The node its pages are on, if a flag says so.
    pub node: u32,
    /// The node whose threads it is for, if a flag says so.
    pub near_node: u32,
    /// Zero.
    pub reserved: u32,
    /// The caller's allocator, instead of pages.
    pub obtain: Option<Obtain>,
    /// Takes back what `obtain` gave.
    pub release: Option<Release>,
    /// Handed to both.
    pub user: *mut c_void,
    /// Zero.
    pub reserved2: [u64; 3],
}

/// The caller's policies; the options' for those that are not there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CachePolicy {
    /// In which tier a block is.
    pub place: Option<Place>,
    /// What an unused entry is worth: the least goes first.
    pub worth: Option<Worth>,
    /// Handed to both.
    pub user: *mut c_void,
    /// Zero.
    pub reserved: [u64; 5],
}

/// What a policy knows of an unused entry.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// Where its source begins.
    pub address: *const c_void,
    /// Bytes.
    pub size: u64,
    /// How many entries came since it was last used.
    pub age: u32,
    /// 1 if it was fetched ahead and not used yet.
    pub unread: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// What a cache has done and has.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Accesses that found an entry.
    pub hits: u64,
    /// Accesses that found none.
    pub misses: u64,
    /// Of these, those that asked for nothing to be copied.
    pub weak_misses: u64,
    /// Blocks asked for ahead of time.
    pub prefetches: u64,
    /// Of these, those called off before their copy began.
    pub cancelled: u64,
    /// Copies that ended well.
    pub copies: u64,
    /// Bytes they brought.
    pub bytes_copied: u64,
    /// Blocks that stayed where they were.
    pub fallbacks: u64,
    /// Entries that had to go because memory was needed.
    pub evictions: u64,
    /// Entries that were invalidated.
    pub invalidations: u64,
    /// Entries there are.
    pub entries: u64,
    /// Copies under way.
    pub in_flight: u64,
    /// Blocks whose copy has not begun.
    pub waiting: u64,
    /// Bytes of the tiers' memory that are lent.
    pub bytes: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// A family of numbers.
macro_rules! numbers {
    ($(#[$doc:meta])* $module:ident: $($(#[$each:meta])* $name:ident = $value:literal;)*) => {
        $(#[$doc])*
        pub mod $module {
            $($(#[$each])* pub const $name: u32 = $value;)*
        }
    };
}

mod tier;
mod vhost;
pub use tier::*;
pub use vhost::*;

numbers! {
    /// Operations. The low byte is the device's own code (SPEC Table 8-2).
    opcode:
    /// Nothing.
    TELPHER_NOP = 0x00;
    /// Waits for what the queues took before.
    TELPHER_DRAIN = 0x02;
    /// Copies between ranges that share no byte.
    TELPHER_COPY = 0x03;
    /// Repeats 8 bytes.
    TELPHER_FILL = 0x04;
    /// Compares two ranges.
    TELPHER_COMPARE = 0x05;
    /// Compares a range with 8 bytes repeated.
    TELPHER_COMPARE_PATTERN = 0x06;
    /// Records what differs.
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
    /// Copies and adds them.
    TELPHER_DIF_INSERT = 0x13;
    /// Checks, and copies without them.
    TELPHER_DIF_STRIP = 0x14;
    /// Checks, and copies with new ones.
    TELPHER_DIF_UPDATE = 0x15;
    /// Flushes cache lines.
    TELPHER_FLUSH = 0x20;
    /// Copies between ranges that may share bytes.
    TELPHER_MOVE = 0x103;
    /// Repeats 16 bytes.
    TELPHER_FILL16 = 0x104;
}

numbers! {
    /// Flags of an operation.
    flag:
    /// In a batch: begins after every member before it has succeeded.
    TELPHER_FENCE = 0x1;
    /// In a batch, compare: a difference counts as a failure at the next fence.
    TELPHER_EXPECT_EQUAL = 0x2;
    /// In a batch, compare: equality counts as a failure at the next fence.
    TELPHER_EXPECT_DIFFERENT = 0x4;
    /// CRC: neither invert nor reflect seed and result.
    TELPHER_CRC_BYPASS_INVERT_REFLECT = 0x8;
    /// CRC: do not reflect the data.
    TELPHER_CRC_BYPASS_DATA_REFLECT = 0x10;
}

numbers! {
    /// What an operation came to.
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
}

numbers! {
    /// Who did the work.
    via:
    /// The CPU alone.
    TELPHER_VIA_CPU = 1;
    /// A device alone.
    TELPHER_VIA_DEVICE = 2;
    /// A device began, the CPU finished.
    TELPHER_VIA_BOTH = 3;
}

numbers! {
    /// Kinds of failure, finer than an errno.
    error:
    /// None.
    TELPHER_ERROR_NONE = 0;
    /// An argument is none.
    TELPHER_ERROR_ARGUMENT = 1;
    /// Lengths that must agree do not.
    TELPHER_ERROR_LENGTHS = 2;
    /// A length is no multiple of the unit.
    TELPHER_ERROR_UNIT = 3;
    /// Longer than the operation can be.
    TELPHER_ERROR_TOO_LONG = 4;
    /// A delta record that is none.
    TELPHER_ERROR_BAD_DELTA = 5;
    /// A page fault that went on.
    TELPHER_ERROR_FAULT = 6;
    /// Every queue stayed full.
    TELPHER_ERROR_QUEUE_FULL = 7;
    /// The device refused.
    TELPHER_ERROR_REFUSED = 8;
    /// Nobody here can do it.
    TELPHER_ERROR_UNSUPPORTED = 9;
    /// The device's answer makes no sense.
    TELPHER_ERROR_NONSENSE = 10;
    /// Abandoned at a fence.
    TELPHER_ERROR_ABANDONED = 11;
    /// The deadline passed.
    TELPHER_ERROR_DEADLINE = 12;
    /// The queue stopped in the middle of something that cannot be done twice.
    TELPHER_ERROR_STOPPED = 13;
    /// One that this table has no number for yet.
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
    /// Its pages come when they are first written.
    TELPHER_TIER_ABSENT = 0x8;
}
