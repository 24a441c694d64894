//! The structures and numbers of `dmldefs.h`. Layout only; tests compare them with the header.

use std::mem::{align_of, offset_of, size_of};

/// `dml_path_t`: how an operation is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// A queue, or else the CPU.
    Auto,
    /// The CPU.
    Software,
    /// A queue of a real or virtual device.
    Hardware,
}

impl Path {
    /// Decodes the number.
    pub(crate) const fn from_number(number: u32) -> Option<Path> {
        match number {
            0 => Some(Path::Auto),
            1 => Some(Path::Software),
            2 => Some(Path::Hardware),
            _ => None,
        }
    }

    /// Returns the number.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Path::Auto => 0,
            Path::Software => 1,
            Path::Hardware => 2,
        }
    }
}

/// `dml_dif_config_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DifConfig {
    /// `DML_DIF_FLAG_*`.
    pub flags: u32,
    /// Reference tag of the first source block.
    pub source_reference_tag_seed: u32,
    /// Application tag of the first source block.
    pub source_application_tag_seed: u16,
    /// Bits of the application tag that are not checked.
    pub source_application_tag_mask: u16,
    /// Reference tag of the first destination block.
    pub destination_reference_tag_seed: u32,
    /// Application tag of the first destination block.
    pub destination_application_tag_seed: u16,
    /// Bits of the application tag that are written as zero.
    pub destination_application_tag_mask: u16,
    /// `dml_dif_block_size_t`.
    pub block_size: u32,
}

/// `dml_job_t`. Addresses are numbers here: only the exported functions use them as pointers.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DmlJob {
    /// Source, first source, delta record to apply.
    pub source_first_ptr: u64,
    /// Second source.
    pub source_second_ptr: u64,
    /// Destination, batch buffer, delta record to create, first readback address.
    pub destination_first_ptr: u64,
    /// Second destination or readback address.
    pub destination_second_ptr: u64,
    /// CRC, in and out.
    pub crc_checksum_ptr: u64,
    /// Bytes of the source.
    pub source_length: u32,
    /// Bytes of the destination.
    pub destination_length: u32,
    /// Out: position of a mismatch.
    pub offset: u32,
    /// Pattern of Fill and Compare Pattern.
    pub pattern: [u8; 8],
    /// `dml_operation_t`.
    pub operation: u32,
    /// Out: the operation's result.
    pub result: u32,
    /// The result that is expected, with `DML_FLAG_CHECK_RESULT`.
    pub expected_result: u32,
    /// `DML_FLAG_*`.
    pub flags: u64,
    /// For the DIF operations.
    pub dif_config: DifConfig,
    /// The node of the device, or all ones.
    pub numa_id: u32,
    /// The library's state.
    pub internal_data_ptr: u64,
}

/// `dml_library_version_t`; each text ends in a zero byte.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LibraryVersion {
    /// The library's name.
    pub name: [u8; 30],
    /// The processor that it needs.
    pub minimal_cpu_isa: [u8; 16],
    /// The day of its build.
    pub date: [u8; 15],
    /// Its version.
    pub version: [u8; 20],
    /// The oldest hardware.
    pub hw_minimal_version: [u8; 30],
    /// Its commit.
    pub commit: [u8; 12],
    /// First part of the version.
    pub major: u32,
    /// Second part.
    pub minor: u32,
    /// Third part.
    pub patch: u32,
}

const _: () = {
    assert!(size_of::<DmlJob>() == 120 && align_of::<DmlJob>() == 8);
    assert!(offset_of!(DmlJob, pattern) == 52 && offset_of!(DmlJob, flags) == 72);
    assert!(offset_of!(DmlJob, dif_config) == 80 && offset_of!(DmlJob, internal_data_ptr) == 112);
    assert!(size_of::<DifConfig>() == 24 && size_of::<LibraryVersion>() == 136);
};

/// Bytes of the memory of a job: the job, 63 bytes at most to align the state, and the state.
/// Source: D111; programs lay jobs out back to back with this stride.
pub(crate) const JOB_BYTES: usize = 376;

/// The alignment of the state, and of the descriptors in a batch buffer.
pub(crate) const ALIGNMENT: u64 = 64;

/// Bytes of a batch buffer for each member: a descriptor and a record. Source: D111.
pub(crate) const MEMBER_BYTES: u32 = 96;

/// The fewest members of a batch. Source: D111, `DML_MIN_BATCH_SIZE`.
pub(crate) const MIN_BATCH: u32 = 4;

/// `numa_id`: any node.
pub(crate) const ANY_NODE: u32 = u32::MAX;

/// Flags of a job; bits 15:0 are those of a descriptor, and 23:16 those of its operation.
pub(crate) mod flags {
    /// Documented as the fence; its number is that of a descriptor's Completion Record Address Valid.
    pub(crate) const FENCE: u64 = 0x4;
    /// Memory Move: refuse ranges that overlap.
    pub(crate) const COPY_ONLY: u64 = 0x20;
    /// CRC: the seed is in `*crc_checksum_ptr`.
    pub(crate) const CRC_READ_SEED: u64 = 0x1_0000;
}

/// Rounds an address up to the alignment of states and batch buffers.
pub(crate) const fn aligned(address: u64) -> u64 {
    address.wrapping_add(ALIGNMENT - 1) & !(ALIGNMENT - 1)
}
