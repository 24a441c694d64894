//! The tiers: the machine's NUMA nodes, the fastest first, or those given by the user.

use std::fs;
use std::path::Path;
use telpher_tier::MAX_TIERS;
use telpher_tier_wire::Tier;

/// Why the tiers are invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TiersError {
    /// The machine has only one kind of memory.
    #[error(
        "this machine has one NUMA node with memory, so there is nothing to move between; name parts of it to try it \
         out, such as --tier fast=256m --tier slow"
    )]
    OneNode,
    /// Too few or too many.
    #[error("there are {0} tiers; name 2 to 8, the fastest first, with --tier")]
    Number(usize),
    /// A tier that is not home must have a bound.
    #[error("tier {0} has neither a node nor a size; say how much of it a process may take, such as {0}=256m")]
    Size(String),
    /// A tier is given twice.
    #[error("tier {0} is named twice")]
    Twice(String),
    /// The tier does not exist.
    #[error("there is no tier {0}; --home names one of: {1}")]
    Home(String, String),
    /// The node does not exist, or has no memory.
    #[error("tier {0} is on node {1}, which has no memory here; `numactl --hardware` lists the nodes")]
    Node(String, u32),
}

/// A tier as the user names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TierChoice {
    /// Its name.
    pub name: String,
    /// The NUMA node whose memory it is; without one, a part of the memory that the program would have anyway.
    pub node: Option<u32>,
    /// Bytes of it that a process may take; without them, what is free of the node.
    pub bytes: Option<u64>,
}

/// A node with memory.
#[derive(Clone, PartialEq, Debug)]
struct Node {
    number: u32,
    has_cpus: bool,
    free_bytes: u64,
    /// Latency over bandwidth, as the firmware tells both: the smaller, the faster. Source: the kernel's own measure of
    /// a memory tier (Linux, mm/memory-tiers.c, mt_perf_to_adistance).
    slowness: Option<f64>,
    /// From the first node with CPUs.
    distance: u32,
}

/// Returns the nodes with memory below a folder like `/sys/devices/system/node`.
fn nodes(folder: &Path) -> Vec<Node> {
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let mut nodes = Vec::new();
    for number in 0..1024_u32 {
        let node = folder.join(format!("node{number}"));
        if !node.exists() {
            continue;
        }
        let info = text(&node.join("meminfo"));
        let kib = |word: &str| -> u64 {
            let line = info.lines().find(|line| line.contains(word));
            line.and_then(|line| line.split_whitespace().rev().nth(1)?.parse().ok()).unwrap_or(0)
        };
        if kib("MemTotal:") == 0 {
            continue;
        }
        // Of a node with CPUs, its own; of one without, its nearest one's. Source: Linux,
        // Documentation/admin-guide/mm/numaperf.rst.
        let initiators = node.join("access0/initiators");
        let number_in =
            |name: &str| text(&initiators.join(name)).trim().parse::<f64>().ok().filter(|&value| value > 0.0);
        let slowness =
            number_in("read_latency").zip(number_in("read_bandwidth")).map(|(latency, bandwidth)| latency / bandwidth);
        nodes.push(Node {
            number,
            has_cpus: !text(&node.join("cpulist")).trim().is_empty(),
            free_bytes: kib("MemFree:") << 10,
            slowness,
            distance: 0,
        });
    }
    let near = nodes.iter().find(|node| node.has_cpus).map(|node| node.number);
    if let Some(near) = near {
        let row = text(&folder.join(format!("node{near}/distance")));
        let row: Vec<u32> = row.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // The row has a number for each node that is online, in order.
        let online: Vec<u32> = (0..1024).filter(|number| folder.join(format!("node{number}")).exists()).collect();
        for node in &mut nodes {
            let at = online.iter().position(|&number| number == node.number);
            node.distance = at.and_then(|at| row.get(at)).copied().unwrap_or(u32::MAX);
        }
    }
    nodes
}

/// Nodes, the fastest first: as the firmware says if it says so of all; else those with CPUs first, and then the
/// nearest.
fn by_speed(mut nodes: Vec<Node>) -> Vec<Node> {
    if nodes.iter().all(|node| node.slowness.is_some()) {
        nodes.sort_by(|one, other| one.slowness.partial_cmp(&other.slowness).unwrap_or(std::cmp::Ordering::Equal));
    } else {
        nodes.sort_by_key(|node| (!node.has_cpus, node.distance, node.number));
    }
    nodes
}

/// Default share of a node's initially free memory that a process may use. Source: chosen.
const SHARE: f64 = 0.9;

fn share(bytes: u64) -> u64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of some memory"
    )]
    let share = (bytes as f64 * SHARE) as u64;
    share
}

/// Returns the tiers, and the index of the home tier.
///
/// # Errors
/// [`TiersError`]: the options do not fit this machine, or there is only one kind of memory.
pub(super) fn tiers(args: &[TierChoice], home: Option<&str>) -> Result<(Vec<Tier>, u8), TiersError> {
    tiers_of(nodes(Path::new("/sys/devices/system/node")), args, home)
}

fn tiers_of(nodes: Vec<Node>, args: &[TierChoice], home: Option<&str>) -> Result<(Vec<Tier>, u8), TiersError> {
    let nodes = by_speed(nodes);
    let named: Vec<TierChoice> = if args.is_empty() {
        let of_node =
            |node: &Node| TierChoice { name: format!("node{}", node.number), node: Some(node.number), bytes: None };
        nodes.iter().take(MAX_TIERS).map(of_node).collect()
    } else {
        args.to_vec()
    };
    match named.len() {
        0 | 1 if args.is_empty() => return Err(TiersError::OneNode),
        2..=MAX_TIERS => {}
        other => return Err(TiersError::Number(other)),
    }
    for (at, tier) in named.iter().enumerate() {
        if named[..at].iter().any(|other| other.name == tier.name) {
            return Err(TiersError::Twice(tier.name.clone()));
        }
    }
    let node_of =
        |tier: &TierChoice| tier.node.map(|number| nodes.iter().find(|node| node.number == number).ok_or(number));
    let has_cpus = |tier: &&TierChoice| node_of(tier).is_some_and(|node| node.is_ok_and(|node| node.has_cpus));
    let home = match home {
        Some(name) => named.iter().position(|tier| tier.name == name).ok_or_else(|| {
            let names: Vec<&str> = named.iter().map(|tier| tier.name.as_str()).collect();
            TiersError::Home(name.into(), names.join(", "))
        })?,
        None => named.iter().position(|tier| has_cpus(&tier)).unwrap_or(named.len() - 1),
    };
    let mut tiers = Vec::new();
    for (at, tier) in named.iter().enumerate() {
        let node = node_of(tier).transpose().map_err(|number| TiersError::Node(tier.name.clone(), number))?;
        let bytes = match (tier.bytes, node) {
            (Some(bytes), _) => bytes,
            (None, _) if at == home => 0,
            (None, Some(node)) => share(node.free_bytes),
            (None, None) => return Err(TiersError::Size(tier.name.clone())),
        };
        tiers.push(Tier { name: tier.name.clone(), node: tier.node, bytes });
    }
    Ok((tiers, u8::try_from(home).expect("fewer than nine tiers")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine as QEMU shows one with DDR, HBM and CXL, of 700, 300 and 300 MiB.
    fn machine(is_described: bool) -> tempdir::Dir {
        let folder = tempdir::Dir::new();
        let write = |path: &str, text: &str| {
            let path = folder.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (node, cpus, mib, distance, latency, bandwidth) in [
            (0, "0-1", 700, "10 17 28", 100, 200),
            (1, "", 300, "17 10 28", 110, 800),
            (2, "", 300, "28 28 10", 300, 50),
        ] {
            let kib = mib * 1024;
            write(
                &format!("node{node}/meminfo"),
                &format!("Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        {kib} kB\n"),
            );
            write(&format!("node{node}/cpulist"), &format!("{cpus}\n"));
            write(&format!("node{node}/distance"), &format!("{distance}\n"));
            if is_described {
                write(&format!("node{node}/access0/initiators/read_latency"), &format!("{latency}\n"));
                write(&format!("node{node}/access0/initiators/read_bandwidth"), &format!("{bandwidth}\n"));
            }
        }
        write("node3/meminfo", "Node 3 MemTotal:       0 kB\nNode 3 MemFree:        0 kB\n");
        folder
    }

    mod tempdir {
        use std::path::PathBuf;
        use std::sync::atomic::{AtomicU32, Ordering};

        /// A folder that is removed after the test.
        pub(super) struct Dir(pub(super) PathBuf);

        impl Dir {
            pub(super) fn new() -> Dir {
                static NUMBER: AtomicU32 = AtomicU32::new(0);
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let path = std::env::temp_dir().join(format!("telpher-nodes-{}-{number}", std::process::id()));
                std::fs::create_dir_all(&path).unwrap();
                Dir(path)
            }
        }

        impl Drop for Dir {
            fn drop(&mut self) {
                let _ = std::fs::remove_dir_all(&self.0);
            }
        }
    }

    fn names(of: &(Vec<Tier>, u8)) -> Vec<&str> {
        of.0.iter().map(|tier| tier.name.as_str()).collect()
    }

    /// `NAME[@NODE][=MIBm]`, as on the command line.
    fn arg(text: &str) -> TierChoice {
        let (rest, bytes) = text.split_once('=').map_or((text, None), |(rest, size)| {
            (rest, Some(size.strip_suffix('m').unwrap().parse::<u64>().unwrap() << 20))
        });
        let (name, node) =
            rest.split_once('@').map_or((rest, None), |(name, node)| (name, Some(node.parse().unwrap())));
        TierChoice { name: name.into(), node, bytes }
    }

    #[test]
    fn nodes_are_in_the_order_the_firmware_tells_or_of_their_distance() {
        let (described, undescribed) = (machine(true), machine(false));
        let tiers = |folder: &tempdir::Dir| tiers_of(nodes(&folder.0), &[], None).unwrap();
        let of_firmware = tiers(&described);
        assert_eq!((names(&of_firmware), of_firmware.1), (vec!["node1", "node0", "node2"], 1));
        assert_eq!(of_firmware.0.iter().map(|tier| tier.bytes >> 20).collect::<Vec<_>>(), [270, 0, 270]);
        let of_distance = tiers(&undescribed);
        assert_eq!((names(&of_distance), of_distance.1), (vec!["node0", "node1", "node2"], 0));
    }

    #[test]
    fn what_the_user_says_is_taken_and_what_makes_no_sense_is_told() {
        let folder = machine(true);
        let tiers = |args: &[TierChoice], home| tiers_of(nodes(&folder.0), args, home);
        let named = tiers(&[arg("hbm@1=16m"), arg("ddr@0"), arg("cxl@2")], None).unwrap();
        assert_eq!((names(&named), named.1, named.0[0].bytes), (vec!["hbm", "ddr", "cxl"], 1, 16 << 20));
        let parts = tiers(&[arg("fast=64m"), arg("slow")], None).unwrap();
        assert_eq!((parts.1, parts.0[1].bytes), (1, 0));
        let first = tiers(&[arg("fast"), arg("slow=64m")], Some("fast")).unwrap();
        assert_eq!((first.1, first.0[1].bytes), (0, 64 << 20));
        for (args, home, part) in [
            (vec![arg("a=1m")], None, "there are 1 tiers"),
            (vec![arg("a=1m"), arg("a")], None, "named twice"),
            (vec![arg("a"), arg("b")], None, "a has neither a node nor a size"),
            (vec![arg("a@3"), arg("b")], None, "on node 3, which has no memory"),
            (vec![arg("a=1m"), arg("b")], Some("c"), "there is no tier c; --home names one of: a, b"),
        ] {
            let error = tiers(&args, home).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let one: Vec<Node> = nodes(&folder.0).into_iter().take(1).collect();
        assert_eq!(tiers_of(one, &[], None), Err(TiersError::OneNode));
    }
}
