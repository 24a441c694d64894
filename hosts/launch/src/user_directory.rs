//! The directory for one user's run directories and preloaded files.
//!
//! Programs of a run keep paths into it as long as they live, also after the run has ended. So no other user may be
//! able to create, replace or remove a file at such a path. Candidates, in this order:
//!
//! ```text
//! $TELPHER_RUNTIME_DIR              if it is set; then the only candidate
//! /run/telpher/0                    root
//! $XDG_RUNTIME_DIR/telpher          other users
//! /dev/shm/telpher-<uid>-<random>   if none above is available; created like mkdtemp(3), found again by its owner
//! /tmp/telpher-<uid>-<random>
//! ```
//!
//! Owner and mode are checked at each start. Neither the directory nor the preloaded files are ever removed.

use crate::error::LaunchError;
use crate::run_kind::{LONGEST_PARENT, OPEN};
use rustix::fs::{CWD, FileType, Mode, RawDir, Stat, StatVfsMountFlags, fchmod, fstat, fstatvfs, mkdirat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The environment variable that names the directory and excludes all other candidates.
pub const VARIABLE: &str = "TELPHER_RUNTIME_DIR";

/// Write permission for users other than the owner.
const OTHERS_WRITE: u32 = 0o022;
/// In a directory with this bit, users can remove and rename only their own entries.
const STICKY: u32 = 0o1000;
/// Every user may read the directory; only its owner may change it.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// Why a candidate is not suitable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum Unsuitable {
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
    #[error("its path has a blank, ':' or '$', which LD_PRELOAD cannot contain")]
    Characters,
    #[error("its path is not absolute")]
    Relative,
}

/// A candidate for the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Candidate {
    /// This path. Up to `make` of its last directories are created if they are missing.
    At { path: PathBuf, make: usize },
    /// A directory with a random name in this directory, to which all users may write.
    Below(PathBuf),
}

impl Candidate {
    fn path(&self) -> &Path {
        match self {
            Candidate::At { path, .. } | Candidate::Below(path) => path,
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
    /// Opens the directory of the calling user, and creates it if there is none.
    ///
    /// # Errors
    /// If no candidate is suitable, with the reason for each.
    pub fn open() -> Result<Self, LaunchError> {
        let (places, named) = places();
        Self::open_in(&places).map_err(|tried| {
            if named { LaunchError::NamedDirectory { tried } } else { LaunchError::Directory { tried } }
        })
    }

    /// Opens the directory for files that stay when the machine is shut down, and creates it if there is none:
    ///
    /// ```text
    /// $XDG_CACHE_HOME/telpher     if the variable is set
    /// /var/cache/telpher          root
    /// $HOME/.cache/telpher        other users
    /// ```
    ///
    /// # Errors
    /// If no candidate is suitable, with the reason for each.
    pub fn lasting() -> Result<Self, LaunchError> {
        let places = lasting_places();
        let opened = if places.is_empty() { Err("HOME is not set".into()) } else { Self::open_in(&places) };
        opened.map_err(|tried| LaunchError::LastingDirectory { tried })
    }

    /// Returns the calling user's directories that exist: more than one if a candidate became suitable or unsuitable
    /// between runs.
    #[must_use]
    pub fn existing() -> Vec<Self> {
        let found = |place: Candidate| match place {
            Candidate::At { path, .. } => at(&path, 0).into_iter().collect(),
            Candidate::Below(base) => below(&base),
        };
        places().0.into_iter().flat_map(found).collect()
    }

    /// Opens the first suitable candidate.
    fn open_in(places: &[Candidate]) -> Result<Self, String> {
        let mut tried = Vec::new();
        for place in places {
            match Self::open_at(place) {
                Ok(found) => return Ok(found),
                Err(why) => tried.push(format!("{} ({why})", place.path().display())),
            }
        }
        Err(tried.join(", "))
    }

    fn open_at(place: &Candidate) -> Result<Self, Unsuitable> {
        let found = match place {
            Candidate::At { path, make } => at(path, *make)?,
            Candidate::Below(base) => match below(base).into_iter().next() {
                Some(found) => found,
                None => make_below(base)?,
            },
        };
        check_path(&found.path)?;
        if fstatvfs(&found.directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err(Unsuitable::NoExec);
        }
        Ok(found)
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A descriptor of the directory.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Returns the candidates in the order in which they are tried; true if the user named the only one.
fn places() -> (Vec<Candidate>, bool) {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return (vec![Candidate::At { path: named.into(), make: 1 }], true);
    }
    let own = if geteuid().is_root() {
        Some(Candidate::At { path: "/run/telpher/0".into(), make: 2 })
    } else {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        runtime.map(|runtime| Candidate::At { path: runtime.join("telpher"), make: 1 })
    };
    let shared = ["/dev/shm", "/tmp"].map(|base| Candidate::Below(base.into()));
    (own.into_iter().chain(shared).collect(), false)
}

/// Returns the candidates for files that stay.
fn lasting_places() -> Vec<Candidate> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_user = if geteuid().is_root() {
        Some(Candidate::At { path: "/var/cache/telpher".into(), make: 1 })
    } else {
        absolute("HOME").map(|home| Candidate::At { path: home.join(".cache/telpher"), make: 2 })
    };
    let named = absolute("XDG_CACHE_HOME").map(|cache| Candidate::At { path: cache.join("telpher"), make: 2 });
    named.into_iter().chain(of_user).collect()
}

/// Checks the path's length and characters.
fn check_path(path: &Path) -> Result<(), Unsuitable> {
    let most = LONGEST_PARENT;
    if path.as_os_str().len() > most {
        return Err(Unsuitable::Long { most });
    }
    if is_preloadable(path) { Ok(()) } else { Err(Unsuitable::Characters) }
}

/// Returns whether `LD_PRELOAD` can contain a path.
pub(super) fn is_preloadable(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$' | b'\t' | b'\n'))
}

/// Opens the directory at a path that no other user can redirect. Creates its last `make` components if they are
/// missing.
fn at(path: &Path, make: usize) -> Result<UserDirectory, Unsuitable> {
    if !path.is_absolute() {
        return Err(Unsuitable::Relative);
    }
    // Symbolic links in the path are resolved once, here; the walk below refuses them.
    let missing = (0..=make).find_map(|count| {
        let above = path.ancestors().nth(count)?;
        std::fs::canonicalize(above).ok().map(|above| (above, count))
    });
    let (above, missing) = missing.ok_or(Unsuitable::System(Errno::NOENT))?;
    let present = above.components().count();
    let behind = path.components().skip(path.components().count() - missing);
    let path = above.join(behind.collect::<PathBuf>());

    let mut directory = openat(CWD, "/", OPEN, Mode::empty())?;
    let mut walked = PathBuf::from("/");
    for (index, part) in path.components().enumerate().skip(1) {
        check_parent(&walked, &fstat(&directory)?)?;
        let Component::Normal(name) = part else { return Err(Unsuitable::Relative) };
        let made = index >= present && make_directory(&directory, name)?;
        directory = openat(&directory, name, OPEN, Mode::empty())?;
        if made {
            // The process's umask may have cleared bits.
            fchmod(&directory, DIRECTORY_MODE)?;
        }
        walked.push(name);
    }
    check_own(&walked, &fstat(&directory)?)?;
    Ok(UserDirectory { path, directory })
}

/// Creates a directory. Returns false if it existed; another process of this user may just have created it.
fn make_directory(parent: &OwnedFd, name: &OsStr) -> Result<bool, Errno> {
    match mkdirat(parent, name, DIRECTORY_MODE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// This user's directories in a directory to which all users may write, sorted by name.
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

/// Creates a directory with a random name, as mkdtemp(3) does.
fn make_below(base: &Path) -> Result<UserDirectory, Unsuitable> {
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
fn check_parent(path: &Path, status: &Stat) -> Result<(), Unsuitable> {
    let (owner, mode) = (status.st_uid, status.st_mode & 0o7777);
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(Unsuitable::Owner { path: path.into(), owner });
    }
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Err(Unsuitable::Writable { path: path.into(), mode });
    }
    Ok(())
}

/// Refuses a directory that users other than this one can change.
fn check_own(path: &Path, status: &Stat) -> Result<(), Unsuitable> {
    let (owner, mode) = (status.st_uid, status.st_mode & 0o7777);
    if FileType::from_raw_mode(status.st_mode) != FileType::Directory {
        return Err(Unsuitable::System(Errno::NOTDIR));
    }
    if owner != geteuid().as_raw() {
        return Err(Unsuitable::Owner { path: path.into(), owner });
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(Unsuitable::Writable { path: path.into(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    /// A temporary directory for one test; removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let path = Path::new("/dev/shm").join(format!("test-user-directory-{test}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Scratch(path)
        }

        /// Lets all users write to it, as to /tmp.
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

    fn open(place: &Candidate) -> Result<PathBuf, Unsuitable> {
        UserDirectory::open_at(place).map(|found| found.path)
    }

    #[test]
    fn missing_directories_are_created_and_found_again() {
        let scratch = Scratch::new("made");
        let place = Candidate::At { path: scratch.0.join("telpher/0"), make: 2 };
        for _ in 0..2 {
            assert_eq!(open(&place), Ok(scratch.0.join("telpher/0")));
        }
        for made in ["telpher", "telpher/0"] {
            assert_eq!(std::fs::metadata(scratch.0.join(made)).unwrap().mode() & 0o7777, 0o755);
        }
        let deep = Candidate::At { path: scratch.0.join("a/b/c"), make: 2 };
        assert_eq!(open(&deep), Err(Unsuitable::System(Errno::NOENT)));
    }

    #[test]
    fn a_link_within_the_path_is_followed_but_not_one_in_a_shared_directory() {
        let scratch = Scratch::new("links").shared();
        make(&scratch.0.join("real"), 0o755);
        symlink("real", scratch.0.join("link")).unwrap();
        let place = Candidate::At { path: scratch.0.join("link/telpher"), make: 1 };
        assert_eq!(open(&place), Ok(scratch.0.join("real/telpher")));
        symlink("real", scratch.0.join(format!("{}0", prefix()))).unwrap();
        let found = open(&Candidate::Below(scratch.0.clone())).unwrap();
        assert_ne!(found, scratch.0.join(format!("{}0", prefix())));
        assert!(found.symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let scratch = Scratch::new("writable");
        let own = scratch.0.join("own");
        make(&own, 0o775);
        let place = Candidate::At { path: own.clone(), make: 0 };
        assert_eq!(open(&place), Err(Unsuitable::Writable { path: own.clone(), mode: 0o775 }));
        make(&own.join("below"), 0o755);
        let place = Candidate::At { path: own.join("below"), make: 0 };
        assert_eq!(open(&place), Err(Unsuitable::Writable { path: own.clone(), mode: 0o775 }));
        // With the sticky bit the parent may be writable for all users, but the directory itself may not.
        make(&own, 0o1777);
        assert_eq!(open(&place), Ok(own.join("below")));
        let place = Candidate::At { path: own.clone(), make: 0 };
        assert_eq!(open(&place), Err(Unsuitable::Writable { path: own, mode: 0o1777 }));
    }

    /// Regression: another user could create root's directory first, and so prevent root's runs or make root write into
    /// it.
    #[test]
    fn another_users_directory_with_the_right_name_is_skipped() {
        if !geteuid().is_root() {
            return skip("another_users_directory_with_the_right_name_is_skipped", "only root can give files away");
        }
        let scratch = Scratch::new("foreign").shared();
        let foreign = scratch.0.join(format!("{}0", prefix()));
        make(&foreign, 0o755);
        chown(&foreign, Some(65534), None).unwrap();
        let place = Candidate::Below(scratch.0.clone());
        let found = open(&place).unwrap();
        assert_ne!(found, foreign);
        assert_eq!(open(&place), Ok(found));
        let place = Candidate::At { path: foreign.clone(), make: 0 };
        assert_eq!(open(&place), Err(Unsuitable::Owner { path: foreign.clone(), owner: 65534 }));
        make(&foreign.join("below"), 0o755);
        let place = Candidate::At { path: foreign.join("below"), make: 0 };
        assert_eq!(open(&place), Err(Unsuitable::Owner { path: foreign, owner: 65534 }));
    }

    #[test]
    fn concurrent_starts_find_the_same_random_directory() {
        let scratch = Scratch::new("random").shared();
        let place = Candidate::Below(scratch.0.clone());
        std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| open(&place).unwrap())).collect();
            starts.into_iter().for_each(|start| assert!(start.join().unwrap().starts_with(&scratch.0)));
        });
        assert_eq!(open(&place), open(&place));
        assert!(below(&scratch.0).iter().any(|found| Ok(found.path.clone()) == open(&place)));
    }

    #[test]
    fn a_path_that_ld_preload_cannot_contain_is_refused() {
        let scratch = Scratch::new("paths");
        for (name, why) in
            [("a b", Unsuitable::Characters), ("a:b", Unsuitable::Characters), ("$ORIGIN", Unsuitable::Characters)]
        {
            assert_eq!(open(&Candidate::At { path: scratch.0.join(name), make: 1 }), Err(why), "{name}");
        }
        let long = open(&Candidate::At { path: scratch.0.join("x".repeat(100)), make: 1 });
        assert_eq!(long, Err(Unsuitable::Long { most: LONGEST_PARENT }));
        assert_eq!(open(&Candidate::At { path: "telpher".into(), make: 1 }), Err(Unsuitable::Relative));
    }

    #[test]
    fn the_error_names_each_tried_candidate_with_its_reason() {
        let places = [Candidate::At { path: "/nowhere/at/all".into(), make: 1 }, Candidate::Below("/nowhere".into())];
        let tried = UserDirectory::open_in(&places).unwrap_err();
        assert!(tried.starts_with("/nowhere/at/all (No such file") && tried.contains(", /nowhere (No such"), "{tried}");
    }
}
