//! The summary of a packet switch at its end, as data: a table, or CSV with a line for each port.

use crate::csv;
use crate::table::{Align, Table};
use crate::units::three;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Bytes of a frame on the wire in addition to its own: preamble 8, frame check sequence 4, gap 12. Source: IEEE 802.3
/// §3, §4.4.2.
const WIRE_BYTES: f64 = 24.0;

/// The summary of `telpher vhost`.
#[derive(Clone, Debug, Serialize)]
pub struct SwitchSummary {
    /// The mode: `io`, `mac`, `rxonly`, `txonly` or `flowgen`.
    pub forward: String,
    /// The mode in words.
    #[serde(skip)]
    pub forward_words: &'static str,
    /// What happens to packets without room: `drop` or `retry`.
    pub full: &'static str,
    /// How long packets wait for room, with --retry.
    pub retry_for_seconds: Option<f64>,
    /// Packets that are taken at once.
    pub burst: usize,
    /// The device, as the user named it.
    pub device: String,
    /// Which packets the device copies.
    pub rule: String,
    /// Forwarding threads.
    pub threads: usize,
    /// How long it ran.
    pub seconds: f64,
    /// The ports.
    pub ports: Vec<PortSummary>,
    /// The threads' time.
    pub stages: StageSummary,
    /// The device's queues.
    pub dma_queues: Vec<QueueSummary>,
}

/// One port. Over all ports, received and generated packets equal those sent, discarded, dropped, held and in flight.
#[derive(Clone, Debug, Serialize)]
pub struct PortSummary {
    /// The socket's path, or the interface's name.
    pub name: String,
    /// Received from it.
    pub received: Traffic,
    /// Sent to it.
    pub sent: Traffic,
    /// Packets generated for it.
    pub generated: u64,
    /// Packets received from it and discarded by the mode.
    pub discarded: u64,
    /// Dropped packets for it, and dropped chains of its guest, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Packets for it that waited for room at the end.
    pub held: u64,
    /// Packets in flight to it when its guest disconnected, or at the end: whether they arrived is unknown.
    pub unsettled: u64,
    /// Packets copied by a device, in both directions.
    pub by_device: Traffic,
    /// Times that its guest had moved here and was announced on the other side.
    pub announced: u64,
    /// Times its driver was woken.
    pub calls: u64,
    /// Frontends that came.
    pub sessions: u64,
    /// Refused requests of frontends, whether the refusal was a reply or the end of the session.
    pub refused_requests: u64,
    /// Why the last request was refused, or why the last session ended.
    pub last_remark: Option<String>,
    /// Why rings broke last, by ring.
    pub broken_rings: BTreeMap<usize, String>,
    /// Its capture.
    pub capture: Option<CaptureSummary>,
}

/// Packets in one direction.
#[derive(Clone, Debug, Serialize)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Both, per second.
    #[serde(flatten)]
    pub rate: Rate,
}

/// Packets and bits per second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Rate {
    /// Millions of packets per second.
    pub mpps: f64,
    /// 10^9 bits of the frames themselves, without frame check sequence.
    pub gbps: f64,
    /// 10^9 bits that they would take on an Ethernet wire.
    pub wire_gbps: f64,
}

impl Rate {
    /// Returns the rates of packets and their bytes in some seconds.
    #[must_use]
    pub fn of(packets: u64, bytes: u64, seconds: f64) -> Rate {
        let per_second = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let wire = bytes as f64 + WIRE_BYTES * packets as f64;
        Rate {
            mpps: per_second(packets as f64 / 1e6),
            gbps: per_second(bytes as f64 * 8.0 / 1e9),
            wire_gbps: per_second(wire * 8.0 / 1e9),
        }
    }
}

/// The capture of a port.
#[derive(Clone, Debug, Serialize)]
pub struct CaptureSummary {
    /// Its file.
    pub file: String,
    /// Packets in the file.
    pub packets: u64,
    /// Packets that the file lacks, because the writer was behind.
    pub left_out: u64,
}

/// The cycles of a period by stage, over all threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct StageCycles {
    /// Finding and returning buffers.
    pub ring_work: u64,
    /// Copies by the CPU.
    pub copies: u64,
    /// Submitting copies to devices and finding completed ones.
    pub device: u64,
    /// Processing by the mode.
    pub mode: u64,
    /// Turns in which nothing moved.
    pub waiting: u64,
}

/// The threads' time by stage, in cycles of the time stamp counter.
#[derive(Clone, Debug, Serialize)]
pub struct StageSummary {
    /// The cycles by stage.
    #[serde(flatten)]
    pub cycles: StageCycles,
    /// Finding completed copies and showing them to guests.
    pub collect: u64,
    /// Taking packets from guests.
    pub take: u64,
    /// Processing packets according to the mode.
    pub work: u64,
    /// Starting to send packets to guests.
    pub submit: u64,
    /// Turns in which nothing moved.
    pub idle_turns: u64,
    /// Turns in which packets moved.
    pub busy_turns: u64,
    /// Cycles per nanosecond.
    pub ticks_per_ns: f64,
}

/// A queue of the device.
#[derive(Clone, Debug, Serialize)]
pub struct QueueSummary {
    /// Its name.
    pub name: String,
    /// Its copies.
    pub copies: u64,
    /// Bytes of the copies.
    pub bytes: u64,
    /// Copies that the CPU redid, because the device did not finish them.
    pub redone: u64,
    /// How often a thread found the queue in use by another thread.
    pub contended: u64,
}

impl SwitchSummary {
    /// Returns one line for each port.
    #[must_use]
    pub fn csv(&self) -> String {
        csv::rows(&self.ports)
    }

    /// Returns the summary as text.
    #[must_use]
    pub fn text(&self) -> String {
        let columns = [
            ("port", Align::Left),
            ("received", Align::Right),
            ("Mpps", Align::Right),
            ("Gb/s", Align::Right),
            ("sent", Align::Right),
            ("Mpps", Align::Right),
            ("Gb/s", Align::Right),
            ("by device", Align::Right),
            ("dropped", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for (index, port) in self.ports.iter().enumerate() {
            let (received, sent) = (&port.received, &port.sent);
            let dropped: u64 = port.dropped.values().sum();
            table.row([
                format!("{index}  {}", port.name),
                received.packets.to_string(),
                three(received.rate.mpps),
                three(received.rate.gbps),
                sent.packets.to_string(),
                three(sent.rate.mpps),
                three(sent.rate.gbps),
                port.by_device.packets.to_string(),
                dropped.to_string(),
            ]);
        }
        let mut text = format!("{} for {} s; {}\n\n{table}", self.forward_words, three(self.seconds), self.rule);
        let StageSummary { cycles, ticks_per_ns, .. } = &self.stages;
        let packets = self.ports.iter().map(|port| port.received.packets.max(port.sent.packets)).max().unwrap_or(0);
        if packets > 0 {
            let of = |part: u64| three(part as f64 / packets as f64 / ticks_per_ns);
            let (ring, copies, device, mode) =
                (of(cycles.ring_work), of(cycles.copies), of(cycles.device), of(cycles.mode));
            let _ = writeln!(text, "ns per packet: ring work {ring}, copies {copies}, device {device}, mode {mode}");
        }
        for (index, port) in self.ports.iter().enumerate() {
            for (reason, count) in &port.dropped {
                let _ = writeln!(text, "port {index} dropped {count}: {reason}");
            }
            if port.unsettled > 0 {
                let _ = writeln!(
                    text,
                    "port {index}: {} packets were in flight when their guest disconnected",
                    port.unsettled
                );
            }
            if port.refused_requests > 0 {
                let _ =
                    writeln!(text, "port {index}: {} requests of its frontends were refused", port.refused_requests);
            }
            for (ring, why) in &port.broken_rings {
                let _ = writeln!(text, "port {index}: its ring {ring} broke: {why}");
            }
            if let Some(remark) = &port.last_remark {
                let _ = writeln!(text, "port {index}: {remark}");
            }
            if let Some(capture) = &port.capture {
                let CaptureSummary { file, packets, left_out } = capture;
                let _ = writeln!(text, "port {index}: {packets} packets in {file}, {left_out} left out");
            }
        }
        for dma_queue in &self.dma_queues {
            let QueueSummary { name, copies, bytes, redone, contended } = dma_queue;
            let _ = writeln!(
                text,
                "{name}: {copies} copies, {bytes} bytes, {redone} redone by the CPU, {contended} times contended"
            );
        }
        text
    }
}
