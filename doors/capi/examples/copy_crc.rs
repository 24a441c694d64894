//! Copies a buffer and computes its CRC32C in the same pass, while the program does other work.
//!
//! `cargo run -p telpher-capi --example copy_crc -- model:spr`

use std::error::Error;
use std::time::Duration;
use telpher_device::{OpenOptions, open};
use telpher_mover::{CrcMode, Mover, Policy, Threshold};

const LEN: usize = 1024 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("model:spr".into());
    let device = open(&name.parse()?, OpenOptions::default())?;
    let mover = Mover::new(device.portals, Policy { threshold: Threshold::all(16 << 10), ..Policy::default() });

    let src: Vec<u8> = (0..LEN).map(|i| (i * 7).to_le_bytes()[0]).collect();
    let mut job = mover.copy_crc(src, vec![0; LEN], 0, CrcMode::default());

    // The job owns both buffers until it has ended. The program can do other work meanwhile.
    while !job.wait_for(Duration::from_micros(100)) {}

    let (result, src, dst) = job.wait().into_parts();
    let crc = result?.crc().ok_or("a copy with CRC comes to a CRC")?;
    println!("{LEN} bytes, CRC32C {crc:08x}, {}", if src == dst { "equal" } else { "different" });
    Ok(())
}
