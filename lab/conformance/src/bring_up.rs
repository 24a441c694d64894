//! Bring-up from reset to enabled queues, through the registers, like a driver.

use crate::subject::{Capabilities, DeviceSpec, HANDLE, HERE, QueueSpec, Registers, WINDOW};
use telpher_abi::registers::{
    CmdStatus, Command, CommandCode, EvlCfg, GenCap, GenCfg, GrpCfg, IdBr, IdptEntry, ImsEntry, MsixPerm, Offsets,
    OpCap, WqCfg, offset,
};
use telpher_portal::QueueMode;

/// Rounds of [`Registers::advance`] after which a command counts as stuck.
const PATIENCE: u32 = 1_000_000;

/// Reads the capabilities from the registers.
#[must_use]
pub fn capabilities(registers: &dyn Registers) -> Capabilities {
    let read = |at| [registers.read(at, 8)];
    Capabilities {
        version: u32::try_from(registers.read(offset::VERSION, 4)).unwrap_or(u32::MAX),
        gen_cap: GenCap(read(offset::GENCAP)),
        wq_cap: telpher_abi::registers::WqCap(read(offset::WQCAP)),
        grp_cap: telpher_abi::registers::GrpCap(read(offset::GRPCAP)),
        eng_cap: telpher_abi::registers::EngCap(read(offset::ENGCAP)),
        op_cap: OpCap([0, 1, 2, 3].map(|i| registers.read(offset::OPCAP + 8 * i, 8))),
        id_cap: telpher_abi::registers::IdCap(read(offset::IDCAP)),
        dsa_cap_0: telpher_abi::registers::DsaCap0(read(offset::DSACAP0)),
        dsa_cap_1: telpher_abi::registers::DsaCap1(read(offset::DSACAP1)),
        dsa_cap_2: telpher_abi::registers::DsaCap2(read(offset::DSACAP2)),
    }
}

/// Configures and enables a device for a spec.
///
/// # Errors
///
/// A sentence with the command and its error.
pub fn bring_up(registers: &dyn Registers, spec: &DeviceSpec) -> Result<(), String> {
    if spec.bare {
        return Ok(());
    }
    configure(registers, spec);
    command(registers, CommandCode::EnableDevice, 0)?;
    request_handles(registers)?;
    request_window(registers, WINDOW)?;
    for (index, _) in (0u32..).zip(spec.all_queues()) {
        command(registers, CommandCode::EnableWq, index)?;
    }
    Ok(())
}

/// Requests [`HANDLE`] of both tables if handles must be requested (CMDCAP bit 13).
fn request_handles(registers: &dyn Registers) -> Result<(), String> {
    let gen_cap = GenCap([registers.read(offset::GENCAP, 8)]);
    if !gen_cap.command_capability() || registers.read(offset::CMDCAP, 8) >> 13 & 1 == 0 {
        return Ok(());
    }
    let tables = if gen_cap.ims_size() > 0 { 2 } else { 1 };
    for table in 0..tables {
        let status = command(registers, CommandCode::RequestInterruptHandle, table << 16 | u32::from(HANDLE))?;
        if status.result() != HANDLE {
            return Err(format!("the cases need handle {HANDLE} for entry {HANDLE}, not {}", status.result()));
        }
    }
    Ok(())
}

/// Requests the handle of an entry of the inter-domain permissions table, if handles must be requested (CMDCAP bit 15).
pub(crate) fn request_window(registers: &dyn Registers, index: u16) -> Result<(), String> {
    let gen_cap = GenCap([registers.read(offset::GENCAP, 8)]);
    let issues = gen_cap.command_capability() && registers.read(offset::CMDCAP, 8) >> 15 & 1 == 1;
    if !gen_cap.inter_domain() || !issues {
        return Ok(());
    }
    let status = command(registers, CommandCode::RequestIdptHandle, index.into())?;
    if status.result() == index {
        return Ok(());
    }
    Err(format!("the cases need handle {index} for entry {index}, not {}", status.result()))
}

/// Configures a device for a spec, and enables nothing.
pub fn configure(registers: &dyn Registers, spec: &DeviceSpec) {
    let map = Map::of(registers);
    let gen_cfg = GenCfg([registers.read(offset::GENCFG, 4)])
        .with_user_interrupts(spec.user_interrupts)
        .with_event_log(spec.event_log.is_some());
    if let Some((base, entries)) = spec.event_log {
        let config = EvlCfg::default()
            .with_pasid_enable(spec.pci.pasid)
            .with_base_page(base >> 12)
            .with_entries(entries)
            .with_pasid(if spec.pci.pasid { HERE } else { 0 });
        registers.write(offset::EVLCFG, 8, config.0[0]);
        registers.write(offset::EVLCFG + 8, 8, config.0[1]);
    }
    registers.write(offset::GENCFG, 4, gen_cfg.0[0]);
    let (mut queue, mut engine) = (0, 0);
    for (group, wanted) in (0u64..).zip(&spec.groups) {
        let at = map.grpcfg + group * 64;
        let queues = wanted.queues.len() as u64;
        registers.write(at, 8, ones(queues) << queue);
        registers.write(at + 32, 8, ones(wanted.engines.into()) << engine);
        let flags = registers.read(at + 40, 8);
        registers.write(at + 40, 8, flags & !(7 << 3) | u64::from(wanted.tc_b & 7) << 3);
        queue += queues;
        engine += u64::from(wanted.engines);
    }
    // Zero before 3.0, where the field is reserved.
    let longest = telpher_abi::registers::DsaCap0([registers.read(offset::DSACAP0, 8)]).max_sgl_shift();
    for (index, wanted) in (0u64..).zip(spec.all_queues()) {
        let config = wqcfg(wanted).with_max_sgl_shift(wanted.max_sgl_shift.min(longest));
        write_wqcfg(registers, &map, index, &config);
    }
    let pasid_enable = spec.all_queues().any(|q| q.pasid_enable);
    open_interrupt(registers, HANDLE, pasid_enable, HERE);
    if GenCap([registers.read(offset::GENCAP, 8)]).inter_domain() {
        if spec.submitter_bitmaps {
            registers.write(offset::IDBR, 4, IdBr::default().with_pasid_enable(true).with_pasid(HERE).0[0]);
        }
        let entry = IdptEntry::default()
            .with_usable(true)
            .with_allow_update(true)
            .with_submitter_pasid(HERE)
            .with_access_pasid(HERE)
            .with_read(true)
            .with_write(true);
        write_window(registers, &map, WINDOW, &entry);
    }
}

/// Writes an entry of the inter-domain permissions table, its last word first, because the first one locks the others.
pub(crate) fn write_window(registers: &dyn Registers, map: &Map, index: u16, entry: &IdptEntry) {
    let at = map.window(index);
    registers.write(at, 8, 0);
    for word in (0..4_u8).rev() {
        registers.write(at + 8 * u64::from(word), 8, entry.0[usize::from(word)]);
    }
}

/// The register image of a queue.
#[must_use]
pub fn wqcfg(spec: &QueueSpec) -> WqCfg {
    WqCfg::default()
        .with_size(spec.size)
        .with_threshold(spec.threshold)
        .with_dedicated(spec.mode == QueueMode::Dedicated)
        .with_block_on_fault(spec.block_on_fault)
        .with_prs_disable(spec.prs_disable)
        .with_priority(spec.priority)
        .with_pasid(if spec.mode == QueueMode::Dedicated && spec.pasid_enable { HERE } else { 0 })
        .with_pasid_enable(spec.pasid_enable)
        .with_privileged(spec.privileged)
        .with_max_transfer_shift(spec.max_transfer_shift)
        .with_max_batch_shift(spec.max_batch_shift)
        .with_op_config(spec.operations.unwrap_or_default())
}

/// Writes bytes 0–23 of a WQCFG, and its operations if the device has that field and the image names some.
pub(crate) fn write_wqcfg(registers: &dyn Registers, map: &Map, index: u64, config: &WqCfg) {
    let at = map.wqcfg(index);
    for (word, value) in (0u64..).zip(&config.0[..3]) {
        registers.write(at + 8 * word, 8, *value);
    }
    let op_config = telpher_abi::registers::WqCap([registers.read(offset::WQCAP, 8)]).op_config();
    if op_config && config.op_config() != OpCap::default() {
        for (word, value) in (4u64..).zip(&config.0[4..]) {
            registers.write(at + 8 * word, 8, *value);
        }
    }
}

/// Permits `pasid` to use entry `index` of both interrupt tables.
pub(crate) fn open_interrupt(registers: &dyn Registers, index: u16, pasid_enable: bool, pasid: u32) {
    let map = Map::of(registers);
    let pasid = if pasid_enable { pasid } else { 0 };
    let entry = MsixPerm::default().with_pasid_enable(pasid_enable).with_pasid(pasid);
    registers.write(map.msix_perm + 8 * u64::from(index), 4, entry.0[0]);
    if GenCap([registers.read(offset::GENCAP, 8)]).ims_size() > 0 {
        let entry = ImsEntry::default().with_address(0xfee0_0000).with_pasid_enable(pasid_enable).with_pasid(pasid);
        registers.write(map.ims + 16 * u64::from(index), 8, entry.0[0]);
        registers.write(map.ims + 16 * u64::from(index) + 8, 8, entry.0[1]);
    }
}

fn ones(count: u64) -> u64 {
    (1 << count) - 1
}

/// Offsets of the tables in BAR0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    pub(crate) grpcfg: u64,
    wqcfg: u64,
    wqcfg_stride: u64,
    pub(crate) msix_perm: u64,
    pub(crate) ims: u64,
    pub(crate) perfmon: u64,
    idpt: u64,
    idpt_stride: u64,
}

impl Map {
    pub(crate) fn of(registers: &dyn Registers) -> Self {
        let offsets = Offsets([registers.read(offset::OFFSETS, 8), registers.read(offset::OFFSETS + 8, 8)]);
        let wq_cap = telpher_abi::registers::WqCap([registers.read(offset::WQCAP, 8)]);
        Map {
            grpcfg: u64::from(offsets.grpcfg()) * 0x100,
            wqcfg: u64::from(offsets.wqcfg()) * 0x100,
            wqcfg_stride: 32 << wq_cap.wqcfg_size_shift(),
            msix_perm: u64::from(offsets.msix_perm()) * 0x100,
            ims: u64::from(offsets.ims()) * 0x100,
            perfmon: u64::from(offsets.perfmon()) * 0x100,
            idpt: u64::from(offsets.idpt()) * 0x100,
            idpt_stride: 32 << telpher_abi::registers::IdCap([registers.read(offset::IDCAP, 8)]).entry_size_shift(),
        }
    }

    pub(crate) fn wqcfg(&self, index: u64) -> u64 {
        self.wqcfg + index * self.wqcfg_stride
    }

    pub(crate) fn window(&self, index: u16) -> u64 {
        self.idpt + u64::from(index) * self.idpt_stride
    }

    pub(crate) fn read_wqcfg(&self, registers: &dyn Registers, index: u64) -> WqCfg {
        let words = self.wqcfg_stride / 8;
        WqCfg([0, 1, 2, 3, 4, 5, 6, 7].map(
            |i| {
                if i < words { registers.read(self.wqcfg(index) + 8 * i, 8) } else { 0 }
            },
        ))
    }

    pub(crate) fn read_grpcfg(&self, registers: &dyn Registers, index: u64) -> GrpCfg {
        GrpCfg([0, 1, 2, 3, 4, 5, 6, 7].map(|i| registers.read(self.grpcfg + 64 * index + 8 * i, 8)))
    }
}

/// Writes a command and waits until it is no longer active.
///
/// # Errors
///
/// A sentence with the command and its error code.
pub fn command(registers: &dyn Registers, code: CommandCode, operand: u32) -> Result<CmdStatus, String> {
    let status = issue(registers, Command::new(code, operand));
    match status {
        Some(status) if status.error_code() == 0 => Ok(status),
        Some(status) => {
            Err(format!("command \"{code}\", operand {operand:#x}, gave error {:#04x}", status.error_code()))
        }
        None => Err(format!("command \"{code}\", operand {operand:#x}, never ended")),
    }
}

/// Writes a command and returns its final status; `None` if it never ends.
pub(crate) fn issue(registers: &dyn Registers, command: Command) -> Option<CmdStatus> {
    registers.write(offset::CMD, 4, command.0[0]);
    for _ in 0..PATIENCE {
        let status = CmdStatus([registers.read(offset::CMDSTATUS, 4)]);
        if !status.active() {
            return Some(status);
        }
        registers.advance();
    }
    None
}
