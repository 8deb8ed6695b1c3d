//! Strings and binary values: their bytes as they are with packed lengths, as
//! codes of a dictionary, or under a table of symbols (P. Boncz, T. Neumann,
//! V. Leis, "FSST: Fast Random Access String Compression", PVLDB 2020).

use std::mem::MaybeUninit;

use arrow_buffer::{Buffer, ScalarBuffer};
use fsst::{Compressor, Decompressor, Symbol};

use super::codes::Codes;
use super::ints::{DICTIONARY_VALUES_MAX, Packed, pack_into};
use super::reader::LightReader;
use super::{Encoded, Scheme};
use crate::bytes::Put;
use crate::error::{Result, malformed};

/// The schemes for strings.
pub(super) const CANDIDATES: &[Scheme] = &[Scheme::Lengths, Scheme::Dictionary, Scheme::Fsst];

/// The escape code of FSST: the next byte stands for itself.
const ESCAPE: u8 = 255;
const SYMBOLS_MAX: usize = 255;
const SYMBOL_BYTES: usize = size_of::<u64>();
/// Symbols are found in samples of this size from the whole message.
const TRAINING_PIECE_BYTES: usize = 512;
const TRAINING_PIECES: usize = 64;

/// The values of a column, without those of NULL rows.
pub(super) struct Strings {
    pub(super) lengths: ScalarBuffer<u32>,
    pub(super) bytes: Buffer,
}

impl Strings {
    fn values(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest: &[u8] = &self.bytes;
        self.lengths.iter().map(move |&length| {
            let (value, after) = rest.split_at(length as usize);
            rest = after;
            value
        })
    }

    /// Encodes the values with `scheme`; `None` if it can't represent them.
    pub(super) fn encode(&self, scheme: Scheme, symbols: &mut Option<Compressor>) -> Option<Encoded> {
        let mut encoded = Encoded::new(scheme);
        match scheme {
            Scheme::Lengths => return Some(self.plain()),
            Scheme::Dictionary => self.dictionary(&mut encoded)?,
            Scheme::Fsst => self.fsst(symbols, &mut encoded),
            _ => return None,
        }
        Some(encoded)
    }

    /// The bytes as they are, and packed lengths.
    pub(super) fn plain(&self) -> Encoded {
        let mut encoded = Encoded::new(Scheme::Lengths);
        pack_into(&self.lengths, &mut encoded);
        encoded.buffers.push(self.bytes.clone());
        encoded
    }

    pub(super) fn constant(&self) -> Option<Encoded> {
        let first = self.values().next().unwrap_or_default();
        let same_lengths = self.lengths.iter().all(|&length| length as usize == first.len());
        (same_lengths && self.values().all(|value| value == first)).then(|| {
            let mut encoded = Encoded::new(Scheme::Constant);
            encoded.head.put_u32(first.len() as u32);
            encoded.head.extend_from_slice(first);
            encoded
        })
    }

    fn dictionary(&self, encoded: &mut Encoded) -> Option<()> {
        let mut codes = Codes::new(self.lengths.len(), DICTIONARY_VALUES_MAX);
        let mut distinct: Vec<&[u8]> = Vec::new();
        for value in self.values() {
            if codes.push(hash(value), |code| distinct[code] == value).ok()? {
                distinct.push(value);
            }
        }
        encoded.head.put_u32(distinct.len() as u32);
        let lengths: Vec<u32> = distinct.iter().map(|value| value.len() as u32).collect();
        encoded.buffers.push(Buffer::from_vec(lengths));
        encoded.buffers.push(Buffer::from_vec(distinct.concat()));
        pack_into(codes.rows(), encoded);
        Some(())
    }

    fn fsst(&self, symbols: &mut Option<Compressor>, encoded: &mut Encoded) {
        let symbols = symbols.get_or_insert_with(|| train(&self.bytes));
        pack_into(&self.lengths, encoded);
        let table = symbols.symbol_table();
        encoded.head.put_u8(table.len() as u8);
        encoded.head.extend_from_slice(symbols.symbol_lengths());
        table.iter().for_each(|symbol| encoded.head.put_u64(symbol.to_u64()));
        // Symbols may span rows, because lengths determine where rows end. Several cursors each encode a part,
        // and the codes of the parts are concatenated.
        const CURSORS: usize = Compressor::DEFAULT_BULK_LANES;
        let part = self.bytes.len().div_ceil(CURSORS).max(1);
        let parts: Vec<&[u8]> = self.bytes.chunks(part).collect();
        let (mut codes, mut ends) = (Vec::new(), Vec::new());
        symbols.compress_bulk_into::<CURSORS>(&parts, &mut codes, &mut ends);
        encoded.buffers.push(Buffer::from_vec(codes));
    }
}

/// Finds symbols for bytes like these.
fn train(bytes: &[u8]) -> Compressor {
    let pieces = bytes.chunks(TRAINING_PIECE_BYTES);
    let step = pieces.len().div_ceil(TRAINING_PIECES).max(1);
    Compressor::train(&pieces.step_by(step).collect())
}

/// A hash of all bytes, eight at a time, and the length.
#[inline(always)]
fn hash(value: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9fb2_1c65_1e98_df25;
    let (words, rest) = value.as_chunks::<8>();
    let last = match value.last_chunk::<8>() {
        // The last bytes as a whole word, which may overlap the previous one.
        Some(last) if !rest.is_empty() => u64::from_le_bytes(*last),
        _ => rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    mix(words.iter().fold(value.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word))), last)
}

/// Decoded strings: their lengths, and their concatenated bytes.
pub(super) struct Decoded {
    pub(super) lengths: Vec<u32>,
    pub(super) bytes: Buffer,
}

/// `count` values of a scheme.
pub(super) fn decode(reader: &mut LightReader<'_>, scheme: Scheme, count: usize) -> Result<Decoded> {
    match scheme {
        Scheme::Constant => {
            let length = reader.schemes.u32()?;
            let value = reader.schemes.take(length as usize)?;
            reader.claim((length as usize).saturating_mul(count))?;
            Ok(Decoded { lengths: vec![length; count], bytes: Buffer::from_vec(value.repeat(count)) })
        }
        Scheme::Lengths => {
            let (lengths, total) = lengths(reader, count)?;
            let bytes = reader.buffer(total)?;
            reader.claim(total)?;
            Ok(Decoded { lengths, bytes })
        }
        Scheme::Dictionary => dictionary(reader, count),
        Scheme::Fsst => fsst(reader, count),
        other => Err(malformed("message", format!("{other:?} strings"))),
    }
}

/// Packed lengths and their sum.
fn lengths(reader: &mut LightReader<'_>, count: usize) -> Result<(Vec<u32>, usize)> {
    let mut lengths: Vec<u32> = Vec::with_capacity(count);
    let mut total = 0u64;
    Packed::read(reader, count)?.extend(&mut lengths, |length| {
        total = total.saturating_add(length);
        length as u32
    });
    let total = u32::try_from(total).map_err(|_| malformed("message", "strings of more than 4 GB"))?;
    Ok((lengths, total as usize))
}

fn dictionary(reader: &mut LightReader<'_>, count: usize) -> Result<Decoded> {
    let values = reader.dictionary_len()?;
    let sizes = reader.buffer(values * size_of::<u32>())?;
    let sizes = sizes.typed_data::<u32>();
    let text = reader.any_buffer()?;
    let mut slices = Vec::with_capacity(values);
    let mut rest: &[u8] = &text;
    for &size in sizes {
        let (value, after) = rest
            .split_at_checked(size as usize)
            .ok_or_else(|| malformed("message", "a dictionary's values are cut short"))?;
        slices.push(value);
        rest = after;
    }
    let codes = Packed::read(reader, count)?.codes(values)?;
    let codes = || codes.iter().map(|&code| usize::from(code));
    let total: u64 = codes().map(|code| u64::from(sizes[code])).sum();
    let total = usize::try_from(total).unwrap_or(usize::MAX);
    reader.claim(total)?;
    let mut bytes = Vec::with_capacity(total);
    codes().for_each(|code| bytes.extend_from_slice(slices[code]));
    let lengths = codes().map(|code| sizes[code]).collect();
    Ok(Decoded { lengths, bytes: Buffer::from_vec(bytes) })
}

fn fsst(reader: &mut LightReader<'_>, count: usize) -> Result<Decoded> {
    let (lengths, total) = lengths(reader, count)?;
    let symbols = usize::from(reader.schemes.u8()?);
    let mut sizes = [0; SYMBOLS_MAX];
    sizes[..symbols].copy_from_slice(reader.schemes.take(symbols)?);
    let mut table = [Symbol::from_slice(&[0; SYMBOL_BYTES]); SYMBOLS_MAX];
    for symbol in &mut table[..symbols] {
        *symbol = Symbol::from_slice(&reader.schemes.u64()?.to_le_bytes());
    }
    // The library does not check this.
    if !sizes[..symbols].iter().all(|size| (1..=SYMBOL_BYTES as u8).contains(size)) {
        return Err(malformed("message", "a symbol that is not of 1 to 8 bytes"));
    }
    let codes = reader.any_buffer()?;
    reader.claim(total)?;
    let mut out = Vec::with_capacity(total);
    let room = &mut out.spare_capacity_mut()[..total];
    if !decompress(&codes, &Decompressor::new(&table, &sizes), &sizes, room) {
        return Err(malformed("message", "symbols that do not make the strings announced"));
    }
    // SAFETY: all of the bytes were written.
    unsafe { out.set_len(total) };
    Ok(Decoded { lengths, bytes: Buffer::from_vec(out) })
}

/// Fills `out`; returns `false` if the codes decode to more or fewer bytes. The library panics if it runs out of
/// room, so it is given at most as many codes at a time as certainly fit.
fn decompress(
    codes: &[u8],
    symbols: &Decompressor<'_>,
    sizes: &[u8; SYMBOLS_MAX],
    mut out: &mut [MaybeUninit<u8>],
) -> bool {
    let mut rest = codes;
    while let Some(&code) = rest.first() {
        let mut count = rest.len().min(out.len() / SYMBOL_BYTES);
        // Keep an escape with its byte: an odd number of escapes at the end leaves one open.
        count -= rest[..count].iter().rev().take_while(|&&code| code == ESCAPE).count() % 2;
        if count == 0 {
            // The last few codes, one at a time, each checked first.
            let size = if code == ESCAPE { 1 } else { usize::from(sizes[usize::from(code)]) };
            count = if code == ESCAPE { 2 } else { 1 };
            if size > out.len() || count > rest.len() {
                return false;
            }
        }
        let (now, later) = rest.split_at(count);
        let written = symbols.decompress_into(now, out);
        (rest, out) = (later, &mut out[written..]);
    }
    out.is_empty()
}
