//! Statements with parameters, and descriptions of statements (`docs/format.md`, section 3).

use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::Schema;

use crate::bytes::{Put, Reader};
use crate::codec::Codec;
use crate::control::Plan;
use crate::decode::{decode, peek};
use crate::encode::Encoder;
use crate::error::{Result, malformed};
use crate::schema;

/// Bit of a hello: the server answers [`Statement`]s.
pub const CAPABILITY_STATEMENTS: u64 = 1 << 8;
/// Largest payload of a statement frame.
pub const STATEMENT_BYTES_MAX: u32 = 16 << 20;
/// The maximum number of parameters, as in PostgreSQL's protocol.
pub const PARAMETERS_MAX: usize = u16::MAX as usize;
/// The most bytes of a schema.
const SCHEMA_BYTES_MAX: usize = 2 << 20;
/// The most items of a list in a parameter.
const ITEMS_MAX: usize = 1 << 20;

/// A statement that is executed with the values of its parameters, or described.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// The statement.
    pub sql: String,
    /// The plan of the answer's transfer.
    pub plan: Plan,
    /// What to do with it.
    pub action: Action,
}

/// What to do with a [`Statement`].
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Execute it with these values: the columns of one row, in the order of the parameters. It is answered by a result,
    /// like a [`crate::control::Query`].
    Execute(RecordBatch),
    /// Say what its columns and parameters are. It is answered by a result of one column with one [`Description`].
    Describe,
}

impl Statement {
    /// As bytes.
    ///
    /// # Errors
    /// If the parameters are not one row, are too many, or can't be encoded.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.plan.put(&mut out);
        out.put_u32(self.plan.streams);
        out.put_u8(u8::from(self.action == Action::Describe));
        out.put_str(&self.sql);
        if let Action::Execute(parameters) = &self.action {
            check(parameters.num_rows() as u64, parameters.num_columns())?;
            put_schema(&mut out, parameters.schema_ref())?;
            for piece in Encoder::new(Codec::None).encode(parameters)?.pieces() {
                out.extend_from_slice(piece);
            }
        }
        Ok(out)
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("statement", bytes);
        let mut plan = Plan::read(&mut reader)?;
        plan.streams = reader.u32()?;
        if plan.streams == 0 {
            return Err(malformed("statement", "streams is 0"));
        }
        let action = reader.u8()?;
        let sql = reader.str()?.to_owned();
        let action = match action {
            0 => Action::Execute(parameters(reader)?),
            1 => {
                reader.end()?;
                Action::Describe
            }
            other => return Err(malformed("statement", format!("unknown action {other}"))),
        };
        Ok(Self { sql, plan, action })
    }
}

fn parameters(mut reader: Reader<'_>) -> Result<RecordBatch> {
    let columns = Arc::new(read_schema(&mut reader)?);
    let message = reader.rest();
    let head = peek(message)?;
    check(head.rows.into(), columns.fields().len())?;
    // What is compressed could need more memory than it has bytes here.
    if head.codec != Codec::None {
        return Err(malformed("statement", format!("parameters with codec {}", head.codec)));
    }
    let row = decode(&columns, Buffer::from_vec(message.to_vec()), STATEMENT_BYTES_MAX)?;
    row.columns().iter().try_for_each(|column| check_children(&column.to_data()))?;
    Ok(row)
}

/// Refuses values that take much more memory than bytes: items may have none, and repeated ones share theirs.
fn check_children(data: &ArrayData) -> Result<()> {
    data.child_data().iter().try_for_each(|child| {
        if child.len() > ITEMS_MAX {
            return Err(malformed("statement", format!("{} items in a parameter", child.len())));
        }
        check_children(child)
    })
}

fn check(rows: u64, columns: usize) -> Result<()> {
    match (rows, columns) {
        (1, ..=PARAMETERS_MAX) => Ok(()),
        (1, _) => Err(malformed("statement", format!("{columns} parameters"))),
        _ => Err(malformed("statement", format!("{rows} rows of parameters"))),
    }
}

/// What a statement needs and returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Columns of its result.
    pub columns: Schema,
    /// A field for each parameter, in order. Its type is `Null` if the statement does not determine it.
    pub parameters: Schema,
    /// Whether it changes rows.
    pub is_update: bool,
}

impl Description {
    /// As bytes.
    ///
    /// # Errors
    /// If types are nested too deep.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        out.put_u8(u8::from(self.is_update));
        put_schema(&mut out, &self.columns)?;
        put_schema(&mut out, &self.parameters)?;
        Ok(out)
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("description", bytes);
        let is_update = match reader.u8()? {
            0 => false,
            1 => true,
            other => return Err(malformed("description", format!("{other}, expected 0 or 1"))),
        };
        let columns = read_schema(&mut reader)?;
        let parameters = read_schema(&mut reader)?;
        reader.end()?;
        Ok(Self { columns, parameters, is_update })
    }
}

/// A schema after its length.
fn put_schema(out: &mut Vec<u8>, columns: &Schema) -> Result<()> {
    let bytes = schema::encode(columns)?;
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(&bytes);
    Ok(())
}

fn read_schema(reader: &mut Reader<'_>) -> Result<Schema> {
    let bytes = reader.u32()? as usize;
    if bytes > SCHEMA_BYTES_MAX {
        return Err(malformed("statement", format!("a schema of {bytes} bytes")));
    }
    schema::decode(reader.take(bytes)?)
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, StringArray};
    use arrow_schema::{DataType, Field};

    use super::*;

    /// A list of NULLs has no bytes for them.
    #[test]
    fn values_that_take_more_memory_than_bytes_are_refused() {
        let of = |items: usize| {
            let nulls = arrow_array::make_array(ArrayData::new_null(&DataType::Null, items));
            let field = Arc::new(Field::new("item", DataType::Null, true));
            let offsets = arrow_buffer::OffsetBuffer::from_lengths([items]);
            let list = arrow_array::ListArray::new(field, offsets, nulls, None);
            let row = RecordBatch::try_from_iter([("$1", Arc::new(list) as ArrayRef)]).unwrap();
            let statement = Statement {
                sql: "select $1".into(),
                plan: Plan { streams: 1, ..Plan::default() },
                action: Action::Execute(row),
            };
            Statement::decode(&statement.encode().unwrap()).map(|_| ())
        };
        of(ITEMS_MAX).unwrap();
        assert!(of(ITEMS_MAX + 1).unwrap_err().to_string().contains("items"));
    }

    fn row() -> RecordBatch {
        RecordBatch::try_from_iter([
            ("$1", Arc::new(Int64Array::from(vec![7])) as ArrayRef),
            ("$2", Arc::new(StringArray::from(vec![None::<&str>]))),
        ])
        .unwrap()
    }

    fn statement(action: Action) -> Statement {
        let plan = Plan { codec: None, streams: 4, ..Plan::default() };
        Statement { sql: "select $1, 'ü' || $2".into(), plan, action }
    }

    #[test]
    fn statements_are_decoded_as_they_were_encoded() {
        let none = RecordBatch::try_new_with_options(
            Arc::new(Schema::empty()),
            vec![],
            &arrow_array::RecordBatchOptions::new().with_row_count(Some(1)),
        );
        for action in [Action::Execute(row()), Action::Execute(none.unwrap()), Action::Describe] {
            let statement = statement(action);
            assert_eq!(Statement::decode(&statement.encode().unwrap()).unwrap(), statement);
        }
        let description = Description {
            columns: row().schema().as_ref().clone(),
            parameters: Schema::new(vec![Field::new("$1", DataType::Null, true)]),
            is_update: true,
        };
        assert_eq!(Description::decode(&description.encode().unwrap()).unwrap(), description);
    }

    #[test]
    fn truncated_statements_are_refused() {
        for action in [Action::Execute(row()), Action::Describe] {
            let bytes = statement(action).encode().unwrap();
            (0..bytes.len()).for_each(|len| assert!(Statement::decode(&bytes[..len]).is_err(), "{len}"));
            assert!(Statement::decode(&[&bytes, [0].as_slice()].concat()).is_err());
        }
        let empty = Description { columns: Schema::empty(), parameters: Schema::empty(), is_update: false };
        let bytes = empty.encode().unwrap();
        (0..bytes.len()).for_each(|len| assert!(Description::decode(&bytes[..len]).is_err(), "{len}"));
        assert!(Description::decode(&[&bytes, [0].as_slice()].concat()).is_err());
    }

    #[test]
    fn parameters_are_one_row() {
        for rows in [
            row().slice(0, 0),
            arrow_select::concat::concat_batches(&row().schema(), [&row(), &row()]).unwrap(),
        ] {
            assert!(statement(Action::Execute(rows)).encode().is_err());
        }
        // The number of rows is the first field of the message, after a schema of two fields.
        let bytes = statement(Action::Execute(row())).encode().unwrap();
        let message =
            bytes.len() - Encoder::new(Codec::None).encode(&row()).unwrap().payload_bytes() as usize;
        for rows in [0u8, 2, 255] {
            let mut bytes = bytes.clone();
            bytes[message] = rows;
            let error = Statement::decode(&bytes).unwrap_err().to_string();
            assert!(error.contains("rows of parameters"), "{error}");
        }
    }

    #[test]
    fn compressed_parameters_are_refused() {
        let text = StringArray::from(vec!["a".repeat(100_000)]);
        let row = RecordBatch::try_from_iter([("$1", Arc::new(text) as ArrayRef)]).unwrap();
        let plain = statement(Action::Execute(row.clone())).encode().unwrap();
        let message = Encoder::new(Codec::None).encode(&row).unwrap().payload_bytes() as usize;
        let light = Encoder::new(Codec::LightZstd).encode(&row).unwrap();
        assert_ne!(light.codec(), Codec::None);
        let bytes = [&plain[..plain.len() - message], &light.to_vec()].concat();
        let error = Statement::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains("codec"), "{error}");
    }
}
