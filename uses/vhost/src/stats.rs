//! A virtqueue's counters, and the reasons for dropped packets.

use crate::ring::Dropped;
use std::fmt;

/// Why a packet was dropped. Every drop is counted; no packet is lost silently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Drop {
    /// The guest's chain could not be followed.
    Chain(Dropped),
    /// The guest's chain is shorter than the net header (CVE-2022-2132, CVE-2026-86566).
    Runt,
    /// The guest's packet is longer than the pool's buffers.
    Long,
    /// The guest does not merge buffers, and its buffer is too short for the packet.
    Short,
    /// It was in flight when its ring stopped, and its DMA queue did not complete it.
    Silent,
}

impl Drop {
    /// All reasons, in their order.
    pub const ALL: [Drop; 11] = {
        let chains = Dropped::ALL;
        let mut all = [Drop::Runt; 11];
        let mut at = 0;
        while at < chains.len() {
            all[at] = Drop::Chain(chains[at]);
            at += 1;
        }
        all[8] = Drop::Long;
        all[9] = Drop::Short;
        all[10] = Drop::Silent;
        all
    };

    fn index(self) -> usize {
        match self {
            Drop::Chain(reason) => reason as usize,
            Drop::Runt => 7,
            Drop::Long => 8,
            Drop::Short => 9,
            Drop::Silent => 10,
        }
    }
}

impl fmt::Display for Drop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drop::Chain(reason) => reason.fmt(f),
            Drop::Runt => f.write_str("a chain is shorter than the header"),
            Drop::Long => f.write_str("a packet is longer than the pool's buffers"),
            Drop::Short => f.write_str("a packet does not fit the guest's buffer"),
            Drop::Silent => f.write_str("a packet's DMA queue did not answer"),
        }
    }
}

/// The counters of one virtqueue since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Packets that got through.
    pub packets: u64,
    /// Their bytes, without headers.
    pub bytes: u64,
    /// Packets whose copies were handed to a DMA queue.
    pub by_lane: u64,
    /// Their bytes.
    pub bytes_by_lane: u64,
    /// How often the driver was called.
    pub calls: u64,
    /// The time that copies cost the polling thread.
    pub clocked: CopyTiming,
    drops: [u64; 11],
}

/// The time that copies cost the polling thread, in ticks of its time stamp counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyTiming {
    /// Packets copied by the CPU whose copies were timed: one in some dozens.
    pub packets: u64,
    /// The number of measurements for them; each reads the counter twice.
    pub times: u64,
    /// The ticks that they took, including those two reads.
    pub ticks: u64,
    /// The ticks for handing copies to DMA queues and polling for completed ones. With a modelled device that runs
    /// inline, they include the copies themselves.
    pub lane_ticks: u64,
}

impl std::ops::Add for CopyTiming {
    type Output = CopyTiming;

    fn add(self, other: CopyTiming) -> CopyTiming {
        CopyTiming {
            packets: self.packets + other.packets,
            times: self.times + other.times,
            ticks: self.ticks + other.ticks,
            lane_ticks: self.lane_ticks + other.lane_ticks,
        }
    }
}

impl Stats {
    /// The number of packets, or chains, dropped for this reason.
    #[must_use]
    pub fn drops(&self, reason: Drop) -> u64 {
        self.drops[reason.index()]
    }

    /// The number of packets, or chains, dropped for any reason.
    #[must_use]
    pub fn all_drops(&self) -> u64 {
        self.drops.iter().sum()
    }

    pub(crate) fn drop_one(&mut self, reason: Drop) {
        self.drop_some(reason, 1);
    }

    pub(crate) fn drop_some(&mut self, reason: Drop, count: u64) {
        self.drops[reason.index()] += count;
    }
}

impl std::ops::Add for Stats {
    type Output = Stats;

    fn add(self, other: Stats) -> Stats {
        let mut drops = self.drops;
        drops.iter_mut().zip(other.drops).for_each(|(drops, more)| *drops += more);
        Stats {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            by_lane: self.by_lane + other.by_lane,
            bytes_by_lane: self.bytes_by_lane + other.bytes_by_lane,
            calls: self.calls + other.calls,
            clocked: self.clocked + other.clocked,
            drops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_reason_is_counted_separately() {
        let mut stats = Stats::default();
        for (count, reason) in Drop::ALL.into_iter().enumerate() {
            (0..=count).for_each(|_| stats.drop_one(reason));
        }
        for (count, reason) in Drop::ALL.into_iter().enumerate() {
            assert_eq!(stats.drops(reason), count as u64 + 1, "{reason}");
        }
        assert_eq!(stats.all_drops(), 66);
    }
}
