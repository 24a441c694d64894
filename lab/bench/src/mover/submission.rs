//! What a submission to hardware costs before the instruction.
//!
//! The queue belongs to no device: under the code that submits to real devices, ordinary stores replace MOVDIR64B and
//! ENQCMD. The numbers include this replacement: 64 bytes stored and a record written.

use super::Experiment;
use super::interleaved::{InterleavedLoad, rates};
use crate::BenchError;
use crate::ffi;
use crate::goal::{Goal, Row};
use crate::measure::median;
use std::sync::Arc;
use std::time::Duration;
use telpher_mover::{Channel, ChannelPolicy, Finished};
use telpher_portal::{Offer, Portal, RecordCell};
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "submission",
    question: "What does a submission to hardware cost besides the instruction?",
    cores: 1,
    weight: 0.5,
    measure,
};

/// Upper limit in nanoseconds per descriptor. Source: goal of the hardware path.
const MOST_NS: f64 = 40.0;
/// Descriptors in a burst, entries of the queue, slots of the channel.
const BURST: u32 = 32;

/// A submitter of bursts of No-ops, which sees each one complete.
#[allow(clippy::large_enum_variant, reason = "there are two of them, and the larger is what is measured")]
enum BurstSubmitter {
    /// Builds descriptors and offers them to the portal.
    Bare(Arc<dyn Portal>, &'static [RecordCell]),
    /// Prepares, submits and fetches them through a channel.
    Channel(Channel<Vec<u8>, Vec<u8>>, Vec<Finished<Vec<u8>, Vec<u8>>>),
}

impl BurstSubmitter {
    fn bare(portal: Arc<dyn Portal>) -> Self {
        // Leaked: the submitter of a raw descriptor must keep its record alive.
        BurstSubmitter::Bare(portal, (0..BURST).map(|_| RecordCell::new()).collect::<Vec<_>>().leak())
    }

    fn channel(portal: Arc<dyn Portal>) -> Self {
        let channel = Channel::new(portal, BURST, ChannelPolicy::default()).expect("a capacity within the limits");
        BurstSubmitter::Channel(channel, Vec::with_capacity(BURST as usize))
    }

    fn burst(&mut self) -> Result<u64, BenchError> {
        let wrong = || BenchError::Wrong { op: "nop".into(), route: EXPERIMENT.name.into() };
        match self {
            BurstSubmitter::Bare(portal, records) => {
                for record in *records {
                    record.clear();
                    if portal.offer(&ffi::nop(record)) != Offer::Taken {
                        return Err(wrong());
                    }
                }
                if records.iter().any(|record| record.status().is_none()) {
                    return Err(wrong());
                }
            }
            BurstSubmitter::Channel(channel, done) => {
                for _ in 0..BURST {
                    channel.nop().map_err(|_| wrong())?;
                }
                channel.submit();
                done.clear();
                channel.completed(done);
                if done.len() != BURST as usize || done.iter().any(|finished| finished.result.is_err()) {
                    return Err(wrong());
                }
            }
        }
        Ok(BURST.into())
    }
}

/// A dedicated queue of no device, without batches, so that every descriptor is offered individually.
fn portal() -> Result<Arc<dyn Portal>, BenchError> {
    match telpher_hw::rehearsal(BURST) {
        Ok(portal) => Ok(Arc::new(portal)),
        Err(error) => Err(BenchError::NotHere(format!("submission: no page of memory: {error}"))),
    }
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut hands = [BurstSubmitter::bare(portal()?), BurstSubmitter::channel(portal()?)]
        .map(|hand| InterleavedLoad { states: vec![hand], step: &BurstSubmitter::burst });
    let seen = rates(machine, time, &mut hands)?;
    let ns = |rates: &[f64]| 1e9 / median(&mut rates.to_vec());
    let goal = Some(Goal::AtMost(MOST_NS));
    let how = "one thread, a dedicated queue of no device, ordinary stores in the instruction's place";
    Ok(vec![
        Row::new("a descriptor built and offered, its record seen", ns(&seen[0]), "ns", goal, how),
        Row::new(
            "the same through a channel: prepared, submitted, fetched",
            ns(&seen[1]),
            "ns",
            None,
            format!("{how}; bursts of {BURST}"),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_submitters_see_every_record_of_a_burst() {
        for mut hand in [BurstSubmitter::bare(portal().unwrap()), BurstSubmitter::channel(portal().unwrap())] {
            for _ in 0..100 {
                assert_eq!(hand.burst().unwrap(), u64::from(BURST));
            }
        }
    }
}
