//! How many rows and bytes each operator of a plan is expected to give.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use datafusion::common::Statistics;
use datafusion::common::stats::Precision;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::{ExecutionPlan, StatisticsArgs};

/// Bytes of a value of variable length whose column has no statistics.
const VARIABLE_BYTES: f64 = 16.0;

/// What an operator is expected to give, in all its tasks together.
#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    statistics: Arc<Statistics>,
    /// Bytes of a value of each column, in memory.
    widths: Vec<f64>,
}

impl Estimate {
    /// The estimate for an operator, from those of its inputs, and from what it gave before. `streams` is the
    /// number of partitions in all tasks together.
    pub(crate) fn of(
        plan: &dyn ExecutionPlan,
        inputs: &[&Self],
        streams: usize,
        rows_before: Option<f64>,
    ) -> Self {
        let schema = plan.schema();
        let below: Vec<_> = inputs.iter().map(|input| input.statistics.clone()).collect();
        let statistics = plan.statistics_from_inputs(&below, &StatisticsArgs::new());
        let mut statistics =
            statistics.map_or_else(|_| Statistics::new_unknown(&schema), Arc::unwrap_or_clone).to_inexact();
        if statistics.column_statistics.len() != schema.fields().len() {
            statistics.column_statistics = Statistics::unknown_column(&schema);
        }
        // Widths first: the bytes of columns are those of the estimated rows.
        let widths = schema.fields().iter().enumerate().map(|(index, field)| {
            let mut children = plan.children().into_iter().zip(inputs);
            let known = children.find_map(|(child, input)| input.width(&child.schema(), field));
            known.unwrap_or_else(|| match inputs {
                [] => width(&statistics, index, field),
                _ => width_of(field.data_type()),
            })
        });
        let widths: Vec<f64> = widths.collect();
        if statistics.num_rows == Precision::Absent {
            // It is assumed not to change the number of rows, and a join to find each row of the larger side once.
            let most = inputs.iter().filter_map(|input| input.statistics.num_rows.get_value()).max();
            statistics.num_rows = most.map_or(Precision::Absent, |rows| Precision::Inexact(*rows));
        }
        if let (Some(aggregate), [input]) = (plan.downcast_ref::<AggregateExec>(), inputs)
            && *aggregate.mode() == AggregateMode::Partial
            && let (Some(groups), Some(rows)) = (statistics.num_rows.get_value(), input.rows())
        {
            let partial = partial_groups(*groups as f64, rows, streams as f64);
            statistics.num_rows = Precision::Inexact(partial as usize);
        }
        if let Some(rows) = rows_before {
            statistics.num_rows = Precision::Inexact(rows as usize);
        }
        if let Some(&rows) = statistics.num_rows.get_value() {
            for column in &mut statistics.column_statistics {
                column.distinct_count = column.distinct_count.map(|values| values.min(rows));
            }
        }
        Self { statistics: Arc::new(statistics), widths }
    }

    /// The width of the column of this name and type, among those of an input.
    fn width(&self, schema: &Schema, field: &Field) -> Option<f64> {
        let (index, found) = schema.column_with_name(field.name())?;
        self.widths.get(index).copied().filter(|_| found.data_type() == field.data_type())
    }

    /// Rows; `None` if nothing is known of the tables.
    pub(crate) fn rows(&self) -> Option<f64> {
        self.statistics.num_rows.get_value().map(|&rows| rows as f64)
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> f64 {
        self.widths.iter().sum()
    }

    /// Bytes of all rows; `None` if nothing is known of the tables.
    pub(crate) fn bytes(&self) -> Option<f64> {
        Some(self.rows()? * self.row_bytes())
    }
}

/// Groups that `streams` partial aggregations give together, if the rows of each group are spread evenly.
fn partial_groups(groups: f64, rows: f64, streams: f64) -> f64 {
    if groups < 1.0 || streams < 1.0 {
        return groups;
    }
    // Of `groups` equally likely values, `groups (1 - (1 - 1 / groups)^n)` are expected among n rows, which is
    // computed so that it is right for very many groups.
    let seen = -groups * (rows / streams * (-1.0 / groups).ln_1p()).exp_m1();
    (seen * streams).min(rows)
}

/// Bytes of a value of a column of a table, in memory.
pub(crate) fn width(table: &Statistics, index: usize, field: &Field) -> f64 {
    let bytes = table.column_statistics.get(index).and_then(|column| column.byte_size.get_value());
    match (bytes, table.num_rows.get_value()) {
        (Some(&bytes), Some(&rows)) if rows > 0 => bytes as f64 / rows as f64,
        _ => width_of(field.data_type()),
    }
}

fn width_of(kind: &DataType) -> f64 {
    match kind {
        DataType::Boolean => 0.125,
        DataType::Null => 0.0,
        DataType::FixedSizeBinary(bytes) => f64::from(*bytes),
        kind => kind.primitive_width().map_or(VARIABLE_BYTES, |bytes| bytes as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_aggregations_give_each_group_in_each_stream_that_has_it() {
        assert!((partial_groups(4.0, 6e6, 8.0) - 32.0).abs() < 1e-6);
        // More groups than rows of a stream: hardly a group occurs twice in it.
        let many = partial_groups(1.5e6, 6e6, 8.0);
        assert!(many > 4.5e6 && many < 6e6, "{many}");
        assert!(partial_groups(1e9, 100.0, 8.0) <= 100.0);
        assert_eq!(partial_groups(0.0, 100.0, 8.0), 0.0);
        assert!((partial_groups(1.0, 100.0, 8.0) - 8.0).abs() < 1e-6);
        assert!((partial_groups(1e18, 6e6, 8.0) - 6e6).abs() < 1.0);
    }
}
