//! A queue's answer to one descriptor. Source: SPEC §3.3.

/// A queue's answer to one descriptor. `Retry` is an answer, not an error.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u32)]
pub enum Offer {
    /// The queue owns the descriptor now.
    Taken = 0,
    /// The queue is full, disabled or draining, or does not take this kind of write; it took nothing.
    Retry = 1,
    /// The queue dropped a posted write. Only the queue knows: the write has no answer, so its submitter sees `Taken`.
    Lost = 2,
}

impl Offer {
    /// Returns what the submit instruction tells its program: a posted write has no answer and so looks taken.
    #[inline]
    pub const fn seen_by_submitter(self) -> Self {
        match self {
            Offer::Taken | Offer::Lost => Offer::Taken,
            Offer::Retry => Offer::Retry,
        }
    }

    /// Decodes the number that `as u32` gives; `None` for other numbers.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Offer::Taken),
            1 => Some(Offer::Retry),
            2 => Some(Offer::Lost),
            _ => None,
        }
    }

    /// Returns its name in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Offer::Taken => "taken",
            Offer::Retry => "retry",
            Offer::Lost => "lost",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_survives_its_code_and_only_retry_is_seen() {
        for offer in [Offer::Taken, Offer::Retry, Offer::Lost] {
            assert_eq!(Offer::from_code(offer as u32), Some(offer));
            assert_eq!(offer.seen_by_submitter() == Offer::Retry, offer == Offer::Retry);
            assert_ne!(offer.seen_by_submitter(), Offer::Lost);
        }
        assert_eq!(Offer::from_code(3), None);
    }
}
