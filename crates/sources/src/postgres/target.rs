//! The table that rows are copied into: an existing one, a new one, or a new one that replaces another.

use arrow_schema::SchemaRef;

use super::assign::column_type;
use super::connection::Connection;
use super::keep::{Kept, Names};
use super::limit::Limit;
use super::message::{Described, TextRow};
use super::native;
use super::{malformed, quote_identifier, quote_literal, shown, values};
use crate::{Result, SourceError, TableName, TableWrite, WriteMode};

/// How long the swap waits for other users of the replaced table. Later users queue behind the
/// swap.
const LOCK_TIMEOUT: &str = "10s";
/// Names tried for a new table that replaces another.
const NAMES_TRIED: usize = 100;

/// A table in the transaction that writes it.
#[derive(Debug)]
pub(super) struct Target {
    /// Schema and name, quoted.
    pub(super) name: String,
    /// Its name in the context of the server's errors.
    pub(super) relation: String,
    /// Its name for the user.
    pub(super) shown: String,
    pub(super) columns: Vec<TargetColumn>,
    /// The table that this one replaces.
    replaces: Option<Replaced>,
    /// The statement that removes the rows of the table, if they are replaced.
    truncate: Option<String>,
    /// What the user should know before rows are written.
    pub(super) notices: Vec<String>,
}

/// A table that is replaced.
#[derive(Debug)]
struct Replaced {
    /// Its quoted name with the schema.
    qualified: String,
    /// Its quoted name.
    name: String,
    kept: Kept,
}

/// A column that can be written.
#[derive(Debug)]
pub(super) struct TargetColumn {
    pub(super) described: Described,
    pub(super) type_name: TypeName,
    /// The OID of the type of its values; for an array, of its elements; for a domain, of its base type.
    pub(super) leaf: u32,
    pub(super) leaf_name: TypeName,
    pub(super) limit: Limit,
}

/// How SQL names a type.
#[derive(Debug)]
pub(super) struct TypeName {
    /// As in `numeric(10,2)`.
    pub(super) with_modifier: String,
    /// As in `numeric`.
    pub(super) plain: String,
}

/// An existing table, or another relation of this name.
struct Found {
    oid: String,
    schema: String,
    name: String,
    kind: String,
    is_partition: bool,
}

impl Target {
    /// Finds or creates the table, as the mode requires. A table to be replaced stays unchanged and
    /// usable until [`Self::swap`].
    pub(super) async fn open(
        connection: &mut Connection,
        write: &TableWrite,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let (table, mode) = (&write.table, write.mode);
        check_names(connection, table, schema).await?;
        let shown = shown(table);
        let given = super::quote_table(table);
        let found = find(connection, &given).await?;
        let mut replaced = None;
        let mut truncate = None;
        let (name, relation, is_new) = match (found, mode) {
            (Some(found), WriteMode::Replace) => {
                found.check_replaceable(connection, &shown).await?;
                let schema = quote_identifier(&found.schema);
                let beside = free_name(connection, &found.schema).await?;
                let name = format!("{schema}.{}", quote_identifier(&beside));
                replaced = Some((found, beside.clone()));
                (name, beside, true)
            }
            (Some(found), WriteMode::Truncate) => {
                found.check_truncatable(connection, &shown).await?;
                // The rows of a partitioned table are in its partitions.
                let only = if found.kind == "p" { "" } else { "ONLY " };
                truncate = Some(format!("TRUNCATE {only}{}", found.qualified()));
                (found.qualified(), found.name, false)
            }
            (None, WriteMode::Existing) => return Err(SourceError::NoTable { name: shown }),
            (Some(found), WriteMode::Append | WriteMode::Existing | WriteMode::Upsert) => {
                if mode == WriteMode::Upsert && !found.has_unique_index(connection, &write.key).await? {
                    return Err(write.no_unique_index(&shown));
                }
                (found.qualified(), found.name, false)
            }
            // The server reports that the table exists.
            (Some(_), WriteMode::Create) | (None, _) => (given, table.name.clone(), true),
        };
        let mut notices = Vec::new();
        if is_new {
            create(connection, &name, schema, &write.key, &mut notices).await?;
        }
        let mut replaces = None;
        if let Some((found, beside)) = replaced {
            let (qualified, oid, schema) = (found.qualified(), &found.oid, &found.schema);
            let names = Names { oid, old: &qualified, new: &name, beside: &beside, schema };
            let kept = Kept::plan(connection, &names, &shown).await?;
            notices.extend(kept.notices.iter().cloned());
            replaces = Some(Replaced { name: quote_identifier(&found.name), qualified, kept });
        }
        let columns = columns(connection, &name).await?;
        Ok(Self { name, relation, shown, columns, replaces, truncate, notices })
    }

    /// Whether rows wait beside the table until all have arrived, because the former ones stay until then.
    pub(super) fn truncates(&self) -> bool {
        self.truncate.is_some()
    }

    /// Removes the rows of a table whose rows are replaced. From here on nobody else can use it.
    pub(super) async fn truncate(&self, connection: &mut Connection) -> Result<()> {
        let Some(truncate) = &self.truncate else { return Ok(()) };
        let timeout = set_lock_timeout(connection).await?;
        connection.simple(truncate).await.map(drop).map_err(|error| in_use(error, &self.shown, &timeout))
    }

    /// Replaces the old table by this one.
    ///
    /// # Errors
    /// When others lock the old table for too long, or something depends on it.
    pub(super) async fn swap(&self, connection: &mut Connection) -> Result<()> {
        let Some(Replaced { qualified, name, kept }) = &self.replaces else { return Ok(()) };
        kept.make_rest(connection).await?;
        let timeout = set_lock_timeout(connection).await?;
        let swap = format!("DROP TABLE IF EXISTS {qualified}; ALTER TABLE {} RENAME TO {name}", self.name);
        connection.simple(&swap).await.map_err(|error| in_use(error, &self.shown, &timeout))?;
        kept.complete(connection).await
    }
}

/// Limits how long statements wait for others, unless the user has set a limit. Returns the limit.
async fn set_lock_timeout(connection: &mut Connection) -> Result<String> {
    let rows = connection
        .simple(&format!(
            "SELECT pg_catalog.set_config('lock_timeout', '{LOCK_TIMEOUT}', true) \
             WHERE pg_catalog.current_setting('lock_timeout') = '0'; SHOW lock_timeout"
        ))
        .await?;
    Ok(rows.last().and_then(|row| row.first()?.clone()).unwrap_or_default())
}

/// The error for a table that others keep locked.
fn in_use(error: SourceError, shown: &str, timeout: &str) -> SourceError {
    match error {
        // lock_not_available
        SourceError::Sql { code: Some(code), .. } if code == "55P03" => SourceError::Sql {
            reason: format!(
                "table `{shown}` is in use: it could not be locked within {timeout}, and was not changed"
            ),
            position: None,
            code: Some(code),
            hint: Some(
                "end the transactions that use it (see pg_locks) and try again, or wait longer: \
                 …?options=-c%20lock_timeout%3D60s"
                    .into(),
            ),
        },
        error => error,
    }
}

/// The server truncates longer names without an error, and another table may have the shorter name.
async fn check_names(connection: &mut Connection, table: &TableName, schema: &SchemaRef) -> Result<()> {
    let longest = schema.fields().iter().map(|field| field.name()).chain([&table.name]);
    let longest = longest.chain(table.schema.as_ref()).max_by_key(|name| name.len()).unwrap_or(&table.name);
    // Servers can be built with other limits. Names within the usual one need no query.
    if longest.len() <= 63 {
        return Ok(());
    }
    let rows = connection.simple("SHOW max_identifier_length").await?;
    let max = rows.first().and_then(|row| row.first()?.as_deref()?.parse().ok()).unwrap_or(63);
    if longest.len() <= max {
        return Ok(());
    }
    Err(SourceError::Unsupported(format!(
        "name `{longest}` has {} bytes, and PostgreSQL allows up to {max}; choose a shorter name",
        longest.len()
    )))
}

async fn find(connection: &mut Connection, name: &str) -> Result<Option<Found>> {
    let rows = connection
        .simple(&format!(
            "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relispartition FROM pg_catalog.pg_class c \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.oid = pg_catalog.to_regclass({})",
            quote_literal(name)
        ))
        .await?;
    let Some(row) = rows.into_iter().next() else { return Ok(None) };
    let [oid, schema, name, kind, is_partition] = values(row).ok_or_else(|| malformed(connection))?;
    Ok(Some(Found { oid, schema, name, kind, is_partition: is_partition == "t" }))
}

impl Found {
    /// Schema and name, quoted.
    fn qualified(&self) -> String {
        format!("{}.{}", quote_identifier(&self.schema), quote_identifier(&self.name))
    }

    /// Checks early for what would make TRUNCATE fail after all rows have been copied.
    async fn check_truncatable(&self, connection: &mut Connection, shown: &str) -> Result<()> {
        if !matches!(&*self.kind, "r" | "p") {
            return Err(SourceError::Unsupported(format!(
                "replacing the rows of `{shown}`, which is not a table"
            )));
        }
        let rows = connection
            .simple(&format!(
                "SELECT DISTINCT conrelid::regclass::text FROM pg_catalog.pg_constraint \
                 WHERE contype = 'f' AND confrelid = {0} AND conrelid <> {0} ORDER BY 1 LIMIT 5",
                self.oid
            ))
            .await?;
        let others: Vec<_> = rows.into_iter().filter_map(|row| row.into_iter().next()?).collect();
        if others.is_empty() {
            return Ok(());
        }
        Err(SourceError::Sql {
            reason: format!("cannot replace the rows of `{shown}`: {} refers to them", others.join(", ")),
            position: None,
            // feature_not_supported, as TRUNCATE itself
            code: Some("0A000".into()),
            hint: Some("drop the foreign keys first, or use --mode upsert".into()),
        })
    }

    /// Whether a unique index has exactly these columns, in any order, and can find conflicts.
    async fn has_unique_index(&self, connection: &mut Connection, key: &[String]) -> Result<bool> {
        let key: Vec<_> = key.iter().map(|name| format!("{}::name", quote_literal(name))).collect();
        let rows = connection
            .simple(&format!(
                "SELECT 1 FROM pg_catalog.pg_index i WHERE i.indrelid = {} AND i.indisunique AND i.indisvalid \
                     AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL \
                     AND ARRAY(SELECT a.attname FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indrelid \
                         AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) ORDER BY 1) \
                     = ARRAY(SELECT * FROM pg_catalog.unnest(ARRAY[{}]) ORDER BY 1) LIMIT 1",
                self.oid,
                key.join(", ")
            ))
            .await?;
        Ok(!rows.is_empty())
    }

    /// Checks early for what would make the swap fail after all rows have been copied.
    async fn check_replaceable(&self, connection: &mut Connection, shown: &str) -> Result<()> {
        if !matches!(&*self.kind, "r" | "p") {
            return Err(SourceError::Unsupported(format!("replacing `{shown}`, which is not a table")));
        }
        if self.is_partition {
            return Err(SourceError::Unsupported(format!(
                "replacing `{shown}`, which is a partition of another table; delete its rows and append"
            )));
        }
        // A view depends through its rule. What belongs to the table itself also depends on it internally.
        let oid = &self.oid;
        let rows = connection
            .simple(&format!(
                "SELECT DISTINCT CASE WHEN r.oid IS NULL \
                     THEN pg_catalog.pg_describe_object(d.classid, d.objid, 0) \
                     ELSE pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, r.ev_class, 0) END \
                 FROM pg_catalog.pg_depend d LEFT JOIN pg_catalog.pg_rewrite r \
                     ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND r.oid = d.objid \
                 WHERE d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = {oid} AND d.deptype = 'n' \
                     AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend o WHERE (o.classid, o.objid) = \
                         (d.classid, d.objid) AND (o.refclassid, o.refobjid) = (d.refclassid, d.refobjid) \
                         AND o.deptype <> 'n') \
                 ORDER BY 1 LIMIT 5"
            ))
            .await?;
        let dependents: Vec<_> = rows.into_iter().filter_map(|row| row.into_iter().next()?).collect();
        if dependents.is_empty() {
            return Ok(());
        }
        Err(SourceError::Sql {
            reason: format!("cannot replace table `{shown}`: {} depends on it", dependents.join(", ")),
            position: None,
            // dependent_objects_still_exist
            code: Some("2BP01".into()),
            hint: Some("drop the dependent objects first, or delete the table's rows and append".into()),
        })
    }
}

/// A name that no table and no type of the schema has. It contains the id of our backend, so no
/// other copy chooses the same name.
async fn free_name(connection: &mut Connection, schema: &str) -> Result<String> {
    let schema = quote_literal(schema);
    let rows = connection
        .simple(&format!(
            "SELECT name FROM (SELECT 'lightship_' || pg_catalog.pg_backend_pid() || '_' || n, n \
                 FROM pg_catalog.generate_series(1, {NAMES_TRIED}) n) names (name, n) \
             WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s \
                     ON s.oid = c.relnamespace WHERE s.nspname = {schema} AND c.relname = name) \
                 AND NOT EXISTS (SELECT FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace s \
                     ON s.oid = t.typnamespace WHERE s.nspname = {schema} AND t.typname = name) \
             ORDER BY n LIMIT 1"
        ))
        .await?;
    let name = rows.into_iter().next().and_then(|row| row.into_iter().next()?);
    name.ok_or_else(|| {
        SourceError::Unsupported(format!("{NAMES_TRIED} tables in schema {schema} named lightship_…"))
    })
}

/// Creates a table, with the key as its primary key, if there is one.
async fn create(
    connection: &mut Connection,
    name: &str,
    schema: &SchemaRef,
    key: &[String],
    notices: &mut Vec<String>,
) -> Result<()> {
    let natives = native::column_types(connection, schema, notices).await?;
    let mut columns = schema
        .fields()
        .iter()
        .zip(natives)
        .map(|(field, native)| match native.map_or_else(|| column_type(field), Ok) {
            Ok(made) => Ok(format!("{} {made}", quote_identifier(field.name()))),
            Err(what) => Err(SourceError::Unsupported(format!(
                "column `{}` of type {what} in a table; select its fields in the query",
                field.name()
            ))),
        })
        .collect::<Result<Vec<_>>>()?;
    if !key.is_empty() {
        let key: Vec<_> = key.iter().map(|name| quote_identifier(name)).collect();
        columns.push(format!("PRIMARY KEY ({})", key.join(", ")));
    }
    connection.simple(&format!("CREATE TABLE {name} ({})", columns.join(", "))).await?;
    Ok(())
}

/// The writable columns of the table `name`.
async fn columns(connection: &mut Connection, name: &str) -> Result<Vec<TargetColumn>> {
    // A domain's modifier belongs to its base type, and an array's to its elements.
    let rows = connection
        .simple(&format!(
            "WITH RECURSIVE written AS ( \
                 SELECT attnum, attname, atttypid, atttypmod FROM pg_catalog.pg_attribute \
                 WHERE attrelid = pg_catalog.to_regclass({}) \
                     AND attnum > 0 AND NOT attisdropped AND attgenerated = ''), \
             leaf (attnum, type, modifier) AS ( \
                 SELECT attnum, atttypid, atttypmod FROM written UNION ALL \
                 SELECT attnum, CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END, \
                     CASE typtype WHEN 'd' THEN typtypmod ELSE modifier END \
                 FROM leaf JOIN pg_catalog.pg_type t ON t.oid = type \
                 WHERE typtype = 'd' OR typcategory = 'A' AND typlen = -1) \
             SELECT attname, atttypid, atttypmod, pg_catalog.format_type(atttypid, atttypmod), \
                 pg_catalog.format_type(atttypid, -1), type, modifier, \
                 pg_catalog.format_type(type, modifier), pg_catalog.format_type(type, -1) \
             FROM written JOIN leaf USING (attnum) JOIN pg_catalog.pg_type t ON t.oid = type \
             WHERE NOT (typtype = 'd' OR typcategory = 'A' AND typlen = -1) ORDER BY attnum",
            quote_literal(name)
        ))
        .await?;
    let column = |row: TextRow| {
        let [name, oid, modifier, with_modifier, plain, leaf, leaf_modifier, leaf_with, leaf_plain] =
            values(row)?;
        let leaf = leaf.parse().ok()?;
        Some(TargetColumn {
            described: Described { name, oid: oid.parse().ok()?, modifier: modifier.parse().ok()? },
            type_name: TypeName { with_modifier, plain },
            leaf,
            leaf_name: TypeName { with_modifier: leaf_with, plain: leaf_plain },
            limit: Limit::of(leaf, leaf_modifier.parse().ok()?),
        })
    };
    rows.into_iter().map(|row| column(row).ok_or_else(|| malformed(connection))).collect()
}
