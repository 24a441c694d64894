//! A subscription that a reader renews is never cleared by an engine that finds the old moment in the past, and of two
//! readers the one that wants times for longer gets them.
//!
//! Seen to fail: if `is_on` stores 0 instead of exchanging the word that it has read, loom finds a renewed subscription
//! that is gone.
#![cfg(loom)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the files are included as they are; each test uses its part"
)]

#[path = "../src/subscription.rs"]
mod subscription;
#[path = "../src/sync.rs"]
mod sync;

use loom::sync::Arc;
use loom::thread;
use subscription::Subscription;
use sync::Word;

#[test]
fn a_renewed_subscription_stays() {
    loom::model(|| {
        let word = Arc::new(Word::default());
        word.set(5);
        let readers = [20, 30].map(|until| {
            let word = Arc::clone(&word);
            thread::spawn(move || Subscription(&word).renew(until, 10))
        });
        // An engine, at a moment after the old subscription.
        let _ = Subscription(&word).is_on(10);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(word.get(), 30);
        assert!(Subscription(&word).is_on(29));
        assert!(!Subscription(&word).is_on(30));
        assert!(!Subscription(&word).is_set());
    });
}
