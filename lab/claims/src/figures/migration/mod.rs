//! The kernel moves pages: Baik et al.'s slides, whose plots have no numbers.

pub(super) mod program;

use super::sweep::{axis, lines, measured, simulated};
use super::{Panel, Result, Scale, Shape, Sheet, level_mark, place_mark};
use crate::experiments::migration::{KERNEL, Sharing, of, shared};
use crate::lab::Lab;
use telpher_sim::{App, Migration, MigrationOffload, Picos, Promotion, QueueId};

pub(super) const SHEETS: &[Sheet] = &[
    Sheet {
        id: "migration-breakdown",
        source: "Baik et al., Accelerating Page Migrations with Intel DSA, offloading costs slide",
        title: "Parts of the time of copying pages, by the core or by the device",
        how: "The kernel copies pages of 4 KiB that are migrated together: its core page by page, with the same time \
              for each, or a device as one batch. Before the submission the kernel prepares scatter lists of both \
              sides, their mapping to I/O addresses, and descriptors; the division of that time is not published. The \
              fixed cost of using the device is set from the published break-even.",
        claims: &["P-010", "P-011"],
        draw: breakdown,
    },
    Sheet {
        id: "migration-break-even",
        source: "Baik et al., Accelerating Page Migrations with Intel DSA, offloading costs slide",
        title: "Copying the pages of one migration by the core or by the device",
        how: "The kernel copies pages of 4 KiB that are migrated together: its core page by page, or a device, with \
              scatter lists, their mapping, descriptors and waiting. The cost of the kernel's path is set from the \
              published break-even.",
        claims: &["P-010", "P-012"],
        draw: break_even,
    },
    Sheet {
        id: "migration-compaction",
        source: "Baik et al., Accelerating Page Migrations with Intel DSA, kcompactd slide",
        title: "Compaction, its pages copied by the core or by the device, by pages of a call",
        how: "One kernel thread moves pages of 4 KiB within a node, this number in a call; calls of 32 or fewer stay \
              with the core. Isolating, unmapping and mapping take 1.38 µs a page, derived from copying's share of the \
              time (Linux, RFC on batching and DMA offload). Compaction works by blocks of 512 pages. The gain is \
              limited by the time of copying.",
        claims: &["P-012"],
        draw: compaction,
    },
    Sheet {
        id: "migration-promotion",
        source: "Baik et al., Accelerating Page Migrations with Intel DSA, DAMON slide",
        title: "Gain of a program if the device copies the promoted pages",
        how: "A program accesses all its pages equally often, and takes longer by a factor while they are in slow \
              memory, that of the other socket. One kernel thread moves all of them to fast memory, 512 in a call, \
              huge ones one by one; isolating, unmapping and mapping take as long for a huge page as for a small one. \
              The slowdown of the slow tier, the run time of the program and its page size are not published.",
        claims: &["P-013"],
        draw: promotion,
    },
    Sheet {
        id: "migration-page-size",
        source: "Baik et al., Accelerating Page Migrations with Intel DSA, page size slide",
        title: "Moving pages of 4 KiB and of 2 MiB, copied by the core or by the device",
        how: "The kernel moves pages to the other socket's memory: small ones 512 in a call, huge ones one in a call; \
              (b) by bytes of a call. Isolating, unmapping and mapping take 1.38 µs for a small page; ASSUMED the same \
              for a huge one.",
        claims: &["P-014", "P-012"],
        draw: page_size,
    },
    Sheet {
        id: "migration-sharing",
        source: "Baik et al., Accelerating Page Migrations with Intel DSA, interference slide",
        title: "A user's and the kernel's copies on one engine or on an engine each",
        how: "One device. The kernel copies pages in batches of 512, and does nothing else; a user's thread keeps 32 \
              copies in flight. Each has a queue; the queues share one engine, or have one each, or only the shown \
              load runs. Each rate is for a time in which both were active.",
        claims: &["P-015"],
        draw: sharing,
    },
];

/// Pages of 4 KiB that move together.
fn together() -> impl Iterator<Item = u32> {
    (0..=9).map(|power| 1 << power)
}

fn names(of: impl IntoIterator<Item = String>) -> Scale {
    Scale::Names(of.into_iter().collect())
}

/// Enough of the kernel's calls with `together` pages each.
fn calls(together: u32, by: impl Into<Option<QueueId>>) -> Migration {
    let offload = by.into().map(|queue| MigrationOffload { above: 0, queue });
    Migration { pages: u64::from(together) * 4, together, offload, ..Migration::compacting() }
}

fn breakdown(lab: &Lab) -> Result<Vec<Panel>> {
    const DEVICE: [(&str, &str); 3] = [
        ("before: scatter lists, mapping, descriptors, submission", "giving away"),
        ("the device copies", "device at work"),
        ("after: it is seen, unmapping, cleaning up", "seeing and unmapping"),
    ];
    let sizes: Vec<u32> = together().filter(|pages| *pages >= 8).collect();
    let core = of(lab, App::Migration(calls(64, None)), "copies of a call")? / 64.0;
    let mut series = vec![simulated("the core copies", [(0.0, core)])];
    for (name, part) in DEVICE {
        let of_a_page = |pages: &u32| Ok(of(lab, App::Migration(calls(*pages, KERNEL)), part)? / f64::from(*pages));
        let parts = sizes.iter().map(of_a_page).collect::<Result<Vec<_>>>()?;
        series.push(simulated(name, (1u8..).map(f64::from).zip(parts)));
    }
    let bars = std::iter::once("core".to_owned()).chain(sizes.iter().map(u32::to_string));
    Ok(vec![Panel {
        title: String::new(),
        x: axis("copied by the core, or by the device with this number of pages", "", names(bars)),
        y: axis("time of a page's copy", "µs", Scale::Linear),
        shape: Shape::Stacks,
        series,
        marks: Vec::new(),
    }])
}

fn break_even(lab: &Lab) -> Result<Vec<Panel>> {
    let copying = |together, by: Option<QueueId>| of(lab, App::Migration(calls(together, by)), "copies of a call");
    let series = vec![
        measured("by the core", together(), |pages| copying(pages, None))?,
        measured("by the device", together(), |pages| copying(pages, Some(KERNEL)))?,
    ];
    let time = axis("time of the copies", "µs", Scale::Log);
    Ok(vec![lines("", axis("pages migrated together", "", Scale::Binary), time, series, vec![place_mark("P-010")])])
}

fn compaction(lab: &Lab) -> Result<Vec<Panel>> {
    let calls = |together| Migration { pages: 1 << 12, together, ..Migration::compacting() };
    let rate = |migration| of(lab, App::Migration(migration), "moved");
    let core = measured("by the core", together(), |pages| rate(calls(pages)))?;
    let device = measured("by the device", together(), |pages| rate(calls(pages).by(KERNEL)))?;
    let gains = core.points.iter().zip(&device.points).map(|(core, device)| (core.0, device.1 / core.1));
    let gains = simulated("by the device", gains);
    let most = measured("if copies took no time", together(), |pages| {
        Ok(1.0 / (1.0 - of(lab, App::Migration(calls(pages)), "copying")? / 100.0))
    })?;
    let gain = axis("throughput over that by the core", "", Scale::Linear);
    let pages = || axis("pages of a call", "", Scale::Binary);
    Ok(vec![
        lines("(a) throughput", pages(), axis("moved", "GB/s", Scale::Linear), vec![core, device], Vec::new()),
        lines("(b) gain", pages(), gain, vec![gains, most], vec![level_mark("P-012")]),
    ])
}

/// Run time of programs with all pages in fast memory, relative to the time in which the core moves their pages, in per
/// cent.
const RUNS: [u32; 6] = [20, 40, 75, 150, 300, 600];

fn promotion(lab: &Lab) -> Result<Vec<Panel>> {
    let small = Migration { pages: 1 << 13, from: 1, to: 0, ..Migration::compacting() };
    let huge = Migration { pages: 64, page: 2 << 20, together: 1, ..small };
    let panel = |title: &str, migration: Migration| {
        let device = Migration { offload: Some(MigrationOffload { above: 0, queue: KERNEL }), ..migration };
        let moving = of(lab, App::Migration(migration), "migration")?;
        let mut series = Vec::new();
        for slow_percent in [150, 200, 300, 400] {
            let gain = |percent: u32| {
                let work = Picos::from_nanos_f64(moving * 1e6 * f64::from(percent) / 100.0);
                let takes =
                    |migration| of(lab, App::Promotion(Promotion { work, slow_percent, migration }), "execution");
                Ok((takes(migration)? / takes(device)? - 1.0) * 100.0)
            };
            let points = RUNS.iter().map(|percent| Ok((f64::from(*percent) / 100.0, gain(*percent)?)));
            let name = format!("{} times longer in slow memory", f64::from(slow_percent) / 100.0);
            series.push(simulated(name, points.collect::<Result<Vec<_>>>()?));
        }
        let x = axis("the program's time over that of moving its pages by the core", "", Scale::Log);
        let y = axis("time saved over the core's copies", "%", Scale::Linear);
        Ok(lines(title, x, y, series, vec![level_mark("P-013")]))
    };
    Ok(vec![panel("(a) pages of 4 KiB", small)?, panel("(b) pages of 2 MiB", huge)?])
}

fn page_size(lab: &Lab) -> Result<Vec<Panel>> {
    let small = |together: u32| Migration { pages: 1 << 12, together, to: 1, ..Migration::compacting() };
    let huge = |together: u32| Migration { pages: 32, page: 2 << 20, together, to: 1, ..Migration::compacting() };
    let by = |migration, device: bool| Migration {
        offload: device.then_some(MigrationOffload { above: 0, queue: KERNEL }),
        ..migration
    };
    let cases = [(small(512), false), (small(512), true), (huge(1), false), (huge(1), true)];
    let (mut copying, mut besides) = (Vec::new(), Vec::new());
    for (migration, device) in cases {
        let app = App::Migration(by(migration, device));
        let (share, rate) = (of(lab, app.clone(), "copying")? / 100.0, of(lab, app, "moved")?);
        let mebibyte = 1_048_576.0 / rate / 1e3;
        copying.push(mebibyte * share);
        besides.push(mebibyte * (1.0 - share));
    }
    let bars = ["4 KiB, core", "4 KiB, device", "2 MiB, core", "2 MiB, device"];
    let parts = |name, parts: Vec<f64>| simulated(name, (0u8..).map(f64::from).zip(parts));
    let gain = |migration| {
        let rate = |device| of(lab, App::Migration(by(migration, device)), "moved");
        Ok(rate(true)? / rate(false)?)
    };
    // Horizontal: bytes of a call.
    let gains = |name: &str, page: f64, of: &mut dyn Iterator<Item = (u32, Migration)>| {
        let points = of.map(|(together, migration)| Ok((f64::from(together) * page, gain(migration)?)));
        Ok(simulated(name, points.collect::<Result<Vec<_>>>()?))
    };
    let of_small = gains("pages of 4 KiB", 4096.0, &mut together().map(|pages| (pages, small(pages))))?;
    let of_huge =
        gains("pages of 2 MiB", 2_097_152.0, &mut [1, 2, 4, 8].map(|pages| (pages, huge(pages))).into_iter())?;
    Ok(vec![
        Panel {
            title: "(a) time of a mebibyte".into(),
            x: axis("page size and copier", "", names(bars.map(str::to_owned))),
            y: axis("time of a mebibyte", "µs", Scale::Linear),
            shape: Shape::Stacks,
            series: vec![
                parts("copying, and what it takes to have it done", copying),
                parts("isolating, unmapping, mapping", besides),
            ],
            marks: Vec::new(),
        },
        lines(
            "(b) gain by bytes of a call",
            axis("bytes of a call", "B", Scale::Binary),
            axis("throughput over that by the core", "", Scale::Linear),
            vec![of_small, of_huge],
            Vec::new(),
        ),
    ])
}

fn sharing(lab: &Lab) -> Result<Vec<Panel>> {
    let panel = |title, of_user: bool| {
        let rate = |size, sharing| Ok(shared(lab, size, sharing, of_user)?.0);
        let sizes = || [256, 1024, 4096, 16384, 65536].into_iter();
        let series = vec![
            measured("alone", sizes(), |size| rate(size, Sharing::Alone))?,
            measured("an engine each", sizes(), |size| rate(size, Sharing::OwnEngine))?,
            measured("one engine for both", sizes(), |size| rate(size, Sharing::OneEngine))?,
        ];
        let sizes = axis("size of the user's copies", "B", Scale::Binary);
        Ok(lines(title, sizes, axis("throughput", "GB/s", Scale::Linear), series, Vec::new()))
    };
    Ok(vec![panel("(a) the user's copies", true)?, panel("(b) the kernel's pages", false)?])
}

/// A line's vertical value at this point.
#[cfg(test)]
fn at(panel: &Panel, series: &str, x: f64) -> f64 {
    panel.series.iter().find(|it| it.name == series).and_then(|it| it.at(x)).unwrap_or_else(|| panic!("{series}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::numbers;

    #[test]
    fn the_parts_of_a_copy_add_up() {
        let lab = Lab::default();
        let (parts, whole) = (&breakdown(&lab).unwrap()[0], &break_even(&lab).unwrap()[0]);
        let Scale::Names(names) = &parts.x.scale else { panic!("bars have names") };
        for (number, pages) in names.iter().enumerate().skip(1) {
            let pages: f64 = pages.parse().unwrap();
            let parts: f64 = parts.series.iter().filter_map(|part| part.at(number as f64)).sum();
            let whole = at(whole, "by the device", pages) / pages;
            assert!((parts / whole - 1.0).abs() < 1e-9, "{pages} pages: {parts} of {whole} us");
        }
        let one = at(whole, "by the core", 1.0);
        assert!((at(parts, "the core copies", 0.0) / one - 1.0).abs() < 1e-9, "the core's copies take as long each");
    }

    #[test]
    fn compaction_reaches_the_published_gain_and_not_more_than_copying_takes() {
        let gains = &compaction(&Lab::default()).unwrap()[1];
        for pages in together().map(f64::from) {
            let (gain, most) = (at(gains, "by the device", pages), at(gains, "if copies took no time", pages));
            assert!(gain >= 1.0 && gain < most, "{pages} pages: {gain} of {most}");
        }
        let (printed, block) = (numbers("P-012").0, at(gains, "by the device", 512.0));
        assert!((block / printed - 1.0).abs() < 0.1, "{block} for {printed}");
    }

    #[test]
    fn slower_tiers_gain_more_and_huge_pages_exceed_the_published_gain() {
        let panels = promotion(&Lab::default()).unwrap();
        let printed = numbers("P-013").0;
        let best = |panel: &Panel| panel.series.iter().flat_map(|it| &it.points).map(|it| it.1).fold(0.0, f64::max);
        assert!(best(&panels[0]) < printed && best(&panels[1]) > printed, "{} {}", best(&panels[0]), best(&panels[1]));
        for panel in &panels {
            for pair in panel.series.windows(2) {
                assert!(pair[0].points[0].1 < pair[1].points[0].1, "{} and {}", pair[0].name, pair[1].name);
            }
        }
    }

    #[test]
    fn a_device_gains_most_where_copying_dominates() {
        let panels = page_size(&Lab::default()).unwrap();
        let (small, huge) =
            (at(&panels[1], "pages of 4 KiB", 2_097_152.0), at(&panels[1], "pages of 2 MiB", 2_097_152.0));
        assert!(huge > 2.0 * small && small > 1.2, "{small} and {huge}");
        // By Amdahl's law, from the values in the other chart.
        let of = |bar: f64| panels[0].series.iter().filter_map(|part| part.at(bar)).sum::<f64>();
        assert!((of(0.0) / of(1.0) / small - 1.0).abs() < 0.01 && (of(2.0) / of(3.0) / huge - 1.0).abs() < 0.01);
    }

    #[test]
    fn shared_rates_are_for_a_time_with_both_active() {
        let lab = Lab::default();
        for size in [256, 1024, 4096, 16384, 65536] {
            for of_user in [true, false] {
                let of = |sharing| shared(&lab, size, sharing, of_user).unwrap();
                let [alone, own, one] = [Sharing::Alone, Sharing::OwnEngine, Sharing::OneEngine].map(of);
                assert!(own.1 > 0.0 && one.1 > 0.0, "{size}, {of_user}: {} and {} s longer", own.1, one.1);
                assert!(alone.0 * 1.001 >= own.0 && alone.0 * 1.001 >= one.0, "{size}: {alone:?} {own:?} {one:?}");
                // The slides' number for the user with the small copies.
                assert!(!of_user || own.0 > 1.2 * one.0, "{size}: {own:?} and {one:?} GB/s");
            }
        }
    }
}
