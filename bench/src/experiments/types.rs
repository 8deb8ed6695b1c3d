//! Encodings by Arrow type: the same values of lineitem in each type that can hold them.

use std::sync::Arc;

use arrow_array::builder::{MapBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, LargeListArray, LargeListViewArray, ListArray, ListViewArray,
    PrimitiveArray, RecordBatch, RunArray, StructArray, UnionArray,
};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit, UnionFields};
use lightship_session::Codec;

use super::columns::{self, Encoding, FIGURES, measure};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::{self, Data};
use crate::report::{self, Page, Report};
use crate::results::{Case, Results};
use crate::settings::Settings;

const NAME: &str = "types";
/// Items of a list.
const ITEMS: usize = 4;
const ENCODINGS: [Encoding; 3] =
    [Encoding::Codec(Codec::None), Encoding::Codec(Codec::Light), Encoding::Zstd];

/// The columns of a batch that values are taken from.
struct Values {
    key: ArrayRef,
    line: ArrayRef,
    price: ArrayRef,
    quantity: ArrayRef,
    flag: ArrayRef,
    day: ArrayRef,
    mode: ArrayRef,
    comment: ArrayRef,
}

impl Values {
    fn of(batch: &RecordBatch) -> Result<Self> {
        let column = |name: &str| {
            let column = batch.column_by_name(name).cloned();
            column.ok_or_else(|| crate::Error::from(format!("no column {name}")))
        };
        Ok(Self {
            key: column("l_orderkey")?,
            line: cast(&column("l_linenumber")?, &DataType::Int32)?,
            price: column("l_extendedprice")?,
            quantity: column("l_quantity")?,
            flag: column("l_returnflag")?,
            day: column("l_shipdate")?,
            mode: column("l_shipmode")?,
            comment: column("l_comment")?,
        })
    }

    /// Each type, with the values in it.
    fn types(&self) -> Result<Vec<(String, ArrayRef)>> {
        let timestamp = |unit| DataType::Timestamp(unit, None);
        let mut all: Vec<(String, ArrayRef)> = Vec::new();
        let mut add = |name: &str, array: ArrayRef| {
            all.push((format!("{name}: {}", shown(array.data_type())), array));
        };
        let wide = cast(&self.key, &DataType::Int64)?;
        for to in [DataType::Int32, DataType::UInt32, DataType::Int64, DataType::UInt64] {
            add("order key", cast(&wide, &to)?);
        }
        for to in [DataType::Int8, DataType::Int16] {
            add("line number", cast(&self.line, &to)?);
        }
        let returned = self.flag_is("R")?;
        add("returned", returned);
        for to in [DataType::Float16, DataType::Float32, DataType::Float64] {
            add("quantity", cast(&self.quantity, &to)?);
        }
        add("price", cast(&self.price, &DataType::Float64)?);
        for to in [
            DataType::Decimal32(9, 2),
            DataType::Decimal64(15, 2),
            DataType::Decimal128(15, 2),
            DataType::Decimal256(50, 2),
        ] {
            add("price", cast(&self.price, &to)?);
        }
        let seconds = cast(&cast(&self.day, &timestamp(TimeUnit::Second))?, &DataType::Int64)?;
        for to in [DataType::Date32, DataType::Date64] {
            add("ship date", cast(&self.day, &to)?);
        }
        // A time within the day, derived from the order key.
        let times: PrimitiveArray<Int64Type> = seconds
            .as_primitive::<Int64Type>()
            .values()
            .iter()
            .zip(wide.as_primitive::<Int64Type>().values())
            .map(|(day, key)| Some(day + key * 7919 % 86_400))
            .collect();
        let times: ArrayRef = Arc::new(times);
        let at = cast(&times, &timestamp(TimeUnit::Second))?;
        for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
            add("ship time", cast(&at, &timestamp(unit))?);
        }
        let of_day = cast(&at, &DataType::Time32(TimeUnit::Second))?;
        for to in [DataType::Time32(TimeUnit::Second), DataType::Time64(TimeUnit::Microsecond)] {
            add("time of day", cast(&of_day, &to)?);
        }
        add("ship time", cast(&times, &DataType::Duration(TimeUnit::Second))?);
        for to in
            [DataType::Interval(IntervalUnit::YearMonth), DataType::Interval(IntervalUnit::MonthDayNano)]
        {
            add(
                "line number, months",
                cast(&cast(&self.line, &DataType::Interval(IntervalUnit::YearMonth))?, &to)?,
            );
        }
        for to in [
            DataType::Utf8,
            DataType::LargeUtf8,
            DataType::Utf8View,
            DataType::Binary,
            DataType::LargeBinary,
            DataType::BinaryView,
        ] {
            add("comment", cast(&self.comment, &to)?);
        }
        let dictionary = |key| DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8));
        for to in
            [DataType::Utf8, DataType::Utf8View, dictionary(DataType::Int8), dictionary(DataType::Int32)]
        {
            add("ship mode", cast(&self.mode, &to)?);
        }
        add("return flag", cast(&self.flag, &DataType::Utf8)?);
        add("order key, runs", self.runs(&wide)?);
        let (width, fixed) = (8, cast(&self.price, &DataType::Int64)?);
        let bytes = fixed.as_primitive::<Int64Type>().values().inner().clone();
        let binary = arrow_array::FixedSizeBinaryArray::try_new(width, bytes, None)?;
        add("price, whole", Arc::new(binary));
        for (name, array) in self.nested()? {
            add(name, array);
        }
        Ok(all)
    }

    fn flag_is(&self, flag: &str) -> Result<ArrayRef> {
        let flags = cast(&self.flag, &DataType::Utf8)?;
        let is = flags.as_string::<i32>().iter().map(|value| value.map(|value| value == flag));
        Ok(Arc::new(is.collect::<arrow_array::BooleanArray>()))
    }

    fn runs(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let keys = keys.as_primitive::<Int64Type>();
        let (mut ends, mut values) = (Vec::new(), Vec::new());
        for (row, key) in keys.values().iter().enumerate() {
            if values.last() == Some(key) {
                ends.pop();
            } else {
                values.push(*key);
            }
            ends.push(i32::try_from(row + 1)?);
        }
        let (ends, values) =
            (PrimitiveArray::<Int32Type>::from(ends), PrimitiveArray::<Int64Type>::from(values));
        Ok(Arc::new(RunArray::try_new(&ends, &values)?))
    }

    fn nested(&self) -> Result<Vec<(&'static str, ArrayRef)>> {
        let lists = self.line.len() / ITEMS;
        let items = self.line.slice(0, lists * ITEMS);
        let item = Arc::new(Field::new_list_field(DataType::Int32, true));
        let lengths = || std::iter::repeat_n(ITEMS, lists);
        let starts = |_| (0..lists).map(|list| list * ITEMS);
        let narrow: ScalarBuffer<i32> = starts(()).map(|start| start as i32).collect();
        let wide: ScalarBuffer<i64> = starts(()).map(|start| start as i64).collect();
        let (list_sizes, large_sizes) =
            (vec![ITEMS as i32; lists].into(), ScalarBuffer::from(vec![ITEMS as i64; lists]));
        let mut maps = MapBuilder::new(None, StringBuilder::new(), arrow_array::builder::Int32Builder::new());
        let (modes, lines) = (cast(&self.mode, &DataType::Utf8)?, self.line.as_primitive::<Int32Type>());
        for row in 0..lines.len() {
            maps.keys().append_value(modes.as_string::<i32>().value(row));
            maps.values().append_value(lines.value(row));
            maps.append(true)?;
        }
        let comment = cast(&self.comment, &DataType::Utf8)?;
        let fields = Fields::from(vec![
            Field::new("line", DataType::Int32, true),
            Field::new("comment", DataType::Utf8, true),
        ]);
        let structs = StructArray::try_new(fields.clone(), vec![self.line.clone(), comment.clone()], None)?;
        let ids: ScalarBuffer<i8> = lines.values().iter().map(|line| i8::from(line % 2 == 0)).collect();
        let kinds = UnionFields::try_new([0, 1], fields.iter().cloned())?;
        let union = UnionArray::try_new(kinds, ids, None, vec![self.line.clone(), comment])?;
        Ok(vec![
            (
                "line numbers",
                Arc::new(ListArray::try_new(
                    item.clone(),
                    OffsetBuffer::from_lengths(lengths()),
                    items.clone(),
                    None,
                )?),
            ),
            (
                "line numbers",
                Arc::new(LargeListArray::try_new(
                    item.clone(),
                    OffsetBuffer::from_lengths(lengths()),
                    items.clone(),
                    None,
                )?),
            ),
            (
                "line numbers",
                Arc::new(FixedSizeListArray::try_new(item.clone(), ITEMS as i32, items.clone(), None)?),
            ),
            (
                "line numbers",
                Arc::new(ListViewArray::try_new(item.clone(), narrow, list_sizes, items.clone(), None)?),
            ),
            ("line numbers", Arc::new(LargeListViewArray::try_new(item, wide, large_sizes, items, None)?)),
            ("line and comment", Arc::new(structs)),
            ("mode to line", Arc::new(maps.finish())),
            ("line or comment", Arc::new(union)),
        ])
    }
}

/// A short name of a type.
fn shown(data_type: &DataType) -> String {
    match data_type {
        DataType::List(_) => "List".into(),
        DataType::LargeList(_) => "LargeList".into(),
        DataType::FixedSizeList(_, size) => format!("FixedSizeList({size})"),
        DataType::ListView(_) => "ListView".into(),
        DataType::LargeListView(_) => "LargeListView".into(),
        DataType::Struct(_) => "Struct".into(),
        DataType::Map(..) => "Map".into(),
        DataType::Union(..) => "Union".into(),
        DataType::RunEndEncoded(..) => "RunEndEncoded".into(),
        other => other.to_string(),
    }
}

/// The whole table, with its text as views.
fn with_views(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
        let column = match column.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 => cast(column, &DataType::Utf8View)?,
            _ => column.clone(),
        };
        Ok((field.name().clone(), column))
    });
    Ok(RecordBatch::try_from_iter(columns.collect::<Result<Vec<_>>>()?)?)
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let mut results = Results::open(&settings.results(), NAME, &["column"], FIGURES)?;
    let scale = settings.scale_or(0.1);
    let (_, batches) = data::read(&Data::Lineitem.file(scale)?.path, data::BATCH_ROWS)?;
    let whole = batches.iter().map(with_views).collect::<Result<Vec<_>>>()?;
    let mut all = vec![(columns::WHOLE.to_owned(), whole)];
    for batch in &batches {
        for (at, (name, array)) in Values::of(batch)?.types()?.into_iter().enumerate() {
            let batch = RecordBatch::try_from_iter([("value", array)])?;
            match all.get_mut(at + 1) {
                Some((_, more)) => more.push(batch),
                None => all.push((name, vec![batch])),
            }
        }
    }
    for (column, batches) in &all {
        let contenders = ENCODINGS
            .map(|encoding| Contender::new(encoding.to_string(), move || measure(batches, encoding)));
        let place = Case { values: vec![column.clone()], scale, note: String::new() };
        results.add(Comparison { figures: FIGURES, contenders: contenders.into() }.run(settings, &place)?)?;
    }
    Report {
        name: NAME,
        page: Page::ColumnarProtocol,
        title: "Encodings by Arrow type",
        text: format!(
            "Values of lineitem (TPC-H, scale {scale}) in each Arrow type that can hold them, in messages of \
             1 MiB, encoded and decoded by one thread in one process. The whole table has its text as views, \
             as DataFusion and Polars write it. Rates are of Arrow bytes; `none` passes buffers on by \
             reference, so its rates mean little. `zstd` compresses the messages of `none` as a whole, for \
             comparison."
        ),
        tables: columns::report(&results),
        plots: Vec::new(),
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}

#[cfg(test)]
mod tests {
    use lightship_testkit::tpch;

    use super::*;

    #[test]
    fn light_is_never_larger_than_plain() {
        let batch = tpch::lineitem(0.001).next().expect("rows");
        for (name, array) in Values::of(&batch).expect("columns").types().expect("types") {
            let batch = [RecordBatch::try_from_iter([("value", array)]).expect("a batch")];
            let [plain, light] = [Codec::None, Codec::Light]
                .map(|codec| measure(&batch, Encoding::Codec(codec)).expect("encoded")[0]);
            // A column that does not shrink only adds its headers.
            assert!(light <= plain + 100e-6, "{name}: {light} MB, plain {plain}");
        }
    }
}
