//! One client's session: carries out its requests on the function.
//!
//! Source: libvfio-user, `include/vfio-user.h`, for layouts; linux/vfio.h for the numbers of regions and interrupts.

use crate::config_space::{ConfigSpace, Effect};
use crate::connection::{Connection, ConnectionError};
use crate::function::{Function, work_of_store};
use crate::messages::MessageDma;
use crate::negotiation;
use crate::portals::{Portals, Store};
use crate::remarks::Remarks;
use crate::turns::EnginePool;
use crate::wire::{DmaRegion, Errno, Header, MOST_FILES, Request, SetIrqs, dma_flags, irq_flags, within};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use telpher_model::config_space::{CONFIG_BYTES, portal_bytes};
use telpher_model::layout;
use telpher_os::PeerEventfd;

/// Regions of a PCI function: BARs 0 to 5, ROM, configuration space, VGA.
const REGIONS: u32 = 9;
const BAR0: u32 = 0;
const BAR2: u32 = 2;
const CONFIG: u32 = 7;
/// Kinds of interrupts: INTx, MSI, MSI-X, errors, requests to release the device.
const IRQS: u32 = 5;
const MSIX: u32 = 2;

/// DEVICE_GET_INFO: the device can be reset, and is a PCI function.
const DEVICE_FLAGS: u32 = 1 | 2;
/// GET_REGION_INFO: readable and writable, by messages.
const REGION_FLAGS: u32 = 1 | 2;
/// GET_IRQ_INFO: signalled by eventfds; vectors can be added one by one.
const IRQ_FLAGS: u32 = 1;

/// Remarks of a session that are passed on; the rest is counted.
const MOST_REMARKS: u32 = 16;

/// A reply: the parts of its body, or a refusal.
type Reply = Result<Vec<u8>, Errno>;

/// The session of one client.
pub(crate) struct Session<'a> {
    function: &'a Function,
    connection: Arc<Connection>,
    config: ConfigSpace,
    portals: Portals,
    /// The server's own commands, once versions are negotiated.
    messages: Option<Arc<MessageDma>>,
    uses_messages: bool,
    /// Where the function has its turns, and its number there.
    turns: (&'a EnginePool, usize),
    /// Work that was submitted by the current message.
    submitted: Option<u64>,
    /// Of the machine, and how many this session had.
    remarks: &'a Remarks,
    count: u32,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        function: &'a Function,
        connection: Arc<Connection>,
        turns: (&'a EnginePool, usize),
        uses_messages: bool,
        remarks: &'a Remarks,
    ) -> Self {
        Session {
            config: ConfigSpace::new(function.capabilities()),
            portals: Portals::new(function.capabilities().wq_cap.queues().into()),
            function,
            connection,
            messages: None,
            uses_messages,
            turns,
            submitted: None,
            remarks,
            count: 0,
        }
    }

    /// Serves the client until it goes. The function is then as after power-on, without memory and eventfds.
    ///
    /// # Errors
    /// The client broke the protocol, or its socket failed.
    pub(crate) fn serve(mut self) -> Result<(), ConnectionError> {
        let ended = self.exchange();
        self.function.disconnect();
        if self.count > MOST_REMARKS {
            self.remarks.add(&format!("{} more remarks were left out", self.count - MOST_REMARKS));
        }
        if self.portals.torn() > 0 {
            self.remarks.add(&format!("{} incomplete stores to portals were dropped", self.portals.torn()));
        }
        ended
    }

    fn exchange(&mut self) -> Result<(), ConnectionError> {
        let mut body = Vec::new();
        let connection = Arc::clone(&self.connection);
        while let Some((header, files)) = connection.receive(&mut body)? {
            if header.is_reply() {
                if let Some(messages) = &self.messages {
                    messages.answer(&header, &body);
                }
                continue;
            }
            let reply = self.handle(&header, &body, files);
            if header.wants_reply() {
                match reply {
                    Ok(body) => connection.send(header.reply(body.len()), &[&body])?,
                    Err(errno) => connection.send(header.refusal(errno), &[])?,
                }
            }
            if let Some(work) = self.submitted.take() {
                self.function.start(work, self.turns.0, self.turns.1);
            }
        }
        Ok(())
    }

    fn remark(&mut self, remark: &str) {
        self.count = self.count.saturating_add(1);
        if self.count <= MOST_REMARKS {
            self.remarks.add(remark);
        }
    }

    fn handle(&mut self, header: &Header, body: &[u8], files: Vec<OwnedFd>) -> Reply {
        let request = Request::parse(header, body).ok_or(Errno::Invalid)?;
        if let Request::Version { major, capabilities } = request {
            return self.negotiate(major, capabilities);
        }
        if self.messages.is_none() {
            return Err(Errno::Invalid);
        }
        match request {
            // Answered above.
            Request::Version { .. } => Err(Errno::Invalid),
            Request::DmaMap(region) => self.map(region, files),
            Request::DmaUnmap { flags, address, len } => self.unmap(flags, address, len, body),
            Request::DeviceInfo => Ok(words(&[16, DEVICE_FLAGS, REGIONS, IRQS])),
            Request::RegionInfo { index } => self.region_info(index),
            Request::IrqInfo { index } if index < IRQS => {
                let count = if index == MSIX { self.function.vectors.count() } else { 0 };
                Ok(words(&[16, IRQ_FLAGS, index, count]))
            }
            Request::IrqInfo { .. } => Err(Errno::Invalid),
            Request::SetIrqs(set) => self.set_irqs(&set, files),
            Request::RegionRead { offset, region, count } => self.read(offset, region, count),
            Request::RegionWrite { offset, region, data } => self.write(offset, region, data),
            Request::DeviceReset => {
                self.reset();
                Ok(Vec::new())
            }
            Request::Migration => {
                self.remark(
                    "the client asked for migration, which this device does not have; the state of a modelled device \
                     cannot be saved. Detach the device before you migrate or save the machine",
                );
                Err(Errno::NotSupported)
            }
            Request::Unknown => Err(Errno::NotSupported),
        }
    }

    fn negotiate(&mut self, major: u16, capabilities: &[u8]) -> Reply {
        let client = negotiation::client(major, capabilities).ok_or(Errno::Invalid)?;
        if self.messages.is_some() {
            // Versions are negotiated once.
            return Err(Errno::Invalid);
        }
        let messages = Arc::new(MessageDma::new(Arc::clone(&self.connection), client.most_data));
        self.function.connect(self.uses_messages.then(|| Arc::clone(&messages)));
        self.messages = Some(messages);
        Ok(negotiation::answer())
    }

    fn map(&mut self, region: DmaRegion, files: Vec<OwnedFd>) -> Reply {
        self.function.change_memory(|map| map.add(region, files)).map_err(|refused| {
            let DmaRegion { address, len, .. } = region;
            self.remark(&format!("refused to map {len:#x} bytes at guest address {address:#x}: {}", refused.reason));
            refused.errno
        })?;
        Ok(Vec::new())
    }

    fn unmap(&mut self, flags: u32, address: u64, len: u64, body: &[u8]) -> Reply {
        if flags & dma_flags::UNMAP_DIRTY != 0 {
            return Err(Errno::NotSupported);
        }
        self.function.change_memory(|map| {
            if flags & dma_flags::UNMAP_ALL == 0 {
                return map.remove(address, len);
            }
            map.clear();
            Ok(())
        })?;
        // The reply repeats the request.
        Ok(body[..24.min(body.len())].to_vec())
    }

    /// Returns the size of a region; 0 for one that does not exist.
    fn size_of(&self, region: u32) -> u64 {
        match region {
            BAR0 => layout::BAR0_BYTES,
            BAR2 => portal_bytes(self.function.capabilities()),
            CONFIG => CONFIG_BYTES as u64,
            _ => 0,
        }
    }

    fn region_info(&self, index: u32) -> Reply {
        if index >= REGIONS {
            return Err(Errno::Invalid);
        }
        let size = self.size_of(index);
        let mut body = words(&[32, if size > 0 { REGION_FLAGS } else { 0 }, index, 0]);
        body.extend(size.to_le_bytes());
        body.extend(0_u64.to_le_bytes());
        Ok(body)
    }

    fn read(&self, offset: u64, region: u32, count: u32) -> Reply {
        let count = usize::try_from(count).map_err(|_| Errno::Invalid)?;
        within(offset, count, self.size_of(region)).ok_or(Errno::Invalid)?;
        let mut body = access(offset, region, count);
        let fields = body.len();
        // Portals read as zeros.
        body.resize(fields + count, 0);
        match region {
            BAR0 => self.function.read_registers(offset, &mut body[fields..]),
            CONFIG => body[fields..].copy_from_slice(self.config.read(offset_in(offset), count)),
            _ => {}
        }
        Ok(body)
    }

    fn write(&mut self, offset: u64, region: u32, data: &[u8]) -> Reply {
        within(offset, data.len(), self.size_of(region)).ok_or(Errno::Invalid)?;
        match region {
            BAR0 => self.function.write_registers(offset, data),
            BAR2 => self.store(offset, data),
            _ => match self.config.write(offset_in(offset), data) {
                Effect::None => {}
                Effect::BusMaster(on) => self.function.set_bus_master(on),
                Effect::Reset => self.reset(),
            },
        }
        Ok(access(offset, region, data.len()))
    }

    fn store(&mut self, offset: u64, data: &[u8]) {
        let (function, torn) = (self.function, self.portals.torn());
        let (mut refused, mut submitted) = (None, None);
        self.portals.write(offset, data, |store: Store| {
            if function.submit(&store) {
                submitted = Some(work_of_store(&store).saturating_add(submitted.unwrap_or(0)));
            } else {
                refused = Some(store.wq);
            }
        });
        self.submitted = submitted;
        if self.portals.torn() > torn {
            self.remark(&format!(
                "an incomplete store to portal {offset:#x} was dropped: its pieces came out of order"
            ));
        }
        if let Some(wq) = refused {
            self.remark(&format!("queue {wq} did not take a descriptor: it is full, shared, or not enabled"));
        }
    }

    fn reset(&mut self) {
        self.portals.clear();
        self.config = ConfigSpace::new(self.function.capabilities());
        self.function.reset();
    }

    fn set_irqs(&self, set: &SetIrqs<'_>, files: Vec<OwnedFd>) -> Reply {
        let vectors = &self.function.vectors;
        let most = vectors.count();
        let end = set.start.checked_add(set.count).ok_or(Errno::Invalid)?;
        if set.index >= IRQS || files.len() > MOST_FILES {
            return Err(Errno::Invalid);
        }
        if set.index != MSIX {
            // The function has no other interrupts; taking all of them away changes nothing.
            return if set.count == 0 { Ok(Vec::new()) } else { Err(Errno::Invalid) };
        }
        if end > most {
            return Err(Errno::Invalid);
        }
        let (start, count) = (index(set.start), index(set.count));
        let chosen = |set: &SetIrqs<'_>| -> Result<Vec<usize>, Errno> {
            match set.flags & (irq_flags::DATA_NONE | irq_flags::DATA_BOOL | irq_flags::DATA_EVENTFD) {
                irq_flags::DATA_NONE => Ok((start..start + count).collect()),
                irq_flags::DATA_BOOL => {
                    let flags = set.data.get(..count).ok_or(Errno::Invalid)?;
                    Ok((start..).zip(flags).filter(|(_, flag)| **flag != 0).map(|(vector, _)| vector).collect())
                }
                _ => Err(Errno::Invalid),
            }
        };
        match set.flags & (irq_flags::MASK | irq_flags::UNMASK | irq_flags::TRIGGER) {
            irq_flags::TRIGGER if set.flags & irq_flags::DATA_EVENTFD != 0 => {
                if files.is_empty() {
                    vectors.set(start, (0..count).map(|_| None));
                } else if files.len() == count {
                    let eventfds: Option<Vec<PeerEventfd>> = files.into_iter().map(PeerEventfd::new).collect();
                    vectors.set(start, eventfds.ok_or(Errno::Invalid)?.into_iter().map(Some));
                } else {
                    return Err(Errno::Invalid);
                }
            }
            irq_flags::TRIGGER if count == 0 => vectors.disable(),
            irq_flags::TRIGGER => chosen(set)?.into_iter().for_each(|vector| vectors.trigger(vector)),
            action @ (irq_flags::MASK | irq_flags::UNMASK) => {
                for vector in chosen(set)? {
                    vectors.mask(vector, 1, action == irq_flags::MASK);
                }
            }
            _ => return Err(Errno::Invalid),
        }
        Ok(Vec::new())
    }
}

/// The fields of an access, which its reply repeats.
fn access(offset: u64, region: u32, count: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + count);
    body.extend(offset.to_le_bytes());
    body.extend(region.to_le_bytes());
    // Cannot lose bits: a message has at most `MOST_DATA` bytes.
    body.extend(u32::try_from(count).unwrap_or_default().to_le_bytes());
    body
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn offset_in(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
