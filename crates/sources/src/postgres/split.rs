//! Reads large tables by block ranges, over several connections.
//!
//! A statement is split only if its parts certainly give the same rows: a plain
//! select whose plan is just a sequential scan of the one ordinary table it names.
//! The text is parsed by a parser that is not the server's, so the server is asked
//! whether the statement that is put together again has the same plan.

use serde_json::Value;
use sqlparser::ast::{GroupByExpr, SetExpr, Statement, TableFactor};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, Tokenizer};

use super::connection::Connection;
use super::quote_literal;
use crate::Result;

/// Smaller tables are not worth another connection.
const TABLE_BYTES_MIN: u64 = 8 << 20;
/// Maximum size of a part, so that the connections end at about the same time.
const PART_BYTES_MAX: u64 = 32 << 20;
/// Parts for each connection, if the table is large enough.
const PARTS_PER_STREAM: u64 = 8;
/// Minimum size of a part: each costs a round trip.
const PART_BYTES_MIN: u64 = 2 << 20;
/// Statements with more parts than this, or deeper parentheses, are not parsed: the parser recurses, and it
/// backtracks, twice as often for each nested call.
const PARTS_MAX: usize = 512;
const PARENTHESES_MAX: usize = 8;
/// Older servers read the whole table for a condition on `ctid`.
const VERSION_MIN: u32 = 140_000;

/// A select from one table, parsed into its clauses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlainSelect {
    /// The table as the statement names it.
    pub(super) relation: String,
    /// `SELECT ... FROM ...`.
    pub(super) head: String,
    /// The condition after `WHERE`.
    pub(super) filter: Option<String>,
}

/// Block ranges of a table, all of one snapshot.
#[derive(Debug)]
pub(super) struct Parts {
    select: PlainSelect,
    part_blocks: u64,
    count: u32,
    /// The id of the snapshot, which the other connections import.
    pub(super) snapshot: String,
    /// The server's estimate of the rows.
    pub(super) rows_estimate: Option<u64>,
}

impl Parts {
    /// Number of parts.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The `ctid` at which part `at` begins.
    pub(super) fn start(&self, at: u32) -> String {
        format!("({},0)", u64::from(at) * self.part_blocks)
    }

    /// The statement that reads part `at`, if there is one. The last part has no upper bound.
    pub(super) fn sql(&self, at: u32) -> Option<String> {
        let start = u64::from(at) * self.part_blocks;
        let low = format!("ctid >= '({start},0)'::tid");
        match at.checked_add(1)? {
            next if next < self.count => {
                let end = start + self.part_blocks;
                Some(self.select.sql(Some(&format!("{low} AND ctid < '({end},0)'::tid"))))
            }
            next if next == self.count => Some(self.select.sql(Some(&low))),
            _ => None,
        }
    }
}

impl PlainSelect {
    /// Parses `sql` if it looks like a plain select from one table.
    pub(super) fn parse(sql: &str) -> Option<Self> {
        let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize().ok()?;
        if !is_simple(&tokens) {
            return None;
        }
        let statements = Parser::new(&PostgreSqlDialect {}).with_tokens(tokens).parse_statements().ok()?;
        let [Statement::Query(query)] = <[Statement; 1]>::try_from(statements).ok()? else { return None };
        let bare = query.with.is_none()
            && query.order_by.is_none()
            && query.limit_clause.is_none()
            && query.fetch.is_none()
            && query.locks.is_empty();
        let SetExpr::Select(mut select) = *query.body else { return None };
        let grouped = match &select.group_by {
            GroupByExpr::Expressions(expressions, modifiers) => {
                !(expressions.is_empty() && modifiers.is_empty())
            }
            GroupByExpr::All(_) => true,
        };
        if !bare || grouped || select.distinct.is_some() || select.having.is_some() || select.into.is_some() {
            return None;
        }
        let [from] = &*select.from else { return None };
        let TableFactor::Table { name, args: None, sample: None, .. } = &from.relation else { return None };
        if !from.joins.is_empty() {
            return None;
        }
        let relation = name.to_string();
        let filter = select.selection.take().map(|condition| condition.to_string());
        Some(Self { relation, head: select.to_string(), filter })
    }

    /// The statement, with one more condition if given.
    pub(super) fn sql(&self, more: Option<&str>) -> String {
        // The line break ends a comment at the end of the condition.
        match (self.filter.as_deref(), more) {
            (None, None) => self.head.clone(),
            (Some(filter), None) => format!("{} WHERE ({filter}\n)", self.head),
            (None, Some(more)) => format!("{} WHERE {more}", self.head),
            (Some(filter), Some(more)) => format!("{} WHERE ({filter}\n) AND {more}", self.head),
        }
    }
}

/// Decides whether `sql` can be read in parts, and exports the snapshot if so.
/// `select` is `sql`, parsed. An error leaves the transaction aborted.
pub(super) async fn plan(
    connection: &mut Connection,
    sql: &str,
    select: PlainSelect,
    streams: usize,
) -> Result<Option<Parts>> {
    let Some(functions) = functions(sql) else { return Ok(None) };
    if connection.version() < VERSION_MIN {
        return Ok(None);
    }
    let relation = quote_literal(&select.relation);
    let rows = connection
        .simple(&format!(
            "SELECT pg_catalog.pg_relation_size(c.oid), pg_catalog.current_setting('block_size'), \
             n.nspname, c.relname \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_catalog.pg_am a ON a.oid = c.relam \
             WHERE c.oid = pg_catalog.to_regclass({relation}) AND c.relkind IN ('r', 'm') \
             AND c.relpersistence <> 't' AND a.amname = 'heap'"
        ))
        .await?;
    let Some([Some(bytes), Some(block), Some(schema), Some(table)]) = rows.first().map(Vec::as_slice) else {
        return Ok(None);
    };
    let (Ok(bytes), Ok(block_bytes)) = (bytes.parse::<u64>(), block.parse::<u64>()) else { return Ok(None) };
    if bytes < TABLE_BYTES_MIN || block_bytes == 0 {
        return Ok(None);
    }

    // A function that depends on more than its arguments may return something else in another session.
    if !functions.is_empty() {
        let names = functions.iter().map(|name| quote_literal(name)).collect::<Vec<_>>().join(", ");
        let volatile = connection
            .simple(&format!(
                "SELECT FROM pg_catalog.pg_proc WHERE proname IN ({names}) AND provolatile <> 'i' LIMIT 1"
            ))
            .await?;
        if !volatile.is_empty() {
            return Ok(None);
        }
    }

    connection.simple("SET LOCAL max_parallel_workers_per_gather = 0").await?;
    let given = explain(connection, sql).await?;
    let copy = explain(connection, &select.sql(None)).await?;
    connection.simple("SET LOCAL max_parallel_workers_per_gather TO DEFAULT").await?;
    let same = ["Node Type", "Schema", "Relation Name", "Alias", "Output", "Filter"]
        .iter()
        .all(|key| given.get(key) == copy.get(key));
    let plain = given.get("Node Type").is_some_and(|node| node == "Seq Scan")
        && given.get("Schema").is_some_and(|name| name == schema)
        && given.get("Relation Name").is_some_and(|name| name == table)
        && given.get("Plans").is_none();
    if !same || !plain {
        return Ok(None);
    }

    let rows = connection.simple("SELECT pg_catalog.pg_export_snapshot()").await?;
    let Some([Some(snapshot)]) = rows.first().map(Vec::as_slice) else { return Ok(None) };
    let part_bytes = (bytes / (streams as u64 * PARTS_PER_STREAM)).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
    let part_blocks = (part_bytes / block_bytes).max(1);
    let Ok(count) = u32::try_from(bytes.div_ceil(block_bytes).div_ceil(part_blocks)) else { return Ok(None) };
    Ok(Some(Parts {
        select,
        part_blocks,
        count,
        snapshot: snapshot.clone(),
        rows_estimate: given.get("Plan Rows").and_then(Value::as_u64),
    }))
}

/// The root of the plan of `sql`.
async fn explain(connection: &mut Connection, sql: &str) -> Result<Value> {
    let rows = connection.simple(&format!("EXPLAIN (VERBOSE, FORMAT JSON) {sql}")).await?;
    let text: String = rows.iter().filter_map(|row| row.first()?.as_deref()).collect();
    let mut plan = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(plan.pointer_mut("/0/Plan").map(Value::take).unwrap_or_default())
}

/// Whether a statement of these tokens is parsed quickly and with little recursion.
fn is_simple(tokens: &[Token]) -> bool {
    let (mut parts, mut open) = (0, 0_usize);
    tokens.iter().all(|token| {
        match token {
            Token::Comma
            | Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Whitespace(_)
            | Token::EOF => {}
            Token::Word(word) if word.keyword == Keyword::NoKeyword => {}
            Token::LParen => open += 1,
            Token::RParen => open = open.saturating_sub(1),
            _ => parts += 1,
        }
        parts <= PARTS_MAX && open <= PARENTHESES_MAX
    })
}

/// Names in `sql` that may be functions; `None` if a word that is not a function
/// depends on the session.
fn functions(sql: &str) -> Option<Vec<String>> {
    let tokens = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize().ok()?;
    let mut names = Vec::new();
    let mut last = None;
    for token in &tokens {
        match token {
            Token::Whitespace(_) => continue,
            Token::LParen => names.extend(last.take()),
            Token::Word(word) => {
                let name = match word.quote_style {
                    Some(_) => word.value.clone(),
                    None => word.value.to_lowercase(),
                };
                let session = ["current_", "session_", "local"].iter().any(|start| name.starts_with(start));
                if word.quote_style.is_none() && (session || name == "user") {
                    return None;
                }
                last = Some(name);
            }
            Token::SingleQuotedString(text) => {
                let text = text.trim().to_lowercase();
                if ["now", "today", "tomorrow", "yesterday"].iter().any(|word| text.starts_with(word)) {
                    return None;
                }
                last = None;
            }
            _ => last = None,
        }
    }
    names.sort_unstable();
    names.dedup();
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_are_slow_to_parse_are_not_split() {
        let plain = format!("SELECT {}a FROM t WHERE a IN ({}1)", "a, ".repeat(1000), "2, ".repeat(10_000));
        assert!(PlainSelect::parse(&plain).is_some());
        let chain = format!("SELECT 1{} FROM t", "+1".repeat(60_000));
        let calls = |count| format!("SELECT {}a{} FROM t", "abs(".repeat(count), ")".repeat(count));
        assert!(PlainSelect::parse(&calls(8)).is_some());
        for sql in [chain, calls(40), format!("SELECT {}1", "cast(".repeat(40))] {
            assert_eq!(PlainSelect::parse(&sql), None);
        }
    }

    #[test]
    fn plain_selects_are_parsed() {
        let check = |sql: &str, copy: &str| {
            let select = PlainSelect::parse(sql).unwrap_or_else(|| panic!("{sql}"));
            assert_eq!(select.sql(None), copy);
        };
        check("select * from t", "SELECT * FROM t");
        check(
            "select a, b+1 as c from s.\"T\" x where x.a > 3 or b;",
            "SELECT a, b + 1 AS c FROM s.\"T\" x WHERE (x.a > 3 OR b\n)",
        );
        let select = PlainSelect::parse("select a from t where a or b").unwrap();
        assert_eq!(select.sql(Some("c")), "SELECT a FROM t WHERE (a OR b\n) AND c");
    }

    #[test]
    fn other_statements_are_not_split() {
        for sql in [
            "select 1",
            "select * from a, b",
            "select * from a join b using (x)",
            "select * from a order by 1",
            "select * from a limit 5",
            "select distinct x from a",
            "select x from a group by x",
            "select count(*) from a having count(*) > 1",
            "select * from f(1)",
            "select * from a tablesample system (5)",
            "select * from a for share",
            "with a as (select 1) select * from a",
            "select * from a union all select * from a",
            "select * from (select * from a) b",
            "show all",
            "select 1; select 2",
        ] {
            assert_eq!(PlainSelect::parse(sql), None, "{sql}");
        }
    }

    #[test]
    fn words_that_depend_on_the_session_are_found() {
        assert_eq!(
            functions("select Lower(a), \"F\" (b) from t where c in (1)").unwrap(),
            ["F", "in", "lower"]
        );
        for sql in
            ["select current_date from t", "select a from t where b < 'now'::date", "select user from t"]
        {
            assert_eq!(functions(sql), None, "{sql}");
        }
    }

    #[test]
    fn parts_cover_all_blocks_once() {
        let select = PlainSelect::parse("select a from t").unwrap();
        let parts =
            Parts { select, part_blocks: 100, count: 3, snapshot: String::new(), rows_estimate: None };
        let all: Vec<_> = (0..).map_while(|at| parts.sql(at)).collect();
        assert_eq!(
            all,
            [
                "SELECT a FROM t WHERE ctid >= '(0,0)'::tid AND ctid < '(100,0)'::tid",
                "SELECT a FROM t WHERE ctid >= '(100,0)'::tid AND ctid < '(200,0)'::tid",
                "SELECT a FROM t WHERE ctid >= '(200,0)'::tid",
            ]
        );
    }
}
