//! What a run publishes about its devices, for readers in other processes: which devices, queues, engines and open
//! files there are, and where each file's totals can be read.
//!
//! ```text
//! RUN/devices.json   RunIndex: replaced as a whole at each change, so that a reader has one moment
//!    │ files[].memory, queues[].slots: a descriptor of the run's host process, and the inode behind it
//!    ▼
//! /proc/HOST/fd/N    the words, which the processes of the run write while they are read
//! ```
//!
//! The totals of files that were closed are in the index. A file is moved there in one replacement, so that the sums
//! never shrink and nothing is counted twice.

use serde::{Deserialize, Serialize};
use telpher_abi::registers::{DeviceState, GrpCfg, WqCfg, WqState};
use telpher_model::{Device, Totals};

/// The name of the index in a run's directory.
pub const INDEX: &str = "devices.json";
/// The version of the index and of the words; a reader refuses another one.
pub const INDEX_VERSION: u32 = 1;

/// The index of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RunIndex {
    /// [`INDEX_VERSION`].
    pub version: u32,
    /// The host process, which has the shared memory open.
    pub host: u32,
    /// Counts the replacements of the index.
    pub generation: u64,
    /// The devices.
    pub devices: Vec<PublishedDevice>,
    /// The open files.
    pub files: Vec<PublishedFile>,
    /// The totals of closed files.
    pub departed: Vec<Departed>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PublishedDevice {
    /// M of dsaM.
    pub device: u32,
    /// enabled, disabled or halted.
    pub state: String,
    /// The configured queues.
    pub queues: Vec<PublishedQueue>,
    /// The engines.
    pub engines: Vec<PublishedEngine>,
}

/// A queue of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PublishedQueue {
    /// N of wqM.N.
    pub wq: u32,
    /// It is dedicated, not shared.
    pub dedicated: bool,
    /// It accepts descriptors.
    pub enabled: bool,
    /// Its entries.
    pub size: u32,
    /// The threshold of a shared queue.
    pub threshold: u32,
    /// Its priority.
    pub priority: u32,
    /// Its group.
    pub group: Option<u32>,
}

/// An engine of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PublishedEngine {
    /// N of engineM.N.
    pub engine: u32,
    /// Its group.
    pub group: Option<u32>,
}

/// Shared memory that the host process has open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SharedFile {
    /// The number of the descriptor in the host process.
    pub descriptor: i32,
    /// The inode: another one is another file, which has the number now.
    pub inode: u64,
}

/// An open file of a queue.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PublishedFile {
    /// Its number, unique in the run.
    pub open: u64,
    /// M of wqM.N.
    pub device: u32,
    /// N of wqM.N.
    pub wq: u32,
    /// The process that opened it.
    pub process: u32,
    /// The address space identifier.
    pub pasid: u32,
    /// The totals: the first [`DeviceCounts::WORDS`](crate::DeviceCounts::WORDS) words.
    pub memory: SharedFile,
    /// The occupancy slots of its queue: 32-bit words.
    pub slots: SharedFile,
    /// The file's slot.
    pub slot: u32,
}

/// The sum of a queue's closed files.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Departed {
    /// M of wqM.N.
    pub device: u32,
    /// N of wqM.N.
    pub wq: u32,
    /// The number of closed files.
    pub files: u64,
    /// The words of the [`Totals`] that are not zero, with their positions.
    pub words: Vec<(usize, u64)>,
}

impl PublishedDevice {
    /// Describes a device by its registers.
    #[must_use]
    pub fn of(number: u32, device: &Device) -> PublishedDevice {
        let capabilities = device.capabilities();
        let groups: Vec<_> = (0..u32::from(capabilities.grp_cap.groups()))
            .map(|group| (group, device.grp_cfg(group as usize)))
            .collect();
        let queues = (0..u32::from(capabilities.wq_cap.queues()))
            .map(|wq| (wq, device.wq_cfg(wq as usize), device.wq_state(wq as usize) == WqState::Enabled));
        let engines = capabilities.eng_cap.engines().into();
        PublishedDevice::configured(number, device.state(), queues, engines, &groups)
    }

    /// Describes a device by its configuration: the number, registers and state of each queue, the number of engines,
    /// and the registers of the groups. A queue without entries does not exist.
    pub(crate) fn configured(
        number: u32,
        state: DeviceState,
        queues: impl Iterator<Item = (u32, WqCfg, bool)>,
        engines: u32,
        groups: &[(u32, GrpCfg)],
    ) -> PublishedDevice {
        let group_with = |is_in: &dyn Fn(&GrpCfg) -> bool| {
            groups.iter().find(|(_, registers)| is_in(registers)).map(|(group, _)| *group)
        };
        let queue = |(wq, config, enabled): (u32, WqCfg, bool)| PublishedQueue {
            wq,
            dedicated: config.dedicated(),
            enabled,
            size: config.size().into(),
            threshold: config.threshold().into(),
            priority: config.priority().into(),
            group: group_with(&|group| group.wqs() >> wq & 1 == 1),
        };
        let engine =
            |engine| PublishedEngine { engine, group: group_with(&|group| group.engines() >> engine & 1 == 1) };
        PublishedDevice {
            device: number,
            state: state_name(state).into(),
            queues: queues.filter(|(_, config, _)| config.size() > 0).map(queue).collect(),
            engines: (0..engines).map(engine).collect(),
        }
    }
}

/// Returns the word for a state. A device that drains is about to be disabled.
pub(crate) fn state_name(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Enabled => "enabled",
        DeviceState::Halted => "halted",
        DeviceState::Disabled | DeviceState::Draining => "disabled",
    }
}

impl RunIndex {
    /// Moves the totals of an open file to those of the closed ones. Ignores a file that is not open.
    pub fn depart(&mut self, open: u64, totals: &Totals) {
        let Some(at) = self.files.iter().position(|file| file.open == open) else { return };
        let file = self.files.remove(at);
        let same = |departed: &Departed| (departed.device, departed.wq) == (file.device, file.wq);
        let at = self.departed.iter().position(same).unwrap_or_else(|| {
            self.departed.push(Departed { device: file.device, wq: file.wq, ..Departed::default() });
            self.departed.len() - 1
        });
        let departed = &mut self.departed[at];
        let mut sum = departed.totals().unwrap_or_default();
        sum.add(totals);
        departed.words = sum.nonzero().collect();
        departed.files += 1;
    }
}

impl Departed {
    /// Returns the totals; `None` if they are damaged.
    #[must_use]
    pub fn totals(&self) -> Option<Totals> {
        Totals::from_nonzero(self.words.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_model::DeviceCounts;
    use telpher_portal::Offer;

    #[test]
    fn closed_files_are_summed_by_queue_and_counted_once() {
        let file = |open, wq| PublishedFile { open, wq, ..PublishedFile::default() };
        let mut index = RunIndex { files: vec![file(1, 0), file(2, 0), file(3, 1)], ..RunIndex::default() };
        let counts = DeviceCounts::default();
        counts.offered(0, Offer::Retry);
        for open in [1, 2, 2, 7] {
            index.depart(open, &counts.totals());
        }
        assert_eq!(index.files, [file(3, 1)]);
        let [Departed { wq: 0, files: 2, .. }] = &index.departed[..] else { panic!("{:?}", index.departed) };
        assert_eq!(index.departed[0].totals().unwrap().retries(0), 2);
        let damaged = Departed { words: vec![(usize::MAX, 1)], ..Departed::default() };
        assert_eq!(damaged.totals(), None);
    }
}
