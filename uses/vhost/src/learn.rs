//! The packet size from which a DMA queue is cheaper than the CPU, learned while packets flow.
//!
//! The cost of a burst for the polling thread is modelled as a line over its packets and bytes: a cost per packet plus
//! a cost per byte. There is one line for copies by the CPU and one for copies by a DMA queue; the threshold is where
//! they cross. Both are fitted to *trials*: from time to time a whole burst takes one path. All other packets take the
//! path that the lines say is cheaper. A trial of a DMA queue measures the submission and the polling for completion.
//! With an engine that the polling thread itself runs, that includes the copies. So a queue that is never cheaper is
//! detected in its first bursts, and tried less and less often.

use crate::in_flight::CopyBy;
use std::time::Duration;

/// Bursts between two trials at first, while neither line is known.
const FIRST_INTERVAL: u32 = 8;
/// Bursts between two trials at most, after trials have repeatedly agreed. One burst in this many, by a queue that
/// takes ten times as long, costs a fifth of a per cent. Source: derived from the cost of an inline engine for 64 bytes
/// here (230 ns) and of the CPU (20 ns); some 10 ms at 10 Mpps.
const LONGEST_INTERVAL: u32 = 8192;
/// The weight of earlier trials after one more. Source: chosen, so that ten bursts decide and an interrupted one is
/// soon forgotten.
const DECAY: f64 = 0.9;
/// Trials of each path before the lines are used.
const MIN_TRIALS: u32 = 3;
/// The longest burst time that counts, as a multiple of the expected one: beyond it the thread was preempted. Source:
/// chosen.
const OUTLIER: f64 = 20.0;

/// Nanoseconds over packets and bytes: sums of a least-squares fit through the origin; older trials fade.
#[derive(Clone, Copy, Debug, Default)]
struct CostLine {
    packets_packets: f64,
    packets_bytes: f64,
    bytes_bytes: f64,
    packets_nanos: f64,
    bytes_nanos: f64,
    trials: u32,
}

impl CostLine {
    #[allow(clippy::cast_precision_loss, reason = "of one burst")]
    fn add(&mut self, packets: u64, bytes: u64, spent: Duration) {
        let (packets, bytes, mut nanos) = (packets as f64, bytes as f64, spent.as_nanos() as f64);
        if self.trials >= MIN_TRIALS {
            nanos = nanos.min(OUTLIER * (self.nanos(packets, bytes)).max(1.0));
        }
        for (sum, term) in [
            (&mut self.packets_packets, packets * packets),
            (&mut self.packets_bytes, packets * bytes),
            (&mut self.bytes_bytes, bytes * bytes),
            (&mut self.packets_nanos, packets * nanos),
            (&mut self.bytes_nanos, bytes * nanos),
        ] {
            *sum = *sum * DECAY + term;
        }
        self.trials = self.trials.saturating_add(1);
    }

    /// The cost per packet and per byte, both at least 0.
    fn slopes(&self) -> [f64; 2] {
        // Slightly more weight on both axes than was measured: packets of a single size do not separate the cost per
        // packet from the cost per byte.
        let (a, b, c) = (self.packets_packets * 1.001 + 1e-9, self.packets_bytes, self.bytes_bytes * 1.001 + 1e-9);
        let rest = a * c - b * b;
        let packet = (self.packets_nanos * c - self.bytes_nanos * b) / rest;
        let byte = (self.bytes_nanos * a - self.packets_nanos * b) / rest;
        match (packet < 0.0, byte < 0.0) {
            (false, false) => [packet, byte],
            (true, _) => [0.0, (self.bytes_nanos / c).max(0.0)],
            (_, true) => [(self.packets_nanos / a).max(0.0), 0.0],
        }
    }

    fn nanos(&self, packets: f64, bytes: f64) -> f64 {
        let [packet, byte] = self.slopes();
        packet * packets + byte * bytes
    }
}

/// A burst that takes one path, until its last copy is complete.
#[derive(Clone, Copy, Debug)]
struct Trial {
    copy_by: CopyBy,
    packets: u64,
    bytes: u64,
    spent: Duration,
    /// The first packet after it; `None` while it is being submitted.
    until: Option<u64>,
}

/// The learned costs of one virtqueue's copies.
#[derive(Clone, Debug)]
pub(crate) struct LearnedThreshold {
    cpu: CostLine,
    dma_queue: CostLine,
    /// Packets of at least this many bytes go to a DMA queue.
    from: u32,
    /// The longest packet.
    longest: u32,
    /// Bursts until the next trial, and between two trials.
    left: u32,
    every: u32,
    next: CopyBy,
    trial: Option<Trial>,
}

impl LearnedThreshold {
    /// Creates it for packets of up to `longest` bytes. The CPU copies all packets until costs are known.
    pub(crate) fn new(longest: u32) -> LearnedThreshold {
        let (cpu, dma_queue) = (CostLine::default(), CostLine::default());
        LearnedThreshold {
            cpu,
            dma_queue,
            from: u32::MAX,
            longest,
            left: 0,
            every: FIRST_INTERVAL,
            next: CopyBy::Cpu,
            trial: None,
        }
    }

    /// What copies a packet of `len` bytes in the current burst.
    #[cfg(test)]
    pub(crate) fn copy_by(&self, len: u32) -> CopyBy {
        if len >= self.from() { CopyBy::DmaQueue } else { CopyBy::Cpu }
    }

    /// Packets of at least this many bytes in the current burst go to a DMA queue.
    #[inline]
    pub(crate) fn from(&self) -> u32 {
        match &self.trial {
            Some(Trial { copy_by: CopyBy::DmaQueue, until: None, .. }) => 0,
            Some(Trial { copy_by: CopyBy::Cpu, until: None, .. }) => u32::MAX,
            _ => self.from,
        }
    }

    /// Starts a burst; returns true if it is a trial, which is timed.
    #[inline]
    pub(crate) fn begin(&mut self) -> bool {
        if self.trial.is_some() {
            return false;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.trial = Some(Trial { copy_by: self.next, packets: 0, bytes: 0, spent: Duration::ZERO, until: None });
            return true;
        };
        self.left = left;
        false
    }

    /// Ends the submission of a trial's burst: its packets and bytes, the time spent, and the number of the first
    /// packet after it.
    pub(crate) fn submitted(&mut self, packets: u64, bytes: u64, spent: Duration, until: u64) {
        match &mut self.trial {
            // There were no packets to try.
            _ if packets == 0 => self.trial = None,
            Some(trial) => *trial = Trial { packets, bytes, spent, until: Some(until), ..*trial },
            None => {}
        }
    }

    /// Returns whether a trial is in flight: then polling is timed.
    #[inline]
    pub(crate) fn trial_in_flight(&self) -> bool {
        self.trial.is_some()
    }

    /// Adds the time of one poll; all packets before `first` are complete.
    pub(crate) fn polled(&mut self, spent: Duration, first: u64) {
        let Some(trial) = &mut self.trial else { return };
        trial.spent += spent;
        if trial.until.is_some_and(|until| first >= until) {
            let Trial { copy_by, packets, bytes, spent, .. } = *trial;
            self.trial = None;
            self.add_trial(copy_by, packets, bytes, spent);
        }
    }

    fn add_trial(&mut self, copy_by: CopyBy, packets: u64, bytes: u64, spent: Duration) {
        let (line, other) = match copy_by {
            CopyBy::Cpu => (&mut self.cpu, CopyBy::DmaQueue),
            CopyBy::DmaQueue => (&mut self.dma_queue, CopyBy::Cpu),
        };
        line.add(packets, bytes, spent);
        self.next = other;
        if self.cpu.trials.min(self.dma_queue.trials) >= MIN_TRIALS {
            let from = crossing(self.cpu.slopes(), self.dma_queue.slopes(), self.longest);
            // The usual packets would now take the other path: run trials often again.
            #[allow(clippy::cast_possible_truncation, reason = "the mean of lengths that are 32 bits")]
            let usual = (bytes / packets.max(1)) as u32;
            let same = (usual >= from) == (usual >= self.from);
            self.every = if same { (self.every * 2).min(LONGEST_INTERVAL) } else { FIRST_INTERVAL };
            self.from = from;
        }
        self.left = self.every;
    }
}

/// The length from which on the DMA queue's line is below the CPU's; beyond all packets if it never is.
fn crossing(cpu: [f64; 2], dma_queue: [f64; 2], longest: u32) -> u32 {
    let at = |[packet, byte]: [f64; 2], len: u32| packet + byte * f64::from(len);
    let is_less = |len: &u32| at(dma_queue, *len) < at(cpu, *len);
    if !is_less(&longest) {
        return u32::MAX;
    }
    // Two lines cross once: from there to the longest packet the DMA queue's stays below.
    let (mut low, mut high) = (0, longest);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_less(&middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nanoseconds per packet, and per byte.
    type Costs = [f64; 2];

    /// Runs bursts of 32 packets, cycling through these lengths; returns how many packets of each length went to the
    /// DMA queue.
    fn rode(learned: &mut LearnedThreshold, lens: &[u32], cpu: Costs, dma_queue: Costs, bursts: usize) -> Vec<u64> {
        let mut rode = vec![0; lens.len()];
        for burst in 0..bursts {
            let trial = learned.begin();
            let of = |place: usize| (burst * 7 + place * 3) % lens.len();
            let (mut bytes, mut nanos) = (0, 0.0);
            for place in 0..32 {
                let len = lens[of(place)];
                let copy_by = learned.copy_by(len);
                let [packet, byte] = if copy_by == CopyBy::DmaQueue { dma_queue } else { cpu };
                rode[of(place)] += u64::from(copy_by == CopyBy::DmaQueue);
                bytes += u64::from(len);
                nanos += packet + byte * f64::from(len);
            }
            if trial {
                learned.submitted(32, bytes, Duration::from_secs_f64(nanos * 0.75e-9), 1);
                assert!(learned.trial_in_flight());
                learned.polled(Duration::from_secs_f64(nanos * 0.25e-9), 0);
                learned.polled(Duration::ZERO, 1);
                assert!(!learned.trial_in_flight());
            }
        }
        rode
    }

    #[test]
    fn each_packet_size_takes_the_cheaper_path() {
        // Equal at 500 bytes.
        let (cpu, dma_queue) = ([10.0, 0.1], [60.0, 0.0]);
        let mut learned = LearnedThreshold::new(2048);
        rode(&mut learned, &[64, 512, 1518], cpu, dma_queue, 2000);
        assert!((450..=550).contains(&learned.from), "from {}", learned.from);
        let rode = rode(&mut learned, &[64, 400, 600, 1518], cpu, dma_queue, 1000);
        assert!(rode[0] < 400 && rode[1] < 400 && rode[2] > 7600 && rode[3] > 7600, "{rode:?}");
    }

    #[test]
    fn packets_of_one_size_take_the_cheaper_path() {
        for len in [64, 1518] {
            for (dma_queue, rides) in [([200.0, 0.05], 0), ([5.0, 0.001], 1)] {
                let mut learned = LearnedThreshold::new(2048);
                rode(&mut learned, &[len], [10.0, 0.02], dma_queue, 1000);
                let rode = rode(&mut learned, &[len], [10.0, 0.02], dma_queue, 1000)[0];
                assert!(rode.abs_diff(rides * 32_000) < 1600, "{len} bytes, {dma_queue:?}: {rode}");
            }
        }
    }

    #[test]
    fn a_queue_that_is_never_cheaper_is_tried_less_and_less_often() {
        let mut learned = LearnedThreshold::new(2048);
        rode(&mut learned, &[64], [10.0, 0.02], [230.0, 0.05], 40_000);
        let rode = rode(&mut learned, &[64], [10.0, 0.02], [230.0, 0.05], 65_536)[0];
        assert!((32..=32 * 8).contains(&rode), "{rode} packets of {}", 65_536 * 32);
    }

    #[test]
    fn a_changed_cost_is_noticed() {
        let mut learned = LearnedThreshold::new(2048);
        rode(&mut learned, &[1000], [10.0, 0.1], [500.0, 0.0], 10_000);
        assert_eq!(learned.copy_by(1000), CopyBy::Cpu);
        rode(&mut learned, &[1000], [10.0, 0.1], [5.0, 0.0], 1_000_000);
        assert_eq!(learned.copy_by(1000), CopyBy::DmaQueue);
        rode(&mut learned, &[1000], [10.0, 0.1], [500.0, 0.0], 1_000_000);
        assert_eq!(learned.copy_by(1000), CopyBy::Cpu);
    }

    #[test]
    fn a_preempted_burst_barely_moves_the_threshold() {
        let mut learned = LearnedThreshold::new(2048);
        rode(&mut learned, &[64, 1500], [10.0, 0.1], [60.0, 0.0], 1000);
        let from = learned.from;
        learned.add_trial(CopyBy::DmaQueue, 32, 32 * 1500, Duration::from_secs(1));
        rode(&mut learned, &[64, 1500], [10.0, 0.1], [60.0, 0.0], 1_000_000);
        assert!(learned.from.abs_diff(from) < 100, "{from}, then {}", learned.from);
    }

    #[test]
    fn an_empty_burst_is_not_a_trial() {
        let mut learned = LearnedThreshold::new(2048);
        assert!(learned.begin());
        learned.submitted(0, 0, Duration::from_secs(1), 0);
        assert!(!learned.trial_in_flight() && learned.begin());
    }
}
