//! Types that Arrow does not tell apart, between databases of the same kind, and nested values as JSON.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, MapBuilder, StringBuilder};
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, ListArray, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use futures::TryStreamExt;
use lightship_sources::limit::ConnectionLimits;
use lightship_sources::{Location, ReadOptions, Result, TableWrite, WriteMode, open, open_table};

use crate::tables::{Database, batch, copy, databases, ints, name, words};
use crate::{mysql, postgres};

/// Copies the result of a query into a new table; returns the notices.
async fn copy_query(
    from: &Location,
    sql: &str,
    to: &Location,
    table: &str,
    tuples: bool,
) -> Result<Vec<String>> {
    let source = open(from, &ConnectionLimits::unlimited()).await?;
    let options = ReadOptions { native_types: true, tuples, ..ReadOptions::default() };
    let mut rows = source.query(sql, &options).await?;
    let mut destination =
        open_table(to, &TableWrite::new(name(table), WriteMode::Create), &rows.schema).await?;
    if let Some(offer) = rows.tuples.take() {
        destination.take_tuples(offer);
    }
    let notices = destination.notices();
    while let Some(batch) = rows.batches.try_next().await? {
        destination.write(batch).await?;
    }
    destination.finish().await?;
    Ok(notices)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_stay_from_postgresql_to_postgresql() {
    let server = postgres::server();
    server.psql(
        "CREATE EXTENSION IF NOT EXISTS citext; CREATE SCHEMA \"Kinds\";
         CREATE TYPE kinds_mood AS ENUM ('sad', 'it''s ok'); CREATE TYPE \"Kinds\".\"My Type\" AS ENUM ('x y');
         CREATE DOMAIN kinds_price AS numeric(6, 2) CHECK (VALUE >= 0); CREATE TYPE kinds_pair AS (a int, b text);
         CREATE TABLE kinds_from (
             id int, j json, jb jsonb, v varchar(20), c char(3), ip inet, net cidr, mac macaddr, mac8 macaddr8,
             mood kinds_mood, mine \"Kinds\".\"My Type\", price kinds_price, n numeric(6, 2), any_n numeric,
             b3 bit(3), vb varbit(5), m money, ts tsvector, tq tsquery, ci citext, r int4range, tr tstzrange, mr int8multirange,
             t0 timestamp(0), tz3 timestamptz(3), t3 time(3), tzt timetz, iv interval year to month, p point, x xml,
             o oid, nm name, ch \"char\", u uuid, ia int[], va varchar(9)[], ipa inet[], moods kinds_mood[], ja json[],
             na numeric(5, 1)[], pair kinds_pair, lsn pg_lsn, path jsonpath, prices kinds_price[], ra daterange[]);
         INSERT INTO kinds_from VALUES (1, '{\"a\": 1,  \"a\": 2}', '{\"b\": [1, null]}', 'v', 'c', '10.0.0.1/8',
             '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', 'it''s ok', 'x y', 1.5, -2.25, 1.5, '101', '11', 3.5,
             'a:1 b:2', 'a & b', 'CiText', '[1,5)', '[2024-01-01,)', '{[1,3),[7,9)}', '2024-01-01 10:00:01',
             '2024-01-01 10:00:01.123+02', '10:00:00.5', '10:00:00+02', '3 years 2 months', '(1,2)', '<a/>', 4294967295, 'nm',
             'x', '00112233-4455-6677-8899-aabbccddeeff', '{1,NULL}', '{a,\"b,c\"}', '{10.0.0.1,::1}',
             '{sad,NULL,\"it''s ok\"}', '{\"[1,  2]\"}', '{1.5,NULL}', '(7,\"a b\")', '16/B374D848', '$.a[*]', '{1.5}',
             '{\"[2024-01-01,2024-02-01)\"}'); INSERT INTO kinds_from (id) VALUES (2)",
    );
    let types = |table: &str| {
        server.psql(&format!(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
             WHERE attrelid = '{table}'::regclass AND attnum > 0 ORDER BY attnum"
        ))
    };
    let rows = |table: &str| server.psql(&format!("SELECT t::text FROM {table} t ORDER BY id"));
    for (tuples, table) in [(false, "kinds_decoded"), (true, "kinds_tuples")] {
        let location = Database::Postgres.location();
        let notices =
            copy_query(&location, "SELECT * FROM kinds_from", &location, table, tuples).await.unwrap();
        assert_eq!(notices, [""; 0]);
        // The server describes a column of a domain by the domain's own type.
        assert_eq!(
            types(table),
            types("kinds_from").replace("price\tkinds_price\n", "price\tnumeric(6,2)\n")
        );
        assert_eq!(rows(table), rows("kinds_from"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_that_the_destination_lacks_becomes_text_with_a_notice() {
    let server = postgres::server();
    server
        .psql("CREATE TYPE lacking_mood AS ENUM ('sad'); CREATE TABLE lacking_from (a lacking_mood, j json)");
    server.psql("INSERT INTO lacking_from VALUES ('sad', '{}'); CREATE DATABASE lacking");
    let to = server.uri_as(server.user(), server.password(), "lacking");
    let to = Location::Postgres(to);
    let from = Database::Postgres.location();
    let notices =
        copy_query(&from, "SELECT *, row(1, 2) AS r FROM lacking_from", &to, "lacking_to", false).await;
    let notices = notices.unwrap();
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(
        notices[0].contains("column a becomes text") && notices[0].contains("lacking_mood"),
        "{notices:?}"
    );
    let source = open(&to, &ConnectionLimits::unlimited()).await.unwrap();
    let table = source.table(&name("lacking_to"), &ReadOptions::default()).await.unwrap();
    assert_eq!(table.schema.field(0).data_type(), &DataType::Utf8);
    assert_eq!(
        table.schema.field(1).metadata().get("ARROW:extension:name").map(String::as_str),
        Some("arrow.json")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_a_file_can_not_run_statements() {
    let server = postgres::server();
    server.psql("CREATE TABLE metadata_kept (a int); INSERT INTO metadata_kept VALUES (1)");
    for (at, evil) in [
        "int); DROP TABLE metadata_kept; --",
        "int, b int",
        "int PRIMARY KEY",
        "int DEFAULT 7",
        "int /*",
        "\"int",
        "record",
        "int CHECK (a > 0)",
        "",
        "nothing.like.this",
    ]
    .into_iter()
    .enumerate()
    {
        let field = Field::new("a", DataType::Int64, true)
            .with_metadata([("lightship.postgresql.type".to_owned(), evil.to_owned())].into());
        let rows = arrow_array::RecordBatch::try_new(
            Arc::new(arrow_schema::Schema::new(vec![field])),
            vec![ints([1])],
        )
        .unwrap();
        let table = format!("metadata_{at}");
        copy(&Database::Postgres, &TableWrite::new(name(&table), WriteMode::Create), &[rows]).await.unwrap();
        let columns = format!(
            "SELECT string_agg(column_name || ' ' || data_type || coalesce(column_default, ''), ', ') \
             FROM information_schema.columns WHERE table_name = '{table}'"
        );
        assert_eq!(server.psql(&columns), "a bigint\n", "{evil}");
    }
    assert_eq!(server.psql("SELECT a FROM metadata_kept"), "1\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_stay_from_mariadb_to_mariadb() {
    let server = mysql::server();
    server.sql(
        "CREATE TABLE mykinds_from (id int unsigned, t tinyint, tu tinyint unsigned, m mediumint unsigned, y year,
             e enum('a','it''s'), s set('x','y','z'), v varchar(20), c char(3), tt tinytext, d decimal(7,2) unsigned,
             dt datetime(3), ts timestamp NULL, ti time(2), bi binary(3), vb varbinary(9), f float, j json);
         INSERT INTO mykinds_from VALUES (4294967295, -1, 255, 16777215, 2024, 'it''s', 'x,z', 'v', 'c', 'tt', 12345.67,
             '2024-01-01 10:00:00.123', '2024-01-01 10:00:00', '-10:00:00.25', 'abc', 'x', 1.5, '{\"a\": 1}'), (1, NULL, NULL,
             NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    );
    let location = Database::MariaDb(server.clone()).location();
    copy_query(&location, "SELECT * FROM mykinds_from", &location, "mykinds_to", false).await.unwrap();
    let types = |table: &str| {
        server.sql(&format!(
            "SELECT column_name, column_type FROM information_schema.columns WHERE table_name = '{table}'
             ORDER BY ordinal_position"
        ))
    };
    assert_eq!(types("mykinds_to"), types("mykinds_from"));
    let rows = |table: &str| server.sql(&format!("SELECT * FROM {table} ORDER BY id"));
    assert_eq!(rows("mykinds_to"), rows("mykinds_from"));
    // Expressions have the types of their values.
    copy_query(
        &location,
        "SELECT concat(v, 'x') AS v, id + 1 AS id FROM mykinds_from",
        &location,
        "mykinds_other",
        false,
    )
    .await
    .unwrap();
    assert!(types("mykinds_other").contains("v\tlongtext"), "{}", types("mykinds_other"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_values_become_json_and_lists_of_scalars_arrays() {
    let lists: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]));
    let one: ArrayRef = Arc::new(Int64Array::from(vec![Some(i64::MAX), None]));
    let text: ArrayRef = Arc::new(StringArray::from(vec![Some("it's \"é\"\n"), None]));
    let field = |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
    let structs: ArrayRef = Arc::new(StructArray::from(vec![
        (field("one", &one), one.clone()),
        (field("text", &text), text.clone()),
        (field("list", &lists), lists.clone()),
    ]));
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    map.keys().append_value("k");
    map.values().append_value(7);
    map.append(true).unwrap();
    map.append(false).unwrap();
    let map: ArrayRef = Arc::new(map.finish());
    let rows = batch(vec![("n", ints([1, 2])), ("s", structs), ("m", map), ("l", lists)]);
    for (what, database) in databases() {
        copy(&database, &TableWrite::new(name("nested"), WriteMode::Create), std::slice::from_ref(&rows))
            .await
            .unwrap();
        copy(&database, &TableWrite::new(name("nested"), WriteMode::Append), std::slice::from_ref(&rows))
            .await
            .unwrap();
        let source = open(&database.location(), &ConnectionLimits::unlimited()).await.unwrap();
        let back =
            source.query("SELECT s, m, l FROM nested ORDER BY n", &ReadOptions::default()).await.unwrap();
        let is_array = matches!(back.schema.field(2).data_type(), DataType::List(_));
        assert_eq!(is_array, matches!(database, Database::Postgres), "{what}");
        let texts = crate::texts(back).await.unwrap();
        assert_eq!(texts.len(), 4, "{what}");
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let expected = serde_json::json!({"one": i64::MAX, "text": "it's \"é\"\n", "list": [1, null]});
        assert_eq!(json(&texts[0][0]), expected, "{what}");
        assert_eq!(json(&texts[1][1]), serde_json::json!({"k": 7}), "{what}");
        assert_eq!(
            json(&texts[2][0]),
            serde_json::json!({"one": null, "text": null, "list": null}),
            "{what}"
        );
        assert_eq!(texts[2][1], "NULL", "{what}");
        if !is_array {
            assert_eq!(json(&texts[0][2]), serde_json::json!([1, null]), "{what}");
        }
        database.sql("DROP TABLE nested");
    }
    let server = postgres::server();
    copy(&Database::Postgres, &TableWrite::new(name("nested"), WriteMode::Create), &[rows]).await.unwrap();
    assert_eq!(
        server.psql("SELECT pg_typeof(s), pg_typeof(m), pg_typeof(l) FROM nested LIMIT 1"),
        "jsonb\tjsonb\tbigint[]\n"
    );
    server.psql("DROP TABLE nested");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nul_in_text_is_refused_by_row_column_and_remedy() {
    let nul = |text: &'static str| batch(vec![("n", ints([1, 2])), ("c", words(["good", text]))]);
    let field = |array: &ArrayRef| Arc::new(Field::new("x", array.data_type().clone(), true));
    let inner = words(["good", "a\0b"]);
    let structs: ArrayRef = Arc::new(StructArray::from(vec![(field(&inner), inner)]));
    postgres::server().psql("CREATE TABLE nul_there (n int, c inet)");
    for (table, rows) in [
        ("nul_new", nul("a\0b")),
        ("nul_there", batch(vec![("n", ints([1, 2])), ("c", words(["10.0.0.1", "\0"]))])),
        ("nul_nested", batch(vec![("n", ints([1, 2])), ("c", structs)])),
    ] {
        let error = copy(&Database::Postgres, &TableWrite::new(name(table), WriteMode::Append), &[rows])
            .await
            .unwrap_err();
        let lightship_sources::SourceError::Unfit { row: 2, column, hint: Some(hint), .. } = &error else {
            panic!("{table}: {error:?}")
        };
        assert_eq!(column, "c", "{table}");
        assert!(hint.contains("replace(c, chr(0), '')"), "{table}: {hint}");
    }
    // The others keep it.
    for (what, database) in databases().into_iter().skip(1) {
        copy(&database, &TableWrite::new(name("nul"), WriteMode::Create), &[nul("a\0b")]).await.unwrap();
        let source = open(&database.location(), &ConnectionLimits::unlimited()).await.unwrap();
        let rows = source.query("SELECT c FROM nul ORDER BY n", &ReadOptions::default()).await.unwrap();
        assert_eq!(crate::texts(rows).await.unwrap(), [["good"], ["a\0b"]], "{what}");
        // The remedies that the hint has for it.
        let remedy = match what {
            "sqlite" => {
                "SELECT CASE WHEN n = 2 THEN substr(c, 1, instr(c, char(0)) - 1) END AS c FROM nul ORDER BY n"
            }
            _ => "SELECT replace(c, char(0), '') AS c FROM nul ORDER BY n",
        };
        let rows = source.query(remedy, &ReadOptions::default()).await.unwrap();
        let shown = crate::texts(rows).await.unwrap();
        assert!(["a", "ab", "6162"].contains(&&*shown[1][0]), "{what}: {shown:?}");
        database.sql("DROP TABLE nul");
    }
}
