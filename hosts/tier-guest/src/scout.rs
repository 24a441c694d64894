//! The thread that looks what the program has mapped, has it taken over, and tells of it; and that does what the program's threads [ask](crate::desk).
#![allow(unsafe_code, reason = "takes over what an unmodified program has mapped")]

use crate::desk::{Desk, Errand, left_of};
use crate::maps::{Early, Kind, Mapping, Plan, len, parse, plan, without};
use crate::telling::Telling;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use telpher_tier::{Heap, Mechanism, TierError};
use telpher_tier_wire::{Ignored, Settings};

/// A look may take this share of the time between two. Source: chosen.
const LOOK_SHARE: u32 = 100;

/// A piece at the end of a known one that is smaller than this waits until it has stopped growing. Source: chosen; the C library's heap grows by 132 KiB.
const GROWING: u64 = 1 << 20;

/// Pages that are not taken over while a thread lives, in order, and that thread.
#[derive(Debug, Default)]
struct Held(Vec<(Range<u64>, i32)>);

impl Held {
    /// These, too, for this thread.
    fn hold(&mut self, range: Range<u64>, thread: i32) {
        let at = self.0.partition_point(|(other, _)| other.start < range.start);
        match self.0.get_mut(at) {
            // Of one that has ended, whose stack this one has now.
            Some((other, its)) if *other == range => *its = thread,
            _ => self.0.insert(at, (range, thread)),
        }
    }

    /// Not these any more, for this thread.
    fn give_up(&mut self, range: &Range<u64>, thread: i32) {
        self.0.retain(|(other, its)| other != range || *its != thread);
    }

    /// Those of threads that have ended are no more.
    fn of_the_living(&mut self) {
        // Many are of one.
        let mut lives = BTreeMap::new();
        let is_there = |thread: i32| std::path::Path::new(&format!("/proc/self/task/{thread}")).exists();
        self.0.retain(|&(_, thread)| *lives.entry(thread).or_insert_with(|| is_there(thread)));
    }

    /// All of them, in order and apart from each other.
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (range, _) in &self.0 {
            match ranges.last_mut().filter(|last| range.start <= last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => ranges.push(range.clone()),
            }
        }
        ranges
    }
}

/// Looks after which a piece that was refused is tried again. Source: chosen, some second.
const AGAIN: u32 = 20;

/// What is done about the program's mappings.
#[derive(Debug)]
pub(crate) struct Scout {
    heap: Heap,
    telling: Telling,
    early: Early,
    held: Held,
    least: u64,
    /// Pieces that the system refused, and what it said.
    refused: BTreeMap<(u64, u64), (String, u32)>,
    /// Small pieces that were new at the last look.
    growing: Vec<Range<u64>>,
    text: String,
    looks: u32,
}

/// From where the last one before a piece ends to where the first one behind it begins.
fn room(piece: &Range<u64>, others: &[Vec<&Range<u64>>]) -> Range<u64> {
    let others = || others.iter().flatten();
    let start = others().map(|other| other.end).filter(|&end| end <= piece.start).max();
    let end = others().map(|other| other.start).filter(|&start| start >= piece.end).min();
    // A piece is a part of a mapping, of which the rest is known or held.
    let of_mapping = others().find(|other| other.start < piece.end && piece.start < other.end);
    let inside = |bound: u64| of_mapping.is_none_or(|mapping| bound <= mapping.start || bound >= mapping.end);
    let start =
        start.filter(|&start| inside(start)).filter(|_| of_mapping.is_none_or(|mapping| mapping.start == piece.start));
    let end = end.filter(|&end| inside(end)).filter(|_| of_mapping.is_none_or(|mapping| mapping.end == piece.end));
    start.unwrap_or(piece.start)..end.unwrap_or(piece.end)
}

impl Scout {
    /// Of a heap, what is told of it, and what was there before.
    pub(crate) fn new(heap: Heap, telling: Telling, early: Early, least: u64) -> Scout {
        Scout {
            heap,
            telling,
            early,
            held: Held::default(),
            least,
            refused: BTreeMap::new(),
            growing: Vec::new(),
            text: String::new(),
            looks: 0,
        }
    }

    /// Looks until nothing new is found any more; tells what is left alone.
    fn look(&mut self) -> Vec<Ignored> {
        /// Looks at once. Source: chosen.
        const MOST: u32 = 4;
        self.looks += 1;
        if self.looks.is_multiple_of(AGAIN) {
            self.held.of_the_living();
        }
        let (mut ignored, mut rooms) = (Vec::new(), Vec::new());
        for _ in 0..MOST {
            // What was mapped meanwhile and lies half in what was taken over was cut in two: the rest is taken over, before it is missed.
            (ignored, rooms) = self.look_once(&rooms);
            if rooms.is_empty() {
                break;
            }
        }
        ignored
    }

    /// Looks once; tells what is left alone, and the rooms of what was taken over. What touches the rooms of the look before is taken over in any case.
    fn look_once(&mut self, before: &[Range<u64>]) -> (Vec<Ignored>, Vec<Range<u64>>) {
        let held = self.held.ranges();
        let mappings = self.mappings();
        // Without an answer, nothing is new.
        if mappings.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let known = self.heap.ranges();
        if self.heap.mechanism() == Mechanism::MovePages {
            self.forget_unmapped(&mappings, &known);
        }
        let Plan { fresh, mut ignored } = plan(&mappings, &self.early, &known, self.least);
        let (mut again, mut rooms) = (BTreeMap::new(), Vec::new());
        let mut growing = Vec::new();
        for piece in without(fresh, &held) {
            if let Some((why, looks)) = self.refused.remove(&(piece.start, piece.end))
                && looks < AGAIN
            {
                again.insert((piece.start, piece.end), (why, looks + 1));
                continue;
            }
            let touches = before.iter().any(|room| room.start <= piece.end && piece.start <= room.end);
            if len(&piece) < GROWING && !touches && !self.growing.contains(&piece) {
                growing.push(piece);
                continue;
            }
            let room = room(&piece, &[mappings.iter().map(|mapping| &mapping.range).collect(), held.iter().collect()]);
            // SAFETY: private anonymous memory, which reads as zeros where nobody has touched it; or it has gone since, and the system refuses. The
            // heap is never dropped. Its threads have their stacks and all they allocate in what was there before main, which is not taken over;
            // the page they touch all the same is brought back to them.
            match unsafe { self.heap.adopt_in(piece.clone(), room.clone()) } {
                Ok(()) => rooms.push(room),
                // Known by now: it has moved there meanwhile.
                Err(TierError::Known { .. }) => {}
                Err(error) => {
                    let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    again.insert((piece.start, piece.end), (why, 0));
                    rooms.push(room);
                }
            }
        }
        (self.refused, self.growing) = (again, growing);
        for ((start, end), (why, _)) in &self.refused {
            ignored.push(Ignored { reason: format!("refused: {why}"), mappings: 1, bytes: end - start });
        }
        (ignored, rooms)
    }

    /// The kernel tells of nothing where it moves pages itself: what is not mapped any more is let go.
    fn forget_unmapped(&self, mappings: &[Mapping], known: &[Range<u64>]) {
        let there = mappings.iter().filter(|mapping| mapping.kind == Kind::Memory);
        let there: Vec<_> = there.map(|mapping| mapping.range.clone()).collect();
        for gone in without(known.iter().cloned(), &there) {
            // SAFETY: of no arena: this library has none. This is the heap's process.
            let _ = unsafe { self.heap.release(&gone) };
        }
    }

    fn mappings(&mut self) -> Vec<Mapping> {
        self.text.clear();
        let read = std::fs::File::open("/proc/self/maps").and_then(|mut file| {
            use std::io::Read;
            file.read_to_string(&mut self.text)
        });
        if read.is_ok() { parse(&self.text) } else { Vec::new() }
    }

    /// These pages are not moved as long as this thread lives.
    fn let_go(&mut self, range: Range<u64>, thread: i32) {
        self.held.hold(range.clone(), thread);
        // SAFETY: of no arena: this library has none. This is the heap's process.
        let _ = unsafe { self.heap.release(&range) };
    }

    /// Does what a thread of the program asks for.
    fn serve(&mut self, errand: Errand) {
        match errand {
            Errand::LetGo { start, end, thread } => self.let_go(start..end, thread),
            Errand::LetStackGo { at, thread } => {
                if let Some(mapping) = self.mappings().into_iter().find(|mapping| mapping.range.contains(&at)) {
                    self.let_go(mapping.range, thread);
                }
            }
            Errand::MayTake { start, end, thread } => self.held.give_up(&(start..end), thread),
            Errand::End => {
                self.telling.tell(true);
                self.telling.end();
            }
        }
    }

    /// Looks, tells and serves as long as the process lives. `noted` is what was asked for before.
    pub(crate) fn run(mut self, settings: &Settings, desk: &Desk, noted: Vec<Errand>) {
        let (look, tell) = (Duration::from_millis(settings.look_ms), Duration::from_millis(settings.tell_ms));
        noted.into_iter().for_each(|errand| self.serve(errand));
        let (mut told, mut before) = (Instant::now(), Instant::now());
        loop {
            let begun = Instant::now();
            self.telling.hold(begun.duration_since(std::mem::replace(&mut before, begun)));
            let ignored = self.look();
            self.telling.ignored(ignored);
            self.telling.sample();
            if begun.duration_since(told) >= tell {
                told = begun;
                self.telling.tell(false);
            }
            desk.serve(left_of(look.max(begun.elapsed() * LOOK_SHARE)), |errand| self.serve(errand));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_has_the_room_between_its_neighbours_and_a_part_of_one_its_own() {
        let (below, mapping, above) = (0..10, 20..30, 40..50);
        let mappings = vec![&below, &mapping, &above];
        let of = |piece: Range<u64>, held: &[Range<u64>]| room(&piece, &[mappings.clone(), held.iter().collect()]);
        assert_eq!(of(20..30, &[]), 10..40);
        assert_eq!(of(20..30, &[34..35, 60..61]), 10..34);
        // The rest of it is known, or held: to that side there is no room.
        assert_eq!(of(24..30, &[]), 24..40);
        assert_eq!(of(20..26, &[26..27, 60..61]), 10..26);
        assert_eq!(of(40..50, &[]), 30..50);
        // It has gone since: nothing is known of where it was.
        assert_eq!(of(12..14, &[]), 10..20);
    }

    #[test]
    fn what_is_held_is_so_while_its_thread_lives() {
        let (mut held, this) = (Held::default(), rustix::thread::gettid().as_raw_pid());
        // No thread has so large a number: Linux, PID_MAX_LIMIT.
        let none = 1 << 23;
        held.hold(40..50, this);
        held.hold(20..30, none);
        held.hold(60..70, none);
        assert_eq!(held.ranges(), [20..30, 40..50, 60..70]);
        // A stack that another thread has now.
        held.hold(60..70, this);
        held.of_the_living();
        held.hold(45..55, this);
        assert_eq!(held.ranges(), [40..55, 60..70]);
        // Only what this thread has held.
        held.give_up(&(45..55), none);
        held.give_up(&(45..50), this);
        assert_eq!(held.ranges(), [40..55, 60..70]);
        held.give_up(&(45..55), this);
        assert_eq!(held.ranges(), [40..50, 60..70]);
    }
}
