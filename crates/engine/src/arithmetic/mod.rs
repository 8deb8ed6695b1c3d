//! Arithmetic that never wraps around.
//!
//! DataFusion adds, subtracts and multiplies integers modulo their size. Here a result that does
//! not fit its type is an error: sums use 128 bits ([`sum`]), and operators become functions that
//! check for overflow ([`operators`]). Plans refer to both by name, so that all nodes of a cluster
//! use the same functions.

mod operators;
mod sum;

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion::optimizer::AnalyzerRule;

/// The analyzer rule that makes plans check their arithmetic.
pub(crate) fn rule() -> Arc<dyn AnalyzerRule + Send + Sync> {
    Arc::new(operators::CheckIntegers::default())
}

/// Registers the functions. Every session state that plans, decodes or runs queries needs this.
pub(crate) fn register(functions: &mut dyn FunctionRegistry) -> Result<()> {
    functions.register_udaf(Arc::new(AggregateUDF::new_from_impl(sum::ExactSum::default())))?;
    for operation in operators::Operation::ALL {
        functions.register_udf(Arc::new(ScalarUDF::new_from_impl(operators::Checked::new(operation))))?;
    }
    Ok(())
}
