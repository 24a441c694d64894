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
        let mut ops = Vec::new();
        for part in text.split(',').map(|p| p.trim().to_ascii_lowercase()) {
            match part.as_str() {
                "all" => ops.extend(Opcode::NAMED.iter().map(|(_, op)| *op)),
                "copy" => ops.push(Opcode::MemoryMove),
                _ => match Opcode::NAMED.iter().find(|(name, op)| *name == part || op.name() == part) {
                    Some((_, op)) => ops.push(*op),
                    None => {
                        let all: Vec<&str> = Opcode::NAMED.iter().map(|(name, _)| *name).collect();
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
        Ok(Ops(ops))
    }
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
    fn all_is_every_operation_once() {
        assert_eq!("fill,all".parse::<Ops>().unwrap().0.len(), Opcode::NAMED.len());
    }

    #[test]
    fn an_unknown_operation_lists_the_known_ones() {
        let message = "mvoe".parse::<Ops>().unwrap_err().to_string();
        assert!(message.starts_with("'mvoe' is not an operation; use move, fill,"), "{message}");
    }
}
