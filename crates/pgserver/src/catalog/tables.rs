//! The tables of `pg_catalog` and `information_schema`, as tables of SQLite.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::types::oid;

/// A relation of the catalog.
pub(super) struct Relation {
    /// Its name in SQLite: those of `information_schema` begin with it.
    pub(super) name: &'static str,
    /// The OID of a table, which is the same in every server; 0 for a view.
    pub(super) oid: u32,
    /// Names and types of its columns.
    pub(super) columns: Vec<(&'static str, &'static str)>,
}

/// All relations. The columns of PostgreSQL 15 and those that are new in 16.
///
/// Types of columns are PostgreSQL's, by names whose affinity in SQLite is right: that of a name with `text` in it is
/// text, and that of the others numbers.
pub(super) static RELATIONS: LazyLock<Vec<Relation>> = LazyLock::new(|| {
    let relation = |line: &'static str| {
        let mut fields = line.split('\t');
        let (name, oid, columns) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
        Some(Relation { name, oid, columns: columns.split(',').filter_map(|c| c.split_once(' ')).collect() })
    };
    include_str!("relations.tsv").lines().filter_map(relation).collect()
});

/// The type of a column by its name: columns of the same name have the same type, with few exceptions.
static COLUMNS: LazyLock<HashMap<&'static str, u32>> = LazyLock::new(|| {
    let mut types = HashMap::new();
    for (name, declared_type) in RELATIONS.iter().flat_map(|relation| &relation.columns) {
        types.entry(*name).or_insert_with(|| declared(declared_type));
    }
    types
});

/// The type of a column of the catalog.
pub(super) fn type_of_column(name: &str) -> Option<u32> {
    COLUMNS.get(name.to_lowercase().as_str()).copied()
}

/// Rows that are always the same. Functions are kept by name where PostgreSQL has their OIDs; the one in `pg_proc` is
/// what Npgsql tells arrays by.
pub(super) const ROWS: &str = "
INSERT INTO pg_namespace VALUES (11, 'pg_catalog', 10, NULL), (2200, 'public', 10, NULL),
    (13207, 'information_schema', 10, NULL);
INSERT INTO pg_am VALUES (2, 'heap', 'heap_tableam_handler', 't'), (403, 'btree', 'bthandler', 'i');
INSERT INTO pg_tablespace VALUES (1663, 'pg_default', 10, NULL, NULL), (1664, 'pg_global', 10, NULL, NULL);
INSERT INTO pg_language (oid, lanname, lanowner, lanispl, lanpltrusted) VALUES (12, 'internal', 10, 0, 0), (14, 'sql', 10, 0, 1);
INSERT INTO pg_collation VALUES
    (100, 'default', 11, 10, 'd', 1, -1, NULL, NULL, NULL, NULL, NULL),
    (950, 'C', 11, 10, 'c', 1, -1, 'C', 'C', NULL, NULL, NULL),
    (951, 'POSIX', 11, 10, 'c', 1, -1, 'POSIX', 'POSIX', NULL, NULL, NULL);
INSERT INTO pg_database VALUES
    (16383, '', 10, 6, 'c', 0, 1, -1, 0, 0, 1663, 'C.UTF-8', 'C.UTF-8', NULL, NULL, NULL, NULL);
INSERT INTO pg_roles VALUES ('', 0, 1, 0, 0, 1, 0, -1, NULL, NULL, 0, NULL, 10);
INSERT INTO pg_authid VALUES (10, '', 0, 1, 0, 0, 1, 0, 0, -1, NULL, NULL);
INSERT INTO pg_user VALUES ('', 10, 0, 0, 0, 0, NULL, NULL, NULL);
INSERT INTO pg_proc (oid, proname, pronamespace, prokind) VALUES ('array_recv', 'array_recv', 11, '');
INSERT INTO information_schema_character_sets (character_set_name, character_repertoire, form_of_use) VALUES ('UTF8', 'UCS', 'UTF8');
INSERT INTO pg_get_keywords VALUES ('ilike', 'T', 1, 'reserved', 'can be bare label'),
    ('limit', 'R', 0, 'reserved', 'requires AS'), ('offset', 'R', 0, 'reserved', 'requires AS'),
    ('returning', 'R', 0, 'reserved', 'requires AS');
";

/// The types, as a server of PostgreSQL has them: OID, name, schema, length, by value, kind, category, preferred,
/// delimiter, relation, element, array, input, output, receive, send, not null, base, modifier, dimensions, collation.
pub(super) const TYPES: &str = include_str!("pg_type.tsv");

/// The type of a column with a type of [`RELATIONS`].
pub(super) fn declared(name: &str) -> u32 {
    match name {
        "oid" => oid::OID,
        "bool" => oid::BOOL,
        "int2" => oid::INT2,
        "int4" => oid::INT4,
        "int8" => oid::INT8,
        "float4" => oid::FLOAT4,
        "name_text" => oid::NAME,
        "char_text" => oid::CHAR,
        "varchar_text" => oid::VARCHAR,
        "regproc_text" => oid::REGPROC,
        "int2vector_text" => oid::INT2VECTOR,
        "oidvector_text" => oid::OIDVECTOR,
        "_text" => oid::TEXT_ARRAY,
        "_int2_text" => oid::INT2_ARRAY,
        _ => oid::TEXT,
    }
}

/// Whether a table of SQLite is a relation of the catalog.
pub(super) fn is_relation(name: &str) -> bool {
    RELATIONS.iter().any(|known| known.name == name)
}

/// Whether a name is that of a relation of the catalog, known or not: those of other schemas are the service's.
pub(super) fn is_of_catalog(schema: Option<&str>, name: &str) -> bool {
    match schema {
        Some(schema) => matches!(schema, "pg_catalog" | "information_schema"),
        None => is_relation(name),
    }
}

/// The name in SQLite of a relation of the catalog. `None` if there is no such relation.
pub(super) fn relation(schema: Option<&str>, name: &str) -> Option<String> {
    let name = match schema {
        Some("information_schema") => format!("information_schema_{name}"),
        Some("pg_catalog") | None => name.to_owned(),
        Some(_) => return None,
    };
    is_relation(&name).then_some(name)
}
