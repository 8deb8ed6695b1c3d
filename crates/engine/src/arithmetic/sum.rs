//! An exact `sum`: it adds up values in 128 bits, and only the final sum must fit the result's type.
//!
//! So the order of the rows, and how they are divided among threads and nodes, does not decide whether it fails.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow_array::builder::PrimitiveBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal32Type, Decimal64Type, Decimal128Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Int64Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, BooleanArray, Decimal128Array, PrimitiveArray};
use arrow_schema::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature,
};
use lightship_wire::control::Reason;

use crate::error::EngineError;

/// The type of a partial sum: 128 bits with a sign.
const STATE: DataType = DataType::Decimal128(38, 0);

/// DataFusion's `sum`, made exact for integers, decimals of up to 128 bits, and durations.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ExactSum {
    inner: Sum,
}

/// Whether sums of this type are computed here, not by DataFusion.
fn is_exact(data_type: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128, Duration, Int64, UInt64};
    matches!(data_type, Int64 | UInt64 | Decimal32(..) | Decimal64(..) | Decimal128(..) | Duration(_))
}

impl AggregateUDFImpl for ExactSum {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arguments)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match Target::of(&args) {
            None => self.inner.accumulator(args),
            Some(target) if args.is_distinct => Ok(Box::new(Distinct::new(target))),
            Some(target) => Ok(Box::new(Total { target, sum: 0, values: 0 })),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match Target::of(&args) {
            None => self.inner.create_sliding_accumulator(args),
            Some(_) => self.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        if args.is_distinct || !is_exact(args.return_type()) {
            return self.inner.state_fields(args);
        }
        Ok(vec![Arc::new(Field::new(format_state_name(args.name, "sum"), STATE, true))])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        match Target::of(&args) {
            None => self.inner.create_groups_accumulator(args),
            Some(target) => {
                Ok(Box::new(Groups { target, sums: Vec::new(), has_values: Vec::new(), overflows: false }))
            }
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_expr()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.set_monotonicity(data_type)
    }
}

/// The result type that a sum must fit.
#[derive(Debug, Clone)]
struct Target {
    data_type: DataType,
    /// As in the query: `sum(t.a)`.
    name: String,
}

impl Target {
    fn of(args: &AccumulatorArgs<'_>) -> Option<Self> {
        let data_type = args.return_field.data_type();
        is_exact(data_type).then(|| Self { data_type: data_type.clone(), name: args.name.to_owned() })
    }

    fn exceeded(&self) -> EngineError {
        let (name, of) = (&self.name, &self.data_type);
        let message = match of {
            DataType::Int64 => {
                format!("{name} exceeds BIGINT; cast to decimal: sum(cast(... as decimal(38, 0)))")
            }
            DataType::UInt64 => {
                format!("{name} exceeds BIGINT UNSIGNED; cast to decimal: sum(cast(... as decimal(38, 0)))")
            }
            DataType::Duration(_) => format!("{name} exceeds a duration"),
            of => format!("{name} exceeds {of}; cast to double: sum(cast(... as double))"),
        };
        EngineError::Value { message, reason: Reason::OutOfRange }
    }

    /// Sums as values of the result's type.
    fn array(&self, sums: impl ExactSizeIterator<Item = Option<i128>>) -> Result<ArrayRef> {
        use DataType::{Decimal32, Decimal64, Decimal128, Duration, Int64, UInt64};
        match &self.data_type {
            Int64 => self.build::<Int64Type>(sums, i128::MAX),
            UInt64 => self.build::<UInt64Type>(sums, i128::MAX),
            Decimal32(digits, _) => self.build::<Decimal32Type>(sums, largest(*digits)),
            Decimal64(digits, _) => self.build::<Decimal64Type>(sums, largest(*digits)),
            Decimal128(digits, _) => self.build::<Decimal128Type>(sums, largest(*digits)),
            Duration(TimeUnit::Second) => self.build::<DurationSecondType>(sums, i128::MAX),
            Duration(TimeUnit::Millisecond) => self.build::<DurationMillisecondType>(sums, i128::MAX),
            Duration(TimeUnit::Microsecond) => self.build::<DurationMicrosecondType>(sums, i128::MAX),
            Duration(TimeUnit::Nanosecond) => self.build::<DurationNanosecondType>(sums, i128::MAX),
            other => Err(unexpected(other)),
        }
    }

    fn build<T>(&self, sums: impl ExactSizeIterator<Item = Option<i128>>, max: i128) -> Result<ArrayRef>
    where
        T: ArrowPrimitiveType,
        T::Native: TryFrom<i128>,
    {
        let mut built = PrimitiveBuilder::<T>::with_capacity(sums.len());
        for sum in sums {
            let fits =
                |sum: i128| T::Native::try_from(sum).ok().filter(|_| sum.unsigned_abs() <= max as u128);
            built.append_option(sum.map(|sum| fits(sum).ok_or_else(|| self.exceeded())).transpose()?);
        }
        Ok(Arc::new(built.finish().with_data_type(self.data_type.clone())))
    }

    fn scalar(&self, sum: Option<i128>) -> Result<ScalarValue> {
        ScalarValue::try_from_array(&self.array(std::iter::once(sum))?, 0)
    }
}

/// The largest integer with this many digits, at most 38.
fn largest(digits: u8) -> i128 {
    10_i128.pow(u32::from(digits.min(38))) - 1
}

fn unexpected(data_type: &DataType) -> datafusion::error::DataFusionError {
    EngineError::Internal(format!("cannot compute exact sums of {data_type}")).into()
}

/// An operation on values of any type that can be summed.
trait Visit {
    fn visit<T>(self, values: &PrimitiveArray<T>)
    where
        T: ArrowPrimitiveType,
        T::Native: Into<i128>;
}

fn visit(values: &ArrayRef, task: impl Visit) -> Result<()> {
    use DataType::{Decimal32, Decimal64, Decimal128, Duration, Int64, UInt64};
    match values.data_type() {
        Int64 => task.visit(values.as_primitive::<Int64Type>()),
        UInt64 => task.visit(values.as_primitive::<UInt64Type>()),
        Decimal32(..) => task.visit(values.as_primitive::<Decimal32Type>()),
        Decimal64(..) => task.visit(values.as_primitive::<Decimal64Type>()),
        Decimal128(..) => task.visit(values.as_primitive::<Decimal128Type>()),
        Duration(TimeUnit::Second) => task.visit(values.as_primitive::<DurationSecondType>()),
        Duration(TimeUnit::Millisecond) => task.visit(values.as_primitive::<DurationMillisecondType>()),
        Duration(TimeUnit::Microsecond) => task.visit(values.as_primitive::<DurationMicrosecondType>()),
        Duration(TimeUnit::Nanosecond) => task.visit(values.as_primitive::<DurationNanosecondType>()),
        other => return Err(unexpected(other)),
    }
    Ok(())
}

/// Calls a function with each value that is not NULL.
struct ForEach<F>(F);

impl<F: FnMut(i128)> Visit for ForEach<F> {
    fn visit<T>(mut self, values: &PrimitiveArray<T>)
    where
        T: ArrowPrimitiveType,
        T::Native: Into<i128>,
    {
        if values.null_count() == 0 {
            values.values().iter().for_each(|value| (self.0)((*value).into()));
        } else {
            values.iter().flatten().for_each(|value| (self.0)(value.into()));
        }
    }
}

/// The sum of all rows, or of those in a window.
#[derive(Debug)]
struct Total {
    target: Target,
    sum: i128,
    /// Values that are not NULL.
    values: u64,
}

impl Total {
    fn change(&mut self, values: &ArrayRef, by: impl Fn(i128, i128) -> (i128, bool)) -> Result<u64> {
        let (mut sum, mut overflows) = (self.sum, false);
        visit(
            values,
            ForEach(|value| {
                let (next, wraps) = by(sum, value);
                sum = next;
                overflows |= wraps;
            }),
        )?;
        if overflows {
            return Err(self.target.exceeded().into());
        }
        self.sum = sum;
        Ok((values.len() - values.null_count()) as u64)
    }

    fn value(&self) -> Option<i128> {
        (self.values > 0).then_some(self.sum)
    }
}

impl Accumulator for Total {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values += self.change(&values[0], i128::overflowing_add)?;
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values -= self.change(&values[0], i128::overflowing_sub)?;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::Decimal128(self.value(), 38, 0)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.target.scalar(self.value())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.target.name.capacity()
    }
}

/// The sum of the distinct values of all rows, or of those in a window.
struct Distinct {
    target: Target,
    /// How often each value occurs.
    counts: HashMap<i128, u64>,
    sum: i128,
    overflows: bool,
}

impl fmt::Debug for Distinct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Distinct({:?}, {} values)", self.target, self.counts.len())
    }
}

impl Distinct {
    fn new(target: Target) -> Self {
        Self { target, counts: HashMap::new(), sum: 0, overflows: false }
    }

    fn add(&mut self, value: i128) {
        let count = self.counts.entry(value).or_default();
        *count += 1;
        if *count == 1 {
            let (sum, overflows) = self.sum.overflowing_add(value);
            (self.sum, self.overflows) = (sum, self.overflows | overflows);
        }
    }

    fn remove(&mut self, value: i128) {
        let Some(count) = self.counts.get_mut(&value) else { return };
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&value);
            let (sum, overflows) = self.sum.overflowing_sub(value);
            (self.sum, self.overflows) = (sum, self.overflows | overflows);
        }
    }
}

impl Accumulator for Distinct {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        visit(&values[0], ForEach(|value| self.add(value)))
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        states[0].as_list::<i32>().iter().flatten().try_for_each(|values| self.update_batch(&[values]))
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        visit(&values[0], ForEach(|value| self.remove(value)))
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values: Vec<Option<i128>> = self.counts.keys().copied().map(Some).collect();
        let values = self.target.array(values.into_iter())?;
        Ok(vec![SingleRowListArrayBuilder::new(values).build_list_scalar()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.overflows {
            return Err(self.target.exceeded().into());
        }
        self.target.scalar((!self.counts.is_empty()).then_some(self.sum))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<(i128, u64)>()
    }
}

/// The sums of many groups.
#[derive(Debug)]
struct Groups {
    target: Target,
    sums: Vec<i128>,
    /// Groups with a value that is not NULL.
    has_values: Vec<bool>,
    /// Whether some sum has exceeded 128 bits.
    overflows: bool,
}

/// Adds each value to the sum of its group.
struct AddTo<'a> {
    groups: &'a mut Groups,
    indices: &'a [usize],
    filter: Option<&'a BooleanArray>,
}

impl Visit for AddTo<'_> {
    fn visit<T>(self, values: &PrimitiveArray<T>)
    where
        T: ArrowPrimitiveType,
        T::Native: Into<i128>,
    {
        let Groups { sums, has_values, overflows, .. } = self.groups;
        let mut add = |group: usize, value: T::Native| {
            let (sum, wraps) = sums[group].overflowing_add(value.into());
            sums[group] = sum;
            has_values[group] = true;
            *overflows |= wraps;
        };
        match (self.filter, values.null_count()) {
            (None, 0) => {
                self.indices.iter().zip(values.values()).for_each(|(group, value)| add(*group, *value))
            }
            (filter, _) => {
                for (row, (group, value)) in self.indices.iter().zip(values).enumerate() {
                    let counts = filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
                    if let Some(value) = value.filter(|_| counts) {
                        add(*group, value);
                    }
                }
            }
        }
    }
}

/// Converts values to partial sums of one value each.
struct AsStates<'a> {
    states: &'a mut Vec<Option<i128>>,
    filter: Option<&'a BooleanArray>,
}

impl Visit for AsStates<'_> {
    fn visit<T>(self, values: &PrimitiveArray<T>)
    where
        T: ArrowPrimitiveType,
        T::Native: Into<i128>,
    {
        let counts = |row| self.filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        let values = values.iter().enumerate();
        self.states.extend(values.map(|(row, value)| value.filter(|_| counts(row)).map(Into::into)));
    }
}

impl Groups {
    fn take(&mut self, emit_to: EmitTo) -> Result<Vec<Option<i128>>> {
        if self.overflows {
            return Err(self.target.exceeded().into());
        }
        let sums = emit_to.take_needed(&mut self.sums);
        let has_values = emit_to.take_needed(&mut self.has_values);
        Ok(sums.into_iter().zip(has_values).map(|(sum, has_values)| has_values.then_some(sum)).collect())
    }
}

fn states(sums: Vec<Option<i128>>) -> ArrayRef {
    Arc::new(Decimal128Array::from(sums).with_data_type(STATE))
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        indices: &[usize],
        filter: Option<&BooleanArray>,
        groups: usize,
    ) -> Result<()> {
        self.sums.resize(groups, 0);
        self.has_values.resize(groups, false);
        visit(&values[0], AddTo { groups: self, indices, filter })
    }

    fn merge_batch(&mut self, states: &[ArrayRef], indices: &[usize], groups: usize) -> Result<()> {
        self.update_batch(states, indices, None, groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sums = self.take(emit_to)?;
        self.target.array(sums.into_iter())
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![states(self.take(emit_to)?)])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let mut sums = Vec::with_capacity(values[0].len());
        visit(&values[0], AsStates { states: &mut sums, filter })?;
        Ok(vec![states(sums)])
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i128>() + self.has_values.capacity()
    }
}
