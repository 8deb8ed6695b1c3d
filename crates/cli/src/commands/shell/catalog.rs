//! Queries for the tables and columns of a source.

use lightship::Location;

/// Lists the tables: schema, name and kind.
pub(super) fn tables(location: &Location) -> &'static str {
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
pub(super) fn columns(location: &Location, table: &str) -> String {
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

/// Lists the names of all tables and columns: a row for each column.
pub(super) fn names(location: &Location) -> &'static str {
    match location {
        Location::Postgres(_) => {
            "select c.relname::text, a.attname::text from pg_class c \
             join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid \
             where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname not in ('pg_catalog', 'information_schema') \
             and n.nspname !~ '^pg_(toast|temp)' and a.attnum > 0 and not a.attisdropped"
        }
        Location::MySql(_) => {
            "select table_name, column_name from information_schema.columns where table_schema = database()"
        }
        Location::Sqlite(_) => {
            "select m.name, c.name as column_name from sqlite_master m, pragma_table_info(m.name) c \
             where m.type in ('table', 'view')"
        }
        _ => {
            "select table_name, column_name from information_schema.columns \
             where table_schema <> 'information_schema'"
        }
    }
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
    }
}
