//! Messages whose bytes lie in a file in memory that the receiver maps, too. Which messages are read from there depends
//! on the times that are measured, and on when the file has come; so the tests send until some were.
#![allow(unsafe_code, reason = "maps and unmaps buffers")]

use crate::common::{
    HANG, Node, config, exact, nodes_with, pattern, receive_request, run_until, segments, send_request,
};
use crate::skip::skip;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr;
use std::time::Instant;
use telpher_device::{ModelDevice, ModelOptions};
use telpher_fabric::{Config, Copier, Failure, PeerId, Stats};
use telpher_mover::{Channel, ChannelPolicy};
use telpher_os::SharedFiles;

/// Shorter than two of the parts that decide, so that a read that has begun goes on.
const LEN: usize = 100_000;
/// Bytes of a mapping.
pub(crate) const MAPPED: usize = 512 << 10;

fn mapping() -> Config {
    config(|config| config.mapped_bytes = 16 << 10)
}

/// True if the kernel does not tell which files are mapped, so that all messages go in pieces. Then the test is skipped
/// visibly.
fn is_too_old(test: &str) -> bool {
    let is_too_old = SharedFiles::open().is_err();
    if is_too_old {
        skip(test, "this kernel has no PROCMAP_QUERY (Linux 6.11)");
    }
    is_too_old
}

pub(crate) fn file(name: &str) -> OwnedFd {
    let file = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, MAPPED as u64).unwrap();
    file
}

/// Mapped bytes, and a descriptor of the file: by that a process without special rights opens it again.
pub(crate) struct Bytes(*mut c_void, Option<OwnedFd>);

impl Bytes {
    /// Maps the file at an address, in place of what is there, or anywhere if that is null.
    pub(crate) fn shared(file: &OwnedFd, at: *mut c_void) -> Bytes {
        let fixed = if at.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
        // SAFETY: unused addresses, or those of a value that the caller gives up.
        let at =
            unsafe { mmap(at, MAPPED, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | fixed, file, 0).unwrap() };
        Bytes(at, Some(file.try_clone().unwrap()))
    }

    /// Replaces the pages by private ones.
    fn into_private(mut self) -> Bytes {
        let (at, flags) = (self.0, MapFlags::PRIVATE | MapFlags::FIXED);
        self.1 = None;
        std::mem::forget(self);
        // SAFETY: the addresses of the value that is given up.
        Bytes(unsafe { mmap_anonymous(at, MAPPED, ProtFlags::READ | ProtFlags::WRITE, flags).unwrap() }, None)
    }

    /// Replaces the pages by those of another file.
    fn into_shared(mut self, file: &OwnedFd) -> Bytes {
        let at = self.0;
        self.1 = None;
        std::mem::forget(self);
        Bytes::shared(file, at)
    }

    pub(crate) fn part(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= MAPPED);
        // SAFETY: mapped until the drop; the tests wait for the end of each message before they touch its bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast::<u8>().add(at), len) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: no message uses the bytes any more.
        unsafe { munmap(self.0, MAPPED).unwrap() };
    }
}

/// Sends bytes of the mapping that were just written, receives them, and compares them.
fn exchange(nodes: &mut [Node], bytes: &mut Bytes, tag: u64) {
    exchange_with(nodes, 1, bytes, tag);
}

fn exchange_with(nodes: &mut [Node], to: usize, bytes: &mut Bytes, tag: u64) {
    let (at, room) = (usize::try_from(tag % 5).unwrap() * 4321, if tag.is_multiple_of(7) { LEN / 2 } else { LEN });
    let expected = pattern(LEN, tag);
    bytes.part(at, LEN).copy_from_slice(&expected);
    nodes[to].receive(Some(0), exact(tag), room, tag);
    let sent = send_request(PeerId(to as u64), segments(bytes.part(at, LEN)), Some(tag), tag);
    nodes[0].endpoint.send(sent).unwrap();
    let has_ended = |node: &Node| node.done.iter().any(|end| end.context == tag);
    run_until(nodes, |nodes| [0, to].iter().all(|&node| has_ended(&nodes[node])));
    assert_eq!(nodes[0].end_of(tag).result, Ok(()));
    let result = if room < LEN { Err(Failure::Truncated { excess: (LEN - room) as u64 }) } else { Ok(()) };
    assert_eq!(nodes[to].end_of(tag).result, result);
    assert!(nodes[to].buffers[&tag] == expected[..room], "bytes of message {tag}");
}

/// Sends messages from a mapping until some more were read from it.
fn exchange_until_mapped(nodes: &mut [Node], bytes: &mut Bytes, tag: &mut u64) {
    let (before, start) = (stats(nodes).pulls_mapped, Instant::now());
    while stats(nodes).pulls_mapped < before + 3 {
        assert!(start.elapsed() < HANG, "{:?}", stats(nodes));
        *tag += 1;
        exchange(nodes, bytes, *tag);
    }
}

fn stats(nodes: &[Node]) -> Stats {
    nodes[1].endpoint.statistics()
}

#[test]
fn messages_in_a_shared_mapping_are_read_with_one_copy() {
    if is_too_old("messages_in_a_shared_mapping_are_read_with_one_copy") {
        return;
    }
    let mut nodes = nodes_with(2, &mapping(), Copier::cpu);
    let mut bytes = Bytes::shared(&file("telpher-fabric-one"), ptr::null_mut());
    let mut tag = 0;
    exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
    // Several files at a time; more than are shown at once.
    let mut many: Vec<Bytes> =
        (0..11).map(|number| Bytes::shared(&file(&format!("telpher-fabric-{number}")), ptr::null_mut())).collect();
    for bytes in &mut many {
        exchange_until_mapped(&mut nodes, bytes, &mut tag);
    }
    assert_eq!(stats(&nodes).pulls_refused, 0);
}

#[test]
fn private_memory_is_not_read() {
    let mut nodes = nodes_with(2, &mapping(), Copier::cpu);
    let mut bytes = Bytes::shared(&file("telpher-fabric-private"), ptr::null_mut()).into_private();
    (1..=40).for_each(|tag| exchange(&mut nodes, &mut bytes, tag));
    let Stats { pulls, pulls_mapped, pulls_refused, .. } = stats(&nodes);
    assert_eq!((pulls, pulls_mapped, pulls_refused), (0, 0, 0));
}

#[test]
fn the_bytes_are_those_that_are_mapped_when_a_message_is_sent() {
    if is_too_old("the_bytes_are_those_that_are_mapped_when_a_message_is_sent") {
        return;
    }
    let mut nodes = nodes_with(2, &mapping(), Copier::cpu);
    let (one, other) = (file("telpher-fabric-before"), file("telpher-fabric-after"));
    let mut bytes = Bytes::shared(&one, ptr::null_mut());
    let mut tag = 0;
    for _ in 0..3 {
        exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
        // The same addresses show another file, then private memory, then the first file.
        bytes = bytes.into_shared(&other);
        exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
        bytes = bytes.into_private();
        for _ in 0..12 {
            tag += 1;
            exchange(&mut nodes, &mut bytes, tag);
        }
        bytes = bytes.into_shared(&one);
    }
    assert_eq!(stats(&nodes).pulls_refused, 0);
}

#[test]
fn a_file_that_the_sender_has_unmapped_is_given_back() {
    if is_too_old("a_file_that_the_sender_has_unmapped_is_given_back") {
        return;
    }
    let mut nodes = nodes_with(2, &mapping(), Copier::cpu);
    let name = "telpher-fabric-given-back";
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().matches(name).count();
    let mut bytes = Bytes::shared(&file(name), ptr::null_mut());
    let mut tag = 0;
    exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
    assert_eq!(mappings(), 2, "the sender's and the receiver's");
    drop(bytes);
    let mut bytes = Bytes::shared(&file("telpher-fabric-next"), ptr::null_mut());
    let start = Instant::now();
    while mappings() > 0 {
        assert!(start.elapsed() < HANG, "it is still mapped");
        tag += 1;
        exchange(&mut nodes, &mut bytes, tag);
    }
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut links = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    assert!(!links.any(|link| link.to_string_lossy().contains(name)), "its descriptor is closed");
}

#[test]
fn all_connections_have_one_descriptor_of_a_file() {
    if is_too_old("all_connections_have_one_descriptor_of_a_file") {
        return;
    }
    let mut nodes = nodes_with(4, &mapping(), Copier::cpu);
    let name = "telpher-fabric-many-peers";
    let mut bytes = Bytes::shared(&file(name), ptr::null_mut());
    let (mut tag, start) = (0, Instant::now());
    for to in 1..4 {
        while nodes[to].endpoint.statistics().pulls_mapped == 0 {
            assert!(start.elapsed() < HANG, "{:?}", nodes[to].endpoint.statistics());
            tag += 1;
            exchange_with(&mut nodes, to, &mut bytes, tag);
        }
    }
    let count = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains(name)).count()
    };
    // A receiver closes the descriptor that it was sent a moment after it has mapped the file.
    while count() != 2 {
        assert!(start.elapsed() < HANG, "{} descriptors, not the program's and one more", count());
    }
}

#[test]
fn a_file_that_has_lost_its_pages_fails_as_the_buffer_does() {
    if is_too_old("a_file_that_has_lost_its_pages_fails_as_the_buffer_does") {
        return;
    }
    let mut nodes = nodes_with(2, &mapping(), Copier::cpu);
    let shrinking = file("telpher-fabric-shrinking");
    let mut bytes = Bytes::shared(&shrinking, ptr::null_mut());
    let mut tag = 0;
    exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
    ftruncate(&shrinking, 0).unwrap();
    let start = Instant::now();
    while stats(&nodes).pulls_refused == 0 {
        assert!(start.elapsed() < HANG, "{:?}", stats(&nodes));
        tag += 1;
        nodes[1].receive(Some(0), exact(tag), LEN, tag);
        // The bytes are not touched here.
        let request = send_request(PeerId(1), segments(bytes.part(0, LEN)), Some(tag), tag);
        nodes[0].endpoint.send(request).unwrap();
        run_until(&mut nodes, |nodes| nodes.iter().all(|node| node.done.iter().any(|end| end.context == tag)));
        assert!(matches!(nodes[0].end_of(tag).result, Err(Failure::BadBuffer { .. })));
        assert_eq!(nodes[1].end_of(tag).result, Err(Failure::SenderFailed));
    }
    let mut bytes = Bytes::shared(&file("telpher-fabric-whole"), ptr::null_mut());
    exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
}

#[test]
fn a_file_that_grows_is_shown_again() {
    if is_too_old("a_file_that_grows_is_shown_again") {
        return;
    }
    let mut nodes = nodes_with(2, &mapping(), Copier::cpu);
    let growing = memfd_create("telpher-fabric-growing", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&growing, 128 << 10).unwrap();
    let mut bytes = Bytes::shared(&growing, ptr::null_mut());
    let (mut tag, start) = (0, Instant::now());
    while stats(&nodes).pulls_mapped == 0 {
        assert!(start.elapsed() < HANG, "{:?}", stats(&nodes));
        // The messages with these tags begin at the start of the file.
        tag += 5;
        exchange(&mut nodes, &mut bytes, tag);
    }
    ftruncate(&growing, MAPPED as u64).unwrap();
    exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
}

#[test]
fn a_device_reads_them_with_one_copy() {
    if is_too_old("a_device_reads_them_with_one_copy") {
        return;
    }
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let copier =
        || Copier::device(Channel::new(device.portal("wq0.0").unwrap(), 64, ChannelPolicy::default()).unwrap(), 4096);
    let mut nodes = nodes_with(2, &mapping(), copier);
    let mut bytes = Bytes::shared(&file("telpher-fabric-device"), ptr::null_mut());
    let mut tag = 0;
    exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
    let Stats { pulls, pulls_mapped, pieces_by_device, .. } = stats(&nodes);
    assert!(pulls == pulls_mapped && pieces_by_device > 0, "{:?}", stats(&nodes));
}

#[test]
fn a_device_with_room_for_one_part_reads_all_of_them() {
    if is_too_old("a_device_with_room_for_one_part_reads_all_of_them") {
        return;
    }
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let copier =
        || Copier::device(Channel::new(device.portal("wq0.0").unwrap(), 1, ChannelPolicy::default()).unwrap(), 4096);
    let mut nodes = nodes_with(2, &mapping(), copier);
    let mut bytes = Bytes::shared(&file("telpher-fabric-one-part"), ptr::null_mut());
    let (mut tag, mut mapped, start) = (0, 0, Instant::now());
    while mapped < 3 {
        assert!(start.elapsed() < HANG, "{:?}", stats(&nodes));
        let before = stats(&nodes);
        tag += 1;
        exchange(&mut nodes, &mut bytes, tag);
        let after = stats(&nodes);
        if after.pulls_mapped > before.pulls_mapped {
            mapped += 1;
            assert_eq!(after.pieces_by_cpu, before.pieces_by_cpu, "the CPU waits for the device");
        }
    }
}

#[test]
fn a_buffer_that_is_not_mapped_fails_as_without_a_shared_mapping() {
    if is_too_old("a_buffer_that_is_not_mapped_fails_as_without_a_shared_mapping") {
        return;
    }
    let mut nodes = nodes_with(2, &mapping(), Copier::cpu);
    let mut bytes = Bytes::shared(&file("telpher-fabric-target"), ptr::null_mut());
    let mut tag = 0;
    exchange_until_mapped(&mut nodes, &mut bytes, &mut tag);
    for _ in 0..24 {
        tag += 1;
        let into = crate::common::unmapped(LEN as u64);
        nodes[1].endpoint.receive(receive_request(Some(PeerId(0)), exact(tag), into, tag)).unwrap();
        let request = send_request(PeerId(1), segments(bytes.part(0, LEN)), Some(tag), tag);
        nodes[0].endpoint.send(request).unwrap();
        run_until(&mut nodes, |nodes| nodes.iter().all(|node| node.done.iter().any(|end| end.context == tag)));
        assert_eq!(nodes[1].end_of(tag).result, Err(Failure::BadBuffer { address: 4096 }));
    }
}
