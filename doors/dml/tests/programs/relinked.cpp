// An object file as the original's headers make it: it calls the mangled functions of libdmlhl.a, and knows nothing
// of ours. The types have the original's names, because the mangled names contain them.
//
//     relinked software|automatic|hardware
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace dml::detail {

struct alignas(64) descriptor {
    descriptor() noexcept : bytes() {}
    std::uint8_t bytes[64];
};

struct alignas(32) completion_record {
    completion_record() noexcept : bytes() {}
    std::uint8_t bytes[32];
};

enum class nop_flag : std::uint16_t {};
enum class batch_flag : std::uint16_t {};
enum class drain_flag : std::uint16_t {};
enum class mem_move_flag : std::uint16_t {};
enum class fill_flag : std::uint16_t {};
enum class compare_flag : std::uint16_t {};
enum class compare_pattern_flag : std::uint16_t {};
enum class create_delta_flag : std::uint16_t {};
enum class apply_delta_flag : std::uint16_t {};
enum class dualcast_flag : std::uint16_t {};
enum class crc_flag : std::uint16_t {};
enum class copy_crc_flag : std::uint16_t {};
enum class dif_check_flag : std::uint16_t {};
enum class dif_insert_flag : std::uint16_t {};
enum class dif_strip_flag : std::uint16_t {};
enum class dif_update_flag : std::uint16_t {};
enum class cache_flush_flag : std::uint16_t {};
enum class drain_specific_flag : std::uint8_t {};
enum class dualcast_specific_flag : std::uint8_t {};
enum class crc_specific_flag : std::uint8_t {};
enum class dif_specific_flag : std::uint8_t {};
enum class dif_source_flag : std::uint8_t {};
enum class dif_destination_flag : std::uint8_t {};
enum class compare_result : std::uint8_t { equal, not_equal };
enum class create_delta_result : std::uint8_t { equal = 1, not_equal = 2, overflow = 4 };
enum class validation_status { success, null_address, null_size, large_size, overlapping };
enum class submission_status { success, queue_busy, failure };
enum class execution_status : std::uint8_t { processing, success, false_predicate };

struct dif_parameters {
    std::uint32_t ref_tag_seed;
    std::uint16_t app_tag_mask;
    std::uint16_t app_tag_seed;
};

namespace ml {

template <typename flag_t> class options {
  public:
    constexpr explicit options(std::underlying_type_t<flag_t> bits) noexcept : bits_(bits) {}

  private:
    std::underlying_type_t<flag_t> bits_;
};

execution_status get_status(completion_record &record) noexcept;
std::uint8_t get_result(completion_record &record) noexcept;
std::uint32_t get_bytes_completed(completion_record &record) noexcept;
std::uint32_t get_crc_value(completion_record &record) noexcept;
std::uint32_t get_delta_record_size(completion_record &record) noexcept;

namespace impl {

descriptor make_nop_descriptor(options<nop_flag> general) noexcept;
descriptor make_drain_descriptor(std::uintptr_t readback1, std::uintptr_t readback2, options<drain_flag> general,
                                 options<drain_specific_flag> specific) noexcept;
descriptor make_fill_descriptor(std::uint64_t pattern, std::uint8_t *dst, std::uint32_t size,
                                options<fill_flag> general) noexcept;
descriptor make_compare_pattern_descriptor(std::uint64_t pattern, const std::uint8_t *src, std::uint32_t size,
                                           options<compare_pattern_flag> general, compare_result expected) noexcept;
descriptor make_create_delta_descriptor(const std::uint8_t *src1, const std::uint8_t *src2, std::uint32_t size,
                                        std::uint8_t *record, std::uint32_t room, options<create_delta_flag> general,
                                        create_delta_result expected) noexcept;
descriptor make_apply_delta_descriptor(const std::uint8_t *record, std::uint32_t record_size, std::uint8_t *dst,
                                       std::uint32_t size, options<apply_delta_flag> general) noexcept;
descriptor make_dualcast_descriptor(const std::uint8_t *src, std::uint8_t *dst1, std::uint8_t *dst2,
                                    std::uint32_t size, options<dualcast_flag> general,
                                    options<dualcast_specific_flag> specific) noexcept;
descriptor make_copy_crc_descriptor(const std::uint8_t *src, std::uint8_t *dst, std::uint32_t size, std::uint32_t seed,
                                    options<copy_crc_flag> general, options<crc_specific_flag> specific) noexcept;
descriptor make_dif_check_descriptor(const std::uint8_t *src, std::uint32_t size, dif_parameters parameters,
                                     options<dif_check_flag> general, options<dif_specific_flag> specific,
                                     options<dif_source_flag> source) noexcept;
descriptor make_dif_strip_descriptor(const std::uint8_t *src, std::uint8_t *dst, std::uint32_t size,
                                     dif_parameters parameters, options<dif_strip_flag> general,
                                     options<dif_specific_flag> specific, options<dif_source_flag> source) noexcept;
descriptor make_dif_update_descriptor(const std::uint8_t *src, std::uint8_t *dst, std::uint32_t size,
                                      dif_parameters expected, dif_parameters made, options<dif_update_flag> general,
                                      options<dif_specific_flag> specific, options<dif_source_flag> source,
                                      options<dif_destination_flag> destination) noexcept;
descriptor make_cache_flush_descriptor(std::uint8_t *dst, std::uint32_t size,
                                       options<cache_flush_flag> general) noexcept;
descriptor make_mem_move_descriptor(const std::uint8_t *src, std::uint8_t *dst, std::uint32_t size,
                                    options<mem_move_flag> general) noexcept;
descriptor make_compare_descriptor(const std::uint8_t *src1, const std::uint8_t *src2, std::uint32_t size,
                                   options<compare_flag> general, compare_result expected) noexcept;
descriptor make_crc_descriptor(const std::uint8_t *src, std::uint32_t size, std::uint32_t seed,
                               options<crc_flag> general, options<crc_specific_flag> specific) noexcept;
descriptor make_dif_insert_descriptor(const std::uint8_t *src, std::uint8_t *dst, std::uint32_t size,
                                      dif_parameters parameters, options<dif_insert_flag> general,
                                      options<dif_specific_flag> specific,
                                      options<dif_destination_flag> destination) noexcept;
descriptor make_batch_descriptor(const descriptor *list, std::uint32_t length, options<batch_flag> general) noexcept;
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
} // namespace dml::detail

namespace {

using namespace dml::detail;
using ml::options;
namespace impl = ml::impl;

int failures;

void check(bool condition, const char *what, int line) {
    if (!condition) {
        std::printf("line %d: %s\n", line, what);
        failures++;
    }
}
#define CHECK(condition) check((condition), #condition, __LINE__)

// Submits a descriptor until a queue has room; false if none takes it.
template <typename path> bool submitted(descriptor &dsc, completion_record &record) {
    impl::rebind(dsc, record);
    CHECK(path::validate(dsc) == validation_status::success);
    submission_status status = path::submit(dsc, 0xFFFFFFFFU);
    while (status == submission_status::queue_busy) {
        status = path::submit(dsc, 0xFFFFFFFFU);
    }
    return status == submission_status::success;
}

// A descriptor and its record on the stack of the original's execute().
template <typename path> execution_status execute(const descriptor &made, completion_record &record) {
    descriptor dsc = made;
    CHECK(submitted<path>(dsc, record));
    path::wait(dsc, false);
    CHECK(path::finished(dsc));
    return ml::get_status(record);
}

template <typename flag_t> constexpr options<flag_t> no_flags{0};

// The operations that the function below does not make.
template <typename path> void others() {
    constexpr std::uint32_t size = 4096;
    constexpr std::uint64_t pattern = 0x0807060504030201U;
    completion_record record;
    std::vector<std::uint8_t> memory(4 * size), more(2 * size);
    std::uint8_t *const src = memory.data();
    std::uint8_t *const dst = src + size;
    CHECK(execute<path>(impl::make_fill_descriptor(pattern, src, size, no_flags<fill_flag>), record)
          == execution_status::success);
    for (std::uint32_t at = 0; at < size; at++) {
        CHECK(src[at] == at % 8 + 1);
    }
    src[100] ^= 1;
    const options<compare_pattern_flag> checked(0x80);
    CHECK(execute<path>(impl::make_compare_pattern_descriptor(pattern, src, size, checked, compare_result::not_equal),
                        record)
          == execution_status::success);
    CHECK(ml::get_result(record) == 1 && ml::get_bytes_completed(record) == 100);
    CHECK(execute<path>(impl::make_dualcast_descriptor(src, dst, dst + size, size, no_flags<dualcast_flag>,
                                                       no_flags<dualcast_specific_flag>),
                        record)
          == execution_status::success);
    CHECK(std::memcmp(src, dst, size) == 0 && std::memcmp(src, dst + size, size) == 0);
    std::memcpy(src, "123456789", 9);
    CHECK(execute<path>(impl::make_copy_crc_descriptor(src, dst, 9, 0, no_flags<copy_crc_flag>,
                                                       no_flags<crc_specific_flag>),
                        record)
          == execution_status::success);
    CHECK(ml::get_crc_value(record) == 0xE3069283U && std::memcmp(dst, "123456789", 9) == 0);
    CHECK(execute<path>(impl::make_cache_flush_descriptor(dst, size, no_flags<cache_flush_flag>), record)
          == execution_status::success);
    CHECK(execute<path>(impl::make_drain_descriptor(0, 0, no_flags<drain_flag>, no_flags<drain_specific_flag>), record)
          == execution_status::success);

    // Only the words 1 and 12 differ; a device may lack the delta operations.
    std::uint8_t *const delta = more.data();
    std::memcpy(dst, src, size);
    dst[8] ^= 1;
    dst[100] ^= 1;
    descriptor create = impl::make_create_delta_descriptor(src, dst, size, delta, 80, options<create_delta_flag>(0x80),
                                                           create_delta_result::not_equal);
    if (submitted<path>(create, record)) {
        path::wait(create, true);
        CHECK(ml::get_status(record) == execution_status::success && ml::get_result(record) == 1);
        CHECK(ml::get_delta_record_size(record) == 20 && delta[0] == 1 && delta[10] == 12);
        CHECK(execute<path>(impl::make_apply_delta_descriptor(delta, 20, src, size, no_flags<apply_delta_flag>), record)
              == execution_status::success);
        CHECK(std::memcmp(src, dst, size) == 0);
    }

    // Two blocks of zeros with their fields: guards of 0, application tag 5, reference tags 9 and 10.
    constexpr std::uint32_t block = 520;
    const dif_parameters tags{9, 0, 5}, other{20, 0, 6};
    std::memset(src, 0, size);
    for (std::uint32_t at = 0; at < 2; at++) {
        src[at * block + 515] = 5;
        src[at * block + 519] = static_cast<std::uint8_t>(9 + at);
    }
    CHECK(execute<path>(impl::make_dif_check_descriptor(src, 2 * block, tags, no_flags<dif_check_flag>,
                                                        no_flags<dif_specific_flag>, no_flags<dif_source_flag>),
                        record)
          == execution_status::success);
    std::memset(dst, 0x5A, size);
    CHECK(execute<path>(impl::make_dif_update_descriptor(
                            src, dst, 2 * block, tags, other, no_flags<dif_update_flag>, no_flags<dif_specific_flag>,
                            no_flags<dif_source_flag>, no_flags<dif_destination_flag>),
                        record)
          == execution_status::success);
    CHECK(dst[515] == 6 && dst[519] == 20 && dst[block + 519] == 21 && dst[2 * block] == 0x5A);
    std::memset(dst, 0x5A, size);
    CHECK(execute<path>(impl::make_dif_strip_descriptor(src, dst, 2 * block, tags, no_flags<dif_strip_flag>,
                                                        no_flags<dif_specific_flag>, no_flags<dif_source_flag>),
                        record)
          == execution_status::success);
    CHECK(dst[0] == 0 && dst[1023] == 0 && dst[1024] == 0x5A);
}

template <typename path> void everything() {
    others<path>();
    std::vector<std::uint8_t> src(5000), dst(5000);
    for (std::size_t at = 0; at < src.size(); at++) {
        src[at] = static_cast<std::uint8_t>(at * 7 + at / 256);
    }
    const options<mem_move_flag> to_cache(0x100);
    completion_record record;
    descriptor move = impl::make_mem_move_descriptor(src.data(), dst.data(), 5000, to_cache);
    CHECK(execute<path>(move, record) == execution_status::success && src == dst);

    dst[4321] ^= 1;
    descriptor compare = impl::make_compare_descriptor(src.data(), dst.data(), 5000, options<compare_flag>(0x80),
                                                       compare_result::equal);
    CHECK(execute<path>(compare, record) == execution_status::false_predicate && ml::get_result(record) == 1);
    CHECK(ml::get_bytes_completed(record) == 4321);

    // CRC-32C of "123456789". Source: RFC 3720, B.4 has the polynomial; the value is the usual check value.
    descriptor crc = impl::make_crc_descriptor(reinterpret_cast<const std::uint8_t *>("123456789"), 9, 0,
                                               options<crc_flag>(0), options<crc_specific_flag>(0));
    CHECK(execute<path>(crc, record) == execution_status::success && ml::get_crc_value(record) == 0xE3069283U);

    std::vector<descriptor> members(4);
    std::vector<completion_record> records(4);
    std::vector<std::uint8_t> copies(4 * 5000);
    for (std::size_t at = 0; at < members.size(); at++) {
        members[at] = impl::make_mem_move_descriptor(src.data(), copies.data() + at * 5000, 5000, to_cache);
        impl::rebind(members[at], records[at]);
    }
    CHECK(execute<path>(impl::make_batch_descriptor(members.data(), 4, options<batch_flag>(0)), record)
          == execution_status::success);
    CHECK(ml::get_bytes_completed(record) == 4);
    for (std::size_t at = 0; at < members.size(); at++) {
        CHECK(ml::get_status(records[at]) == execution_status::success);
        CHECK(std::memcmp(copies.data() + at * 5000, src.data(), 5000) == 0);
    }

    const descriptor null = impl::make_mem_move_descriptor(nullptr, dst.data(), 5000, to_cache);
    CHECK(path::validate(null) == validation_status::null_address);
    const descriptor empty = impl::make_mem_move_descriptor(src.data(), dst.data(), 0, to_cache);
    CHECK(path::validate(empty) == validation_status::null_size);

    // The guard tag of the first block of 512 zero bytes is 0, and the tags follow it in big-endian order.
    std::vector<std::uint8_t> block(512), tagged(520, 0xEE);
    descriptor dif = impl::make_dif_insert_descriptor(block.data(), tagged.data(), 512, {0x01020304, 0, 0x0506},
                                                      options<dif_insert_flag>(0), options<dif_specific_flag>(0),
                                                      options<dif_destination_flag>(0));
    const std::uint8_t tags[8] = {0, 0, 5, 6, 1, 2, 3, 4};
    CHECK(execute<path>(dif, record) == execution_status::success && std::memcmp(&tagged[512], tags, 8) == 0);

    // A handler of the original that is destroyed while its operation runs leaves its task, until its record is used
    // again.
    impl::rebind(move, record);
    CHECK(path::submit(move, 0xFFFFFFFFU) != submission_status::failure);
    CHECK(execute<path>(move, record) == execution_status::success && src == dst);
    CHECK(execute<path>(impl::make_nop_descriptor(options<nop_flag>(0)), record) == execution_status::success);
}

} // namespace

int main(int argc, char **argv) {
    const std::string path = argc > 1 ? argv[1] : "";
    if (path == "software") {
        everything<impl::software>();
    } else if (path == "automatic") {
        everything<impl::automatic>();
    } else {
        everything<impl::hardware>();
    }
    return failures == 0 ? 0 : 1;
}
