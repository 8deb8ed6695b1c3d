//! Integers: constant, packed within their range, as multiples of a divisor, as
//! differences, or as codes of a dictionary.

use arrow_buffer::{ArrowNativeType, Buffer, i256};

use super::bits::{Lane, pack, packed_bytes, unpack, width_of, with_lane};
use super::codes::Codes;
use super::reader::LightReader;
use super::{Encoded, Scheme};
use crate::bytes::Put;
use crate::error::{Result, malformed};

/// The maximum number of values in a dictionary.
pub(super) const DICTIONARY_VALUES_MAX: u16 = 1 << 12;

/// The schemes for integers.
pub(super) const CANDIDATES: &[Scheme] =
    &[Scheme::Plain, Scheme::Packed, Scheme::Multiples, Scheme::Delta, Scheme::Dictionary];

/// An integer that is encoded as 64 bits, if it fits in them. Others (decimals of more than 18 digits) are sent as
/// they are.
pub(super) trait Int: ArrowNativeType + Ord {
    /// The value modulo 2^64.
    fn word(self) -> u64;
    /// The value whose sign-extended 64 bits these are.
    fn of_word(word: u64) -> Self;
    /// Whether `of_word(word(self))` is the value.
    fn fits(self) -> bool;
}

macro_rules! int {
    ($($t:ty),*) => {$(
        impl Int for $t {
            #[inline(always)]
            fn word(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn of_word(word: u64) -> Self {
                word as $t
            }
            #[inline(always)]
            fn fits(self) -> bool {
                true
            }
        }
    )*};
}
int!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Int for i128 {
    #[inline(always)]
    fn word(self) -> u64 {
        self as u64
    }
    #[inline(always)]
    fn of_word(word: u64) -> Self {
        Self::from(word as i64)
    }
    #[inline(always)]
    fn fits(self) -> bool {
        (self >> 64) as i64 == (self as i64) >> 63
    }
}

impl Int for i256 {
    fn word(self) -> u64 {
        self.as_i128() as u64
    }
    fn of_word(word: u64) -> Self {
        Self::from_i128(i128::of_word(word))
    }
    fn fits(self) -> bool {
        self.to_i128().is_some_and(Int::fits)
    }
}

/// Encodes the values with `scheme`; `None` if it can't represent them.
pub(super) fn encode<N: Int>(values: &[N], scheme: Scheme) -> Option<Encoded> {
    if size_of::<N>() <= size_of::<u64>() {
        return encode_narrow(values, scheme);
    }
    // Folded, not `all`: without an early exit the test is vectorised.
    if !values.iter().fold(true, |fits, value| fits & value.fits()) {
        return None;
    }
    let narrowed: Vec<i64> = values.iter().map(|value| value.word() as i64).collect();
    encode_narrow(&narrowed, scheme)
}

fn encode_narrow<N: Int>(values: &[N], scheme: Scheme) -> Option<Encoded> {
    let mut encoded = Encoded::new(scheme);
    match scheme {
        Scheme::Packed => pack_into(values, &mut encoded),
        Scheme::Multiples => {
            let least = values.iter().min()?.word();
            let divisor = divisor(values.iter().map(|value| value.word().wrapping_sub(least)))?;
            encoded.head.put_u64(divisor);
            encoded.head.put_u64(least);
            let multiples = values.iter().map(|value| value.word().wrapping_sub(least) / divisor);
            pack_into(&multiples.collect::<Vec<u64>>(), &mut encoded);
        }
        Scheme::Delta => {
            let (first, rest) = values.split_first()?;
            encoded.head.put_u64(first.word());
            let steps = values.iter().zip(rest);
            let steps: Vec<i64> =
                steps.map(|(before, value)| value.word().wrapping_sub(before.word()) as i64).collect();
            pack_into(&steps, &mut encoded);
        }
        Scheme::Dictionary => {
            let mut codes = Codes::new(values.len(), DICTIONARY_VALUES_MAX);
            let mut distinct: Vec<u64> = Vec::new();
            for value in values {
                let word = value.word();
                if codes.push(word, |code| distinct[code] == word).ok()? {
                    distinct.push(word);
                }
            }
            encoded.head.put_u32(distinct.len() as u32);
            encoded.buffers.push(Buffer::from_vec(distinct));
            pack_into(codes.rows(), &mut encoded);
        }
        _ => return None,
    }
    Some(encoded)
}

/// The common divisor of all words, if it is more than one: days in milliseconds, whole seconds in microseconds.
fn divisor(words: impl Iterator<Item = u64>) -> Option<u64> {
    let mut divisor = 0;
    for word in words {
        if divisor == 0 || !word.is_multiple_of(divisor) {
            divisor = greatest_common_divisor(divisor, word);
            if divisor == 1 {
                return None;
            }
        }
    }
    Some(divisor).filter(|&divisor| divisor > 1)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Packs values within their range: reference and width go to the head, the values into one buffer.
pub(super) fn pack_into<N: Int>(values: &[N], encoded: &mut Encoded) {
    let first = values.first().copied().unwrap_or_default();
    let (min, max) =
        values.iter().fold((first, first), |(min, max), &value| (min.min(value), max.max(value)));
    let reference = min.word();
    let width = width_of(max.word().wrapping_sub(reference));
    encoded.head.put_u64(reference);
    encoded.head.put_u8(width as u8);
    let mut out = Vec::new();
    with_lane!(width, L => {
        pack::<N, L>(values, width, &mut out, |value| value.word().wrapping_sub(reference));
    });
    encoded.buffers.push(Buffer::from_vec(out));
}

/// `count` values of a scheme, appended.
pub(super) fn decode<N: Int>(
    reader: &mut LightReader<'_>,
    scheme: Scheme,
    count: usize,
    out: &mut Vec<N>,
) -> Result<()> {
    match scheme {
        Scheme::Packed => Packed::read(reader, count)?.extend(out, N::of_word),
        Scheme::Multiples => {
            let (divisor, least) = (reader.schemes.u64()?, reader.schemes.u64()?);
            let packed = Packed::read(reader, count)?;
            packed.extend(out, |word| N::of_word(least.wrapping_add(word.wrapping_mul(divisor))));
        }
        Scheme::Delta => {
            let first = reader.schemes.u64()?;
            let steps =
                count.checked_sub(1).ok_or_else(|| malformed("message", "differences of no values"))?;
            let packed = Packed::read(reader, steps)?;
            let mut word = first;
            out.push(N::of_word(word));
            packed.extend(out, |step| {
                word = word.wrapping_add(step);
                N::of_word(word)
            });
        }
        Scheme::Dictionary => {
            let values = reader.dictionary_len()?;
            let words = reader.buffer(values * size_of::<u64>())?;
            let words: Vec<N> = words.typed_data::<u64>().iter().map(|&word| N::of_word(word)).collect();
            let codes = Packed::read(reader, count)?.codes(values)?;
            out.extend(codes.into_iter().map(|code| words[usize::from(code)]));
        }
        other => return Err(malformed("message", format!("{other:?} integers"))),
    }
    Ok(())
}

/// Packed words, after their size was checked.
pub(super) struct Packed {
    reference: u64,
    width: u32,
    count: usize,
    bytes: Buffer,
}

impl Packed {
    pub(super) fn read(reader: &mut LightReader<'_>, count: usize) -> Result<Self> {
        let reference = reader.schemes.u64()?;
        let width = u32::from(reader.schemes.u8()?);
        if width > u64::BITS {
            return Err(malformed("message", format!("values of {width} bits")));
        }
        let bytes = reader.buffer(packed_bytes(count, width))?;
        Ok(Self { reference, width, count, bytes })
    }

    /// Appends the result of `value` for each word.
    pub(super) fn extend<N>(&self, out: &mut Vec<N>, mut value: impl FnMut(u64) -> N) {
        let reference = self.reference;
        with_lane!(self.width, L => unpack::<L>(&self.bytes, self.count, self.width, |words| {
            out.extend(words.iter().map(|word| value(word.widen().wrapping_add(reference))));
        }));
    }

    /// Codes of a dictionary with this many values.
    pub(super) fn codes(&self, values: usize) -> Result<Vec<u16>> {
        let mut codes: Vec<u16> = Vec::with_capacity(self.count);
        self.extend(&mut codes, |word| u16::try_from(word).unwrap_or(u16::MAX));
        let largest = codes.iter().fold(0, |largest, &code| largest.max(code));
        if self.count > 0 && usize::from(largest) >= values {
            return Err(malformed("message", format!("code {largest} in a dictionary of {values} values")));
        }
        Ok(codes)
    }
}
