//! Windows between processes, at the host: what a guest may ask for, whatever it says of itself.
//!
//! The guests here are address spaces of this process. The memory that they grant is a region of it, accessed through
//! its file only, as the host does.

#[path = "host/guest.rs"]
mod guest;

use guest::{Guest, Opening, Scratch, packet};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, recv};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use telpher_vdev::hardware::Hardware;
use telpher_vdev::host::{Behaviour, FileInfo, Host, Listener, Server};
use telpher_vdev::kernel::{Abi, Kernel};
use telpher_vdev::tree::{Caller, Errno};
use telpher_vdev_wire::file_memory::{Statistics, TraceEntry};
use telpher_vdev_wire::message::{
    Kind, Report, SETTLE_AT_START, WINDOW_BYTES, WINDOW_OWN, WINDOW_SECRET, WINDOW_USABLE, WindowAccess, WindowCreate,
    WindowEntry, WindowFault, WindowUpdate,
};
use zerocopy::{FromBytes, IntoBytes};

const SHARED: &str = "/dev/dsa/wq0.0";
const PAGE: u64 = 4096;
/// Flags of a window.
const READ: u32 = 1;
const WRITE: u32 = 2;
const CHECKED: u32 = 4;
const BY_OFFSET: u32 = 8;

#[derive(Debug)]
struct Ignoring;

impl Listener for Ignoring {
    fn opened(&self, _: &FileInfo) {}
    fn entry(&self, _: &FileInfo, _: &TraceEntry) {}
    fn released(&self, _: &FileInfo, _: &Statistics) {}
}

struct Running {
    host: Arc<Host>,
    guest: Guest,
    scratch: Scratch,
    _server: Server,
}

impl Running {
    fn on(hardware: &str, name: &str, idpt: bool) -> Running {
        let scratch = Scratch::new(name);
        let kernel = Kernel::new(&Hardware::from_name(hardware).unwrap(), Abi::V6_6, true).unwrap();
        let run_name = format!("test-telpher-{name}-{}", std::process::id());
        let host =
            Host::new(kernel, Behaviour { idpt, ..Behaviour::default() }, Arc::new(Ignoring), &run_name).unwrap();
        let socket = scratch.0.join("socket");
        let server = host.serve(&socket).unwrap();
        Running { host, guest: Guest { socket, space: 1 }, scratch, _server: server }
    }

    fn in_space(&self, space: u64) -> Guest {
        Guest { space, ..self.guest.clone() }
    }
}

/// This process's memory as a file.
fn memory() -> File {
    File::options().read(true).write(true).open("/proc/self/mem").unwrap()
}

fn create(guest: &Guest, open: u64, create: &WindowCreate) -> Result<(u64, OwnedFd), Errno> {
    let memory = memory();
    let (handle, _, descriptors) = guest.ask_with(Kind::WindowCreate, open, create.as_bytes(), &[memory.as_fd()])?;
    Ok((handle, descriptors.into_iter().next().unwrap()))
}

fn secret(window: &OwnedFd) -> [u8; WINDOW_SECRET] {
    let mut secret = [0; WINDOW_SECRET];
    recv(window, &mut secret, RecvFlags::PEEK).unwrap();
    secret
}

/// The window's number, which the name of its socket contains.
fn number(window: &OwnedFd) -> u64 {
    let name = SocketAddrUnix::try_from(rustix::net::getsockname(window).unwrap()).unwrap();
    let name = String::from_utf8(name.abstract_name().unwrap().to_vec()).unwrap();
    let (_, rest) = name.split_once("/window/").unwrap();
    rest.split_once('/').unwrap().0.parse().unwrap()
}

fn attach(guest: &Guest, open: u64, secret: &[u8]) -> Result<u64, Errno> {
    guest.ask(Kind::WindowAttach, open, 0, "", secret).map(|(handle, ..)| handle)
}

fn read(guest: &Guest, open: u64, access: &WindowAccess) -> Result<Vec<u8>, Errno> {
    guest.ask(Kind::WindowRead, open, 0, "", access.as_bytes()).map(|(_, data, _)| data)
}

fn write(guest: &Guest, open: u64, access: &WindowAccess, bytes: &[u8]) -> Result<u64, Errno> {
    guest.ask(Kind::WindowWrite, open, 0, "", &[access.as_bytes(), bytes].concat()).map(|(written, ..)| written)
}

fn listed(guest: &Guest, open: u64) -> Vec<WindowEntry> {
    let (_, data, _) = guest.ask(Kind::Windows, open, 0, "", &[]).unwrap();
    let entries = data.as_chunks::<{ size_of::<WindowEntry>() }>().0.iter();
    entries.map(|bytes| WindowEntry::read_from_bytes(bytes).unwrap()).collect()
}

/// The entry with a handle as a guest sees it.
fn entry(guest: &Guest, open: u64, handle: u32) -> WindowEntry {
    listed(guest, open).into_iter().find(|entry| u32::from(entry.handle) == handle).unwrap()
}

fn update(guest: &Guest, open: u64, update: &WindowUpdate) -> Result<(), Errno> {
    guest.ask(Kind::WindowUpdate, open, 0, "", update.as_bytes()).map(drop)
}

/// A region of this process's memory that no code refers to.
struct Region {
    address: u64,
    bytes: usize,
}

impl Region {
    fn new(bytes: usize) -> Region {
        let leaked: &'static mut [u8] = vec![0; bytes].leak();
        Region { address: leaked.as_mut_ptr().expose_provenance() as u64, bytes }
    }

    fn contents(&self) -> Vec<u8> {
        let mut contents = vec![0; self.bytes];
        memory().read_exact_at(&mut contents, self.address).unwrap();
        contents
    }
}

#[test]
fn a_run_without_the_option_knows_no_windows() {
    let run = Running::on("v2-full-1", "windows-off", false);
    let file = run.guest.open(SHARED).unwrap();
    let open = file.opened;
    assert_eq!(open.id_cap, 0);
    assert_eq!(create(&run.guest, open.open, &WindowCreate::default()).map(drop), Err(Errno::NOTTY));
    let asked = |kind| run.guest.ask(kind, open.open, 0, "", &[0; 64]).map(drop);
    for kind in [Kind::WindowAttach, Kind::Windows, Kind::WindowRead, Kind::WindowUpdate, Kind::WindowSettle] {
        assert_eq!(asked(kind), Err(Errno::NOTTY), "{kind:?}");
    }
}

#[test]
fn a_device_without_windows_supports_none() {
    let run = Running::on("spr-1", "windows-none", true);
    let file = run.guest.open(SHARED).unwrap();
    let refused = create(&run.guest, file.opened.open, &WindowCreate { flags: READ, ..WindowCreate::default() });
    assert_eq!(refused.map(drop), Err(Errno::OPNOTSUPP));
}

/// What a guest says of itself, or sends, gives it nothing.
#[test]
fn hostile_requests_are_refused_and_do_not_affect_the_next_guest() {
    let run = Running::on("v2-full-1", "windows-hostile", true);
    let Running { guest, .. } = &run;
    let region = Region::new(4096);
    let file = guest.open(SHARED).unwrap();
    let open = file.opened.open;
    let flags = READ | WRITE | CHECKED;
    let fine = WindowCreate { base: region.address, size: 4096, kind: 1, flags };
    let (handle, window) = create(guest, open, &fine).unwrap();
    let handle = u32::try_from(handle).unwrap();
    attach(guest, open, &secret(&window)).unwrap();
    let generation = entry(guest, open, handle).generation;
    let access = WindowAccess { address: region.address, generation, len: 8, handle };
    assert_eq!(write(guest, open, &access, b"8 bytes!"), Ok(8));
    // Another address space names the file; an unknown file; no address space.
    let stranger = run.in_space(2);
    assert_eq!(read(&stranger, open, &access), Err(Errno::PERM));
    assert_eq!(read(&run.in_space(0), open, &access), Err(Errno::PERM));
    assert_eq!(read(guest, 999, &access), Err(Errno::BADF));
    assert_eq!(create(&stranger, open, &fine).map(drop), Err(Errno::PERM));
    // Another address space with a file of its own: no handle, no secret, nothing listed.
    let strangers = stranger.open(SHARED).unwrap();
    let other = strangers.opened.open;
    for handle in (0..300).chain([u32::MAX]) {
        assert_eq!(read(&stranger, other, &WindowAccess { handle, ..access }), Err(Errno::ACCESS));
        assert_eq!(write(&stranger, other, &WindowAccess { handle, ..access }, b"8 bytes?"), Err(Errno::ACCESS));
    }
    for guess in [&[0; WINDOW_SECRET][..], &[], &[1; 15], &[1; 17]] {
        assert_eq!(attach(&stranger, other, guess), Err(Errno::INVAL));
    }
    assert!(listed(&stranger, other).is_empty());
    let moved = WindowUpdate { base: region.address, size: 1, generation, handle, flags };
    assert_eq!(update(&stranger, other, &moved), Err(Errno::ACCESS));
    assert_eq!(update(guest, open, &WindowUpdate { generation: generation + (1 << 32), ..moved }), Err(Errno::ACCESS));
    assert_eq!(update(guest, open, &WindowUpdate { flags: 0x17, ..moved }), Err(Errno::INVAL));
    assert_eq!(update(guest, open, &WindowUpdate { base: 2, size: u64::MAX, ..moved }), Err(Errno::INVAL));
    // Lengths that do not fit.
    let longest = WindowAccess { len: u32::try_from(WINDOW_BYTES).unwrap(), ..access };
    assert_eq!(read(guest, open, &WindowAccess { len: longest.len + 1, ..access }), Err(Errno::INVAL));
    assert_eq!(read(guest, open, &WindowAccess { len: u32::MAX, ..access }), Err(Errno::INVAL));
    assert_eq!(read(guest, open, &longest), Err(Errno::ACCESS), "longer than the window");
    assert_eq!(write(guest, open, &access, b"7 bytes"), Err(Errno::INVAL));
    assert_eq!(guest.ask(Kind::WindowRead, open, 0, "", &[0; 15]).map(drop), Err(Errno::INVAL));
    // A request to create with no descriptor, with another file, and with two.
    let (null, own) = (File::open("/dev/null").unwrap(), memory());
    let with = |descriptors: &[BorrowedFd<'_>]| {
        guest.ask_with(Kind::WindowCreate, open, fine.as_bytes(), descriptors).map(drop)
    };
    assert_eq!(guest.ask(Kind::WindowCreate, open, 0, "", fine.as_bytes()).map(drop), Err(Errno::INVAL));
    assert_eq!(with(&[null.as_fd()]), Err(Errno::INVAL));
    // The kernel drops what has no room; the first one counts.
    assert_eq!(with(&[null.as_fd(), own.as_fd()]), Err(Errno::INVAL));
    // A descriptor in a request that wants none is closed.
    assert!(guest.ask_with(Kind::Windows, open, &[], &[own.as_fd()]).is_ok());
    // The window is as before.
    assert_eq!(read(guest, open, &access).unwrap(), b"8 bytes!");
    assert_eq!(region.contents()[..8], *b"8 bytes!");
}

#[test]
fn a_holder_that_reads_the_secret_away_does_not_keep_the_owner_from_closing() {
    let run = Running::on("v2-full-1", "windows-drained", true);
    let Running { guest: owner, .. } = &run;
    let region = Region::new(4096);
    let file = owner.open(SHARED).unwrap();
    let create_window = WindowCreate { base: region.address, size: 4096, kind: 0, flags: READ | CHECKED };
    let (handle, window) = create(owner, file.opened.open, &create_window).unwrap();
    let submitter = run.in_space(2);
    let submitters = submitter.open(SHARED).unwrap();
    let theirs = submitters.opened.open;
    attach(&submitter, theirs, &secret(&window)).unwrap();
    let handle = u32::try_from(handle).unwrap();
    let generation = entry(&submitter, theirs, handle).generation;
    let access = WindowAccess { address: region.address, generation, len: 8, handle };
    assert_eq!(read(&submitter, theirs, &access).map(|bytes| bytes.len()), Ok(8));
    // All holders share the socket, so the owner cannot read the secret any more.
    let mut taken = [0; WINDOW_SECRET];
    recv(&window, &mut taken, RecvFlags::empty()).unwrap();
    owner.ask(Kind::WindowClose, 0, number(&window), "", &[]).unwrap();
    assert_eq!(read(&submitter, theirs, &access), Err(Errno::ACCESS));
}

#[test]
fn pages_are_brought_in_within_the_window_only() {
    let run = Running::on("v2-full-1", "windows-fault", true);
    let Running { guest, .. } = &run;
    let region = Region::new(3 * 4096);
    let open = guest.open(SHARED).unwrap();
    let create_window =
        |flags, base, size| create(guest, open.opened.open, &WindowCreate { base, size, kind: 0, flags }).unwrap().1;
    let window = create_window(READ | CHECKED, region.address, 3 * PAGE);
    let fault = |window: &OwnedFd, offset, len, write| {
        let fault = WindowFault { secret: secret(window), offset, len, write, reserved: 0 };
        guest.ask(Kind::WindowFault, 0, 0, "", fault.as_bytes()).map(drop)
    };
    assert_eq!(fault(&window, 0, 3 * PAGE, 0), Ok(()));
    assert_eq!(fault(&window, 3 * PAGE - 1, 1, 0), Ok(()));
    assert_eq!(fault(&window, 0, PAGE, 1), Err(Errno::ACCESS), "for reading only");
    assert_eq!(fault(&window, 3 * PAGE, 1, 0), Err(Errno::ACCESS));
    assert_eq!(fault(&window, u64::MAX, 1, 0), Err(Errno::ACCESS));
    assert_eq!(fault(&window, 1, u64::MAX, 0), Err(Errno::ACCESS));
    assert_eq!([fault(&window, 0, 0, 0), fault(&window, 0, 1, 2)], [Err(Errno::INVAL); 2]);
    // Page 0 is not mapped.
    let absent = create_window(READ | CHECKED, 0, PAGE);
    assert_eq!(fault(&absent, 0, 1, 0), Err(Errno::FAULT));
}

/// Requests of random bytes, by address spaces that have been granted nothing: the host goes on, and no byte changes.
#[test]
fn mangled_requests_about_windows_change_nothing() {
    let run = Running::on("v2-full-1", "windows-mangled", true);
    let Running { guest, .. } = &run;
    let region = Region::new(4096);
    let file = guest.open(SHARED).unwrap();
    let open = file.opened.open;
    let fine = WindowCreate { base: region.address, size: 4096, kind: 1, flags: READ | WRITE | CHECKED };
    let (handle, window) = create(guest, open, &fine).unwrap();
    attach(guest, open, &secret(&window)).unwrap();
    let handle = u32::try_from(handle).unwrap();
    let generation = entry(guest, open, handle).generation;
    let kinds = [
        Kind::WindowCreate,
        Kind::WindowAttach,
        Kind::Windows,
        Kind::WindowRead,
        Kind::WindowWrite,
        Kind::WindowTouch,
        Kind::WindowUpdate,
        Kind::WindowFault,
        Kind::WindowSettle,
        Kind::WindowClose,
    ];
    let mut random = telpher_os::Random::new(7);
    let mut below = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap();
    let stranger = run.in_space(2);
    let strangers = stranger.open(SHARED).unwrap();
    for round in 0..1000 {
        let kind = kinds[below(kinds.len())];
        let files = [open, strangers.opened.open, 999];
        let mut data = vec![0; below(80)];
        data.iter_mut().for_each(|byte| *byte = u8::try_from(below(256)).unwrap());
        let len = u32::try_from(below(64)).unwrap();
        let access = WindowAccess { address: region.address, generation, len, handle: 0 };
        if below(2) == 0 && data.len() > size_of::<WindowAccess>() {
            data[..size_of::<WindowAccess>()].copy_from_slice(access.as_bytes());
        }
        // Not the argument of a program that starts: all guests are programs of this process.
        let mut bytes = packet(2, kind, files[below(3)], [0, 2, 3][below(3)], "", &data);
        for _ in 0..below(4) {
            let at = below(bytes.len());
            // The space stays: a number of 64 random bits is not found by chance.
            if !(8..16).contains(&at) {
                bytes[at] = u8::try_from(below(256)).unwrap();
            }
        }
        bytes.truncate(bytes.len() - below(bytes.len().min(20)));
        let answered = stranger.raw(&bytes);
        assert!(answered.is_some() || bytes.is_empty(), "round {round}");
    }
    assert_eq!(region.contents(), vec![0; 4096]);
    let access = WindowAccess { address: region.address, generation, len: 4, handle };
    assert_eq!(write(guest, open, &access, b"fine"), Ok(4));
}

/// An access names the window that its descriptor has looked up, not the one that has its handle meanwhile.
#[test]
fn an_access_for_a_former_window_is_refused() {
    let run = Running::on("v2-full-1", "windows-former", true);
    let Running { guest, .. } = &run;
    let region = Region::new(2 * 4096);
    let open = guest.open(SHARED).unwrap();
    let open = open.opened.open;
    let create_at = |base| {
        let create_it = WindowCreate { base, size: PAGE, kind: 0, flags: READ | WRITE | CHECKED | BY_OFFSET };
        let (handle, window) = create(guest, open, &create_it).unwrap();
        attach(guest, open, &secret(&window)).unwrap();
        (u32::try_from(handle).unwrap(), window)
    };
    let (handle, window) = create_at(region.address);
    let first = entry(guest, open, handle).generation;
    let access = |generation| WindowAccess { address: 0, generation, len: 1, handle };
    assert_eq!(write(guest, open, &access(first), b"1"), Ok(1));
    // The window is moved.
    let flags = READ | WRITE | CHECKED | BY_OFFSET;
    let moved = WindowUpdate { base: region.address + PAGE, size: PAGE, generation: first, handle, flags };
    assert_eq!(update(guest, open, &moved), Ok(()));
    assert_eq!(write(guest, open, &access(first), b"2"), Err(Errno::ACCESS));
    assert_eq!(read(guest, open, &access(first)), Err(Errno::ACCESS));
    let second = entry(guest, open, handle).generation;
    assert_eq!(write(guest, open, &access(second), b"3"), Ok(1));
    // Another window gets the handle.
    drop(window);
    let (again, _window) = create_at(region.address);
    assert_eq!(again, handle);
    for former in [first, second, 0, u64::MAX] {
        assert_eq!(write(guest, open, &access(former), b"4"), Err(Errno::ACCESS));
    }
    assert_eq!(write(guest, open, &access(entry(guest, open, handle).generation), b"5"), Ok(1));
    let contents = region.contents();
    assert_eq!([contents[0], contents[4096]], *b"53");
}

/// Submitters of a window in offset mode learn no address of its owner; the owner, and other windows, show theirs.
#[test]
fn a_window_in_offset_mode_does_not_show_its_base() {
    let run = Running::on("v2-full-1", "windows-offset", true);
    let Running { guest, .. } = &run;
    let region = Region::new(4096);
    let (owner, other) = (guest.open(SHARED).unwrap(), run.in_space(2));
    let submitter = other.open(SHARED).unwrap();
    let base = region.address | 3;
    for (flags, shown) in [(READ | CHECKED | BY_OFFSET, 3), (READ | CHECKED, base)] {
        let create_it = WindowCreate { base, size: 64, kind: 0, flags };
        let (handle, window) = create(guest, owner.opened.open, &create_it).unwrap();
        let handle = u32::try_from(handle).unwrap();
        attach(&other, submitter.opened.open, &secret(&window)).unwrap();
        assert_eq!(entry(&other, submitter.opened.open, handle).base, shown);
        assert_eq!(entry(guest, owner.opened.open, handle).base, base);
    }
}

/// Two programs that a process executes one after the other, or two processes with the same number, may share a PASID.
#[test]
fn an_address_space_with_the_pasid_of_another_one_has_none_of_its_windows() {
    let run = Running::on("v2-full-1", "windows-pasid", true);
    let region = Region::new(4096);
    let caller = Caller { process: std::process::id(), space: 0 };
    let [first, second] = [(), ()].map(|()| run.host.open(SHARED, caller).unwrap());
    assert_eq!(first.pasid, second.pasid);
    let guests = [run.guest.clone(), run.in_space(2)];
    for (guest, file) in guests.iter().zip([first, second]) {
        guest.ask(Kind::Attach, file.open, 0, "", &[]).unwrap();
    }
    let flags = READ | WRITE | CHECKED;
    let create_it = WindowCreate { base: region.address, size: 4096, kind: 0, flags };
    let (handle, window) = create(&guests[0], first.open, &create_it).unwrap();
    let handle = u32::try_from(handle).unwrap();
    attach(&guests[0], first.open, &secret(&window)).unwrap();
    let generation = entry(&guests[0], first.open, handle).generation;
    let access = WindowAccess { address: region.address, generation, len: 1, handle };
    assert_eq!(write(&guests[0], first.open, &access, b"x"), Ok(1));
    assert!(listed(&guests[1], second.open).is_empty());
    assert_eq!(write(&guests[1], second.open, &access, b"y"), Err(Errno::ACCESS));
    assert_eq!(read(&guests[1], second.open, &access), Err(Errno::ACCESS));
    let moved = WindowUpdate { base: region.address, size: 1, generation, handle, flags };
    assert_eq!(update(&guests[1], second.open, &moved), Err(Errno::ACCESS));
    assert_eq!(attach(&guests[1], second.open, &secret(&window)), Err(Errno::BUSY));
}

/// Environment variable for a child of this test, with what it knows of its parent.
const CHILD: &str = "TELPHER_WINDOWS_TEST_CHILD";

/// A forked child has a copy of its parent's memory, and in it the number of the parent's address space, the secrets
/// and the generations. Regression: with the number, the child was the parent for the host, and could move its windows.
#[test]
fn a_child_that_knows_all_of_its_parent_gets_nothing_by_it() {
    if let Ok(known) = std::env::var(CHILD) {
        return acts_as_its_parent(&known);
    }
    let run = Running::on("v2-full-1", "windows-child", true);
    let Running { guest, .. } = &run;
    let region = Region::new(2 * 4096);
    let open = guest.open(SHARED).unwrap();
    let open = open.opened.open;
    let create_it = WindowCreate { base: region.address, size: PAGE, kind: 1, flags: READ | WRITE | CHECKED };
    let (handle, window) = create(guest, open, &create_it).unwrap();
    let handle = u32::try_from(handle).unwrap();
    attach(guest, open, &secret(&window)).unwrap();
    let generation = entry(guest, open, handle).generation;
    let secret = u128::from_ne_bytes(secret(&window));
    let socket = guest.socket.to_str().unwrap();
    let known = format!("{socket} {open} {handle} {generation} {} {secret}", region.address);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_child_that_knows_all_of_its_parent_gets_nothing_by_it", "--nocapture"]);
    let output = child.env(CHILD, known).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let access = WindowAccess { address: region.address, generation, len: 4, handle };
    assert_eq!(read(guest, open, &access).unwrap(), [0; 4]);
    assert_eq!(region.contents(), vec![0; 2 * 4096]);
}

fn acts_as_its_parent(known: &str) {
    let words: Vec<&str> = known.split(' ').collect();
    let [socket, open, handle, generation, address, secret] = words[..] else { panic!("{known}") };
    let guest = Guest { socket: socket.into(), space: 1 };
    let number = |text: &str| text.parse::<u64>().unwrap();
    let (open, generation, base) = (number(open), number(generation), number(address));
    let handle = u32::try_from(number(handle)).unwrap();
    let access = WindowAccess { address: base, generation, len: 4, handle };
    let refused = Err(Errno::PERM);
    assert_eq!(read(&guest, open, &access).map(drop), refused);
    assert_eq!(write(&guest, open, &access, b"mine").map(drop), refused);
    assert_eq!(guest.ask(Kind::WindowTouch, open, 0, "", access.as_bytes()).map(drop), refused);
    assert_eq!(guest.ask(Kind::Windows, open, 0, "", &[]).map(drop), refused);
    let flags = READ | WRITE | CHECKED;
    let wider = WindowUpdate { base, size: 2 * PAGE, generation, handle, flags };
    assert_eq!(update(&guest, open, &wider), refused);
    let create_it = WindowCreate { base, size: PAGE, kind: 1, flags };
    assert_eq!(create(&guest, open, &create_it).map(drop), refused);
    let secret = secret.parse::<u128>().unwrap().to_ne_bytes();
    assert_eq!(attach(&guest, open, &secret).map(drop), refused);
    // Neither the memory of the parent's queue, nor errors in its name.
    assert_eq!(guest.attach(open).map(drop), refused);
    assert_eq!(guest.report(open, &Report::default()), refused);
    // Nor by a queue of its own that it opens with its parent's number.
    let own = guest.open(SHARED).unwrap();
    let open = own.opened.open;
    assert!(listed(&guest, open).is_empty());
    assert_eq!(read(&guest, open, &access).map(drop), Err(Errno::ACCESS));
    assert_eq!(update(&guest, open, &wider), Err(Errno::ACCESS));
}

/// A child inherits its parent's connections. Regression: the host asked which process had connected, not which one had
/// sent the packet, and took a request that a child sent over such a connection for its parent's.
#[test]
fn a_child_with_its_parents_connection_is_not_its_parent() {
    let run = Running::on("v2-full-1", "windows-inherited", true);
    let Running { guest, .. } = &run;
    let region = Region::new(2 * 4096);
    let file = guest.open(SHARED).unwrap();
    let open = file.opened.open;
    let flags = READ | WRITE | CHECKED;
    let create_it = WindowCreate { base: region.address, size: PAGE, kind: 1, flags };
    let (handle, window) = create(guest, open, &create_it).unwrap();
    let handle = u32::try_from(handle).unwrap();
    attach(guest, open, &secret(&window)).unwrap();
    let generation = entry(guest, open, handle).generation;
    let access = WindowAccess { address: region.address, generation, len: 4, handle };
    let wider = WindowUpdate { base: region.address, size: 2 * PAGE, generation, handle, flags };
    let path = run.scratch.0.join("packet");
    // The child sends the packet that its parent would send, over the connection that its parent has made.
    let asked_by_child = |kind, argument, path_of_request: &str, data: &[u8]| {
        std::fs::write(&path, packet(guest.space, kind, open, argument, path_of_request, data)).unwrap();
        let connection = guest.connect();
        let inherited = std::process::Stdio::from(connection.try_clone().unwrap());
        let sent = std::process::Command::new("cat").arg(&path).stdout(inherited).status().unwrap();
        assert!(sent.success());
        guest::receive(&connection).expect("the host answers").0.errno
    };
    let read_write = rustix::fs::OFlags::RDWR.bits().into();
    let written = [access.as_bytes(), b"mine"].concat();
    let report = Report::default();
    let requests: [(Kind, u64, &str, &[u8]); 9] = [
        (Kind::WindowRead, 0, "", access.as_bytes()),
        (Kind::WindowWrite, 0, "", &written),
        (Kind::WindowUpdate, 0, "", wider.as_bytes()),
        (Kind::Windows, 0, "", &[]),
        (Kind::WindowSettle, SETTLE_AT_START, "", &[]),
        (Kind::Report, 0, "", report.as_bytes()),
        (Kind::Attach, 0, "", &[]),
        (Kind::Open, read_write, SHARED, &[]),
        (Kind::Show, 0, "/sys/bus/dsa/devices/dsa0/version", &[]),
    ];
    for (kind, argument, path_of_request, data) in requests {
        let errno = asked_by_child(kind, argument, path_of_request, data);
        assert_eq!(errno, Errno::PERM.raw_os_error(), "{kind:?}");
    }
    // The parent's window is as before, and its own requests are answered.
    assert_eq!(region.contents(), vec![0; 2 * 4096]);
    assert_eq!(entry(guest, open, handle).generation, generation);
    assert_eq!(write(guest, open, &access, b"fine"), Ok(4));
}

/// All users share the names of sockets. Regression: the run's were consecutive, so another user could take the next
/// ones, and no queue and no window was opened any more.
#[test]
fn names_that_others_have_taken_keep_no_process_from_opening() {
    let run = Running::on("v2-full-1", "windows-names", true);
    let Running { guest, .. } = &run;
    let own = format!("test-telpher-windows-names-{}", std::process::id());
    let takes = |name: String| {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        socket
    };
    let _taken: Vec<OwnedFd> = (1..4)
        .flat_map(|number| [takes(format!("{own}/{number}/0.0")), takes(format!("{own}/window/{number}"))])
        .collect();
    let file = guest.open(SHARED).unwrap();
    let fine = WindowCreate { base: 0, size: PAGE, kind: 1, flags: READ | CHECKED };
    let names: BTreeSet<Vec<u8>> = (0..2)
        .map(|_| {
            let (_, window) = create(guest, file.opened.open, &fine).unwrap();
            let name = SocketAddrUnix::try_from(rustix::net::getsockname(&window).unwrap()).unwrap();
            name.abstract_name().unwrap().rsplit(|byte| *byte == b'/').next().unwrap().to_vec()
        })
        .collect();
    assert_eq!(names.len(), 2, "the last part is not random");
}

/// A socket that lingers for a minute when it is closed, since its peer takes no bytes.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    rustix::net::sockopt::set_socket_linger(&socket, Some(std::time::Duration::from_secs(60))).unwrap();
    socket.set_nonblocking(true).unwrap();
    while (&socket).write(&[0; 65536]).is_ok() {}
    // Closing waits only in a blocking socket.
    socket.set_nonblocking(false).unwrap();
    (socket.into(), peer)
}

/// The server closes no descriptor that it gets: a client that hands over one whose close blocks stops no other client.
#[test]
fn descriptors_that_are_slow_to_close_delay_no_other_client() {
    let run = Running::on("v2-full-1", "windows-linger", true);
    let Running { guest, .. } = &run;
    let region = Region::new(4096);
    let fine = WindowCreate { base: region.address, size: 4096, kind: 1, flags: READ | CHECKED };
    let file = guest.open(SHARED).unwrap();
    let hostile = run.in_space(2);
    let strangers = hostile.open(SHARED).unwrap();
    let (_, theirs) = create(&hostile, strangers.opened.open, &fine).unwrap();
    let (sockets, peers): (Vec<OwnedFd>, Vec<_>) = (0..6).map(|_| lingering()).unzip();
    let own = strangers.opened.open;
    // The server waits for the driver in the first request, so that it finds the last references to the sockets.
    let connections = run.host.with_kernel(|_| {
        let first = guest.send_with(Kind::Show, 0, &[], &[], 1);
        let send = |kind, open, data: &[u8], packets, socket: usize| {
            hostile.send_with(kind, open, data, &[sockets[socket].as_fd()], packets)
        };
        // In a request that takes a descriptor, in one about windows that takes none, for a file of another process, in
        // a request about something else, and in a second packet.
        let connections = [
            first,
            send(Kind::WindowCreate, own, fine.as_bytes(), 1, 0),
            send(Kind::Windows, own, &[], 1, 1),
            send(Kind::WindowCreate, file.opened.open, fine.as_bytes(), 1, 2),
            send(Kind::Report, own, &[], 1, 3),
            send(Kind::Show, 0, &[], 2, 4),
        ];
        // Over the sockets of a queue and of a window.
        guest::send_descriptors(strangers.file.as_ref().unwrap(), &[sockets[5].as_fd()]);
        guest::send_descriptors(&theirs, &[sockets[5].as_fd()]);
        drop(sockets);
        connections
    });
    assert!(guest.show("/sys/bus/dsa/devices/dsa0/state").is_ok());
    drop((strangers, theirs, connections));
    assert!(guest.show("/sys/bus/dsa/devices/dsa0/state").is_ok());
    let (handle, window) = create(guest, file.opened.open, &fine).unwrap();
    attach(guest, file.opened.open, &secret(&window)).unwrap();
    let handle = u32::try_from(handle).unwrap();
    let generation = entry(guest, file.opened.open, handle).generation;
    let access = WindowAccess { address: region.address, generation, len: 1, handle };
    assert_eq!(read(guest, file.opened.open, &access).unwrap(), [0]);
    drop(peers);
}

/// A window as the test expects it.
#[derive(Debug)]
struct Expected {
    descriptor: OwnedFd,
    owner: usize,
    handle: u32,
    several: bool,
    base: u64,
    size: u64,
    flags: u32,
    generation: u64,
    submitters: BTreeSet<usize>,
}

impl Expected {
    fn permits(&self, guest: usize, address: u64, len: u64, write: bool) -> bool {
        let permission = if write { WRITE } else { READ };
        let inside = address >= self.base && address + len <= self.base + self.size;
        self.submitters.contains(&guest) && self.flags & permission != 0 && (inside || self.flags & CHECKED == 0)
    }
}

const GUESTS: usize = 4;

/// The guests, their files and the windows.
struct Case<'a> {
    guests: &'a [Guest],
    files: Vec<Opening>,
    windows: Vec<Expected>,
    random: telpher_os::Random,
    region: Region,
    /// Every generation that a window ever had.
    generations: Vec<u64>,
}

impl Case<'_> {
    /// Looks up the generation of a guest's own window.
    fn learn(&mut self, owner: usize, handle: u32) -> u64 {
        let generation = entry(&self.guests[owner], self.files[owner].opened.open, handle).generation;
        assert!(!self.generations.contains(&generation));
        self.generations.push(generation);
        generation
    }

    /// A place in the region and the bytes from there on, so that ranges often touch the ends of windows.
    fn range(&mut self) -> (u64, u64) {
        let whole = self.region.bytes as u64;
        let edges: Vec<u64> = self.windows.iter().flat_map(|window| [window.base, window.base + window.size]).collect();
        let edge = match edges.len() {
            0 => 0,
            count => {
                edges[usize::try_from(self.random.below(count as u64)).unwrap()].saturating_sub(self.region.address)
            }
        };
        let near = (edge + self.random.below(9)).saturating_sub(4);
        let at = if self.random.below(2) == 0 { near } else { self.random.below(whole) }.min(whole - 1);
        let most = (whole - at).min(WINDOW_BYTES as u64);
        let len = if self.random.below(2) == 0 { 1 + self.random.below(8) } else { 1 + self.random.below(most) };
        (self.region.address + at, len.min(most))
    }

    fn index(&mut self, below: usize) -> usize {
        usize::try_from(self.random.below(below as u64)).unwrap()
    }

    fn flags(&mut self) -> u32 {
        let flags = u32::try_from(self.random.below(4)).unwrap() | CHECKED;
        if self.random.below(4) == 0 { flags | BY_OFFSET } else { flags }
    }

    fn create(&mut self) {
        let (owner, (base, size)) = (self.index(GUESTS), self.range());
        let several = self.random.below(2) == 1;
        let flags = self.flags();
        let create_it = WindowCreate { base, size, kind: several.into(), flags };
        let (handle, descriptor) = create(&self.guests[owner], self.files[owner].opened.open, &create_it).unwrap();
        let handle = u32::try_from(handle).unwrap();
        let lowest = (0..).find(|handle| self.windows.iter().all(|window| window.handle != *handle));
        assert_eq!(Some(handle), lowest);
        let submitters = BTreeSet::new();
        let generation = self.learn(owner, handle);
        self.windows.push(Expected { descriptor, owner, handle, several, base, size, flags, generation, submitters });
    }

    fn attach(&mut self) {
        let (guest, window) = (self.index(GUESTS), self.index(self.windows.len()));
        let window = &mut self.windows[window];
        let attached = attach(&self.guests[guest], self.files[guest].opened.open, &secret(&window.descriptor));
        if window.several || window.submitters.iter().all(|submitter| *submitter == guest) {
            assert_eq!(attached, Ok(window.handle.into()));
            window.submitters.insert(guest);
        } else {
            assert_eq!(attached, Err(Errno::BUSY));
        }
    }

    fn update(&mut self) {
        let (guest, handle) = (self.index(GUESTS), u32::try_from(self.random.below(6)).unwrap());
        let ((base, size), flags) = (self.range(), self.flags());
        let own = self.windows.iter().position(|window| window.handle == handle && window.owner == guest);
        let generation = self.generation_for(own);
        let named = own.filter(|window| self.windows[*window].generation >> 32 == generation >> 32);
        let replaced = WindowUpdate { base, size, generation, handle, flags };
        let updated = update(&self.guests[guest], self.files[guest].opened.open, &replaced);
        match named {
            Some(window) => {
                assert_eq!(updated, Ok(()));
                let generation = self.learn(guest, handle);
                let window = &mut self.windows[window];
                (window.base, window.size, window.flags, window.generation) = (base, size, flags, generation);
            }
            None => assert_eq!(updated, Err(Errno::ACCESS)),
        }
    }

    /// Mostly the generation of a window; sometimes any that there ever was.
    fn generation_for(&mut self, window: Option<usize>) -> u64 {
        match window {
            Some(window) if self.random.below(4) != 0 => self.windows[window].generation,
            _ if self.generations.is_empty() => self.random.below(1 << 40),
            _ => {
                let index = self.index(self.generations.len());
                self.generations[index]
            }
        }
    }

    fn reopen(&mut self) {
        let guest = self.index(GUESTS);
        let former = self.files.remove(guest);
        drop(former);
        let file = self.guests[guest].open(SHARED).unwrap();
        self.files.insert(guest, file);
        // Windows and rights of a process do not end with its queue.
    }

    /// A guest closes a descriptor, of which there are others.
    fn close_held(&mut self) {
        let (guest, window) = (self.index(GUESTS), self.index(self.windows.len()));
        let number = number(&self.windows[window].descriptor);
        self.guests[guest].ask(Kind::WindowClose, 0, number, "", &[]).unwrap();
        if self.windows[window].owner == guest {
            self.windows.swap_remove(window);
        } else {
            self.windows[window].submitters.remove(&guest);
        }
    }

    fn access(&mut self, shadow: &mut [u8]) {
        let (guest, (address, len)) = (self.index(GUESTS), self.range());
        let handle = u32::try_from(self.random.below(8)).unwrap();
        let write_it = self.random.below(2) == 1;
        let index = self.windows.iter().position(|window| window.handle == handle);
        let generation = self.generation_for(index);
        let window = index.map(|index| &self.windows[index]);
        let permits = |window: &Expected| window.permits(guest, address, len, write_it);
        let permitted = window.is_some_and(|window| window.generation == generation && permits(window));
        let by_offset = window.filter(|window| window.flags & BY_OFFSET != 0);
        let place = by_offset.map_or(address, |window| address.wrapping_sub(window.base));
        let access = WindowAccess { address: place, generation, len: u32::try_from(len).unwrap(), handle };
        let from = usize::try_from(address - self.region.address).unwrap();
        let part = &mut shadow[from..from + usize::try_from(len).unwrap()];
        let (guest, open) = (&self.guests[guest], self.files[guest].opened.open);
        if write_it {
            let mut bytes = vec![0; part.len()];
            self.random.fill(&mut bytes);
            let written = write(guest, open, &access, &bytes);
            assert_eq!(written, if permitted { Ok(len) } else { Err(Errno::ACCESS) });
            if permitted {
                part.copy_from_slice(&bytes);
            }
        } else {
            let bytes = read(guest, open, &access);
            assert_eq!(bytes, if permitted { Ok(part.to_vec()) } else { Err(Errno::ACCESS) });
        }
    }

    /// What a guest sees of the table is what it owns or may use.
    fn list(&mut self) {
        let guest = self.index(GUESTS);
        let mut seen: Vec<(u32, u8)> = listed(&self.guests[guest], self.files[guest].opened.open)
            .iter()
            .map(|entry| (entry.handle.into(), entry.relation))
            .collect();
        seen.sort_unstable();
        let relation = |window: &Expected| {
            let usable = if window.submitters.contains(&guest) { WINDOW_USABLE } else { 0 };
            usable | if window.owner == guest { WINDOW_OWN } else { 0 }
        };
        let mut expected: Vec<(u32, u8)> =
            self.windows.iter().map(|window| (window.handle, relation(window))).filter(|(_, of)| *of != 0).collect();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }
}

/// Random calls of four address spaces, against a list of what is granted: every access that is granted moves its
/// bytes, and every other one is refused and moves none.
#[test]
fn no_call_reads_or_writes_a_byte_that_is_not_granted() {
    for seed in 1..=4 {
        println!("seed {seed}");
        random_calls(seed);
    }
}

fn random_calls(seed: u64) {
    let run = Running::on("v2-full-1", &format!("windows-random-{seed}"), true);
    let guests: Vec<Guest> = (1..=GUESTS as u64).map(|space| run.in_space(space)).collect();
    let files = guests.iter().map(|guest| guest.open(SHARED).unwrap()).collect();
    let region = Region::new(8 * 4096);
    let mut shadow = region.contents();
    let random = telpher_os::Random::new(seed);
    let generations = Vec::new();
    let mut case = Case { guests: &guests, files, windows: Vec::new(), random, region, generations };
    for _ in 0..500 {
        match case.random.below(16) {
            0 if case.windows.len() < 7 => case.create(),
            1..=3 if !case.windows.is_empty() => case.attach(),
            4 => case.update(),
            5 if case.windows.len() > 4 => {
                let closed = case.index(case.windows.len());
                drop(case.windows.swap_remove(closed));
            }
            6 if case.random.below(4) == 0 => case.reopen(),
            7 => case.list(),
            8 if case.windows.len() > 3 => case.close_held(),
            _ => case.access(&mut shadow),
        }
    }
    assert_eq!(case.region.contents(), shadow);
}
