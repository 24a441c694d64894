//! Sets of metrics: a struct with named fields, and the table that describes them.

use crate::metric::{Kind, Metric};
use std::marker::PhantomData;
use std::time::Duration;

/// A value that is one or several 64-bit words: a field of a set of metrics, or the whole set.
pub trait Record: Copy + Default {
    /// Its number of words.
    const WORDS: usize;

    /// Passes its words to `put`, in order.
    fn each(&self, put: &mut (impl FnMut(u64) + ?Sized));

    /// Creates it from the words that `next` returns.
    fn build(next: &mut (impl FnMut() -> u64 + ?Sized)) -> Self;

    /// Combines each of its words with the other's, in order. Allocates nothing.
    #[must_use]
    fn combine(&self, other: &Self, of: &mut impl FnMut(u64, u64) -> u64) -> Self;

    /// Returns the sum of its words, at most `u64::MAX`.
    #[must_use]
    fn total(&self) -> u64 {
        let mut total = 0_u64;
        self.each(&mut |word| total = total.saturating_add(word));
        total
    }

    /// Returns its words in a new list.
    #[must_use]
    fn words(&self) -> Vec<u64> {
        let mut words = Vec::with_capacity(Self::WORDS);
        self.each(&mut |word| words.push(word));
        words
    }
}

impl Record for u64 {
    const WORDS: usize = 1;

    #[inline]
    fn each(&self, put: &mut (impl FnMut(u64) + ?Sized)) {
        put(*self);
    }

    #[inline]
    fn build(next: &mut (impl FnMut() -> u64 + ?Sized)) -> u64 {
        next()
    }

    #[inline]
    fn combine(&self, other: &u64, of: &mut impl FnMut(u64, u64) -> u64) -> u64 {
        of(*self, *other)
    }
}

impl Record for bool {
    const WORDS: usize = 1;

    fn each(&self, put: &mut (impl FnMut(u64) + ?Sized)) {
        put((*self).into());
    }

    fn build(next: &mut (impl FnMut() -> u64 + ?Sized)) -> bool {
        next() != 0
    }

    fn combine(&self, other: &bool, of: &mut impl FnMut(u64, u64) -> u64) -> bool {
        of((*self).into(), (*other).into()) != 0
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// In nanoseconds, up to 584 years.
impl Record for Duration {
    const WORDS: usize = 1;

    fn each(&self, put: &mut (impl FnMut(u64) + ?Sized)) {
        put(nanos(*self));
    }

    fn build(next: &mut (impl FnMut() -> u64 + ?Sized)) -> Duration {
        Duration::from_nanos(next())
    }

    fn combine(&self, other: &Duration, of: &mut impl FnMut(u64, u64) -> u64) -> Duration {
        Duration::from_nanos(of(nanos(*self), nanos(*other)))
    }
}

impl<const N: usize> Record for [u64; N]
where
    [u64; N]: Default,
{
    const WORDS: usize = N;

    fn each(&self, put: &mut (impl FnMut(u64) + ?Sized)) {
        self.iter().for_each(|word| put(*word));
    }

    fn build(next: &mut (impl FnMut() -> u64 + ?Sized)) -> [u64; N] {
        std::array::from_fn(|_| next())
    }

    fn combine(&self, other: &[u64; N], of: &mut impl FnMut(u64, u64) -> u64) -> [u64; N] {
        std::array::from_fn(|at| of(self[at], other[at]))
    }
}

/// A struct of values with a table that describes them. The macro [`metrics!`](crate::metrics!) implements it.
pub trait MetricSet: Record {
    /// The description of each word, in the order of the words.
    const METRICS: &'static [Metric];

    /// Returns the sum of two writers' values: of gauges, too.
    #[must_use]
    fn plus(&self, other: &Self) -> Self {
        self.combine(other, &mut u64::saturating_add)
    }

    /// Returns what happened since an earlier snapshot: the difference of counters, the present value of gauges. A
    /// counter that is smaller than before counts as unchanged.
    #[must_use]
    fn since(&self, earlier: &Self) -> Self {
        let mut metrics = Self::METRICS.iter();
        self.combine(earlier, &mut |now, before| match metrics.next().map(|metric| metric.kind) {
            Some(Kind::Counter) => now.saturating_sub(before),
            _ => now,
        })
    }
}

/// The place of a field of the set `S`. For an array, the place of its first element.
#[derive(Debug)]
pub struct Position<S>(usize, PhantomData<fn() -> S>);

impl<S> Clone for Position<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Position<S> {}

impl<S> Position<S> {
    #[doc(hidden)]
    #[must_use]
    pub const fn new(index: usize) -> Self {
        Position(index, PhantomData)
    }

    /// Returns the place of a field of the nested set that is at this place.
    #[inline]
    #[must_use]
    pub const fn field<T>(self, nested: Position<T>) -> Position<S> {
        Position(self.0 + nested.0, PhantomData)
    }

    /// Returns the index of its word in the set and of its description in [`MetricSet::METRICS`].
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// Writes a field's descriptions into a table from row `at` on; returns the next free row.
#[doc(hidden)]
#[must_use]
pub const fn push(table: &mut [Metric], at: usize, metric: Metric, values: Option<&[&'static str]>) -> usize {
    let (labels, rows) = match values {
        Some(values) => (values, values.len()),
        None => (&[] as &[&str], 1),
    };
    let mut row = 0;
    while row < rows {
        let mut metric = metric;
        if row < labels.len() {
            metric.label = match metric.label {
                Some((key, _)) => Some((key, labels[row])),
                None => panic!("only a metric with a label has values of it"),
            };
        }
        if let Some(rule) = metric.broken_rule() {
            panic!("{}", rule);
        }
        table[at + row] = metric;
        row += 1;
    }
    at + rows
}

/// Writes the descriptions of a nested set into a table from row `at` on; returns the next free row.
#[doc(hidden)]
#[must_use]
pub const fn extend(table: &mut [Metric], at: usize, nested: &[Metric]) -> usize {
    let mut row = 0;
    while row < nested.len() {
        table[at + row] = nested[row];
        row += 1;
    }
    at + nested.len()
}

/// Declares a set of metrics once: the struct, its arithmetic, and the table that describes its values.
///
/// ```
/// telpher_metrics::metrics! {
///     /// What a mill has done.
///     pub struct Mill {
///         /// Sacks that were ground.
///         pub sacks: u64 = counter "telpher_mill_sacks_total",
///         /// Time that its stones turned.
///         pub turning: std::time::Duration = counter(Seconds) "telpher_mill_turning_seconds_total",
///         /// Sacks of flour in its barn.
///         pub stored: u64 = gauge "telpher_mill_stored_sacks",
///         /// Sacks sent back because they were wet, and because they were torn.
///         pub refused: [u64; 2] = counter "telpher_mill_refused_sacks_total" by reason ["wet", "torn"],
///     }
/// }
///
/// let mut mill = Mill { sacks: 3, stored: 5, ..Mill::default() };
/// let before = mill;
/// mill.sacks += 2;
/// mill.stored -= 1;
/// mill.refused[1] += 1;
/// let since = mill - before;
/// assert_eq!((since.sacks, since.stored), (2, 4)); // counters are subtracted, gauges are as they are now
/// let (metric, value) = since.values().last().unwrap();
/// assert_eq!((metric.name, metric.label, value), ("telpher_mill_refused_sacks_total", Some(("reason", "torn")), 1));
/// ```
///
/// A field is `name: TYPE = KIND(UNIT) "NAME" by LABEL VALUES => HELP`:
/// - TYPE is `u64`, `bool`, `Duration`, an array of `u64`, or another set, with `= set` in place of the rest;
/// - KIND is `counter` or `gauge`; UNIT is a variant of [`Unit`], [`Unit::Count`] without `(UNIT)`;
/// - VALUES is a slice of one label value for each word of the field; `by LABEL VALUES` may be missing;
/// - HELP is the field's documentation if it is missing. Metrics that share a name have the same HELP.
///
/// The struct derives `Clone`, `Copy`, `PartialEq`, `Eq`, `Debug` and `Default`. It gets
/// - `METRICS`, the table, and `values()`, each description with its value;
/// - `AT`, the [`Position`] of each field;
/// - `+`, `+=`, `-` and `sum()`, see [`MetricSet::plus`] and [`MetricSet::since`].
///
/// A description that breaks a [rule](Metric::broken_rule) does not compile:
///
/// ```compile_fail
/// telpher_metrics::metrics! {
///     /// What a mill has done.
///     pub struct Mill {
///         /// Sacks that were ground.
///         pub sacks: u64 = counter "telpher_mill_sacks", // a counter ends in _total
///     }
/// }
/// ```
///
/// [`Unit`]: crate::Unit
/// [`Unit::Count`]: crate::Unit::Count
/// [`Position`]: crate::Position
/// [`MetricSet::plus`]: crate::MetricSet::plus
/// [`MetricSet::since`]: crate::MetricSet::since
#[macro_export]
macro_rules! metrics {
    (
        $(#[$meta:meta])*
        $vis:vis struct $set:ident {
            $(
                $(#[doc = $doc:literal])+
                $field_vis:vis $field:ident : $type:ty = $kind:ident $(($unit:ident))?
                $($name:literal $(by $label:ident $values:expr)? $(=> $help:expr)?)?
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        $vis struct $set {
            $($(#[doc = $doc])+ $field_vis $field: $type,)*
        }

        impl $crate::Record for $set {
            const WORDS: usize = 0 $(+ <$type as $crate::Record>::WORDS)*;

            #[inline]
            fn each(&self, put: &mut (impl FnMut(u64) + ?Sized)) {
                $($crate::Record::each(&self.$field, put);)*
            }

            #[inline]
            fn build(next: &mut (impl FnMut() -> u64 + ?Sized)) -> Self {
                $set { $($field: $crate::Record::build(next)),* }
            }

            #[inline]
            fn combine(&self, other: &Self, of: &mut impl FnMut(u64, u64) -> u64) -> Self {
                $set { $($field: $crate::Record::combine(&self.$field, &other.$field, of)),* }
            }
        }

        impl $crate::MetricSet for $set {
            const METRICS: &'static [$crate::Metric] = $set::METRICS;
        }

        #[allow(dead_code, unreachable_pub, reason = "a set may be private, and may need only some of these")]
        impl $set {
            /// The description of each value.
            pub const METRICS: &'static [$crate::Metric] = {
                const WORDS: usize = <$set as $crate::Record>::WORDS;
                const EMPTY: $crate::Metric = $crate::Metric {
                    name: "",
                    field: "",
                    label: None,
                    kind: $crate::Kind::Counter,
                    unit: $crate::Unit::Count,
                    help: "",
                };
                const TABLE: [$crate::Metric; WORDS] = {
                    let mut table = [EMPTY; WORDS];
                    let mut at = 0;
                    $(
                        at = $crate::__row! {
                            (&mut table, at) [$($doc)+] $field: $type = $kind $(($unit))?
                            $($name $(by $label $values)? $(=> $help)?)?
                        };
                    )*
                    assert!(at == WORDS, "a field has a label value for each of its words");
                    table
                };
                &TABLE
            };

            /// Returns each value with its description.
            pub fn values(&self) -> impl Iterator<Item = (&'static $crate::Metric, u64)> {
                $set::METRICS.iter().zip($crate::Record::words(self))
            }
        }

        const _: () = {
            /// The position of each field.
            #[derive(Clone, Copy, Debug)]
            #[allow(dead_code, missing_docs, unreachable_pub, reason = "the fields are documented in the set")]
            pub struct Positions {
                $($field_vis $field: $crate::Position<$set>,)*
            }

            #[allow(dead_code, unreachable_pub, unused_assignments, reason = "a set may need only some of these")]
            impl $set {
                /// The position of each field.
                pub const AT: Positions = {
                    let mut at = 0;
                    Positions {
                        $($field: {
                            let position = $crate::Position::new(at);
                            at += <$type as $crate::Record>::WORDS;
                            position
                        },)*
                    }
                };
            }
        };

        impl ::std::ops::Add for $set {
            type Output = $set;

            fn add(self, other: $set) -> $set {
                $crate::MetricSet::plus(&self, &other)
            }
        }

        impl ::std::ops::AddAssign for $set {
            fn add_assign(&mut self, other: $set) {
                *self = *self + other;
            }
        }

        impl ::std::ops::Sub for $set {
            type Output = $set;

            fn sub(self, earlier: $set) -> $set {
                $crate::MetricSet::since(&self, &earlier)
            }
        }

        impl ::std::iter::Sum for $set {
            fn sum<I: Iterator<Item = $set>>(sets: I) -> $set {
                sets.fold($set::default(), |sum, set| sum + set)
            }
        }
    };
}

/// Writes the rows of one field of [`metrics!`] into the table.
#[doc(hidden)]
#[macro_export]
macro_rules! __row {
    (($table:expr, $at:expr) [$($doc:literal)+] $field:ident : $type:ty = set) => {
        $crate::private::extend($table, $at, <$type as $crate::MetricSet>::METRICS)
    };
    (($table:expr, $at:expr) [$($doc:literal)+] $field:ident : $type:ty = counter $($rest:tt)+) => {
        $crate::__row!(@kind ($table, $at) [$($doc)+] $field Counter $($rest)+)
    };
    (($table:expr, $at:expr) [$($doc:literal)+] $field:ident : $type:ty = gauge $($rest:tt)+) => {
        $crate::__row!(@kind ($table, $at) [$($doc)+] $field Gauge $($rest)+)
    };
    (@kind ($table:expr, $at:expr) [$($doc:literal)+] $field:ident $kind:ident ($unit:ident) $($rest:tt)+) => {
        $crate::__row!(@unit ($table, $at) [$($doc)+] $field $kind $unit $($rest)+)
    };
    (@kind ($table:expr, $at:expr) [$($doc:literal)+] $field:ident $kind:ident $($rest:tt)+) => {
        $crate::__row!(@unit ($table, $at) [$($doc)+] $field $kind Count $($rest)+)
    };
    (@unit ($table:expr, $at:expr) [$($doc:literal)+] $field:ident $kind:ident $unit:ident
        $name:literal $(by $label:ident $values:expr)?) => {
        $crate::__row!(@unit ($table, $at) [$($doc)+] $field $kind $unit
            $name $(by $label $values)? => (concat!($($doc),+)))
    };
    (@unit ($table:expr, $at:expr) [$($doc:literal)+] $field:ident $kind:ident $unit:ident
        $name:literal $(by $label:ident $values:expr)? => $help:expr) => {{
        #[allow(unused_mut, unused_assignments, reason = "without a label both stay as they are")]
        let (mut label, mut values): (Option<(&'static str, &'static str)>, Option<&[&'static str]>) = (None, None);
        $(
            label = Some((stringify!($label), ""));
            values = Some(&$values);
        )?
        let metric = $crate::Metric {
            name: $name,
            field: stringify!($field),
            label,
            kind: $crate::Kind::$kind,
            unit: $crate::Unit::$unit,
            help: $help.trim_ascii(),
        };
        $crate::private::push($table, $at, metric, values)
    }};
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::metric::Unit;

    metrics! {
        /// A nested set.
        struct Inner {
            /// A flag.
            on: bool = gauge "telpher_test_on",
            /// Times.
            times: [u64; 2] = counter "telpher_test_times_total" by side ["left", "right"] => "Times, by side.",
        }
    }

    metrics! {
        /// All types of fields.
        pub(crate) struct Outer {
            /// Things, of
            /// some kind.
            pub(crate) things: u64 = counter "telpher_test_things_total",
            /// The nested set.
            inner: Inner = set,
            /// Waiting.
            pub(crate) waiting: Duration = counter(Seconds) "telpher_test_waiting_seconds_total",
            /// Bytes held.
            bytes: u64 = gauge(Bytes) "telpher_test_held_bytes",
        }
    }

    fn outer(things: u64, on: bool, times: [u64; 2], waiting: u64, bytes: u64) -> Outer {
        Outer { things, inner: Inner { on, times }, waiting: Duration::from_nanos(waiting), bytes }
    }

    #[test]
    fn the_table_has_a_row_for_each_word_in_the_order_of_the_fields() {
        let rows: Vec<_> = Outer::METRICS.iter().map(|row| (row.name, row.field, row.label, row.unit)).collect();
        let expected = [
            ("telpher_test_things_total", "things", None, Unit::Count),
            ("telpher_test_on", "on", None, Unit::Count),
            ("telpher_test_times_total", "times", Some(("side", "left")), Unit::Count),
            ("telpher_test_times_total", "times", Some(("side", "right")), Unit::Count),
            ("telpher_test_waiting_seconds_total", "waiting", None, Unit::Seconds),
            ("telpher_test_held_bytes", "bytes", None, Unit::Bytes),
        ];
        assert_eq!(rows, expected);
        assert_eq!(Outer::METRICS[0].help, "Things, of some kind.");
        assert_eq!(Outer::METRICS[2].help, "Times, by side.");
        let at = Outer::AT;
        assert_eq!(
            [at.things.index(), at.inner.index(), at.waiting.index(), at.bytes.index()],
            [0, 1, 4, 5],
            "positions are those of the rows"
        );
        assert_eq!(at.inner.field(Inner::AT.times).index(), 2);
    }

    #[test]
    fn a_set_is_built_from_its_own_words() {
        let set = outer(1, true, [2, 3], 4, 5);
        assert_eq!((set.words(), set.total()), (vec![1, 1, 2, 3, 4, 5], 16));
        let mut words = set.words().into_iter();
        assert_eq!(Outer::build(&mut || words.next().unwrap()), set);
        let named: Vec<_> = set.values().map(|(metric, value)| (metric.field, value)).collect();
        assert_eq!(named, [("things", 1), ("on", 1), ("times", 2), ("times", 3), ("waiting", 4), ("bytes", 5)]);
    }

    #[test]
    fn counters_are_subtracted_and_gauges_are_kept() {
        let (before, now) = (outer(1, true, [2, 3], 4, 9), outer(11, false, [2, 4], 40, 5));
        assert_eq!(now - before, outer(10, false, [0, 1], 36, 5));
        assert_eq!(before - now, outer(0, true, [0, 0], 0, 9), "a counter that shrank counts as unchanged");
    }

    #[test]
    fn writers_are_added_without_overflow() {
        let (one, other) = (outer(1, false, [2, 3], 4, 5), outer(u64::MAX, true, [1, 1], 1, 1));
        let sum = outer(u64::MAX, true, [3, 4], 5, 6);
        assert_eq!((one + other, [one, other].into_iter().sum::<Outer>()), (sum, sum));
    }

    #[test]
    fn a_time_beyond_five_centuries_is_cut() {
        let long = Duration::from_secs(u64::MAX);
        assert_eq!(long.words(), [u64::MAX]);
    }
}
