//! Containers, each with a queue of one virtual device: the example of docs/containers.md.

use crate::harness::{Run, View, lacking, source, test_folder};
use crate::skip::skip;
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
    let room = test_folder("containers");
    let done = Run::on_two_queues(View::Namespace).with("--summary").in_folder(&room).program(&["sh", "-ec", &script]);
    done.expect_success();
    let expected = ["wq0.0", "wq0.1"].map(|queue| format!("1\n{queue}\n../dsa/{queue}\ncopied\n")).concat();
    assert_eq!(done.stdout, expected, "{done}");
    // One device has executed the work of both.
    assert!(done.stderr.contains("40 descriptors"), "{done}");
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
        link=/dev/char/$(stat -c %Hr:%Lr $queue)
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
    assert_eq!(Run::on_two_queues(View::Namespace).shell(SEARCH), found);
    // The plugin is a static Go program, for which a queue's node is a regular file.
    let busybox = "/bin/busybox";
    if lacking(test, &[(busybox, "busybox-static")]) {
        return;
    }
    let found = "/dev/dsa/wq0.0 is not a character device\n/dev/dsa/wq0.1 is not a character device\n";
    let script = SEARCH.replace("$(cat", "$(busybox cat");
    assert_eq!(Run::on_two_queues(View::Namespace).success(&[busybox, "sh", "-ec", &script]), found);
}
