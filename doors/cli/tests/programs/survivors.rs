//! Programs that outlive their run, and other users of the machine: neither may change what the other loads or writes.

use crate::harness::{Run, Runtime, TELPHER, View, client, client_with, eventually, finish, test_folder, wait};
use crate::skip::skip;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Skips the test and returns true if this user cannot become another one.
fn is_not_root(test: &str) -> bool {
    let is_not = !rustix::process::geteuid().is_root();
    if is_not {
        skip(test, "only root can become another user");
    }
    is_not
}

/// What broke: a program that outlived its run had `/proc/<PID of the run's process>/fd/<n>` in LD_PRELOAD. Any user
/// with
/// a process of that PID could open a library at that descriptor, and the program's next exec loaded it: as root.
#[test]
fn a_process_with_the_pid_of_an_ended_run_cannot_load_anything() {
    const NAME: &str = "a_process_with_the_pid_of_an_ended_run_cannot_load_anything";
    if is_not_root(NAME) {
        return;
    }
    let folder = test_folder("pid-reuse");
    let marker = folder.join("loaded");
    let define = format!("-DMARKER=\"{}\"", marker.display());
    let (Some(attacker), Some(library)) =
        (client("pid_reuse"), client_with("planted", "planted.so", &["-shared", "-fPIC", &define]))
    else {
        return;
    };
    let (attacker, library) = (attacker.display(), library.display());
    // All in a separate PID namespace, where numbers are free.
    let tier = "tier run --quiet --tier a=64m --tier b";
    for command in ["run", tier] {
        let script = format!(
            "until_there() {{ until [ -s $1 ]; do sleep 0.02; done; }}
            rm -f ready going go said loaded
            {TELPHER} {command} -- sh -c '
                echo >going; until [ -s go ]; do sleep 0.02; done; /bin/echo it runs >said 2>&1' &
            host=$!
            until_there going
            kill -9 $host
            wait $host
            {attacker} $host {library} $PWD/ready &
            attacker=$!
            until_there ready
            echo >go
            until_there said
            cat said
            kill -9 $attacker $host
            wait"
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &script]);
        unshare.current_dir(&folder).process_group(0);
        let done = finish(&mut unshare, None, Duration::from_secs(120));
        if done.stderr.contains("unshare failed") {
            return skip(NAME, "this machine has no PID namespaces");
        }
        assert!(!marker.exists(), "{command}: the library of another user was loaded");
        // A library that cannot be preloaded causes no message either.
        assert_eq!(done.stdout, "it runs\n", "{command}: {done}");
        assert!(done.stderr.is_empty() || !done.stderr.contains("clone3"), "{command}: {done}");
    }
}

/// What broke: a program that outlived `tier run` continued to write its state at the old path, and followed links
/// there.
#[test]
fn a_survivor_writes_nothing_into_a_recreated_folder() {
    let place = test_folder("survivor-writes");
    let victim = place.join("victim");
    std::fs::write(&victim, "precious").expect("a file");
    let runtime = Runtime::new("survivor");
    // The shell is a managed process itself, and writes its state when it ends.
    let script = format!("trap '' TERM; echo $$ >{0}/survivor; read line <{0}/go; exit 0", place.display());
    let mut command = Command::new(TELPHER);
    command
        .args(["tier", "run", "--quiet", "--grace", "0", "--tier", "a=64m", "--tier", "b", "--", "sh", "-c", &script]);
    // The survivor holds the pipe until it ends.
    let go = place.join("go");
    rustix::fs::mknodat(rustix::fs::CWD, &go, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("a pipe");
    let (mut ended, writer) = std::io::pipe().expect("a pipe");
    command.env("TELPHER_RUNTIME_DIR", runtime.path()).stdout(writer).stderr(Stdio::null()).process_group(0);
    let child = command.spawn().expect("telpher starts");
    drop(command);
    let survivor = place.join("survivor");
    let number = || std::fs::read_to_string(&survivor).ok().filter(|text| text.ends_with('\n'));
    eventually("the program runs", || number().is_some());
    let number = number().expect("the program has said its number").trim().to_owned();
    let [folder] = &runtime.of_runs("tier-")[..] else { panic!("one folder of one run") };
    kill_process(Pid::from_child(&child), Signal::TERM).expect("telpher can be signalled");
    let status = wait(child, Duration::from_secs(60)).expect("telpher ends at once");
    assert_eq!(status.code(), Some(128 + 15));
    eventually("the folder is gone", || !folder.exists());

    std::fs::create_dir(folder).expect("a folder at the old path");
    let names = [format!("{number}.part"), format!("{number}.json")];
    for name in &names {
        std::os::unix::fs::symlink(&victim, folder.join(name)).expect("a link");
    }
    std::fs::write(&go, "\n").expect("a word to the program");
    std::io::copy(&mut ended, &mut std::io::sink()).expect("the program ends");
    assert_eq!(std::fs::read(&victim).expect("the file"), b"precious");
    for name in &names {
        let link = std::fs::read_link(folder.join(name)).expect("the link as it was made");
        assert_eq!(link, victim);
    }
    assert_eq!(std::fs::read_dir(folder).expect("the folder").count(), names.len());
}

/// What broke: any user could create the folder of root's runs first, and root's runs were refused.
#[test]
fn no_other_user_can_create_or_change_files_of_a_run() {
    const NAME: &str = "no_other_user_can_create_or_change_files_of_a_run";
    if is_not_root(NAME) {
        return;
    }
    // Executed by another user in a run of root's. The exit code is the number of attacks that succeeded.
    let attacks = r#"
        image=${LD_PRELOAD%%:*}; keep=${image%/*}
        run=${TELPHER_RUN##*,}; [ -n "$run" ] || run=$(echo "$TELPHER_TIER" | sed 's/.*"folder":"\([^"]*\)".*/\1/')
        broken=0
        attack() { "$@" 2>/dev/null && { echo "succeeded: $*"; broken=$((broken + 1)); }; }
        attack sh -c ": >>$image"
        attack rm -f "$image"
        attack mv "$image" "$image.old"
        attack ln -s /etc/passwd "$keep/planted"
        attack mkdir "$keep/run-1-00000000"
        attack rmdir "$run"
        attack mv "$run" "$run.old"
        attack ls "$run"
        attack ln -s /etc/passwd "$run/planted"
        attack touch "${keep%/*}/planted"
        # Programs that it executes find the library. (`tier run` reports that it cannot manage the memory of this user.)
        said=$(/bin/true 2>&1); case "$said" in *"cannot be preloaded"*) echo "said: $said"; broken=99 ;; esac
        exit $broken"#;
    // chroot(1), because setpriv(1) keeps capabilities for a moment, and the C library then ends a program that has
    // other
    // threads (setxid).
    let user = ["chroot", "--userspec=65534:65534", "--groups=", "/", "sh", "-c", attacks];
    // The former name of the folder: another user's directory at the path where root's was created.
    let old = std::env::temp_dir().join("telpher-tier-0");
    let made = Command::new(user[0]).args(&user[1..4]).arg("mkdir").arg(&old).stderr(Stdio::null()).status();
    let tier = ["tier", "run", "--quiet", "--tier", "a=64m", "--tier", "b", "--"];
    for words in [&["run", "--"][..], &tier] {
        let mut command = Command::new(TELPHER);
        command.env_remove("TELPHER_RUNTIME_DIR").args(words).args(user);
        let done = finish(&mut command, None, Duration::from_secs(60));
        assert_eq!((done.code(), done.stdout.as_str()), (0, ""), "{words:?}: {done}");
    }
    if made.is_ok_and(|made| made.success()) {
        std::fs::remove_dir(&old).expect("the attacker's folder goes");
    }
}

/// What broke: output to a closed descriptor went to /dev/null, and the program ended with 0.
#[test]
fn closed_standard_descriptors_stay_closed() {
    for telpher in ["run", "tier run --quiet --tier a=64m --tier b"] {
        for (script, code) in [("/bin/echo hi >&-", 1), ("cat <&-", 1), ("sh -c '[ ! -e /proc/self/fd/2 ]' 2>&-", 0)] {
            let (program, closed) = script.rsplit_once(' ').expect("what is closed comes last");
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{TELPHER} {telpher} -- {program} {closed}")]);
            let done = finish(&mut command, None, Duration::from_secs(60));
            assert_eq!(done.code(), code, "{telpher}: {script}: {done}");
        }
    }
    let alone = Run::new(View::Preload).program(&["/bin/echo", "hi"]);
    assert_eq!((alone.code(), alone.stdout.as_str()), (0, "hi\n"));
}
