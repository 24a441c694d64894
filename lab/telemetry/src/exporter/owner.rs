//! Whose a process is: its pod and container by its cgroup and the node's logs, its virtual machine by its command line.

use crate::exporter::family::Labels;
use crate::exporter::pods::{PodName, PodNames};
use std::borrow::Cow;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The most bytes of a file that are read. Source: chosen; a cgroup has at most 4 KiB, QEMU's command line some.
const MOST_BYTES: u64 = 16 << 10;
/// The most characters of a virtual machine's name. Source: chosen; longer than the 64 of a host's name.
const MOST_NAME: usize = 80;

/// The owner of a process, as far as it is known.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Owner {
    /// The UID of its Kubernetes pod.
    pub pod_uid: Option<String>,
    /// Its namespace and name.
    pub pod: Option<PodName>,
    /// The identifier of its container: 64 hexadecimal digits.
    pub container: Option<String>,
    /// The name of that container in its pod.
    pub container_name: Option<String>,
    /// The name of the virtual machine that it runs.
    pub vm: Option<String>,
}

impl Owner {
    /// Looks a process up below `proc`, which is `/proc` except in tests. A process that has ended has no owner.
    pub(super) fn of(proc: &Path, names: &PodNames<'_>, pid: u64) -> Owner {
        let read = |name: &str| {
            let mut bytes = Vec::new();
            let file = File::open(proc.join(pid.to_string()).join(name));
            let read = file.and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
            read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        };
        let cgroup = read("cgroup");
        let parts = || cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.split('/'));
        let pod_uid = parts().find_map(pod_uid);
        let container = parts().filter_map(container).next_back();
        Owner {
            pod: pod_uid.as_deref().and_then(|uid| names.pod(uid)),
            container_name: container.as_deref().filter(|_| pod_uid.is_some()).and_then(|id| names.container(id)),
            pod_uid,
            container,
            vm: virtual_machine(&read("cmdline")),
        }
    }

    /// Returns the labels; what is unknown has none.
    #[must_use]
    pub fn labels(&self) -> Labels {
        let pod = self.pod.as_ref();
        let named = [
            ("namespace", pod.map(|pod| &pod.namespace)),
            ("pod", pod.map(|pod| &pod.pod)),
            ("pod_uid", self.pod_uid.as_ref()),
            ("container", self.container.as_ref()),
            ("container_name", self.container_name.as_ref()),
            ("vm", self.vm.as_ref()),
        ];
        let known = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
        known.map(|(name, value)| (Cow::Borrowed(name), value.clone())).collect()
    }
}

/// Returns the UID in a part of a cgroup's path: `podUID`, or with systemd `kubepods-CLASS-podUID.slice`, where a UID
/// has `_` in place of `-`. Static pods have UIDs of 32 digits without either. Source: Kubernetes,
/// `pkg/kubelet/cm/pod_container_manager_linux.go` and `cgroup_manager_linux.go`.
fn pod_uid(part: &str) -> Option<String> {
    let slice = part.strip_suffix(".slice").and_then(|part| part.strip_prefix("kubepods"));
    let name = slice.map_or(part, |part| part.rsplit('-').next().unwrap_or(part));
    let uid = name.strip_prefix("pod")?.replace('_', "-");
    let digits = uid.chars().filter(char::is_ascii_hexdigit).count();
    let is_uid = digits == 32 && uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-') && uid.len() <= 36;
    is_uid.then_some(uid)
}

/// Returns the identifier in a part of a cgroup's path: `ID`, or with systemd `RUNTIME-ID.scope`. Source: containerd,
/// CRI-O, Docker and Podman name their cgroups so.
fn container(part: &str) -> Option<String> {
    let name = part.strip_suffix(".scope").map_or(part, |part| part.rsplit('-').next().unwrap_or(part));
    (name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| name.to_owned())
}

/// Returns the name that QEMU or Cloud Hypervisor's manager gave a machine: `-name NAME` or `-name guest=NAME,…`.
fn virtual_machine(command_line: &str) -> Option<String> {
    let mut words = command_line.split('\0');
    let program = words.next()?.rsplit('/').next()?;
    if !program.starts_with("qemu") {
        return None;
    }
    words.find(|word| matches!(*word, "-name" | "--name"))?;
    let value = words.next()?;
    let guest = value.split(',').find_map(|part| part.strip_prefix("guest="));
    let name = guest.or_else(|| value.split(',').next()).filter(|name| !name.is_empty())?;
    Some(name.chars().map(|c| if c.is_control() { '?' } else { c }).take(MOST_NAME).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f5e1c0a9b8d7e6f4f5e1c0a9b8d7e6f4f5e1c0a9b8d7e6f4f5e1c0a9b8d7e6f";

    #[test]
    fn pods_and_containers_are_found_in_the_paths_of_all_runtimes() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp-owner");
        let folder = folder.join(std::process::id().to_string());
        let uid = "9b8d7e6f-4f5e-1c0a-9b8d-7e6f4f5e1c0a";
        let underscored = uid.replace('-', "_");
        let cases = [
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{underscored}.slice/\
                     cri-containerd-{ID}.scope\n"
                ),
                Some(uid),
            ),
            (format!("12:cpu:/x\n0::/kubepods/besteffort/pod{uid}/{ID}\n"), Some(uid)),
            (format!("0::/kubepods.slice/kubepods-pod{underscored}.slice/crio-{ID}.scope/container\n"), Some(uid)),
            (format!("0::/system.slice/docker-{ID}.scope\n"), None),
            (format!("0::/machine.slice/libpod-{ID}.scope\n"), None),
        ];
        for (cgroup, pod) in cases {
            let process = folder.join("7");
            std::fs::create_dir_all(&process).unwrap();
            std::fs::write(process.join("cgroup"), &cgroup).unwrap();
            let owner = Owner::of(&folder, &PodNames::new(&folder), 7);
            assert_eq!((owner.pod_uid.as_deref(), owner.container.as_deref()), (pod, Some(ID)), "{cgroup}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(Owner::of(&folder, &PodNames::new(&folder), 7), Owner::default());
    }

    #[test]
    fn other_paths_name_nothing() {
        for part in ["pods", "podcast", "pod12", "user-1000.slice", "session-2.scope", &ID[1..], &format!("{ID}0")] {
            assert_eq!((pod_uid(part), container(part)), (None, None), "{part}");
        }
    }

    #[test]
    fn a_machine_has_the_name_that_qemu_was_given() {
        let named = |words: &[&str]| virtual_machine(&words.join("\0"));
        assert_eq!(
            named(&["/usr/bin/qemu-system-x86_64", "-m", "1g", "-name", "guest=web,debug-threads=on"]),
            Some("web".into())
        );
        assert_eq!(named(&["qemu-kvm", "-name", "db\x1b[2J"]), Some("db?[2J".into()));
        assert_eq!(named(&["qemu-kvm", "-name", &"x".repeat(500)]).unwrap().len(), MOST_NAME);
        for words in [&["qemu-kvm"][..], &["qemu-kvm", "-name"], &["sh", "-name", "x"], &[""]] {
            assert_eq!(named(words), None);
        }
    }
}
