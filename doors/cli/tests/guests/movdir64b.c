/*
 * The processor of the tests' virtual machines: gives the CPU that QEMU emulates (TCG) the instruction MOVDIR64B and
 * its CPUID bit, without which Linux's idxd driver does not load. A test instrument, no part of the product: on real
 * machines the processor has the instruction.
 *
 * A plugin for an unmodified QEMU 11.1 (plugin interface 7), built by the tests with gcc. QEMU does not know the opcode
 * and translates it to an invalid-opcode exception (#UD). A callback runs before that exception: it reads the operands
 * and the 64 bytes, writes them to the physical destination, and continues after the instruction. A device gets them as
 * eight writes of eight bytes in ascending order, with no access of the same processor in between.
 *
 * Limits, each of which shows as #UD in the guest: code of 64-bit mode only; a destination or source that is not mapped
 * or not aligned gives #UD instead of #PF or #GP; ENQCMD and ENQCMDS are not supplied. Two limits do not show: the
 * destination's page protection is not checked, and a page of code must not be mapped at two addresses, because the
 * address is the one at translation. So a program that uses the instruction is linked statically at a fixed address.
 *
 * Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, MOVDIR64B, CPUID and section 2
 * (instruction format); QEMU, include/plugins/qemu-plugin.h, whose functions are declared here because Debian does not
 * package the header.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* QEMU's plugin interface, version 7. */
#define EXPORTED __attribute__((visibility("default")))
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_register;
enum { READS_REGISTERS = 1, WRITES_REGISTERS = 2, WRITES_PC = 3 };
typedef void (*processor_callback)(unsigned int processor, void *data);
typedef void (*translation_callback)(struct qemu_plugin_tb *block, void *data);
EXPORTED int qemu_plugin_version = 7;
void qemu_plugin_register_vcpu_init_cb(uint64_t id, processor_callback callback, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translation_callback callback, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, processor_callback callback, int flags,
                                            void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *bytes, size_t size);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
__attribute__((noreturn)) void qemu_plugin_set_pc(uint64_t address);

/* GLib's arrays, as far as the interface uses them. QEMU has loaded the library. */
typedef struct {
    uint8_t *data;
    unsigned int len;
} GByteArray;
typedef struct {
    char *data;
    unsigned int len;
} GArray;
GByteArray *g_byte_array_new(void);
GByteArray *g_byte_array_set_size(GByteArray *, unsigned int size);
GByteArray *g_byte_array_append(GByteArray *, const uint8_t *bytes, unsigned int size);
char *g_array_free(GArray *, int free_segment);

typedef struct {
    struct qemu_plugin_register *handle;
    const char *name;
    const char *feature;
    bool is_readonly;
} register_descriptor;
GArray *qemu_plugin_get_registers(void);
bool qemu_plugin_read_register(struct qemu_plugin_register *, GByteArray *);
bool qemu_plugin_write_register(struct qemu_plugin_register *, GByteArray *);
bool qemu_plugin_read_memory_vaddr(uint64_t address, GByteArray *, size_t size);
bool qemu_plugin_translate_vaddr(uint64_t address, uint64_t *physical);
int qemu_plugin_write_memory_hwaddr(uint64_t physical, GByteArray *);

/* In the order of the instruction encoding. */
static const char *const GENERAL[16] = {"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
                                        "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
enum { RAX = 0, RCX = 1, MOST_PROCESSORS = 16, LONGEST_INSTRUCTION = 15 };

static struct processor {
    struct qemu_plugin_register *general[16], *fs_base, *gs_base;
    GByteArray *bytes;
    /* CPUID is being executed for leaf 7, subleaf 0. */
    bool asks_for_features;
} processors[MOST_PROCESSORS];

static uint64_t read_register(struct processor *of, struct qemu_plugin_register *which)
{
    uint64_t value = 0;
    g_byte_array_set_size(of->bytes, 0);
    if (qemu_plugin_read_register(which, of->bytes) && of->bytes->len >= sizeof value)
        memcpy(&value, of->bytes->data, sizeof value);
    return value;
}

static bool read_memory(struct processor *of, uint64_t address, uint8_t *to, size_t size)
{
    g_byte_array_set_size(of->bytes, 0);
    if (!qemu_plugin_read_memory_vaddr(address, of->bytes, size) || of->bytes->len < size)
        return false;
    memcpy(to, of->bytes->data, size);
    return true;
}

/* An instruction that is being decoded. */
struct decoder {
    struct processor *of;
    uint64_t begin;
    unsigned int length;
    bool failed;
};

/* The next bytes as a signed number. They are read as needed: the page behind the instruction may not be mapped. */
static int64_t next(struct decoder *from, unsigned int size)
{
    uint8_t bytes[4] = {0};
    int32_t value;
    if (from->failed || from->length + size > LONGEST_INSTRUCTION ||
        !read_memory(from->of, from->begin + from->length, bytes, size)) {
        from->failed = true;
        return 0;
    }
    from->length += size;
    memcpy(&value, bytes, sizeof value);
    return size == 1 ? (int8_t)bytes[0] : value;
}

enum { REX_B = 1, REX_X = 2, REX_R = 4 };

struct prefixes {
    bool has_66, has_67, is_other;
    uint8_t segment, rex;
};

/* Adds a prefix; returns false for the first byte of the opcode. */
static bool take_prefix(struct prefixes *all, uint8_t byte)
{
    if (byte >= 0x40 && byte <= 0x4f) {
        all->rex = byte;
        return true;
    }
    switch (byte) {
    case 0x66:
        all->has_66 = true;
        break;
    case 0x67:
        all->has_67 = true;
        break;
    case 0x64:
    case 0x65:
        all->segment = byte;
        break;
    case 0x26:
    case 0x2e:
    case 0x36:
    case 0x3e:
        /* Without effect in 64-bit mode. */
        break;
    case 0xf0:
    case 0xf2:
    case 0xf3:
        /* LOCK is invalid; the others make it ENQCMD and ENQCMDS. */
        all->is_other = true;
        break;
    default:
        return false;
    }
    /* REX has an effect only directly before the opcode. */
    all->rex = 0;
    return true;
}

static uint64_t general(struct processor *of, unsigned int number, bool is_extended)
{
    return read_register(of, of->general[number + (is_extended ? 8 : 0)]);
}

/* The source's offset, from the bytes behind ModRM. */
static uint64_t source_offset(struct decoder *from, uint8_t modrm, uint8_t rex)
{
    unsigned int mod = modrm >> 6, rm = modrm & 7;
    uint64_t offset = 0;
    bool has_long_displacement = mod == 2, is_relative = false;
    if (rm == 4) {
        uint8_t sib = (uint8_t)next(from, 1);
        unsigned int base = sib & 7, index = sib >> 3 & 7;
        if (index != 4 || rex & REX_X)
            offset = general(from->of, index, rex & REX_X) << (sib >> 6);
        if (base == 5 && mod == 0)
            has_long_displacement = true;
        else
            offset += general(from->of, base, rex & REX_B);
    } else if (rm == 5 && mod == 0) {
        has_long_displacement = is_relative = true;
    } else {
        offset = general(from->of, rm, rex & REX_B);
    }
    if (mod == 1)
        offset += (uint64_t)next(from, 1);
    else if (has_long_displacement)
        offset += (uint64_t)next(from, 4);
    /* The displacement ends the instruction. */
    return is_relative ? offset + from->begin + from->length : offset;
}

/* Executes MOVDIR64B. If that is impossible it returns, and QEMU raises #UD. */
static void execute(unsigned int number, void *address)
{
    struct processor *of = &processors[number];
    struct decoder from = {of, (uintptr_t)address, 0, false};
    struct prefixes prefixes = {0};
    uint8_t opcode = (uint8_t)next(&from, 1), modrm, bytes[64];
    uint64_t source, destination, mask, physical;
    while (!from.failed && take_prefix(&prefixes, opcode))
        opcode = (uint8_t)next(&from, 1);
    if (opcode != 0x0f || next(&from, 1) != 0x38 || (uint8_t)next(&from, 1) != 0xf8)
        return;
    modrm = (uint8_t)next(&from, 1);
    /* The source must be in memory. */
    if (from.failed || modrm >> 6 == 3)
        return;
    mask = prefixes.has_67 ? UINT32_MAX : UINT64_MAX;
    source = source_offset(&from, modrm, prefixes.rex) & mask;
    if (prefixes.segment)
        source += read_register(of, prefixes.segment == 0x64 ? of->fs_base : of->gs_base);
    destination = general(of, modrm >> 3 & 7, prefixes.rex & REX_R) & mask;
    if (from.failed || destination % sizeof bytes != 0 || !read_memory(of, source, bytes, sizeof bytes) ||
        !qemu_plugin_translate_vaddr(destination, &physical))
        return;
    g_byte_array_set_size(of->bytes, 0);
    g_byte_array_append(of->bytes, bytes, sizeof bytes);
    /* An address at which no memory and no device is: the store is lost, as on a bus. A device that is being reset has
     * such addresses. */
    (void)qemu_plugin_write_memory_hwaddr(physical, of->bytes);
    qemu_plugin_set_pc(from.begin + from.length);
}

/* Before CPUID. */
static void note_leaf(unsigned int number, void *unused)
{
    struct processor *of = &processors[number];
    (void)unused;
    of->asks_for_features = (uint32_t)read_register(of, of->general[RAX]) == 7 &&
                            (uint32_t)read_register(of, of->general[RCX]) == 0;
}

/* Before the instruction that follows CPUID. */
static void add_feature(unsigned int number, void *unused)
{
    const uint64_t movdir64b = 1 << 28;
    struct processor *of = &processors[number];
    uint64_t features;
    (void)unused;
    if (!of->asks_for_features)
        return;
    of->asks_for_features = false;
    features = read_register(of, of->general[RCX]) | movdir64b;
    g_byte_array_set_size(of->bytes, 0);
    g_byte_array_append(of->bytes, (const uint8_t *)&features, sizeof features);
    qemu_plugin_write_register(of->general[RCX], of->bytes);
}

/* QEMU's translation of the opcode ends before ModRM. */
static bool is_movdir64b(const uint8_t *bytes, size_t size)
{
    struct prefixes prefixes = {0};
    size_t at = 0;
    while (at < size && take_prefix(&prefixes, bytes[at]))
        at++;
    return size >= at + 3 && bytes[at] == 0x0f && bytes[at + 1] == 0x38 && bytes[at + 2] == 0xf8 && prefixes.has_66 &&
           !prefixes.is_other;
}

static void translated(struct qemu_plugin_tb *block, void *unused)
{
    const uint8_t cpuid[2] = {0x0f, 0xa2};
    size_t count = qemu_plugin_tb_n_insns(block);
    bool is_after_cpuid = false;
    (void)unused;
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        uint8_t bytes[LONGEST_INSTRUCTION];
        size_t size = qemu_plugin_insn_data(instruction, bytes, sizeof bytes);
        /* If CPUID ends a block, its answer stays as it is. Linux's code does not have it there. */
        if (is_after_cpuid)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, add_feature, WRITES_REGISTERS, NULL);
        is_after_cpuid = size == sizeof cpuid && memcmp(bytes, cpuid, size) == 0;
        if (is_after_cpuid)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, note_leaf, READS_REGISTERS, NULL);
        else if (is_movdir64b(bytes, size))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, execute, WRITES_PC,
                                                   (void *)(uintptr_t)qemu_plugin_insn_vaddr(instruction));
    }
}

/* Finds the registers by the names that QEMU also tells debuggers. */
static void begin_processor(unsigned int number, void *unused)
{
    GArray *all = qemu_plugin_get_registers();
    const register_descriptor *each = (const register_descriptor *)all->data;
    struct processor *of;
    (void)unused;
    if (number >= MOST_PROCESSORS)
        __builtin_trap();
    of = &processors[number];
    of->bytes = g_byte_array_new();
    for (unsigned int i = 0; i < all->len; i++) {
        for (unsigned int k = 0; k < 16; k++)
            if (strcmp(each[i].name, GENERAL[k]) == 0)
                of->general[k] = each[i].handle;
        if (strcmp(each[i].name, "fs_base") == 0)
            of->fs_base = each[i].handle;
        if (strcmp(each[i].name, "gs_base") == 0)
            of->gs_base = each[i].handle;
    }
    g_array_free(all, true);
}

EXPORTED int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_init_cb(id, begin_processor, NULL);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
    return 0;
}
