//! Serves one namespace in memory, on loopback, until it is killed.
//!
//! `cargo run --release -p telpher-nvmf --example serve -- 127.0.0.1:4420 1073741824`
//!
//! Then, on a Linux machine that reaches the address:
//! `nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-01.org.example:disk`.

use std::error::Error;
use std::sync::Arc;
use telpher_nvmf::engine::CpuEngine;
use telpher_nvmf::limits::Limits;
use telpher_nvmf::memory::MemoryStorage;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::server::Server;
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::target::Target;

const NQN: &str = "nqn.2026-01.org.example:disk";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:4420".into()).parse()?;
    let bytes = arguments.next().map_or(Ok(1 << 30), |bytes| bytes.parse())?;
    let target = Target::new(Limits::default())?;
    let disk = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "telpher".into(), hosts: None };
    target.add_subsystem(disk)?;
    let storage = Arc::new(MemoryStorage::new(bytes));
    let (uuid, nguid) = ([0x11; 16], [0x22; 16]);
    let options =
        NamespaceOptions { nsid: 1, block_bytes: 4096, uuid, nguid, is_read_only: false, protection: None, storage };
    target.add_namespace(NQN, options)?;
    let mut server = Server::bind(&target, &[address], 256, Box::<CpuEngine>::default())?;
    println!("{NQN} at {:?}", server.addresses()?);
    Ok(server.run()?)
}
