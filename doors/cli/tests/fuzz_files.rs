//! Damaged files of every format that a command reads: each gives a result or an error message, within limits of memory
//! and time.
//!
//! At least fifty mutants of each, and more within `TELPHER_SOAK_SECONDS`. A failure prints the seed and keeps the
//! file.

#[path = "mutants/mod.rs"]
mod mutants;

use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, Date32Array, DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use mutants::{Chance, Shape, mutant};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_os::Random;

/// Minimum number of mutants of each file.
const MUTANTS: u64 = 50;

/// Limit of the command's address space in KiB. Source: chosen; several times the need for intact files.
const MEMORY: &str = "3145728";

/// Limit of wall-clock time in seconds; far more than any command takes.
const PATIENCE: &str = "60";

/// The signal that ends a process after its processor time.
const XCPU: i32 = 24;

/// A file and the commands that read it.
struct Case {
    name: &'static str,
    shape: Shape,
    whole: Vec<u8>,
    /// `{}` is the file's name.
    command: &'static str,
    /// What the command may end with.
    codes: &'static [i32],
}

impl Case {
    fn is_simulation(&self) -> bool {
        self.command.starts_with("sim;") || self.command.starts_with("advise;")
    }
}

const QUERY: &str = "--query;select flag, sum(price), avg(share), count(at), max(day) from t where day < '1970-04-11' \
                     and flag like '%A%' and price is not null group by flag";
const QDP: &str = "qdp;{QUERY};--input;{};--plain;--repeat;1;--no-html";

const PROFILE: &str = "sim;run;--profile;./{};--size;4k;--op;move;--count;64;--no-html";
const WORK: &str =
    "[[work]]\nname = \"pages\"\nop = \"memory-move\"\nsize = \"1m\"\nin_flight = 1\nthreads = 1\ndst = 0\n";

fn test_folder() -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz_files");
    std::fs::create_dir_all(&room).expect("a folder for what the tests write");
    room
}

/// Reads a file of the source tree.
fn source(path: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn table(is_dictionary: bool) -> RecordBatch {
    let rows = 0..300;
    let some = |row: i64| (row % 9 != 0).then_some(row);
    let flag = |row| if row % 2 == 0 { "A" } else { "BAR" };
    let words = rows.clone().map(|row| some(row).map(flag)).collect::<DictionaryArray<Int8Type>>();
    let columns: [(&str, ArrayRef); 5] = [
        ("price", Arc::new(Int64Array::from_iter(rows.clone().map(|row| some(row).map(|row| row % 7))))),
        ("day", Arc::new(Date32Array::from_iter_values(0..300))),
        (
            "flag",
            if is_dictionary {
                Arc::new(words)
            } else {
                Arc::new(StringArray::from_iter_values(rows.clone().map(flag)))
            },
        ),
        ("share", Arc::new(Float64Array::from_iter(rows.clone().map(|row| some(row).map(|row| row as f64 / 3.0))))),
        ("at", Arc::new(TimestampMicrosecondArray::from_iter(rows.map(some)))),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

fn arrow(codec: Option<CompressionType>, is_file: bool) -> Vec<u8> {
    let (table, options) =
        (table(codec.is_none()), IpcWriteOptions::default().try_with_compression(codec).expect("a codec"));
    if is_file {
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &table.schema(), options).expect("a writer");
        writer.write(&table).expect("a batch");
        writer.into_inner().expect("a file")
    } else {
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &table.schema(), options).expect("a writer");
        writer.write(&table).expect("a batch");
        writer.into_inner().expect("a stream")
    }
}

fn parquet(compression: Compression) -> Vec<u8> {
    let (table, mut bytes) = (table(false), Vec::new());
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut writer = ArrowWriter::try_new(&mut bytes, table.schema(), Some(properties)).expect("a writer");
    writer.write(&table).expect("a batch");
    writer.close().expect("a file");
    bytes
}

/// Returns a trace of a run, as text or JSON.
fn trace(is_json: bool) -> Vec<u8> {
    let text = "\
0.000001000 1/1 wq0.0 #1 enqcmd memory-move(src=0x10, dst=0x20, size=64, flags=crav|rcr) = 0x01 success <5.000us>
0.000002000 1/2 wq0.1 #1 movdir64b batch(list=0x40, count=2) = 0x05 batch-fail members=2 <9.000us>
0.000002000 1/2 wq0.1     #1[0] fill(pattern=0x0, dst=0x20, size=4096) = 0x83 page-fault-write bytes=100 fault=0x84 <7.000us>
0.000004000 2/2 wq0.1 #3 enqcmd nop() = (retry) retries=7
0.000005000 2/2 wq0.1 misuse read-after-write address=0x20 len=64: #2 source-1 of fill(dst=0x20)
0.000006000 2/2 wq0.1 lost entries=4
";
    if !is_json {
        return text.into();
    }
    let path = test_folder().join("seed.trace");
    std::fs::write(&path, text).expect("our own folder");
    let path = path.display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_telpher")).args(["trace", "--format", "json", &path]).output();
    output.expect("the binary runs").stdout
}

/// Returns a tuning file.
fn tuning() -> Vec<u8> {
    let path = test_folder().join("seed-tuning.toml");
    let words = "tune --op move,crc --size 4k,64k --seconds 0.3 --device model:spr --tuning";
    let output = Command::new(env!("CARGO_BIN_EXE_telpher")).args(words.split(' ')).arg(&path).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    std::fs::read(&path).expect("what was written")
}

fn cases() -> Vec<Case> {
    const PLAIN: &[i32] = &[0, 1, 2];
    let case = |name, shape, whole, command| Case { name, shape, whole, command, codes: PLAIN };
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let (lz4_frame, zstd_frame) = (Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD));
    let configuration = || source("doors/cli/tests/programs/sources/two-queues.json");
    vec![
        case("plain.arrow", Shape::Words, arrow(None, true), QDP),
        case("lz4.arrow", Shape::Words, arrow(lz4_frame, true), QDP),
        case("zstd.arrow", Shape::Words, arrow(zstd_frame, true), QDP),
        case("zstd.arrows", Shape::Words, arrow(zstd_frame, false), QDP),
        case("lz4.arrows", Shape::Words, arrow(lz4_frame, false), QDP),
        case("snappy.parquet", Shape::Parquet, parquet(Compression::SNAPPY), QDP),
        case("zstd.parquet", Shape::Parquet, parquet(zstd), QDP),
        case("listed.json", Shape::Text, configuration(), "list;--device;model:./{}"),
        Case { codes: &[0, 125], ..case("hardware.json", Shape::Text, configuration(), "run;--hardware;./{};--;true") },
        Case {
            codes: &[0, 1, 2, 3],
            ..case("bundle.json", Shape::Text, source("doors/cli/tests/doctor/healthy.json"), "doctor;--bundle;{}")
        },
        case("text.trace", Shape::Text, trace(false), "trace;{};--summary"),
        case("json.trace", Shape::Text, trace(true), "trace;{}"),
        case("tuning.toml", Shape::Text, tuning(), "qdp;--query;thesis;--size;64k;--plain;--repeat;1;--no-html"),
        case("profile.toml", Shape::Text, source("lab/sim/profiles/xeon-max-9468.toml"), PROFILE),
        case("workload.toml", Shape::Text, source("lab/workloads/one-at-a-time.toml"), "sim;run;{};--no-html"),
        // One operation at a time, so that there are few plans to be simulated.
        case("work.toml", Shape::Text, WORK.into(), "advise;{};--no-html"),
    ]
}

/// Runs the case's command on its file.
fn run(case: &Case, file: &str) -> Output {
    // A valid file may describe a simulation that takes years, so it gets a limit of processor time.
    let seconds = if case.is_simulation() { "3" } else { PATIENCE };
    let words = case.command.replace("{QUERY}", QUERY);
    let words = words.split(';').map(|word| word.replace("{}", file));
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("ulimit -v {MEMORY} && ulimit -t {seconds} && exec timeout -s KILL {PATIENCE} \"$0\" \"$@\""));
    command.arg(env!("CARGO_BIN_EXE_telpher")).args(words).current_dir(test_folder());
    if case.name.starts_with("tuning") {
        command.env("TELPHER_TUNING", file);
    }
    command.output().expect("the shell runs")
}

/// Returns what is wrong with the way a command ended.
fn wrong(case: &Case, output: &Output) -> Option<String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    // If a signal ended the program, timeout(1) exits with 128 or more, or ends by the same signal.
    let code = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
    let is_ended = case.codes.contains(&code) || (code == 128 + XCPU && case.is_simulation());
    let words = ["panicked at", "memory allocation of", "stack overflow"];
    if is_ended && !words.iter().any(|word| stderr.contains(word)) {
        return None;
    }
    Some(format!("ended with {code}: {}", stderr.chars().take(600).collect::<String>()))
}

/// Tests mutants of one file until the minimum number is reached and the time is over; returns the failures.
fn mutants_of(case: &Case, seconds: u64, worker: &str) -> Vec<String> {
    let (begin, mut failures) = (Instant::now(), Vec::new());
    let whole = format!("whole-{}", case.name);
    std::fs::write(test_folder().join(&whole), &case.whole).expect("our own folder");
    let output = run(case, &whole);
    assert!(output.status.success(), "{}: the whole file is refused: {output:?}", case.name);
    let mut seed = 0;
    while seed < MUTANTS || (seconds > 3 && begin.elapsed() < Duration::from_secs(seconds)) {
        let file = format!("{worker}-{}", case.name);
        let bytes = mutant(&case.whole, case.shape, &mut Chance(Random::new(seed ^ 0x7e1f)));
        std::fs::write(test_folder().join(&file), bytes).expect("our own folder");
        if let Some(wrong) = wrong(case, &run(case, &file)) {
            let kept = format!("seed-{seed}-{}", case.name);
            std::fs::rename(test_folder().join(&file), test_folder().join(&kept)).expect("our own folder");
            failures.push(format!(
                "{}, seed {seed}, kept as {}: {wrong}",
                case.name,
                test_folder().join(kept).display()
            ));
        }
        seed += 1;
    }
    failures
}

#[test]
fn a_damaged_file_gives_a_result_or_an_error_message() {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let cases = cases();
    let share = seconds * 2 / cases.len() as u64;
    let failures = std::thread::scope(|scope| {
        let halves: Vec<_> = [0, 1]
            .map(|half| {
                let cases = &cases;
                scope.spawn(move || {
                    let mine = cases.iter().skip(half).step_by(2);
                    mine.flat_map(|case| mutants_of(case, share, &format!("half{half}"))).collect::<Vec<_>>()
                })
            })
            .into();
        halves.into_iter().flat_map(|half| half.join().expect("workers do not panic")).collect::<Vec<_>>()
    });
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
