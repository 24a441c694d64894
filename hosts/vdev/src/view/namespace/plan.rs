//! Decides before the fork what is mounted where, so that the child only makes system calls.
//!
//! ```text
//! a path of the driver         the machine has …            action
//! /proc/cpuinfo                an entry of the same kind    the driver's entry is mounted over it
//! /dev/dsa                     only its parent directory    the parent is replaced by a tmpfs with the driver's
//!                                                           entries and the machine's (real ones mounted, links
//!                                                           copied)
//! /sys/bus/pci/devices/0000:…  a parent directory that has  our file system serves the parent directory and shows
//! /dev/char/240:0              only links, or none          the machine's links beside the driver's: entries may
//!                                                           come and go
//! ```
//!
//! A replaced directory has the machine's entries of the start of the run: a device plugged in later does not appear.

use super::tree::Tree;
use crate::tree::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directories on which the file system may be mounted while the view is set up; none is accessed meanwhile. The first
/// is part of procfs; the others are for systems that hide it.
const MOUNT_POINTS: &[&str] = &["/proc/driver", "/mnt", "/tmp"];

/// The steps of the child.
#[derive(Debug)]
pub(super) struct Plan {
    /// Where the file system is mounted during the set-up.
    pub(super) mount_point: CString,
    /// The data argument of mount(2), without the descriptor.
    pub(super) options: CString,
    /// Contents of uid_map and gid_map that map the ids in a user namespace to the same ids outside.
    pub(super) maps: [String; 2],
    /// In order: an action's mount point is created by an earlier action.
    pub(super) actions: Vec<Action>,
    /// The working directory, if it must be entered again because its path now leads to another directory.
    pub(super) working: Option<CString>,
}

/// One directory or file that differs inside the namespace.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// The tree's `path` (relative to its root) is mounted over `at`.
    Show {
        /// Path in the tree.
        path: CString,
        /// Path in the namespace.
        at: CString,
    },
    /// The directory is replaced.
    Replace(Replacement),
}

/// A directory with entries of the machine and of the driver.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Replacement {
    /// The directory's path.
    pub(super) at: CString,
    /// Mount options of the tmpfs.
    pub(super) options: CString,
    /// Programs cannot add entries, as in sysfs.
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
    pub(super) kind: MemberKind,
}

/// The kind of an entry of a replaced directory.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum MemberKind {
    /// The machine's entry, mounted together with all mounts below it.
    Real {
        /// The mount point is a directory, not a file.
        directory: bool,
    },
    /// A link with this text.
    Link(CString),
    /// An entry of the tree: its path, relative to the tree's root.
    Tree {
        /// Path in the tree.
        path: CString,
        /// The mount point is a directory, not a file.
        directory: bool,
    },
}

impl Plan {
    /// A plan without actions.
    pub(super) fn empty() -> Self {
        let planner = Planner {
            machine: Path::new("/"),
            served: BTreeMap::new(),
            replaced: BTreeSet::new(),
            whole: BTreeSet::new(),
        };
        planner.finish().0
    }
}

/// The part of the plan that the file system needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Layout {
    /// Directories that always exist, whether or not the driver lists them.
    pub(super) fixed: BTreeSet<String>,
    /// Those of them in which the machine's links are shown too.
    pub(super) whole: BTreeSet<String>,
}

/// The kind of a driver's entry, as far as mounting is concerned.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Directory,
    File,
    Link(String),
}

#[derive(Debug)]
struct Planner<'a> {
    /// The machine's root; tests use another directory.
    machine: &'a Path,
    /// Paths of the driver that are mounted or, for a link, copied.
    served: BTreeMap<String, Kind>,
    replaced: BTreeSet<String>,
    whole: BTreeSet<String>,
}

/// Decides the child's actions and what the file system shows; `machine` is the machine's root.
pub(super) fn plan(tree: &dyn Tree, machine: &Path) -> (Plan, Layout) {
    let mut planner = Planner { machine, served: BTreeMap::new(), replaced: BTreeSet::new(), whole: BTreeSet::new() };
    // Parents come before their children.
    let roots: BTreeSet<String> = tree.roots().into_iter().collect();
    for path in roots {
        let kind = match tree.entry(&path) {
            Ok(Entry::Link(text)) => Kind::Link(text),
            // The driver creates and removes some directories with their first and last entry. Here they exist from the
            // start: an empty directory tells a program the same as a missing one.
            Ok(Entry::Directory) | Err(_) => Kind::Directory,
            Ok(_) => Kind::File,
        };
        planner.add(&path, &kind);
    }
    for path in tree.merged() {
        if planner.may_serve_whole(&path) {
            planner.extend(&path);
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

    /// True if the directory is missing, unreadable, or contains only links.
    fn may_serve_whole(&self, path: &str) -> bool {
        match self.real(path).read_dir() {
            Ok(mut entries) => {
                !entries.any(|entry| entry.is_ok_and(|entry| !entry.file_type().is_ok_and(|kind| kind.is_symlink())))
            }
            Err(_) => true,
        }
    }

    /// True if the driver serves the path or one of its parents.
    fn is_served(&self, path: &str) -> bool {
        ancestors(path).any(|above| self.served.contains_key(above)) || self.served.contains_key(path)
    }

    /// Plans an entry of the driver at a path.
    fn add(&mut self, path: &str, kind: &Kind) {
        if self.is_served(path) {
            return;
        }
        let same = self.real(path).symlink_metadata().is_ok_and(|metadata| match kind {
            Kind::Directory => metadata.is_dir(),
            Kind::File => metadata.is_file(),
            Kind::Link(_) => false,
        });
        if same || self.extend(parent(path)) {
            self.served.insert(path.to_owned(), kind.clone());
        }
    }

    /// Plans entries that the machine's directory does not have; false if that is impossible.
    fn extend(&mut self, path: &str) -> bool {
        // procfs cannot be replaced: it creates its entries on access. The root contains all other mounts.
        if path == "/" || path == "/proc" || path.starts_with("/proc/") {
            return false;
        }
        if self.is_served(path) || self.replaced.contains(path) {
            return true;
        }
        if !self.may_serve_whole(path) {
            self.replaced.insert(path.to_owned());
            return true;
        }
        let reachable = self.is_real_directory(path) || self.extend(parent(path));
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
        let mount_point = MOUNT_POINTS.iter().find(|point| self.is_real_directory(point)).unwrap_or(&MOUNT_POINTS[0]);
        let options = format!(",rootmode=40755,user_id={user},group_id={group},allow_other,default_permissions");
        let working = std::env::current_dir().ok().filter(|directory| self.is_changed(directory));
        let plan = Plan {
            mount_point: c_string(OsStr::new(mount_point)),
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
        let mut members: BTreeMap<OsString, MemberKind> = BTreeMap::new();
        for entry in real.read_dir().into_iter().flatten().flatten() {
            let what = match entry.file_type() {
                Ok(kind) if kind.is_dir() => MemberKind::Real { directory: true },
                Ok(kind) if kind.is_symlink() => match entry.path().read_link() {
                    Ok(text) => MemberKind::Link(c_string(text.as_os_str())),
                    // Removed since the listing.
                    Err(_) => continue,
                },
                Ok(_) => MemberKind::Real { directory: false },
                Err(_) => continue,
            };
            members.insert(entry.file_name(), what);
        }
        // The driver's entries replace the machine's.
        for (path, kind) in self.served.iter().filter(|(path, _)| parent(path) == at) {
            let what = match kind {
                Kind::Directory => MemberKind::Tree { path: relative(path), directory: true },
                Kind::File => MemberKind::Tree { path: relative(path), directory: false },
                Kind::Link(text) => MemberKind::Link(c_string(OsStr::new(text))),
            };
            members.insert(OsString::from(name(path)), what);
        }
        Replacement {
            at: c_string(OsStr::new(at)),
            options: c_string(OsStr::new(&format!("mode={mode:o},size=4m"))),
            sealed: at == "/sys" || at.starts_with("/sys/"),
            members: members.into_iter().map(|(name, kind)| Member { name: c_string(&name), kind }).collect(),
        }
    }
}

/// The parent directory of a path.
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

/// The parent directories of a path, from the nearest to the root.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors((path != "/").then(|| parent(path)), |above| (*above != "/").then(|| parent(above)))
}

fn depth(path: &str) -> usize {
    ancestors(path).count()
}

fn relative(path: &str) -> CString {
    c_string(OsStr::new(path.trim_start_matches('/')))
}

/// The text as a C string.
pub(super) fn c_string(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).expect("paths, names and texts of links have no zero byte")
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake_driver::FakeDriver;
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A directory tree that stands for the machine; removed when dropped.
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

        /// The planned actions, one line each: `at: +ours real link`.
        fn planned(&self) -> (Vec<String>, Layout) {
            let (plan, layout) = plan(&FakeDriver::default(), &self.0);
            let text = |text: &CString| text.to_str().unwrap().to_owned();
            let member = |member: &Member| match &member.kind {
                MemberKind::Real { directory } => {
                    format!(" {}{}", text(&member.name), if *directory { "/" } else { "" })
                }
                MemberKind::Link(to) => format!(" {}->{}", text(&member.name), text(to)),
                MemberKind::Tree { path, directory } => {
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
    fn mount_points_are_planned_before_their_mounts() {
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
                // The machine's directory has only links, so entries of both may come and go.
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
    fn a_device_of_the_machine_is_replaced_by_ours() {
        let directories =
            [DIRECTORIES, &["sys/bus/dsa", "sys/devices/pci0000:6a", "sys/module/idxd", "dev/dsa"]].concat();
        let links = [("dev/char", "elsewhere"), ("sys/bus/pci/devices/0000:6a:01.0", "../../../devices/real")];
        let machine = Machine::new("device", &directories, &links, &["dev/null", "proc/cpuinfo"]);
        let (actions, _) = machine.planned();
        assert_eq!(
            actions,
            [
                // A link cannot be a mount point.
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
    fn missing_parent_directories_are_ours() {
        // This machine has no pci bus.
        let directories = ["sys/bus/usb", "sys/devices/system", "sys/module/fuse", "dev/shm", "proc"];
        let machine = Machine::new("way", &directories, &[], &["proc/cpuinfo", "dev/null"]);
        let (actions, layout) = machine.planned();
        assert!(actions.contains(&"/sys/bus: +dsa/ +pci/ usb/".to_owned()), "{actions:?}");
        assert!(layout.whole.contains("/sys/bus/pci") && layout.whole.contains("/sys/bus/pci/devices"));
    }
}
