//! Finds the memory accesses that a machine's processors can sample with their addresses, from the system's files.
//!
//! Source: Linux, Documentation/ABI/testing/sysfs-bus-event_source-devices-events and -format;
//! arch/x86/events/intel/core.c (`mem-loads`, `mem-stores`, `mem-loads-aux`), arch/x86/events/amd/ibs.c.

use std::path::Path;

/// Intel's event sources: all processors, or those of one kind.
const INTEL: [&str; 3] = ["cpu", "cpu_core", "cpu_atom"];
/// AMD's event source: operations, some of which load or store.
const AMD: &str = "ibs_op";
/// IBS counts in steps of 16. Source: arch/x86/events/amd/ibs.c, `IBS_OP_CUR_CNT`, "the lower 4 bits must be zero".
const AMD_STEP: u64 = 16;

/// An event to sample.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    name: String,
    pub(super) kind: u32,
    /// `config`, `config1`, `config2`.
    pub(super) config: [u64; 3],
    /// `precise_ip`: the reported address is that of the sampled access.
    pub(super) precise: u8,
    /// Periods are multiples of this.
    step: u64,
    /// The event that must be opened with it, as the first of a group.
    leader: Option<Box<Event>>,
}

impl Event {
    /// Returns its name, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn leader(&self) -> Option<&Event> {
        self.leader.as_deref()
    }

    /// Returns the next higher period that it supports.
    pub(super) fn period(&self, period: u64) -> u64 {
        period.max(1).checked_next_multiple_of(self.step).unwrap_or(u64::MAX / self.step * self.step)
    }

    /// Page faults, an event of the kernel itself (`PERF_COUNT_SW_PAGE_FAULTS`), which reports addresses, too.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn page_faults() -> Event {
        Event { name: "page-faults".into(), kind: 1, config: [2, 0, 0], precise: 0, step: 1, leader: None }
    }
}

#[cfg(test)]
impl Event {
    /// Combines an event with the leader that it needs.
    pub(super) fn with_leader(leader: Event, event: Event) -> Event {
        Event { leader: Some(Box::new(leader)), ..event }
    }
}

/// Finds the events in a directory of event sources.
pub(super) fn find_events(devices: &Path) -> Vec<Event> {
    let mut events = Vec::new();
    for device in INTEL {
        let folder = devices.join(device);
        let leader = read_event(&folder, device, "mem-loads-aux", 0);
        for name in ["mem-loads", "mem-stores"] {
            // Store events need no leader.
            let leader = leader.clone().filter(|_| name == "mem-loads").map(Box::new);
            events.extend(read_event(&folder, device, name, 2).map(|event| Event { leader, ..event }));
        }
    }
    // Each of its samples is precise without `precise_ip`.
    if let Some(kind) = number(&devices.join(AMD).join("type")) {
        let mut config = [0; 3];
        // Counts dispatched operations instead of clock cycles if the unit supports it.
        let _ = set(&devices.join(AMD), "cnt_ctl", 1, &mut config);
        events.push(Event { name: AMD.into(), kind, config, precise: 0, step: AMD_STEP, leader: None });
    }
    events
}

fn number(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Reads an event that an event source names.
fn read_event(folder: &Path, device: &str, name: &str, precise: u8) -> Option<Event> {
    let kind = number(&folder.join("type"))?;
    let words = std::fs::read_to_string(folder.join("events").join(name)).ok()?;
    let mut config = [0; 3];
    for word in words.trim().split(',') {
        // A name without a value means 1.
        let (field, value) = word.split_once('=').unwrap_or((word, "1"));
        let value =
            value.strip_prefix("0x").map_or_else(|| value.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok());
        set(folder, field, value?, &mut config)?;
    }
    Some(Event { name: format!("{device}/{name}"), kind, config, precise, step: 1, leader: None })
}

/// Stores a field's value at the bits that the device specifies: `config:0-7`, `config1:0-15`, `config:0-7,32-35`.
pub(super) fn set(folder: &Path, field: &str, mut value: u64, config: &mut [u64; 3]) -> Option<()> {
    // A name from a file must not lead to another directory.
    if field.is_empty() || field.contains(['/', '.']) {
        return None;
    }
    let format = std::fs::read_to_string(folder.join("format").join(field)).ok()?;
    let (word, bits) = format.trim().split_once(':')?;
    let word = ["config", "config1", "config2"].iter().position(|name| *name == word)?;
    for bits in bits.split(',') {
        let (first, last) = bits.split_once('-').unwrap_or((bits, bits));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > 63 {
            return None;
        }
        let mask = u64::MAX >> (63 - (last - first));
        config[word] |= (value & mask) << first;
        value = if last - first == 63 { 0 } else { value >> (last - first + 1) };
    }
    (value == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A directory with these files, deleted on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Folder {
            let folder = std::env::temp_dir().join(format!("telpher-perf-{}-{name}", std::process::id()));
            for (file, says) in files {
                let file = folder.join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, format!("{says}\n")).unwrap();
            }
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const INTEL_FILES: [(&str, &str); 7] = [
        ("cpu/type", "4"),
        ("cpu/format/event", "config:0-7"),
        ("cpu/format/umask", "config:8-15"),
        ("cpu/format/ldlat", "config1:0-15"),
        ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
        ("cpu/events/mem-stores", "event=0xd0,umask=0x82"),
        ("cpu/events/instructions", "event=0xc0"),
    ];

    #[test]
    fn intels_loads_and_stores_are_found() {
        let folder = Folder::new("intel", &INTEL_FILES);
        let events = find_events(&folder.0);
        let event =
            |name: &str, config| Event { name: name.into(), kind: 4, config, precise: 2, step: 1, leader: None };
        assert_eq!(events, [event("cpu/mem-loads", [0x1cd, 3, 0]), event("cpu/mem-stores", [0x82d0, 0, 0])]);
    }

    #[test]
    fn loads_that_need_a_leader_get_it() {
        let mut files = INTEL_FILES.to_vec();
        files.push(("cpu/events/mem-loads-aux", "event=0x03,umask=0x82"));
        let folder = Folder::new("aux", &files);
        let events = find_events(&folder.0);
        assert_eq!(
            events.iter().map(|event| event.leader().map(|leader| leader.config[0])).collect::<Vec<_>>(),
            [Some(0x8203), None]
        );
    }

    #[test]
    fn amds_operations_are_found_and_counted_in_sixteens() {
        let folder = Folder::new("amd", &[("ibs_op/type", "11"), ("ibs_op/format/cnt_ctl", "config:19")]);
        let events = find_events(&folder.0);
        assert_eq!((events[0].name(), events[0].kind, events[0].config), ("ibs_op", 11, [1 << 19, 0, 0]));
        assert_eq!(
            [0, 1, 16, 10_007, u64::MAX].map(|period| events[0].period(period)),
            [16, 16, 16, 10_016, u64::MAX - 15]
        );
        let old = Folder::new("amd-old", &[("ibs_op/type", "11")]);
        assert_eq!(find_events(&old.0)[0].config, [0; 3]);
    }

    #[test]
    fn fields_may_lie_in_several_places_and_must_fit() {
        let folder = Folder::new(
            "fields",
            &[
                ("format/event", "config:0-7,32-35"),
                ("format/all", "config2:0-63"),
                ("format/odd", "config7:0-3"),
                ("format/wrong", "config:9-3"),
                ("format/far", "config:0-64"),
            ],
        );
        let set = |field: &str, value| {
            let mut config = [0; 3];
            set(&folder.0, field, value, &mut config).map(|()| config)
        };
        assert_eq!(set("event", 0xabc), Some([0xa_0000_00bc, 0, 0]));
        assert_eq!(set("event", 0x1abc), None);
        assert_eq!(set("all", u64::MAX), Some([0, 0, u64::MAX]));
        assert_eq!(["odd", "wrong", "far", "none", "", "../format/all"].map(|field| set(field, 1)), [None; 6]);
    }

    #[test]
    fn invalid_files_are_ignored() {
        for (at, says) in [(0, "x"), (4, "event=zz"), (4, "event=0x1ff"), (4, "nothing=1"), (1, "nonsense"), (1, "")] {
            let mut files = INTEL_FILES.to_vec();
            files[at].1 = says;
            let folder = Folder::new(&format!("nonsense-{at}-{}", says.len()), &files);
            assert!(find_events(&folder.0).iter().all(|event| event.name() != "cpu/mem-loads"), "{at} {says}");
        }
        assert!(find_events(Path::new("/nonexistent")).is_empty());
    }
}
