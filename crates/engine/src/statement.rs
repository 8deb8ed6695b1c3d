//! From text to a statement, of a size and depth that everything after it can bear.
//!
//! A statement is a tree, and so are the plans that are made of it. Nearly all that is done with them is recursive
//! (even dropping them), so a tree that is too deep ends the process. How deep it can be at most is
//! counted in the statement's tokens, without recursion, before anything is made of them.

use std::ops::ControlFlow;

use datafusion::common::config::SqlParserOptions;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{Ident, ObjectName, Query, Visit, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use crate::dialect::BoundedDialect;
use crate::error::{EngineError, Result};

/// Largest statement, in bytes.
pub const STATEMENT_BYTES_MAX: usize = 1 << 20;

/// Deepest statement. A level is what can put one part of a statement into another: an operator, a keyword, a parenthesis.
/// What stands side by side, between commas, does not add up. A condition `a = 1 OR a = 2 OR ...` has two levels a term.
pub const STATEMENT_DEPTH_MAX: usize = 2048;

/// Tables that a statement can read, each as often as it is named.
pub const STATEMENT_READS_MAX: usize = 1024;

/// Parses a statement.
///
/// # Errors
/// [`EngineError::Sql`] for what is no statement, or more than one; [`EngineError::TooComplex`] for what is too large
/// or too deep.
pub(crate) fn parse(sql: &str, options: &SqlParserOptions) -> Result<Statement> {
    if sql.len() > STATEMENT_BYTES_MAX {
        return Err(EngineError::TooComplex {
            message: format!("the statement has {} bytes, more than {STATEMENT_BYTES_MAX}", sql.len()),
            position: None,
            hint: Some("put long lists of values into a file, and serve it as a table".into()),
        });
    }
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location();
    let tokens = tokens.map_err(|e| {
        datafusion::error::DataFusionError::from(datafusion::sql::sqlparser::parser::ParserError::from(e))
    })?;
    check_depth(&tokens)?;
    let dialect = BoundedDialect::new(tokens.len());
    let statements = DFParserBuilder::new(tokens)
        .with_dialect(&dialect)
        .with_recursion_limit(options.recursion_limit.get())
        .build()?
        .parse_statements();
    if statements.is_err() && dialect.is_exhausted() {
        return Err(EngineError::TooComplex {
            message: "the statement has an error inside of many calls, or too many calls inside each other"
                .into(),
            position: None,
            hint: Some(
                "is a parenthesis missing? write calls that are deep in others as queries of their own"
                    .into(),
            ),
        });
    }
    let mut statements = statements?;
    match (statements.pop_front(), statements.is_empty()) {
        (Some(statement), true) => {
            check_reads(&statement)?;
            Ok(statement)
        }
        (None, _) => Err(only("there is no statement")),
        (Some(_), false) => Err(only("there is more than one statement")),
    }
}

/// Refuses what stands for more than [`STATEMENT_READS_MAX`] reads of tables.
fn check_reads(statement: &Statement) -> Result<()> {
    let mut reads = Reads { queries: vec![0], named: Vec::new() };
    let query = match statement {
        Statement::Statement(statement) => statement.visit(&mut reads),
        Statement::Explain(explain) => return check_reads(&explain.statement),
        // Nothing else is run.
        _ => ControlFlow::Continue(()),
    };
    match query {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(EngineError::TooComplex {
            message: format!(
                "the statement reads tables more than {STATEMENT_READS_MAX} times, each use of a WITH query included"
            ),
            position: None,
            hint: Some("fetch a part of the result into a file, and ask about that".into()),
        }),
    }
}

/// Counts the reads of tables in a query. A query of a WITH clause is planned again wherever it is named.
struct Reads {
    /// Of the queries that are being visited, from the outermost.
    queries: Vec<usize>,
    /// For each WITH clause that is being visited, its queries: where they are, their names, and their reads once known.
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
fn normalized(name: &Ident) -> String {
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
    }
}

/// What is between two parentheses, or outside of all.
#[derive(Clone, Copy, Default)]
struct Group {
    /// Levels that what comes next may be put on.
    levels: usize,
    /// Levels of its deepest part so far.
    deepest: usize,
    /// Levels that the set operations so far put on every later part.
    base: usize,
    /// In a list of relations a comma makes a join, in a list of WITH a query that may be built on those before.
    commas_nest: bool,
    in_with: bool,
}

impl Group {
    /// What comes next does not go on with what was before.
    fn begin_part(&mut self) {
        self.levels = self.base;
    }

    fn add(&mut self, levels: usize) {
        self.levels += levels;
        self.deepest = self.deepest.max(self.levels);
    }
}

/// Refuses what may be deeper than [`STATEMENT_DEPTH_MAX`].
fn check_depth(tokens: &[TokenWithSpan]) -> Result<()> {
    let mut outer: Vec<Group> = Vec::new();
    // Levels of all outer groups.
    let mut above = 0;
    let mut group = Group::default();
    // Names that were joined by periods so far: a schema, a table, a column.
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
                        // What was before becomes one side of it.
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

/// Stack that a level of a statement is expected to take at most, without optimisation: statements of 1,000 and 2,000 levels
/// were run, and made the whole process grow by less (docs/decisions/0015-depth-of-statements.md).
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
    fn what_is_deep_is_refused_and_what_is_long_is_not() {
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

    /// Without a bound each of them takes the parser longer than anybody lives.
    #[test]
    fn what_would_be_tried_again_and_again_is_given_up() {
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
    fn the_first_place_that_is_too_deep_is_named() {
        let sql = format!("select\n  1{}", "+1".repeat(STATEMENT_DEPTH_MAX + 100));
        let Some(EngineError::TooComplex { position, .. }) = refused(&sql) else { panic!("not refused") };
        // The word SELECT is a level, too.
        assert_eq!(position, Some((2, 4 + 2 * (STATEMENT_DEPTH_MAX as u32 - 1))));
    }

    #[test]
    fn more_text_than_a_statement_has_is_refused() {
        let error = refused(&format!("select '{}'", "x".repeat(STATEMENT_BYTES_MAX))).unwrap();
        assert!(error.to_string().contains("1048576"), "{error}");
    }

    #[test]
    fn queries_that_double_at_each_name_are_refused() {
        // However the names are written, and whatever else is called nearly so.
        for (decoy, quote) in [("", ""), ("", "\""), ("\"Q0\" as (select 1 as a), ", "")] {
            let mut sql = format!("with {decoy}q0 as (select 1 as a)");
            for n in 0..60 {
                let name = format!("{quote}q{n}{quote}");
                sql += &format!(", q{} as (select x.a from {name} x, {name} y)", n + 1);
            }
            let error = refused(&(sql + " select * from q60")).unwrap();
            assert!(error.to_string().contains("1024 times"), "{error}");
        }
        // Named often, and each time small.
        let sql = format!("with q as (select 1 as a) select 1 from q{}", ", q".repeat(500));
        assert!(parse(&sql, &SqlParserOptions::default()).is_ok());
    }

    #[test]
    fn one_statement_at_a_time() {
        for (sql, words) in [("", "no statement"), ("select 1; select 2", "more than one")] {
            let error = parse(sql, &SqlParserOptions::default()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
