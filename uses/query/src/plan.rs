//! Query plans: filters, groups, and aggregates of expressions; also as SQL.

use super::calendar;
use super::value::{Double, decimal};
use std::fmt::{self, Display};
use std::ops::{Add, Mul, RangeInclusive, Sub};

/// A constant.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Literal {
    /// A whole number or a decimal.
    Number {
        /// The number without its point.
        units: i64,
        /// The digits after the point, at most 18.
        scale: u8,
    },
    /// A floating-point number.
    Float(Double),
    /// True or false.
    Boolean(bool),
    /// A date: days since 1970-01-01.
    Date(i64),
    /// A point in time: nanoseconds since 1970-01-01.
    Timestamp(i128),
    /// A text. Compared with a date or a point in time, it is read as one.
    Text(String),
}

impl From<i64> for Literal {
    fn from(units: i64) -> Self {
        Literal::Number { units, scale: 0 }
    }
}

impl From<&str> for Literal {
    fn from(text: &str) -> Self {
        Literal::Text(text.into())
    }
}

/// As SQL.
impl Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Number { units, scale } => f.write_str(&decimal((*units).into(), *scale)),
            // With an exponent, because SQL reads a number without one as a decimal.
            Literal::Float(number) => write!(f, "{:e}", number.get()),
            Literal::Boolean(value) => write!(f, "{value}"),
            Literal::Date(days) => write!(f, "DATE '{}'", calendar::date((*days).into())),
            Literal::Timestamp(nanos) => write!(f, "TIMESTAMP '{}'", calendar::time(*nanos, 1_000_000_000)),
            Literal::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
        }
    }
}

/// A value computed from a row.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Expr {
    /// A column's value.
    Column(String),
    /// A constant.
    Literal(Literal),
    /// The sum of two.
    Add(Box<Expr>, Box<Expr>),
    /// The difference of two.
    Subtract(Box<Expr>, Box<Expr>),
    /// The product of two.
    Multiply(Box<Expr>, Box<Expr>),
}

/// Returns an expression for a column's value.
#[must_use]
pub fn column(name: &str) -> Expr {
    Expr::Column(name.into())
}

/// Returns a constant expression.
#[must_use]
pub fn literal(number: i64) -> Expr {
    Expr::Literal(number.into())
}

impl Add for Expr {
    type Output = Expr;

    fn add(self, other: Expr) -> Expr {
        Expr::Add(self.into(), other.into())
    }
}

impl Sub for Expr {
    type Output = Expr;

    fn sub(self, other: Expr) -> Expr {
        Expr::Subtract(self.into(), other.into())
    }
}

impl Mul for Expr {
    type Output = Expr;

    fn mul(self, other: Expr) -> Expr {
        Expr::Multiply(self.into(), other.into())
    }
}

/// How a value is compared with a literal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
}

impl Comparison {
    /// Returns its sign in SQL.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Comparison::Equal => "=",
            Comparison::Unequal => "<>",
            Comparison::Less => "<",
            Comparison::AtMost => "<=",
            Comparison::Greater => ">",
            Comparison::AtLeast => ">=",
        }
    }
}

/// What a filter requires of a column's value. A row without a value fulfils none of them, except [`Condition::Null`].
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// It compares so with a literal.
    Compare(Comparison, Literal),
    /// It lies between these, with both ends included.
    Between(Literal, Literal),
    /// It is one of these.
    In(Vec<Literal>),
    /// It is a text with this pattern: `%` stands for any characters, `_` for one.
    Like(String),
    /// There is no value.
    Null,
}

/// Selects the rows whose value in a column meets a condition. All of a plan's filters must hold.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Filter {
    /// The column.
    pub column: String,
    /// The value must not meet the condition; a row without a value is still not selected.
    pub negated: bool,
    /// The condition.
    pub condition: Condition,
}

impl Filter {
    /// Creates a filter for values that meet a condition.
    #[must_use]
    pub fn new(column: &str, condition: Condition) -> Self {
        Filter { column: column.into(), negated: false, condition }
    }

    /// Creates a filter for a range, with both ends included.
    #[must_use]
    pub fn between(column: &str, range: RangeInclusive<i64>) -> Self {
        let (least, greatest) = range.into_inner();
        Filter::new(column, Condition::Between(least.into(), greatest.into()))
    }

    /// Creates a filter for values of at least `least`.
    #[must_use]
    pub fn at_least(column: &str, least: i64) -> Self {
        Filter::new(column, Condition::Compare(Comparison::AtLeast, least.into()))
    }

    /// Creates a filter for values of at most `most`.
    #[must_use]
    pub fn at_most(column: &str, most: i64) -> Self {
        Filter::new(column, Condition::Compare(Comparison::AtMost, most.into()))
    }

    /// Creates a filter for one value.
    #[must_use]
    pub fn equals(column: &str, value: i64) -> Self {
        Filter::new(column, Condition::Compare(Comparison::Equal, value.into()))
    }
}

/// A value computed from the rows of a group.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Aggregate {
    /// The number of rows.
    Count,
    /// The number of rows with a value.
    CountOf(Expr),
    /// The sum. That of whole numbers and decimals is exact; that of floating-point numbers is the exact sum, rounded
    /// once, whatever the order of the rows.
    Sum(Expr),
    /// The mean, as a floating-point number.
    Average(Expr),
    /// The least value.
    Min(Expr),
    /// The greatest value.
    Max(Expr),
}

/// A query over one table.
///
/// ```
/// use telpher_query::{Aggregate, Column, Filter, Plan, Table, Value, column, literal};
///
/// let table = Table::new(vec![
///     Column::of("shop", &[1_u8, 2, 1, 2])?,
///     Column::of("day", &[10_i32, 10, 11, 12])?,
///     Column::of("price", &[500_i64, 300, 200, 100])?,
/// ])?;
/// let plan = Plan {
///     filters: vec![Filter::at_most("day", 11)],
///     group_by: vec!["shop".into()],
///     aggregates: vec![Aggregate::Sum(column("price") * literal(2)), Aggregate::Count],
/// };
/// let answer = plan.on(&table)?.alone(1);
/// assert_eq!(answer.rows[0].keys, [Value::Integer(1)]);
/// assert_eq!(answer.rows[0].values, [Value::Integer(1_400), Value::Integer(2)]);
/// assert_eq!(answer.rows[1].values, [Value::Integer(600), Value::Integer(1)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The rows that all of these filters select are used.
    pub filters: Vec<Filter>,
    /// The columns whose values form a group; without any, all rows are one group.
    pub group_by: Vec<String>,
    /// The values computed for each group.
    pub aggregates: Vec<Aggregate>,
}

/// One, in hundredths, for l_discount and l_tax: 1.00.
const WHOLE: i64 = 100;

impl Plan {
    /// Returns the columns that the plan names, each once, sorted.
    #[must_use]
    pub fn columns(&self) -> Vec<String> {
        fn of(expr: &Expr, names: &mut Vec<String>) {
            match expr {
                Expr::Column(name) => names.push(name.clone()),
                Expr::Literal(_) => {}
                Expr::Add(left, right) | Expr::Subtract(left, right) | Expr::Multiply(left, right) => {
                    of(left, names);
                    of(right, names);
                }
            }
        }
        let mut names: Vec<String> = self.filters.iter().map(|filter| filter.column.clone()).collect();
        names.extend(self.group_by.iter().cloned());
        for aggregate in &self.aggregates {
            match aggregate {
                Aggregate::Count => {}
                Aggregate::CountOf(expr)
                | Aggregate::Sum(expr)
                | Aggregate::Average(expr)
                | Aggregate::Min(expr)
                | Aggregate::Max(expr) => of(expr, &mut names),
            }
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the thesis' query: a filter on column a, a sum over column b (Fürst, Figure 2.2). The thesis does not
    /// give the selectivity; here it is half of the rows of [`two_columns`](super::generate::two_columns).
    #[must_use]
    pub fn thesis() -> Self {
        Plan {
            filters: vec![Filter::at_most("a", 49)],
            group_by: Vec::new(),
            aggregates: vec![Aggregate::Sum(column("b"))],
        }
    }

    /// Returns TPC-H's query 1, the pricing summary (TPC-H §2.4.1), with DELTA = 90 and each average as sum and count,
    /// for whole numbers: amounts in hundredths, thus sum_disc_price in ten-thousandths and sum_charge in millionths.
    #[must_use]
    pub fn tpch_q1() -> Self {
        let discounted = || column("l_extendedprice") * (literal(WHOLE) - column("l_discount"));
        Plan {
            // 1998-12-01 minus 90 days is 1998-09-02, day 10471.
            filters: vec![Filter::at_most("l_shipdate", 10_471)],
            group_by: vec!["l_returnflag".into(), "l_linestatus".into()],
            aggregates: vec![
                Aggregate::Sum(column("l_quantity")),
                Aggregate::Sum(column("l_extendedprice")),
                Aggregate::Sum(discounted()),
                Aggregate::Sum(discounted() * (literal(WHOLE) + column("l_tax"))),
                Aggregate::Sum(column("l_discount")),
                Aggregate::Count,
            ],
        }
    }

    /// Returns TPC-H's query 6, the forecast of a change in revenue (TPC-H §2.4.6), for 1994, a discount of 0.06 and a
    /// quantity below 24, for whole numbers: amounts in hundredths, and the revenue in ten-thousandths.
    #[must_use]
    pub fn tpch_q6() -> Self {
        Plan {
            filters: vec![
                // 1994-01-01 is day 8766, and the year has 365 days.
                Filter::between("l_shipdate", 8_766..=8_766 + 364),
                Filter::between("l_discount", 5..=7),
                Filter::at_most("l_quantity", 24 * WHOLE - 1),
            ],
            group_by: Vec::new(),
            aggregates: vec![Aggregate::Sum(column("l_extendedprice") * column("l_discount"))],
        }
    }

    /// TPC-H's query 1, the pricing summary (TPC-H §2.4.1), with DELTA = 90, for a table with TPC-H's types.
    pub const TPCH_Q1: &str = "select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), \
                               sum(l_extendedprice * (1 - l_discount)), \
                               sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), \
                               avg(l_extendedprice), avg(l_discount), count(*) from lineitem \
                               where l_shipdate <= date '1998-09-02' group by l_returnflag, l_linestatus";

    /// TPC-H's query 6, the forecast of a change in revenue (TPC-H §2.4.6), for 1994, a discount of 0.06 and a quantity
    /// below 24, for a table with TPC-H's types.
    pub const TPCH_Q6: &str = "select sum(l_extendedprice * l_discount) from lineitem \
                               where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01' \
                               and l_discount between 0.05 and 0.07 and l_quantity < 24";

    /// Returns the plan as SQL over a table of that name, with the rows in the order of an [`Answer`](super::Answer).
    /// Expressions of whole numbers use `BIGINT`; [`Query::sql`](super::Query::sql) knows the types of the columns, and
    /// when that is too short.
    #[must_use]
    pub fn sql(&self, table: &str) -> String {
        self.sql_with(table, &|expr| expr.has_only_whole_literals().then_some("BIGINT"))
    }

    /// Returns the plan as SQL; `of` returns the type to which the columns of an expression are cast, if they are.
    pub(super) fn sql_with(&self, table: &str, of: &dyn Fn(&Expr) -> Option<&'static str>) -> String {
        let keys: Vec<String> = self.group_by.iter().map(|key| quoted(key)).collect();
        let aggregates = self.aggregates.iter().map(|aggregate| Sql(aggregate, of).to_string());
        let shown: Vec<String> = keys.iter().cloned().chain(aggregates).collect();
        let mut sql = format!("SELECT {} FROM {}", shown.join(", "), quoted(table));
        let filters: Vec<String> = self.filters.iter().map(ToString::to_string).collect();
        if !filters.is_empty() {
            sql += &format!(" WHERE {}", filters.join(" AND "));
        }
        if !keys.is_empty() {
            let keys = keys.join(", ");
            sql += &format!(" GROUP BY {keys} ORDER BY {keys}");
        }
        sql
    }
}

/// Returns a quoted SQL identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// An aggregate as SQL, and the type to which its expression's columns are cast.
struct Sql<'a>(&'a Aggregate, &'a dyn Fn(&Expr) -> Option<&'static str>);

impl Aggregate {
    /// Returns its function in SQL and its expression, if it has one.
    fn parts(&self) -> (&'static str, Option<&Expr>) {
        match self {
            Aggregate::Count => ("count", None),
            Aggregate::CountOf(expr) => ("count", Some(expr)),
            Aggregate::Sum(expr) => ("sum", Some(expr)),
            Aggregate::Average(expr) => ("avg", Some(expr)),
            Aggregate::Min(expr) => ("min", Some(expr)),
            Aggregate::Max(expr) => ("max", Some(expr)),
        }
    }
}

impl Display for Sql<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.parts() {
            (name, None) => write!(f, "{name}(*)"),
            // No arithmetic: nothing can overflow.
            (name, Some(Expr::Column(column))) => write!(f, "{name}({})", quoted(column)),
            (name, Some(expr)) => write!(f, "{name}({})", expr.sql(self.1(expr))),
        }
    }
}

impl Expr {
    fn sql(&self, of: Option<&str>) -> String {
        let cast = |text: String| of.map_or(text.clone(), |of| format!("CAST({text} AS {of})"));
        match self {
            Expr::Column(name) => cast(quoted(name)),
            Expr::Literal(literal) => cast(literal.to_string()),
            Expr::Add(left, right) => format!("({} + {})", left.sql(of), right.sql(of)),
            Expr::Subtract(left, right) => format!("({} - {})", left.sql(of), right.sql(of)),
            Expr::Multiply(left, right) => format!("({} * {})", left.sql(of), right.sql(of)),
        }
    }

    pub(super) fn has_only_whole_literals(&self) -> bool {
        match self {
            Expr::Column(_) => true,
            Expr::Literal(literal) => matches!(literal, Literal::Number { scale: 0, .. }),
            Expr::Add(left, right) | Expr::Subtract(left, right) | Expr::Multiply(left, right) => {
                left.has_only_whole_literals() && right.has_only_whole_literals()
            }
        }
    }
}

/// For people: as short as possible.
impl Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Column(name) => f.write_str(name),
            Expr::Literal(literal) => write!(f, "{literal}"),
            Expr::Add(left, right) => write!(f, "({left} + {right})"),
            Expr::Subtract(left, right) => write!(f, "({left} - {right})"),
            Expr::Multiply(left, right) => write!(f, "{left} * {right}"),
        }
    }
}

/// For people: the heading of its values.
impl Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (name, None) => f.write_str(name),
            (name, Some(expr)) => write!(f, "{name}({expr})"),
        }
    }
}

/// As SQL.
impl Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (column, not) = (quoted(&self.column), if self.negated { "NOT " } else { "" });
        match &self.condition {
            Condition::Compare(comparison, literal) => write!(f, "{not}{column} {} {literal}", comparison.sign()),
            Condition::Between(least, greatest) => write!(f, "{column} {not}BETWEEN {least} AND {greatest}"),
            Condition::In(literals) => {
                let literals: Vec<String> = literals.iter().map(ToString::to_string).collect();
                write!(f, "{column} {not}IN ({})", literals.join(", "))
            }
            Condition::Like(pattern) => write!(f, "{column} {not}LIKE {}", Literal::Text(pattern.clone())),
            Condition::Null => write!(f, "{column} IS {not}NULL"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_displayed_as_sql() {
        assert_eq!(Plan::thesis().sql("t"), r#"SELECT sum("b") FROM "t" WHERE "a" <= 49"#);
        assert_eq!(
            Plan::tpch_q6().sql("lineitem"),
            "SELECT sum((CAST(\"l_extendedprice\" AS BIGINT) * CAST(\"l_discount\" AS BIGINT))) FROM \"lineitem\" \
             WHERE \"l_shipdate\" BETWEEN 8766 AND 9130 AND \"l_discount\" BETWEEN 5 AND 7 AND \"l_quantity\" <= 2399"
        );
        assert!(
            Plan::tpch_q1()
                .sql("lineitem")
                .ends_with(r#" GROUP BY "l_returnflag", "l_linestatus" ORDER BY "l_returnflag", "l_linestatus""#)
        );
    }

    #[test]
    fn names_cannot_break_out_of_the_sql() {
        let plan = Plan { filters: vec![Filter::equals("a\" OR 1=1 --", 3)], ..Plan::thesis() };
        assert_eq!(plan.sql("t"), "SELECT sum(\"b\") FROM \"t\" WHERE \"a\"\" OR 1=1 --\" = 3");
    }

    #[test]
    fn the_columns_of_a_plan_are_found_in_all_its_clauses() {
        assert_eq!(Plan::thesis().columns(), ["a", "b"]);
        assert_eq!(Plan::tpch_q6().columns(), ["l_discount", "l_extendedprice", "l_quantity", "l_shipdate"]);
        assert_eq!(Plan::tpch_q1().columns().len(), 7);
        let counting = Plan { aggregates: vec![Aggregate::Count], ..Plan::default() };
        assert!(counting.columns().is_empty());
    }
}
