//! The measured programs: C sources of our own, compiled when the benchmark runs.

use crate::BenchError;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCES: [(&str, &str); 5] = [
    ("control.h", include_str!("control.h")),
    ("loops.h", include_str!("loops.h")),
    ("over_libfabric.c", include_str!("over_libfabric.c")),
    ("over_mpi.c", include_str!("over_mpi.c")),
    ("without_comm.c", include_str!("without_comm.c")),
];

/// A program compiled for an MPI.
#[derive(Clone, Debug)]
pub(super) struct Mpi {
    /// What starts its ranks.
    pub(super) launcher: OsString,
    /// The program.
    pub(super) program: PathBuf,
}

/// What is there to measure; for each the reason why it is not.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    /// The telpher binary.
    pub(super) telpher: Result<PathBuf, String>,
    /// The variables with which programs find telpher's provider.
    pub(super) provider: Result<Vec<(String, OsString)>, String>,
    /// The variables with which MPI programs use telpher's collective operations.
    pub(super) collectives: Result<Vec<(String, OsString)>, String>,
    /// The client of libfabric.
    pub(super) libfabric: Result<PathBuf, String>,
    /// Open MPI.
    pub(super) open_mpi: Result<Mpi, String>,
    /// MPICH over UCX, as Debian has it.
    pub(super) mpich_ucx: Result<Mpi, String>,
    /// MPICH over libfabric.
    pub(super) mpich_ofi: Result<Mpi, String>,
    /// The library that lets Open MPI use libfabric's shm provider.
    pub(super) without_comm: Result<PathBuf, String>,
}

impl Programs {
    /// Writes the sources to a folder and compiles them. `mpich` is the folder of the programs of an MPICH that uses
    /// libfabric.
    pub(super) fn compile(folder: &Path, mpich: Option<&Path>) -> Result<Programs, BenchError> {
        for (name, source) in SOURCES {
            let path = folder.join(name);
            std::fs::write(&path, source)
                .map_err(|source| BenchError::Program { what: format!("writing {}", path.display()), source })?;
        }
        let libfabric = folder.join("over_libfabric");
        let compiled = compile("cc", folder, "over_libfabric.c", &libfabric, &["-lfabric"], &debian("libfabric-dev"));
        let without_comm = folder.join("without_comm.so");
        let shared = ["-shared", "-fPIC", "-lfabric"];
        let preloaded = compile("cc", folder, "without_comm.c", &without_comm, &shared, &debian("libfabric-dev"));
        let ofi = match mpich {
            Some(bin) => {
                of_mpi(folder, "over_mpich_ofi", &bin.join("mpicc"), &bin.join("mpiexec"), "PyPI's mpich has it")
            }
            None => Err("no MPICH over libfabric is named with --mpich".into()),
        };
        let telpher = std::env::current_exe().map_err(|error| format!("this program is not found: {error}"));
        Ok(Programs {
            provider: variables(&telpher, folder, &[]),
            collectives: variables(&telpher, folder, &["--collectives"]),
            telpher,
            libfabric: compiled.map(|()| libfabric),
            open_mpi: first_of(
                folder,
                "over_open_mpi",
                ["mpicc.openmpi", "mpirun.openmpi"],
                "mpirun",
                "libopenmpi-dev",
            ),
            mpich_ucx: first_of(folder, "over_mpich_ucx", ["mpicc.mpich", "mpiexec.mpich"], "mpiexec", "libmpich-dev"),
            mpich_ofi: ofi,
            without_comm: preloaded.map(|()| without_comm),
        })
    }
}

/// Compiles for an MPI by Debian's names of its programs, or by the plain names. The program says which MPI it is.
fn first_of(folder: &Path, name: &str, names: [&str; 2], plain: &str, package: &str) -> Result<Mpi, String> {
    let [compiler, launcher] = names.map(Path::new);
    let hint = debian(package);
    of_mpi(folder, name, compiler, launcher, &hint).or_else(|why| match has(names[0]) {
        true => Err(why),
        false => of_mpi(folder, name, Path::new("mpicc"), Path::new(plain), &hint).map_err(|_| why),
    })
}

fn debian(package: &str) -> String {
    format!("Debian package {package}")
}

/// Returns true if a program is in a folder of PATH.
fn has(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|paths| std::env::split_paths(&paths).any(|path| path.join(program).exists()))
}

fn of_mpi(folder: &Path, name: &str, compiler: &Path, launcher: &Path, hint: &str) -> Result<Mpi, String> {
    let program = folder.join(name);
    compile(compiler, folder, "over_mpi.c", &program, &[], hint)?;
    Ok(Mpi { launcher: launcher.into(), program })
}

/// Compiles a source; the error says what is missing, and with `hint` where it is to be had.
fn compile(
    compiler: impl AsRef<OsStr>,
    folder: &Path,
    source: &str,
    program: &Path,
    libraries: &[&str],
    hint: &str,
) -> Result<(), String> {
    let compiler = compiler.as_ref();
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(program).arg(folder.join(source)).args(libraries);
    let output = command.stdin(Stdio::null()).output();
    let compiler = compiler.to_string_lossy();
    let output = output.map_err(|error| format!("{compiler} does not start: {error} ({hint})"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let error =
        stderr.lines().find(|line| line.contains("error")).or_else(|| stderr.lines().next()).unwrap_or_default();
    Err(format!("{compiler} does not compile {source}: {} ({hint})", error.trim()))
}

/// Installs a library of `telpher fabric` in the folder and returns the variables that select it.
fn variables(
    telpher: &Result<PathBuf, String>,
    folder: &Path,
    which: &[&str],
) -> Result<Vec<(String, OsString)>, String> {
    let mut command = Command::new(telpher.as_ref().map_err(Clone::clone)?);
    let output = command.args(["fabric", "env", "--folder"]).arg(folder).args(which).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("telpher fabric env does not start: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("telpher fabric env fails: {}", stderr.lines().next().unwrap_or_default()));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let variables = lines.lines().filter_map(|line| line.split_once('='));
    Ok(variables.map(|(name, value)| (name.to_owned(), value.into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn a_source_that_does_not_compile_says_what_is_missing() {
        let folder = Folder::new().unwrap();
        std::fs::write(folder.file("a.c"), "#include <no_such_header_of_telpher.h>\n").unwrap();
        let error = compile("cc", folder.path(), "a.c", &folder.file("a"), &[], &debian("no-such-dev")).unwrap_err();
        assert!(
            error.contains("no_such_header_of_telpher.h") && error.ends_with("(Debian package no-such-dev)"),
            "{error}"
        );
        let error = compile("no-such-cc", folder.path(), "a.c", &folder.file("a"), &[], "gcc").unwrap_err();
        assert!(error.starts_with("no-such-cc does not start"), "{error}");
    }

    #[test]
    fn the_headers_compile_without_libfabric_and_mpi() {
        let folder = Folder::new().unwrap();
        for (name, source) in SOURCES {
            std::fs::write(folder.file(name), source).unwrap();
        }
        let transport = "#define _GNU_SOURCE\n#include \"control.h\"\n\
            static void post_answer(unsigned char *bytes, size_t len) { (void)bytes, (void)len; }\n\
            static void send_one(unsigned char *bytes, size_t len) { (void)bytes, (void)len; }\n\
            static void await_answer(unsigned char *bytes, size_t len) { (void)bytes, (void)len; }\n\
            static void start_send(size_t slot, unsigned char *bytes, size_t len)\n\
                { (void)slot, send_one(bytes, len); }\n\
            static void start_receive(size_t slot, unsigned char *bytes, size_t len)\n\
                { start_send(slot, bytes, len); }\n\
            static void finish(void) {}\n\
            #include \"loops.h\"\n\
            static int extra_task(const char *task, size_t len, int rewritten, size_t window, uint64_t count,\n\
                struct found *found)\n\
                { (void)task, (void)len, (void)rewritten, (void)window, (void)count, (void)found; return 0; }\n\
            int main(void) { allocate(0); pin(0); connect_to_bench(\"\"); obey(); return 0; }\n";
        std::fs::write(folder.file("none.c"), transport).unwrap();
        let flags = ["-Wall", "-Wextra", "-Werror"];
        compile("cc", folder.path(), "none.c", &folder.file("none"), &flags, "gcc").unwrap();
    }
}
