//! The location of the data: Figures 6 and 15.

use crate::experiments::measure::{core_alone, submit_and_wait};
use crate::figures::sweep::{DEPTH, FROM_64, SIZES, axis, measured, over_sizes, rates, throughput};
use crate::figures::{Axis, Mark, Panel, Result, Scale, Series, place_mark};
use crate::lab::Lab;
use crate::setups::{alone, asplos, by_core, flushed, in_flight};
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{AccessPattern, BufferPlacement, LineLocation, Scenario, Stream};

const COPY: Opcode = Opcode::MemoryMove;
const LOCAL: BufferPlacement = BufferPlacement::on(0);
/// The other socket's memory.
const REMOTE: BufferPlacement = BufferPlacement::on(1);
/// The CXL board's.
const CXL: BufferPlacement = BufferPlacement::on(2);
const CACHED: BufferPlacement = BufferPlacement { lines: LineLocation::Llc, ..LOCAL };

/// Source and destination, named as in the paper's legends.
type Places = (&'static str, BufferPlacement, BufferPlacement);

fn setup() -> Scenario {
    asplos(1, WqMode::Dedicated, 1)
}

/// Destinations in the cache get the cache hint.
fn copies(stream: Stream, (_, src, dst): Places) -> Stream {
    Stream { src, dst, cache_control: dst.lines == LineLocation::Llc, ..stream }
}

fn microseconds() -> Axis {
    axis("latency", "µs", Scale::Log)
}

/// Throughput and latency of copies one at a time: by the device between all places, by a core between some.
fn one_at_a_time(
    lab: &Lab,
    part: &str,
    device: &[Places],
    core: &[Places],
    marks: [Vec<Mark>; 2],
) -> Result<[Panel; 2]> {
    let mut series: [Vec<Series>; 2] = [Vec::new(), Vec::new()];
    let mut add = |name: String, nanos: &mut dyn FnMut(u32) -> Result<f64>| {
        let latency = measured(name.clone(), SIZES, |size| Ok(nanos(size)? / 1e3))?;
        let rates = latency.points.iter().map(|(size, us)| (*size, size / us / 1e3)).collect();
        series[0].push(Series { points: rates, ..latency.clone() });
        series[1].push(latency);
        Ok(())
    };
    for places in device {
        add(format!("device: {}", places.0), &mut |size| {
            submit_and_wait(lab, &alone(setup(), copies(flushed(COPY, size, 1), *places)))
        })?;
    }
    for (name, src, dst) in core {
        add(format!("core: {name}"), &mut |size| core_alone(lab, setup(), COPY, size, *src, *dst))?;
    }
    let ([rates, latencies], [high, low]) = (series, marks);
    Ok([
        over_sizes(format!("{part}throughput"), throughput(), rates, high),
        over_sizes(format!("{part}latency"), microseconds(), latencies, low),
    ])
}

pub(super) fn figure_6(lab: &Lab) -> Result<Vec<Panel>> {
    let sockets = [("L,L", LOCAL, LOCAL), ("L,R", LOCAL, REMOTE), ("R,L", REMOTE, LOCAL), ("R,R", REMOTE, REMOTE)];
    let boards = [("D,D", LOCAL, LOCAL), ("D,C", LOCAL, CXL), ("C,D", CXL, LOCAL), ("C,C", CXL, CXL)];
    let even = vec![place_mark("K-035")];
    let sockets = one_at_a_time(lab, "(a) two sockets, ", &sockets, &sockets[1..2], [Vec::new(), even])?;
    let boards = one_at_a_time(lab, "(b) CXL, ", &boards, &boards[3..], [Vec::new(), Vec::new()])?;
    Ok(sockets.into_iter().chain(boards).collect())
}

pub(super) fn figure_15(lab: &Lab) -> Result<Vec<Panel>> {
    let places = [("L,L", CACHED, CACHED), ("L,D", CACHED, LOCAL), ("D,L", LOCAL, CACHED), ("D,D", LOCAL, LOCAL)];
    let some = [places[0], places[3]];
    let pays = |claim| vec![place_mark(claim)];
    let one = one_at_a_time(lab, "one at a time, ", &places, &some, [pays("K-064"), pays("K-064")])?;
    let mut many = Vec::new();
    for of in places {
        let scenario = |size| alone(setup(), copies(in_flight(COPY, size, DEPTH, 1), of));
        many.push(rates(lab, format!("device: {}", of.0), FROM_64, scenario)?);
    }
    for (name, src, dst) in some {
        let scenario = |size| alone(setup(), Stream { src, dst, walk: AccessPattern::Random, ..by_core(COPY, size) });
        many.push(rates(lab, format!("core: {name}"), FROM_64, scenario)?);
    }
    let many = over_sizes("asynchronous, throughput", throughput(), many, pays("K-065"));
    Ok(one.into_iter().chain([many]).collect())
}
