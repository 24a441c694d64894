//! A machine beside a noisy neighbour on a simulated device: what engines of its own would give it on a real one.

use super::shares::{MEMBERS, MOST, SIZE};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::questions::Experiment;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_device::Preset;
use telpher_report::machine::Machine;
use telpher_sim::advise::WorkRequest;
use telpher_sim::tenants::{Bound, Tenant, TenantOutcome, Tenants, advise};

/// The machine whose devices are simulated.
const PROFILE: &str = "spr-asplos";
/// The size of the machine's own copies, one after the other: with more, it could use the device alone.
const COPY: u32 = 4096;
const IN_FLIGHT: u32 = 1;

/// No device is needed.
pub(super) const OWN_ENGINE: Experiment = Experiment {
    name: "own-engine-simulated",
    question: "How much would a machine with its own engines lose on a real device?",
    cores: 1,
    weight: 0.1,
    measure,
};

fn measure(_: &Machine, _: Duration) -> Result<Vec<Row>, BenchError> {
    let machine = telpher_sim::Machine::built_in(PROFILE).expect("a built-in profile");
    let copies = |name: &str, size, in_flight| WorkRequest {
        name: name.to_owned(),
        in_flight,
        ..WorkRequest::of(Opcode::MemoryMove, size)
    };
    let guest = Tenant {
        work: copies("guest", COPY, IN_FLIGHT),
        batch: 1,
        bound: Bound { p99: None, loss_percent: Some(MOST) },
    };
    let neighbour = Tenant { work: copies("neighbour", SIZE, 2 * MEMBERS), batch: MEMBERS, bound: Bound::default() };
    let tenants = Tenants { devices: 1, tenants: vec![guest, neighbour] };
    let advice = advise(&machine, Preset::default().capabilities(), &tenants)?;
    let settings: Vec<String> =
        advice.choices.iter().map(|choice| format!("{}: {}", choice.what, choice.chosen)).collect();
    let loss = |outcomes: &[TenantOutcome]| outcomes[0].loss_percent;
    let how = format!(
        "simulated, profile {PROFILE}: copies of {COPY} bytes, one after the other, beside batches of {MEMBERS} copies \
         of {SIZE} bytes"
    );
    Ok(vec![
        Row::new("loss in one group with the neighbour", loss(&advice.by_default), "%", None, how),
        Row::new(
            "loss with engines of its own, as telpher advise sets it",
            loss(&advice.tenants),
            "%",
            Some(Goal::AtMost(MOST)),
            format!("simulated, {}", settings.join("; ")),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_keeps_the_loss_within_the_goal() {
        let rows = measure(&Machine::read(), Duration::ZERO).unwrap();
        let [beside, own] = &rows[..] else { panic!("{rows:?}") };
        assert!(beside.measured > 4.0 * MOST, "{beside:?}");
        assert!(own.measured <= MOST && own.how.contains("guest"), "{own:?}");
    }
}
