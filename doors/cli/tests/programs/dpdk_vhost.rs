//! DPDK's asynchronous vhost on DPDK's own idxd driver: a program on both public interfaces, `sources/dpdk_vhost.c`,
//! gives the packets of a guest back. The guest is this test, so it can disable queues at any time.

use crate::dpdk::by_accel_config;
use crate::frontend::wire::Wire;
use crate::frontend::{MRG, u32s, u64s};
use crate::harness::{Run, View, in_both_views, lacking, source, test_folder};
use crate::skip::skip;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Direction, MockDriver, MockGuest};

/// Descriptors of a ring, and bytes of a buffer.
const SIZE: u16 = 512;
const BUFFER: u64 = 2048;
/// Bytes of a virtio network header (virtio 1.2 §5.1.6), which is zero here but for the number of buffers.
const HEADER: usize = 12;
/// Numbered packets each way. `long::` has more.
const COUNT: u64 = 5_000;
/// The same if copies take long.
const FEW: u64 = 1_000;
/// How often a queue is disabled, the receive queue every other time.
const PARTS: u64 = 8;
/// The most packets in flight. DPDK's library keeps the receive buffers of packets that were in flight when the queue
/// was disabled, so the ring has more than half of `PARTS` windows.
const WINDOW: u64 = 64;
/// Maximum time without progress.
const SOON: Duration = Duration::from_secs(20);
/// The rings of a pair of queues.
const INTO_GUEST: u32 = 0;
const OUT_OF_GUEST: u32 = 1;

/// The features of a guest with this layout of rings.
const LAYOUTS: [u64; 2] = [MRG, MRG | Features::RING_PACKED.bits()];

/// Compiles the program; skips and returns `None` if the machine cannot.
fn compiled(test: &str) -> Option<PathBuf> {
    let tools =
        [("gcc", "gcc"), ("pkg-config", "pkg-config"), ("accel-config", "accel-config"), ("setpriv", "util-linux")];
    if lacking(test, &tools) {
        return None;
    }
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]).output().expect("found above");
    if !flags.status.success() {
        skip(test, "no DPDK to compile with (Debian package libdpdk-dev)");
        return None;
    }
    let program = test_folder(&format!("{test}-program")).join("dpdk_vhost");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-DALLOW_EXPERIMENTAL_API", "-o"]);
    gcc.arg(&program).arg(source("dpdk_vhost.c"));
    gcc.args(String::from_utf8_lossy(&flags.stdout).split_whitespace());
    // Drivers are separate libraries, which are loaded if they are named.
    gcc.args(["-Wl,--no-as-needed", "-lrte_dma_idxd"]);
    let output = gcc.output().expect("gcc runs");
    assert!(output.status.success(), "dpdk_vhost.c: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// The running program; killed with its children on drop.
struct Backend {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    errors: PathBuf,
    socket: PathBuf,
}

impl Backend {
    fn start(run: &Run, folder: &Path, program: &Path, more: &str) -> Backend {
        // Its path is short enough for a socket; the folder's name has the test and the view.
        let name = folder.file_name().expect("a folder").to_string_lossy();
        let socket = std::env::temp_dir().join(format!("telpher-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let errors = folder.join("errors");
        let script = format!(
            "{{ {} }} >/dev/null\nexec {} --lcores 0@0 --no-pci --no-huge -m 128 --no-shconf --no-telemetry \
             --iova-mode=va -- {} {more}",
            by_accel_config(),
            program.display(),
            socket.display()
        );
        let mut command = run.command(&["/bin/sh", "-ec", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&errors).expect("a file"));
        let mut child = command.spawn().expect("it starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let backend = Backend { child, input, lines, errors, socket };
        backend.line("ready");
        backend
    }

    /// Returns the rest of the next line that begins so.
    fn line(&self, begin: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(begin) {
                        return rest.to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("no line \"{begin}\" in time: {}", self.errors()),
                Err(RecvTimeoutError::Disconnected) => panic!("ended before \"{begin}\": {}", self.errors()),
            }
        }
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Clears the queues. Returns packets in flight into the guest and out of it, packets that came out of the guest,
    /// packets that were given to it, packets that wait, repeated copies, and buffers outside of the pool.
    fn clear(&mut self) -> [u64; 7] {
        self.input.write_all(b"clear\n").expect("it listens");
        numbers(&self.line("cleared: ")).try_into().expect("seven numbers")
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(0)) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The numbers in a line.
fn numbers(line: &str) -> Vec<u64> {
    line.split(|letter: char| !letter.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Packet `number`: its number, then bytes that follow from it; 60 to 1514 bytes.
fn packet(number: u64) -> Vec<u8> {
    let len = 52 + usize::try_from(number * 97 % 1455).expect("small");
    let body = (0..len).map(|at| number.wrapping_mul(31).wrapping_add(at as u64).to_le_bytes()[0]);
    number.to_le_bytes().into_iter().chain(body).collect()
}

/// A guest with one pair of queues.
struct Guest {
    wire: Wire,
    memory: MockGuest,
    receive: MockDriver,
    transmit: MockDriver,
    /// Addresses of the buffers that the backend has, by ring and identifier.
    out: [HashMap<u16, u64>; 2],
    free: Vec<u64>,
    /// Numbers of the next packets that are sent and that come.
    sent: u64,
    came: u64,
    /// Receive buffers that DPDK's library has kept.
    kept: u64,
}

impl Guest {
    fn connect(socket: &Path, features: u64) -> Guest {
        let wire = Wire(UnixStream::connect(socket).expect("the socket is there when the program is ready"));
        wire.agree(features).expect("an agreement");
        let mut memory = MockGuest::new(8 << 20);
        let agreed = Features::from_bits_retain(features);
        let mut receive = MockDriver::new(&mut memory, SIZE, agreed, Direction::Receive);
        let transmit = MockDriver::new(&mut memory, SIZE, agreed, Direction::Transmit);
        let mut out = [HashMap::new(), HashMap::new()];
        for _ in 0..SIZE {
            let at = memory.lend(BUFFER);
            out[0].insert(offer(&mut receive, at, BUFFER), at);
        }
        let free = (0..SIZE).map(|_| memory.lend(BUFFER)).collect();
        wire.memory(&memory).expect("memory");
        for (ring, driver) in [(INTO_GUEST, &receive), (OUT_OF_GUEST, &transmit)] {
            // No file for calls: the guest polls. DPDK starts a ring only after it was told.
            wire.tell(13, &u64s(&[u64::from(ring) | 1 << 8]), &[]).expect("it is heard");
            wire.ring(ring, driver).expect("a ring");
        }
        // SET_STATUS: the driver is ready (virtio 1.2 §2.1). DPDK waits for it if it is negotiated.
        wire.tell(39, &u64s(&[15]), &[]).expect("it is heard");
        Guest { wire, memory, receive, transmit, out, free, sent: 0, came: 0, kept: 0 }
    }

    /// Sends packets up to `end` while the window allows it, and checks those that have come.
    fn turn(&mut self, end: u64) {
        for (id, _) in self.transmit.collect() {
            self.free.push(self.out[1].remove(&id).expect("it is out"));
        }
        while self.sent < end.min(self.came + WINDOW) {
            let Some(at) = self.free.pop() else { break };
            let packet = packet(self.sent);
            self.memory.write(at, &[0; HEADER]);
            self.memory.write(at + HEADER as u64, &packet);
            let id = offer(&mut self.transmit, at, (HEADER + packet.len()) as u64);
            self.out[1].insert(id, at);
            self.sent += 1;
        }
        let back = self.receive.collect().into_iter();
        let back: Vec<(u64, u32)> = back.map(|(id, len)| (self.out[0].remove(&id).expect("it is out"), len)).collect();
        for (at, len) in &back {
            let bytes = self.memory.read(*at, *len as usize).split_off(HEADER);
            assert!(
                bytes == packet(self.came),
                "packet {} came as {} bytes: {:?}",
                self.came,
                bytes.len(),
                &bytes[..8]
            );
            self.came += 1;
        }
        for (at, _) in back {
            self.out[0].insert(offer(&mut self.receive, at, BUFFER), at);
        }
    }

    /// Sends packets up to `end` and waits until all have come back; ends early if none comes for a time.
    fn send_until(&mut self, end: u64, soon: Duration) -> bool {
        let (mut last, mut begun) = (self.came, Instant::now());
        while self.came < end {
            self.turn(end);
            if self.came > last {
                (last, begun) = (self.came, Instant::now());
            } else if begun.elapsed() > soon {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Disables a queue while packets are in flight, waits until the program has noticed, and enables it.
    fn disable_and_enable(&mut self, backend: &Backend, queue: u32) {
        self.wire.tell(18, &u32s(&[queue, 0]), &[]).expect("it is heard");
        let undelivered = numbers(&backend.line(&format!("queue {queue} disabled: ")))[1];
        self.kept += undelivered;
        self.wire.tell(18, &u32s(&[queue, 1]), &[]).expect("it is heard");
    }
}

fn offer(driver: &mut MockDriver, at: u64, len: u64) -> u16 {
    driver.offer(&[(at, u32::try_from(len).expect("a buffer's length"))]).expect("the ring has room")
}

/// Sends packets around, over both layouts of rings, and disables and enables both queues meanwhile.
fn around(test: &str, view: View, options: &[&str], count: u64) {
    let Some(program) = compiled(&format!("{test}-{}", view.name())) else { return };
    for features in LAYOUTS {
        let folder = test_folder(&format!("{test}-{}", view.name()));
        let run = options.iter().fold(Run::new(view), |run, option| run.with(option));
        let run = run.variable("XDG_RUNTIME_DIR", &folder).in_folder(&folder);
        let mut backend = Backend::start(&run, &folder, &program, "");
        let mut guest = Guest::connect(&backend.socket, features);
        for part in 1..=PARTS {
            // Some packets are in flight when the queue is disabled.
            let end = part * count / PARTS;
            assert!(guest.send_until(end - WINDOW, SOON), "{} came: {}", guest.came, backend.errors());
            guest.turn(end);
            guest.disable_and_enable(&backend, u32::from(part % 2 == 0));
        }
        assert!(guest.send_until(count, SOON), "{} came: {}", guest.came, backend.errors());
        let [into, out, taken, given, waiting, repeated, outside] = backend.clear();
        assert_eq!((into, out, taken, given, waiting, outside), (0, 0, count, count, 0, 0));
        assert_eq!(options.iter().any(|option| option.starts_with("fault")), repeated > 0, "{repeated} repeated");
        guest.turn(count);
        assert_eq!((guest.receive.lent() as u64, guest.transmit.lent()), (u64::from(SIZE), 0));
        eprintln!("{test}: {} receive buffers kept, {repeated} copies repeated", guest.kept);
    }
}

const FAULTS: [&str; 2] = ["--inject", "fault=1%,seed=7"];
/// Copies take long, so that packets are in flight when a queue is disabled.
const SLOW: [&str; 2] = ["--inject", "delay=1ms:100%"];

in_both_views! {
    fn packets_return_in_order_while_queues_are_disabled(view: View) {
        around("packets_return_in_order_while_queues_are_disabled", view, &[], COUNT);
    }

    fn packets_in_flight_return_in_order_when_queues_are_disabled(view: View) {
        around("packets_in_flight_return_in_order_when_queues_are_disabled", view, &SLOW, FEW);
    }

    fn packets_return_in_order_although_copies_fail(view: View) {
        around("packets_return_in_order_although_copies_fail", view, &FAULTS, COUNT);
    }
}

#[test]
fn dpdks_library_stops_after_a_copy_that_failed() {
    let test = "dpdks_library_stops_after_a_copy_that_failed";
    let Some(program) = compiled(test) else { return };
    for features in LAYOUTS {
        let folder = test_folder(test);
        let run = FAULTS.iter().fold(Run::new(View::Preload), |run, option| run.with(option));
        let run = run.variable("XDG_RUNTIME_DIR", &folder).in_folder(&folder);
        let mut backend = Backend::start(&run, &folder, &program, "bare");
        let mut guest = Guest::connect(&backend.socket, features);
        assert!(!guest.send_until(COUNT, Duration::from_secs(2)), "all came");
        // What came is unchanged and in order, which `turn` has checked.
        assert!(guest.came > 0, "{}", backend.errors());
        let [into, out, ..] = backend.clear();
        assert!(into + out > 0, "nothing is in flight");
        assert!(backend.errors().contains("DMA completion failure"), "{}", backend.errors());
    }
}

/// Of `./soak`.
mod long {
    use super::*;

    const COUNT: u64 = 100_000;

    #[test]
    #[ignore = "takes minutes; ./soak runs it"]
    fn a_hundred_thousand_packets_return_in_order() {
        let test = "a_hundred_thousand_packets_return_in_order";
        for options in [["--runner", "threaded"], FAULTS] {
            around(test, View::Preload, &options, COUNT);
        }
    }
}
