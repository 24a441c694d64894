//! What a C++ user of DML gets: `install.sh` into an empty folder, and programs compiled against the installed files,
//! which run on the CPU and on the model.
//!
//! `doors/cli/tests/programs/libdml.rs` runs the same programs on the queues of a virtual device.

#[path = "common/installed.rs"]
mod installed;
#[path = "../../../ci/skip.rs"]
mod skip;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Makes the compiler check addresses and undefined behaviour in the program and in the headers.
const SANITIZED: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The standard output of a successful program.
fn ok(what: &str, output: Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// The folder that `install.sh` filled, or what this machine lacks for it.
fn stage() -> Result<&'static Path, String> {
    for tool in ["cc", "c++", "ar", "pkg-config", "nm"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Err(format!("no {tool}"));
        }
    }
    Ok(installed::stage(here()))
}

/// A folder for what these tests write.
fn room() -> &'static Path {
    static ROOM: OnceLock<PathBuf> = OnceLock::new();
    ROOM.get_or_init(|| {
        let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dml-cpp");
        // Files of an earlier run must not help this one.
        let _ = std::fs::remove_dir_all(&room);
        std::fs::create_dir_all(&room).expect("a folder");
        room
    })
}

fn pkg_config(stage: &Path, words: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", stage.join("lib/pkgconfig")).args(words).arg("dml");
    ok("pkg-config", command.output().expect("pkg-config runs")).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a source of this crate with the options that pkg-config names, and these, and links it with `libraries`.
fn compile(stage: &Path, source: &str, name: &str, options: &[&str], libraries: &[String]) -> PathBuf {
    assert_eq!(pkg_config(stage, &["--cflags"]), [format!("-I{}", stage.join("include").display())]);
    let program = room().join(name);
    let mut command = Command::new(if source.ends_with(".c") { "cc" } else { "c++" });
    command.args(options).arg("-pthread").arg(installed::object(here(), source, options));
    installed::succeed(command.arg("-o").arg(&program).args(libraries));
    program
}

/// Runs a program with the staged library, for two minutes at most; it must succeed. A device of this machine is not
/// used: the hardware and automatic paths have the model's queues, the word `absent` none.
fn run(stage: &Path, program: &Path, word: &str) -> String {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).arg(word).env("LD_LIBRARY_PATH", stage.join("lib"));
    command.env("TELPHER_DML_DEVICE", if word == "absent" { "cpu" } else { "model:spr" });
    ok(&format!("{} {word}", program.display()), command.output().expect("timeout runs"))
}

/// The paths of programs that know them all.
const PATHS: [&str; 3] = ["software", "hardware", "automatic"];

/// Compiles a program for C++17, and with the sanitizers for C++20, and runs both with these arguments.
fn passes(name: &str, source: &str, paths: &[&str]) {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip(name, &why),
    };
    let libraries = pkg_config(stage, &["--libs"]);
    let sanitized = [&["-std=c++20"], &SANITIZED[..]].concat();
    for (kind, options) in [("17", &[][..]), ("sanitized", &sanitized)] {
        let program = compile(stage, source, &format!("{name}_{kind}"), options, &libraries);
        for path in paths {
            run(stage, &program, path);
        }
    }
}

#[test]
fn names_numbers_and_sizes_are_those_of_dml() {
    passes("surface", "tests/programs/surface.cpp", &["software"]);
}

#[test]
fn every_cpp_operation_matches_a_naive_loop() {
    passes("operations", "tests/programs/operations.cpp", &[&PATHS[..], &["absent"]].concat());
}

#[test]
fn programs_in_the_manner_of_the_originals_suites_pass() {
    passes("suite", "tests/programs/suite.cpp", &[&PATHS[..], &["absent"]].concat());
}

#[test]
fn handlers_wait_move_and_use_their_allocator() {
    passes("handlers", "tests/programs/handlers.cpp", &PATHS);
}

/// Programs include single headers of `hl`, too. The flag that is deprecated is a warning at its use, and a number.
#[test]
fn headers_compile_alone_and_a_deprecated_flag_is_only_a_warning() {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip("headers_compile_alone_and_a_deprecated_flag_is_only_a_warning", &why),
    };
    let compiles = |compiler: &str, standard: &str, source: &str| {
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-fsyntax-only", "-I"]).arg(stage.join("include")).args(["-x"]);
        command.arg(if compiler == "cc" { "c" } else { "c++" }).arg("-").stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the compiler runs");
        child.stdin.take().expect("a pipe").write_all(source.as_bytes()).expect("the compiler reads");
        let output = child.wait_with_output().expect("the compiler ends");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{source}: {stderr}");
        stderr
    };
    for folder in ["dml/hl", "dml/hl/detail"] {
        let entries = std::fs::read_dir(stage.join("include").join(folder)).expect("the headers");
        let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        for name in names.filter(|name| name.ends_with(".hpp")) {
            assert_eq!(compiles("c++", "-std=c++17", &format!("#include <{folder}/{name}>\n")), "", "{name}");
        }
    }
    for (compiler, standard) in [("cc", "-std=c11"), ("c++", "-std=c++17")] {
        for name in ["dml.h", "dmldefs.h"] {
            assert_eq!(compiles(compiler, standard, &format!("#include <dml/{name}>\n")), "", "{name}");
        }
        let check = if compiler == "cc" { "_Static_assert" } else { "static_assert" };
        let used = format!("#include <dml/dml.h>\n{check}(DML_FLAG_DONT_INVALIDATE_CACHE == 0x100, \"a bit\");\n");
        assert!(compiles(compiler, standard, &used).contains("deprecated"), "{compiler}");
    }
}

/// Object files that were compiled against the original's headers find all they call in libdmlhl.a and libdml.a.
#[test]
fn old_cpp_objects_relink() {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip("old_cpp_objects_relink", &why),
    };
    let libraries = ["-L".to_owned() + &stage.join("lib").display().to_string()];
    let libraries = [&libraries[..], &["-ldmlhl", "-ldml", "-ldl", "-lpthread"].map(str::to_owned)].concat();
    let program = compile(stage, "tests/programs/relinked.cpp", "relinked", &[], &libraries);
    for path in PATHS {
        run(stage, &program, path);
    }
}

/// Sources: `nm` of the original's libdmlhl.a lists 35 functions that its headers call.
#[test]
fn libdmlhl_defines_the_35_functions_of_the_original() {
    const MAKE: [&str; 17] = [
        "nop",
        "batch",
        "drain",
        "mem_move",
        "fill",
        "compare",
        "compare_pattern",
        "create_delta",
        "apply_delta",
        "dualcast",
        "crc",
        "copy_crc",
        "dif_check",
        "dif_insert",
        "dif_strip",
        "dif_update",
        "cache_flush",
    ];
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip("libdmlhl_defines_the_35_functions_of_the_original", &why),
    };
    let nm = Command::new("nm").args(["-C", "--defined-only"]).arg(stage.join("lib/libdmlhl.a")).output();
    let listed = ok("nm", nm.expect("nm runs"));
    // "0000000000000000 T dml::detail::ml::get_result(dml::detail::completion_record&)"
    let functions = listed.lines().filter_map(|line| line.split_once(" T ")?.1.split('(').next());
    let mut functions: Vec<String> = functions.map(str::to_owned).collect();
    functions.sort_unstable();
    let mut expected: Vec<String> =
        MAKE.iter().map(|operation| format!("dml::detail::ml::impl::make_{operation}_descriptor")).collect();
    for path in ["software", "hardware", "automatic"] {
        for function in ["validate", "submit", "wait", "finished"] {
            expected.push(format!("dml::detail::ml::impl::{path}::{function}"));
        }
    }
    for getter in ["status", "result", "bytes_completed", "crc_value", "delta_record_size"] {
        expected.push(format!("dml::detail::ml::get_{getter}"));
    }
    expected.push("dml::detail::ml::impl::rebind".to_owned());
    expected.sort_unstable();
    assert_eq!(functions, expected);
    assert_eq!(functions.len(), 35);
    let program = std::fs::read_to_string(here().join("tests/programs/relinked.cpp")).expect("a program");
    for function in &functions {
        let name = function.rsplit("::").next().expect("a name");
        // A declaration and a call.
        assert!(program.matches(&format!("{name}(")).count() > 1, "relinked.cpp does not call {name}");
    }
}

#[test]
fn examples_print_the_same_on_every_path() {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => {
            return skip::skip("examples_print_the_same_on_every_path", &why);
        }
    };
    let shared = pkg_config(stage, &["--libs"]);
    let archive = [stage.join("lib/libdml.a").display().to_string()];
    let archive = [&archive[..], &["-lpthread", "-ldl", "-lm"].map(str::to_owned)].concat();
    for (source, expected) in [
        ("examples/pages.c", "16 pages, CRC-32C 1387d388, equal\n"),
        ("examples/overlap.cpp", "32 rows, sum 8590000128, equal\n"),
    ] {
        for (kind, libraries) in [("shared", &shared), ("static", &archive)] {
            let program = compile(stage, source, &format!("example_{kind}"), &[], libraries);
            for path in PATHS {
                assert_eq!(run(stage, &program, path), expected, "{source} {kind} {path}");
            }
        }
    }
}

/// A project of a user: `find_package(DML)`, all four targets, static and shared, from a prefix that has been moved.
#[test]
fn cmake_projects_find_the_package() {
    let stage = match stage() {
        Ok(_) if Command::new("cmake").arg("--version").output().is_err() => {
            return skip::skip("cmake_projects_find_the_package", "no cmake (Debian package cmake)");
        }
        Ok(stage) => stage,
        Err(why) => return skip::skip("cmake_projects_find_the_package", &why),
    };
    let moved = room().join("moved");
    std::fs::create_dir_all(&moved).expect("a folder");
    for folder in ["lib", "include"] {
        let copied = Command::new("cp").arg("-a").arg(stage.join(folder)).arg(&moved).output();
        ok("cp", copied.expect("cp runs"));
    }
    // In one folder, so that the second turn only links.
    let build = room().join("build");
    for shared in ["OFF", "ON"] {
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(here().join("tests/consumer")).arg("-B").arg(&build);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", moved.display())).arg(format!("-DDML_SHARED={shared}"));
        ok("cmake", configure.output().expect("cmake runs"));
        ok("cmake --build", Command::new("cmake").arg("--build").arg(&build).output().expect("cmake runs"));
        for program in ["in_c", "in_cpp", "in_cpp_lower", "in_cpp_alone"] {
            let program = build.join(program);
            let ran = Command::new("timeout").arg("60").arg(&program).output();
            ok(&program.display().to_string(), ran.expect("timeout runs"));
            let needed = ok("ldd", Command::new("ldd").arg(&program).output().expect("ldd runs"));
            assert_eq!(needed.contains("libdml.so.1"), shared == "ON", "{needed}");
        }
    }
}

#[test]
fn install_supports_a_staging_root() {
    if let Err(why) = stage() {
        return skip::skip("install_supports_a_staging_root", &why);
    }
    let root = room().join("root");
    let mut install = installed::install(here(), &room().join("cargo-of-root"));
    install.args(["--prefix=/usr", "--libdir", "/usr/lib64", "--destdir"]).arg(&root);
    ok("install.sh", install.output().expect("install.sh runs"));
    let config = std::fs::read_to_string(root.join("usr/lib64/pkgconfig/dml.pc")).expect("a pkg-config file");
    assert!(config.contains("prefix=/usr\nlibdir=${prefix}/lib64\nincludedir=${prefix}/include\n"), "{config}");
    assert!(!config.contains(root.to_str().expect("a path in UTF-8")), "{config}");
    for file in ["lib64/libdml.so.1", "lib64/libdml.a", "lib64/libdmlhl.a", "include/dml/dml.h", "include/dml/dml.hpp"]
    {
        assert!(root.join("usr").join(file).exists(), "{file}");
    }
    let package = std::fs::read_to_string(root.join("usr/lib64/cmake/DML/DMLConfig.cmake")).expect("a package");
    assert!(package.contains("${CMAKE_CURRENT_LIST_DIR}/../../../include"), "{package}");
    ok("install.sh", install.arg("--uninstall").output().expect("install.sh runs"));
    let left = Command::new("find").arg(&root).args(["-not", "-type", "d"]).output().expect("find runs");
    assert_eq!(ok("find", left), "");
    for wrong in [&["--colour"][..], &["stage"], &["--libdir"], &["/one", "/two"]] {
        let refused = Command::new(here().join("install.sh")).args(wrong).output().expect("install.sh runs");
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
    }
}
