//! The catalog of a node, asked by the statements that tools send to PostgreSQL. The answers are those of a real server, which
//! is asked, too.

use std::process::Command;

use crate::support::*;

/// The statements of tools, and the answers to them: title, statement, `==>`, answer.
const STATEMENTS: &str = include_str!("../clients/catalog.sql");
/// The tables that they ask for: `orders`, and `notes` without a key.
const COLUMNS: &str =
    "id bigint not null, region text not null, price numeric(15,2), day date, at timestamptz";

/// What psql prints, in lines; those of a statement without an order are sorted.
fn answer(uri: &str, sql: &str) -> Result<Vec<String>, String> {
    let mut psql = Command::new("psql");
    psql.args(["-X", "-A", "-v", "ON_ERROR_STOP=1", "-d", uri]);
    if !sql.starts_with('\\') {
        psql.arg("-t");
    }
    let output = psql.args(["-c", sql]).output().expect("psql, which comes with PostgreSQL");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(lines(sql, &String::from_utf8(output.stdout).expect("text")))
}

fn lines(sql: &str, text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.trim_end().lines().map(str::to_owned).collect();
    if !sql.starts_with('\\') && !sql.to_lowercase().contains("order by") {
        lines.sort();
    }
    lines
}

#[test]
fn statements_of_tools_have_the_answers_of_postgresql() {
    let folder = Folder::new();
    let notes = format!("notes={}", folder.write("notes.csv", "id,note\n1,a\n"));
    let data = folder.arg("range");
    let node = Node::start(&["--table", &notes, "--range-data", &data, "--postgres", "127.0.0.1:0"]);
    let keys = ["--key", "region", "--key", "id", "--columns", COLUMNS];
    lightship(&[&["range", "create", &node.uri, "orders"][..], &keys].concat()).succeeds();
    let place = node.ready["postgres"].as_str().expect("an address");
    let ours = place.replace("postgresql://", "postgresql://tester@").replace("/lightship", "/test");

    let postgres = postgres();
    postgres.psql("create database catalog_of_tools");
    let theirs = postgres.uri_as(postgres.user(), postgres.password(), "catalog_of_tools");
    let tables = format!(
        "create table orders ({COLUMNS}, primary key (region, id)); create table notes (id bigint, note text)"
    );
    answer(&theirs, &tables).expect("tables");

    let mut wrong = Vec::new();
    for block in STATEMENTS.trim_end().split("\n----\n") {
        let (asked, expected) = block.split_once("\n==>").expect("an answer");
        let (title, sql) = asked.split_once('\n').expect("a title");
        let expected = lines(sql, expected.strip_prefix('\n').unwrap_or(expected));
        let real = answer(&theirs, sql).map(|lines| {
            lines.iter().map(|line| line.replace("catalog_of_tools", "test")).collect::<Vec<_>>()
        });
        assert_eq!(real.as_ref(), Ok(&expected), "{title}: the answer of PostgreSQL\n{sql}");
        match answer(&ours, sql) {
            Ok(found) if found == expected => {}
            found => wrong.push(format!("{title}: {found:#?} instead of {expected:#?}")),
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
