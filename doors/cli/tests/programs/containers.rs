//! Containers, each with a queue of one virtual device: the example of docs/containers.md.

use crate::harness::{Run, View, lacking, source, test_folder};
use crate::skip::skip;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DSA_TEST: &str = "/usr/libexec/accel-config/test/dsa_test";

/// Skips the test and returns true without the right to create containers.
fn no_containers(test: &str) -> bool {
    if let Some(reason) = View::Namespace.missing() {
        skip(test, reason);
        return true;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "true"]).stderr(Stdio::null());
    if !unshare.status().is_ok_and(|status| status.success()) {
        skip(test, "containers need root here");
        return true;
    }
    lacking(test, &[(DSA_TEST, "accel-config-test")])
}

/// Which queues a container has, and that it is the first process of its own; then its work.
const INSIDE: &str = "echo $$; ls /dev/dsa; readlink /dev/char/*;";

#[test]
fn each_of_two_containers_copies_with_its_queue_alone() {
    if no_containers("each_of_two_containers_copies_with_its_queue_alone") {
        return;
    }
    let container = source("container.sh");
    let start = |queue: &str, mode: u8| {
        format!(
            "sh {} {queue} sh -ec '{INSIDE} {DSA_TEST} -w {mode} -l 65536 -o 3 -n 20 >/dev/null 2>&1; echo copied'",
            container.display()
        )
    };
    // At once: the shared queue in one, the dedicated one in the other.
    let script =
        format!("{} >first & {} >second & wait %1; wait %2; cat first second", start("wq0.0", 1), start("wq0.1", 0));
    for view in [View::Namespace, View::Devices] {
        let room = test_folder("containers");
        let done = Run::on_two_queues(view).with("--summary").in_folder(&room).program(&["sh", "-ec", &script]);
        done.expect_success();
        let expected = ["wq0.0", "wq0.1"].map(|queue| format!("1\n{queue}\n../dsa/{queue}\ncopied\n")).concat();
        assert_eq!(done.stdout, expected, "{done}");
        // One device has executed the work of both.
        assert!(done.stderr.contains("40 descriptors"), "{done}");
    }
}

#[test]
fn a_container_cannot_open_the_queue_of_another_one() {
    let test = "a_container_cannot_open_the_queue_of_another_one";
    if no_containers(test) {
        return;
    }
    let container = source("container.sh");
    let words = [container.as_os_str(), "wq0.1".as_ref(), "sh".as_ref(), "-c".as_ref()];
    let words = ["sh".as_ref()].into_iter().chain(words).chain(["cat /dev/dsa/wq0.0".as_ref()]);
    let done = Run::on_two_queues(View::Namespace).program(&words.collect::<Vec<_>>());
    assert!(!done.status.success() && done.stderr.contains("No such file"), "{done}");
}

/// The steps of Intel's device plugin for Kubernetes. Source: intel-device-plugins-for-kubernetes, pkg/idxd/plugin.go,
/// `scan` and `getDevNodes`; cmd/dsa_plugin, the patterns.
const SEARCH: &str = "for state in /sys/bus/dsa/devices/dsa*/wq*/state; do
    [ $(cat $state) = enabled ] || continue
    folder=${state%/state} queue=${state%/state}
    queue=/dev/dsa/${queue##*/}
    if [ $(cat $folder/type) = user ]; then
        [ -c $queue ] || { echo $queue is not a character device; continue; }
        link=/dev/char/$(printf %d:%d $(stat -c '0x%t 0x%T' $queue))
        [ -L $link ] && [ $(readlink -f $link) = $queue ] || { echo no link to $queue; continue; }
    fi
    echo wq-$(cat $folder/type)-$(cat $folder/mode) $queue
done";

#[test]
fn the_search_of_intels_device_plugin_finds_the_queues() {
    let test = "the_search_of_intels_device_plugin_finds_the_queues";
    if let Some(reason) = View::Namespace.missing() {
        return skip(test, reason);
    }
    let found = "wq-user-shared /dev/dsa/wq0.0\nwq-user-dedicated /dev/dsa/wq0.1\n";
    for view in [View::Namespace, View::Devices] {
        assert_eq!(Run::on_two_queues(view).shell(SEARCH), found);
    }
    // The plugin is a static Go program. For such programs a queue's node is a regular file, except in the view
    // `devices`.
    let busybox = "/bin/busybox";
    if lacking(test, &[(busybox, "busybox-static")]) {
        return;
    }
    let script = SEARCH.replace("$(cat", "$(busybox cat").replace("$(stat", "$(busybox stat");
    let refused = "/dev/dsa/wq0.0 is not a character device\n/dev/dsa/wq0.1 is not a character device\n";
    for (view, expected) in [(View::Namespace, refused), (View::Devices, found)] {
        assert_eq!(Run::on_two_queues(view).success(&[busybox, "sh", "-ec", &script]), expected, "{}", view.name());
    }
}

/// The number of a node may be that of another driver's device, so the kernel must not open one by it.
#[test]
fn a_static_program_cannot_open_the_device_that_it_finds() {
    let test = "a_static_program_cannot_open_the_device_that_it_finds";
    if let Some(reason) = View::Devices.missing() {
        return skip(test, reason);
    }
    let busybox = "/bin/busybox";
    if lacking(test, &[(busybox, "busybox-static")]) {
        return;
    }
    let script = "busybox cat /dev/dsa/wq0.0; busybox dd if=/dev/zero of=/dev/dsa/wq0.1 bs=64 count=1";
    let done = Run::on_two_queues(View::Devices).program(&[busybox, "sh", "-c", script]);
    assert!(!done.status.success(), "{done}");
    assert_eq!(done.stderr.matches("Permission denied").count(), 2, "{done}");
}

/// The version of Intel's device plugin that is run.
const PLUGIN: &str = "github.com/intel/intel-device-plugins-for-kubernetes@v0.27.1";

/// Builds the plugin in this folder, or says what is missing.
fn device_plugin(folder: &Path) -> Result<PathBuf, String> {
    let run = |command: &mut Command| {
        let output = command.current_dir(folder).output().map_err(|error| format!("no {command:?}: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default()))
    };
    let answer = run(Command::new("go").args(["mod", "download", "-json", PLUGIN]))?;
    let answer: serde_json::Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
    let module = answer["Dir"].as_str().ok_or("go names no folder of the module")?;
    // Files of the module's folder may not be written.
    run(Command::new("cp").args(["-r", "--no-preserve=mode", module, "plugin"]))?;
    let (plugin, own) = (folder.join("dsa_plugin"), folder.join("plugin"));
    let mut build = Command::new("go");
    build.arg("-C").arg(&own).args(["build", "-mod=mod", "-o"]).arg(&plugin).arg("./cmd/dsa_plugin");
    run(build.env("CGO_ENABLED", "0"))?;
    Ok(plugin)
}

/// Without a kubelet it says what it has found, and ends.
#[test]
#[ignore = "Go compiles the plugin for half a minute: `./soak` runs it"]
fn intels_device_plugin_finds_the_queues() {
    let test = "intels_device_plugin_finds_the_queues";
    if let Some(reason) = View::Devices.missing() {
        return skip(test, reason);
    }
    if Path::new("/var/lib/kubelet").exists() {
        return skip(test, "the plugin would announce the queues to this machine's kubelet");
    }
    let plugin = match device_plugin(&test_folder("device-plugin")) {
        Ok(plugin) => plugin,
        Err(reason) => return skip(test, &reason),
    };
    let words = [plugin.as_os_str(), "-v".as_ref(), "4".as_ref(), "-shared-dev-num".as_ref(), "3".as_ref()];
    let done = Run::on_two_queues(View::Devices).program(&words);
    for (found, node, link) in [
        ("wq0.0: amount: 3, type: user, mode: shared", "/dev/dsa/wq0.0", "/dev/char/511:0"),
        ("wq0.1: amount: 1, type: user, mode: dedicated", "/dev/dsa/wq0.1", "/dev/char/511:1"),
    ] {
        let line = done.stderr.lines().find(|line| line.contains(found)).unwrap_or_else(|| panic!("{found}: {done}"));
        assert!([node, link].iter().all(|path| line.contains(&format!("HostPath:{path} "))), "{line}");
    }
    let done = Run::on_two_queues(View::Namespace).program(&words);
    assert!(done.stderr.contains("/dev/dsa/wq0.0 is not a character device"), "{done}");
}
