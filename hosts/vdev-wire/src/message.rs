//! Requests and replies: one packet each, on a connection of their own (`SOCK_SEQPACKET`).
//!
//! A packet is the fixed head, then the path, then the data. Descriptors travel beside the reply (`SCM_RIGHTS`) in the order
//! told at each [`Kind`].

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most bytes of path and data together in a packet; an attribute is at most a page.
pub const MAX_PAYLOAD: usize = 8192;

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// The attribute's text. Path: the physical path below /sys. Reply data: the text.
    Show = 1,
    /// Write an attribute. Path as above, data as the program wrote it. Reply value: bytes taken.
    Store = 2,
    /// Open a queue's node. Path: `/dev/dsa/wqM.N`. `argument`: open(2)'s flags. Reply data: [`Opened`]. Descriptors: the
    /// file (a stream socket whose other end the host holds: when its last copy closes, the file is released), the
    /// lease, the board, its rows.
    Open = 3,
    /// Join a node that was opened through the file system. `open` names it. Reply as for `Open`, without the file.
    Attach = 4,
    /// Something the device reports that the driver must hear of. `open`; data: a [`Report`]. Reply: nothing.
    Report = 5,
}

impl Kind {
    /// The kind of a code.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Kind::Show, Kind::Store, Kind::Open, Kind::Attach, Kind::Report].into_iter().find(|kind| *kind as u32 == code)
    }
}

/// Head of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// [`crate::VERSION`].
    pub version: u32,
    /// A [`Kind`].
    pub kind: u32,
    /// Random number of the address space that asks: another after fork() and after exec().
    pub space: u64,
    /// Which open file, if the kind names one.
    pub open: u64,
    /// What the kind says.
    pub argument: u64,
    /// Bytes of path behind the head.
    pub path_len: u32,
    /// Bytes of data behind the path.
    pub data_len: u32,
}

/// Head of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// [`crate::VERSION`].
    pub version: u32,
    /// 0, or what errno shall be.
    pub errno: i32,
    /// What the kind says.
    pub value: u64,
    /// Bytes of data behind the head.
    pub data_len: u32,
    /// Nothing.
    pub reserved: u32,
}

/// [`Opened::flags`]: the queue is dedicated.
pub const DEDICATED: u32 = 1 << 0;
/// [`Opened::flags`]: a page that is not present faults when block on fault is clear.
pub const STRICT: u32 = 1 << 1;
/// [`Opened::flags`]: engines run on a thread of their own, not in the submitting one.
pub const THREADED: u32 = 1 << 2;
/// [`Opened::flags`]: every descriptor and record goes into the lease's trace.
pub const TRACE: u32 = 1 << 3;
/// [`Opened::flags`]: misuse that silicon would not notice is reported in the trace.
pub const CHECK: u32 = 1 << 4;
/// [`Opened::flags`]: the device accepts equal offsets in a delta record (`Tolerances::equal_delta_offsets`).
pub const EQUAL_DELTA_OFFSETS: u32 = 1 << 5;
/// [`Opened::flags`]: the device ignores reserved bits of an expected-result mask (`Tolerances::result_mask_bits`).
pub const RESULT_MASK_BITS: u32 = 1 << 6;

/// An open queue: everything the guest needs to be that queue of that device for its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Opened {
    /// Names the open file from now on.
    pub open: u64,
    /// Which device, `dsaN`.
    pub device: u32,
    /// Which queue of it.
    pub wq: u32,
    /// Group of the queue.
    pub group: u32,
    /// Address space identifier of this process.
    pub pasid: u32,
    /// The bits above.
    pub flags: u32,
    /// What mmap() of the node answers: 0, or an errno (EPERM where user submission is not safe).
    pub mmap_errno: i32,
    /// What write() to the node answers: 0, or an errno (EINVAL on kernels without it).
    pub write_errno: i32,
    /// What a Batch descriptor sent by write() answers: 0, or EINVAL.
    pub write_batch_errno: i32,
    /// Tries of write() at a full shared queue after the first.
    pub enqcmds_retries: u32,
    /// Row of this file on the queue's board.
    pub row: u32,
    /// VERSION register.
    pub version: u32,
    /// Page requests the function may have in flight.
    pub page_request_capacity: u32,
    /// Entries of the MSI-X table.
    pub msix_entries: u32,
    /// Performance counters.
    pub counters: u32,
    /// Mask of usable traffic classes.
    pub traffic_classes: u32,
    /// Entries of the event log; 0 if it is off.
    pub event_log_entries: u32,
    /// GENCAP.
    pub gen_cap: u64,
    /// WQCAP.
    pub wq_cap: u64,
    /// GRPCAP.
    pub grp_cap: u64,
    /// ENGCAP.
    pub eng_cap: u64,
    /// CMDCAP.
    pub cmd_cap: u64,
    /// OPCAP.
    pub op_cap: [u64; 4],
    /// GENCFG as the driver has set it.
    pub gen_cfg: u64,
    /// GRPCFG of the group.
    pub grp_cfg: [u64; 8],
    /// WQCFG of the queue.
    pub wq_cfg: [u64; 8],
    /// What shall go wrong, or all zero.
    pub inject: Inject,
}

/// Faults to inject. A rate is in parts of 2^32 of the events it applies to; 0 never, `u32::MAX` always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inject {
    /// Seed; the same seed and the same program give the same faults.
    pub seed: u64,
    /// An access to a page finds it absent (block on fault clear).
    pub fault_rate: u32,
    /// A deferrable write is answered by Retry.
    pub retry_rate: u32,
    /// Retries in a row once one happens; 0 means 1.
    pub retry_burst: u32,
    /// A completion is late by [`delay_ns`](Inject::delay_ns).
    pub delay_rate: u32,
    /// How late, in nanoseconds.
    pub delay_ns: u64,
    /// A completion waits until a later one has been written.
    pub reorder_rate: u32,
    /// A descriptor ends with [`status`](Inject::status) instead.
    pub status_rate: u32,
    /// Which status.
    pub status: u32,
    /// A completion record is never written.
    pub lose_rate: u32,
    /// The device halts at this descriptor, counted over one open file from 1; 0 never.
    pub halt_at: u64,
    /// First of the pages that are always absent; page numbers of 4096 bytes.
    pub absent_first: u64,
    /// One past the last of them.
    pub absent_end: u64,
    /// Bit N: operation N takes part; all zero means all operations.
    pub operations: u64,
    /// Bit N: operation N may end with [`status`](Inject::status); all zero means all that take part.
    pub status_operations: u64,
}

/// What a guest reports to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Report {
    /// A [`ReportKind`].
    pub kind: u32,
    /// Nothing.
    pub reserved: u32,
    /// SWERROR or the first half of an event log entry.
    pub words: [u64; 8],
}

/// Kinds of report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ReportKind {
    /// The device latched SWERROR: `words[..4]`.
    SwError = 1,
    /// An event log entry: `words`. The guest has done what the driver does for it (written the record it carries).
    EventLog = 2,
    /// A completion record of the event log could not be written either.
    EventLogFailed = 3,
    /// The device halted; `words[..4]` is SWERROR.
    Halted = 4,
}
