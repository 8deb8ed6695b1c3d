//! The tokens of JSON text, with numbers as they are written.
//!
//! Parsers that return values round numbers to 64 bits, and the type of a field depends on all digits.

use std::borrow::Cow;

use memchr::memchr2;

use super::problem::Problem;

/// A token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Token<'a> {
    /// `{` or `[`.
    Open(u8),
    /// `}` or `]`.
    Close(u8),
    Comma,
    Colon,
    Text(Text<'a>),
    Number(&'a str),
    Boolean(bool),
    Null,
}

/// A text as it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Text<'a> {
    /// With its quotes.
    quoted: &'a [u8],
    has_escapes: bool,
}

impl<'a> Text<'a> {
    /// What it means; `None` if its escapes are invalid, or it is not UTF-8.
    pub(super) fn value(self) -> Option<Cow<'a, str>> {
        if self.has_escapes {
            return serde_json::from_slice(self.quoted).ok().map(Cow::Owned);
        }
        std::str::from_utf8(self.inner()).ok().map(Cow::Borrowed)
    }

    /// Whether it is certainly written like this.
    pub(super) fn is(self, text: &str) -> bool {
        !self.has_escapes && self.inner() == text.as_bytes()
    }

    fn inner(self) -> &'a [u8] {
        &self.quoted[1..self.quoted.len() - 1]
    }
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

    /// The next token, where the text must have one.
    fn expect(&mut self) -> Result<Token<'a>, Problem> {
        self.next().ok_or(Problem::Syntax)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Whether only blanks are left.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.at == self.text.len()
    }

    /// The next token; `None` if there is none.
    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let byte = self.peek()?;
        self.at += 1;
        Some(match byte {
            b'{' | b'[' => Token::Open(byte),
            b'}' | b']' => Token::Close(byte),
            b',' => Token::Comma,
            b':' => Token::Colon,
            b'"' => Token::Text(self.text()?),
            b't' => self.word(b"rue", Token::Boolean(true))?,
            b'f' => self.word(b"alse", Token::Boolean(false))?,
            b'n' => self.word(b"ull", Token::Null)?,
            b'-' | b'0'..=b'9' => Token::Number(self.number(byte)?),
            _ => return None,
        })
    }

    /// The text whose first quote was read.
    fn text(&mut self) -> Option<Text<'a>> {
        let (start, mut has_escapes) = (self.at - 1, false);
        loop {
            self.at += memchr2(b'"', b'\\', self.text.get(self.at..)?)? + 1;
            if self.text[self.at - 1] == b'"' {
                return Some(Text { quoted: &self.text[start..self.at], has_escapes });
            }
            // What is escaped is no end.
            has_escapes = true;
            self.at += 1;
        }
    }

    /// The number whose first byte was read: `[-]WHOLE[.FRACTION][e[±]EXPONENT]`.
    fn number(&mut self, first: u8) -> Option<&'a str> {
        let start = self.at - 1;
        let first = if first == b'-' {
            self.at += 1;
            *self.text.get(self.at - 1)?
        } else {
            first
        };
        match first {
            b'0' if self.peek().is_some_and(|byte| byte.is_ascii_digit()) => return None,
            b'0' => {}
            b'1'..=b'9' => self.skip_digits(),
            _ => return None,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        std::str::from_utf8(&self.text[start..self.at]).ok()
    }

    /// One digit or more.
    fn digits(&mut self) -> Option<()> {
        self.peek().filter(u8::is_ascii_digit)?;
        self.skip_digits();
        Some(())
    }

    fn skip_digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn word(&mut self, rest: &[u8], token: Token<'a>) -> Option<Token<'a>> {
        self.text[self.at..].starts_with(rest).then(|| {
            self.at += rest.len();
            token
        })
    }
}

/// Goes through the items of a list whose bracket was read.
#[derive(Debug, Default)]
pub(super) struct Items {
    has_begun: bool,
}

impl Items {
    /// The token that begins the next item, whose other tokens the caller takes; `None` at the end of the list.
    pub(super) fn next<'a>(&mut self, scanner: &mut Scanner<'a>) -> Result<Option<Token<'a>>, Problem> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        match scanner.expect()? {
            Token::Close(b']') => Ok(None),
            Token::Comma if !is_first => scanner.expect().map(Some),
            token if is_first => Ok(Some(token)),
            _ => Err(Problem::Syntax),
        }
    }
}

/// Goes through the fields of an object whose brace was read.
#[derive(Debug, Default)]
pub(super) struct Fields {
    has_begun: bool,
}

impl Fields {
    /// The name of the next field and the token that begins its value, whose other tokens the caller takes; `None` at
    /// the end of the object.
    pub(super) fn next<'a>(
        &mut self,
        scanner: &mut Scanner<'a>,
    ) -> Result<Option<(Text<'a>, Token<'a>)>, Problem> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let name = match scanner.expect()? {
            Token::Close(b'}') => return Ok(None),
            Token::Comma if !is_first => scanner.expect()?,
            token if is_first => token,
            _ => return Err(Problem::Syntax),
        };
        match (name, scanner.expect()?) {
            (Token::Text(name), Token::Colon) => Ok(Some((name, scanner.expect()?))),
            _ => Err(Problem::Syntax),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        let text = |quoted: &'static str| {
            Token::Text(Text { quoted: quoted.as_bytes(), has_escapes: quoted.contains('\\') })
        };
        let mut scanner = Scanner::new(b" {\"a\\\"\": -12345678901234567890.50, \"b\":[true,null,0,-1e-7]}");
        let expected = [
            Token::Open(b'{'),
            text("\"a\\\"\""),
            Token::Colon,
            Token::Number("-12345678901234567890.50"),
            Token::Comma,
            text("\"b\""),
            Token::Colon,
            Token::Open(b'['),
            Token::Boolean(true),
            Token::Comma,
            Token::Null,
            Token::Comma,
            Token::Number("0"),
            Token::Comma,
            Token::Number("-1e-7"),
            Token::Close(b']'),
            Token::Close(b'}'),
        ];
        for token in expected {
            assert_eq!(scanner.next(), Some(token));
        }
        assert!(scanner.is_at_end());
    }

    #[test]
    fn texts_are_what_they_mean() {
        let value = |text: &str| match Scanner::new(text.as_bytes()).next() {
            Some(Token::Text(text)) => text.value().map(Cow::into_owned),
            _ => None,
        };
        for (text, expected) in [
            (r#""""#, Some("")),
            (r#""é""#, Some("é")),
            (r#""a\"\u00e9\ud83d\ude00\\""#, Some("a\"é😀\\")),
            (r#""\ud83d""#, None),
            (r#""\x""#, None),
        ] {
            assert_eq!(value(text).as_deref(), expected, "{text}");
        }
        assert!(matches!(Scanner::new(b"\"a\"").next(), Some(Token::Text(text)) if text.is("a")));
        // The name is a backspace.
        assert!(matches!(Scanner::new(b"\"\\b\"").next(), Some(Token::Text(text)) if !text.is("\\b")));
    }

    #[test]
    fn what_is_not_json_has_no_token() {
        for text in
            ["\"a", "\"a\\", "\"a\\\"", "01", "-", "1.", "-01", "nul", "x", "+1", ".5", "1e", "1e+", "1.e1"]
        {
            assert_eq!(Scanner::new(text.as_bytes()).next(), None, "{text}");
        }
    }
}
