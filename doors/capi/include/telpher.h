/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * telpher.h: move and transform memory without the CPU.
 *
 * Copies, fills, comparisons, checksums, deltas and data integrity fields, executed by a Data Streaming Accelerator,
 * by a software model of one, or by the CPU, whichever is available and faster. There are nine interfaces; each can
 * be used alone:
 *
 *   telpher_copy, telpher_run, ...     synchronous calls
 *   telpher_start, telpher_batch_*     jobs: continue meanwhile, poll or wait later; many threads, many queues
 *   telpher_channel_*                  poll mode: one thread, one queue, tickets; no call blocks or allocates
 *   telpher_grant_*, telpher_window_*  memory of one process that another one reads and writes
 *   telpher_durable_*                  files whose bytes survive
 *   telpher_cache_*                    blocks copied to faster memory ahead of time, and shared by many threads
 *   telpher_tier_*                     memory on several tiers (HBM, DDR, CXL); pages change tiers while the program runs
 *   telpher_vhost_*                    a virtual machine's network card, whose packets a switch in this process polls
 *   telpher_switch_*                   a whole switch between virtual machines, with threads of its own
 *
 *     telpher_device *device;
 *     telpher_mover *mover;
 *     if (telpher_device_open(&device, "model:spr", NULL) || telpher_mover_new(&mover, device, "threshold=16k"))
 *         return fprintf(stderr, "%s\n", telpher_last_error()), 1;
 *     telpher_copy(mover, dst, src, len);
 *     telpher_mover_free(mover);
 *     telpher_device_close(device);
 *
 *
 * RULES FOR ALL FUNCTIONS
 *
 * Return values. Functions that return int return 0, a count, or 1/0 on success, and a negative errno on failure,
 * for example -EINVAL. telpher_last_error() then has the message. Every function checks for NULL first: NULL gives
 * -EFAULT unless it is documented as allowed. Every function may return -ENOTRECOVERABLE: a bug in telpher. If
 * memory runs out the process ends with abort().
 *
 * Handles. A function that creates a handle writes it to its out parameter, or NULL if it fails. The caller owns the
 * handle and frees it once with the function named there, which also accepts NULL. Handles are independent: a mover
 * stays valid when its device is closed; jobs, caches and heaps when their mover is freed; an entry when its cache
 * is freed; an arena when its heap is freed.
 *
 * Threads. "Any thread, any time": several threads may call the function on one handle at once. "One thread at a
 * time": the handle may be passed from thread to thread, but two calls on it must not overlap; this applies to jobs,
 * batches and channels. A function that frees a handle must be the last call on it.
 *
 * Texts are UTF-8 and end with a zero byte. Returned texts belong to the library.
 *
 *
 * WHAT MUST STAY ALIVE BETWEEN SUBMIT AND COMPLETE
 *
 * A device reads and writes the caller's memory while the program continues. The ranges of an operation are
 * therefore lent, from the call that submits the operation until its end is reported. While a range is lent it stays
 * mapped at its address, no code writes the sources, and no code reads or writes the destinations. The end is
 * reported when
 *
 *   telpher_copy, telpher_run and similar      the function returns (but see -ETIMEDOUT below);
 *   a job                                      telpher_job_done or telpher_job_wait returns 1, telpher_job_free returns,
 *                                              or telpher_mover_ended reports it;
 *   an abandoned job                           telpher_mover_outstanding returns 0 afterwards;
 *   a channel's operation                      telpher_channel_completed returns its completion;
 *   anything that ended with -ETIMEDOUT        telpher_mover_outstanding (telpher_channel_quarantined) returns 0 afterwards:
 *                                              the device has not answered, and may still write until it does;
 *   a packet                                   see "virtual machines" below: a port owns it until it returns it;
 *   granted memory                             see "windows" below: until it is revoked;
 *   a block of a cache                         see "caches" below: a cache may read it until it is invalidated.
 *
 * The telpher_op structure itself, its telpher_result, and texts are accessed only during the call. Members of a
 * batch, and operations in flight at the same time, may share sources. A range that one operation writes must not be
 * used by another one unless a fence separates them.
 *
 * Forks. The child may keep using its copies of movers, jobs and channels. It uses none of its parent's queues: the
 * CPU finishes the operations in flight and executes all later ones. The child can open queues of its own. While the
 * process forks, no other thread may be in a function of the same job, batch, channel, cache or entry. The descriptor of
 * telpher_mover_fd stays the parent's: in the child, jobs are polled or waited for. A fork waits 5 ms at most for the
 * thread behind it; a job with which that thread is occupied for longer never ends in the child.
 *
 * Signal handlers may call telpher_copy with valid arguments, whatever they interrupt. The other functions allocate
 * memory.
 *
 * These rules do not allow memory that other programs change at the same time (a guest's or another process's),
 * because the CPU may execute or finish an operation. Use telpher_channel_raw for such memory.
 */
#ifndef TELPHER_H
#define TELPHER_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; telpher_version_number() is the version of the library. Within a soname, functions,
 * keys and numbers are added and never changed. */
#define TELPHER_VERSION_MAJOR 0
#define TELPHER_VERSION_MINOR 1
#define TELPHER_VERSION_PATCH 0
#define TELPHER_VERSION_NUMBER (TELPHER_VERSION_MAJOR << 16 | TELPHER_VERSION_MINOR << 8 | TELPHER_VERSION_PATCH)

#ifndef TELPHER_API
#define TELPHER_API
#endif

/* The queues of an opened device. */
typedef struct telpher_device telpher_device;
/* Decides which queue or the CPU executes an operation, and executes it. */
typedef struct telpher_mover telpher_mover;
/* An operation or a batch in flight, then its results. */
typedef struct telpher_job telpher_job;
/* A list of operations being built. */
typedef struct telpher_batch telpher_batch;
/* One thread's access to one queue. */
typedef struct telpher_channel telpher_channel;
/* Copies of blocks in fast memory. */
typedef struct telpher_cache telpher_cache;
/* Memory of this process that other processes access. */
typedef struct telpher_grant telpher_grant;
/* Memory that another process has granted. */
typedef struct telpher_window telpher_window;
/* A file whose bytes survive. */
typedef struct telpher_durable telpher_durable;
/* A handle to an entry of a cache: a block, with or without its copy. */
typedef struct telpher_entry telpher_entry;
/* A block that was requested ahead of time. */
typedef struct telpher_prefetch telpher_prefetch;
/* Bytes that change, and their version. */
typedef struct telpher_versioned telpher_versioned;
/* Access of a reader to such bytes, which do not change meanwhile. */
typedef struct telpher_reading telpher_reading;
/* Access of a writer to such bytes, which no reader has meanwhile. */
typedef struct telpher_writing telpher_writing;
/* Memory from which blocks for writing are lent. */
typedef struct telpher_pool telpher_pool;
/* A block that is modified in fast memory and copied back. */
typedef struct telpher_write_back telpher_write_back;
/* Memory on several tiers. */
typedef struct telpher_tier_heap telpher_tier_heap;
/* A range of a heap's memory. */
typedef struct telpher_tier_arena telpher_tier_arena;
/* A thread that finds hot and cold pages of a heap and moves them. */
typedef struct telpher_tier_manager telpher_tier_manager;
/* Memory for packets. */
typedef struct telpher_vhost_pool telpher_vhost_pool;
/* One queue of a device for packet copies, shared by virtqueues. */
typedef struct telpher_vhost_dma_queue telpher_vhost_dma_queue;
/* The virtqueues of one frontend at a time. */
typedef struct telpher_vhost_port telpher_vhost_port;
/* The socket of a port, to which its frontends connect. */
typedef struct telpher_vhost_socket telpher_vhost_socket;
/* A packet switch between virtual machines, and its threads. */
typedef struct telpher_switch telpher_switch;


/* ------------------------------------------------------------------------------------------------ operations */

/* Operations, and the fields of telpher_op that each uses. "len" is the length of every buffer named unless stated
 * otherwise. The low byte is the device's own code (SPEC Table 8-2). SPEC is Intel's Data Streaming Accelerator
 * Architecture Specification. */
typedef enum telpher_opcode {
    TELPHER_NOP = 0x00,             /* nothing; after a fence it shows that everything before has succeeded */
    TELPHER_DRAIN = 0x02,           /* ends when everything that the queues accepted before has ended; not in batches */
    TELPHER_COPY = 0x03,            /* src to dst, len; they must not overlap */
    TELPHER_FILL = 0x04,            /* dst, len, pattern[0]: its 8 bytes repeated, lowest first */
    TELPHER_COMPARE = 0x05,         /* src with src2, len */
    TELPHER_COMPARE_PATTERN = 0x06, /* src, len, with pattern[0] repeated */
    TELPHER_CREATE_DELTA = 0x07,    /* the changes from src to src2, len (a multiple of 8, at most 512 KiB), to dst, dst_len */
    TELPHER_APPLY_DELTA = 0x08,     /* the record src, len (a multiple of 10), to dst, dst_len (a multiple of 8) */
    TELPHER_DUALCAST = 0x09,        /* src to dst and dst2, len */
    TELPHER_CRC = 0x10,             /* CRC32C of src, len, continued from seed (0 to start) */
    TELPHER_COPY_CRC = 0x11,        /* src to dst, len, and the CRC32C */
    TELPHER_DIF_CHECK = 0x12,       /* src, len: blocks with tuples; dif, tags */
    TELPHER_DIF_INSERT = 0x13,      /* src, len: blocks; dst, dst_len: blocks with tuples; dif, tags (of the new tuples) */
    TELPHER_DIF_STRIP = 0x14,       /* src, len: blocks with tuples; dst, dst_len: blocks; dif, tags (expected) */
    TELPHER_DIF_UPDATE = 0x15,      /* src, len and dst, dst_len: blocks with tuples; dif, tags, new_tags */
    TELPHER_DIX_GENERATE = 0x17,    /* src, len: blocks; dst, dst_len: their tuples; dif, tags (of the new tuples) */
    TELPHER_CONVERT = 0x18,         /* the numbers of src, len, to those of dst, dst_len; arithmetic */
    TELPHER_REDUCE = 0x19,          /* the numbers of src and src2, len, to those of dst, dst_len; arithmetic */
    TELPHER_REDUCE_DUALCAST = 0x1a, /* the same to dst and dst2, dst_len */
    TELPHER_GATHER_REDUCE = 0x1b,   /* all blocks of src, len, that the list src2, src2_len, names, to one of dst, dst_len;
                                     * block, arithmetic */
    TELPHER_GATHER = 0x1c,          /* the blocks of src, len, that the list src2, src2_len, names, to dst, dst_len; block */
    TELPHER_SCATTER = 0x1d,         /* src, len, to the blocks of dst, dst_len, that the list src2, src2_len, names; block */
    TELPHER_SCATTER_FILL = 0x1e,    /* the blocks of dst, dst_len, that the list src, len, names; pattern[0], block */
    TELPHER_PREFETCH_PAGES = 0x0a,  /* brings the pages of src, len in, and asks a device for their translations */
    TELPHER_FLUSH = 0x20,           /* flushes the cache lines of src, len */
    TELPHER_MOVE = 0x103,           /* src to dst, len; they may overlap, as with memmove */
    TELPHER_FILL16 = 0x104,         /* dst, len, pattern: its 16 bytes repeated */
    TELPHER_CRC64 = 0x110,          /* the CRC of 64 bits that NVMe uses of src, len, continued from pattern[0] (0 to start) */
    TELPHER_COPY_CRC64 = 0x111,     /* src to dst, len, and that CRC */
    TELPHER_COPY_DURABLE = 0x203    /* src to dst, len; ends when the bytes are in memory and not only in a cache, so that those
                                     * of persistent memory are durable. They must not overlap */
} telpher_opcode;

/* Flags of an operation. Batch flags have no effect outside of batches. */
typedef enum telpher_flag {
    TELPHER_FENCE = 0x1,                      /* batch: starts after all members before it have succeeded */
    TELPHER_EXPECT_EQUAL = 0x2,               /* batch, compare: a difference fails the next fence */
    TELPHER_EXPECT_DIFFERENT = 0x4,           /* batch, compare: equality fails the next fence */
    TELPHER_CRC_BYPASS_INVERT_REFLECT = 0x8,  /* neither invert nor reflect seed and result (SPEC 8.3.12) */
    TELPHER_CRC_BYPASS_DATA_REFLECT = 0x10,   /* do not reflect the data bytes */
    TELPHER_LIST_INDEX32 = 0x20,              /* a list has 32-bit indexes of blocks; without a flag, 64-bit offsets in bytes */
    TELPHER_LIST_INDEX64 = 0x40               /* a list has 64-bit indexes of blocks */
} telpher_flag;

/* Types of numbers. All are little-endian. */
typedef enum telpher_type {
    TELPHER_INT8 = 0,
    TELPHER_INT16 = 1,
    TELPHER_INT32 = 2,
    TELPHER_INT64 = 3,
    TELPHER_FP8_E5M2 = 4, /* 5 exponent and 2 fraction bits */
    TELPHER_FP8_E4M3 = 5, /* 4 exponent and 3 fraction bits; no infinity */
    TELPHER_FP16 = 6,
    TELPHER_BF16 = 7,     /* the upper half of FP32 */
    TELPHER_FP32 = 8,
    TELPHER_FP64 = 9
} telpher_type;

/* How two numbers become one. */
typedef enum telpher_compute {
    TELPHER_ADD = 1,
    TELPHER_AND = 3, /* and, or, xor: integers only */
    TELPHER_OR = 4,
    TELPHER_XOR = 5,
    TELPHER_MIN = 6,
    TELPHER_MAX = 7
} telpher_compute;

/* Options of arithmetic. Options without a meaning for the types have no effect. */
typedef enum telpher_arithmetic_flag {
    TELPHER_NEGATE_1 = 0x1,            /* negate the numbers of src, and of all blocks of a list */
    TELPHER_NEGATE_2 = 0x2,            /* negate the numbers of src2 */
    TELPHER_FLUSH_TO_ZERO = 0x4,       /* a floating-point result below the normal range becomes zero */
    TELPHER_DENORMALS_ARE_ZERO = 0x8,  /* a floating-point operand below the normal range counts as zero */
    TELPHER_SIGNED = 0x10,             /* integers are signed */
    TELPHER_SATURATE = 0x20,           /* an integer result out of range becomes the nearest in range; else it wraps */
    TELPHER_ROUND_DOWN = 0x40,         /* toward minus infinity; without one of these to nearest, ties to even */
    TELPHER_ROUND_UP = 0x80,           /* toward plus infinity */
    TELPHER_ROUND_TOWARD_ZERO = 0xc0
} telpher_arithmetic_flag;

/* What happened to any of the numbers: bits of telpher_result's device_status. */
typedef enum telpher_exception {
    TELPHER_INVALID = 0x1,  /* a result is not a number */
    TELPHER_DENORMAL = 0x2, /* an operand was below the normal range */
    TELPHER_OVERFLOW = 0x4, /* a result was out of the type's range */
    TELPHER_UNDERFLOW = 0x8 /* a result was below the normal range */
} telpher_exception;

/* Types and options of a conversion or computation. Types are both integers or both floating point. */
typedef struct telpher_arithmetic {
    uint8_t input;   /* enum telpher_type: the sources */
    uint8_t output;  /* enum telpher_type: the results */
    uint8_t compute; /* enum telpher_compute; ignored by conversions */
    uint8_t flags;   /* enum telpher_arithmetic_flag */
} telpher_arithmetic;

/* Settings of a DIF operation (SPEC 8.3.17): each block is followed by an 8-byte tuple of guard, application tag and
 * reference tag. */
typedef struct telpher_dif {
    uint8_t block;  /* bytes of a block: 0 is 512, 1 is 520, 2 is 4096, 3 is 4104 */
    uint8_t flags;  /* the guard: 0x4 invert the CRC's seed, 0x8 invert its result */
    uint8_t source; /* source tuples: 0x1 all-F error, 0x2 all-F detect, 0x4 app-F detect, 0x8 app-and-ref-F detect,
                     * 0x10 app tag increments, 0x20 no guard check, 0x40 no ref tag check, 0x80 ref tag is fixed */
    uint8_t dest;   /* new tuples: 0x8 pass the app tag, 0x10 app tag increments, 0x20 pass the guard, 0x40 pass the ref tag,
                     * 0x80 ref tag is fixed */
} telpher_dif;

/* Tags of the first block of a DIF operation. */
typedef struct telpher_tags {
    uint32_t ref_tag;
    uint16_t app_tag;
    uint16_t app_mask; /* bits set here are not checked, and are 0 in new tuples */
} telpher_tags;

/* One operation. Create it with a telpher_op_* function below, or start with zeros: fields that an operation does
 * not name are ignored, reserved fields must be zero. A length of 0 is refused, as by devices. */
typedef struct telpher_op {
    uint32_t opcode;       /* enum telpher_opcode */
    uint32_t flags;        /* enum telpher_flag */
    uint64_t user_data;    /* returned with a channel's completion */
    const void *src;
    const void *src2;
    void *dst;
    void *dst2;
    uint64_t len;          /* bytes */
    uint64_t dst_len;      /* bytes of dst, if it has its own length */
    uint64_t pattern[2];
    uint32_t seed;
    telpher_dif dif;
    telpher_tags tags;
    telpher_tags new_tags;
    telpher_arithmetic arithmetic;
    uint32_t block;        /* bytes of each block that a list names */
    uint64_t src2_len;     /* bytes of src2, if it has its own length */
    uint64_t reserved[1];
} telpher_op;


/* ------------------------------------------------------------------------------------------------ results */

/* The outcome of an operation. A difference or a tag mismatch is an outcome, not a failure. */
typedef enum telpher_outcome {
    TELPHER_FAILED = 0,          /* status is negative; see error */
    TELPHER_DONE = 1,
    TELPHER_EQUAL = 2,
    TELPHER_DIFFERENT = 3,       /* at: offset of the first byte that differs */
    TELPHER_CRC_VALUE = 4,       /* crc */
    TELPHER_DELTA_IDENTICAL = 5, /* nothing was written */
    TELPHER_DELTA_COMPLETE = 6,  /* bytes: length of the record */
    TELPHER_DELTA_OVERFLOW = 7,  /* the record is full after bytes and must not be applied; at: source bytes compared */
    TELPHER_DIF_DONE = 8,        /* tags, new_tags: the tags of the block after the last */
    TELPHER_DIF_MISMATCH = 9,    /* at: offset of the block in the source; device_status: what does not match */
    TELPHER_CRC64_VALUE = 10,    /* crc64 */
    TELPHER_COMPUTED = 11        /* device_status: bits of enum telpher_exception */
} telpher_outcome;

/* What executed the operation. */
typedef enum telpher_via {
    TELPHER_VIA_CPU = 1,
    TELPHER_VIA_DEVICE = 2,
    TELPHER_VIA_BOTH = 3 /* a device started, the CPU finished */
} telpher_via;

/* Kinds of failure, with their errno and the fields of telpher_result that belong to them. */
typedef enum telpher_error {
    TELPHER_ERROR_NONE = 0,
    TELPHER_ERROR_ARGUMENT = 1,     /* EFAULT: NULL. EOVERFLOW: beyond the address space. EMSGSIZE: too long. EINVAL: others */
    TELPHER_ERROR_LENGTHS = 2,      /* EINVAL: at and bytes are lengths that do not agree */
    TELPHER_ERROR_UNIT = 3,         /* EINVAL: at is a length that is not a multiple of bytes */
    TELPHER_ERROR_TOO_LONG = 4,     /* EMSGSIZE: at is a length, bytes the most that opcode can express */
    TELPHER_ERROR_BAD_DELTA = 5,    /* EBADMSG: the record is invalid from byte at on; device_status */
    TELPHER_ERROR_FAULT = 6,        /* EFAULT: a page fault at address, a write if write is 1, after bytes; the system refused
                                     * the page (on-fault=block), or the CPU may not continue (telpher_channel_raw) */
    TELPHER_ERROR_QUEUE_FULL = 7,   /* EBUSY: all queues were full in each of at attempts, and the CPU cannot execute it */
    TELPHER_ERROR_REFUSED = 8,      /* EIO: the device ended opcode with device_status, and the CPU cannot execute it */
    TELPHER_ERROR_UNSUPPORTED = 9,  /* EOPNOTSUPP: no queue offers opcode, and the CPU has no equivalent */
    TELPHER_ERROR_NONSENSE = 10,    /* EPROTO: the device's record contradicts its descriptor */
    TELPHER_ERROR_ABANDONED = 11,   /* ECANCELED: after a fence, because member at did not succeed */
    TELPHER_ERROR_DEADLINE = 12,    /* ETIMEDOUT: no answer within at nanoseconds; the ranges are still lent, see above */
    TELPHER_ERROR_STOPPED = 13,     /* ENODEV: the queue stopped (halted, disabled, reset, belongs to the parent of a fork)
                                     * during opcode, which cannot be repeated: an overlapping move, a raw descriptor */
    TELPHER_ERROR_OPTIONS = 14,     /* EINVAL: opcode does not have these types or options */
    TELPHER_ERROR_OUTSIDE = 15,     /* EINVAL: entry at of a list names a block that ends outside of the memory: address is
                                     * its offset, bytes the length of the memory */
    TELPHER_ERROR_OTHER = 255       /* an error without a number in this version of the header; see telpher_last_error */
} telpher_error;

/* The result of an operation. Fields that the outcome or error does not name are 0. */
typedef struct telpher_result {
    int32_t status;         /* 0, or a negative errno */
    uint32_t outcome;       /* enum telpher_outcome */
    uint32_t via;           /* enum telpher_via; 0 if nothing was started */
    uint32_t error;         /* enum telpher_error */
    uint32_t opcode;        /* the device's code of the operation that an error is about */
    uint32_t device_status; /* SPEC Table 5-5, without the direction bit; for DIF_MISMATCH the bits of SPEC Table 5-8; for
                             * COMPUTED enum telpher_exception */
    uint32_t crc;
    uint32_t write;         /* 1 if a page fault was on a write */
    uint64_t at;
    uint64_t bytes;
    uint64_t address;
    telpher_tags tags;
    telpher_tags new_tags;
    uint64_t crc64;
    uint64_t reserved[2];
} telpher_result;

/* A completed operation of a channel. */
typedef struct telpher_completion {
    uint64_t ticket;        /* from telpher_channel_put */
    uint64_t user_data;     /* from the operation */
    telpher_result result;
    uint8_t record[32];     /* the device's last completion record, if has_record */
    uint32_t has_record;
    uint32_t reserved;
} telpher_completion;

/* The properties of a queue. */
typedef struct telpher_queue_info {
    char name[32];            /* "wq0.1" */
    uint32_t dedicated;       /* 1: one mover or channel at a time, which telpher enforces; 0: shared by any number */
    uint32_t size;            /* operations that may be in flight */
    uint64_t max_transfer;    /* longest transfer of one descriptor in bytes; longer operations are split */
    uint32_t max_batch;       /* descriptors in a batch; 1 or less if batches are not supported */
    uint32_t block_on_fault;  /* 1 if the option on-fault=block is supported */
    int32_t numa_node;        /* -1 if unknown */
    uint32_t reserved;
    uint64_t operations;      /* bit n is set if the queue supports the operation with device code n; the CPU executes
                               * operations that no queue supports, except TELPHER_DRAIN */
    uint64_t reserved2[3];
} telpher_queue_info;


/* ------------------------------------------------------------------------------------------------ cache types */

/* Flags of a tier. */
typedef enum telpher_tier_flag {
    TELPHER_TIER_ON_NODE = 0x1,    /* its pages are on NUMA node node, and nowhere else */
    TELPHER_TIER_NEAR = 0x2,       /* it is for threads of NUMA node near_node (option placement=near) */
    TELPHER_TIER_HUGE_PAGES = 0x4, /* pages of 2 MiB where the system has them, otherwise small ones */
    TELPHER_TIER_ABSENT = 0x8      /* its pages are allocated when first written; otherwise all are allocated at once */
} telpher_tier_flag;

/* Fast memory of one kind: either size bytes of pages that the cache allocates, or functions that obtain and release
 * memory. With functions, the cache holds at most size bytes at a time, or has no limit if size is 0, and only the
 * flag TELPHER_TIER_NEAR is allowed. Start with zeros.
 *
 * obtain returns len bytes, mapped, writable and used by no other code, or NULL if there are none left. After NULL
 * the cache evicts unused entries and calls obtain again. release takes back what obtain(len) returned. Both receive
 * user. Any thread may call them, several at once, from within any function of the cache, its entries and its mover;
 * they must not call any of those functions. They must return: no longjmp may leave them, and an exception that
 * leaves them ends the program. len is never 0. An alignment of 64 bytes is best, but none is required. They are
 * called as long as the cache or one of its entries exists, or telpher_mover_outstanding is not 0: memory obtained
 * for a copy is released when no device uses it. */
typedef struct telpher_tier {
    uint64_t size;
    uint32_t flags;     /* enum telpher_tier_flag */
    uint32_t node;
    uint32_t near_node;
    uint32_t reserved;
    void *(*obtain)(void *user, size_t len);
    void (*release)(void *user, void *start, size_t len);
    void *user;
    uint64_t reserved2[3];
} telpher_tier;

/* How telpher_write_back_sync finds the bytes to copy back, page by page. */
typedef enum telpher_find {
    TELPHER_FIND_WRITTEN = 0,   /* the pages announced for writing since the last sync */
    TELPHER_FIND_DIFFERING = 1, /* of these, the pages that differ: for memory that is slow to write, or wears out */
    TELPHER_FIND_ANYWHERE = 2   /* all pages that differ, also where other code has changed the home since */
} telpher_find;

/* What a sync did. */
typedef struct telpher_synced {
    uint64_t compared; /* bytes that were compared */
    uint64_t copied;   /* bytes that were copied back */
    uint64_t reserved[2];
} telpher_synced;

/* What a policy gets to know about an unused entry. */
typedef struct telpher_resident {
    const void *address; /* the start of its source */
    uint64_t size;       /* bytes */
    uint32_t age;        /* how many entries were added since it was last used, or added itself */
    uint32_t unread;     /* 1 if it was prefetched and not used yet */
    uint64_t reserved[2];
} telpher_resident;

/* Policies of the caller; where a function is NULL the options decide. Start with zeros. The rules for obtain and
 * release apply to both functions, except that they are called until telpher_cache_free has returned 0. The mover's
 * policy (options route, split, queues) decides which devices copy.
 *
 * place returns the number (from 0) of the tier in which a block is searched and placed; numbers that are too large
 * mean the last tier. It is called for every access, peek and prefetch; node is the NUMA node of the calling thread,
 * -1 if unknown.
 *
 * worth returns the value of an unused entry when memory is needed: the entry with the lowest value is evicted
 * first, and unread entries after all others. */
typedef struct telpher_cache_policy {
    uint32_t (*place)(void *user, const void *start, size_t len, int32_t node);
    uint64_t (*worth)(void *user, const telpher_resident *entry);
    void *user;
    uint64_t reserved[5];
} telpher_cache_policy;

/* Counters and state of a cache. Each number is correct for some moment during the call. */
typedef struct telpher_stats {
    uint64_t hits;          /* accesses that found an entry, with its copy complete or in flight */
    uint64_t misses;        /* accesses that found no entry */
    uint64_t weak_misses;   /* misses of telpher_cache_peek, included in misses */
    uint64_t prefetches;    /* blocks prefetched */
    uint64_t cancelled;     /* prefetches cancelled before their copy started */
    uint64_t copies;        /* successful copies */
    uint64_t bytes_copied;  /* bytes of these copies */
    uint64_t fallbacks;     /* blocks that stayed in their source: no memory was free, or the copy failed */
    uint64_t evictions;     /* entries removed because memory was needed */
    uint64_t invalidations; /* entries that were invalidated */
    uint64_t entries;       /* entries in the cache */
    uint64_t in_flight;     /* copies in flight */
    uint64_t waiting;       /* requested blocks whose copy has not started */
    uint64_t bytes;         /* bytes of the tiers in use: by entries, copies in flight, and handles of removed entries */
    uint64_t reserved[4];
} telpher_stats;


/* ------------------------------------------------------------------------------------------------ tier types */

/* One kind of memory of a heap. Start with zeros. */
typedef struct telpher_tier_options {
    const char *name;  /* a name for people; NULL: its number */
    uint64_t size;     /* the most bytes that the heap uses of it: pages there, and free pages kept for later moves. The heap
                        * does not limit the home tier */
    uint32_t flags;    /* TELPHER_TIER_ON_NODE; otherwise the system chooses the node, as on a machine with one node.
                        * TELPHER_TIER_HUGE_PAGES: shared arenas use reserved pages there (vm.nr_hugepages) */
    uint32_t node;     /* the NUMA node, with TELPHER_TIER_ON_NODE */
    const char *path;  /* the memory of shared arenas: a memory device (device-DAX, "/dev/dax0.0"), or a file in memory; for
                        * one arena at a time. NULL: the system's pages */
    uint64_t reserved[4];
} telpher_tier_options;

/* The state of a tier. Pages are of 4 KiB. */
typedef struct telpher_tier_info {
    char name[32];       /* truncated to fit, with the zero byte; telpher_tier_name returns all of it */
    uint64_t size;       /* as given at creation */
    uint64_t free_pages; /* free pages that the heap keeps */
    uint64_t old_copies; /* old copies of pages that are kept, see the option shadow */
    int32_t node;        /* -1: chosen by the system */
    uint32_t home;       /* 1 if this is the home tier, on which pages are when first touched */
    uint64_t reserved[4];
} telpher_tier_info;

/* The result of moving pages. Numbers of pages of 4 KiB: pages that moved, and pages that stayed, by reason. */
typedef struct telpher_tier_moved {
    uint64_t pages;       /* moved */
    uint64_t huge;        /* of these, parts of huge pages that were moved as a whole */
    uint64_t already;     /* stayed: they are on the tier already */
    uint64_t pinned;      /* stayed: pinned by a device or io_uring, or shared with a process that does not release them */
    uint64_t unsupported; /* stayed: their mapping is locked, has unusual protection, or is only part of a unit */
    uint64_t gone;        /* unmapped during the call */
    uint64_t no_room;     /* stayed: the tier is full, or its node has no free memory or no huge page */
    uint64_t failed;      /* stayed: their copy failed */
    uint64_t held;        /* stayed: a debugger or other tracer could not read a page while it is being moved */
    uint64_t reserved[3];
} telpher_tier_moved;

/* The counters of a heap. Each number is correct for some moment during the call. */
typedef struct telpher_tier_stats {
    telpher_tier_moved moved; /* the sum over all calls */
    uint64_t not_copied;      /* pages that returned to their old copy, because they were not written since */
    uint64_t exchanges;       /* how often pages were taken out and brought back */
    uint64_t dropped;         /* pages that were discarded or unmapped while being moved */
    uint64_t copied_back;     /* pages whose mapping changed meanwhile: the kernel copied them to the home tier */
    uint64_t fills;           /* page faults that were answered with empty pages */
    uint64_t forks;           /* forks noticed */
    uint64_t copied_to_children; /* pages being moved that were copied to forked children */
    uint64_t misreported;     /* how often the kernel reported pages as not moved that had moved */
    uint64_t returned_early;  /* pages that the moving thread touched itself; it should touch none */
    uint64_t lost;            /* pages whose bytes were lost; not 0 is a bug, also reported on standard error */
    uint64_t moving_ns;       /* time spent moving for all callers, without shared arenas */
    uint64_t copying_ns;      /* of that, the copies, which a device could make */
    uint64_t reserved[4];
} telpher_tier_stats;

/* What a manager has found and done since it was started. Arrays have one number per tier. */
typedef struct telpher_tier_report {
    uint64_t time_ns;    /* time since its start */
    uint64_t promoted;   /* pages moved to a faster tier */
    uint64_t demoted;    /* pages moved to a slower tier */
    uint64_t stayed;     /* pages that should have moved, but stayed */
    uint64_t waiting;    /* moves decided and not made yet */
    uint64_t looking_ns; /* core time for finding hot pages and deciding */
    uint64_t moving_ns;  /* core time for moving */
    uint32_t resting;    /* 1 while moves are paused, because pages moved back before their moves had paid off */
    uint32_t failed;     /* 1 if its thread has ended because of a bug */
    uint64_t pages[8];   /* pages on each tier */
    uint64_t hot[8];     /* of these, hot */
    uint64_t reserved[8];
} telpher_tier_report;

/* What a program knows about the use of some of its memory. */
typedef enum telpher_tier_advice {
    TELPHER_TIER_HOT = 1,  /* it will be used a lot: hot until measured otherwise */
    TELPHER_TIER_COLD = 2, /* it will not be used for a while: cold until measured otherwise */
    TELPHER_TIER_PIN = 3,  /* it belongs on a tier, and stays there whatever is measured */
    TELPHER_TIER_UNPIN = 4 /* it is no longer pinned to a tier */
} telpher_tier_advice;

/* Flags of an arena, at most one. */
typedef enum telpher_tier_arena_flag {
    TELPHER_TIER_ARENA_HUGE_PAGES = 0x1, /* pages of 2 MiB, if the system has them, allocated at once */
    TELPHER_TIER_ARENA_SHARED = 0x2      /* shared file mappings, for data that cannot be private: see telpher_tier_arena_new */
} telpher_tier_arena_flag;

/* The mechanism by which pages change tiers. */
typedef enum telpher_tier_mechanism {
    TELPHER_TIER_EXCHANGE = 1,   /* UFFDIO_MOVE out, a copy by the mover, UFFDIO_MOVE in: Linux 6.8, and a userfaultfd */
    TELPHER_TIER_MOVE_PAGES = 2, /* move_pages(2), the kernel copies: each tier is a NUMA node of its own */
    TELPHER_TIER_REMAP = 3,      /* write protection, a copy, another mapping: used by shared arenas, never by a heap */
    TELPHER_TIER_OTHER_WAY = 255 /* a mechanism without a number in this version of the header */
} telpher_tier_mechanism;


/* ------------------------------------------------------------------------------------------------ virtual machine types */

/* A detached packet: 16 bytes of plain data, which may be copied and kept in any number. The caller may change data
 * and len: the packet may lie anywhere in its buffer. The buffer has 128 bytes before the default start of packets,
 * and from there as many bytes as the pool's longest packet. id must not be changed, and is never 0. */
typedef struct telpher_packet {
    void *data;   /* the first byte */
    uint32_t len; /* bytes */
    uint32_t id;  /* the buffer and its generation */
} telpher_packet;

/* The options of one virtqueue. Start with zeros: the polling thread makes all copies. */
typedef struct telpher_vhost_queue {
    telpher_vhost_dma_queue *const *dma_queues; /* the DMA queues for its copies; the first free one is used; NULL for none */
    uint32_t dma_queue_count;
    uint32_t device_from;             /* packets of at least this many bytes use a DMA queue: 0 all, UINT32_MAX none */
    uint32_t in_flight;               /* most packets in flight; 0 means 1024 */
    uint32_t reserved;
    uint64_t reserved2[3];
} telpher_vhost_queue;

/* Which side listens and which connects. */
typedef enum telpher_vhost_role {
    TELPHER_VHOST_SERVER = 0, /* this side listens, the frontend connects */
    TELPHER_VHOST_CLIENT = 1  /* the frontend listens; this side connects, and retries every 100 ms while disconnected */
} telpher_vhost_role;

/* Why nothing is taken from a virtqueue until its frontend sets it up again. */
typedef enum telpher_vhost_why {
    TELPHER_VHOST_WHOLE = 0,   /* it is intact */
    TELPHER_VHOST_AHEAD = 1,   /* the driver made more chains available than the ring can hold */
    TELPHER_VHOST_HEAD = 2,    /* the driver made a chain available that starts outside the descriptor table */
    TELPHER_VHOST_TORN = 3,    /* a file of the guest's memory became shorter than announced */
    TELPHER_VHOST_SILENT = 4,  /* the DMA queue with its copies reports that it works, but completed none for seconds */
    TELPHER_VHOST_BROKEN = 255 /* a reason without a number in this version of the header; see telpher_vhost_broken */
} telpher_vhost_why;

/* Why a packet, or a chain of the guest's without a packet, was dropped. */
typedef enum telpher_vhost_drop {
    TELPHER_VHOST_DROP_NEXT = 0,      /* a descriptor's next index is beyond its table */
    TELPHER_VHOST_DROP_LOOP = 1,      /* a chain has more descriptors than its ring, or more pieces than are followed */
    TELPHER_VHOST_DROP_DIRECTION = 2, /* a readable buffer where the device writes, or the reverse */
    TELPHER_VHOST_DROP_ADDRESS = 3,   /* a buffer is not in the guest's memory */
    TELPHER_VHOST_DROP_LENGTH = 4,    /* a chain's length does not fit in 32 bits */
    TELPHER_VHOST_DROP_INDIRECT = 5,  /* an indirect table is not allowed here */
    TELPHER_VHOST_DROP_TABLE = 6,     /* an indirect table has an invalid length or address */
    TELPHER_VHOST_DROP_RUNT = 7,      /* a chain is shorter than the net header */
    TELPHER_VHOST_DROP_LONG = 8,      /* a packet is longer than the pool's buffers */
    TELPHER_VHOST_DROP_SHORT = 9,     /* a packet does not fit the buffer of a guest that does not merge buffers */
    TELPHER_VHOST_DROP_SILENT = 10    /* it was in flight when its virtqueue stopped, and its DMA queue did not complete it */
} telpher_vhost_drop;

/* The state of a virtqueue. */
typedef struct telpher_vhost_state {
    uint32_t frontend;  /* 1 if a frontend is connected */
    uint32_t running;   /* 1 if the virtqueue runs and is enabled */
    uint32_t broken;    /* enum telpher_vhost_why */
    uint32_t size;      /* descriptors; 0 if it does not run */
    uint64_t features;  /* negotiated features, bit n as in VirtIO 1.2 section 5.1.3 and chapter 6; 0 if it does not run */
    uint64_t in_flight; /* packets */
    uint64_t reserved[4];
} telpher_vhost_state;

/* The counters of a virtqueue, over all frontends of its port. */
typedef struct telpher_vhost_stats {
    uint64_t packets;       /* packets that got through */
    uint64_t bytes;         /* their bytes, without net headers */
    uint64_t by_device;       /* packets whose copies were handed to a DMA queue */
    uint64_t bytes_by_device; /* their bytes */
    uint64_t calls;         /* how often the driver was called */
    uint64_t drops[16];     /* dropped packets, indexed by enum telpher_vhost_drop */
    uint64_t reserved[3];
} telpher_vhost_stats;

/* The counters of a DMA queue. */
typedef struct telpher_vhost_dma_queue_stats {
    uint64_t copies;    /* copies that the queue made: one per memory region that a packet spans */
    uint64_t bytes;     /* their bytes */
    uint64_t redone;    /* copies that the queue accepted and left undone, and that the CPU redid */
    uint64_t contended; /* how often a thread found the DMA queue held by another thread */
    uint64_t in_flight; /* copies in flight */
    uint64_t silent;    /* 1 if the queue has copies and completed none for four seconds: it gets no more */
    uint64_t reserved[2];
} telpher_vhost_dma_queue_stats;

/* The state of a socket. */
typedef struct telpher_vhost_socket_state {
    uint32_t connected; /* 1 if a frontend is connected */
    uint32_t reserved;
    uint64_t sessions;  /* sessions that started */
    uint64_t refused;   /* requests that were refused, in all sessions */
    uint64_t reserved2[4];
} telpher_vhost_socket_state;

/* What a port of a switch connects to. */
typedef enum telpher_switch_kind {
    TELPHER_SWITCH_SERVER = 0, /* a virtual machine; this side listens at the socket, as with TELPHER_VHOST_SERVER */
    TELPHER_SWITCH_CLIENT = 1, /* a virtual machine; its frontend listens at the socket, as with TELPHER_VHOST_CLIENT */
    TELPHER_SWITCH_TAP = 2     /* a TAP interface of this system, which is created if it does not exist */
} telpher_switch_kind;

/* The description of one port of a switch. Start with zeros. */
typedef struct telpher_switch_port {
    const char *path;    /* the socket's path, or the interface's name */
    const char *capture; /* a file for the port's packets in pcap format, which is replaced; NULL for none */
    uint32_t kind;       /* enum telpher_switch_kind */
    uint32_t pairs;      /* the most queue pairs of a socket's frontend, up to 128; 0 means 1. 0 for an interface, which has
                            as many queues as its peer has pairs */
    uint64_t reserved[5];
} telpher_switch_port;

/* The counters of one port of a switch, over all threads of the switch. */
typedef struct telpher_switch_stats {
    uint64_t received;       /* packets received from the port */
    uint64_t received_bytes; /* their bytes */
    uint64_t sent;           /* packets that were sent to the port and that its guest can see */
    uint64_t sent_bytes;     /* their bytes */
    uint64_t generated;      /* packets that the switch generated for the port */
    uint64_t discarded;      /* packets received from the port and discarded, as the option forward demands */
    uint64_t no_room;        /* packets for the port that were dropped because its guest had no buffers */
    uint64_t retried;        /* packets for the port that were dropped because it took none for the time of the option retry */
    uint64_t no_receiver;    /* packets for the port that were dropped because no receiver was connected */
    uint64_t refused;        /* packets for the port whose sending started and failed */
    uint64_t in_flight;      /* packets for the port whose sending started and is not known to have ended */
    uint64_t held;           /* packets for the port that the switch still held when it stopped */
    uint64_t announced;      /* how often its guest had migrated here and was announced on the other side */
    uint64_t captured;       /* packets in its capture */
    uint64_t not_captured;   /* packets left out of its capture, because the file's writer was behind or failed */
    uint64_t connected;      /* 1 if a receiver takes packets from the port */
    uint64_t reserved[8];
} telpher_switch_stats;


/* ------------------------------------------------------------------------------------------------ about the library */

/* "0.1.0". Any thread, any time. Never NULL. */
TELPHER_API const char *telpher_version(void);

/* The version as major << 16 | minor << 8 | patch. Any thread, any time. */
TELPHER_API uint32_t telpher_version_number(void);

/* Returns 1 if the library has a feature, 0 if it does not or does not know the name (or NULL). Any thread, any time.
 * Features: "cpu" "model" "hw" (devices), "batch" "channel" "raw" "options" "cache" "vhost" "tier"
 * "switch". */
TELPHER_API int telpher_has(const char *feature);

/* The message of this thread's last failed call; "" if none has failed. Never NULL. The text belongs to the library and
 * is valid until this thread's next call to any function here. */
TELPHER_API const char *telpher_last_error(void);

/* Writes a result as a sentence, truncated to size bytes including the zero byte. buffer may be NULL if size is 0.
 * Returns the full length, as snprintf does. Any thread, any time. */
TELPHER_API int telpher_result_text(const telpher_result *result, char *buffer, size_t size);

/* Every option with its values, on many lines. Valid for ever. Any thread, any time. Never NULL. */
TELPHER_API const char *telpher_options_help(void);


/* ------------------------------------------------------------------------------------------------ devices */

/* Opens a device by name: "model:spr", "model:spr-fw2", "model:full", "model:srf", "model:v2-full", "model:FILE" (a
 * software model, configured by a file in accel-config's JSON), "hw:wq0.1" (one queue of a real device), "all" (every
 * queue of real devices that this process may use), "cpu" (no queue). options may be NULL, or key=value words separated
 * by spaces, see telpher_options_help.
 * Out: a handle, to be freed with telpher_device_close.
 * -EINVAL: the name, an option or a configuration is wrong. -ENODEV: the device or queue does not exist or is not in a
 * usable state. Other errors come from the system, for example -EACCES or -EBUSY for a node or -ENOENT for a file. */
TELPHER_API int telpher_device_open(telpher_device **device, const char *name, const char *options);

/* Frees the handle; NULL is allowed. Movers and channels created from it stay valid. */
TELPHER_API void telpher_device_close(telpher_device *device);

/* Returns the number of queues of the device. Any thread, any time. */
TELPHER_API int telpher_device_queues(const telpher_device *device);

/* Writes the properties of queue index to *info. Any thread, any time.
 * -EINVAL: no such queue. */
TELPHER_API int telpher_device_queue(const telpher_device *device, uint32_t index, telpher_queue_info *info);

/* Writes the name of a queue that was skipped when "all" was opened, and the reason, for index from 0 on; like
 * telpher_result_text. Any thread, any time.
 * -EINVAL: no more skipped queues. */
TELPHER_API int telpher_device_skipped(const telpher_device *device, uint32_t index, char *buffer, size_t size);


/* ------------------------------------------------------------------------------------------------ movers */

/* Creates a mover over the device's queues; device NULL: the CPU executes everything. options may be NULL for defaults
 * that need no tuning, or key=value words, see telpher_options_help. A tuning file named by the environment variable
 * TELPHER_TUNING or the option tuning is read first.
 * Out: a handle, to be freed with telpher_mover_free.
 * -EINVAL: an option, a tuning file, or no such queue. -ENOENT and others: the tuning file cannot be read. -EBUSY:
 * another mover or channel of this device has a dedicated queue. */
TELPHER_API int telpher_mover_new(telpher_mover **mover, const telpher_device *device, const char *options);

/* Frees the handle; NULL is allowed. Waits for abandoned operations, for at most the option linger (1 s), and for the
 * thread of telpher_mover_fd, unless one of its jobs is in flight or a batch of the mover is left: then the thread, the
 * descriptor and the queues remain until the last of these has ended or was freed.
 * -EBUSY: a device still uses memory of abandoned operations. The handle then stays valid and can be freed later. */
TELPHER_API int telpher_mover_free(telpher_mover *mover);

/* Writes the value of the mover's option key, in the form accepted by telpher_mover_new; like telpher_result_text. Any
 * thread, any time.
 * -EINVAL: no such option, or queues, which is not a setting. */
TELPHER_API int telpher_mover_option(const telpher_mover *mover, const char *key, char *buffer, size_t size);

/* Returns the number of operations that were abandoned, or ended with -ETIMEDOUT, and whose ranges a device may still
 * use. It is updated when a thread waits for any operation or calls telpher_mover_drive. Any thread, any time. */
TELPHER_API int telpher_mover_outstanding(const telpher_mover *mover);

/* Runs devices without a thread of their own (the inline model), and detects the end of abandoned operations. Needed
 * only by programs that abandon jobs and then wait for nothing. Any thread, any time. */
TELPHER_API int telpher_mover_drive(const telpher_mover *mover);

/* Returns a descriptor that becomes readable when a job ends, for loops over epoll, poll, io_uring or libuv. It stays
 * readable until telpher_mover_ended has reported all ends, or the program has read it; after a read it becomes readable
 * with the next end. It reports jobs and batches that are started after the first call, also those that ended at once.
 * Such jobs need no polling: a thread of the mover looks for their ends. It rests between two looks as the option wait
 * says (wait=predicted leaves most of the core to others), and sleeps while no job is in flight. The descriptor belongs
 * to the mover; a program must not close it. Any thread, any time.
 * -ECHILD: in a forked child of the process that called it first. -EMFILE, -ENFILE, -EAGAIN and others: the system
 * refuses a descriptor or a thread. */
TELPHER_API int telpher_mover_fd(const telpher_mover *mover);

/* Writes the handles of jobs that have ended to the list jobs, most of them at most, in the order of their ends, and
 * returns how many. Each job is reported once, unless its handle was freed or abandoned before; so the descriptor may
 * have been readable without an end. A job may be reported, and freed, before telpher_start or telpher_batch_submit has
 * returned in another thread. Never blocks. Any thread, any time.
 * -EFAULT: jobs is NULL. -ECHILD: as for telpher_mover_fd. */
TELPHER_API int telpher_mover_ended(const telpher_mover *mover, telpher_job **jobs, size_t most);


/* ------------------------------------------------------------------------------------------------ synchronous calls
 *
 * Any thread, any time. Ranges are lent until the function returns. The CPU executes small operations; that choice costs
 * one comparison.
 * -EINVAL: no bytes, or ranges overlap that must not. -EOVERFLOW: a range leaves the address space. For other errors see
 * enum telpher_error. */

/* Copies len bytes from src to dst, which must not overlap. */
TELPHER_API int telpher_copy(const telpher_mover *mover, void *dst, const void *src, size_t len);

/* Like telpher_copy, for ranges that may overlap. */
TELPHER_API int telpher_move(const telpher_mover *mover, void *dst, const void *src, size_t len);

/* Repeats the 8 bytes of pattern, lowest first, over len bytes, which need not be a multiple of 8. */
TELPHER_API int telpher_fill(const telpher_mover *mover, void *dst, uint64_t pattern, size_t len);

/* Returns 0 if the ranges are equal, 1 if not. With 1, writes the offset of the first difference to *at, which may be
 * NULL. */
TELPHER_API int telpher_compare(const telpher_mover *mover, const void *a, const void *b, size_t len, uint64_t *at);

/* Writes the CRC32C of a range, continued from seed (0 to start), to *crc. */
TELPHER_API int telpher_crc32c(const telpher_mover *mover, const void *src, size_t len, uint32_t seed, uint32_t *crc);

/* Like telpher_crc32c, and also copies the range to dst, which must not overlap it. */
TELPHER_API int telpher_copy_crc32c(const telpher_mover *mover, void *dst, const void *src, size_t len, uint32_t seed,
                                    uint32_t *crc);

/* Executes any operation. *result may be NULL; it is filled in on failure as well. Returns result->status. */
TELPHER_API int telpher_run(const telpher_mover *mover, const telpher_op *op, telpher_result *result);


/* ------------------------------------------------------------------------------------------------ jobs
 *
 * A mover has no thread of its own, except for telpher_mover_fd: a job makes progress when a thread polls it, waits for
 * it, or waits for another job of the same mover. */

/* Starts an operation. Any thread, any time.
 * Out: a job, to be freed with telpher_job_free or telpher_job_abandon. The ranges are lent until the job has ended. */
TELPHER_API int telpher_start(const telpher_mover *mover, const telpher_op *op, telpher_job **job);

/* Returns 1 if the job has ended, 0 if not; makes one step of progress. The thread of telpher_mover_fd makes the steps of
 * its jobs. Never blocks longer than a step. One thread at a time. */
TELPHER_API int telpher_job_done(telpher_job *job);

/* Waits until the job has ended (returns 1) or timeout_ns nanoseconds have passed (returns 0; the job continues). -1
 * means no limit. One thread at a time.
 * -EINVAL: a timeout below -1. */
TELPHER_API int telpher_job_wait(telpher_job *job, int64_t timeout_ns);

/* Returns the number of results of the job: 0 before its end, then 1, or 1 per member of a batch. One thread at a time. */
TELPHER_API int telpher_job_results(const telpher_job *job);

/* Writes result index (0 unless the job is a batch) to *result, which may be NULL, and returns its status. One thread
 * at a time.
 * -EAGAIN: the job has not ended. -EINVAL: no such result. */
TELPHER_API int telpher_job_result(const telpher_job *job, uint32_t index, telpher_result *result);

/* Frees the handle; NULL is allowed. Waits until the job has ended; then its ranges belong to the caller again. A queue
 * that does not answer is abandoned after the option limit (30 s). */
TELPHER_API int telpher_job_free(telpher_job *job);

/* Frees the handle at once; NULL is allowed. Descriptors that a queue has accepted continue, no more are sent, and the
 * result is not reported: the operation may have been executed completely, in part, or not at all. The ranges stay lent
 * until telpher_mover_outstanding has returned 0. */
TELPHER_API int telpher_job_abandon(telpher_job *job);


/* ------------------------------------------------------------------------------------------------ batches */

/* Creates an empty list of operations. Any thread, any time.
 * Out: a handle, freed by telpher_batch_submit or telpher_batch_free. */
TELPHER_API int telpher_batch_new(const telpher_mover *mover, telpher_batch **batch);

/* Adds an operation and returns its number from 0, which is the index of its result. Members run in no particular
 * order. A member with TELPHER_FENCE starts when all members before it have succeeded. If one of them has failed, the
 * member and all members after it end with -ECANCELED. The ranges are lent until the job has ended, or the batch was
 * freed. One thread at a time.
 * -EOPNOTSUPP: TELPHER_DRAIN. */
TELPHER_API int telpher_batch_add(telpher_batch *batch, const telpher_op *op);

/* Submits the list as one job and frees the list's handle, unless job is NULL. A list longer than the queue accepts is
 * submitted as several batches, one after the other. One thread at a time.
 * Out: a job. Its telpher_job_result(job, i, ...) is member i's result. */
TELPHER_API int telpher_batch_submit(telpher_batch *batch, telpher_job **job);

/* Frees a list that was not submitted; NULL is allowed. */
TELPHER_API void telpher_batch_free(telpher_batch *batch);


/* ------------------------------------------------------------------------------------------------ channels
 *
 * One thread at a time. Only new and free block or allocate. */

/* Creates a channel for up to capacity operations, from 1 to 2^23, to one queue of a device. options may be NULL. Each
 * operation takes less than 1 KiB of memory.
 * Out: a handle, to be freed with telpher_channel_free.
 * -EINVAL: an option, the capacity, or no such queue. -EBUSY: as for telpher_mover_new. */
TELPHER_API int telpher_channel_new(telpher_channel **channel, const telpher_device *device, uint32_t queue,
                                    uint32_t capacity, const char *options);

/* Prepares an operation and writes its number, counting up from 0, to *ticket, which may be NULL. The ranges are lent
 * from here until the completion was fetched.
 * -EAGAIN: the channel is full; fetch completions first. */
TELPHER_API int telpher_channel_put(telpher_channel *channel, const telpher_op *op, uint64_t *ticket);

/* Prepares a raw descriptor: 64 bytes of any alignment (SPEC chapter 8). Its completion record address and its flags
 * are replaced; PASID is the process's own. The CPU never touches its ranges: what the device leaves undone ends with
 * TELPHER_ERROR_FAULT or TELPHER_ERROR_REFUSED, together with the record. The caller is responsible for every address
 * in it, including those of a batch list's members and their records.
 * -EAGAIN: as for telpher_channel_put. */
TELPHER_API int telpher_channel_raw(telpher_channel *channel, const uint8_t descriptor[64], uint64_t user_data,
                                    uint64_t *ticket);

/* Sends the prepared operations, two or more as one batch descriptor if the queue supports batches. Returns how many
 * were sent. If the queue is full, the others are sent during later calls of telpher_channel_completed or of this
 * function. */
TELPHER_API int telpher_channel_submit(telpher_channel *channel);

/* Writes completed operations to completions, at most max, and returns how many: in the order they were prepared, or in
 * the order of completion with the option order=arrival. Operations that were never submitted do not complete. */
TELPHER_API int telpher_channel_completed(telpher_channel *channel, telpher_completion *completions, uint32_t max);

/* Returns how many prepared operations have a completion that was not fetched yet. */
TELPHER_API int telpher_channel_pending(const telpher_channel *channel);

/* Returns how many operations ended with -ETIMEDOUT (option deadline) while the device may still use their ranges. */
TELPHER_API int telpher_channel_quarantined(const telpher_channel *channel);

/* Frees the handle; NULL is allowed. Sends everything prepared and waits for it, for at most the option linger (1 s);
 * completions not fetched are dropped.
 * -EBUSY: the device has not answered. The handle then stays valid and can be freed later. */
TELPHER_API int telpher_channel_free(telpher_channel *channel);


/* ------------------------------------------------------------------------------------------------ windows
 *
 * Memory of one process that another one reads and writes. The owner grants it and hands the files of the grant to the
 * other process: by fork, in a message on a Unix socket (SCM_RIGHTS), or by pidfd_getfd. That process opens a window.
 * Any thread, any time, except for the functions that free a handle. Functions wait for their end.
 *
 * Granted memory is lent until telpher_grant_revoke or telpher_grant_free has returned 0: it stays mapped, and this
 * process accesses it only by atomics, or when the two processes have agreed that the other one does not.
 *
 * Long operations go to a device with inter-domain operations, if the mover has one (option windows), all others to the
 * CPU. For the CPU, and for a modelled device, the system must permit this process to trace the owner. Such a process
 * could access all of the owner's memory: only a real device limits a hostile one to what was granted. */

/* Lets other processes read and write len bytes from start on.
 * Out: a handle, to be freed with telpher_grant_free.
 * -EINVAL: no bytes. Other errors come from the system, which has no file left, or from a device's driver. */
TELPHER_API int telpher_grant_new(telpher_grant **grant, const telpher_mover *mover, void *start, size_t len);

/* Lets other processes read len bytes from start on. */
TELPHER_API int telpher_grant_new_readable(telpher_grant **grant, const telpher_mover *mover, const void *start, size_t len);

/* Writes the file descriptors of the grant, at most room, and returns how many it has: 1, or 2 if a device's driver has
 * made a window. They belong to the grant and are closed with it.
 * -EINVAL: it was revoked. */
TELPHER_API int telpher_grant_files(const telpher_grant *grant, int32_t *files, uint32_t room);

/* Ends the grant: no access begins any more. Returns when none is in progress, after at most timeout_ns (-1: no limit).
 * -EBUSY: an access is still in progress, another process keeps the file locked, or another thread is revoking the grant;
 * it may be called again. */
TELPHER_API int telpher_grant_revoke(const telpher_grant *grant, int64_t timeout_ns);

/* Revokes the grant, within one second, and frees the handle; NULL is allowed.
 * -EBUSY: as for telpher_grant_revoke. Other errors: the device did not close its window, so that the memory is still
 * lent. In both cases the handle stays valid and can be freed later. */
TELPHER_API int telpher_grant_free(telpher_grant *grant);

/* Opens a window by the files of a grant, count of them, in their order. They may be closed afterwards.
 * Out: a handle, to be freed with telpher_window_free.
 * -EBADF: the files are no grant, or its owner has ended. -ESTALE: it was revoked. -EOPNOTSUPP: no device of the mover
 * has windows, and the option windows excludes the CPU. -EACCES, -EPERM: the system does not let this process trace the
 * owner. */
TELPHER_API int telpher_window_open(telpher_window **window, const telpher_mover *mover, const int32_t *files, uint32_t count);

/* Writes the number of granted bytes to *size. */
TELPHER_API int telpher_window_size(const telpher_window *window, uint64_t *size);

/* Copy len bytes, 1 or more, out of the window and into it; at is an offset in the granted bytes. Bytes before a failure
 * may have been copied.
 * -EINVAL: outside of the window. -EPERM: granted for reading only. -ESTALE: it was revoked, or its owner has ended. */
TELPHER_API int telpher_window_read(const telpher_window *window, uint64_t at, void *into, size_t len);
TELPHER_API int telpher_window_write(const telpher_window *window, uint64_t at, const void *from, size_t len);

/* Repeats the 8 bytes of pattern, lowest first, over len bytes of the window; failures as above. */
TELPHER_API int telpher_window_fill(const telpher_window *window, uint64_t at, uint64_t len, uint64_t pattern);

/* Return 1 if bytes of the window differ from other bytes or from a repeated pattern, with the offset of the first
 * difference from at on in *difference, which may be NULL; 0 if they are equal; failures as above. */
TELPHER_API int telpher_window_compare(const telpher_window *window, uint64_t at, const void *with, size_t len,
                                       uint64_t *difference);
TELPHER_API int telpher_window_compare_pattern(const telpher_window *window, uint64_t at, uint64_t len, uint64_t pattern,
                                               uint64_t *difference);

/* Frees the handle; NULL is allowed. */
TELPHER_API void telpher_window_free(telpher_window *window);


/* ------------------------------------------------------------------------------------------------ durable files
 *
 * One thread at a time. A file is locked as long as it is open. Files in memory are refused, and files that other users
 * may write. No test has tried a loss of power. */

/* Creates a file of size zero bytes, with its blocks on the disk.
 * Out: a handle, to be freed with telpher_durable_free.
 * -EEXIST: it exists. -EINVAL: it has no bytes, or would be in memory. Other errors come from the system. */
TELPHER_API int telpher_durable_create(telpher_durable **file, const char *path, uint64_t size);

/* Opens a file.
 * -EBUSY: another process has it. -EPERM: other users may write it. -EINVAL: as above. */
TELPHER_API int telpher_durable_open(telpher_durable **file, const char *path);

/* Writes to *bytes where the bytes of the file are mapped, to be read until the handle is freed, and their number to
 * *size. telpher_durable_store changes them. */
TELPHER_API int telpher_durable_bytes(const telpher_durable *file, const void **bytes, uint64_t *size);

/* Returns 1 if the system maps persistent memory directly, so that cache lines are written back; 0 if telpher_durable_store
 * uses msync. */
TELPHER_API int telpher_durable_direct(const telpher_durable *file);

/* Copies len bytes, 1 or more, to the file from offset at on. Returns when they survive the end of this process and, as
 * far as the system and the CPU promise it, a loss of power.
 * -EINVAL: outside of the file. Other errors: the bytes are not known to be durable. */
TELPHER_API int telpher_durable_store(telpher_durable *file, const telpher_mover *mover, uint64_t at, const void *from,
                                      size_t len);

/* Closes the file; NULL is allowed. */
TELPHER_API void telpher_durable_free(telpher_durable *file);


/* ------------------------------------------------------------------------------------------------ caches
 *
 * Any thread, any time, except for the functions that free a handle. Functions do not wait for copies unless stated.
 *
 * Ownership. Blocks belong to the caller, and are lent from the first telpher_cache_access or telpher_cache_prefetch on:
 *
 *   their bytes do not change   until telpher_cache_invalidate has returned for them. Call it before writing them: it removes
 *                               their entries, and returns when no copy of them is in flight;
 *   they stay mapped            until then, and until every handle to an entry with any of them was freed: a handle without
 *                               a copy refers to the source.
 *
 * If a program frees a block without telpher_cache_invalidate, it gets the old bytes for the next block at that address. No
 * thread may access or prefetch a block while another thread writes it. Copies belong to the cache: the bytes at
 * telpher_entry_location stay valid and read-only until the handle is freed, even if the cache, the mover or the entry is
 * gone. */

/* Creates a cache with count tiers, at least 1; mover makes its copies. policy and options may be NULL; see
 * telpher_options_help. The structures are read during the call only; their functions and user must stay valid as
 * described at telpher_tier.
 * Out: a handle, to be freed with telpher_cache_free.
 * -EINVAL: an invalid option, tier or placement. Other errors come from the system, when a tier's pages were allocated. */
TELPHER_API int telpher_cache_new(telpher_cache **cache, const telpher_mover *mover, const telpher_tier *tiers, uint32_t count,
                                  const telpher_cache_policy *policy, const char *options);

/* Frees the handle; NULL is allowed. No other thread may be in a function of the cache. Cancels copies that have not
 * started and waits for those in flight, as telpher_cache_invalidate does. Entries stay valid as long as their handles,
 * and are stale: they are not updated any more. Afterwards blocks without handles belong to the caller again. */
TELPHER_API int telpher_cache_free(telpher_cache *cache);

/* Accesses the block of len bytes from start on. If an entry contains all of it, returns that entry, whether its copy
 * is complete or in flight. Otherwise creates an entry, whose copy starts at once, or as soon as fewer copies than the
 * option in-flight are in flight. A block for which no memory is available, or whose copy fails, stays in its source;
 * that is not a failure of this function.
 * Out: a handle, to be freed with telpher_entry_free.
 * -EINVAL: no bytes. -EOVERFLOW: it leaves the address space. */
TELPHER_API int telpher_cache_access(const telpher_cache *cache, const void *start, size_t len, telpher_entry **entry);

/* Like telpher_cache_access, in a tier chosen by the caller, from 0, whatever the policy says. Also
 * -EINVAL: no such tier. */
TELPHER_API int telpher_cache_access_in(const telpher_cache *cache, uint32_t tier, const void *start, size_t len,
                                        telpher_entry **entry);

/* Weak access: returns 1 and a handle if an entry contains the block, 0 and NULL if none does. Copies nothing. */
TELPHER_API int telpher_cache_peek(const telpher_cache *cache, const void *start, size_t len, telpher_entry **entry);

/* Announces that a block will be accessed; the higher the priority, from 0 to 255, the sooner it is copied. Its copy
 * starts when few enough copies are in flight and there is memory for it without evicting entries that are in use or
 * were prefetched and not used yet. Until then telpher_cache_drive, any wait and any further prefetch check whether it
 * can start.
 * Out: a handle for cancelling it; prefetch may be NULL. */
TELPHER_API int telpher_cache_prefetch(const telpher_cache *cache, const void *start, size_t len, uint32_t priority,
                                       telpher_prefetch **prefetch);

/* Announces that bytes are about to change or to be unmapped: removes every entry that contains any of them; handles to
 * it become stale. Waits for copies of them in flight, also for entries removed earlier, and cancels copies that have
 * not started. A queue that does not answer is abandoned after the mover's option limit (30 s). Returns how many
 * entries were removed. A thread that reads a location meanwhile reads the old bytes: copies do not change, and a
 * source changes when the caller changes it. */
TELPHER_API int telpher_cache_invalidate(const telpher_cache *cache, const void *start, size_t len);

/* Returns 1 if a copy of the block would lie on another NUMA node than the block's first byte, 0 if not: then a copy
 * gains nothing. Asks the system where pages are, unless the machine has one node.
 * -ENODATA: unknown. */
TELPHER_API int telpher_cache_apart(const telpher_cache *cache, const void *start, size_t len);

/* Removes the unused entries, and returns how many. */
TELPHER_API int telpher_cache_flush(const telpher_cache *cache);

/* Removes all entries, and returns how many; handles stay valid. Blocks remain lent, see above. */
TELPHER_API int telpher_cache_clear(const telpher_cache *cache);

/* Starts copies that may start, and runs devices without a thread of their own. A program that only prefetches and
 * peeks calls it from time to time; waiting functions do the same. */
TELPHER_API int telpher_cache_drive(const telpher_cache *cache);

/* Writes the cache's counters and state to *stats. */
TELPHER_API int telpher_cache_stats(const telpher_cache *cache, telpher_stats *stats);

/* Returns where the block's bytes are at the moment: in the copy if it is complete (then *fast is 1), otherwise in the
 * source (then *fast is 0). fast may be NULL. The address stays valid until the handle is freed, even if the other one
 * becomes current meanwhile. A copy in a tier's pages starts at a multiple of 64; if the entry is larger than the
 * block, the block keeps its offset. Returns NULL only for NULL; sets no error. */
TELPHER_API const void *telpher_entry_location(const telpher_entry *entry, int *fast);

/* Returns the size of the handle's block: len of the access. 0 only for NULL; sets no error. */
TELPHER_API size_t telpher_entry_size(const telpher_entry *entry);

/* Weak wait: polls once and makes one step of progress. Returns 1 if there is nothing left to wait for, because the
 * copy is complete or the bytes stay in their source; otherwise 0. */
TELPHER_API int telpher_entry_done(const telpher_entry *entry);

/* Waits until there is nothing left to wait for (returns 1) or timeout_ns nanoseconds have passed (returns 0), in the
 * manner of the mover's option wait. -1 means no limit. Several threads may wait for one entry; the first one drives
 * its copy, and no thread depends on the thread that requested it.
 * -EINVAL: a timeout below -1. */
TELPHER_API int telpher_entry_wait(const telpher_entry *entry, int64_t timeout_ns);

/* Returns 1 if telpher_cache_invalidate was called for any byte of the entry since: the copy may be outdated. Otherwise
 * 0. */
TELPHER_API int telpher_entry_stale(const telpher_entry *entry);

/* Creates another handle to the same entry, so that each of several threads can free its own.
 * Out: a handle, to be freed with telpher_entry_free. */
TELPHER_API int telpher_entry_share(const telpher_entry *entry, telpher_entry **other);

/* Frees the handle; NULL is allowed. The entry stays in the cache until its memory is needed. */
TELPHER_API void telpher_entry_free(telpher_entry *entry);

/* Returns 1 if the copy is complete, 0 if not or no longer; makes one step of progress. */
TELPHER_API int telpher_prefetch_done(const telpher_prefetch *prefetch);

/* Cancels the prefetch and frees the handle; NULL is allowed and gives 0. Returns 1 if its copy had not started, 0 if
 * the copy continues or is complete. A handle to a cancelled entry finds the block in its source. */
TELPHER_API int telpher_prefetch_cancel(telpher_prefetch *prefetch);

/* Frees the handle; NULL is allowed. The prefetch continues. */
TELPHER_API void telpher_prefetch_free(telpher_prefetch *prefetch);


/* ------------------------------------------------------------------------------------------------ bytes that change
 *
 * Blocks of a cache do not change until they were invalidated. Here the library does that, and counts: every reader has
 * the bytes of exactly the version that it is told, in the source as in copies.
 *
 *     telpher_versioned_write(prices, -1, &writing);         one writer, without readers
 *     data[500] = 9;
 *     telpher_writing_end(writing);                          the version is one higher
 *
 *     telpher_versioned_read(prices, -1, &reading);          any number of readers, without a writer
 *     telpher_reading_access(reading, 0, 1000, &entry);
 *     sum(telpher_entry_location(entry, NULL), 1000);
 *     telpher_entry_free(entry);
 *     telpher_reading_end(reading);
 *
 * Any thread may use the handles, several at once, except for telpher_writing: one thread at a time. A thread that has a
 * reading or a writing must not begin another one: a writer that waits comes before new readers. Writers that follow each
 * other without a pause keep readers away. While a telpher_writing exists, telpher_cache_access and _prefetch must not be
 * called for the bytes. */

/* Creates versioned bytes, whose blocks the cache holds; their version is 0. The bytes are lent until the handle was
 * freed: nothing writes them but the holder of a telpher_writing. Free the handle before the cache.
 * Out: a handle, to be freed with telpher_versioned_free.
 * -EINVAL: no bytes. -EOVERFLOW: they leave the address space. */
TELPHER_API int telpher_versioned_new(telpher_versioned **versioned, const telpher_cache *cache, void *data, size_t len);

/* Frees the handle; NULL is allowed. Free all readings and writings before. Removes the bytes' entries, and waits for
 * copies in flight, as telpher_cache_invalidate does. */
TELPHER_API int telpher_versioned_free(telpher_versioned *versioned);

/* Writes to *version how often the bytes were written. A writer may be active. */
TELPHER_API int telpher_versioned_version(const telpher_versioned *versioned, uint64_t *version);

/* Begins to read: waits for a writer, for at most timeout_ns nanoseconds; -1 means no limit. Returns 1, or 0 and NULL if
 * a writer takes longer.
 * Out: a handle, to be freed with telpher_reading_end.
 * -EINVAL: a timeout below -1. */
TELPHER_API int telpher_versioned_read(const telpher_versioned *versioned, int64_t timeout_ns, telpher_reading **reading);

/* Writes to *version how often the bytes were written before; that does not change as long as the handle exists. */
TELPHER_API int telpher_reading_version(const telpher_reading *reading, uint64_t *version);

/* Accesses a block of the bytes, as telpher_cache_access does.
 * Out: a handle, to be freed with telpher_entry_free before the reading ends.
 * -EINVAL: no bytes, or they are outside. */
TELPHER_API int telpher_reading_access(const telpher_reading *reading, size_t offset, size_t len, telpher_entry **entry);

/* Ends reading and frees the handle; NULL is allowed.
 * -EBUSY: handles to its entries are left, and keep writers away. The handle stays valid. */
TELPHER_API int telpher_reading_end(telpher_reading *reading);

/* Begins to write: waits for readers, for at most timeout_ns nanoseconds, and then for copies of the bytes in flight; -1
 * means no limit. Returns 1, or 0 and NULL if readers take longer. All entries of the bytes are removed. The caller may
 * write the bytes until it frees the handle.
 * Out: a handle, to be freed with telpher_writing_end.
 * -EINVAL: a timeout below -1. */
TELPHER_API int telpher_versioned_write(const telpher_versioned *versioned, int64_t timeout_ns, telpher_writing **writing);

/* Ends writing and frees the handle; NULL is allowed. The bytes have a new version, whether any byte was written or
 * not. */
TELPHER_API void telpher_writing_end(telpher_writing *writing);

/* Creates a pool of memory; near_node of the tier has no meaning. Functions of the tier may be called until the pool and
 * all blocks from it were freed, by any thread that frees one. Any thread may use a pool, several at once.
 * Out: a handle, to be freed with telpher_pool_free.
 * -EINVAL: an invalid tier. Other errors come from the system, when its pages were allocated. */
TELPHER_API int telpher_pool_new(telpher_pool **pool, const telpher_tier *tier);

/* Frees the handle; NULL is allowed. Blocks stay valid. */
TELPHER_API void telpher_pool_free(telpher_pool *pool);

/* Copies len bytes from home on to memory of the pool. Reads and writes use that copy; home is unchanged until
 * telpher_write_back_sync. It is lent until the handle was freed; the caller may read it between calls. One thread at a
 * time, as all functions below.
 * Out: a handle, to be freed with telpher_write_back_free.
 * -ENOMEM: the pool has not as many contiguous free bytes. -EINVAL: no bytes. Other errors are those of a copy. */
TELPHER_API int telpher_write_back_fetch(telpher_write_back **block, const telpher_mover *mover, const telpher_pool *pool,
                                         void *home, size_t len);

/* Returns the address of the bytes in fast memory, for reading. Valid until the handle is freed. NULL only for NULL; sets
 * no error. */
TELPHER_API const void *telpher_write_back_bytes(const telpher_write_back *block);

/* Announces that len bytes from offset on will be written until the next sync, and writes their address to *bytes. The
 * sync copies their pages back.
 * -EINVAL: they are outside. */
TELPHER_API int telpher_write_back_write(telpher_write_back *block, size_t offset, size_t len, void **bytes);

/* Returns how many bytes a sync has to check, in whole pages except for the last; 0 for NULL; sets no error. */
TELPHER_API size_t telpher_write_back_unsynced(const telpher_write_back *block);

/* Updates home. find is one of enum telpher_find. *synced may be NULL.
 * -EINVAL: no such way. Other errors are those of the first page that failed: pages that were copied are not undone, and
 * the others are tried again at the next sync. */
TELPHER_API int telpher_write_back_sync(telpher_write_back *block, uint32_t find, telpher_synced *synced);

/* Frees the handle; NULL is allowed. Bytes that were not synced are lost. */
TELPHER_API void telpher_write_back_free(telpher_write_back *block);


/* ------------------------------------------------------------------------------------------------ tiers
 *
 * A heap has memory on several tiers, the fastest first. Pages move between tiers while threads read and write them; their
 * addresses and contents do not change. A thread that touches a page being moved waits for it.
 *
 *     telpher_tier_options tiers[2] = {{.name = "hbm", .size = 1 << 30, .flags = TELPHER_TIER_ON_NODE, .node = 1},
 *                                      {.name = "ddr", .flags = TELPHER_TIER_ON_NODE, .node = 0}};
 *     telpher_tier_heap_new(&heap, mover, tiers, 2, NULL);
 *     telpher_tier_arena_new(&arena, heap, 64 << 20, 0);
 *     char *bytes = telpher_tier_arena_memory(arena, NULL);                   (pages are on the last tier when first touched)
 *     telpher_tier_migrate(heap, bytes, 1 << 20, 0, &moved);
 *
 * Any thread, any time, except for the functions that free a handle. Ranges may have any address: parts that do not belong
 * to the heap are skipped, and pages that lie only partly in the range stay. Nothing is lent: any thread, device or operation
 * in flight may use a heap's memory, and a page pinned by a device stays where it is.
 *
 * Forks. A child has its parent's memory, but no heap: functions that move or inspect pages give -ECHILD there. It may free
 * its copies of the handles, and create heaps of its own. Shared arenas are not mapped in the child. */

/* Creates a heap without memory, with count tiers, 2 to 8. mover makes its copies, or the CPU if it is NULL. options
 * may be NULL; see telpher_options_help. The structures are read during the call only.
 * Out: a handle, to be freed with telpher_tier_heap_free.
 * -EINVAL: an option, a flag, a reserved field that is not zero, the number of tiers, the home tier, or tiers without
 * NUMA nodes although the kernel moves the pages. -EPERM: this user may not use userfaultfd; telpher_last_error names
 * the two ways to allow it. -ENOSYS: the kernel is too old. Other errors come from the system. */
TELPHER_API int telpher_tier_heap_new(telpher_tier_heap **heap, const telpher_mover *mover, const telpher_tier_options *tiers,
                                      uint32_t count, const char *options);

/* Frees the handle; NULL is allowed. Arenas stay valid, and their pages stay where they are. Memory that was adopted
 * with telpher_tier_adopt must be released before, or no longer be in use. */
TELPHER_API void telpher_tier_heap_free(telpher_tier_heap *heap);

/* Returns the mechanism by which its pages change tiers, except in shared arenas: enum telpher_tier_mechanism. */
TELPHER_API int telpher_tier_mechanism_of(const telpher_tier_heap *heap);

/* Writes the state of a tier, counted from 0, to *info.
 * -EINVAL: no such tier. */
TELPHER_API int telpher_tier_info_of(const telpher_tier_heap *heap, uint32_t tier, telpher_tier_info *info);

/* Writes a tier's name; like telpher_result_text.
 * -EINVAL: no such tier. */
TELPHER_API int telpher_tier_name(const telpher_tier_heap *heap, uint32_t tier, char *buffer, size_t size);

/* Writes the heap's counters to *stats. */
TELPHER_API int telpher_tier_stats_of(const telpher_tier_heap *heap, telpher_tier_stats *stats);

/* Moves the present pages of a range to a tier, as many as possible, and returns when they have moved. moved may be
 * NULL. A page that stays is counted, and is not a failure.
 * -EINVAL: no such tier, or an empty range. -ECHILD: in a forked child. */
TELPHER_API int telpher_tier_migrate(const telpher_tier_heap *heap, const void *start, size_t len, uint32_t tier,
                                     telpher_tier_moved *moved);

/* Writes how many pages of a range are on each tier to pages, at most count numbers; returns the number of tiers.
 * Untouched pages are on no tier. */
TELPHER_API int telpher_tier_residency(const telpher_tier_heap *heap, const void *start, size_t len, uint64_t *pages,
                                       uint32_t count);

/* Tells a present or later manager what the program knows about a range; nothing moves at once. advice is enum
 * telpher_tier_advice; tier is used with TELPHER_TIER_PIN only. Later advice overrides earlier advice.
 * -EINVAL: no such advice, no such tier, or an empty range. -EAGAIN: too much advice that no manager has read yet. */
TELPHER_API int telpher_tier_advise(const telpher_tier_heap *heap, const void *start, size_t len, uint32_t advice, uint32_t tier);

/* Starts a thread that finds out which pages are used, and moves hot pages to faster tiers and cold pages to slower
 * ones. options may be NULL; see telpher_options_help. The thread touches no memory of the heap, but allocates: see
 * telpher_tier_adopt.
 * Out: a handle, to be freed with telpher_tier_manager_free.
 * -EINVAL: an option. -ENOSYS: the requested source is not available here. With source=damon, -EBUSY: another program
 * uses it, -EPERM: this user may not. With source=perf, -EACCES: this user may not. Other errors come from the system. */
TELPHER_API int telpher_tier_manager_new(telpher_tier_manager **manager, const telpher_tier_heap *heap, const char *options);

/* Writes what the manager has found and done to *report. */
TELPHER_API int telpher_tier_report_of(const telpher_tier_manager *manager, telpher_tier_report *report);

/* Stops the thread and frees the handle; NULL is allowed. Pages stay where they are. */
TELPHER_API void telpher_tier_manager_free(telpher_tier_manager *manager);

/* Adopts memory that the program has mapped itself, in whole pages: private and anonymous, so that untouched pages read
 * as zeros. Present pages are on the home tier. The heap follows fork, mremap, munmap and madvise of it. A thread
 * inside a function of the heap must not touch this memory, which would happen if the program's allocator used it.
 * Pages that cannot be moved stay, and are counted.
 * -EEXIST: a part of it belongs to the heap already. -EINVAL: not whole pages. Other errors come from the system. */
TELPHER_API int telpher_tier_adopt(const telpher_tier_heap *heap, void *start, size_t len);

/* Releases adopted memory, or a part of it, in whole pages: they stay on their tiers and are not moved any more. Not
 * for arenas. */
TELPHER_API int telpher_tier_release(const telpher_tier_heap *heap, void *start, size_t len);

/* Creates zeroed memory of the heap, size rounded up to 2 MiB, at a multiple of 2 MiB, on the home tier. flags is enum
 * telpher_tier_arena_flag, or 0: pages of 4 KiB, allocated when touched. Shared arenas are allocated at once, and move
 * in units of 2 MiB, only units that lie completely in a range; telpher_tier_options says what they are made of. They
 * do not support pinned pages (what a device writes into a unit that has moved is lost), nor futexes and locks between
 * processes. Writers wait while a unit is being moved; with devices and files readers wait too. Shared arenas need
 * Linux 5.19.
 * Out: a handle, to be freed with telpher_tier_arena_free.
 * -EINVAL: no bytes, flags, or a tier's path that is not such a file or is too short. -EWOULDBLOCK: another arena has
 * that file. -ENOSYS: as for telpher_tier_heap_new. -ENOMEM and others: errors of the system. */
TELPHER_API int telpher_tier_arena_new(telpher_tier_arena **arena, const telpher_tier_heap *heap, size_t size, uint32_t flags);

/* Returns the address of the arena's memory, and writes its size in bytes to *size, which may be NULL. Returns NULL and
 * leaves *size unchanged if arena is NULL. The address does not change. */
TELPHER_API void *telpher_tier_arena_memory(const telpher_tier_arena *arena, size_t *size);

/* Discards the whole pages among len bytes from offset on: they read as zeros, and are on no tier until they are
 * touched.
 * -EINVAL: they do not lie in the arena. -EOPNOTSUPP: the arena is shared. Other errors come from the system. */
TELPHER_API int telpher_tier_arena_discard(const telpher_tier_arena *arena, size_t offset, size_t len);

/* Frees the handle; NULL is allowed. The arena's memory is unmapped. */
TELPHER_API void telpher_tier_arena_free(telpher_tier_arena *arena);


/* ------------------------------------------------------------------------------------------------ virtual machines
 *
 * A vhost-user backend in this process: the host side of a virtual machine's network card. Copies between packets and the
 * guest's memory are made by a device's queues, by the CPU, or by both depending on size. Packets always keep the ring's
 * order.
 *
 *     telpher_vhost_pool *pool;
 *     telpher_vhost_port *port;
 *     telpher_vhost_socket *socket;
 *     telpher_packet burst[32];
 *     telpher_vhost_pool_new(&pool, 32768, 2048, NULL, 0);
 *     telpher_vhost_port_new(&port, pool, NULL, 0, NULL);
 *     telpher_vhost_socket_new(&socket, port, "/run/vm0.sock", TELPHER_VHOST_SERVER);
 *     for (;;) {
 *         telpher_vhost_poll_enqueue_completed(port, 0, NULL, 0);
 *         int n = telpher_vhost_try_dequeue_burst(port, 0, burst, 32);             (process burst[0 .. n], and send it back)
 *         int taken = telpher_vhost_submit_enqueue_burst(port, 0, burst, n);
 *         telpher_vhost_free_burst(pool, burst + taken, n - taken);
 *     }
 *
 * Any thread, any time, except for the functions that free a handle. The three functions of the data path never wait and
 * allocate nothing: if another thread is using the same direction of the same pair, they return 0. Pairs are counted from 0.
 * Virtqueues are numbered as in VirtIO: the guest receives on 2 * pair, and transmits on 2 * pair + 1.
 *
 * Ownership of packets. At any time a packet has one owner, and only its owner accesses its bytes:
 *
 *   the pool     it is free;
 *   the caller   from the call that writes it to an array (alloc, try_dequeue, poll) to the call that takes it from one
 *                (free, submit); packets of a submitted burst that were not taken stay with the caller, with the same id;
 *   the port     from telpher_vhost_submit_enqueue_burst to telpher_vhost_poll_enqueue_completed.
 *
 * A packet is accepted once, under the id with which it was handed out last. Two threads must not return the same packet at
 * the same time. A packet that the caller does not own is refused: zeros, returned before, of another pool, or with bytes
 * outside of its buffer. A burst stops before a refused packet; the packets in front of it are taken as usual. If the first
 * packet is refused, the result is -EINVAL and nothing is taken. An id kept for 128 uses of its buffer is accepted again.
 *
 * The guest is not trusted: whatever it writes to its rings, no byte outside of its memory is touched, and other ports
 * continue. It may change what it sends in its own memory at any time, but not in a packet. A port without a frontend moves
 * nothing; frontends come and go. */

/* Returns the memory in bytes for a pool of this many buffers; 0 if no such pool is possible. Sets no error. */
TELPHER_API size_t telpher_vhost_pool_size(uint32_t buffers, uint32_t longest);

/* Creates a pool of buffers, from 1 to 2^24, for packets of up to longest bytes, from 1 to 2^20. memory NULL with size
 * 0: the pool allocates its own memory, populated, on huge pages if the system has them. Otherwise memory has size
 * bytes, at least telpher_vhost_pool_size, best at a multiple of 64. It must stay mapped and unused by other code until
 * telpher_vhost_pool_free has returned 0.
 * Out: a handle, to be freed with telpher_vhost_pool_free.
 * -EINVAL: no such pool. -ENOMEM and others: errors of the system. */
TELPHER_API int telpher_vhost_pool_new(telpher_vhost_pool **pool, uint32_t buffers, uint32_t longest, void *memory, size_t size);

/* Frees the handle; NULL is allowed.
 * -EBUSY: packets are still with the caller, with a port that was not freed, with a socket of a port, or with a DMA queue
 * whose copies are not complete. The handle then stays valid and can be freed later. */
TELPHER_API int telpher_vhost_pool_free(telpher_vhost_pool *pool);

/* Returns how many buffers are free at the moment. For each pair, a port keeps as many buffers in reserve as the last
 * call asked for. */
TELPHER_API int telpher_vhost_pool_available(const telpher_vhost_pool *pool);

/* Writes free packets to packets, at most wanted, with len 0 and the full buffer available; returns how many. */
TELPHER_API int telpher_vhost_alloc_burst(const telpher_vhost_pool *pool, telpher_packet *packets, uint32_t wanted);

/* Returns packets to the pool, from the first of given on; returns how many: all, unless one is refused (see above). */
TELPHER_API int telpher_vhost_free_burst(const telpher_vhost_pool *pool, const telpher_packet *packets, uint32_t given);

/* Creates a DMA queue over one queue of a device, for up to room copies in flight, from 1 to 2^23. Several ports and
 * virtqueues may share it.
 * Out: a handle, to be freed with telpher_vhost_dma_queue_free.
 * -EINVAL: the room, or no such queue. -EBUSY: as for telpher_mover_new. */
TELPHER_API int telpher_vhost_dma_queue_new(telpher_vhost_dma_queue **dma_queue, const telpher_device *device, uint32_t queue,
                                            uint32_t room);

/* Writes the DMA queue's counters to *stats. */
TELPHER_API int telpher_vhost_dma_queue_stats_of(const telpher_vhost_dma_queue *dma_queue, telpher_vhost_dma_queue_stats *stats);

/* Frees the handle; NULL is allowed. Ports created with it stay valid. */
TELPHER_API void telpher_vhost_dma_queue_free(telpher_vhost_dma_queue *dma_queue);

/* Creates a port whose packets are of a pool. queues has the options of each virtqueue, by its number; the last entry
 * applies to all further virtqueues, and queue_count 0 means copies by the CPU. options may be NULL: one pair, and all
 * features; see telpher_options_help. The structures are read during the call only.
 * Out: a handle, to be freed with telpher_vhost_port_free.
 * -EINVAL: an option, or a reserved field that is not zero. */
TELPHER_API int telpher_vhost_port_new(telpher_vhost_port **port, const telpher_vhost_pool *pool,
                                       const telpher_vhost_queue *queues, uint32_t queue_count, const char *options);

/* Frees the handle; NULL is allowed. A socket of the port would keep serving its frontend, although no thread polls it;
 * free the socket first. Waits for packets in flight, at most a second if none completes; they return to the pool. */
TELPHER_API void telpher_vhost_port_free(telpher_vhost_port *port);

/* Starts to copy packets to the guest, from the first of given on, as many as the guest has buffers and as may be in
 * flight, at most 1024 per call; returns how many were taken. They come back by telpher_vhost_poll_enqueue_completed,
 * in this order. Dropped packets are counted (TELPHER_VHOST_DROP_SHORT) and return to the pool instead.
 * -EINVAL: no such pair, or the first packet is refused (see above). */
TELPHER_API int telpher_vhost_submit_enqueue_burst(const telpher_vhost_port *port, uint32_t pair, const telpher_packet *packets,
                                                   uint32_t given);

/* Polls for completed copies, shows the guest its packets, and calls the guest if it wants calls; no other function
 * does. Writes packets that the guest has received to packets, at most max, and returns how many; the next call returns
 * the others. packets NULL: all of them return to the pool, and max is ignored.
 * -EINVAL: no such pair. */
TELPHER_API int telpher_vhost_poll_enqueue_completed(const telpher_vhost_port *port, uint32_t pair, telpher_packet *packets,
                                                     uint32_t max);

/* Starts to copy packets that the guest has sent, and writes completed ones to packets, in the guest's order, at most
 * max and at most 1024; returns how many. Packets copied by the CPU complete at once. Buffers come from the pool: when
 * it is empty, the guest waits.
 * -EINVAL: no such pair. */
TELPHER_API int telpher_vhost_try_dequeue_burst(const telpher_vhost_port *port, uint32_t pair, telpher_packet *packets,
                                                uint32_t max);

/* Waits until the driver kicks a virtqueue, at most timeout_ns nanoseconds, -1 without limit. Returns 0 at once if
 * chains are available, or the virtqueue does not run or has no kicks. For threads with nothing else to do.
 * -EINVAL: no such virtqueue, or a timeout below -1. */
TELPHER_API int telpher_vhost_wait(const telpher_vhost_port *port, uint32_t queue, int64_t timeout_ns);

/* Writes the state of a virtqueue to *state.
 * -EINVAL: no such virtqueue. */
TELPHER_API int telpher_vhost_state_of(const telpher_vhost_port *port, uint32_t queue, telpher_vhost_state *state);

/* Writes why nothing is taken from a virtqueue, "" if it is intact; like telpher_result_text.
 * -EINVAL: no such virtqueue. */
TELPHER_API int telpher_vhost_broken(const telpher_vhost_port *port, uint32_t queue, char *buffer, size_t size);

/* Writes the counters of a virtqueue to *stats.
 * -EINVAL: no such virtqueue. */
TELPHER_API int telpher_vhost_stats_of(const telpher_vhost_port *port, uint32_t queue, telpher_vhost_stats *stats);

/* Returns the text of a reason of enum telpher_vhost_drop; NULL for an unknown number. Valid for ever; sets no error. */
TELPHER_API const char *telpher_vhost_drop_text(uint32_t reason);

/* If a guest migrated here that cannot announce itself, returns 1, once, and writes the 6 bytes of its MAC address to
 * address: the caller announces it to the network. Otherwise returns 0. */
TELPHER_API int telpher_vhost_announcement(const telpher_vhost_port *port, uint8_t *address);

/* Creates a socket at path for a port's frontends, one after another, served by a thread of its own. Replaces a stale
 * socket at path. role is enum telpher_vhost_role.
 * Out: a handle, to be freed with telpher_vhost_socket_free.
 * -EINVAL: the role, or a path that is too long. -EADDRINUSE: another process listens there. -EEXIST: there is a file
 * that is not a socket; it is left alone. Other errors come from the system. */
TELPHER_API int telpher_vhost_socket_new(telpher_vhost_socket **socket, const telpher_vhost_port *port, const char *path,
                                         uint32_t role);

/* Writes the state of the socket to *state. */
TELPHER_API int telpher_vhost_socket_state_of(const telpher_vhost_socket *socket, telpher_vhost_socket_state *state);

/* Writes why the last session ended, or the last request was refused, "" if neither happened; like telpher_result_text. */
TELPHER_API int telpher_vhost_socket_last(const telpher_vhost_socket *socket, char *buffer, size_t size);

/* Ends the session, if there is one, and the thread, and frees the handle; NULL is allowed. Waits for copies in flight,
 * at most for the port's option drain-timeout (500 ms). Removes the file of a listening socket. */
TELPHER_API void telpher_vhost_socket_free(telpher_vhost_socket *socket);


/* ------------------------------------------------------------------------------------------------ the switch
 *
 * A packet switch in this process, as `telpher vhost` is one: it has ports, packets and threads of its own. Ports work in
 * pairs, 0 with 1 and 2 with 3; the last of an odd number is its own peer. The switch does not learn addresses. All packets of
 * a flow keep their order. A program that decides itself where each packet goes uses telpher_vhost_* instead.
 *
 *     telpher_switch *packet_switch;
 *     telpher_switch_stats stats;
 *     const telpher_switch_port ports[2] = {{.path = "/run/vm0.sock"}, {.path = "/run/vm1.sock"}};
 *     telpher_switch_new(&packet_switch, device, ports, 2, "threshold=512 threads=2");
 *     (the switch forwards packets until it is stopped)
 *     telpher_switch_stop(packet_switch);
 *     telpher_switch_stats_of(packet_switch, 0, &stats);
 *     telpher_switch_free(packet_switch);
 *
 * Any thread, any time, except for telpher_switch_free. Counters of a running switch may be some microseconds old. Those of a
 * stopped switch are exact: over all ports, the received and generated packets equal the sum of sent, discarded, dropped
 * (no_room, retried, no_receiver), refused, in_flight and held. */

/* Creates a switch with port_count ports, at least 1, serves its sockets, and starts its threads. Packets are copied by the
 * queues of device, or by the CPU if device is NULL; the device may be closed afterwards. options may be NULL: packets are
 * forwarded unchanged by one thread, and dropped if the receiver has no room; see telpher_options_help. The structures and texts
 * are read during the call only.
 * Out: a handle, to be freed with telpher_switch_free.
 * -EINVAL: an option, a port's kind, pairs or name, a reserved field that is not zero, no port, no such queue of the device, or
 * more threads than queues that receive packets. -EBUSY: as for telpher_mover_new. -EADDRINUSE, -EEXIST: as for
 * telpher_vhost_socket_new. -EPERM: this user may not create the interface. -ENOMEM and others: errors of the system. */
TELPHER_API int telpher_switch_new(telpher_switch **packet_switch, const telpher_device *device,
                                   const telpher_switch_port *ports, uint32_t port_count, const char *options);

/* Stops forwarding, waits for packets in flight, at most 100 ms if none completes, and completes the captures. Returns when the
 * threads have ended; the counters are exact then. The sockets stay open until telpher_switch_free. A stopped switch cannot be
 * started again; a second call does nothing and returns 0.
 * -ENOSPC and others: a capture could not be written completely. The switch is stopped nevertheless. */
TELPHER_API int telpher_switch_stop(const telpher_switch *packet_switch);

/* Writes the counters of a port to *stats.
 * -EINVAL: no such port. */
TELPHER_API int telpher_switch_stats_of(const telpher_switch *packet_switch, uint32_t port, telpher_switch_stats *stats);

/* Writes the counters of a virtqueue of a port to *stats: the guest receives on 2 * pair, and transmits on 2 * pair + 1.
 * -EINVAL: no such port or virtqueue; an interface has none. */
TELPHER_API int telpher_switch_queue_stats_of(const telpher_switch *packet_switch, uint32_t port, uint32_t queue,
                                              telpher_vhost_stats *stats);

/* Writes the state of a port's socket to *state.
 * -EINVAL: no such port. -ENOTSOCK: the port is an interface. */
TELPHER_API int telpher_switch_socket_state_of(const telpher_switch *packet_switch, uint32_t port,
                                               telpher_vhost_socket_state *state);

/* Stops the switch if it runs, closes its sockets, and frees the handle; NULL is allowed. Interfaces that the switch created
 * vanish. */
TELPHER_API void telpher_switch_free(telpher_switch *packet_switch);


/* ------------------------------------------------------------------------------------------------ operation constructors */

/* An operation with only its opcode set. */
static inline telpher_op telpher_op_of(uint32_t opcode) {
    telpher_op op = {0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, {0, 0}, 0, {0, 0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0, 0}, 0, 0, {0}};
    op.opcode = opcode;
    return op;
}

static inline telpher_op telpher_op_nop(void) {
    return telpher_op_of(TELPHER_NOP);
}

static inline telpher_op telpher_op_drain(void) {
    return telpher_op_of(TELPHER_DRAIN);
}

static inline telpher_op telpher_op_copy(void *dst, const void *src, uint64_t len) {
    telpher_op op = telpher_op_of(TELPHER_COPY);
    op.dst = dst;
    op.src = src;
    op.len = len;
    return op;
}

static inline telpher_op telpher_op_move(void *dst, const void *src, uint64_t len) {
    telpher_op op = telpher_op_copy(dst, src, len);
    op.opcode = TELPHER_MOVE;
    return op;
}

static inline telpher_op telpher_op_fill(void *dst, uint64_t pattern, uint64_t len) {
    telpher_op op = telpher_op_of(TELPHER_FILL);
    op.dst = dst;
    op.pattern[0] = pattern;
    op.len = len;
    return op;
}

static inline telpher_op telpher_op_fill16(void *dst, const uint64_t pattern[2], uint64_t len) {
    telpher_op op = telpher_op_fill(dst, pattern[0], len);
    op.opcode = TELPHER_FILL16;
    op.pattern[1] = pattern[1];
    return op;
}

static inline telpher_op telpher_op_compare(const void *a, const void *b, uint64_t len) {
    telpher_op op = telpher_op_of(TELPHER_COMPARE);
    op.src = a;
    op.src2 = b;
    op.len = len;
    return op;
}

static inline telpher_op telpher_op_compare_pattern(const void *src, uint64_t pattern, uint64_t len) {
    telpher_op op = telpher_op_of(TELPHER_COMPARE_PATTERN);
    op.src = src;
    op.pattern[0] = pattern;
    op.len = len;
    return op;
}

static inline telpher_op telpher_op_copy_durable(void *dst, const void *src, uint64_t len) {
    telpher_op op = telpher_op_copy(dst, src, len);
    op.opcode = TELPHER_COPY_DURABLE;
    return op;
}

/* delta receives the changes that turn old into new_, each len bytes. */
static inline telpher_op telpher_op_create_delta(void *delta, uint64_t delta_len, const void *old, const void *new_,
                                                 uint64_t len) {
    telpher_op op = telpher_op_compare(old, new_, len);
    op.opcode = TELPHER_CREATE_DELTA;
    op.dst = delta;
    op.dst_len = delta_len;
    return op;
}

static inline telpher_op telpher_op_apply_delta(void *dst, uint64_t dst_len, const void *delta, uint64_t delta_len) {
    telpher_op op = telpher_op_copy(dst, delta, delta_len);
    op.opcode = TELPHER_APPLY_DELTA;
    op.dst_len = dst_len;
    return op;
}

static inline telpher_op telpher_op_dualcast(void *dst, void *dst2, const void *src, uint64_t len) {
    telpher_op op = telpher_op_copy(dst, src, len);
    op.opcode = TELPHER_DUALCAST;
    op.dst2 = dst2;
    return op;
}

static inline telpher_op telpher_op_crc(const void *src, uint64_t len, uint32_t seed) {
    telpher_op op = telpher_op_of(TELPHER_CRC);
    op.src = src;
    op.len = len;
    op.seed = seed;
    return op;
}

static inline telpher_op telpher_op_copy_crc(void *dst, const void *src, uint64_t len, uint32_t seed) {
    telpher_op op = telpher_op_crc(src, len, seed);
    op.opcode = TELPHER_COPY_CRC;
    op.dst = dst;
    return op;
}

static inline telpher_op telpher_op_dif_check(const void *src, uint64_t len, telpher_dif dif, telpher_tags tags) {
    telpher_op op = telpher_op_of(TELPHER_DIF_CHECK);
    op.src = src;
    op.len = len;
    op.dif = dif;
    op.tags = tags;
    return op;
}

static inline telpher_op telpher_op_dif_insert(void *dst, uint64_t dst_len, const void *src, uint64_t len, telpher_dif dif,
                                               telpher_tags tags) {
    telpher_op op = telpher_op_dif_check(src, len, dif, tags);
    op.opcode = TELPHER_DIF_INSERT;
    op.dst = dst;
    op.dst_len = dst_len;
    return op;
}

static inline telpher_op telpher_op_dif_strip(void *dst, uint64_t dst_len, const void *src, uint64_t len, telpher_dif dif,
                                              telpher_tags tags) {
    telpher_op op = telpher_op_dif_insert(dst, dst_len, src, len, dif, tags);
    op.opcode = TELPHER_DIF_STRIP;
    return op;
}

static inline telpher_op telpher_op_dif_update(void *dst, uint64_t dst_len, const void *src, uint64_t len, telpher_dif dif,
                                               telpher_tags tags, telpher_tags new_tags) {
    telpher_op op = telpher_op_dif_insert(dst, dst_len, src, len, dif, tags);
    op.opcode = TELPHER_DIF_UPDATE;
    op.new_tags = new_tags;
    return op;
}

static inline telpher_op telpher_op_dix_generate(void *dst, uint64_t dst_len, const void *src, uint64_t len, telpher_dif dif,
                                                 telpher_tags tags) {
    telpher_op op = telpher_op_dif_insert(dst, dst_len, src, len, dif, tags);
    op.opcode = TELPHER_DIX_GENERATE;
    return op;
}

static inline telpher_op telpher_op_crc64(const void *src, uint64_t len, uint64_t seed) {
    telpher_op op = telpher_op_of(TELPHER_CRC64);
    op.src = src;
    op.len = len;
    op.pattern[0] = seed;
    return op;
}

static inline telpher_op telpher_op_copy_crc64(void *dst, const void *src, uint64_t len, uint64_t seed) {
    telpher_op op = telpher_op_crc64(src, len, seed);
    op.opcode = TELPHER_COPY_CRC64;
    op.dst = dst;
    return op;
}

static inline telpher_op telpher_op_convert(void *dst, uint64_t dst_len, const void *src, uint64_t len,
                                            telpher_arithmetic arithmetic) {
    telpher_op op = telpher_op_of(TELPHER_CONVERT);
    op.dst = dst;
    op.dst_len = dst_len;
    op.src = src;
    op.len = len;
    op.arithmetic = arithmetic;
    return op;
}

/* len is the length of src and of src2. */
static inline telpher_op telpher_op_reduce(void *dst, uint64_t dst_len, const void *src, const void *src2, uint64_t len,
                                           telpher_arithmetic arithmetic) {
    telpher_op op = telpher_op_convert(dst, dst_len, src, len, arithmetic);
    op.opcode = TELPHER_REDUCE;
    op.src2 = src2;
    return op;
}

/* dst_len is the length of dst and of dst2. */
static inline telpher_op telpher_op_reduce_dualcast(void *dst, void *dst2, uint64_t dst_len, const void *src, const void *src2,
                                                    uint64_t len, telpher_arithmetic arithmetic) {
    telpher_op op = telpher_op_reduce(dst, dst_len, src, src2, len, arithmetic);
    op.opcode = TELPHER_REDUCE_DUALCAST;
    op.dst2 = dst2;
    return op;
}

/* The list has 64-bit offsets, or indexes with a flag TELPHER_LIST_INDEX32 or TELPHER_LIST_INDEX64. */
static inline telpher_op telpher_op_gather(void *dst, uint64_t dst_len, const void *src, uint64_t len, const void *list,
                                           uint64_t list_len, uint32_t block, uint32_t flags) {
    telpher_op op = telpher_op_of(TELPHER_GATHER);
    op.flags = flags;
    op.dst = dst;
    op.dst_len = dst_len;
    op.src = src;
    op.len = len;
    op.src2 = list;
    op.src2_len = list_len;
    op.block = block;
    return op;
}

static inline telpher_op telpher_op_gather_reduce(void *dst, uint64_t dst_len, const void *src, uint64_t len, const void *list,
                                                  uint64_t list_len, uint32_t block, uint32_t flags,
                                                  telpher_arithmetic arithmetic) {
    telpher_op op = telpher_op_gather(dst, dst_len, src, len, list, list_len, block, flags);
    op.opcode = TELPHER_GATHER_REDUCE;
    op.arithmetic = arithmetic;
    return op;
}

static inline telpher_op telpher_op_scatter(void *dst, uint64_t dst_len, const void *src, uint64_t len, const void *list,
                                            uint64_t list_len, uint32_t block, uint32_t flags) {
    telpher_op op = telpher_op_gather(dst, dst_len, src, len, list, list_len, block, flags);
    op.opcode = TELPHER_SCATTER;
    return op;
}

static inline telpher_op telpher_op_scatter_fill(void *dst, uint64_t dst_len, const void *list, uint64_t list_len, uint32_t block,
                                                 uint32_t flags, uint64_t pattern) {
    telpher_op op = telpher_op_gather(dst, dst_len, list, list_len, NULL, 0, block, flags);
    op.opcode = TELPHER_SCATTER_FILL;
    op.pattern[0] = pattern;
    return op;
}

static inline telpher_op telpher_op_flush(const void *src, uint64_t len) {
    telpher_op op = telpher_op_of(TELPHER_FLUSH);
    op.src = src;
    op.len = len;
    return op;
}

static inline telpher_op telpher_op_prefetch_pages(const void *src, uint64_t len) {
    telpher_op op = telpher_op_flush(src, len);
    op.opcode = TELPHER_PREFETCH_PAGES;
    return op;
}

#ifdef __cplusplus
}
#endif

#endif /* TELPHER_H */
