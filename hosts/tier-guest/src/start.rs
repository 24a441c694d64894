//! The beginning, before the program's `main`, and the end.
//!
//! All of it is done by a thread of the library's, with [descriptors](crate::descriptors) of its own; the program's waits meanwhile.
#![allow(unsafe_code, reason = "places functions in the sections the dynamic linker calls")]

use crate::descriptors;
use crate::desk::{Desk, Errand, State};
use crate::maps::{Early, Kind, Mapping, parse};
use crate::scout::Scout;
use crate::shuffle;
use crate::telling::Telling;
use crate::threads;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use telpher_device::{DeviceName, OpenOptions, open};
use telpher_interpose::sanitizer::{self, Linked};
use telpher_mover::{Mover, Policy};
use telpher_os::{Lineage, spawn_unsignalled};
use telpher_tier::{Heap, HeapOptions, Mechanism, TierId, TierOptions};
use telpher_tier_wire::{Settings, VARIABLE};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Where the program's threads ask.
pub(crate) static DESK: Desk = Desk::new(Mutex::new(()), Mutex::new(State::new()), [Condvar::new(), Condvar::new()]);

/// The process whose memory is managed; or is not, and what is told of that.
static BEGUN: OnceLock<(Lineage, Option<Mutex<Telling>>)> = OnceLock::new();

/// How long a program that ends waits until that is told. Source: chosen.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Why a process' memory is not managed, and what is told of it.
type Refused = (String, Telling);

extern "C" fn begin() {
    // A program without the variable is none of ours, for example what a program of ours executes in another environment.
    let Ok(value) = std::env::var(VARIABLE) else { return DESK.close() };
    let settings = match Settings::from_value(&value) {
        Ok(settings) => settings,
        Err(error) => {
            DESK.close();
            return eprintln!("telpher: the memory of process {} is not managed: {error}", std::process::id());
        }
    };
    if settings.follow {
        crate::exec::follow(&value);
    }
    crate::heap::keep_through_forks();
    let mut refused = sanitizer::allow_leaks(|| set_up(settings));
    if let Some((why, telling)) = &mut refused {
        DESK.close();
        eprintln!("telpher: the memory of process {} is not managed: {why}", std::process::id());
        telling.tell(false);
    }
    let _ = BEGUN.set((Lineage::current(), refused.map(|(_, telling)| Mutex::new(telling))));
}

/// Has a thread of its own set everything up. Returns why it did not.
fn set_up(settings: Settings) -> Option<Refused> {
    let before = mappings();
    let refused = |why: &str| Some((why.to_owned(), Telling::refused(&settings, why)));
    if before.is_empty() {
        return refused("cannot read /proc/self/maps: mount /proc");
    }
    let (tells, told) = channel();
    let its = settings.clone();
    let thread = threads::of_library(|| spawn_unsignalled("telpher-scout", move || live(&its, &before, &tells)));
    if let Err(error) = thread {
        return refused(&format!("cannot start the thread that looks for memory: {error}"));
    }
    match told.recv() {
        Ok(Ok(())) => None,
        Ok(Err(why)) => refused(&why),
        Err(_) => refused("the thread that sets everything up has panicked"),
    }
}

fn mappings() -> Vec<Mapping> {
    parse(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// Closes the desk where nobody serves it any more.
struct Closes;

impl Drop for Closes {
    fn drop(&mut self) {
        DESK.close();
    }
}

/// The life of the library's thread. `before`: what was mapped before there was anything of the library's.
fn live(settings: &Settings, before: &[Mapping], tells: &Sender<Result<(), String>>) {
    let _closes = Closes;
    let set_up = descriptors::leave_programs().and_then(|()| manage(settings));
    let (heap, telling) = match set_up {
        Ok(set_up) => set_up,
        Err(why) => {
            // Who waits for it waits as long as this thread has the sender.
            let _ = tells.send(Err(why));
            return;
        }
    };
    let Some(noted) = DESK.open() else {
        let _ = tells.send(Err("more threads and robust mutexes than 256 have begun before it".into()));
        return;
    };
    // Threads and all they have are there by now, and the program's stands still.
    let early = Early::new(before, &mappings(), &of_sanitizer(before));
    let scout = Scout::new(heap, telling, early, settings.least);
    let _ = tells.send(Ok(()));
    scout.run(settings, &DESK, noted);
}

/// What a sanitizer's runtime has for itself; says so if its leak check cannot be told of this library.
fn of_sanitizer(before: &[Mapping]) -> Vec<Range<u64>> {
    let is_memory = |mapping: &Mapping| mapping.kind == Kind::Memory;
    let mapped = |address| before.iter().any(|mapping| is_memory(mapping) && mapping.range.contains(&address));
    let Some(runtime) = sanitizer::runtime(mapped) else { return Vec::new() };
    let checks = !std::env::var("ASAN_OPTIONS").is_ok_and(|options| options.contains("detect_leaks=0"));
    if runtime.linked == Linked::Statically && checks {
        eprintln!(
            "telpher: process {} has AddressSanitizer's runtime in itself, which will take a thread of telpher's for a leak; set \
             ASAN_OPTIONS=detect_leaks=0",
            std::process::id()
        );
    }
    runtime.memory.into()
}

/// Sets everything up that a process wants.
fn manage(settings: &Settings) -> Result<(Heap, Telling), String> {
    let heap = Heap::new(options(settings)?).map_err(|error| told(&error))?;
    let mut telling = Telling::new(settings);
    telling.begin(&heap, settings)?;
    if settings.shuffle {
        shuffle::start(heap.clone(), settings.limit)
            .map_err(|error| format!("cannot start the thread that moves pages: {error}"))?;
    }
    Ok((heap, telling))
}

/// The settings in the heap's words.
fn options(settings: &Settings) -> Result<HeapOptions, String> {
    let tier =
        |tier: &telpher_tier_wire::Tier| TierOptions { name: tier.name.clone(), node: tier.node, bytes: tier.bytes };
    let mut options = HeapOptions::new(settings.tiers.iter().map(tier).collect());
    options.home = TierId(settings.home);
    options.mechanism = match settings.mechanism.as_deref() {
        None => None,
        Some("exchange") => Some(Mechanism::Exchange),
        Some("move-pages") => Some(Mechanism::MovePages),
        Some(other) => return Err(format!("there is no mechanism \"{other}\"")),
    };
    let device: DeviceName = settings.device.parse().map_err(|error| told(&error))?;
    let opened = open(&device, OpenOptions::default()).map_err(|error| told(&error))?;
    if !opened.portals.is_empty() {
        options.mover = Mover::new(opened.portals, Policy::default());
    }
    // A program waits for its pages, whatever becomes of it: for as long as it can.
    options.patience = Duration::from_secs(60);
    // While it forks, this library's own allocator is locked.
    options.holds_forks = true;
    Ok(options)
}

/// An error and what led to it, in one sentence.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The program ends: what has come of it is told. Pages may be on their way; nobody will touch them any more.
extern "C" fn end() {
    let Some((lineage, refused)) = BEGUN.get() else { return };
    if !lineage.is_current() {
        return;
    }
    match refused {
        None => DESK.ask(Errand::End, Some(ENDS_WITHIN)),
        Some(telling) => telling.lock().unwrap_or_else(PoisonError::into_inner).tell(true),
    }
}
