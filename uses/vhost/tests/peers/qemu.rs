//! QEMU with a Linux guest, controlled through its serial line and its monitor.
//!
//! Source of options and commands: "QEMU System Emulation User's Guide" 7.2; of the vhost-user ones, QEMU
//! docs/interop/vhost-user.rst.

use crate::backend::Socket;
use crate::guest::Image;
use crate::peer_slot::PeerSlot;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telpher_vhost::peers::{Terminal, lacking};

/// The time for a guest to boot: three seconds on a core of its own, which it seldom has.
const BOOT: Duration = Duration::from_secs(30);
/// The time for a command in the guest or the monitor.
const SOON: Duration = Duration::from_secs(15);

/// What this machine lacks to run tests with a guest.
pub(crate) fn missing() -> Option<String> {
    lacking(&[("qemu-system-x86_64", "qemu-system-x86"), ("setpriv", "util-linux")])
}

/// A guest's machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine<'a> {
    /// The prefix of its files.
    pub(crate) name: &'a str,
    /// The last byte of its addresses.
    pub(crate) address: u8,
    pub(crate) socket: &'a Socket,
    /// Its network card offers packed rings.
    pub(crate) packed: bool,
    /// Waits here for an incoming migration.
    pub(crate) incoming: Option<PathBuf>,
}

/// One machine.
#[derive(Debug)]
pub(crate) struct Qemu {
    serial: Terminal,
    monitor: UnixStream,
    address: u8,
}

impl Qemu {
    /// Starts a machine; its guest is ready when it is [`up`](Qemu::up). Without KVM, so that it runs anywhere.
    pub(crate) fn start(slot: &PeerSlot, image: &Image, machine: &Machine<'_>) -> Qemu {
        let [kernel, files] = image.write(slot);
        let monitor = slot.file(&format!("{}.monitor", machine.name));
        let listens = if machine.socket.client { ",server=on,wait=off" } else { "" };
        let device = if machine.packed { ",packed=on,disable-legacy=on" } else { "" };
        let mut words: Vec<String> =
            ["qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "1"].map(str::to_owned).into();
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("-m", "256M,slots=2,maxmem=1G".into());
        option("-object", "memory-backend-memfd,id=memory,size=256M,share=on".into());
        option("-numa", "node,memdev=memory".into());
        option("-kernel", kernel.display().to_string());
        option("-initrd", files.display().to_string());
        // On a busy host Linux would report a broken timer: "IO-APIC + timer doesn't work".
        option("-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check".into());
        option("-chardev", format!("socket,id=vhost,path={}{listens}", machine.socket.path.display()));
        option("-netdev", "vhost-user,id=net,chardev=vhost,queues=1".into());
        // Without message-signalled interrupts, with which this emulation aborts when the guest's driver starts.
        let address = machine.address;
        option("-device", format!("virtio-net-pci,netdev=net,mac=52:54:00:00:00:{address:02x},vectors=0{device}"));
        option("-monitor", format!("unix:{},server=on,wait=off", monitor.display()));
        option("-serial", "stdio".into());
        option("-display", "none".into());
        if let Some(path) = &machine.incoming {
            option("-incoming", format!("unix:{}", path.display()));
        }
        words.extend(["-no-reboot", "-nodefaults"].map(str::to_owned));
        let mut serial = Terminal::start(machine.name, &words[0], &words[1..]).expect("a terminal");
        let monitor = connect(&mut serial, &monitor);
        let mut qemu = Qemu { serial, monitor, address };
        qemu.prompt();
        qemu
    }

    /// Waits until the guest has booted and its network is up.
    pub(crate) fn up(&mut self) {
        self.heard("up: 0\n", BOOT);
        self.give_address();
    }

    /// An address for the guest's network card.
    pub(crate) fn give_address(&mut self) {
        self.run(&format!("ip address add 10.0.0.{}/24 dev eth0 && ip link set eth0 up", self.address));
    }

    /// The number of packets with wrong checksums in the guest. Source: Linux,
    /// Documentation/networking/snmp_counter.rst.
    pub(crate) fn damaged(&mut self) -> u64 {
        let output = self.run("grep -E '^(Icmp|Tcp):' /proc/net/snmp");
        let lines: Vec<Vec<&str>> = output.lines().map(|line| line.split(' ').collect()).collect();
        let of = |names: &[&str], values: &[&str]| {
            let at = names.iter().position(|&name| name == "InCsumErrors");
            at.and_then(|at| values.get(at)?.parse::<u64>().ok())
                .unwrap_or_else(|| panic!("no InCsumErrors in {output}"))
        };
        let [icmp, icmp_values, tcp, tcp_values] = &lines[..] else { panic!("four lines, not {output}") };
        of(icmp, icmp_values) + of(tcp, tcp_values)
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.serial.kill();
    }

    /// Runs a line in the guest's shell and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub(crate) fn run(&mut self, line: &str) -> String {
        self.serial.line(line).expect("a guest that runs");
        let output = self.heard("done: ", SOON);
        let status = self.heard("\n", SOON);
        assert_eq!(status, "0", "{line}: {output}");
        output
    }

    /// The guest's output before this text.
    fn heard(&mut self, wanted: &str, within: Duration) -> String {
        self.serial.until(wanted, within).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sends the monitor a command and returns its output.
    pub(crate) fn monitor(&mut self, command: &str) -> String {
        let written = self.monitor.write_all(format!("{command}\n").as_bytes());
        written.unwrap_or_else(|error| panic!("the monitor did not accept {command:?}: {error}"));
        self.prompt()
    }

    /// Migrates the guest to the given target of `migrate`, and waits until that has finished.
    pub(crate) fn migrate(&mut self, to: &str) {
        let output = self.monitor(&format!("migrate -d \"{to}\""));
        assert!(!output.contains("Error"), "{output}");
        let deadline = Instant::now() + SOON;
        loop {
            let output = self.monitor("info migrate");
            if output.contains("Migration status: completed") {
                return;
            }
            assert!(!output.contains("failed") && Instant::now() < deadline, "{output}");
            std::thread::yield_now();
        }
    }

    /// Waits until the guest that is migrated to this machine runs here. Its state comes with that of the serial line,
    /// so what is written to the line before is lost.
    pub(crate) fn has_arrived(&mut self) {
        let deadline = Instant::now() + SOON;
        loop {
            let output = self.monitor("info status");
            if output.contains("VM status: running") {
                return;
            }
            assert!(Instant::now() < deadline, "the guest did not arrive: {output}");
            std::thread::yield_now();
        }
    }

    /// The monitor's output up to its next prompt.
    fn prompt(&mut self) -> String {
        const PROMPT: &[u8] = b"(qemu) ";
        let mut output = Vec::new();
        while !output.ends_with(PROMPT) {
            let mut bytes = [0; 4096];
            match self.monitor.read(&mut bytes) {
                Ok(count) if count > 0 => output.extend_from_slice(&bytes[..count]),
                end => panic!("the monitor said no more ({end:?}): {}", String::from_utf8_lossy(&output)),
            }
        }
        String::from_utf8_lossy(&output).into_owned()
    }
}

/// The monitor's socket, once it exists.
fn connect(serial: &mut Terminal, path: &std::path::Path) -> UnixStream {
    let deadline = Instant::now() + SOON;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SOON)).expect("a timeout");
                return stream;
            }
            Err(error) => assert!(serial.runs() && Instant::now() < deadline, "no monitor: {error}"),
        }
        std::thread::yield_now();
    }
}
