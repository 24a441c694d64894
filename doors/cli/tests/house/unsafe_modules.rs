//! Unsafe code is allowed only in the listed files (docs/decisions/0002), and each exception has a reason.

use crate::metadata::members;
use crate::{none, root, rust_files};
use std::collections::BTreeSet;

/// The files that allow unsafe code, for themselves and the modules below them.
const FILES: &[&str] = &[
    "base/interpose/src/context.rs",
    "base/interpose/src/emulate.rs",
    "base/interpose/src/entry.rs",
    "base/interpose/src/exec/environment.rs",
    "base/interpose/src/exec/functions.rs",
    "base/interpose/src/exec/scratch.rs",
    "base/interpose/src/exec/shell.rs",
    "base/interpose/src/exec/state.rs",
    "base/interpose/src/exec/target.rs",
    "base/interpose/src/guarded_access.rs",
    "base/interpose/src/kernel.rs",
    "base/interpose/src/preload/environment.rs",
    "base/interpose/src/preload/heap.rs",
    "base/interpose/src/preload/lock.rs",
    "base/interpose/src/preload/original.rs",
    "base/interpose/src/preload/own_memory.rs",
    "base/interpose/src/sanitizer.rs",
    "base/interpose/src/signals/functions.rs",
    "base/interpose/src/signals/mod.rs",
    "base/interpose/src/sites/mod.rs",
    "base/interpose/src/thread.rs",
    "base/interpose/src/traps.rs",
    "base/interpose/src/vector_registers.rs",
    "base/mem/src/blocks.rs",
    "base/mem/src/grant.rs",
    "base/mem/src/hook.rs",
    "base/mem/src/local.rs",
    "base/mem/src/local/kernels.rs",
    "base/mem/src/local/trap.rs",
    "base/mem/src/map.rs",
    "base/mem/src/pages.rs",
    "base/mem/src/pool.rs",
    "base/mem/src/region.rs",
    "base/mem/src/remote/vm.rs",
    "base/mem/src/shared.rs",
    "base/mem/src/stable_buf.rs",
    "base/ops/src/arch/mod.rs",
    "base/os/src/eventfd.rs",
    "base/os/src/lineage.rs",
    "base/os/src/new_memory.rs",
    "base/os/src/nodes.rs",
    "base/os/src/peer.rs",
    "base/os/src/perf/mod.rs",
    "base/os/src/page_presence.rs",
    "base/os/src/scan.rs",
    "base/os/src/shared_files.rs",
    "base/os/src/termination.rs",
    "base/os/src/thread.rs",
    "base/os/src/ticks.rs",
    "base/os/src/userfault/mod.rs",
    "base/recording/src/overlay.rs",
    "base/recording/src/own_counter.rs",
    "base/recording/src/writer.rs",
    "doors/capi/src/exports/mod.rs",
    "doors/capi/src/raw/mod.rs",
    "doors/dml/src/exports/mod.rs",
    "doors/dml/src/memory.rs",
    "doors/dml/src/process.rs",
    "doors/dml/src/queues/stub_portal.rs",
    "doors/mpi/src/exports.rs",
    "doors/mpi/src/symbols.rs",
    "doors/ofi/src/exports/mod.rs",
    "doors/python/src/view.rs",
    "hosts/launch/src/signals.rs",
    "hosts/launch/src/standard.rs",
    "hosts/launch/src/sweeper.rs",
    "hosts/offload-guest/src/calls.rs",
    "hosts/offload-guest/src/children.rs",
    "hosts/offload-guest/src/counters.rs",
    "hosts/offload-guest/src/device.rs",
    "hosts/offload-guest/src/entries.rs",
    "hosts/offload-guest/src/exec.rs",
    "hosts/offload-guest/src/gates.rs",
    "hosts/offload-guest/src/own_stack.rs",
    "hosts/offload-guest/src/record/calls.rs",
    "hosts/offload-guest/src/record/file.rs",
    "hosts/offload-guest/src/record/process.rs",
    "hosts/offload-guest/src/record/strings.rs",
    "hosts/offload-guest/src/refusal.rs",
    "hosts/offload-guest/src/scratch.rs",
    "hosts/offload-guest/src/start.rs",
    "hosts/offload-guest/src/symbols.rs",
    "hosts/offload-guest/src/thread.rs",
    "hosts/offload-guest/src/traps.rs",
    "hosts/offload-guest/src/uncancelled.rs",
    "hosts/offload-guest/src/vfork.rs",
    "hosts/tier-guest/src/descriptors.rs",
    "hosts/tier-guest/src/discards.rs",
    "hosts/tier-guest/src/exec.rs",
    "hosts/tier-guest/src/heap.rs",
    "hosts/tier-guest/src/map_scanner.rs",
    "hosts/tier-guest/src/mutexes.rs",
    "hosts/tier-guest/src/start.rs",
    "hosts/tier-guest/src/threads.rs",
    "hosts/tier-guest/src/userfaults.rs",
    "hosts/vdev-guest/src/control.rs",
    "hosts/vdev-guest/src/faults.rs",
    "hosts/vdev-guest/src/files/descriptor.rs",
    "hosts/vdev-guest/src/files/table.rs",
    "hosts/vdev-guest/src/fork.rs",
    "hosts/vdev-guest/src/memory.rs",
    "hosts/vdev-guest/src/node/name.rs",
    "hosts/vdev-guest/src/node/replica_access.rs",
    "hosts/vdev-guest/src/observe/check/mapped.rs",
    "hosts/vdev-guest/src/replica.rs",
    "hosts/vdev-guest/src/run.rs",
    "hosts/vdev-guest/src/shared.rs",
    "hosts/vdev-guest/src/symbols/file_changes.rs",
    "hosts/vdev-guest/src/symbols/descriptors.rs",
    "hosts/vdev-guest/src/symbols/directories.rs",
    "hosts/vdev-guest/src/symbols/exec.rs",
    "hosts/vdev-guest/src/symbols/files.rs",
    "hosts/vdev-guest/src/symbols/map.rs",
    "hosts/vdev-guest/src/symbols/polling.rs",
    "hosts/vdev-guest/src/symbols/printing.rs",
    "hosts/vdev-guest/src/symbols/process.rs",
    "hosts/vdev-guest/src/symbols/route.rs",
    "hosts/vdev-guest/src/symbols/signals.rs",
    "hosts/vdev-guest/src/symbols/standard.rs",
    "hosts/vdev-guest/src/symbols/start.rs",
    "hosts/vdev-guest/src/symbols/status.rs",
    "hosts/vdev-guest/src/symbols/stdio.rs",
    "hosts/vdev-guest/src/symbols/system_calls.rs",
    "hosts/vdev-guest/src/symbols/walks.rs",
    "hosts/vdev-guest/src/sys.rs",
    "hosts/vdev/src/host/execute.rs",
    "hosts/vdev/src/host/share.rs",
    "hosts/vdev/src/view/namespace/child.rs",
    "hosts/vdev/src/view/namespace/entry.rs",
    "hosts/vfio/src/guest_memory.rs",
    "lab/bench/src/fabric/library.rs",
    "lab/bench/src/ffi.rs",
    "lab/conformance/src/arena.rs",
    "lab/doctor/src/mapping.rs",
    "lab/sim/src/apps/fabric/buffers.rs",
    "lab/sim/src/simulated_portal.rs",
    "lab/sim/src/submission.rs",
    "path/device/src/in_process/region.rs",
    "path/device/src/own_memory.rs",
    "path/device/src/portal.rs",
    "path/device/src/runner/combiner.rs",
    "path/device/src/runner/signal_mask.rs",
    "path/hw/src/cpuid.rs",
    "path/hw/src/error_events.rs",
    "path/hw/src/openable.rs",
    "path/hw/src/node.rs",
    "path/hw/src/page.rs",
    "path/hw/src/portal.rs",
    "path/hw/src/submit.rs",
    "path/hw/src/queue_test.rs",
    "path/hw/src/wait.rs",
    "path/hw/src/window.rs",
    "path/mover/src/api/scope.rs",
    "path/mover/src/inflight/mod.rs",
    "path/portal/src/lib.rs",
    "path/portal/src/mock.rs",
    "path/portal/src/submission.rs",
    "uses/cache/src/shared_copy.rs",
    "uses/fabric/src/access.rs",
    "uses/fabric/src/collective/arithmetic.rs",
    "uses/fabric/src/collective/lock.rs",
    "uses/fabric/src/copier.rs",
    "uses/nvmf/src/file/buffer.rs",
    "uses/nvmf/src/file/ring.rs",
    "uses/nvmf/src/server/ring.rs",
    "uses/switch/src/interface.rs",
    "uses/switch/src/packet_socket.rs",
    "uses/tier/src/arena.rs",
    "uses/tier/src/exchange.rs",
    "uses/tier/src/exchange/bring_back.rs",
    "uses/tier/src/exchange/copy.rs",
    "uses/tier/src/exchange/fork.rs",
    "uses/tier/src/exchange/take_out.rs",
    "uses/vhost/src/in_flight.rs",
    "uses/vhost/src/dma_queue.rs",
    "uses/vhost/src/packets.rs",
    "uses/vhost/src/ring/mod.rs",
];

/// Files without a proof of their own: one `unsafe fn` in each passes its caller's promise on to a file in [`FILES`].
const PASSES_ON: &[&str] = &["path/device/src/model.rs", "path/mover/src/api/channel.rs", "uses/fabric/src/buffer.rs"];

/// In two halves, so that this file does not match.
const ALLOW: &str = concat!("allow(", "unsafe_code");

/// Returns true if the text allows unsafe code, even if the attribute is broken into lines.
fn allows(text: &str) -> bool {
    text.split_whitespace().collect::<String>().contains(ALLOW)
}

fn is_product(path: &str) -> bool {
    // Tests may allow it for their own fixtures.
    path.contains("/src/") && !path.ends_with("/tests.rs") && !path.contains("/tests/")
}

#[test]
fn unsafe_code_is_allowed_exactly_in_the_listed_files() {
    let files = rust_files();
    let opening = files.iter().filter(|(path, text)| is_product(path) && allows(text));
    let opening: BTreeSet<&str> = opening.map(|(path, _)| path.as_str()).collect();
    let listed: BTreeSet<&str> = FILES.iter().chain(PASSES_ON).copied().collect();
    let outside: Vec<String> = opening.difference(&listed).map(|path| (*path).to_owned()).collect();
    none("files that allow unsafe code and are not listed", &outside);
    let unused: Vec<String> = listed.difference(&opening).map(|path| (*path).to_owned()).collect();
    none("listed files that allow no unsafe code", &unused);
}

#[test]
fn a_file_that_passes_a_promise_on_allows_one_item_only() {
    for (path, text) in rust_files().iter().filter(|(path, _)| PASSES_ON.contains(&path.as_str())) {
        assert_eq!(text.matches(ALLOW).count(), 1, "{path}");
        assert_eq!(text.matches("unsafe fn ").count(), 1, "{path}");
        assert!(!text.contains(&format!("#![{ALLOW}")), "{path} allows it for the whole file");
    }
}

#[test]
fn every_exception_has_a_reason() {
    let mut findings = Vec::new();
    for (path, text) in rust_files() {
        let lines: Vec<&str> = text.lines().collect();
        for (i, _) in lines.iter().enumerate().filter(|(_, line)| line.contains(ALLOW)) {
            // rustfmt may put the reason one or two lines below.
            if !lines[i..].iter().take(3).any(|line| line.contains("reason = \"")) {
                findings.push(format!("{path}:{}", i + 1));
            }
        }
    }
    none("unsafe code allowed without a reason", &findings);
}

#[test]
fn crates_without_listed_files_forbid_unsafe_code_and_the_others_deny_it() {
    let mut findings = Vec::new();
    for package in members().values() {
        let prefix = format!("{}/", package.folder);
        let wanted = if FILES.iter().any(|file| file.starts_with(&prefix)) { "deny" } else { "forbid" };
        for name in ["src/lib.rs", "src/main.rs"] {
            let Ok(text) = std::fs::read_to_string(root().join(&package.folder).join(name)) else { continue };
            if !text.contains(&format!("#![{wanted}(unsafe_code)]")) {
                findings.push(format!("{prefix}{name}: no #![{wanted}(unsafe_code)]"));
            }
        }
    }
    none("crate roots", &findings);
}
