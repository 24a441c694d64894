//! The data of Identify. Source: NVMe Base 2.0 §5.17, NVM Command Set 1.0 §4.1.5, NVMe over Fabrics 1.1 §3.

use crate::limits::{ADMIN_CAPSULE_BYTES, EVENT_REQUESTS, Limits, MOST_COPY_RANGES, MOST_NAMESPACES};
use crate::namespace::Namespace;
use crate::subsystem::Subsystem;

/// Bytes of all Identify structures.
pub const IDENTIFY_BYTES: usize = 4096;

/// VS and VER: NVMe 1.4, the first version with a controller type.
pub const VERSION: u32 = 0x0001_0400;

/// Optional I/O commands (ONCS): Compare, Dataset Management, Write Zeroes, Verify, Copy.
const COMMANDS: u16 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 7 | 1 << 8;

/// Bytes of the largest blocks of a namespace.
const LARGEST_BLOCK: u32 = 4096;

/// Optional asynchronous events (OAES): changes of namespaces.
pub const NAMESPACE_EVENTS: u32 = 1 << 8;
/// Optional asynchronous events (OAES): changes of the discovery log.
pub const DISCOVERY_EVENTS: u32 = 1 << 31;

/// A page of zeroes that fields are written into.
struct Page(Vec<u8>);

impl Page {
    fn new() -> Page {
        Page(vec![0; IDENTIFY_BYTES])
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// ASCII text, padded with blanks.
    fn text(&mut self, offset: usize, len: usize, text: &str) {
        self.0[offset..offset + len].fill(b' ');
        self.put(offset, &text.as_bytes()[..text.len().min(len)]);
    }
}

/// CNS 01h: the controller.
#[must_use]
pub fn controller(subsystem: &Subsystem, id: u16, limits: &Limits) -> Vec<u8> {
    let mut page = Page::new();
    let is_discovery = subsystem.is_discovery();
    page.text(4, 20, &subsystem.options().serial);
    page.text(24, 40, &subsystem.options().model);
    page.text(64, 8, env!("CARGO_PKG_VERSION"));
    page.put(72, &[6]); // RAB, as SPDK and nvmet
    // CMIC: several controllers. Without it, Linux rejects the second controller of a subsystem.
    page.put(76, &[if is_discovery { 0 } else { 1 << 1 }]);
    page.put(77, &[limits.mdts()]);
    page.put(78, &id.to_le_bytes());
    page.put(80, &VERSION.to_le_bytes());
    let events = if is_discovery { DISCOVERY_EVENTS } else { NAMESPACE_EVENTS };
    page.put(92, &events.to_le_bytes()); // OAES
    page.put(96, &(1_u32 | 1 << 6).to_le_bytes()); // CTRATT: 128-bit host identifier, traffic based keep alive
    page.put(111, &[if is_discovery { 2 } else { 1 }]); // CNTRLTYPE
    page.put(258, &[3]); // ACL
    page.put(259, &[u8::try_from(EVENT_REQUESTS - 1).expect("a few")]); // AERL
    page.put(260, &[3]); // FRMW: one slot, read-only
    page.put(261, &[if is_discovery { 1 << 2 } else { 1 << 1 | 1 << 2 }]); // LPA: effects log, offsets
    page.put(320, &10_u16.to_le_bytes()); // KAS: one second. Linux refuses 0.
    page.put(536, &(1_u32 | 1 << 20).to_le_bytes()); // SGLS: supported; offset in the capsule
    page.put(768, subsystem.options().nqn.as_bytes());
    let depth = if is_discovery { limits.admin_depth } else { limits.queue_depth };
    page.put(514, &depth.to_le_bytes()); // MAXCMD
    if is_discovery {
        return page.0;
    }
    page.put(512, &[0x66, 0x44]); // SQES, CQES: 64 and 16 bytes
    page.put(516, &MOST_NAMESPACES.to_le_bytes()); // NN
    page.put(520, &COMMANDS.to_le_bytes());
    page.put(522, &1_u16.to_le_bytes()); // FUSES: Compare and Write
    page.put(525, &[1 | 2 << 1]); // VWC: present; Flush of all namespaces is not supported
    // ACWU: blocks of the largest size that a fused Compare and Write may have.
    let pair_blocks = u16::try_from(limits.transfer_bytes / LARGEST_BLOCK - 1).unwrap_or(u16::MAX);
    page.put(532, &pair_blocks.to_le_bytes());
    page.put(534, &1_u16.to_le_bytes()); // OCFS: Copy descriptor format 0
    // IOCCSZ and IORCSZ in units of 16 bytes, with the command's 64 bytes.
    page.put(1792, &((64 + limits.capsule_bytes) / 16).to_le_bytes());
    page.put(1796, &1_u32.to_le_bytes());
    page.put(1803, &[1]); // MSDBD
    page.0
}

/// CNS 00h: a namespace.
#[must_use]
pub fn namespace(namespace: &Namespace, limits: &Limits) -> Vec<u8> {
    let mut page = Page::new();
    let options = namespace.options();
    let blocks = namespace.blocks().to_le_bytes();
    page.put(0, &blocks); // NSZE
    page.put(8, &blocks); // NCAP
    page.put(16, &blocks); // NUSE
    page.put(30, &[1]); // NMIC: shared between controllers
    page.put(33, &[1 | 1 << 3]); // DLFEAT: deallocated blocks read as zeroes; Write Zeroes may deallocate
    let longest = limits.transfer_bytes / options.block_bytes;
    let ranges = MOST_COPY_RANGES;
    page.put(74, &u16::try_from(longest).unwrap_or(u16::MAX).to_le_bytes()); // MSSRL
    page.put(76, &(longest * ranges).to_le_bytes()); // MCL
    page.put(80, &[u8::try_from(ranges - 1).expect("a few")]); // MSRC
    page.put(99, &[u8::from(options.is_read_only)]); // NSATTR
    page.put(104, &options.nguid);
    let exponent = options.block_bytes.ilog2();
    page.put(128, &(exponent << 16).to_le_bytes()); // LBAF0
    page.0
}

/// CNS 00h for a namespace that does not exist at the moment.
#[must_use]
pub fn no_namespace() -> Vec<u8> {
    Page::new().0
}

/// CNS 02h and 07h: the identifiers of active namespaces, rising.
#[must_use]
pub fn namespace_list(nsids: &[u32]) -> Vec<u8> {
    let mut page = Page::new();
    for (index, nsid) in nsids.iter().take(IDENTIFY_BYTES / 4).enumerate() {
        page.put(index * 4, &nsid.to_le_bytes());
    }
    page.0
}

/// CNS 03h: the identifiers of a namespace.
#[must_use]
pub fn descriptors(namespace: &Namespace) -> Vec<u8> {
    let mut page = Page::new();
    let options = namespace.options();
    page.put(0, &[2, 16, 0, 0]);
    page.put(4, &options.nguid);
    page.put(20, &[3, 16, 0, 0]);
    page.put(24, &options.uuid);
    page.put(40, &[4, 1, 0, 0, 0]); // the NVM command set
    page.0
}

/// CNS 06h for the NVM command set: a Verify is not longer than a transfer (VSL); Write Zeroes has no limit.
#[must_use]
pub fn nvm_controller(limits: &Limits) -> Vec<u8> {
    let mut page = Page::new();
    page.put(0, &[limits.mdts()]);
    page.0
}

/// CNS 1Ch: the combinations of command sets; only the NVM command set.
#[must_use]
pub fn command_sets() -> Vec<u8> {
    let mut page = Page::new();
    page.put(0, &1_u64.to_le_bytes());
    page.0
}

const _: () = assert!(ADMIN_CAPSULE_BYTES as usize >= IDENTIFY_BYTES);
