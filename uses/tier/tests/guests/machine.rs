//! A QEMU machine of three nodes, and a guest in it that runs one program.
//!
//! Source of the options: "QEMU System Emulation User's Guide" 7.2, `-numa`; for the numbers, see [`NODES`].

use crate::debian::{Archive, Kernel};
use crate::outcome::{Outcome, shown};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A NUMA node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    mib: u32,
    /// Read latency from the processors, which are on node 0. The emulation is not slower; the guest's kernel ranks its
    /// memory by it.
    latency_ns: u32,
    gb_per_s: u32,
    /// The distance, as in ACPI's SLIT.
    distance: u32,
    /// It is not memory of the system, but a memory device: `/dev/dax0.0`.
    is_device: bool,
}

/// DDR with the processors, one node like HBM and one like CXL, both without processors; and before the CXL node some
/// such memory as a device. Source: chosen, so that the guest's kernel makes three memory tiers of them. The last node
/// contains the firmware's tables, so it cannot be a device as a whole, which the kernel requires.
const NODES: [Node; 4] = [
    Node { mib: 896, latency_ns: 100, gb_per_s: 200, distance: 10, is_device: false },
    Node { mib: 320, latency_ns: 110, gb_per_s: 800, distance: 17, is_device: false },
    Node { mib: 64, latency_ns: 300, gb_per_s: 50, distance: 28, is_device: true },
    Node { mib: 320, latency_ns: 300, gb_per_s: 50, distance: 28, is_device: false },
];

/// Returns the read latency of each node of the system, in nanoseconds.
pub(crate) fn latencies() -> Vec<u32> {
    NODES.iter().filter(|node| !node.is_device).map(|node| node.latency_ns).collect()
}

/// The kernel modules that create a device from memory marked for it.
pub(crate) const MODULES: [&str; 2] = ["device_dax", "dax_hmem"];

/// How much processor time QEMU may spend while the guest prints nothing; beyond it, the guest counts as hung. Each
/// test takes seconds. Processor time, since other programs of the host may hold the processors.
const SILENCE: Duration = Duration::from_secs(180);

/// How much longer than [`SILENCE`] the guest may print nothing in wall-clock time: a hung guest may be idle.
const IDLE_FACTOR: u32 = 4;

/// The commands of the guest, besides the shell.
const COMMANDS: [&str; 6] = ["mount", "cat", "insmod", "uname", "poweroff", "stty"];

/// The guest's first program: prints what it found, then runs the tests.
const INIT: &str = "#!/bin/sh
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /tmp
stty -onlcr
echo kernel: $(uname -r)
for node in /sys/devices/system/node/node?; do echo latency: $(cat $node/access0/initiators/read_latency); done
for module in $MODULES; do insmod /$module.ko; done
echo dax0.0 > /sys/bus/dax/drivers/device_dax/new_id
cd /tmp
export $ENVIRONMENT
/tests $ARGUMENTS
echo ended: $?
poweroff -f
";

/// Returns the reason why guests cannot run here, if any.
pub(crate) fn missing() -> Option<String> {
    let programs = [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("setpriv", "util-linux"),
        ("dpkg-deb", "dpkg"),
        ("tar", "tar"),
        ("ldd", "libc-bin"),
    ];
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let lacks = |program: &str| !folders.iter().any(|folder| folder.join(program).is_file());
    let (program, package) = programs.iter().find(|(program, _)| lacks(program))?;
    Some(format!("no {program} (Debian package {package})"))
}

/// Returns the folder where `ci/install.sh` puts kernel packages.
pub(crate) fn packages(folder: &str) -> PathBuf {
    let target =
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's folder for tests is in its target folder");
    target.join("guest").join(folder)
}

/// A folder for one test, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Room(PathBuf);

impl Room {
    pub(crate) fn take() -> Room {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guest-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).expect("the test can create a folder");
        Room(folder)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The kernel and the folder of a guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) kernel: Kernel,
    pub(crate) room: Room,
}

impl Guest {
    /// Boots, runs a test program with one test at a time, and powers off.
    ///
    /// # Panics
    /// If it does not complete; the message contains its output.
    pub(crate) fn run(&self, program: &Path, arguments: &[&str]) -> Outcome {
        let started = Instant::now();
        let mut words = arguments.to_vec();
        words.push("--test-threads=1");
        // At most a minute each: this is an emulation, and there are many tests.
        let seconds =
            std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse::<u64>().expect("whole seconds").min(60));
        let environment = format!("TELPHER_SOAK_SECONDS={seconds} RUST_BACKTRACE=1");
        let init = INIT.replace("$ENVIRONMENT", &environment).replace("$ARGUMENTS", &words.join(" "));
        let init = init.replace("$MODULES", &MODULES.join(" "));
        let mut files = Archive::with_shell(&COMMANDS, &self.kernel, &init).expect("a shell");
        files.add_program("tests", program).expect("a program of cargo's");
        for (name, bytes) in [("vmlinuz", &self.kernel.image), ("initrd", &files.end())] {
            std::fs::write(self.room.file(name), bytes).expect("the test can write a file");
        }
        let mut machine = Machine::start(&self.room);
        let output = machine.until_it_ends(SILENCE + 16 * Duration::from_secs(seconds));
        let outcome = output
            .and_then(|output| Outcome::read(&output).map_err(|why| format!("{why}; it said:\n{}", shown(&output))));
        let seconds = started.elapsed().as_secs_f64();
        outcome
            .map_or_else(|why| panic!("Linux {}: {why}", self.kernel.version), |outcome| Outcome { seconds, ..outcome })
    }
}

/// The QEMU process.
struct Machine {
    child: Child,
    serial: Receiver<Vec<u8>>,
}

impl Machine {
    /// Starts it, without KVM, so that it runs anywhere. It dies with the calling thread.
    fn start(room: &Room) -> Machine {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"]);
        command.args(["-machine", "q35,hmat=on", "-smp", "2,sockets=2,cores=1,threads=1"]);
        let all: u32 = NODES.iter().map(|node| node.mib).sum();
        command.args(["-m", &format!("{all}M")]);
        for (number, node) in NODES.iter().enumerate() {
            let (mib, attribute) = (node.mib, if number == 0 { "cpus=0-1" } else { "initiator=0" });
            command.args(["-object", &format!("memory-backend-ram,size={mib}M,id=m{number}")]);
            command.args(["-numa", &format!("node,nodeid={number},memdev=m{number},{attribute}")]);
        }
        for (number, node) in NODES.iter().enumerate() {
            for other in 0..number {
                let distance = node.distance;
                command.args(["-numa", &format!("dist,src={other},dst={number},val={distance}")]);
            }
            let of = format!("hmat-lb,initiator=0,target={number},hierarchy=memory");
            let (latency, bandwidth) = (node.latency_ns, node.gb_per_s);
            command.args(["-numa", &format!("{of},data-type=access-latency,latency={latency}")]);
            command.args(["-numa", &format!("{of},data-type=access-bandwidth,bandwidth={bandwidth}G")]);
        }
        command.arg("-kernel").arg(room.file("vmlinuz")).arg("-initrd").arg(room.file("initrd"));
        // On a busy host Linux would report a broken timer: "IO-APIC + timer doesn't work".
        let mut kernel = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check".to_string();
        // The nodes follow each other from address 0 on. RAM (1) becomes memory for a special purpose
        // (E820_TYPE_SOFT_RESERVED). Source: Linux, Documentation/admin-guide/kernel-parameters.txt, `memmap`;
        // arch/x86/include/asm/e820/types.h.
        let mut below = 0;
        for node in NODES {
            if node.is_device {
                kernel += &format!(" memmap={}M%{below}M-1+0xefffffff", node.mib);
            }
            below += node.mib;
        }
        command.args(["-append", &kernel]);
        command.args(["-serial", "stdio", "-display", "none", "-monitor", "none", "-no-reboot", "-nodefaults"]);
        let (sends, serial) = channel();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("setpriv of util-linux");
        let mut stdout = child.stdout.take().expect("piped above");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(heard @ 1..) = stdout.read(&mut bytes) {
                if sends.send(bytes[..heard].to_vec()).is_err() {
                    return;
                }
            }
        });
        Machine { child, serial }
    }

    /// Returns all its output up to the power-off.
    ///
    /// # Errors
    /// It printed nothing while QEMU spent this much processor time, or for [`IDLE_FACTOR`] times as long; the error
    /// contains its output until then.
    fn until_it_ends(&mut self, silence: Duration) -> Result<String, String> {
        let mut output = Vec::new();
        let mut last = (Instant::now(), self.processor_time());
        loop {
            match self.serial.recv_timeout(Duration::from_secs(1)) {
                Ok(bytes) => {
                    output.extend(bytes.into_iter().filter(|&byte| byte != b'\r'));
                    last = (Instant::now(), self.processor_time());
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(String::from_utf8_lossy(&output).into_owned()),
                Err(RecvTimeoutError::Timeout) => {
                    let wall = last.0.elapsed();
                    let processor = self.processor_time().saturating_sub(last.1);
                    if processor > silence || wall > IDLE_FACTOR * silence {
                        return Err(format!(
                            "the guest printed nothing for {wall:.0?}, in which QEMU ran for {processor:.0?}; before \
                             that:\n{}",
                            shown(&String::from_utf8_lossy(&output))
                        ));
                    }
                }
            }
        }
    }

    /// Returns the processor time that QEMU has spent; zero after its end.
    fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // After the name: the state is field 3; user and system time are fields 14 and 15, in hundredths of a second.
        // Source: proc(5); USER_HZ is 100 on x86 (Linux, include/asm-generic/param.h).
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        let hundredths: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_millis(10 * hundredths)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
