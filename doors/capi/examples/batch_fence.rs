//! Several operations submitted together. The members after a fence wait for those before it, and are abandoned if one
//! of those failed.
//!
//! `cargo run -p telpher-capi --example batch_fence -- model:spr`

use std::error::Error;
use telpher_device::{OpenOptions, open};
use telpher_mover::{Mover, Outcome, Policy, Threshold};

const LEN: usize = 65536;

/// Overwrites `place` if `seen` is as expected, and clears some scratch memory. Returns `place`.
fn round_of(mover: &Mover, seen: Vec<u8>, next: Vec<u8>, place: Vec<u8>) -> Vec<u8> {
    let mut batch = mover.batch();
    batch.fill(vec![1; LEN], 0);
    // A difference counts as a failure at the fence.
    batch.compare_expecting(seen, vec![0; LEN], false);
    let overwrite = batch.fence().copy(next, place);
    let mut done = batch.submit().wait();

    for (i, result) in done.results() {
        match result {
            Ok(Outcome::Equal) => println!("member {i}: equal"),
            Ok(Outcome::Different { at }) => println!("member {i}: different from byte {at} on"),
            Ok(_) => println!("member {i}: done"),
            Err(error) => println!("member {i}: {error}"),
        }
    }
    done.take(overwrite).buffers.1
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("model:spr".into());
    let device = open(&name.parse()?, OpenOptions::default())?;
    let mover = Mover::new(device.portals, Policy { threshold: Threshold::all(4 << 10), ..Policy::default() });

    let place = round_of(&mover, vec![0; LEN], vec![7; LEN], vec![0; LEN]);
    println!("the place has {}", place[0]);
    let mut seen = vec![0; LEN];
    seen[1234] = 1;
    let place = round_of(&mover, seen, vec![8; LEN], place);
    println!("the place has {}", place[0]);
    Ok(())
}
