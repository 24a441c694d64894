//! The work to be done, independent of how.

use crate::machine::Machine;
use crate::profile::{ProfileError, Section};
use crate::scenario::{WorkloadError, workload};
use telpher_abi::Opcode;

/// A piece of work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkRequest {
    /// Its name in outputs.
    pub name: String,
    /// The operation.
    pub op: Opcode,
    /// Bytes of each operation.
    pub size: u32,
    /// Threads with this work.
    pub threads: u32,
    /// Operations a second that arrive at each thread; `None` for as fast as they are done.
    pub rate: Option<u64>,
    /// Operations that a thread has available at once, before the first of them must be done; 1 is synchronous.
    pub in_flight: u32,
    /// Node of the sources.
    pub src: usize,
    /// Node of the destinations.
    pub dst: usize,
    /// Results are read soon by a core.
    pub read_soon: bool,
}

impl WorkRequest {
    /// One thread with operations of `size` bytes in near memory, 32 at once.
    #[must_use]
    pub fn of(op: Opcode, size: u32) -> Self {
        let name = op.name().to_owned();
        WorkRequest { name, op, size, threads: 1, rate: None, in_flight: 32, src: 0, dst: 0, read_soon: false }
    }

    /// Reads the list `[[work]]` of a file, each with `op`, `size` and optional keys; `file` is its name in errors.
    ///
    /// # Errors
    /// Names file, line and key of a missing, impossible or unknown value.
    pub fn parse(file: &str, text: &str, machine: &Machine) -> Result<Vec<WorkRequest>, WorkloadError> {
        let document = workload::document(file, text)?;
        let root = workload::root(file, text, &document);
        let demands = root
            .list("work")?
            .into_iter()
            .map(|section| {
                let demand = WorkRequest::read(&section, machine)?;
                section.end()?;
                Ok(demand)
            })
            .collect::<Result<_, ProfileError>>()?;
        root.end()?;
        Ok(demands)
    }

    /// Reads the keys of work in a section, which may have others.
    pub(crate) fn read(section: &Section<'_>, machine: &Machine) -> Result<WorkRequest, ProfileError> {
        let op = workload::op(section)?;
        if matches!(op, Opcode::Nop | Opcode::Batch | Opcode::Drain) {
            return Err(section.wrong("op", format!("is {}, which does nothing to bytes", op.name())));
        }
        // Cannot fail: up to 2 GiB.
        let of = WorkRequest::of(op, u32::try_from(section.bytes("size", 1..=1 << 31)?).unwrap_or(u32::MAX));
        Ok(WorkRequest {
            name: section.text_if_there("name")?.map_or(of.name, str::to_owned),
            threads: section.count_if_there("threads", 1..=1024, "threads")?.unwrap_or(of.threads),
            rate: section.count_if_there("rate", 1..=u32::MAX, "operations a second")?.map(u64::from),
            in_flight: section.count_if_there("in_flight", 1..=4096, "operations")?.unwrap_or(of.in_flight),
            src: workload::node(section, "src", machine)?.unwrap_or(of.src),
            dst: workload::node(section, "dst", machine)?.unwrap_or(of.dst),
            read_soon: section.flag_if_there("read_soon")?.unwrap_or(of.read_soon),
            ..of
        })
    }
}
