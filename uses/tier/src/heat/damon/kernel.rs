//! A model of the kernel's side, in memory: the effect of each value that is written, and what is read afterwards.
//!
//! Source: what Linux 6.12 was seen to do, and mm/damon/sysfs.c.

use super::interface::Files;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// This process' number in the model.
pub(super) const SELF: i32 = 4711;
/// The kernel's thread.
const THREAD: i32 = 99;

/// The kernel's state, and how it is to behave.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    pub(super) files: BTreeMap<String, String>,
    /// All that was written, in order.
    pub(super) written: Vec<(String, String)>,
    /// What to refuse: a part of the file's name or of the value, the error, and how often.
    pub(super) refuses: Vec<(&'static str, Errno, u32)>,
    /// The regions it finds: the contents of each region's files.
    pub(super) found: Vec<[String; 3]>,
    /// The process of this library that holds the lock.
    pub(super) locked: Option<i32>,
    /// Other processes.
    pub(super) processes: Vec<i32>,
    pub(super) pauses: u32,
    /// Readings go on until they are ended.
    pub(super) looks_on: bool,
    /// A thread waits for a reading.
    pub(super) awaited: bool,
    /// The waiting thread has given up: the reading was not ended.
    pub(super) gave_up: bool,
    pub(super) cpu: Duration,
}

/// A handle to the model.
#[derive(Clone, Debug)]
pub(super) struct Fake(pub(super) Arc<Mutex<Kernel>>);

impl Fake {
    /// Creates a model in which DAMON is unused.
    pub(super) fn idle() -> Fake {
        let kernel = Kernel { files: BTreeMap::from([("nr_kdamonds".into(), "0\n".into())]), ..Kernel::default() };
        Fake(Arc::new(Mutex::new(kernel)))
    }

    pub(super) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a reading ends.
    fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let mut kernel = self.kernel();
            if !kernel.looks_on || !kernel.is_on() {
                return;
            }
            (kernel.awaited, kernel.gave_up) = (true, Instant::now() >= end);
            if kernel.gave_up {
                return;
            }
            drop(kernel);
            std::thread::yield_now();
        }
    }

    pub(super) fn says(&self, file: &str) -> Option<String> {
        self.kernel().files.get(file).map(|content| content.trim().to_string())
    }
}

impl Kernel {
    /// Creates a folder's files.
    fn make(&mut self, folder: &str, files: &[(&str, &str)]) {
        for (file, says) in files {
            self.files.insert(format!("{folder}/{file}"), format!("{says}\n"));
        }
    }

    fn refused(&mut self, file: &str, value: &str) -> io::Result<()> {
        let refuse = self
            .refuses
            .iter_mut()
            .find(|(part, _, times)| *times > 0 && (file.contains(part) || value.contains(part)));
        match refuse {
            Some((_, errno, times)) => {
                *times -= 1;
                Err((*errno).into())
            }
            None => Ok(()),
        }
    }

    fn is_on(&self) -> bool {
        self.files.get("0/state").is_some_and(|state| state == "on\n")
    }

    fn write(&mut self, file: &str, value: &str) -> io::Result<()> {
        self.written.push((file.into(), value.into()));
        self.refused(file, value)?;
        if !self.files.contains_key(file) {
            return Err(Errno::NOENT.into());
        }
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        match (name, value) {
            ("state", "on") if self.is_on() => return Err(Errno::BUSY.into()),
            ("state", "on") => {
                self.make("0", &[("state", "on"), ("pid", &THREAD.to_string())]);
                return Ok(());
            }
            ("state", "off") if self.is_on() => {
                self.make("0", &[("state", "off"), ("pid", "-1")]);
                return Ok(());
            }
            ("state", _) if !self.is_on() => return Err(Errno::INVAL.into()),
            ("state", "commit") => return Ok(()),
            ("state", "update_schemes_tried_regions") => {
                let tried = "0/contexts/0/schemes/0/tried_regions";
                self.files.retain(|file, _| !file.starts_with(tried));
                for (at, [start, end, accesses]) in self.found.clone().iter().enumerate() {
                    let files: [(&str, &str); 3] = [("start", start), ("end", end), ("nr_accesses", accesses)];
                    self.make(&format!("{tried}/{at}"), &files);
                }
                return Ok(());
            }
            ("state", _) => return Err(Errno::INVAL.into()),
            ("nr_kdamonds", _) if self.is_on() => return Err(Errno::BUSY.into()),
            ("nr_kdamonds", _) => {
                self.files.retain(|file, _| file == "nr_kdamonds");
                if value == "1" {
                    self.make("0", &[("state", "off"), ("pid", "-1"), ("contexts/nr_contexts", "0")]);
                }
            }
            ("nr_contexts", "1") => {
                let attributes = [
                    ("avail_operations", "vaddr\nfvaddr\npaddr"),
                    ("operations", "vaddr"),
                    ("targets/nr_targets", "0"),
                    ("schemes/nr_schemes", "0"),
                    ("monitoring_attrs/intervals/sample_us", "5000"),
                    ("monitoring_attrs/intervals/aggr_us", "100000"),
                    ("monitoring_attrs/nr_regions/min", "10"),
                    ("monitoring_attrs/nr_regions/max", "1000"),
                ];
                self.make(&format!("{folder}/0"), &attributes);
            }
            ("nr_targets", "1") => {
                self.make(&format!("{folder}/0"), &[("pid_target", "0"), ("regions/nr_regions", "0")])
            }
            ("nr_schemes", "1") => {
                let patterns = ["sz", "nr_accesses", "age"]
                    .map(|what| ["min", "max"].map(|bound| format!("access_pattern/{what}/{bound}")));
                let patterns: Vec<(&str, &str)> = patterns.iter().flatten().map(|file| (file.as_str(), "0")).collect();
                self.make(&format!("{folder}/0"), &patterns);
                self.make(&format!("{folder}/0"), &[("action", "willneed")]);
            }
            ("nr_regions", many) => {
                for at in 0..many.parse::<u32>().map_err(|_| Errno::INVAL)? {
                    self.make(&format!("{folder}/{at}"), &[("start", "0"), ("end", "0")]);
                }
            }
            _ => (),
        }
        self.files.insert(file.into(), format!("{value}\n"));
        Ok(())
    }
}

impl Files for Fake {
    fn read(&self, file: &str) -> io::Result<String> {
        let kernel = self.kernel();
        kernel.files.get(file).cloned().ok_or(Errno::NOENT.into())
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        if value == "update_schemes_tried_regions" {
            self.wait();
        }
        self.kernel().write(file, value)
    }

    fn lock(&mut self) -> io::Result<Result<(), i32>> {
        let mut kernel = self.kernel();
        kernel.refused("lock", "")?;
        if !kernel.files.contains_key("nr_kdamonds") {
            return Err(Errno::NOENT.into());
        }
        Ok(kernel.locked.map_or(Ok(()), Err))
    }

    fn folder(&self) -> String {
        format!("/fake/{:p}", Arc::as_ptr(&self.0))
    }

    fn pid(&self) -> i32 {
        SELF
    }

    fn is_there(&self, pid: i32) -> bool {
        pid == SELF || self.kernel().processes.contains(&pid)
    }

    fn cpu(&self, pid: i32) -> Duration {
        assert_eq!(pid, THREAD);
        self.kernel().cpu
    }

    fn pause(&self) {
        self.kernel().pauses += 1;
    }
}
