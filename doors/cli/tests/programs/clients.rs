//! Our own clients in C, one for each property; see the comment at the head of each source.

use crate::harness::{Run, View, client, client_with, have, in_both_views};
use crate::skip::skip;

/// Runs a client on the two queues; false if it could not be built.
fn passes(view: View, name: &str, args: &[&str], options: &[&str]) -> bool {
    let Some(program) = client(name) else { return false };
    let run = options.iter().fold(Run::on_two_queues(view), |run, option| run.with(option));
    let mut words = vec![program.into_os_string()];
    words.extend(args.iter().map(Into::into));
    run.program(&words).expect_success();
    true
}

in_both_views! {
    fn every_operand_form_submits(view: View) {
        passes(view, "operands", &[], &[]);
    }

    fn every_operand_form_submits_without_rewriting(view: View) {
        passes(view, "operands", &[], &["--no-rewrite"]);
    }

    fn every_slot_of_a_portal_submits_also_after_close(view: View) {
        passes(view, "rotating", &[], &[]);
    }

    fn monitor_wait_and_pause_return_in_all_their_forms(view: View) {
        passes(view, "waits", &[], &[]);
    }

    fn a_record_of_an_engine_thread_ends_a_wait(view: View) {
        passes(view, "waits", &[], &["--runner", "threaded"]);
    }

    fn write_submits_and_refuses_as_the_kernel_does(view: View) {
        // Batches by write() are refused, because the device is not safe for users.
        passes(view, "by_write", &[], &["--abi", "6.12"]);
        passes(view, "by_write", &[], &["--abi", "6.12", "--no-rawio"]);
    }

    fn absent_pages_end_operations_with_the_exact_bytes_completed(view: View) {
        passes(view, "holes", &[], &[]);
        passes(view, "holes", &[], &["--runner", "threaded"]);
    }

    fn lenient_residency_brings_absent_pages_in(view: View) {
        passes(view, "holes", &["lenient"], &["--residency", "lenient"]);
    }

    fn children_of_a_batch_may_use_own_and_earlier_records(view: View) {
        passes(view, "batches", &[], &[]);
        passes(view, "batches", &[], &["--runner", "threaded"]);
    }

    fn a_forked_child_has_no_portal_and_opens_its_own(view: View) {
        passes(view, "forked", &[], &[]);
        passes(view, "forked", &[], &["--runner", "threaded"]);
    }

    fn handlers_and_masks_are_the_programs_own(view: View) {
        passes(view, "handlers", &[], &[]);
    }

    fn handlers_and_masks_are_the_programs_own_without_rewriting(view: View) {
        passes(view, "handlers", &[], &["--no-rewrite"]);
    }

    fn processes_share_a_queue_each_with_its_own_memory(view: View) {
        passes(view, "processes", &[], &[]);
        passes(view, "processes", &[], &["--runner", "threaded"]);
    }

    fn a_dedicated_queue_is_busy_until_its_last_reference_is_closed(view: View) {
        passes(view, "busy", &[], &[]);
    }

    fn exec_keeps_the_file_and_unmaps_the_portal(view: View) {
        passes(view, "executed", &[], &[]);
    }

    fn threads_may_use_a_site_while_it_is_rewritten(view: View) {
        passes(view, "threads", &[], &[]);
        passes(view, "threads", &[], &["--runner", "threaded"]);
    }

    fn random_submissions_harm_no_other_process(view: View) {
        for seed in ["1", "2", "3"] {
            passes(view, "hostile", &[seed], &[]);
        }
        passes(view, "hostile", &["4"], &["--runner", "threaded"]);
    }

    fn a_program_may_interpose_memory_functions_and_malloc_itself(view: View) {
        passes(view, "interposer", &[], &[]);
    }

    fn nodes_can_be_opened_by_their_other_names(view: View) {
        passes(view, "nodes", &[], &[]);
    }

    fn a_library_loaded_late_sees_the_device(view: View) {
        for name in ["libaccel-config.so.1", "libaccel-config.so"] {
            let file = format!("/usr/lib/x86_64-linux-gnu/{name}");
            if std::path::Path::new(&file).exists() {
                passes(view, "late", &[name], &[]);
            } else {
                let package = if name.ends_with(".1") { "libaccel-config1" } else { "libaccel-config-dev" };
                skip("a_library_loaded_late_sees_the_device", &format!("no {name} (Debian package {package})"));
            }
        }
    }

    fn a_store_of_64_bytes_to_the_portal_submits(view: View) {
        let Some(program) = client("avx512") else { return };
        let done = Run::on_two_queues(view).program(&[program]);
        if done.code() == 77 {
            return skip("a_store_of_64_bytes_to_the_portal_submits", "the CPU has no AVX-512");
        }
        done.expect_success();
    }
}

/// Without optimisation the compiler emits other code around the instructions, and spills more registers.
#[test]
fn an_unoptimised_client_passes_as_well() {
    let Some(program) = client_with("rotating", "rotating-O0", &["-O0"]) else { return };
    Run::on_two_queues(View::Preload).program(&[program]).expect_success();
}

/// The run works whatever argv[0] is, and through a shell.
#[test]
fn the_environment_passes_through_shells_env_and_timeout() {
    let Some(program) = client("rotating") else { return };
    let script =
        format!("exec env SOME=thing timeout 30 bash -c 'exec -a other \"{0}\" || \"{0}\"'", program.display());
    Run::on_two_queues(View::Preload).program(&["sh", "-c", &script]).expect_success();
}

/// CPUID cannot be emulated, so a program that asks finds a variable and /proc/cpuinfo.
#[test]
fn programs_can_learn_which_instructions_are_emulated() {
    for view in [View::Preload, View::Namespace] {
        if let Some(reason) = view.missing() {
            skip("programs_can_learn_which_instructions_are_emulated (namespace)", reason);
            continue;
        }
        let script = "echo $TELPHER_INSTRUCTIONS; grep -c -w -E 'movdir64b.*enqcmd|enqcmd.*movdir64b' /proc/cpuinfo; \
                      grep -c -w waitpkg /proc/cpuinfo; grep -c ^processor /proc/cpuinfo";
        let output = Run::new(view).shell(script);
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines[0], "movdir64b enqcmd waitpkg");
        assert!(lines[1] == lines[3] && lines[2] == lines[3], "some processor lacks the flags: {output}");
    }
    assert!(have("grep"), "grep is essential on Debian");
}
