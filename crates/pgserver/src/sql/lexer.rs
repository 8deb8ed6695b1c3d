//! Splits SQL into tokens by PostgreSQL's rules, without judging it.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A keyword or a name without quotes.
    Word,
    /// A name in double quotes.
    QuotedName,
    /// A string: in single quotes, with a prefix or not, or in dollar quotes.
    String,
    Number,
    /// `$1`.
    Parameter,
    /// One character of anything else.
    Symbol(char),
}

/// A token, as bytes of the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The tokens of a text, without spaces and comments. A string or comment without an end reaches to the end of the text.
pub(crate) fn tokens(sql: &str) -> impl Iterator<Item = Token> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        at = skip_spaces(sql.as_bytes(), at);
        let (kind, end) = token(sql, at)?;
        let token = Token { kind, start: at, end };
        at = end;
        Some(token)
    })
}

/// The first byte at or after `at` that belongs to no space or comment.
fn skip_spaces(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match bytes.get(at..) {
            Some([b, ..]) if b.is_ascii_whitespace() || *b == 0x0b => at += 1,
            Some([b'-', b'-', ..]) => {
                at = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |length| at + length);
            }
            Some([b'/', b'*', ..]) => at = end_of_comment(bytes, at + 2),
            _ => return at,
        }
    }
}

/// Comments are nested.
fn end_of_comment(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 1;
    while depth > 0 {
        match bytes.get(at..) {
            Some([b'*', b'/', ..]) => (depth, at) = (depth - 1, at + 2),
            Some([b'/', b'*', ..]) => (depth, at) = (depth + 1, at + 2),
            Some([_, ..]) => at += 1,
            _ => return bytes.len(),
        }
    }
    at
}

fn is_word_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_' || b >= 0x80
}

fn is_word(b: u8) -> bool {
    is_word_start(b) || b.is_ascii_digit() || b == b'$'
}

fn token(sql: &str, at: usize) -> Option<(TokenKind, usize)> {
    let bytes = sql.as_bytes();
    let run = |from: usize, belongs: fn(u8) -> bool| {
        from + bytes[from..].iter().position(|&b| !belongs(b)).unwrap_or(bytes.len() - from)
    };
    let next = bytes.get(at + 1).copied();
    Some(match *bytes.get(at)? {
        b'\'' => (TokenKind::String, end_of_quotes(bytes, at + 1, b'\'', false)),
        b'"' => (TokenKind::QuotedName, end_of_quotes(bytes, at + 1, b'"', false)),
        b'e' | b'E' if next == Some(b'\'') => (TokenKind::String, end_of_quotes(bytes, at + 2, b'\'', true)),
        b'b' | b'B' | b'x' | b'X' | b'n' | b'N' if next == Some(b'\'') => {
            (TokenKind::String, end_of_quotes(bytes, at + 2, b'\'', false))
        }
        b'$' if next.is_some_and(|b| b.is_ascii_digit()) => {
            (TokenKind::Parameter, run(at + 1, |b| b.is_ascii_digit()))
        }
        b'$' => match dollar_quoted(sql, at) {
            Some(end) => (TokenKind::String, end),
            None => (TokenKind::Symbol('$'), at + 1),
        },
        b if b.is_ascii_digit() => {
            (TokenKind::Number, run(at, |b| b.is_ascii_alphanumeric() || b == b'.' || b == b'_'))
        }
        b if is_word_start(b) => (TokenKind::Word, run(at, is_word)),
        b => (TokenKind::Symbol(char::from(b)), at + 1),
    })
}

/// The end of what began before `at` and ends with `quote`; a doubled quote does not end it.
fn end_of_quotes(bytes: &[u8], mut at: usize, quote: u8, has_escapes: bool) -> usize {
    while let Some(&b) = bytes.get(at) {
        at += 1;
        if b == b'\\' && has_escapes {
            at += 1;
        } else if b == quote {
            if bytes.get(at) != Some(&quote) {
                return at;
            }
            at += 1;
        }
    }
    bytes.len()
}

/// The end of `$tag$...$tag$`.
fn dollar_quoted(sql: &str, at: usize) -> Option<usize> {
    let tag_end = at + 1 + sql[at + 1..].find('$')?;
    let tag = &sql[at + 1..tag_end];
    let is_tag = tag.bytes().all(is_word) && !tag.starts_with(|c: char| c.is_ascii_digit());
    if !is_tag || tag.len() > 63 {
        return None;
    }
    let quote = &sql[at..=tag_end];
    let body = tag_end + 1;
    Some(sql[body..].find(quote).map_or(sql.len(), |length| body + length + quote.len()))
}

/// The statements of a text that are not empty, without the semicolons between them.
pub(crate) fn statements(sql: &str) -> impl Iterator<Item = &str> {
    let mut tokens = tokens(sql);
    std::iter::from_fn(move || {
        let mut found: Option<(usize, usize)> = None;
        for token in tokens.by_ref() {
            if token.kind != TokenKind::Symbol(';') {
                found = Some((found.map_or(token.start, |(start, _)| start), token.end));
            } else if found.is_some() {
                break;
            }
        }
        found.map(|(start, end)| &sql[start..end])
    })
}

/// The text of a string token, without quotes and escapes.
pub(crate) fn unquoted(text: &str) -> String {
    if let Some(body) = text.strip_prefix('\'') {
        return body.strip_suffix('\'').unwrap_or(body).replace("''", "'");
    }
    if let Some(body) = text.strip_prefix('"') {
        return body.strip_suffix('"').unwrap_or(body).replace("\"\"", "\"");
    }
    if let Some(body) = text.strip_prefix("E'").or_else(|| text.strip_prefix("e'")) {
        return unescaped(body.strip_suffix('\'').unwrap_or(body));
    }
    if let Some((tag, rest)) = text.strip_prefix('$').and_then(|rest| rest.split_once('$')) {
        return rest.strip_suffix(&format!("${tag}$")).unwrap_or(rest).to_owned();
    }
    text.to_owned()
}

/// The text of `E'...'`.
fn unescaped(body: &str) -> String {
    let mut text = String::new();
    let mut chars = body.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                // It is doubled.
                chars.next();
                text.push('\'');
            }
            '\\' => match chars.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some('b') => text.push('\u{8}'),
                Some('f') => text.push('\u{c}'),
                Some('x') => {
                    let hex: String = chars.clone().take(2).take_while(char::is_ascii_hexdigit).collect();
                    chars.by_ref().take(hex.len()).for_each(drop);
                    text.extend(u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32));
                }
                other => text.extend(other),
            },
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes_and_comments() {
        let check =
            |sql: &str, expected: &[&str]| assert_eq!(statements(sql).collect::<Vec<_>>(), expected, "{sql}");
        check("", &[]);
        check(" ; -- nothing;\n;", &[]);
        check("select 1; select 2", &["select 1", "select 2"]);
        check("select ';' ; /* ; /* nested */ ; */ select \";\"", &["select ';'", "select \";\""]);
        check(
            "select 'it''s;' || E'\\';' || 'x\\'; select 2",
            &["select 'it''s;' || E'\\';' || 'x\\'", "select 2"],
        );
        check("select $$;$$, $a$;$$;$a$; x", &["select $$;$$, $a$;$$;$a$", "x"]);
        check("select $1;select a$b", &["select $1", "select a$b"]);
        check("select 'open; ", &["select 'open; "]);
        check("/* open ; ", &[]);
    }

    #[test]
    fn strings_lose_their_quotes() {
        assert_eq!(unquoted("'it''s'"), "it's");
        assert_eq!(unquoted("\"a\"\"b\""), "a\"b");
        assert_eq!(unquoted("E'\\t\\\\\\x41''\\''"), "\t\\A''");
        assert_eq!(unquoted("$x$a'b$x$"), "a'b");
    }
}
