//! One input on one modelled device: hostile descriptors of one tenant never panic, hang, or reach another tenant.
//!
//! An input is a list of calls, each a byte and its operands: offer 64 bytes, let the engines work, run a command,
//! change a page's permission, write memory (including batch lists). In every case the hostile tenant's addresses refer
//! to an [`TestMemory`], never to this process. Used by the libFuzzer target and by the bounded test
//! `path/device/tests/fuzz_hostile.rs`.
#![allow(unsafe_code, reason = "hostile descriptors are vouched for: their addresses refer to an island")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_abi::registers::{Command, CommandCode, IdptEntry, PortalKind};
use telpher_abi::{CompletionRecord, Descriptor, Status, WindowFlags};
use telpher_device::{Config, ModelDevice, ModelOptions, Preset, WqMode};
use telpher_mem::{Fault, Space, WriteHint};
use telpher_model::layout;
use telpher_portal::{Offer, Portal, Submission};

/// First address of an island.
pub(crate) const BASE: u64 = 0x1_0000;
/// Its length in bytes.
pub(crate) const BYTES: u64 = 16 * 4096;
const PAGES: usize = 16;
const PAGE: usize = 4096;
/// Permission bits of a page; the third lets a page request set both others.
const READ: u8 = 1;
const WRITE: u8 = 2;
const ON_REQUEST: u8 = 4;

const HOSTILE: u32 = 0x666;
const HONEST: u32 = 0x7;
/// Address of the honest tenant's record; the rest of its island must not change.
const RECORD: u64 = BASE;
/// Steps after which a device that still works counts as hung: a full queue of largest batches needs a tenth of it.
const PATIENCE: u32 = 2_000_000;

/// A few pages of memory in an address space of their own, in safe code, one byte at a time.
#[derive(Clone, Debug)]
pub(crate) struct TestMemory(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    permissions: [u8; PAGES],
}

impl TestMemory {
    fn new(byte: u8) -> Self {
        TestMemory(Arc::new(Mutex::new(State { bytes: vec![byte; PAGES * PAGE], permissions: [READ | WRITE; PAGES] })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes as many bytes as fit, regardless of permissions.
    fn poke(&self, offset: u16, bytes: &[u8]) {
        let mut state = self.state();
        let from = usize::from(offset) % state.bytes.len();
        for (to, byte) in state.bytes[from..].iter_mut().zip(bytes) {
            *to = *byte;
        }
    }
}

impl State {
    /// Index of a byte, if this access is permitted.
    fn index(&self, address: u64, permission: u8) -> Option<usize> {
        let offset = address.checked_sub(BASE).filter(|offset| *offset < BYTES)?;
        let index = usize::try_from(offset).ok()?;
        (self.permissions[index / PAGE] & permission != 0).then_some(index)
    }

    /// Address of the byte after `done` bytes of an operation.
    fn get(&self, address: Option<u64>, done: u64) -> Result<u8, Fault> {
        let index = address.and_then(|address| self.index(address, READ));
        index.map(|index| self.bytes[index]).ok_or(Fault { address: address.unwrap_or(0), write: false, done })
    }

    fn set(&mut self, address: Option<u64>, byte: u8, done: u64) -> Result<(), Fault> {
        let index = address.and_then(|address| self.index(address, WRITE));
        let index = index.ok_or(Fault { address: address.unwrap_or(0), write: true, done })?;
        self.bytes[index] = byte;
        Ok(())
    }
}

impl Space for TestMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let state = self.state();
        (0..).zip(into).try_for_each(|(i, to)| state.get(address.checked_add(i), i).map(|byte| *to = byte))
    }

    fn write(&self, address: u64, from: &[u8], _: WriteHint) -> Result<(), Fault> {
        let mut state = self.state();
        (0..).zip(from).try_for_each(|(i, byte)| state.set(address.checked_add(i), *byte, i))
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        let mut state = self.state();
        (0..len).try_for_each(|i| {
            let byte = state.get(src.checked_add(i), i)?;
            state.set(dst.checked_add(i), byte, i)
        })
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        let mut state = self.state();
        (0..len).try_for_each(|done| {
            let i = len - 1 - done;
            let byte = state.get(src.checked_add(i), done)?;
            state.set(dst.checked_add(i), byte, done)
        })
    }

    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, _: WriteHint) -> Result<(), Fault> {
        let mut state = self.state();
        (0..len).try_for_each(|i| {
            let word = pattern[usize::from(i % 16 >= 8)].to_le_bytes();
            state.set(dst.checked_add(i), word[(i % 8) as usize], i)
        })
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        let state = self.state();
        for i in 0..len {
            if state.get(a.checked_add(i), i)? != state.get(b.checked_add(i), i)? {
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        let state = self.state();
        for i in 0..len {
            if state.get(a.checked_add(i), i)? != pattern.to_le_bytes()[(i % 8) as usize] {
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        let state = self.state();
        (0..len).try_for_each(|i| state.get(address.checked_add(i), i).map(drop))
    }

    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        assert_eq!(address % 32, 0, "the model writes records to aligned addresses only");
        self.write(address, &CompletionRecord(*record).to_bytes(), WriteHint::Cache)
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        let mut state = self.state();
        if let Some(index) = state.index(address, ON_REQUEST) {
            state.permissions[index / PAGE] |= READ | WRITE;
        }
        state.index(address, if write { WRITE } else { READ }).is_some()
    }
}

/// Reads operands from an input until it ends.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }
}

/// Runs an input. Panics if the device does something forbidden.
pub(crate) fn play(input: &[u8]) {
    let mut input = Input(input);
    let Some([preset]) = input.bytes() else { return };
    let preset = Preset::ALL[usize::from(preset) % Preset::ALL.len()];
    let options = ModelOptions::of(preset).with_config(Config::single(WqMode::Shared, 16, 2));
    let device = ModelDevice::start(options).expect("the device accepts this configuration");
    let (hostile, honest) = (TestMemory::new(0), TestMemory::new(0xa5));
    assert!(device.add_space(HOSTILE, Box::new(hostile.clone())));
    assert!(device.add_space(HONEST, Box::new(honest.clone())));
    let portal = device.portal_as(0, PortalKind::UnlimitedMsix, None, HOSTILE);
    open_windows(&device);
    device.hold(true);
    while call(&mut input, &device, &*portal, &hostile).is_some() {}
    finish(&device);
    if device.enabled_queues() == [0] {
        honest_tenant_is_served(&device, &honest);
    }
    let state = honest.state();
    assert!(state.bytes[32..].iter().all(|byte| *byte == 0xa5), "another tenant's memory was written");
}

/// Opens windows where the device has them: the hostile tenant may use, and move, one into its own memory, may read the
/// honest tenant's, and may not use the one by which the honest tenant writes its own memory.
fn open_windows(device: &ModelDevice) {
    if !device.capabilities().gen_cap.inter_domain() {
        return;
    }
    let both = WindowFlags::READ | WindowFlags::WRITE;
    let entry = |submitter: u32, owner: u32, flags: WindowFlags| {
        let entry = IdptEntry::default().with_usable(true).with_submitter_pasid(submitter);
        entry.with_access_pasid(owner).with_window_flags(flags)
    };
    let entries = [
        entry(HOSTILE, HOSTILE, both).with_allow_update(true),
        entry(HOSTILE, HONEST, WindowFlags::READ),
        entry(HONEST, HONEST, both),
    ];
    // SAFETY: no event log is set up, so the device writes to no address of this process.
    let registers = unsafe { device.device() };
    for (index, entry) in (0..).zip(entries) {
        for word in (0..4).rev() {
            registers.write_register(layout::IDPT + 32 * u64::from(index) + 8 * word as u64, 8, entry.0[word]);
        }
        // A device without handles by command refuses this.
        let _ = device.command(Command::new(CommandCode::RequestIdptHandle, index));
    }
}

/// Runs one call of the input; `None` at its end.
fn call(input: &mut Input<'_>, device: &ModelDevice, portal: &dyn Portal, island: &TestMemory) -> Option<()> {
    match input.bytes::<1>()?[0] % 8 {
        0..=3 => {
            let descriptor = Descriptor::from_bytes(&input.bytes()?);
            // SAFETY: the portal submits for the hostile PASID, whose addresses refer to the island.
            let _ = portal.offer(&unsafe { Submission::vouch(descriptor) });
        }
        4 => {
            let [steps] = input.bytes()?;
            for step in 0..steps {
                let _ = device.step_engine(usize::from(step % 2));
            }
        }
        5 => {
            use CommandCode as C;
            let [which] = input.bytes()?;
            let (code, operand) = [
                (C::DrainAll, 0),
                (C::AbortAll, 0),
                (C::DrainWq, 1),
                (C::AbortWq, 1),
                (C::DrainPasid, HOSTILE),
                (C::AbortPasid, HOSTILE),
                (C::DisableWq, 1),
                (C::EnableWq, 0),
            ][usize::from(which % 8)];
            // A drain ends only if engines work. Refused commands are permitted.
            device.hold(false);
            let _ = device.command(Command::new(code, operand));
            device.hold(true);
        }
        6 => {
            let [page, permission] = input.bytes()?;
            island.state().permissions[usize::from(page) % PAGES] = permission;
        }
        _ => {
            let [low, high] = input.bytes()?;
            island.poke(u16::from_le_bytes([low, high]), &input.bytes::<64>()?);
        }
    }
    Some(())
}

/// Lets the engines work until no work is left.
fn finish(device: &ModelDevice) {
    use telpher_model::Progress;
    for _ in 0..PATIENCE {
        // Both step: one may wait for the other.
        if [0, 1].map(|engine| device.step_engine(engine)) == [Some(Progress::Idle); 2] {
            return;
        }
    }
    panic!("the device does not finish its work");
}

/// Whatever the hostile tenant did, another tenant's No-op on the same queue succeeds.
fn honest_tenant_is_served(device: &ModelDevice, island: &TestMemory) {
    let portal = device.portal_as(0, PortalKind::UnlimitedMsix, None, HONEST);
    island.poke(0, &[0; 32]);
    // SAFETY: the honest PASID's addresses refer to an island, too.
    let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(RECORD)) };
    assert_eq!(portal.offer(&nop), Offer::Taken, "an idle queue takes a descriptor");
    finish(device);
    let mut record = [0; 32];
    island.read(RECORD, &mut record).expect("the honest tenant's own page");
    assert_eq!(CompletionRecord::from_bytes(&record).status(), Status::Success);
}
