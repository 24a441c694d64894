//! A device: the model's state, and the pipes of its bytes.

use super::descriptors::{PASID, WINDOW};
use super::engine::Pe;
use super::requests::Requests;
use super::{EngineId, Event, FlowOwner, World, memory};
use crate::machine::DeviceCosts;
use crate::picos::Picos;
use crate::pipes::{Pipe, Pipes};
use telpher_abi::WindowFlags;
use telpher_abi::registers::{Command, CommandCode, IdptEntry};
use telpher_device::{Capabilities, Config, ModelDevice, StartError};
use telpher_model::{Device, PciControl, layout};

/// Bytes of an entry of the table of windows. Source: SPEC §9.2.29.
const ENTRY_BYTES: u64 = 32;

/// One device in simulated time.
#[derive(Debug)]
pub(super) struct Dsa {
    pub(super) model: Box<Device>,
    pub(super) pes: Vec<Pe>,
    /// Engines by group.
    groups: Vec<Vec<u16>>,
    /// Batches that front ends have begun.
    pub(super) batches: u64,
    /// True if an engine holds a Drain that waits for others.
    pub(super) drains: bool,
    /// When the last partially written line is merged.
    pub(super) merging: Picos,
    pub(super) requests: Requests,
    /// When the last requested page is present.
    pub(super) paging: Picos,
    /// Memory node of the device.
    pub(super) node: usize,
    pub(super) read: Pipe,
    pub(super) write: Pipe,
    pub(super) through: Pipe,
    /// By group with only a part of the read buffers: the pipe of its bytes in flight, and their maximum.
    pub(super) pools: Vec<Option<(Pipe, u64)>>,
    /// By group: the pipes of its reads and its writes, if they are limited.
    pub(super) limits: Vec<[Option<Pipe>; 2]>,
    /// True if a group has fewer read buffers, or a limit.
    grouped: bool,
    /// Bytes in flight to the device, and from it.
    pub(super) reading: Pipe,
    pub(super) writing: Pipe,
    /// Engines that are in a group.
    pub(super) engines: u64,
}

impl Dsa {
    pub(super) fn new(
        capabilities: Capabilities,
        config: &Config,
        node: usize,
        costs: &DeviceCosts,
        pipes: &mut Pipes<FlowOwner>,
    ) -> Result<Self, StartError> {
        let model = ModelDevice::unattended(capabilities, PciControl::SHARED_VIRTUAL_MEMORY, config)?;
        let engines = usize::from(capabilities.eng_cap.engines());
        let mut groups = vec![Vec::new(); usize::from(capabilities.grp_cap.groups())];
        for engine in 0..engines {
            if let Some(group) = model.group_of_engine(engine) {
                groups[group].push(u16::try_from(engine).unwrap_or(u16::MAX));
            }
        }
        let pools = pools(&model, capabilities, costs, groups.len(), config.read_buffer_limit);
        let pools = pools.map(|pool| pool.map(|bytes| (pipes.pipe(memory::carrier(bytes)), bytes)));
        let pools: Vec<_> = pools.collect();
        let limits = |group| {
            let config = model.grp_cfg(group);
            let limits = [(config.read_bandwidth_code(), costs.read), (config.write_bandwidth_code(), costs.write)];
            limits.map(|(code, rate)| (code > 0).then(|| pipes.pipe(rate >> code)))
        };
        let limits: Vec<_> = (0..groups.len()).map(limits).collect();
        if capabilities.gen_cap.inter_domain() {
            open_window(&model);
        }
        Ok(Dsa {
            grouped: pools.iter().any(Option::is_some) || limits.iter().flatten().any(Option::is_some),
            pools,
            limits,
            pes: (0..engines).map(Pe::new).collect(),
            engines: groups.iter().map(Vec::len).sum::<usize>() as u64,
            groups,
            batches: 0,
            drains: false,
            requests: Requests::new(costs),
            merging: Picos::ZERO,
            paging: Picos::ZERO,
            node,
            read: pipes.pipe(costs.read),
            write: pipes.pipe(costs.write),
            through: pipes.pipe(costs.through),
            reading: pipes.pipe(memory::carrier(costs.in_flight)),
            writing: pipes.pipe(memory::carrier(costs.writes_in_flight)),
            model,
        })
    }
}

/// Writes the entry of the window that all simulated inter-domain operations use: to the memory of another process, for
/// the process of the simulated threads, without limits.
fn open_window(model: &Device) {
    let entry = IdptEntry::default()
        .with_usable(true)
        .with_submitter_pasid(PASID)
        .with_access_pasid(PASID + 1)
        .with_window_flags(WindowFlags::READ | WindowFlags::WRITE);
    for (word, value) in entry.0.iter().enumerate().rev() {
        model.write_register(layout::IDPT + ENTRY_BYTES * u64::from(WINDOW) + 8 * word as u64, 8, *value);
    }
    // Refused by a device whose handles are the indexes of the table; the others give each entry its index, too.
    model.start_command(Command::new(CommandCode::RequestIdptHandle, WINDOW.into()));
}

/// By group: bytes that may be in flight to its engines, if fewer than to the whole device. A group cannot use buffers
/// that other groups have reserved. Source: SPEC ch. 4.
fn pools(
    model: &Device,
    capabilities: Capabilities,
    costs: &DeviceCosts,
    groups: usize,
    limit: u32,
) -> impl Iterator<Item = Option<u64>> {
    let total = u64::from(capabilities.grp_cap.read_buffers());
    let configs: Vec<_> = (0..groups).map(|group| model.grp_cfg(group)).collect();
    let reserved: u64 = configs.iter().map(|config| u64::from(config.read_buffers_reserved())).sum();
    let global = u64::from(limit);
    let in_flight = costs.in_flight;
    configs.into_iter().map(move |config| {
        let others = reserved.saturating_sub(config.read_buffers_reserved().into());
        let mut own = total.saturating_sub(others).min(config.read_buffers_allowed().into());
        if config.use_global_limit() && global > 0 {
            own = own.min(global);
        }
        (own > 0 && own < total).then(|| in_flight * own / total)
    })
}

impl Dsa {
    /// The group of an engine.
    #[inline]
    pub(super) fn group_of(&self, engine: u16) -> Option<usize> {
        self.groups.iter().position(|group| group.contains(&engine))
    }

    /// The group of an engine, if the group has only a part of the read buffers or of the bandwidth.
    #[inline]
    pub(super) fn limited_group(&self, engine: u16) -> Option<u16> {
        if !self.grouped {
            return None;
        }
        let group = self.group_of(engine)?;
        let limited = self.pools[group].is_some() || self.limits[group].iter().any(Option::is_some);
        u16::try_from(group).ok().filter(|_| limited)
    }

    /// Gives an engine without work for its front end the oldest descriptor that another engine of its group has taken
    /// ahead; true if there is one.
    pub(super) fn take_over(&mut self, engine: u16) -> bool {
        let Some(group) = self.group_of(engine) else { return false };
        let ahead = |other: &u16| Some((self.pes[usize::from(*other)].ahead()?, *other));
        let Some((_, other)) = self.groups[group].iter().filter(|other| **other != engine).filter_map(ahead).min()
        else {
            return false;
        };
        let pes = self.pes.get_disjoint_mut([engine, other].map(usize::from));
        pes.is_ok_and(|[own, other]| own.take_over(other))
    }

    /// True if the front end of another engine of the same group is free.
    pub(super) fn has_free_beside(&self, engine: u16, ready: usize) -> bool {
        let group = self.group_of(engine).map(|group| &self.groups[group]);
        let free = |other: &u16| *other != engine && self.pes[usize::from(*other)].is_free(ready);
        group.is_some_and(|group| group.len() > 1 && group.iter().any(free))
    }
}

impl World {
    /// A descriptor waits in a queue: wakes the least loaded sleeping engine of its group that can take it.
    pub(super) fn wake(&mut self, device: u16, wq: usize) {
        let now = self.events.now();
        let dsa = &mut self.devices[usize::from(device)];
        let group = dsa.model.group_of_wq(wq);
        let pes = &dsa.pes;
        let free = dsa.groups[group].iter().filter(|engine| {
            let pe = &pes[usize::from(**engine)];
            pe.is_asleep() && pe.has_room()
        });
        if let Some(engine) = free.min_by_key(|engine| pes[usize::from(**engine)].load()).copied() {
            let at = now.max(dsa.pes[usize::from(engine)].wake());
            self.events.at(at, Event::Front(EngineId { device, engine }));
        }
    }
}
