//! The directory in which one user's runs keep their state and the files that are preloaded.
//!
//! Programs of a run hold paths into it for as long as they live, also after the run has ended. So no other user may ever be able to
//! create, replace or remove what such a path names:
//!
//! ```text
//! $TELPHER_RUNTIME_DIR              if it is set, and no other
//! /run/telpher/0                    root
//! $XDG_RUNTIME_DIR/telpher          other users
//! /dev/shm/telpher-<uid>-<random>   where these cannot be had; made like mkdtemp(3) does, and found again by its owner
//! /tmp/telpher-<uid>-<random>
//! ```
//!
//! Owner and mode are checked at each start. The directory is never removed, and neither is what is preloaded.

use crate::error::LaunchError;
use crate::run_directory::{LONGEST_PARENT, OPEN};
use rustix::fs::{CWD, FileType, Mode, RawDir, Stat, StatVfsMountFlags, fchmod, fstat, fstatvfs, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Names the directory in place of all others.
pub const VARIABLE: &str = "TELPHER_RUNTIME_DIR";

/// Write permission of others than the owner.
const OTHERS_WRITE: u32 = 0o022;
/// In such a directory a user removes and renames only what is his own.
const STICKY: u32 = 0o1000;
/// All may look what is in it, and its owner alone may change that.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// Why a place is not fit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum Unfit {
    #[error("{0}")]
    System(#[from] Errno),
    #[error("user {owner} owns {}", path.display())]
    Owner { path: PathBuf, owner: u32 },
    #[error("other users may write to {} (mode {mode:o})", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("it is mounted noexec, so libraries in it cannot be loaded")]
    NoExec,
    #[error("its path is longer than {most} bytes")]
    Long { most: usize },
    #[error("its path has a blank, ':' or '$', which LD_PRELOAD cannot have")]
    Characters,
    #[error("its path is not absolute")]
    Relative,
}

/// Where the directory may be.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// At this path. Up to `make` of the last directories are made if they are missing.
    At { path: PathBuf, make: usize },
    /// Below a directory to which all users may write, under a random name.
    Below(PathBuf),
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Place::At { path, .. } | Place::Below(path) => path,
        }
    }
}

/// The directory of one user's runs.
#[derive(Debug)]
pub struct UserDirectory {
    path: PathBuf,
    directory: OwnedFd,
}

impl UserDirectory {
    /// Opens the directory of the calling user, and makes it if there is none.
    ///
    /// # Errors
    /// If no place is fit, with the reason for each.
    pub fn open() -> Result<Self, LaunchError> {
        let (places, named) = places();
        Self::open_in(&places).map_err(|tried| {
            if named { LaunchError::NamedDirectory { tried } } else { LaunchError::Directory { tried } }
        })
    }

    /// The calling user's directories that are there already: more than one if places have become fit or unfit between runs.
    #[must_use]
    pub fn existing() -> Vec<Self> {
        let found = |place: Place| match place {
            Place::At { path, .. } => at(&path, 0).into_iter().collect(),
            Place::Below(base) => below(&base),
        };
        places().0.into_iter().flat_map(found).collect()
    }

    /// The first place that is fit.
    fn open_in(places: &[Place]) -> Result<Self, String> {
        let mut tried = Vec::new();
        for place in places {
            match Self::open_at(place) {
                Ok(found) => return Ok(found),
                Err(why) => tried.push(format!("{} ({why})", place.path().display())),
            }
        }
        Err(tried.join(", "))
    }

    fn open_at(place: &Place) -> Result<Self, Unfit> {
        let found = match place {
            Place::At { path, make } => at(path, *make)?,
            Place::Below(base) => match below(base).into_iter().next() {
                Some(found) => found,
                None => make_below(base)?,
            },
        };
        check_path(&found.path)?;
        if fstatvfs(&found.directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(Unfit::NoExec);
        }
        Ok(found)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Places in the order in which they are tried; true if the user has named the only one.
fn places() -> (Vec<Place>, bool) {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return (vec![Place::At { path: named.into(), make: 1 }], true);
    }
    let own = if geteuid().is_root() {
        Some(Place::At { path: "/run/telpher/0".into(), make: 2 })
    } else {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        runtime.map(|runtime| Place::At { path: runtime.join("telpher"), make: 1 })
    };
    let shared = ["/dev/shm", "/tmp"].map(|base| Place::Below(base.into()));
    (own.into_iter().chain(shared).collect(), false)
}

/// Checks what the words around a path demand of it.
fn check_path(path: &Path) -> Result<(), Unfit> {
    let bytes = path.as_os_str().as_bytes();
    let most = LONGEST_PARENT;
    if bytes.len() > most {
        return Err(Unfit::Long { most });
    }
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':' | b'$' | b'\t' | b'\n')) {
        return Err(Unfit::Characters);
    }
    Ok(())
}

/// The directory at a path of which every part is safe from other users; its last `make` parts are made if they are missing.
fn at(path: &Path, make: usize) -> Result<UserDirectory, Unfit> {
    if !path.is_absolute() {
        return Err(Unfit::Relative);
    }
    // Links on the way are followed once, here, and the walk below meets none.
    let missing = (0..=make).find_map(|count| {
        let above = path.ancestors().nth(count)?;
        std::fs::canonicalize(above).ok().map(|above| (above, count))
    });
    let (above, missing) = missing.ok_or(Unfit::System(Errno::NOENT))?;
    let present = above.components().count();
    let behind = path.components().skip(path.components().count() - missing);
    let path = above.join(behind.collect::<PathBuf>());

    let mut directory = openat(CWD, "/", OPEN, Mode::empty())?;
    let mut walked = PathBuf::from("/");
    for (index, part) in path.components().enumerate().skip(1) {
        check_parent(&walked, &fstat(&directory)?)?;
        let Component::Normal(name) = part else { return Err(Unfit::Relative) };
        let made = index >= present && make_directory(&directory, name)?;
        directory = openat(&directory, name, OPEN, Mode::empty())?;
        if made {
            // The process' file mode mask may have taken bits away.
            fchmod(&directory, DIRECTORY_MODE)?;
        }
        walked.push(name);
    }
    check_own(&walked, &fstat(&directory)?)?;
    Ok(UserDirectory { path, directory })
}

/// Makes a directory. False if there was one, which another start of this user may have made this moment.
fn make_directory(parent: &OwnedFd, name: &OsStr) -> Result<bool, Errno> {
    match mkdirat(parent, name, DIRECTORY_MODE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// This user's directories below a directory to which all users may write, in the order of their names.
fn below(base: &Path) -> Vec<UserDirectory> {
    let Ok(shared) = openat(CWD, base, OPEN, Mode::empty()) else { return Vec::new() };
    let prefix = prefix();
    let mut names = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&shared, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        if entry.file_name().to_bytes().starts_with(prefix.as_bytes()) {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort_unstable();
    let own = |name: std::ffi::CString| {
        let path = base.join(OsStr::from_bytes(name.as_bytes()));
        let directory = openat(&shared, &name, OPEN, Mode::empty()).ok()?;
        check_own(&path, &fstat(&directory).ok()?).ok()?;
        Some(UserDirectory { path, directory })
    };
    names.into_iter().filter_map(own).collect()
}

/// Makes a directory with a random name, as mkdtemp(3) does.
fn make_below(base: &Path) -> Result<UserDirectory, Unfit> {
    let shared = openat(CWD, base, OPEN, Mode::empty())?;
    let status = fstat(&shared)?;
    check_parent(base, &status)?;
    loop {
        let mut random = [0; 8];
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()))?;
        let name = format!("{}{:016x}", prefix(), u64::from_ne_bytes(random));
        match mkdirat(&shared, &name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let directory = openat(&shared, &name, OPEN, Mode::empty())?;
        fchmod(&directory, DIRECTORY_MODE)?;
        check_own(&base.join(&name), &fstat(&directory)?)?;
        return Ok(UserDirectory { path: base.join(name), directory });
    }
}

fn prefix() -> String {
    format!("telpher-{}-", geteuid().as_raw())
}

/// Refuses a directory in which another user could replace an entry.
fn check_parent(path: &Path, status: &Stat) -> Result<(), Unfit> {
    let (owner, mode) = (status.st_uid, status.st_mode & 0o7777);
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(Unfit::Owner { path: path.into(), owner });
    }
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Err(Unfit::Writable { path: path.into(), mode });
    }
    Ok(())
}

/// Refuses a directory that is not this user's alone to change.
fn check_own(path: &Path, status: &Stat) -> Result<(), Unfit> {
    let (owner, mode) = (status.st_uid, status.st_mode & 0o7777);
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        return Err(Unfit::System(Errno::NOTDIR));
    }
    if owner != geteuid().as_raw() {
        return Err(Unfit::Owner { path: path.into(), owner });
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(Unfit::Writable { path: path.into(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    /// A directory of one test's own, gone with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let path = Path::new("/dev/shm").join(format!("test-user-directory-{test}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Scratch(path)
        }

        /// To which all users may write, as to /tmp.
        fn shared(self) -> Self {
            std::fs::set_permissions(&self.0, std::fs::Permissions::from_mode(0o1777)).unwrap();
            self
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn make(path: &Path, mode: u32) {
        std::fs::create_dir_all(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn open(place: &Place) -> Result<PathBuf, Unfit> {
        UserDirectory::open_at(place).map(|found| found.path)
    }

    #[test]
    fn missing_directories_are_made_and_found_again() {
        let scratch = Scratch::new("made");
        let place = Place::At { path: scratch.0.join("telpher/0"), make: 2 };
        for _ in 0..2 {
            assert_eq!(open(&place), Ok(scratch.0.join("telpher/0")));
        }
        for made in ["telpher", "telpher/0"] {
            assert_eq!(std::fs::metadata(scratch.0.join(made)).unwrap().mode() & 0o7777, 0o755);
        }
        let deep = Place::At { path: scratch.0.join("a/b/c"), make: 2 };
        assert_eq!(open(&deep), Err(Unfit::System(Errno::NOENT)));
    }

    #[test]
    fn a_link_on_the_way_is_followed_and_one_at_the_end_of_a_shared_directory_is_not() {
        let scratch = Scratch::new("links").shared();
        make(&scratch.0.join("real"), 0o755);
        symlink("real", scratch.0.join("link")).unwrap();
        let place = Place::At { path: scratch.0.join("link/telpher"), make: 1 };
        assert_eq!(open(&place), Ok(scratch.0.join("real/telpher")));
        symlink("real", scratch.0.join(format!("{}0", prefix()))).unwrap();
        let found = open(&Place::Below(scratch.0.clone())).unwrap();
        assert_ne!(found, scratch.0.join(format!("{}0", prefix())));
        assert!(found.symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let scratch = Scratch::new("writable");
        let own = scratch.0.join("own");
        make(&own, 0o775);
        let place = Place::At { path: own.clone(), make: 0 };
        assert_eq!(open(&place), Err(Unfit::Writable { path: own.clone(), mode: 0o775 }));
        make(&own.join("below"), 0o755);
        let place = Place::At { path: own.join("below"), make: 0 };
        assert_eq!(open(&place), Err(Unfit::Writable { path: own.clone(), mode: 0o775 }));
        // Where each user changes only what is his own, the parent may be writable, and the directory not.
        make(&own, 0o1777);
        assert_eq!(open(&place), Ok(own.join("below")));
        let place = Place::At { path: own.clone(), make: 0 };
        assert_eq!(open(&place), Err(Unfit::Writable { path: own, mode: 0o1777 }));
    }

    /// What broke: any user could make root's directory first, and so refuse root's runs, or have root write into it.
    #[test]
    fn another_users_directory_of_the_right_name_is_passed_over() {
        if !geteuid().is_root() {
            return skip("another_users_directory_of_the_right_name_is_passed_over", "only root can give files away");
        }
        let scratch = Scratch::new("foreign").shared();
        let foreign = scratch.0.join(format!("{}0", prefix()));
        make(&foreign, 0o755);
        chown(&foreign, Some(65534), None).unwrap();
        let place = Place::Below(scratch.0.clone());
        let found = open(&place).unwrap();
        assert_ne!(found, foreign);
        assert_eq!(open(&place), Ok(found));
        let place = Place::At { path: foreign.clone(), make: 0 };
        assert_eq!(open(&place), Err(Unfit::Owner { path: foreign.clone(), owner: 65534 }));
        make(&foreign.join("below"), 0o755);
        let place = Place::At { path: foreign.join("below"), make: 0 };
        assert_eq!(open(&place), Err(Unfit::Owner { path: foreign, owner: 65534 }));
    }

    #[test]
    fn directories_with_random_names_are_found_again_by_all_starts() {
        let scratch = Scratch::new("random").shared();
        let place = Place::Below(scratch.0.clone());
        std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&place).unwrap())).collect();
            starts.into_iter().for_each(|start| assert!(start.join().unwrap().starts_with(&scratch.0)));
        });
        assert_eq!(open(&place), open(&place));
        assert!(below(&scratch.0).iter().any(|found| Ok(found.path.clone()) == open(&place)));
    }

    #[test]
    fn a_path_that_the_loader_cannot_have_is_refused() {
        let scratch = Scratch::new("paths");
        for (name, why) in [("a b", Unfit::Characters), ("a:b", Unfit::Characters), ("$ORIGIN", Unfit::Characters)] {
            assert_eq!(open(&Place::At { path: scratch.0.join(name), make: 1 }), Err(why), "{name}");
        }
        let long = open(&Place::At { path: scratch.0.join("x".repeat(100)), make: 1 });
        assert_eq!(long, Err(Unfit::Long { most: LONGEST_PARENT }));
        assert_eq!(open(&Place::At { path: "telpher".into(), make: 1 }), Err(Unfit::Relative));
    }

    #[test]
    fn each_place_that_was_tried_is_told_with_its_reason() {
        let places = [Place::At { path: "/nowhere/at/all".into(), make: 1 }, Place::Below("/nowhere".into())];
        let tried = UserDirectory::open_in(&places).unwrap_err();
        assert!(tried.starts_with("/nowhere/at/all (No such file") && tried.contains(", /nowhere (No such"), "{tried}");
    }
}
