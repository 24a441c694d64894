//! Linux for a guest: Debian's kernel as `ci/install.sh` downloads it, and an initial file system of a shell and a few modules.

use crate::room::{Room, target};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use telpher_vhost::peers::lacking;

/// What a guest boots.
#[derive(Debug)]
pub(crate) struct Image {
    kernel: Vec<u8>,
    files: Vec<u8>,
}

/// In the order they are loaded in: each needs some before it.
const MODULES: [&str; 8] = [
    "failover",
    "net_failover",
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_net",
];

/// What the guest's shell has besides itself.
const APPLETS: [&str; 13] =
    ["mount", "stty", "insmod", "ip", "ping", "cat", "grep", "sleep", "poweroff", "dd", "httpd", "wget", "md5sum"];

/// The guest's first program: loads the drivers, brings the interface up, then runs what is typed, line by line.
const INIT: &str = "#!/bin/sh
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
stty -echo
for module in $MODULES; do insmod /$module.ko; done
ip link set lo up
ip link set eth0 up
echo up: $?
while read -r line; do
    eval \"$line\"
    echo done: $?
done
poweroff -f
";

impl Image {
    /// The image, made once a process.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn get(room: &Room) -> Result<&'static Image, String> {
        static IMAGE: OnceLock<Result<Image, String>> = OnceLock::new();
        IMAGE.get_or_init(|| Image::make(room)).as_ref().map_err(Clone::clone)
    }

    /// Files that QEMU is given: the kernel and the initial file system.
    pub(crate) fn write(&self, room: &Room) -> [PathBuf; 2] {
        [("vmlinuz", &self.kernel), ("initrd", &self.files)].map(|(name, bytes)| {
            let path = room.file(name);
            std::fs::write(&path, bytes).expect("a file of the test's own");
            path
        })
    }

    fn make(room: &Room) -> Result<Image, String> {
        let needed = [("dpkg-deb", "dpkg"), ("tar", "tar"), ("busybox", "busybox-static")];
        lacking(&needed).map_or(Ok(()), Err)?;
        let packages = std::fs::read_dir(target().join("guest")).into_iter().flatten().flatten();
        let package = packages.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "deb"));
        let package = package.ok_or("no kernel for a guest (ci/install.sh downloads one)")?;
        let folder = room.file("package");
        std::fs::create_dir(&folder).expect("a folder of the test's own");
        let mut unpack = Command::new("sh");
        let wanted = MODULES.map(|module| format!(" '*/{module}.ko'")).concat();
        let script =
            format!("dpkg-deb --fsys-tarfile \"$1\" | tar -x -C \"$2\" --wildcards './boot/vmlinuz-*'{wanted}");
        let done = unpack.args(["-ec", &script, "sh"]).arg(&package).arg(&folder).output().expect("a shell");
        let why =
            || format!("{} is not a kernel of Debian's: {}", package.display(), String::from_utf8_lossy(&done.stderr));
        let files = below(&folder);
        let find = |name: &str| {
            let named = |path: &&PathBuf| {
                path.file_name().and_then(|file| file.to_str()).is_some_and(|file| file.starts_with(name))
            };
            files.iter().find(named).and_then(|path| std::fs::read(path).ok()).ok_or_else(why)
        };
        let kernel = find("vmlinuz-")?;
        let mut files = Archive::default();
        for folder in ["bin", "dev", "proc", "sys"] {
            files.add(folder, 0o040_755, &[]);
        }
        files.add("bin/busybox", 0o100_755, &std::fs::read(shell()?).map_err(|error| error.to_string())?);
        for applet in ["sh"].iter().chain(&APPLETS) {
            files.add(&format!("bin/{applet}"), 0o120_777, b"busybox");
        }
        for module in MODULES {
            files.add(&format!("{module}.ko"), 0o100_644, &find(&format!("{module}.ko"))?);
        }
        files.add("init", 0o100_755, INIT.replace("$MODULES", &MODULES.join(" ")).as_bytes());
        Ok(Image { kernel, files: files.end() })
    }
}

/// The static shell, which needs no libraries in the guest.
fn shell() -> Result<PathBuf, String> {
    let path = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.is_file());
    path.ok_or_else(|| "no busybox (Debian package busybox-static)".into())
}

/// All files below a folder.
fn below(folder: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { below(&entry.path()) } else { vec![entry.path()] }).collect()
}

/// An initial file system. Source of the format: Linux, Documentation/driver-api/early-userspace/buffer-format.rst ("newc").
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// A file, a folder or a link, after its mode.
    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) {
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

    fn end(mut self) -> Vec<u8> {
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
}
