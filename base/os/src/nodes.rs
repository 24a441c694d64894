//! NUMA nodes: their number, their distances, and the node of a thread or a page, as the kernel reports them.
#![allow(unsafe_code, reason = "move_pages, which changes no byte and no address")]

use crate::cpus::run_on;
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Moves pages that are on other nodes. Source: UAPI, linux/mempolicy.h.
const MPOL_MF_MOVE: libc::c_uint = 1 << 1;

/// Distance of a node from itself, and the default between two nodes if the firmware reports none. Source: ACPI 6.5,
/// §5.2.17 (SLIT), and the kernel's LOCAL_DISTANCE and REMOTE_DISTANCE.
const LOCAL: u32 = 10;
const REMOTE: u32 = 20;

/// The largest accepted number of nodes. Source: Linux, NODES_SHIFT is at most 10.
const MAX_NODES: u32 = 1 << 10;

/// The nodes of a machine, read once: later changes are not noticed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// The node of each CPU, by CPU number.
    of_cpu: Vec<Option<u32>>,
    /// `distances[a][b]`; empty for a node that is not online.
    distances: Vec<Vec<u32>>,
}

impl Nodes {
    /// Reads the nodes of this machine. Without NUMA support in the kernel there is one node, 0.
    #[must_use]
    pub fn of_this_machine() -> Nodes {
        Self::read(Path::new("/sys/devices/system/node"))
    }

    /// Reads the nodes that a directory like `/sys/devices/system/node` describes.
    #[must_use]
    pub fn read(directory: &Path) -> Nodes {
        let text = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
        let online = parse_number_list(&text("online"));
        let mut nodes = Nodes { of_cpu: Vec::new(), distances: Vec::new() };
        for &node in online.iter().filter(|&&node| node < MAX_NODES) {
            let at = node as usize;
            nodes.distances.resize(nodes.distances.len().max(at + 1), Vec::new());
            // The file has one number for each online node, in their order.
            let mut row = Vec::new();
            for (to, distance) in online.iter().zip(text(&format!("node{node}/distance")).split_whitespace()) {
                let to = (*to as usize).min(MAX_NODES as usize);
                row.resize(row.len().max(to + 1), REMOTE);
                row[to] = distance.parse().unwrap_or(REMOTE);
            }
            nodes.distances[at] = row;
            for cpu in parse_number_list(&text(&format!("node{node}/cpulist"))) {
                let cpu = cpu as usize;
                nodes.of_cpu.resize(nodes.of_cpu.len().max(cpu + 1), None);
                nodes.of_cpu[cpu] = Some(node);
            }
        }
        if nodes.distances.is_empty() {
            nodes.distances = vec![vec![LOCAL]];
        }
        nodes
    }

    /// Returns the bytes of a node's memory that are free or that the system can reclaim from its file cache; `None` if
    /// the system does not report them. **Staleness**: other processes allocate memory meanwhile.
    #[must_use]
    pub fn free_bytes(node: u32) -> Option<u64> {
        free_bytes(&std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?)
    }

    /// Returns the highest node number plus one.
    #[must_use]
    pub fn count(&self) -> u32 {
        // At most `MAX_NODES`.
        u32::try_from(self.distances.len()).unwrap_or(MAX_NODES)
    }

    /// Returns the distance from one node to another node's memory, 10 for its own (the firmware's relative numbers).
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let known = self.distances.get(from as usize).and_then(|row| row.get(to as usize));
        known.copied().unwrap_or(if from == to { LOCAL } else { REMOTE })
    }

    /// Returns the node of a CPU; `None` for a CPU that does not exist.
    #[must_use]
    pub fn of_cpu(&self, cpu: usize) -> Option<u32> {
        // Without NUMA support in the kernel, all CPUs are on node 0.
        if self.of_cpu.is_empty() { Some(0) } else { self.of_cpu.get(cpu).copied().flatten() }
    }

    /// Returns the node of the CPU on which this thread is running now.
    #[must_use]
    pub fn of_this_thread(&self) -> Option<u32> {
        match self.count() {
            1 => Some(0),
            _ => self.of_cpu.get(rustix::thread::sched_getcpu()).copied().flatten(),
        }
    }

    /// Restricts this thread to those CPUs of a node that the kernel allows it. Does nothing if the kernel has no NUMA.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the node does not exist or has no CPUs, such as a node with
    /// only HBM or CXL memory. Otherwise the kernel's refusal, for example because the process may run on none of them.
    pub fn keep_this_thread_on(&self, node: u32) -> io::Result<()> {
        if self.of_cpu.is_empty() && node < self.count() {
            return Ok(());
        }
        let cpus: Vec<usize> = (0..self.of_cpu.len()).filter(|&cpu| self.of_cpu[cpu] == Some(node)).collect();
        if cpus.is_empty() {
            let why = format!("node {node} has no CPUs; choose a node with CPUs");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        run_on(&cpus)
    }

    /// Returns the node of the page at `address` in this process; `None` if the page is missing, or the kernel does not
    /// report it. Makes a system call if there is more than one node.
    #[must_use]
    pub fn of_page(&self, address: u64) -> Option<u32> {
        if self.count() == 1 {
            return Some(0);
        }
        let mut answers = [Err(Errno::NOENT)];
        Nodes::of_pages(&[address], &mut answers).ok()?;
        answers[0].ok()
    }

    /// Stores the node of each of these pages of this process, or an error: [`NOENT`](Errno::NOENT) if the page is
    /// missing, [`FAULT`](Errno::FAULT) if nothing is mapped or the page is the shared zero page.
    ///
    /// # Errors
    /// The system's error: no NUMA support, or too little memory for the call.
    ///
    /// # Panics
    /// If the two slices differ in length.
    pub fn of_pages(pages: &[u64], answers: &mut [Result<u32, Errno>]) -> io::Result<()> {
        call_move_pages(pages, None, answers)
    }

    /// Moves pages of this process to a node; the kernel copies them. A thread that touches a page meanwhile waits.
    /// Stores each page's node, or the reason why it was not moved, as far as the kernel got. [`AGAIN`](Errno::AGAIN)
    /// marks a page that the kernel did not try, or possibly one that it moved. What [`of_pages`](Nodes::of_pages)
    /// reports afterwards is reliable.
    ///
    /// # Errors
    /// The system's error: no such node, a node this process may not use, or no NUMA support.
    ///
    /// # Panics
    /// If the two slices differ in length.
    pub fn move_pages(pages: &[u64], to: u32, answers: &mut [Result<u32, Errno>]) -> io::Result<()> {
        call_move_pages(pages, Some(to), answers)
    }
}

/// Calls move_pages(2), with a target node or only to query.
fn call_move_pages(pages: &[u64], to: Option<u32>, answers: &mut [Result<u32, Errno>]) -> io::Result<()> {
    /// Pages per call. Source: chosen.
    const PAGES_PER_CALL: usize = 512;
    assert_eq!(pages.len(), answers.len(), "the slices differ in length");
    for (pages, answers) in pages.chunks(PAGES_PER_CALL).zip(answers.chunks_mut(PAGES_PER_CALL)) {
        let mut status = [-libc::EAGAIN; PAGES_PER_CALL];
        let nodes = [libc::c_int::try_from(to.unwrap_or(0)).map_err(|_| Errno::NODEV)?; PAGES_PER_CALL];
        let list = if to.is_some() { nodes.as_ptr() } else { std::ptr::null() };
        // SAFETY: addresses, nodes and answers have the passed length and live for the call. The bytes and addresses of
        // pages stay the same. An address where nothing is mapped yields an error code in its answer.
        let asked = unsafe {
            let flags = if to.is_some() { MPOL_MF_MOVE } else { 0 };
            libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), list, status.as_mut_ptr(), flags)
        };
        if asked < 0 {
            let error = io::Error::last_os_error();
            // Linux before 4.17 returns ENOENT if no page had to be moved.
            if to.is_none() || error.raw_os_error() != Some(libc::ENOENT) {
                return Err(error);
            }
        }
        for (answer, &status) in answers.iter_mut().zip(&status) {
            *answer = u32::try_from(status).map_err(|_| Errno::from_raw_os_error(-status));
        }
    }
    Ok(())
}

/// Parses a list of CPUs or nodes as the kernel writes it: `0-3,8`. Ignores invalid parts; no list is longer than the
/// number of CPUs or nodes can be.
#[must_use]
pub fn parse_number_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    let ranges = text.trim().split(',').filter_map(range);
    ranges.flat_map(|(first, last): (u32, u32)| (first..=last).take(1 << 13)).take(1 << 13).collect()
}

/// Reads a node's `meminfo`, with lines such as `Node 0 MemFree: 12 kB`.
fn free_bytes(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find(|line| line.split_whitespace().nth(2) == Some(name))?;
        line.split_whitespace().nth(3)?.parse::<u64>().ok()
    };
    let of_files = ["Active(file):", "Inactive(file):"].into_iter().filter_map(kib).sum::<u64>();
    Some((kib("MemFree:")? + of_files) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_and_cached_memory_counts_as_free() {
        let text = "Node 1 MemTotal:       11757780 kB\nNode 1 MemFree:         1000 kB\n\
                    Node 1 Inactive:        99 kB\n\
                    Node 1 Active(anon):       7 kB\nNode 1 Active(file):     20 kB\nNode 1 Inactive(file):  3 kB\n";
        assert_eq!(free_bytes(text), Some(1023 << 10));
        assert_eq!(free_bytes("Node 1 MemTotal: 5 kB\n"), None);
        let here = Nodes::free_bytes(0);
        assert!(here.is_none_or(|free| free > 0), "{here:?}");
    }

    /// Reads a tree of files under a directory, which is deleted after the test.
    fn tree(name: &str, files: &[(&str, &str)]) -> Nodes {
        let root = std::env::temp_dir().join(format!("telpher-nodes-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let nodes = Nodes::read(&root);
        let _ = std::fs::remove_dir_all(root);
        nodes
    }

    #[test]
    fn nodes_with_gaps_and_without_cpus_are_read() {
        let nodes = tree(
            "gaps",
            &[
                ("online", "0-1,8\n"),
                ("node0/cpulist", "0-1,4\n"),
                ("node0/distance", "10 21 13\n"),
                ("node1/cpulist", "2-3\n"),
                ("node1/distance", "21 10 23\n"),
                ("node8/cpulist", "\n"),
                ("node8/distance", "13 23 10\n"),
            ],
        );
        assert_eq!(nodes.count(), 9);
        assert_eq!([(0, 0), (0, 1), (0, 8), (8, 0), (1, 8)].map(|(a, b)| nodes.distance(a, b)), [10, 21, 13, 13, 23]);
        // Distances that no file reports.
        assert_eq!([(3, 3), (3, 0), (99, 1)].map(|(a, b)| nodes.distance(a, b)), [10, 20, 20]);
        assert_eq!(nodes.of_cpu, [Some(0), Some(0), Some(1), Some(1), Some(0)]);
    }

    #[test]
    fn invalid_files_yield_one_node() {
        for online in ["", "banana", "7-3", "99999999"] {
            assert_eq!(tree("nonsense", &[("online", online)]).count(), 1, "{online}");
        }
    }

    #[test]
    fn a_thread_stays_on_the_cpus_of_its_node() {
        let nodes = Nodes::of_this_machine();
        let home = nodes.of_this_thread().unwrap();
        std::thread::scope(|scope| {
            // On a separate thread, so that the CPU affinity of this process' other threads stays unchanged.
            let kept = scope.spawn(|| nodes.keep_this_thread_on(home).map(|()| nodes.of_this_thread())).join().unwrap();
            assert_eq!(kept.unwrap(), Some(home));
        });
        for node in [nodes.count(), u32::MAX] {
            let refused = nodes.keep_this_thread_on(node).unwrap_err();
            assert!(refused.to_string().contains("has no CPUs"), "{refused}");
        }
        let without = Nodes { of_cpu: Vec::new(), distances: vec![vec![LOCAL]] };
        assert!(without.keep_this_thread_on(0).is_ok() && without.keep_this_thread_on(1).is_err());
    }

    #[test]
    fn the_kernel_knows_where_this_thread_and_its_stack_are() {
        let nodes = Nodes::of_this_machine();
        let here = 0_u8;
        let address = (&raw const here).expose_provenance() as u64;
        assert!(nodes.of_this_thread().is_some_and(|node| node < nodes.count()));
        assert!(nodes.of_page(address).is_none_or(|node| node < nodes.count()));
        // Queries the kernel directly, whatever the number of nodes.
        let mut answers = [Ok(0); 3];
        if Nodes::of_pages(&[8, address, address], &mut answers).is_ok() {
            assert!(answers[0].is_err() && answers[1].is_ok() && answers[1] == answers[2], "{answers:?}");
            // Moves a page to the node it is on already, and a page to a node that does not exist.
            let node = answers[1].unwrap();
            Nodes::move_pages(&[address], node, &mut answers[..1]).unwrap();
            assert_eq!(answers[0], Ok(node));
            let refused = Nodes::move_pages(&[address], 4711, &mut answers[..1]).unwrap_err();
            assert!(matches!(refused.raw_os_error(), Some(libc::ENODEV)), "{refused}");
        }
        let two = Nodes { distances: vec![vec![10, 20], vec![20, 10]], of_cpu: nodes.of_cpu };
        assert_eq!(two.of_page(8), None, "nothing is mapped there");
        if let Some(node) = two.of_page(address) {
            assert!(Path::new(&format!("/sys/devices/system/node/node{node}")).exists());
        }
    }
}
