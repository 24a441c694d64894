//! What a user gets: `install.sh` into an empty folder, and C and C++ programs compiled against the installed files.
//!
//! `install.sh` gets the archive that `cargo test --workspace` has built already, from a script in cargo's place;
//! everything else is as installed. `doors/cli/tests/programs/libtelpher.rs` lets it build the library.

#[path = "../../../ci/skip.rs"]
mod skip;

mod guest;

use guest::Guest;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use telpher_os::{Scan, Userfault, UserfaultFeatures};
use telpher_vhost::layout::Features;

/// The devices for the programs.
const DEVICES: [&str; 2] = ["model:spr", "model:full"];
/// The examples in Rust.
const EXAMPLES: [&str; 7] =
    ["copy_crc", "batch_fence", "poll_ring", "column_sum", "versioned", "page_tiers", "vhost_switch"];
/// Makes the compiler check addresses and undefined behaviour. The library itself is not instrumented; valgrind checks
/// its writes into a program's memory.
const SANITIZED: [&str; 3] = ["-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
/// Rust's hash tables and threads are referenced by interior pointers, which valgrind calls possibly lost.
const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--fair-sched=try",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite",
    "--error-exitcode=9",
];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder that `install.sh` filled, or what this machine lacks for it.
fn stage() -> Result<&'static Path, &'static str> {
    static STAGE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| {
        for tool in ["cc", "c++", "pkg-config", "nm"] {
            if Command::new(tool).arg("--version").output().is_err() {
                return Err(format!("no {tool}"));
            }
        }
        let stage = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stage");
        // Files of an earlier run must not help this one.
        let _ = std::fs::remove_dir_all(&stage);
        let install = install(&stage.join("cargo")).arg("--prefix").arg(&stage).output();
        ok("install.sh", install.expect("install.sh runs"));
        Ok(stage)
    });
    stage.as_deref().map_err(String::as_str)
}

/// What cargo built for the whole workspace: the static library, and the folder with the examples' programs.
struct Built {
    archive: PathBuf,
    examples: PathBuf,
}

/// Builds the examples and the library, once. The whole workspace is selected so that the features are those of
/// `cargo test --workspace`: with others, everything would be compiled once more.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(here()).args(["build", "--workspace", "--message-format", "json-render-diagnostics"]);
        command.args(EXAMPLES.into_iter().flat_map(|example| ["--example", example]));
        let messages = ok("cargo build", command.output().expect("cargo runs"));
        let file = |start: &str, end: &str| {
            let mut files = messages.split('"').filter(|text| text.contains(start) && text.ends_with(end));
            PathBuf::from(files.next_back().unwrap_or_else(|| panic!("cargo names no file {start}*{end}")))
        };
        let mut examples = file("/examples/", EXAMPLES[0]);
        examples.pop();
        Built { archive: file("/libtelpher_capi", ".a"), examples }
    })
}

/// The command `install.sh` with a script in cargo's place, which checks its arguments and answers with the archive.
/// Both are put into a new folder.
fn install(folder: &Path) -> Command {
    std::fs::create_dir_all(folder).expect("a folder");
    let (cargo, archive) = (folder.join("cargo"), folder.join("libtelpher_capi.a"));
    // Without the hash that cargo adds to the names of libraries that a test uses.
    std::os::unix::fs::symlink(&built().archive, &archive).expect("a new name");
    let expected = "build --locked --manifest-path */Cargo.toml --profile dev --lib --message-format *";
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in ({}) echo '{{\"filenames\":[\"{}\"]}}' ;; (*) exit 1 ;; esac\n",
        expected.replace(' ', "\\ "),
        archive.display()
    );
    std::fs::write(&cargo, script).expect("a script");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("the test's own file");
    let mut install = Command::new(here().join("install.sh"));
    install.args(["--profile", "dev"]).env("CARGO", cargo);
    install
}

/// The standard output of a successful program.
fn ok(what: &str, output: Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn pkg_config(stage: &Path, words: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", stage.join("lib/pkgconfig")).args(words).arg("telpher");
    ok("pkg-config", command.output().expect("pkg-config runs")).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a source of this crate against the staged headers, and links it with pkg-config's flags or with
/// `libraries`.
fn compile(stage: &Path, source: &str, name: &str, options: &[&str], libraries: Option<Vec<String>>) -> PathBuf {
    let program = stage.join(name);
    let (compiler, standard) = if source.ends_with(".c") { ("cc", "-std=c11") } else { ("c++", "-std=c++20") };
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g"]).args(options);
    command.arg(here().join(source)).args(pkg_config(stage, &["--cflags"])).arg("-o").arg(&program);
    command.args(libraries.unwrap_or_else(|| pkg_config(stage, &["--libs"])));
    ok(source, command.output().expect("the compiler runs"));
    program
}

/// Runs a program with the staged library, for a minute at most; it must succeed.
fn run(stage: &Path, program: &Path, words: &[&str]) -> String {
    ok(&format!("{} {words:?}", program.display()), ran(stage, program, words))
}

/// Runs a program with the staged library; returns its output and status.
fn ran(stage: &Path, program: &Path, words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(words).env("LD_LIBRARY_PATH", stage.join("lib"));
    command.output().expect("timeout runs")
}

/// The output of the same example in Rust.
fn run_rust(example: &str, device: &str) -> String {
    ok(example, Command::new(built().examples.join(example)).arg(device).output().expect("the example runs"))
}

/// An example prints the same in every language and on every device.
fn same_everywhere(example: &str, lines: usize) {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip(example, why),
    };
    let programs = ["c", "cpp"].map(|language| {
        let source = format!("examples/{example}.{language}");
        compile(stage, &source, &format!("{example}_{language}"), &[], None)
    });
    let expected = run_rust(example, "model:spr");
    assert_eq!(expected.lines().count(), lines, "{expected}");
    for device in DEVICES {
        for program in &programs {
            assert_eq!(run(stage, program, &[device]), expected, "{} {device}", program.display());
        }
    }
    let source = format!("examples/{example}.c");
    let sanitized = compile(stage, &source, &format!("{example}_c_sanitized"), &SANITIZED, None);
    for device in DEVICES {
        assert_eq!(run(stage, &sanitized, &[device]), expected, "{} {device}", sanitized.display());
    }
    if no_valgrind(example) {
        return;
    }
    for program in programs {
        let words = [&VALGRIND[1..], &[program.to_str().expect("a path in UTF-8"), DEVICES[0]]].concat();
        let watched = ran(stage, Path::new(VALGRIND[0]), &words);
        // userfaultfd(2), which valgrind 3.19 does not know. Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl.
        if String::from_utf8_lossy(&watched.stderr).contains("unhandled amd64-linux syscall: 323") {
            return skip::skip(&format!("{example} under valgrind"), "this valgrind has no userfaultfd");
        }
        assert_eq!(ok(&format!("valgrind {words:?}"), watched), expected);
    }
}

/// Returns true, with a message, if there is no valgrind.
fn no_valgrind(example: &str) -> bool {
    let none = Command::new(VALGRIND[0]).arg("--version").output().is_err();
    if none {
        skip::skip(&format!("{example} under valgrind"), "no valgrind");
    }
    none
}

#[test]
fn copy_crc_prints_the_same_in_three_languages() {
    same_everywhere("copy_crc", 1);
}

#[test]
fn batch_fence_prints_the_same_in_three_languages() {
    same_everywhere("batch_fence", 8);
}

#[test]
fn poll_ring_prints_the_same_in_three_languages() {
    same_everywhere("poll_ring", 1);
}

#[test]
fn column_sum_prints_the_same_in_three_languages() {
    same_everywhere("column_sum", 1);
}

#[test]
fn versioned_prints_the_same_in_three_languages_and_no_sum_is_of_another_version() {
    same_everywhere("versioned", 2);
}

/// Runs a program of `tests/programs`, with and without the sanitizers, on each device.
fn passes(name: &str, source: &str) {
    passes_on(name, source, &DEVICES);
}

/// Devices of the first version, and one with all operations.
const EVERY_VERSION: [&str; 3] = [DEVICES[0], DEVICES[1], "model:v3-full"];
/// A device without windows between processes, and one with them.
const WITH_WINDOWS: [&str; 2] = [DEVICES[0], "model:v2-full"];

fn passes_on(name: &str, source: &str, devices: &[&str]) {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip(name, why),
    };
    let stem = name.replace(' ', "_");
    let plain = compile(stage, source, &stem, &["-pthread"], None);
    let sanitized = compile(stage, source, &format!("{stem}_sanitized"), &SANITIZED, None);
    for device in devices {
        for program in [&plain, &sanitized] {
            run(stage, program, &[device]);
        }
    }
}

#[test]
fn wrong_arguments_return_an_errno() {
    passes("wrong arguments", "tests/programs/arguments.c");
}

#[test]
fn operations_of_random_bytes_change_only_their_destinations() {
    passes_on("random operations", "tests/programs/random.c", &EVERY_VERSION);
}

#[test]
fn every_operation_matches_the_naive_result_on_every_interface() {
    passes_on("every operation", "tests/programs/operations.c", &EVERY_VERSION);
}

#[test]
fn handles_jobs_and_threads_follow_the_headers_rules() {
    passes("lifetimes", "tests/programs/lifetimes.c");
}

#[test]
fn cpp_handles_exceptions_and_coroutines_work() {
    passes("cpp", "tests/programs/coroutines.cpp");
}

#[test]
fn windows_and_durable_files_follow_the_headers_rules() {
    passes_on("windows", "tests/programs/windows.c", &WITH_WINDOWS);
}

#[test]
fn cpp_windows_end_with_their_objects() {
    passes_on("cpp windows", "tests/programs/windows.cpp", &WITH_WINDOWS);
}

#[test]
fn an_epoll_loop_gets_every_end_once() {
    passes("epoll", "tests/programs/epoll.c");
    passes("cpp poll", "tests/programs/poll.cpp");
    passes("handover", "tests/programs/handover.c");
}

#[test]
fn caches_follow_the_headers_rules() {
    passes("cache", "tests/programs/cache.c");
}

#[test]
fn cpp_caches_resources_policies_and_coroutines_work() {
    passes("cpp cache", "tests/programs/cache.cpp");
}

#[test]
fn versioned_bytes_and_blocks_follow_the_headers_rules() {
    passes("versioned", "tests/programs/versioned.c");
}

#[test]
fn packets_and_ports_follow_the_headers_rules() {
    passes("vhost", "tests/programs/vhost.c");
}

#[test]
fn cpp_bursts_return_their_remaining_packets() {
    passes("cpp vhost", "tests/programs/vhost.cpp");
}

#[test]
fn switches_follow_the_headers_rules() {
    passes("switch", "tests/programs/switch.c");
}

#[test]
fn cpp_switches_stop_with_their_objects() {
    passes("cpp switch", "tests/programs/switch.cpp");
}

/// What this machine lacks for tiers: moving pages needs a recent kernel, and a permission.
fn no_tiers(test: &str) -> bool {
    let has =
        Scan::open().is_ok() && Userfault::open(UserfaultFeatures::MOVE.and(UserfaultFeatures::PROTECT_SHARED)).is_ok();
    if !has {
        skip::skip(test, "the kernel has no userfaultfd that moves pages, or not for this user (Linux 6.8)");
    }
    !has
}

#[test]
fn page_tiers_prints_the_same_in_three_languages() {
    if !no_tiers("page_tiers_prints_the_same_in_three_languages") {
        same_everywhere("page_tiers", 1);
    }
}

#[test]
fn heaps_and_arenas_follow_the_headers_rules() {
    if !no_tiers("heaps_and_arenas_follow_the_headers_rules") {
        passes("tier", "tests/programs/tier.c");
    }
}

#[test]
fn cpp_heaps_and_arenas_free_themselves_in_any_order() {
    if !no_tiers("cpp_heaps_and_arenas_free_themselves_in_any_order") {
        passes("cpp tier", "tests/programs/tier.cpp");
    }
}

/// The example switch in C or C++ between two guests, compiled with these options and started with this command.
fn switches(name: &str, source: &str, options: &[&str], starter: &[&str]) {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip(name, why),
    };
    let program = compile(stage, source, name, options, None);
    forwards(name, stage, &[starter, &[program.to_str().expect("a path in UTF-8")]].concat());
}

/// The example switch between two guests, on a device: each receives what the other sends.
fn forwards(name: &str, folder: &Path, starter: &[&str]) {
    for device in ["cpu", DEVICES[0]] {
        let paths = ["a", "b"].map(|port| folder.join(format!("{name}-{port}.sock")));
        let mut command = Command::new("timeout");
        command.arg("120").args(starter).args(&paths).arg(device);
        command.env("LD_LIBRARY_PATH", folder.join("lib"));
        let mut running = command.stdout(Stdio::piped()).spawn().expect("timeout runs");
        let mut runs = || assert!(running.try_wait().is_ok_and(|ended| ended.is_none()), "{name} {device} has ended");
        while !paths.iter().all(|path| path.exists()) {
            runs();
        }
        let mut guests = paths.each_ref().map(|path| Guest::connect(path, Features::empty()));
        // By device and by CPU.
        let packet = |n: u8| (0..60 + usize::from(n) * 20).map(|at| n ^ at.to_le_bytes()[0]).collect::<Vec<u8>>();
        for (from, to) in [(0, 1), (1, 0)] {
            (0..50).for_each(|n| assert!(guests[from].send(&packet(n))));
            let mut came = Vec::new();
            while came.len() < 50 {
                runs();
                came.extend(guests[to].received());
            }
            for (n, came) in (0..).zip(came) {
                assert!(came == packet(n), "{device}: packet {n}");
            }
        }
        drop(guests);
        // Sent to timeout(1), which forwards it.
        let pid = rustix::process::Pid::from_child(&running);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let output = ok(name, running.wait_with_output().expect("it ends"));
        // 27 packets of each direction are long enough, and each passes both ports.
        let by_device = if device == "cpu" { 0 } else { 2 * 27 };
        let expected = (0..2).map(|port| {
            format!("port {port}: 50 packets from the guest, 50 to it, 0 lost, {by_device} by the device\n")
        });
        assert_eq!(output, expected.collect::<String>(), "{device}");
    }
}

#[test]
fn the_switch_in_rust_forwards_between_two_guests() {
    let program = built().examples.join("vhost_switch");
    let folder = std::env::temp_dir().join(format!("telpher-switch-rust-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the sockets");
    forwards("vhost_switch_rust", &folder, &[program.to_str().expect("a path in UTF-8")]);
    std::fs::remove_dir_all(folder).expect("its folder");
}

#[test]
fn the_switch_in_c_forwards_between_two_guests() {
    switches("vhost_switch_c", "examples/vhost_switch.c", &[], &[]);
}

#[test]
fn the_switch_in_cpp_forwards_between_two_guests() {
    switches("vhost_switch_cpp", "examples/vhost_switch.cpp", &[], &[]);
}

#[test]
fn the_switch_in_c_forwards_under_the_sanitizers() {
    switches("vhost_switch_c_sanitized", "examples/vhost_switch.c", &SANITIZED, &[]);
}

#[test]
fn the_switch_in_c_forwards_under_valgrind() {
    if !no_valgrind("the_switch_in_c_forwards_under_valgrind") {
        switches("vhost_switch_c_watched", "examples/vhost_switch.c", &[], &VALGRIND);
    }
}

#[test]
fn the_static_archive_links_alone() {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip("the_static_archive_links_alone", why),
    };
    let beside = [stage.join("lib/libtelpher.a").display().to_string()];
    let beside = [&beside[..], &["-lpthread", "-ldl", "-lm"].map(str::to_owned)].concat();
    let program = compile(stage, "examples/copy_crc.c", "copy_crc_archive", &[], Some(beside));
    let whole = pkg_config(stage, &["--libs", "--static"]);
    let whole = compile(stage, "examples/copy_crc.c", "copy_crc_static", &["-static"], Some(whole));
    for program in [program, whole] {
        let needed = Command::new("ldd").arg(&program).output().expect("ldd runs");
        assert!(!String::from_utf8_lossy(&needed.stdout).contains("telpher"), "it needs no libtelpher.so");
        run(stage, &program, &["model:spr"]);
    }
}

#[test]
fn the_library_exports_the_symbols_of_the_map() {
    let stage = match stage() {
        Ok(stage) => stage,
        Err(why) => return skip::skip("the_library_exports_the_symbols_of_the_map", why),
    };
    let library = stage.join("lib/libtelpher.so");
    let nm = Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library).output();
    let listed = ok("nm", nm.expect("nm runs"));
    let mut exported: Vec<&str> = listed.lines().filter(|line| !line.contains(" A ")).map(first_word).collect();
    exported.sort_unstable();
    let map = std::fs::read_to_string(here().join("telpher.map")).expect("the map");
    let names =
        map.lines().filter_map(|line| line.trim().strip_suffix(';')).filter(|name| name.starts_with("telpher_"));
    let mut names: Vec<String> = names.map(|name| format!("{name}@@TELPHER_0.1")).collect();
    names.sort_unstable();
    assert_eq!(exported, names);
    let readelf = Command::new("readelf").arg("-dW").arg(&library).output();
    let dynamic = ok("readelf", readelf.expect("readelf comes with nm"));
    assert!(dynamic.contains("[libtelpher.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
    let links = std::fs::read_link(&library).expect("a link");
    assert_eq!(links, Path::new("libtelpher.so.0"));
    assert_eq!(pkg_config(stage, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);
}

fn first_word(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

#[test]
fn install_supports_a_staging_root() {
    let Ok(stage) = stage() else { return skip::skip("install_supports_a_staging_root", "no tools") };
    let root = stage.join("root");
    let mut install = install(&stage.join("cargo-of-root"));
    install.args(["--prefix=/usr", "--libdir", "/usr/lib64", "--destdir"]).arg(&root);
    ok("install.sh", install.output().expect("install.sh runs"));
    let config = std::fs::read_to_string(root.join("usr/lib64/pkgconfig/telpher.pc")).expect("a pkg-config file");
    assert!(config.contains("prefix=/usr\nlibdir=${prefix}/lib64\nincludedir=${prefix}/include\n"), "{config}");
    assert!(!config.contains(root.to_str().expect("a path in UTF-8")), "{config}");
    for file in
        ["usr/lib64/libtelpher.so.0", "usr/lib64/libtelpher.a", "usr/include/telpher.h", "usr/include/telpher.hpp"]
    {
        assert!(root.join(file).exists(), "{file}");
    }
    ok("install.sh", install.arg("--uninstall").output().expect("install.sh runs"));
    let left = Command::new("find").arg(&root).args(["-not", "-type", "d"]).output().expect("find runs");
    assert_eq!(ok("find", left), "");
    for wrong in ["--colour", "--prefix=stage", "--libdir"] {
        let refused = Command::new(here().join("install.sh")).arg(wrong).output().expect("install.sh runs");
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
    }
}
