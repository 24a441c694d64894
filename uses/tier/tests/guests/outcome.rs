//! Reads a guest's output on its serial line.

/// The results of the tests in a guest.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Outcome {
    /// Its kernel's version.
    pub(crate) kernel: String,
    /// The read latency of each node from the processors of node 0, as reported by the guest's kernel, in nanoseconds.
    pub(crate) latencies: Vec<u32>,
    /// Tests that passed, including those that skipped.
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Tests that skipped.
    pub(crate) skipped: Vec<String>,
    /// Its output, [as shown](shown).
    pub(crate) output: String,
    /// How long it ran.
    pub(crate) seconds: f64,
}

/// Returns a guest's output with a prefix, so that `./test` does not count it as libtest's output of this side.
pub(crate) fn shown(output: &str) -> String {
    output.lines().map(|line| format!("guest: {line}\n")).collect()
}

impl Outcome {
    /// Reads the results from a guest's output.
    ///
    /// # Errors
    /// The tests did not complete.
    pub(crate) fn read(output: &str) -> Result<Outcome, String> {
        let after =
            |begin: &'static str| output.lines().filter_map(move |line| line.strip_prefix(begin)).map(str::trim);
        // For example "ok. 3 passed; 0 failed; ...".
        let result = after("test result: ").next().ok_or("the guest's tests did not complete")?;
        let number = |word: &str| {
            let counts = result.split(['.', ';']).map(str::trim);
            let count = counts.filter_map(|count| count.strip_suffix(word)?.trim().parse().ok()).next();
            count.ok_or_else(|| format!("the result has no number of tests that {word}: {result}"))
        };
        let (passed, failed) = (number("passed")?, number("failed")?);
        let ended = after("ended: ").next().ok_or("the guest's tests ended, but their program did not")?;
        if ended != "0" && failed == 0 {
            return Err(format!("the test program ended with status {ended}"));
        }
        let latencies = after("latency: ").map(|number| number.parse().unwrap_or(0)).collect();
        // One line per skip, possibly in the middle of a line of libtest.
        let skips = output.lines().filter_map(|line| line.split_once("SKIPPED: "));
        let skipped = skips.filter_map(|(_, skip)| Some(skip.split_once(':')?.0.to_owned())).collect();
        let kernel = after("kernel: ").next().unwrap_or_default().to_owned();
        Ok(Outcome { kernel, latencies, passed, failed, skipped, output: shown(output), seconds: 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "kernel: 6.12\nlatency: 100\nlatency: 300\n\nrunning 3 tests\ntest a ... ok\n\
        test b ... SKIPPED: b: this machine has one node: a\nok\ntest c ... FAILED\n\n\
        test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\nended: 101\n";

    #[test]
    fn a_guests_output_is_read() {
        let outcome = Outcome::read(SAID).unwrap();
        assert_eq!((outcome.kernel.as_str(), &outcome.latencies[..]), ("6.12", &[100, 300][..]));
        assert_eq!((outcome.passed, outcome.failed, &outcome.skipped[..]), (2, 1, &["b".to_owned()][..]));
    }

    #[test]
    fn an_incomplete_guest_run_is_an_error() {
        for end in ["test result", "ended"] {
            let broken = SAID.split(end).next().unwrap();
            assert!(Outcome::read(broken).is_err(), "{broken}");
        }
        let killed = SAID.replace("FAILED. 2 passed; 1", "ok. 2 passed; 0").replace("101", "139");
        assert!(Outcome::read(&killed).is_err());
    }
}
