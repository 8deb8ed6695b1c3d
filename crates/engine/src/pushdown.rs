//! Conditions that a database can check as well as we can.
//!
//! What is given away must let through at least the rows that meet the
//! condition here, so only comparisons whose meaning is the same in all
//! databases are: of numbers, dates and booleans in any order, of text for
//! equality only (collations order it, and may take more texts for equal).

use arrow_schema::{DataType, Schema};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Expr, Operator};
use datafusion::sql::unparser::Unparser;
use datafusion::sql::unparser::dialect::{MySqlDialect, PostgreSqlDialect, SqliteDialect};
use lightship_sources::Dialect;

/// The condition in the database's SQL, if it can be given away.
pub(crate) fn condition(filter: &Expr, schema: &Schema, dialect: Dialect) -> Option<String> {
    let plain = portable(filter, schema)?;
    let sql = match dialect {
        Dialect::Postgres => Unparser::new(&PostgreSqlDialect {}).expr_to_sql(&plain),
        Dialect::MySql => Unparser::new(&MySqlDialect {}).expr_to_sql(&plain),
        Dialect::Sqlite => Unparser::new(&SqliteDialect {}).expr_to_sql(&plain),
    };
    // MySQL reads a backslash in a text as the beginning of an escape.
    let escapes = |sql: &String| dialect == Dialect::MySql && sql.contains('\\');
    sql.ok().map(|sql| sql.to_string()).filter(|sql| !escapes(sql))
}

/// The expression with bare column names, if all of it means the same everywhere.
fn portable(expr: &Expr, schema: &Schema) -> Option<Expr> {
    match expr {
        Expr::BinaryExpr(binary) => {
            let mut plain = binary.clone();
            if matches!(binary.op, Operator::And | Operator::Or) {
                plain.left = Box::new(portable(&binary.left, schema)?);
                plain.right = Box::new(portable(&binary.right, schema)?);
                return Some(Expr::BinaryExpr(plain));
            }
            let (column, literal) = match (&*binary.left, &*binary.right) {
                (Expr::Column(column), Expr::Literal(value, _))
                | (Expr::Literal(value, _), Expr::Column(column)) => (column, value),
                _ => return None,
            };
            let comparable = match binary.op {
                Operator::Eq => is_equatable(column, literal, schema),
                Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => {
                    is_ordered(column, literal, schema)
                }
                _ => false,
            };
            comparable.then(|| {
                plain.left = Box::new(bare(&binary.left));
                plain.right = Box::new(bare(&binary.right));
                Expr::BinaryExpr(plain)
            })
        }
        Expr::Between(between) if !between.negated => {
            let mut plain = between.clone();
            let Expr::Column(column) = &*between.expr else { return None };
            for bound in [&between.low, &between.high] {
                let Expr::Literal(value, _) = &**bound else { return None };
                is_ordered(column, value, schema).then_some(())?;
            }
            plain.expr = Box::new(bare(&between.expr));
            Some(Expr::Between(plain))
        }
        Expr::InList(list) if !list.negated => {
            let Expr::Column(column) = &*list.expr else { return None };
            let mut plain = list.clone();
            for item in &list.list {
                let Expr::Literal(value, _) = item else { return None };
                is_equatable(column, value, schema).then_some(())?;
            }
            plain.expr = Box::new(bare(&list.expr));
            Some(Expr::InList(plain))
        }
        Expr::IsNull(inner) if matches!(&**inner, Expr::Column(_)) => {
            Some(Expr::IsNull(Box::new(bare(inner))))
        }
        Expr::IsNotNull(inner) if matches!(&**inner, Expr::Column(_)) => {
            Some(Expr::IsNotNull(Box::new(bare(inner))))
        }
        _ => None,
    }
}

fn bare(expr: &Expr) -> Expr {
    match expr {
        Expr::Column(column) => Expr::Column(Column::from_name(column.name.clone())),
        other => other.clone(),
    }
}

fn type_of<'a>(column: &Column, schema: &'a Schema) -> Option<&'a DataType> {
    schema.field_with_name(&column.name).ok().map(|field| field.data_type())
}

/// Single floats are left out: databases compare them as doubles.
fn is_ordered(column: &Column, literal: &ScalarValue, schema: &Schema) -> bool {
    use DataType::*;
    !literal.is_null()
        && type_of(column, schema).is_some_and(|data_type| {
            *data_type == literal.data_type()
                && match data_type {
                    Date32 => true,
                    Float64 => matches!(literal, ScalarValue::Float64(Some(value)) if value.is_finite()),
                    other => other.is_integer() || matches!(other, Decimal128(_, _)),
                }
        })
}

fn is_equatable(column: &Column, literal: &ScalarValue, schema: &Schema) -> bool {
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::Boolean);
    is_ordered(column, literal, schema)
        || (!literal.is_null()
            && type_of(column, schema).is_some_and(is_text)
            && is_text(&literal.data_type()))
}

#[cfg(test)]
mod tests {
    use arrow_schema::Field;
    use datafusion::prelude::{col, lit};

    use super::*;

    fn check(filter: Expr, expected: Option<&str>) {
        let schema = Schema::new(vec![
            Field::new("n", DataType::Int64, true),
            Field::new("f", DataType::Float32, true),
            Field::new("s", DataType::Utf8, true),
            Field::new("d", DataType::Date32, true),
        ]);
        let found = condition(&filter, &schema, Dialect::Postgres);
        assert_eq!(found.as_deref(), expected, "{filter}");
    }

    #[test]
    fn only_what_means_the_same_everywhere_is_given_away() {
        check(col("n").gt(lit(5_i64)), Some(r#"("n" > 5)"#));
        check(col("t.n").eq(lit(5_i64)), Some(r#"("n" = 5)"#));
        check(col("n").eq(lit(5_i64)).or(col("s").eq(lit("x"))), Some(r#"(("n" = 5) OR ("s" = 'x'))"#));
        check(col("s").eq(lit("it's")), Some(r#"("s" = 'it''s')"#));
        check(col("s").is_null(), Some(r#""s" IS NULL"#));
        check(col("n").in_list(vec![lit(1_i64), lit(2_i64)], false), Some(r#""n" IN (1, 2)"#));

        check(col("s").lt(lit("x")), None);
        check(col("s").not_eq(lit("x")), None);
        check(col("f").eq(lit(0.1_f32)), None);
        check(col("n").not_eq(lit(5_i64)), None);
        check(col("n").gt(lit(5_i64)).and(col("s").gt(lit("x"))), None);
        check(col("n").eq(lit(ScalarValue::Int64(None))), None);
        check(col("n").eq(lit(5_i64)).is_not_true(), None);
        check(col("n").in_list(vec![lit(1_i64)], true), None);
    }
}
