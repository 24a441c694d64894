//! The data of a query: generated columns, or a user's own.

use super::error::PrefetchError;
use crate::options::PrefetchOptions;
use telpher_mem::{MapError, Region};
use telpher_os::check_memory;
use telpher_query::{Aggregate, Plan, Query, Table, files, generate};
use telpher_report::query::{Data, DataColumn};

/// A query that can be executed, and the description of its data.
pub(super) struct Prepared {
    pub(super) query: Query,
    /// The query as the user would type it.
    pub(super) summary: String,
    pub(super) data: Data,
}

/// Returns the query with a name, or parses its text.
pub(super) fn plan(text: &str) -> Result<Plan, PrefetchError> {
    match text {
        "thesis" => Ok(Plan::thesis()),
        "q1" => parsed(Plan::TPCH_Q1),
        "q6" => parsed(Plan::TPCH_Q6),
        text => parsed(text),
    }
}

fn parsed(text: &str) -> Result<Plan, PrefetchError> {
    text.parse().map_err(|source| PrefetchError::Text { text: text.to_owned(), source })
}

/// Generates or reads the data of the query, and binds the query to it.
pub(super) fn prepare(args: &PrefetchOptions) -> Result<Prepared, PrefetchError> {
    let plan = plan(&args.query)?;
    let names = plan.columns();
    let mut memory = |name: &str, len: usize| -> Result<Region, MapError> {
        // A column with a filter is scanned, and never prefetched, whichever other stages read it.
        let scanned = plan.filters.iter().any(|filter| filter.column == name);
        let mut region = Region::new(len, args.pages)?;
        if let Some(node) = if scanned { args.scanned_node } else { args.fetched_node } {
            region.bind(node)?;
        }
        Ok(region)
    };
    let (table, from) = if args.input.is_empty() {
        // The size of each column is not known yet, so the check covers all nodes together.
        check_memory("the columns", args.size, None, "ask for less with --size")?;
        let table = generated(args, &names, &mut memory)?;
        (table, format!("generated, seed {}", args.seed))
    } else {
        let table = files::read(&args.input, &names, &mut memory)?;
        let files: Vec<String> = args.input.iter().map(|path| path.display().to_string()).collect();
        (table, files.join(", "))
    };
    let query = plan.on(&table)?;
    let data = data(&query, from);
    Ok(Prepared { query, summary: in_words(&plan), data })
}

/// Returns the plan in the short form that `--query` accepts. The SQL for other engines also contains the width of
/// numbers.
fn in_words(plan: &Plan) -> String {
    let aggregates = plan.aggregates.iter().map(|it| match it {
        Aggregate::Count => "count(*)".to_owned(),
        it => it.to_string(),
    });
    let shown: Vec<String> = plan.group_by.iter().cloned().chain(aggregates).collect();
    let mut message = format!("select {} from t", shown.join(", "));
    let filters: Vec<String> = plan.filters.iter().map(ToString::to_string).collect();
    if !filters.is_empty() {
        message += &format!(" where {}", filters.join(" AND "));
    }
    if !plan.group_by.is_empty() {
        message += &format!(" group by {}", plan.group_by.join(", "));
    }
    message
}

/// The columns of the thesis' query.
const TWO_COLUMNS: [&str; 2] = ["a", "b"];

/// Bytes of a row: two values of eight bytes.
const TWO_COLUMNS_ROW: u64 = 16;

/// The columns of TPC-H's LINEITEM table that its queries 1 and 6 read.
const LINEITEM: [&str; 7] =
    ["l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_returnflag", "l_linestatus", "l_shipdate"];

/// Bytes of a row: four amounts, two letters and a date.
const LINEITEM_ROW: u64 = 4 * 8 + 2 + 4;

/// Allocates the memory of a column, given its name and size.
type Memory<'a> = &'a mut dyn FnMut(&str, usize) -> Result<Region, MapError>;

/// Generates the table that has the columns: the thesis', or TPC-H's.
fn generated(args: &PrefetchOptions, names: &[String], memory: Memory<'_>) -> Result<Table, PrefetchError> {
    let rows = |row: u64| (args.size / row).max(1);
    let all_in = |table: &[&str]| names.iter().all(|name| table.contains(&name.as_str()));
    if all_in(&TWO_COLUMNS) {
        return Ok(generate::two_columns(rows(TWO_COLUMNS_ROW), args.seed, memory)?);
    }
    if all_in(&LINEITEM) {
        return Ok(generate::typed_lineitem(rows(LINEITEM_ROW), args.seed, memory)?);
    }
    let known = |name: &&String| TWO_COLUMNS.iter().chain(&LINEITEM).any(|known| known == name);
    let name = names.iter().find(|name| !known(name)).cloned();
    Err(PrefetchError::NotGenerated { name, two: TWO_COLUMNS.join(", "), lineitem: LINEITEM.join(", ") })
}

fn data(query: &Query, from: String) -> Data {
    let columns = query.table().columns().iter().enumerate();
    let columns: Vec<DataColumn> = columns
        .map(|(number, column)| DataColumn {
            name: column.name().to_owned(),
            width: column.kind().width(),
            scanned: query.scanned().contains(&number),
            aggregated: query.aggregated().contains(&number),
            fetched: query.fetched().contains(&number),
            holds: column.logical_type().holds(),
        })
        .filter(|column| column.scanned || column.aggregated)
        .collect();
    let rows = query.table().rows();
    let bytes = |of: fn(&DataColumn) -> bool| {
        // Cannot overflow: the columns are in memory.
        rows * columns.iter().filter(|column| of(column)).map(|column| column.width as u64).sum::<u64>()
    };
    Data { from, rows, bytes: bytes(|_| true), fetched_bytes: bytes(|column| column.fetched), columns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_tables_have_the_named_columns() {
        let names = |table: &Table| table.columns().iter().map(|it| it.name().to_owned()).collect::<Vec<_>>();
        let (two, lines) =
            (generate::two_columns(3, 1, &mut generate::anywhere), generate::lineitem(3, 1, &mut generate::anywhere));
        assert_eq!(
            (names(&two.unwrap()), names(&lines.unwrap())),
            (TWO_COLUMNS.map(String::from).into(), LINEITEM.map(String::from).into())
        );
    }

    #[test]
    fn a_syntax_error_is_reported_with_its_position() {
        let message = plan("select sum(b from t").unwrap_err().to_string();
        assert!(message.contains("--query"), "{message}");
    }
}
