//! A QEMU machine with a network, a disk of programs, and a serial line to the test.
//!
//! Source of the options: "QEMU System Emulation User's Guide" 7.2.

use crate::debian::{Archive, Kernel};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a guest may print nothing before it counts as hung: its own waits end after a minute.
const SILENCE: Duration = Duration::from_secs(150);
/// How long a guest may print nothing before it gets the last answer again.
const REPEAT: Duration = Duration::from_secs(5);

/// Modules of a Debian cloud kernel, in load order. From 6.12 on, those in [`OLD_MODULES`] are built in.
const MODULES: [&str; 11] = [
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "configfs",
    "libcrc32c",
    "nvme-fabrics",
    "nvme-tcp",
    "nvmet",
    "nvmet-tcp",
    "null_blk",
];
const OLD_MODULES: [&str; 5] =
    ["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"];

/// The guest's commands that busybox has.
const COMMANDS: [&str; 22] = [
    "cat", "cmp", "cp", "cut", "dd", "dmesg", "grep", "head", "insmod", "ip", "ln", "ls", "mkdir", "mount", "poweroff",
    "sleep", "stty", "sync", "tail", "touch", "umount", "true",
];

/// The guest's commands that are programs of this system, with their packages. The last two are optional.
const PROGRAMS: [(&str, &str); 5] = [
    ("mke2fs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("blkdiscard", "util-linux"),
    ("nvme", "nvme-cli"),
    ("fio", "fio"),
];

/// Programs that run a guest, with their packages.
const HOST_PROGRAMS: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("setpriv", "util-linux"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("ldd", "libc-bin"),
];

/// Finds a program of this system.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns which of these packages is missing, if any.
pub(crate) fn lacking(programs: &[(&str, &str)]) -> Option<String> {
    let (program, package) = programs.iter().find(|(program, _)| find(program).is_none())?;
    Some(format!("no {program} (Debian package {package}, which ci/install.sh installs)"))
}

/// Returns why no guest can run here, if so.
pub(crate) fn missing() -> Option<String> {
    lacking(&HOST_PROGRAMS).or_else(|| lacking(&PROGRAMS[..3]))
}

/// A folder that is removed at the end, and the right to use the machine's cores.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Locked; closing the file releases the lock. Tests of other crates that need both cores take the same lock.
    _cores: File,
}

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let cores = std::env::temp_dir().join("telpher-cores.lock");
        let cores = File::open(&cores).or_else(|_| File::create(&cores)).expect("a file to lock");
        cores.lock().expect("the lock");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nvmf-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder of the test's own");
        Folder { path, _cores: cores }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Reads a kernel from a folder in which `ci/install.sh` keeps one.
pub(crate) fn kernel(folder: &Folder, packages: &str) -> Result<Kernel, String> {
    if let Some(why) = missing() {
        return Err(why);
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it lies in cargo's target folder");
    let packages = target.join("guest").join(packages);
    let modules = if packages.ends_with("newest") { MODULES.to_vec() } else { [&OLD_MODULES[..], &MODULES].concat() };
    Kernel::of_package(&packages, &folder.file("package"), &modules)
}

/// Creates a disk of the programs and the libraries that they load.
fn programs_disk(folder: &Folder) -> PathBuf {
    let (content, disk) = (folder.file("programs"), folder.file("programs.disk"));
    let (bin, lib) = (content.join("bin"), content.join("lib"));
    for path in [&bin, &lib] {
        std::fs::create_dir_all(path).expect("a folder");
    }
    let mut libraries = BTreeSet::new();
    for (name, _) in PROGRAMS {
        let Some(program) = find(name) else { continue };
        std::fs::copy(&program, bin.join(name)).expect("a copy of a program");
        let stdout = Command::new("ldd").arg(&program).output().expect("ldd").stdout;
        let words = String::from_utf8_lossy(&stdout).split_whitespace().map(PathBuf::from).collect::<Vec<_>>();
        libraries.extend(words.into_iter().filter(|word| word.is_absolute()));
    }
    for library in libraries {
        std::fs::copy(&library, lib.join(library.file_name().expect("a name"))).expect("a copy of a library");
    }
    let mke2fs = find("mke2fs").expect("found before");
    let mut command = Command::new(mke2fs);
    command.args(["-q", "-t", "ext4", "-O", "^has_journal", "-d"]).arg(&content).arg(&disk).arg("192M");
    let made = command.output().expect("mke2fs runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    disk
}

/// Returns a port of this machine that is free. It is not one that the kernel gives to others.
fn free_port() -> u16 {
    let begin = 20_000 + u16::try_from(std::process::id() % 5_000).expect("below 5000");
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (begin..begin + 5_000).find(free).expect("a free port")
}

/// A guest that runs.
#[derive(Debug)]
pub(crate) struct Machine {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Everything that the guest printed.
    pub(crate) output: Vec<String>,
    /// The requests that were answered.
    answers: u32,
    /// The port of this machine that leads to port 4420 of the guest.
    pub(crate) forwarded: u16,
}

impl Machine {
    /// Boots a guest that runs a script. QEMU uses no KVM, so that it runs anywhere, and dies with the calling thread.
    ///
    /// # Errors
    /// The program that is missing.
    pub(crate) fn start(folder: &Folder, kernel: &Kernel, script: &str) -> Result<Machine, String> {
        let modules: Vec<&str> =
            if kernel.is_at_least((6, 12)) { MODULES.to_vec() } else { [&OLD_MODULES[..], &MODULES].concat() };
        // The script loads this module itself, with parameters.
        let modules: Vec<&str> = modules.into_iter().filter(|module| *module != "null_blk").collect();
        let init = format!("#!/bin/sh\nMODULES='{}'\n{script}\npoweroff -f\n", modules.join(" "));
        let mut files = Archive::with_shell(&COMMANDS, kernel, &init)?;
        files.add("tools", 0o040_755, &[]);
        let (image, initrd) = (folder.file("kernel"), folder.file("initrd"));
        std::fs::write(&image, &kernel.image).expect("the test can write a file");
        std::fs::write(&initrd, files.end()).expect("the test can write a file");
        let disk = programs_disk(folder);
        let forwarded = free_port();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi"]);
        command.args(["-cpu", "max", "-smp", "2", "-m", "768M", "-nodefaults", "-no-reboot"]);
        command.arg("-kernel").arg(image).arg("-initrd").arg(initrd);
        // Messages of the kernel would cut lines of the script into pieces.
        command.args(["-append", "console=ttyS0 loglevel=1 panic=-1 mitigations=off no_timer_check"]);
        command.args(["-netdev", &format!("user,id=n0,hostfwd=tcp:127.0.0.1:{forwarded}-:4420")]);
        command.args(["-device", "virtio-net-pci,netdev=n0"]);
        command.args(["-drive", &format!("file={},if=none,id=d0,format=raw,readonly=on", disk.display())]);
        command.args(["-device", "virtio-blk-pci,drive=d0"]);
        command.args(["-serial", "stdio", "-display", "none", "-monitor", "none"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("no setpriv: {error}"))?;
        let input = child.stdin.take().expect("piped above");
        let output = child.stdout.take().expect("piped above");
        let (sends, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sends.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Machine { child, input, lines, output: Vec::new(), answers: 0, forwarded })
    }

    /// The next line that the guest prints for the test; none at its end, or if it prints nothing for a long time.
    pub(crate) fn line(&mut self) -> Option<String> {
        let heard = Instant::now();
        loop {
            match self.lines.recv_timeout(REPEAT) {
                Ok(line) => {
                    self.output.push(line.clone());
                    if let Some(line) = line.strip_prefix("test: ") {
                        return Some(line.to_owned());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if heard.elapsed() < SILENCE => self.send_answer(),
                Err(RecvTimeoutError::Timeout) => {
                    self.output.push(format!("silent for {SILENCE:?}"));
                    return None;
                }
            }
        }
    }

    /// Tells the guest that its request was fulfilled.
    pub(crate) fn answer(&mut self) {
        self.answers += 1;
        self.send_answer();
    }

    /// Sends the number of the last answer.
    fn send_answer(&mut self) {
        // An error means that the guest has ended, which the next line shows.
        let _ = self.input.write_all(format!("{}\n", self.answers).as_bytes());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
