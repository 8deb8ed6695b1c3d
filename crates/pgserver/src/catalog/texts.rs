//! Functions of texts and of arrays, which are texts, in SQLite. None makes a value longer than SQLite's limit, or takes long:
//! SQLite can't interrupt them.

use std::collections::HashSet;

use regex::{Regex, RegexBuilder};
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Result};

use super::functions::{
    array, array_text, check_length, failed, integer, name_parts, quoted, text, too_large,
};
use super::sets::NUMBERS_MAX;

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
    connection.create_scalar_function("pg_format", -1, flags, |context| {
        let Some(pattern) = text(context, 0) else { return Ok(None) };
        let args: Vec<_> = (1..context.len()).map(|at| text(context, at)).collect();
        format_text(&pattern, &args).map(Some)
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

/// The subscript of the first element: vectors (`1 2`) are counted from 0.
fn lower(items: &str) -> i64 {
    if items.trim_start().starts_with('{') { 1 } else { 0 }
}

/// An element of an array: a number if it is one, so that it is compared as one.
fn element(item: Option<String>) -> Value {
    let Some(item) = item else { return Value::Null };
    match item.parse::<i64>() {
        Ok(number) if number.to_string() == item => Value::Integer(number),
        _ => Value::Text(item),
    }
}

/// The array of `count` numbers.
fn numbers(first: i64, count: usize) -> Result<String> {
    let mut out = String::from('{');
    for (at, number) in (first..).take(count).enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push_str(&number.to_string());
        check_length(out.len())?;
    }
    out.push('}');
    Ok(out)
}

/// A text in JSON.
fn json_text(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `format()`: the text with its arguments in the places of `%s`, `%I` and `%L`. Widths are not supported.
fn format_text(pattern: &str, args: &[Option<String>]) -> Result<String> {
    let (mut out, mut next) = (String::new(), 0);
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut digits = String::new();
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        if !digits.is_empty() {
            if chars.next() != Some('$') {
                return Err(failed("format(): widths are not supported"));
            }
            let number: usize = digits.parse().unwrap_or(0);
            next = number.checked_sub(1).ok_or_else(|| failed("format specifies argument 0"))?;
        }
        let kind = chars.next().ok_or_else(|| failed("unterminated format() type specifier"))?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let arg = args.get(next).ok_or_else(|| failed("too few arguments for format()"))?;
        next += 1;
        match (kind, arg) {
            ('s', arg) => out.push_str(arg.as_deref().unwrap_or_default()),
            ('I', Some(name)) => out.push_str(&quoted(name)),
            ('I', None) => return Err(failed("null values cannot be formatted as an SQL identifier")),
            ('L', Some(text)) => out.push_str(&format!("'{}'", text.replace('\'', "''"))),
            ('L', None) => out.push_str("NULL"),
            (other, _) => {
                return Err(failed(format!("unrecognized format() type specifier \"{other}\"")));
            }
        }
        check_length(out.len())?;
    }
    Ok(out)
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
    // By subscript, and by number from 1: those of vectors begin with 0.
    for (name, is_number) in [("pg_subscript", false), ("pg_nth", true)] {
        connection.create_scalar_function(name, 2, flags, move |context| {
            let (Some(items), Some(index)) = (text(context, 0), integer(context, 1)) else {
                return Ok(Value::Null);
            };
            let first = if is_number { 1 } else { lower(&items) };
            let index = index.checked_sub(first).and_then(|index| usize::try_from(index).ok());
            Ok(element(index.and_then(|index| array(&items).into_iter().nth(index)).flatten()))
        })?;
    }
    // The number of rows of a set: as many as the longest of the arrays has elements.
    connection.create_scalar_function("pg_rows", -1, flags, |context| {
        let lengths = (0..context.len()).filter_map(|at| text(context, at)).map(|items| array(&items).len());
        let rows = lengths.max().unwrap_or(0);
        if rows > NUMBERS_MAX { Err(too_large()) } else { Ok(rows as i64) }
    })?;
    connection.create_scalar_function("pg_subscripts", -1, flags, |context| {
        let Some(items) = text(context, 0) else { return Ok(None) };
        numbers(lower(&items), array(&items).len()).map(Some)
    })?;
    connection.create_scalar_function("pg_series", -1, flags, |context| {
        let (Some(first), Some(last)) = (integer(context, 0), integer(context, 1)) else { return Ok(None) };
        let step = if context.len() > 2 { integer(context, 2) } else { Some(1) };
        let Some(step) = step else { return Ok(None) };
        if step == 0 {
            return Err(failed("step size cannot equal zero"));
        }
        let (mut items, mut bytes, mut next) = (Vec::new(), 2, Some(first));
        while let Some(number) = next.filter(|next| if step > 0 { *next <= last } else { *next >= last }) {
            let item = number.to_string();
            bytes += item.len() + 1;
            check_length(bytes)?;
            items.push(item);
            next = number.checked_add(step);
        }
        Ok(Some(format!("{{{}}}", items.join(","))))
    })?;
    // An element with its number: (x, n).
    connection.create_scalar_function("pg_expanded", 2, flags, |context| {
        let (Some(items), Some(number)) = (text(context, 0), integer(context, 1)) else { return Ok(None) };
        let index = number.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        let Some(found) = index.and_then(|index| array(&items).into_iter().nth(index)) else {
            return Ok(None);
        };
        let x = match element(found) {
            Value::Integer(x) => x.to_string(),
            Value::Text(x) => json_text(&x),
            _ => "null".to_owned(),
        };
        Ok(Some(format!("{{\"x\":{x},\"n\":{number}}}")))
    })?;
    connection.create_scalar_function("pg_array_cat", 2, flags, |context| {
        let both: Vec<_> = [0, 1].into_iter().filter_map(|at| text(context, at)).collect();
        if both.is_empty() {
            return Ok(None);
        }
        check_length(both.iter().map(|items| 2 * items.len()).sum())?;
        Ok(Some(array_text(&both.iter().flat_map(|items| array(items)).collect::<Vec<_>>())))
    })?;
    connection.create_scalar_function("array_position", 2, flags, |context| {
        let (Some(items), wanted) = (text(context, 0), text(context, 1)) else { return Ok(None) };
        let at = array(&items).into_iter().position(|item| item == wanted);
        Ok(at.map(|at| at as i64 + lower(&items)))
    })?;
    connection.create_scalar_function("parse_ident", -1, flags, |context| {
        let parts = text(context, 0).map(|name| name_parts(&name).into_iter().map(Some).collect::<Vec<_>>());
        Ok(parts.map(|parts| array_text(&parts)))
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
    for name in ["array_length", "cardinality"] {
        connection.create_scalar_function(name, -1, flags, |context| {
            let count = text(context, 0).map(|items| array(&items).len() as i64);
            Ok(count.filter(|count| *count > 0 || context.len() == 1))
        })?;
    }
    connection.create_scalar_function("array_upper", 2, flags, |context| {
        let Some(items) = text(context, 0) else { return Ok(None) };
        let count = array(&items).len() as i64;
        Ok((count > 0).then(|| lower(&items) + count - 1))
    })?;
    connection.create_scalar_function("array_lower", 2, flags, |context| {
        Ok(text(context, 0).filter(|items| !array(items).is_empty()).map(|items| lower(&items)))
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
