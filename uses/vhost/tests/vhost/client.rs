//! rust-vmm's frontend, which Cloud Hypervisor uses and which was written independently of this crate: its requests are
//! carried out.

use crate::frontend::wire::SocketPath;
use crate::frontend::{Guest, HEADER, MRG, Switch};
use rustix::fs::MemfdFlags;
use std::os::fd::{AsRawFd, OwnedFd};
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{MockDriver, MockGuest};
use telpher_vhost::{MOST_REGIONS, Region, Role, Socket};
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const LAYOUTS: [u64; 2] = [MRG, MRG | Features::RING_PACKED.bits()];

fn region(region: Region, file: &OwnedFd) -> VhostUserMemoryRegionInfo {
    let Region { guest, len, user, offset } = region;
    let file = file.as_raw_fd();
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: len,
        userspace_addr: user,
        mmap_offset: offset,
        mmap_handle: file,
    }
}

/// A client that has finished the handshake.
fn hello(place: &SocketPath, features: u64) -> Frontend {
    let mut client = Frontend::connect(&place.0, 2).unwrap();
    client.set_owner().unwrap();
    let offered = client.get_features().unwrap();
    assert_eq!(offered & features, features);
    let protocol = client.get_protocol_features().unwrap();
    let wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::STATUS;
    assert!(protocol.contains(wanted), "{protocol:?}");
    client.set_protocol_features(wanted).unwrap();
    // From now on each request is acknowledged.
    client.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    client.set_features(features).unwrap();
    client
}

/// Sets a ring up and starts it; returns the eventfd for calls to its driver.
fn start(client: &mut Frontend, ring: usize, driver: &MockDriver, log: Option<u64>) -> EventFd {
    let setup = driver.setup();
    client.set_vring_num(ring, setup.size).unwrap();
    client.set_vring_base(ring, setup.base.available).unwrap();
    client.set_vring_addr(ring, &place_of(driver, log)).unwrap();
    let (call, kick) = (EventFd::new(EFD_NONBLOCK).unwrap(), EventFd::new(EFD_NONBLOCK).unwrap());
    client.set_vring_call(ring, &call).unwrap();
    client.set_vring_kick(ring, &kick).unwrap();
    client.set_vring_enable(ring, true).unwrap();
    call
}

fn place_of(driver: &MockDriver, log_addr: Option<u64>) -> VringConfigData {
    let setup = driver.setup();
    VringConfigData {
        queue_max_size: setup.size,
        queue_size: setup.size,
        flags: u32::from(log_addr.is_some()),
        desc_table_addr: setup.addresses.descriptors,
        used_ring_addr: setup.addresses.device,
        avail_ring_addr: setup.addresses.driver,
        log_addr,
    }
}

fn until(mut it: impl FnMut() -> bool) {
    while !it() {
        std::thread::yield_now();
    }
}

#[test]
fn an_independent_frontend_is_served() {
    for features in LAYOUTS {
        let (place, switch) = (SocketPath::new("client"), Switch::new());
        let _socket = Socket::serve(&switch.port, &place.0, Role::Server).unwrap();
        let mut guest = Guest::new(features);
        let mut client = hello(&place, features);
        assert_eq!(client.get_queue_num().unwrap(), 2);
        assert_eq!(client.get_max_mem_slots().unwrap(), MOST_REGIONS as u64);
        client.set_mem_table(&[region(guest.memory.region(), guest.memory.file())]).unwrap();
        let call = start(&mut client, 0, &guest.receive, None);
        start(&mut client, 1, &guest.transmit, None);

        guest.say(b"from the guest");
        assert_eq!(switch.packets(), [b"from the guest"]);
        let at = guest.listen();
        assert_eq!(switch.send(&[b"to the guest"]), 1);
        assert_eq!(guest.heard(at), b"to the guest");
        assert!(call.read().is_ok_and(|calls| calls > 0));

        // Memory that is added and removed.
        let more = MockGuest::new(1 << 20);
        let far = Region { guest: 1 << 40, user: 1 << 50, ..more.region() };
        let buffer = more.region().guest + 4096;
        more.write(buffer + HEADER as u64, b"from afar");
        client.add_mem_region(&region(far, more.file())).unwrap();
        guest.transmit.offer(&[(far.guest + 4096, u32::try_from(HEADER).unwrap() + 9)]).unwrap();
        assert_eq!(switch.packets(), [b"from afar"]);
        // It is there already, and stays there once; the same region of another file is refused.
        client.add_mem_region(&region(far, more.file())).unwrap();
        assert!(client.add_mem_region(&region(far, guest.memory.file())).is_err());
        client.remove_mem_region(&region(far, more.file())).unwrap();
        guest.transmit.offer(&[(far.guest + 4096, 100)]).unwrap();
        assert!(switch.packets().is_empty());
        client.remove_mem_region(&region(far, more.file())).unwrap();

        // A disabled queue, and a stopped one.
        client.set_vring_enable(0, false).unwrap();
        guest.listen();
        assert_eq!(switch.send(&[b"no call"]), 0);
        client.set_vring_enable(0, true).unwrap();
        assert_eq!(switch.send(&[b"heard"]), 1);
        let packed = features & Features::RING_PACKED.bits() != 0;
        let at = |place: u32| if packed { (0x8000 | place) * 0x1_0001 } else { place };
        assert_eq!(client.get_vring_base(1).unwrap(), at(3));
        client.reset_device().unwrap();
        assert!(!switch.port.is_running(0));
    }
}

#[test]
fn the_inflight_record_outlives_its_backend() {
    for features in LAYOUTS {
        let mut guest = Guest::new(features);
        let asked = VhostUserInflight { num_queues: 2, queue_size: 64, ..VhostUserInflight::default() };
        let mut record = None;
        for round in 0..3_u8 {
            let (place, switch) = (SocketPath::new(&format!("record-{round}")), Switch::new());
            let _socket = Socket::serve(&switch.port, &place.0, Role::Server).unwrap();
            let mut client = hello(&place, features);
            let (description, file) = record.get_or_insert_with(|| client.get_inflight_fd(&asked).unwrap());
            assert!(description.mmap_size > 0 && description.num_queues == 2);
            client.set_inflight_fd(description, file.as_raw_fd()).unwrap();
            client.set_mem_table(&[region(guest.memory.region(), guest.memory.file())]).unwrap();
            start(&mut client, 1, &guest.transmit, None);
            for number in 0..40 {
                guest.say(&[round, number]);
                assert_eq!(switch.packets(), [[round, number]]);
                assert_eq!(guest.transmit.collect().len(), 1);
            }
        }
        // More rings than this backend has are refused.
        let (place, switch) = (SocketPath::new("record"), Switch::new());
        let _socket = Socket::serve(&switch.port, &place.0, Role::Server).unwrap();
        let mut client = hello(&place, features);
        let giant = VhostUserInflight { num_queues: u16::MAX, queue_size: u16::MAX, ..VhostUserInflight::default() };
        assert!(client.get_inflight_fd(&giant).is_err());
    }
}

#[test]
fn writes_are_marked_in_an_independent_frontends_log() {
    for features in LAYOUTS {
        let (place, switch) = (SocketPath::new("log"), Switch::new());
        let socket = Socket::serve(&switch.port, &place.0, Role::Server).unwrap();
        let mut guest = Guest::new(features);
        let mut client = hello(&place, features);
        client.set_mem_table(&[region(guest.memory.region(), guest.memory.file())]).unwrap();
        start(&mut client, 0, &guest.receive, None);
        let memory = guest.memory.region();
        let bytes = (memory.guest + memory.len).div_ceil(4096 * 8);
        let log = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&log, bytes + 100).unwrap();
        let region = VhostUserDirtyLogRegion { mmap_size: bytes, mmap_offset: 100, mmap_handle: log.as_raw_fd() };
        // This frontend waits for a reply with the log's own fields, and hangs without it.
        client.set_log_base(0, Some(region)).unwrap();
        client.set_features(features | Features::LOG_ALL.bits()).unwrap();
        let used = guest.receive.parts().device;
        client.set_vring_addr(0, &place_of(&guest.receive, Some(used))).unwrap();
        let at = guest.listen();
        assert_eq!(switch.send(&[b"logged"]), 1);
        assert_eq!(guest.heard(at), b"logged");
        let mut marks = vec![0; usize::try_from(bytes).unwrap()];
        rustix::io::pread(&log, &mut marks, 100).unwrap();
        let ring = if features & Features::RING_PACKED.bits() == 0 { used } else { guest.receive.parts().descriptors };
        for address in [at, ring] {
            let page = address / 4096;
            assert_eq!(marks[usize::try_from(page / 8).unwrap()] >> (page % 8) & 1, 1, "{address:#x}");
        }
        drop(client);
        until(|| !socket.state().connected);
    }
}
