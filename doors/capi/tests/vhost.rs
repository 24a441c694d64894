//! A port as a C program uses it, with a guest at the other end of its socket: ownership of packets at every moment,
//! whatever the caller does wrong.
#![allow(unsafe_code, reason = "calls C's functions as C does")]

mod guest;

use guest::Guest;
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use telpher_capi::*;
use telpher_vhost::layout::Features;

/// The negative errno for a refused packet.
const REFUSED: i32 = -libc::EINVAL;
const NONE: Packet = Packet { data: null_mut(), len: 0, id: 0 };
const BUFFERS: u32 = 512;

/// A pool, a port and its socket.
struct Switch {
    pool: *mut VhostPool,
    port: *mut VhostPort,
    socket: *mut VhostSocket,
    path: PathBuf,
}

fn last() -> String {
    // SAFETY: a C string, valid until the next call.
    unsafe { CStr::from_ptr(telpher_last_error()) }.to_str().unwrap().to_owned()
}

impl Switch {
    fn new(name: &str, dma_queues: &[*mut VhostDmaQueue], device_from: u32) -> Switch {
        let path = std::env::temp_dir().join(format!("telpher-capi-{}-{name}", std::process::id()));
        let (mut pool, mut port, mut socket) = (null_mut(), null_mut(), null_mut());
        let queue = VhostQueue {
            dma_queues: dma_queues.as_ptr().cast(),
            dma_queue_count: u32::try_from(dma_queues.len()).unwrap(),
            device_from,
            in_flight: 0,
            reserved: 0,
            reserved2: [0; 3],
        };
        let text = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: out pointers for the handles, and what each function expects.
        unsafe {
            assert_eq!(telpher_vhost_pool_new(&raw mut pool, BUFFERS, 2048, null_mut(), 0), 0);
            assert_eq!(telpher_vhost_port_new(&raw mut port, pool, &raw const queue, 1, null()), 0);
            assert_eq!(telpher_vhost_socket_new(&raw mut socket, port, text.as_ptr(), 0), 0, "{}", last());
        }
        Switch { pool, port, socket, path }
    }

    fn alloc<const N: usize>(&self) -> [Packet; N] {
        let mut packets = [NONE; N];
        // SAFETY: a pool that is alive, room for that many.
        let got = unsafe { telpher_vhost_alloc_burst(self.pool, packets.as_mut_ptr(), u32::try_from(N).unwrap()) };
        assert_eq!(got, i32::try_from(N).unwrap());
        packets
    }

    fn free(&self, packets: &[Packet]) -> i32 {
        // SAFETY: a pool that is alive, and that many packets.
        unsafe { telpher_vhost_free_burst(self.pool, packets.as_ptr(), u32::try_from(packets.len()).unwrap()) }
    }

    fn submit(&self, packets: &[Packet]) -> i32 {
        let count = u32::try_from(packets.len()).unwrap();
        // SAFETY: a port that is alive, and that many packets.
        unsafe { telpher_vhost_submit_enqueue_burst(self.port, 0, packets.as_ptr(), count) }
    }

    /// The packets that the guest has received, at most `max`.
    fn completed(&self, max: u32) -> Vec<Packet> {
        let mut packets = vec![NONE; max as usize];
        // SAFETY: a port that is alive, and room for that many.
        let count = unsafe { telpher_vhost_poll_enqueue_completed(self.port, 0, packets.as_mut_ptr(), max) };
        packets.truncate(usize::try_from(count).unwrap());
        packets
    }

    fn dequeue(&self, max: u32) -> Vec<Packet> {
        let mut packets = vec![NONE; max as usize];
        // SAFETY: a port that is alive, and room for that many.
        let count = unsafe { telpher_vhost_try_dequeue_burst(self.port, 0, packets.as_mut_ptr(), max) };
        packets.truncate(usize::try_from(count).unwrap());
        packets
    }

    fn state(&self, queue: u32) -> VhostState {
        let mut state = VhostState::default();
        // SAFETY: a port that is alive, and an out pointer for the state.
        assert_eq!(unsafe { telpher_vhost_state_of(self.port, queue, &raw mut state) }, 0);
        state
    }

    fn stats(&self, queue: u32) -> VhostStats {
        let mut stats = VhostStats::default();
        // SAFETY: a port that is alive, and an out pointer for the statistics.
        assert_eq!(unsafe { telpher_vhost_stats_of(self.port, queue, &raw mut stats) }, 0);
        stats
    }

    fn available(&self) -> u32 {
        // SAFETY: a pool that is alive.
        u32::try_from(unsafe { telpher_vhost_pool_available(self.pool) }).unwrap()
    }

    /// Frees everything in an order that leaves the pool without outstanding packets.
    fn end(self) {
        // SAFETY: each handle is freed once, and no thread uses a socket's port then.
        unsafe {
            telpher_vhost_socket_free(self.socket);
            telpher_vhost_port_free(self.port);
            assert_eq!(telpher_vhost_pool_free(self.pool), 0, "{}", last());
        }
    }
}

fn write(packet: &mut Packet, bytes: &[u8]) {
    // SAFETY: the packet is the caller's, with room for that many bytes.
    unsafe { packet.data.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    packet.len = u32::try_from(bytes.len()).unwrap();
}

fn read(packet: &Packet) -> Vec<u8> {
    // SAFETY: the packet is the caller's.
    unsafe { std::slice::from_raw_parts(packet.data, packet.len as usize) }.to_vec()
}

fn until<T>(mut it: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = it() {
            return found;
        }
        std::thread::yield_now();
    }
}

/// Packets of different lengths and bytes, sent around through both of the guest's queues.
fn packets_go_round(switch: &Switch, guest: &mut Guest) {
    for round in 0..20_u8 {
        let sent: Vec<Vec<u8>> = (0..32).map(|n| vec![n ^ round; 60 + 47 * usize::from(n)]).collect();
        assert!(sent.iter().all(|packet| guest.send(packet)));
        let mut burst = Vec::new();
        until(|| {
            burst.extend(switch.dequeue(32));
            (burst.len() == 32).then_some(())
        });
        assert!(burst.iter().map(read).eq(sent.iter().cloned()), "round {round}");
        // Each packet gets a byte in front and loses its last one.
        for packet in &mut burst {
            packet.data = packet.data.wrapping_sub(1);
            // SAFETY: a byte of the headroom of a packet that is ours.
            unsafe { packet.data.write(0xee) };
        }
        let mut from = 0;
        let (mut done, mut came) = (Vec::new(), Vec::new());
        until(|| {
            from += usize::try_from(switch.submit(&burst[from..])).unwrap();
            done.extend(switch.completed(5));
            came.extend(guest.received());
            (done.len() == 32 && came.len() == 32).then_some(())
        });
        let expected = sent.iter().map(|packet| [&[0xee], &packet[..packet.len() - 1]].concat());
        assert!(expected.eq(came), "round {round}");
        // The same buffers in the same order, under other ids: the returned ids are used up.
        assert!(done.iter().zip(&burst).all(|(done, gone)| done.data == gone.data && done.id != gone.id));
        assert_eq!((switch.free(&burst), switch.free(&done)), (REFUSED, 32));
    }
}

#[test]
fn a_packet_has_one_owner_with_cpu_copies() {
    let switch = Switch::new("cpu", &[], 0);
    let mut guest = Guest::connect(&switch.path, Features::empty());
    packets_go_round(&switch, &mut guest);
    let (received, transmitted) = (switch.stats(0), switch.stats(1));
    assert_eq!((received.packets, transmitted.packets, received.by_device), (640, 640, 0));
    assert_eq!((received.drops, transmitted.drops), ([0; 16], [0; 16]));
    assert!(received.bytes == transmitted.bytes && received.calls > 0);
    drop(guest);
    switch.end();
}

#[test]
fn a_packet_has_one_owner_with_dma_queues() {
    for options in [c"runner=inline", c"runner=threaded"] {
        let (mut device, mut dma_queues) = (null_mut(), [null_mut(); 2]);
        // SAFETY: out pointers for the handles, and texts.
        unsafe {
            assert_eq!(telpher_device_open(&raw mut device, c"model:full".as_ptr(), options.as_ptr()), 0);
            for (dma_queue, queue) in dma_queues.iter_mut().zip(0..) {
                assert_eq!(telpher_vhost_dma_queue_new(dma_queue, device, queue, 64), 0, "{}", last());
            }
            telpher_device_close(device);
        }
        let switch = Switch::new("dma_queues", &dma_queues, 256);
        let mut guest = Guest::connect(&switch.path, Features::RING_PACKED);
        packets_go_round(&switch, &mut guest);
        let stats = [0, 1].map(|queue| switch.stats(queue));
        assert!(stats.iter().all(|stats| stats.by_device > 0 && stats.by_device < stats.packets), "{stats:?}");
        let copies = dma_queues.map(|dma_queue| {
            let mut stats = VhostDmaQueueStats::default();
            // SAFETY: a DMA queue that is alive, and an out pointer for the statistics; its handle is freed once.
            unsafe {
                assert_eq!(telpher_vhost_dma_queue_stats_of(dma_queue, &raw mut stats), 0);
                telpher_vhost_dma_queue_free(dma_queue);
            }
            assert_eq!(stats.in_flight, 0);
            stats.copies + stats.redone
        });
        // The CPU copied packets for which no DMA queue had room.
        assert!(
            copies.iter().sum::<u64>() > 0 && copies.iter().sum::<u64>() <= stats.iter().map(|s| s.by_device).sum()
        );
        drop(guest);
        switch.end();
    }
}

#[test]
fn a_burst_stops_before_a_refused_packet() {
    let switch = Switch::new("wrong", &[], 0);
    let mut guest = Guest::connect(&switch.path, Features::empty());
    until(|| (switch.state(0).running == 1).then_some(()));
    let other = Switch::new("other", &[], 0);
    let strange = other.alloc::<200>();
    let mut mine = switch.alloc::<4>();
    (0..4).for_each(|n| write(&mut mine[n], &[u8::try_from(n).unwrap(); 60]));
    let given = switch.alloc::<1>()[0];
    assert_eq!(switch.free(&[given]), 1);
    let far = |by: isize| Packet { data: mine[1].data.wrapping_offset(by), ..mine[1] };
    let wrong = [
        ("zeros", NONE),
        ("given before", given),
        ("of another pool", strange[199]),
        ("another's number", Packet { id: mine[0].id, ..mine[1] }),
        ("an unknown id", Packet { id: u32::MAX, ..mine[1] }),
        ("before its headroom", far(-129)),
        ("behind its buffer", far(2048)),
        ("longer than its buffer", Packet { len: 2049, ..mine[1] }),
        ("as long as can be told", Packet { len: u32::MAX, ..mine[1] }),
    ];
    for (what, packet) in wrong {
        assert_eq!((switch.submit(&[packet, mine[0]]), switch.free(&[packet, mine[0]])), (REFUSED, REFUSED), "{what}");
        assert!(last().contains("packet"), "{what}: {}", last());
    }
    let before = switch.available();
    // The packets in front of it are taken.
    assert_eq!(switch.free(&[mine[3], mine[3], mine[2]]), 1);
    assert_eq!(switch.submit(&[mine[0], NONE, mine[1]]), 1);
    assert_eq!(
        (switch.submit(&mine[..1]), switch.submit(&[mine[1], mine[1]]), switch.available()),
        (REFUSED, 1, before + 1)
    );
    let mut came = Vec::new();
    until(|| {
        // To the pool, at once.
        // SAFETY: a port that is alive.
        assert!(unsafe { telpher_vhost_poll_enqueue_completed(switch.port, 0, null_mut(), 0) } >= 0);
        came.extend(guest.received());
        (came.len() == 2).then_some(())
    });
    assert_eq!((came, switch.available()), (vec![vec![0; 60], vec![1; 60]], before + 3));
    // The pool stays valid while packets are outstanding.
    // SAFETY: the handle stays valid when the call says so.
    assert_eq!(unsafe { telpher_vhost_pool_free(switch.pool) }, -libc::EBUSY);
    assert_eq!((switch.free(&mine[2..3]), other.free(&strange)), (1, 200));
    drop(guest);
    switch.end();
    other.end();
}

#[test]
fn packets_not_taken_stay_with_the_caller() {
    let switch = Switch::new("no-frontend", &[], 0);
    let mine = switch.alloc::<300>();
    // No frontend: no packet is taken, repeatedly.
    for _ in 0..300 {
        assert_eq!((switch.submit(&mine), switch.completed(8).len(), switch.dequeue(8).len()), (0, 0, 0));
    }
    let guest = Guest::connect(&switch.path, Features::empty());
    // The guest has fewer buffers than there are packets.
    let mut taken = 0;
    until(|| {
        taken += usize::try_from(switch.submit(&mine[taken..])).unwrap();
        (taken == 256).then_some(())
    });
    assert_eq!((switch.submit(&mine[256..]), switch.free(&mine[256..]), switch.free(&mine[..256])), (0, 44, REFUSED));
    // Packets that the guest has received, a few at a time; the rest return to the pool when the port is freed.
    assert_eq!(switch.completed(10).iter().map(|packet| switch.free(&[*packet])).sum::<i32>(), 10);
    drop(guest);
    until(|| (switch.state(0).frontend == 0).then_some(()));
    switch.end();
}

#[test]
fn a_virtqueue_reports_its_state() {
    let switch = Switch::new("state", &[], 0);
    assert_eq!(switch.state(0), VhostState::default());
    let mut guest = Guest::connect(&switch.path, Features::IN_ORDER);
    until(|| (switch.state(1).running == 1).then_some(()));
    let state = switch.state(1);
    assert_eq!((state.frontend, state.size, state.broken), (1, 256, vhost_broken::TELPHER_VHOST_WHOLE));
    assert_eq!(Features::from_bits_retain(state.features) & Features::IN_ORDER, Features::IN_ORDER);
    // A packet longer than the pool's buffers has a reason, and a text.
    assert!(guest.send(&[]) && guest.send(&[1; 60]));
    until(|| {
        let came = switch.dequeue(8);
        (switch.free(&came) == 1).then_some(())
    });
    assert_eq!(switch.stats(1).drops[vhost_drop::TELPHER_VHOST_DROP_RUNT as usize], 1);
    // SAFETY: a C string for ever.
    let text = unsafe { CStr::from_ptr(telpher_vhost_drop_text(vhost_drop::TELPHER_VHOST_DROP_RUNT)) };
    assert!(text.to_str().unwrap().contains("shorter than the header") && telpher_vhost_drop_text(11).is_null());
    // A driver that makes more chains available than its ring can hold has broken its ring.
    guest.jump();
    until(|| {
        assert!(switch.dequeue(8).is_empty());
        (switch.state(1).broken == vhost_broken::TELPHER_VHOST_AHEAD).then_some(())
    });
    let mut buffer = [0_u8; 200];
    // SAFETY: a port that is alive, and that many bytes.
    let whole = unsafe { telpher_vhost_broken(switch.port, 1, buffer.as_mut_ptr().cast(), buffer.len()) };
    let text = CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap();
    assert!(text.len() == usize::try_from(whole).unwrap() && text.contains("in a ring of 256"), "{text}");
    let mut state = VhostSocketState::default();
    // SAFETY: a socket that is alive, and an out pointer for the state.
    assert_eq!(unsafe { telpher_vhost_socket_state_of(switch.socket, &raw mut state) }, 0);
    assert_eq!((state.connected, state.sessions, state.refused), (1, 1, 0));
    drop(guest);
    switch.end();
}
