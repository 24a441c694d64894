//! A tree and a machine of the tests' own: the walk, the listing, what stat tells, and attributes over a driver that is an array.

use crate::files::attribute::{self, Driver};
use crate::files::path::Path;
use crate::files::shadow::{MERGED, Shadow, Side, kind};
use crate::files::walk::{Found, Walk, What};
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

/// A directory that goes with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A tree of ours and, beside it, a machine's directory whose path the tree merges with.
struct World {
    tree: Folder,
    machine: Folder,
}

impl World {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = |what: &str| {
            let name = format!("telpher-files-{}-{number}-{what}", std::process::id());
            let path = fs::canonicalize(std::env::temp_dir()).unwrap().join(name);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        };
        World { tree: folder("tree"), machine: folder("machine") }
    }

    fn shadow(&self) -> Shadow<'_> {
        Shadow::new(self.tree.0.as_os_str().as_encoded_bytes())
    }

    /// Where a path stands in the tree; its parent is made.
    fn place(&self, path: &str) -> PathBuf {
        let place = self.tree.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        place
    }

    /// A path of the machine.
    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.machine.0.display())
    }

    /// Marks a directory and those above it as the machine's.
    fn merge(&self, path: &str) {
        for (end, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
            fs::create_dir_all(self.place(&path[..end])).unwrap();
            fs::write(self.place(&path[..end]).join(std::str::from_utf8(MERGED).unwrap()), "").unwrap();
        }
    }

    fn walk(&self, base: &str, text: &str, follow: bool) -> Result<Found, Errno> {
        let walk = Walk { shadow: self.shadow(), magic: &|_| None };
        walk.to(&Path::new(base.as_bytes()).unwrap(), text.as_bytes(), follow)
    }

    fn found(&self, text: &str) -> (String, Side, What) {
        told(&self.walk("/", text, true).unwrap())
    }
}

fn told(found: &Found) -> (String, Side, What) {
    (String::from_utf8(found.path.as_bytes().to_vec()).unwrap(), found.side, found.what)
}

/// A tree as the driver's: two directories of ours with links between them, and one of the machine's that gains an entry.
fn world() -> World {
    let world = World::new();
    fs::create_dir_all(world.at("/bus/real/devices")).unwrap();
    fs::create_dir_all(world.at("/elsewhere")).unwrap();
    fs::write(world.at("/bus/real/file"), "real").unwrap();
    symlink("../bus", world.at("/elsewhere/bus")).unwrap();
    world.merge(&world.at("/bus"));
    fs::write(world.place(&world.at("/devices/dsa0/state")), "").unwrap();
    world.merge(&world.at("/devices"));
    fs::create_dir_all(world.at("/devices")).unwrap();
    fs::create_dir_all(world.place(&world.at("/bus/dsa/devices"))).unwrap();
    symlink("../../../devices/dsa0", world.place(&world.at("/bus/dsa/devices/dsa0"))).unwrap();
    symlink("../../bus/real", world.place(&world.at("/devices/dsa0/subsystem"))).unwrap();
    symlink("loop", world.place(&world.at("/devices/dsa0/loop"))).unwrap();
    world
}

#[test]
fn a_path_through_links_of_ours_leads_to_the_thing_itself() {
    let world = world();
    let state = (world.at("/devices/dsa0/state"), Side::Ours, What::File);
    for way in [
        "/bus/dsa/devices/dsa0/state",
        "/bus//dsa/./devices/dsa0/../dsa0/state",
        "/elsewhere/../bus/dsa/devices/dsa0/state",
    ] {
        assert_eq!(world.found(&world.at(way)), state, "{way}");
    }
}

#[test]
fn a_link_of_the_machine_leads_to_what_its_directory_gains() {
    let world = world();
    let state = (world.at("/devices/dsa0/state"), Side::Ours, What::File);
    assert_eq!(world.found(&world.at("/elsewhere/bus/dsa/devices/dsa0/state")), state);
}

#[test]
fn a_link_of_ours_leads_back_to_the_machine() {
    let world = world();
    let found = world.walk("/", &world.at("/bus/dsa/devices/dsa0/subsystem/file"), true).unwrap();
    assert_eq!(told(&found), (world.at("/bus/real/file"), Side::Real, What::File));
    assert!(found.crossed, "the kernel would not find it by itself");
}

#[test]
fn what_the_machine_has_without_us_is_not_crossed() {
    let world = world();
    for way in ["/bus/real/file", "/elsewhere/bus/real", "/elsewhere/nothing"] {
        let found = world.walk("/", &world.at(way), true).unwrap();
        assert!(!found.crossed && !found.is_ours(), "{way}");
    }
}

#[test]
fn a_path_relative_to_a_directory_of_ours_starts_there() {
    let world = world();
    let base = world.at("/devices/dsa0");
    let walked = |text| told(&world.walk(&base, text, true).unwrap());
    assert_eq!(walked("state"), (world.at("/devices/dsa0/state"), Side::Ours, What::File));
    assert_eq!(walked("."), (base.clone(), Side::Ours, What::Directory));
    assert_eq!(walked("../../bus/real/file"), (world.at("/bus/real/file"), Side::Real, What::File));
    assert_eq!(walked("../.."), (world.at(""), Side::Merged, What::Directory));
}

#[test]
fn a_link_is_followed_at_the_end_only_if_asked_or_with_a_slash() {
    let world = world();
    let link = world.at("/bus/dsa/devices/dsa0");
    assert_eq!(told(&world.walk("/", &link, false).unwrap()), (link.clone(), Side::Ours, What::Link));
    let directory = (world.at("/devices/dsa0"), Side::Ours, What::Directory);
    assert_eq!(told(&world.walk("/", &format!("{link}/"), false).unwrap()), directory);
    assert_eq!(world.found(&link), directory);
}

#[test]
fn the_errors_on_the_way_are_the_kernels() {
    let world = world();
    for (way, error) in [
        ("/bus/dsa/nothing/state", Errno::NOENT),
        ("/bus/nothing/state", Errno::NOENT),
        ("/devices/dsa0/state/", Errno::NOTDIR),
        ("/devices/dsa0/state/more", Errno::NOTDIR),
        ("/bus/real/file/", Errno::NOTDIR),
        ("/devices/dsa0/loop", Errno::LOOP),
    ] {
        assert_eq!(world.walk("/", &world.at(way), true).unwrap_err(), error, "{way}");
    }
    assert_eq!(world.walk("/", "", true).unwrap_err(), Errno::NOENT);
    let missing = world.walk("/", &world.at("/devices/dsa0/nothing"), true).unwrap();
    assert_eq!((missing.side, missing.what), (Side::Ours, What::Missing));
}

#[test]
fn a_merged_directory_that_the_machine_lacks_is_ours() {
    let world = world();
    world.merge(&world.at("/char"));
    assert_eq!(world.found(&world.at("/char")), (world.at("/char"), Side::Ours, What::Directory));
    fs::create_dir(world.at("/char")).unwrap();
    assert_eq!(world.found(&world.at("/char")), (world.at("/char"), Side::Merged, What::Directory));
}

#[test]
fn a_link_of_proc_is_followed_where_it_is_known_and_left_to_the_kernel_elsewhere() {
    let world = world();
    let state = world.at("/devices/dsa0/state");
    let walk = |magic: &dyn Fn(&Path) -> Option<Path>| {
        Walk { shadow: world.shadow(), magic }.to(&Path::root(), b"/proc/thread-self/fd/0", true).unwrap()
    };
    let known = walk(&|_| Path::new(state.as_bytes()).ok());
    assert_eq!(told(&known), (state.clone(), Side::Ours, What::File));
    assert_eq!(walk(&|_| None).what, What::Beyond);
}

/// The names of a directory, sorted.
fn names(world: &World, path: &str, open: &std::path::Path, side: Side) -> Vec<String> {
    let directory = fs::File::open(open).unwrap();
    let path = Path::new(path.as_bytes()).unwrap();
    let entries = listing::list(world.shadow(), directory.as_raw_fd(), &path, side).unwrap();
    let mut names: Vec<_> = entries.iter().map(|entry| String::from_utf8(entry.name.clone()).unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_merged_directory_lists_both_and_neither_the_mark_nor_anything_twice() {
    let world = world();
    fs::create_dir_all(world.place(&world.at("/bus/real"))).unwrap();
    let bus = world.at("/bus");
    assert_eq!(names(&world, &bus, std::path::Path::new(&bus), Side::Merged), [".", "..", "dsa", "real"]);
}

#[test]
fn a_directory_of_ours_lists_what_the_tree_has() {
    let world = world();
    let path = world.at("/devices/dsa0");
    let listed = names(&world, &path, &world.place(&path), Side::Ours);
    assert_eq!(listed, [".", "..", "loop", "state", "subsystem"]);
}

/// The status of a placeholder made with these permissions and this text.
fn placeholder(world: &World, path: &str, mode: u32, text: &[u8]) -> Stat {
    fs::write(world.place(path), text).unwrap();
    fs::set_permissions(world.place(path), fs::Permissions::from_mode(mode)).unwrap();
    let path = Path::new(path.as_bytes()).unwrap();
    let placeholder = world.shadow().look(&path).unwrap();
    status::present(world.shadow(), &path, &placeholder)
}

#[test]
fn an_attribute_looks_like_one_of_sysfs() {
    let world = World::new();
    let status = placeholder(&world, "/sys/bus/dsa/bind", 0o200, b"");
    assert_eq!((status.st_mode, status.st_size, status.st_blocks), (libc::S_IFREG | 0o200, 4096, 0));
    assert_eq!((status.st_uid, status.st_gid, status.st_nlink), (0, 0, 1));
    assert_eq!(status.st_dev, rustix::fs::stat("/sys").unwrap().st_dev);
}

#[test]
fn a_binary_attribute_has_its_placeholders_size() {
    let world = World::new();
    assert_eq!(placeholder(&world, "/sys/config", 0o644, &[0; 256]).st_size, 256);
}

#[test]
fn a_node_looks_like_a_character_device_with_its_number() {
    let world = World::new();
    let status = placeholder(&world, "/dev/dsa/wq0.0", 0o600, b"511:7\n");
    assert_eq!((kind(&status), status.st_mode & 0o777), (FileType::CharacterDevice, 0o600));
    assert_eq!((rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev)), (511, 7));
    assert_eq!(status.st_size, 0);
}

/// An attribute with a text, or a refusal; and what was written to it.
struct Text {
    shown: RefCell<Result<Vec<u8>, Errno>>,
    stored: RefCell<Vec<(u64, Vec<u8>)>>,
}

impl Driver for Text {
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

impl Text {
    fn new(text: &[u8]) -> Self {
        Text { shown: RefCell::new(Ok(text.to_vec())), stored: RefCell::default() }
    }

    /// Opens the attribute, whose placeholder has these permissions.
    fn open(&self, mode: u32, flags: i32) -> Result<OwnedFd, Errno> {
        let mut status = rustix::fs::stat("/proc/self/exe").unwrap();
        status.st_mode = libc::S_IFREG | mode;
        attribute::open(self, &path(), &status, flags).map(descriptor::owned)
    }

    /// What a read from the beginning finds.
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

/// What the descriptor itself reads, as one that is not watched would find it.
fn contents(fd: RawFd) -> String {
    let mut file = fs::File::open(format!("/proc/self/fd/{fd}")).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn an_attribute_knows_its_path_by_itself() {
    let fd = Text::new(b"").open(0o644, libc::O_RDONLY).unwrap();
    assert_eq!(attribute::path_of(fd.as_raw_fd()).unwrap().as_bytes(), PATH.as_bytes());
    let other = fs::File::open("/dev/null").unwrap();
    assert!(attribute::path_of(other.as_raw_fd()).is_none());
}

#[test]
fn an_attribute_has_its_text_from_the_opening_on_and_anew_at_each_read() {
    let text = Text::new(b"16\n");
    let fd = text.open(0o644, libc::O_RDONLY).unwrap();
    assert_eq!(contents(fd.as_raw_fd()), "16\n");
    *text.shown.borrow_mut() = Ok(b"7\n".to_vec());
    assert_eq!(text.read(fd.as_raw_fd()).unwrap(), "7\n");
}

#[test]
fn a_refusal_comes_with_the_read_and_not_with_the_opening() {
    let text = Text::new(b"");
    *text.shown.borrow_mut() = Err(Errno::OPNOTSUPP);
    let fd = text.open(0o444, libc::O_RDONLY).unwrap();
    assert_eq!(text.read(fd.as_raw_fd()), Err(Errno::OPNOTSUPP));
}

#[test]
fn permissions_hold_for_root_too() {
    let text = Text::new(b"");
    for (mode, flags, wanted) in [
        (0o444, libc::O_WRONLY, Some(Errno::ACCESS)),
        (0o444, libc::O_RDWR, Some(Errno::ACCESS)),
        (0o200, libc::O_RDONLY, Some(Errno::ACCESS)),
        (0o200, libc::O_WRONLY, None),
        (0o644, libc::O_RDWR | libc::O_TRUNC, None),
        (0o644, libc::O_RDONLY | libc::O_DIRECT, Some(Errno::INVAL)),
    ] {
        assert_eq!(text.open(mode, flags).err(), wanted, "{mode:o} {flags:#x}");
    }
}

#[test]
fn the_descriptor_is_as_the_program_asked_for() {
    let text = Text::new(b"");
    for (flags, closes) in [(libc::O_WRONLY | libc::O_APPEND, false), (libc::O_RDONLY | libc::O_CLOEXEC, true)] {
        let fd = text.open(0o644, flags).unwrap();
        let told = rustix::fs::fcntl_getfl(&fd).unwrap().bits().cast_signed();
        assert_eq!(told & (libc::O_ACCMODE | libc::O_APPEND), flags & (libc::O_ACCMODE | libc::O_APPEND));
        assert_eq!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC), closes);
    }
}

#[test]
fn writes_reach_the_driver_one_by_one_and_move_the_position() {
    let text = Text::new(b"");
    let fd = text.open(0o644, libc::O_WRONLY).unwrap();
    assert_eq!(text.write(fd.as_raw_fd(), b"16\n", None), Ok(3));
    assert_eq!(text.write(fd.as_raw_fd(), b"bad", None), Err(Errno::INVAL));
    assert_eq!(text.write(fd.as_raw_fd(), b"7", None), Ok(1));
    assert_eq!(text.write(fd.as_raw_fd(), b"8", Some(360)), Ok(1));
    assert_eq!(text.write(fd.as_raw_fd(), b"", None), Ok(0));
    let wanted = [(0, b"16\n".to_vec()), (3, b"7".to_vec()), (360, b"8".to_vec())];
    assert_eq!(*text.stored.borrow(), wanted);
    assert_eq!(rustix::fs::tell(&fd), Ok(4));
}

#[test]
fn a_write_gets_a_page_at_most_and_needs_memory_and_permission() {
    let text = Text::new(b"");
    let fd = text.open(0o644, libc::O_WRONLY).unwrap();
    assert_eq!(text.write(fd.as_raw_fd(), &[b'x'; 5000], None), Ok(4096));
    let nowhere = std::ptr::without_provenance(8);
    assert_eq!(attribute::write(&text, fd.as_raw_fd(), &path(), nowhere, 4, None), Err(Errno::FAULT));
    let reader = text.open(0o644, libc::O_RDONLY).unwrap();
    assert_eq!(text.write(reader.as_raw_fd(), b"1", None), Err(Errno::BADF));
}

#[test]
fn a_write_that_nobody_sees_fails() {
    let fd = Text::new(b"").open(0o644, libc::O_WRONLY).unwrap();
    assert_eq!(rustix::io::write(&fd, b"1"), Err(Errno::PERM));
}
