//! The overhead of a C call over the Rust call: `cargo bench -p telpher-capi`.
//!
//! Both copy the same bytes on the CPU, or access the same block of a cache (access, location, free), alternating every
//! few milliseconds within one run; the median is reported. Or both take bursts of packets from a guest and send them
//! back; the guest's driver is on the same thread, and its time is not measured. The C functions are called through
//! pointers that the compiler cannot see through, like calls into a shared library.
#![allow(unsafe_code, reason = "calls C's functions as C does")]

#[path = "../tests/guest/mod.rs"]
mod guest;

use guest::Guest;
use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_cache::{Cache, Config};
use telpher_capi::{Cache as CCache, Entry, Mover as CMover, Tier};
use telpher_capi::{
    Packet, VhostPool, VhostPort, telpher_vhost_pool_new, telpher_vhost_port_new, telpher_vhost_socket_new,
};
use telpher_capi::{
    telpher_cache_access, telpher_cache_free, telpher_cache_new, telpher_entry_free, telpher_entry_location,
};
use telpher_capi::{telpher_copy, telpher_mover_free, telpher_mover_new};
use telpher_capi::{
    telpher_vhost_poll_enqueue_completed, telpher_vhost_pool_free, telpher_vhost_port_free, telpher_vhost_socket_free,
    telpher_vhost_submit_enqueue_burst, telpher_vhost_try_dequeue_burst,
};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::Mover;
use telpher_vhost::layout::Features;
use telpher_vhost::{PacketPool, Packets, PoolOptions as PacketOptions, Port, PortOptions, Role, Socket};

/// Bytes of a copy: so few that the call dominates.
const SIZES: [usize; 3] = [8, 64, 1024];
/// The goal in nanoseconds. Source: issue 4, the table of goals.
const GOAL: f64 = 3.0;

type Copy = unsafe extern "C" fn(*const CMover, *mut c_void, *const c_void, usize) -> c_int;

type Access = unsafe extern "C" fn(*const CCache, *const c_void, usize, *mut *mut Entry) -> c_int;
type Location = unsafe extern "C" fn(*const Entry, *mut c_int) -> *const c_void;
type Free = unsafe extern "C" fn(*mut Entry);

/// Bytes of a block in the cache. Source: assumed, like the smaller chunks of the thesis.
const BLOCK: usize = 64 << 10;

/// Nanoseconds of one call, averaged over a number of calls.
fn nanos(calls: u32, mut call: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..calls {
        call();
    }
    begin.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Medians of the Rust call and the C call.
fn duel(size: usize, turns: usize, calls: u32) -> (f64, f64) {
    let rust = Mover::cpu();
    let mut c = null_mut();
    // SAFETY: an out pointer for the handle; no device, no options.
    assert_eq!(unsafe { telpher_mover_new(&raw mut c, null(), null()) }, 0);
    let copy: Copy = black_box(telpher_copy);
    let (src, mut dst) = (vec![7_u8; size], vec![0_u8; size]);
    let (mut by_rust, mut by_c) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        dst.fill(0);
        by_rust.push(nanos(calls, || {
            let _ = black_box(black_box(&rust).copy_slices(black_box(&src), black_box(&mut dst)));
        }));
        assert_eq!(src, dst);
        dst.fill(0);
        by_c.push(nanos(calls, || {
            // SAFETY: a mover that is alive, two ranges of `size` bytes.
            let answer = unsafe { copy(black_box(c), dst.as_mut_ptr().cast(), src.as_ptr().cast(), black_box(size)) };
            assert_eq!(black_box(answer), 0);
        }));
        assert_eq!(src, dst);
    }
    // SAFETY: freed once.
    assert_eq!(unsafe { telpher_mover_free(c) }, 0);
    (median(by_rust), median(by_c))
}

/// Medians of an access to a cached block.
fn look_duel(turns: usize, calls: u32) -> (f64, f64) {
    let source: Arc<[u8]> = vec![7; BLOCK].into();
    let pool = Pool::new(PoolOptions::new(BLOCK)).expect("memory");
    let rust = Cache::new(Mover::cpu(), Config::new([pool])).expect("a tier");
    let tier = Tier {
        size: BLOCK as u64,
        flags: 0,
        node: 0,
        near_node: 0,
        reserved: 0,
        obtain: None,
        release: None,
        user: null_mut(),
        reserved2: [0; 3],
    };
    let (mut mover, mut c) = (null_mut(), null_mut());
    // SAFETY: out pointers for the handles; a mover that is alive, one tier.
    unsafe {
        assert_eq!(telpher_mover_new(&raw mut mover, null(), null()), 0);
        assert_eq!(telpher_cache_new(&raw mut c, mover, &raw const tier, 1, null(), null()), 0);
    }
    let access: Access = black_box(telpher_cache_access);
    let location: Location = black_box(telpher_entry_location);
    let free: Free = black_box(telpher_entry_free);
    let (mut by_rust, mut by_c) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        by_rust.push(nanos(calls, || {
            let handle = black_box(&rust).access(black_box(&source), 0..BLOCK).expect("in range");
            black_box(handle.location().bytes().as_ptr());
        }));
        by_c.push(nanos(calls, || {
            let mut entry = null_mut();
            // SAFETY: a cache and a block that live, an out pointer for the handle.
            assert_eq!(unsafe { access(black_box(c), source.as_ptr().cast(), BLOCK, &raw mut entry) }, 0);
            // SAFETY: the handle is good until it is freed, once.
            unsafe {
                black_box(location(entry, null_mut()));
                free(entry);
            }
        }));
    }
    // SAFETY: each freed once.
    unsafe {
        assert_eq!((telpher_cache_free(c), telpher_mover_free(mover)), (0, 0));
    }
    (median(by_rust), median(by_c))
}

/// Packets of a burst. Source: the usual size in DPDK programs.
const BURST: usize = 32;

/// Takes a burst from its guest and sends it back.
trait Switch {
    /// The number of packets taken; packets sent before are free again.
    fn dequeue(&mut self) -> usize;
    /// How many of the packets taken last the guest has received.
    fn enqueue(&mut self) -> usize;
}

struct RustSwitch {
    port: Arc<Port>,
    spare: Packets,
    burst: Packets,
    done: Packets,
}

impl Switch for RustSwitch {
    fn dequeue(&mut self) -> usize {
        self.spare.fetch(BURST);
        self.port.transmit(0, &mut self.burst, &mut self.spare, BURST)
    }

    fn enqueue(&mut self) -> usize {
        self.port.receive(0, &mut self.burst, &mut self.done);
        let count = self.done.len();
        self.done.truncate(0);
        count
    }
}

type Burst = unsafe extern "C" fn(*const VhostPort, u32, *mut Packet, u32) -> c_int;
type Submit = unsafe extern "C" fn(*const VhostPort, u32, *const Packet, u32) -> c_int;

struct CSwitch {
    port: *mut VhostPort,
    burst: [Packet; BURST],
    count: u32,
    dequeue: Burst,
    submit: Submit,
    poll: Burst,
}

impl Switch for CSwitch {
    fn dequeue(&mut self) -> usize {
        // SAFETY: a port that is alive, room for that many.
        let count =
            unsafe { (self.dequeue)(self.port, 0, self.burst.as_mut_ptr(), u32::try_from(BURST).unwrap_or(u32::MAX)) };
        self.count = u32::try_from(count).expect("a count");
        self.count as usize
    }

    fn enqueue(&mut self) -> usize {
        // SAFETY: a port that is alive, and that many packets.
        let taken = unsafe { (self.submit)(self.port, 0, self.burst.as_ptr(), self.count) };
        assert_eq!(taken.cast_unsigned(), self.count);
        // SAFETY: a port that is alive; the packets go to the pool.
        let count = unsafe { (self.poll)(self.port, 0, null_mut(), 0) };
        usize::try_from(count).expect("a count")
    }
}

/// Nanoseconds of a burst out of a guest, and of one into it; all the guest's packets have `size` bytes.
fn round_trips(switch: &mut dyn Switch, guest: &mut Guest, size: usize, calls: u32) -> [f64; 2] {
    let packet = vec![7; size];
    let mut sum = [Duration::ZERO; 2];
    for _ in 0..calls {
        (0..BURST).for_each(|_| assert!(guest.send(&packet)));
        let begin = Instant::now();
        let dequeued = switch.dequeue();
        let between = Instant::now();
        let enqueued = switch.enqueue();
        let end = Instant::now();
        assert_eq!((dequeued, enqueued, guest.received().len()), (BURST, BURST, BURST));
        sum = [sum[0] + (between - begin), sum[1] + (end - between)];
    }
    sum.map(|sum| sum.as_nanos() as f64 / f64::from(calls))
}

/// Medians of a burst out and of one in: in Rust, and in C.
fn burst_duel(size: usize, turns: usize, calls: u32) -> [(f64, f64); 2] {
    let options = PacketOptions { buffers: 1024, longest: 2048 };
    let path = |door: &str| std::env::temp_dir().join(format!("telpher-call-{}-{door}", std::process::id()));
    let (rust_path, c_path) = (path("rust"), path("c"));
    let pool = PacketPool::new(options).expect("memory");
    let port = Port::new(&pool, PortOptions::default());
    let _socket = Socket::serve(&port, &rust_path, Role::Server).expect("a socket");
    let mut rust = RustSwitch { port, spare: pool.empty(BURST), burst: pool.empty(BURST), done: pool.empty(BURST) };
    let (mut c_pool, mut c_port, mut c_socket) = (null_mut::<VhostPool>(), null_mut(), null_mut());
    let c_text = CString::new(c_path.to_str().expect("a path in UTF-8")).expect("no zero");
    // SAFETY: out pointers for the handles, a text.
    unsafe {
        assert_eq!(telpher_vhost_pool_new(&raw mut c_pool, options.buffers, options.longest, null_mut(), 0), 0);
        assert_eq!(telpher_vhost_port_new(&raw mut c_port, c_pool, null(), 0, null()), 0);
        assert_eq!(telpher_vhost_socket_new(&raw mut c_socket, c_port, c_text.as_ptr(), 0), 0);
    }
    let none = Packet { data: null_mut(), len: 0, id: 0 };
    let mut c = CSwitch {
        port: c_port,
        burst: [none; BURST],
        count: 0,
        dequeue: black_box(telpher_vhost_try_dequeue_burst),
        submit: black_box(telpher_vhost_submit_enqueue_burst),
        poll: black_box(telpher_vhost_poll_enqueue_completed),
    };
    let mut guests = [&rust_path, &c_path].map(|path| Guest::connect(path, Features::empty()));
    let mut found: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..turns {
        let switches: [&mut dyn Switch; 2] = [&mut rust, &mut c];
        for ((switch, guest), found) in switches.into_iter().zip(&mut guests).zip(&mut found) {
            let nanos = round_trips(switch, guest, size, calls);
            found.iter_mut().zip(nanos).for_each(|(found, nanos)| found.push(nanos));
        }
    }
    drop(guests);
    // SAFETY: each freed once.
    unsafe {
        telpher_vhost_socket_free(c_socket);
        telpher_vhost_port_free(c_port);
        assert_eq!(telpher_vhost_pool_free(c_pool), 0);
    }
    let [[rust_out, rust_in], [c_out, c_in]] = found.map(|door| door.map(median));
    [(rust_out, c_out), (rust_in, c_in)]
}

fn main() {
    // `cargo test` runs benches once to check that they work; nothing is measured then.
    let (turns, calls) = if std::env::args().any(|word| word == "--bench") { (201, 100_000) } else { (3, 100) };
    let begin = Instant::now();
    println!("{:>6} {:>10} {:>10} {:>10}   goal ≤ {GOAL} ns over", "bytes", "Rust ns", "C ns", "over ns");
    for size in SIZES {
        let (rust, c) = duel(size, turns, calls);
        println!("{size:>6} {rust:>10.2} {c:>10.2} {:>10.2}", c - rust);
    }
    let (rust, c) = look_duel(turns, calls);
    println!("{:>6} {rust:>10.2} {c:>10.2} {:>10.2}   a block that is there, three calls in C", "look", c - rust);
    for size in [64, 1518] {
        for ((rust, c), what) in burst_duel(size, turns, calls.div_ceil(1000)).into_iter().zip(["out of", "into"]) {
            println!(
                "{size:>6} {rust:>10.1} {c:>10.1} {:>10.1}   a burst of {BURST} {what} a guest, {:.2} ns over a packet",
                c - rust,
                (c - rust) / BURST as f64
            );
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(600), "numbers of a machine that was asleep are none");
}
