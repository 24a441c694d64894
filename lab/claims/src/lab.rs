//! A cache of simulations: each scenario is simulated once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use telpher_sim::{Machine, Outcome, Scenario, ScenarioError};

/// Simulates scenarios and stores the results.
#[derive(Debug, Default)]
pub struct Lab {
    /// A machine that replaces the published ones.
    instead: Option<Machine>,
    /// Built-in machines used so far.
    machines: RefCell<BTreeMap<String, Option<Machine>>>,
    outcomes: RefCell<BTreeMap<String, Rc<Outcome>>>,
    profiles: RefCell<BTreeSet<(String, u64)>>,
    /// A scenario was moved to the replacing machine since this was last asked.
    moved: Cell<bool>,
}

impl Lab {
    /// A lab that runs everything on this machine instead of the published machines.
    #[must_use]
    pub fn on(machine: Machine) -> Self {
        Lab { instead: Some(machine), ..Lab::default() }
    }

    /// The replacing machine, if any.
    #[must_use]
    pub fn instead(&self) -> Option<&Machine> {
        self.instead.as_ref()
    }

    /// Returns the results of a scenario.
    ///
    /// # Errors
    /// The machine lacks something, or a device refuses something.
    pub fn run(&self, scenario: &Scenario) -> Result<Rc<Outcome>, ScenarioError> {
        // A published system whose machine is the replacing one stays as it is, with what an experiment varies of it.
        let other = self.instead.as_ref().filter(|machine| !self.is_own(scenario, machine));
        let moved = other.map(|machine| self.moved(scenario, machine));
        self.moved.set(self.moved.get() || moved.is_some());
        let scenario = moved.as_ref().unwrap_or(scenario);
        let machine = &scenario.machine;
        self.profiles.borrow_mut().insert((machine.name.clone(), machine.hash));
        if !self.is_as_read(machine) {
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

    /// True if a scenario was moved to the replacing machine since the last call.
    pub(crate) fn was_elsewhere(&self) -> bool {
        self.moved.replace(false)
    }

    /// True if the replacing machine is the built-in one of this name, as is the scenario's, which an experiment may
    /// have varied.
    fn is_own(&self, scenario: &Scenario, machine: &Machine) -> bool {
        scenario.machine.name == machine.name && self.built_in(&machine.name, |known| known == Some(machine))
    }

    /// Profiles of the simulations so far, with their hashes.
    #[must_use]
    pub fn profiles(&self) -> Vec<(String, u64)> {
        self.profiles.borrow().iter().cloned().collect()
    }

    /// The same scenario on the replacing machine. A number of its own machine that an experiment varies is varied
    /// there, too.
    fn moved(&self, scenario: &Scenario, machine: &Machine) -> Scenario {
        let (own, mut machine) = (&scenario.machine, machine.clone());
        let ways = self.built_in(&own.name, |known| known.map(|machine| machine.cache.ddio_ways));
        if ways.is_some_and(|ways| ways != own.cache.ddio_ways) {
            machine.cache.ddio_ways = own.cache.ddio_ways;
        }
        Scenario { machine, ..scenario.clone() }
    }

    /// True if a profile's name and hash identify the machine: it was not changed after reading.
    fn is_as_read(&self, machine: &Machine) -> bool {
        self.instead.as_ref() == Some(machine) || self.built_in(&machine.name, |known| known == Some(machine))
    }

    /// The information about a built-in machine.
    fn built_in<T>(&self, name: &str, known: impl FnOnce(Option<&Machine>) -> T) -> T {
        let mut machines = self.machines.borrow_mut();
        known(machines.entry(name.to_owned()).or_insert_with(|| Machine::built_in(name)).as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setups;
    use telpher_abi::Opcode;
    use telpher_device::WqMode;
    use telpher_sim::{Stream, Workload};

    fn scenario() -> Scenario {
        let copies = Stream { depth: 32, ..Stream::of(Opcode::MemoryMove, 4096) };
        setups::asplos(1, WqMode::Dedicated, 1).with("copies", 1, Workload::Stream(copies))
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

    #[test]
    fn the_published_machine_itself_is_no_other_machine() {
        let lab = Lab::on(Machine::built_in("spr-asplos").unwrap());
        let mut varied = scenario();
        varied.machine.devices = vec![1; 4];
        let [own, default] = [&lab, &Lab::default()].map(|lab| lab.run(&varied).unwrap());
        assert_eq!((own.took, lab.was_elsewhere()), (default.took, false));
        let mut changed = Machine::built_in("spr-asplos").unwrap();
        changed.device.through /= 2;
        let lab = Lab::on(changed);
        assert!(lab.run(&scenario()).unwrap().took > default.took);
        assert_eq!((lab.was_elsewhere(), lab.was_elsewhere()), (true, false));
    }

    #[test]
    fn a_lab_on_another_machine_takes_every_scenario_there() {
        let lab = Lab::on(Machine::built_in("ice-lake-cbdma").unwrap());
        let (there, here) = (lab.run(&scenario()).unwrap(), Lab::default().run(&scenario()).unwrap());
        assert!(there.took > here.took && there.profile == "ice-lake-cbdma");
        assert!(Rc::ptr_eq(&there, &lab.run(&scenario()).unwrap()));
        let profiles = lab.profiles();
        assert_eq!(profiles.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["ice-lake-cbdma"]);
        let mut ways = scenario();
        ways.machine.cache.ddio_ways = 7;
        let scenario = lab.moved(&ways, lab.instead().unwrap());
        assert_eq!((scenario.machine.cache.ddio_ways, scenario.machine.name.as_str()), (7, "ice-lake-cbdma"));
    }
}
