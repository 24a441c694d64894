//! Start and end of runs: exit codes and signals pass through, no files or processes remain, no process can stall
//! another.

use crate::harness::{
    Run, Runtime, TELPHER, View, client, eventually, finish, in_both_views, lacking, source, test_folder, wait,
};
use crate::skip::skip;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use telpher_os::Random;

/// Returns a folder for the test.
fn place(test: &str, view: View) -> PathBuf {
    test_folder(&format!("{test}-{}", view.name()))
}

in_both_views! {
    fn the_exit_code_is_the_programs(view: View) {
        for (script, code) in
            [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 128 + 9), ("kill -SEGV $$", 128 + 11)] {
            assert_eq!(Run::new(view).program(&["/bin/sh", "-c", script]).code(), code, "{script}");
        }
        assert_eq!(Run::new(view).program(&["no-such-program"]).code(), 127);
        let done = Run::new(view).program(&["/etc/passwd"]);
        assert_eq!(done.code(), 126, "{done}");
        assert_eq!(done.stderr.lines().count(), 1, "{done}");
    }

    fn arguments_input_and_output_pass_through(view: View) {
        let run = Run::new(view).reading("a\nb\n").variable("SOME", "thing");
        let done = run.program(&["/bin/sh", "-c", "cat; echo \"$0|$1|$SOME\"; echo other >&2", "zero", "one two"]);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("a\nb\nzero|one two|thing\n", "other\n"));
    }

    fn signals_to_telpher_reach_the_program(view: View) {
        let folder = place("signals", view);
        let script = format!(
            "trap 'echo heard; exit 3' TERM; touch {}/ready; while :; do sleep 0.05; done",
            folder.display()
        );
        let child = Run::new(view).command(&["/bin/sh", "-c", &script]).spawn().expect("telpher starts");
        eventually("the program is ready", || folder.join("ready").exists());
        kill_process(Pid::from_child(&child), Signal::TERM).expect("telpher can be signalled");
        let status = wait(child, Duration::from_secs(60)).expect("the program hears of SIGTERM");
        assert_eq!(status.code(), Some(3));
    }

    fn a_run_leaves_nothing_behind(view: View) {
        let runtime = Runtime::new(&format!("leaves-{}", view.name()));
        let run = Run::on_two_queues(view).variable("TELPHER_RUNTIME_DIR", runtime.path());
        run.shell("[ -e /dev/dsa/wq0.0 ]; cat /sys/bus/dsa/devices/dsa0/state");
        assert!(runtime.is_empty(), "left in the run directory's place");
        run.program(&["/bin/sh", "-c", "kill -9 $$"]);
        assert!(runtime.is_empty(), "left after a killed program");
    }

    fn a_killed_host_leaves_nothing_behind_and_no_process_hanging(view: View) {
        let Some(worker) = client("worker") else { return };
        let runtime = Runtime::new(&format!("killed-host-{}", view.name()));
        let mut random = Random::new(7);
        for round in 0..8 {
            let run = Run::on_two_queues(view).variable("TELPHER_RUNTIME_DIR", runtime.path());
            // The pipe ends when all processes of the run have ended.
            let mut command = run.command(&[worker.as_os_str(), "300".as_ref()]);
            let (reader, writer) = std::io::pipe().expect("a pipe");
            command.stdout(writer).stderr(std::process::Stdio::null());
            let child = command.spawn().expect("telpher starts");
            drop(command);
            // Kill at a random moment, from before the device exists to the middle of its work.
            std::thread::sleep(Duration::from_millis(random.below(20 + 40 * round)));
            kill_process(Pid::from_child(&child), Signal::KILL).expect("telpher can be killed");
            wait(child, Duration::from_secs(60)).expect("killed");
            let (sender, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let mut reader = reader;
                let _ = std::io::copy(&mut reader, &mut std::io::sink());
                // The test may have failed already.
                let _ = sender.send(());
            });
            ended.recv_timeout(Duration::from_secs(60)).expect("the worker ends without its host");
            eventually("nothing is left of a killed run", || runtime.is_empty());
        }
    }

    fn programs_killed_at_any_moment_disturb_no_other(view: View) {
        let Some(worker) = client("worker") else { return };
        let Some(rotating) = client("rotating") else { return };
        let mut script = String::from("set +m\n");
        let mut random = Random::new(11);
        for _ in 0..25 {
            let pause = random.below(60);
            script += &format!("{0} & p=$!; sleep 0.{pause:03}; kill -9 $p; wait $p || true\n", worker.display());
            script += "[ $(cat /sys/bus/dsa/devices/dsa0/clients) = 0 ] || exit 9\n";
        }
        script += &format!("{}\n", rotating.display());
        let done = Run::on_two_queues(view).program(&["/bin/bash", "-c", &script]);
        done.expect_success();
    }

    fn a_permanently_full_queue_stops_no_other_process(view: View) {
        let (Some(flood), Some(worker)) = (client("flood"), client("worker")) else { return };
        let (flood, worker) = (flood.display(), worker.display());
        let script = format!(
            "{flood} dedicated & a=$!; {flood} shared & b=$!\n\
             {worker} 2 || exit 5\n\
             cat /sys/bus/dsa/devices/wq0.0/state\n\
             kill -9 $a $b; wait $a $b\n\
             [ $(cat /sys/bus/dsa/devices/dsa0/clients) = 0 ] || exit 6\n\
             {worker} 0.2 && accel-config disable-device dsa0"
        );
        if lacking("a_permanently_full_queue_stops_no_other_process", &[("accel-config", "accel-config")]) {
            return;
        }
        for runner in ["inline", "threaded"] {
            let done = Run::on_two_queues(view).with("--runner").with(runner).program(&["/bin/bash", "-c", &script]);
            done.expect_success();
        }
    }

    fn a_program_left_running_keeps_its_device(view: View) {
        let Some(worker) = client("worker") else { return };
        // The main program ends at once; its descendant continues to work.
        let folder = place("daemon", view);
        let script = format!("({} 1 && touch {}/well) & exit 4", worker.display(), folder.display());
        let done = Run::on_two_queues(view).program(&["/bin/sh", "-c", &script]);
        assert_eq!(done.code(), 4, "{done}");
        eventually("the descendant works to its end", || folder.join("well").exists());
    }

    fn programs_that_never_use_the_device_run_unchanged(view: View) {
        if lacking(
            "programs_that_never_use_the_device_run_unchanged",
            &[("gcc", "gcc"), ("/usr/bin/python3", "python3-minimal")],
        ) {
            return;
        }
        let folder = place("others", view);
        let script = "
            echo 'int main(void){return 0;}' >a.c && gcc -o a a.c && ./a
            seq 100000 | sort -rn | head -1
            find /usr/bin -name 'g*' | wc -l | grep -qv '^0$'
            (exit 5) || echo five
            ls /proc/self/fd
            tar cf - a.c | tar tf -
            /usr/bin/python3 -c '
import os, signal, subprocess, threading
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
os.kill(os.getpid(), signal.SIGUSR1)
threads = [threading.Thread(target=lambda: subprocess.run([\"true\"], check=True)) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
pid = os.fork()
if pid == 0: os._exit(3)
print(len(seen), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))'
        ";
        let output = Run::new(view).in_folder(&folder).shell(script);
        // The list of descriptors contains none of ours.
        let mut alone = Command::new("/bin/sh");
        let alone = finish(alone.args(["-ec", script]).current_dir(&folder), None, Duration::from_secs(60));
        assert_eq!(output, alone.stdout, "{alone}");
        assert!(output.ends_with("a.c\n1 3\n"), "{output}");
    }
}

/// Libraries that the user has preloaded stay preloaded.
#[test]
fn other_preloaded_libraries_stay() {
    let output =
        Run::new(View::Preload).variable("LD_PRELOAD", "libm.so.6").shell("tr '\\0' '\\n' </proc/self/environ");
    let preload = output.lines().find(|line| line.starts_with("LD_PRELOAD=")).expect("a variable");
    assert!(preload.contains("libm.so.6") && preload.len() > "LD_PRELOAD=libm.so.6".len(), "{preload}");
}

#[test]
fn invalid_hardware_is_a_one_sentence_error() {
    for (hardware, words) in
        [("spr-9", "use one of the presets"), ("/nowhere.json", "nowhere.json"), ("/etc/passwd", "passwd")]
    {
        let done = Run::new(View::Preload).with("--hardware").with(hardware).program(&["true"]);
        assert_eq!(done.code(), 125, "{done}");
        assert!(done.stderr.lines().count() == 1 && done.stderr.contains(words), "{done}");
    }
    let done = Run::new(View::Preload).with("--hardware").with(source("refused.json")).program(&["true"]);
    assert_eq!(done.code(), 125, "{done}");
    assert!(done.stderr.contains("wq0.0") && done.stderr.contains("size"), "{done}");
}

/// Neither view needs a privilege if the kernel allows user namespaces.
#[test]
fn an_ordinary_user_has_the_device_in_both_views() {
    let name = "an_ordinary_user_has_the_device_in_both_views";
    let Some(program) = client("rotating") else { return };
    // Copies in a folder that every user can read, which the build folder need not be.
    let folder = std::env::temp_dir().join(format!("telpher-test-{}", std::process::id()));
    let everybody = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::set_permissions(&folder, everybody(0o755)).expect("readable for all");
    let copies =
        [(Path::new(TELPHER), "telpher"), (&program, "rotating"), (&source("two-queues.json"), "two-queues.json")].map(
            |(from, to)| {
                let to = folder.join(to);
                std::fs::copy(from, &to).expect("a copy");
                std::fs::set_permissions(&to, everybody(0o755)).expect("readable for all");
                to
            },
        );
    let as_user = |words: &[&std::ffi::OsStr]| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "env",
            "-u",
            "XDG_RUNTIME_DIR",
            "-u",
            "TELPHER_RUNTIME_DIR",
        ]);
        finish(command.args(words).current_dir("/"), None, Duration::from_secs(60))
    };
    let root = rustix::process::getuid().is_root();
    for view in [View::Preload, View::Namespace] {
        let namespaces =
            || as_user(&["unshare", "--map-root-user", "--mount", "true"].map(AsRef::as_ref)).status.success();
        if !root {
            skip(name, "every other test is run by an ordinary user already");
        } else if view == View::Namespace && (view.missing().is_some() || !namespaces()) {
            skip(name, "an ordinary user cannot have mount namespaces here");
        } else {
            let [telpher, program, hardware] = &copies;
            let words = [
                telpher.as_os_str(),
                "run".as_ref(),
                "--view".as_ref(),
                view.name().as_ref(),
                "--hardware".as_ref(),
                hardware.as_os_str(),
                "--".as_ref(),
                program.as_os_str(),
            ];
            as_user(&words).expect_success();
        }
    }
    std::fs::remove_dir_all(&folder).expect("the copies go");
}
