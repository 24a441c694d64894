//! Dates and times as text: the proleptic Gregorian calendar, years 1 to 9999.

/// Nanoseconds of a second, and seconds of a day.
const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400;

/// Returns the days from 1970-01-01 to a date given as `YYYY-MM-DD`.
pub(super) fn days(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-');
    let mut part = |len: usize| {
        let digits = parts.next()?;
        (digits.len() == len && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse::<i64>().ok())?
    };
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let of_month = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        _ => return None,
    };
    if year == 0 || day == 0 || day > of_month {
        return None;
    }
    // A year that begins in March has its leap day last; 1970-01-01 is day 719468 from the first of March of the year
    // 0.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Some(365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468)
}

/// Returns `YYYY-MM-DD`, the opposite of [`days`]. Years outside of 0 to 9999 have more digits or a sign.
pub(super) fn date(days: i128) -> String {
    // 400 years have 146097 days, and begin on the first of March.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + i128::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the nanoseconds from 1970-01-01 to a time given as `YYYY-MM-DD[ HH:MM[:SS[.fraction]]]`.
pub(super) fn nanoseconds(text: &str) -> Option<i128> {
    let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let parts: Vec<i128> = clock
        .split(':')
        .map(|part| (part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse().ok())?)
        .collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match parts[..] {
        [hours, minutes] if time == clock => (hours, minutes, 0),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return None,
    };
    let is_fraction = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if hours > 23 || minutes > 59 || seconds > 59 || !is_fraction {
        return None;
    }
    let fraction: i128 = format!("{fraction:0<9}").parse().ok()?;
    let seconds = i128::from(days(date)?) * DAY + hours * 3_600 + minutes * 60 + seconds;
    Some(seconds * SECOND + fraction)
}

/// Returns a time as `YYYY-MM-DD HH:MM:SS[.fraction]`, given a count of units since 1970 and the units of a second: a
/// power of ten up to a billion.
pub(super) fn time(count: i128, per_second: i128) -> String {
    let per_second = per_second.max(1);
    let (seconds, rest) = (count.div_euclid(per_second), count.rem_euclid(per_second));
    let (day, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let mut text = format!("{} {:02}:{:02}:{:02}", date(day), second / 3_600, second / 60 % 60, second % 60);
    if rest > 0 {
        let fraction = format!("{:09}", rest * (SECOND / per_second));
        text += &format!(".{}", fraction.trim_end_matches('0'));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_converted_to_days_and_back_as_in_the_calendar() {
        // Compares with counting day by day.
        let (mut expected, mut last) = (days("0001-01-01").unwrap(), None);
        assert_eq!(days("1970-01-01"), Some(0));
        assert_eq!(days("1998-09-02"), Some(10_471));
        for year in 1..=9999 {
            for month in 1..=12 {
                for day in 1..=31 {
                    let text = format!("{year:04}-{month:02}-{day:02}");
                    if let Some(number) = days(&text) {
                        assert_eq!(number, expected, "{text}");
                        assert_eq!(date(number.into()), text);
                        expected += 1;
                        last = Some((year, month, day));
                    }
                }
            }
        }
        // 400 years have 146097 days.
        assert_eq!(days("2370-01-01"), Some(146_097));
        assert_eq!(last, Some((9999, 12, 31)));
        for wrong in [
            "1900-02-29",
            "2001-13-01",
            "2001-00-01",
            "2001-01-00",
            "0000-01-01",
            "2001-1-1",
            "20010101",
            "",
            "2001-01-01-",
            "+001-01-01",
        ] {
            assert_eq!(days(wrong), None, "{wrong}");
        }
        // Any number is a date, if not one of four digits.
        assert_eq!(date(days("0001-01-01").unwrap() as i128 - 367), "-001-12-31");
        date(i64::MAX.into());
        date(i64::MIN.into());
    }

    #[test]
    fn times_are_converted_to_nanoseconds_and_back() {
        for (text, nanos) in [
            ("1970-01-01 00:00:00", 0),
            ("1969-12-31 23:59:59.999999999", -1),
            ("1998-09-02 13:45:07.5", 904_743_907_500_000_000),
        ] {
            assert_eq!(nanoseconds(text), Some(nanos), "{text}");
            assert_eq!(time(nanos, SECOND), text);
        }
        assert_eq!(nanoseconds("1970-01-02T00:01"), Some((DAY + 60) * SECOND));
        assert_eq!(nanoseconds("1970-01-02"), Some(DAY * SECOND));
        assert_eq!(time(1_500, 1_000), "1970-01-01 00:00:01.5");
        for wrong in
            ["1970-01-01 24:00", "1970-01-01 1:00", "1970-01-01 00:00.5", "1970-01-01 00:00:00.", "1970-01-01 "]
        {
            assert_eq!(nanoseconds(wrong), None, "{wrong}");
        }
    }
}
