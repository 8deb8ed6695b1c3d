//! Connections: statements, and what is in the source.

use std::collections::{HashMap, HashSet};

use adbc_core::error::{Result, Status};
use adbc_core::options::{InfoCode, IsolationLevel, ObjectDepth, OptionConnection, OptionValue};
use adbc_core::{CancelHandle, Connection, Optionable, constants, schemas};
use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, RecordBatch, RecordBatchIterator, RecordBatchReader, StringArray};
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use lightship::blocking;
use lightship::{Location, catalog};

use crate::errors::{error, from_library, not_implemented};
use crate::info::info;
use crate::objects::{Key, ListedColumn, Objects, Table, Wanted};
use crate::partitions;
use crate::settings::{Settings, double_of, int_of, unknown};
use crate::statement::{LightshipStatement, Running};
use crate::statistics::{self, Statistic, StatisticValue};

/// Columns that are listed at most.
const COLUMNS_MAX: usize = 1_000_000;

/// A connection to one or several sources.
pub struct LightshipConnection {
    connection: blocking::Connection,
    settings: Settings,
    read_only: bool,
    running: Running,
}

impl LightshipConnection {
    pub(crate) fn new(connection: blocking::Connection, settings: Settings) -> Self {
        Self { connection, settings, read_only: false, running: Running::default() }
    }

    fn location(&self) -> &Location {
        &self.connection.locations()[0]
    }

    /// The first source: what is in a connection with several is listed by this one.
    fn first(&self) -> blocking::Connection {
        match self.connection.locations() {
            [_] => self.connection.clone(),
            _ => self.connection.source(0).unwrap_or_else(|| self.connection.clone()),
        }
    }

    /// The rows of a query at the first source, as text.
    fn rows<const COLUMNS: usize>(&self, sql: &str) -> Result<Vec<[Option<String>; COLUMNS]>> {
        let mut reader = self.running.query(&self.first(), sql)?;
        let mut rows = Vec::new();
        while let Some(batch) = reader.next_batch().map_err(|failure| from_library(&failure))? {
            if rows.len() + batch.num_rows() > COLUMNS_MAX {
                return Err(error(Status::Unknown, format!("more than {COLUMNS_MAX} columns: name a table")));
            }
            let columns: Vec<_> = batch
                .columns()
                .iter()
                .map(|column| arrow_cast::cast(column, &DataType::Utf8))
                .collect::<std::result::Result<_, ArrowError>>()?;
            for row in 0..batch.num_rows() {
                rows.push(std::array::from_fn(|at| {
                    let column = columns.get(at)?.as_string::<i32>();
                    column.is_valid(row).then(|| column.value(row).to_owned())
                }));
            }
        }
        Ok(rows)
    }

    fn catalog(&self) -> Result<Option<String>> {
        let rows = self.rows::<1>(catalog::catalog(self.location()))?;
        Ok(rows.into_iter().next().and_then(|[name]| name))
    }

    fn schemas(&self, wanted: &Wanted<'_>) -> Result<Vec<String>> {
        let mut names = match catalog::schemas(self.location()) {
            Some(sql) => self.rows::<1>(sql)?.into_iter().filter_map(|[name]| name).collect(),
            None => vec![String::new()],
        };
        names.retain(|schema| wanted.has_schema(schema));
        Ok(names)
    }

    /// What the source knows of the values of columns. It is never exact.
    fn column_statistics(&self, wanted: &Wanted<'_>) -> Result<Vec<Statistic>> {
        let Some(sql) = catalog::column_statistics(self.location()) else { return Ok(Vec::new()) };
        let mut statistics = Vec::new();
        for [schema, table, column, bytes, distinct, nulls] in self.rows(sql)? {
            let (Some(schema), Some(table), Some(column)) = (schema, table, column) else { continue };
            if !wanted.has(&schema, &table) {
                continue;
            }
            for (key, value) in [
                (constants::ADBC_STATISTIC_AVERAGE_BYTE_WIDTH_KEY, bytes),
                (constants::ADBC_STATISTIC_DISTINCT_COUNT_KEY, distinct),
                (constants::ADBC_STATISTIC_NULL_COUNT_KEY, nulls),
            ] {
                let Some(value) = value.and_then(|value| value.parse().ok()) else { continue };
                statistics.push(Statistic {
                    schema: schema.clone(),
                    table: table.clone(),
                    column: Some(column.clone()),
                    key,
                    value: StatisticValue::About(value),
                });
            }
        }
        Ok(statistics)
    }

    /// The numbers of rows of tables: the source's estimates, or counted. Tables that the source has no estimate for are left
    /// out, and so are views.
    fn row_counts(&self, wanted: &Wanted<'_>, is_approximate: bool) -> Result<Vec<Statistic>> {
        let location = self.location();
        let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
        if let (true, Some(sql)) = (is_approximate, catalog::row_counts(location)) {
            let listed = self.rows::<3>(sql)?.into_iter().filter_map(|[schema, table, rows]| {
                let count = Statistic::row_count(schema?, table?, number(rows)?, is_approximate);
                wanted.has(&count.schema, &count.table).then_some(count)
            });
            return Ok(listed.collect());
        }
        let mut counts = Vec::new();
        for table in self.tables(ObjectDepth::Tables, wanted)? {
            if table.is_view() {
                continue;
            }
            let (schema, table) = table.full_name();
            let sql = catalog::all_rows(location, Some(&schema), &table);
            let rows = if is_approximate {
                // It knows the estimate before the first row. Dropping it cancels the query.
                self.running.query(&self.first(), &sql)?.rows_estimate()
            } else {
                let counted = self.rows::<1>(&catalog::count(location, Some(&schema), &table))?;
                number(counted.into_iter().next().and_then(|[count]| count))
            };
            counts.extend(rows.map(|rows| Statistic::row_count(schema, table, rows, is_approximate)));
        }
        Ok(counts)
    }

    /// The tables and their schemas. The schema is empty if the source has no schemas.
    fn tables(&self, depth: ObjectDepth, wanted: &Wanted<'_>) -> Result<Vec<Table>> {
        let location = self.location();
        let has_schemas = catalog::schemas(location).is_some();
        let listed = if has_schemas {
            self.rows::<3>(catalog::tables(location))?
        } else {
            let rows = self.rows::<2>(catalog::tables(location))?;
            rows.into_iter().map(|[name, kind]| [Some(String::new()), name, kind]).collect()
        };
        let mut tables: Vec<Table> = listed
            .into_iter()
            .filter_map(|[schema, name, kind]| Some(Table::new(schema?, name?, kind?)))
            .filter(|table| wanted.has_table(table))
            .collect();
        if !matches!(depth, ObjectDepth::All | ObjectDepth::Columns) {
            return Ok(tables);
        }
        let places: HashMap<_, _> =
            tables.iter().enumerate().map(|(at, table)| (table.full_name(), at)).collect();
        let columns = self.rows(catalog::all_columns(location))?;
        for [schema, table, name, type_name, nullable, default, counted, computed] in columns {
            let (Some(schema), Some(table), Some(name)) = (schema, table, name) else { continue };
            if let Some(&at) = places.get(&(schema, table)) {
                let column = ListedColumn { name, type_name, nullable, default, counted, computed };
                tables[at].add_column(column, wanted);
            }
        }
        if let Some(sql) = catalog::keys(location) {
            for [schema, table, name, kind, column, of_schema, of_table, of_column] in self.rows(sql)? {
                let (Some(schema), Some(table), Some(kind), Some(column)) = (schema, table, kind, column)
                else {
                    continue;
                };
                if let Some(&at) = places.get(&(schema, table)) {
                    let of = of_table
                        .zip(of_column)
                        .map(|(table, column)| [of_schema.unwrap_or_default(), table, column]);
                    Key::add(&mut tables[at].keys, name, kind, column, of);
                }
            }
        }
        Ok(tables)
    }
}

fn of_batch(batch: RecordBatch) -> Box<dyn RecordBatchReader + Send> {
    let schema = batch.schema();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

impl Optionable for LightshipConnection {
    type Option = OptionConnection;

    fn set_option(&mut self, key: OptionConnection, value: OptionValue) -> Result<()> {
        let is_default = |value: &OptionValue| matches!(value, OptionValue::String(text) if *text == String::from(IsolationLevel::Default));
        match &key {
            OptionConnection::AutoCommit => match bool::try_from(&value)? {
                true => Ok(()),
                false => Err(not_implemented("transactions: every statement is one of its own")),
            },
            OptionConnection::ReadOnly => {
                self.read_only = bool::try_from(&value)?;
                Ok(())
            }
            OptionConnection::IsolationLevel if is_default(&value) => Ok(()),
            OptionConnection::IsolationLevel => Err(not_implemented("isolation levels")),
            OptionConnection::CurrentCatalog | OptionConnection::CurrentSchema => {
                Err(not_implemented("changing the catalog or schema: name it in the URI or in SQL"))
            }
            _ => {
                self.settings.set(key.as_ref(), value)?;
                self.connection = self.connection.with_options(self.settings.options()?);
                Ok(())
            }
        }
    }

    fn get_option_string(&self, key: OptionConnection) -> Result<String> {
        let on = |on: bool| {
            if on { constants::ADBC_OPTION_VALUE_ENABLED } else { constants::ADBC_OPTION_VALUE_DISABLED }
                .to_owned()
        };
        match &key {
            OptionConnection::AutoCommit => Ok(on(true)),
            OptionConnection::ReadOnly => Ok(on(self.read_only)),
            OptionConnection::IsolationLevel => Ok(IsolationLevel::Default.into()),
            OptionConnection::CurrentCatalog => self.catalog()?.ok_or_else(|| unknown(key.as_ref())),
            OptionConnection::CurrentSchema => match self.location() {
                Location::Postgres(_) => {
                    let rows = self.rows::<1>("select current_schema()::text as schema")?;
                    rows.into_iter().next().and_then(|[name]| name).ok_or_else(|| unknown(key.as_ref()))
                }
                location if catalog::schemas(location).is_some() => Ok("public".to_owned()),
                _ => Ok(String::new()),
            },
            _ => self.settings.get(key.as_ref()),
        }
    }

    fn get_option_bytes(&self, key: OptionConnection) -> Result<Vec<u8>> {
        self.get_option_string(key).map(String::into_bytes)
    }

    fn get_option_int(&self, key: OptionConnection) -> Result<i64> {
        int_of(&self.get_option_string(key)?)
    }

    fn get_option_double(&self, key: OptionConnection) -> Result<f64> {
        double_of(&self.get_option_string(key)?)
    }
}

impl Connection for LightshipConnection {
    type StatementType = LightshipStatement;

    fn new_statement(&mut self) -> Result<LightshipStatement> {
        Ok(LightshipStatement::new(self.connection.clone(), self.settings.clone(), self.read_only))
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(self.running.clone())
    }

    fn get_info(
        &self,
        codes: Option<HashSet<InfoCode>>,
    ) -> Result<Box<dyn RecordBatchReader + Send + 'static>> {
        let is_wanted = codes.as_ref().is_none_or(|codes| codes.contains(&InfoCode::VendorVersion));
        let version = match catalog::version(self.location()).filter(|_| is_wanted) {
            Some(sql) => self.rows::<1>(sql)?.into_iter().next().and_then(|[version]| version),
            None => None,
        };
        Ok(of_batch(info(self.location(), version, codes.as_ref())?))
    }

    fn get_objects(
        &self,
        depth: ObjectDepth,
        catalog: Option<&str>,
        db_schema: Option<&str>,
        table_name: Option<&str>,
        table_type: Option<Vec<&str>>,
        column_name: Option<&str>,
    ) -> Result<Box<dyn RecordBatchReader + Send + 'static>> {
        let wanted =
            Wanted { catalog, schema: db_schema, table: table_name, types: table_type, column: column_name };
        let name = self.catalog()?.unwrap_or_default();
        let mut objects =
            Objects { catalog: wanted.has_catalog(&name).then_some(name), ..Objects::default() };
        if objects.catalog.is_some() && depth != ObjectDepth::Catalogs {
            objects.schemas = self.schemas(&wanted)?;
            if depth != ObjectDepth::Schemas {
                objects.tables = self.tables(depth, &wanted)?;
            }
        }
        Ok(of_batch(objects.batch(depth)?))
    }

    fn get_table_schema(
        &self,
        catalog: Option<&str>,
        db_schema: Option<&str>,
        table_name: &str,
    ) -> Result<Schema> {
        if let Some(named) = catalog.filter(|named| !named.is_empty())
            && self.catalog()?.as_deref() != Some(named)
        {
            return Err(error(Status::NotFound, format!("there is no catalog {named}")));
        }
        let sql = catalog::no_rows(self.location(), db_schema, table_name);
        let reader = self.running.query(&self.connection, &sql)?;
        reader.columns().map(|schema| schema.as_ref().clone()).map_err(|failure| from_library(&failure))
    }

    fn get_table_types(&self) -> Result<Box<dyn RecordBatchReader + Send + 'static>> {
        let types: &[&str] = match self.location() {
            Location::Postgres(_) => &["table", "view", "materialized view", "foreign table"],
            _ => &["table", "view"],
        };
        let schema: SchemaRef = schemas::GET_TABLE_TYPES_SCHEMA.clone();
        let types = StringArray::from(types.to_vec());
        Ok(of_batch(RecordBatch::try_new(schema, vec![std::sync::Arc::new(types)])?))
    }

    fn get_statistic_names(&self) -> Result<Box<dyn RecordBatchReader + Send + 'static>> {
        // Those of ADBC have names already.
        Ok(of_batch(RecordBatch::new_empty(schemas::GET_STATISTIC_NAMES_SCHEMA.clone())))
    }

    fn get_statistics(
        &self,
        catalog: Option<&str>,
        db_schema: Option<&str>,
        table_name: Option<&str>,
        approximate: bool,
    ) -> Result<Box<dyn RecordBatchReader + Send + 'static>> {
        let wanted = Wanted { catalog, schema: db_schema, table: table_name, ..Wanted::default() };
        let name = self.catalog()?.unwrap_or_default();
        if !wanted.has_catalog(&name) {
            return Ok(of_batch(RecordBatch::new_empty(schemas::GET_STATISTICS_SCHEMA.clone())));
        }
        let names = self.schemas(&wanted)?;
        let mut found = self.row_counts(&wanted, approximate)?;
        if approximate {
            found.extend(self.column_statistics(&wanted)?);
        }
        Ok(of_batch(statistics::batch(&name, &names, &found)?))
    }

    fn commit(&mut self) -> Result<()> {
        Err(error(Status::InvalidState, "autocommit is on: every statement is a transaction of its own"))
    }

    fn rollback(&mut self) -> Result<()> {
        self.commit()
    }

    fn read_partition(
        &self,
        partition: impl AsRef<[u8]>,
    ) -> Result<Box<dyn RecordBatchReader + Send + 'static>> {
        Ok(Box::new(partitions::read(&self.connection, &self.running, partition.as_ref())?))
    }
}
