//! The poll-mode layer: one thread, one queue, a ring of copies that never blocks and never allocates.
//!
//! `cargo run -p telpher-capi --example poll_ring -- model:spr`

use std::error::Error;
use telpher_device::{OpenOptions, open};
use telpher_mover::{Channel, ChannelPolicy};

const BLOCK: usize = 4096;
const BLOCKS: usize = 1000;
const PLACES: u32 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("model:spr".into());
    let mut device = open(&name.parse()?, OpenOptions::default())?;
    let queue = device.portals.drain(..).next().ok_or("the device has no queue")?;
    let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(queue, PLACES, ChannelPolicy::default())?;

    let bytes: Vec<u8> = (0..BLOCKS * BLOCK).map(|i| (i % 251).to_le_bytes()[0]).collect();
    let mut blocks = bytes.chunks(BLOCK).map(|block| (block.to_vec(), vec![0; BLOCK])).peekable();

    let (mut ended, mut sum, mut equal) = (0, 0, true);
    let mut done = Vec::with_capacity(PLACES as usize);
    while ended < BLOCKS {
        while channel.pending() < PLACES as usize
            && let Some((src, dst)) = blocks.next()
        {
            channel.copy(src, dst).map_err(|rejected| rejected.reason)?;
        }
        channel.submit();

        ended += channel.completed(&mut done);
        for finished in done.drain(..) {
            finished.result?;
            sum += finished.ticket.number();
            equal &= finished.buffers.is_some_and(|buffers| buffers.src == buffers.dst);
        }
    }
    println!("{ended} blocks of {BLOCK} bytes, numbers add up to {sum}, {}", if equal { "equal" } else { "different" });
    Ok(())
}
