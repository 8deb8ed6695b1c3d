//! The table that rows are copied into, and the temporary table in which they wait until all have arrived.

use std::path::Path;

use arrow_schema::{Field, SchemaRef};
use rusqlite::{Connection, OptionalExtension};

use super::assign::{ColumnRule, column_type};
use super::errors;
use crate::select::{self, identifier};
use crate::{Result, SourceError, TableName, TableWrite, WriteMode};

/// Rows that have arrived. Its columns have no types, so it changes no value; the row id is the row's number.
pub(super) const STAGE: &str = "temp.lightship_stage";

/// What of a replaced table is part of its own definition, and not kept: names and reasons.
const LOST: &str = "\
     SELECT 'primary key (' || group_concat(name, ', ') || ')', 'it is part of the definition of the old table' FROM \
         (SELECT name FROM pragma_table_info(?1, ?2) WHERE pk > 0 ORDER BY pk) HAVING count(*) > 0 UNION ALL \
     SELECT 'unique (' || (SELECT group_concat(name, ', ') FROM pragma_index_info(i.name, ?2)) || ')', \
         'create an index, which is kept' FROM pragma_index_list(?1, ?2) i WHERE origin = 'u' UNION ALL \
     SELECT 'foreign key to ' || \"table\", 'it is part of the definition of the old table' \
         FROM pragma_foreign_key_list(?1, ?2) GROUP BY id UNION ALL \
     SELECT 'NOT NULL of column ' || name, 'it is part of the definition of the old table' \
         FROM pragma_table_info(?1, ?2) WHERE \"notnull\" UNION ALL \
     SELECT 'default of column ' || name, 'it is part of the definition of the old table' \
         FROM pragma_table_info(?1, ?2) WHERE dflt_value IS NOT NULL";

/// A table in the file.
#[derive(Debug)]
pub(super) struct Target {
    table: TableName,
    /// The name, quoted.
    pub(super) name: String,
    /// The name for the user.
    shown: String,
    /// The statement that creates the table, if it does not exist or is to be replaced.
    create: Option<String>,
    /// The statements that make the indexes and triggers of a replaced table again.
    kept: Vec<String>,
    /// What of a replaced table is not kept, in words.
    pub(super) notices: Vec<String>,
    /// Whether the table has rules of its own for conflicts, as `UNIQUE ON CONFLICT IGNORE`.
    has_conflict_rules: bool,
    mode: WriteMode,
    key: Vec<String>,
    /// The collation of each column of the key.
    collations: Vec<String>,
    /// The columns of the result, in its order, as the table names them.
    names: Vec<String>,
    pub(super) rules: Vec<ColumnRule>,
}

/// A column of an existing table.
struct Existing {
    name: String,
    declared: String,
    is_writable: bool,
    in_primary_key: bool,
}

impl Target {
    /// Finds the table, and creates the temporary one.
    pub(super) fn open(
        connection: &Connection,
        path: &Path,
        write: &TableWrite,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let failed = |error| errors::statement(path, "", error);
        let shown = match &write.table.schema {
            Some(schema) => format!("{schema}.{}", write.table.name),
            None => write.table.name.clone(),
        };
        const TYPE: &str = "SELECT type FROM pragma_table_list WHERE name = ?1 COLLATE NOCASE \
             AND schema = COALESCE(?2, 'main') COLLATE NOCASE";
        let parameters = (&write.table.name, &write.table.schema);
        let found: Option<String> =
            connection.query_row(TYPE, parameters, |row| row.get(0)).optional().map_err(failed)?;
        if let Some(kind) = found.as_deref().filter(|kind| !matches!(*kind, "table" | "virtual")) {
            return Err(SourceError::Unsupported(format!("writing to `{shown}`, which is a {kind}")));
        }
        let is_new = match (found, write.mode) {
            (Some(_), WriteMode::Create) => {
                return Err(SourceError::Sql {
                    reason: format!("table `{shown}` already exists"),
                    position: None,
                    code: Some("42P07".into()),
                    hint: Some("add the rows with --mode append, or replace it with --mode replace".into()),
                });
            }
            (None, WriteMode::Existing) => return Err(SourceError::NoTable { name: shown }),
            (found, mode) => found.is_none() || mode == WriteMode::Replace,
        };
        let mut target = Self {
            table: write.table.clone(),
            name: select::table(&write.table),
            shown,
            create: None,
            kept: Vec::new(),
            notices: Vec::new(),
            has_conflict_rules: false,
            mode: write.mode,
            key: write.key.clone(),
            collations: vec!["BINARY".into(); write.key.len()],
            names: Vec::new(),
            rules: Vec::new(),
        };
        if is_new {
            target.check_replaceable(connection, path)?;
            target.make(schema)?;
            target.keep(connection).map_err(failed)?;
        } else {
            target.check_replaceable(connection, path)?;
            target.has_conflict_rules = has_conflict_rules(connection, &write.table).map_err(failed)?;
            let existing = existing(connection, write).map_err(failed)?;
            target.assign(&existing, schema)?;
            if write.mode == WriteMode::Upsert {
                let collations = collations(connection, write, &existing).map_err(failed)?;
                target.collations = collations.ok_or_else(|| write.no_unique_index(&target.shown))?;
            }
        }
        let columns: Vec<_> = (0..target.names.len()).map(|at| format!("c{at}")).collect();
        connection
            .execute_batch(&format!("CREATE TEMPORARY TABLE lightship_stage ({})", columns.join(", ")))
            .map_err(failed)?;
        Ok(target)
    }

    /// Plans a new table.
    fn make(&mut self, schema: &SchemaRef) -> Result<()> {
        let mut columns = Vec::new();
        for (at, field) in schema.fields().iter().enumerate() {
            // Names are the same in any case of letters.
            let same = |other: &&str| other.eq_ignore_ascii_case(field.name());
            if let Some(first) =
                schema.fields().iter().take(at).position(|other| same(&other.name().as_str()))
            {
                let name = field.name().clone();
                return Err(SourceError::DuplicateColumn { name, first: first + 1, second: at + 1 });
            }
            let made = column_type(field.data_type()).map_err(|what| {
                let name = field.name();
                let what =
                    format!("column `{name}` of type {what} in a table; select its parts in the query");
                SourceError::Unsupported(what)
            })?;
            let not_null = if self.key.contains(field.name()) { " NOT NULL" } else { "" };
            columns.push(format!("{} {made}{not_null}", identifier(field.name())));
            self.names.push(field.name().clone());
            self.rules.push(ColumnRule::new(&made));
        }
        if !self.key.is_empty() {
            columns.push(format!("PRIMARY KEY ({})", self.key_names().join(", ")));
        }
        self.create = Some(format!("CREATE TABLE {} ({})", self.name, columns.join(", ")));
        Ok(())
    }

    /// Finds a column of the table for each of the result.
    fn assign(&mut self, existing: &[Existing], schema: &SchemaRef) -> Result<()> {
        for field in schema.fields() {
            let fail = |reason: String| SourceError::Value { column: field.name().clone(), reason };
            let same =
                |column: &&Existing| column.is_writable && column.name.eq_ignore_ascii_case(field.name());
            let Some(column) = existing.iter().find(same) else {
                let has: Vec<_> = existing.iter().filter(|c| c.is_writable).map(|c| &*c.name).collect();
                return Err(fail(format!(
                    "table `{}` has no such column; it has {}",
                    self.shown,
                    has.join(", ")
                )));
            };
            let rule = ColumnRule::new(&column.declared);
            if !rule.takes(field.data_type()) {
                return Err(fail(format!(
                    "{} can't be written to `{}`, where its type is {}; cast it in the query",
                    field.data_type(),
                    self.shown,
                    column.declared
                )));
            }
            if self.names.contains(&column.name) {
                let same =
                    "two columns of the result are this one: names are the same in any case of letters";
                return Err(fail(same.into()));
            }
            self.names.push(column.name.clone());
            self.rules.push(rule);
        }
        Ok(())
    }

    /// Refuses to replace a table to which others refer: with foreign keys, `DROP TABLE` first deletes all rows,
    /// which may delete or change rows of the others.
    fn check_replaceable(&self, connection: &Connection, path: &Path) -> Result<()> {
        if !matches!(self.mode, WriteMode::Replace | WriteMode::Truncate) {
            return Ok(());
        }
        let master = master(&self.table);
        // Others may refer to a table that does not exist yet.
        let sql = format!(
            "SELECT DISTINCT m.name FROM {master} m, pragma_foreign_key_list(m.name, ?2) f \
             WHERE m.type = 'table' AND f.\"table\" = ?1 COLLATE NOCASE AND m.name <> ?1 COLLATE NOCASE \
             AND EXISTS (SELECT 1 FROM {master} WHERE type = 'table' AND name = ?1 COLLATE NOCASE) LIMIT 5"
        );
        let tables = || -> rusqlite::Result<Vec<String>> {
            let schema = self.table.schema.as_deref().unwrap_or("main");
            connection.prepare(&sql)?.query_map((&self.table.name, schema), |row| row.get(0))?.collect()
        };
        let tables = tables().map_err(|error| errors::statement(path, &sql, error))?;
        if tables.is_empty() {
            return Ok(());
        }
        Err(SourceError::Sql {
            reason: format!("cannot replace table `{}`: {} refers to it", self.shown, tables.join(", ")),
            position: None,
            code: None,
            hint: Some("drop the foreign keys first, or use --mode upsert".into()),
        })
    }

    /// Finds the indexes and triggers of a table that is replaced. They are tried on an empty table elsewhere.
    fn keep(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.mode != WriteMode::Replace {
            return Ok(());
        }
        let schema = self.table.schema.as_deref().unwrap_or("main");
        let table = &self.table.name;
        let list = |sql: &str| -> rusqlite::Result<Vec<(String, String)>> {
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map((table, schema), |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        };
        let mut lost = list(LOST)?;
        let has = |name: &str| self.names.iter().any(|other| other.eq_ignore_ascii_case(name));
        let columns = list("SELECT name, '' FROM pragma_table_xinfo(?1, ?2) WHERE hidden <> 1 ORDER BY cid")?;
        let columns = columns.into_iter().filter(|(name, _)| !has(name));
        lost.extend(
            columns.map(|(name, _)| (format!("column {name}"), "the result has no such column".into())),
        );
        let trial = Connection::open_in_memory()?;
        if let Some(create) = &self.create {
            trial.execute_batch(&create.replacen(&self.name, &identifier(table), 1))?;
        }
        let definitions = format!(
            "SELECT type || ' ' || name, sql FROM {} WHERE tbl_name = ?1 COLLATE NOCASE AND ?2 <> '' \
             AND type IN ('index', 'trigger') AND sql IS NOT NULL ORDER BY rowid",
            master(&self.table)
        );
        for (what, sql) in list(&definitions)? {
            match trial.execute_batch(&sql) {
                Ok(()) => self.kept.push(sql),
                Err(error) => lost.push((what, error.to_string())),
            }
        }
        self.notices = lost.into_iter().map(|(what, why)| format!("{what} is not kept: {why}")).collect();
        Ok(())
    }

    fn key_names(&self) -> Vec<String> {
        self.key.iter().map(|name| identifier(name)).collect()
    }

    pub(super) fn is_key(&self, field: &Field) -> bool {
        self.key.contains(field.name())
    }

    /// Moves all rows from the temporary table, in one transaction.
    pub(super) fn fill(&self, connection: &Connection, path: &Path, rows: u64) -> Result<()> {
        let run =
            |sql: &str| connection.execute_batch(sql).map_err(|error| errors::statement(path, sql, error));
        self.check_keys(connection, path)?;
        run("BEGIN IMMEDIATE")?;
        if let Some(create) = &self.create {
            // Another may have been made meanwhile.
            self.check_replaceable(connection, path)?;
            if self.mode == WriteMode::Replace {
                run(&format!("DROP TABLE IF EXISTS {}", self.name))?;
            }
            run(create)?;
        } else if self.mode == WriteMode::Truncate {
            self.check_replaceable(connection, path)?;
            run(&format!("DELETE FROM {}", self.name))?;
        }
        let insert = self.insert();
        run("SAVEPOINT lightship_fill")?;
        run(&insert).map_err(|error| self.located(connection, error))?;
        let inserted = connection.changes();
        if self.key.is_empty() && inserted != rows {
            return Err(SourceError::Sql {
                reason: format!("table `{}` took {inserted} of {rows} rows", self.shown),
                position: None,
                code: None,
                hint: Some("does a trigger of the table skip rows, as RAISE(IGNORE) does?".into()),
            });
        }
        // After the rows, which an insert would make slower and a trigger could change.
        for definition in &self.kept {
            run(definition)?;
        }
        run("COMMIT")
    }

    /// The statement that moves the rows, in the order in which they came.
    fn insert(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| identifier(name)).collect();
        let columns: Vec<_> = (0..names.len()).map(|at| format!("c{at}")).collect();
        let conflict = match self.key.is_empty() {
            true => String::new(),
            false => {
                let is_other = |name: &&String| !self.key.iter().any(|key| key.eq_ignore_ascii_case(name));
                let set = self.names.iter().filter(is_other).map(|name| identifier(name));
                let set: Vec<_> = set.map(|name| format!("{name} = excluded.{name}")).collect();
                let action = match set.is_empty() {
                    true => "NOTHING".to_owned(),
                    false => format!("UPDATE SET {}", set.join(", ")),
                };
                format!(" ON CONFLICT ({}) DO {action}", self.key_names().join(", "))
            }
        };
        // Otherwise such a rule would skip or delete rows. It would also replace the rules of statements in triggers,
        // so it is only given where it is needed.
        let or_abort = if self.has_conflict_rules { " OR ABORT" } else { "" };
        format!(
            "INSERT{or_abort} INTO {} ({}) SELECT {} FROM {STAGE} WHERE true ORDER BY rowid{conflict}",
            self.name,
            names.join(", "),
            columns.join(", ")
        )
    }

    /// Refuses two rows with the same key.
    fn check_keys(&self, connection: &Connection, path: &Path) -> Result<()> {
        if self.key.is_empty() {
            return Ok(());
        }
        let key: Vec<_> = self
            .key
            .iter()
            .zip(&self.collations)
            .filter_map(|(key, collation)| {
                let at = self.names.iter().position(|name| name.eq_ignore_ascii_case(key))?;
                Some(format!("c{at} COLLATE {}", identifier(collation)))
            })
            .collect();
        let sql = format!(
            "SELECT min(rowid), max(rowid) FROM {STAGE} GROUP BY {} HAVING count(*) > 1 ORDER BY 1 LIMIT 1",
            key.join(", ")
        );
        let rows: Option<(i64, i64)> = connection
            .query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(|error| errors::statement(path, &sql, error))?;
        match rows {
            None => Ok(()),
            Some((first, second)) => Err(SourceError::DuplicateKey {
                first: first.unsigned_abs(),
                second: second.unsigned_abs(),
                key: self.key.join(", "),
            }),
        }
    }

    /// The error with the first row that the table refuses.
    fn located(&self, connection: &Connection, error: SourceError) -> SourceError {
        let SourceError::Sql { reason, position, code, hint } = error else { return error };
        let row = || -> rusqlite::Result<Option<i64>> {
            connection.execute_batch("ROLLBACK TO lightship_fill")?;
            let mut insert = connection.prepare(&self.insert().replace("WHERE true", "WHERE rowid = ?1"))?;
            let mut rows = connection.prepare(&format!("SELECT rowid FROM {STAGE} ORDER BY rowid"))?;
            let mut rows = rows.query([])?;
            while let Some(row) = rows.next()? {
                let number: i64 = row.get(0)?;
                if insert.execute([number]).is_err() {
                    return Ok(Some(number));
                }
            }
            Ok(None)
        };
        let reason = match row() {
            Ok(Some(row)) => format!("row {row}: {reason}"),
            _ => reason,
        };
        SourceError::Sql { reason, position, code, hint }
    }
}

/// The table of the schema in which a table is listed.
fn master(table: &TableName) -> String {
    format!("{}.sqlite_master", identifier(table.schema.as_deref().unwrap_or("main")))
}

/// Whether the statement that created the table has the word `CONFLICT`.
fn has_conflict_rules(connection: &Connection, table: &TableName) -> rusqlite::Result<bool> {
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM {} WHERE name = ?1 COLLATE NOCASE AND sql LIKE '%conflict%')",
        master(table)
    );
    connection.query_row(&sql, [&table.name], |row| row.get(0))
}

fn existing(connection: &Connection, write: &TableWrite) -> rusqlite::Result<Vec<Existing>> {
    let mut statement = connection.prepare(
        "SELECT name, type, hidden = 0, pk > 0 FROM pragma_table_xinfo(?1, COALESCE(?2, 'main')) ORDER BY cid",
    )?;
    let columns = statement.query_map((&write.table.name, &write.table.schema), |row| {
        Ok(Existing {
            name: row.get(0)?,
            declared: row.get(1)?,
            is_writable: row.get(2)?,
            in_primary_key: row.get(3)?,
        })
    })?;
    columns.collect()
}

/// The collations of the key's columns in the unique index on exactly these columns, if there is one.
fn collations(
    connection: &Connection,
    write: &TableWrite,
    existing: &[Existing],
) -> rusqlite::Result<Option<Vec<String>>> {
    let key = &write.key;
    let schema = write.table.schema.as_deref().unwrap_or("main");
    let is_key = |columns: &[(String, String)]| {
        columns.len() == key.len()
            && key.iter().all(|key| columns.iter().any(|(name, _)| name.eq_ignore_ascii_case(key)))
    };
    let mut indexes = connection.prepare(
        "SELECT name FROM pragma_index_list(?1, ?2) WHERE \"unique\" AND NOT partial ORDER BY seq",
    )?;
    let indexes = indexes.query_map((&write.table.name, schema), |row| row.get::<_, String>(0))?;
    for index in indexes {
        // A column of an expression has no name.
        let mut columns = connection.prepare(
            "SELECT COALESCE(name, ''), coll FROM pragma_index_xinfo(?1, ?2) WHERE key ORDER BY seqno",
        )?;
        let columns = columns.query_map((index?, schema), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let columns: Vec<(String, String)> = columns.collect::<rusqlite::Result<_>>()?;
        if is_key(&columns) {
            let of = |key: &String| {
                let same = columns.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
                same.map_or_else(|| "BINARY".into(), |(_, collation)| collation.clone())
            };
            return Ok(Some(key.iter().map(of).collect()));
        }
    }
    // An integer primary key is the row id, which has no index.
    let primary: Vec<_> = existing
        .iter()
        .filter(|column| column.in_primary_key)
        .map(|column| (column.name.clone(), "BINARY".to_owned()))
        .collect();
    Ok(is_key(&primary).then(|| vec!["BINARY".into(); key.len()]))
}
