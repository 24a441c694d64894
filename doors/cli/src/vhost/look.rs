//! What a switch has done up to a moment.

use super::capture::Capture;
use super::end::End;
use super::forward::Counts;
use std::sync::Arc;
use std::time::Instant;
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
    /// Packets in its capture, and those left out.
    pub(crate) capture: Option<(String, u64, u64)>,
    /// Somebody is there to take packets.
    pub(crate) up: bool,
    /// Packets whose way to it began and that it had no place for.
    pub(crate) refused: u64,
}

impl PortLook {
    pub(crate) fn new(name: &str, end: &End, socket: Option<SocketState>, capture: Option<&Arc<Capture>>) -> PortLook {
        let (drops, rings) = match end {
            End::Guest(port) => {
                let stats =
                    (0..2 * port.pairs()).map(|ring| port.stats(ring)).fold(Stats::default(), |sum, of| sum + of);
                let drops = Drop::ALL.iter().map(|reason| (reason.to_string(), stats.drops(*reason)));
                (drops.collect(), Some(stats))
            }
            End::Tap(tap) => {
                let drops = [
                    ("a frame is shorter than an Ethernet header".to_owned(), tap.refused()),
                    ("a frame is longer than --longest".to_owned(), tap.long()),
                ];
                (drops.into(), None)
            }
        };
        let capture = capture.map(|capture| {
            let (written, left_out) = capture.counts();
            (capture.path().display().to_string(), written, left_out)
        });
        let up = (0..end.queues()).any(|queue| end.is_there(queue));
        PortLook { name: name.to_owned(), drops, rings, socket, capture, up, refused: end.refused() }
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

impl Look {
    /// Packets for and of a port that were dropped, by reason; those that never happened are left out.
    pub(crate) fn drops(&self, port: usize) -> Vec<(String, u64)> {
        let counts = &self.counts.ports[port];
        let ours = [
            ("no room at the receiver".to_owned(), counts.no_room),
            ("nobody at the receiver".to_owned(), counts.nobody),
        ];
        let all = ours.into_iter().chain(self.ports[port].drops.iter().cloned());
        all.filter(|(_, count)| *count > 0).collect()
    }
}
