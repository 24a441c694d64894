//! Finds the heat from which hot pages stand out from the others.

/// The least distance between the means of both groups, in units of the sum of their deviations. Source: chosen; the
/// two halves of a normal distribution are 1.3 apart, those of an exponential one 1.4.
const APART: f64 = 2.0;
/// The least distance in heat: two doublings.
const LEAST: f64 = 64.0;

/// Returns the heat from which pages stand out, given the number of pages of each heat; none if these do not form two
/// groups.
///
/// Otsu's threshold (1979) splits them so that both groups are as narrow as possible.
#[must_use]
pub fn valley(heats: &[u64; 256]) -> Option<u8> {
    let all = Sum::of(heats, 0..256);
    let mut below = Sum::default();
    let mut best = (0.0, None);
    for (heat, &pages) in heats.iter().enumerate() {
        below.add(heat, pages);
        let above = all.less(&below);
        if below.pages == 0.0 || above.pages == 0.0 {
            continue;
        }
        let between = below.pages * above.pages * (above.mean() - below.mean()).powi(2);
        if between > best.0 {
            best = (between, Some((below.clone(), above)));
        }
    }
    let (below, above) = best.1?;
    let apart = above.mean() - below.mean();
    let narrow = apart >= APART * (above.deviation() + below.deviation());
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two bytes")]
    (narrow && apart >= LEAST).then(|| f64::midpoint(above.mean(), below.mean()).round() as u8)
}

/// The number of pages, the sum of their heats, and the sum of the squares.
#[derive(Clone, Debug, Default)]
struct Sum {
    pages: f64,
    heat: f64,
    squares: f64,
}

impl Sum {
    fn of(heats: &[u64; 256], range: std::ops::Range<usize>) -> Sum {
        let mut sum = Sum::default();
        range.for_each(|heat| sum.add(heat, heats[heat]));
        sum
    }

    fn add(&mut self, heat: usize, pages: u64) {
        let (heat, pages) = (heat as f64, pages as f64);
        self.pages += pages;
        self.heat += heat * pages;
        self.squares += heat * heat * pages;
    }

    fn less(&self, other: &Sum) -> Sum {
        Sum { pages: self.pages - other.pages, heat: self.heat - other.heat, squares: self.squares - other.squares }
    }

    fn mean(&self) -> f64 {
        self.heat / self.pages
    }

    fn deviation(&self) -> f64 {
        (self.squares / self.pages - self.mean().powi(2)).max(0.0).sqrt()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of pages, made up")]

    use super::*;

    fn heats(bells: &[(f64, f64, f64)]) -> [u64; 256] {
        std::array::from_fn(|heat| {
            let at = |&(mean, deviation, pages): &(f64, f64, f64)| {
                pages * (-((heat as f64 - mean) / deviation).powi(2) / 2.0).exp() / deviation / 2.5
            };
            bells.iter().map(at).sum::<f64>() as u64
        })
    }

    #[test]
    fn hot_pages_stand_out_where_there_are_two_kinds() {
        for hot in [0.03, 0.1, 0.5] {
            let pages = 100_000.0;
            let two = heats(&[(29.0, 15.0, (1.0 - hot) * pages), (200.0, 25.0, hot * pages)]);
            assert!(valley(&two).is_some_and(|at| (80..150).contains(&at)), "{hot}: {:?}", valley(&two));
        }
        assert_eq!(valley(&heats(&[(120.0, 25.0, 1e5)])), None, "one group");
        assert_eq!(valley(&heats(&[(100.0, 15.0, 1e5), (140.0, 15.0, 1e5)])), None, "two groups that are too close");
        let fading = std::array::from_fn(|heat| (1e5 * (-(heat as f64) / 30.0).exp()) as u64);
        assert_eq!(valley(&fading), None, "a monotonic decay");
        assert_eq!((valley(&[0; 256]), valley(&heats(&[(0.0, 1.0, 1e5)]))), (None, None));
    }
}
