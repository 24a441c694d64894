//! The counters of a switch: by port and by thread.

use std::ops::{AddAssign, Sub};
use std::sync::Arc;
use telpher_metrics::{Published, Publisher, Record, metrics};

metrics! {
    /// One thread's counts for one port.
    pub struct PortCounts {
        /// Packets received from the port.
        pub received: u64 = counter "telpher_switch_received_packets_total",
        /// Bytes of packets received from the port.
        pub received_bytes: u64 = counter(Bytes) "telpher_switch_received_bytes_total",
        /// Packets that were sent to the port and that it can see.
        pub sent: u64 = counter "telpher_switch_sent_packets_total",
        /// Bytes of packets that were sent to the port.
        pub sent_bytes: u64 = counter(Bytes) "telpher_switch_sent_bytes_total",
        /// Packets whose sending started: those sent, those in flight, and those for which its guest's buffer was too
        /// short.
        pub submitted: u64 = counter "telpher_switch_submitted_packets_total",
        /// Packets generated for the port.
        pub generated: u64 = counter "telpher_switch_generated_packets_total",
        /// Packets received from the port and discarded by the mode.
        pub discarded: u64 = counter "telpher_switch_discarded_packets_total",
        /// Packets dropped because its guest had no buffers.
        pub no_room: u64 = counter "telpher_switch_dropped_packets_total" by reason ["no room"] => DROPPED,
        /// Packets dropped because its guest took none for [`Settings::retry_for`](crate::Settings::retry_for).
        pub retried: u64 = counter "telpher_switch_dropped_packets_total" by reason ["retried in vain"] => DROPPED,
        /// Packets dropped because no receiver was connected.
        pub no_receiver: u64 = counter "telpher_switch_dropped_packets_total" by reason ["no receiver"] => DROPPED,
        /// Packets for the port that the switch still held when it ended.
        pub held: u64 = counter "telpher_switch_held_packets_total",
        /// How often its migrated guest was announced on the other side; these frames count as generated there.
        pub announced: u64 = counter "telpher_switch_announcements_total",
    }
}

metrics! {
    /// The counts of a network interface that is a port.
    pub struct NicStats {
        /// Packets to the interface that are shorter than an Ethernet header.
        pub short: u64 = counter "telpher_switch_interface_dropped_frames_total" by reason ["short"] => FRAMES,
        /// Packets to the interface that are longer than its MTU.
        pub above_mtu: u64 = counter "telpher_switch_interface_dropped_frames_total" by reason ["above the mtu"]
            => FRAMES,
        /// Frames from the interface that are longer than a packet may be.
        pub long: u64 = counter "telpher_switch_interface_dropped_frames_total" by reason ["long"] => FRAMES,
        /// Frames from the interface that found no free slot, since the switch was behind.
        pub ring_full: u64 = counter "telpher_switch_interface_dropped_frames_total" by reason ["ring full"] => FRAMES,
        /// Large frames from the interface for which the socket had no memory.
        pub cut: u64 = counter "telpher_switch_interface_dropped_frames_total" by reason ["no memory"] => FRAMES,
        /// Large frames from the interface that cannot be divided into packets.
        pub indivisible: u64 = counter "telpher_switch_interface_dropped_frames_total" by reason ["indivisible"]
            => FRAMES,
        /// Large frames from the interface that were divided into packets.
        pub divided: u64 = counter "telpher_switch_interface_divided_frames_total",
        /// Packets from the interface whose checksum was completed.
        pub completed: u64 = counter "telpher_switch_interface_completed_checksums_total",
        /// How often the interface was found up, down or absent when it was not before.
        pub changes: u64 = counter "telpher_switch_interface_changes_total",
    }
}

/// The help of frames that an interface and a switch did not exchange.
const FRAMES: &str = "Frames that the switch and a network interface could not exchange, by reason.";

/// The help of dropped packets.
const DROPPED: &str = "Packets for the port that were dropped, by reason.";

metrics! {
    /// Ticks of the time stamp counter by stage, over all streams of a thread. Measured turns are extrapolated to all
    /// turns. All turns are counted.
    pub struct Stages {
        /// Finding completed copies, and showing them to guests.
        pub collect: u64 = counter(Ticks) "telpher_switch_stage_ticks_total" by stage ["collect"] => TICKS,
        /// Taking packets from guests.
        pub take: u64 = counter(Ticks) "telpher_switch_stage_ticks_total" by stage ["take"] => TICKS,
        /// Processing packets according to the mode.
        pub work: u64 = counter(Ticks) "telpher_switch_stage_ticks_total" by stage ["work"] => TICKS,
        /// Starting to send packets to guests.
        pub submit: u64 = counter(Ticks) "telpher_switch_stage_ticks_total" by stage ["submit"] => TICKS,
        /// Turns in which nothing moved.
        pub waiting: u64 = counter(Ticks) "telpher_switch_stage_ticks_total" by stage ["waiting"] => TICKS,
        /// Number of turns in which nothing moved.
        pub idle_turns: u64 = counter "telpher_switch_idle_turns_total",
        /// Number of turns in which packets moved.
        pub busy_turns: u64 = counter "telpher_switch_busy_turns_total",
    }
}

/// The help of ticks by stage.
const TICKS: &str = "Ticks of the time stamp counter that the forwarding threads spent, by stage.";

/// The counts of one thread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// The counts by port.
    pub ports: Vec<PortCounts>,
    /// The thread's cycles by stage.
    pub stages: Stages,
}

impl Counts {
    /// Returns the place where a thread publishes its counts of `ports` ports. Readers see the counts of one moment:
    /// they compare packets that were sent with those submitted.
    #[must_use]
    pub fn published(ports: usize) -> (Publisher, Arc<Published>) {
        Published::new(ports * PortCounts::WORDS + Stages::WORDS)
    }

    pub(crate) fn publish(&self, publisher: &mut Publisher) {
        publisher.publish(|put| {
            self.ports.iter().for_each(|port| port.each(put));
            self.stages.each(put);
        });
    }

    pub(crate) fn read(published: &Published, ports: usize) -> Counts {
        published.read(|next| Counts {
            ports: (0..ports).map(|_| PortCounts::build(next)).collect(),
            stages: Stages::build(next),
        })
    }
}

impl AddAssign<&Counts> for Counts {
    fn add_assign(&mut self, other: &Counts) {
        self.ports.resize(self.ports.len().max(other.ports.len()), PortCounts::default());
        self.ports.iter_mut().zip(&other.ports).for_each(|(mine, more)| *mine += *more);
        self.stages += other.stages;
    }
}

impl Sub for &Counts {
    type Output = Counts;

    /// Returns the difference to earlier counts.
    fn sub(self, earlier: &Counts) -> Counts {
        let before = |index: usize| earlier.ports.get(index).copied().unwrap_or_default();
        let ports = self.ports.iter().enumerate().map(|(index, port)| *port - before(index)).collect();
        Counts { ports, stages: self.stages - earlier.stages }
    }
}

metrics! {
    /// The counters of one port, over all forwarding threads.
    pub struct PortStats {
        /// The counts of the forwarding threads.
        pub counts: PortCounts = set,
        /// Packets for the port whose sending started and is known to have failed.
        pub refused: u64 = counter "telpher_switch_refused_packets_total",
        /// Packets in the capture's file.
        pub captured: u64 = counter "telpher_switch_captured_packets_total",
        /// Packets left out of the capture because its writer was behind or could not write.
        pub not_captured: u64 = counter "telpher_switch_uncaptured_packets_total",
        /// Whether a receiver takes packets from the port.
        pub connected: bool = gauge "telpher_switch_connected",
    }
}

impl PortStats {
    /// Returns the packets in flight to the port. After the switch has stopped, these were in flight when their guest
    /// disconnected or the switch stopped: whether they arrived is unknown.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.counts.submitted.saturating_sub(self.counts.sent + self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(n: u64) -> Counts {
        let port = PortCounts { received: n, sent: 2 * n, no_receiver: 3 * n, ..PortCounts::default() };
        Counts { ports: vec![port], stages: Stages { take: n, ..Stages::default() } }
    }

    #[test]
    fn counts_of_threads_add_up_and_subtract() {
        let mut sum = Counts::default();
        sum += &counts(2);
        sum += &counts(5);
        assert_eq!(sum, counts(7));
        assert_eq!(&sum - &counts(3), counts(4));
        assert_eq!(&sum - &Counts::default(), counts(7));
    }

    #[test]
    fn published_counts_are_read_as_they_were() {
        let (mut publisher, published) = Counts::published(2);
        assert_eq!(Counts::read(&published, 2), Counts { ports: vec![PortCounts::default(); 2], ..Counts::default() });
        let mut two = counts(3);
        two.ports.push(PortCounts { announced: 8, ..PortCounts::default() });
        two.publish(&mut publisher);
        assert_eq!(Counts::read(&published, 2), two);
    }
}
