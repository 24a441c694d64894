//! Every operation of a mover over queues with injected faults, refusals, delays, reordering, failures, lost records or
//! halts: outcomes and bytes equal those of a mover without queues. Cases of `hardware`.

use crate::hardware::{DEDICATED, SHARED, open};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, Opcode, SourceDifFlags};
use telpher_mover::{
    Channel, ChannelPolicy, CrcMode, Delta, DifConfig, Job, JobError, Mover, OnFault, Outcome, Policy, Split, Tags,
    Threshold,
};
use telpher_os::Random;
use telpher_portal::Portal;

/// Choices of a seeded generator.
struct Chance(Random);

impl Chance {
    fn within(&mut self, range: Range<usize>) -> usize {
        let span = (range.end - range.start) as u64;
        range.start + usize::try_from(self.0.below(span)).expect("below a length")
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        bytes
    }
}

/// Jobs in flight, each with a check of its result.
struct Round<'a> {
    disturbed: &'a Mover,
    cpu: &'a Mover,
    jobs: Vec<Box<dyn FnOnce()>>,
}

impl Round<'_> {
    fn begin<B: PartialEq + Send + 'static>(&mut self, what: &'static str, op: impl Fn(&Mover) -> Job<B>) {
        let job = op(self.disturbed);
        let expected = op(self.cpu).wait();
        self.jobs.push(Box::new(move || {
            let done = job.wait();
            assert_eq!(done.result, expected.result, "{what}");
            assert!(done.buffers == expected.buffers, "{what}: other bytes, by {:?}", done.via);
        }));
    }

    /// Begins a move with overlapping operands. If the queue stops in the middle, the result is undefined.
    fn begin_overlapping(&mut self, bytes: &[u8], from: Range<usize>, to: usize, stops: bool) {
        let job = self.disturbed.copy_within(bytes.to_vec(), from.clone(), to);
        let mut expected = bytes.to_vec();
        expected.copy_within(from, to);
        self.jobs.push(Box::new(move || match job.wait().into_parts() {
            (Err(JobError::Stopped { op: Opcode::MemoryMove, .. }), _) if stops => {}
            (result, bytes) => assert!(result == Ok(Outcome::Done) && bytes == expected, "copy within: {result:?}"),
        }));
    }

    fn end(self) {
        // Not in the order of submission.
        self.jobs.into_iter().rev().for_each(|check| check());
    }
}

fn blocks(round: &mut Round<'_>, chance: &mut Chance) {
    let block = DifBlock::ALL[chance.within(0..DifBlock::ALL.len())];
    let (source, dest) = (SourceDifFlags::APP_TAG_INCREMENTS, DestDifFlags::APP_TAG_INCREMENTS);
    let config = DifConfig { block, flags: DifFlags::INVERT_CRC_SEED, source, dest };
    let tags = Tags { ref_tag: 0xffff_fffe, app_mask: 0xf000, app_tag: 0x1ffe };
    let other = Tags { ref_tag: 77, app_mask: 0, app_tag: 3 };
    let (bytes, n) = (block.bytes() as usize, chance.within(1..20));
    let data = chance.bytes(bytes * n);
    let (_, _, good) = round.cpu.dif_insert(data.clone(), vec![0; (bytes + 8) * n], config, tags).wait().into_parts();
    let mut bad = good.clone();
    bad[chance.within(0..(bytes + 8) * n)] ^= 1;
    round.begin("dif insert", move |m| m.dif_insert(data.clone(), vec![0; (bytes + 8) * n], config, tags));
    let whole = good.clone();
    round.begin("dif strip", move |m| m.dif_strip(whole.clone(), vec![0; bytes * n], config, tags));
    let whole = good.clone();
    round.begin("dif update", move |m| m.dif_update(whole.clone(), vec![0; whole.len()], config, tags, other));
    round.begin("dif check", move |m| m.dif_check(good.clone(), config, tags));
    round.begin("dif check of a wrong byte", move |m| m.dif_check(bad.clone(), config, tags));
}

fn deltas(round: &mut Round<'_>, chance: &mut Chance) {
    let n = chance.within(1..2000) * 8;
    let a = chance.bytes(n);
    let mut b = a.clone();
    (0..chance.within(0..50)).for_each(|_| b[chance.within(0..n)] ^= 0x10);
    let room = chance.within(8..60) * 10;
    let (result, _, _, delta) = {
        let done = round.cpu.create_delta(a.clone(), b.clone(), vec![0; room]).wait();
        (done.result, done.buffers.0, done.buffers.1, done.buffers.2)
    };
    if let Ok(Outcome::Delta(Delta::Complete { bytes })) = result {
        let old = a.clone();
        round.begin("apply delta", move |m| m.apply_delta(delta.clone(), old.clone(), bytes));
    }
    round.begin("create delta", move |m| m.create_delta(a.clone(), b.clone(), vec![0; room]));
}

fn plain(round: &mut Round<'_>, chance: &mut Chance, stops: bool) {
    let n = chance.within(1..40_000);
    let (a, word) = (chance.bytes(n), chance.0.next());
    let mut b = a.clone();
    b[chance.within(0..n)] ^= 1;
    let (from, to) = (chance.within(0..n), chance.within(0..n));
    let len = (n - from).min(n - to);
    round.begin_overlapping(&a, from..from + len, to, stops);
    round.begin("fill", move |m| m.fill(vec![0; n], word));
    round.begin("fill16", move |m| m.fill16(vec![0; n], [word, !word]));
    let filled = round.cpu.fill(vec![0; n], word).wait().buffers.0;
    round.begin("compare pattern", move |m| m.compare_pattern(filled.clone(), word));
    let other = a.clone();
    round.begin("compare", move |m| m.compare(other.clone(), b.clone()));
    for (what, bypass) in [("crc", false), ("crc of another kind", true)] {
        let mode = CrcMode { bypass_invert_reflect: bypass, bypass_data_reflect: bypass };
        let src = a.clone();
        round.begin(what, move |m| m.crc(src.clone(), 7, mode));
        let src = a.clone();
        round.begin("copy with crc", move |m| m.copy_crc(src.clone(), vec![0; n], 7, mode));
    }
    let src = a.clone();
    round.begin("dualcast", move |m| m.dualcast(src.clone(), vec![0; n], vec![0; n]));
    let src = a.clone();
    round.begin("flush", move |m| m.flush(src.clone()));
    round.begin("copy", move |m| m.copy(a.clone(), vec![0; n]));
}

/// Copies in a batch with fences, in a scope, split over both queues, and dropped in flight.
fn together(mover: &Mover, chance: &mut Chance) {
    let source = chance.bytes(300_000);
    let job = mover.copy(source.clone(), vec![0; source.len()]);
    drop(mover.fill(vec![0; 50_000], 1));
    let mut batch = mover.batch();
    let keys: Vec<_> = source[..40_000]
        .chunks(chance.within(700..9000))
        .map(|chunk| {
            if chance.0.next().is_multiple_of(4) {
                batch.fence();
            }
            batch.copy(chunk.to_vec(), vec![0; chunk.len()])
        })
        .collect();
    let mut done = batch.submit().wait();
    for key in keys {
        let (result, src, dst) = done.take(key).into_parts();
        assert!(result == Ok(Outcome::Done) && src == dst, "in a batch: {result:?}");
    }
    let mut copy = vec![0; source.len()];
    let size = chance.within(3000..60_000);
    mover.scope(|scope| {
        let copies = source.chunks(size).zip(copy.chunks_mut(size)).map(|(src, dst)| scope.copy(src, dst));
        copies.collect::<Vec<_>>().into_iter().for_each(|copy| assert_eq!(copy.wait().result, Ok(Outcome::Done)));
    });
    assert!(copy == source, "in a scope");
    let (result, src, dst) = job.wait().into_parts();
    assert!(result == Ok(Outcome::Done) && src == dst, "split: {result:?}");
}

fn in_a_channel(portal: Arc<dyn Portal>, chance: &mut Chance) {
    let policy = ChannelPolicy { limit: Duration::from_millis(100), ..ChannelPolicy::default() };
    let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(portal, 16, policy).expect("room");
    let (mut out, mut copied) = (Vec::new(), 0);
    for _ in 0..200 {
        let n = chance.within(1..9000);
        let src = chance.bytes(n);
        // If the channel is full, the buffers come back, and the next turn tries new ones.
        copied += usize::from(channel.copy(src, vec![0; n]).is_ok());
        channel.submit();
        channel.completed(&mut out);
    }
    while out.len() < copied {
        channel.submit();
        channel.completed(&mut out);
    }
    for (n, finished) in (0..).zip(&out) {
        let buffers = finished.buffers.as_ref().expect("no deadline");
        assert_eq!((finished.ticket.number(), &finished.result), (n, &Ok(Outcome::Done)));
        assert!(buffers.src == buffers.dst, "in a channel");
    }
}

fn every_operation(on_fault: OnFault, stops: bool) {
    let split = Split { above: 100_000, ..Split::default() };
    let (threshold, limit) = (Threshold::all(0), Duration::from_millis(100));
    let shared = open(SHARED);
    let policy = Policy { threshold, limit, split, on_fault, ..Policy::default() };
    let (disturbed, cpu) = (Mover::new([Arc::clone(&shared), open(DEDICATED)], policy), Mover::cpu());
    let mut chance = Chance(Random::new(1));
    for _ in 0..8 {
        let mut round = Round { disturbed: &disturbed, cpu: &cpu, jobs: Vec::new() };
        plain(&mut round, &mut chance, stops);
        deltas(&mut round, &mut chance);
        blocks(&mut round, &mut chance);
        round.end();
        together(&disturbed, &mut chance);
    }
    in_a_channel(shared, &mut chance);
    // Jobs that were dropped in flight complete as well.
    while disturbed.orphaned() > 0 {
        disturbed.drive();
    }
    assert_eq!(disturbed.quarantined(), 0);
}

/// Disturbances after which the queues continue to work.
pub(crate) fn disturbed() {
    for on_fault in [OnFault::default(), OnFault::FinishOnCpu] {
        every_operation(on_fault, false);
    }
}

/// Disturbances that may stop the queues.
pub(crate) fn disturbed_until_it_stops() {
    every_operation(OnFault::default(), true);
}
