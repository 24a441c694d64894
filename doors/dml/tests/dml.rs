//! The library as programs get it: C programs, compiled against the headers and linked with the library, on the CPU, on
//! modelled queues, and without a device. `doors/cli/tests/programs/libdml.rs` runs them on hardware queues of a
//! virtual device.

#[path = "common/installed.rs"]
mod installed;
#[path = "../../../ci/skip.rs"]
mod skip;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Devices for the hardware and the automatic path: with and without the delta operations.
const MODELS: [&str; 2] = ["model:spr", "model:full"];
/// A device of DSA 3.
const NEWEST: &str = "model:v3-full";

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(file: &str) -> String {
    std::fs::read_to_string(here().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The standard output of a successful program.
fn ok(what: &str, output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The folder that `install.sh` filled, or what this machine lacks for it.
fn stage() -> Result<&'static Path, String> {
    for tool in ["cc", "c++", "ar", "nm"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Err(format!("no {tool}"));
        }
    }
    Ok(installed::stage(here()))
}

/// A program, linked with the shared library, or with the static one.
fn program(stage: &Path, name: &str, is_static: bool) -> PathBuf {
    static ROOM: OnceLock<PathBuf> = OnceLock::new();
    let room = ROOM.get_or_init(|| {
        let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dml");
        // Files of an earlier run must not help this one.
        let _ = std::fs::remove_dir_all(&room);
        std::fs::create_dir_all(&room).expect("a folder");
        room
    });
    let object = installed::object(here(), &format!("tests/programs/{name}.c"), &[]);
    static LINKING: Mutex<()> = Mutex::new(());
    let _one = LINKING.lock().unwrap_or_else(PoisonError::into_inner);
    let program = room.join(if is_static { format!("{name}-static") } else { name.into() });
    if program.exists() {
        return program;
    }
    let mut command = Command::new("cc");
    command.arg("-pthread").arg(object);
    let lib = stage.join("lib");
    if is_static {
        // As programs link the original, with the C++ library that it needs.
        command.arg(lib.join("libdml.a")).args(["-lstdc++", "-ldl", "-lpthread"]);
    } else {
        command.arg("-L").arg(&lib).arg("-ldml").arg(format!("-Wl,-rpath,{}", lib.display()));
    }
    installed::succeed(command.arg("-o").arg(&program));
    program
}

/// Runs a program for a minute at most; it must succeed. `device` is the device of the hardware path.
fn passes(name: &str, words: &[&str], device: &str) {
    passes_with(name, words, device, &[]);
}

fn passes_with(name: &str, words: &[&str], device: &str, environment: &[(&str, &str)]) {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip(name, &why),
    };
    let mut command = Command::new("timeout");
    command.arg("60").arg(program(stage, name, false)).args(words).env("TELPHER_DML_DEVICE", device);
    command.env_remove("TELPHER_DML_STRICT").envs(environment.iter().copied());
    ok(&format!("{name} {words:?} on {device}"), &command.output().expect("timeout runs"));
}

/// A modelled device with one dedicated queue of four entries.
fn dedicated() -> String {
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dml-dedicated.json");
        let file = r#"[{ "dev": "dsa0", "groups": [{ "dev": "group0.0",
            "grouped_workqueues": [{ "dev": "wq0.1", "mode": "dedicated", "size": 4, "block_on_fault": 0 }],
            "grouped_engines": [{ "dev": "engine0.0" }] }] }]"#;
        std::fs::write(&path, file).expect("a file");
        format!("model:{}", path.display())
    })
    .clone()
}

/// Runs a program on every path and kind of queue.
fn passes_on_every_path(name: &str) {
    passes(name, &["sw"], "cpu");
    passes(name, &["auto", "nodevice"], "cpu");
    for model in MODELS {
        passes(name, &["hw"], model);
        passes(name, &["auto"], model);
    }
    passes(name, &["hw"], NEWEST);
    passes(name, &["hw"], &dedicated());
    passes(name, &["auto"], &dedicated());
}

#[test]
fn layouts_and_numbers_are_those_of_the_original() {
    passes("layout", &[], "cpu");
}

#[test]
fn a_program_links_the_static_library() {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip("a_program_links_the_static_library", &why),
    };
    for name in ["layout", "tasks"] {
        let output = Command::new(program(stage, name, true)).arg("sw").output();
        ok(name, &output.expect("the program runs"));
    }
}

#[test]
fn every_operation_computes_what_naive_loops_compute_on_every_path() {
    passes_on_every_path("operations");
}

#[test]
fn batches_have_the_same_results_on_every_path() {
    passes_on_every_path("batches");
}

#[test]
fn programs_in_the_manner_of_known_users_work_on_every_path() {
    passes_on_every_path("users");
}

#[test]
fn programs_in_the_manner_of_the_originals_examples_and_suites_work_on_every_path() {
    passes_on_every_path("manner");
}

#[test]
fn the_interface_below_the_cpp_headers_works_on_every_path() {
    passes_on_every_path("tasks");
}

#[test]
fn without_a_queue_the_hardware_path_says_why_and_the_automatic_one_uses_the_cpu() {
    passes("none", &[], "cpu");
}

#[test]
fn strict_mode_reproduces_the_answers_of_the_original() {
    passes_with("strict", &[], MODELS[0], &[("TELPHER_DML_STRICT", "1")]);
}

/// The names in front of a parenthesis at the beginning of declarations.
fn declared(header: &str) -> BTreeSet<String> {
    let text = text(header);
    let lines = text.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
    let names = lines.filter(|line| !line.starts_with("typedef")).filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        before.rsplit([' ', '*']).next().map(str::to_owned)
    });
    names.collect()
}

/// The names in the export map.
fn mapped() -> BTreeSet<String> {
    let map = text("dml.map");
    let names = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    names.filter(|name| !name.starts_with(['l', '}'])).map(str::to_owned).collect()
}

#[test]
fn the_export_map_has_exactly_the_functions_of_the_headers() {
    let (users, ours) = (declared("include/dml/dml.h"), declared("include/dml/detail/telpher.h"));
    assert_eq!(users.len(), 27, "26 functions of 1.1.1 and one of 1.2.0: {users:?}");
    assert_eq!(&users | &ours, mapped());
    assert!(ours.iter().all(|name| name.starts_with("telpher_dml_")));
}

#[test]
fn the_shared_library_exports_exactly_the_map_and_has_its_soname() {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip("the_shared_library_exports_exactly_the_map_and_has_its_soname", &why),
    };
    let nm =
        Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(stage.join("lib/libdml.so.1")).output();
    let names = ok("nm", &nm.expect("nm runs"));
    let exported = names.lines().filter_map(|line| line.split([' ', '@']).next()).filter(|name| *name != "LIBDML_1.0");
    assert_eq!(exported.map(str::to_owned).collect::<BTreeSet<_>>(), mapped());
}

#[test]
fn every_function_has_a_test_and_the_readme_names_it() {
    let readme = text("README.md");
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let mut listed = BTreeSet::new();
    for (function, programs) in rows.filter(|(function, _)| function.contains("dml_")) {
        listed.insert(function.to_owned());
        for program in programs.trim_end_matches(" |").split(", ") {
            let source = text(&format!("tests/programs/{}", program.trim_matches('`')));
            assert!(source.contains(&format!("{function}(")), "{program} does not call {function}");
        }
    }
    assert_eq!(listed, mapped());
}

#[test]
fn every_program_has_a_test_and_the_readme_names_it() {
    let readme = text("README.md");
    let (_, table) = readme.split_once("| program in `tests/programs` | tests |").expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
    let rows: BTreeSet<_> = rows.filter_map(|line| line.trim_end_matches(" |")[3..].split_once("` | ")).collect();
    let sources = ["tests/dml.rs", "tests/cpp.rs", "../cli/tests/programs/libdml.rs"].map(text);
    for (program, tests) in &rows {
        // Programs in C are named without an extension where each is compiled.
        let names = [format!("\"{}\"", program.trim_end_matches(".c")), format!("programs/{program}\"")];
        for test in tests.split(", ").map(|test| test.trim_matches('`')) {
            let declared = |source: &&String| source.contains(&format!("fn {test}("));
            let source = sources.iter().find(declared).unwrap_or_else(|| panic!("there is no test {test}"));
            assert!(names.iter().any(|name| source.contains(name)), "{program} is not in the file of {test}");
        }
    }
    let listed = rows.iter().map(|(program, _)| (*program).to_owned());
    let files = std::fs::read_dir(here().join("tests/programs")).expect("the programs");
    let names = files.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let programs = names.filter(|name| !name.starts_with("check."));
    assert_eq!(listed.collect::<BTreeSet<_>>(), programs.collect::<BTreeSet<_>>());
}

#[test]
fn every_header_has_a_test_and_the_readme_names_it() {
    let readme = text("README.md");
    let rows: Vec<&str> = readme.lines().filter(|line| line.starts_with("| `")).collect();
    for folder in ["", "hl/", "hl/detail/", "detail/"] {
        let entries = std::fs::read_dir(here().join("include/dml").join(folder)).expect("a folder of headers");
        for entry in entries.map(|entry| entry.expect("an entry")).filter(|entry| entry.path().is_file()) {
            let header = format!("`{folder}{}`", entry.file_name().to_string_lossy());
            let row = rows.iter().find(|row| row.split(" | ").next().is_some_and(|names| names.contains(&header)));
            let programs = row.unwrap_or_else(|| panic!("{header} has no row")).split(" | ").nth(1);
            for program in programs.expect("two columns").trim_end_matches(" |").split(", ") {
                assert!(here().join("tests/programs").join(program.trim_matches('`')).exists(), "{header}: {program}");
            }
        }
    }
}
