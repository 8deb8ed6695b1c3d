//! Primary keys of the service's tables: constraints, and the indexes that PostgreSQL has for them.

use std::collections::HashMap;

use futures::StreamExt as _;
use lightship_transport::net::Service;
use lightship_wire::control::{Plan, Query, Reason};
use rusqlite::{Transaction, params};

use super::fill::{self, Oids, TableEntry};
use super::functions::{IndexName, Names, quoted};
use crate::error::{PgError, PgResult, code};
use crate::types::PgColumn;

/// Where the service tells about the keys of its tables.
const KEYS: &str = "SELECT table_schema, table_name, column_name FROM information_schema.key_column_usage \
    ORDER BY table_schema, table_name, ordinal_position";

/// Adds the keys of the service to its tables.
///
/// # Errors
/// If the service fails, or has too many.
pub(super) async fn fetch(service: &dyn Service, tables: &mut [TableEntry]) -> PgResult<()> {
    let query = Query { sql: KEYS.into(), plan: Plan::default() };
    let mut answer = match service.query(&query).await {
        Ok(answer) => answer,
        // A service without keys.
        Err(failure) if failure.reason == Some(Reason::UndefinedTable) => return Ok(()),
        Err(failure) => return Err(failure.into()),
    };
    let places: HashMap<(String, String), usize> = tables
        .iter()
        .enumerate()
        .map(|(at, table)| ((table.schema.clone(), table.name.clone()), at))
        .collect();
    let mut count = 0;
    while let Some(batch) = answer.rows.next().await.transpose()? {
        count += batch.num_rows();
        if count > fill::COLUMNS_MAX {
            let message =
                format!("the keys have more than {} columns, the limit of the catalog", fill::COLUMNS_MAX);
            return Err(PgError::new(code::PROGRAM_LIMIT, message));
        }
        for [schema, name, column] in fill::texts::<3>(&batch)? {
            if let Some(&at) = places.get(&(schema, name)) {
                tables[at].key.push(column);
            }
        }
    }
    Ok(())
}

/// Adds the key of a table with these columns, whose OID is `relation`, in the schema with the OID `namespace`.
pub(super) fn fill(
    transaction: &Transaction<'_>,
    table: &TableEntry,
    columns: &[PgColumn],
    (relation, namespace): (u32, i64),
    oids: &mut Oids,
    names: &mut Names,
) -> rusqlite::Result<()> {
    let position = |name: &String| table.columns.iter().position(|(column, ..)| column == name);
    let Some(places) = table.key.iter().map(position).collect::<Option<Vec<_>>>() else { return Ok(()) };
    if places.is_empty() {
        return Ok(());
    }
    let name = format!("{}_pkey", table.name);
    // No table has a name with NUL in it.
    let index = oids.of(&table.schema, &format!("{}\0index", table.name));
    let constraint = oids.of(&table.schema, &format!("{}\0key", table.name));
    let numbers: Vec<String> = places.iter().map(|place| (place + 1).to_string()).collect();
    let (vector, array) = (numbers.join(" "), format!("{{{}}}", numbers.join(",")));
    let zeros = vec!["0"; numbers.len()].join(" ");
    let count = numbers.len() as i64;
    let run = |sql: &str, values: &[&dyn rusqlite::ToSql]| transaction.execute(sql, values);
    run(
        "INSERT INTO pg_class (oid, relname, relnamespace, reltype, reloftype, relowner, relam, relfilenode, reltablespace, \
         relpages, reltuples, relallvisible, reltoastrelid, relhasindex, relisshared, relpersistence, relkind, relnatts, \
         relchecks, relhasrules, relhastriggers, relhassubclass, relrowsecurity, relforcerowsecurity, relispopulated, \
         relreplident, relispartition, relrewrite, relfrozenxid, relminmxid) \
         VALUES (?1, ?2, ?3, 0, 0, 10, 403, ?1, 0, 0, -1, 0, 0, 0, 0, 'p', 'i', ?4, 0, 0, 0, 0, 0, 0, 1, 'n', 0, 0, 0, 0)",
        params![index, name, namespace, count],
    )?;
    run("UPDATE pg_class SET relhasindex = 1 WHERE oid = ?1", params![relation])?;
    run(
        "UPDATE pg_tables SET hasindexes = 1 WHERE schemaname = ?1 AND tablename = ?2",
        params![table.schema, table.name],
    )?;
    run(
        "INSERT INTO pg_index (indexrelid, indrelid, indnatts, indnkeyatts, indisunique, indnullsnotdistinct, indisprimary, \
         indisexclusion, indimmediate, indisclustered, indisvalid, indcheckxmin, indisready, indislive, indisreplident, \
         indkey, indcollation, indclass, indoption) \
         VALUES (?1, ?2, ?3, ?3, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, ?4, ?5, ?5, ?5)",
        params![index, relation, count, vector, zeros],
    )?;
    run(
        "INSERT INTO pg_constraint (oid, conname, connamespace, contype, condeferrable, condeferred, convalidated, conrelid, \
         contypid, conindid, conparentid, confrelid, confupdtype, confdeltype, confmatchtype, conislocal, coninhcount, \
         connoinherit, conkey) VALUES (?1, ?2, ?3, 'p', 0, 0, 1, ?4, 0, ?5, 0, 0, '', '', '', 1, 0, 1, ?6)",
        params![constraint, name, namespace, relation, index, array],
    )?;
    let place = params![table.schema, table.name, name];
    run(
        "INSERT INTO information_schema_table_constraints (constraint_catalog, constraint_schema, constraint_name, \
         table_catalog, table_schema, table_name, constraint_type, is_deferrable, initially_deferred, enforced) \
         VALUES ('', ?1, ?3, '', ?1, ?2, 'PRIMARY KEY', 'NO', 'NO', 'YES')",
        place,
    )?;
    for (at, column) in table.key.iter().enumerate() {
        let pg = &columns[places[at]];
        let length = pg.length();
        run(
            "INSERT INTO pg_attribute (attrelid, attname, atttypid, attlen, attnum, attcacheoff, atttypmod, attndims, attbyval, \
             attalign, attstorage, attcompression, attnotnull, atthasdef, atthasmissing, attidentity, attgenerated, \
             attisdropped, attislocal, attinhcount, attcollation, attstattarget) \
             VALUES (?1, ?2, ?3, ?4, ?5, -1, ?6, 0, ?7, 'i', 'p', '', 0, 0, 0, '', '', 0, 1, 0, 0, -1)",
            params![
                index,
                column,
                pg.oid,
                length,
                at as i64 + 1,
                pg.modifier,
                i32::from((1..=8).contains(&length))
            ],
        )?;
        let usage = params![table.schema, table.name, name, column, at as i64 + 1];
        run(
            "INSERT INTO information_schema_key_column_usage (constraint_catalog, constraint_schema, constraint_name, \
             table_catalog, table_schema, table_name, column_name, ordinal_position) \
             VALUES ('', ?1, ?3, '', ?1, ?2, ?4, ?5)",
            usage,
        )?;
        run(
            "INSERT INTO information_schema_constraint_column_usage (table_catalog, table_schema, table_name, column_name, \
             constraint_catalog, constraint_schema, constraint_name) VALUES ('', ?1, ?2, ?4, '', ?1, ?3)",
            &usage[..4],
        )?;
    }
    let columns: Vec<String> = table.key.iter().map(|column| quoted(column)).collect();
    let list = columns.join(", ");
    let definition = format!(
        "CREATE UNIQUE INDEX {} ON {}.{} USING btree ({list})",
        quoted(&name),
        quoted(&table.schema),
        quoted(&table.name)
    );
    run(
        "INSERT INTO pg_indexes (schemaname, tablename, indexname, indexdef) VALUES (?1, ?2, ?3, ?4)",
        params![table.schema, table.name, name, definition],
    )?;
    names.relations.insert(index.into(), (table.schema.clone(), name));
    names.indexes.insert(index.into(), IndexName { definition, columns });
    names.constraints.insert(constraint.into(), format!("PRIMARY KEY ({list})"));
    Ok(())
}
