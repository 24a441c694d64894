//! An error and its causes as one sentence.

use std::error::Error;

/// The error's text, followed by the text of each cause, with colons between them.
///
/// ```
/// let error = std::io::Error::other("disk full");
/// assert_eq!(telpher_os::chain(&error), "disk full");
/// ```
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open {0}")]
    struct Open(&'static str, #[source] std::io::Error);

    #[test]
    fn causes_follow_the_error_in_order() {
        let error = Open("wq0.0", std::io::Error::other("device is busy"));
        assert_eq!(chain(&error), "cannot open wq0.0: device is busy");
    }
}
