//! `+`, `-` and `*` of integers, as functions that fail if the result does not fit.

use std::sync::Arc;

use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ExprSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum::apply;
use lightship_wire::control::Reason;

use crate::error::EngineError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Add,
    Subtract,
    Multiply,
}

impl Operation {
    pub(super) const ALL: [Self; 3] = [Self::Add, Self::Subtract, Self::Multiply];

    fn of(operator: Operator) -> Option<Self> {
        match operator {
            Operator::Plus => Some(Self::Add),
            Operator::Minus => Some(Self::Subtract),
            Operator::Multiply => Some(Self::Multiply),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Add => "checked_add",
            Self::Subtract => "checked_subtract",
            Self::Multiply => "checked_multiply",
        }
    }
}

/// The name of a chain such as `checked_add(checked_add(a,b),c)`.
///
/// Planning asks for the name of each part of an expression many times. If each level copied the
/// name of the level below, a sum of a thousand terms would take minutes.
fn chain_name(name: &str, arguments: &[Expr]) -> String {
    let (mut heads, mut tails) = (format!("{name}("), Vec::new());
    let mut arguments = arguments;
    while let [left, right] = arguments {
        tails.push(right.schema_name().to_string());
        match left {
            Expr::ScalarFunction(inner) if is_checked(inner) => {
                heads.push_str(inner.func.name());
                heads.push('(');
                arguments = &inner.args;
            }
            operand => {
                heads.push_str(&operand.schema_name().to_string());
                break;
            }
        }
    }
    for tail in tails.into_iter().rev() {
        heads.push(',');
        heads.push_str(&tail);
        heads.push(')');
    }
    heads
}

/// An operation on two integers of the same type.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Checked {
    operation: Operation,
    signature: Signature,
}

impl Checked {
    pub(super) fn new(operation: Operation) -> Self {
        Self { operation, signature: Signature::any(2, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        self.operation.name()
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        Ok(chain_name(self.name(), arguments))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [left, right] if left == right && left.is_integer() => Ok(left.clone()),
            _ => {
                Err(EngineError::Data(format!("{} takes two integers of the same type", self.name())).into())
            }
        }
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<DataType> =
            arguments.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let nullable = arguments.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, nullable)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [left, right] = <[ColumnarValue; 2]>::try_from(arguments.args)
            .map_err(|_| EngineError::Internal(format!("{} takes two arguments", self.name())))?;
        let kernel = match self.operation {
            Operation::Add => numeric::add,
            Operation::Subtract => numeric::sub,
            Operation::Multiply => numeric::mul,
        };
        let data_type = left.data_type();
        apply(&left, &right, |left, right| {
            kernel(left, right).map_err(|error| match error {
                ArrowError::ArithmeticOverflow(_) => {
                    let message = format!(
                        "integer overflow: the result does not fit {data_type}; cast one operand: \
                         cast(... as decimal(38, 0))"
                    );
                    let reason = Reason::OutOfRange;
                    ArrowError::ExternalError(Box::new(EngineError::Value { message, reason }))
                }
                other => other,
            })
        })
    }
}

/// Replaces operators on integers with functions that check for overflow.
#[derive(Debug)]
pub(super) struct CheckIntegers([Arc<ScalarUDF>; 3]);

impl Default for CheckIntegers {
    fn default() -> Self {
        Self(Operation::ALL.map(|operation| Arc::new(ScalarUDF::new_from_impl(Checked::new(operation)))))
    }
}

impl CheckIntegers {
    fn call(&self, operation: Operation, left: Expr, right: Expr) -> Expr {
        let function = self.0[operation as usize].clone();
        Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![left, right]))
    }

    fn rewrite(&self, expr: Expr, schema: &dyn ExprSchema) -> Result<Transformed<Expr>> {
        let is_integer = |expr: &Expr| integer_type(expr, schema);
        Ok(match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let types = (is_integer(&left), is_integer(&right));
                match (Operation::of(op), types) {
                    (Some(operation), (Some(a), Some(b))) if a == b => {
                        Transformed::yes(self.call(operation, *left, *right))
                    }
                    _ => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
                }
            }
            Expr::Negative(inner) => match is_integer(&inner) {
                Some(data_type) if data_type.is_signed_integer() => {
                    let zero = Expr::Literal(ScalarValue::new_zero(&data_type)?, None);
                    Transformed::yes(self.call(Operation::Subtract, zero, *inner))
                }
                _ => Transformed::no(Expr::Negative(inner)),
            },
            other => Transformed::no(other),
        })
    }
}

/// The type of an expression, if it is an integer type.
///
/// Both operands of an operation have its type, so it is enough to look at one. Asking the
/// operation itself would visit and name every expression below it.
fn integer_type(expr: &Expr, schema: &dyn ExprSchema) -> Option<DataType> {
    let mut expr = expr;
    while let Expr::ScalarFunction(function) = expr
        && is_checked(function)
        && let Some(side) = function.args.first()
    {
        expr = side;
    }
    expr.get_type(schema).ok().filter(DataType::is_integer)
}

fn is_checked(function: &ScalarFunction) -> bool {
    function.args.len() == 2
        && Operation::ALL.iter().any(|operation| operation.name() == function.func.name())
}

impl AnalyzerRule for CheckIntegers {
    fn name(&self) -> &str {
        "check_integers"
    }

    /// Runs after type coercion, when both operands of an operator have the same type.
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewritten = plan.transform_up_with_subqueries(|plan| {
            let mut schema = merge_schema(&plan.inputs());
            if let LogicalPlan::TableScan(scan) = &plan {
                let columns =
                    DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?;
                schema.merge(&columns);
            }
            let names = NamePreserver::new(&plan);
            let plan = plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let expr = expr.transform_up(|expr| self.rewrite(expr, &schema))?;
                Ok(expr.update_data(|expr| name.restore(expr)))
            })?;
            if plan.transformed { plan.map_data(LogicalPlan::recompute_schema) } else { Ok(plan) }
        })?;
        Ok(rewritten.data)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};

    use super::*;

    #[test]
    fn names_of_chains_are_those_of_nested_functions() {
        let rule = CheckIntegers::default();
        let sum = rule.call(Operation::Add, col("t.a"), lit(1));
        let product =
            rule.call(Operation::Multiply, sum.clone(), rule.call(Operation::Subtract, lit(2), sum));
        assert_eq!(
            product.schema_name().to_string(),
            "checked_multiply(checked_add(t.a,Int32(1)),checked_subtract(Int32(2),checked_add(t.a,Int32(1))))"
        );
    }
}
