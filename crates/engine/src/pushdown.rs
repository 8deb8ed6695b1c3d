//! Conditions that are pushed down to a database.
//!
//! A pushed condition must let through at least the rows that meet it here. The source says which
//! comparisons of a column do: [`lightship_sources::Comparison`]. This module converts a filter of
//! a plan to a [`Condition`], as far as it consists of comparisons of columns with values.

use arrow_array::types::{ArrowPrimitiveType, Decimal256Type};
use arrow_schema::{DataType, Schema};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator as Op};
use lightship_sources::{Condition, Dialect, Literal, Operator, TableInfo};

type Wide = <Decimal256Type as ArrowPrimitiveType>::Native;

/// Maximum nesting of AND and OR.
const DEPTH_MAX: usize = 16;
/// Maximum number of operands in a chain of AND or of OR.
const CHAIN_MAX: usize = 1000;

/// The filter in the database's SQL, if it can be pushed down.
pub(crate) fn condition(filter: &Expr, table: &TableInfo, dialect: Dialect) -> Option<String> {
    converted(filter, &table.schema, DEPTH_MAX)?.sql(dialect, &table.comparisons)
}

fn converted(expr: &Expr, schema: &Schema, depth: usize) -> Option<Condition> {
    let depth = depth.checked_sub(1)?;
    match expr {
        Expr::BinaryExpr(BinaryExpr { op: Op::And, .. }) => {
            let parts = chain(expr, Op::And)?;
            // Without one of the parts, the database returns more rows, which are filtered here.
            Some(Condition::All(
                parts.into_iter().filter_map(|part| converted(part, schema, depth)).collect(),
            ))
        }
        Expr::BinaryExpr(BinaryExpr { op: Op::Or, .. }) => {
            let parts = chain(expr, Op::Or)?;
            let parts = parts.into_iter().map(|part| converted(part, schema, depth));
            Some(Condition::Any(parts.collect::<Option<_>>()?))
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (&**left, &**right) {
            (Expr::Column(column), Expr::Literal(value, _)) => compare(column, *op, value, schema),
            (Expr::Literal(value, _), Expr::Column(column)) => compare(column, op.swap()?, value, schema),
            _ => None,
        },
        Expr::Between(between) if !between.negated => {
            let Expr::Column(column) = &*between.expr else { return None };
            let (Expr::Literal(low, _), Expr::Literal(high, _)) = (&*between.low, &*between.high) else {
                return None;
            };
            let low = compare(column, Op::GtEq, low, schema)?;
            Some(Condition::All(vec![low, compare(column, Op::LtEq, high, schema)?]))
        }
        Expr::InList(list) if !list.negated => {
            let Expr::Column(column) = &*list.expr else { return None };
            let (at, data_type) = found(column, schema)?;
            let values = list.list.iter().map(|item| match item {
                Expr::Literal(value, _) => literal(data_type, value),
                _ => None,
            });
            Some(Condition::In(at, values.collect::<Option<_>>()?))
        }
        Expr::Column(column) => boolean(column, true, schema),
        Expr::Not(inner) => match &**inner {
            Expr::Column(column) => boolean(column, false, schema),
            _ => None,
        },
        Expr::IsNull(inner) => match &**inner {
            Expr::Column(column) => Some(Condition::IsNull(found(column, schema)?.0)),
            _ => None,
        },
        Expr::IsNotNull(inner) => match &**inner {
            Expr::Column(column) => Some(Condition::IsNotNull(found(column, schema)?.0)),
            _ => None,
        },
        _ => None,
    }
}

/// The operands of a chain of `op`, collected without recursion: chains may be long.
fn chain(expr: &Expr, op: Op) -> Option<Vec<&Expr>> {
    let (mut parts, mut rest) = (Vec::new(), vec![expr]);
    while let Some(expr) = rest.pop() {
        match expr {
            Expr::BinaryExpr(binary) if binary.op == op => rest.extend([&*binary.right, &*binary.left]),
            part => parts.push(part),
        }
        if parts.len() + rest.len() > CHAIN_MAX {
            return None;
        }
    }
    Some(parts)
}

fn compare(column: &Column, op: Op, value: &ScalarValue, schema: &Schema) -> Option<Condition> {
    let operator = match op {
        Op::Eq => Operator::Equal,
        Op::Lt => Operator::Less,
        Op::LtEq => Operator::LessOrEqual,
        Op::Gt => Operator::Greater,
        Op::GtEq => Operator::GreaterOrEqual,
        _ => return None,
    };
    let (at, data_type) = found(column, schema)?;
    Some(Condition::Compare(at, operator, literal(data_type, value)?))
}

/// A boolean column that is used as a condition.
fn boolean(column: &Column, value: bool, schema: &Schema) -> Option<Condition> {
    compare(column, Op::Eq, &ScalarValue::Boolean(Some(value)), schema)
}

/// The column's position and type; `None` if the name is ambiguous.
fn found<'a>(column: &Column, schema: &'a Schema) -> Option<(usize, &'a DataType)> {
    let mut same = schema.fields().iter().enumerate().filter(|(_, field)| *field.name() == column.name);
    let (at, field) = same.next()?;
    same.next().is_none().then_some((at, field.data_type()))
}

/// The value, if it is of the column's own type and not NULL.
fn literal(data_type: &DataType, value: &ScalarValue) -> Option<Literal> {
    use ScalarValue as V;
    if value.data_type() != *data_type {
        return None;
    }
    Some(match *value {
        V::Boolean(Some(value)) => Literal::Boolean(value),
        V::Int8(Some(value)) => Literal::Integer(value.into()),
        V::Int16(Some(value)) => Literal::Integer(value.into()),
        V::Int32(Some(value)) => Literal::Integer(value.into()),
        V::Int64(Some(value)) => Literal::Integer(value.into()),
        V::UInt8(Some(value)) => Literal::Integer(value.into()),
        V::UInt16(Some(value)) => Literal::Integer(value.into()),
        V::UInt32(Some(value)) => Literal::Integer(value.into()),
        V::UInt64(Some(value)) => Literal::Integer(value.into()),
        V::Float64(Some(value)) => Literal::Float(value),
        V::Decimal128(Some(unscaled), _, scale) => Literal::Decimal(Wide::from_i128(unscaled), scale),
        V::Decimal256(Some(unscaled), _, scale) => Literal::Decimal(unscaled, scale),
        V::Date32(Some(days)) => Literal::Days(days),
        V::TimestampMicrosecond(Some(us), ref zone) => Literal::Timestamp { us, utc: zone.is_some() },
        V::Utf8(Some(ref text)) => Literal::Text(text.clone()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{Field, TimeUnit};
    use datafusion::prelude::{col, lit};
    use lightship_sources::{Comparable, Comparison};

    use super::*;

    fn check(filter: Expr, expected: Option<&str>) {
        let columns = [
            ("n", DataType::Int64, Comparable::Ordered),
            ("b", DataType::Boolean, Comparable::Equal),
            ("s", DataType::Utf8, Comparable::Equal),
            ("j", DataType::Utf8, Comparable::Nulls),
            ("t", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), Comparable::Ordered),
        ];
        let comparison = |(name, _, comparable): &(&str, _, _)| {
            let column = (*name).to_owned();
            Comparison { comparable: *comparable, operand: column.clone(), column }
        };
        let table = TableInfo {
            comparisons: columns.iter().map(comparison).collect(),
            schema: Arc::new(Schema::new(columns.map(|(name, t, _)| Field::new(name, t, true)).to_vec())),
            rows_estimate: None,
        };
        let found = condition(&filter, &table, Dialect::Postgres);
        assert_eq!(found.as_deref(), expected, "{filter}");
    }

    #[test]
    fn comparisons_with_values_are_pushed_down() {
        let five = || lit(5_i64);
        check(col("n").gt(five()), Some("n > 5"));
        check(col("x.n").eq(five()), Some("n = 5"));
        check(five().gt(col("n")), Some("n < 5"));
        check(col("n").eq(five()).or(col("s").eq(lit("it's"))), Some("(n = 5 OR s = 'it''s')"));
        check(col("n").between(lit(1_i64), five()), Some("(n >= 1 AND n <= 5)"));
        check(col("n").in_list(vec![lit(1_i64), lit(2_i64)], false), Some("n IN (1, 2)"));
        check(col("j").is_null(), Some("j IS NULL"));
        check(col("b"), Some("b = true"));
        check(!col("b"), Some("b = false"));
        let utc = ScalarValue::TimestampMicrosecond(Some(0), Some("UTC".into()));
        check(col("t").lt_eq(lit(utc)), Some("t <= TIMESTAMPTZ '1970-01-01 00:00:00.000000+00'"));
        // A part that can't be pushed down is left out of AND; with OR, nothing is pushed down.
        check(col("n").gt(five()).and(col("s").gt(lit("x"))), Some("(n > 5)"));
        check(col("n").gt(five()).or(col("s").gt(lit("x"))), None);
        check(
            col("n").eq(five()).and(col("n").lt(five())).or(col("b")),
            Some("((n = 5 AND n < 5) OR b = true)"),
        );

        check(col("s").lt(lit("x")), None);
        check(col("j").eq(lit("{}")), None);
        check(col("s").not_eq(lit("x")), None);
        check(col("n").not_eq(five()), None);
        check(col("n").eq(lit(5_i32)), None);
        check(col("n").eq(lit(ScalarValue::Int64(None))), None);
        check(col("n").eq(five()).is_not_true(), None);
        check(!col("n").eq(five()), None);
        check(col("n").in_list(vec![lit(1_i64)], true), None);
        check(col("n").in_list(vec![lit(1_i64), lit(ScalarValue::Int64(None))], false), None);
        check(col("z").is_null(), None);
        let local = ScalarValue::TimestampMicrosecond(Some(0), None);
        check(col("t").eq(lit(local)), None);
    }

    #[test]
    fn long_chains_are_not_pushed_down() {
        let chain = |length: i64| (0..length).map(|n| col("n").eq(lit(n))).reduce(Expr::or).unwrap();
        assert!(
            converted(&chain(400), &Schema::new(vec![Field::new("n", DataType::Int64, true)]), 9).is_some()
        );
        check(chain(5000), None);
    }
}
