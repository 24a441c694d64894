//! What Linux's driver does with a function, in the same order: interrupts, registers, queues, submissions.

use crate::client::{BAR0, BAR2, CONFIG, Client, Memory, event, is_signalled, wait_for};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use telpher_abi::registers::{CommandCode, GrpCfg, IntCause, WqCfg, offset};
use telpher_abi::{Descriptor, Flags};
use telpher_model::layout;

/// Bytes of the guest's memory, mapped at address 0.
pub(crate) const MEMORY: u64 = 8 << 20;
/// Where completion records are.
pub(crate) const RECORDS: u64 = 0x1000;

/// A guest with a driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) client: Client,
    pub(crate) memory: Memory,
    pub(crate) vectors: Vec<OwnedFd>,
    slot: u64,
}

impl Driver {
    /// Connects, maps memory, sets up interrupts, and resets the device.
    pub(crate) fn probe(path: &Path) -> Driver {
        let mut client = Client::new(path);
        let memory = Memory::new(MEMORY);
        client.map(0, MEMORY, Some(memory.as_fd())).unwrap();
        let vectors: Vec<OwnedFd> = (0..9).map(|_| event()).collect();
        // Memory space and bus master.
        client.write(CONFIG, 4, &[6, 0]);
        client.set_register(offset::CMD, (CommandCode::ResetDevice.code() as u32) << 20);
        client.wait_for_register(offset::CMDSTATUS, |status| status >> 31 == 0);
        client.set_eventfds(0, &vectors[..1]).unwrap();
        client.set_register(offset::GENCTRL, 3);
        Driver { client, memory, vectors, slot: 0 }
    }

    /// Connects and enables queue 0 with this many entries.
    pub(crate) fn start(path: &Path, entries: u16) -> Driver {
        let mut driver = Driver::probe(path);
        driver.configure(entries);
        assert_eq!(driver.command(CommandCode::EnableDevice, 0), 0);
        assert_eq!(driver.command(CommandCode::EnableWq, 0), 0);
        let vectors = std::mem::take(&mut driver.vectors);
        driver.client.set_eventfds(1, &vectors[1..2]).unwrap();
        driver.vectors = vectors;
        driver
    }

    /// One dedicated queue and one engine in group 0, for transfers of up to 2 MiB.
    pub(crate) fn configure(&mut self, entries: u16) {
        self.configure_with(entries, 21);
    }

    /// The same, with another limit of a transfer, as a power of two.
    pub(crate) fn configure_with(&mut self, entries: u16, transfer_shift: u8) {
        // Linux 6.1 sets Priv for kernel queues also without PASIDs.
        let wq = WqCfg::default()
            .with_size(entries)
            .with_dedicated(true)
            .with_privileged(true)
            .with_priority(10)
            .with_max_transfer_shift(transfer_shift)
            .with_max_batch_shift(5);
        for (at, word) in (layout::WQCFG..).step_by(8).zip(&wq.0[..4]) {
            // Linux writes 32 bits at a time.
            for half in 0..2 {
                self.client.set_register(at + 4 * half, (word >> (32 * half) & 0xffff_ffff).try_into().unwrap());
            }
        }
        let group = GrpCfg::default().with_wqs(1).with_engines(1).with_read_buffers_allowed(96);
        for (at, word) in [(0, group.0[0]), (32, group.0[4]), (40, group.0[5])] {
            self.client.write(BAR0, layout::GRPCFG + at, &word.to_le_bytes());
        }
    }

    /// Runs a command, waits for its interrupt as Linux does, and returns its error code.
    pub(crate) fn command(&mut self, code: CommandCode, operand: u32) -> u32 {
        self.client.set_register(offset::CMD, 1 << 31 | (code.code() as u32) << 20 | operand);
        self.end_of_command()
    }

    /// Drains all queues.
    pub(crate) fn end_of_drain(&mut self) -> u32 {
        self.command(CommandCode::DrainAll, 0)
    }

    /// Waits for a command's interrupt.
    pub(crate) fn end_of_command(&mut self) -> u32 {
        wait_for(&self.vectors[0]);
        let cause = self.client.register(offset::INTCAUSE);
        assert_ne!(cause & IntCause::COMMAND.bits(), 0, "cause {cause:#x}");
        self.client.set_register(offset::INTCAUSE, cause);
        self.client.register(offset::CMDSTATUS)
    }

    /// Where the next descriptor goes: slots of the page in turn.
    fn next_slot(&mut self) -> u64 {
        let at = 0x1000 + self.slot;
        self.slot = (self.slot + 64) % 0x1000;
        at
    }

    /// Submits in one message.
    pub(crate) fn submit(&mut self, descriptor: &Descriptor) {
        let at = self.next_slot();
        self.client.write(BAR2, at, &descriptor.to_bytes());
    }

    /// Submits in eight messages, as QEMU does.
    pub(crate) fn submit_in_pieces(&mut self, descriptor: &Descriptor) {
        let at = self.next_slot();
        for (offset, piece) in (0..).step_by(8).zip(descriptor.to_bytes().chunks(8)) {
            self.client.write(BAR2, at + offset, piece);
        }
    }

    /// Copies memory and waits for the record.
    pub(crate) fn copy(&mut self, src: u64, dst: u64, size: u32) -> u8 {
        self.memory.put(RECORDS, &[0; 32]);
        self.submit(&Descriptor::memory_move(src, dst, size).with_record(RECORDS));
        self.memory.status(RECORDS)
    }

    /// True if vector N was signalled.
    pub(crate) fn is_interrupted(&self, vector: usize) -> bool {
        is_signalled(&self.vectors[vector])
    }
}

/// A descriptor that asks for a completion interrupt on vector 1.
pub(crate) fn with_interrupt(descriptor: Descriptor) -> Descriptor {
    let mut words = descriptor.with_flags(descriptor.flags() | Flags::REQUEST_COMPLETION_INTERRUPT).0;
    // Bytes 36 and 37: the interrupt handle.
    words[4] = words[4] & !(0xffff << 32) | 1 << 32;
    Descriptor(words)
}
