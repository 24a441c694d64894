//! One command at a time: a thread that advances it sees that command's words, and it completes exactly once.
//!
//! Seen to fail: without `run`, and with the command claimed as running at once, loom finds a helper that completes a
//! command by the words of the previous one. The same happens without the second check under the lock.
#![cfg(loom)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the files are included as they are; each test uses its part"
)]

#[path = "../src/activity.rs"]
mod activity;
#[path = "../src/sync.rs"]
mod sync;

use activity::Activity;
use loom::sync::Arc;
use loom::thread;
use sync::{TryLock, Word};

#[derive(Default)]
struct Commands {
    active: Activity,
    lock: TryLock,
    command: Word,
    /// The completed commands, one bit each.
    completed: Word,
}

impl Commands {
    fn advance(&self) {
        if !self.active.is_running() {
            return;
        }
        self.lock.try_with(|| {
            if self.active.is_running() {
                let bit = 1 << self.command.get();
                assert_eq!(self.completed.or(bit) & bit, 0, "completed twice");
                self.active.end();
            }
        });
    }

    /// Runs two commands one after the other, as one thread does.
    fn command(&self, number: u64) {
        assert!(self.active.start(), "only one thread writes commands here");
        self.command.set(number);
        self.active.run();
        while self.active.is_active() {
            self.advance();
            thread::yield_now();
        }
    }
}

#[test]
fn each_command_completes_once_by_its_own_words() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let commands = Arc::new(Commands::default());
        let helper = {
            let commands = Arc::clone(&commands);
            thread::spawn(move || {
                commands.advance();
                commands.advance();
            })
        };
        commands.command(1);
        commands.command(2);
        helper.join().unwrap();
        assert_eq!(commands.completed.get(), 0b110);
    });
}
