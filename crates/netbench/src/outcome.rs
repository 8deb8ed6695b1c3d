//! The result of a sweep in a few numbers, saved on disk for planning.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::NetbenchError;
use crate::host::Host;
use crate::row::{Row, Settings};
use crate::whole;

/// The version of the file. Other versions are refused.
const VERSION: u32 = 1;
/// The share of the best throughput that counts as equally good: runs differ by as much.
pub const NEARLY: f64 = 0.95;

/// The plateau of throughput: the cells that are nearly as fast as the best.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plateau {
    /// The fewest connections.
    pub connections: u32,
    /// The most connections, with any message size; `None` if the largest number that was measured belongs to the plateau.
    #[serde(default)]
    pub connections_max: Option<u32>,
    /// The smallest message with that number of connections.
    pub message_bytes: u32,
    /// Throughput of the cell with the fewest connections and this message size.
    pub bytes_per_second: f64,
    /// The best throughput, unless only one number of connections has it.
    pub best_bytes_per_second: f64,
}

impl Plateau {
    /// Finds the fewest connections, then the smallest message, and the most connections, within 5 % of the best
    /// throughput. That of the best number of connections counts only if there are less than three: a link may have let a burst
    /// pass, which carries more than the link does for long. Cells in which connections failed are not reliable and don't count. `None` if no cell is left.
    pub fn of(rows: &[Row]) -> Option<Self> {
        let known = || {
            let whole = rows.iter().filter(|row| row.is_whole());
            whole.filter_map(|row| Some((row.cell, row.throughput_bytes_per_second.filter(|r| *r > 0.0)?)))
        };
        let mut by_connections = BTreeMap::<u32, f64>::new();
        for (cell, rate) in known() {
            let best = by_connections.entry(cell.connections).or_default();
            *best = best.max(rate);
        }
        let mut rates: Vec<f64> = by_connections.into_values().collect();
        rates.sort_by(|a, b| b.total_cmp(a));
        let best = *rates.get(usize::from(rates.len() >= 3))?;
        let near = || known().filter(|(_, rate)| *rate >= best * NEARLY);
        let (cell, rate) = near().min_by_key(|(cell, _)| *cell)?;
        let measured = rows.iter().map(|row| row.cell.connections).max()?;
        Some(Self {
            connections: cell.connections,
            connections_max: near().map(|(cell, _)| cell.connections).max().filter(|most| *most < measured),
            message_bytes: cell.message_bytes,
            bytes_per_second: rate,
            best_bytes_per_second: best,
        })
    }
}

/// The result for a host of a sweep that included it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedPlateau {
    version: u32,
    /// The server.
    pub host: String,
    /// All servers of the sweep, separated by spaces. Throughput is that of all together.
    pub hosts: String,
    /// Time of the measurement, in seconds since 1970.
    pub measured_at: u64,
    /// Number of cells measured.
    pub cells: usize,
    /// Settings of the sweep.
    pub settings: Settings,
    /// The result.
    #[serde(flatten)]
    pub plateau: Plateau,
}

impl SavedPlateau {
    /// The outcome of a sweep's rows; `None` if there is no [`Plateau`].
    pub fn of(host: &Host, settings: &Settings, rows: &[Row], now: SystemTime) -> Option<Self> {
        let plateau = Plateau::of(rows)?;
        Some(Self {
            version: VERSION,
            host: host.to_string(),
            hosts: rows.first().map(|row| row.hosts.clone()).unwrap_or_default(),
            measured_at: now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            cells: rows.len(),
            settings: *settings,
            plateau,
        })
    }

    /// The path of a host's outcome in `folder`, which also contains link profiles.
    pub fn path(folder: &Path, host: &str) -> PathBuf {
        let letter = |c: char| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' => c.to_string(),
            c => format!("_{:x}_", u32::from(c)),
        };
        // No link profile has such a name: their names are derived from URIs.
        folder.join(format!("netbench_{}.json", host.chars().map(letter).collect::<String>()))
    }

    /// Saves the outcome, replaces an earlier one, and returns its path.
    ///
    /// # Errors
    /// [`NetbenchError::Io`].
    pub fn keep(&self, folder: &Path) -> Result<PathBuf, NetbenchError> {
        let path = Self::path(folder, &self.host);
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| NetbenchError::Io { path: path.clone(), source: error.into() })?;
        whole::write(&path, (text + "\n").as_bytes())?;
        Ok(path)
    }

    /// Reads the outcome saved for a host, if any.
    ///
    /// # Errors
    /// [`NetbenchError`] if the file exists but can't be read.
    pub fn find(folder: &Path, host: &Host) -> Result<Option<Self>, NetbenchError> {
        let path = Self::path(folder, &host.to_string());
        let damaged = |why| NetbenchError::Damaged { path: path.clone(), why };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(NetbenchError::Io { path, source }),
        };
        let outcome: Self = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        let Plateau { connections, message_bytes, bytes_per_second, best_bytes_per_second, .. } =
            outcome.plateau;
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        if outcome.version != VERSION {
            Err(damaged(format!("unsupported version {}, expected {VERSION}", outcome.version)))
        } else if connections == 0
            || message_bytes == 0
            || !is_rate(bytes_per_second)
            || !is_rate(best_bytes_per_second)
        {
            Err(damaged("its numbers are out of range".into()))
        } else {
            Ok(Some(outcome))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table::tests::some_row;

    #[test]
    fn the_plateau_begins_with_the_fewest_connections() {
        let rows = [
            some_row(2, 256, 1e6),
            some_row(2, 65_536, 91e6),
            some_row(4, 256, 2e6),
            some_row(4, 8192, 95e6),
            some_row(4, 65_536, 97e6),
            some_row(8, 4096, 100e6),
            // Fast, but a connection failed.
            Row { flood_failures: 1, ..some_row(16, 65_536, 900e6) },
            Row { throughput_bytes_per_second: None, ..some_row(1, 65_536, 0.0) },
        ];
        let found = Plateau::of(&rows).expect("one");
        assert_eq!((found.connections, found.connections_max, found.message_bytes), (4, Some(8), 8192));
        // Its end is not known if no more connections were measured.
        assert_eq!(Plateau::of(&rows[..6]).and_then(|found| found.connections_max), None);
        assert_eq!((found.bytes_per_second, found.best_bytes_per_second), (95e6, 97e6));
        // One number of connections that exceeds all others does not make them slow.
        let burst = [&rows[..], &[some_row(6, 8192, 900e6), some_row(32, 8192, 9e6)]].concat();
        let found = Plateau::of(&burst).expect("one");
        assert_eq!((found.connections, found.connections_max), (4, Some(8)));
        assert_eq!(found.best_bytes_per_second, 100e6);
        assert_eq!(Plateau::of(&rows[6..]), None);
        assert_eq!(Plateau::of(&[]), None);
    }

    #[test]
    fn a_saved_outcome_is_found_and_a_damaged_one_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("not/there/yet");
        let host: Host = "[::1]:99".parse().expect("a host");
        assert_eq!(SavedPlateau::find(&folder, &host).expect("none"), None);
        let rows = [some_row(2, 256, 1e6)];
        let now = UNIX_EPOCH + std::time::Duration::from_secs(5);
        let outcome = SavedPlateau::of(&host, &Settings::default(), &rows, now).expect("a plateau");
        let path = outcome.keep(&folder).expect("kept");
        assert_eq!(SavedPlateau::find(&folder, &host).expect("read"), Some(outcome));
        assert_eq!(fs::read_dir(&folder).expect("there").count(), 1);

        let text = fs::read_to_string(&path).expect("there");
        for spoilt in [
            text[..text.len() / 2].to_owned(),
            text.replace("\"version\": 1", "\"version\": 2"),
            text.replace("\"connections\": 2", "\"connections\": 0"),
            text.replace("\"bytes_per_second\": 1000000.0", "\"bytes_per_second\": -1.0"),
        ] {
            assert_ne!(spoilt, text);
            fs::write(&path, &spoilt).expect("written");
            assert!(
                matches!(SavedPlateau::find(&folder, &host), Err(NetbenchError::Damaged { .. })),
                "{spoilt}"
            );
        }
        fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).expect("a folder in its place");
        assert!(matches!(SavedPlateau::find(&folder, &host), Err(NetbenchError::Io { .. })));
    }

    proptest! {
        #[test]
        fn no_cheaper_cell_is_nearly_as_fast_as_the_plateau(
            cells in prop::collection::vec((1u32..20, 1u32..20, 1.0f64..100.0), 1..40)
        ) {
            let rows: Vec<_> = cells.iter().map(|(c, s, rate)| some_row(*c, *s, *rate)).collect();
            let found = Plateau::of(&rows).expect("one");
            prop_assert!(found.bytes_per_second >= NEARLY * found.best_bytes_per_second);
            for row in rows {
                let rate = row.throughput_bytes_per_second.expect("known");
                let key = (row.cell.connections, row.cell.message_bytes);
                prop_assert!(
                    found.connections_max.is_none_or(|most| row.cell.connections <= most)
                        || rate < NEARLY * found.best_bytes_per_second
                );
                prop_assert!(
                    key >= (found.connections, found.message_bytes)
                        || rate < NEARLY * found.best_bytes_per_second
                );
            }
        }
    }
}
