//! Linux as a guest: Debian's kernel as downloaded by `ci/install.sh`, and an initial file system with a shell and a
//! few modules.

use crate::debian::{Archive, Kernel};
use crate::peer_slot::{PeerSlot, target};
use std::path::PathBuf;
use std::sync::OnceLock;
use telpher_vhost::peers::lacking;

/// The files that a guest boots from.
#[derive(Debug)]
pub(crate) struct Image {
    kernel: Vec<u8>,
    files: Vec<u8>,
}

/// In load order: each needs some of those before it.
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

/// The programs in the guest besides its shell.
const APPLETS: [&str; 13] =
    ["mount", "stty", "insmod", "ip", "ping", "cat", "grep", "sleep", "poweroff", "dd", "httpd", "wget", "md5sum"];

/// The guest's init: loads the drivers, brings the interface up, then runs the lines that are typed.
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
    /// The image, created once per process.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn get(slot: &PeerSlot) -> Result<&'static Image, String> {
        static IMAGE: OnceLock<Result<Image, String>> = OnceLock::new();
        IMAGE.get_or_init(|| Image::make(slot)).as_ref().map_err(Clone::clone)
    }

    /// The files for QEMU: the kernel and the initial file system.
    pub(crate) fn write(&self, slot: &PeerSlot) -> [PathBuf; 2] {
        [("vmlinuz", &self.kernel), ("initrd", &self.files)].map(|(name, bytes)| {
            let path = slot.file(name);
            std::fs::write(&path, bytes).expect("a file of the test's own");
            path
        })
    }

    fn make(slot: &PeerSlot) -> Result<Image, String> {
        let needed = [("dpkg-deb", "dpkg"), ("tar", "tar"), ("xz", "xz-utils"), ("busybox", "busybox-static")];
        lacking(&needed).map_or(Ok(()), Err)?;
        let kernel = Kernel::of_package(&target().join("guest"), &slot.file("package"), &MODULES)?;
        let files = Archive::with_shell(&APPLETS, &kernel, &INIT.replace("$MODULES", &MODULES.join(" ")))?;
        Ok(Image { kernel: kernel.image, files: files.end() })
    }
}
