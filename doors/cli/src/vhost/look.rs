//! What a switch has done up to a moment.

use std::sync::Arc;
use std::time::Instant;
use telpher_os::ticks;
use telpher_switch::{Capture, Counts, End};
use telpher_vhost::ring::Broken;
use telpher_vhost::words::Features;
use telpher_vhost::{Drop, SocketState, Stats};

/// All there is to see at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) at: Instant,
    /// The time stamp counter then.
    pub(crate) ticks: u64,
    /// What the threads have done.
    pub(crate) counts: Counts,
    pub(crate) ports: Vec<PortLook>,
}

/// What is to be seen of a port.
#[derive(Clone, Debug)]
pub(crate) struct PortLook {
    pub(crate) name: String,
    /// Packets that nobody else counts as dropped, by reason: those of virtqueues and interfaces themselves.
    pub(crate) drops: Vec<(String, u64)>,
    /// What its virtqueues have done; nothing for an interface.
    pub(crate) rings: Option<Stats>,
    pub(crate) socket: Option<SocketState>,
    /// Why its rings broke last, by ring, in the order of rings; those that never did are left out.
    pub(crate) broken: Vec<(usize, Broken)>,
    /// Packets in its capture, and those left out.
    pub(crate) capture: Option<(String, u64, u64)>,
    /// Somebody is there to take packets.
    pub(crate) up: bool,
    /// Packets whose way to it began and that it had no place for.
    pub(crate) refused: u64,
}

impl PortLook {
    pub(crate) fn new(name: &str, end: &End, socket: Option<SocketState>, capture: Option<&Arc<Capture>>) -> PortLook {
        let (drops, rings, broken) = match end {
            End::Guest(port) => {
                let stats =
                    (0..2 * port.pairs()).map(|ring| port.stats(ring)).fold(Stats::default(), |sum, of| sum + of);
                let drops = Drop::ALL.iter().map(|reason| (reason.to_string(), stats.drops(*reason)));
                let broken = (0..2 * port.pairs()).filter_map(|ring| Some((ring, port.last_broken(ring)?))).collect();
                (drops.collect(), Some(stats), broken)
            }
            End::Tap(tap) => {
                let drops = [
                    ("a frame is shorter than an Ethernet header".to_owned(), tap.refused()),
                    ("a frame is longer than --longest".to_owned(), tap.long()),
                ];
                (drops.into(), None, Vec::new())
            }
        };
        let capture = capture.map(|capture| {
            let (written, left_out) = capture.counts();
            (capture.path().display().to_string(), written, left_out)
        });
        let up = (0..end.queues()).any(|queue| end.is_there(queue));
        PortLook { name: name.to_owned(), drops, rings, socket, broken, capture, up, refused: end.refused() }
    }

    /// What its guest has agreed on, in a few words; nothing while none is there.
    pub(crate) fn agreed(&self) -> Option<String> {
        let features = self.socket.as_ref().filter(|state| state.connected && self.up)?.features;
        let ring = if features.contains(Features::RING_PACKED) { "packed ring" } else { "split ring" };
        let words = [
            (Features::MRG_RXBUF, "mergeable buffers"),
            (Features::IN_ORDER, "in order"),
            (Features::INDIRECT_DESC, "indirect descriptors"),
            (Features::EVENT_IDX, "event index"),
            (Features::LOG_ALL, "dirty log"),
        ];
        let more = words.iter().filter(|(bit, _)| features.contains(*bit)).map(|(_, word)| *word);
        Some(std::iter::once(ring).chain(more).collect::<Vec<_>>().join(", "))
    }
}

/// Where the cycles of a time went, all threads together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub(crate) struct Cycles {
    /// Finding buffers and giving them back: what is left of take, submit and collect.
    pub(crate) ring_work: u64,
    /// Copies by the CPU, from those that were clocked.
    pub(crate) copies: u64,
    /// Handing copies to devices and finding those that have landed; of an inline model, the copies.
    pub(crate) device: u64,
    /// What the mode does.
    pub(crate) mode: u64,
    /// Turns in which nothing moved.
    pub(crate) waiting: u64,
}

impl Cycles {
    pub(crate) fn all(&self) -> u64 {
        self.ring_work + self.copies + self.device + self.mode + self.waiting
    }
}

/// What two looks at the counter take, one after the other.
fn two_looks() -> u64 {
    let look = || {
        let begun = ticks();
        ticks().wrapping_sub(begun)
    };
    (0..64).map(|_| look()).min().unwrap_or(0)
}

impl Look {
    /// Where the cycles since an earlier look went.
    pub(crate) fn cycles(&self, earlier: &Look) -> Cycles {
        let stages = (&self.counts - &earlier.counts).stages;
        // Packets copied by the CPU, those of them that were clocked, how often the clock was read for them, and what they and devices took.
        let of = |look: &Look| {
            let rings = look.ports.iter().filter_map(|port| port.rings);
            rings.fold([0; 5], |[cpu, packets, times, ticks, lanes], stats| {
                let clocked = stats.clocked;
                let cpu = cpu + stats.packets.saturating_sub(stats.by_lane);
                [
                    cpu,
                    packets + clocked.packets,
                    times + clocked.times,
                    ticks + clocked.ticks,
                    lanes + clocked.lane_ticks,
                ]
            })
        };
        let (now, then) = (of(self), of(earlier));
        let [cpu, packets, times, ticks, device] = std::array::from_fn(|index| now[index].saturating_sub(then[index]));
        let clocked = ticks.saturating_sub(times * two_looks());
        let copies = clocked.checked_mul(cpu).and_then(|all| all.checked_div(packets)).unwrap_or(0);
        let all = stages.take + stages.submit + stages.collect;
        Cycles {
            ring_work: all.saturating_sub(copies + device),
            copies: copies.min(all),
            device: device.min(all),
            mode: stages.work,
            waiting: stages.waiting,
        }
    }

    /// Packets for and of a port that were dropped, by reason; those that never happened are left out.
    pub(crate) fn drops(&self, port: usize) -> Vec<(String, u64)> {
        let counts = &self.counts.ports[port];
        let ours = [
            ("no room at the receiver".to_owned(), counts.no_room),
            ("no room at the receiver for --retry-for".to_owned(), counts.retried),
            ("nobody at the receiver".to_owned(), counts.nobody),
        ];
        let all = ours.into_iter().chain(self.ports[port].drops.iter().cloned());
        all.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_switch::Stages;
    use telpher_vhost::Clocked;

    #[test]
    fn clocked_copies_stand_for_all() {
        let look = |stats: Stats, stages: Stages| {
            let port = PortLook {
                name: "a".into(),
                drops: Vec::new(),
                rings: Some(stats),
                socket: None,
                broken: Vec::new(),
                capture: None,
                up: true,
                refused: 0,
            };
            let counts = Counts { ports: Vec::new(), stages };
            Look { at: Instant::now(), ticks: 0, counts, ports: vec![port] }
        };
        let before = look(Stats::default(), Stages::default());
        let clocked = Clocked { packets: 10, times: 2, ticks: 10 * 1000 + 2 * two_looks(), lane_ticks: 500 };
        let mut stats = Stats::default();
        (stats.packets, stats.by_lane, stats.clocked) = (700, 100, clocked);
        let stages = Stages { take: 500_000, submit: 400_000, collect: 1500, work: 7, waiting: 8, ..Stages::default() };
        let cycles = look(stats, stages).cycles(&before);
        // Two looks take what they take, each time a little otherwise.
        assert!(cycles.copies.abs_diff(600_000) <= 60_000, "{cycles:?}");
        assert_eq!(cycles.ring_work + cycles.copies, 901_000);
        assert_eq!((cycles.device, cycles.mode, cycles.waiting), (500, 7, 8));
        assert_eq!(look(stats, Stages::default()).cycles(&before).all(), 0);
    }
}
