//! PDUs: byte layouts, and the checks that need no state of a command.
//!
//! ```text
//! common header (8) | header of the type | HDGST (4) | padding | data | DDGST (4)
//! └──────────────── HLEN ───────────────┘            └ at PDO
//! └─────────────────────────────── PLEN ───────────────────────────────────────┘
//! ```
//!
//! Source: NVMe/TCP Transport 1.1 §3.6.

use crate::command::{Completion, Submission};
use crate::digest::{DIGEST_BYTES, Digests};
use crate::limits::MOST_HEADER;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// FLAGS: the header has a digest.
pub const HAS_HEADER_DIGEST: u8 = 1 << 0;
/// FLAGS: the data has a digest.
pub const HAS_DATA_DIGEST: u8 = 1 << 1;
/// FLAGS: the last PDU of an R2T's or a read's data.
pub const LAST: u8 = 1 << 2;
/// FLAGS of C2HData: the command succeeded, and no response follows.
pub const SUCCESS: u8 = 1 << 3;

/// The type of a PDU. Source: NVMe/TCP Transport 1.1 §3.6.1, Figure 20.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Initialise Connection Request, by the host.
    IcReq = 0x00,
    /// Initialise Connection Response, by the controller.
    IcResp = 0x01,
    /// The host terminates the connection.
    H2cTermReq = 0x02,
    /// The controller terminates the connection.
    C2hTermReq = 0x03,
    /// A command, with or without data.
    CapsuleCmd = 0x04,
    /// A command's completion.
    CapsuleResp = 0x05,
    /// Data to the controller, asked for by an R2T.
    H2cData = 0x06,
    /// Data to the host.
    C2hData = 0x07,
    /// Ready to Transfer: the controller asks for data.
    R2t = 0x09,
}

/// The end that receives a PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receiver {
    /// The controller, which receives the host's PDUs.
    Controller,
    /// The host.
    Host,
}

impl Kind {
    /// All types.
    pub const ALL: [Kind; 9] = [
        Kind::IcReq,
        Kind::IcResp,
        Kind::H2cTermReq,
        Kind::C2hTermReq,
        Kind::CapsuleCmd,
        Kind::CapsuleResp,
        Kind::H2cData,
        Kind::C2hData,
        Kind::R2t,
    ];

    /// Parses the type of a PDU for this receiver; `None` if there is no such type in that direction.
    #[must_use]
    pub fn of(byte: u8, receiver: Receiver) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte && kind.receiver() == receiver)
    }

    /// The end that receives this type.
    #[must_use]
    pub fn receiver(self) -> Receiver {
        match self {
            Kind::IcReq | Kind::H2cTermReq | Kind::CapsuleCmd | Kind::H2cData => Receiver::Controller,
            Kind::IcResp | Kind::C2hTermReq | Kind::CapsuleResp | Kind::C2hData | Kind::R2t => Receiver::Host,
        }
    }

    /// HLEN: the bytes of the header without its digest.
    #[must_use]
    pub fn header_len(self) -> u8 {
        match self {
            Kind::IcReq | Kind::IcResp => 128,
            Kind::CapsuleCmd => 72,
            _ => 24,
        }
    }

    /// Returns whether the header has a digest if header digests were negotiated.
    #[must_use]
    pub fn can_have_header_digest(self) -> bool {
        !matches!(self, Kind::IcReq | Kind::IcResp | Kind::H2cTermReq | Kind::C2hTermReq)
    }

    /// Returns whether the PDU can have data with a digest.
    #[must_use]
    pub fn can_have_data(self) -> bool {
        matches!(self, Kind::CapsuleCmd | Kind::H2cData | Kind::C2hData)
    }
}

/// The common header (CH) of all PDUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// The type.
    pub kind: u8,
    /// FLAGS.
    pub flags: u8,
    /// HLEN: the header's bytes without its digest.
    pub hlen: u8,
    /// PDO: the offset of the data from the start of the PDU, or 0 without data.
    pub pdo: u8,
    /// PLEN: the bytes of the whole PDU.
    pub plen: U32,
}

/// Offsets of fields, for the field FEI of a fatal error.
pub mod offset {
    /// PDU-Type.
    pub const KIND: u32 = 0;
    /// FLAGS.
    pub const FLAGS: u32 = 1;
    /// HLEN.
    pub const HLEN: u32 = 2;
    /// PDO.
    pub const PDO: u32 = 3;
    /// PLEN.
    pub const PLEN: u32 = 4;
    /// PFV of ICReq.
    pub const PFV: u32 = 8;
    /// HPDA of ICReq.
    pub const HPDA: u32 = 10;
    /// TTAG of H2CData.
    pub const TTAG: u32 = 10;
    /// DATAL of H2CData and C2HData.
    pub const DATAL: u32 = 16;
}

/// ICReq. Source: NVMe/TCP Transport 1.1 §3.6.2.2.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcReq {
    /// The common header.
    pub common: CommonHeader,
    /// PFV: the version of the PDU's format, 0.
    pub pfv: U16,
    /// HPDA: data to the host is aligned to (HPDA + 1) × 4 bytes; at most 31.
    pub hpda: u8,
    /// DGST: the digests that the host asks for.
    pub dgst: u8,
    /// MAXR2T: the R2Ts that the host accepts for one command at once, minus 1.
    pub maxr2t: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

/// ICResp. Source: NVMe/TCP Transport 1.1 §3.6.2.3.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IcResp {
    /// The common header.
    pub common: CommonHeader,
    /// PFV: the version of the PDU's format, 0.
    pub pfv: U16,
    /// CPDA: data to the controller is aligned to (CPDA + 1) × 4 bytes. Linux accepts only 0.
    pub cpda: u8,
    /// DGST: the digests of this connection.
    pub dgst: u8,
    /// MAXH2CDATA: the largest data of one H2CData.
    pub maxh2cdata: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

/// H2CTermReq and C2HTermReq. Source: NVMe/TCP Transport 1.1 §3.6.2.4, §3.6.2.5.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TermReq {
    /// The common header.
    pub common: CommonHeader,
    /// FES: the kind of error.
    pub fes: U16,
    /// FEI: the field or the digest that is wrong.
    pub fei: U32,
    /// Reserved.
    pub reserved: [u8; 10],
}

/// CapsuleCmd. Source: NVMe/TCP Transport 1.1 §3.6.2.6.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapsuleCmd {
    /// The common header.
    pub common: CommonHeader,
    /// The command.
    pub command: Submission,
}

/// CapsuleResp. Source: NVMe/TCP Transport 1.1 §3.6.2.7.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapsuleResp {
    /// The common header.
    pub common: CommonHeader,
    /// The completion.
    pub completion: Completion,
}

/// H2CData and C2HData. Source: NVMe/TCP Transport 1.1 §3.6.2.8, §3.6.2.9.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DataHeader {
    /// The common header.
    pub common: CommonHeader,
    /// CCCID: the command's identifier.
    pub cccid: U16,
    /// TTAG: the R2T's tag; reserved in C2HData.
    pub ttag: U16,
    /// DATAO: the offset in the command's data.
    pub datao: U32,
    /// DATAL: the bytes of data.
    pub datal: U32,
    /// Reserved.
    pub reserved: U32,
}

/// R2T. Source: NVMe/TCP Transport 1.1 §3.6.2.10.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct R2t {
    /// The common header.
    pub common: CommonHeader,
    /// CCCID: the command's identifier.
    pub cccid: U16,
    /// TTAG: the tag that the data must carry.
    pub ttag: U16,
    /// R2TO: the offset in the command's data.
    pub r2to: U32,
    /// R2TL: the bytes asked for.
    pub r2tl: U32,
    /// Reserved.
    pub reserved: U32,
}

const _: () = {
    assert!(size_of::<CommonHeader>() == 8);
    assert!(size_of::<IcReq>() == 128 && size_of::<IcResp>() == 128);
    assert!(size_of::<TermReq>() == 24 && size_of::<CapsuleCmd>() == 72 && size_of::<CapsuleResp>() == 24);
    assert!(size_of::<DataHeader>() == 24 && size_of::<R2t>() == 24);
};

/// An error that ends the connection. Source: NVMe/TCP Transport 1.1 §3.6.2.4, Figure 25.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FatalError {
    /// FES 01h: a field of a header is invalid.
    #[error("the field at offset {offset} of a PDU's header is invalid")]
    HeaderField {
        /// The field's offset in the PDU.
        offset: u32,
    },
    /// FES 02h: the PDU is not allowed at this point.
    #[error("a PDU came out of sequence")]
    Sequence,
    /// FES 03h: the header's digest is wrong.
    #[error("a header's digest is wrong; received {received:#010x}")]
    HeaderDigest {
        /// The digest that was received.
        received: u32,
    },
    /// FES 04h: data for a range that was not asked for.
    #[error("data came for a range that was not asked for")]
    Range,
    /// FES 05h: more data than the limit.
    #[error("a PDU has more data than the limit")]
    Limit,
    /// FES 06h: a parameter is not supported.
    #[error("the parameter at offset {offset} of a PDU is not supported")]
    Unsupported {
        /// The field's offset in the PDU.
        offset: u32,
    },
}

impl FatalError {
    /// FES and FEI.
    #[must_use]
    pub fn words(self) -> (u16, u32) {
        match self {
            FatalError::HeaderField { offset } => (1, offset),
            FatalError::Sequence => (2, 0),
            FatalError::HeaderDigest { received } => (3, received),
            FatalError::Range => (4, 0),
            FatalError::Limit => (5, 0),
            FatalError::Unsupported { offset } => (6, offset),
        }
    }
}

/// Where the parts of a PDU are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The type.
    pub kind: Kind,
    /// FLAGS.
    pub flags: u8,
    /// The header's bytes without its digest.
    pub header_len: usize,
    /// The header has a digest.
    pub header_digest: bool,
    /// The bytes before the data: header, digest and padding.
    pub before_data: usize,
    /// The bytes of data.
    pub data_len: u32,
    /// The data has a digest.
    pub data_digest: bool,
}

/// Checks a common header. `alignment` is that of the data in bytes, a multiple of 4.
///
/// # Errors
/// The [`FatalError`] to answer with.
pub fn layout(
    common: &CommonHeader,
    receiver: Receiver,
    digests: Digests,
    alignment: usize,
) -> Result<Layout, FatalError> {
    let field = |offset| FatalError::HeaderField { offset };
    let kind = Kind::of(common.kind, receiver).ok_or(field(offset::KIND))?;
    if common.hlen != kind.header_len() {
        return Err(field(offset::HLEN));
    }
    let header_digest = kind.can_have_header_digest() && digests.header;
    // A digest that was not negotiated, or is missing, makes the rest of the PDU ambiguous.
    if kind.can_have_header_digest() && (common.flags & HAS_HEADER_DIGEST != 0) != digests.header {
        return Err(field(offset::FLAGS));
    }
    let header_len = usize::from(common.hlen);
    let header_end = header_len + if header_digest { DIGEST_BYTES } else { 0 };
    let plen = usize::try_from(common.plen.get()).map_err(|_| field(offset::PLEN))?;
    if matches!(kind, Kind::H2cTermReq | Kind::C2hTermReq) {
        // One to 128 bytes of the header at fault follow directly.
        let offending = plen.checked_sub(header_len).filter(|len| (1..=MOST_HEADER).contains(len));
        let data_len = offending.and_then(|len| u32::try_from(len).ok()).ok_or(field(offset::PLEN))?;
        let before_data = header_len;
        return Ok(Layout {
            kind,
            flags: common.flags,
            header_len,
            header_digest,
            before_data,
            data_len,
            data_digest: false,
        });
    }
    if plen < header_end || (!kind.can_have_data() && plen != header_end) {
        return Err(field(offset::PLEN));
    }
    let digest_flag = common.flags & HAS_DATA_DIGEST != 0;
    if kind.can_have_data() && digest_flag && !digests.data {
        return Err(field(offset::FLAGS));
    }
    if !kind.can_have_data() || (common.pdo == 0 && plen == header_end) {
        return Ok(Layout {
            kind,
            flags: common.flags,
            header_len,
            header_digest,
            before_data: header_end,
            data_len: 0,
            data_digest: false,
        });
    }
    let before_data = usize::from(common.pdo);
    let is_placed = (header_end..=MOST_HEADER).contains(&before_data)
        && before_data <= plen
        && before_data.is_multiple_of(alignment);
    if !is_placed {
        return Err(field(offset::PDO));
    }
    let rest = plen - before_data;
    if rest > 0 && digests.data && !digest_flag {
        return Err(field(offset::FLAGS));
    }
    let data_digest = rest > 0 && digests.data;
    let data_len = if data_digest { rest.checked_sub(DIGEST_BYTES).filter(|&len| len > 0) } else { Some(rest) };
    let data_len = data_len.and_then(|len| u32::try_from(len).ok()).ok_or(field(offset::PLEN))?;
    Ok(Layout { kind, flags: common.flags, header_len, header_digest, before_data, data_len, data_digest })
}

/// Where the data of a PDU of this type starts: after header and digest, rounded up to `alignment` bytes.
#[must_use]
pub fn data_offset(kind: Kind, digests: Digests, alignment: usize) -> usize {
    let digest = if digests.header && kind.can_have_header_digest() { DIGEST_BYTES } else { 0 };
    (usize::from(kind.header_len()) + digest).next_multiple_of(alignment)
}

/// Appends the bytes of a PDU before its data: the header with its common header filled in, its digest, and padding.
///
/// `header` starts with a common header whose contents are replaced.
///
/// # Panics
/// If `header` is shorter than a common header, or the data would start behind [`MOST_HEADER`].
// The callers know the kind, so inlining leaves little to do.
#[inline(always)]
pub fn append(
    bytes: &mut Vec<u8>,
    kind: Kind,
    flags: u8,
    header: &[u8],
    data_len: usize,
    digests: Digests,
    alignment: usize,
) {
    let header_digest = digests.header && kind.can_have_header_digest();
    let data_digest = digests.data && kind.can_have_data() && data_len > 0;
    let header_end = header.len() + if header_digest { DIGEST_BYTES } else { 0 };
    let has_offset = data_len > 0 && kind.can_have_data();
    let before_data = if has_offset { data_offset(kind, digests, alignment) } else { header_end };
    assert!(before_data <= MOST_HEADER, "data starts within 128 bytes");
    let plen = before_data + data_len + if data_digest { DIGEST_BYTES } else { 0 };
    let common = CommonHeader {
        kind: kind as u8,
        flags: flags
            | if header_digest { HAS_HEADER_DIGEST } else { 0 }
            | if data_digest { HAS_DATA_DIGEST } else { 0 },
        hlen: kind.header_len(),
        pdo: if has_offset { u8::try_from(before_data).expect("at most 128") } else { 0 },
        plen: U32::new(u32::try_from(plen).expect("data is at most a transfer")),
    };
    let start = bytes.len();
    bytes.reserve(before_data);
    bytes.extend_from_slice(common.as_bytes());
    bytes.extend_from_slice(&header[size_of::<CommonHeader>()..]);
    if header_digest {
        let value = crate::digest::digest(&bytes[start..]);
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.resize(start + before_data, 0);
}

/// The bytes that [`append`] appends.
///
/// # Panics
/// As [`append`].
#[must_use]
pub fn build(kind: Kind, flags: u8, header: &[u8], data_len: usize, digests: Digests, alignment: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, kind, flags, header, data_len, digests, alignment);
    bytes
}

/// A common header whose contents [`append`] replaces.
#[must_use]
pub fn blank() -> CommonHeader {
    CommonHeader { kind: 0, flags: 0, hlen: 0, pdo: 0, plen: U32::ZERO }
}
