//! `telpher bench vhost`: packets into and out of virtual machines, compared with DPDK.
//!
//! ```text
//! Scene: one guest (testpmd, or our own) and its backends
//!   └─► Point: probe · one backend works · probe ──► kept or dropped
//!   └─► rates ── medians, ratios at one distance ──► verdicts
//! rings, flat, latency, interface: our own guest, stepped in this process
//! ```

mod alone;
mod asynchronous;
mod flat;
mod guest;
mod interface;
mod latency;
mod ours;
mod rates;
mod rings;
mod scene;

use super::BenchError;
use super::goal::Row;
use super::progress::Budget;
use super::questions::{Answer, Answers};
use crate::options::{VhostOptions, VhostPart, VhostRing, VhostTraffic};
use crate::point;
use alone::Alone;
pub use flat::Cost;
use ours::CopyBy;
pub use point::Drops;
use point::{Cores, Seen, round};
use rates::{Cell, RequestedCells, RequiredRatio, verdicts};
pub use rates::{Rate, RateConditions, Ratio};
use scene::{BackendKind, Scene};
use serde::Serialize;
use std::time::Duration;
pub use telpher_os::Distance;
use telpher_report::machine::Machine;
use telpher_vhost::peers::PeerError;
use telpher_vhost::{CopyPolicy, PacketPool, PoolOptions, peers};

/// Everything that `telpher bench vhost` measured.
#[derive(Clone, Debug, Serialize)]
pub struct VhostResult {
    /// Verdicts, part by part.
    #[serde(flatten)]
    pub answers: Answers,
    /// Numbers of points that count, and of those that do not.
    pub points: Drops,
    /// Medians of every competitor.
    pub rates: Vec<Rate>,
    /// Ratios of compared pairs.
    pub ratios: Vec<Ratio>,
    /// What a packet costs the forwarding core.
    pub costs: Vec<Cost>,
}

/// Our backend, with copies made by the forwarding thread.
pub const CPU: &str = "telpher";
/// DPDK's backend.
pub const NET_VHOST: &str = "net_vhost";
/// Our pipeline with an engine that the forwarding thread executes.
pub const PIPELINE: &str = "pipeline";
/// Our pipeline with an engine thread; each packet goes to the faster of CPU and engine.
pub const HYBRID: &str = "hybrid";
/// Our pipeline with an engine thread that makes all copies.
pub const DEVICE: &str = "all by the engine";
/// DPDK's asynchronous path with its software DMA.
pub const DPDK: &str = "DPDK asynchronous";
/// The part that compares CPU copies, those of `net_vhost`, and the inline pipeline.
pub const COPIES: &str = "copies";
/// Places of an engine's thread: on its own core, or on the core of the guest or of the switch; the core of the other
/// of these two is not shared.
const PLACES: [&str; 3] = ["engine alone", "engine beside the guest", "engine beside the switch"];
/// The pairs compared at each of these places.
const THREADED: [[&str; 2]; 2] = [[HYBRID, DPDK], [DEVICE, DPDK]];

/// Lengths of packets. Source: those of the white paper's Figure 10, and 128.
const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
/// Lengths with `--quick`.
const QUICK: [u32; 3] = [64, 512, 1518];
/// Rates must reach the peer's in the median over lengths, and 0.9 of it at each length. Source: goal of the data
/// path.
const OF_COPIES: RequiredRatio = RequiredRatio { median: Some(1.0), least: 0.9 };
/// The pipeline's rate against CPU copies. Source: goal of the pipeline.
const OF_PIPELINE: RequiredRatio = RequiredRatio { median: None, least: 0.95 };
/// The rate with an engine thread against DPDK's. Source: goal of the pipeline.
const OF_THREADS: RequiredRatio = RequiredRatio { median: None, least: 2.0 };

/// The extent of the measurement.
struct Plan {
    parts: Vec<VhostPart>,
    sizes: Vec<u32>,
    rings: Vec<VhostRing>,
    traffic: Vec<VhostTraffic>,
    hybrid: CopyPolicy,
    rounds: u32,
    /// Duration of a point.
    slice: Duration,
    /// Duration of a part that measures without points.
    part: Duration,
    cores: Cores,
    own_guest: bool,
}

impl Plan {
    fn of(args: &VhostOptions, machine: &Machine) -> Plan {
        use VhostPart::{Copies, Flat, Interface, Latency, Pipeline, Rings, Threads};
        let every = [Copies, Pipeline, Threads, Rings, Flat, Latency, Interface];
        let parts = every.into_iter().filter(|part| args.only.is_empty() || args.only.contains(part)).collect();
        let default = if args.quick { &QUICK[..] } else { &SIZES[..] };
        let asked = args.sizes.as_ref().map(|sizes| sizes.iter().map(|&size| u32::try_from(size).unwrap_or(u32::MAX)));
        let (slice, part) = if args.quick { (80, 1000) } else { (200, 4000) };
        Plan {
            parts,
            sizes: asked.map_or_else(|| default.to_vec(), Iterator::collect),
            rings: unique(&args.rings),
            traffic: unique(&args.traffic),
            hybrid: args.threshold.map_or(CopyPolicy::Learned, CopyPolicy::From),
            rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 5 }),
            slice: Duration::from_millis(slice),
            part: Duration::from_millis(part),
            cores: Cores { backend: machine.core(0), guest: machine.core(1) },
            own_guest: args.own_guest || peers::missing().is_some(),
        }
    }

    fn has(&self, part: VhostPart) -> bool {
        self.parts.contains(&part)
    }

    fn asked(&self) -> RequestedCells {
        let (rings, traffic) = (self.rings.iter(), self.traffic.iter());
        RequestedCells {
            rings: rings.map(|ring| name_of(*ring)).collect(),
            traffic: traffic.map(|way| way_of(*way)).collect(),
            sizes: self.sizes.clone(),
            rounds: self.rounds,
        }
    }

    fn cells(&self) -> impl Iterator<Item = (VhostTraffic, u32)> + '_ {
        self.traffic.iter().flat_map(|&traffic| self.sizes.iter().map(move |&size| (traffic, size)))
    }
}

/// The longest packet of the benchmark. Source: the size of DPDK's buffers.
const LONGEST: u32 = 2048;

fn unique<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(value) {
            seen.push(*value);
        }
    }
    seen
}

/// Runs the benchmark.
pub fn run(args: &VhostOptions, machine: Machine) -> Result<VhostResult, BenchError> {
    let plan = Plan::of(args, &machine);
    if let Some(size) = plan.sizes.iter().find(|&&size| !(64..=LONGEST).contains(&size)) {
        return Err(BenchError::Usage(format!("--size: packets have from 64 to {LONGEST} bytes, not {size}")));
    }
    let pool = PacketPool::new(PoolOptions { longest: LONGEST, ..PoolOptions::default() })?;
    let mut found = Found::new(&plan, args);
    let mut budget = Budget::new(Duration::from_secs(1), plan.parts.len() as f64);
    let (copies, pipeline) = (plan.has(VhostPart::Copies), plan.has(VhostPart::Pipeline));
    if copies || pipeline {
        budget.step("copies", f64::from(u8::from(copies) + u8::from(pipeline)));
        found.copies(&plan, &pool)?;
    }
    if plan.has(VhostPart::Threads) {
        budget.step("threads", 1.0);
        found.threads(&plan, &pool)?;
    }
    if plan.has(VhostPart::Rings) {
        budget.step("rings", 1.0);
        let rows = rings::measure(plan.part / 2);
        found.answer("rings", "What does a chain cost on its way through a ring?", rows);
    }
    if plan.has(VhostPart::Flat) {
        budget.step("flat", 1.0);
        found.flat(&plan, &pool)?;
    }
    if plan.has(VhostPart::Latency) {
        budget.step("latency", 1.0);
        found.latency(&plan, &pool)?;
    }
    if plan.has(VhostPart::Interface) {
        budget.step("interface", 1.0);
        found.interface(&plan, &pool);
    }
    budget.finish();
    Ok(found.result(machine))
}

/// The competitors on one ring.
struct Grid<'a> {
    part: &'static str,
    ring: VhostRing,
    names: &'a [&'static str],
    compared: &'a [[&'static str; 2]],
}

/// The results so far.
struct Found {
    remarks: Vec<String>,
    contests: Vec<Answer>,
    points: Drops,
    rates: Vec<Rate>,
    ratios: Vec<Ratio>,
    costs: Vec<Cost>,
}

impl Found {
    fn new(plan: &Plan, args: &VhostOptions) -> Found {
        let Cores { backend, guest } = plan.cores;
        let mut remarks = vec![format!(
            "The backend's forwarding thread is on core {backend}, the guest on core {guest}; rates are in million \
             packets a second, as the guest counts them, and medians over rounds."
        )];
        if let (Some(missing), false) = (peers::missing(), args.own_guest) {
            remarks.push(format!(
                "There is {missing} here, so that the guest is one of our own and no peer stands \
                 beside it; `apt install dpdk dpdk-dev` gets both."
            ));
        } else if args.own_guest {
            remarks.push("The guest is one of our own: its driver only gives and takes buffers.".into());
        }
        if backend == guest {
            remarks.push("This process has one core: backend and guest take turns on it.".into());
        }
        remarks.push(
            "Engines are software here: a device's rates are the speed of a model on this CPU, not of DSA hardware."
                .into(),
        );
        let (contests, rates, ratios, costs) = Default::default();
        Found { remarks, contests, points: Drops::default(), rates, ratios, costs }
    }

    fn answer(&mut self, name: &'static str, question: &'static str, rows: Vec<Row>) {
        // Without a peer there is no ratio; the rates are in their own table.
        if !rows.is_empty() {
            self.contests.push(Answer { name, question, rows });
        }
    }

    /// Measures CPU copies against the peer's, and the pipeline against CPU copies, in one scene per ring.
    fn copies(&mut self, plan: &Plan, pool: &PacketPool) -> Result<(), BenchError> {
        let mut backends = vec![(CPU, BackendKind::Ours(CopyBy::Cpu))];
        if plan.has(VhostPart::Copies) && !plan.own_guest {
            backends.push((NET_VHOST, BackendKind::NetVhost));
        }
        if plan.has(VhostPart::Pipeline) {
            backends.push((PIPELINE, BackendKind::Ours(CopyBy::Inline(plan.hybrid))));
        }
        self.contest(COPIES, plan, pool, &backends, &[[CPU, NET_VHOST], [PIPELINE, CPU]])?;
        if plan.has(VhostPart::Copies) && !plan.own_guest {
            let rows = verdicts(&self.ratios, COPIES, [CPU, NET_VHOST], OF_COPIES, &plan.asked());
            self.answer("copies", "How fast are CPU copies beside DPDK's net_vhost?", rows);
        }
        if plan.has(VhostPart::Pipeline) {
            let rows = verdicts(&self.ratios, COPIES, [PIPELINE, CPU], OF_PIPELINE, &plan.asked());
            self.answer(
                "pipeline",
                "What does the hybrid pipeline, with an inline engine, keep of the rate of CPU copies?",
                rows,
            );
        }
        Ok(())
    }

    /// Measures engine threads on their own core, on the guest's core and on the switch's core.
    fn threads(&mut self, plan: &Plan, pool: &PacketPool) -> Result<(), BenchError> {
        const QUESTION: &str = "How fast is an engine with a thread, with a core of its own or on the guest's or the \
                                switch's, beside DPDK's asynchronous path with its software DMA?";
        if plan.cores.backend == plan.cores.guest {
            self.remarks.push("Not measured: threads needs two cores.".into());
            return Ok(());
        }
        let missing = if plan.own_guest { Some("there is no testpmd".into()) } else { asynchronous::missing() };
        if let Some(why) = &missing {
            self.remarks.push(format!("DPDK's asynchronous path does not stand beside ours: {why}."));
        }
        let [alone, others @ ..] = PLACES;
        self.alone(alone, plan, pool, missing.is_none())?;
        for (part, core) in others.into_iter().zip([plan.cores.guest, plan.cores.backend]) {
            let hybrid = BackendKind::Ours(CopyBy::Thread(plan.hybrid, core));
            let mut backends =
                vec![(HYBRID, hybrid), (DEVICE, BackendKind::Ours(CopyBy::Thread(CopyPolicy::Device, core)))];
            backends.extend(missing.is_none().then_some((DPDK, BackendKind::DpdkAsync(core))));
            self.contest(part, plan, pool, &backends, &THREADED)?;
        }
        if missing.is_none() {
            let all = PLACES.into_iter().flat_map(|part| THREADED.map(|pair| (part, pair)));
            let rows = all.flat_map(|(part, pair)| verdicts(&self.ratios, part, pair, OF_THREADS, &plan.asked()));
            let rows = rows.collect();
            self.answer("threads", QUESTION, rows);
        }
        Ok(())
    }

    /// Handles the result of one ring of a part. A silent peer (on two cores it often just lacked CPU time) ends only
    /// this ring: the results so far stay, and the other rings follow.
    fn bear(&mut self, part: &'static str, ring: VhostRing, held: Result<(), BenchError>) -> Result<(), BenchError> {
        match held {
            Err(BenchError::Peer(error)) if !matches!(error, PeerError::Missing(_)) => {
                let error = error.to_string();
                let (ring, first) = (name_of(ring), error.lines().next().unwrap_or_default());
                self.remarks.push(format!("Not measured to its end: {part}, {ring}; {first}"));
                Ok(())
            }
            other => other,
        }
    }

    /// Measures competitors in rounds, ring by ring, with one guest for all of them.
    fn contest(
        &mut self,
        part: &'static str,
        plan: &Plan,
        pool: &PacketPool,
        backends: &[(&'static str, BackendKind)],
        compared: &[[&'static str; 2]],
    ) -> Result<(), BenchError> {
        let names: Vec<&'static str> = backends.iter().map(|backend| backend.0).collect();
        let contestants: Vec<BackendKind> = backends.iter().map(|backend| backend.1).collect();
        for &ring in &plan.rings {
            let about = Grid { part, ring, names: &names, compared };
            let held = Scene::start(&contestants, ring, plan.own_guest, plan.cores, pool).and_then(|mut scene| {
                self.grid(plan, &about, |backend, traffic, size| scene.rate(backend, traffic, size, plan.slice))
            });
            self.bear(part, ring, held)?;
        }
        Ok(())
    }

    /// Measures engines with their own core.
    fn alone(&mut self, part: &'static str, plan: &Plan, pool: &PacketPool, peer: bool) -> Result<(), BenchError> {
        let mut names = vec![HYBRID, DEVICE];
        names.extend(peer.then_some(DPDK));
        for &ring in &plan.rings {
            let (slice, cores) = (plan.slice, plan.cores);
            let start = || {
                let ours = [plan.hybrid, CopyPolicy::Device]
                    .map(|hybrid| Alone::ours(CopyBy::Thread(hybrid, cores.guest), ring, pool));
                ours.into_iter().chain(peer.then(|| Alone::dpdk(ring, cores))).collect::<Result<Vec<Alone>, _>>()
            };
            let about = Grid { part, ring, names: &names, compared: &THREADED };
            let held = start().and_then(|mut sides| {
                self.grid(plan, &about, |backend, traffic, size| sides[backend].rate(traffic, size, slice, cores))
            });
            self.bear(part, ring, held)?;
        }
        Ok(())
    }

    /// Measures every cell of one ring's grid in rounds, then adds medians and ratios of all rounds, or of those before
    /// an error.
    fn grid(
        &mut self,
        plan: &Plan,
        about: &Grid<'_>,
        mut rate: impl FnMut(usize, VhostTraffic, u32) -> Result<Seen, BenchError>,
    ) -> Result<(), BenchError> {
        let Grid { part, ring, names, compared } = *about;
        let ring = name_of(ring);
        let cell = |(traffic, size)| Cell { part, ring, traffic: way_of(traffic), size, rounds: Vec::new() };
        let mut cells: Vec<Cell> = plan.cells().map(cell).collect();
        let turns = (0..plan.rounds).flat_map(|number| plan.cells().enumerate().map(move |cell| (number, cell)));
        let held = turns.into_iter().try_for_each(|(number, (at, (traffic, size)))| {
            let first = number as usize % names.len();
            let probe = || plan.cores.distance();
            let measure = |backend| rate(backend, traffic, size);
            cells[at].rounds.push(round(names.len(), first, &mut self.points, probe, measure)?);
            Ok(())
        });
        for cell in &cells {
            self.rates.extend(cell.rates(names));
            for pair in compared {
                if let [Some(of), Some(by)] = pair.map(|name| names.iter().position(|other| *other == name)) {
                    self.ratios.extend(cell.ratios(names, of, by));
                }
            }
        }
        held
    }

    fn flat(&mut self, plan: &Plan, pool: &PacketPool) -> Result<(), BenchError> {
        const QUESTION: &str = "What does a packet cost the forwarding core, around, when a device makes all copies?";
        let mut rows = Vec::new();
        for (name, packed) in self.layouts(plan) {
            let costs = flat::measure(name, packed, &plan.sizes, plan.rounds, plan.part / 14, plan.cores, pool)?;
            rows.extend(flat::rows(&costs));
            self.costs.extend(costs);
        }
        self.answer("flat", QUESTION, rows);
        Ok(())
    }

    fn latency(&mut self, plan: &Plan, pool: &PacketPool) -> Result<(), BenchError> {
        let mut rows = Vec::new();
        for (name, packed) in self.layouts(plan) {
            let (rounds, slice) = (plan.rounds, plan.slice);
            let (ring, hybrid, cores) = (name, plan.hybrid, plan.cores);
            let about = latency::About { ring, packed, hybrid, rounds, slice, cores };
            rows.extend(latency::measure(&about, pool, &mut self.points)?);
        }
        self.answer("latency", "How much longer does a packet take through the pipeline, at half of its load?", rows);
        Ok(())
    }

    fn interface(&mut self, plan: &Plan, pool: &PacketPool) {
        let mut rows = Vec::new();
        for (ring, packed) in self.layouts(plan) {
            let (sizes, rounds, slice, cores) = (&plan.sizes[..], plan.rounds, plan.slice, plan.cores);
            let about = interface::About { ring, packed, sizes, rounds, slice, cores };
            match interface::measure(&about, pool, &mut self.points) {
                Ok(more) => rows.extend(more),
                Err(why) => self.remarks.push(format!("Not measured: interface, {ring}; {why}.")),
            }
        }
        self.answer("interface", "How many packets pass between an interface (veth) and a guest?", rows);
    }

    /// Returns the requested ring layouts that our own guest supports.
    fn layouts(&self, plan: &Plan) -> impl Iterator<Item = (&'static str, bool)> + use<> {
        let asked = [("split", false), ("packed", true)].map(|layout| {
            let packed = |ring: &VhostRing| scene::virtio(*ring).packed == layout.1;
            plan.rings.iter().any(packed).then_some(layout)
        });
        asked.into_iter().flatten()
    }

    fn result(self, machine: Machine) -> VhostResult {
        let Found { mut remarks, contests, points, rates, ratios, costs } = self;
        let Drops { kept, moved, unknown, absent, stolen } = points;
        if kept + points.all() > 0 {
            remarks.push(format!(
                "Points: {kept} count; {} do not: {moved} because the cores' distance changed, {unknown} because it \
                 was not to be found, {absent} because a thread did not have its core, {stolen} because the hypervisor \
                 took one.",
                points.all()
            ));
        }
        VhostResult { answers: Answers { kind: "vhost", machine, remarks, contests }, points, rates, ratios, costs }
    }
}

fn name_of(ring: VhostRing) -> &'static str {
    match ring {
        VhostRing::Split => "split",
        VhostRing::Packed => "packed",
        VhostRing::SplitInorder => "split-inorder",
        VhostRing::PackedInorder => "packed-inorder",
        VhostRing::SplitVec => "split-vec",
        VhostRing::PackedVec => "packed-vec",
    }
}

fn way_of(traffic: VhostTraffic) -> &'static str {
    match traffic {
        VhostTraffic::B2f => "b2f",
        VhostTraffic::F2b => "f2b",
        VhostTraffic::Loop => "loop",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rates::tests::{asked, ratio};

    /// Returns the default options of the command line.
    fn options() -> VhostOptions {
        VhostOptions {
            only: Vec::new(),
            sizes: None,
            rings: vec![VhostRing::Split, VhostRing::Packed],
            traffic: vec![VhostTraffic::B2f, VhostTraffic::F2b, VhostTraffic::Loop],
            threshold: None,
            rounds: None,
            quick: false,
            own_guest: false,
        }
    }

    fn plan(options: &VhostOptions) -> Plan {
        Plan::of(options, &Machine::read())
    }

    /// A result with a rate and a ratio at each distance, costs, and verdicts, one of them short.
    pub(crate) fn sample() -> VhostResult {
        let ratios: Vec<Ratio> = [(64, Distance::Far, 1.2), (1518, Distance::Far, 0.8), (64, Distance::Near, 1.0)]
            .map(|(size, distance, value)| ratio(size, distance, value))
            .into_iter()
            .map(|ratio| Ratio { of: CPU, by: NET_VHOST, ..ratio })
            .collect();
        let rate = |backend, mpps: f64| {
            move |ratio: &Ratio| Rate { place: ratio.place, backend, mpps, range: [mpps; 2], share: None, points: 5 }
        };
        let rates = ratios.iter().map(rate(CPU, 6.0)).chain(ratios.iter().map(rate(NET_VHOST, 5.0))).collect();
        let costs = [(64, false), (1518, false), (64, true), (1518, true)].map(|(size, by_device)| Cost {
            ring: "split",
            size,
            by_device,
            ticks: if by_device { 400.0 } else { f64::from(size) },
            ns: 100.0,
            share: f64::from(u8::from(by_device)),
            intervals: 10,
            interrupted: 1,
        });
        let contests = vec![
            Answer {
                name: "copies",
                question: "How fast?",
                rows: verdicts(&ratios, COPIES, [CPU, NET_VHOST], OF_COPIES, &asked(&[64, 1518])),
            },
            Answer { name: "flat", question: "What?", rows: flat::rows(&costs) },
        ];
        let answers = Answers { kind: "vhost", machine: Machine::read(), remarks: vec!["Mind this.".into()], contests };
        VhostResult { answers, points: Drops { kept: 6, ..Drops::default() }, rates, ratios, costs: costs.into() }
    }

    #[test]
    fn everything_is_measured_by_default() {
        let all = plan(&options());
        assert_eq!((all.parts.len(), all.sizes.as_slice(), all.rounds), (7, &SIZES[..], 5));
        assert_eq!((all.cells().count(), all.hybrid), (21, CopyPolicy::Learned));
        let traffic = vec![VhostTraffic::Loop, VhostTraffic::Loop];
        let quick = plan(&VhostOptions { quick: true, traffic, ..options() });
        assert_eq!((quick.cells().count(), quick.rounds), (3, 1));
        let some = plan(&VhostOptions {
            only: vec![VhostPart::Rings, VhostPart::Flat],
            sizes: Some(vec![64, 1518]),
            rings: vec![VhostRing::PackedVec],
            rounds: Some(7),
            threshold: Some(300),
            ..options()
        });
        assert!(some.has(VhostPart::Rings) && !some.has(VhostPart::Copies));
        assert_eq!((some.sizes.as_slice(), some.rounds), (&[64, 1518][..], 7));
        assert_eq!((some.rings.as_slice(), some.hybrid), (&[VhostRing::PackedVec][..], CopyPolicy::From(300)));
    }

    #[test]
    fn a_silent_guest_ends_its_ring_and_earlier_results_stay() {
        let silent = || PeerError::Silent {
            name: "guest".into(),
            wanted: "testpmd> ".into(),
            within: Duration::from_secs(10),
            output: "a\nb".into(),
        };
        let options = VhostOptions {
            sizes: Some(vec![64, 1518]),
            traffic: vec![VhostTraffic::Loop],
            rounds: Some(3),
            own_guest: true,
            ..options()
        };
        let plan = plan(&VhostOptions { own_guest: false, ..options.clone() });
        let mut found = Found::new(&plan, &options);
        let about =
            Grid { part: COPIES, ring: VhostRing::Split, names: &[CPU, NET_VHOST], compared: &[[CPU, NET_VHOST]] };
        let (mut points, cores) = (0, plan.cores);
        let one_core = Plan { cores: Cores { guest: cores.backend, ..cores }, ..plan };
        let held = found.grid(&one_core, &about, |_, _, _| {
            points += 1;
            // The second round, first length, second competitor.
            if points == 6 { Err(silent().into()) } else { Ok(point::Seen { value: 2.0, share: None, counts: Ok(()) }) }
        });
        found.bear(COPIES, VhostRing::Split, held).unwrap();
        assert_eq!(
            found.ratios.iter().map(|ratio| (ratio.place.size, ratio.rounds)).collect::<Vec<_>>(),
            [(64, 1), (1518, 1)]
        );
        let remark = found.remarks.last().unwrap();
        assert!(remark.starts_with("Not measured to its end: copies, split; guest did not print"), "{remark}");
        // A missing peer is an error, and so is an error that does not come from a peer.
        let missing = found.bear(COPIES, VhostRing::Split, Err(PeerError::Missing("nothing".into()).into()));
        assert!(
            missing.is_err() && found.bear(COPIES, VhostRing::Split, Err(BenchError::NotHere("no".into()))).is_err()
        );
    }

    #[test]
    fn packet_lengths_must_fit_ethernet() {
        for size in [63, 4096] {
            let options = VhostOptions { sizes: Some(vec![size]), ..options() };
            let error = run(&options, Machine::read()).unwrap_err().to_string();
            assert!(error.starts_with("--size: packets have from 64 to 2048 bytes"), "{error}");
        }
    }

    #[test]
    fn rates_and_parts_without_a_peer_need_only_our_own_guest() {
        let options = VhostOptions {
            own_guest: true,
            quick: true,
            sizes: Some(vec![64, 1518]),
            only: vec![VhostPart::Copies, VhostPart::Pipeline, VhostPart::Rings],
            ..options()
        };
        let result = run(&options, Machine::read()).unwrap();
        // Busy cores drop points; the points that count have packets.
        assert!(result.rates.iter().all(|rate| rate.mpps > 0.0 && rate.backend != NET_VHOST), "{:?}", result.rates);
        let points: usize = result.rates.iter().map(|rate| rate.points).sum();
        assert_eq!(points, result.points.kept as usize);
        assert_eq!(result.points.kept + result.points.all(), 2 * 3 * 2 * 2);
        assert!(result.ratios.iter().all(|ratio| (ratio.of, ratio.by) == (PIPELINE, CPU)));
        assert_eq!(result.answers.contests.last().map(|answer| answer.name), Some("rings"));
    }
}
