//! Parameters as words: `KEY=NUMBER`.

use std::num::NonZero;

/// The most threads. Source: chosen.
const MOST_THREADS: usize = 1024;

/// The parameters of a program: all that it has, those that are not given with their default values.
#[derive(Debug)]
pub(super) struct Parameters(Vec<(&'static str, u64)>);

impl Parameters {
    /// Reads the words; `known` has all keys with their default values.
    ///
    /// # Errors
    /// The word that is none of these.
    pub(super) fn read(words: &[String], known: &[(&'static str, u64)]) -> Result<Parameters, String> {
        let mut all = known.to_vec();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let Some(entry) = all.iter_mut().find(|(known, _)| *known == key) else {
                let keys = known.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ");
                return Err(format!("the program has no parameter '{key}'; use {keys}"));
            };
            entry.1 = value.parse().map_err(|_| format!("'{word}' is not {key}=NUMBER"))?;
        }
        Ok(Parameters(all))
    }

    /// Returns a parameter.
    ///
    /// # Panics
    /// If the program has no such parameter.
    pub(super) fn get(&self, key: &str) -> u64 {
        self.0.iter().find(|(known, _)| *known == key).expect("a parameter of the program").1
    }

    /// Returns a parameter that has to be in a range.
    ///
    /// # Errors
    /// The range.
    pub(super) fn between(&self, key: &str, least: u64, most: u64) -> Result<usize, String> {
        let value = self.get(key);
        match usize::try_from(value) {
            Ok(size) if (least..=most).contains(&value) => Ok(size),
            _ => Err(format!("{key}={value}: use {least} to {most}")),
        }
    }

    /// Returns the number of threads: one for each CPU of this process, unless it is given.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn threads(&self) -> Result<NonZero<usize>, String> {
        let threads = self.between("threads", 0, MOST_THREADS as u64)?;
        Ok(NonZero::new(threads).or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZero::<usize>::MIN))
    }
}
