/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * telpher.h: move and transform memory without the CPU.
 *
 * Copies, fills, comparisons, checksums, deltas and integrity fields, done by a Data Streaming Accelerator, by a model of one,
 * or by the CPU, whichever is there and worth it. Six ways in, each usable alone:
 *
 *   telpher_copy, telpher_run, ...     do it and wait
 *   telpher_start, telpher_batch_*     a job: go on meanwhile, look or wait later; many threads, many queues
 *   telpher_channel_*                  poll mode: one thread, one queue, tickets; nothing blocks, nothing allocates
 *   telpher_cache_*                    blocks copied to faster memory ahead of time, and lent to many threads
 *   telpher_tier_*                     memory on several tiers (HBM, DDR, CXL), whose pages change theirs while the program goes on
 *   telpher_vhost_*                    a virtual machine's network card, whose packets a switch in this process polls
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
 * WHAT EVERY FUNCTION EXPECTS AND RETURNS
 *
 * Return values. Functions that return int return 0 or a count or 1/0 on success, and a negative errno on failure: -EINVAL
 * and so on. telpher_last_error() then has the sentence. Every function looks for NULL first: a NULL that is not said to be
 * allowed gives -EFAULT. Besides the errnos said at each function there is -ENOTRECOVERABLE: a bug in telpher. Want of memory
 * ends the process with abort().
 *
 * Handles. A function that makes one writes it to its out parameter, NULL if it fails. The caller owns it and ends it once
 * with the function named for that, which takes NULL as well. Handles are independent: a mover goes on when its device was
 * closed, a job, a cache or a heap when its mover was freed, an entry when its cache was, an arena when its heap was.
 *
 * Threads. "Any thread, any time": several threads may call it on one handle at once. "One thread at a time": the handle may be
 * handed from thread to thread, but two calls on it must not overlap; this is said of jobs, batches and channels. A
 * function that ends a handle must be the last call on it.
 *
 * Texts are UTF-8 and end in a zero byte. Those returned belong to the library.
 *
 *
 * WHAT MUST STAY ALIVE BETWEEN SUBMIT AND COMPLETE
 *
 * A device reads and writes the caller's memory while the program goes on. An operation's ranges are therefore lent: from the call
 * that takes the operation until its end was told, they stay mapped where they are, nobody writes the sources, and nobody
 * reads or writes the destinations. The end was told when
 *
 *   telpher_copy, telpher_run and their kind   returned (but see -ETIMEDOUT below);
 *   a job                                      telpher_job_done or telpher_job_wait returned 1, or telpher_job_free returned;
 *   a job that was abandoned                   telpher_mover_outstanding returned 0 after that;
 *   a channel's operation                      telpher_channel_completed returned its completion;
 *   anything that ended with -ETIMEDOUT        telpher_mover_outstanding (telpher_channel_quarantined) returned 0 after that:
 *                                              the device gave no answer, and may still write until it does;
 *   a packet                                   see "virtual machines" below: a port has it until it gives it back;
 *   a block of a cache                         see "caches" below: a cache reads on its own account, until it is told to stop.
 *
 * The telpher_op structure itself, its telpher_result, and texts are read or written only during the call. Members of a batch, and
 * operations under way together, may share sources; what one writes no other may touch unless a fence stands between them.
 *
 * A process that forks: the child may go on with its copies of movers, jobs and channels. It uses none of its parent's queues:
 * what was under way is ended by the CPU there, and so is what follows. Queues of its own it opens anew. No other thread may be
 * in a function of that job, batch, channel, cache or entry while the process forks.
 *
 * Signal handlers may call telpher_copy with good arguments, whatever they interrupt; the other functions allocate.
 *
 * Memory that strangers change meanwhile (a guest's, another process's) does not fit these rules, because the CPU may do or
 * finish an operation; telpher_channel_raw is for that.
 */
#ifndef TELPHER_H
#define TELPHER_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; telpher_version_number() is that of the library. Functions, keys and numbers are added within a
 * soname, never changed. */
#define TELPHER_VERSION_MAJOR 0
#define TELPHER_VERSION_MINOR 1
#define TELPHER_VERSION_PATCH 0
#define TELPHER_VERSION_NUMBER (TELPHER_VERSION_MAJOR << 16 | TELPHER_VERSION_MINOR << 8 | TELPHER_VERSION_PATCH)

#ifndef TELPHER_API
#define TELPHER_API
#endif

/* The queues behind a device's name. */
typedef struct telpher_device telpher_device;
/* Decides where, whether and how, and does it. */
typedef struct telpher_mover telpher_mover;
/* An operation or a batch under way, then its results. */
typedef struct telpher_job telpher_job;
/* A list of operations being built. */
typedef struct telpher_batch telpher_batch;
/* One thread's ring to one queue. */
typedef struct telpher_channel telpher_channel;
/* Copies of blocks in fast memory. */
typedef struct telpher_cache telpher_cache;
/* A handle to an entry of a cache: a block, wherever it is. */
typedef struct telpher_entry telpher_entry;
/* A block that was asked for ahead of time. */
typedef struct telpher_prefetch telpher_prefetch;
/* Memory on several tiers. */
typedef struct telpher_tier_heap telpher_tier_heap;
/* Memory of a heap. */
typedef struct telpher_tier_arena telpher_tier_arena;
/* Looks at a heap's memory, and moves it. */
typedef struct telpher_tier_manager telpher_tier_manager;
/* Memory for packets. */
typedef struct telpher_vhost_pool telpher_vhost_pool;
/* One queue of a device, shared by virtqueues. */
typedef struct telpher_vhost_lane telpher_vhost_lane;
/* The virtqueues of one frontend after another. */
typedef struct telpher_vhost_port telpher_vhost_port;
/* What a port's frontends talk through. */
typedef struct telpher_vhost_socket telpher_vhost_socket;


/* ------------------------------------------------------------------------------------------------ what is asked */

/* Operations. Which fields of telpher_op each uses; "len" is the length of every buffer named unless said otherwise. The low
 * byte is the device's own code (SPEC Table 8-2). SPEC is Intel's Data Streaming Accelerator Architecture Specification. */
typedef enum telpher_opcode {
    TELPHER_NOP = 0x00,             /* nothing; behind a fence it marks that everything before has succeeded */
    TELPHER_DRAIN = 0x02,           /* ends when everything the queues took before has; not in batches */
    TELPHER_COPY = 0x03,            /* src to dst, len; they share no byte */
    TELPHER_FILL = 0x04,            /* dst, len, pattern[0]: its 8 bytes repeated, lowest first */
    TELPHER_COMPARE = 0x05,         /* src with src2, len */
    TELPHER_COMPARE_PATTERN = 0x06, /* src, len, with pattern[0] repeated */
    TELPHER_CREATE_DELTA = 0x07,    /* what turns src into src2, len (a multiple of 8, at most 512 KiB), to dst, dst_len */
    TELPHER_APPLY_DELTA = 0x08,     /* the record src, len (a multiple of 10), to dst, dst_len (a multiple of 8) */
    TELPHER_DUALCAST = 0x09,        /* src to dst and dst2, len */
    TELPHER_CRC = 0x10,             /* CRC32C of src, len, continued from seed (0 for a fresh one) */
    TELPHER_COPY_CRC = 0x11,        /* src to dst, len, and the CRC32C */
    TELPHER_DIF_CHECK = 0x12,       /* src, len: blocks with tuples; dif, tags */
    TELPHER_DIF_INSERT = 0x13,      /* src, len: blocks; dst, dst_len: blocks with tuples; dif, tags (those made) */
    TELPHER_DIF_STRIP = 0x14,       /* src, len: blocks with tuples; dst, dst_len: blocks; dif, tags (those expected) */
    TELPHER_DIF_UPDATE = 0x15,      /* src, len and dst, dst_len: blocks with tuples; dif, tags, new_tags */
    TELPHER_FLUSH = 0x20,           /* flushes the cache lines of src, len */
    TELPHER_MOVE = 0x103,           /* src to dst, len; they may share bytes, as with memmove */
    TELPHER_FILL16 = 0x104          /* dst, len, pattern: its 16 bytes repeated */
} telpher_opcode;

/* Flags of an operation. Those for batches mean nothing elsewhere. */
typedef enum telpher_flag {
    TELPHER_FENCE = 0x1,                      /* batch: begins after every member before has succeeded */
    TELPHER_EXPECT_EQUAL = 0x2,               /* batch, compare: a difference fails the next fence */
    TELPHER_EXPECT_DIFFERENT = 0x4,           /* batch, compare: equality fails the next fence */
    TELPHER_CRC_BYPASS_INVERT_REFLECT = 0x8,  /* neither invert nor reflect seed and result (SPEC 8.3.12) */
    TELPHER_CRC_BYPASS_DATA_REFLECT = 0x10    /* do not reflect the data bytes */
} telpher_flag;

/* Settings of a DIF operation (SPEC 8.3.17): 8-byte tuples of guard, application tag and reference tag behind each block. */
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
    uint16_t app_mask; /* bits set here are not looked at, and are 0 in new tuples */
} telpher_tags;

/* One operation. Begin with a telpher_op_* function below, or with zeros: fields that an operation does not name are not looked
 * at, reserved ones must be zero. A length of 0 is refused, as devices do. */
typedef struct telpher_op {
    uint32_t opcode;       /* enum telpher_opcode */
    uint32_t flags;        /* enum telpher_flag */
    uint64_t user_data;    /* comes back with a channel's completion */
    const void *src;
    const void *src2;
    void *dst;
    void *dst2;
    uint64_t len;          /* bytes */
    uint64_t dst_len;      /* bytes of dst, where it has a length of its own */
    uint64_t pattern[2];
    uint32_t seed;
    telpher_dif dif;
    telpher_tags tags;
    telpher_tags new_tags;
    uint64_t reserved[3];
} telpher_op;


/* ------------------------------------------------------------------------------------------------ what came of it */

/* What an operation came to. A difference found or a tag that does not match is an outcome, not a failure. */
typedef enum telpher_outcome {
    TELPHER_FAILED = 0,          /* status is negative; see error */
    TELPHER_DONE = 1,
    TELPHER_EQUAL = 2,
    TELPHER_DIFFERENT = 3,       /* at: offset of the first byte that differs */
    TELPHER_CRC_VALUE = 4,       /* crc */
    TELPHER_DELTA_IDENTICAL = 5, /* nothing was written */
    TELPHER_DELTA_COMPLETE = 6,  /* bytes: length of the record */
    TELPHER_DELTA_OVERFLOW = 7,  /* the record is full after bytes and must not be applied; at: source bytes compared */
    TELPHER_DIF_DONE = 8,        /* tags, new_tags: those the next block would have */
    TELPHER_DIF_MISMATCH = 9     /* at: offset of the block in the source; device_status: what does not match */
} telpher_outcome;

/* Who did the work. */
typedef enum telpher_via {
    TELPHER_VIA_CPU = 1,
    TELPHER_VIA_DEVICE = 2,
    TELPHER_VIA_BOTH = 3 /* a device began, the CPU finished */
} telpher_via;

/* Kinds of failure, with their errno and the fields of telpher_result that belong to them. */
typedef enum telpher_error {
    TELPHER_ERROR_NONE = 0,
    TELPHER_ERROR_ARGUMENT = 1,     /* EFAULT: NULL. EOVERFLOW: beyond the address space. EMSGSIZE: too long. EINVAL: others */
    TELPHER_ERROR_LENGTHS = 2,      /* EINVAL: at and bytes are lengths that do not agree */
    TELPHER_ERROR_UNIT = 3,         /* EINVAL: at is a length that is no multiple of bytes */
    TELPHER_ERROR_TOO_LONG = 4,     /* EMSGSIZE: at is a length, bytes the most that opcode can express */
    TELPHER_ERROR_BAD_DELTA = 5,    /* EBADMSG: the record is none from byte at on; device_status */
    TELPHER_ERROR_FAULT = 6,        /* EFAULT: a page fault at address, a write if write, after bytes; the system refused the
                                     * page (on-fault=block), or the CPU may not go on (telpher_channel_raw) */
    TELPHER_ERROR_QUEUE_FULL = 7,   /* EBUSY: every queue stayed full through at offers, and the CPU cannot do it */
    TELPHER_ERROR_REFUSED = 8,      /* EIO: the device ended opcode with device_status, and the CPU cannot do it */
    TELPHER_ERROR_UNSUPPORTED = 9,  /* EOPNOTSUPP: no queue offers opcode, and the CPU has no equivalent */
    TELPHER_ERROR_NONSENSE = 10,    /* EPROTO: the device's record contradicts its descriptor */
    TELPHER_ERROR_ABANDONED = 11,   /* ECANCELED: behind a fence, because member at did not succeed */
    TELPHER_ERROR_DEADLINE = 12,    /* ETIMEDOUT: no answer within at nanoseconds; the ranges are still lent, see above */
    TELPHER_ERROR_STOPPED = 13,     /* ENODEV: the queue stopped (halted, disabled, reset, left behind by a fork) during opcode,
                                     * which cannot be done twice: a move whose ranges overlap, a raw descriptor */
    TELPHER_ERROR_OTHER = 255       /* one that this version of the header has no number for; telpher_last_error tells it */
} telpher_error;

/* What an operation came to. Fields that the outcome or the error does not name are 0. */
typedef struct telpher_result {
    int32_t status;         /* 0, or a negative errno */
    uint32_t outcome;       /* enum telpher_outcome */
    uint32_t via;           /* enum telpher_via; 0 if nothing was begun */
    uint32_t error;         /* enum telpher_error */
    uint32_t opcode;        /* the device's code of the operation that an error is about */
    uint32_t device_status; /* SPEC Table 5-5, without the direction bit; for DIF_MISMATCH the bits of SPEC Table 5-8 */
    uint32_t crc;
    uint32_t write;         /* 1 if a page fault was on a write */
    uint64_t at;
    uint64_t bytes;
    uint64_t address;
    telpher_tags tags;
    telpher_tags new_tags;
    uint64_t reserved[3];
} telpher_result;

/* An operation of a channel that has ended. */
typedef struct telpher_completion {
    uint64_t ticket;        /* as telpher_channel_put gave it */
    uint64_t user_data;     /* as the operation had it */
    telpher_result result;
    uint8_t record[32];     /* the device's last completion record, if has_record */
    uint32_t has_record;
    uint32_t reserved;
} telpher_completion;

/* What a queue accepts. */
typedef struct telpher_queue_info {
    char name[32];            /* "wq0.1" */
    uint32_t dedicated;       /* 1: one mover or channel at a time, which is seen to; 0: shared by any number */
    uint32_t size;            /* operations that may be under way */
    uint64_t max_transfer;    /* longest transfer of one descriptor in bytes; longer operations go in pieces */
    uint32_t max_batch;       /* descriptors in a batch; 1 or less if it takes none */
    uint32_t block_on_fault;  /* 1 if the option on-fault=block can be had */
    int32_t numa_node;        /* -1 if unknown */
    uint32_t reserved;
    uint64_t operations;      /* bit n is set if the queue does the operation whose device code is n; what none does the CPU
                               * does, but for TELPHER_DRAIN */
    uint64_t reserved2[3];
} telpher_queue_info;


/* ------------------------------------------------------------------------------------------------ caches, in numbers */

/* Flags of a tier. */
typedef enum telpher_tier_flag {
    TELPHER_TIER_ON_NODE = 0x1,    /* its pages are on NUMA node node, and nowhere else */
    TELPHER_TIER_NEAR = 0x2,       /* it is for threads of NUMA node near_node (option placement=near) */
    TELPHER_TIER_HUGE_PAGES = 0x4, /* pages of 2 MiB where the system has them, else small ones */
    TELPHER_TIER_ABSENT = 0x8      /* its pages come when they are first written; else all are there beforehand */
} telpher_tier_flag;

/* Fast memory of one kind: either size bytes of pages that the cache is to have, or functions that obtain and release memory,
 * of which the cache has size bytes at most at a time, or any number if size is 0. With functions no flag but TELPHER_TIER_NEAR.
 * Begin with zeros.
 *
 * obtain returns len bytes, mapped and writable, that nobody else has, or NULL if there are none left: then entries that nobody
 * uses go, and obtain is called again. release takes back what obtain(len) returned. Both get user, may be called by any thread,
 * several at once, from within any function of the cache, its entries and its mover, and call none of them themselves. They
 * return: no longjmp leaves them, and an exception that does ends the program. len is not 0; 64 bytes of alignment are welcome,
 * none is needed. They are called for as long as the cache or an entry of it is there, or telpher_mover_outstanding is not 0:
 * what was obtained for a copy comes back when no device has it. */
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

/* What a policy knows of an entry that nobody uses. */
typedef struct telpher_resident {
    const void *address; /* where its source begins */
    uint64_t size;       /* bytes */
    uint32_t age;        /* how many entries came since it was last used, or came itself */
    uint32_t unread;     /* 1 if it was fetched ahead and nobody has used it yet */
    uint64_t reserved[2];
} telpher_resident;

/* Policies of the caller's own; where a function is NULL the options decide. Begin with zeros. For both functions holds what is
 * said of obtain and release, but that they are called until telpher_cache_free has returned 0. Which devices copy is the
 * mover's policy (options route, split, queues).
 *
 * place returns the number of the tier (from 0) in which a block is looked for and placed, the last one's for numbers that are too
 * large. It is asked at every access, peek and prefetch; node is the NUMA node of the asking thread, -1 if unknown.
 *
 * worth returns what an unused entry is worth when memory is needed: the least goes first, those that are unread after all the
 * others. */
typedef struct telpher_cache_policy {
    uint32_t (*place)(void *user, const void *start, size_t len, int32_t node);
    uint64_t (*worth)(void *user, const telpher_resident *entry);
    void *user;
    uint64_t reserved[5];
} telpher_cache_policy;

/* What a cache has done and has. Each number is right for some moment during the call that asked. */
typedef struct telpher_stats {
    uint64_t hits;          /* accesses that found an entry, be its copy there or under way */
    uint64_t misses;        /* accesses that found none */
    uint64_t weak_misses;   /* of these, those of telpher_cache_peek */
    uint64_t prefetches;    /* blocks asked for ahead of time */
    uint64_t cancelled;     /* of these, those called off before their copy began */
    uint64_t copies;        /* copies that ended well */
    uint64_t bytes_copied;  /* bytes they brought */
    uint64_t fallbacks;     /* blocks that stayed where they were: no memory was free, or the copy failed */
    uint64_t evictions;     /* entries that had to go because memory was needed */
    uint64_t invalidations; /* entries that were invalidated */
    uint64_t entries;       /* entries there are */
    uint64_t in_flight;     /* copies under way */
    uint64_t waiting;       /* blocks asked for whose copy has not begun */
    uint64_t bytes;         /* of the tiers' memory that are lent: to entries, to copies under way, to handles of entries gone */
    uint64_t reserved[4];
} telpher_stats;


/* ------------------------------------------------------------------------------------------------ tiers, in numbers */

/* One kind of memory of a heap. Begin with zeros. */
typedef struct telpher_tier_options {
    const char *name;  /* what people call it; NULL: its number */
    uint64_t size;     /* the most bytes the heap takes of it: pages there, and free ones that are kept for pages to come. The home
                        * tier has no bound of the heap's */
    uint32_t flags;    /* TELPHER_TIER_ON_NODE; else its pages are wherever the system has some, as on a machine with one node.
                        * TELPHER_TIER_HUGE_PAGES: shared arenas have reserved pages there (vm.nr_hugepages) */
    uint32_t node;     /* the NUMA node, with that flag */
    const char *path;  /* what shared arenas have there: a device of memory (device-DAX, "/dev/dax0.0"), or a file in memory; one
                        * arena at a time. NULL: pages of the system's */
    uint64_t reserved[4];
} telpher_tier_options;

/* How a tier stands. Pages are of 4 KiB. */
typedef struct telpher_tier_info {
    char name[32];       /* cut to what fits, with the zero byte; telpher_tier_name has it whole */
    uint64_t size;       /* as it was given */
    uint64_t free_pages; /* that the heap keeps */
    uint64_t old_copies; /* pages that are kept, see the option shadow */
    int32_t node;        /* -1: wherever the system has some */
    uint32_t home;       /* 1 if pages are there when they are touched first */
    uint64_t reserved[4];
} telpher_tier_info;

/* What became of pages that were to be moved. Numbers of pages of 4 KiB: those that moved, and those that stayed, by reason. */
typedef struct telpher_tier_moved {
    uint64_t pages;       /* moved */
    uint64_t huge;        /* of these, parts of huge pages that were moved whole */
    uint64_t already;     /* stayed: they are there already */
    uint64_t pinned;      /* stayed: a device or io_uring has them, or they are shared with a process that does not let go */
    uint64_t unsupported; /* stayed: their mapping is locked, or protected otherwise than plain memory, or a part of a unit */
    uint64_t gone;        /* went while they were looked at */
    uint64_t no_room;     /* stayed: the tier is full, or its node has no more memory, or no huge page */
    uint64_t failed;      /* stayed: their copy failed */
    uint64_t held;        /* stayed: a debugger or another process traces this one, and could not read a page while it is moved */
    uint64_t reserved[3];
} telpher_tier_moved;

/* What a heap has done. Each number is right for some moment during the call that asked. */
typedef struct telpher_tier_stats {
    telpher_tier_moved moved; /* in all calls */
    uint64_t not_copied;      /* pages that went back to their old copy, as nobody had written them since */
    uint64_t exchanges;       /* times pages were taken out and brought back */
    uint64_t dropped;         /* pages that were discarded or unmapped while they were on their way */
    uint64_t returned;        /* pages whose mapping had changed meanwhile: they are on the home tier, by a copy of the kernel's */
    uint64_t fills;           /* page faults that were answered with empty pages */
    uint64_t forks;           /* that were seen */
    uint64_t given;           /* pages on their way that were given to forked children */
    uint64_t lies;            /* times the kernel said that pages were not moved, and they were */
    uint64_t rescued;         /* pages that the thread that moved them touched itself; it should touch none */
    uint64_t lost;            /* pages whose bytes were lost; not 0 is a bug, and told on standard error as well */
    uint64_t moving_ns;       /* time that moving has taken, whoever asked for it; shared arenas' moves are not in it */
    uint64_t copying_ns;      /* of that, the copies, which a device could take over */
    uint64_t reserved[4];
} telpher_tier_stats;

/* What a manager has found and done since it was started. Arrays have a number for each tier. */
typedef struct telpher_tier_report {
    uint64_t time_ns;    /* since then */
    uint64_t promoted;   /* pages that went to a faster tier */
    uint64_t demoted;    /* pages that went to a slower tier */
    uint64_t stayed;     /* pages that were to move, and stayed */
    uint64_t waiting;    /* moves that are decided, and not made yet */
    uint64_t looking_ns; /* time of a core that looking and deciding took */
    uint64_t moving_ns;  /* time of a core that moving took */
    uint32_t resting;    /* 1 while nothing moves, because pages came back before their moves had paid */
    uint32_t failed;     /* 1 if its thread has ended by a bug */
    uint64_t pages[8];   /* pages on each tier */
    uint64_t hot[8];     /* of these, hot */
    uint64_t reserved[8];
} telpher_tier_report;

/* What a program knows of some of its memory. */
typedef enum telpher_tier_advice {
    TELPHER_TIER_HOT = 1,  /* it will be used a lot: hot until it is found that it is not */
    TELPHER_TIER_COLD = 2, /* it will not be used for a while: cold until it is found that it is not */
    TELPHER_TIER_PIN = 3,  /* it belongs on a tier, and stays there whatever is found */
    TELPHER_TIER_UNPIN = 4 /* it belongs nowhere any more */
} telpher_tier_advice;

/* Flags of an arena, one at most. */
typedef enum telpher_tier_arena_flag {
    TELPHER_TIER_ARENA_HUGE_PAGES = 0x1, /* pages of 2 MiB, as far as the system has any, there at once */
    TELPHER_TIER_ARENA_SHARED = 0x2      /* memory of files, for what cannot be private: see telpher_tier_arena_new */
} telpher_tier_arena_flag;

/* By which mechanism pages change their tier. */
typedef enum telpher_tier_mechanism {
    TELPHER_TIER_EXCHANGE = 1,   /* UFFDIO_MOVE out, a copy of the mover's, UFFDIO_MOVE in: Linux 6.8, and a userfaultfd */
    TELPHER_TIER_MOVE_PAGES = 2, /* move_pages(2), the kernel copies: each tier is a NUMA node of its own */
    TELPHER_TIER_REMAP = 3,      /* protection from writes, a copy, another mapping: what shared arenas have, and no heap */
    TELPHER_TIER_OTHER_WAY = 255 /* one that this version of the header has no number for */
} telpher_tier_mechanism;


/* ------------------------------------------------------------------------------------------------ virtual machines, in numbers */

/* A packet outside of the library: 16 bytes of plain data, copied and kept in any number. data and len are the caller's to move:
 * the packet may lie anywhere in its buffer, which has 128 bytes before the place where packets begin, and from there on as many
 * as the pool's longest. id is not to be changed, and never 0. */
typedef struct telpher_packet {
    void *data;   /* the first byte */
    uint32_t len; /* bytes */
    uint32_t id;  /* which buffer, and which time that it is outside */
} telpher_packet;

/* How one virtqueue works. Begin with zeros: the thread that polls copies everything. */
typedef struct telpher_vhost_queue {
    telpher_vhost_lane *const *lanes; /* the lanes that its copies ride, the first that is free first; NULL for none */
    uint32_t lane_count;
    uint32_t device_from;             /* packets of so many bytes or more ride a lane, if there is one: 0 all, UINT32_MAX none */
    uint32_t in_flight;               /* packets in flight at most; 0 is 1024 */
    uint32_t reserved;
    uint64_t reserved2[3];
} telpher_vhost_queue;

/* Who listens and who connects. */
typedef enum telpher_vhost_role {
    TELPHER_VHOST_SERVER = 0, /* this side listens, the frontend connects */
    TELPHER_VHOST_CLIENT = 1  /* the frontend listens; this side connects, and again every 100 ms when it loses it */
} telpher_vhost_role;

/* Why nothing is taken from a virtqueue until its frontend sets it up anew. */
typedef enum telpher_vhost_why {
    TELPHER_VHOST_WHOLE = 0,   /* it is not so */
    TELPHER_VHOST_AHEAD = 1,   /* the driver made more available than the ring has */
    TELPHER_VHOST_HEAD = 2,    /* the driver made a chain available that begins at no descriptor */
    TELPHER_VHOST_TORN = 3,    /* a file of the guest's memory became shorter than it was announced */
    TELPHER_VHOST_SILENT = 4,  /* the DMA queue that has its copies says that it works and has finished nothing for seconds */
    TELPHER_VHOST_BROKEN = 255 /* one that this version of the header has no number for; telpher_vhost_broken tells it */
} telpher_vhost_why;

/* Why a packet, or a chain of the guest's without one, was dropped. */
typedef enum telpher_vhost_drop {
    TELPHER_VHOST_DROP_NEXT = 0,      /* a descriptor names a next one beyond its table */
    TELPHER_VHOST_DROP_LOOP = 1,      /* a chain is longer than its ring, or in more pieces than are followed */
    TELPHER_VHOST_DROP_DIRECTION = 2, /* a buffer to read where the device writes, or the other way round */
    TELPHER_VHOST_DROP_ADDRESS = 3,   /* a buffer is not in the guest's memory */
    TELPHER_VHOST_DROP_LENGTH = 4,    /* a chain has more bytes than 32 bits count */
    TELPHER_VHOST_DROP_INDIRECT = 5,  /* an indirect table stands where none may */
    TELPHER_VHOST_DROP_TABLE = 6,     /* an indirect table has a length or a place that it cannot have */
    TELPHER_VHOST_DROP_RUNT = 7,      /* a chain is shorter than the net header */
    TELPHER_VHOST_DROP_LONG = 8,      /* a packet is longer than the pool's buffers */
    TELPHER_VHOST_DROP_SHORT = 9,     /* a packet does not fit the buffer of a guest that merges none */
    TELPHER_VHOST_DROP_SILENT = 10    /* it was in flight when its virtqueue stopped, and its DMA queue did not answer */
} telpher_vhost_drop;

/* How a virtqueue stands. */
typedef struct telpher_vhost_state {
    uint32_t frontend;  /* 1 if a frontend has the port */
    uint32_t running;   /* 1 if the virtqueue runs and is enabled */
    uint32_t broken;    /* enum telpher_vhost_why */
    uint32_t size;      /* descriptors; 0 if it stands still */
    uint64_t features;  /* bit n: feature n of VirtIO 1.2 section 5.1.3 and chapter 6, as agreed on; 0 if it stands still */
    uint64_t in_flight; /* packets */
    uint64_t reserved[4];
} telpher_vhost_state;

/* What a virtqueue has done, over all frontends of its port. */
typedef struct telpher_vhost_stats {
    uint64_t packets;       /* packets that got through */
    uint64_t bytes;         /* bytes of them, without net headers */
    uint64_t by_lane;       /* of the packets, those whose copies were handed to a lane */
    uint64_t bytes_by_lane; /* bytes of those */
    uint64_t calls;         /* times the driver was called */
    uint64_t drops[16];     /* by reason: index is enum telpher_vhost_drop */
    uint64_t reserved[3];
} telpher_vhost_stats;

/* What a lane has done. */
typedef struct telpher_vhost_lane_stats {
    uint64_t copies;    /* copies that the queue did; a packet is one for each piece of memory that it lies in */
    uint64_t bytes;     /* bytes of them */
    uint64_t redone;    /* copies that the queue took and left undone, and that the CPU redid */
    uint64_t contended; /* times a thread found another one at the lane */
    uint64_t in_flight; /* copies */
    uint64_t silent;    /* 1 if the queue has copies and finished none for four seconds: it gets no more */
    uint64_t reserved[2];
} telpher_vhost_lane_stats;

/* What has become of a socket so far. */
typedef struct telpher_vhost_socket_state {
    uint32_t connected; /* 1 if a frontend is connected */
    uint32_t reserved;
    uint64_t sessions;  /* sessions that began */
    uint64_t refused;   /* requests that were refused, in all of them */
    uint64_t reserved2[4];
} telpher_vhost_socket_state;


/* ------------------------------------------------------------------------------------------------ about the library */

/* "0.1.0". Any thread, any time. Never NULL. */
TELPHER_API const char *telpher_version(void);

/* The version as major << 16 | minor << 8 | patch. Any thread, any time. */
TELPHER_API uint32_t telpher_version_number(void);

/* 1 if the library has a feature, 0 if not or if it does not know the name, also NULL. Any thread, any time.
 * Features: "cpu" "model" "hw" (devices), "batch" "channel" "raw" "options" "cache" "vhost" "tier". */
TELPHER_API int telpher_has(const char *feature);

/* Why the last call of this thread that failed did so, as a sentence; "" if none has. Never NULL.
 * The text belongs to the library and is valid until the next call of this thread to any function here. */
TELPHER_API const char *telpher_last_error(void);

/* A result as a sentence, cut to size bytes with the zero byte. buffer may be NULL if size is 0.
 * Returns the length it has whole, as snprintf does. Any thread, any time. */
TELPHER_API int telpher_result_text(const telpher_result *result, char *buffer, size_t size);

/* Every option with its values, many lines. Valid for ever. Any thread, any time. Never NULL. */
TELPHER_API const char *telpher_options_help(void);


/* ------------------------------------------------------------------------------------------------ devices */

/* Opens what name names: "model:spr", "model:spr-fw2", "model:full", "model:FILE" (a software model, configured by a file in
 * accel-config's JSON), "hw:wq0.1" (one queue of a real device), "all" (every queue of real devices that this process may
 * use), "cpu" (no queue). options may be NULL; key=value words divided by spaces, see telpher_options_help.
 * Out: a handle, to be ended with telpher_device_close.
 * -EINVAL: the name, an option or a configuration is wrong. -ENODEV: the device or queue is not there or not in a state to be
 * used. Any other: what the system said, as -EACCES or -EBUSY for a node or -ENOENT for a file. */
TELPHER_API int telpher_device_open(telpher_device **device, const char *name, const char *options);

/* Ends the handle; NULL is allowed. Movers and channels made of it go on. */
TELPHER_API void telpher_device_close(telpher_device *device);

/* How many queues the device has, from 0. Any thread, any time. */
TELPHER_API int telpher_device_queues(const telpher_device *device);

/* Writes what queue index accepts to *info. Any thread, any time. -EINVAL: no such queue. */
TELPHER_API int telpher_device_queue(const telpher_device *device, uint32_t index, telpher_queue_info *info);

/* Writes which queue was passed by when "all" was opened, and why, for index from 0 on; as telpher_result_text.
 * Any thread, any time. -EINVAL: no more of them. */
TELPHER_API int telpher_device_skipped(const telpher_device *device, uint32_t index, char *buffer, size_t size);


/* ------------------------------------------------------------------------------------------------ movers */

/* A mover over the device's queues; device NULL: the CPU does everything. options may be NULL: defaults that are good without
 * tuning; else key=value words, see telpher_options_help. A tuning file that the environment variable TELPHER_TUNING or the
 * option tuning names is read first.
 * Out: a handle, to be ended with telpher_mover_free.
 * -EINVAL: an option, a tuning file, or no such queue. -ENOENT and the like: the tuning file cannot be read. -EBUSY: a dedicated
 * queue that another mover or channel of this device has. */
TELPHER_API int telpher_mover_new(telpher_mover **mover, const telpher_device *device, const char *options);

/* Ends the handle; NULL is allowed. Waits for what was abandoned, at most the option linger (1 s).
 * -EBUSY: a device still has memory of abandoned operations. The handle then stays and can be freed later. */
TELPHER_API int telpher_mover_free(telpher_mover *mover);

/* Writes the value that the mover's option key has, as the options of telpher_mover_new write it; as telpher_result_text.
 * Any thread, any time. -EINVAL: no such option, or queues, which is no setting. */
TELPHER_API int telpher_mover_option(const telpher_mover *mover, const char *key, char *buffer, size_t size);

/* How many operations were abandoned, or ended with -ETIMEDOUT, whose ranges a device may still use. Goes down when
 * somebody waits for anything or calls telpher_mover_drive. Any thread, any time. */
TELPHER_API int telpher_mover_outstanding(const telpher_mover *mover);

/* Lets devices without a thread of their own (the inline model) work, and notices what has ended of abandoned operations.
 * Needed only by programs that abandon jobs and then wait for nothing. Any thread, any time. */
TELPHER_API int telpher_mover_drive(const telpher_mover *mover);


/* ------------------------------------------------------------------------------------------------ do it and wait
 *
 * Any thread, any time. Ranges are lent until the function returns. Small operations are the CPU's at the cost of a compare.
 * -EINVAL: no bytes, or ranges that must not share bytes do. -EOVERFLOW: a range leaves the address space. Else see
 * enum telpher_error. */

/* Copies len bytes from src to dst, which share none. */
TELPHER_API int telpher_copy(const telpher_mover *mover, void *dst, const void *src, size_t len);

/* The same for ranges that may share bytes. */
TELPHER_API int telpher_move(const telpher_mover *mover, void *dst, const void *src, size_t len);

/* Repeats the 8 bytes of pattern, lowest first, over len bytes, which need not be a multiple of 8. */
TELPHER_API int telpher_fill(const telpher_mover *mover, void *dst, uint64_t pattern, size_t len);

/* 0 if the ranges are equal; 1 if not, and then the offset of the first difference in *at, which may be NULL. */
TELPHER_API int telpher_compare(const telpher_mover *mover, const void *a, const void *b, size_t len, uint64_t *at);

/* Writes the CRC32C of a range, continued from seed (0 for a fresh one), to *crc. */
TELPHER_API int telpher_crc32c(const telpher_mover *mover, const void *src, size_t len, uint32_t seed, uint32_t *crc);

/* The same while copying the range to dst, which shares no byte with it. */
TELPHER_API int telpher_copy_crc32c(const telpher_mover *mover, void *dst, const void *src, size_t len, uint32_t seed,
                                    uint32_t *crc);

/* Does any operation. *result may be NULL; it is filled in on failure as well. Returns result->status. */
TELPHER_API int telpher_run(const telpher_mover *mover, const telpher_op *op, telpher_result *result);


/* ------------------------------------------------------------------------------------------------ jobs
 *
 * A mover has no thread of its own: a job goes on when somebody looks at it, waits for it, or waits for another job of the
 * same mover. */

/* Puts an operation on its way. Any thread, any time.
 * Out: a job, to be ended with telpher_job_free or telpher_job_abandon. The ranges are lent until the job has ended. */
TELPHER_API int telpher_start(const telpher_mover *mover, const telpher_op *op, telpher_job **job);

/* 1 if the job has ended, 0 if not; takes one step and never blocks. One thread at a time. */
TELPHER_API int telpher_job_done(telpher_job *job);

/* Waits until the job has ended (returns 1) or timeout_ns nanoseconds have passed (returns 0, and the job goes on). -1 is no
 * limit. One thread at a time. -EINVAL: a timeout below -1. */
TELPHER_API int telpher_job_wait(telpher_job *job, int64_t timeout_ns);

/* How many results the job has: 0 before its end, then 1, or 1 for each member of a batch. One thread at a time. */
TELPHER_API int telpher_job_results(const telpher_job *job);

/* Writes result index (0 unless the job is a batch) to *result, which may be NULL, and returns its status. One thread at a
 * time. -EAGAIN: the job has not ended. -EINVAL: no such result. */
TELPHER_API int telpher_job_result(const telpher_job *job, uint32_t index, telpher_result *result);

/* Ends the handle; NULL is allowed. Waits until the job has ended: its ranges are the caller's then. A queue
 * that does not answer is given up at the option limit (30 s). */
TELPHER_API int telpher_job_free(telpher_job *job);

/* Ends the handle at once; NULL is allowed. What a queue has taken goes on, nothing more is sent, and nobody is told what came of
 * it: the operation may have been done wholly, in part, or not at all. The ranges stay lent until telpher_mover_outstanding has
 * returned 0. */
TELPHER_API int telpher_job_abandon(telpher_job *job);


/* ------------------------------------------------------------------------------------------------ batches */

/* An empty list of operations. Any thread, any time.
 * Out: a handle, ended by telpher_batch_submit or telpher_batch_free. */
TELPHER_API int telpher_batch_new(const telpher_mover *mover, telpher_batch **batch);

/* Adds an operation and returns its number from 0, which is the index of its result. Members run in no particular order; one
 * with TELPHER_FENCE begins when all before it have succeeded, and if one has not it ends with -ECANCELED, and so do those
 * after it. The ranges are lent until the job has ended, or the batch was freed. One thread at a time.
 * -EOPNOTSUPP: TELPHER_DRAIN. */
TELPHER_API int telpher_batch_add(telpher_batch *batch, const telpher_op *op);

/* Submits the list as one job; the list's handle ends, unless job is NULL. A list longer than the queue takes goes as several, one
 * after the other. One thread at a time.
 * Out: a job. Its telpher_job_result(job, i, ...) is member i's. */
TELPHER_API int telpher_batch_submit(telpher_batch *batch, telpher_job **job);

/* Ends a list that was not submitted; NULL is allowed. */
TELPHER_API void telpher_batch_free(telpher_batch *batch);


/* ------------------------------------------------------------------------------------------------ channels
 *
 * One thread at a time. No function but new and free blocks or allocates. */

/* A channel with room for capacity operations, from 1 to 2^23, to one queue of a device. options may be NULL. Each place takes
 * less than 1 KiB.
 * Out: a handle, to be ended with telpher_channel_free.
 * -EINVAL: an option, the capacity, or no such queue. -EBUSY: as for telpher_mover_new. */
TELPHER_API int telpher_channel_new(telpher_channel **channel, const telpher_device *device, uint32_t queue,
                                    uint32_t capacity, const char *options);

/* Prepares an operation and writes its number, counting up from 0, to *ticket, which may be NULL. The ranges are lent from
 * here until the completion was fetched.
 * -EAGAIN: every place is taken; fetch completions first. */
TELPHER_API int telpher_channel_put(telpher_channel *channel, const telpher_op *op, uint64_t *ticket);

/* Prepares a descriptor as it is: 64 bytes of any alignment (SPEC chapter 8). Its completion record address and its flags are
 * replaced; PASID is the process's own. The CPU never touches its ranges: what the device leaves undone ends with
 * TELPHER_ERROR_FAULT or TELPHER_ERROR_REFUSED, the record beside it. The caller answers for every address in it, also those of a
 * batch list's members and their records. -EAGAIN as above. */
TELPHER_API int telpher_channel_raw(telpher_channel *channel, const uint8_t descriptor[64], uint64_t user_data,
                                    uint64_t *ticket);

/* Sends what was prepared, two or more as one batch descriptor if the queue takes batches. Returns how many operations left; the
 * others found the queue full, and leave during later calls of telpher_channel_completed or of this. */
TELPHER_API int telpher_channel_submit(telpher_channel *channel);

/* Writes operations that have ended to completions, at most max, and returns how many: in the order they were prepared, or
 * as they come with the option order=arrival. What telpher_channel_submit was never called for does not end. */
TELPHER_API int telpher_channel_completed(telpher_channel *channel, telpher_completion *completions, uint32_t max);

/* How many operations were prepared whose completion was not fetched. */
TELPHER_API int telpher_channel_pending(const telpher_channel *channel);

/* How many operations ended with -ETIMEDOUT (option deadline) whose ranges the device may still use. */
TELPHER_API int telpher_channel_quarantined(const telpher_channel *channel);

/* Ends the handle; NULL is allowed. Sends and waits for everything prepared, at most the option linger (1 s); completions not
 * fetched are dropped. -EBUSY: the device has not answered. The handle then stays and can be freed later. */
TELPHER_API int telpher_channel_free(telpher_channel *channel);


/* ------------------------------------------------------------------------------------------------ caches
 *
 * Any thread, any time, but for the functions that end a handle. Nothing here waits for a copy unless it says so.
 *
 * Who owns what until when. Blocks are the caller's, and lent: from the first telpher_cache_access or telpher_cache_prefetch on
 *
 *   their bytes do not change   until telpher_cache_invalidate has returned for them, which is called before they are written: it
 *                               makes the cache forget them, and returns when no copy of them is under way any more;
 *   they stay mapped            until then, and until every handle to an entry with any of them was freed: a handle whose copy is
 *                               not there has its bytes in the source.
 *
 * A program that frees a block without telpher_cache_invalidate gets its old bytes for the next one at that address. No thread
 * may access or prefetch a block while another writes it. Copies are the cache's: telpher_entry_location's bytes are there, and
 * only to be read, until the handle is freed, whatever becomes of the cache, the mover or the entry. */

/* A cache with count tiers, at least 1, whose copies mover makes. policy and options may be NULL; see telpher_options_help. The
 * structures are read during the call only; their functions and user last as long as is said at telpher_tier.
 * Out: a handle, to be ended with telpher_cache_free.
 * -EINVAL: an option, a tier or a placement that is none. Any other: what the system said when a tier's pages were asked for. */
TELPHER_API int telpher_cache_new(telpher_cache **cache, const telpher_mover *mover, const telpher_tier *tiers, uint32_t count,
                                  const telpher_cache_policy *policy, const char *options);

/* Ends the handle; NULL is allowed. No other thread may be in a function of the cache then. Copies that have not begun are called
 * off, those under way waited for, as telpher_cache_invalidate does. Entries stay as long as their handles, and are stale: nobody
 * tells them of changes any more. Afterwards blocks without handles are the caller's again. */
TELPHER_API int telpher_cache_free(telpher_cache *cache);

/* The block of len bytes from start on. If an entry has all of it, that one, whether its copy is there or under way; else a new
 * one, whose copy begins at once, or as soon as fewer than the option in-flight are under way. A block for which no memory can
 * be had, or whose copy fails, stays where it is, which is no failure of this function.
 * Out: a handle, to be ended with telpher_entry_free. -EINVAL: no bytes. -EOVERFLOW: it leaves the address space. */
TELPHER_API int telpher_cache_access(const telpher_cache *cache, const void *start, size_t len, telpher_entry **entry);

/* The same in a tier of the caller's choice, from 0, whatever the policy says. -EINVAL: no such tier, too. */
TELPHER_API int telpher_cache_access_in(const telpher_cache *cache, uint32_t tier, const void *start, size_t len,
                                        telpher_entry **entry);

/* Weak access: returns 1 and a handle if an entry has the block, 0 and NULL if none has; nothing is copied. */
TELPHER_API int telpher_cache_peek(const telpher_cache *cache, const void *start, size_t len, telpher_entry **entry);

/* Says that a block will be asked for; the higher the priority, from 0 to 255, the sooner it is copied. Its copy begins when
 * few enough are under way, and when there is memory for it without giving up what is in use, or fetched ahead and not used
 * yet. Until then telpher_cache_drive, any wait and any further prefetch look whether it can begin.
 * Out: a handle by which it can be called off; prefetch may be NULL. */
TELPHER_API int telpher_cache_prefetch(const telpher_cache *cache, const void *start, size_t len, uint32_t priority,
                                       telpher_prefetch **prefetch);

/* Says that bytes are about to change or to go away: every entry with any of them is forgotten, handles to it become stale.
 * Waits for copies of them that are under way, also of entries that were forgotten before; calls off copies that have not begun.
 * A queue that does not answer is given up at the mover's option limit (30 s). Returns how many entries are gone. Who reads a
 * location meanwhile reads what was there: copies stay as they are, a source changes when the caller changes it. */
TELPHER_API int telpher_cache_invalidate(const telpher_cache *cache, const void *start, size_t len);

/* 1 if a copy of the block would lie on another NUMA node than the block's first byte, 0 if not, and then nothing is gained by
 * one. Asks the system where pages are, unless the machine has one node. -ENODATA: that is not known. */
TELPHER_API int telpher_cache_apart(const telpher_cache *cache, const void *start, size_t len);

/* Forgets the entries nobody uses, and returns how many. */
TELPHER_API int telpher_cache_flush(const telpher_cache *cache);

/* Forgets all entries, and returns how many; handles keep theirs. Blocks remain lent: see above. */
TELPHER_API int telpher_cache_clear(const telpher_cache *cache);

/* Begins copies that may begin, and lets devices without a thread of their own work. A program that only prefetches and peeks
 * calls it now and then; who waits need not. */
TELPHER_API int telpher_cache_drive(const telpher_cache *cache);

/* Writes what the cache has done and has to *stats. */
TELPHER_API int telpher_cache_stats(const telpher_cache *cache, telpher_stats *stats);

/* Where the block's bytes are at the moment: the copy if it is there, and then *fast is 1; the source otherwise, and then it is
 * 0. fast may be NULL. Valid until the handle is freed, also when the other comes to be true meanwhile. A copy in a tier's
 * pages begins at a multiple of 64; a part of a block lies as far from its begin as in the source. NULL only for NULL; sets no
 * error. */
TELPHER_API const void *telpher_entry_location(const telpher_entry *entry, int *fast);

/* How many bytes the handle is about: len of the access. 0 only for NULL; sets no error. */
TELPHER_API size_t telpher_entry_size(const telpher_entry *entry);

/* Weak wait: looks once and takes one step. 1 if there is nothing left to wait for, be the copy there or the bytes where they
 * were; 0 if there is. */
TELPHER_API int telpher_entry_done(const telpher_entry *entry);

/* Waits until there is nothing left to wait for (returns 1) or timeout_ns nanoseconds have passed (returns 0), as the mover's
 * option wait says. -1 is no limit. Several threads may wait for one entry, and whoever comes first drives its copy; none depends
 * on the thread that asked for it. -EINVAL: a timeout below -1. */
TELPHER_API int telpher_entry_wait(const telpher_entry *entry, int64_t timeout_ns);

/* 1 if telpher_cache_invalidate was called for any byte of the entry since: the copy may be of before. 0 if not. */
TELPHER_API int telpher_entry_stale(const telpher_entry *entry);

/* Another handle to the same, so that each of several threads can free its own.
 * Out: a handle, to be ended with telpher_entry_free. */
TELPHER_API int telpher_entry_share(const telpher_entry *entry, telpher_entry **other);

/* Ends the handle; NULL is allowed. The entry stays in the cache until its memory is needed. */
TELPHER_API void telpher_entry_free(telpher_entry *entry);

/* 1 if the copy is there, 0 if not, or not any more; takes one step. */
TELPHER_API int telpher_prefetch_done(const telpher_prefetch *prefetch);

/* Calls it off and ends the handle; NULL is allowed, and gives 0. 1 if its copy had not begun; 0 if that goes on, or is there.
 * Who has a handle to an entry that was called off finds the block in its source. */
TELPHER_API int telpher_prefetch_cancel(telpher_prefetch *prefetch);

/* Ends the handle; NULL is allowed. What was asked for goes on. */
TELPHER_API void telpher_prefetch_free(telpher_prefetch *prefetch);


/* ------------------------------------------------------------------------------------------------ tiers
 *
 * A heap has memory on several tiers, the fastest first. Pages change theirs while any thread reads and writes them; their
 * addresses and bytes stay what they are, and whoever touches a page on its way waits for it.
 *
 *     telpher_tier_options tiers[2] = {{.name = "hbm", .size = 1 << 30, .flags = TELPHER_TIER_ON_NODE, .node = 1},
 *                                      {.name = "ddr", .flags = TELPHER_TIER_ON_NODE, .node = 0}};
 *     telpher_tier_heap_new(&heap, mover, tiers, 2, NULL);
 *     telpher_tier_arena_new(&arena, heap, 64 << 20, 0);
 *     char *bytes = telpher_tier_arena_memory(arena, NULL);                   (on the last tier when they are touched first)
 *     telpher_tier_migrate(heap, bytes, 1 << 20, 0, &moved);
 *
 * Any thread, any time, but for the functions that end a handle. Ranges are of any addresses: what of them is not the heap's is
 * passed over, and pages of which a part is outside of the range stay. Nothing is lent: memory of a heap may be in use by
 * anybody, also by operations under way, and a page that a device has pinned stays where it is.
 *
 * A process that forks: a child has its parent's memory, and no heap; functions that move or look give -ECHILD there. It may end
 * its copies of the handles, and make heaps of its own. It has nothing where shared arenas are. */

/* A heap without memory, with count tiers, 2 to 8, whose copies mover makes, or the CPU if it is NULL. options may be NULL; see
 * telpher_options_help. The structures are read during the call only.
 * Out: a handle, to be ended with telpher_tier_heap_free.
 * -EINVAL: an option, a flag, a reserved field that is not zero, the number of tiers or the home, or tiers that are no nodes
 * where the kernel is to move pages. -EPERM: this user may have no userfaultfd; telpher_last_error tells the two ways to get one.
 * -ENOSYS: the kernel is too old. Any other: what the system said. */
TELPHER_API int telpher_tier_heap_new(telpher_tier_heap **heap, const telpher_mover *mover, const telpher_tier_options *tiers,
                                      uint32_t count, const char *options);

/* Ends the handle; NULL is allowed. Arenas go on, and their pages stay where they are. Memory that was taken over with
 * telpher_tier_adopt is let go before, or not in use any more. */
TELPHER_API void telpher_tier_heap_free(telpher_tier_heap *heap);

/* By which mechanism its pages change their tier, but for those of shared arenas: enum telpher_tier_mechanism. */
TELPHER_API int telpher_tier_mechanism_of(const telpher_tier_heap *heap);

/* Writes how a tier stands, counted from 0, to *info. -EINVAL: no such tier. */
TELPHER_API int telpher_tier_info_of(const telpher_tier_heap *heap, uint32_t tier, telpher_tier_info *info);

/* Writes a tier's name; as telpher_result_text. -EINVAL: no such tier. */
TELPHER_API int telpher_tier_name(const telpher_tier_heap *heap, uint32_t tier, char *buffer, size_t size);

/* Writes what the heap has done to *stats. */
TELPHER_API int telpher_tier_stats_of(const telpher_tier_heap *heap, telpher_tier_stats *stats);

/* Moves the pages of a range that are there to a tier, as many as can be, and returns when they are. moved may be NULL. A page
 * that stays is counted, and no failure. -EINVAL: no such tier, or a range of no bytes. -ECHILD: in a forked child. */
TELPHER_API int telpher_tier_migrate(const telpher_tier_heap *heap, const void *start, size_t len, uint32_t tier,
                                     telpher_tier_moved *moved);

/* Writes how many pages of a range are on each tier to pages, at most count; returns how many tiers there are. Pages that nobody
 * has touched are on none. */
TELPHER_API int telpher_tier_residency(const telpher_tier_heap *heap, const void *start, size_t len, uint64_t *pages,
                                       uint32_t count);

/* Says what the program knows of a range, for a manager that there is or will be; nothing moves before that. advice is enum
 * telpher_tier_advice, tier is looked at with TELPHER_TIER_PIN only. What is said later overrides what was said before. -EINVAL: no
 * such advice, no such tier, or a range of no bytes. -EAGAIN: so much was said that no manager has heard. */
TELPHER_API int telpher_tier_advise(const telpher_tier_heap *heap, const void *start, size_t len, uint32_t advice, uint32_t tier);

/* Has a thread look which pages are used, and move those that are hot to faster tiers, and cold ones to slower. options may be
 * NULL; see telpher_options_help. The thread touches no memory of the heap's, but allocates: see telpher_tier_adopt.
 * Out: a handle, to be ended with telpher_tier_manager_free. -EINVAL: an option. -ENOSYS: the source that was asked for is not
 * to be had here; with source=damon, -EBUSY: somebody else looks by it, -EPERM: this user may not; with source=perf, -EACCES
 * likewise. Any other: what the system said. */
TELPHER_API int telpher_tier_manager_new(telpher_tier_manager **manager, const telpher_tier_heap *heap, const char *options);

/* Writes what it has found and done to *report. */
TELPHER_API int telpher_tier_report_of(const telpher_tier_manager *manager, telpher_tier_report *report);

/* Ends the handle and its thread; NULL is allowed. What has moved stays where it is. */
TELPHER_API void telpher_tier_manager_free(telpher_tier_manager *manager);

/* Takes memory over that the program has mapped itself, of whole pages: private and anonymous, so that pages read as zeros before
 * they are touched. What is there is on the home tier. Forks, mremap, munmap and madvise of it are followed. A thread that is in a
 * function of the heap does not touch it, as it would if the program's allocator had its memory there. Pages that cannot be moved
 * stay, and are counted. -EEXIST: a part of it is the heap's already. -EINVAL: no whole pages. Any other: what the system said. */
TELPHER_API int telpher_tier_adopt(const telpher_tier_heap *heap, void *start, size_t len);

/* Lets such memory go, or a part of it, of whole pages: they stay on the tiers they are on, and nobody moves them any more. Not for
 * arenas. */
TELPHER_API int telpher_tier_release(const telpher_tier_heap *heap, void *start, size_t len);

/* Zeroed memory of the heap, size rounded up to 2 MiB, at a multiple of 2 MiB, on the home tier. flags is enum
 * telpher_tier_arena_flag, or 0: pages of 4 KiB as they are touched. Shared arenas are there at once, and move in units of 2 MiB,
 * those that lie in a range whole; what they are made of is said at telpher_tier_options. They do not stand pinned pages (what a
 * device writes into a unit that moved is lost), nor futexes and locks between processes. Writers wait for a unit on its way, and
 * of devices and files whoever reads, too. They want Linux 5.19.
 * Out: a handle, to be ended with telpher_tier_arena_free. -EINVAL: no bytes, flags, or a tier's path that is no such file or too
 * short. -EWOULDBLOCK: another arena has that file. -ENOSYS: as for telpher_tier_heap_new. -ENOMEM and the like: what the system
 * said. */
TELPHER_API int telpher_tier_arena_new(telpher_tier_arena **arena, const telpher_tier_heap *heap, size_t size, uint32_t flags);

/* Where its memory is, and how many bytes it has in *size, which may be NULL. NULL, and size as it was, if arena is NULL. The
 * address does not change. */
TELPHER_API void *telpher_tier_arena_memory(const telpher_tier_arena *arena, size_t *size);

/* Gives the whole pages among len bytes from offset on back: they read as zeros, and are on no tier until they are touched.
 * -EINVAL: they do not lie in the arena. -EOPNOTSUPP: it is shared. Any other: what the system said. */
TELPHER_API int telpher_tier_arena_discard(const telpher_tier_arena *arena, size_t offset, size_t len);

/* Ends the handle; NULL is allowed. Its memory is gone. */
TELPHER_API void telpher_tier_arena_free(telpher_tier_arena *arena);


/* ------------------------------------------------------------------------------------------------ virtual machines
 *
 * The other end of a virtual machine's network card: a vhost-user backend in this process, whose copies between packets and the
 * guest's memory ride queues of a device, or are the CPU's, or both by size, in the ring's order whoever makes them.
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
 *         int n = telpher_vhost_try_dequeue_burst(port, 0, burst, 32);             (look at burst[0 .. n], and send it back)
 *         int taken = telpher_vhost_submit_enqueue_burst(port, 0, burst, n);
 *         telpher_vhost_free_burst(pool, burst + taken, n - taken);
 *     }
 *
 * Any thread, any time, but for the functions that end a handle. The three functions of the data path never wait and allocate
 * nothing: one that finds another thread at the same direction of the same pair answers 0. Pairs are counted from 0; virtqueues,
 * too, as VirtIO counts them: 2 * pair is what the guest receives on, 2 * pair + 1 what it transmits on.
 *
 * Who has a packet. At each time one of these, and only that one touches its bytes:
 *
 *   the pool     it is free;
 *   the caller   from the call that writes it to an array (alloc, try_dequeue, poll) to the call that takes it from one (free,
 *                submit); of a submitted burst, those that were not taken stay the caller's, with the same id;
 *   the port     from telpher_vhost_submit_enqueue_burst to telpher_vhost_poll_enqueue_completed.
 *
 * A packet is taken under the id that it was last given out with, once; two threads do not give away the same packet at the same
 * time. What is no packet of the pool that the caller has (zeros, given before, of another pool, bytes outside of its buffer) is
 * refused: a burst stops before it, the packets in front of it are taken as usual, and if it is the first the answer is -EINVAL,
 * with nothing taken. An id kept for 128 rounds of its buffer is taken for a good one.
 *
 * The guest is not trusted: whatever it writes to its rings, no byte outside of its memory is touched, and other ports go on.
 * What it sends may change in its memory at any time, but not in a packet. A port without a frontend moves nothing; frontends
 * come and go. */

/* How many bytes of memory a pool of so many buffers takes; 0 if there can be no such pool. Sets no error. */
TELPHER_API size_t telpher_vhost_pool_size(uint32_t buffers, uint32_t longest);

/* A pool of buffers, from 1 to 2^24, for packets of longest bytes, from 1 to 2^20. memory NULL with size 0: memory of its own,
 * on huge pages if the system has them, all of it there at once; else size bytes of the caller's, at least
 * telpher_vhost_pool_size, best at a multiple of 64: mapped, and nobody else's, until telpher_vhost_pool_free has returned 0.
 * Out: a handle, to be ended with telpher_vhost_pool_free. -EINVAL: no such pool. -ENOMEM and the like: what the system said. */
TELPHER_API int telpher_vhost_pool_new(telpher_vhost_pool **pool, uint32_t buffers, uint32_t longest, void *memory, size_t size);

/* Ends the handle; NULL is allowed. -EBUSY: the caller has packets of it, or a port that was not freed, a socket of one, or a
 * lane's copies that have not landed have some. The handle then stays and can be freed later. */
TELPHER_API int telpher_vhost_pool_free(telpher_vhost_pool *pool);

/* How many buffers are free at the moment. A port keeps some for what comes next: as many for each pair as it was last asked
 * for. */
TELPHER_API int telpher_vhost_pool_available(const telpher_vhost_pool *pool);

/* Writes free packets to packets, at most wanted, without bytes (len 0) but with all of the room; returns how many. */
TELPHER_API int telpher_vhost_alloc_burst(const telpher_vhost_pool *pool, telpher_packet *packets, uint32_t wanted);

/* Takes packets back to the pool, from the first of given on; returns how many: all, unless one is refused (see above). */
TELPHER_API int telpher_vhost_free_burst(const telpher_vhost_pool *pool, const telpher_packet *packets, uint32_t given);

/* A lane to one queue of a device, with room for so many copies in flight, from 1 to 2^23. Several ports and virtqueues may
 * share it.
 * Out: a handle, to be ended with telpher_vhost_lane_free. -EINVAL: the room, or no such queue. -EBUSY: as for
 * telpher_mover_new. */
TELPHER_API int telpher_vhost_lane_new(telpher_vhost_lane **lane, const telpher_device *device, uint32_t queue, uint32_t room);

/* Writes what the lane has done to *stats. */
TELPHER_API int telpher_vhost_lane_stats_of(const telpher_vhost_lane *lane, telpher_vhost_lane_stats *stats);

/* Ends the handle; NULL is allowed. Ports made with it go on. */
TELPHER_API void telpher_vhost_lane_free(telpher_vhost_lane *lane);

/* A port whose packets are of a pool. queues says how each virtqueue works, by its number; the last is for those that follow,
 * and none (queue_count 0) for copies by the CPU. options may be NULL: one pair, and all features; see telpher_options_help. The
 * structures are read during the call only.
 * Out: a handle, to be ended with telpher_vhost_port_free. -EINVAL: an option, or a reserved field that is not zero. */
TELPHER_API int telpher_vhost_port_new(telpher_vhost_port **port, const telpher_vhost_pool *pool,
                                       const telpher_vhost_queue *queues, uint32_t queue_count, const char *options);

/* Ends the handle; NULL is allowed. A socket of it goes on serving its frontend, whom nobody polls; end that first. Packets in
 * flight are waited for, a second at most if nothing lands, and go back to the pool. */
TELPHER_API void telpher_vhost_port_free(telpher_vhost_port *port);

/* Begins to copy packets to the guest, from the first of given on, as many as the guest has buffers and as may be in flight, at
 * most 1024 a call; returns how many were taken. They come back by telpher_vhost_poll_enqueue_completed, in this order, but for
 * those that are dropped and counted (TELPHER_VHOST_DROP_SHORT), which go to the pool. -EINVAL: no such pair, or the first is
 * refused (see above). */
TELPHER_API int telpher_vhost_submit_enqueue_burst(const telpher_vhost_port *port, uint32_t pair, const telpher_packet *packets,
                                                   uint32_t given);

/* Looks which copies have landed, shows the guest its packets and calls it if it wants to be; nobody else does. Writes packets
 * that the guest has got to packets, at most max, and returns how many; others come with the next call. packets NULL: they go to
 * the pool instead, all of them, and max is not looked at. -EINVAL: no such pair. */
TELPHER_API int telpher_vhost_poll_enqueue_completed(const telpher_vhost_port *port, uint32_t pair, telpher_packet *packets,
                                                     uint32_t max);

/* Begins to copy packets that the guest has sent, and writes those that have landed to packets, in the guest's order, at most
 * max and at most 1024; returns how many. Those that the CPU copies land at once. Buffers are of the pool: when that has none,
 * the guest waits. -EINVAL: no such pair. */
TELPHER_API int telpher_vhost_try_dequeue_burst(const telpher_vhost_port *port, uint32_t pair, telpher_packet *packets,
                                                uint32_t max);

/* Waits until the driver kicks a virtqueue for more, at most timeout_ns nanoseconds, -1 without limit; returns 0 at once if
 * there is more already, or the virtqueue stands still or has no kicks. For threads with nothing else to do. -EINVAL: no such
 * virtqueue, or a timeout below -1. */
TELPHER_API int telpher_vhost_wait(const telpher_vhost_port *port, uint32_t queue, int64_t timeout_ns);

/* Writes how a virtqueue stands to *state. -EINVAL: no such virtqueue. */
TELPHER_API int telpher_vhost_state_of(const telpher_vhost_port *port, uint32_t queue, telpher_vhost_state *state);

/* Writes why nothing is taken from a virtqueue, "" if it is not so; as telpher_result_text. -EINVAL: no such virtqueue. */
TELPHER_API int telpher_vhost_broken(const telpher_vhost_port *port, uint32_t queue, char *buffer, size_t size);

/* Writes what a virtqueue has done to *stats. -EINVAL: no such virtqueue. */
TELPHER_API int telpher_vhost_stats_of(const telpher_vhost_port *port, uint32_t queue, telpher_vhost_stats *stats);

/* A reason of enum telpher_vhost_drop as a sentence; NULL for a number that is none. Valid for ever; sets no error. */
TELPHER_API const char *telpher_vhost_drop_text(uint32_t reason);

/* 1, and the 6 bytes of a guest's address in address, if a guest moved here that cannot announce itself: whoever polls the port
 * announces it to the network, once. 0 if there is none. */
TELPHER_API int telpher_vhost_announcement(const telpher_vhost_port *port, uint8_t *address);

/* A socket at path for a port's frontends, one after another, served by a thread of its own. A socket that nobody listens on any
 * more is replaced. role is enum telpher_vhost_role.
 * Out: a handle, to be ended with telpher_vhost_socket_free. -EINVAL: the role, or a path that is too long. -EADDRINUSE: somebody
 * listens there. -EEXIST: a file is there that is no socket, and stays as it is. Any other: what the system said. */
TELPHER_API int telpher_vhost_socket_new(telpher_vhost_socket **socket, const telpher_vhost_port *port, const char *path,
                                         uint32_t role);

/* Writes what has become of the socket so far to *state. */
TELPHER_API int telpher_vhost_socket_state_of(const telpher_vhost_socket *socket, telpher_vhost_socket_state *state);

/* Writes why the last session ended, or the last request was refused, "" if neither was; as telpher_result_text. */
TELPHER_API int telpher_vhost_socket_last(const telpher_vhost_socket *socket, char *buffer, size_t size);

/* Ends the session, if there is one, the thread, and the handle; NULL is allowed. Copies in flight are waited for, at most the
 * port's option patience (500 ms). A socket that listened takes its file away. */
TELPHER_API void telpher_vhost_socket_free(telpher_vhost_socket *socket);


/* ------------------------------------------------------------------------------------------------ operations to hand */

/* An operation of nothing but zeros and its opcode. */
static inline telpher_op telpher_op_of(uint32_t opcode) {
    telpher_op op = {0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, {0, 0}, 0, {0, 0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
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

/* delta gets what turns old into new_, each len bytes. */
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

static inline telpher_op telpher_op_flush(const void *src, uint64_t len) {
    telpher_op op = telpher_op_of(TELPHER_FLUSH);
    op.src = src;
    op.len = len;
    return op;
}

#ifdef __cplusplus
}
#endif

#endif /* TELPHER_H */
