//! Infers the types of JSON fields, one value at a time.

use std::collections::HashMap;

use arrow_schema::{DataType, Field, Fields, Schema};

use super::scan::{Scanner, Token, unescaped};
use crate::files::numbers::{self, Numbers};

/// Maximum number of fields of a table, including those of nested objects.
const FIELDS_MAX: usize = 10_000;

/// Maximum depth of a value.
const DEPTH_MAX: usize = 128;

/// The values of one field.
#[derive(Debug, Default, PartialEq)]
enum Shape {
    /// Only nulls.
    #[default]
    Nothing,
    Boolean,
    Number(Numbers),
    Text,
    List(Box<Shape>),
    Object(Object),
}

/// Objects with any of these fields.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Object {
    fields: Vec<(String, Shape)>,
    places: HashMap<String, usize>,
    /// For each field, the number of the last object that had it, to detect a field that occurs twice.
    last: Vec<u64>,
}

/// State while walking through a value.
#[derive(Debug, Default)]
struct Context {
    /// Names of the fields around the value.
    path: Vec<String>,
    /// The first problem of the value, and its field.
    problem: Option<String>,
    objects: u64,
    fields: usize,
}

impl Context {
    fn problem(&mut self, what: &str) {
        let path = self.path.join(".");
        self.problem.get_or_insert_with(|| format!("field `{path}` {what}"));
    }
}

/// The fields of objects, in the order of their first appearance.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    top: Object,
    way: Context,
}

impl Shapes {
    /// Learns from one more object.
    ///
    /// # Errors
    /// What is wrong with the text, or with its fields.
    pub(super) fn add(&mut self, object: &[u8]) -> Result<(), String> {
        let mut scanner = Scanner::new(object);
        let learned = match scanner.next() {
            Some(Token::Open(b'{')) => learn_object(&mut scanner, &mut self.top, &mut self.way, 0),
            _ => None,
        };
        self.way.path.clear();
        let is_whole = learned.is_some() && scanner.is_at_end();
        match self.way.problem.take() {
            Some(problem) => Err(problem),
            None if is_whole => Ok(()),
            None => Err(reason(object)),
        }
    }

    pub(super) fn schema(&self) -> Schema {
        Schema::new(self.top.fields())
    }
}

/// Why a text is not an object, as a parser says it.
fn reason(object: &[u8]) -> String {
    let parsed = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(object);
    match parsed.err() {
        Some(error) => {
            let text = error.to_string();
            let place = format!(" at line {} column {}", error.line(), error.column());
            format!("not a JSON object: {}", text.strip_suffix(&place).unwrap_or(&text))
        }
        None => "not a JSON object".into(),
    }
}

impl Object {
    fn fields(&self) -> Fields {
        self.fields.iter().map(|(name, shape)| Field::new(name, shape.data_type(), true)).collect()
    }

    /// The position of the field, which is added if it is new. `likely` is tried first.
    fn field(&mut self, name: &str, likely: usize, way: &mut Context) -> usize {
        if self.fields.get(likely).is_some_and(|(known, _)| known == name) {
            return likely;
        }
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        way.fields += 1;
        self.fields.push((name.to_owned(), Shape::Nothing));
        self.last.push(0);
        self.places.insert(name.to_owned(), self.fields.len() - 1);
        self.fields.len() - 1
    }
}

impl Shape {
    fn data_type(&self) -> DataType {
        match self {
            Self::Nothing => DataType::Null,
            Self::Boolean => DataType::Boolean,
            Self::Number(numbers) => numbers.data_type(),
            Self::Text => DataType::Utf8,
            Self::List(items) => DataType::new_list(items.data_type(), true),
            Self::Object(object) => DataType::Struct(object.fields()),
        }
    }

    /// Learns from one more value, which is neither a list nor an object.
    fn add(&mut self, value: Self, way: &mut Context) {
        let old = std::mem::take(self);
        *self = match (old, value) {
            (Self::Nothing, new) => new,
            (Self::Number(a), Self::Number(b)) => Self::Number(a.and(b)),
            (old, new) if old == new => old,
            (old @ (Self::List(_) | Self::Object(_)), _) => {
                way.problem(&format!("has a single value here, but {} before", old.kind()));
                old
            }
            // Mixed values are read as text, as they are written.
            _ => Self::Text,
        };
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
            _ => "a single value",
        }
    }
}

/// Learns from the value that begins with a token. `None` if the text is not JSON.
fn learn(
    token: Token<'_>,
    scanner: &mut Scanner<'_>,
    shape: &mut Shape,
    way: &mut Context,
    depth: usize,
) -> Option<()> {
    if depth > DEPTH_MAX {
        way.problem(&format!("has more than {DEPTH_MAX} levels"));
        return None;
    }
    match token {
        Token::Null => {}
        Token::Boolean => shape.add(Shape::Boolean, way),
        Token::Number(text) => {
            let number = Numbers::of(text).map_or(Shape::Text, Shape::Number);
            shape.add(number, way);
        }
        Token::Text(_) => shape.add(Shape::Text, way),
        Token::Open(b'[') => {
            if *shape == Shape::Nothing {
                *shape = Shape::List(Box::default());
            }
            let mut unfit = Shape::Nothing;
            let items = match shape {
                Shape::List(items) => &mut **items,
                other => {
                    way.problem(&format!("has a list here, but {} before", other.kind()));
                    &mut unfit
                }
            };
            learn_items(scanner, items, way, depth)?;
        }
        Token::Open(_) => {
            if *shape == Shape::Nothing {
                *shape = Shape::Object(Object::default());
            }
            let mut unfit = Object::default();
            let object = match shape {
                Shape::Object(object) => object,
                other => {
                    way.problem(&format!("has an object here, but {} before", other.kind()));
                    &mut unfit
                }
            };
            learn_object(scanner, object, way, depth)?;
        }
        Token::Close(_) | Token::Comma | Token::Colon => return None,
    }
    Some(())
}

/// Learns from the items of a list, after its bracket.
fn learn_items(scanner: &mut Scanner<'_>, items: &mut Shape, way: &mut Context, depth: usize) -> Option<()> {
    let mut token = scanner.next()?;
    if token == Token::Close(b']') {
        return Some(());
    }
    loop {
        learn(token, scanner, items, way, depth + 1)?;
        match scanner.next()? {
            Token::Comma => token = scanner.next()?,
            Token::Close(b']') => return Some(()),
            _ => return None,
        }
    }
}

/// Learns from the fields of an object, after its brace.
fn learn_object(
    scanner: &mut Scanner<'_>,
    object: &mut Object,
    way: &mut Context,
    depth: usize,
) -> Option<()> {
    way.objects += 1;
    let number = way.objects;
    let mut likely = 0;
    let mut token = scanner.next()?;
    if token == Token::Close(b'}') {
        return Some(());
    }
    loop {
        let Token::Text(name) = token else { return None };
        let place = object.field(&unescaped(name)?, likely, way);
        if way.fields > FIELDS_MAX {
            way.problem.get_or_insert_with(|| format!("more than {FIELDS_MAX} different fields"));
            return None;
        }
        likely = place + 1;
        let is_repeated = std::mem::replace(&mut object.last[place], number) == number;
        let (name, shape) = &mut object.fields[place];
        way.path.push(name.clone());
        if is_repeated {
            way.problem("occurs twice in one object");
        }
        if scanner.next()? != Token::Colon {
            return None;
        }
        learn(scanner.next()?, scanner, shape, way, depth + 1)?;
        way.path.pop();
        match scanner.next()? {
            Token::Comma => token = scanner.next()?,
            Token::Close(b'}') => return Some(()),
            _ => return None,
        }
    }
}

/// The type of a field that has these types in two files.
pub(super) fn common(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{List, Null, Struct, Utf8};
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (List(a), List(b)) => DataType::new_list(common(a.data_type(), b.data_type())?, true),
        (Struct(a), Struct(b)) => {
            let mut fields: Vec<Field> = a.iter().map(|field| field.as_ref().clone()).collect();
            for field in b {
                match fields.iter_mut().find(|known| known.name() == field.name()) {
                    Some(known) => known.set_data_type(common(known.data_type(), field.data_type())?),
                    None => fields.push(field.as_ref().clone()),
                }
            }
            Struct(fields.into())
        }
        (a, b) if a.is_nested() || b.is_nested() => return None,
        (a, b) => numbers::common(a, b).unwrap_or(Utf8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(lines: &[&str]) -> Result<Schema, String> {
        let mut shapes = Shapes::default();
        for line in lines {
            shapes.add(line.as_bytes())?;
        }
        Ok(shapes.schema())
    }

    #[test]
    fn fields_have_types_that_hold_all_their_values() {
        use DataType::{Boolean, Decimal128, Float64, Int64, Null, Utf8};
        let list = |of: DataType| DataType::new_list(of, true);
        let object = |name: &str, of: DataType| DataType::Struct(vec![Field::new(name, of, true)].into());
        let cases: &[(&[&str], DataType)] = &[
            (&["1", "-2"], Int64),
            (&["1", "null", "2.5"], Float64),
            (&["2.5", "9007199254740993"], Decimal128(38, 1)),
            (&["18446744073709551615", "1"], Decimal128(38, 0)),
            (&["123456789012345678901234567890", "1.5"], Decimal128(38, 1)),
            (&["1e400"], Utf8),
            (&["0.1", "0.30000000000000004", "1e-7"], Float64),
            (&["true", "false"], Boolean),
            (&["true", "1"], Utf8),
            (&["null"], Null),
            (&["[]", "[1, 2.5]", "null"], list(Float64)),
            (&["{\"b\": 1}", "{}"], object("b", Int64)),
            (&["[{\"b\": \"x\"}]"], list(object("b", Utf8))),
        ];
        for (values, expected) in cases {
            let lines: Vec<String> = values.iter().map(|value| format!("{{\"a\": {value}}}")).collect();
            let schema = learn(&lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
            assert_eq!(schema.field(0).data_type(), expected, "{values:?}");
        }
        let order = learn(&["{\"z\": 1}", "{\"a\": 1, \"z\": 2, \"b\": 3}"]).unwrap();
        let names: Vec<_> = order.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["z", "a", "b"]);
    }

    #[test]
    fn conflicting_types_of_a_field_are_errors() {
        for (lines, expected) in [
            (
                ["{\"a\": {\"b\": 1}}", "{\"a\": {\"b\": [1]}}"],
                "field `a.b` has a list here, but a single value before",
            ),
            (["{\"a\": [1]}", "{\"a\": 1}"], "field `a` has a single value here, but a list before"),
            (["{\"a\": 1}", "{\"a\": {}}"], "field `a` has an object here, but a single value before"),
            (["{\"a\": 1}", "{\"b\": {\"a\": 1, \"a\": 2}}"], "field `b.a` occurs twice in one object"),
        ] {
            assert_eq!(learn(&lines).unwrap_err(), expected);
        }
        for text in ["[1]", "{\"a\": 01}", "{\"a\" 1}", "{\"a\": 1,}", "{\"a\": 1} x", "{\"a\": [1", ""] {
            assert!(learn(&[text]).unwrap_err().starts_with("not a JSON object: "), "{text}");
        }
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(200), "]".repeat(200));
        assert_eq!(learn(&[&deep]).unwrap_err(), "field `a` has more than 128 levels");
    }
}
