//! The kernel's files, in the order in which they are to be written and read.
//!
//! Source: Linux, Documentation/ABI/testing/sysfs-kernel-mm-damon; what is answered with `EBUSY`, mm/damon/sysfs.c of Linux 6.12.

use super::{Intervals, Region};
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

/// Regions that the kernel may make, at least and at most. Source: chosen: a hundredth of the memory may be hot and is seen, and each costs two short looks
/// of the kernel's a sample.
const REGIONS: [u64; 2] = [100, 500];
/// Regions that are read at most. Source: chosen, the kernel may have some more than it is told for a moment.
const MOST_READ: usize = 4096;
/// How often what is busy is tried again, with pauses of [`Files::pause`]. Source: chosen, two seconds; the kernel holds its lock for a tenth of one.
const TRIES: u32 = 200;
/// The same of one who has a look ended that another waits for. Source: chosen, a tenth of a second; a kernel that holds its lock over a look takes no end
/// before the look is over.
const TRIES_OF_END: u32 = 10;
/// Addresses that stay the same, as told: a heap's memory, and nothing else of the process.
const OPERATIONS: &str = "fvaddr";
/// Where what it is told of is found.
const CONTEXT: &str = "0/contexts/0";
const SCHEME: &str = "0/contexts/0/schemes/0";

/// Why DAMON says nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamonError {
    /// The kernel was built without.
    #[error(
        "this kernel has no DAMON that looks at programs: that wants Linux 6.2 or later with CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR; leave the source to telpher, or ask for another one"
    )]
    Missing,
    /// This user may not.
    #[error("this user may not use DAMON: run as root, or ask for another source")]
    Forbidden(#[source] io::Error),
    /// Somebody has it, and there is one of it.
    #[error(
        "somebody else uses DAMON ({who}), and a machine has one; end that (as with `damo stop`), or, if nobody wants it any more, write off to {folder}/0/state and 0 to {folder}/nr_kdamonds"
    )]
    Busy {
        /// What its files say.
        who: String,
        /// Its folder.
        folder: String,
    },
    /// The kernel has one who looks alone.
    #[error(
        "the kernel lets nobody look now: one who looks alone does, as its own damon_reclaim or damon_lru_sort; write N to /sys/module/NAME/parameters/enabled of that one, or ask for another source"
    )]
    Alone(#[source] io::Error),
    /// Somebody has ended what was set up.
    #[error(
        "somebody else has changed what was set up in DAMON's files ({who}); they are left as they are now, and telpher does not look by them any more"
    )]
    Lost {
        /// What its files say.
        who: String,
    },
    /// A process of ours has it.
    #[error(
        "{} has DAMON for its own memory, and a machine has one; end that, or ask for another source", pid.map_or("this process".into(), |pid| format!("process {pid}, by telpher,"))
    )]
    Ours {
        /// Which; none for this one.
        pid: Option<i32>,
    },
    /// It takes what it is told no more.
    #[error("cannot write {value} to DAMON's {file}; somebody else may have changed its files")]
    Write {
        /// Which file.
        file: String,
        /// What was written.
        value: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It does not tell.
    #[error("cannot read DAMON's {file}; somebody else may have changed its files")]
    Read {
        /// Which file.
        file: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What it tells is none of what it may.
    #[error("DAMON's {file} says {said:?}, which is no number")]
    Words {
        /// Which file.
        file: String,
        /// What it says, as much of it as a reader wants.
        said: String,
    },
    /// No thread to ask it by.
    #[error("cannot start the thread that asks DAMON")]
    Thread(#[source] io::Error),
    /// That thread is no more.
    #[error("the thread that asks DAMON has ended; please tell the authors")]
    Ended,
}

/// The files, and who else there is.
pub(super) trait Files: Debug + Send + Sync {
    /// What a file says.
    fn read(&self, file: &str) -> io::Result<String>;

    /// Tells it.
    fn write(&self, file: &str, value: &str) -> io::Result<()>;

    /// Keeps other processes of ours away until it is dropped, however that happens; or says which one it is that has them.
    fn lock(&mut self) -> io::Result<Result<(), i32>>;

    /// For people.
    fn folder(&self) -> String;

    /// This process' number.
    fn pid(&self) -> i32;

    /// There is a process of this number.
    fn is_there(&self, pid: i32) -> bool;

    /// Time of a core that a thread of the kernel's has had; zero if it does not tell.
    fn cpu(&self, pid: i32) -> Duration;

    /// Waits for a moment.
    fn pause(&self);
}

/// The system's.
#[derive(Debug)]
pub(super) struct Sysfs {
    folder: PathBuf,
    /// The number of kdamonds, with a lock on it. It is a process', and the system lets it go when the process ends or closes *any* descriptor of this
    /// file; so nobody here opens it twice.
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
            // The kernel takes a value by one call, which this is for so short a text.
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

/// Time in the system and out of it, by a line of `/proc/PID/stat`. Source: proc_pid_stat(5), fields 14 and 15, in hundredths of a second (`USER_HZ` of
/// x86).
fn cpu_of_stat(stat: &str) -> Duration {
    // The name, in parentheses, may have any of them in it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |at: usize| fields.split_whitespace().nth(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis(ticks(11).saturating_add(ticks(12)).saturating_mul(10))
}

/// Folders that managers of this process have: a process' lock does not keep it from itself.
static TAKEN: Mutex<Vec<(String, Lineage)>> = Mutex::new(Vec::new());

fn taken() -> MutexGuard<'static, Vec<(String, Lineage)>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No other manager of this process has it until this is dropped.
#[derive(Debug)]
struct Turn(String);

impl Turn {
    fn take(folder: String) -> Option<Turn> {
        let mut taken = taken();
        // What a forked child's parent has, the child has not.
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

/// The files, which no other of ours has.
#[derive(Debug)]
struct Taken {
    files: Box<dyn Files>,
    /// Nothing is to begin any more, nor what is busy to be tried again.
    ends: AtomicBool,
    /// Behind the files: it ends after them.
    _turn: Turn,
}

impl Taken {
    /// Nobody has ended it meanwhile and set up another one. **Staleness**: somebody may from now on.
    fn is_still_ours(&self) -> Result<(), DamonError> {
        let is_ours = is_as_ours(&*self.files) && target(&*self.files) == Some(self.files.pid());
        if is_ours { Ok(()) } else { Err(DamonError::Lost { who: who(&*self.files) }) }
    }

    fn ends(&self) -> bool {
        // Relaxed: it says nothing of anything else.
        self.ends.load(Ordering::Relaxed)
    }
}

/// Has DAMON end, while another thread waits for what it has found.
#[derive(Debug)]
pub(super) struct Ender(Arc<Taken>);

impl Ender {
    /// A look that is under way fails soon, and none begins any more. What was taken is given back by who has it.
    pub(super) fn end(&self) {
        // Relaxed: as in `ends`.
        self.0.ends.store(true, Ordering::Relaxed);
        if self.0.is_still_ours().is_ok() {
            // Refused if it does not run, and tried again at the interface's end if it does.
            let _ = write_while(&*self.0.files, "0/state", "off", |tries| tries < TRIES_OF_END);
        }
    }
}

/// DAMON, taken.
#[derive(Debug)]
pub(super) struct Interface {
    taken: Arc<Taken>,
    /// What the kernel was told of last.
    told: Option<(Vec<std::ops::Range<u64>>, Intervals)>,
    /// All that stays the same is set up: from then on it is seen by it whether it still is ours.
    is_set_up: bool,
}

impl Interface {
    /// Takes it: it looks at nothing yet.
    ///
    /// # Errors
    /// [`DamonError`]: it is not to be had. It is left as it was.
    pub(super) fn take(mut files: Box<dyn Files>) -> Result<Interface, DamonError> {
        let turn = Turn::take(files.folder()).ok_or(DamonError::Ours { pid: None })?;
        let locked = files.lock().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DamonError::Missing,
            _ => DamonError::Forbidden(error),
        })?;
        locked.map_err(|pid| DamonError::Ours { pid: Some(pid) })?;
        if number::<u64>(&*files, NUMBER)? != 0 {
            if !is_left_behind(&*files) {
                return Err(DamonError::Busy { who: who(&*files), folder: files.folder() });
            }
            // Refused if it does not run.
            let _ = write(&*files, "0/state", "off");
            write(&*files, NUMBER, "0")?;
        }
        write(&*files, NUMBER, "1")?;
        // From here on its drop gives it back.
        let taken = Arc::new(Taken { files, ends: AtomicBool::new(false), _turn: turn });
        let mut interface = Interface { taken, told: None, is_set_up: false };
        interface.write("0/contexts/nr_contexts", "1")?;
        let file = format!("{CONTEXT}/avail_operations");
        let has = interface.files().read(&file).map_err(|source| DamonError::Read { file, source })?;
        if !has.split_whitespace().any(|word| word == OPERATIONS) {
            return Err(DamonError::Missing);
        }
        // At once, so that what is left behind by one that is killed is known to be ours.
        interface.set_up()?;
        interface.is_set_up = true;
        Ok(interface)
    }

    /// One who may end it from another thread.
    pub(super) fn ender(&self) -> Ender {
        Ender(Arc::clone(&self.taken))
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

    /// Has it look at this memory, if it does not already.
    ///
    /// # Errors
    /// [`DamonError`]: it does not any more.
    pub(super) fn look(&mut self, ranges: Vec<std::ops::Range<u64>>, intervals: Intervals) -> Result<(), DamonError> {
        let now = Some((ranges, intervals));
        if self.told == now {
            return Ok(());
        }
        self.taken.is_still_ours()?;
        let begins = self.told.is_none();
        // What fails half-way is told anew.
        self.told = None;
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
            // What does not run yet is not busy by itself.
            DamonError::Write { source, .. } if begins && source.kind() == io::ErrorKind::ResourceBusy => {
                DamonError::Alone(source)
            }
            other => other,
        })?;
        self.told = now;
        Ok(())
    }

    /// All that stays the same.
    fn set_up(&self) -> Result<(), DamonError> {
        self.write_in("operations", OPERATIONS)?;
        for (bound, regions) in ["min", "max"].iter().zip(REGIONS) {
            self.write_in(&format!("monitoring_attrs/nr_regions/{bound}"), regions)?;
        }
        self.write_in("targets/nr_targets", 1)?;
        self.write_in("targets/0/pid_target", self.files().pid())?;
        // One that does nothing with every region: those are what is read.
        self.write_in("schemes/nr_schemes", 1)?;
        self.write_in("schemes/0/action", "stat")?;
        for (what, most) in [("sz", u64::MAX), ("nr_accesses", u32::MAX.into()), ("age", u32::MAX.into())] {
            self.write_in(&format!("schemes/0/access_pattern/{what}/min"), 0)?;
            self.write_in(&format!("schemes/0/access_pattern/{what}/max"), most)?;
        }
        Ok(())
    }

    /// What it has found in its latest aggregation, in order. Waits for one to end.
    ///
    /// # Errors
    /// [`DamonError`]: it does not look any more, or does not tell.
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
            // Its whole pages.
            let (start, end) = (start.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX), end / PAGE * PAGE);
            if start < end {
                regions.push(Region { range: start..end, accesses });
            }
        }
        regions.sort_unstable_by_key(|region| region.range.start);
        // None twice: of two that overlap, which the kernel does not tell of, the first one is taken.
        let mut end = 0;
        regions.retain(|region| {
            let apart = region.range.start >= end;
            end = if apart { region.range.end } else { end };
            apart
        });
        Ok(regions)
    }

    /// Time of a core that the kernel's thread has had.
    pub(super) fn cpu(&self) -> Duration {
        let pid = number::<i32>(self.files(), "0/pid").ok().filter(|&pid| pid > 0);
        pid.map_or(Duration::ZERO, |pid| self.files().cpu(pid))
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // What is another's by now is left alone. Until it is set up nothing says whose it is; that takes a moment.
        if self.is_set_up && self.taken.is_still_ours().is_err() {
            return;
        }
        // Refused if it does not run. What cannot be given back, whoever comes next finds, and clears away.
        let _ = write(self.files(), "0/state", "off");
        let _ = write(self.files(), NUMBER, "0");
    }
}

/// Writes, again and again where the kernel is busy.
fn write(files: &dyn Files, file: &str, value: &str) -> Result<(), DamonError> {
    write_while(files, file, value, |tries| tries < TRIES)
}

/// The same, as long as this says so of the tries up to now.
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

/// Reads, likewise.
fn read(files: &dyn Files, file: &str) -> io::Result<String> {
    let mut tries = 0;
    loop {
        match files.read(file) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < TRIES => files.pause(),
            said => return said,
        }
        tries += 1;
    }
}

fn number<T: std::str::FromStr>(files: &dyn Files, file: &str) -> Result<T, DamonError> {
    let said = read(files, file).map_err(|source| DamonError::Read { file: file.into(), source })?;
    said.trim().parse().map_err(|_| DamonError::Words { file: file.into(), said: said.chars().take(40).collect() })
}

/// It is set up as we do, whatever process it looks at.
fn is_as_ours(files: &dyn Files) -> bool {
    let says = |file: &str, what: &str| read(files, file).is_ok_and(|said| said.trim() == what);
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

/// The process it looks at.
fn target(files: &dyn Files) -> Option<i32> {
    number(files, &format!("{CONTEXT}/targets/0/pid_target")).ok()
}

/// What a process of ours has left that was killed, or executed another program: nobody of ours has the lock, it is as we make it, and the process it looks
/// at is this one, or none any more and it has ended: a process that is not seen from here may be of another namespace.
fn is_left_behind(files: &dyn Files) -> bool {
    let is_off = || read(files, "0/state").is_ok_and(|state| state.trim() == "off");
    let is_gone = |pid: i32| pid > 0 && !files.is_there(pid) && is_off();
    is_as_ours(files) && target(files).is_some_and(|pid| pid == files.pid() || is_gone(pid))
}

/// What the files say of who uses them, for people.
fn who(files: &dyn Files) -> String {
    let says = |file: &str| files.read(file).ok().map(|said| said.trim().to_string()).filter(|said| !said.is_empty());
    let told = [
        ("kdamonds", NUMBER.to_string()),
        ("state", "0/state".into()),
        ("operations", format!("{CONTEXT}/operations")),
        ("process", format!("{CONTEXT}/targets/0/pid_target")),
    ];
    let told = told.iter().filter_map(|(what, file)| Some(format!("{what}: {}", says(file)?)));
    told.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_time_is_read_behind_its_name() {
        let stat = "77 (kdamond.0) 9 (x) S 2 0 0 0 -1 2129984 0 0 0 0 3 140 0 0 20 0 1 0 52 0 0";
        // The fields begin behind the last parenthesis.
        let stat = stat.replace(" 9 (x)", "");
        assert_eq!(cpu_of_stat(&stat), Duration::from_millis(1430));
        assert_eq!(cpu_of_stat("77 (a) b) c) S 2 0 0 0 -1 0 0 0 0 0 1 2 0"), Duration::from_millis(30));
        assert_eq!(["", "garbage", "1 (x", ") 1 2"].map(cpu_of_stat), [Duration::ZERO; 4]);
    }
}
