//! What users give to virtual machine monitors: QEMU's options, and libvirt's XML.

use std::path::Path;

/// Returns a command line of QEMU 10.1 or later for a machine with this device.
#[must_use]
pub fn qemu(socket: &Path) -> String {
    format!(
        "qemu-system-x86_64 -machine q35,memory-backend=m -m 2G \\\n  \
         -object memory-backend-memfd,id=m,size=2G,share=on \\\n  \
         -device '{}'\n",
        device(socket)
    )
}

/// Returns the parts of a libvirt domain that attach this device.
#[must_use]
pub fn libvirt(socket: &Path) -> String {
    format!(
        "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n  \
         <memoryBacking>\n    <source type='memfd'/>\n    <access mode='shared'/>\n  </memoryBacking>\n  \
         <qemu:commandline>\n    <qemu:arg value='-device'/>\n    <qemu:arg value='{}'/>\n  </qemu:commandline>\n\
         </domain>\n",
        escaped(&device(socket))
    )
}

/// The device as QEMU's JSON.
fn device(socket: &Path) -> String {
    let socket = serde_json::json!({ "path": socket.to_string_lossy(), "type": "unix" });
    serde_json::json!({ "driver": "vfio-user-pci", "socket": socket }).to_string()
}

/// Text inside an attribute in single quotes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_in_both_texts() {
        let socket = Path::new("/run/a&b.sock");
        assert!(qemu(socket).contains(r#"{"driver":"vfio-user-pci","socket":{"path":"/run/a&b.sock","type":"unix"}}"#));
        assert!(libvirt(socket).contains("/run/a&amp;b.sock"));
    }
}
