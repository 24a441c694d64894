//! Libraries and programs whose calls always stay with the CPU.

use crate::modules;
use crate::sites::{Judgement, Known, Sites};
use telpher_offload_wire::verdicts::{self, SiteVerdict};
use telpher_recording::ModuleMapping;

/// Names of the files of such libraries; [`matches`] says what may follow a name.
///
/// The C library and the dynamic linker copy while they hold their locks, and so do allocators. Cryptographic libraries
/// copy secrets, and rely on the time that a copy takes. The others drive devices: what they copy may be a register.
const DENIED: [&str; 23] = [
    "ld-linux",
    "libc",
    "libpthread",
    "libdl",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
    "libcrypto",
    "libssl",
    "libgnutls",
    "libgcrypt",
    "libnettle",
    "libhogweed",
    "libsodium",
    "libmbedcrypto",
    "libdto",
    "libaccel",
    "libdml",
    "libqpl",
    "libibverbs",
    "libmlx5",
    "libspdk",
    "libnvme",
];

/// Returns what is known about the calls from this return address: those of the libraries above, of `others`, and of
/// code that belongs to no file, such as that of a compiler at run time, stay with the CPU. For the rest, `verdicts`
/// counts. The module of the address is added to `sites`.
pub(crate) fn judge(return_address: usize, others: &[String], verdicts: &[SiteVerdict], sites: &Sites) -> Judgement {
    // The call is the instruction before the return address, which may be the first one after the file's code.
    let address = return_address.wrapping_sub(1);
    let of_module = |module: &ModuleMapping<'_>| {
        let start = module.addresses.start;
        let offset = return_address.wrapping_sub(start) as u64;
        let known = if is_denied(module.path, others) {
            Known::Denied
        } else {
            match verdicts::find(verdicts, module.path, module.build_id, offset) {
                Some(true) => Known::Device,
                Some(false) => Known::Cpu,
                None => Known::Nothing,
            }
        };
        Judgement { known, module: sites.module(start, module.path, module.build_id) }
    };
    let of_no_file = Judgement { known: Known::Denied, module: None };
    modules::with_module_of(address, of_module).unwrap_or(of_no_file)
}

/// Returns whether the file with this path is one of those above or of `others`.
fn is_denied(path: &[u8], others: &[String]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    // Such as [vdso].
    name.starts_with(b"[") || DENIED.iter().any(|denied| matches(name, denied)) || is_one_of(name, others)
}

/// Returns whether a file has one of these names.
pub(crate) fn is_one_of(name: &[u8], others: &[String]) -> bool {
    others.iter().any(|other| matches(name, other))
}

/// Returns whether a file has this name, or the name is the first part of the file's: `libc`, `libc.so.6`,
/// `libc-2.36.so`, `libspdk_nvme.so.4`.
///
/// The parts of a name end at `.`, `-` and `_`. A letter, a digit or another character continues the word, so that
/// `libz` is not `libzstd`, and `libc` is not `libc++`.
fn matches(name: &[u8], pattern: &str) -> bool {
    name.strip_prefix(pattern.as_bytes()).is_some_and(|rest| matches!(rest.first(), None | Some(b'.' | b'-' | b'_')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use telpher_offload_wire::sites::{SiteTable, WORDS};

    #[test]
    fn libraries_are_known_by_their_names_with_any_version() {
        let denied = |path: &str| is_denied(path.as_bytes(), &["my-driver".into()]);
        for path in [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib/libc-2.31.so",
            "/lib64/ld-linux-x86-64.so.2",
            "/usr/lib/libcrypto.so.3",
            "/usr/lib/libjemalloc.so.2",
            "/usr/lib/libaccel-config.so.1",
            "/opt/my-driver",
            "[vdso]",
        ] {
            assert!(denied(path), "{path}");
        }
        for path in ["/usr/lib/libcap.so.2", "/usr/bin/redis-server", "/usr/lib/libc++.so.1", "/opt/my-drivers", ""] {
            assert!(!denied(path), "{path}");
        }
    }

    #[test]
    fn a_name_ends_at_a_dot_a_hyphen_or_an_underscore() {
        let is = |name: &str, pattern| matches(name.as_bytes(), pattern);
        assert!(is("libz", "libz"), "the whole name");
        assert!(is("libz.so.1", "libz"), "a dot");
        assert!(is("libz-ng.so.2", "libz"), "a hyphen");
        assert!(is("libspdk_nvme.so.4.0", "libspdk"), "an underscore");
        assert!(is("libtcmalloc_minimal.so.4", "libtcmalloc"), "an underscore");
        assert!(!is("libzstd.so.1", "libz"), "a letter");
        assert!(!is("libz3.so.4", "libz"), "a digit");
        assert!(!is("libc++.so.1", "libc"), "another character");
        assert!(!is("lib", "libz"), "a shorter name");
    }

    #[test]
    fn code_of_this_program_may_offload_and_code_without_a_file_may_not() {
        let here = code_of_this_program_may_offload_and_code_without_a_file_may_not as *const () as usize + 1;
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let sites = Sites::new(SiteTable::begin(words.leak(), true).unwrap());
        let known = |address, others: &[String], verdicts: &[SiteVerdict]| {
            let Judgement { known, module } = judge(address, others, verdicts, &sites);
            assert_eq!(module, (address == here).then_some(0), "this program is the only module");
            known
        };
        assert_eq!(known(here, &[], &[]), Known::Nothing);
        let heap = Box::new(0_u64);
        assert_eq!(known((&raw const *heap).addr(), &[], &[]), Known::Denied);
        let program = std::env::current_exe().unwrap();
        let name = program.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(known(here, &[name], &[]), Known::Denied);
        let module = |module: &ModuleMapping<'_>| (module.addresses.start, module.build_id.to_vec());
        let (start, build_id) = modules::with_module_of(here, module).unwrap();
        let verdict = |by_device, distance| SiteVerdict {
            by_device,
            build_id: build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
            offset: (here - start) as u64 + distance,
            path: program.display().to_string(),
        };
        assert_eq!(known(here, &[], &[verdict(true, 0)]), Known::Device);
        assert_eq!(known(here, &[], &[verdict(false, 0)]), Known::Cpu);
        assert_eq!(known(here, &[], &[verdict(true, 1)]), Known::Nothing);
    }
}
