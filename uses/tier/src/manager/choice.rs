//! Chooses the sources if the options name none.

use super::state::Running;
use super::{ManagerOptions, SourceKind};
use crate::error::TierError;
use crate::heap::Heap;
use crate::heat::{Damon, DamonError, HeatMap, Sampled, Source, Traps, Windows};
use std::time::Duration;

/// A smaller heap does not occupy the machine's only DAMON. Source: chosen, more than a shell has, or a program that
/// only starts another.
const LEAST_BYTES: u64 = 64 << 20;

/// The seed that draws the pages for traps. Source: chosen; constant, so that results can be reproduced.
const SEED: u64 = 0x7e1f_e125;

/// The choice between DAMON and the other sources.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// DAMON is still to be tried.
    tries: bool,
    share: f64,
    /// The sources before DAMON, if DAMON is in use; they resume if DAMON fails.
    others: Option<Vec<Running>>,
    /// NotTaken DAMON is not in use.
    pub(super) why: Option<String>,
    /// CPU time of a DAMON that failed.
    past: Duration,
}

/// Returns the sources that the options request; without a request, those to use until the heap is large enough for
/// DAMON.
pub(super) fn sources(heap: &Heap, options: &ManagerOptions) -> Result<(Vec<Box<dyn Source>>, Choice), TierError> {
    let windows =
        || Windows::new(heap, options.window, options.share).map(|windows| Box::new(windows) as Box<dyn Source>);
    let traps =
        || Traps::new(heap, options.window, options.share, SEED).map(|traps| Box::new(traps) as Box<dyn Source>);
    let open = |kind: &SourceKind| match kind {
        SourceKind::Traps => traps(),
        SourceKind::Windows => windows().ok_or(TierError::NoWindows),
        SourceKind::Damon => Ok(Box::new(Damon::new(heap, options.share).map_err(Box::new)?) as Box<dyn Source>),
        SourceKind::Perf => Ok(Box::new(Sampled::new()?) as Box<dyn Source>),
    };
    match &options.sources {
        Some(kinds) => Ok((kinds.iter().map(open).collect::<Result<_, _>>()?, Choice::default())),
        None => {
            // Traps add reads and huge pages, which windows do not see.
            let both = windows().into_iter().chain(traps().ok());
            Ok((both.collect(), Choice { tries: true, share: options.share, ..Choice::default() }))
        }
    }
}

impl Choice {
    /// Changes the sources if it is time; returns whether it did.
    pub(super) fn consider(&mut self, sources: &mut Vec<Running>, heat: &HeatMap, heap: &Heap) -> bool {
        let (share, before) = (self.share, self.others.is_some());
        self.consider_with(sources, heat.covers(), || Ok(Box::new(Damon::new(heap, share)?)));
        before != self.others.is_some()
    }

    fn consider_with(
        &mut self,
        sources: &mut Vec<Running>,
        bytes: u64,
        damon: impl FnOnce() -> Result<Box<dyn Source>, DamonError>,
    ) {
        if self.tries && bytes >= LEAST_BYTES {
            self.tries = false;
            match damon() {
                Ok(damon) => self.take(sources, damon),
                Err(error) => self.why = Some(telpher_os::chain(&error)),
            }
        }
        let failed = sources.iter().find_map(|running| running.failed.clone());
        if let Some((others, why)) = failed.and_then(|why| Some((self.others.take()?, why))) {
            let failed = std::mem::replace(sources, others);
            self.past += cost(&failed);
            self.why = Some(why);
        }
    }

    /// Returns the CPU time of the sources that are not in use now.
    pub(super) fn past(&self) -> Duration {
        self.past + self.others.as_deref().map_or(Duration::ZERO, cost)
    }

    /// Makes DAMON the only source.
    fn take(&mut self, sources: &mut Vec<Running>, damon: Box<dyn Source>) {
        sources.iter_mut().for_each(|running| running.source.rest());
        self.others = Some(std::mem::replace(sources, vec![Running::new(damon)]));
    }
}

fn cost(sources: &[Running]) -> Duration {
    sources.iter().map(|running| running.cost.cpu).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A source that finds nothing.
    #[derive(Debug)]
    struct Named(&'static str);

    impl Source for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn sees(&self) -> &'static str {
            "nothing"
        }

        fn step(&mut self, _: Duration, _: &mut HeatMap) -> io::Result<Duration> {
            Ok(Duration::from_secs(1))
        }
    }

    fn names(sources: &[Running]) -> Vec<&'static str> {
        sources.iter().map(|running| running.source.name()).collect()
    }

    fn damon() -> Result<Box<dyn Source>, DamonError> {
        Ok(Box::new(Named("damon")))
    }

    fn begun() -> (Vec<Running>, Choice) {
        (vec![Running::new(Box::new(Named("windows")))], Choice { tries: true, ..Choice::default() })
    }

    #[test]
    fn damon_is_tried_once_the_heap_is_large_enough() {
        let (mut sources, mut choice) = begun();
        sources[0].cost.cpu = Duration::from_millis(3);
        choice.consider_with(&mut sources, LEAST_BYTES - 1, || unreachable!("the heap is too small"));
        assert_eq!((names(&sources), choice.past()), (vec!["windows"], Duration::ZERO));
        choice.consider_with(&mut sources, LEAST_BYTES, damon);
        assert_eq!((names(&sources), choice.past()), (vec!["damon"], Duration::from_millis(3)));
        choice.consider_with(&mut sources, LEAST_BYTES, || unreachable!("DAMON is in use"));
        assert_eq!((names(&sources), choice.why), (vec!["damon"], None));
    }

    #[test]
    fn after_a_damon_failure_the_earlier_sources_resume() {
        let (mut sources, mut choice) = begun();
        choice.consider_with(&mut sources, LEAST_BYTES, damon);
        (sources[0].failed, sources[0].cost.cpu) = (Some("it was ended".into()), Duration::from_millis(5));
        choice.consider_with(&mut sources, LEAST_BYTES, || unreachable!("DAMON is tried once"));
        assert_eq!((names(&sources), choice.past()), (vec!["windows"], Duration::from_millis(5)));
        assert_eq!(choice.why.as_deref(), Some("it was ended"));
        // The remaining source has failed for good.
        sources[0].failed = Some("no more".into());
        choice.consider_with(&mut sources, LEAST_BYTES, damon);
        assert_eq!(names(&sources), ["windows"]);
    }

    #[test]
    fn an_unavailable_damon_is_reported_with_the_reason() {
        let (mut sources, mut choice) = begun();
        let forbidden = || Err(DamonError::Forbidden(io::ErrorKind::PermissionDenied.into()));
        choice.consider_with(&mut sources, LEAST_BYTES, forbidden);
        choice.consider_with(&mut sources, LEAST_BYTES, || unreachable!("DAMON is tried once"));
        assert_eq!(names(&sources), ["windows"]);
        assert!(choice.why.is_some_and(|why| why.contains("root") && why.contains("permission denied")));
        // A manager with requested sources never tries DAMON.
        let mut choice = Choice::default();
        choice.consider_with(&mut sources, u64::MAX, || unreachable!("not requested"));
    }
}
