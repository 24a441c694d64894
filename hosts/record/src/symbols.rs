//! Names of call sites: functions in the symbol tables of the files that the process had mapped.

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use telpher_recording::{Module, Recording, Site};

/// The longest file that is searched for symbols. Source: chosen; a browser with all symbols has one gigabyte.
const MOST_BYTES: u64 = 4 << 30;
/// Files that are searched for symbols. Source: chosen; large programs have some hundred libraries.
const MOST_FILES: usize = 1024;
/// The first bytes of an ELF file.
const MAGIC: [u8; 4] = *b"\x7fELF";

/// Names call sites. It keeps the symbols of each file that it has read.
#[derive(Debug, Default)]
pub struct SiteNames {
    /// The symbols by file; `None` for one without.
    tables: BTreeMap<Module, Option<Symbols>>,
}

impl SiteNames {
    /// Returns a name for a site: `function+0x1c`, or `file+0x1234` where no symbol is known. `offset` is the return
    /// address, relative to the first address at which the module is mapped.
    ///
    /// The symbols are those of the file as it is now. A file with another build-id is not used.
    pub fn name(&mut self, module: &Module, offset: u64) -> String {
        let symbols = match self.tables.get(module) {
            Some(known) => known.as_ref(),
            None if self.tables.len() < MOST_FILES => {
                self.tables.entry(module.clone()).or_insert_with(|| Symbols::read(module)).as_ref()
            }
            None => None,
        };
        let found = symbols.and_then(|symbols| symbols.name(offset));
        found.unwrap_or_else(|| format!("{}+{offset:#x}", file_name(&module.path)))
    }
}

/// Returns a name for each site of a recording, as [`SiteNames`] does.
#[must_use]
pub fn site_names(recording: &Recording) -> Vec<String> {
    let mut names = SiteNames::default();
    let mut name = |site: &Site| match site.module {
        Some(at) => names.name(&recording.modules[at], site.offset),
        None => format!("{:#x}", site.offset),
    };
    recording.sites.iter().map(&mut name).collect()
}

/// Returns the name of a module's file, without its folders.
#[must_use]
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The functions of a file.
#[derive(Debug)]
struct Symbols {
    /// Name and length by address.
    functions: BTreeMap<u64, (String, u64)>,
    /// The address in the file of the first byte that is mapped.
    first: u64,
}

impl Symbols {
    /// Reads the symbols of a module; `None` if its file is not the one that was mapped, or has none.
    fn read(module: &Module) -> Option<Symbols> {
        // The recording may name any file. A device, a pipe or a file of the kernel, which has no length, is not read.
        // Without O_NONBLOCK, opening a pipe would wait for a writer.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&module.path).ok()?;
        let attributes = file.metadata().ok()?;
        if !attributes.is_file() || !(1..=MOST_BYTES).contains(&attributes.len()) {
            return None;
        }
        let mut bytes = vec![0; MAGIC.len()];
        file.read_exact_at(&mut bytes, 0).ok()?;
        if bytes != MAGIC {
            return None;
        }
        bytes.clear();
        file.take(attributes.len()).read_to_end(&mut bytes).ok()?;
        let symbols = Symbols::parse(&bytes, &module.build_id)?;
        (!symbols.functions.is_empty()).then_some(symbols)
    }

    fn parse(bytes: &[u8], build_id: &str) -> Option<Symbols> {
        let file = object::File::parse(bytes).ok()?;
        let hexadecimal = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let of_file = file.build_id().ok().flatten().map(hexadecimal).unwrap_or_default();
        // A recording keeps the first 32 bytes. Without a build-id, nothing tells whether the file is another one.
        if build_id.is_empty() != of_file.is_empty() || !of_file.starts_with(build_id) {
            return None;
        }
        let mut functions = BTreeMap::new();
        // The second table is a part of the first, except in stripped files.
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            if symbol.kind() == SymbolKind::Text
                && symbol.is_definition()
                && let Ok(name) = symbol.name()
            {
                functions.entry(symbol.address()).or_insert_with(|| (name.to_owned(), symbol.size()));
            }
        }
        let first = file.segments().map(|segment| segment.address()).min()? & !0xfff;
        Some(Symbols { functions, first })
    }

    /// Returns the function of a return address, and the distance from its first instruction.
    fn name(&self, offset: u64) -> Option<String> {
        let address = self.first.checked_add(offset)?;
        // The call is before its return address, which may be the first of the next function.
        let (start, (name, len)) = self.functions.range(..address).next_back()?;
        let within = address - start;
        (within <= *len).then(|| format!("{}+{within:#x}", demangled(name)))
    }
}

/// Returns the name as the source has it.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let symbol = cpp_demangle::Symbol::new(name).ok();
    let cpp = symbol.and_then(|symbol| symbol.demangle_with_options(&options).ok());
    cpp.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_this_program_has_its_name() {
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let build_id = object::File::parse(&bytes[..]).unwrap().build_id().unwrap();
        let build_id: String = build_id.unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect();
        let symbols = Symbols::parse(&bytes, &build_id).unwrap();
        let of_ours = |name: &str| demangled(name).starts_with("telpher_record::symbols::");
        let (start, (raw, len)) = symbols.functions.iter().find(|(_, (name, len))| of_ours(name) && *len > 8).unwrap();
        let offset = |address: u64| address - symbols.first;
        assert_eq!(symbols.name(offset(start + 4)).unwrap(), format!("{}+0x4", demangled(raw)));
        let last = format!("{}+{len:#x}", demangled(raw));
        assert_eq!(symbols.name(offset(start + len)).unwrap(), last, "the call may be the last instruction");
        assert!(Symbols::parse(&bytes, "another build").is_none());
        assert!(Symbols::parse(b"no program", "").is_none());
    }

    #[test]
    fn files_without_symbols_and_files_of_the_kernel_are_left_alone() {
        for path in ["/proc/self/maps", "/dev/zero", "/proc/self", "/etc/passwd", "/no/such/file"] {
            assert!(Symbols::read(&Module { path: path.into(), build_id: String::new() }).is_none(), "{path}");
        }
    }

    #[test]
    fn names_are_demangled_or_kept() {
        assert_eq!(demangled("_ZN3foo3barEv"), "foo::bar");
        assert_eq!(demangled("_ZNSt6vectorIcSaIcEE7reserveEm"), "std::vector<char, std::allocator<char> >::reserve");
        assert_eq!(demangled("sdsrange"), "sdsrange");
        assert_eq!(file_name("/usr/bin/redis-server"), "redis-server");
    }
}
