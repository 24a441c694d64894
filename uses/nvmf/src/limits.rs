//! All limits of the target in one place, each with its source. Together they bound its memory.
//!
//! The memory that one connection can hold is at most the sum of
//! - `queue_depth` × `capsule_bytes`: data that came in command capsules and waits for execution;
//! - `receive_bytes`: data that the target asked for by R2T and that has not been written yet;
//! - `send_bytes`, and one transfer or, with protection information, two: data that the host has not read yet, and the
//!   buffers that commands under execution fill. Replies share the blocks of a memory namespace as long as half of its
//!   reserve suffices for that ([`memory`](crate::memory)); they count, but take no memory;
//! - the tables of a connection: below 64 KiB, and half a KiB for each open command;
//! - bytes that a server had read when the connection stopped taking them, at most 256 KiB.

/// The largest header of a PDU, with its digest and the padding before the data. Source: NVMe/TCP Transport 1.1 §3.6.1:
/// PDO is at most 128; an ICReq is 128 bytes.
pub const MOST_HEADER: usize = 128;

/// Data that a capsule of the admin queue may have, whatever IOCCSZ says. Source: NVMe/TCP Transport 1.1 §3.3.2.1.
pub const ADMIN_CAPSULE_BYTES: u32 = 8192;

/// The most asynchronous event requests that a host may have outstanding. Source: AERL of SPDK and Linux nvmet.
pub const EVENT_REQUESTS: usize = 4;

/// The smallest MAXH2CDATA. Source: NVMe/TCP Transport 1.1 §3.6.2.3: at least 4096, and a multiple of 4.
pub const LEAST_H2C_DATA: u32 = 4096;

/// The smallest page of a controller, the unit of MDTS. Source: NVMe Base 2.0 §3.1.3.1, CAP.MPSMIN 0.
pub const PAGE: u32 = 4096;

/// The largest controller identifier. Source: NVMe over Fabrics 1.1 §3.3: FFF0h to FFFFh are reserved.
pub const MOST_CONTROLLER_ID: u16 = 0xffef;

/// R2Ts that a connection may have outstanding for all its commands. Source: chosen; it bounds the table of tags.
pub const MOST_R2TS: u16 = 256;

/// R2Ts of aborted commands whose data has not come. Source: chosen; a host may never send this data, so a command is
/// not aborted if there would be more.
pub const MOST_DRAINING_R2TS: u16 = 256;

/// Ranges of a Dataset Management command. Source: NVM Command Set 1.0 §3.2.3: a 0's based byte.
pub const MOST_DSM_RANGES: u32 = 256;

/// Source ranges of a Copy command (MSRC + 1). Source: chosen.
pub const MOST_COPY_RANGES: u32 = 16;

/// Parts of a write's data below this are joined: in memory of their own they would take up to 200 times their size.
/// Source: chosen; hosts may send any length, but Linux and SPDK send MAXH2CDATA in all PDUs but the last one.
pub const SMALL_PART: usize = 512;

/// The largest [`Limits::capsule_bytes`]. Source: chosen; 64 times the default of Linux nvmet.
pub const MOST_CAPSULE_BYTES: u32 = 1 << 20;

/// Namespaces of a subsystem; their identifiers are at most this. Source: chosen; a page of Identify lists 1024.
pub const MOST_NAMESPACES: u32 = 1024;

/// Limits that a configuration may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Entries of the admin queue. Source: SPDK's default.
    pub admin_depth: u16,
    /// Entries of an I/O queue, MQES + 1. Source: Linux nvmet's default.
    pub queue_depth: u16,
    /// I/O queues of a controller. Source: SPDK's default.
    pub io_queues: u16,
    /// Controllers of the target. Source: chosen.
    pub controllers: u16,
    /// The smallest and the largest controller identifier. Servers of one subsystem need ranges of their own, since a
    /// host refuses two controllers with one identifier. Source: SPDK's `min_cntlid` and `max_cntlid`.
    pub least_controller_id: u16,
    /// See [`Limits::least_controller_id`].
    pub most_controller_id: u16,
    /// Bytes of one command's data, a power of two times [`PAGE`]. Source: SPDK's default (MDTS 5).
    pub transfer_bytes: u32,
    /// Bytes of data in a capsule of an I/O queue, a multiple of 16 up to [`MOST_CAPSULE_BYTES`]. Source: two blocks of
    /// 4096 bytes, between SPDK's 4096 and nvmet's 16384.
    pub capsule_bytes: u32,
    /// MAXH2CDATA, a multiple of 4 from [`LEAST_H2C_DATA`]. Source: SPDK's default.
    pub h2c_bytes: u32,
    /// The largest range that one R2T asks for. Source: chosen; by default one R2T for a command, as SPDK does.
    pub r2t_bytes: u32,
    /// Bytes of a connection that were asked for by R2T and are not yet written, at least two transfers: a fused pair
    /// keeps the data of its first command until that of the second has come. Source: chosen; eight transfers.
    pub receive_bytes: u32,
    /// Bytes of replies that wait for the host, and of buffers of commands under execution, above which no more
    /// commands are taken. Source: chosen.
    pub send_bytes: usize,
    /// Milliseconds within which a host must send ICReq, and then Connect. Source: chosen; Linux waits 10 s for ICResp.
    pub connect_ms: u64,
    /// Milliseconds within which the host must close after a C2HTermReq. Source: SPDK, NVMe/TCP Transport 1.1 §3.5.
    pub terminate_ms: u64,
    /// The smallest keep alive time-out in milliseconds; shorter ones are raised to it. Source: SPDK's `min_kato`.
    pub least_keep_alive_ms: u32,
    /// Milliseconds for which a controller may stay disabled, after Connect or a reset. Source: SPDK's
    /// `association_timeout`.
    pub disabled_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            admin_depth: 128,
            queue_depth: 1024,
            io_queues: 127,
            controllers: 1024,
            least_controller_id: 1,
            most_controller_id: MOST_CONTROLLER_ID,
            transfer_bytes: 128 << 10,
            capsule_bytes: 8192,
            h2c_bytes: 128 << 10,
            r2t_bytes: 128 << 10,
            receive_bytes: 1 << 20,
            send_bytes: 4 << 20,
            connect_ms: 10_000,
            terminate_ms: 30_000,
            least_keep_alive_ms: 10_000,
            disabled_ms: 120_000,
        }
    }
}

/// Why limits are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// A number of entries or queues.
    #[error("{name} is {value}; it must be at least {least}")]
    Low {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The smallest value.
        least: u32,
    },
    /// Bytes that are too many.
    #[error("{name} is {value} bytes; it must be at most {most}")]
    High {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The largest value.
        most: u32,
    },
    /// A controller identifier that is reserved.
    #[error("most_controller_id is {value}; it must be at most {most}, since those above are reserved")]
    Identifier {
        /// The value.
        value: u16,
        /// The largest identifier.
        most: u16,
    },
    /// Bytes that are not a multiple of the unit, or too few.
    #[error("{name} is {value} bytes; it must be a multiple of {unit}, from {least}")]
    Bytes {
        /// The field.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The unit in bytes.
        unit: u32,
        /// The smallest value.
        least: u32,
    },
    /// A transfer that MDTS cannot express.
    #[error("a transfer of {value} bytes is not 4096 times a power of two")]
    Transfer {
        /// The value.
        value: u32,
    },
}

impl Limits {
    /// Checks that the protocol can express the limits, and that a fused pair fits into the receive budget.
    ///
    /// # Errors
    /// [`LimitsError`] for the first field that does not fit.
    pub fn check(&self) -> Result<(), LimitsError> {
        let low = |name, value: u32, least| {
            if value < least { Err(LimitsError::Low { name, value, least }) } else { Ok(()) }
        };
        // Linux's admin queue has 32 entries.
        low("admin_depth", self.admin_depth.into(), 32)?;
        low("queue_depth", self.queue_depth.into(), 2)?;
        low("io_queues", self.io_queues.into(), 1)?;
        low("controllers", self.controllers.into(), 1)?;
        low("least_controller_id", self.least_controller_id.into(), 1)?;
        low("most_controller_id", self.most_controller_id.into(), self.least_controller_id.into())?;
        if self.most_controller_id > MOST_CONTROLLER_ID {
            let (value, most) = (self.most_controller_id, MOST_CONTROLLER_ID);
            return Err(LimitsError::Identifier { value, most });
        }
        // At 0, no command would ever be taken.
        low("send_bytes", u32::try_from(self.send_bytes).unwrap_or(u32::MAX), PAGE)?;
        if !self.transfer_bytes.is_power_of_two() || self.transfer_bytes < PAGE {
            return Err(LimitsError::Transfer { value: self.transfer_bytes });
        }
        let bytes = |name, value: u32, unit: u32, least| {
            if value < least || !value.is_multiple_of(unit) {
                Err(LimitsError::Bytes { name, value, unit, least })
            } else {
                Ok(())
            }
        };
        bytes("capsule_bytes", self.capsule_bytes, 16, 0)?;
        bytes("h2c_bytes", self.h2c_bytes, 4, LEAST_H2C_DATA)?;
        bytes("r2t_bytes", self.r2t_bytes, 4, LEAST_H2C_DATA)?;
        if self.capsule_bytes > MOST_CAPSULE_BYTES {
            let (name, value, most) = ("capsule_bytes", self.capsule_bytes, MOST_CAPSULE_BYTES);
            return Err(LimitsError::High { name, value, most });
        }
        bytes("receive_bytes", self.receive_bytes, 4, self.transfer_bytes.saturating_mul(2))
    }

    /// MDTS: the logarithm of a transfer in pages.
    #[must_use]
    pub fn mdts(&self) -> u8 {
        u8::try_from((self.transfer_bytes / PAGE).ilog2()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_the_protocol_cannot_express_are_refused() {
        let good = Limits::default();
        assert_eq!((good.check(), good.mdts()), (Ok(()), 5));
        let bad = [
            Limits { admin_depth: 31, ..good },
            Limits { queue_depth: 1, ..good },
            Limits { io_queues: 0, ..good },
            Limits { controllers: 0, ..good },
            Limits { least_controller_id: 0, ..good },
            Limits { least_controller_id: 6, most_controller_id: 5, ..good },
            Limits { most_controller_id: MOST_CONTROLLER_ID + 1, ..good },
            Limits { send_bytes: 4095, ..good },
            Limits { transfer_bytes: 0, ..good },
            Limits { transfer_bytes: 2048, ..good },
            Limits { transfer_bytes: 12288, ..good },
            Limits { capsule_bytes: 8, ..good },
            Limits { h2c_bytes: 4092, ..good },
            Limits { h2c_bytes: 4098, ..good },
            Limits { r2t_bytes: 0, ..good },
            Limits { receive_bytes: 2 * good.transfer_bytes - 4, ..good },
            Limits { capsule_bytes: MOST_CAPSULE_BYTES + 16, ..good },
            Limits { capsule_bytes: u32::MAX - 15, ..good },
        ];
        for limits in bad {
            assert!(limits.check().is_err(), "{limits:?}");
        }
        let smallest = Limits { receive_bytes: 2 * good.transfer_bytes, capsule_bytes: MOST_CAPSULE_BYTES, ..good };
        assert_eq!(smallest.check(), Ok(()));
    }
}
