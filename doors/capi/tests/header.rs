//! Compares `telpher.h` with the Rust side: every function with each parameter's name and type, every number, every
//! field's offset, and the export map.

#[path = "../../../ci/skip.rs"]
mod skip;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use telpher_capi::{
    Arithmetic, CachePolicy, CacheStats, Completion, Dif, Op, OpResult, QueueInfo, Resident, Synced, Tags, Tier,
};
use telpher_capi::{Packet, VhostDmaQueueStats, VhostQueue, VhostSocketState, VhostState, VhostStats};
use telpher_capi::{SwitchPort, SwitchStats};
use telpher_capi::{TierInfo, TierMoved, TierOptions, TierReport, TierStats};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A function's return type, and its parameters as "name: type", all as Rust types.
type Signature = (String, Vec<String>);

/// The Rust type of a C type.
fn rust_type(c: &str) -> String {
    let words: Vec<&str> = c.split_whitespace().collect();
    let stars = words.iter().filter(|word| **word == "*").count();
    let constant = words.contains(&"const");
    let base = *words.iter().find(|word| !["const", "*"].contains(word)).expect("a type has a name");
    let base = match base {
        "void" if stars == 0 => "()",
        "void" => "c_void",
        "int" => "c_int",
        "char" => "c_char",
        "uint8_t" => "u8",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        "int64_t" => "i64",
        "size_t" => "usize",
        "telpher_device" => "Device",
        "telpher_mover" => "Mover",
        "telpher_job" => "Job",
        "telpher_batch" => "Batch",
        "telpher_channel" => "Channel",
        "telpher_op" => "Op",
        "telpher_result" => "OpResult",
        "telpher_completion" => "Completion",
        "telpher_queue_info" => "QueueInfo",
        "int32_t" => "i32",
        "telpher_cache" => "Cache",
        "telpher_entry" => "Entry",
        "telpher_prefetch" => "Prefetch",
        "telpher_versioned" => "Versioned",
        "telpher_reading" => "Reading",
        "telpher_writing" => "Writing",
        "telpher_pool" => "Pool",
        "telpher_write_back" => "WriteBack",
        "telpher_synced" => "Synced",
        "telpher_tier" => "Tier",
        "telpher_cache_policy" => "CachePolicy",
        "telpher_stats" => "CacheStats",
        "telpher_tier_heap" => "TierHeap",
        "telpher_tier_arena" => "TierArena",
        "telpher_tier_manager" => "TierManager",
        "telpher_tier_report" => "TierReport",
        "telpher_tier_options" => "TierOptions",
        "telpher_tier_info" => "TierInfo",
        "telpher_tier_moved" => "TierMoved",
        "telpher_tier_stats" => "TierStats",
        "telpher_packet" => "Packet",
        "telpher_vhost_pool" => "VhostPool",
        "telpher_vhost_dma_queue" => "VhostDmaQueue",
        "telpher_vhost_port" => "VhostPort",
        "telpher_vhost_socket" => "VhostSocket",
        "telpher_vhost_queue" => "VhostQueue",
        "telpher_vhost_state" => "VhostState",
        "telpher_vhost_stats" => "VhostStats",
        "telpher_vhost_dma_queue_stats" => "VhostDmaQueueStats",
        "telpher_vhost_socket_state" => "VhostSocketState",
        "telpher_grant" => "Grant",
        "telpher_window" => "Window",
        "telpher_durable" => "DurableFile",
        "telpher_switch" => "PacketSwitch",
        "telpher_switch_port" => "SwitchPort",
        "telpher_switch_stats" => "SwitchStats",
        other => panic!("no Rust name for the C type {other}"),
    };
    match stars {
        0 => base.to_owned(),
        n => format!("{}{} {base}", "*mut ".repeat(n - 1), if constant { "*const" } else { "*mut" }),
    }
}

/// "const char *name" or "const uint8_t descriptor[64]" as "name: type".
fn c_parameter(text: &str) -> String {
    if let Some((text, count)) = text.split_once('[') {
        let parameter = c_parameter(&text.replacen(' ', " * ", 2).replacen(" * ", " ", 1));
        let (name, pointer) = parameter.split_once(": ").expect("a parameter has both");
        let count = count.trim_end_matches(']');
        let (mutability, base) = pointer.rsplit_once(' ').expect("a pointer");
        return format!("{name}: {mutability} [{base}; {count}]");
    }
    let spaced = text.replace('*', " * ");
    let (of, name) = spaced.trim().rsplit_once(' ').expect("a type and a name");
    format!("{name}: {}", rust_type(of))
}

fn c_functions(header: &str) -> BTreeMap<String, Signature> {
    let mut found = BTreeMap::new();
    for declaration in header.split("TELPHER_API ").skip(1) {
        let Some((declaration, _)) = declaration.split_once(';') else { continue };
        let Some((front, parameters)) = declaration.split_once('(') else { continue };
        let front = front.replace('*', " * ");
        let Some((returns, name)) = front.trim().rsplit_once(' ') else { continue };
        if !name.starts_with("telpher_") {
            // The macro's own definition.
            continue;
        }
        let parameters = parameters.trim_end().trim_end_matches(')');
        let parameters = parameters.split(',').map(|one| one.split_whitespace().collect::<Vec<_>>().join(" "));
        let parameters = parameters.filter(|one| one != "void").map(|one| c_parameter(&one)).collect();
        found.insert(name.to_owned(), (rust_type(returns), parameters));
    }
    found
}

fn rust_functions() -> BTreeMap<String, Signature> {
    let mut found = BTreeMap::new();
    let files = [
        "about",
        "batch",
        "cache",
        "channel",
        "device",
        "durable",
        "job",
        "mover",
        "switch",
        "tier",
        "versioned",
        "vhost",
        "window",
    ];
    for file in files {
        let source = read(&format!("src/exports/{file}.rs"));
        for function in source.split("#[unsafe(no_mangle)]").skip(1) {
            let (front, _) = function.split_once('{').expect("a body");
            let (_, front) = front.split_once("extern \"C\" fn ").expect("an exported function");
            let (name, rest) = front.split_once('(').expect("parameters");
            let (parameters, returns) = rest.rsplit_once(')').expect("parameters end");
            // Only the last segment of a path counts.
            let plain = |text: &str| {
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                text.replace("crate::device::", "")
            };
            let parameters = parameters.split(',').map(&plain).filter(|one| !one.is_empty()).collect();
            let returns = returns.trim().strip_prefix("->").map_or("()".to_owned(), &plain);
            found.insert(name.to_owned(), (returns, parameters));
        }
    }
    found
}

#[test]
fn every_function_declaration_matches_its_definition() {
    let header = c_functions(&read("include/telpher.h"));
    let rust = rust_functions();
    assert!(rust.len() > 99, "the source was read");
    assert_eq!(header, rust);
}

#[test]
fn the_export_map_lists_the_headers_functions() {
    let map = read("telpher.map");
    let names =
        map.lines().filter_map(|line| line.trim().strip_suffix(';')).filter(|name| name.starts_with("telpher_"));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    let header: Vec<String> = c_functions(&read("include/telpher.h")).into_keys().collect();
    assert_eq!(names, header);
}

/// The `NAME = number` pairs of a text, up to the given end.
fn numbers(text: &str) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let line = line.trim();
        let Some((name, rest)) = line.split_once(" = ") else { continue };
        if !name.starts_with("TELPHER_") {
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_hexdigit() && c != 'x').unwrap_or(rest.len());
        let value = &rest[..end];
        let value =
            value.strip_prefix("0x").map_or_else(|| value.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
        found.insert(name.to_owned(), value.unwrap_or_else(|| panic!("no number: {line}")));
    }
    found
}

#[test]
fn every_constant_matches() {
    let header = numbers(&read("include/telpher.h"));
    assert!(header.len() > 65, "the header was read");
    assert_eq!(
        header,
        numbers(
            &["c_structs", "c_structs/switch", "c_structs/tier", "c_structs/vhost"]
                .map(|file| read(&format!("src/{file}.rs")))
                .concat()
        )
    );
}

/// The variants of an enum in a source file, in rustfmt's layout.
fn variants(path: &str, name: &str) -> Vec<String> {
    let source = read(path);
    let (_, rest) = source.split_once(&format!(" enum {name} {{\n")).unwrap_or_else(|| panic!("{name} in {path}"));
    let (body, _) = rest.split_once("\n}").expect("an enum ends");
    let words =
        body.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| line.starts_with(char::is_uppercase));
    words.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()).collect()
}

/// A source file, an enum in it, and each of its variants with its constant.
type Seen = (&'static str, &'static str, &'static [(&'static str, Option<&'static str>)]);

/// Each variant that reaches C, with its C constant; an empty name if it has none. The unit tests of the functions
/// check which function returns which number.
#[rustfmt::skip]
const SEEN: [Seen; 12] = [
    ("../../uses/cache/src/written_pages.rs", "Find", &[
        ("Written", Some("TELPHER_FIND_WRITTEN")), ("Differing", Some("TELPHER_FIND_DIFFERING")),
        ("Anywhere", Some("TELPHER_FIND_ANYWHERE")),
    ]),
    ("../../uses/tier/src/heat/hints.rs", "Advice", &[
        ("Hot", Some("TELPHER_TIER_HOT")), ("Cold", Some("TELPHER_TIER_COLD")), ("Pin", Some("TELPHER_TIER_PIN")),
        ("Unpin", Some("TELPHER_TIER_UNPIN")),
    ]),
    ("../../uses/tier/src/config.rs", "Mechanism", &[
        ("Exchange", Some("TELPHER_TIER_EXCHANGE")), ("MovePages", Some("TELPHER_TIER_MOVE_PAGES")),
        ("Remap", Some("TELPHER_TIER_REMAP")),
    ]),
    ("../../uses/vhost/src/ring/mod.rs", "Broken", &[
        ("Ahead", Some("TELPHER_VHOST_AHEAD")), ("Head", Some("TELPHER_VHOST_HEAD")), ("Torn", Some("TELPHER_VHOST_TORN")),
        ("Silent", Some("TELPHER_VHOST_SILENT")),
    ]),
    ("../../uses/vhost/src/ring/chain.rs", "Dropped", &[
        ("Next", Some("TELPHER_VHOST_DROP_NEXT")), ("Loop", Some("TELPHER_VHOST_DROP_LOOP")),
        ("Direction", Some("TELPHER_VHOST_DROP_DIRECTION")), ("Address", Some("TELPHER_VHOST_DROP_ADDRESS")),
        ("Length", Some("TELPHER_VHOST_DROP_LENGTH")), ("Indirect", Some("TELPHER_VHOST_DROP_INDIRECT")),
        ("Table", Some("TELPHER_VHOST_DROP_TABLE")),
    ]),
    ("../../uses/vhost/src/stats.rs", "DropReason", &[
        // One per reason of a dropped chain.
        ("Chain", None),
        ("Runt", Some("TELPHER_VHOST_DROP_RUNT")), ("Long", Some("TELPHER_VHOST_DROP_LONG")),
        ("Short", Some("TELPHER_VHOST_DROP_SHORT")), ("Silent", Some("TELPHER_VHOST_DROP_SILENT")),
    ]),
    ("../../uses/vhost/src/socket.rs", "Role", &[
        ("Server", Some("TELPHER_VHOST_SERVER")), ("Client", Some("TELPHER_VHOST_CLIENT")),
    ]),
    ("../../path/mover/src/api/outcome.rs", "Outcome", &[
        ("Done", Some("TELPHER_DONE")), ("Equal", Some("TELPHER_EQUAL")), ("Different", Some("TELPHER_DIFFERENT")),
        ("Crc", Some("TELPHER_CRC_VALUE")),
        // One per outcome of a delta.
        ("Delta", None),
        ("Dif", Some("TELPHER_DIF_DONE")), ("DifMismatch", Some("TELPHER_DIF_MISMATCH")),
        ("Crc64", Some("TELPHER_CRC64_VALUE")), ("Computed", Some("TELPHER_COMPUTED")),
    ]),
    ("../../path/mover/src/api/outcome.rs", "Delta", &[
        ("Identical", Some("TELPHER_DELTA_IDENTICAL")), ("Complete", Some("TELPHER_DELTA_COMPLETE")),
        ("Overflow", Some("TELPHER_DELTA_OVERFLOW")),
    ]),
    ("../../path/mover/src/api/outcome.rs", "Via", &[
        ("Cpu", Some("TELPHER_VIA_CPU")), ("Device", Some("TELPHER_VIA_DEVICE")), ("Both", Some("TELPHER_VIA_BOTH")),
    ]),
    ("../../path/mover/src/api/error.rs", "JobError", &[
        ("Lengths", Some("TELPHER_ERROR_LENGTHS")), ("Unit", Some("TELPHER_ERROR_UNIT")),
        ("TooLong", Some("TELPHER_ERROR_TOO_LONG")), ("BadDelta", Some("TELPHER_ERROR_BAD_DELTA")),
        ("Fault", Some("TELPHER_ERROR_FAULT")), ("QueueFull", Some("TELPHER_ERROR_QUEUE_FULL")),
        ("Refused", Some("TELPHER_ERROR_REFUSED")), ("Unsupported", Some("TELPHER_ERROR_UNSUPPORTED")),
        ("Nonsense", Some("TELPHER_ERROR_NONSENSE")), ("Stopped", Some("TELPHER_ERROR_STOPPED")),
        ("Abandoned", Some("TELPHER_ERROR_ABANDONED")), ("Deadline", Some("TELPHER_ERROR_DEADLINE")),
        ("Options", Some("TELPHER_ERROR_OPTIONS")), ("Outside", Some("TELPHER_ERROR_OUTSIDE")),
    ]),
    ("src/raw/request.rs", "Request", &[
        ("Nop", Some("TELPHER_NOP")), ("Drain", Some("TELPHER_DRAIN")), ("Copy", Some("TELPHER_COPY")),
        ("CopyDurable", Some("TELPHER_COPY_DURABLE")), ("CopyWithin", Some("TELPHER_MOVE")),
        ("Fill", Some("TELPHER_FILL")), ("Fill16", Some("TELPHER_FILL16")),
        ("Compare", Some("TELPHER_COMPARE")), ("ComparePattern", Some("TELPHER_COMPARE_PATTERN")),
        ("CreateDelta", Some("TELPHER_CREATE_DELTA")), ("ApplyDelta", Some("TELPHER_APPLY_DELTA")),
        ("Dualcast", Some("TELPHER_DUALCAST")), ("Crc", Some("TELPHER_CRC")), ("CopyCrc", Some("TELPHER_COPY_CRC")),
        ("DifCheck", Some("TELPHER_DIF_CHECK")), ("DifInsert", Some("TELPHER_DIF_INSERT")),
        ("DifStrip", Some("TELPHER_DIF_STRIP")), ("DifUpdate", Some("TELPHER_DIF_UPDATE")),
        ("DixGenerate", Some("TELPHER_DIX_GENERATE")), ("Crc64", Some("TELPHER_CRC64")),
        ("CopyCrc64", Some("TELPHER_COPY_CRC64")), ("Convert", Some("TELPHER_CONVERT")),
        ("Reduce", Some("TELPHER_REDUCE")), ("ReduceDualcast", Some("TELPHER_REDUCE_DUALCAST")),
        ("GatherReduce", Some("TELPHER_GATHER_REDUCE")),
        ("Gather", Some("TELPHER_GATHER")), ("Scatter", Some("TELPHER_SCATTER")),
        ("ScatterFill", Some("TELPHER_SCATTER_FILL")), ("PrefetchPages", Some("TELPHER_PREFETCH_PAGES")),
        ("Flush", Some("TELPHER_FLUSH")),
    ]),
];

#[test]
fn every_variant_that_c_sees_has_its_constant() {
    let header = numbers(&read("include/telpher.h"));
    for (path, name, seen) in SEEN {
        let names: Vec<&str> = seen.iter().map(|(variant, _)| *variant).collect();
        let mut found = variants(path, name);
        found.sort_unstable_by_key(|variant| names.iter().position(|name| name == variant).unwrap_or(names.len()));
        assert_eq!(found, names, "the variants of {name} in {path}, and those that have a constant in telpher.h");
        for constant in seen.iter().filter_map(|(_, constant)| *constant) {
            assert!(header.contains_key(constant), "{constant} for {name} is not in telpher.h");
        }
    }
}

/// A line of C for the size of a structure and one for the offset of each field.
macro_rules! layout {
    ($out:ident, $rust:ty, $c:literal: $($field:ident),*) => {
        let size = size_of::<$rust>();
        writeln!($out, "_Static_assert(sizeof({0}) == {size}, \"sizeof {0}\");", $c).expect("a string takes it");
        $(
            let (field, at) = (stringify!($field), offset_of!($rust, $field));
            writeln!($out, "_Static_assert(offsetof({0}, {field}) == {at}, \"{0}.{field}\");", $c)
                .expect("a string takes it");
        )*
    };
}

#[test]
fn every_field_offset_matches_the_header() {
    let mut c = String::from("#include \"telpher.h\"\n");
    layout!(c, Dif, "telpher_dif": block, flags, source, dest);
    layout!(c, Tags, "telpher_tags": ref_tag, app_tag, app_mask);
    layout!(
        c, Op, "telpher_op": opcode, flags, user_data, src, src2, dst, dst2, len, dst_len, pattern, seed, dif, tags,
        new_tags, arithmetic, block, src2_len, reserved
    );
    layout!(c, Arithmetic, "telpher_arithmetic": input, output, compute, flags);
    layout!(
        c, OpResult, "telpher_result": status, outcome, via, error, opcode, device_status, crc, write, at, bytes,
        address, tags, new_tags, crc64, reserved
    );
    layout!(c, Completion, "telpher_completion": ticket, user_data, result, record, has_record, reserved);
    layout!(
        c, QueueInfo, "telpher_queue_info": name, dedicated, size, max_transfer, max_batch, block_on_fault, numa_node,
        reserved, operations, reserved2
    );
    layout!(
        c, Tier, "telpher_tier": size, flags, node, near_node, reserved, obtain, release, user, reserved2
    );
    layout!(c, Synced, "telpher_synced": compared, copied, reserved);
    layout!(c, CachePolicy, "telpher_cache_policy": place, worth, user, reserved);
    layout!(c, Resident, "telpher_resident": address, size, age, unread, reserved);
    layout!(
        c, CacheStats, "telpher_stats": hits, misses, weak_misses, prefetches, cancelled, copies, bytes_copied,
        fallbacks, evictions, invalidations, entries, in_flight, waiting, bytes, reserved
    );
    layout!(c, Packet, "telpher_packet": data, len, id);
    layout!(
        c, VhostQueue, "telpher_vhost_queue": dma_queues, dma_queue_count, device_from, in_flight, reserved, reserved2
    );
    layout!(c, VhostState, "telpher_vhost_state": frontend, running, broken, size, features, in_flight, reserved);
    layout!(
        c, VhostStats, "telpher_vhost_stats": packets, bytes, by_device, bytes_by_device, calls, drops, reserved
    );
    layout!(
        c, VhostDmaQueueStats, "telpher_vhost_dma_queue_stats": copies, bytes, redone, contended, in_flight,
            silent, reserved
    );
    layout!(
        c, VhostSocketState, "telpher_vhost_socket_state": connected, reserved, sessions, refused, reserved2
    );
    layout!(c, SwitchPort, "telpher_switch_port": path, capture, kind, pairs, reserved);
    layout!(
        c, SwitchStats, "telpher_switch_stats": received, received_bytes, sent, sent_bytes, generated, discarded,
        no_room, retried, no_receiver, refused, in_flight, held, announced, captured, not_captured, connected, reserved
    );
    assert_eq!([size_of::<SwitchPort>(), size_of::<SwitchStats>()], [64, 192]);
    layout!(c, TierOptions, "telpher_tier_options": name, size, flags, node, path, reserved);
    layout!(c, TierInfo, "telpher_tier_info": name, size, free_pages, old_copies, node, home, reserved);
    layout!(
        c, TierMoved, "telpher_tier_moved": pages, huge, already, pinned, unsupported, gone, no_room, failed, held,
        reserved
    );
    layout!(
        c, TierStats, "telpher_tier_stats": moved, not_copied, exchanges, dropped, copied_back, fills, forks,
            copied_to_children, misreported,
        returned_early, lost, moving_ns, copying_ns, reserved
    );
    layout!(
        c, TierReport, "telpher_tier_report": time_ns, promoted, demoted, stayed, waiting, looking_ns, moving_ns, resting,
        failed, pages, hot, reserved
    );
    assert_eq!(size_of::<TierReport>(), 256);
    assert_eq!(
        [size_of::<TierOptions>(), size_of::<TierInfo>(), size_of::<TierMoved>(), size_of::<TierStats>()],
        [64, 96, 96, 224]
    );
    assert_eq!(
        [size_of::<Packet>(), size_of::<VhostQueue>(), size_of::<VhostState>(), size_of::<VhostStats>()],
        [16, 48, 64, 192]
    );
    assert_eq!([size_of::<VhostDmaQueueStats>(), size_of::<VhostSocketState>()], [64, 56]);
    assert_eq!(
        [size_of::<Tier>(), size_of::<CachePolicy>(), size_of::<Resident>(), size_of::<CacheStats>()],
        [72, 64, 40, 144]
    );
    // The published sizes.
    assert_eq!(
        [size_of::<Op>(), size_of::<OpResult>(), size_of::<Completion>(), size_of::<QueueInfo>()],
        [128, 96, 152, 96]
    );
    let version = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse::<u32>().expect("a number"));
    let version = version.fold(0, |all, part| all << 8 | part);
    writeln!(c, "_Static_assert(TELPHER_VERSION_NUMBER == {version}, \"version\");").expect("a string takes it");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    std::fs::write(&file, c).expect("a file to compile");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    for standard in ["-std=c11", "-std=c17", "-std=gnu11"] {
        let mut cc = Command::new("cc");
        cc.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"]).arg(&include).arg(&file);
        let Ok(output) = cc.output() else {
            return skip::skip("every_field_offset_matches_the_header", "no C compiler");
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_headers_pass_the_warnings_of_strict_programs() {
    let (c, cpp) = ("include/telpher.h", "include/telpher.hpp");
    let strict = ["-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror", "-pedantic"];
    for (compiler, language, standard, header, more) in [
        ("cc", "c", "-std=c99", c, "-Wc++-compat"),
        ("cc", "c", "-std=gnu2x", c, "-Wstrict-prototypes"),
        ("c++", "c++", "-std=c++98", c, "-Wold-style-cast"),
        ("c++", "c++", "-std=c++20", cpp, "-Wold-style-cast"),
    ] {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("strict{standard}"));
        // Included, because a compiler warns differently about a header compiled directly.
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join(header);
        std::fs::write(&file, format!("#include \"{}\"\n", header.display())).expect("a file to compile");
        let mut command = Command::new(compiler);
        command.args(["-x", language, standard, more]).args(strict).arg("-fsyntax-only").arg("-I");
        let Ok(output) = command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include")).arg(&file).output() else {
            return skip::skip("the_headers_pass_the_warnings_of_strict_programs", "no compiler");
        };
        assert!(output.status.success(), "{standard}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn header_lines_are_not_too_long() {
    for file in ["include/telpher.h", "include/telpher.hpp"] {
        for (number, line) in read(file).lines().enumerate() {
            assert!(line.chars().count() <= 132, "{file}:{}: {} characters", number + 1, line.chars().count());
        }
    }
}
