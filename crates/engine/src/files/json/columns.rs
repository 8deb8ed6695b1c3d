//! Objects as columns of the types of a table.
//!
//! Values are parsed from the text as it is written, so that no number is changed on the way: 1.5 is not 1 in a column of
//! integers.

use std::sync::Arc;

use arrow_array::builder::NullBufferBuilder;
use arrow_array::{ArrayRef, ListArray, NullArray, RecordBatch, RecordBatchOptions, StructArray};
use arrow_schema::{ArrowError, DataType, FieldRef, Fields, SchemaRef};
use datafusion::arrow::buffer::{OffsetBuffer, ScalarBuffer};

use super::problem::Problem;
use super::scan::{self, Items, Name, Names, Scanner, Value};
use crate::files::values::{self, Column};

/// Columns with the rows of a batch.
pub(super) struct Columns {
    schema: SchemaRef,
    objects: Objects,
}

impl Columns {
    /// Columns with room for this many rows.
    pub(super) fn new(schema: SchemaRef, rows: usize) -> Self {
        let objects = Objects::new(schema.fields(), rows);
        Self { schema, objects }
    }

    /// Adds an object as a row.
    ///
    /// # Errors
    /// What is wrong with the text, or with its fields. The columns can't be used any more.
    pub(super) fn add(&mut self, object: &[u8]) -> Result<(), Problem> {
        let mut scanner = Scanner::of_object(object)?;
        self.objects.add(&mut scanner)?;
        scanner.end()
    }

    pub(super) fn finish(self) -> Result<RecordBatch, ArrowError> {
        let (rows, columns) = self.objects.finish()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema, columns, &options)
    }
}

/// The values of one field.
enum Values {
    /// Only nulls were found where the type was inferred.
    Nothing {
        rows: usize,
    },
    Single(DataType, Box<dyn Column>),
    List(Box<Lists>),
    Object(Box<Objects>, NullBufferBuilder),
}

impl Values {
    fn new(data_type: &DataType, rows: usize) -> Self {
        match data_type {
            DataType::Null => Self::Nothing { rows: 0 },
            DataType::List(item) => Self::List(Box::new(Lists::new(item, rows))),
            DataType::Struct(fields) => {
                Self::Object(Box::new(Objects::new(fields, rows)), NullBufferBuilder::new(rows))
            }
            single => Self::Single(single.clone(), values::column(single, rows)),
        }
    }

    fn push_null(&mut self) {
        match self {
            Self::Nothing { rows } => *rows += 1,
            Self::Single(_, column) => column.push_null(),
            Self::List(lists) => lists.end(false),
            Self::Object(objects, is_there) => {
                objects.push_null();
                is_there.append_null();
            }
        }
    }

    /// Adds the next value.
    fn add(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Problem> {
        let Some(value) = scanner.value() else { return Err(Problem::Syntax) };
        match (self, value) {
            (values, Value::Null) => {
                values.push_null();
                Ok(())
            }
            (Self::Single(of, column), Value::Number(text)) => single(of, &mut **column, text),
            (Self::Single(of, column), Value::Text(text)) => single(of, &mut **column, &text.value()?),
            (Self::Single(of, column), Value::Boolean(value)) => {
                single(of, &mut **column, if value { "true" } else { "false" })
            }
            (Self::List(lists), Value::List) => lists.add(scanner),
            (Self::Object(objects, is_there), Value::Object) => {
                is_there.append_non_null();
                objects.add(scanner)
            }
            (values, value) => Err(values.unlike(value)),
        }
    }

    fn unlike(&self, value: Value<'_>) -> Problem {
        let found = match value {
            Value::List => "a list",
            Value::Object => "an object",
            _ => "a single value",
        };
        let expected = match self {
            Self::Nothing { .. } => "only null",
            Self::Single(..) => "a single value",
            Self::List(_) => "a list",
            Self::Object(..) => "an object",
        };
        Problem::field(format!("has {found} here, but {expected} before"))
    }

    fn finish(self) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Nothing { rows } => Arc::new(NullArray::new(rows)),
            Self::Single(_, mut column) => column.finish(),
            Self::List(lists) => Arc::new(lists.finish()?),
            Self::Object(objects, mut is_there) => {
                let fields = objects.fields.clone();
                let (rows, columns) = objects.finish()?;
                Arc::new(StructArray::try_new_with_length(fields, columns, is_there.finish(), rows)?)
            }
        })
    }
}

/// Adds a value that is neither a list nor an object.
fn single(data_type: &DataType, column: &mut dyn Column, text: &str) -> Result<(), Problem> {
    if column.push(text) {
        return Ok(());
    }
    Err(Problem::Value(Vec::new(), values::misfit(text, data_type)))
}

struct Lists {
    item: FieldRef,
    items: Values,
    item_count: i32,
    /// Where each list begins among the items, and where the last one ends.
    offsets: Vec<i32>,
    is_there: NullBufferBuilder,
}

impl Lists {
    fn new(item: &FieldRef, rows: usize) -> Self {
        Self {
            item: item.clone(),
            items: Values::new(item.data_type(), rows),
            item_count: 0,
            offsets: vec![0],
            is_there: NullBufferBuilder::new(rows),
        }
    }

    fn add(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Problem> {
        let mut rest = Items::default();
        while rest.next(scanner)? {
            self.items.add(scanner)?;
            // A batch has fewer bytes.
            self.item_count += 1;
        }
        self.end(true);
        Ok(())
    }

    fn end(&mut self, is_there: bool) {
        self.offsets.push(self.item_count);
        self.is_there.append(is_there);
    }

    fn finish(mut self) -> Result<ListArray, ArrowError> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        ListArray::try_new(self.item.clone(), offsets, self.items.finish()?, self.is_there.finish())
    }
}

struct Objects {
    fields: Fields,
    names: Names,
    columns: Vec<Values>,
    /// How many rows each column has.
    filled: Vec<usize>,
    rows: usize,
}

impl Objects {
    fn new(fields: &Fields, rows: usize) -> Self {
        let mut names = Names::default();
        for field in fields {
            names.add(field.name());
        }
        Self {
            fields: fields.clone(),
            names,
            columns: fields.iter().map(|field| Values::new(field.data_type(), rows)).collect(),
            filled: vec![0; fields.len()],
            rows: 0,
        }
    }

    fn add(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Problem> {
        self.rows += 1;
        let (mut rest, mut found) = (scan::Fields::default(), 0);
        while let Some(name) = rest.next(scanner, &self.names)? {
            let place = match name {
                Name::Known(place) => place,
                Name::New(name) => return Err(Problem::Unknown(Vec::new()).inside(&name)),
            };
            found += 1;
            let added = match std::mem::replace(&mut self.filled[place], self.rows) == self.rows {
                true => Err(Problem::twice()),
                false => self.columns[place].add(scanner),
            };
            added.map_err(|problem| problem.inside(self.fields[place].name()))?;
        }
        if found < self.columns.len() {
            self.fill();
        }
        Ok(())
    }

    /// Gives null to the columns that have no value in the last row.
    fn fill(&mut self) {
        for (column, filled) in self.columns.iter_mut().zip(&mut self.filled) {
            if *filled < self.rows {
                column.push_null();
                *filled = self.rows;
            }
        }
    }

    fn push_null(&mut self) {
        self.rows += 1;
        self.fill();
    }

    fn finish(self) -> Result<(usize, Vec<ArrayRef>), ArrowError> {
        let columns = self.columns.into_iter().map(Values::finish).collect::<Result<_, _>>()?;
        Ok((self.rows, columns))
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Array as _;
    use datafusion::arrow::json::ReaderBuilder;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::files::json::shape::Shapes;

    fn schema(lines: &[String]) -> SchemaRef {
        let mut shapes = Shapes::default();
        lines.iter().for_each(|line| shapes.add(line.as_bytes()).unwrap());
        Arc::new(shapes.schema())
    }

    fn columns(schema: &SchemaRef, lines: &[String]) -> Result<RecordBatch, String> {
        let mut columns = Columns::new(schema.clone(), lines.len());
        for line in lines {
            columns.add(line.as_bytes()).map_err(|problem| problem.message(line.as_bytes()))?;
        }
        Ok(columns.finish().unwrap())
    }

    /// An object in which a field has the same kind of value each time.
    fn object() -> impl Strategy<Value = Value> {
        let text = proptest::sample::select(vec!["", "x", "\n\"\\", "é\u{1F600}", "{\"a\":[1]}"]);
        let inner = || {
            let numbers = proptest::collection::vec(proptest::option::of(any::<i32>()), 0..4);
            (proptest::option::of(numbers), proptest::option::of(any::<bool>()))
                .prop_map(|(list, flag)| json!({"list": list, "flag": flag}))
        };
        let fields = (
            proptest::option::of(any::<i64>()),
            proptest::option::of(-1e9..1e9),
            proptest::option::of(text),
            proptest::option::of(inner()),
            proptest::option::of(proptest::collection::vec(inner(), 0..3)),
            proptest::collection::vec(0_usize..5, 0..3),
        );
        fields.prop_map(|(integer, double, text, object, list, absent)| {
            let mut value = json!({"i": integer, "d": double, "té\"t": text, "o": object, "l": list});
            let fields = value.as_object_mut().unwrap();
            for place in absent {
                fields.remove(["i", "d", "té\"t", "o", "l"][place]);
            }
            value
        })
    }

    proptest! {
        #[test]
        fn columns_are_those_of_another_decoder(
            objects in proptest::collection::vec(object(), 1..20),
            pretty in any::<bool>(),
        ) {
            let line = |object: &Value| if pretty { format!("{object:#}") } else { object.to_string() };
            let lines: Vec<String> = objects.iter().map(line).collect();
            let schema = schema(&lines);
            let text = lines.join("\n");
            let mut reader = ReaderBuilder::new(schema.clone()).build(text.as_bytes()).unwrap();
            let expected = reader.next().unwrap().unwrap();
            prop_assert_eq!(columns(&schema, &lines).unwrap(), expected);
        }

        /// Whatever the bytes are, it is the same for both whether they are an object.
        #[test]
        fn what_is_no_object_for_a_parser_is_refused(
            text in "[{}\\[\\],:\"\\\\atruenl0-9.e +-]{0,12}|\\{\"a\":[0-9.eE+-]{0,6}\\}",
        ) {
            let schema: SchemaRef = Arc::new(arrow_schema::Schema::new(vec![
                arrow_schema::Field::new("a", DataType::Utf8, true),
            ]));
            let parsed = serde_json::from_str::<serde_json::Map<String, Value>>(&text);
            match columns(&schema, std::slice::from_ref(&text)) {
                // A parser also refuses numbers that are too large, which text holds.
                Ok(_) => prop_assert!(parsed.is_ok() || text.contains(['e', 'E'])),
                Err(problem) if problem.starts_with("not a JSON object") => prop_assert!(parsed.is_err()),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn values_are_as_they_are_written() {
        let lines = [
            r#"{"t": 1.50, "n": 12345678901234567890, "nothing": null, "empty": []}"#,
            r#"{"t": true, "n": 0.1, "nothing": null, "empty": null}"#,
            r#"{"t": "\u00e9"}"#,
            "{}",
        ];
        let lines = lines.map(str::to_owned);
        let schema = schema(&lines);
        let rows = columns(&schema, &lines).unwrap();
        assert_eq!(rows.num_rows(), 4);
        let text = |column: usize, row: usize| {
            datafusion::arrow::util::display::array_value_to_string(rows.column(column), row).unwrap()
        };
        assert_eq!([text(0, 0), text(0, 1), text(0, 2), text(0, 3)], ["1.50", "true", "é", ""]);
        assert_eq!([text(1, 0), text(1, 1)], ["12345678901234567890.0", "0.1"]);
        assert_eq!((rows.column(2).data_type(), rows.column(2).len()), (&DataType::Null, 4));
        assert_eq!([text(3, 0), text(3, 1)], ["[]", ""]);
        // Objects without any field are rows too.
        let none = Arc::new(arrow_schema::Schema::empty());
        assert_eq!(columns(&none, &["{}".to_owned(), "{}".to_owned()]).unwrap().num_rows(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_field() {
        let known = schema(&[r#"{"a": 1, "b": {"c": [1.5], "d": "x"}, "e": null, "f": true}"#.to_owned()]);
        for (object, expected) in [
            (r#"{"a": 1.5}"#, "field `a`: `1.5` is not a 64-bit integer"),
            (r#"{"b": {"c": [1, true]}}"#, "field `b.c`: `true` is not a number that fits a double"),
            (r#"{"b": {"c": 1}}"#, "field `b.c` has a single value here, but a list before"),
            (r#"{"b": [1]}"#, "field `b` has a list here, but an object before"),
            (r#"{"b": {"d": {}}}"#, "field `b.d` has an object here, but a single value before"),
            (r#"{"e": 1}"#, "field `e` has a single value here, but only null before"),
            (r#"{"f": 1}"#, "field `f`: `1` is not true or false"),
            (r#"{"b": {"c": [], "g": 1}}"#, "the table has no field `b.g`"),
            (r#"{"b": {"d": "x", "d": "y"}}"#, "field `b.d` occurs twice in one object"),
            (r#"{"a": 1"#, "not a JSON object: EOF while parsing an object"),
            (r#"{"a": 1} {"a": 2}"#, "not a JSON object: trailing characters"),
            (r#"{"b": {"d": "\ud800"}}"#, "not a JSON object: unexpected end of hex escape"),
            ("[1]", "not a JSON object: invalid type: sequence, expected a map"),
        ] {
            assert_eq!(columns(&known, &[object.to_owned()]).unwrap_err(), expected, "{object}");
        }
    }
}
