//! How hot each page is: a few bytes a page, which follow mappings that move.

use crate::config::PAGE;
use crate::heap::Heap;
use crate::heat::hints::Advice;
use crate::page_map::{IN_FLIGHT, NO_TIER, RegionPart, WHOLE};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// The samples from which a page's heat is known. Source: chosen; a single sample may be chance.
pub const SURE: u8 = 3;
/// The weight of the average: a sample contributes 1/8 for a page with this many samples.
const MOST_SEEN: u8 = 8;
/// Pages whose tiers are read at once. Source: chosen.
const ROW: usize = 4096;

/// The heat and tier of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHeat {
    /// How hot it is, an average over the latest samples: see [`level`](crate::heat::level). It is the hotter of two
    /// averages: over samples that see only writes, and over samples that see all uses.
    pub heat: u8,
    /// The number of samples, at most 8.
    pub seen: u8,
    /// Its tier, or [`NO_TIER`].
    pub tier: u8,
    /// The tier to which it is pinned, or [`NO_TIER`].
    pub pin: u8,
    /// It is a part of a huge page or of a unit of a shared arena, which moves as a whole.
    pub huge: bool,
    /// The average over samples that see writes, and over those that see all uses.
    averages: [u8; 2],
    /// The numbers of these samples, at most 8 each, in four bits each. Both are 0 if the heat comes from
    /// [advice](crate::heat::Advice).
    looks: u8,
}

/// Indexes of the averages.
const WRITES: usize = 0;
const USES: usize = 1;

impl Default for PageHeat {
    fn default() -> PageHeat {
        PageHeat { heat: 0, seen: 0, tier: NO_TIER, pin: NO_TIER, huge: false, averages: [0; 2], looks: 0 }
    }
}

impl PageHeat {
    /// Creates a page on this tier of which nothing else is known.
    #[must_use]
    pub fn on(tier: u8) -> PageHeat {
        PageHeat { tier, ..PageHeat::default() }
    }

    /// Adds a sample that sees reads and writes. The first eight samples are averaged; later the average decays.
    pub fn observe(&mut self, level: u8) {
        self.look(USES, level);
    }

    /// Adds a sample that sees only writes. It cannot make a page cold that other samples find used.
    pub fn observe_writes(&mut self, level: u8) {
        self.look(WRITES, level);
    }

    fn look(&mut self, what: usize, level: u8) {
        let mut looks = self.looks_of();
        // Advice, or what other sources found before, counts as the average so far.
        let (before, seen) = if looks == [0, 0] { (self.heat, self.seen) } else { (self.averages[what], looks[what]) };
        looks[what] = (seen + 1).min(MOST_SEEN);
        let (heat, level, weight) = (i16::from(before), i16::from(level), i16::from(looks[what]));
        // Rounds away from zero, so that the average reaches the level.
        let step = (level - heat + (level - heat).signum() * (weight - 1)) / weight;
        self.averages[what] = u8::try_from(heat + step).expect("between two bytes");
        self.looks = looks[WRITES] | looks[USES] << 4;
        self.heat = match looks {
            [0, _] => self.averages[USES],
            // One or two samples may be chance.
            [_, 0..SURE] => self.averages[WRITES],
            _ => self.averages[WRITES].max(self.averages[USES]),
        };
        self.seen = looks[WRITES].max(looks[USES]);
    }

    fn looks_of(&self) -> [u8; 2] {
        [self.looks & 15, self.looks >> 4]
    }

    /// Sets the heat by the program's advice, whatever the samples found.
    pub(crate) fn say(&mut self, heat: u8) {
        (self.heat, self.seen, self.looks) = (heat, MOST_SEEN, 0);
    }

    /// Returns whether writes alone make the page this hot, so that samples of other uses add nothing.
    pub(crate) fn is_hot_by_writes(&self, heat: u8) -> bool {
        self.looks_of()[WRITES] >= SURE && self.averages[WRITES] >= heat
    }

    /// Returns whether it was sampled often enough.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.seen >= SURE
    }
}

/// Contiguous pages and their heats.
#[derive(Clone, Copy, Debug)]
pub struct PageHeats<'a> {
    /// The address of the first page.
    pub start: u64,
    /// The pages.
    pub pages: &'a [PageHeat],
}

impl PageHeats<'_> {
    /// Returns the addresses of some of its pages.
    #[must_use]
    pub fn addresses(&self, pages: Range<usize>) -> Range<u64> {
        self.start + pages.start as u64 * PAGE..self.start + pages.end as u64 * PAGE
    }
}

/// The heat of each page of a heap.
#[derive(Debug, Default)]
pub struct HeatMap {
    /// Sorted by address.
    region_parts: Vec<RegionPart>,
    /// The pages of each region.
    lists: BTreeMap<u64, Vec<PageHeat>>,
}

impl HeatMap {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> HeatMap {
        HeatMap::default()
    }

    /// Creates a map of exactly this memory, until [`follow`](HeatMap::follow) changes it: for use without a heap.
    #[must_use]
    pub fn of(ranges: &[Range<u64>]) -> HeatMap {
        let mut map = HeatMap::new();
        let region_parts =
            (1..).zip(ranges).map(|(region, range)| RegionPart { range: range.clone(), region, first: 0 });
        map.follow_parts(region_parts.collect());
        map
    }

    /// Updates the map to the heap's present memory: new pages are unknown, pages that are gone are forgotten, and
    /// pages whose mapping moved keep their heat.
    pub fn follow(&mut self, heap: &Heap) {
        self.follow_parts(heap.inner.region_parts());
    }

    pub(crate) fn follow_parts(&mut self, region_parts: Vec<RegionPart>) {
        if region_parts == self.region_parts {
            return;
        }
        let mut lens = BTreeMap::new();
        for region_part in &region_parts {
            let len = lens.entry(region_part.region).or_insert(0);
            *len = region_part.first.saturating_add(pages_of(&region_part.range)).max(*len);
        }
        self.lists.retain(|region, _| lens.contains_key(region));
        for (region, len) in lens {
            let list = self.lists.entry(region).or_default();
            if list.len() < len {
                list.resize(len, PageHeat::default());
            }
        }
        self.region_parts = region_parts;
    }

    /// Applies advice about parts of the memory, in this order.
    pub(crate) fn apply(&mut self, hints: Vec<(Range<u64>, Advice)>) {
        for (range, advice) in hints {
            self.each_page(&range, |page| match advice {
                Advice::Hot => page.say(u8::MAX),
                Advice::Cold => page.say(0),
                Advice::Pin(tier) => page.pin = tier.0,
                Advice::Unpin => page.pin = NO_TIER,
            });
        }
    }

    /// Reads the tier of each page from the heap.
    ///
    /// # Errors
    /// The page tables cannot be read.
    pub fn refresh(&mut self, heap: &Heap) -> io::Result<()> {
        let mut tiers = [NO_TIER; ROW];
        for region_part in &self.region_parts {
            let Some(list) = self.lists.get_mut(&region_part.region) else { continue };
            let pages = &mut list[region_part.first..][..pages_of(&region_part.range)];
            for (row, pages) in pages.chunks_mut(ROW).enumerate() {
                let tiers = &mut tiers[..pages.len()];
                heap.inner.tiers(region_part.range.start + (row * ROW) as u64 * PAGE, tiers)?;
                for (page, &mut tier) in pages.iter_mut().zip(tiers).filter(|(_, tier)| **tier != IN_FLIGHT) {
                    if tier != NO_TIER {
                        (page.tier, page.huge) = (tier & !WHOLE, tier & WHOLE != 0);
                    } else if page.tier != NO_TIER {
                        // The page was discarded: a page that comes there now is another one.
                        *page = PageHeat { pin: page.pin, ..PageHeat::default() };
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the pages, in address order.
    #[must_use]
    pub fn strips(&self) -> Vec<PageHeats<'_>> {
        let strip = |region_part: &RegionPart| {
            let list = self.lists.get(&region_part.region)?;
            Some(PageHeats {
                start: region_part.range.start,
                pages: &list[region_part.first..][..pages_of(&region_part.range)],
            })
        };
        self.region_parts.iter().filter_map(strip).collect()
    }

    /// Returns the first part of its memory at or behind this address that lies in one block of 2 MiB; none if there is
    /// none.
    #[must_use]
    pub fn block_from(&self, address: u64) -> Option<Range<u64>> {
        let at = self.region_parts.partition_point(|region_part| region_part.range.end <= address);
        let range = &self.region_parts.get(at)?.range;
        let start = range.start.max(address);
        Some(start..range.end.min((start + 1).next_multiple_of(crate::config::HUGE)))
    }

    /// Returns `pages` contiguous pages from a page number on, counted over all memory. A part is followed by the next
    /// one, and the last one by the first.
    pub(crate) fn neighbours(&self, mut number: u64, mut pages: u64) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let pages_in = |region_part: &RegionPart| (region_part.range.end - region_part.range.start) / PAGE;
        // At most once around.
        for region_part in self.region_parts.iter().chain(&self.region_parts) {
            if number >= pages_in(region_part) {
                number -= pages_in(region_part);
                continue;
            }
            let len = pages.min(pages_in(region_part) - number);
            let start = region_part.range.start + number * PAGE;
            ranges.push(start..start + len * PAGE);
            (number, pages) = (0, pages - len);
            if pages == 0 {
                break;
            }
        }
        ranges
    }

    /// Returns the bytes of memory that it covers.
    #[must_use]
    pub fn covers(&self) -> u64 {
        self.region_parts.iter().map(|region_part| region_part.range.end - region_part.range.start).sum()
    }

    /// Returns a page.
    #[must_use]
    pub fn page(&self, address: u64) -> Option<&PageHeat> {
        let (region, index) = self.position_of(address)?;
        self.lists.get(&region)?.get(index)
    }

    /// Returns a page, mutably.
    pub fn page_mut(&mut self, address: u64) -> Option<&mut PageHeat> {
        let (region, index) = self.position_of(address)?;
        self.lists.get_mut(&region)?.get_mut(index)
    }

    fn position_of(&self, address: u64) -> Option<(u64, usize)> {
        let at = self.region_parts.partition_point(|region_part| region_part.range.end <= address);
        let region_part = self.region_parts.get(at).filter(|region_part| region_part.range.start <= address)?;
        let page = usize::try_from((address - region_part.range.start) / PAGE).ok()?;
        Some((region_part.region, region_part.first + page))
    }

    /// Calls `change` for each page of a range that the map covers.
    pub fn each_page(&mut self, range: &Range<u64>, mut change: impl FnMut(&mut PageHeat)) {
        let at = self.region_parts.partition_point(|region_part| region_part.range.end <= range.start);
        for region_part in self.region_parts[at..].iter().take_while(|region_part| region_part.range.start < range.end)
        {
            let part = region_part.range.start.max(range.start)..region_part.range.end.min(range.end);
            let first = region_part.first + pages_of(&(region_part.range.start..part.start));
            if let Some(list) = self.lists.get_mut(&region_part.region) {
                list[first..][..pages_of(&part)].iter_mut().for_each(&mut change);
            }
        }
    }

    /// Prepares for other sources: the heats found so far become their initial average.
    pub(crate) fn hand_over(&mut self) {
        self.lists.values_mut().flatten().for_each(|page| page.looks = 0);
    }

    /// Adds a sample that found no use to each page: for sources that report only used pages.
    pub fn cool(&mut self) {
        for page in self.lists.values_mut().flatten().filter(|page| page.tier != NO_TIER) {
            page.observe(0);
        }
    }

    /// Calls `each` with each present page and its address, to add a sample.
    pub(crate) fn look(&mut self, mut each: impl FnMut(u64, &mut PageHeat)) {
        for region_part in &self.region_parts {
            let Some(list) = self.lists.get_mut(&region_part.region) else { continue };
            let pages = list[region_part.first..][..pages_of(&region_part.range)].iter_mut();
            for (address, page) in (region_part.range.start..).step_by(4096).zip(pages) {
                if page.tier != NO_TIER {
                    each(address, page);
                }
            }
        }
    }

    /// Returns the memory that the map takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lists.values().map(|list| (list.len() * size_of::<PageHeat>()) as u64).sum()
    }
}

fn pages_of(range: &Range<u64>) -> usize {
    usize::try_from((range.end - range.start) / PAGE).expect("pages of this process")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x4000_0000;

    fn page(number: u64) -> u64 {
        BASE + number * PAGE
    }

    fn region_part(pages: Range<u64>, region: u64, first: usize) -> RegionPart {
        RegionPart { range: page(pages.start)..page(pages.end), region, first }
    }

    #[test]
    fn samples_are_averaged_and_decay() {
        let mut heat = PageHeat::default();
        for (level, expected) in [(200, 200), (100, 150), (0, 100), (255, 139)] {
            heat.observe(level);
            assert_eq!(heat.heat, expected, "{heat:?}");
        }
        assert!(heat.is_known() && heat.seen == 4);
        // It reaches both ends, an eighth of the distance with each sample.
        (0..60).for_each(|_| heat.observe(255));
        assert_eq!((heat.heat, heat.seen), (255, 8));
        heat.observe(0);
        assert_eq!(heat.heat, 255 - 32);
        (0..60).for_each(|_| heat.observe(0));
        assert_eq!(heat.heat, 0);
    }

    #[test]
    fn samples_of_writes_do_not_make_a_read_page_cold() {
        let mut page = PageHeat::default();
        (0..8).for_each(|_| page.observe_writes(0));
        assert_eq!((page.heat, page.seen), (0, 8));
        // One or two samples are chance.
        for (look, expected) in [(200, 0), (220, 0), (240, 220), (220, 220)] {
            page.observe(look);
            assert_eq!((page.heat, page.seen), (expected, 8), "{page:?}");
        }
        (0..60).for_each(|_| page.observe_writes(0));
        assert_eq!(page.heat, 220);
        // The hotter of both counts, and the page cools when neither finds it used.
        (0..60).for_each(|_| page.observe_writes(250));
        assert!(page.heat == 250 && page.is_hot_by_writes(250) && !page.is_hot_by_writes(251));
        (0..60).for_each(|_| page.observe_writes(100));
        (0..60).for_each(|_| page.observe(0));
        assert_eq!(page.heat, 100);
    }

    #[test]
    fn heat_found_by_other_sources_decays() {
        let mut map = HeatMap::of(&[page(0)..page(1), page(2)..page(3)]);
        let heat = |map: &HeatMap| map.page(page(0)).unwrap().heat;
        (0..8).for_each(|_| map.page_mut(page(0)).unwrap().observe_writes(200));
        map.hand_over();
        assert_eq!(heat(&map), 200);
        (0..60).for_each(|_| map.page_mut(page(0)).unwrap().observe(7));
        assert_eq!(heat(&map), 7);
    }

    #[test]
    fn advice_decays_with_samples_of_any_source() {
        for look in [PageHeat::observe, PageHeat::observe_writes] {
            let mut page = PageHeat::default();
            (0..8).for_each(|_| page.observe(3));
            page.say(255);
            look(&mut page, 0);
            assert_eq!((page.heat, page.seen), (223, 8));
        }
    }

    #[test]
    fn neighbours_continue_in_the_next_part_and_wrap_around() {
        let map = HeatMap::of(&[page(0)..page(4), page(10)..page(13), page(100)..page(101)]);
        let pages = |number, len| {
            let ranges = map.neighbours(number, len).into_iter();
            ranges.map(|range| (range.start - BASE) / PAGE..(range.end - BASE) / PAGE).collect::<Vec<_>>()
        };
        assert_eq!((pages(1, 4), pages(3, 3)), (vec![1..4, 10..11], vec![3..4, 10..12]));
        assert_eq!(pages(7, 4), [100..101, 0..3]);
        // Each page is in the same number of draws.
        let mut times = [0; 101];
        for number in 0..8 {
            pages(number, 3).into_iter().flatten().for_each(|page| times[usize::try_from(page).unwrap()] += 1);
        }
        assert_eq!([0, 1, 3, 10, 12, 100].map(|page| times[page]), [3; 6]);
        assert_eq!(HeatMap::new().neighbours(0, 3), []);
    }

    #[test]
    fn heat_follows_a_mapping_that_moves() {
        let mut map = HeatMap::new();
        map.follow_parts(vec![region_part(0..100, 1, 0)]);
        map.page_mut(page(30)).unwrap().heat = 77;
        map.page_mut(page(60)).unwrap().heat = 88;
        // Pages 20 to 40 are at 500 now, and pages 40 to 50 are gone.
        map.follow_parts(vec![region_part(0..20, 1, 0), region_part(50..100, 1, 50), region_part(500..520, 1, 20)]);
        assert_eq!((map.page(page(510)).unwrap().heat, map.page(page(60)).unwrap().heat), (77, 88));
        assert_eq!((map.page(page(30)), map.page(page(520)), map.page(BASE - 1)), (None, None, None));
        assert_eq!(map.covers(), 90 * PAGE);
        // Another region at the same address is unknown.
        map.follow_parts(vec![region_part(50..100, 2, 0)]);
        assert_eq!(map.page(page(60)).unwrap().heat, 0);
        assert_eq!(map.bytes(), 50 * size_of::<PageHeat>() as u64);
    }

    #[test]
    fn ranges_are_changed_where_there_is_memory() {
        let mut map = HeatMap::new();
        map.follow_parts(vec![region_part(0..10, 1, 0), region_part(20..30, 2, 0), region_part(30..40, 1, 10)]);
        map.each_page(&(page(5)..page(35)), |page| page.pin = 1);
        let pinned: Vec<u64> = (0..50).filter(|&at| map.page(page(at)).is_some_and(|page| page.pin == 1)).collect();
        assert_eq!(pinned, (5..10).chain(20..35).collect::<Vec<_>>());
        let strips = map.strips();
        assert_eq!(
            strips.iter().map(|strip| (strip.start, strip.pages.len())).collect::<Vec<_>>(),
            [(page(0), 10), (page(20), 10), (page(30), 10)]
        );
        assert_eq!(strips[2].addresses(3..5), page(33)..page(35));
    }

    #[test]
    fn blocks_end_where_huge_pages_do() {
        let mut map = HeatMap::new();
        map.follow_parts(vec![region_part(10..1000, 1, 0), region_part(1024..1030, 2, 0)]);
        let block =
            |address| map.block_from(address).map(|block| ((block.start - BASE) / PAGE, (block.end - BASE) / PAGE));
        assert_eq!([0, 10, 511].map(|at| block(page(at))), [Some((10, 512)), Some((10, 512)), Some((511, 512))]);
        assert_eq!(
            [512, 1000, 1029].map(|at| block(page(at))),
            [Some((512, 1000)), Some((1024, 1030)), Some((1029, 1030))]
        );
        assert_eq!(block(page(1030)), None);
    }

    #[test]
    fn unreported_pages_cool_down() {
        let mut map = HeatMap::of(&[page(0)..page(1), page(1)..page(2)]);
        for at in [0, 1] {
            let tier = if at == 0 { 1 } else { NO_TIER };
            *map.page_mut(page(at)).unwrap() = PageHeat { heat: 160, seen: 8, tier, ..PageHeat::default() };
        }
        map.cool();
        assert_eq!(
            [0, 1].map(|at| map.page(page(at)).unwrap().heat),
            [140, 160],
            "a page that is not present is not sampled"
        );
    }
}
