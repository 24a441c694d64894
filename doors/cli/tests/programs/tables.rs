//! Tables in a terminal of 80 columns: no line is longer, so the terminal breaks no word.

use super::harness::{TELPHER, test_folder};
use super::terminal::Terminal;
use std::path::{Path, PathBuf};
use std::process::Command;

const COLUMNS: u16 = 80;

/// Commands whose output is tables, and a text of each; `telpher` is the binary.
const TABLES: [(&str, &str); 22] = [
    ("list --device model:full", "wq0.7"),
    ("run --hardware spr-1 -- telpher doctor", "no problem found"),
    ("doctor --causes", "hugetlb-limit"),
    ("bench --seconds 0.2", "Next: telpher bench --full"),
    ("bench --full --seconds 0.2 --size 64,4k --op move", "by throughput"),
    ("bench ops --op move --size 4k --seconds 0.2", "Median over all sizes"),
    ("bench pollution --working-set 64k --seconds 0.3", "working set"),
    ("bench mover --only shape --seconds 0.2", "shape"),
    ("bench cache --only memory --seconds 0.2", "memory"),
    ("bench query --size 1m --seconds 0.1 --python /nowhere/python3", "TPC-H query 1"),
    ("sim run --size 4k,64k --count 300", "limited by"),
    ("sim run --size 4k --in-flight 8 --batch 1 --count 300", "utilization"),
    ("sim profiles", "spr-asplos"),
    ("sim validate --only K-021,K-044", "K-044"),
    ("sim figures --only asplos-8 --no-html --folder figures", "asplos-8"),
    ("advise --size 64k --in-flight 1", "guideline"),
    ("advise tenants.toml", "load-config"),
    ("sim run tenants.toml", "of a tenant do not hold"),
    ("qdp --query thesis --size 64k --plain --repeat 1", "AGGREGATE"),
    ("tune --op move --size 4k --seconds 0.1 --tuning tuning.toml", "tuning.toml"),
    ("nvmf --memory 1m --print-config", "nqn"),
    ("run --hardware spr-1 -- telpher top --once", "wq0.0"),
];

/// Tenants that share a device.
const TENANTS: &str = "devices = 1
[[tenant]]
name = \"requests\"
op = \"memory-move\"
size = \"1k\"
rate = 500_000
in_flight = 8
p99_us = 4
[[tenant]]
name = \"bulk\"
op = \"memory-move\"
size = \"1m\"
in_flight = 16
";

/// Returns a folder with a link to the binary.
fn folder_with_telpher(name: &str) -> PathBuf {
    let folder = test_folder(name);
    std::os::unix::fs::symlink(TELPHER, folder.join("telpher")).expect("a link");
    folder
}

/// Returns what a terminal of 80 columns shows of a shell's command line, at least to the expected text.
fn shown(folder: &Path, line: &str, expected: &str) -> String {
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").expect("a path"));
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("cd '{}' && {line}", folder.display())).env("PATH", path);
    let mut terminal = Terminal::start(&command, COLUMNS, 50);
    terminal.wait_for(expected, 0);
    terminal.end();
    terminal.written.clone()
}

/// Asserts that no line of these command lines after `telpher` is longer than the terminal.
fn assert_fit(folder: &Path, lines: &[(&str, &str)]) {
    let mut long = String::new();
    for (command, expected) in lines {
        let text = plain(&shown(folder, &format!("telpher {command}"), expected));
        for line in text.lines().filter(|line| line.chars().count() > usize::from(COLUMNS)) {
            long.push_str(&format!("telpher {command}: {line}\n"));
        }
    }
    assert!(long.is_empty(), "{long}");
}

/// Returns the text without the sequences for colours.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[test]
fn every_table_fits_into_80_columns() {
    let folder = folder_with_telpher("tables");
    std::fs::write(folder.join("tenants.toml"), TENANTS).expect("our own folder");
    let lines = TABLES.map(|(command, expected)| (format!("{command} 2>/dev/null"), expected));
    assert_fit(&folder, &lines.each_ref().map(|(line, expected)| (line.as_str(), *expected)));
}

/// Has memory to manage, and looks at itself until it is managed.
const MEMORY: &str = "
import os, subprocess
blocks = [bytearray(1 << 24) for _ in range(8)]
while subprocess.run(['telpher', 'tier', 'top', '--once', str(os.getpid())], stderr=subprocess.DEVNULL).returncode:
    pass
";

#[test]
fn summaries_of_programs_and_recordings_fit_into_80_columns() {
    let record = "record --folder recording -- telpher sim profiles >/dev/null";
    let offload = "offload --device model:spr --always -- telpher sim profiles >/dev/null";
    let folder = folder_with_telpher("summaries");
    let lines = [
        (offload, "by device"),
        (&format!("{record} 2>&1; telpher record show recording"), "calls"),
        ("record predict recording 2>/dev/null", "calls"),
    ];
    assert_fit(&folder, &lines);
}

#[test]
fn tables_of_tiers_fit_into_80_columns() {
    if super::tier::cannot("tables_of_tiers_fit_into_80_columns") {
        return;
    }
    let folder = folder_with_telpher("tables_of_tiers");
    std::fs::write(folder.join("memory.py"), MEMORY).expect("a program");
    let run = "tier run --tier fast=64m --tier slow -- python3 memory.py";
    assert_fit(&folder, &[("bench tier --only small --seconds 0.2 2>/dev/null", "small"), (run, "kept free")]);
}

/// Without a terminal on standard output, the summary's terminal is that of standard error.
#[test]
fn a_summary_fits_when_only_standard_error_is_a_terminal() {
    let folder = folder_with_telpher("summaries_alone");
    let line = "telpher offload --device model:spr --always -- telpher sim profiles | cat >/dev/null";
    let text = shown(&folder, line, "by device");
    assert!(text.contains("\x1b[1m"), "no colours: {text:?}");
    let text = plain(&text);
    assert!(text.lines().all(|line| line.chars().count() <= usize::from(COLUMNS)), "{text}");
}

#[test]
fn rows_of_markdown_stay_whole() {
    let folder = folder_with_telpher("markdown");
    let text = shown(&folder, "telpher sim validate --only K-044 --markdown 2>/dev/null; echo done", "done");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert!(rows.iter().any(|row| row.chars().count() > usize::from(COLUMNS)), "{text}");
    assert!(rows.iter().all(|row| row.trim_end().ends_with('|')), "{text}");
}

#[test]
fn colours_are_for_terminals_and_for_users_who_want_them() {
    let folder = folder_with_telpher("colours");
    let in_terminal = |line: &str| shown(&folder, line, "usual severity");
    assert!(in_terminal("telpher doctor --causes").contains("\x1b[1mstage\x1b[0m"));
    for line in [
        "NO_COLOR=1 telpher doctor --causes",
        "TERM=dumb telpher doctor --causes",
        "telpher doctor --causes | cat",
        "telpher doctor --causes --output causes.txt; cat causes.txt",
    ] {
        let text = in_terminal(line);
        assert!(!text.contains('\x1b'), "{line}: {text:?}");
    }
}
