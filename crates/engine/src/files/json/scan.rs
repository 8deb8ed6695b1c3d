//! The tokens of JSON text, with numbers as they are written.
//!
//! Parsers that return values round numbers to 64 bits, and the type of a field depends on all digits.

use std::borrow::Cow;

use memchr::memchr2;

/// A token.
#[derive(Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// `{` or `[`.
    Open(u8),
    /// `}` or `]`.
    Close(u8),
    Comma,
    Colon,
    /// What is between the quotes.
    Text(&'a [u8]),
    Number(&'a str),
    Boolean,
    Null,
}

/// Goes through the tokens of a text.
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len());
    }

    /// Whether only blanks are left.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.at == self.text.len()
    }

    /// The next token; `None` if there is none.
    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let start = self.at;
        let byte = *self.text.get(start)?;
        self.at += 1;
        Some(match byte {
            b'{' | b'[' => Token::Open(byte),
            b'}' | b']' => Token::Close(byte),
            b',' => Token::Comma,
            b':' => Token::Colon,
            b'"' => loop {
                self.at += memchr2(b'"', b'\\', &self.text[self.at..])?;
                if self.text[self.at] == b'"' {
                    self.at += 1;
                    break Token::Text(&self.text[start + 1..self.at - 1]);
                }
                // What is escaped is no end.
                self.at += 2;
                self.text.get(self.at)?;
            },
            b't' => self.word(b"rue", Token::Boolean)?,
            b'f' => self.word(b"alse", Token::Boolean)?,
            b'n' => self.word(b"ull", Token::Null)?,
            b'-' | b'0'..=b'9' => {
                let of_number =
                    |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
                let rest = &self.text[self.at..];
                self.at += rest.iter().position(|byte| !of_number(byte)).unwrap_or(rest.len());
                let number = std::str::from_utf8(&self.text[start..self.at]).ok()?;
                Token::Number(number).filter_valid()?
            }
            _ => return None,
        })
    }

    fn word(&mut self, rest: &[u8], token: Token<'a>) -> Option<Token<'a>> {
        self.text[self.at..].starts_with(rest).then(|| {
            self.at += rest.len();
            token
        })
    }
}

impl Token<'_> {
    /// The token, if it is not a number that JSON does not have, such as `01` or `1.`.
    fn filter_valid(self) -> Option<Self> {
        let Self::Number(text) = &self else { return Some(self) };
        let mantissa = text.find(['e', 'E']).map_or(*text, |at| &text[..at]);
        let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
        let is_whole = whole == "0" || (!whole.is_empty() && !whole.starts_with('0'));
        // The rest is checked where the number is read.
        let is_valid = is_whole && !fraction.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit());
        is_valid.then_some(self)
    }
}

/// A text without its escapes.
pub(super) fn unescaped(text: &[u8]) -> Option<Cow<'_, str>> {
    if !text.contains(&b'\\') {
        return std::str::from_utf8(text).ok().map(Cow::Borrowed);
    }
    let quoted = [b"\"", text, b"\""].concat();
    serde_json::from_slice(&quoted).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        let mut scanner = Scanner::new(b" {\"a\\\"\": -12345678901234567890.50, \"b\":[true,null]}");
        let expected = [
            Token::Open(b'{'),
            Token::Text(b"a\\\""),
            Token::Colon,
            Token::Number("-12345678901234567890.50"),
            Token::Comma,
            Token::Text(b"b"),
            Token::Colon,
            Token::Open(b'['),
            Token::Boolean,
            Token::Comma,
            Token::Null,
            Token::Close(b']'),
            Token::Close(b'}'),
        ];
        for token in expected {
            assert_eq!(scanner.next(), Some(token));
        }
        assert!(scanner.is_at_end());
        assert_eq!(unescaped(b"a\\\"\\u00e9").unwrap(), "a\"é");
    }

    #[test]
    fn what_is_not_json_has_no_token() {
        for text in ["\"a", "\"a\\", "\"a\\\"", "01", "-", "1.", "-01", "nul", "x", "+1", ".5"] {
            assert_eq!(Scanner::new(text.as_bytes()).next(), None, "{text}");
        }
    }
}
