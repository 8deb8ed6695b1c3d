//! Turns a query of PostgreSQL's catalog into one of SQLite, on its syntax tree.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{
    AccessExpr, BinaryOperator, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr, Subscript,
    TableAlias, TableFactor, UnaryOperator, Value, ValueWithSpan, VisitMut as _, VisitorMut,
};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

use super::functions::{ALWAYS_NULL, ALWAYS_TRUE, ALWAYS_ZERO};
use super::tables;
use super::{Caller, names_of_types};
use crate::error::{PgError, PgResult, code};

/// Functions of SQLite, and those that are added to it, by their names in PostgreSQL.
const FUNCTIONS: &[(&str, &str)] = &[
    ("abs", "abs"),
    ("array_agg", "array_agg"),
    ("array_length", "array_length"),
    ("array_lower", "array_lower"),
    ("array_to_string", "array_to_string"),
    ("array_upper", "array_upper"),
    ("avg", "avg"),
    ("bool_and", "min"),
    ("bool_or", "max"),
    ("cardinality", "cardinality"),
    ("char_length", "length"),
    ("coalesce", "coalesce"),
    ("concat", "concat"),
    ("count", "count"),
    ("current_setting", "current_setting"),
    ("dense_rank", "dense_rank"),
    ("every", "min"),
    ("format_type", "format_type"),
    ("greatest", "max"),
    ("json_agg", "json_group_array"),
    ("json_build_object", "json_object"),
    ("least", "min"),
    ("left", "left"),
    ("length", "length"),
    ("lower", "lower"),
    ("ltrim", "ltrim"),
    ("max", "max"),
    ("min", "min"),
    ("nullif", "nullif"),
    ("octet_length", "octet_length"),
    ("pg_encoding_to_char", "pg_encoding_to_char"),
    ("pg_get_userbyid", "pg_get_userbyid"),
    ("pg_size_pretty", "pg_size_pretty"),
    ("pg_table_is_visible", "pg_table_is_visible"),
    ("quote_ident", "quote_ident"),
    ("quote_literal", "quote_literal"),
    ("rank", "rank"),
    ("regexp_replace", "regexp_replace"),
    ("replace", "replace"),
    ("round", "round"),
    ("row_number", "row_number"),
    ("rtrim", "rtrim"),
    ("set_config", "set_config"),
    ("split_part", "split_part"),
    ("string_agg", "group_concat"),
    ("string_to_array", "string_to_array"),
    ("strpos", "instr"),
    ("substr", "substr"),
    ("substring", "substr"),
    ("sum", "sum"),
    ("upper", "upper"),
];

/// A call of a function.
fn call(name: &str, args: Vec<Expr>) -> Expr {
    let args = args.into_iter().map(|expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))).collect();
    Expr::Function(Function {
        name: ObjectName::from(Ident::new(name)),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn literal(value: Value) -> Expr {
    Expr::Value(ValueWithSpan::from(value))
}

fn string(text: impl Into<String>) -> Expr {
    literal(Value::SingleQuotedString(text.into()))
}

fn not(negated: bool, expr: Expr) -> Expr {
    if negated {
        let expr = Box::new(Expr::Nested(Box::new(expr)));
        Expr::Nested(Box::new(Expr::UnaryOp { op: UnaryOperator::Not, expr }))
    } else {
        expr
    }
}

/// Takes an expression out of its place.
fn take(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, literal(Value::Null))
}

/// The last part of a name, in lower case, and the part before it.
pub(super) fn parts(name: &ObjectName) -> (Option<String>, String) {
    let folded = |part: &ObjectNamePart| match part.as_ident() {
        Some(ident) if ident.quote_style.is_some() => ident.value.clone(),
        Some(ident) => ident.value.to_lowercase(),
        None => String::new(),
    };
    let mut names: Vec<_> = name.0.iter().map(folded).collect();
    let last = names.pop().unwrap_or_default();
    (names.pop(), last)
}

/// The name of a function that is called.
fn function_name(function: &Function) -> String {
    parts(&function.name).1.to_lowercase()
}

/// The name that PostgreSQL gives to a column without one.
pub(super) fn column_name(expr: &Expr) -> String {
    let folded = |ident: &Ident| {
        if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
    };
    match expr {
        Expr::Identifier(ident) => folded(ident),
        Expr::CompoundIdentifier(idents) => idents.last().map(folded).unwrap_or_default(),
        Expr::Function(function) => function_name(function),
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => column_name(inner),
        Expr::CompoundFieldAccess { root, access_chain } => match access_chain.last() {
            Some(AccessExpr::Dot(field)) => column_name(field),
            _ => column_name(root),
        },
        Expr::Cast { expr, data_type, .. } => match column_name(expr) {
            name if name == "?column?" => names_of_types(&data_type.to_string()).0.to_owned(),
            name => name,
        },
        Expr::Case { else_result, .. } => match else_result.as_deref().map(column_name) {
            Some(name) if name != "?column?" => name,
            _ => "case".into(),
        },
        Expr::Exists { .. } => "exists".into(),
        Expr::Substring { .. } => "substring".into(),
        Expr::Trim { .. } => "btrim".into(),
        Expr::Array(_) => "array".into(),
        Expr::Value(ValueWithSpan { value: Value::Boolean(_), .. }) => "bool".into(),
        Expr::Subquery(query) => match select_of(query).and_then(|select| select.projection.first()) {
            Some(SelectItem::UnnamedExpr(expr)) => column_name(expr),
            Some(SelectItem::ExprWithAlias { alias, .. }) => folded(alias),
            _ => "?column?".into(),
        },
        _ => "?column?".into(),
    }
}

/// The select whose columns a query has.
pub(super) fn select_of(query: &Query) -> Option<&Select> {
    let mut body = query.body.as_ref();
    loop {
        match body {
            SetExpr::Select(select) => return Some(select),
            SetExpr::Query(query) => body = query.body.as_ref(),
            SetExpr::SetOperation { left, .. } => body = left.as_ref(),
            _ => return None,
        }
    }
}

/// A parsed query of one statement, with a limit of its depth.
pub(super) fn parse(sql: &str) -> Option<Query> {
    let mut parser = Parser::new(&PostgreSqlDialect {}).with_recursion_limit(64).try_with_sql(sql).ok()?;
    let query = parser.parse_query().ok()?;
    matches!(parser.peek_token().token, sqlparser::tokenizer::Token::EOF).then_some(*query)
}

/// Rewrites a query.
pub(super) struct Rewriter<'a> {
    caller: &'a Caller,
    /// Names of common table expressions, which are no relations of the catalog.
    ctes: BTreeSet<String>,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(caller: &'a Caller) -> Self {
        Self { caller, ctes: BTreeSet::new() }
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
            "version" => Some(string(self.caller.version())),
            "current_schema" => Some(string("public")),
            "current_database" | "current_catalog" => Some(string(&*self.caller.database)),
            "current_user" | "session_user" | "user" | "current_role" => Some(string(&*self.caller.user)),
            "pg_backend_pid" => Some(number(self.caller.process)),
            "pg_export_snapshot" => Some(string("00000003-00000001-1")),
            "pg_current_xact_id" | "txid_current_if_assigned" => Some(number(1)),
            "pg_advisory_lock" | "pg_sleep" | "pg_advisory_unlock_all" => Some(string("")),
            "now"
            | "current_timestamp"
            | "transaction_timestamp"
            | "statement_timestamp"
            | "clock_timestamp"
            | "pg_postmaster_start_time"
            | "pg_conf_load_time" => {
                Some(call("strftime", vec![string("%Y-%m-%d %H:%M:%f+00"), string("now")]))
            }
            "current_date" => Some(call("strftime", vec![string("%Y-%m-%d"), string("now")])),
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
        let is_constant =
            || [ALWAYS_NULL, ALWAYS_TRUE, ALWAYS_ZERO].iter().any(|names| names.contains(&name.as_str()));
        let target = match known {
            Some(target) => target.to_owned(),
            None if is_constant() => name,
            // What this rewriter has put there.
            None if name.starts_with("pg_reg") || name.starts_with("pg_bool") => name,
            None if INTERNAL.contains(&name.as_str()) => name,
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
                Value::EscapedStringLiteral(text) | Value::NationalStringLiteral(text) => string(text),
                Value::DollarQuotedString(quoted) => string(&quoted.value),
                _ => return Ok(()),
            },
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
                    _ => return Ok(()),
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
                            Ok(())
                        }
                        _ => Ok(()),
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
                    Some(Leading) => "ltrim",
                    Some(Trailing) => "rtrim",
                    _ => "trim",
                };
                let mut args = vec![take(expr)];
                args.extend(trim_what.take().map(|what| *what));
                call(function, args)
            }
            Expr::Position { expr, r#in } => call("instr", vec![take(r#in), take(expr)]),
            _ => return Ok(()),
        };
        *expr = rewritten;
        Ok(())
    }

    fn factor(&mut self, factor: &mut TableFactor) -> PgResult<()> {
        let (name, args, alias) = match factor {
            TableFactor::Table { name, args: None, alias, .. } => {
                let (schema, relation) = parts(name);
                if schema.is_none() && self.ctes.contains(&relation) {
                    return Ok(());
                }
                let Some(target) = tables::relation(schema.as_deref(), &relation) else {
                    let message = format!("{relation} is not a relation of the catalog");
                    let hint = "read the catalog and tables in separate statements";
                    return Err(PgError::unsupported(message).hint(hint));
                };
                if target != relation && alias.is_none() {
                    *alias = Some(table_alias(&relation));
                }
                *name = ObjectName::from(Ident::new(target));
                return Ok(());
            }
            TableFactor::Table { name, args: Some(args), alias, .. } => {
                let args = args.args.drain(..).filter_map(argument).collect();
                (parts(name).1, args, alias.take())
            }
            TableFactor::Function { name, args, alias, .. } => {
                (parts(name).1, args.drain(..).filter_map(argument).collect(), alias.take())
            }
            TableFactor::UNNEST { alias, .. } => ("unnest".to_owned(), Vec::new(), alias.take()),
            _ => return Ok(()),
        };
        *factor = table_function(&name, args, alias)?;
        Ok(())
    }
}

/// Functions that the rewriter itself puts into queries.
const INTERNAL: &[&str] = &[
    "pg_like",
    "pg_ilike",
    "pg_regex",
    "pg_iregex",
    "pg_in_array",
    "pg_array",
    "pg_subscript",
    "substr",
    "trim",
    "instr",
    "strftime",
    "group_concat",
    "json_object",
];

fn number(value: impl ToString) -> Expr {
    literal(Value::Number(value.to_string(), false))
}

fn argument(arg: FunctionArg) -> Option<Expr> {
    match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        FunctionArg::Named { arg: FunctionArgExpr::Expr(expr), .. } => Some(expr),
        _ => None,
    }
}

fn arguments(function: &mut Function) -> Vec<Expr> {
    match &mut function.args {
        FunctionArguments::List(list) => list.args.drain(..).filter_map(argument).collect(),
        _ => Vec::new(),
    }
}

/// The function of an operator that SQLite lacks, and whether it is negated.
fn operator(op: &BinaryOperator) -> Option<(&'static str, bool)> {
    let name = match op {
        BinaryOperator::PGRegexMatch => "~",
        BinaryOperator::PGRegexIMatch => "~*",
        BinaryOperator::PGRegexNotMatch => "!~",
        BinaryOperator::PGRegexNotIMatch => "!~*",
        BinaryOperator::PGLikeMatch => "~~",
        BinaryOperator::PGILikeMatch => "~~*",
        BinaryOperator::PGNotLikeMatch => "!~~",
        BinaryOperator::PGNotILikeMatch => "!~~*",
        BinaryOperator::PGCustomBinaryOperator(name) => name.last()?,
        _ => return None,
    };
    Some(match name {
        "~" => ("pg_regex", false),
        "~*" => ("pg_iregex", false),
        "!~" => ("pg_regex", true),
        "!~*" => ("pg_iregex", true),
        "~~" => ("pg_like", false),
        "~~*" => ("pg_ilike", false),
        "!~~" => ("pg_like", true),
        "!~~*" => ("pg_ilike", true),
        _ => return None,
    })
}

fn plain_operator(name: &str) -> PgResult<BinaryOperator> {
    Ok(match name {
        "=" => BinaryOperator::Eq,
        "<>" | "!=" => BinaryOperator::NotEq,
        "<" => BinaryOperator::Lt,
        "<=" => BinaryOperator::LtEq,
        ">" => BinaryOperator::Gt,
        ">=" => BinaryOperator::GtEq,
        "+" => BinaryOperator::Plus,
        "-" => BinaryOperator::Minus,
        "||" => BinaryOperator::StringConcat,
        other => {
            return Err(PgError::unsupported(format!(
                "operator {other} is not supported in queries of the catalog"
            )));
        }
    })
}

fn like(function: &str, negated: bool, text: Expr, pattern: Expr, escape: Option<ValueWithSpan>) -> Expr {
    let mut args = vec![text, pattern];
    args.extend(escape.map(Expr::Value));
    not(negated, call(function, args))
}

/// `value = ANY (array)`, or `value <> ALL (array)`.
fn in_array(negated: bool, value: Expr, array: Expr) -> Expr {
    let array = match array {
        Expr::Nested(inner) => *inner,
        other => other,
    };
    match array {
        Expr::Subquery(subquery) => Expr::InSubquery { expr: Box::new(value), subquery, negated },
        array => not(negated, call("pg_in_array", vec![value, array])),
    }
}

/// A cast: to what SQLite tells apart.
fn cast(value: Expr, data_type: &DataType, is_array: bool) -> Expr {
    let (name, is_list) = names_of_types(&data_type.to_string());
    if is_array || is_list {
        return value;
    }
    // The text of an OID is the name that it stands for.
    let names = match &value {
        Expr::Function(function) => match function_name(function).as_str() {
            "pg_regclass" => Some("pg_regclass_name"),
            "pg_regtype" => Some("format_type"),
            "pg_regnamespace" => Some("pg_regnamespace_name"),
            "pg_bool" => Some("pg_bool_text"),
            _ => None,
        },
        _ => None,
    };
    let to = |data_type| Expr::Cast {
        kind: sqlparser::ast::CastKind::Cast,
        expr: Box::new(value.clone()),
        data_type,
        array: false,
        format: None,
    };
    match name {
        "regclass" => call("pg_regclass", vec![value]),
        "regtype" => call("pg_regtype", vec![value]),
        "regnamespace" => call("pg_regnamespace", vec![value]),
        "regrole" => call("pg_get_userbyid", vec![value]),
        "regproc" | "regprocedure" => {
            // They are kept as names.
            call("replace", vec![value, string("pg_catalog."), string("")])
        }
        "text" | "varchar" | "name" | "bpchar" | "char" | "cstring" => match names {
            Some(function) => call(function, vec![value]),
            None => to(DataType::Text),
        },
        "bool" => call("pg_bool", vec![value]),
        "int2" | "int4" | "int8" | "oid" | "xid" => to(DataType::Integer(None)),
        "float4" | "float8" | "numeric" => to(DataType::Real),
        _ => value,
    }
}

/// `array[1]`, `con.conkey[1]`, `(row).field`.
fn access(root: Expr, chain: Vec<AccessExpr>) -> PgResult<Expr> {
    let mut value = root;
    for step in chain {
        value = match (step, value) {
            (AccessExpr::Dot(Expr::Identifier(field)), Expr::Identifier(table)) => {
                Expr::CompoundIdentifier(vec![table, field])
            }
            (AccessExpr::Dot(Expr::Identifier(field)), Expr::CompoundIdentifier(mut path)) => {
                path.push(field);
                Expr::CompoundIdentifier(path)
            }
            // Fields of rows that functions return. There are none here.
            (AccessExpr::Dot(_), _) => literal(Value::Null),
            (AccessExpr::Subscript(Subscript::Index { index }), value) => {
                call("pg_subscript", vec![value, index])
            }
            (AccessExpr::Subscript(_), _) => {
                return Err(PgError::unsupported(
                    "slices of arrays are not supported in queries of the catalog",
                ));
            }
        };
    }
    Ok(value)
}

fn table_alias(name: &str) -> TableAlias {
    TableAlias { explicit: true, name: Ident::with_quote('"', name), columns: Vec::new(), at: None }
}

/// A function in FROM as a subquery.
fn table_function(name: &str, args: Vec<Expr>, alias: Option<TableAlias>) -> PgResult<TableFactor> {
    let table = alias.as_ref().map_or(name, |alias| alias.name.value.as_str()).to_owned();
    let column =
        alias.as_ref().and_then(|alias| alias.columns.first()).map_or(&table, |column| &column.name.value);
    let column = column.replace('"', "\"\"");
    let sql = match (name, args.as_slice()) {
        ("generate_series", [first, last, ..]) => format!(
            "WITH RECURSIVE g(v) AS (SELECT {first} WHERE {first} <= {last} UNION ALL SELECT v + 1 FROM g WHERE v < {last}) \
             SELECT v AS \"{column}\" FROM g"
        ),
        ("pg_get_keywords", []) => "SELECT * FROM pg_get_keywords".into(),
        // Arrays are NULL in all rows of the catalog.
        ("unnest" | "_pg_expandarray", _) => format!("SELECT NULL AS \"{column}\" WHERE 0"),
        _ => {
            let message = format!("function {name}() does not exist in the catalog");
            return Err(PgError::new(code::UNDEFINED_FUNCTION, message));
        }
    };
    let subquery =
        parse(&sql).ok_or_else(|| PgError::unsupported(format!("this use of {name}() is not supported")))?;
    let alias = Some(table_alias(&table));
    Ok(TableFactor::Derived { lateral: false, subquery: Box::new(subquery), alias, sample: None })
}

impl VisitorMut for Rewriter<'_> {
    type Break = PgError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<PgError> {
        if let Some(with) = &query.with {
            self.ctes.extend(with.cte_tables.iter().map(|cte| cte.alias.name.value.to_lowercase()));
        }
        query.locks.clear();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<PgError> {
        for item in &mut select.projection {
            match item {
                // A column must not be named after what its expression is rewritten to.
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
