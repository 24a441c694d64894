//! What a load does.

use crate::digest::Digests;
use crate::initiator::requests::Identity;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

/// A pattern of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Reads of 4 KiB at random places.
    RandRead4k,
    /// Reads of 16 KiB at random places.
    RandRead16k,
    /// Reads of 128 KiB in rising order.
    SeqRead128k,
    /// Writes of random sizes to 128 KiB at random places; each is read back at once.
    WriteVerify,
    /// Seven reads for three writes, of random sizes to 128 KiB, and a Flush now and then.
    Mixed,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 5] =
        [Pattern::RandRead4k, Pattern::RandRead16k, Pattern::SeqRead128k, Pattern::WriteVerify, Pattern::Mixed];

    /// The name by which it is chosen.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pattern::RandRead4k => "randread-4k",
            Pattern::RandRead16k => "randread-16k",
            Pattern::SeqRead128k => "seqread-128k",
            Pattern::WriteVerify => "write-verify",
            Pattern::Mixed => "mixed",
        }
    }

    /// The largest transfer in bytes.
    #[must_use]
    pub fn most_bytes(self) -> u32 {
        match self {
            Pattern::RandRead4k => 4 << 10,
            Pattern::RandRead16k => 16 << 10,
            Pattern::SeqRead128k | Pattern::WriteVerify | Pattern::Mixed => 128 << 10,
        }
    }

    /// Returns whether the pattern writes, and so destroys what is in the namespace.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Pattern::WriteVerify | Pattern::Mixed)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no pattern has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not a pattern; use randread-4k, randread-16k, seqread-128k, write-verify or mixed")]
pub struct UnknownPattern(String);

impl FromStr for Pattern {
    type Err = UnknownPattern;

    fn from_str(name: &str) -> Result<Pattern, UnknownPattern> {
        let found = Pattern::ALL.into_iter().find(|pattern| pattern.name() == name);
        found.ok_or_else(|| UnknownPattern(name.to_owned()))
    }
}

/// When a load ends. Commands that were sent before complete and count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// After this time.
    After(Duration),
    /// When each connection has sent this many commands.
    Commands(u64),
}

/// What a load does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadOptions {
    /// Where the target listens.
    pub address: SocketAddr,
    /// The host and the subsystem.
    pub identity: Identity,
    /// The namespace.
    pub nsid: u32,
    /// The commands.
    pub pattern: Pattern,
    /// I/O queues, each on its own connection. Admin queues are added as the target needs them.
    pub connections: u16,
    /// Threads that serve the I/O queues.
    pub threads: u16,
    /// Commands in flight on each I/O queue, from 1 to 1024.
    pub depth: u16,
    /// The digests of all connections.
    pub digests: Digests,
    /// The head of the submission queue limits the commands in flight.
    pub flow_control: bool,
    /// Further connections that only stay open.
    pub idle_connections: u16,
    /// Writes all blocks that the pattern uses before the measurement, so that every read is verified. This destroys
    /// what is in the namespace.
    pub fill: bool,
    /// The first bytes of the namespace are used, at most this many.
    pub span_bytes: u64,
    /// When the load ends.
    pub end: End,
    /// The longest time that the load waits for one command.
    pub patience: Duration,
    /// The keep alive time-out of the admin queues in milliseconds.
    pub keep_alive_ms: u32,
    /// The same seed gives the same commands.
    pub seed: u64,
}

/// The host's name unless the caller chooses another one.
pub const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:74656c70-6865-4c0a-8000-6c6f61640001";

impl LoadOptions {
    /// A load of 10 seconds on one connection with 32 commands in flight.
    #[must_use]
    pub fn new(address: SocketAddr, subsystem_nqn: &str, pattern: Pattern) -> LoadOptions {
        LoadOptions {
            address,
            identity: Identity {
                host_id: *b"telpher-nvmfload",
                host_nqn: HOST_NQN.to_owned(),
                subsystem_nqn: subsystem_nqn.to_owned(),
            },
            nsid: 1,
            pattern,
            connections: 1,
            threads: 1,
            depth: 32,
            digests: Digests::default(),
            flow_control: true,
            idle_connections: 0,
            fill: false,
            span_bytes: 1 << 30,
            end: End::After(Duration::from_secs(10)),
            patience: Duration::from_secs(10),
            keep_alive_ms: 30_000,
            seed: 24,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_found_by_its_name() {
        for pattern in Pattern::ALL {
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        let message = "fio".parse::<Pattern>().unwrap_err().to_string();
        assert!(Pattern::ALL.iter().all(|pattern| message.contains(pattern.name())), "{message}");
    }
}
