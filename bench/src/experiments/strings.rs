//! Layouts of text, by width: the time to write and read it, and its bytes.

use std::borrow::Cow;

use arrow_array::{Array, StringArray};
use arrow_buffer::{Buffer, OffsetBuffer};
use fsst::{Compressor, Decompressor, Symbol};
use lightship_testkit::tpch;
use zstd::bulk;

use super::layouts;
use crate::Result;
use crate::plot::Axis;
use crate::settings::Settings;

const WIDTHS: [usize; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
/// Characters of all values together, and the maximum number of values.
const CHARACTERS: f64 = 8e6;
const VALUES_MAX: f64 = 1e6;
const SEED: u64 = 1;
/// Values that FSST learns its symbols from.
const SAMPLES: usize = 1000;
const LENGTH_BYTES: usize = 4;
/// The level of Zstandard, as in the protocol.
const ZSTD_LEVEL: i32 = 1;
const SYMBOL_BYTES: usize = 8;

/// A layout of values of at most a given width.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Each value takes the full width, padded with zeros.
    Fixed,
    /// Four bytes of length, then the characters.
    LengthPrefixed,
    /// The characters, then a zero.
    NullTerminated,
    /// A symbol table, all lengths, all characters as codes (Boncz, Neumann,
    /// Leis: FSST, PVLDB 13(11), 2020).
    Fsst,
}

const LAYOUTS: [(&str, Layout); 4] = [
    ("fixed width", Layout::Fixed),
    ("length-prefixed", Layout::LengthPrefixed),
    ("null-terminated", Layout::NullTerminated),
    ("FSST", Layout::Fsst),
];

impl Layout {
    fn encode(self, values: &StringArray, width: usize) -> Vec<u8> {
        let all = (0..values.len()).map(|at| values.value(at).as_bytes());
        let characters = values.value_data().len();
        match self {
            Self::Fixed => {
                let mut bytes = vec![0; values.len() * width];
                for (place, value) in bytes.chunks_exact_mut(width).zip(all) {
                    place[..value.len()].copy_from_slice(value);
                }
                bytes
            }
            Self::LengthPrefixed => {
                let mut bytes = Vec::with_capacity(characters + LENGTH_BYTES * values.len());
                for value in all {
                    bytes.extend((value.len() as u32).to_le_bytes());
                    bytes.extend(value);
                }
                bytes
            }
            Self::NullTerminated => {
                let mut bytes = Vec::with_capacity(characters + values.len());
                for value in all {
                    bytes.extend(value);
                    bytes.push(0);
                }
                bytes
            }
            Self::Fsst => {
                let all: Vec<_> = all.collect();
                let samples = all.iter().step_by(all.len().div_ceil(SAMPLES)).copied().collect();
                let compressor = Compressor::train(&samples);
                let (symbols, lengths) = (compressor.symbol_table(), compressor.symbol_lengths());
                let mut bytes = vec![symbols.len() as u8];
                symbols.iter().for_each(|symbol| bytes.extend(symbol.to_u64().to_le_bytes()));
                bytes.extend(&lengths[..symbols.len()]);
                all.iter().for_each(|value| bytes.extend((value.len() as u32).to_le_bytes()));
                let mut ends = Vec::new();
                const LANES: usize = Compressor::DEFAULT_BULK_LANES;
                compressor.compress_bulk_into::<LANES>(&all, &mut bytes, &mut ends);
                bytes
            }
        }
    }

    fn decode(self, bytes: &[u8], count: usize, width: usize) -> Result<StringArray> {
        let mut ends = Vec::with_capacity(count + 1);
        ends.push(0i32);
        let mut characters = Vec::with_capacity(bytes.len());
        match self {
            Self::Fixed => {
                for place in bytes.chunks_exact(width) {
                    let length = place.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                    characters.extend(&place[..length]);
                    ends.push(i32::try_from(characters.len())?);
                }
            }
            Self::LengthPrefixed => {
                let mut rest = bytes;
                while let Some((length, after)) = rest.split_first_chunk::<LENGTH_BYTES>() {
                    let length = u32::from_le_bytes(*length) as usize;
                    let (value, after) =
                        after.split_at_checked(length).ok_or("a value extends beyond the end")?;
                    characters.extend(value);
                    ends.push(i32::try_from(characters.len())?);
                    rest = after;
                }
            }
            Self::NullTerminated => {
                let mut start = 0;
                for end in memchr::memchr_iter(0, bytes) {
                    characters.extend(&bytes[start..end]);
                    ends.push(i32::try_from(characters.len())?);
                    start = end + 1;
                }
            }
            Self::Fsst => {
                let (&symbols, rest) = bytes.split_first().ok_or("the symbol table is missing")?;
                let symbols = usize::from(symbols);
                let short = "the symbol table is too short";
                let (table, rest) = rest.split_at_checked(symbols * SYMBOL_BYTES).ok_or(short)?;
                let (symbol_lengths, rest) = rest.split_at_checked(symbols).ok_or(short)?;
                let (lengths, codes) = rest.split_at_checked(count * LENGTH_BYTES).ok_or(short)?;
                let mut known = ([Symbol::from_u8(0); 255], [1; 255]);
                for (symbol, bytes) in known.0.iter_mut().zip(table.as_chunks::<SYMBOL_BYTES>().0) {
                    *symbol = Symbol::from_slice(bytes);
                }
                known.1[..symbols].copy_from_slice(symbol_lengths);
                characters = Decompressor::new(&known.0, &known.1).decompress(codes);
                let mut end = 0;
                for length in lengths.as_chunks::<LENGTH_BYTES>().0 {
                    end += i32::try_from(u32::from_le_bytes(*length))?;
                    ends.push(end);
                }
            }
        }
        Ok(StringArray::try_new(OffsetBuffer::new(ends.into()), Buffer::from_vec(characters), None)?)
    }
}

/// Texts of 1 to `width` characters, cut from the comments of lineitem.
fn texts(width: usize, count: usize) -> Result<StringArray> {
    let mut prose = String::new();
    for batch in tpch::lineitem(0.01) {
        let comments =
            batch.column_by_name("l_comment").and_then(|c| c.as_any().downcast_ref::<StringArray>());
        comments.ok_or("lineitem has no column l_comment")?.iter().flatten().for_each(|comment| {
            prose.push_str(comment);
            prose.push(' ');
        });
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    let cut = |_| {
        let start = random.usize(..prose.len() - width);
        &prose[start..start + random.usize(1..=width)]
    };
    Ok(StringArray::from_iter_values((0..count).map(cut)))
}

/// A compressor of a whole buffer.
#[derive(Clone, Copy, Debug)]
enum Compression {
    None,
    Lz4,
    /// At the level of the protocol.
    Zstd,
}

impl Compression {
    fn compress(self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(match self {
            Self::None => bytes,
            Self::Lz4 => lz4_flex::block::compress_prepend_size(&bytes),
            Self::Zstd => {
                let mut packed = bulk::compress(&bytes, ZSTD_LEVEL)?;
                packed.extend((bytes.len() as u64).to_le_bytes());
                packed
            }
        })
    }

    fn decompress(self, bytes: &[u8]) -> Result<Cow<'_, [u8]>> {
        Ok(match self {
            Self::None => bytes.into(),
            Self::Lz4 => lz4_flex::block::decompress_size_prepended(bytes)?.into(),
            Self::Zstd => {
                let (packed, length) = bytes.split_last_chunk::<8>().ok_or("the length is missing")?;
                bulk::decompress(packed, usize::try_from(u64::from_le_bytes(*length))?)?.into()
            }
        })
    }
}

const COMPRESSED: [(&str, (Layout, Compression)); 8] = [
    ("fixed width, LZ4", (Layout::Fixed, Compression::Lz4)),
    ("length-prefixed, LZ4", (Layout::LengthPrefixed, Compression::Lz4)),
    ("null-terminated, LZ4", (Layout::NullTerminated, Compression::Lz4)),
    ("FSST, LZ4", (Layout::Fsst, Compression::Lz4)),
    ("fixed width, Zstandard", (Layout::Fixed, Compression::Zstd)),
    ("length-prefixed, Zstandard", (Layout::LengthPrefixed, Compression::Zstd)),
    ("null-terminated, Zstandard", (Layout::NullTerminated, Compression::Zstd)),
    ("FSST, Zstandard", (Layout::Fsst, Compression::Zstd)),
];

fn measure(values: &StringArray, layout: Layout, compression: Compression, width: usize) -> Result<Vec<f64>> {
    let decode = |bytes: &[u8]| layout.decode(&compression.decompress(bytes)?, values.len(), width);
    layouts::measure(values, |values| compression.compress(layout.encode(values, width)), decode)
}

/// The texts of each width, with a function that measures a contender on them.
fn places<'a, C>(
    settings: &'a Settings,
    measure: impl Fn(&StringArray, C, usize) -> Result<Vec<f64>> + Copy + 'a,
) -> impl Iterator<Item = Result<(String, impl Fn(C) -> Result<Vec<f64>>)>> + 'a {
    settings.some_if_quick(&WIDTHS).into_iter().map(move |&width| {
        let count = (CHARACTERS / width as f64).min(VALUES_MAX) * settings.scale_or(1.0);
        let values = texts(width, (count as usize).max(1))?;
        Ok((width.to_string(), move |contender| measure(&values, contender, width)))
    })
}

/// The same layouts, each compressed as a whole.
pub(crate) fn compressed(settings: &Settings) -> Result<()> {
    layouts::Study {
        name: "strings-compressed",
        title: "Layouts of text under compression",
        text: "The same texts and layouts, compressed as one buffer with LZ4, and with Zstandard at level 1; \
               the time of compression and decompression is included.",
        dimension: &["width"],
        axis: Axis::log("characters at most"),
        contenders: &COMPRESSED,
    }
    .run(
        settings,
        settings.scale_or(1.0),
        places(settings, |values, (layout, compression), width| measure(values, layout, compression, width)),
    )
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    layouts::Study {
        name: "strings",
        title: "Layouts of text",
        text: "Texts of 1 character up to the given width, with evenly distributed lengths, cut from the \
               comments of lineitem, encoded into one buffer and decoded into an Arrow array by one thread \
               in one process. Fixed width pads with zeros. A length takes four bytes. FSST learns its \
               symbols each time, from a thousand of the values, and that time is included.",
        dimension: &["width"],
        axis: Axis::log("characters at most"),
        contenders: &LAYOUTS,
    }
    .run(
        settings,
        settings.scale_or(1.0),
        places(settings, |values, layout, width| measure(values, layout, Compression::None, width)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_decodes_to_the_original_values() {
        for width in [1, 7, 300] {
            let values = texts(width, 500).expect("texts");
            assert!(values.iter().flatten().all(|text| (1..=width).contains(&text.len())));
            for (name, layout) in LAYOUTS {
                let bytes = layout.encode(&values, width);
                let decoded = layout.decode(&bytes, values.len(), width).expect("decoded");
                assert_eq!(decoded, values, "{name}, {width}");
            }
            for (name, (layout, compression)) in COMPRESSED {
                measure(&values, layout, compression, width).expect(name);
            }
        }
    }

    #[test]
    fn layouts_have_the_expected_sizes() {
        let values = StringArray::from(vec!["a", "bcd", "ef"]);
        let bytes = |layout: Layout| layout.encode(&values, 4).len();
        assert_eq!(bytes(Layout::Fixed), 3 * 4);
        assert_eq!(bytes(Layout::LengthPrefixed), 6 + 3 * 4);
        assert_eq!(bytes(Layout::NullTerminated), 6 + 3);
        let long = texts(1000, 2000).expect("texts");
        assert!(Layout::Fsst.encode(&long, 1000).len() < long.value_data().len() * 2 / 3);
    }
}
