//! What a program computes, how long it takes, and why it may fail.

use std::time::Instant;

/// Why a program has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// A parameter is out of its range.
    Usage(String),
    /// There is too little memory.
    Memory(u64),
    /// A result or the data is wrong.
    Wrong(String),
}

/// What a program computed.
#[derive(Debug)]
pub(super) struct Answer {
    /// The sizes, for people.
    pub(super) what: String,
    /// A sum over all results.
    pub(super) checksum: u64,
}

/// The times of the three phases: setting up, working, checking.
#[derive(Debug)]
pub(super) struct Clock {
    begin: Instant,
    pub(super) seconds: Vec<f64>,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { begin: Instant::now(), seconds: Vec::new() }
    }

    /// Ends a phase.
    pub(super) fn lap(&mut self) {
        self.seconds.push(self.begin.elapsed().as_secs_f64());
        self.begin = Instant::now();
    }
}

/// Allocates a vector for `len` elements.
pub(super) fn vector<T>(len: usize) -> Result<Vec<T>, Failure> {
    let mut vector = Vec::new();
    let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
    vector.try_reserve_exact(len).map_err(|_| Failure::Memory(bytes))?;
    Ok(vector)
}
