//! The line of `/proc/PID/stat`.

/// What is used of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StatLine<'a> {
    pub(super) name: &'a str,
    pub(super) parent: u32,
    pub(super) user_ticks: u64,
    pub(super) system_ticks: u64,
    pub(super) threads: u64,
    pub(super) began_ticks: u64,
    pub(super) resident_pages: u64,
    /// 0 if the kernel has no delay accounting.
    pub(super) disk_wait_ticks: u64,
}

impl<'a> StatLine<'a> {
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        // A name may contain blanks and parentheses; only the last one ends it.
        let (before, after) = text.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let mut fields = after.split_ascii_whitespace();
        let mut skipped = 0;
        // The fields have numbers in proc_pid_stat(5), from 1; the first one after the name has number 3.
        let mut field = |number: usize| {
            let word = fields.nth(number.checked_sub(3 + skipped)?)?;
            skipped = number - 2;
            word.parse::<u64>().ok()
        };
        Some(Self {
            name,
            parent: u32::try_from(field(4)?).ok()?,
            user_ticks: field(14)?,
            system_ticks: field(15)?,
            threads: field(20)?,
            began_ticks: field(22)?,
            resident_pages: field(24)?,
            disk_wait_ticks: field(42).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        let line = "12 (a) b (c)) S 7 1 1 0 -1 4 5 0 0 0 140 150 0 0 20 0 3 0 220 9 240 1 1 1 1 1 1 1 1 1 1 1 1 1 17 1 0 0 42 0";
        let line = StatLine::parse(line).unwrap();
        assert_eq!(
            line,
            StatLine {
                name: "a) b (c)",
                parent: 7,
                user_ticks: 140,
                system_ticks: 150,
                threads: 3,
                began_ticks: 220,
                resident_pages: 240,
                disk_wait_ticks: 42
            }
        );
        for odd in ["", "12 (a", "12 a) S", "12 (a) S 1 2", ")("] {
            assert_eq!(StatLine::parse(odd), None, "{odd}");
        }
    }
}
