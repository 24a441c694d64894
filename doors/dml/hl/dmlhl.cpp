// SPDX-License-Identifier: MIT OR Apache-2.0
//
// dmlhl.cpp: libdmlhl.a, for C++ object files that were compiled against the original's headers. They call 35
// functions, which this file defines with the same mangled names on libdml's C interface. Programs compiled against
// our dml.hpp need none of them.
//
// The types have the names, sizes and numbers of the original, because the mangled names contain them. Nothing more
// of it is needed: its objects contain its inline code.
#include <dml/detail/telpher.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <pthread.h>
#include <unordered_map>

namespace dml::detail {

using byte_t = std::uint8_t;

struct alignas(64) descriptor {
    byte_t bytes[64];
};

struct alignas(32) completion_record {
    byte_t bytes[32];
};

static_assert(sizeof(descriptor) == sizeof(telpher_dml_descriptor));
static_assert(sizeof(completion_record) == sizeof(telpher_dml_record));

struct dif_parameters {
    std::uint32_t ref_tag_seed;
    std::uint16_t app_tag_mask;
    std::uint16_t app_tag_seed;
};

// Flags of descriptors: bits 15:0.
enum class nop_flag : std::uint16_t;
enum class batch_flag : std::uint16_t;
enum class drain_flag : std::uint16_t;
enum class mem_move_flag : std::uint16_t;
enum class fill_flag : std::uint16_t;
enum class compare_flag : std::uint16_t;
enum class compare_pattern_flag : std::uint16_t;
enum class create_delta_flag : std::uint16_t;
enum class apply_delta_flag : std::uint16_t;
enum class dualcast_flag : std::uint16_t;
enum class crc_flag : std::uint16_t;
enum class copy_crc_flag : std::uint16_t;
enum class dif_check_flag : std::uint16_t;
enum class dif_insert_flag : std::uint16_t;
enum class dif_strip_flag : std::uint16_t;
enum class dif_update_flag : std::uint16_t;
enum class cache_flush_flag : std::uint16_t;
// Flags that depend on the operation: bits 23:16 of the flags, or bytes of their own for DIF.
enum class drain_specific_flag : std::uint8_t;
enum class dualcast_specific_flag : std::uint8_t;
enum class crc_specific_flag : std::uint8_t;
enum class dif_specific_flag : std::uint8_t;
enum class dif_source_flag : std::uint8_t;
enum class dif_destination_flag : std::uint8_t;
// Expected results.
enum class compare_result : std::uint8_t;
enum class create_delta_result : std::uint8_t;

enum class validation_status {
    success,
    null_address,
    null_size,
    large_size,
    overlapping,
    misalignment,
    dif_strip_adjacent,
    wrong_size,
    wrong_delta_size,
    wrong_dif_size,
    wrong_dualcast_address,
    wrong_batch_size,
    unsupported_operation,
    error
};

enum class submission_status { success, queue_busy, failure };

// The status byte of a record.
enum class execution_status : std::uint8_t;

namespace ml {

template <typename flag_t> class options {
  public:
    [[nodiscard]] auto bits() const noexcept { return bits_; }

  private:
    std::underlying_type_t<flag_t> bits_;
};

// The declarations.
execution_status get_status(completion_record &record) noexcept;
std::uint8_t get_result(completion_record &record) noexcept;
std::uint32_t get_bytes_completed(completion_record &record) noexcept;
std::uint32_t get_delta_record_size(completion_record &record) noexcept;
std::uint32_t get_crc_value(completion_record &record) noexcept;

namespace impl {

void rebind(descriptor &dsc, completion_record &record) noexcept;

struct software {
    static validation_status validate(const descriptor &dsc) noexcept;
    static submission_status submit(const descriptor &dsc, std::uint32_t numa_id) noexcept;
    static void wait(const descriptor &dsc, bool umwait) noexcept;
    static bool finished(const descriptor &dsc) noexcept;
};

struct hardware {
    static validation_status validate(const descriptor &dsc) noexcept;
    static submission_status submit(const descriptor &dsc, std::uint32_t numa_id) noexcept;
    static void wait(const descriptor &dsc, bool umwait) noexcept;
    static bool finished(const descriptor &dsc) noexcept;
};

struct automatic {
    static validation_status validate(const descriptor &dsc) noexcept;
    static submission_status submit(const descriptor &dsc, std::uint32_t numa_id) noexcept;
    static void wait(descriptor &dsc, bool umwait) noexcept;
    static bool finished(descriptor &dsc) noexcept;
};

} // namespace impl
} // namespace ml

namespace {

// The operation codes of descriptors that telpher.h does not make.
constexpr byte_t DRAIN = 0x02;
constexpr byte_t DIF_CHECK = 0x12;
constexpr byte_t DIF_INSERT = 0x13;
constexpr byte_t DIF_STRIP = 0x14;
constexpr byte_t DIF_UPDATE = 0x15;

telpher_dml_descriptor *of(descriptor &dsc) noexcept { return reinterpret_cast<telpher_dml_descriptor *>(&dsc); }

const telpher_dml_descriptor *of(const descriptor &dsc) noexcept {
    return reinterpret_cast<const telpher_dml_descriptor *>(&dsc);
}

const telpher_dml_record *of(const completion_record &record) noexcept {
    return reinterpret_cast<const telpher_dml_record *>(&record);
}

template <typename flag_t> std::uint32_t bits(ml::options<flag_t> general) noexcept { return general.bits(); }

template <typename flag_t, typename specific_t>
std::uint32_t bits(ml::options<flag_t> general, ml::options<specific_t> specific) noexcept {
    return general.bits() | static_cast<std::uint32_t>(specific.bits()) << 16U;
}

template <typename value_t> void put(descriptor &dsc, std::size_t at, value_t value) noexcept {
    std::memcpy(dsc.bytes + at, &value, sizeof(value));
}

// The fields that all descriptors have. Sources: the DSA architecture specification, section 8.1, and linux/idxd.h.
descriptor make(byte_t operation, std::uint32_t flags, std::uint64_t first, std::uint64_t second,
                std::uint32_t size) noexcept {
    descriptor dsc{};
    put(dsc, 4, flags | static_cast<std::uint32_t>(operation) << 24U);
    put(dsc, 16, first);
    put(dsc, 24, second);
    put(dsc, 32, size);
    return dsc;
}

std::uint64_t address(const void *pointer) noexcept { return reinterpret_cast<std::uintptr_t>(pointer); }

void put_dif(descriptor &dsc, std::size_t at, const dif_parameters &parameters) noexcept {
    put(dsc, at, parameters.ref_tag_seed);
    put(dsc, at + 4, parameters.app_tag_mask);
    put(dsc, at + 6, parameters.app_tag_seed);
}

validation_status validate(const descriptor &dsc) noexcept {
    switch (telpher_dml_validate(of(dsc), 0)) {
    case 0:
        return validation_status::success;
    case 4:
        return validation_status::null_address;
    case 13:
        return validation_status::unsupported_operation;
    case 15:
        return validation_status::null_size;
    case 17:
        return validation_status::wrong_delta_size;
    case 18:
        return validation_status::overlapping;
    case 19:
        return validation_status::wrong_dualcast_address;
    case 20:
        return validation_status::misalignment;
    case 21:
        return validation_status::wrong_size;
    case 29:
        return validation_status::wrong_batch_size;
    case 32:
        return validation_status::dif_strip_adjacent;
    default:
        return validation_status::error;
    }
}

// The tasks of submitted descriptors, by the addresses of their records. An old object has only the 64 bytes of the
// descriptor and the 32 of the record; libdml keeps more about a task.
class tasks {
    using task_pointer = std::unique_ptr<telpher_dml_task>;

  public:
    submission_status submit(const descriptor &dsc, std::uint32_t path, std::uint32_t numa_id) noexcept {
        completion_record *record = record_of(dsc);
        if (record == nullptr) {
            return submission_status::failure;
        }
        // A handler that was destroyed early has left its task here.
        if (const task_pointer earlier = take(record)) {
            telpher_dml_release(earlier.get());
        }
        task_pointer task(new (std::nothrow) telpher_dml_task);
        if (task == nullptr) {
            return submission_status::failure;
        }
        telpher_dml_init(task.get());
        task->descriptor = *of(dsc);
        const std::uint32_t status = telpher_dml_submit(task.get(), path, numa_id);
        if (status != 0) {
            return status == 102 ? submission_status::queue_busy : submission_status::failure;
        }
        if (telpher_dml_finished(task.get()) != 0 || !keep(record, task)) {
            copy(record, *task);
        }
        return submission_status::success;
    }

    bool finished(const descriptor &dsc) noexcept {
        completion_record *record = record_of(dsc);
        telpher_dml_task *task = find(record);
        if (task == nullptr) {
            return true;
        }
        if (telpher_dml_finished(task) == 0) {
            return false;
        }
        end(record);
        return true;
    }

    void wait(const descriptor &dsc, bool umwait) noexcept {
        completion_record *record = record_of(dsc);
        telpher_dml_task *task = find(record);
        if (task != nullptr) {
            telpher_dml_wait(task, umwait ? 1 : 0);
            end(record);
        }
    }

    // The thread that forks holds the lock, so the table is whole in the child, and unlocked afterwards.
    void lock() noexcept { lock_.lock(); }
    void unlock() noexcept { lock_.unlock(); }

  private:
    static completion_record *record_of(const descriptor &dsc) noexcept {
        completion_record *record = nullptr;
        std::memcpy(&record, dsc.bytes + 8, sizeof(record));
        return record;
    }

    // Ends a task, and shows its record to the old object.
    static void copy(completion_record *record, telpher_dml_task &task) noexcept {
        telpher_dml_release(&task);
        std::memcpy(record->bytes, task.record.bytes, sizeof(record->bytes));
    }

    // Returns false without memory.
    bool keep(completion_record *record, task_pointer &task) noexcept {
        try {
            const std::lock_guard<std::mutex> guard(lock_);
            submitted_.emplace(record, nullptr).first->second = std::move(task);
            return true;
        } catch (const std::bad_alloc &) {
            return false;
        }
    }

    telpher_dml_task *find(completion_record *record) noexcept {
        const std::lock_guard<std::mutex> guard(lock_);
        const auto found = submitted_.find(record);
        return found == submitted_.end() ? nullptr : found->second.get();
    }

    // Removes a task from the table; null if there is none.
    task_pointer take(completion_record *record) noexcept {
        const std::lock_guard<std::mutex> guard(lock_);
        const auto found = submitted_.find(record);
        if (found == submitted_.end()) {
            return nullptr;
        }
        task_pointer task = std::move(found->second);
        submitted_.erase(found);
        return task;
    }

    void end(completion_record *record) noexcept {
        if (const task_pointer task = take(record)) {
            copy(record, *task);
        }
    }

    std::mutex lock_;
    std::unordered_map<completion_record *, task_pointer> submitted_;
};

// Never destroyed: other threads may wait while the process ends.
tasks &all() noexcept {
    alignas(tasks) static unsigned char memory[sizeof(tasks)];
    static tasks &made = []() -> tasks & {
        pthread_atfork([] { all().lock(); }, [] { all().unlock(); }, [] { all().unlock(); });
        return *new (memory) tasks;
    }();
    return made;
}

} // namespace

namespace ml {

execution_status get_status(completion_record &record) noexcept {
    return static_cast<execution_status>(telpher_dml_get_status(of(record)));
}

std::uint8_t get_result(completion_record &record) noexcept { return telpher_dml_get_result(of(record)); }

std::uint32_t get_bytes_completed(completion_record &record) noexcept {
    return telpher_dml_get_bytes_completed(of(record));
}

std::uint32_t get_delta_record_size(completion_record &record) noexcept {
    return telpher_dml_get_delta_record_size(of(record));
}

std::uint32_t get_crc_value(completion_record &record) noexcept { return telpher_dml_get_crc_value(of(record)); }

namespace impl {

void rebind(descriptor &dsc, completion_record &record) noexcept {
    telpher_dml_bind(of(dsc), reinterpret_cast<telpher_dml_record *>(&record));
}

descriptor make_nop_descriptor(options<nop_flag> general) noexcept {
    descriptor dsc;
    telpher_dml_make_nop(of(dsc), bits(general));
    return dsc;
}

descriptor make_drain_descriptor(std::uintptr_t readback1, std::uintptr_t readback2, options<drain_flag> general,
                                 options<drain_specific_flag> specific) noexcept {
    return make(DRAIN, bits(general, specific), readback1, readback2, 0);
}

descriptor make_mem_move_descriptor(const byte_t *src, byte_t *dst, std::uint32_t size,
                                    options<mem_move_flag> general) noexcept {
    descriptor dsc;
    telpher_dml_make_mem_move(of(dsc), bits(general), src, dst, size);
    return dsc;
}

descriptor make_fill_descriptor(std::uint64_t pattern, byte_t *dst, std::uint32_t size,
                                options<fill_flag> general) noexcept {
    descriptor dsc;
    telpher_dml_make_fill(of(dsc), bits(general), pattern, dst, size);
    return dsc;
}

descriptor make_dualcast_descriptor(const byte_t *src, byte_t *dst1, byte_t *dst2, std::uint32_t size,
                                    options<dualcast_flag> general,
                                    options<dualcast_specific_flag> specific) noexcept {
    descriptor dsc;
    telpher_dml_make_dualcast(of(dsc), bits(general, specific), src, dst1, dst2, size);
    return dsc;
}

descriptor make_compare_descriptor(const byte_t *src1, const byte_t *src2, std::uint32_t size,
                                   options<compare_flag> general, compare_result expected) noexcept {
    descriptor dsc;
    telpher_dml_make_compare(of(dsc), bits(general), src1, src2, size, static_cast<std::uint8_t>(expected));
    return dsc;
}

descriptor make_compare_pattern_descriptor(std::uint64_t pattern, const byte_t *src, std::uint32_t size,
                                           options<compare_pattern_flag> general, compare_result expected) noexcept {
    descriptor dsc;
    telpher_dml_make_compare_pattern(of(dsc), bits(general), pattern, src, size, static_cast<std::uint8_t>(expected));
    return dsc;
}

descriptor make_crc_descriptor(const byte_t *src, std::uint32_t size, std::uint32_t seed, options<crc_flag> general,
                               options<crc_specific_flag> specific) noexcept {
    descriptor dsc;
    telpher_dml_make_crc(of(dsc), bits(general, specific), src, size, seed);
    return dsc;
}

descriptor make_copy_crc_descriptor(const byte_t *src, byte_t *dst, std::uint32_t size, std::uint32_t seed,
                                    options<copy_crc_flag> general, options<crc_specific_flag> specific) noexcept {
    descriptor dsc;
    telpher_dml_make_copy_crc(of(dsc), bits(general, specific), src, dst, size, seed);
    return dsc;
}

descriptor make_create_delta_descriptor(const byte_t *src1, const byte_t *src2, std::uint32_t size, byte_t *delta,
                                        std::uint32_t max_delta_size, options<create_delta_flag> general,
                                        create_delta_result expected) noexcept {
    descriptor dsc;
    telpher_dml_make_create_delta(of(dsc), bits(general), src1, src2, size, delta, max_delta_size,
                                  static_cast<std::uint8_t>(expected));
    return dsc;
}

descriptor make_apply_delta_descriptor(const byte_t *delta, std::uint32_t delta_size, byte_t *dst, std::uint32_t size,
                                       options<apply_delta_flag> general) noexcept {
    descriptor dsc;
    telpher_dml_make_apply_delta(of(dsc), bits(general), delta, delta_size, dst, size);
    return dsc;
}

descriptor make_cache_flush_descriptor(byte_t *dst, std::uint32_t size, options<cache_flush_flag> general) noexcept {
    descriptor dsc;
    telpher_dml_make_cache_flush(of(dsc), bits(general), dst, size);
    return dsc;
}

descriptor make_dif_check_descriptor(const byte_t *src, std::uint32_t size, dif_parameters src_parameters,
                                     options<dif_check_flag> general, options<dif_specific_flag> specific,
                                     options<dif_source_flag> source) noexcept {
    descriptor dsc = make(DIF_CHECK, bits(general), address(src), 0, size);
    put(dsc, 40, source.bits());
    put(dsc, 42, specific.bits());
    put_dif(dsc, 48, src_parameters);
    return dsc;
}

descriptor make_dif_insert_descriptor(const byte_t *src, byte_t *dst, std::uint32_t size,
                                      dif_parameters dst_parameters, options<dif_insert_flag> general,
                                      options<dif_specific_flag> specific,
                                      options<dif_destination_flag> destination) noexcept {
    descriptor dsc = make(DIF_INSERT, bits(general), address(src), address(dst), size);
    put(dsc, 41, destination.bits());
    put(dsc, 42, specific.bits());
    put_dif(dsc, 56, dst_parameters);
    return dsc;
}

descriptor make_dif_strip_descriptor(const byte_t *src, byte_t *dst, std::uint32_t size, dif_parameters src_parameters,
                                     options<dif_strip_flag> general, options<dif_specific_flag> specific,
                                     options<dif_source_flag> source) noexcept {
    descriptor dsc = make(DIF_STRIP, bits(general), address(src), address(dst), size);
    put(dsc, 40, source.bits());
    put(dsc, 42, specific.bits());
    put_dif(dsc, 48, src_parameters);
    return dsc;
}

descriptor make_dif_update_descriptor(const byte_t *src, byte_t *dst, std::uint32_t size,
                                      dif_parameters src_parameters, dif_parameters dst_parameters,
                                      options<dif_update_flag> general, options<dif_specific_flag> specific,
                                      options<dif_source_flag> source,
                                      options<dif_destination_flag> destination) noexcept {
    descriptor dsc = make(DIF_UPDATE, bits(general), address(src), address(dst), size);
    put(dsc, 40, source.bits());
    put(dsc, 41, destination.bits());
    put(dsc, 42, specific.bits());
    put_dif(dsc, 48, src_parameters);
    put_dif(dsc, 56, dst_parameters);
    return dsc;
}

descriptor make_batch_descriptor(const descriptor *list, std::uint32_t length, options<batch_flag> general) noexcept {
    descriptor dsc;
    telpher_dml_make_batch(of(dsc), bits(general), reinterpret_cast<const telpher_dml_descriptor *>(list), length);
    return dsc;
}

validation_status software::validate(const descriptor &dsc) noexcept { return detail::validate(dsc); }

submission_status software::submit(const descriptor &dsc, std::uint32_t numa_id) noexcept {
    return all().submit(dsc, TELPHER_DML_SOFTWARE, numa_id);
}

void software::wait(const descriptor &dsc, bool umwait) noexcept { all().wait(dsc, umwait); }

bool software::finished(const descriptor &dsc) noexcept { return all().finished(dsc); }

validation_status hardware::validate(const descriptor &dsc) noexcept { return detail::validate(dsc); }

submission_status hardware::submit(const descriptor &dsc, std::uint32_t numa_id) noexcept {
    return all().submit(dsc, TELPHER_DML_HARDWARE, numa_id);
}

void hardware::wait(const descriptor &dsc, bool umwait) noexcept { all().wait(dsc, umwait); }

bool hardware::finished(const descriptor &dsc) noexcept { return all().finished(dsc); }

validation_status automatic::validate(const descriptor &dsc) noexcept { return detail::validate(dsc); }

submission_status automatic::submit(const descriptor &dsc, std::uint32_t numa_id) noexcept {
    return all().submit(dsc, TELPHER_DML_AUTOMATIC, numa_id);
}

void automatic::wait(descriptor &dsc, bool umwait) noexcept { all().wait(dsc, umwait); }

bool automatic::finished(descriptor &dsc) noexcept { return all().finished(dsc); }

} // namespace impl
} // namespace ml
} // namespace dml::detail
