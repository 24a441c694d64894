//! Performance counters. Source: SPEC ch. 6, §9.2.25. If no counter is enabled, an event costs one load.

use crate::capabilities::MAX_COUNTERS;
use crate::device::Device;
use crate::sync::Word;
use telpher_abi::perfmon::{CntrCfg, Event, PerfCap, offset};
use telpher_abi::registers::{IntCause, VERSION_2};

/// Filters of a counter: queue, traffic class, page size, transfer size, engine, PASID.
const FILTERS: usize = 6;
/// Bits of a counter. Source: *assumed* (K612 reads it from PERFCAP; published dumps show 48).
const WIDTH: u8 = 48;

/// The registers of the performance monitoring block.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Perfmon {
    /// Counters that are enabled and not frozen, one bit each; the hot path reads only this.
    live: Word,
    frozen: Word,
    overflow: Word,
    config: [Word; MAX_COUNTERS],
    data: [Word; MAX_COUNTERS],
    filters: [[Word; FILTERS]; MAX_COUNTERS],
}

impl Default for Perfmon {
    fn default() -> Self {
        Perfmon {
            live: Word::default(),
            frozen: Word::default(),
            overflow: Word::default(),
            config: std::array::from_fn(|_| Word::default()),
            data: std::array::from_fn(|_| Word::default()),
            filters: std::array::from_fn(|_| Default::default()),
        }
    }
}

impl Perfmon {
    /// True if any counter counts.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        self.live.get() != 0
    }

    /// PERFRST: bit 0 resets the configuration, bit 1 the counters.
    pub(crate) fn reset(&self, what: u32) {
        for counter in 0..MAX_COUNTERS {
            if what & 1 != 0 {
                self.config[counter].set(0);
                for filter in &self.filters[counter] {
                    filter.set(u32::MAX.into());
                }
            }
            if what & 2 != 0 {
                self.data[counter].set(0);
            }
        }
        if what & 1 != 0 {
            self.frozen.set(0);
        }
        if what & 2 != 0 {
            self.overflow.set(0);
        }
        self.refresh();
    }

    fn refresh(&self) {
        let enabled = self
            .config
            .iter()
            .enumerate()
            .fold(0, |live, (n, config)| live | u64::from(CntrCfg([config.get()]).enable()) << n);
        self.live.set(enabled & !self.frozen.get());
    }
}

/// Returns the bit of the transfer-size filter for a size. Source: SPEC App. D.
fn size_filter(size: u64) -> u64 {
    const BOUNDS: [u64; 7] = [512, 2 << 10, 4 << 10, 16 << 10, 1 << 20, 64 << 20, 1 << 30];
    1 << BOUNDS.iter().take_while(|bound| size >= **bound).count()
}

impl Device {
    /// Adds `amount` to the counters of an event, filtered by queue, engine and transfer size, as far as they are
    /// known.
    #[inline]
    pub(crate) fn count(&self, event: Event, amount: u64, wq: Option<usize>, engine: Option<usize>, size: Option<u64>) {
        if self.perfmon.is_counting() {
            self.count_enabled(event, amount, wq, engine, size);
        }
    }

    #[cold]
    fn count_enabled(&self, event: Event, amount: u64, wq: Option<usize>, engine: Option<usize>, size: Option<u64>) {
        let perfmon = &self.perfmon;
        for counter in 0..usize::from(self.capabilities.counters).min(MAX_COUNTERS) {
            let config = CntrCfg([perfmon.config[counter].get()]);
            let wanted = perfmon.live.get() >> counter & 1 == 1
                && config.category() == event.category
                && config.events() & event.bit != 0
                && self.has_event(event);
            let filters = &perfmon.filters[counter];
            let passes = |filter: usize, bit: Option<u64>| bit.is_none_or(|bit| filters[filter].get() & bit != 0);
            if !wanted
                || !passes(0, wq.map(|wq| 1 << wq))
                || !passes(3, size.map(size_filter))
                || !passes(4, engine.map(|engine| 1 << engine))
            {
                continue;
            }
            let before = perfmon.data[counter].add(amount);
            if before.wrapping_add(amount) >> WIDTH != 0 {
                perfmon.data[counter].and((1 << WIDTH) - 1);
                self.counter_overflowed(counter, config);
            }
        }
    }

    fn counter_overflowed(&self, counter: usize, config: CntrCfg) {
        self.perfmon.overflow.or(1 << counter);
        if config.global_freeze() {
            self.perfmon.frozen.set((1 << MAX_COUNTERS) - 1);
            self.perfmon.refresh();
        }
        if config.interrupt() {
            self.cause(IntCause::PERFMON, |_| true);
        }
    }

    /// True if the device's version has this event, and not another one at its place.
    pub(crate) fn has_event(&self, event: Event) -> bool {
        event.since() <= self.capabilities.version
    }

    /// Reads a register of the block at an 8-byte aligned offset.
    pub(crate) fn read_perfmon(&self, at: u64) -> u64 {
        let perfmon = &self.perfmon;
        let counters = u64::from(self.capabilities.counters);
        #[allow(clippy::cast_possible_truncation, reason = "bounded by the block's size")]
        let index = |base: u64, stride: u64| ((at - base) / stride) as usize;
        match at {
            offset::PERFCAP => {
                // Operations of 2.0 and later have a second category.
                let categories = if self.capabilities.version >= VERSION_2 { 6 } else { 5 };
                PerfCap::default()
                    .with_counters(self.capabilities.counters)
                    .with_counter_width(WIDTH)
                    .with_categories(categories)
                    .with_global_categories((1 << categories) - 1)
                    // Queue, transfer size, engine: the filters that the model supports.
                    .with_filters(0b01_1001)
                    .with_writable(true)
                    .with_freeze(true)
                    .with_overflow_interrupt(true)
                    .0[0]
            }
            offset::PERFFRZ => perfmon.frozen.get(),
            offset::OVFSTATUS => perfmon.overflow.get(),
            offset::EVNTCAP..0xc0 => {
                let category = (at - offset::EVNTCAP) / 8;
                Event::named()
                    .map(|(_, event)| event)
                    .filter(|event| u64::from(event.category) == category && self.has_event(*event))
                    .fold(0, |bits, event| bits | u64::from(event.bit))
            }
            offset::CNTRCFG..0x200 if (at - offset::CNTRCFG) / 8 < counters => {
                perfmon.config.get(index(offset::CNTRCFG, 8)).map_or(0, Word::get)
            }
            offset::CNTRDATA..0x300 if (at - offset::CNTRDATA) / 8 < counters => {
                perfmon.data.get(index(offset::CNTRDATA, 8)).map_or(0, Word::get)
            }
            offset::FLTCFG..0x800 => {
                let pair = index(0, 8) * 2 % 8;
                let Some(filters) = perfmon.filters.get(index(offset::FLTCFG, 32)) else { return 0 };
                let word = |n: usize| filters.get(n).map_or(0, Word::get);
                word(pair) | word(pair + 1) << 32
            }
            _ => 0,
        }
    }

    /// Writes the low or high 32 bits, or all 64, of a register of the block.
    pub(crate) fn write_perfmon(&self, at: u64, value: u64) {
        let perfmon = &self.perfmon;
        let counters = u64::from(self.capabilities.counters);
        #[allow(clippy::cast_possible_truncation, reason = "bounded by the block's size")]
        let index = |base: u64, stride: u64| ((at - base) / stride) as usize;
        match at {
            offset::PERFRST => perfmon.reset((value & 3) as u32),
            offset::PERFFRZ => perfmon.frozen.set(value & ((1 << MAX_COUNTERS) - 1)),
            offset::OVFSTATUS => {
                perfmon.overflow.and(!value);
            }
            offset::CNTRCFG..0x200 if (at - offset::CNTRCFG) / 8 < counters => {
                if let Some(word) = perfmon.config.get(index(offset::CNTRCFG, 8)) {
                    word.set(value);
                }
            }
            offset::CNTRDATA..0x300 if (at - offset::CNTRDATA) / 8 < counters => {
                if let Some(word) = perfmon.data.get(index(offset::CNTRDATA, 8)) {
                    word.set(value & ((1 << WIDTH) - 1));
                }
            }
            offset::FLTCFG..0x800 => {
                let pair = index(0, 8) * 2 % 8;
                let Some(filters) = perfmon.filters.get(index(offset::FLTCFG, 32)) else { return };
                for (n, half) in [(pair, value & 0xffff_ffff), (pair + 1, value >> 32)] {
                    if let Some(word) = filters.get(n) {
                        word.set(half);
                    }
                }
            }
            _ => {}
        }
        perfmon.refresh();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Preset;
    use crate::device::PciControl;

    fn device(preset: Preset) -> Box<Device> {
        Device::new(preset.capabilities(), PciControl::SHARED_VIRTUAL_MEMORY).unwrap()
    }

    /// EVNTCAP of each category.
    fn events(device: &Device) -> [u64; 8] {
        std::array::from_fn(|category| device.read_perfmon(offset::EVNTCAP + 8 * category as u64))
    }

    /// Source: SPEC App. D.
    #[test]
    fn a_device_has_the_events_of_its_version() {
        let v1 = [0x3f, 0x3f, 0x33, 0x1_ffff, 0x3f, 0, 0, 0];
        let v2 = [0x3f, 0x6ff, 0x33, 0xe07_ffff, 0x3f, 0x40f, 0, 0];
        let v3 = [0x3f, 0x6ff, 0x33, 0xe07_ffff, 0x3f, 0x3_fc0f, 0, 0];
        for (preset, expected, categories) in [
            (Preset::Spr, v1, 5),
            (Preset::SprFw2, v1, 5),
            (Preset::Full, v1, 5),
            (Preset::Srf, v2, 6),
            (Preset::V2Full, v2, 6),
            (Preset::V3Full, v3, 6),
        ] {
            let device = device(preset);
            assert_eq!(events(&device), expected, "{preset:?}");
            let capability = PerfCap([device.read_perfmon(offset::PERFCAP)]);
            assert_eq!(capability.categories(), categories, "{preset:?}");
            assert_eq!(capability.global_categories(), (1 << categories) - 1, "{preset:?}");
        }
    }

    /// In 1.x these bits are other events, which the model does not count.
    #[test]
    fn an_event_of_a_later_version_is_not_counted() {
        for (preset, count) in [(Preset::Full, 0), (Preset::V2Full, 3)] {
            let device = device(preset);
            let config = CntrCfg::default().with_enable(true).with_category(1).with_events(0xc0);
            device.write_perfmon(offset::CNTRCFG, config.0[0]);
            device.count(Event::BITMAP_GRANTED, 2, None, None, None);
            device.count(Event::BITMAP_DENIED, 1, None, None, None);
            assert_eq!(device.read_perfmon(offset::CNTRDATA), count, "{preset:?}");
        }
    }
}
