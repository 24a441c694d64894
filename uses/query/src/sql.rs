//! Parses plans from text: the part of SQL that a [`Plan`] can express. Users write what they know, and another engine
//! can run the very same query.
//!
//! ```text
//! select   column, …  the keys, then  count(*) | (count | sum | avg | min | max)(expression), …
//! from     name
//! where    test and …         test: [not] column (= | <> | < | <= | > | >=) literal | column is [not] null
//!                                   column [not] (between literal and literal | in (literal, …) | like 'pattern')
//! group by column, …
//! order by the same columns: groups are in that order anyway
//!
//! expression: columns, literals, + - *, parentheses; `cast(… as bigint)` or `hugeint` changes nothing:
//!             no number overflows here
//! literal:    12 | -0.05 | 1e6 | true | 'text' | date '1998-09-02' | timestamp '1998-09-02 12:30:00'
//! ```

use super::calendar::{days, nanoseconds};
use super::error::SqlError;
use super::value::Double;
use super::{Aggregate, Comparison, Condition, Expr, Filter, Literal, Plan};
use std::fmt;
use std::str::FromStr;

/// The deepest nesting of parentheses and signs, so that no text can overflow the stack of the parser or of code that
/// walks the expression.
const DEPTH: u32 = 64;

/// The most operators of an expression, for the same reason: `1 + 1 + 1 + …` is a tree as deep as it is long.
const OPERATORS: u32 = 256;

/// Words that are names only if quoted.
const KEYWORDS: [&str; 14] =
    ["select", "from", "where", "and", "between", "group", "order", "by", "as", "not", "in", "like", "is", "null"];

/// The most literals of an `in` list, so that a text of any length gives an answer soon.
const LIST: usize = 1 << 16;

/// A token of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Token<'a> {
    /// A name or a keyword.
    Name(&'a str),
    /// A name between double quotes, never a keyword; two double quotes inside mean one.
    Quoted(&'a str),
    /// Text between single quotes; two single quotes inside mean one.
    Text(&'a str),
    /// Digits, directly following letters and dots, and the sign of an exponent, so that an error shows all of it.
    Number(&'a str),
    /// An operator, a comma, a parenthesis, or any other character.
    Sign(&'a str),
    /// The end of the text.
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Name(word) | Token::Number(word) | Token::Sign(word) => write!(f, "`{word}`"),
            Token::Quoted(word) => write!(f, "`\"{word}\"`"),
            Token::Text(word) => write!(f, "`'{word}'`"),
            Token::End => f.write_str("the end"),
        }
    }
}

/// Returns the next token of a text without leading spaces, and its length in bytes.
fn token(text: &str) -> (Token<'_>, usize) {
    let Some(first) = text.chars().next() else { return (Token::End, 0) };
    let run = |is: fn(char) -> bool| text.find(|c| !is(c)).unwrap_or(text.len());
    match first {
        'a'..='z' | 'A'..='Z' | '_' => {
            let len = run(|c| c.is_ascii_alphanumeric() || c == '_');
            (Token::Name(&text[..len]), len)
        }
        '0'..='9' => {
            let mut len = run(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
            let is_exponent = text[..len].ends_with(['e', 'E']) && text[len..].starts_with(['-', '+']);
            if is_exponent {
                len += 1;
                len += text[len..].find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len() - len);
            }
            (Token::Number(&text[..len]), len)
        }
        '\'' | '"' => match between(text, first) {
            Some(inner) if first == '"' => (Token::Quoted(inner), inner.len() + 2),
            Some(inner) => (Token::Text(inner), inner.len() + 2),
            None => (Token::Sign(&text[..1]), 1),
        },
        _ => {
            let two = ["<=", ">=", "<>", "!=", "::"].iter().any(|sign| text.starts_with(sign));
            let len = if two { 2 } else { first.len_utf8() };
            (Token::Sign(&text[..len]), len)
        }
    }
}

/// Returns the text between the quote with which it begins and the next one; two quotes inside do not end it.
fn between(text: &str, quote: char) -> Option<&str> {
    let mut end = 1;
    loop {
        let len = text[end..].find(quote)?;
        if !text[end + len + 1..].starts_with(quote) {
            return Some(&text[1..end + len]);
        }
        end += len + 2;
    }
}

/// Returns a number: whole, decimal, or, with an exponent, floating-point.
fn number(text: &str) -> Option<Literal> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let bare = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) =
        bare.split_once(['e', 'E']).map_or((bare, None), |(bare, exponent)| (bare, Some(exponent)));
    let (whole, rest) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    if !digits(whole) || !digits(rest) {
        return None;
    }
    if let Some(exponent) = exponent {
        let is_number = digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent));
        let number: f64 = text.parse().ok().filter(|_| is_number)?;
        return number.is_finite().then(|| Literal::Float(Double::new(number)));
    }
    let rest = if mantissa.contains('.') { rest } else { "" };
    let sign = if bare.len() < text.len() { "-" } else { "" };
    let scale = u8::try_from(rest.len()).ok().filter(|&scale| scale <= DIGITS)?;
    Some(Literal::Number { units: format!("{sign}{whole}{rest}").parse().ok()?, scale })
}

/// The most digits of a literal after the point.
const DIGITS: u8 = 18;

/// The state of the parser.
struct Parser<'a> {
    all: &'a str,
    rest: &'a str,
    /// The operators that this expression may still have.
    operators: u32,
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start();
        token(self.rest).0
    }

    fn next(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start();
        let (token, len) = token(self.rest);
        self.rest = &self.rest[len..];
        token
    }

    /// Skips a sign or a keyword if it comes next; returns whether it did.
    fn take(&mut self, word: &str) -> bool {
        let comes = match self.peek() {
            Token::Sign(found) => found == word,
            Token::Name(found) => found.eq_ignore_ascii_case(word),
            _ => false,
        };
        if comes {
            self.next();
        }
        comes
    }

    fn expect(&mut self, word: &str) -> Result<(), SqlError> {
        if self.take(word) { Ok(()) } else { Err(self.error(format!("`{word}`"))) }
    }

    /// Creates an error about the next token.
    fn error(&mut self, expected: impl Into<String>) -> SqlError {
        let found = self.peek().to_string();
        let before = &self.all[..self.all.len() - self.rest.len()];
        SqlError { expected: expected.into(), found, at: before.chars().count() + 1 }
    }

    fn name(&mut self, what: &str) -> Result<String, SqlError> {
        let name = match self.peek() {
            Token::Quoted(name) => name.replace("\"\"", "\""),
            Token::Name(name) if !KEYWORDS.iter().any(|word| word.eq_ignore_ascii_case(name)) => name.to_owned(),
            _ => return Err(self.error(what)),
        };
        self.next();
        Ok(name)
    }

    /// Parses a constant: a number with an optional sign, a text, a date, a point in time, or a truth value.
    fn literal(&mut self) -> Result<Literal, SqlError> {
        let before = self.rest;
        let (literal, expected) = if self.take("-") {
            let literal = if let Token::Number(digits) = self.next() { number(&format!("-{digits}")) } else { None };
            (literal, NUMBER)
        } else {
            match self.next() {
                Token::Number(digits) => (number(digits), NUMBER),
                Token::Text(text) => (Some(Literal::Text(unquoted(text))), LITERAL),
                Token::Name(word) if word.eq_ignore_ascii_case("date") => match self.next() {
                    Token::Text(text) => (days(text).map(Literal::Date), "date 'YYYY-MM-DD'"),
                    _ => (None, LITERAL),
                },
                Token::Name(word) if word.eq_ignore_ascii_case("timestamp") => match self.next() {
                    Token::Text(text) => (nanoseconds(text).map(Literal::Timestamp), "timestamp 'YYYY-MM-DD HH:MM:SS'"),
                    _ => (None, LITERAL),
                },
                Token::Name(word) if word.eq_ignore_ascii_case("true") => (Some(Literal::Boolean(true)), LITERAL),
                Token::Name(word) if word.eq_ignore_ascii_case("false") => (Some(Literal::Boolean(false)), LITERAL),
                _ => (None, LITERAL),
            }
        };
        literal.ok_or_else(|| {
            self.rest = before;
            self.error(expected)
        })
    }

    /// Parses one of the tests after `where`.
    fn filter(&mut self) -> Result<Filter, SqlError> {
        let not_first = self.take("not");
        let column = self.name("a column")?;
        let of = |negated, condition| Ok(Filter { column: column.clone(), negated: negated != not_first, condition });
        if self.take("is") {
            let negated = self.take("not");
            self.expect("null")?;
            return of(negated, Condition::Null);
        }
        let negated = self.take("not");
        if self.take("between") {
            let from = self.literal()?;
            self.expect("and")?;
            return of(negated, Condition::Between(from, self.literal()?));
        }
        if self.take("in") {
            self.expect("(")?;
            let mut literals = vec![self.literal()?];
            while self.take(",") {
                if literals.len() == LIST {
                    return Err(self.error(format!("no more than {LIST} literals")));
                }
                literals.push(self.literal()?);
            }
            self.expect(")")?;
            return of(negated, Condition::In(literals));
        }
        if self.take("like") {
            let Token::Text(pattern) = self.peek() else { return Err(self.error("a pattern such as 'AIR%'")) };
            self.next();
            return of(negated, Condition::Like(unquoted(pattern)));
        }
        if negated {
            return Err(self.error("`between`, `in` or `like`"));
        }
        for (sign, comparison) in COMPARISONS {
            if self.take(sign) {
                return of(false, Condition::Compare(comparison, self.literal()?));
            }
        }
        Err(self.error("`=`, `<>`, `<`, `<=`, `>`, `>=`, `between`, `in`, `like` or `is null`"))
    }

    /// Parses an aggregate after `select`; `None` if a key comes instead.
    fn aggregate(&mut self) -> Result<Option<Aggregate>, SqlError> {
        let before = self.rest;
        let Token::Name(name) = self.next() else {
            self.rest = before;
            return Ok(None);
        };
        let of: fn(Expr) -> Aggregate = match name.to_ascii_lowercase().as_str() {
            "count" => Aggregate::CountOf,
            "sum" => Aggregate::Sum,
            "avg" => Aggregate::Average,
            "min" => Aggregate::Min,
            "max" => Aggregate::Max,
            _ => {
                self.rest = before;
                return Ok(None);
            }
        };
        if !self.take("(") {
            // A column of that name.
            self.rest = before;
            return Ok(None);
        }
        self.operators = OPERATORS;
        let counts = name.eq_ignore_ascii_case("count");
        let aggregate = if counts && self.take("*") { Aggregate::Count } else { of(self.sum(DEPTH)?) };
        self.expect(")")?;
        Ok(Some(aggregate))
    }

    /// Counts an operator.
    fn operator(&mut self) -> Result<(), SqlError> {
        match self.operators.checked_sub(1) {
            Some(left) => self.operators = left,
            None => return Err(self.error(format!("no more than {OPERATORS} operators in an expression"))),
        }
        Ok(())
    }

    fn sum(&mut self, depth: u32) -> Result<Expr, SqlError> {
        let mut left = self.product(depth)?;
        loop {
            if self.take("+") {
                self.operator()?;
                left = Expr::Add(Box::new(left), Box::new(self.product(depth)?));
            } else if self.take("-") {
                self.operator()?;
                left = Expr::Subtract(Box::new(left), Box::new(self.product(depth)?));
            } else {
                return Ok(left);
            }
        }
    }

    fn product(&mut self, depth: u32) -> Result<Expr, SqlError> {
        let mut left = self.factor(depth)?;
        while self.take("*") {
            self.operator()?;
            left = Expr::Multiply(Box::new(left), Box::new(self.factor(depth)?));
        }
        Ok(left)
    }

    fn factor(&mut self, depth: u32) -> Result<Expr, SqlError> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.error(format!("an expression that nests no deeper than {DEPTH}")));
        };
        if self.take("(") {
            let inner = self.sum(depth)?;
            self.expect(")")?;
            return Ok(inner);
        }
        let before = self.rest;
        match self.peek() {
            Token::Number(_) | Token::Text(_) => Ok(Expr::Literal(self.literal()?)),
            Token::Sign("-") => {
                self.next();
                if matches!(self.peek(), Token::Number(_)) {
                    self.rest = before;
                    return Ok(Expr::Literal(self.literal()?));
                }
                self.operator()?;
                Ok(Expr::Subtract(Box::new(Expr::Literal(0.into())), Box::new(self.factor(depth)?)))
            }
            Token::Name(word) if ["date", "timestamp"].iter().any(|name| word.eq_ignore_ascii_case(name)) => {
                self.next();
                let is_literal = matches!(self.peek(), Token::Text(_));
                self.rest = before;
                if is_literal { Ok(Expr::Literal(self.literal()?)) } else { Ok(Expr::Column(self.name("a column")?)) }
            }
            Token::Name(word) if ["true", "false"].iter().any(|name| word.eq_ignore_ascii_case(name)) => {
                Ok(Expr::Literal(self.literal()?))
            }
            Token::Name(word) if word.eq_ignore_ascii_case("cast") => {
                self.next();
                if !self.take("(") {
                    self.rest = before;
                    return Ok(Expr::Column(self.name("a column")?));
                }
                let inner = self.sum(depth)?;
                self.expect("as")?;
                if !self.take("bigint") && !self.take("hugeint") {
                    return Err(self.error("`bigint` or `hugeint`"));
                }
                self.expect(")")?;
                Ok(inner)
            }
            _ => Ok(Expr::Column(self.name("a column, a number or `(`")?)),
        }
    }

    /// Parses names separated by commas.
    fn names(&mut self) -> Result<Vec<String>, SqlError> {
        let mut names = vec![self.name("a column")?];
        while self.take(",") {
            names.push(self.name("a column")?);
        }
        Ok(names)
    }

    fn plan(&mut self) -> Result<Plan, SqlError> {
        self.expect("select")?;
        let (mut keys, mut aggregates) = (Vec::new(), Vec::new());
        let mut after_keys = self.rest;
        loop {
            match self.aggregate()? {
                Some(aggregate) => aggregates.push(aggregate),
                None if aggregates.is_empty() => {
                    keys.push(self.name("a column, count(*), sum(…), avg(…), min(…) or max(…)")?)
                }
                None => return Err(self.error("count(*), sum(…), avg(…), min(…) or max(…); keys come first")),
            }
            if aggregates.is_empty() {
                after_keys = self.rest;
            }
            if !self.take(",") {
                break;
            }
        }
        self.expect("from")?;
        self.name("a table's name")?;
        let mut filters = Vec::new();
        if self.take("where") {
            filters.push(self.filter()?);
            while self.take("and") {
                filters.push(self.filter()?);
            }
        }
        let mut group_by = Vec::new();
        if self.take("group") {
            self.expect("by")?;
            group_by = self.names()?;
        }
        if group_by != keys {
            // The keys are reported as the error, wherever it was noticed.
            let columns = group_by.join(", ");
            self.rest = after_keys;
            return Err(self.error(match group_by.is_empty() {
                true => "`group by` with the columns named before the aggregates".to_owned(),
                false => format!("{columns}, as after `group by`,"),
            }));
        }
        if self.take("order") {
            self.expect("by")?;
            let before = self.rest;
            if self.names()? != group_by {
                self.rest = before;
                return Err(self.error("the same columns as after `group by`"));
            }
        }
        self.take(";");
        match self.peek() {
            Token::End => Ok(Plan { filters, group_by, aggregates }),
            _ => Err(self.error("the end")),
        }
    }
}

const NUMBER: &str = "a number of at most 18 digits";
const LITERAL: &str = "a number, a text in single quotes or date 'YYYY-MM-DD'";

/// Longer signs come before those with which they begin.
const COMPARISONS: [(&str, Comparison); 7] = [
    ("=", Comparison::Equal),
    ("<>", Comparison::Unequal),
    ("!=", Comparison::Unequal),
    ("<=", Comparison::AtMost),
    (">=", Comparison::AtLeast),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

fn unquoted(text: &str) -> String {
    text.replace("''", "'")
}

/// Parses SQL. The table's name is ignored; [`Plan::on`] checks whether the columns exist.
impl FromStr for Plan {
    type Err = SqlError;

    fn from_str(text: &str) -> Result<Plan, SqlError> {
        Parser { all: text, rest: text, operators: OPERATORS }.plan()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(text: &str) -> Plan {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn refused(text: &str) -> String {
        text.parse::<Plan>().expect_err(text).to_string()
    }

    fn column(name: &str) -> Box<Expr> {
        Box::new(Expr::Column(name.to_owned()))
    }

    #[test]
    fn a_text_with_every_clause_is_parsed() {
        let text = "SELECT k, \"from\", count(*), sum(a*(100-b)+-3), Min(-c) from t\n\
                    where a between -5 and 7 and d < date '1970-02-01' and e = 4 group by k, \"from\" order by k, \
                    \"from\";";
        let difference = Expr::Subtract(Box::new(Expr::Literal(100.into())), column("b"));
        let product = Expr::Multiply(column("a"), Box::new(difference));
        let expected = Plan {
            filters: vec![
                Filter::between("a", -5..=7),
                Filter::new("d", Condition::Compare(Comparison::Less, Literal::Date(31))),
                Filter::equals("e", 4),
            ],
            group_by: vec!["k".into(), "from".into()],
            aggregates: vec![
                Aggregate::Count,
                Aggregate::Sum(Expr::Add(Box::new(product), Box::new(Expr::Literal((-3).into())))),
                Aggregate::Min(Expr::Subtract(Box::new(Expr::Literal(0.into())), column("c"))),
            ],
        };
        assert_eq!(plan(text), expected);
    }

    #[test]
    fn minus_is_left_associative_and_products_bind_first() {
        let left = Expr::Subtract(column("a"), column("b"));
        let product = Expr::Multiply(column("c"), column("d"));
        let expected = Aggregate::Sum(Expr::Subtract(Box::new(left), Box::new(product)));
        assert_eq!(plan("select sum(a - b - c * d) from t").aggregates, [expected]);
    }

    #[test]
    fn every_condition_is_parsed() {
        let number = |units, scale| Literal::Number { units, scale };
        let compare = |comparison, literal| Condition::Compare(comparison, literal);
        let float = |number| Literal::Float(Double::new(number));
        for (text, negated, condition) in [
            ("= -9223372036854775808", false, compare(Comparison::Equal, i64::MIN.into())),
            ("<> 0.05", false, compare(Comparison::Unequal, number(5, 2))),
            ("!= -0.10", false, compare(Comparison::Unequal, number(-10, 2))),
            ("< 1e-3", false, compare(Comparison::Less, float(1e-3))),
            ("<= -2.5E+300", false, compare(Comparison::AtMost, float(-2.5e300))),
            ("> 'it''s'", false, compare(Comparison::Greater, "it's".into())),
            (
                ">= timestamp '1970-01-01 00:00:01'",
                false,
                compare(Comparison::AtLeast, Literal::Timestamp(1_000_000_000)),
            ),
            ("= TRUE", false, compare(Comparison::Equal, Literal::Boolean(true))),
            ("in ('a', 3)", false, Condition::In(vec!["a".into(), 3.into()])),
            ("not in (1)", true, Condition::In(vec![1.into()])),
            ("not between 1 and 2", true, Condition::Between(1.into(), 2.into())),
            ("like 'AIR%'", false, Condition::Like("AIR%".into())),
            ("not like '_'", true, Condition::Like("_".into())),
            ("is null", false, Condition::Null),
            ("is not null", true, Condition::Null),
        ] {
            let filter = Filter { column: "a".into(), negated, condition };
            assert_eq!(
                plan(&format!("select count(*) from t where a {text}")).filters[..],
                *std::slice::from_ref(&filter)
            );
            let filter = Filter { negated: !negated, ..filter };
            assert_eq!(plan(&format!("select count(*) from t where not a {text}")).filters, [filter], "not {text}");
        }
    }

    #[test]
    fn every_aggregate_is_parsed() {
        let of = || Expr::Column("a".into());
        let expected = [
            Aggregate::CountOf(of()),
            Aggregate::Average(of()),
            Aggregate::Sum(Expr::Multiply(
                column("a"),
                Box::new(Expr::Literal(Literal::Number { units: 5, scale: 2 })),
            )),
            Aggregate::Max(Expr::Literal("x".into())),
        ];
        assert_eq!(plan("select count(a), avg(a), sum(a * 0.05), max('x') from t").aggregates, expected);
    }

    #[test]
    fn columns_may_be_named_like_functions() {
        let expected = Aggregate::Sum(Expr::Add(column("date"), column("cast")));
        assert_eq!(plan("select count, sum(date + cast) from t group by count").aggregates, [expected]);
        assert_eq!(plan("select \"a\"\"b\", count(*) from t group by \"a\"\"b\"").group_by, ["a\"b"]);
    }

    #[test]
    fn errors_say_where_and_why_a_text_is_no_plan() {
        for (text, expected) in [
            ("", "at character 1, `select` is expected and the end found"),
            ("select median(a) from t", "at character 14, `from` is expected and `(` found"),
            (
                "select count(*), a from t group by a",
                "count(*), sum(…), avg(…), min(…) or max(…); keys come first is expected and `a` found",
            ),
            (
                "select a, count(*) from t",
                "at character 9, `group by` with the columns named before the aggregates is expected and `,` found",
            ),
            ("select count(*) from t group by a", "a, as after `group by`, is expected and `count` found"),
            (
                "select count(*) from t where a ~ 4",
                "`=`, `<>`, `<`, `<=`, `>`, `>=`, `between`, `in`, `like` or `is null` is expected and `~` found",
            ),
            (
                "select count(*) from t where a < b",
                "at character 34, a number, a text in single quotes or date 'YYYY-MM-DD' is expected and `b` found",
            ),
            ("select count(*) from t where a < 9223372036854775808", "a number of at most 18 digits"),
            ("select count(*) from t where a < 1e999", "a number of at most 18 digits"),
            ("select count(*) from t where a < 1.2.3", "a number of at most 18 digits"),
            ("select count(*) from t where a < 1.", "a number of at most 18 digits"),
            ("select count(*) from t where a < 0.1234567890123456789", "a number of at most 18 digits"),
            ("select count(*) from t where a < date '2001-02-29'", "date 'YYYY-MM-DD' is expected"),
            ("select count(*) from t where a not 3", "`between`, `in` or `like` is expected"),
            ("select count(*) from t where a in ()", "at character 36, a number"),
            ("select count(*) from t where a like 3", "a pattern such as 'AIR%' is expected"),
            ("select count(*) from t where a = 1 or b = 2", "at character 36, the end is expected and `or` found"),
            ("select sum(a / b) from t", "at character 14, `)` is expected and `/` found"),
            ("select sum(ä) from t", "at character 12, a column, a number or `(` is expected and `ä` found"),
            ("select sum('a) from t", "and `'` found"),
            ("select k, sum(a) from t group by k order by a", "the same columns as after `group by` is expected"),
            ("select count(*) from t; select", "the end is expected and `select` found"),
        ] {
            let message = refused(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn no_text_overflows_the_stack() {
        for open in ["(", "-", "cast("] {
            assert!(refused(&format!("select sum({}a", open.repeat(1 << 20))).contains("nests no deeper than 64"));
        }
        let long = format!("select sum(a{}) from t", " + a".repeat(1 << 20));
        assert!(refused(&long).contains("no more than 256 operators"));
        plan(&format!("select sum(a{}) from t", " - a".repeat(256)));
    }

    fn literal() -> impl Strategy<Value = Literal> {
        prop_oneof![
            (any::<i64>(), 0..=18_u8).prop_map(|(units, scale)| Literal::Number { units, scale }),
            any::<f64>()
                .prop_filter_map("finite", |number| number.is_finite().then(|| Literal::Float(Double::new(number)))),
            any::<bool>().prop_map(Literal::Boolean),
            (-719_162_i64..2_932_896).prop_map(Literal::Date),
            (-62_135_596_800_000_000_000_i128..253_402_300_800_000_000_000).prop_map(Literal::Timestamp),
            "['a ä%]{0,5}".prop_map(Literal::Text),
        ]
    }

    fn expression() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![literal().prop_map(Expr::Literal), "[a-z ,\"(ä]{1,5}".prop_map(Expr::Column)];
        leaf.prop_recursive(5, 40, 2, |inner| {
            (inner.clone(), inner, 0..3).prop_map(|(left, right, which)| {
                let (left, right) = (Box::new(left), Box::new(right));
                match which {
                    0 => Expr::Add(left, right),
                    1 => Expr::Subtract(left, right),
                    _ => Expr::Multiply(left, right),
                }
            })
        })
    }

    fn condition() -> impl Strategy<Value = Condition> {
        let comparison = (0..6_usize).prop_map(|at| [0, 1, 3, 4, 5, 6].map(|at: usize| COMPARISONS[at].1)[at]);
        prop_oneof![
            (comparison, literal()).prop_map(|(comparison, literal)| Condition::Compare(comparison, literal)),
            (literal(), literal()).prop_map(|(from, to)| Condition::Between(from, to)),
            prop::collection::vec(literal(), 1..4).prop_map(Condition::In),
            "['a ä%_]{0,5}".prop_map(Condition::Like),
            Just(Condition::Null),
        ]
    }

    fn any_plan() -> impl Strategy<Value = Plan> {
        let filter = ("[a-z\"]{1,5}", any::<bool>(), condition()).prop_map(|(column, negated, condition)| Filter {
            column,
            negated,
            condition,
        });
        let aggregate = (expression(), 0..6).prop_map(|(expr, which)| match which {
            0 => Aggregate::Count,
            1 => Aggregate::CountOf(expr),
            2 => Aggregate::Sum(expr),
            3 => Aggregate::Average(expr),
            4 => Aggregate::Min(expr),
            _ => Aggregate::Max(expr),
        });
        let list = prop::collection::vec(aggregate, 1..4);
        (prop::collection::vec(filter, 0..4), prop::collection::vec("[a-z\"]{1,5}", 0..3), list)
            .prop_map(|(filters, group_by, aggregates)| Plan { filters, group_by, aggregates })
    }

    proptest! {
        #[test]
        fn a_plan_written_as_sql_is_parsed_to_the_same_plan(plan in any_plan()) {
            prop_assert_eq!(plan.sql("t").parse::<Plan>(), Ok(plan));
        }

        #[test]
        fn any_text_is_a_plan_or_an_error(text in "(select |from |t |where |and |count\\(\\*\\) \
                                                   |sum\\(|[()\"'*,<=;-]|a|7|1.5|e|not |in |like \
                                                   |null|group by |ä|\\PC){0,40}") {
            if let Err(error) = text.parse::<Plan>() {
                prop_assert!(error.at <= text.chars().count() + 1);
            }
        }
    }
}
