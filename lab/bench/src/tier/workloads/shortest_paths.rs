//! Shortest paths from one vertex to all others of a graph.
//!
//! Delta-stepping, as the GAP suite has it. Sources: Meyer and Sanders, *Δ-stepping: a parallelizable shortest path
//! algorithm* (Journal of Algorithms 49, 2003); Beamer, Asanović and Patterson, *The GAP Benchmark Suite* (2015).
//! Vertices wait in buckets by their distance, each `delta` wide. The threads take the vertices of the lowest bucket
//! and relax all their edges; those that come nearer go to the bucket of their new distance. A bucket that is empty
//! after that never fills again.

use super::chunks;
use super::kronecker::{Definition, Graph, HEAVIEST};
use super::outcome::{Answer, Clock, Failure, vector};
use super::parameters::Parameters;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Barrier, RwLock};
use std::thread;
use telpher_os::Random;

/// The sizes. Source: 16 edges for each vertex as in Graph500; the others chosen: a graph of 132 MiB.
pub(super) const PARAMETERS: &[(&str, u64)] = &[("scale", 19), ("degree", 16), ("sources", 4), ("delta", 8)];

/// The distance of a vertex that is not reached.
const UNREACHED: u32 = u32::MAX;
/// The most buckets. Vertices that are farther share the last one. Source: chosen, beyond the distances in such graphs.
const MOST_BUCKETS: usize = 1 << 16;
/// Vertices in a chunk of a thread. Source: chosen; the fullest vertices have thousands of edges.
const CHUNK: usize = 64;
/// The most bytes of the graph. Source: chosen.
const MOST_BYTES: u128 = 64 << 30;

/// What the threads share while they search.
struct Search<'a> {
    graph: &'a Graph,
    delta: u32,
    distances: &'a [AtomicU32],
    /// The vertices of the present bucket.
    frontier: RwLock<Vec<u32>>,
    /// The number of them that are taken.
    taken: AtomicUsize,
    /// The lowest bucket with vertices: of this step and, unused meanwhile, of the next.
    lowest: [AtomicUsize; 2],
    barrier: Barrier,
    /// The graph in memory is damaged.
    damaged: AtomicBool,
}

impl Search<'_> {
    fn bucket(&self, distance: u32) -> usize {
        ((distance / self.delta) as usize).min(MOST_BUCKETS - 1)
    }

    /// The work of one thread. All orderings are relaxed, because a barrier lies between a step and the next one, and
    /// within a step a distance only falls.
    fn work(&self) {
        // The buckets of this thread.
        let mut buckets: Vec<Vec<u32>> = Vec::new();
        let (mut now, mut step) = (0, 0);
        loop {
            self.relax_frontier(now, &mut buckets);
            let lowest = buckets.iter().skip(now).position(|bucket| !bucket.is_empty());
            if let Some(lowest) = lowest {
                self.lowest[step].fetch_min(now + lowest, Ordering::Relaxed);
            }
            // All threads are through with the frontier.
            if self.barrier.wait().is_leader() {
                self.frontier.write().expect("no thread panics").clear();
                self.taken.store(0, Ordering::Relaxed);
                self.lowest[1 - step].store(usize::MAX, Ordering::Relaxed);
            }
            self.barrier.wait();
            now = self.lowest[step].load(Ordering::Relaxed);
            if now == usize::MAX {
                return;
            }
            if let Some(bucket) = buckets.get_mut(now) {
                self.frontier.write().expect("no thread panics").append(bucket);
            }
            self.barrier.wait();
            step = 1 - step;
        }
    }

    /// Relaxes the edges of the frontier's vertices, chunk by chunk.
    fn relax_frontier(&self, now: usize, buckets: &mut Vec<Vec<u32>>) {
        let frontier = self.frontier.read().expect("no thread panics");
        loop {
            let start = self.taken.fetch_add(CHUNK, Ordering::Relaxed);
            if start >= frontier.len() {
                return;
            }
            for vertex in &frontier[start..frontier.len().min(start + CHUNK)] {
                if self.relax(*vertex, now, buckets).is_none() {
                    self.damaged.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Relaxes the edges of a vertex; none if the graph in memory is damaged.
    fn relax(&self, vertex: u32, now: usize, buckets: &mut Vec<Vec<u32>>) -> Option<()> {
        let distance = self.distances.get(vertex as usize)?.load(Ordering::Relaxed);
        // It came nearer, and an earlier bucket has handled it.
        if self.bucket(distance) < now {
            return Some(());
        }
        for edge in self.graph.edges_of(vertex as usize)? {
            if edge.weight > HEAVIEST {
                return None;
            }
            let nearer = distance.saturating_add(edge.weight);
            let before = self.distances.get(edge.to as usize)?.fetch_min(nearer, Ordering::Relaxed);
            if nearer < before {
                let bucket = self.bucket(nearer);
                if buckets.len() <= bucket {
                    buckets.resize(bucket + 1, Vec::new());
                }
                buckets[bucket].push(edge.to);
            }
        }
        Some(())
    }
}

/// Returns the distance of each vertex from the source.
fn distances(graph: &Graph, source: u32, delta: u32, threads: NonZero<usize>) -> Result<Vec<u32>, Failure> {
    let vertices = graph.definition.vertices();
    let mut distances = vector(vertices)?;
    distances.resize_with(vertices, || AtomicU32::new(UNREACHED));
    distances[source as usize] = AtomicU32::new(0);
    let search = Search {
        graph,
        delta,
        distances: &distances,
        frontier: RwLock::new(vec![source]),
        taken: AtomicUsize::new(0),
        lowest: [const { AtomicUsize::new(usize::MAX) }; 2],
        barrier: Barrier::new(threads.get()),
        damaged: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for _ in 0..threads.get() {
            scope.spawn(|| search.work());
        }
    });
    if search.damaged.into_inner() {
        return Err(Failure::Wrong("the graph has an impossible edge".into()));
    }
    Ok(distances.into_iter().map(AtomicU32::into_inner).collect())
}

/// Checks the distances, and returns their part of the checksum.
///
/// The distances are right if no edge makes a vertex nearer, and each reached vertex but the source has an edge from a
/// vertex that is nearer by its weight. Weights are positive, so those edges lead back to the source: each distance is
/// the length of a path. The first condition says that no path is shorter, and reaches all vertices that have a path.
///
/// # Errors
/// The vertex or edge that contradicts.
fn verified(graph: &Graph, source: u32, distances: &[u32], threads: NonZero<usize>) -> Result<u64, String> {
    if distances.get(source as usize) != Some(&0) {
        return Err(format!("the source {source} has no distance 0"));
    }
    chunks::sum(threads, distances.len(), CHUNK, |range| {
        let mut sum = 0u64;
        for vertex in range {
            let distance = distances[vertex];
            let damaged = || format!("vertex {vertex} has an impossible edge");
            // Each edge has its opposite, so these are also the edges from its parents.
            let mut has_parent = vertex == source as usize;
            for edge in graph.edges_of(vertex).ok_or_else(damaged)? {
                let other = *distances.get(edge.to as usize).ok_or_else(damaged)?;
                if other != UNREACHED && distance > other.saturating_add(edge.weight) {
                    return Err(format!(
                        "vertex {vertex} has the distance {distance}, and vertex {} before it, by an edge of {}, has \
                         {other}",
                        edge.to, edge.weight
                    ));
                }
                has_parent |= other != UNREACHED && other.checked_add(edge.weight) == Some(distance);
            }
            if distance != UNREACHED {
                if !has_parent {
                    return Err(format!("vertex {vertex} has the distance {distance}, and no edge leads there"));
                }
                sum = sum.wrapping_add(Random::new((vertex as u64) << 32 | u64::from(distance)).next());
            }
        }
        Ok(sum)
    })
}

/// Chooses a source: a vertex with an edge to another one.
fn source(graph: &Graph, number: u64) -> Option<u32> {
    let definition = graph.definition;
    let mut random = Random::new(!definition.seed ^ number);
    let vertices = definition.vertices() as u64;
    let start = random.below(vertices);
    let mut all = (start..vertices).chain(0..start).map(|vertex| u32::try_from(vertex).expect("2^31 vertices at most"));
    let leads_away = |vertex: &u32| {
        graph.edges_of(*vertex as usize).is_some_and(|edges| edges.iter().any(|edge| edge.to != *vertex))
    };
    all.find(leads_away)
}

/// Sets up the graph, searches from each source and verifies the distances, and checks the graph.
pub(super) fn run(given: &Parameters, clock: &mut Clock) -> Result<Answer, Failure> {
    let size = |key, least, most| given.between(key, least, most).map_err(Failure::Usage);
    let scale = u32::try_from(size("scale", 1, 31)?).expect("at most 31");
    let degree = size("degree", 1, 1 << 16)?;
    let sources = size("sources", 1, 1 << 32)? as u64;
    let delta = u32::try_from(size("delta", 1, 1 << 30)?).expect("at most 2^30");
    let threads = given.threads().map_err(Failure::Usage)?;
    // Two directions of 8 bytes, an index of 8 bytes for each vertex.
    if ((16 * degree as u128 + 8) << scale) > MOST_BYTES {
        return Err(Failure::Usage(format!("2^{scale} vertices with {degree} edges need too much memory")));
    }
    let graph = Graph::new(Definition { scale, degree, seed: given.get("seed") })?;
    clock.lap();
    let (mut checksum, mut reached) = (0u64, 0);
    for number in 0..sources {
        let source = source(&graph, number)
            .ok_or_else(|| Failure::Usage("the graph has no edge between two vertices; use more of them".into()))?;
        let mut distances = distances(&graph, source, delta, threads)?;
        if given.get("damage") > 0 {
            let middle = distances.iter().rposition(|distance| *distance != UNREACHED && *distance > 0);
            distances[middle.expect("the source has a neighbour")] += 1;
        }
        let part = verified(&graph, source, &distances, threads).map_err(Failure::Wrong)?;
        checksum = Random::new(checksum ^ part).next();
        reached += distances.iter().filter(|distance| **distance != UNREACHED).count();
    }
    clock.lap();
    graph.check(threads).map_err(Failure::Wrong)?;
    clock.lap();
    let mib = graph.bytes() >> 20;
    let what = format!(
        "2^{scale} vertices, {degree} edges for each, {sources} sources, {reached} vertices reached, \
         {threads} threads, {mib} MiB of graph"
    );
    Ok(Answer { what, checksum })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: NonZero<usize> = NonZero::new(2).unwrap();

    fn graph() -> Graph {
        Graph::new(Definition { scale: 9, degree: 4, seed: 1 }).unwrap()
    }

    /// The oracle repeats all edges until nothing changes (Bellman and Ford).
    fn naive(graph: &Graph, source: u32) -> Vec<u32> {
        let mut distances = vec![UNREACHED; graph.definition.vertices()];
        distances[source as usize] = 0;
        loop {
            let before = distances.clone();
            for vertex in 0..distances.len() {
                for edge in graph.edges_of(vertex).unwrap() {
                    let nearer = distances[vertex].saturating_add(edge.weight);
                    distances[edge.to as usize] = distances[edge.to as usize].min(nearer);
                }
            }
            if before == distances {
                return distances;
            }
        }
    }

    #[test]
    fn distances_are_those_of_bellman_and_ford_for_every_width_and_number_of_threads() {
        let graph = graph();
        for number in 0..4 {
            let source = source(&graph, number).unwrap();
            let expected = naive(&graph, source);
            // Some vertices have no edge at all.
            assert!(expected.contains(&UNREACHED) && expected.iter().filter(|far| **far != UNREACHED).count() > 100);
            for delta in [1, 8, 100, 1 << 30] {
                for threads in [1, 2, 5].map(|threads| NonZero::new(threads).unwrap()) {
                    assert_eq!(distances(&graph, source, delta, threads).unwrap(), expected, "{delta}, {threads}");
                }
            }
            assert!(verified(&graph, source, &expected, TWO).is_ok());
        }
    }

    /// The far end of the chain is 98,303 buckets away.
    #[test]
    fn vertices_beyond_the_last_bucket_have_their_distances_too() {
        let definition = Definition { scale: 17, degree: 1, seed: 1 };
        let mut graph = Graph { definition, first: Vec::new(), edges: Vec::new() };
        // A chain: each vertex has an edge to the one before and to the one after.
        let vertices = definition.vertices();
        for vertex in 0..vertices {
            graph.first.push(graph.edges.len() as u64);
            let others = [vertex.checked_sub(1), Some(vertex + 1).filter(|next| *next < vertices)];
            let edge = |to| super::super::kronecker::Edge { to: u32::try_from(to).unwrap(), weight: 3 };
            graph.edges.extend(others.into_iter().flatten().map(edge));
        }
        graph.first.push(graph.edges.len() as u64);
        let found = distances(&graph, 0, 4, NonZero::<usize>::MIN).unwrap();
        assert!((0..vertices).all(|vertex| found[vertex] as usize == 3 * vertex));
    }

    #[test]
    fn the_verifier_notices_every_single_changed_distance() {
        let graph = graph();
        let source = source(&graph, 0).unwrap();
        let right = distances(&graph, source, 8, TWO).unwrap();
        let wrong = |distances: &[u32]| verified(&graph, source, distances, TWO).is_err();
        assert!(!wrong(&right));
        for vertex in 0..right.len() {
            let mut changed = right.clone();
            for value in [right[vertex].wrapping_add(1), right[vertex].wrapping_sub(1), 0, 1, UNREACHED, UNREACHED - 1]
            {
                changed[vertex] = value;
                assert_eq!(wrong(&changed), value != right[vertex], "vertex {vertex}: {value}");
            }
        }
    }

    #[test]
    fn a_damaged_graph_is_an_error_and_no_panic() {
        let damages: [fn(&mut Graph); 3] = [
            |graph| graph.edges.iter_mut().for_each(|edge| edge.to = u32::MAX),
            |graph| graph.edges.iter_mut().for_each(|edge| edge.weight = u32::MAX),
            |graph| graph.first.fill(u64::MAX),
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            let mut graph = graph();
            let source = source(&graph, 0).unwrap();
            damage(&mut graph);
            assert!(matches!(distances(&graph, source, 8, TWO), Err(Failure::Wrong(_))), "damage {number}");
        }
    }
}
