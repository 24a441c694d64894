//! Protection information: each stored block is followed by a tuple that is checked when the block is read.
//!
//! ```text
//! write: data of the host ─► Insert ─► blocks with tuples ─► backend
//! read:  backend ─► blocks with tuples ─► Strip (checks) ─► data for the host
//! ```
//!
//! The host does not see the tuples. A tuple has 8 bytes: the guard (CRC-16 T10-DIF of the block), the application tag
//! of the namespace, and the reference tag (the low 32 bits of the block's address). This is protection type 1.
//!
//! A stored block of which all bytes are zero, with its tuple, was never written, or it was deallocated or cleared. It
//! reads as zeroes. Blocks that were written are different, because the application tag is not 0. So a new file needs
//! no formatting, and Write Zeroes and Deallocate make holes. The specification's mark for such blocks, FFFFh as
//! application tag, is not used: it would switch off all checks of a block in which only these bytes were damaged. A
//! block with this mark is damaged.
//!
//! Source: NVM Command Set 1.0 §5.2; the operations of the device, SPEC §8.3.17.

use crate::segment::Segment;
use crate::status::Status;
use telpher_abi::{DIF_TUPLE_BYTES, DestDifFlags, DifBlock, DifFlags, DifStatus, SourceDifFlags};
use telpher_mover::{DifConfig, Tags};
use telpher_ops::dif::{check, insert, strip};

/// Bytes of a tuple.
pub const TUPLE_BYTES: u32 = DIF_TUPLE_BYTES;

/// The application tag of namespaces that choose none. Source: chosen.
pub const DEFAULT_APPLICATION_TAG: u16 = 1;

/// The longest stored block.
const LONGEST_BLOCK: usize = 4096 + DIF_TUPLE_BYTES as usize;
static ZEROES: [u8; LONGEST_BLOCK] = [0; LONGEST_BLOCK];

/// How the blocks of a namespace are protected: the target inserts tuples on writes and strips them on reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protection {
    /// The application tag of all blocks; not 0 and not FFFFh.
    pub application_tag: u16,
}

impl Default for Protection {
    fn default() -> Protection {
        Protection { application_tag: DEFAULT_APPLICATION_TAG }
    }
}

impl Protection {
    /// Returns whether the tag can be told from that of a block that was never written, and from the mark FFFFh.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.application_tag != 0 && self.application_tag != u16::MAX
    }

    /// The work for `source`, which starts at block `first`. Blocks have 512 or 4096 bytes of data.
    #[must_use]
    pub(crate) fn work(self, operation: Operation, source: Segment, block_bytes: u64, first: u64) -> ProtectionWork {
        let block = if block_bytes == 512 { DifBlock::B512 } else { DifBlock::B4096 };
        let [low, _] = crate::command::halves(first);
        ProtectionWork {
            operation,
            source,
            destination: Vec::new(),
            block,
            tags: Tags { ref_tag: low, app_mask: 0, app_tag: self.application_tag },
            result: Ok(()),
            is_device_wrong: false,
        }
    }
}

/// The capacity that a backend needs for `bytes` bytes of protected blocks of `block_bytes` bytes. `None` if it does
/// not fit 64 bits.
#[must_use]
pub fn stored_capacity(bytes: u64, block_bytes: u32) -> Option<u64> {
    (bytes / u64::from(block_bytes)).checked_mul(u64::from(block_bytes + TUPLE_BYTES))
}

/// What is done with tuples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Copies blocks and appends a tuple to each.
    Insert,
    /// Checks the tuples and copies the blocks without them.
    Strip,
    /// Checks the tuples.
    Check,
}

/// One operation on the blocks of a command.
#[derive(Debug)]
pub struct ProtectionWork {
    operation: Operation,
    source: Segment,
    destination: Vec<u8>,
    block: DifBlock,
    /// The tags of the first block.
    tags: Tags,
    result: Result<(), Status>,
    is_device_wrong: bool,
}

impl ProtectionWork {
    /// What is done.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The bytes that are read.
    #[must_use]
    pub fn source(&self) -> &Segment {
        &self.source
    }

    /// The operation's block size and checks, for a device.
    #[must_use]
    pub fn config(&self) -> DifConfig {
        DifConfig {
            block: self.block,
            flags: DifFlags::empty(),
            source: SourceDifFlags::empty(),
            dest: DestDifFlags::empty(),
        }
    }

    /// The tags of the first block.
    #[must_use]
    pub fn tags(&self) -> Tags {
        self.tags
    }

    /// The memory for the result. The caller gives it back with [`ProtectionWork::give_back`].
    #[must_use]
    pub fn take_destination(&mut self) -> Vec<u8> {
        self.allocate();
        std::mem::take(&mut self.destination)
    }

    /// Takes the result, or memory that was not used.
    pub fn give_back(&mut self, destination: Vec<u8>) {
        self.destination = destination;
    }

    /// A device found that the tuple of the block at this offset does not match. The CPU goes on from there: the block
    /// may be one that was never written, or the device may be wrong. Returns whether the device's finding stands.
    pub fn mismatch_at(&mut self, offset: usize) -> bool {
        let block = offset / self.stored_bytes();
        let is_known_block = block < self.source.len() / self.stored_bytes();
        let is_unwritten = is_known_block && self.is_unwritten(block);
        self.run_from(if is_known_block { block } else { 0 });
        self.is_device_wrong = self.result.is_ok() && !is_unwritten;
        self.result.is_err()
    }

    /// Returns whether the device found a mismatch that the CPU did not find.
    #[must_use]
    pub fn is_device_wrong(&self) -> bool {
        self.is_device_wrong
    }

    /// Does the work on this thread.
    pub fn run(&mut self) {
        self.run_from(0);
    }

    /// The blocks with tuples (Insert) or without (Strip); no bytes for Check.
    ///
    /// # Errors
    /// Guard, Application Tag or Reference Tag Check Error; Unrecovered Read Error if the file of the blocks lost
    /// pages.
    pub fn into_result(self) -> Result<Segment, Status> {
        // Lost pages read as zeroes, which are valid: those of a block that was never written.
        if !self.source.has_all_pages() {
            return Err(Status::READ_ERROR);
        }
        self.result.map(|()| Segment::whole(self.destination))
    }

    fn data_bytes(&self) -> usize {
        self.block.bytes() as usize
    }

    fn stored_bytes(&self) -> usize {
        self.data_bytes() + TUPLE_BYTES as usize
    }

    fn allocate(&mut self) {
        let (data, stored, len) = (self.data_bytes(), self.stored_bytes(), self.source.len());
        let needed = match self.operation {
            Operation::Insert => len / data * stored,
            Operation::Strip => len / stored * data,
            Operation::Check => 0,
        };
        self.destination.resize(needed, 0);
    }

    /// A stored block, with its tuple.
    fn stored(&self, block: usize) -> &[u8] {
        let stored = self.stored_bytes();
        &self.source.as_slice()[block * stored..][..stored]
    }

    /// Returns whether the tuple of a block is zero: it is unwritten or damaged, and starts a run of its own.
    fn has_zero_tuple(&self, block: usize) -> bool {
        self.stored(block).ends_with(&ZEROES[..TUPLE_BYTES as usize])
    }

    fn is_unwritten(&self, block: usize) -> bool {
        self.has_zero_tuple(block) && self.stored(block) == &ZEROES[..self.stored_bytes()]
    }

    /// Does the work from a block on; the blocks before it are done.
    fn run_from(&mut self, first: usize) {
        self.allocate();
        self.result = Ok(());
        let (data, stored, config) = (self.data_bytes(), self.stored_bytes(), self.config());
        if self.operation == Operation::Insert {
            let mut tags = self.tags;
            insert(&config, self.source.as_slice(), &mut self.destination, &mut tags);
            return;
        }
        let blocks = self.source.len() / stored;
        let mut block = first;
        while block < blocks && self.result.is_ok() {
            if self.is_unwritten(block) {
                if self.operation == Operation::Strip {
                    self.destination[block * data..][..data].fill(0);
                }
                block += 1;
                continue;
            }
            let end = (block + 1..blocks).find(|&next| self.has_zero_tuple(next)).unwrap_or(blocks);
            let mut tags = self.tags;
            // The blocks of one command are at most 2³², so the sum is right modulo 2³², as reference tags are.
            tags.ref_tag = tags.ref_tag.wrapping_add(u32::try_from(block).expect("blocks of one transfer"));
            let source = &self.source.as_slice()[block * stored..end * stored];
            let checked = match self.operation {
                Operation::Check => check(&config, source, &mut tags),
                _ => strip(&config, source, &mut self.destination[block * data..end * data], &mut tags),
            };
            self.result = checked.error.map_or(Ok(()), |what| Err(status_of(what)));
            block = end;
        }
    }
}

/// The status for what does not match. Source: NVM Command Set 1.0 §5.2.3: the guard is checked first.
fn status_of(what: DifStatus) -> Status {
    if what.contains(DifStatus::GUARD) {
        Status::GUARD_CHECK
    } else if what.contains(DifStatus::APP_TAG) {
        Status::APPLICATION_TAG_CHECK
    } else {
        Status::REFERENCE_TAG_CHECK
    }
}
