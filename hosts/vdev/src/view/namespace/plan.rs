//! What goes where, decided before the fork: so that the child only makes system calls.
//!
//! ```text
//! a path of ours               the machine has …            and so
//! /proc/cpuinfo                the same kind of thing       ours is mounted over it
//! /dev/dsa                     not; its directory does      the directory is replaced: a tmpfs with the machine's entries
//!                                                           (mounts of the real ones, copies of links) and ours
//! /sys/bus/pci/devices/0000:…  not; its directory has only  the directory is served wholly by our file system, which shows
//! /dev/char/240:0              links, or is not there       the machine's links beside ours: entries may come and go
//! ```
//!
//! What was replaced is the machine's as it was at the start: a device plugged in later is not in it.

use super::tree::Tree;
use crate::tree::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directories that the file system may stand on while the view is made; none is looked into meanwhile. The first is part of
/// procfs, the others are there for systems that hide it.
const PLACES: &[&str] = &["/proc/driver", "/mnt", "/tmp"];

/// What the child does.
#[derive(Debug)]
pub(super) struct Plan {
    /// Where the file system stands meanwhile.
    pub(super) place: CString,
    /// mount(2)'s data, without the descriptor.
    pub(super) options: CString,
    /// What makes a user namespace's ids the ones outside: uid_map and gid_map.
    pub(super) maps: [String; 2],
    /// In order: who is mounted upon comes before.
    pub(super) actions: Vec<Action>,
    /// Working directory, if it is to be entered again because what stands there is another.
    pub(super) working: Option<CString>,
}

/// One directory or file that is another inside.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// The tree's `path` (relative to its root) is mounted over `at`.
    Show {
        /// In the tree.
        path: CString,
        /// Outside.
        at: CString,
    },
    /// The directory is replaced.
    Replace(Replacement),
}

/// A directory of real entries and ours.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Replacement {
    /// Which.
    pub(super) at: CString,
    /// tmpfs's options.
    pub(super) options: CString,
    /// Nobody can add entries, as in sysfs.
    pub(super) sealed: bool,
    /// Its entries.
    pub(super) members: Vec<Member>,
}

/// An entry of a replaced directory.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Member {
    /// Its name.
    pub(super) name: CString,
    /// What it is.
    pub(super) what: What,
}

/// What an entry of a replaced directory is.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum What {
    /// The machine's, mounted with all that is mounted below.
    Real {
        /// Mounted on a directory, not on a file.
        directory: bool,
    },
    /// A link with this text.
    Link(CString),
    /// The tree's path, relative to its root.
    Tree {
        /// In the tree.
        path: CString,
        /// Mounted on a directory, not on a file.
        directory: bool,
    },
}

impl Plan {
    /// The plan that shows nothing.
    pub(super) fn of_nothing() -> Self {
        let planner = Planner {
            machine: Path::new("/"),
            served: BTreeMap::new(),
            replaced: BTreeSet::new(),
            whole: BTreeSet::new(),
        };
        planner.finish().0
    }
}

/// What the file system has to know of the plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Layout {
    /// Directories that are there whatever the driver says.
    pub(super) fixed: BTreeSet<String>,
    /// Of them, those in which the machine's links are shown too.
    pub(super) whole: BTreeSet<String>,
}

/// A thing of ours as far as mounting is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Directory,
    File,
    Link(String),
}

#[derive(Debug)]
struct Planner<'a> {
    /// Where the machine's root is; another place only in tests.
    machine: &'a Path,
    /// Paths of ours that are mounted or, if a link, copied.
    served: BTreeMap<String, Kind>,
    replaced: BTreeSet<String>,
    whole: BTreeSet<String>,
}

/// Decides what the child will do, and what the file system shows; `machine` is the machine's root.
pub(super) fn plan(tree: &dyn Tree, machine: &Path) -> (Plan, Layout) {
    let mut planner = Planner { machine, served: BTreeMap::new(), replaced: BTreeSet::new(), whole: BTreeSet::new() };
    // Above comes before below.
    let roots: BTreeSet<String> = tree.roots().into_iter().collect();
    for path in roots {
        let kind = match tree.entry(&path) {
            Ok(Entry::Link(text)) => Kind::Link(text),
            // The driver makes and removes some directories with their first and last entry. They are there from the start:
            // whoever lists one that is empty learns what one that is missing would have told.
            Ok(Entry::Directory) | Err(_) => Kind::Directory,
            Ok(_) => Kind::File,
        };
        planner.place(&path, &kind);
    }
    for path in tree.merged() {
        if planner.may_be_whole(&path) {
            planner.gain(&path);
        }
    }
    planner.finish()
}

impl Planner<'_> {
    fn real(&self, path: &str) -> PathBuf {
        self.machine.join(path.trim_start_matches('/'))
    }

    fn is_real_directory(&self, path: &str) -> bool {
        self.real(path).symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
    }

    /// True if the directory is missing, cannot be looked into, or has nothing but links.
    fn may_be_whole(&self, path: &str) -> bool {
        match self.real(path).read_dir() {
            Ok(mut entries) => {
                !entries.any(|entry| entry.is_ok_and(|entry| !entry.file_type().is_ok_and(|kind| kind.is_symlink())))
            }
            Err(_) => true,
        }
    }

    /// True if the path, or a directory on the way to it, is ours.
    fn is_served(&self, path: &str) -> bool {
        ancestors(path).any(|above| self.served.contains_key(above)) || self.served.contains_key(path)
    }

    /// Something of ours shall be seen at the path.
    fn place(&mut self, path: &str, kind: &Kind) {
        if self.is_served(path) {
            return;
        }
        let same = self.real(path).symlink_metadata().is_ok_and(|metadata| match kind {
            Kind::Directory => metadata.is_dir(),
            Kind::File => metadata.is_file(),
            Kind::Link(_) => false,
        });
        if same || self.gain(parent(path)) {
            self.served.insert(path.to_owned(), kind.clone());
        }
    }

    /// The directory shall have entries that the machine's has not; false if that cannot be.
    fn gain(&mut self, path: &str) -> bool {
        // procfs cannot be replaced: it makes its entries as one looks. The root is where all stand.
        if path == "/" || path == "/proc" || path.starts_with("/proc/") {
            return false;
        }
        if self.is_served(path) || self.replaced.contains(path) {
            return true;
        }
        if !self.may_be_whole(path) {
            self.replaced.insert(path.to_owned());
            return true;
        }
        let reachable = self.is_real_directory(path) || self.gain(parent(path));
        if reachable {
            self.whole.insert(path.to_owned());
            self.served.insert(path.to_owned(), Kind::Directory);
        }
        reachable
    }

    fn finish(self) -> (Plan, Layout) {
        let mut actions: Vec<(usize, Action)> = Vec::new();
        for path in &self.replaced {
            actions.push((depth(path), Action::Replace(self.replacement(path))));
        }
        for (path, kind) in &self.served {
            let inside = ancestors(path).any(|above| self.served.contains_key(above));
            if inside || self.replaced.contains(parent(path)) || matches!(kind, Kind::Link(_)) {
                continue;
            }
            let show = Action::Show { path: relative(path), at: c_string(OsStr::new(path)) };
            actions.push((depth(path), show));
        }
        actions.sort_by_key(|(depth, _)| *depth);
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let place = PLACES.iter().find(|place| self.is_real_directory(place)).unwrap_or(&PLACES[0]);
        let options = format!(",rootmode=40755,user_id={user},group_id={group},allow_other,default_permissions");
        let working = std::env::current_dir().ok().filter(|directory| self.is_changed(directory));
        let plan = Plan {
            place: c_string(OsStr::new(place)),
            options: c_string(OsStr::new(&options)),
            maps: [format!("{user} {user} 1"), format!("{group} {group} 1")],
            actions: actions.into_iter().map(|(_, action)| action).collect(),
            working: working.map(|directory| c_string(directory.as_os_str())),
        };
        let directories =
            self.served.iter().filter(|(_, kind)| **kind == Kind::Directory).map(|(path, _)| path.as_str());
        let above = self.served.keys().flat_map(|path| ancestors(path));
        let fixed = directories.chain(above).map(str::to_owned).collect();
        (plan, Layout { fixed, whole: self.whole })
    }

    fn is_changed(&self, directory: &Path) -> bool {
        self.replaced.iter().chain(self.served.keys()).any(|path| directory.starts_with(path))
    }

    fn replacement(&self, at: &str) -> Replacement {
        let real = self.real(at);
        let mode = real.metadata().map_or(0o755, |metadata| metadata.permissions().mode() & 0o7777);
        let mut members: BTreeMap<OsString, What> = BTreeMap::new();
        for entry in real.read_dir().into_iter().flatten().flatten() {
            let what = match entry.file_type() {
                Ok(kind) if kind.is_dir() => What::Real { directory: true },
                Ok(kind) if kind.is_symlink() => match entry.path().read_link() {
                    Ok(text) => What::Link(c_string(text.as_os_str())),
                    // Gone since it was listed.
                    Err(_) => continue,
                },
                Ok(_) => What::Real { directory: false },
                Err(_) => continue,
            };
            members.insert(entry.file_name(), what);
        }
        // Ours win.
        for (path, kind) in self.served.iter().filter(|(path, _)| parent(path) == at) {
            let what = match kind {
                Kind::Directory => What::Tree { path: relative(path), directory: true },
                Kind::File => What::Tree { path: relative(path), directory: false },
                Kind::Link(text) => What::Link(c_string(OsStr::new(text))),
            };
            members.insert(OsString::from(name(path)), what);
        }
        Replacement {
            at: c_string(OsStr::new(at)),
            options: c_string(OsStr::new(&format!("mode={mode:o},size=4m"))),
            sealed: at == "/sys" || at.starts_with("/sys/"),
            members: members.into_iter().map(|(name, what)| Member { name: c_string(&name), what }).collect(),
        }
    }
}

/// The directory a path lies in.
pub(super) fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((above, _)) => above,
    }
}

/// A path's last component.
pub(super) fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The directories above a path, from the nearest to the root.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors((path != "/").then(|| parent(path)), |above| (*above != "/").then(|| parent(above)))
}

fn depth(path: &str) -> usize {
    ancestors(path).count()
}

fn relative(path: &str) -> CString {
    c_string(OsStr::new(path.trim_start_matches('/')))
}

/// As system calls take it.
pub(super) fn c_string(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).expect("paths, names and texts of links have no zero byte")
}

#[cfg(test)]
mod tests {
    use super::super::tests::double::Double;
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A machine of files, removed when dropped.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, directories: &[&str], links: &[(&str, &str)], files: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("telpher-plan-{name}-{}", std::process::id()));
            for directory in directories {
                fs::create_dir_all(root.join(directory)).unwrap();
            }
            for (link, text) in links {
                symlink(text, root.join(link)).unwrap();
            }
            for file in files {
                fs::write(root.join(file), "").unwrap();
            }
            Machine(root)
        }

        /// What is done, a line each: `at: +ours real link`.
        fn planned(&self) -> (Vec<String>, Layout) {
            let (plan, layout) = plan(&Double::default(), &self.0);
            let text = |text: &CString| text.to_str().unwrap().to_owned();
            let member = |member: &Member| match &member.what {
                What::Real { directory } => format!(" {}{}", text(&member.name), if *directory { "/" } else { "" }),
                What::Link(to) => format!(" {}->{}", text(&member.name), text(to)),
                What::Tree { path, directory } => {
                    assert!(text(path).ends_with(&format!("/{}", text(&member.name))));
                    format!(" +{}{}", text(&member.name), if *directory { "/" } else { "" })
                }
            };
            let action = |action: &Action| match action {
                Action::Show { path, at } => {
                    assert_eq!(format!("/{}", text(path)), text(at));
                    format!("+{}", text(at))
                }
                Action::Replace(replacement) => {
                    assert_eq!(replacement.sealed, text(&replacement.at).starts_with("/sys/"));
                    let members: String = replacement.members.iter().map(member).collect();
                    format!("{}:{members}", text(&replacement.at))
                }
            };
            (plan.actions.iter().map(action).collect(), layout)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    const DIRECTORIES: &[&str] =
        &["sys/bus/pci/devices", "sys/bus/usb", "sys/devices/system", "sys/module/fuse", "dev/shm", "proc/1"];

    #[test]
    fn who_comes_before_is_who_is_mounted_upon() {
        let links = [("dev/fd", "/proc/self/fd"), ("sys/bus/pci/devices/0000:00:01.0", "../../../devices/a")];
        let machine = Machine::new("usual", DIRECTORIES, &links, &["dev/null", "proc/cpuinfo"]);
        let (actions, layout) = machine.planned();
        assert_eq!(
            actions,
            [
                "/dev: +char/ +dsa/ fd->/proc/self/fd null shm/",
                "/sys/bus: +dsa/ pci/ usb/",
                "/sys/devices: +pci0000:6a/ system/",
                "/sys/module: fuse/ +idxd/",
                "+/proc/cpuinfo",
                // The machine's has links only, so ours and its own may come and go.
                "+/sys/bus/pci/devices",
            ]
        );
        assert_eq!(layout.whole, ["/dev/char", "/sys/bus/pci/devices"].map(str::to_owned).into());
        for fixed in ["/", "/sys", "/sys/bus", "/dev/dsa", "/dev/char"] {
            assert!(layout.fixed.contains(fixed), "{fixed}");
        }
        assert!(!layout.fixed.contains("/proc/cpuinfo"), "a file");
    }

    #[test]
    fn a_machine_that_has_the_device_shows_ours_instead() {
        let directories =
            [DIRECTORIES, &["sys/bus/dsa", "sys/devices/pci0000:6a", "sys/module/idxd", "dev/dsa"]].concat();
        let links = [("dev/char", "elsewhere"), ("sys/bus/pci/devices/0000:6a:01.0", "../../../devices/real")];
        let machine = Machine::new("device", &directories, &links, &["dev/null", "proc/cpuinfo"]);
        let (actions, _) = machine.planned();
        assert_eq!(
            actions,
            [
                // What is a link there cannot be mounted upon.
                "/dev: +char/ +dsa/ null shm/",
                "+/proc/cpuinfo",
                "+/sys/bus/dsa",
                "+/sys/devices/pci0000:6a",
                "+/sys/module/idxd",
                "+/sys/bus/pci/devices",
            ]
        );
    }

    #[test]
    fn procfs_is_never_replaced() {
        let machine = Machine::new("proc", DIRECTORIES, &[], &["dev/null"]);
        let (actions, layout) = machine.planned();
        assert!(actions.iter().all(|action| !action.contains("/proc")), "{actions:?}");
        assert!(layout.fixed.iter().all(|path| !path.starts_with("/proc")));
    }

    #[test]
    fn what_is_missing_on_the_way_is_ours() {
        // No pci bus at all.
        let directories = ["sys/bus/usb", "sys/devices/system", "sys/module/fuse", "dev/shm", "proc"];
        let machine = Machine::new("way", &directories, &[], &["proc/cpuinfo", "dev/null"]);
        let (actions, layout) = machine.planned();
        assert!(actions.contains(&"/sys/bus: +dsa/ +pci/ usb/".to_owned()), "{actions:?}");
        assert!(layout.whole.contains("/sys/bus/pci") && layout.whole.contains("/sys/bus/pci/devices"));
    }
}
