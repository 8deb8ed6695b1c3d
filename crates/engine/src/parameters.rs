//! Parameters of statements: `$1`, `$2` and so on, or `?`, each of which is the next one.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::logical_expr::expr::Placeholder;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use futures::StreamExt;
use lightship_wire::control::Reason;

use crate::error::{EngineError, Result};

/// Most parameters of a statement, as in PostgreSQL's protocol.
const PARAMETERS_MAX: usize = u16::MAX as usize;

/// Numbers the parameters that are question marks.
///
/// # Errors
/// If some of the statement's parameters are question marks, and others have numbers or names.
pub(crate) fn number(tokens: &mut [TokenWithSpan]) -> Result<()> {
    let placeholders = tokens.iter_mut().filter_map(|token| match &mut token.token {
        Token::Placeholder(name) => Some((name, token.span.start)),
        _ => None,
    });
    let (mut marks, mut others) = (0, 0);
    for (name, place) in placeholders {
        if name == "?" {
            marks += 1;
            *name = format!("${marks}");
        } else {
            others += 1;
        }
        if marks > 0 && others > 0 {
            return Err(EngineError::Sql {
                message: "a statement can't have both kinds of parameters, ? and $1".into(),
                position: Some((place.line as u32, place.column as u32)),
                hint: None,
                reason: Some(Reason::Syntax),
            });
        }
    }
    Ok(())
}

/// The types of a plan's parameters, in order; `Null` for those whose type the statement does not determine.
///
/// # Errors
/// If a parameter has a name or too large a number, or several types.
fn types(plan: &LogicalPlan) -> Result<Vec<DataType>> {
    let found = plan.get_parameter_types()?;
    let is_open = found.values().any(Option::is_none);
    let casts = if is_open { casts(plan)? } else { HashMap::new() };
    let mut types = Vec::new();
    for (name, data_type) in found {
        let number = name.strip_prefix('$').and_then(|number| number.parse().ok());
        let Some(number) = number.filter(|number| (1..=PARAMETERS_MAX).contains(number)) else {
            return Err(EngineError::Sql {
                message: format!("{name} is not a parameter"),
                position: None,
                hint: Some(format!("parameters are $1 to ${PARAMETERS_MAX}, or ?")),
                reason: Some(Reason::Parameters),
            });
        };
        if types.len() < number {
            types.resize(number, DataType::Null);
        }
        let data_type = data_type.or_else(|| casts.get(&name).cloned());
        types[number - 1] = data_type.unwrap_or(DataType::Null);
    }
    Ok(types)
}

/// The types that parameters are cast to, by the names of those to which DataFusion gives none.
fn casts(plan: &LogicalPlan) -> Result<HashMap<String, DataType>> {
    let mut types = HashMap::new();
    plan.apply_with_subqueries(|plan| {
        plan.apply_expressions(|expression| {
            expression.apply(|expression| {
                let (inner, field) = match expression {
                    Expr::Cast(cast) => (&cast.expr, &cast.field),
                    _ => return Ok(TreeNodeRecursion::Continue),
                };
                if let Expr::Placeholder(Placeholder { id, field: None }) = inner.as_ref() {
                    types.entry(id.clone()).or_insert_with(|| field.data_type().clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(types)
}

/// The parameters of a plan as fields, with types that all clients have. `$1` is the first one's name.
///
/// # Errors
/// As [`types`].
pub(crate) fn fields(plan: &LogicalPlan) -> Result<SchemaRef> {
    let types = types(plan)?.into_iter().enumerate();
    let fields = types.map(|(index, found)| Field::new(format!("${}", index + 1), common(found), true));
    Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

/// The type in which clients send values of a type.
fn common(data_type: DataType) -> DataType {
    match data_type {
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        DataType::BinaryView | DataType::LargeBinary => DataType::Binary,
        DataType::Dictionary(_, values) => common(*values),
        other => other,
    }
}

/// Whether a statement may have parameters.
pub(crate) fn may_be_in(sql: &str) -> bool {
    // Names of parameters that are refused begin with the last two.
    sql.contains(['$', '?', ':', '@'])
}

/// A plan without parameters.
///
/// # Errors
/// If it has some.
pub(crate) fn bind_none(plan: LogicalPlan) -> Result<LogicalPlan> {
    let count = types(&plan)?.len();
    if count > 0 {
        return Err(EngineError::Sql {
            message: format!("no value for parameter $1{}", if count > 1 { " and others" } else { "" }),
            position: None,
            hint: Some(
                "give the values beside the statement: `-p VALUE` of the command, parameters of a driver"
                    .into(),
            ),
            reason: Some(Reason::Parameters),
        });
    }
    Ok(plan)
}

/// A plan with the values of its parameters: the columns of `parameters`, which has one row.
///
/// # Errors
/// If there are fewer or more values than parameters, or one can't be cast to the type that the statement requires.
pub(crate) fn bind(plan: LogicalPlan, parameters: &RecordBatch) -> Result<LogicalPlan> {
    let types = types(&plan)?;
    let given = parameters.num_columns();
    if given != types.len() || (given > 0 && parameters.num_rows() != 1) {
        let of = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        return Err(EngineError::Parameters {
            message: format!(
                "the statement has {}, but {} of {} were given",
                of(types.len(), "parameter"),
                of(parameters.num_rows(), "row"),
                of(given, "value"),
            ),
            hint: "give one value for each ?, or for each number of $1, $2 and so on".into(),
        });
    }
    if types.is_empty() {
        return Ok(plan);
    }
    let values = types.iter().zip(parameters.columns()).enumerate().map(|(index, (wanted, column))| {
        let failed = |why: String| EngineError::Parameters {
            message: format!("parameter ${}: {why}", index + 1),
            hint: if wanted.is_null() {
                "give a value of another type".into()
            } else {
                format!("the statement requires a value of type {wanted}; a cast in it changes that, as in $1::text")
            },
        };
        let value = ScalarValue::try_from_array(column, 0).map_err(|error| failed(error.to_string()))?;
        if *wanted == DataType::Null || wanted == column.data_type() {
            return Ok(value);
        }
        let cast = value.cast_to(wanted).map_err(|error| failed(error.to_string()))?;
        Ok(match loss(&value, &cast, wanted) {
            None => cast,
            // The planner converts both sides of a comparison, as it does with a literal.
            Some(Loss::OfValue) => value,
            Some(Loss::OfText) => return Err(failed(format!("{value} has more digits than {wanted}"))),
        })
    });
    let values = values.collect::<Result<Vec<ScalarValue>>>()?;
    Ok(plan.with_param_values(ParamValues::from(values))?)
}

/// What a cast of a parameter would change.
enum Loss {
    /// A number or time that the type can't hold.
    OfValue,
    /// Digits of a text.
    OfText,
}

/// Decimals with more digits than any that is compared with them.
const EXACT_DIGITS: u8 = 76;
/// Digits after those of the type that are looked at.
const MORE_DIGITS: i8 = 20;

/// What `cast`, of type `wanted`, has lost of a value.
fn loss(value: &ScalarValue, cast: &ScalarValue, wanted: &DataType) -> Option<Loss> {
    let from = value.data_type();
    if from.is_numeric() || from.is_temporal() {
        let back = cast.cast_to(&from).ok();
        return (back.as_ref() != Some(value)).then_some(Loss::OfValue);
    }
    let (DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale)) = wanted else { return None };
    let exact = DataType::Decimal256(EXACT_DIGITS, scale.saturating_add(MORE_DIGITS));
    let (given, kept) = (value.cast_to(&exact).ok()?, cast.cast_to(&exact).ok()?);
    (given != kept).then_some(Loss::OfText)
}

/// Whether each column of a plan may be NULL for some values of its parameters: executions for several rows of values return
/// the same columns.
pub(crate) fn nullable(plan: &LogicalPlan) -> Vec<bool> {
    match bind_null(plan.clone()) {
        Ok(plan) => plan.schema().fields().iter().map(|field| field.is_nullable()).collect(),
        Err(_) => vec![true; plan.schema().fields().len()],
    }
}

/// The rows with columns that may be NULL where `nullable` says so.
pub(crate) fn with_nulls(rows: SendableRecordBatchStream, nullable: &[bool]) -> SendableRecordBatchStream {
    let before = rows.schema();
    let changes = |(field, &nullable): (&FieldRef, &bool)| nullable && !field.is_nullable();
    if before.fields().len() != nullable.len() || !before.fields().iter().zip(nullable).any(changes) {
        return rows;
    }
    let fields = before.fields().iter().zip(nullable);
    let fields: Vec<Field> = fields
        .map(|(field, &nullable)| field.as_ref().clone().with_nullable(nullable || field.is_nullable()))
        .collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, before.metadata().clone()));
    let new = schema.clone();
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(new.clone(), batch.columns().to_vec(), &options)?)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// A plan whose parameters are NULL, for the types of its columns.
///
/// # Errors
/// As [`types`].
pub(crate) fn bind_null(plan: LogicalPlan) -> Result<LogicalPlan> {
    let types = types(&plan)?;
    if types.is_empty() {
        return Ok(plan);
    }
    let nulls = types.iter().map(ScalarValue::try_from).collect::<Result<Vec<_>, _>>()?;
    Ok(plan.with_param_values(ParamValues::from(nulls))?)
}
