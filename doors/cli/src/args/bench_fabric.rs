//! Options of `telpher bench fabric`.

use super::output::Output;
use super::values::parse_seconds;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use telpher_bench::options;

/// Measure messages between two processes: telpher, libfabric's shm provider, MPIs.
///
/// Two ranks on two cores exchange messages through telpher's provider for libfabric, through libfabric's shm
/// provider, with and without CMA (process_vm_readv), through Open MPI's vader and MPICH over UCX, and through these
/// MPIs over telpher. All take turns of 5 ms. Buffers are still, or rewritten by the sender before each send. Every
/// program checks the bytes that arrive.
///
/// The distance of the two cores is measured before and after every point, since virtual CPUs migrate. Only points of
/// one distance are compared. A point is dropped and counted if the distance changed, or if a rank had less than 96 %
/// of its core. A peer that does not answer is ended, and the result says so.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
The measured programs are compiled with cc and mpicc when the bench starts. What is missing is not \
measured, and the result says which of Debian's packages has it: gcc, libfabric-dev, libopenmpi-dev, \
libmpich-dev. MPICH over telpher needs an MPICH that uses libfabric, as PyPI has it:
  python3 -m venv mpi && mpi/bin/pip install mpich

LD_LIBRARY_PATH selects another libfabric. TELPHER_FABRIC_DEVICE lets a device copy long messages.

Examples:
  telpher bench fabric
  telpher bench fabric --only latency,rate --seconds 30
  telpher bench fabric --mpich mpi/bin --only allreduce --format json
  telpher bench fabric --quick"
)]
pub(crate) struct FabricBench {
    /// Parts to measure: latency, long, bandwidth, rma, rate, allreduce, overlap [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<FabricPart>,
    /// Total measuring time in seconds; every part has one round at least.
    #[arg(long, value_name = "S", default_value = "75", value_parser = parse_seconds)]
    seconds: f64,
    /// A short run: few lengths, one round.
    #[arg(long)]
    quick: bool,
    /// Folder of mpicc and mpiexec of an MPICH that uses libfabric.
    #[arg(long, value_name = "DIR")]
    mpich: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Be a rank: the bench's socket, the number of the rank, its CPU.
    #[arg(long, hide = true, num_args = 3)]
    program: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FabricPart {
    /// Short messages, half round trips.
    Latency,
    /// Longer messages, half round trips.
    Long,
    /// Bytes a second in one direction.
    Bandwidth,
    /// Bytes a second written to and read from remote memory.
    Rma,
    /// Short messages a second.
    Rate,
    /// Sums over the ranks of an MPI.
    Allreduce,
    /// Messages while the ranks compute.
    Overlap,
}

impl FabricBench {
    /// What is measured.
    pub(crate) fn options(&self) -> options::FabricOptions {
        options::FabricOptions {
            only: self.only.iter().map(|part| part.option()).collect(),
            seconds: self.seconds,
            quick: self.quick,
            mpich: self.mpich.clone(),
        }
    }

    /// Returns the socket, the number and the CPU of a rank, if this process is one.
    pub(crate) fn rank(&self) -> Option<(PathBuf, usize, usize)> {
        match self.program.as_deref()? {
            [socket, number, cpu] => Some((socket.into(), number.parse().ok()?, cpu.parse().ok()?)),
            _ => None,
        }
    }
}

impl FabricPart {
    fn option(self) -> options::FabricPart {
        match self {
            FabricPart::Latency => options::FabricPart::Latency,
            FabricPart::Long => options::FabricPart::Long,
            FabricPart::Bandwidth => options::FabricPart::Bandwidth,
            FabricPart::Rma => options::FabricPart::Rma,
            FabricPart::Rate => options::FabricPart::Rate,
            FabricPart::Allreduce => options::FabricPart::Allreduce,
            FabricPart::Overlap => options::FabricPart::Overlap,
        }
    }
}
