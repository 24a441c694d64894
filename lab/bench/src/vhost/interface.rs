//! The rate between a network interface and a guest, through the switch.
//!
//! The interface is one end of a veth pair in a network namespace of the bench, so that no traffic of this system
//! passes and nothing of it changes. The switch's forwarding thread has one core. The guest and the partner at the
//! other end of the pair take turns on the other core, which also does the kernel's work for the pair. At most a window
//! of packets is in flight each way, so that none is lost: the rate is that of the slowest part.

use super::super::BenchError;
use super::super::goal::Row;
use super::super::measure::median;
use super::guest::Guest;
use super::ours::Working;
use crate::point::{Cores, Drops, Kept, Seen, Watch, round};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use telpher_os::Distance;
use telpher_switch::{Counts, End, Forwarder, Full, Mode, Nic, Settings, routes};
use telpher_vhost::{PacketPool, Packets, Port, PortOptions};

/// The most packets of a direction in flight. Source: chosen, a quarter of the rings, and of the frames that the kernel
/// keeps for a veth pair (`netdev_max_backlog`, 1000).
const WINDOW: u64 = 256;
/// Packets sent together: the forwarding loop's burst.
const BURST: u64 = 32;
/// The longest packet. Source: the MTU of a veth pair and an Ethernet header, and room for a tag.
const LONGEST: u32 = 1518;
/// Time after which a packet counts as lost.
const LOST: Duration = Duration::from_millis(100);
/// Time until packets flow evenly.
const SETTLE: Duration = Duration::from_millis(10);

/// Which packets are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ways {
    into_guest: bool,
    out_of_guest: bool,
}

const WAYS: [(&str, Ways); 3] = [
    ("into the guest", Ways { into_guest: true, out_of_guest: false }),
    ("out of the guest", Ways { into_guest: false, out_of_guest: true }),
    ("both ways", Ways { into_guest: true, out_of_guest: true }),
];

/// Parameters of the measurement.
pub(super) struct About<'a> {
    /// The ring's name.
    pub(super) ring: &'static str,
    pub(super) packed: bool,
    pub(super) sizes: &'a [u32],
    pub(super) rounds: u32,
    /// Duration of a point.
    pub(super) slice: Duration,
    pub(super) cores: Cores,
}

/// A guest and a partner, which take turns, and the ports of the switch between them.
struct Rig {
    ends: [End; 2],
    pool: PacketPool,
    /// `None` only while a thread has them.
    sides: Option<Sides>,
}

struct Sides {
    guest: Guest,
    partner: Nic,
    row: Packets,
    spare: Packets,
    received: Packets,
    /// Packets sent, and packets that came: into the guest, and out of it.
    sent: [u64; 2],
    came: [u64; 2],
    last: Instant,
    lost: u64,
}

/// Returns rows with the rate of each length and direction. An error says why there can be no interface.
pub(super) fn measure(about: &About<'_>, pool: &PacketPool, drops: &mut Drops) -> Result<Vec<Row>, String> {
    let mut rig = Rig::new(about.packed, pool)?;
    let mut rows = Vec::new();
    for &size in about.sizes.iter().filter(|size| **size <= LONGEST) {
        for (name, ways) in WAYS {
            let (mut kept, mut lost): (Vec<Kept>, u64) = (Vec::new(), 0);
            for _ in 0..about.rounds {
                let point = |_| {
                    let (seen, gone) = rig.rate(ways, size, about.slice, about.cores)?;
                    lost += gone;
                    Ok::<_, BenchError>(seen)
                };
                let seen = round(1, 0, drops, || about.cores.distance(), point).map_err(|error| error.to_string())?;
                kept.extend(seen.into_iter().flatten());
            }
            rows.extend(rows_of(&format!("{} ring, {size} B, {name}", about.ring), &kept, lost, about.rounds));
        }
    }
    Ok(rows)
}

/// Returns a row for each observed distance of the cores; or a row without a value if there was none.
fn rows_of(what: &str, kept: &[Kept], lost: u64, rounds: u32) -> Vec<Row> {
    if kept.is_empty() {
        return vec![Row::new(what.to_owned(), f64::NAN, "Mpps", None, format!("no point counts, of {rounds} rounds"))];
    }
    let mut rows = Vec::new();
    for distance in [Distance::Near, Distance::Far, Distance::Same] {
        let mut here: Vec<f64> = kept.iter().filter(|kept| kept.distance == distance).map(|kept| kept.value).collect();
        if !here.is_empty() {
            let how = format!("median of {}; {lost} packets lost", here.len());
            rows.push(Row::new(format!("{what}, {}", distance.name()), median(&mut here), "Mpps", None, how));
        }
    }
    rows
}

impl Rig {
    fn new(packed: bool, pool: &PacketPool) -> Result<Rig, String> {
        let port = Port::new(pool, PortOptions::default());
        let guest = Guest::connect(&port, packed).map_err(|error| error.to_string())?;
        let [switch, partner] = interfaces(pool)?;
        let ends = [End::Guest(port), End::Nic(Arc::new(switch))];
        let (row, spare, received) = (pool.empty(32), pool.empty(32), pool.empty(32));
        let (sent, came, last) = ([0; 2], [0; 2], Instant::now());
        let sides = Some(Sides { guest, partner, row, spare, received, sent, came, last, lost: 0 });
        Ok(Rig { ends, pool: pool.clone(), sides })
    }

    /// Measures a rate: all packets that arrived. Also returns how many did not.
    fn rate(&mut self, ways: Ways, len: u32, time: Duration, cores: Cores) -> Result<(Seen, u64), BenchError> {
        let settings = Settings { full: Full::Retry, retry_for: Duration::from_secs(60), ..Settings::default() };
        let mut forwarder = Forwarder::new(&self.ends, &routes(&[1, 1], Mode::Io), &self.pool, settings);
        let forwarding = Working::start("bench-switch", cores.backend, move |stop| {
            forwarder.run(stop, &mut Counts::published(2).0);
        })?;
        let mut sides = self.sides.take().expect("given back after every point");
        let (packets, (give, back)) = (Arc::new(AtomicU64::new(0)), mpsc::channel());
        let shared = Arc::clone(&packets);
        let driving = Working::start("bench-sides", cores.guest, move |stop| {
            // Relaxed, as below: a counter and a flag that publish nothing.
            while !stop.load(Ordering::Relaxed) {
                sides.step(ways, len);
                shared.store(sides.came.iter().sum(), Ordering::Relaxed);
            }
            let _ = give.send(sides);
        })?;
        std::thread::sleep(SETTLE);
        let threads: Vec<_> = [&forwarding, &driving].into_iter().filter_map(|one| one.watched.clone()).collect();
        let watch = Watch::begin(&threads, cores.all());
        let (begun, before) = (Instant::now(), packets.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let (took, after) = (begun.elapsed(), packets.load(Ordering::Relaxed));
        let counts = watch.end();
        drop(driving);
        drop(forwarding);
        let mut sides = back.recv().expect("it gives back what it had");
        let lost = std::mem::take(&mut sides.lost);
        self.sides = Some(sides);
        Ok((Seen { value: (after - before) as f64 / took.as_secs_f64() / 1e6, share: None, counts }, lost))
    }
}

impl Sides {
    /// Sends what the window allows, and takes what came.
    fn step(&mut self, ways: Ways, len: u32) {
        let before = self.came;
        // The kernel also sends frames of its own, which came without having been sent.
        let in_flight = |way: usize, sides: &Sides| sides.sent[way].saturating_sub(sides.came[way]);
        let room = |way: usize, sides: &Sides| WINDOW.saturating_sub(in_flight(way, sides)).min(BURST);
        if ways.into_guest {
            let burst = usize::try_from(room(0, self)).unwrap_or(0);
            self.spare.fetch(burst);
            self.spare.move_to(burst, &mut self.row);
            for index in 0..self.row.len() {
                self.row.resize(index, len);
            }
            // No addresses, and a type of local experiments (IEEE 802 §9.2.4): no stack takes such frames.
            self.row.for_each_mut(|packet| {
                packet[..12].fill(0);
                packet[12..14].copy_from_slice(&[0x88, 0xb5]);
            });
            self.sent[0] += self.partner.submit(0, &mut self.row) as u64;
            self.partner.collect(0, &mut self.spare);
        }
        self.came[0] += self.guest.take_in(|_, _| false);
        if ways.out_of_guest {
            self.guest.sent();
            for _ in 0..room(1, self) {
                self.sent[1] += u64::from(self.guest.send(len, None));
            }
        }
        self.spare.fetch(32);
        self.came[1] += self.partner.take(0, &mut self.received, &mut self.spare, 32) as u64;
        self.received.move_to(usize::MAX, &mut self.spare);
        if self.came != before {
            self.last = Instant::now();
        } else if self.came != self.sent && self.last.elapsed() > LOST {
            self.lost += in_flight(0, self) + in_flight(1, self);
            self.came = self.sent;
        }
    }
}

/// Creates a veth pair in a namespace of its own, which ends with this process, and opens both ends.
fn interfaces(pool: &PacketPool) -> Result<[Nic; 2], String> {
    let name = format!("telpher-bench-{}", std::process::id());
    let ip = |words: &str| {
        let done = Command::new("ip").args(words.split(' ')).output();
        let done = done.map_err(|error| format!("no ip (Debian package iproute2): {error}"))?;
        let why = || format!("ip {words}: {}", String::from_utf8_lossy(&done.stderr).trim());
        done.status.success().then_some(()).ok_or_else(why)
    };
    ip(&format!("netns add {name}"))?;
    let namespace = File::open(format!("/run/netns/{name}")).map_err(|error| error.to_string());
    // The file keeps it.
    ip(&format!("netns del {name}"))?;
    let namespace = namespace?;
    let open = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| error.to_string())?;
        ip("link add bench0 type veth peer name bench1")?;
        for name in ["bench0", "bench1"] {
            ip(&format!("link set {name} up"))?;
        }
        let nic = |name| Nic::open(name, 1, pool, LONGEST).map_err(|error| error.to_string());
        Ok([nic("bench0")?, nic("bench1")?])
    };
    // Only the thread moves into the namespace; its sockets stay there.
    std::thread::scope(|scope| scope.spawn(open).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_vhost::PoolOptions;

    /// However little of a core the threads get, packets arrive at last, and none counts as lost for long.
    #[test]
    fn packets_pass_in_every_direction() {
        let pool = PacketPool::new(PoolOptions { buffers: 8192, longest: 2048 }).unwrap();
        let core = telpher_os::allowed_cpus().unwrap()[0];
        for packed in [false, true] {
            let mut rig = match Rig::new(packed, &pool) {
                Ok(rig) => rig,
                Err(why) => return crate::skip::skip("packets_pass_in_every_direction", &why),
            };
            for (name, ways) in WAYS {
                let cores = Cores { backend: core, guest: core };
                let mut rate = || rig.rate(ways, 64, Duration::from_millis(20), cores).unwrap().0.value;
                assert!((0..100).any(|_| rate() > 0.0), "{name}");
            }
        }
    }

    #[test]
    fn there_is_a_row_for_each_distance() {
        let kept = |distance, value| Kept { distance, value, share: None };
        let far = [1.0, 3.0, 2.0].map(|value| kept(Distance::Far, value));
        let seen = [&far[..], &[kept(Distance::Near, 5.0)]].concat();
        let rows = rows_of("a", &seen, 0, 5);
        let found: Vec<_> = rows.iter().map(|row| (row.what.as_ref(), row.measured)).collect();
        assert_eq!(found, [("a, near", 5.0), ("a, far", 2.0)]);
        assert!(rows_of("a", &[], 0, 5)[0].measured.is_nan());
    }
}
