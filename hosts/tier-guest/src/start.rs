//! The start, before the program's `main`, and the end.
//!
//! A thread of the library does all of it, with its own [descriptors]; the program's thread waits
//! meanwhile.
#![allow(
    unsafe_code,
    reason = "places functions in the sections the dynamic linker calls, and reads the environment before main"
)]

use crate::REQUESTS;
use crate::descriptors;
use crate::map_scanner::MapScanner;
use crate::maps::{EarlyMappings, Kind, Mapping, parse};
use crate::requests::Request;
use crate::status::Status;
use crate::stress_moves;
use crate::threads;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use telpher_device::{DeviceName, OpenOptions, Runner, open};
use telpher_interpose::preload::variable;
use telpher_interpose::sanitizer::{self, Linked};
use telpher_mover::{Mover, Policy};
use telpher_os::{Lineage, spawn_unsignalled};
use telpher_tier::{Heap, HeapOptions, Mechanism, TierId, TierOptions};
use telpher_tier_wire::{Settings, VARIABLE};

telpher_interpose::start_and_end!(begin, end);

/// The process whose memory is managed; or, if it is not managed, its status.
static STARTED: OnceLock<(Lineage, Option<Mutex<Status>>)> = OnceLock::new();

/// How long an ending program waits for the last report. Source: chosen.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Why a process' memory is not managed, and its status.
type Refused = (String, Status);

extern "C" fn begin() {
    // A program without the variable is not part of the run, for example one that was executed with another
    // environment.
    //
    // SAFETY: before main, when no code changes the environment.
    let value = unsafe { variable(VARIABLE) };
    let Some(value) = value.and_then(|value| std::str::from_utf8(value).ok()) else { return REQUESTS.close() };
    let settings = match Settings::from_value(value) {
        Ok(settings) => settings,
        Err(error) => {
            REQUESTS.close();
            return eprintln!("telpher: the memory of process {} is not managed: {error}", std::process::id());
        }
    };
    if settings.follow {
        crate::exec::follow(value);
    }
    crate::heap::keep_through_forks();
    let mut refused = sanitizer::allow_leaks(|| set_up(settings));
    if let Some((why, status)) = &mut refused {
        REQUESTS.close();
        eprintln!("telpher: the memory of process {} is not managed: {why}", std::process::id());
        status.report(false);
    }
    let _ = STARTED.set((Lineage::current(), refused.map(|(_, status)| Mutex::new(status))));
}

/// Sets everything up in a separate thread. Returns why that failed, if it did.
fn set_up(settings: Settings) -> Option<Refused> {
    let before = mappings();
    let refused = |why: &str| Some((why.to_owned(), Status::refused(&settings, why)));
    if before.is_empty() {
        return refused("cannot read /proc/self/maps: mount /proc");
    }
    let (sends, received) = channel();
    let its = settings.clone();
    let thread =
        threads::of_library(|| spawn_unsignalled("telpher-scanner", move || run_library_thread(&its, &before, &sends)));
    if let Err(error) = thread {
        return refused(&format!("cannot start the thread that scans for memory: {error}"));
    }
    match received.recv() {
        Ok(Ok(())) => None,
        Ok(Err(why)) => refused(&why),
        Err(_) => refused("the thread that sets everything up has panicked"),
    }
}

fn mappings() -> Vec<Mapping> {
    parse(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// Closes the request queue when it is no longer served.
struct CloseOnDrop;

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        REQUESTS.close();
    }
}

/// The library's thread. `before` contains the mappings that existed before any of the library's.
fn run_library_thread(settings: &Settings, before: &[Mapping], sends: &Sender<Result<(), String>>) {
    let _close = CloseOnDrop;
    let set_up = descriptors::unshare().and_then(|()| manage(settings));
    let (heap, status) = match set_up {
        Ok(set_up) => set_up,
        Err(why) => {
            // The waiting thread waits as long as this thread has the sender.
            let _ = sends.send(Err(why));
            return;
        }
    };
    let Some(noted) = REQUESTS.open() else {
        let _ =
            sends.send(Err("more than 256 threads and robust mutexes were created before the library started".into()));
        return;
    };
    // The threads and their data exist by now, and the program's thread waits.
    let early = EarlyMappings::new(before, &mappings(), &of_sanitizer(before));
    let scanner = MapScanner::new(heap, status, early, settings.least);
    let _ = sends.send(Ok(()));
    scanner.run(settings, &REQUESTS, noted);
}

/// Returns the memory of a sanitizer's runtime; warns if its leak check cannot be configured for this library.
fn of_sanitizer(before: &[Mapping]) -> Vec<Range<u64>> {
    let is_memory = |mapping: &Mapping| mapping.kind == Kind::Memory;
    let mapped = |address| before.iter().any(|mapping| is_memory(mapping) && mapping.range.contains(&address));
    let Some(runtime) = sanitizer::runtime(mapped) else { return Vec::new() };
    let checks = !std::env::var("ASAN_OPTIONS").is_ok_and(|options| options.contains("detect_leaks=0"));
    if runtime.linked == Linked::Statically && checks {
        eprintln!(
            "telpher: process {} is statically linked with AddressSanitizer, which will report a thread of telpher \
             as a leak; set ASAN_OPTIONS=detect_leaks=0",
            std::process::id()
        );
    }
    runtime.memory.into()
}

/// Creates the heap, the status and the manager.
fn manage(settings: &Settings) -> Result<(Heap, Status), String> {
    let heap = Heap::new(options(settings)?).map_err(|error| telpher_os::chain(&error))?;
    let mut status = Status::new(settings);
    status.begin(&heap, settings)?;
    if settings.shuffle {
        let shuffled = stress_moves::start(heap.clone(), settings.limit)
            .map_err(|error| format!("cannot start the thread that moves pages: {error}"))?;
        status.shows(shuffled);
    }
    Ok((heap, status))
}

/// Converts the settings to heap options.
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
    let device: DeviceName = settings.device.parse().map_err(|error| telpher_os::chain(&error))?;
    // The program must not get further threads, which its own forks would lose.
    let opened = open(&device, OpenOptions { runner: Runner::Inline }).map_err(|error| telpher_os::chain(&error))?;
    if !opened.portals.is_empty() {
        options.mover = Mover::new(opened.portals, Policy::default());
    }
    // A program waits for its pages in any case, so the limit is long.
    options.retry_timeout = Duration::from_secs(60);
    // This library's own allocator is locked during a fork.
    options.delay_forks = true;
    Ok(options)
}

/// Called when the program ends: reports the final status. Pages may be in flight; no program code will touch them any
/// more.
extern "C" fn end() {
    let Some((lineage, refused)) = STARTED.get() else { return };
    if !lineage.is_current() {
        return;
    }
    match refused {
        None => REQUESTS.send(Request::End, Some(ENDS_WITHIN)),
        Some(status) => status.lock().unwrap_or_else(PoisonError::into_inner).report(true),
    }
}
