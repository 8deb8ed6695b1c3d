//! Expressions of PostgreSQL's syntax as SQLite understands them.

use sqlparser::ast::{
    AccessExpr, BinaryOperator, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentList, FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem,
    SetExpr, Subscript, TableAlias, TableFactor, UnaryOperator, Value, ValueWithSpan,
};

use super::names_of_types;
use super::rewrite::parse;
use super::sets;
use crate::error::{PgError, PgResult, code};

/// A call of a function.
pub(super) fn call(name: &str, args: Vec<Expr>) -> Expr {
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

pub(super) fn literal(value: Value) -> Expr {
    Expr::Value(ValueWithSpan::from(value))
}

/// A text. It must not have NUL characters.
pub(super) fn string(text: impl AsRef<str>) -> Expr {
    literal(Value::SingleQuotedString(doubled(text.as_ref(), '\'')))
}

/// A text whose quotes are doubled: the syntax tree then prints them as they are. Of others it can't know whether they are
/// doubled.
pub(super) fn doubled(text: &str, quote: char) -> String {
    text.replace(quote, &format!("{quote}{quote}"))
}

/// A name as it is, in lower case if it is not in quotes.
pub(super) fn folded(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

pub(super) fn not(negated: bool, expr: Expr) -> Expr {
    if negated {
        let expr = Box::new(Expr::Nested(Box::new(expr)));
        Expr::Nested(Box::new(Expr::UnaryOp { op: UnaryOperator::Not, expr }))
    } else {
        expr
    }
}

/// Takes an expression out of its place.
pub(super) fn take(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, literal(Value::Null))
}

/// The last part of a name, in lower case, and the part before it.
pub(super) fn parts(name: &ObjectName) -> (Option<String>, String) {
    let folded = |part: &ObjectNamePart| part.as_ident().map(folded).unwrap_or_default();
    let mut names: Vec<_> = name.0.iter().map(folded).collect();
    let last = names.pop().unwrap_or_default();
    (names.pop(), last)
}

/// The name of a function that is called.
pub(super) fn function_name(function: &Function) -> String {
    parts(&function.name).1.to_lowercase()
}

/// The name that PostgreSQL gives to a column without one.
pub(super) fn column_name(expr: &Expr) -> String {
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

pub(super) fn number(value: impl ToString) -> Expr {
    literal(Value::Number(value.to_string(), false))
}

pub(super) fn argument(arg: FunctionArg) -> Option<Expr> {
    match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        FunctionArg::Named { arg: FunctionArgExpr::Expr(expr), .. } => Some(expr),
        _ => None,
    }
}

pub(super) fn arguments(function: &mut Function) -> Vec<Expr> {
    match &mut function.args {
        FunctionArguments::List(list) => list.args.drain(..).filter_map(argument).collect(),
        _ => Vec::new(),
    }
}

/// The function of an operator that SQLite lacks, and whether it is negated.
pub(super) fn operator(op: &BinaryOperator) -> Option<(&'static str, bool)> {
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

pub(super) fn plain_operator(name: &str) -> PgResult<BinaryOperator> {
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

pub(super) fn like(
    function: &str,
    negated: bool,
    text: Expr,
    pattern: Expr,
    escape: Option<ValueWithSpan>,
) -> Expr {
    let mut args = vec![text, pattern];
    args.extend(escape.map(Expr::Value));
    not(negated, call(function, args))
}

/// `value = ANY (array)`, or `value <> ALL (array)`.
pub(super) fn in_array(negated: bool, value: Expr, array: Expr) -> Expr {
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
pub(super) fn cast(value: Expr, data_type: &DataType, is_array: bool) -> Expr {
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
        kind: CastKind::Cast,
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
            call("pg_replace", vec![value, string("pg_catalog."), string("")])
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

/// Keeps together what belongs together in the syntax tree: some operators of SQLite bind more tightly than PostgreSQL's.
pub(super) fn enclose(operand: &mut Expr) {
    let needs_parentheses = matches!(
        operand,
        Expr::BinaryOp { .. }
            | Expr::InList { .. }
            | Expr::InSubquery { .. }
            | Expr::Between { .. }
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
    );
    if needs_parentheses {
        *operand = Expr::Nested(Box::new(take(operand)));
    }
}

/// `array[1]`, `con.conkey[1]`, `(row).field`.
pub(super) fn access(root: Expr, chain: Vec<AccessExpr>) -> PgResult<Expr> {
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
            // Fields of the rows of _pg_expandarray(), which are JSON.
            (AccessExpr::Dot(Expr::Identifier(field)), value)
                if matches!(field.value.to_lowercase().as_str(), "x" | "n") =>
            {
                Expr::Nested(Box::new(Expr::BinaryOp {
                    left: Box::new(value),
                    op: BinaryOperator::LongArrow,
                    right: Box::new(string(field.value.to_lowercase())),
                }))
            }
            // Those of other functions' rows. There are none here.
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

pub(super) fn table_alias(name: &str) -> TableAlias {
    TableAlias { explicit: true, name: Ident::with_quote('"', name), columns: Vec::new(), at: None }
}

/// A function in FROM as a subquery. `scalar` is its name in SQLite if it returns one value.
pub(super) fn table_function(
    name: &str,
    args: Vec<Expr>,
    has_ordinality: bool,
    alias: Option<TableAlias>,
    scalar: Option<&str>,
) -> PgResult<TableFactor> {
    let table = alias.as_ref().map_or_else(|| name.to_owned(), |alias| folded(&alias.name));
    let sql = match (sets::arrays(name, args.clone()), scalar) {
        _ if name == "pg_get_keywords" => "SELECT * FROM pg_get_keywords".to_owned(),
        (Some(arrays), _) => {
            let number = Expr::Identifier(Ident::new(sets::NUMBER));
            let mut found = sets::columns(name, &arrays, &number);
            if has_ordinality {
                found.push((Some("ordinality"), number.clone()));
            }
            let names = sets::column_names(found.iter().map(|(own, _)| *own), name, alias.as_ref());
            let column = |(name, (_, value)): (&String, &(_, Expr))| {
                format!("{value} AS {}", Ident::with_quote('"', name))
            };
            let columns: Vec<_> = names.iter().zip(&found).map(column).collect();
            let condition = sets::is_element(number, arrays);
            format!("SELECT {} FROM {} WHERE {condition}", columns.join(", "), sets::NUMBERS)
        }
        (None, Some(scalar)) => {
            let names = sets::column_names([None], name, alias.as_ref());
            format!("SELECT {} AS {}", call(scalar, args), Ident::with_quote('"', &names[0]))
        }
        (None, None) => {
            let message = format!("function {name}() does not exist in the catalog");
            return Err(PgError::new(code::UNDEFINED_FUNCTION, message));
        }
    };
    let subquery =
        parse(&sql).ok_or_else(|| PgError::unsupported(format!("this use of {name}() is not supported")))?;
    let alias = Some(table_alias(&table));
    Ok(TableFactor::Derived { lateral: false, subquery: Box::new(subquery), alias, sample: None })
}
