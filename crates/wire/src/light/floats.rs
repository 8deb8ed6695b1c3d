//! Floating-point numbers that are decimals in disguise, as integers over a power
//! of ten (after A. Afroozeh, L. Kuffo, P. Boncz, "ALP: Adaptive Lossless
//! floating-Point Compression", SIGMOD 2024).
//!
//! ALP multiplies by an inverse power of ten, and picks from pairs of exponents to
//! undo the error of that; we divide, which is correctly rounded, so that one
//! exponent is enough: the double nearest to i / 10^e is the one that was written
//! with e digits.

use arrow_buffer::{ArrowNativeType, Buffer};

use super::ints::{Packed, pack_into};
use super::reader::LightReader;
use super::{Encoded, Scheme};
use crate::bytes::Put;
use crate::error::{Result, malformed};

/// The schemes for floats.
pub(super) const CANDIDATES: &[Scheme] = &[Scheme::Plain, Scheme::Decimal, Scheme::Dictionary];

/// Powers of ten that a double holds exactly.
const POWERS: [f64; 19] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18];
/// Adding and subtracting it rounds what is below 2^51 to an integer.
const ROUNDER: f64 = (1u64 << 52) as f64 * 1.5;
/// Larger integers are not rounded correctly.
const MAGNITUDE_MAX: f64 = (1u64 << 51) as f64;
/// The size of the sample for finding an exponent.
const TRIED: usize = 256;
/// One value in this many may be an exception.
const EXCEPTIONS_SHARE: usize = 16;

/// A float that goes through 64 bits.
pub(super) trait Float: ArrowNativeType {
    fn double(self) -> f64;
    fn of_double(double: f64) -> Self;
    fn same_bits(self, other: Self) -> bool;
}

macro_rules! float {
    ($($t:ty),*) => {$(
        impl Float for $t {
            #[inline(always)]
            fn double(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn of_double(double: f64) -> Self {
                double as $t
            }
            #[inline(always)]
            fn same_bits(self, other: Self) -> bool {
                self.to_bits() == other.to_bits()
            }
        }
    )*};
}
float!(f32, f64);

#[inline(always)]
fn integer<F: Float>(value: F, power: f64) -> f64 {
    let scaled = value.double() * power;
    // Also zero for NaN.
    if scaled.abs() < MAGNITUDE_MAX { scaled + ROUNDER - ROUNDER } else { 0.0 }
}

#[inline(always)]
fn restore<F: Float>(integer: f64, power: f64) -> F {
    F::of_double(integer / power)
}

/// The values as integers, if nearly all are decimals of few digits.
pub(super) fn encode<F: Float>(values: &[F]) -> Option<Encoded> {
    let exponent = exponent(values)?;
    let power = POWERS[exponent];
    let mut integers: Vec<i64> = Vec::with_capacity(values.len());
    integers.extend(values.iter().map(|&value| integer(value, power) as i64));
    let same = |(&value, &integer): (&F, &i64)| value.same_bits(restore(integer as f64, power));
    let exceptions = values.iter().zip(&integers).filter(|&pair| !same(pair)).count();
    if exceptions > values.len() / EXCEPTIONS_SHARE {
        return None;
    }
    let (mut places, mut verbatim): (Vec<u32>, Vec<F>) = Default::default();
    if exceptions > 0 {
        // The integers in their places must not widen the range.
        let mut filler = values.iter().zip(&integers).find(|&pair| same(pair)).map_or(0, |(_, &i)| i);
        for (place, (&value, integer)) in values.iter().zip(&mut integers).enumerate() {
            if same((&value, integer)) {
                filler = *integer;
            } else {
                *integer = filler;
                places.push(place as u32);
                verbatim.push(value);
            }
        }
    }
    let mut encoded = Encoded::new(Scheme::Decimal);
    encoded.head.put_u8(exponent as u8);
    encoded.head.put_u32(exceptions as u32);
    pack_into(&integers, &mut encoded);
    encoded.buffers.push(Buffer::from_vec(places));
    encoded.buffers.push(Buffer::from_vec(verbatim));
    Some(encoded)
}

/// The smallest exponent that fits most values of a sample.
fn exponent<F: Float>(values: &[F]) -> Option<usize> {
    let step = values.len().div_ceil(TRIED).max(1);
    let sample: Vec<F> = values.iter().copied().step_by(step).collect();
    let misses = |power: f64| {
        let same = |value: &&F| value.same_bits(restore(integer(**value, power), power));
        sample.len() - sample.iter().filter(same).count()
    };
    POWERS.iter().position(|&power| misses(power) <= sample.len() / EXCEPTIONS_SHARE)
}

/// `count` values, appended.
pub(super) fn decode<F: Float>(reader: &mut LightReader<'_>, count: usize, out: &mut Vec<F>) -> Result<()> {
    let exponent = usize::from(reader.schemes.u8()?);
    let exceptions = reader.schemes.u32()? as usize;
    let (Some(&power), true) = (POWERS.get(exponent), exceptions <= count) else {
        return Err(malformed("message", format!("{exceptions} exceptions, decimals of {exponent} digits")));
    };
    let start = out.len();
    Packed::read(reader, count)?.extend(out, |word| restore(word as i64 as f64, power));
    let places = reader.buffer(exceptions * size_of::<u32>())?;
    let verbatim = reader.buffer(exceptions * size_of::<F>())?;
    for (&place, &value) in places.typed_data::<u32>().iter().zip(verbatim.typed_data::<F>()) {
        let slot = out[start..].get_mut(place as usize);
        *slot.ok_or_else(|| malformed("message", "an exception beyond the values"))? = value;
    }
    Ok(())
}
