//! DIF Check, Insert, Strip, Update. Source: SPEC §8.3.17, Appendix B.

use super::{End, Ended, Pages, Scratch, Stop, index};
use crate::action::{Dif, DifKind};
use telpher_abi::{CompletionRecord, DifStatus, OperandId, Status};
use telpher_ops::dif::{Checked, Tags, check, insert, strip, update};

/// Tags of both sides as they stand after the blocks done so far.
#[derive(Clone, Copy)]
struct Sides {
    source: Tags,
    dest: Tags,
}

/// Works on whole blocks in the buffers: how many were good, and what was wrong with the next.
fn blocks(dif: &Dif, sides: &mut Sides, from: &[u8], to: &mut [u8]) -> Checked {
    match dif.kind {
        DifKind::Check => check(&dif.config, from, &mut sides.source),
        DifKind::Insert => Checked { blocks: insert(&dif.config, from, to, &mut sides.dest), error: None },
        DifKind::Strip => strip(&dif.config, from, to, &mut sides.source),
        DifKind::Update => update(&dif.config, from, to, &mut sides.source, &mut sides.dest),
    }
}

pub(super) fn dif(pages: &mut Pages<'_>, scratch: &mut Scratch, dif: &Dif) -> Ended {
    let (from_block, to_block) = (index(dif.source_block()), index(dif.dest_block()));
    let mut sides = Sides { source: dif.source, dest: dif.dest };
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
        let before = sides;
        let from = &buffer[..read * from_block];
        let to = &mut scratch.b[..read * to_block];
        let checked = blocks(dif, &mut sides, from, to);
        let mut good = checked.blocks;
        let result = &to[..good * to_block];
        let mut lost = false;
        if let Err((bytes, stop)) = pages.write(dif.dst.wrapping_add((done * to_block) as u64), result, dif.hint) {
            good = bytes / to_block;
            stopped = Some((stop, OperandId::Destination1));
            lost = true;
            // The tags of the next block are those after the blocks that were written: count them again.
            sides = before;
            let _ = blocks(dif, &mut sides, &from[..good * from_block], &mut scratch.b[..good * to_block]);
        }
        done += good;
        if let Some(error) = checked.error.filter(|_| !lost) {
            return Ok(mismatch(error, done * from_block));
        }
        if let Some((stop, operand)) = stopped {
            return Err(partial(dif, stop, operand, done * from_block, &sides));
        }
    }
    Ok(End::success().map_record(|record| with_tags(dif, record, &sides)))
}

fn mismatch(error: DifStatus, bytes: usize) -> End {
    End::of(Status::DifError).with_bytes_completed(bytes as u64).map_record(|record| record.with_result(error.bits()))
}

fn partial(dif: &Dif, stop: Stop, operand: OperandId, bytes: usize, sides: &Sides) -> End {
    stop.after(bytes as u64, operand).map_record(|record| with_tags(dif, record, sides))
}

/// The tags of the next block, so that they can be the seeds of a continuation. Source: SPEC §8.2, DIF layouts.
fn with_tags(dif: &Dif, mut record: CompletionRecord, sides: &Sides) -> CompletionRecord {
    if dif.kind != DifKind::Insert {
        record = record
            .with_source_ref_tag(sides.source.ref_tag)
            .with_source_app_tag_mask(sides.source.app_mask)
            .with_source_app_tag(sides.source.app_tag);
    }
    if matches!(dif.kind, DifKind::Insert | DifKind::Update) {
        record = record
            .with_dest_ref_tag(sides.dest.ref_tag)
            .with_dest_app_tag_mask(sides.dest.app_mask)
            .with_dest_app_tag(sides.dest.app_tag);
    }
    record
}
