use super::*;
use proptest::prelude::*;

crate::metrics! {
    /// Two values.
    struct Two {
        /// Requests.
        requests: u64 = counter "telpher_test_requests_total" by side ["left"] => "Requests, by side.",
        /// Bytes held.
        held: u64 = gauge(Bytes) "telpher_test_held_bytes",
    }
}

crate::metrics! {
    /// Another value.
    struct Other {
        /// Requests.
        requests: u64 = counter "telpher_test_other_requests_total",
    }
}

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

fn sets(reader: &RegionReader<'_>) -> Vec<(String, Vec<u64>)> {
    let snapshot = reader.snapshot();
    assert!(snapshot.settled);
    snapshot.sets.into_iter().map(|set| (set.labels, set.values)).collect()
}

#[test]
fn a_reader_without_the_type_sees_names_labels_and_values() {
    let words = words(Region::<Two>::words(3));
    let region = Region::<Two>::create(&words, 3).unwrap();
    let first = region.claim("pid=\"1\"").unwrap();
    let second = Region::<Two>::open(&words).unwrap().claim("pid=\"2\"").unwrap();
    first.add(Two::AT.requests, 3);
    first.add_alone(Two::AT.held, 4096);
    second.store(&Two { requests: 7, held: 8 });

    let reader = RegionReader::open(&words).unwrap();
    let described: Vec<_> = reader.metrics().iter().map(|row| (row.name.as_str(), row.kind, row.unit)).collect();
    let expected = [
        ("telpher_test_requests_total", Kind::Counter, Unit::Count),
        ("telpher_test_held_bytes", Kind::Gauge, Unit::Bytes),
    ];
    assert_eq!(described, expected);
    let Description { label, help, .. } = &reader.metrics()[0];
    assert_eq!((label.clone(), help.as_str()), (Some(("side".into(), "left".into())), "Requests, by side."));
    assert_eq!(sets(&reader), [("pid=\"1\"".to_owned(), vec![3, 4096]), ("pid=\"2\"".to_owned(), vec![7, 8])]);
}

#[test]
fn the_totals_of_an_owner_that_left_are_kept_and_its_set_is_used_again() {
    let words = words(Region::<Two>::words(2));
    let region = Region::<Two>::create(&words, 2).unwrap();
    let departed = region.claim("departed").unwrap();
    for _ in 0..5 {
        let owner = region.claim("pid=\"1\"").unwrap();
        assert_eq!(region.claim("pid=\"2\"").unwrap_err(), RegionError::Full(2));
        owner.add(Two::AT.requests, 10);
        owner.merge_into(&departed).unwrap();
    }
    region.claim("pid=\"3\"").unwrap();
    let reader = RegionReader::open(&words).unwrap();
    assert_eq!(sets(&reader), [("departed".to_owned(), vec![50, 0]), ("pid=\"3\"".to_owned(), vec![0, 0])]);
}

#[test]
fn a_reader_never_sees_the_sum_of_all_sets_shrink_or_values_under_the_wrong_labels() {
    let words = words(Region::<Two>::words(3));
    let region = Region::<Two>::create(&words, 3).unwrap();
    let departed = region.claim("departed").unwrap();
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            for round in 0..2000 {
                // Owners with an even number count by the first value, the others by the second.
                let owner = region.claim(if round % 2 == 0 { "even" } else { "odd" }).unwrap();
                owner.add(if round % 2 == 0 { Two::AT.requests } else { Two::AT.held }, 1);
                owner.merge_into(&departed).unwrap();
            }
        });
        let reader = RegionReader::open(&words).unwrap();
        let mut last = 0;
        let mut ended = false;
        while !ended {
            // One more snapshot after the end: each run checks at least one.
            ended = counting.is_finished();
            // A thread that the system stops in the middle of a change is not a settled state.
            let RegionSnapshot { sets, settled: true } = reader.snapshot() else { continue };
            let sum: u64 = sets.iter().flat_map(|set| &set.values).sum();
            assert!(sum >= last, "{sum} after {last}");
            last = sum;
            assert!(!sets.iter().any(|set| set.labels == "even" && set.values[1] > 0));
            assert!(!sets.iter().any(|set| set.labels == "odd" && set.values[0] > 0));
        }
    });
    let reader = RegionReader::open(&words).unwrap();
    assert_eq!(sets(&reader), [("departed".to_owned(), vec![1000, 1000])]);
}

#[test]
fn errors_say_what_is_wrong() {
    let needed = Region::<Two>::words(1);
    let words = words(needed);
    assert_eq!(RegionReader::open(&words).unwrap_err(), RegionError::Magic);
    assert_eq!(RegionReader::open(&words[..7]).unwrap_err(), RegionError::Short { have: 7, needed: 8 });
    let short = RegionError::Short { have: needed - 1, needed };
    assert_eq!(Region::<Two>::create(&words[1..], 1).unwrap_err(), short);
    let region = Region::<Two>::create(&words, 1).unwrap();
    assert_eq!(RegionReader::open(&words[..needed - 1]).unwrap_err(), short);
    assert_eq!(Region::<Other>::open(&words).unwrap_err(), RegionError::OtherMetrics);
    assert_eq!(region.claim(&"x".repeat(121)).unwrap_err(), RegionError::Labels(121));
    assert!(region.claim(&"x".repeat(120)).is_ok());
    words[1].store(2, Ordering::Relaxed);
    assert_eq!(RegionReader::open(&words).unwrap_err(), RegionError::Version(2));
    words[1].store(VERSION, Ordering::Relaxed);
    words[HEADER].store(0, Ordering::Relaxed);
    assert_eq!(RegionReader::open(&words).unwrap_err(), RegionError::Damaged("table"));
}

#[test]
fn a_process_that_was_killed_during_a_claim_stops_no_reader() {
    let words = words(Region::<Two>::words(1));
    let region = Region::<Two>::create(&words, 1).unwrap();
    region.claim("pid=\"1\"").unwrap().add(Two::AT.requests, 1);
    words[SEQUENCE_WORD].fetch_add(1, Ordering::Relaxed);
    let snapshot = RegionReader::open(&words).unwrap().snapshot();
    assert_eq!((snapshot.settled, snapshot.sets[0].values[0]), (false, 1));
    assert_eq!(region.claim("pid=\"2\"").unwrap_err(), RegionError::Busy);
}

proptest! {
    /// Any words in any place: a reader answers, and never panics.
    #[test]
    fn a_hostile_region_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_word()), 0..8),
        cut in 0..40_usize,
    ) {
        let words = words(Region::<Two>::words(2));
        let region = Region::<Two>::create(&words, 2).unwrap();
        let _ = region.claim("pid=\"1\"");
        for (at, value) in changes {
            // The header's words are the ones that matter most.
            let at = if value % 2 == 0 { at.index(HEADER) } else { at.index(words.len()) };
            if at != SEQUENCE_WORD {
                words[at].store(value, Ordering::Relaxed);
            }
        }
        let words = &words[..words.len() - cut];
        if let Ok(reader) = RegionReader::open(words) {
            prop_assert_eq!(reader.metrics().len(), reader.layout.values);
            for set in reader.snapshot().sets {
                prop_assert_eq!(set.values.len(), reader.metrics().len());
            }
        }
        if let Ok(region) = Region::<Two>::open(words)
            && let Ok(set) = region.claim("pid=\"2\"")
        {
            set.add(Two::AT.held, u64::MAX);
        }
    }
}

fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![0..40_u64, any::<u64>(), Just(MAGIC), Just(u64::MAX), Just(1 << 40)]
}
