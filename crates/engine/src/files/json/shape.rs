//! Infers the types of JSON fields, one value at a time.

use arrow_schema::{DataType, Field, Fields, Schema};

use super::problem::Problem;
use super::scan::{self, Items, Name, Names, Scanner, Value};
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
    names: Names,
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
        let mut scanner = Scanner::of_object(object)?;
        learn_object(&mut scanner, &mut self.top, &mut self.counts, 0)?;
        scanner.end()
    }

    /// Learns what was learned from other objects, which follow these.
    ///
    /// # Errors
    /// They contradict these.
    pub(super) fn and(mut self, next: Self) -> Result<Self, Problem> {
        self.top.merge(next.top)?;
        self.counts.objects += next.counts.objects;
        self.counts.fields = self.top.count();
        if self.counts.fields > FIELDS_MAX { Err(too_many_fields()) } else { Ok(self) }
    }

    pub(super) fn schema(&self) -> Schema {
        Schema::new(self.top.fields())
    }
}

fn too_many_fields() -> Problem {
    Problem::Whole(format!("more than {FIELDS_MAX} different fields"))
}

impl Object {
    fn fields(&self) -> Fields {
        self.fields.iter().map(|(name, shape)| Field::new(name, shape.data_type(), true)).collect()
    }

    /// Adds a field, and returns its place.
    fn add(&mut self, name: &str, shape: Shape) -> usize {
        self.fields.push((name.to_owned(), shape));
        self.last.push(0);
        self.names.add(name)
    }

    fn merge(&mut self, next: Self) -> Result<(), Problem> {
        for (name, shape) in next.fields {
            match self.names.place(&name) {
                Some(place) => self.fields[place].1.merge(shape)?,
                None => {
                    self.add(&name, shape);
                }
            }
        }
        Ok(())
    }

    /// The number of fields, including those of nested objects.
    fn count(&self) -> usize {
        self.fields.iter().map(|(_, shape)| 1 + shape.count()).sum()
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

    fn merge(&mut self, next: Self) -> Result<(), Problem> {
        match (&mut *self, next) {
            (_, Self::Nothing) => Ok(()),
            (Self::Nothing, next) => {
                *self = next;
                Ok(())
            }
            (Self::List(items), Self::List(next)) => items.merge(*next),
            (Self::Object(object), Self::Object(next)) => object.merge(next),
            (_, Self::List(_)) => Err(self.unlike("a list")),
            (_, Self::Object(_)) => Err(self.unlike("an object")),
            (_, single) => self.add(single),
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::List(items) => items.count(),
            Self::Object(object) => object.count(),
            _ => 0,
        }
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

/// Learns from the next value.
fn learn(
    scanner: &mut Scanner<'_>,
    shape: &mut Shape,
    counts: &mut Counts,
    depth: usize,
) -> Result<(), Problem> {
    if depth > DEPTH_MAX {
        return Err(Problem::field(format!("has more than {DEPTH_MAX} levels")));
    }
    let Some(value) = scanner.value() else { return Err(Problem::Syntax) };
    match value {
        Value::Null => Ok(()),
        Value::Boolean(_) => shape.add(Shape::Boolean),
        Value::Number(text) => shape.add(Numbers::of(text).map_or(Shape::Text, Shape::Number)),
        Value::Text(_) => shape.add(Shape::Text),
        Value::List => {
            if *shape == Shape::Nothing {
                *shape = Shape::List(Box::default());
            }
            match shape {
                Shape::List(items) => learn_items(scanner, items, counts, depth),
                other => Err(other.unlike("a list")),
            }
        }
        Value::Object => {
            if *shape == Shape::Nothing {
                *shape = Shape::Object(Object::default());
            }
            match shape {
                Shape::Object(object) => learn_object(scanner, object, counts, depth),
                other => Err(other.unlike("an object")),
            }
        }
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
    while rest.next(scanner)? {
        learn(scanner, items, counts, depth + 1)?;
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
    let mut rest = scan::Fields::default();
    while let Some(name) = rest.next(scanner, &object.names)? {
        let place = match name {
            Name::Known(place) => place,
            Name::New(_) if counts.fields == FIELDS_MAX => return Err(too_many_fields()),
            Name::New(name) => {
                counts.fields += 1;
                object.add(&name, Shape::Nothing)
            }
        };
        let (name, shape) = &mut object.fields[place];
        let learned = match std::mem::replace(&mut object.last[place], number) == number {
            true => Err(Problem::twice()),
            false => learn(scanner, shape, counts, depth + 1),
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
    use proptest::prelude::*;

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

    fn value() -> impl Strategy<Value = String> {
        let single =
            proptest::sample::select(vec!["null", "1", "2.5", "9007199254740993", "1e400", "true", "\"x\""]);
        single.prop_map(str::to_owned).prop_recursive(3, 8, 3, |value| {
            let field = ("[a-c]", value.clone()).prop_map(|(name, value)| format!("\"{name}\": {value}"));
            prop_oneof![
                proptest::collection::vec(value, 0..3).prop_map(|items| format!("[{}]", items.join(","))),
                proptest::collection::vec(field, 0..3).prop_map(|fields| format!("{{{}}}", fields.join(","))),
            ]
        })
    }

    proptest! {
        /// Whether they contradict each other, and what their fields are.
        #[test]
        fn parts_learn_what_one_reader_learns(
            values in proptest::collection::vec(("[a-c]", value()), 0..8),
            end in 0_usize..8,
        ) {
            let objects: Vec<String> =
                values.iter().map(|(name, value)| format!("{{\"{name}\": {value}}}")).collect();
            let learn = |objects: &[String]| {
                let mut shapes = Shapes::default();
                objects.iter().try_for_each(|object| shapes.add(object.as_bytes()))?;
                Ok::<_, Problem>(shapes)
            };
            let (first, next) = objects.split_at(end.min(objects.len()));
            let parts = learn(first).and_then(|first| first.and(learn(next)?));
            let whole = learn(&objects);
            let schema = |shapes: Result<Shapes, Problem>| {
                shapes.map(|shapes| (shapes.schema(), shapes.counts.fields)).map_err(|_| ())
            };
            prop_assert_eq!(schema(parts), schema(whole));
        }
    }
}
