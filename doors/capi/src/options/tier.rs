//! Options of memory on several tiers.

use super::{Key, Of, bytes, time, word};
use std::time::Duration;
use telpher_tier::{HeapOptions, ManagerOptions, Mechanism, SourceKind, TierId};

/// The options of a heap; the heap's default if not set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeapWords {
    home: Option<TierId>,
    batch: Option<usize>,
    spare_bytes: Option<u64>,
    shadow_bytes: Option<u64>,
    mechanism: Option<Mechanism>,
    retry_timeout: Option<Duration>,
}

impl HeapWords {
    pub(crate) fn change(self, options: &mut HeapOptions) {
        options.home = self.home.unwrap_or(options.home);
        options.batch = self.batch.unwrap_or(options.batch);
        options.spare_bytes = self.spare_bytes.unwrap_or(options.spare_bytes);
        options.shadow_bytes = self.shadow_bytes.unwrap_or(options.shadow_bytes);
        options.mechanism = self.mechanism.or(options.mechanism);
        options.retry_timeout = self.retry_timeout.unwrap_or(options.retry_timeout);
    }
}

/// The options of a manager; the manager's default if not set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ManagerWords {
    source: Option<SourceKind>,
    moves: Option<bool>,
    pass: Option<Duration>,
    window: Option<Duration>,
    residence: Option<Duration>,
    bytes_per_second: Option<u64>,
}

impl ManagerWords {
    pub(crate) fn change(self, options: &mut ManagerOptions) {
        options.sources = self.source.map(|source| vec![source]).or(options.sources.take());
        options.moves = self.moves.unwrap_or(options.moves);
        options.pass = self.pass.unwrap_or(options.pass);
        options.window = self.window.unwrap_or(options.window);
        options.policy.residence = self.residence.unwrap_or(options.policy.residence);
        options.policy.bytes_per_second = self.bytes_per_second.unwrap_or(options.policy.bytes_per_second);
    }
}

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "home",
        of: Of::Heap,
        takes: "a tier's number",
        about: "the tier on which pages are allocated when first touched; the last if not given",
        set: |o, v| {
            o.heap.home = Some(TierId(v.parse().ok()?));
            Some(())
        },
    },
    Key {
        name: "batch",
        of: Of::Heap,
        takes: "a number from 1 to 65536",
        about: "the most pages of 4 KiB that are moved at once; the first one waits for the last",
        set: |o, v| {
            o.heap.batch = Some(v.parse().ok().filter(|pages| (1..=65_536).contains(pages))?);
            Some(())
        },
    },
    Key {
        name: "spare",
        of: Of::Heap,
        takes: "a size such as 64m, or 0",
        about: "free memory of the home tier that is kept for pages that move back",
        set: |o, v| {
            o.heap.spare_bytes = Some(bytes_or_none(v)?);
            Some(())
        },
    },
    Key {
        name: "shadow",
        of: Of::Heap,
        takes: "a size such as 64m, or 0",
        about: "memory that keeps the old copies of moved pages, so that unwritten pages move back without a copy",
        set: |o, v| {
            o.heap.shadow_bytes = Some(bytes_or_none(v)?);
            Some(())
        },
    },
    Key {
        name: "mechanism",
        of: Of::Heap,
        takes: "exchange or move-pages",
        about: "how pages change tiers; the best mechanism of the kernel if not given",
        set: |o, v| {
            let words = [("exchange", Mechanism::Exchange), ("move-pages", Mechanism::MovePages)];
            o.heap.mechanism = Some(word(v, &words)?);
            Some(())
        },
    },
    Key {
        name: "retry-timeout",
        of: Of::Heap,
        takes: "a time such as 5s",
        about: "how long to retry when the kernel refuses to put a page back at its address",
        set: |o, v| {
            o.heap.retry_timeout = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "source",
        of: Of::Manager,
        takes: "auto, damon, traps, windows or perf",
        about: "how used pages are found: damon (the kernel's monitor, one per machine, for root), windows (write \
                tracking in time windows), traps (pages taken out until they are touched), perf (the processor's own \
                unit, unverified). auto: damon if it is available and the memory is at least 64 MiB, otherwise windows \
                and traps",
        set: |o, v| {
            let words = [
                ("auto", None),
                ("damon", Some(SourceKind::Damon)),
                ("traps", Some(SourceKind::Traps)),
                ("windows", Some(SourceKind::Windows)),
                ("perf", Some(SourceKind::Perf)),
            ];
            o.manager.source = word(v, &words)?;
            Some(())
        },
    },
    Key {
        name: "moves",
        of: Of::Manager,
        takes: "on or off",
        about: "whether decided moves are made, or pages are only observed",
        set: |o, v| {
            o.manager.moves = Some(word(v, &[("on", true), ("off", false)])?);
            Some(())
        },
    },
    Key {
        name: "pass",
        of: Of::Manager,
        takes: "a time such as 250ms",
        about: "how often it decides what moves",
        set: |o, v| {
            o.manager.pass = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "window",
        of: Of::Manager,
        takes: "a time such as 10ms",
        about: "how long each part of the memory is observed before the next",
        set: |o, v| {
            o.manager.window = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "residence",
        of: Of::Manager,
        takes: "a time such as 2s",
        about: "the shortest time a page stays where it was moved to",
        set: |o, v| {
            o.manager.residence = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "rate",
        of: Of::Manager,
        takes: "a size such as 512m",
        about: "the most bytes moved per second",
        set: |o, v| {
            o.manager.bytes_per_second = Some(bytes(v)?);
            Some(())
        },
    },
];

/// A size, which may be 0.
fn bytes_or_none(value: &str) -> Option<u64> {
    if value == "0" { Some(0) } else { bytes(value) }
}
