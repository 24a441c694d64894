//! The profile's `[software]`: operations on cores.

use super::ProfileError;
use super::section::Section;
use crate::machine::{SoftwareCosts, SoftwareOp, SoftwareOps};
use telpher_abi::Opcode;

/// Reads the table.
pub(super) fn costs(section: &Section<'_>) -> Result<SoftwareCosts, ProfileError> {
    let table = section.section("op")?;
    let mut ops = SoftwareOps::all(op(table.section("other")?)?);
    for (name, of) in table.sections()? {
        if name == "other" {
            continue;
        }
        let Some(opcode) = Opcode::ALL.iter().find(|opcode| opcode.name() == name) else {
            return Err(table.wrong(name, "is not the name of an operation"));
        };
        ops = ops.with(*opcode, op(of)?);
    }
    Ok(SoftwareCosts {
        cores: section.count_if_there("cores", 1..=1 << 16, "cores")?,
        walk: section.nanos("walk_ns")?,
        fill_buffers: section.count("fill_buffers", 1..=1024, "misses")?,
        alone_lines: section.count("alone_lines", 0..=1 << 20, "lines")?,
        window_lines: section.count("window_lines", 1..=1 << 20, "lines")?,
        cached_line: section.nanos("cached_line_ns")?,
        backward_above: section.count("backward_above_bytes", 0..=1 << 30, "bytes")?,
        forward_above: section.count("forward_above_bytes", 0..=1 << 30, "bytes")?,
        ops,
    })
}

fn op(section: Section<'_>) -> Result<SoftwareOp, ProfileError> {
    let op = SoftwareOp {
        call: section.nanos("call_ns")?,
        random: section.nanos("random_ns")?,
        reads: section.count("reads", 0..=4, "lines")?,
        writes: section.count("writes", 0..=4, "lines")?,
        line: section.nanos("line_ns")?,
    };
    section.end()?;
    Ok(op)
}
