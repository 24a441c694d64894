//! The client of the crate `vfio_user`, which cloud-hypervisor uses: written by others from the same specification.

use crate::Fixture;
use crate::client::{BAR0, BAR2, CONFIG, Memory, event, wait_for};
use std::os::fd::{AsFd as _, AsRawFd as _};
use telpher_abi::registers::{CommandCode, GrpCfg, WqCfg, offset};
use telpher_abi::{Descriptor, Flags};
use telpher_model::layout;
use vfio_user::Client;

/// Where the guest's memory begins, and its bytes.
const BASE: u64 = 1 << 32;
const BYTES: u64 = 4 << 20;

/// Runs a command and waits for its interrupt.
fn command(client: &mut Client, interrupt: &std::os::fd::OwnedFd, code: CommandCode) -> u32 {
    let word = 1 << 31 | u32::from(code.code()) << 20;
    client.region_write(BAR0, offset::CMD, &word.to_le_bytes()).unwrap();
    wait_for(interrupt);
    let mut bytes = [0; 4];
    client.region_read(BAR0, offset::INTCAUSE, &mut bytes).unwrap();
    client.region_write(BAR0, offset::INTCAUSE, &bytes).unwrap();
    client.region_read(BAR0, offset::CMDSTATUS, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

#[test]
fn the_rust_vmm_client_configures_the_device_and_copies() {
    let fixture = Fixture::new(&[""]);
    for round in 1..=2_u8 {
        let mut client = Client::new(&fixture.socket(0)).unwrap();
        let sizes = [BAR0, BAR2, CONFIG].map(|region| client.region(region).map_or(0, |region| region.size));
        assert_eq!(sizes, [0x2_0000, 0x2_0000, 4096]);
        assert_eq!(client.get_irq_info(2).unwrap().count, 9);
        let memory = Memory::new(BYTES);
        client.dma_map(0, BASE, BYTES, memory.as_fd().as_raw_fd()).unwrap();
        client.region_write(CONFIG, 4, &[6, 0]).unwrap();
        let vectors = [event(), event()];
        client.set_irqs(2, 0x24, 0, 2, &vectors.each_ref().map(std::os::fd::AsRawFd::as_raw_fd)).unwrap();
        let queue = WqCfg::default().with_size(16).with_dedicated(true).with_priority(1).with_max_batch_shift(1);
        let queue = queue.with_max_transfer_shift(21);
        let group = GrpCfg::default().with_wqs(1).with_engines(1).with_read_buffers_allowed(96);
        for (at, words) in [(layout::WQCFG, &queue.0[..4]), (layout::GRPCFG, &group.0[..])] {
            for (at, word) in (at..).step_by(8).zip(words) {
                client.region_write(BAR0, at, &word.to_le_bytes()).unwrap();
            }
        }
        assert_eq!(command(&mut client, &vectors[0], CommandCode::EnableDevice), 0);
        assert_eq!(command(&mut client, &vectors[0], CommandCode::EnableWq), 0);
        memory.put(0x10_0000, &[round; 5000]);
        let copy = Descriptor::memory_move(BASE + 0x10_0000, BASE + 0x20_0001, 5000).with_record(BASE + 0x1000);
        let copy = crate::driver::with_interrupt(copy.with_flags(copy.flags() | Flags::CACHE_CONTROL_1));
        client.region_write(BAR2, 0x1000, &copy.to_bytes()).unwrap();
        wait_for(&vectors[1]);
        assert_eq!((memory.get(0x1000, 1), memory.get(0x20_0001, 5000)), (vec![1], vec![round; 5000]));
        client.reset().unwrap();
        client.dma_unmap(BASE, BYTES).unwrap();
        client.shutdown().unwrap();
    }
    assert_eq!(fixture.run.totals()[0].descriptors, 2);
}
