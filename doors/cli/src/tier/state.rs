//! The states that processes write to their files, as the data from which telpher-report makes tables.

use telpher_report::tier::{Counts, HeatRow, Ignored, Move, Point, ProcessState, TierState, Tracking};
use telpher_tier_wire as wire;

/// Returns the states as data for tables.
pub(super) fn for_tables(states: &[wire::State]) -> Vec<ProcessState> {
    states.iter().cloned().map(process).collect()
}

fn process(state: wire::State) -> ProcessState {
    ProcessState {
        pid: state.pid,
        command: state.command,
        seconds: state.seconds,
        ended: state.ended,
        error: state.error,
        mechanism: state.mechanism,
        tiers: state.tiers.into_iter().map(tier).collect(),
        home: state.home,
        mappings: state.mappings,
        mapped_bytes: state.mapped_bytes,
        most_mapped_bytes: state.most_mapped_bytes,
        ignored: state.ignored.into_iter().map(ignored).collect(),
        counts: counts(state.counts),
        points: state.points.into_iter().map(point).collect(),
        tracking: tracking(state.tracking),
        heat: state.heat.into_iter().map(heat).collect(),
        tracer: state.tracer,
        paused: state.paused,
        held_seconds: state.held_seconds,
        transparent_huge_pages: state.transparent_huge_pages,
    }
}

fn tier(state: wire::TierState) -> TierState {
    let wire::TierState { name, node, bytes, pages, most_pages, mean_pages, free } = state;
    TierState { name, node, bytes, pages, most_pages, mean_pages, free }
}

fn ignored(ignored: wire::Ignored) -> Ignored {
    let wire::Ignored { reason, mappings, bytes } = ignored;
    Ignored { reason, mappings, bytes }
}

fn counts(counts: wire::Counts) -> Counts {
    Counts {
        moved: counts.moved,
        promoted: counts.promoted,
        demoted: counts.demoted,
        huge: counts.huge,
        stayed: counts.stayed.into_iter().map(|wire::Move { what, pages }| Move { what, pages }).collect(),
        exchanges: counts.exchanges,
        dropped: counts.dropped,
        forks: counts.forks,
        moving_seconds: counts.moving_seconds,
        copying_seconds: counts.copying_seconds,
        lost: counts.lost,
    }
}

fn point(point: wire::Point) -> Point {
    let wire::Point { seconds, pages, promoted, demoted } = point;
    Point { seconds, pages, promoted, demoted }
}

fn tracking(tracking: wire::Tracking) -> Tracking {
    Tracking {
        source: tracking.source,
        without_damon: tracking.without_damon,
        lost: tracking.lost,
        core_share: tracking.core_share,
        faults: tracking.faults,
        waited_seconds: tracking.waited_seconds,
        moving_share: tracking.moving_share,
        holds: tracking.holds,
        most_known: tracking.most_known,
        most_hot: tracking.most_hot,
    }
}

fn heat(row: wire::HeatRow) -> HeatRow {
    let wire::HeatRow { start, end, heat, pages } = row;
    HeatRow { start, end, heat, pages }
}
