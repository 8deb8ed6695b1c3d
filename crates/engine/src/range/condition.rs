//! Conditions on the key, as intervals of keys.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Operator};
use lightship_rangefile::{Definition, Interval};

/// Most values of an IN list that become intervals.
const VALUES_MAX: usize = 4096;

/// What conditions say about the key.
pub(crate) struct Conditions {
    /// The intervals of the keys that meet the conditions which are used, in order.
    pub(crate) intervals: Vec<Interval>,
    /// Which conditions are used. The others have to be checked for each row.
    pub(crate) used: Vec<bool>,
}

impl Conditions {
    /// Finds the intervals of conditions that all must hold: on the first columns of the key as long as they have one
    /// value each, and on the next one.
    ///
    /// A condition that is used is also used when there are more: the planner asks about some of them at a time.
    pub(crate) fn of(definition: &Arc<Definition>, filters: &[&Expr]) -> Self {
        let format = definition.format();
        let conditions: Vec<Option<Condition>> =
            filters.iter().map(|filter| Condition::of(definition, filter)).collect();
        let mut used = vec![false; filters.len()];
        let mut prefix: Vec<ArrayRef> = Vec::new();
        let mut intervals = vec![Interval::ALL];
        for column in 0..format.columns().len() {
            let with = |value: &ArrayRef| {
                let values: Vec<ArrayRef> = prefix.iter().chain([value]).cloned().collect();
                format.prefix(&values).ok()
            };
            let mut values: Vec<(Interval, ArrayRef)> = Vec::new();
            for (index, condition) in conditions.iter().enumerate() {
                let Some(condition) = condition.as_ref().filter(|condition| condition.column == column)
                else {
                    continue;
                };
                let Some(allowed) = condition.kind.intervals(with, &mut values) else { continue };
                used[index] = true;
                intervals = intersection(&intervals, &allowed);
            }
            // The next column counts only if all keys have the same value in this one.
            let only = match intervals.as_slice() {
                [only] => values.into_iter().find(|(interval, _)| interval == only),
                _ => None,
            };
            let Some((_, value)) = only else { break };
            prefix.push(value);
        }
        Self { intervals, used }
    }
}

/// The keys that are in an interval of both lists, each of which is in order without overlaps.
fn intersection(a: &[Interval], b: &[Interval]) -> Vec<Interval> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut both = Vec::new();
    while let (Some(&x), Some(&y)) = (a.peek(), b.peek()) {
        both.push(x.intersection(y));
        // The one that ends first meets nothing more.
        if x.ends_before(y) {
            a.next()
        } else {
            b.next()
        };
    }
    both.retain(|interval| !interval.is_empty());
    both
}

/// A condition on one column of the key.
struct Condition {
    /// The position of the column in the key.
    column: usize,
    kind: Kind,
}

/// Values are arrays of length 1.
enum Kind {
    In(Vec<ArrayRef>),
    /// Bounds, with whether they are included.
    Range {
        low: Option<(ArrayRef, bool)>,
        high: Option<(ArrayRef, bool)>,
    },
}

impl Kind {
    /// The intervals that meet it, in order; `None` if they are not known. `with` returns the keys that begin with a
    /// value; single values are added to `values` with their keys.
    fn intervals(
        &self,
        with: impl Fn(&ArrayRef) -> Option<Interval>,
        values: &mut Vec<(Interval, ArrayRef)>,
    ) -> Option<Vec<Interval>> {
        match self {
            Self::In(list) => {
                let found: Option<Vec<Interval>> = list.iter().map(with).collect();
                let mut found = found?;
                values.extend(found.iter().cloned().zip(list.iter().cloned()));
                found.sort();
                found.dedup();
                Some(found)
            }
            Self::Range { low, high } => {
                let mut interval = Interval::ALL;
                if let Some((value, is_included)) = low {
                    let at = with(value)?;
                    interval.low = if *is_included { at.low } else { at.high? };
                }
                if let Some((value, is_included)) = high {
                    let at = with(value)?;
                    interval.high = if *is_included { at.high } else { Some(at.low) };
                }
                Some(vec![interval])
            }
        }
    }
}

impl Condition {
    fn of(definition: &Definition, filter: &Expr) -> Option<Self> {
        let (column, kind) = match filter {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                let (left, right) = (Self::of(definition, left)?, Self::of(definition, right)?);
                let (Kind::In(mut values), Kind::In(others)) = (left.kind, right.kind) else { return None };
                values.extend(others);
                (values.len() <= VALUES_MAX && left.column == right.column)
                    .then_some((left.column, Kind::In(values)))?
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let (column, op, value) = match (left.as_ref(), right.as_ref()) {
                    (Expr::Column(column), Expr::Literal(value, _)) => (column, *op, value),
                    (Expr::Literal(value, _), Expr::Column(column)) => (column, op.swap()?, value),
                    _ => return None,
                };
                let column = key_column(definition, &column.name)?;
                let value = of_type(definition, column, value)?;
                let range = |low, high| Kind::Range { low, high };
                let kind = match op {
                    Operator::Eq => Kind::In(vec![value]),
                    Operator::Lt => range(None, Some((value, false))),
                    Operator::LtEq => range(None, Some((value, true))),
                    Operator::Gt => range(Some((value, false)), None),
                    Operator::GtEq => range(Some((value, true)), None),
                    _ => return None,
                };
                (column, kind)
            }
            Expr::Between(Between { expr, negated: false, low, high }) => {
                let (Expr::Column(column), Expr::Literal(low, _), Expr::Literal(high, _)) =
                    (expr.as_ref(), low.as_ref(), high.as_ref())
                else {
                    return None;
                };
                let column = key_column(definition, &column.name)?;
                let bound = |value| Some((of_type(definition, column, value)?, true));
                (column, Kind::Range { low: Some(bound(low)?), high: Some(bound(high)?) })
            }
            Expr::InList(InList { expr, list, negated: false }) if (1..=VALUES_MAX).contains(&list.len()) => {
                let Expr::Column(column) = expr.as_ref() else { return None };
                let column = key_column(definition, &column.name)?;
                let values = list.iter().map(|value| match value {
                    Expr::Literal(value, _) => of_type(definition, column, value),
                    _ => None,
                });
                (column, Kind::In(values.collect::<Option<_>>()?))
            }
            _ => return None,
        };
        Some(Self { column, kind })
    }
}

/// The position of a column in the key.
fn key_column(definition: &Definition, name: &str) -> Option<usize> {
    definition.key.iter().position(|key| key == name)
}

/// The value as an array, if it has the type of the column, whose keys have the order of SQL, and is not NULL: no row
/// meets a comparison with NULL.
fn of_type(definition: &Definition, column: usize, value: &ScalarValue) -> Option<ArrayRef> {
    let field = definition.schema.field(definition.format().columns()[column]);
    // Keys of floats tell 0.0 and -0.0 apart, and intervals of time are ordered by their parts.
    let is_other = field.data_type().is_floating() || matches!(field.data_type(), DataType::Interval(_));
    if is_other || value.is_null() || value.data_type() != *field.data_type() {
        return None;
    }
    value.to_array().ok()
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, RecordBatch, StringArray};
    use arrow_schema::{Field, Schema};
    use datafusion::logical_expr::{col, lit};
    use lightship_rangefile::Capacity;

    use super::*;

    fn definition() -> Arc<Definition> {
        let schema = Schema::new(vec![
            Field::new("region", DataType::Utf8, false),
            Field::new("id", DataType::Int64, false),
        ]);
        let key = ["region".to_owned(), "id".to_owned()];
        Arc::new(Definition::new("t", &schema, &key, Capacity::default()).unwrap())
    }

    /// The rows that the intervals have, of 3 regions and ids from 0 to 9.
    fn selected(filters: &[&Expr]) -> (Vec<(String, i64)>, Vec<bool>) {
        let definition = definition();
        let found = Conditions::of(&definition, filters);
        let all = ["a", "b", "c"].iter().flat_map(|region| (0..10).map(move |id| ((*region).to_owned(), id)));
        let selected = all.filter(|(region, id)| {
            let columns: Vec<ArrayRef> = vec![
                Arc::new(StringArray::from(vec![region.as_str()])),
                Arc::new(Int64Array::from(vec![*id])),
            ];
            let rows = RecordBatch::try_new(definition.schema.clone(), columns).unwrap();
            let keys = definition.format().keys(&rows).unwrap();
            found.intervals.iter().filter(|interval| interval.contains(keys.row(0).data())).count() == 1
        });
        (selected.collect(), found.used)
    }

    #[test]
    fn conditions_become_intervals() {
        let (a, b) = (col("region").eq(lit("a")), col("region").eq(lit("b")));
        let (rows, used) = selected(&[&a, &col("id").gt_eq(lit(7i64))]);
        assert_eq!((rows.len(), used), (3, vec![true, true]));
        let (rows, used) = selected(&[&col("id").lt(lit(3i64)), &b, &col("id").gt(lit(0i64))]);
        assert_eq!((rows, used), (vec![("b".to_owned(), 1), ("b".to_owned(), 2)], vec![true; 3]));
        // Of a later column of the key, nothing can be used.
        let (rows, used) = selected(&[&col("id").lt(lit(3i64))]);
        assert_eq!((rows.len(), used), (30, vec![false]));
        let (rows, used) = selected(&[&a.clone().or(b.clone()), &col("id").eq(lit(1i64))]);
        assert_eq!((rows.len(), used), (20, vec![true, false]));
        let list = col("id").in_list(vec![lit(4i64), lit(2i64), lit(4i64)], false);
        let (rows, used) = selected(&[&a, &list]);
        assert_eq!((rows, used), (vec![("a".to_owned(), 2), ("a".to_owned(), 4)], vec![true, true]));
        let (rows, used) =
            selected(&[&col("region").between(lit("a"), lit("az")), &a, &col("id").lt(lit(2i64))]);
        assert_eq!((rows.len(), used), (2, vec![true; 3]));
        let (rows, used) = selected(&[&col("region").between(lit("b"), lit("bz")), &a]);
        assert_eq!((rows.len(), used), (0, vec![true; 2]));
        let list = col("id").in_list(vec![lit(1i64), lit(2i64), lit(3i64)], false);
        let (rows, used) = selected(&[&list, &a, &col("id").gt(lit(2i64))]);
        assert_eq!((rows, used), (vec![("a".to_owned(), 3)], vec![true; 3]));
        let (some, others) = ([1i64, 3, 5, 7, 9], [0i64, 3, 4, 7]);
        let list = |ids: &[i64]| col("id").in_list(ids.iter().map(|id| lit(*id)).collect(), false);
        let (rows, used) = selected(&[&list(&some), &list(&others), &a]);
        assert_eq!((rows, used), (vec![("a".to_owned(), 3), ("a".to_owned(), 7)], vec![true; 3]));
        let (rows, used) = selected(&[&lit("b").lt(col("region"))]);
        assert_eq!((rows.len(), used), (10, vec![true]));
        let (rows, _) = selected(&[&col("region").gt(lit("b")), &col("region").lt(lit("b"))]);
        assert!(rows.is_empty());
        let (rows, used) = selected(&[&col("id").eq(lit(3i32))]);
        assert_eq!((rows.len(), used), (30, vec![false]));
    }
}
