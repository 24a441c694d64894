//! A program moves its pages itself: results on the machine of the kernel's figures, and on others. These figures are
//! in no document.

use super::{KERNEL, calls, names, together};
use crate::experiments::vhost;
use crate::figures::sweep::{axis, bytes, lines, measured, simulated};
use crate::figures::{Axis, Mark, Panel, Result, Scale, Series, Shape, Sheet, place_mark};
use crate::lab::Lab;
use crate::setups::on;
use telpher_device::WqMode;
use telpher_sim::{App, Exchange, Gups, Measure, Migration, PagePlacement, QueueId, Workload};

pub(in crate::figures) const SHEETS: &[Sheet] = &[
    Sheet {
        id: "migration-user",
        source: "",
        title: "A page moved by the kernel or by the program itself, by pages moved together",
        how: "From the other socket's memory to this one's. The program (telpher-tier) takes pages out by one \
              UFFDIO_MOVE, copies them and brings them in by another; a device gets one batch, by the program's own \
              addresses, a descriptor for each run of adjacent pages. The time besides copying was measured on another \
              processor: an AMD EPYC, Linux 6.18, a process whose other threads did not run. Left out on both sides: \
              interrupts to other cores for TLB flushes; for the program also the invalidations in devices, which are \
              not measured. The kernel takes 1.38 µs a page besides copying, derived for calls of many pages, ASSUMED \
              for others and for huge pages.",
        claims: &["P-010", "P-012"],
        draw: by_the_program,
    },
    Sheet {
        id: "migration-user-devices",
        source: "",
        title: "Pages moved by the program itself, by the number of devices that copy",
        how: "As migration-user, on a machine with four devices a socket; each copies an equal part of the pages that \
              move together, also of a huge page. 0 devices: the core copies.",
        claims: &[],
        draw: by_devices,
    },
    Sheet {
        id: "migration-gups",
        source: "",
        title: "Random updates on two tiers, relative to all memory fast",
        how: "Eight threads update words of 2 GiB, nine of ten updates in a hot tenth, the others anywhere; slow \
              memory's latency is three times that of fast memory. telpher-tier's own policy places pages by the \
              written pages that windows find, one window of 2 MiB at a time for 10 ms; a device copies the pages. \
              Fast memory is initially full of pages in address order. The costs of tracking, deciding and copying are \
              included. For comparison: an oracle that knows the hot pages from the beginning, random placing, and no \
              placing. (a) A fifth of the memory is fast. (b) After the warm-up. An update looks its page up in page \
              tables (70 ns) and waits for its line (125 ns, or 375); (c) as if it took only the latter, for which the \
              shown values are the maximum. No document has a goal; telpher-tier's own is 90 %.",
        claims: &[],
        draw: updates,
    },
];

fn pages_together() -> Axis {
    axis("pages that go together", "", Scale::Binary)
}

/// One queue of each of `devices` devices.
fn queues(devices: u16) -> Vec<QueueId> {
    (0..devices).map(|device| QueueId { device, ..KERNEL }).collect()
}

/// Total microseconds per page.
fn of_a_page(lab: &Lab, profile: &str, devices: u16, app: App) -> Result<f64> {
    let (together, measure) = match &app {
        App::Migration(migration) => (f64::from(migration.together), "a call"),
        _ => (1.0, "a page"),
    };
    let scenario = on(profile, usize::from(devices.max(1)), WqMode::Dedicated, 1).with("pages", 1, Workload::App(app));
    Ok(vhost::measured(&*lab.run(&scenario)?, measure) / together)
}

fn by_the_program(lab: &Lab) -> Result<Vec<Panel>> {
    let panel = |title: &str, sizes: &[u32], page: u32, neighbours: bool, marks: Vec<Mark>| {
        let kernel = |together: u32, by: Option<QueueId>| {
            let migration = Migration { from: 1, to: 0, page, ..calls(together, by) };
            of_a_page(lab, "gold-6430", 1, App::Migration(migration))
        };
        let program = |together: u32, devices: u16| {
            let pages = u64::from(together) * 4;
            let app = Exchange { pages, page, neighbours, ..Exchange::promoting(together) }.by(queues(devices));
            of_a_page(lab, "gold-6430", devices, App::Exchange(app))
        };
        let sizes = || sizes.iter().copied();
        let series = vec![
            measured("the kernel, its core copies", sizes(), |pages| kernel(pages, None))?,
            measured("the kernel, a device", sizes(), |pages| kernel(pages, Some(KERNEL)))?,
            measured("the program, its core copies", sizes(), |pages| program(pages, 0))?,
            measured("the program, a device", sizes(), |pages| program(pages, 1))?,
            measured("the program, both sockets' devices", sizes(), |pages| program(pages, 2))?,
        ];
        Ok(lines(title, pages_together(), axis("time of a page", "µs", Scale::Log), series, marks))
    };
    let small: Vec<u32> = together().collect();
    Ok(vec![
        panel("(a) pages of 4 KiB, neighbours", &small, 4096, true, vec![place_mark("P-010")])?,
        panel("(b) pages of 4 KiB, apart", &small, 4096, false, Vec::new())?,
        panel("(c) pages of 2 MiB", &[1, 2, 4, 8, 16], 2 << 20, true, Vec::new())?,
    ])
}

fn by_devices(lab: &Lab) -> Result<Vec<Panel>> {
    let devices = [0u16, 1, 2, 4];
    let cases: [(String, Exchange); 4] = [
        (format!("one page of {}", bytes(2 << 20)), Exchange { pages: 16, ..Exchange::promoting_huge(1) }),
        ("512 neighbours of 4 KiB".into(), Exchange::promoting(512)),
        ("32 neighbours of 4 KiB".into(), Exchange::promoting(32)),
        ("512 of 4 KiB, apart".into(), Exchange { neighbours: false, ..Exchange::promoting(512) }),
    ];
    let mut rates: Vec<Series> = Vec::new();
    let mut gains: Vec<Series> = Vec::new();
    for (name, app) in cases {
        let page = f64::from(app.page);
        let rate = |devices: u16| {
            let app = App::Exchange(app.clone().by(queues(devices)));
            Ok(page / of_a_page(lab, "spr-asplos", devices, app)? / 1e3)
        };
        let of = devices.iter().map(|count| rate(*count)).collect::<Result<Vec<_>>>()?;
        gains.push(simulated(name.clone(), (0u8..).map(f64::from).zip(of.iter().map(|rate| rate / of[0]))));
        rates.push(simulated(name, (0u8..).map(f64::from).zip(of)));
    }
    let panel = |title: &str, y: Axis, series: Vec<Series>| Panel {
        title: title.into(),
        x: axis("devices that copy", "", names(devices.map(|count| count.to_string()))),
        y,
        shape: Shape::Bars,
        series,
        marks: Vec::new(),
    };
    Ok(vec![
        panel("(a) throughput", axis("moved", "GB/s", Scale::Linear), rates),
        panel("(b) gain", axis("throughput over that by the core", "", Scale::Linear), gains),
    ])
}

/// The placements of pages, and their names.
const PLACING: [(&str, PagePlacement); 4] = [
    ("telpher-tier's policy", PagePlacement::Policy),
    ("oracle", PagePlacement::Knowing),
    ("random placing", PagePlacement::Chance { runs: 32 }),
    ("no placing", PagePlacement::NotPlaced),
];

/// Updates in per cent of those with all memory fast: over time in seconds, and after the warm-up.
fn of_all_fast(lab: &Lab, app: Gups) -> Result<(Vec<(f64, f64)>, f64)> {
    let app = App::Gups(Gups { queues: queues(1), ..app });
    let scenario = on("gold-6430", 1, WqMode::Dedicated, 1).with("gups", 1, Workload::App(app));
    let outcome = lab.run(&scenario)?;
    let point = |measure: &Measure| Some((measure.name.strip_suffix(" ms")?.parse::<f64>().ok()? / 1e3, measure.value));
    let curve = outcome.loads[0].measures.iter().filter_map(point).collect();
    Ok((curve, vhost::measured(&outcome, "of all in fast memory")))
}

fn updates(lab: &Lab) -> Result<Vec<Panel>> {
    let share = || axis("updates over those with all memory fast", "%", Scale::Linear);
    let mut curves = Vec::new();
    for (name, placing) in PLACING {
        curves.push(simulated(name, of_all_fast(lab, Gups { placing, ..Gups::default() })?.0));
    }
    let panel = |title: &str, looks_up: bool| {
        let mut series = Vec::new();
        for (name, placing) in PLACING {
            series.push(measured(name, [12u32, 20, 33, 50], |fast_percent| {
                Ok(of_all_fast(lab, Gups { placing, fast_percent, looks_up, ..Gups::default() })?.1)
            })?);
        }
        Ok(lines(title, axis("fast memory, of all", "%", Scale::Linear), share(), series, Vec::new()))
    };
    Ok(vec![
        lines("(a) over time", axis("time", "s", Scale::Linear), share(), curves, Vec::new()),
        panel("(b) by fast memory", true)?,
        panel("(c) if latency were all", false)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::super::at;
    use super::*;

    #[test]
    fn for_a_program_a_device_pays_from_fewer_pages_than_for_the_kernel() {
        let panels = by_the_program(&Lab::default()).unwrap();
        let pays = |panel: &Panel, mover: &str| {
            let (core, device) = (format!("the {mover}, its core copies"), format!("the {mover}, a device"));
            let of = |pages: &u32| at(panel, &device, f64::from(*pages)) < at(panel, &core, f64::from(*pages));
            together().find(of).unwrap()
        };
        assert_eq!((pays(&panels[0], "program"), pays(&panels[0], "kernel")), (4, 32));
        let ratio = |panel: &Panel, one: &str, other: &str| at(panel, one, 512.0) / at(panel, other, 512.0);
        // Adjacent pages: the system calls are short, so the copy matters; for pages apart the system calls dominate.
        let (kernel, device) = ("the kernel, a device", "the program, a device");
        assert!(ratio(&panels[0], kernel, device) > 4.0 && ratio(&panels[1], kernel, device) < 1.0);
        assert!(ratio(&panels[1], "the program, its core copies", device) < 1.3);
    }

    #[test]
    fn a_huge_page_is_shared_by_all_devices() {
        let gains = &by_devices(&Lab::default()).unwrap()[1];
        for series in &gains.series {
            assert!(series.points.windows(2).all(|pair| pair[0].1 < pair[1].1), "{series:?}");
        }
        let huge = &gains.series[0].points;
        assert!(huge[3].1 / huge[1].1 > 2.5, "{huge:?}");
    }

    #[test]
    fn only_the_policy_comes_close_to_the_oracle() {
        let panels = updates(&Lab::default()).unwrap();
        let end = |name: &str| panels[0].series.iter().find(|it| it.name == name).unwrap().points.last().unwrap().1;
        let (policy, knows) = (end("telpher-tier's policy"), end("oracle"));
        assert!(policy >= 90.0 && policy > 0.99 * knows, "{policy} and {knows} %");
        assert!(end("random placing") < 0.6 * knows && end("no placing") < 0.6 * knows);
        for panel in &panels[1..] {
            for fast in [12.0, 20.0, 33.0, 50.0] {
                let (policy, knows) = (at(panel, "telpher-tier's policy", fast), at(panel, "oracle", fast));
                assert!(policy < knows && policy > 0.985 * knows, "{}: {policy} of {knows} %", panel.title);
                assert!(at(panel, "no placing", fast) < 0.7 * knows);
            }
        }
    }
}
