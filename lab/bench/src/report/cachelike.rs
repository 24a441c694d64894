//! A cache under load with and without a device, as a terminal table, CSV and an HTML page.

use crate::cachelike::{CacheLikeResult, OffloadCounters, Percentiles, QUANTILES, SideResult};
use telpher_report::html::Page;
use telpher_report::table::{Align, Table};
use telpher_report::units;

/// A row: its name, and a cell for each side.
type Row = (String, Vec<String>);

/// Returns the rows for people.
fn rows(result: &CacheLikeResult) -> Vec<Row> {
    let row = |name: &str, cell: &dyn Fn(&SideResult) -> String| {
        (name.to_owned(), result.sides.iter().map(cell).collect::<Vec<_>>())
    };
    let times = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.3} ×"));
    let share = |part: u64, of: u64| format!("{:.1} %", part as f64 / of.max(1) as f64 * 100.0);
    let mut rows = vec![
        row("gets", &|side| units::frequency(side.gets_per_second)),
        row("against off", &|side| times(side.against_off)),
        row("sets", &|side| units::frequency(side.sets_per_second)),
        row("gets by elapsed time", &|side| units::frequency(side.gets_per_elapsed_second)),
        row("against off by elapsed time", &|side| times(side.against_off_elapsed)),
        row("sets by elapsed time", &|side| units::frequency(side.sets_per_elapsed_second)),
    ];
    let latencies = |of: fn(&SideResult) -> &Percentiles, what: &str| {
        let row = |number: usize| {
            row(&format!("{what} {}", QUANTILES[number].0), &|side| {
                of(side).ns[number].map_or(String::new(), units::time)
            })
        };
        (0..QUANTILES.len()).map(row).collect::<Vec<_>>()
    };
    rows.extend(latencies(|side| &side.gets, "get"));
    rows.extend(latencies(|side| &side.sets, "set"));
    let offload =
        |of: fn(&OffloadCounters) -> String| move |side: &SideResult| side.offload.as_ref().map_or(String::new(), of);
    rows.extend([
        row("number of gets", &|side| side.counts.gets.to_string()),
        row("number of sets", &|side| side.counts.sets.to_string()),
        row("sets without room", &|side| side.counts.refused_sets.to_string()),
        row("gets that found a value", &|side| share(side.counts.hits, side.counts.gets)),
        row("values removed to make room", &|side| side.counts.evictions.to_string()),
        row("copies from the threshold on", &|side| share(side.counts.long_copies, side.counts.copies)),
        row("their bytes", &|side| share(side.counts.long_bytes, side.counts.bytes)),
        row("with filling: long copies", &|side| (side.counts.long_copies + side.filling.long_copies).to_string()),
        row("with filling: copies by the device", &offload(|it| it.device_calls.to_string())),
        row("with filling: bytes of long copies", &|side| {
            telpher_report::units::size(side.counts.long_bytes + side.filling.long_bytes)
        }),
        row("with filling: bytes by the device", &offload(|it| telpher_report::units::size(it.device_bytes))),
        row("with filling: left to the CPU as cached", &offload(|it| it.cached_calls.to_string())),
        row("with filling: page faults of the device", &offload(|it| it.faults.to_string())),
        row("with filling: refusals of full queues", &offload(|it| it.retries.to_string())),
        row("wrong values", &|side| side.counts.wrong.to_string()),
    ]);
    rows
}

/// Returns a sentence about the cache and the load.
fn subject(result: &CacheLikeResult) -> String {
    let config = &result.config;
    format!(
        "{} CPUs for {} threads ({}h/{}s), a cache of {} with {} keys; a thread has {} operations, on average with {} \
         gets; load {}; calls of {} or more may be offloaded",
        result.cores,
        config.threads,
        result.cores,
        config.threads,
        telpher_report::units::size(config.cache_bytes),
        config.keys,
        config.operations,
        config.gets(),
        config.name,
        telpher_report::units::size(result.threshold),
    )
}

/// What the sides mean.
const SIDES: &str = "off: without telpher offload; always: each copy of the threshold or more goes to the device, as \
                     with DTO in the paper; learned: only those of call sites that copy uncached data. A get includes \
                     one read of each cache line of its copy; a set is the operation alone. Rates leave out the time \
                     in which values are prepared before a set and checked after a get, and that of sets without \
                     room; rates by elapsed time leave out no time. 'With filling' adds the filling of the cache, \
                     which is in no other row; long copies have the threshold or more. A percentile is empty below ten \
                     samples beyond it.";

/// Returns the table for a terminal.
pub fn text(result: &CacheLikeResult) -> String {
    let mut out = telpher_report::heading(&result.machine, &result.remarks);
    out.push_str(&format!("\n{}\n", telpher_report::table::wrapped(&subject(result), 100).join("\n")));
    let columns = std::iter::once(("", Align::Left)).chain(result.sides.iter().map(|side| (side.name, Align::Right)));
    let mut table = Table::new(&columns.collect::<Vec<_>>());
    for (name, cells) in rows(result) {
        table.row(std::iter::once(name).chain(cells));
    }
    out.push_str(&table.to_string());
    out.push_str(&format!("\n{}\n", telpher_report::table::wrapped(SIDES, 100).join("\n")));
    out
}

/// Returns the CSV: one line for each side. Latencies are in nanoseconds.
pub fn csv(result: &CacheLikeResult) -> String {
    let names = |what: &str| {
        let each = QUANTILES.map(|(name, _)| format!("{what}_{}_ns", name.replace('.', "_")));
        format!("{what}_samples,{}", each.join(","))
    };
    let mut out = format!(
        "side,cores,threads,keys,cache_bytes,gets_per_second,sets_per_second,against_off,gets_per_elapsed_second,\
         sets_per_elapsed_second,against_off_elapsed,{},{},hits,refused_sets,copies,bytes,long_copies,long_bytes,\
         evictions,filling_long_copies,filling_long_bytes,device_calls,device_bytes,cached_calls,faults,retries,\
         wrong\n",
        names("get"),
        names("set")
    );
    let latencies = |of: &Percentiles| {
        let each = of.ns.map(|ns| units::field(ns, 0));
        format!("{},{}", of.samples, each.join(","))
    };
    for side in &result.sides {
        let (config, counts) = (&result.config, &side.counts);
        let offload = side.offload.as_ref().map_or(",,,,".to_owned(), |it| {
            format!("{},{},{},{},{}", it.device_calls, it.device_bytes, it.cached_calls, it.faults, it.retries)
        });
        out.push_str(&format!(
            "{},{},{},{},{},{:.0},{:.0},{},{:.0},{:.0},{},{},{},{},{},{},{},{},{},{},{},{},{offload},{}\n",
            side.name,
            result.cores,
            config.threads,
            config.keys,
            config.cache_bytes,
            side.gets_per_second,
            side.sets_per_second,
            units::field(side.against_off, 4),
            side.gets_per_elapsed_second,
            side.sets_per_elapsed_second,
            units::field(side.against_off_elapsed, 4),
            latencies(&side.gets),
            latencies(&side.sets),
            counts.hits,
            counts.refused_sets,
            counts.copies,
            counts.bytes,
            counts.long_copies,
            counts.long_bytes,
            counts.evictions,
            side.filling.long_copies,
            side.filling.long_bytes,
            counts.wrong,
        ));
    }
    out
}

/// Returns the HTML report.
pub fn html(result: &CacheLikeResult) -> String {
    let mut page = Page::new(
        "telpher bench cachelike",
        "A cache under load: gets and sets with their long copies by the CPU and by a device.",
        &result.machine,
        &result.remarks,
    );
    page.section("Rates and latencies", &format!("{}. {SIDES}", subject(result)));
    let header: Vec<String> =
        std::iter::once(String::new()).chain(result.sides.iter().map(|side| side.name.into())).collect();
    page.table(&header, rows(result).into_iter().map(|(name, cells)| std::iter::once(name).chain(cells).collect()));
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cachelike::tests::sample;

    #[test]
    fn the_table_has_rates_shares_and_empty_percentiles() {
        let text = text(&sample());
        let line =
            |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).expect("a row").to_owned();
        assert!(line("against off").contains("1.000 ×") && line("against off").contains("1.750 ×"), "{text}");
        assert!(
            line("copies from the threshold").contains("4.8 %") && line("their bytes").contains("96.4 %"),
            "{text}"
        );
        assert!(
            line("get p99.999").contains("50.0 µs") && line("get p99.99").matches("20.0 µs").count() == 2,
            "{text}"
        );
        assert!(line("set p99.999").trim() == "set p99.999", "{text}");
        assert!(
            line("against off by elapsed").contains("1.750 ×") && line("sets without room").contains('0'),
            "{text}"
        );
        // The copies of the device and those that it may have are on the same base.
        for row in ["with filling: long copies", "with filling: copies by the device"] {
            assert!(line(row).trim_end().ends_with("100"), "{text}");
        }
        assert!(text.contains("2h/4s") && text.lines().all(|line| line.chars().count() <= 110), "{text}");
    }

    #[test]
    fn csv_lines_have_equal_fields() {
        let csv = csv(&sample());
        let fields: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert!(fields.len() == 3 && fields.iter().all(|count| *count == fields[0]), "{csv}");
        assert!(csv.contains("get_p99_999_ns") && csv.contains(",48,96400,"), "{csv}");
    }

    #[test]
    fn the_page_has_every_row_and_side() {
        let html = html(&sample());
        assert!(rows(&sample()).iter().all(|(name, _)| html.contains(name)) && html.contains("always"));
    }
}
