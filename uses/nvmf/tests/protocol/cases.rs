//! Violations of the protocol, each with the fatal error that answers it. The tests use them with and without sockets.

use telpher_nvmf::command::{SGL_IN_CAPSULE, Submission, io};
use telpher_nvmf::digest::digest;
use telpher_nvmf::initiator::requests;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::U32;

/// Bytes of a block of the namespace that the cases are made for.
pub(crate) const BLOCK: usize = 512;

/// A violation.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Valid bytes that the host sends first.
    pub(crate) before: Vec<u8>,
    /// The violation.
    pub(crate) bytes: Vec<u8>,
    /// FES and FEI.
    pub(crate) expected: (u16, u32),
}

fn case(name: impl Into<String>, bytes: Vec<u8>, expected: (u16, u32)) -> Case {
    Case { name: name.into(), before: Vec::new(), bytes, expected }
}

/// A PDU whose common header has exactly these fields.
pub(crate) fn pdu(kind: u8, flags: u8, hlen: u8, pdo: u8, plen: u32, rest: &[u8]) -> Vec<u8> {
    [&[kind, flags, hlen, pdo][..], &plen.to_le_bytes(), rest].concat()
}

pub(crate) fn ic_req(pfv: u16, hpda: u8, dgst: u8, maxr2t: u32) -> Vec<u8> {
    let mut rest = vec![0; 120];
    rest[..2].copy_from_slice(&pfv.to_le_bytes());
    (rest[2], rest[3]) = (hpda, dgst);
    rest[4..8].copy_from_slice(&maxr2t.to_le_bytes());
    pdu(0, 0, 128, 0, 128, &rest)
}

/// H2CData without digests.
pub(crate) fn h2c(tag: u16, cid: u16, offset: u32, announced: u32, is_last: bool, data: &[u8]) -> Vec<u8> {
    let plen = 24 + data.len() as u32;
    let fields = [u32::from(cid) | u32::from(tag) << 16, offset, announced, 0];
    let rest: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).chain(data.iter().copied()).collect();
    pdu(6, if is_last { 4 } else { 0 }, 24, 24, plen, &rest)
}

/// A part of the data of [`of_data`]'s write.
pub(crate) fn part(tag: u16, cid: u16, offset: u32, len: usize, is_last: bool) -> Vec<u8> {
    h2c(tag, cid, offset, len as u32, is_last, &vec![2; len])
}

/// In place of ICReq.
pub(crate) fn of_initialisation() -> Vec<Case> {
    let mut cases: Vec<Case> = vec![
        case("a capsule first", pdu(4, 0, 72, 0, 72, &[0; 64]), (2, 0)),
        case("H2CData first", h2c(1, 1, 0, 4, true, &[0; 4]), (2, 0)),
        case("PFV 1", ic_req(1, 0, 0, 0), (1, 8)),
    ];
    for plen in [0, 7, 8, 127, 129, u32::MAX] {
        cases.push(case(format!("ICReq PLEN {plen}"), pdu(0, 0, 128, 0, plen, &[0; 120]), (1, 4)));
    }
    for hlen in [0, 8, 24, 127, 129, 255] {
        cases.push(case(format!("ICReq HLEN {hlen}"), pdu(0, 0, hlen, 0, 128, &[0; 120]), (1, 2)));
    }
    for hpda in 32..=255 {
        cases.push(case(format!("HPDA {hpda}"), ic_req(0, hpda, 0, 0), (1, 10)));
    }
    cases
}

/// After ICReq, without digests.
pub(crate) fn of_common_headers() -> Vec<Case> {
    let mut cases: Vec<Case> = vec![
        case("a second ICReq", ic_req(0, 0, 0, 0), (2, 0)),
        case("a header digest that was not negotiated", pdu(4, 1, 72, 0, 76, &[0; 68]), (1, 1)),
        case("a data digest that was not negotiated", pdu(4, 2, 72, 72, 80, &[0; 72]), (1, 1)),
        case("more data than a capsule may have", pdu(4, 0, 72, 72, 72 + 8193, &[0; 64]), (5, 0)),
        case("PLEN FFFFFFFFh", pdu(4, 0, 72, 72, u32::MAX, &[0; 64]), (5, 0)),
        case("data without PDO", pdu(4, 0, 72, 0, 80, &[0; 72]), (1, 3)),
    ];
    for kind in (0..=255).filter(|kind| ![0, 2, 4, 6].contains(kind)) {
        cases.push(case(format!("type {kind}"), pdu(kind, 0, 24, 0, 24, &[0; 16]), (1, 0)));
    }
    for (kind, right) in [(4, 72), (6, 24)] {
        for hlen in (0..=255).filter(|&hlen| hlen != right) {
            cases.push(case(format!("type {kind} HLEN {hlen}"), pdu(kind, 0, hlen, right, 100, &[0; 92]), (1, 2)));
        }
        for plen in [0, 7, 8, u32::from(right) - 1] {
            cases.push(case(format!("type {kind} PLEN {plen}"), pdu(kind, 0, right, 0, plen, &[0; 92]), (1, 4)));
        }
        for pdo in (1..right).chain([right + 1, right + 2, right + 3, 101, 124, 132, 255]) {
            cases.push(case(format!("type {kind} PDO {pdo}"), pdu(kind, 0, right, pdo, 100, &[0; 92]), (1, 3)));
        }
    }
    cases
}

/// On a queue with both digests.
pub(crate) fn of_header_digests() -> Vec<Case> {
    let command = requests::blocks(io::READ, 1, 1, 0, 1);
    let with_flags = |flags: u8, pdo: u8, plen: u32| pdu(4, flags, 72, pdo, plen, command.as_bytes());
    let good = with_flags(1, 0, 76);
    let right = digest(&good);
    let mut cases = vec![
        case("an absent header digest", with_flags(0, 0, 72), (1, 1)),
        case("an absent data digest", with_flags(1, 76, 76 + 512), (1, 1)),
        case("a data digest without data", with_flags(3, 76, 76 + 4), (1, 4)),
    ];
    for bit in 0..32 {
        let wrong = right ^ 1 << bit;
        let bytes = [&good[..], &wrong.to_le_bytes()].concat();
        cases.push(case(format!("bit {bit} of a header digest"), bytes, (3, wrong)));
    }
    for index in 8..72 {
        let mut bytes = [&good[..], &right.to_le_bytes()].concat();
        bytes[index] ^= 1;
        cases.push(case(format!("byte {index} of a header"), bytes, (3, right)));
    }
    cases
}

/// On a queue without digests.
pub(crate) fn of_data_descriptors() -> Vec<Case> {
    vec![
        case("in the capsule, too little", capsule(&write(SGL_IN_CAPSULE, 4096), 4092), (1, 4)),
        case("in the capsule, too much", capsule(&write(SGL_IN_CAPSULE, 4096), 4100), (1, 4)),
        case("in the capsule, none", capsule(&write(SGL_IN_CAPSULE, 4096), 0), (1, 4)),
        case("length 0 with data", capsule(&write(SGL_IN_CAPSULE, 0), 4096), (1, 4)),
        case("length FFFFFFFFh", capsule(&write(SGL_IN_CAPSULE, u32::MAX), 4096), (1, 4)),
        case("moved by the transport, with data", capsule(&write(0x5a, 4096), 4096), (1, 4)),
        case("8193 bytes", capsule(&write(SGL_IN_CAPSULE, 8193), 8193), (5, 0)),
    ]
}

/// A write of 8 blocks with this data descriptor.
pub(crate) fn write(kind: u8, length: u32) -> Submission {
    let mut command = requests::blocks(io::WRITE, 1, 1, 0, 8);
    (command.sgl_kind, command.sgl_length) = (kind, U32::new(length));
    command
}

/// A capsule with this many bytes of data.
pub(crate) fn capsule(command: &Submission, data: usize) -> Vec<u8> {
    let bytes = [command.as_bytes(), &vec![0; data]].concat();
    pdu(4, 0, 72, if data > 0 { 72 } else { 0 }, 72 + data as u32, &bytes)
}

/// On a queue without digests, while an R2T with tag 1 asks for all of command 9, a write of 32 KiB. MAXH2CDATA is
/// 16 KiB.
pub(crate) fn of_data() -> Vec<Case> {
    let data = vec![2; 32768];
    let after = |name: &str, bytes: Vec<u8>, expected| Case {
        before: part(1, 9, 0, 16384, false),
        ..case(name, bytes, expected)
    };
    vec![
        case("TTAG 0", part(0, 9, 0, 16384, false), (2, 0)),
        case("TTAG of the table's size", part(256, 9, 0, 16384, false), (1, 10)),
        case("TTAG one beyond the table", part(257, 9, 0, 16384, false), (2, 0)),
        case("TTAG FFFFh", part(0xffff, 9, 0, 16384, false), (2, 0)),
        case("TTAG never used", part(2, 9, 0, 16384, false), (1, 10)),
        case("wrong CCCID", part(1, 8, 0, 16384, false), (2, 0)),
        case("DATAO too high", part(1, 9, 4096, 16384, false), (4, 0)),
        after("DATAO repeated", part(1, 9, 0, 16384, true), (4, 0)),
        after("DATAO too low", part(1, 9, 16380, 16384, true), (4, 0)),
        after("DATAO with a gap", part(1, 9, 16388, 16380, true), (4, 0)),
        after("data beyond the R2T", h2c(1, 9, 16384, 16388, true, &data[..16388]), (4, 0)),
        after("DATAO + DATAL wraps 32 bits", h2c(1, 9, 16384, 0xffff_c000, true, &data[..4096]), (4, 0)),
        case("DATAL above MAXH2CDATA", part(1, 9, 0, 16388, false), (5, 0)),
        case("DATAL 0", h2c(1, 9, 0, 0, false, &[]), (1, 16)),
        case("DATAL 0 with data", h2c(1, 9, 0, 0, false, &data[..4096]), (1, 16)),
        case("DATAL larger than the PDU", h2c(1, 9, 0, 16384, false, &data[..4096]), (1, 16)),
        case("DATAL smaller than the PDU", h2c(1, 9, 0, 4096, false, &data[..8192]), (1, 16)),
        case("LAST too early", part(1, 9, 0, 16384, true), (1, 1)),
        after("LAST missing", part(1, 9, 16384, 16384, false), (1, 1)),
    ]
}
