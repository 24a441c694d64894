//! The thread that scans the program's mappings, adopts new ones, reports the status, and serves the
//! [requests](crate::requests) of program threads.
#![allow(unsafe_code, reason = "takes over what an unmodified program has mapped")]

use crate::maps::{EarlyMappings, Kind, Mapping, Plan, len, parse, plan, without};
use crate::requests::{Request, RequestQueue, left_of};
use crate::status::Status;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use telpher_tier::{Heap, Mechanism, TierError};
use telpher_tier_wire::{Ignored, Settings};

/// The inverse of the fraction of time that scans may take. Source: chosen.
const SCAN_SHARE: u32 = 100;

/// A smaller range at the end of a known one waits until it has stopped growing. Source: chosen; the C library's heap
/// grows by 132 KiB.
const GROWING: u64 = 1 << 20;

/// Pages that are not adopted while a thread lives, sorted, each with that thread.
#[derive(Debug, Default)]
struct Held(Vec<(Range<u64>, i32)>);

impl Held {
    /// Holds these pages for this thread.
    fn hold(&mut self, range: Range<u64>, thread: i32) {
        let at = self.0.partition_point(|(other, _)| other.start < range.start);
        match self.0.get_mut(at) {
            // The range of a thread that has ended; its stack now belongs to this thread.
            Some((other, its)) if *other == range => *its = thread,
            _ => self.0.insert(at, (range, thread)),
        }
    }

    /// Ends the hold of these pages for this thread.
    fn end_hold(&mut self, range: &Range<u64>, thread: i32) {
        self.0.retain(|(other, its)| other != range || *its != thread);
    }

    /// Ends the holds of threads that have ended.
    fn drop_ended_threads(&mut self) {
        // A thread may hold many ranges.
        let mut lives = BTreeMap::new();
        let is_there = |thread: i32| std::path::Path::new(&format!("/proc/self/task/{thread}")).exists();
        self.0.retain(|&(_, thread)| *lives.entry(thread).or_insert_with(|| is_there(thread)));
    }

    /// Returns all held ranges, sorted and joined.
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

/// Scans after which a refused range is tried again. Source: chosen, about a second.
const AGAIN: u32 = 20;

/// Scans the program's mappings and adopts them.
#[derive(Debug)]
pub(crate) struct MapScanner {
    heap: Heap,
    status: Status,
    early: EarlyMappings,
    held: Held,
    least: u64,
    /// Ranges that the system refused, with its error and the number of scans since.
    refused: BTreeMap<(u64, u64), (String, u32)>,
    /// Small ranges that were new at the last scan.
    growing: Vec<Range<u64>>,
    text: String,
    scans: u32,
}

/// Returns the free space around a range: from the end of the mapping before it to the start of the mapping behind it.
fn room(range: &Range<u64>, others: &[Vec<&Range<u64>>]) -> Range<u64> {
    let others = || others.iter().flatten();
    let start = others().map(|other| other.end).filter(|&end| end <= range.start).max();
    let end = others().map(|other| other.start).filter(|&start| start >= range.end).min();
    // The range may be a part of a mapping, the rest of which is known or held.
    let of_mapping = others().find(|other| other.start < range.end && range.start < other.end);
    let inside = |bound: u64| of_mapping.is_none_or(|mapping| bound <= mapping.start || bound >= mapping.end);
    let start =
        start.filter(|&start| inside(start)).filter(|_| of_mapping.is_none_or(|mapping| mapping.start == range.start));
    let end = end.filter(|&end| inside(end)).filter(|_| of_mapping.is_none_or(|mapping| mapping.end == range.end));
    start.unwrap_or(range.start)..end.unwrap_or(range.end)
}

impl MapScanner {
    /// Creates a scanner for a heap, with its status and the mappings that existed before.
    pub(crate) fn new(heap: Heap, status: Status, early: EarlyMappings, least: u64) -> MapScanner {
        MapScanner {
            heap,
            status,
            early,
            held: Held::default(),
            least,
            refused: BTreeMap::new(),
            growing: Vec::new(),
            text: String::new(),
            scans: 0,
        }
    }

    /// Scans until nothing new is found; returns the mappings that are ignored.
    fn scan(&mut self) -> Vec<Ignored> {
        /// The most scans in a row. Source: chosen.
        const MOST: u32 = 4;
        self.scans += 1;
        if self.scans.is_multiple_of(AGAIN) {
            self.held.drop_ended_threads();
        }
        let (mut ignored, mut rooms) = (Vec::new(), Vec::new());
        for _ in 0..MOST {
            // A mapping created meanwhile that lies partly in adopted space was cut in two: its rest is adopted before
            // that matters.
            (ignored, rooms) = self.scan_once(&rooms);
            if rooms.is_empty() {
                break;
            }
        }
        ignored
    }

    /// Scans once; returns the ignored mappings and the rooms of adopted ranges. A range that touches a room of the
    /// previous scan is adopted even if it is small.
    fn scan_once(&mut self, before: &[Range<u64>]) -> (Vec<Ignored>, Vec<Range<u64>>) {
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
        for range in without(fresh, &held) {
            if let Some((why, scans)) = self.refused.remove(&(range.start, range.end))
                && scans < AGAIN
            {
                again.insert((range.start, range.end), (why, scans + 1));
                continue;
            }
            let touches = before.iter().any(|room| room.start <= range.end && range.start <= room.end);
            if len(&range) < GROWING && !touches && !self.growing.contains(&range) {
                growing.push(range);
                continue;
            }
            let room = room(&range, &[mappings.iter().map(|mapping| &mapping.range).collect(), held.iter().collect()]);
            // SAFETY: private anonymous memory, which reads as zeros where it was never touched; or it is gone, and the
            // system refuses. The heap is never dropped. Its threads have their stacks and allocations in mappings that
            // existed before main, which are not adopted. If they touch a managed page nevertheless, it comes back to
            // them.
            match unsafe { self.heap.adopt_in(range.clone(), room.clone()) } {
                Ok(()) => rooms.push(room),
                // Known by now: a mapping has moved there meanwhile.
                Err(TierError::Known { .. }) => {}
                Err(error) => {
                    let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                    again.insert((range.start, range.end), (why, 0));
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

    /// With `move_pages` the kernel reports no events, so unmapped ranges are released here.
    fn forget_unmapped(&self, mappings: &[Mapping], known: &[Range<u64>]) {
        let there = mappings.iter().filter(|mapping| mapping.kind == Kind::Memory);
        let there: Vec<_> = there.map(|mapping| mapping.range.clone()).collect();
        for gone in without(known.iter().cloned(), &there) {
            // SAFETY: not part of an arena, because this library has none. This is the heap's process.
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

    /// Releases these pages and does not move them as long as this thread lives.
    fn release(&mut self, range: Range<u64>, thread: i32) {
        self.held.hold(range.clone(), thread);
        // SAFETY: not part of an arena, because this library has none. This is the heap's process.
        let _ = unsafe { self.heap.release(&range) };
    }

    /// Serves a request of a program thread.
    fn serve(&mut self, request: Request) {
        match request {
            Request::Release { start, end, thread } => self.release(start..end, thread),
            Request::ReleaseStack { at, thread } => {
                if let Some(mapping) = self.mappings().into_iter().find(|mapping| mapping.range.contains(&at)) {
                    self.release(mapping.range, thread);
                }
            }
            Request::MayAdopt { start, end, thread } => self.held.end_hold(&(start..end), thread),
            Request::End => {
                self.status.report(true);
                self.status.end();
            }
        }
    }

    /// Scans, reports and serves as long as the process lives. `noted` contains the stored requests.
    pub(crate) fn run(mut self, settings: &Settings, requests: &RequestQueue, noted: Vec<Request>) {
        let (scan, report) = (Duration::from_millis(settings.look_ms), Duration::from_millis(settings.tell_ms));
        noted.into_iter().for_each(|request| self.serve(request));
        let (mut reported, mut before) = (Instant::now(), Instant::now());
        loop {
            let start = Instant::now();
            self.status.hold(start.duration_since(std::mem::replace(&mut before, start)));
            let ignored = self.scan();
            self.status.ignored(ignored);
            self.status.sample();
            if start.duration_since(reported) >= report {
                reported = start;
                self.status.report(false);
            }
            requests.serve(left_of(scan.max(start.elapsed() * SCAN_SHARE)), |request| self.serve(request));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_a_mapping_reaches_to_its_neighbours() {
        let (below, mapping, above) = (0..10, 20..30, 40..50);
        let mappings = vec![&below, &mapping, &above];
        let of = |range: Range<u64>, held: &[Range<u64>]| room(&range, &[mappings.clone(), held.iter().collect()]);
        assert_eq!(of(20..30, &[]), 10..40);
        assert_eq!(of(20..30, &[34..35, 60..61]), 10..34);
        // The rest of the mapping is known or held: there is no room on that side.
        assert_eq!(of(24..30, &[]), 24..40);
        assert_eq!(of(20..26, &[26..27, 60..61]), 10..26);
        assert_eq!(of(40..50, &[]), 30..50);
        // The mapping is gone: nothing is known of its address.
        assert_eq!(of(12..14, &[]), 10..20);
    }

    #[test]
    fn ranges_are_held_while_their_thread_lives() {
        let (mut held, this) = (Held::default(), rustix::thread::gettid().as_raw_pid());
        // No thread has a number this large: Linux, PID_MAX_LIMIT.
        let none = 1 << 23;
        held.hold(40..50, this);
        held.hold(20..30, none);
        held.hold(60..70, none);
        assert_eq!(held.ranges(), [20..30, 40..50, 60..70]);
        // The stack belongs to another thread now.
        held.hold(60..70, this);
        held.drop_ended_threads();
        held.hold(45..55, this);
        assert_eq!(held.ranges(), [40..55, 60..70]);
        // Ends only what this thread holds.
        held.end_hold(&(45..55), none);
        held.end_hold(&(45..50), this);
        assert_eq!(held.ranges(), [40..55, 60..70]);
        held.end_hold(&(45..55), this);
        assert_eq!(held.ranges(), [40..50, 60..70]);
    }
}
