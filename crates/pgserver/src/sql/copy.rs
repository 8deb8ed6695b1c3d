//! `COPY ... TO STDOUT`: its parts and options.

use super::lexer::{Token, TokenKind, tokens, unquoted};
use crate::error::{PgError, PgResult, code};

/// The format of a copy's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyFormat {
    Text,
    Csv,
    Binary,
}

/// A copy to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyOut {
    /// The query whose rows are copied.
    pub(crate) query: String,
    pub(crate) format: CopyFormat,
    pub(crate) has_header: bool,
    pub(crate) delimiter: u8,
    /// What stands for NULL.
    pub(crate) null: String,
    pub(crate) quote: u8,
    pub(crate) escape: u8,
    /// Which columns are always in quotes.
    pub(crate) force_quote: ForceQuote,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ForceQuote {
    Columns(Vec<String>),
    All,
}

/// Options as they are written.
#[derive(Default)]
struct Options {
    format: Option<CopyFormat>,
    header: bool,
    delimiter: Option<String>,
    null: Option<String>,
    quote: Option<String>,
    escape: Option<String>,
    force_quote: Option<ForceQuote>,
}

struct Reader<'a> {
    sql: &'a str,
    tokens: Vec<Token>,
    at: usize,
}

fn syntax(sql: &str, token: Option<&Token>) -> PgError {
    let near = token.map_or("end of input", |token| &sql[token.start..token.end]);
    PgError::syntax(format!("syntax error at or near \"{near}\""))
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn text(&self, token: &Token) -> &'a str {
        &self.sql[token.start..token.end]
    }

    /// Takes the next token if it is this word.
    fn word(&mut self, word: &str) -> bool {
        let is =
            self.peek().is_some_and(|t| t.kind == TokenKind::Word && self.text(t).eq_ignore_ascii_case(word));
        self.at += usize::from(is);
        is
    }

    fn symbol(&mut self, symbol: char) -> bool {
        let is = self.peek().is_some_and(|token| token.kind == TokenKind::Symbol(symbol));
        self.at += usize::from(is);
        is
    }

    fn unexpected<T>(&self) -> PgResult<T> {
        Err(syntax(self.sql, self.peek()))
    }

    fn expect(&mut self, symbol: char) -> PgResult<()> {
        if self.symbol(symbol) { Ok(()) } else { self.unexpected() }
    }

    /// What stands between this parenthesis, which is taken, and its counterpart.
    fn parenthesised(&mut self) -> PgResult<&'a str> {
        self.expect('(')?;
        let first = self.at;
        let mut depth = 1;
        while let Some(token) = self.peek() {
            match token.kind {
                TokenKind::Symbol('(') => depth += 1,
                TokenKind::Symbol(')') => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                let end = self.tokens[self.at - 1].start;
                return Ok(self.sql[self.tokens[first].start.min(end)..end].trim());
            }
        }
        self.unexpected()
    }

    /// A name, without its quotes; lower case if it has none.
    fn name(&mut self) -> PgResult<String> {
        let Some(token) = self.peek().copied() else { return self.unexpected() };
        self.at += 1;
        match token.kind {
            TokenKind::Word => Ok(self.text(&token).to_lowercase()),
            TokenKind::QuotedName => Ok(unquoted(self.text(&token))),
            _ => Err(syntax(self.sql, Some(&token))),
        }
    }

    /// A string, or a word, quoted or not, or number in its place.
    fn value(&mut self) -> PgResult<String> {
        let Some(token) = self.peek().copied() else { return self.unexpected() };
        self.at += 1;
        match token.kind {
            TokenKind::String | TokenKind::QuotedName => Ok(unquoted(self.text(&token))),
            TokenKind::Word | TokenKind::Number => Ok(self.text(&token).to_lowercase()),
            _ => Err(syntax(self.sql, Some(&token))),
        }
    }

    fn columns(&mut self) -> PgResult<Vec<String>> {
        let mut names = vec![self.name()?];
        while self.symbol(',') {
            names.push(self.name()?);
        }
        Ok(names)
    }

    /// `(FORMAT csv, HEADER, ...)`.
    fn options(&mut self, options: &mut Options) -> PgResult<()> {
        self.expect('(')?;
        loop {
            let name = self.name()?;
            match name.as_str() {
                "format" => options.format = Some(format(&self.value()?)?),
                "header" => {
                    let is_alone = self.peek().is_none_or(|t| matches!(t.kind, TokenKind::Symbol(',' | ')')));
                    options.header = is_alone || boolean(&self.value()?)?;
                }
                "delimiter" => options.delimiter = Some(self.value()?),
                "null" => options.null = Some(self.value()?),
                "quote" => options.quote = Some(self.value()?),
                "escape" => options.escape = Some(self.value()?),
                "force_quote" if self.symbol('*') => options.force_quote = Some(ForceQuote::All),
                "force_quote" => {
                    self.expect('(')?;
                    options.force_quote = Some(ForceQuote::Columns(self.columns()?));
                    self.expect(')')?;
                }
                "encoding" => encoding(&self.value()?)?,
                _ => {
                    let message = format!("option \"{name}\" not recognized");
                    return Err(PgError::syntax(message));
                }
            }
            if self.symbol(')') {
                return Ok(());
            }
            self.expect(',')?;
        }
    }

    /// The options without parentheses, as they were before PostgreSQL 9.
    fn old_options(&mut self, options: &mut Options) -> PgResult<()> {
        while self.peek().is_some() {
            if self.word("binary") {
                options.format = Some(CopyFormat::Binary);
            } else if self.word("csv") {
                options.format = Some(CopyFormat::Csv);
            } else if self.word("header") {
                options.header = true;
            } else if self.word("delimiter") || self.word("delimiters") {
                self.word("as");
                options.delimiter = Some(self.value()?);
            } else if self.word("null") {
                self.word("as");
                options.null = Some(self.value()?);
            } else if self.word("quote") {
                self.word("as");
                options.quote = Some(self.value()?);
            } else if self.word("escape") {
                self.word("as");
                options.escape = Some(self.value()?);
            } else if self.word("encoding") {
                encoding(&self.value()?)?;
            } else if self.word("force") {
                if !self.word("quote") {
                    return self.unexpected();
                }
                options.force_quote = Some(if self.symbol('*') {
                    ForceQuote::All
                } else {
                    ForceQuote::Columns(self.columns()?)
                });
            } else {
                return self.unexpected();
            }
        }
        Ok(())
    }
}

fn format(name: &str) -> PgResult<CopyFormat> {
    match name.to_ascii_lowercase().as_str() {
        "text" => Ok(CopyFormat::Text),
        "csv" => Ok(CopyFormat::Csv),
        "binary" => Ok(CopyFormat::Binary),
        _ => {
            Err(PgError::new(code::INVALID_PARAMETER_VALUE, format!("COPY format \"{name}\" not recognized")))
        }
    }
}

fn boolean(value: &str) -> PgResult<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" | "match" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(PgError::syntax("header requires a Boolean value or \"match\"")),
    }
}

fn encoding(name: &str) -> PgResult<()> {
    match name.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
        "utf8" | "unicode" => Ok(()),
        _ => Err(PgError::unsupported(format!("encoding {name} is not supported")).hint("use UTF8")),
    }
}

/// One byte that may stand between values.
fn single(value: Option<String>, name: &str, default: u8) -> PgResult<u8> {
    match value.as_deref().map(str::as_bytes) {
        None => Ok(default),
        Some(&[byte]) if byte.is_ascii() && !matches!(byte, b'\n' | b'\r') => Ok(byte),
        Some(_) => Err(PgError::new(
            code::INVALID_PARAMETER_VALUE,
            format!("COPY {name} must be a single one-byte character"),
        )),
    }
}

/// Reads a COPY statement.
///
/// # Errors
/// For a copy from the client, or to anything but the client; for options that PostgreSQL refuses, too.
pub(crate) fn parse(sql: &str) -> PgResult<CopyOut> {
    let mut reader = Reader { sql, tokens: tokens(sql).collect(), at: 0 };
    if !reader.word("copy") {
        return reader.unexpected();
    }
    let mut options = Options::default();
    if reader.word("binary") {
        options.format = Some(CopyFormat::Binary);
    }
    let query = if reader.peek().is_some_and(|t| t.kind == TokenKind::Symbol('(')) {
        reader.parenthesised()?.to_owned()
    } else {
        let start = reader.peek().map_or(sql.len(), |token| token.start);
        reader.name()?;
        while reader.symbol('.') {
            reader.name()?;
        }
        let table = &sql[start..reader.tokens[reader.at - 1].end];
        let is_list = reader.peek().is_some_and(|t| t.kind == TokenKind::Symbol('('));
        let columns = if is_list { reader.parenthesised()? } else { "*" };
        format!("SELECT {columns} FROM {table}")
    };
    if reader.word("from") {
        return Err(PgError::unsupported("COPY FROM is not supported"));
    }
    if !reader.word("to") {
        return reader.unexpected();
    }
    if !reader.word("stdout") {
        return Err(PgError::unsupported("COPY to a file or a program is not supported")
            .hint("use COPY ... TO STDOUT"));
    }
    reader.word("with");
    if reader.peek().is_some_and(|t| t.kind == TokenKind::Symbol('(')) {
        reader.options(&mut options)?;
        if reader.peek().is_some() {
            return reader.unexpected();
        }
    } else {
        reader.old_options(&mut options)?;
    }
    options.complete(query)
}

impl Options {
    fn complete(self, query: String) -> PgResult<CopyOut> {
        let format = self.format.unwrap_or(CopyFormat::Text);
        let refuse = |what: &str| {
            Err(PgError::new(
                code::FEATURE_NOT_SUPPORTED,
                format!("cannot specify {what} in this COPY format"),
            ))
        };
        let is_csv = format == CopyFormat::Csv;
        if format == CopyFormat::Binary && (self.delimiter.is_some() || self.null.is_some() || self.header) {
            return refuse("DELIMITER, NULL or HEADER");
        }
        if !is_csv && (self.quote.is_some() || self.escape.is_some() || self.force_quote.is_some()) {
            return refuse("QUOTE, ESCAPE or FORCE_QUOTE");
        }
        let invalid = |message: &str| Err(PgError::new(code::INVALID_PARAMETER_VALUE, message));
        let delimiter = single(self.delimiter, "delimiter", if is_csv { b',' } else { b'\t' })?;
        // In text these bytes have a meaning after a backslash.
        if !is_csv
            && (delimiter.is_ascii_lowercase() || delimiter.is_ascii_digit() || b"\\.".contains(&delimiter))
        {
            return invalid("COPY delimiter cannot be a lower-case letter, a digit, a point or a backslash");
        }
        let quote = single(self.quote, "quote", b'"')?;
        if is_csv && quote == delimiter {
            return invalid("COPY delimiter and quote must be different");
        }
        let null = self.null.unwrap_or_else(|| if is_csv { "" } else { "\\N" }.into());
        if null.contains(['\n', '\r']) {
            return invalid("COPY null representation cannot use newline or carriage return");
        }
        if format != CopyFormat::Binary && null.as_bytes().contains(&delimiter) {
            return invalid("COPY delimiter must not appear in the NULL specification");
        }
        if is_csv && null.as_bytes().contains(&quote) {
            return invalid("CSV quote character must not appear in the NULL specification");
        }
        let force_quote = self.force_quote.unwrap_or(ForceQuote::Columns(Vec::new()));
        let escape = single(self.escape, "escape", quote)?;
        Ok(CopyOut { query, format, has_header: self.header, delimiter, null, quote, escape, force_quote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sql: &str, query: &str, format: CopyFormat) -> CopyOut {
        let copy = parse(sql).unwrap();
        assert_eq!((copy.query.as_str(), copy.format), (query, format), "{sql}");
        copy
    }

    #[test]
    fn clients_ask_for_copies_in_many_ways() {
        check("COPY (select 1, ')') TO STDOUT (FORMAT binary)", "select 1, ')'", CopyFormat::Binary);
        check("COPY (select 1) TO STDOUT (FORMAT \"binary\")", "select 1", CopyFormat::Binary);
        check("COPY (select * from t) TO STDOUT WITH BINARY", "select * from t", CopyFormat::Binary);
        check("copy t to stdout", "SELECT * FROM t", CopyFormat::Text);
        check(
            "copy \"S\".\"T\"(a, \"B\") to stdout csv",
            "SELECT a, \"B\" FROM \"S\".\"T\"",
            CopyFormat::Csv,
        );
        let copy = check(
            "COPY t TO STDOUT WITH (FORMAT csv, HEADER true, DELIMITER ';', NULL 'x', QUOTE '''', FORCE_QUOTE (a))",
            "SELECT * FROM t",
            CopyFormat::Csv,
        );
        assert_eq!(
            (copy.has_header, copy.delimiter, copy.null.as_str(), copy.quote),
            (true, b';', "x", b'\'')
        );
        assert_eq!(copy.force_quote, ForceQuote::Columns(vec!["a".into()]));
        let copy = check(
            "copy t to stdout delimiter as E'|' null as '' csv header",
            "SELECT * FROM t",
            CopyFormat::Csv,
        );
        assert!(copy.has_header && copy.delimiter == b'|');
    }

    #[test]
    fn other_copies_are_refused() {
        let check = |sql: &str, expected: &str| assert_eq!(parse(sql).unwrap_err().code, expected, "{sql}");
        check("copy t from stdin", code::FEATURE_NOT_SUPPORTED);
        check("copy t to '/etc/passwd'", code::FEATURE_NOT_SUPPORTED);
        check("copy t to program 'x'", code::FEATURE_NOT_SUPPORTED);
        check("copy (select 1 to stdout", code::SYNTAX_ERROR);
        check("copy t to stdout (format xml)", code::INVALID_PARAMETER_VALUE);
        check("copy t to stdout (format binary, header)", code::FEATURE_NOT_SUPPORTED);
        check("copy t to stdout (delimiter 'ab')", code::INVALID_PARAMETER_VALUE);
        check("copy t to stdout (delimiter 'a')", code::INVALID_PARAMETER_VALUE);
        check("copy t to stdout (", code::SYNTAX_ERROR);
        check("copy", code::SYNTAX_ERROR);
    }
}
