/* Sizes, offsets and numbers that object files of other programs contain. Source: Intel's library 1.1.1, measured; 46 and 103 are
 * from 1.2.0. */
#include "check.h"
#include <stddef.h>

#define VALUE(name, value) _Static_assert((unsigned long long)(name) == (value), #name)
#define FIELD(type, field, offset, size)                          \
    _Static_assert(offsetof(type, field) == (offset), #field);    \
    _Static_assert(sizeof(((type *)0)->field) == (size), #field)

FIELD(dml_job_t, source_first_ptr, 0, 8);
FIELD(dml_job_t, source_second_ptr, 8, 8);
FIELD(dml_job_t, destination_first_ptr, 16, 8);
FIELD(dml_job_t, destination_second_ptr, 24, 8);
FIELD(dml_job_t, crc_checksum_ptr, 32, 8);
FIELD(dml_job_t, source_length, 40, 4);
FIELD(dml_job_t, destination_length, 44, 4);
FIELD(dml_job_t, offset, 48, 4);
FIELD(dml_job_t, pattern, 52, 8);
FIELD(dml_job_t, operation, 60, 4);
FIELD(dml_job_t, result, 64, 4);
FIELD(dml_job_t, expected_result, 68, 4);
FIELD(dml_job_t, flags, 72, 8);
FIELD(dml_job_t, dif_config, 80, 24);
FIELD(dml_job_t, numa_id, 104, 4);
FIELD(dml_job_t, internal_data_ptr, 112, 8);
VALUE(sizeof(dml_job_t), 120);
VALUE(_Alignof(dml_job_t), 8);

FIELD(dml_dif_config_t, flags, 0, 4);
FIELD(dml_dif_config_t, source_reference_tag_seed, 4, 4);
FIELD(dml_dif_config_t, source_application_tag_seed, 8, 2);
FIELD(dml_dif_config_t, source_application_tag_mask, 10, 2);
FIELD(dml_dif_config_t, destination_reference_tag_seed, 12, 4);
FIELD(dml_dif_config_t, destination_application_tag_seed, 16, 2);
FIELD(dml_dif_config_t, destination_application_tag_mask, 18, 2);
FIELD(dml_dif_config_t, block_size, 20, 4);
VALUE(sizeof(dml_dif_config_t), 24);

FIELD(dml_library_version_t, name, 0, 30);
FIELD(dml_library_version_t, minimal_cpu_isa, 30, 16);
FIELD(dml_library_version_t, date, 46, 15);
FIELD(dml_library_version_t, version, 61, 20);
FIELD(dml_library_version_t, hw_minimal_version, 81, 30);
FIELD(dml_library_version_t, commit, 111, 12);
FIELD(dml_library_version_t, major, 124, 4);
FIELD(dml_library_version_t, minor, 128, 4);
FIELD(dml_library_version_t, patch, 132, 4);
VALUE(sizeof(dml_library_version_t), 136);

VALUE(sizeof(dml_path_t), 4);
VALUE(sizeof(dml_wait_mode_t), 4);
VALUE(sizeof(dml_operation_t), 4);
VALUE(sizeof(dml_status_t), 4);
VALUE(sizeof(dml_dif_block_size_t), 4);
VALUE(sizeof(dml_operation_flags_t), 8);
VALUE(sizeof(dml_meta_result_t), 4);
VALUE(sizeof(dml_internal_data_t), 1);

VALUE(DML_PATH_AUTO, 0);
VALUE(DML_PATH_SW, 1);
VALUE(DML_PATH_HW, 2);
VALUE(DML_WAIT_MODE_BUSY_POLL, 0);
VALUE(DML_WAIT_MODE_UMWAIT, 1);
VALUE(DML_DIF_BLOCK_SIZE_512, 0);
VALUE(DML_DIF_BLOCK_SIZE_520, 1);
VALUE(DML_DIF_BLOCK_SIZE_4096, 2);
VALUE(DML_DIF_BLOCK_SIZE_4104, 3);

VALUE(DML_OP_NOP, 0);
VALUE(DML_OP_BATCH, 1);
VALUE(DML_OP_DRAIN, 2);
VALUE(DML_OP_MEM_MOVE, 3);
VALUE(DML_OP_FILL, 4);
VALUE(DML_OP_COMPARE, 5);
VALUE(DML_OP_COMPARE_PATTERN, 6);
VALUE(DML_OP_DELTA_CREATE, 7);
VALUE(DML_OP_DELTA_APPLY, 8);
VALUE(DML_OP_DUALCAST, 9);
VALUE(DML_OP_CRC, 0x10);
VALUE(DML_OP_COPY_CRC, 0x11);
VALUE(DML_OP_DIF_CHECK, 0x12);
VALUE(DML_OP_DIF_INSERT, 0x13);
VALUE(DML_OP_DIF_STRIP, 0x14);
VALUE(DML_OP_DIF_UPDATE, 0x15);
VALUE(DML_OP_CACHE_FLUSH, 0x20);

VALUE(DML_STATUS_OK, 0);
VALUE(DML_STATUS_FALSE_PREDICATE_OK, 1);
VALUE(DML_STATUS_BEING_PROCESSED, 2);
VALUE(DML_STATUS_INTERNAL_ERROR, 3);
VALUE(DML_STATUS_NULL_POINTER_ERROR, 4);
VALUE(DML_STATUS_LIMITS_ERROR, 5);
VALUE(DML_STATUS_PATH_ERROR, 6);
VALUE(DML_STATUS_HINT_ERROR, 7);
VALUE(DML_STATUS_CRC_ALIGN_ERROR, 8);
VALUE(DML_STATUS_BATCH_ERROR, 9);
VALUE(DML_STATUS_DELTA_ASCENDT_ERROR, 10);
VALUE(DML_STATUS_DELTA_OFFSET_ERROR, 11);
VALUE(DML_STATUS_DIF_CHECK_ERROR, 12);
VALUE(DML_STATUS_JOB_OPERATION_ERROR, 13);
VALUE(DML_STATUS_JOB_FLAGS_ERROR, 14);
VALUE(DML_STATUS_JOB_LENGTH_ERROR, 15);
VALUE(DML_STATUS_BATCH_LIMITS_ERROR, 16);
VALUE(DML_STATUS_DELTA_RECORD_SIZE_ERROR, 17);
VALUE(DML_STATUS_OVERLAPPING_BUFFER_ERROR, 18);
VALUE(DML_STATUS_DUALCAST_ALIGN_ERROR, 19);
VALUE(DML_STATUS_DELTA_ALIGN_ERROR, 20);
VALUE(DML_STATUS_DELTA_INPUT_SIZE_ERROR, 21);
VALUE(DML_STATUS_MEMORY_OVERFLOW_ERROR, 22);
VALUE(DML_STATUS_JOB_CORRUPTED, 23);
VALUE(DML_STATUS_WORK_QUEUE_OVERFLOW_ERROR, 24);
VALUE(DML_STATUS_PAGE_FAULT_ERROR, 25);
VALUE(DML_STATUS_TC_A_NOT_AVAILABLE, 26);
VALUE(DML_STATUS_TC_B_NOT_AVAILABLE, 27);
VALUE(DML_STATUS_BATCH_TASK_INDEX_OVERFLOW, 28);
VALUE(DML_STATUS_BATCH_SIZE_ERROR, 29);
VALUE(DML_STATUS_DRAIN_PAGE_FAULT_ERROR, 30);
VALUE(DML_STATUS_UNKNOWN_CACHE_SIZE_ERROR, 31);
VALUE(DML_STATUS_DIF_STRIP_ADJACENT_ERROR, 32);
VALUE(DML_STATUS_INTL_INVALID_PAGE_REQUEST, 33);
VALUE(DML_STATUS_INTL_INVALID_RESERVED_FIELD, 34);
VALUE(DML_STATUS_INTL_MISALIGNED_DESC_LA, 35);
VALUE(DML_STATUS_INTL_INVALID_COMPLETION_HANDLE, 36);
VALUE(DML_STATUS_INTL_PAGE_FAULT_ON_TRANSLATION, 37);
VALUE(DML_STATUS_INTL_MISALIGNED_CR_ADDRESS, 38);
VALUE(DML_STATUS_INTL_MISALIGNED_ADDRESS, 39);
VALUE(DML_STATUS_INTL_PRIVILEGE_ERROR, 40);
VALUE(DML_STATUS_INTL_TRAFFIC_CLASS_ERROR, 41);
VALUE(DML_STATUS_INTL_READBACK_ADDRESS_PAGE_ERROR, 42);
VALUE(DML_STATUS_INTL_HARDWARE_READBACK_TIMEOUT, 43);
VALUE(DML_STATUS_INTL_HARDWARE_TIMEOUT, 44);
VALUE(DML_STATUS_INTL_ADDRESS_TRANSLATION_ERROR, 45);
VALUE(DML_STATUS_NOT_SUPPORTED_BY_WQ, 46);
VALUE(DML_STATUS_LIBACCEL_NOT_FOUND, 100);
VALUE(DML_STATUS_LIBACCEL_ERROR, 101);
VALUE(DML_STATUS_WORK_QUEUES_NOT_AVAILABLE, 102);
VALUE(DML_STATUS_INIT_HW_NOT_SUPPORTED, 103);

VALUE(DML_FLAG_BATCH, 1);
VALUE(DML_FLAG_BATCH_LAST, 2);
VALUE(DML_FLAG_BLOCK_ON_FAULT, 2);
VALUE(DML_FLAG_FENCE, 4);
VALUE(DML_FLAG_COPY_ONLY, 0x20);
VALUE(DML_FLAG_CHECK_RESULT, 0x80);
VALUE(DML_FLAG_PREFETCH_CACHE, 0x100);
VALUE(DML_FLAG_ADDRESS1_TCB, 0x200);
VALUE(DML_FLAG_ADDRESS2_TCB, 0x400);
VALUE(DML_FLAG_ADDRESS3_TCB, 0x800);
VALUE(DML_FLAG_DST1_DURABLE, 0x8000);
VALUE(DML_FLAG_CRC_READ_SEED, 0x10000);
VALUE(DML_FLAG_CRC_BYPASS_REFLECTION, 0x20000);
VALUE(DML_FLAG_CRC_BYPASS_DATA_REFLECTION, 0x40000);
VALUE(DML_FLAG_DUALCAST_DST2_DURABLE, 0x10000);
VALUE(DML_FLAG_EXPECT_EQUAL, 1);
VALUE(DML_FLAG_EXPECT_NOT_EQUAL, 2);
VALUE(DML_FLAG_EXPECT_OVERFLOW, 4);

VALUE(DML_DIF_FLAG_SRC_F_ENABLE_ERROR, 1);
VALUE(DML_DIF_FLAG_SRC_F_DETECT_ALL, 2);
VALUE(DML_DIF_FLAG_SRC_F_DETECT_APP_TAG, 4);
VALUE(DML_DIF_FLAG_SRC_F_DETECT_TAGS, 8);
VALUE(DML_DIF_FLAG_SRC_INC_APP_TAG, 0x10);
VALUE(DML_DIF_FLAG_SRC_GUARD_CHECK_DISABLE, 0x20);
VALUE(DML_DIF_FLAG_SRC_REF_TAG_CHECK_DISABLE, 0x40);
VALUE(DML_DIF_FLAG_SRC_FIX_REF_TAG, 0x80);
VALUE(DML_DIF_FLAG_DST_RESERVED1, 0x100);
VALUE(DML_DIF_FLAG_DST_RESERVED2, 0x200);
VALUE(DML_DIF_FLAG_DST_RESERVED3, 0x400);
VALUE(DML_DIF_FLAG_DST_PASS_APP_TAG, 0x800);
VALUE(DML_DIF_FLAG_DST_INC_APP_TAG, 0x1000);
VALUE(DML_DIF_FLAG_DST_PASS_GUARD, 0x2000);
VALUE(DML_DIF_FLAG_DST_PASS_REF_TAG, 0x4000);
VALUE(DML_DIF_FLAG_DST_FIX_REF_TAG, 0x8000);
VALUE(DML_DIF_FLAG_INVERT_CRC_SEED, 0x40000);
VALUE(DML_DIF_FLAG_INVERT_CRC_RESULT, 0x80000);
VALUE(DML_DIF_CHECK_GUARD_MISMATCH, 1);
VALUE(DML_DIF_CHECK_APPLICATION_TAG_MISMATCH, 2);
VALUE(DML_DIF_CHECK_REFERENCE_TAG_MISMATCH, 4);
VALUE(DML_DIF_CHECK_ALL_BITS_SET_DETECT_ERROR, 8);

VALUE(DML_MIN_8U, 0);
VALUE(DML_MAX_8U, 0xff);
VALUE(DML_MIN_16U, 0);
VALUE(DML_MAX_16U, 0xffff);
VALUE(DML_MIN_32U, 0);
VALUE(DML_MAX_32U, 0xffffffff);
VALUE(DML_MIN_64U, 0);
VALUE(DML_MAX_64U, 0xffffffffffffffff);
VALUE(DML_ONE_64U, 1);
VALUE(DML_BASE_DRIVER_ERROR, 100);
VALUE(DML_MIN_BATCH_SIZE, 4);
VALUE(DML_MAX(3, 5), 5);
VALUE(DML_MIN(3, 5), 3);

VALUE(sizeof(telpher_dml_task), 192);
VALUE(_Alignof(telpher_dml_task), 64);
VALUE(offsetof(telpher_dml_task, record), 64);
VALUE(_Alignof(telpher_dml_record), 32);

int main(void) {
    const dml_library_version_t *version = dml_get_library_version();
    CHECK(version->major == 1 && version->minor == 2 && version->patch == 0);
    CHECK(!strcmp((const char *)version->version, "1.2.0"));
    CHECK(!strcmp((const char *)version->minimal_cpu_isa, "N/A"));
    CHECK(!strcmp((const char *)version->hw_minimal_version, "DML 1.0"));
    CHECK(strlen((const char *)version->name) < sizeof(version->name));
    for (unsigned path = 0; path < 5; path++) {
        uint32_t size = 1;
        IS(dml_get_job_size((dml_path_t)path, &size), path < 3 ? DML_STATUS_OK : DML_STATUS_PATH_ERROR);
        CHECK(size == (path < 3 ? 376u : 1u));
        IS(dml_get_job_size((dml_path_t)path, NULL), DML_STATUS_NULL_POINTER_ERROR);
        IS(dml_init_job((dml_path_t)path, NULL), DML_STATUS_NULL_POINTER_ERROR);
        /* Exactly the 376 bytes are written, at every address that malloc may return. */
        _Alignas(64) uint8_t memory[64 + 376 + 64];
        for (unsigned at = 0; at < 64; at += 8) {
            memset(memory, 0xa5, sizeof(memory));
            dml_job_t *job = (dml_job_t *)(memory + at);
            IS(dml_init_job((dml_path_t)path, job), path < 3 ? DML_STATUS_OK : DML_STATUS_PATH_ERROR);
            CHECK(memory[at + 376] == 0xa5 && (at == 0 || memory[at - 1] == 0xa5));
            if (path < 3) {
                CHECK(job->numa_id == DML_MAX_32U && job->flags == 0 && job->operation == 0);
                CHECK((uint8_t *)job->internal_data_ptr == memory + (at + 120 + 63) / 64 * 64);
            }
        }
    }
    uint32_t size = 0;
    dml_job_t *job = new_job(DML_PATH_SW);
    IS(dml_get_batch_size(job, 4, &size), DML_STATUS_OK);
    CHECK(size == 4 * 96 + 64);
    IS(dml_get_batch_size(job, 1000, &size), DML_STATUS_OK);
    CHECK(size == 96064);
    IS(dml_get_batch_size(job, 3, &size), DML_STATUS_BATCH_SIZE_ERROR);
    IS(dml_get_batch_size(job, 0xffffffff, &size), DML_STATUS_BATCH_SIZE_ERROR);
    IS(dml_get_batch_size(NULL, 4, &size), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_get_batch_size(job, 4, NULL), DML_STATUS_NULL_POINTER_ERROR);
    CHECK(!strcmp(telpher_dml_last_error(), ""));
    return summary();
}
