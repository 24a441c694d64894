//! The event log of hardware, as the driver shows it to root in debugfs: errors that no completion record could report.
//! Source: Linux 6.12, `drivers/dma/idxd/debugfs.c`.

use crate::snapshot::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use telpher_abi::Status;

/// The most bytes of the text that are read. Source: 65535 entries, with some 500 characters each.
const MOST_BYTES: u64 = 64 << 20;
/// What stands before the error code of an entry.
const ERROR: &str = " error 0x";

/// Reads the log of a device below `sys`: the number of its entries, and their numbers by error code.
pub(crate) fn read(sys: &Path, device: &str) -> (Value, Vec<(String, u64)>) {
    let path = sys.join("kernel/debug/idxd").join(device).join("event_log");
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => count(&text),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (Value::unknown("only root reads the event log"), Vec::new())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (Value::unknown("the device has no event log, or debugfs is not mounted"), Vec::new())
        }
        Err(error) => (Value::unknown(format!("the event log cannot be read: {error}")), Vec::new()),
    }
}

/// Counts the entries of the driver's text.
fn count(text: &str) -> (Value, Vec<(String, u64)>) {
    let code = |line: &str| {
        let (_, rest) = line.strip_prefix("batch ")?.split_once(ERROR)?;
        u8::from_str_radix(rest.trim_end(), 16).ok()
    };
    let mut codes: BTreeMap<u8, u64> = BTreeMap::new();
    for code in text.lines().filter_map(code) {
        *codes.entry(code).or_default() += 1;
    }
    let all = codes.values().sum::<u64>();
    let named = |(code, number)| (format!("{code:#04x} {}", Status::from_code(code).meaning()), number);
    (Value::Known(all), codes.into_iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted_by_their_error_code() {
        let entry = |code: &str| {
            format!(
                "Event Log entry 0 (real index 5) processed: 1\ndesc valid 1 wq idx valid 1\n\
                 batch 0 fault rw 1 priv 0 error 0x{code}\nwq idx 0 op 0x3 pasid 1 batch idx 0\nfault addr 0x1000\n"
            )
        };
        let text =
            format!("Event Log head 3 tail 3 interrupt pending 0\n\n{}{}{}", entry("1a"), entry("3"), entry("1a"));
        let (all, codes) = count(&text);
        let codes: Vec<_> = codes.iter().map(|(name, number)| (&name[..4], *number)).collect();
        assert_eq!((all, codes), (Value::Known(3), vec![("0x03", 1), ("0x1a", 2)]));
        assert_eq!(count("batch error 0x\nbatch 0 error 0xfff\n error 0x1\n\u{0}"), (Value::Known(0), Vec::new()));
    }
}
