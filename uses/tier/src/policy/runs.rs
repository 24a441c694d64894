//! Runs of contiguous pages with the same destination.

use crate::config::{HUGE, IN_HUGE, PAGE};
use crate::heat::{NO_TIER, PageHeat, PageHeats};
use std::ops::Range;

/// Warm pages between hot ones that move with them, because one run costs less than two. Source: chosen, see
/// `RUN_BYTES`.
const GAP: usize = 4;

/// Contiguous pages with the same destination; at most 2 MiB.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) range: Range<u64>,
    pub(super) from: u8,
    pub(super) to: u8,
    /// The average heat.
    pub(super) heat: u8,
    /// A huge page, or a unit that moves as a whole.
    pub(super) whole: bool,
}

impl Run {
    pub(super) fn pages(&self) -> u64 {
        (self.range.end - self.range.start) / PAGE
    }
}

/// The runs that may move.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// To the tier they are pinned to.
    pub(super) pinned: Vec<Run>,
    /// To a faster tier.
    pub(super) hot: Vec<Run>,
    /// To a slower tier, which is still to be chosen.
    pub(super) cold: Vec<Run>,
}

/// The smallest set of pages that moves together.
#[derive(Clone, Debug)]
struct Unit {
    pages: Range<usize>,
    tier: u8,
    heat: u8,
    kind: Kind,
    whole: bool,
}

/// What to do with a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Move to the tier that it is pinned to.
    Pinned(u8),
    /// Move to this faster tier.
    Hot(u8),
    /// Move to a slower tier if there is a reason.
    Cold,
    /// Neither hot nor cold, on this tier.
    Warm(u8),
    /// Leave it where it is.
    Stays,
}

/// Returns the runs in these strips. `hot` is the heat from which pages belong on each tier or a faster one.
pub(super) fn runs(strips: &[PageHeats<'_>], hot: &[u8], margin: u8) -> Runs {
    let mut runs = Runs::default();
    for strip in strips {
        let mut open: Option<Open> = None;
        let mut at = 0;
        while at < strip.pages.len() {
            let unit = unit(strip, at, hot, margin);
            at = unit.pages.end;
            let ends_block = |open: &Open| {
                let address = strip.addresses(unit.pages.clone()).start;
                address / HUGE != open.start / HUGE
            };
            if let Some(run) = open.take_if(|open| ends_block(open) || !open.goes_on(&unit)) {
                run.close(strip, &mut runs);
            }
            match &mut open {
                Some(open) => open.extend(&unit),
                None if matches!(unit.kind, Kind::Stays | Kind::Warm(_)) => {}
                None => open = Some(Open::new(strip, &unit)),
            }
        }
        if let Some(run) = open {
            run.close(strip, &mut runs);
        }
    }
    runs
}

fn unit(strip: &PageHeats<'_>, at: usize, hot: &[u8], margin: u8) -> Unit {
    let first = &strip.pages[at];
    let block = strip.pages.get(at..at + IN_HUGE).filter(|block| {
        let aligned = strip.addresses(at..at).start.is_multiple_of(HUGE);
        aligned && block.iter().all(|page| page.huge && page.tier == first.tier)
    });
    let Some(block) = block else {
        // A part of a huge page that is not complete here would split the huge page.
        let kind = if first.huge { Kind::Stays } else { kind(first, hot, margin) };
        return Unit { pages: at..at + 1, tier: first.tier, heat: first.heat, kind, whole: false };
    };
    let sum: usize = block.iter().map(|page| usize::from(page.heat)).sum();
    let heat = u8::try_from(sum / IN_HUGE).expect("an average of bytes");
    let pin = block.iter().map(|page| page.pin).find(|&pin| pin != NO_TIER).unwrap_or(NO_TIER);
    let seen = block.iter().map(|page| page.seen).max().unwrap_or(0);
    let mut whole = *first;
    (whole.heat, whole.pin, whole.seen) = (heat, pin, seen);
    let kind = kind(&whole, hot, margin);
    Unit { pages: at..at + IN_HUGE, tier: first.tier, heat, kind, whole: true }
}

fn kind(page: &PageHeat, hot: &[u8], margin: u8) -> Kind {
    if page.tier == NO_TIER {
        return Kind::Stays;
    }
    if page.pin != NO_TIER {
        return if page.pin == page.tier { Kind::Stays } else { Kind::Pinned(page.pin) };
    }
    if !page.is_known() {
        return Kind::Stays;
    }
    let belongs = hot.iter().position(|&hot| page.heat >= hot).and_then(|tier| u8::try_from(tier).ok());
    match (belongs, hot.get(usize::from(page.tier))) {
        (Some(tier), _) if tier < page.tier => Kind::Hot(tier),
        // If the threshold is low, the limited margin still leaves some heat below it that is cold.
        (_, Some(hot)) if page.heat < hot.saturating_sub(margin.min(hot / 2)) => Kind::Cold,
        _ => Kind::Warm(page.tier),
    }
}

/// A run that may be extended.
#[derive(Debug)]
struct Open {
    start: u64,
    first: Unit,
    /// The end of the last page of its kind, and the number of other pages behind it that may be bridged.
    end: usize,
    gap: usize,
    /// The sum of the heats of the units of its kind, and their number.
    heat: u64,
    units: u64,
}

impl Open {
    fn new(strip: &PageHeats<'_>, unit: &Unit) -> Open {
        let start = strip.addresses(unit.pages.clone()).start;
        let (end, heat) = (unit.pages.end, unit.heat.into());
        Open { start, first: unit.clone(), end, gap: 0, heat, units: 1 }
    }

    fn goes_on(&self, unit: &Unit) -> bool {
        if unit.tier != self.first.tier || unit.whole || self.first.whole {
            return false;
        }
        let bridges = matches!((self.first.kind, unit.kind), (Kind::Hot(_), Kind::Warm(_)) if self.gap < GAP);
        unit.kind == self.first.kind || bridges
    }

    fn extend(&mut self, unit: &Unit) {
        if unit.kind == self.first.kind {
            (self.end, self.gap) = (unit.pages.end, 0);
            self.heat += u64::from(unit.heat);
            self.units += 1;
        } else {
            self.gap += 1;
        }
    }

    fn close(self, strip: &PageHeats<'_>, runs: &mut Runs) {
        let range = strip.addresses(self.first.pages.start..self.end);
        let heat = u8::try_from(self.heat / self.units).expect("an average of bytes");
        let (from, whole) = (self.first.tier, self.first.whole);
        let run = |to| Run { range, from, to, heat, whole };
        match self.first.kind {
            Kind::Pinned(to) => runs.pinned.push(run(to)),
            Kind::Hot(to) => runs.hot.push(run(to)),
            Kind::Cold => runs.cold.push(run(from)),
            Kind::Warm(_) | Kind::Stays => {}
        }
    }
}
