/*
 * The numbers and structures of the Data Mover Library's interface for C, in telpher's replacement.
 *
 * Names, values and layouts are those of Intel's library 1.2, so that programs and object files work unchanged.
 * Where the replacement answers differently, the text says so; docs/dml.md lists all differences.
 */
#ifndef DML_DEFS_H__
#define DML_DEFS_H__

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Numbers ------------------------------------------------------------------------------------------------------------ */

#define DML_MIN_8U (0u)
#define DML_MAX_8U (0xFFu)
#define DML_MIN_16U (0u)
#define DML_MAX_16U (0xFFFFu)
#define DML_MIN_32U (0u)
#define DML_MAX_32U (0xFFFFFFFFu)
#define DML_MIN_64U (0u)
#define DML_MAX_64U (0xFFFFFFFFFFFFFFFFLL)
#define DML_ONE_64U (1ULL)

/* The first status of a submission that failed for lack of a device. */
#define DML_BASE_DRIVER_ERROR 100u

/* The fewest members of a batch. */
#define DML_MIN_BATCH_SIZE (4u)

#define DML_MAX(a, b) (((a) > (b)) ? (a) : (b))
#define DML_MIN(a, b) (((a) < (b)) ? (a) : (b))

typedef uint64_t dml_operation_flags_t;
typedef uint32_t dml_meta_result_t;
typedef uint8_t dml_internal_data_t;

/* ---- Flags of a job or batch member: dml_job_t.flags ---------------------------------------------------------------------- */

/* Leftovers of an old interface. On a device they are the bits of Fence and Block On Fault. */
#define DML_FLAG_BATCH 0x00000001u
#define DML_FLAG_BATCH_LAST 0x00000002u

/* The device waits for missing pages. The queue must allow it, else the status is JOB_FLAGS_ERROR. Not for NOP, DRAIN, BATCH. */
#define DML_FLAG_BLOCK_ON_FAULT 0x00000002u

/* A batch member that starts when all members before it have ended, and does not start if one of them failed. (In Intel's library
 * this bit has no effect.) No effect outside a batch. */
#define DML_FLAG_FENCE 0x00000004u

/* MEM_MOVE: refuse ranges that overlap. (Intel's library removes the flag from the job; this one leaves it.) */
#define DML_FLAG_COPY_ONLY 0x00000020u

/* COMPARE, COMPARE_PATTERN, DELTA_CREATE: the status is FALSE_PREDICATE_OK if the result is not the expected one. */
#define DML_FLAG_CHECK_RESULT 0x00000080u

/* The device writes its results into the cache. */
#define DML_FLAG_PREFETCH_CACHE 0x00000100u

/* The other traffic class for an address. */
#define DML_FLAG_ADDRESS1_TCB 0x200u
#define DML_FLAG_ADDRESS2_TCB 0x400u
#define DML_FLAG_ADDRESS3_TCB 0x800u

/* A destination in durable memory. Devices ignore or refuse it. */
#define DML_FLAG_DST1_DURABLE 0x8000u
#define DML_FLAG_DUALCAST_DST2_DURABLE 0x10000u

/* CRC, COPY_CRC: the CRC starts with *crc_checksum_ptr instead of 0. In a batch it always starts with the given seed. */
#define DML_FLAG_CRC_READ_SEED 0x10000u
/* CRC, COPY_CRC: neither invert nor reflect the seed and the result; do not reflect the data. */
#define DML_FLAG_CRC_BYPASS_REFLECTION 0x20000u
#define DML_FLAG_CRC_BYPASS_DATA_REFLECTION 0x40000u

/* CACHE_FLUSH: keep the lines in the cache. Deprecated: no device since the first firmware offers it. */
#if defined(__GNUC__)
#define DML_FLAG_DONT_INVALIDATE_CACHE _Pragma("GCC warning \"DML_FLAG_DONT_INVALIDATE_CACHE is deprecated\"") 0x00000100u
#else
#define DML_FLAG_DONT_INVALIDATE_CACHE 0x00000100u
#endif

/* The expected results of DELTA_CREATE, as a mask. COMPARE and COMPARE_PATTERN expect a number: 0 equal, 1 different. */
#define DML_FLAG_EXPECT_EQUAL 0x00000001u
#define DML_FLAG_EXPECT_NOT_EQUAL 0x00000002u
#define DML_FLAG_EXPECT_OVERFLOW 0x00000004u

/* ---- Flags of the DIF operations: dml_dif_config_t.flags ------------------------------------------------------------------ */

/* The source. */
#define DML_DIF_FLAG_SRC_F_ENABLE_ERROR 0x000001u
#define DML_DIF_FLAG_SRC_F_DETECT_ALL 0x000002u
#define DML_DIF_FLAG_SRC_F_DETECT_APP_TAG 0x000004u
#define DML_DIF_FLAG_SRC_F_DETECT_TAGS 0x000008u
#define DML_DIF_FLAG_SRC_INC_APP_TAG 0x000010u
#define DML_DIF_FLAG_SRC_GUARD_CHECK_DISABLE 0x000020u
#define DML_DIF_FLAG_SRC_REF_TAG_CHECK_DISABLE 0x000040u
#define DML_DIF_FLAG_SRC_FIX_REF_TAG 0x000080u

/* The destination. PASS: keep the source's field. */
#define DML_DIF_FLAG_DST_RESERVED1 0x000100u
#define DML_DIF_FLAG_DST_RESERVED2 0x000200u
#define DML_DIF_FLAG_DST_RESERVED3 0x000400u
#define DML_DIF_FLAG_DST_PASS_APP_TAG 0x000800u
#define DML_DIF_FLAG_DST_INC_APP_TAG 0x001000u
#define DML_DIF_FLAG_DST_PASS_GUARD 0x002000u
#define DML_DIF_FLAG_DST_PASS_REF_TAG 0x004000u
#define DML_DIF_FLAG_DST_FIX_REF_TAG 0x008000u

/* The guard: start with 0xFFFF; invert the result. */
#define DML_DIF_FLAG_INVERT_CRC_SEED 0x040000u
#define DML_DIF_FLAG_INVERT_CRC_RESULT 0x080000u

/* What does not match, in dml_job_t.result with the status DIF_CHECK_ERROR. */
#define DML_DIF_CHECK_GUARD_MISMATCH 0x01u
#define DML_DIF_CHECK_APPLICATION_TAG_MISMATCH 0x02u
#define DML_DIF_CHECK_REFERENCE_TAG_MISMATCH 0x04u
#define DML_DIF_CHECK_ALL_BITS_SET_DETECT_ERROR 0x08u

/* ---- Enumerations --------------------------------------------------------------------------------------------------------- */

/* How an operation is executed. */
typedef enum {
    DML_PATH_AUTO = 0x00000000u, /* a queue of a device; the CPU if no queue takes it, and after page faults */
    DML_PATH_SW = 0x00000001u,   /* the CPU */
    DML_PATH_HW = 0x00000002u    /* a queue of a real or virtual device */
} dml_path_t;

/* How a thread waits. */
typedef enum {
    DML_WAIT_MODE_BUSY_POLL = 0x0u,
    DML_WAIT_MODE_UMWAIT = 0x1u /* sleeps lightly between two looks, where the processor can */
} dml_wait_mode_t;

/* The data bytes that one integrity field protects. */
typedef enum {
    DML_DIF_BLOCK_SIZE_512 = 0,
    DML_DIF_BLOCK_SIZE_520 = 1,
    DML_DIF_BLOCK_SIZE_4096 = 2,
    DML_DIF_BLOCK_SIZE_4104 = 3
} dml_dif_block_size_t;

typedef enum {
    DML_OP_NOP = 0x00u,
    DML_OP_BATCH = 0x01u,
    DML_OP_DRAIN = 0x02u,
    DML_OP_MEM_MOVE = 0x03u,
    DML_OP_FILL = 0x04u,
    DML_OP_COMPARE = 0x05u,
    DML_OP_COMPARE_PATTERN = 0x06u,
    DML_OP_DELTA_CREATE = 0x07u,
    DML_OP_DELTA_APPLY = 0x08u,
    DML_OP_DUALCAST = 0x09u,
    DML_OP_CRC = 0x10u,
    DML_OP_COPY_CRC = 0x11u,
    DML_OP_DIF_CHECK = 0x12u,
    DML_OP_DIF_INSERT = 0x13u,
    DML_OP_DIF_STRIP = 0x14u,
    DML_OP_DIF_UPDATE = 0x15u,
    DML_OP_CACHE_FLUSH = 0x20u
} dml_operation_t;

/* What a function answers. A status without a comment is what its name says; the library does not use all of them. */
typedef enum {
    DML_STATUS_OK = 0u,
    DML_STATUS_FALSE_PREDICATE_OK = 1u, /* done; the checked result is not the expected one */
    DML_STATUS_BEING_PROCESSED = 2u,    /* dml_check_job: not done yet */
    DML_STATUS_INTERNAL_ERROR = 3u,     /* the device's status has no name here; a batch member was not executed */
    DML_STATUS_NULL_POINTER_ERROR = 4u,
    DML_STATUS_LIMITS_ERROR = 5u,
    DML_STATUS_PATH_ERROR = 6u, /* not a path */
    DML_STATUS_HINT_ERROR = 7u,
    DML_STATUS_CRC_ALIGN_ERROR = 8u,
    DML_STATUS_BATCH_ERROR = 9u,           /* a member of the batch did not succeed */
    DML_STATUS_DELTA_ASCENDT_ERROR = 10u,  /* DELTA_APPLY: an offset is not larger than the one before */
    DML_STATUS_DELTA_OFFSET_ERROR = 11u,   /* DELTA_APPLY: an offset is beyond the destination */
    DML_STATUS_DIF_CHECK_ERROR = 12u,      /* an integrity field does not match: see result and offset */
    DML_STATUS_JOB_OPERATION_ERROR = 13u,  /* unknown operation, or one that no queue offers */
    DML_STATUS_JOB_FLAGS_ERROR = 14u,      /* the device refuses a flag */
    DML_STATUS_JOB_LENGTH_ERROR = 15u,     /* a size is zero, not a multiple of the block, or beyond the limits of all queues */
    DML_STATUS_BATCH_LIMITS_ERROR = 16u,
    DML_STATUS_DELTA_RECORD_SIZE_ERROR = 17u,  /* not a multiple of 10, or less than 80 to create */
    DML_STATUS_OVERLAPPING_BUFFER_ERROR = 18u,
    DML_STATUS_DUALCAST_ALIGN_ERROR = 19u,     /* the destinations differ in bits 11:0 */
    DML_STATUS_DELTA_ALIGN_ERROR = 20u,        /* an address is not a multiple of 8 */
    DML_STATUS_DELTA_INPUT_SIZE_ERROR = 21u,   /* not a multiple of 8, or more than 0x80000 */
    DML_STATUS_MEMORY_OVERFLOW_ERROR = 22u,
    DML_STATUS_JOB_CORRUPTED = 23u,            /* the job was not initialised, or not submitted */
    DML_STATUS_WORK_QUEUE_OVERFLOW_ERROR = 24u,
    DML_STATUS_PAGE_FAULT_ERROR = 25u,
    DML_STATUS_TC_A_NOT_AVAILABLE = 26u,
    DML_STATUS_TC_B_NOT_AVAILABLE = 27u,
    DML_STATUS_BATCH_TASK_INDEX_OVERFLOW = 28u, /* the index is not smaller than the number of members */
    DML_STATUS_BATCH_SIZE_ERROR = 29u,          /* fewer members than DML_MIN_BATCH_SIZE */
    DML_STATUS_DRAIN_PAGE_FAULT_ERROR = 30u,
    DML_STATUS_UNKNOWN_CACHE_SIZE_ERROR = 31u,
    DML_STATUS_DIF_STRIP_ADJACENT_ERROR = 32u,  /* the destination ends at most 8 bytes per block below the source */
    DML_STATUS_INTL_INVALID_PAGE_REQUEST = 33u, /* 33 to 45: the device's own statuses */
    DML_STATUS_INTL_INVALID_RESERVED_FIELD = 34u,
    DML_STATUS_INTL_MISALIGNED_DESC_LA = 35u,
    DML_STATUS_INTL_INVALID_COMPLETION_HANDLE = 36u,
    DML_STATUS_INTL_PAGE_FAULT_ON_TRANSLATION = 37u,
    DML_STATUS_INTL_MISALIGNED_CR_ADDRESS = 38u,
    DML_STATUS_INTL_MISALIGNED_ADDRESS = 39u,
    DML_STATUS_INTL_PRIVILEGE_ERROR = 40u,
    DML_STATUS_INTL_TRAFFIC_CLASS_ERROR = 41u,
    DML_STATUS_INTL_READBACK_ADDRESS_PAGE_ERROR = 42u,
    DML_STATUS_INTL_HARDWARE_READBACK_TIMEOUT = 43u,
    DML_STATUS_INTL_HARDWARE_TIMEOUT = 44u, /* also: the device does not answer any more */
    DML_STATUS_INTL_ADDRESS_TRANSLATION_ERROR = 45u,
    DML_STATUS_NOT_SUPPORTED_BY_WQ = 46u,

    DML_STATUS_LIBACCEL_NOT_FOUND = (DML_BASE_DRIVER_ERROR + 0u), /* no queue can be used; see telpher_dml_last_error() */
    DML_STATUS_LIBACCEL_ERROR = (DML_BASE_DRIVER_ERROR + 1u),
    DML_STATUS_WORK_QUEUES_NOT_AVAILABLE = (DML_BASE_DRIVER_ERROR + 2u), /* every queue is full: try again */
    DML_STATUS_INIT_HW_NOT_SUPPORTED = (DML_BASE_DRIVER_ERROR + 3u)
} dml_status_t;

/* ---- Structures ----------------------------------------------------------------------------------------------------------- */

/* Each text ends in a zero byte. */
typedef struct {
    uint8_t name[30];
    uint8_t minimal_cpu_isa[16];
    uint8_t date[15];
    uint8_t version[20]; /* of the interface */
    uint8_t hw_minimal_version[30];
    uint8_t commit[12];
    uint32_t major;
    uint32_t minor;
    uint32_t patch;
} dml_library_version_t;

/* The integrity fields of source and destination. The bits of a mask are left out of the application tag. */
typedef struct {
    uint32_t flags; /* DML_DIF_FLAG_* */
    uint32_t source_reference_tag_seed;
    uint16_t source_application_tag_seed;
    uint16_t source_application_tag_mask;
    uint32_t destination_reference_tag_seed;
    uint16_t destination_application_tag_seed;
    uint16_t destination_application_tag_mask;
    dml_dif_block_size_t block_size;
} dml_dif_config_t;

/* A job. Its memory has the size that dml_get_job_size() writes. */
typedef struct {
    uint8_t *source_first_ptr;       /* source, first source, delta record to apply */
    uint8_t *source_second_ptr;      /* second source, reference */
    uint8_t *destination_first_ptr;  /* destination, batch buffer, delta record to create, readback address */
    uint8_t *destination_second_ptr; /* second destination, second readback address */
    uint32_t *crc_checksum_ptr;      /* CRC, in and out */
    uint32_t source_length;          /* bytes of the source; of a delta record to apply */
    uint32_t destination_length;     /* bytes to fill or flush, of the batch buffer, of the delta record: in and out */
    uint32_t offset;                 /* out: position of a difference, bytes done */
    uint8_t pattern[8];              /* FILL, COMPARE_PATTERN */
    dml_operation_t operation;
    dml_meta_result_t result;          /* out */
    dml_meta_result_t expected_result; /* with DML_FLAG_CHECK_RESULT */
    dml_operation_flags_t flags;
    dml_dif_config_t dif_config;
    uint32_t numa_id; /* the node of the device; all ones for any */
    dml_internal_data_t *internal_data_ptr;
} dml_job_t;

#ifdef __cplusplus
}
#endif

#endif /* DML_DEFS_H__ */
