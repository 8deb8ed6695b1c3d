//! Arithmetic that never wraps around.
//!
//! DataFusion adds, subtracts and multiplies integers modulo their size. Here what does not fit its type is an error:
//! sums are kept in 128 bits ([`sum`]), and operators become functions that check ([`operators`]). Both are known by
//! name, so that they are the same on all nodes of a cluster.

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

/// Registers the functions. All states that plan, decode or run queries need them.
pub(crate) fn register(functions: &mut dyn FunctionRegistry) -> Result<()> {
    functions.register_udaf(Arc::new(AggregateUDF::new_from_impl(sum::ExactSum::default())))?;
    for operation in operators::Operation::ALL {
        functions.register_udf(Arc::new(ScalarUDF::new_from_impl(operators::Checked::new(operation))))?;
    }
    Ok(())
}
