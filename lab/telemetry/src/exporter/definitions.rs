//! The families of devices and of the exporter itself. docs/telemetry.md lists them, and a test compares both.

use super::family::FamilyKind::{Counter, Gauge, Histogram, Info};
use super::family::{Definition, FamilyKind};
use telpher_metrics::Unit::{self, Bytes, Count, Seconds};

macro_rules! families {
    ($($name:ident = $stem:literal $kind:ident $unit:ident $help:literal;)*) => {
        $(pub(crate) const $name: Definition = of($stem, $kind, $unit, $help);)*
        /// All families whose names are fixed.
        pub const DEFINITIONS: &[Definition] = &[$($name),*];
    };
}

const fn of(stem: &'static str, kind: FamilyKind, unit: Unit, help: &'static str) -> Definition {
    Definition::new(stem, kind, unit, help)
}

families! {
    DEVICE = "dsa_device" Info Count "A device; its version and NUMA node where they are known.";
    DEVICE_ENABLED = "dsa_device_enabled" Gauge Count "1 if the device is enabled, 0 if it is disabled or halted.";
    DEVICE_CLIENTS = "dsa_device_clients" Gauge Count "Open files of the device's queues.";
    DEVICE_ERRORS = "dsa_device_errors" Counter Count "Descriptors and members of batches that ended with an error.";
    DEVICE_DESCRIPTORS = "dsa_device_descriptors" Counter Count
        "Descriptors of the device that ended, without members of batches.";
    DEVICE_MEMBERS = "dsa_device_batch_members" Counter Count
        "Members of batches of the device that ended.";
    DEVICE_READ = "dsa_device_read" Counter Bytes
        "Bytes that operations of the device read.";
    DEVICE_WRITTEN = "dsa_device_written" Counter Bytes
        "Bytes that operations of the device wrote.";
    DEVICE_FAULTS = "dsa_device_page_faults" Counter Count
        "Descriptors and members that ended with a page fault.";
    DEVICE_RETRIES = "dsa_device_retries" Counter Count
        "Deferrable submissions that were answered with Retry.";
    DEVICE_DROPPED = "dsa_device_dropped" Counter Count
        "Posted submissions that queues of the device dropped.";
    DEVICE_LOGGED = "dsa_device_event_log_entries" Gauge Count "Entries of the device's event log, by error code.";
    OPERATIONS = "dsa_operations" Counter Count "Descriptors and members of batches that ended, by operation.";
    COMPLETIONS = "dsa_completions" Counter Count "Descriptors and members of batches that ended, by status.";
    WQ = "dsa_wq" Info Count "A work queue, with its mode and group, on hardware also type and name.";
    WQ_ENABLED = "dsa_wq_enabled" Gauge Count "1 if the queue accepts descriptors.";
    WQ_SIZE = "dsa_wq_size" Gauge Count "Entries of the queue.";
    WQ_THRESHOLD = "dsa_wq_threshold" Gauge Count "Entries that deferrable submissions may fill.";
    WQ_PRIORITY = "dsa_wq_priority" Gauge Count "Priority of the queue in its group.";
    WQ_CLIENTS = "dsa_wq_clients" Gauge Count "Open files of the queue.";
    WQ_OCCUPANCY = "dsa_wq_occupancy" Gauge Count "Descriptors that wait in the queue.";
    WQ_DESCRIPTORS = "dsa_wq_descriptors" Counter Count
        "Descriptors of the queue that ended, without members of batches.";
    WQ_MEMBERS = "dsa_wq_batch_members" Counter Count "Members of batches of the queue that ended.";
    WQ_READ = "dsa_wq_read" Counter Bytes "Bytes that operations of the queue read.";
    WQ_WRITTEN = "dsa_wq_written" Counter Bytes "Bytes that operations of the queue wrote.";
    WQ_FAULTS = "dsa_wq_page_faults" Counter Count "Descriptors and members that ended with a page fault.";
    WQ_RETRIES = "dsa_wq_retries" Counter Count "Deferrable submissions that were answered with Retry.";
    WQ_DROPPED = "dsa_wq_dropped" Counter Count "Posted submissions that the queue dropped.";
    WQ_GRANTED = "dsa_wq_granted" Info Count
        "A queue of which the kubelet has given a share, or the whole, to a container.";
    ENGINE = "dsa_engine" Info Count "An engine, with its group.";
    ENGINE_DESCRIPTORS = "dsa_engine_descriptors" Counter Count "Descriptors that the engine ended, without members.";
    ENGINE_MEMBERS = "dsa_engine_batch_members" Counter Count "Members of batches that the engine ended.";
    ENGINE_READ = "dsa_engine_read" Counter Bytes "Bytes that operations of the engine read.";
    ENGINE_WRITTEN = "dsa_engine_written" Counter Bytes "Bytes that operations of the engine wrote.";
    ENGINE_FAULTS = "dsa_engine_page_faults" Counter Count "Descriptors and members that ended with a page fault.";
    ENGINE_BUSY = "dsa_engine_busy" Counter Seconds
        "Sum of the times of descriptors and members whose time was recorded.";
    EXECUTION = "dsa_execution" Histogram Seconds
        "Times from dispatch by an engine to the end; only while times are recorded.";
    CLIENT_DESCRIPTORS = "dsa_client_descriptors" Counter Count
        "Descriptors of the clients of a queue that ended, by pod, container and virtual machine.";
    CLIENT_MEMBERS = "dsa_client_batch_members" Counter Count "Members of batches of the clients that ended.";
    CLIENT_READ = "dsa_client_read" Counter Bytes "Bytes that operations of the clients read.";
    CLIENT_WRITTEN = "dsa_client_written" Counter Bytes "Bytes that operations of the clients wrote.";
    CLIENT_FAULTS = "dsa_client_page_faults" Counter Count "Descriptors and members of the clients with a page fault.";
    CLIENT_RETRIES = "dsa_client_retries" Counter Count "Retry answers to the clients.";
    CLIENT_DROPPED = "dsa_client_dropped" Counter Count "Posted submissions of the clients that the queue dropped.";
    RECORD_FAULTS = "dsa_client_record_faults" Counter Count
        "Faults at completion records that the driver serviced; only with process labels.";
    NUMA_DISTANCE = "dsa_client_numa_distance" Gauge Count
        "Distance from the NUMA node on which the process ran last to the device's, 10 on the same node; only with \
         process labels.";
    UNKNOWN = "telpher_unknown" Info Count "A metric that cannot be known, and why.";
    EXPORTER = "telpher_exporter" Info Count "The exporter, with its version.";
    PROBLEMS = "telpher_exporter_problems" Gauge Count "What the last reading could not read.";
    PROCESSES = "telpher_exporter_processes" Gauge Count "Processes whose own statistics were read.";
    READING = "telpher_exporter_reading" Gauge Seconds "How long the last reading took.";
}
