//! The rows of lineitem as Protocol Buffers: one message per row, or one message of columns per chunk.
//! Frames have a length prefix, and the client decodes all of them.

use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Date32Type, Decimal128Type, Int32Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use clap::ValueEnum;
use prost::Message;
use zstd::bulk;

use super::{TransferResult, print};
use crate::{Error, Result, data};

/// Rows of a chunk: about 1 MB, the optimum of the columnar protocol.
const CHUNK_ROWS: usize = 8192;
const CHUNK_BYTES_MAX: usize = 64 << 20;

/// The level of Zstandard, as in Lightship's protocol.
const ZSTD_LEVEL: i32 = 1;
/// Added to the byte that asks for a shape, if frames are to be compressed.
const COMPRESSED: u8 = 0x80;

/// How rows are put into messages.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum Shape {
    /// One message per row.
    Rows,
    /// One message per chunk, with a packed field per column.
    Columns,
}

/// A row of lineitem. Decimals are unscaled integers, dates are days since 1970.
#[derive(Clone, PartialEq, Message)]
struct Row {
    #[prost(int64, tag = "1")]
    orderkey: i64,
    #[prost(int64, tag = "2")]
    partkey: i64,
    #[prost(int64, tag = "3")]
    suppkey: i64,
    #[prost(int32, tag = "4")]
    linenumber: i32,
    #[prost(int64, tag = "5")]
    quantity: i64,
    #[prost(int64, tag = "6")]
    extendedprice: i64,
    #[prost(int64, tag = "7")]
    discount: i64,
    #[prost(int64, tag = "8")]
    tax: i64,
    #[prost(string, tag = "9")]
    returnflag: String,
    #[prost(string, tag = "10")]
    linestatus: String,
    #[prost(int32, tag = "11")]
    shipdate: i32,
    #[prost(int32, tag = "12")]
    commitdate: i32,
    #[prost(int32, tag = "13")]
    receiptdate: i32,
    #[prost(string, tag = "14")]
    shipinstruct: String,
    #[prost(string, tag = "15")]
    shipmode: String,
    #[prost(string, tag = "16")]
    comment: String,
}

#[derive(Clone, PartialEq, Message)]
struct Rows {
    #[prost(message, repeated, tag = "1")]
    rows: Vec<Row>,
}

/// A chunk of rows, with one field per column.
#[derive(Clone, PartialEq, Message)]
struct Columns {
    #[prost(int64, repeated, tag = "1")]
    orderkey: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    partkey: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    suppkey: Vec<i64>,
    #[prost(int32, repeated, tag = "4")]
    linenumber: Vec<i32>,
    #[prost(int64, repeated, tag = "5")]
    quantity: Vec<i64>,
    #[prost(int64, repeated, tag = "6")]
    extendedprice: Vec<i64>,
    #[prost(int64, repeated, tag = "7")]
    discount: Vec<i64>,
    #[prost(int64, repeated, tag = "8")]
    tax: Vec<i64>,
    #[prost(string, repeated, tag = "9")]
    returnflag: Vec<String>,
    #[prost(string, repeated, tag = "10")]
    linestatus: Vec<String>,
    #[prost(int32, repeated, tag = "11")]
    shipdate: Vec<i32>,
    #[prost(int32, repeated, tag = "12")]
    commitdate: Vec<i32>,
    #[prost(int32, repeated, tag = "13")]
    receiptdate: Vec<i32>,
    #[prost(string, repeated, tag = "14")]
    shipinstruct: Vec<String>,
    #[prost(string, repeated, tag = "15")]
    shipmode: Vec<String>,
    #[prost(string, repeated, tag = "16")]
    comment: Vec<String>,
}

impl Columns {
    fn of(batch: &RecordBatch) -> Result<Self> {
        Ok(Self {
            orderkey: numbers::<Int64Type>(batch, 0)?.to_vec(),
            partkey: numbers::<Int64Type>(batch, 1)?.to_vec(),
            suppkey: numbers::<Int64Type>(batch, 2)?.to_vec(),
            linenumber: numbers::<Int32Type>(batch, 3)?.to_vec(),
            quantity: decimals(batch, 4)?,
            extendedprice: decimals(batch, 5)?,
            discount: decimals(batch, 6)?,
            tax: decimals(batch, 7)?,
            returnflag: texts(batch, 8)?,
            linestatus: texts(batch, 9)?,
            shipdate: numbers::<Date32Type>(batch, 10)?.to_vec(),
            commitdate: numbers::<Date32Type>(batch, 11)?.to_vec(),
            receiptdate: numbers::<Date32Type>(batch, 12)?.to_vec(),
            shipinstruct: texts(batch, 13)?,
            shipmode: texts(batch, 14)?,
            comment: texts(batch, 15)?,
        })
    }

    /// The same as rows; texts are moved, not copied.
    fn into_rows(mut self) -> Rows {
        let take = |texts: &mut Vec<String>, at: usize| std::mem::take(&mut texts[at]);
        let row = |at: usize| Row {
            orderkey: self.orderkey[at],
            partkey: self.partkey[at],
            suppkey: self.suppkey[at],
            linenumber: self.linenumber[at],
            quantity: self.quantity[at],
            extendedprice: self.extendedprice[at],
            discount: self.discount[at],
            tax: self.tax[at],
            returnflag: take(&mut self.returnflag, at),
            linestatus: take(&mut self.linestatus, at),
            shipdate: self.shipdate[at],
            commitdate: self.commitdate[at],
            receiptdate: self.receiptdate[at],
            shipinstruct: take(&mut self.shipinstruct, at),
            shipmode: take(&mut self.shipmode, at),
            comment: take(&mut self.comment, at),
        };
        Rows { rows: (0..self.orderkey.len()).map(row).collect() }
    }
}

fn numbers<T: ArrowPrimitiveType>(batch: &RecordBatch, column: usize) -> Result<&[T::Native]> {
    let array = batch.column(column).as_primitive_opt::<T>();
    Ok(array.ok_or_else(|| unexpected(batch, column))?.values())
}

fn decimals(batch: &RecordBatch, column: usize) -> Result<Vec<i64>> {
    let unscaled = numbers::<Decimal128Type>(batch, column)?.iter();
    Ok(unscaled.map(|value| i64::try_from(*value)).collect::<Result<_, _>>()?)
}

fn texts(batch: &RecordBatch, column: usize) -> Result<Vec<String>> {
    let array = batch.column(column).as_string_opt::<i32>().ok_or_else(|| unexpected(batch, column))?;
    Ok((0..array.len()).map(|at| array.value(at).to_owned()).collect())
}

fn unexpected(batch: &RecordBatch, column: usize) -> Error {
    format!("column {column} of lineitem has the unexpected type {}", batch.column(column).data_type()).into()
}

/// Serves until it is killed. A client sends one byte for the shape it wants, and whether compressed with
/// Zstandard, frame by frame.
pub(super) fn serve(file: &Path) -> Result<()> {
    let (_, batches) = data::read(file, CHUNK_ROWS)?;
    let listener = TcpListener::bind(("0.0.0.0", 0))?;
    print(&listener.local_addr()?.port())?;
    loop {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        let mut wanted = [0];
        socket.read_exact(&mut wanted)?;
        let [wanted] = wanted;
        let shape = if wanted & !COMPRESSED == Shape::Rows as u8 { Shape::Rows } else { Shape::Columns };
        let mut zstd = (wanted & COMPRESSED != 0).then(|| bulk::Compressor::new(ZSTD_LEVEL)).transpose()?;
        let (mut frame, mut packed) = (Vec::new(), Vec::new());
        for batch in &batches {
            frame.clear();
            frame.extend([0; 4]);
            let columns = Columns::of(batch)?;
            match shape {
                Shape::Rows => columns.into_rows().encode(&mut frame)?,
                Shape::Columns => columns.encode(&mut frame)?,
            }
            if let Some(zstd) = &mut zstd {
                packed.resize(4 + zstd::zstd_safe::compress_bound(frame.len() - 4), 0);
                let bytes = zstd.compress_to_buffer(&frame[4..], &mut packed[4..])?;
                packed.truncate(4 + bytes);
                std::mem::swap(&mut frame, &mut packed);
            }
            let bytes = u32::try_from(frame.len() - 4)?;
            frame[..4].copy_from_slice(&bytes.to_le_bytes());
            socket.write_all(&frame)?;
        }
        socket.write_all(&[0; 4])?;
    }
}

pub(super) fn read(address: &str, shape: Shape, compressed: bool) -> Result<TransferResult> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let began = Instant::now();
    (&socket).write_all(&[shape as u8 | if compressed { COMPRESSED } else { 0 }])?;
    let mut zstd = bulk::Decompressor::new()?;
    let mut unpacked = Vec::with_capacity(if compressed { CHUNK_BYTES_MAX } else { 0 });
    let mut socket = BufReader::with_capacity(1 << 20, socket);
    let (mut rows, mut bytes, mut frame) = (0, 0, Vec::new());
    loop {
        let mut length = [0; 4];
        socket.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 {
            return TransferResult::since(began, rows, bytes);
        }
        if length > CHUNK_BYTES_MAX {
            return Err(format!("a chunk of {length} bytes exceeds {CHUNK_BYTES_MAX}").into());
        }
        frame.resize(length, 0);
        socket.read_exact(&mut frame)?;
        bytes += length as u64;
        let plain = if compressed {
            unpacked.clear();
            zstd.decompress_to_buffer(&frame, &mut unpacked)?;
            &unpacked
        } else {
            &frame
        };
        rows += match shape {
            Shape::Rows => Rows::decode(&plain[..])?.rows.len(),
            Shape::Columns => Columns::decode(&plain[..])?.orderkey.len(),
        } as u64;
    }
}

#[cfg(test)]
mod tests {
    use lightship_testkit::tpch;

    use super::*;

    #[test]
    fn rows_and_columns_are_equal_and_survive_encoding() {
        let batch = tpch::lineitem(0.001).next().expect("a batch");
        let columns = Columns::of(&batch).expect("lineitem");
        assert_eq!(columns.orderkey.len(), batch.num_rows());
        let again = Columns::decode(&*columns.encode_to_vec()).expect("decoded");
        assert_eq!(again, columns);
        let rows = columns.clone().into_rows();
        let again = Rows::decode(&*rows.encode_to_vec()).expect("decoded");
        assert_eq!(again, rows);
        let last = again.rows.last().expect("rows");
        assert_eq!(
            (last.orderkey, &last.comment),
            (columns.orderkey[rows.rows.len() - 1], columns.comment.last().expect("rows"))
        );
    }
}
