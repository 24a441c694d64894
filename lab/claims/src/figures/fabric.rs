//! Kuper et al., Figure 17 and appendix A: messages between processes through shared memory, and what they gain a
//! training step.

use super::sweep::{axis, lines, measured, simulated};
use super::{At, Mark, Panel, Result, Scale, Series, Shape, Sheet, numbers, place_mark};
use crate::experiments::fabric::System;
use crate::lab::Lab;
use telpher_sim::MessagePattern;

pub(super) const SHEETS: &[Sheet] = &[Sheet {
    id: "fabric-17",
    source: "Kuper et al., ASPLOS 2024, Figure 17 and appendix A",
    title: "Messages and sums of processes of one machine, by libfabric's provider and by telpher's",
    how: "SAR is libfabric's shm provider where a process may not read another's memory: segments of 32 KiB, at \
          most 64 and at most 256 shared by all peers; sender and receiver take turns. By devices: four in all, \
          a shared queue each, one descriptor a segment, all queues of a socket in turn. Telpher's provider runs \
          its own code (telpher-fabric: endpoints, rings, slots of 16 KiB, order of pieces); its processes have \
          one device each, as the provider opens one queue. A factor over SAR proves nothing about devices by \
          itself, because SAR's two copies never overlap: the lines \"CPU, pipelined\" show what overlapping \
          them gains without a device. \"Streaming\" are non-temporal stores, which the provider uses by default \
          (ASSUMED: one core has its 16 fill buffers in flight, 8.2 GB/s; within a socket of this machine plain \
          stores are faster, since the other core finds the lines in the shared cache). \"What if\" is not in \
          the product: a process submits to all devices of its socket in turn, and they write to the cache. (a), \
          (b) Two processes of one socket, buffers that stay cached. (c) Ranks over both sockets, two devices \
          each, 4 MiB. (d) A bucket of 25 MiB after computing, which has taken the caches; nothing overlaps. The \
          time of computing was not published, and decides the gain of a step: K-088 and K-089 are \
          underdetermined, so (e) and (f) show the range over the share of SAR's sums in a step. From the \
          paper's own numbers this share is 5.6 % with 2 ranks (K-086, K-088) and 11.6 % with 8 (K-087, K-089). \
          (g) Two processes of one socket send each other a message and compute for twice the time of that: the part \
          of the exchange's time that costs nothing, with telpher's provider. A helper thread moves messages on \
          while its process computes, on a core of its own; or messages move in the process's own calls only, \
          which are before and after computing: a send announces its message, and copies begin with the next call. \
          That the helper thread hides all follows from three assumptions: its core is free, it is awake when a \
          message comes, and computing touches no memory.",
    claims: &["K-080", "K-081", "K-082", "K-083", "K-084", "K-085", "K-086", "K-087", "K-088", "K-089"],
    draw: figure_17,
}];

/// Lengths of messages: 4 KiB to 4 MiB.
const LENGTHS: [u32; 8] = [4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Ranks of the sums.
const RANKS: [u32; 3] = [2, 4, 8];
/// Bytes of a sum in (c).
const SUM: u64 = 4 << 20;
/// Bytes of a bucket of gradients. Source: PyTorch's default.
const BUCKET: u64 = 25 << 20;
/// Shares of a step, in per cent, that SAR's sums by cores take.
const SHARES: [f64; 8] = [1.0, 2.0, 4.0, 5.6, 8.0, 11.6, 16.0, 24.0];

/// Marks a claim's number as a horizontal line.
fn level(claim: &'static str) -> Mark {
    Mark { claim, at: At::Level(numbers(claim).0) }
}

/// The gain over SAR by cores, by the length of a message.
fn messages(lab: &Lab, title: &str, talk: MessagePattern, marks: Vec<Mark>) -> Result<Panel> {
    let gain = |system: System, bytes: u32| {
        let time = |system: System| system.message(lab, talk, bytes.into());
        Ok(time(System::Segments)? / time(system)?)
    };
    let of = |(name, system): (&str, System)| measured(name, LENGTHS, |bytes| gain(system, bytes));
    let series = System::ALL[1..].iter().copied().map(of).collect::<Result<Vec<Series>>>()?;
    let x = axis("message", "B", Scale::Binary);
    Ok(lines(title, x, axis("speed-up over SAR by cores", "", Scale::Linear), series, marks))
}

/// The gain over SAR by cores, by the number of ranks.
fn sums(lab: &Lab, title: &str, ranks: &[u32], bytes: u64, is_cold: bool, marks: Vec<Mark>) -> Result<Panel> {
    let of = |(name, system): (&str, System)| {
        let gain = |ranks| {
            let time = |system: System| system.sum(lab, ranks, bytes, is_cold);
            Ok(time(System::Segments)? / time(system)?)
        };
        let gains = ranks.iter().copied().map(gain).collect::<Result<Vec<_>>>()?;
        Ok(simulated(name, (0u8..).map(f64::from).zip(gains)))
    };
    Ok(Panel {
        title: title.into(),
        x: axis("ranks", "", Scale::Names(ranks.iter().map(u32::to_string).collect())),
        y: axis("speed-up over SAR by cores", "", Scale::Linear),
        shape: Shape::Bars,
        series: System::ALL[1..].iter().copied().map(of).collect::<Result<Vec<Series>>>()?,
        marks,
    })
}

/// The gain of a training step, by the share that SAR's sums take of it.
fn steps(lab: &Lab, title: &str, ranks: u32, marks: Vec<Mark>) -> Result<Panel> {
    let slow = System::Segments.sum(lab, ranks, BUCKET, true)?;
    let of = |(name, system): (&str, System)| {
        let gain = slow / system.sum(lab, ranks, BUCKET, true)?;
        let step = |share: f64| Ok((1.0 / (1.0 - share / 100.0 * (1.0 - 1.0 / gain)) - 1.0) * 100.0);
        measured(name, SHARES, step)
    };
    let series = System::ALL[1..].iter().copied().map(of).collect::<Result<Vec<Series>>>()?;
    let x = axis("share of SAR's sums in a step", "%", Scale::Linear);
    Ok(lines(title, x, axis("gain of a step", "%", Scale::Linear), series, marks))
}

/// The part of an exchange that computing hides, by the length of the messages.
fn hidden(lab: &Lab) -> Result<Panel> {
    let series = [
        ("cores, helper thread", System::Plain, true),
        ("devices, helper thread", System::Device, true),
        ("cores, own calls", System::Plain, false),
        ("devices, own calls", System::Device, false),
    ];
    let of = |(name, system, helper): (&str, System, bool)| {
        measured(name, [64 << 10, 256 << 10, 1 << 20, 4 << 20], |bytes: u32| system.hidden(lab, bytes.into(), helper))
    };
    let series = series.into_iter().map(of).collect::<Result<Vec<Series>>>()?;
    let y = axis("part that is hidden", "%", Scale::Linear);
    Ok(lines("(g) exchanges while both compute", axis("message", "B", Scale::Binary), y, series, Vec::new()))
}

fn figure_17(lab: &Lab) -> Result<Vec<Panel>> {
    let pair = |claims: [&'static str; 2]| vec![place_mark(claims[0]), level(claims[1])];
    Ok(vec![
        messages(lab, "(a) ping-pong", MessagePattern::PingPong, pair(["K-080", "K-081"]))?,
        messages(lab, "(b) remote writes", MessagePattern::Stream, pair(["K-080", "K-082"]))?,
        sums(lab, "(c) AllReduce, 4 MiB", &RANKS, SUM, false, ["K-083", "K-084", "K-085"].map(level).into())?,
        sums(lab, "(d) AllReduce of BERT, 25 MiB", &[2, 8], BUCKET, true, ["K-086", "K-087"].map(level).into())?,
        steps(lab, "(e) a step of BERT, 2 ranks", 2, vec![level("K-088")])?,
        steps(lab, "(f) a step of BERT, 8 ranks", 8, vec![level("K-089")])?,
        hidden(lab)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<'a>(panels: &'a [Panel], title: &str, name: &str) -> Vec<f64> {
        let panel: &'a Panel = panels.iter().find(|panel| panel.title.starts_with(title)).unwrap();
        let series = panel.series.iter().find(|series| series.name == name).unwrap();
        series.points.iter().map(|(_, value)| *value).collect()
    }

    /// The shape of Figure 17 as the text describes it, and what the comparison with telpher's provider shows.
    #[test]
    fn overlapping_copies_gain_without_a_device_and_devices_gain_more_for_long_messages() {
        let panels = figure_17(&Lab::default()).unwrap();
        let [sar, streaming, plain, device, all] = std::array::from_fn(|index| System::ALL[index + 1].0);
        for title in ["(a)", "(b)"] {
            let of = |name| values(&panels, title, name);
            let last = LENGTHS.len() - 1;
            // A descriptor costs more than a copy of 4 KiB; the endpoint leaves such messages to the core.
            assert!(of(sar)[0] < 0.5 && of(device)[0] > of(sar)[0], "{title}: {:?}, {:?}", of(sar), of(device));
            // Without a device: up to twice as fast, since the copies overlap.
            assert!((1.6..2.1).contains(&of(plain)[last]), "{title}: {:?}", of(plain));
            assert!(of(streaming)[last] < of(plain)[last], "{title}: the socket's cache is shared");
            assert!(of(device)[last] > of(plain)[last], "{title}: {:?}, {:?}", of(device), of(plain));
            // Two devices of four.
            assert!(of(sar)[last] > of(device)[last] && of(all)[last] > of(device)[last], "{title}");
        }
        for name in ["cores, helper thread", "devices, helper thread"] {
            let parts = values(&panels, "(g)", name);
            assert!(parts.iter().all(|&part| part > 80.0), "{name}: {parts:?}");
        }
        for title in ["(c)", "(d)"] {
            for name in [sar, all] {
                let gains = values(&panels, title, name);
                assert!(gains.is_sorted_by(|a, b| a > b), "{title}, {name}: ranks add cores, no devices: {gains:?}");
            }
        }
        for (title, share, published) in [("(e)", 3, "K-086"), ("(f)", 5, "K-087")] {
            let gains = values(&panels, title, sar);
            assert!(gains.is_sorted(), "{title}: a larger share gains more: {gains:?}");
            // Amdahl's law for the published gain of the sums, at the share that follows from the paper.
            let step = |gain: f64| (1.0 / (1.0 - SHARES[share] / 100.0 * (1.0 - 1.0 / gain)) - 1.0) * 100.0;
            let claim = if title == "(e)" { "K-088" } else { "K-089" };
            assert!((step(numbers(published).0) - numbers(claim).0).abs() < 0.1, "{title}");
        }
    }
}
