/*
 * Every operation on a path, against naive loops: sizes, alignments, flags, results, and arguments that are refused.
 * operations PATH [nodevice]: `nodevice` says that no queue can be used, so that the automatic path is the CPU.
 */
#include "check.h"

#define MOST 300007u

static dml_path_t path;
/* A device may lack the delta operations and refuses flags that the CPU ignores. */
static int has_device, has_delta = 1;
static uint8_t a[MOST + 8192], b[MOST + 8192], c[MOST + 8192], expected[MOST + 8192];
static const uint32_t sizes[] = {1, 2, 7, 8, 9, 63, 64, 65, 255, 511, 4096, 4097, 65536, 65539, MOST};
static const uint32_t offsets[] = {0, 1, 13, 64};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), OFFSETS = sizeof(offsets) / sizeof(offsets[0]) };

/* Runs a job by one call or by three, in turn; the results are the same. */
static dml_status_t run(dml_job_t *job) {
    static unsigned turn;
    dml_wait_mode_t mode = turn & 1 ? DML_WAIT_MODE_UMWAIT : DML_WAIT_MODE_BUSY_POLL;
    dml_status_t status;
    switch (turn++ / 2 % 3) {
    case 0: return dml_execute_job(job, mode);
    case 1:
        status = dml_submit_job(job);
        return status == DML_STATUS_OK ? dml_wait_job(job, mode) : status;
    default:
        if ((status = dml_submit_job(job)) != DML_STATUS_OK) return status;
        while ((status = dml_check_job(job)) == DML_STATUS_BEING_PROCESSED) {}
        CHECK(dml_check_job(job) == status && dml_wait_job(job, mode) == status);
        return status;
    }
}

static dml_job_t *job_of(dml_operation_t operation, const void *src, void *dst, uint32_t len) {
    static dml_job_t *job;
    if (!job) job = new_job(path);
    /* The job is used again for every operation, without another dml_init_job(). */
    job->operation = operation;
    job->source_first_ptr = (uint8_t *)src;
    job->source_second_ptr = NULL;
    job->destination_first_ptr = dst;
    job->destination_second_ptr = NULL;
    job->crc_checksum_ptr = NULL;
    job->source_length = job->destination_length = len;
    job->flags = 0;
    job->expected_result = 0;
    job->offset = job->result = 77;
    memset(&job->dif_config, 0, sizeof(job->dif_config));
    return job;
}

static uint32_t crc32c(uint32_t seed, const uint8_t *bytes, size_t n, int reflect_ends, int reflect_data) {
    /* Bit by bit, most significant bit first. */
    uint32_t value = 0;
    for (int i = 0; i < 32; i++)
        if (reflect_ends ? ~seed >> i & 1 : seed >> (31 - i) & 1) value |= 1u << (31 - i);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            unsigned in = bytes[i] >> (reflect_data ? bit : 7 - bit) & 1;
            value = (value << 1) ^ ((value >> 31 ^ in) ? 0x1EDC6F41u : 0);
        }
    uint32_t result = 0;
    for (int i = 0; i < 32; i++)
        if (reflect_ends ? ~value >> (31 - i) & 1 : value >> (31 - i) & 1) result |= reflect_ends ? 1u << i : 1u << (31 - i);
    return result;
}

static void moves(void) {
    for (unsigned s = 0; s < SIZES; s++)
        for (unsigned o = 0; o < OFFSETS; o++)
            for (unsigned flags = 0; flags < 2; flags++) {
                scatter(a, sizes[s] + 200, s + o);
                memset(b, 7, sizes[s] + 200);
                dml_job_t *job = job_of(DML_OP_MEM_MOVE, a + offsets[o], b + offsets[(o + s) % OFFSETS], sizes[s]);
                job->flags = flags ? DML_FLAG_COPY_ONLY | DML_FLAG_PREFETCH_CACHE : 0;
                dml_operation_flags_t given = job->flags;
                IS(run(job), DML_STATUS_OK);
                CHECK(!memcmp(a + offsets[o], b + offsets[(o + s) % OFFSETS], sizes[s]));
                CHECK(b[offsets[(o + s) % OFFSETS] + sizes[s]] == 7 && job->result == 0 && job->flags == given);
            }
    /* Ranges that overlap, in both directions. */
    for (int distance = -700; distance <= 700; distance += 100) {
        scatter(a, 8192, 5);
        memcpy(expected, a, 8192);
        memmove(expected + 2000 + distance, expected + 2000, 3000);
        dml_job_t *job = job_of(DML_OP_MEM_MOVE, a + 2000, a + 2000 + distance, 3000);
        IS(run(job), DML_STATUS_OK);
        CHECK(!memcmp(a, expected, 8192));
        job->flags = DML_FLAG_COPY_ONLY;
        IS(run(job), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
        CHECK(job->flags == DML_FLAG_COPY_ONLY && !memcmp(a, expected, 8192));
    }
    dml_job_t *job = job_of(DML_OP_MEM_MOVE, a, b, 0);
    IS(run(job), DML_STATUS_JOB_LENGTH_ERROR);
    IS(run(job_of(DML_OP_MEM_MOVE, NULL, b, 5)), DML_STATUS_NULL_POINTER_ERROR);
    IS(run(job_of(DML_OP_MEM_MOVE, a, NULL, 5)), DML_STATUS_NULL_POINTER_ERROR);
}

static void fills(void) {
    for (unsigned s = 0; s < SIZES; s++) {
        uint32_t at = offsets[s % OFFSETS], n = sizes[s];
        memset(b, 7, n + 200);
        dml_job_t *job = job_of(DML_OP_FILL, NULL, b + at, n);
        scatter(job->pattern, 8, s);
        IS(run(job), DML_STATUS_OK);
        int same = b[at + n] == 7;
        for (uint32_t i = 0; i < n; i++) same &= b[at + i] == job->pattern[i % 8];
        CHECK(same);
        /* And compared with the pattern: equal, then different at one place. */
        uint8_t pattern[8];
        memcpy(pattern, job->pattern, 8);
        job = job_of(DML_OP_COMPARE_PATTERN, b + at, NULL, n);
        memcpy(job->pattern, pattern, 8);
        IS(run(job), DML_STATUS_OK);
        CHECK(job->result == 0 && job->offset == 0);
        job->flags = DML_FLAG_CHECK_RESULT;
        job->expected_result = 1;
        IS(run(job), DML_STATUS_FALSE_PREDICATE_OK);
        b[at + n - 1] ^= 0x10;
        IS(run(job), DML_STATUS_OK);
        CHECK(job->result == 1 && job->offset == n - 1);
        job->expected_result = 0;
        IS(run(job), DML_STATUS_FALSE_PREDICATE_OK);
    }
    IS(run(job_of(DML_OP_FILL, NULL, b, 0)), DML_STATUS_JOB_LENGTH_ERROR);
    IS(run(job_of(DML_OP_FILL, NULL, NULL, 8)), DML_STATUS_NULL_POINTER_ERROR);
    IS(run(job_of(DML_OP_COMPARE_PATTERN, NULL, NULL, 8)), DML_STATUS_NULL_POINTER_ERROR);
    IS(run(job_of(DML_OP_COMPARE_PATTERN, b, NULL, 0)), DML_STATUS_JOB_LENGTH_ERROR);
}

static void compares(void) {
    for (unsigned s = 0; s < SIZES; s++) {
        uint32_t n = sizes[s];
        scatter(a, n + 200, s);
        memcpy(b + offsets[s % OFFSETS], a + 1, n);
        dml_job_t *job = job_of(DML_OP_COMPARE, a + 1, NULL, n);
        job->source_second_ptr = b + offsets[s % OFFSETS];
        IS(run(job), DML_STATUS_OK);
        CHECK(job->result == 0 && job->offset == 0);
        for (unsigned part = 0; part < 3; part++) {
            uint32_t at = (n - 1) * part / 2;
            job->source_second_ptr[at] ^= 1;
            IS(run(job), DML_STATUS_OK);
            CHECK(job->result == 1 && job->offset == at);
            job->source_second_ptr[at] ^= 1;
        }
        job->flags = DML_FLAG_CHECK_RESULT;
        IS(run(job), DML_STATUS_OK);
        job->expected_result = 1;
        IS(run(job), DML_STATUS_FALSE_PREDICATE_OK);
    }
    dml_job_t *job = job_of(DML_OP_COMPARE, a, NULL, 5);
    IS(run(job), DML_STATUS_NULL_POINTER_ERROR);
    job->source_second_ptr = b;
    job->source_length = 0;
    IS(run(job), DML_STATUS_JOB_LENGTH_ERROR);
}

static void crcs(void) {
    static const uint8_t nine[] = "123456789";
    uint32_t value = 0;
    dml_job_t *job = job_of(DML_OP_CRC, nine, NULL, 9);
    job->crc_checksum_ptr = &value;
    IS(run(job), DML_STATUS_OK);
    CHECK(value == 0xe3069283u && crc32c(0, nine, 9, 1, 1) == value); /* RFC 3720 */
    for (unsigned s = 0; s < SIZES - 1; s++)
        for (unsigned mode = 0; mode < 8; mode++) {
            uint32_t n = sizes[s] > 5000 ? 5000 + s : sizes[s], seed = mode & 4 ? 0x12345678u : 0;
            int ends = !(mode & 1), data = !(mode & 2);
            scatter(a, n + 200, s + mode);
            memset(b, 7, n + 200);
            uint32_t right = crc32c(seed, a + offsets[s % OFFSETS], n, ends, data);
            for (int copies = 0; copies < 2; copies++) {
                value = 0x12345678u;
                job = job_of(copies ? DML_OP_COPY_CRC : DML_OP_CRC, a + offsets[s % OFFSETS], b + 3, n);
                job->crc_checksum_ptr = &value;
                job->flags = (seed ? DML_FLAG_CRC_READ_SEED : 0) | (ends ? 0 : DML_FLAG_CRC_BYPASS_REFLECTION) |
                             (data ? 0 : DML_FLAG_CRC_BYPASS_DATA_REFLECTION);
                IS(run(job), DML_STATUS_OK);
                CHECK_IN(__LINE__, value == right, "%x instead of %x, %u bytes, mode %u", value, right, n, mode);
                CHECK(copies ? !memcmp(b + 3, job->source_first_ptr, n) && b[3 + n] == 7 : b[3] == 7);
            }
        }
    job = job_of(DML_OP_CRC, a, NULL, 9);
    IS(run(job), DML_STATUS_NULL_POINTER_ERROR);
    job->crc_checksum_ptr = &value;
    job->source_first_ptr = NULL;
    IS(run(job), DML_STATUS_NULL_POINTER_ERROR);
    job->source_first_ptr = a;
    job->source_length = 0;
    IS(run(job), DML_STATUS_JOB_LENGTH_ERROR);
    job = job_of(DML_OP_COPY_CRC, a, a + 8, 9);
    job->crc_checksum_ptr = &value;
    IS(run(job), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
}

static void dualcasts(void) {
    for (unsigned s = 0; s < SIZES; s++) {
        uint32_t n = sizes[s] > 65539 ? 65539 : sizes[s];
        scatter(a, n, s);
        memset(b, 7, n + 8192);
        memset(c, 7, n + 8192);
        uint8_t *first = b + 5, *second = c + (((uintptr_t)first - (uintptr_t)c) & 0xfff);
        dml_job_t *job = job_of(DML_OP_DUALCAST, a, first, n);
        job->destination_second_ptr = second;
        IS(run(job), DML_STATUS_OK);
        CHECK(!memcmp(first, a, n) && !memcmp(second, a, n) && first[n] == 7 && second[n] == 7);
        job->destination_second_ptr = second + 1;
        IS(run(job), DML_STATUS_DUALCAST_ALIGN_ERROR);
    }
    dml_job_t *job = job_of(DML_OP_DUALCAST, a, b, 8192);
    IS(run(job), DML_STATUS_NULL_POINTER_ERROR);
    job->destination_second_ptr = b + 4096;
    IS(run(job), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
    job->source_length = 0;
    IS(run(job), DML_STATUS_JOB_LENGTH_ERROR);
}

static void deltas(void) {
    for (uint32_t n = 8; n <= 0x8000; n *= 4) {
        for (unsigned differences = 0; differences < 5; differences++) {
            scatter(a, n, n);
            memcpy(b, a, n);
            for (unsigned i = 0; i < differences; i++) b[(i * 37 + n / 2) % n] ^= 0x55;
            uint8_t *record = expected;
            uint32_t right = 0, room = 10 * (n / 8) < 80 ? 80 : 10 * (n / 8);
            for (uint32_t i = 0; i < n; i += 8)
                if (memcmp(a + i, b + i, 8)) {
                    record[right] = (uint8_t)(i / 8);
                    record[right + 1] = (uint8_t)(i / 8 >> 8);
                    memcpy(record + right + 2, b + i, 8);
                    right += 10;
                }
            dml_job_t *job = job_of(DML_OP_DELTA_CREATE, a, c, n);
            job->source_second_ptr = b;
            job->destination_length = room;
            memset(c, 7, room + 8);
            dml_status_t status = run(job);
            if (status == DML_STATUS_JOB_OPERATION_ERROR && path == DML_PATH_HW) {
                has_delta = 0; /* Sapphire Rapids has no delta operations. */
                return;
            }
            IS(status, DML_STATUS_OK);
            CHECK(job->destination_length == right && job->result == (right != 0) && !memcmp(c, record, right) && c[right] == 7);
            CHECK(job->offset == (uint32_t)(c[0] | c[1] << 8));
            job->flags = DML_FLAG_CHECK_RESULT;
            job->destination_length = room;
            job->expected_result = right ? DML_FLAG_EXPECT_NOT_EQUAL : DML_FLAG_EXPECT_EQUAL;
            IS(run(job), DML_STATUS_OK);
            job->destination_length = room;
            job->expected_result = right ? DML_FLAG_EXPECT_EQUAL : DML_FLAG_EXPECT_NOT_EQUAL;
            IS(run(job), DML_STATUS_FALSE_PREDICATE_OK);
            if (!right) continue;
            job = job_of(DML_OP_DELTA_APPLY, c, a, right);
            job->destination_length = n;
            IS(run(job), DML_STATUS_OK);
            CHECK(!memcmp(a, b, n));
        }
    }
    /* More differences than fit. */
    scatter(a, 4096, 1);
    scatter(b, 4096, 2);
    dml_job_t *job = job_of(DML_OP_DELTA_CREATE, a, c, 4096);
    job->source_second_ptr = b;
    job->destination_length = 80;
    job->flags = DML_FLAG_CHECK_RESULT;
    job->expected_result = DML_FLAG_EXPECT_OVERFLOW;
    IS(run(job), DML_STATUS_OK);
    CHECK(job->result == 2 && job->destination_length == 80);
    /* Damaged records. */
    job = job_of(DML_OP_DELTA_APPLY, c, a, 80);
    job->destination_length = 4096;
    c[0] = 5; /* The next offset is 1. */
    IS(run(job), DML_STATUS_DELTA_ASCENDT_ERROR);
    c[0] = 0;
    c[71] = 0xff;
    IS(run(job), DML_STATUS_DELTA_OFFSET_ERROR);
}

/* These need no device: they are refused before. */
static void refused_deltas(void) {
    struct {
        uint32_t src, second, dst, len, room;
        dml_status_t status;
    } cases[] = {
        {0, 0, 0, 64, 80, DML_STATUS_OK},
        {0, 0, 0, 0, 80, DML_STATUS_JOB_LENGTH_ERROR},
        {0, 0, 0, 64, 0, DML_STATUS_JOB_LENGTH_ERROR},
        {4, 0, 0, 64, 80, DML_STATUS_DELTA_ALIGN_ERROR},
        {0, 4, 0, 64, 80, DML_STATUS_DELTA_ALIGN_ERROR},
        {0, 0, 4, 64, 80, DML_STATUS_DELTA_ALIGN_ERROR},
        {0, 0, 0, 60, 80, DML_STATUS_DELTA_INPUT_SIZE_ERROR},
        {0, 0, 0, 0x80008, 80, DML_STATUS_DELTA_INPUT_SIZE_ERROR},
        {0, 0, 0, 64, 70, DML_STATUS_DELTA_RECORD_SIZE_ERROR},
        {0, 0, 0, 64, 85, DML_STATUS_DELTA_RECORD_SIZE_ERROR},
    };
    for (unsigned i = has_delta ? 0 : 1; i < sizeof(cases) / sizeof(cases[0]); i++) {
        dml_job_t *job = job_of(DML_OP_DELTA_CREATE, a + cases[i].src, c + cases[i].dst, cases[i].len);
        job->source_second_ptr = b + cases[i].second;
        job->destination_length = cases[i].room;
        CHECK_IN(__LINE__, run(job) == cases[i].status, "case %u", i);
        if (i == 0 || cases[i].second || cases[i].room < 80) continue;
        job = job_of(DML_OP_DELTA_APPLY, c + cases[i].src, a + cases[i].dst, cases[i].room);
        job->destination_length = cases[i].len;
        CHECK_IN(__LINE__, run(job) == cases[i].status, "apply, case %u", i);
    }
    dml_job_t *job = job_of(DML_OP_DELTA_APPLY, a, a + 8, 80);
    IS(run(job), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
    job = job_of(DML_OP_DELTA_CREATE, a, c, 80);
    IS(run(job), DML_STATUS_NULL_POINTER_ERROR);
    IS(run(job_of(DML_OP_DELTA_APPLY, a, NULL, 80)), DML_STATUS_NULL_POINTER_ERROR);
}

static uint16_t guard(const uint8_t *bytes, size_t n, uint16_t value) {
    for (size_t i = 0; i < n; i++) {
        value ^= (uint16_t)(bytes[i] << 8);
        for (int bit = 0; bit < 8; bit++) value = (uint16_t)(value & 0x8000 ? value << 1 ^ 0x8bb7 : value << 1);
    }
    return value;
}

static void put_tuple(uint8_t *at, uint16_t guard, uint16_t app, uint32_t ref) {
    uint8_t tuple[8] = {(uint8_t)(guard >> 8), (uint8_t)guard,       (uint8_t)(app >> 8),  (uint8_t)app,
                        (uint8_t)(ref >> 24),  (uint8_t)(ref >> 16), (uint8_t)(ref >> 8), (uint8_t)ref};
    memcpy(at, tuple, 8);
}

static void difs(void) {
    static const uint32_t bytes[] = {512, 520, 4096, 4104};
    for (unsigned kind = 0; kind < 4; kind++)
        for (unsigned invert = 0; invert < 4; invert++) {
            uint32_t block = bytes[kind], blocks = 5, plain = block * blocks, whole = plain + 8 * blocks;
            uint32_t flags = (invert & 1 ? DML_DIF_FLAG_INVERT_CRC_SEED : 0) | (invert & 2 ? DML_DIF_FLAG_INVERT_CRC_RESULT : 0);
            scatter(a, plain, kind);
            for (uint32_t i = 0; i < blocks; i++) {
                uint8_t *to = expected + i * (block + 8);
                memcpy(to, a + i * block, block);
                uint16_t value = guard(to, block, invert & 1 ? 0xffff : 0);
                put_tuple(to + block, invert & 2 ? (uint16_t)~value : value, (uint16_t)((0x1234 + i) & 0xff0f), 0x1000 + i);
            }
            dml_dif_config_t config = {.flags = flags | DML_DIF_FLAG_SRC_INC_APP_TAG | DML_DIF_FLAG_DST_INC_APP_TAG,
                                       .source_reference_tag_seed = 0x1000,
                                       .source_application_tag_seed = 0x1234,
                                       .source_application_tag_mask = 0x00f0,
                                       .destination_reference_tag_seed = 0x1000,
                                       .destination_application_tag_seed = 0x1234,
                                       .destination_application_tag_mask = 0x00f0,
                                       .block_size = (dml_dif_block_size_t)kind};
            memset(b, 7, whole + 8);
            dml_job_t *job = job_of(DML_OP_DIF_INSERT, a, b, plain);
            job->dif_config = config;
            IS(run(job), DML_STATUS_OK);
            CHECK(!memcmp(b, expected, whole) && b[whole] == 7 && job->offset == 0);
            job = job_of(DML_OP_DIF_CHECK, b, NULL, whole);
            job->dif_config = config;
            IS(run(job), DML_STATUS_OK);
            CHECK(job->result == 0 && job->offset == 0);
            memset(c, 7, whole + 8);
            job = job_of(DML_OP_DIF_STRIP, b, c, whole);
            job->dif_config = config;
            IS(run(job), DML_STATUS_OK);
            CHECK(!memcmp(c, a, plain) && c[plain] == 7);
            /* Update: new tags; the guard is kept. */
            config.destination_reference_tag_seed = 9;
            config.flags |= DML_DIF_FLAG_DST_FIX_REF_TAG | DML_DIF_FLAG_DST_PASS_GUARD | DML_DIF_FLAG_DST_PASS_APP_TAG;
            job = job_of(DML_OP_DIF_UPDATE, b, c, whole);
            job->dif_config = config;
            IS(run(job), DML_STATUS_OK);
            for (uint32_t i = 0; i < blocks; i++) {
                uint8_t *tuple = expected + i * (block + 8) + block;
                memcpy(tuple + 4, "\0\0\0\11", 4);
            }
            CHECK(!memcmp(c, expected, whole));
            /* One wrong bit in the third block: each field by itself. */
            static const struct {
                int at;
                uint32_t result;
            } wrong[] = {{-1, DML_DIF_CHECK_GUARD_MISMATCH},
                         {0, DML_DIF_CHECK_GUARD_MISMATCH},
                         {3, DML_DIF_CHECK_APPLICATION_TAG_MISMATCH},
                         {7, DML_DIF_CHECK_REFERENCE_TAG_MISMATCH}};
            for (unsigned i = 0; i < 4; i++) {
                uint8_t *byte = b + 2 * (block + 8) + block + wrong[i].at;
                *byte ^= 1;
                job = job_of(DML_OP_DIF_CHECK, b, NULL, whole);
                job->dif_config = config;
                IS(run(job), DML_STATUS_DIF_CHECK_ERROR);
                CHECK(job->result == wrong[i].result && job->offset == 2 * (block + 8));
                *byte ^= 1;
            }
            for (dml_operation_t operation = DML_OP_DIF_CHECK; operation <= DML_OP_DIF_UPDATE; operation++) {
                job = job_of(operation, a, c, block + (operation == DML_OP_DIF_INSERT ? 1 : 9));
                job->dif_config = config;
                IS(run(job), DML_STATUS_JOB_LENGTH_ERROR);
                job->source_length = 0;
                IS(run(job), DML_STATUS_JOB_LENGTH_ERROR);
                job->source_first_ptr = NULL;
                IS(run(job), DML_STATUS_NULL_POINTER_ERROR);
                if (operation == DML_OP_DIF_CHECK) continue;
                job = job_of(operation, a, a + 16, operation == DML_OP_DIF_INSERT ? plain : whole);
                job->dif_config = config;
                IS(run(job), DML_STATUS_OVERLAPPING_BUFFER_ERROR);
                job->destination_first_ptr = NULL;
                IS(run(job), DML_STATUS_NULL_POINTER_ERROR);
            }
            job = job_of(DML_OP_DIF_STRIP, a + plain, a, whole);
            job->dif_config = config;
            IS(run(job), DML_STATUS_DIF_STRIP_ADJACENT_ERROR);
        }
}

static void others(void) {
    IS(run(job_of(DML_OP_NOP, NULL, NULL, 0)), DML_STATUS_OK);
    IS(run(job_of(DML_OP_DRAIN, NULL, NULL, 0)), DML_STATUS_OK);
    dml_status_t by_device = has_device ? DML_STATUS_JOB_FLAGS_ERROR : DML_STATUS_OK;
    for (dml_operation_t operation = DML_OP_NOP; operation <= DML_OP_DRAIN; operation += 2) {
        dml_job_t *job = job_of(operation, NULL, NULL, 0);
        job->flags = DML_FLAG_BLOCK_ON_FAULT;
        IS(run(job), by_device);
    }
    scatter(a, 5000, 3);
    memcpy(b, a, 5000);
    IS(run(job_of(DML_OP_CACHE_FLUSH, NULL, a + 3, 4990)), DML_STATUS_OK);
    CHECK(!memcmp(a, b, 5000));
    IS(run(job_of(DML_OP_CACHE_FLUSH, NULL, NULL, 64)), DML_STATUS_NULL_POINTER_ERROR);
    IS(run(job_of(DML_OP_CACHE_FLUSH, NULL, a, 0)), DML_STATUS_JOB_LENGTH_ERROR);
    for (unsigned operation = 0; operation < 300; operation++) {
        int known = operation <= 9 || (operation >= 0x10 && operation <= 0x15) || operation == 0x20;
        if (!known) IS(run(job_of((dml_operation_t)operation, a, b, 64)), DML_STATUS_JOB_OPERATION_ERROR);
    }
    /* The job itself. */
    IS(dml_execute_job(NULL, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_submit_job(NULL), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_wait_job(NULL, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_check_job(NULL), DML_STATUS_NULL_POINTER_ERROR);
    IS(dml_finalize_job(NULL), DML_STATUS_NULL_POINTER_ERROR);
    dml_job_t *fresh = new_job(path);
    IS(dml_check_job(fresh), DML_STATUS_JOB_CORRUPTED);
    IS(dml_wait_job(fresh, DML_WAIT_MODE_UMWAIT), DML_STATUS_JOB_CORRUPTED);
    IS(dml_finalize_job(fresh), DML_STATUS_OK);
    IS(dml_finalize_job(fresh), DML_STATUS_OK);
    IS(dml_execute_job(fresh, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    IS(dml_finalize_job(fresh), DML_STATUS_OK);
    IS(dml_execute_job(fresh, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_OK);
    static dml_job_t zero;
    IS(dml_execute_job(&zero, DML_WAIT_MODE_BUSY_POLL), DML_STATUS_JOB_CORRUPTED);
    IS(dml_finalize_job(&zero), DML_STATUS_OK);
}

int main(int argc, char **argv) {
    path = path_of(argv[1]);
    has_device = path != DML_PATH_SW && argc < 3;
    moves();
    fills();
    compares();
    crcs();
    dualcasts();
    deltas();
    refused_deltas();
    difs();
    others();
    return summary();
}
