//! Values of the configuration that are written as text: sizes, backends, identifiers.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Why a value is invalid, as a sentence that says what is accepted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

/// A number of bytes: a number, or a text such as `64k`, `512m`, `1g` or `2t`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Size, ValueError> {
        let error = || ValueError(format!("'{text}' is not a size; use a number of bytes, 64k, 512m, 1g or 2t"));
        telpher_os::parse_size(text).map(Size).ok_or_else(error)
    }
}

impl fmt::Display for Size {
    /// The shortest form that is exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
            if self.0 > 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes or a text such as \"1g\"")
            }

            fn visit_u64<E>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Implements `Serialize` and `Deserialize` for a value that is written as text.
macro_rules! from_text {
    ($value:ident) => {
        impl Serialize for $value {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $value {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$value, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

/// Where the blocks of a namespace are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backend {
    /// `memory:SIZE` or `memory:SIZE,pages=PAGES`: in the memory of this process; gone when it ends.
    Memory {
        /// Its bytes.
        bytes: u64,
        /// Its pages.
        pages: Pages,
    },
    /// `memory-file:PATH` or `memory-file:PATH,size=SIZE`: in a file on tmpfs or hugetlbfs, or in the memory file that
    /// another process keeps open (`/proc/PID/fd/N`). It survives the end of this process, not of the machine.
    MemoryFile {
        /// The file.
        path: PathBuf,
        /// The bytes with which the file is created if it does not exist; without, it must exist.
        create_bytes: Option<u64>,
    },
    /// `file:PATH` or `file:PATH,size=SIZE`: in a file or on a block device.
    File {
        /// The file.
        path: PathBuf,
        /// The bytes with which the file is created if it does not exist; without, it must exist.
        create_bytes: Option<u64>,
    },
    /// `null:SIZE`: reads zeroes, and forgets what is written.
    Null {
        /// Its bytes.
        bytes: u64,
    },
}

impl FromStr for Backend {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Backend, ValueError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let error = || {
            ValueError(format!(
                "'{text}' is not a backend; use memory:SIZE, memory:SIZE,pages=PAGES, memory-file:PATH,size=SIZE, \
                 file:PATH, file:PATH,size=SIZE or null:SIZE"
            ))
        };
        match kind {
            "memory" => {
                let (size, pages) = rest.split_once(",pages=").unwrap_or((rest, Pages::NAMES[0].0));
                Ok(Backend::Memory { bytes: size.parse::<Size>()?.0, pages: pages.parse()? })
            }
            "null" => Ok(Backend::Null { bytes: rest.parse::<Size>()?.0 }),
            "file" | "memory-file" => {
                let (path, create_bytes) = match rest.rsplit_once(",size=") {
                    Some((path, size)) => (path, Some(size.parse::<Size>()?.0)),
                    None => (rest, None),
                };
                if path.is_empty() {
                    return Err(error());
                }
                let path = path.into();
                match kind {
                    "file" => Ok(Backend::File { path, create_bytes }),
                    _ => Ok(Backend::MemoryFile { path, create_bytes }),
                }
            }
            _ => Err(error()),
        }
    }
}

impl Backend {
    /// The same backend with an absolute path.
    ///
    /// # Errors
    /// If the current folder is unknown.
    pub fn absolute(&self) -> std::io::Result<Backend> {
        match self {
            Backend::File { path, create_bytes } => {
                Ok(Backend::File { path: std::path::absolute(path)?, create_bytes: *create_bytes })
            }
            Backend::MemoryFile { path, create_bytes } => {
                Ok(Backend::MemoryFile { path: std::path::absolute(path)?, create_bytes: *create_bytes })
            }
            other => Ok(other.clone()),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, path, create_bytes) = match self {
            Backend::Memory { bytes, pages: Pages::Small } => return write!(f, "memory:{}", Size(*bytes)),
            Backend::Memory { bytes, pages } => return write!(f, "memory:{},pages={pages}", Size(*bytes)),
            Backend::Null { bytes } => return write!(f, "null:{}", Size(*bytes)),
            Backend::File { path, create_bytes } => ("file", path, create_bytes),
            Backend::MemoryFile { path, create_bytes } => ("memory-file", path, create_bytes),
        };
        write!(f, "{kind}:{}", path.display())?;
        create_bytes.map_or(Ok(()), |bytes| write!(f, ",size={}", Size(bytes)))
    }
}

from_text!(Backend);

/// Declares a value that is one of a few names.
macro_rules! names {
    ($(#[$doc:meta])* $value:ident, $what:literal, $( $(#[$variant_doc:meta])* $variant:ident = $name:literal ),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $value {
            $( $(#[$variant_doc])* $variant, )+
        }

        impl $value {
            /// The names, with their values.
            pub const NAMES: &'static [(&'static str, $value)] = &[$( ($name, $value::$variant) ),+];
        }

        impl FromStr for $value {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<$value, ValueError> {
                let found = $value::NAMES.iter().find(|(name, _)| *name == text);
                found.map(|(_, value)| *value).ok_or_else(|| {
                    let names: Vec<&str> = $value::NAMES.iter().map(|(name, _)| *name).collect();
                    ValueError(format!(concat!("'{}' is no ", $what, "; use {}"), text, names.join(", ")))
                })
            }
        }

        impl fmt::Display for $value {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = $value::NAMES.iter().find(|(_, value)| value == self);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }

        from_text!($value);
    };
}

names!(
    /// The pages of a namespace in memory.
    Pages,
    "kind of page",
    /// Pages of 4 KiB.
    Small = "small",
    /// Transparent huge pages, where the system has free ones.
    Transparent = "transparent",
    /// Huge pages from the system's pool (`vm.nr_hugepages`); all are allocated at once.
    Reserved = "reserved"
);

names!(
    /// How files are read and written.
    Engine,
    "way to use files",
    /// With io_uring if `file_direct` is true and the kernel permits io_uring; else by threads. All files are used so.
    Auto = "auto",
    /// With io_uring only.
    Uring = "io_uring",
    /// By threads only.
    Threads = "threads"
);

names!(
    /// How bytes are moved through sockets.
    Sockets,
    "way to use sockets",
    /// With one io_uring for each loop, unless the kernel refuses it; then with epoll.
    Auto = "auto",
    /// With one io_uring for each loop.
    Uring = "io_uring",
    /// With epoll, and a system call for each receive and send.
    Epoll = "epoll"
);

names!(
    /// Whether stored blocks have protection information.
    Protected,
    "protection",
    /// They have none.
    No = "none",
    /// The target inserts it on writes, and checks and removes it on reads.
    InsertStrip = "insert-strip"
);

/// A UUID or an NGUID: 32 hexadecimal digits, with or without dashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identifier(pub [u8; 16]);

impl FromStr for Identifier {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Identifier, ValueError> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = u128::from_str_radix(&digits, 16).ok().filter(|value| is_hex && *value != 0);
        value.map(|value| Identifier(value.to_be_bytes())).ok_or_else(|| {
            ValueError(format!("'{text}' is not an identifier; use 32 hexadecimal digits that are not all 0"))
        })
    }
}

impl fmt::Display for Identifier {
    /// As a UUID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        write!(f, "{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
    }
}

from_text!(Identifier);

/// The name of a device, as `--device` has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device(pub telpher_device::DeviceName);

impl FromStr for Device {
    type Err = telpher_device::NameError;

    fn from_str(text: &str) -> Result<Device, Self::Err> {
        text.parse().map(Device)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

from_text!(Device);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64k", 65536), ("1G", 1 << 30), ("2tib", 2 << 40)] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "g", "1.5g", "-1", "1x", "99999999999t"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        for text in ["0", "4097", "64k", "3m", "1g", "2t"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn backends_are_written_as_they_are_read() {
        for text in [
            "memory:1g",
            "memory:64m,pages=reserved",
            "memory-file:/dev/shm/disk,size=1g",
            "memory-file:/proc/1/fd/3",
            "file:/dev/sdb",
            "file:a,b,size=64m",
            "null:1t",
        ] {
            assert_eq!(text.parse::<Backend>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "memory",
            "memory:",
            "file:",
            "file:,size=1g",
            "file:a,size=x",
            "disk:1g",
            "null:x",
            "memory:1g,pages=big",
        ] {
            assert!(text.parse::<Backend>().is_err(), "{text}");
        }
    }

    #[test]
    fn identifiers_have_32_digits() {
        let text = "00112233-4455-6677-8899-aabbccddeeff";
        let plain = text.replace('-', "");
        assert_eq!(text.parse::<Identifier>(), plain.parse());
        assert_eq!(text.parse::<Identifier>().unwrap().to_string(), text);
        assert_eq!(text.parse::<Identifier>().unwrap().0[..3], [0x00, 0x11, 0x22]);
        let zero = "0".repeat(32);
        for text in ["", "00", &plain[1..], &format!("{plain}0"), &zero, "+0112233445566778899aabbccddeeff"] {
            assert!(text.parse::<Identifier>().is_err(), "{text}");
        }
    }
}
