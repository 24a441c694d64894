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

enum class mem_move_flag : std::uint16_t { cache_control = 0x100 };
enum class compare_flag : std::uint16_t { check_result = 0x80 };
enum class crc_flag : std::uint16_t {};
enum class crc_specific_flag : std::uint8_t {};
enum class batch_flag : std::uint16_t {};
enum class nop_flag : std::uint16_t { fence = 1 };
enum class compare_result : std::uint8_t { equal, not_equal };
enum class dif_insert_flag : std::uint16_t {};
enum class dif_specific_flag : std::uint8_t {};
enum class dif_destination_flag : std::uint8_t {};
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

namespace impl {

descriptor make_nop_descriptor(options<nop_flag> general) noexcept;
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

// A descriptor and its record on the stack of the original's execute().
template <typename path> execution_status execute(const descriptor &made, completion_record &record) {
    descriptor dsc = made;
    impl::rebind(dsc, record);
    CHECK(path::validate(dsc) == validation_status::success);
    submission_status submitted = path::submit(dsc, 0xFFFFFFFFU);
    while (submitted == submission_status::queue_busy) {
        submitted = path::submit(dsc, 0xFFFFFFFFU);
    }
    CHECK(submitted == submission_status::success);
    path::wait(dsc, false);
    CHECK(path::finished(dsc));
    return ml::get_status(record);
}

template <typename path> void everything() {
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
