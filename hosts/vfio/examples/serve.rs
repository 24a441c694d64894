//! Serves devices to virtual machines until Ctrl-C: `cargo run -p telpher-vfio --example serve -- SOCKET...`

use telpher_vfio::{Machine, Preset, RunOptions, VfioRun};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machines = std::env::args().skip(1).map(|socket| socket.parse::<Machine>()).collect::<Result<Vec<_>, _>>()?;
    let options = RunOptions { machines, preset: Preset::Spr, engines: 1, uses_messages: false, seconds: None };
    let servers = VfioRun::start(&options, |remark| eprintln!("{remark}"))?;
    servers.wait();
    for totals in servers.totals() {
        println!("{totals:?}");
    }
    Ok(())
}
