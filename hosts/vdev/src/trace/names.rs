//! Names for descriptors and records: the fields of each operation, operations, statuses and flags.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use telpher_abi::{CompletionRecord, Descriptor, Flags, OpFlags, Opcode, OperandId, Status, StatusByte};

/// A number and its notation: addresses, patterns and checksums in hexadecimal, counts in decimal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// `0x7f00`; a string in JSON, because JSON numbers do not hold 64 bits.
    Hex(u64),
    /// `4096`.
    Count(u64),
}

impl Default for Value {
    fn default() -> Self {
        Value::Count(0)
    }
}

impl Value {
    /// Parses the text of a value.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(Value::Hex),
            None => text.parse().ok().map(Value::Count),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Hex(value) => write!(f, "{value:#x}"),
            Value::Count(value) => write!(f, "{value}"),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Hex(_) => serializer.collect_str(self),
            Value::Count(value) => serializer.serialize_u64(*value),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(value) => Ok(Value::Count(value)),
            Either::Text(text) => {
                Value::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("'{text}' is not a number")))
            }
        }
    }
}

/// Parses a time with its unit (`500ns`, `200us`, `5ms` or `1s`) into nanoseconds.
#[must_use]
pub fn nanoseconds(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let (digits, unit) = UNITS.iter().find_map(|(name, unit)| text.strip_suffix(name).map(|digits| (digits, *unit)))?;
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Named values, in order.
pub type Fields = Vec<(String, Value)>;

/// The name of an operation; an unknown one has its number.
#[must_use]
pub fn operation(opcode: Opcode) -> String {
    match opcode {
        Opcode::Unknown(code) => format!("operation-{code:#04x}"),
        known => known.name().into(),
    }
}

/// Parses an operation: its name, a short name (`move`, `copy`, `crc`, `flush`), or its code (`0x03`).
#[must_use]
pub fn opcode(text: &str) -> Option<Opcode> {
    let name = match text {
        "move" | "copy" => "memory-move",
        "crc" => "crc-generation",
        "flush" => "cache-flush",
        other => other,
    };
    let named = Opcode::ALL.iter().copied().find(|known| known.name() == name);
    let code = || text.strip_prefix("operation-").unwrap_or(text).strip_prefix("0x");
    named.or_else(|| u8::from_str_radix(code()?, 16).ok().map(Opcode::from_code))
}

/// The name of a status: its code's name in lower case with hyphens.
#[must_use]
pub fn status(status: Status) -> String {
    match status {
        Status::Unknown(code) => format!("status-{code:#04x}"),
        known => hyphenated(&format!("{known:?}")),
    }
}

/// The name of a status byte, with its direction if it has one: `page-fault-write`.
#[must_use]
pub fn status_byte(byte: StatusByte) -> String {
    let direction = match (byte.status().has_direction(), byte.is_write()) {
        (false, _) => "",
        (true, false) => "-read",
        (true, true) => "-write",
    };
    format!("{}{direction}", status(byte.status()))
}

/// The name of an operand.
#[must_use]
pub fn operand(code: u32) -> String {
    let known = [
        OperandId::Source1,
        OperandId::Source2,
        OperandId::Destination1,
        OperandId::Destination2,
        OperandId::CompletionRecord,
    ];
    known
        .into_iter()
        .find(|operand| *operand as u32 == code)
        .map_or_else(|| "operand".into(), |operand| hyphenated(&format!("{operand:?}")))
}

/// Converts `PageFault` to `page-fault`, `Source1` to `source-1`.
fn hyphenated(name: &str) -> String {
    let mut text = String::new();
    let mut digit = false;
    for letter in name.chars() {
        let begins = letter.is_ascii_uppercase() || letter.is_ascii_digit() && !digit;
        if begins && !text.is_empty() {
            text.push('-');
        }
        digit = letter.is_ascii_digit();
        text.push(letter.to_ascii_lowercase());
    }
    text
}

/// Names of the flag bits: the short names of the driver's header where it has one. Source: UAPI `IDXD_OP_FLAG_*`.
const FLAGS: [&str; 24] = [
    "fence",
    "bof",
    "crav",
    "rcr",
    "rci",
    "cc3",
    "bit6",
    "cr",
    "cc",
    "addr1-tcs",
    "addr2-tcs",
    "addr3-tcs",
    "cr-tcs",
    "stord",
    "drdbk",
    "dsts",
    "op16",
    "op17",
    "op18",
    "op19",
    "op20",
    "op21",
    "op22",
    "op23",
];

/// The names of the set flags.
#[must_use]
pub fn flags(flags: Flags) -> Vec<String> {
    let set = FLAGS.iter().enumerate().filter(|(bit, _)| flags.bits() >> bit & 1 == 1);
    set.map(|(_, name)| (*name).to_owned()).collect()
}

/// The fields of a descriptor; the address of its record is last, if it has one.
#[must_use]
pub fn operands(d: &Descriptor) -> Fields {
    let hex = |name: &str, value: u64| (name.to_owned(), Value::Hex(value));
    let count = |name: &str, value: u32| (name.to_owned(), Value::Count(value.into()));
    let (src, dst, size) = (hex("src", d.src()), hex("dst", d.dst()), count("size", d.size()));
    let flags = d.flags();
    let dif = |fields: &mut Fields, source: bool, dest: bool| {
        fields.push(hex("dif", d.dif_flags().into()));
        if source {
            fields.push(hex("source_dif", d.source_dif_flags().into()));
            fields.push(hex("source_ref", d.source_ref_tag().into()));
            fields.push(hex("source_app", d.source_app_tag().into()));
            fields.push(hex("source_mask", d.source_app_tag_mask().into()));
        }
        if dest {
            fields.push(hex("dest_dif", d.dest_dif_flags().into()));
            fields.push(hex("dest_ref", d.dest_ref_tag().into()));
            fields.push(hex("dest_app", d.dest_app_tag().into()));
            fields.push(hex("dest_mask", d.dest_app_tag_mask().into()));
        }
    };
    let mut fields = match d.opcode() {
        Opcode::Nop => vec![],
        Opcode::Batch => vec![hex("list", d.src()), count("count", d.size())],
        Opcode::Drain => {
            let first = flags.contains(OpFlags::READBACK_1).then(|| hex("readback1", d.src()));
            let second = flags.contains(OpFlags::READBACK_2).then(|| hex("readback2", d.dst()));
            first.into_iter().chain(second).collect()
        }
        Opcode::Fill => {
            let mut fields = vec![hex("pattern", d.src())];
            if flags.contains(OpFlags::FILL_16) {
                fields.push(hex("pattern_upper", d.pattern_upper()));
            }
            fields.extend([dst, size]);
            fields
        }
        Opcode::Compare => vec![hex("src1", d.src()), hex("src2", d.dst()), size],
        Opcode::ComparePattern => vec![src, hex("pattern", d.dst()), size],
        Opcode::CreateDelta => vec![
            hex("src1", d.src()),
            hex("src2", d.dst()),
            size,
            hex("delta", d.delta_address()),
            count("max_delta", d.max_delta_size()),
        ],
        Opcode::ApplyDelta => {
            vec![hex("delta", d.src()), count("delta_size", d.delta_record_size()), dst, size]
        }
        Opcode::Dualcast => vec![src, hex("dst1", d.dst()), hex("dst2", d.dst2()), size],
        Opcode::CrcGeneration | Opcode::CopyCrc => {
            let mut fields = vec![src];
            if d.opcode() == Opcode::CopyCrc {
                fields.push(dst);
            }
            fields.push(size);
            fields.push(match flags.contains(OpFlags::READ_SEED) {
                true => hex("seed_at", d.crc_seed_address()),
                false => hex("seed", d.crc_seed().into()),
            });
            fields
        }
        Opcode::DifCheck => {
            let mut fields = vec![src, size];
            dif(&mut fields, true, false);
            fields
        }
        Opcode::DifInsert => {
            let mut fields = vec![src, dst, size];
            dif(&mut fields, false, true);
            fields
        }
        Opcode::DifStrip => {
            let mut fields = vec![src, dst, size];
            dif(&mut fields, true, false);
            fields
        }
        Opcode::DifUpdate => {
            let mut fields = vec![src, dst, size];
            dif(&mut fields, true, true);
            fields
        }
        Opcode::CacheFlush => vec![dst, size],
        // For unknown operations, the common fields.
        _ => vec![src, dst, size],
    };
    if flags.contains(Flags::COMPLETION_RECORD_ADDRESS_VALID) {
        fields.push(hex("record", d.completion_address()));
    }
    if flags.contains(Flags::REQUEST_COMPLETION_INTERRUPT) {
        fields.push(count("handle", d.interrupt_handle().into()));
    }
    fields
}

/// The fields of a completion record except its status.
#[must_use]
pub fn results(opcode: Opcode, record: &CompletionRecord) -> Fields {
    let hex = |name: &str, value: u64| (name.to_owned(), Value::Hex(value));
    let count = |name: &str, value: u64| (name.to_owned(), Value::Count(value));
    let mut fields = Vec::new();
    let status = record.status();
    let done = matches!(status, Status::Success | Status::SuccessPredicateFalse);
    let partial = status.is_page_fault();
    match opcode {
        Opcode::Batch => fields.push(count("members", record.bytes_completed().into())),
        _ if record.bytes_completed() != 0 || partial => {
            fields.push(count("bytes", record.bytes_completed().into()));
        }
        _ => {}
    }
    if record.result() != 0 || done && matches!(opcode, Opcode::Compare | Opcode::ComparePattern | Opcode::CreateDelta)
    {
        fields.push(count("result", record.result().into()));
    }
    if status.has_direction() {
        fields.push(hex("fault", record.fault_address()));
    }
    if status == Status::InvalidFlags {
        fields.push(hex("invalid", record.invalid_flags().into()));
    }
    if done || partial {
        match opcode {
            Opcode::CrcGeneration | Opcode::CopyCrc => fields.push(hex("crc", record.crc().into())),
            Opcode::CreateDelta => fields.push(count("delta_size", record.delta_record_size().into())),
            Opcode::DifCheck | Opcode::DifStrip => {
                fields.push(hex("ref", record.source_ref_tag().into()));
                fields.push(hex("app", record.source_app_tag().into()));
            }
            Opcode::DifInsert => {
                fields.push(hex("ref", record.dest_ref_tag().into()));
                fields.push(hex("app", record.dest_app_tag().into()));
            }
            _ => {}
        }
    }
    fields
}

/// Formats a descriptor as a call: `memory-move(src=0x1000, dst=0x2000, size=64, flags=crav|rcr)`.
#[must_use]
pub fn call(operation: &str, operands: &Fields, flags: &[String]) -> String {
    let mut words: Vec<String> = operands.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if !flags.is_empty() {
        words.push(format!("flags={}", flags.join("|")));
    }
    format!("{operation}({})", words.join(", "))
}

/// Formats a raw descriptor as a call.
#[must_use]
pub fn call_of(descriptor: &Descriptor) -> String {
    call(&operation(descriptor.opcode()), &operands(descriptor), &flags(descriptor.flags()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_formatted_by_their_fields() {
        let d = Descriptor::memory_move(0x1000, 0x2000, 64).with_record(0x3000);
        assert_eq!(call_of(&d), "memory-move(src=0x1000, dst=0x2000, size=64, record=0x3000, flags=crav|rcr)");
        assert_eq!(call_of(&Descriptor::nop()), "nop()");
        let d = Descriptor::batch(0x40, 3).and_flags(Flags::FENCE);
        assert_eq!(call_of(&d), "batch(list=0x40, count=3, flags=fence)");
        let d = Descriptor::crc_generation(0x1000, 64, 7).with_crc_seed_address(0x9000);
        assert_eq!(call_of(&d), "crc-generation(src=0x1000, size=64, seed=0x7)");
        assert_eq!(
            call_of(&d.and_flags(OpFlags::READ_SEED)),
            "crc-generation(src=0x1000, size=64, seed_at=0x9000, flags=op16)"
        );
        let odd = Descriptor::new(Opcode::Unknown(0x3f));
        assert_eq!(call_of(&odd), "operation-0x3f(src=0x0, dst=0x0, size=0)");
    }

    #[test]
    fn operations_have_names_short_names_and_codes() {
        for known in Opcode::ALL {
            assert_eq!(opcode(&operation(*known)), Some(*known));
        }
        assert_eq!(opcode("copy"), Some(Opcode::MemoryMove));
        assert_eq!(opcode("0x20"), Some(Opcode::CacheFlush));
        assert_eq!(opcode(&operation(Opcode::Unknown(0x3f))), Some(Opcode::Unknown(0x3f)));
        assert_eq!(opcode("shuffle"), None);
    }

    #[test]
    fn statuses_and_operands_are_single_words() {
        assert_eq!(status_byte(StatusByte(0x83)), "page-fault-write");
        assert_eq!(status_byte(StatusByte(0x03)), "page-fault-read");
        assert_eq!(status_byte(StatusByte(0x01)), "success");
        assert_eq!(status_byte(StatusByte(0x3f)), "status-0x3f");
        assert_eq!(operand(1), "source-1");
        assert_eq!(operand(5), "completion-record");
        assert_eq!(operand(77), "operand");
        for known in Status::ALL {
            let word = status(*known);
            assert!(word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{word}");
        }
    }

    #[test]
    fn records_show_only_meaningful_fields() {
        let shown = |opcode, record: CompletionRecord| -> String {
            results(opcode, &record).iter().map(|(name, value)| format!("{name}={value} ")).collect()
        };
        let record = |status| CompletionRecord::new(StatusByte(status));
        assert_eq!(shown(Opcode::MemoryMove, record(1)), "");
        let fault = record(0x83).with_bytes_completed(4096).with_fault_address(0x7000);
        assert_eq!(shown(Opcode::MemoryMove, fault), "bytes=4096 fault=0x7000 ");
        assert_eq!(shown(Opcode::Compare, record(1)), "result=0 ");
        assert_eq!(shown(Opcode::CrcGeneration, record(1).with_crc(0xabcd)), "crc=0xabcd ");
        assert_eq!(shown(Opcode::Batch, record(5).with_bytes_completed(8)), "members=8 ");
        assert_eq!(shown(Opcode::Nop, record(0x11).with_invalid_flags(2)), "invalid=0x2 ");
    }

    #[test]
    fn values_survive_text_and_json() {
        for value in [Value::Hex(u64::MAX), Value::Count(0), Value::Hex(0)] {
            assert_eq!(Value::parse(&value.to_string()), Some(value));
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }
        assert_eq!(Value::parse("0x"), None);
        assert_eq!(Value::parse("-1"), None);
    }
}
