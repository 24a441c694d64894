//! `--inject`: faults that only a model can produce on demand.

use crate::harness::{Done, Run, View, client, in_both_views, test_folder};

/// Runs `injected.c` with an injection.
fn injected(view: View, what: &str, args: &[&str], more: &[&str]) -> Option<Done> {
    let program = client("injected")?;
    let run = more.iter().fold(Run::on_two_queues(view).with("--inject").with(what), |run, option| run.with(option));
    let mut words = vec![program.into_os_string()];
    words.extend(args.iter().map(Into::into));
    let done = run.program(&words);
    done.expect_success();
    Some(done)
}

/// Returns the number after a name in the client's output.
fn number(done: &Done, name: &str) -> u64 {
    let line = done.stdout.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name}: {done}"))
}

in_both_views! {
    fn faults_occur_at_their_rate_and_repeat_with_the_same_seed(view: View) {
        let ends =
            |spec: &str| injected(view, spec, &["copies"], &[]).map(|done| (number(&done, "faulted"), done.stdout));
        let (Some(first), Some(again)) = (ends("fault=10%,seed=7"), ends("fault=10%,seed=7")) else { return };
        assert_eq!(first, again);
        // 1000 copies of one page: the rate applies to each page that a copy touches.
        assert!((50..400).contains(&first.0), "{} of 1000", first.0);
        let other = ends("fault=10%,seed=8").expect("there was a compiler");
        assert_ne!(first.1, other.1, "another seed faults elsewhere");
        assert_eq!(ends("fault=0,seed=7").expect("there was a compiler").0, 0);
    }

    fn retries_occur_in_bursts_and_end(view: View) {
        let Some(done) = injected(view, "retry=20%/burst:50,seed=1", &["shared"], &[]) else { return };
        assert!(number(&done, "retries") > 1000, "{done}");
        assert_eq!(number(&done, "succeeded"), 1000, "{done}");
    }

    fn a_chosen_status_ends_the_chosen_operation(view: View) {
        let Some(done) = injected(view, "status=0x13@memory-move:50%,seed=3", &["copies"], &[]) else { return };
        let (good, bad) = (number(&done, "succeeded"), number(&done, "status 0x13"));
        assert!(good > 300 && bad > 300 && good + bad == 1000, "{done}");
        assert_eq!(number(&done, "no-ops"), 1000, "others are left alone: {done}");
    }

    fn completions_can_be_delayed_and_reordered(view: View) {
        let Some(done) = injected(view, "delay=5ms:100%", &["late"], &[]) else { return };
        assert!(number(&done, "microseconds") >= 5000, "{done}");
        let Some(done) = injected(view, "reorder=50%,seed=5", &["pairs"], &[]) else { return };
        assert!((100..=500).contains(&number(&done, "held")), "{done}");
        assert_eq!(injected(view, "seed=5", &["pairs"], &[]).map(|done| number(&done, "held")), Some(0));
        assert_eq!(number(&done, "succeeded"), 1000, "{done}");
    }

    fn a_record_may_never_be_written(view: View) {
        let Some(done) = injected(view, "lose=100%,op=memory-move", &["lost"], &[]) else { return };
        assert_eq!(done.stdout, "the bytes came, the record did not\n");
    }

    fn a_halted_device_is_reported_by_the_driver(view: View) {
        let Some(done) = injected(view, "halt=100", &["halts"], &[]) else { return };
        assert!((90..100).contains(&number(&done, "succeeded")), "{done}");
        assert!(number(&done, "halted") == 1, "{done}");
    }

    fn injected_faults_are_in_the_trace(view: View) {
        let trace = test_folder(&format!("inject-{}", view.name())).join("trace");
        let path = trace.to_str().expect("UTF-8");
        let more = ["--trace", path, "--summary"];
        let Some(done) = injected(view, "fault=10%,seed=7", &["copies"], &more) else { return };
        let lines = std::fs::read_to_string(&trace).expect("a trace");
        let faults = lines.lines().filter(|line| line.contains("fault") && line.contains("memory-move")).count() as u64;
        assert!(faults >= number(&done, "faulted"), "{faults} in the trace: {done}");
    }
}

#[test]
fn an_invalid_injection_describes_the_valid_ones() {
    for (spec, words) in [("fualt=1", "fault"), ("fault=2", "rate"), ("delay=5", "time"), ("status=nothing", "status")]
    {
        let done = Run::new(View::Preload).with("--inject").with(spec).program(&["true"]);
        assert_ne!(done.code(), 0, "{spec}: {done}");
        assert!(done.stderr.lines().count() == 1 && done.stderr.contains(words), "{spec}: {done}");
    }
}
