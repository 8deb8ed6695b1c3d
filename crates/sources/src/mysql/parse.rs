//! Dates, times and members of enumerations in text, without the server's leniency.

/// Digits of a fraction of a second.
const PLACES_MAX: usize = 9;

/// Days from 1970, and nanoseconds of the day, of `YYYY-MM-DD`, or `YYYY-MM-DD HH:MM:SS` with a fraction and `Z` if
/// wanted.
pub(super) fn timestamp(text: &str) -> Option<(i64, i64)> {
    let (date, rest) = text.split_at_checked(10)?;
    let date: Vec<_> = date.split('-').collect();
    let [year, month, day] = date[..] else { return None };
    let (year, month, day) = (number(year, 4)?, number(month, 2)?, number(day, 2)?);
    let (month, day) = (u8::try_from(month).ok()?, u8::try_from(day).ok()?);
    let days = super::values::days(u16::try_from(year).ok()?, month, day).ok()?;
    if rest.is_empty() {
        return Some((days.into(), 0));
    }
    let time = rest.strip_prefix([' ', 'T'])?;
    let ns = time_of_day(time.strip_suffix('Z').unwrap_or(time))?;
    (ns < 86_400_000_000_000).then_some((days.into(), ns))
}

/// Nanoseconds of `[-]H…:MM:SS`, with a fraction if wanted.
pub(super) fn time(text: &str) -> Option<i128> {
    match text.strip_prefix('-') {
        Some(text) => Some(-i128::from(time_of_day(text)?)),
        None => Some(time_of_day(text)?.into()),
    }
}

fn time_of_day(text: &str) -> Option<i64> {
    let (clock, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<_> = clock.split(':').collect();
    let [hours, minutes, seconds] = parts[..] else { return None };
    if hours.len() > 3 || fraction.len() > PLACES_MAX {
        return None;
    }
    let (hours, minutes, seconds) = (number(hours, hours.len())?, number(minutes, 2)?, number(seconds, 2)?);
    let zeros = u32::try_from(PLACES_MAX - fraction.len()).ok()?;
    let ns = number(fraction, fraction.len())? * 10i64.pow(zeros);
    (minutes < 60 && seconds < 60).then(|| (hours * 3600 + minutes * 60 + seconds) * 1_000_000_000 + ns)
}

/// A number with exactly this many digits.
fn number(text: &str, digits: usize) -> Option<i64> {
    let is_number = digits > 0 && text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The members in a type like `enum('a','it''s')`.
pub(super) fn members(column_type: &str) -> Vec<String> {
    let mut members = Vec::new();
    let mut rest = column_type;
    while let Some((_, member)) = rest.split_once('\'') {
        let mut text = String::new();
        let mut chars = member.char_indices().peekable();
        let mut end = member.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\'' if chars.peek().is_some_and(|(_, next)| *next == '\'') => {
                    chars.next();
                    text.push('\'');
                }
                '\'' => {
                    end = at + 1;
                    break;
                }
                c => text.push(c),
            }
        }
        members.push(text);
        rest = &member[end..];
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times_are_parsed() {
        assert_eq!(timestamp("1970-01-02"), Some((1, 0)));
        assert_eq!(timestamp("1970-01-01T00:00:01.25Z"), Some((0, 1_250_000_000)));
        assert_eq!(timestamp("1969-12-31 23:59:59"), Some((-1, 86_399_000_000_000)));
        for text in [
            "",
            "1970-1-1",
            "1970-01-32",
            "1970-01-01 ",
            "1970-01-01 24:00:00",
            "1970-01-01 1:2",
            "ä970-01-01x",
        ] {
            assert_eq!(timestamp(text), None, "{text}");
        }
        assert_eq!(time("-838:59:59"), Some(-3_020_399_000_000_000));
        assert_eq!(time("00:00:00.000001"), Some(1000));
        for text in ["1", "1:60:00", "00:00:00.", "00:00:00.0000000001", "9999:00:00", "+1:00:00"] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn members_are_found() {
        assert_eq!(members("enum('a','it''s',' b,c')"), ["a", "it's", " b,c"]);
        assert_eq!(members("set('')"), [""]);
        assert!(members("enum()").is_empty());
    }
}
