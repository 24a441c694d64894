//! What a writer records is what a reader finds.
#![cfg(not(loom))]

#[path = "recording/common.rs"]
mod common;

use common::{DOWN, POINTS, bytes_of, call, memory, record, start};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_recording::{
    BLOCK, Call, CreateError, Direction, Limits, MergeError, ModuleMapping, NotRecorded, Operation, ReadError,
    Recording, SAMPLE_PERIOD, SMALL_LENGTHS, Start, Temperature, ThreadWriter, Writer, bytes_needed, compact, lengths,
};

const SMALL: Limits = Limits { threads: 3, sites: 8, modules: 2, trace_blocks: 1 };

fn read(words: &[AtomicU64]) -> Recording {
    Recording::read(&bytes_of(words)).unwrap()
}

#[test]
fn the_start_is_what_the_reader_finds() {
    let words = memory(SMALL);
    let options = Start {
        pid: 4711,
        parent_pid: 1,
        program: b"/usr/bin/redis-server",
        arguments: b"redis-server\0*:7711\0",
        options: "--follow",
        cpu: "Intel(R) Xeon(R) Processor",
        cpu_signature: 0xa0671,
        logical_cpus: 2,
        cache_bytes: [48 << 10, 2 << 20, 16 << 20],
        kernel: "6.1.0",
        start_realtime_ns: 1_700_000_000_000_000_000,
        ..start(SMALL)
    };
    Writer::over(&words, &options).unwrap();
    let recording = read(&words);
    let process = &recording.processes[0];
    assert_eq!((process.pid, process.parent_pid, process.start_ns), (4711, 1, 0));
    assert_eq!(process.program, "/usr/bin/redis-server");
    assert_eq!(
        (&process.arguments[..], process.arguments_are_cut),
        (&["redis-server".into(), "*:7711".into()][..], false)
    );
    assert_eq!((process.options.as_str(), process.start_realtime_ns), ("--follow", 1_700_000_000_000_000_000));
    assert_eq!((process.sites_from, process.long_from, process.sample_period), (2048, 16384, SAMPLE_PERIOD));
    assert_eq!((recording.machine.cpu.as_str(), recording.machine.kernel.as_str()), (options.cpu, "6.1.0"));
    assert_eq!((recording.machine.cache_bytes, recording.machine.tsc_hz), (options.cache_bytes, 1_000_000_000));
    assert_eq!((&recording.calibration.copy[..], &recording.calibration.fill[..]), (&POINTS[..], &[][..]));
    assert_eq!((recording.not_recorded, recording.events.len()), (NotRecorded::default(), 0));
}

#[test]
fn long_arguments_lose_their_end() {
    let words = memory(SMALL);
    Writer::over(&words, &Start { arguments: &[b'x'; 5000], ..start(SMALL) }).unwrap();
    let process = &read(&words).processes[0];
    assert_eq!((process.arguments[0].len(), process.arguments_are_cut), (2044, true));
}

/// Sums are exact, although all threads write at the same time.
#[test]
fn calls_of_several_threads_add_up() {
    const CALLS: u64 = 20_000;
    let limits = Limits { threads: 4, ..SMALL };
    let words = memory(limits);
    let writer = Writer::over(&words, &start(limits)).unwrap();
    std::thread::scope(|scope| {
        // Two threads more than there are tables share one.
        for thread in 1..=6 {
            let writer = &writer;
            scope.spawn(move || {
                let thread = writer.thread(thread);
                for number in 0..CALLS {
                    let len = usize::try_from(number % 100).unwrap();
                    if thread.count(Operation::Memcpy, len) {
                        thread.time(Operation::Memcpy, len, 7);
                    }
                    record(&thread, &call(Operation::Memset, 3000, 0x1000), [number, number + 5]);
                }
            });
        }
    });
    let recording = read(&words);
    let summary = recording.summary();
    let [short, long] = &summary.by_operation[..] else { panic!("{:?}", summary.by_operation) };
    assert_eq!((short.operation, short.calls, short.bytes), (Operation::Memcpy, 6 * CALLS, 6 * CALLS / 100 * 4950));
    assert_eq!((long.operation, long.calls, long.bytes), (Operation::Memset, 6 * CALLS, 6 * CALLS * 3000));
    let [site] = &recording.sites[..] else { panic!("{:?}", recording.sites) };
    assert_eq!((site.calls, site.bytes, site.operations[0].calls), (6 * CALLS, 6 * CALLS * 3000, 6 * CALLS));
    let mut ids: Vec<_> = recording.threads.iter().map(|thread| (thread.is_shared, thread.id, thread.calls)).collect();
    let shared = ids.pop().unwrap();
    assert_eq!((ids.len(), shared), (4, (true, None, 4 * CALLS)));
    assert!(ids.iter().all(|(shared, id, calls)| !shared && id.is_some() && *calls == 2 * CALLS), "{ids:?}");
    assert_eq!(recording.not_recorded, NotRecorded { threads_without_table: 2, ..NotRecorded::default() });
}

#[test]
fn a_short_call_is_timed_once_in_a_period() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &Start { timer_ticks: 20, ..start(SMALL) }).unwrap();
    let thread = writer.thread(1);
    let timed = (0..SAMPLE_PERIOD * 3).filter(|_| thread.count(Operation::Memcmp, 100)).count();
    for _ in 0..timed {
        thread.time(Operation::Memcmp, 100, 25);
    }
    let recording = read(&words);
    let row = recording.sizes[0];
    assert_eq!((row.calls, row.timed_calls, row.timed_ns), (SAMPLE_PERIOD * 3, 3, 15));
    let time = recording.summary().time;
    assert_eq!((time.ns, time.timed_calls, time.calls_without_estimate), (SAMPLE_PERIOD * 15, 3, 0));
}

/// After the first 4096 calls of a size, a measurement would cost more than it tells.
#[test]
fn many_short_calls_are_timed_less_often_and_all_are_counted() {
    const CALLS: u64 = 4096 + 4 * 1024;
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    for (len, period) in [(8, 256), (71, 256), (72, SAMPLE_PERIOD), (1000, SAMPLE_PERIOD)] {
        let timed = (0..CALLS).filter(|_| thread.count(Operation::Memcpy, len)).count() as u64;
        assert_eq!(timed, 4096 / period + 4, "{len} bytes");
    }
    let [eight, seventy, thousand] = &read(&words).sizes[..] else { panic!("three size classes") };
    assert_eq!((eight.from, eight.calls, eight.bytes), (8, CALLS, 8 * CALLS));
    // 71 bytes are counted by length, 72 bytes by size class.
    assert_eq!((seventy.from, seventy.calls, seventy.bytes), (64, 2 * CALLS, 143 * CALLS));
    assert_eq!((thousand.calls, thousand.bytes), (CALLS, 1000 * CALLS));
}

/// The words that an exported function adds to by itself are those that the reader sums.
#[test]
fn calls_of_each_small_length_can_be_counted_in_place() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    let calls = &thread.small_calls().unwrap()[Operation::Memmove as usize];
    for (len, word) in calls.iter().enumerate() {
        assert!(!thread.count(Operation::Memmove, len), "the first call of {len} bytes is not timed");
        word.fetch_add(len as u64, Ordering::Relaxed);
    }
    let recording = read(&words);
    let lens = 0..SMALL_LENGTHS as u64;
    let sum = |of: fn(u64) -> u64| lens.clone().map(of).sum::<u64>();
    let summary = recording.summary();
    assert_eq!((summary.calls, summary.bytes), (sum(|len| len + 1), sum(|len| (len + 1) * len)));
    assert!(
        recording.sizes.iter().all(|row| row.operation == Operation::Memmove && row.to < 80),
        "{:?}",
        recording.sizes
    );
    // A thread beyond the tables shares the last one, which it must not change like this.
    let threads: Vec<ThreadWriter<'_>> = (2..9).map(|id| writer.thread(id)).collect();
    assert!(threads[6].is_attached() && threads[6].small_calls().is_none());
}

#[test]
fn a_call_site_has_its_module_and_what_its_calls_were_like() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let program = ModuleMapping { path: b"/bin/program", build_id: &[0xab, 0x01], addresses: 0x40_0000..0x50_0000 };
    writer.add_module(&program);
    writer.add_module(&ModuleMapping { path: b"/lib/unused.so", build_id: &[], addresses: 0x60_0000..0x70_0000 });
    writer.add_module(&ModuleMapping { path: b"/lib/late.so", build_id: &[], addresses: 0x80_0000..0x90_0000 });
    let thread = writer.thread(1);
    // Hot, cold and fresh: 10, 100 and 1000 ps per byte by the calibration. A tick is a nanosecond.
    for (start, ns) in [(0, 200), (1000, 2000), (10_000, 20_000)] {
        record(&thread, &call(Operation::Memcpy, 20_000, 0x40_1234), [start, start + ns]);
    }
    // The redis case: a buffer moves over its protocol header.
    record(&thread, &Call { return_address: 0x40_1234, ..DOWN }, [40_000, 40_100]);
    // Without a module.
    record(&thread, &call(Operation::Memcpy, 5000, 0x12), [50_000, 50_100]);
    let recording = read(&words);
    assert_eq!(recording.modules.len(), 1, "only modules with sites");
    assert_eq!((recording.modules[0].path.as_str(), recording.modules[0].build_id.as_str()), ("/bin/program", "ab01"));
    let [site, without] = &recording.sites[..] else { panic!("{:?}", recording.sites) };
    assert_eq!((site.module, site.offset, without.module, without.offset), (Some(0), 0x1234, None, 0x12));
    assert_eq!((site.hot.calls, site.cold.calls, site.fresh.calls), (2, 1, 1));
    assert_eq!((site.cold.bytes, site.cold.ns), (20_000, 2000));
    assert_eq!((site.overlaps_down.below_line, site.overlaps_down.bytes), (1, 65_538));
    assert_eq!((site.destinations.page, site.destinations.line, site.destinations.other), (3, 0, 1));
    let summary = recording.summary();
    assert_eq!(
        (summary.overlapping.calls, summary.overlapping.bytes_down, summary.overlapping.bytes_up),
        (1, 65_538, 0)
    );
    let temperature = summary.temperature.unwrap();
    let judged = 60_000.0 + 65_538.0 + 5000.0;
    assert!((temperature.cold - 20_000.0 / judged).abs() < 1e-9, "{temperature:?}");
    assert_eq!(recording.not_recorded, NotRecorded { modules_without_entry: 1, ..NotRecorded::default() });
}

#[test]
fn page_faults_make_a_call_fresh() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    let fast = call(Operation::Memcpy, 20_000, 0x40_1234);
    for faults in [Some(0), Some(5), None] {
        let begun = thread.begin(&fast, || 0);
        thread.end(&fast, begun, || 200, faults);
    }
    let site = read(&words).sites.remove(0);
    assert_eq!((site.fault_checks, site.faults, site.hot.calls, site.fresh.calls), (2, 5, 2, 1));
}

#[test]
fn a_slow_call_without_page_faults_is_not_fresh() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    // As slow as with missing pages.
    let slow = call(Operation::Memcpy, 20_000, 0x40_1234);
    for faults in [None, Some(0), Some(0), Some(1)] {
        let begun = thread.begin(&slow, || 0);
        thread.end(&slow, begun, || 20_000, faults);
    }
    let site = read(&words).sites.remove(0);
    assert_eq!((site.hot.calls, site.cold.calls, site.fresh.calls), (0, 2, 2));
}

#[test]
fn the_trace_has_order_overlap_and_concurrency() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &Start { start_ticks: 1000, ..start(SMALL) }).unwrap();
    let (one, other) = (writer.thread(1), writer.thread(2));
    let long = call(Operation::Memmove, 16 << 10, 0x1234);
    let first = one.begin(&long, || 1100);
    let second = other.begin(&DOWN, || 1200);
    other.end(&DOWN, second, || 1300, None);
    one.end(&long, first, || 1500, None);
    record(&one, &long, [1600, 1700]);
    let recording = read(&words);
    let events: Vec<_> = recording
        .events
        .iter()
        .map(|event| (event.number, event.thread, event.start_ns, event.duration_ns, event.in_flight))
        .collect();
    assert_eq!(events, [(0, 0, 100, 400, 1), (1, 1, 200, 100, 2), (2, 0, 600, 100, 1)]);
    let overlapping = recording.events[1];
    assert_eq!((overlapping.overlap, overlapping.overlap_distance), (Some(Direction::Down), Some(32)));
    assert_eq!((overlapping.bytes, overlapping.operation), (65_538, Operation::Memmove));
    assert_eq!(recording.events[0].temperature, Some(Temperature::Hot));
    assert_eq!((recording.events[1].site, recording.events[0].site), (Some(0), Some(1)), "by the first end");
    assert_eq!((recording.summary().most_in_flight, recording.processes[0].last_long_end_ns), (2, 700));
    // 100 ns after the end of its first call.
    assert_eq!(recording.threads[0].gaps, [telpher_recording::Gap { from_ns: 64, count: 1 }]);
}

#[test]
fn a_call_that_has_not_ended_is_counted_but_not_in_the_trace() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    let long = call(Operation::Memcpy, 1 << 20, 0x1234);
    // As if the process was killed now.
    let _ = thread.begin(&long, || 5);
    let recording = read(&words);
    assert_eq!((recording.summary().bytes, recording.events.len()), (1 << 20, 0));
    assert_eq!(recording.not_recorded.events_left_out, 1);
}

#[test]
fn the_first_call_of_a_site_by_a_thread_is_reported() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let is_first = |thread: &ThreadWriter<'_>, return_address| {
        let call = call(Operation::Memcpy, 4096, return_address);
        let begun = thread.begin(&call, || 1);
        thread.end(&call, begun, || 2, None)
    };
    let (one, other) = (writer.thread(1), writer.thread(2));
    assert_eq!([1, 1, 2, 1].map(|address| is_first(&one, address)), [true, false, true, false]);
    assert_eq!([1, 1].map(|address| is_first(&other, address)), [true, false]);
    assert!(!is_first(&one, 0), "without an address there is no site");
}

#[test]
fn the_last_note_of_the_time_counts() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &Start { start_ticks: 1000, ..start(SMALL) }).unwrap();
    let times = || {
        let process = &read(&words).processes[0];
        (process.noted_ns, process.cpu_ns)
    };
    assert_eq!(times(), (0, 0));
    writer.note_time(1500, 7);
    writer.note_time(3000, 40);
    assert_eq!(times(), (2000, 40));
    writer.detach();
    writer.note_time(9000, 50);
    assert_eq!(times(), (2000, 40));
}

#[test]
fn the_processor_time_counts_if_it_was_noted_after_the_last_long_call() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let cpu_time = || read(&words).processes[0].cpu_time_ns();
    writer.note_time(100, 50);
    assert_eq!(cpu_time(), Some(50));
    record(&writer.thread(1), &DOWN, [200, 300]);
    assert_eq!(cpu_time(), None, "the process may have worked on");
    writer.note_time(301, 70);
    assert_eq!(cpu_time(), Some(70));
}

#[test]
fn a_compact_recording_is_smaller_and_says_the_same() {
    let limits = Limits { threads: 8, sites: 8, modules: 8, trace_blocks: 8 };
    // Idle, with one of two threads in the second block of the trace, and with everything full.
    for (threads, calls) in [(0, 0), (2, BLOCK + 5), (10, 3 * BLOCK)] {
        let words = memory(limits);
        let writer = Writer::over(&words, &start(limits)).unwrap();
        writer.add_module(&ModuleMapping { path: b"/bin/program", build_id: &[1, 2], addresses: 0x1000..0x9000 });
        for thread in 0..threads {
            let thread = writer.thread(thread + 1);
            for number in 0..calls {
                let long = call(Operation::Memcpy, 20_000, 0x2000 + usize::try_from(number % 7).unwrap());
                record(&thread, &long, [number, number + 3]);
            }
        }
        let (file, is_full) = (bytes_of(&words), threads > 8);
        let compacted = compact(&file).unwrap();
        assert_eq!(Recording::read(&compacted), Recording::read(&file));
        assert_eq!(compacted.len() < file.len() * 2 / 3, !is_full, "{} of {} bytes", compacted.len(), file.len());
        assert_eq!(compact(&compacted).unwrap(), compacted);
    }
}

#[test]
fn a_file_may_have_several_recordings() {
    let of = |pid| {
        let words = memory(SMALL);
        let writer = Writer::over(&words, &Start { pid, ..start(SMALL) }).unwrap();
        record(&writer.thread(1), &DOWN, [1, 2]);
        compact(&bytes_of(&words)).unwrap()
    };
    let files = [of(11), of(12), of(13)];
    let joined = files.concat();
    assert_eq!(lengths(&joined).unwrap(), files.each_ref().map(Vec::len));
    let pids = |recordings: &[Recording]| recordings.iter().map(|one| one.processes[0].pid).collect::<Vec<_>>();
    assert_eq!(pids(&Recording::read_all(&joined).unwrap()), [11, 12, 13]);
    assert!(matches!(Recording::read_all(&joined[..joined.len() - 1]), Err(ReadError::Short { .. })));
    assert_eq!(Recording::read_all(&[&joined, &b"something else"[..]].concat()), Err(ReadError::Magic));
    assert!(Recording::read_all(&[]).is_err());
}

#[test]
fn a_full_trace_keeps_whole_blocks_and_counts_the_rest() {
    const BLOCKS: u64 = 20;
    let limits = Limits { trace_blocks: 4, ..SMALL };
    let words = memory(limits);
    let writer = Writer::over(&words, &start(limits)).unwrap();
    let thread = writer.thread(1);
    for number in 0..BLOCKS * BLOCK {
        record(&thread, &call(Operation::Memcpy, 1 << 16, 0x1234), [number * 10, number * 10 + 3]);
    }
    let recording = read(&words);
    assert_eq!(recording.events.len() as u64, 4 * BLOCK);
    assert_eq!(recording.not_recorded.events_left_out, (BLOCKS - 4) * BLOCK);
    for block in recording.events.chunks(usize::try_from(BLOCK).unwrap()) {
        let numbers: Vec<u64> = block.iter().map(|event| event.number).collect();
        let expected: Vec<u64> = (numbers[0]..numbers[0] + BLOCK).collect();
        assert!(numbers[0].is_multiple_of(BLOCK) && numbers == expected);
    }
    assert!(recording.events.iter().all(|event| event.start_ns == event.number * 10));
    assert!(recording.events.last().unwrap().number > 4 * BLOCK, "a later block replaced an early one");
    let entries: u64 = recording.threads.iter().map(|thread| thread.long_calls).sum();
    assert_eq!(entries, BLOCKS * BLOCK);
}

/// Every bit of an entry is checked, and a slot that a killed process left marked is recognised.
#[test]
fn a_torn_entry_is_counted_and_left_out() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    for number in 0..3 {
        record(&thread, &call(Operation::Memcpy, 1 << 16, 0x1234), [number, number + 1]);
    }
    let bytes = bytes_of(&words);
    // The trace is the last table; its first slot is the entry with the number 0.
    let slot = bytes.len() - usize::try_from(BLOCK * 32).unwrap();
    for bit in 0..256 {
        let mut torn = bytes.clone();
        torn[slot + bit / 8] ^= 1 << (bit % 8);
        let recording = Recording::read(&torn).unwrap();
        assert_eq!((recording.events.len(), recording.not_recorded.events_torn), (2, 1), "bit {bit}");
        assert_eq!(recording.not_recorded.events_left_out, 0);
    }
}

#[test]
fn sites_beyond_the_table_are_counted() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    for site in 1..=20 {
        record(&thread, &call(Operation::Memcpy, 1 << 16, site * 64), [0, 1]);
    }
    // An address of 48 bits or more, and none.
    record(&thread, &call(Operation::Memcpy, 4096, 1 << 50), [0, 1]);
    record(&thread, &call(Operation::Memcpy, 4096, 0), [0, 1]);
    writer.lose_calls(1);
    let recording = read(&words);
    assert_eq!(recording.sites.len(), 8);
    assert_eq!((recording.not_recorded.calls_without_site, recording.not_recorded.calls_lost), (14, 1));
    assert_eq!(recording.events.iter().filter(|event| event.site.is_none()).count(), 12);
    assert_eq!(recording.summary().calls, 22);
}

#[test]
fn an_index_that_another_process_wrote_is_not_used() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    let long = call(Operation::Memcpy, 1 << 16, 0x40_1234);
    record(&thread, &long, [0, 1]);
    // The directory's word has the address and, in its high bits, the index.
    let word = words.iter().find(|word| word.load(Ordering::Relaxed) == 0x40_1234).expect("the site with the index 0");
    word.store(0x40_1234 | 999 << 48, Ordering::Relaxed);
    record(&thread, &long, [2, 3]);
    let recording = read(&words);
    let missing = recording.not_recorded;
    // The directory's word is damaged. The first call has a site that the directory does not list yet, as far as the
    // reader can know.
    assert_eq!((missing.calls_without_site, missing.entries_damaged, missing.events_torn), (1, 1, 1));
    assert_eq!((recording.events.len(), recording.events[0].site, recording.summary().calls), (1, None, 2));
}

#[test]
fn a_thread_that_began_detached_records_once_it_is_attached() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = ThreadWriter::detached();
    assert!(!thread.count(Operation::Memcpy, 80));
    writer.attach(&thread, 77);
    assert!(thread.is_attached() && thread.count(Operation::Memcpy, 80), "the first call is timed");
    let recording = read(&words);
    assert_eq!((recording.threads[0].id, recording.threads[0].calls), (Some(77), 1));
}

#[test]
fn a_detached_child_writes_nothing() {
    let words = memory(SMALL);
    let writer = Writer::over(&words, &start(SMALL)).unwrap();
    let thread = writer.thread(1);
    let long = call(Operation::Memcpy, 1 << 20, 0x1234);
    let begun = thread.begin(&long, || 5);
    let before = bytes_of(&words);
    writer.detach();
    thread.detach();
    thread.end(&long, begun, || 7, None);
    record(&thread, &long, [8, 9]);
    assert!(!thread.count(Operation::Memcpy, 8) && !thread.is_attached());
    thread.time(Operation::Memcpy, 8, 3);
    writer.add_module(&ModuleMapping { path: b"/bin/child", build_id: &[], addresses: 1..2 });
    writer.lose_calls(1);
    record(&writer.thread(2), &long, [8, 9]);
    assert_eq!(bytes_of(&words), before);
}

#[test]
fn other_versions_and_files_are_refused_by_name() {
    let words = memory(SMALL);
    Writer::over(&words, &start(SMALL)).unwrap();
    let bytes = bytes_of(&words);
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        Recording::read(&bytes).unwrap_err()
    };
    assert_eq!(
        with(8, 9).to_string(),
        "the recording has version 9 of the format, and this program reads version 2: record again"
    );
    assert_eq!(with(0, 0), ReadError::Magic);
    assert!(matches!(with(12, 99), ReadError::Damaged(_)));
    let message = "the recording is damaged: its tables are not where their sizes place them";
    assert_eq!(with(20, 200).to_string(), message);
    let have = bytes.len() as u64;
    let short = ReadError::Short { have: have - 1, needed: have };
    assert_eq!(Recording::read(&bytes[..bytes.len() - 1]), Err(short));
    assert_eq!(Recording::read(&[0; 64]), Err(ReadError::NotBegun));
    assert_eq!(Recording::read(b"telphre"), Err(ReadError::Magic));
    for len in 0..6000 {
        assert!(Recording::read(&bytes[..len]).is_err());
    }
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let needed = bytes_needed(SMALL).unwrap();
    let words = memory(SMALL);
    let error = Writer::over(&words[1..], &start(SMALL)).unwrap_err();
    assert_eq!(error, CreateError::Short { have: needed - 8, needed });
    assert!(matches!(Writer::over(&words, &Start { tsc_hz: 0, ..start(SMALL) }), Err(CreateError::Start(_))));
    assert!(matches!(Writer::over(&words, &Start { long_from: 1, ..start(SMALL) }), Err(CreateError::Start(_))));
    assert_eq!(Recording::read(&bytes_of(&words)), Err(ReadError::NotBegun), "nothing was written");
}

#[test]
#[allow(unsafe_code, reason = "hands over memory that the test owns")]
fn a_mapping_is_used_where_it_is() {
    let words = memory(SMALL);
    let (memory, bytes) = (words.as_ptr().cast_mut().cast::<u8>(), size_of_val(&words[..]));
    // SAFETY: the words are zero, outlive the writer, and are atomics.
    let misaligned = unsafe { Writer::create(memory.wrapping_add(4), bytes - 8, &start(SMALL)) };
    assert_eq!(misaligned.unwrap_err(), CreateError::Misaligned);
    // SAFETY: as above.
    let writer = unsafe { Writer::create(memory, bytes, &start(SMALL)) }.unwrap();
    let _ = writer.thread(77).count(Operation::Memcpy, 8);
    assert_eq!(read(&words).threads[0].id, Some(77));
}

/// A recording of a process that started at these times, with one long call.
fn process(pid: u32, start_ticks: u64, start_realtime_ns: u64, kernel: &str) -> Recording {
    let words = memory(SMALL);
    let options = Start { pid, start_ticks, start_realtime_ns, kernel, ..start(SMALL) };
    let writer = Writer::over(&words, &options).unwrap();
    // Libraries are at other addresses in each process.
    let base = 0x1_0000 * pid as usize;
    writer.add_module(&ModuleMapping { path: b"/lib/a.so", build_id: &[1], addresses: base..base + 0x1000 });
    let thread = writer.thread(pid);
    record(&thread, &call(Operation::Memcpy, 1 << 20, base + 0x123), [start_ticks + 500, start_ticks + 600]);
    record(&thread, &call(Operation::Memcpy, 4096, 0xdead), [0, 1]);
    read(&words)
}

#[test]
fn processes_of_one_machine_merge_on_one_time_axis() {
    let (first, second) = (process(1, 1_000_000, 5_000_000, "6.1"), process(2, 1_002_000, 5_001_900, "6.1"));
    // A process of another boot: its time stamp counter began anew, so the clock decides.
    let third = process(3, 50, 9_000_000_000_000, "6.1");
    let merged = Recording::merge(vec![third, second, first]).unwrap();
    let starts: Vec<_> = merged.processes.iter().map(|process| (process.pid, process.start_ns)).collect();
    assert_eq!(starts, [(1, 0), (2, 2000), (3, 8_999_995_000_000)]);
    let events: Vec<_> = merged.events.iter().map(|event| (event.start_ns, event.thread, event.site)).collect();
    assert_eq!(events, [(500, 0, Some(0)), (2500, 1, Some(0)), (8_999_995_000_500, 2, Some(0))]);
    assert_eq!((merged.modules.len(), merged.sites[0].calls, merged.sites[0].offset), (1, 3, 0x123));
    // An address without a module means something else in each process.
    assert_eq!(merged.sites.iter().filter(|site| site.module.is_none()).count(), 3);
    assert_eq!((merged.threads[2].process, merged.summary().calls), (2, 6));
    let sum: u64 = merged.sizes.iter().map(|row| row.timed_ns).sum();
    assert_eq!(sum, 303);
}

#[test]
fn other_machines_do_not_merge() {
    let error = Recording::merge(vec![process(1, 0, 0, "6.1"), process(2, 0, 0, "6.2")]).unwrap_err();
    assert!(matches!(&error, MergeError::OtherMachine { other, .. } if other.contains("Linux 6.2")), "{error}");
    assert_eq!(Recording::merge(Vec::new()).unwrap_err(), MergeError::Empty);
}

#[test]
fn a_recording_is_json() {
    let recording = process(1, 0, 0, "6.1");
    let json = serde_json::to_value(&recording).unwrap();
    assert_eq!(json["events"][0]["operation"], "memcpy");
    assert_eq!(json["events"][0]["temperature"], "hot");
    assert_eq!(json["sites"][0]["offset"], 0x123);
    let summary = serde_json::to_value(recording.summary()).unwrap();
    assert_eq!(summary["by_size"][1]["from"], 1 << 20);
}

#[test]
fn the_summary_of_an_empty_recording_has_no_shares() {
    let words = memory(SMALL);
    Writer::over(&words, &start(SMALL)).unwrap();
    let summary = read(&words).summary();
    assert_eq!((summary.calls, summary.by_size.len(), summary.temperature), (0, 0, None));
    assert_eq!(summary.overlapping.share_of_bytes, None);
}

/// A call of a random program.
fn any_call() -> impl Strategy<Value = Call> {
    let operation = proptest::sample::select(&Operation::ALL[..]);
    let address = 0x10_0000..0x18_0000_usize;
    (operation, address.clone(), address, 0..100_000_usize, 1..6_usize).prop_map(
        |(operation, destination, source, len, site)| Call {
            operation,
            destination,
            source,
            len,
            return_address: site * 0x100,
        },
    )
}

proptest! {
    /// The sums of a recording are those of a plain list of the same calls.
    #[test]
    fn sums_are_those_of_the_calls(calls in proptest::collection::vec(any_call(), 0..200)) {
        let words = memory(SMALL);
        let writer = Writer::over(&words, &start(SMALL)).unwrap();
        let threads = [writer.thread(1), writer.thread(2)];
        for (at, call) in calls.iter().enumerate() {
            record(&threads[at % 2], call, [at as u64 * 100, at as u64 * 100 + 50]);
        }
        let recording = read(&words);
        let summary = recording.summary();
        let bytes = |of: &dyn Fn(&&Call) -> bool| calls.iter().filter(of).map(|call| call.len as u64).sum::<u64>();
        for operation in Operation::ALL {
            let share = summary.by_operation.iter().find(|share| share.operation == operation);
            let expected = bytes(&|call| call.operation == operation);
            prop_assert_eq!(share.map_or(0, |share| share.bytes), expected);
        }
        for size in &summary.by_size {
            let expected = bytes(&|call| (size.from..=size.to).contains(&(call.len as u64)));
            prop_assert_eq!((size.bytes, size.from.max(1).is_power_of_two()), (expected, true));
        }
        let copies = |call: &Call| !matches!(call.operation, Operation::Memset | Operation::Memcmp);
        let common = |call: &Call| {
            call.destination.max(call.source) < (call.destination + call.len).min(call.source + call.len)
        };
        let down = bytes(&|call| copies(call) && common(call) && call.destination <= call.source);
        let up = bytes(&|call| copies(call) && common(call) && call.destination > call.source);
        prop_assert_eq!((summary.overlapping.bytes_down, summary.overlapping.bytes_up), (down, up));
        for site in &recording.sites {
            let expected = bytes(&|call| call.return_address as u64 == site.offset);
            prop_assert_eq!(site.bytes, expected);
        }
        let long: Vec<_> = calls.iter().filter(|call| call.len >= 16 << 10).map(|call| call.len as u64).collect();
        let traced: Vec<_> = recording.events.iter().map(|event| event.bytes).collect();
        prop_assert_eq!(traced, long);
    }
}
