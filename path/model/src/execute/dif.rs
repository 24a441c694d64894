//! DIF Check, Insert, Strip, Update, DIX Generate. Source: SPEC §8.3.17, Appendix B.

use super::{End, Ended, Pages, Scratch, Stop, index};
use crate::action::{Dif, DifKind};
use telpher_abi::{CompletionRecord, DifStatus, OperandId, Status};
use telpher_ops::dif::{Checked, Tags, check, generate, insert, strip, update};

/// The tags of source and destination after the blocks done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockTags {
    source: Tags,
    dest: Tags,
}

impl Dif {
    /// Returns the tags of the first block.
    #[must_use]
    #[inline]
    pub fn first_tags(&self) -> BlockTags {
        BlockTags { source: self.source, dest: self.dest }
    }

    /// Processes whole blocks in buffers. Returns how many were good, and the error of the next.
    ///
    /// # Panics
    /// If `from` is not a whole number of source blocks, or `to` not as many destination blocks.
    #[inline]
    pub fn blocks(&self, tags: &mut BlockTags, from: &[u8], to: &mut [u8]) -> Checked {
        match self.kind {
            DifKind::Check => check(&self.config, from, &mut tags.source),
            DifKind::Insert => Checked { blocks: insert(&self.config, from, to, &mut tags.dest), error: None },
            DifKind::Generate => Checked { blocks: generate(&self.config, from, to, &mut tags.dest), error: None },
            DifKind::Strip => strip(&self.config, from, to, &mut tags.source),
            DifKind::Update => update(&self.config, from, to, &mut tags.source, &mut tags.dest),
        }
    }

    /// Returns the record of a transfer that ended at a block with this error, after `bytes` of the source.
    #[must_use]
    pub fn mismatch_record(error: DifStatus, bytes: u64) -> CompletionRecord {
        End::of(Status::DifError).with_bytes_completed(bytes).record.with_result(error.bits())
    }
}

pub(super) fn dif(pages: &mut Pages<'_>, scratch: &mut Scratch, dif: &Dif) -> Ended {
    let (from_block, to_block) = (index(dif.source_block()), index(dif.dest_block()));
    let mut tags = dif.first_tags();
    // At least one block fits: the buffer holds several of the largest.
    let most = (scratch.a.len() / from_block).min(scratch.b.len() / to_block.max(1));
    let total = index(dif.len / dif.source_block());
    let mut done = 0;
    while done < total {
        let piece = most.min(total - done);
        let buffer = &mut scratch.a[..piece * from_block];
        let at = dif.src.wrapping_add((done * from_block) as u64);
        let (read, mut stopped) = match pages.read(at, buffer) {
            Ok(()) => (piece, None),
            Err((bytes, stop)) => (bytes / from_block, Some((stop, OperandId::Source1))),
        };
        let before = tags;
        let from = &buffer[..read * from_block];
        let to = &mut scratch.b[..read * to_block];
        let checked = dif.blocks(&mut tags, from, to);
        let mut good = checked.blocks;
        let result = &to[..good * to_block];
        let mut lost = false;
        if let Err((bytes, stop)) = pages.write(dif.dst.wrapping_add((done * to_block) as u64), result, dif.hint) {
            good = bytes / to_block;
            stopped = Some((stop, OperandId::Destination1));
            lost = true;
            // The next block's tags are those after the written blocks, so process these blocks again.
            tags = before;
            let _ = dif.blocks(&mut tags, &from[..good * from_block], &mut scratch.b[..good * to_block]);
        }
        done += good;
        if let Some(error) = checked.error.filter(|_| !lost) {
            let record = Dif::mismatch_record(error, (done * from_block) as u64);
            return Ok(End { record, operand: OperandId::Unknown });
        }
        if let Some((stop, operand)) = stopped {
            return Err(partial(dif, stop, operand, done * from_block, &tags));
        }
    }
    Ok(End::success().map_record(|record| with_tags(dif, record, &tags)))
}

fn partial(dif: &Dif, stop: Stop, operand: OperandId, bytes: usize, tags: &BlockTags) -> End {
    stop.after(bytes as u64, operand).map_record(|record| with_tags(dif, record, tags))
}

/// Adds the tags of the next block to the record, as seeds of a continuation. Source: SPEC §8.2, DIF layouts.
fn with_tags(dif: &Dif, mut record: CompletionRecord, tags: &BlockTags) -> CompletionRecord {
    if !matches!(dif.kind, DifKind::Insert | DifKind::Generate) {
        record = record
            .with_source_ref_tag(tags.source.ref_tag)
            .with_source_app_tag_mask(tags.source.app_mask)
            .with_source_app_tag(tags.source.app_tag);
    }
    if matches!(dif.kind, DifKind::Insert | DifKind::Generate | DifKind::Update) {
        record = record
            .with_dest_ref_tag(tags.dest.ref_tag)
            .with_dest_app_tag_mask(tags.dest.app_mask)
            .with_dest_app_tag(tags.dest.app_tag);
    }
    record
}
