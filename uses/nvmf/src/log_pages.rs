//! The data of Get Log Page. Source: NVMe Base 2.0 §5.16.

use crate::command::{admin, io};
use std::collections::BTreeSet;

/// Identifiers of log pages.
pub mod id {
    /// Error information.
    pub const ERRORS: u8 = 0x01;
    /// SMART / health information.
    pub const HEALTH: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that have changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and their effects.
    pub const EFFECTS: u8 = 0x05;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// Log 01h: no errors.
#[must_use]
pub fn errors() -> Vec<u8> {
    vec![0; 64]
}

/// Log 02h: a healthy device at 25 degrees Celsius. Tools show a temperature of 0 K as -273 °C.
#[must_use]
pub fn health() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[1..3].copy_from_slice(&298_u16.to_le_bytes());
    page[3] = 100; // available spare, per cent
    page[4] = 10; // its threshold
    page
}

/// Log 03h: slot 1 is active.
#[must_use]
pub fn firmware() -> Vec<u8> {
    let mut page = vec![0; 512];
    page[0] = 1;
    let revision = env!("CARGO_PKG_VERSION").as_bytes();
    let len = revision.len().min(8);
    page[8..16].fill(b' ');
    page[8..8 + len].copy_from_slice(&revision[..len]);
    page
}

/// Log 04h: the identifiers of changed namespaces; FFFFFFFFh alone if there are more than fit.
#[must_use]
pub fn changed_namespaces(changed: &BTreeSet<u32>) -> Vec<u8> {
    let mut page = vec![0; 4096];
    if changed.len() > 1024 {
        page[..4].fill(0xff);
        return page;
    }
    for (index, nsid) in changed.iter().enumerate() {
        page[index * 4..index * 4 + 4].copy_from_slice(&nsid.to_le_bytes());
    }
    page
}

/// Log 05h: the commands that are served, and whether they change blocks.
#[must_use]
pub fn effects() -> Vec<u8> {
    const SUPPORTED: u8 = 1;
    const CHANGES_BLOCKS: u8 = 1 << 1;
    let mut page = vec![0; 4096];
    let admin_commands = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::EVENT_REQUEST,
        admin::KEEP_ALIVE,
    ];
    for opcode in admin_commands {
        page[usize::from(opcode) * 4] = SUPPORTED;
    }
    let reads = [io::FLUSH, io::READ, io::COMPARE, io::VERIFY].map(|opcode| (opcode, SUPPORTED));
    let writes = [io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT, io::COPY]
        .map(|opcode| (opcode, SUPPORTED | CHANGES_BLOCKS));
    for (opcode, bits) in reads.into_iter().chain(writes) {
        page[1024 + usize::from(opcode) * 4] = bits;
    }
    page
}
