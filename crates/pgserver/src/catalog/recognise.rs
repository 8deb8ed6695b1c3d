//! Which queries are about the catalog or the session, and the types of their columns and parameters.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, Function, ObjectName, Query, Select, SelectItem, Statement,
    TableFactor, UnaryOperator, Value, ValueWithSpan, Visit as _, Visitor,
};

use super::expr::{column_name, folded, parts, select_of};
use super::rewrite::parse;
use super::tables::type_of_column;
use super::{names_of_types, tables};
use crate::error::{PgError, PgResult, code};
use crate::sql::lexer::{TokenKind, tokens, unquoted};
use crate::types::{element_of, oid};

/// Functions about the session. A query that reads no table but calls one is answered here.
const SESSION: &[&str] = &[
    "version",
    "current_schema",
    "current_schemas",
    "current_database",
    "current_catalog",
    "current_user",
    "session_user",
    "current_role",
    "current_setting",
    "set_config",
    "has_table_privilege",
    "has_schema_privilege",
    "has_database_privilege",
    "has_column_privilege",
    "inet_server_addr",
    "inet_server_port",
    "inet_client_addr",
    "inet_client_port",
    "txid_current",
    "obj_description",
    "col_description",
    "shobj_description",
    "format_type",
    "to_regclass",
    "to_regtype",
    "to_regnamespace",
    "quote_ident",
];

/// Functions of the present time. Alone they are answered here, in microseconds, which clients can read.
const TIMES: &[&str] =
    &["now", "current_timestamp", "transaction_timestamp", "statement_timestamp", "clock_timestamp"];

/// The longest query of the catalog.
const BYTES_MAX: usize = 128 << 10;
/// The largest depth of its syntax tree.
const DEPTH_MAX: usize = 2000;
/// How often the tokens of a query may be read. The parser reads the arguments of a function, and what else is in
/// parentheses, again for each of up to four things that they may be, at each level.
const READS_MAX: u64 = 1 << 20;
const READS_OF_LEVEL_MAX: u64 = 4;

/// A query of the catalog.
#[derive(Debug)]
pub(crate) struct CatalogQuery {
    pub(super) query: Query,
    /// Whether it reads tables of the catalog, rather than only calling functions.
    pub(super) reads: bool,
    /// Names and types of its columns, if they can be told from the query alone.
    pub(super) columns: Option<Vec<(String, Option<u32>)>>,
    /// Types of its parameters; 0 for unknown.
    pub(super) parameters: Vec<u32>,
    /// Types of the columns that its subqueries name.
    pub(super) aliases: Aliases,
}

/// Types of columns by the names that subqueries give them; `None` where the same name has several types.
pub(super) type Aliases = HashMap<String, Option<u32>>;

/// Whether a statement may be one for the catalog. It is only if it mentions something of it.
pub(super) fn may_be(sql: &str) -> bool {
    let mut tokens = tokens(sql);
    let first = tokens.by_ref().find(|token| token.kind != TokenKind::Symbol('('));
    let is_query = first.is_some_and(|token| {
        let word = &sql[token.start..token.end];
        ["select", "with", "values", "table"].iter().any(|first| word.eq_ignore_ascii_case(first))
    });
    is_query
        && tokens.any(|token| match token.kind {
            TokenKind::Word | TokenKind::QuotedName => {
                let name = unquoted(&sql[token.start..token.end]).to_lowercase();
                name.starts_with("pg_")
                    || name == "information_schema"
                    || SESSION.contains(&name.as_str())
                    || TIMES.contains(&name.as_str())
                    || names_of_types(&name).0.starts_with("reg")
            }
            _ => false,
        })
}

/// Fails for queries whose syntax tree could be too deep, or that could take too long to parse. It counts an upper bound of
/// the depth: parts in parentheses are below what stands before them, and parts of a list are beside each other.
fn check_complexity(sql: &str) -> PgResult<()> {
    let too_complex =
        || PgError::new(code::PROGRAM_LIMIT, "the query of the catalog is too long or too deep");
    if sql.len() > BYTES_MAX {
        return Err(too_complex());
    }
    // The tokens at each level of parentheses that are open, and their sum.
    let mut levels = vec![0];
    let mut sum = 0;
    let (mut reads, mut reads_here) = (0u64, 1u64);
    for token in tokens(sql) {
        match token.kind {
            TokenKind::Symbol('(' | '[') => reads_here = reads_here.saturating_mul(READS_OF_LEVEL_MAX),
            TokenKind::Symbol(')' | ']') => reads_here = (reads_here / READS_OF_LEVEL_MAX).max(1),
            _ => {}
        }
        reads = reads.saturating_add(reads_here);
        let is =
            |words: &[&str]| words.iter().any(|word| sql[token.start..token.end].eq_ignore_ascii_case(word));
        let top = levels.len() - 1;
        match token.kind {
            TokenKind::Symbol('(' | '[') => levels.push(0),
            TokenKind::Word if is(&["case"]) => levels.push(0),
            TokenKind::Symbol(')' | ']') if top > 0 => sum -= levels.pop().unwrap_or(0),
            TokenKind::Word if top > 0 && is(&["end"]) => sum -= levels.pop().unwrap_or(0),
            TokenKind::Symbol(',') => sum -= std::mem::take(&mut levels[top]),
            TokenKind::Word if is(&["when", "then", "else"]) => sum -= std::mem::take(&mut levels[top]),
            TokenKind::Symbol('.') | TokenKind::String | TokenKind::Number | TokenKind::QuotedName => {}
            _ => {
                levels[top] += 1;
                sum += 1;
            }
        }
        if sum + levels.len() > DEPTH_MAX || reads > READS_MAX {
            return Err(too_complex());
        }
    }
    Ok(())
}

/// What a query mentions.
#[derive(Default)]
struct Mentions {
    ctes: BTreeSet<String>,
    catalog: Vec<String>,
    others: Vec<String>,
    calls_session: bool,
    parameters: Vec<u32>,
    aliases: Aliases,
}

impl Mentions {
    fn parameter(&mut self, expr: &Expr, oid: u32) {
        let Expr::Value(ValueWithSpan { value: Value::Placeholder(name), .. }) = expr else { return };
        let Some(index) = name.strip_prefix('$').and_then(|number| number.parse::<usize>().ok()) else {
            return;
        };
        if (1..=u16::MAX.into()).contains(&index) {
            if self.parameters.len() < index {
                self.parameters.resize(index, 0);
            }
            if oid != 0 {
                self.parameters[index - 1] = oid;
            }
        }
    }
}

impl Visitor for Mentions {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let Some(with) = &query.with {
            self.ctes.extend(with.cte_tables.iter().map(|cte| folded(&cte.alias.name)));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        for item in &select.projection {
            if let SelectItem::ExprWithAlias { expr, alias } = item
                && let Some(oid) = type_of(expr)
            {
                let known = self.aliases.entry(folded(alias)).or_insert(Some(oid));
                *known = known.filter(|known| *known == oid);
            }
        }
        ControlFlow::Continue(())
    }

    /// Nothing that writes is for the catalog, whatever it reads.
    fn pre_visit_statement(&mut self, _: &Statement) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Table { name, args: None, .. } => {
                let (schema, relation) = parts(name);
                if schema.is_none() && self.ctes.contains(&relation) {
                    return ControlFlow::Continue(());
                }
                let is_of_catalog = tables::is_of_catalog(schema.as_deref(), &relation);
                let relations = if is_of_catalog { &mut self.catalog } else { &mut self.others };
                relations.push(relation);
            }
            TableFactor::Table { name, .. } | TableFactor::Function { name, .. } => self.call(name),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Function(function) => self.call(&function.name),
            Expr::Identifier(name) => {
                let name = name.value.to_lowercase();
                self.calls_session |= matches!(
                    name.as_str(),
                    "current_user" | "session_user" | "current_catalog" | "current_role"
                );
            }
            Expr::Cast { expr, data_type, .. } => {
                let name = data_type.to_string();
                let (type_name, _) = names_of_types(&name);
                self.calls_session |= type_name.starts_with("reg");
                self.parameter(expr, cast_type(&name));
            }
            Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => {
                self.parameter(left, type_of(right).unwrap_or(0));
                self.parameter(right, type_of(left).unwrap_or(0));
            }
            Expr::InList { expr, list, .. } => {
                let oid = type_of(expr).unwrap_or(0);
                list.iter().for_each(|item| self.parameter(item, oid));
            }
            placeholder => self.parameter(placeholder, 0),
        }
        ControlFlow::Continue(())
    }
}

impl Mentions {
    fn call(&mut self, name: &ObjectName) {
        let (_, name) = parts(name);
        self.calls_session |= name.starts_with("pg_") || SESSION.contains(&name.as_str());
    }
}

/// Whether a query is nothing but the present time.
fn is_time(query: &Query) -> bool {
    let Some(select) = select_of(query).filter(|select| select.from.is_empty() && select.selection.is_none())
    else {
        return false;
    };
    let [SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }] =
        select.projection.as_slice()
    else {
        return false;
    };
    matches!(expr, Expr::Function(function) if TIMES.contains(&parts(&function.name).1.as_str()))
}

/// The query, if it is one for the catalog.
///
/// # Errors
/// If it reads tables of the service, too.
pub(super) fn recognise(sql: &str) -> PgResult<Option<CatalogQuery>> {
    // Too complex to be looked at: if it is not for the catalog, the engine has the last word.
    if let Err(error) = check_complexity(sql) {
        let mentions =
            tokens(sql).any(|token| sql[token.start..token.end].eq_ignore_ascii_case("pg_catalog"));
        return if mentions { Err(error) } else { Ok(None) };
    }
    let Some(query) = parse(sql) else { return Ok(None) };
    let mut mentions = Mentions::default();
    if query.visit(&mut mentions).is_break() {
        return Ok(None);
    }
    match (mentions.catalog.as_slice(), mentions.others.as_slice()) {
        ([], []) if mentions.calls_session || is_time(&query) => {}
        ([], _) => return Ok(None),
        (_, []) => {}
        ([catalog, ..], [other, ..]) => {
            let message = format!("{catalog} and {other} can't be read in one statement");
            return Err(
                PgError::unsupported(message).hint("read the catalog and tables in separate statements")
            );
        }
    }
    let columns = select_of(&query).and_then(|select| {
        // Quotes in names are doubled in the syntax tree.
        let type_of = |expr: &Expr| {
            type_of(expr).or_else(|| mentions.aliases.get(&column_name(expr)).copied().flatten())
        };
        let named = |name: String, expr: &Expr| Some((name.replace("\"\"", "\""), type_of(expr)));
        let column = |item: &SelectItem| match item {
            SelectItem::UnnamedExpr(expr) => named(column_name(expr), expr),
            SelectItem::ExprWithAlias { expr, alias } => named(folded(alias), expr),
            _ => None,
        };
        select.projection.iter().map(column).collect()
    });
    Ok(Some(CatalogQuery {
        reads: !mentions.catalog.is_empty(),
        query,
        columns,
        parameters: mentions.parameters,
        aliases: mentions.aliases,
    }))
}

/// The type of a cast's result.
fn cast_type(name: &str) -> u32 {
    let (name, is_list) = names_of_types(name);
    if is_list {
        return match name {
            "int2" => 1005,
            "int4" => 1007,
            "int8" => 1016,
            "oid" => 1028,
            "name" => oid::NAME_ARRAY,
            "char" => oid::CHAR_ARRAY,
            _ => oid::TEXT_ARRAY,
        };
    }
    match name {
        "bool" => oid::BOOL,
        "int2" => oid::INT2,
        "int4" => oid::INT4,
        "int8" => oid::INT8,
        "oid" => oid::OID,
        "float4" => oid::FLOAT4,
        "float8" => oid::FLOAT8,
        "name" => oid::NAME,
        "char" => oid::CHAR,
        "varchar" => oid::VARCHAR,
        "bpchar" => oid::BPCHAR,
        "regclass" => oid::REGCLASS,
        "regtype" => oid::REGTYPE,
        "regproc" => oid::REGPROC,
        "regnamespace" => oid::REGNAMESPACE,
        _ => oid::TEXT,
    }
}

fn type_of_function(function: &Function) -> Option<u32> {
    let (_, name) = parts(&function.name);
    Some(match name.as_str() {
        "current_schema"
        | "current_database"
        | "current_user"
        | "session_user"
        | "current_catalog"
        | "current_role"
        | "pg_get_userbyid"
        | "pg_encoding_to_char" => oid::NAME,
        "current_schemas" => oid::NAME_ARRAY,
        "count"
        | "row_number"
        | "rank"
        | "dense_rank"
        | "txid_current"
        | "pg_table_size"
        | "pg_relation_size"
        | "pg_total_relation_size"
        | "pg_database_size"
        | "pg_indexes_size" => oid::INT8,
        "pg_backend_pid"
        | "array_length"
        | "array_upper"
        | "array_lower"
        | "array_position"
        | "cardinality"
        | "generate_series"
        | "generate_subscripts"
        | "age"
        | "length"
        | "strpos"
        | "char_length"
        | "pg_column_size"
        | "pg_relation_is_updatable" => oid::INT4,
        "pg_my_temp_schema" => oid::OID,
        "to_regclass" => oid::REGCLASS,
        "to_regtype" => oid::REGTYPE,
        "to_regnamespace" => oid::REGNAMESPACE,
        "bool_and"
        | "bool_or"
        | "every"
        | "pg_is_in_recovery"
        | "pg_is_other_temp_schema"
        | "pg_has_role"
        | "pg_relation_is_publishable" => oid::BOOL,
        "array" | "array_agg" | "string_to_array" | "parse_ident" => oid::TEXT_ARRAY,
        "unnest" => match first_argument(function)? {
            oid::OIDVECTOR => oid::OID,
            array => element_of(array)?,
        },
        "now"
        | "current_timestamp"
        | "transaction_timestamp"
        | "statement_timestamp"
        | "clock_timestamp"
        | "pg_postmaster_start_time"
        | "pg_conf_load_time" => oid::TIMESTAMPTZ,
        "current_date" => oid::DATE,
        "coalesce" | "nullif" | "min" | "max" | "greatest" | "least" => return first_argument(function),
        name if name.ends_with("_is_visible") || name.starts_with("has_") || name.ends_with("_lock") => {
            oid::BOOL
        }
        _ => oid::TEXT,
    })
}

fn first_argument(function: &Function) -> Option<u32> {
    use sqlparser::ast::{FunctionArg, FunctionArgExpr, FunctionArguments};
    let FunctionArguments::List(list) = &function.args else { return None };
    match list.args.first()? {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => type_of(expr),
        _ => None,
    }
}

/// The type of what two operands are computed to.
fn wider(left: Option<u32>, right: Option<u32>) -> Option<u32> {
    const NUMBERS: [u32; 5] = [oid::INT2, oid::INT4, oid::INT8, oid::FLOAT4, oid::FLOAT8];
    let rank = |oid: Option<u32>| NUMBERS.iter().position(|number| Some(*number) == oid);
    match (rank(left), rank(right)) {
        (Some(a), Some(b)) => Some(NUMBERS[a.max(b)]),
        _ => left.or(right),
    }
}

/// The type of an expression, as far as it can be told without its tables.
pub(super) fn type_of(expr: &Expr) -> Option<u32> {
    match expr {
        Expr::Identifier(name)
            if name.quote_style.is_none()
                && matches!(
                    name.value.to_lowercase().as_str(),
                    "current_user" | "session_user" | "current_catalog" | "current_role"
                ) =>
        {
            Some(oid::NAME)
        }
        Expr::Identifier(name) => type_of_column(&name.value),
        Expr::CompoundIdentifier(path) => type_of_column(&path.last()?.value),
        Expr::Cast { data_type, .. } => Some(cast_type(&data_type.to_string())),
        Expr::Function(function) => type_of_function(function),
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => type_of(inner),
        Expr::Value(ValueWithSpan { value, .. }) => match value {
            Value::Number(text, _) if text.parse::<i32>().is_ok() => Some(oid::INT4),
            Value::Number(text, _) if text.parse::<i64>().is_ok() => Some(oid::INT8),
            Value::Number(..) => Some(oid::FLOAT8),
            Value::Boolean(_) => Some(oid::BOOL),
            Value::Null | Value::Placeholder(_) => None,
            _ => Some(oid::TEXT),
        },
        Expr::UnaryOp { op: UnaryOperator::Not, .. } => Some(oid::BOOL),
        Expr::UnaryOp { expr, .. } => type_of(expr),
        Expr::BinaryOp { left, op, right } => match op {
            BinaryOperator::Plus
            | BinaryOperator::Minus
            | BinaryOperator::Multiply
            | BinaryOperator::Divide
            | BinaryOperator::Modulo
            | BinaryOperator::BitwiseAnd
            | BinaryOperator::BitwiseOr => wider(type_of(left), type_of(right)),
            BinaryOperator::StringConcat => Some(oid::TEXT),
            _ => Some(oid::BOOL),
        },
        Expr::IsNull(_)
        | Expr::IsNotNull(_)
        | Expr::IsTrue(_)
        | Expr::IsNotTrue(_)
        | Expr::IsFalse(_)
        | Expr::IsNotFalse(_)
        | Expr::IsDistinctFrom(..)
        | Expr::IsNotDistinctFrom(..)
        | Expr::InList { .. }
        | Expr::InSubquery { .. }
        | Expr::Between { .. }
        | Expr::Like { .. }
        | Expr::ILike { .. }
        | Expr::AnyOp { .. }
        | Expr::AllOp { .. }
        | Expr::Exists { .. } => Some(oid::BOOL),
        Expr::Case { conditions, else_result, .. } => conditions
            .iter()
            .find_map(|when| type_of(&when.result))
            .or_else(|| type_of(else_result.as_deref()?)),
        // Of the rows of _pg_expandarray().
        Expr::CompoundFieldAccess { access_chain, .. } => match access_chain.last()? {
            AccessExpr::Dot(Expr::Identifier(field)) => match field.value.to_lowercase().as_str() {
                "x" => Some(oid::INT2),
                "n" => Some(oid::INT4),
                _ => None,
            },
            _ => None,
        },
        Expr::Subquery(query) => match select_of(query)?.projection.first()? {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => type_of(expr),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_the_catalog_are_told_from_others() {
        let check = |sql: &str, expected: bool| {
            let found = may_be(sql) && recognise(sql).unwrap().is_some();
            assert_eq!(found, expected, "{sql}");
        };
        check("select version()", true);
        check("select pg_catalog.version()", true);
        check("select current_schema(), current_user", true);
        check("select now()", true);
        check("select now() - interval '1 day'", false);
        check("select * from pg_class", true);
        check("select * from information_schema.tables", true);
        check("with x as (select 1) select * from x, pg_type", true);
        check("select 'pg_class'::regclass::oid", true);
        check("select 1", false);
        check("select pg_size from lineitem", false);
        check("select current_user, count(*) from lineitem", false);
        check("select * from pg_my_own_table", false);
        check("insert into t select * from pg_class", false);
        assert!(recognise("select * from pg_class, lineitem").is_err());
    }

    #[test]
    fn deep_queries_are_refused() {
        let deep = format!("select 1 from pg_catalog.pg_class where {}", "not ".repeat(100_000));
        assert_eq!(recognise(&deep).unwrap_err().code, code::PROGRAM_LIMIT);
        for term in ["1 + ", "coalesce(1, 2) + ", "case when 1 then 2 end + "] {
            let sum = format!("select 1 from pg_catalog.pg_class where 1 = {}1", term.repeat(2500));
            assert_eq!(recognise(&sum).unwrap_err().code, code::PROGRAM_LIMIT, "{term}");
        }
        let parentheses = format!("select {}1 from pg_class", "(".repeat(1500));
        assert!(recognise(&parentheses).unwrap().is_none());
        let wide = format!("select case {} end from pg_class", "when relkind = 'r' then 1 ".repeat(2000));
        assert!(recognise(&wide).unwrap().is_some());
    }

    #[test]
    fn queries_that_take_long_to_parse_are_refused() {
        for (open, close) in [("abs(", ")"), ("cast(", " as int)"), ("a in (", ")"), ("array[", "]")] {
            for close in [close, "", "!"] {
                let sql = format!("select {}1{} from pg_catalog.pg_class", open.repeat(50), close.repeat(50));
                assert_eq!(recognise(&sql).unwrap_err().code, code::PROGRAM_LIMIT, "{sql}");
            }
        }
        let tables = format!("select * from {}pg_catalog.pg_class", "((( select 1 from ".repeat(15));
        assert_eq!(recognise(&tables).unwrap_err().code, code::PROGRAM_LIMIT);
    }

    #[test]
    fn parameters_have_the_types_of_what_they_are_compared_with() {
        let sql =
            "select relname from pg_class where oid = $1 and relkind = any ($2) and relname = $3::varchar";
        assert_eq!(recognise(sql).unwrap().unwrap().parameters, [oid::OID, 0, oid::VARCHAR]);
    }
}
