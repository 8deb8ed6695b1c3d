//! Functions of texts and of arrays, which are texts, in SQLite. None makes a value longer than SQLite's limit, or takes long:
//! SQLite can't interrupt them.

use std::collections::HashSet;

use regex::{Regex, RegexBuilder};
use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};

use super::functions::{array, array_text, check_length, failed, integer, quoted, text, too_large};

/// The most bytes of a compiled expression, and of a text that is matched with one.
const REGEX_BYTES_MAX: usize = 256 << 10;
const MATCHED_BYTES_MAX: usize = 64 << 10;
/// The most steps of matching a text with a pattern of LIKE: a function can't be interrupted.
const LIKE_STEPS_MAX: usize = 1 << 28;

/// `LIKE` with an escape character.
fn like(text: &str, pattern: &str, escape: Option<char>) -> bool {
    #[derive(PartialEq)]
    enum Part {
        Char(char),
        One,
        Many,
    }
    let mut parts = Vec::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        parts.push(match c {
            c if Some(c) == escape => match chars.next() {
                Some(next) => Part::Char(next),
                None => return false,
            },
            '%' => Part::Many,
            '_' => Part::One,
            c => Part::Char(c),
        });
    }
    let text: Vec<char> = text.chars().collect();
    // Goes back only to the last %.
    let (mut at, mut part) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while at < text.len() {
        match parts.get(part) {
            Some(Part::Many) => {
                retry = Some((at, part));
                part += 1;
                continue;
            }
            Some(Part::One) => {
                (at, part) = (at + 1, part + 1);
                continue;
            }
            Some(Part::Char(c)) if *c == text[at] => {
                (at, part) = (at + 1, part + 1);
                continue;
            }
            _ => {}
        }
        match retry {
            Some((from, many)) => {
                retry = Some((from + 1, many));
                (at, part) = (from + 1, many + 1);
            }
            None => return false,
        }
    }
    parts[part..].iter().all(|part| *part == Part::Many)
}

/// Adds the functions to a connection.
pub(super) fn add(connection: &Connection) -> Result<()> {
    add_texts(connection)?;
    add_arrays(connection)
}

/// Functions of texts.
fn add_texts(connection: &Connection) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    for (name, is_insensitive) in [("pg_regex", false), ("pg_iregex", true)] {
        connection.create_scalar_function(name, 2, flags, move |context| {
            let (Some(value), Some(_)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
            if value.len() > MATCHED_BYTES_MAX {
                return Err(too_large());
            }
            let compile = |pattern: ValueRef<'_>| -> Result<Regex, Box<dyn std::error::Error + Send + Sync>> {
                let pattern = pattern.as_str()?;
                Ok(RegexBuilder::new(pattern)
                    .case_insensitive(is_insensitive)
                    .size_limit(REGEX_BYTES_MAX)
                    .build()?)
            };
            let regex = context.get_or_create_aux(1, compile)?;
            Ok(Some(regex.is_match(&value)))
        })?;
    }
    for (name, is_insensitive) in [("pg_like", false), ("pg_ilike", true)] {
        connection.create_scalar_function(name, -1, flags, move |context| {
            let (Some(value), Some(pattern)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
            let escape =
                if context.len() > 2 { text(context, 2).and_then(|e| e.chars().next()) } else { Some('\\') };
            if value.len().saturating_mul(pattern.len()) > LIKE_STEPS_MAX {
                return Err(too_large());
            }
            let fold = |text: String| if is_insensitive { text.to_lowercase() } else { text };
            Ok(Some(like(&fold(value), &fold(pattern), escape)))
        })?;
    }
    connection.create_scalar_function("pg_bool", 1, flags, |context| {
        let Some(value) = text(context, 0) else { return Ok(None) };
        match value.to_lowercase().as_str() {
            "t" | "true" | "1" | "on" | "yes" | "y" => Ok(Some(true)),
            "f" | "false" | "0" | "off" | "no" | "n" => Ok(Some(false)),
            _ => Err(failed(format!("invalid input syntax for type boolean: \"{value}\""))),
        }
    })?;
    connection.create_scalar_function("pg_bool_text", 1, flags, |context| {
        Ok(integer(context, 0).map(|value| if value == 0 { "false" } else { "true" }))
    })?;
    connection.create_scalar_function("quote_ident", 1, flags, |context| {
        Ok(text(context, 0).map(|name| quoted(&name)))
    })?;
    connection.create_scalar_function("quote_literal", 1, flags, |context| {
        Ok(text(context, 0).map(|value| format!("'{}'", value.replace('\'', "''"))))
    })?;
    connection.create_scalar_function("pg_size_pretty", 1, flags, |context| {
        Ok(integer(context, 0).map(|size| format!("{size} bytes")))
    })?;
    connection.create_scalar_function("split_part", 3, flags, |context| {
        let (Some(value), Some(by), Some(index)) = (text(context, 0), text(context, 1), integer(context, 2))
        else {
            return Ok(None);
        };
        if by.is_empty() {
            return Ok(Some(if index.abs() == 1 { value } else { String::new() }));
        }
        // From the end, if it is negative.
        let nth = usize::try_from(index.unsigned_abs().saturating_sub(1)).unwrap_or(usize::MAX);
        let part = if index < 0 { value.rsplit(&by).nth(nth) } else { value.split(&by).nth(nth) };
        Ok(Some(part.unwrap_or_default().to_owned()))
    })?;
    connection.create_scalar_function("left", 2, flags, |context| {
        let (Some(value), Some(count)) = (text(context, 0), integer(context, 1)) else { return Ok(None) };
        // A negative number leaves out characters at the end.
        let most = if count < 0 { value.chars().count() as i64 } else { 0 };
        let count = usize::try_from(most.saturating_add(count)).unwrap_or(0);
        Ok(Some(value.chars().take(count).collect::<String>()))
    })?;
    connection.create_scalar_function("regexp_replace", -1, flags, |context| {
        let (Some(value), Some(pattern), Some(with)) = (text(context, 0), text(context, 1), text(context, 2))
        else {
            return Ok(None);
        };
        if value.len() > MATCHED_BYTES_MAX {
            return Err(too_large());
        }
        let regex = RegexBuilder::new(&pattern)
            .size_limit(REGEX_BYTES_MAX)
            .build()
            .map_err(|e| failed(e.to_string()))?;
        let with =
            with.replace('$', "$$").replace("\\1", "${1}").replace("\\2", "${2}").replace("\\&", "${0}");
        let is_global = text(context, 3).is_some_and(|flags| flags.contains('g'));
        let references = with.matches('$').count();
        let (mut out, mut rest) = (String::new(), 0);
        for captures in regex.captures_iter(&value).take(if is_global { usize::MAX } else { 1 }) {
            let Some(found) = captures.get(0) else { continue };
            out.push_str(&value[rest..found.start()]);
            check_length(out.len() + with.len() + references.saturating_mul(found.len()))?;
            captures.expand(&with, &mut out);
            rest = found.end();
        }
        out.push_str(&value[rest..]);
        Ok(Some(out))
    })?;
    connection.create_scalar_function("pg_replace", 3, flags, |context| {
        let (Some(value), Some(from), Some(to)) = (text(context, 0), text(context, 1), text(context, 2))
        else {
            return Ok(None);
        };
        if from.is_empty() {
            return Ok(Some(value));
        }
        let count = value.matches(&from).count();
        check_length((value.len() - count * from.len()).saturating_add(count.saturating_mul(to.len())))?;
        Ok(Some(value.replace(&from, &to)))
    })?;
    connection.create_scalar_function("pg_strpos", 2, flags, |context| {
        let (Some(value), Some(part)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
        Ok(Some(value.find(&part).map_or(0, |at| value[..at].chars().count() as i64 + 1)))
    })?;
    for (name, is_left, is_right) in
        [("pg_ltrim", true, false), ("pg_rtrim", false, true), ("pg_btrim", true, true)]
    {
        connection.create_scalar_function(name, -1, flags, move |context| {
            let Some(value) = text(context, 0) else { return Ok(None) };
            let Some(set) = (if context.len() > 1 { text(context, 1) } else { Some(" ".into()) }) else {
                return Ok(None);
            };
            let set: HashSet<char> = set.chars().collect();
            let mut rest = value.as_str();
            if is_left {
                rest = rest.trim_start_matches(|c: char| set.contains(&c));
            }
            if is_right {
                rest = rest.trim_end_matches(|c: char| set.contains(&c));
            }
            Ok(Some(rest.to_owned()))
        })?;
    }
    Ok(())
}

/// Functions of arrays, which are texts.
fn add_arrays(connection: &Connection) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("pg_array", -1, flags, |context| {
        let (mut items, mut bytes) = (Vec::new(), 0);
        for index in 0..context.len() {
            let item = text(context, index);
            bytes += 1 + item.as_ref().map_or(4, String::len);
            check_length(bytes)?;
            items.push(item);
        }
        Ok(array_text(&items))
    })?;
    connection.create_scalar_function("pg_in_array", 2, flags, |context| {
        let (Some(value), Some(items)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
        Ok(Some(array(&items).contains(&Some(value))))
    })?;
    connection.create_scalar_function("pg_subscript", 2, flags, |context| {
        let (Some(items), Some(index)) = (text(context, 0), integer(context, 1)) else { return Ok(None) };
        let items = array(&items);
        Ok(usize::try_from(index)
            .ok()
            .and_then(|index| items.into_iter().nth(index.checked_sub(1)?))
            .flatten())
    })?;
    connection.create_scalar_function("array_to_string", -1, flags, |context| {
        let (Some(items), Some(by)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
        let null = text(context, 2);
        let items = array(&items);
        let parts: Vec<&str> = items.iter().filter_map(|item| item.as_deref().or(null.as_deref())).collect();
        let bytes: usize = parts.iter().map(|part| part.len() + by.len()).sum();
        check_length(bytes)?;
        Ok(Some(parts.join(&by)))
    })?;
    connection.create_scalar_function("string_to_array", 2, flags, |context| {
        let (Some(value), Some(by)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
        let parts: Vec<_> =
            if by.is_empty() { vec![value] } else { value.split(&by).map(str::to_owned).collect() };
        Ok(Some(array_text(&parts.into_iter().map(Some).collect::<Vec<_>>())))
    })?;
    for name in ["array_length", "array_upper", "cardinality"] {
        connection.create_scalar_function(name, -1, flags, |context| {
            let count = text(context, 0).map(|items| array(&items).len() as i64);
            Ok(count.filter(|count| *count > 0 || context.len() == 1))
        })?;
    }
    connection.create_scalar_function("array_lower", 2, flags, |context| {
        Ok(text(context, 0).filter(|items| !array(items).is_empty()).map(|_| 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_sql() {
        let check = |text, pattern, expected| {
            assert_eq!(like(text, pattern, Some('\\')), expected, "{text} {pattern}")
        };
        check("lineitem", "line%", true);
        check("lineitem", "%e%t%m", true);
        check("lineitem", "line", false);
        check("a_b", "a\\_b", true);
        check("axb", "a\\_b", false);
        check("axb", "a_b", true);
        check("", "%", true);
        check("a", "", false);
        check("abc", "%%%%%%%%%%%%%%%%%%%%d", false);
        check("x", "\\", false);
    }
}
