//! Ingestion: inserts the rows that a client sends into a table that exists.
//!
//! Rows are inserted by statements of the service, of bounded size. So they are not inserted as a whole: if one
//! statement fails, the rows of those before it stay, and the error says how many they are.

use std::fmt::Write;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_flight::sql::{CommandStatementIngest, TableExistsOption, TableNotExistOption};
use arrow_schema::{Field, Fields, Schema, SchemaRef};
use lightship_wire::control::{ErrorCode, Failure};
use tonic::Status;

use crate::catalog::quoted;
use crate::command::no_transaction;
use crate::front::Front;
use crate::intake::Batches;
use crate::put::{Pieces, changed_rows};
use crate::status::{invalid, status, unsupported};

/// The most parameters of a statement, unless one row has more.
const PARAMETERS_MAX: usize = 1024;

/// What to do, depending on whether the table exists.
#[derive(Debug, Clone, Copy)]
struct Options {
    may_append: bool,
    may_create: bool,
}

impl Front {
    /// Inserts rows. Returns how many.
    pub(crate) async fn ingest(
        &self,
        command: CommandStatementIngest,
        mut batches: Batches,
    ) -> Result<i64, Status> {
        no_transaction(command.transaction_id.as_ref())?;
        if command.temporary {
            return Err(unsupported("there are no temporary tables"));
        }
        let options = options(&command)?;
        let table = table(&command)?;
        self.check_table(&table, options).await?;
        let mut inserted = 0_i64;
        let mut permit = None;
        let mut insert = None;
        while let Some(batch) = batches.next().await? {
            let insert = match &insert {
                Some(insert) => insert,
                None => {
                    let new = Insert::new(&table, batch.schema_ref())?;
                    self.check_insert(&new).await?;
                    permit = Some(self.admission.run().await.map_err(|failure| status(&failure))?);
                    &*insert.insert(new)
                }
            };
            inserted += self.insert(insert, &batch, inserted).await?;
        }
        drop(permit);
        if let (None, Some(schema)) = (&insert, batches.schema()) {
            self.check_insert(&Insert::new(&table, schema)?).await?;
        }
        Ok(inserted)
    }

    async fn check_table(&self, table: &str, options: Options) -> Result<(), Status> {
        match self.prepare(&format!("select * from {table} limit 0")).await {
            Ok(_) if options.may_append => Ok(()),
            Ok(_) => Err(Status::already_exists(format!("table {table} exists"))),
            Err(error) if error.code() != tonic::Code::InvalidArgument => Err(error),
            Err(_) if options.may_create => {
                Err(unsupported(format!("there is no table {table}, and ingestion does not create tables")))
            }
            Err(error) => Err(Status::not_found(error.message())),
        }
    }

    /// Fails if the service would refuse the rows, before any of them is inserted.
    async fn check_insert(&self, insert: &Insert) -> Result<(), Status> {
        match self.prepare(&insert.sql(1)).await?.is_update {
            true => Ok(()),
            false => Err(status(&Failure::new(ErrorCode::Forbidden, "rows can't be inserted here"))),
        }
    }

    async fn insert(&self, insert: &Insert, batch: &RecordBatch, before: i64) -> Result<i64, Status> {
        if batch.schema_ref().fields().len() != insert.columns.len() {
            return Err(invalid("the columns have changed"));
        }
        let mut inserted = 0;
        let full_sql = insert.sql(insert.rows);
        let fail = |failure: Failure, inserted: i64| {
            let message = match before + inserted {
                0 => failure.message.clone(),
                rows => format!("{}; {rows} rows were inserted before", failure.message),
            };
            status(&Failure { message, ..failure })
        };
        for piece in Pieces::new(batch, self.config.request_bytes_max.into()) {
            let piece = piece.map_err(|failure| fail(failure, inserted))?;
            for start in (0..piece.num_rows()).step_by(insert.rows) {
                let rows = insert.rows.min(piece.num_rows() - start);
                let values = insert.values(&piece, start, rows)?;
                let sql = if rows == insert.rows { full_sql.clone() } else { insert.sql(rows) };
                let ran = async { changed_rows(self.service.execute(&sql, &values).await?).await };
                inserted += ran.await.map_err(|failure| fail(failure, inserted))?;
            }
        }
        Ok(inserted)
    }
}

/// The table's name in SQL.
fn table(command: &CommandStatementIngest) -> Result<String, Status> {
    if command.table.is_empty() {
        return Err(invalid("there is no name of a table"));
    }
    let parts = [command.catalog.as_deref(), command.schema.as_deref(), Some(command.table.as_str())];
    let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
    if command.catalog.as_deref().is_some_and(|c| !c.is_empty())
        && command.schema.as_deref().is_none_or(str::is_empty)
    {
        return Err(invalid("a catalog needs a schema"));
    }
    Ok(parts.map(quoted).collect::<Vec<_>>().join("."))
}

fn options(command: &CommandStatementIngest) -> Result<Options, Status> {
    let options = command.table_definition_options.unwrap_or_default();
    let may_append = match options.if_exists() {
        TableExistsOption::Append => true,
        TableExistsOption::Replace => return Err(unsupported("ingestion does not replace tables")),
        TableExistsOption::Fail | TableExistsOption::Unspecified => false,
    };
    let may_create = options.if_not_exist() == TableNotExistOption::Create;
    Ok(Options { may_append, may_create })
}

/// A statement that inserts rows with the columns of a client.
struct Insert {
    /// Up to the values.
    start: String,
    columns: Fields,
    /// The rows of a full statement.
    rows: usize,
}

impl Insert {
    fn new(table: &str, schema: &SchemaRef) -> Result<Self, Status> {
        if schema.fields().is_empty() {
            return Err(invalid("the rows have no columns"));
        }
        let names: Vec<_> = schema.fields().iter().map(|field| quoted(field.name())).collect();
        let columns = schema.fields().clone();
        let rows = (PARAMETERS_MAX / columns.len()).max(1);
        Ok(Self { start: format!("insert into {table} ({}) values ", names.join(", ")), columns, rows })
    }

    /// The statement for this many rows.
    fn sql(&self, rows: usize) -> String {
        let mut sql = self.start.clone();
        for row in 0..rows {
            sql.push_str(if row == 0 { "(" } else { ", (" });
            for column in 0..self.columns.len() {
                let comma = if column == 0 { "" } else { ", " };
                // Writing to a string does not fail.
                let _ = write!(sql, "{comma}${}", row * self.columns.len() + column + 1);
            }
            sql.push(')');
        }
        sql
    }

    /// The values of rows, as one row of parameters.
    fn values(&self, batch: &RecordBatch, start: usize, rows: usize) -> Result<RecordBatch, Status> {
        let columns = batch.num_columns();
        let values = (0..rows * columns).map(|at| -> (Arc<Field>, ArrayRef) {
            let column = batch.column(at % columns);
            let field = Field::new(format!("${}", at + 1), column.data_type().clone(), true);
            (Arc::new(field), column.slice(start + at / columns, 1))
        });
        let (fields, values): (Vec<_>, Vec<_>) = values.unzip();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), values)
            .map_err(|error| invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, StringArray};
    use arrow_flight::sql::TableDefinitionOptions;

    use super::*;

    fn batch() -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("c")]));
        RecordBatch::try_from_iter_with_nullable([("n", numbers, false), ("te\"xt", texts, true)]).unwrap()
    }

    #[test]
    fn statements_have_a_parameter_for_each_value() {
        let batch = batch();
        let insert = Insert::new("\"t\"", &batch.schema()).unwrap();
        assert_eq!(insert.rows, 512);
        assert_eq!(insert.sql(2), "insert into \"t\" (\"n\", \"te\"\"xt\") values ($1, $2), ($3, $4)");
        let values = insert.values(&batch, 1, 2).unwrap();
        assert_eq!((values.num_rows(), values.num_columns()), (1, 4));
        assert_eq!(values.column(2).as_primitive::<Int64Type>().value(0), 3);
        assert_eq!(values.column(1).null_count(), 1);
        assert_eq!(values.schema().field(3).name(), "$4");
        assert!(Insert::new("\"t\"", &Arc::new(Schema::empty())).is_err());
    }

    #[test]
    fn commands_name_a_table_and_say_what_to_do() {
        let command = |catalog: Option<&str>, schema: Option<&str>, name: &str| CommandStatementIngest {
            catalog: catalog.map(str::to_owned),
            schema: schema.map(str::to_owned),
            table: name.into(),
            ..CommandStatementIngest::default()
        };
        assert_eq!(table(&command(None, None, "t")).unwrap(), "\"t\"");
        assert_eq!(table(&command(Some(""), Some("s"), "t")).unwrap(), "\"s\".\"t\"");
        assert_eq!(table(&command(Some("c"), Some("s"), "a\"b")).unwrap(), "\"c\".\"s\".\"a\"\"b\"");
        assert!(table(&command(None, None, "")).is_err());
        assert!(table(&command(Some("c"), None, "t")).is_err());
        let with = |if_exists: TableExistsOption, if_not_exist: TableNotExistOption| {
            let options =
                TableDefinitionOptions { if_exists: if_exists as i32, if_not_exist: if_not_exist as i32 };
            options_of(options)
        };
        assert!(with(TableExistsOption::Append, TableNotExistOption::Fail).unwrap().may_append);
        assert!(with(TableExistsOption::Append, TableNotExistOption::Create).unwrap().may_create);
        assert!(!with(TableExistsOption::Fail, TableNotExistOption::Create).unwrap().may_append);
        assert!(with(TableExistsOption::Replace, TableNotExistOption::Create).is_err());
    }

    fn options_of(options: TableDefinitionOptions) -> Result<Options, Status> {
        super::options(&CommandStatementIngest {
            table_definition_options: Some(options),
            ..CommandStatementIngest::default()
        })
    }
}
