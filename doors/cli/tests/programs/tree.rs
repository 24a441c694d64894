//! Shell, coreutils, find, Python and the PCI tools read and configure the device's tree.

use crate::harness::{Run, View, have, in_both_views, lacking, test_folder};
use std::path::Path;

in_both_views! {
    fn a_shell_lists_reads_and_follows_links(view: View) {
        let output = Run::new(view).shell(
            r#"
            cd /sys/bus/dsa/devices
            ls
            [ -L dsa0 ] && [ -d dsa0/ ] && [ -f dsa0/state ] && [ ! -e dsa1 ] || exit 3
            for f in wq0.*/mode; do read mode <$f; echo $f $mode; done
            cat dsa0/max_work_queues dsa0/max_engines dsa0/max_groups
            readlink dsa0 | sed 's/.*\(0000:..:..\..\)/\1/'
            cd dsa0/wq0.3 && cat ../state group_id && basename "$(pwd -P)"
            "#,
        );
        let lines: Vec<&str> = output.lines().collect();
        let names = ["dsa0", "engine0.0", "engine0.1", "engine0.2", "engine0.3", "group0.0", "group0.1", "group0.2",
            "group0.3", "wq0.0", "wq0.1", "wq0.2", "wq0.3", "wq0.4", "wq0.5", "wq0.6", "wq0.7"];
        assert_eq!(lines[..17], names, "{output}");
        assert_eq!(lines[17], "wq0.0/mode shared", "{output}");
        assert_eq!(lines[25..28], ["8", "4", "4"], "{output}");
        let address = lines[28].strip_suffix("/dsa0").expect("the link ends with the device");
        assert_eq!(address.len(), "0000:6a:01.0".len(), "{address}");
        assert_eq!(lines[29..], ["disabled", "-1", "wq0.3"], "{output}");
    }

    fn coreutils_and_find_treat_attributes_as_files(view: View) {
        let room = test_folder(&format!("coreutils-{}", view.name()));
        let output = Run::new(view).in_folder(&room).shell(
            r#"
            head -c 100 /sys/bus/dsa/devices/dsa0/version; tail -n 1 /sys/bus/dsa/devices/dsa0/version
            cp /sys/bus/dsa/devices/dsa0/gen_cap copy; cmp copy /sys/bus/dsa/devices/dsa0/gen_cap; wc -l <copy
            find /sys/bus/dsa/devices/ -maxdepth 1 -type l -name 'wq*' | wc -l
            find -L /sys/bus/dsa/devices/dsa0/ -maxdepth 2 -name group_id | wc -l
            find /sys/bus/dsa/devices/dsa0/ -type f -name state | wc -l
            grep -rl disabled /sys/bus/dsa/devices/dsa0/ --include=state | wc -l
            grep -s . /sys/bus/dsa/devices/wq0.0/mode /sys/bus/dsa/devices/wq0.0/type
            stat -c '%F %a' /sys/bus/dsa/devices/dsa0/version /sys/bus/dsa/devices/dsa0/cmd_status /sys/bus/dsa/drivers/idxd/bind
            realpath /sys/bus/dsa/devices/wq0.0 | sed 's/.*0000:..:..\..//'
            ls -d /sys/module/idxd /sys/bus/dsa/drivers/user
            sort <<END
$(ls /sys/bus/dsa/drivers)
END
            "#,
        );
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines[..3], ["0x100", "0x100", "1"], "{output}");
        assert_eq!(lines[3..7], ["8", "12", "9", "9"], "{output}");
        assert_eq!(lines[7], "/sys/bus/dsa/devices/wq0.0/mode:shared", "{output}");
        assert_eq!(lines[8], "/sys/bus/dsa/devices/wq0.0/type:none", "{output}");
        assert_eq!(lines[9..12], ["regular file 444", "regular file 644", "regular file 200"], "{output}");
        assert_eq!(lines[12], "/dsa0/wq0.0", "{output}");
        assert_eq!(lines[13..15], ["/sys/bus/dsa/drivers/user", "/sys/module/idxd"], "{output}");
        for driver in ["dmaengine", "idxd", "user"] {
            assert!(lines[15..].contains(&driver), "{driver} is missing: {output}");
        }
    }

    fn echo_configures_a_queue_and_a_device_is_bound(view: View) {
        let output = Run::new(view).shell(
            r#"
            D=/sys/bus/dsa/devices
            [ ! -e /dev/dsa/wq0.0 ]
            for e in 0 1 2 3; do echo 0 > $D/engine0.$e/group_id; done
            w=$D/wq0.0; echo 0 >$w/group_id; echo dedicated >$w/mode; echo 64 >$w/size; echo 10 >$w/priority
            echo 1 >$w/block_on_fault; echo user >$w/type; echo stream_lane >$w/name
            [ ! -e $w/driver_name ] || echo user >$w/driver_name
            echo 256 >$w/max_batch_size; echo 2147483648 >$w/max_transfer_size
            echo dsa0 >/sys/bus/dsa/drivers/idxd/bind; echo wq0.0 >/sys/bus/dsa/drivers/user/bind
            cat $D/dsa0/state $w/state $w/name $w/size $w/threshold $D/group0.0/engines $D/group0.0/work_queues
            ls /dev/dsa
            [ -e /dev/char/$(cat $D/dsa0/cdev_major):$(cat $w/cdev_minor) ]
            basename "$(readlink $w/driver)"; basename "$(realpath $D/dsa0/driver)"
            echo wq0.0 >$w/driver/unbind
            cat $w/state $w/mode $w/size $w/name; [ ! -e $w/driver ]; [ ! -e /dev/dsa/wq0.0 ]
            echo dsa0 >/sys/bus/dsa/drivers/idxd/unbind
            cat $D/dsa0/state $w/size $w/group_id
            "#,
        );
        let lines: Vec<&str> = output.lines().collect();
        let enabled =
            ["enabled", "enabled", "stream_lane", "64", "0", "engine0.0 engine0.1 engine0.2 engine0.3", "wq0.0"];
        assert_eq!(lines[..7], enabled, "{output}");
        assert_eq!(lines[7..10], ["wq0.0", "user", "idxd"], "{output}");
        // Unbinding resets attributes: the queue loses its mode and name, the device its whole configuration.
        assert_eq!(lines[10..14], ["disabled", "shared", "64", ""], "{output}");
        assert_eq!(lines[14..], ["disabled", "0", "-1"], "{output}");
    }

    fn a_refused_echo_fails_with_the_reason(view: View) {
        let done = Run::new(view).program(&["/bin/sh", "-c", "echo 999 >/sys/bus/dsa/devices/wq0.0/size"]);
        assert_ne!(done.code(), 0, "{done}");
        let done = Run::new(view).program(&["/bin/bash", "-c", "echo 999 >/sys/bus/dsa/devices/wq0.0/size"]);
        assert_ne!(done.code(), 0, "{done}");
        assert!(done.stderr.contains("Invalid argument"), "{done}");
        let done = Run::new(view).program(&["/bin/bash", "-c", "printf shred | tee /sys/bus/dsa/devices/wq0.0/mode"]);
        assert!(done.stderr.contains("Invalid argument"), "{done}");
        // No file can be created, not even by root, as in the kernel's tree.
        let done = Run::new(view).program(&["/bin/bash", "-c", ": >/sys/bus/dsa/devices/nothing"]);
        assert_ne!(done.code(), 0, "{done}");
    }

    fn python_walks_and_writes_the_tree(view: View) {
        if lacking("python_walks_and_writes_the_tree", &[("/usr/bin/python3", "python3-minimal")]) {
            return;
        }
        let program = r#"
import glob, os, pathlib, stat
d = "/sys/bus/dsa/devices"
assert sorted(os.listdir(d))[0] == "dsa0" and len(glob.glob(d + "/wq0.*")) == 8
assert all(entry.is_symlink() for entry in os.scandir(d))
real = os.path.realpath(d + "/dsa0")
assert os.path.relpath(os.readlink(d + "/dsa0"), start=".").endswith("dsa0") and real.startswith("/sys/devices/pci"), real
found = [os.path.join(base, f) for base, _, files in os.walk(real) for f in files]
assert sum(f.endswith("/group_id") for f in found) == 12, found
for f in found:
    mode = os.stat(f).st_mode
    assert stat.S_ISREG(mode), f
    if mode & 0o400 and f.split("/")[-1] != "occupancy":
        try:
            text = pathlib.Path(f).read_text()
        except OSError as error:
            assert f.endswith(("cdev_minor", "enqcmds_retries", "event_log_size", "autosuspend_delay_ms")), (f, error)
        else:
            assert text.endswith("\n") or not text or f.endswith("/config"), f
wq = pathlib.Path(d, "wq0.5")
for name, value in {"mode": "dedicated", "size": 7, "priority": 3, "type": "user", "name": "py"}.items():
    (wq / name).write_text(f"{value}\n")
    assert (wq / name).read_text() == f"{value}\n", name
with open(wq / "mode", "r+") as file:
    assert file.read() == "dedicated\n"
try:
    (wq / "priority").write_text("16")
except OSError as error:
    assert error.strerror == "Invalid argument", error
else:
    raise AssertionError("priority 16")
print(len(found) > 100)
"#;
        assert_eq!(Run::new(view).success(&["/usr/bin/python3", "-c", program]), "True\n");
    }

    fn pci_tools_find_the_device_among_the_machines_own(view: View) {
        if lacking(
            "pci_tools_find_the_device_among_the_machines_own",
            &[("lspci", "pciutils"), ("setpci", "pciutils")],
        ) {
            return;
        }
        let output = Run::new(view).shell(
            "lspci -n -d 8086:0b25; lspci -n | wc -l; lspci -k -d 8086:0b25 | grep -c 'in use: idxd'",
        );
        let own = std::fs::read_dir("/sys/bus/pci/devices").map_or(0, |entries| entries.count());
        let lines: Vec<&str> = output.lines().collect();
        assert!(lines[0].contains("0880: 8086:0b25"), "{output}");
        assert_eq!(lines[1], (own + 1).to_string(), "{output}");
        assert_eq!(lines[2], "1", "{output}");
        // The TPH control word: with bits 8 and 1 set, clients need not write it.
        let output = Run::new(view).shell(
            "setpci -d 8086:0b25 VENDOR_ID DEVICE_ID 168.L; setpci -d 8086:0b25 168.L=102; setpci -d 8086:0b25 168.L; \
             lspci -xxxx -d 8086:0b25 | wc -l",
        );
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines[..2], ["8086", "0b25"], "{output}");
        let word = u32::from_str_radix(lines[3], 16).expect("a hexadecimal word");
        assert_eq!(word & 0x102, 0x102, "{output}");
        assert!(lines[4].parse::<u32>().expect("a number") >= 256, "4096 bytes of configuration space: {output}");
    }

    fn all_other_files_of_the_machine_are_unchanged(view: View) {
        let script = "ls /sys/devices/system/node /sys/bus; ls -d /sys/class/net/*; cat /sys/devices/system/cpu/online; \
                      ls /dev | grep -v -x -e char -e dsa; [ -c /dev/null ]; echo x >/dev/null; \
                      head -c 4 /dev/zero | wc -c; cat /proc/self/comm";
        let inside = Run::new(view).shell(script);
        let outside = std::process::Command::new("/bin/sh").args(["-ec", script]).output().expect("a shell");
        let outside = String::from_utf8_lossy(&outside.stdout);
        let added: Vec<&str> = inside.lines().filter(|line| !outside.lines().any(|other| other == *line)).collect();
        let gone: Vec<&str> = outside.lines().filter(|line| !inside.lines().any(|other| other == *line)).collect();
        assert!(added.iter().all(|line| *line == "dsa") && gone.is_empty(), "added {added:?}, gone {gone:?}");
    }
}

/// The device exists only inside the run.
#[test]
fn no_device_exists_outside_a_run() {
    assert!(have("ls"), "coreutils are essential");
    Run::new(View::Preload).success(&["ls", "/sys/bus/dsa/devices"]);
    if Path::new("/sys/bus/dsa").exists() {
        return crate::skip::skip("no_device_exists_outside_a_run", "this machine has a DSA of its own");
    }
    assert!(!Path::new("/dev/dsa").exists() && !Path::new("/sys/module/idxd").exists());
}
