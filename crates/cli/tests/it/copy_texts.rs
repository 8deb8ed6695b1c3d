//! Texts that become values of other types in PostgreSQL: some are parsed by Lightship, others by the server.

use crate::support::*;

const ROWS: u64 = 60_000;
/// The row whose texts only the server parses.
const OTHER: u64 = 50_000;

/// A query for rows whose texts have the usual forms, but for one row.
fn texts(other: u64) -> String {
    format!(
        "select n,
             case when n = {other} then 'Jan 5, 2024' when n % 7 = 0 then null
                 else to_char(date '0001-01-01' + n * 97, 'YYYY-MM-DD') end as day,
             case when n = {other} then 'yesterday' else to_char(timestamp '2024-01-01' + n * interval '61.25 s',
                 'YYYY-MM-DD\"T\"HH24:MI:SS.US') end as at,
             (timestamptz '1969-12-31 00:00+00' + n * interval '61.25 s')::text as zoned,
             md5(n::text)::uuid::text as id, ((n - 30000) * 0.25)::numeric(10, 2)::text as price,
             (n - 30000)::text as whole, (n % 2 = 0)::text as ok
         from generate_series(1, {ROWS}) g(n) order by n"
    )
}

fn columns(first: &str) -> String {
    format!(
        "({first}, day date, at timestamp, zoned timestamptz, id uuid, price numeric(10, 2), whole int, ok bool)"
    )
}

#[test]
fn texts_become_the_values_that_the_server_makes_of_them() {
    let server = postgres();
    let copy = |sql: &str, table: &str| {
        lightship(&["copy", &server.uri(), sql, &server.uri(), "--table", table, "--json"])
    };
    for other in [0, 1, OTHER, ROWS] {
        let table = format!("copy_texts_{other}");
        let sql = texts(other);
        server.psql(&format!("create table {table} {}", columns("n int")));
        server.psql(&format!(
            "set timezone = 'UTC'; create table {table}_own {}; insert into {table}_own
                 select n, day::date, at::timestamp, zoned::timestamptz, id::uuid, price::numeric, whole::int, ok::bool
                 from ({sql}) t",
            columns("n int")
        ));
        let outcome = copy(&sql, &table).succeeds();
        assert_eq!(outcome.json()["rows"], ROWS, "{other}");
        let differ = format!(
            "(table {table} except table {table}_own) union all (table {table}_own except table {table})"
        );
        assert_eq!(server.psql(&differ), "", "{other}");
        assert_eq!(server.psql(&format!("select count(*) from {table}")).trim(), ROWS.to_string());
    }
}

#[test]
fn refused_rows_are_named_before_and_after_a_text_that_the_server_parses() {
    let server = postgres();
    for refused in [5, OTHER - 1, OTHER, OTHER + 1, ROWS] {
        let table = format!("copy_texts_refused_{refused}");
        server.psql(&format!("create table {table} {}", columns(&format!("n int check (n <> {refused})"))));
        let copy = |sql: &str| lightship(&["copy", &server.uri(), sql, &server.uri(), "--table", &table]);
        let outcome = copy(&texts(OTHER));
        assert_eq!(outcome.code, Some(SOURCE), "{outcome}");
        // The server tells the row while it reads rows, but not when it moves those of its staging table.
        let place = if refused == 5 { format!("row {refused}: ") } else { String::new() };
        assert!(outcome.stderr.contains(&place) && outcome.stderr.contains("check constraint"), "{outcome}");
        let sql = texts(OTHER).replace(" n,", &format!(" {refused} + 1 as n,")).replace(
            "md5(n::text)::uuid::text as id",
            &format!("case when n = {refused} then 'no id' else md5(n::text)::uuid::text end as id"),
        );
        let outcome = copy(&sql);
        let place = format!("row {refused}, column `id`: invalid input syntax for type uuid: \"no id\"");
        assert!([Some(DATA), Some(SOURCE)].contains(&outcome.code), "{outcome}");
        assert!(outcome.stderr.contains(&place), "{outcome}");
        assert_eq!(server.psql(&format!("select count(*) from {table}")).trim(), "0");
    }
}
