//! Programs in the view, on a fake driver. Each test has its own view.

pub(super) mod fake_driver;

use super::*;
use crate::hardware::Hardware;
use crate::host::{Behaviour, FileInfo, Host, Listener};
use crate::kernel::{Abi, Kernel};
use fake_driver::{DEVICE, DRIVER, FakeDriver};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Output, Stdio};
use telpher_vdev_wire::file_memory::{Statistics, TraceEntry};

/// Environment variable that gives a restarted test another role.
const ROLE: &str = "TELPHER_TEST_ROLE";

/// True if a namespace view is possible here; otherwise reports a skip.
fn possible(test: &str) -> bool {
    let answer = available();
    if let Err(reason) = &answer {
        crate::skip::skip(test, &reason.to_string());
    }
    answer.is_ok()
}

fn start<T: Tree>(tree: &Arc<T>, mut command: Command) -> (Child, Running) {
    let (entrance, running) = prepare(Arc::clone(tree), Nodes::Writable).unwrap();
    entrance.install(&mut command);
    let child = command.spawn();
    drop(command);
    running.outcome().unwrap();
    (child.unwrap(), running)
}

/// Runs a shell script and the view to their end.
fn sh<T: Tree>(tree: &Arc<T>, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (child, running) = start(tree, command);
    let output = child.wait_with_output().unwrap();
    running.join();
    output
}

/// Returns a script's output; the script must succeed and print no errors.
fn says<T: Tree>(tree: &Arc<T>, script: &str) -> String {
    let output = sh(tree, script);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && errors.is_empty(), "{script}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a script's error output; its last command must fail.
fn complains<T: Tree>(tree: &Arc<T>, script: &str) -> String {
    let output = sh(tree, script);
    assert!(!output.status.success(), "{script}");
    String::from_utf8(output.stderr).unwrap()
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

/// This test program again, restricted to one test, with a role for it.
fn again(test: &str, role: &str) -> Command {
    // By its descriptor: other users may not be able to search the folder.
    let program = std::fs::File::open("/proc/self/exe").unwrap();
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    // The descriptor stays open until this process ends; it is needed when the command is spawned.
    std::mem::forget(program);
    let module = module_path!().split_once("::").unwrap().1;
    command.args(["--exact", "--nocapture", &format!("{module}::{test}")]).env(ROLE, role).current_dir("/");
    command
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Names in a directory of the machine, as `ls -A` prints them.
fn machine(directory: &str) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn with(mut names: Vec<String>, ours: &[&str]) -> String {
    names.extend(ours.iter().map(|name| (*name).to_owned()));
    names.sort();
    names.dedup();
    names.join("\n") + "\n"
}

#[test]
fn the_machines_entries_are_shown_beside_the_drivers() {
    if !possible("the_machines_entries_are_shown_beside_the_drivers") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    for (directory, ours) in [
        ("/sys/bus", &["dsa"][..]),
        ("/sys/devices", &["pci0000:6a"]),
        ("/sys/bus/pci/devices", &["0000:6a:01.0"]),
        ("/sys/module", &["idxd"]),
        ("/dev", &["dsa", "char"]),
    ] {
        assert_eq!(says(&tree, &format!("LC_ALL=C ls -A {directory}")), with(machine(directory), ours), "{directory}");
    }
    // The other entries are the machine's, of the same kinds.
    let all =
        "cd / && LC_ALL=C stat -c '%n %F %t:%T' /dev/* /sys/devices/* /sys/bus/* | grep -v -e dsa -e 6a -e /dev/char";
    let outside = Command::new("sh").args(["-c", all]).output().unwrap();
    assert_eq!(says(&tree, all), String::from_utf8(outside.stdout).unwrap());
    let script =
        "echo lost > /dev/null; head -c 4 /dev/zero | od -An -tx1; find /sys/devices/system/cpu/online -type f";
    assert_eq!(says(&tree, script), " 00 00 00 00\n/sys/devices/system/cpu/online\n");
}

#[test]
fn paths_resolve_across_the_drivers_and_the_machines_directories() {
    if !possible("paths_resolve_across_the_drivers_and_the_machines_directories") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    let script =
        "cd /sys/bus/dsa/devices/dsa0/ && pwd -P && realpath ../../../system . && readlink -f wq0.0/../../config
        readlink /sys/bus/dsa/devices/dsa0; realpath /sys/bus/pci/devices/0000:6a:01.0/dsa0/state
        find /sys/bus/dsa | LC_ALL=C sort | head -3; find /sys/bus/dsa/devices/ -type l | wc -l; stat -c %h \
        /sys/bus/dsa";
    let expected = format!(
        "{DEVICE}\n/sys/devices/system\n{DEVICE}\n/sys/devices/pci0000:6a/0000:6a:01.0/config\n\
         ../../../devices/pci0000:6a/0000:6a:01.0/dsa0\n{DEVICE}/state\n\
         /sys/bus/dsa\n/sys/bus/dsa/devices\n/sys/bus/dsa/devices/dsa0\n2\n4\n"
    );
    assert_eq!(says(&tree, script), expected);
}

#[test]
fn shell_scripts_configure_by_echo() {
    if !possible("shell_scripts_configure_by_echo") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    let script = "cd /sys/bus/dsa/devices; echo ' stream lane ' > wq0.0/name; cat wq0.0/name; cat dsa0/state
        printf x >> wq0.0/name; cat dsa0/wq0.0/name; [ -w wq0.0/name ] && [ -r dsa0/state ] && wc -c < dsa0/state";
    assert_eq!(says(&tree, script), "stream lane\ndisabled\nx\n9\n");
    let busy = complains(&tree, &format!("echo wq0.0 > {DRIVER}/bind; env echo wq0.0 > {DRIVER}/bind"));
    assert!(busy.contains("busy"), "{busy}");
    let absent = complains(&tree, &format!("cat {DEVICE}/absent"));
    assert!(absent.contains("not supported"), "{absent}");
}

#[test]
fn a_files_mode_applies_to_root_too() {
    if !possible("a_files_mode_applies_to_root_too") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    for script in [format!("echo 1 > {DEVICE}/state"), format!("cat {DRIVER}/bind"), format!("echo > {DEVICE}/new")] {
        let errors = complains(&tree, &script);
        assert!(errors.contains("ermission denied"), "{script}: {errors}");
    }
    for script in [format!("mkdir {DEVICE}/new"), format!("rm -f {DEVICE}/state"), format!("ln -s a {DEVICE}/b")] {
        let errors = complains(&tree, &script);
        assert!(errors.contains("not permitted"), "{script}: {errors}");
    }
    assert!(complains(&tree, "mkdir /sys/bus/new").contains("Read-only"));
    // Mode and owner can be changed, so that other users get access.
    let script = format!("chmod 640 {DEVICE}/state && stat -c %a {DEVICE}/state && touch {DEVICE}/state");
    assert_eq!(says(&tree, &script), "640\n");
}

#[test]
fn nodes_come_and_go_with_their_queue() {
    if !possible("nodes_come_and_go_with_their_queue") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    let script = format!(
        "look() {{ ls /dev/dsa; ls /dev/char | grep 240; cat {DEVICE}/state; }}
        look; echo wq0.0 > {DRIVER}/bind; look; realpath /dev/char/240:0; stat -c '%F %a %U' /dev/dsa/wq0.0
        cd /dev/dsa; ls; echo wq0.0 > {DRIVER}/unbind; ls; look"
    );
    let user = Command::new("id").arg("-un").output().unwrap().stdout;
    let expected = format!(
        "disabled\nwq0.0\n240:0\nenabled\n/dev/dsa/wq0.0\nregular file 600 {}wq0.0\ndisabled\n",
        String::from_utf8(user).unwrap()
    );
    assert_eq!(says(&tree, &script), expected);
}

#[test]
fn an_open_attribute_shows_a_new_value_when_it_is_rewound() {
    if !possible("an_open_attribute_shows_a_new_value_when_it_is_rewound") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    // A shell's `read` reads single bytes, or a block and seeks back: both read one value.
    let script = format!(
        "exec 3< {DEVICE}/counter; read a <&3; read b <&3; exec 3< {DEVICE}/counter; read c <&3; echo $a $b $c"
    );
    assert_eq!(says(&tree, &script), "1 2\n", "the end of the first value is the end");
    // Longer than a page, which sysfs would not allow.
    assert_eq!(says(&tree, "grep -c movdir64b /proc/cpuinfo"), "300\n");
    let script = "cd /sys/bus/pci/devices/0000:6a:01.0; printf ab | dd of=config bs=1 seek=254 conv=notrunc status=none
        tail -c 3 config | od -An -tx1; wc -c < config; stat -c %s config";
    assert_eq!(says(&tree, script), " a5 61 62\n256\n256\n");
    let script = "cd /sys/bus/pci/devices/0000:6a:01.0; printf a | dd of=config bs=1 seek=256 conv=notrunc status=none";
    assert!(complains(&tree, script).contains("too large"));
}

#[test]
fn shared_memory_and_terminals_are_real() {
    if !possible("shared_memory_and_terminals_are_real") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    let name = format!("telpher-test-{}", std::process::id());
    let outside = Path::new("/dev/shm").join(&name);
    assert_eq!(says(&tree, &format!("echo inside > /dev/shm/{name}; stat -f -c %T /dev/shm")), "tmpfs\n");
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "inside\n");
    std::fs::remove_file(outside).unwrap();
    let same = "stat -c '%d:%i' /dev/pts /dev/shm /dev/ptmx /sys/fs/cgroup /dev/null; ls /sys/fs/cgroup; cat \
                /proc/self/cgroup";
    let outside = Command::new("sh").args(["-c", same]).output().unwrap();
    assert_eq!(says(&tree, same), String::from_utf8(outside.stdout).unwrap());
}

#[test]
fn nothing_is_seen_outside_or_left_behind() {
    if !possible("nothing_is_seen_outside_or_left_behind") {
        return;
    }
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = (mounts(), machine("/dev"), machine("/sys/bus"));
    let tree = Arc::new(FakeDriver::default());
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; exec sleep 1000"]).stdout(Stdio::piped());
    let (mut child, running) = start(&tree, command);
    assert_eq!(line(&mut BufReader::new(child.stdout.take().unwrap())), "ready\n");
    assert_eq!((mounts(), machine("/dev"), machine("/sys/bus")), before, "while it runs");
    child.kill().unwrap();
    child.wait().unwrap();
    running.join();
    assert_eq!((mounts(), machine("/dev"), machine("/sys/bus")), before, "after it was killed");
    let open = Command::new("ls").arg("/proc/self/fd").output().unwrap().stdout;
    assert_eq!(says(&tree, "ls /proc/self/fd"), String::from_utf8(open).unwrap(), "no descriptor of ours");
}

#[test]
fn a_view_within_a_view_shows_the_inner_device() {
    let test = "a_view_within_a_view_shows_the_inner_device";
    let script =
        format!("ls /dev/dsa /dev/char; echo wq0.0 > {DRIVER}/bind; cat {DEVICE}/state; ls /dev/null /dev/dsa");
    let says_so = "enabled\n/dev/null\n\n/dev/dsa:\nwq0.0\n";
    if role().is_some() {
        let outer = std::fs::read_to_string(format!("{DEVICE}/counter")).unwrap();
        assert_eq!(outer, "1\n");
        let output = says(&Arc::new(FakeDriver::default()), &script);
        assert!(output.ends_with(says_so), "{output}");
        assert_eq!(std::fs::read_to_string(format!("{DEVICE}/counter")).unwrap(), "2\n");
        assert_eq!(std::fs::read_to_string(format!("{DEVICE}/state")).unwrap(), "disabled\n");
        return;
    }
    if !possible(test) {
        return;
    }
    let mut command = again(test, "inner");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (child, running) = start(&Arc::new(FakeDriver::default()), command);
    let output = child.wait_with_output().unwrap();
    running.join();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_killed_process_releases_its_queue() {
    if !possible("a_killed_process_releases_its_queue") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    let mut command = Command::new("sh");
    let script = format!("echo wq0.0 > {DRIVER}/bind; exec 3<> /dev/dsa/wq0.0; echo open; exec sleep 1000");
    command.args(["-c", &script]).stdout(Stdio::piped());
    let (mut child, running) = start(&tree, command);
    assert_eq!(line(&mut BufReader::new(child.stdout.take().unwrap())), "open\n");
    assert_eq!(tree.open_files(), 1);
    child.kill().unwrap();
    tree.wait_for_no_open_files();
    child.wait().unwrap();
    running.join();
}

#[test]
fn a_slow_write_delays_no_other_request() {
    if !possible("a_slow_write_delays_no_other_request") {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    // The first writer returns only because the second writer and the readers in between were served.
    let script = format!(
        "echo 1 > {DEVICE}/slow & while [ $(cat {DEVICE}/waiting) = 0 ]; do :; done
        cat {DEVICE}/state; echo a > {DEVICE}/wq0.0/name; cat {DEVICE}/wq0.0/name; echo 1 > {DEVICE}/go; wait; cat \
        {DEVICE}/waiting"
    );
    assert_eq!(says(&tree, &script), "disabled\na\n0\n");
}

/// The real driver, with one unconfigured device.
fn driver() -> Arc<Host> {
    let kernel = Kernel::new(&Hardware::default(), Abi::default(), false).unwrap();
    let name = format!("telpher-test-{}-{:?}", std::process::id(), std::thread::current().id());
    Host::new(kernel, Behaviour { strict: true, ..Behaviour::default() }, Arc::new(IgnoringListener), &name).unwrap()
}

/// A listener that ignores everything.
#[derive(Debug)]
struct IgnoringListener;

impl Listener for IgnoringListener {
    fn opened(&self, _: &FileInfo) {}
    fn entry(&self, _: &FileInfo, _: &TraceEntry) {}
    fn released(&self, _: &FileInfo, _: &Statistics) {}
}

/// A program built from a source file in this folder; removed when dropped.
struct Program(PathBuf);

impl Program {
    /// Builds it; reports a skip and returns `None` if there is no compiler.
    fn build(test: &str, compiler: &str, arguments: &[&str], (name, text): (&str, &str)) -> Option<Self> {
        if Command::new(compiler).arg("version").output().is_err() {
            crate::skip::skip(test, &format!("no {compiler}"));
            return None;
        }
        let program = Program(std::env::temp_dir().join(format!("telpher-{test}-{}", std::process::id())));
        std::fs::create_dir_all(&program.0).unwrap();
        std::fs::write(program.0.join(name), text).unwrap();
        let mut command = Command::new(compiler);
        command.args(arguments).args(["-o", "program", name]).current_dir(&program.0);
        command.env("CGO_ENABLED", "0");
        // Go needs a cache directory, and has none without a home directory.
        if std::env::home_dir().is_none() {
            command.env("GOCACHE", program.0.join("cache"));
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(program)
    }

    fn in_c(test: &str) -> Option<Self> {
        let arguments = ["-static", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"];
        Program::build(test, "cc", &arguments, ("static.c", include_str!("static.c")))
    }

    fn in_go(test: &str) -> Option<Self> {
        Program::build(test, "go", &["build"], ("configure.go", include_str!("configure.go")))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.0.join("program"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns its output; it must succeed.
    fn says(&self, tree: &Arc<Host>) -> String {
        let (child, running) = start(tree, self.command());
        let output = child.wait_with_output().unwrap();
        running.join();
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn a_static_program_configures_and_submits() {
    let test = "a_static_program_configures_and_submits";
    if !possible(test) {
        return;
    }
    let Some(program) = Program::in_c(test) else { return };
    let host = driver();
    program.says(&host);
    assert_eq!(host.show("/sys/bus/dsa/devices/wq0.0/clients"), Ok(b"0\n".to_vec()));
}

#[test]
fn a_go_program_configures_and_submits() {
    let test = "a_go_program_configures_and_submits";
    if !possible(test) {
        return;
    }
    let Some(program) = Program::in_go(test) else { return };
    assert_eq!(program.says(&driver()), "from Go enabled 64 1\n");
}

/// Starts a child that polls; returns once the child has announced it.
fn poller(program: &Program, tree: &Arc<Host>) -> (Child, Running) {
    let mut command = program.command();
    command.arg("wait").stdin(Stdio::piped());
    let (mut child, running) = start(tree, command);
    assert_eq!(line(&mut BufReader::new(child.stdout.take().unwrap())), "waiting\n");
    (child, running)
}

#[test]
fn an_error_caused_by_a_write_wakes_pollers() {
    let test = "an_error_caused_by_a_write_wakes_pollers";
    if !possible(test) {
        return;
    }
    let Some(program) = Program::in_c(test) else { return };
    let (mut child, running) = poller(&program, &driver());
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    running.join();
}

#[test]
fn without_its_host_the_tree_answers_enotconn() {
    let test = "without_its_host_the_tree_answers_enotconn";
    if role().is_some() {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("cat {DEVICE}/state; read go; cat {DEVICE}/state 2>&1; ls /dev/null")]);
        let (mut child, _running) = start(&Arc::new(FakeDriver::default()), command);
        child.wait().unwrap();
        return;
    }
    if !possible(test) {
        return;
    }
    let mut host = again(test, "host").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(host.stdout.take().unwrap());
    // Kept open: wait() would close it otherwise.
    let mut input = host.stdin.take().unwrap();
    while line(&mut output) != "disabled\n" {}
    host.kill().unwrap();
    host.wait().unwrap();
    input.write_all(b"\n").unwrap();
    let complaint = line(&mut output);
    // ENOTCONN, or ECONNABORTED while the connection is being closed.
    assert!(complaint.contains("not connected") || complaint.contains("connection abort"), "{complaint}");
    assert_eq!(line(&mut output), "/dev/null\n", "what is the machine's stays");
    assert_eq!(line(&mut output), "", "and the program ends");
}

#[test]
fn a_user_without_privilege_has_the_same_view() {
    let test = "a_user_without_privilege_has_the_same_view";
    if role().is_none() && rustix::process::geteuid().is_root() {
        use std::os::unix::process::CommandExt;
        if !possible(test) {
            return;
        }
        // The unprivileged user `nobody`.
        let output = again(test, "user").uid(65534).gid(65534).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        // A skip in the child is a skip of this test.
        if let Some((_, reason)) = stderr.split_once(&format!("SKIPPED: {test}: ")) {
            return crate::skip::skip(test, reason.trim());
        }
        assert!(output.status.success(), "{}{stderr}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    if !possible(test) {
        return;
    }
    let user = rustix::process::geteuid().as_raw();
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let tree = Arc::new(FakeDriver::default());
    let script = format!(
        "id -u; id -g; stat -c %u {DEVICE}/state /dev/dsa; echo wq0.0 > {DRIVER}/bind; cat {DEVICE}/state
        : < /dev/dsa/wq0.0; echo lost > /dev/null; stat -c %t:%T /dev/null"
    );
    let group = rustix::process::getegid().as_raw();
    assert_eq!(says(&tree, &script), format!("{user}\n{group}\n{user}\n{user}\nenabled\n1:3\n"));
    for (directory, ours) in [("/sys/bus", "dsa"), ("/sys/module", "idxd")] {
        assert_eq!(says(&tree, &format!("LC_ALL=C ls -A {directory}")), with(machine(directory), &[ours]));
    }
    let denied = complains(&tree, "echo 1 > /sys/devices/system/cpu/cpu0/crash_notes; mount -t tmpfs x /tmp");
    assert!(denied.contains("ermi"), "the machine's files are no more open than before: {denied}");
    // The driver can access the memory of such a program.
    if let Some(program) = Program::in_c(test) {
        program.says(&driver());
    }
    assert_eq!(mounts(), before);
}

#[test]
fn other_users_get_what_the_modes_give_them() {
    let test = "other_users_get_what_the_modes_give_them";
    if !rustix::process::geteuid().is_root() {
        return crate::skip::skip(test, "becomes another user, which only root can");
    }
    if !possible(test) {
        return;
    }
    let tree = Arc::new(FakeDriver::default());
    let script = format!(
        "other() {{ setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"$1\" 2>&1; }}
        echo wq0.0 > {DRIVER}/bind; other 'cat {DEVICE}/state'
        other 'echo a > {DEVICE}/wq0.0/name' | grep -c denied; other ': < /dev/dsa/wq0.0' | grep -c denied
        chmod 666 /dev/dsa/wq0.0; other ': < /dev/dsa/wq0.0'
        echo wq0.0 > {DRIVER}/unbind; ls /dev/dsa/wq0.0 2> /dev/null; echo wq0.0 > {DRIVER}/bind; stat -c %a \
        /dev/dsa/wq0.0"
    );
    assert_eq!(says(&tree, &script), "enabled\n1\n1\n600\n");
}

#[test]
fn a_missing_program_leaves_no_view() {
    if !possible("a_missing_program_leaves_no_view") {
        return;
    }
    let (entrance, running) = prepare(Arc::new(FakeDriver::default()), Nodes::Writable).unwrap();
    let mut command = Command::new("/nowhere/telpher");
    entrance.install(&mut command);
    let error = command.spawn().unwrap_err();
    drop(command);
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    running.outcome().unwrap();
    running.join();
    // A command that is never spawned.
    let (entrance, running) = prepare(Arc::new(FakeDriver::default()), Nodes::Writable).unwrap();
    drop(entrance);
    assert!(matches!(running.outcome(), Err(NamespaceError::Vanished)));
    running.join();
}

#[test]
fn a_working_directory_that_changes_is_entered_again() {
    let test = "a_working_directory_that_changes_is_entered_again";
    if role().is_some() {
        std::env::set_current_dir("/sys/bus").unwrap();
        print!("{}", says(&Arc::new(FakeDriver::default()), "pwd; ls -d dsa"));
        return;
    }
    if !possible(test) {
        return;
    }
    let output = String::from_utf8(again(test, "elsewhere").output().unwrap().stdout).unwrap();
    assert!(output.contains("/sys/bus\ndsa\n"), "{output}");
}
