//! Servers and clients over sockets: a driver's work, several machines, and clients that do everything wrong.

#![allow(clippy::cast_possible_truncation, reason = "the tests' numbers are small")]

mod client;
mod driver;
mod hostile;
mod interrupts;
mod machines;
mod memory;
mod peer;
mod work;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use telpher_vfio::{Machine, Preset, RunOptions, VfioRun};

/// A run in a folder of its own, and what it has told.
struct Fixture {
    run: VfioRun,
    folder: PathBuf,
    remarks: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    fn new(machines: &[&str]) -> Fixture {
        Fixture::with(machines, Preset::Spr, false)
    }

    /// `machines` are the options behind the path of each.
    fn with(machines: &[&str], preset: Preset, uses_messages: bool) -> Fixture {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("telpher-vfio-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let machine = |(number, options): (usize, &&str)| -> Machine {
            format!("{}{options}", folder.join(number.to_string()).display()).parse().unwrap()
        };
        let machines = machines.iter().enumerate().map(machine).collect();
        let options = RunOptions { machines, preset, engines: 1, uses_messages, seconds: None };
        let remarks: Arc<Mutex<Vec<String>>> = Arc::default();
        let tell = Arc::clone(&remarks);
        let run = VfioRun::start(&options, move |remark| tell.lock().unwrap().push(remark.to_owned())).unwrap();
        Fixture { run, folder, remarks }
    }

    fn socket(&self, machine: usize) -> PathBuf {
        self.folder.join(machine.to_string())
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.lock().unwrap().clone()
    }

    fn has_told(&self, part: &str) -> bool {
        self.remarks().iter().any(|remark| remark.contains(part))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
