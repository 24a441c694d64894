//! The thesis' query (Fürst, §6): its four published variants with their printed numbers, and further variants.
//!
//! ```text
//! published, questions ─► Way { query, queues } ──lab──► Told { time, speedup, hits, stages }   compared with:
//! Published { claims }
//! ```

use crate::lab::Lab;
use crate::published::{Claim, claims};
use crate::setups::on;
use telpher_device::WqMode;
use telpher_sim::{
    App, HbmCacheMode, LateCopy, LoadOutcome, Measure, Pages, Prefetch, Query, Scenario, ScenarioError, Workload,
};

/// A variant of the query.
#[derive(Clone, Debug)]
pub struct QueryVariant {
    /// Its name.
    pub name: &'static str,
    /// The query.
    pub query: Query,
    /// Mode of the one queue of each device.
    pub mode: WqMode,
    /// Its published numbers.
    pub published: Option<Published>,
}

/// The published numbers of a variant.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// Its time, ms.
    pub time: &'static Claim,
    /// Its speed-up over all columns in DDR.
    pub speedup: &'static Claim,
    /// Cache hits in per cent; `None` without prefetching.
    pub hits: Option<&'static Claim>,
}

/// The simulated results of a variant.
#[derive(Clone, PartialEq, Debug)]
pub struct VariantResult {
    /// Its time.
    pub ms: f64,
    /// Its speed-up over all columns in DDR without prefetching.
    pub speedup: f64,
    /// Chunks that were in fast memory when needed, in per cent (in cache mode: pages); `None` without such memory.
    pub hits: Option<f64>,
    /// Milliseconds of all hardware threads together in each stage: `SCAN_a`, `SCAN_b` with prefetching, `AGGREGATE`.
    pub stages: Vec<Measure>,
    /// Submissions that a full queue refused.
    pub sent_back: f64,
}

/// A question that the thesis does not answer.
#[derive(Clone, Debug)]
pub struct Question {
    /// Its name in outputs.
    pub id: &'static str,
    /// The question.
    pub asks: &'static str,
    /// Variants that answer it, in pairs: both columns on one node, and on different nodes.
    pub ways: Vec<QueryVariant>,
}

impl QueryVariant {
    pub(crate) const fn of(name: &'static str, query: Query) -> Self {
        QueryVariant { name, query, mode: WqMode::Shared, published: None }
    }

    /// The variant with its published numbers.
    fn printed(self, time: &str, speedup: &str, hits: Option<&str>) -> Self {
        let claim = |id: &str| claims().iter().find(|claim| claim.id == id).expect("a test asks for all ways");
        let published = Published { time: claim(time), speedup: claim(speedup), hits: hits.map(claim) };
        QueryVariant { published: Some(published), ..self }
    }

    /// The scenario of the variant on the thesis' machine (§3.1).
    #[must_use]
    pub fn scenario(&self) -> Scenario {
        let mut scenario = on("xeon-max-9468", 8, self.mode, 1);
        for group in scenario.devices.iter_mut().flat_map(|device| &mut device.groups) {
            for queue in &mut group.grouped_workqueues {
                // Only the prefetching query uses the device.
                queue.block_on_fault = 1;
            }
        }
        scenario.with("query", 1, Workload::App(App::Query(self.query.clone())))
    }

    /// Simulates it, and the query with all columns in DDR for comparison.
    ///
    /// # Errors
    /// The lab's replacing machine has too few devices or nodes.
    pub fn run(&self, lab: &Lab) -> Result<VariantResult, ScenarioError> {
        let (own, near) =
            (lab.run(&self.scenario())?, lab.run(&QueryVariant::of("", Query::of_two_columns()).scenario())?);
        let own = &own.loads[0];
        let ms = number(own, "query").unwrap_or(f64::NAN);
        let stage = |name: &str| own.measures.iter().find(|measure| measure.name == name).cloned();
        Ok(VariantResult {
            ms,
            speedup: number(&near.loads[0], "query").unwrap_or(f64::NAN) / ms,
            hits: number(own, "cache hits").or(number(own, "fast memory hits")),
            stages: ["SCAN_a", "SCAN_b", "AGGREGATE"].into_iter().filter_map(stage).collect(),
            sent_back: number(own, "refused").unwrap_or(0.0),
        })
    }
}

impl Question {
    /// A sentence with the time of the fastest of its variants and of the thesis' own variant; with both columns on one
    /// node, and on different nodes.
    ///
    /// ```
    /// use telpher_claims::{lab::Lab, query::questions};
    ///
    /// let lab = Lab::default();
    /// let push_pull = questions().into_iter().find(|question| question.id == "push-pull").unwrap();
    /// let answer = push_pull.answer(&lab)?;
    /// assert!(answer.starts_with("columns on one node: ") && answer.contains(" ms instead of "), "{answer}");
    /// # Ok::<(), telpher_sim::ScenarioError>(())
    /// ```
    ///
    /// # Errors
    /// The lab's replacing machine has too few devices or nodes.
    pub fn answer(&self, lab: &Lab) -> Result<String, ScenarioError> {
        let mut sentences = Vec::new();
        for (b, place) in ["columns on one node", "columns on separate nodes"].into_iter().enumerate() {
            let own = QueryVariant::of("", Query::prefetching(b)).run(lab)?;
            let pairs = self.ways.iter().skip(b).step_by(2);
            let result = pairs.map(|way| Ok((way.name, way.run(lab)?))).collect::<Result<Vec<_>, ScenarioError>>()?;
            let Some((name, best)) = result.into_iter().min_by(|a, b| a.1.ms.total_cmp(&b.1.ms)) else { continue };
            let change = (best.ms / own.ms - 1.0) * 100.0;
            let hits = |result: &VariantResult| result.hits.map_or(String::new(), |hits| format!("{hits:.0} %"));
            sentences.push(format!(
                "{place}: {:.1} ms instead of {:.1} ({change:+.1} %), hits {} instead of {} ({name})",
                best.ms,
                own.ms,
                hits(&best),
                hits(&own)
            ));
        }
        Ok(sentences.join("; "))
    }
}

fn number(load: &LoadOutcome, name: &str) -> Option<f64> {
    load.measures.iter().find(|measure| measure.name == name).map(|measure| measure.value)
}

/// The four rows of Table 6.2, in its order; the first two are Table 6.1 and Figure 6.1, the others Figure 6.2.
///
/// # Panics
/// Never: the claims are built in.
#[must_use]
pub fn published() -> Vec<QueryVariant> {
    let near = Query::of_two_columns();
    vec![
        QueryVariant::of("DDR (baseline)", near.clone()).printed("T-060", "T-061", None),
        QueryVariant::of("HBM (upper limit)", Query { b: 8, ..near }).printed("T-063", "T-064", None),
        QueryVariant::of("prefetching", Query::prefetching(0)).printed("T-066", "T-067", Some("T-068")),
        QueryVariant::of("prefetching, separate nodes", Query::prefetching(1)).printed("T-069", "T-070", Some("T-071")),
    ]
}

/// Both columns on one node, and on different nodes.
fn both(names: [&'static str; 2], query: impl Fn(usize) -> Query) -> [QueryVariant; 2] {
    [0, 1].map(|b| QueryVariant::of(names[b], query(b)))
}

/// With prefetching and a change to it.
fn fetched(names: [&'static str; 2], change: impl Fn(&mut Prefetch)) -> [QueryVariant; 2] {
    both(names, |b| {
        let mut query = Query::prefetching(b);
        query.prefetch.iter_mut().for_each(&change);
        query
    })
}

/// Variants that were not tried: the thesis' own conclusion (§7) and discussion suggest most of them.
#[must_use]
pub fn questions() -> Vec<Question> {
    let chunks = |names, mib: u64| both(names, move |b| Query { chunk: mib << 20, ..Query::prefetching(b) });
    let side = |pages, warm| {
        move |b| {
            let side = HbmCacheMode { a: 8, b: 8 + b, bytes: 16 << 30, pages, warm };
            Query { b, memory_side: Some(side), ..Query::of_two_columns() }
        }
    };
    let push_pull = |names, split| {
        both(names, move |b| {
            let mut query = Query::prefetching(b);
            // The devices of nodes 0 and 1, or of node 0.
            let near = u16::from(b > 0);
            if let Some(prefetch) = &mut query.prefetch {
                prefetch.queues.retain(|queue| queue.device <= near);
                prefetch.split = split;
            }
            query
        })
    };
    let question =
        |id, asks, ways: Vec<[QueryVariant; 2]>| Question { id, asks, ways: ways.into_iter().flatten().collect() };
    let mut dedicated = fetched(["dedicated queues", "dedicated queues, separate nodes"], |it| {
        it.queues.iter_mut().for_each(|queue| queue.shared = false)
    });
    for way in &mut dedicated {
        way.mode = WqMode::Dedicated;
    }
    vec![
        question(
            "push-pull",
            "Two devices, those of the column's node and of the threads' node, instead of the socket's four (one if \
             the nodes are the same)",
            vec![
                push_pull(["push-pull, in turn", "push-pull, in turn, separate nodes"], false),
                push_pull(["push-pull, in parts", "push-pull, in parts, separate nodes"], true),
            ],
        ),
        question("dedicated", "Dedicated queues instead of shared ones (§7)", vec![dedicated]),
        question(
            "waiting",
            "Waiting for a late copy, instead of reading the original chunk: polling on a hardware thread, or \
             yielding it until an interrupt (§7)",
            vec![
                fetched(["late: poll", "late: poll, separate nodes"], |it| it.late = LateCopy::Poll),
                fetched(["late: sleep", "late: sleep, separate nodes"], |it| it.late = LateCopy::Interrupt),
            ],
        ),
        question(
            "steps",
            "Prefetching in step with scanning, instead of as fast as possible (§6.1)",
            vec![
                fetched(["in step", "in step, separate nodes"], |it| it.relaxed = false),
                fetched(["in step, late: sleep", "in step, late: sleep, separate nodes"], |it| {
                    (it.relaxed, it.late) = (false, LateCopy::Interrupt);
                }),
            ],
        ),
        question(
            "overlap",
            "A group that sums over a chunk before it scans the next, instead of both at once (as in drafts of §6.1)",
            vec![both(["one after the other", "one after the other, separate nodes"], |b| Query {
                overlapping: false,
                ..Query::prefetching(b)
            })],
        ),
        question(
            "order",
            "Threads that begin with different devices, instead of all with the first",
            vec![fetched(["first device by thread", "first device by thread, separate nodes"], |it| it.spread = true)],
        ),
        question(
            "chunks",
            "Chunks larger or smaller than 16 MiB (§6.1)",
            vec![
                chunks(["chunks of 4 MiB", "chunks of 4 MiB, separate nodes"], 4),
                chunks(["chunks of 8 MiB", "chunks of 8 MiB, separate nodes"], 8),
                chunks(["chunks of 32 MiB", "chunks of 32 MiB, separate nodes"], 32),
                chunks(["chunks of 64 MiB", "chunks of 64 MiB, separate nodes"], 64),
            ],
        ),
        question(
            "cache-mode",
            "HBM in cache mode instead of prefetching (§2.1, §7): the first run, a later one, and that with pages \
             that Linux has shuffled",
            vec![
                both(["cache mode, first run", "cache mode, first run, separate nodes"], side(Pages::InARow, false)),
                both(["cache mode, later run", "cache mode, later run, separate nodes"], side(Pages::InARow, true)),
                both(["cache mode, shuffled", "cache mode, shuffled, separate nodes"], side(Pages::Anywhere(1), true)),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Value;
    use std::collections::BTreeSet;

    #[test]
    fn the_tables_are_within_ten_per_cent() {
        let lab = Lab::default();
        for way in published() {
            let (result, printed) = (way.run(&lab).unwrap(), way.published.unwrap());
            for (claim, value) in [(printed.time, result.ms), (printed.speedup, result.speedup)] {
                let off = claim.deviation(value).unwrap();
                assert!(off.abs() < 0.1, "{}, {}: {:.1} % off", way.name, claim.unit, off * 100.0);
            }
            assert_eq!(printed.hits.is_some(), result.hits.is_some());
            let off = printed.hits.zip(result.hits).map(|(claim, hits)| claim.deviation(hits).unwrap());
            assert!(off.unwrap_or(0.0).abs() < 0.1, "{}: hits {off:?}", way.name);
            assert!(!matches!(printed.time.value, Value::None));
        }
    }

    #[test]
    fn every_question_is_answered_by_ways_that_differ() {
        let lab = Lab::default();
        let mut seen: Vec<Query> = published().into_iter().map(|way| way.query).collect();
        let mut names = BTreeSet::new();
        for question in questions() {
            assert!(!question.ways.is_empty() && question.ways.len() % 2 == 0, "{}", question.id);
            for way in question.ways {
                assert!(names.insert(way.name), "{} twice", way.name);
                let result = way.run(&lab).unwrap();
                assert!(result.ms > 80.0 && result.ms < 200.0 && result.hits.is_some(), "{}: {result:?}", way.name);
                assert!(!seen.contains(&way.query), "{} is another", way.name);
                seen.push(way.query);
            }
        }
    }

    #[test]
    fn a_machine_without_hbm_is_refused() {
        let machine = telpher_sim::Machine::built_in("spr-asplos").unwrap();
        let error = published()[1].run(&Lab::on(machine)).unwrap_err().to_string();
        assert!(error.contains("node") || error.contains("devices"), "{error}");
    }
}
