//! Status codes of commands. Source: NVMe Base 2.0 §3.3.3.2.1, NVM Command Set 1.0 §3.1, NVMe over Fabrics 1.1 §3.

use std::fmt;

/// A command's status: type, code and the bit "do not retry".
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// The bit "do not retry" in a completion's status word.
const DO_NOT_RETRY: u16 = 1 << 15;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $kind:literal / $code:literal;)*) => {
        $($(#[$doc])* pub const $name: Status = Status::new($kind, $code);)*
    };
}

impl Status {
    /// A status of this type (0 to 7) and code, which may be retried.
    #[must_use]
    pub const fn new(kind: u16, code: u16) -> Status {
        Status((kind & 7) << 9 | (code & 0xff) << 1)
    }

    statuses! {
        /// The command succeeded.
        SUCCESS = 0 / 0x00;
        /// The opcode is not supported.
        INVALID_OPCODE = 0 / 0x01;
        /// A field has a value that is not supported.
        INVALID_FIELD = 0 / 0x02;
        /// The identifier belongs to a command that has not completed.
        ID_CONFLICT = 0 / 0x03;
        /// The target failed in a way that no other status describes.
        INTERNAL_ERROR = 0 / 0x06;
        /// The command was aborted at the host's request.
        ABORTED = 0 / 0x07;
        /// The other half of the fused pair failed.
        FAILED_FUSED = 0 / 0x09;
        /// The other half of the fused pair is missing.
        MISSING_FUSED = 0 / 0x0a;
        /// The namespace does not exist or is not attached.
        INVALID_NAMESPACE = 0 / 0x0b;
        /// The command came in a state in which it is not allowed.
        SEQUENCE_ERROR = 0 / 0x0c;
        /// The length of the data descriptor does not fit the command.
        DATA_LENGTH = 0 / 0x0f;
        /// The type of the data descriptor is not supported here.
        SGL_TYPE = 0 / 0x11;
        /// The namespace is read-only.
        WRITE_PROTECTED = 0 / 0x20;
        /// The data was damaged on its way; the host should send the command again.
        TRANSIENT_TRANSPORT_ERROR = 0 / 0x22;
        /// The blocks are beyond the end of the namespace.
        LBA_RANGE = 0 / 0x80;
        /// The backend has no space left.
        CAPACITY_EXCEEDED = 0 / 0x81;
        /// The host has as many event requests outstanding as allowed.
        EVENT_LIMIT = 1 / 0x05;
        /// There is no such log page.
        INVALID_LOG_PAGE = 1 / 0x09;
        /// The feature cannot be saved.
        NOT_SAVEABLE = 1 / 0x0d;
        /// Connect has a record format that is not supported.
        INCOMPATIBLE_FORMAT = 1 / 0x80;
        /// No controller is available; the host may try again later.
        CONTROLLER_BUSY = 1 / 0x81;
        /// A parameter of Connect, or of a property command, is invalid.
        CONNECT_PARAMETERS = 1 / 0x82;
        /// The subsystem does not allow this host.
        INVALID_HOST = 1 / 0x84;
        /// The source ranges of a Copy exceed a limit.
        COPY_LIMIT = 1 / 0x83;
        /// The queue identifier is in use.
        INVALID_QUEUE = 1 / 0x01;
        /// The backend could not write.
        WRITE_FAULT = 2 / 0x80;
        /// The backend could not read.
        READ_ERROR = 2 / 0x81;
        /// The guard of a stored block does not match its data.
        GUARD_CHECK = 2 / 0x82;
        /// The application tag of a stored block is not that of the namespace.
        APPLICATION_TAG_CHECK = 2 / 0x83;
        /// The reference tag of a stored block is not its address.
        REFERENCE_TAG_CHECK = 2 / 0x84;
        /// The compared data differs.
        COMPARE_FAILURE = 2 / 0x85;
    }

    /// The same status, and the host should not repeat the command.
    #[must_use]
    pub const fn do_not_retry(self) -> Status {
        Status(self.0 | DO_NOT_RETRY)
    }

    /// The completion's status word, with the phase tag (bit 0) cleared.
    #[must_use]
    pub const fn word(self) -> u16 {
        self.0
    }

    /// Parses a completion's status word.
    #[must_use]
    pub const fn from_word(word: u16) -> Status {
        Status(word & !1)
    }

    /// The status code type.
    #[must_use]
    pub const fn kind(self) -> u16 {
        self.0 >> 9 & 7
    }

    /// The status code.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 >> 1 & 0xff
    }

    /// Returns whether the host should not repeat the command.
    #[must_use]
    pub const fn is_final(self) -> bool {
        self.0 & DO_NOT_RETRY != 0
    }

    /// Returns whether protection information did not match.
    #[must_use]
    pub fn is_protection_error(self) -> bool {
        let errors = [Status::GUARD_CHECK, Status::APPLICATION_TAG_CHECK, Status::REFERENCE_TAG_CHECK];
        errors.contains(&Status(self.0 & !DO_NOT_RETRY))
    }

    /// Returns whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & !DO_NOT_RETRY == 0
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retry = if self.is_final() { ", do not retry" } else { "" };
        write!(f, "Status({}h/{:02x}h{retry})", self.kind(), self.code())
    }
}
