//! Unmodified MPI programs with the library in front of their MPI. `ci/peers.sh` runs them. A program that is not
//! installed makes its test skip visibly.

#[path = "../../../../ci/skip.rs"]
mod skip;

use skip::skip;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use telpher_launch::libraries;

/// Seconds after which a program has hung. Each takes a few on a quiet machine.
const LONGEST: &str = "240";

/// The parts of `collective.py`, in their order.
const PARTS: [&str; 8] = [
    "types_and_operations",
    "lengths",
    "communicators",
    "derived_types",
    "own_operations",
    "messages_move_meanwhile",
    "between_groups",
    "errors",
];

/// What a program has printed.
struct Printed {
    output: String,
    errors: String,
    succeeded: bool,
}

/// A program that ends after a while, with all its children.
fn timed(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal", "KILL", LONGEST]).arg(program).env("PYTHONPATH", shared_scripts());
    command
}

/// Scripts of the tests of several crates, and what all scripts import.
fn shared_scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/mpi")
}

/// Preloads the library into the ranks of a command.
fn preloaded(command: &mut Command) {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libtelpher-collectives.so");
        libraries::COLLECTIVES.write_to(&file).expect("room")
    });
    command.env("LD_PRELOAD", library).env("TELPHER_LOG", "info");
}

fn run(mut command: Command) -> Printed {
    let output = command.output().expect("coreutils have timeout");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Printed { output: text(&output.stdout), errors: text(&output.stderr), succeeded: output.status.success() }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(name)
}

/// Debian's Open MPI and mpi4py, with this many ranks.
fn open_mpi(ranks: u32) -> Option<Command> {
    let python = Path::new("/usr/bin/python3");
    let has_mpi4py = Command::new(python).args(["-c", "import mpi4py"]).status().is_ok_and(|status| status.success());
    let folders = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join("mpirun.openmpi"));
    let mpirun = paths.find(|path| path.exists() && has_mpi4py)?;
    let mut command = timed(&mpirun);
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", &ranks.to_string()]);
    // Ranks that wait let others run: tests share the cores.
    command.args(["--mca", "mpi_yield_when_idle", "1"]);
    // A sender of a long message has to push its bytes, also while it waits in a collective operation.
    command.args(["--mca", "btl_vader_single_copy_mechanism", "none"]).arg(python);
    Some(command)
}

/// PyPI's MPICH and mpi4py, in a folder of the build.
fn mpich(ranks: u32) -> Option<Command> {
    let test_itself = std::env::current_exe().ok()?;
    let environment = test_itself.ancestors().nth(3)?.join("mpich");
    if !environment.join("bin/mpiexec").exists() {
        let made = Command::new("python3").args(["-m", "venv"]).arg(&environment).status();
        made.ok().filter(std::process::ExitStatus::success)?;
        let mut pip = Command::new(environment.join("bin/pip"));
        let installed =
            pip.args(["install", "--quiet", "--disable-pip-version-check", "mpich==5.0.2", "mpi4py==4.1.2"]).status();
        installed.ok().filter(std::process::ExitStatus::success)?;
    }
    let mut command = timed(&environment.join("bin/mpiexec"));
    command.args(["-n", &ranks.to_string()]).arg(environment.join("bin/python"));
    Some(command)
}

/// Runs `collective.py`, and checks that all its parts have run, and that calls were taken. Returns the line of counts
/// of each rank; none if it was skipped.
fn check_results(test: &str, command: Option<Command>, ranks: usize) -> Vec<String> {
    let Some(mut command) = command else {
        skip(test, "the MPI or its mpi4py is not installed");
        return Vec::new();
    };
    preloaded(&mut command);
    command.arg(script("collective.py"));
    let printed = run(command);
    assert!(printed.succeeded, "{}{}", printed.output, printed.errors);
    let parts: Vec<&str> = printed.output.lines().filter(|line| PARTS.contains(line)).collect();
    assert_eq!(parts, PARTS, "{}", printed.output);
    let counts: Vec<&str> =
        printed.errors.lines().filter_map(|line| Some(line.split_once("calls taken/left to the MPI:")?.1)).collect();
    assert_eq!(counts.len(), ranks, "{}", printed.errors);
    for function in ["MPI_Allreduce", "MPI_Reduce", "MPI_Bcast", "MPI_Allgather"] {
        assert!(counts.iter().all(|line| !line.contains(&format!("{function} 0/"))), "{counts:?}");
    }
    counts.into_iter().map(str::to_owned).collect()
}

/// Has a modelled device copy for the group of each communicator. Its first long operation always uses it.
fn with_device(command: Option<Command>) -> Option<Command> {
    command.map(|mut command| {
        command.env("TELPHER_FABRIC_DEVICE", "model:spr");
        command
    })
}

#[test]
fn a_device_copies_for_two_ranks_of_open_mpi() {
    let counts = check_results("a_device_copies_for_two_ranks_of_open_mpi", with_device(open_mpi(2)), 2);
    assert!(counts.iter().all(|line| line.contains("; copies by a device: ")), "{counts:?}");
}

#[test]
fn a_device_copies_for_three_ranks_of_mpich() {
    let counts = check_results("a_device_copies_for_three_ranks_of_mpich", with_device(mpich(3)), 3);
    assert!(counts.iter().all(|line| line.contains("; copies by a device: ")), "{counts:?}");
}

#[test]
fn two_ranks_of_open_mpi_get_right_results() {
    check_results("two_ranks_of_open_mpi_get_right_results", open_mpi(2), 2);
}

#[test]
fn three_ranks_of_open_mpi_get_right_results() {
    check_results("three_ranks_of_open_mpi_get_right_results", open_mpi(3), 3);
}

#[test]
fn four_ranks_of_open_mpi_get_right_results() {
    check_results("four_ranks_of_open_mpi_get_right_results", open_mpi(4), 4);
}

#[test]
fn eight_ranks_of_open_mpi_get_right_results() {
    check_results("eight_ranks_of_open_mpi_get_right_results", open_mpi(8), 8);
}

#[test]
fn two_ranks_of_mpich_get_right_results() {
    check_results("two_ranks_of_mpich_get_right_results", mpich(2), 2);
}

#[test]
fn three_ranks_of_mpich_get_right_results() {
    check_results("three_ranks_of_mpich_get_right_results", mpich(3), 3);
}

#[test]
fn four_ranks_of_mpich_get_right_results() {
    check_results("four_ranks_of_mpich_get_right_results", mpich(4), 4);
}

#[test]
fn eight_ranks_of_mpich_get_right_results() {
    check_results("eight_ranks_of_mpich_get_right_results", mpich(8), 8);
}

/// Runs `train.py` with two ranks of Open MPI. Returns its losses, and how many calls of `MPI_Allreduce` were taken.
fn losses(test: &str, over: &str, prepare: impl Fn(&mut Command)) -> Option<(String, usize)> {
    let has_numpy =
        || Command::new("/usr/bin/python3").args(["-c", "import numpy"]).status().is_ok_and(|s| s.success());
    let Some(mut command) = open_mpi(2).filter(|_| has_numpy()) else {
        skip(test, "Open MPI, mpi4py or NumPy is not installed");
        return None;
    };
    prepare(&mut command);
    command.env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
    command.args(["-m", "mpi4py"]).arg(shared_scripts().join("train.py"));
    let printed = run(command);
    assert!(printed.succeeded, "{}{}", printed.output, printed.errors);
    let (losses, report) = printed.output.split_once('\n').expect("two lines");
    println!("{over}: {}", report.trim());
    let taken = printed.errors.split("MPI_Allreduce ").skip(1).filter(|rest| !rest.starts_with("0/")).count();
    Some((losses.to_owned(), taken))
}

#[test]
fn two_ranks_train_with_the_same_losses() {
    let test = "two_ranks_train_with_the_same_losses";
    let Some((expected, _)) = losses(test, "Open MPI", |_| ()) else { return };
    let Some((found, ranks)) = losses(test, "telpher's collectives", preloaded) else { return };
    assert_eq!((found, ranks), (expected, 2));
}

#[test]
fn a_rank_without_the_switch_keeps_all_calls_with_the_mpi() {
    let test = "a_rank_without_the_switch_keeps_all_calls_with_the_mpi";
    let Some(mut command) = open_mpi(2) else { return skip(test, "Open MPI or mpi4py is not installed") };
    preloaded(&mut command);
    let program = "import os\n\
        from mpi4py import rc; rc.initialize = False\n\
        from mpi4py import MPI\n\
        MPI.Init()\n\
        world = MPI.COMM_WORLD\n\
        from array import array\n\
        got = array('d', bytes(80000)); world.Allreduce(array('d', [1.0]) * 10000, got); assert got[-1] == 2.0\n\
        MPI.Finalize()";
    // Only rank 1 is switched off.
    let is_one = "import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':";
    let switch = format!("{is_one}\n os.environ['TELPHER_COLLECTIVES'] = 'off'\n{program}");
    command.args(["-c", &switch]);
    let printed = run(command);
    assert!(printed.succeeded, "{}{}", printed.output, printed.errors);
    assert_eq!(printed.errors.matches("stay with the MPI: rank 1 does not want it").count(), 2, "{}", printed.errors);
    assert_eq!(printed.errors.matches("MPI_Allreduce 0/1").count(), 2, "{}", printed.errors);
}

#[test]
fn a_killed_rank_ends_the_job() {
    let test = "a_killed_rank_ends_the_job";
    let Some(mut command) = open_mpi(3) else { return skip(test, "Open MPI or mpi4py is not installed") };
    preloaded(&mut command);
    // The ranks that live see the error: they do not end by it, but say so.
    let program = "import os, signal, sys\n\
        from mpi4py import MPI\n\
        from array import array\n\
        world = MPI.COMM_WORLD\n\
        world.Set_errhandler(MPI.ERRORS_RETURN)\n\
        data, got = array('d', bytes(800000)), array('d', bytes(800000))\n\
        world.Allreduce(data, got)\n\
        if world.rank == 1:\n \
            os.kill(os.getpid(), signal.SIGKILL)\n\
        try:\n \
            world.Allreduce(data, got)\n\
        except MPI.Exception as error:\n \
            print('noticed', flush=True)\n\
        os._exit(0)";
    command.args(["-c", program]);
    let printed = run(command);
    // Open MPI's launcher ends the others as soon as it sees the death; they may or may not be faster.
    let is_noticed = printed.errors.contains("MPI_Allreduce failed on rank") || printed.errors.contains("signal 9");
    assert!(!printed.succeeded && is_noticed, "{}{}", printed.output, printed.errors);
}
