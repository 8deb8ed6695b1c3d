//! Intervals of several parts: a column of integers each.

use arrow_array::types::{IntervalDayTime, IntervalMonthDayNano};
use arrow_buffer::{Buffer, ScalarBuffer};

/// Days and milliseconds.
pub(super) fn of_day_time(values: &[IntervalDayTime]) -> (ScalarBuffer<i32>, ScalarBuffer<i32>) {
    (
        values.iter().map(|value| value.days).collect::<Vec<_>>().into(),
        values.iter().map(|value| value.milliseconds).collect::<Vec<_>>().into(),
    )
}

/// Months, days and nanoseconds.
pub(super) fn of_month_day_nano(
    values: &[IntervalMonthDayNano],
) -> (ScalarBuffer<i32>, ScalarBuffer<i32>, ScalarBuffer<i64>) {
    (
        values.iter().map(|value| value.months).collect::<Vec<_>>().into(),
        values.iter().map(|value| value.days).collect::<Vec<_>>().into(),
        values.iter().map(|value| value.nanoseconds).collect::<Vec<_>>().into(),
    )
}

/// The intervals of days and milliseconds.
pub(super) fn day_time(days: &Buffer, milliseconds: &Buffer) -> Buffer {
    let parts = days.typed_data::<i32>().iter().zip(milliseconds.typed_data::<i32>());
    Buffer::from_vec(
        parts.map(|(&days, &milliseconds)| IntervalDayTime::new(days, milliseconds)).collect::<Vec<_>>(),
    )
}

/// The intervals of months, days and nanoseconds.
pub(super) fn month_day_nano(months: &Buffer, days: &Buffer, nanoseconds: &Buffer) -> Buffer {
    let parts = months.typed_data::<i32>().iter().zip(days.typed_data::<i32>());
    let parts = parts.zip(nanoseconds.typed_data::<i64>());
    Buffer::from_vec(
        parts
            .map(|((&months, &days), &nanoseconds)| IntervalMonthDayNano::new(months, days, nanoseconds))
            .collect::<Vec<_>>(),
    )
}
