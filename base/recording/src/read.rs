//! Reads a recording that any author may have written: nothing in it is used before it was checked.

use crate::calibration::CurvePoint;
use crate::event::{NO_SITE, RawEvent};
use crate::layout::{Extent, Header, LOGARITHMS, Limits, MAGIC, ModuleEntry, Point, Progress, SiteCounters, SizeCell};
use crate::layout::{SMALL_LENGTHS, SlotWords, Tables, ThreadTable, TimedCells, VERSION};
use crate::operation::{Operation, SIZE_CLASSES, sizes_of_class};
use crate::recording::{
    Alignments, Calibration, Event, Gap, Machine, Module, NotRecorded, OperationCalls, Overlaps, Process, Recording,
    Site, SizeRow, Thread, Timed,
};
use crate::sampling::{BLOCK, slot_of};
use crate::site_directory;
use crate::thread_writer::NUMBER_SHIFT;
use crate::trace_slot::{self, SlotContent};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Why a file is no recording that this program can read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It does not begin with the magic number.
    #[error("the file is no recording")]
    Magic,
    /// It is empty, or begins with zeros.
    #[error("the recording is empty: the process ended before its recording began")]
    NotBegun,
    /// Another version of the format.
    #[error("the recording has version {0} of the format, and this program reads version {VERSION}: record again")]
    Version(u32),
    /// The file is shorter than its header says.
    #[error("the recording is truncated: it has {have} bytes, and needs {needed}")]
    Short {
        /// Bytes of the file.
        have: u64,
        /// Bytes that it needs.
        needed: u64,
    },
    /// A value of the header contradicts the format.
    #[error("the recording is damaged: {0}")]
    Damaged(&'static str),
}

impl Recording {
    /// Reads the bytes of a file. The file may be of a process that still runs; entries that change while it is copied
    /// are counted as torn.
    ///
    /// Entries that make no sense are skipped and counted ([`NotRecorded`]). Texts may have any content, also control
    /// characters. The memory in use is at most a few times that of the bytes.
    ///
    /// # Errors
    /// If the bytes are no recording, or if the header contradicts the format.
    pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
        let file = File::check(bytes)?;
        let mut not_recorded = NotRecorded::default();
        let (mut modules, ranges) = file.modules(&mut not_recorded);
        let (threads, thread_of) = file.threads();
        let sites = file.sites(&thread_of, &ranges, &mut not_recorded);
        let (events, last_long_end_ns) = file.events(&thread_of, &sites, &mut not_recorded);
        let mut sites: Vec<Site> = sites.into_iter().map(|(_, site)| site).collect();
        keep_used(&mut modules, &mut sites);
        let tables: Vec<&ThreadTable<U64>> = thread_of.iter().map(|index| &file.threads[*index]).collect();
        file.count_missing(&tables, events.len(), &mut not_recorded);
        Ok(Recording {
            machine: file.machine(),
            calibration: file.calibration(),
            processes: vec![file.process(last_long_end_ns)],
            modules,
            sites,
            sizes: file.size_rows(&tables),
            threads,
            events,
            not_recorded,
        })
    }
}

/// The checked parts of a file.
struct File<'a> {
    header: &'a Header,
    limits: Limits,
    progress: &'a Progress<U64>,
    directory: &'a [U64],
    modules: &'a [ModuleEntry<U64>],
    threads: &'a [ThreadTable<U64>],
    sites: &'a [SiteCounters<U64>],
    trace: &'a [SlotWords<U64>],
}

/// Checks the header of a recording: its tables are where their sizes place them, and inside the bytes.
pub(crate) fn check_header(bytes: &[u8]) -> Result<(&Header, Limits, Tables), ReadError> {
    let short = |needed: u64| ReadError::Short { have: bytes.len() as u64, needed };
    match bytes.first_chunk::<8>() {
        Some(&MAGIC) => {}
        Some(&[0, 0, 0, 0, 0, 0, 0, 0]) => return Err(ReadError::NotBegun),
        Some(_) => return Err(ReadError::Magic),
        None if bytes.is_empty() => return Err(ReadError::NotBegun),
        None => return Err(ReadError::Magic),
    }
    let version = bytes[8..].first_chunk::<4>().map(|version| u32::from_le_bytes(*version));
    match version {
        Some(VERSION) => {}
        Some(version) => return Err(ReadError::Version(version)),
        None => return Err(short(size_of::<Header>() as u64)),
    }
    let (header, _) = Header::ref_from_prefix(bytes).map_err(|_| short(size_of::<Header>() as u64))?;
    let expected = [Operation::ALL.len() as u64, SIZE_CLASSES as u64, BLOCK];
    if [header.operations, header.size_classes, header.block].map(|number| u64::from(number.get())) != expected {
        return Err(ReadError::Damaged("it has other operations, size classes or blocks than its version"));
    }
    let limits = Limits {
        threads: header.threads.get(),
        sites: header.sites.get(),
        modules: header.modules.get(),
        trace_blocks: header.trace_blocks.get(),
    };
    let tables = Tables::of(limits).map_err(ReadError::Damaged)?;
    if header.tables != tables.all() || header.bytes.get() != tables.bytes {
        return Err(ReadError::Damaged("its tables are not where their sizes place them"));
    }
    if header.tsc_hz.get() == 0 {
        return Err(ReadError::Damaged("the frequency of the time stamp counter is 0"));
    }
    if (bytes.len() as u64) < tables.bytes {
        return Err(short(tables.bytes));
    }
    Ok((header, limits, tables))
}

/// The part of the bytes that is this table.
fn table<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8], extent: Extent) -> Result<&[T], ReadError> {
    let part = extent.part(bytes).and_then(|part| <[T]>::ref_from_bytes(part).ok());
    part.ok_or(ReadError::Damaged("a table is not inside the file"))
}

impl<'a> File<'a> {
    fn check(bytes: &'a [u8]) -> Result<File<'a>, ReadError> {
        let (header, limits, tables) = check_header(bytes)?;
        let only = ReadError::Damaged("a table is not inside the file");
        Ok(File {
            header,
            limits,
            progress: table::<Progress<U64>>(bytes, tables.progress)?.first().ok_or(only)?,
            directory: table(bytes, tables.directory)?,
            modules: table(bytes, tables.modules)?,
            threads: table(bytes, tables.threads)?,
            sites: table(bytes, tables.sites)?,
            trace: table(bytes, tables.trace)?,
        })
    }

    /// Nanoseconds of ticks, at most `u64::MAX`.
    fn ns(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.header.tsc_hz.get());
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Nanoseconds of timed calls, without the time of their measurements.
    fn net_ns(&self, ticks: u64, calls: u64) -> u64 {
        self.ns(ticks.saturating_sub(self.header.timer_ticks.get().saturating_mul(calls)))
    }

    fn machine(&self) -> Machine {
        let Header { cpu, cpu_signature, logical_cpus, cache_bytes, kernel, tsc_hz, .. } = self.header;
        Machine {
            cpu: text(cpu.get().0),
            cpu_signature: cpu_signature.get(),
            logical_cpus: logical_cpus.get(),
            cache_bytes: cache_bytes.map(U64::get),
            kernel: text(kernel.get().0),
            tsc_hz: tsc_hz.get(),
        }
    }

    fn calibration(&self) -> Calibration {
        let point = |point: &Point| CurvePoint {
            len: point.len.get(),
            hot_ps: point.hot.get(),
            cold_ps: point.cold.get(),
            fresh_ps: point.fresh.get(),
        };
        let curve = |points: &[Point]| points.iter().map(point).take_while(|point| point.len != 0).collect();
        let [copy, fill, compare] = &self.header.curves;
        // Precise enough: both are far below 2^53.
        let timer_ns = self.header.timer_ticks.get() as f64 * 1e9 / self.header.tsc_hz.get() as f64;
        Calibration { copy: curve(copy), fill: curve(fill), compare: curve(compare), timer_ns }
    }

    fn process(&self, last_long_end_ns: u64) -> Process {
        let header = self.header;
        let (arguments, arguments_are_cut) = header.arguments.get();
        let arguments = arguments.strip_suffix(b"\0").unwrap_or(arguments);
        let split = arguments.split(|byte| *byte == 0).map(text);
        Process {
            pid: header.pid.get(),
            parent_pid: header.parent_pid.get(),
            program: text(header.program.get().0),
            arguments: if arguments.is_empty() { Vec::new() } else { split.collect() },
            arguments_are_cut,
            options: text(header.options.get().0),
            start_realtime_ns: header.start_realtime_ns.get(),
            start_ticks: header.start_ticks.get(),
            start_ns: 0,
            last_long_end_ns,
            noted_ns: self.ns(self.progress.noted_ticks.get()),
            cpu_ns: self.progress.cpu_ns.get(),
            sites_from: header.sites_from.get(),
            long_from: header.long_from.get(),
            sample_period: header.sample_period.get(),
        }
    }

    /// The modules, and the first address, the end and the index of each.
    fn modules(&self, not_recorded: &mut NotRecorded) -> (Vec<Module>, Vec<[u64; 3]>) {
        let claimed = claimed(self.progress.modules_claimed, self.modules.len());
        let (mut modules, mut ranges) = (Vec::new(), Vec::new());
        for entry in &self.modules[..claimed] {
            let [start, end] = [entry.start.get(), entry.end.get()];
            // Of a running process, an entry may not be complete yet.
            if entry.complete.get() == 0 {
                continue;
            }
            if entry.complete.get() != 1 || start >= end {
                not_recorded.entries_damaged += 1;
                continue;
            }
            ranges.push([start, end, modules.len() as u64]);
            let build_id = kept(&entry.build_id, entry.build_id_len).iter().map(|byte| format!("{byte:02x}")).collect();
            modules.push(Module { path: text(&kept(&entry.path, entry.path_len)), build_id });
        }
        (modules, ranges)
    }

    /// The threads, and the index of each one's table.
    fn threads(&self) -> (Vec<Thread>, Vec<usize>) {
        let own = self.threads.len() - 1;
        let mut in_use: Vec<usize> = (0..claimed(self.progress.threads_claimed, own)).collect();
        if self.progress.threads_beyond.get() > 0 {
            in_use.push(own);
        }
        let thread = |&index: &usize| {
            let table = &self.threads[index];
            let sizes = self.size_rows(&[table]);
            Thread {
                process: 0,
                id: Some(table.thread_id.get()).filter(|id| *id != 0),
                is_shared: index == own,
                calls: sizes.iter().fold(0, |sum, row| row.calls.saturating_add(sum)),
                bytes: sizes.iter().fold(0, |sum, row| row.bytes.saturating_add(sum)),
                long_calls: table.long_calls.get(),
                most_in_flight: table.most_in_flight.get(),
                sizes,
                gaps: self.gaps(table),
            }
        };
        (in_use.iter().map(thread).collect(), in_use)
    }

    fn gaps(&self, table: &ThreadTable<U64>) -> Vec<Gap> {
        let gap =
            |log: usize| Gap { from_ns: if log == 0 { 0 } else { self.ns(1 << log) }, count: table.gaps[log].get() };
        (0..LOGARITHMS).map(gap).filter(|gap| gap.count > 0).collect()
    }

    /// The calls of several threads by operation and size.
    fn size_rows(&self, tables: &[&ThreadTable<U64>]) -> Vec<SizeRow> {
        let mut rows = Vec::new();
        for operation in Operation::ALL {
            // Calls of each length that is counted by itself.
            let small =
                (0..SMALL_LENGTHS).map(|len| sum(tables.iter().map(|table| table.small[operation as usize][len])));
            let small: Vec<u64> = small.collect();
            for class in 0..SIZE_CLASSES {
                let cells = tables.iter().map(|table| &table.sizes[operation as usize][class]);
                let sum = |field: fn(&SizeCell<U64>) -> U64| sum(cells.clone().map(field));
                let (from, to) = sizes_of_class(class);
                let (mut calls, mut bytes) = (sum(|cell| cell.calls), sum(|cell| cell.bytes));
                for (len, &of_len) in (0..).zip(&small).filter(|(len, _)| (from..=to).contains(len)) {
                    calls = calls.saturating_add(of_len);
                    bytes = bytes.saturating_add(of_len.saturating_mul(len));
                }
                let timed_calls = sum(|cell| cell.timed_calls);
                if calls == 0 && timed_calls == 0 {
                    continue;
                }
                let timed_ns = self.net_ns(sum(|cell| cell.timed_ticks), timed_calls);
                rows.push(SizeRow { operation, from, to, calls, bytes, timed_calls, timed_ns });
            }
        }
        rows
    }

    /// The sites, each with its index in the file.
    fn sites(&self, thread_of: &[usize], ranges: &[[u64; 3]], not_recorded: &mut NotRecorded) -> Vec<(u16, Site)> {
        let of_thread = self.limits.sites as usize;
        let mut seen = vec![false; of_thread];
        let mut sites = Vec::new();
        for (address, index) in self.directory.iter().filter_map(|word| site_directory::decode(word.get())) {
            match seen.get_mut(usize::from(index)) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    not_recorded.entries_damaged += 1;
                    continue;
                }
            }
            let counters = thread_of.iter().map(|thread| &self.sites[thread * of_thread + usize::from(index)]);
            // The return address may be the first one after the module's last function, hence the last byte of the
            // call.
            let inside = |[start, end, _]: &&[u64; 3]| (*start..*end).contains(&(address - 1));
            let (module, offset) = match ranges.iter().rev().find(inside) {
                Some([start, _, module]) => (usize::try_from(*module).ok(), address - start),
                None => (None, address),
            };
            sites.push((index, self.site(counters.collect(), module, offset)));
        }
        sites.sort_by_key(|(index, _)| *index);
        sites
    }

    fn site(&self, counters: Vec<&SiteCounters<U64>>, module: Option<usize>, offset: u64) -> Site {
        let all = counters.iter().copied();
        let sum = |field: &dyn Fn(&SiteCounters<U64>) -> U64| sum(all.clone().map(field));
        let timed = |at: usize| {
            let part = |field: fn(&TimedCells<U64>) -> U64| sum(&|it| field(&it.timed[at]));
            let calls = part(|cells| cells.calls);
            Timed { calls, bytes: part(|cells| cells.bytes), ns: self.net_ns(part(|cells| cells.ticks), calls) }
        };
        let alignments = |field: &dyn Fn(&SiteCounters<U64>) -> [U64; 3]| Alignments {
            page: sum(&|it| field(it)[0]),
            line: sum(&|it| field(it)[1]),
            other: sum(&|it| field(it)[2]),
        };
        let overlaps = |direction: usize| Overlaps {
            below_line: sum(&|it| it.overlaps[direction][0]),
            below_page: sum(&|it| it.overlaps[direction][1]),
            page_or_more: sum(&|it| it.overlaps[direction][2]),
            bytes: sum(&|it| it.overlap_bytes[direction]),
        };
        let operations = Operation::ALL
            .map(|operation| OperationCalls { operation, calls: sum(&|it| it.operations[operation as usize]) });
        Site {
            module,
            offset,
            calls: sum(&|it| it.calls),
            bytes: sum(&|it| it.bytes),
            operations: operations.into_iter().filter(|operation| operation.calls > 0).collect(),
            hot: timed(0),
            cold: timed(1),
            fresh: timed(2),
            destinations: alignments(&|it| it.destinations),
            sources: alignments(&|it| it.sources),
            overlaps_down: overlaps(0),
            overlaps_up: overlaps(1),
            fault_checks: sum(&|it| it.fault_checks),
            faults: sum(&|it| it.faults),
        }
    }

    /// The events by start, and the end of the last one.
    fn events(&self, thread_of: &[usize], sites: &[(u16, Site)], not_recorded: &mut NotRecorded) -> (Vec<Event>, u64) {
        let mut events = Vec::new();
        for (slot, words) in (0..).zip(self.trace) {
            let (number, words) = match trace_slot::decode(words.map(U64::get)) {
                SlotContent::Empty => continue,
                SlotContent::Torn => {
                    not_recorded.events_torn += 1;
                    continue;
                }
                SlotContent::Entry(number, words) => (number, words),
            };
            let place = slot_of(number, self.limits.trace_blocks.into()) == Some(slot);
            let raw = RawEvent::unpack(words).filter(|_| place);
            let known = raw.map(|raw| (self.exists(raw), self.event(number, raw, thread_of, sites)));
            match known {
                Some((_, Some(event))) => events.push(event),
                // Of a running process: its thread or its site was new when the file was copied.
                Some((true, None)) => not_recorded.events_torn += 1,
                _ => not_recorded.entries_damaged += 1,
            }
        }
        events.sort_by_key(|event| (event.start_ns, event.number));
        let ends = self.last_long_ends(thread_of);
        (events, ends)
    }

    /// Nanoseconds from the start to the last end of a long call of any thread.
    fn last_long_ends(&self, thread_of: &[usize]) -> u64 {
        let ends = thread_of.iter().map(|thread| self.threads[*thread].last_long_end.get());
        self.ns(ends.max().unwrap_or(0).saturating_sub(self.header.start_ticks.get()))
    }

    /// Returns whether the file has room for the thread and the site of an event.
    fn exists(&self, raw: RawEvent) -> bool {
        let site = raw.site == NO_SITE || u32::from(raw.site) < self.limits.sites;
        site && u32::from(raw.thread) <= self.limits.threads
    }

    fn event(&self, number: u64, raw: RawEvent, thread_of: &[usize], sites: &[(u16, Site)]) -> Option<Event> {
        let thread = thread_of.binary_search(&usize::from(raw.thread)).ok()?;
        let site = match raw.site {
            NO_SITE => None,
            site => Some(sites.binary_search_by_key(&site, |(index, _)| *index).ok()?),
        };
        let (overlap, log) = raw.overlap.unzip();
        Some(Event {
            start_ns: self.ns(raw.start_ticks),
            duration_ns: self.net_ns(raw.duration_ticks.into(), 1),
            number,
            thread,
            site,
            operation: raw.operation,
            bytes: raw.len,
            overlap,
            overlap_distance: log.map(|log| 1 << log.min(63)),
            destination_is_aligned: raw.destination_aligned,
            source_is_aligned: raw.source_aligned,
            temperature: raw.temperature,
            in_flight: raw.in_flight,
        })
    }

    /// What the counters say that is missing, after `events` were read.
    fn count_missing(&self, tables: &[&ThreadTable<U64>], events: usize, not_recorded: &mut NotRecorded) {
        let begun = self.progress.long_calls.get() >> NUMBER_SHIFT;
        let found = (events as u64).saturating_add(not_recorded.events_torn);
        not_recorded.events_left_out = begun.saturating_sub(found);
        not_recorded.threads_without_table = self.progress.threads_beyond.get();
        not_recorded.calls_without_site = sum(tables.iter().map(|table| table.calls_without_site));
        not_recorded.modules_without_entry = self.progress.modules_beyond.get();
        not_recorded.calls_lost = self.progress.calls_lost.get();
    }
}

/// Entries of a table that were claimed, at most all.
fn claimed(counter: U64, entries: usize) -> usize {
    usize::try_from(counter.get()).unwrap_or(usize::MAX).min(entries)
}

fn sum(numbers: impl Iterator<Item = U64>) -> u64 {
    numbers.fold(0, |sum: u64, number| sum.saturating_add(number.get()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The bytes that are kept of `len` bytes.
fn kept(words: &[U64], len: U64) -> Vec<u8> {
    let len = usize::try_from(len.get()).unwrap_or(usize::MAX);
    words.iter().flat_map(|word| word.get().to_le_bytes()).take(len).collect()
}

/// Leaves out modules without sites.
fn keep_used(modules: &mut Vec<Module>, sites: &mut [Site]) {
    let mut new_index = vec![None; modules.len()];
    let mut kept = Vec::new();
    for module in sites.iter_mut().filter_map(|site| site.module.as_mut()) {
        let index = *new_index[*module].get_or_insert_with(|| {
            kept.push(modules[*module].clone());
            kept.len() - 1
        });
        *module = index;
    }
    *modules = kept;
}
