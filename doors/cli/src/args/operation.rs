//! Names of operations as a user types them.

use super::values::ValueError;
use std::str::FromStr;
use telpher_abi::Opcode;

/// Operations in the order in which the user gave them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ops(pub(crate) Vec<Opcode>);

impl FromStr for Ops {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse(text, &[]).map(Ops)
    }
}

/// Operations as [`Ops`], and those of DSA 2.x and 3.0 that move or compute bytes. `all` does not include the latter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NewerOps(pub(crate) Vec<Opcode>);

/// Operations of DSA 2.x and 3.0, which have no other name than the specification's.
const NEWER: [Opcode; 12] = [
    Opcode::DixGenerate,
    Opcode::TypeConversion,
    Opcode::Reduce,
    Opcode::ReduceDualcast,
    Opcode::GatherReduce,
    Opcode::GatherCopy,
    Opcode::ScatterCopy,
    Opcode::ScatterFill,
    Opcode::InterDomainCopy,
    Opcode::InterDomainFill,
    Opcode::InterDomainCompare,
    Opcode::InterDomainComparePattern,
];

impl FromStr for NewerOps {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse(text, &NEWER).map(NewerOps)
    }
}

/// Parses the names of operations that have a short one, and of those in `more`.
fn parse(text: &str, more: &[Opcode]) -> Result<Vec<Opcode>, ValueError> {
    let mut ops = Vec::new();
    for part in text.split(',').map(|p| p.trim().to_ascii_lowercase()) {
        let named = || Opcode::NAMED.iter().map(|(_, op)| op).chain(more);
        match part.as_str() {
            "all" => ops.extend(Opcode::NAMED.iter().map(|(_, op)| *op)),
            "copy" => ops.push(Opcode::MemoryMove),
            _ => match named().find(|op| op.short_name() == part || op.name() == part) {
                Some(op) => ops.push(*op),
                None => {
                    let all: Vec<&str> = named().map(|op| op.short_name()).collect();
                    return Err(ValueError(format!("'{part}' is not an operation; use {} or all", all.join(", "))));
                }
            },
        }
    }
    let mut seen = Vec::new();
    ops.retain(|op| {
        !seen.contains(op) && {
            seen.push(*op);
            true
        }
    });
    Ok(ops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_specification_names_mean_the_same() {
        assert_eq!("move".parse::<Ops>(), "memory-move".parse());
        assert_eq!("copy,crc".parse::<Ops>(), "memory-move,crc-generation".parse());
    }

    #[test]
    fn newer_operations_have_the_specifications_names() {
        assert_eq!("crc,reduce".parse::<NewerOps>().unwrap().0, [Opcode::CrcGeneration, Opcode::Reduce]);
        let message = "reduce".parse::<Ops>().unwrap_err().to_string();
        assert!(message.starts_with("'reduce' is not an operation"), "{message}");
        let message = "drain".parse::<NewerOps>().unwrap_err().to_string();
        assert!(message.contains("gather-copy"), "{message}");
    }

    #[test]
    fn operations_of_bench_ops_can_be_named() {
        for op in telpher_bench::ops::operations() {
            assert_eq!(op.short_name().parse::<NewerOps>().unwrap().0, [op]);
        }
    }

    #[test]
    fn all_is_every_operation_once() {
        assert_eq!("fill,all".parse::<Ops>().unwrap().0.len(), Opcode::NAMED.len());
    }

    #[test]
    fn an_unknown_operation_lists_the_known_ones() {
        let message = "mvoe".parse::<Ops>().unwrap_err().to_string();
        assert!(message.starts_with("'mvoe' is not an operation; use move, fill,"), "{message}");
    }
}
