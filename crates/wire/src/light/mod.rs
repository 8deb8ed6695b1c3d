//! The light layout (`docs/format.md`, section 6): each column of each message is in the cheapest of a few
//! encodings, which is found by trying them on a sample.
//!
//! [`LightWriter`] encodes the parts that the walk over a batch finds. [`LightReader`] restores the buffers of the
//! plain layout, so that the same code verifies both layouts.

/// Calls with the integer that a type's values are; or evaluates the last argument.
macro_rules! with_int {
    ($data_type:expr, $n:ident => $body:expr, $other:expr) => {{
        use arrow_schema::{DataType::*, IntervalUnit};
        macro_rules! with {
            ($t:ty) => {{
                type $n = $t;
                $body
            }};
        }
        match $data_type {
            Int8 => with!(i8),
            Int16 => with!(i16),
            Int32 | Date32 | Time32(_) | Decimal32(_, _) | Interval(IntervalUnit::YearMonth) => with!(i32),
            Int64 | Date64 | Time64(_) | Timestamp(_, _) | Duration(_) | Decimal64(_, _) => with!(i64),
            UInt8 => with!(u8),
            UInt16 | Float16 => with!(u16),
            UInt32 => with!(u32),
            UInt64 => with!(u64),
            Decimal128(_, _) => with!(i128),
            Decimal256(_, _) => with!(arrow_buffer::i256),
            _ => $other,
        }
    }};
}

mod bits;
mod choose;
mod codes;
mod floats;
mod intervals;
mod ints;
mod reader;
mod strings;
mod views;
mod writer;

pub(crate) use choose::Columns;
pub(crate) use reader::LightReader;
pub(crate) use writer::LightWriter;

use arrow_buffer::Buffer;

use crate::bytes::Put;
use crate::error::{Result, malformed};

/// Set in the table of buffers for one that lies in the compressed part.
pub(crate) const COMPRESSED_FLAG: u32 = 1 << 31;

/// FixedSizeBinary values of at least this size count as strings, whose lengths take this much memory.
/// Shorter ones are sent as they are.
const STRING_BYTES_MIN: i32 = 4;

/// The encoding of a column's values. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Scheme {
    /// As they are.
    Plain = 0,
    /// One value for all rows.
    Constant = 1,
    /// Integers: the differences from the least, in as few bits as the largest needs.
    Packed = 2,
    /// Integers: the first, then packed differences.
    Delta = 3,
    /// A dictionary of distinct values, and packed codes.
    Dictionary = 4,
    /// Strings: packed lengths, and the bytes as they are.
    Lengths = 5,
    /// Strings: packed lengths, and codes for frequent pieces.
    Fsst = 6,
    /// Floats: packed integers over a power of ten.
    Decimal = 7,
    /// Integers: packed, after division by a common divisor.
    Multiples = 8,
}

impl Scheme {
    fn parse(byte: u8) -> Result<Self> {
        use Scheme::*;
        [Plain, Constant, Packed, Delta, Dictionary, Lengths, Fsst, Decimal, Multiples]
            .into_iter()
            .find(|&scheme| scheme as u8 == byte)
            .ok_or_else(|| malformed("message", format!("unknown scheme {byte}")))
    }
}

/// A column's values in a scheme.
struct Encoded {
    /// The scheme's number and parameters.
    head: Vec<u8>,
    buffers: Vec<Buffer>,
}

impl Encoded {
    fn new(scheme: Scheme) -> Self {
        let mut head = Vec::new();
        head.put_u8(scheme as u8);
        Self { head, buffers: Vec::new() }
    }

    fn plain(values: Buffer) -> Self {
        Self { buffers: vec![values], ..Self::new(Scheme::Plain) }
    }

    fn bytes(&self) -> usize {
        self.head.len() + self.buffers.iter().map(Buffer::len).sum::<usize>()
    }
}
