//! Commands of a host, built from what they mean.

use super::Transfer;
use crate::command::{Submission, admin, fabrics, io};
use crate::controller::{ENABLE, ENTRY_SIZES, property};
use crate::identify::IDENTIFY_BYTES;
use crate::target::CONNECT_BYTES;

/// The host and the subsystem that a connection names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// HOSTNQN.
    pub host_nqn: String,
    /// SUBNQN.
    pub subsystem_nqn: String,
}

impl Identity {
    /// The data of Connect; `controller` is FFFFh for an admin queue.
    ///
    /// # Panics
    /// If a name is longer than 256 bytes.
    #[must_use]
    pub fn connect_data(&self, controller: u16) -> Vec<u8> {
        let mut data = vec![0; CONNECT_BYTES];
        data[..16].copy_from_slice(&self.host_id);
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        for (offset, name) in [(256, &self.subsystem_nqn), (512, &self.host_nqn)] {
            data[offset..offset + name.len()].copy_from_slice(name.as_bytes());
        }
        data
    }
}

/// How a queue is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueRequest {
    /// The queue; 0 for the admin queue.
    pub qid: u16,
    /// The entries of the queue, from 2.
    pub entries: u16,
    /// SQ flow control is wanted.
    pub flow_control: bool,
    /// The keep alive time-out in milliseconds, for the admin queue; 0 for none.
    pub keep_alive_ms: u32,
}

/// Connect.
#[must_use]
pub fn connect(cid: u16, queue: QueueRequest) -> Submission {
    let mut command = Submission::fabrics(fabrics::CONNECT, cid);
    command.set_dword(10, u32::from(queue.qid) << 16);
    let attributes = if queue.flow_control { 0 } else { 1 << 2 };
    command.set_dword(11, u32::from(queue.entries.saturating_sub(1)) | attributes << 16);
    command.set_dword(12, queue.keep_alive_ms);
    command
}

/// Property Get; CAP has 8 bytes, all others 4.
#[must_use]
pub fn property_get(cid: u16, offset: u32) -> Submission {
    let mut command = Submission::fabrics(fabrics::PROPERTY_GET, cid);
    command.set_dword(10, u32::from(offset == property::CAP));
    command.set_dword(11, offset);
    command
}

/// Property Set of a property of 4 bytes.
#[must_use]
pub fn property_set(cid: u16, offset: u32, value: u32) -> Submission {
    let mut command = Submission::fabrics(fabrics::PROPERTY_SET, cid);
    command.set_dword(11, offset);
    command.set_dword(12, value);
    command
}

/// Enables the controller.
#[must_use]
pub fn enable(cid: u16) -> Submission {
    property_set(cid, property::CC, ENTRY_SIZES | ENABLE)
}

/// Identify; its data has 4096 bytes.
#[must_use]
pub fn identify(cid: u16, structure: u8, nsid: u32) -> (Submission, Transfer) {
    let mut command = Submission::new(admin::IDENTIFY, cid, nsid);
    command.set_dword(10, structure.into());
    (command, Transfer::ToHost(u32::try_from(IDENTIFY_BYTES).expect("4096")))
}

/// Get Log Page; `bytes` is a multiple of 4, not 0.
#[must_use]
pub fn log_page(cid: u16, page: u8, offset: u64, bytes: u32) -> (Submission, Transfer) {
    let mut command = Submission::new(admin::GET_LOG_PAGE, cid, 0);
    let dwords = (bytes / 4).saturating_sub(1);
    command.set_dword(10, u32::from(page) | (dwords & 0xffff) << 16);
    command.set_dword(11, dwords >> 16);
    command.set_long(12, offset);
    (command, Transfer::ToHost(bytes))
}

/// Set Features.
#[must_use]
pub fn set_feature(cid: u16, feature: u8, value: u32) -> Submission {
    let mut command = Submission::new(admin::SET_FEATURES, cid, 0);
    command.set_dword(10, feature.into());
    command.set_dword(11, value);
    command
}

/// Get Features, the current value.
#[must_use]
pub fn get_feature(cid: u16, feature: u8) -> Submission {
    let mut command = Submission::new(admin::GET_FEATURES, cid, 0);
    command.set_dword(10, feature.into());
    command
}

/// An I/O command on `blocks` blocks from `first`: Read, Write, Compare, Write Zeroes or Verify.
#[must_use]
pub fn blocks(opcode: u8, cid: u16, nsid: u32, first: u64, blocks: u32) -> Submission {
    let mut command = Submission::new(opcode, cid, nsid);
    command.set_long(10, first);
    command.set_dword(12, blocks.saturating_sub(1) & 0xffff);
    command
}

/// Dataset Management with the request to deallocate, for ranges of first block and number of blocks.
#[must_use]
pub fn deallocate(cid: u16, nsid: u32, ranges: &[(u64, u32)]) -> (Submission, Vec<u8>) {
    let mut command = Submission::new(io::DATASET_MANAGEMENT, cid, nsid);
    command.set_dword(10, u32::try_from(ranges.len().saturating_sub(1)).unwrap_or(u32::MAX));
    command.set_dword(11, 1 << 2);
    let entry = |&(first, blocks): &(u64, u32)| {
        let mut entry = [0; 16];
        entry[4..8].copy_from_slice(&blocks.to_le_bytes());
        entry[8..].copy_from_slice(&first.to_le_bytes());
        entry
    };
    (command, ranges.iter().flat_map(entry).collect())
}

/// Copy of ranges, of first block and number of blocks, to `destination`.
#[must_use]
pub fn copy(cid: u16, nsid: u32, destination: u64, ranges: &[(u64, u32)]) -> (Submission, Vec<u8>) {
    let mut command = Submission::new(io::COPY, cid, nsid);
    command.set_long(10, destination);
    command.set_dword(12, u32::try_from(ranges.len().saturating_sub(1)).unwrap_or(u32::MAX));
    let entry = |&(first, blocks): &(u64, u32)| {
        let mut entry = [0; 32];
        entry[8..16].copy_from_slice(&first.to_le_bytes());
        let blocks = u16::try_from(blocks.saturating_sub(1)).unwrap_or(u16::MAX);
        entry[16..18].copy_from_slice(&blocks.to_le_bytes());
        entry
    };
    (command, ranges.iter().flat_map(entry).collect())
}
