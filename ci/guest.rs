//! The kernel and the initial file system of a QEMU guest: a Debian kernel, downloaded by `ci/install.sh` or
//! `ci/vm-parts.sh`. Included as `ci/skip.rs` is.
#![allow(dead_code, reason = "each test takes its part")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel with the requested modules.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// As printed by `uname -r`.
    pub(crate) version: String,
    pub(crate) image: Vec<u8>,
    modules: Vec<(String, Vec<u8>)>,
}

impl Kernel {
    /// Reads the kernel from the newest package in the folder `packages`, which is unpacked into the new folder
    /// `folder`.
    ///
    /// # Errors
    /// The missing package, module or tool.
    pub(crate) fn of_package(packages: &Path, folder: &Path, modules: &[&str]) -> Result<Kernel, String> {
        let found = std::fs::read_dir(packages).into_iter().flatten().flatten().map(|entry| entry.path());
        let package = found.filter(|path| path.extension().is_some_and(|end| end == "deb")).max();
        let package = package.ok_or("no kernel for a guest (ci/install.sh downloads one)")?;
        std::fs::create_dir(folder).map_err(|error| format!("no folder {}: {error}", folder.display()))?;
        // `.xz` files are compressed modules.
        let wanted = modules.iter().map(|module| format!(" '*/{module}.ko' '*/{module}.ko.xz'"));
        let wanted: String = wanted.collect();
        let script = format!(
            "dpkg-deb --fsys-tarfile \"$1\" | tar -x -C \"$2\" --wildcards './boot/vmlinuz-*'{wanted} 2>/dev/null || :
             find \"$2\" -name '*.ko.xz' -exec xz -d {{}} +"
        );
        let done = Command::new("sh").args(["-ec", &script, "sh"]).arg(&package).arg(folder).output();
        let done = done.map_err(|error| format!("no shell: {error}"))?;
        let stderr = String::from_utf8_lossy(&done.stderr);
        let files = below(folder);
        let find = |begin: &str| -> Result<(PathBuf, Vec<u8>), String> {
            let named =
                |path: &&PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(begin));
            let why = || format!("{} has no {begin}: is it a Debian kernel? {stderr}", package.display());
            let path = files.iter().find(named).ok_or_else(why)?;
            Ok((path.clone(), std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?))
        };
        let (path, image) = find("vmlinuz-")?;
        let named = path.file_name().unwrap_or_default().to_string_lossy();
        let version = named.trim_start_matches("vmlinuz-").to_owned();
        let module = |name: &&str| Ok((format!("{name}.ko"), find(&format!("{name}.ko"))?.1));
        Ok(Kernel { version, image, modules: modules.iter().map(module).collect::<Result<_, String>>()? })
    }

    /// Reads a kernel that `ci/vm-parts.sh` has unpacked into a folder.
    ///
    /// # Errors
    /// The missing file.
    pub(crate) fn unpacked(folder: &Path, modules: &[&str]) -> Result<Kernel, String> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path)
                .map_err(|error| format!("no {}: {error} (ci/vm-parts.sh downloads it)", path.display()))
        };
        let version = String::from_utf8_lossy(&read("version")?).trim().to_owned();
        let module = |name: &&str| Ok((format!("{name}.ko"), read(&format!("{name}.ko"))?));
        let modules = modules.iter().map(module).collect::<Result<_, String>>()?;
        Ok(Kernel { version, image: read("vmlinuz")?, modules })
    }

    /// Returns true if this kernel has the `wanted` version (major, minor) or a later one.
    pub(crate) fn is_at_least(&self, wanted: (u32, u32)) -> bool {
        let mut numbers =
            self.version.split(|end: char| !end.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= wanted
    }
}

/// Returns all files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { below(&entry.path()) } else { vec![entry.path()] }).collect()
}

/// An initial file system. Source of the format: Linux, Documentation/driver-api/early-userspace/buffer-format.rst
/// ("newc").
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    /// Libraries of programs and the folders above them.
    below: BTreeSet<String>,
}

impl Archive {
    /// Creates an archive with a shell, the given busybox commands, the kernel's modules in load order, and `init` as
    /// the first program.
    ///
    /// # Errors
    /// The missing program.
    pub(crate) fn with_shell(commands: &[&str], kernel: &Kernel, init: &str) -> Result<Archive, String> {
        let mut files = Archive::default();
        for folder in ["bin", "dev", "proc", "sys", "tmp"] {
            files.add(folder, 0o040_755, &[]);
        }
        // The statically linked busybox: the guest has no libraries.
        let shell = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.is_file());
        let shell = shell.ok_or("no busybox (Debian package busybox-static)")?;
        files.add("bin/busybox", 0o100_755, &std::fs::read(shell).map_err(|error| error.to_string())?);
        for command in ["sh"].iter().chain(commands) {
            files.add(&format!("bin/{command}"), 0o120_777, b"busybox");
        }
        for (name, module) in &kernel.modules {
            files.add(name, 0o100_644, module);
        }
        files.add("init", 0o100_755, init.as_bytes());
        Ok(files)
    }

    /// Adds a program of this system, and the libraries that it loads.
    ///
    /// # Errors
    /// The unreadable file.
    pub(crate) fn add_program(&mut self, name: &str, program: &Path) -> Result<(), String> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let stdout = Command::new("ldd").arg(program).output().map_err(|error| format!("no ldd: {error}"))?.stdout;
        let stdout = String::from_utf8_lossy(&stdout);
        for library in stdout.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/'))) {
            let at = library.trim_start_matches('/');
            let mut above: Vec<_> = Path::new(at).ancestors().skip(1).filter(|path| path.as_os_str() != "").collect();
            above.reverse();
            for folder in above {
                let folder = folder.to_str().ok_or("a library's path is not UTF-8")?.to_owned();
                if self.below.insert(folder.clone()) {
                    self.add(&folder, 0o040_755, &[]);
                }
            }
            if self.below.insert(at.to_owned()) {
                self.add(at, 0o100_755, &read(Path::new(library))?);
            }
        }
        self.add(name, 0o100_755, &read(program)?);
        Ok(())
    }

    /// Adds a file, a folder or a link, as its mode says.
    pub(crate) fn add(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(contents.len()).expect("less than 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a short name");
        // Number, mode, owner, group, links, time, size, the device's numbers twice, the name's size, no checksum.
        let header = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in header {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_entries_are_padded_to_multiples_of_four() {
        let mut archive = Archive::default();
        archive.add("a", 0o100_644, b"12345");
        let bytes = archive.end();
        let header = "070701000000010000 81a4".replace(' ', "");
        assert!(bytes.starts_with(header.as_bytes()));
        // 110 bytes of header and two of name, five of contents.
        assert_eq!(
            (&bytes[110..112], &bytes[112..117], &bytes[120..126]),
            (&b"a\0"[..], &b"12345"[..], &b"070701"[..])
        );
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(11).any(|bytes| bytes == b"TRAILER!!!\0"));
    }

    #[test]
    fn is_at_least_compares_major_and_minor_numbers() {
        let kernel = |version: &str| Kernel { version: version.to_owned(), image: Vec::new(), modules: Vec::new() };
        for (version, is) in [("6.1.0-56-cloud-amd64", false), ("6.12.117+deb12-cloud-amd64", true), ("7.0", true)] {
            assert_eq!(kernel(version).is_at_least((6, 8)), is, "{version}");
        }
    }
}
