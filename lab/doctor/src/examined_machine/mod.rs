//! The examined machine as typed values, parsed once here, so that checks do not parse texts.

mod platform;
mod process;
mod program;
mod settings;

pub(super) use platform::{
    Cpu, Function, IOMMUS, Iommu, Kernel, Module, ModuleFile, NUMA, NumaNode, PCI, TABLES, Unit,
};
pub(super) use process::{APPARMOR, Container, LABEL, Memory, Process, SELINUX, STATUS, TRANSPARENT, UID_MAP, numbers};
pub(super) use program::files_of;
pub(super) use settings::{BALANCING, CACHE, GIGANTIC, Settings};

use self::program::Program;
use super::bundle::{Bundle, Node};
use super::finding::Evidence;
use std::collections::BTreeMap;
use std::path::Path;
use telpher_hw::{DeviceKind, Files, Machine, Queue, QueueType, State, discover};

/// A machine under examination.
#[derive(Debug)]
pub(crate) struct ExaminedMachine<'a> {
    files: &'a dyn Files,
    /// The device is emulated by `telpher run`, so the machine's own hardware and firmware do not matter.
    pub(super) emulated: bool,
    pub(super) kernel: Kernel,
    /// Words of the kernel's command line.
    pub(super) boot: Vec<String>,
    pub(super) cpu: Cpu,
    /// PCI functions with a DSA; `None` if the bus cannot be read.
    pub(super) functions: Option<Vec<Function>>,
    pub(super) iommu: Iommu,
    pub(super) module: Module,
    /// The driver's devices.
    pub(super) dsa: Machine,
    /// Answers of queues' nodes, by queue.
    pub(super) nodes: BTreeMap<String, Node>,
    /// NUMA nodes with processors or memory.
    pub(super) numa: Vec<NumaNode>,
    pub(super) process: Process,
    pub(super) memory: Memory,
    pub(super) container: Container,
    pub(super) settings: Settings,
    /// The program that the user names.
    pub(super) program: Option<Program>,
    /// Lines of the kernel's log.
    pub(super) messages: Vec<String>,
}

/// The folder of the driver's devices.
pub(super) const DEVICES: &str = "/sys/bus/dsa/devices";
/// The folder of the driver that binds queues.
pub(super) const DRIVERS: &str = "/sys/bus/dsa/drivers";

/// Returns the text of a file without its line end.
fn text(files: &dyn Files, path: &str) -> Option<String> {
    let bytes = files.read(Path::new(path)).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// Returns the names in a directory; `None` if it cannot be read.
fn list(files: &dyn Files, path: &str) -> Option<Vec<String>> {
    let names = files.list(Path::new(path)).ok()?;
    Some(names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect())
}

impl<'a> ExaminedMachine<'a> {
    /// Reads everything. `bundle` has the answers that are not files.
    pub(crate) fn of(files: &'a dyn Files, bundle: &Bundle) -> Self {
        let name_of = |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
        let nodes = bundle.nodes.iter().filter_map(|(path, node)| Some((name_of(path)?, node.clone())));
        let kernel = Kernel::of(files);
        let module = Module::of(files, kernel.release.as_deref());
        let dsa = discover(files);
        // Read here because checks may read them later: so every recording contains them.
        for (_, queue) in dsa.queues() {
            let _ = text(files, &format!("{DEVICES}/{}/driver_name", queue.name));
            let _ = holders(files, &queue.name);
        }
        ExaminedMachine {
            emulated: bundle.emulated.is_some(),
            boot: text(files, "/proc/cmdline").unwrap_or_default().split_whitespace().map(String::from).collect(),
            cpu: Cpu::of(files),
            functions: Function::all(files),
            iommu: Iommu::of(files),
            module,
            kernel,
            dsa,
            nodes: nodes.collect(),
            numa: NumaNode::all(files),
            process: Process::of(files),
            memory: Memory::of(files),
            container: Container::of(files),
            settings: Settings::of(files),
            program: bundle.program.map(|pid| Program::of(|path| text(files, path), pid)),
            messages: bundle.messages.clone(),
            files,
        }
    }

    /// Returns a file's content, or the error, as evidence.
    pub(super) fn seen(&self, path: &str) -> Evidence {
        let says = match self.files.read(Path::new(path)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        Evidence { source: path.into(), says }
    }

    /// Returns the line of a file that begins with a word, as evidence.
    pub(super) fn seen_line(&self, path: &str, word: &str) -> Evidence {
        let whole = self.seen(path);
        let line = whole.says.lines().find(|line| line.starts_with(word)).map(|line| line.trim().to_owned());
        Evidence { says: line.unwrap_or_else(|| format!("no line {word}")), ..whole }
    }

    /// Returns an attribute of a device, group, engine or queue, as evidence.
    pub(super) fn attribute(&self, name: &str, attribute: &str) -> Evidence {
        self.seen(&format!("{DEVICES}/{name}/{attribute}"))
    }

    /// Returns the text of an attribute; `None` if this kernel does not have it.
    pub(super) fn attribute_text(&self, name: &str, attribute: &str) -> Option<String> {
        text(self.files, &format!("{DEVICES}/{name}/{attribute}"))
    }

    /// Returns the names in a directory, as evidence.
    pub(super) fn listed(&self, path: &str) -> Evidence {
        let says = match self.files.list(Path::new(path)) {
            Ok(names) if names.is_empty() => "empty".into(),
            Ok(names) => names.iter().map(|name| name.to_string_lossy()).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        };
        Evidence { source: path.into(), says }
    }

    /// Returns the target of a link, as evidence.
    pub(super) fn linked(&self, path: &str) -> Evidence {
        let says = match self.files.link(Path::new(path)) {
            Ok(target) => format!("-> {}", target.display()),
            Err(error) => error.to_string(),
        };
        Evidence { source: path.into(), says }
    }

    /// Returns the newest three lines of the kernel's log that contain all the words, newest first, as evidence.
    pub(super) fn logged(&self, words: &[&str]) -> Vec<Evidence> {
        let fitting = self.messages.iter().rev().filter(|line| words.iter().all(|word| line.contains(word)));
        fitting.take(3).map(|line| Evidence { source: "kernel log".into(), says: line.clone() }).collect()
    }

    /// Returns the DSA devices, without the IAX devices on the same bus.
    pub(super) fn devices(&self) -> impl Iterator<Item = &telpher_hw::Device> {
        self.dsa.devices.iter().filter(|device| device.kind == DeviceKind::Dsa)
    }

    /// Returns the queues that are enabled for programs, with their devices.
    pub(super) fn usable(&self) -> impl Iterator<Item = (&telpher_hw::Device, &Queue)> {
        let is_usable =
            |queue: &Queue| queue.state == Some(State::Enabled) && queue.queue_type == Some(QueueType::User);
        self.dsa.queues().filter(move |(device, queue)| device.state == Some(State::Enabled) && is_usable(queue))
    }

    /// Returns true if a device cannot use programs' addresses.
    pub(super) fn lacks_sva(&self) -> bool {
        self.devices().any(|device| device.pasid_enabled == Some(false))
    }

    /// Returns the processes that have a queue open; kernels since 6.4 report them.
    pub(super) fn holders(&self, queue: &str) -> Vec<Evidence> {
        let paths = holders(self.files, queue);
        paths.into_iter().map(|path| self.seen(&path)).collect()
    }
}

/// Returns the paths of the files that name the processes which have a queue open. Source: linux-abi §1, `fileK/pid`.
fn holders(files: &dyn Files, queue: &str) -> Vec<String> {
    let folder = format!("{DEVICES}/dsa!{queue}");
    let names = list(files, &folder).unwrap_or_default();
    let open = names.into_iter().filter(|name| name.starts_with("file"));
    let paths: Vec<String> = open.map(|name| format!("{folder}/{name}/pid")).collect();
    paths.into_iter().filter(|path| files.read(Path::new(path)).is_ok()).collect()
}
