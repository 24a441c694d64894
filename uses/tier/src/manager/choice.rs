//! Who looks, if nobody has said who is to.

use super::state::Running;
use super::{ManagerOptions, SourceKind};
use crate::error::TierError;
use crate::heap::Heap;
use crate::heat::{Damon, DamonError, HeatMap, Sampled, Source, Traps, Windows};
use std::error::Error;
use std::time::Duration;

/// A heap of less is not worth what a machine has one of. Source: chosen, more than a shell has, or a program that does nothing but start another.
const LEAST_BYTES: u64 = 64 << 20;

/// By which pages are drawn for traps. Source: chosen; the same every time, so that what was found can be found again.
const SEED: u64 = 0x7e1f_e125;

/// Who may look instead of those who do.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// DAMON is to be tried.
    tries: bool,
    share: f64,
    /// It looks. Those who did before it, to whom it goes back should it end.
    others: Option<Vec<Running>>,
    /// Why it does not look.
    pub(super) why: Option<String>,
    /// Time of a core of one that failed.
    past: Duration,
}

/// The sources that the options ask for; or whoever looks until there is more to be looked at, and perhaps for good.
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
            // Reads and huge pages are what windows do not see.
            let both = windows().into_iter().chain(traps().ok());
            Ok((both.collect(), Choice { tries: true, share: options.share, ..Choice::default() }))
        }
    }
}

impl Choice {
    /// Changes who looks, if it is time: true.
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
                Err(error) => self.why = Some(said(&error)),
            }
        }
        let failed = sources.iter().find_map(|running| running.failed.clone());
        if let Some((others, why)) = failed.and_then(|why| Some((self.others.take()?, why))) {
            let failed = std::mem::replace(sources, others);
            self.past += cost(&failed);
            self.why = Some(why);
        }
    }

    /// Time of a core that those have had who do not look now.
    pub(super) fn past(&self) -> Duration {
        self.past + self.others.as_deref().map_or(Duration::ZERO, cost)
    }

    /// It looks from now on.
    fn take(&mut self, sources: &mut Vec<Running>, damon: Box<dyn Source>) {
        sources.iter_mut().for_each(|running| running.source.rest());
        self.others = Some(std::mem::replace(sources, vec![Running::new(damon)]));
    }
}

fn cost(sources: &[Running]) -> Duration {
    sources.iter().map(|running| running.cost.cpu).sum()
}

/// In one sentence, with what the system said.
pub(super) fn said(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// One that is found nothing by.
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
    fn damon_is_tried_once_there_is_enough_to_look_at() {
        let (mut sources, mut choice) = begun();
        sources[0].cost.cpu = Duration::from_millis(3);
        choice.consider_with(&mut sources, LEAST_BYTES - 1, || unreachable!("too little"));
        assert_eq!((names(&sources), choice.past()), (vec!["windows"], Duration::ZERO));
        choice.consider_with(&mut sources, LEAST_BYTES, damon);
        assert_eq!((names(&sources), choice.past()), (vec!["damon"], Duration::from_millis(3)));
        choice.consider_with(&mut sources, LEAST_BYTES, || unreachable!("it has it"));
        assert_eq!((names(&sources), choice.why), (vec!["damon"], None));
    }

    #[test]
    fn where_damon_fails_those_before_it_go_on_and_why_is_told() {
        let (mut sources, mut choice) = begun();
        choice.consider_with(&mut sources, LEAST_BYTES, damon);
        (sources[0].failed, sources[0].cost.cpu) = (Some("it was ended".into()), Duration::from_millis(5));
        choice.consider_with(&mut sources, LEAST_BYTES, || unreachable!("it is tried once"));
        assert_eq!((names(&sources), choice.past()), (vec!["windows"], Duration::from_millis(5)));
        assert_eq!(choice.why.as_deref(), Some("it was ended"));
        // Those fail for good.
        sources[0].failed = Some("no more".into());
        choice.consider_with(&mut sources, LEAST_BYTES, damon);
        assert_eq!(names(&sources), ["windows"]);
    }

    #[test]
    fn where_damon_is_not_to_be_had_why_is_told() {
        let (mut sources, mut choice) = begun();
        let forbidden = || Err(DamonError::Forbidden(io::ErrorKind::PermissionDenied.into()));
        choice.consider_with(&mut sources, LEAST_BYTES, forbidden);
        choice.consider_with(&mut sources, LEAST_BYTES, || unreachable!("it is tried once"));
        assert_eq!(names(&sources), ["windows"]);
        assert!(choice.why.is_some_and(|why| why.contains("root") && why.contains("permission denied")));
        // Whoever said who is to look is not asked.
        let mut choice = Choice::default();
        choice.consider_with(&mut sources, u64::MAX, || unreachable!("nobody wants it"));
    }
}
