//! Columns in their own case.
//!
//! A name without double quotes is read in lower case. If there is no such column, but exactly one whose name differs
//! only in case, that one is meant: files have columns such as `Name`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, Ident, Query, SelectItem, SetExpr, VisitMut, VisitorMut};

/// Most names of a statement that are corrected. Each takes another attempt to plan it.
pub(crate) const CORRECTIONS_MAX: usize = 200;

/// Corrects the name that the error is about, if it can only mean one column. Only this occurrence changes: the same name
/// elsewhere may be that of an alias.
pub(crate) fn correct(error: &DataFusionError, statement: &mut Statement) -> bool {
    let DataFusionError::SchemaError(fault, _) = error.find_root() else { return false };
    let SchemaError::FieldNotFound { field, valid_fields } = &**fault else { return false };
    let span = error.diagnostic().and_then(|diagnostic| diagnostic.span);
    let wanted = field.name.to_lowercase();
    let alike: BTreeSet<&str> = valid_fields
        .iter()
        .filter(|column| field.relation.is_none() || column.relation == field.relation)
        .map(|column| column.name.as_str())
        .filter(|name| name.to_lowercase() == wanted)
        .collect();
    let (Some(name), 1) = (alike.first(), alike.len()) else { return false };
    let inner = match statement {
        Statement::Statement(inner) => inner.as_mut(),
        Statement::Explain(explain) => match explain.statement.as_mut() {
            Statement::Statement(inner) => inner.as_mut(),
            _ => return false,
        },
        _ => return false,
    };
    let place = match span {
        Some(span) => (span.start.line, span.start.column),
        // Errors about GROUP BY, HAVING and ORDER BY have no position. Where the name may be that of an alias, it must be the only one.
        None => {
            let mut clauses = Clauses { wanted: &wanted, is_alias: false, places: Vec::new() };
            let _ = inner.visit(&mut clauses);
            match clauses.places[..] {
                [first, ..] if !clauses.is_alias => first,
                [only] => only,
                _ => return false,
            }
        }
    };
    inner.visit(&mut Correction { place, wanted: &wanted, name }).is_break()
}

/// The parts of a name, if the expression is one.
fn parts(expr: &mut Expr) -> &mut [Ident] {
    match expr {
        Expr::Identifier(name) => std::slice::from_mut(name),
        Expr::CompoundIdentifier(parts) => parts,
        _ => &mut [],
    }
}

fn place(name: &Ident) -> (u64, u64) {
    (name.span.start.line, name.span.start.column)
}

/// Whether a name without double quotes is this one.
fn is_named(name: &Ident, wanted: &str) -> bool {
    name.quote_style.is_none() && name.value.to_lowercase() == wanted
}

/// Finds where a name without double quotes occurs in GROUP BY, HAVING and ORDER BY.
struct Clauses<'a> {
    wanted: &'a str,
    /// Whether it is also the name of an alias.
    is_alias: bool,
    places: Vec<(u64, u64)>,
}

impl VisitorMut for Clauses<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let mut places = Places { wanted: self.wanted, found: Vec::new() };
        if let SetExpr::Select(select) = &mut *query.body {
            self.is_alias |= select.projection.iter().any(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => alias.value.to_lowercase() == self.wanted,
                _ => false,
            });
            let _ = select.group_by.visit(&mut places);
            let _ = select.having.visit(&mut places);
        }
        let _ = query.order_by.visit(&mut places);
        self.places.append(&mut places.found);
        ControlFlow::Continue(())
    }
}

/// Finds where a name without double quotes occurs.
struct Places<'a> {
    wanted: &'a str,
    found: Vec<(u64, u64)>,
}

impl VisitorMut for Places<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let named = parts(expr).iter().filter(|part| is_named(part, self.wanted)).map(place);
        self.found.extend(named);
        ControlFlow::Continue(())
    }
}

/// Changes the name at a position.
struct Correction<'a> {
    /// Line and column.
    place: (u64, u64),
    /// The name there, in lower case.
    wanted: &'a str,
    /// The column that is meant.
    name: &'a str,
}

impl VisitorMut for Correction<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let parts = parts(expr);
        let is_here = parts.iter().any(|part| place(part) == self.place);
        // The name of the column, which fields of a struct may follow.
        match parts.iter_mut().find(|part| is_named(part, self.wanted)).filter(|_| is_here) {
            Some(part) => {
                part.value = self.name.to_owned();
                part.quote_style = Some('"');
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    }
}
