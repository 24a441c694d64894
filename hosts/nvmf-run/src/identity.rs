//! Identifiers that a configuration does not give, derived from names: the same after every restart.
//!
//! | value | derived from |
//! |---|---|
//! | serial number | the first 20 hexadecimal digits of the hash of `serial`, 0, NQN |
//! | UUID | the hash of `uuid`, 0, NQN, 0, NSID in decimal, as a UUID of version 8 |
//! | NGUID | the hash of `nguid`, 0, NQN, 0, NSID in decimal |
//!
//! The hash is FNV-1a of 128 bits (RFC 9923); 0 is a byte of that value. Linux rejects a namespace whose identifiers
//! have changed, so this rule must never change.

/// Source: RFC 9923 §2.
const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
/// Source: RFC 9923 §2.
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

fn hash(parts: &[&str]) -> u128 {
    let bytes = parts.join("\0").into_bytes();
    bytes.into_iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// The serial number of a subsystem.
pub(crate) fn serial(nqn: &str) -> String {
    format!("{:032x}", hash(&["serial", nqn]))[..20].to_owned()
}

/// The UUID of a namespace.
pub(crate) fn uuid(nqn: &str, nsid: u32) -> [u8; 16] {
    let mut bytes = hash(&["uuid", nqn, &nsid.to_string()]).to_be_bytes();
    // Version 8 is for values of any origin, variant 10b. Source: RFC 9562 §5.8.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// The NGUID of a namespace.
pub(crate) fn nguid(nqn: &str, nsid: u32) -> [u8; 16] {
    hash(&["nguid", nqn, &nsid.to_string()]).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Identifier;

    #[test]
    fn the_hash_is_fnv_1a() {
        // Source: RFC 9923's test values.
        assert_eq!(hash(&[""]), OFFSET);
        assert_eq!(hash(&["a"]), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(hash(&["foobar"]), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn identifiers_never_change() {
        let nqn = "nqn.2026-01.org.example:disk";
        assert_eq!(serial(nqn), "2a2e7cb68dbbec00eae9");
        assert_eq!(Identifier(uuid(nqn, 1)).to_string(), "6d04bb7d-83d9-8212-8af1-bd8066fffe09");
        assert_eq!(Identifier(nguid(nqn, 1)).to_string(), "a8a75ee5-a81a-2e02-a420-b56615e6fa2b");
        assert_ne!(uuid(nqn, 1), uuid(nqn, 2));
        assert_ne!(nguid(nqn, 1), nguid("nqn.2026-01.org.example:disk2", 1));
    }
}
