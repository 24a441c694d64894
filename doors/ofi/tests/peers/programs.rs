//! Programs of others that compute: each result is compared with the one over Open MPI's own messages, or checked by
//! the program itself. Module `long` is left to `./soak`.

use crate::provider::Folder;
use crate::skip::skip;
use crate::{PYTHON, RUN_SCRIPT, installed, open_mpi, open_mpi_without_provider, output, shared_scripts};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian's `scalapack-mpi-test` has the programs for Open MPI.
const SCALAPACK: &str = "/usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests";

/// Returns Debian's `mpirun`, if it and NumPy are installed.
fn open_mpi_with_numpy() -> Option<PathBuf> {
    let mut python = Command::new(PYTHON);
    let has_modules = python.args(["-c", "import mpi4py, numpy"]).status().is_ok_and(|status| status.success());
    installed("mpirun.openmpi").filter(|_| has_modules)
}

/// The folder with the Python package `telpher`, if `ci/python.sh` has built and installed it.
fn python_package() -> Option<PathBuf> {
    let test_itself = std::env::current_exe().ok()?;
    let versions = test_itself.ancestors().nth(3)?.join("python/venv/lib");
    let mut folders =
        std::fs::read_dir(versions).ok()?.filter_map(|entry| Some(entry.ok()?.path().join("site-packages")));
    folders.find(|folder| folder.join("telpher").exists())
}

/// Runs `train.py` with this way of clearing the gradients. Prints its report, and returns its losses.
fn losses(mut command: Command, over: &str, clearing: &str) -> String {
    let folders = [Some(shared_scripts()), python_package()];
    let folders = std::env::join_paths(folders.into_iter().flatten()).expect("no colon in paths");
    // A library for linear algebra would start a thread for each core.
    command.env("PYTHONPATH", folders).env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
    command.arg(PYTHON).args(RUN_SCRIPT).arg(shared_scripts().join("train.py")).arg(clearing);
    let printed = output(command);
    let (losses, report) = printed.split_once('\n').expect("two lines");
    assert!(losses.starts_with("losses ") && report.contains("Allreduce"), "{printed}");
    println!("{over}: {}", report.trim());
    losses.to_owned()
}

#[test]
fn two_ranks_train_a_transformer_with_the_same_losses() {
    let test = "two_ranks_train_a_transformer_with_the_same_losses";
    let folder = Folder::new(test);
    let Some(mpirun) = open_mpi_with_numpy() else {
        return skip(test, "Open MPI, mpi4py or NumPy is not installed (openmpi-bin, python3-mpi4py, python3-numpy)");
    };
    let expected = losses(open_mpi_without_provider(&mpirun, "2"), "Open MPI", "numpy");
    assert_eq!(losses(open_mpi(&mpirun, &folder, "2"), "telpher", "numpy"), expected);
}

#[test]
fn gradients_that_a_device_clears_give_the_same_losses() {
    let test = "gradients_that_a_device_clears_give_the_same_losses";
    let folder = Folder::new(test);
    let Some(mpirun) = open_mpi_with_numpy().filter(|_| python_package().is_some()) else {
        return skip(test, "Open MPI, mpi4py, NumPy or the package telpher is not installed (ci/python.sh builds it)");
    };
    let [expected, cpu, device] =
        ["numpy", "cpu", "model:spr"].map(|clearing| losses(open_mpi(&mpirun, &folder, "2"), "telpher", clearing));
    assert_eq!(cpu, expected);
    assert_eq!(device, expected);
}

/// Runs a program of ScaLAPACK's tests, which checks each of its results, and tells how many it has checked.
fn scalapack(test: &str, program: &str, ranks: &str) {
    let folder = Folder::new(test);
    let at = Path::new(SCALAPACK).join(program);
    let Some(mpirun) = installed("mpirun.openmpi").filter(|_| at.exists()) else {
        return skip(test, "Open MPI or ScaLAPACK's tests are not installed (openmpi-bin, scalapack-mpi-test)");
    };
    let mut command = open_mpi(&mpirun, &folder, ranks);
    // The program reads its input from the current folder.
    command.arg(&at).current_dir(SCALAPACK).env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
    let printed = output(command);
    let count = |end: &str| -> Option<u32> {
        let line = printed.lines().find(|line| line.trim_end().ends_with(end))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let passed = count("tests completed and passed residual checks.");
    assert!(passed.is_some_and(|passed| passed >= 10), "{program}: {printed}");
    assert_eq!(count("tests completed and failed residual checks."), Some(0), "{program}: {printed}");
}

#[test]
fn scalapack_factorises_matrices() {
    scalapack("scalapack_factorises_matrices", "xdlu", "2");
}

mod long {
    use super::*;

    /// Factorisations, least squares and inverses of ScaLAPACK, with four ranks in grids of several shapes.
    #[test]
    fn scalapack_finds_no_wrong_result() {
        for program in ["xslu", "xdlu", "xclu", "xzlu", "xdllt", "xdqr", "xdinv", "xdls", "xdbrd", "xdhrd", "xdtrd"] {
            scalapack("scalapack_finds_no_wrong_result", program, "4");
        }
    }

    /// HPL, PTRANS, RandomAccess, FFT, DGEMM, STREAM, and messages between neighbours: each part checks its results.
    #[test]
    fn hpcc_passes_its_own_checks() {
        let test = "hpcc_passes_its_own_checks";
        let folder = Folder::new(test);
        let sample = "/usr/share/doc/hpcc/examples/_hpccinf.txt";
        let sample = std::fs::read_to_string(sample).ok();
        let (Some(mpirun), Some(hpcc), Some(sample)) = (installed("mpirun.openmpi"), installed("hpcc"), sample) else {
            return skip(test, "Open MPI or HPCC is not installed (openmpi-bin, hpcc)");
        };
        // Two ranks instead of four, and a matrix that fits the time of a test.
        let input = sample.replace("1000         Ns", "300          Ns").replace("2            Ps", "1            Ps");
        assert_ne!(input, sample, "HPCC has another sample of its input");
        let results = PathBuf::from(folder.path()).join("hpcc");
        std::fs::create_dir(&results).expect("room");
        std::fs::write(results.join("hpccinf.txt"), input).expect("room");
        let mut command = open_mpi(&mpirun, &folder, "2");
        command.arg(hpcc).current_dir(&results).env("OMP_NUM_THREADS", "1");
        output(command);
        let report = std::fs::read_to_string(results.join("hpccoutf.txt")).expect("HPCC wrote its results");
        for expected in [
            "\nSuccess=1",
            "...... PASSED",
            "\nMPIRandomAccess_Errors=0",
            "\nMPIRandomAccess_LCG_Errors=0",
            "Solution Validates",
            "End of HPC Challenge tests.",
        ] {
            assert!(report.contains(expected), "{expected} is missing:\n{report}");
        }
        let error: Option<f64> = report.lines().find_map(|line| line.strip_prefix("MPIFFT_maxErr=")?.parse().ok());
        assert!(error.is_some_and(|error| error < 1e-12), "{error:?}");
        // Of each transposition, and of the solution.
        assert!(report.matches("PASSED").count() >= 2 && !report.contains("FAILED"), "{report}");
    }

    fn letter(random: &mut telpher_os::Random) -> u8 {
        b"ACGT"[usize::try_from(random.below(4)).expect("below four")]
    }

    /// Sequences of eight species whose ancestors are known.
    fn alignment() -> String {
        let mut random = telpher_os::Random::new(1);
        let first: Vec<u8> = (0..200).map(|_| letter(&mut random)).collect();
        let mut species = vec![first];
        let mut random = telpher_os::Random::new(2);
        while species.len() < 8 {
            let children = species.iter().flat_map(|parent| [parent, parent]);
            species = children
                .map(|parent| {
                    let change = |&base: &u8| match random.below(12) {
                        0 => letter(&mut random),
                        _ => base,
                    };
                    parent.iter().map(change).collect()
                })
                .collect();
        }
        let rows = species.iter().enumerate();
        rows.map(|(i, row)| format!("species{i} {}\n", String::from_utf8_lossy(row))).collect()
    }

    /// Runs MrBayes, and returns the likelihoods and parameters of all samples.
    fn samples(mut command: Command, program: &Path, folder: &Path) -> String {
        std::fs::create_dir(folder).expect("room");
        let input = format!(
            "#NEXUS\nbegin data;\ndimensions ntax=8 nchar=200;\nformat datatype=dna;\nmatrix\n{};\nend;\n\
            begin mrbayes;\nset autoclose=yes nowarn=yes seed=7 swapseed=7;\nlset nst=6 rates=gamma;\n\
            mcmc nruns=2 nchains=4 ngen=2000 samplefreq=50 printfreq=500 diagnfreq=500;\nend;\n",
            alignment()
        );
        std::fs::write(folder.join("species.nex"), input).expect("room");
        command.arg(program).arg("species.nex").current_dir(folder);
        output(command);
        let files = ["species.nex.run1.p", "species.nex.run2.p"].map(|name| {
            let text = std::fs::read_to_string(folder.join(name)).expect("MrBayes wrote its samples");
            // The first line is a number of this run.
            text.lines().skip(1).map(|line| format!("{line}\n")).collect::<String>()
        });
        files.concat()
    }

    #[test]
    fn mrbayes_finds_the_same_likelihoods() {
        let test = "mrbayes_finds_the_same_likelihoods";
        let folder = Folder::new(test);
        let program = Path::new("/usr/lib/mrbayes-mpi/mb-mpi");
        let Some(mpirun) = installed("mpirun.openmpi").filter(|_| program.exists()) else {
            return skip(test, "Open MPI or MrBayes is not installed (openmpi-bin, mrbayes-mpi)");
        };
        let results = Path::new(folder.path());
        let expected = samples(open_mpi_without_provider(&mpirun, "2"), program, &results.join("own"));
        let found = samples(open_mpi(&mpirun, &folder, "2"), program, &results.join("telpher"));
        assert!(expected.lines().count() > 80, "{expected}");
        assert_eq!(found, expected);
    }
}
