//! Finds a program and determines its kind from its first bytes: whether it can run, and whether a library can be
//! preloaded.

use crate::error::LaunchError;
use rustix::fs::{Access, AtFlags, CWD, FileType, Stat, accessat, stat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most interpreters of interpreters that are followed. Source: Linux `fs/exec.c`, exec_binprm(): five.
const MAX_INTERPRETERS: usize = 5;
/// Bytes of a file that the kernel examines. Source: Linux `include/uapi/linux/binfmts.h`, BINPRM_BUF_SIZE.
const HEAD_BYTES: usize = 256;

/// A program that can be executed on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The file to execute.
    pub path: PathBuf,
    /// The file that the kernel runs in the end: for a script, its interpreter.
    pub binary: PathBuf,
    /// Why preloading is impossible or useless, as a verb phrase.
    pub unpreloadable: Option<&'static str>,
    /// Whether it is a dynamically linked Go program: a preloaded library sees what its C code does, and nothing else.
    pub is_dynamic_go: bool,
}

impl Program {
    /// Finds a program as a shell does, and examines it.
    ///
    /// # Errors
    /// If the program does not exist, or cannot be executed on the virtual device.
    pub fn find(name: &OsStr, search: Option<&OsStr>) -> Result<Self, LaunchError> {
        let path = locate(name, search)?;
        let mut binary = path.clone();
        for _ in 0..=MAX_INTERPRETERS {
            let file = open(&binary)?;
            let mut head = [0; HEAD_BYTES];
            let len = read(&file, &mut head, 0).map_err(|source| unreadable(&binary, source))?;
            match &head[..len] {
                head if head.starts_with(b"#!") => match interpreter(head) {
                    Some(next) => binary = next,
                    None => break,
                },
                head if head.starts_with(b"\x7fELF") => {
                    let Linking { is_dynamic, is_go, is_musl } = examine(&binary, &file, head)?;
                    gains_rights(&binary)?;
                    let unpreloadable = match (is_dynamic, is_go, is_musl) {
                        (false, true, _) => Some("is a statically linked Go program"),
                        (false, false, _) => Some("is statically linked"),
                        (true, _, true) => Some("is linked to another C library than glibc"),
                        (true, true, false) => Some("is a Go program, which makes its system calls itself"),
                        (true, false, false) => None,
                    };
                    return Ok(Program { path, binary, unpreloadable, is_dynamic_go: is_dynamic && is_go && !is_musl });
                }
                // Neither a script with an interpreter nor ELF: a shell runs the file as a shell script, and so does
                // execvp().
                _ => binary = PathBuf::from("/bin/sh"),
            }
        }
        Err(LaunchError::NotExecutable { program: path, source: io::Error::from_raw_os_error(libc::ELOOP) })
    }
}

fn unreadable(path: &Path, source: io::Error) -> LaunchError {
    LaunchError::NotExecutable { program: path.into(), source }
}

/// Resolves a program's name: a name with a slash is a path; other names are searched for in PATH.
fn locate(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, LaunchError> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Err(LaunchError::NotFound { program: path }),
            Err(source) => Err(unreadable(&path, source)),
        };
    }
    let mut refused = None;
    // Source: POSIX: an empty entry is the working directory. Without PATH: glibc's default.
    let search = search.unwrap_or(OsStr::new("/bin:/usr/bin"));
    for directory in search.as_bytes().split(|byte| *byte == b':').filter(|_| !name.is_empty()) {
        let directory = if directory.is_empty() { b"." } else { directory };
        let path = Path::new(OsStr::from_bytes(directory)).join(name);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                refused.get_or_insert(unreadable(&path, source));
            }
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or(LaunchError::NotFound { program: name.into() }))
}

fn executable(path: &Path) -> io::Result<()> {
    let found = stat(path)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    Ok(accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?)
}

fn open(path: &Path) -> Result<File, LaunchError> {
    File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => LaunchError::NotFound { program: path.into() },
        _ => unreadable(path, source),
    })
}

/// Fills the buffer up to the end of the file; returns the bytes read.
fn read(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Returns the interpreter that a script's first line names.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head[2..].split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\0')).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from(OsStr::from_bytes(name))))
}

/// Reads a little-endian number of N bytes; `None` past the end.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part: [u8; N] = bytes.get(at..at + N)?.try_into().ok()?;
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(&part);
    Some(u64::from_le_bytes(whole))
}

/// Returns whether one of these notes is the build identifier of Go's linker: type 4, name "Go". If a C compiler has
/// linked the program, other notes stand before it.
fn has_go_note(notes: &[u8]) -> bool {
    const BUILD_IDENTIFIER: u64 = 4;
    let mut rest = notes;
    loop {
        let [name, content, kind] = [0, 4, 8].map(|at| number::<4>(rest, at));
        let (Some(name), Some(content), Some(kind)) = (name, content, kind) else { return false };
        if kind == BUILD_IDENTIFIER && name == 4 && rest.get(12..16) == Some(b"Go\0\0") {
            return true;
        }
        let next = 12 + name.next_multiple_of(4) + content.next_multiple_of(4);
        match usize::try_from(next).ok().and_then(|next| rest.get(next..)) {
            Some(behind) => rest = behind,
            None => return false,
        }
    }
}

/// How an ELF file is linked.
#[derive(Clone, Copy, Debug)]
struct Linking {
    /// A dynamic linker loads it.
    is_dynamic: bool,
    /// Go's linker has written it.
    is_go: bool,
    /// The dynamic linker is musl's.
    is_musl: bool,
}

/// Reads an ELF file's program headers. Source: ELF-64 object file format, version 1.5.
fn examine(path: &Path, file: &File, head: &[u8]) -> Result<Linking, LaunchError> {
    const CLASS_64: u8 = 2;
    const X86_64: u64 = 62;
    const I386: u64 = 3;
    const INTERPRETER: u64 = 3;
    const NOTE: u64 = 4;
    /// Most bytes of headers that the kernel accepts. Source: Linux `fs/binfmt_elf.c`, load_elf_phdrs().
    const MOST: u64 = 65536;
    let broken = || unreadable(path, io::Error::from_raw_os_error(libc::ENOEXEC));
    let field = |value: Option<u64>| value.ok_or_else(broken);
    let machine = field(number::<2>(head, 18))?;
    if machine != X86_64 && machine != I386 {
        let machine = u16::try_from(machine).unwrap_or(u16::MAX);
        return Err(LaunchError::OtherMachine { program: path.into(), machine });
    }
    if machine == I386 || head.get(4) != Some(&CLASS_64) {
        return Err(LaunchError::ThirtyTwoBit { program: path.into() });
    }
    let (at, size, count) =
        (field(number::<8>(head, 32))?, field(number::<2>(head, 54))?, field(number::<2>(head, 56))?);
    if size < 56 || size * count > MOST {
        return Err(broken());
    }
    let mut headers = vec![0; usize::try_from(size * count).unwrap_or_default()];
    let len = read(file, &mut headers, at).map_err(|source| unreadable(path, source))?;
    let mut interpreter = None;
    let mut is_go = false;
    for header in headers[..len].chunks_exact(usize::try_from(size).unwrap_or(56)) {
        let (kind, at, size) =
            (field(number::<4>(header, 0))?, field(number::<8>(header, 8))?, field(number::<8>(header, 32))?);
        if kind != INTERPRETER && kind != NOTE {
            continue;
        }
        let mut content = vec![0; usize::try_from(size.min(4096)).unwrap_or_default()];
        let len = read(file, &mut content, at).map_err(|source| unreadable(path, source))?;
        content.truncate(len);
        match kind {
            INTERPRETER => interpreter = Some(content),
            _ => is_go |= has_go_note(&content),
        }
    }
    let is_musl = interpreter.as_ref().is_some_and(|path| path.windows(7).any(|part| part == b"ld-musl"));
    Ok(Linking { is_dynamic: interpreter.is_some(), is_go, is_musl })
}

/// Refuses a program that the kernel executes with AT_SECURE, because the dynamic linker then ignores LD_PRELOAD.
fn gains_rights(path: &Path) -> Result<(), LaunchError> {
    let found = stat(path).map_err(|errno| unreadable(path, errno.into()))?;
    let how = rights_gained(&found, rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut capabilities = [0; 64];
    let mut has_capabilities = || {
        // Root already has every capability.
        !rustix::process::getuid().is_root()
            && rustix::fs::getxattr(path, "security.capability", &mut capabilities).is_ok_and(|len| len > 0)
    };
    match how.or_else(|| has_capabilities().then_some("capabilities")) {
        Some(how) => Err(LaunchError::GainsRights { program: path.into(), how }),
        None => Ok(()),
    }
}

fn rights_gained(found: &Stat, user: u32, group: u32) -> Option<&'static str> {
    const SETUID: u32 = 0o4000;
    // Without the group's execute bit, setgid means mandatory locking.
    const SETGID: u32 = 0o2010;
    if found.st_mode & SETUID != 0 && found.st_uid != user {
        Some("setuid")
    } else if found.st_mode & SETGID == SETGID && found.st_gid != group {
        Some("setgid")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A temporary folder for one test; removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("telpher-program-{}-{test}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Scratch(folder)
        }

        fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Builds an ELF header without program headers.
    fn elf(class: u8, machine: u8) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        (bytes[18], bytes[32], bytes[54]) = (machine, 64, 56);
        bytes
    }

    /// Builds an ELF file with one program header per segment and the segments' contents after all headers.
    fn with_segments(segments: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = elf(2, 62);
        bytes[56] = u8::try_from(segments.len()).unwrap();
        let mut content = Vec::new();
        for (kind, bytes_of) in segments {
            let at = 64 + 56 * segments.len() + content.len();
            let mut header = [0; 56];
            header[0] = *kind;
            header[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(bytes_of.len() as u64).to_le_bytes());
            bytes.extend(header);
            content.extend_from_slice(bytes_of);
        }
        bytes.extend(content);
        bytes
    }

    fn find(path: &Path) -> Result<Program, LaunchError> {
        Program::find(path.as_os_str(), None)
    }

    #[test]
    fn a_name_is_searched_for_and_a_path_is_not() {
        let found = Program::find(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin"))).unwrap();
        assert_eq!((found.path.as_path(), found.unpreloadable), (Path::new("/bin/sh"), None));
        let missing = |name: &str| Program::find(OsStr::new(name), Some(OsStr::new("/bin"))).unwrap_err().exit_code();
        assert_eq!(missing("telpher-no-such"), 127);
        assert_eq!(missing("./telpher-no-such"), 127);
        assert_eq!(missing(""), 127);
    }

    #[test]
    fn a_file_that_may_not_be_executed_differs_from_a_missing_file() {
        let scratch = Scratch::new("executed");
        let path = scratch.file("plain", &elf(2, 62), 0o644);
        let search = path.parent().unwrap().as_os_str();
        assert_eq!(Program::find(OsStr::new("plain"), Some(search)).unwrap_err().exit_code(), 126);
        assert_eq!(find(&path).unwrap_err().exit_code(), 126);
        assert_eq!(find(path.parent().unwrap()).unwrap_err().exit_code(), 126);
    }

    #[test]
    fn the_binary_of_a_script_is_its_interpreter() {
        let scratch = Scratch::new("scripts");
        let script = scratch.file("script", b"#! /bin/sh -e\nexit\n", 0o755);
        let outer = scratch.file("outer", format!("#!{}\n", script.display()).as_bytes(), 0o755);
        for path in [&script, &outer] {
            let found = find(path).unwrap();
            assert_eq!((&found.path, found.binary.as_path()), (path, Path::new("/bin/sh")));
        }
        let bare = scratch.file("bare", b"exit 3\n", 0o755);
        assert_eq!(find(&bare).unwrap().binary, Path::new("/bin/sh"));
        let lost = scratch.file("lost", b"#!/nowhere/interpreter\n", 0o755);
        assert!(
            matches!(find(&lost), Err(LaunchError::NotFound { program }) if program == Path::new("/nowhere/interpreter"))
        );
        let own = scratch.file("own", b"", 0o755);
        std::fs::write(&own, format!("#!{}\n", own.display())).unwrap();
        assert!(matches!(find(&own), Err(LaunchError::NotExecutable { .. })));
    }

    #[test]
    fn programs_for_other_machines_are_refused_with_their_kind() {
        let scratch = Scratch::new("machines");
        assert!(matches!(find(&scratch.file("i386", &elf(1, 3), 0o755)), Err(LaunchError::ThirtyTwoBit { .. })));
        assert!(matches!(find(&scratch.file("x32", &elf(1, 62), 0o755)), Err(LaunchError::ThirtyTwoBit { .. })));
        let arm = find(&scratch.file("arm", &elf(2, 183), 0o755));
        assert!(matches!(arm, Err(LaunchError::OtherMachine { machine: 183, .. })));
        let short = find(&scratch.file("short", &elf(2, 62)[..40], 0o755));
        assert!(matches!(short, Err(LaunchError::NotExecutable { .. })));
    }

    #[test]
    fn static_go_and_musl_programs_are_unpreloadable() {
        let scratch = Scratch::new("preloaded");
        let note = [4, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, b'G', b'o', 0, 0];
        let loader: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
        let why = |segments: &[(u8, &[u8])]| {
            find(&scratch.file("made", &with_segments(segments), 0o755)).unwrap().unpreloadable
        };
        assert_eq!(why(&[(3, loader)]), None);
        assert!(why(&[]).unwrap().contains("statically"));
        assert!(why(&[(4, &note), (3, loader)]).unwrap().contains("Go"));
        assert!(why(&[(4, &note)]).unwrap().contains("statically linked Go"));
        // Behind another note, with a content of 5 bytes and 3 of padding.
        let build_id = [&[4, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[7; 8], &note].concat();
        assert!(why(&[(4, &build_id), (3, loader)]).unwrap().contains("Go"));
        let is_dynamic_go = |segments: &[(u8, &[u8])]| {
            find(&scratch.file("go", &with_segments(segments), 0o755)).unwrap().is_dynamic_go
        };
        let of_go =
            [is_dynamic_go(&[(4, &note), (3, loader)]), is_dynamic_go(&[(4, &note)]), is_dynamic_go(&[(3, loader)])];
        assert_eq!(of_go, [true, false, false]);
        assert!(why(&[(3, b"/lib/ld-musl-x86_64.so.1\0")]).unwrap().contains("C library"));
    }

    #[test]
    fn setuid_gains_rights_only_if_another_user_owns_the_file() {
        let status = |mode, uid, gid| {
            let mut found = stat("/").unwrap();
            (found.st_mode, found.st_uid, found.st_gid) = (mode, uid, gid);
            rights_gained(&found, 1000, 1000)
        };
        assert_eq!(status(0o104755, 0, 0), Some("setuid"));
        assert_eq!(status(0o104755, 1000, 1000), None);
        assert_eq!(status(0o102755, 1000, 5), Some("setgid"));
        assert_eq!(status(0o102745, 1000, 5), None);
        assert_eq!(status(0o100755, 0, 0), None);
    }
}
