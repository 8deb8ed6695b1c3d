//! Parses arrays as the server prints them: `{a,"b c",NULL}`.

use super::decode::{Bad, bounds};

/// Passes each element of `text` to `take`, unescaped.
///
/// # Errors
/// When it is not an array of one dimension, or `take` refuses an element.
pub(super) fn elements(
    text: &[u8],
    mut take: impl FnMut(Option<&[u8]>) -> Result<(), Box<Bad>>,
) -> Result<(), Box<Bad>> {
    let broken = || Bad::malformed("an invalid array");
    // Lower bounds other than 1 come first: [0:1]={a,b}
    if let Some(first) = text.strip_prefix(b"[") {
        let first = first.split(|&byte| byte == b':').next().unwrap_or_default();
        return Err(bounds(String::from_utf8_lossy(first)));
    }
    let inner = text.strip_prefix(b"{").and_then(|text| text.strip_suffix(b"}")).ok_or_else(broken)?;
    if inner.is_empty() {
        return Ok(());
    }
    let mut element = Vec::new();
    let mut rest = inner.iter();
    loop {
        element.clear();
        let mut quoted = false;
        let mut more = false;
        while let Some(&byte) = rest.next() {
            match byte {
                b',' => {
                    more = true;
                    break;
                }
                b'{' => {
                    return Err(Box::new(Bad::Value(
                        "an array of several dimensions, but lists have one; cast it in the query (::text) or \
                         unnest it"
                            .into(),
                    )));
                }
                b'"' => {
                    quoted = true;
                    loop {
                        match rest.next().ok_or_else(broken)? {
                            b'"' => break,
                            b'\\' => element.push(*rest.next().ok_or_else(broken)?),
                            byte => element.push(*byte),
                        }
                    }
                }
                byte => element.push(byte),
            }
        }
        take(if !quoted && element == b"NULL" { None } else { Some(&element) })?;
        if !more {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Vec<Option<String>>, Box<Bad>> {
        let mut all = Vec::new();
        elements(text.as_bytes(), |item| {
            all.push(item.map(|item| String::from_utf8_lossy(item).into_owned()));
            Ok(())
        })?;
        Ok(all)
    }

    #[test]
    fn arrays_are_read() {
        let check = |text: &str, expected: &[Option<&str>]| {
            let expected: Vec<_> = expected.iter().map(|item| item.map(str::to_owned)).collect();
            assert_eq!(read(text).unwrap(), expected, "{text}");
        };
        check("{}", &[]);
        check("{a,NULL,\"NULL\",\"\"}", &[Some("a"), None, Some("NULL"), Some("")]);
        check(r#"{"a,b","c\"d\\","{e}"}"#, &[Some("a,b"), Some("c\"d\\"), Some("{e}")]);
        let error = read("[0:1]={x,y}").unwrap_err();
        assert!(matches!(&*error, Bad::Value(text) if text.contains("begin with 0")), "{error:?}");
        read("{{a},{b}}").unwrap_err();
        read("{\"a}").unwrap_err();
        read("a").unwrap_err();
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[{}\\\\\",a\\[\\]=NUL]{0,20}") {
            let _ = read(&text);
        }
    }
}
