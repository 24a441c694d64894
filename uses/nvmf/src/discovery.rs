//! The discovery log page (70h). Source: NVMe over Fabrics 1.1 §5.3; for TCP's part, NVMe/TCP Transport 1.1 §3.1.

use crate::subsystem::{DISCOVERY_NQN, Subsystems};
use std::net::SocketAddr;

/// Bytes of the header, and of each record.
pub const RECORD_BYTES: usize = 1024;

/// TRTYPE: TCP.
const TCP: u8 = 3;
/// SUBTYPE: an NVM subsystem.
const NVM_SUBSYSTEM: u8 = 2;
/// SUBTYPE: this discovery subsystem.
const THIS_DISCOVERY: u8 = 3;
/// TREQ: a secure channel is not specified; SQ flow control may be switched off.
const TREQ: u8 = 1 << 2;

/// The log for a host that came in at the address `local`: this discovery subsystem, then the subsystems that the host
/// may use, at each address.
#[must_use]
pub fn log(subsystems: &Subsystems, host: &str, local: SocketAddr) -> Vec<u8> {
    let mut listeners = subsystems.listeners();
    if listeners.is_empty() {
        listeners.push(local);
    }
    let mut page = vec![0; RECORD_BYTES];
    // The generation is read first: a change in between makes the host read the log again.
    page[..8].copy_from_slice(&subsystems.generation().to_le_bytes());
    let depth = subsystems.limits.admin_depth;
    let mut records = 0_u64;
    let mut add = |nqn: &str, kind: u8, port: usize, address: SocketAddr| {
        page.extend_from_slice(&record(nqn, kind, port, address, depth));
        records += 1;
    };
    for (port, listener) in listeners.iter().enumerate() {
        let address = reachable(*listener, local);
        add(DISCOVERY_NQN, THIS_DISCOVERY, port, address);
        for subsystem in subsystems.all() {
            if subsystem.allows(host) {
                add(&subsystem.options().nqn, NVM_SUBSYSTEM, port, address);
            }
        }
    }
    page[8..16].copy_from_slice(&records.to_le_bytes());
    page
}

/// A listener at all addresses is reached at the one that the host came in on.
fn reachable(listener: SocketAddr, local: SocketAddr) -> SocketAddr {
    if listener.ip().is_unspecified() { SocketAddr::new(local.ip(), listener.port()) } else { listener }
}

fn record(nqn: &str, kind: u8, port: usize, address: SocketAddr, admin_depth: u16) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[0] = TCP;
    // An IPv4 address that came in on an IPv6 socket is shown as IPv4.
    let ip = address.ip().to_canonical();
    record[1] = if ip.is_ipv4() { 1 } else { 2 };
    record[2] = kind;
    record[3] = TREQ;
    record[4..6].copy_from_slice(&u16::try_from(port + 1).unwrap_or(u16::MAX).to_le_bytes());
    record[6..8].fill(0xff); // CNTLID: dynamic controllers
    record[8..10].copy_from_slice(&admin_depth.to_le_bytes());
    let mut text = |offset: usize, text: &str| record[offset..offset + text.len()].copy_from_slice(text.as_bytes());
    text(32, &address.port().to_string());
    text(256, nqn);
    text(512, &ip.to_string());
    record
}
