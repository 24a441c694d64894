//! Compares queries with a row-by-row reference.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use telpher_os::Random;
use telpher_query::{
    Aggregate, Answer, Column, Comparison, Condition, Double, Expr, Filter, InputError, Literal, Partial, Plan,
    PlanError, Query, Row, Selection, Table, Value, column, generate, literal,
};

/// A whole number.
fn number(literal: &Literal) -> i64 {
    let Literal::Number { units, scale: 0 } = literal else { panic!("{literal} is no whole number") };
    *units
}

/// Whether a row's value meets a filter of whole numbers.
fn meets(filter: &Filter, value: i64) -> bool {
    filter.negated
        != match &filter.condition {
            Condition::Between(from, to) => (number(from)..=number(to)).contains(&value),
            Condition::Compare(comparison, literal) => {
                let with = number(literal);
                match comparison {
                    Comparison::Equal => value == with,
                    Comparison::Unequal => value != with,
                    Comparison::Less => value < with,
                    Comparison::AtMost => value <= with,
                    Comparison::Greater => value > with,
                    Comparison::AtLeast => value >= with,
                }
            }
            Condition::In(literals) => literals.iter().any(|literal| number(literal) == value),
            other => panic!("{other:?} has no reference"),
        }
}

/// The reference value of an expression.
fn value(expr: &Expr, table: &Table, row: u64) -> i128 {
    match expr {
        Expr::Column(name) => table.columns()[table.find(name).unwrap()].value(row).unwrap().into(),
        Expr::Literal(literal) => number(literal).into(),
        Expr::Add(left, right) => value(left, table, row) + value(right, table, row),
        Expr::Subtract(left, right) => value(left, table, row) - value(right, table, row),
        Expr::Multiply(left, right) => value(left, table, row) * value(right, table, row),
    }
}

/// The reference rows of the answer.
fn reference_rows(plan: &Plan, table: &Table) -> Vec<Row> {
    let of = |name: &String, row| table.columns()[table.find(name).unwrap()].value(row).unwrap();
    let mut groups: BTreeMap<Vec<i64>, Vec<u64>> = BTreeMap::new();
    if plan.group_by.is_empty() {
        groups.insert(Vec::new(), Vec::new());
    }
    for row in 0..table.rows() {
        if plan.filters.iter().all(|filter| meets(filter, of(&filter.column, row))) {
            groups.entry(plan.group_by.iter().map(|name| of(name, row)).collect()).or_default().push(row);
        }
    }
    let aggregate = |aggregate: &Aggregate, rows: &[u64]| {
        let values = |expr: &Expr| rows.iter().map(|&row| value(expr, table, row)).collect::<Vec<_>>();
        match aggregate {
            Aggregate::Count | Aggregate::CountOf(_) => Value::Integer(rows.len() as i128),
            Aggregate::Sum(expr) => values(expr).into_iter().reduce(|sum, value| sum + value).into(),
            Aggregate::Average(expr) => {
                let sum = values(expr).into_iter().reduce(|sum, value| sum + value);
                sum.map_or(Value::Null, |sum| Value::Float(Double::new(sum as f64 / rows.len() as f64)))
            }
            Aggregate::Min(expr) => values(expr).into_iter().min().into(),
            Aggregate::Max(expr) => values(expr).into_iter().max().into(),
        }
    };
    let row = |(keys, rows): (Vec<i64>, Vec<u64>)| Row {
        keys: keys.into_iter().map(Value::from).collect(),
        values: plan.aggregates.iter().map(|one| aggregate(one, &rows)).collect(),
    };
    groups.into_iter().map(row).collect()
}

const NAMES: [&str; 5] = ["flag", "byte", "day", "amount", "any"];

/// Columns of all kinds: few values, all bytes, any 32 bits, some values around `middle`, and any 64 bits.
fn table(rows: usize, seed: u64, middle: i64) -> Table {
    let mut random = Random::new(seed);
    let mut made = |of: &mut dyn FnMut(u64) -> i64| (0..rows).map(|_| of(random.next())).collect::<Vec<_>>();
    let flag: Vec<u8> = made(&mut |n| (n % 3) as i64).into_iter().map(|n| u8::try_from(n).unwrap()).collect();
    let byte: Vec<u8> = made(&mut |n| (n % 256) as i64).into_iter().map(|n| u8::try_from(n).unwrap()).collect();
    let day: Vec<i32> = made(&mut |n| (n as i64) >> 32).into_iter().map(|n| i32::try_from(n).unwrap()).collect();
    let amount = made(&mut |n| middle.saturating_add((n % 1_000) as i64 - 500));
    let any = made(&mut |n| n as i64);
    Table::new(vec![
        Column::of("flag", &flag).unwrap(),
        Column::of("byte", &byte).unwrap(),
        Column::of("day", &day).unwrap(),
        Column::of("amount", &amount).unwrap(),
        Column::of("any", &any).unwrap(),
    ])
    .unwrap()
}

fn names() -> impl Strategy<Value = String> {
    prop::sample::select(&NAMES[..]).prop_map(String::from)
}

fn exprs() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        4 => names().prop_map(Expr::Column),
        1 => prop_oneof![-200_i64..200, any::<i64>()].prop_map(literal),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        (inner.clone(), inner, 0..3).prop_map(|(left, right, op)| match op {
            0 => left + right,
            1 => left - right,
            _ => left * right,
        })
    })
}

fn ranges() -> impl Strategy<Value = RangeInclusive<i64>> {
    let end = || prop_oneof![0_i64..256, -600_i64..600, any::<i32>().prop_map(i64::from), any::<i64>()];
    prop_oneof![
        (end(), end()).prop_map(|(one, other)| one.min(other)..=one.max(other)),
        (end(), end()).prop_map(|(from, to)| from..=to),
        end().prop_map(|end| end..=i64::MAX),
        end().prop_map(|end| i64::MIN..=end),
    ]
}

fn plans() -> impl Strategy<Value = Plan> {
    let end = || prop_oneof![0_i64..256, any::<i64>()].prop_map(Literal::from);
    let comparison = prop::sample::select(
        &[Comparison::Equal, Comparison::Unequal, Comparison::Less, Comparison::Greater, Comparison::AtLeast][..],
    );
    let condition = prop_oneof![
        (comparison, end()).prop_map(|(comparison, literal)| Condition::Compare(comparison, literal)),
        prop::collection::vec(end(), 1..40).prop_map(Condition::In),
    ];
    let filter = prop_oneof![
        (names(), ranges()).prop_map(|(column, range)| Filter::between(&column, range)),
        (names(), condition, any::<bool>()).prop_map(|(column, condition, negated)| Filter {
            column,
            negated,
            condition
        }),
    ];
    let aggregate = prop_oneof![
        Just(Aggregate::Count),
        exprs().prop_map(Aggregate::CountOf),
        exprs().prop_map(Aggregate::Average),
        exprs().prop_map(Aggregate::Sum),
        exprs().prop_map(Aggregate::Min),
        exprs().prop_map(Aggregate::Max),
    ];
    let many = |most| 0..most;
    (
        prop::collection::vec(filter, many(4)),
        prop::collection::vec(names(), many(3)),
        prop::collection::vec(aggregate, many(5)),
    )
        .prop_map(|(filters, group_by, aggregates)| Plan { filters, group_by, aggregates })
}

/// The answer from scans and aggregations of ranges that do not match, over copies of the columns, merged.
fn in_pieces(query: &Query, scans: u64, aggregations: u64) -> Answer {
    let rows = query.table().rows();
    let cut = |pieces: u64| (0..pieces).map(move |n| rows * n / pieces..rows * (n + 1) / pieces);
    let selections: Vec<Selection> = cut(scans)
        .map(|rows| {
            let mut selection = Selection::default();
            query.scan(rows.clone(), &query.inputs(query.scanned(), rows), &mut selection).unwrap();
            selection
        })
        .collect();
    let mut whole: Option<Partial> = None;
    for rows in cut(aggregations) {
        let mut partial = query.partial();
        for selection in &selections {
            let scanned = selection.rows();
            let both = rows.start.max(scanned.start)..rows.end.min(scanned.end);
            if !both.is_empty() {
                query
                    .aggregate(both.clone(), &query.inputs(query.aggregated(), both), selection, &mut partial)
                    .unwrap();
            }
        }
        match &mut whole {
            Some(whole) => whole.merge(&partial).unwrap(),
            None => whole = Some(partial),
        }
    }
    whole.unwrap().answer()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_plan_over_any_rows_equals_the_reference(
        plan in plans(), rows in prop_oneof![0_usize..200, 900_usize..1_200, 3_000_usize..3_100], seed in any::<u64>(),
        middle in prop_oneof![Just(0_i64), Just(i64::MAX), Just(i64::MIN), any::<i64>()], scans in 1_u64..4, aggregations in 1_u64..4,
    ) {
        let table = table(rows, seed, middle);
        match plan.on(&table) {
            Ok(query) => {
                let expected = reference_rows(&plan, &table);
                prop_assert_eq!(&query.alone(2).rows, &expected);
                prop_assert_eq!(&in_pieces(&query, scans, aggregations).rows, &expected);
            }
            Err(PlanError::Nothing) => prop_assert!(plan.group_by.is_empty() && plan.aggregates.is_empty()),
            // Without products, no sum of so few values overflows. A product of literals can, even without rows.
            Err(PlanError::TooLong { what }) => prop_assert!(what.contains('*'), "{what}"),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn a_product_of_literals_beyond_128_bits_is_refused_even_without_rows() {
    let of = |first| {
        let sum = Aggregate::Sum(literal(first) * (literal(77) * literal(8_993_965_219_287_003_306)));
        Plan { filters: vec![], group_by: vec![], aggregates: vec![sum] }.on(&table(0, 0, 0)).map(drop)
    };
    assert!(matches!(of(245_678_708_484_269_772), Err(PlanError::TooLong { .. })));
    assert!(of(245_678_708_484_269).is_ok());
}

#[test]
fn too_many_groups_for_direct_slots_are_found_by_hash() {
    let table = table(20_000, 5, 0);
    let plan = Plan {
        filters: vec![Filter::at_most("byte", 200)],
        group_by: vec!["day".into(), "amount".into()],
        aggregates: vec![Aggregate::Count, Aggregate::Sum(column("any")), Aggregate::Min(column("byte"))],
    };
    let expected = reference_rows(&plan, &table);
    assert!(expected.len() > 10_000);
    assert_eq!(plan.on(&table).unwrap().alone(2).rows, expected);
}

#[test]
fn the_examples_equal_the_reference() {
    let lineitem = generate::lineitem(30_000, 1, &mut generate::anywhere).unwrap();
    for plan in [Plan::tpch_q1(), Plan::tpch_q6()] {
        let answer = plan.on(&lineitem).unwrap().alone(2);
        assert_eq!(answer.rows, reference_rows(&plan, &lineitem));
        assert!(answer.rows.iter().all(|row| row.values.iter().all(|value| value.integer() > Some(0))));
    }
    let two = generate::two_columns(30_000, 1, &mut generate::anywhere).unwrap();
    assert_eq!(Plan::thesis().on(&two).unwrap().alone(2).rows, reference_rows(&Plan::thesis(), &two));
}

#[test]
fn a_generated_lineitem_has_the_groups_and_shares_of_tpch() {
    let rows = 300_000;
    let table = generate::lineitem(rows, 7, &mut generate::anywhere).unwrap();
    // TPC-H §2.4.1: a scan of 95 to 97 % of the rows, in four groups.
    let q1 = Plan::tpch_q1().on(&table).unwrap().alone(2);
    let groups: Vec<String> = q1
        .rows
        .iter()
        .map(|row| row.keys.iter().map(|key| char::from(u8::try_from(key.integer().unwrap()).unwrap())).collect())
        .collect();
    assert_eq!(groups, ["AF", "NF", "NO", "RF"]);
    let count: i128 = q1.rows.iter().map(|row| row.values[5].integer().unwrap()).sum();
    let share = count * 1_000 / i128::from(rows);
    assert!((950..=990).contains(&share), "{share}");
    // Query 6 (§2.4.6): one year in seven, 3 of 11 discounts, 23 of 50 quantities; about 1.9 % of the rows.
    let q6 = Plan { aggregates: vec![Aggregate::Count], ..Plan::tpch_q6() }.on(&table).unwrap().alone(2);
    let share = q6.rows[0].values[0].integer().unwrap() * 10_000 / i128::from(rows);
    assert!((170..=210).contains(&share), "{share}");
}

#[test]
fn the_same_seed_gives_the_same_table_and_another_one_another() {
    let table = |seed| generate::lineitem(10_000, seed, &mut generate::anywhere).unwrap();
    let (one, same, other) = (table(3), table(3), table(4));
    for (at, column) in one.columns().iter().enumerate() {
        assert_eq!(column.bytes(0..10_000), same.columns()[at].bytes(0..10_000));
        assert_ne!(column.bytes(0..10_000), other.columns()[at].bytes(0..10_000));
    }
    // A longer table begins with the same rows, except for the prices, because it has more parts.
    let longer = generate::lineitem(20_000, 3, &mut generate::anywhere).unwrap();
    assert_eq!(one.columns()[0].bytes(0..10_000), longer.columns()[0].bytes(0..10_000));
}

#[test]
fn columns_that_only_the_aggregation_reads_are_prefetched() {
    let table = table(100, 1, 0);
    let name = |columns: &[usize]| columns.iter().map(|&at| table.columns()[at].name().to_owned()).collect::<Vec<_>>();
    let plan = Plan {
        filters: vec![Filter::at_most("byte", 100), Filter::at_least("day", 0), Filter::at_least("byte", 3)],
        group_by: vec!["flag".into()],
        aggregates: vec![Aggregate::Sum(column("amount") * column("byte")), Aggregate::Max(column("amount"))],
    };
    let query = plan.on(&table).unwrap();
    assert_eq!(name(query.scanned()), ["byte", "day"]);
    assert_eq!(name(query.aggregated()), ["flag", "amount", "byte"]);
    assert_eq!(name(query.fetched()), ["flag", "amount"]);
    // The columns' bounds already tell whether a filter passes all rows or none.
    let all = Plan { filters: vec![Filter::at_most("byte", 255)], ..plan.clone() }.on(&table).unwrap();
    assert!(all.scanned().is_empty());
    let none =
        Plan { filters: vec![Filter::at_least("byte", 256), Filter::at_least("day", 0)], ..plan }.on(&table).unwrap();
    assert!(none.scanned().is_empty());
    assert_eq!(none.alone(1).rows, []);
}

#[test]
fn sums_are_exact_beyond_64_bits_and_possible_overflow_of_128_is_refused() {
    let table = Table::new(vec![Column::of("any", &[i64::MAX, i64::MAX, i64::MIN]).unwrap()]).unwrap();
    let square = || column("any") * column("any");
    let sum = |expr| Plan { aggregates: vec![Aggregate::Sum(expr)], ..Plan::default() }.on(&table);
    let max = i128::from(i64::MAX);
    assert_eq!(sum(column("any") + column("any")).unwrap().alone(1).rows[0].values, [Value::Integer(2 * max - 2)]);
    // Three times 2^126 overflows; twice would not.
    let refused = sum(square()).unwrap_err();
    assert_eq!(refused.to_string(), "sum(any * any) may need more than 128 bits; compute less of it at once");
    assert_eq!(sum(square() * square()).unwrap_err(), PlanError::TooLong { what: "any * any * any * any".into() });
    let greatest = Plan { aggregates: vec![Aggregate::Max(square())], ..Plan::default() };
    assert_eq!(greatest.on(&table).unwrap().alone(1).rows[0].values, [Value::Integer(1 << 126)]);
    assert!(greatest.on(&table).unwrap().sql("t").contains("HUGEINT"));
}

#[test]
fn invalid_plans_are_refused_with_a_remedy() {
    let table = table(10, 1, 0);
    let plan = |group_by: &[&str], expr| Plan {
        filters: Vec::new(),
        group_by: group_by.iter().map(|&name| name.into()).collect(),
        aggregates: vec![Aggregate::Sum(expr)],
    };
    assert_eq!(
        plan(&[], column("price")).on(&table).unwrap_err().to_string(),
        "there is no column price; the table has flag, byte, day, amount, any"
    );
    let any = ["any"; 3];
    assert_eq!(plan(&any, literal(1)).on(&table).unwrap_err(), PlanError::TooManyKeys);
    let deep = (0..200).fold(literal(0), |expr, _| expr + literal(0));
    assert_eq!(plan(&[], deep).on(&table).unwrap_err(), PlanError::TooDeep);
    assert_eq!(Plan::default().on(&table).unwrap_err(), PlanError::Nothing);
}

#[test]
fn mismatched_inputs_are_refused_and_nothing_is_added() {
    let table = table(100, 9, 0);
    let plan = Plan {
        filters: vec![Filter::at_least("day", 0)],
        group_by: vec!["flag".into()],
        aggregates: vec![Aggregate::Sum(column("any"))],
    };
    let query = plan.on(&table).unwrap();
    let (mut selection, mut partial) = (Selection::default(), query.partial());
    let scanned = |rows| query.inputs(query.scanned(), rows);
    assert_eq!(query.scan(0..100, &[], &mut selection).unwrap_err(), InputError::Columns { given: 0, wanted: 1 });
    assert_eq!(
        query.scan(50..101, &scanned(0..51), &mut selection).unwrap_err(),
        InputError::Rows { rows: 50..101, there: 100 }
    );
    let length = InputError::Length { name: "day".into(), given: 200, wanted: 240 };
    assert_eq!(query.scan(0..60, &scanned(0..50), &mut selection).unwrap_err(), length);
    let bytes = query.inputs(query.scanned(), 0..11)[0];
    let misaligned = InputError::Misaligned { name: "day".into(), width: 4 };
    assert_eq!(query.scan(0..10, &[&bytes[2..42]], &mut selection).unwrap_err(), misaligned);
    assert_eq!(selection, Selection::default());

    query.scan(10..20, &scanned(10..20), &mut selection).unwrap();
    let inputs = |rows| query.inputs(query.aggregated(), rows);
    let unscanned = InputError::Unscanned { rows: 15..21, scanned: 10..20 };
    assert_eq!(query.aggregate(15..21, &inputs(15..21), &selection, &mut partial).unwrap_err(), unscanned);
    let other = plan.on(&table).unwrap();
    assert_eq!(other.aggregate(10..20, &inputs(10..20), &selection, &mut partial).unwrap_err(), InputError::Foreign);
    assert_eq!(partial.merge(&other.partial()).unwrap_err(), InputError::Foreign);
    assert_eq!(partial.answer().rows, []);
}

#[test]
fn wrong_copies_are_detected_where_they_would_corrupt_groups_and_never_panic() {
    let table = table(3_000, 9, i64::MAX);
    let lie: Vec<u8> = vec![0xFF; 8 * 3_000];
    for group_by in
        [vec!["flag".into()], vec!["byte".into(), "flag".into()], vec!["day".into(), "amount".into()], vec![]]
    {
        let plan = Plan {
            filters: Vec::new(),
            group_by,
            aggregates: vec![
                Aggregate::Sum(column("amount") - column("flag")),
                Aggregate::Sum(column("amount") * column("byte")),
                Aggregate::Min(column("any")),
            ],
        };
        let query = plan.on(&table).unwrap();
        let (mut selection, mut partial) = (Selection::default(), query.partial());
        query.scan(0..3_000, &[], &mut selection).unwrap();
        let width = |&at: &usize| table.columns()[at].kind().width() * 3_000;
        let aligned = Column::of("lie", &vec![-1_i64; 3_000]).unwrap();
        let lies: Vec<&[u8]> = query.aggregated().iter().map(|at| &aligned.bytes(0..3_000)[..width(at)]).collect();
        assert_eq!(lies[0], &lie[..lies[0].len()]);
        let result = query.aggregate(0..3_000, &lies, &selection, &mut partial);
        // A flag is at most 2.
        let noticed = plan.group_by.contains(&"flag".to_owned());
        assert_eq!(result, if noticed { Err(InputError::Altered) } else { Ok(()) });
        let _ = partial.answer();
    }
}
