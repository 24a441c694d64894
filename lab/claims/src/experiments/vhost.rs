//! White paper 758358, §2.3, §3.4 and §4, and Kuper et al., §6.4: a switch's core, with and without the device.
//!
//! One device, four engines, two dedicated queues of 64 entries, as in its Table 7.

use super::measure::{listed, never_falls, three};
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::on;
use telpher_abi::Opcode;
use telpher_device::{Config, WqConfig, WqMode};
use telpher_sim::{App, CopyBy, ExecutedBy, Outcome, QueueId, Scenario, ScenarioError, Stream, Vhost, Workload};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("K-070", |lab| Ok(Found::Number(copy_share(lab, 512)?))),
    ("K-071", copy_share_of_long_packets),
    ("K-075", flat),
    ("K-076", gain),
    ("V-004", bursts),
    ("V-010", |lab| Ok(Found::Number(copy_share(lab, 1518)?))),
    ("V-011", copy_share_grows),
    ("V-012", rate_falls),
    ("V-020", |lab| by_core(lab, 64)),
    ("V-021", |lab| by_core(lab, 128)),
    ("V-022", |lab| by_core(lab, 256)),
    ("V-023", |lab| by_core(lab, 512)),
    ("V-024", |lab| by_core(lab, 1024)),
    ("V-025", |lab| by_core(lab, 1280)),
    ("V-026", |lab| by_core(lab, 1518)),
    ("V-030", gain),
    ("V-031", loss),
    ("V-032", flat),
    ("V-033", bandwidth),
    ("V-034", small_packets),
    ("V-035", in_order),
    ("V-100", |lab| by_device(lab, 64)),
    ("V-101", |lab| by_device(lab, 128)),
    ("V-102", |lab| by_device(lab, 256)),
    ("V-103", |lab| by_device(lab, 512)),
    ("V-104", |lab| by_device(lab, 1024)),
    ("V-105", |lab| by_device(lab, 1280)),
    ("V-106", |lab| by_device(lab, 1518)),
];

/// Both, as in telpher: the core below 300 bytes, where it is faster (V-031), the device from that size on (V-030).
pub(crate) const HYBRID: CopyBy = match CopyBy::DEVICE {
    CopyBy::Device { enqueue, dequeue } => CopyBy::Hybrid { from: 300, enqueue, dequeue },
    other => other,
};

pub(crate) const PACKETS: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
const LONG: [u32; 4] = [512, 1024, 1280, 1518];

/// The switch on the white paper's machine.
fn switch(app: Vhost) -> Scenario {
    let mut scenario = on("xeon-8471n", 1, WqMode::Dedicated, 4);
    let mut config = Config::single(WqMode::Dedicated, 64, 4);
    config.groups[0].grouped_workqueues.push(WqConfig::new(1, WqMode::Dedicated, 64));
    scenario.devices = vec![config];
    scenario.with("switch", 1, Workload::App(App::Vhost(app)))
}

/// A measure of an application; NaN if it has none of this name.
pub(crate) fn measured(outcome: &Outcome, name: &str) -> f64 {
    outcome.loads[0].measures.iter().find(|measure| measure.name == name).map_or(f64::NAN, |measure| measure.value)
}

pub(crate) fn forwarding(lab: &Lab, packet_bytes: u32, copies: CopyBy) -> Result<f64> {
    let app = Vhost { packet_bytes, copies, ..Vhost::default() };
    Ok(measured(&*lab.run(&switch(app))?, "forwarding rate"))
}

fn by_core(lab: &Lab, packet_bytes: u32) -> Result {
    Ok(Found::Number(forwarding(lab, packet_bytes, CopyBy::Core)?))
}

fn by_device(lab: &Lab, packet_bytes: u32) -> Result {
    Ok(Found::Number(forwarding(lab, packet_bytes, CopyBy::DEVICE)?))
}

fn rates(lab: &Lab, copies: CopyBy) -> Result<Vec<f64>> {
    PACKETS.into_iter().map(|packet| forwarding(lab, packet, copies)).collect()
}

pub(crate) fn copy_share(lab: &Lab, packet_bytes: u32) -> Result<f64> {
    let app = Vhost { packet_bytes, copies: CopyBy::Core, ..Vhost::default() };
    Ok(measured(&*lab.run(&switch(app))?, "core cycles in copies"))
}

fn copy_share_of_long_packets(lab: &Lab) -> Result {
    let of = |packet: u32| Ok((format!("{packet} B"), copy_share(lab, packet)?));
    Ok(Found::Numbers([1280, 1518].into_iter().map(of).collect::<Result<_>>()?))
}

fn copy_share_grows(lab: &Lab) -> Result {
    let shares = PACKETS.into_iter().map(|packet| copy_share(lab, packet)).collect::<Result<Vec<_>>>()?;
    Ok(Found::shape(never_falls(&shares, 0.0) && shares[6] > shares[0], format!("64 to 1518 B: {} %", listed(&shares))))
}

fn rate_falls(lab: &Lab) -> Result {
    let mut rates = rates(lab, CopyBy::Core)?;
    let shown = format!("64 to 1518 B: {} Mpps", listed(&rates));
    rates.reverse();
    Ok(Found::shape(never_falls(&rates, 0.0), shown))
}

fn flat(lab: &Lab) -> Result {
    let rates = rates(lab, CopyBy::DEVICE)?;
    let (least, most) = rates.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), rate| (l.min(*rate), m.max(*rate)));
    Ok(Found::Number(most / least))
}

fn gains(lab: &Lab, packets: &[u32]) -> Result<Vec<(String, f64)>> {
    let of = |packet: &u32| {
        let gain = forwarding(lab, *packet, CopyBy::DEVICE)? / forwarding(lab, *packet, CopyBy::Core)?;
        Ok((format!("{packet} B"), gain))
    };
    packets.iter().map(of).collect()
}

fn gain(lab: &Lab) -> Result {
    Ok(Found::Numbers(gains(lab, &LONG)?))
}

fn loss(lab: &Lab) -> Result {
    Ok(Found::Numbers(gains(lab, &PACKETS[..3])?))
}

fn bandwidth(lab: &Lab) -> Result {
    Ok(Found::Number(forwarding(lab, 1518, CopyBy::DEVICE)? * 1e6 * 2.0 * 1518.0 / 1e9))
}

fn small_packets(lab: &Lab) -> Result {
    let (core, device) = (forwarding(lab, 64, CopyBy::Core)?, forwarding(lab, 64, CopyBy::DEVICE)?);
    Ok(Found::shape(core > device, format!("64 B: core {} Mpps, device {}", three(core), three(device))))
}

/// Beside another user's long copies, which occupy engines so that batches overtake each other.
fn in_order(lab: &Lab) -> Result {
    let app = Vhost { packet_bytes: 1518, copies: CopyBy::DEVICE, warm_up: 0, ..Vhost::default() };
    let mut scenario = switch(app);
    scenario.devices[0] = Config::single(WqMode::Dedicated, 32, 4);
    for queue in [1, 2] {
        scenario.devices[0].groups[0].grouped_workqueues.push(WqConfig::new(queue, WqMode::Dedicated, 32));
    }
    let other = ExecutedBy::Device(QueueId { device: 0, wq: 2, shared: false });
    let long = Stream { by: other, depth: 2, submissions: 500, ..Stream::of(Opcode::MemoryMove, 1 << 20) };
    let outcome = lab.run(&scenario.with("long copies", 1, Workload::Stream(long)))?;
    let of = |name| measured(&outcome, name);
    let overtaking = of("batches that overtook another");
    let wrong = of("packets out of order") + of("packets not whole") + of("chains dropped");
    let shown = format!("{overtaking} batches overtook another, {wrong} packets did, or were not whole");
    Ok(Found::shape(overtaking > 0.0 && wrong == 0.0, shown))
}

fn bursts(lab: &Lab) -> Result {
    let mut gains = Vec::new();
    let (mut holds, mut shown) = (true, Vec::new());
    for packet_bytes in [64, 1518] {
        let of = |burst| {
            let app = Vhost { packet_bytes, burst, copies: CopyBy::DEVICE, packets: 5000, ..Vhost::default() };
            Ok(measured(&*lab.run(&switch(app))?, "forwarding rate"))
        };
        let rates = [1, 4, 8, 16, 32].map(of).into_iter().collect::<Result<Vec<_>>>()?;
        holds &= never_falls(&rates, 0.01);
        gains.push(forwarding(lab, packet_bytes, CopyBy::DEVICE)? / forwarding(lab, packet_bytes, CopyBy::Core)?);
        shown.push(format!("{packet_bytes} B: {} Mpps", listed(&rates)));
    }
    // The worst case are small packets: they gain least.
    Ok(Found::shape(holds && gains[0] < gains[1], format!("bursts of 1, 4, 8, 16, 32: {}", shown.join("; "))))
}
