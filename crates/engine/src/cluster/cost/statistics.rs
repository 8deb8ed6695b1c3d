//! Statistics of the columns of a table whose parts are on several nodes.
//!
//! They are estimates for the planner: files can change after a node has described them, so a plan may use
//! them to be faster, never to leave anything out.

use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics, ToDFSchema};
use datafusion::error::Result;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::{Expr, Operator};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::{ExecutionPlan, StatisticsArgs};
use datafusion_proto_common::protobuf_common as protobuf;
use prost::Message as _;

/// The part of the rows that a condition of unknown selectivity is assumed to keep. DataFusion assumes the
/// same.
const SELECTIVITY: f64 = 0.2;
/// The part of the rows that is assumed to have a value, if it is not known how many values there are. To
/// assume too little is worse than too much: many rows that are taken for few are sent to all nodes.
const SELECTIVITY_OF_VALUE: f64 = 0.05;

/// No table has more rows or bytes, and sums of such counts don't overflow.
const COUNT_MAX: usize = 1 << 48;

/// Statistics as they are sent: without extremes of variable length, which can be long and which no estimate
/// uses.
pub(crate) fn encode(statistics: &Statistics) -> Vec<u8> {
    let columns = statistics.column_statistics.iter().map(|column| ColumnStatistics {
        min_value: short(&column.min_value),
        max_value: short(&column.max_value),
        sum_value: Precision::Absent,
        ..column.clone()
    });
    let sent = Statistics { column_statistics: columns.collect(), ..statistics.clone() };
    protobuf::Statistics::from(&sent).encode_to_vec()
}

fn short(value: &Precision<ScalarValue>) -> Precision<ScalarValue> {
    match value.get_value() {
        Some(known) if known.data_type().primitive_width().is_some() => value.clone(),
        _ => Precision::Absent,
    }
}

/// Statistics that another node has sent for a table of these columns. What does not fit is unknown.
pub(crate) fn decode(bytes: &[u8], schema: &Schema) -> Statistics {
    let unknown = || Statistics::new_unknown(schema);
    let Ok(mut sent) = protobuf::Statistics::decode(bytes) else { return unknown() };
    for column in &mut sent.column_stats {
        // Nested values are decoded by code that trusts them.
        column.sum_value = None;
        for value in [&mut column.min_value, &mut column.max_value] {
            let kept = value.as_ref().and_then(|value| value.val.as_ref()).is_some_and(is_plain);
            value.take_if(|_| !kept);
        }
    }
    let Ok(mut sent) = Statistics::try_from(&sent) else { return unknown() };
    if sent.column_statistics.len() != schema.fields().len() {
        sent.column_statistics = unknown().column_statistics;
    }
    for (column, field) in sent.column_statistics.iter_mut().zip(schema.fields()) {
        for value in [&mut column.min_value, &mut column.max_value] {
            // The optimizer compares them with values of the column.
            if value
                .get_value()
                .is_some_and(|value| value.data_type() != *field.data_type() || value.is_null())
            {
                *value = Precision::Absent;
            }
        }
        for count in [&mut column.null_count, &mut column.distinct_count, &mut column.byte_size] {
            *count = count.map(|count| count.min(COUNT_MAX));
        }
    }
    for count in [&mut sent.num_rows, &mut sent.total_byte_size] {
        *count = count.map(|count| count.min(COUNT_MAX));
    }
    sent.to_inexact()
}

/// Whether a value is a number or a time.
fn is_plain(value: &protobuf::ScalarValue) -> bool {
    use protobuf::scalar_value::Value as V;
    matches!(
        value.value,
        Some(
            V::BoolValue(_)
                | V::Int8Value(_)
                | V::Int16Value(_)
                | V::Int32Value(_)
                | V::Int64Value(_)
                | V::Uint8Value(_)
                | V::Uint16Value(_)
                | V::Uint32Value(_)
                | V::Uint64Value(_)
                | V::Float32Value(_)
                | V::Float64Value(_)
                | V::Decimal128Value(_)
                | V::Date32Value(_)
                | V::Date64Value(_)
                | V::TimestampValue(_)
        )
    )
}

/// The statistics of a table, from those of its parts.
pub(crate) fn of_table(parts: &[Statistics], schema: &Schema) -> Statistics {
    let merged = Statistics::try_merge_iter(parts, schema);
    let mut table = merged.unwrap_or_else(|_| Statistics::new_unknown(schema)).to_inexact();
    let rows = table.num_rows;
    for (column, field) in table.column_statistics.iter_mut().zip(schema.fields()) {
        if column.distinct_count == Precision::Absent {
            column.distinct_count = distinct_at_most(column, field.data_type(), &rows);
        }
    }
    table
}

/// The most different values that an integer or date can have between its extremes, in this many rows.
///
/// Keys mostly have all of them; columns with a few values far apart have fewer, and joins on them give more
/// rows than estimated.
fn distinct_at_most(column: &ColumnStatistics, kind: &DataType, rows: &Precision<usize>) -> Precision<usize> {
    let discrete = kind.is_integer() || matches!(kind, DataType::Date32 | DataType::Date64);
    let (Some(min), Some(max), Some(&rows)) =
        (column.min_value.get_value(), column.max_value.get_value(), rows.get_value())
    else {
        return Precision::Absent;
    };
    let range = Interval::try_new(min.clone(), max.clone()).ok().filter(|_| discrete);
    match range.and_then(|range| range.cardinality()) {
        Some(values) => Precision::Inexact(rows.min(usize::try_from(values).unwrap_or(usize::MAX))),
        None => Precision::Absent,
    }
}

/// The statistics of the rows that satisfy a condition.
fn satisfying(rows: &Statistics, schema: &SchemaRef, condition: &Expr, session: &dyn Session) -> Statistics {
    let part = |part: f64| Statistics {
        num_rows: rows.num_rows.with_estimated_selectivity(part),
        total_byte_size: rows.total_byte_size.with_estimated_selectivity(part),
        column_statistics: rows.column_statistics.clone(),
    };
    if let Some(values) = values_of_one_column(condition, schema, rows) {
        return part((values as f64 * SELECTIVITY_OF_VALUE).min(1.0));
    }
    let estimate = || -> Result<Statistics> {
        let condition = session.create_physical_expr(condition.clone(), &schema.clone().to_dfschema()?)?;
        let filter = FilterExec::try_new(condition, Arc::new(EmptyExec::new(schema.clone())))?;
        let inputs = [Arc::new(rows.clone())];
        Ok(filter.statistics_from_inputs(&inputs, &StatisticsArgs::new())?.as_ref().clone())
    };
    estimate().unwrap_or_else(|_| part(SELECTIVITY))
}

/// The number of values that a condition lets one column have, if it is not known how many values there are
/// in all. DataFusion takes such a condition for one of unknown selectivity.
fn values_of_one_column(condition: &Expr, schema: &Schema, rows: &Statistics) -> Option<usize> {
    let (column, values) = match condition {
        Expr::BinaryExpr(equality) if equality.op == Operator::Eq => {
            match (equality.left.as_ref(), equality.right.as_ref()) {
                (Expr::Column(column), Expr::Literal(..)) | (Expr::Literal(..), Expr::Column(column)) => {
                    (column, 1)
                }
                _ => return None,
            }
        }
        Expr::InList(list)
            if !list.negated && list.list.iter().all(|value| matches!(value, Expr::Literal(..))) =>
        {
            match list.expr.as_ref() {
                Expr::Column(column) => (column, list.list.len()),
                _ => return None,
            }
        }
        // The parser makes this of a short IN.
        Expr::BinaryExpr(either) if either.op == Operator::Or => {
            let left = values_of_one_column(&either.left, schema, rows)?;
            return Some(left + values_of_one_column(&either.right, schema, rows)?);
        }
        _ => return None,
    };
    let index = schema.index_of(&column.name).ok()?;
    let is_unknown = rows.column_statistics.get(index)?.distinct_count == Precision::Absent;
    is_unknown.then_some(values)
}

/// The statistics of the rows of a table that satisfy all conditions.
pub(crate) fn filtered(
    table: &Statistics,
    schema: &SchemaRef,
    filters: &[Expr],
    session: &dyn Session,
) -> Statistics {
    let mut rows = table.clone();
    for filter in filters {
        rows = satisfying(&rows, schema, filter, session);
    }
    let kept = match (rows.num_rows.get_value(), table.num_rows.get_value()) {
        (Some(&rows), Some(&all)) if all > 0 => rows as f64 / all as f64,
        _ => SELECTIVITY,
    };
    for (column, whole) in rows.column_statistics.iter_mut().zip(&table.column_statistics) {
        column.byte_size = whole.byte_size.with_estimated_selectivity(kept);
    }
    rows.to_inexact()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::Field;
    use datafusion::prelude::{SessionContext, col, lit};

    fn schema() -> SchemaRef {
        let field = |name: &str, kind| Field::new(name, kind, true);
        Arc::new(Schema::new(vec![field("number", DataType::Int64), field("text", DataType::Utf8)]))
    }

    fn part(rows: usize, min: i64, max: i64) -> Statistics {
        let exact = |value| Precision::Exact(ScalarValue::Int64(Some(value)));
        let mut part = Statistics::new_unknown(&schema());
        part.num_rows = Precision::Exact(rows);
        part.column_statistics[0].min_value = exact(min);
        part.column_statistics[0].max_value = exact(max);
        part.column_statistics[0].byte_size = Precision::Exact(8 * rows);
        part.column_statistics[1].max_value = Precision::Exact(ScalarValue::from("long".repeat(100_000)));
        part
    }

    #[test]
    fn statistics_of_parts_become_those_of_the_table() {
        let schema = schema();
        let parts = [part(100, 1, 50), part(300, 40, 80)].map(|part| {
            let sent = encode(&part);
            assert!(sent.len() < 1000, "texts are not sent");
            decode(&sent, &schema)
        });
        let table = of_table(&parts, &schema);
        // Never exact: files may have changed since.
        assert_eq!(table.num_rows, Precision::Inexact(400));
        assert_eq!(table.column_statistics[0].distinct_count, Precision::Inexact(80));
        assert_eq!(table.column_statistics[0].min_value, Precision::Inexact(ScalarValue::Int64(Some(1))));
        assert_eq!(table.column_statistics[1].distinct_count, Precision::Absent);
    }

    #[test]
    fn statistics_that_do_not_fit_are_unknown() {
        let schema = schema();
        for bytes in [b"\xff\xff\xff".to_vec(), Vec::new(), encode(&Statistics::default())] {
            assert_eq!(decode(&bytes, &schema).column_statistics.len(), 2);
        }
        let mut other = part(1, 1, 2);
        other.column_statistics[0].min_value = Precision::Exact(ScalarValue::Int32(Some(1)));
        let read = decode(&encode(&other), &schema);
        assert_eq!(read.column_statistics[0].min_value, Precision::Absent);
        assert_ne!(read.column_statistics[0].max_value, Precision::Absent);
    }

    #[test]
    fn conditions_leave_a_part_of_the_rows() {
        let (schema, session) = (schema(), SessionContext::new().state());
        let table = of_table(&[part(1000, 1, 100)], &schema);
        let rows = |filters: &[Expr]| filtered(&table, &schema, filters, &session).num_rows;
        assert_eq!(rows(&[]), Precision::Inexact(1000));
        assert_eq!(rows(&[col("number").lt_eq(lit(50_i64))]), Precision::Inexact(500));
        assert_eq!(rows(&[col("text").eq(lit("a"))]), Precision::Inexact(50));
        let either = col("text").in_list(vec![lit("a"), lit("b"), lit("c"), lit("d")], false);
        assert_eq!(rows(std::slice::from_ref(&either)), Precision::Inexact(200));
        assert_eq!(rows(&[either, col("number").lt_eq(lit(50_i64))]), Precision::Inexact(100));
        assert_eq!(rows(&[col("missing").eq(lit(1_i64))]), Precision::Inexact(200));
    }
}
