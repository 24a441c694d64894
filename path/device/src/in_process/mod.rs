//! The modelled devices of a process, in memory that readers in other processes find by its name
//! ([`PUBLISHED_DEVICES`](telpher_os::PUBLISHED_DEVICES)).
//!
//! ```text
//! words of a region   content
//! 0                   the layout's VERSION
//! 1                   the process, by the number that it sees itself
//! 2                   devices of the process that found no slot: nothing else is known of them
//! 64–                 slots, each for one device at a time:
//!    0                  how often a device took the slot, and whether one has it now
//!    1                  the state of the device
//!    16–31              its queues
//!    32–47              its engines
//!    64–                the totals that earlier devices of the slot have left
//!    …                  the totals of all of them and of the present device: the words in which it counts
//! ```
//!
//! A slot's totals are never reset, so that no sum of a process shrinks when it closes a device. Only a device with the
//! same queues and engines takes a slot that was used.

mod region;
mod slot_state;

pub use crate::apply::OWN_PASID;
pub(crate) use region::SlotLease;

use crate::published::{PublishedDevice, PublishedEngine, PublishedQueue, state_name};
use slot_state::SlotWord;
use std::io;
use telpher_abi::registers::DeviceState;
use telpher_model::{DeviceCounts, MAX_ENGINES, MAX_WQS, Totals};

/// Identifies the layout.
const VERSION: u64 = u64::from_le_bytes(*b"devices1");
/// The words of a region's beginning, and of a slot's.
const HEADER: usize = 64;
/// The slots of a region. Source: chosen; most programs have one or two devices at a time.
const SLOTS: usize = 16;
const SLOT_WORDS: usize = HEADER + 2 * DeviceCounts::WORDS;
/// The words of a region, most of which are never touched.
pub const REGION_WORDS: usize = HEADER + SLOTS * SLOT_WORDS;

/// Positions in a region's header.
const OF_VERSION: usize = 0;
const OF_PROCESS: usize = 1;
const OF_UNSHOWN: usize = 2;
/// Positions in a slot's header.
const OF_STATE: usize = 0;
const OF_DEVICE_STATE: usize = 1;
const OF_QUEUES: usize = 16;
const OF_ENGINES: usize = OF_QUEUES + MAX_WQS;
const _: () = assert!(OF_ENGINES + MAX_ENGINES <= HEADER);

/// A word for each queue and engine of a device. 0: there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Description {
    queues: [u64; MAX_WQS],
    engines: [u64; MAX_ENGINES],
}

/// Bits of a description's words.
const EXISTS: u64 = 1;
const DEDICATED: u64 = 2;
const ENABLED: u64 = 4;
/// The first bits of numbers: the group of 8 bits is one more than its number, 0 for none.
const PRIORITY: u32 = 8;
const GROUP: u32 = 16;
const SIZE: u32 = 24;
const THRESHOLD: u32 = 44;
/// Sizes and thresholds have 16 bits in WQCFG.
const SIZE_MASK: u64 = 0xffff;

fn flag(bit: u64, value: bool) -> u64 {
    if value { bit } else { 0 }
}

fn group_bits(group: Option<u32>) -> u64 {
    group.map_or(0, |group| ((u64::from(group) + 1) & 0xff) << GROUP)
}

fn group_of(word: u64) -> Option<u32> {
    (number(word, GROUP, 0xff)).checked_sub(1)
}

fn number(word: u64, first: u32, mask: u64) -> u32 {
    // Cannot lose bits: no mask has more than 16.
    u32::try_from(word >> first & mask).unwrap_or_default()
}

impl Description {
    fn of(device: &PublishedDevice) -> Description {
        let mut description = Description::default();
        for queue in &device.queues {
            let Some(word) = description.queues.get_mut(queue.wq as usize) else { continue };
            *word = EXISTS
                | flag(DEDICATED, queue.dedicated)
                | flag(ENABLED, queue.enabled)
                | (u64::from(queue.priority) & 0xff) << PRIORITY
                | group_bits(queue.group)
                | (u64::from(queue.size) & SIZE_MASK) << SIZE
                | (u64::from(queue.threshold) & SIZE_MASK) << THRESHOLD;
        }
        for engine in &device.engines {
            if let Some(word) = description.engines.get_mut(engine.engine as usize) {
                *word = EXISTS | group_bits(engine.group);
            }
        }
        description
    }

    /// The description without what changes while a device has its configuration.
    fn configuration(mut self) -> Description {
        self.queues.iter_mut().for_each(|word| *word &= !ENABLED);
        self
    }

    fn device(&self, state: &str) -> PublishedDevice {
        let exist = |words: &[u64]| -> Vec<(u32, u64)> {
            (0..).zip(words.iter().copied()).filter(|(_, word)| word & EXISTS != 0).collect()
        };
        let queue = |(wq, word): (u32, u64)| PublishedQueue {
            wq,
            dedicated: word & DEDICATED != 0,
            enabled: word & ENABLED != 0,
            size: number(word, SIZE, SIZE_MASK),
            threshold: number(word, THRESHOLD, SIZE_MASK),
            priority: number(word, PRIORITY, 0xff),
            group: group_of(word),
        };
        let engine = |(engine, word)| PublishedEngine { engine, group: group_of(word) };
        PublishedDevice {
            device: 0,
            state: state.into(),
            queues: exist(&self.queues).into_iter().map(queue).collect(),
            engines: exist(&self.engines).into_iter().map(engine).collect(),
        }
    }
}

/// What a process publishes in one region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessDevices {
    /// The process, by the number that it sees itself: in a container, another one than outside.
    pub process: u64,
    /// Its devices of which nothing else is known, because all slots were used.
    pub unshown: u64,
    /// The slots that a device has, or had.
    pub slots: Vec<PublishedSlot>,
}

/// A slot: a device of a process, and devices with the same queues and engines that it had before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PublishedSlot {
    /// The number of the slot in its region.
    pub slot: u32,
    /// The device, with the number 0. Its state is "closed" if all devices of the slot were closed.
    pub device: PublishedDevice,
    /// A device has the slot now.
    pub is_open: bool,
    /// The number of devices that were closed.
    pub closed: u64,
    /// The totals of all devices of the slot.
    pub all: Totals,
    /// Those of devices that were closed.
    pub earlier: Totals,
}

/// Readings of a slot that devices take meanwhile, before the last one is taken as it is.
const READINGS: u32 = 8;

/// Reads a region: `read` copies consecutive words from a position. The words may be any.
///
/// # Errors
/// As of `read`, or if the words have another layout.
pub fn read(mut read: impl FnMut(usize, &mut [u64]) -> io::Result<()>) -> io::Result<ProcessDevices> {
    let mut header = [0; HEADER];
    read(0, &mut header)?;
    match header[OF_VERSION] {
        VERSION => {}
        // The process is about to create it.
        0 => return Ok(ProcessDevices::default()),
        _ => return Err(io::Error::other("its devices have another layout; use the telpher that it was built with")),
    }
    let mut found =
        ProcessDevices { process: header[OF_PROCESS], unshown: header[OF_UNSHOWN], ..ProcessDevices::default() };
    for slot in 0..SLOTS {
        found.slots.extend(read_slot(slot, &mut read)?);
    }
    Ok(found)
}

fn read_slot(
    slot: usize,
    read: &mut impl FnMut(usize, &mut [u64]) -> io::Result<()>,
) -> io::Result<Option<PublishedSlot>> {
    let at = HEADER + slot * SLOT_WORDS;
    let mut word = [0];
    for reading in 1..=READINGS {
        let mut header = [0; HEADER];
        read(at, &mut header)?;
        let state = SlotWord(header[OF_STATE]);
        let closed = state.closed();
        // The first device of a slot is still being started.
        if !state.is_open() && closed == 0 {
            return Ok(None);
        }
        let mut totals = |at| {
            let mut words = vec![0; DeviceCounts::WORDS];
            read(at, &mut words)?;
            Ok::<_, io::Error>(Totals::from_words(words).unwrap_or_default())
        };
        // Without a device before the present one, the words of earlier totals were never touched.
        let is_first = state.is_open() && closed == 0;
        let earlier = if is_first || !state.is_open() { Totals::default() } else { totals(at + HEADER)? };
        let all = totals(at + HEADER + DeviceCounts::WORDS)?;
        // A process can write anything; its closed devices have done no more than all.
        let limited = earlier.nonzero().map(|(at, word)| (at, word.min(all.word(at))));
        let earlier = Totals::from_nonzero(limited).unwrap_or_default();
        read(at + OF_STATE, &mut word)?;
        if word[0] != state.0 && reading < READINGS {
            continue;
        }
        let mut description = Description::default();
        description.queues.copy_from_slice(&header[OF_QUEUES..][..MAX_WQS]);
        description.engines.copy_from_slice(&header[OF_ENGINES..][..MAX_ENGINES]);
        let code = u8::try_from(header[OF_DEVICE_STATE] & 3).unwrap_or_default();
        let state_word = if state.is_open() { state_name(DeviceState::from_code(code)) } else { "closed" };
        return Ok(Some(PublishedSlot {
            slot: u32::try_from(slot).unwrap_or_default(),
            device: description.device(state_word),
            is_open: state.is_open(),
            closed,
            earlier: if state.is_open() { earlier } else { all.clone() },
            all,
        }));
    }
    unreachable!("the last reading returns")
}

/// Returns the position of a slot's subscription, which readers write to have times recorded.
#[must_use]
pub fn subscription_of(slot: u32) -> usize {
    HEADER + slot as usize % SLOTS * SLOT_WORDS + HEADER + DeviceCounts::WORDS + DeviceCounts::SUBSCRIPTION
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_everything_that_is_published() {
        let queue = |wq: u32| PublishedQueue {
            wq,
            dedicated: wq.is_multiple_of(2),
            enabled: true,
            size: 0xffff - wq,
            threshold: 0xfff0 + wq % 8,
            priority: wq,
            group: (wq != 3).then_some(wq % 4),
        };
        let engine = |engine: u32| PublishedEngine { engine, group: (engine != 1).then_some(engine) };
        let device = PublishedDevice {
            device: 0,
            state: "enabled".into(),
            queues: [0, 3, 7, 15].map(queue).into(),
            engines: (0..4).map(engine).collect(),
        };
        let description = Description::of(&device);
        assert_eq!(description.device("enabled"), device);
        assert!(description.configuration().device("").queues.iter().all(|queue| !queue.enabled));
        assert_eq!(Description::default().device(""), PublishedDevice::default());
    }

    #[test]
    fn any_words_are_read_without_a_panic() {
        let mut random = telpher_os::Random::new(26);
        for round in 0..40 {
            let result = read(|at, words| {
                words.iter_mut().for_each(|word| *word = if round == 0 { u64::MAX } else { random.next() });
                if at == 0 {
                    words[OF_VERSION] = VERSION;
                }
                Ok(())
            });
            let found = result.unwrap();
            assert!(found.slots.len() <= SLOTS);
            found.slots.iter().for_each(|slot| drop(slot.all.since(&slot.earlier)));
            let mut earlier = found.slots.iter().flat_map(|slot| slot.earlier.nonzero().map(move |word| (slot, word)));
            assert!(earlier.all(|(slot, (at, word))| word <= slot.all.word(at)));
        }
        assert!(
            read(|_, words| {
                words.fill(1);
                Ok(())
            })
            .is_err()
        );
        assert_eq!(
            read(|_, words| {
                words.fill(0);
                Ok(())
            })
            .unwrap(),
            ProcessDevices::default()
        );
        assert!(read(|_, _| Err(io::Error::from(io::ErrorKind::UnexpectedEof))).is_err());
    }
}
