//! Turns a query of PostgreSQL's catalog into one of SQLite, on its syntax tree.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, Expr, Function, Ident, ObjectName, OrderBy, OrderByExpr, OrderByKind, Query, Select,
    TableFactor, Value, ValueWithSpan, VisitMut as _, VisitorMut, WindowType,
};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, Tokenizer};

use super::expr::{
    access, argument, arguments, call, cast, doubled, enclose, folded, function_name, in_array, like,
    literal, not, number, operator, parts, plain_operator, string, table_alias, table_function, take,
};
use super::functions::{ALWAYS_NULL, ALWAYS_TRUE, ALWAYS_ZERO};
use super::recognise::type_of;
use super::sets::{self, Growth};
use super::{Caller, tables};
use crate::encode::datetime::DAY_US;
use crate::error::{PgError, PgResult, code};
use crate::types::oid;

/// Functions of SQLite, and those that are added to it, by their names in PostgreSQL.
const FUNCTIONS: &[(&str, &str)] = &[
    ("abs", "abs"),
    ("array_agg", "array_agg"),
    ("array_cat", "pg_array_cat"),
    ("array_length", "array_length"),
    ("array_lower", "array_lower"),
    ("array_position", "array_position"),
    ("array_to_string", "array_to_string"),
    ("array_upper", "array_upper"),
    ("avg", "avg"),
    ("bool_and", "min"),
    ("bool_or", "max"),
    ("cardinality", "cardinality"),
    ("char_length", "length"),
    ("coalesce", "coalesce"),
    ("concat", "concat"),
    ("concat_ws", "concat_ws"),
    ("count", "count"),
    ("current_setting", "current_setting"),
    ("dense_rank", "dense_rank"),
    ("every", "min"),
    ("format", "pg_format"),
    ("format_type", "format_type"),
    ("greatest", "max"),
    ("json_agg", "json_group_array"),
    ("json_build_object", "json_object"),
    ("least", "min"),
    ("left", "left"),
    ("length", "length"),
    ("lower", "lower"),
    ("btrim", "pg_btrim"),
    ("ltrim", "pg_ltrim"),
    ("max", "max"),
    ("min", "min"),
    ("nullif", "nullif"),
    ("octet_length", "octet_length"),
    ("parse_ident", "parse_ident"),
    ("pg_encoding_to_char", "pg_encoding_to_char"),
    ("pg_get_constraintdef", "pg_get_constraintdef"),
    ("pg_get_indexdef", "pg_get_indexdef"),
    ("pg_get_userbyid", "pg_get_userbyid"),
    ("pg_size_pretty", "pg_size_pretty"),
    ("pg_table_is_visible", "pg_table_is_visible"),
    ("quote_ident", "quote_ident"),
    ("quote_literal", "quote_literal"),
    ("rank", "rank"),
    ("regexp_replace", "regexp_replace"),
    ("replace", "pg_replace"),
    ("round", "round"),
    ("row_number", "row_number"),
    ("rtrim", "pg_rtrim"),
    ("set_config", "set_config"),
    ("split_part", "split_part"),
    ("string_agg", "group_concat"),
    ("string_to_array", "string_to_array"),
    ("strpos", "pg_strpos"),
    ("substr", "substr"),
    ("substring", "substr"),
    ("sum", "sum"),
    ("upper", "upper"),
];

/// Functions that the rewriter itself puts into queries.
const INTERNAL: &[&str] = &[
    "pg_array",
    "pg_bool",
    "pg_bool_text",
    "pg_btrim",
    "pg_expanded",
    "pg_ilike",
    "pg_in_array",
    "pg_iregex",
    "pg_like",
    "pg_ltrim",
    "pg_nth",
    "pg_regclass",
    "pg_regclass_name",
    "pg_regex",
    "pg_regnamespace",
    "pg_regnamespace_name",
    "pg_regtype",
    "pg_replace",
    "pg_rows",
    "pg_rtrim",
    "pg_series",
    "pg_strpos",
    "pg_subscript",
    "pg_subscripts",
];

/// Operators of JSON, which SQLite has as functions.
const OPERATORS: &[&str] = &["->", "->>"];

fn is_constant(name: &str) -> bool {
    [ALWAYS_NULL, ALWAYS_TRUE, ALWAYS_ZERO].iter().any(|names| names.contains(&name))
}

/// Whether a function of SQLite is one that queries are rewritten to.
pub(super) fn is_target(name: &str) -> bool {
    FUNCTIONS.iter().any(|(_, target)| *target == name)
        || is_constant(name)
        || INTERNAL.contains(&name)
        || OPERATORS.contains(&name)
}

/// A parsed query of one statement, with a limit of its depth.
pub(super) fn parse(sql: &str) -> Option<Query> {
    let dialect = PostgreSqlDialect {};
    let mut tokens = Tokenizer::new(&dialect, sql).tokenize().ok()?;
    tokens.iter_mut().try_for_each(prepare_token)?;
    let mut parser = Parser::new(&dialect).with_recursion_limit(64).with_tokens(tokens);
    let query = parser.parse_query().ok()?;
    matches!(parser.peek_token().token, Token::EOF).then_some(*query)
}

/// Changes a token so that the syntax tree prints what SQLite reads as the same. `None` for tokens for which there is no such
/// thing.
fn prepare_token(token: &mut Token) -> Option<()> {
    let text = match token {
        Token::Word(word) => {
            match word.quote_style {
                Some('"') => word.value = doubled(&word.value, '"'),
                Some(_) => return None,
                None => {}
            }
            return Some(());
        }
        Token::SingleQuotedString(text)
        | Token::EscapedStringLiteral(text)
        | Token::NationalStringLiteral(text)
        | Token::UnicodeStringLiteral(text) => std::mem::take(text),
        Token::DollarQuotedString(quoted) => std::mem::take(&mut quoted.value),
        Token::Placeholder(name) => {
            let number = name.strip_prefix('$')?;
            return number.bytes().all(|b| b.is_ascii_digit()).then_some(());
        }
        Token::Char(_)
        | Token::DoubleQuotedString(_)
        | Token::TripleSingleQuotedString(_)
        | Token::TripleDoubleQuotedString(_)
        | Token::SingleQuotedByteStringLiteral(_)
        | Token::DoubleQuotedByteStringLiteral(_)
        | Token::TripleSingleQuotedByteStringLiteral(_)
        | Token::TripleDoubleQuotedByteStringLiteral(_)
        | Token::SingleQuotedRawStringLiteral(_)
        | Token::DoubleQuotedRawStringLiteral(_)
        | Token::TripleSingleQuotedRawStringLiteral(_)
        | Token::TripleDoubleQuotedRawStringLiteral(_)
        | Token::QuoteDelimitedStringLiteral(_)
        | Token::NationalQuoteDelimitedStringLiteral(_)
        | Token::HexStringLiteral(_) => return None,
        _ => return Some(()),
    };
    *token = Token::SingleQuotedString(doubled(&text, '\''));
    (!text.contains('\0')).then_some(())
}

/// Rewrites a query.
pub(super) struct Rewriter<'a> {
    caller: &'a Caller,
    /// Names of common table expressions, which are no relations of the catalog.
    ctes: BTreeSet<String>,
    growth: Growth,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(caller: &'a Caller) -> Self {
        Self { caller, ctes: BTreeSet::new(), growth: Growth::new() }
    }

    /// The query as SQLite understands it.
    ///
    /// # Errors
    /// For syntax and functions that are not supported.
    pub(super) fn rewrite(mut self, mut query: Query) -> PgResult<String> {
        match query.visit(&mut self) {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(query.to_string()),
        }
    }

    fn function(&mut self, mut function: Function) -> PgResult<Expr> {
        let name = function_name(&function);
        let fixed = match name.as_str() {
            // There are none to unlock; pools of connections do it whenever one is returned.
            "pg_advisory_unlock_all" => Some(string("")),
            "getdatabaseencoding" | "pg_client_encoding" => Some(string("UTF8")),
            "version" => Some(string(self.caller.version())),
            "current_schema" => Some(string("public")),
            "current_database" | "current_catalog" => Some(string(&*self.caller.database)),
            "current_user" | "session_user" | "user" | "current_role" => Some(string(&*self.caller.user)),
            "pg_backend_pid" => Some(number(self.caller.process)),
            "pg_export_snapshot" => Some(string("00000003-00000001-1")),
            "pg_current_xact_id" | "txid_current_if_assigned" => Some(number(1)),
            "now"
            | "current_timestamp"
            | "transaction_timestamp"
            | "statement_timestamp"
            | "clock_timestamp"
            | "pg_postmaster_start_time"
            | "pg_conf_load_time" => Some(number(self.caller.now_us)),
            "current_date" => Some(number(self.caller.now_us.div_euclid(DAY_US))),
            // Of a transaction before all others.
            "age" => Some(number(i32::MAX)),
            _ => None,
        };
        if let Some(fixed) = fixed {
            return Ok(fixed);
        }
        if name == "current_schemas" {
            // Whether those that are searched without being named are included.
            return Ok(string(match arguments(&mut function).first() {
                Some(Expr::Value(ValueWithSpan { value: Value::Boolean(false), .. })) => "{public}",
                _ => "{pg_catalog,public}",
            }));
        }
        if name == "array" {
            // ARRAY(SELECT ...) of tables that are empty here: roles of roles, options.
            return Ok(string("{}"));
        }
        for (regtype, wanted) in [
            ("to_regclass", "pg_regclass"),
            ("to_regtype", "pg_regtype"),
            ("to_regnamespace", "pg_regnamespace"),
        ] {
            if name == regtype {
                let mut args = arguments(&mut function);
                // A second argument asks for NULL rather than an error.
                args.push(literal(Value::Null));
                return Ok(call(wanted, args));
            }
        }
        let known = FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, sqlite)| *sqlite);
        let target = match known {
            Some(target) => target.to_owned(),
            None if is_constant(&name) => name,
            // What this rewriter has put there.
            None if INTERNAL.contains(&name.as_str()) => name,
            // Nothing has a definition or statistics, and everything is visible, of whatever kind it is.
            None if name.starts_with("pg_get_") => "pg_get_expr".into(),
            None if name.starts_with("pg_stat_get_") || name.ends_with("_size") => "pg_table_size".into(),
            None if name.starts_with("pg_") && name.ends_with("_is_visible") => "pg_type_is_visible".into(),
            None => {
                let message = format!("function {name}() does not exist in the catalog");
                return Err(PgError::new(code::UNDEFINED_FUNCTION, message));
            }
        };
        function.name = ObjectName::from(Ident::new(target));
        Ok(Expr::Function(function))
    }

    fn expr(&mut self, expr: &mut Expr) -> PgResult<()> {
        let rewritten = match expr {
            Expr::Function(function) => {
                let function = function.clone();
                self.function(function)?
            }
            Expr::Value(value) => match &value.value {
                Value::Placeholder(name) if name.starts_with('$') => {
                    literal(Value::Placeholder(format!("?{}", &name[1..])))
                }
                _ => return Ok(()),
            },
            Expr::CompoundIdentifier(idents) if let Some(value) = idents.last().and_then(system_column) => {
                value
            }
            Expr::CompoundIdentifier(idents) => {
                // pg_catalog.pg_class.relname
                let schema = idents[0].value.to_lowercase();
                if idents.len() > 2 && matches!(schema.as_str(), "pg_catalog" | "information_schema") {
                    idents.remove(0);
                }
                return Ok(());
            }
            Expr::Identifier(ident) if ident.quote_style.is_none() => {
                match ident.value.to_lowercase().as_str() {
                    "current_user" | "session_user" | "user" | "current_role" => string(&*self.caller.user),
                    "current_catalog" => string(&*self.caller.database),
                    "current_schema" => string("public"),
                    _ => match system_column(ident) {
                        Some(value) => value,
                        None => return Ok(()),
                    },
                }
            }
            Expr::Cast { expr, data_type, array, .. } => cast(take(expr), data_type, *array),
            Expr::TypedString(typed) => {
                let value = typed.value.value.clone();
                cast(literal(value), &typed.data_type, false)
            }
            Expr::Collate { expr, .. } => take(expr),
            Expr::BinaryOp { left, op, right } => {
                let Some((function, negated)) = operator(op) else {
                    return match op {
                        BinaryOperator::PGCustomBinaryOperator(name) => {
                            // OPERATOR(pg_catalog.=)
                            *op = plain_operator(name.last().map_or("", String::as_str))?;
                            enclose(left);
                            enclose(right);
                            Ok(())
                        }
                        BinaryOperator::And | BinaryOperator::Or => Ok(()),
                        _ => {
                            compare_as_boolean(left, right);
                            compare_as_boolean(right, left);
                            enclose(left);
                            enclose(right);
                            Ok(())
                        }
                    };
                };
                not(negated, call(function, vec![take(left), take(right)]))
            }
            Expr::Like { negated, expr, pattern, escape_char, .. } => {
                like("pg_like", *negated, take(expr), take(pattern), escape_char.take())
            }
            Expr::ILike { negated, expr, pattern, escape_char, .. } => {
                like("pg_ilike", *negated, take(expr), take(pattern), escape_char.take())
            }
            Expr::AnyOp { left, compare_op: BinaryOperator::Eq, right, .. } => {
                in_array(false, take(left), take(right))
            }
            Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => {
                in_array(true, take(left), take(right))
            }
            Expr::AnyOp { .. } | Expr::AllOp { .. } => {
                return Err(PgError::unsupported(
                    "this use of ANY or ALL is not supported in queries of the catalog",
                ));
            }
            Expr::Array(array) => call("pg_array", std::mem::take(&mut array.elem)),
            Expr::CompoundFieldAccess { root, access_chain } => {
                access(take(root), std::mem::take(access_chain))?
            }
            Expr::Substring { expr, substring_from, substring_for, .. } => {
                let mut args = vec![take(expr)];
                args.push(substring_from.take().map_or_else(|| number(1), |from| *from));
                args.extend(substring_for.take().map(|count| *count));
                call("substr", args)
            }
            Expr::Trim { expr, trim_what, trim_where, .. } => {
                use sqlparser::ast::TrimWhereField::{Leading, Trailing};
                let function = match trim_where {
                    Some(Leading) => "pg_ltrim",
                    Some(Trailing) => "pg_rtrim",
                    _ => "pg_btrim",
                };
                let mut args = vec![take(expr)];
                args.extend(trim_what.take().map(|what| *what));
                call(function, args)
            }
            Expr::Position { expr, r#in } => call("pg_strpos", vec![take(r#in), take(expr)]),
            _ => return Ok(()),
        };
        *expr = rewritten;
        Ok(())
    }

    fn factor(&mut self, factor: &mut TableFactor) -> PgResult<()> {
        let (name, args, has_ordinality, alias) = match factor {
            TableFactor::Table { name, args: None, alias, .. } => {
                let (schema, relation) = parts(name);
                let is_of_query = self.ctes.contains(&relation) || relation == sets::NUMBERS;
                if schema.is_none() && is_of_query {
                    return Ok(());
                }
                let Some(target) = tables::relation(schema.as_deref(), &relation) else {
                    let message = format!("relation \"{relation}\" does not exist in the catalog");
                    return Err(PgError::new(code::UNDEFINED_TABLE, message));
                };
                if target != relation && alias.is_none() {
                    *alias = Some(table_alias(&relation));
                }
                *name = ObjectName::from(Ident::new(target));
                return Ok(());
            }
            TableFactor::Table { name, args: Some(args), alias, with_ordinality, .. } => {
                let args = args.args.drain(..).filter_map(argument).collect();
                (parts(name).1, args, *with_ordinality, alias.take())
            }
            TableFactor::Function { name, args, alias, with_ordinality, .. } => {
                let args = args.drain(..).filter_map(argument).collect();
                (parts(name).1, args, *with_ordinality, alias.take())
            }
            TableFactor::UNNEST { alias, array_exprs, with_ordinality, .. } => {
                ("unnest".to_owned(), std::mem::take(array_exprs), *with_ordinality, alias.take())
            }
            _ => return Ok(()),
        };
        let scalar =
            |name: &str| FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, sqlite)| *sqlite);
        *factor = table_function(&name, args, has_ordinality, alias, scalar(&name))?;
        Ok(())
    }
}

/// The value of a column that every table of PostgreSQL has without naming it.
fn system_column(name: &Ident) -> Option<Expr> {
    match (name.quote_style, name.value.to_lowercase().as_str()) {
        // The transaction that wrote the row: one before all others.
        (None, "xmin") => Some(number(1)),
        (None, "xmax" | "cmin" | "cmax") => Some(number(0)),
        _ => None,
    }
}

/// Compares a boolean column with a number rather than a text, as in `indisprimary = 't'`.
fn compare_as_boolean(column: &Expr, value: &mut Expr) {
    if !matches!(column, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
        || type_of(column) != Some(oid::BOOL)
    {
        return;
    }
    if let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(_), .. }) = value {
        *value = call("pg_bool", vec![take(value)]);
    }
}

/// Says where NULL is in an order: after all values in PostgreSQL, before them in SQLite.
fn place_nulls(key: &mut OrderByExpr) {
    let is_descending = key.options.asc == Some(false);
    key.options.nulls_first.get_or_insert(is_descending);
}

impl VisitorMut for Rewriter<'_> {
    type Break = PgError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<PgError> {
        if let Some(with) = &query.with {
            self.ctes.extend(with.cte_tables.iter().map(|cte| folded(&cte.alias.name)));
        }
        query.locks.clear();
        sets::expand(query, &mut self.growth)?;
        if let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = &mut query.order_by {
            keys.iter_mut().for_each(place_nulls);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<PgError> {
        if let Expr::Function(Function { over: Some(WindowType::WindowSpec(window)), .. }) = expr {
            window.order_by.iter_mut().for_each(place_nulls);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<PgError> {
        sets::name_columns(select);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<PgError> {
        match self.expr(expr) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<PgError> {
        let function = matches!(
            factor,
            TableFactor::Table { args: Some(_), .. }
                | TableFactor::Function { .. }
                | TableFactor::UNNEST { .. }
        );
        if function { ControlFlow::Continue(()) } else { self.visit_factor(factor) }
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<PgError> {
        let function = matches!(
            factor,
            TableFactor::Table { args: Some(_), .. }
                | TableFactor::Function { .. }
                | TableFactor::UNNEST { .. }
        );
        if function { self.visit_factor(factor) } else { ControlFlow::Continue(()) }
    }
}

impl Rewriter<'_> {
    fn visit_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<PgError> {
        match self.factor(factor) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}
