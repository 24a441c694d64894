//! Unmodified Linux guests in an unmodified QEMU use devices of `telpher vfio`: the idxd driver probes, accel-config
//! configures, and dmatest copies and verifies.
//!
//! QEMU and the kernels come from `ci/vm-parts.sh`. The emulated processor gets MOVDIR64B from a plugin, see
//! `movdir64b.c`. `ci/guests.sh` runs the short form, `./soak` all of it. If the machine lacks something, a test skips
//! visibly, see `ci/skip.rs`.

#[path = "../../../../ci/guest.rs"]
mod debian;
mod machine;
mod server;
#[path = "../../../../ci/skip.rs"]
mod skip;

use machine::{Folder, Machine, Parts, Results, SMALL, Size};
use server::{Counters, Server};
use std::io::Write;

/// The modules of the guests, in load order. The script loads them.
const MODULES: [&str; 3] = ["idxd_bus", "idxd", "dmatest"];

/// What a guest does first.
const PROBE: &str = "check 'the driver probes' load";
/// The same, and before it a check of the test's own instrument.
const PROBE_WITH_INSTRUCTION: &str = "check 'MOVDIR64B with every operand' instruction\ncheck 'the driver probes' load";

/// Prints what a guest measured, past libtest's capture.
fn report(line: &str) {
    // If standard error is closed, the line is lost.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The guests of one test.
struct Guests<'a> {
    test: &'a str,
    /// The folder of the kernel, see `ci/vm-parts.sh`.
    kernel: &'a str,
    size: Size,
    /// The server's options.
    options: &'a [&'a str],
    /// The script of each guest that boots at the start.
    at_once: &'a [String],
    /// The script of a guest that boots when these have powered off, on the first socket.
    afterwards: Option<&'a str>,
}

impl Guests<'_> {
    /// Boots them on one server, and expects all their checks to succeed. Returns what they reported, and the server's
    /// counters for each socket; none if the machine lacks something.
    fn run(&self) -> Option<(Vec<Results>, Vec<Counters>)> {
        let folder = Folder::new(self.test);
        // dmatest and the plugin are not needed to probe and configure.
        let is_told_by_command_line = self.kernel == "7";
        let modules = if is_told_by_command_line { &MODULES[..2] } else { &MODULES };
        let parts = match Parts::find(&folder, self.kernel, modules) {
            Ok(parts) if is_told_by_command_line => parts.without_the_instruction(),
            Ok(parts) => parts,
            Err(why) => {
                skip::skip(self.test, &why);
                return None;
            }
        };
        let server = Server::start(&folder, self.at_once.len(), self.options);
        let start = |number: usize, script: &str| {
            Machine::start(&folder, &parts, self.size, number, &server.sockets[number], script)
                .unwrap_or_else(|why| panic!("guest {number}: {why}"))
        };
        let machines: Vec<Machine> =
            self.at_once.iter().enumerate().map(|(number, script)| start(number, script)).collect();
        let mut results: Vec<Results> = machines.into_iter().map(Machine::results).collect();
        for (number, results) in results.iter().enumerate() {
            results.expect_success(&format!("guest {number}"), &server.remarks());
        }
        if let Some(script) = self.afterwards {
            // The socket of a guest that has powered off serves the next one.
            let next = start(0, script).results();
            next.expect_success("the next guest", &server.remarks());
            results.push(next);
        }
        let (counters, said) = server.end();
        report(&format!("{} and Linux {}", parts.qemu_version(), parts.kernel.version));
        for (number, results) in results.iter().enumerate() {
            report(&format!("guest {number}: {} checks in {:.0} s", results.ok.len(), results.seconds));
            results.log.iter().for_each(|line| report(&format!("    {line}")));
        }
        report(said.trim_end());
        Some((results, counters))
    }
}

#[test]
fn two_linux_6_1_guests_copy_with_their_own_devices() {
    let first = format!(
        "{PROBE_WITH_INSTRUCTION}
         check 'accel-config loads a configuration' configure 16
         check 'copies of one byte' copies 1 20
         check 'copies of 4 KiB' copies 4096 100
         check 'copies of 256 KiB' copies 262144 4
         check 'perf counts copies' counted_copies 4096 20
         check 'the driver leaves' unload
         check 'function-level reset' function_reset
         check 'the driver returns' load
         check 'the largest queue' configure 128
         check 'copies of 64 KiB' copies 65536 8"
    );
    let second = format!(
        "{PROBE}
         check 'accel-config loads a configuration' configure 1
         check 'copies of 4 KiB' copies 4096 100"
    );
    let guests = Guests {
        test: "two_linux_6_1_guests_copy_with_their_own_devices",
        kernel: "6.1",
        size: SMALL,
        options: &[],
        at_once: &[first, second],
        afterwards: None,
    };
    let Some((results, counters)) = guests.run() else { return };
    assert!(results[0].dmesg.iter().any(|line| line.contains("Intel(R) Accelerator Device (v100)")), "{results:?}");
    // Each device counts its own guest's copies, each with one interrupt, and those of commands.
    for (counters, copies) in counters.iter().zip([152, 100]) {
        assert_eq!((counters.descriptors, counters.faults, counters.lost), (copies, 0, 0), "{counters:?}");
        assert!(counters.interrupts > copies && counters.read >= copies, "{counters:?}");
    }
}

/// Everything that one guest does with its device, one after the other.
const LONG: &str = "
    for size in 1 2 3 16 64 127 128; do
        check \"a queue of $size entries\" configure $size
        check 'a round trip of the configuration' round_trip
        check 'copies by four threads' copies 16384 25 4
        check 'disabled' disable
    done
    check 'a queue again' configure 128
    check 'copies of 2 MiB' copies 2097152 2
    check 'perf counts copies' counted_copies 4096 100
    check 'unbound under load' unbind_under_load
    check 'a queue after that' configure 16
    check 'copies after that' copies 4096 50
    check 'reset under load' reset_under_load
    check 'a queue after the reset' configure 16
    check 'copies after the reset' copies 4096 50
    check 'the driver leaves' unload
    check 'the driver returns' load
    check 'a queue at the end' configure 16
    check 'copies at the end' copies 4096 50";

/// The copies in it that end by themselves.
const LONG_COPIES: u64 = 7 * 25 * 4 + 2 + 100 + 3 * 50;
/// Those of the guest that boots afterwards.
const AFTERWARDS: u64 = 50;

fn long_form(test: &str, kernel: &str, options: &[&str]) {
    let first = format!("{PROBE_WITH_INSTRUCTION}{LONG}");
    let neighbour = format!("{PROBE}\ncheck 'a queue' configure 16\ncheck 'copies beside it' copies 4096 3000");
    let again = format!("{PROBE}\ncheck 'a queue' configure 16\ncheck 'copies' copies 4096 {AFTERWARDS}");
    let at_once = [first, neighbour];
    let guests = Guests { test, kernel, size: SMALL, options, at_once: &at_once, afterwards: Some(&again) };
    let Some((results, counters)) = guests.run() else { return };
    // The copies that a guest saw completed before it took the driver or reset the device, and those that it counted.
    let copies = |line: &String| line.strip_prefix("under load: ")?.split(' ').next()?.parse::<u64>().ok();
    let under_load: Vec<u64> = results[0].log.iter().filter_map(copies).collect();
    assert!(under_load.len() == 2 && under_load.iter().all(|copies| *copies >= 100), "{:?}", results[0].log);
    let done = LONG_COPIES + AFTERWARDS + under_load.iter().sum::<u64>();
    assert!(counters[0].descriptors >= done, "{counters:?}, and the guests saw {done}");
}

#[test]
#[ignore = "minutes on emulated processors: `./soak` runs it"]
fn a_linux_6_1_guest_uses_its_device_in_every_way() {
    long_form("a_linux_6_1_guest_uses_its_device_in_every_way", "6.1", &[]);
}

#[test]
#[ignore = "minutes on emulated processors: `./soak` runs it"]
fn a_linux_6_12_guest_uses_its_device_in_every_way() {
    // A device with an event log, because 6.12.117 cannot unbind one without: `idxd_device_evl_free` locks a mutex
    // through a null pointer. The model has no part in that.
    long_form("a_linux_6_12_guest_uses_its_device_in_every_way", "6.12", &["--preset", "full"]);
}

#[test]
#[ignore = "minutes on emulated processors: `./soak` runs it"]
fn four_guests_copy_at_once() {
    let test = "four_guests_copy_at_once";
    let script = format!("{PROBE}\ncheck 'a queue' configure 64\ncheck 'copies' copies 65536 50 2");
    let at_once = [(); 4].map(|()| script.clone());
    let guests = Guests { test, kernel: "6.12", size: SMALL, options: &[], at_once: &at_once, afterwards: None };
    let Some((_, counters)) = guests.run() else { return };
    for counters in counters {
        assert_eq!((counters.descriptors, counters.faults, counters.lost), (100, 0, 0), "{counters:?}");
    }
}

/// Two processors submit at once, each in eight stores, and the memory is two pieces: below and above the hole for
/// devices.
#[test]
#[ignore = "minutes on emulated processors: `./soak` runs it"]
fn a_guest_with_two_processors_and_memory_above_4_gib_copies() {
    let test = "a_guest_with_two_processors_and_memory_above_4_gib_copies";
    let script = format!(
        "{PROBE}
         check 'memory above 4 GiB' grep -q '^1[0-9a-f]\\{{8\\}}-.*System RAM' /proc/iomem
         check 'a queue' configure 128
         check 'copies' copies 4096 500 8
         check 'large copies' copies 1048576 4 2"
    );
    let size = Size { processors: 2, mib: 5120 };
    let guests = Guests { test, kernel: "6.1", size, options: &[], at_once: &[script], afterwards: None };
    let Some((_, counters)) = guests.run() else { return };
    assert_eq!((counters[0].descriptors, counters[0].faults, counters[0].lost), (4008, 0, 0), "{counters:?}");
}

#[test]
#[ignore = "minutes on emulated processors: `./soak` runs it"]
fn a_linux_7_guest_probes_and_is_configured() {
    let test = "a_linux_7_guest_probes_and_is_configured";
    let script = format!(
        "{PROBE}
         check 'a queue' configure 128
         check 'a round trip of the configuration' round_trip
         check 'the driver leaves' unload
         check 'function-level reset' function_reset
         check 'the driver returns' load"
    );
    Guests { test, kernel: "7", size: SMALL, options: &[], at_once: &[script], afterwards: None }.run();
}
