//! How a result is read and carried.

use std::fmt::Display;
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;

use lightship_engine::EngineConfig;
use lightship_session::{Codec, Memory};
use lightship_sources::columns::DuplicateColumns;
use lightship_sources::writers::{self, Format};
use lightship_sources::{InfiniteRule, NumericRule, ReadOptions};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Minimum for each source.
const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// The most sources that are read at a time. Each takes a connection, and runs the query.
const AT_ONCE_MAX: u64 = 64;

/// How a result is read and carried. Every field defaults to `None`, which suits most results. For the
/// fields that control the transfer, `None` chooses the value from measurements before and during the
/// transfer.
///
/// ```
/// use lightship::{Codec, Options};
///
/// let options = Options { memory_bytes: Some(256 << 20), codec: Some(Codec::LightZstd), ..Options::default() };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Maximum memory for rows in this process, in bytes. The default is 64 MiB, or 1 GiB for a query
    /// over files, which runs in this process.
    pub memory_bytes: Option<u64>,
    /// How rows from a node are encoded.
    #[serde(with = "text")]
    pub codec: Option<Codec>,
    /// F: rows per batch. More rows need more memory; fewer cost more round trips.
    pub batch_rows: Option<u32>,
    /// M: bytes per message from a node.
    pub message_bytes: Option<u32>,
    /// The largest message from a node, for a single row larger than M.
    pub message_bytes_max: Option<u32>,
    /// W: batches in flight from a node.
    pub window_batches: Option<u32>,
    /// Connections to a database or node that carry one result.
    pub streams: Option<NonZeroU32>,
    /// The type for PostgreSQL's `numeric` without a declared precision.
    #[serde(with = "text")]
    pub numeric: Option<NumericRule>,
    /// How to handle PostgreSQL's infinite dates, timestamps, intervals and decimals.
    #[serde(with = "text")]
    pub infinite: Option<InfiniteRule>,
    /// How to handle columns with the same name.
    #[serde(with = "text")]
    pub duplicate_columns: Option<DuplicateColumns>,
}

/// The options for one source, with its share of the memory.
#[derive(Debug, Clone)]
pub(crate) struct PlaceOptions {
    /// How many sources are read at a time, each with such a share.
    pub(crate) at_once: usize,
    pub(crate) transfer: lightship_session::Options,
    pub(crate) read: ReadOptions,
    /// For queries over files.
    pub(crate) query_memory_bytes: usize,
}

impl Options {
    /// Memory for the rows of all sources together.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT)
    }

    /// Whether the options leave all rules for database values at their defaults.
    pub(crate) fn has_default_values(&self) -> bool {
        self.numeric.is_none() && self.infinite.is_none()
    }

    /// The rules for database values. `numeric` applies if the options have no rule for `numeric`
    /// without a declared precision.
    pub fn read_options(&self, numeric: NumericRule) -> ReadOptions {
        ReadOptions {
            numeric: self.numeric.unwrap_or(numeric),
            infinite: self.infinite.unwrap_or_default(),
            ..ReadOptions::default()
        }
    }

    /// The options for each of `places` sources, with its share of the memory, which is divided between those that
    /// are read at a time.
    pub(crate) fn of_place(&self, places: usize) -> Result<PlaceOptions> {
        let shares = self.memory_bytes() / MEMORY_BYTES_MIN;
        if shares == 0 {
            return Err(Error::usage("--memory must be at least 4MiB"));
        }
        let places = places.clamp(1, shares.min(AT_ONCE_MAX) as usize);
        let memory = self.memory_bytes() / places as u64;
        let mut read = self.read_options(NumericRule::RESULT);
        read.native_types = true;
        // Sources are read in parallel, so together they keep the processors busy.
        let streams = NonZeroUsize::new(read.streams.get() / places).unwrap_or(NonZeroUsize::MIN);
        let given = self.streams.and_then(|streams| NonZeroUsize::try_from(streams).ok());
        read.streams = given.unwrap_or(streams);
        if let Some(rows) = self.batch_rows {
            read.batch_rows = (rows as usize).max(1);
        }
        // Each stream fills one batch and has one waiting; the writer holds more.
        let batches = 2 * read.streams.get() as u64 + writers::batches_at_once(Format::Csv) as u64;
        read.batch_bytes = read.batch_bytes.min(usize::try_from(memory / 2 / batches).unwrap_or(usize::MAX));
        // While a row arrives and is appended to its column, its buffer and the column can each take
        // twice its bytes.
        read.row_bytes_max = usize::try_from(memory / 4).unwrap_or(usize::MAX);
        Ok(PlaceOptions {
            at_once: places,
            transfer: lightship_session::Options {
                // The other half is for encoding and for rows being written.
                memory: Memory(memory / 2),
                batch_rows: self.batch_rows,
                message_bytes: self.message_bytes,
                message_bytes_max: self.message_bytes_max,
                window_batches: self.window_batches,
                codec: self.codec,
                streams: self.streams,
                ..lightship_session::Options::default()
            },
            read,
            query_memory_bytes: match self.memory_bytes {
                Some(_) => usize::try_from(memory).unwrap_or(usize::MAX),
                None => EngineConfig::default().query_memory_bytes / places,
            },
        })
    }
}

/// Serialises values as text, and reads `auto` as `None`.
mod text {
    use super::{Deserialize, Deserializer, Display, FromStr, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(deserializer)?;
        let given = text.filter(|text| text != "auto").map(|text| text.parse());
        given.transpose().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_a_round_trip_through_json() {
        let options = Options {
            memory_bytes: Some(1 << 20),
            codec: Some(Codec::LightZstd),
            streams: NonZeroU32::new(3),
            numeric: Some(NumericRule::Decimal { precision: 38, scale: 10 }),
            infinite: Some(InfiniteRule::Text),
            duplicate_columns: Some(DuplicateColumns::Rename),
            ..Options::default()
        };
        let text = serde_json::to_string(&options).unwrap();
        assert!(
            text.contains(r#""codec":"light+zstd""#) && text.contains(r#""numeric":"decimal(38,10)""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Options>(&text).unwrap(), options);
        let read = |text: &str| serde_json::from_str::<Options>(text);
        assert_eq!(read(r#"{"codec":"auto"}"#).unwrap(), Options::default());
        assert_eq!(read(r#"{"numeric":"decimal"}"#).unwrap().numeric, Some(NumericRule::RESULT));
        assert_eq!(read("{}").unwrap(), Options::default());
        for wrong in
            [r#"{"codec":"best"}"#, r#"{"window":3}"#, r#"{"streams":0}"#, r#"{"numeric":"decimal(77,0)"}"#]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sources_share_the_memory() {
        let of = |memory_bytes, places| Options { memory_bytes, ..Options::default() }.of_place(places);
        assert_eq!(of(None, 1).unwrap().transfer.memory, Memory(32 << 20));
        assert_eq!(of(Some(64 << 20), 4).unwrap().read.row_bytes_max, 4 << 20);
        // Of many sources, some wait until others have ended.
        assert_eq!((of(Some(8 << 20), 3).unwrap().at_once, of(Some(8 << 20), 1).unwrap().at_once), (2, 1));
        assert_eq!((of(None, 1000).unwrap().at_once, of(Some(1 << 40), 1000).unwrap().at_once), (16, 64));
        assert!(of(Some(3 << 20), 1).unwrap_err().message.contains("4MiB"));
    }
}
