//! A QEMU machine with a device that `telpher vfio` serves, and a serial line to the test.
//!
//! Source of the options: "QEMU System Emulation User's Guide" 11.1; docs/interop/vfio-user.rst for the device.

use crate::debian::{Archive, Kernel};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a guest may take from its start to its power-off.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// The guest's commands that busybox has.
const COMMANDS: [&str; 16] = [
    "cat", "cmp", "dmesg", "grep", "insmod", "kill", "ls", "mkdir", "mount", "poweroff", "rmmod", "sed", "sleep",
    "stty", "tail", "true",
];

/// Programs of this system that run or prepare a guest, with their packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("setpriv", "util-linux"),
    ("gcc", "gcc"),
    ("ldd", "libc-bin"),
    ("accel-config", "accel-config"),
    ("busybox", "busybox-static"),
];

/// Finds a program of this system.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The size of a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) processors: u8,
    pub(crate) mib: u32,
}

/// Enough for the tests of one device.
pub(crate) const SMALL: Size = Size { processors: 1, mib: 512 };

/// A folder that is removed at the end, and the right to use the machine's cores. Its path is short enough for sockets.
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
        let path = std::env::temp_dir().join(format!("telpher-vm-{}-{name}", std::process::id()));
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

/// What the guests of one test have in common: QEMU, its processor, a kernel, and the programs in the guest.
#[derive(Debug)]
pub(crate) struct Parts {
    /// An unpacked QEMU with its libraries.
    qemu: PathBuf,
    pub(crate) kernel: Kernel,
    /// The plugin, see movdir64b.c; none for a kernel that is told about the instruction by its command line.
    processor: Option<PathBuf>,
    /// The programs of instruction.c and events.c.
    programs: [PathBuf; 2],
}

/// The guest's own programs, from the files of this folder.
const OWN_PROGRAMS: [&str; 2] = ["instruction", "events"];

impl Parts {
    /// Finds them in the folders of `ci/vm-parts.sh`, and compiles the plugin and the guest's programs.
    ///
    /// # Errors
    /// The part that is missing.
    pub(crate) fn find(folder: &Folder, kernel: &str, modules: &[&str]) -> Result<Parts, String> {
        if let Some((program, package)) = PROGRAMS.iter().find(|(program, _)| find(program).is_none()) {
            return Err(format!("no {program} (Debian package {package}, which ci/install.sh installs)"));
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it lies in cargo's target folder");
        let all = target.join("guest/vm");
        let qemu = all.join("qemu");
        if !qemu.is_dir() {
            return Err("no QEMU with vfio-user (ci/vm-parts.sh downloads one)".to_owned());
        }
        let kernel = Kernel::unpacked(&all.join(kernel), modules)?;
        let processor = folder.file("movdir64b.so");
        compile("movdir64b.c", &["-shared", "-fPIC", "-fvisibility=hidden"], &processor);
        let programs = OWN_PROGRAMS.map(|name| {
            let program = folder.file(name);
            compile(&format!("{name}.c"), &["-static", "-no-pie"], &program);
            program
        });
        Ok(Parts { qemu, kernel, processor: Some(processor), programs })
    }

    /// Does without the plugin: the kernel's command line says that the processor has MOVDIR64B (Linux 7).
    pub(crate) fn without_the_instruction(mut self) -> Parts {
        self.processor = None;
        self
    }

    /// The command that starts QEMU: its own dynamic loader, so that it needs nothing of this system.
    fn qemu(&self) -> Command {
        let mut command = Command::new("setpriv");
        let libraries = self.qemu.join("usr/lib/x86_64-linux-gnu");
        command.args(["--pdeathsig", "KILL"]).arg(self.qemu.join("usr/lib64/ld-linux-x86-64.so.2"));
        command.args(["--inhibit-cache", "--library-path"]).arg(&libraries);
        command.arg(self.qemu.join("usr/bin/qemu-system-x86_64"));
        for firmware in ["qemu", "seabios"] {
            command.arg("-L").arg(self.qemu.join("usr/share").join(firmware));
        }
        // Accelerators are modules of it.
        command.env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }

    /// The version, as QEMU prints it.
    pub(crate) fn qemu_version(&self) -> String {
        let stdout = self.qemu().arg("--version").output().expect("setpriv of util-linux").stdout;
        String::from_utf8_lossy(&stdout).lines().next().unwrap_or_default().to_owned()
    }
}

/// Compiles a file of this folder.
fn compile(source: &str, options: &[&str], program: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests").join(source);
    let mut command = Command::new("gcc");
    command.args(["-O1", "-Wall", "-Wextra", "-Werror"]).args(options).arg("-o").arg(program).arg(source);
    let made = command.output().expect("gcc was found before");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A guest that runs.
#[derive(Debug)]
pub(crate) struct Machine {
    child: Child,
    lines: Receiver<String>,
    begin: Instant,
    /// Everything that the guest and QEMU printed.
    pub(crate) said: Vec<String>,
}

impl Machine {
    /// Boots a guest that runs a script and has the device behind a socket. QEMU uses no KVM, so that it runs anywhere,
    /// and dies with the calling thread.
    ///
    /// # Errors
    /// The program that is missing.
    pub(crate) fn start(
        folder: &Folder,
        parts: &Parts,
        size: Size,
        number: usize,
        socket: &Path,
        script: &str,
    ) -> Result<Machine, String> {
        let init = format!("#!/bin/sh\n{}\n{script}\nkernel_log\nsay end\npoweroff -f\n", include_str!("guest.sh"));
        let mut files = Archive::with_shell(&COMMANDS, &parts.kernel, &init)?;
        files.add_program("bin/accel-config", &find("accel-config").expect("found before"))?;
        for (name, program) in OWN_PROGRAMS.iter().zip(&parts.programs) {
            let program = std::fs::read(program).map_err(|error| error.to_string())?;
            files.add(&format!("bin/{name}"), 0o100_755, &program);
        }
        let (image, initrd) = (folder.file(&format!("{number}.kernel")), folder.file(&format!("{number}.initrd")));
        std::fs::write(&image, &parts.kernel.image).expect("the test can write a file");
        std::fs::write(&initrd, files.end()).expect("the test can write a file");
        let mut command = parts.qemu();
        let Size { processors, mib } = size;
        command.args(["-accel", "tcg", "-cpu", "max", "-M", "q35", "-nodefaults", "-no-reboot"]);
        command.args(["-smp", &processors.to_string(), "-m", &mib.to_string()]);
        // The server reaches the guest's memory.
        command.args(["-object", &format!("memory-backend-memfd,id=m,size={mib}M,share=on")]);
        command.args(["-machine", "memory-backend=m"]);
        command.args(["-serial", "stdio", "-display", "none", "-monitor", "none"]);
        command.arg("-kernel").arg(image).arg("-initrd").arg(initrd);
        let mut words = "console=ttyS0 loglevel=1 panic=-1 mitigations=off no_timer_check".to_owned();
        match &parts.processor {
            Some(plugin) => {
                command.arg("-plugin").arg(plugin);
            }
            None => words += " setcpuid=movdir64b",
        }
        command.args(["-append", &words]);
        let device =
            format!(r#"{{"driver":"vfio-user-pci","socket":{{"path":"{}","type":"unix"}}}}"#, socket.display());
        command.args(["-device", &device]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("no setpriv: {error}"))?;
        let (sends, lines) = channel();
        let errors = child.stderr.take().expect("piped above");
        let output = child.stdout.take().expect("piped above");
        for (origin, stream) in [("", Box::new(output) as Box<dyn std::io::Read + Send>), ("QEMU: ", Box::new(errors))]
        {
            let sends = sends.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                    let line = format!("{origin}{}", String::from_utf8_lossy(&line).trim_end());
                    if sends.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Machine { child, lines, begin: Instant::now(), said: Vec::new() })
    }

    /// The next line that the guest prints for the test; none at its end, or when the limit is reached.
    pub(crate) fn line(&mut self) -> Option<String> {
        loop {
            match self.lines.recv_timeout(LIMIT.saturating_sub(self.begin.elapsed())) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if let Some(line) = line.strip_prefix("test: ") {
                        return Some(line.to_owned());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    self.said.push(format!("not powered off after {LIMIT:?}"));
                    return None;
                }
            }
        }
    }

    /// Waits for the end of the guest, and returns its results.
    pub(crate) fn results(mut self) -> Results {
        let mut results = Results::default();
        while let Some(line) = self.line() {
            match line.split_once(' ') {
                Some(("ok", name)) => results.ok.push(name.to_owned()),
                Some(("FAILED", name)) => results.failed.push(name.to_owned()),
                Some(("log", text)) => results.log.push(text.to_owned()),
                Some(("dmesg", text)) => results.dmesg.push(text.to_owned()),
                _ => results.has_ended |= line == "end",
            }
        }
        results.seconds = self.begin.elapsed().as_secs_f64();
        results.said = std::mem::take(&mut self.said);
        results
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a guest reported.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) ok: Vec<String>,
    pub(crate) failed: Vec<String>,
    /// Results of dmatest.
    pub(crate) log: Vec<String>,
    /// What its kernel said about the device.
    pub(crate) dmesg: Vec<String>,
    pub(crate) said: Vec<String>,
    has_ended: bool,
    pub(crate) seconds: f64,
}

impl Results {
    /// Fails unless all checks succeeded and the guest powered off.
    pub(crate) fn expect_success(&self, name: &str, server: &str) {
        let is_good = self.failed.is_empty() && self.has_ended && !self.ok.is_empty();
        assert!(is_good, "{name}: {:?} failed:\n{}\nthe server:\n{server}", self.failed, self.said.join("\n"));
    }
}
