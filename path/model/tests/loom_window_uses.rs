//! Update Window ends only after every descriptor that used the old values of its entry: then nothing accesses the
//! memory that it took away.
//!
//! Seen to fail, with an access to memory that its owner has taken back: without the fence in `begin`, without the
//! fence in `after_write`, and if a user reads the entry before it marks its lane. With the Release of `end` weakened
//! to `Relaxed`, loom finds the user's access and the owner's concurrent.
#![cfg(loom)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "the files are included as they are; each test uses its part"
)]

#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/window_uses.rs"]
mod window_uses;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::Word;
use window_uses::{Tickets, WindowUse};

const HANDLE: u8 = 3;

#[derive(Default)]
struct Table {
    tickets: Tickets,
    lanes: [WindowUse; 2],
    /// The entry: 0 gives access to the memory, 1 does not.
    entry: Word,
    memory: UnsafeCell<u32>,
}

// Loom's own cell reports concurrent access; the protocol must prevent it.
#[allow(unsafe_code, reason = "the test checks that the protocol excludes")]
// SAFETY: `memory` is accessed by a user that found the entry open, and by the owner after it closed the entry and
// waited for users.
unsafe impl Sync for Table {}

impl Table {
    fn touch(&self) {
        self.memory.with_mut(|memory| {
            #[allow(unsafe_code, reason = "as above")]
            // SAFETY: as above.
            unsafe {
                *memory += 1;
            }
        });
    }

    /// A descriptor that accesses the memory if the entry allows it.
    fn access(&self, lane: usize) {
        self.lanes[lane].begin(&self.tickets, [None, Some(HANDLE)]);
        if self.entry.get() == 0 {
            self.touch();
        }
        self.lanes[lane].end();
    }

    /// Closes the entry, and waits for users.
    fn close(&self) {
        self.entry.set(1);
        let ticket = self.tickets.after_write();
        while self.lanes.iter().any(|lane| lane.holds(ticket, Some(HANDLE))) {
            thread::yield_now();
        }
    }
}

#[test]
fn nothing_accesses_a_window_after_its_update_has_ended() {
    loom::model(|| {
        let table = Arc::new(Table::default());
        let user = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.access(0))
        };
        table.close();
        table.touch();
        user.join().unwrap();
    });
}

#[test]
fn an_update_does_not_wait_for_descriptors_that_use_the_new_values_or_another_entry() {
    loom::model(|| {
        let table = Table::default();
        table.lanes[0].begin(&table.tickets, [Some(HANDLE + 1), None]);
        let ticket = table.tickets.after_write();
        assert!(table.lanes[0].holds(ticket, None) && !table.lanes[0].holds(ticket, Some(HANDLE)));
        table.lanes[1].begin(&table.tickets, [Some(HANDLE), Some(HANDLE)]);
        assert!(!table.lanes[1].holds(ticket, Some(HANDLE)), "it began after the update");
        assert!(table.lanes[1].holds(table.tickets.after_write(), Some(HANDLE)));
        table.lanes[1].end();
        assert!(!table.lanes[1].holds(table.tickets.after_write(), Some(HANDLE)));
    });
}
