//! Splits what was typed into statements and commands of the shell.

use lightship::Location;

/// What separates the quotes and comments of one kind of source from those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dialect {
    /// `\` in a string protects the next character.
    backslashes: bool,
    /// Names stand in backticks, too.
    backticks: bool,
    /// `$tag$ ... $tag$` is a string.
    dollars: bool,
    /// `#` begins a comment.
    hashes: bool,
    /// Comments nest.
    nested: bool,
}

impl Dialect {
    pub(super) fn of(location: &Location) -> Self {
        let none =
            Self { backslashes: false, backticks: false, dollars: false, hashes: false, nested: false };
        match location {
            Location::MySql(_) => Self { backslashes: true, backticks: true, hashes: true, ..none },
            Location::Sqlite(_) => Self { backticks: true, ..none },
            // PostgreSQL, and DataFusion, which follows it.
            _ => Self { dollars: true, nested: true, ..none },
        }
    }
}

/// The next thing in a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// A line that begins with `\`, without it.
    Command(&'a str),
    /// A statement, without its semicolon.
    Statement(&'a str),
    /// A statement whose semicolon is missing.
    Unfinished(&'a str),
}

/// Takes the first item from a text. `None` if only spaces, semicolons and comments are left.
pub(super) fn next<'a>(text: &mut &'a str, dialect: Dialect) -> Option<Item<'a>> {
    loop {
        *text = text.trim_start();
        if let Some(command) = text.strip_prefix('\\') {
            let (line, rest) = command.split_once('\n').unwrap_or((command, ""));
            *text = rest;
            return Some(Item::Command(line.trim()));
        }
        match end(text, dialect) {
            End::Semicolon { at, is_empty } => {
                let (statement, rest) = text.split_at(at);
                *text = rest.get(1..).unwrap_or("");
                if !is_empty {
                    return Some(Item::Statement(statement.trim_end()));
                }
            }
            End::Missing { is_empty } => {
                let statement = std::mem::take(text);
                return (!is_empty).then(|| Item::Unfinished(statement.trim_end()));
            }
        }
    }
}

/// Whether everything in a text is finished, so that it can be run.
pub(super) fn is_complete(mut text: &str, dialect: Dialect) -> bool {
    while let Some(item) = next(&mut text, dialect) {
        if matches!(item, Item::Unfinished(_)) {
            return false;
        }
    }
    true
}

/// Where a statement ends, and whether it has nothing but spaces and comments.
enum End {
    Semicolon { at: usize, is_empty: bool },
    Missing { is_empty: bool },
}

fn end(text: &str, dialect: Dialect) -> End {
    let (mut at, mut is_empty) = (0, true);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(';') {
            return End::Semicolon { at, is_empty };
        }
        if let Some(length) = comment(rest, dialect) {
            // A comment that does not end may hide a statement.
            match length {
                Some(length) => at += length,
                None => return End::Missing { is_empty: false },
            }
            continue;
        }
        let before = text[..at].chars().next_back();
        let length = match quoted(rest, before, dialect) {
            Some(Some(length)) => length,
            Some(None) => return End::Missing { is_empty: false },
            None => rest.chars().next().map_or(1, char::len_utf8),
        };
        is_empty &= rest.starts_with(char::is_whitespace);
        at += length;
    }
    End::Missing { is_empty }
}

/// The bytes of a comment at the beginning of a text, or `Some(None)` if it does not end.
fn comment(text: &str, dialect: Dialect) -> Option<Option<usize>> {
    if text.starts_with("--") || (dialect.hashes && text.starts_with('#')) {
        return Some(Some(text.find('\n').map_or(text.len(), |end| end + 1)));
    }
    let mut rest = text.strip_prefix("/*")?;
    let mut depth = 1;
    while depth > 0 {
        let Some(end) = rest.find("*/") else { return Some(None) };
        match rest.find("/*").filter(|begin| dialect.nested && *begin < end) {
            Some(begin) => (depth, rest) = (depth + 1, &rest[begin + 2..]),
            None => (depth, rest) = (depth - 1, &rest[end + 2..]),
        }
    }
    Some(Some(text.len() - rest.len()))
}

/// The bytes of a string or a quoted name at the beginning of a text, or `Some(None)` if it does not end. `before` is
/// the character before it.
fn quoted(text: &str, before: Option<char>, dialect: Dialect) -> Option<Option<usize>> {
    let quote = text.chars().next()?;
    match quote {
        '\'' | '"' => {}
        '`' if dialect.backticks => {}
        '$' if dialect.dollars && !before.is_some_and(|before| before.is_alphanumeric() || before == '_') => {
            let tag = text[1..].find('$').map(|end| &text[..end + 2])?;
            let is_tag = |c: char| c.is_alphanumeric() || c == '_';
            let name = &tag[1..tag.len() - 1];
            if !name.chars().all(is_tag) || name.starts_with(|c: char| c.is_ascii_digit()) {
                return None;
            }
            let inside = &text[tag.len()..];
            return Some(inside.find(tag).map(|end| 2 * tag.len() + end));
        }
        _ => return None,
    }
    // PostgreSQL's E'...'.
    let escapes = quote != '`'
        && (dialect.backslashes || (quote == '\'' && dialect.dollars && matches!(before, Some('e' | 'E'))));
    let mut characters = text.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if escapes && c == '\\' {
            characters.next();
        } else if c == quote {
            // A doubled quote is one of the text: what follows is another string, next to this one.
            return Some(Some(at + c.len_utf8()));
        }
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(uri: &str) -> Dialect {
        Dialect::of(&Location::parse(uri).unwrap())
    }

    fn items(mut text: &str, uri: &str) -> Vec<String> {
        std::iter::from_fn(|| next(&mut text, dialect(uri))).map(|item| format!("{item:?}")).collect()
    }

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes_and_comments() {
        let check =
            |uri: &str, text: &str, expected: &[&str]| assert_eq!(items(text, uri), expected, "{text}");
        let (pg, my, lite) = ("postgresql://h/d", "mysql://h/d", "sqlite:f");
        check(pg, "select 1; select 2;", &["Statement(\"select 1\")", "Statement(\"select 2\")"]);
        check(pg, "select 1 ;\n\n", &["Statement(\"select 1\")"]);
        check(pg, "select 1", &["Unfinished(\"select 1\")"]);
        check(pg, " ;; -- nothing;\n /* here; */ ;", &[]);
        check(pg, "", &[]);
        check(pg, "select ';', \";\";", &["Statement(\"select ';', \\\";\\\"\")"]);
        check(pg, "select 'it''s;';", &["Statement(\"select 'it''s;'\")"]);
        check(pg, "select ';", &["Unfinished(\"select ';\")"]);
        check(pg, "/* a", &["Unfinished(\"/* a\")"]);
        check(pg, "select 1 -- a;\n;", &["Statement(\"select 1 -- a;\")"]);
        check(pg, "select /* a; /* b */ ; */ 1;", &["Statement(\"select /* a; /* b */ ; */ 1\")"]);
        check(lite, "select /* a /* b */ 1;", &["Statement(\"select /* a /* b */ 1\")"]);
        check(pg, "select $a$;$$;$a$;", &["Statement(\"select $a$;$$;$a$\")"]);
        check(pg, "select $$;", &["Unfinished(\"select $$;\")"]);
        check(pg, "select a$b; c$;", &["Statement(\"select a$b\")", "Statement(\"c$\")"]);
        check(pg, "select $1, $2;", &["Statement(\"select $1, $2\")"]);
        check(pg, r"select '\'; 1;", &[r#"Statement("select '\\'")"#, "Statement(\"1\")"]);
        check(pg, r"select E'\';';", &[r#"Statement("select E'\\';'")"#]);
        check(my, r"select '\';';", &[r#"Statement("select '\\';'")"#]);
        check(my, "select `;` # a;\n;", &["Statement(\"select `;` # a;\")"]);
        check(my, "select $$;$$;", &["Statement(\"select $$\")", "Statement(\"$$\")"]);
        check(pg, "select 'é☃;';", &["Statement(\"select 'é☃;'\")"]);
    }

    #[test]
    fn commands_are_lines() {
        let expected = ["Command(\"d orders\")", "Statement(\"select 1\")", "Command(\"q\")"];
        assert_eq!(items("\\d orders \nselect 1;\\q", "sales.csv"), expected);
        // In a statement it is the source's matter.
        assert_eq!(items("select \\d;", "sales.csv"), [r#"Statement("select \\d")"#]);
        assert!(is_complete("\\d", dialect("sales.csv")));
        assert!(is_complete("", dialect("sales.csv")));
        assert!(!is_complete("select 1; select", dialect("sales.csv")));
    }
}
