//! DPDK's testpmd, unmodified, typed at: as a guest whose driver is `net_virtio_user`, or as the backend, by `net_vhost`.
//!
//! Source of options and commands: the DPDK 22.11 guides "Testpmd Application User Guide", "Poll Mode Driver for Emulated Virtio NIC" and
//! "Vhost Poll Mode Driver".

use crate::backend::{Counts, Role, Socket};
use crate::room::{HugePages, Room, lacking};
use crate::terminal::Terminal;
use std::time::Duration;

/// Far more than any command needs.
const SOON: Duration = Duration::from_secs(10);
const PROMPT: &str = "testpmd> ";
/// Packets on their way in a loop: 16 bursts of 32. With more, whoever does not get its turn for a while loses some for good.
pub(crate) const LOOPING: u64 = 512;
const LOOPING_BURSTS: u64 = LOOPING / 32;

/// What keeps tests with testpmd from running here.
pub(crate) fn missing() -> Option<String> {
    lacking(&[("dpdk-testpmd", "dpdk"), ("setpriv", "util-linux"), ("taskset", "util-linux")])
}

/// The memory of a testpmd, which as a guest it shares with the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// Pages of 4 KiB, which every machine has.
    Small,
    /// Pages of 2 MiB, from [`HugePages`].
    Huge,
}

/// MiB of each testpmd: its buffers take 20, and rings of 32 768 entries 2.
const MEMORY_MIB: u64 = 128;

impl Memory {
    /// What testpmds need besides, if so many run at once.
    pub(crate) fn reserve(self, testpmds: u64) -> Result<Option<HugePages>, String> {
        match self {
            Memory::Small => Ok(None),
            Memory::Huge => HugePages::reserve(testpmds * MEMORY_MIB / 2).map(Some),
        }
    }

    /// Without a single file for the whole memory every huge page is a region of its own, more than a backend takes.
    fn options(self) -> &'static [&'static str] {
        match self {
            Memory::Small => &["--no-huge", "--no-shconf"],
            Memory::Huge => &["--in-memory", "--single-file-segments"],
        }
    }
}

/// The virtio device that a testpmd is the driver of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Virtio {
    /// A packed ring rather than a split one.
    pub(crate) packed: bool,
    /// `VIRTIO_NET_F_MRG_RXBUF`.
    pub(crate) mergeable: bool,
    /// `VIRTIO_F_IN_ORDER`.
    pub(crate) in_order: bool,
    /// The driver's code with vector instructions.
    pub(crate) vectorised: bool,
    /// Entries of each ring.
    pub(crate) ring: u16,
    /// Pairs of queues.
    pub(crate) queues: u16,
    /// The guest waits at the socket, and the backend comes.
    pub(crate) server: bool,
    pub(crate) memory: Memory,
}

impl Virtio {
    /// What Linux and QEMU agree on with most backends: a split ring with mergeable buffers.
    pub(crate) const SPLIT: Virtio = Virtio {
        packed: false,
        mergeable: true,
        in_order: false,
        vectorised: false,
        ring: 1024,
        queues: 1,
        server: false,
        memory: Memory::Small,
    };
    /// The same with a packed ring.
    pub(crate) const PACKED: Virtio = Virtio { packed: true, ..Virtio::SPLIT };

    fn device(&self, socket: &Socket) -> String {
        let Virtio { ring, queues, .. } = self;
        let [packed, mergeable, in_order] = [self.packed, self.mergeable, self.in_order].map(u8::from);
        let mut device = format!(
            "net_virtio_user0,path={},queues={queues},queue_size={ring},packed_vq={packed},mrg_rxbuf={mergeable},in_order={in_order}",
            socket.path.display()
        );
        if self.vectorised {
            device += ",vectorized=1";
        }
        if self.server {
            device += ",server=1";
        }
        device
    }

    /// The driver's name for the code it receives with, which tells what was agreed on.
    fn receives_by(&self) -> &'static str {
        match (self.packed, self.vectorised, self.mergeable, self.in_order) {
            (true, true, ..) => "packed ring vectorized Rx path",
            (true, false, true, _) => "packed ring mergeable buffer Rx path",
            (true, false, false, _) => "packed ring standard Rx path",
            (false, _, _, true) => "inorder Rx path",
            (false, true, ..) => "vectorized Rx path",
            (false, false, true, _) => "mergeable buffer Rx path",
            (false, false, false, _) => "standard Rx path",
        }
    }
}

/// One testpmd with its ports.
#[derive(Debug)]
pub(crate) struct Testpmd {
    terminal: Terminal,
    ports: usize,
    works: bool,
}

impl Testpmd {
    /// A guest at a socket. Where the backend comes to it (`server`), it is there when the backend has come.
    pub(crate) fn guest(room: &Room, virtio: &Virtio, socket: &Socket) -> Testpmd {
        // Without more the driver takes no vectors of 64 bytes, without which it has no code with vectors for packed rings.
        let more = ["--force-max-simd-bitwidth=512", "--log-level=pmd.net.virtio.init:info"].map(str::to_owned);
        let mut testpmd = Testpmd::start(room, "guest", 1, virtio, &more, &[virtio.device(socket)]);
        if !virtio.server {
            testpmd.ready(SOON);
            let path = format!("virtio: using {} on port 0", virtio.receives_by());
            assert!(testpmd.terminal.log().contains(&path), "{path}? It says:\n{}", testpmd.terminal.log());
        }
        testpmd
    }

    /// A backend with a port at each socket.
    pub(crate) fn backend(room: &Room, sockets: &[Socket]) -> Testpmd {
        let device = |(number, socket): (usize, &Socket)| {
            let Socket { path, queues, client, .. } = socket;
            format!("net_vhost{number},iface={},queues={queues},client={}", path.display(), u8::from(*client))
        };
        let devices: Vec<String> = sockets.iter().enumerate().map(device).collect();
        let first = sockets.first().expect("a socket");
        let virtio = Virtio { queues: first.queues, memory: first.memory, ..Virtio::SPLIT };
        let mut testpmd = Testpmd::start(room, "backend", 0, &virtio, &[], &devices);
        testpmd.ready(SOON);
        testpmd
    }

    fn start(room: &Room, name: &str, cpu: usize, how: &Virtio, more: &[String], devices: &[String]) -> Testpmd {
        let cpu = room.cpus()[cpu];
        let (mib, Virtio { ring, queues, .. }) = (MEMORY_MIB, how);
        let of = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        // Its files of run time go where they are removed with the rest.
        let mut words = of(format!("-c {cpu} env RUNTIME_DIRECTORY={} dpdk-testpmd", room.file("").display()));
        // Thread 0 reads the commands, and sleeps; thread 1 polls.
        words.extend(of(format!("--lcores 0@{cpu},1@{cpu} -m {mib} --no-pci --no-telemetry --iova-mode=va")));
        words.push(format!("--file-prefix={}-{name}", room.word()));
        words.extend(how.memory.options().iter().map(|&option| option.to_owned()));
        words.extend_from_slice(more);
        words.extend(devices.iter().map(|device| format!("--vdev={device}")));
        words.extend(of("-- -i --mask-event=all --nb-cores=1 --total-num-mbufs=8192".to_owned()));
        words.extend(of(format!("--rxq={queues} --txq={queues} --rxd={ring} --txd={ring}")));
        Testpmd { terminal: Terminal::start(name, "taskset", &words), ports: devices.len(), works: false }
    }

    /// Waits until it takes commands.
    pub(crate) fn ready(&mut self, within: Duration) {
        self.terminal.until(PROMPT, within);
    }

    /// Gives a command, and answers what it says to that.
    pub(crate) fn command(&mut self, command: &str) -> String {
        self.terminal.line(command);
        self.terminal.until(PROMPT, SOON)
    }

    /// Begins to do something with packets.
    pub(crate) fn work(&mut self, role: Role) {
        self.rest();
        let (mode, len, start) = match role {
            Role::Source(len) => ("txonly", Some(len), "start".to_owned()),
            Role::Sink => ("rxonly", None, "start".to_owned()),
            Role::Begin(len) => ("mac retry", Some(len), format!("start tx_first {LOOPING_BURSTS}")),
            Role::Return => ("mac retry", None, "start".to_owned()),
            Role::Echo => ("icmpecho", None, "start".to_owned()),
        };
        if let Some(len) = len {
            self.command(&format!("set txpkts {len}"));
        }
        let set = self.command(&format!("set fwd {mode}"));
        assert!(set.contains("packet forwarding mode"), "set fwd {mode}: {set}");
        let started = self.command(&start);
        assert!(started.contains(" - ports="), "{start}: {started}");
        self.works = true;
    }

    /// Stops doing it; what it has received and sent by then is counted.
    pub(crate) fn rest(&mut self) {
        if std::mem::take(&mut self.works) {
            let stopped = self.command("stop");
            assert!(stopped.contains("Done."), "stop: {stopped}");
        }
    }

    /// What went through its ports since it was started.
    pub(crate) fn counts(&mut self) -> Counts {
        let ports: Vec<Counts> =
            (0..self.ports).map(|port| counts_in(&self.command(&format!("show port stats {port}")))).collect();
        ports.into_iter().reduce(|sum, port| sum + port).expect("a port")
    }

    /// Over how many pairs of queues packets went when it worked last.
    pub(crate) fn queues_used(&self) -> usize {
        let last = self.terminal.said().rsplit("testpmd> stop\n").next().unwrap_or_default();
        last.matches("------- Forward Stats for RX Port= 0/Queue=").count()
    }

    /// How many messages of this name the backend has received from frontends.
    pub(crate) fn messages(&self, name: &str) -> usize {
        self.terminal.log().matches(&format!("read message {name}\n")).count()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.terminal.kill();
    }

    /// True if it has not ended.
    pub(crate) fn runs(&mut self) -> bool {
        self.terminal.runs()
    }
}

/// Reads the table of `show port stats`.
fn counts_in(table: &str) -> Counts {
    let value = |name: &str| {
        let number = table.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {name} in {table}"))
    };
    Counts {
        received: value("RX-packets:"),
        received_bytes: value("RX-bytes:"),
        sent: value("TX-packets:"),
        sent_bytes: value("TX-bytes:"),
        errors: value("RX-errors:") + value("RX-nombuf:") + value("TX-errors:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_statistics_are_read() {
        let table = "show port stats 0\n\n  ######## NIC statistics for port 0  ########\n  \
                     RX-packets: 6682976    RX-missed: 0          RX-bytes:  427710464\n  RX-errors: 1\n  RX-nombuf:  20        \n  \
                     TX-packets: 7          TX-errors: 300        TX-bytes:  448\n\n  Throughput (since last show)\n  \
                     Rx-pps:     21719348          Rx-bps:  11120306472\n";
        let counts = Counts { received: 6_682_976, received_bytes: 427_710_464, sent: 7, sent_bytes: 448, errors: 321 };
        assert_eq!(counts_in(table), counts);
    }
}
