//! `telpher sim validate`: compares published with simulated numbers.

use super::SimError;
use super::machine::elsewhere;
use crate::args::Validate;
use telpher_claims::published;
use telpher_claims::validation::{SERIES, Validation, validate};

/// Runs the experiments.
pub(crate) fn run(args: &Validate) -> Result<Validation, SimError> {
    for only in &args.only {
        known(only)?;
    }
    Ok(validate(&args.only, elsewhere(&args.elsewhere)?)?)
}

fn known(only: &str) -> Result<(), SimError> {
    let begins = published::claims().iter().any(|claim| claim.id.starts_with(&only.to_uppercase()));
    if !only.is_empty() && (begins || only.eq_ignore_ascii_case(SERIES)) {
        return Ok(());
    }
    let what = "is how no claim begins; claims are called K-021 (Kuper et al.), T-031 (thesis), V-024 (white paper), \
                P-010 (page migration) or A-001, and the raw series are `series`";
    Err(SimError::Not(format!("'{only}' {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_claim_is_refused_with_examples() {
        for only in ["K-021", "k-02", "T", "series", "SERIES"] {
            known(only).unwrap();
        }
        for only in ["", "X-1", "K-021x", "K-999"] {
            let error = known(only).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("'{only}' is how no claim begins")) && error.contains("K-021"),
                "{error}"
            );
        }
    }
}
