//! Two processes that exchange messages as libfabric's shm provider does with DSA; see `sources/segments.c`.

use crate::harness::{Run, View, client, in_both_views, lacking, source};
use std::path::Path;

/// The numbers that a process prints at its end.
#[derive(Debug)]
struct Ended {
    queues: u64,
    by_write: u64,
    faults: u64,
    refused: u64,
    others: u64,
}

fn on_queues(view: View) -> Run {
    Run::new(view).with("--hardware").with(source("segment-queues.json"))
}

/// Runs the client, which checks every byte, and returns what sender and receiver print.
fn run(run: &Run, program: &Path, args: &[&str]) -> [Ended; 2] {
    let mut words = vec![program.as_os_str().to_owned()];
    words.extend(args.iter().map(Into::into));
    let stdout = run.success(&words);
    ["sender", "receiver"].map(|process| {
        let line = stdout.lines().find_map(|line| line.strip_prefix(process));
        let line = line.unwrap_or_else(|| panic!("no line of the {process}: {stdout}"));
        let number = |name: &str| {
            let mut words = line.split_whitespace().skip_while(|word| *word != name).skip(1);
            words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no {name}: {stdout}"))
        };
        Ended {
            queues: number("queues"),
            by_write: number("write"),
            faults: number("faults"),
            refused: number("refused"),
            others: number("others"),
        }
    })
}

in_both_views! {
    fn messages_arrive_whole_on_every_kernel_whatever_the_submission(view: View) {
        let Some(program) = client("segments") else { return };
        // This kernel has no shared queues for users: the client copies by the CPU.
        for ended in run(&Run::new(view).with("--abi").with("5.15"), &program, &["messages=6"]) {
            assert_eq!((ended.queues, ended.faults), (0, 0), "{ended:?}");
        }
        for (abi, found_by, touch) in [
            ("6.1", "by=library", "touch=all"),
            ("6.6", "by=files", "touch=first"),
            ("6.12", "by=library", "touch=first"),
        ] {
            for (rawio, by_write) in [("--rawio", 0), ("--no-rawio", 1)] {
                let settings = on_queues(view).with("--abi").with(abi).with(rawio);
                for ended in run(&settings, &program, &[found_by, touch, "messages=6"]) {
                    assert_eq!((ended.queues, ended.by_write, ended.others), (2, by_write, 0), "{abi}: {ended:?}");
                    assert!(ended.faults > 300, "fresh memory faults: {abi}: {ended:?}");
                }
            }
        }
    }

    fn messages_arrive_whole_with_traps_and_with_engine_threads(view: View) {
        let Some(program) = client("segments") else { return };
        let threaded = ["--runner", "threaded", "--no-rawio"];
        for options in [["--no-rewrite"].as_slice(), &threaded[..2], &threaded] {
            let settings = options.iter().fold(on_queues(view), |run, option| run.with(option));
            run(&settings, &program, &["messages=6"]);
        }
    }

    fn messages_arrive_whole_with_injected_faults(view: View) {
        let Some(program) = client("segments") else { return };
        let of = |inject: &str, more: &[&str]| {
            let settings = on_queues(view).with("--inject").with(inject);
            run(&more.iter().fold(settings, |run, option| run.with(option)), &program, &["messages=6", "touch=first"])
        };
        let [fresh, _] = of("seed=1", &[]);
        assert!(of("fault=5%,seed=7", &[]).iter().all(|ended| ended.faults > fresh.faults));
        // In the namespace view telpher executes what is written to a node, and injects nothing there.
        let written = of("fault=5%,seed=7", &["--no-rawio"]);
        assert!(view != View::Preload || written.iter().all(|ended| ended.faults > fresh.faults), "{written:?}");
        assert!(of("retry=20%/burst:50,seed=1", &[]).iter().all(|ended| ended.refused > 500));
        // libfabric would count these segments as copied; the client copies them.
        assert!(of("status=0x13@memory-move:20%,seed=3", &[]).iter().all(|ended| ended.others > 50));
        of("reorder=50%,seed=5", &[]);
        of("delay=1ms:5%,fault=5%,retry=5%,seed=2", &["--runner", "threaded"]);
    }

    /// The provider's handlers are installed last, and remove the region's file. No trap of ours may reach them, and a
    /// real signal must.
    fn only_a_real_signal_reaches_the_handler_that_removes_the_region(view: View) {
        let Some(program) = client("segments") else { return };
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGTERM, libc::SIGINT] {
            let exits = format!("exits={signal}");
            for settings in [on_queues(view), on_queues(view).with("--no-rewrite")] {
                run(&settings, &program, &["messages=3", &exits]);
            }
        }
    }
}

/// The probe of write() waits for 65,536 PAUSEs. On a single CPU it kept the engine's thread from running for longer
/// than that, and the client took the queue for one that does not work.
#[test]
fn a_probe_by_write_succeeds_although_the_engine_has_no_cpu_of_its_own() {
    let test = "a_probe_by_write_succeeds_although_the_engine_has_no_cpu_of_its_own";
    let Some(program) = client("segments").filter(|_| !lacking(test, &[("taskset", "util-linux")])) else { return };
    let settings = on_queues(View::Preload).with("--runner").with("threaded").with("--no-rawio");
    let script = format!(
        "taskset -p -c \"$(taskset -p -c $$ | sed 's/.*: *//; s/[-,].*//')\" $$ > /dev/null; exec {} messages=2",
        program.display()
    );
    let stdout = settings.shell(&script);
    assert_eq!(stdout.matches(" write 1 ").count(), 2, "{stdout}");
}
