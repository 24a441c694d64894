//! Graphs whose edges gather at few vertices.
//!
//! Source: the Graph500 benchmark's specification, "Kronecker generator" (after Chakrabarti, Zhan and Faloutsos,
//! *R-MAT: A Recursive Model for Graph Mining*, SDM 2004): 2^scale vertices and a number of edges for each; an edge
//! chooses a quarter of the adjacency matrix with the probabilities 0.57, 0.19, 0.19 and 0.05, in it a quarter again,
//! and so on; then vertices get other numbers. Each edge serves both directions. Weights are whole numbers from 1 to
//! 255, as in Beamer, Asanović and Patterson, *The GAP Benchmark Suite* (2015).
//!
//! An edge depends only on its number, so that all can be generated again to check the graph in memory. Vertices are
//! renumbered by a bijection instead of a table.

use super::chunks;
use super::outcome::{Failure, vector};
use std::num::NonZero;
use telpher_os::Random;

/// The largest weight.
pub(super) const HEAVIEST: u32 = 255;

/// The probabilities of the first quarter, of the first two, and of the first three, of 65,536.
const QUARTERS: [u64; 3] = [37_356, 49_807, 62_259];
/// Edges in a chunk of a thread. Source: chosen, some milliseconds.
const CHUNK: usize = 1 << 14;

/// A graph as it is defined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Definition {
    /// The binary logarithm of the number of vertices, 1 to 31.
    pub(super) scale: u32,
    /// Edges for each vertex, each in both directions.
    pub(super) degree: usize,
    pub(super) seed: u64,
}

/// An edge of a vertex to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    pub(super) to: u32,
    pub(super) weight: u32,
}

/// A graph in memory: compressed sparse rows.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) definition: Definition,
    /// For each vertex, the index of its first edge; and at the end, the number of edges.
    pub(super) first: Vec<u64>,
    pub(super) edges: Vec<Edge>,
}

impl Definition {
    pub(super) fn vertices(self) -> usize {
        1 << self.scale
    }

    /// Returns the number of edges, without their opposite directions.
    pub(super) fn edges(self) -> usize {
        self.vertices() * self.degree
    }

    /// Returns an edge: its vertices and its weight.
    fn edge(self, number: usize) -> (u32, Edge) {
        let mut random = Random::new(Random::new(self.seed).next() ^ number as u64);
        let weight = random.below(u64::from(HEAVIEST));
        let (mut from, mut to, mut bits) = (0, 0, 0);
        for level in 0..self.scale {
            // A random word is enough for four levels.
            if level % 4 == 0 {
                bits = random.next();
            }
            let quarter = QUARTERS.iter().filter(|below| bits & 0xffff >= **below).count();
            bits >>= 16;
            (from, to) = (from << 1 | u32::from(quarter >= 2), to << 1 | u32::from(quarter % 2 == 1));
        }
        let weight = u32::try_from(weight).expect("below 255") + 1;
        (self.renumbered(from), Edge { to: self.renumbered(to), weight })
    }

    /// Gives a vertex its final number. Each step is a bijection of the numbers below 2^scale.
    fn renumbered(self, vertex: u32) -> u32 {
        let mask = (self.vertices() - 1) as u64;
        let shift = self.scale.div_ceil(2);
        let mut random = Random::new(self.seed ^ u64::from(self.scale));
        let mut number = u64::from(vertex);
        for _ in 0..3 {
            number = number.wrapping_mul(random.next() | 1).wrapping_add(random.next()) & mask;
            number ^= number >> shift;
        }
        u32::try_from(number).expect("at most 31 bits")
    }
}

/// Returns a word for an edge, for sums over edges.
fn word(from: u32, edge: Edge) -> u64 {
    let ends = u64::from(from) << 32 | u64::from(edge.to);
    Random::new(Random::new(ends).next() ^ u64::from(edge.weight)).next()
}

impl Graph {
    pub(super) fn new(definition: Definition) -> Result<Graph, Failure> {
        let vertices = definition.vertices();
        let mut first: Vec<u64> = vector(vertices + 1)?;
        first.resize(vertices + 1, 0);
        let both = |number| {
            let (from, edge) = definition.edge(number);
            [(from, edge), (edge.to, Edge { to: from, ..edge })]
        };
        // The degrees, then for each vertex the end of its edges, which becomes their begin as the edges are placed.
        for (from, _) in (0..definition.edges()).flat_map(both) {
            first[from as usize] += 1;
        }
        let mut end = 0;
        for place in &mut first {
            end += *place;
            *place = end;
        }
        let mut edges: Vec<Edge> = vector(2 * definition.edges())?;
        edges.resize(2 * definition.edges(), Edge { to: 0, weight: 0 });
        for (from, edge) in (0..definition.edges()).flat_map(both) {
            let place = &mut first[from as usize];
            *place -= 1;
            edges[usize::try_from(*place).expect("an index in memory")] = edge;
        }
        Ok(Graph { definition, first, edges })
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.first[..]) + size_of_val(&self.edges[..])
    }

    /// Returns the edges of a vertex; none if the graph in memory is damaged.
    pub(super) fn edges_of(&self, vertex: usize) -> Option<&[Edge]> {
        let [start, end] = [self.first.get(vertex)?, self.first.get(vertex + 1)?].map(|at| usize::try_from(*at));
        self.edges.get(start.ok()?..end.ok()?)
    }

    /// Compares the graph with its definition.
    ///
    /// # Errors
    /// The difference.
    pub(super) fn check(&self, threads: NonZero<usize>) -> Result<(), String> {
        let vertices = self.definition.vertices();
        let in_memory = chunks::sum(threads, vertices, CHUNK, |range| {
            let mut sum = 0u64;
            for (vertex, from) in range.map(|vertex| (vertex, u32::try_from(vertex).expect("2^31 vertices at most"))) {
                let edges = self.edges_of(vertex).ok_or_else(|| format!("vertex {vertex} has an impossible row"))?;
                for edge in edges {
                    if edge.to as usize >= vertices || !(1..=HEAVIEST).contains(&edge.weight) {
                        return Err(format!("vertex {vertex} has an impossible edge: {edge:?}"));
                    }
                    sum = sum.wrapping_add(word(from, *edge));
                }
            }
            Ok(sum)
        })?;
        let as_defined = chunks::sum(threads, self.definition.edges(), CHUNK, |range| {
            Ok::<u64, String>(range.fold(0u64, |sum, number| {
                let (from, edge) = self.definition.edge(number);
                let opposite = word(edge.to, Edge { to: from, ..edge });
                sum.wrapping_add(word(from, edge)).wrapping_add(opposite)
            }))
        })?;
        let are_all = self.first.first() == Some(&0) && self.first.last() == Some(&(self.edges.len() as u64));
        if in_memory == as_defined && are_all { Ok(()) } else { Err("the graph has other edges than it had".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        Graph::new(Definition { scale: 7, degree: 5, seed: 1 }).unwrap()
    }

    fn check(graph: &Graph) -> Result<(), String> {
        graph.check(NonZero::new(2).unwrap())
    }

    #[test]
    fn vertices_are_renumbered_by_a_bijection() {
        for scale in 1..=12 {
            let definition = Definition { scale, degree: 1, seed: 9 };
            let mut seen = vec![false; definition.vertices()];
            for vertex in 0..1 << scale {
                assert!(!std::mem::replace(&mut seen[definition.renumbered(vertex) as usize], true), "{scale}");
            }
        }
    }

    #[test]
    fn each_edge_is_there_in_both_directions_and_few_vertices_have_most() {
        let graph = Graph::new(Definition { scale: 12, degree: 16, seed: 1 }).unwrap();
        assert_eq!(graph.edges.len(), (2 * 16) << 12);
        let mut all = Vec::new();
        for vertex in 0..1u32 << 12 {
            all.extend(graph.edges_of(vertex as usize).unwrap().iter().map(|edge| (vertex, edge.to, edge.weight)));
        }
        let mut opposite: Vec<_> = all.iter().map(|(from, to, weight)| (*to, *from, *weight)).collect();
        all.sort_unstable();
        opposite.sort_unstable();
        assert_eq!(all, opposite);
        assert!(all.iter().all(|(_, _, weight)| (1..=HEAVIEST).contains(weight)));
        // With equal probabilities, no vertex would have three times the average.
        let most = (0..1 << 12).map(|vertex| graph.edges_of(vertex).unwrap().len()).max().unwrap();
        assert!(most > 20 * 32, "{most}");
    }

    #[test]
    fn every_kind_of_damage_to_a_graph_is_noticed() {
        assert_eq!(check(&graph()), Ok(()));
        let damages: [fn(&mut Graph); 6] = [
            |graph| graph.edges[77].weight ^= 1,
            |graph| graph.edges[77].weight = 0,
            |graph| graph.edges[1000].to ^= 1,
            |graph| graph.edges[1000].to = u32::MAX,
            |graph| graph.first[30] = u64::MAX,
            |graph| graph.first[128] -= 1,
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            let mut graph = graph();
            damage(&mut graph);
            assert!(check(&graph).is_err(), "damage {number}");
        }
    }
}
