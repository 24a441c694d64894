//! The conditions under which a point counts: the same core distance before and after it, and threads that had their
//! cores while it was measured.

use super::BenchError;
use serde::{Serialize, Serializer};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telpher_os::{Distance, line_round_trip};

/// Writes a distance to JSON.
pub(super) fn serialize_distance<S: Serializer>(distance: &Distance, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match distance {
        Distance::Near => "near",
        Distance::Far => "far",
        Distance::Same => "same",
    })
}

/// The reason why a point does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// The distance before the point differed from the distance after it.
    Moved,
    /// Other work kept the cores so busy that no distance could be measured.
    Unknown,
    /// A watched thread had less CPU time than required.
    Absent,
    /// The hypervisor took a core away.
    Stolen,
}

/// Numbers of points that count and that do not count, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Drops {
    /// Points that count.
    pub kept: u32,
    /// See `Dropped::Moved`.
    pub moved: u32,
    /// See `Dropped::Unknown`.
    pub unknown: u32,
    /// See `Dropped::Absent`.
    pub absent: u32,
    /// See `Dropped::Stolen`.
    pub stolen: u32,
}

impl Drops {
    /// Counts a dropped point.
    pub fn count(&mut self, why: Dropped) {
        match why {
            Dropped::Moved => self.moved += 1,
            Dropped::Unknown => self.unknown += 1,
            Dropped::Absent => self.absent += 1,
            Dropped::Stolen => self.stolen += 1,
        }
    }

    /// Counts a point, and returns its distance if it counts: those before and after it are the same, and nothing else
    /// speaks against it.
    pub(super) fn judge(
        &mut self,
        before: Option<Distance>,
        after: Option<Distance>,
        counts: Result<(), Dropped>,
    ) -> Option<Distance> {
        let distance = match (before, after) {
            (Some(before), Some(after)) if before == after => counts.map(|()| before),
            (Some(_), Some(_)) => Err(Dropped::Moved),
            _ => Err(Dropped::Unknown),
        };
        match distance {
            Ok(_) => self.kept += 1,
            Err(why) => self.count(why),
        }
        distance.ok()
    }

    /// Returns the number of points that do not count.
    pub fn all(&self) -> u32 {
        self.moved + self.unknown + self.absent + self.stolen
    }
}

/// The two cores of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cores {
    /// The core of the backend's forwarding thread.
    pub(super) backend: usize,
    /// The core of the guest.
    pub(super) guest: usize,
}

/// Duration of a probe. Source: the time that `line_round_trip` needs on idle cores.
const PROBE: Duration = Duration::from_millis(20);

impl Cores {
    /// Returns both cores.
    pub(super) fn all(self) -> [usize; 2] {
        [self.backend, self.guest]
    }

    /// Returns the distance between the cores; `None` if other work keeps them busy.
    pub(super) fn distance(self) -> Result<Option<Distance>, BenchError> {
        distance(self.backend, self.guest, PROBE)
    }
}

/// Returns the distance between two cores, measured for `time`; `None` if other work keeps them busy.
pub(super) fn distance(one: usize, other: usize, time: Duration) -> Result<Option<Distance>, BenchError> {
    if one == other {
        return Ok(Some(Distance::Same));
    }
    let failed = |source| BenchError::Program { what: "pinning threads to the two cores".into(), source };
    Ok(line_round_trip(one, other, time).map_err(failed)?.map(Distance::of))
}

/// Minimum part of its core that a forwarding thread must have had. Source: the limit used for the peer's published
/// rates on such a machine.
const ATTENDANCE: f64 = 0.96;
/// Maximum number of ticks stolen by the hypervisor during a point. Source: as above; a tick is 10 ms, and one may have
/// begun before the point.
const STOLEN: u64 = 1;

/// Threads that must have their cores, and their CPU time at the beginning.
#[derive(Debug)]
pub(super) struct Watch {
    threads: Vec<(PathBuf, u64)>,
    cpus: Vec<(usize, u64)>,
    begun: Instant,
}

/// A thread, by its folder in `/proc`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Thread(PathBuf);

impl Thread {
    /// Returns the calling thread.
    pub(super) fn current() -> Option<Thread> {
        Some(Thread(PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").ok()?)))
    }

    /// Returns the main thread of a process.
    pub(super) fn main_of(pid: u32) -> Thread {
        Thread(PathBuf::from(format!("/proc/{pid}/task/{pid}")))
    }

    /// Returns the threads of a process whose name begins with `name`.
    pub(super) fn of(pid: u32, name: &str) -> Vec<Thread> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let named = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with(name));
        tasks.map(|task| task.path()).filter(named).map(Thread).collect()
    }

    /// Returns the thread's CPU time in nanoseconds. Source: Documentation/scheduler/sched-stats.rst,
    /// `/proc/<pid>/schedstat`.
    fn cpu_ns(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0)
    }
}

impl Watch {
    /// Begins to watch.
    pub(super) fn begin(threads: &[Thread], cpus: [usize; 2]) -> Watch {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpus = cpus.map(|cpu| (cpu, stolen_in(&stat, cpu)));
        let threads = threads.iter().map(|thread| (thread.0.clone(), thread.cpu_ns())).collect();
        Watch { threads, cpus: cpus.into(), begun: Instant::now() }
    }

    /// Ends the watch; returns whether all threads had their cores since its beginning.
    pub(super) fn end(self) -> Result<(), Dropped> {
        let wall = self.begun.elapsed().as_secs_f64() * 1e9;
        let had = |(path, before): (PathBuf, u64)| Thread(path).cpu_ns().saturating_sub(before) as f64;
        let absent = self.threads.into_iter().map(had).any(|had| had < ATTENDANCE * wall);
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let stolen = self.cpus.iter().any(|&(cpu, before)| stolen_in(&stat, cpu).saturating_sub(before) > STOLEN);
        match (stolen, absent) {
            (true, _) => Err(Dropped::Stolen),
            (_, true) => Err(Dropped::Absent),
            _ => Ok(()),
        }
    }
}

/// Returns the ticks of a CPU that the hypervisor gave to others. Source: proc(5), `/proc/stat`: the eighth number.
fn stolen_in(stat: &str, cpu: usize) -> u64 {
    let name = format!("cpu{cpu}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name));
    line.and_then(|line| line.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

/// The result of one competitor in a round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Seen {
    /// The measured value.
    pub(super) value: f64,
    /// The part of the bytes that a device copied, if there is a device.
    pub(super) share: Option<f64>,
    /// Whether the point counts.
    pub(super) counts: Result<(), Dropped>,
}

/// A point that counts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Kept {
    /// The distance between the cores.
    pub(super) distance: Distance,
    /// The measured value.
    pub(super) value: f64,
    /// The part of the bytes that its device copied.
    pub(super) share: Option<f64>,
}

/// Runs one round: each competitor once, from `first` on, with a distance probe before and after each. Returns the
/// points that count.
pub(super) fn round<E>(
    contestants: usize,
    first: usize,
    drops: &mut Drops,
    mut distance: impl FnMut() -> Result<Option<Distance>, E>,
    mut measure: impl FnMut(usize) -> Result<Seen, E>,
) -> Result<Vec<Option<Kept>>, E> {
    let mut values = vec![None; contestants];
    let mut before = distance()?;
    for place in 0..contestants {
        let contestant = (first + place) % contestants;
        let seen = measure(contestant)?;
        let after = distance()?;
        if let Some(distance) = drops.judge(before, after, seen.counts) {
            values[contestant] = Some(Kept { distance, value: seen.value, share: seen.share });
        }
        before = after;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    use Distance::{Far, Near};

    /// Runs a round of two competitors with these distances before, between and after them.
    fn with(
        distances: [Option<Distance>; 3],
        counts: [Result<(), Dropped>; 2],
    ) -> (Vec<Option<(Distance, f64)>>, Drops) {
        let (mut drops, mut at) = (Drops::default(), 0);
        let probe = || {
            at += 1;
            Ok::<_, ()>(distances[at - 1])
        };
        let measure =
            |contestant: usize| Ok(Seen { value: contestant as f64, share: None, counts: counts[contestant] });
        let values = round(2, 1, &mut drops, probe, measure).unwrap();
        (values.into_iter().map(|kept| kept.map(|kept| (kept.distance, kept.value))).collect(), drops)
    }

    #[test]
    fn only_points_at_one_distance_count_and_drops_are_counted() {
        let (values, drops) = with([Some(Far); 3], [Ok(()); 2]);
        assert_eq!(values, [Some((Far, 0.0)), Some((Far, 1.0))]);
        assert_eq!((drops.kept, drops.all()), (2, 0));
        // The second competitor has the first turn here.
        let (values, drops) = with([Some(Far), Some(Near), Some(Near)], [Ok(()); 2]);
        assert_eq!((values, drops.moved), (vec![Some((Near, 0.0)), None], 1));
        let (values, drops) = with([Some(Far), None, Some(Far)], [Ok(()); 2]);
        assert_eq!((values, drops.unknown), (vec![None, None], 2));
        let (values, drops) = with([Some(Near); 3], [Err(Dropped::Absent), Err(Dropped::Stolen)]);
        assert_eq!((values, drops.absent, drops.stolen, drops.kept), (vec![None, None], 1, 1, 0));
    }

    #[test]
    fn stolen_ticks_are_the_eighth_number_of_the_cpu_s_line() {
        let stat = "cpu  1 2 3 4 5 6 7 80 9 0\ncpu1 1 2 3 4 5 6 7 8 9 0\ncpu11 1 2 3 4 5 6 7 18 9 0\nintr 5\n";
        assert_eq!([1, 11, 2].map(|cpu| stolen_in(stat, cpu)), [8, 18, 0]);
    }

    #[test]
    fn a_sleeping_thread_and_a_missing_thread_are_absent() {
        let me = Thread::current().unwrap();
        let watch = Watch::begin(&[me], [0; 2]);
        std::thread::sleep(Duration::from_millis(30));
        // The hypervisor may have taken the core meanwhile; then the reason is `Stolen`, which is an error too.
        assert!(watch.end().is_err());
        let gone = Thread("/nowhere".into());
        assert!(Watch::begin(&[gone], [0; 2]).end().is_err());
    }

    #[test]
    fn threads_are_found_by_their_names() {
        let named = std::thread::Builder::new().name("telpher-found".into());
        let found = named.spawn(|| Thread::of(std::process::id(), "telpher-found") == [Thread::current().unwrap()]);
        // /proc/thread-self names the process by its number, like `of`.
        assert!(found.unwrap().join().unwrap());
    }

    #[test]
    fn one_core_has_no_distance_to_itself() {
        let core = telpher_os::allowed_cpus().unwrap()[0];
        assert_eq!(Cores { backend: core, guest: core }.distance().unwrap(), Some(Distance::Same));
    }
}
