//! Profiles: machines as TOML files, each number with its source beside it.

mod section;

use crate::machine::{DeviceCosts, LibraryCosts, Machine, Node, OpCost, OpCosts, SubmitCosts, WaitCosts};
use crate::ps::Ps;
use section::{Section, Source};
use telpher_abi::Opcode;
use toml::de::DeTable;

/// Why a profile is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// It is not TOML.
    #[error("{file} is not a profile: {what}")]
    Syntax {
        /// Which file.
        file: String,
        /// What the parser said; it names the line.
        what: String,
    },
    /// A parameter is missing.
    #[error("{file}, line {line}: {key} is missing; it must be {expected}")]
    Missing {
        /// Which file.
        file: String,
        /// Where its table begins.
        line: usize,
        /// Which parameter.
        key: String,
        /// What it must be.
        expected: String,
    },
    /// A parameter cannot be so.
    #[error("{file}, line {line}: {key} {what}")]
    Impossible {
        /// Which file.
        file: String,
        /// Where it stands.
        line: usize,
        /// Which parameter.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// A parameter that nobody knows.
    #[error("{file}, line {line}: {key} is not a parameter; known there: {known}")]
    Unknown {
        /// Which file.
        file: String,
        /// Where it stands.
        line: usize,
        /// What stands there.
        key: String,
        /// What could.
        known: String,
    },
}

/// Profiles that come with telpher: name and text.
pub const BUILT_IN: &[(&str, &str)] = &[("spr-asplos", include_str!("../../profiles/spr-asplos.toml"))];

impl Machine {
    /// A built-in profile's machine.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Machine> {
        let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        // The tests read every one of them.
        Machine::parse(name, text).ok()
    }

    /// The reading of a profile; `file` is what errors call it.
    ///
    /// # Errors
    /// Names file, line and key of what is missing, impossible or unknown.
    pub fn parse(file: &str, text: &str) -> Result<Machine, ProfileError> {
        let syntax = |error: toml::de::Error| ProfileError::Syntax { file: file.to_owned(), what: error.to_string() };
        let document = DeTable::parse(text).map_err(syntax)?;
        let root = Section::new(Source { file, text }, String::new(), &(0..0), document.get_ref());
        let mut machine = machine(&root)?;
        root.end()?;
        machine.hash = hash(text);
        Ok(machine)
    }
}

/// Source: Fowler, Noll and Vo's hash, variant 1a, 64 bits; a name for a text, not a seal.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn machine(root: &Section<'_>) -> Result<Machine, ProfileError> {
    let name = root.text("name")?.to_owned();
    let nodes = root.list("node")?.into_iter().map(node).collect::<Result<Vec<_>, _>>()?;
    let (link, link_latency) = match root.section_if_there("link")? {
        None => (None, Ps::ZERO),
        Some(section) => {
            let link = (Some(section.rate("gb_s")?), section.nanos("latency_ns")?);
            section.end()?;
            link
        }
    };
    if link.is_none() && nodes.iter().any(|node| node.socket != nodes[0].socket) {
        return Err(root.wrong("node", "names two sockets, and there is no [link] between them"));
    }
    let section = root.section("device")?;
    let devices = section.indices("nodes", nodes.len(), "memory nodes")?;
    let device = device(&section, root.section("op")?)?;
    section.end()?;
    let submit = submit(root.section("submit")?)?;
    let library = library(root.section("library")?)?;
    let wait = wait(root.section("wait")?)?;
    Ok(Machine { name, hash: 0, nodes, link, link_latency, devices, device, submit, library, wait })
}

fn node(section: Section<'_>) -> Result<Node, ProfileError> {
    let node = Node {
        read: section.rate("read_gb_s")?,
        write: section.rate("write_gb_s")?,
        latency: section.nanos("latency_ns")?,
        write_latency: section.nanos("write_latency_ns")?,
        // Cannot fail: below 8.
        socket: usize::try_from(section.count("socket", 0..=7, "sockets")?).unwrap_or(0),
    };
    section.end()?;
    Ok(node)
}

fn device(section: &Section<'_>, ops: Section<'_>) -> Result<DeviceCosts, ProfileError> {
    Ok(DeviceCosts {
        read: section.rate("read_gb_s")?,
        write: section.rate("write_gb_s")?,
        through: section.rate("copy_gb_s")?,
        descriptor_bytes: section.count("descriptor_bytes", 0..=4096, "bytes")?,
        bubble: section.nanos("bubble_ns")?,
        list_fetch: section.nanos("list_fetch_ns")?,
        // Cannot fail: below 64.
        ready: usize::try_from(section.count("ready", 1..=64, "descriptors")?).unwrap_or(1),
        in_flight: section.count("in_flight_bytes", 64..=1 << 24, "bytes")?,
        ops: op_costs(ops)?,
    })
}

fn op_costs(section: Section<'_>) -> Result<OpCosts, ProfileError> {
    let mut costs = OpCosts::all(op_cost(section.section("other")?)?);
    for (name, op) in section.sections()? {
        if name == "other" {
            continue;
        }
        let Some(opcode) = Opcode::ALL.iter().find(|opcode| opcode.name() == name) else {
            return Err(section.wrong(name, "is not the name of an operation"));
        };
        costs = costs.with(*opcode, op_cost(op)?);
    }
    Ok(costs)
}

fn op_cost(section: Section<'_>) -> Result<OpCost, ProfileError> {
    let cost = OpCost {
        front: section.nanos("front_ns")?,
        latency: section.nanos("latency_ns")?,
        per_doubling: section.nanos("per_doubling_ns")?,
        per_page_doubling: section.nanos("per_page_doubling_ns")?,
    };
    section.end()?;
    Ok(cost)
}

fn submit(section: Section<'_>) -> Result<SubmitCosts, ProfileError> {
    let costs = SubmitCosts {
        movdir: section.nanos("movdir64b_ns")?,
        enqcmd: section.nanos("enqcmd_ns")?,
        system_call: section.nanos("write_ns")?,
        transit: section.nanos("transit_ns")?,
    };
    section.end()?;
    Ok(costs)
}

fn library(section: Section<'_>) -> Result<LibraryCosts, ProfileError> {
    let costs = LibraryCosts {
        prepare: section.nanos("prepare_ns")?,
        prepare_member: section.nanos("prepare_member_ns")?,
        complete: section.nanos("complete_ns")?,
    };
    section.end()?;
    Ok(costs)
}

fn wait(section: Section<'_>) -> Result<WaitCosts, ProfileError> {
    let costs = WaitCosts {
        poll: section.nanos("poll_ns")?,
        umwait: section.nanos("umwait_ns")?,
        interrupt: section.nanos("interrupt_ns")?,
    };
    section.end()?;
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_is_one() {
        for (name, text) in BUILT_IN {
            let machine = Machine::parse(name, text).unwrap();
            assert_eq!(machine.name, *name);
        }
    }

    /// What parsing says of the first profile after a change.
    fn said(from: &str, to: &str) -> String {
        let (name, text) = BUILT_IN[0];
        assert!(text.contains(from), "{from} stands in {name}");
        Machine::parse("my.toml", &text.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn what_is_missing_impossible_or_unknown_is_named_with_its_line() {
        let line_of = |what: &str| BUILT_IN[0].1.lines().position(|line| line.starts_with(what)).unwrap() + 1;
        let submit = line_of("[submit]");
        assert_eq!(
            said("\nenqcmd_ns", "\n# enqcmd_ns"),
            format!("my.toml, line {submit}: submit.enqcmd_ns is missing; it must be a number from 0 to 1000000000 ns")
        );
        let enqcmd = line_of("enqcmd_ns");
        let impossible = said("\nenqcmd_ns = 1", "\nenqcmd_ns = -1");
        assert!(impossible.starts_with(&format!("my.toml, line {enqcmd}: submit.enqcmd_ns is -1")), "{impossible}");
        let unknown = said("\nenqcmd_ns", "\nenqcmd_us = 1\nenqcmd_ns");
        assert!(
            unknown.starts_with(&format!("my.toml, line {enqcmd}: submit.enqcmd_us is not a parameter; known there: ")),
            "{unknown}"
        );
        assert!(said("[op.fill]", "[op.fil]").contains("op.fil is not the name of an operation"));
        assert!(said("nodes = [0", "nodes = [7").contains("each below"));
        assert!(said("[submit]", "[submit").contains("is not a profile"));
    }
}
