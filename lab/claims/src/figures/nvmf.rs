//! Kuper et al., Figures 20 and 21: a storage target over TCP with digests of its data.

use super::sweep::{axis, lines, measured};
use super::{Mark, Panel, Result, Scale, Shape, Sheet, place_mark};
use crate::experiments::storage::{ASSUMED, CORES, Digests, RANDOM, SEQUENTIAL, Setup, Sockets};
use crate::lab::Lab;

pub(super) const SHEETS: &[Sheet] = &[Sheet {
    id: "nvmf-21",
    source: "Kuper et al., ASPLOS 2024, Figures 20 and 21",
    title: "Reads of a storage target over TCP by its cores, with digests of the data by devices or by cores",
    how: "Telpher's own NVMe/TCP connections and digest engine (telpher-nvmf), one loop on each core, between two \
          simulated initiators and 16 simulated disks; 32 connections, 512 reads in flight. Digests by four devices \
          with a shared queue each: batches, polled, from 8 KiB on; the core computes what the channel cannot take. \
          Sends do not copy, as SPDK's, so a digest is the only pass over the data. The links carry 23.5 GB/s in all \
          (ASSUMED: two ports of 100 Gb/s). One constant is free: the core's time to send a reply, 2.6 µs. The six \
          cores of K-097 fixed it (2.5 to 2.7 µs give six cores both without digests and with the devices'); \
          everything else is then a prediction. A core computes a CRC at the rate at which it reads memory; without \
          overlap: it waits for memory, and then computes at 7.92 GB/s. (c) Number of cores that read 99 % of what 32 \
          cores read, with all costs of sockets halved and doubled, and with sends that copy, as those of telpher's \
          server do: 436 ns a KiB, measured over loopback. The contents of the paper's plots are not printed, only \
          the numbers of cores and the order of latencies.",
    claims: &["K-096", "K-097", "K-098", "K-099", "K-100", "K-102", "K-103", "K-104"],
    draw: figure_21,
}];

/// A number of the target for each number of cores, with one line for each way to compute digests.
fn by_cores(lab: &Lab, title: &str, bytes: u32, what: [&'static str; 3], marks: Vec<Mark>) -> Result<Panel> {
    let [measure, label, unit] = what;
    let of = |(name, digests)| {
        let setup = Setup { bytes, digests, sockets: ASSUMED };
        measured(name, CORES, |cores| setup.measure(lab, cores, measure))
    };
    let series = Digests::ALL.into_iter().map(of).collect::<Result<Vec<_>>>()?;
    Ok(lines(title, axis("cores", "", Scale::Linear), axis(label, unit, Scale::Linear), series, marks))
}

/// The columns of (c).
const SOCKETS: [(&str, Sockets); 4] = [
    ("half", Sockets::Assumed(0.5)),
    ("as assumed", ASSUMED),
    ("double", Sockets::Assumed(2.0)),
    ("copying", Sockets::Copying),
];

fn saturation(lab: &Lab, title: &str, bytes: u32) -> Result<Panel> {
    let of = |(name, digests)| {
        let cores = |column: u8| {
            let sockets = SOCKETS[usize::from(column)].1;
            Setup { bytes, digests, sockets }.saturating(lab)
        };
        measured(name, 0..4_u8, cores)
    };
    Ok(Panel {
        title: title.into(),
        x: axis("cost of sockets", "", Scale::Names(SOCKETS.map(|(name, _)| name.to_owned()).into())),
        y: axis("cores that saturate it", "", Scale::Linear),
        shape: Shape::Bars,
        series: Digests::ALL.into_iter().map(of).collect::<Result<Vec<_>>>()?,
        marks: Vec::new(),
    })
}

fn figure_21(lab: &Lab) -> Result<Vec<Panel>> {
    let (random, sequential) = ("16 KiB, random", "128 KiB, sequential");
    let reads = ["reads", "reads", "thousand/s"];
    let bytes = ["bytes read", "throughput", "GB/s"];
    let latency = ["mean latency", "mean latency", "µs"];
    let marks = |claims: [&'static str; 2]| claims.map(place_mark).into();
    Ok(vec![
        by_cores(lab, &format!("(a) {random}"), RANDOM, reads, marks(["K-097", "K-099"]))?,
        by_cores(lab, &format!("(a) {sequential}"), SEQUENTIAL, bytes, marks(["K-098", "K-100"]))?,
        by_cores(lab, &format!("(b) {random}"), RANDOM, latency, Vec::new())?,
        by_cores(lab, &format!("(b) {sequential}"), SEQUENTIAL, latency, Vec::new())?,
        saturation(lab, &format!("(c) {random}"), RANDOM)?,
        saturation(lab, &format!("(c) {sequential}"), SEQUENTIAL)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<'a>(panels: &'a [Panel], title: &str, name: &str) -> Vec<f64> {
        let panel: &'a Panel = panels.iter().find(|panel| panel.title == title).unwrap();
        let series = panel.series.iter().find(|series| series.name == name).unwrap();
        series.points.iter().map(|(_, value)| *value).collect()
    }

    /// The shape of Figure 21, as the text describes it, and what the sensitivity of the verdicts shows.
    #[test]
    fn digests_by_devices_need_as_many_cores_as_none_and_digests_by_cores_need_more() {
        let panels = figure_21(&Lab::default()).unwrap();
        for title in ["(a) 16 KiB, random", "(a) 128 KiB, sequential"] {
            let [none, device, core] = ["no digests", "by device", "by core"].map(|name| values(&panels, title, name));
            // A device costs a core a little; so much that a chart shows it would be a mistake of the model.
            assert!(none.iter().zip(&device).all(|(none, device)| device > &(0.85 * none)), "{none:?}, {device:?}");
            assert!(core[0] < 0.8 * device[0], "{device:?}, {core:?}");
            // The link is the limit of all of them.
            assert!((core[9] / none[9] - 1.0).abs() < 0.02, "{none:?}, {core:?}");
        }
        for title in ["(c) 16 KiB, random", "(c) 128 KiB, sequential"] {
            let cores = |name| values(&panels, title, name);
            let (none, device, core) = (cores("no digests"), cores("by device"), cores("by core"));
            let in_turn = cores("by core, without overlap");
            for column in 0..SOCKETS.len() {
                assert!(none[column] <= device[column] && device[column] <= none[column] + 1.0, "{none:?}, {device:?}");
                assert!(device[column] < core[column] && core[column] < in_turn[column], "{core:?}, {in_turn:?}");
            }
            assert!(none[0] < none[1] && none[1] < none[2], "a core that does more for sockets reads less: {none:?}");
            assert!(none[3] > none[1], "sends that copy need more cores: {none:?}");
        }
    }
}
