//! The checks of Enable Device and Enable WQ, in the order of their error codes, and the state they set up. Source:
//! SPEC §9.2.12, §3.4; error codes and conditions as listed there.

use crate::capabilities::{MAX_ENGINES, MAX_GROUPS, MAX_WQS};
use crate::device::Device;
use crate::group::bits;
use telpher_abi::Flags;
use telpher_abi::registers::{CommandError, DeviceState, GrpCfg, OpCap, VERSION_3, WqCfg, WqState};

/// Smallest event log. Source: SPEC §9.2.15.
const MIN_LOG_ENTRIES: u16 = 64;

impl Device {
    pub(crate) fn enable_device(&self) -> Result<(), CommandError> {
        if self.state() != DeviceState::Disabled {
            return Err(CommandError::DeviceNotDisabled);
        }
        self.check_function()?;
        self.check_sizes()?;
        self.check_groups()?;
        self.check_read_buffers()?;
        self.check_event_log()?;
        self.check_bitmap_identity()?;

        self.lay_out_rings();
        for engine in &self.engine_group {
            engine.set(0);
        }
        for group in 0..self.group_count() {
            let config = self.grp_cfg(group);
            self.groups[group].0.wqs.set(config.wqs());
            for wq in bits(config.wqs()) {
                self.wqs[wq].rules.0.group.set(group as u64);
            }
            for engine in bits(config.engines()) {
                self.engine_group[engine].set(group as u64 + 1);
            }
        }
        self.errors.log_head.set(0);
        self.errors.log_tail.set(0);
        self.errors.log_pending.set(0);
        self.general.state.change(&[DeviceState::Disabled], DeviceState::Enabled);
        Ok(())
    }

    pub(crate) fn group_count(&self) -> usize {
        self.capabilities.grp_cap.groups().into()
    }

    fn engine_count(&self) -> usize {
        self.capabilities.eng_cap.engines().into()
    }

    fn check_function(&self) -> Result<(), CommandError> {
        let pci = self.pci();
        if !pci.bus_master {
            return Err(CommandError::BusMaster);
        }
        let capacity = self.capabilities.page_request_capacity;
        if pci.prs && !(1..=capacity).contains(&pci.page_requests) {
            return Err(CommandError::PageRequestAllocation);
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), CommandError> {
        let total: u32 = (0..self.queues()).map(|wq| u32::from(self.wq_cfg(wq).size())).sum();
        let allowed = u32::from(self.capabilities.wq_cap.total_entries());
        if total > allowed { Err(CommandError::WqSizes) } else { Ok(()) }
    }

    fn check_groups(&self) -> Result<(), CommandError> {
        let groups = self.group_count();
        let configs: [GrpCfg; MAX_GROUPS] = std::array::from_fn(|group| self.grp_cfg(group));
        for (group, config) in configs.iter().enumerate() {
            let any_wq = config.0[..4] != [0; 4];
            let any_engine = config.engines() != 0;
            if any_wq != any_engine || (group >= groups && (any_wq || any_engine)) {
                return Err(CommandError::GroupMembers);
            }
        }
        let existing = |count: usize| (1_u64 << count) - 1;
        let (mut wqs, mut engines) = (0_u64, 0_u64);
        for config in &configs[..groups] {
            if config.0[1..4] != [0; 3] || config.wqs() & !existing(self.queues()) != 0 || config.wqs() & wqs != 0 {
                return Err(CommandError::WqGrouping);
            }
            wqs |= config.wqs();
        }
        for wq in 0..self.queues() {
            if (self.wq_cfg(wq).size() != 0) != (wqs >> wq & 1 == 1) {
                return Err(CommandError::WqGrouping);
            }
        }
        for config in &configs[..groups] {
            if config.engines() & !existing(self.engine_count()) != 0 || config.engines() & engines != 0 {
                return Err(CommandError::EngineGrouping);
            }
            engines |= config.engines();
        }
        Ok(())
    }

    /// Source: SPEC ch. 4 and Enable Device's conditions on read buffers and bandwidth.
    fn check_read_buffers(&self) -> Result<(), CommandError> {
        let cap = self.capabilities.grp_cap;
        let total = u32::from(cap.read_buffers());
        let configs: Vec<GrpCfg> = (0..self.group_count()).map(|group| self.grp_cfg(group)).collect();
        let reserved: u32 = configs.iter().map(|config| u32::from(config.read_buffers_reserved())).sum();
        let global = u32::from(self.gen_cfg().global_read_buffer_limit());
        let global_engines: u32 =
            configs.iter().filter(|config| config.use_global_limit()).map(|config| config.engines().count_ones()).sum();
        let mut wrong = reserved > total || global > total || global < 4 * global_engines;
        for config in &configs {
            wrong |= config.use_global_limit() && !cap.global_read_buffer_limit();
            wrong |=
                !cap.bandwidth_limits() && (config.read_bandwidth_code() != 0 || config.write_bandwidth_code() != 0);
            wrong |= config.read_bandwidth_code() > 3 || config.write_bandwidth_code() > 3;
            if config.engines() != 0 && cap.read_buffer_controls() {
                let (own, allowed) =
                    (u32::from(config.read_buffers_reserved()), u32::from(config.read_buffers_allowed()));
                let unreserved = total.saturating_sub(reserved);
                wrong |= 4 * config.engines().count_ones() > allowed || own > allowed || allowed > own + unreserved;
            }
        }
        if wrong { Err(CommandError::ReadBuffers) } else { Ok(()) }
    }

    fn check_bitmap_identity(&self) -> Result<(), CommandError> {
        let (identity, pci) = (self.idbr(), self.pci());
        let wrong = (identity.pasid_enable() && !pci.pasid) || (identity.privileged() && !pci.privileged);
        if wrong { Err(CommandError::ConfigPasid) } else { Ok(()) }
    }

    fn check_event_log(&self) -> Result<(), CommandError> {
        if !self.event_log_enabled() {
            return Ok(());
        }
        let config = self.evl_cfg();
        if self.capabilities.event_log_entry_bytes() == 0 || config.entries() < MIN_LOG_ENTRIES {
            return Err(CommandError::EventLog);
        }
        let pci = self.pci();
        if (config.pasid_enable() && !pci.pasid) || (config.privileged() && !pci.privileged) {
            return Err(CommandError::ConfigPasid);
        }
        Ok(())
    }

    pub(crate) fn enable_wq(&self, wq: usize) -> Result<(), CommandError> {
        if wq >= self.queues() {
            return Err(CommandError::WqIndex);
        }
        if self.state() != DeviceState::Enabled {
            return Err(CommandError::DeviceNotEnabled);
        }
        if self.wq_state(wq) != WqState::Disabled {
            return Err(CommandError::WqNotDisabled);
        }
        let config = self.wq_cfg(wq);
        self.check_wq(&config)?;
        self.set_rules(wq, &config);
        let group = &self.groups[self.group_of_wq(wq)].0;
        // A device without priorities accepts any value; the arbiter needs a positive credit.
        group.priority[wq].set(u64::from(config.priority()).max(1));
        group.renew();
        self.wqs[wq].ring.reopen();
        Ok(())
    }

    fn check_wq(&self, config: &WqCfg) -> Result<(), CommandError> {
        let caps = &self.capabilities;
        let (cap, gen_cap, pci) = (caps.wq_cap, caps.gen_cap, self.pci());
        let mode_supported = if config.dedicated() { cap.dedicated_mode() } else { cap.shared_mode() };
        let pasid_wrong = (!config.dedicated() && !config.pasid_enable()) || (config.pasid_enable() && !pci.pasid);
        let batch = config.max_batch_shift();
        let occupancy_table_size =
            if config.occupancy_table() { caps.ims_entries() } else { usize::from(caps.msix_entries) };
        let occupancy_handle = usize::from(config.occupancy_handle());
        let occupancy_wrong = config.occupancy_interrupt()
            && (!cap.occupancy_interrupt()
                || occupancy_handle >= occupancy_table_size
                || (self.needs_handles() && !self.handle_issued(config.occupancy_table(), occupancy_handle)));
        // Source of each line: the error code's row in SPEC §9.2.12.
        let checks = [
            (config.size() == 0, CommandError::WqSizeZero),
            (config.priority() == 0 && cap.priority(), CommandError::WqPriorityZero),
            (!mode_supported, CommandError::WqMode),
            (
                config.block_on_fault() && !(gen_cap.block_on_fault() && pci.prs && pci.ats),
                CommandError::WqBlockOnFault,
            ),
            (pasid_wrong, CommandError::WqPasid),
            ((batch == 0 && !gen_cap.batch_1()) || batch > gen_cap.max_batch_shift(), CommandError::WqMaxBatch),
            // Before 3.0 the field is reserved, and was not checked.
            (
                caps.version >= VERSION_3 && config.max_sgl_shift() > caps.dsa_cap_0.max_sgl_shift(),
                CommandError::WqMaxBatch,
            ),
            (config.max_transfer_shift() > gen_cap.max_transfer_shift(), CommandError::WqMaxTransfer),
            (config.dedicated() && config.privileged() && !pci.privileged, CommandError::WqPrivilege),
            (occupancy_wrong, CommandError::WqOccupancyInterrupt),
            (config.ats_disable() && !cap.ats_disable(), CommandError::WqAtsDisable),
            (cap.op_config() && !config.op_config().is_subset_of(&caps.op_cap), CommandError::WqOpConfig),
            (
                config.prs_disable() && (!cap.prs_disable() || !self.event_log_enabled() || config.block_on_fault()),
                CommandError::WqPrsDisable,
            ),
        ];
        checks.iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, error)| Err(*error))
    }

    /// Computes the rules for submission and decoding from the configuration.
    fn set_rules(&self, wq: usize, config: &WqCfg) {
        let rules = &self.wqs[wq].rules.0;
        let gen_cap = self.capabilities.gen_cap;
        rules.size.set(config.size().into());
        rules.dedicated.set(config.dedicated().into());
        rules.max_transfer.set(1 << config.max_transfer_shift().min(gen_cap.max_transfer_shift()));
        rules.max_batch.set(1 << config.max_batch_shift().min(gen_cap.max_batch_shift()));
        let sgl_shift = config.max_sgl_shift().min(self.capabilities.dsa_cap_0.max_sgl_shift());
        rules.max_sgl.set(1 << sgl_shift);
        rules.identity.set(
            u64::from(config.pasid()) | u64::from(config.privileged()) << 32 | u64::from(config.pasid_enable()) << 33,
        );
        // Flags that configuration or capabilities deny to every operation. Source: SPEC Table 8-3.
        let mut flags = Flags::all();
        flags.set(Flags::BLOCK_ON_FAULT, config.block_on_fault());
        flags.set(Flags::CACHE_CONTROL_1, gen_cap.cache_control());
        flags.set(Flags::DESTINATION_READBACK, gen_cap.destination_readback());
        flags.set(Flags::CACHE_CONTROL_3, self.capabilities.version >= VERSION_3);
        flags.set(Flags::STRICT_ORDERING, !gen_cap.no_strict_memory());
        rules.flags.set(flags.bits().into());
        let group = usize::try_from(rules.group.get()).unwrap_or(0);
        let grp = self.grp_cfg(group);
        let usable = |class: u8| u64::from(self.capabilities.traffic_classes >> class & 1);
        rules.classes.set(usable(grp.tc_a()) | usable(grp.tc_b()) << 1);
    }

    /// Returns the operations that a queue accepts.
    #[must_use]
    pub fn operations_of(&self, wq: usize) -> OpCap {
        if self.capabilities.wq_cap.op_config() { self.wq_cfg(wq).op_config() } else { self.capabilities.op_cap }
    }

    /// Clears everything that Reset Device clears. Source: SPEC Table 9-3.
    pub(crate) fn reset_configuration(&self) {
        let buffers = self.capabilities.grp_cap.read_buffers();
        self.general.gencfg.set(u64::from(buffers));
        self.general.genctrl.set(0);
        self.general.intcause.set(0);
        self.general.cmdparam.set(0);
        for word in &self.general.evlcfg {
            word.set(0);
        }
        for (group, words) in self.grpcfg.iter().enumerate() {
            let allowed = if group < self.group_count() { buffers } else { 0 };
            crate::sync::store(words, &GrpCfg::default().with_read_buffers_allowed(allowed).0);
        }
        for wq in 0..MAX_WQS {
            self.reset_wq_cfg(wq, 0);
        }
        self.reset_windows();
        for group in &self.groups {
            group.0.wqs.set(0);
        }
        for engine in 0..MAX_ENGINES {
            self.engine_group[engine].set(0);
        }
        self.general.state.reset();
    }

    /// Resets a queue's configuration, except for its size.
    pub(crate) fn reset_wq_cfg(&self, wq: usize, size: u16) {
        let config = WqCfg::default().with_size(size).with_op_config(self.capabilities.op_cap);
        crate::sync::store(&self.wqcfg[wq], &config.0);
        self.wqs[wq].rules.0.size.set(0);
    }
}
