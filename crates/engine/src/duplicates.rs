//! Results with several columns of the same name.
//!
//! DataFusion refuses them, although databases return them and [`DuplicateColumns`] says what a
//! destination does with them. So if a query can't be planned, repeated names in its select list get
//! aliases, it is planned again, and the columns of its result get their names back.
//!
//! [`DuplicateColumns`]: lightship_sources::columns::DuplicateColumns

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Field, FieldRef, Schema, SchemaRef};
use datafusion::error::DataFusionError;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, Ident, SelectItem, SetExpr, Statement as SqlStatement};
use futures::StreamExt;

use crate::statement::normalized;

/// Aliases that replace repeated names, and the names that they replace.
#[derive(Debug, Default)]
pub(crate) struct Aliases(HashMap<String, String>);

impl Aliases {
    /// Gives aliases to repeated names in the outermost select lists of a statement, whose text is `sql`.
    ///
    /// Expressions without a name are left as they are. In ORDER BY, a repeated name means the first
    /// column of that name.
    pub(crate) fn add_to(statement: &mut Statement, sql: &str) -> Self {
        // A statement can't refer to an alias if the mark is not in its text.
        let mut mark = "(column".to_owned();
        while sql.contains(&mark) {
            mark.push('_');
        }
        let mut this = Self::default();
        this.add_to_statement(statement, &mark);
        this
    }

    fn add_to_statement(&mut self, statement: &mut Statement, mark: &str) {
        match statement {
            Statement::Statement(inner) => {
                if let SqlStatement::Query(query) = &mut **inner {
                    self.add_to_body(&mut query.body, mark);
                }
            }
            Statement::Explain(explain) => self.add_to_statement(&mut explain.statement, mark),
            // No other statements are run.
            _ => {}
        }
    }

    fn add_to_body(&mut self, body: &mut SetExpr, mark: &str) {
        match body {
            SetExpr::Select(select) => self.add_to_items(&mut select.projection, mark),
            SetExpr::Query(query) => self.add_to_body(&mut query.body, mark),
            SetExpr::SetOperation { left, right, .. } => {
                self.add_to_body(left, mark);
                self.add_to_body(right, mark);
            }
            _ => {}
        }
    }

    fn add_to_items(&mut self, items: &mut [SelectItem], mark: &str) {
        let is_wildcard =
            |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        let has_wildcard = items.iter().any(is_wildcard);
        let mut seen = HashSet::new();
        for (at, item) in items.iter_mut().enumerate() {
            let Some(name) = name_of(item) else { continue };
            // A wildcard may contain any column. Names that were given with AS are kept beside it, because
            // ORDER BY may use them.
            let may_repeat = has_wildcard && matches!(item, SelectItem::UnnamedExpr(_));
            if seen.insert(name.clone()) && !may_repeat {
                continue;
            }
            let alias = format!("{name} {mark} {})", at + 1);
            let quoted = Ident::with_quote('"', alias.clone());
            match item {
                SelectItem::ExprWithAlias { alias, .. } => *alias = quoted,
                SelectItem::UnnamedExpr(expr) => {
                    let expr = expr.clone();
                    *item = SelectItem::ExprWithAlias { expr, alias: quoted };
                }
                _ => continue,
            }
            self.0.insert(alias, name);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The schema of a result with the names that the aliases replaced.
    pub(crate) fn restore(&self, schema: &SchemaRef) -> SchemaRef {
        if self.is_empty() {
            return Arc::clone(schema);
        }
        let restored = |field: &FieldRef| match self.0.get(field.name()) {
            Some(name) => Arc::new(Field::clone(field).with_name(name)),
            None => Arc::clone(field),
        };
        let fields: Vec<FieldRef> = schema.fields().iter().map(restored).collect();
        Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
    }

    /// The rows of a result with the names that the aliases replaced.
    pub(crate) fn restore_rows(self, batches: SendableRecordBatchStream) -> SendableRecordBatchStream {
        if self.is_empty() {
            return batches;
        }
        let schema = self.restore(&batches.schema());
        let batches = batches
            .map(move |batch| batch.and_then(|b| self.restore_batch(&b).map_err(DataFusionError::from)));
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    fn restore_batch(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let schema = self.restore(&batch.schema());
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(schema, batch.columns().to_vec(), &rows)
    }
}

/// The name that an item of a select list has in the result; `None` if the planner makes one up.
fn name_of(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(Expr::Identifier(name)) => Some(normalized(name)),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().map(normalized),
        SelectItem::ExprWithAlias { alias, .. } => Some(normalized(alias)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::config::SqlParserOptions;

    use super::*;
    use crate::statement::parse;

    #[test]
    fn repeated_names_get_aliases() {
        for (sql, expected) in [
            ("select a, b from t", "SELECT a, b FROM t"),
            ("select a, a + 1, a + 1 from t", "SELECT a, a + 1, a + 1 FROM t"),
            (
                "select A, t.a, 1 as a from t",
                r#"SELECT A, t.a AS "a (column 2)", 1 AS "a (column 3)" FROM t"#,
            ),
            (r#"select a, "A" from t"#, r#"SELECT a, "A" FROM t"#),
            ("select *, a, b + 1 as b from t", r#"SELECT *, a AS "a (column 2)", b + 1 AS b FROM t"#),
            (
                "select a, a from t union all (select b, b from t)",
                r#"SELECT a, a AS "a (column 2)" FROM t UNION ALL (SELECT b, b AS "b (column 2)" FROM t)"#,
            ),
            (
                r#"select a, a, b as "a (column 2)" from t"#,
                r#"SELECT a, a AS "a (column_ 2)", b AS "a (column 2)" FROM t"#,
            ),
            ("explain select a, a from t", r#"EXPLAIN SELECT a, a AS "a (column 2)" FROM t"#),
            // Inner queries are left as they are.
            ("select a from (select a, a from t)", "SELECT a FROM (SELECT a, a FROM t)"),
        ] {
            let mut statement = parse(sql, &SqlParserOptions::default()).unwrap();
            let aliases = Aliases::add_to(&mut statement, sql);
            assert_eq!(statement.to_string(), expected);
            assert_eq!(aliases.is_empty(), !expected.contains("AS \"a (column"), "{sql}");
        }
    }
}
