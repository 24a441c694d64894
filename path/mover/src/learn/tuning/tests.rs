use super::*;
use crate::wait::Wait;
use std::fs;

fn machine() -> TunedMachine {
    TunedMachine {
        cpu: "A \"CPU\" of \\ sorts\n\u{7f}".into(),
        device: "model:spr".into(),
        in_flight: 1,
        date: "2026-11-21 20:30".into(),
        telpher: "0.1.0".into(),
    }
}

fn point(op: Opcode, bytes: u64, cpu: u64, device: u64) -> Measured {
    Measured { op, bytes, cpu: Duration::from_nanos(cpu), device: Duration::from_nanos(device) }
}

const FILE: &str = "version = 1\n[machine]\ncpu = \"x\"\ndevice = \"cpu\"\nin-flight = 1\n";

#[test]
fn a_tuning_reads_what_it_writes_for_any_machine_name() {
    let measured = vec![
        point(Opcode::Fill, 4096, 100, 900),
        point(Opcode::MemoryMove, 1 << 20, 90_000, 30_000),
        point(Opcode::MemoryMove, 4096, 300, 1000),
    ];
    let mut tuning = Tuning::new(machine(), measured);
    tuning.policy.wait = Wait::Spin;
    tuning.messages.eager_bytes = Some(16 << 10);
    tuning.messages.pull_bytes = Some(u64::MAX);
    let mut variants = Variants::current();
    variants.set("guard-prefetch", "1024").unwrap();
    tuning.kernels = Some(variants);
    let read = Tuning::parse(&tuning.to_toml()).unwrap();
    assert_eq!(read, tuning, "{}", tuning.to_toml());
    assert_eq!(read.policy().threshold.of(Opcode::MemoryMove), 1 << 20);
    assert_eq!(read.policy().threshold.of(Opcode::Fill), u64::MAX);
    assert_eq!(read.policy().threshold.of(Opcode::Compare), crate::DEFAULT_THRESHOLD);
    assert_eq!(read.measured[0].bytes, 4096, "ascending");
}

#[test]
fn the_threshold_has_the_lowest_cost_over_all_sizes() {
    let threshold = |points: &[[u64; 3]]| {
        let points = points.iter().map(|&[bytes, cpu, device]| point(Opcode::MemoryMove, bytes, cpu, device));
        Tuning::new(machine(), points.collect()).policy().threshold.of(Opcode::MemoryMove)
    };
    assert_eq!(threshold(&[[1, 10, 100], [2, 20, 100], [4, 200, 100], [8, 400, 100]]), 4);
    assert_eq!(threshold(&[[1, 10, 5], [2, 20, 5]]), 1);
    assert_eq!(threshold(&[[1, 5, 10], [2, 5, 10]]), u64::MAX);
    // One unlucky point does not change the decision for larger points.
    assert_eq!(threshold(&[[1, 10, 100], [2, 200, 100], [4, 400, 500], [8, 800, 100], [16, 900, 100]]), 2);
    // Equal is not better.
    assert_eq!(threshold(&[[1, 10, 10], [2, 20, 20]]), u64::MAX);
}

#[test]
fn variants_of_kernels_are_read_by_name_and_wrong_ones_are_refused() {
    let read = |text: &str| Tuning::parse(&format!("{FILE}[kernels]\n{text}\n"));
    let kernels = read("compare = \"32\"").unwrap().kernels.unwrap();
    assert_eq!(kernels.values()[1], ("compare", "32".into()));
    assert_eq!(Tuning::parse(FILE).unwrap().kernels, None);
    let refused = read("compare = \"48\"").unwrap_err();
    assert!(matches!(refused, TuningError::Kernels(_)), "{refused}");
    assert!(std::error::Error::source(&refused).unwrap().to_string().contains("32 or 64"));
}

#[test]
fn an_edited_file_needs_only_the_machine_section() {
    assert_eq!(Tuning::parse(FILE).unwrap().policy(), Policy::default());
    let edited = format!("{FILE}[policy]\nthreshold = \"never\"\nwait = \"spin\"\n");
    let policy = Tuning::parse(&edited).unwrap().policy();
    assert_eq!((policy.threshold, policy.wait), (Threshold::CPU, Wait::Spin));
}

#[test]
fn every_error_names_what_is_wrong() {
    for (text, expected) in [
        ("", "missing field `version`"),
        ("version = 2\nfuture = 3\n", "has version 2, and this telpher reads version 1"),
        ("version = \"1\"", "expected i64"),
        (&FILE.replace("cpu =", "cup ="), "unknown field `cup`"),
        (&format!("{FILE}[thresholds]\ncopy = 3\n"), "unknown field `thresholds`"),
        (&format!("{FILE}[policy]\nwait = \"sip\"\n"), "under [policy]: 'wait' does not take 'sip'"),
        (&format!("{FILE}[policy]\nwiat = \"spin\"\n"), "there is no setting 'wiat'"),
        (&format!("{FILE}[policy]\nwait = 3\n"), "invalid type: integer `3`, expected a string"),
        (
            &format!("{FILE}[measured]\nsort = [[1, 2, 3]]\n"),
            "sort: there is no such operation; the operations are memory-move",
        ),
        (&format!("{FILE}[measured]\nfill = [[0, 2, 3]]\n"), "a transfer of 0 bytes"),
        (&format!("{FILE}[measured]\nfill = [[1, 0, 3]]\n"), "0 ns for 1 bytes"),
        (&format!("{FILE}[measured]\nfill = [[1, 3, 9000000000000000000]]\n"), "9000000000000000000 ns for 1 bytes"),
        (&format!("{FILE}[measured]\nfill = [[1, 2, -3]]\n"), "invalid value: integer `-3`"),
        (&format!("{FILE}[measured]\nfill = [[1, 2]]\n"), "invalid length 2"),
        (&format!("{FILE}[measured]\nfill = [[8, 2, 3], [9, 2, 3], [8, 3, 4]]\n"), "fill: 8 bytes appears twice"),
        (&format!("{FILE}[messages]\neager = 3\n"), "unknown field `eager`"),
        (&format!("{FILE}[messages]\neager-bytes = 4096\n"), "eager-bytes: 4096 bytes; it is from 8192 to 65536"),
        (&format!("{FILE}[messages]\neager-bytes = \"off\"\n"), "eager-bytes: 18446744073709551615 bytes"),
        (&format!("{FILE}[messages]\npull-bytes = \"on\"\n"), "pull-bytes: 'on' is neither"),
        ("version = 1\n[machine\n", "line 2"),
    ] {
        let error = Tuning::parse(text).unwrap_err();
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        assert!(message.contains(expected), "{text:?}\nmessage: {message}\nexpected: {expected}");
    }
}

/// Creates a directory for one test.
fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("telpher-tuning-{}-{name}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_file_is_replaced_as_a_whole_and_leaves_no_temporary_file() {
    let directory = directory("whole");
    let path = directory.join("tuning.toml");
    let tuning = Tuning::new(machine(), vec![point(Opcode::Fill, 64, 1, 2)]);
    fs::write(&path, "something older and very much longer than a tuning".repeat(1000)).unwrap();
    tuning.save(&path).unwrap();
    assert_eq!(Tuning::load(&path).unwrap(), tuning);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_file_that_cannot_be_written_or_read_is_named_in_the_error() {
    let directory = directory("refused");
    let tuning = Tuning::new(machine(), Vec::new());
    let nowhere = directory.join("missing").join("tuning.toml");
    for (result, expected) in [
        (tuning.save(&nowhere), "cannot write the tuning file"),
        (Tuning::load(&nowhere).map(drop), "cannot read the tuning file"),
        // A directory has this name.
        (tuning.save(&directory), "cannot write the tuning file"),
    ] {
        assert!(result.unwrap_err().to_string().starts_with(expected));
    }
    assert!(
        fs::read_dir(directory.parent().unwrap()).unwrap().flatten().all(|entry| {
            !entry.file_name().to_string_lossy().contains(&format!("{}-refused.", std::process::id()))
        })
    );
    let long = directory.join("long");
    fs::write(&long, "# ".repeat(usize::try_from(MOST_BYTES).unwrap())).unwrap();
    assert!(Tuning::load(&long).unwrap_err().to_string().contains("longer than"));
    fs::remove_dir_all(directory).unwrap();
}
