//! From which size on packets ride a lane, found out while they flow.
//!
//! What a burst costs the polling thread is a line over its packets and bytes, one for copies by the CPU and one for copies by a lane: so
//! much a packet, and so much a byte. Where the lines cross is the threshold. Each is fitted to bursts that go one way whole, *trials*: now and
//! then a burst is one, and the rest of the time packets go whichever way is less by the lines. A trial of a lane counts what its submission
//! takes and what looking for its end takes, and with an engine that the thread lends its time to, the copies themselves; so that a lane which
//! only costs is found out in its first bursts, and asked again ever more seldom.

use crate::flight::Who;
use std::time::Duration;

/// Bursts from one trial to the next at first, while neither line is known.
const OFTEN: u32 = 8;
/// The same at last, when trials have told the same again and again: one in so many bursts, of a lane that takes ten times as long, is a
/// fifth of a per cent. Source: derived, of what an inline engine takes for 64 bytes here (230 ns) and the CPU (20 ns); some 10 ms at 10 Mpps.
const SELDOM: u32 = 8192;
/// What one more trial leaves of those before. Source: chosen, so that ten bursts tell, and one that was interrupted is soon forgotten.
const KEPT: f64 = 0.9;
/// Trials of each way before the lines are believed.
const ENOUGH: u32 = 3;
/// The longest burst that counts beside what is known, as a multiple: the thread lost its core meanwhile. Source: chosen.
const OUTLIER: f64 = 20.0;

/// Nanoseconds over packets and bytes: sums of a least-squares fit through the origin, older ones fading.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    packets_packets: f64,
    packets_bytes: f64,
    bytes_bytes: f64,
    packets_nanos: f64,
    bytes_nanos: f64,
    trials: u32,
}

impl Line {
    #[allow(clippy::cast_precision_loss, reason = "of one burst")]
    fn add(&mut self, packets: u64, bytes: u64, spent: Duration) {
        let (packets, bytes, mut nanos) = (packets as f64, bytes as f64, spent.as_nanos() as f64);
        if self.trials >= ENOUGH {
            nanos = nanos.min(OUTLIER * (self.nanos(packets, bytes)).max(1.0));
        }
        for (sum, term) in [
            (&mut self.packets_packets, packets * packets),
            (&mut self.packets_bytes, packets * bytes),
            (&mut self.bytes_bytes, bytes * bytes),
            (&mut self.packets_nanos, packets * nanos),
            (&mut self.bytes_nanos, bytes * nanos),
        ] {
            *sum = *sum * KEPT + term;
        }
        self.trials = self.trials.saturating_add(1);
    }

    /// So much a packet, and so much a byte, neither less than nothing.
    fn slopes(&self) -> [f64; 2] {
        // A little more weight on either axis than was seen: packets of one size alone leave open what is a packet's and what its bytes'.
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

/// A burst that goes one way, until its last copy has landed.
#[derive(Clone, Copy, Debug)]
struct Trial {
    who: Who,
    packets: u64,
    bytes: u64,
    spent: Duration,
    /// The first packet after it; none as long as it is being submitted.
    until: Option<u64>,
}

/// What is known of one virtqueue's copies.
#[derive(Clone, Debug)]
pub(crate) struct Learned {
    cpu: Line,
    lane: Line,
    /// Packets of so many bytes or more ride.
    from: u32,
    /// The longest packet.
    longest: u32,
    /// Bursts to the next trial, and from one to the next.
    left: u32,
    every: u32,
    next: Who,
    trial: Option<Trial>,
}

impl Learned {
    /// Nothing, of packets of up to so many bytes: all are copied by the CPU until more is known.
    pub(crate) fn new(longest: u32) -> Learned {
        let (cpu, lane) = (Line::default(), Line::default());
        Learned { cpu, lane, from: u32::MAX, longest, left: 0, every: OFTEN, next: Who::Cpu, trial: None }
    }

    /// Who copies a packet of so many bytes of the burst at hand.
    #[cfg(test)]
    pub(crate) fn who(&self, len: u32) -> Who {
        if len >= self.from() { Who::Lane } else { Who::Cpu }
    }

    /// From how many bytes on packets of the burst at hand ride.
    #[inline]
    pub(crate) fn from(&self) -> u32 {
        match &self.trial {
            Some(Trial { who: Who::Lane, until: None, .. }) => 0,
            Some(Trial { who: Who::Cpu, until: None, .. }) => u32::MAX,
            _ => self.from,
        }
    }

    /// A burst begins; true if it is a trial, which is timed.
    #[inline]
    pub(crate) fn begin(&mut self) -> bool {
        if self.trial.is_some() {
            return false;
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.trial = Some(Trial { who: self.next, packets: 0, bytes: 0, spent: Duration::ZERO, until: None });
            return true;
        };
        self.left = left;
        false
    }

    /// The trial's burst was submitted: its packets, what it took, and the number of the first packet in flight after it.
    pub(crate) fn submitted(&mut self, packets: u64, bytes: u64, spent: Duration, until: u64) {
        match &mut self.trial {
            // Nothing was there to try.
            _ if packets == 0 => self.trial = None,
            Some(trial) => *trial = Trial { packets, bytes, spent, until: Some(until), ..*trial },
            None => {}
        }
    }

    /// Whether a trial's copies are on their way: looking for them is timed.
    #[inline]
    pub(crate) fn is_out(&self) -> bool {
        self.trial.is_some()
    }

    /// Somebody looked for what has landed, which took so long; all packets before `first` have.
    pub(crate) fn looked(&mut self, spent: Duration, first: u64) {
        let Some(trial) = &mut self.trial else { return };
        trial.spent += spent;
        if trial.until.is_some_and(|until| first >= until) {
            let Trial { who, packets, bytes, spent, .. } = *trial;
            self.trial = None;
            self.tell(who, packets, bytes, spent);
        }
    }

    fn tell(&mut self, who: Who, packets: u64, bytes: u64, spent: Duration) {
        let (line, other) = match who {
            Who::Cpu => (&mut self.cpu, Who::Lane),
            Who::Lane => (&mut self.lane, Who::Cpu),
        };
        line.add(packets, bytes, spent);
        self.next = other;
        if self.cpu.trials.min(self.lane.trials) >= ENOUGH {
            let from = crossing(self.cpu.slopes(), self.lane.slopes(), self.longest);
            // What packets there are would go otherwise than before: the trials come often again.
            #[allow(clippy::cast_possible_truncation, reason = "the mean of lengths that are 32 bits")]
            let usual = (bytes / packets.max(1)) as u32;
            let same = (usual >= from) == (usual >= self.from);
            self.every = if same { (self.every * 2).min(SELDOM) } else { OFTEN };
            self.from = from;
        }
        self.left = self.every;
    }
}

/// From how many bytes on the lane's line is below the CPU's; beyond all packets if it never is.
fn crossing(cpu: [f64; 2], lane: [f64; 2], longest: u32) -> u32 {
    let at = |[packet, byte]: [f64; 2], len: u32| packet + byte * f64::from(len);
    let is_less = |len: &u32| at(lane, *len) < at(cpu, *len);
    if !is_less(&longest) {
        return u32::MAX;
    }
    // Two lines cross once: from there to the longest the lane's stays below.
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

    /// Nanoseconds a packet, and a byte.
    type Costs = [f64; 2];

    /// Bursts of 32 packets of these lengths, one after the other; how many packets rode at last, of a thousand bursts' each.
    fn rode(learned: &mut Learned, lens: &[u32], cpu: Costs, lane: Costs, bursts: usize) -> Vec<u64> {
        let mut rode = vec![0; lens.len()];
        for burst in 0..bursts {
            let trial = learned.begin();
            let of = |place: usize| (burst * 7 + place * 3) % lens.len();
            let (mut bytes, mut nanos) = (0, 0.0);
            for place in 0..32 {
                let len = lens[of(place)];
                let who = learned.who(len);
                let [packet, byte] = if who == Who::Lane { lane } else { cpu };
                rode[of(place)] += u64::from(who == Who::Lane);
                bytes += u64::from(len);
                nanos += packet + byte * f64::from(len);
            }
            if trial {
                learned.submitted(32, bytes, Duration::from_secs_f64(nanos * 0.75e-9), 1);
                assert!(learned.is_out());
                learned.looked(Duration::from_secs_f64(nanos * 0.25e-9), 0);
                learned.looked(Duration::ZERO, 1);
                assert!(!learned.is_out());
            }
        }
        rode
    }

    #[test]
    fn each_size_takes_the_better_line() {
        // Equal at 500 bytes.
        let (cpu, lane) = ([10.0, 0.1], [60.0, 0.0]);
        let mut learned = Learned::new(2048);
        rode(&mut learned, &[64, 512, 1518], cpu, lane, 2000);
        assert!((450..=550).contains(&learned.from), "from {}", learned.from);
        let rode = rode(&mut learned, &[64, 400, 600, 1518], cpu, lane, 1000);
        assert!(rode[0] < 400 && rode[1] < 400 && rode[2] > 7600 && rode[3] > 7600, "{rode:?}");
    }

    #[test]
    fn packets_of_one_size_go_where_it_costs_less() {
        for len in [64, 1518] {
            for (lane, rides) in [([200.0, 0.05], 0), ([5.0, 0.001], 1)] {
                let mut learned = Learned::new(2048);
                rode(&mut learned, &[len], [10.0, 0.02], lane, 1000);
                let rode = rode(&mut learned, &[len], [10.0, 0.02], lane, 1000)[0];
                assert!(rode.abs_diff(rides * 32_000) < 1600, "{len} bytes, {lane:?}: {rode}");
            }
        }
    }

    #[test]
    fn a_lane_that_only_costs_is_asked_ever_more_seldom() {
        let mut learned = Learned::new(2048);
        rode(&mut learned, &[64], [10.0, 0.02], [230.0, 0.05], 40_000);
        let rode = rode(&mut learned, &[64], [10.0, 0.02], [230.0, 0.05], 65_536)[0];
        assert!((32..=32 * 8).contains(&rode), "{rode} packets of {}", 65_536 * 32);
    }

    #[test]
    fn what_changes_is_found_out() {
        let mut learned = Learned::new(2048);
        rode(&mut learned, &[1000], [10.0, 0.1], [500.0, 0.0], 10_000);
        assert_eq!(learned.who(1000), Who::Cpu);
        rode(&mut learned, &[1000], [10.0, 0.1], [5.0, 0.0], 1_000_000);
        assert_eq!(learned.who(1000), Who::Lane);
        rode(&mut learned, &[1000], [10.0, 0.1], [500.0, 0.0], 1_000_000);
        assert_eq!(learned.who(1000), Who::Cpu);
    }

    #[test]
    fn a_burst_that_lost_its_core_does_not_tell() {
        let mut learned = Learned::new(2048);
        rode(&mut learned, &[64, 1500], [10.0, 0.1], [60.0, 0.0], 1000);
        let from = learned.from;
        learned.tell(Who::Lane, 32, 32 * 1500, Duration::from_secs(1));
        rode(&mut learned, &[64, 1500], [10.0, 0.1], [60.0, 0.0], 1_000_000);
        assert!(learned.from.abs_diff(from) < 100, "{from}, then {}", learned.from);
    }

    #[test]
    fn an_empty_burst_is_no_trial() {
        let mut learned = Learned::new(2048);
        assert!(learned.begin());
        learned.submitted(0, 0, Duration::from_secs(1), 0);
        assert!(!learned.is_out() && learned.begin());
    }
}
