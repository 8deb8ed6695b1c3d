//! Parses statements, and limits their size and depth to what later stages can handle.
//!
//! A statement is a tree, and so are the plans made from it. Nearly everything done with these
//! trees is recursive (even dropping them), so a tree that is too deep overflows the stack and ends
//! the process. So an upper bound of the depth is counted in the statement's tokens, without
//! recursion, before they are parsed.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion::common::config::SqlParserOptions;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{Ident, ObjectName, Query, Visit, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};
use lightship_wire::control::Reason;

use crate::dialect::BoundedDialect;
use crate::error::{EngineError, Result};
use crate::parameters;

/// Maximum size of a statement, in bytes.
pub const STATEMENT_BYTES_MAX: usize = 1 << 20;

/// Maximum depth of a statement, in levels. Each token that can nest one part of a statement in
/// another is a level: an operator, a keyword, a parenthesis. Parts separated by commas do not add
/// up. A condition `a = 1 OR a = 2 OR ...` has two levels per term.
pub const STATEMENT_DEPTH_MAX: usize = 2048;

/// Maximum number of table reads in a statement. A table counts each time it is named.
pub const STATEMENT_READS_MAX: usize = 1024;

/// Drops `COLLATE "C"`, and that of PostgreSQL's other names for it: texts are compared by their bytes anyway, and clients of
/// PostgreSQL (DuckDB) say so with conditions that they pass on. DataFusion knows no collations.
fn drop_collations(tokens: &mut Vec<TokenWithSpan>) {
    let is_space = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    let is_bytewise = |token: &TokenWithSpan| {
        let Token::Word(word) = &token.token else { return false };
        word.quote_style == Some('"') && matches!(word.value.as_str(), "C" | "POSIX" | "ucs_basic")
    };
    let is_collate = |token: &TokenWithSpan| matches!(&token.token, Token::Word(word) if word.keyword == Keyword::COLLATE && word.quote_style.is_none());
    let mut dropped = BTreeSet::new();
    let mut words = tokens.iter().enumerate().filter(|(_, token)| !is_space(token)).peekable();
    while let Some((at, token)) = words.next() {
        if is_collate(token)
            && let Some((name, _)) = words.next_if(|(_, next)| is_bytewise(next))
        {
            dropped.extend([at, name]);
        }
    }
    if !dropped.is_empty() {
        let mut at = 0..;
        tokens.retain(|_| at.next().is_none_or(|at| !dropped.contains(&at)));
    }
}

/// Parses a statement.
///
/// # Errors
/// [`EngineError::Sql`] unless the text is one valid statement; [`EngineError::TooComplex`] for a
/// statement that is too large or too deep.
pub(crate) fn parse(sql: &str, options: &SqlParserOptions) -> Result<Statement> {
    if sql.len() > STATEMENT_BYTES_MAX {
        return Err(EngineError::TooComplex {
            message: format!("the statement has {} bytes; the limit is {STATEMENT_BYTES_MAX}", sql.len()),
            position: None,
            hint: Some("put long lists of values into a file, and serve it as a table".into()),
        });
    }
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location();
    let mut tokens = tokens.map_err(|e| {
        datafusion::error::DataFusionError::from(datafusion::sql::sqlparser::parser::ParserError::from(e))
    })?;
    check_depth(&tokens)?;
    parameters::number(&mut tokens)?;
    drop_collations(&mut tokens);
    let dialect = BoundedDialect::new(tokens.len());
    let statements = DFParserBuilder::new(tokens)
        .with_dialect(&dialect)
        .with_recursion_limit(options.recursion_limit.get())
        .build()?
        .parse_statements();
    if statements.is_err() && dialect.is_exhausted() {
        return Err(EngineError::TooComplex {
            message: "the statement has too many nested calls, or a syntax error inside nested calls".into(),
            position: None,
            hint: Some("check for a missing parenthesis, or move deeply nested calls to subqueries".into()),
        });
    }
    let mut statements = statements?;
    match (statements.pop_front(), statements.is_empty()) {
        (Some(statement), true) => {
            check_reads(&statement)?;
            Ok(statement)
        }
        (None, _) => Err(only("the statement is empty")),
        (Some(_), false) => Err(only("expected one statement, found more than one")),
    }
}

/// Refuses statements with more than [`STATEMENT_READS_MAX`] reads of tables.
fn check_reads(statement: &Statement) -> Result<()> {
    let mut reads = Reads { queries: vec![0], named: Vec::new() };
    let query = match statement {
        Statement::Statement(statement) => statement.visit(&mut reads),
        Statement::Explain(explain) => return check_reads(&explain.statement),
        // No other statements are run.
        _ => ControlFlow::Continue(()),
    };
    match query {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EngineError::TooComplex {
            message: format!(
                "the statement reads tables more than {STATEMENT_READS_MAX} times; each use of a WITH query counts"
            ),
            position: None,
            hint: Some("fetch a part of the result into a file, and query that file".into()),
        }),
    }
}

/// Counts the reads of tables in a query. A query of a WITH clause is planned again wherever it is named.
struct Reads {
    /// Reads of the queries that are being visited, from the outermost.
    queries: Vec<usize>,
    /// For each WITH clause that is being visited, its queries: their address, name, and reads once known.
    named: Vec<Vec<(*const Query, String, Option<usize>)>>,
}

impl Reads {
    fn add(&mut self, reads: usize) -> ControlFlow<()> {
        if let Some(query) = self.queries.last_mut() {
            *query = query.saturating_add(reads);
            if *query > STATEMENT_READS_MAX {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for Reads {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.queries.push(0);
        let named = query.with.iter().flat_map(|with| &with.cte_tables);
        let named = named
            .map(|named| (std::ptr::from_ref(named.query.as_ref()), normalized(&named.alias.name), None));
        self.named.push(named.collect());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let reads = self.queries.pop().unwrap_or(0);
        self.named.pop();
        let known = self
            .named
            .last_mut()
            .and_then(|named| named.iter_mut().find(|(place, ..)| std::ptr::eq(*place, query)));
        match known {
            Some((_, _, known)) => {
                *known = Some(reads);
                ControlFlow::Continue(())
            }
            None => self.add(reads),
        }
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let parts: Vec<String> =
            relation.0.iter().filter_map(|part| part.as_ident()).map(normalized).collect();
        let name = parts.join(".");
        let named =
            self.named.iter().rev().flatten().find(|(_, known, reads)| *known == name && reads.is_some());
        let reads = named.and_then(|(_, _, reads)| *reads).unwrap_or(1).max(1);
        self.add(reads)
    }
}

/// A name as the planner compares it.
pub(crate) fn normalized(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_ascii_lowercase(),
    }
}

fn only(message: &str) -> EngineError {
    EngineError::Sql {
        message: message.into(),
        position: None,
        hint: Some("send one SELECT at a time".into()),
        reason: Some(Reason::Syntax),
    }
}

/// The tokens between two parentheses, or outside all parentheses.
#[derive(Clone, Copy, Default)]
struct Group {
    /// Depth, inside the group, at which the next token may be.
    levels: usize,
    /// Depth of its deepest part so far.
    deepest: usize,
    /// Depth that the set operations so far add to every later part.
    base: usize,
    /// Commas add levels: in FROM a comma makes a join, in WITH it begins a query that may read
    /// from earlier ones.
    commas_nest: bool,
    in_with: bool,
}

impl Group {
    /// Begins a part that is not nested in the previous one.
    fn begin_part(&mut self) {
        self.levels = self.base;
    }

    fn add(&mut self, levels: usize) {
        self.levels += levels;
        self.deepest = self.deepest.max(self.levels);
    }
}

/// Refuses statements that may be deeper than [`STATEMENT_DEPTH_MAX`].
fn check_depth(tokens: &[TokenWithSpan]) -> Result<()> {
    let mut outer: Vec<Group> = Vec::new();
    // Levels of all outer groups.
    let mut above = 0;
    let mut group = Group::default();
    // Periods in the current name. Two add no level: schema.table.column.
    let mut periods = 0;
    for TokenWithSpan { token, span } in tokens {
        match token {
            Token::Period => {
                periods += 1;
                group.add(usize::from(periods > 2));
                continue;
            }
            Token::Word(_) if periods > 0 => {}
            _ => periods = 0,
        }
        match token {
            Token::Comma if group.commas_nest => group.add(1),
            Token::Comma | Token::SemiColon => group.begin_part(),
            Token::LParen | Token::LBracket | Token::LBrace => {
                group.add(1);
                above += group.levels;
                outer.push(std::mem::take(&mut group));
            }
            Token::RParen | Token::RBracket | Token::RBrace => {
                if let Some(parent) = outer.pop() {
                    let closed = std::mem::replace(&mut group, parent);
                    above -= group.levels;
                    if group.in_with {
                        // Later queries may read from this one.
                        group.add(closed.deepest);
                    } else {
                        group.deepest = group.deepest.max(group.levels + closed.deepest);
                    }
                }
            }
            Token::Word(word) => match word.keyword {
                Keyword::NoKeyword => {}
                keyword => {
                    group.add(1);
                    match keyword {
                        // Everything before it becomes one of its sides.
                        Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT | Keyword::MINUS => {
                            group.base = group.deepest;
                            group.levels = group.base;
                        }
                        Keyword::FROM => (group.commas_nest, group.in_with) = (true, false),
                        Keyword::WITH => (group.commas_nest, group.in_with) = (true, true),
                        Keyword::SELECT
                        | Keyword::VALUES
                        | Keyword::WHERE
                        | Keyword::GROUP
                        | Keyword::ORDER
                        | Keyword::HAVING
                        | Keyword::WINDOW
                        | Keyword::QUALIFY => (group.commas_nest, group.in_with) = (false, false),
                        _ => {}
                    }
                }
            },
            Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::DoubleQuotedString(_)
            | Token::NationalStringLiteral(_)
            | Token::EscapedStringLiteral(_)
            | Token::HexStringLiteral(_)
            | Token::Whitespace(_)
            | Token::EOF => {}
            _ => group.add(1),
        }
        if above + group.levels > STATEMENT_DEPTH_MAX {
            return Err(EngineError::TooComplex {
                message: format!("the statement is nested more than {STATEMENT_DEPTH_MAX} levels deep"),
                position: Some((span.start.line as u32, span.start.column as u32)),
                hint: Some("use IN (...) for a chain of OR, and VALUES for a chain of UNION ALL".into()),
            });
        }
    }
    Ok(())
}

/// Upper estimate of the stack that a level of a statement takes in builds without optimisation.
/// Statements of 1,000 and 2,000 levels made the whole process grow by less per level
/// (docs/decisions/0015-depth-of-statements.md).
const LEVEL_STACK_BYTES: usize = 96 << 10;

const _: () = assert!(STATEMENT_DEPTH_MAX * LEVEL_STACK_BYTES <= crate::threads::STACK_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(sql: &str) -> Option<EngineError> {
        match parse(sql, &SqlParserOptions::default()) {
            Err(error @ EngineError::TooComplex { .. }) => Some(error),
            _ => None,
        }
    }

    #[test]
    fn deep_statements_are_refused_and_long_ones_are_not() {
        let many = STATEMENT_DEPTH_MAX;
        let deep = [
            format!("select 1{}", "+1".repeat(many)),
            format!("select {}1", "not ".repeat(many)),
            format!("select {}1", "- ".repeat(many)),
            format!("select 1{}", "::int".repeat(many)),
            format!("select a{}", ".b".repeat(many + 2)),
            format!("select a{}", "[1]".repeat(many)),
            format!("select {}1{}", "(".repeat(many), ")".repeat(many)),
            format!("select {}1{}", "abs(".repeat(many), ")".repeat(many)),
            format!("select 1::{}int{}", "array<".repeat(many), ">".repeat(many)),
            format!("select 1{}", " union all select 1".repeat(many)),
            format!("select 1, 2{}", " union all select 1, 2".repeat(many)),
            format!("select 1, 2{}", " except select 1, 2".repeat(many)),
            format!("select * from t{}", ", t".repeat(many)),
            format!("select * from t{}", " join t on true".repeat(many)),
            format!("with a as (select 1){} select 1", ", b as (select 1)".repeat(many)),
            format!("{} select 1", "explain ".repeat(many)),
            format!("select case{} end", " when true then 1".repeat(many)),
        ];
        for sql in &deep {
            let error = refused(sql).unwrap_or_else(|| panic!("{}", &sql[..60]));
            assert!(error.to_string().contains("levels deep"), "{error}: {}", &sql[..60]);
        }
        let long = [
            format!("select a in ({}1)", "1, ".repeat(20 * many)),
            format!("select {}1", "a + 1, ".repeat(20 * many)),
            format!("values (1, 2){}", ", (1, 2)".repeat(20 * many)),
            format!("select a from t where a = 1{}", " or a = 1".repeat(many / 2 - 10)),
        ];
        for sql in &long {
            assert!(parse(sql, &SqlParserOptions::default()).is_ok(), "{}", &sql[..60]);
        }
    }

    /// Without a limit, parsing any of them would take longer than a lifetime.
    #[test]
    fn exponential_backtracking_is_cut_off() {
        let calls =
            ["cast(", "position(", "substring(", "trim(", "extract(", "convert(", "not (", "case when ("];
        for call in calls {
            for end in ["1", "1 from", ")", ""] {
                let sql = format!("select {}{end}", call.repeat(45));
                assert!(parse(&sql, &SqlParserOptions::default()).is_err(), "{sql}");
            }
        }
        assert!(refused(&format!("select {}1", "cast(".repeat(45))).is_some());
    }

    #[test]
    fn the_error_names_the_first_position_that_is_too_deep() {
        let sql = format!("select\n  1{}", "+1".repeat(STATEMENT_DEPTH_MAX + 100));
        let Some(EngineError::TooComplex { position, .. }) = refused(&sql) else { panic!("not refused") };
        // The keyword SELECT is a level, too.
        assert_eq!(position, Some((2, 4 + 2 * (STATEMENT_DEPTH_MAX as u32 - 1))));
    }

    #[test]
    fn a_statement_that_is_too_large_is_refused() {
        let error = refused(&format!("select '{}'", "x".repeat(STATEMENT_BYTES_MAX))).unwrap();
        assert!(error.to_string().contains("1048576"), "{error}");
    }

    #[test]
    fn with_queries_that_double_their_reads_are_refused() {
        // Regardless of quotes, and of another query with a similar name.
        for (decoy, quote) in [("", ""), ("", "\""), ("\"Q0\" as (select 1 as a), ", "")] {
            let mut sql = format!("with {decoy}q0 as (select 1 as a)");
            for n in 0..60 {
                let name = format!("{quote}q{n}{quote}");
                sql += &format!(", q{} as (select x.a from {name} x, {name} y)", n + 1);
            }
            let error = refused(&(sql + " select * from q60")).unwrap();
            assert!(error.to_string().contains("1024 times"), "{error}");
        }
        // A small query may be named often.
        let sql = format!("with q as (select 1 as a) select 1 from q{}", ", q".repeat(500));
        assert!(parse(&sql, &SqlParserOptions::default()).is_ok());
    }

    #[test]
    fn only_a_single_statement_is_accepted() {
        for (sql, words) in [("", "is empty"), ("select 1; select 2", "more than one")] {
            let error = parse(sql, &SqlParserOptions::default()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn collations_that_compare_bytes_are_dropped() {
        let parsed = |sql: &str| parse(sql, &SqlParserOptions::default()).unwrap().to_string();
        let plain = parsed("select a from t where a > 'x' order by a");
        for collation in ["\"C\"", "\"POSIX\"", "\"ucs_basic\""] {
            let sql =
                format!("select a from t where a > 'x' collate  {collation} order by a COLLATE {collation}");
            assert_eq!(parsed(&sql), plain);
        }
        for other in ["a collate \"de_DE\"", "\"collate\"", "'collate \"C\"'", "a collate c"] {
            let sql = format!("SELECT {other} FROM t");
            assert_eq!(parsed(&sql).to_lowercase(), sql.to_lowercase());
        }
    }
}
