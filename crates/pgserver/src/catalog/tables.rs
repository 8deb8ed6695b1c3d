//! The tables of `pg_catalog` and `information_schema`, as tables of SQLite.
//!
//! Types of columns are PostgreSQL's, by names whose affinity in SQLite is right: that of a name with `text` in it is
//! text, and that of the others numbers.

use crate::types::oid;

/// Name, OID if clients know it, and columns.
pub(super) const TABLES: &[(&str, u32, &str)] = &[
    ("pg_namespace", 2615, "oid oid, nspname name_text, nspowner oid, nspacl _text"),
    (
        "pg_class",
        1259,
        "oid oid, relname name_text, relnamespace oid, reltype oid, reloftype oid, relowner oid, relam oid, \
         relfilenode oid, reltablespace oid, relpages int4, reltuples float4, relallvisible int4, reltoastrelid oid, \
         relhasindex bool, relisshared bool, relpersistence char_text, relkind char_text, relnatts int2, \
         relchecks int2, relhasrules bool, relhastriggers bool, relhassubclass bool, relrowsecurity bool, \
         relforcerowsecurity bool, relispopulated bool, relreplident char_text, relispartition bool, relrewrite oid, \
         relfrozenxid int4, relminmxid int4, relacl _text, reloptions _text, relpartbound text",
    ),
    (
        "pg_attribute",
        1249,
        "attrelid oid, attname name_text, atttypid oid, attlen int2, attnum int2, attcacheoff int4, atttypmod int4, \
         attndims int2, attbyval bool, attalign char_text, attstorage char_text, attcompression char_text, \
         attnotnull bool, atthasdef bool, atthasmissing bool, attidentity char_text, attgenerated char_text, \
         attisdropped bool, attislocal bool, attinhcount int2, attcollation oid, attstattarget int2, attacl _text, \
         attoptions _text, attfdwoptions _text, attmissingval _text",
    ),
    (
        "pg_type",
        1247,
        "oid oid, typname name_text, typnamespace oid, typowner oid, typlen int2, typbyval bool, typtype char_text, \
         typcategory char_text, typispreferred bool, typisdefined bool, typdelim char_text, typrelid oid, \
         typsubscript regproc_text, typelem oid, typarray oid, typinput regproc_text, typoutput regproc_text, \
         typreceive regproc_text, typsend regproc_text, typmodin regproc_text, typmodout regproc_text, \
         typanalyze regproc_text, typalign char_text, typstorage char_text, typnotnull bool, typbasetype oid, \
         typtypmod int4, typndims int4, typcollation oid, typdefaultbin text, typdefault text, typacl _text",
    ),
    ("pg_attrdef", 2604, "oid oid, adrelid oid, adnum int2, adbin text"),
    (
        "pg_constraint",
        2606,
        "oid oid, conname name_text, connamespace oid, contype char_text, condeferrable bool, condeferred bool, \
         convalidated bool, conrelid oid, contypid oid, conindid oid, conparentid oid, confrelid oid, \
         confupdtype char_text, confdeltype char_text, confmatchtype char_text, conislocal bool, coninhcount int2, \
         connoinherit bool, conkey _text, confkey _text, conpfeqop _text, conppeqop _text, conffeqop _text, \
         confdelsetcols _text, conexclop _text, conbin text",
    ),
    (
        "pg_index",
        2610,
        "indexrelid oid, indrelid oid, indnatts int2, indnkeyatts int2, indisunique bool, indnullsnotdistinct bool, \
         indisprimary bool, indisexclusion bool, indimmediate bool, indisclustered bool, indisvalid bool, \
         indcheckxmin bool, indisready bool, indislive bool, indisreplident bool, indkey int2vector_text, \
         indcollation oidvector_text, indclass oidvector_text, indoption int2vector_text, indexprs text, indpred text",
    ),
    ("pg_description", 2609, "objoid oid, classoid oid, objsubid int4, description text"),
    ("pg_shdescription", 2396, "objoid oid, classoid oid, description text"),
    (
        "pg_database",
        1262,
        "oid oid, datname name_text, datdba oid, encoding int4, datlocprovider char_text, datistemplate bool, \
         datallowconn bool, datconnlimit int4, datfrozenxid int4, datminmxid int4, dattablespace oid, \
         datcollate text, datctype text, daticulocale text, daticurules text, datcollversion text, datacl _text",
    ),
    (
        "pg_roles",
        0,
        "rolname name_text, rolsuper bool, rolinherit bool, rolcreaterole bool, rolcreatedb bool, rolcanlogin bool, \
         rolreplication bool, rolconnlimit int4, rolpassword text, rolvaliduntil text, rolbypassrls bool, \
         rolconfig _text, oid oid",
    ),
    (
        "pg_authid",
        1260,
        "oid oid, rolname name_text, rolsuper bool, rolinherit bool, rolcreaterole bool, rolcreatedb bool, \
         rolcanlogin bool, rolreplication bool, rolbypassrls bool, rolconnlimit int4, rolpassword text, \
         rolvaliduntil text",
    ),
    (
        "pg_user",
        0,
        "usename name_text, usesysid oid, usecreatedb bool, usesuper bool, userepl bool, usebypassrls bool, \
         passwd text, valuntil text, useconfig _text",
    ),
    ("pg_auth_members", 1261, "oid oid, roleid oid, member oid, grantor oid, admin_option bool"),
    ("pg_am", 2601, "oid oid, amname name_text, amhandler regproc_text, amtype char_text"),
    (
        "pg_proc",
        1255,
        "oid oid, proname name_text, pronamespace oid, proowner oid, prolang oid, procost float4, prorows float4, \
         provariadic oid, prosupport regproc_text, prokind char_text, prosecdef bool, proleakproof bool, \
         proisstrict bool, proretset bool, provolatile char_text, proparallel char_text, pronargs int2, \
         pronargdefaults int2, prorettype oid, proargtypes oidvector_text, proallargtypes _text, proargmodes _text, \
         proargnames _text, proargdefaults text, protrftypes _text, prosrc text, probin text, prosqlbody text, \
         proconfig _text, proacl _text",
    ),
    ("pg_aggregate", 2600, "aggfnoid regproc_text, aggkind char_text, aggnumdirectargs int2"),
    ("pg_enum", 3501, "oid oid, enumtypid oid, enumsortorder float4, enumlabel name_text"),
    (
        "pg_range",
        3541,
        "rngtypid oid, rngsubtype oid, rngmultitypid oid, rngcollation oid, rngsubopc oid, \
         rngcanonical regproc_text, rngsubdiff regproc_text",
    ),
    (
        "pg_collation",
        3456,
        "oid oid, collname name_text, collnamespace oid, collowner oid, collprovider char_text, \
         collisdeterministic bool, collencoding int4, collcollate text, collctype text, colliculocale text, \
         collicurules text, collversion text",
    ),
    (
        "pg_settings",
        0,
        "name text, setting text, unit text, category text, short_desc text, extra_desc text, context text, \
         vartype text, source text, min_val text, max_val text, enumvals _text, boot_val text, reset_val text, \
         sourcefile text, sourceline int4, pending_restart bool",
    ),
    (
        "pg_tables",
        0,
        "schemaname name_text, tablename name_text, tableowner name_text, tablespace name_text, hasindexes bool, \
         hasrules bool, hastriggers bool, rowsecurity bool",
    ),
    ("pg_views", 0, "schemaname name_text, viewname name_text, viewowner name_text, definition text"),
    (
        "pg_matviews",
        0,
        "schemaname name_text, matviewname name_text, matviewowner name_text, tablespace name_text, hasindexes bool, \
         ispopulated bool, definition text",
    ),
    (
        "pg_indexes",
        0,
        "schemaname name_text, tablename name_text, indexname name_text, tablespace name_text, indexdef text",
    ),
    (
        "pg_sequence",
        2224,
        "seqrelid oid, seqtypid oid, seqstart int8, seqincrement int8, seqmax int8, seqmin int8, seqcache int8, \
         seqcycle bool",
    ),
    (
        "pg_sequences",
        0,
        "schemaname name_text, sequencename name_text, sequenceowner name_text, data_type text, start_value int8, \
         min_value int8, max_value int8, increment_by int8, cycle bool, cache_size int8, last_value int8",
    ),
    ("pg_inherits", 2611, "inhrelid oid, inhparent oid, inhseqno int4, inhdetachpending bool"),
    ("pg_tablespace", 1213, "oid oid, spcname name_text, spcowner oid, spcacl _text, spcoptions _text"),
    (
        "pg_trigger",
        2620,
        "oid oid, tgrelid oid, tgparentid oid, tgname name_text, tgfoid oid, tgtype int2, tgenabled char_text, \
         tgisinternal bool, tgconstrrelid oid, tgconstrindid oid, tgconstraint oid, tgdeferrable bool, \
         tginitdeferred bool, tgnargs int2, tgattr int2vector_text, tgargs text, tgqual text, tgoldtable name_text, \
         tgnewtable name_text",
    ),
    (
        "pg_rewrite",
        2618,
        "oid oid, rulename name_text, ev_class oid, ev_type char_text, ev_enabled char_text, is_instead bool, \
         ev_qual text, ev_action text",
    ),
    (
        "pg_policy",
        3256,
        "oid oid, polname name_text, polrelid oid, polcmd char_text, polpermissive bool, polroles _text, polqual text, \
         polwithcheck text",
    ),
    (
        "pg_publication",
        6104,
        "oid oid, pubname name_text, pubowner oid, puballtables bool, pubinsert bool, pubupdate bool, pubdelete bool, \
         pubtruncate bool, pubviaroot bool",
    ),
    ("pg_publication_rel", 6106, "oid oid, prpubid oid, prrelid oid, prqual text, prattrs _text"),
    ("pg_publication_namespace", 6237, "oid oid, pnpubid oid, pnnspid oid"),
    ("pg_subscription", 6100, "oid oid, subdbid oid, subname name_text, subowner oid, subenabled bool"),
    (
        "pg_statistic_ext",
        3381,
        "oid oid, stxrelid oid, stxname name_text, stxnamespace oid, stxowner oid, stxstattarget int4, \
         stxkeys int2vector_text, stxkind _text, stxexprs text",
    ),
    ("pg_foreign_table", 3118, "ftrelid oid, ftserver oid, ftoptions _text"),
    (
        "pg_foreign_server",
        1417,
        "oid oid, srvname name_text, srvowner oid, srvfdw oid, srvtype text, srvversion text, srvacl _text, \
         srvoptions _text",
    ),
    (
        "pg_foreign_data_wrapper",
        2328,
        "oid oid, fdwname name_text, fdwowner oid, fdwhandler oid, fdwvalidator oid, fdwacl _text, fdwoptions _text",
    ),
    (
        "pg_partitioned_table",
        3350,
        "partrelid oid, partstrat char_text, partnatts int2, partdefid oid, partattrs int2vector_text, \
         partclass oidvector_text, partcollation oidvector_text, partexprs text",
    ),
    (
        "pg_extension",
        3079,
        "oid oid, extname name_text, extowner oid, extnamespace oid, extrelocatable bool, extversion text, \
         extconfig _text, extcondition _text",
    ),
    ("pg_language", 2612, "oid oid, lanname name_text, lanowner oid, lanispl bool, lanpltrusted bool"),
    (
        "pg_opclass",
        2616,
        "oid oid, opcmethod oid, opcname name_text, opcnamespace oid, opcowner oid, opcfamily oid, opcintype oid, \
         opcdefault bool, opckeytype oid",
    ),
    (
        "pg_operator",
        2617,
        "oid oid, oprname name_text, oprnamespace oid, oprowner oid, oprkind char_text, oprleft oid, oprright oid, \
         oprresult oid",
    ),
    (
        "pg_cast",
        2605,
        "oid oid, castsource oid, casttarget oid, castfunc oid, castcontext char_text, castmethod char_text",
    ),
    (
        "pg_depend",
        2608,
        "classid oid, objid oid, objsubid int4, refclassid oid, refobjid oid, refobjsubid int4, deptype char_text",
    ),
    (
        "pg_event_trigger",
        3466,
        "oid oid, evtname name_text, evtevent name_text, evtowner oid, evtenabled char_text",
    ),
    (
        "pg_default_acl",
        826,
        "oid oid, defaclrole oid, defaclnamespace oid, defaclobjtype char_text, defaclacl _text",
    ),
    (
        "pg_stat_activity",
        0,
        "datid oid, datname name_text, pid int4, usesysid oid, usename name_text, application_name text, \
         client_addr text, client_port int4, state text, query text, backend_type text",
    ),
    ("pg_stat_wal_receiver", 0, "pid int4, status text"),
    (
        "pg_stat_user_tables",
        0,
        "relid oid, schemaname name_text, relname name_text, n_live_tup int8, n_dead_tup int8",
    ),
    ("pg_locks", 0, "locktype text, database oid, relation oid, pid int4, mode text, granted bool"),
    ("pg_prepared_statements", 0, "name text, statement text, from_sql bool"),
    ("pg_cursors", 0, "name text, statement text, is_holdable bool, is_binary bool, is_scrollable bool"),
    ("pg_timezone_names", 0, "name text, abbrev text, is_dst bool"),
    ("pg_get_keywords", 0, "word text, catcode char_text, barelabel bool, catdesc text, baredesc text"),
    (
        "information_schema_schemata",
        0,
        "catalog_name name_text, schema_name name_text, schema_owner name_text, default_character_set_catalog name_text, \
         default_character_set_schema name_text, default_character_set_name name_text, sql_path text",
    ),
    (
        "information_schema_tables",
        0,
        "table_catalog name_text, table_schema name_text, table_name name_text, table_type varchar_text, \
         self_referencing_column_name name_text, reference_generation varchar_text, user_defined_type_catalog name_text, \
         user_defined_type_schema name_text, user_defined_type_name name_text, is_insertable_into varchar_text, \
         is_typed varchar_text, commit_action varchar_text",
    ),
    (
        "information_schema_columns",
        0,
        "table_catalog name_text, table_schema name_text, table_name name_text, column_name name_text, \
         ordinal_position int4, column_default varchar_text, is_nullable varchar_text, data_type varchar_text, \
         character_maximum_length int4, character_octet_length int4, numeric_precision int4, \
         numeric_precision_radix int4, numeric_scale int4, datetime_precision int4, interval_type varchar_text, \
         interval_precision int4, character_set_catalog name_text, character_set_schema name_text, \
         character_set_name name_text, collation_catalog name_text, collation_schema name_text, \
         collation_name name_text, domain_catalog name_text, domain_schema name_text, domain_name name_text, \
         udt_catalog name_text, udt_schema name_text, udt_name name_text, is_identity varchar_text, \
         identity_generation varchar_text, is_generated varchar_text, generation_expression varchar_text, \
         is_updatable varchar_text",
    ),
    (
        "information_schema_views",
        0,
        "table_catalog name_text, table_schema name_text, table_name name_text, view_definition varchar_text, \
         check_option varchar_text, is_updatable varchar_text",
    ),
    (
        "information_schema_table_constraints",
        0,
        "constraint_catalog name_text, constraint_schema name_text, constraint_name name_text, table_catalog name_text, \
         table_schema name_text, table_name name_text, constraint_type varchar_text, is_deferrable varchar_text, \
         initially_deferred varchar_text",
    ),
    (
        "information_schema_key_column_usage",
        0,
        "constraint_catalog name_text, constraint_schema name_text, constraint_name name_text, table_catalog name_text, \
         table_schema name_text, table_name name_text, column_name name_text, ordinal_position int4, \
         position_in_unique_constraint int4",
    ),
    (
        "information_schema_referential_constraints",
        0,
        "constraint_catalog name_text, constraint_schema name_text, constraint_name name_text, \
         unique_constraint_catalog name_text, unique_constraint_schema name_text, unique_constraint_name name_text, \
         match_option varchar_text, update_rule varchar_text, delete_rule varchar_text",
    ),
    (
        "information_schema_constraint_column_usage",
        0,
        "table_catalog name_text, table_schema name_text, table_name name_text, column_name name_text, \
         constraint_catalog name_text, constraint_schema name_text, constraint_name name_text",
    ),
    (
        "information_schema_check_constraints",
        0,
        "constraint_catalog name_text, constraint_schema name_text, constraint_name name_text, check_clause varchar_text",
    ),
    (
        "information_schema_routines",
        0,
        "specific_catalog name_text, specific_schema name_text, specific_name name_text, routine_catalog name_text, \
         routine_schema name_text, routine_name name_text, routine_type varchar_text, data_type varchar_text, \
         routine_definition varchar_text",
    ),
    (
        "information_schema_parameters",
        0,
        "specific_catalog name_text, specific_schema name_text, specific_name name_text, ordinal_position int4, \
         parameter_mode varchar_text, parameter_name name_text, data_type varchar_text",
    ),
    (
        "information_schema_sequences",
        0,
        "sequence_catalog name_text, sequence_schema name_text, sequence_name name_text, data_type varchar_text",
    ),
    (
        "information_schema_table_privileges",
        0,
        "grantor name_text, grantee name_text, table_catalog name_text, table_schema name_text, table_name name_text, \
         privilege_type varchar_text, is_grantable varchar_text, with_hierarchy varchar_text",
    ),
];

/// Rows that are always the same.
pub(super) const ROWS: &str = "
INSERT INTO pg_namespace VALUES (11, 'pg_catalog', 10, NULL), (2200, 'public', 10, NULL),
    (13207, 'information_schema', 10, NULL);
INSERT INTO pg_am VALUES (2, 'heap', 'heap_tableam_handler', 't'), (403, 'btree', 'bthandler', 'i');
INSERT INTO pg_tablespace VALUES (1663, 'pg_default', 10, NULL, NULL), (1664, 'pg_global', 10, NULL, NULL);
INSERT INTO pg_language VALUES (12, 'internal', 10, 0, 0), (14, 'sql', 10, 0, 1);
INSERT INTO pg_collation VALUES
    (100, 'default', 11, 10, 'd', 1, -1, NULL, NULL, NULL, NULL, NULL),
    (950, 'C', 11, 10, 'c', 1, -1, 'C', 'C', NULL, NULL, NULL),
    (951, 'POSIX', 11, 10, 'c', 1, -1, 'POSIX', 'POSIX', NULL, NULL, NULL);
INSERT INTO pg_database VALUES
    (16383, '', 10, 6, 'c', 0, 1, -1, 0, 0, 1663, 'C.UTF-8', 'C.UTF-8', NULL, NULL, NULL, NULL);
INSERT INTO pg_roles VALUES ('', 0, 1, 0, 0, 1, 0, -1, NULL, NULL, 0, NULL, 10);
INSERT INTO pg_authid VALUES (10, '', 0, 1, 0, 0, 1, 0, 0, -1, NULL, NULL);
INSERT INTO pg_user VALUES ('', 10, 0, 0, 0, 0, NULL, NULL, NULL);
INSERT INTO pg_get_keywords VALUES ('ilike', 'T', 1, 'reserved', 'can be bare label'),
    ('limit', 'R', 0, 'reserved', 'requires AS'), ('offset', 'R', 0, 'reserved', 'requires AS'),
    ('returning', 'R', 0, 'reserved', 'requires AS');
";

/// The types, as a server of PostgreSQL has them: OID, name, schema, length, by value, kind, category, preferred,
/// delimiter, relation, element, array, input, output, receive, send, not null, base, modifier, dimensions, collation.
pub(super) const TYPES: &str = include_str!("pg_type.tsv");

/// The type of a column with a type of [`TABLES`].
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
        _ => oid::TEXT,
    }
}

/// The columns of a table with their types.
pub(super) fn columns(definition: &str) -> impl Iterator<Item = (&str, &str)> {
    definition.split(',').filter_map(|column| column.trim().split_once(' '))
}

/// The name in SQLite of a relation of the catalog.
pub(super) fn relation(schema: Option<&str>, name: &str) -> Option<String> {
    let name = match schema {
        Some("information_schema") => format!("information_schema_{name}"),
        Some("pg_catalog") => return Some(name.to_owned()),
        Some(_) => return None,
        None => name.to_owned(),
    };
    let is_known = TABLES.iter().any(|(known, ..)| *known == name);
    (is_known || schema.is_some()).then_some(name)
}
