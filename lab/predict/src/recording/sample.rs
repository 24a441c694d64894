//! The calls of a recording that are replayed, in sections of consecutive calls.

use super::costs::{Costs, float, opcode, ratio};
use std::collections::BTreeMap;
use telpher_abi::Opcode;
use telpher_recording::{BLOCK, Event, Operation, Recording, Temperature};
use telpher_sim::{Picos, ReplayCall, ReplaySection, Replayed};

/// The longest recorded time of a call, in nanoseconds. Source: chosen; a recording has at most 2^32 ticks, a few
/// seconds.
const LONGEST_NS: u64 = 10_000_000_000;

/// The longest section, in nanoseconds: 30 days. Source: chosen; simulated time ends after 213 days.
const LONGEST_SECTION_NS: u64 = 30 * 24 * 3600 * 1_000_000_000;

/// The longest call that a device executes. Source: chosen, to limit the work for damaged recordings.
pub(super) const LARGEST: u64 = 1 << 30;

/// A call of more than this times the time of the slowest data was interrupted. Source: chosen; page faults differ
/// less.
const INTERRUPTED: f64 = 4.0;

/// Nanoseconds after which a device has finished all of its work. Source: chosen; a call ends when its copy has.
const IDLE_NS: u64 = 1000;

/// Bytes of a descriptor at most. Source: the Linux driver's default for a queue.
pub(super) const TRANSFER: u64 = 2 << 20;

/// Descriptors in the replays that percentiles come from: as recorded, and with the best policy. Source: chosen; they
/// take about a second each.
pub(super) const FULL_DESCRIPTORS: u64 = 1 << 20;

/// Descriptors in each of the other replays, of which there are up to 40. Source: chosen; a replay takes 0.1 s.
pub(super) const SWEEP_DESCRIPTORS: u64 = 1 << 16;

/// A long call of the recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) bytes: u64,
    /// Its recorded time, at most ten seconds.
    pub(super) recorded_ns: f64,
    /// The part of it in which the thread did not run.
    pub(super) interrupted_ns: f64,
    pub(super) temperature: Option<Temperature>,
    pub(super) site: Option<usize>,
    /// Time since the end of its thread's previous call, or since the begin of the section.
    gap: Picos,
    aligned: bool,
    overlaps: bool,
    missing_pages: u64,
}

/// The calls that are replayed.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) calls: Vec<Call>,
    /// Indices of calls, by section and thread.
    sections: Vec<Vec<Vec<usize>>>,
    /// The recorded time of each section.
    recorded: Vec<f64>,
    /// Some blocks of the trace were left out to limit the work.
    pub(super) is_cut: bool,
}

/// The time of a call by the CPU, without interruptions, and where its data is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) cpu_ns: f64,
    pub(super) temperature: Option<Temperature>,
}

/// How a call is replayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution {
    pub(super) cost: Cost,
    pub(super) by_device: bool,
}

impl Call {
    /// The recorded time without interruptions.
    pub(super) fn copied_ns(&self) -> f64 {
        self.recorded_ns - self.interrupted_ns
    }

    fn replayed(&self, index: usize, Execution { cost, by_device }: Execution) -> ReplayCall {
        ReplayCall {
            index,
            gap: self.gap,
            op: opcode(self.operation),
            bytes: self.bytes,
            by_core: Picos::from_nanos_f64(cost.cpu_ns),
            interrupted: Picos::from_nanos_f64(self.interrupted_ns),
            by_device,
            cached: cost.temperature == Some(Temperature::Hot),
            aligned: self.aligned || opcode(self.operation) == Opcode::Compare,
            overlaps: self.overlaps,
            missing_pages: if cost.temperature == Some(Temperature::Fresh) { self.missing_pages } else { 0 },
        }
    }
}

impl Sample {
    /// Takes whole blocks of the trace, spread evenly over it, with about `most` descriptors.
    pub(super) fn of(recording: &Recording, costs: &Costs<'_>, most: u64) -> Sample {
        let mut blocks: BTreeMap<(usize, u64), Vec<&Event>> = BTreeMap::new();
        for event in &recording.events {
            let Some(thread) = recording.threads.get(event.thread) else { continue };
            blocks.entry((thread.process, event.number / BLOCK)).or_default().push(event);
        }
        // Below 2^64: each event is 32 bytes of a file, and has at most 512 descriptors.
        let work: u64 = recording.events.iter().map(|event| event.bytes.min(LARGEST).div_ceil(TRANSFER).max(1)).sum();
        let all = blocks.len() as u64;
        let kept = if work <= most { all } else { mul_div(all, most, work).max(1) };
        // The n-th block stays where n * kept / all grows.
        let stays = |n: u64| mul_div(n + 1, kept, all) != mul_div(n, kept, all);
        let blocks = (0..).zip(blocks).filter(|(n, _)| stays(*n)).map(|(_, block)| block);
        let mut sample = Sample { is_cut: kept < all, ..Sample::default() };
        let mut section: Vec<&Event> = Vec::new();
        let mut last: Option<(usize, u64)> = None;
        // Where every process' trace is one section, the processes ran at the same time.
        let mut complete = Vec::new();
        for (key, block) in blocks {
            if last.is_some_and(|(process, before)| (process, before + 1) != key) {
                complete.push(std::mem::take(&mut section));
            }
            section.extend(block);
            last = Some(key);
        }
        complete.push(section);
        let processes = recording.processes.len();
        if !sample.is_cut && processes > 1 && complete.len() <= processes {
            complete = vec![complete.concat()];
        }
        for section in complete.into_iter().filter(|section| !section.is_empty()) {
            sample.add_section(recording, costs, section);
        }
        sample
    }

    fn add_section(&mut self, recording: &Recording, costs: &Costs<'_>, mut events: Vec<&Event>) {
        events.sort_by_key(|event| (event.start_ns, event.number));
        let begin = events.first().map_or(0, |event| event.start_ns);
        // By thread: the end of the previous call since the begin, the time that is replayed, and the calls.
        let mut threads: BTreeMap<usize, (u64, u64, Vec<usize>)> = BTreeMap::new();
        for event in events {
            let (end, time, calls) = threads.entry(event.thread).or_insert_with(|| (0, 0, Vec::new()));
            let start = event.start_ns.saturating_sub(begin).min(LONGEST_SECTION_NS);
            let duration = event.duration_ns.min(LONGEST_NS);
            // A call within another one, of a signal handler, follows it here.
            let gap = start.saturating_sub(*end);
            *end = (*end).max(start + duration);
            *time += gap + duration;
            let (interrupted_ns, temperature) = interruption(recording, costs, event, duration);
            calls.push(self.calls.len());
            self.calls.push(Call {
                operation: event.operation,
                bytes: event.bytes,
                recorded_ns: float(duration),
                interrupted_ns,
                temperature,
                site: event.site,
                gap: Picos::from_nanos(gap),
                aligned: event.destination_is_aligned,
                overlaps: event.overlap.is_some(),
                missing_pages: missing_pages(recording, event, temperature),
            });
        }
        self.recorded.push(float(threads.values().map(|(_, time, _)| *time).max().unwrap_or(0)));
        self.sections.push(threads.into_values().map(|(_, _, calls)| calls).collect());
    }

    /// The sections for the simulator, with the execution of each call.
    pub(super) fn sections(&self, how: impl Fn(usize, &Call) -> Execution) -> Vec<ReplaySection> {
        let call = |index: &usize| self.calls[*index].replayed(*index, how(*index, &self.calls[*index]));
        let threads =
            |threads: &Vec<Vec<usize>>| threads.iter().map(|calls| calls.iter().map(call).collect()).collect();
        self.sections.iter().map(threads).collect()
    }

    /// All calls one after the other, with enough time in between to leave the devices idle.
    pub(super) fn one_by_one(&self, how: impl Fn(&Call) -> Execution) -> ReplaySection {
        let call = |(index, call): (usize, &Call)| {
            Call { gap: Picos::from_nanos(IDLE_NS), ..*call }.replayed(index, how(call))
        };
        vec![self.calls.iter().enumerate().map(call).collect()]
    }

    pub(super) fn section_count(&self) -> usize {
        self.sections.len()
    }

    /// The deviation of the sections' simulated times from the recorded ones.
    pub(super) fn section_error(&self, simulated: &[Picos]) -> Option<f64> {
        let simulated: f64 = simulated.iter().map(|time| time.as_nanos_f64()).sum();
        ratio(simulated, self.recorded.iter().sum()).map(|ratio| ratio - 1.0)
    }

    /// Sum of the recorded times.
    pub(super) fn recorded_ns(&self) -> f64 {
        self.calls.iter().map(|call| call.recorded_ns).sum()
    }

    /// Sum of the recorded times without interruptions.
    pub(super) fn copied_ns(&self) -> f64 {
        self.calls.iter().map(Call::copied_ns).sum()
    }

    /// The simulated times of the calls without interruptions.
    pub(super) fn times(&self, replayed: &Replayed) -> Vec<f64> {
        let time = |(call, took): (&Call, &Picos)| (took.as_nanos_f64() - call.interrupted_ns).max(0.0);
        self.calls.iter().zip(&replayed.took).map(time).collect()
    }

    /// The bytes of calls that have this temperature.
    pub(super) fn bytes(&self, temperature: Temperature) -> f64 {
        let with = self.calls.iter().filter(|call| call.temperature == Some(temperature));
        with.map(|call| float(call.bytes)).sum()
    }
}

/// The time in which a call's thread did not run, in whole nanoseconds, and where the call's data was.
///
/// A call that took several times as long as with the slowest data was interrupted. Its time does not tell where its
/// data was, so it counts like most calls of its site.
fn interruption(recording: &Recording, costs: &Costs<'_>, event: &Event, duration: u64) -> (f64, Option<Temperature>) {
    let Event { operation, bytes, .. } = *event;
    let usable = |temperature: Option<Temperature>| temperature.map(|it| costs.usable(operation, bytes, it));
    let judged = event.temperature.map(|judged| match judged {
        Temperature::Fresh if has_no_faults(recording, event) => Temperature::Cold,
        _ => judged,
    });
    let slowest = costs.slowest(operation, bytes).map(f64::ceil);
    let Some(slowest) = slowest.filter(|ns| float(duration) > ns * INTERRUPTED) else {
        return (0.0, usable(judged));
    };
    let temperature = usable(usual_temperature(recording, event).or(judged));
    let by_curve = temperature.and_then(|temperature| costs.by_curve(operation, bytes, temperature)).map(f64::ceil);
    (float(duration) - by_curve.unwrap_or(slowest), temperature)
}

/// Expected calls with page faults among the checked ones, from which on it counts that there was none. Source: chosen;
/// by chance that happens in a twentieth of the cases (e^-3).
const EXPECTED_FAULTS: f64 = 3.0;

/// Returns whether the calls of an event's site that took as long as with missing pages were only disturbed: enough of
/// the site's calls had their page faults counted, and none had one.
fn has_no_faults(recording: &Recording, event: &Event) -> bool {
    let Some(site) = event.site.and_then(|site| recording.sites.get(site)) else { return false };
    let (slow, checked) = (float(site.fresh.calls), float(site.fault_checks));
    // A checked call without faults is not fresh, however slow it was.
    let unchecked = float(site.hot.calls) + float(site.cold.calls) + slow - checked;
    site.faults == 0 && checked * slow >= EXPECTED_FAULTS * unchecked.max(1.0)
}

/// The temperature of most calls of an event's site.
fn usual_temperature(recording: &Recording, event: &Event) -> Option<Temperature> {
    let site = recording.sites.get(event.site?)?;
    let calls = [
        (site.hot.calls, Temperature::Hot),
        (site.cold.calls, Temperature::Cold),
        (site.fresh.calls, Temperature::Fresh),
    ];
    calls
        .into_iter()
        .filter(|(calls, _)| *calls > 0)
        .max_by_key(|(calls, _)| *calls)
        .map(|(_, temperature)| temperature)
}

/// `number * by / of`, with `by` at most `of`.
fn mul_div(number: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(by) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

/// Missing pages of a fresh call: as measured at its site, otherwise all pages of its destination.
fn missing_pages(recording: &Recording, event: &Event, temperature: Option<Temperature>) -> u64 {
    if temperature != Some(Temperature::Fresh) {
        return 0;
    }
    let measured = event.site.and_then(|site| recording.sites.get(site)).and_then(|site| {
        let judged = float(site.hot.calls) + float(site.cold.calls) + float(site.fresh.calls);
        // Faults of a checked call, as if only the fresh ones had them.
        let of_fresh = float(site.faults) / float(site.fault_checks) * judged / float(site.fresh.calls);
        (site.fault_checks > 0 && site.faults > 0 && of_fresh.is_finite()).then_some(of_fresh)
    });
    // A float's cast saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of pages")]
    measured.map_or(u64::MAX, |pages| pages.round().max(1.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_recording::{Alignments, Calibration, Machine, NotRecorded, Overlaps, Process, Site, Thread, Timed};

    fn event(number: u64, thread: usize, start_ns: u64, bytes: u64) -> Event {
        Event {
            start_ns,
            duration_ns: 1000,
            number,
            thread,
            site: None,
            operation: Operation::Memcpy,
            bytes,
            overlap: None,
            overlap_distance: None,
            destination_is_aligned: true,
            source_is_aligned: true,
            temperature: None,
            in_flight: 1,
        }
    }

    /// A recording of as many processes as events name threads, with one thread each.
    fn recording(events: Vec<Event>) -> Recording {
        let count = events.iter().map(|event| event.thread + 1).max().unwrap_or(0);
        let thread = |process| Thread {
            process,
            id: Some(1),
            is_shared: false,
            calls: 0,
            bytes: 0,
            long_calls: 0,
            most_in_flight: 1,
            sizes: Vec::new(),
            gaps: Vec::new(),
        };
        let process = Process {
            pid: 1,
            parent_pid: 0,
            program: String::new(),
            arguments: Vec::new(),
            arguments_are_cut: false,
            options: String::new(),
            start_realtime_ns: 0,
            start_ticks: 0,
            start_ns: 0,
            last_long_end_ns: 0,
            noted_ns: 0,
            cpu_ns: 0,
            sites_from: 2048,
            long_from: 16384,
            sample_period: 64,
        };
        Recording {
            machine: Machine {
                cpu: String::new(),
                cpu_signature: 0,
                logical_cpus: 0,
                cache_bytes: [0; 3],
                kernel: String::new(),
                tsc_hz: 1,
            },
            calibration: Calibration { copy: Vec::new(), fill: Vec::new(), compare: Vec::new(), timer_ns: 0.0 },
            processes: vec![process; count],
            modules: Vec::new(),
            sites: Vec::new(),
            threads: (0..count).map(thread).collect(),
            sizes: Vec::new(),
            events,
            not_recorded: NotRecorded::default(),
        }
    }

    fn sample(events: Vec<Event>, most: u64) -> Sample {
        let recording = recording(events);
        Sample::of(&recording, &Costs::new(&recording.calibration, None), most)
    }

    /// The calls of a block of one thread.
    fn block(block: u64, bytes: u64) -> impl Iterator<Item = Event> {
        (block * BLOCK..(block + 1) * BLOCK).map(move |number| event(number, 0, 3000 * number, bytes))
    }

    #[test]
    fn slow_calls_of_a_site_without_page_faults_are_not_fresh() {
        let slow = || Event { site: Some(0), temperature: Some(Temperature::Fresh), ..event(0, 0, 0, 16384) };
        let with = |fault_checks, faults| {
            let timed = |calls| Timed { calls, bytes: 0, ns: 0 };
            let mut recording = recording(vec![slow()]);
            recording.sites = vec![Site {
                module: None,
                offset: 0,
                calls: 100,
                bytes: 0,
                operations: Vec::new(),
                hot: timed(0),
                cold: timed(90),
                fresh: timed(10),
                destinations: Alignments::default(),
                sources: Alignments::default(),
                overlaps_down: Overlaps::default(),
                overlaps_up: Overlaps::default(),
                fault_checks,
                faults,
            }];
            let costs = Costs::new(&recording.calibration, None);
            interruption(&recording, &costs, &slow(), 1000)
        };
        let [cold, fresh] = [Temperature::Cold, Temperature::Fresh].map(|it| (0.0, Some(it)));
        // Of 25 checked calls, 3.3 would have had faults; of 20, 2.5.
        assert_eq!([with(25, 0), with(20, 0), with(25, 1), with(100, 0)], [cold, fresh, fresh, cold]);
    }

    #[test]
    fn blocks_that_follow_each_other_are_one_section() {
        let sample = sample([0, 1, 5, 7, 8, 9].into_iter().flat_map(|at| block(at, 20_000)).collect(), 1 << 20);
        let calls: Vec<usize> = sample.sections.iter().map(|section| section[0].len()).collect();
        assert_eq!(calls, [512, 256, 768]);
        assert!(!sample.is_cut);
        // The first call of a section begins at once, the others after 2 µs of work.
        let gaps: Vec<u64> = [0, 1, 512, 513].map(|call| sample.calls[call].gap.0 / 1_000_000).into();
        assert_eq!(gaps, [0, 2, 0, 2]);
    }

    #[test]
    fn a_sample_is_spread_over_the_trace_and_limited_by_its_descriptors() {
        let sizes = |sample: &Sample| (sample.calls.len(), sample.section_count(), sample.is_cut);
        let small = || (0..64).flat_map(|at| block(at, 20_000)).collect();
        assert_eq!(sizes(&sample(small(), 64 * BLOCK)), (64 * 256, 1, false));
        assert_eq!(sizes(&sample(small(), 16 * BLOCK)), (16 * 256, 16, true));
        // Calls of 8 MiB have four descriptors.
        assert_eq!(sizes(&sample((0..64).flat_map(|at| block(at, 8 << 20)).collect(), 16 * BLOCK)), (4 * 256, 4, true));
        // One block is the least.
        assert_eq!(sizes(&sample(small(), 1)), (256, 1, true));
        assert_eq!(sizes(&sample(Vec::new(), 1)), (0, 0, false));
    }

    #[test]
    fn complete_traces_of_several_processes_overlap() {
        let of = |thread, number, start| event(number, thread, start, 20_000);
        let both = vec![of(0, 0, 0), of(1, 0, 500), of(0, 1, 2000), of(1, 1, 2500)];
        let together = sample(both, 1 << 20);
        assert_eq!((together.section_count(), together.sections[0].len()), (1, 2));
        let gap = |call: usize| together.calls[call].gap.0 / 1_000_000;
        assert_eq!([gap(0), gap(2)], [0, 1], "{:?}", together.calls);
        assert_eq!(together.calls[1].gap, Picos::from_nanos(500));
        // Without the first process' blocks 0 to 3, the time between the sections means nothing.
        let apart = sample(vec![of(0, 0, 0), of(0, 4 * BLOCK, 9000), of(1, 0, 500)], 1 << 20);
        assert_eq!(apart.section_count(), 3);
    }

    #[test]
    fn calls_of_signal_handlers_follow_the_interrupted_call() {
        let outer = Event { duration_ns: 5000, ..event(0, 0, 0, 20_000) };
        let sample = sample(vec![outer, event(1, 0, 1000, 20_000), event(2, 0, 6000, 20_000)], 1 << 20);
        let gaps: Vec<Picos> = sample.calls.iter().map(|call| call.gap).collect();
        assert_eq!(gaps, [0, 0, 1000].map(Picos::from_nanos));
    }
}
