//! Exit codes of every command, as a script sees them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder for files of these tests.
fn test_folder() -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exit_codes");
    std::fs::create_dir_all(&room).expect("a folder for what the tests write");
    room
}

/// Runs telpher with these arguments; returns the exit code and standard error.
fn ended(words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    let output = command.args(words).current_dir(test_folder()).output().expect("the binary runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Command lines and their exit codes.
const CASES: &[(&str, i32)] = &[
    ("--help", 0),
    ("--version", 0),
    ("", 2),
    ("bnech", 2),
    ("--bench", 2),
    // Unknown options.
    ("advise --no-such-option", 2),
    ("bench --no-such-option", 2),
    ("bench vhost --no-such-option", 2),
    ("exporter --no-such-option", 2),
    ("list --no-such-option", 2),
    ("nvmf --no-such-option", 2),
    ("nvmf ctl", 2),
    ("qdp --no-such-option", 2),
    ("sim run --no-such-option", 2),
    ("tier top --no-such-option", 2),
    ("offload top --no-such-option", 2),
    ("offload off", 2),
    ("offload on many", 2),
    ("offload install", 2),
    ("offload --no-such-option -- true", 125),
    ("offload", 125),
    ("trace --no-such-option", 2),
    ("tune --no-such-option", 2),
    ("vhost --no-such-option", 2),
    ("doctor --no-such-option", 1),
    ("run --no-such-option -- true", 125),
    ("tier run --no-such-option -- true", 125),
    // Missing arguments.
    ("sim", 2),
    ("tier", 2),
    ("trace", 2),
    ("run", 125),
    ("tier run", 125),
    // Values that are invalid on every machine.
    ("bench --device gpu", 2),
    ("bench mover --only shraing", 2),
    ("bench pollution --device all", 2),
    ("exporter --listen nowhere", 2),
    ("exporter --once", 2),
    ("exporter --once --textfile metrics.txt", 2),
    ("list --device gpu", 2),
    ("nvmf", 2),
    ("nvmf --memory 1x", 2),
    ("nvmf --memory 1g --device gpu", 2),
    ("nvmf --memory 1g --nqn disk", 2),
    ("nvmf --memory 1g --loops 0", 2),
    ("nvmf --memory 1g --listen nowhere", 2),
    ("completions tcsh", 2),
    ("man no-such-command", 2),
    ("man --folder /proc/none", 1),
    ("man bench ops", 0),
    ("qdp --device gpu", 2),
    ("qdp --query nonsense", 2),
    ("sim run --device gpu", 2),
    ("sim run --profile nowhere", 2),
    ("sim validate --figure-that-is-none", 2),
    ("tune --device all", 2),
    ("vhost", 2),
    ("vhost --device gpu --socket s", 2),
    ("advise --size 4x", 2),
    ("run --abi 5.4 -- true", 125),
    ("-v run --abi 5.4 -- true", 125),
    ("-vv --verbose doctor --no-such-option", 1),
    ("run --hardware nowhere -- true", 125),
    ("tier run --device gpu -- true", 125),
    // Failures that depend on the machine or its files.
    ("advise nowhere.toml", 1),
    ("bench --html no/such/folder/r.html", 1),
    ("doctor --bundle nowhere.json", 1),
    ("exporter --once --textfile no/such/folder/t.prom", 1),
    ("list --device hw:wq99999.0", 1),
    ("list --device model:nowhere.json", 1),
    ("nvmf --config nowhere.json", 1),
    ("nvmf --file nowhere --listen 127.0.0.1:0 --control nowhere.sock", 1),
    ("nvmf --memory 1m --listen 127.0.0.1:0 --control no/such/folder/sock", 1),
    ("nvmf --memory 1m --listen 127.0.0.1:0 --device hw:wq99999.0 --control nowhere.sock", 1),
    ("nvmf check nowhere.json", 1),
    ("nvmf ctl --control nowhere.sock show", 1),
    ("nvmf --memory 1m --print-config", 0),
    ("qdp --input nowhere.parquet --no-html", 1),
    ("sim run nowhere.toml --no-html", 1),
    ("sim run --html no/such/folder/r.html", 1),
    ("trace nowhere.trace", 1),
    ("tune --tuning no/such/folder/t.toml", 1),
    ("list --output no/such/folder/l", 1),
    ("run --trace no/such/folder/t -- true", 125),
    ("run --hardware ./nowhere.json -- true", 125),
    ("tier run --output no/such/folder/t -- true", 125),
    // Exit codes of programs, and programs that cannot be run.
    ("run -- true", 0),
    ("run -- false", 1),
    ("run -- no-such-program-here", 127),
    ("run -- /etc/passwd", 126),
    ("run -- /", 126),
    ("list --device model:spr", 0),
    ("sim profiles", 0),
];

#[test]
fn every_command_ends_with_the_code_of_the_table() {
    let mut wrong = Vec::new();
    for (line, code) in CASES {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let (ended, said) = ended(&words);
        if ended != Some(*code) {
            wrong.push(format!("telpher {line}: {ended:?}, not {code}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_kernel_without_shared_queues_is_reported() {
    let (code, said) = ended(&["run", "--abi", "5.15", "--hardware", "spr-2", "--", "true"]);
    let sentence =
        "telpher run: spr-2 shares wq0.0, wq1.0, and kernel 5.15 has no shared queues for users: dedicated here\n";
    assert_eq!((code, said.as_str()), (Some(0), sentence));
    for words in [
        ["run", "--abi", "6.1", "--hardware", "spr-2", "--", "true"],
        ["run", "--abi", "5.15", "--view", "preload", "--", "true"],
    ] {
        assert_eq!(ended(&words), (Some(0), String::new()));
    }
}
