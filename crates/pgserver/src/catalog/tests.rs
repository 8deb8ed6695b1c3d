//! Tests of the catalog with queries of real clients.

use arrow_cast::display::array_value_to_string;

use super::*;

fn caller() -> Caller {
    Caller {
        user: "me".into(),
        database: "db".into(),
        process: 7,
        settings: Settings::new("me"),
        now_us: 1_500_000,
    }
}

fn engine() -> Engine {
    use arrow_schema::DataType::{Date32, Decimal128, Int64, Utf8};
    let mut engine = Engine::new().unwrap();
    let column = |name: &str, data_type| (name.to_owned(), data_type, name != "id");
    let columns = vec![
        column("id", Int64),
        column("price", Decimal128(15, 2)),
        column("name", Utf8),
        column("ship", Date32),
    ];
    let table = |schema: &str, name: &str| TableEntry {
        schema: schema.into(),
        name: name.into(),
        columns: columns.clone(),
    };
    let tables = vec![table("other", "Odd Name"), table("public", "lineitem")];
    engine.prepare(Some(Arc::new(tables)), &caller()).unwrap();
    engine
}

/// The columns of a result, and its rows as text.
async fn ask(engine: &mut Engine, sql: &str, parameters: &[Value]) -> PgResult<(Vec<PgColumn>, Vec<String>)> {
    assert!(recognise::may_be(sql), "{sql}");
    let query = recognise(sql)?.unwrap_or_else(|| panic!("not of the catalog: {sql}"));
    let waiting = Arc::new(());
    let mut stream = engine.run(query, parameters, &caller(), Arc::downgrade(&waiting))?;
    let columns = stream.columns.to_vec();
    let batch = stream.next_batch().await?.unwrap();
    let row = |row: usize| {
        let value = |column: &ArrayRef| array_value_to_string(column, row).unwrap();
        batch.columns().iter().map(value).collect::<Vec<_>>().join("|")
    };
    Ok((columns, (0..batch.num_rows()).map(row).collect()))
}

async fn check(sql: &str, expected: &[&str]) {
    let (_, rows) = ask(&mut engine(), sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    assert_eq!(rows, expected, "{sql}");
}

#[tokio::test]
async fn functions_about_the_session_are_answered() {
    check("select current_schema(), current_database(), current_user, pg_backend_pid()", &["public|db|me|7"])
        .await;
    check("select current_setting('server_version_num')::int", &["160004"]).await;
    check(
        "SELECT pg_is_in_recovery(), pg_export_snapshot(), (select count(*) from pg_stat_wal_receiver)",
        &["false|00000003-00000001-1|0"],
    )
    .await;
    check(
        "select 'lineitem'::regclass, 'pg_class'::regclass::oid, 'integer'::regtype",
        &["lineitem|1259|integer"],
    )
    .await;
    check("select now()", &["1970-01-01T00:00:01.500Z"]).await;
    check("select to_regclass('nonsense'), (current_schemas(false))[1]", &["|public"]).await;
}

#[tokio::test]
async fn columns_have_names_and_types_of_postgresql() {
    let sql = "select c.oid, c.relname AS \"Name\", n.nspname = 'public', count(*) over (), c.oid::regclass, 1 + 1, \
        case when true then relkind end from pg_class c join pg_namespace n on n.oid = c.relnamespace limit 1";
    let (columns, _) = ask(&mut engine(), sql, &[]).await.unwrap();
    let columns: Vec<_> = columns.iter().map(|column| (column.name.as_str(), column.oid)).collect();
    let expected = [
        ("oid", oid::OID),
        ("Name", oid::NAME),
        ("?column?", oid::BOOL),
        ("count", oid::INT8),
        ("oid", oid::REGCLASS),
        ("?column?", oid::INT4),
        ("case", oid::CHAR),
    ];
    assert_eq!(columns, expected);
}

#[tokio::test]
async fn tables_and_columns_are_found() {
    let sql = "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c \
        LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE c.relname OPERATOR(pg_catalog.~) '^(lineitem)$' COLLATE pg_catalog.default \
        AND pg_catalog.pg_table_is_visible(c.oid)";
    check(sql, &["public|lineitem"]).await;
    let sql = "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull \
        FROM pg_attribute a WHERE a.attrelid = 'public.lineitem'::regclass AND a.attnum > 0 ORDER BY a.attnum";
    check(sql, &["id|bigint|true", "price|numeric(15,2)|false", "name|text|false", "ship|date|false"]).await;
    let sql = "select table_schema, column_name, data_type, numeric_scale from information_schema.columns \
        where table_name = 'Odd Name' and data_type like 'n%'";
    check(sql, &["other|price|numeric|2"]).await;
    check(
        "select table_catalog, tables.table_name from information_schema.tables order by 2",
        &["db|Odd Name", "db|lineitem"],
    )
    .await;
}

#[tokio::test]
async fn columns_and_keys_come_in_one_result() {
    // As DuckDB asks for them.
    let sql = "SELECT n.oid AS namespace_id, relname, relpages, attname, t.typname type_name, attnum, NULL key_id \
        FROM pg_class JOIN pg_namespace n ON relnamespace = n.oid JOIN pg_attribute a ON pg_class.oid = a.attrelid \
        JOIN pg_type t ON atttypid = t.oid WHERE attnum > 0 AND relkind IN ('r', 'v') AND n.nspname = 'public' \
        UNION ALL SELECT n.oid, relname, NULL, NULL, NULL, NULL, k.oid FROM pg_class \
        JOIN pg_namespace n ON relnamespace = n.oid JOIN pg_constraint k ON pg_class.oid = k.conrelid \
        WHERE contype IN ('p', 'u') ORDER BY namespace_id, relname, attnum, key_id";
    let row = |name: &str, kind: &str, number: u8| format!("2200|lineitem|0|{name}|{kind}|{number}|");
    let expected =
        [row("id", "int8", 1), row("price", "numeric", 2), row("name", "text", 3), row("ship", "date", 4)];
    check(sql, &expected.each_ref().map(String::as_str)).await;
}

#[tokio::test]
async fn arrays_are_told_by_their_functions() {
    let sql = "SELECT typ.typname, CASE WHEN proc.proname = 'array_recv' THEN typ.typelem END FROM pg_type AS typ \
        LEFT JOIN pg_proc AS proc ON proc.oid = typ.typreceive WHERE typ.typname IN ('int4', '_int4') ORDER BY 1";
    check(sql, &["_int4|23", "int4|"]).await;
    check("select pg_advisory_unlock_all()", &[""]).await;
}

#[tokio::test]
async fn parameters_are_bound() {
    let sql = "SELECT c.relname FROM pg_class c WHERE c.relname LIKE $1 AND c.relkind = ANY($2) AND NOT c.relisshared";
    let text = |text: &str| Value::Text(text.into());
    let (_, rows) = ask(&mut engine(), sql, &[text("line\\_%"), text("{r,v}")]).await.unwrap();
    assert!(rows.is_empty());
    let (_, rows) = ask(&mut engine(), sql, &[text("line%"), text("{r,v}")]).await.unwrap();
    assert_eq!(rows, ["lineitem"]);
    let error = ask(&mut engine(), sql, &[]).await.unwrap_err();
    assert_eq!(error.code, code::PROTOCOL_VIOLATION);
}

#[tokio::test]
async fn what_is_not_supported_has_a_code() {
    let check = async |sql: &str, expected: &str| {
        let error = ask(&mut engine(), sql, &[]).await.unwrap_err();
        assert_eq!(error.code, expected, "{sql}: {error:?}");
    };
    check("select * from pg_catalog.pg_nonsense", code::UNDEFINED_TABLE).await;
    check("select nonsense from pg_class", code::UNDEFINED_COLUMN).await;
    check("select pg_nonsense()", code::UNDEFINED_FUNCTION).await;
    check("select load_extension('x') from pg_class", code::UNDEFINED_FUNCTION).await;
    check("select randomblob(1000000000) from pg_class", code::UNDEFINED_FUNCTION).await;
    check("select 'nonsense'::regclass", code::UNDEFINED_OBJECT).await;
}

/// Queries that real clients have sent to PostgreSQL.
#[tokio::test]
async fn queries_of_clients_are_answered() {
    let mut engine = engine();
    let mut failures = Vec::new();
    for sql in include_str!("queries.sql").split("\n---\n").map(str::trim).filter(|sql| !sql.is_empty()) {
        let parameters = vec![Value::Text("1".into()); 24];
        if let Err(error) = ask(&mut engine, sql, &parameters).await {
            failures.push(format!("{}: {}\n{sql}", error.code, error.message));
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn a_query_that_nobody_waits_for_ends_at_once() {
    let endless =
        "with recursive x(a) as (select 1 union all select a + 1 from x, pg_class) select count(*) from x";
    let mut engine = engine();
    let began = Instant::now();
    let query = recognise(endless).unwrap().expect("of the catalog");
    let Err(error) = engine.run(query, &[], &caller(), Weak::new()) else { panic!("it ended") };
    assert_eq!(error.code, code::QUERY_CANCELED);
    assert!(began.elapsed() < QUERY_TIMEOUT / 2, "{:?}", began.elapsed());
}
