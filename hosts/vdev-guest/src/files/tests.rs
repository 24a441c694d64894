//! Tests with their own tree and machine: path resolution, listings, stat, and attributes of a fake driver.

use crate::files::attribute::{self, Driver};
use crate::files::path::Path;
use crate::files::shadow::{MERGED, Ownership, Shadow, kind};
use crate::files::walk::{FileKind, Found, Walk};
use crate::files::{descriptor, listing, status};
use crate::sys::Errno;
use rustix::fs::{FileType, Stat};
use std::cell::RefCell;
use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A shadow tree and a directory that stands for the machine; the tree merges with its paths.
struct Fixture {
    tree: Folder,
    machine: Folder,
}

impl Fixture {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = |what: &str| {
            let name = format!("telpher-files-{}-{number}-{what}", std::process::id());
            let path = fs::canonicalize(std::env::temp_dir()).unwrap().join(name);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        };
        Fixture { tree: folder("tree"), machine: folder("machine") }
    }

    fn shadow(&self) -> Shadow<'_> {
        Shadow::new(self.tree.0.as_os_str().as_encoded_bytes())
    }

    /// The location of a path in the tree; creates its parent.
    fn location(&self, path: &str) -> PathBuf {
        let place = self.tree.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        place
    }

    /// A path of the machine.
    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.machine.0.display())
    }

    /// Adds the marker to a directory and its parents.
    fn merge(&self, path: &str) {
        for (end, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
            fs::create_dir_all(self.location(&path[..end])).unwrap();
            fs::write(self.location(&path[..end]).join(std::str::from_utf8(MERGED).unwrap()), "").unwrap();
        }
    }

    fn walk(&self, base: &str, text: &str, follow: bool) -> Result<Found, Errno> {
        let walk = Walk { shadow: self.shadow(), magic: &|_| None };
        walk.to(&Path::new(base.as_bytes()).unwrap(), text.as_bytes(), follow)
    }

    fn found(&self, text: &str) -> (String, Ownership, FileKind) {
        parts(&self.walk("/", text, true).unwrap())
    }
}

fn parts(found: &Found) -> (String, Ownership, FileKind) {
    (String::from_utf8(found.path.as_bytes().to_vec()).unwrap(), found.ownership, found.kind)
}

/// A tree like the driver's: two directories of ours with links between them, and a merged directory.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.at("/bus/real/devices")).unwrap();
    fs::create_dir_all(fixture.at("/elsewhere")).unwrap();
    fs::write(fixture.at("/bus/real/file"), "real").unwrap();
    symlink("../bus", fixture.at("/elsewhere/bus")).unwrap();
    fixture.merge(&fixture.at("/bus"));
    fs::write(fixture.location(&fixture.at("/devices/dsa0/state")), "").unwrap();
    fixture.merge(&fixture.at("/devices"));
    fs::create_dir_all(fixture.at("/devices")).unwrap();
    fs::create_dir_all(fixture.location(&fixture.at("/bus/dsa/devices"))).unwrap();
    symlink("../../../devices/dsa0", fixture.location(&fixture.at("/bus/dsa/devices/dsa0"))).unwrap();
    symlink("../../bus/real", fixture.location(&fixture.at("/devices/dsa0/subsystem"))).unwrap();
    symlink("loop", fixture.location(&fixture.at("/devices/dsa0/loop"))).unwrap();
    fixture
}

#[test]
fn a_path_through_our_links_leads_to_its_target() {
    let fixture = fixture();
    let state = (fixture.at("/devices/dsa0/state"), Ownership::Ours, FileKind::File);
    for way in [
        "/bus/dsa/devices/dsa0/state",
        "/bus//dsa/./devices/dsa0/../dsa0/state",
        "/elsewhere/../bus/dsa/devices/dsa0/state",
    ] {
        assert_eq!(fixture.found(&fixture.at(way)), state, "{way}");
    }
}

#[test]
fn a_link_of_the_machine_leads_to_entries_of_ours() {
    let fixture = fixture();
    let state = (fixture.at("/devices/dsa0/state"), Ownership::Ours, FileKind::File);
    assert_eq!(fixture.found(&fixture.at("/elsewhere/bus/dsa/devices/dsa0/state")), state);
}

#[test]
fn our_link_leads_back_to_the_machine() {
    let fixture = fixture();
    let found = fixture.walk("/", &fixture.at("/bus/dsa/devices/dsa0/subsystem/file"), true).unwrap();
    assert_eq!(parts(&found), (fixture.at("/bus/real/file"), Ownership::Real, FileKind::File));
    assert!(found.crossed, "the kernel would not find it");
}

#[test]
fn paths_of_the_machine_are_not_crossed() {
    let fixture = fixture();
    for way in ["/bus/real/file", "/elsewhere/bus/real", "/elsewhere/nothing"] {
        let found = fixture.walk("/", &fixture.at(way), true).unwrap();
        assert!(!found.crossed && !found.is_ours(), "{way}");
    }
}

#[test]
fn a_path_relative_to_a_directory_of_ours_starts_there() {
    let fixture = fixture();
    let base = fixture.at("/devices/dsa0");
    let walked = |text| parts(&fixture.walk(&base, text, true).unwrap());
    assert_eq!(walked("state"), (fixture.at("/devices/dsa0/state"), Ownership::Ours, FileKind::File));
    assert_eq!(walked("."), (base.clone(), Ownership::Ours, FileKind::Directory));
    assert_eq!(walked("../../bus/real/file"), (fixture.at("/bus/real/file"), Ownership::Real, FileKind::File));
    assert_eq!(walked("../.."), (fixture.at(""), Ownership::Merged, FileKind::Directory));
}

#[test]
fn a_final_link_is_followed_only_on_request_or_with_a_slash() {
    let fixture = fixture();
    let link = fixture.at("/bus/dsa/devices/dsa0");
    assert_eq!(parts(&fixture.walk("/", &link, false).unwrap()), (link.clone(), Ownership::Ours, FileKind::Link));
    let directory = (fixture.at("/devices/dsa0"), Ownership::Ours, FileKind::Directory);
    assert_eq!(parts(&fixture.walk("/", &format!("{link}/"), false).unwrap()), directory);
    assert_eq!(fixture.found(&link), directory);
}

#[test]
fn the_errors_are_the_kernels() {
    let fixture = fixture();
    for (way, error) in [
        ("/bus/dsa/nothing/state", Errno::NOENT),
        ("/bus/nothing/state", Errno::NOENT),
        ("/devices/dsa0/state/", Errno::NOTDIR),
        ("/devices/dsa0/state/more", Errno::NOTDIR),
        ("/bus/real/file/", Errno::NOTDIR),
        ("/devices/dsa0/loop", Errno::LOOP),
    ] {
        assert_eq!(fixture.walk("/", &fixture.at(way), true).unwrap_err(), error, "{way}");
    }
    assert_eq!(fixture.walk("/", "", true).unwrap_err(), Errno::NOENT);
    let missing = fixture.walk("/", &fixture.at("/devices/dsa0/nothing"), true).unwrap();
    assert_eq!((missing.ownership, missing.kind), (Ownership::Ours, FileKind::Missing));
}

#[test]
fn a_merged_directory_that_the_machine_lacks_is_ours() {
    let fixture = fixture();
    fixture.merge(&fixture.at("/char"));
    assert_eq!(fixture.found(&fixture.at("/char")), (fixture.at("/char"), Ownership::Ours, FileKind::Directory));
    fs::create_dir(fixture.at("/char")).unwrap();
    assert_eq!(fixture.found(&fixture.at("/char")), (fixture.at("/char"), Ownership::Merged, FileKind::Directory));
}

#[test]
fn a_link_in_proc_is_followed_if_known_and_otherwise_left_to_the_kernel() {
    let fixture = fixture();
    let state = fixture.at("/devices/dsa0/state");
    let walk = |magic: &dyn Fn(&Path) -> Option<Path>| {
        Walk { shadow: fixture.shadow(), magic }.to(&Path::root(), b"/proc/thread-self/fd/0", true).unwrap()
    };
    let known = walk(&|_| Path::new(state.as_bytes()).ok());
    assert_eq!(parts(&known), (state.clone(), Ownership::Ours, FileKind::File));
    assert_eq!(walk(&|_| None).kind, FileKind::Beyond);
}

/// The names in a directory, sorted.
fn names(fixture: &Fixture, path: &str, open: &std::path::Path, ownership: Ownership) -> Vec<String> {
    let directory = fs::File::open(open).unwrap();
    let path = Path::new(path.as_bytes()).unwrap();
    let entries = listing::list(fixture.shadow(), directory.as_raw_fd(), &path, ownership).unwrap();
    let mut names: Vec<_> = entries.iter().map(|entry| String::from_utf8(entry.name.clone()).unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_merged_directory_lists_both_without_the_marker_or_duplicates() {
    let fixture = fixture();
    fs::create_dir_all(fixture.location(&fixture.at("/bus/real"))).unwrap();
    let bus = fixture.at("/bus");
    assert_eq!(names(&fixture, &bus, std::path::Path::new(&bus), Ownership::Merged), [".", "..", "dsa", "real"]);
}

#[test]
fn our_directory_lists_the_entries_of_the_tree() {
    let fixture = fixture();
    let path = fixture.at("/devices/dsa0");
    let listed = names(&fixture, &path, &fixture.location(&path), Ownership::Ours);
    assert_eq!(listed, [".", "..", "loop", "state", "subsystem"]);
}

/// The presented status of a placeholder with this mode and text.
fn placeholder(fixture: &Fixture, path: &str, mode: u32, text: &[u8]) -> Stat {
    fs::write(fixture.location(path), text).unwrap();
    fs::set_permissions(fixture.location(path), fs::Permissions::from_mode(mode)).unwrap();
    let path = Path::new(path.as_bytes()).unwrap();
    let placeholder = fixture.shadow().look(&path).unwrap();
    status::present(fixture.shadow(), &path, &placeholder)
}

#[test]
fn an_attribute_looks_like_one_of_sysfs() {
    let fixture = Fixture::new();
    let status = placeholder(&fixture, "/sys/bus/dsa/bind", 0o200, b"");
    assert_eq!((status.st_mode, status.st_size, status.st_blocks), (libc::S_IFREG | 0o200, 4096, 0));
    assert_eq!((status.st_uid, status.st_gid, status.st_nlink), (0, 0, 1));
    assert_eq!(status.st_dev, rustix::fs::stat("/sys").unwrap().st_dev);
}

#[test]
fn a_binary_attribute_has_its_placeholders_size() {
    let fixture = Fixture::new();
    assert_eq!(placeholder(&fixture, "/sys/config", 0o644, &[0; 256]).st_size, 256);
}

#[test]
fn a_node_looks_like_a_character_device_with_its_number() {
    let fixture = Fixture::new();
    let status = placeholder(&fixture, "/dev/dsa/wq0.0", 0o600, b"511:7\n");
    assert_eq!((kind(&status), status.st_mode & 0o777), (FileType::CharacterDevice, 0o600));
    assert_eq!((rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev)), (511, 7));
    assert_eq!(status.st_size, 0);
}

/// An attribute with a text or an error; records what is written to it.
struct FakeAttribute {
    shown: RefCell<Result<Vec<u8>, Errno>>,
    stored: RefCell<Vec<(u64, Vec<u8>)>>,
}

impl Driver for FakeAttribute {
    fn show(&self, path: &[u8], into: &mut [u8]) -> Result<usize, Errno> {
        assert_eq!(path, PATH.as_bytes());
        let text = self.shown.borrow().clone()?;
        into[..text.len()].copy_from_slice(&text);
        Ok(text.len())
    }

    fn store(&self, path: &[u8], offset: u64, data: &[u8]) -> Result<usize, Errno> {
        assert_eq!(path, PATH.as_bytes());
        if data == b"bad" {
            return Err(Errno::INVAL);
        }
        self.stored.borrow_mut().push((offset, data.to_vec()));
        Ok(data.len())
    }
}

const PATH: &str = "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0/size";

impl FakeAttribute {
    fn new(text: &[u8]) -> Self {
        FakeAttribute { shown: RefCell::new(Ok(text.to_vec())), stored: RefCell::default() }
    }

    /// Opens the attribute; its placeholder has this mode.
    fn open(&self, mode: u32, flags: i32) -> Result<OwnedFd, Errno> {
        let mut status = rustix::fs::stat("/proc/self/exe").unwrap();
        status.st_mode = libc::S_IFREG | mode;
        attribute::open(self, &path(), &status, flags).map(descriptor::owned)
    }

    /// The result of a read from the beginning.
    fn read(&self, fd: RawFd) -> Result<String, Errno> {
        attribute::refresh(self, fd, &path())?;
        Ok(contents(fd))
    }

    fn write(&self, fd: RawFd, text: &[u8], offset: Option<u64>) -> Result<usize, Errno> {
        attribute::write(self, fd, &path(), text.as_ptr(), text.len(), offset)
    }
}

fn path() -> Path {
    Path::new(PATH.as_bytes()).unwrap()
}

/// The contents of the file behind the descriptor, read without this library.
fn contents(fd: RawFd) -> String {
    let mut file = fs::File::open(format!("/proc/self/fd/{fd}")).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn the_descriptor_of_an_attribute_contains_its_path() {
    let fd = FakeAttribute::new(b"").open(0o644, libc::O_RDONLY).unwrap();
    assert_eq!(attribute::path_of(fd.as_raw_fd()).unwrap().as_bytes(), PATH.as_bytes());
    let other = fs::File::open("/dev/null").unwrap();
    assert!(attribute::path_of(other.as_raw_fd()).is_none());
}

#[test]
fn the_text_is_requested_at_the_opening_and_at_each_read() {
    let text = FakeAttribute::new(b"16\n");
    let fd = text.open(0o644, libc::O_RDONLY).unwrap();
    assert_eq!(contents(fd.as_raw_fd()), "16\n");
    *text.shown.borrow_mut() = Ok(b"7\n".to_vec());
    assert_eq!(text.read(fd.as_raw_fd()).unwrap(), "7\n");
}

#[test]
fn an_error_is_returned_by_the_read_and_not_by_the_opening() {
    let text = FakeAttribute::new(b"");
    *text.shown.borrow_mut() = Err(Errno::OPNOTSUPP);
    let fd = text.open(0o444, libc::O_RDONLY).unwrap();
    assert_eq!(text.read(fd.as_raw_fd()), Err(Errno::OPNOTSUPP));
}

#[test]
fn permissions_apply_to_root_too() {
    let text = FakeAttribute::new(b"");
    for (mode, flags, expected) in [
        (0o444, libc::O_WRONLY, Some(Errno::ACCESS)),
        (0o444, libc::O_RDWR, Some(Errno::ACCESS)),
        (0o200, libc::O_RDONLY, Some(Errno::ACCESS)),
        (0o200, libc::O_WRONLY, None),
        (0o644, libc::O_RDWR | libc::O_TRUNC, None),
        (0o644, libc::O_RDONLY | libc::O_DIRECT, Some(Errno::INVAL)),
    ] {
        assert_eq!(text.open(mode, flags).err(), expected, "{mode:o} {flags:#x}");
    }
}

#[test]
fn the_descriptor_has_the_requested_flags() {
    let text = FakeAttribute::new(b"");
    for (flags, closes) in [(libc::O_WRONLY | libc::O_APPEND, false), (libc::O_RDONLY | libc::O_CLOEXEC, true)] {
        let fd = text.open(0o644, flags).unwrap();
        let flags_now = rustix::fs::fcntl_getfl(&fd).unwrap().bits().cast_signed();
        assert_eq!(flags_now & (libc::O_ACCMODE | libc::O_APPEND), flags & (libc::O_ACCMODE | libc::O_APPEND));
        assert_eq!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC), closes);
    }
}

#[test]
fn each_write_reaches_the_driver_and_moves_the_position() {
    let text = FakeAttribute::new(b"");
    let fd = text.open(0o644, libc::O_WRONLY).unwrap();
    assert_eq!(text.write(fd.as_raw_fd(), b"16\n", None), Ok(3));
    assert_eq!(text.write(fd.as_raw_fd(), b"bad", None), Err(Errno::INVAL));
    assert_eq!(text.write(fd.as_raw_fd(), b"7", None), Ok(1));
    assert_eq!(text.write(fd.as_raw_fd(), b"8", Some(360)), Ok(1));
    assert_eq!(text.write(fd.as_raw_fd(), b"", None), Ok(0));
    let expected = [(0, b"16\n".to_vec()), (3, b"7".to_vec()), (360, b"8".to_vec())];
    assert_eq!(*text.stored.borrow(), expected);
    assert_eq!(rustix::fs::tell(&fd), Ok(4));
}

#[test]
fn a_write_accepts_at_most_a_page_and_needs_memory_and_permission() {
    let text = FakeAttribute::new(b"");
    let fd = text.open(0o644, libc::O_WRONLY).unwrap();
    assert_eq!(text.write(fd.as_raw_fd(), &[b'x'; 5000], None), Ok(4096));
    let nowhere = std::ptr::without_provenance(8);
    assert_eq!(attribute::write(&text, fd.as_raw_fd(), &path(), nowhere, 4, None), Err(Errno::FAULT));
    let reader = text.open(0o644, libc::O_RDONLY).unwrap();
    assert_eq!(text.write(reader.as_raw_fd(), b"1", None), Err(Errno::BADF));
}

#[test]
fn a_write_past_the_library_fails() {
    let fd = FakeAttribute::new(b"").open(0o644, libc::O_WRONLY).unwrap();
    assert_eq!(rustix::io::write(&fd, b"1"), Err(Errno::PERM));
}
