//! Which kind of name a statement has that means nothing here. DataFusion has types of errors for columns only.

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, ObjectName, Visit, Visitor};
use lightship_wire::control::Reason;

use crate::statement::normalized;

/// The reason why a statement can't be planned, if it names a table or a function that does not exist.
pub(crate) fn unknown_name(statement: &Statement, state: &SessionState) -> Option<Reason> {
    let inner = match statement {
        Statement::Statement(inner) => inner,
        Statement::Explain(explain) => return unknown_name(&explain.statement, state),
        // No other statements are run.
        _ => return None,
    };
    // Without the names of WITH clauses.
    let tables = state.resolve_table_references(statement).ok()?;
    let is_unknown = tables.into_iter().any(|table| {
        let name = table.table().to_owned();
        let is_function = state.table_functions().contains_key(&name);
        let exists = || state.schema_for_ref(table).is_ok_and(|schema| schema.table_exist(&name));
        !is_function && !exists()
    });
    if is_unknown {
        return Some(Reason::UndefinedTable);
    }
    let calls_unknown = inner.visit(&mut Calls { state }).is_break();
    calls_unknown.then_some(Reason::UndefinedFunction)
}

/// Most tables that a hint names.
const NAMED_MAX: usize = 20;

/// The tables that there are, as a hint.
pub(crate) fn table_names(state: &SessionState) -> Option<String> {
    let mut names = state.schema_for_ref("any").ok()?.table_names();
    names.sort();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    match (names.as_slice(), more) {
        ([], _) => Some("there are no tables".into()),
        ([one], _) => Some(format!("the table is called {one}")),
        (several, 0) => Some(format!("the tables are {}", several.join(", "))),
        (several, more) => Some(format!("the tables are {} and {more} more", several.join(", "))),
    }
}

/// Looks for calls of functions that do not exist.
struct Calls<'a> {
    state: &'a SessionState,
}

impl Visitor for Calls<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Function(function) if !is_known(&function.name, self.state) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn is_known(name: &ObjectName, state: &SessionState) -> bool {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(normalized).collect();
    let name = parts.join(".");
    state.scalar_functions().contains_key(&name)
        || state.aggregate_functions().contains_key(&name)
        || state.window_functions().contains_key(&name)
        || state.higher_order_functions().contains_key(&name)
        // The planner knows these itself.
        || matches!(name.as_str(), "unnest" | "struct" | "grouping")
}
