//! The list of cases, one file per topic.

mod arrays;
mod batch;
mod bounds;
mod commands;
mod delta;
mod dif;
mod domains;
mod enable;
mod events;
mod faults;
mod interrupts;
mod legality;
mod operations;
mod order;
mod perfmon;
mod queues;
mod records;
mod registers;
mod resume;

use crate::arena::Arena;
use crate::case::{Case, Section, Verdict};
use crate::expected::Expect;
use crate::fixture::Fixture;
use crate::subject::{Capabilities, DeviceSpec, PortalSpec, QueueSpec, Subject};
use crate::table::{OPERATIONS, OpRow};
use telpher_abi::registers::GenCap;
use telpher_abi::{Descriptor, Opcode};

/// Collects cases.
pub(crate) struct List<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) capabilities: Capabilities,
    cases: Vec<Case>,
}

impl List<'_> {
    /// A case on a device that other cases with the same spec may have used.
    pub(crate) fn script(
        &mut self,
        section: Section,
        name: impl Into<String>,
        spec: &DeviceSpec,
        body: impl Fn(&Fixture) -> Verdict + 'static,
    ) {
        self.cases.push(Case::new(section, name, spec, body));
    }

    /// A case on a device of its own.
    pub(crate) fn fresh(
        &mut self,
        section: Section,
        name: impl Into<String>,
        spec: &DeviceSpec,
        body: impl Fn(&Fixture) -> Verdict + 'static,
    ) {
        self.cases.push(Case::new(section, name, spec, body).fresh());
    }

    /// One descriptor to queue 0 and its expected result.
    pub(crate) fn one(
        &mut self,
        section: Section,
        name: impl Into<String>,
        spec: &DeviceSpec,
        d: Descriptor,
        member: bool,
        expect: impl Into<Expect>,
    ) {
        let expect = expect.into();
        self.script(section, name, spec, move |fixture| fixture.one(PortalSpec::of(0), &d, member, &expect));
    }

    /// The operations of this device.
    pub(crate) fn operations(&self) -> impl Iterator<Item = &'static OpRow> + use<> {
        let op_cap = self.capabilities.op_cap;
        OPERATIONS.iter().filter(move |row| op_cap.contains(Opcode::from_code(row.code)))
    }

    /// True if the device has the operation.
    pub(crate) fn has(&self, opcode: Opcode) -> bool {
        self.capabilities.op_cap.contains(opcode)
    }

    /// A spec for a device with one bit of GENCAP inverted.
    pub(crate) fn with_capability(&self, spec: &DeviceSpec, bit: u32, set: bool) -> DeviceSpec {
        let mut capabilities = self.capabilities;
        let raw = capabilities.gen_cap.0[0];
        capabilities.gen_cap = GenCap([if set { raw | 1 << bit } else { raw & !(1 << bit) }]);
        if capabilities == self.capabilities {
            return spec.clone();
        }
        DeviceSpec { capabilities: Some(capabilities), ..spec.clone() }
    }
}

/// A dedicated queue that accepts every flag: Block On Fault and user interrupts are on.
pub(crate) fn liberal(capabilities: &Capabilities) -> DeviceSpec {
    let block_on_fault = capabilities.gen_cap.block_on_fault();
    DeviceSpec { user_interrupts: true, ..DeviceSpec::default() }
        .queue(QueueSpec { block_on_fault, ..QueueSpec::default() })
}

/// All cases for a subject.
pub(crate) fn all(subject: &dyn Subject, arena: &Arena) -> Vec<Case> {
    let mut list = List { arena, capabilities: subject.capabilities(), cases: Vec::new() };
    legality::add(&mut list);
    bounds::add(&mut list);
    order::add(&mut list);
    records::add(&mut list);
    interrupts::add(&mut list);
    operations::add(&mut list);
    delta::add(&mut list);
    dif::add(&mut list);
    faults::add(&mut list);
    domains::add(&mut list);
    arrays::add(&mut list);
    resume::add(&mut list);
    batch::add(&mut list);
    queues::add(&mut list);
    enable::add(&mut list);
    commands::add(&mut list);
    registers::add(&mut list);
    events::add(&mut list);
    perfmon::add(&mut list);
    list.cases
}
