//! Reads a machine and keeps every answer. The examination itself reads through a [`Recorder`], so a bundle contains
//! exactly what an examination reads.

use super::bundle::{Answer, Bundle, MAX_LINES, Node, resolve, to_hex};
use super::dml_library::DmlLibrary;
use super::examined_machine::{ExaminedMachine, files_of};
use crate::mapping::map_portal;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use telpher_hw::{ANNOUNCEMENT, Files, Live};

/// Records this machine, and the libraries of a process.
pub(super) fn here(program: Option<u32>) -> Bundle {
    let live = Live::default();
    let recorder = Recorder::new(&live);
    let mut bundle =
        Bundle { emulated: std::env::var(ANNOUNCEMENT).ok(), messages: messages(), program, ..Bundle::new() };
    let patient = ExaminedMachine::of(&recorder, &bundle);
    bundle.nodes = patient
        .usable()
        .map(|(device, queue)| {
            let path = queue.node(device.kind);
            (path.to_string_lossy().into_owned(), node(&path))
        })
        .collect();
    bundle.files = recorder.into_files();
    bundle
}

/// A [`Files`] that records every answer.
#[derive(Debug)]
pub(super) struct Recorder<'a> {
    files: &'a dyn Files,
    answers: RefCell<BTreeMap<String, Answer>>,
    /// Paths that are known not to be links.
    plain: RefCell<BTreeMap<String, ()>>,
    /// Files that a process has mapped as code, as it names them.
    code: RefCell<BTreeSet<String>>,
}

/// Errors of readlink(2) that end a path; any other error means that the path is not a link.
const NO_WAY: [i32; 4] = [libc::ENOENT, libc::ENOTDIR, libc::EACCES, libc::EPERM];

impl<'a> Recorder<'a> {
    pub(super) fn new(files: &'a dyn Files) -> Self {
        Recorder { files, answers: RefCell::default(), plain: RefCell::default(), code: RefCell::default() }
    }

    pub(super) fn into_files(self) -> BTreeMap<String, Answer> {
        self.answers.into_inner()
    }

    /// Keeps an answer. The error that a file is not a folder does not replace the file's content.
    fn keep(&self, at: String, answer: Answer) {
        let mut answers = self.answers.borrow_mut();
        let better = |known: &Answer| matches!(known, Answer::Error(_)) || !matches!(answer, Answer::Error(_));
        if answers.get(&at).is_none_or(better) {
            answers.insert(at, answer);
        }
    }

    /// Returns the target of a path if it is a link.
    fn target(&self, at: &str) -> io::Result<Option<String>> {
        if let Some(Answer::Link(target)) = self.answers.borrow().get(at) {
            return Ok(Some(target.clone()));
        }
        // A process' root is no link for the kernel: its target says nothing of the process' mounts.
        if self.plain.borrow().contains_key(at) || root_of(at) == Some("") {
            return Ok(None);
        }
        match self.files.link(Path::new(at)) {
            Ok(target) => {
                let target = target.to_string_lossy().into_owned();
                self.keep(at.into(), Answer::Link(target.clone()));
                Ok(Some(target))
            }
            Err(error) if error.raw_os_error().is_some_and(|errno| NO_WAY.contains(&errno)) => {
                self.keep(at.into(), failed(&error));
                Err(error)
            }
            Err(_) => {
                self.plain.borrow_mut().insert(at.into(), ());
                Ok(None)
            }
        }
    }

    /// Returns true for a file that a process has mapped as code.
    fn is_code(&self, path: &str) -> bool {
        root_of(path).is_some_and(|inside| !inside.is_empty()) || self.code.borrow().contains(path)
    }

    fn walk(&self, path: &Path, follow: bool) -> io::Result<String> {
        resolve(path, follow, |at| self.target(at))
    }
}

/// Returns what follows `/proc/PID/root` in a path, if it is below the root of a process.
fn root_of(path: &str) -> Option<&str> {
    let (pid, inside) = path.strip_prefix("/proc/")?.split_once("/root")?;
    let is_root = pid.bytes().all(|byte| byte.is_ascii_digit()) && (inside.is_empty() || inside.starts_with('/'));
    is_root.then_some(inside)
}

/// Returns an error as an answer; an error without a number becomes EIO.
fn failed(error: &io::Error) -> Answer {
    Answer::Error(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Files for Recorder<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let at = self.walk(path, true)?;
        let is_code = self.is_code(&path.to_string_lossy());
        let result = self.files.read(Path::new(&at)).map(|bytes| {
            if at.starts_with("/proc/") && at.ends_with("/maps") && !is_code {
                let maps = String::from_utf8_lossy(&bytes);
                self.code.borrow_mut().extend(files_of(&maps).into_iter().map(str::to_owned));
            }
            if is_code { library_of(&bytes) } else { excerpt(&at, bytes) }
        });
        let answer = match &result {
            Ok(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Answer::Text(text.to_owned()),
                Err(_) => Answer::Bytes(to_hex(bytes)),
            },
            Err(error) => failed(error),
        };
        self.keep(at, answer);
        result
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let at = self.walk(path, true)?;
        let result = self.files.list(Path::new(&at));
        let answer = match &result {
            Ok(names) => Answer::Names(names.iter().map(|name| name.to_string_lossy().into_owned()).collect()),
            Err(error) => failed(error),
        };
        self.keep(at, answer);
        result
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        let at = self.walk(path, false)?;
        match self.target(&at)? {
            Some(target) => Ok(target.into()),
            None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }
}

/// Words of the kernel's command line that are kept whole. Of others only the name is kept: a value may be a password
/// or an address.
const WORDS: [&str; 16] = [
    "intel_iommu",
    "iommu",
    "iommu.strict",
    "iommu.passthrough",
    "idxd.sva",
    "idxd.tc_override",
    "pci",
    "module_blacklist",
    "modprobe.blacklist",
    "clearcpuid",
    "hugepages",
    "hugepagesz",
    "default_hugepagesz",
    "transparent_hugepage",
    "numa",
    "lockdown",
];
/// Lines of a process' status that are kept. Source: proc_pid_status(5).
const LINES: [&str; 6] = ["Uid:", "Gid:", "Groups:", "CapEff:", "CapBnd:", "Cpus_allowed_list:"];

/// Returns a word of the command line, without its value if that may be private.
fn spared(word: &str) -> String {
    match word.split_once('=') {
        Some((name, _)) if !WORDS.contains(&name) => format!("{name}=…"),
        _ => word.to_owned(),
    }
}

/// Returns the relevant lines of long files. Other modules, mounts and processors are left out, because they may be
/// private.
fn excerpt(path: &str, bytes: Vec<u8>) -> Vec<u8> {
    let lines = |wanted: &[&str]| {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let kept = text.lines().filter(|line| wanted.iter().any(|word| line.contains(word)));
        kept.flat_map(|line| [line, "\n"]).collect::<String>().into_bytes()
    };
    if path == "/proc/cpuinfo" {
        // The first processor represents all.
        let text = String::from_utf8_lossy(&bytes).into_owned();
        return text.split_inclusive("\n\n").next().unwrap_or_default().to_owned().into_bytes();
    }
    if path == "/proc/cmdline" {
        let text = String::from_utf8_lossy(&bytes);
        return (text.split_whitespace().map(spared).collect::<Vec<_>>().join(" ") + "\n").into_bytes();
    }
    if path.starts_with("/proc/") && path.ends_with("/status") {
        let text = String::from_utf8_lossy(&bytes);
        let kept = text.lines().filter(|line| LINES.iter().any(|start| line.starts_with(start)));
        return kept.flat_map(|line| [line, "\n"]).collect::<String>().into_bytes();
    }
    if path.starts_with("/proc/") && path.ends_with("/maps") {
        // Addresses are private; which files are mapped as code is what is asked.
        let text = String::from_utf8_lossy(&bytes);
        let code = text.lines().filter(|line| line.contains(" r-xp ") && line.contains(" /"));
        let lines = code.filter_map(|line| Some(["0-0 ", &line[line.find("r-xp ")?..], "\n"].concat()));
        return lines.collect::<String>().into_bytes();
    }
    if bytes.starts_with(b"\x7fELF") {
        return library_of(&bytes);
    }
    if path.starts_with("/boot/config-") || path.ends_with("/config") && path.contains("/lib/modules/") {
        return lines(&["IDXD", "IOMMU", "INTEL_IAA", "VFIO"]);
    }
    if path.contains("/modules.") || path.contains("/modprobe.d/") {
        return lines(&["idxd"]);
    }
    bytes
}

/// Returns what is kept of a file with code: the library that it contains. It is empty for every other file.
fn library_of(bytes: &[u8]) -> Vec<u8> {
    DmlLibrary::in_elf(bytes).map_or_else(String::new, |library| library.line() + "\n").into_bytes()
}

/// Examines a queue's node: its type, whether it opens, whether its portal can be mapped. Nothing is submitted.
fn node(path: &Path) -> Node {
    let errno = |error: io::Error| Some(error.raw_os_error().unwrap_or(libc::EIO));
    let stat = match std::fs::metadata(path) {
        Ok(stat) => stat,
        Err(error) => return Node { stat: errno(error), ..Node::default() },
    };
    let mut node = Node {
        device: stat.file_type().is_char_device(),
        mode: format!("{:04o}", stat.mode() & 0o7777),
        uid: stat.uid(),
        gid: stat.gid(),
        ..Node::default()
    };
    match File::options().read(true).write(true).open(path) {
        Ok(file) => node.map = map_portal(&file).err().and_then(errno),
        Err(error) => node.open = errno(error),
    }
    node
}

/// Maximum records of the kernel's log that are read; a log is rarely longer than some ten thousand.
const MAX_RECORDS: usize = 200_000;
/// Longest record of /dev/kmsg in bytes. Source: Linux include/linux/printk.h, PRINTK_MESSAGE_MAX 2048, and its prefix.
const RECORD: usize = 8192;

/// Returns the lines of the kernel's log about the device and the IOMMU; none if the log may not be read.
fn messages() -> Vec<String> {
    let open = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg");
    let Ok(mut log) = open else { return Vec::new() };
    let mut kept = Vec::new();
    let mut record = [0; RECORD];
    for _ in 0..MAX_RECORDS {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(len) => {
                let text = String::from_utf8_lossy(&record[..len]).into_owned();
                // `priority,sequence,microseconds,flags;text`, then lines with the device's properties.
                let line = text.split_once(';').map_or("", |(_, line)| line.lines().next().unwrap_or_default());
                if concerns(line) {
                    kept.push(line.to_owned());
                }
            }
            // The record was overwritten meanwhile: the next read continues with the oldest one left.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => break,
        }
    }
    kept.split_off(kept.len().saturating_sub(MAX_LINES))
}

fn concerns(line: &str) -> bool {
    // The log repeats the kernel's command line, with values that must not be kept.
    if line.contains("ommand line:") {
        return false;
    }
    ["idxd", "DMAR", "dmar", "IOMMU", "iommu", "PASID", "ENQCMD", "MOVDIR64B"].iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_recording_has_the_same_answers_as_the_machine() {
        let root = std::env::temp_dir().join(format!("telpher-recorder-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("sys/devices/pci/dsa0")).unwrap();
        std::fs::create_dir_all(root.join("sys/bus")).unwrap();
        std::fs::write(root.join("sys/devices/pci/dsa0/state"), "enabled\n").unwrap();
        std::fs::write(root.join("sys/devices/pci/dsa0/config"), [0x86, 0x80, 0xff]).unwrap();
        symlink("../devices/pci/dsa0", root.join("sys/bus/dsa0")).unwrap();
        let live = Live::under(&root);
        let recorder = Recorder::new(&live);
        let reads = ["/sys/bus/dsa0/state", "/sys/bus/dsa0/config", "/sys/bus/dsa0/gone", "/sys/no/where", "/sys/bus"];
        let lists = ["/sys/bus", "/sys/bus/dsa0", "/sys/bus/dsa0/state", "/sys/none"];
        let links = ["/sys/bus/dsa0", "/sys/bus/dsa0/state", "/sys/bus/dsa1"];
        let ask = |files: &dyn Files| {
            let errno_of = |error: io::Error| error.raw_os_error();
            let reads = reads.map(|path| files.read(Path::new(path)).map_err(errno_of));
            let lists = lists.map(|path| files.list(Path::new(path)).map_err(errno_of));
            let links = links.map(|path| files.link(Path::new(path)).map_err(errno_of));
            (reads, lists, links)
        };
        // The second time the recorder already knows the links.
        let first = ask(&recorder);
        assert_eq!(ask(&recorder), first);
        let bundle = Bundle { files: recorder.into_files(), ..Bundle::new() };
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(ask(&bundle), first);
        assert_eq!(first.0[0], Ok(b"enabled\n".to_vec()));
        assert_eq!(first.0[1], Ok(vec![0x86, 0x80, 0xff]));
        assert_eq!(first.0[2..4], [Err(Some(libc::ENOENT)), Err(Some(libc::ENOENT))]);
    }

    #[test]
    fn only_relevant_lines_of_long_files_are_kept() {
        let kept = |path: &str, text: &str| String::from_utf8(excerpt(path, text.into())).unwrap();
        assert_eq!(kept("/proc/cpuinfo", "a: 1\n\na: 2\n\n"), "a: 1\n\n");
        assert_eq!(kept("/boot/config-6.12", "CONFIG_X=y\nCONFIG_INTEL_IDXD=m\n"), "CONFIG_INTEL_IDXD=m\n");
        assert_eq!(kept("/etc/modprobe.d/a.conf", "blacklist pcspkr\nblacklist idxd\n"), "blacklist idxd\n");
        assert_eq!(
            kept("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=1-2 quiet intel_iommu=on,sm_on ksmb.password=x\n"),
            "BOOT_IMAGE=… root=… quiet intel_iommu=on,sm_on ksmb.password=…\n"
        );
        assert_eq!(
            kept("/proc/17/maps", "7f00-7f10 r-xp 0 0:0 1 /a.so\n7f10-7f20 rw-p 0 0:0 1 /a.so\n"),
            "0-0 r-xp 0 0:0 1 /a.so\n"
        );
        assert_eq!(kept("/a.so", "\x7fELF of no library"), "");
        assert_eq!(kept("/proc/17/status", "Name:\tx\nUid:\t1\t1\t1\t1\nPPid:\t9\n"), "Uid:\t1\t1\t1\t1\n");
    }

    #[test]
    fn contents_of_files_that_are_mapped_as_code_are_left_out() {
        let root = std::env::temp_dir().join(format!("telpher-recorder-code-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for folder in ["proc/17", "opt", "container/opt"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::write(root.join("proc/17/maps"), "7f00-7f10 r-xp 0 0:0 1 /opt/code\n").unwrap();
        for file in ["opt/code", "opt/other", "container/opt/code"] {
            std::fs::write(root.join(file), "private\n").unwrap();
        }
        symlink(root.join("container"), root.join("proc/17/root")).unwrap();
        let live = Live::under(&root);
        let recorder = Recorder::new(&live);
        let [code, none] = ["code", "none"].map(|name| ["/proc/17/root", "/opt/", name].concat());
        let paths = ["/proc/17/maps", "/opt/code", "/opt/other", &code, &none];
        let ask =
            |files: &dyn Files| paths.map(|path| files.read(Path::new(path)).map_err(|error| error.raw_os_error()));
        let answers = ask(&recorder);
        let bundle = Bundle { files: recorder.into_files(), ..Bundle::new() };
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(ask(&bundle), answers);
        assert_eq!(answers[1..4], [Ok(Vec::new()), Ok(b"private\n".to_vec()), Ok(Vec::new())]);
        assert_eq!(answers[4], Err(Some(libc::ENOENT)));
    }

    #[test]
    fn only_log_lines_about_the_device_are_kept() {
        assert!(concerns("idxd 0000:6a:01.0: Unable to turn on user SVA feature."));
        assert!(concerns("DMAR: IOMMU feature pasid inconsistent"));
        assert!(!concerns("sshd[123]: Accepted password for root"));
        assert!(!concerns("Kernel command line: root=UUID=1-2 intel_iommu=on,sm_on"));
        assert!(!concerns("Command line: root=UUID=1-2 intel_iommu=on,sm_on"));
    }
}
