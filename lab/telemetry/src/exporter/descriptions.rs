//! The descriptions of what processes count, each in a place: a number by which values name it.
//!
//! Descriptions come from processes, which may be hostile: one process brings a limited number, and those that no
//! process has any more leave their places.

use std::collections::{BTreeMap, BTreeSet};
use telpher_metrics::Description;

/// The most different descriptions. Source: chosen; what four processes may bring.
const MOST: usize = 4096;
/// The most descriptions that one process has brought. Source: chosen; all crates together have some 140 metrics, some
/// of which have a description for each value of their label.
const MOST_OF_PROCESS: usize = 1024;

/// Labels that the exporter or Prometheus gives to samples.
const RESERVED: [&str; 11] =
    ["le", "quantile", "pid", "namespace", "pod", "pod_uid", "container", "container_name", "vm", "job", "instance"];

/// The descriptions.
#[derive(Debug, Default)]
pub(super) struct Descriptions {
    placed: Vec<Option<Placed>>,
    /// The places that were left.
    free: Vec<usize>,
    /// The places by name and label's value.
    places: BTreeMap<(String, String), usize>,
    /// The number of descriptions that each process has brought, as long as it publishes.
    brought: BTreeMap<u32, usize>,
}

/// A description in its place.
#[derive(Debug)]
struct Placed {
    description: Description,
    /// The process that had it first, as long as that publishes.
    brought_by: Option<u32>,
}

impl Descriptions {
    /// Returns the description in a place of [`place`](Self::place), which was [kept](Self::keep) since.
    pub(super) fn get(&self, place: usize) -> &Description {
        &self.placed[place].as_ref().expect("a place that is kept has a description").description
    }

    /// Returns the place of a process' description; `None` if it breaks a rule, differs from another process', or is
    /// one too many.
    pub(super) fn place(&mut self, description: &Description, process: u32) -> Option<usize> {
        let value = description.label.as_ref().map(|(_, value)| value.clone()).unwrap_or_default();
        let key = (description.name.clone(), value);
        if let Some(place) = self.places.get(&key) {
            return (self.get(*place) == description).then_some(*place);
        }
        let is_reserved = description.label.as_ref().is_some_and(|(key, _)| RESERVED.contains(&key.as_str()));
        let brought = self.brought.get(&process).copied().unwrap_or_default();
        let is_full = self.free.is_empty() && self.placed.len() >= MOST;
        if description.broken_rule().is_some() || is_reserved || brought >= MOST_OF_PROCESS || is_full {
            return None;
        }
        let placed = Some(Placed { description: description.clone(), brought_by: Some(process) });
        let place = match self.free.pop() {
            Some(place) => {
                self.placed[place] = placed;
                place
            }
            None => {
                self.placed.push(placed);
                self.placed.len() - 1
            }
        };
        self.places.insert(key, place);
        self.brought.insert(process, brought + 1);
        Some(place)
    }

    /// Keeps these places, and frees all others. Processes that are not in `publishing` have brought nothing: their
    /// numbers may become those of other processes.
    pub(super) fn keep(&mut self, used: &BTreeSet<usize>, publishing: &BTreeSet<u32>) {
        let Descriptions { placed, free, places, brought } = self;
        places.retain(|_, place| used.contains(place));
        brought.clear();
        for (place, slot) in placed.iter_mut().enumerate() {
            let Some(Placed { brought_by, .. }) = slot else { continue };
            if !used.contains(&place) {
                *slot = None;
                free.push(place);
                continue;
            }
            *brought_by = brought_by.filter(|process| publishing.contains(process));
            if let Some(process) = brought_by {
                *brought.entry(*process).or_default() += 1;
            }
        }
    }
}
