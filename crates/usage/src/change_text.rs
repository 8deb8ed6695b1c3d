//! Changes as text, as users write them: `cpu=2,disk=1.5,nodes=1:6`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Result, UsageError};
use crate::what_if::{Change, NodesChange};

/// The text of no change.
const NONE: &str = "none";
/// What a text may contain, for errors.
const EXPECTED: &str = "expected NAME=FACTOR, separated by commas, where NAME is cpu, disk, disk-sequential, \
                        disk-random, network or round-trip; nodes=N or nodes=FROM:TO; divided=FRACTION; or none";

impl FromStr for Change {
    type Err = UsageError;

    /// Reads a change: factors of speeds, such as `cpu=2,network=10`, separated by commas. `disk` stands for
    /// `disk-sequential` and `disk-random`. `nodes=6` is a change from one node to six, `nodes=3:6` one from three
    /// nodes; `divided=0.9` says that nine tenths of their work is divided, and all of it without that. `none` is no
    /// change.
    ///
    /// # Errors
    /// [`UsageError::ChangeText`] if it can't be read, and [`UsageError::OutOfRange`] if a factor is out of range.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| UsageError::ChangeText { text: shown(text), why };
        let mut change = Self::default();
        if text.trim() == NONE {
            return Ok(change);
        }
        let (mut nodes, mut divided) = (None, None);
        let mut seen: Vec<&str> = Vec::new();
        for item in text.split(',').map(str::trim) {
            let (name, value) = item.split_once('=').ok_or_else(|| wrong(EXPECTED.into()))?;
            let (name, value) = (name.trim(), value.trim());
            let names: &[&str] = if name == "disk" { &["disk-sequential", "disk-random"] } else { &[name] };
            if names.iter().any(|name| seen.contains(name)) {
                return Err(wrong(format!("{} is given twice", shown(name))));
            }
            seen.extend(names);
            if name == "nodes" {
                let (from, to) = value.split_once(':').unwrap_or(("1", value));
                let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong(EXPECTED.into()));
                nodes = Some((number(from)?, number(to)?));
                continue;
            }
            let factor = value.parse::<f64>().map_err(|_| wrong(EXPECTED.into()))?;
            match name {
                "cpu" => change.cpu = factor,
                "disk" => (change.disk_sequential, change.disk_random) = (factor, factor),
                "disk-sequential" => change.disk_sequential = factor,
                "disk-random" => change.disk_random = factor,
                "network" => change.network = factor,
                "round-trip" => change.round_trip = factor,
                "divided" => divided = Some(factor),
                _ => return Err(wrong(EXPECTED.into())),
            }
        }
        if divided.is_some() && nodes.is_none() {
            return Err(wrong("divided needs nodes".into()));
        }
        change.nodes = nodes.map(|(from, to)| NodesChange { from, to, divided: divided.unwrap_or(1.0) });
        change.check()?;
        Ok(change)
    }
}

impl fmt::Display for Change {
    /// Writes the text that [`Change::from_str`] reads.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = Vec::new();
        let mut add = |name: &str, factor: f64| {
            if factor != 1.0 {
                items.push(format!("{name}={factor}"));
            }
        };
        add("cpu", self.cpu);
        if self.disk_sequential == self.disk_random {
            add("disk", self.disk_random);
        } else {
            add("disk-sequential", self.disk_sequential);
            add("disk-random", self.disk_random);
        }
        add("network", self.network);
        add("round-trip", self.round_trip);
        if let Some(NodesChange { from, to, divided }) = self.nodes {
            items.push(format!("nodes={from}:{to}"));
            if divided != 1.0 {
                items.push(format!("divided={divided}"));
            }
        }
        out.write_str(if items.is_empty() { NONE.into() } else { items.join(",") }.as_str())
    }
}

/// The beginning of a text that a user gave, for an error.
fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    text.chars().take(CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn changes_are_read_as_users_write_them() {
        let read = |text: &str| text.parse::<Change>().unwrap();
        assert_eq!(read("cpu=2"), Change { cpu: 2.0, ..Change::default() });
        let both = Change { disk_sequential: 1.5, disk_random: 1.5, network: 10.0, ..Change::default() };
        assert_eq!(read(" disk = 1.5 , network=10"), both);
        assert_eq!(both.to_string(), "disk=1.5,network=10");
        let nodes = |from, divided| Some(NodesChange { from, to: 6, divided });
        assert_eq!(read("nodes=6").nodes, nodes(1, 1.0));
        assert_eq!(read("divided=0.9,nodes=3:6").nodes, nodes(3, 0.9));
        assert_eq!((read("none"), Change::default().to_string()), (Change::default(), "none".into()));
    }

    #[test]
    fn texts_that_are_not_changes_are_errors_that_say_what_is_expected() {
        for text in ["", "cpu", "cpu=", "cpu=fast", "ram=2", "cpu=2,", "nodes=a", "nodes=1:2:3", "nodes=-1"] {
            let error = text.parse::<Change>().unwrap_err();
            assert!(error.to_string().contains("expected NAME=FACTOR"), "{text}: {error}");
        }
        for text in ["cpu=2,cpu=3", "disk=2,disk-random=2", "divided=0.5"] {
            assert!(matches!(text.parse::<Change>(), Err(UsageError::ChangeText { .. })), "{text}");
        }
        for text in ["cpu=0", "cpu=NaN", "network=1e9", "nodes=0", "nodes=2,divided=2"] {
            assert!(matches!(text.parse::<Change>(), Err(UsageError::OutOfRange { .. })), "{text}");
        }
        let long = "x".repeat(10_000).parse::<Change>().unwrap_err().to_string();
        assert!(long.len() < 500);
    }

    proptest! {
        #[test]
        fn a_change_comes_back_from_its_text(factors in proptest::array::uniform5(0.001..1000.0), nodes: Option<(u8, u8)>, divided in 0.0..1.0) {
            let [cpu, disk_sequential, disk_random, network, round_trip] = factors;
            let nodes = nodes.map(|(from, to)| {
                NodesChange { from: u32::from(from) + 1, to: u32::from(to) + 1, divided }
            });
            let change = Change { cpu, disk_sequential, disk_random, network, round_trip, nodes };
            prop_assert_eq!(change.to_string().parse::<Change>().unwrap(), change);
        }

        #[test]
        fn any_text_ends(text: String) {
            let _ = text.parse::<Change>();
        }
    }
}
