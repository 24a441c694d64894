//! Messages of vfio-user: headers, requests and what their fields mean. A message is checked completely before any
//! part of it takes effect.
//!
//! Source: libvfio-user, `include/vfio-user.h`; QEMU, docs/interop/vfio-user. All fields are little-endian.

use std::ops::Range;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 16;
/// The most bytes of data in one region access. Announced to the client.
pub(crate) const MOST_DATA: u32 = 1 << 20;
/// The most files with one message. Source: QEMU, `VFIO_USER_MAX_MAX_FDS`; it refuses a server that announces more.
pub(crate) const MOST_FILES: usize = 16;
/// The longest body: a region access with its fields.
const MOST_BODY: usize = MOST_DATA as usize + 64;

/// Type bits of the flags.
const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// A command's code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceInfo = 4,
    RegionInfo = 5,
    RegionIoFiles = 6,
    IrqInfo = 7,
    SetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    DmaRead = 11,
    DmaWrite = 12,
    DeviceReset = 13,
    RegionWriteMulti = 15,
    DeviceFeature = 16,
    MigrationRead = 17,
    MigrationWrite = 18,
}

impl Command {
    const ALL: [Command; 17] = [
        Command::Version,
        Command::DmaMap,
        Command::DmaUnmap,
        Command::DeviceInfo,
        Command::RegionInfo,
        Command::RegionIoFiles,
        Command::IrqInfo,
        Command::SetIrqs,
        Command::RegionRead,
        Command::RegionWrite,
        Command::DmaRead,
        Command::DmaWrite,
        Command::DeviceReset,
        Command::RegionWriteMulti,
        Command::DeviceFeature,
        Command::MigrationRead,
        Command::MigrationWrite,
    ];

    fn from_code(code: u16) -> Option<Command> {
        Command::ALL.into_iter().find(|command| *command as u16 == code)
    }
}

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// Chosen by the sender of a command; its reply has the same.
    pub(crate) id: u16,
    /// The command's code.
    pub(crate) command: u16,
    /// Bytes of the whole message.
    size: u32,
    flags: u32,
    error: u32,
}

impl Header {
    /// The header of a command of the server.
    pub(crate) fn command(id: u16, command: Command, body: usize) -> Header {
        Header { id, command: command as u16, size: size_of(body), flags: 0, error: 0 }
    }

    /// The header of a successful reply to this command.
    pub(crate) fn reply(&self, body: usize) -> Header {
        Header { size: size_of(body), flags: REPLY, error: 0, ..*self }
    }

    /// The header of a refusal of this command.
    pub(crate) fn refusal(&self, errno: Errno) -> Header {
        Header { size: size_of(0), flags: REPLY | ERROR, error: errno as u32, ..*self }
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Header {
        let mut fields = Fields(bytes);
        // The array has all five fields.
        Header {
            id: fields.u16().unwrap_or_default(),
            command: fields.u16().unwrap_or_default(),
            size: fields.u32().unwrap_or_default(),
            flags: fields.u32().unwrap_or_default(),
            error: fields.u32().unwrap_or_default(),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.error.to_le_bytes());
        bytes
    }

    /// Returns the bytes that follow the header.
    ///
    /// # Errors
    /// If the message is shorter than a header, or longer than any message may be.
    pub(crate) fn body(&self) -> Result<usize, WireError> {
        let body = usize::try_from(self.size).ok().and_then(|size| size.checked_sub(HEADER_BYTES));
        body.filter(|body| *body <= MOST_BODY).ok_or(WireError::Size { size: self.size })
    }

    pub(crate) fn is_reply(&self) -> bool {
        self.flags & TYPE == REPLY
    }

    pub(crate) fn is_error(&self) -> bool {
        self.flags & ERROR != 0
    }

    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }
}

fn size_of(body: usize) -> u32 {
    // Cannot lose bits: bodies have at most `MOST_BODY` bytes.
    u32::try_from(HEADER_BYTES + body).unwrap_or(u32::MAX)
}

/// Error numbers in refusals. Source: UAPI, asm-generic/errno-base.h and errno.h.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Errno {
    NoEntry = 2,
    NoMemory = 12,
    Exists = 17,
    Invalid = 22,
    NotSupported = 95,
}

/// Why a message cannot be understood. The stream is out of step after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// No message has this size.
    #[error("a message of {size} bytes; messages have {HEADER_BYTES} to {} bytes", HEADER_BYTES + MOST_BODY)]
    Size {
        /// What the header says.
        size: u32,
    },
}

/// Flags of DMA_MAP.
pub(crate) mod dma_flags {
    pub(crate) const READ: u32 = 1;
    pub(crate) const WRITE: u32 = 2;
    /// DMA_UNMAP: with the bitmap of changed pages.
    pub(crate) const UNMAP_DIRTY: u32 = 1;
    /// DMA_UNMAP: all maps.
    pub(crate) const UNMAP_ALL: u32 = 2;
}

/// What SET_IRQS does, and with what.
pub(crate) mod irq_flags {
    pub(crate) const DATA_NONE: u32 = 1;
    pub(crate) const DATA_BOOL: u32 = 2;
    pub(crate) const DATA_EVENTFD: u32 = 4;
    pub(crate) const MASK: u32 = 8;
    pub(crate) const UNMASK: u32 = 0x10;
    pub(crate) const TRIGGER: u32 = 0x20;
}

/// A range of guest addresses that the device may access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DmaRegion {
    pub(crate) flags: u32,
    /// Offset in the file.
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) len: u64,
}

/// A change of interrupt vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SetIrqs<'a> {
    pub(crate) flags: u32,
    pub(crate) index: u32,
    pub(crate) start: u32,
    pub(crate) count: u32,
    /// A byte for each vector, if the flags say so.
    pub(crate) data: &'a [u8],
}

/// A command of the client with its fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request<'a> {
    Version {
        major: u16,
        capabilities: &'a [u8],
    },
    DmaMap(DmaRegion),
    DmaUnmap {
        flags: u32,
        address: u64,
        len: u64,
    },
    DeviceInfo,
    RegionInfo {
        index: u32,
    },
    IrqInfo {
        index: u32,
    },
    SetIrqs(SetIrqs<'a>),
    RegionRead {
        offset: u64,
        region: u32,
        count: u32,
    },
    RegionWrite {
        offset: u64,
        region: u32,
        data: &'a [u8],
    },
    DeviceReset,
    /// Device features: migration and the log of changed pages.
    Migration,
    /// A command that this server does not have.
    Unknown,
}

impl<'a> Request<'a> {
    /// Parses the body of a command; `None` if it is not what the command has.
    pub(crate) fn parse(header: &Header, body: &'a [u8]) -> Option<Request<'a>> {
        let mut fields = Fields(body);
        let Some(command) = Command::from_code(header.command) else { return Some(Request::Unknown) };
        Some(match command {
            Command::Version => {
                let (major, _minor) = (fields.u16()?, fields.u16()?);
                Request::Version { major, capabilities: fields.0 }
            }
            Command::DmaMap => {
                let (_argsz, flags) = (fields.u32()?, fields.u32()?);
                let (offset, address, len) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Request::DmaMap(DmaRegion { flags, offset, address, len })
            }
            Command::DmaUnmap => {
                let (_argsz, flags) = (fields.u32()?, fields.u32()?);
                Request::DmaUnmap { flags, address: fields.u64()?, len: fields.u64()? }
            }
            Command::DeviceInfo => Request::DeviceInfo,
            Command::RegionInfo => {
                let (_argsz, _flags) = (fields.u32()?, fields.u32()?);
                Request::RegionInfo { index: fields.u32()? }
            }
            Command::IrqInfo => {
                let (_argsz, _flags) = (fields.u32()?, fields.u32()?);
                Request::IrqInfo { index: fields.u32()? }
            }
            Command::SetIrqs => {
                let (_argsz, flags) = (fields.u32()?, fields.u32()?);
                let (index, start, count) = (fields.u32()?, fields.u32()?, fields.u32()?);
                Request::SetIrqs(SetIrqs { flags, index, start, count, data: fields.0 })
            }
            Command::RegionRead => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                (count <= MOST_DATA).then_some(Request::RegionRead { offset, region, count })?
            }
            Command::RegionWrite => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                let data = fields.0.get(..usize::try_from(count).ok()?)?;
                Request::RegionWrite { offset, region, data }
            }
            Command::DeviceReset => Request::DeviceReset,
            Command::DeviceFeature | Command::MigrationRead | Command::MigrationWrite => Request::Migration,
            Command::RegionIoFiles | Command::DmaRead | Command::DmaWrite | Command::RegionWriteMulti => {
                Request::Unknown
            }
        })
    }
}

/// Returns the bytes `offset` to `offset + count` as indices, if they lie in a region of this size.
pub(crate) fn within(offset: u64, count: usize, size: u64) -> Option<Range<u64>> {
    let end = offset.checked_add(count as u64)?;
    (end <= size).then_some(offset..end)
}

/// Fields of a message, taken from the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the tests' numbers are small")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(command: u16, size: u32) -> Header {
        Header { id: 7, command, size, flags: 0, error: 0 }
    }

    #[test]
    fn sizes_outside_the_limits_are_refused() {
        for size in [0, 15, 17 + MOST_BODY as u32, u32::MAX] {
            assert_eq!(header(1, size).body(), Err(WireError::Size { size }));
        }
        assert_eq!(header(1, 16).body(), Ok(0));
        assert_eq!(header(1, 16 + MOST_BODY as u32).body(), Ok(MOST_BODY));
    }

    #[test]
    fn a_reply_keeps_id_and_command() {
        let command = header(9, 32);
        let reply = Header::from_bytes(&command.reply(3).to_bytes());
        assert_eq!((reply.id, reply.command, reply.body()), (7, 9, Ok(3)));
        assert!(reply.is_reply() && !reply.is_error());
        let refusal = Header::from_bytes(&command.refusal(Errno::Invalid).to_bytes());
        assert!(refusal.is_reply() && refusal.is_error() && refusal.error == 22);
    }

    #[test]
    fn a_write_has_as_many_bytes_as_it_says() {
        let mut body = [0_u8; 24];
        body[12] = 8;
        let parsed = Request::parse(&header(10, 40), &body);
        assert_eq!(parsed, Some(Request::RegionWrite { offset: 0, region: 0, data: &[0; 8] }));
        body[12] = 9;
        assert_eq!(Request::parse(&header(10, 40), &body), None);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in any::<[u8; HEADER_BYTES]>(), code in 0_u16..24,
                                          body in proptest::collection::vec(any::<u8>(), 0..96)) {
            let any = Header::from_bytes(&bytes);
            prop_assert_eq!(any.to_bytes(), bytes);
            let _ = any.body();
            for header in [any, header(code, 16)] {
                match Request::parse(&header, &body) {
                    Some(Request::RegionWrite { data, .. }) => prop_assert!(data.len() + 16 <= body.len()),
                    Some(Request::RegionRead { count, .. }) => prop_assert!(count <= MOST_DATA),
                    _ => {}
                }
            }
        }
    }
}
