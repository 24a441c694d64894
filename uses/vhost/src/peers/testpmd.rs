//! DPDK's testpmd, unmodified, controlled by its command line: as a guest whose driver is `net_virtio_user`, or as the
//! backend with `net_vhost`.
//!
//! Source of options and commands: the DPDK 22.11 guides "Testpmd Application User Guide", "Poll Mode Driver for
//! Emulated Virtio NIC" and "Vhost Poll Mode Driver".

use super::{PeerError, Terminal, lacking};
use std::ops::{Add, Sub};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of commands: far more than any needs, even on a machine with ten times as many threads as processors.
const SOON: Duration = Duration::from_secs(60);
const PROMPT: &str = "testpmd> ";
/// Packets in flight in a loop ([`Work::Begin`]): 16 bursts of 32. Source: measured; with twice as many, packets are
/// lost for good when a side is not scheduled for a while.
pub const LOOPING: u64 = 512;
const LOOPING_BURSTS: u64 = LOOPING / 32;

/// The prefix of the polling thread's name. Source: DPDK 22.11, `eal_thread.c`: "rte-worker-", and its lcore.
pub const WORKER: &str = "rte-worker-";

/// What this machine lacks to run testpmd; `None` if nothing.
#[must_use]
pub fn missing() -> Option<String> {
    lacking(&[("dpdk-testpmd", "dpdk"), ("setpriv", "util-linux"), ("taskset", "util-linux")])
}

/// A testpmd's memory; as a guest it shares it with the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Pages of 4 KiB, which every machine has.
    Small,
    /// Pages of 2 MiB, which must be free; see [`HugePages`](super::HugePages).
    Huge,
}

impl Memory {
    /// Without a single file for the whole memory every huge page is a region of its own: more regions than a backend
    /// accepts.
    fn options(self) -> &'static [&'static str] {
        match self {
            Memory::Small => &["--no-huge", "--no-shconf"],
            Memory::Huge => &["--in-memory", "--single-file-segments"],
        }
    }
}

/// The CPU, memory and files of a testpmd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestpmdSetup<'a> {
    /// The name that errors use.
    pub name: &'a str,
    /// The CPU that all its threads run on: one polls, the others sleep.
    pub cpu: usize,
    /// The folder for files that it writes while it runs; its creator removes it.
    pub folder: &'a Path,
    /// Its memory.
    pub memory: Memory,
    /// Its memory in MiB: a buffer takes 2.4 KiB, and rings of 32 768 entries take 2 MiB.
    pub mib: u64,
    /// Packet buffers. Each receive queue holds as many as its ring has entries; the rest is for sending.
    pub buffers: u32,
}

impl<'a> TestpmdSetup<'a> {
    /// Memory of small pages for 8192 packets.
    #[must_use]
    pub fn new(name: &'a str, cpu: usize, folder: &'a Path) -> TestpmdSetup<'a> {
        TestpmdSetup { name, cpu, folder, memory: Memory::Small, mib: 128, buffers: 8192 }
    }

    /// The number of free 2 MiB huge pages that it needs.
    #[must_use]
    pub fn pages(&self) -> u64 {
        match self.memory {
            Memory::Small => 0,
            Memory::Huge => self.mib.div_ceil(2),
        }
    }
}

/// The virtio device that a testpmd drives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Virtio {
    /// A packed ring rather than a split one.
    pub packed: bool,
    /// `VIRTIO_NET_F_MRG_RXBUF`.
    pub mergeable: bool,
    /// `VIRTIO_F_IN_ORDER`.
    pub in_order: bool,
    /// Uses the driver's vector code: for split rings that are neither mergeable nor in order, or packed rings that are
    /// in order and not mergeable, on a processor with AVX-512.
    pub vectorised: bool,
    /// Entries of each ring.
    pub ring: u16,
    /// Pairs of queues.
    pub queues: u16,
    /// The guest listens at the socket, and the backend connects.
    pub server: bool,
}

impl Virtio {
    /// What Linux and QEMU negotiate with most backends: a split ring with mergeable buffers.
    pub const SPLIT: Virtio = Virtio {
        packed: false,
        mergeable: true,
        in_order: false,
        vectorised: false,
        ring: 1024,
        queues: 1,
        server: false,
    };
    /// The same with a packed ring.
    pub const PACKED: Virtio = Virtio { packed: true, ..Virtio::SPLIT };

    /// The device arguments of DPDK's `net_virtio_user` for this device at a socket.
    #[must_use]
    pub fn arguments(&self, socket: &Path) -> String {
        let Virtio { ring, queues, .. } = self;
        let [packed, mergeable, in_order] = [self.packed, self.mergeable, self.in_order].map(u8::from);
        let mut device = format!(
            "path={},queues={queues},queue_size={ring},packed_vq={packed},mrg_rxbuf={mergeable},in_order={in_order}",
            socket.display()
        );
        if self.vectorised {
            device += ",vectorized=1";
        }
        if self.server {
            device += ",server=1";
        }
        device
    }

    /// The driver's name for its receive code, which shows what was negotiated.
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

/// A port of a testpmd that is the backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VhostPort {
    /// Its socket.
    pub socket: PathBuf,
    /// The queue pairs that it offers.
    pub queues: u16,
    /// It connects to the guest, and reconnects.
    pub client: bool,
}

/// What a testpmd does with packets on all its ports. Lengths exclude the Ethernet frame check sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Sends packets of this length, as many as are accepted: IPv4 and UDP with two fixed addresses (`txonly`).
    Source(u32),
    /// Like `Source`, but numbered: the last bytes of the destination's IPv4 address count from 0 to 1023, repeatedly
    /// (`flowgen`).
    Numbered(u32),
    /// Receives packets and drops them (`rxonly`).
    Sink,
    /// Sends [`LOOPING`] packets of this length, and sends each again when it comes back, with its addresses changed
    /// (`mac retry`).
    Begin(u32),
    /// Sends received packets back, with their addresses changed (`mac retry`).
    Return,
    /// Answers ARP requests and pings (`icmpecho`).
    Echo,
    /// Forwards packets from each port to the next, unchanged (`io`).
    Hand,
}

/// Packet counters of one side's ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Packets received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Errors, in packets.
    pub errors: u64,
}

impl Counts {
    fn with(self, other: Counts, each: impl Fn(u64, u64) -> u64) -> Counts {
        Counts {
            received: each(self.received, other.received),
            received_bytes: each(self.received_bytes, other.received_bytes),
            sent: each(self.sent, other.sent),
            sent_bytes: each(self.sent_bytes, other.sent_bytes),
            errors: each(self.errors, other.errors),
        }
    }
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        self.with(other, |one, other| one + other)
    }
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, other: Counts) -> Counts {
        self.with(other, |one, other| one - other)
    }
}

/// One testpmd with its ports, killed on drop.
///
/// Every method that sends it a command has these errors: [`PeerError::Deaf`] and [`PeerError::Silent`] if it ended, or
/// does not answer within a minute; [`PeerError::Answer`] if its answer differs from its documentation.
#[derive(Debug)]
pub struct Testpmd {
    terminal: Terminal,
    ports: usize,
    works: bool,
}

impl Testpmd {
    /// Starts a guest with a device at each socket. With [`Virtio::server`] it is only ready after the backend has
    /// connected: see [`ready`](Testpmd::ready).
    ///
    /// # Errors
    /// [`PeerError::Missing`], [`PeerError::Start`]; [`PeerError::Silent`] if there is no backend at a socket, or no
    /// memory; [`PeerError::Answer`] if driver and backend negotiated something else than `virtio`.
    pub fn guest(seat: &TestpmdSetup<'_>, virtio: &Virtio, sockets: &[&Path]) -> Result<Testpmd, PeerError> {
        // Without the first option the driver uses no vectors of 64 bytes, which its vector code for packed rings
        // needs.
        let more = ["--force-max-simd-bitwidth=512", "--log-level=pmd.net.virtio.init:info"].map(str::to_owned);
        let devices: Vec<String> = sockets
            .iter()
            .enumerate()
            .map(|(number, socket)| format!("net_virtio_user{number},{}", virtio.arguments(socket)))
            .collect();
        let mut testpmd = Testpmd::start(seat, virtio.ring, virtio.queues, &more, &devices)?;
        if !virtio.server {
            testpmd.ready(SOON)?;
            for port in 0..sockets.len() {
                testpmd.expect_path(port, virtio)?;
            }
        }
        Ok(testpmd)
    }

    /// Starts a backend with these ports.
    ///
    /// # Errors
    /// [`PeerError::Missing`], [`PeerError::Start`], and [`PeerError::Silent`] if a socket cannot be made, or there is
    /// no memory.
    pub fn backend(seat: &TestpmdSetup<'_>, ports: &[VhostPort]) -> Result<Testpmd, PeerError> {
        let device = |(number, port): (usize, &VhostPort)| {
            let VhostPort { socket, queues, client } = port;
            format!("net_vhost{number},iface={},queues={queues},client={}", socket.display(), u8::from(*client))
        };
        let devices: Vec<String> = ports.iter().enumerate().map(device).collect();
        let queues = ports.iter().map(|port| port.queues).max().unwrap_or(1);
        let mut testpmd = Testpmd::start(seat, 1024, queues, &[], &devices)?;
        testpmd.ready(SOON)?;
        Ok(testpmd)
    }

    fn start(
        seat: &TestpmdSetup<'_>,
        ring: u16,
        queues: u16,
        more: &[String],
        devices: &[String],
    ) -> Result<Testpmd, PeerError> {
        missing().map_or(Ok(()), |why| Err(PeerError::Missing(why)))?;
        let TestpmdSetup { name, cpu, folder, memory, mib, buffers } = *seat;
        let of = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        // Its runtime files go into the folder that the test removes.
        let mut words = vec!["-c".to_owned(), cpu.to_string(), "env".to_owned()];
        words.push(format!("RUNTIME_DIRECTORY={}", folder.display()));
        // Thread 0 reads commands and sleeps; thread 1 polls. `--no-pci`: it must not take over the machine's own
        // network card.
        words.extend(of(format!("dpdk-testpmd --lcores 0@{cpu},1@{cpu} -m {mib} --no-pci --no-telemetry")));
        words.extend(of(format!("--iova-mode=va --file-prefix={name}-{}", std::process::id())));
        words.extend(memory.options().iter().map(|&option| option.to_owned()));
        words.extend_from_slice(more);
        words.extend(devices.iter().map(|device| format!("--vdev={device}")));
        words.extend(of(format!("-- -i --mask-event=all --nb-cores=1 --total-num-mbufs={buffers}")));
        words.extend(of(format!("--rxq={queues} --txq={queues} --rxd={ring} --txd={ring}")));
        let terminal = Terminal::start(name, "taskset", &words)?;
        Ok(Testpmd { terminal, ports: devices.len(), works: false })
    }

    fn expect_path(&self, port: usize, virtio: &Virtio) -> Result<(), PeerError> {
        let path = format!("virtio: using {} on port {port}", virtio.receives_by());
        let answer = self.terminal.log();
        if answer.contains(&path) {
            return Ok(());
        }
        Err(PeerError::Answer { name: self.terminal.name().to_owned(), command: path, answer })
    }

    /// Waits until it accepts commands.
    ///
    /// # Errors
    /// [`PeerError::Silent`]
    pub fn ready(&mut self, within: Duration) -> Result<(), PeerError> {
        self.terminal.until(PROMPT, within).map(drop)
    }

    /// Sends a command and returns the answer.
    ///
    /// # Errors
    /// As for all methods.
    pub fn command(&mut self, command: &str) -> Result<String, PeerError> {
        self.terminal.line(command)?;
        self.terminal.until(PROMPT, SOON)
    }

    /// Sends a command whose answer must contain `wanted`.
    fn expect(&mut self, command: &str, wanted: &str) -> Result<(), PeerError> {
        let answer = self.command(command)?;
        if answer.contains(wanted) {
            return Ok(());
        }
        Err(PeerError::Answer { name: self.terminal.name().to_owned(), command: command.to_owned(), answer })
    }

    /// Stops the current work and starts another.
    ///
    /// # Errors
    /// As for all methods.
    pub fn work(&mut self, work: Work) -> Result<(), PeerError> {
        self.rest()?;
        let (mode, len) = match work {
            Work::Source(len) => ("txonly", Some(len)),
            // It subtracts four bytes for a frame check sequence that is not there.
            Work::Numbered(len) => ("flowgen", Some(len + 4)),
            Work::Sink => ("rxonly", None),
            Work::Begin(len) => ("mac retry", Some(len)),
            Work::Return => ("mac retry", None),
            Work::Echo => ("icmpecho", None),
            Work::Hand => ("io", None),
        };
        if let Some(len) = len {
            self.command(&format!("set txpkts {len}"))?;
        }
        self.expect(&format!("set fwd {mode}"), "packet forwarding mode")?;
        let first = if matches!(work, Work::Begin(_)) { format!(" tx_first {LOOPING_BURSTS}") } else { String::new() };
        self.expect(&format!("start{first}"), " - ports=")?;
        self.works = true;
        Ok(())
    }

    /// Stops forwarding; all packets received and sent by then are counted.
    ///
    /// # Errors
    /// As for all methods.
    pub fn rest(&mut self) -> Result<(), PeerError> {
        if std::mem::take(&mut self.works) {
            self.expect("stop", "Done.")?;
        }
        Ok(())
    }

    /// The counters of all its ports together since it was started.
    ///
    /// # Errors
    /// As for all methods.
    pub fn counts(&mut self) -> Result<Counts, PeerError> {
        (0..self.ports).try_fold(Counts::default(), |sum, port| Ok(sum + self.counts_of(port)?))
    }

    /// The counters of one port since it was started.
    ///
    /// # Errors
    /// As for all methods.
    pub fn counts_of(&mut self, port: usize) -> Result<Counts, PeerError> {
        let command = format!("show port stats {port}");
        let answer = self.command(&command)?;
        let counts = counts_in(&answer);
        counts.ok_or_else(|| PeerError::Answer { name: self.terminal.name().to_owned(), command, answer })
    }

    /// How many queue pairs of port 0 carried packets during its last work.
    #[must_use]
    pub fn queues_used(&self) -> usize {
        let last = self.terminal.output().rsplit("testpmd> stop\n").next().unwrap_or_default();
        last.matches("------- Forward Stats for RX Port= 0/Queue=").count()
    }

    /// How often a guest whose backend was lost has reconnected to another one, as its driver reports. By then the
    /// driver has finished its changes to the rings.
    #[must_use]
    pub fn reconnections(&self) -> usize {
        // Source: drivers/net/virtio/virtio_user/virtio_user_dev.c of DPDK 22.11, the last action of
        // virtio_user_dev_server_reconnect.
        self.terminal.log().matches("server mode virtio-user reconnection succeeds!").count()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.terminal.kill();
    }

    /// Its process id; its polling thread has a name that starts with [`WORKER`].
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.terminal.pid()
    }

    /// Returns whether it is still running.
    pub fn runs(&mut self) -> bool {
        self.terminal.runs()
    }
}

/// Parses the output of `show port stats`.
fn counts_in(table: &str) -> Option<Counts> {
    let value = |name: &str| table.split_once(name)?.1.split_whitespace().next()?.parse::<u64>().ok();
    Some(Counts {
        received: value("RX-packets:")?,
        received_bytes: value("RX-bytes:")?,
        sent: value("TX-packets:")?,
        sent_bytes: value("TX-bytes:")?,
        errors: value("RX-errors:")? + value("RX-nombuf:")? + value("TX-errors:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_statistics_are_read() {
        let table = "show port stats 0\n\n  ######## NIC statistics for port 0  ########\n  \
                     RX-packets: 6682976    RX-missed: 0          RX-bytes:  427710464\n  \
                     RX-errors: 1\n  RX-nombuf:  20        \n  \
                     TX-packets: 7          TX-errors: 300        TX-bytes:  448\n\n  Throughput (since last show)\n  \
                     Rx-pps:     21719348          Rx-bps:  11120306472\n";
        let counts = Counts { received: 6_682_976, received_bytes: 427_710_464, sent: 7, sent_bytes: 448, errors: 321 };
        assert_eq!((counts_in(table), counts_in(&table[..60])), (Some(counts), None));
    }
}
