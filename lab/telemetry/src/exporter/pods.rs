//! The names of Kubernetes' pods and containers, by the directories of their logs.
//!
//! ```text
//! LOG/pods/NAMESPACE_POD_UID/                       pod_uid   ──► namespace, pod
//! LOG/containers/POD_NAMESPACE_CONTAINER-ID.log     container ──► container_name
//! ```
//!
//! The kubelet makes both before a container starts, and any user of the node may list them. Source: Kubernetes,
//! `pkg/kubelet/kuberuntime/helpers.go` (`BuildPodLogsDirectory`) and `legacy.go` (`legacyLogSymlink`).

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most entries of a directory that are looked at. Source: chosen; a node has some hundred pods.
const MOST_ENTRIES: usize = 16 << 10;
/// The most characters of a name. Source: Kubernetes, a DNS subdomain.
const MOST_NAME: usize = 253;
/// The digits of a container's identifier.
const ID_DIGITS: usize = 64;

/// The namespace and the name of a pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
}

/// The names on this node. They are read once, when the first one is asked for.
#[derive(Debug)]
pub(super) struct PodNames<'a> {
    log: &'a Path,
    pods: OnceCell<BTreeMap<String, PodName>>,
    containers: OnceCell<BTreeMap<String, String>>,
}

impl<'a> PodNames<'a> {
    /// Creates the names below `log`, which is `/var/log` except in tests.
    pub(super) fn new(log: &'a Path) -> PodNames<'a> {
        PodNames { log, pods: OnceCell::new(), containers: OnceCell::new() }
    }

    /// Returns the name of a pod; `None` if the node has no logs of it.
    pub(super) fn pod(&self, uid: &str) -> Option<PodName> {
        self.pods.get_or_init(|| named(self.log.join("pods"), pod)).get(uid).cloned()
    }

    /// Returns the name of a container in its pod; `None` if the node has no log of it.
    pub(super) fn container(&self, id: &str) -> Option<String> {
        self.containers.get_or_init(|| named(self.log.join("containers"), container)).get(id).cloned()
    }
}

/// What the names of a directory's entries say, without those that say nothing.
fn named<T>(folder: PathBuf, of: impl Fn(&str) -> Option<(String, T)>) -> BTreeMap<String, T> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeMap::new() };
    entries.flatten().take(MOST_ENTRIES).filter_map(|entry| of(entry.file_name().to_str()?)).collect()
}

/// Reads `NAMESPACE_POD_UID`. None of the parts may contain `_`.
fn pod(entry: &str) -> Option<(String, PodName)> {
    let [namespace, pod, uid] = parts(entry)?;
    let is_uid = uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    is_uid.then(|| (uid.to_owned(), PodName { namespace: namespace.into(), pod: pod.into() }))
}

/// Reads `POD_NAMESPACE_CONTAINER-ID.log`.
fn container(entry: &str) -> Option<(String, String)> {
    let [_, _, container] = parts(entry.strip_suffix(".log")?)?;
    let (name, id) = container.rsplit_once('-')?;
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_id && !name.is_empty()).then(|| (id.to_owned(), name.to_owned()))
}

/// Splits an entry into three names as Kubernetes allows them.
fn parts(entry: &str) -> Option<[&str; 3]> {
    let is_part = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    let parts: [&str; 3] = entry.split('_').collect::<Vec<_>>().try_into().ok()?;
    parts.iter().all(|part| !part.is_empty() && part.len() <= MOST_NAME + ID_DIGITS && is_part(part)).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_log_directories() {
        let uid = "9b8d7e6f-4f5e-1c0a-9b8d-7e6f4f5e1c0a";
        let (found, name) = pod(&format!("kube-system_web-7d4b9.x_{uid}")).unwrap();
        assert_eq!((found.as_str(), name.namespace.as_str(), name.pod.as_str()), (uid, "kube-system", "web-7d4b9.x"));
        let id = "4f5e1c0a9b8d7e6f".repeat(4);
        assert_eq!(container(&format!("web_shop_side-car-{id}.log")), Some((id.clone(), "side-car".into())));
    }

    #[test]
    fn other_entries_name_nothing() {
        for entry in ["", "a_b", "a_b_c_d", "a__0", "a_b_xyz", "a_b\x1b_0", "_b_0", "a_b_", &"x".repeat(5000)] {
            assert_eq!(pod(entry), None, "{entry}");
        }
        let id = "4f5e1c0a9b8d7e6f".repeat(4);
        for entry in [format!("a_b_c-{id}"), format!("a_b_-{id}.log"), "a_b_c-12.log".into(), "a_b_c.log".into()] {
            assert_eq!(container(&entry), None, "{entry}");
        }
    }
}
