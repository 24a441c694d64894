//! The measured program: it opens queues, maps portals and submits like any program for DSA, and does not know about
//! `telpher run`.
//!
//! A line on standard input names a task and its duration in milliseconds (`nop 20`). The answer is nanoseconds per
//! operation, or `-` and the error. Time is CPU time: the device works in the submitting thread, and other work on the
//! machine is not counted.

use crate::buffers::fill_known;
use crate::ffi::{self, MappedPortal, OwnedCopy};
use crate::measure::{Window, window};
use std::fs;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use telpher_portal::{Offer, RecordCell, Submission};

/// The tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// ENQCMD to a queue that is disabled: the answer is Retry, and nothing is executed.
    Refused,
    /// A No-op on the dedicated queue, until the thread sees its record.
    Nop,
    /// A copy of [`COPY`] bytes on the dedicated queue, until the thread sees its record.
    Copy,
    /// Calculation, allocation and sorting, without the device.
    Compute,
    /// Opening, inspecting, reading and closing files, without the device.
    Files,
}

impl Task {
    /// All tasks.
    const ALL: [Task; 5] = [Task::Refused, Task::Nop, Task::Copy, Task::Compute, Task::Files];

    /// The word for the task on the input line.
    pub fn word(self) -> &'static str {
        match self {
            Task::Refused => "refused",
            Task::Nop => "nop",
            Task::Copy => "copy",
            Task::Compute => "compute",
            Task::Files => "files",
        }
    }
}

/// Bytes of a copy. Source: the goal is for about 1 MiB.
pub const COPY: usize = 1 << 20;

/// Runs the tasks from standard input until it ends.
pub fn obey() -> io::Result<()> {
    let mut device = None;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        match answer(&line, &mut device) {
            Ok(seen) => writeln!(out, "{}", seen.cpu_ns_per_op())?,
            Err(error) => writeln!(out, "- {error}")?,
        }
        out.flush()?;
    }
    Ok(())
}

fn answer(line: &str, device: &mut Option<Device>) -> io::Result<Window> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidInput, format!("'{line}' is no task"));
    let (word, time) = line.split_once(' ').ok_or_else(unknown)?;
    let task = Task::ALL.into_iter().find(|task| task.word() == word).ok_or_else(unknown)?;
    let time = Duration::from_millis(time.parse().map_err(|_| unknown())?);
    match task {
        Task::Compute => window(time, || Ok(compute())),
        Task::Files => window(time, files),
        _ => {
            if device.is_none() {
                *device = Some(Device::open()?);
            }
            device.as_mut().expect("opened above").work(task, time)
        }
    }
}

/// Two queues of the first device that has both kinds enabled.
#[derive(Debug)]
struct Device {
    dedicated: MappedPortal,
    shared: MappedPortal,
    shared_name: String,
    refusing: bool,
    record: &'static RecordCell,
    nop: Submission,
    copy: OwnedCopy,
}

/// Where the driver lists devices and queues.
const DEVICES: &str = "/sys/bus/dsa/devices";

impl Device {
    fn open() -> io::Result<Self> {
        let mut queues: Vec<PathBuf> =
            fs::read_dir(DEVICES)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        queues.sort();
        let says = |queue: &Path, attribute: &str, value: &str| {
            fs::read_to_string(queue.join(attribute)).is_ok_and(|text| text.trim() == value)
        };
        let of_mode = |mode: &str| {
            let mut fitting =
                queues.iter().filter(|queue| says(queue, "mode", mode) && says(queue, "state", "enabled"));
            let name =
                fitting.next().and_then(|queue| queue.file_name()).map(|name| name.to_string_lossy().into_owned());
            name.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no enabled {mode} queue")))
        };
        let (dedicated, shared_name) = (of_mode("dedicated")?, of_mode("shared")?);
        let node = |name: &str| Path::new("/dev/dsa").join(name);
        let mut bytes = vec![0; COPY];
        fill_known(&mut bytes, 1);
        // Leaked: the executing thread may access it at any time.
        let record: &'static RecordCell = Box::leak(Box::default());
        Ok(Device {
            dedicated: MappedPortal::open(&node(&dedicated), false)?,
            shared: MappedPortal::open(&node(&shared_name), true)?,
            shared_name,
            refusing: false,
            record,
            nop: ffi::nop(record),
            copy: OwnedCopy::new(bytes),
        })
    }

    fn work(&mut self, task: Task, time: Duration) -> io::Result<Window> {
        let wrong = |what: &str| io::Error::other(what.to_owned());
        match task {
            Task::Refused => {
                if !self.refusing {
                    fs::write("/sys/bus/dsa/drivers/user/unbind", &self.shared_name)?;
                    self.refusing = true;
                }
                window(time, || match self.shared.offer(&self.nop) {
                    Offer::Retry => Ok(1),
                    Offer::Taken | Offer::Lost => Err(wrong("a disabled queue took a descriptor")),
                })
            }
            Task::Nop => window(time, || Ok(once(&self.dedicated, &self.nop, self.record))),
            _ => {
                let seen = window(time, || {
                    Ok::<u64, io::Error>(once(&self.dedicated, self.copy.submission(), self.copy.record()))
                })?;
                self.copy.is_exact().then_some(seen).ok_or_else(|| wrong("a copy is wrong"))
            }
        }
    }
}

/// Submits one descriptor and waits for its record.
#[inline]
fn once(portal: &MappedPortal, submission: &Submission, record: &RecordCell) -> u64 {
    record.clear();
    while portal.offer(submission) == Offer::Retry {}
    while record.status().is_none() {
        std::hint::spin_loop();
    }
    1
}

/// Generates numbers, turns them into strings and sorts those: work for the processor and the allocator.
fn compute() -> u64 {
    let mut random = telpher_os::Random::new(1);
    let mut words: Vec<String> = (0..500).map(|_| format!("{:x}", random.next() >> 20)).collect();
    words.sort_unstable();
    black_box(words);
    1
}

/// Inspects, opens, reads and closes a file, and lists a folder.
fn files() -> io::Result<u64> {
    let path = Path::new("/proc/self/comm");
    black_box(fs::metadata("/usr")?.modified()?);
    black_box(fs::read_to_string(path)?);
    black_box(fs::read_dir("/usr")?.count());
    Ok(1)
}
