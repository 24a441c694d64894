//! Turns a plan into a query: resolves names to columns, and proves that no number overflows.
//!
//! ```text
//! filters     ─► codes ─► Test: column, ranges of its codes      filters that pass all rows are left out
//! aggregates  ─► Program: steps, shared by all expressions that need them
//! group_by    ─► Keys: a number for each possible group
//! ```

use super::codes::{Codes, passing};
use super::column::{Column, Table};
use super::error::PlanError;
use super::plan::Plan;
use super::program::{Fold, Limits, Output, Program, Step, find, number_of};
use super::selection::WORD;
use std::sync::Arc;

/// A filter over the `input`th of the scanned columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Test {
    pub(super) input: usize,
    pub(super) passes: Passes,
    /// The column's values, and so the ranges, fit in 32 bits with their sign.
    pub(super) short: bool,
}

/// The codes that a filter passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Passes {
    /// Ranges, within the column's bounds.
    Ranges(Vec<Codes>),
    /// A bit for each code from `first` on.
    Set { first: i64, bits: Vec<u64> },
}

/// The ranges from which on a set is faster, and the codes up to which it is small. Source: assumed; a set takes about
/// as long as a dozen ranges, and 64 KiB stay in a core's cache.
const FEW_RANGES: usize = 12;
const SET: u64 = 1 << 19;

impl Passes {
    fn of(ranges: Vec<Codes>) -> Self {
        let (Some(&(first, _)), Some(&(_, last))) = (ranges.first(), ranges.last()) else {
            return Passes::Ranges(ranges);
        };
        let len = last.abs_diff(first);
        if ranges.len() <= FEW_RANGES || len >= SET {
            return Passes::Ranges(ranges);
        }
        // Cannot be cut: below SET.
        let at = |code: i64| usize::try_from(code.abs_diff(first)).unwrap_or(0);
        let mut bits = vec![0_u64; at(last) / WORD + 1];
        for (from, to) in ranges {
            (at(from)..=at(to)).for_each(|at| bits[at / WORD] |= 1 << (at % WORD));
        }
        Passes::Set { first, bits }
    }
}

/// One of the group columns, as a digit of the group's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Digit {
    /// The index among the aggregated columns.
    pub(super) input: usize,
    /// The least value: digit 0.
    pub(super) least: i64,
    /// The number of digits.
    pub(super) size: u128,
    /// The column in the table.
    pub(super) column: usize,
}

/// A plan prepared for a table. Cloning is cheap, and threads may share it.
#[derive(Clone, Debug)]
pub struct Query(Arc<Prepared>);

#[derive(Debug)]
struct Prepared {
    plan: Plan,
    table: Table,
    scanned: Vec<usize>,
    aggregated: Vec<usize>,
    fetched: Vec<usize>,
    limits: Vec<Limits>,
    /// None if a filter passes no row.
    tests: Option<Vec<Test>>,
    steps: Vec<Step>,
    folds: Vec<Fold>,
    outputs: Vec<Output>,
    digits: Vec<Digit>,
    groups: u128,
}

impl Plan {
    /// Prepares the plan for a table: looks up every name, and proves that nothing can overflow.
    ///
    /// # Errors
    /// [`PlanError`] if a column is missing, is compared with a literal of another type or cannot be computed with, or
    /// a number might exceed 128 bits.
    pub fn on(&self, table: &Table) -> Result<Query, PlanError> {
        Query::new(self, table)
    }
}

impl Query {
    pub(super) fn new(plan: &Plan, table: &Table) -> Result<Self, PlanError> {
        if plan.aggregates.is_empty() && plan.group_by.is_empty() {
            return Err(PlanError::Nothing);
        }
        let (mut scanned, mut aggregated) = (Vec::new(), Vec::new());
        let mut tests = Some(Vec::new());
        let mut limits: Vec<Limits> = table.columns().iter().map(Limits::of).collect();
        for filter in &plan.filters {
            let column = find(table, &filter.column)?;
            let ranges = passing(&table.columns()[column], filter)?;
            match tested(&table.columns()[column], &ranges) {
                Tested::All => {}
                Tested::Some => {
                    narrow(&mut limits[column], &ranges);
                    let input = number_of(&mut scanned, column);
                    let Limits { least, greatest, null } = Limits::of(&table.columns()[column]);
                    let short = i32::try_from(least).is_ok() && i32::try_from(null.unwrap_or(greatest)).is_ok();
                    if let Some(tests) = &mut tests {
                        tests.push(Test { input, passes: Passes::of(ranges), short });
                    }
                }
                Tested::None => tests = None,
            }
        }
        if tests.is_none() {
            scanned.clear();
            limits = table.columns().iter().map(Limits::of).collect();
        }
        let (mut digits, mut groups) = (Vec::new(), 1_u128);
        for name in &plan.group_by {
            let column = find(table, name)?;
            let Limits { least, greatest, null } = limits[column];
            let last = null.unwrap_or(greatest).max(greatest);
            // At most 2^64.
            let size = u128::from(last.abs_diff(least)) + 1;
            groups = groups.checked_mul(size).ok_or(PlanError::TooManyKeys)?;
            digits.push(Digit { input: number_of(&mut aggregated, column), least, size, column });
        }
        // Groups that occur are numbered with 32 bits, unless there are few.
        if groups.min(table.rows().into()) > u32::MAX.into() {
            return Err(PlanError::TooManyKeys);
        }
        let mut program = Program::new(table, &limits, &mut aggregated);
        let outputs = plan.aggregates.iter().map(|aggregate| program.output(aggregate)).collect::<Result<_, _>>()?;
        let (steps, folds) = (program.steps, program.folds);
        let fetched = aggregated.iter().copied().filter(|column| !scanned.contains(column)).collect();
        let (plan, table) = (plan.clone(), table.clone());
        Ok(Query(Arc::new(Prepared {
            plan,
            table,
            scanned,
            aggregated,
            fetched,
            limits,
            tests,
            steps,
            folds,
            outputs,
            digits,
            groups,
        })))
    }

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// Returns the table.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.0.table
    }

    /// Returns the indexes of the columns that a scan reads, in the order of its inputs. A filter that passes all
    /// values of its column is left out; if a filter passes none, no column is read.
    #[must_use]
    pub fn scanned(&self) -> &[usize] {
        &self.0.scanned
    }

    /// Returns the indexes of the columns that an aggregation reads, in the order of its inputs.
    #[must_use]
    pub fn aggregated(&self) -> &[usize] {
        &self.0.aggregated
    }

    /// Returns those of them that no scan has read before: the ones worth prefetching (Fürst, §2.2).
    #[must_use]
    pub fn fetched(&self) -> &[usize] {
        &self.0.fetched
    }

    /// Returns the plan as SQL over a table of that name. Expressions of whole numbers use `HUGEINT` where `BIGINT` may
    /// be too short.
    /// The rows are in the order of an [`Answer`](super::Answer).
    #[must_use]
    pub fn sql(&self, table: &str) -> String {
        self.0.plan.sql_with(table, &|expr| Program::new(&self.0.table, &self.0.limits, &mut Vec::new()).cast(expr))
    }

    /// Returns whether it is this query, or a clone of it.
    pub(super) fn is(&self, other: &Query) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn tests(&self) -> Option<&[Test]> {
        self.0.tests.as_deref()
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.0.steps
    }

    pub(super) fn folds(&self) -> &[Fold] {
        &self.0.folds
    }

    pub(super) fn outputs(&self) -> &[Output] {
        &self.0.outputs
    }

    pub(super) fn digits(&self) -> &[Digit] {
        &self.0.digits
    }

    /// Returns the number of possible groups.
    pub(super) fn groups(&self) -> u128 {
        self.0.groups
    }
}

/// The rows of a column that a filter passes.
enum Tested {
    All,
    Some,
    None,
}

fn tested(column: &Column, ranges: &[Codes]) -> Tested {
    match (ranges, column.bounds(), column.null()) {
        ([], ..) => Tested::None,
        // No range has both values and nulls.
        ([only], Some(all), None) if *only == all => Tested::All,
        (_, None, Some(_)) => Tested::All,
        _ => Tested::Some,
    }
}

/// Narrows the limits of a column to those of the rows that pass.
fn narrow(limits: &mut Limits, ranges: &[Codes]) {
    let passes = |code: i64| ranges.iter().any(|&(from, to)| (from..=to).contains(&code));
    let of_values = |end: &i64| limits.null.is_none_or(|null| *end < null);
    let from = ranges.first().map(|&(from, _)| from).filter(of_values);
    let to = ranges.iter().rev().map(|&(_, to)| to).find(of_values);
    let null = limits.null.filter(|&null| passes(null));
    if let (Some(from), Some(to)) = (from, to) {
        let (least, greatest) = (limits.least.max(from), limits.greatest.min(to));
        // Filters that exclude each other leave no row, and the limits do not matter.
        if least <= greatest {
            (limits.least, limits.greatest) = (least, greatest);
        }
    }
    limits.null = null;
}
