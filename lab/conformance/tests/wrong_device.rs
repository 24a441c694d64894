//! A device that answers all descriptors with one status fails, and a subject without a device is skipped, not passed.
#![allow(unsafe_code, reason = "the wrong device writes completion records where the judge asks for them")]

use std::sync::Arc;
use telpher_abi::registers::{DsaCap0, DsaCap1, DsaCap2, EngCap, GenCap, GrpCap, IdCap, OpCap, PortalKind, WqCap};
use telpher_abi::{Flags, StatusByte};
use telpher_conformance::{
    Capabilities, Device, DeviceSpec, Filter, Instruction, PortalSpec, Refusal, Subject, Suite, run,
};
use telpher_portal::{Offer, Portal, QueueInfo, QueueMode, RecordCell, Submission};

/// Answers every descriptor with an aligned record address with one status byte.
#[derive(Debug)]
struct Constant(u8);

impl Subject for Constant {
    fn name(&self) -> String {
        format!("always {:#04x}", self.0)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            version: 0x100,
            gen_cap: GenCap([0x40_915f_010f]),
            wq_cap: WqCap::default().with_total_entries(128).with_queues(8),
            grp_cap: GrpCap::default().with_groups(4),
            eng_cap: EngCap::default().with_engines(4),
            op_cap: OpCap([0x1_003f_03ff, 0, 0, 0]),
            id_cap: IdCap::default(),
            dsa_cap_0: DsaCap0::default(),
            dsa_cap_1: DsaCap1::default(),
            dsa_cap_2: DsaCap2::default(),
        }
    }

    fn device(&self, spec: &DeviceSpec) -> Result<Box<dyn Device>, Refusal> {
        if spec.capabilities.is_some() || spec.bare {
            return Err(Refusal::Cannot("it is what it is".into()));
        }
        Ok(Box::new(Constant(self.0)))
    }
}

impl Device for Constant {
    fn portal(&self, spec: &PortalSpec) -> Option<Arc<dyn Portal>> {
        let plain = spec.instruction == Instruction::Fitting && spec.kind == PortalKind::UnlimitedMsix;
        plain.then(|| Arc::new(Answer { status: self.0, info: info() }) as Arc<dyn Portal>)
    }

    fn settle(&self) {}
}

fn info() -> QueueInfo {
    QueueInfo {
        name: "wrong".into(),
        mode: QueueMode::Dedicated,
        size: 16,
        max_transfer: 1 << 20,
        max_batch: 32,
        block_on_fault: false,
        gen_cap: GenCap::default(),
        dsa_cap_0: DsaCap0::default(),
        operations: OpCap::default(),
        numa_node: None,
    }
}

#[derive(Debug)]
struct Answer {
    status: u8,
    info: QueueInfo,
}

// SAFETY: `offer` writes the record before it returns, and keeps nothing.
unsafe impl Portal for Answer {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let d = submission.descriptor();
        let at = d.completion_address();
        // Records in the first page of the suite's arena are always writable; others may be in a hole.
        if d.flags().contains(Flags::RECORD) && at.is_multiple_of(32) && at & 0x1f_ffff < 0x1000 && at > 0x1_0000 {
            // SAFETY: the suite vouched for 32 writable bytes at an aligned completion address, which it accesses only
            // volatilely; the test above excludes the addresses of its bad-address cases.
            let cell = unsafe { &*(at as *const RecordCell) };
            cell.complete(&telpher_abi::CompletionRecord::new(StatusByte(self.status)));
        }
        Offer::Taken
    }
}

#[test]
fn a_device_that_always_succeeds_fails_where_something_is_wrong_or_has_a_value() {
    let report = run(&Constant(0x01), &Filter::all().containing("reserved fields"));
    assert!(report.failed.len() > 100 || !report.skipped.is_empty(), "{report}");
    let report = run(&Constant(0x01), &Filter::all().containing("Table 5-5 flags"));
    assert!(report.failed.len() > 5000, "{report}");
    let report = run(&Constant(0x01), &Filter::all().containing("CRC"));
    assert!(report.passed() == 0, "{report}");
}

#[test]
fn a_device_that_always_refuses_fails_every_operation() {
    for status in [0x10, 0x11, 0x12, 0x13, 0x16] {
        let report = run(&Constant(status), &Filter::all().containing("move and fill"));
        assert_eq!(report.passed(), 0, "{report}");
    }
}

#[test]
fn refusals_are_counted_with_their_reason() {
    let report = run(&Constant(0x01), &Filter::all().containing("SPEC §9.2"));
    assert_eq!(report.passed(), 0, "{report}");
    assert!(!report.is_green());
    assert!(report.reasons().contains_key("it is what it is"), "{report}");
    assert!(report.reasons().contains_key("registers cannot be reached"), "{report}");
}

#[test]
fn a_report_shows_the_case_the_section_and_both_sides() {
    let report = run(&Constant(0x01), &Filter::all().containing("opcode 0x0b is refused").until_first_failure());
    let text = report.to_string();
    for part in
        ["always 0x01", "SPEC Table 8-2", "opcode 0x0b is refused", "expected status 0x10", "got      status 0x01"]
    {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let suite = Suite::of(&Constant(0x01));
    let mut seen = std::collections::BTreeSet::new();
    let twice: Vec<_> = suite.names().filter(|name| !seen.insert(*name)).collect();
    assert_eq!(twice, [], "names are used twice");
    let count = seen.len();
    assert!(count > 30_000, "{count} cases");
}
