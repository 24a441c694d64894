//! Requests and replies: one packet each, on their own connection (`SOCK_SEQPACKET`).
//!
//! A packet is the fixed head, the path, then the data. Descriptors are sent with the reply (`SCM_RIGHTS`), in the
//! order documented at each [`Kind`].

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most bytes of path and data together in a packet; an attribute has at most a page.
pub const MAX_PAYLOAD: usize = 8192;

/// The kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Read an attribute. Path: the physical path in /sys. Reply data: the text.
    Show = 1,
    /// Write an attribute. Path as above; data as the program wrote it. Reply value: bytes accepted.
    Store = 2,
    /// Open a queue's node. Path: `/dev/dsa/wqM.N`. `argument`: open(2)'s flags. Reply data: [`Opened`]. Descriptors:
    /// the file (a stream socket whose other end the host holds; closing its last copy releases the file), the file's
    /// memory, the queue state, the occupancy slots.
    Open = 3,
    /// Attach to a node that was opened through the file system. `open`: its number. Reply as for `Open`, without the
    /// file.
    Attach = 4,
    /// A report of the device to the driver. `open`: the file; data: a [`Report`]. Empty reply.
    Report = 5,
    /// perf_event_open() of a device's PMU. Data: a [`PerfOpen`]. Descriptor: the event (a stream socket whose other
    /// end the host holds; closing its last copy closes the event; its first bytes are the event's
    /// [secret](EVENT_SECRET)).
    PerfOpen = 6,
    /// read() of an event. `open`: its number; data: its secret. Reply data: what read() returns.
    PerfRead = 7,
    /// ioctl() of an event. `open`: its number; `argument`: the request; data: a [`PerfControl`]. Reply value: the
    /// event's number for PERF_EVENT_IOC_ID.
    PerfControl = 8,
    /// Makes a window to the memory of the process that has opened a file. `open`: the file; data: a [`WindowCreate`];
    /// descriptor in the request: the process's /proc/self/mem, open for reading and writing. Reply value: the handle.
    /// Descriptor: the window (a stream socket whose other end the host holds; closing its last copy ends the window;
    /// its first bytes are the window's [secret](WINDOW_SECRET)).
    WindowCreate = 9,
    /// Lets the descriptors of a file's process use a window. `open`: the file; data: the window's secret. Reply value:
    /// the handle.
    WindowAttach = 10,
    /// The windows that a file's process owns or may use. `open`: the file. Reply data: a [`WindowEntry`] for each.
    Windows = 11,
    /// Reads memory of a window for a descriptor. `open`: the file; data: a [`WindowAccess`]. Reply data: the bytes up
    /// to the first that cannot be read.
    WindowRead = 12,
    /// Writes memory of a window for a descriptor. `open`: the file; data: a [`WindowAccess`], then the bytes. Reply
    /// value: the number of bytes written, up to the first that cannot be.
    WindowWrite = 13,
    /// Brings in a page of a window. `open`: the file; `argument`: 1 for an access that writes; data: a
    /// [`WindowAccess`].
    WindowTouch = 14,
    /// Replaces the limits of a window: an Update Window descriptor of its owner has been executed. `open`: the file;
    /// data: a [`WindowUpdate`]. The reply comes when no access that the former limits allowed is in progress.
    WindowUpdate = 15,
    /// Brings in pages of a window for a process that holds its descriptor. Data: a [`WindowFault`].
    WindowFault = 16,
    /// Waits until no closed window of the caller's process is accessed any more. `argument`: [`SETTLE_AT_START`] to
    /// end the windows of the program first that the process was before. ENOTTY in a run without windows.
    WindowSettle = 17,
    /// The caller's process closes a descriptor of a window: of its own, which ends for all processes, or of another
    /// one's, which it may use no more. `argument`: the number in the name of its socket. The secret is not asked for:
    /// another holder may have read it away.
    WindowClose = 18,
}

impl Kind {
    /// The kind with this code.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        const ALL: [Kind; 18] = [
            Kind::Show,
            Kind::Store,
            Kind::Open,
            Kind::Attach,
            Kind::Report,
            Kind::PerfOpen,
            Kind::PerfRead,
            Kind::PerfControl,
            Kind::WindowCreate,
            Kind::WindowAttach,
            Kind::Windows,
            Kind::WindowRead,
            Kind::WindowWrite,
            Kind::WindowTouch,
            Kind::WindowUpdate,
            Kind::WindowFault,
            Kind::WindowSettle,
            Kind::WindowClose,
        ];
        ALL.into_iter().find(|kind| *kind as u32 == code)
    }

    /// True for the requests about windows, which may wait for another process.
    #[must_use]
    pub fn is_of_windows(self) -> bool {
        self as u32 >= Kind::WindowCreate as u32
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
    /// Random number of the requesting address space; it changes at fork() and exec().
    pub space: u64,
    /// Number of the open file, if the kind needs one.
    pub open: u64,
    /// Its meaning depends on the kind.
    pub argument: u64,
    /// Bytes of path after the head.
    pub path_len: u32,
    /// Bytes of data after the path.
    pub data_len: u32,
}

/// Head of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// [`crate::VERSION`].
    pub version: u32,
    /// 0, or the errno for the program.
    pub errno: i32,
    /// Its meaning depends on the kind.
    pub value: u64,
    /// Bytes of data after the head.
    pub data_len: u32,
    /// Padding.
    pub reserved: u32,
}

/// The PMU's type of dsa0; that of dsaM is M above it. Source: chosen, far above the types that a kernel assigns, so
/// that it never equals another PMU's.
pub const FIRST_PMU_TYPE: u32 = 1000;
/// PMU types that are ours, from the first one on.
pub const PMU_TYPES: u32 = 256;
/// Bytes of the attributes that are known. Source: Linux 6.12, UAPI `linux/perf_event.h`, PERF_ATTR_SIZE_VER8.
pub const PERF_ATTRIBUTES: usize = 136;

/// Bytes of an event's secret: random, and known only to processes that hold the event's descriptor.
pub const EVENT_SECRET: usize = WINDOW_SECRET;

/// The arguments of perf_event_open().
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PerfOpen {
    /// The process; -1 for all.
    pub process: i32,
    /// The processor; -1 for all.
    pub cpu: i32,
    /// The flags.
    pub flags: u64,
    /// The number of the group's leader; 0 for an event that leads.
    pub leader: u64,
    /// The leader's secret; any bytes for an event that leads.
    pub leader_secret: [u8; EVENT_SECRET],
    /// `struct perf_event_attr`, with zeros behind a shorter one.
    pub attributes: [u8; PERF_ATTRIBUTES],
}

/// The data of an ioctl() of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PerfControl {
    /// The event's secret.
    pub secret: [u8; EVENT_SECRET],
    /// The argument.
    pub argument: u64,
}

/// The argument of [`Kind::WindowSettle`] of a program that starts.
pub const SETTLE_AT_START: u64 = 1;
/// Bytes of a window's secret: random, and known only to processes that hold the window's descriptor.
pub const WINDOW_SECRET: usize = 16;
/// Most bytes of memory in one [`Kind::WindowRead`] or [`Kind::WindowWrite`].
pub const WINDOW_BYTES: usize = MAX_PAYLOAD - size_of::<WindowAccess>();

/// The arguments of IDXD_WIN_CREATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WindowCreate {
    /// First byte of the window.
    pub base: u64,
    /// Its bytes.
    pub size: u64,
    /// 0 for a single submitter, 1 for several.
    pub kind: u32,
    /// Permissions and mode, as in byte 61 of Update Window.
    pub flags: u32,
}

/// An entry of the table of windows, as it concerns one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WindowEntry {
    /// First byte of the window. In offset mode only its position in a unit of [`ALIGNMENT`] bytes, unless the memory
    /// is the process's own: submitters do not learn addresses of the owner.
    pub base: u64,
    /// Its bytes.
    pub size: u64,
    /// The window and its limits: no other window, and no window with other limits, ever has this number in the run.
    /// Bits 63:32 are the window's.
    pub generation: u64,
    /// Its handle: the index of the entry.
    pub handle: u16,
    /// Permissions, enable and mode, as in byte 61 of Update Window.
    pub flags: u8,
    /// [`WINDOW_OWN`] and [`WINDOW_USABLE`].
    pub relation: u8,
    /// Padding.
    pub reserved: u32,
}

/// Bytes to whose multiples operations with typed elements align the bases of windows in offset mode. Source: SPEC
/// §8.3.19, its largest type.
pub const ALIGNMENT: u64 = 8;
/// [`WindowEntry::relation`]: the memory is the process's own.
pub const WINDOW_OWN: u8 = 1 << 0;
/// [`WindowEntry::relation`]: the process's descriptors may use the window.
pub const WINDOW_USABLE: u8 = 1 << 1;

/// A range of the memory that a window gives access to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WindowAccess {
    /// First byte: in offset mode its offset in the window, otherwise its address in the owner's address space.
    pub address: u64,
    /// [`WindowEntry::generation`] of the entry that the descriptor has looked up.
    pub generation: u64,
    /// Bytes, at most [`WINDOW_BYTES`].
    pub len: u32,
    /// Handle of the window.
    pub handle: u32,
}

/// The new limits of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WindowUpdate {
    /// First byte of the window.
    pub base: u64,
    /// Its bytes.
    pub size: u64,
    /// [`WindowEntry::generation`] of an entry of this window.
    pub generation: u64,
    /// Its handle.
    pub handle: u32,
    /// Permissions, enable and mode, as in byte 61 of Update Window.
    pub flags: u32,
}

/// The arguments of IDXD_WIN_FAULT, and the secret of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WindowFault {
    /// The window's secret.
    pub secret: [u8; WINDOW_SECRET],
    /// Offset in the window.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// 1 if the pages are to be written.
    pub write: u32,
    /// Padding.
    pub reserved: u32,
}

/// [`Opened::flags`]: the queue is dedicated.
pub const DEDICATED: u32 = 1 << 0;
/// [`Opened::flags`]: an access to an absent page faults when block on fault is clear.
pub const STRICT: u32 = 1 << 1;
/// [`Opened::flags`]: engines run on a separate thread, not on the submitting one.
pub const THREADED: u32 = 1 << 2;
/// [`Opened::flags`]: every descriptor and record goes into the file's trace.
pub const TRACE: u32 = 1 << 3;
/// [`Opened::flags`]: misuse that hardware would not detect is reported in the trace.
pub const CHECK: u32 = 1 << 4;
/// [`Opened::flags`]: the device accepts equal offsets in a delta record (`Tolerances::equal_delta_offsets`).
pub const EQUAL_DELTA_OFFSETS: u32 = 1 << 5;
/// [`Opened::flags`]: the device ignores reserved bits of an expected-result mask (`Tolerances::result_mask_bits`).
pub const RESULT_MASK_BITS: u32 = 1 << 6;

/// An open queue: everything that the guest needs to model that queue for its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Opened {
    /// Number of the open file.
    pub open: u64,
    /// The device, `dsaN`.
    pub device: u32,
    /// The queue's number in the device.
    pub wq: u32,
    /// The queue's group.
    pub group: u32,
    /// Address space identifier of this process.
    pub pasid: u32,
    /// The flags above.
    pub flags: u32,
    /// Result of mmap() of the node: 0, or an errno (EPERM where user submission is not safe).
    pub mmap_errno: i32,
    /// Result of write() to the node: 0, or an errno (EINVAL on kernels without it).
    pub write_errno: i32,
    /// Result of a Batch descriptor sent by write(): 0, or EINVAL.
    pub write_batch_errno: i32,
    /// Retries of write() to a full shared queue after the first try.
    pub enqcmds_retries: u32,
    /// Occupancy slot of this file.
    pub row: u32,
    /// VERSION register.
    pub version: u32,
    /// Page requests the function may have in flight.
    pub page_request_capacity: u32,
    /// Entries of the MSI-X table.
    pub msix_entries: u32,
    /// Performance counters.
    pub counters: u32,
    /// Mask of the usable traffic classes.
    pub traffic_classes: u32,
    /// Entries of the event log; 0 if it is disabled.
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
    /// DSACAP0 to DSACAP2; zero before 3.0.
    pub dsa_cap: [u64; 3],
    /// IDCAP; zero if the run has no windows between processes.
    pub id_cap: u64,
    /// GENCFG as the driver has set it.
    pub gen_cfg: u64,
    /// GRPCFG of the group.
    pub grp_cfg: [u64; 8],
    /// WQCFG of the queue.
    pub wq_cfg: [u64; 8],
    /// The faults to inject; all zero for none.
    pub inject: Inject,
}

/// Faults to inject. A rate is in parts of 2^32 of the events it applies to; 0 is never, `u32::MAX` always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inject {
    /// Seed; the same seed and the same program give the same faults.
    pub seed: u64,
    /// Rate of page accesses that find the page absent (block on fault clear).
    pub fault_rate: u32,
    /// Rate of deferrable writes that get Retry.
    pub retry_rate: u32,
    /// Retries in a row; 0 means 1.
    pub retry_burst: u32,
    /// Rate of completions that are delayed by [`delay_ns`](Inject::delay_ns).
    pub delay_rate: u32,
    /// The delay, in nanoseconds.
    pub delay_ns: u64,
    /// Rate of completions that wait until a later one has been written.
    pub reorder_rate: u32,
    /// Rate of descriptors that end with [`status`](Inject::status) instead.
    pub status_rate: u32,
    /// The injected status.
    pub status: u32,
    /// Rate of completion records that are never written.
    pub lose_rate: u32,
    /// The device halts at this descriptor, counted from 1 within one open file; 0 is never.
    pub halt_at: u64,
    /// First of the pages that are always absent; page numbers of 4096-byte pages.
    pub absent_first: u64,
    /// One past the last of them.
    pub absent_end: u64,
    /// Bit N: faults apply to operation N; all zero means all operations.
    pub operations: u64,
    /// Bit N: operation N may end with [`status`](Inject::status); all zero means all operations that faults apply to.
    pub status_operations: u64,
}

/// A guest's report to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Report {
    /// A [`ReportKind`].
    pub kind: u32,
    /// Padding.
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
    /// An event log entry: `words`. The guest has done the driver's work for it (written the record that it contains).
    EventLog = 2,
    /// A completion record from the event log could not be written either.
    EventLogFailed = 3,
    /// The device halted; `words[..4]` is SWERROR.
    Halted = 4,
}
