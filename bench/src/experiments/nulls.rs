//! Layouts of NULL, by the share of NULL: the time to write and read them, and their bytes.

use arrow_array::{Array, Int64Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};

use super::layouts;
use crate::Result;
use crate::plot::Axis;
use crate::settings::Settings;

const PERCENT: [u32; 9] = [0, 1, 5, 10, 25, 50, 75, 90, 100];
const VALUES: f64 = 1e6;
const SEED: u64 = 1;
const VALUE_BYTES: usize = 8;
/// Stands for NULL; no value equals it.
const SENTINEL: i64 = i64::MIN;

/// A layout of 64-bit integers, some of which are NULL.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// One bit per value, then all values, including those that are NULL.
    Bitmap,
    /// All values; one number stands for NULL.
    Sentinel,
    /// One bit per value, then the values that are not NULL.
    Elided,
}

const LAYOUTS: [(&str, Layout); 3] =
    [("bitmap", Layout::Bitmap), ("sentinel", Layout::Sentinel), ("elided", Layout::Elided)];

impl Layout {
    fn encode(self, array: &Int64Array) -> Vec<u8> {
        let values = array.values();
        let mut bytes = Vec::with_capacity(values.len().div_ceil(8) + values.len() * VALUE_BYTES);
        let valid = array.nulls();
        if !matches!(self, Self::Sentinel) {
            match valid {
                // Moved to the first bit, in case the array is a slice.
                Some(nulls) => bytes.extend(nulls.inner().sliced().as_slice()),
                None => bytes.resize(values.len().div_ceil(8), u8::MAX),
            }
        }
        match (self, valid) {
            (Self::Sentinel, Some(nulls)) => {
                for (value, valid) in values.iter().zip(nulls) {
                    bytes.extend(if valid { *value } else { SENTINEL }.to_le_bytes());
                }
            }
            (Self::Elided, Some(nulls)) => {
                for (start, end) in nulls.valid_slices() {
                    values[start..end].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
                }
            }
            _ => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
        }
        bytes
    }

    fn decode(self, bytes: &[u8], count: usize) -> Result<Int64Array> {
        let split = if matches!(self, Self::Sentinel) { 0 } else { count.div_ceil(8) };
        let (bits, rest) = bytes.split_at_checked(split).ok_or("the bitmap is too short")?;
        let number = |bytes: &[u8; VALUE_BYTES]| i64::from_le_bytes(*bytes);
        let numbers = rest.as_chunks::<VALUE_BYTES>().0.iter().map(number);
        let bitmap = || NullBuffer::new(BooleanBuffer::new(bits.to_vec().into(), 0, count));
        let (values, nulls) = match self {
            Self::Bitmap => (numbers.collect(), bitmap()),
            Self::Sentinel => {
                let values: Vec<_> = numbers.collect();
                let valid = BooleanBuffer::collect_bool(values.len(), |at| values[at] != SENTINEL);
                (values, NullBuffer::new(valid))
            }
            Self::Elided => {
                let (nulls, mut values, mut numbers) = (bitmap(), vec![0; count], numbers);
                for (start, end) in nulls.valid_slices() {
                    values[start..end].iter_mut().zip(&mut numbers).for_each(|(place, value)| *place = value);
                }
                (values, nulls)
            }
        };
        Ok(Int64Array::try_new(values.into(), (nulls.null_count() > 0).then_some(nulls))?)
    }
}

/// Random integers, of which `percent` in a hundred are NULL.
fn integers(percent: u32, count: usize) -> Int64Array {
    let mut random = fastrand::Rng::with_seed(SEED);
    (0..count).map(|_| (random.u32(..100) >= percent).then(|| random.i64(SENTINEL + 1..))).collect()
}

fn measure(values: &Int64Array, layout: Layout) -> Result<Vec<f64>> {
    layouts::measure(values, |values| Ok(layout.encode(values)), |bytes| layout.decode(bytes, values.len()))
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let scale = settings.scale_or(1.0);
    let place = |percent: &u32| -> Result<_> {
        let values = integers(*percent, ((VALUES * scale) as usize).max(1));
        let measure = move |layout| measure(&values, layout);
        Ok((percent.to_string(), measure))
    };
    layouts::Study {
        name: "nulls",
        title: "Layouts of NULL",
        text: "A million 64-bit integers, some of them NULL at random, encoded into one buffer and decoded \
               into an Arrow array by one thread in one process. The bitmap comes before all values, or \
               (elided) before those that are not NULL. A sentinel is a value that stands for NULL.",
        dimension: &["NULL, %"],
        axis: Axis::linear("NULL, %"),
        contenders: &LAYOUTS,
    }
    .run(settings, scale, PERCENT.iter().map(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_decodes_to_the_original_values() {
        for percent in PERCENT {
            let values = integers(percent, 1003);
            for values in [values.clone(), values.slice(5, 900)] {
                for (name, layout) in LAYOUTS {
                    let decoded = layout.decode(&layout.encode(&values), values.len()).expect("decoded");
                    assert_eq!(decoded, values, "{name}, {percent}%");
                }
            }
        }
    }

    #[test]
    fn layouts_have_the_expected_sizes() {
        let values = Int64Array::from(vec![Some(1), None, None, Some(2)]);
        let bytes = |layout: Layout| layout.encode(&values).len();
        assert_eq!(bytes(Layout::Bitmap), 1 + 4 * 8);
        assert_eq!(bytes(Layout::Sentinel), 4 * 8);
        assert_eq!(bytes(Layout::Elided), 1 + 2 * 8);
    }
}
