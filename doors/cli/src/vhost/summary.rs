//! The summary of a switch at its end: a table, JSON, or CSV with a line for each port.

use super::lanes::Lanes;
use super::live::Rate;
use crate::args::{Format, Vhost};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use telpher_report::csv;
use telpher_report::table::{Align, Table};
use telpher_report::units::three;
use telpher_switch::{Full, Mode, PortSnapshot, Settings, Snapshot, StageCycles};

/// The summary.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    forward: Mode,
    full: Full,
    /// How long packets wait for room, with --retry.
    retry_for_seconds: Option<f64>,
    burst: usize,
    device: String,
    /// Which packets the device copies.
    rule: String,
    threads: usize,
    seconds: f64,
    ports: Vec<PortSummary>,
    stages: StageSummary,
    lanes: Vec<LaneSummary>,
}

/// One port. Over all ports, received and generated packets equal those sent, sunk, dropped, held and in flight.
#[derive(Debug, Serialize)]
struct PortSummary {
    name: String,
    received: Traffic,
    sent: Traffic,
    /// Packets generated for it.
    made: u64,
    /// Packets received from it and discarded by the mode.
    sunk: u64,
    /// Dropped packets for it, and dropped chains of its guest, by reason.
    dropped: BTreeMap<String, u64>,
    /// Packets for it that waited for room at the end.
    held: u64,
    /// Packets in flight to it when its guest disconnected, or at the end: whether they arrived is unknown.
    unsettled: u64,
    /// Packets copied by a device, in both directions.
    by_device: Traffic,
    /// Times that its guest had moved here and was announced on the other side.
    announced: u64,
    /// Times its driver was woken.
    calls: u64,
    /// Frontends that came.
    sessions: u64,
    /// Refused requests of frontends, whether the refusal was a reply or the end of the session.
    refused_requests: u64,
    /// Why the last request was refused, or why the last session ended.
    last_remark: Option<String>,
    /// Why rings broke last, by ring.
    broken_rings: BTreeMap<usize, String>,
    capture: Option<CaptureSummary>,
}

#[derive(Debug, Serialize)]
struct Traffic {
    packets: u64,
    bytes: u64,
    #[serde(flatten)]
    rate: Rate,
}

#[derive(Debug, Serialize)]
struct CaptureSummary {
    file: String,
    packets: u64,
    left_out: u64,
}

/// The threads' time by stage, in cycles of the time stamp counter.
#[derive(Debug, Serialize)]
struct StageSummary {
    /// The cycles by stage.
    #[serde(flatten)]
    cycles: StageCycles,
    collect: u64,
    take: u64,
    work: u64,
    submit: u64,
    idle_turns: u64,
    busy_turns: u64,
    /// StageCycles per nanosecond.
    ticks_per_ns: f64,
}

#[derive(Debug, Serialize)]
struct LaneSummary {
    name: String,
    copies: u64,
    bytes: u64,
    /// Copies that the CPU redid, because the device did not finish them.
    redone: u64,
    /// How often a thread found the queue in use by another thread.
    contended: u64,
}

impl Summary {
    pub(crate) fn new(args: &Vhost, settings: Settings, lanes: &Lanes, begun: &Snapshot, end: &Snapshot) -> Summary {
        let seconds = (end.at - begun.at).as_secs_f64();
        let traffic = |packets, bytes| Traffic { packets, bytes, rate: Rate::of(packets, bytes, seconds) };
        let port = |(index, port): (usize, &PortSnapshot)| {
            let counts = &end.counts.ports[index];
            let rings = port.rings.unwrap_or_default();
            let socket = port.socket.clone().unwrap_or_default();
            let capture = port.capture.clone();
            PortSummary {
                name: port.name.clone(),
                received: traffic(counts.received, counts.received_bytes),
                sent: traffic(counts.sent, counts.sent_bytes),
                made: counts.generated,
                sunk: counts.discarded,
                dropped: end.drops(index).into_iter().collect(),
                held: counts.held,
                unsettled: counts.submitted.saturating_sub(counts.sent + port.refused),
                by_device: traffic(rings.by_lane, rings.bytes_by_lane),
                announced: counts.announced,
                calls: rings.calls,
                sessions: socket.sessions,
                refused_requests: socket.refused,
                last_remark: socket.last,
                broken_rings: port.broken.iter().map(|(ring, why)| (*ring, why.to_string())).collect(),
                capture: capture.map(|(file, packets, left_out)| CaptureSummary { file, packets, left_out }),
            }
        };
        let of = &end.counts.stages;
        let nanos = (end.at - begun.at).as_nanos() as f64;
        let ticks_per_ns = if nanos > 0.0 { end.ticks.wrapping_sub(begun.ticks) as f64 / nanos } else { 0.0 };
        let lane = |lane: &std::sync::Arc<telpher_vhost::DmaQueue>| {
            let stats = lane.stats();
            LaneSummary {
                name: lane.name().to_owned(),
                copies: stats.copies,
                bytes: stats.bytes,
                redone: stats.redone,
                contended: stats.contended,
            }
        };
        Summary {
            forward: settings.mode,
            full: settings.full,
            retry_for_seconds: (settings.full == Full::Retry).then_some(settings.retry_for.as_secs_f64()),
            burst: settings.burst,
            device: args.device.clone(),
            rule: lanes.rule(),
            threads: args.cpus.len().max(1),
            seconds,
            ports: end.ports.iter().enumerate().map(port).collect(),
            stages: StageSummary {
                cycles: end.cycles(begun),
                collect: of.collect,
                take: of.take,
                work: of.work,
                submit: of.submit,
                idle_turns: of.idle_turns,
                busy_turns: of.busy_turns,
                ticks_per_ns,
            },
            lanes: lanes.all().iter().map(lane).collect(),
        }
    }

    /// Returns the summary as text, JSON or CSV.
    pub(crate) fn text(&self, format: Format) -> String {
        match format {
            Format::Json => serde_json::to_string_pretty(self).expect("plain data with string keys"),
            Format::Table => self.table(),
            Format::Csv => csv::rows(&self.ports),
        }
    }

    fn table(&self) -> String {
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
        let mut text = format!("{} for {} s; {}\n\n{table}", self.forward.words(), three(self.seconds), self.rule);
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
        for lane in &self.lanes {
            let LaneSummary { name, copies, bytes, redone, contended } = lane;
            let _ = writeln!(
                text,
                "{name}: {copies} copies, {bytes} bytes, {redone} redone by the CPU, {contended} times contended"
            );
        }
        text
    }
}
