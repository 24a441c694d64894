//! Whole programs with the guest preloaded, on a host that consists of a directory tree and a table of texts.

mod host;

use host::Host;
use std::path::Path;
use std::sync::OnceLock;

const SIZE: &str = "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0/size";

/// Runs a case of the C program.
fn passes(case: &str) {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/client.c");
    let program = PROGRAM.get_or_init(|| host::compiled(&source, "guest-files-client"));
    let output = Host::new().command(program).arg(case).output().unwrap();
    assert!(output.status.success(), "{case}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn descriptors_of_attributes_are_read_written_duplicated_and_closed() {
    passes("descriptors");
}

#[test]
fn open_refuses_as_the_kernel_does_and_returns_the_lowest_number() {
    passes("flags");
}

#[test]
fn names_are_relative_to_descriptors_and_to_the_working_directory() {
    passes("relative");
}

#[test]
fn no_resolved_path_shows_the_run_directory() {
    passes("resolved");
}

#[test]
fn directories_are_listed_and_globs_match() {
    passes("listed");
}

#[test]
fn a_walk_visits_each_directory_once() {
    passes("walked");
}

#[test]
fn buffered_files_reach_the_driver_and_return_its_errors() {
    passes("streams");
}

#[test]
fn standard_output_can_be_an_attribute_and_be_restored() {
    passes("standard_output");
}

#[test]
fn nothing_is_created_or_removed_in_the_drivers_directories() {
    passes("refused");
}

#[test]
fn copies_inside_the_kernel_are_refused() {
    passes("copied");
}

#[test]
fn a_node_looks_like_a_character_device() {
    passes("node");
}

#[test]
fn descriptors_are_inherited_and_a_child_of_vfork_changes_nothing() {
    passes("inherited");
}

#[test]
fn shells_redirect_into_attributes_by_builtins_and_by_programs() {
    for shell in ["bash", "dash"] {
        let host = Host::new();
        let devices = "cd /sys/bus/dsa/devices/wq0.0 && pwd &&";
        for (script, text) in [
            ("echo 11 > size", "11\n"),
            ("/bin/echo 12 > size", "12\n"),
            ("exec 3>size; echo 13 >&3; exec 3>&-", "13\n"),
            ("(echo 14) > size", "14\n"),
            ("{ echo 15; } > size; true", "15\n"),
            ("printf 16 >> size", "16\n"),
            ("echo 17 | cat > size", "17\n"),
            ("echo 18 | tee size >/dev/null", "18\n"),
            ("echo 19 | dd of=size 2>/dev/null", "19\n"),
        ] {
            let output = host.says(
                shell,
                &format!("{devices} {script} && cat < size && read x < size && [ $x = $(cat size) ]; echo $?"),
            );
            assert_eq!(output, format!("/sys/bus/dsa/devices/wq0.0\n{text}0\n"), "{shell}: {script}");
            assert_eq!(host.text(SIZE), text);
        }
    }
}

#[test]
fn a_refused_write_is_an_error_of_the_program_that_wrote() {
    let host = Host::new();
    for (shell, script, said) in [
        ("bash", "echo bad > size", "write error: Invalid argument"),
        ("dash", "echo bad > size", "I/O error"),
        ("bash", "/bin/echo bad > size", "write error: Invalid argument"),
        ("bash", "echo 1 > state", "Permission denied"),
        ("bash", "echo 1 > nothing", "Permission denied"),
        ("bash", "cat occupancy", "Operation not supported"),
        ("bash", "sed -i s/0/1/ size", "Permission denied"),
        ("bash", "rm size", "Operation not permitted"),
    ] {
        let answer = host.says(shell, &format!("cd /sys/bus/dsa/devices/wq0.0; {script}; echo $?"));
        assert!(answer.contains(said) && !answer.starts_with("0\n"), "{script}: {answer}");
    }
    assert_eq!(host.text(SIZE), "0\n");
}

#[test]
fn file_utilities_see_the_tree() {
    let host = Host::new();
    for (script, said) in [
        ("ls /sys/bus/dsa/devices", "dsa0\nwq0.0\nwq0.1\n"),
        ("ls /sys/bus | grep dsa", "dsa\n"),
        ("ls -d /sys/bus/dsa/devices/wq*", "/sys/bus/dsa/devices/wq0.0\n/sys/bus/dsa/devices/wq0.1\n"),
        ("find /sys/bus/dsa/ -type f", "/sys/bus/dsa/drivers/idxd/bind\n"),
        ("cd /sys/devices && find . -path './pci0000:6a*' -name size | wc -l", "2\n"),
        ("cd /sys/bus/dsa && find -L devices -maxdepth 2 -name state -execdir cat {} + | sort -u", "disabled\n"),
        ("grep -rls disabled /sys/bus/dsa/devices/dsa0/ | wc -l", "3\n"),
        ("cp /sys/bus/dsa/devices/wq0.0/size $TMP && cat $TMP", "0\n"),
        ("sort -u /sys/bus/dsa/devices/*/size; wc -c < /sys/bus/dsa/devices/wq0.0/size", "0\n2\n"),
        ("readlink -f /sys/bus/dsa/devices/wq0.0/subsystem", "/sys/bus/dsa\n"),
        ("stat -c '%F %a %u %s %t:%T' /dev/dsa/wq0.0", "character special file 600 0 0 f0:0\n"),
        ("stat -c '%A %s %h' /sys/bus/dsa/devices/wq0.0/size", "-rw-r--r-- 4096 1\n"),
        (
            "test -c /dev/dsa/wq0.0 && test -d /sys/bus/dsa && test -w /sys/bus/dsa/drivers/idxd/bind && echo all",
            "all\n",
        ),
        ("cat /proc/cpuinfo", "flags\t\t: fpu movdir64b enqcmd waitpkg\n"),
        ("cd -P /sys/bus/dsa/devices/wq0.0/ && /bin/pwd", "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0/wq0.0\n"),
        ("df --output=fstype /sys/bus/dsa | tail -1", "sysfs\n"),
    ] {
        let temporary = format!("{}/guest-files-copy", env!("CARGO_TARGET_TMPDIR"));
        assert_eq!(host.says("bash", &format!("TMP={temporary}; {script}")), said, "{script}");
    }
}

#[test]
fn a_program_without_a_run_is_left_alone() {
    let host = Host::new();
    let mut command = host.command("ls");
    let output = command.env_remove(telpher_vdev_wire::settings::RUN).arg("/sys/bus").output().unwrap();
    assert!(output.status.success());
    assert!(!String::from_utf8(output.stdout).unwrap().lines().any(|name| name == "dsa"));
}
