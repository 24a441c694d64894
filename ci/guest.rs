//! Linux for a guest of QEMU's: a kernel of Debian's as `ci/install.sh` downloads it, and an initial file system. Taken in as `ci/skip.rs` is.
#![allow(dead_code, reason = "each test takes its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel, and those of its modules that were asked for.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// As uname(1) has it.
    pub(crate) version: String,
    pub(crate) image: Vec<u8>,
    modules: Vec<(String, Vec<u8>)>,
}

impl Kernel {
    /// That of the package in a folder, which is unpacked into another, new one.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn of_package(packages: &Path, room: &Path, modules: &[&str]) -> Result<Kernel, String> {
        let found = std::fs::read_dir(packages).into_iter().flatten().flatten().map(|entry| entry.path());
        let package = found.filter(|path| path.extension().is_some_and(|end| end == "deb")).max();
        let package = package.ok_or("no kernel for a guest (ci/install.sh downloads one)")?;
        std::fs::create_dir(room).map_err(|error| format!("no folder {}: {error}", room.display()))?;
        // What is compressed is named so.
        let wanted = modules.iter().map(|module| format!(" '*/{module}.ko' '*/{module}.ko.xz'"));
        let wanted: String = wanted.collect();
        let script = format!(
            "dpkg-deb --fsys-tarfile \"$1\" | tar -x -C \"$2\" --wildcards './boot/vmlinuz-*'{wanted} 2>/dev/null || :
             find \"$2\" -name '*.ko.xz' -exec xz -d {{}} +"
        );
        let done = Command::new("sh").args(["-ec", &script, "sh"]).arg(&package).arg(room).output();
        let done = done.map_err(|error| format!("no shell: {error}"))?;
        let said = String::from_utf8_lossy(&done.stderr);
        let files = below(room);
        let find = |begin: &str| -> Result<(PathBuf, Vec<u8>), String> {
            let named =
                |path: &&PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(begin));
            let why = || format!("{} has no {begin}: is it a kernel of Debian's? {said}", package.display());
            let path = files.iter().find(named).ok_or_else(why)?;
            Ok((path.clone(), std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?))
        };
        let (path, image) = find("vmlinuz-")?;
        let named = path.file_name().unwrap_or_default().to_string_lossy();
        let version = named.trim_start_matches("vmlinuz-").to_owned();
        let module = |name: &&str| Ok((format!("{name}.ko"), find(&format!("{name}.ko"))?.1));
        Ok(Kernel { version, image, modules: modules.iter().map(module).collect::<Result<_, String>>()? })
    }

    /// True if it is this one, of two numbers, or a later one.
    pub(crate) fn is_at_least(&self, wanted: (u32, u32)) -> bool {
        let mut numbers =
            self.version.split(|end: char| !end.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= wanted
    }
}

/// All files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { below(&entry.path()) } else { vec![entry.path()] }).collect()
}

/// An initial file system. Source of the format: Linux, Documentation/driver-api/early-userspace/buffer-format.rst ("newc").
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// With a shell, which has these commands, and a kernel's modules, in the order they are loaded in; then that first program is run.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn with_shell(commands: &[&str], kernel: &Kernel, init: &str) -> Result<Archive, String> {
        let mut files = Archive::default();
        for folder in ["bin", "dev", "proc", "sys", "tmp"] {
            files.add(folder, 0o040_755, &[]);
        }
        // The static one, which needs no libraries in the guest.
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

    /// A file, a folder or a link, after its mode.
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
    fn an_archive_has_its_files_at_multiples_of_four() {
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
    fn kernels_are_told_apart_by_two_numbers() {
        let kernel = |version: &str| Kernel { version: version.to_owned(), image: Vec::new(), modules: Vec::new() };
        for (version, is) in [("6.1.0-56-cloud-amd64", false), ("6.12.117+deb12-cloud-amd64", true), ("7.0", true)] {
            assert_eq!(kernel(version).is_at_least((6, 8)), is, "{version}");
        }
    }
}
