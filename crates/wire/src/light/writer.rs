//! Encodes columns as schemes and buffers.

use std::marker::PhantomData;

use arrow_array::types::ByteViewType;
use arrow_array::{GenericByteViewArray, OffsetSizeTrait};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer, ToByteSlice,
};
use arrow_schema::{DataType, IntervalUnit};
use fsst::Compressor;

use super::choose::{Columns, Site};
use super::floats::Float;
use super::ints::Int;
use super::strings::Strings;
use super::{Encoded, STRING_BYTES_MIN, Scheme, floats, intervals, ints, strings, views};
use crate::codec::{Compression, Packer};
use crate::encode::Sink;
use crate::error::Result;
use crate::layout::padding;

/// Rows of a sample.
const SAMPLE_ROWS: usize = 4096;

/// A batch in the light layout.
pub(crate) struct LightWriter<'a> {
    columns: &'a mut Columns,
    compression: Compression,
    packer: &'a mut Packer,
    next: usize,
    /// Numbers and parameters of the schemes.
    pub(crate) schemes: Vec<u8>,
    /// Each buffer, and whether it is worth compressing.
    pub(crate) buffers: Vec<(Buffer, bool)>,
    /// The size of the buffers in the plain layout, including padding.
    pub(crate) plain_bytes: usize,
}

impl<'a> LightWriter<'a> {
    pub(crate) fn new(columns: &'a mut Columns, compression: Compression, packer: &'a mut Packer) -> Self {
        let (schemes, buffers) = (Vec::new(), Vec::new());
        Self { columns, compression, packer, next: 0, schemes, buffers, plain_bytes: 0 }
    }

    fn site(&mut self, site: &impl Site) {
        let column = self.columns.column(self.next);
        self.next += 1;
        let (encoded, compressed) = column.encode(site, self.compression, self.packer);
        self.schemes.extend_from_slice(&encoded.head);
        let buffers = encoded.buffers.into_iter().enumerate();
        self.buffers.extend(buffers.map(|(at, buffer)| (buffer, compressed & (1 << at) != 0)));
    }

    fn count(&mut self, bytes: usize) {
        self.plain_bytes += bytes + padding(bytes);
    }
}

impl Sink for LightWriter<'_> {
    fn nulls(&mut self, nulls: &NullBuffer) {
        self.count(nulls.len().div_ceil(8));
        if nulls.null_count() < nulls.len() {
            self.buffers.push((nulls.inner().sliced(), true));
        }
    }

    fn booleans(&mut self, values: &BooleanBuffer) {
        self.count(values.len().div_ceil(8));
        let set = values.count_set_bits();
        let constant = (set == 0 || set == values.len()).then_some(u8::from(set > 0));
        self.site(&Opaque { values: values.sliced(), constant });
    }

    fn fixed(&mut self, data_type: &DataType, values: Buffer, nulls: Option<&NullBuffer>) {
        self.count(values.len());
        match data_type {
            DataType::Float32 => self.site(&Floats::<f32, u32>::new(values, nulls)),
            DataType::Float64 => self.site(&Floats::<f64, u64>::new(values, nulls)),
            DataType::Interval(IntervalUnit::DayTime) => {
                let (days, milliseconds) = intervals::of_day_time(&dense(values, nulls));
                self.site(&Ints { values: days });
                self.site(&Ints { values: milliseconds });
            }
            DataType::Interval(IntervalUnit::MonthDayNano) => {
                let (months, days, nanoseconds) = intervals::of_month_day_nano(&dense(values, nulls));
                self.site(&Ints { values: months });
                self.site(&Ints { values: days });
                self.site(&Ints { values: nanoseconds });
            }
            DataType::FixedSizeBinary(width) if *width >= STRING_BYTES_MIN => {
                let width = *width as usize;
                let bytes = dense_of_width(values, width, nulls);
                let lengths = vec![width as u32; bytes.len() / width];
                self.site(&Texts { values: Strings { lengths: lengths.into(), bytes } });
            }
            other => with_int!(other, N => self.site(&Ints { values: dense::<N>(values, nulls) }), {
                self.site(&Opaque { values, constant: None });
            }),
        }
    }

    fn offsets<O: OffsetSizeTrait>(&mut self, offsets: &OffsetBuffer<O>) {
        self.count(offset_bytes(offsets));
        self.site(&Ints::<u32> { values: offsets.lengths().map(|length| length as u32).collect() });
    }

    fn strings<O: OffsetSizeTrait>(
        &mut self,
        offsets: &OffsetBuffer<O>,
        values: &Buffer,
        nulls: Option<&NullBuffer>,
    ) {
        let (start, end) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
        self.count(offset_bytes(offsets));
        self.count(end - start);
        let mut bytes = values.slice_with_length(start, end - start);
        let lengths: Vec<u32> = offsets.lengths().map(|length| length as u32).collect();
        let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else {
            return self.site(&Texts { values: Strings { lengths: lengths.into(), bytes } });
        };
        let kept: Vec<u32> = nulls.valid_indices().map(|row| lengths[row]).collect();
        let used: usize = kept.iter().map(|&length| length as usize).sum();
        if used < bytes.len() {
            let row = |row: usize| &values[offsets[row].as_usize()..offsets[row + 1].as_usize()];
            let mut moved = Vec::with_capacity(used);
            nulls.valid_indices().for_each(|valid| moved.extend_from_slice(row(valid)));
            bytes = Buffer::from_vec(moved);
        }
        self.site(&Texts { values: Strings { lengths: kept.into(), bytes } });
    }

    fn views<T: ByteViewType>(&mut self, array: &GenericByteViewArray<T>) -> Result<()> {
        let (values, long_bytes) = views::gather(array)?;
        self.count(array.views().inner().len());
        self.count(long_bytes);
        self.site(&Texts { values });
        Ok(())
    }
}

/// Bytes of offsets in the plain layout, which has no offsets if there are no rows.
fn offset_bytes<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> usize {
    if offsets.len() == 1 { 0 } else { size_of_val::<[O]>(offsets) }
}

/// The values of rows that are not NULL.
fn dense<T: ArrowNativeType>(values: Buffer, nulls: Option<&NullBuffer>) -> ScalarBuffer<T> {
    let values = ScalarBuffer::<T>::from(values);
    let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return values };
    let mut kept = Vec::with_capacity(nulls.len() - nulls.null_count());
    nulls.valid_slices().for_each(|(start, end)| kept.extend_from_slice(&values[start..end]));
    kept.into()
}

/// As [`dense`], for values of `width` bytes.
fn dense_of_width(values: Buffer, width: usize, nulls: Option<&NullBuffer>) -> Buffer {
    let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0) else { return values };
    let mut kept = Vec::with_capacity((nulls.len() - nulls.null_count()) * width);
    let slices = nulls.valid_slices();
    slices.for_each(|(start, end)| kept.extend_from_slice(&values[start * width..end * width]));
    Buffer::from_vec(kept)
}

/// The first row of a sample, and its number of rows.
fn middle(rows: usize) -> (usize, usize) {
    let sample = rows.min(SAMPLE_ROWS);
    ((rows - sample) / 2, sample)
}

fn constant<T: ArrowNativeType>(values: &[T]) -> Option<Encoded> {
    let first = values.first().copied().unwrap_or_default();
    values.iter().all(|value| value.to_byte_slice() == first.to_byte_slice()).then(|| {
        let mut encoded = Encoded::new(Scheme::Constant);
        encoded.head.extend_from_slice(first.to_byte_slice());
        encoded
    })
}

struct Ints<N: Int> {
    values: ScalarBuffer<N>,
}

impl<N: Int> Site for Ints<N> {
    fn candidates(&self) -> &'static [Scheme] {
        ints::CANDIDATES
    }

    fn plain(&self) -> Encoded {
        Encoded::plain(self.values.inner().clone())
    }

    fn plain_bytes(&self) -> usize {
        self.values.inner().len()
    }

    fn constant(&self) -> Option<Encoded> {
        constant(&self.values)
    }

    fn encode(&self, scheme: Scheme, _: &mut Option<Compressor>) -> Option<Encoded> {
        match scheme {
            Scheme::Plain => Some(self.plain()),
            scheme => ints::encode(&self.values, scheme),
        }
    }

    fn sample(&self) -> Self {
        let (start, len) = middle(self.values.len());
        Self { values: self.values.slice(start, len) }
    }
}

/// Floats, and the integers that have their bits.
struct Floats<F: Float, B: Int> {
    values: ScalarBuffer<F>,
    bits: PhantomData<B>,
}

impl<F: Float, B: Int> Floats<F, B> {
    fn new(values: Buffer, nulls: Option<&NullBuffer>) -> Self {
        Self { values: dense(values, nulls), bits: PhantomData }
    }
}

impl<F: Float, B: Int> Site for Floats<F, B> {
    fn candidates(&self) -> &'static [Scheme] {
        floats::CANDIDATES
    }

    fn plain(&self) -> Encoded {
        Encoded::plain(self.values.inner().clone())
    }

    fn plain_bytes(&self) -> usize {
        self.values.inner().len()
    }

    fn constant(&self) -> Option<Encoded> {
        constant(&self.values)
    }

    fn encode(&self, scheme: Scheme, _: &mut Option<Compressor>) -> Option<Encoded> {
        match scheme {
            Scheme::Plain => Some(self.plain()),
            Scheme::Decimal => floats::encode(&self.values),
            scheme => ints::encode(&ScalarBuffer::<B>::from(self.values.inner().clone()), scheme),
        }
    }

    fn sample(&self) -> Self {
        let (start, len) = middle(self.values.len());
        Self { values: self.values.slice(start, len), bits: PhantomData }
    }
}

/// Values of which only the bytes are known, including those of NULL rows.
struct Opaque {
    values: Buffer,
    /// The value of all of them, if it is known.
    constant: Option<u8>,
}

impl Site for Opaque {
    fn candidates(&self) -> &'static [Scheme] {
        &[Scheme::Plain]
    }

    fn plain(&self) -> Encoded {
        Encoded::plain(self.values.clone())
    }

    fn plain_bytes(&self) -> usize {
        self.values.len()
    }

    fn constant(&self) -> Option<Encoded> {
        self.constant.map(|value| {
            let mut encoded = Encoded::new(Scheme::Constant);
            encoded.head.push(value);
            encoded
        })
    }

    fn encode(&self, _: Scheme, _: &mut Option<Compressor>) -> Option<Encoded> {
        Some(self.plain())
    }

    fn sample(&self) -> Self {
        let (start, len) = middle(self.values.len());
        Self { values: self.values.slice_with_length(start, len), constant: None }
    }
}

struct Texts {
    values: Strings,
}

impl Site for Texts {
    fn candidates(&self) -> &'static [Scheme] {
        strings::CANDIDATES
    }

    fn plain(&self) -> Encoded {
        self.values.plain()
    }

    fn plain_bytes(&self) -> usize {
        self.values.bytes.len() + self.values.lengths.inner().len()
    }

    fn constant(&self) -> Option<Encoded> {
        self.values.constant()
    }

    fn encode(&self, scheme: Scheme, symbols: &mut Option<Compressor>) -> Option<Encoded> {
        self.values.encode(scheme, symbols)
    }

    fn sample(&self) -> Self {
        let (start, len) = middle(self.values.lengths.len());
        let lengths = self.values.lengths.slice(start, len);
        let sum = |lengths: &[u32]| lengths.iter().map(|&length| length as usize).sum::<usize>();
        let before = sum(&self.values.lengths[..start]);
        let bytes = self.values.bytes.slice_with_length(before, sum(&lengths));
        Self { values: Strings { lengths, bytes } }
    }
}
