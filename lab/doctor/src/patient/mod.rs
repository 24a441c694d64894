//! What a machine says of itself, as values: parsed once, here, so that checks see no texts.

mod platform;
mod process;

pub(super) use platform::{
    Cpu, Function, IOMMUS, Iommu, Kernel, Module, ModuleFile, NUMA, NumaNode, PCI, TABLES, Unit,
};
pub(super) use process::{APPARMOR, Container, LABEL, Memory, Process, SELINUX, STATUS, TRANSPARENT, UID_MAP, numbers};

use super::bundle::{Bundle, Node};
use super::finding::Evidence;
use std::collections::BTreeMap;
use std::path::Path;
use telpher_hw::{DeviceKind, Files, Machine, Queue, QueueType, State, discover};

/// A machine under examination.
#[derive(Debug)]
pub(crate) struct Patient<'a> {
    files: &'a dyn Files,
    /// The device is that of `telpher run`: what is below the driver is the machine's own and says nothing about it.
    pub(super) emulated: bool,
    pub(super) kernel: Kernel,
    /// Words of the kernel's command line.
    pub(super) boot: Vec<String>,
    pub(super) cpu: Cpu,
    /// PCI functions with a DSA; `None` if the bus cannot be read.
    pub(super) functions: Option<Vec<Function>>,
    pub(super) iommu: Iommu,
    pub(super) module: Module,
    /// What the driver says.
    pub(super) dsa: Machine,
    /// What queues' nodes answered, by queue.
    pub(super) nodes: BTreeMap<String, Node>,
    /// NUMA nodes with processors or memory.
    pub(super) numa: Vec<NumaNode>,
    pub(super) process: Process,
    pub(super) memory: Memory,
    pub(super) container: Container,
    /// Lines of the kernel's log.
    pub(super) messages: Vec<String>,
}

/// Where the driver shows its devices.
pub(super) const DEVICES: &str = "/sys/bus/dsa/devices";
/// Where queues are bound.
pub(super) const DRIVERS: &str = "/sys/bus/dsa/drivers";

/// The text of a file without its line end.
fn text(files: &dyn Files, path: &str) -> Option<String> {
    let bytes = files.read(Path::new(path)).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// Names in a directory; `None` if it cannot be read.
fn list(files: &dyn Files, path: &str) -> Option<Vec<String>> {
    let names = files.list(Path::new(path)).ok()?;
    Some(names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect())
}

impl<'a> Patient<'a> {
    /// Asks everything. `bundle` has what files cannot say.
    pub(crate) fn of(files: &'a dyn Files, bundle: &Bundle) -> Self {
        let name_of = |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
        let nodes = bundle.nodes.iter().filter_map(|(path, node)| Some((name_of(path)?, node.clone())));
        let kernel = Kernel::of(files);
        let module = Module::of(files, kernel.release.as_deref());
        let dsa = discover(files);
        // Asked for by checks, each with its path: so they are in every recording.
        for (_, queue) in dsa.queues() {
            let _ = text(files, &format!("{DEVICES}/{}/driver_name", queue.name));
            let _ = holders(files, &queue.name);
        }
        Patient {
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
            messages: bundle.messages.clone(),
            files,
        }
    }

    /// What a file says, as evidence; errors are evidence too.
    pub(super) fn seen(&self, path: &str) -> Evidence {
        let says = match self.files.read(Path::new(path)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        Evidence { source: path.into(), says }
    }

    /// The line of a file that begins with a word, as evidence.
    pub(super) fn seen_line(&self, path: &str, word: &str) -> Evidence {
        let whole = self.seen(path);
        let line = whole.says.lines().find(|line| line.starts_with(word)).map(|line| line.trim().to_owned());
        Evidence { says: line.unwrap_or_else(|| format!("no line {word}")), ..whole }
    }

    /// What an attribute of a device, group, engine or queue says.
    pub(super) fn attribute(&self, name: &str, attribute: &str) -> Evidence {
        self.seen(&format!("{DEVICES}/{name}/{attribute}"))
    }

    /// The text of an attribute, `None` if this kernel has no such.
    pub(super) fn attribute_text(&self, name: &str, attribute: &str) -> Option<String> {
        text(self.files, &format!("{DEVICES}/{name}/{attribute}"))
    }

    /// Names in a directory, as evidence.
    pub(super) fn listed(&self, path: &str) -> Evidence {
        let says = match self.files.list(Path::new(path)) {
            Ok(names) if names.is_empty() => "empty".into(),
            Ok(names) => names.iter().map(|name| name.to_string_lossy()).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        };
        Evidence { source: path.into(), says }
    }

    /// Where a link points, as evidence.
    pub(super) fn linked(&self, path: &str) -> Evidence {
        let says = match self.files.link(Path::new(path)) {
            Ok(target) => format!("-> {}", target.display()),
            Err(error) => error.to_string(),
        };
        Evidence { source: path.into(), says }
    }

    /// Lines of the kernel's log that contain all the words, newest first and at most three, as evidence.
    pub(super) fn logged(&self, words: &[&str]) -> Vec<Evidence> {
        let fitting = self.messages.iter().rev().filter(|line| words.iter().all(|word| line.contains(word)));
        fitting.take(3).map(|line| Evidence { source: "kernel log".into(), says: line.clone() }).collect()
    }

    /// DSA devices. IAX devices are on the same bus and not ours.
    pub(super) fn devices(&self) -> impl Iterator<Item = &telpher_hw::Device> {
        self.dsa.devices.iter().filter(|device| device.kind == DeviceKind::Dsa)
    }

    /// Queues that are enabled for programs, with their devices.
    pub(super) fn usable(&self) -> impl Iterator<Item = (&telpher_hw::Device, &Queue)> {
        let is_usable =
            |queue: &Queue| queue.state == Some(State::Enabled) && queue.queue_type == Some(QueueType::User);
        self.dsa.queues().filter(move |(device, queue)| device.state == Some(State::Enabled) && is_usable(queue))
    }

    /// True if a device cannot use programs' addresses.
    pub(super) fn lacks_sva(&self) -> bool {
        self.devices().any(|device| device.pasid_enabled == Some(false))
    }

    /// Processes that have a queue open; kernels since 6.4 tell.
    pub(super) fn holders(&self, queue: &str) -> Vec<Evidence> {
        let paths = holders(self.files, queue);
        paths.into_iter().map(|path| self.seen(&path)).collect()
    }
}

/// Paths of files that name the processes which have a queue open. Source: linux-abi §1, `fileK/pid`.
fn holders(files: &dyn Files, queue: &str) -> Vec<String> {
    let folder = format!("{DEVICES}/dsa!{queue}");
    let names = list(files, &folder).unwrap_or_default();
    let open = names.into_iter().filter(|name| name.starts_with("file"));
    let paths: Vec<String> = open.map(|name| format!("{folder}/{name}/pid")).collect();
    paths.into_iter().filter(|path| files.read(Path::new(path)).is_ok()).collect()
}
