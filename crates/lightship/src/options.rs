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
/// The least for each place that is asked.
const MEMORY_BYTES_MIN: u64 = 4 << 20;

/// How a result is read and carried. `None`, the default of every field, is what suits most results; for how rows
/// travel it is chosen from measurements, before and during the transfer.
///
/// ```
/// use lightship::{Codec, Options};
///
/// let options = Options { memory_bytes: Some(256 << 20), codec: Some(Codec::LightZstd), ..Options::default() };
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Memory that rows here may take at once, in bytes: by default 64 MiB, and 1 GiB for a query over files,
    /// which runs here.
    pub memory_bytes: Option<u64>,
    /// How rows from a node are encoded.
    #[serde(with = "text")]
    pub codec: Option<Codec>,
    /// F: rows of a batch. More need more memory, fewer cost round trips.
    pub batch_rows: Option<u32>,
    /// M: bytes of a message from a node.
    pub message_bytes: Option<u32>,
    /// The largest message from a node, for a row that fits no other.
    pub message_bytes_max: Option<u32>,
    /// W: batches on their way from a node at once.
    pub window_batches: Option<u32>,
    /// Connections to a database or node that carry one result.
    pub streams: Option<NonZeroU32>,
    /// What PostgreSQL's numbers of no stated precision become.
    #[serde(with = "text")]
    pub numeric: Option<NumericRule>,
    /// What becomes of PostgreSQL's infinite dates, timestamps, intervals and decimals.
    #[serde(with = "text")]
    pub infinite: Option<InfiniteRule>,
    /// What becomes of a second column of one name.
    #[serde(with = "text")]
    pub duplicate_columns: Option<DuplicateColumns>,
}

/// What the options come to for one of several places.
#[derive(Debug, Clone)]
pub(crate) struct PlaceOptions {
    pub(crate) transfer: lightship_session::Options,
    pub(crate) read: ReadOptions,
    /// For queries over files.
    pub(crate) query_memory_bytes: usize,
}

impl Options {
    /// Memory for the rows of all places together.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.unwrap_or(MEMORY_BYTES_DEFAULT)
    }

    /// Whether no rule for the values of a database was given.
    pub(crate) fn has_default_values(&self) -> bool {
        self.numeric.is_none() && self.infinite.is_none()
    }

    /// The rule for values of a database. `numeric` is the one for numbers of no stated precision if none was given.
    pub fn read_options(&self, numeric: NumericRule) -> ReadOptions {
        ReadOptions {
            numeric: self.numeric.unwrap_or(numeric),
            infinite: self.infinite.unwrap_or_default(),
            ..ReadOptions::default()
        }
    }

    /// The options for each of this many places, with its share of the memory.
    pub(crate) fn of_place(&self, places: usize) -> Result<PlaceOptions> {
        let memory = self.memory_bytes() / places.max(1) as u64;
        if memory < MEMORY_BYTES_MIN {
            return Err(match places {
                ..=1 => Error::usage("--memory: less than 4MiB is too little for anything"),
                _ => Error::usage(format!(
                    "--memory: {} bytes are too little for {places} places, each of which needs 4MiB",
                    self.memory_bytes()
                ))
                .hint(format!("--memory {}MiB, or fewer places", 4 * places)),
            });
        }
        let mut read = self.read_options(NumericRule::RESULT);
        // Places that are read at once keep the processors busy between them.
        let streams = NonZeroUsize::new(read.streams.get() / places.max(1)).unwrap_or(NonZeroUsize::MIN);
        let given = self.streams.and_then(|streams| NonZeroUsize::try_from(streams).ok());
        read.streams = given.unwrap_or(streams);
        if let Some(rows) = self.batch_rows {
            read.batch_rows = (rows as usize).max(1);
        }
        // Each stream has a batch in the making and one waiting, the writer more.
        let batches = 2 * read.streams.get() as u64 + writers::batches_at_once(Format::Csv) as u64;
        read.batch_bytes = read.batch_bytes.min(usize::try_from(memory / 2 / batches).unwrap_or(usize::MAX));
        // While it arrives and is put into its column each of both has up to twice its bytes.
        read.row_bytes_max = usize::try_from(memory / 4).unwrap_or(usize::MAX);
        Ok(PlaceOptions {
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
                None => EngineConfig::default().query_memory_bytes / places.max(1),
            },
        })
    }
}

/// Values that are written as a text, `auto` for none.
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
    fn options_are_written_and_read() {
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
    fn places_share_the_memory() {
        let of = |memory_bytes, places| Options { memory_bytes, ..Options::default() }.of_place(places);
        assert_eq!(of(None, 1).unwrap().transfer.memory, Memory(32 << 20));
        assert_eq!(of(Some(64 << 20), 4).unwrap().read.row_bytes_max, 4 << 20);
        let error = of(Some(8 << 20), 3).unwrap_err();
        assert!(error.message.contains("3 places") && error.hint.is_some_and(|hint| hint.contains("12MiB")));
    }
}
