//! A fake driver with one device and one queue, used to test the file system.

use super::super::tree::Tree;
use crate::tree::{Caller, Entry, Errno};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex};

pub(in super::super) const DEVICE: &str = "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0";
pub(in super::super) const DRIVER: &str = "/sys/bus/dsa/drivers/user";
const FLAGS: &str = "flags\t\t: fpu movdir64b enqcmd\n";

/// The fake driver.
#[derive(Debug, Default)]
pub(in super::super) struct FakeDriver {
    state: Mutex<State>,
    change: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bound: bool,
    name: String,
    /// How often `counter` was shown.
    counter: u64,
    /// Open files, and those that were released.
    open: BTreeSet<u64>,
    last: u64,
    /// A write to `slow` waits while this is clear.
    released: bool,
    waiting: bool,
    config: Vec<u8>,
}

impl FakeDriver {
    pub(in super::super) fn open_files(&self) -> usize {
        self.state.lock().unwrap().open.len()
    }

    pub(in super::super) fn wait_for_no_open_files(&self) {
        let state = self.state.lock().unwrap();
        drop(self.change.wait_while(state, |state| !state.open.is_empty()).unwrap());
    }

    fn entries(&self) -> BTreeMap<String, Entry> {
        let state = self.state.lock().unwrap();
        let mut entries = BTreeMap::new();
        let mut add = |path: &str, entry: Entry| entries.insert(path.to_owned(), entry);
        let link = |text: &str| Entry::Link(text.to_owned());
        for path in [
            "/sys/bus/dsa",
            "/sys/bus/dsa/devices",
            "/sys/bus/dsa/drivers",
            DRIVER,
            "/sys/devices/pci0000:6a",
            "/sys/devices/pci0000:6a/0000:6a:01.0",
            DEVICE,
            &format!("{DEVICE}/wq0.0"),
            "/sys/module/idxd",
        ] {
            add(path, Entry::Directory);
        }
        add("/sys/bus/dsa/devices/dsa0", link("../../../devices/pci0000:6a/0000:6a:01.0/dsa0"));
        add("/sys/bus/dsa/devices/wq0.0", link("../../../devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0"));
        add("/sys/bus/pci/devices/0000:6a:01.0", link("../../../devices/pci0000:6a/0000:6a:01.0"));
        add(&format!("{DRIVER}/bind"), Entry::Attribute { mode: 0o200 });
        add(&format!("{DRIVER}/unbind"), Entry::Attribute { mode: 0o200 });
        add("/sys/devices/pci0000:6a/0000:6a:01.0/config", Entry::Binary { mode: 0o644, size: 256 });
        add(&format!("{DEVICE}/slow"), Entry::Attribute { mode: 0o200 });
        add(&format!("{DEVICE}/go"), Entry::Attribute { mode: 0o200 });
        for name in ["state", "counter", "absent", "waiting"] {
            add(&format!("{DEVICE}/{name}"), Entry::Attribute { mode: 0o444 });
        }
        add(&format!("{DEVICE}/wq0.0/name"), Entry::Attribute { mode: 0o644 });
        add("/proc/cpuinfo", Entry::Attribute { mode: 0o444 });
        if state.bound {
            add("/dev/dsa", Entry::Directory);
            add("/dev/dsa/wq0.0", Entry::Node { major: 240, minor: 0 });
            add("/dev/char", Entry::Directory);
            add("/dev/char/240:0", link("../dsa/wq0.0"));
        }
        entries
    }
}

impl Tree for FakeDriver {
    fn roots(&self) -> Vec<String> {
        [
            "/sys/bus/dsa",
            "/sys/devices/pci0000:6a",
            "/sys/bus/pci/devices/0000:6a:01.0",
            "/sys/module/idxd",
            "/dev/dsa",
            "/proc/cpuinfo",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn merged(&self) -> Vec<String> {
        ["/sys/bus", "/sys/devices", "/sys/bus/pci/devices", "/sys/module", "/dev", "/dev/char", "/proc"]
            .map(str::to_owned)
            .to_vec()
    }

    fn entry(&self, path: &str) -> Result<Entry, Errno> {
        self.entries().remove(path).ok_or(Errno::NOENT)
    }

    fn list(&self, path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        let entries = self.entries();
        let children = entries.iter().filter_map(|(other, entry)| {
            let (above, name) = other.rsplit_once('/')?;
            (above == path).then(|| (name.to_owned(), entry.clone()))
        });
        let children: Vec<_> = children.collect();
        if children.is_empty() && entries.get(path) != Some(&Entry::Directory) {
            return Err(Errno::NOENT);
        }
        Ok(children)
    }

    fn show(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let mut state = self.state.lock().unwrap();
        let text = match path.rsplit_once('/').unwrap().1 {
            "state" => (if state.bound { "enabled\n" } else { "disabled\n" }).to_owned(),
            "counter" => {
                state.counter += 1;
                format!("{}\n", state.counter)
            }
            "name" => format!("{}\n", state.name),
            "waiting" => format!("{}\n", u8::from(state.waiting)),
            "cpuinfo" => FLAGS.repeat(300),
            _ => return Err(Errno::OPNOTSUPP),
        };
        Ok(text.into_bytes())
    }

    fn store(&self, path: &str, data: &[u8]) -> Result<usize, Errno> {
        let text = std::str::from_utf8(data).map_err(|_| Errno::INVAL)?.trim();
        let mut state = self.state.lock().unwrap();
        match path.rsplit_once('/').unwrap().1 {
            "bind" | "unbind" if text != "wq0.0" => return Err(Errno::NODEV),
            "bind" if state.bound => return Err(Errno::BUSY),
            "bind" => state.bound = true,
            "unbind" => state.bound = false,
            "name" if data.len() > 128 => return Err(Errno::TOOBIG),
            "name" => state.name = text.to_owned(),
            "slow" => {
                state.waiting = true;
                state = self.change.wait_while(state, |state| !state.released).unwrap();
                state.waiting = false;
            }
            "go" => {
                state.released = true;
                self.change.notify_all();
            }
            _ => return Err(Errno::IO),
        }
        drop(state);
        Ok(data.len())
    }

    fn read_at(&self, _: &str, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.state.lock().unwrap();
        state.config.resize(256, 0xa5);
        let offset = usize::try_from(offset).unwrap();
        into.copy_from_slice(&state.config[offset..offset + into.len()]);
        Ok(into.len())
    }

    fn write_at(&self, _: &str, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let mut state = self.state.lock().unwrap();
        state.config.resize(256, 0xa5);
        let offset = usize::try_from(offset).unwrap();
        state.config[offset..offset + data.len()].copy_from_slice(data);
        Ok(data.len())
    }

    /// The queue is dedicated: it opens once.
    fn open(&self, _: &str, _: Caller) -> Result<u64, Errno> {
        let mut state = self.state.lock().unwrap();
        if !state.open.is_empty() {
            return Err(Errno::BUSY);
        }
        state.last += 1;
        let open = state.last;
        state.open.insert(open);
        Ok(open)
    }

    fn release(&self, open: u64) {
        let mut state = self.state.lock().unwrap();
        assert!(state.open.remove(&open), "released once");
        self.change.notify_all();
    }

    /// Not needed by the tests of files; the driver itself is tested with programs.
    fn write(&self, _: u64, _: Caller, _: &[u8]) -> Result<usize, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn poll_ready(&self, _: u64) -> bool {
        false
    }

    fn print(&self, message: &str) {
        eprintln!("{message}");
    }
}
