//! A switch of two ports: each virtual machine receives what the other sends. A device's queues copy packets of 512
//! bytes and more, if there is a device; the switch's thread copies smaller ones. All packets keep their order.
//!
//! `cargo run -p telpher-capi --example vhost_switch -- /tmp/a.sock /tmp/b.sock model:spr`
//!
//! Ends on SIGINT or SIGTERM, and prints its counters. See vhost_switch.c for the virtual machines.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{OpenOptions, open};
use telpher_os::Termination;
use telpher_switch::{End, PortConfig, PortKind, Switch, SwitchConfig};
use telpher_vhost::{CopyPolicy, DmaQueue, DropReason, PortOptions, QueueOptions, Role};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [first, second, device @ ..] = &words[..] else {
        return Err("usage: vhost_switch SOCKET SOCKET [DEVICE]".into());
    };
    let signals = Termination::listen()?;

    let device = open(&device.first().map_or("cpu", String::as_str).parse()?, OpenOptions::default())?;
    let copies = QueueOptions { hybrid: CopyPolicy::From(512), ..QueueOptions::default() };
    let mut queues = Vec::new();
    for portal in device.portals {
        queues.push(Arc::new(DmaQueue::new(portal, u32::try_from(copies.in_flight)?)?));
    }
    // Each virtqueue has one of the device's queues, in turns.
    let mut next = queues.iter().cycle();
    let mut port = |path: &String| {
        let mut ring = || QueueOptions { dma_queues: next.next().cloned().into_iter().collect(), ..copies.clone() };
        let options = PortOptions { rings: vec![ring(), ring()], ..PortOptions::default() };
        PortConfig { kind: PortKind::Socket { path: path.into(), role: Role::Server, options }, capture: None }
    };
    let ports = vec![port(first), port(second)];
    let mut switch = Switch::new(SwitchConfig { ports, ..SwitchConfig::default() })?;
    switch.start()?;

    while !signals.wait(Duration::from_secs(60)) {}

    switch.stop()?;
    for (index, port) in switch.ports().iter().enumerate() {
        let (counts, End::Guest(guest)) = (&switch.counts().ports[index], port.end()) else { continue };
        let queues = guest.stats(0) + guest.stats(1);
        println!(
            "port {index}: {} packets from the guest, {} to it, {} lost, {} by the device",
            counts.received,
            counts.sent,
            counts.no_room + counts.no_receiver,
            queues.by_device
        );
        for reason in DropReason::ALL.into_iter().filter(|reason| queues.drops(*reason) > 0) {
            println!("port {index}: {} dropped: {reason}", queues.drops(reason));
        }
    }
    Ok(())
}
