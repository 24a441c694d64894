//! Writes a configuration to registers as a driver does: group table, queue table, then the enable commands.

use crate::config::{Config, GroupConfig, WqConfig, WqMode};
use crate::published::PublishedDevice;
use telpher_abi::registers::{Command, CommandCode, DeviceState, GrpCfg, Offsets, OpCap, WqCfg, offset};
use telpher_model::{Capabilities, Device};

/// PASID of this process on its own modelled device. Source: chosen; any non-zero value serves.
pub const OWN_PASID: u32 = 1;

/// Traffic class of both selectors, as Linux and DPDK program every 1.x and 2.x device. Source: K612 `init.c`.
const TRAFFIC_CLASS: u8 = 1;

/// Error: a configuration does not fit a device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// A name is not of the expected kind.
    #[error("'{name}' is not a {kind} name; expected one like {example}")]
    Name {
        /// The name found.
        name: String,
        /// The expected kind.
        kind: &'static str,
        /// An example.
        example: &'static str,
    },
    /// A number does not fit its register.
    #[error("{name}: {key} {value} is not between {least} and {most}")]
    Value {
        /// The object.
        name: String,
        /// The key.
        key: &'static str,
        /// The requested value.
        value: u64,
        /// The smallest accepted value.
        least: u64,
        /// The largest accepted value.
        most: u64,
    },
    /// The configuration has an event log, which would need memory from a caller.
    #[error("{name}: event_log_size must be 0; an event log is set up through the registers, with memory of its owner")]
    EventLog {
        /// The device.
        name: String,
    },
    /// The model does not support this queue type.
    #[error("{name}: type '{kind}' is for kernel drivers; the model serves type 'user'")]
    Kind {
        /// The queue.
        name: String,
        /// Its type.
        kind: String,
    },
}

/// Returns the number after the last dot of `group0.3`.
fn number(name: &str, kind: &'static str, example: &'static str, most: u8) -> Result<u8, ApplyError> {
    let parsed = name.strip_prefix(kind).and_then(|rest| rest.split_once('.')).and_then(|(device, index)| {
        device.parse::<u32>().ok()?;
        index.parse::<u64>().ok()
    });
    let value = parsed.ok_or_else(|| ApplyError::Name { name: name.into(), kind, example })?;
    let most = u64::from(most) - 1;
    within(name, "number", value, 0, most).map(|value| u8::try_from(value).unwrap_or(u8::MAX))
}

fn within(name: &str, key: &'static str, value: u64, least: u64, most: u64) -> Result<u64, ApplyError> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(ApplyError::Value { name: name.into(), key, value, least, most })
    }
}

/// The register images of a configuration.
pub(crate) struct Image {
    groups: Vec<(u8, GrpCfg)>,
    pub(crate) wqs: Vec<(u8, WqCfg)>,
    read_buffer_limit: u8,
}

impl Image {
    pub(crate) fn of(config: &Config, capabilities: &Capabilities) -> Result<Self, ApplyError> {
        let buffers = u64::from(capabilities.grp_cap.read_buffers());
        if config.event_log_size != 0 {
            return Err(ApplyError::EventLog { name: config.dev.clone() });
        }
        let limit = within(&config.dev, "read_buffer_limit", config.read_buffer_limit.into(), 0, buffers)?;
        let mut image = Image {
            groups: Vec::new(),
            wqs: Vec::new(),
            // Without a limit: the register's reset value, all buffers.
            read_buffer_limit: byte(if limit == 0 { buffers } else { limit }),
        };
        for group in &config.groups {
            let index = number(&group.dev, "group", "group0.0", capabilities.grp_cap.groups())?;
            let mut cfg = group_cfg(group, capabilities, config.read_buffer_limit != 0)?;
            for engine in &group.grouped_engines {
                let engine = number(&engine.dev, "engine", "engine0.0", capabilities.eng_cap.engines())?;
                cfg = cfg.with_engines(cfg.engines() | 1 << engine);
            }
            for wq in &group.grouped_workqueues {
                let index = number(&wq.dev, "wq", "wq0.0", capabilities.wq_cap.queues())?;
                cfg = cfg.with_wqs(cfg.wqs() | 1 << index);
                image.wqs.push((index, wq_cfg(wq, capabilities)?));
            }
            image.groups.push((index, cfg));
        }
        Ok(image)
    }

    /// Describes the enabled device that has this configuration.
    pub(crate) fn published(&self, capabilities: &Capabilities) -> PublishedDevice {
        let groups: Vec<_> = self.groups.iter().map(|(group, cfg)| (u32::from(*group), *cfg)).collect();
        let mut queues: Vec<_> = self.wqs.iter().map(|(wq, cfg)| (u32::from(*wq), *cfg, true)).collect();
        queues.sort_by_key(|(wq, ..)| *wq);
        let engines = capabilities.eng_cap.engines().into();
        PublishedDevice::configured(0, DeviceState::Enabled, queues.into_iter(), engines, &groups)
    }

    /// Writes the tables. The device must be disabled.
    pub(crate) fn write(&self, device: &Device) {
        let at = Offsets([device.read_register(offset::OFFSETS, 8), device.read_register(offset::OFFSETS + 8, 8)]);
        let table = |unit: u16| u64::from(unit) * 0x100;
        let gen_cfg = device.read_register(offset::GENCFG, 4);
        device.write_register(offset::GENCFG, 4, gen_cfg & !0xff | u64::from(self.read_buffer_limit));
        for (group, cfg) in &self.groups {
            write_table(device, table(at.grpcfg()) + u64::from(*group) * 64, &cfg.0);
        }
        let shift = device.capabilities().wq_cap.wqcfg_size_shift();
        // 32 or 64 bytes; the model supports no other size.
        let (stride, words) = if shift == 0 { (32, 4) } else { (64, 8) };
        for (wq, cfg) in &self.wqs {
            write_table(device, table(at.wqcfg()) + u64::from(*wq) * stride, &cfg.0[..words]);
        }
    }

    /// Returns the commands that enable the device and its queues.
    pub(crate) fn enable_commands(&self) -> impl Iterator<Item = Command> + '_ {
        let queues = self.wqs.iter().map(|(wq, _)| Command::new(CommandCode::EnableWq, u32::from(*wq)));
        std::iter::once(Command::new(CommandCode::EnableDevice, 0)).chain(queues)
    }
}

/// Writes consecutive 8-byte registers.
pub(crate) fn write_table(device: &Device, base: u64, words: &[u64]) {
    for (word, at) in words.iter().zip((base..).step_by(8)) {
        device.write_register(at, 8, *word);
    }
}

fn byte(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

fn group_cfg(group: &GroupConfig, capabilities: &Capabilities, limited: bool) -> Result<GrpCfg, ApplyError> {
    let buffers = u64::from(capabilities.grp_cap.read_buffers());
    let reserved = within(&group.dev, "read_buffers_reserved", group.read_buffers_reserved.into(), 0, buffers)?;
    let allowed = group
        .read_buffers_allowed
        .map_or(Ok(buffers), |allowed| within(&group.dev, "read_buffers_allowed", allowed.into(), 0, buffers))?;
    Ok(GrpCfg::default()
        .with_tc_a(TRAFFIC_CLASS)
        .with_tc_b(TRAFFIC_CLASS)
        // accel-config skips the group's key if the device has no limit.
        .with_use_global_limit(limited && group.use_read_buffer_limit != 0)
        .with_read_buffers_reserved(byte(reserved))
        .with_read_buffers_allowed(byte(allowed))
        .with_read_bandwidth_code(group.read_bandwidth.code())
        .with_write_bandwidth_code(group.write_bandwidth.code()))
}

fn wq_cfg(wq: &WqConfig, capabilities: &Capabilities) -> Result<WqCfg, ApplyError> {
    if let Some(kind) = wq.kind.as_ref().filter(|kind| *kind != "user") {
        return Err(ApplyError::Kind { name: wq.dev.clone(), kind: kind.clone() });
    }
    let entries = u64::from(capabilities.wq_cap.total_entries());
    let size = within(&wq.dev, "size", wq.size.into(), 1, entries)?;
    // accel-config skips the threshold of a dedicated queue, and its listings print 0.
    let threshold = match wq.threshold {
        Some(threshold) if wq.mode == WqMode::Shared => within(&wq.dev, "threshold", threshold.into(), 1, size)?,
        _ => size,
    };
    let priority = within(&wq.dev, "priority", wq.priority.into(), 1, 15)?;
    let max_batch = within(&wq.dev, "max_batch_size", wq.max_batch_size.into(), 1, capabilities.max_batch().into())?;
    let max_transfer = within(&wq.dev, "max_transfer_size", wq.max_transfer_size, 1, capabilities.max_transfer())?;
    let shared = wq.mode == WqMode::Shared;
    let short = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
    let shift = |value: u64| byte(value.next_power_of_two().trailing_zeros().into());
    Ok(WqCfg::default()
        .with_size(short(size))
        .with_threshold(if shared { short(threshold) } else { 0 })
        .with_dedicated(!shared)
        .with_block_on_fault(wq.block_on_fault != 0)
        .with_ats_disable(wq.ats_disable != 0)
        .with_prs_disable(wq.prs_disable != 0)
        .with_priority(byte(priority))
        // A dedicated queue gets its PASID when it is opened; the only client here is this process.
        .with_pasid(if shared { 0 } else { OWN_PASID })
        .with_pasid_enable(true)
        .with_max_batch_shift(shift(max_batch))
        .with_max_transfer_shift(shift(max_transfer))
        // As Linux does: no attribute sets it. Zero before 3.0.
        .with_max_sgl_shift(capabilities.dsa_cap_0.max_sgl_shift())
        .with_op_config(if capabilities.wq_cap.op_config() { capabilities.op_cap } else { OpCap::default() }))
}
