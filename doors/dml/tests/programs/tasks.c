/* The interface between dml.hpp and the library: descriptors, tasks, records. tasks PATH */
#include "check.h"

static _Alignas(4096) uint8_t a[8192], b[8192], c[8192];

int main(int argc, char **argv) {
    (void)argc;
    uint32_t path = path_of(argv[1]);
    telpher_dml_task *task = aligned_alloc(64, sizeof(*task));
    telpher_dml_descriptor *d = &task->descriptor;
    memset(task, 0xa5, sizeof(*task));
    telpher_dml_init(task);
    CHECK(telpher_dml_finished(task) == 1 && telpher_dml_get_status(&task->record) == 0);
    IS(telpher_dml_status_of(&task->record), DML_STATUS_BEING_PROCESSED);
    telpher_dml_wait(task, 0);
    telpher_dml_release(task);
    scatter(a, sizeof(a), 1);
    /* A device reports pages that are missing. */
    memset(b, 1, sizeof(b));
    memset(c, 1, sizeof(c));
#define RUN(expected)                                                              \
    IS(telpher_dml_validate(d, 0), DML_STATUS_OK);                                 \
    IS(telpher_dml_submit(task, path, TELPHER_DML_ANY_NODE), DML_STATUS_OK);       \
    telpher_dml_wait(task, 1);                                                     \
    CHECK(telpher_dml_finished(task) == 1);                                        \
    telpher_dml_release(task);                                                     \
    IS(telpher_dml_get_status(&task->record), expected)
    telpher_dml_make_nop(d, 0);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    telpher_dml_make_mem_move(d, TELPHER_DML_CACHE_CONTROL, a, b, 5000);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    CHECK(!memcmp(a, b, 5000));
    telpher_dml_make_fill(d, 0, 0x0706050403020100, c, 16);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    CHECK(c[7] == 7 && c[8] == 0 && c[15] == 7);
    b[77] ^= 1;
    telpher_dml_make_compare(d, TELPHER_DML_CHECK_RESULT, a, b, 5000, 0);
    RUN(TELPHER_DML_RECORD_FALSE_PREDICATE);
    CHECK(telpher_dml_get_result(&task->record) == 1 && telpher_dml_get_bytes_completed(&task->record) == 77);
    IS(telpher_dml_status_of(&task->record), DML_STATUS_FALSE_PREDICATE_OK);
    telpher_dml_make_compare_pattern(d, 0, 0x0706050403020100, c, 16, 0);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    CHECK(telpher_dml_get_result(&task->record) == 0);
    telpher_dml_make_dualcast(d, 0, a, b, c, 4096);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    CHECK(!memcmp(a, b, 4096) && !memcmp(a, c, 4096));
    telpher_dml_make_crc(d, 0, "123456789", 9, 0);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    CHECK(telpher_dml_get_crc_value(&task->record) == 0xe3069283u);
    telpher_dml_make_copy_crc(d, 0, "123456789", b, 9, 0);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    CHECK(telpher_dml_get_crc_value(&task->record) == 0xe3069283u && b[8] == '9');
    telpher_dml_make_cache_flush(d, 0, a, 8192);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    if (path != DML_PATH_HW) {
        /* Not every device has the delta operations. */
        memcpy(b, a, 800);
        b[400] ^= 1;
        telpher_dml_make_create_delta(d, 0, a, b, 800, c, 80, 2);
        RUN(TELPHER_DML_RECORD_SUCCESS);
        CHECK(telpher_dml_get_delta_record_size(&task->record) == 10 && telpher_dml_get_result(&task->record) == 1);
        telpher_dml_make_apply_delta(d, 0, c, 10, a, 800);
        RUN(TELPHER_DML_RECORD_SUCCESS);
        CHECK(!memcmp(a, b, 800));
    }
    /* A batch, whose members are bound to records of their own. */
    static telpher_dml_descriptor list[4];
    static telpher_dml_record records[4];
    for (int i = 0; i < 4; i++) {
        telpher_dml_make_mem_move(&list[i], i ? TELPHER_DML_FENCE : 0, i ? b + 1000 * i - 1000 : a, b + 1000 * i, 1000);
        telpher_dml_bind(&list[i], &records[i]);
    }
    telpher_dml_make_batch(d, 0, list, 4);
    RUN(TELPHER_DML_RECORD_SUCCESS);
    CHECK(telpher_dml_get_bytes_completed(&task->record) == 4 && !memcmp(a, b + 3000, 1000));
    CHECK(telpher_dml_get_status(&records[3]) == TELPHER_DML_RECORD_SUCCESS);
    telpher_dml_make_batch(d, 0, list, 3);
    IS(telpher_dml_validate(d, 0), DML_STATUS_BATCH_SIZE_ERROR);
    telpher_dml_make_mem_move(d, 0, a, a + 10, 20);
    IS(telpher_dml_validate(d, 0), DML_STATUS_OK);
    IS(telpher_dml_validate(d, TELPHER_DML_COPY_ONLY), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
    telpher_dml_make_mem_move(d, 0, NULL, NULL, 20);
    IS(telpher_dml_validate(d, TELPHER_DML_COPY_ONLY), DML_STATUS_NULL_POINTER_ERROR);
    IS(telpher_dml_submit(task, 9, 0), DML_STATUS_PATH_ERROR);
    /* A task is waited for before its memory is freed. */
    for (int i = 0; i < 100; i++) {
        telpher_dml_make_mem_move(d, 0, a, c, 8192);
        IS(telpher_dml_submit(task, path, TELPHER_DML_ANY_NODE), DML_STATUS_OK);
        telpher_dml_release(task);
        telpher_dml_release(task);
    }
    free(task);
    return summary();
}
