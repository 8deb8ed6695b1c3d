//! The values of JSON text, with numbers as they are written.
//!
//! Parsers that return values round numbers to 64 bits, and the type of a field depends on all digits.

use std::borrow::Cow;
use std::collections::HashMap;

use memchr::memchr2;

use super::problem::Problem;

/// A value, or how it begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    /// Its brace.
    Object,
    /// Its bracket.
    List,
    Text(Text<'a>),
    Number(&'a str),
    Boolean(bool),
    Null,
}

/// A text as it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Text<'a> {
    /// With its quotes.
    quoted: &'a str,
    has_escapes: bool,
}

impl<'a> Text<'a> {
    /// What it means.
    ///
    /// # Errors
    /// Its escapes are invalid.
    pub(super) fn value(self) -> Result<Cow<'a, str>, Problem> {
        if self.has_escapes {
            return serde_json::from_str(self.quoted).map(Cow::Owned).map_err(|_| Problem::Syntax);
        }
        Ok(Cow::Borrowed(&self.quoted[1..self.quoted.len() - 1]))
    }
}

/// Goes through a text.
pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    /// A scanner of an object whose brace is read.
    ///
    /// # Errors
    /// The text begins as something else, or is not UTF-8.
    pub(super) fn of_object(object: &'a [u8]) -> Result<Self, Problem> {
        let mut scanner = Self::new(std::str::from_utf8(object).map_err(|_| Problem::Syntax)?);
        if scanner.takes(b'{') { Ok(scanner) } else { Err(Problem::Syntax) }
    }

    fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Takes this byte, perhaps after blanks; false if something else is next.
    fn takes(&mut self, byte: u8) -> bool {
        self.skip_blanks();
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// The same for several bytes.
    fn takes_all(&mut self, bytes: &[u8]) -> bool {
        self.skip_blanks();
        let is_next = self.text.as_bytes()[self.at..].starts_with(bytes);
        if is_next {
            self.at += bytes.len();
        }
        is_next
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Checks that only blanks are left.
    pub(super) fn end(mut self) -> Result<(), Problem> {
        self.skip_blanks();
        if self.at == self.text.len() { Ok(()) } else { Err(Problem::Syntax) }
    }

    /// The next value; of a list or an object, only its beginning. `None` if no value begins here.
    pub(super) fn value(&mut self) -> Option<Value<'a>> {
        self.skip_blanks();
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b'"' => self.text().map(Value::Text),
            b'-' | b'0'..=b'9' => self.number(byte).map(Value::Number),
            b'{' => Some(Value::Object),
            b'[' => Some(Value::List),
            b't' => self.word(b"rue", Value::Boolean(true)),
            b'f' => self.word(b"alse", Value::Boolean(false)),
            b'n' => self.word(b"ull", Value::Null),
            _ => None,
        }
    }

    /// The text whose first quote was read.
    fn text(&mut self) -> Option<Text<'a>> {
        let (bytes, start, mut has_escapes) = (self.text.as_bytes(), self.at - 1, false);
        loop {
            self.at += memchr2(b'"', b'\\', bytes.get(self.at..)?)? + 1;
            if bytes[self.at - 1] == b'"' {
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
            *self.text.as_bytes().get(self.at - 1)?
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
        Some(&self.text[start..self.at])
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

    fn word(&mut self, rest: &[u8], value: Value<'a>) -> Option<Value<'a>> {
        self.text.as_bytes()[self.at..].starts_with(rest).then(|| {
            self.at += rest.len();
            value
        })
    }
}

/// Goes through the items of a list whose bracket was read.
#[derive(Debug, Default)]
pub(super) struct Items {
    has_begun: bool,
}

impl Items {
    /// Whether another item follows, which the caller reads. If not, takes the end of the list.
    pub(super) fn next(&mut self, scanner: &mut Scanner<'_>) -> Result<bool, Problem> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if scanner.takes(b']') {
            return Ok(false);
        }
        if is_first || scanner.takes(b',') { Ok(true) } else { Err(Problem::Syntax) }
    }
}

/// The names of the fields of objects, in the order of their columns.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Names {
    /// As they are mostly written.
    quoted: Vec<String>,
    places: HashMap<String, usize>,
}

impl Names {
    /// Adds a name that is not there, and returns its place.
    pub(super) fn add(&mut self, name: &str) -> usize {
        let place = self.quoted.len();
        self.quoted.push(serde_json::Value::from(name).to_string());
        self.places.insert(name.to_owned(), place);
        place
    }

    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }
}

/// The name of a field.
pub(super) enum Name<'a> {
    /// Its place among those known.
    Known(usize),
    New(Cow<'a, str>),
}

/// Goes through the fields of an object whose brace was read.
#[derive(Debug, Default)]
pub(super) struct Fields {
    has_begun: bool,
    /// The place of the name that most likely comes next.
    likely: usize,
}

impl Fields {
    /// The name of the next field, whose value the caller reads; `None` at the end of the object.
    pub(super) fn next<'a>(
        &mut self,
        scanner: &mut Scanner<'a>,
        names: &Names,
    ) -> Result<Option<Name<'a>>, Problem> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if scanner.takes(b'}') {
            return Ok(None);
        }
        if !is_first && !scanner.takes(b',') {
            return Err(Problem::Syntax);
        }
        let name = match names.quoted.get(self.likely) {
            Some(likely) if scanner.takes_all(likely.as_bytes()) => Name::Known(self.likely),
            _ => {
                let Some(Value::Text(name)) = scanner.value() else { return Err(Problem::Syntax) };
                let name = name.value()?;
                names.place(&name).map_or(Name::New(name), Name::Known)
            }
        };
        if let Name::Known(place) = name {
            self.likely = place + 1;
        }
        if scanner.takes(b':') { Ok(Some(name)) } else { Err(Problem::Syntax) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits() {
        let text = |quoted: &'static str| Value::Text(Text { quoted, has_escapes: quoted.contains('\\') });
        let mut scanner =
            Scanner::new(" [ \"a\\\"\",-12345678901234567890.50 ,{\"b\":[true,null,0,false] },-1e-7 ]");
        let mut found = Vec::new();
        values(&mut scanner, &mut found).unwrap();
        let expected = [
            Value::List,
            text("\"a\\\"\""),
            Value::Number("-12345678901234567890.50"),
            Value::Object,
            Value::List,
            Value::Boolean(true),
            Value::Null,
            Value::Number("0"),
            Value::Boolean(false),
            Value::Number("-1e-7"),
        ];
        assert_eq!(found, expected);
        assert!(scanner.end().is_ok());
    }

    /// All values of the next one.
    fn values<'a>(scanner: &mut Scanner<'a>, found: &mut Vec<Value<'a>>) -> Result<(), Problem> {
        let value = scanner.value().ok_or(Problem::Syntax)?;
        found.push(value);
        match value {
            Value::List => {
                let mut items = Items::default();
                while items.next(scanner)? {
                    values(scanner, found)?;
                }
            }
            Value::Object => {
                let mut fields = Fields::default();
                while fields.next(scanner, &Names::default())?.is_some() {
                    values(scanner, found)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    #[test]
    fn texts_are_what_they_mean() {
        let value = |text: &str| match Scanner::new(text).value() {
            Some(Value::Text(text)) => text.value().ok().map(Cow::into_owned),
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
    }

    #[test]
    fn names_are_known_however_they_are_written() {
        let mut names = Names::default();
        for (place, name) in ["a", "b\"", "\\b", "é"].into_iter().enumerate() {
            assert_eq!(names.add(name), place);
        }
        let places = |object: &str| {
            let mut scanner = Scanner::of_object(object.as_bytes())?;
            let (mut fields, mut places) = (Fields::default(), Vec::new());
            while let Some(name) = fields.next(&mut scanner, &names)? {
                assert_eq!(scanner.value(), Some(Value::Null));
                places.push(match name {
                    Name::Known(place) => place.to_string(),
                    Name::New(name) => name.into_owned(),
                });
            }
            scanner.end()?;
            Ok::<_, Problem>(places)
        };
        for (object, expected) in [
            ("{}", vec![]),
            (r#"{"a":null,"b\"":null,"\\b":null,"é":null}"#, vec!["0", "1", "2", "3"]),
            (
                r#" { "a" : null , "\u0062\"":null, "\u005cb" :null, "\u00e9":null} "#,
                vec!["0", "1", "2", "3"],
            ),
            (r#"{"é":null,"a":null,"c":null,"b\"":null}"#, vec!["3", "0", "c", "1"]),
            // The name is a backspace.
            (r#"{"a":null,"b\"":null,"\b":null}"#, vec!["0", "1", "\u{8}"]),
            (r#"{"a":null,"a":null,"ab":null}"#, vec!["0", "0", "ab"]),
        ] {
            assert_eq!(places(object).unwrap(), expected, "{object}");
        }
        for object in
            [r#"{,"a":null}"#, r#"{"a":null"b":null}"#, r#"{"a" null}"#, r#"{"a":null,}"#, r#"{"a"}"#]
        {
            assert!(places(object).is_err(), "{object}");
        }
    }

    #[test]
    fn what_is_not_json_has_no_value() {
        for text in
            ["\"a", "\"a\\", "\"a\\\"", "01", "-", "1.", "-01", "nul", "x", "+1", ".5", "1e", "1e+", "1.e1"]
        {
            assert_eq!(Scanner::new(text).value(), None, "{text}");
        }
    }
}
