//! The jump that replaces the start of a site, and the reasons why a site gets none.

/// The reason why a site was not rewritten. It continues to trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// Rewriting is off.
    Off,
    /// Not an instruction that can be rewritten, or shorter than five bytes.
    NotASite,
    /// Another site is being rewritten; the next trap may try again.
    Busy,
    /// The table is full.
    Full,
    /// No space for a trampoline within 2 GiB.
    Unreachable,
    /// The kernel does not allow writes to this code, or has no barrier for the threads.
    Protected,
}

/// Bytes of a near jump.
pub(super) const JUMP: usize = 5;

/// Encodes `jmp` at `from` to `to`; `None` if out of reach.
pub(super) fn jump(from: usize, to: usize) -> Option<[u8; JUMP]> {
    let distance = i32::try_from(to.wrapping_sub(from).wrapping_sub(JUMP).cast_signed()).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([0xe9, a, b, c, d])
}
