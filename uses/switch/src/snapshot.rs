//! Snapshots of a running switch: its counts, its ports, and the cycles of its threads between two snapshots.

use crate::capture::Capture;
use crate::endpoint::End;
use crate::nic::NicState;
use crate::stats::{Counts, NicStats};
use std::sync::Arc;
use std::time::Instant;
use telpher_os::ticks;
use telpher_vhost::layout::Features;
use telpher_vhost::ring::Broken;
use telpher_vhost::{DropReason, SocketState, Stats};

/// The state of a switch at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Instant,
    /// The time stamp counter at the snapshot.
    pub ticks: u64,
    /// The threads' counts.
    pub counts: Counts,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortSnapshot>,
}

/// The state of a port at one moment.
#[derive(Clone, Debug)]
pub struct PortSnapshot {
    /// The socket's path, or the interface's name.
    pub name: String,
    /// Packets dropped by virtqueues and interfaces themselves, by reason.
    pub drops: Vec<(String, u64)>,
    /// The counts of its virtqueues; empty for an interface.
    pub rings: Option<Stats>,
    /// The state and the counts of a network interface; `None` for other ports.
    pub nic: Option<(NicState, NicStats)>,
    /// The state of its socket; `None` for an interface.
    pub socket: Option<SocketState>,
    /// Why its rings broke last, in the order of rings; rings that never broke are omitted.
    pub broken: Vec<(usize, Broken)>,
    /// The file of its capture, the packets in it, and those left out.
    pub capture: Option<(String, u64, u64)>,
    /// A receiver is connected.
    pub up: bool,
    /// Packets whose sending started but for which it had no room.
    pub refused: u64,
}

impl PortSnapshot {
    /// Reads the state of a port.
    pub(crate) fn new(
        name: &str,
        end: &End,
        socket: Option<SocketState>,
        capture: Option<&Arc<Capture>>,
    ) -> PortSnapshot {
        let nic = if let End::Nic(nic) = end { Some((nic.state(), nic.stats())) } else { None };
        let (drops, rings, broken) = match end {
            End::Guest(port) => {
                let stats: Stats = (0..2 * port.pairs()).map(|ring| port.stats(ring)).sum();
                let drops = DropReason::ALL.iter().map(|reason| (reason.to_string(), stats.drops(*reason)));
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
            End::Nic(_) => {
                let (_, stats) = nic.unwrap_or((NicState::Absent, NicStats::default()));
                let drops = [
                    ("a frame is shorter than an Ethernet header".to_owned(), stats.short),
                    ("a frame is longer than the interface's MTU".to_owned(), stats.above_mtu),
                    ("a frame is longer than --longest".to_owned(), stats.long),
                    ("the interface's ring was full".to_owned(), stats.ring_full),
                    ("no memory for a large frame".to_owned(), stats.cut),
                    ("a large frame cannot be divided into packets".to_owned(), stats.indivisible),
                ];
                (drops.into(), None, Vec::new())
            }
        };
        let capture = capture.map(|capture| {
            let (written, left_out) = capture.counts();
            (capture.path().display().to_string(), written, left_out)
        });
        let up = (0..end.queues()).any(|queue| end.is_there(queue));
        PortSnapshot { name: name.to_owned(), drops, rings, nic, socket, broken, capture, up, refused: end.refused() }
    }

    /// Describes the features that its guest negotiated; `None` without a guest.
    #[must_use]
    pub fn agreed(&self) -> Option<String> {
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

/// Describes what happened to an interface; `None` if nothing did.
fn interface_event(then: (NicState, NicStats), now: (NicState, NicStats)) -> Option<&'static str> {
    match (then.0, now.0) {
        (then, now) if then != now => Some(match now {
            NicState::Up => "its interface is up",
            NicState::Down => "its interface is down; packets for it are dropped until it is up again",
            NicState::Absent => "its interface was removed; packets for it are dropped until there is one of its name",
        }),
        (state, _) if then.1.changes != now.1.changes => Some(match state {
            NicState::Up => "its interface was down or removed, and is up again",
            NicState::Down | NicState::Absent => "its interface was up, and is not any more",
        }),
        _ => None,
    }
}

/// The cycles of a period by stage, over all threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct StageCycles {
    /// Finding and returning buffers: take, submit and collect without the copies.
    pub ring_work: u64,
    /// Copies by the CPU, extrapolated from the clocked ones.
    pub copies: u64,
    /// Submitting copies to devices and finding completed ones; for an inline model, also the copies.
    pub device: u64,
    /// Processing by the mode.
    pub mode: u64,
    /// Turns in which nothing moved.
    pub waiting: u64,
}

impl StageCycles {
    /// Returns the cycles of all stages.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.ring_work + self.copies + self.device + self.mode + self.waiting
    }
}

/// The ticks of two consecutive reads of the counter.
fn two_looks() -> u64 {
    let look = || {
        let start = ticks();
        ticks().wrapping_sub(start)
    };
    (0..64).map(|_| look()).min().unwrap_or(0)
}

impl Snapshot {
    /// Returns the cycles since an earlier snapshot.
    #[must_use]
    pub fn cycles(&self, earlier: &Snapshot) -> StageCycles {
        let stages = (&self.counts - &earlier.counts).stages;
        // Packets copied by the CPU, those that were clocked, how often the clock was read for them, and the ticks of
        // CPU and device copies.
        let of = |look: &Snapshot| {
            let rings = look.ports.iter().filter_map(|port| port.rings);
            rings.fold([0; 5], |[cpu, packets, times, ticks, dma_queues], stats| {
                let clocked = stats.clocked;
                let cpu = cpu + stats.packets.saturating_sub(stats.by_device);
                [
                    cpu,
                    packets + clocked.packets,
                    times + clocked.times,
                    ticks + clocked.ticks,
                    dma_queues + clocked.device_ticks,
                ]
            })
        };
        let (now, then) = (of(self), of(earlier));
        let [cpu, packets, times, ticks, device] = std::array::from_fn(|index| now[index].saturating_sub(then[index]));
        let clocked = ticks.saturating_sub(times * two_looks());
        let copies = clocked.checked_mul(cpu).and_then(|all| all.checked_div(packets)).unwrap_or(0);
        let all = stages.take + stages.submit + stages.collect;
        StageCycles {
            ring_work: all.saturating_sub(copies + device),
            copies: copies.min(all),
            device: device.min(all),
            mode: stages.work,
            waiting: stages.waiting,
        }
    }

    /// Describes what happened to the ports since an earlier snapshot, a sentence each: guests that came and went,
    /// refused requests, broken rings.
    #[must_use]
    pub fn events_since(&self, earlier: &Snapshot) -> Vec<String> {
        let mut events = Vec::new();
        for (index, (then, port)) in earlier.ports.iter().zip(&self.ports).enumerate() {
            match (then.agreed(), port.agreed()) {
                (None, Some(agreed)) => events.push(format!("port {index}: a guest connected ({agreed})")),
                (Some(_), None) => events.push(format!("port {index}: its guest disconnected")),
                _ => {}
            }
            let announced = |look: &Snapshot| look.counts.ports.get(index).map_or(0, |port| port.announced);
            if announced(self) > announced(earlier) {
                events.push(format!("port {index}: its guest migrated here and is announced"));
            }
            let refused = |look: &PortSnapshot| look.socket.as_ref().map_or(0, |state| state.refused);
            if refused(port) > refused(then)
                && let Some(why) = port.socket.as_ref().and_then(|state| state.last.as_ref())
            {
                events.push(format!("port {index}: a request of its frontend was refused: {why}"));
            }
            if let (Some(then), Some(now)) = (then.nic, port.nic) {
                events.extend(interface_event(then, now).map(|event| format!("port {index}: {event}")));
            }
            for (ring, why) in port.broken.iter().filter(|broken| !then.broken.contains(broken)) {
                let until = "until the guest sets it up again";
                events.push(format!("port {index}: its ring {ring} is stopped {until}: {why}"));
            }
        }
        events
    }

    /// Returns the dropped packets of a port by reason; reasons that did not occur are omitted. Some reasons name an
    /// option of `telpher vhost`.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn drops(&self, port: usize) -> Vec<(String, u64)> {
        let counts = &self.counts.ports[port];
        let ours = [
            ("no room at the receiver".to_owned(), counts.no_room),
            ("no room at the receiver for --retry-for".to_owned(), counts.retried),
            ("no receiver".to_owned(), counts.no_receiver),
        ];
        let all = ours.into_iter().chain(self.ports[port].drops.iter().cloned());
        all.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Stages;
    use telpher_vhost::CopyTiming;

    #[test]
    fn each_change_of_an_interface_is_an_event_once() {
        let at = |state, changes| (state, NicStats { changes, ..NicStats::default() });
        let up = at(NicState::Up, 0);
        assert_eq!(interface_event(up, up), None);
        assert!(interface_event(up, at(NicState::Down, 1)).is_some_and(|event| event.contains("is down")));
        assert!(interface_event(up, at(NicState::Absent, 1)).is_some_and(|event| event.contains("was removed")));
        assert!(
            interface_event(at(NicState::Absent, 1), at(NicState::Up, 2)).is_some_and(|event| event.ends_with("up"))
        );
        assert!(interface_event(up, at(NicState::Up, 2)).is_some_and(|event| event.ends_with("up again")));
        assert_eq!(interface_event(at(NicState::Down, 1), at(NicState::Down, 1)), None);
    }

    #[test]
    fn clocked_copies_are_extrapolated_to_all() {
        let look = |stats: Stats, stages: Stages| {
            let port = PortSnapshot {
                name: "a".into(),
                drops: Vec::new(),
                rings: Some(stats),
                nic: None,
                socket: None,
                broken: Vec::new(),
                capture: None,
                up: true,
                refused: 0,
            };
            let counts = Counts { ports: Vec::new(), stages };
            Snapshot { at: Instant::now(), ticks: 0, counts, ports: vec![port] }
        };
        let before = look(Stats::default(), Stages::default());
        let clocked = CopyTiming { packets: 10, times: 2, ticks: 10 * 1000 + 2 * two_looks(), device_ticks: 500 };
        let mut stats = Stats::default();
        (stats.packets, stats.by_device, stats.clocked) = (700, 100, clocked);
        let stages = Stages { take: 500_000, submit: 400_000, collect: 1500, work: 7, waiting: 8, ..Stages::default() };
        let cycles = look(stats, stages).cycles(&before);
        // The time of two reads varies a little.
        assert!(cycles.copies.abs_diff(600_000) <= 60_000, "{cycles:?}");
        assert_eq!(cycles.ring_work + cycles.copies, 901_000);
        assert_eq!((cycles.device, cycles.mode, cycles.waiting), (500, 7, 8));
        assert_eq!(look(stats, Stages::default()).cycles(&before).all(), 0);
    }
}
