//! Encodings by column, on one core and in one process: bytes, and the rates of encoding and decoding.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use lightship_session::Codec;
use lightship_wire::{Cutter, Encoder, decode, rows_bytes};
use zstd::bulk;

use super::under;
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::{self, Data};
use crate::plot::{Axis, Dots, DotsPanel};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables::{self, grid, number};

const NAME: &str = "columns";
const WIDE: &str = "columns-wide";
/// All columns in one message, as they are sent.
pub(super) const WHOLE: &str = "whole table";
const MESSAGE_BYTES: u32 = 1 << 20;
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "MB", digits: 2, range: false },
    Figure { name: "encode MB/s", digits: 0, range: true },
    Figure { name: "decode MB/s", digits: 0, range: true },
];
const BYTES: usize = 0;
const ENCODE: usize = 1;
const DECODE: usize = 2;

/// The level of Zstandard, as in the protocol.
const ZSTD_LEVEL: i32 = 1;

/// How rows become bytes.
#[derive(Clone, Copy)]
pub(super) enum Encoding {
    /// By a codec of the protocol.
    Codec(Codec),
    /// For comparison: as plain messages, compressed as a whole with LZ4,
    Lz4,
    /// or with Zstandard.
    Zstd,
}

impl Encoding {
    const ALL: [Self; 6] = [
        Self::Codec(Codec::None),
        Self::Lz4,
        Self::Zstd,
        Self::Codec(Codec::Light),
        Self::Codec(Codec::LightLz4),
        Self::Codec(Codec::LightZstd),
    ];

    fn codec(self) -> Codec {
        match self {
            Self::Codec(codec) => codec,
            Self::Lz4 | Self::Zstd => Codec::None,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Codec(codec) => fmt::Display::fmt(codec, f),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd => f.write_str("zstd"),
        }
    }
}

/// Encodes and decodes these batches. Returns the megabytes of their messages, and the rates of encoding
/// and of decoding in megabytes of Arrow a second.
pub(super) fn measure(batches: &[RecordBatch], encoding: Encoding) -> Result<Vec<f64>> {
    let (mut encode_time, mut decode_time) = (Duration::ZERO, Duration::ZERO);
    let (mut arrow_bytes, mut wire_bytes) = (0, 0);
    let cutter = Cutter::new(MESSAGE_BYTES, u32::MAX);
    let mut encoder = Encoder::new(encoding.codec());
    let mut zstd = bulk::Compressor::new(ZSTD_LEVEL)?;
    for batch in batches {
        let schema = batch.schema();
        let mut start = 0;
        loop {
            let rows = cutter.next_rows(batch, start)?;
            if rows == 0 {
                break;
            }
            let slice = batch.slice(start, rows);
            start += rows;
            let began = Instant::now();
            let message = black_box(encoder.encode(&slice)?);
            let packed = match encoding {
                Encoding::Codec(_) => None,
                Encoding::Lz4 => Some(lz4_flex::block::compress(&message.to_vec())),
                Encoding::Zstd => Some(zstd.compress(&message.to_vec())?),
            };
            encode_time += began.elapsed();
            // A transfer copies the message, which is not measured here.
            let sent = packed.unwrap_or_else(|| message.to_vec());
            wire_bytes += sent.len();
            let plain_bytes = message.payload_bytes() as usize;
            let began = Instant::now();
            let payload = match encoding {
                Encoding::Codec(_) => sent,
                Encoding::Lz4 => lz4_flex::block::decompress(&sent, plain_bytes)?,
                Encoding::Zstd => bulk::decompress(&sent, plain_bytes)?,
            };
            let decoded = black_box(decode(&schema, Buffer::from_vec(payload), u32::MAX)?);
            decode_time += began.elapsed();
            if decoded.num_rows() != rows {
                return Err(format!("{} rows instead of {rows}", decoded.num_rows()).into());
            }
            arrow_bytes += rows_bytes(&slice);
        }
    }
    let rate = |time: Duration| arrow_bytes as f64 / 1e6 / time.as_secs_f64();
    Ok(vec![wire_bytes as f64 / 1e6, rate(encode_time), rate(decode_time)])
}

fn plot(results: &Results, columns: &[&str]) -> Result<String> {
    let panels = FIGURES.iter().enumerate().map(|(figure, Figure { name, .. })| {
        let row = |column: &&str| {
            let of = |codec: &str| {
                let value = results.summary(&[*column], codec, figure);
                (codec.to_owned(), value)
            };
            // Buffers that are passed on by reference have no rate.
            let none = Codec::None.to_string();
            let codecs = results.contenders(&[*column]);
            let shown = codecs.into_iter().filter(|codec| figure == BYTES || *codec != none);
            ((*column).to_owned(), shown.map(of).collect())
        };
        DotsPanel { title: (*name).to_owned(), rows: columns.iter().map(row).collect() }
    });
    Ok(Dots { x: Axis::log(""), panels: panels.collect() }.svg()?)
}

pub(super) fn report(results: &Results) -> Vec<String> {
    let columns: Vec<_> = results.values(0).into_iter().filter(|column| *column != WHOLE).collect();
    let mut codecs = Encoding::ALL.map(|encoding| encoding.to_string()).to_vec();
    let there = results.contenders(&[WHOLE]);
    codecs.retain(|codec| there.contains(&codec.as_str()));
    let by_column = |heading: &str, figure: usize| {
        let cell = |column: &str, codec: &str| {
            let digits = FIGURES[figure].digits;
            number(results.summary(&[column], codec, figure).median, digits)
        };
        format!("### {heading}\n\n{}", grid("column", &columns, &codecs, cell))
    };
    vec![
        under(results, WHOLE, &[WHOLE], &tables::contenders(results, &[WHOLE], None)),
        by_column("MB on the wire, by column", BYTES),
        by_column("Encoding by column, MB of Arrow a second", ENCODE),
        by_column("Decoding by column, MB of Arrow a second", DECODE),
    ]
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let mut results = Results::open(&settings.results(), NAME, &["column"], FIGURES)?;
    let scale = settings.scale_or(1.0);
    let (schema, batches) = data::read(&Data::Lineitem.file(scale)?.path, data::BATCH_ROWS)?;
    let named = schema.fields().iter().enumerate().map(|(at, field)| (field.name().as_str(), vec![at]));
    let all = (WHOLE, (0..schema.fields().len()).collect());
    for (column, projection) in std::iter::once(all).chain(named) {
        let batches: Vec<_> =
            batches.iter().map(|batch| batch.project(&projection)).collect::<std::result::Result<_, _>>()?;
        let contenders = Encoding::ALL.map(|encoding| {
            let batches = &batches;
            Contender::new(encoding.to_string(), move || measure(batches, encoding))
        });
        let place = Case { values: vec![column.into()], scale, note: String::new() };
        results.add(Comparison { figures: FIGURES, contenders: contenders.into() }.run(settings, &place)?)?;
    }
    let columns = results.values(0);
    Report {
        name: NAME,
        page: Page::ColumnarProtocol,
        title: "Column-specific encodings against general compression",
        text: "TPC-H lineitem in messages of 1 MiB, encoded and decoded by one thread in one process, the \
               whole table and each column alone. Rates are of Arrow bytes; `none` passes buffers on by \
               reference, so its rates mean little. `lz4` and `zstd` compress the messages of `none` as a \
               whole, for comparison: the protocol has no such codecs. Targets at scale 1: at most 190 MB \
               for `light` and 155 MB for `light+zstd`; for `light`, at least 600 MB/s encoded and 1500 MB/s \
               decoded."
            .into(),
        tables: report(&results),
        plots: vec![(plot(&results, &columns)?, "Bytes and rates by column and codec")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}

/// The two wide tables, each as a whole and by column.
pub(crate) fn wide(settings: &Settings) -> Result<()> {
    let load = report::load();
    let mut results = Results::open(&settings.results(), WIDE, &["data", "column"], FIGURES)?;
    let scale = settings.scale_or(0.1);
    for data in [Data::Acs, Data::Airline] {
        let (schema, batches) = data::read(&data.file(scale)?.path, data::BATCH_ROWS)?;
        let named: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let named = named.iter().enumerate().map(|(at, name)| (*name, vec![at])).collect::<Vec<_>>();
        let all = (WHOLE, (0..schema.fields().len()).collect());
        for (column, projection) in std::iter::once(&all).chain(settings.some_if_quick(&named)) {
            let batches: Vec<_> =
                batches.iter().map(|batch| batch.project(projection)).collect::<Result<_, _>>()?;
            let contenders = Encoding::ALL.map(|encoding| {
                let batches = &batches;
                Contender::new(encoding.to_string(), move || measure(batches, encoding))
            });
            let values = vec![data.to_string(), (*column).into()];
            let place = Case { values, scale, note: String::new() };
            results
                .add(Comparison { figures: FIGURES, contenders: contenders.into() }.run(settings, &place)?)?;
        }
    }
    Report {
        name: WIDE,
        page: Page::ColumnarProtocol,
        title: "Column-specific encodings of wide tables",
        text: "As above, for the tables in the shape of the American Community Survey (acs) and of the airlines' \
               on-time performance (airline). The second table of each counts the columns on which an encoding has \
               the fewest bytes, or is within 1% of that, and those on which it is the fastest of all that compress, \
               or within 5%; the third has the columns for which `light+zstd` is worst compared with plain \
               Zstandard. All columns are in the CSV file."
            .into(),
        tables: results.values(0).into_iter().flat_map(|data| wide_tables(&results, data)).collect(),
        plots: Vec::new(),
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}

/// How many of the columns that compare worst are shown.
const WORST: usize = 5;

fn wide_tables(results: &Results, data: &str) -> Vec<String> {
    let places = results.places().into_iter().filter(|place| place[0] == data && place[1] != WHOLE);
    let columns: Vec<_> = places.map(|place| place[1].as_str()).collect();
    let median =
        |column: &str, codec: &str, figure: usize| results.summary(&[data, column], codec, figure).median;
    let codecs = Encoding::ALL.map(|encoding| encoding.to_string());
    let names: Vec<_> = codecs.iter().map(String::as_str).collect();
    let packing: Vec<_> = names.iter().copied().filter(|name| *name != Codec::None.to_string()).collect();
    let count = |codec: &str, heading: &str| {
        let leads = |column: &&&str| {
            let of = |figure: usize| packing.iter().map(move |codec| median(column, codec, figure));
            match heading {
                "fewest bytes" => {
                    median(column, codec, BYTES) <= 1.01 * of(BYTES).fold(f64::INFINITY, f64::min)
                }
                "fastest to encode" => median(column, codec, ENCODE) >= of(ENCODE).fold(0.0, f64::max) / 1.05,
                _ => median(column, codec, DECODE) >= of(DECODE).fold(0.0, f64::max) / 1.05,
            }
        };
        columns.iter().filter(leads).count().to_string()
    };
    let best = grid("", &packing, &["fewest bytes", "fastest to encode", "fastest to decode"], count);
    let (plain, ours) = (Encoding::Zstd.to_string(), Codec::LightZstd.to_string());
    let over = |column: &str| median(column, &ours, BYTES) / median(column, &plain, BYTES);
    let mut worst = columns.clone();
    worst.sort_by(|a, b| over(b).total_cmp(&over(a)));
    worst.truncate(WORST);
    let cell = |column: &str, heading: &str| match heading {
        "light+zstd / zstd" => number(over(column), 2),
        codec => number(median(column, codec, BYTES), 3),
    };
    let headings: Vec<_> = names.iter().copied().chain(["light+zstd / zstd"]).collect();
    vec![
        format!("### {data}, whole table\n\n{}", tables::contenders(results, &[data, WHOLE], None)),
        format!("Of {} columns of {data}:\n\n{best}", columns.len()),
        format!("MB of columns of {data}:\n\n{}", grid("column", &worst, &headings, cell)),
    ]
}

#[cfg(test)]
mod tests {
    use lightship_testkit::tpch;

    use super::*;

    #[test]
    fn a_compressed_table_is_smaller_and_every_figure_is_positive() {
        let batches: Vec<_> = tpch::lineitem(0.001).collect();
        let plain = measure(&batches, Encoding::Codec(Codec::None)).expect("encoded");
        let packed = measure(&batches, Encoding::Zstd).expect("encoded");
        assert!(packed[BYTES] < plain[BYTES] / 2.0, "{packed:?} {plain:?}");
        assert!(packed.iter().chain(&plain).all(|value| value.is_finite() && *value > 0.0));
    }
}
