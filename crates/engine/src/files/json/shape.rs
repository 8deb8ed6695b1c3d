//! Infers the types of JSON fields, one value at a time.

use std::collections::HashMap;

use arrow_schema::{DataType, Field, Fields, Schema};

use super::problem::Problem;
use super::scan::{self, Items, Scanner, Text, Token};
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

/// Counts of what was learned.
#[derive(Debug, Default)]
struct Counts {
    objects: u64,
    fields: usize,
}

/// The fields of objects, in the order of their first appearance.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    top: Object,
    counts: Counts,
}

impl Shapes {
    /// Learns from one more object.
    ///
    /// # Errors
    /// What is wrong with the text, or with its fields.
    pub(super) fn add(&mut self, object: &[u8]) -> Result<(), Problem> {
        let mut scanner = Scanner::new(object);
        match scanner.next() {
            Some(Token::Open(b'{')) => learn_object(&mut scanner, &mut self.top, &mut self.counts, 0)?,
            _ => return Err(Problem::Syntax),
        }
        if scanner.is_at_end() { Ok(()) } else { Err(Problem::Syntax) }
    }

    pub(super) fn schema(&self) -> Schema {
        Schema::new(self.top.fields())
    }
}

impl Object {
    fn fields(&self) -> Fields {
        self.fields.iter().map(|(name, shape)| Field::new(name, shape.data_type(), true)).collect()
    }

    /// The position of the field, which is added if it is new. `likely` is tried first.
    /// `None` if the name is not valid.
    fn field(&mut self, name: Text<'_>, likely: usize, counts: &mut Counts) -> Option<usize> {
        if self.fields.get(likely).is_some_and(|(known, _)| name.is(known)) {
            return Some(likely);
        }
        let name = name.value()?;
        if let Some(place) = self.places.get(name.as_ref()) {
            return Some(*place);
        }
        counts.fields += 1;
        self.fields.push((name.as_ref().to_owned(), Shape::Nothing));
        self.last.push(0);
        self.places.insert(name.into_owned(), self.fields.len() - 1);
        Some(self.fields.len() - 1)
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
    fn add(&mut self, value: Self) -> Result<(), Problem> {
        *self = match (std::mem::take(self), value) {
            (Self::Nothing, new) => new,
            (Self::Number(a), Self::Number(b)) => Self::Number(a.and(b)),
            (old, new) if old == new => old,
            (old @ (Self::List(_) | Self::Object(_)), _) => return Err(old.unlike("a single value")),
            // Mixed values are read as text, as they are written.
            _ => Self::Text,
        };
        Ok(())
    }

    fn unlike(&self, new: &str) -> Problem {
        let before = match self {
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
            _ => "a single value",
        };
        Problem::field(format!("has {new} here, but {before} before"))
    }
}

/// Learns from the value that begins with a token.
fn learn(
    token: Token<'_>,
    scanner: &mut Scanner<'_>,
    shape: &mut Shape,
    counts: &mut Counts,
    depth: usize,
) -> Result<(), Problem> {
    if depth > DEPTH_MAX {
        return Err(Problem::field(format!("has more than {DEPTH_MAX} levels")));
    }
    match token {
        Token::Null => Ok(()),
        Token::Boolean(_) => shape.add(Shape::Boolean),
        Token::Number(text) => shape.add(Numbers::of(text).map_or(Shape::Text, Shape::Number)),
        Token::Text(_) => shape.add(Shape::Text),
        Token::Open(b'[') => {
            if *shape == Shape::Nothing {
                *shape = Shape::List(Box::default());
            }
            match shape {
                Shape::List(items) => learn_items(scanner, items, counts, depth),
                other => Err(other.unlike("a list")),
            }
        }
        Token::Open(_) => {
            if *shape == Shape::Nothing {
                *shape = Shape::Object(Object::default());
            }
            match shape {
                Shape::Object(object) => learn_object(scanner, object, counts, depth),
                other => Err(other.unlike("an object")),
            }
        }
        Token::Close(_) | Token::Comma | Token::Colon => Err(Problem::Syntax),
    }
}

/// Learns from the items of a list, after its bracket.
fn learn_items(
    scanner: &mut Scanner<'_>,
    items: &mut Shape,
    counts: &mut Counts,
    depth: usize,
) -> Result<(), Problem> {
    let mut rest = Items::default();
    while let Some(token) = rest.next(scanner)? {
        learn(token, scanner, items, counts, depth + 1)?;
    }
    Ok(())
}

/// Learns from the fields of an object, after its brace.
fn learn_object(
    scanner: &mut Scanner<'_>,
    object: &mut Object,
    counts: &mut Counts,
    depth: usize,
) -> Result<(), Problem> {
    counts.objects += 1;
    let number = counts.objects;
    let (mut rest, mut likely) = (scan::Fields::default(), 0);
    while let Some((name, value)) = rest.next(scanner)? {
        let place = object.field(name, likely, counts).ok_or(Problem::Syntax)?;
        if counts.fields > FIELDS_MAX {
            return Err(Problem::Whole(format!("more than {FIELDS_MAX} different fields")));
        }
        likely = place + 1;
        let (name, shape) = &mut object.fields[place];
        let learned = match std::mem::replace(&mut object.last[place], number) == number {
            true => Err(Problem::twice()),
            false => learn(value, scanner, shape, counts, depth + 1),
        };
        learned.map_err(|problem| problem.inside(name))?;
    }
    Ok(())
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
            let added = shapes.add(line.as_bytes());
            added.map_err(|problem| problem.message(line.as_bytes()))?;
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
