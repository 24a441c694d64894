/*
 * The Data Mover Library's interface for C, in telpher's replacement: copies and other operations on memory, executed by the
 * CPU or by a Data Streaming Accelerator.
 *
 * ---- One job
 *
 *   uint32_t size;
 *   dml_get_job_size(DML_PATH_AUTO, &size);
 *   dml_job_t *job = malloc(size);
 *   dml_init_job(DML_PATH_AUTO, job);
 *   job->operation = DML_OP_MEM_MOVE;
 *   job->source_first_ptr = from;
 *   job->destination_first_ptr = to;
 *   job->source_length = bytes;
 *   dml_status_t status = dml_execute_job(job, DML_WAIT_MODE_BUSY_POLL);
 *   dml_finalize_job(job);
 *   free(job);
 *
 * ---- Rules for all functions
 *
 *   - A NULL where a pointer is needed is answered with DML_STATUS_NULL_POINTER_ERROR.
 *   - A job is used by one thread at a time. Different jobs are independent.
 *   - No function allocates memory for a job. A job that is not running may be freed without dml_finalize_job().
 *   - A job is submitted as often as needed; operation and pointers may change when it is not running.
 *   - In a forked child, jobs that the parent has submitted do not go on. The CPU executes them on the automatic path; on the
 *     hardware path they end with DML_STATUS_INTL_HARDWARE_TIMEOUT. New submissions work.
 *
 * ---- What must stay alive
 *
 *   From a submission until dml_check_job(), dml_wait_job() or dml_execute_job() has answered something other than
 *   DML_STATUS_BEING_PROCESSED, or dml_finalize_job() has returned: the job's memory, its buffers, the CRC, and a batch's buffer
 *   with the buffers of all its members. Meanwhile no other code writes the sources or accesses the destinations.
 */
#ifndef DML_H__
#define DML_H__

#include "dmldefs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version of the interface. Never NULL; never freed. */
const dml_library_version_t *dml_get_library_version(void);

/* ---- Jobs ----------------------------------------------------------------------------------------------------------------- */

/* Writes the bytes of a job's memory, 376 for every path. Statuses: NULL_POINTER_ERROR, PATH_ERROR. */
dml_status_t dml_get_job_size(dml_path_t dml_path, uint32_t *job_size_ptr);

/* Clears a job's memory and prepares it for a path. The job must not be running. Statuses: NULL_POINTER_ERROR, PATH_ERROR. */
dml_status_t dml_init_job(dml_path_t path, dml_job_t *dml_job_ptr);

/* Ends a job. A running job is waited for. It may be called twice, and the job may be submitted again. */
dml_status_t dml_finalize_job(dml_job_t *dml_job_ptr);

/* Submits a job and waits for its end: dml_submit_job(), then dml_wait_job(). */
dml_status_t dml_execute_job(dml_job_t *dml_job_ptr, dml_wait_mode_t wait_mode);

/* Checks a job and submits it. On the software path the CPU executes it before the function returns; so it does on the automatic
 * path if no queue takes it. A status other than OK means that it has not been submitted. */
dml_status_t dml_submit_job(dml_job_t *dml_job_ptr);

/* Waits for the end of a submitted job, and writes its results. May be called again. JOB_CORRUPTED: it was not submitted. */
dml_status_t dml_wait_job(dml_job_t *dml_job_ptr, dml_wait_mode_t wait_mode);

/* BEING_PROCESSED while a submitted job is running; else as dml_wait_job(). */
dml_status_t dml_check_job(dml_job_t *dml_job_ptr);

/* ---- Batches: DML_OP_BATCH -------------------------------------------------------------------------------------------------- */

/*
 * Writes the bytes of the buffer for a batch. Store the buffer in destination_first_ptr and its bytes in destination_length, set
 * every member, then submit the job. A batch can be submitted again. Statuses: NULL_POINTER_ERROR, BATCH_SIZE_ERROR.
 *
 * The functions that set a member answer NULL_POINTER_ERROR, BATCH_TASK_INDEX_OVERFLOW, or what dml_submit_job() would answer for
 * such a job; then the member is not stored. The seed of a CRC is read when the member is set.
 */
dml_status_t dml_get_batch_size(const dml_job_t *dml_job_ptr, uint32_t task_count, uint32_t *byte_size_ptr);

dml_status_t dml_batch_set_nop_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, dml_operation_flags_t flags);

dml_status_t dml_batch_set_mem_move_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr,
                                             uint8_t *destination_ptr, uint32_t byte_length, dml_operation_flags_t flags);

dml_status_t dml_batch_set_dualcast_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr,
                                             uint8_t *destination_first_ptr, uint8_t *destination_second_ptr, uint32_t byte_length,
                                             dml_operation_flags_t flags);

dml_status_t dml_batch_set_compare_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_first_ptr,
                                            uint8_t *source_second_ptr, uint32_t byte_length, dml_meta_result_t expected_result,
                                            dml_operation_flags_t flags);

dml_status_t dml_batch_set_compare_pattern_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr,
                                                    uint8_t *pattern_ptr, uint32_t byte_length, dml_meta_result_t expected_result,
                                                    dml_operation_flags_t flags);

dml_status_t dml_batch_set_crc_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr, uint32_t byte_length,
                                        uint32_t *crc_seed_ptr, dml_operation_flags_t flags);

dml_status_t dml_batch_set_copy_crc_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr, uint32_t byte_length,
                                             uint32_t *crc_seed_ptr, uint8_t *destination_ptr, dml_operation_flags_t flags);

dml_status_t dml_batch_set_fill_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, const uint8_t *pattern_ptr,
                                         uint8_t *destination_ptr, uint32_t byte_length, dml_operation_flags_t flags);

dml_status_t dml_batch_set_cache_flush_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *destination_ptr,
                                                uint32_t byte_length, dml_operation_flags_t flags);

dml_status_t dml_batch_set_delta_create_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr,
                                                 uint8_t *reference_ptr, uint32_t compare_length, uint8_t *delta_record_ptr,
                                                 uint32_t delta_record_length, dml_meta_result_t expected_result,
                                                 dml_operation_flags_t flags);

dml_status_t dml_batch_set_delta_apply_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *delta_record_ptr,
                                                uint32_t delta_record_length, uint8_t *destination_ptr, uint32_t destination_length,
                                                dml_operation_flags_t flags);

dml_status_t dml_batch_set_dif_check_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr,
                                              uint32_t source_length, const dml_dif_config_t *dif_config_ptr,
                                              dml_operation_flags_t flags);

/* The size of the source decides; destination_length is not checked. */
dml_status_t dml_batch_set_dif_update_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr,
                                               uint32_t source_length, const dml_dif_config_t *dif_config_ptr,
                                               uint8_t *destination_ptr, uint32_t destination_length, dml_operation_flags_t flags);

dml_status_t dml_batch_set_dif_insert_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr,
                                               uint32_t source_length, const dml_dif_config_t *dif_config_ptr,
                                               uint8_t *destination_ptr, uint32_t destination_length, dml_operation_flags_t flags);

dml_status_t dml_batch_set_dif_strip_by_index(dml_job_t *dml_job_ptr, uint32_t task_index, uint8_t *source_ptr,
                                              uint32_t source_length, const dml_dif_config_t *dif_config_ptr,
                                              uint8_t *destination_ptr, uint32_t destination_length, dml_operation_flags_t flags);

/*
 * After the end of a batch: the result, the status and the CRC of a member. The status is INTERNAL_ERROR for a member that was not
 * executed. (In Intel's library the first of them writes the status.) Statuses: NULL_POINTER_ERROR, BATCH_TASK_INDEX_OVERFLOW.
 */
dml_status_t dml_batch_get_result(const dml_job_t *dml_job_ptr, uint32_t task_index, uint32_t *result_ptr);
dml_status_t dml_batch_get_status(const dml_job_t *dml_job_ptr, uint32_t task_index, dml_status_t *status_ptr);
dml_status_t dml_batch_get_crc(const dml_job_t *dml_job_ptr, uint32_t task_index, uint32_t *crc_ptr);

#ifdef __cplusplus
}
#endif

#endif /* DML_H__ */
