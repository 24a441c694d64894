//! Opens a queue by its name as a portal.

use crate::discover::{BUS, discover, discover_device, whole};
use crate::error::OpenError;
use crate::files::{Files, Live};
use crate::health::HealthAttributes;
use crate::machine::{Device, Queue, QueueType, State};
use crate::node::Node;
use crate::page::Page;
use crate::portal::{HwPortal, SubmitMethod};
use crate::queue_test::{self, Trial};
use crate::submit::{Enqcmd, Movdir64b};
use crate::wait::Waitpkg;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use telpher_abi::registers::{DsaCap0, GenCap};
use telpher_abi::{Opcode, Status};
use telpher_portal::{Portal, QueueInfo, QueueMode};

/// Opens a queue of this machine, such as `wq0.1`, for this process; a dedicated queue for this process alone.
///
/// The portal is mapped and written to by MOVDIR64B or ENQCMD. If the kernel refuses the mapping or the processor lacks
/// the instruction, the driver submits by write(), which takes no batches ([`QueueInfo::max_batch`] is 1 then).
///
/// # Errors
///
/// [`OpenError`] contains the attempt, the machine's answer, and what to do.
pub fn open(queue: &str) -> Result<Arc<dyn Portal>, OpenError> {
    describe(queue)?.open()
}

/// Reads what the driver says about a queue, as the first half of [`open`].
///
/// # Errors
///
/// [`OpenError`], if no program can use the queue.
pub fn describe(queue: &str) -> Result<DescribedQueue, OpenError> {
    describe_on(&Live::default(), queue)
}

/// A queue as the driver describes it. A forked child opens it again, without reading a directory.
#[derive(Clone, Debug)]
pub struct DescribedQueue {
    files: Live,
    device: Device,
    queue: Queue,
    info: QueueInfo,
}

impl DescribedQueue {
    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.queue.name
    }

    /// Opens the queue, as the second half of [`open`]: it opens and maps files, and calls no allocator but Rust's.
    ///
    /// # Errors
    ///
    /// [`OpenError`] contains the attempt, the machine's answer, and what to do.
    pub fn open(&self) -> Result<Arc<dyn Portal>, OpenError> {
        self.open_with(InstructionTokens::here())
    }
}

fn describe_on(files: &Live, queue: &str) -> Result<DescribedQueue, OpenError> {
    let (device, queue) = find(files, queue)?;
    let info = usable(&device, &queue)?;
    Ok(DescribedQueue { files: files.clone(), device, queue, info })
}

/// The available instructions.
#[derive(Clone, Copy, Debug, Default)]
struct InstructionTokens {
    movdir64b: Option<Movdir64b>,
    enqcmd: Option<Enqcmd>,
    waitpkg: Option<Waitpkg>,
}

impl InstructionTokens {
    fn here() -> Self {
        InstructionTokens { movdir64b: Movdir64b::new(), enqcmd: Enqcmd::new(), waitpkg: Waitpkg::new() }
    }
}

/// Opens a queue on a tree with the machine's paths, with some of its instructions.
#[cfg(test)]
fn open_on(files: &Live, tokens: InstructionTokens, queue: &str) -> Result<Arc<dyn Portal>, OpenError> {
    describe_on(files, queue)?.open_with(tokens)
}

impl DescribedQueue {
    /// Opens the queue with some of the machine's instructions.
    fn open_with(&self, tokens: InstructionTokens) -> Result<Arc<dyn Portal>, OpenError> {
        let DescribedQueue { files, device, queue, info } = self;
        let path = files.at(&queue.node(device.kind));
        // Non-blocking, so that `offer` never waits.
        let node = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let node = node.map_err(|source| opening(path.clone(), source))?;
        let (submit_method, unmapped) = submit_method(&node, info.mode, tokens);
        let node = Node::new(node);
        let maps = matches!(submit_method, SubmitMethod::Posted(..) | SubmitMethod::Deferred(..));
        let attributes = HealthAttributes::of(files, device, queue);
        let portal = HwPortal::new(info.clone(), submit_method, tokens.waitpkg, Some(node), attributes);
        match queue_test::nop(|submission| portal.try_offer(submission)) {
            Trial::Ended(Status::Success) | Trial::Full => {}
            Trial::Ended(status) => return Err(OpenError::Refused { queue: queue.name.clone(), status }),
            Trial::Silent => {
                return Err(OpenError::Silent {
                    queue: queue.name.clone(),
                    waited_ms: queue_test::TRIAL_TIMEOUT.as_millis(),
                });
            }
            Trial::Refused(source) => {
                return Err(match (unmapped, portal.info().mode) {
                    (Some(mapping), _) => OpenError::Map { path, refused: source, source: mapping },
                    (None, QueueMode::Dedicated) => OpenError::Instruction { path, instruction: "MOVDIR64B", source },
                    (None, QueueMode::Shared) => OpenError::Instruction { path, instruction: "ENQCMD", source },
                });
            }
        }
        let info = portal.info().clone();
        let takes_batches = maps && info.max_batch > 1 && takes_batches(&portal);
        let operations = info.operations.with(Opcode::Batch, takes_batches);
        let max_batch = if takes_batches { info.max_batch } else { 1 };
        Ok(Arc::new(portal.with_info(QueueInfo { max_batch, operations, ..info })))
    }
}

/// Chooses how to submit; also returns the error of mmap(2) if it refused.
fn submit_method(node: &File, mode: QueueMode, tokens: InstructionTokens) -> (SubmitMethod, Option<io::Error>) {
    match Page::of(node) {
        Err(error) => (SubmitMethod::DriverWrite, Some(error)),
        Ok(page) => {
            let submit_method = match mode {
                QueueMode::Dedicated => tokens.movdir64b.map(|instruction| SubmitMethod::Posted(instruction, page)),
                QueueMode::Shared => tokens.enqcmd.map(|instruction| SubmitMethod::Deferred(instruction, page)),
            };
            (submit_method.unwrap_or(SubmitMethod::DriverWrite), None)
        }
    }
}

/// True if a mapped portal takes batches. The driver hides the operation where ordinary programs may not submit one,
/// but the device accepts it from programs that may map its portal (K612 `sysfs.c`, `cdev.c`). So it is tested.
fn takes_batches(portal: &HwPortal) -> bool {
    portal.info().operations.contains(Opcode::Batch)
        || matches!(queue_test::batch(|submission| portal.try_offer(submission)), Trial::Ended(Status::Success))
}

/// Finds the queue in the driver's description.
fn find(files: &dyn Files, name: &str) -> Result<(Device, Queue), OpenError> {
    let of = name.strip_prefix("wq").and_then(|rest| rest.split_once('.'));
    let of = of.and_then(|(device, queue)| whole(queue).and(whole(device)));
    let of = of.ok_or_else(|| OpenError::Name(name.into()))?;
    let queue = name.to_owned();
    if let Err(source) = files.list(Path::new(BUS)) {
        return Err(OpenError::NoDriver { queue, source });
    }
    let Some(device) = discover_device(files, of) else {
        let present = discover(files).devices.into_iter().map(|device| device.name).collect();
        return Err(OpenError::NoDevice { queue, device: format!("dsa{of}"), present });
    };
    match device.queues.iter().find(|queue| queue.name == name) {
        Some(found) => Ok((device.clone(), found.clone())),
        None => {
            let present = device.queues.iter().map(|queue| queue.name.clone()).collect();
            Err(OpenError::NoQueue { queue, device: device.name, present })
        }
    }
}

/// Returns the properties that a client needs, if programs can use the queue at all.
pub(crate) fn usable(device: &Device, queue: &Queue) -> Result<QueueInfo, OpenError> {
    let name = queue.name.clone();
    if let Some(state @ (State::Disabled | State::Halted)) = device.state {
        return Err(OpenError::Device { queue: name, device: device.name.clone(), state });
    }
    if let Some(queue_type @ (QueueType::None | QueueType::Kernel)) = queue.queue_type
        && queue.state == Some(State::Enabled)
    {
        return Err(OpenError::Type { queue: name, queue_type });
    }
    if device.pasid_enabled == Some(false) {
        return Err(OpenError::NoPasids { queue: name, device: device.name.clone() });
    }
    if queue.state != Some(State::Enabled) {
        return Err(OpenError::Disabled { queue: name, device: device.name.clone() });
    }
    let missing = |attribute| OpenError::Attribute { queue: name.clone(), attribute };
    let mode = queue.mode.ok_or_else(|| missing("mode"))?;
    let (attribute, size) = match mode {
        QueueMode::Dedicated => ("size", queue.size),
        QueueMode::Shared => ("threshold", queue.threshold),
    };
    let size = size.filter(|size| *size > 0).ok_or_else(|| missing(attribute))?;
    let max_transfer = queue.max_transfer.or(device.max_transfer).ok_or_else(|| missing("max_transfer_size"))?;
    let operations = queue.op_config.or(device.op_cap).ok_or_else(|| missing("op_cap"))?;
    Ok(QueueInfo {
        mode,
        size,
        max_transfer,
        max_batch: queue.max_batch.or(device.max_batch).unwrap_or(1),
        block_on_fault: queue.block_on_fault.unwrap_or(false),
        gen_cap: device.gen_cap.unwrap_or(GenCap([0])),
        // Drivers set every queue's longest list to the device's, and show no attribute for it.
        dsa_cap_0: device.dsa_caps.map_or(DsaCap0([0]), |caps| caps.0),
        operations,
        numa_node: device.numa_node,
        name,
    })
}

/// Converts the error of open(2). Source: K612 `cdev.c`, idxd_cdev_open.
pub(crate) fn opening(path: PathBuf, source: io::Error) -> OpenError {
    match source.raw_os_error().unwrap_or(0) {
        libc::ENOENT | libc::ENXIO => OpenError::NoNode { path, source },
        libc::EACCES | libc::EPERM => OpenError::Permission { path, source },
        libc::EBUSY => OpenError::Busy { path, source },
        libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV | libc::ENOSPC => OpenError::AddressSpace { path, source },
        _ => OpenError::Open { path, source },
    }
}

#[cfg(test)]
mod tests;
