//! The table that rows are copied into: an existing one, a new one, or a new one that replaces another.
//!
//! `CREATE TABLE` ends a transaction, so a new table is filled under a name of its own, and renamed at the end.
//! An upsert fills a temporary table, from which one transaction updates the existing rows and inserts the others.

use std::hash::{BuildHasher, Hasher, RandomState};

use arrow_schema::SchemaRef;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};

use super::assign::{ColumnRule, Described, column_type};
use super::{errors, keep};
use crate::select::identifier;
use crate::{Result, SourceError, TableName, TableWrite, WriteMode};

/// How long the swap waits for other users of the replaced table, in seconds. Later users queue behind the swap.
const LOCK_SECONDS: u32 = 10;
/// The server's error number for a lock that did not become free.
const LOCK_WAIT_TIMEOUT: &str = "1205";
const STAGE: &str = "lightship_stage";

/// A table that is written.
#[derive(Debug)]
pub(super) struct Target {
    /// Where rows are loaded, quoted.
    pub(super) into: String,
    /// The columns that are loaded, in the order of the result.
    pub(super) columns: Vec<TargetColumn>,
    /// The first loaded column, for the number of the row; only a temporary table has one.
    pub(super) row: Option<String>,
    /// The table that gets its final name at the end, quoted.
    pub(super) new: Option<String>,
    /// The table that is written in the end, quoted, under the name that it has until then.
    name: String,
    /// The final name, quoted.
    final_name: String,
    database: String,
    shown: String,
    /// Whether an existing table is replaced.
    replaces: bool,
    /// Whether the rows of an existing table are replaced.
    truncates: bool,
    /// What of a replaced table is not kept, in words.
    pub(super) notices: Vec<String>,
    key: Vec<String>,
    /// The unique index on the key of an existing table, quoted.
    index: Option<String>,
}

/// A column that is written.
#[derive(Debug)]
pub(super) struct TargetColumn {
    pub(super) name: String,
    pub(super) rule: ColumnRule,
    pub(super) is_nullable: bool,
    pub(super) is_key: bool,
}

/// A column of an existing table.
struct Existing {
    name: String,
    described: Described,
    is_nullable: bool,
    is_generated: bool,
    /// Whether a row without a value for it is an error.
    is_required: bool,
}

/// Runs statements, and converts their errors.
pub(super) struct Session<'a> {
    conn: &'a mut Conn,
    server: &'a str,
}

impl Session<'_> {
    pub(super) async fn run(&mut self, sql: &str) -> Result<()> {
        self.conn.query_drop(sql).await.map_err(|error| errors::statement(self.server, sql, 0, error))
    }

    pub(super) async fn rows(&mut self, sql: &str, parameters: Vec<&str>) -> Result<Vec<Row>> {
        let rows = self.conn.exec(sql, parameters).await;
        rows.map_err(|error: Error| errors::statement(self.server, sql, 0, error))
    }

    fn malformed(&self) -> SourceError {
        SourceError::Malformed {
            target: self.server.to_owned(),
            reason: "unexpected contents of information_schema".into(),
        }
    }

    /// The value of a column of a row; NULL is `None`.
    fn get<T: mysql_async::prelude::FromValue>(&self, row: &Row, at: usize) -> Result<Option<T>> {
        row.get_opt::<Option<T>, usize>(at).and_then(|value| value.ok()).ok_or_else(|| self.malformed())
    }

    pub(super) fn text(&self, row: &Row, at: usize) -> Result<String> {
        Ok(self.get::<String>(row, at)?.unwrap_or_default())
    }
}

impl Target {
    /// Finds or creates the table, as the mode requires. A table to be replaced stays unchanged until
    /// [`Self::swap`]. A new table must be dropped if the copy fails.
    pub(super) async fn open(
        conn: &mut Conn,
        server: &str,
        write: &TableWrite,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let id = conn.id();
        let mut session = Session { conn, server };
        let database = match &write.table.schema {
            Some(database) => database.clone(),
            None => {
                let rows = session.rows("SELECT DATABASE()", vec![]).await?;
                let named = rows.first().map(|row| session.get::<String>(row, 0)).transpose()?.flatten();
                named.ok_or_else(|| {
                    let what =
                        "a table without a database; name one in the URI, or write --table DATABASE.NAME";
                    SourceError::Unsupported(what.into())
                })?
            }
        };
        let shown = match &write.table.schema {
            Some(schema) => format!("{schema}.{}", write.table.name),
            None => write.table.name.clone(),
        };
        let name = |name: &str| format!("{}.{}", identifier(&database), identifier(name));
        let final_name = name(&write.table.name);
        let exists = is_table(&mut session, &database, &write.table, &shown).await?;
        if let Some(has_transactions) = exists
            && !has_transactions
            && write.mode != WriteMode::Replace
        {
            return Err(SourceError::Sql {
                reason: format!(
                    "table `{shown}` has no transactions, so a failed copy could leave some of its rows"
                ),
                position: None,
                code: None,
                hint: Some("convert it with ALTER TABLE … ENGINE = InnoDB, or use --mode replace".into()),
            });
        }
        let exists = exists.is_some();
        if exists && matches!(write.mode, WriteMode::Replace | WriteMode::Truncate) {
            check_replaceable(&mut session, &database, &write.table.name, &shown).await?;
        }
        let mut target = Self {
            into: final_name.clone(),
            columns: Vec::new(),
            row: None,
            index: None,
            new: None,
            name: final_name.clone(),
            final_name,
            database: database.clone(),
            shown,
            replaces: exists && write.mode == WriteMode::Replace,
            truncates: exists && write.mode == WriteMode::Truncate,
            notices: Vec::new(),
            key: write.key.clone(),
        };
        match (exists, write.mode) {
            (true, WriteMode::Create) => {
                return Err(SourceError::Sql {
                    reason: format!("table `{}` already exists", target.shown),
                    position: None,
                    code: Some("1050".into()),
                    hint: Some("add the rows with --mode append, or replace it with --mode replace".into()),
                });
            }
            (false, WriteMode::Existing) => return Err(SourceError::NoTable { name: target.shown }),
            (true, WriteMode::Append | WriteMode::Existing | WriteMode::Upsert | WriteMode::Truncate) => {
                if write.mode == WriteMode::Upsert {
                    let index = unique_index(&mut session, &database, write).await?;
                    let index = index.ok_or_else(|| write.no_unique_index(&target.shown))?;
                    target.index = Some(identifier(&index));
                }
                let existing = columns(&mut session, &database, &write.table.name).await?;
                target.assign(existing, schema)?;
            }
            (false, _) | (true, WriteMode::Replace) => {
                let random = RandomState::new().build_hasher().finish();
                let hidden = format!("lightship_{id}_{random:016x}");
                let quoted = name(&hidden);
                session.run(&create(&quoted, schema, &write.key)?).await?;
                target.name = quoted.clone();
                target.into = quoted.clone();
                target.new = Some(quoted.clone());
                let filled = async {
                    if target.replaces {
                        let old = keep::Old { database: &database, name: &write.table.name };
                        target.notices = keep::keep(&mut session, old, &quoted, schema).await?;
                    }
                    target.assign(columns(&mut session, &database, &hidden).await?, schema)
                };
                if let Err(error) = filled.await {
                    target.drop_new(&mut session).await;
                    return Err(error);
                }
            }
        }
        if write.mode == WriteMode::Upsert
            && let Err(error) = target.stage(&mut session).await
        {
            target.drop_new(&mut session).await;
            return Err(error);
        }
        Ok(target)
    }

    /// Removes the rows of a table whose rows are replaced, in the transaction that adds the new ones. Others see the
    /// former rows until it ends.
    pub(super) async fn truncate(&self, conn: &mut Conn, server: &str) -> Result<()> {
        if !self.truncates {
            return Ok(());
        }
        Session { conn, server }.run(&format!("DELETE FROM {}", self.name)).await
    }

    async fn drop_new(&self, session: &mut Session<'_>) {
        if let Some(new) = &self.new {
            // The error that led here is reported.
            let _ = session.run(&format!("DROP TABLE IF EXISTS {new}")).await;
        }
    }

    /// Finds a column of the table for each of the result.
    fn assign(&mut self, existing: Vec<Existing>, schema: &SchemaRef) -> Result<()> {
        for field in schema.fields() {
            let fail = |reason: String| SourceError::Value { column: field.name().clone(), reason };
            // Names of columns are the same in any case of letters.
            let same = |column: &&Existing| {
                !column.is_generated && column.name.to_lowercase() == field.name().to_lowercase()
            };
            let Some(column) = existing.iter().find(same) else {
                let has: Vec<_> = existing.iter().filter(|c| !c.is_generated).map(|c| &*c.name).collect();
                return Err(fail(format!(
                    "table `{}` has no such column; it has {}",
                    self.shown,
                    has.join(", ")
                )));
            };
            let rule = ColumnRule::new(&column.described);
            if !rule.takes(field.data_type()) {
                return Err(fail(format!(
                    "{} can't be written to `{}`, where its type is {}; cast it in the query",
                    field.data_type(),
                    self.shown,
                    column.described.column_type
                )));
            }
            if self.columns.iter().any(|other| other.name == column.name) {
                let same =
                    "two columns of the result are this one: names are the same in any case of letters";
                return Err(fail(same.into()));
            }
            let is_key = self.key.contains(field.name());
            let is_nullable = column.is_nullable;
            self.columns.push(TargetColumn { name: column.name.clone(), rule, is_nullable, is_key });
        }
        // LOAD DATA would write 0 or an empty text. An upsert inserts from its temporary table, which the server checks.
        let is_loaded = |name: &String| self.columns.iter().any(|column| column.name == *name);
        let missing = existing.iter().find(|column| column.is_required && !is_loaded(&column.name));
        if let Some(column) = missing.filter(|_| self.key.is_empty()) {
            return Err(SourceError::Value {
                column: column.name.clone(),
                reason: format!(
                    "table `{}` requires it: it is NOT NULL without a default, and the result has no such column",
                    self.shown
                ),
            });
        }
        Ok(())
    }

    /// Creates the temporary table of an upsert.
    async fn stage(&mut self, session: &mut Session<'_>) -> Result<()> {
        let mut row = "lightship_row".to_owned();
        while self.columns.iter().any(|column| column.name.eq_ignore_ascii_case(&row)) {
            row.push('_');
        }
        let (row, columns) = (identifier(&row), self.names("").join(", "));
        let stage = format!("{}.{STAGE}", identifier(&self.database));
        // The columns keep their types and collations, without indexes.
        session
            .run(&format!(
                "CREATE TEMPORARY TABLE {stage} ({row} bigint unsigned NOT NULL) ENGINE = InnoDB \
                 AS SELECT CAST(0 AS UNSIGNED) AS {row}, {columns} FROM {} LIMIT 0",
                self.name
            ))
            .await?;
        self.into = stage;
        self.row = Some(row);
        Ok(())
    }

    /// The quoted names of the loaded columns, with a prefix.
    fn names(&self, prefix: &str) -> Vec<String> {
        self.columns.iter().map(|column| format!("{prefix}{}", identifier(&column.name))).collect()
    }

    /// Moves the rows of an upsert from the temporary table.
    ///
    /// # Errors
    /// [`SourceError::DuplicateKey`] for two rows with the same key.
    pub(super) async fn merge(&self, conn: &mut Conn, server: &str) -> Result<()> {
        let Some(row) = &self.row else { return Ok(()) };
        let mut session = Session { conn, server };
        let key: Vec<_> = self.columns.iter().filter(|column| column.is_key).collect();
        let key: Vec<_> = key.iter().map(|column| identifier(&column.name)).collect();
        let (stage, name) = (&self.into, &self.name);
        let duplicates = session
            .rows(
                &format!(
                    "SELECT MIN({row}), MAX({row}) FROM {stage} GROUP BY {} HAVING COUNT(*) > 1 \
                     ORDER BY 1 LIMIT 1",
                    key.join(", ")
                ),
                vec![],
            )
            .await?;
        if let Some(found) = duplicates.first() {
            let (first, second) = (session.get::<u64>(found, 0)?, session.get::<u64>(found, 1)?);
            let (first, second) = (first.unwrap_or_default(), second.unwrap_or_default());
            return Err(SourceError::DuplicateKey { first, second, key: self.key.join(", ") });
        }
        let on: Vec<_> = key.iter().map(|key| format!("t.{key} = s.{key}")).collect();
        let (on, first_key) = (on.join(" AND "), &key[0]);
        // Each row is looked up in the table. What the server knows of the sizes is old, for a table that was just filled:
        // it has compared all 60,000 rows with all, for minutes.
        let by = self.index.as_ref().map_or_else(String::new, |index| format!(" FORCE INDEX ({index})"));
        let others = self.columns.iter().filter(|column| !column.is_key);
        let set: Vec<_> = others.map(|column| identifier(&column.name)).collect();
        let set: Vec<_> = set.iter().map(|name| format!("t.{name} = s.{name}")).collect();
        if !set.is_empty() {
            let set = set.join(", ");
            session.run(&format!("UPDATE {stage} s STRAIGHT_JOIN {name} t{by} ON {on} SET {set}")).await?;
        }
        // ON DUPLICATE KEY UPDATE would also update rows that conflict in another unique index.
        session
            .run(&format!(
                "INSERT INTO {name} ({}) SELECT {} FROM {stage} s LEFT JOIN {name} t{by} ON {on} \
                 WHERE t.{first_key} IS NULL ORDER BY s.{row}",
                self.names("").join(", "),
                self.names("s.").join(", ")
            ))
            .await
    }

    /// Gives a new table its final name, in place of the old one if it replaces one.
    ///
    /// # Errors
    /// When others use the old table for too long, or a table of this name was created meanwhile.
    pub(super) async fn swap(&self, conn: &mut Conn, server: &str) -> Result<()> {
        let Some(new) = &self.new else { return Ok(()) };
        let mut session = Session { conn, server };
        session.run(&format!("SET lock_wait_timeout = {LOCK_SECONDS}")).await?;
        let name = &self.final_name;
        if !self.replaces {
            return session.run(&format!("RENAME TABLE {new} TO {name}")).await;
        }
        let old = format!("{}_old`", new.trim_end_matches('`'));
        session.run(&format!("RENAME TABLE {name} TO {old}, {new} TO {name}")).await.map_err(|error| {
            match error {
                SourceError::Sql { code: Some(code), .. } if code == LOCK_WAIT_TIMEOUT => SourceError::Sql {
                    reason: format!(
                        "table `{}` is in use: it could not be locked within {LOCK_SECONDS} s, and was not changed",
                        self.shown
                    ),
                    position: None,
                    code: Some(code),
                    hint: Some("end the transactions that use it (see SHOW PROCESSLIST) and try again".into()),
                },
                error => error,
            }
        })?;
        if let Err(error) = session.run(&format!("DROP TABLE {old}")).await {
            // Something has come to depend on the old table, so it stays.
            session.run(&format!("RENAME TABLE {name} TO {new}, {old} TO {name}")).await?;
            return Err(error);
        }
        Ok(())
    }
}

/// Whether the table exists, and if so, whether it has transactions.
async fn is_table(
    session: &mut Session<'_>,
    database: &str,
    table: &TableName,
    shown: &str,
) -> Result<Option<bool>> {
    const SQL: &str = "SELECT t.table_type, COALESCE(e.transactions, 'NO') FROM information_schema.tables t \
         LEFT JOIN information_schema.engines e ON e.engine = t.engine \
         WHERE t.table_schema = ? AND t.table_name = ?";
    let rows = session.rows(SQL, vec![database, &table.name]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let kind = session.text(row, 0)?;
    if kind != "BASE TABLE" {
        let kind = kind.to_lowercase();
        return Err(SourceError::Unsupported(format!("writing to `{shown}`, which is a {kind}")));
    }
    Ok(Some(session.text(row, 1)? == "YES"))
}

/// Checks early for what would make the swap fail after all rows have been copied.
async fn check_replaceable(
    session: &mut Session<'_>,
    database: &str,
    table: &str,
    shown: &str,
) -> Result<()> {
    const SQL: &str = "SELECT DISTINCT CONCAT(constraint_schema, '.', table_name) \
         FROM information_schema.referential_constraints \
         WHERE unique_constraint_schema = ? AND referenced_table_name = ? \
         AND NOT (constraint_schema = ? AND table_name = ?) ORDER BY 1 LIMIT 5";
    let rows = session.rows(SQL, vec![database, table, database, table]).await?;
    let tables = rows.iter().map(|row| session.text(row, 0)).collect::<Result<Vec<_>>>()?;
    if tables.is_empty() {
        return Ok(());
    }
    Err(SourceError::Sql {
        reason: format!("cannot replace table `{shown}`: {} refers to it", tables.join(", ")),
        position: None,
        code: None,
        hint: Some("drop the foreign keys first, or use --mode upsert".into()),
    })
}

/// The name of a unique index that has exactly the columns of the key, in any order.
async fn unique_index(
    session: &mut Session<'_>,
    database: &str,
    write: &TableWrite,
) -> Result<Option<String>> {
    // An index of the beginning of a text has a `sub_part`; one of an expression has no column.
    const SQL: &str = "SELECT index_name, column_name, sub_part IS NOT NULL FROM information_schema.statistics \
         WHERE table_schema = ? AND table_name = ? AND non_unique = 0 ORDER BY index_name, seq_in_index";
    let rows = session.rows(SQL, vec![database, &write.table.name]).await?;
    let mut indexes: Vec<(String, Vec<Option<String>>)> = Vec::new();
    for row in &rows {
        let (index, is_part) = (session.text(row, 0)?, session.get::<bool>(row, 2)?.unwrap_or(true));
        let column = session.get::<String>(row, 1)?.filter(|_| !is_part);
        match indexes.last_mut().filter(|(name, _)| *name == index) {
            Some((_, columns)) => columns.push(column),
            None => indexes.push((index, vec![column])),
        }
    }
    let has = |columns: &[Option<String>], key: &String| {
        columns.iter().flatten().any(|column| column.to_lowercase() == key.to_lowercase())
    };
    let found = indexes.into_iter().find(|(_, columns)| {
        columns.len() == write.key.len() && write.key.iter().all(|key| has(columns, key))
    });
    Ok(found.map(|(index, _)| index))
}

async fn columns(session: &mut Session<'_>, database: &str, table: &str) -> Result<Vec<Existing>> {
    const SQL: &str = "SELECT column_name, data_type, column_type, \
             CAST(character_maximum_length AS UNSIGNED), CAST(character_octet_length AS UNSIGNED), \
             CAST(numeric_precision AS UNSIGNED), CAST(numeric_scale AS SIGNED), \
             CAST(datetime_precision AS UNSIGNED), character_set_name, is_nullable, extra, \
             column_default IS NOT NULL \
         FROM information_schema.columns WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position";
    let rows = session.rows(SQL, vec![database, table]).await?;
    let column = |row: &Row| -> Result<Existing> {
        let (is_nullable, extra) = (session.text(row, 9)? == "YES", session.text(row, 10)?.to_uppercase());
        // `VIRTUAL GENERATED` and `STORED GENERATED`, but not `DEFAULT_GENERATED`.
        let is_generated = extra.contains(" GENERATED");
        let has_default =
            session.get::<bool>(row, 11)?.unwrap_or_default() || extra.contains("AUTO_INCREMENT");
        Ok(Existing {
            name: session.text(row, 0)?,
            described: Described {
                data_type: session.text(row, 1)?,
                column_type: session.text(row, 2)?,
                chars_max: session.get(row, 3)?,
                bytes_max: session.get(row, 4)?,
                precision: session.get(row, 5)?,
                scale: session.get(row, 6)?,
                second_places: session.get(row, 7)?,
                charset: session.get(row, 8)?,
            },
            is_nullable,
            is_generated,
            is_required: !is_nullable && !is_generated && !has_default,
        })
    };
    rows.iter().map(column).collect()
}

/// The statement that creates a table, with the key as its primary key, if there is one.
fn create(name: &str, schema: &SchemaRef, key: &[String]) -> Result<String> {
    let mut columns = schema
        .fields()
        .iter()
        .map(|field| match column_type(field, key.contains(field.name())) {
            Ok(made) => Ok(format!("{} {made}", identifier(field.name()))),
            Err(what) => {
                Err(SourceError::Unsupported(format!("column `{}` of type {what} in a table", field.name())))
            }
        })
        .collect::<Result<Vec<_>>>()?;
    if !key.is_empty() {
        let key: Vec<_> = key.iter().map(|name| identifier(name)).collect();
        columns.push(format!("PRIMARY KEY ({})", key.join(", ")));
    }
    Ok(format!("CREATE TABLE {name} ({}) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4", columns.join(", ")))
}
