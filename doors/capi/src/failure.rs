//! Why a call failed: an errno, a kind, and a message that the calling thread can fetch.

#[cfg(test)]
mod tests;

use crate::c_structs::{OpResult, Tags, error, outcome, via};
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int};
use telpher_abi::Status;
use telpher_cache::{AccessError, ConfigError};
use telpher_device::OpenError;
use telpher_mem::MapError;
use telpher_mover::{
    ChannelError, ComputeResult, Delta, DurableFileError, GrantError, JobError, Opcode, Outcome, RejectReason,
    StoreError, TuningError, Via, WindowError,
};
use telpher_os::chain;
use telpher_os::{PerfError, UserfaultError};
use telpher_switch::SwitchError;
use telpher_tier::TierError;
use telpher_tier::heat::DamonError;
use telpher_vhost::{DetachedPacketError, DmaQueueError};

/// Why an argument is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{0} is NULL")]
    Null(&'static str),
    #[error("{0} has no bytes; an operation of length 0 is refused, as by devices")]
    Empty(&'static str),
    #[error("{what} at {address:#x} with {len} bytes is outside of the address space")]
    Beyond { what: &'static str, address: u64, len: u64 },
    #[error("the ranges at {first:#x} and {second:#x} overlap; only a move (TELPHER_MOVE, telpher_move) allows that")]
    Overlap { first: u64, second: u64 },
    #[error("{what} of {len} bytes is longer than the operation can express")]
    TooLong { what: &'static str, len: u64 },
    #[error("there is no operation {0:#x}; see enum telpher_opcode")]
    Opcode(u32),
    #[error("the flags {0:#x} are unknown or contradict each other; see enum telpher_flag")]
    Flags(u32),
    #[error("there is no type of numbers {0}; see enum telpher_type")]
    DataType(u8),
    #[error("there is no computation {0}; see enum telpher_compute")]
    Compute(u8),
    #[error("a reserved field of the {0} is not zero; start with a zeroed structure or a telpher_op_* function")]
    Reserved(&'static str),
    #[error(
        "DIF settings block {block}, flags {flags:#x}, source {source:#x}, dest {dest:#x} have an unknown bit or block \
         size"
    )]
    // A field named `source` would be taken for the error's cause.
    Dif { block: u8, flags: u8, r#source: u8, dest: u8 },
    #[error("a text argument is not UTF-8")]
    Text,
    #[error("{0}")]
    Option(String),
    #[error("there is no {what} {index}; there are {count}")]
    Index { what: &'static str, index: u64, count: u64 },
    #[error("the flags {0:#x} of a tier are unknown; see enum telpher_tier_flag")]
    TierFlags(u32),
    #[error("a tier with functions that obtain and release memory allows only the flag TELPHER_TIER_NEAR")]
    TierTwice,
    #[error("a tier has no memory; give it a size, or functions that obtain and release memory")]
    TierEmpty,
    #[error(
        "the NUMA node of the block or its copy is unknown: its pages are not allocated yet, or functions allocate the \
         tier's memory; copy it, or place it explicitly"
    )]
    NodeUnknown,
    #[error("a priority must be from 0 to 255; {0} was given")]
    Priority(u32),
    #[error("a pool must have 1 to 2^24 buffers of 1 to 2^20 bytes; {buffers} of {longest} were requested")]
    Pool { buffers: u32, longest: u32 },
    #[error("the pool's memory has {size} bytes, and the pool needs {need}; see telpher_vhost_pool_size")]
    PoolMemory { size: usize, need: usize },
    #[error("there is no kind of port {0}; see enum telpher_switch_kind")]
    PortKind(u32),
    #[error("port {port} has {pairs} pairs of queues; a socket has 1 to 128, and an interface adopts its peer's (0)")]
    PortPairs { port: u32, pairs: u32 },
    #[error("there is no role {0}; see enum telpher_vhost_role")]
    Role(u32),
    #[error(
        "the flags {0:#x} of a heap's tier are unknown or contradict its path; allowed are TELPHER_TIER_ON_NODE and \
         TELPHER_TIER_HUGE_PAGES"
    )]
    HeapTierFlags(u32),
    #[error("there is no advice {0}; see enum telpher_tier_advice")]
    Advice(u32),
    #[error("the flags {0:#x} of an arena are unknown or contradict each other; see enum telpher_tier_arena_flag")]
    ArenaFlags(u32),
    #[error("{address:#x} with {len} bytes is not one or more whole pages of 4 KiB")]
    Pages { address: u64, len: u64 },
    #[error("{len} bytes from offset {offset} are not inside the arena of {size} bytes")]
    Outside { offset: u64, len: u64, size: u64 },
    #[error("{len} bytes from offset {offset} are not inside the block of {size} bytes")]
    OutsideBlock { offset: u64, len: u64, size: u64 },
    #[error("find must be 0, 1 or 2 (enum telpher_find), not {0}")]
    Find(u32),
    #[error("a timeout must be -1 (no limit) or not negative, in nanoseconds; {0} was given")]
    Timeout(i64),
}

/// Every failure of a call.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// An invalid argument.
    Refused(Refusal),
    /// A job.
    Job(JobError),
    /// Any other error: an errno and its message.
    Other(c_int, String),
    /// Not an error of the caller: not ended yet, or no room; with a short message.
    NotYet(c_int, &'static str),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        Failure::Job(error)
    }
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Self {
        Failure::Other(libc::EINVAL, chain(&error))
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        // The system's errno if there is one; otherwise an invalid argument or no such device.
        let errno = system_errno(&error).unwrap_or(match &error {
            OpenError::Config(_) | OpenError::Start { .. } | OpenError::Portal(_) => libc::EINVAL,
            _ => libc::ENODEV,
        });
        Failure::Other(errno, chain(&error))
    }
}

impl From<MapError> for Failure {
    fn from(error: MapError) -> Self {
        Failure::Other(system_errno(&error).unwrap_or(libc::ENOMEM), chain(&error))
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Other(libc::EINVAL, chain(&error))
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Self {
        Failure::Other(libc::EINVAL, chain(&error))
    }
}

impl From<DetachedPacketError> for Failure {
    fn from(error: DetachedPacketError) -> Self {
        Failure::Other(libc::EINVAL, chain(&error))
    }
}

impl From<DmaQueueError> for Failure {
    fn from(error: DmaQueueError) -> Self {
        Failure::Other(libc::EINVAL, chain(&error))
    }
}

impl From<TierError> for Failure {
    fn from(error: TierError) -> Self {
        // The system's errno if there is one; missing features have several errnos.
        let errno = match &error {
            TierError::Userfault(UserfaultError::Forbidden(_)) => libc::EPERM,
            TierError::Userfault(_) | TierError::Scan(_) => libc::ENOSYS,
            TierError::Damon(why) => match **why {
                DamonError::Missing => libc::ENOSYS,
                DamonError::Forbidden(_) => libc::EPERM,
                DamonError::Busy { .. } | DamonError::Ours { .. } | DamonError::Alone(_) | DamonError::Lost { .. } => {
                    libc::EBUSY
                }
                _ => system_errno(&error).unwrap_or(libc::EIO),
            },
            TierError::Perf(PerfError::None) | TierError::NoWindows | TierError::NoTraps => libc::ENOSYS,
            TierError::Forked => libc::ECHILD,
            TierError::Known { .. } => libc::EEXIST,
            TierError::TooManySpans { .. } => libc::ENOSPC,
            TierError::TooMuchAdvice => libc::EAGAIN,
            TierError::File(_) => system_errno(&error).unwrap_or(libc::EINVAL),
            TierError::Options { .. }
            | TierError::HomeTooSmall { .. }
            | TierError::SharedMemory { .. }
            | TierError::PolicyTiers { .. }
            | TierError::NoSuchTier { .. }
            | TierError::Nodes
            | TierError::OnlyShared
            | TierError::NotPages { .. } => libc::EINVAL,
            _ => system_errno(&error).unwrap_or(libc::ENOMEM),
        };
        Failure::Other(errno, chain(&error))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind;
        // An error with only a message has only a kind.
        let errno = system_errno(&error).unwrap_or(match error.kind() {
            ErrorKind::AddrInUse => libc::EADDRINUSE,
            ErrorKind::AlreadyExists => libc::EEXIST,
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::PermissionDenied => libc::EACCES,
            ErrorKind::InvalidInput => libc::EINVAL,
            _ => libc::EIO,
        });
        Failure::Other(errno, chain(&error))
    }
}

impl From<SwitchError> for Failure {
    fn from(error: SwitchError) -> Self {
        let text = chain(&error);
        let errno = match error {
            // The system's errno, or the errno of the kind of error.
            SwitchError::Socket { source, .. }
            | SwitchError::Tap { source, .. }
            | SwitchError::Interface { source, .. }
            | SwitchError::Capture { source, .. }
            | SwitchError::Thread(source) => Failure::from(source).errno(),
            SwitchError::Pool { source, .. } => Failure::from(source).errno(),
            // The caller's arguments: no port, too many threads, too long packets, an invalid name.
            _ => libc::EINVAL,
        };
        Failure::Other(errno, text)
    }
}

impl From<WindowError> for Failure {
    fn from(error: WindowError) -> Self {
        let errno = match &error {
            WindowError::Job(job) => errno_of(job),
            WindowError::Files { .. } => libc::EINVAL,
            WindowError::NoDevice { .. } => libc::EOPNOTSUPP,
            WindowError::Grant(grant) => match grant {
                GrantError::Outside { .. } | GrantError::Range { .. } => libc::EINVAL,
                GrantError::NotAGrant { .. } => libc::EBADF,
                GrantError::ReadOnly => libc::EPERM,
                GrantError::Revoked | GrantError::Gone { .. } => libc::ESTALE,
                GrantError::InUse { .. } => libc::EBUSY,
                GrantError::Forked => libc::ECHILD,
                _ => system_errno(&error).unwrap_or(libc::EIO),
            },
            _ => system_errno(&error).unwrap_or(libc::EIO),
        };
        Failure::Other(errno, chain(&error))
    }
}

impl From<DurableFileError> for Failure {
    fn from(error: DurableFileError) -> Self {
        let errno = match &error {
            DurableFileError::InUse { .. } => libc::EBUSY,
            DurableFileError::Writable { .. } => libc::EPERM,
            DurableFileError::InMemory { .. } | DurableFileError::NoBytes { .. } => libc::EINVAL,
            _ => system_errno(&error).unwrap_or(libc::EIO),
        };
        Failure::Other(errno, chain(&error))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Copy(error) => Failure::Job(error),
            StoreError::Outside { .. } => Failure::Other(libc::EINVAL, chain(&error)),
            _ => Failure::Other(system_errno(&error).unwrap_or(libc::EIO), chain(&error)),
        }
    }
}

impl From<TuningError> for Failure {
    fn from(error: TuningError) -> Self {
        Failure::Other(system_errno(&error).unwrap_or(libc::EINVAL), chain(&error))
    }
}

impl From<RejectReason> for Failure {
    fn from(reason: RejectReason) -> Self {
        match reason {
            RejectReason::Full { .. } => Failure::NotYet(libc::EAGAIN, "the channel is full; fetch completions first"),
            RejectReason::Buffers(error) => Failure::Job(error),
            other => Failure::Other(libc::EINVAL, chain(&other)),
        }
    }
}

/// The errno in an error or one of its causes.
fn system_errno(error: &(dyn Error + 'static)) -> Option<c_int> {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.filter_map(|error| error.downcast_ref::<std::io::Error>()).find_map(std::io::Error::raw_os_error)
}

impl Failure {
    /// The errno, positive.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Failure::Refused(refusal) => match refusal {
                Refusal::Null(_) => libc::EFAULT,
                Refusal::Beyond { .. } => libc::EOVERFLOW,
                Refusal::TooLong { .. } => libc::EMSGSIZE,
                Refusal::NodeUnknown => libc::ENODATA,
                _ => libc::EINVAL,
            },
            Failure::Job(error) => errno_of(error),
            Failure::Other(errno, _) | Failure::NotYet(errno, _) => *errno,
        }
    }

    fn text(&self) -> String {
        match self {
            Failure::Refused(refusal) => refusal.to_string(),
            Failure::Job(error) => error.to_string(),
            Failure::Other(_, text) => text.clone(),
            Failure::NotYet(_, text) => (*text).to_owned(),
        }
    }

    /// Stores it for [`last_text`] and returns the negative errno.
    pub(crate) fn report(self) -> c_int {
        let errno = self.errno();
        // Borrowed or destroyed only if this is called from a signal handler or a thread's last destructor: then the
        // older message stays.
        let _ = LAST.try_with(|last| {
            if let Ok(mut last) = last.try_borrow_mut() {
                last.0 = Some(self);
            }
        });
        -errno
    }
}

/// The positive errno of a job's error; one reason per arm.
fn errno_of(error: &JobError) -> c_int {
    match error {
        // The caller's arguments.
        JobError::Lengths { .. } | JobError::Unit { .. } | JobError::Options { .. } | JobError::Outside { .. } => {
            libc::EINVAL
        }
        JobError::TooLong { .. } => libc::EMSGSIZE,
        // The caller's data is invalid.
        JobError::BadDelta { .. } => libc::EBADMSG,
        JobError::Fault { .. } => libc::EFAULT,
        // The device is busy or too slow.
        JobError::QueueFull { .. } => libc::EBUSY,
        JobError::Deadline { .. } => libc::ETIMEDOUT,
        // The device is gone, and the state of its work is unknown.
        JobError::Stopped { .. } => libc::ENODEV,
        // Neither a queue nor the CPU supports it.
        JobError::Unsupported { .. } => libc::EOPNOTSUPP,
        // An earlier member's failure.
        JobError::Abandoned { .. } => libc::ECANCELED,
        // The device's answer contradicts the descriptor.
        JobError::Nonsense { .. } => libc::EPROTO,
        // The device failed.
        _ => libc::EIO,
    }
}

thread_local! {
    /// The last failure of this thread, and its text once it was fetched.
    static LAST: RefCell<(Option<Failure>, CString)> = RefCell::new((None, CString::default()));
}

/// The message of this thread's last failure; empty if there was none. Valid until this thread's next call.
pub(crate) fn last_text() -> *const c_char {
    const NONE: &CStr = c"";
    let text = LAST.try_with(|last| {
        let mut last = last.try_borrow_mut().ok()?;
        if let Some(failure) = last.0.take() {
            last.1 = sentence(&failure.text());
        }
        Some(last.1.as_ptr())
    });
    text.ok().flatten().unwrap_or(NONE.as_ptr())
}

/// The C representation.
fn sentence(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

impl OpResult {
    /// The result of an accepted operation.
    pub(crate) fn of(result: &Result<Outcome, JobError>, by: Via) -> OpResult {
        let via = match by {
            Via::Cpu => via::TELPHER_VIA_CPU,
            Via::Device => via::TELPHER_VIA_DEVICE,
            _ => via::TELPHER_VIA_BOTH,
        };
        match result {
            Ok(outcome) => OpResult { via, ..OpResult::came_to(outcome) },
            Err(error) => OpResult { via, ..OpResult::failed(error) },
        }
    }

    /// The result of a refused operation.
    pub(crate) fn refused(failure: &Failure) -> OpResult {
        match failure {
            Failure::Job(error) => OpResult::failed(error),
            Failure::Refused(_) => {
                OpResult { status: -failure.errno(), error: error::TELPHER_ERROR_ARGUMENT, ..OpResult::default() }
            }
            _ => OpResult { status: -failure.errno(), error: error::TELPHER_ERROR_OTHER, ..OpResult::default() },
        }
    }

    fn came_to(outcome: &Outcome) -> OpResult {
        let of = |outcome| OpResult { outcome, ..OpResult::default() };
        let tags =
            |tags: &telpher_mover::Tags| Tags { ref_tag: tags.ref_tag, app_tag: tags.app_tag, app_mask: tags.app_mask };
        match outcome {
            Outcome::Done => of(outcome::TELPHER_DONE),
            Outcome::Equal => of(outcome::TELPHER_EQUAL),
            Outcome::Different { at } => OpResult { at: *at, ..of(outcome::TELPHER_DIFFERENT) },
            Outcome::Crc(crc) => OpResult { crc: *crc, ..of(outcome::TELPHER_CRC_VALUE) },
            Outcome::Crc64(crc64) => OpResult { crc64: *crc64, ..of(outcome::TELPHER_CRC64_VALUE) },
            Outcome::Computed(seen) => OpResult { device_status: seen.bits().into(), ..of(outcome::TELPHER_COMPUTED) },
            Outcome::Delta(Delta::Identical) => of(outcome::TELPHER_DELTA_IDENTICAL),
            Outcome::Delta(Delta::Complete { bytes }) => {
                OpResult { bytes: (*bytes).into(), ..of(outcome::TELPHER_DELTA_COMPLETE) }
            }
            Outcome::Delta(Delta::Overflow { bytes, compared }) => {
                OpResult { bytes: (*bytes).into(), at: *compared, ..of(outcome::TELPHER_DELTA_OVERFLOW) }
            }
            Outcome::Dif { source, dest } => {
                OpResult { tags: tags(source), new_tags: tags(dest), ..of(outcome::TELPHER_DIF_DONE) }
            }
            Outcome::DifMismatch { at, what } => {
                OpResult { at: *at, device_status: what.bits().into(), ..of(outcome::TELPHER_DIF_MISMATCH) }
            }
            // An outcome without a number here: done, with no more details.
            _ => of(outcome::TELPHER_DONE),
        }
    }

    fn failed(failed: &JobError) -> OpResult {
        let of = |error| OpResult { status: -errno_of(failed), error, ..OpResult::default() };
        let op = |op: &Opcode| u32::from(op.code());
        let status = |status: &Status| u32::from(status.code());
        match failed {
            JobError::Lengths { first, second } => {
                OpResult { at: *first, bytes: *second, ..of(error::TELPHER_ERROR_LENGTHS) }
            }
            JobError::Unit { op: o, len, unit } => {
                OpResult { opcode: op(o), at: *len, bytes: *unit, ..of(error::TELPHER_ERROR_UNIT) }
            }
            JobError::TooLong { op: o, len, max } => {
                OpResult { opcode: op(o), at: *len, bytes: *max, ..of(error::TELPHER_ERROR_TOO_LONG) }
            }
            JobError::BadDelta { at, status: s } => {
                OpResult { at: *at, device_status: status(s), ..of(error::TELPHER_ERROR_BAD_DELTA) }
            }
            JobError::Fault { address, write, done } => {
                OpResult { address: *address, write: (*write).into(), bytes: *done, ..of(error::TELPHER_ERROR_FAULT) }
            }
            JobError::QueueFull { offers } => OpResult { at: (*offers).into(), ..of(error::TELPHER_ERROR_QUEUE_FULL) },
            JobError::Refused { op: o, status: s } => {
                OpResult { opcode: op(o), device_status: status(s), ..of(error::TELPHER_ERROR_REFUSED) }
            }
            JobError::Unsupported { op: o } => OpResult { opcode: op(o), ..of(error::TELPHER_ERROR_UNSUPPORTED) },
            JobError::Nonsense { op: o, status: s, completed } => OpResult {
                opcode: op(o),
                device_status: status(s),
                bytes: (*completed).into(),
                ..of(error::TELPHER_ERROR_NONSENSE)
            },
            JobError::Stopped { op: o, .. } => OpResult { opcode: op(o), ..of(error::TELPHER_ERROR_STOPPED) },
            JobError::Options { op: o, .. } => OpResult { opcode: op(o), ..of(error::TELPHER_ERROR_OPTIONS) },
            JobError::Outside { entry, offset, len } => {
                OpResult { at: *entry, address: *offset, bytes: *len, ..of(error::TELPHER_ERROR_OUTSIDE) }
            }
            JobError::Abandoned { because } => OpResult { at: *because as u64, ..of(error::TELPHER_ERROR_ABANDONED) },
            JobError::Deadline { after } => {
                let nanos = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                OpResult { at: nanos, ..of(error::TELPHER_ERROR_DEADLINE) }
            }
            _ => of(error::TELPHER_ERROR_OTHER),
        }
    }
}

/// What does not fit in a result.
const ELSEWHERE: &str = "what the machine said is in telpher_last_error() of the call that told of it";

/// The text of [`JobError::Options`] that does not fit either.
const NOT_THESE: &str = "does not have these types or options";

impl OpResult {
    /// The result as a sentence: the outcome, or the failure with the text of [`last_text`].
    pub(crate) fn text(&self) -> String {
        match self.outcome {
            outcome::TELPHER_DONE => "done".into(),
            outcome::TELPHER_EQUAL => "equal".into(),
            outcome::TELPHER_DIFFERENT => format!("different from byte {} on", self.at),
            outcome::TELPHER_CRC_VALUE => format!("CRC32C {:#010x}", self.crc),
            outcome::TELPHER_CRC64_VALUE => format!("CRC of 64 bits {:#018x}", self.crc64),
            outcome::TELPHER_COMPUTED => self.computed_text(),
            outcome::TELPHER_DELTA_IDENTICAL => "identical; no delta record was written".into(),
            outcome::TELPHER_DELTA_COMPLETE => format!("a delta record of {} bytes", self.bytes),
            outcome::TELPHER_DELTA_OVERFLOW => {
                format!("the delta record is full after {} bytes; {} source bytes were compared", self.bytes, self.at)
            }
            outcome::TELPHER_DIF_DONE => "every block was processed".into(),
            outcome::TELPHER_DIF_MISMATCH => {
                format!("the block at byte {} does not match its tuple (DIF status {:#x})", self.at, self.device_status)
            }
            _ => match self.job_error() {
                Some(error) => error.to_string(),
                None if self.error == error::TELPHER_ERROR_ARGUMENT => "an argument was refused".into(),
                None => format!("failed with errno {}", self.status.wrapping_neg()),
            },
        }
    }

    fn computed_text(&self) -> String {
        let seen = ComputeResult::from_bits_retain(u8::try_from(self.device_status).unwrap_or(0));
        let words = [
            (ComputeResult::INVALID, "not a number"),
            (ComputeResult::OVERFLOW, "out of range"),
            (ComputeResult::UNDERFLOW, "below the normal range"),
            (ComputeResult::DENORMAL, "computed from an operand below the normal range"),
        ];
        let words: Vec<_> = words.iter().filter(|(bit, _)| seen.contains(*bit)).map(|(_, word)| *word).collect();
        if words.is_empty() { "computed".into() } else { format!("computed; a result is {}", words.join(", or ")) }
    }

    /// The error that it was created from, if every field of that error fits.
    fn job_error(&self) -> Option<JobError> {
        let op = || Some(Opcode::from_code(u8::try_from(self.opcode).ok()?));
        let status = || Some(Status::from_code(u8::try_from(self.device_status).ok()?));
        Some(match self.error {
            error::TELPHER_ERROR_LENGTHS => JobError::Lengths { first: self.at, second: self.bytes },
            error::TELPHER_ERROR_UNIT => JobError::Unit { op: op()?, len: self.at, unit: self.bytes },
            error::TELPHER_ERROR_TOO_LONG => JobError::TooLong { op: op()?, len: self.at, max: self.bytes },
            error::TELPHER_ERROR_BAD_DELTA => JobError::BadDelta { at: self.at, status: status()? },
            error::TELPHER_ERROR_FAULT => {
                JobError::Fault { address: self.address, write: self.write != 0, done: self.bytes }
            }
            error::TELPHER_ERROR_QUEUE_FULL => JobError::QueueFull { offers: u32::try_from(self.at).ok()? },
            error::TELPHER_ERROR_REFUSED => JobError::Refused { op: op()?, status: status()? },
            error::TELPHER_ERROR_UNSUPPORTED => JobError::Unsupported { op: op()? },
            error::TELPHER_ERROR_NONSENSE => {
                JobError::Nonsense { op: op()?, status: status()?, completed: u32::try_from(self.bytes).ok()? }
            }
            error::TELPHER_ERROR_ABANDONED => JobError::Abandoned { because: usize::try_from(self.at).ok()? },
            error::TELPHER_ERROR_STOPPED => JobError::Stopped { op: op()?, why: ELSEWHERE.into() },
            error::TELPHER_ERROR_OPTIONS => JobError::Options { op: op()?, why: NOT_THESE },
            error::TELPHER_ERROR_OUTSIDE => JobError::Outside { entry: self.at, offset: self.address, len: self.bytes },
            error::TELPHER_ERROR_DEADLINE => JobError::Deadline { after: std::time::Duration::from_nanos(self.at) },
            _ => return None,
        })
    }
}
