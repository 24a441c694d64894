//! This crate agrees with the kernel's header `linux/idxd.h` (UAPI; package `linux-libc-dev`).
//!
//! The test compiles a small C program against the header of this machine. The program sets one field at a time and
//! prints the bytes of the whole structure, so that offset, width and bit position of every field are visible,
//! including bit fields. It also prints every constant of the header. The names below are those of Linux 6.1 (Debian
//! 12). A newer header may have more constants; this crate must only be able to decode them.

use crate::skip;
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use telpher_abi::{CompletionRecord, Descriptor, Flags, Opcode, Status};

/// The contents of the header.
#[derive(Debug)]
struct Header {
    /// Macros and enumerators by name.
    constants: BTreeMap<String, u64>,
    /// Bytes of a structure after one field was set: by structure, field and index of the probe value.
    bytes: BTreeMap<(String, String, usize), Vec<u8>>,
    /// `sizeof` by structure.
    sizes: BTreeMap<String, usize>,
}

/// Stored into every field: all ones show its width, the second value the order of its bytes.
const PROBES: [u64; 2] = [u64::MAX, 0x8877_6655_4433_2211];
/// The constants that are compared.
const PREFIXES: [&str; 3] = ["DSA_OPCODE_", "DSA_COMP_", "IDXD_OP_FLAG_"];

fn header() -> Result<&'static Header, &'static str> {
    static HEADER: OnceLock<Result<Header, String>> = OnceLock::new();
    HEADER.get_or_init(read_header).as_ref().map_err(String::as_str)
}

fn read_header() -> Result<Header, String> {
    let text = preprocess().map_err(|e| format!("linux/idxd.h cannot be read by `cc` ({e})"))?;
    let names: BTreeSet<&str> = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)))
        .collect();

    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (dir.join("uapi-probe.c"), dir.join("uapi-probe"));
    std::fs::write(&source, probe_source(&names)).expect("the target directory is writable");
    let compiled = Command::new("cc").arg("-w").arg("-o").args([&program, &source]).output().expect("cc ran before");
    assert!(compiled.status.success(), "the header lost a field: {}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(&program).output().expect("the compiled program runs");
    assert!(run.status.success());
    Ok(parse(&String::from_utf8(run.stdout).expect("the program prints ASCII")))
}

fn preprocess() -> std::io::Result<String> {
    let mut cc = Command::new("cc")
        .args(["-E", "-dD", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    cc.stdin.take().expect("piped").write_all(b"#include <linux/idxd.h>\n")?;
    let output = cc.wait_with_output()?;
    if !output.status.success() {
        return Err(std::io::Error::other("the compiler does not find it"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The C program: lines `constant NAME VALUE`, `size STRUCT BYTES` and `field STRUCT NAME PROBE HEX`.
fn probe_source(names: &BTreeSet<&str>) -> String {
    let mut c = String::from(
        "#include <stdio.h>\n#include <string.h>\n#include <linux/idxd.h>\n\
         static void dump(const void *p, unsigned long n) {\n\
         const unsigned char *b = p; while (n--) printf(\"%02x\", *b++); printf(\"\\n\"); }\n\
         #define FIELD(type, name, i, v) do { struct type w; memset(&w, 0, sizeof w); w.name = (v); \\\n\
         printf(\"field %s %s %d \", #type, #name, i); dump((void *)&w, sizeof w); } while (0)\n\
         int main(void) {\n",
    );
    for name in names {
        writeln!(c, "printf(\"constant %s %llu\\n\", \"{name}\", (unsigned long long)({name}));").expect("a string");
    }
    let fields = DESCRIPTOR.iter().map(|f| ("dsa_hw_desc", f.name));
    for (structure, name) in fields.chain(RECORD.iter().map(|f| ("dsa_completion_record", f.name))) {
        for (i, probe) in PROBES.iter().enumerate() {
            writeln!(c, "FIELD({structure}, {name}, {i}, {probe:#x}ull);").expect("a string");
        }
    }
    for structure in ["dsa_hw_desc", "dsa_completion_record"] {
        writeln!(c, "printf(\"size {structure} %lu\\n\", sizeof(struct {structure}));").expect("a string");
    }
    c + "return 0; }\n"
}

fn parse(printed: &str) -> Header {
    let mut header = Header { constants: BTreeMap::new(), bytes: BTreeMap::new(), sizes: BTreeMap::new() };
    for line in printed.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["constant", name, value] => {
                header.constants.insert(name.into(), value.parse().expect("a number"));
            }
            ["size", structure, bytes] => {
                header.sizes.insert(structure.into(), bytes.parse().expect("a number"));
            }
            ["field", structure, name, probe, hex] => {
                let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).expect("two hexadecimal digits");
                let bytes = (0..hex.len()).step_by(2).map(byte).collect();
                header.bytes.insert((structure.into(), name.into(), probe.parse().expect("an index")), bytes);
            }
            _ => panic!("unexpected line {line:?}"),
        }
    }
    header
}

/// A field: the header's name, and our setter and getter.
struct Field<T> {
    name: &'static str,
    set: fn(u64) -> T,
    get: fn(&T) -> u64,
}

macro_rules! fields {
    ($t:ident: $($name:literal = $get:ident / $with:ident;)*) => {
        &[$(Field {
            name: $name,
            set: |v| $t::default().$with(Value::from_u64(v)),
            get: |word| word.$get().into_u64(),
        }),*]
    };
}

const DESCRIPTOR: &[Field<Descriptor>] = fields! { Descriptor:
    "pasid" = pasid / with_pasid;
    "rsvd" = trusted_reserved / with_trusted_reserved;
    "priv" = privileged / with_privileged;
    "flags" = flags / with_flags;
    "opcode" = opcode_code / with_opcode_code;
    "completion_addr" = completion_address / with_completion_address;
    "src_addr" = src / with_src;
    "rdback_addr" = src / with_src;
    "pattern" = src / with_src;
    "desc_list_addr" = src / with_src;
    "dst_addr" = dst / with_dst;
    "rdback_addr2" = dst / with_dst;
    "src2_addr" = dst / with_dst;
    "comp_pattern" = dst / with_dst;
    "xfer_size" = size / with_size;
    "desc_count" = size / with_size;
    "int_handle" = interrupt_handle / with_interrupt_handle;
    "expected_res" = expected_result / with_expected_result;
    "delta_addr" = delta_address / with_delta_address;
    "max_delta_size" = max_delta_size / with_max_delta_size;
    "expected_res_mask" = expected_result_mask / with_expected_result_mask;
    "delta_rec_size" = delta_record_size / with_delta_record_size;
    "dest2" = dst2 / with_dst2;
    "crc_seed" = crc_seed / with_crc_seed;
    "seed_addr" = crc_seed_address / with_crc_seed_address;
    "src_dif_flags" = source_dif_flags / with_source_dif_flags;
    "dif_chk_flags" = dif_flags / with_dif_flags;
    "chk_ref_tag_seed" = source_ref_tag / with_source_ref_tag;
    "chk_app_tag_mask" = source_app_tag_mask / with_source_app_tag_mask;
    "chk_app_tag_seed" = source_app_tag / with_source_app_tag;
    "dest_dif_flag" = dest_dif_flags / with_dest_dif_flags;
    "dif_ins_flags" = dif_flags / with_dif_flags;
    "ins_ref_tag_seed" = dest_ref_tag / with_dest_ref_tag;
    "ins_app_tag_mask" = dest_app_tag_mask / with_dest_app_tag_mask;
    "ins_app_tag_seed" = dest_app_tag / with_dest_app_tag;
    "src_upd_flags" = source_dif_flags / with_source_dif_flags;
    "upd_dest_flags" = dest_dif_flags / with_dest_dif_flags;
    "dif_upd_flags" = dif_flags / with_dif_flags;
    "src_ref_tag_seed" = source_ref_tag / with_source_ref_tag;
    "src_app_tag_mask" = source_app_tag_mask / with_source_app_tag_mask;
    "src_app_tag_seed" = source_app_tag / with_source_app_tag;
    "dest_ref_tag_seed" = dest_ref_tag / with_dest_ref_tag;
    "dest_app_tag_mask" = dest_app_tag_mask / with_dest_app_tag_mask;
    "dest_app_tag_seed" = dest_app_tag / with_dest_app_tag;
};

const RECORD: &[Field<CompletionRecord>] = fields! { CompletionRecord:
    "status" = status_code / with_status_code;
    "result" = result / with_result;
    "dif_status" = result / with_result;
    "bytes_completed" = bytes_completed / with_bytes_completed;
    "fault_addr" = fault_address / with_fault_address;
    "invalid_flags" = invalid_flags / with_invalid_flags;
    "delta_rec_size" = delta_record_size / with_delta_record_size;
    "crc_val" = crc64 / with_crc64;
    "dif_chk_ref_tag" = source_ref_tag / with_source_ref_tag;
    "dif_chk_app_tag_mask" = source_app_tag_mask / with_source_app_tag_mask;
    "dif_chk_app_tag" = source_app_tag / with_source_app_tag;
    "dif_ins_ref_tag" = dest_ref_tag / with_dest_ref_tag;
    "dif_ins_app_tag_mask" = dest_app_tag_mask / with_dest_app_tag_mask;
    "dif_ins_app_tag" = dest_app_tag / with_dest_app_tag;
    "dif_upd_src_ref_tag" = source_ref_tag / with_source_ref_tag;
    "dif_upd_src_app_tag_mask" = source_app_tag_mask / with_source_app_tag_mask;
    "dif_upd_src_app_tag" = source_app_tag / with_source_app_tag;
    "dif_upd_dest_ref_tag" = dest_ref_tag / with_dest_ref_tag;
    "dif_upd_dest_app_tag_mask" = dest_app_tag_mask / with_dest_app_tag_mask;
    "dif_upd_dest_app_tag" = dest_app_tag / with_dest_app_tag;
};

/// For each field and probe: our setter makes the header's bytes, and our getter decodes the header's bytes to the same
/// value.
fn compare_fields<T, const N: usize>(
    header: &Header,
    structure: &str,
    fields: &[Field<T>],
    to: fn(&T) -> [u8; N],
    from: fn(&[u8; N]) -> T,
) {
    for (field, (i, probe)) in fields.iter().flat_map(|f| PROBES.iter().enumerate().map(move |p| (f, p))) {
        let theirs = &header.bytes[&(structure.to_owned(), field.name.to_owned(), i)];
        let ours = (field.set)(*probe);
        assert_eq!(to(&ours)[..], theirs[..], "{structure}.{} = {probe:#x}", field.name);
        let read = from(theirs[..].try_into().expect("the structure has our size"));
        assert_eq!((field.get)(&read), (field.get)(&ours), "reading {structure}.{}", field.name);
    }
}

/// Each of our names has the header's value. All other constants of the header under `prefix` go to `other`.
fn compare_constants(header: &Header, prefix: &str, ours: &[(&str, u64)], mut other: impl FnMut(&str, u64)) {
    for (name, value) in ours {
        let theirs = header.constants.get(*name).unwrap_or_else(|| panic!("the header has no {name}"));
        assert_eq!(value, theirs, "{name}");
    }
    for (name, value) in header.constants.iter().filter(|(name, _)| name.starts_with(prefix)) {
        if !ours.iter().any(|(ours, _)| ours == name) {
            other(name, *value);
        }
    }
}

#[test]
fn descriptor_fields_are_where_the_kernel_has_them() {
    match header() {
        Ok(header) => {
            assert_eq!(header.sizes["dsa_hw_desc"], size_of::<Descriptor>());
            let (to, from) = (Descriptor::to_bytes, Descriptor::from_bytes);
            compare_fields(header, "dsa_hw_desc", DESCRIPTOR, to, from);
        }
        Err(reason) => skip::skip("descriptor_fields_are_where_the_kernel_has_them", reason),
    }
}

#[test]
fn record_fields_are_where_the_kernel_has_them() {
    match header() {
        Ok(header) => {
            assert_eq!(header.sizes["dsa_completion_record"], size_of::<CompletionRecord>());
            let (to, from) = (CompletionRecord::to_bytes, CompletionRecord::from_bytes);
            compare_fields(header, "dsa_completion_record", RECORD, to, from);
        }
        Err(reason) => skip::skip("record_fields_are_where_the_kernel_has_them", reason),
    }
}

#[test]
fn opcodes_are_the_kernels() {
    let header = match header() {
        Ok(header) => header,
        Err(reason) => return skip::skip("opcodes_are_the_kernels", reason),
    };
    let ours = [
        ("DSA_OPCODE_NOOP", Opcode::Nop),
        ("DSA_OPCODE_BATCH", Opcode::Batch),
        ("DSA_OPCODE_DRAIN", Opcode::Drain),
        ("DSA_OPCODE_MEMMOVE", Opcode::MemoryMove),
        ("DSA_OPCODE_MEMFILL", Opcode::Fill),
        ("DSA_OPCODE_COMPARE", Opcode::Compare),
        ("DSA_OPCODE_COMPVAL", Opcode::ComparePattern),
        ("DSA_OPCODE_CR_DELTA", Opcode::CreateDelta),
        ("DSA_OPCODE_AP_DELTA", Opcode::ApplyDelta),
        ("DSA_OPCODE_DUALCAST", Opcode::Dualcast),
        ("DSA_OPCODE_CRCGEN", Opcode::CrcGeneration),
        ("DSA_OPCODE_COPY_CRC", Opcode::CopyCrc),
        ("DSA_OPCODE_DIF_CHECK", Opcode::DifCheck),
        ("DSA_OPCODE_DIF_INS", Opcode::DifInsert),
        ("DSA_OPCODE_DIF_STRP", Opcode::DifStrip),
        ("DSA_OPCODE_DIF_UPDT", Opcode::DifUpdate),
        ("DSA_OPCODE_CFLUSH", Opcode::CacheFlush),
    ]
    .map(|(name, opcode)| (name, u64::from(opcode.code())));
    compare_constants(header, "DSA_OPCODE_", &ours, |name, value| {
        let code = u8::try_from(value).unwrap_or_else(|_| panic!("{name} = {value} is not a byte"));
        assert_eq!(Opcode::from_code(code).code(), code, "{name}");
    });
}

#[test]
fn status_codes_are_the_kernels() {
    let header = match header() {
        Ok(header) => header,
        Err(reason) => return skip::skip("status_codes_are_the_kernels", reason),
    };
    let ours = [
        ("DSA_COMP_NONE", Status::None),
        ("DSA_COMP_SUCCESS", Status::Success),
        ("DSA_COMP_SUCCESS_PRED", Status::SuccessPredicateFalse),
        ("DSA_COMP_PAGE_FAULT_NOBOF", Status::PageFault),
        ("DSA_COMP_PAGE_FAULT_IR", Status::PageFaultRefused),
        ("DSA_COMP_BATCH_FAIL", Status::BatchFail),
        ("DSA_COMP_BATCH_PAGE_FAULT", Status::BatchPageFault),
        ("DSA_COMP_DR_OFFSET_NOINC", Status::DeltaOffsetOrder),
        ("DSA_COMP_DR_OFFSET_ERANGE", Status::DeltaOffsetRange),
        ("DSA_COMP_DIF_ERR", Status::DifError),
        ("DSA_COMP_BAD_OPCODE", Status::BadOpcode),
        ("DSA_COMP_INVALID_FLAGS", Status::InvalidFlags),
        ("DSA_COMP_NOZERO_RESERVE", Status::NonZeroReserved),
        ("DSA_COMP_XFER_ERANGE", Status::TransferSizeRange),
        ("DSA_COMP_DESC_CNT_ERANGE", Status::DescriptorCountRange),
        ("DSA_COMP_DR_ERANGE", Status::FieldRange),
        ("DSA_COMP_OVERLAP_BUFFERS", Status::Overlap),
        ("DSA_COMP_DCAST_ERR", Status::DualcastAlignment),
        ("DSA_COMP_DESCLIST_ALIGN", Status::DescriptorListAlignment),
        ("DSA_COMP_INT_HANDLE_INVAL", Status::InterruptHandle),
        ("DSA_COMP_CRA_XLAT", Status::CompletionRecordFault),
        ("DSA_COMP_CRA_ALIGN", Status::CompletionRecordAlignment),
        ("DSA_COMP_ADDR_ALIGN", Status::AddressAlignment),
        ("DSA_COMP_PRIV_BAD", Status::PrivilegeBad),
        ("DSA_COMP_TRAFFIC_CLASS_CONF", Status::TrafficClass),
        ("DSA_COMP_PFAULT_RDBA", Status::ReadbackFault),
        ("DSA_COMP_HW_ERR1", Status::HardwareReadError),
        ("DSA_COMP_HW_ERR_DRB", Status::HardwareWriteError),
        ("DSA_COMP_TRANSLATION_FAIL", Status::TranslationFailure),
    ]
    .map(|(name, status)| (name, u64::from(status.code())));
    compare_constants(header, "DSA_COMP_", &ours, |name, value| match name {
        // The header masks one bit more than the architecture defines (SPEC §8.2); that bit is never set.
        "DSA_COMP_STATUS_MASK" => assert_eq!(value & 0x3f, 0x3f),
        "DSA_COMP_STATUS_WRITE" => assert_eq!(value, 0x80),
        _ => {
            let code = u8::try_from(value).unwrap_or_else(|_| panic!("{name} = {value} is not a byte"));
            assert_eq!(Status::from_code(code).code(), code, "{name}");
        }
    });
}

#[test]
fn flags_are_the_kernels() {
    let header = match header() {
        Ok(header) => header,
        Err(reason) => return skip::skip("flags_are_the_kernels", reason),
    };
    let ours = [
        ("IDXD_OP_FLAG_FENCE", Flags::FENCE),
        ("IDXD_OP_FLAG_BOF", Flags::BLOCK_ON_FAULT),
        ("IDXD_OP_FLAG_CRAV", Flags::COMPLETION_RECORD_ADDRESS_VALID),
        ("IDXD_OP_FLAG_RCR", Flags::REQUEST_COMPLETION_RECORD),
        ("IDXD_OP_FLAG_RCI", Flags::REQUEST_COMPLETION_INTERRUPT),
        ("IDXD_OP_FLAG_CRSTS", Flags::CACHE_CONTROL_3),
        ("IDXD_OP_FLAG_CR", Flags::CHECK_RESULT),
        ("IDXD_OP_FLAG_CC", Flags::CACHE_CONTROL_1),
        ("IDXD_OP_FLAG_ADDR1_TCS", Flags::ADDRESS_1_TC),
        ("IDXD_OP_FLAG_ADDR2_TCS", Flags::ADDRESS_2_TC),
        ("IDXD_OP_FLAG_ADDR3_TCS", Flags::ADDRESS_3_TC),
        ("IDXD_OP_FLAG_CR_TCS", Flags::COMPLETION_RECORD_TC),
        ("IDXD_OP_FLAG_STORD", Flags::STRICT_ORDERING),
        ("IDXD_OP_FLAG_DRDBK", Flags::DESTINATION_READBACK),
        ("IDXD_OP_FLAG_DSTS", Flags::DESTINATION_STEERING_TAG),
    ]
    .map(|(name, flag)| (name, u64::from(flag.bits())));
    // The remaining constants are operation-specific bits, so far of the analytics accelerator.
    compare_constants(header, "IDXD_OP_FLAG_", &ours, |name, value| {
        assert_eq!(value & !u64::from(Flags::all().bits()), 0, "{name} is outside the flag word");
    });
}
