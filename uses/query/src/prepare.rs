//! Turns a plan into a query: resolves names to columns, and proves that no number overflows.
//!
//! ```text
//! filters     ─► Test: column, bounds      filters that pass all rows are left out
//! aggregates  ─► Program: steps, shared by all expressions that need them
//! group_by    ─► Keys: a number for each possible group
//! ```

use super::column::Table;
use super::error::{DEEPEST, PlanError};
use super::plan::{Aggregate, Expr, Filter, Plan};
use super::selection::BLOCK;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A filter over the `input`th of the scanned columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Test {
    pub(super) input: usize,
    /// The range, limited to the column's bounds.
    pub(super) least: i64,
    pub(super) greatest: i64,
    /// The column's values, and so the bounds, fit in 32 bits with their sign.
    pub(super) short: bool,
}

/// The operation of a step, for a block of rows; numbers refer to earlier steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    /// A value of the `n`th of the aggregated columns.
    Load(usize),
    Literal(i64),
    Add(usize, usize),
    Subtract(usize, usize),
    Multiply(usize, usize),
}

/// A step, and the bounds of its result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) least: i128,
    pub(super) greatest: i128,
    /// It, or one of its operands, may not fit in 64 bits.
    pub(super) wide: bool,
}

/// How the values of an aggregate are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fold {
    /// `plain`: the values of a block can be added in 64 bits.
    Sum {
        step: usize,
        plain: bool,
    },
    Min(usize),
    Max(usize),
    /// Counted in any case.
    Count,
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
    /// None if a filter passes no row.
    tests: Option<Vec<Test>>,
    steps: Vec<Step>,
    folds: Vec<Fold>,
    digits: Vec<Digit>,
    groups: u128,
}

impl Plan {
    /// Prepares the plan for a table: looks up every name, and proves that nothing can overflow.
    ///
    /// # Errors
    /// [`PlanError`] if a column is missing, or a number might exceed 128 bits.
    pub fn on(&self, table: &Table) -> Result<Query, PlanError> {
        Query::new(self, table)
    }
}

/// Returns the index of a column in the list, and adds it if it is missing.
fn number_of(list: &mut Vec<usize>, column: usize) -> usize {
    list.iter().position(|&other| other == column).unwrap_or_else(|| {
        list.push(column);
        list.len() - 1
    })
}

fn find(table: &Table, name: &str) -> Result<usize, PlanError> {
    table.find(name).ok_or_else(|| {
        let names: Vec<&str> = table.columns().iter().map(|column| column.name()).collect();
        PlanError::NoColumn { name: name.into(), there: names.join(", ") }
    })
}

/// Returns the least and the greatest value; 0 for a column without rows.
fn bounds(table: &Table, column: usize) -> (i64, i64) {
    table.columns()[column].bounds().unwrap_or_default()
}

impl Query {
    pub(super) fn new(plan: &Plan, table: &Table) -> Result<Self, PlanError> {
        if plan.aggregates.is_empty() && plan.group_by.is_empty() {
            return Err(PlanError::Nothing);
        }
        let (mut scanned, mut aggregated) = (Vec::new(), Vec::new());
        let mut tests = Some(Vec::new());
        for Filter { column, range } in &plan.filters {
            match test(table, column, range)? {
                Tested::All => {}
                Tested::Some { column, least, greatest, short } => {
                    let input = number_of(&mut scanned, column);
                    if let Some(tests) = &mut tests {
                        tests.push(Test { input, least, greatest, short });
                    }
                }
                Tested::None => tests = None,
            }
        }
        if tests.is_none() {
            scanned.clear();
        }
        let (mut digits, mut groups) = (Vec::new(), 1_u128);
        for name in &plan.group_by {
            let column = find(table, name)?;
            let (least, greatest) = bounds(table, column);
            // At most 2^64.
            let size = u128::from(greatest.abs_diff(least)) + 1;
            groups = groups.checked_mul(size).ok_or(PlanError::TooManyKeys)?;
            digits.push(Digit { input: number_of(&mut aggregated, column), least, size });
        }
        // Groups that occur are numbered with 32 bits, unless there are few.
        if groups.min(table.rows().into()) > u32::MAX.into() {
            return Err(PlanError::TooManyKeys);
        }
        let mut program = Program { table, aggregated: &mut aggregated, steps: Vec::new() };
        let folds = plan.aggregates.iter().map(|aggregate| program.fold(aggregate)).collect::<Result<_, _>>()?;
        let steps = program.steps;
        let fetched = aggregated.iter().copied().filter(|column| !scanned.contains(column)).collect();
        let (plan, table) = (plan.clone(), table.clone());
        Ok(Query(Arc::new(Prepared { plan, table, scanned, aggregated, fetched, tests, steps, folds, digits, groups })))
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

    /// Returns the plan as SQL over a table of that name, with `HUGEINT` expressions where `BIGINT` may be too short.
    /// The rows are in the order of an [`Answer`](super::Answer).
    #[must_use]
    pub fn sql(&self, table: &str) -> String {
        self.0.plan.sql_with(table, &|expr| {
            let mut program = Program { table: &self.0.table, aggregated: &mut Vec::new(), steps: Vec::new() };
            match program.step(expr, 0) {
                Ok(step) if !program.steps[step].wide => "BIGINT",
                _ => "HUGEINT",
            }
        })
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
    Some { column: usize, least: i64, greatest: i64, short: bool },
    None,
}

fn test(table: &Table, name: &str, range: &RangeInclusive<i64>) -> Result<Tested, PlanError> {
    let column = find(table, name)?;
    let (least, greatest) = bounds(table, column);
    let (from, to) = (least.max(*range.start()), greatest.min(*range.end()));
    Ok(if from > to {
        Tested::None
    } else if (from, to) == (least, greatest) {
        Tested::All
    } else {
        let short = i32::try_from(least).is_ok() && i32::try_from(greatest).is_ok();
        Tested::Some { column, least: from, greatest: to, short }
    })
}

/// The steps of all expressions so far.
struct Program<'a> {
    table: &'a Table,
    aggregated: &'a mut Vec<usize>,
    steps: Vec<Step>,
}

impl Program<'_> {
    fn fold(&mut self, aggregate: &Aggregate) -> Result<Fold, PlanError> {
        Ok(match aggregate {
            Aggregate::Count => Fold::Count,
            Aggregate::Min(expr) => Fold::Min(self.step(expr, 0)?),
            Aggregate::Max(expr) => Fold::Max(self.step(expr, 0)?),
            Aggregate::Sum(expr) => {
                let step = self.step(expr, 0)?;
                let Step { least, greatest, wide, .. } = self.steps[step];
                let most = least.unsigned_abs().max(greatest.unsigned_abs());
                let sum = |rows: u64| most.checked_mul(rows.into()).and_then(|sum| i128::try_from(sum).ok());
                if sum(self.table.rows()).is_none() {
                    return Err(PlanError::TooLong { what: aggregate.to_string() });
                }
                let plain = !wide && sum(BLOCK as u64).is_some_and(|sum| i64::try_from(sum).is_ok());
                Fold::Sum { step, plain }
            }
        })
    }

    /// Returns the number of the step that computes this expression.
    fn step(&mut self, expr: &Expr, depth: u32) -> Result<usize, PlanError> {
        if depth == DEEPEST {
            return Err(PlanError::TooDeep);
        }
        let (op, ends) = match expr {
            Expr::Column(name) => {
                let column = find(self.table, name)?;
                let (least, greatest) = bounds(self.table, column);
                (Op::Load(number_of(self.aggregated, column)), Some((least.into(), greatest.into())))
            }
            Expr::Literal(number) => (Op::Literal(*number), Some(((*number).into(), (*number).into()))),
            Expr::Add(left, right) => {
                let (left, right) = (self.step(left, depth + 1)?, self.step(right, depth + 1)?);
                (Op::Add(left, right), self.ends(left, right, i128::checked_add))
            }
            Expr::Subtract(left, right) => {
                let (left, right) = (self.step(left, depth + 1)?, self.step(right, depth + 1)?);
                (Op::Subtract(left, right), self.ends(left, right, i128::checked_sub))
            }
            Expr::Multiply(left, right) => {
                let (left, right) = (self.step(left, depth + 1)?, self.step(right, depth + 1)?);
                (Op::Multiply(left, right), self.ends(left, right, i128::checked_mul))
            }
        };
        let (least, greatest) = ends.ok_or_else(|| PlanError::TooLong { what: expr.to_string() })?;
        let wide = match op {
            Op::Load(_) | Op::Literal(_) => false,
            Op::Add(left, right) | Op::Subtract(left, right) | Op::Multiply(left, right) => {
                let long = |number: i128| i64::try_from(number).is_err();
                self.steps[left].wide || self.steps[right].wide || long(least) || long(greatest)
            }
        };
        Ok(self.steps.iter().position(|step| step.op == op).unwrap_or_else(|| {
            self.steps.push(Step { op, least, greatest, wide });
            self.steps.len() - 1
        }))
    }

    /// Returns the bounds of a step over two others: those of sums, differences and products are reached at the
    /// operands' bounds.
    fn ends(&self, left: usize, right: usize, op: fn(i128, i128) -> Option<i128>) -> Option<(i128, i128)> {
        let (left, right) = (&self.steps[left], &self.steps[right]);
        let mut ends = [i128::MAX, i128::MIN];
        for l in [left.least, left.greatest] {
            for r in [right.least, right.greatest] {
                let value = op(l, r)?;
                ends = [ends[0].min(value), ends[1].max(value)];
            }
        }
        Some((ends[0], ends[1]))
    }
}
