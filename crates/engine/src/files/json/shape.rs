//! Infers the types of JSON fields, one value at a time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;

use arrow_schema::{DataType, Field, Fields, Schema};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Maximum number of fields of a table, including those of nested objects.
const FIELDS_MAX: usize = 10_000;

/// Integers up to this are exact as doubles.
const EXACT_MAX: u64 = 1 << 53;

/// The values of one field.
#[derive(Debug, Default, PartialEq)]
enum Shape {
    /// Only nulls.
    #[default]
    Nothing,
    Boolean,
    Integer {
        /// Whether some are not exact as doubles.
        wide: bool,
    },
    Float,
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
    path: RefCell<Vec<String>>,
    /// The first problem of the value, and its field.
    problem: RefCell<Option<String>>,
    objects: Cell<u64>,
    fields: Cell<usize>,
}

impl Context {
    fn problem(&self, what: &str) {
        let path = self.path.borrow().join(".");
        self.problem.borrow_mut().get_or_insert_with(|| format!("field `{path}` {what}"));
    }
}

/// The fields of objects, in the order of their first appearance.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    top: Object,
    way: Context,
}

impl Shapes {
    /// Learns from one more object. Returns the problem with its fields, if there is one.
    ///
    /// # Errors
    /// Those of the parser.
    pub(super) fn add<'de, D: Deserializer<'de>>(&mut self, object: D) -> Result<Option<String>, D::Error> {
        object.deserialize_map(Fill { object: &mut self.top, way: &self.way })?;
        Ok(self.way.problem.take())
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
    fn field(&mut self, name: &str, likely: usize, way: &Context) -> usize {
        if self.fields.get(likely).is_some_and(|(known, _)| known == name) {
            return likely;
        }
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        way.fields.set(way.fields.get() + 1);
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
            Self::Integer { .. } => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::List(items) => DataType::new_list(items.data_type(), true),
            Self::Object(object) => DataType::Struct(object.fields()),
        }
    }

    /// Learns from one more value, which is neither a list nor an object.
    fn add(&mut self, value: Self, way: &Context) {
        let old = std::mem::take(self);
        *self = match (old, value) {
            (Self::Nothing, new) => new,
            (Self::Integer { wide: a }, Self::Integer { wide: b }) => Self::Integer { wide: a || b },
            (Self::Integer { wide: false }, Self::Float) | (Self::Float, Self::Integer { wide: false }) => {
                Self::Float
            }
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

/// Learns from a value.
struct Learn<'a> {
    shape: &'a mut Shape,
    way: &'a Context,
}

impl<'de> DeserializeSeed<'de> for Learn<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Learn<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.shape.add(Shape::Boolean, self.way);
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.shape.add(Shape::Integer { wide: value.unsigned_abs() > EXACT_MAX }, self.way);
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        // Numbers beyond 64 bits with a sign are read as text, as they are written.
        let shape = match i64::try_from(value) {
            Ok(_) => Shape::Integer { wide: value > EXACT_MAX },
            Err(_) => Shape::Text,
        };
        self.shape.add(shape, self.way);
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.shape.add(Shape::Float, self.way);
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.shape.add(Shape::Text, self.way);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if *self.shape == Shape::Nothing {
            *self.shape = Shape::List(Box::default());
        }
        let mut unfit = Shape::Nothing;
        let items = match self.shape {
            Shape::List(items) => &mut **items,
            other => {
                self.way.problem(&format!("has a list here, but {} before", other.kind()));
                &mut unfit
            }
        };
        while list.next_element_seed(Learn { shape: items, way: self.way })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        if *self.shape == Shape::Nothing {
            *self.shape = Shape::Object(Object::default());
        }
        let mut unfit = Object::default();
        let object = match self.shape {
            Shape::Object(object) => object,
            other => {
                self.way.problem(&format!("has an object here, but {} before", other.kind()));
                &mut unfit
            }
        };
        Fill { object, way: self.way }.visit_map(map)
    }
}

/// Learns from the fields of an object.
struct Fill<'a> {
    object: &'a mut Object,
    way: &'a Context,
}

/// Looks up the position of a field by its name.
struct Name<'a> {
    object: &'a mut Object,
    likely: usize,
    way: &'a Context,
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<usize, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<usize, E> {
        let place = self.object.field(name, self.likely, self.way);
        if self.way.fields.get() > FIELDS_MAX {
            return Err(E::custom(format!("more than {FIELDS_MAX} different fields")));
        }
        Ok(place)
    }
}

impl<'de> Visitor<'de> for Fill<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let number = self.way.objects.get() + 1;
        self.way.objects.set(number);
        let mut likely = 0;
        while let Some(place) = map.next_key_seed(Name { object: self.object, likely, way: self.way })? {
            likely = place + 1;
            let (name, shape) = &mut self.object.fields[place];
            self.way.path.borrow_mut().push(name.clone());
            if std::mem::replace(&mut self.object.last[place], number) == number {
                self.way.problem("occurs twice in one object");
            }
            map.next_value_seed(Learn { shape, way: self.way })?;
            self.way.path.borrow_mut().pop();
        }
        Ok(())
    }
}

/// The type of a field that has these types in two files.
pub(super) fn common(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Float64, Int64, List, Null, Struct, Utf8};
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Int64, Float64) | (Float64, Int64) => Float64,
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
        _ => Utf8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(lines: &[&str]) -> Result<Schema, String> {
        let mut shapes = Shapes::default();
        for line in lines {
            let problem =
                shapes.add(&mut serde_json::Deserializer::from_str(line)).map_err(|e| e.to_string())?;
            problem.map_or(Ok(()), Err)?;
        }
        Ok(shapes.schema())
    }

    #[test]
    fn fields_have_types_that_hold_all_their_values() {
        use DataType::{Boolean, Float64, Int64, Null, Utf8};
        let list = |of: DataType| DataType::new_list(of, true);
        let object = |name: &str, of: DataType| DataType::Struct(vec![Field::new(name, of, true)].into());
        let cases: &[(&[&str], DataType)] = &[
            (&["1", "-2"], Int64),
            (&["1", "null", "2.5"], Float64),
            (&["2.5", "9007199254740993"], Utf8),
            (&["18446744073709551615"], Utf8),
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
        assert!(learn(&["[1]"]).unwrap_err().contains("expected an object"));
    }
}
