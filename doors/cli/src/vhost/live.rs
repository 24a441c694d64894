//! Live statistics of a running switch, every second: updated in place on a terminal, otherwise as new lines.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use telpher_report::switch::Rate;
use telpher_report::units::three;
use telpher_switch::{Mode, Snapshot, StageCycles};

/// The printer of live statistics.
#[derive(Debug)]
pub(super) struct Live {
    speaks: bool,
    terminal: bool,
    /// Number of lines of the last output, which the next one replaces on a terminal.
    before: usize,
}

impl Live {
    pub(super) fn new(speaks: bool) -> Live {
        Live { speaks, terminal: io::stderr().is_terminal(), before: 0 }
    }

    /// Starts the statistics.
    pub(super) fn begin(&mut self, ports: &[&str], mode: Mode, rule: &str) {
        let mut text = String::new();
        for (index, port) in ports.iter().enumerate() {
            let _ = writeln!(text, "port {index}: {port}");
        }
        let _ = writeln!(text, "{}; {rule}; Ctrl-C ends", mode.words());
        self.say(&text);
    }

    /// Prints the changes since the last snapshot.
    pub(super) fn news(&mut self, begun: &Snapshot, last: &Snapshot, now: &Snapshot) {
        let events: String = now.events_since(last).iter().map(|event| format!("{event}\n")).collect();
        let mut text = String::new();
        let seconds = (now.at - begun.at).as_secs_f64();
        let rates = rates(last, now);
        for (index, port) in now.ports.iter().enumerate() {
            let rate = &rates[index];
            let state = if port.up { "up" } else { "--" };
            let _ = write!(text, "{seconds:>6.0} s  port {index} {state}  rx {}  tx {}", rate[0], rate[1]);
            let dropped: u64 = now.drops(index).iter().map(|(_, count)| count).sum();
            let before: u64 = last.drops(index).iter().map(|(_, count)| count).sum();
            if dropped > before {
                let was = last.drops(index);
                let of = |reason: &str| was.iter().find(|(name, _)| name == reason).map_or(0, |(_, count)| *count);
                let news = now.drops(index).into_iter().map(|(reason, count)| (count - of(&reason), reason));
                let news: Vec<String> =
                    news.filter(|(count, _)| *count > 0).map(|(count, reason)| format!("{count} {reason}")).collect();
                let _ = write!(text, "  dropped {}", news.join(", "));
            }
            if let Some((_, _, left_out)) = port.capture
                && left_out > 0
            {
                let _ = write!(text, "  capture left out {left_out}");
            }
            text.push('\n');
        }
        let since = &now.counts - &last.counts;
        let packets: u64 = since.ports.iter().map(|port| port.received.max(port.sent)).max().unwrap_or(0);
        let _ = writeln!(text, "{:>8}  {}", "", words(&now.cycles(last), packets));
        self.replace(&events, &text);
    }

    fn say(&mut self, text: &str) {
        if self.speaks {
            // Standard error is closed: print nothing.
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
    }

    fn replace(&mut self, events: &str, text: &str) {
        let up = if self.terminal && self.before > 0 { format!("\x1b[{}A\x1b[J", self.before) } else { String::new() };
        self.before = text.lines().count();
        self.say(&format!("{up}{events}{text}"));
    }
}

/// Formats the rates of each port, in both directions.
fn rates(last: &Snapshot, now: &Snapshot) -> Vec<[String; 2]> {
    let seconds = (now.at - last.at).as_secs_f64();
    let since = &now.counts - &last.counts;
    let rate = |packets, bytes| {
        let rate = Rate::of(packets, bytes, seconds);
        format!("{:>5} Mpps {:>5} Gb/s", three(rate.mpps), three(rate.gbps))
    };
    let ports = since.ports.iter();
    ports.map(|port| [rate(port.received, port.received_bytes), rate(port.sent, port.sent_bytes)]).collect()
}

/// Formats the cycles of each stage for each packet.
fn words(cycles: &StageCycles, packets: u64) -> String {
    let waiting = if cycles.all() > 0 { 100.0 * cycles.waiting as f64 / cycles.all() as f64 } else { 0.0 };
    let Some(per) = std::num::NonZero::new(packets) else { return format!("waiting {waiting:.0} % of the time") };
    let parts =
        [("ring work", cycles.ring_work), ("copies", cycles.copies), ("device", cycles.device), ("mode", cycles.mode)];
    let parts: Vec<String> = parts.iter().map(|(name, part)| format!("{name} {}", *part / per)).collect();
    format!("cycles per packet: {}; waiting {waiting:.0} % of the time", parts.join(", "))
}
