//! Operation codes. Source: SPEC Table 8-2; UAPI `enum dsa_opcode`.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// The operation of a descriptor (byte 7). Every byte can be decoded.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        pub enum Opcode {
            $($(#[$doc])* $name,)*
            /// A code without a name in this crate; its value is kept.
            Unknown(u8),
        }

        impl Opcode {
            /// All named operations, ascending by code.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// Decodes a byte.
            #[must_use]
            #[inline]
            pub const fn from_code(code: u8) -> Self {
                match code {
                    $($code => Opcode::$name,)*
                    other => Opcode::Unknown(other),
                }
            }

            /// Returns the code byte.
            #[must_use]
            #[inline]
            pub const fn code(self) -> u8 {
                match self {
                    $(Opcode::$name => $code,)*
                    Opcode::Unknown(code) => code,
                }
            }

            /// Returns the specification's name in lower case, words joined by hyphens; `"unknown"` for unnamed codes.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$name => $text,)*
                    Opcode::Unknown(_) => "unknown",
                }
            }
        }
    };
}

/// Short names of the operations that users name in options, tables and files.
const SHORT_NAMES: [(&str, Opcode); 14] = [
    ("move", Opcode::MemoryMove),
    ("fill", Opcode::Fill),
    ("compare", Opcode::Compare),
    ("compare-pattern", Opcode::ComparePattern),
    ("create-delta", Opcode::CreateDelta),
    ("apply-delta", Opcode::ApplyDelta),
    ("dualcast", Opcode::Dualcast),
    ("crc", Opcode::CrcGeneration),
    ("copy-crc", Opcode::CopyCrc),
    ("dif-check", Opcode::DifCheck),
    ("dif-insert", Opcode::DifInsert),
    ("dif-strip", Opcode::DifStrip),
    ("dif-update", Opcode::DifUpdate),
    ("cache-flush", Opcode::CacheFlush),
];

impl Opcode {
    /// Operations that have a short name, with that name, in the order of reports.
    pub const NAMED: &'static [(&'static str, Opcode)] = &SHORT_NAMES;

    /// The short name in options, tables and files: `"move"`, `"crc"`; the specification's name for operations that
    /// have none.
    #[must_use]
    pub fn short_name(self) -> &'static str {
        SHORT_NAMES.iter().find(|(_, op)| *op == self).map_or(self.name(), |(name, _)| name)
    }
}

opcodes! {
    /// No operation; with Fence in a batch it marks the completion of all earlier members.
    Nop = 0x00, "nop";
    /// A list of descriptors in memory.
    Batch = 0x01, "batch";
    /// Waits for earlier descriptors of the same queue.
    Drain = 0x02, "drain";
    /// Copies, correct for overlapping ranges.
    MemoryMove = 0x03, "memory-move";
    /// Repeats an 8- or 16-byte pattern.
    Fill = 0x04, "fill";
    /// Compares two ranges.
    Compare = 0x05, "compare";
    /// Compares a range with an 8-byte pattern.
    ComparePattern = 0x06, "compare-pattern";
    /// Writes the differences of two ranges.
    CreateDelta = 0x07, "create-delta";
    /// Applies a record of Create Delta Record.
    ApplyDelta = 0x08, "apply-delta";
    /// Copies to two destinations.
    Dualcast = 0x09, "dualcast";
    /// Requests address translations (2.x).
    TranslationFetch = 0x0a, "translation-fetch";
    /// Computes a CRC.
    CrcGeneration = 0x10, "crc-generation";
    /// Copies and computes a CRC.
    CopyCrc = 0x11, "copy-crc";
    /// Checks the integrity fields of data blocks.
    DifCheck = 0x12, "dif-check";
    /// Copies and inserts integrity fields.
    DifInsert = 0x13, "dif-insert";
    /// Checks, copies and removes integrity fields.
    DifStrip = 0x14, "dif-strip";
    /// Checks, copies and replaces integrity fields.
    DifUpdate = 0x15, "dif-update";
    /// Writes integrity fields to a separate buffer (2.x).
    DixGenerate = 0x17, "dix-generate";
    /// Converts number formats (3.0).
    TypeConversion = 0x18, "type-conversion";
    /// Combines two arrays (3.0).
    Reduce = 0x19, "reduce";
    /// Combines two arrays, writes twice (3.0).
    ReduceDualcast = 0x1a, "reduce-dualcast";
    /// Combines gathered blocks (3.0).
    GatherReduce = 0x1b, "gather-reduce";
    /// Copies gathered blocks (3.0).
    GatherCopy = 0x1c, "gather-copy";
    /// Copies to scattered blocks (3.0).
    ScatterCopy = 0x1d, "scatter-copy";
    /// Fills scattered blocks (3.0).
    ScatterFill = 0x1e, "scatter-fill";
    /// Flushes cache lines.
    CacheFlush = 0x20, "cache-flush";
    /// Rewrites an inter-domain window (2.x).
    UpdateWindow = 0x21, "update-window";
    /// Copies between address spaces (2.x).
    InterDomainCopy = 0x23, "inter-domain-copy";
    /// Fills in another address space (2.x).
    InterDomainFill = 0x24, "inter-domain-fill";
    /// Compares between address spaces (2.x).
    InterDomainCompare = 0x25, "inter-domain-compare";
    /// Compares a pattern with another address space (2.x).
    InterDomainComparePattern = 0x26, "inter-domain-compare-pattern";
}

impl core::fmt::Display for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Opcode::Unknown(code) => write!(f, "opcode {code:#04x}"),
            known => f.write_str(known.name()),
        }
    }
}
