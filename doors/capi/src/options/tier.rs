//! What can be set of memory on several tiers.

use super::{Key, Of, bytes, time, word};
use std::time::Duration;
use telpher_tier::{HeapOptions, ManagerOptions, Mechanism, SourceKind, TierId};

/// What can be set of a heap; as the heap has it if not set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeapWords {
    home: Option<TierId>,
    batch: Option<usize>,
    spare_bytes: Option<u64>,
    shadow_bytes: Option<u64>,
    mechanism: Option<Mechanism>,
    patience: Option<Duration>,
}

impl HeapWords {
    pub(crate) fn change(self, options: &mut HeapOptions) {
        options.home = self.home.unwrap_or(options.home);
        options.batch = self.batch.unwrap_or(options.batch);
        options.spare_bytes = self.spare_bytes.unwrap_or(options.spare_bytes);
        options.shadow_bytes = self.shadow_bytes.unwrap_or(options.shadow_bytes);
        options.mechanism = self.mechanism.or(options.mechanism);
        options.patience = self.patience.unwrap_or(options.patience);
    }
}

/// What can be set of a manager; as the manager has it if not set.
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
        about: "the tier whose memory pages have when they are touched first; the last if not given",
        set: |o, v| {
            o.heap.home = Some(TierId(v.parse().ok()?));
            Some(())
        },
    },
    Key {
        name: "batch",
        of: Of::Heap,
        takes: "a number from 1 to 65536",
        about: "pages of 4 KiB that are on their way at once at most; the first of them has to wait for the others",
        set: |o, v| {
            o.heap.batch = Some(v.parse().ok().filter(|pages| (1..=65_536).contains(pages))?);
            Some(())
        },
    },
    Key {
        name: "spare",
        of: Of::Heap,
        takes: "a size such as 64m, or 0",
        about: "free memory of the home tier that is kept for pages that come back",
        set: |o, v| {
            o.heap.spare_bytes = Some(bytes_or_none(v)?);
            Some(())
        },
    },
    Key {
        name: "shadow",
        of: Of::Heap,
        takes: "a size such as 64m, or 0",
        about: "memory that keeps what pages were copied from, so that those not written since go back without a copy",
        set: |o, v| {
            o.heap.shadow_bytes = Some(bytes_or_none(v)?);
            Some(())
        },
    },
    Key {
        name: "mechanism",
        of: Of::Heap,
        takes: "exchange or move-pages",
        about: "by which pages change their tier; the best that the kernel has if not given",
        set: |o, v| {
            let words = [("exchange", Mechanism::Exchange), ("move-pages", Mechanism::MovePages)];
            o.heap.mechanism = Some(word(v, &words)?);
            Some(())
        },
    },
    Key {
        name: "patience",
        of: Of::Heap,
        takes: "a time such as 5s",
        about: "how long a page that the kernel does not let back to its place is tried again",
        set: |o, v| {
            o.heap.patience = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "source",
        of: Of::Manager,
        takes: "auto, damon, traps, windows or perf",
        about: "who looks: the kernel's monitor (one a machine, for root), windows in which writes are tracked, traps, pages that are taken out \
                until they are touched, or perf, the processor's own unit (unverified); auto if not given, the first if it is to be had, once \
                there is memory of 64 MiB, and else the next two",
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
        about: "whether what is decided is done, or pages are only looked at",
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
        about: "for how long a part of the memory is looked at before the next is",
        set: |o, v| {
            o.manager.window = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "residence",
        of: Of::Manager,
        takes: "a time such as 2s",
        about: "how long a page stays at least where it was moved to",
        set: |o, v| {
            o.manager.residence = Some(time(v)?);
            Some(())
        },
    },
    Key {
        name: "rate",
        of: Of::Manager,
        takes: "a size such as 512m",
        about: "the most bytes a second that move",
        set: |o, v| {
            o.manager.bytes_per_second = Some(bytes(v)?);
            Some(())
        },
    },
];

/// A size, also of no bytes.
fn bytes_or_none(value: &str) -> Option<u64> {
    if value == "0" { Some(0) } else { bytes(value) }
}
