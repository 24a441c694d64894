//! The target's and the initiator's state machines connected to each other in memory, without sockets.
//!
//! Where the cases of the protocol are tested; vulnerabilities and bugs of other implementations are in `cves`.
//!
//! - ICReq: first, second, length, version, alignment, reserved bits: `fatal::initialisation_is_checked`,
//!   `fatal::reserved_bits_of_ic_req_are_ignored`, `fatal::common_headers_are_checked`
//! - types, HLEN, PLEN, PDO, flags: `fatal::common_headers_are_checked`
//! - header digests: wrong, absent, not negotiated: `fatal::digests_of_headers_are_checked`
//! - data digests: wrong in the capsule, in each H2CData, right after a wrong one:
//!   `io::a_wrong_data_digest_changes_nothing_and_keeps_the_connection`, `cves::cve_2026_64535…`
//! - data in the capsule: its length, its limit on each queue, on a read:
//!   `fatal::data_descriptors_agree_with_the_capsule`, `edges::capsules_have_the_limit_of_their_queue`
//! - SGL types, addresses, lengths up to FFFFFFFFh: `fatal::data_descriptors_agree_with_the_capsule`,
//!   `cves::nvmet_bound_sgl_data_length`
//! - H2CData: TTAG and CCCID: `fatal::data_that_was_not_asked_for_is_refused`,
//!   `edges::the_tag_of_another_command_is_refused`, `cves::cve_2026_22998…`
//! - H2CData: DATAO, DATAL, LAST: `fatal::data_that_was_not_asked_for_is_refused`, `cves::nvmet_52a0a9854934…`
//! - H2CData: before its R2T, after the command ended or was aborted: `edges::data_before_its_r2t_is_refused`,
//!   `fatal::data_that_was_not_asked_for_is_refused`, `abort`
//! - an identifier in use: `connect::an_identifier_in_use_is_a_conflict`,
//!   `edges::a_conflicting_identifier_harms_no_command`
//! - more commands than entries: `fatal::a_host_with_more_commands_than_the_queue_has_entries_is_disconnected`
//! - block ranges, namespaces, opcodes, PSDT: `io::invalid_commands_get_their_status_and_the_connection_is_kept`,
//!   `admin::admin_commands_that_are_invalid_get_their_status`, `edges::only_data_described_by_an_sgl_is_taken`
//! - fused halves: alone, crossed, for different blocks: `fused`
//! - Connect: every check, data by R2T, two hosts, a full target: `connect`, `cves::spdk_1546…`,
//!   `cves::cve_2024_46737…`
//! - Connect: identifiers in a range: `connect::identifiers_are_in_the_range_of_their_server`
//! - Connect: names of 223 and 224 bytes, without NUL: `edges::names_of_223_bytes_connect`, `cves::cve_2023_6121…`
//! - Connect: 65536 times, to a controller that has ended: `edges::a_target_takes_65536_connects`,
//!   `edges::an_io_queue_of_a_controller_that_has_ended_is_refused`
//! - commands before Connect and before the controller is enabled: `connect::commands_out_of_sequence_are_refused`
//! - properties that do not exist or are read-only:
//!   `admin::properties_that_do_not_exist_or_are_read_only_are_refused`
//! - a reset or a shutdown under I/O: `edges::a_controller_is_shut_down_or_reset_under_io`,
//!   `connect::io_queues_end_with_a_reset_and_with_the_admin_queue`
//! - one byte a segment; all PDUs in one segment: `io::data_survives_when_each_byte_arrives_alone`,
//!   `edges::a_whole_session_may_come_in_one_segment`
//! - half-open connections; FIN after each byte; RST with an R2T out:
//!   `fatal::a_host_that_does_not_connect_in_time_is_disconnected`, `hostile::a_host_may_leave_after_any_byte`,
//!   `a_connection_may_be_reset_while_data_is_awaited` in `tests/server`
//! - a host that does not read, or sends tiny parts: `hostile::a_host_that_does_not_read_is_not_served_without_bound`,
//!   `buffers`
//! - TermReq of the host: `fatal::a_termination_by_the_host_is_not_answered`
//! - keep alive: expiry, the last moment, 0, 1 ms, FFFFFFFFh:
//!   `admin::a_silent_host_loses_its_controller_and_no_other_does`
//! - a device: late, out of order, wrong, full, stopped, ended connections: `device`, `protection`,
//!   `edges::digests_survive_a_device_that_stops`, `edges::a_connection_may_end_while_a_device_has_its_buffers`
//! - random PDUs and bytes: `hostile`
#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod abort;
mod admin;
mod buffers;
mod cases;
mod connect;
mod cves;
mod device;
mod edges;
mod fatal;
mod fused;
mod hostile;
mod io;
mod protection;
mod session;
mod storage;
mod torn;
