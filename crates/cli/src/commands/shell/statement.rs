//! Splits what was typed into statements and commands of the shell.

use lightship::Location;

/// What separates the quotes and comments of one kind of source from those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dialect {
    /// Around names.
    quote: char,
    /// Names without quotes are read in lower case.
    folds: bool,
    /// `\` in a string protects the next character.
    backslashes: bool,
    /// `E'...'` is a string with such backslashes.
    escape_strings: bool,
    /// Names stand in backticks, too.
    backticks: bool,
    /// Names stand in brackets, too.
    brackets: bool,
    /// `$tag$ ... $tag$` is a string.
    dollars: bool,
    /// `#` begins a comment, and `--` only before a space.
    mysql_comments: bool,
    /// Comments nest.
    nested: bool,
}

impl Dialect {
    pub(super) fn of(location: &Location) -> Self {
        let postgres = Self {
            quote: '"',
            folds: true,
            backslashes: false,
            escape_strings: true,
            backticks: false,
            brackets: false,
            dollars: true,
            mysql_comments: false,
            nested: true,
        };
        let others = Self { folds: false, escape_strings: false, dollars: false, nested: false, ..postgres };
        match location {
            Location::Postgres(_) => postgres,
            Location::MySql(_) => {
                Self { quote: '`', backslashes: true, backticks: true, mysql_comments: true, ..others }
            }
            Location::Sqlite(_) => Self { backticks: true, brackets: true, ..others },
            // DataFusion reads what most databases do.
            Location::Adbc(_)
            | Location::Node { .. }
            | Location::NodeUnix { .. }
            | Location::Object(_)
            | Location::Path(_)
            | Location::Tables(_) => Self { backticks: true, ..postgres },
        }
    }

    /// The quote around names.
    pub(super) fn quote(self) -> char {
        self.quote
    }

    /// A name as it stands in a statement: in quotes if it has to.
    pub(super) fn quoted(self, name: &str) -> String {
        let is_part = |c: char| c == '_' || c.is_ascii_alphanumeric();
        let is_plain = name.chars().all(is_part) && !name.starts_with(|c: char| c.is_ascii_digit());
        let is_folded = self.folds && name.chars().any(|c| c.is_ascii_uppercase());
        if is_plain && !is_folded && !name.is_empty() { name.to_owned() } else { self.in_quotes(name) }
    }

    pub(super) fn in_quotes(self, name: &str) -> String {
        let quote = self.quote;
        format!("{quote}{}{quote}", name.replace(quote, &format!("{quote}{quote}")))
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
        let length = match quoted(rest, &text[..at], dialect) {
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
    let is_dashes = text.strip_prefix("--").is_some_and(|rest| {
        let acts = |c: char| c.is_whitespace() || c.is_control();
        !dialect.mysql_comments || rest.is_empty() || rest.starts_with(acts)
    });
    if is_dashes || (dialect.mysql_comments && text.starts_with('#')) {
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
/// the text before it.
fn quoted(text: &str, before: &str, dialect: Dialect) -> Option<Option<usize>> {
    let is_name = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let quote = text.chars().next()?;
    match quote {
        '[' if dialect.brackets => return Some(text.find(']').map(|end| end + 1)),
        '\'' | '"' => {}
        '`' if dialect.backticks => {}
        '$' if dialect.dollars && !is_name(before) => {
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
    let is_escape = |before: &str| before.strip_suffix(['e', 'E']).is_some_and(|before| !is_name(before));
    let escapes = match quote {
        '\'' => dialect.backslashes || (dialect.escape_strings && is_escape(before)),
        '"' => dialect.backslashes,
        _ => false,
    };
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
        check(my, "select 5--1; 2;", &["Statement(\"select 5--1\")", "Statement(\"2\")"]);
        check(my, "select 5 -- 1;\n;", &["Statement(\"select 5 -- 1;\")"]);
        check(pg, r"select a like'\'; 2;", &[r#"Statement("select a like'\\'")"#, "Statement(\"2\")"]);
        check("sales.csv", "select `;`;", &["Statement(\"select `;`\")"]);
        check(pg, "select `; 2;", &["Statement(\"select `\")", "Statement(\"2\")"]);
        check(lite, "select [a;b];", &["Statement(\"select [a;b]\")"]);
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
