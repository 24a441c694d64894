//! Parses plans from text: the part of SQL that a [`Plan`] can express. Users write what they know, and another engine
//! can run the very same query.
//!
//! ```text
//! select   column, …  the keys, then  count(*) | (sum | min | max)(expression), …
//! from     name
//! where    test and …         test: column (= | < | <= | > | >=) number | column between number and number
//! group by column, …
//! order by the same columns: groups are in that order anyway
//!
//! expression: columns, numbers, + - *, parentheses; `cast(… as bigint)` or `hugeint` changes nothing:
//!             no number overflows here
//! number:     12 | -12 | date '1998-09-02', which is days from 1970-01-01
//! ```

use super::error::SqlError;
use super::{Aggregate, Expr, Filter, Plan};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The deepest nesting of parentheses and signs, so that no text can overflow the stack of the parser or of code that
/// walks the expression.
const DEPTH: u32 = 64;

/// The most operators of an expression, for the same reason: `1 + 1 + 1 + …` is a tree as deep as it is long.
const OPERATORS: u32 = 256;

/// Words that are names only if quoted.
const KEYWORDS: [&str; 9] = ["select", "from", "where", "and", "between", "group", "order", "by", "as"];

/// A token of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Token<'a> {
    /// A name or a keyword.
    Name(&'a str),
    /// A name between double quotes, never a keyword; two double quotes inside mean one.
    Quoted(&'a str),
    /// Text between single quotes.
    Text(&'a str),
    /// Digits and directly following letters or dots, so that the error for 1.5 and 1e3 shows the whole number.
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
            let len = run(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
            (Token::Number(&text[..len]), len)
        }
        '\'' => match text[1..].find('\'') {
            Some(len) => (Token::Text(&text[1..=len]), len + 2),
            None => (Token::Sign(&text[..1]), 1),
        },
        '"' => {
            let mut end = 1;
            loop {
                match text[end..].find('"') {
                    Some(len) if text[end + len + 1..].starts_with('"') => end += len + 2,
                    Some(len) => return (Token::Quoted(&text[1..end + len]), end + len + 1),
                    None => return (Token::Sign(&text[..1]), 1),
                }
            }
        }
        _ => {
            let two = ["<=", ">=", "<>", "!=", "::"].iter().any(|sign| text.starts_with(sign));
            let len = if two { 2 } else { first.len_utf8() };
            (Token::Sign(&text[..len]), len)
        }
    }
}

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

    /// Parses a number with an optional sign, or a date.
    fn number(&mut self) -> Result<i64, SqlError> {
        let before = self.rest;
        let sign = if self.take("-") { "-" } else { "" };
        let number = match self.next() {
            Token::Number(digits) => format!("{sign}{digits}").parse().ok(),
            Token::Name(word) if sign.is_empty() && word.eq_ignore_ascii_case("date") => match self.next() {
                Token::Text(text) => days(text),
                _ => None,
            },
            _ => None,
        };
        number.ok_or_else(|| {
            self.rest = before;
            self.error("a whole number of 64 bits or date 'YYYY-MM-DD'")
        })
    }

    /// Parses one of the tests after `where`.
    fn filter(&mut self) -> Result<Filter, SqlError> {
        let column = self.name("a column")?;
        // No value is below the least or above the greatest one.
        let nothing = RangeInclusive::new(1, 0);
        let range = if self.take("between") {
            let from = self.number()?;
            self.expect("and")?;
            from..=self.number()?
        } else if self.take("=") {
            let only = self.number()?;
            only..=only
        } else if self.take("<=") {
            i64::MIN..=self.number()?
        } else if self.take(">=") {
            self.number()?..=i64::MAX
        } else if self.take("<") {
            self.number()?.checked_sub(1).map_or(nothing, |to| i64::MIN..=to)
        } else if self.take(">") {
            self.number()?.checked_add(1).map_or(nothing, |from| from..=i64::MAX)
        } else {
            return Err(self.error("`=`, `<`, `<=`, `>`, `>=` or `between`"));
        };
        Ok(Filter { column, range })
    }

    /// Parses an aggregate after `select`; `None` if a key comes instead.
    fn aggregate(&mut self) -> Result<Option<Aggregate>, SqlError> {
        let before = self.rest;
        let Token::Name(name) = self.next() else {
            self.rest = before;
            return Ok(None);
        };
        let of: Option<fn(Expr) -> Aggregate> = match name.to_ascii_lowercase().as_str() {
            "count" => None,
            "sum" => Some(Aggregate::Sum),
            "min" => Some(Aggregate::Min),
            "max" => Some(Aggregate::Max),
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
        let aggregate = match of {
            Some(of) => of(self.sum(DEPTH)?),
            None => {
                self.expect("*")?;
                Aggregate::Count
            }
        };
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
            Token::Number(_) => Ok(Expr::Literal(self.number()?)),
            Token::Sign("-") => {
                self.next();
                if matches!(self.peek(), Token::Number(_)) {
                    self.rest = before;
                    return Ok(Expr::Literal(self.number()?));
                }
                self.operator()?;
                Ok(Expr::Subtract(Box::new(Expr::Literal(0)), Box::new(self.factor(depth)?)))
            }
            Token::Name(word) if word.eq_ignore_ascii_case("date") => {
                self.next();
                let date = matches!(self.peek(), Token::Text(_));
                self.rest = before;
                if date { Ok(Expr::Literal(self.number()?)) } else { Ok(Expr::Column(self.name("a column")?)) }
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
                None if aggregates.is_empty() => keys.push(self.name("a column, count(*), sum(…), min(…) or max(…)")?),
                None => return Err(self.error("count(*), sum(…), min(…) or max(…); keys come first")),
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
            let said = group_by.join(", ");
            self.rest = after_keys;
            return Err(self.error(match group_by.is_empty() {
                true => "`group by` with the columns named before the aggregates".to_owned(),
                false => format!("{said}, as after `group by`,"),
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

/// Parses SQL. The table's name is ignored; [`Plan::on`] checks whether the columns exist.
impl FromStr for Plan {
    type Err = SqlError;

    fn from_str(text: &str) -> Result<Plan, SqlError> {
        Parser { all: text, rest: text, operators: OPERATORS }.plan()
    }
}

/// Returns the days from 1970-01-01 to a date of the years 1 to 9999, given as `YYYY-MM-DD`.
fn days(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-');
    let mut part = |len: usize| {
        let digits = parts.next()?;
        (digits.len() == len && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse::<i64>().ok())?
    };
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let of_month = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => return None,
    };
    if year == 0 || day == 0 || day > of_month {
        return None;
    }
    // A year that begins in March has its leap day last; 1970-01-01 is day 719468 from the first of March of the year
    // 0.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Some(365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468)
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
        let difference = Expr::Subtract(Box::new(Expr::Literal(100)), column("b"));
        let product = Expr::Multiply(column("a"), Box::new(difference));
        let expected = Plan {
            filters: vec![
                Filter { column: "a".into(), range: -5..=7 },
                Filter { column: "d".into(), range: i64::MIN..=30 },
                Filter { column: "e".into(), range: 4..=4 },
            ],
            group_by: vec!["k".into(), "from".into()],
            aggregates: vec![
                Aggregate::Count,
                Aggregate::Sum(Expr::Add(Box::new(product), Box::new(Expr::Literal(-3)))),
                Aggregate::Min(Expr::Subtract(Box::new(Expr::Literal(0)), column("c"))),
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
    fn comparisons_at_the_limits_of_64_bits_are_right() {
        let range = |test: &str| plan(&format!("select count(*) from t where a {test}")).filters[0].range.clone();
        assert_eq!(range("< -9223372036854775807"), i64::MIN..=i64::MIN);
        assert_eq!(range(">= -9223372036854775808"), i64::MIN..=i64::MAX);
        assert_eq!(range("> 9223372036854775806"), i64::MAX..=i64::MAX);
        assert!(range("< -9223372036854775808").is_empty());
        assert!(range("> 9223372036854775807").is_empty());
    }

    #[test]
    fn columns_may_be_named_like_functions() {
        let expected = Aggregate::Sum(Expr::Add(column("date"), column("cast")));
        assert_eq!(plan("select count, sum(date + cast) from t group by count").aggregates, [expected]);
        assert_eq!(plan("select \"a\"\"b\", count(*) from t group by \"a\"\"b\"").group_by, ["a\"b"]);
    }

    #[test]
    fn dates_are_converted_to_days_as_in_the_calendar() {
        // Compares with counting day by day.
        let (mut expected, mut last) = (days("0001-01-01").unwrap(), None);
        assert_eq!(days("1970-01-01"), Some(0));
        assert_eq!(days("1998-09-02"), Some(10_471));
        for year in 1..=9999 {
            for month in 1..=12 {
                for day in 1..=31 {
                    if let Some(number) = days(&format!("{year:04}-{month:02}-{day:02}")) {
                        assert_eq!(number, expected, "{year}-{month}-{day}");
                        expected += 1;
                        last = Some((year, month, day));
                    }
                }
            }
        }
        // 400 years have 146097 days.
        assert_eq!(days("2370-01-01"), Some(146_097));
        assert_eq!(last, Some((9999, 12, 31)));
        for wrong in [
            "1900-02-29",
            "2001-13-01",
            "2001-00-01",
            "2001-01-00",
            "0000-01-01",
            "2001-1-1",
            "20010101",
            "",
            "2001-01-01-",
            "+001-01-01",
        ] {
            assert_eq!(days(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn errors_say_where_and_why_a_text_is_no_plan() {
        for (text, expected) in [
            ("", "at character 1, `select` is expected and the end found"),
            ("select avg(a) from t", "at character 11, `from` is expected and `(` found"),
            (
                "select count(*), a from t group by a",
                "at character 18, count(*), sum(…), min(…) or max(…); keys come first is expected and `a` found",
            ),
            (
                "select a, count(*) from t",
                "at character 9, `group by` with the columns named before the aggregates is expected and `,` found",
            ),
            ("select count(*) from t group by a", "a, as after `group by`, is expected and `count` found"),
            (
                "select count(*) from t where a <> 4",
                "at character 32, `=`, `<`, `<=`, `>`, `>=` or `between` is expected and `<>` found",
            ),
            (
                "select count(*) from t where a < 0.05",
                "at character 34, a whole number of 64 bits or date 'YYYY-MM-DD' is expected and `0.05` found",
            ),
            ("select count(*) from t where a < 9223372036854775808", "a whole number of 64 bits"),
            ("select count(*) from t where a < date '2001-02-29'", "a whole number of 64 bits or date"),
            ("select count(*) from t where a = 1 or b = 2", "at character 36, the end is expected and `or` found"),
            ("select sum(a / b) from t", "at character 14, `)` is expected and `/` found"),
            ("select sum(ä) from t", "at character 12, a column, a number or `(` is expected and `ä` found"),
            ("select sum('a) from t", "and `'` found"),
            ("select k, sum(a) from t group by k order by a", "the same columns as after `group by` is expected"),
            ("select count(*) from t; select", "the end is expected and `select` found"),
        ] {
            let said = refused(text);
            assert!(said.contains(expected), "{text}: {said}");
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

    fn expression() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![any::<i64>().prop_map(Expr::Literal), "[a-z ,\"(ä]{1,5}".prop_map(Expr::Column)];
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

    fn any_plan() -> impl Strategy<Value = Plan> {
        let filter = ("[a-z\"]{1,5}", any::<(i64, i64)>())
            .prop_map(|(column, (from, to))| Filter { column, range: from.min(to)..=from.max(to) });
        let aggregate = prop_oneof![
            Just(Aggregate::Count),
            expression().prop_map(Aggregate::Sum),
            expression().prop_map(Aggregate::Min),
            expression().prop_map(Aggregate::Max),
        ];
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
                                                   |sum\\(|[()\"'*,<=;-]|a|7|group by |ä|\\PC){0,40}") {
            if let Err(error) = text.parse::<Plan>() {
                prop_assert!(error.at <= text.chars().count() + 1);
            }
        }
    }
}
