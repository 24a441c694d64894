//! The calls of a process by their size, in the format of Intel's DTO, so that scripts that read its output keep
//! working. Source: DTO, `print_stats`.

use std::fmt::Write as _;
use std::time::Duration;

/// The calls of one process.
#[derive(Clone, PartialEq, Debug)]
pub struct DtoStatistics {
    /// How long the process ran.
    pub run_time: Duration,
    /// Its calls, by size.
    pub rows: Vec<DtoRow>,
}

/// The calls in a range of sizes. Groups are calls of the C library, calls of the device that succeeded, and calls that
/// it left; operations are set, copy, move and compare.
#[derive(Clone, PartialEq, Debug)]
pub struct DtoRow {
    /// The smallest size in bytes.
    pub first: usize,
    /// The largest size in bytes; `None` if the range has no end.
    pub last: Option<usize>,
    /// Calls by group and operation.
    pub calls: [[u64; 4]; 3],
    /// Mean time of a call in microseconds, by group and operation.
    pub mean_us: [[f64; 4]; 3],
    /// Bytes by group.
    pub bytes: [u64; 3],
    /// Calls that the device left, by reason: full queue, page fault, other.
    pub failures: [u64; 3],
}

const GROUPS: [&str; 3] = ["stdc calls", "dsa (success)", "dsa (failed)"];
const OPERATIONS: [&str; 4] = ["set", "cpy", "mov", "cmp"];

/// Returns DTO's tables of a process.
#[must_use]
pub fn dto_text(statistics: &DtoStatistics) -> String {
    let mut text = format!("DTO Run Time: {} ms\n", statistics.run_time.as_millis());
    // Writing to a string does not fail.
    let _ = counts(&mut text, &statistics.rows).and_then(|()| latencies(&mut text, &statistics.rows));
    text
}

/// Writes the numbers of calls and bytes.
fn counts(text: &mut String, rows: &[DtoRow]) -> std::fmt::Result {
    text.push_str("\n******** Number of Memory Operations ********\n");
    write!(text, "{:21}", "")?;
    for group in GROUPS {
        write!(text, "<*************** {group:<13} ***************> ")?;
    }
    write!(text, "<***** {:<13} *****> \n{:<17} -- ", "failure reason", "Byte Range")?;
    for _ in GROUPS {
        for operation in OPERATIONS {
            write!(text, "{operation:<8} ")?;
        }
        write!(text, "{:<12} ", "bytes")?;
    }
    writeln!(text, "{:<6} {:<6} {:<6} ", "Retry", "PFs", "Others")?;
    for row in rows {
        range(text, row)?;
        for (calls, bytes) in row.calls.iter().zip(row.bytes) {
            for calls in calls {
                write!(text, "{calls:<8} ")?;
            }
            write!(text, "{bytes:<12} ")?;
        }
        for failures in row.failures {
            write!(text, "{failures:<6} ")?;
        }
        text.push('\n');
    }
    Ok(())
}

/// Writes the mean times.
fn latencies(text: &mut String, rows: &[DtoRow]) -> std::fmt::Result {
    text.push_str("\n******** Average Memory Operation Latency (us)  ********\n");
    write!(text, "{:21}", "")?;
    for group in GROUPS {
        write!(text, "<******** {group:<13} ********> ")?;
    }
    write!(text, "\n{:<17} -- ", "Byte Range")?;
    for _ in GROUPS {
        for operation in OPERATIONS {
            write!(text, "{operation:<8} ")?;
        }
    }
    text.push('\n');
    for row in rows {
        range(text, row)?;
        for (calls, times) in row.calls.iter().flatten().zip(row.mean_us.iter().flatten()) {
            if *calls > 0 {
                write!(text, "{times:<8.2} ")?;
            } else {
                write!(text, "{:<8} ", 0)?;
            }
        }
        text.push('\n');
    }
    Ok(())
}

fn range(text: &mut String, row: &DtoRow) -> std::fmt::Result {
    match row.last {
        Some(last) => write!(text, "{:>8}-{last:<8} -- ", row.first),
        None => write!(text, "   >={:<12} -- ", row.first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines are what DTO's own `printf` formats give for these numbers.
    #[test]
    fn the_tables_are_those_of_dto() {
        let none = DtoRow {
            first: 0,
            last: Some(4095),
            calls: [[0; 4]; 3],
            mean_us: [[0.0; 4]; 3],
            bytes: [0; 3],
            failures: [0; 3],
        };
        let short = DtoRow {
            calls: [[1, 20, 0, 0], [0; 4], [0; 4]],
            mean_us: [[0.125, 3.0, 0.0, 0.0], [0.0; 4], [0.0; 4]],
            bytes: [20_001, 0, 0],
            ..none.clone()
        };
        let long = DtoRow {
            first: 2_093_056,
            last: None,
            calls: [[0, 0, 2, 0], [0, 7, 0, 0], [0, 0, 2, 0]],
            mean_us: [[0.0, 0.0, 1234.567, 0.0], [0.0, 28.4, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0]],
            bytes: [1 << 33, 123_456_789_012, 4096],
            failures: [0, 2, 0],
        };
        let text = dto_text(&DtoStatistics { run_time: Duration::from_micros(1_234_567), rows: vec![short, long] });
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "DTO Run Time: 1234 ms",
            "",
            "******** Number of Memory Operations ********",
            "                     <*************** stdc calls    ***************> \
             <*************** dsa (success) ***************> <*************** dsa (failed)  ***************> \
             <***** failure reason *****> ",
            "Byte Range        -- set      cpy      mov      cmp      bytes        \
             set      cpy      mov      cmp      bytes        set      cpy      mov      cmp      bytes        \
             Retry  PFs    Others ",
            "       0-4095     -- 1        20       0        0        20001        \
             0        0        0        0        0            0        0        0        0        0            \
             0      0      0      ",
            "   >=2093056      -- 0        0        2        0        8589934592   \
             0        7        0        0        123456789012 0        0        2        0        4096         \
             0      2      0      ",
            "",
            "******** Average Memory Operation Latency (us)  ********",
            "                     <******** stdc calls    ********> <******** dsa (success) ********> \
             <******** dsa (failed)  ********> ",
            "Byte Range        -- set      cpy      mov      cmp      set      cpy      mov      cmp      \
             set      cpy      mov      cmp      ",
            "       0-4095     -- 0.12     3.00     0        0        0        0        0        0        \
             0        0        0        0        ",
            "   >=2093056      -- 0        0        1234.57  0        0        28.40    0        0        \
             0        0        5.00     0        ",
        ];
        assert_eq!(lines, expected);
        assert!(text.ends_with('\n'));
    }
}
