//! Kuper et al., appendix A: messages between processes by libfabric's provider and by telpher's, on the same machine.

use super::apps::{DEVICES, RANKS_OVER, over, shared};
use crate::lab::Lab;
use telpher_sim::{AllReduce, App, Copier, Fabric, FabricPattern, MessagePattern, Messages, ScenarioError};

type Result = std::result::Result<f64, ScenarioError>;

/// What moves the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum System {
    /// libfabric's provider, in segments, by cores: the baseline of the paper.
    Segments,
    /// The same by devices, as published.
    SegmentsByDevices,
    /// Telpher's provider by cores that fill slots past their caches, as it does by default.
    Streaming,
    /// The same with plain stores.
    Plain,
    /// Telpher's provider by devices: each process has one.
    Device,
    /// What if: the same, and each process submits to all devices of its socket in turn, which write to the cache.
    AllDevices,
}

impl System {
    /// All of them with the names of their lines.
    pub(crate) const ALL: [(&'static str, System); 6] = [
        ("SAR by cores", System::Segments),
        ("SAR by devices, as published", System::SegmentsByDevices),
        ("CPU, streaming, pipelined", System::Streaming),
        ("CPU, plain stores, pipelined", System::Plain),
        ("telpher by devices, one a process", System::Device),
        ("what if: telpher by all devices, to the cache", System::AllDevices),
    ];

    fn copier(self) -> Copier {
        match self {
            System::Segments | System::Streaming | System::Plain => Copier::Core,
            System::SegmentsByDevices | System::Device | System::AllDevices => Copier::devices(DEVICES),
        }
    }

    /// Telpher's provider; `None` for libfabric's.
    fn fabric(self, pattern: FabricPattern, sockets: u32) -> Option<Fabric> {
        let (copier, shared) = (self.copier(), shared(sockets));
        let known = Fabric { pattern, copier, shared, ..Fabric::default() };
        match self {
            System::Segments | System::SegmentsByDevices => None,
            System::Streaming | System::Device => Some(known),
            System::Plain => Some(Fabric { streaming: false, ..known }),
            System::AllDevices => Some(Fabric { spread: true, to_cache: true, ..known }),
        }
    }

    /// Microseconds of a message between two processes of a socket.
    pub(crate) fn message(self, lab: &Lab, talk: MessagePattern, bytes: u64) -> Result {
        let pattern = match talk {
            MessagePattern::PingPong => FabricPattern::PingPong,
            MessagePattern::Stream => FabricPattern::Stream,
        };
        let app = match self.fabric(pattern, 1) {
            Some(fabric) => App::Fabric(Fabric { bytes, count: 3, ..fabric }),
            None => App::Messages(Messages { talk, bytes, copier: self.copier(), count: 3, ..Messages::default() }),
        };
        over(lab, 1, app, "time per message")
    }

    /// The part of an exchange that costs no time while both processes of a socket compute for twice as long, in per
    /// cent. Telpher's provider only.
    ///
    /// # Errors
    /// It is libfabric's provider, whose exchanges are not simulated.
    pub(crate) fn hidden(self, lab: &Lab, bytes: u64, helper: bool) -> Result {
        let known = self.fabric(FabricPattern::Exchange, 1).ok_or_else(|| ScenarioError::Load {
            load: format!("{self:?}"),
            what: "exchanges are simulated for telpher's provider only".into(),
        })?;
        let exchange = |compute_ms: f64| {
            over(
                lab,
                1,
                App::Fabric(Fabric { bytes, count: 3, helper, compute_ms, ..known.clone() }),
                "time per exchange",
            )
        };
        let alone = exchange(0.0)?;
        Ok((3.0 * alone - exchange(2.0 * alone / 1e3)?) / alone * 100.0)
    }

    /// Microseconds of a sum over ranks at both sockets. If it is `cold`, computing before it has taken the caches.
    pub(crate) fn sum(self, lab: &Lab, ranks: u32, bytes: u64, cold: bool) -> Result {
        // Any time of computing does: nothing overlaps with it.
        let compute_ms = if cold { 1.0 } else { 0.0 };
        let count = if cold { 1 } else { 2 };
        let app = match self.fabric(FabricPattern::Sum, RANKS_OVER) {
            Some(fabric) => App::Fabric(Fabric { ranks, bytes, count, compute_ms, ..fabric }),
            None => {
                let (copier, shared) = (self.copier(), shared(RANKS_OVER));
                App::AllReduce(AllReduce { ranks, bytes, count, compute_ms, copier, shared })
            }
        };
        over(lab, RANKS_OVER, app, "time per sum")
    }
}
