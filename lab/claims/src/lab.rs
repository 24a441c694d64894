//! Where experiments are done: the same scenario is simulated once, whoever asks for it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use telpher_sim::{Machine, Outcome, Scenario, ScenarioError};

/// Simulates scenarios, and remembers what came of them.
#[derive(Debug, Default)]
pub struct Lab {
    machines: RefCell<BTreeMap<String, Option<Machine>>>,
    outcomes: RefCell<BTreeMap<String, Rc<Outcome>>>,
    profiles: RefCell<BTreeSet<(String, u64)>>,
}

impl Lab {
    /// What comes of a scenario.
    ///
    /// # Errors
    /// What the machine has not, or a device refuses.
    pub fn run(&self, scenario: &Scenario) -> Result<Rc<Outcome>, ScenarioError> {
        let machine = &scenario.machine;
        self.profiles.borrow_mut().insert((machine.name.clone(), machine.hash));
        if !self.is_as_built_in(machine) {
            return scenario.simulate().map(Rc::new);
        }
        let key = format!("{:x} {:?} {:?}", machine.hash, scenario.devices, scenario.loads);
        if let Some(outcome) = self.outcomes.borrow().get(&key) {
            return Ok(outcome.clone());
        }
        let outcome = Rc::new(scenario.simulate()?);
        self.outcomes.borrow_mut().insert(key, outcome.clone());
        Ok(outcome)
    }

    /// Profiles on which something was simulated, with their hashes.
    #[must_use]
    pub fn profiles(&self) -> Vec<(String, u64)> {
        self.profiles.borrow().iter().cloned().collect()
    }

    /// Whether a profile's name and hash tell all of a machine: nobody changed it after reading.
    fn is_as_built_in(&self, machine: &Machine) -> bool {
        let mut machines = self.machines.borrow_mut();
        let known = machines.entry(machine.name.clone()).or_insert_with(|| Machine::built_in(&machine.name));
        known.as_ref() == Some(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setups;
    use telpher_abi::Opcode;
    use telpher_device::WqMode;
    use telpher_sim::{Stream, What};

    fn scenario() -> Scenario {
        let copies = Stream { depth: 32, ..Stream::of(Opcode::MemoryMove, 4096) };
        setups::asplos(1, WqMode::Dedicated, 1).with("copies", 1, What::Stream(copies))
    }

    #[test]
    fn a_scenario_is_simulated_once_and_a_changed_machine_is_another() {
        let lab = Lab::default();
        let first = lab.run(&scenario()).unwrap();
        assert!(Rc::ptr_eq(&first, &lab.run(&scenario()).unwrap()));
        let mut slower = scenario();
        slower.machine.device.through /= 2;
        assert!(lab.run(&slower).unwrap().took > first.took);
        assert_eq!(lab.profiles().len(), 1);
    }
}
