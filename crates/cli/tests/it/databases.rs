//! Tables of databases, served by a node: its answers are compared with those of the database.

use crate::support::*;

const MADE: &str =
    "create table served (id int not null, name varchar(20), born date, price numeric(10, 2), n bigint)";
const FILLED: &str = "insert into served values
    (1, 'ann', '1999-12-31', 1.50, 10), (2, 'Ben', '2000-01-01', -2.25, null), (3, 'bob ', null, 0.00, 30),
    (4, null, '2024-02-29', 99999999.99, -9223372036854775808), (5, 'it''s', '1970-01-01', null, 9223372036854775807),
    (6, 'a\"b', '1969-12-31', 3.00, 0), (7, '', '2000-01-01', 1.50, 10)";

/// Conditions that the database can evaluate, that it can't, and mixtures.
const CONDITIONS: [&str; 17] = [
    "true",
    "id > 3",
    "id between 2 and 4",
    "id in (1, 5, 9)",
    "n = 10",
    "n is null",
    "name is not null and id < 5",
    "name = 'ann'",
    "name = 'it''s' or name = ''",
    "name > 'ann'",
    "name like '%ob%'",
    "upper(name) = 'BEN'",
    "born < date '2000-01-01'",
    "born = date '2000-01-01' and price = 1.50",
    "price >= 1.5 and not (n = 10)",
    "id + 1 = 3",
    "id > 100",
];

/// Compares answers as CSV, with NULL as the text `NULL`.
fn check(place: &str, ask: impl Fn(&str) -> String) {
    let node = Node::start(&["--table", &format!("served={place}")]);
    for condition in CONDITIONS {
        let sql = |shown: &str| format!("select {shown} from served where {condition} order by id");
        let found = csv(&node.uri, &sql("id, n, coalesce(name, 'NULL') as name"));
        let found: Vec<_> = found.lines().skip(1).map(|line| line.replace('"', "")).collect();
        let expected = ask(&sql("id, n, coalesce(name, 'NULL') as name"));
        let expected: Vec<_> = expected
            .lines()
            .map(|line| line.replace("NULL\t", "\t").replace('\t', ",").replace('"', ""))
            .collect();
        // The databases' clients print NULL as an empty text or as `NULL`.
        let plain =
            |lines: Vec<String>| lines.iter().map(|line| line.replace(",NULL,", ",,")).collect::<Vec<_>>();
        assert_eq!(plain(found), plain(expected), "{condition}");
    }
    let all = csv(&node.uri, "select count(*) as rows, sum(price) as price, min(born) as born from served");
    assert_eq!(all, "rows,price,born\n7,100000003.74,1969-12-31\n");
    assert_eq!(csv(&node.uri, "select id from served order by id limit 2"), "id\n1\n2\n");
    assert_eq!(
        csv(&node.uri, "select a.id from served a join served b on a.id = b.id + 5 order by 1"),
        "id\n6\n7\n"
    );
    node.fetch(&["select nothing from served"]).fails(SOURCE, &["nothing", "^"]);
}

#[test]
fn tables_of_postgresql_give_its_own_answers() {
    let server = postgres();
    server.psql(&format!("create schema shop; set search_path = shop; {MADE}; {FILLED}"));
    check(&format!("{}?table=shop.served", server.uri()), |sql| {
        server.psql(&format!("set search_path = shop; {sql}"))
    });
}

#[test]
fn tables_of_mariadb_give_its_own_answers() {
    let server = mariadb();
    server.sql(&format!("{MADE} collate utf8mb4_bin; {FILLED}"));
    check(&format!("{}?table=served", server.uri()), |sql| server.sql(sql));
}

#[test]
fn tables_of_sqlite_give_its_own_answers() {
    let folder = Folder::new();
    let database = rusqlite::Connection::open(folder.file("shop.db")).expect("a file");
    database.execute_batch(&format!("{MADE}; {FILLED}")).expect("filled");
    check(&format!("sqlite:{}?table=served", folder.arg("shop.db")), |sql| {
        let sql = sql.replace("date '", "'");
        let mut statement = database.prepare(&sql).expect("SQL");
        let rows = statement.query_map([], |row| {
            let n: Option<i64> = row.get(1)?;
            let n = n.map(|n| n.to_string()).unwrap_or_default();
            Ok(format!("{}\t{n}\t{}\n", row.get::<_, i64>(0)?, row.get::<_, String>(2)?))
        });
        rows.expect("rows").map(|row| row.expect("a row")).collect()
    });
}

#[test]
fn conditions_reach_the_database() {
    // Otherwise the view would be computed for rows at which it fails.
    let server = postgres();
    server.psql("create view pushed as select n, 1 / (n - 5) as one from generate_series(1, 10) as g(n)");
    let node = Node::start(&["--table", &format!("pushed={}?table=pushed", server.uri())]);
    node.fetch(&["select sum(one) as one from pushed"]).fails(SOURCE, &["division by zero"]);
    assert_eq!(csv(&node.uri, "select count(one) as rows from pushed where n < 5"), "rows\n4\n");
    // Unused columns are not computed.
    assert_eq!(csv(&node.uri, "select sum(n) as n from pushed"), "n\n55\n");
}

#[test]
fn a_node_obeys_its_connection_limit_and_value_rules() {
    let server = postgres();
    server.psql(
        "create table values_odd (id int, n numeric, at timestamptz);
         insert into values_odd values (1, 1.5, '2024-01-01 00:00:00+00'), (2, 'NaN', 'infinity')",
    );
    let place = format!("{}?application_name=values_node&table=values_odd", server.uri());
    let table = |name: &str, rule: &str| format!("{name}={place}{rule}");
    let node = Node::start(&[
        "--source-connections",
        "2",
        "--infinite",
        "null",
        "--table",
        &table("as_null", ""),
        "--table",
        &table("as_text", "&infinite=text"),
        "--table",
        &table("as_double", "&numeric=double"),
        "--table",
        &table("as_error", "&infinite=error"),
    ]);
    let of = |name: &str| csv(&node.uri, &format!("select n, at from {name} order by id"));
    assert_eq!(of("as_null"), "n,at\n1.5,2024-01-01T00:00:00Z\n,\n");
    assert!(of("as_text").ends_with("NaN,infinity\n"), "{}", of("as_text"));
    assert!(of("as_double").ends_with("NaN,\n"), "{}", of("as_double"));
    assert_eq!(csv(&node.uri, "select id from as_null where at is null"), "id\n2\n");
    let product = csv(&node.uri, "select sum(n * n * n) as product from as_null");
    assert_eq!(product, "product\n3.375\n");
    node.fetch(&["select * from as_error"]).fails(SOURCE, &["column `n`: row 2 holds NaN", "infinite=null"]);
    // Three queries share two connections, and all end.
    let sql = "select count(*) as rows from as_null a join as_null b on a.id = b.id";
    let clients: Vec<_> = (0..3).map(|_| Process::start(&["fetch", "--quiet", &node.uri, sql])).collect();
    for client in clients {
        assert_eq!(client.end().succeeds().text(), "rows\n2\n");
    }
    let open = "select count(*) from pg_stat_activity where application_name = 'values_node'";
    let open: u32 = server.psql(open).trim().parse().expect("a number");
    assert!((1..=2).contains(&open), "{open} connections");
}

#[test]
fn a_table_that_changed_since_the_node_started_is_an_error() {
    let server = postgres();
    server.psql("create table changing (a int, b text); insert into changing values (1, 'x')");
    let node = Node::start(&["--table", &format!("changing={}", server.uri())]);
    assert_eq!(csv(&node.uri, "select * from changing"), "a,b\n1,x\n");
    server.psql("alter table changing alter a type text");
    node.fetch(&["select * from changing"])
        .fails(DATA, &["columns changed after the node started", "restart the node"]);
    server.psql("drop table changing");
    node.fetch(&["select * from changing"]).fails(SOURCE, &["changing"]);
    node.serves();
}

#[test]
fn averages_arrive_exactly_and_a_note_names_their_type() {
    let server = postgres();
    server.psql("create table averages (x numeric); insert into averages values (1), (2), (2), (0.5)");
    let sql = "select avg(x) as mean, sum(x) as total, 1 as one from averages";
    let outcome = lightship(&["fetch", &server.uri(), sql, "--format", "csv"]).succeeds();
    assert_eq!(outcome.text(), "mean,total,one\n1.375,5.5,1\n");
    let note = "numbers without a precision are read as decimal(76, 44): mean, total; --numeric";
    assert!(outcome.stderr.contains(note), "{outcome}");
    let outcome =
        lightship(&["fetch", &server.uri(), sql, "--format", "table", "--numeric", "double"]).succeeds();
    assert!(outcome.text().contains("1.375") && !outcome.stderr.contains("note:"), "{outcome}");
}
