//! The kernel's files for DAMON, in the order in which they must be written and read.
//!
//! Source: Linux, Documentation/ABI/testing/sysfs-kernel-mm-damon; for `EBUSY`, mm/damon/sysfs.c of Linux 6.12.

use super::error::DamonError;
use super::regions::{Intervals, Region};
use crate::config::PAGE;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockType, fcntl_getlk};
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use telpher_os::Lineage;

/// The fewest and the most regions that the kernel may make. Source: chosen: a hot hundredth of the memory is found,
/// and each region costs the kernel two short checks a sample.
const REGIONS: [u64; 2] = [100, 500];
/// The most regions that are read. Source: chosen; the kernel may briefly have some more than its limit.
const MOST_READ: usize = 4096;
/// How often to retry what is busy, with a pause of [`Files::pause`]. Source: chosen, two seconds; the kernel holds its
/// lock for a tenth of a second.
const TRIES: u32 = 200;
/// The same for ending a reading that another thread waits for. Source: chosen, a tenth of a second; a kernel that
/// holds its lock during a reading accepts no end before the reading is over.
const TRIES_OF_END: u32 = 10;
/// Fixed address ranges, as written: the heap's memory, and nothing else of the process.
const OPERATIONS: &str = "fvaddr";
/// The folder of the monitoring context.
const CONTEXT: &str = "0/contexts/0";
const SCHEME: &str = "0/contexts/0/schemes/0";

/// The files, and facts about processes.
pub(super) trait Files: Debug + Send + Sync {
    /// Reads a file.
    fn read(&self, file: &str) -> io::Result<String>;

    /// Writes a file.
    fn write(&self, file: &str, value: &str) -> io::Result<()>;

    /// Locks out other processes of this library until this is dropped, for whatever reason; or returns the process
    /// that holds the lock.
    fn lock(&mut self) -> io::Result<Result<(), i32>>;

    /// Returns the folder, for people.
    fn folder(&self) -> String;

    /// Returns this process' number.
    fn pid(&self) -> i32;

    /// Returns whether there is a process of this number.
    fn is_there(&self, pid: i32) -> bool;

    /// Returns the CPU time of a kernel thread; zero if it cannot be read.
    fn cpu(&self, pid: i32) -> Duration;

    /// Waits for a moment.
    fn pause(&self);
}

/// The system's files.
#[derive(Debug)]
pub(super) struct Sysfs {
    folder: PathBuf,
    /// The file `nr_kdamonds`, with a lock on it. The lock belongs to the process: the system releases it when the
    /// process ends or closes *any* descriptor of this file. So the file must not be opened twice here.
    number: Option<File>,
}

/// The file that is locked.
const NUMBER: &str = "nr_kdamonds";

impl Sysfs {
    pub(super) fn new(folder: &Path) -> Sysfs {
        Sysfs { folder: folder.into(), number: None }
    }
}

impl Files for Sysfs {
    fn read(&self, file: &str) -> io::Result<String> {
        let Some(number) = self.number.as_ref().filter(|_| file == NUMBER) else {
            return std::fs::read_to_string(self.folder.join(file));
        };
        let mut bytes = [0; 32];
        let len = number.read_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        match self.number.as_ref().filter(|_| file == NUMBER) {
            Some(number) => number.write_all_at(value.as_bytes(), 0),
            // The kernel takes a value in one call, and `write_all` makes one call for such a short text.
            None => OpenOptions::new().write(true).open(self.folder.join(file))?.write_all(value.as_bytes()),
        }
    }

    fn lock(&mut self) -> io::Result<Result<(), i32>> {
        let number = OpenOptions::new().read(true).write(true).open(self.folder.join(NUMBER))?;
        let locked = fcntl_lock(&number, FlockOperation::NonBlockingLockExclusive);
        let refused = matches!(locked, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS));
        if refused {
            let holder = fcntl_getlk(&number, &Flock::from(FlockType::WriteLock))?.and_then(|lock| lock.pid);
            return Ok(Err(holder.map_or(0, |pid| pid.as_raw_nonzero().get())));
        }
        locked?;
        self.number = Some(number);
        Ok(Ok(()))
    }

    fn folder(&self) -> String {
        self.folder.display().to_string()
    }

    fn pid(&self) -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }

    fn is_there(&self, pid: i32) -> bool {
        Path::new("/proc").join(pid.to_string()).exists()
    }

    fn cpu(&self, pid: i32) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        cpu_of_stat(&stat)
    }

    fn pause(&self) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the time in the kernel and in user space from a line of `/proc/PID/stat`. Source: proc_pid_stat(5), fields
/// 14 and 15, in hundredths of a second (`USER_HZ` of x86).
fn cpu_of_stat(stat: &str) -> Duration {
    // The name, in parentheses, may contain parentheses and spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |at: usize| fields.split_whitespace().nth(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis(ticks(11).saturating_add(ticks(12)).saturating_mul(10))
}

/// Folders that managers of this process use: a lock of the process does not exclude the process itself.
static TAKEN: Mutex<Vec<(String, Lineage)>> = Mutex::new(Vec::new());

fn taken() -> MutexGuard<'static, Vec<(String, Lineage)>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Excludes other managers of this process until this is dropped.
#[derive(Debug)]
struct Turn(String);

impl Turn {
    fn take(folder: String) -> Option<Turn> {
        let mut taken = taken();
        // A forked child does not own what its parent took.
        taken.retain(|(_, lineage)| lineage.is_current());
        let free = taken.iter().all(|(other, _)| *other != folder);
        free.then(|| {
            taken.push((folder.clone(), Lineage::current()));
            Turn(folder)
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        taken().retain(|(folder, _)| *folder != self.0);
    }
}

/// The files, while no other manager uses them.
#[derive(Debug)]
struct Taken {
    files: Box<dyn Files>,
    /// Set when nothing may begin or be retried any more.
    ends: AtomicBool,
    /// After `files`, because it must be dropped after them.
    _turn: Turn,
}

impl Taken {
    /// Fails if other software has ended DAMON and set it up differently. **Staleness**: that may happen from now on.
    fn is_still_ours(&self) -> Result<(), DamonError> {
        let is_ours = is_as_ours(&*self.files) && target(&*self.files) == Some(self.files.pid());
        if is_ours { Ok(()) } else { Err(DamonError::Lost { other: other_user(&*self.files) }) }
    }

    fn ends(&self) -> bool {
        // Relaxed: it publishes no other data.
        self.ends.load(Ordering::Relaxed)
    }
}

/// Ends DAMON while another thread waits for a reading.
#[derive(Debug)]
pub(super) struct DamonStopper(Arc<Taken>);

impl DamonStopper {
    /// Makes a reading under way fail soon, and prevents new ones. The owner of the interface releases it.
    pub(super) fn end(&self) {
        // Relaxed: as in `ends`.
        self.0.ends.store(true, Ordering::Relaxed);
        if self.0.is_still_ours().is_ok() {
            // Refused if DAMON does not run; if it does, the end of the interface tries again.
            let _ = write_while(&*self.0.files, "0/state", "off", |tries| tries < TRIES_OF_END);
        }
    }
}

/// The interface to DAMON, taken.
#[derive(Debug)]
pub(super) struct Interface {
    taken: Arc<Taken>,
    /// The last settings written.
    settings: Option<(Vec<std::ops::Range<u64>>, Intervals)>,
    /// The constant settings are written: from then on they show whether DAMON is still ours.
    is_set_up: bool,
}

impl Interface {
    /// Takes the interface; DAMON monitors nothing yet.
    ///
    /// # Errors
    /// [`DamonError`]: it is not available. It is left as it was.
    pub(super) fn take(mut files: Box<dyn Files>) -> Result<Interface, DamonError> {
        let turn = Turn::take(files.folder()).ok_or(DamonError::Ours { pid: None })?;
        let locked = files.lock().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DamonError::Missing,
            _ => DamonError::Forbidden(error),
        })?;
        locked.map_err(|pid| DamonError::Ours { pid: Some(pid) })?;
        if number::<u64>(&*files, NUMBER)? != 0 {
            if !is_left_behind(&*files) {
                return Err(DamonError::Busy { other: other_user(&*files), folder: files.folder() });
            }
            // Refused if DAMON does not run.
            let _ = write(&*files, "0/state", "off");
            write(&*files, NUMBER, "0")?;
        }
        write(&*files, NUMBER, "1")?;
        // From here on, dropping releases it.
        let taken = Arc::new(Taken { files, ends: AtomicBool::new(false), _turn: turn });
        let mut interface = Interface { taken, settings: None, is_set_up: false };
        interface.write("0/contexts/nr_contexts", "1")?;
        let file = format!("{CONTEXT}/avail_operations");
        let has = interface.files().read(&file).map_err(|source| DamonError::Read { file, source })?;
        if !has.split_whitespace().any(|word| word == OPERATIONS) {
            return Err(DamonError::Missing);
        }
        // Written at once, so that what a killed process leaves behind can be recognized as ours.
        interface.set_up()?;
        interface.is_set_up = true;
        Ok(interface)
    }

    /// Returns a handle that may end it from another thread.
    pub(super) fn ender(&self) -> DamonStopper {
        DamonStopper(Arc::clone(&self.taken))
    }

    fn files(&self) -> &dyn Files {
        &*self.taken.files
    }

    fn write(&self, file: &str, value: &str) -> Result<(), DamonError> {
        if self.taken.ends() {
            return Err(DamonError::Ended);
        }
        write_while(self.files(), file, value, |tries| tries < TRIES && !self.taken.ends())
    }

    fn write_in(&self, file: &str, value: impl ToString) -> Result<(), DamonError> {
        self.write(&format!("{CONTEXT}/{file}"), &value.to_string())
    }

    /// Starts to monitor these ranges, or changes to them.
    ///
    /// # Errors
    /// [`DamonError`]: it does not monitor any more.
    pub(super) fn look(&mut self, ranges: Vec<std::ops::Range<u64>>, intervals: Intervals) -> Result<(), DamonError> {
        let now = Some((ranges, intervals));
        if self.settings == now {
            return Ok(());
        }
        self.taken.is_still_ours()?;
        let begins = self.settings.is_none();
        // After a failure half-way, everything is written anew.
        self.settings = None;
        let (ranges, intervals) = now.as_ref().expect("set above");
        self.write_in("monitoring_attrs/intervals/sample_us", intervals.sample.as_micros())?;
        self.write_in("monitoring_attrs/intervals/aggr_us", intervals.aggregation().as_micros())?;
        self.write_in("targets/0/regions/nr_regions", ranges.len())?;
        for (at, range) in ranges.iter().enumerate() {
            self.write_in(&format!("targets/0/regions/{at}/start"), range.start)?;
            self.write_in(&format!("targets/0/regions/{at}/end"), range.end)?;
        }
        let begun = self.write("0/state", if begins { "on" } else { "commit" });
        begun.map_err(|error| match error {
            // Before the start DAMON can only be busy because another user requires exclusive use.
            DamonError::Write { source, .. } if begins && source.kind() == io::ErrorKind::ResourceBusy => {
                DamonError::Alone(source)
            }
            other => other,
        })?;
        self.settings = now;
        Ok(())
    }

    /// Writes the constant settings.
    fn set_up(&self) -> Result<(), DamonError> {
        self.write_in("operations", OPERATIONS)?;
        for (bound, regions) in ["min", "max"].iter().zip(REGIONS) {
            self.write_in(&format!("monitoring_attrs/nr_regions/{bound}"), regions)?;
        }
        self.write_in("targets/nr_targets", 1)?;
        self.write_in("targets/0/pid_target", self.files().pid())?;
        // A scheme that does nothing with every region; its regions are what is read.
        self.write_in("schemes/nr_schemes", 1)?;
        self.write_in("schemes/0/action", "stat")?;
        for (what, most) in [("sz", u64::MAX), ("nr_accesses", u32::MAX.into()), ("age", u32::MAX.into())] {
            self.write_in(&format!("schemes/0/access_pattern/{what}/min"), 0)?;
            self.write_in(&format!("schemes/0/access_pattern/{what}/max"), most)?;
        }
        Ok(())
    }

    /// Returns the regions of its latest aggregation, in order. Waits for an aggregation to end.
    ///
    /// # Errors
    /// [`DamonError`]: it does not monitor any more, or its files cannot be read.
    pub(super) fn regions(&self) -> Result<Vec<Region>, DamonError> {
        self.taken.is_still_ours()?;
        self.write("0/state", "update_schemes_tried_regions")?;
        let mut regions = Vec::new();
        for at in 0..MOST_READ {
            let file = |what| format!("{SCHEME}/tried_regions/{at}/{what}");
            let start = match number::<u64>(self.files(), &file("start")) {
                Err(DamonError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => break,
                start => start?,
            };
            let end: u64 = number(self.files(), &file("end"))?;
            let accesses: u32 = number(self.files(), &file("nr_accesses"))?;
            // The whole pages in it.
            let (start, end) = (start.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX), end / PAGE * PAGE);
            if start < end {
                regions.push(Region { range: start..end, accesses });
            }
        }
        regions.sort_unstable_by_key(|region| region.range.start);
        // Regions must not overlap; of two that do, the first is kept.
        let mut end = 0;
        regions.retain(|region| {
            let apart = region.range.start >= end;
            end = if apart { region.range.end } else { end };
            apart
        });
        Ok(regions)
    }

    /// Returns the CPU time of the kernel's thread.
    pub(super) fn cpu(&self) -> Duration {
        let pid = number::<i32>(self.files(), "0/pid").ok().filter(|&pid| pid > 0);
        pid.map_or(Duration::ZERO, |pid| self.files().cpu(pid))
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // Settings of other software are left alone. Before the constant settings are written, nothing shows an owner;
        // that lasts a moment.
        if self.is_set_up && self.taken.is_still_ours().is_err() {
            return;
        }
        // Refused if DAMON does not run. What cannot be released, the next process finds and clears away.
        let _ = write(self.files(), "0/state", "off");
        let _ = write(self.files(), NUMBER, "0");
    }
}

/// Writes a value, with retries while the kernel is busy.
fn write(files: &dyn Files, file: &str, value: &str) -> Result<(), DamonError> {
    write_while(files, file, value, |tries| tries < TRIES)
}

/// Writes a value and retries as long as `again`, called with the number of tries, returns true.
fn write_while(files: &dyn Files, file: &str, value: &str, again: impl Fn(u32) -> bool) -> Result<(), DamonError> {
    let mut tries = 0;
    loop {
        match files.write(file, value) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && again(tries) => files.pause(),
            Err(source) => return Err(DamonError::Write { file: file.into(), value: value.into(), source }),
        }
        tries += 1;
    }
}

/// Reads a file, with retries while the kernel is busy.
fn read(files: &dyn Files, file: &str) -> io::Result<String> {
    let mut tries = 0;
    loop {
        match files.read(file) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < TRIES => files.pause(),
            content => return content,
        }
        tries += 1;
    }
}

fn number<T: std::str::FromStr>(files: &dyn Files, file: &str) -> Result<T, DamonError> {
    let content = read(files, file).map_err(|source| DamonError::Read { file: file.into(), source })?;
    content
        .trim()
        .parse()
        .map_err(|_| DamonError::Words { file: file.into(), content: content.chars().take(40).collect() })
}

/// Returns whether DAMON is set up in our way, whatever process it monitors.
fn is_as_ours(files: &dyn Files) -> bool {
    let says = |file: &str, what: &str| read(files, file).is_ok_and(|content| content.trim() == what);
    let in_context = |file: &str, what: &str| says(&format!("{CONTEXT}/{file}"), what);
    let mut bounds = ["min", "max"].iter().zip(REGIONS);
    says(NUMBER, "1")
        && says("0/contexts/nr_contexts", "1")
        && in_context("operations", OPERATIONS)
        && in_context("targets/nr_targets", "1")
        && in_context("schemes/nr_schemes", "1")
        && in_context("schemes/0/action", "stat")
        && bounds
            .all(|(bound, regions)| in_context(&format!("monitoring_attrs/nr_regions/{bound}"), &regions.to_string()))
}

/// Returns the process that it monitors.
fn target(files: &dyn Files) -> Option<i32> {
    number(files, &format!("{CONTEXT}/targets/0/pid_target")).ok()
}

/// Returns whether a process of this library left it behind when it was killed or executed another program. Then no
/// process of ours holds the lock, the settings are ours, and the monitored process is this one, or it no longer exists
/// and DAMON is off. A process that is not visible here may be in another namespace.
fn is_left_behind(files: &dyn Files) -> bool {
    let is_off = || read(files, "0/state").is_ok_and(|state| state.trim() == "off");
    let is_gone = |pid: i32| pid > 0 && !files.is_there(pid) && is_off();
    is_as_ours(files) && target(files).is_some_and(|pid| pid == files.pid() || is_gone(pid))
}

/// Returns what the files say of their user, for people.
fn other_user(files: &dyn Files) -> String {
    let says = |file: &str| {
        files.read(file).ok().map(|content| content.trim().to_string()).filter(|content| !content.is_empty())
    };
    let settings = [
        ("kdamonds", NUMBER.to_string()),
        ("state", "0/state".into()),
        ("operations", format!("{CONTEXT}/operations")),
        ("process", format!("{CONTEXT}/targets/0/pid_target")),
    ];
    let settings = settings.iter().filter_map(|(what, file)| Some(format!("{what}: {}", says(file)?)));
    settings.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_the_thread_name() {
        let stat = "77 (kdamond.0) 9 (x) S 2 0 0 0 -1 2129984 0 0 0 0 3 140 0 0 20 0 1 0 52 0 0";
        // The fields begin behind the last parenthesis.
        let stat = stat.replace(" 9 (x)", "");
        assert_eq!(cpu_of_stat(&stat), Duration::from_millis(1430));
        assert_eq!(cpu_of_stat("77 (a) b) c) S 2 0 0 0 -1 0 0 0 0 0 1 2 0"), Duration::from_millis(30));
        assert_eq!(["", "garbage", "1 (x", ") 1 2"].map(cpu_of_stat), [Duration::ZERO; 4]);
    }
}
