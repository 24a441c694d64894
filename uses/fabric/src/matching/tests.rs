use super::*;
use crate::request::TagMatch;
use telpher_os::Random;

fn message(source: u32, tag: u64) -> MessageKey {
    MessageKey { source: Source(source), tag: Some(tag) }
}

fn exact(source: u32, tag: u64) -> Selector {
    Selector { from: Some(Source(source)), tag: Some(TagMatch { tag, ignore: 0 }) }
}

fn any_source(tag: u64, ignore: u64) -> Selector {
    Selector { from: None, tag: Some(TagMatch { tag, ignore }) }
}

#[test]
fn tags_and_sources_are_compared_as_asked() {
    let untagged = MessageKey { source: Source(1), tag: None };
    assert!(exact(1, 5).matches(&message(1, 5)));
    assert!(!exact(1, 5).matches(&message(2, 5)));
    assert!(!exact(1, 5).matches(&message(1, 4)));
    assert!(any_source(0b1100, 0b0011).matches(&message(9, 0b1110)));
    assert!(!any_source(0b1100, 0b0011).matches(&message(9, 0b0110)));
    // The ignored bits of the receive's own tag do not count either.
    assert!(any_source(0b1111, 0b0011).matches(&message(9, 0b1100)));
    assert!(!any_source(0, u64::MAX).matches(&untagged), "a tagged receive takes no untagged message");
    let receive = Selector { from: Some(Source(1)), tag: None };
    assert!(receive.matches(&untagged) && !receive.matches(&message(1, 0)));
}

#[test]
fn a_wildcard_between_two_exact_receives_keeps_its_place() {
    let mut matching = Matching::<&str, ()>::default();
    let first = matching.post(exact(1, 5), "exact");
    let second = matching.post(any_source(0, u64::MAX), "wildcard");
    let third = matching.post(exact(1, 5), "exact again");
    for expected in [first, second, third] {
        let found = matching.receive_for(&message(1, 5));
        assert_eq!(found, Some(expected));
        assert!(matching.remove_receive(expected).is_some());
        assert!(matching.remove_receive(expected).is_none(), "it was removed before");
    }
    assert_eq!(matching.receive_for(&message(1, 5)), None);
}

#[test]
fn the_oldest_receive_is_found_whatever_its_kind() {
    let untagged = Selector { from: None, tag: None };
    for tagged_first in [false, true] {
        let mut matching = Matching::<(), ()>::default();
        let mut order = [exact(1, 5), untagged, exact(1, 6)];
        if !tagged_first {
            order.swap(0, 1);
        }
        let posted = order.map(|selector| matching.post(selector, ()));
        for expected in posted {
            let found = matching.find_receive(|_, ()| true);
            assert_eq!(found, Some(expected));
            assert!(matching.remove_receive(expected).is_some());
        }
        assert_eq!(matching.find_receive(|_, ()| true), None);
    }
}

/// The queues of the model: lists that are scanned from the front.
#[derive(Default)]
struct Model {
    /// Selector, value, and how many messages the receive still takes.
    receives: Vec<(Selector, u64, u32)>,
    messages: Vec<(MessageKey, u64)>,
}

/// The value of a receive under test.
#[derive(Debug)]
struct Posted {
    value: u64,
    takes: u32,
}

fn random_selector(random: &mut Random, masks: &[u64]) -> Selector {
    let from = (random.below(3) > 0).then(|| Source(u32::try_from(random.below(4)).unwrap()));
    let mask = masks[usize::try_from(random.below(masks.len() as u64)).unwrap()];
    let tag = (random.below(5) > 0).then(|| TagMatch { tag: random.below(6), ignore: mask });
    Selector { from, tag }
}

fn random_message(random: &mut Random) -> MessageKey {
    let source = Source(u32::try_from(random.below(4)).unwrap());
    MessageKey { source, tag: (random.below(5) > 0).then(|| random.below(6)) }
}

/// Runs random steps on the queues and on the model, and compares each answer.
fn compare_with_model(seed: u64, steps: u32) {
    let mut random = Random::new(seed);
    // Up to seven masks make more classes than a queue of messages has indexes.
    let masks = [0, 1, 3, u64::MAX, 1 << 63, 5, 2];
    let masks = &masks[..1 + usize::try_from(random.below(7)).unwrap()];
    let mut matching = Matching::<Posted, u64>::default();
    let mut model = Model::default();
    let mut value = 0;
    for step in 0..steps {
        // Phases of arrivals and of receives make both queues long, and empty again.
        let arrivals_of_16 = [4, 8, 12][(step as usize / 97 + usize::try_from(seed).unwrap()) % 3];
        value += 1;
        match random.below(20) {
            0 => {
                // Looks, and perhaps claims or discards what it found.
                let selector = random_selector(&mut random, masks);
                let expected = model.messages.iter().position(|(key, _)| selector.matches(key));
                let found = matching.message_for(&selector);
                let seen = found.and_then(|id| matching.message(id)).map(|(key, value)| (*key, *value));
                assert_eq!(seen, expected.map(|at| model.messages[at]), "seed {seed} step {step}");
                if random.below(2) == 0
                    && let Some(id) = found
                {
                    assert_eq!(matching.remove_message(id), expected.map(|at| model.messages.remove(at)));
                }
            }
            1 => {
                // Cancels a receive by its value.
                let canceled = value - random.below(40).min(value);
                let expected = model.receives.iter().position(|receive| receive.1 == canceled);
                let found = matching.find_receive(|_, posted| posted.value == canceled);
                assert_eq!(found.is_some(), expected.is_some(), "seed {seed} step {step}");
                if let (Some(id), Some(at)) = (found, expected) {
                    assert_eq!(matching.remove_receive(id).unwrap().0, model.receives.remove(at).0);
                }
            }
            draw if (draw - 2) * 16 < arrivals_of_16 * 18 => {
                let key = random_message(&mut random);
                let expected = model.receives.iter().position(|(selector, ..)| selector.matches(&key));
                if random.below(2) == 0
                    && let Some(posted) = matching.take_receive_for(&key, |posted| posted.takes == 1)
                {
                    let (_, value, takes) = model.receives.remove(expected.unwrap());
                    assert_eq!((posted.value, posted.takes), (value, takes), "seed {seed} step {step}");
                    continue;
                }
                let found = matching.receive_for(&key);
                let seen = found.and_then(|id| matching.receive_mut(id)).map(|posted| posted.value);
                assert_eq!(seen, expected.map(|at| model.receives[at].1), "seed {seed} step {step}");
                let (Some(id), Some(at)) = (found, expected) else {
                    matching.keep(key, value);
                    model.messages.push((key, value));
                    continue;
                };
                let posted = matching.receive_mut(id).unwrap();
                posted.takes -= 1;
                model.receives[at].2 -= 1;
                assert_eq!(posted.takes, model.receives[at].2);
                if posted.takes == 0 {
                    matching.remove_receive(id).unwrap();
                    model.receives.remove(at);
                }
            }
            _ => {
                let selector = random_selector(&mut random, masks);
                let expected = model.messages.iter().position(|(key, _)| selector.matches(key));
                let found = matching.message_for(&selector);
                let removed = found.and_then(|id| matching.remove_message(id));
                assert_eq!(removed, expected.map(|at| model.messages.remove(at)), "seed {seed} step {step}");
                if removed.is_none() {
                    let takes = if random.below(8) == 0 { 1 + u32::try_from(random.below(20)).unwrap() } else { 1 };
                    matching.post(selector, Posted { value, takes });
                    model.receives.push((selector, value, takes));
                }
            }
        }
        assert_eq!((matching.posted(), matching.kept()), (model.receives.len(), model.messages.len()));
    }
}

#[test]
fn random_steps_give_the_answers_of_lists_that_are_scanned() {
    for seed in 0..40 {
        compare_with_model(seed, 4_000);
    }
}

#[test]
fn both_kinds_of_index_find_each_entry_in_reverse() {
    // Longer than a scan.
    let mut matching = Matching::<u64, u64>::default();
    for tag in 0..100 {
        matching.post(exact(1, tag), tag);
        matching.keep(message(1, tag), tag);
    }
    for tag in (0..100).rev() {
        let receive = matching.receive_for(&message(1, tag)).unwrap();
        assert_eq!(matching.remove_receive(receive).unwrap().1, tag);
        let kept = matching.message_for(&exact(1, tag)).unwrap();
        assert_eq!(matching.remove_message(kept), Some((message(1, tag), tag)));
    }
    assert_eq!((matching.posted(), matching.kept()), (0, 0));
}

/// An index makes a search independent of the number of messages, so its presence is checked instead of time.
#[test]
fn reversed_receives_of_many_messages_use_the_index() {
    let mut matching = Matching::<(), u64>::default();
    let count = 10_000;
    for tag in 0..count {
        matching.keep(message(u32::try_from(tag % 7).unwrap(), tag), tag);
    }
    for tag in (0..count).rev() {
        let selector = exact(u32::try_from(tag % 7).unwrap(), tag);
        let kept = matching.message_for(&selector).unwrap();
        assert_eq!(matching.remove_message(kept).unwrap().1, tag);
        assert!(matching.messages.index_count() == usize::from(tag > 0), "one index until the queue is empty");
    }
}
