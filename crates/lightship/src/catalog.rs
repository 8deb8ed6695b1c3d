//! Queries for the tables and columns of a source.

use crate::Location;

/// Lists the tables: schema, name and kind.
pub fn tables(location: &Location) -> &'static str {
    match location {
        Location::Postgres(_) => {
            "select n.nspname::text as schema, c.relname::text as name, case c.relkind when 'v' then 'view' \
             when 'm' then 'materialized view' when 'f' then 'foreign table' else 'table' end as kind \
             from pg_class c join pg_namespace n on n.oid = c.relnamespace \
             where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname not in ('pg_catalog', 'information_schema') \
             and n.nspname !~ '^pg_(toast|temp)' order by 1, 2"
        }
        Location::MySql(_) => {
            "select table_name as name, case table_type when 'BASE TABLE' then 'table' else lower(table_type) end \
             as kind from information_schema.tables where table_schema = database() order by 1"
        }
        Location::Sqlite(_) => {
            "select name, type as kind from sqlite_master where type in ('table', 'view') \
             and name not like 'sqlite\\_%' escape '\\' order by 1"
        }
        _ => {
            "select table_schema as schema, table_name as name, \
             case table_type when 'BASE TABLE' then 'table' else lower(table_type) end as kind \
             from information_schema.tables where table_schema <> 'information_schema' order by 1, 2"
        }
    }
}

/// Lists the columns of a table: name, type, whether it may be NULL, and its position in the primary key. No rows if there is
/// no such table, or, of PostgreSQL, an error.
pub fn columns(location: &Location, table: &str) -> String {
    match location {
        Location::Postgres(_) => format!(
            "select a.attname::text as name, format_type(a.atttypid, a.atttypmod) as type, \
             case when a.attnotnull then 'NO' else 'YES' end as nullable, k.position as key \
             from pg_attribute a left join (select p.conrelid, u.attnum, u.position from pg_constraint p \
             cross join lateral unnest(p.conkey) with ordinality as u (attnum, position) where p.contype = 'p') k \
             on k.conrelid = a.attrelid and k.attnum = a.attnum \
             where a.attrelid = {}::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum",
            literal(table, location)
        ),
        Location::Sqlite(_) => format!(
            "select name, type, case \"notnull\" when 0 then 'YES' else 'NO' end as nullable, nullif(pk, 0) as key \
             from pragma_table_info({}) order by cid",
            literal(&unquoted(table), location)
        ),
        _ => {
            let (schema, name) = match table.rsplit_once('.') {
                Some((schema, name)) => (Some(unquoted(schema)), unquoted(name)),
                None => (None, unquoted(table)),
            };
            let in_schema = match (schema, location) {
                (Some(schema), _) => format!(" and c.table_schema = {}", literal(&schema, location)),
                (None, Location::MySql(_)) => " and c.table_schema = database()".to_owned(),
                (None, _) => String::new(),
            };
            let (data_type, is_primary, key) = match location {
                Location::MySql(_) => ("column_type", " and k.constraint_name = 'PRIMARY'", "`key`"),
                // A node has no other keys.
                _ => ("data_type", "", "key"),
            };
            let name = literal(&name, location);
            if matches!(location, Location::Adbc(_)) {
                return format!(
                    "select c.column_name as name, c.data_type as type, c.is_nullable as nullable \
                     from information_schema.columns c where c.table_name = {name}{in_schema} order by c.ordinal_position"
                );
            }
            format!(
                "select c.column_name as name, c.{data_type} as type, c.is_nullable as nullable, k.ordinal_position as {key} \
                 from information_schema.columns c left join information_schema.key_column_usage k \
                 on k.table_schema = c.table_schema and k.table_name = c.table_name \
                 and k.column_name = c.column_name{is_primary} \
                 where c.table_name = {name}{in_schema} order by c.ordinal_position"
            )
        }
    }
}

/// Lists the columns of all tables, in the order of the tables: schema, table, name, type, whether it may be NULL, its default,
/// and whether its values are counted up or computed (`YES` or `NO`).
pub fn all_columns(location: &Location) -> &'static str {
    match location {
        Location::Postgres(_) => {
            "select n.nspname::text as schema, c.relname::text as \"table\", a.attname::text as name, \
             format_type(a.atttypid, a.atttypmod) as type, case when a.attnotnull then 'NO' else 'YES' end as nullable, \
             case when a.attgenerated = '' then pg_get_expr(d.adbin, d.adrelid) end as \"default\", \
             case when a.attidentity <> '' or pg_get_expr(d.adbin, d.adrelid) like 'nextval(%' then 'YES' else 'NO' end \
             as counted, case when a.attgenerated <> '' then 'YES' else 'NO' end as computed \
             from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid \
             left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum \
             where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname not in ('pg_catalog', 'information_schema') \
             and n.nspname !~ '^pg_(toast|temp)' and a.attnum > 0 and not a.attisdropped order by 1, 2, a.attnum"
        }
        Location::MySql(_) => {
            "select '' as table_schema, table_name, column_name, column_type, is_nullable, column_default, \
             case when extra like '%auto_increment%' then 'YES' else 'NO' end as counted, \
             case when generation_expression <> '' then 'YES' else 'NO' end as computed \
             from information_schema.columns where table_schema = database() order by table_name, ordinal_position"
        }
        Location::Sqlite(_) => {
            "select '' as schema, m.name as \"table\", c.name as name, c.type as type, \
             case c.\"notnull\" when 0 then 'YES' else 'NO' end as nullable, c.dflt_value as \"default\", \
             'NO' as counted, case when c.hidden in (2, 3) then 'YES' else 'NO' end as computed \
             from sqlite_master m, pragma_table_xinfo(m.name) c where m.type in ('table', 'view') and c.hidden <> 1 \
             and m.name not like 'sqlite\\_%' escape '\\' order by m.name, c.cid"
        }
        _ => {
            "select table_schema, table_name, column_name, data_type, is_nullable, cast(null as varchar) as \"default\", \
             'NO' as counted, 'NO' as computed from information_schema.columns \
             where table_schema <> 'information_schema' order by table_schema, table_name, ordinal_position"
        }
    }
}

/// Lists the schemas, also those without tables. `None` if the source has none.
pub fn schemas(location: &Location) -> Option<&'static str> {
    match location {
        Location::Postgres(_) => Some(
            "select nspname::text as schema from pg_namespace where nspname not in ('pg_catalog', 'information_schema') \
             and nspname !~ '^pg_(toast|temp)' order by 1",
        ),
        Location::MySql(_) | Location::Sqlite(_) => None,
        _ => Some(
            "select distinct table_schema as schema from information_schema.tables \
             where table_schema <> 'information_schema' order by 1",
        ),
    }
}

/// Names the catalog of the tables: one row.
pub fn catalog(location: &Location) -> &'static str {
    match location {
        Location::Postgres(_) => "select current_database()::text as catalog",
        Location::MySql(_) => "select database() as catalog",
        Location::Sqlite(_) => "select 'main' as catalog",
        _ => "select distinct table_catalog as catalog from information_schema.tables",
    }
}

/// Lists the columns of keys: schema, table, name and kind of the key, column, and for a foreign key the schema,
/// table and column that it refers to. Of SQLite, only primary keys, which have no names. `None` if the source does not say.
pub fn keys(location: &Location) -> Option<&'static str> {
    match location {
        Location::Postgres(_) => Some(
            "select n.nspname::text as schema, c.relname::text as \"table\", k.conname::text as name, \
             case k.contype when 'p' then 'PRIMARY KEY' when 'u' then 'UNIQUE' else 'FOREIGN KEY' end as kind, \
             a.attname::text as \"column\", fn.nspname::text as of_schema, fc.relname::text as of_table, \
             fa.attname::text as of_column from pg_constraint k join pg_class c on c.oid = k.conrelid \
             join pg_namespace n on n.oid = c.relnamespace \
             cross join lateral unnest(k.conkey, k.confkey) with ordinality as u (attnum, of_attnum, position) \
             join pg_attribute a on a.attrelid = k.conrelid and a.attnum = u.attnum \
             left join pg_class fc on fc.oid = k.confrelid left join pg_namespace fn on fn.oid = fc.relnamespace \
             left join pg_attribute fa on fa.attrelid = k.confrelid and fa.attnum = u.of_attnum \
             where k.contype in ('p', 'u', 'f') and n.nspname not in ('pg_catalog', 'information_schema') \
             order by 1, 2, 3, u.position",
        ),
        Location::MySql(_) => Some(
            "select '' as table_schema, k.table_name, k.constraint_name, c.constraint_type, k.column_name, \
             '' as of_schema, k.referenced_table_name, k.referenced_column_name \
             from information_schema.key_column_usage k join information_schema.table_constraints c \
             on c.constraint_schema = k.constraint_schema and c.table_name = k.table_name \
             and c.constraint_name = k.constraint_name where k.table_schema = database() \
             order by k.table_name, k.constraint_name, k.ordinal_position",
        ),
        Location::Sqlite(_) => Some(
            "select '' as schema, m.name as \"table\", cast(null as text) as name, 'PRIMARY KEY' as kind, \
             c.name as \"column\", cast(null as text) as of_schema, cast(null as text) as of_table, \
             cast(null as text) as of_column from sqlite_master m, pragma_table_info(m.name) c \
             where m.type = 'table' and m.name not like 'sqlite\\_%' escape '\\' and c.pk > 0 order by m.name, c.pk",
        ),
        // A node has primary keys only: those of range files.
        Location::Node { .. }
        | Location::NodeUnix { .. }
        | Location::Path(_)
        | Location::Object(_)
        | Location::Tables(_) => Some(
            "select table_schema, table_name, constraint_name, 'PRIMARY KEY' as kind, column_name, \
             cast(null as varchar) as of_schema, cast(null as varchar) as of_table, cast(null as varchar) as of_column \
             from information_schema.key_column_usage order by table_schema, table_name, ordinal_position",
        ),
        Location::Adbc(_) => None,
    }
}

/// A query that returns the columns of a table and no rows.
pub fn no_rows(location: &Location, schema: Option<&str>, table: &str) -> String {
    format!("{} where 1 = 0", all_rows(location, schema, table))
}

/// A query that returns all rows of a table.
pub fn all_rows(location: &Location, schema: Option<&str>, table: &str) -> String {
    format!("select * from {}", full_name(location, schema, table))
}

/// A query that counts the rows of a table.
pub fn count(location: &Location, schema: Option<&str>, table: &str) -> String {
    format!("select count(*) as n from {}", full_name(location, schema, table))
}

/// The source's estimates of the rows of its tables: schema, table, and the number. `None` if it does not keep them.
pub fn row_counts(location: &Location) -> Option<&'static str> {
    match location {
        Location::Postgres(_) => Some(
            "select n.nspname::text as schema, c.relname::text as \"table\", c.reltuples::bigint as n \
             from pg_class c join pg_namespace n on n.oid = c.relnamespace \
             where c.relkind in ('r', 'p', 'm') and c.reltuples >= 0 \
             and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_(toast|temp)' order by 1, 2",
        ),
        Location::MySql(_) => Some(
            "select '' as table_schema, table_name, cast(table_rows as unsigned) as n from information_schema.tables \
             where table_schema = database() and table_rows is not null order by 2",
        ),
        _ => None,
    }
}

/// The source's estimates for the columns of its tables: schema, table, column, average bytes of a value, number of distinct
/// values, and number of NULLs. `None` if it does not keep them.
pub fn column_statistics(location: &Location) -> Option<&'static str> {
    let Location::Postgres(_) = location else { return None };
    Some(
        "select s.schemaname::text as schema, s.tablename::text as \"table\", s.attname::text as name, \
         s.avg_width::float8 as bytes, \
         (case when s.n_distinct < 0 then -s.n_distinct * c.reltuples else s.n_distinct end)::float8 as \"distinct\", \
         (s.null_frac * c.reltuples)::float8 as nulls \
         from pg_stats s join pg_namespace n on n.nspname = s.schemaname \
         join pg_class c on c.relnamespace = n.oid and c.relname = s.tablename \
         where c.relkind in ('r', 'p', 'm') and s.inherited = (c.relkind = 'p') and c.reltuples >= 0 \
         and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^pg_(toast|temp)' order by 1, 2, 3",
    )
}

/// Asks for the version of the source. `None` if it can't say.
pub fn version(location: &Location) -> Option<&'static str> {
    match location {
        Location::Postgres(_) => Some("select current_setting('server_version')::text as version"),
        Location::MySql(_) => Some("select version() as version"),
        Location::Sqlite(_) => Some("select sqlite_version() as version"),
        _ => None,
    }
}

/// A table's name in SQL.
fn full_name(location: &Location, schema: Option<&str>, table: &str) -> String {
    let quote = if matches!(location, Location::MySql(_)) { '`' } else { '"' };
    let quoted = |name: &str| format!("{quote}{}{quote}", name.replace(quote, &format!("{quote}{quote}")));
    let schema = schema.filter(|schema| !schema.is_empty());
    let schema = schema.map(|schema| quoted(schema) + ".").unwrap_or_default();
    schema + &quoted(table)
}

/// A name without its quotes.
fn unquoted(name: &str) -> String {
    for quote in ['"', '`'] {
        let inside = name.strip_prefix(quote).and_then(|name| name.strip_suffix(quote));
        if let Some(inside) = inside {
            return inside.replace(&format!("{quote}{quote}"), &quote.to_string());
        }
    }
    name.to_owned()
}

fn literal(text: &str, location: &Location) -> String {
    let text = text.replace('\'', "''");
    let text = if matches!(location, Location::MySql(_)) { text.replace('\\', "\\\\") } else { text };
    format!("'{text}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_each_source() {
        let columns = |uri: &str, table: &str| columns(&Location::parse(uri).unwrap(), table);
        assert!(columns("sales.csv", "o'x").contains("c.table_name = 'o''x' order"));
        assert!(
            columns("mysql://h/d", "a\\'")
                .contains("c.table_name = 'a\\\\''' and c.table_schema = database()")
        );
        assert!(
            columns("lightship://h", "s.\"a\"\"b\"")
                .contains("c.table_name = 'a\"b' and c.table_schema = 's'")
        );
        assert!(columns("postgresql://h/d", "public.\"A\"").contains("'public.\"A\"'::regclass"));
        assert!(columns("sqlite:f", "`t`").contains("pragma_table_info('t')"));
        let no_rows = |uri: &str, schema, table| no_rows(&Location::parse(uri).unwrap(), schema, table);
        assert_eq!(no_rows("mysql://h/d", None, "a`b"), "select * from `a``b` where 1 = 0");
        assert_eq!(no_rows("sales.csv", Some("s"), "a\"b"), "select * from \"s\".\"a\"\"b\" where 1 = 0");
    }
}
