//! Every field is at the position that the specification's tables give.
//!
//! The table below is typed from the specification's own register tables, in their notation: the first byte of a
//! register (or of a doubleword of a larger structure), then the bits `high : low` counted from there. It takes nothing
//! from the crate's declarations, and a last test checks that no declared field is missing from it.

use crate::value::Value;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;
use telpher_abi::perfmon::{CntrCfg, PerfCap};
use telpher_abi::registers::*;
use telpher_abi::{CompletionRecord, Descriptor, EventLogEntry, SwError};

/// Words of the largest structure.
const WORDS: usize = 8;
type Words = [u64; WORDS];

/// One field, independent of its owner's type.
struct Row {
    owner: &'static str,
    name: &'static str,
    /// Words of the owner.
    words: usize,
    /// Lowest and highest bit, counted from byte 0 of the owner.
    bits: (usize, usize),
    get: fn(&Words) -> u64,
    set: fn(&Words, u64) -> Words,
}

macro_rules! table {
    ($($owner:ident [$n:literal] { $($get:ident / $with:ident at $byte:literal [$hi:literal : $lo:literal];)* })*) => {
        &[$($(Row {
            owner: stringify!($owner),
            name: stringify!($get),
            words: $n,
            bits: (8 * $byte + $lo, 8 * $byte + $hi),
            get: |words| $owner(words[..$n].try_into().expect("as many")).$get().into_u64(),
            set: |words, value| {
                let mut all = *words;
                let typed = $owner(words[..$n].try_into().expect("as many")).$with(Value::from_u64(value));
                all[..$n].copy_from_slice(&typed.0);
                all
            },
        },)*)*]
    };
}

const TABLE: &[Row] = table! {
    // SPEC §8.1 and §8.3.
    Descriptor [8] {
        pasid / with_pasid at 0 [19:0];
        trusted_reserved / with_trusted_reserved at 0 [30:20];
        privileged / with_privileged at 0 [31:31];
        flags / with_flags at 4 [23:0];
        opcode_code / with_opcode_code at 7 [7:0];
        completion_address / with_completion_address at 8 [63:0];
        src / with_src at 16 [63:0];
        dst / with_dst at 24 [63:0];
        size / with_size at 32 [31:0];
        interrupt_handle / with_interrupt_handle at 36 [15:0];
        expected_result / with_expected_result at 40 [7:0];
        pattern_upper / with_pattern_upper at 40 [63:0];
        delta_address / with_delta_address at 40 [63:0];
        max_delta_size / with_max_delta_size at 48 [31:0];
        expected_result_mask / with_expected_result_mask at 56 [7:0];
        delta_record_size / with_delta_record_size at 40 [31:0];
        dst2 / with_dst2 at 40 [63:0];
        crc_seed / with_crc_seed at 40 [31:0];
        crc64_seed / with_crc64_seed at 40 [63:0];
        crc_seed_address / with_crc_seed_address at 48 [63:0];
        source_dif_flags / with_source_dif_flags at 40 [7:0];
        dest_dif_flags / with_dest_dif_flags at 41 [7:0];
        dif_flags / with_dif_flags at 42 [7:0];
        source_ref_tag / with_source_ref_tag at 48 [31:0];
        source_app_tag_mask / with_source_app_tag_mask at 52 [15:0];
        source_app_tag / with_source_app_tag at 54 [15:0];
        dest_ref_tag / with_dest_ref_tag at 56 [31:0];
        dest_app_tag_mask / with_dest_app_tag_mask at 60 [15:0];
        dest_app_tag / with_dest_app_tag at 62 [15:0];
        region_stride / with_region_stride at 48 [31:0];
        window_flags / with_window_flags at 61 [7:0];
        handle_1 / with_handle_1 at 60 [15:0];
        handle_2 / with_handle_2 at 62 [15:0];
        reduce_dst / with_reduce_dst at 40 [63:0];
        reduce_dst2 / with_reduce_dst2 at 48 [63:0];
        element_count / with_element_count at 40 [31:0];
        sgl_size / with_sgl_size at 44 [15:0];
        sgl_base / with_sgl_base at 48 [63:0];
        input_type_code / with_input_type_code at 56 [3:0];
        output_type_code / with_output_type_code at 56 [7:4];
        compute_type_code / with_compute_type_code at 57 [3:0];
        compute_flags / with_compute_flags at 57 [15:4];
        id_selector / with_id_selector at 59 [7:0];
        sgl_format_code / with_sgl_format_code at 59 [7:4];
    }
    // SPEC §8.2.
    CompletionRecord [4] {
        status_code / with_status_code at 0 [7:0];
        result / with_result at 1 [7:0];
        fault_address_masked / with_fault_address_masked at 2 [0:0];
        fault_operand / with_fault_operand at 2 [3:1];
        bytes_completed / with_bytes_completed at 4 [31:0];
        fault_address / with_fault_address at 8 [63:0];
        invalid_flags / with_invalid_flags at 16 [23:0];
        delta_record_size / with_delta_record_size at 16 [31:0];
        fault_handle / with_fault_handle at 16 [15:0];
        sgl_entries_done / with_sgl_entries_done at 20 [15:0];
        crc / with_crc at 16 [31:0];
        crc64 / with_crc64 at 16 [63:0];
        source_ref_tag / with_source_ref_tag at 16 [31:0];
        source_app_tag_mask / with_source_app_tag_mask at 20 [15:0];
        source_app_tag / with_source_app_tag at 22 [15:0];
        dest_ref_tag / with_dest_ref_tag at 24 [31:0];
        dest_app_tag_mask / with_dest_app_tag_mask at 28 [15:0];
        dest_app_tag / with_dest_app_tag at 30 [15:0];
    }
    // SPEC §9.2.2.
    GenCap [1] {
        block_on_fault / with_block_on_fault at 0 [0:0];
        overlapping_copy / with_overlapping_copy at 0 [1:1];
        cache_control / with_cache_control at 0 [2:2];
        cache_control_flush / with_cache_control_flush at 0 [3:3];
        command_capability / with_command_capability at 0 [4:4];
        durable_write / with_durable_write at 0 [5:5];
        inter_domain / with_inter_domain at 0 [6:6];
        translation_fetch_stride / with_translation_fetch_stride at 0 [7:7];
        destination_readback / with_destination_readback at 0 [8:8];
        drain_readback / with_drain_readback at 0 [9:9];
        fill_16 / with_fill_16 at 0 [10:10];
        crc64 / with_crc64 at 0 [11:11];
        fault_info / with_fault_info at 0 [12:12];
        event_log_size_code / with_event_log_size_code at 0 [14:13];
        batch_continuation / with_batch_continuation at 0 [15:15];
        max_transfer_shift / with_max_transfer_shift at 0 [20:16];
        max_batch_shift / with_max_batch_shift at 0 [24:21];
        ims_size / with_ims_size at 0 [30:25];
        configurable / with_configurable at 0 [31:31];
        event_log_overflow / with_event_log_overflow at 0 [32:32];
        batch_1 / with_batch_1 at 0 [52:52];
        no_strict_memory / with_no_strict_memory at 0 [53:53];
        no_strict_peer / with_no_strict_peer at 0 [54:54];
    }
    // SPEC §9.2.3 to §9.2.5.
    WqCap [1] {
        total_entries / with_total_entries at 0 [15:0];
        queues / with_queues at 0 [23:16];
        wqcfg_size_shift / with_wqcfg_size_shift at 0 [27:24];
        shared_mode / with_shared_mode at 0 [48:48];
        dedicated_mode / with_dedicated_mode at 0 [49:49];
        ats_disable / with_ats_disable at 0 [50:50];
        priority / with_priority at 0 [51:51];
        occupancy / with_occupancy at 0 [52:52];
        occupancy_interrupt / with_occupancy_interrupt at 0 [53:53];
        op_config / with_op_config at 0 [54:54];
        prs_disable / with_prs_disable at 0 [55:55];
    }
    GrpCap [1] {
        groups / with_groups at 0 [7:0];
        read_buffers / with_read_buffers at 0 [15:8];
        read_buffer_controls / with_read_buffer_controls at 0 [16:16];
        global_read_buffer_limit / with_global_read_buffer_limit at 0 [17:17];
        progress_limits / with_progress_limits at 0 [18:18];
        bandwidth_limits / with_bandwidth_limits at 0 [19:19];
    }
    EngCap [1] {
        engines / with_engines at 0 [7:0];
        work_descriptors / with_work_descriptors at 0 [15:8];
        batch_descriptors / with_batch_descriptors at 0 [23:16];
    }
    Offsets [2] {
        grpcfg / with_grpcfg at 0 [15:0];
        wqcfg / with_wqcfg at 0 [31:16];
        msix_perm / with_msix_perm at 0 [47:32];
        ims / with_ims at 0 [63:48];
        perfmon / with_perfmon at 0 [79:64];
        idpt / with_idpt at 0 [95:80];
    }
    // SPEC §9.2.8 to §9.2.12.
    GenCfg [1] {
        global_read_buffer_limit / with_global_read_buffer_limit at 0 [7:0];
        user_interrupts / with_user_interrupts at 0 [12:12];
        event_log / with_event_log at 0 [13:13];
    }
    GenCtrl [1] {
        sw_error_interrupt / with_sw_error_interrupt at 0 [0:0];
        halt_interrupt / with_halt_interrupt at 0 [1:1];
        event_log_interrupt / with_event_log_interrupt at 0 [2:2];
    }
    GenSts [1] {
        state_code / with_state_code at 0 [1:0];
        reset_code / with_reset_code at 0 [3:2];
    }
    Command [1] {
        operand / with_operand at 0 [19:0];
        code / with_code at 0 [24:20];
        reserved / with_reserved at 0 [30:25];
        interrupt / with_interrupt at 0 [31:31];
    }
    CmdStatus [1] {
        error_code / with_error_code at 0 [7:0];
        result / with_result at 0 [23:8];
        active / with_active at 0 [31:31];
    }
    // SPEC §9.2.14.
    SwError [4] {
        valid / with_valid at 0 [0:0];
        overflow / with_overflow at 0 [1:1];
        descriptor_valid / with_descriptor_valid at 0 [2:2];
        wq_index_valid / with_wq_index_valid at 0 [3:3];
        batch_member / with_batch_member at 0 [4:4];
        write / with_write at 0 [5:5];
        privileged / with_privileged at 0 [6:6];
        error_information_valid / with_error_information_valid at 0 [7:7];
        error_code / with_error_code at 0 [15:8];
        wq_index / with_wq_index at 0 [23:16];
        operation / with_operation at 0 [39:32];
        pasid / with_pasid at 0 [59:40];
        batch_index / with_batch_index at 8 [15:0];
        error_information / with_error_information at 8 [63:32];
        idpt_handle / with_idpt_handle at 8 [47:32];
        address / with_address at 16 [63:0];
    }
    // SPEC §9.2.15, §9.2.16 and §5.9.
    EvlCfg [2] {
        pasid_enable / with_pasid_enable at 0 [0:0];
        privileged / with_privileged at 0 [1:1];
        base_page / with_base_page at 0 [63:12];
        entries / with_entries at 0 [79:64];
        pasid / with_pasid at 0 [99:80];
    }
    EvlStatus [1] {
        head / with_head at 0 [15:0];
        tail / with_tail at 0 [47:32];
        interrupt_pending / with_interrupt_pending at 0 [62:62];
    }
    EventLogEntry [8] {
        descriptor_valid / with_descriptor_valid at 0 [2:2];
        wq_index_valid / with_wq_index_valid at 0 [3:3];
        batch_member / with_batch_member at 0 [4:4];
        write / with_write at 0 [5:5];
        privileged / with_privileged at 0 [6:6];
        error_information_valid / with_error_information_valid at 0 [7:7];
        error_code / with_error_code at 0 [15:8];
        wq_index / with_wq_index at 0 [23:16];
        batch_identifier / with_batch_identifier at 0 [31:24];
        operation / with_operation at 0 [39:32];
        pasid / with_pasid at 0 [59:40];
        batch_index / with_batch_index at 8 [15:0];
        error_information / with_error_information at 12 [31:0];
        interrupt_handle / with_interrupt_handle at 12 [15:0];
        idpt_handle / with_idpt_handle at 12 [15:0];
        interrupt_required / with_interrupt_required at 12 [16:16];
        ims_portal / with_ims_portal at 12 [17:17];
        record_required / with_record_required at 12 [18:18];
        first_error_in_batch / with_first_error_in_batch at 12 [19:19];
        operand / with_operand at 12 [31:29];
        address / with_address at 16 [63:0];
    }
    // SPEC §9.2.20 to §9.2.24.
    MsixPerm [1] {
        ignore / with_ignore at 0 [2:2];
        pasid_enable / with_pasid_enable at 0 [3:3];
        pasid / with_pasid at 0 [31:12];
    }
    ImsEntry [2] {
        address / with_address at 0 [63:0];
        data / with_data at 8 [31:0];
        mask / with_mask at 12 [0:0];
        pending / with_pending at 12 [1:1];
        ignore / with_ignore at 12 [2:2];
        pasid_enable / with_pasid_enable at 12 [3:3];
        pasid / with_pasid at 12 [31:12];
    }
    GrpCfg [8] {
        wqs / with_wqs at 0 [63:0];
        engines / with_engines at 32 [63:0];
        tc_a / with_tc_a at 40 [2:0];
        tc_b / with_tc_b at 40 [5:3];
        use_global_limit / with_use_global_limit at 40 [7:7];
        read_buffers_reserved / with_read_buffers_reserved at 40 [15:8];
        read_buffers_allowed / with_read_buffers_allowed at 40 [27:20];
        work_limit_code / with_work_limit_code at 40 [33:32];
        batch_limit_code / with_batch_limit_code at 40 [37:36];
        read_bandwidth_code / with_read_bandwidth_code at 40 [43:40];
        write_bandwidth_code / with_write_bandwidth_code at 40 [47:44];
    }
    WqCfg [8] {
        size / with_size at 0 [15:0];
        threshold / with_threshold at 4 [15:0];
        dedicated / with_dedicated at 8 [0:0];
        block_on_fault / with_block_on_fault at 8 [1:1];
        ats_disable / with_ats_disable at 8 [2:2];
        prs_disable / with_prs_disable at 8 [3:3];
        priority / with_priority at 8 [7:4];
        pasid / with_pasid at 8 [27:8];
        pasid_enable / with_pasid_enable at 8 [28:28];
        privileged / with_privileged at 8 [29:29];
        max_transfer_shift / with_max_transfer_shift at 12 [4:0];
        max_batch_shift / with_max_batch_shift at 12 [8:5];
        max_sgl_shift / with_max_sgl_shift at 12 [12:9];
        occupancy_handle / with_occupancy_handle at 16 [15:0];
        occupancy_table / with_occupancy_table at 16 [16:16];
        occupancy_limit / with_occupancy_limit at 20 [15:0];
        occupancy_interrupt / with_occupancy_interrupt at 20 [16:16];
        occupancy / with_occupancy at 24 [15:0];
        occupancy_interrupt_done / with_occupancy_interrupt_done at 24 [16:16];
        mode_support / with_mode_support at 24 [29:29];
        state_code / with_state_code at 24 [31:30];
    }
    // SPEC §9.2.18, §9.2.19, §9.2.29 to §9.2.32.
    IdCap [1] {
        single_submitter / with_single_submitter at 0 [0:0];
        submitter_bitmap / with_submitter_bitmap at 0 [1:1];
        entries / with_entries at 0 [23:8];
        offset_mode / with_offset_mode at 0 [24:24];
        suppress_drain / with_suppress_drain at 0 [25:25];
        entry_size_shift / with_entry_size_shift at 0 [27:26];
    }
    IdBr [1] {
        pasid_enable / with_pasid_enable at 0 [0:0];
        privileged / with_privileged at 0 [1:1];
        traffic_class / with_traffic_class at 0 [4:2];
        pasid / with_pasid at 0 [27:8];
    }
    IdptEntry [4] {
        usable / with_usable at 0 [0:0];
        allow_update / with_allow_update at 0 [1:1];
        type_code / with_type_code at 0 [3:2];
        submitter_pasid / with_submitter_pasid at 0 [31:12];
        read / with_read at 4 [0:0];
        write / with_write at 4 [1:1];
        access_privilege / with_access_privilege at 4 [2:2];
        window_enable / with_window_enable at 4 [3:3];
        offset_mode / with_offset_mode at 4 [4:4];
        access_pasid / with_access_pasid at 4 [31:12];
        window_base / with_window_base at 8 [63:0];
        window_size / with_window_size at 16 [63:0];
        bitmap_page / with_bitmap_page at 24 [63:12];
    }
    DsaCap0 [1] {
        max_sgl_shift / with_max_sgl_shift at 0 [3:0];
        max_gather_block_shift / with_max_gather_block_shift at 0 [7:4];
        id_type_conversion / with_id_type_conversion at 0 [8:8];
        id_reduce / with_id_reduce at 0 [9:9];
        id_reduce_dualcast / with_id_reduce_dualcast at 0 [10:10];
        id_gather_copy / with_id_gather_copy at 0 [12:12];
        id_scatter_copy / with_id_scatter_copy at 0 [13:13];
        id_scatter_fill / with_id_scatter_fill at 0 [14:14];
        sgl_formats / with_sgl_formats at 0 [47:32];
        sgl_descriptors / with_sgl_descriptors at 0 [55:48];
    }
    DsaCap1 [1] {
        data_types / with_data_types at 0 [15:0];
        up_conversions / with_up_conversions at 0 [31:16];
        down_conversions / with_down_conversions at 0 [47:32];
        compute_types / with_compute_types at 0 [63:48];
    }
    DsaCap2 [1] {
        negate / with_negate at 0 [0:0];
        flush_to_zero / with_flush_to_zero at 0 [2:2];
        denormals_are_zero / with_denormals_are_zero at 0 [3:3];
        signed / with_signed at 0 [7:7];
        saturate / with_saturate at 0 [8:8];
        roundings / with_roundings at 0 [15:12];
    }
    // SPEC §9.2.25.
    PerfCap [1] {
        counters / with_counters at 0 [5:0];
        counter_width / with_counter_width at 0 [15:8];
        categories / with_categories at 0 [19:16];
        global_categories / with_global_categories at 0 [35:20];
        filters / with_filters at 0 [43:36];
        per_counter / with_per_counter at 0 [52:52];
        writable / with_writable at 0 [53:53];
        freeze / with_freeze at 0 [54:54];
        overflow_interrupt / with_overflow_interrupt at 0 [55:55];
    }
    CntrCfg [1] {
        enable / with_enable at 0 [0:0];
        interrupt / with_interrupt at 0 [1:1];
        global_freeze / with_global_freeze at 0 [2:2];
        category / with_category at 0 [11:8];
        events / with_events at 0 [59:32];
    }
};

/// Returns bit `i` of all the words: the oracle, one bit at a time.
fn bit(words: &Words, i: usize) -> bool {
    words[i / 64] >> (i % 64) & 1 == 1
}

fn field_bits(words: &Words, (lo, hi): (usize, usize)) -> u64 {
    (lo..=hi).rev().fold(0, |value, i| value << 1 | u64::from(bit(words, i)))
}

/// Checks one field for one surrounding and one value.
fn check(row: &Row, words: &Words, value: u64) {
    let what = format!("{}::{} in {words:x?}, value {value:#x}", row.owner, row.name);
    let (lo, hi) = row.bits;
    assert_eq!((row.get)(words), field_bits(words, row.bits), "reading {what}");
    let after = (row.set)(words, value);
    for i in 0..64 * WORDS {
        let expected = if (lo..=hi).contains(&i) { value >> (i - lo) & 1 == 1 } else { bit(words, i) };
        assert_eq!(bit(&after, i), expected, "bit {i} after setting {what}");
    }
}

#[test]
fn fields_are_at_the_positions_of_the_tables() {
    for row in TABLE {
        let (lo, hi) = row.bits;
        assert!(hi < 64 * row.words, "{}::{} lies in its structure", row.owner, row.name);
        for value in [0, 1, u64::MAX, 1 << (hi - lo), 0x5555_5555_5555_5555] {
            check(row, &[0; WORDS], value);
            check(row, &[u64::MAX; WORDS], value);
        }
    }
}

proptest! {
    #[test]
    fn setters_change_only_their_bits(
        row in 0..TABLE.len(),
        words: Words,
        value: u64,
    ) {
        check(&TABLE[row], &words, value);
    }
}

/// Returns the declared fields, read from the source: `getter / with_setter: type [lo..hi];` under the nearest
/// declaration above.
fn declared() -> BTreeSet<(String, String)> {
    let mut fields = BTreeSet::new();
    for file in ["descriptor.rs", "record.rs", "registers.rs", "event_log.rs", "perfmon.rs"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
        let text = std::fs::read_to_string(&path).expect("the crate's own source");
        let mut owner = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("bit_fields!(").and_then(|rest| rest.strip_suffix(" {")) {
                owner = name.to_owned();
            } else if let Some((name, _)) = line.strip_suffix("] {").and_then(|rest| rest.split_once(" [")) {
                owner = name.to_owned();
            } else if let Some((getter, setter)) = line.split_once(" / with_") {
                assert!(setter.starts_with(&format!("{getter}: ")), "{owner}: {line}");
                fields.insert((owner.clone(), getter.to_owned()));
            }
        }
    }
    fields
}

#[test]
fn no_declared_field_is_missing_from_the_table() {
    let table: BTreeSet<_> = TABLE.iter().map(|row| (row.owner.to_owned(), row.name.to_owned())).collect();
    let missing: Vec<_> = declared().into_iter().filter(|field| !table.contains(field)).collect();
    assert!(missing.is_empty(), "declared, but not in the table: {missing:?}");
}

#[test]
fn registers_are_at_the_offsets_of_the_map() {
    // SPEC Figure 9-1.
    let map = [
        (offset::VERSION, 0x00),
        (offset::GENCAP, 0x10),
        (offset::WQCAP, 0x20),
        (offset::GRPCAP, 0x30),
        (offset::ENGCAP, 0x38),
        (offset::OPCAP, 0x40),
        (offset::OFFSETS, 0x60),
        (offset::GENCFG, 0x80),
        (offset::GENCTRL, 0x88),
        (offset::GENSTS, 0x90),
        (offset::INTCAUSE, 0x98),
        (offset::CMD, 0xa0),
        (offset::CMDSTATUS, 0xa8),
        (offset::CMDCAP, 0xb0),
        (offset::SWERROR, 0xc0),
        (offset::EVLCFG, 0xe0),
        (offset::EVLSTATUS, 0xf0),
        (offset::IDCAP, 0x100),
        (offset::IDBR, 0x108),
        (offset::DSACAP0, 0x180),
        (offset::DSACAP1, 0x188),
        (offset::DSACAP2, 0x190),
        (offset::CMDPARAM, 0xe000),
        (offset::DUMMY_PORTAL, 0xf000),
    ];
    for (ours, theirs) in map {
        assert_eq!(ours, theirs);
    }
    assert_eq!((PORTAL_STRIDE, PORTAL_PAGE), (0x4000, 0x1000));
    assert_eq!((VERSION_1, VERSION_2, VERSION_3), (0x100, 0x200, 0x300));
}

#[test]
fn published_values_of_a_real_device_decode_as_listed() {
    // GENCAP of Sapphire Rapids, and the values that accel-config lists for it.
    let cap = GenCap([0x0040_915f_0107]);
    assert!(cap.block_on_fault() && cap.overlapping_copy() && cap.cache_control() && cap.destination_readback());
    assert!(!cap.command_capability() && !cap.drain_readback() && cap.event_log_size_code() == 0);
    assert_eq!((cap.max_transfer_shift(), cap.max_batch_shift()), (31, 10));
    assert_eq!(u32::from(cap.ims_size()) * 256, 2048);
    assert!(cap.configurable());
    // The DSACAP values in the kernel's ABI text of `dsacaps`.
    let (cap0, cap1, cap2) = (DsaCap0([0x0014_000e_0000_07aa]), DsaCap1([0x00fa_01ff_01ff_03ff]), DsaCap2([0xf18d]));
    assert_eq!((cap0.max_sgl_shift(), cap0.max_gather_block_shift(), cap0.sgl_formats()), (10, 10, 0b1110));
    assert!(cap0.id_type_conversion() && cap0.id_reduce() && cap0.id_reduce_dualcast() && !cap0.id_gather_copy());
    assert_eq!(cap0.sgl_descriptors(), 20);
    assert_eq!((cap1.data_types(), cap1.compute_types()), (0x3ff, 0xfa));
    assert_eq!((cap1.up_conversions(), cap1.down_conversions(), cap2.roundings()), (0x1ff, 0x1ff, 0b1111));
    // The specification's operand examples for Drain WQ: queues 1, 4, 7, and queues 21, 22.
    assert_eq!(Command::new(CommandCode::DrainWq, 0x00092).0[0], 0x0080_0092);
    assert_eq!(Command::new(CommandCode::DrainWq, 0x1_0060).operand(), 0x1_0060);
    // The specification's perfmon example: category 0, events 0xF, enabled with interrupt.
    let counter = CntrCfg::default().with_enable(true).with_interrupt(true).with_category(0).with_events(0xf);
    assert_eq!(counter.0[0], 0x0000_000f_0000_0003);
}
