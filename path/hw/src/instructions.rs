//! The DSA instructions that are available, checked before any of them is used. Source: SDM vol. 2, CPUID.
//!
//! A processor without an instruction raises SIGILL, so each is executed only with its token, which is declared beside
//! it in `submit` and `wait`.

use crate::cpuid::{is_emulated, leaf};
use crate::files::{Files, Live};
use std::path::Path;
use std::sync::OnceLock;

/// Variable by which `telpher run` announces the instructions it emulates, as words of /proc/cpuinfo separated by
/// blanks: CPUID cannot be changed to report them. It counts only if the emulator is in the process, because a static
/// program has the variable, too.
pub const ANNOUNCEMENT: &str = "TELPHER_INSTRUCTIONS";

/// The file in which the kernel lists the instructions for programs.
const CPUINFO: &str = "/proc/cpuinfo";
/// `CPUID.(EAX=7,ECX=0):ECX` of MOVDIR64B.
const MOVDIR64B_BIT: u32 = 1 << 28;
/// `CPUID.(EAX=7,ECX=0):ECX` of UMONITOR, UMWAIT and TPAUSE.
const WAITPKG_BIT: u32 = 1 << 5;

/// The instructions that programs may execute on a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Instructions {
    /// MOVDIR64B, for dedicated queues.
    pub movdir64b: bool,
    /// ENQCMD, for shared queues. Needs support by the kernel besides the processor: the kernel must load the process'
    /// PASID.
    pub enqcmd: bool,
    /// UMONITOR, UMWAIT, TPAUSE.
    pub waitpkg: bool,
}

impl Instructions {
    /// Returns the instructions of this machine, determined once: CPUID for the processor's own, /proc/cpuinfo for
    /// ENQCMD, and the emulator's announcement.
    #[must_use]
    pub fn here() -> Self {
        static HERE: OnceLock<Instructions> = OnceLock::new();
        *HERE.get_or_init(|| {
            let announced = if is_emulated() { std::env::var(ANNOUNCEMENT).unwrap_or_default() } else { String::new() };
            let leaf_7 = leaf(7).ecx;
            let listed = Instructions::listed(&Live::default());
            let announced = Instructions::among(announced.split_whitespace());
            Instructions {
                movdir64b: leaf_7 & MOVDIR64B_BIT != 0 || announced.movdir64b,
                enqcmd: listed.enqcmd || announced.enqcmd,
                waitpkg: leaf_7 & WAITPKG_BIT != 0 || announced.waitpkg,
            }
        })
    }

    /// Returns the instructions in /proc/cpuinfo, also of a recorded machine.
    #[must_use]
    pub fn listed(files: &dyn Files) -> Self {
        let text = files.read(Path::new(CPUINFO)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let flags = text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "flags").then_some(value)
        });
        Instructions::among(flags.unwrap_or_default().split_whitespace())
    }

    fn among<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        words.fold(Instructions::default(), |found, word| Instructions {
            movdir64b: found.movdir64b || word == "movdir64b",
            enqcmd: found.enqcmd || word == "enqcmd",
            waitpkg: found.waitpkg || word == "waitpkg",
        })
    }
}

/// Declares the token of an instruction, beside the code that executes it.
macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $field:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name(());

        impl $name {
            /// True if this machine has it.
            pub(crate) fn is_available() -> bool {
                crate::instructions::Instructions::here().$field
            }

            /// Returns the token if [`is_available`](Self::is_available).
            pub(crate) fn new() -> Option<Self> {
                // SAFETY: just checked.
                Self::is_available().then(|| unsafe { Self::new_unchecked() })
            }

            /// Creates the token without a check.
            ///
            /// # Safety
            ///
            /// The instruction does not raise SIGILL here.
            pub(crate) const unsafe fn new_unchecked() -> Self {
                $name(())
            }
        }
    };
}
pub(crate) use token;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[derive(Debug)]
    struct CpuInfo(&'static str);

    impl Files for CpuInfo {
        fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
            assert_eq!(path, Path::new("/proc/cpuinfo"));
            Ok(self.0.into())
        }
        fn list(&self, _: &Path) -> std::io::Result<Vec<std::ffi::OsString>> {
            unreachable!()
        }
        fn link(&self, _: &Path) -> std::io::Result<PathBuf> {
            unreachable!()
        }
    }

    #[test]
    fn the_kernels_list_is_read_by_words() {
        let all = Instructions { movdir64b: true, enqcmd: true, waitpkg: true };
        let listed = |text| Instructions::listed(&CpuInfo(text));
        assert_eq!(listed("processor\t: 0\nflags\t\t: fpu waitpkg movdir64b enqcmd\n"), all);
        // Neither a part of a word nor another line counts.
        assert_eq!(listed("flags\t\t: fpu enqcmds xwaitpkg\nbugs\t\t: movdir64b\n"), Instructions::default());
        assert_eq!(listed(""), Instructions::default());
    }
}
