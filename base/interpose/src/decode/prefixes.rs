use super::Instruction;

pub(super) fn decode(_bytes: &[u8]) -> Option<Instruction> {
    None
}
