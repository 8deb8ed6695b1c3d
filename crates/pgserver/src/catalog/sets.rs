//! Functions that return sets of rows: `unnest`, `generate_series`, `generate_subscripts` and `_pg_expandarray`.
//!
//! SQLite has none of them, and its subqueries in FROM can't refer to the tables beside them. So a use of these functions becomes
//! the table `pg_numbers` with the condition `pg_number <= pg_rows(a, b)`, the length of the longest array, and what refers to
//! a column of theirs becomes `pg_nth(a, pg_number)`.

use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, Ident, JoinConstraint, JoinOperator,
    ObjectName, Query, Select, SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins, VisitMut as _,
    VisitorMut,
};

use super::expr::{arguments, call, column_name, folded, function_name, parts, table_alias, take};
use crate::error::{PgError, code};

/// The table of numbers from 1 to [`NUMBERS_MAX`].
pub(super) const NUMBERS: &str = "pg_numbers";
/// Its column.
pub(super) const NUMBER: &str = "pg_number";
/// The most rows of a set.
pub(super) const NUMBERS_MAX: usize = 1 << 16;
/// The alias of rows for the functions in a list of columns.
const ALIAS: &str = "pg_set";

/// How much longer a query may become: arrays stand in each place that refers to their elements.
pub(super) struct Growth {
    bytes_left: usize,
}

impl Growth {
    pub(super) fn new() -> Self {
        Self { bytes_left: 256 << 10 }
    }

    /// Breaks off when the query would become too long.
    fn by(&mut self, bytes: usize) -> ControlFlow<PgError> {
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => {
                self.bytes_left = left;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(PgError::new(
                code::PROGRAM_LIMIT,
                "the query of the catalog has too many sets of rows",
            )),
        }
    }
}

/// The arrays whose elements a function returns. `None` if it returns no set.
pub(super) fn arrays(name: &str, args: Vec<Expr>) -> Option<Vec<Expr>> {
    match name {
        "unnest" | "_pg_expandarray" if !args.is_empty() => Some(args),
        "generate_series" => Some(vec![call("pg_series", args)]),
        "generate_subscripts" => Some(vec![call("pg_subscripts", args)]),
        _ => None,
    }
}

/// The columns that a function has in FROM: their names, if they are always the same, and values. `number` is that of the row.
pub(super) fn columns(name: &str, arrays: &[Expr], number: &Expr) -> Vec<(Option<&'static str>, Expr)> {
    let nth = |array: &Expr| call("pg_nth", vec![array.clone(), number.clone()]);
    match (name, arrays) {
        ("_pg_expandarray", [array, ..]) => {
            vec![(Some("x"), nth(array)), (Some("n"), number.clone())]
        }
        (_, arrays) => arrays.iter().map(|array| (None, nth(array))).collect(),
    }
}

/// The names of a function's columns in FROM: those of the alias, or else their own.
pub(super) fn column_names(
    names: impl IntoIterator<Item = Option<&'static str>>,
    function: &str,
    alias: Option<&TableAlias>,
) -> Vec<String> {
    let given = alias.map(|alias| alias.columns.as_slice()).unwrap_or_default();
    let table = alias.map_or_else(|| function.to_owned(), |alias| folded(&alias.name));
    let name = |(at, own): (usize, Option<&'static str>)| match given.get(at) {
        Some(column) => folded(&column.name),
        None => own.map_or_else(|| table.clone(), str::to_owned),
    };
    names.into_iter().enumerate().map(name).collect()
}

/// A column of a function in FROM.
struct SetColumn {
    table: String,
    name: String,
    value: Expr,
    /// The length of the value's text.
    bytes: usize,
}

/// A function in FROM.
struct SetCall {
    name: String,
    args: Vec<Expr>,
    has_ordinality: bool,
    alias: Option<TableAlias>,
}

fn plain(args: &[FunctionArg]) -> Vec<Expr> {
    let plain = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    args.iter().filter_map(plain).collect()
}

fn call_of(factor: &TableFactor) -> Option<SetCall> {
    let (name, args, has_ordinality, alias) = match factor {
        TableFactor::Table { name, args: Some(args), with_ordinality, alias, .. } => {
            (parts(name).1, plain(&args.args), *with_ordinality, alias)
        }
        TableFactor::Function { name, args, with_ordinality, alias, .. } => {
            (parts(name).1, plain(args), *with_ordinality, alias)
        }
        TableFactor::UNNEST { array_exprs, with_ordinality, alias, .. } => {
            ("unnest".to_owned(), array_exprs.clone(), *with_ordinality, alias)
        }
        _ => return None,
    };
    Some(SetCall { name, args, has_ordinality, alias: alias.clone() })
}

/// The table of numbers in FROM.
fn numbers(alias: &str) -> TableFactor {
    TableFactor::Table {
        name: ObjectName::from(Ident::new(NUMBERS)),
        alias: Some(table_alias(alias)),
        args: None,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}

fn number_of(table: &str) -> Expr {
    Expr::CompoundIdentifier(vec![Ident::with_quote('"', table), Ident::new(NUMBER)])
}

/// The condition of the numbers for the elements of arrays.
pub(super) fn is_element(number: Expr, arrays: Vec<Expr>) -> Expr {
    Expr::BinaryOp {
        left: Box::new(number),
        op: BinaryOperator::LtEq,
        right: Box::new(call("pg_rows", arrays)),
    }
}

/// Adds a condition, which is no larger than an operand of `AND`.
fn and(condition: Expr, other: Option<Expr>) -> Expr {
    match other {
        None => condition,
        Some(other) => Expr::BinaryOp {
            left: Box::new(Expr::Nested(Box::new(other))),
            op: BinaryOperator::And,
            right: Box::new(condition),
        },
    }
}

/// Rewrites the uses in a query that refer to the tables beside them, and those in lists of columns. What is left of FROM's is
/// [`table_function`](super::expr::table_function)'s.
///
/// # Errors
/// If the query would become too long, or asks for all columns of such a function.
pub(super) fn expand(query: &mut Query, growth: &mut Growth) -> ControlFlow<PgError> {
    match query.body.as_mut() {
        SetExpr::Select(select) => {
            let columns = expand_select(select, growth)?;
            // An order refers to the columns, too.
            match &mut query.order_by {
                Some(order) if !columns.is_empty() => {
                    order.visit(&mut References { columns: &columns, growth })
                }
                _ => ControlFlow::Continue(()),
            }
        }
        branches => expand_branches(branches, growth),
    }
}

fn expand_branches(branches: &mut SetExpr, growth: &mut Growth) -> ControlFlow<PgError> {
    match branches {
        SetExpr::Select(select) => expand_select(select, growth).map_continue(drop),
        SetExpr::SetOperation { left, right, .. } => {
            expand_branches(left, growth)?;
            expand_branches(right, growth)
        }
        _ => ControlFlow::Continue(()),
    }
}

/// Names columns without a name: they must not be named after what their expressions are rewritten to.
pub(super) fn name_columns(select: &mut Select) {
    for item in &mut select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) => {
                let alias = Ident::with_quote('"', column_name(expr));
                let expr = take(expr);
                *item = SelectItem::ExprWithAlias { expr, alias };
            }
            SelectItem::ExprWithAlias { alias, .. } if alias.quote_style.is_none() => {
                *alias = Ident::with_quote('"', alias.value.to_lowercase());
            }
            _ => {}
        }
    }
}

fn expand_select(select: &mut Select, growth: &mut Growth) -> ControlFlow<PgError, Vec<SetColumn>> {
    name_columns(select);
    let (mut columns, mut arrays_of_sets) = (Vec::new(), Vec::new());
    for (factor, _) in factors(&mut select.from) {
        let Some(SetCall { name, args, has_ordinality, alias }) = call_of(factor) else { continue };
        if !args.iter().any(mentions_columns) {
            continue;
        }
        let Some(arrays) = arrays(&name, args) else { continue };
        let table = alias.as_ref().map_or_else(|| name.clone(), |alias| folded(&alias.name));
        let number = number_of(&table);
        let mut found = self::columns(&name, &arrays, &number);
        if has_ordinality {
            found.push((Some("ordinality"), number));
        }
        let names = column_names(found.iter().map(|(own, _)| *own), &name, alias.as_ref());
        for (name, (_, value)) in names.into_iter().zip(found) {
            let bytes = value.to_string().len();
            growth.by(bytes)?;
            columns.push(SetColumn { table: table.clone(), name, value, bytes });
        }
        *factor = numbers(&table);
        arrays_of_sets.push(arrays);
    }
    if !columns.is_empty() {
        let is_all =
            |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        if select.projection.iter().any(is_all) {
            let message = "* is not supported in queries of the catalog that unnest columns";
            return ControlFlow::Break(PgError::unsupported(message).hint("name the columns"));
        }
        select.visit(&mut References { columns: &columns, growth })?;
    }
    // Only now: arrays may be columns of the same names.
    let mut left = arrays_of_sets.into_iter();
    let mut conditions = Vec::new();
    for (factor, join) in factors(&mut select.from) {
        if let TableFactor::Table { name, alias: Some(alias), .. } = factor
            && parts(name) == (None, NUMBERS.to_owned())
            && let Some(arrays) = left.next()
        {
            let condition = is_element(number_of(&folded(&alias.name)), arrays);
            match join {
                Some(JoinOperator::Left(on) | JoinOperator::LeftOuter(on)) => {
                    let other = match std::mem::replace(on, JoinConstraint::None) {
                        JoinConstraint::On(other) => Some(other),
                        _ => None,
                    };
                    *on = JoinConstraint::On(and(condition, other));
                }
                _ => conditions.push(condition),
            }
        }
    }
    let mut calls = Calls { depth: 0, arrays: Vec::new(), number: number_of(ALIAS), growth };
    for item in &mut select.projection {
        if let SelectItem::ExprWithAlias { expr, .. } = item {
            expr.visit(&mut calls)?;
        }
    }
    if !calls.arrays.is_empty() {
        select.from.push(TableWithJoins { relation: numbers(ALIAS), joins: Vec::new() });
        conditions.push(is_element(number_of(ALIAS), calls.arrays));
    }
    for condition in conditions {
        select.selection = Some(and(condition, select.selection.take()));
    }
    ControlFlow::Continue(columns)
}

/// The tables and functions in FROM, with how each is joined to those before it.
fn factors(
    from: &mut [TableWithJoins],
) -> impl Iterator<Item = (&mut TableFactor, Option<&mut JoinOperator>)> {
    from.iter_mut().flat_map(|table| {
        let joined = table.joins.iter_mut().map(|join| (&mut join.relation, Some(&mut join.join_operator)));
        std::iter::once((&mut table.relation, None)).chain(joined)
    })
}

/// Whether an expression may refer to columns.
fn mentions_columns(expr: &Expr) -> bool {
    struct Columns;
    impl sqlparser::ast::Visitor for Columns {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Identifier(_) | Expr::CompoundIdentifier(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    sqlparser::ast::Visit::visit(expr, &mut Columns).is_break()
}

/// Puts the values of columns in the place of references to them.
struct References<'a> {
    columns: &'a [SetColumn],
    growth: &'a mut Growth,
}

impl VisitorMut for References<'_> {
    type Break = PgError;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<PgError> {
        let (table, name) = match expr {
            Expr::Identifier(name) => (None, folded(name)),
            Expr::CompoundIdentifier(path) => match path.as_slice() {
                [table, name] => (Some(folded(table)), folded(name)),
                _ => return ControlFlow::Continue(()),
            },
            _ => return ControlFlow::Continue(()),
        };
        let is_it = |column: &&SetColumn| {
            column.name == name && table.as_ref().is_none_or(|table| *table == column.table)
        };
        if let Some(column) = self.columns.iter().find(is_it) {
            self.growth.by(column.bytes)?;
            *expr = column.value.clone();
        }
        ControlFlow::Continue(())
    }
}

/// Rewrites the functions in a list of columns, which return their rows side by side.
struct Calls<'a> {
    /// In how many subqueries it is.
    depth: usize,
    arrays: Vec<Expr>,
    number: Expr,
    growth: &'a mut Growth,
}

impl VisitorMut for Calls<'_> {
    type Break = PgError;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<PgError> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<PgError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<PgError> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        if let Expr::Function(function @ Function { over: None, .. }) = expr {
            let name = function_name(function);
            if let Some(mut found) = arrays(&name, arguments(&mut function.clone()))
                && let Some(array) = found.pop()
            {
                // With more arguments it is for FROM only.
                self.growth.by(array.to_string().len())?;
                let value = if name == "_pg_expandarray" { "pg_expanded" } else { "pg_nth" };
                *expr = call(value, vec![array.clone(), self.number.clone()]);
                self.arrays.push(array);
            }
        }
        ControlFlow::Continue(())
    }
}
