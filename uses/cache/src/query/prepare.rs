//! From a plan to a query: names become columns, and it is proved that no number becomes too long.
//!
//! ```text
//! filters     ─► Test: column, bounds      those that let all through are left out
//! aggregates  ─► Program: steps, each the same for all that need it
//! group_by    ─► Keys: a number for each group there might be
//! ```

use super::column::Table;
use super::plan::{Aggregate, Expr, Filter, Plan};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Why a plan is not one over this table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// It asks for nothing.
    #[error("the plan has neither aggregates nor groups; say what it shall compute")]
    Nothing,
    /// The table has no such column.
    #[error("there is no column {name}; the table has {there}")]
    NoColumn {
        /// Asked for.
        name: String,
        /// What there is.
        there: String,
    },
    /// A value, or a sum of as many as there are rows, might not fit.
    #[error("{what} may need more than 128 bits; compute less of it at once")]
    TooLong {
        /// What does.
        what: String,
    },
    /// Too many groups are thinkable.
    #[error("the groups' keys have more combinations than can be numbered; group by fewer columns")]
    TooManyKeys,
    /// Deeper than a stack is sure to hold.
    #[error("an expression is deeper than {DEEPEST}; compute it in parts")]
    TooDeep,
}

/// Levels of an expression. Source: assumed; far more than people write, and far less than a thread's stack holds.
const DEEPEST: u32 = 100;

/// A filter over the `input`th of the columns a scan reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Test {
    pub(super) input: usize,
    /// The range, cut to what the column has.
    pub(super) least: i64,
    pub(super) greatest: i64,
    /// The column's values, and so both ends, fit in 32 bits with their sign.
    pub(super) short: bool,
}

/// What a step of a program computes, over a block of rows; numbers are those of earlier steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    /// A value of the `n`th of the columns an aggregation reads.
    Load(usize),
    Literal(i64),
    Add(usize, usize),
    Subtract(usize, usize),
    Multiply(usize, usize),
}

/// A step, and what it may give.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) least: i128,
    pub(super) greatest: i128,
    /// It, or something it is made of, may not fit in 64 bits.
    pub(super) wide: bool,
}

/// How the values of an aggregate are put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fold {
    /// `plain`: as many as a block has can be added up in 64 bits.
    Sum {
        step: usize,
        plain: bool,
    },
    Min(usize),
    Max(usize),
    /// Counted anyway.
    Count,
}

/// One of the columns that make a group, as a digit of its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Digit {
    /// Which of the columns an aggregation reads.
    pub(super) input: usize,
    /// The least value: digit 0.
    pub(super) least: i64,
    /// How many digits there are.
    pub(super) size: u128,
}

/// A plan over a table. Cheap to clone, and threads may share it.
#[derive(Clone, Debug)]
pub struct Query(Arc<Prepared>);

#[derive(Debug)]
struct Prepared {
    plan: Plan,
    table: Table,
    scanned: Vec<usize>,
    aggregated: Vec<usize>,
    fetched: Vec<usize>,
    /// Nothing if a filter lets nothing through.
    tests: Option<Vec<Test>>,
    steps: Vec<Step>,
    folds: Vec<Fold>,
    digits: Vec<Digit>,
    groups: u128,
}

/// The number a name has in the list; it is added if it is not there.
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

/// The least and the greatest; of a column without rows, 0.
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
        // Groups that are met are numbered with 32 bits, unless there are few.
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

    /// What was asked.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// Of what.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.0.table
    }

    /// The table's columns that a scan reads, in the order in which it wants them. A filter that lets everything through by what the
    /// column has is not looked at, and none is if one lets nothing through.
    #[must_use]
    pub fn scanned(&self) -> &[usize] {
        &self.0.scanned
    }

    /// The table's columns that an aggregation reads, in the order in which it wants them.
    #[must_use]
    pub fn aggregated(&self) -> &[usize] {
        &self.0.aggregated
    }

    /// Those of them that no scan has read before: what is worth fetching ahead (Fürst, §2.2).
    #[must_use]
    pub fn fetched(&self) -> &[usize] {
        &self.0.fetched
    }

    /// The plan as SQL over a table of that name, with expressions of `HUGEINT`s where `BIGINT`s may be too short. The rows come in the
    /// order an [`Answer`](super::Answer) has them.
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

    /// This one, or a clone of it.
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

    /// How many groups are thinkable.
    pub(super) fn groups(&self) -> u128 {
        self.0.groups
    }
}

/// What a filter lets through of what there is.
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
                let plain = !wide && sum(super::kernel::BLOCK as u64).is_some_and(|sum| i64::try_from(sum).is_ok());
                Fold::Sum { step, plain }
            }
        })
    }

    /// The number of the step that computes this.
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

    /// The least and the greatest a step over two others may give: of sums, differences and products they lie at the ends.
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
