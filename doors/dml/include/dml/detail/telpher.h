/*
 * The C interface between dml.hpp and libdml: descriptors, tasks and completion records.
 *
 *   make_*, bind     fill in a descriptor
 *   validate         check it, before it goes anywhere
 *   submit           give it to the CPU or to a queue of a device
 *   finished, wait   see whether its record is written
 *   get_*            read the record
 *   release          end the task; afterwards its memory may be freed
 *
 * Programs use dml.h or dml.hpp; both are built on these functions, so that they answer alike. The functions keep their meaning
 * within libdml.so.1: a program that was compiled against an older dml.hpp works with a newer library.
 *
 * Statuses are those of dml_status_t in dmldefs.h. No function throws, and no function keeps a pointer after release().
 * A task is used by one thread at a time; different tasks are independent.
 */
#ifndef DML_DETAIL_TELPHER_H
#define DML_DETAIL_TELPHER_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define TELPHER_DML_ALIGNED(bytes) alignas(bytes)
extern "C" {
#else
#define TELPHER_DML_ALIGNED(bytes) _Alignas(bytes)
#endif

/* The paths; the numbers are those of dml_path_t. */
#define TELPHER_DML_AUTOMATIC 0u
#define TELPHER_DML_SOFTWARE 1u
#define TELPHER_DML_HARDWARE 2u

/* numa_id: any node. */
#define TELPHER_DML_ANY_NODE 0xffffffffu

/* The flags of a descriptor, bits 23:0 of its second 32-bit word. Bits 3:2 (record address valid, record requested) are set by
 * bind(); pass the others to make_*(). Bits 23:16 depend on the operation. */
#define TELPHER_DML_FENCE 0x1u /* the real fence bit; DML_FLAG_FENCE is another number */
#define TELPHER_DML_BLOCK_ON_FAULT 0x2u
#define TELPHER_DML_CHECK_RESULT 0x80u
#define TELPHER_DML_CACHE_CONTROL 0x100u
#define TELPHER_DML_CRC_BYPASS_REFLECTION 0x20000u
#define TELPHER_DML_CRC_BYPASS_DATA_REFLECTION 0x40000u

/* Options of validate(). */
#define TELPHER_DML_COPY_ONLY 0x1u /* a memory move whose ranges must not overlap */

/* The status of a record, as the device writes it, without the bit that tells a write from a read. */
#define TELPHER_DML_RECORD_SUCCESS 0x01u
#define TELPHER_DML_RECORD_FALSE_PREDICATE 0x02u
#define TELPHER_DML_RECORD_PAGE_FAULT 0x03u
#define TELPHER_DML_RECORD_BATCH_ERROR 0x05u
#define TELPHER_DML_RECORD_INVALID_FLAGS 0x11u
#define TELPHER_DML_RECORD_TRANSFER_SIZE 0x13u

/* A descriptor of the device. */
typedef struct telpher_dml_descriptor {
    TELPHER_DML_ALIGNED(64) uint8_t bytes[64];
} telpher_dml_descriptor;

/* A completion record of the device. Zero until it is written. */
typedef struct telpher_dml_record {
    TELPHER_DML_ALIGNED(32) uint8_t bytes[32];
} telpher_dml_record;

/*
 * One operation: a descriptor, the record that answers it, and what libdml must know about it until it is released.
 * It has 192 bytes and must be aligned to 64. It must neither move nor be freed between submit() and release().
 */
typedef struct telpher_dml_task {
    telpher_dml_descriptor descriptor;
    telpher_dml_record record;
    uint8_t state[96];
} telpher_dml_task;

/* ---- Descriptors: each function overwrites all 64 bytes. Nothing is checked: call validate(). ---------------------------- */

void telpher_dml_make_nop(telpher_dml_descriptor *descriptor, uint32_t flags);
/* list: an array of `count` descriptors, aligned to 64, each bound to a record of its own. */
void telpher_dml_make_batch(telpher_dml_descriptor *descriptor, uint32_t flags, const telpher_dml_descriptor *list, uint32_t count);
void telpher_dml_make_mem_move(telpher_dml_descriptor *descriptor, uint32_t flags, const void *src, void *dst, uint32_t size);
void telpher_dml_make_fill(telpher_dml_descriptor *descriptor, uint32_t flags, uint64_t pattern, void *dst, uint32_t size);
/* expected: 0 equal, 1 different; it counts if CHECK_RESULT is set. */
void telpher_dml_make_compare(telpher_dml_descriptor *descriptor, uint32_t flags, const void *src1, const void *src2, uint32_t size,
                              uint8_t expected);
void telpher_dml_make_compare_pattern(telpher_dml_descriptor *descriptor, uint32_t flags, uint64_t pattern, const void *src,
                                      uint32_t size, uint8_t expected);
/* expected: a mask: 1 equal, 2 different, 4 overflow; it counts if CHECK_RESULT is set. */
void telpher_dml_make_create_delta(telpher_dml_descriptor *descriptor, uint32_t flags, const void *src1, const void *src2,
                                   uint32_t size, void *delta, uint32_t max_delta_size, uint8_t expected);
void telpher_dml_make_apply_delta(telpher_dml_descriptor *descriptor, uint32_t flags, const void *delta, uint32_t delta_size,
                                  void *dst, uint32_t size);
void telpher_dml_make_dualcast(telpher_dml_descriptor *descriptor, uint32_t flags, const void *src, void *dst1, void *dst2,
                               uint32_t size);
void telpher_dml_make_crc(telpher_dml_descriptor *descriptor, uint32_t flags, const void *src, uint32_t size, uint32_t seed);
void telpher_dml_make_copy_crc(telpher_dml_descriptor *descriptor, uint32_t flags, const void *src, void *dst, uint32_t size,
                               uint32_t seed);
void telpher_dml_make_cache_flush(telpher_dml_descriptor *descriptor, uint32_t flags, void *dst, uint32_t size);

/* Clears the record and puts its address into the descriptor. submit() does this for a task's own descriptor; members of a batch
 * need it before each submission of the batch. */
void telpher_dml_bind(telpher_dml_descriptor *descriptor, telpher_dml_record *record);

/*
 * Checks what can be checked without a device. Returns 0, or
 *   4 null address, 15 size, 21 size of a delta operation, 20 alignment of a delta operation, 17 size of a delta record,
 *   19 bits 11:0 of dualcast's destinations differ, 18 overlap, 32 DIF Strip: destination just below the source,
 *   29 fewer than 4 members of a batch, 13 unknown operation.
 * options: TELPHER_DML_COPY_ONLY or 0. The members of a batch are not checked again.
 */
uint32_t telpher_dml_validate(const telpher_dml_descriptor *descriptor, uint32_t options);

/* ---- Tasks -------------------------------------------------------------------------------------------------------------- */

/* Prepares the memory of a task. It must not hold a task that has been submitted and not released. */
void telpher_dml_init(telpher_dml_task *task);

/*
 * Submits a task whose descriptor has been made and validated. A released task can be made and submitted again.
 *
 *   SOFTWARE   the CPU executes it before the function returns
 *   HARDWARE   a queue of a real or virtual device takes it
 *   AUTOMATIC  a queue takes it; if none does, the CPU executes it before the function returns
 *
 * numa_id selects queues on that node, or is TELPHER_DML_ANY_NODE. Returns
 *   0    it has been submitted
 *   102  every queue is full; try again
 *   15   HARDWARE: it exceeds the limits of every queue
 *   13   HARDWARE: no queue offers the operation
 *   100  HARDWARE: there is no queue that this process may use; telpher_dml_last_error() has the reason
 * After any other result than 0 the record is still zero, and there is nothing to wait for.
 */
uint32_t telpher_dml_submit(telpher_dml_task *task, uint32_t path, uint32_t numa_id);

/* Returns 1 if the record is written, or if the task has not been submitted; otherwise 0. On the automatic path it may execute the
 * rest of an operation that stopped at a page fault, and then takes as long as that does. */
int telpher_dml_finished(telpher_dml_task *task);

/* Waits until finished() would return 1. umwait: 0 polls, 1 lets the processor sleep lightly if it can. */
void telpher_dml_wait(telpher_dml_task *task, int umwait);

/* Waits, and ends the task: afterwards no device accesses its memory or buffers. For destructors. Does nothing for a task that has
 * not been submitted or is already released. The record keeps its content. */
void telpher_dml_release(telpher_dml_task *task);

/* ---- Records ------------------------------------------------------------------------------------------------------------ */

/* 0 while the record is not written. */
uint8_t telpher_dml_get_status(const telpher_dml_record *record);
/* compare: 0 equal, 1 different; create_delta: 0 equal, 1 different, 2 overflow. */
uint8_t telpher_dml_get_result(const telpher_dml_record *record);
/* The offset of the first difference, the bytes done before a page fault, or a batch's completed descriptors. */
uint32_t telpher_dml_get_bytes_completed(const telpher_dml_record *record);
uint32_t telpher_dml_get_crc_value(const telpher_dml_record *record);
uint32_t telpher_dml_get_delta_record_size(const telpher_dml_record *record);

/* Converts the status of a record to dml_status_t; 2 while it is not written. */
uint32_t telpher_dml_status_of(const telpher_dml_record *record);

/* ---- Reasons ------------------------------------------------------------------------------------------------------------ */

/* The reason of this thread's last failed submission, or the device's own status of the last job or batch member that was answered
 * with DML_STATUS_INTERNAL_ERROR, as a sentence; "" if there was none. Valid until the thread's next call. */
const char *telpher_dml_last_error(void);

#if defined(__cplusplus)
} /* extern "C" */
#endif

#endif
