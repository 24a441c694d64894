//! A controller as the host sees it: the admin queue, what Identify says, and I/O queues.
//!
//! ```text
//! connect ─► CAP ─► CC.EN ─► CSTS.RDY ─► Identify ─► Set Features ─► open_queue … ─► keep_alive … ─► shut_down
//! ```

use super::error::LoadError;
use super::options::LoadOptions;
use super::socket::HostSocket;
use crate::command::{Submission, admin};
use crate::controller::{ENABLE, ENTRY_SIZES, FATAL_STATUS, READY, SHUTDOWN_COMPLETE, property};
use crate::initiator::requests::{self, QueueRequest};
use crate::initiator::{HostOptions, Transfer};
use std::time::{Duration, Instant};

/// Entries of the admin queue, as Linux has.
const ADMIN_ENTRIES: u16 = 32;
/// The feature "number of queues".
const NUMBER_OF_QUEUES: u8 = 0x07;
/// CC.SHN: a normal shutdown.
const SHUT_DOWN: u32 = 1 << 14;
/// CSTS.SHST.
const SHUTDOWN_STATUS: u32 = 3 << 2;
/// How long the host waits before it reads CSTS again.
const STATUS_PAUSE: Duration = Duration::from_millis(20);

/// What the target says about the namespace and its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks of the namespace.
    pub blocks: u64,
    /// Bytes of the largest transfer.
    pub transfer_bytes: u32,
    /// Bytes of data in the capsule of an I/O command.
    pub capsule_bytes: u32,
    /// Entries of the largest I/O queue.
    pub entries: u32,
}

/// A controller, with its admin queue.
#[derive(Debug)]
pub struct Association {
    admin: HostSocket,
    options: LoadOptions,
    host: HostOptions,
    controller: u16,
    geometry: Geometry,
    /// I/O queues that the target grants.
    granted: u16,
    opened: u16,
}

/// The little-endian number at an offset of an Identify structure, which has 4096 bytes.
fn field(page: &[u8], offset: usize, bytes: usize) -> u64 {
    page[offset..offset + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn low_half(value: u64) -> u32 {
    crate::command::halves(value)[0]
}

impl Association {
    /// Connects an admin queue, enables the controller, and reads what is needed for I/O. `wanted` is the number of I/O
    /// queues that the host asks for.
    ///
    /// # Errors
    /// [`LoadError`] if the target fails, is late, or has no such namespace.
    pub fn connect(options: &LoadOptions, wanted: u16) -> Result<Association, LoadError> {
        let host = HostOptions { digests: options.digests, ..HostOptions::default() };
        let patience = options.patience;
        let mut admin = HostSocket::connect(options.address, host, patience)?;
        let queue = QueueRequest {
            qid: 0,
            entries: ADMIN_ENTRIES,
            flow_control: options.flow_control,
            keep_alive_ms: options.keep_alive_ms,
        };
        let data = options.identity.connect_data(u16::MAX);
        let connect = requests::connect(0, queue);
        let (completion, _) = admin.succeed("Connect", connect, Transfer::InCapsule(data), patience)?;
        let result = low_half(completion.result.get());
        if result >> 16 & 0b110 != 0 {
            return Err(LoadError::Unusable("the target asks for authentication, which is not supported".into()));
        }
        let mut association = Association {
            admin,
            options: options.clone(),
            host,
            controller: u16::try_from(result & 0xffff).unwrap_or(0),
            geometry: Geometry { block_bytes: 0, blocks: 0, transfer_bytes: 0, capsule_bytes: 0, entries: 0 },
            granted: 0,
            opened: 0,
        };
        let capabilities = association.enable()?;
        association.identify(capabilities)?;
        association.ask_for_queues(wanted)?;
        Ok(association)
    }

    /// What the target says about the namespace and its limits.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// I/O queues that may still be opened.
    #[must_use]
    pub fn free_queues(&self) -> u16 {
        self.granted - self.opened
    }

    /// Enables the controller, and returns CAP.
    fn enable(&mut self) -> Result<u64, LoadError> {
        let patience = self.options.patience;
        let get = requests::property_get(1, property::CAP);
        let (completion, _) = self.admin.succeed("Property Get (CAP)", get, Transfer::None, patience)?;
        let capabilities = completion.result.get();
        let enable = requests::enable(2);
        self.admin.succeed("Property Set (CC)", enable, Transfer::None, patience)?;
        self.wait_for_status("becoming ready", |status| status & READY != 0)?;
        Ok(capabilities)
    }

    /// Reads CSTS until `is_reached`.
    fn wait_for_status(&mut self, what: &'static str, is_reached: fn(u32) -> bool) -> Result<(), LoadError> {
        let patience = self.options.patience;
        let deadline = Instant::now() + patience;
        loop {
            let get = requests::property_get(3, property::CSTS);
            let (completion, _) = self.admin.succeed("Property Get (CSTS)", get, Transfer::None, patience)?;
            let status = low_half(completion.result.get());
            if status & FATAL_STATUS != 0 {
                return Err(LoadError::Unusable("the controller has failed (CSTS.CFS)".into()));
            }
            if is_reached(status) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(LoadError::Late { what, patience });
            }
            std::thread::sleep(STATUS_PAUSE);
        }
    }

    fn identify(&mut self, capabilities: u64) -> Result<(), LoadError> {
        let patience = self.options.patience;
        let (command, transfer) = requests::identify(4, 0x01, 0);
        let (_, controller) = self.admin.succeed("Identify Controller", command, transfer, patience)?;
        let (command, transfer) = requests::identify(5, 0x00, self.options.nsid);
        let (_, namespace) = self.admin.succeed("Identify Namespace", command, transfer, patience)?;
        let unusable = |what: String| Err(LoadError::Unusable(what));
        if field(&controller, 1792, 4) < 4 || field(&controller, 1800, 2) != 0 {
            return unusable("the controller's capsules have no room for a command (IOCCSZ, ICDOFF)".into());
        }
        let blocks = field(&namespace, 0, 8);
        if blocks == 0 {
            return unusable(format!("the subsystem has no namespace {}", self.options.nsid));
        }
        // FLBAS: bits 3:0, and 6:5 for formats beyond 16.
        let format = field(&namespace, 26, 1);
        let format = usize::try_from(format & 0xf | (format >> 5 & 3) << 4).unwrap_or(0);
        let layout = low_half(field(&namespace, 128 + 4 * format, 4));
        let exponent = layout >> 16 & 0xff;
        if !(9..=16).contains(&exponent) || layout & 0xffff != 0 {
            return unusable(format!(
                "blocks of 2^{exponent} bytes with {} bytes of metadata are not supported",
                layout & 0xffff
            ));
        }
        // CAP.MPSMIN is the unit of MDTS; 0 there means no limit.
        let page = 12 + (capabilities >> 48 & 0xf);
        let transfer = match field(&controller, 77, 1) {
            0 => u32::MAX,
            shift => u32::try_from(page + shift).ok().and_then(|shift| 1_u32.checked_shl(shift)).unwrap_or(u32::MAX),
        };
        let capsule = (field(&controller, 1792, 4) * 16).saturating_sub(64);
        self.geometry = Geometry {
            block_bytes: 1 << exponent,
            blocks,
            transfer_bytes: transfer,
            capsule_bytes: u32::try_from(capsule).unwrap_or(u32::MAX),
            entries: u32::try_from(capabilities & 0xffff).unwrap_or(0) + 1,
        };
        Ok(())
    }

    fn ask_for_queues(&mut self, wanted: u16) -> Result<(), LoadError> {
        let wanted = u32::from(wanted.max(1) - 1);
        let command = requests::set_feature(6, NUMBER_OF_QUEUES, wanted | wanted << 16);
        let patience = self.options.patience;
        let (completion, _) = self.admin.succeed("Set Features (queues)", command, Transfer::None, patience)?;
        let result = low_half(completion.result.get());
        let granted = (result & 0xffff).min(result >> 16).min(wanted) + 1;
        self.granted = u16::try_from(granted).unwrap_or(u16::MAX);
        Ok(())
    }

    /// Connects the next I/O queue, with room for `depth` commands. Returns it with the number of commands that may be
    /// open, which is lower if the target's queues are shorter.
    ///
    /// # Errors
    /// [`LoadError`] if the target fails or is late.
    pub fn open_queue(&mut self, depth: u16) -> Result<(HostSocket, u16), LoadError> {
        let patience = self.options.patience;
        let mut socket = HostSocket::connect(self.options.address, self.host, patience)?;
        // One entry more than commands: a full queue could not be told from an empty one.
        let entries = (u32::from(depth) + 1).clamp(2, self.geometry.entries.max(2));
        let entries = u16::try_from(entries).unwrap_or(u16::MAX);
        self.opened += 1;
        let queue =
            QueueRequest { qid: self.opened, entries, flow_control: self.options.flow_control, keep_alive_ms: 0 };
        let data = self.options.identity.connect_data(self.controller);
        let connect = requests::connect(0, queue);
        socket.succeed("Connect of an I/O queue", connect, Transfer::InCapsule(data), patience)?;
        Ok((socket, depth.min(entries - 1)))
    }

    /// Tells the target that the host is alive.
    ///
    /// # Errors
    /// [`LoadError`] if the target fails or is late.
    pub fn keep_alive(&mut self) -> Result<(), LoadError> {
        let command = Submission::new(admin::KEEP_ALIVE, 7, 0);
        self.admin.succeed("Keep Alive", command, Transfer::None, self.options.patience)?;
        Ok(())
    }

    /// Ends the controller in order. The I/O queues must have no open commands.
    ///
    /// # Errors
    /// [`LoadError`] if the target fails or is late.
    pub fn shut_down(mut self) -> Result<(), LoadError> {
        let command = requests::property_set(8, property::CC, ENTRY_SIZES | ENABLE | SHUT_DOWN);
        self.admin.succeed("Property Set (CC)", command, Transfer::None, self.options.patience)?;
        self.wait_for_status("shutting down", |status| status & SHUTDOWN_STATUS == SHUTDOWN_COMPLETE)
    }
}
