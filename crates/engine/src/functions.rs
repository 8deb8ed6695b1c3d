//! Functions whose results are many times larger than their arguments.
//!
//! DataFusion's memory pool counts what operators hold, but not what a function is about to build:
//! `repeat('x', 1000000)` for a batch of rows is 8 GB. Such a function first computes the size of
//! its result, and fails if queries have no memory for it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, IntervalMonthDayNanoType};
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_schema::{DataType, FieldRef, IntervalUnit, TimeUnit};
use datafusion::arrow::compute::cast;
use datafusion::error::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, human_readable_size,
};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature,
};
use lightship_sources::decoded::value_bytes;

use crate::error::EngineError;

/// Smaller results take no reservation: operators hold more than that uncounted.
const ASKED_BYTES_MIN: u64 = 16 << 20;
/// The size of a value is counted up to this.
const VALUE_BYTES_MAX: u64 = 1 << 32;
/// Longest character, in bytes.
const CHARACTER_BYTES_MAX: u64 = 4;
/// If a replacement could grow a text beyond this, its occurrences are counted.
const SEARCHED_BYTES_MIN: u64 = 64 << 10;
const MONTH_NS: i128 = 28 * DAY_NS;
const DAY_NS: i128 = 86_400_000_000_000;

/// The functions, and how their results grow.
const GROWING: [(&str, ResultSize); 8] = [
    ("repeat", ResultSize::Times),
    ("array_repeat", ResultSize::Items),
    ("lpad", ResultSize::Padded),
    ("rpad", ResultSize::Padded),
    ("array_resize", ResultSize::Resized),
    ("range", ResultSize::Series),
    ("generate_series", ResultSize::Series),
    ("replace", ResultSize::Replaced),
];

/// What a function's result consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultSize {
    /// The first argument, repeated as often as the second says.
    Times,
    /// The same, as items of a list; the function also needs two numbers for each item.
    Items,
    /// As many characters as the second argument says.
    Padded,
    /// As many items as the second argument says, each like the third.
    Resized,
    /// From the first argument to the second, in steps of the third.
    Series,
    /// The first argument, with each occurrence of the second replaced by the third.
    Replaced,
}

/// Replaces DataFusion's functions. Every session state that plans, decodes or runs queries needs this.
pub(crate) fn register(functions: &mut dyn FunctionRegistry, pool: &Arc<dyn MemoryPool>) -> Result<()> {
    for (name, growth) in GROWING {
        let inner = functions.udf(name)?;
        // A state that was built from another one has them already.
        if inner.inner().is::<Bounded>() {
            continue;
        }
        let bounded = Bounded { inner, growth, pool: pool.clone() };
        functions.register_udf(Arc::new(ScalarUDF::new_from_impl(bounded)))?;
    }
    Ok(())
}

/// A function that computes the size of its result before it runs.
#[derive(Debug)]
struct Bounded {
    inner: Arc<ScalarUDF>,
    growth: ResultSize,
    pool: Arc<dyn MemoryPool>,
}

impl PartialEq for Bounded {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for Bounded {}

impl Hash for Bounded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl Bounded {
    /// Reserves memory until the result is built. Its consumer then accounts for it.
    fn room(&self, args: &ScalarFunctionArgs) -> Result<Option<MemoryReservation>> {
        let MemoryLimit::Finite(limit) = self.pool.memory_limit() else { return Ok(None) };
        // If all arguments are constants, the result is built once, as one row.
        let is_array = |arg: &ColumnarValue| matches!(arg, ColumnarValue::Array(_));
        let rows = if args.args.iter().any(is_array) { args.number_rows } else { 1 };
        let arguments = args.args.iter().map(|arg| match arg {
            ColumnarValue::Array(array) => Ok(Argument { array: array.clone(), is_constant: false }),
            ColumnarValue::Scalar(scalar) => Ok(Argument { array: scalar.to_array()?, is_constant: true }),
        });
        let bytes = self.growth.bytes(&arguments.collect::<Result<Vec<_>>>()?, rows)?;
        if bytes < ASKED_BYTES_MIN {
            return Ok(None);
        }
        let reservation = MemoryConsumer::new(self.inner.name()).register(&self.pool);
        let needed_bytes = Some(bytes);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if reservation.try_grow(bytes).is_err() {
            let free = human_readable_size(limit.saturating_sub(self.pool.reserved()));
            let (name, bytes, limit) =
                (self.inner.name(), human_readable_size(bytes), human_readable_size(limit));
            let message = format!(
                "{name} needs {bytes} for {rows} rows, but only {free} of the {limit} for queries are free"
            );
            return Err(EngineError::Limit { message, needed_bytes }.into());
        }
        Ok(Some(reservation))
    }
}

/// The values of an argument. A constant has one value for all rows.
struct Argument {
    array: ArrayRef,
    is_constant: bool,
}

impl Argument {
    fn at(&self, row: usize) -> usize {
        if self.is_constant { 0 } else { row }
    }

    /// Bytes of one value.
    fn bytes(&self, row: usize) -> u64 {
        let (array, row) = (&self.array, self.at(row));
        if array.is_null(row) {
            return 0;
        }
        match (self.text(row), array.data_type()) {
            (Some(text), _) => text.len() as u64,
            (None, other) => match other.primitive_width() {
                Some(width) => width as u64,
                None => value_bytes(array, row, VALUE_BYTES_MAX),
            },
        }
    }

    fn text(&self, row: usize) -> Option<&str> {
        let (array, row) = (&self.array, self.at(row));
        match array.data_type() {
            _ if array.is_null(row) => None,
            DataType::Utf8 => Some(array.as_string::<i32>().value(row)),
            DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row)),
            DataType::Utf8View => Some(array.as_string_view().value(row)),
            _ => None,
        }
    }

    /// The argument as counts; it has integers of any width.
    fn counts(&self) -> Result<Counts> {
        let numbers = cast(&self.array, &DataType::Int64)?.as_primitive::<Int64Type>().clone();
        Ok(Counts { numbers, is_constant: self.is_constant })
    }
}

struct Counts {
    numbers: Int64Array,
    is_constant: bool,
}

impl Counts {
    /// The count; 0 if it is negative or NULL.
    fn at(&self, row: usize) -> u64 {
        let row = if self.is_constant { 0 } else { row };
        if self.numbers.is_null(row) { 0 } else { u64::try_from(self.numbers.value(row)).unwrap_or(0) }
    }
}

impl ResultSize {
    /// Upper bound on the bytes of the result.
    fn bytes(self, arguments: &[Argument], rows: usize) -> Result<u64> {
        let (Some(first), second, third) = (arguments.first(), arguments.get(1), arguments.get(2)) else {
            return Ok(0);
        };
        let sum = |of: &dyn Fn(usize) -> u64| (0..rows).map(of).fold(0, u64::saturating_add);
        Ok(match (self, second) {
            (Self::Times, Some(times)) => {
                let times = times.counts()?;
                // One more, because the function copies a constant for all rows.
                sum(&|row| first.bytes(row).saturating_mul(times.at(row).saturating_add(1)))
            }
            (Self::Items, Some(times)) => {
                let times = times.counts()?;
                sum(&|row| first.bytes(row).max(8).saturating_add(16).saturating_mul(times.at(row)))
            }
            (Self::Padded, Some(characters)) => {
                let characters = characters.counts()?;
                let is_ascii = |row| third.and_then(|fill| fill.text(row)).is_none_or(str::is_ascii);
                let width = |row| if is_ascii(row) { 1 } else { CHARACTER_BYTES_MAX };
                sum(&|row| first.bytes(row).saturating_add(characters.at(row).saturating_mul(width(row))))
            }
            (Self::Resized, Some(items)) => {
                let items = items.counts()?;
                let item = |row| third.map_or(0, |like| like.bytes(row)).max(8);
                sum(&|row| first.bytes(row).saturating_add(items.at(row).saturating_mul(item(row))))
            }
            (Self::Replaced, Some(from)) => {
                let Some(to) = third else { return Ok(0) };
                sum(&|row| replaced_bytes(first, from, to, row))
            }
            (Self::Series, second) => {
                // A single argument is the end of a series that starts at zero.
                let (from, to) = second.map_or((None, first), |second| (Some(first), second));
                sum(&|row| items(from, to, third, row).unwrap_or(0).saturating_mul(8))
            }
            (_, None) => 0,
        })
    }
}

/// Upper bound on the bytes of a text after all occurrences are replaced.
fn replaced_bytes(text: &Argument, from: &Argument, to: &Argument, row: usize) -> u64 {
    let (text_bytes, from_bytes, to_bytes) = (text.bytes(row), from.bytes(row).max(1), to.bytes(row));
    let worst = text_bytes.saturating_add((text_bytes / from_bytes).saturating_mul(to_bytes));
    match (text.text(row), from.text(row)) {
        (Some(text), Some(from)) if worst > SEARCHED_BYTES_MIN && !from.is_empty() => {
            text_bytes.saturating_add((text.matches(from).count() as u64).saturating_mul(to_bytes))
        }
        _ => worst,
    }
}

/// Number of items in a series; `None` if it can't be determined.
fn items(from: Option<&Argument>, to: &Argument, step: Option<&Argument>, row: usize) -> Option<u64> {
    let first = match from {
        Some(from) => point(from, row)?,
        None => 0,
    };
    let span = point(to, row)?.checked_sub(first)?;
    let step = match step {
        Some(step) => point(step, row)?,
        None => 1,
    };
    // A step in the wrong direction gives no items. The function itself reports a step of zero.
    if step == 0 || (span < 0) != (step < 0) {
        return Some(0);
    }
    u64::try_from(span / step + 1).ok()
}

/// A bound or step of a series as a number; nanoseconds for dates, timestamps and intervals.
fn point(argument: &Argument, row: usize) -> Option<i128> {
    let (array, row) = (&argument.array, argument.at(row));
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Int64 => Some(array.as_primitive::<Int64Type>().value(row).into()),
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let step = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            let (months, days) = (i128::from(step.months) * MONTH_NS, i128::from(step.days) * DAY_NS);
            Some(months + days + i128::from(step.nanoseconds))
        }
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
            let seconds = DataType::Timestamp(TimeUnit::Second, None);
            let seconds = cast(&array.slice(row, 1), &seconds).ok()?;
            let seconds = cast(&seconds, &DataType::Int64).ok()?;
            Some(i128::from(seconds.as_primitive::<Int64Type>().value(0)) * 1_000_000_000)
        }
        _ => None,
    }
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arguments)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arguments)
    }

    fn simplify(&self, args: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.simplify(args, context)
    }

    fn is_strict(&self) -> bool {
        self.inner.inner().is_strict()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let _room = self.room(&args)?;
        self.inner.invoke_with_args(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}
