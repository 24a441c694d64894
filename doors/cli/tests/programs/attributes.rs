//! Differences between kernels: which attributes exist, how they are written, and which values are refused.

use crate::harness::{Run, View, client, client_with, in_both_views, lacking};

fn ready(test: &str) -> bool {
    !lacking(test, &[("/usr/bin/python3", "python3-minimal")])
}

in_both_views! {
    fn each_kernel_has_its_attributes_and_formats(view: View) {
        if !ready("each_kernel_has_its_attributes_and_formats") {
            return;
        }
        let words = r"[0-9a-f]{8}(,[0-9a-f]{8}){7}";
        for (abi, lines) in [
            ("5.15", r"
                D/dsa0/max_tokens ? 96
                D/dsa0/token_limit ? 0
                D/dsa0/max_read_buffers ? ! ENOENT
                D/group0.0/tokens_allowed ? 96
                D/group0.0/read_buffers_allowed ? ! ENOENT
                D/wq0.0/enqcmds_retries ? ! ENOENT
                D/wq0.0/driver_name ? ! ENOENT
                D/dsa0/event_log_size ? ! ENOENT
                D/dsa0/op_cap ~ 0x1003f03ff 0 0 0
                ".to_owned()),
            ("6.1", format!(r"
                D/dsa0/max_read_buffers ? 96
                D/group0.0/read_buffers_allowed ? 96
                D/wq0.0/enqcmds_retries ? 32
                D/wq0.0/driver_name ? ! ENOENT
                D/wq0.0/prs_disable ? ! ENOENT
                D/dsa0/event_log_size ? ! ENOENT
                D/dsa0/op_cap ~ {words}
                D/dsa0/errors ~ 0x[0-9a-f]{{16}}( 0x[0-9a-f]{{16}}){{3}}
                ")),
            ("6.6", format!(r"
                D/dsa0/max_read_buffers ? 96
                D/wq0.0/enqcmds_retries ? 32
                D/wq0.0/driver_name ? ! ENOENT
                D/dsa0/op_cap ~ {words}
                D/dsa0/errors ~ {words}
                ")),
            ("6.12", format!(r"
                D/dsa0/max_read_buffers ? 96
                D/wq0.0/driver_name ?
                D/dsa0/op_cap ~ {words}
                D/dsa0/errors ~ {words}
                ")),
        ] {
            Run::new(view).with("--abi").with(abi).attributes(&lines);
        }
    }

    fn since_6_7_a_queue_names_its_driver(view: View) {
        if !ready("since_6_7_a_queue_names_its_driver") {
            return;
        }
        let queue = "
            D/engine0.0/group_id = 0
            D/wq0.0/group_id = 0
            D/wq0.0/mode = dedicated
            D/wq0.0/size = 16
            D/wq0.0/priority = 10
            D/wq0.0/type = user
            D/wq0.0/name = a
            R/idxd/bind = dsa0
        ";
        for abi in ["6.1", "6.6"] {
            Run::new(view).with("--abi").with(abi).attributes(&format!("{queue}\n R/user/bind = wq0.0\n"));
        }
        Run::new(view).with("--abi").with("6.12").attributes(&format!("{queue}
            R/user/bind = wq0.0 ! ENODEV
            D/dsa0/cmd_status ? 0x80200000
            D/wq0.0/driver_name = dmaengine
            R/user/bind = wq0.0 ! ENODEV
            D/wq0.0/driver_name = user
            R/user/bind = wq0.0
        "));
    }

    fn shared_queues_of_programs_need_enqcmd_which_5_15_lacks(view: View) {
        if !ready("shared_queues_of_programs_need_enqcmd_which_5_15_lacks") {
            return;
        }
        Run::new(view).with("--abi").with("5.15").attributes(
            "
            D/engine0.0/group_id = 0
            D/wq0.0/group_id = 0
            D/wq0.0/size = 16
            D/wq0.0/threshold = 15
            D/wq0.0/priority = 10
            D/wq0.0/type = user
            D/wq0.0/name = a
            R/idxd/bind = dsa0 ! ENXIO
            D/dsa0/cmd_status ? 0x800c0000
            ",
        );
    }

    fn without_rawio_mmap_is_refused_and_write_submits(view: View) {
        let Some(program) = client_with("submission", "submission", &[]) else { return };
        let says = |options: &[&str]| {
            let run = options.iter().fold(Run::on_two_queues(view), |run, option| run.with(option));
            run.success(&[&program])
        };
        let mapped = "mmap: ok\nMOVDIR64B: 0x1\n";
        let refused = "mmap: EPERM\n";
        // With the privilege, every kernel allows the mapping. sysfs still hides Batch if the device is not safe for
        // users.
        for abi in ["6.1", "6.6", "6.12"] {
            assert!(says(&["--abi", abi]).starts_with(mapped), "{abi}");
            assert!(says(&["--abi", abi, "--rawio"]).starts_with(mapped), "{abi}");
            let output = says(&["--abi", abi, "--no-rawio"]);
            assert!(output.starts_with(refused) && output.contains("write: 0x1\n"), "{abi}: {output}");
            assert!(output.contains("write of a batch: EINVAL\n"), "{abi}: {output}");
        }
    }
}

/// A client that works on every kernel: it maps the portal, and if that is refused, it submits by write().
#[test]
fn a_portable_client_works_on_every_kernel() {
    let Some(program) = client("submission") else { return };
    for abi in ["6.1", "6.6", "6.12"] {
        for rawio in ["--rawio", "--no-rawio"] {
            let output = Run::on_two_queues(View::Preload).with("--abi").with(abi).with(rawio).success(&[&program]);
            assert!(output.contains(": 0x1\n"), "{abi} {rawio}: {output}");
        }
    }
}
