//! The address of an endpoint: where its socket is, and which machine and user it belongs to.

use std::fmt;

/// Bytes of an encoded address.
pub const ADDRESS_BYTES: usize = 48;

/// Begins every encoded address, so that an address of another provider is refused. Source: chosen.
const MAGIC: [u8; 8] = *b"telpher1";

/// Identifies an endpoint on this machine.
///
/// The socket of an endpoint is in the kernel's abstract namespace, so it ends with its process and leaves no file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The boot of the machine (`/proc/sys/kernel/random/boot_id`): two machines never share one.
    pub boot: [u8; 16],
    /// The user of the process.
    pub user: u32,
    /// The process, as its own PID namespace numbers it. For messages; the socket's name does not depend on it.
    pub process: u32,
    /// A random number that names the socket.
    pub number: u64,
}

impl Address {
    /// Encodes the address; equal addresses have equal bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.boot);
        bytes[24..28].copy_from_slice(&self.user.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.process.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Decodes an address; `None` if the bytes are not an address of telpher.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Address> {
        let bytes: &[u8; ADDRESS_BYTES] = bytes.get(..ADDRESS_BYTES)?.try_into().ok()?;
        if bytes[..8] != MAGIC || bytes[40..] != [0; 8] {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Some(Address {
            boot: bytes[8..24].try_into().expect("sixteen bytes"),
            user: word(24),
            process: word(28),
            number: u64::from_le_bytes(bytes[32..40].try_into().expect("eight bytes")),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "telpher://{:016x} (process {}, user {})", self.number, self.process, self.user)
    }
}
