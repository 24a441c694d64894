//! Counters of devices, which count for the whole machine: `perf_event_open(2)` without a process.

use super::events::set;
use super::{ATTRIBUTE_BYTES, open_on};
use std::fs::File;
use std::io;
use std::path::Path;

/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `_RUNNING`.
const TIMES: u64 = 1 << 0 | 1 << 1;

/// What a device counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterEvent {
    /// The type of the event source.
    pub kind: u32,
    /// `config`, `config1`, `config2`.
    pub config: [u64; 3],
    /// The processor that the event source names; the device counts whatever processor uses it.
    pub cpu: u32,
}

impl CounterEvent {
    /// Encodes fields, by name and value, as the event source in a directory specifies: its `type`, `format/` and
    /// `cpumask`. `None` if it has no such field, or is no event source.
    #[must_use]
    pub fn of_fields(source: &Path, fields: &[(&str, u64)]) -> Option<CounterEvent> {
        let text = |name: &str| std::fs::read_to_string(source.join(name)).ok();
        let kind = text("type")?.trim().parse().ok()?;
        // A list such as 0,48 or 0-3; its first processor is enough. Sources without one count from any processor.
        let cpu = text("cpumask").map_or(Some(0), |list| list.trim().split(['-', ',']).next()?.parse().ok())?;
        let mut config = [0; 3];
        for (field, value) in fields {
            set(source, field, *value, &mut config)?;
        }
        Some(CounterEvent { kind, config, cpu })
    }
}

/// What a counter has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CounterReading {
    /// The count since the counter was opened.
    pub count: u64,
    /// Nanoseconds since then.
    pub enabled_ns: u64,
    /// Nanoseconds of these in which it counted: fewer, if more events are open than the device has counters.
    pub running_ns: u64,
}

/// An open counter.
#[derive(Debug)]
pub struct DeviceCounter(File);

impl DeviceCounter {
    /// Opens a counter, which counts from now on.
    ///
    /// # Errors
    /// The system's: EACCES without CAP_PERFMON where `kernel.perf_event_paranoid` is above 0.
    pub fn open(event: &CounterEvent) -> io::Result<DeviceCounter> {
        let mut words = [0; ATTRIBUTE_BYTES / 8];
        words[0] = u64::from(event.kind) | (ATTRIBUTE_BYTES as u64) << 32;
        words[1] = event.config[0];
        words[4] = TIMES;
        (words[7], words[8]) = (event.config[1], event.config[2]);
        let cpu = i32::try_from(event.cpu).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        open_on(&words, -1, cpu, None).map(|fd| DeviceCounter(fd.into()))
    }

    /// Reads the counter.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self) -> io::Result<CounterReading> {
        let mut bytes = [0; 24];
        // By the C library, which `telpher run` interposes; rustix makes the call itself.
        match io::Read::read(&mut &self.0, &mut bytes)? {
            24 => {
                let words = bytes.as_chunks::<8>().0;
                let [count, enabled_ns, running_ns] = [0, 1, 2].map(|at| u64::from_ne_bytes(words[at]));
                Ok(CounterReading { count, enabled_ns, running_ns })
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("telpher-counter-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        for (file, says) in files {
            let file = folder.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{says}\n")).unwrap();
        }
        folder
    }

    #[test]
    fn fields_are_encoded_as_the_source_says() {
        let files = [
            ("type", "37"),
            ("cpumask", "8,56"),
            ("format/event_category", "config:0-3"),
            ("format/event", "config:4-31"),
            ("format/filter_wq", "config1:0-31"),
        ];
        let folder = source("fields", &files);
        let event = CounterEvent::of_fields(&folder, &[("event_category", 3), ("event", 8), ("filter_wq", 2)]);
        assert_eq!(event, Some(CounterEvent { kind: 37, config: [0x83, 2, 0], cpu: 8 }));
        assert_eq!(CounterEvent::of_fields(&folder, &[("event_category", 16)]), None, "the value does not fit");
        assert_eq!(CounterEvent::of_fields(&folder, &[("filter_eng", 1)]), None);
        std::fs::write(folder.join("cpumask"), "x\n").unwrap();
        assert_eq!(CounterEvent::of_fields(&folder, &[]), None);
        std::fs::remove_file(folder.join("cpumask")).unwrap();
        assert_eq!(CounterEvent::of_fields(&folder, &[]).map(|event| event.cpu), Some(0));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_clock_of_a_processor_advances_or_the_system_says_why_not() {
        // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK: nanoseconds.
        match DeviceCounter::open(&CounterEvent { kind: 1, config: [0; 3], cpu: 0 }) {
            Ok(counter) => {
                let first = counter.read().unwrap();
                while counter.read().unwrap().count == first.count {
                    std::hint::spin_loop();
                }
                assert!(counter.read().unwrap().enabled_ns > first.enabled_ns);
            }
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }
}
