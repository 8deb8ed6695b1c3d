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

/// Lists the columns of a table: name, type, and whether it may be NULL. No rows if there is no such table, or, of
/// PostgreSQL, an error.
pub fn columns(location: &Location, table: &str) -> String {
    match location {
        Location::Postgres(_) => format!(
            "select attname::text as name, format_type(atttypid, atttypmod) as type, \
             case when attnotnull then 'NO' else 'YES' end as nullable from pg_attribute \
             where attrelid = {}::regclass and attnum > 0 and not attisdropped order by attnum",
            literal(table, location)
        ),
        Location::Sqlite(_) => format!(
            "select name, type, case \"notnull\" when 0 then 'YES' else 'NO' end as nullable from pragma_table_info({}) order by cid",
            literal(&unquoted(table), location)
        ),
        _ => {
            let (schema, name) = match table.rsplit_once('.') {
                Some((schema, name)) => (Some(unquoted(schema)), unquoted(name)),
                None => (None, unquoted(table)),
            };
            let in_schema = match (schema, location) {
                (Some(schema), _) => format!(" and table_schema = {}", literal(&schema, location)),
                (None, Location::MySql(_)) => " and table_schema = database()".to_owned(),
                (None, _) => String::new(),
            };
            format!(
                "select column_name as name, {} as type, is_nullable as nullable from information_schema.columns \
                 where table_name = {}{in_schema} order by ordinal_position",
                if matches!(location, Location::MySql(_)) { "column_type" } else { "data_type" },
                literal(&name, location),
            )
        }
    }
}

/// Lists the columns of all tables: schema, table, name, type, and whether it may be NULL, in the order of the tables.
pub fn all_columns(location: &Location) -> &'static str {
    match location {
        Location::Postgres(_) => {
            "select n.nspname::text as schema, c.relname::text as \"table\", a.attname::text as name, \
             format_type(a.atttypid, a.atttypmod) as type, case when a.attnotnull then 'NO' else 'YES' end as nullable \
             from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid \
             where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname not in ('pg_catalog', 'information_schema') \
             and n.nspname !~ '^pg_(toast|temp)' and a.attnum > 0 and not a.attisdropped order by 1, 2, a.attnum"
        }
        Location::MySql(_) => {
            "select '' as table_schema, table_name, column_name, column_type, is_nullable \
             from information_schema.columns where table_schema = database() order by table_name, ordinal_position"
        }
        Location::Sqlite(_) => {
            "select '' as schema, m.name as \"table\", c.name as name, c.type as type, \
             case c.\"notnull\" when 0 then 'YES' else 'NO' end as nullable \
             from sqlite_master m, pragma_table_info(m.name) c where m.type in ('table', 'view') \
             and m.name not like 'sqlite\\_%' escape '\\' order by m.name, c.cid"
        }
        _ => {
            "select table_schema, table_name, column_name, data_type, is_nullable from information_schema.columns \
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
/// table and column that it refers to. `None` if the source does not say.
pub fn keys(location: &Location) -> Option<&'static str> {
    let Location::Postgres(_) = location else { return None };
    Some(
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
    )
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
        assert!(columns("sales.csv", "o'x").contains("table_name = 'o''x' order"));
        assert!(
            columns("mysql://h/d", "a\\'").contains("table_name = 'a\\\\''' and table_schema = database()")
        );
        assert!(
            columns("lightship://h", "s.\"a\"\"b\"").contains("table_name = 'a\"b' and table_schema = 's'")
        );
        assert!(columns("postgresql://h/d", "public.\"A\"").contains("'public.\"A\"'::regclass"));
        assert!(columns("sqlite:f", "`t`").contains("pragma_table_info('t')"));
        let no_rows = |uri: &str, schema, table| no_rows(&Location::parse(uri).unwrap(), schema, table);
        assert_eq!(no_rows("mysql://h/d", None, "a`b"), "select * from `a``b` where 1 = 0");
        assert_eq!(no_rows("sales.csv", Some("s"), "a\"b"), "select * from \"s\".\"a\"\"b\" where 1 = 0");
    }
}
