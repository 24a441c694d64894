//! Compiles expressions to steps over blocks of rows, and proves that no whole number overflows.
//!
//! ```text
//! expression ─► Computed: the step of its value, what that stands for, the step that says where there is one
//! ```
//!
//! A row without a value is computed like the others, with the code of a null as its number. The result is replaced
//! where it is folded.

use super::column::{Column, Table};
use super::error::{DEEPEST, PlanError};
use super::float_sum::Base;
use super::plan::{Aggregate, Expr, Literal};
use super::selection::BLOCK;
use super::value::{Double, LogicalType, decimal, float_power_of_ten, power_of_ten};

/// The operation of a step, for a block of rows; numbers refer to earlier steps, except for those of inputs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Op {
    /// A value of the `n`th of the aggregated columns.
    Load(usize),
    /// 1 where the `n`th of the aggregated columns has a value, 0 where it has the code of a null.
    Known {
        input: usize,
        null: i64,
    },
    /// The floating-point number whose code is a value of the `n`th of the aggregated columns.
    LoadFloat(usize),
    Literal(i64),
    FloatLiteral(Double),
    Add(usize, usize),
    Subtract(usize, usize),
    Multiply(usize, usize),
    /// A whole number, or a decimal with `scale` digits after its point, as a floating-point number.
    ToFloat {
        value: usize,
        scale: u8,
    },
    /// The code of a floating-point number.
    ToCode(usize),
    /// The value where `known` is 1, `otherwise` elsewhere; 0 elsewhere for floating-point numbers.
    Where {
        known: usize,
        value: usize,
        otherwise: i128,
    },
}

/// The representation of a step's results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// 32 bits: only of columns, and only to be compared.
    Short,
    /// 64 bits.
    Narrow,
    /// 128 bits: it, or one of its operands, may not fit in 64.
    Wide,
    /// Floating-point numbers.
    Float,
}

/// The bounds of a step's results.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Bounds {
    Whole(i128, i128),
    Float(f64, f64),
}

/// A step, and the bounds of its results.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) bounds: Bounds,
    pub(super) form: Form,
}

impl Step {
    pub(super) fn ends(&self) -> (i128, i128) {
        match self.bounds {
            Bounds::Whole(least, greatest) => (least, greatest),
            Bounds::Float(..) => (0, 0),
        }
    }
}

/// How the values of an aggregate are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fold {
    /// `plain`: the values of a block can be added in 64 bits.
    Sum {
        step: usize,
        plain: bool,
    },
    FloatSum {
        step: usize,
        base: Base,
    },
    Min(usize),
    Max(usize),
    /// Counted in any case.
    Count,
}

/// What the state of a fold stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// Whole numbers, or decimals with so many digits after the point.
    Whole(u8),
    /// Codes of a type.
    Code(LogicalType),
    FloatSum(Base),
}

/// How an aggregate's value follows from the folds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Output {
    /// The number of rows with a value.
    Count(usize),
    /// A fold's state, if `count` says that there were values.
    State { fold: usize, count: usize, reading: Reading },
    /// A sum divided by the number of rows with a value.
    Average { fold: usize, count: usize, reading: Reading },
}

/// What an expression's values stand for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Sort {
    /// Whole numbers, or decimals with so many digits after the point.
    Whole(u8),
    Float,
    /// Codes that cannot be computed with, and the column or literal that they are of.
    Code(LogicalType, String),
}

/// An expression's steps.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Computed {
    step: usize,
    sort: Sort,
    /// The step that is 1 where there is a value; none if there is one in every row.
    known: Option<usize>,
}

/// The steps of all expressions so far.
pub(super) struct Program<'a> {
    table: &'a Table,
    /// For each column, the least and greatest value and the nulls of the rows that the filters pass.
    limits: &'a [Limits],
    aggregated: &'a mut Vec<usize>,
    pub(super) steps: Vec<Step>,
    pub(super) folds: Vec<Fold>,
}

/// The values of a column in the rows that the filters pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) least: i64,
    pub(super) greatest: i64,
    /// The code of nulls, if such rows may pass.
    pub(super) null: Option<i64>,
}

impl Limits {
    /// Returns those of all rows; 0 for a column without values.
    pub(super) fn of(column: &Column) -> Self {
        let (least, greatest) = column.bounds().unwrap_or_default();
        Limits { least, greatest, null: column.null() }
    }
}

/// Returns the index of a column in the list, and adds it if it is missing.
pub(super) fn number_of(list: &mut Vec<usize>, column: usize) -> usize {
    list.iter().position(|&other| other == column).unwrap_or_else(|| {
        list.push(column);
        list.len() - 1
    })
}

pub(super) fn find(table: &Table, name: &str) -> Result<usize, PlanError> {
    table.find(name).ok_or_else(|| {
        let names: Vec<&str> = table.columns().iter().map(|column| column.name()).collect();
        PlanError::NoColumn { name: name.into(), there: names.join(", ") }
    })
}

/// The most digits of a decimal after its point, as in SQL.
const MOST_SCALE: u8 = 38;

impl<'a> Program<'a> {
    pub(super) fn new(table: &'a Table, limits: &'a [Limits], aggregated: &'a mut Vec<usize>) -> Self {
        Program { table, limits, aggregated, steps: Vec::new(), folds: Vec::new() }
    }

    /// Adds the folds of an aggregate.
    pub(super) fn output(&mut self, aggregate: &Aggregate) -> Result<Output, PlanError> {
        match aggregate {
            Aggregate::Count => Ok(Output::Count(self.fold(Fold::Count))),
            Aggregate::CountOf(expr) => {
                let known = self.known(expr, 0)?;
                Ok(Output::Count(self.count(known)))
            }
            Aggregate::Sum(expr) => {
                let (fold, count, reading) = self.sum(aggregate, expr)?;
                Ok(Output::State { fold, count, reading })
            }
            Aggregate::Average(expr) => {
                let (fold, count, reading) = self.sum(aggregate, expr)?;
                Ok(Output::Average { fold, count, reading })
            }
            Aggregate::Min(expr) => self.extreme(expr, Fold::Min),
            Aggregate::Max(expr) => self.extreme(expr, Fold::Max),
        }
    }

    fn fold(&mut self, fold: Fold) -> usize {
        self.folds.iter().position(|other| *other == fold).unwrap_or_else(|| {
            self.folds.push(fold);
            self.folds.len() - 1
        })
    }

    /// Returns the fold that counts the rows with a value.
    fn count(&mut self, known: Option<usize>) -> usize {
        // A block has few enough rows for any sum.
        self.fold(known.map_or(Fold::Count, |step| Fold::Sum { step, plain: true }))
    }

    /// Returns the fold of a sum, the one that counts its values, and what its state stands for.
    fn sum(&mut self, aggregate: &Aggregate, expr: &Expr) -> Result<(usize, usize, Reading), PlanError> {
        let Computed { step, sort, known } = self.computed(expr, 0)?;
        let (fold, reading) = match sort {
            Sort::Code(of_type, of) => {
                return Err(PlanError::NoNumber { what: aggregate.to_string(), of, holds: of_type.holds() });
            }
            Sort::Whole(scale) => {
                let step = self.replaced(step, known, 0);
                let ((least, greatest), form) = (self.steps[step].ends(), self.steps[step].form);
                let most = least.unsigned_abs().max(greatest.unsigned_abs());
                let sum = |rows: u64| most.checked_mul(rows.into()).and_then(|sum| i128::try_from(sum).ok());
                if sum(self.table.rows()).is_none() {
                    return Err(PlanError::TooLong { what: aggregate.to_string() });
                }
                let plain = form == Form::Narrow && sum(BLOCK as u64).is_some_and(|sum| i64::try_from(sum).is_ok());
                (Fold::Sum { step, plain }, Reading::Whole(scale))
            }
            Sort::Float => {
                let step = self.replaced(step, known, 0);
                let Bounds::Float(least, greatest) = self.steps[step].bounds else { unreachable!("it is a float") };
                let base = Base::of(least.abs().max(greatest.abs()));
                (Fold::FloatSum { step, base }, Reading::FloatSum(base))
            }
        };
        Ok((self.fold(fold), self.count(known), reading))
    }

    /// Returns the output of the least or the greatest value.
    fn extreme(&mut self, expr: &Expr, fold: fn(usize) -> Fold) -> Result<Output, PlanError> {
        // A column's codes have the order of its values, and comparing whole numbers is fast.
        if let Expr::Column(name) = expr {
            let column = find(self.table, name)?;
            let (limits, logical) = (self.limits[column], self.table.columns()[column].logical_type().clone());
            let reading = match logical {
                LogicalType::Integer => Reading::Whole(0),
                LogicalType::Decimal { scale } => Reading::Whole(scale),
                other => Reading::Code(other),
            };
            let short = |end: i64| i32::try_from(end).is_ok();
            let (step, known) = if limits.null.is_none() && short(limits.least) && short(limits.greatest) {
                let input = number_of(self.aggregated, column);
                let bounds = Bounds::Whole(limits.least.into(), limits.greatest.into());
                (self.step(Op::Load(input), bounds, Form::Short), None)
            } else {
                self.loaded(column)
            };
            return Ok(self.extreme_of(step, known, reading, fold));
        }
        let Computed { step, sort, known } = self.computed(expr, 0)?;
        let (step, reading) = match sort {
            Sort::Whole(scale) => (step, Reading::Whole(scale)),
            Sort::Code(logical, _) => (step, Reading::Code(logical)),
            Sort::Float => {
                let Bounds::Float(least, greatest) = self.steps[step].bounds else { unreachable!("it is a float") };
                let code = |end: f64| i128::from(Double::new(end).code());
                let bounds = Bounds::Whole(code(least), code(greatest));
                let step = self.step(Op::ToCode(step), bounds, Form::Narrow);
                (step, Reading::Code(LogicalType::Float { single: false }))
            }
        };
        Ok(self.extreme_of(step, known, reading, fold))
    }

    fn extreme_of(&mut self, step: usize, known: Option<usize>, reading: Reading, fold: fn(usize) -> Fold) -> Output {
        let (least, greatest) = self.steps[step].ends();
        // What no other value is beyond.
        let otherwise = if matches!(fold(step), Fold::Min(_)) { greatest } else { least };
        let step = self.replaced(step, known, otherwise);
        let (fold, count) = (self.fold(fold(step)), self.count(known));
        Output::State { fold, count, reading }
    }

    /// Returns a step with another value where there is none.
    fn replaced(&mut self, value: usize, known: Option<usize>, otherwise: i128) -> usize {
        let Some(known) = known else { return value };
        let Step { bounds, form, .. } = self.steps[value];
        let bounds = match bounds {
            Bounds::Whole(least, greatest) => Bounds::Whole(least.min(otherwise), greatest.max(otherwise)),
            Bounds::Float(least, greatest) => Bounds::Float(least.min(0.0), greatest.max(0.0)),
        };
        self.step(Op::Where { known, value, otherwise }, bounds, form)
    }

    /// Returns the number of a step, and adds it if it is missing.
    fn step(&mut self, op: Op, bounds: Bounds, form: Form) -> usize {
        self.steps.iter().position(|step| step.op == op && step.form == form).unwrap_or_else(|| {
            self.steps.push(Step { op, bounds, form });
            self.steps.len() - 1
        })
    }

    /// Returns the steps of a column's codes, and of where it has values.
    fn loaded(&mut self, column: usize) -> (usize, Option<usize>) {
        let Limits { least, greatest, null } = self.limits[column];
        let input = number_of(self.aggregated, column);
        // The code of a null is loaded, too.
        let bounds = Bounds::Whole(least.into(), null.unwrap_or(greatest).max(greatest).into());
        let step = self.step(Op::Load(input), bounds, Form::Narrow);
        (step, self.known_of(column))
    }

    fn known_of(&mut self, column: usize) -> Option<usize> {
        let null = self.limits[column].null?;
        let input = number_of(self.aggregated, column);
        Some(self.step(Op::Known { input, null }, Bounds::Whole(0, 1), Form::Narrow))
    }

    fn both_known(&mut self, left: Option<usize>, right: Option<usize>) -> Option<usize> {
        match (left, right) {
            (Some(left), Some(right)) if left != right => {
                Some(self.step(Op::Multiply(left, right), Bounds::Whole(0, 1), Form::Narrow))
            }
            (left, right) => left.or(right),
        }
    }

    /// Returns the step that says where an expression has values, without computing it.
    fn known(&mut self, expr: &Expr, depth: u32) -> Result<Option<usize>, PlanError> {
        if depth == DEEPEST {
            return Err(PlanError::TooDeep);
        }
        match expr {
            Expr::Column(name) => {
                let column = find(self.table, name)?;
                Ok(self.known_of(column))
            }
            Expr::Literal(_) => Ok(None),
            Expr::Add(left, right) | Expr::Subtract(left, right) | Expr::Multiply(left, right) => {
                let (left, right) = (self.known(left, depth + 1)?, self.known(right, depth + 1)?);
                Ok(self.both_known(left, right))
            }
        }
    }

    fn computed(&mut self, expr: &Expr, depth: u32) -> Result<Computed, PlanError> {
        if depth == DEEPEST {
            return Err(PlanError::TooDeep);
        }
        match expr {
            Expr::Column(name) => self.column(name),
            Expr::Literal(literal) => Ok(self.literal(literal)),
            Expr::Add(left, right) | Expr::Subtract(left, right) | Expr::Multiply(left, right) => {
                let (left, right) = (self.computed(left, depth + 1)?, self.computed(right, depth + 1)?);
                self.binary(expr, left, right)
            }
        }
    }

    fn column(&mut self, name: &str) -> Result<Computed, PlanError> {
        let column = find(self.table, name)?;
        let logical = self.table.columns()[column].logical_type().clone();
        if let LogicalType::Float { .. } = logical {
            let Limits { least, greatest, .. } = self.limits[column];
            let (least, greatest) = (Double::of_code(least).get(), Double::of_code(greatest).get());
            if !least.is_finite() || !greatest.is_finite() {
                return Err(PlanError::NotFinite { what: format!("the sum of {name}"), column: name.into() });
            }
            let input = number_of(self.aggregated, column);
            let step = self.step(Op::LoadFloat(input), Bounds::Float(least, greatest), Form::Float);
            return Ok(Computed { step, sort: Sort::Float, known: self.known_of(column) });
        }
        let (step, known) = self.loaded(column);
        let sort = match logical {
            LogicalType::Integer => Sort::Whole(0),
            LogicalType::Decimal { scale } => Sort::Whole(scale),
            other => Sort::Code(other, format!("column {name}")),
        };
        Ok(Computed { step, sort, known })
    }

    fn literal(&mut self, literal: &Literal) -> Computed {
        let code = |logical| Sort::Code(logical, literal.to_string());
        let (number, sort) = match literal {
            Literal::Number { units, scale } => (*units, Sort::Whole(*scale)),
            Literal::Float(number) => {
                let (op, end) = (Op::FloatLiteral(*number), number.get());
                let step = self.step(op, Bounds::Float(end, end), Form::Float);
                return Computed { step, sort: Sort::Float, known: None };
            }
            Literal::Boolean(value) => (i64::from(*value), code(LogicalType::Boolean)),
            Literal::Date(days) => (*days, code(LogicalType::Date)),
            Literal::Timestamp(nanos) => {
                let per_second = 1_000_000;
                // Cannot be cut for the years of text.
                let count = i64::try_from(nanos.div_euclid(1_000)).unwrap_or(i64::MAX);
                (count, code(LogicalType::Timestamp { per_second }))
            }
            Literal::Text(text) => {
                let words = super::value::Dictionary::new([text.as_str()]);
                (0, code(LogicalType::Text(words.into())))
            }
        };
        let step = self.step(Op::Literal(number), Bounds::Whole(number.into(), number.into()), Form::Narrow);
        Computed { step, sort, known: None }
    }

    /// Combines two expressions; both become floating-point numbers if one of them is.
    fn binary(&mut self, expr: &Expr, left: Computed, right: Computed) -> Result<Computed, PlanError> {
        let known = self.both_known(left.known, right.known);
        for side in [&left, &right] {
            if let Sort::Code(logical, of) = &side.sort {
                let (what, of) = (expr.to_string(), of.clone());
                return Err(PlanError::NoNumber { what, of, holds: logical.holds() });
            }
        }
        if let (&Sort::Whole(a), &Sort::Whole(b)) = (&left.sort, &right.sort) {
            let (step, scale) = self.whole(expr, (left.step, a), (right.step, b))?;
            return Ok(Computed { step, sort: Sort::Whole(scale), known });
        }
        let (left, right) = (self.float(&left), self.float(&right));
        let op = match expr {
            Expr::Add(..) => Op::Add(left, right),
            Expr::Subtract(..) => Op::Subtract(left, right),
            _ => Op::Multiply(left, right),
        };
        let (Bounds::Float(a, b), Bounds::Float(c, d)) = (self.steps[left].bounds, self.steps[right].bounds) else {
            unreachable!("both are floats")
        };
        // Rounding keeps the order, so that results are within the rounded results of the ends.
        let results = [(a, c), (a, d), (b, c), (b, d)].map(|(left, right)| match op {
            Op::Add(..) => left + right,
            Op::Subtract(..) => left - right,
            _ => left * right,
        });
        if results.iter().any(|result| !result.is_finite()) {
            return Err(PlanError::NotFinite { what: expr.to_string(), column: first_column(expr) });
        }
        let bounds = Bounds::Float(
            results.into_iter().fold(f64::INFINITY, f64::min),
            results.into_iter().fold(f64::NEG_INFINITY, f64::max),
        );
        Ok(Computed { step: self.step(op, bounds, Form::Float), sort: Sort::Float, known })
    }

    /// Returns the step of an expression as a floating-point number.
    #[allow(clippy::cast_precision_loss, reason = "this rounds, as SQL does")]
    fn float(&mut self, side: &Computed) -> usize {
        let Sort::Whole(scale) = side.sort else { return side.step };
        let (least, greatest) = self.steps[side.step].ends();
        let by = float_power_of_ten(scale);
        let bounds = Bounds::Float(least as f64 / by, greatest as f64 / by);
        self.step(Op::ToFloat { value: side.step, scale }, bounds, Form::Float)
    }

    /// Combines whole numbers or decimals; returns the step and the digits after its point.
    fn whole(&mut self, expr: &Expr, left: (usize, u8), right: (usize, u8)) -> Result<(usize, u8), PlanError> {
        let too_long = || PlanError::TooLong { what: expr.to_string() };
        let ((mut left, a), (mut right, b)) = (left, right);
        let scale = if let Expr::Multiply(..) = expr {
            a.checked_add(b).filter(|&scale| scale <= MOST_SCALE).ok_or_else(too_long)?
        } else {
            left = self.scaled_up(left, b.saturating_sub(a)).ok_or_else(too_long)?;
            right = self.scaled_up(right, a.saturating_sub(b)).ok_or_else(too_long)?;
            a.max(b)
        };
        let (op, ends) = match expr {
            Expr::Add(..) => (Op::Add(left, right), self.ends(left, right, i128::checked_add)),
            Expr::Subtract(..) => (Op::Subtract(left, right), self.ends(left, right, i128::checked_sub)),
            _ => (Op::Multiply(left, right), self.ends(left, right, i128::checked_mul)),
        };
        let step = ends.map(|ends| self.arithmetic(op, left, right, ends));
        Ok((step.ok_or_else(too_long)?, scale))
    }

    /// Returns the step of a decimal with more digits after its point; none if it may not fit.
    fn scaled_up(&mut self, step: usize, digits: u8) -> Option<usize> {
        if digits == 0 {
            return Some(step);
        }
        let power = i64::try_from(power_of_ten(digits)?).ok()?;
        let bounds = Bounds::Whole(power.into(), power.into());
        let by = self.step(Op::Literal(power), bounds, Form::Narrow);
        let ends = self.ends(step, by, i128::checked_mul)?;
        Some(self.arithmetic(Op::Multiply(step, by), step, by, ends))
    }

    fn arithmetic(&mut self, op: Op, left: usize, right: usize, (least, greatest): (i128, i128)) -> usize {
        let long = |number: i128| i64::try_from(number).is_err();
        let wide = [left, right].iter().any(|&side| self.steps[side].form == Form::Wide);
        let form = if wide || long(least) || long(greatest) { Form::Wide } else { Form::Narrow };
        self.step(op, Bounds::Whole(least, greatest), form)
    }

    /// Returns the bounds of a step over two others: those of sums, differences and products are reached at the
    /// operands' bounds.
    fn ends(&self, left: usize, right: usize, op: fn(i128, i128) -> Option<i128>) -> Option<(i128, i128)> {
        let (left, right) = (self.steps[left].ends(), self.steps[right].ends());
        let mut ends = [i128::MAX, i128::MIN];
        for l in [left.0, left.1] {
            for r in [right.0, right.1] {
                let value = op(l, r)?;
                ends = [ends[0].min(value), ends[1].max(value)];
            }
        }
        Some((ends[0], ends[1]))
    }

    /// Returns the type to which another engine must cast the columns of an expression, so that it does not overflow;
    /// none if they are not whole numbers.
    pub(super) fn cast(&mut self, expr: &Expr) -> Option<&'static str> {
        if !expr.has_only_whole_literals() || !self.is_whole(expr) {
            return None;
        }
        match self.computed(expr, 0) {
            Ok(Computed { step, .. }) if self.steps[step].form != Form::Wide => Some("BIGINT"),
            _ => Some("HUGEINT"),
        }
    }

    fn is_whole(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Column(name) => self
                .table
                .find(name)
                .is_some_and(|column| *self.table.columns()[column].logical_type() == LogicalType::Integer),
            Expr::Literal(_) => true,
            Expr::Add(left, right) | Expr::Subtract(left, right) | Expr::Multiply(left, right) => {
                self.is_whole(left) && self.is_whole(right)
            }
        }
    }
}

/// Returns the name of an expression's first column.
fn first_column(expr: &Expr) -> String {
    match expr {
        Expr::Column(name) => name.clone(),
        Expr::Literal(literal) => literal.to_string(),
        Expr::Add(left, _) | Expr::Subtract(left, _) | Expr::Multiply(left, _) => first_column(left),
    }
}

/// Returns a number of rows or a sum as a floating-point number; decimals are divided.
#[allow(clippy::cast_precision_loss, reason = "an average is rounded")]
pub(super) fn average(sum: f64, count: i128) -> f64 {
    sum / count as f64
}

/// Returns a sum of whole numbers or decimals as a floating-point number.
pub(super) fn rounded(units: i128, scale: u8) -> f64 {
    // Parsing rounds once; a division of rounded numbers would round twice.
    decimal(units, scale).parse().unwrap_or(f64::NAN)
}
