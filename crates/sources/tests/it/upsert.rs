//! Upserts into tables of every database.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use lightship_sources::{Result, SourceError, TableWrite};

use crate::tables::{Database, batch, copy, databases, ints, name, words};

/// Upserts rows of these columns, in two batches if there is more than one row.
async fn upsert(
    database: &Database,
    table: &str,
    key: &[&str],
    columns: Vec<(&str, ArrayRef)>,
) -> Result<u64> {
    let write = TableWrite::upsert(name(table), key.iter().map(|&name| name.to_owned()).collect());
    let rows = batch(columns);
    let half = rows.num_rows() / 2;
    copy(database, &write, &[rows.slice(0, half), rows.slice(half, rows.num_rows() - half)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_rows_are_updated_and_others_inserted() {
    for (what, database) in databases() {
        database.sql("CREATE TABLE up (id bigint PRIMARY KEY, a varchar(9), kept varchar(9) DEFAULT 'new')");
        database.sql("INSERT INTO up VALUES (1, 'one', 'k1'), (2, 'two', 'k2'), (3, 'three', 'k3')");
        let rows = || database.rows("SELECT id, a, kept FROM up ORDER BY id").replace('\n', "; ");
        let columns = vec![("a", words(["TWO", "four", "THREE"])), ("id", ints([2, 4, 3]))];
        assert_eq!(upsert(&database, "up", &["id"], columns).await.unwrap(), 3, "{what}");
        assert_eq!(rows(), "1\tone\tk1; 2\tTWO\tk2; 3\tTHREE\tk3; 4\tfour\tnew", "{what}");
        // NULL overwrites; only the key changes nothing.
        let null: ArrayRef = Arc::new(StringArray::from(vec![None::<&str>, Some("x")]));
        upsert(&database, "up", &["id"], vec![("id", ints([1, 2])), ("a", null)]).await.unwrap();
        upsert(&database, "up", &["id"], vec![("id", ints([3, 5]))]).await.unwrap();
        assert_eq!(
            database.rows("SELECT id, a FROM up ORDER BY id").replace('\n', "; "),
            "1\t; 2\tx; 3\tTHREE; 4\tfour; 5\t",
            "{what}"
        );
        // Without rows.
        assert_eq!(upsert(&database, "up", &["id"], vec![("id", ints([]))]).await.unwrap(), 0, "{what}");
        database.sql("DROP TABLE up");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_can_be_texts_and_have_several_columns() {
    for (what, database) in databases() {
        database.sql("CREATE TABLE up2 (a varchar(9), b bigint, c bigint)");
        database.sql("CREATE UNIQUE INDEX up2_key ON up2 (b, a)");
        database.sql("INSERT INTO up2 VALUES ('x', 1, 10), ('x', 2, 20), ('y', 1, 30)");
        let columns =
            || vec![("a", words(["x", "z", "y"])), ("b", ints([2, 1, 1])), ("c", ints([21, 40, 31]))];
        upsert(&database, "up2", &["a", "b"], columns()).await.unwrap();
        let rows = || database.rows("SELECT a, b, c FROM up2 ORDER BY c").replace('\n', "; ");
        assert_eq!(rows(), "x\t1\t10; x\t2\t21; y\t1\t31; z\t1\t40", "{what}");
        // The index is on both columns, not on one of them.
        let error = upsert(&database, "up2", &["a"], columns()).await.unwrap_err();
        assert!(
            matches!(&error, SourceError::NoUniqueIndex { table, key } if table == "up2" && key == "a"),
            "{what}: {error}"
        );
        database.sql("DROP TABLE up2");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_without_one_key_are_refused() {
    for (what, database) in databases() {
        database.sql("CREATE TABLE up3 (id bigint PRIMARY KEY, a varchar(9))");
        database.sql("INSERT INTO up3 VALUES (1, 'one')");
        let twice = vec![("id", ints([1, 7, 8, 7])), ("a", words(["x", "x", "x", "x"]))];
        let error = upsert(&database, "up3", &["id"], twice).await.unwrap_err();
        assert!(
            matches!(&error, SourceError::DuplicateKey { first: 2, second: 4, key } if key == "id"),
            "{what}: {error:?}"
        );
        let null: ArrayRef = Arc::new(Int64Array::from(vec![Some(5), None]));
        let error = upsert(&database, "up3", &["id"], vec![("id", null), ("a", words(["x", "y"]))])
            .await
            .unwrap_err();
        assert!(
            matches!(&error, SourceError::Unfit { row: 2, column, hint: Some(_), .. } if column == "id"),
            "{what}: {error:?}"
        );
        let error = upsert(&database, "up3", &["z"], vec![("id", ints([1]))]).await.unwrap_err();
        assert!(matches!(&error, SourceError::Value { column, .. } if column == "z"), "{what}: {error:?}");
        let error = upsert(&database, "up3", &["id", "id"], vec![("id", ints([1]))]).await.unwrap_err();
        assert!(matches!(&error, SourceError::Value { .. }), "{what}: {error:?}");
        assert_eq!(database.rows("SELECT id, a FROM up3"), "1\tone", "{what}");
        database.sql("DROP TABLE up3");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicts_in_other_unique_indexes_are_errors() {
    for (what, database) in databases() {
        database.sql("CREATE TABLE up4 (id bigint PRIMARY KEY, mail varchar(9))");
        database.sql("CREATE UNIQUE INDEX up4_mail ON up4 (mail)");
        database.sql("INSERT INTO up4 VALUES (1, 'a'), (2, 'b')");
        // A new row whose mail is that of row 2, which must not become row 3.
        let columns = vec![("id", ints([1, 3])), ("mail", words(["c", "b"]))];
        let error = upsert(&database, "up4", &["id"], columns).await.unwrap_err();
        assert!(matches!(&error, SourceError::Sql { .. }), "{what}: {error:?}");
        let rows = || database.rows("SELECT id, mail FROM up4 ORDER BY id").replace('\n', "; ");
        assert_eq!(rows(), "1\ta; 2\tb", "{what}");
        let columns = vec![("id", ints([5, 6])), ("mail", words(["b", "d"]))];
        upsert(&database, "up4", &["mail"], columns).await.unwrap();
        assert_eq!(rows(), "1\ta; 5\tb; 6\td", "{what}");
        database.sql("DROP TABLE up4");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_table_is_created_with_the_key_as_its_primary_key() {
    for (what, database) in databases() {
        let columns = |words: ArrayRef| vec![("word", words), ("n", ints([1, 2, 3]))];
        // Different texts are different keys.
        upsert(&database, "up5", &["word"], columns(words(["a", "A", "é"]))).await.unwrap();
        upsert(&database, "up5", &["word"], columns(words(["b", "a", "e"]))).await.unwrap();
        let order = match &database {
            Database::Postgres => "convert_to(word, 'utf8')",
            Database::MariaDb(_) => "CAST(word AS BINARY)",
            Database::Sqlite(_) => "word",
        };
        let rows = database.rows(&format!("SELECT word, n FROM up5 ORDER BY {order}")).replace('\n', "; ");
        assert_eq!(rows, "A\t2; a\t2; b\t1; e\t3; é\t3", "{what}");
        database.sql("DROP TABLE up5");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_compared_as_the_index_compares_them() {
    for (what, database) in databases() {
        match &database {
            Database::Postgres => continue,
            Database::MariaDb(_) => {
                database
                    .sql("CREATE TABLE up6 (k varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n bigint)");
            }
            Database::Sqlite(_) => {
                database.sql("CREATE TABLE up6 (k text COLLATE NOCASE PRIMARY KEY, n bigint)");
            }
        }
        database.sql("INSERT INTO up6 VALUES ('a', 1)");
        upsert(&database, "up6", &["k"], vec![("k", words(["A", "b"])), ("n", ints([2, 3]))]).await.unwrap();
        assert_eq!(database.rows("SELECT n FROM up6 ORDER BY n").replace('\n', " "), "2 3", "{what}");
        let twice = vec![("k", words(["c", "C"])), ("n", ints([4, 5]))];
        let error = upsert(&database, "up6", &["k"], twice).await.unwrap_err();
        assert!(matches!(error, SourceError::DuplicateKey { first: 1, second: 2, .. }), "{what}: {error:?}");
        database.sql("DROP TABLE up6");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_that_only_the_server_parses_can_be_keys() {
    let database = Database::Postgres;
    database.sql("CREATE TABLE up7 (a inet PRIMARY KEY, n bigint); INSERT INTO up7 VALUES ('10.0.0.1', 1)");
    let columns = |a: [&'static str; 2]| vec![("a", words(a)), ("n", ints([2, 3]))];
    upsert(&database, "up7", &["a"], columns(["10.0.0.1/32", "10.0.0.2"])).await.unwrap();
    assert_eq!(database.rows("SELECT a, n FROM up7 ORDER BY n"), "10.0.0.1\t2\n10.0.0.2\t3");
    let error = upsert(&database, "up7", &["a"], columns(["10.0.0.1/32", "10.0.0.1"])).await.unwrap_err();
    assert!(matches!(error, SourceError::DuplicateKey { .. }), "{error:?}");
    // A partial index, and one of an expression, find no conflicts.
    database.sql(
        "CREATE TABLE up8 (a bigint, n bigint); CREATE UNIQUE INDEX ON up8 (a) WHERE a > 0;
         CREATE UNIQUE INDEX ON up8 ((a + 1)); CREATE UNIQUE INDEX ON up8 (a) INCLUDE (n) WHERE n > 0",
    );
    let error = upsert(&database, "up8", &["a"], vec![("a", ints([1, 2]))]).await.unwrap_err();
    assert!(matches!(error, SourceError::NoUniqueIndex { .. }), "{error:?}");
    database.sql("CREATE UNIQUE INDEX ON up8 (a) INCLUDE (n)");
    upsert(&database, "up8", &["a"], vec![("a", ints([1, 2]))]).await.unwrap();
}
