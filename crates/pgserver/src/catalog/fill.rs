//! Fills the catalog with the tables of a service.

use std::collections::HashMap;
use std::sync::PoisonError;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, Field};
use futures::StreamExt as _;
use lightship_transport::net::Service;
use lightship_wire::control::{Plan, Query};
use rusqlite::params;

use super::functions::TypeName;
use super::sets::{NUMBER, NUMBERS, NUMBERS_MAX};
use super::{Caller, Engine, keys, tables};
use crate::error::{PgError, PgResult, code};
use crate::types::{PgColumn, oid};

/// Where the service tells about its tables.
const COLUMNS: &str = "SELECT table_schema, table_name, column_name, is_nullable, data_type \
    FROM information_schema.columns WHERE table_schema <> 'information_schema' \
    ORDER BY table_schema, table_name, ordinal_position";

/// The most columns of all tables together.
pub(super) const COLUMNS_MAX: usize = 200_000;
/// OIDs from here on are the user's in PostgreSQL.
const FIRST_OID: u32 = 16_384;

/// A table of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableEntry {
    pub(super) schema: String,
    pub(super) name: String,
    /// Name, type, and whether it may be NULL.
    pub(super) columns: Vec<(String, DataType, bool)>,
    /// The columns of the primary key, in order; empty if there is none.
    pub(super) key: Vec<String>,
}

/// OIDs that were given to schemas and tables. They stay the same while the server runs, because clients ask for a
/// table's OID first, and then for more about it.
#[derive(Default)]
pub(super) struct Oids {
    by_name: HashMap<(String, String), u32>,
}

impl Oids {
    /// Names beyond that are forgotten.
    const MAX: usize = 1 << 20;

    pub(super) fn of(&mut self, schema: &str, name: &str) -> u32 {
        if self.by_name.len() >= Self::MAX {
            self.by_name.clear();
        }
        let next = FIRST_OID + 2 * self.by_name.len() as u32;
        *self.by_name.entry((schema.to_owned(), name.to_owned())).or_insert(next)
    }
}

/// Asks the service for its tables.
pub(super) async fn fetch(service: &dyn Service) -> PgResult<Vec<TableEntry>> {
    let query = Query { sql: COLUMNS.into(), plan: Plan::default() };
    let mut answer = service.query(&query).await?;
    let mut found: Vec<TableEntry> = Vec::new();
    let mut count = 0;
    while let Some(batch) = answer.rows.next().await.transpose()? {
        count += batch.num_rows();
        if count > COLUMNS_MAX {
            let message =
                format!("the tables have more than {COLUMNS_MAX} columns, the limit of the catalog");
            return Err(PgError::new(code::PROGRAM_LIMIT, message));
        }
        read(&batch, &mut found)?;
    }
    keys::fetch(service, &mut found).await?;
    Ok(found)
}

/// The rows of a batch as texts; empty ones for NULL.
pub(super) fn texts<const COLUMNS: usize>(batch: &RecordBatch) -> PgResult<Vec<[String; COLUMNS]>> {
    let texts =
        batch.columns().iter().map(|column| cast(column, &DataType::Utf8)).collect::<Result<Vec<_>, _>>()?;
    if texts.len() < COLUMNS {
        return Err(PgError::new(code::INTERNAL_ERROR, "information_schema lacks columns"));
    }
    let value = |column: usize, row: usize| {
        let column = texts[column].as_string::<i32>();
        if column.is_null(row) { String::new() } else { column.value(row).to_owned() }
    };
    Ok((0..batch.num_rows()).map(|row| std::array::from_fn(|column| value(column, row))).collect())
}

fn read(batch: &RecordBatch, found: &mut Vec<TableEntry>) -> PgResult<()> {
    for [schema, name, column, nullable, data_type] in texts::<5>(batch)? {
        if found.last().is_none_or(|table| table.schema != schema || table.name != name) {
            found.push(TableEntry { schema, name, columns: Vec::new(), key: Vec::new() });
        }
        // A type whose text Arrow does not read is shown as text; the rows have the right one.
        let data_type = data_type.parse().unwrap_or(DataType::Utf8);
        if let Some(table) = found.last_mut() {
            table.columns.push((column, data_type, nullable != "NO"));
        }
    }
    Ok(())
}

/// A type as `information_schema` has it: its name, and its name in `pg_type`.
fn type_names(oid: u32, types: &HashMap<i64, TypeName>, format: &str) -> (String, String) {
    let udt = types.get(&i64::from(oid)).map_or("text", |found| found.name.as_str()).to_owned();
    let name = if udt.starts_with('_') { "ARRAY" } else { format.split('(').next().unwrap_or(format) };
    (name.to_owned(), udt)
}

impl Engine {
    /// Creates the tables, with what is always in them.
    pub(super) fn create(&mut self) -> rusqlite::Result<()> {
        let mut sql = String::from("BEGIN;");
        for relation in tables::RELATIONS.iter() {
            // Some columns have names that are keywords.
            let columns: Vec<_> =
                relation.columns.iter().map(|(name, kind)| format!("\"{name}\" {kind}")).collect();
            sql.push_str(&format!("CREATE TABLE {} ({});", relation.name, columns.join(", ")));
        }
        sql.push_str("CREATE INDEX pg_class_oid ON pg_class (oid); CREATE INDEX pg_attribute_relid ON pg_attribute (attrelid);");
        sql.push_str("CREATE INDEX pg_type_oid ON pg_type (oid);");
        sql.push_str(&format!(
            "CREATE TABLE {NUMBERS} ({NUMBER} INTEGER PRIMARY KEY); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL \
             SELECT i + 1 FROM n WHERE i < {NUMBERS_MAX}) INSERT INTO {NUMBERS} SELECT i FROM n;"
        ));
        sql.push_str(tables::ROWS);
        sql.push_str("COMMIT;");
        self.connection.execute_batch(&sql)?;
        self.create_types()
    }

    fn create_types(&mut self) -> rusqlite::Result<()> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare(
                "INSERT INTO pg_type (oid, typname, typnamespace, typlen, typbyval, typtype, typcategory, typispreferred, \
                 typdelim, typrelid, typelem, typarray, typinput, typoutput, typreceive, typsend, typnotnull, typbasetype, \
                 typtypmod, typndims, typcollation, typowner, typisdefined, typsubscript, typmodin, typmodout, typanalyze, \
                 typalign, typstorage) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, \
                 ?18, ?19, ?20, ?21, 10, 1, 0, 0, 0, 0, 'i', CASE WHEN ?4 < 0 THEN 'x' ELSE 'p' END)",
            )?;
            for line in tables::TYPES.lines() {
                let value = |text: &str| match text {
                    "true" => rusqlite::types::Value::Integer(1),
                    "false" => rusqlite::types::Value::Integer(0),
                    "-" => rusqlite::types::Value::Integer(0),
                    text => match text.parse() {
                        Ok(number) => rusqlite::types::Value::Integer(number),
                        Err(_) => rusqlite::types::Value::Text(text.to_owned()),
                    },
                };
                let fields: Vec<_> = line.split('\t').map(value).collect();
                insert.execute(rusqlite::params_from_iter(&fields))?;
                if let [rusqlite::types::Value::Integer(oid), rusqlite::types::Value::Text(name), .., _] =
                    fields.as_slice()
                    && let rusqlite::types::Value::Integer(element) = fields[10]
                {
                    names.types.insert(*oid, TypeName { name: name.clone(), element });
                }
            }
        }
        transaction.commit()
    }

    /// Replaces the tables of the service.
    pub(super) fn fill(&mut self, entries: &[TableEntry]) -> rusqlite::Result<()> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.relations.clear();
        names.schemas.clear();
        names.indexes.clear();
        names.constraints.clear();
        names.schemas.extend([
            (11, "pg_catalog".to_owned()),
            (2200, "public".into()),
            (13_207, "information_schema".into()),
        ]);
        let transaction = self.connection.transaction()?;
        transaction.execute_batch(
            "DELETE FROM pg_class; DELETE FROM pg_attribute; DELETE FROM pg_tables; \
             DELETE FROM pg_namespace WHERE oid > 13207; DELETE FROM information_schema_columns; \
             DELETE FROM information_schema_tables; DELETE FROM information_schema_schemata; \
             DELETE FROM pg_index; DELETE FROM pg_constraint; DELETE FROM pg_indexes; \
             DELETE FROM information_schema_table_constraints; DELETE FROM information_schema_key_column_usage; \
             DELETE FROM information_schema_constraint_column_usage;",
        )?;
        {
            let mut class = transaction.prepare(
                "INSERT INTO pg_class (oid, relname, relnamespace, reltype, reloftype, relowner, relam, relfilenode, \
                 reltablespace, relpages, reltuples, relallvisible, reltoastrelid, relhasindex, relisshared, \
                 relpersistence, relkind, relnatts, relchecks, relhasrules, relhastriggers, relhassubclass, \
                 relrowsecurity, relforcerowsecurity, relispopulated, relreplident, relispartition, relrewrite, \
                 relfrozenxid, relminmxid) VALUES (?1, ?2, ?3, 0, 0, 10, 2, ?1, 0, 0, -1, 0, 0, 0, 0, 'p', ?4, ?5, 0, 0, 0, \
                 0, 0, 0, 1, 'd', 0, 0, 0, 0)",
            )?;
            let mut attribute = transaction.prepare(
                "INSERT INTO pg_attribute (attrelid, attname, atttypid, attlen, attnum, attcacheoff, atttypmod, attndims, \
                 attbyval, attalign, attstorage, attcompression, attnotnull, atthasdef, atthasmissing, attidentity, \
                 attgenerated, attisdropped, attislocal, attinhcount, attcollation, attstattarget) \
                 VALUES (?1, ?2, ?3, ?4, ?5, -1, ?6, ?7, ?8, 'i', ?9, '', ?10, 0, 0, '', '', 0, 1, 0, ?11, -1)",
            )?;
            let mut column = transaction.prepare(
                "INSERT INTO information_schema_columns (table_catalog, table_schema, table_name, column_name, \
                 ordinal_position, is_nullable, data_type, numeric_precision, numeric_precision_radix, numeric_scale, \
                 datetime_precision, udt_catalog, udt_schema, udt_name, is_identity, is_generated, is_updatable) \
                 VALUES ('', ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, '', 'pg_catalog', ?11, 'NO', 'NEVER', 'NO')",
            )?;
            for relation in tables::RELATIONS.iter() {
                let (schema, name) = match relation.name.strip_prefix("information_schema_") {
                    Some(name) => ("information_schema", name),
                    None => ("pg_catalog", relation.name),
                };
                let known = relation.oid;
                let namespace = if schema == "pg_catalog" { 11 } else { 13_207 };
                let oid = if known != 0 { known } else { self.oids.of(schema, name) };
                let kind = if known != 0 { "r" } else { "v" };
                class.execute(params![oid, name, namespace, kind, relation.columns.len() as i64])?;
                names.relations.insert(oid.into(), (schema.to_owned(), name.to_owned()));
            }
            for table in entries {
                let namespace = match names.schemas.iter().find(|(_, name)| **name == table.schema) {
                    Some((oid, _)) => *oid,
                    None => {
                        let oid = i64::from(self.oids.of(&table.schema, ""));
                        names.schemas.insert(oid, table.schema.clone());
                        transaction.execute(
                            "INSERT INTO pg_namespace VALUES (?1, ?2, 10, NULL)",
                            params![oid, table.schema],
                        )?;
                        oid
                    }
                };
                let relation = self.oids.of(&table.schema, &table.name);
                names.relations.insert(relation.into(), (table.schema.clone(), table.name.clone()));
                class.execute(params![relation, table.name, namespace, "r", table.columns.len() as i64])?;
                transaction.execute(
                    "INSERT INTO pg_tables VALUES (?1, ?2, '', NULL, 0, 0, 0, 0)",
                    params![table.schema, table.name],
                )?;
                transaction.execute(
                    "INSERT INTO information_schema_tables (table_catalog, table_schema, table_name, table_type, \
                     is_insertable_into, is_typed) VALUES ('', ?1, ?2, 'BASE TABLE', 'NO', 'NO')",
                    params![table.schema, table.name],
                )?;
                let columns: Vec<PgColumn> = table
                    .columns
                    .iter()
                    .map(|(name, data_type, is_nullable)| {
                        PgColumn::of(&Field::new(name, data_type.clone(), *is_nullable))
                    })
                    .collect();
                let place = (relation, namespace);
                keys::fill(&transaction, table, &columns, place, &mut self.oids, &mut names)?;
                for (index, (name, _, is_nullable)) in table.columns.iter().enumerate() {
                    let pg = &columns[index];
                    let is_list = crate::types::element_of(pg.oid).is_some();
                    let length = pg.length();
                    attribute.execute(params![
                        relation,
                        name,
                        pg.oid,
                        length,
                        index as i64 + 1,
                        pg.modifier,
                        i32::from(is_list),
                        i32::from((1..=8).contains(&length)),
                        if length < 0 { "x" } else { "p" },
                        i32::from(!is_nullable),
                        if pg.oid == oid::TEXT { 100 } else { 0 },
                    ])?;
                    let format = names.format_type(pg.oid.into(), Some(pg.modifier.into()));
                    let (type_name, udt) = type_names(pg.oid, &names.types, &format);
                    let packed = pg.modifier.checked_sub(4).filter(|packed| *packed >= 0);
                    let (precision, radix) = match pg.oid {
                        oid::INT2 => (Some(16), Some(2)),
                        oid::INT4 => (Some(32), Some(2)),
                        oid::INT8 => (Some(64), Some(2)),
                        oid::FLOAT4 => (Some(24), Some(2)),
                        oid::FLOAT8 => (Some(53), Some(2)),
                        oid::NUMERIC => (packed.map(|packed| packed >> 16), Some(10)),
                        _ => (None, None),
                    };
                    let scale = match pg.oid {
                        oid::INT2 | oid::INT4 | oid::INT8 => Some(0),
                        oid::NUMERIC => packed.map(|packed| packed & 0x7ff),
                        _ => None,
                    };
                    let is_time =
                        matches!(pg.oid, oid::TIME | oid::TIMESTAMP | oid::TIMESTAMPTZ | oid::INTERVAL);
                    let time_precision = if pg.oid == oid::DATE { Some(0) } else { is_time.then_some(6) };
                    column.execute(params![
                        table.schema,
                        table.name,
                        name,
                        index as i64 + 1,
                        if *is_nullable { "YES" } else { "NO" },
                        type_name,
                        precision,
                        radix,
                        scale,
                        time_precision,
                        udt,
                    ])?;
                }
            }
            for schema in names.schemas.values() {
                transaction.execute(
                    "INSERT INTO information_schema_schemata (catalog_name, schema_name, schema_owner) VALUES ('', ?1, '')",
                    params![schema],
                )?;
            }
        }
        transaction.commit()
    }

    /// Sets what depends on who asks: the names of the user and the database, the settings.
    pub(super) fn introduce(&mut self, caller: &Caller) -> rusqlite::Result<()> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.user.clone_from(&caller.user);
        names.settings =
            caller.settings.all().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let transaction = self.connection.transaction()?;
        for sql in [
            "UPDATE pg_roles SET rolname = ?1 WHERE rolname <> ?1",
            "UPDATE pg_authid SET rolname = ?1 WHERE rolname <> ?1",
            "UPDATE pg_user SET usename = ?1 WHERE usename <> ?1",
            "UPDATE pg_tables SET tableowner = ?1 WHERE tableowner <> ?1",
            "UPDATE information_schema_schemata SET schema_owner = ?1 WHERE schema_owner <> ?1",
        ] {
            transaction.execute(sql, params![caller.user])?;
        }
        for sql in [
            "UPDATE pg_database SET datname = ?1 WHERE datname <> ?1",
            "UPDATE information_schema_schemata SET catalog_name = ?1 WHERE catalog_name <> ?1",
            "UPDATE information_schema_tables SET table_catalog = ?1 WHERE table_catalog <> ?1",
            "UPDATE information_schema_columns SET table_catalog = ?1, udt_catalog = ?1 WHERE table_catalog <> ?1",
            "UPDATE information_schema_table_constraints SET constraint_catalog = ?1, table_catalog = ?1 WHERE table_catalog <> ?1",
            "UPDATE information_schema_key_column_usage SET constraint_catalog = ?1, table_catalog = ?1 WHERE table_catalog <> ?1",
            "UPDATE information_schema_constraint_column_usage SET constraint_catalog = ?1, table_catalog = ?1 \
             WHERE table_catalog <> ?1",
        ] {
            transaction.execute(sql, params![caller.database])?;
        }
        transaction.execute("DELETE FROM pg_settings", [])?;
        {
            let mut insert = transaction.prepare(
                "INSERT INTO pg_settings (name, setting, category, short_desc, context, vartype, source, boot_val, reset_val, \
                 pending_restart) VALUES (?1, ?2, '', '', 'user', 'string', 'default', ?2, ?2, 0)",
            )?;
            for (name, value) in &names.settings {
                insert.execute(params![name, value])?;
            }
        }
        transaction.commit()
    }
}
