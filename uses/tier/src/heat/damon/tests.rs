//! DAMON with the model of the kernel in `kernel.rs`. `tests/damon.rs` uses a real one; the guests of `ci/guests.sh`
//! run it.

use super::kernel::{Fake, SELF};
use super::*;
use crate::arena::Arena;
use crate::config::{HeapOptions, PAGE, TierOptions};
use rustix::io::Errno;
use std::time::Instant;
use telpher_mem::PageSize;
use telpher_os::{Userfault, UserfaultFeatures};

const CONTEXT: &str = "0/contexts/0";
const MIB: u64 = 1 << 20;

/// Returns one range in a vector.
fn one(range: Range<u64>) -> Vec<Range<u64>> {
    std::iter::once(range).collect()
}

fn take(fake: &Fake) -> Result<Interface, DamonError> {
    Interface::take(Box::new(fake.clone()))
}

fn region(start: u64, end: u64, accesses: u64) -> [String; 3] {
    [start, end, accesses].map(|number| format!("{number}\n"))
}

fn looks(interface: &mut Interface) -> Result<Vec<(Range<u64>, u32)>, DamonError> {
    interface.look(one(MIB..4 * MIB), Intervals::FIRST)?;
    Ok(interface.regions()?.into_iter().map(|region| (region.range, region.accesses)).collect())
}

#[test]
fn the_settings_name_this_process_and_are_released() {
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    interface.look(vec![MIB..2 * MIB, 8 * MIB..9 * MIB], Intervals::FIRST).unwrap();
    let says = |file: &str| fake.says(&format!("{CONTEXT}/{file}")).unwrap();
    assert_eq!((says("operations"), says("targets/0/pid_target")), ("fvaddr".into(), SELF.to_string()));
    let regions = [0, 1].map(|at| ["start", "end"].map(|what| says(&format!("targets/0/regions/{at}/{what}"))));
    assert_eq!(regions, [[MIB, 2 * MIB], [8 * MIB, 9 * MIB]].map(|region| region.map(|address| address.to_string())));
    assert_eq!(
        ["sample_us", "aggr_us"].map(|what| says(&format!("monitoring_attrs/intervals/{what}"))),
        ["10000", "200000"]
    );
    assert_eq!(
        ["sz", "nr_accesses", "age"].map(|what| says(&format!("schemes/0/access_pattern/{what}/max"))),
        [u64::MAX.to_string(), u32::MAX.to_string(), u32::MAX.to_string()]
    );
    assert_eq!((says("schemes/0/action"), fake.says("0/state")), ("stat".into(), Some("on".into())));
    // The same ranges are not written again; others are, without a restart.
    let before = fake.kernel().written.len();
    interface.look(vec![MIB..2 * MIB, 8 * MIB..9 * MIB], Intervals::FIRST).unwrap();
    assert_eq!(fake.kernel().written.len(), before);
    interface.look(one(MIB..3 * MIB), Intervals::FIRST).unwrap();
    assert_eq!(fake.kernel().written.last(), Some(&("0/state".into(), "commit".into())));
    assert_eq!(says("targets/0/regions/nr_regions"), "1");
    drop(interface);
    assert_eq!((fake.says("nr_kdamonds"), fake.says("0/state")), (Some("0".into()), None));
}

#[test]
fn only_one_manager_takes_the_interface() {
    let fake = Fake::idle();
    let first = take(&fake).unwrap();
    let refused = take(&fake).unwrap_err();
    assert!(matches!(refused, DamonError::Ours { pid: None }), "{refused}");
    drop(first);
    drop(take(&fake).unwrap());
    // Another process of this library.
    fake.kernel().locked = Some(77);
    let refused = take(&fake).unwrap_err();
    assert!(matches!(refused, DamonError::Ours { pid: Some(77) }) && refused.to_string().contains("process 77"));
    fake.kernel().locked = None;
    drop(take(&fake).unwrap());
}

/// Creates what other software has set up; `change` makes it differ from our settings.
fn others(change: impl FnOnce(&Fake)) -> Fake {
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    interface.look(one(MIB..2 * MIB), Intervals::FIRST).unwrap();
    // As a killed process leaves it.
    let left = fake.kernel().files.clone();
    drop(interface);
    fake.kernel().files = left;
    fake.kernel().files.insert(format!("{CONTEXT}/targets/0/pid_target"), "123\n".into());
    change(&fake);
    fake.kernel().written.clear();
    fake
}

#[test]
fn settings_of_a_killed_process_are_cleared_away() {
    // The kernel turns DAMON off when the process ends.
    let fake = others(|fake| {
        fake.kernel().files.insert("0/state".into(), "off\n".into());
    });
    drop(take(&fake).unwrap());
    // This process, before it executed another program.
    let own = others(|fake| {
        fake.kernel().files.insert(format!("{CONTEXT}/targets/0/pid_target"), format!("{SELF}\n"));
    });
    drop(take(&own).unwrap());
    assert_eq!((fake.says("nr_kdamonds"), own.says("nr_kdamonds")), (Some("0".into()), Some("0".into())));
}

#[test]
fn settings_of_other_software_are_left_alone_and_named_in_the_error() {
    let set = |file: &'static str, says: &'static str| {
        move |fake: &Fake| {
            fake.kernel().files.insert(file.into(), format!("{says}\n"));
        }
    };
    let off = set("0/state", "off");
    let own = set("0/contexts/0/targets/0/pid_target", "4711");
    let cases: [Fake; 10] = [
        others(|fake| fake.kernel().processes.push(123)),
        // The process is in a namespace not visible here: DAMON runs.
        others(|_| ()),
        others(|fake| {
            off(fake);
            fake.kernel().processes.push(123);
        }),
        // Other software that monitors this very process.
        others(|fake| {
            own(fake);
            set("0/contexts/0/monitoring_attrs/nr_regions/min", "10")(fake);
        }),
        others(|fake| {
            own(fake);
            set("0/contexts/0/monitoring_attrs/nr_regions/max", "1000")(fake);
        }),
        others(set("0/contexts/0/operations", "paddr")),
        others(set("0/contexts/0/schemes/0/action", "pageout")),
        others(set("0/contexts/nr_contexts", "2")),
        others(set("0/contexts/0/targets/0/pid_target", "-7")),
        others(set("nr_kdamonds", "2")),
    ];
    for fake in cases {
        let before = fake.kernel().files.clone();
        let refused = take(&fake).unwrap_err();
        let message = refused.to_string();
        assert!(matches!(refused, DamonError::Busy { .. }), "{message}");
        assert!(
            message.contains("state: o") && message.contains("nr_kdamonds") && message.contains("process: "),
            "{message}"
        );
        assert!(fake.kernel().written.is_empty() && fake.kernel().files == before);
    }
}

#[test]
fn missing_support_and_missing_permission_are_different_errors() {
    let none = Fake::idle();
    none.kernel().files.clear();
    assert!(matches!(take(&none).unwrap_err(), DamonError::Missing));
    let forbidden = Fake::idle();
    forbidden.kernel().refuses.push(("lock", Errno::ACCESS, 1));
    assert!(matches!(take(&forbidden).unwrap_err(), DamonError::Forbidden(_)));
    let physical = Fake::idle();
    physical.kernel().refuses.push(("fvaddr", Errno::INVAL, 1));
    let refused = take(&physical).unwrap_err();
    assert!(matches!(&refused, DamonError::Write { file, .. } if file.ends_with("operations")), "{refused}");
    assert_eq!(physical.says("nr_kdamonds"), Some("0".into()), "released");
}

#[test]
fn busy_files_are_retried_for_a_while() {
    let fake = Fake::idle();
    fake.kernel().refuses.push(("nr_", Errno::BUSY, 40));
    let mut interface = take(&fake).unwrap();
    assert_eq!(fake.kernel().pauses, 40);
    fake.kernel().refuses.push(("nr_regions", Errno::BUSY, u32::MAX));
    let refused = looks(&mut interface).unwrap_err();
    assert!(matches!(refused, DamonError::Write { .. }), "{refused}");
    drop(interface);
    assert_eq!(fake.says("nr_kdamonds"), Some("0".into()));
}

#[test]
fn settings_changed_by_other_software_are_left_alone() {
    let set = |fake: &Fake, file: &str, says: &str| {
        let mut kernel = fake.kernel();
        kernel.files.insert(file.into(), format!("{says}\n"));
    };
    let theirs = [
        ("nr_kdamonds", "2"),
        ("0/contexts/0/operations", "paddr"),
        ("0/contexts/0/targets/0/pid_target", "123"),
        ("0/contexts/0/monitoring_attrs/nr_regions/min", "10"),
        ("0/contexts/0/monitoring_attrs/nr_regions/max", "1000"),
        ("0/contexts/0/schemes/0/action", "pageout"),
    ];
    for (file, says) in theirs {
        for begun in [false, true] {
            let fake = Fake::idle();
            let mut interface = take(&fake).unwrap();
            if begun {
                looks(&mut interface).unwrap();
            }
            set(&fake, file, says);
            fake.kernel().written.clear();
            // The same ranges, other ranges, and the end.
            let refused = looks(&mut interface).unwrap_err();
            assert!(
                matches!(&refused, DamonError::Lost { other } if other.contains("kdamonds: ")),
                "{file}: {refused}"
            );
            let other = interface.look(one(MIB..2 * MIB), Intervals::FIRST).unwrap_err();
            assert!(matches!(other, DamonError::Lost { .. }), "{file}: {other}");
            drop(interface);
            assert!(fake.kernel().written.is_empty(), "{file}: {:?}", fake.kernel().written);
        }
    }
    // It was ended, and not set up again.
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    looks(&mut interface).unwrap();
    set(&fake, "0/state", "off");
    fake.write("nr_kdamonds", "0").unwrap();
    fake.kernel().written.clear();
    assert!(matches!(looks(&mut interface).unwrap_err(), DamonError::Lost { .. }));
    drop(interface);
    assert!(fake.kernel().written.is_empty());
}

#[test]
fn a_busy_end_is_retried() {
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    looks(&mut interface).unwrap();
    fake.kernel().refuses.push(("off", Errno::BUSY, 1));
    drop(interface);
    assert_eq!((fake.says("nr_kdamonds"), fake.says("0/state"), fake.kernel().pauses), (Some("0".into()), None, 1));
    // Also what a process of this library left that executed another program.
    let left = others(|fake| {
        let mut kernel = fake.kernel();
        kernel.files.insert(format!("{CONTEXT}/targets/0/pid_target"), format!("{SELF}\n"));
        kernel.refuses.push(("off", Errno::BUSY, 1));
    });
    drop(take(&left).unwrap());
    assert_eq!((left.says("nr_kdamonds"), left.kernel().pauses), (Some("0".into()), 1));
}

#[test]
fn an_exclusive_user_in_the_kernel_is_reported() {
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    fake.kernel().refuses.push(("0/state", Errno::BUSY, u32::MAX));
    let refused = interface.look(one(MIB..2 * MIB), Intervals::FIRST).unwrap_err();
    assert!(matches!(refused, DamonError::Alone(_)) && refused.to_string().contains("damon_reclaim"), "{refused}");
}

#[test]
fn an_end_does_not_wait_for_a_reading() {
    let fake = Fake::idle();
    fake.kernel().looks_on = true;
    let worker = Worker::start(take(&fake).unwrap()).unwrap();
    worker.request(one(MIB..2 * MIB), Intervals::FIRST);
    while !fake.kernel().awaited {
        std::thread::yield_now();
    }
    worker.end();
    assert!(!fake.kernel().gave_up);
    assert_eq!(fake.says("nr_kdamonds"), Some("0".into()));
    // Another manager of this process can take it.
    drop(take(&fake).unwrap());
}

#[test]
fn no_reading_begins_after_an_end() {
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    let ender = interface.ender();
    ender.end();
    fake.kernel().written.clear();
    assert!(matches!(looks(&mut interface).unwrap_err(), DamonError::Ended));
    assert!(fake.kernel().written.is_empty());
    // The owner releases it, and it is free when no handle is left.
    drop(interface);
    assert_eq!(fake.says("nr_kdamonds"), Some("0".into()));
    assert!(matches!(take(&fake).unwrap_err(), DamonError::Ours { pid: None }));
    drop(ender);
    drop(take(&fake).unwrap());
}

#[test]
fn an_end_retries_briefly_and_spares_other_software() {
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    looks(&mut interface).unwrap();
    fake.kernel().refuses.push(("off", Errno::BUSY, 11));
    interface.ender().end();
    assert_eq!((fake.says("0/state"), fake.kernel().pauses), (Some("on".into()), 10));
    fake.kernel().files.insert("0/contexts/0/operations".into(), "paddr\n".into());
    fake.kernel().written.clear();
    interface.ender().end();
    assert!(fake.kernel().written.is_empty());
    fake.kernel().files.insert("0/contexts/0/operations".into(), "fvaddr\n".into());
    drop(interface);
    assert_eq!(fake.says("nr_kdamonds"), Some("0".into()));
}

#[test]
fn every_refusal_releases_the_interface() {
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    looks(&mut interface).unwrap();
    drop(interface);
    let writes = fake.kernel().written.len();
    for errno in [Errno::PERM, Errno::INVAL, Errno::NOENT, Errno::NOMEM] {
        // Each write but the two of the end, one after the other.
        for at in 0..writes - 2 {
            let fake = Fake::idle();
            let file = {
                let whole = Fake::idle();
                let mut interface = take(&whole).unwrap();
                looks(&mut interface).unwrap();
                drop(interface);
                whole.kernel().written[at].clone()
            };
            fake.kernel().refuses.push((file.0.leak(), errno, 1));
            let outcome = take(&fake).and_then(|mut interface| looks(&mut interface));
            assert!(outcome.is_err(), "{errno:?} at {at}");
            assert_eq!(fake.says("nr_kdamonds"), Some("0".into()), "{errno:?} at {at}");
        }
    }
}

#[test]
fn malformed_regions_are_handled() {
    let fake = Fake::idle();
    let mut interface = take(&fake).unwrap();
    // Unsorted, empty, reversed, with half pages, overlapping.
    fake.kernel().found = vec![
        region(3 * MIB, 4 * MIB, 20),
        region(MIB, MIB + 8192, 3),
        region(2 * MIB, 2 * MIB, 9),
        region(3 * MIB, 2 * MIB, 9),
        region(2 * MIB + 1, 2 * MIB + 3 * PAGE - 1, 4_000_000_000),
        region(3 * MIB + PAGE, 5 * MIB, 1),
        region(u64::MAX - 7, u64::MAX, 1),
    ];
    let expected =
        vec![(MIB..MIB + 8192, 3), (2 * MIB + PAGE..2 * MIB + 2 * PAGE, 4_000_000_000), (3 * MIB..4 * MIB, 20)];
    assert_eq!(looks(&mut interface).unwrap(), expected);
    for garbage in ["", "\0\0", "-1", "0x10", "99999999999999999999", "é".repeat(4000).as_str()] {
        for at in 0..3 {
            let mut words = region(MIB, 2 * MIB, 3);
            words[at] = garbage.into();
            fake.kernel().found = vec![region(0, MIB, 1), words];
            let refused = looks(&mut interface).unwrap_err();
            assert!(matches!(&refused, DamonError::Words { .. }) && refused.to_string().len() < 200, "{refused}");
        }
    }
    // Too many regions are read up to a limit.
    fake.kernel().found = (0..5000).map(|at| region(at * PAGE, (at + 1) * PAGE, 0)).collect();
    assert_eq!(looks(&mut interface).unwrap().len(), 4096);
    // Other software has ended it.
    fake.kernel().files.insert("0/state".into(), "off\n".into());
    assert!(matches!(looks(&mut interface).unwrap_err(), DamonError::Write { .. }));
}

#[test]
fn the_heat_of_a_region_is_its_access_ratio() {
    let level = |accesses| Region { range: 0..PAGE, accesses }.level();
    assert_eq!([0, 1, 10, 19, 20, 21, u32::MAX].map(level), [0, 12, 127, 242, 255, 255, 255]);
}

#[test]
fn ranges_are_joined_across_the_smallest_gaps() {
    let few = |ranges: &[Range<u64>], most| few(ranges.iter().cloned(), most);
    let ranges = [0..1, 1..2, 4..5, 6..7, 9..10, 20..21];
    assert_eq!(few(&ranges, 9), [0..2, 4..5, 6..7, 9..10, 20..21]);
    assert_eq!(few(&ranges, 4), [0..2, 4..7, 9..10, 20..21]);
    assert_eq!(few(&ranges, 3), [0..7, 9..10, 20..21]);
    assert_eq!(few(&ranges, 2), [0..10, 20..21]);
    assert_eq!(few(&ranges, 1), one(0..21));
    assert!(few(&[], 3).is_empty());
}

/// Creates a heap, an arena whose first MiB is present, and DAMON on it; none where the kernel cannot move pages, which
/// tests/heat.rs reports.
fn damon(fake: &Fake) -> Option<(Heap, Arena, Damon)> {
    Userfault::open(UserfaultFeatures::MOVE).ok()?;
    let tier = |name: &str, bytes| TierOptions { name: name.to_string(), node: None, bytes };
    let heap = Heap::new(HeapOptions::new(vec![tier("fast", 16 << 20), tier("slow", 0)])).unwrap();
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    arena[..1 << 20].fill(1);
    let fake = fake.clone();
    let damon = Damon::with(&heap, 0.02, Open(Box::new(move || Box::new(fake.clone())))).unwrap();
    Some((heap, arena, damon))
}

/// Makes steps until a reading is complete; returns the time until the next one.
fn look(damon: &mut Damon, heat: &mut HeatMap, now: Duration) -> io::Result<Duration> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let next = damon.step(now, heat)?;
        if damon.asked.is_none() {
            return Ok(next);
        }
        assert_eq!(next, ASKED);
        assert!(Instant::now() < end, "{damon:?}");
        std::thread::yield_now();
    }
}

#[test]
fn pages_get_the_heat_of_their_region() {
    let fake = Fake::idle();
    let Some((heap, arena, mut damon)) = damon(&fake) else { return };
    let start = arena.addresses().start;
    let mut heat = HeatMap::new();
    heat.follow(&heap);
    heat.refresh(&heap).unwrap();
    // The last region goes beyond the memory.
    fake.kernel().found = vec![
        region(start, start + 10 * PAGE, 20),
        region(start + 10 * PAGE, start + 200 * PAGE, 0),
        region(start + 250 * PAGE, u64::MAX, 10),
    ];
    look(&mut damon, &mut heat, Duration::from_secs(1)).unwrap();
    let of = |page: u64| heat.page(start + page * PAGE).map(|page| (page.heat, page.seen)).unwrap();
    assert_eq!(
        [0, 9, 10, 199, 200, 250, 255].map(of),
        [(255, 1), (255, 1), (0, 1), (0, 1), (0, 0), (127, 1), (127, 1)]
    );
    assert_eq!(of(256), (0, 0), "a page that is not present");
    // It monitors the arena.
    assert_eq!(fake.says("0/contexts/0/targets/0/regions/0/start"), Some(start.to_string()));
    damon.rest();
    assert_eq!(fake.says("nr_kdamonds"), Some("0".into()), "it is released while it rests");
    look(&mut damon, &mut heat, Duration::from_secs(2)).unwrap();
    assert_eq!(fake.says("nr_kdamonds"), Some("1".into()));
    drop(damon);
    assert_eq!(fake.says("nr_kdamonds"), Some("0".into()));
}

#[test]
fn a_costly_kernel_thread_samples_less_often_and_its_time_is_reported() {
    let fake = Fake::idle();
    let Some((heap, _arena, mut damon)) = damon(&fake) else { return };
    let mut heat = HeatMap::new();
    heat.follow(&heap);
    let sample = || fake.says("0/contexts/0/monitoring_attrs/intervals/sample_us").unwrap();
    for (second, millis) in [(10, 100), (20, 290), (30, 290)] {
        fake.kernel().cpu = Duration::from_millis(millis);
        look(&mut damon, &mut heat, Duration::from_secs(second)).unwrap();
        assert_eq!(sample(), "10000", "at {second} s");
    }
    // 2.1 % of ten seconds.
    for (second, millis, expected) in [(40, 500, 10_000), (50, 500, 20_000), (60, 1000, 20_000), (70, 1000, 40_000)] {
        fake.kernel().cpu = Duration::from_millis(millis);
        look(&mut damon, &mut heat, Duration::from_secs(second)).unwrap();
        assert_eq!(sample(), expected.to_string(), "at {second} s");
    }
    assert!(damon.elsewhere() >= Duration::from_secs(1) && damon.elsewhere() < Duration::from_secs(3));
    damon.rest();
    assert!(damon.elsewhere() >= Duration::from_secs(1));
}

#[test]
fn a_failed_reading_releases_the_interface() {
    let fake = Fake::idle();
    let Some((heap, _arena, mut damon)) = damon(&fake) else { return };
    let mut heat = HeatMap::new();
    heat.follow(&heap);
    fake.kernel().refuses.push(("update_schemes", Errno::PERM, 1));
    let refused = look(&mut damon, &mut heat, Duration::from_secs(1)).unwrap_err();
    assert!(refused.to_string().contains("cannot write update_schemes_tried_regions"), "{refused}");
    assert_eq!(fake.says("nr_kdamonds"), Some("0".into()));
}
