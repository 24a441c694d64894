//! The provider in the installed libfabric: `fi_info`, and a program in C that calls every operation.

#[path = "../../../ci/skip.rs"]
mod skip;

mod provider;

use provider::Folder;
use skip::skip;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a program of libfabric's with the provider; `None` if it is not installed.
fn run(program: &Path, args: &[&str], folder: &Folder) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(args).env("FI_PROVIDER_PATH", folder.path()).env("TELPHER_LOG", "info");
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{error}"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn fi_info_lists_the_provider_once_and_says_why_it_does_not() {
    let test = "fi_info_lists_the_provider_once_and_says_why_it_does_not";
    let folder = Folder::new(test);
    let info = |args: &[&str]| run(Path::new("fi_info"), args, &folder);
    let Some(listed) = info(&["-p", "telpher"]) else { return skip(test, "fi_info is not installed (libfabric-bin)") };
    let listed = text(&listed.stdout);
    // No provider layers itself over this one: then a name such as "telpher;ofi_rxm" would appear.
    let names: Vec<&str> = listed.lines().filter(|line| line.starts_with("provider: ")).collect();
    assert_eq!(names, ["provider: telpher"], "{listed}");
    assert!(listed.contains("type: FI_EP_RDM"), "{listed}");
    // Without the variable, libfabric loads nothing of ours.
    let without = Command::new("fi_info").env_remove("FI_PROVIDER_PATH").output().expect("installed");
    assert!(!text(&without.stdout).contains("telpher"), "{}", text(&without.stdout));
    let detailed = text(&info(&["-p", "telpher", "-v", "-c", "FI_TAGGED|FI_DIRECTED_RECV"]).expect("installed").stdout);
    for expected in ["FI_TAGGED", "FI_DIRECTED_RECV", "FI_REMOTE_COMM", "FI_PROGRESS_MANUAL", "FI_ORDER_SAS"] {
        assert!(detailed.contains(expected), "{expected} is missing:\n{detailed}");
    }
    let refused = [
        (&["-c", "FI_HMEM"][..], "FI_HMEM, which telpher does not have"),
        (&["-t", "FI_EP_MSG"], "another type of endpoint than FI_EP_RDM"),
        (&["-d", "eth0"], "the domain \"eth0\""),
        (&["-n", "localhost", "-P", "5000"], "names a host or an address"),
    ];
    for (args, reason) in refused {
        let output = info(&[&["-p", "telpher"], args].concat()).expect("installed");
        assert!(!output.status.success(), "{args:?}");
        assert!(text(&output.stderr).contains(reason), "{args:?}: {}", text(&output.stderr));
    }
}

/// Compiles a program in C. The error says what is not installed.
fn compiled(name: &str, folder: &Folder) -> Result<PathBuf, &'static str> {
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        return Err("libfabric's headers are not installed (libfabric-dev)");
    }
    let program = Path::new(folder.path()).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name).with_extension("c");
    let mut compiler = Command::new("cc");
    let compiled = compiler
        .args(["-O1", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .arg(source)
        .args(["-lfabric", "-pthread"])
        .output();
    let compiled = compiled.map_err(|_| "no C compiler is installed")?;
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    Ok(program)
}

#[test]
fn every_operation_works_from_c() {
    let test = "every_operation_works_from_c";
    let folder = Folder::new(test);
    let program = match compiled("messages", &folder) {
        Ok(program) => program,
        Err(lacking) => return skip(test, lacking),
    };
    for device in ["cpu", "model:spr"] {
        let mut command = Command::new(&program);
        command.env("FI_PROVIDER_PATH", folder.path()).env("TELPHER_LOG", "info").env("TELPHER_FABRIC_DEVICE", device);
        let output = command.output().expect("it was just compiled");
        let remarks = text(&output.stderr);
        let report = format!("{device}: {}\n{}{remarks}", output.status, text(&output.stdout));
        assert!(output.status.success(), "{report}");
        assert_eq!(text(&output.stdout).lines().count(), 29, "{report}");
        assert!(
            remarks.contains("is on another machine; telpher carries messages within one machine only"),
            "{report}"
        );
        assert_eq!(remarks.contains("model:spr copies pieces"), device == "model:spr", "{report}");
    }
    // A device that does not exist leaves the copies to the CPU, and a line says so.
    let mut command = Command::new(&program);
    command.env("FI_PROVIDER_PATH", folder.path()).env("TELPHER_FABRIC_DEVICE", "hw:wq77.7").arg("all_sizes_arrive");
    let output = command.output().expect("it was just compiled");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("the CPU copies messages, not TELPHER_FABRIC_DEVICE=hw:wq77.7"));
}

#[test]
fn a_tuning_file_says_how_messages_travel() {
    let test = "a_tuning_file_says_how_messages_travel";
    let folder = Folder::new(test);
    let program = match compiled("messages", &folder) {
        Ok(program) => program,
        Err(lacking) => return skip(test, lacking),
    };
    let file = Path::new(folder.path()).join("tuning.toml");
    let machine = "version = 1\n[machine]\ncpu = \"x\"\ndevice = \"cpu\"\nin-flight = 1\n";
    for (lengths, remark) in [
        ("eager-bytes = 65536\nstreaming-bytes = \"off\"\npull-bytes = 16384\n", None),
        ("eager-bytes = 1\n", Some("is not used: under [messages], eager-bytes: 1 bytes; it is from 8192 to 65536")),
    ] {
        std::fs::write(&file, format!("{machine}[messages]\n{lengths}")).expect("room");
        let mut command = Command::new(&program);
        command.env("FI_PROVIDER_PATH", folder.path()).env("TELPHER_TUNING", &file);
        let output = command.arg("all_sizes_arrive").output().expect("it was just compiled");
        let remarks = text(&output.stderr);
        assert!(output.status.success(), "{remarks}");
        // A remark about the processor comes, too.
        assert!(remark.is_none_or(|remark| remarks.contains(remark)), "{remarks}");
        assert_eq!(remarks.contains("is not used"), remark.is_some(), "{remarks}");
    }
}

#[test]
fn without_a_problem_nothing_is_printed() {
    let test = "without_a_problem_nothing_is_printed";
    let folder = Folder::new(test);
    let program = match compiled("messages", &folder) {
        Ok(program) => program,
        Err(lacking) => return skip(test, lacking),
    };
    for device in ["cpu", "model:spr"] {
        let mut command = Command::new(&program);
        command.env("FI_PROVIDER_PATH", folder.path()).env("TELPHER_FABRIC_DEVICE", device);
        let output = command.env_remove("TELPHER_LOG").arg("all_sizes_arrive").output().expect("it was just compiled");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{device}");
    }
}

#[test]
fn the_library_stays_loaded_when_libfabric_closes_it() {
    let test = "the_library_stays_loaded_when_libfabric_closes_it";
    let folder = Folder::new(test);
    let library = Path::new(folder.path()).join("libtelpher-fi.so");
    let Ok(sections) = Command::new("readelf").arg("-d").arg(library).output() else {
        return skip(test, "readelf is not installed (binutils)");
    };
    // Its threads would go on in memory that is gone.
    assert!(text(&sections.stdout).contains("NODELETE"), "{}", text(&sections.stdout));
}

#[test]
fn memory_of_peers_is_accessed_from_c() {
    let test = "memory_of_peers_is_accessed_from_c";
    let folder = Folder::new(test);
    let program = match compiled("accesses", &folder) {
        Ok(program) => program,
        Err(lacking) => return skip(test, lacking),
    };
    for registration in ["virtual", "scalable"] {
        for device in ["cpu", "model:spr"] {
            let mut command = Command::new(&program);
            command.arg(registration).env("FI_PROVIDER_PATH", folder.path()).env("TELPHER_FABRIC_DEVICE", device);
            let output = command.output().expect("it was just compiled");
            let report = format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{registration}, {device}: {report}");
            assert_eq!(text(&output.stdout).lines().count(), 11, "{registration}, {device}: {report}");
        }
    }
}
