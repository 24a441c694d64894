//! Parts of the configuration: structs whose keys are known, and whose errors name the key and the position.

use serde::de;
use std::fmt::Display;

/// Declares a part of the configuration. Each field is a key, with its default; its documentation is the contract of
/// the key. A key that is unknown or given twice is refused. `Check::check` looks at the whole part.
macro_rules! part {
    (
        $(#[$meta:meta])*
        pub struct $part:ident {
            $( $(#[doc = $doc:literal])+ pub $key:ident : $type:ty = $default:expr ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Debug, serde::Serialize)]
        pub struct $part {
            $( $(#[doc = $doc])+ pub $key: $type, )*
        }

        impl Default for $part {
            fn default() -> $part {
                $part { $( $key: $default, )* }
            }
        }

        impl $part {
            /// The keys.
            pub const KEYS: &'static [&'static str] = &[$( stringify!($key) ),*];
        }

        impl<'de> serde::Deserialize<'de> for $part {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$part, D::Error> {
                struct Visitor;

                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $part;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        write!(f, "an object with the keys {}", $part::KEYS.join(", "))
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$part, A::Error> {
                        let mut part = $part::default();
                        let mut seen: Vec<String> = Vec::new();
                        while let Some(key) = map.next_key::<String>()? {
                            if seen.contains(&key) {
                                return Err(serde::de::Error::custom(format_args!("the key '{key}' is given twice")));
                            }
                            match key.as_str() {
                                $(
                                    stringify!($key) => {
                                        part.$key = map.next_value().map_err(|error| crate::keys::under(&key, error))?;
                                    }
                                )*
                                _ => return Err(crate::keys::unknown(&key, $part::KEYS)),
                            }
                            seen.push(key);
                        }
                        crate::keys::Check::check(&part).map_err(serde::de::Error::custom)?;
                        Ok(part)
                    }
                }

                deserializer.deserialize_map(Visitor)
            }
        }
    };
}
pub(crate) use part;

/// What a part requires of all its keys together.
pub(crate) trait Check {
    /// Returns a sentence if the values do not fit together.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The error of a value, with its key. `serde_json` takes the position from the end of the text.
pub(crate) fn under<E: de::Error>(key: &str, error: impl Display) -> E {
    E::custom(format_args!("{key}: {error}"))
}

/// The error for a key that does not exist.
pub(crate) fn unknown<E: de::Error>(key: &str, known: &[&str]) -> E {
    let nearest = known.iter().min_by_key(|other| distance(key, other));
    match nearest.filter(|other| distance(key, other) <= 1 + key.len() / 3) {
        Some(nearest) => E::custom(format_args!("unknown key '{key}'; the nearest known key is '{nearest}'")),
        None => E::custom(format_args!("unknown key '{key}'; known keys are {}", known.join(", "))),
    }
}

/// The number of characters to insert, remove or replace between two texts (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, one) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for column in 0..to.len() {
            let replaced = diagonal + usize::from(to[column] != one);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_single_changes() {
        for (from, to, count) in
            [("", "", 0), ("nqn", "nqn", 0), ("nqm", "nqn", 1), ("", "abc", 3), ("flaw", "lawn", 2)]
        {
            assert_eq!(distance(from, to), count, "{from} {to}");
        }
    }
}
