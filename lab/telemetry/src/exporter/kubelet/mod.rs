//! Which queues the kubelet has given to which containers, by its socket for resources.
//!
//! ```text
//! kubelet.sock ◄── /v1.PodResourcesLister/List, a gRPC call ── call ──► protobuf ──► Grant: queue, pod, container
//! ```
//!
//! Intel's device plugin names a share of a queue `wq-user-shared-wq0.1-3`. The kubelet's list may be of any age: it is
//! asked between scrapes, and never makes one wait. Source: Kubernetes, `staging/src/k8s.io/kubelet/pkg/apis/
//! podresources/v1/api.proto`; Intel device plugins, `cmd/dsa_plugin`.

mod call;
mod protobuf;

pub use call::CallError;

use protobuf::{Fields, bytes_of, text_of};
use std::collections::BTreeSet;
use std::path::Path;

/// The kubelet's socket on a node.
pub const KUBELET_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// The most queues that are listed. Source: chosen; a node has some hundred shares of queues.
const MOST_GRANTS: usize = 4096;
/// The most characters of a name. Source: Kubernetes, a DNS subdomain and a path.
const MOST_NAME: usize = 253;

/// A queue of which a container was given a share, or the whole.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Grant {
    /// The queue, such as wq0.1.
    pub queue: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The name of the container in its pod.
    pub container: String,
    /// The resource that the container asked for, such as dsa.intel.com/wq-user-shared.
    pub resource: String,
}

/// The queues that containers were given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grants {
    /// The queues with their containers, at most 4096.
    pub listed: BTreeSet<Grant>,
    /// Shares of queues that are not listed, because there are too many.
    pub left_out: u64,
}

impl Grants {
    fn add(&mut self, grant: Grant) {
        if self.listed.len() < MOST_GRANTS || self.listed.contains(&grant) {
            self.listed.insert(grant);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns what is missing, for people; `None` if all grants are listed.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let Grants { left_out, .. } = self;
        (*left_out != 0).then(|| format!("{left_out} more shares of queues are not listed: {MOST_GRANTS} are at most"))
    }
}

/// Asks the kubelet which queues it has given to containers.
///
/// # Errors
/// If it does not answer, or its answer is none.
pub fn grants(socket: &Path) -> Result<Grants, CallError> {
    let answer = call::unary(socket, "/v1.PodResourcesLister/List")?;
    of_list(&answer).ok_or(CallError::Answer("it is no list of resources"))
}

/// Reads a `ListPodResourcesResponse`; `None` if it is damaged.
fn of_list(message: &[u8]) -> Option<Grants> {
    let mut grants = Grants::default();
    for field in Fields(message) {
        let Some(pod) = bytes_of(&field?, 1) else { continue };
        let (mut name, mut namespace, mut containers) = (String::new(), String::new(), Vec::new());
        for field in Fields(pod) {
            let field = field?;
            match field.number {
                1 => name = text_of(&field, 1, MOST_NAME)?,
                2 => namespace = text_of(&field, 2, MOST_NAME)?,
                3 => containers.extend(bytes_of(&field, 3)),
                _ => {}
            }
        }
        for container in containers {
            add_container(container, &namespace, &name, &mut grants)?;
        }
    }
    Some(grants)
}

fn add_container(message: &[u8], namespace: &str, pod: &str, grants: &mut Grants) -> Option<()> {
    let (mut container, mut devices) = (String::new(), Vec::new());
    for field in Fields(message) {
        let field = field?;
        match field.number {
            1 => container = text_of(&field, 1, MOST_NAME)?,
            2 => devices.extend(bytes_of(&field, 2)),
            _ => {}
        }
    }
    for device in devices {
        let (mut resource, mut queues) = (String::new(), Vec::new());
        for field in Fields(device) {
            let field = field?;
            match field.number {
                1 => resource = text_of(&field, 1, MOST_NAME)?,
                2 => queues.extend(queue(&text_of(&field, 2, MOST_NAME)?)),
                _ => {}
            }
        }
        for queue in queues {
            let [namespace, pod] = [namespace, pod].map(str::to_owned);
            let (container, resource) = (container.clone(), resource.clone());
            grants.add(Grant { queue, namespace, pod, container, resource });
        }
    }
    Some(())
}

/// Returns the queue in the identifier of a share: `wq0.1` of `wq-user-shared-wq0.1-3`. Other devices have none.
fn queue(identifier: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_queue = |part: &&str| {
        part.strip_prefix("wq").and_then(|rest| rest.split_once('.')).is_some_and(|(a, b)| is_number(a) && is_number(b))
    };
    identifier.split('-').find(is_queue).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let low = |number: usize| u8::try_from(number & 127).unwrap();
        [&[number << 3 | 2, low(bytes.len()) | 128, low(bytes.len() >> 7)][..], bytes].concat()
    }

    fn list() -> Vec<u8> {
        let device = |resource: &str, ids: &[&str]| {
            let ids: Vec<u8> = ids.iter().flat_map(|id| field(2, id.as_bytes())).collect();
            // Field 3 is a topology, which is not looked at.
            field(2, &[field(1, resource.as_bytes()), ids, field(3, &[8, 1])].concat())
        };
        let shares = device("dsa.intel.com/wq-user-shared", &["wq-user-shared-wq0.1-3", "wq-user-shared-wq0.1-4"]);
        let whole = device("dsa.intel.com/wq-user-dedicated", &["wq-user-dedicated-wq2.0-0"]);
        let other = device("example.com/wq", &["wqx.1", "wq1", "card0"]);
        let container = |name: &str, devices: Vec<u8>| field(3, &[field(1, name.as_bytes()), devices].concat());
        let pod = |name: &str, containers: Vec<u8>| {
            field(1, &[field(1, name.as_bytes()), field(2, b"shop"), containers].concat())
        };
        let first = [container("server", [shares, other].concat()), container("side", Vec::new())].concat();
        [pod("web-0", first), pod("db", container("main", whole)), pod("idle", Vec::new())].concat()
    }

    #[test]
    fn queues_are_those_in_the_identifiers_of_shares() {
        let Grants { listed: grants, left_out } = of_list(&list()).unwrap();
        assert_eq!(left_out, 0);
        let seen: Vec<_> = grants.iter().map(|grant| (&*grant.queue, &*grant.pod, &*grant.container)).collect();
        assert_eq!(seen, [("wq0.1", "web-0", "server"), ("wq2.0", "db", "main")]);
        assert!(
            grants.iter().all(|grant| grant.namespace == "shop" && grant.resource.starts_with("dsa.intel.com/wq-"))
        );
        assert_eq!(of_list(&[]), Some(Grants::default()));
    }

    /// The server decides how many shares there are.
    #[test]
    fn grants_beyond_the_most_are_counted_and_told() {
        let most = u64::try_from(MOST_GRANTS).unwrap();
        for (shares, left_out) in [(most, 0), (most + 3, 3)] {
            let mut message = Vec::new();
            for share in 0..shares {
                // Each pod has one container with one share of a queue.
                let id = format!("wq-user-shared-wq{share}.0-0");
                let device = field(2, &[field(1, b"dsa.intel.com/wq-user-shared"), field(2, id.as_bytes())].concat());
                let container = field(3, &[field(1, b"main"), device].concat());
                message.extend(field(1, &[field(1, b"web"), field(2, b"shop"), container].concat()));
            }
            let grants = of_list(&message).unwrap();
            assert_eq!((grants.listed.len() as u64, grants.left_out), (shares - left_out, left_out));
            assert_eq!(grants.missing().is_some_and(|told| told.starts_with("3 more shares ")), left_out != 0);
        }
        let mut full = Grants::default();
        let grant = |number: usize| Grant {
            queue: format!("wq{number}.0"),
            namespace: String::new(),
            pod: String::new(),
            container: String::new(),
            resource: String::new(),
        };
        (0..MOST_GRANTS).for_each(|number| full.add(grant(number)));
        // Another share of a queue that is listed.
        full.add(grant(0));
        assert_eq!((full.left_out, full.missing()), (0, None));
    }

    #[test]
    fn a_cut_or_changed_answer_is_refused_or_read_and_never_panics() {
        let list = list();
        for len in 0..list.len() {
            let _ = of_list(&list[..len]);
        }
        let mut random = telpher_os::Random::new(11);
        for _ in 0..20_000 {
            let mut changed = list.clone();
            let at = usize::try_from(random.below(changed.len() as u64)).unwrap();
            random.fill(&mut changed[at..=at]);
            let _ = of_list(&changed);
        }
        assert_eq!(of_list(&[0x0a, 0xff]), None);
    }
}
