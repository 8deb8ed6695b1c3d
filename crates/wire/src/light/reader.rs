//! Decodes schemes and buffers to the buffers of the plain layout.

use arrow_array::OffsetSizeTrait;
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer};
use arrow_schema::{DataType, IntervalUnit};

use super::floats::Float;
use super::ints::{DICTIONARY_VALUES_MAX, Int};
use super::{COMPRESSED_FLAG, STRING_BYTES_MIN, Scheme, floats, intervals, ints, strings, views};
use crate::bytes::Reader;
use crate::decode::{Body, Source, bytes_of, exactly, fixed_bytes};
use crate::error::{Result, WireError, malformed};

/// The columns of a message in the light layout.
///
/// Memory for decoded values is limited to what the message announced, which its reader has checked before.
pub(crate) struct LightReader<'a> {
    nodes: Reader<'a>,
    slices: Reader<'a>,
    pub(super) schemes: Reader<'a>,
    stored: Body,
    unpacked: Body,
    unclaimed_bytes: usize,
}

impl<'a> LightReader<'a> {
    /// `plain_bytes` is the size of the columns in the plain layout.
    pub(crate) fn new(
        nodes: Reader<'a>,
        slices: Reader<'a>,
        schemes: Reader<'a>,
        stored: Body,
        unpacked: Body,
        plain_bytes: usize,
    ) -> Self {
        Self { nodes, slices, schemes, stored, unpacked, unclaimed_bytes: plain_bytes }
    }

    /// Counts bytes about to be allocated against what was announced.
    pub(super) fn claim(&mut self, bytes: usize) -> Result<()> {
        self.has_room(bytes)?;
        self.unclaimed_bytes -= bytes;
        Ok(())
    }

    /// Fails if fewer bytes than this are left of those announced.
    fn has_room(&self, bytes: usize) -> Result<()> {
        match self.unclaimed_bytes {
            limit if bytes > limit => {
                Err(WireError::TooLarge { what: "decoded column", bytes: bytes as u64, limit: limit as u64 })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn any_buffer(&mut self) -> Result<Buffer> {
        let entry = self.slices.u32()?;
        let body = if entry & COMPRESSED_FLAG == 0 { &mut self.stored } else { &mut self.unpacked };
        body.next((entry & !COMPRESSED_FLAG) as usize)
    }

    pub(super) fn buffer(&mut self, bytes: usize) -> Result<Buffer> {
        exactly(self.any_buffer()?, bytes)
    }

    /// The number of values in the next dictionary.
    pub(super) fn dictionary_len(&mut self) -> Result<usize> {
        match self.schemes.u32()? {
            len if len <= DICTIONARY_VALUES_MAX.into() => Ok(len as usize),
            len => Err(malformed("message", format!("a dictionary of {len} values"))),
        }
    }

    fn scheme(&mut self) -> Result<Scheme> {
        Scheme::parse(self.schemes.u8()?)
    }

    /// Values of `count` rows, all of them valid.
    fn dense<N: Int>(&mut self, scheme: Scheme, count: usize) -> Result<Buffer> {
        match scheme {
            Scheme::Plain => self.buffer(bytes_of::<N>(count)?),
            Scheme::Constant => {
                let bytes = self.schemes.take(size_of::<N>())?;
                // The copy is aligned.
                let value = Buffer::from(bytes).typed_data::<N>()[0];
                Ok(Buffer::from_vec(vec![value; count]))
            }
            scheme => {
                let mut out = Vec::with_capacity(count);
                ints::decode::<N>(self, scheme, count, &mut out)?;
                Ok(Buffer::from_vec(out))
            }
        }
    }

    fn ints<N: Int>(&mut self, len: usize, nulls: Option<&NullBuffer>) -> Result<Buffer> {
        let scheme = self.scheme()?;
        let values = self.dense::<N>(scheme, valid(len, nulls))?;
        Ok(spread::<N>(values, nulls))
    }

    /// Values of a fixed width; `bytes` includes the values of NULL rows.
    fn fixed_binary(
        &mut self,
        width: usize,
        bytes: usize,
        nulls: Option<&NullBuffer>,
        len: usize,
    ) -> Result<Buffer> {
        self.has_room(bytes)?;
        let (scheme, count) = (self.scheme()?, valid(len, nulls));
        let decoded = strings::decode(self, scheme, count)?;
        if decoded.lengths.iter().any(|&length| length as usize != width) {
            return Err(malformed("message", format!("a value that is not of {width} bytes")));
        }
        let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return Ok(decoded.bytes) };
        self.claim(bytes - decoded.bytes.len())?;
        let mut out = vec![0; bytes];
        let mut taken = 0;
        for (start, end) in nulls.valid_slices() {
            let run = &decoded.bytes[taken..taken + (end - start) * width];
            out[start * width..end * width].copy_from_slice(run);
            taken += run.len();
        }
        Ok(Buffer::from_vec(out))
    }

    /// Floats, or the integers that have their bits.
    fn floats<F: Float, B: Int>(&mut self, len: usize, nulls: Option<&NullBuffer>) -> Result<Buffer> {
        let count = valid(len, nulls);
        let values = match self.scheme()? {
            Scheme::Decimal => {
                let mut out = Vec::with_capacity(count);
                floats::decode::<F>(self, count, &mut out)?;
                Buffer::from_vec(out)
            }
            scheme => self.dense::<B>(scheme, count)?,
        };
        Ok(spread::<F>(values, nulls))
    }
}

impl Source for LightReader<'_> {
    fn node(&mut self) -> Result<(usize, usize)> {
        Ok((self.nodes.u32()? as usize, self.nodes.u32()? as usize))
    }

    fn nulls(&mut self, len: usize, null_count: usize) -> Result<NullBuffer> {
        self.claim(len.div_ceil(8))?;
        if null_count == len {
            return Ok(NullBuffer::new_null(len));
        }
        Ok(NullBuffer::new(BooleanBuffer::new(self.buffer(len.div_ceil(8))?, 0, len)))
    }

    fn booleans(&mut self, len: usize) -> Result<Buffer> {
        let bytes = len.div_ceil(8);
        self.claim(bytes)?;
        match self.scheme()? {
            Scheme::Plain => self.buffer(bytes),
            Scheme::Constant => {
                let bits: u8 = if self.schemes.u8()? == 0 { 0 } else { 0xff };
                Ok(Buffer::from_vec(vec![bits; bytes]))
            }
            other => Err(malformed("message", format!("{other:?} booleans"))),
        }
    }

    fn fixed(&mut self, data_type: &DataType, len: usize, nulls: Option<&NullBuffer>) -> Result<Buffer> {
        let bytes = fixed_bytes(data_type, len)?;
        if let DataType::FixedSizeBinary(width @ STRING_BYTES_MIN..) = data_type {
            return self.fixed_binary(*width as usize, bytes, nulls, len);
        }
        self.claim(bytes)?;
        match data_type {
            DataType::Interval(IntervalUnit::DayTime) => {
                let (days, milliseconds) = (self.ints::<i32>(len, nulls)?, self.ints::<i32>(len, nulls)?);
                Ok(intervals::day_time(&days, &milliseconds))
            }
            DataType::Interval(IntervalUnit::MonthDayNano) => {
                let (months, days) = (self.ints::<i32>(len, nulls)?, self.ints::<i32>(len, nulls)?);
                let nanoseconds = self.ints::<i64>(len, nulls)?;
                Ok(intervals::month_day_nano(&months, &days, &nanoseconds))
            }
            DataType::Float32 => self.floats::<f32, u32>(len, nulls),
            DataType::Float64 => self.floats::<f64, u64>(len, nulls),
            other => with_int!(other, N => self.ints::<N>(len, nulls), {
                match self.scheme()? {
                    Scheme::Plain => self.buffer(bytes),
                    scheme => Err(malformed("message", format!("{scheme:?} {other}"))),
                }
            }),
        }
    }

    fn offsets<O: OffsetSizeTrait>(&mut self, len: usize) -> Result<Buffer> {
        if len > 0 {
            self.claim(bytes_of::<O>(len.saturating_add(1))?)?;
        }
        let lengths = self.ints::<u32>(len, None)?;
        offsets::<O>(lengths.typed_data(), len, None)
    }

    fn strings<O: OffsetSizeTrait>(
        &mut self,
        len: usize,
        nulls: Option<&NullBuffer>,
    ) -> Result<(Buffer, Buffer)> {
        if len > 0 {
            self.claim(bytes_of::<O>(len.saturating_add(1))?)?;
        }
        let scheme = self.scheme()?;
        let decoded = strings::decode(self, scheme, valid(len, nulls))?;
        Ok((offsets::<O>(&decoded.lengths, len, nulls)?, decoded.bytes))
    }

    fn views(&mut self, len: usize, nulls: Option<&NullBuffer>) -> Result<(Buffer, Buffer)> {
        self.claim(bytes_of::<u128>(len)?)?;
        let count = valid(len, nulls);
        // Short values are decoded before they are copied into views. The message announced no memory for that.
        let inline = count * views::INLINE_BYTES;
        self.unclaimed_bytes = self.unclaimed_bytes.saturating_add(inline);
        let scheme = self.scheme()?;
        let decoded = strings::decode(self, scheme, count)?;
        let lengths = decoded.lengths.iter().map(|&length| length as usize);
        let short: usize = lengths.filter(|&length| length <= views::INLINE_BYTES).sum();
        self.claim(inline - short)?;
        if decoded.bytes.len() > u32::MAX as usize {
            return Err(malformed("message", "views of more than 4 GB"));
        }
        let views = Buffer::from_vec(views::build(&decoded.lengths, &decoded.bytes));
        let bytes = if short == decoded.bytes.len() { Buffer::default() } else { decoded.bytes };
        Ok((spread::<u128>(views, nulls), bytes))
    }

    fn end(self) -> Result<()> {
        self.nodes.end()?;
        self.slices.end()?;
        self.schemes.end()?;
        self.stored.end()?;
        self.unpacked.end()
    }
}

fn valid(len: usize, nulls: Option<&NullBuffer>) -> usize {
    len - nulls.map_or(0, NullBuffer::null_count)
}

/// Offsets of rows from the lengths of those that are not NULL.
fn offsets<O: OffsetSizeTrait>(lengths: &[u32], len: usize, nulls: Option<&NullBuffer>) -> Result<Buffer> {
    let mut offsets = Vec::with_capacity(len + 1);
    let mut end = 0u64;
    offsets.push(O::default());
    match nulls.filter(|nulls| nulls.null_count() > 0) {
        None => offsets.extend(lengths.iter().map(|&length| {
            end += u64::from(length);
            O::usize_as(end as usize)
        })),
        Some(nulls) => {
            let mut lengths = lengths.iter();
            offsets.extend(nulls.iter().map(|valid| {
                end += if valid { u64::from(*lengths.next().unwrap_or(&0)) } else { 0 };
                O::usize_as(end as usize)
            }));
        }
    }
    if O::from_usize(end as usize).is_none() {
        return Err(malformed("message", format!("values of {end} bytes or items in one array")));
    }
    Ok(Buffer::from_vec(offsets))
}

/// Moves values to the rows that are not NULL; the others are zero.
fn spread<T: ArrowNativeType>(values: Buffer, nulls: Option<&NullBuffer>) -> Buffer {
    let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return values };
    let values = values.typed_data::<T>();
    let mut out = vec![T::default(); nulls.len()];
    let mut taken = 0;
    for (start, end) in nulls.valid_slices() {
        out[start..end].copy_from_slice(&values[taken..taken + (end - start)]);
        taken += end - start;
    }
    Buffer::from_vec(out)
}
