//! The test fixture of one device: submitting, waiting, comparing.

use crate::arena::{Arena, place};
use crate::case::{NotPassed, Verdict, fail, holds, skip};
use crate::expected::{Expect, ExpectedRecord, line};
use crate::sample::{BATCH_RECORD, SURROUND};
use crate::subject::{
    Capabilities, Device, DeviceSpec, Guarantees, Interrupt, PortalSpec, Refusal, Registers, Subject,
};
use crate::table::{Context, flag};
use std::cell::RefCell;
use std::sync::Arc;
use telpher_abi::registers::offset;
use telpher_abi::{CompletionRecord, Descriptor, SwError};
use telpher_portal::{Offer, Portal};

/// Polls of a record before the device is asked to settle.
const LOOKS: u32 = 64;
/// Offers of a descriptor to a full shared queue, settling in between.
const OFFERS: u32 = 8;

/// A device with the arena.
pub(crate) struct Fixture<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) spec: DeviceSpec,
    pub(crate) device: Box<dyn Device>,
    pub(crate) capabilities: Capabilities,
    pub(crate) promises: Guarantees,
    portals: RefCell<Vec<(PortalSpec, Arc<dyn Portal>)>>,
}

impl<'a> Fixture<'a> {
    pub(crate) fn new(subject: &dyn Subject, arena: &'a Arena, spec: &DeviceSpec) -> Result<Self, NotPassed> {
        let device = match subject.device(spec) {
            Ok(device) => device,
            Err(Refusal::Cannot(reason)) => return skip(reason),
            Err(Refusal::BringUp(error)) => return fail("the device comes up", error),
        };
        Ok(Fixture {
            arena,
            spec: spec.clone(),
            device,
            capabilities: spec.capabilities.unwrap_or_else(|| subject.capabilities()),
            promises: subject.promises(),
            portals: RefCell::default(),
        })
    }

    pub(crate) fn at(&self, offset: u64) -> u64 {
        self.arena.at(offset)
    }

    pub(crate) fn portal(&self, spec: PortalSpec) -> Result<Arc<dyn Portal>, NotPassed> {
        if let Some((_, portal)) = self.portals.borrow().iter().find(|(known, _)| *known == spec) {
            return Ok(portal.clone());
        }
        let Some(portal) = self.device.portal(&spec) else {
            return skip(format!("no portal {:?} of PASID {:#x} by {:?}", spec.kind, spec.pasid, spec.instruction));
        };
        self.portals.borrow_mut().push((spec, portal.clone()));
        Ok(portal)
    }

    pub(crate) fn registers(&self) -> Result<&dyn Registers, NotPassed> {
        self.device.registers().map_or_else(|| skip("registers cannot be reached"), Ok)
    }

    pub(crate) fn hold(&self) -> Verdict {
        if self.device.hold(true) { Ok(()) } else { skip("engines cannot be stopped") }
    }

    pub(crate) fn release(&self) {
        self.device.hold(false);
    }

    /// Interrupts since the last call.
    pub(crate) fn interrupts(&self) -> Result<Vec<Interrupt>, NotPassed> {
        self.device.interrupts().map_or_else(|| skip("interrupts cannot be seen"), Ok)
    }

    /// The operand that a fault should report, or `None` if the device has no fault information.
    pub(crate) fn operand(&self, id: u8) -> Option<u8> {
        self.capabilities.gen_cap.fault_info().then_some(id)
    }

    pub(crate) fn sw_error(&self) -> Option<SwError> {
        let registers = self.device.registers()?;
        Some(SwError([0, 1, 2, 3].map(|i| registers.read(offset::SWERROR + 8 * i, 8))))
    }

    pub(crate) fn clear_sw_error(&self) {
        if let Some(registers) = self.device.registers() {
            registers.write(offset::SWERROR, 8, 3);
        }
    }

    /// Submits; retries a few times if a shared queue answers Retry.
    pub(crate) fn submit(&self, portal: &dyn Portal, d: &Descriptor) -> Verdict {
        for _ in 0..OFFERS {
            if self.arena.offer(portal, d) == Offer::Taken {
                return Ok(());
            }
            self.device.settle();
        }
        fail("an idle queue takes the descriptor", "Retry")
    }

    /// Waits for the record at `address`.
    pub(crate) fn wait(&self, portal: &dyn Portal, address: u64) -> Option<CompletionRecord> {
        for _ in 0..LOOKS {
            if self.arena.status_word(address) & 0xff != 0 {
                return Some(self.arena.record(address));
            }
            portal.drive();
        }
        self.device.settle();
        (self.arena.status_word(address) & 0xff != 0).then(|| self.arena.record(address))
    }

    /// Submits one descriptor and waits for its record.
    pub(crate) fn run(&self, portal: &dyn Portal, d: &Descriptor) -> Result<CompletionRecord, NotPassed> {
        self.arena.clear_record(d.completion_address());
        self.submit(portal, d)?;
        match self.wait(portal, d.completion_address()) {
            Some(record) => Ok(record),
            None => fail("a completion record", format!("nothing; {}", self.errors())),
        }
    }

    /// Submits one descriptor to queue 0, and compares its record.
    pub(crate) fn expect(&self, d: &Descriptor, expected_record: &ExpectedRecord) -> Verdict {
        let portal = self.portal(PortalSpec::of(0))?;
        let record = self.run(&*portal, d)?;
        self.compare(expected_record, &record)
    }

    pub(crate) fn compare(&self, expected_record: &ExpectedRecord, record: &CompletionRecord) -> Verdict {
        holds(expected_record.to_string(), expected_record.matches(record, self.promises.zero_unused), || line(record))
    }

    fn errors(&self) -> String {
        match self.sw_error() {
            Some(e) if e.valid() => {
                format!("SWERROR {:#04x}, information {:#x}", e.error_code(), e.error_information())
            }
            Some(_) => "SWERROR is clear".into(),
            None => "SWERROR cannot be reached".into(),
        }
    }

    /// Submits one descriptor to queue 0, alone or as first of a batch of two, and compares everything that it may
    /// leave behind.
    pub(crate) fn one(&self, portal: PortalSpec, d: &Descriptor, member: bool, expect: &Expect) -> Verdict {
        let portal = self.portal(portal)?;
        let (address, batch_address) = (d.completion_address(), self.at(BATCH_RECORD));
        let has_record = d.flags().bits() & flag::CRAV != 0;
        self.clear_sw_error();
        // Nothing may be written near a misaligned record address either: clear and compare the whole page of records.
        let page = self.at(place::RECORDS);
        let whole = !address.is_multiple_of(32);
        if whole {
            self.arena.set(page, 4096, 0);
        } else {
            self.arena.clear_record(page);
        }
        self.arena.clear_record(batch_address);
        if member {
            let list = self.at(SURROUND);
            self.arena.write_list(list, &[*d, Descriptor::nop()]);
            self.submit(&*portal, &Descriptor::batch(list, 2).with_record(batch_address))?;
            let Some(batch) = self.wait(&*portal, batch_address) else {
                return fail("a record of the surrounding batch", format!("nothing; {}", self.errors()));
            };
            let good = match expect {
                Expect::Record(expected_record, others) => expected_record.code() == 0x01 && others.is_empty(),
                Expect::Silence => true,
                Expect::Logged(..) | Expect::RecordAndLog(_) => false,
            };
            let failed = !good && self.capabilities.gen_cap.batch_continuation();
            let expected_record =
                ExpectedRecord::status(if good { 0x01 } else { 0x05 }).bytes_completed(2).result(failed.into());
            self.compare(&expected_record, &batch)?;
        } else {
            self.submit(&*portal, d)?;
            if matches!(expect, Expect::Silence | Expect::Logged(..)) {
                self.device.settle();
            }
        }
        let got = if has_record && !whole { self.wait(&*portal, address) } else { None };
        let nothing = got.is_none() && (!whole || self.arena.read(page, 64).iter().all(|b| *b == 0));
        match (expect, got) {
            (Expect::Record(expected_record, others), Some(got)) => {
                if !others.contains(&got.status_code()) || self.promises.check_order {
                    self.compare(expected_record, &got)?;
                }
                self.no_sw_error()
            }
            (Expect::RecordAndLog(expected_record), Some(got)) => {
                self.compare(expected_record, &got)?;
                if self.promises.handle_logged { self.logged(expected_record.code(), None) } else { Ok(()) }
            }
            (Expect::Silence, None) if nothing => self.no_sw_error(),
            (Expect::Logged(code, information), None) if nothing => self.logged(*code, *information),
            (Expect::Record(expected_record, _) | Expect::RecordAndLog(expected_record), None) => {
                fail(expected_record.to_string(), format!("no record; {}", self.errors()))
            }
            (Expect::Silence, got) => fail("no record", got.map_or("something beside the record".into(), |r| line(&r))),
            (Expect::Logged(code, _), got) => fail(
                format!("no record, SWERROR {code:#04x}"),
                got.map_or("something beside the record".into(), |r| line(&r)),
            ),
        }
    }

    /// Fails if SWERROR is valid.
    pub(crate) fn no_sw_error(&self) -> Verdict {
        match self.sw_error() {
            Some(e) if e.valid() => fail("SWERROR stays clear", self.errors()),
            _ => Ok(()),
        }
    }

    fn logged(&self, code: u8, information: Option<crate::expected::Information>) -> Verdict {
        let Some(error) = self.sw_error() else { return skip("registers cannot be reached") };
        holds(format!("SWERROR {code:#04x}"), error.valid() && error.error_code() == code, || self.errors())?;
        let Some(expected_record) = information else { return Ok(()) };
        let wrong = (expected_record.value ^ error.error_information()) & !expected_record.open;
        holds(
            format!("SWERROR {code:#04x}, information {:#x}", expected_record.value),
            wrong == 0 && error.error_information_valid(),
            || self.errors(),
        )
    }
}

/// Legality of flags on queue 0 of a device.
pub(crate) fn context(spec: &DeviceSpec, capabilities: &Capabilities, member: bool) -> Context {
    let queue = spec.all_queues().next().expect("a spec with a queue");
    Context {
        gen_cap: capabilities.gen_cap,
        version: capabilities.version,
        id_cap: capabilities.id_cap,
        dsa_cap_0: capabilities.dsa_cap_0,
        member,
        block_on_fault: queue.block_on_fault,
        interrupts: spec.user_interrupts || queue.privileged || !queue.pasid_enable,
    }
}
