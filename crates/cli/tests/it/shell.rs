//! `lightship shell`: scripts from standard input, and statements typed at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::*;

/// Runs a script to its end.
fn shell(uri: &str, args: &[&str], script: &str) -> Outcome {
    let folder = Folder::new();
    let input = File::open(folder.write("script.sql", script)).expect("a file");
    let words = [&["shell", uri], args].concat();
    Process::start_with(&words, |command| command.stdin(Stdio::from(input))).end()
}

fn sales(folder: &Folder) -> String {
    folder.write("sales.csv", "region,amount\nnorth,3\nsouth,4\n")
}

#[test]
fn scripts_run_until_a_statement_fails() {
    let folder = Folder::new();
    let uri = sales(&folder);
    let script = "select sum(amount) as total from sales; -- a comment;\nselect ';' as semicolon\n";
    assert_eq!(shell(&uri, &[], script).succeeds().text(), "total\n7\nsemicolon\n;\n");
    let outcome = shell(&uri, &[], "select 1 as one; select nothing from sales; select 2 as two;");
    assert_eq!(outcome.fails(SOURCE, &["nothing"]).text(), "one\n1\n");
    shell(&uri, &[], "\\wrong\n").fails(USAGE, &["\\wrong", "hint: \\?"]);
    assert_eq!(shell(&uri, &[], "").succeeds().text(), "");
    assert_eq!(shell(&uri, &[], "select 1 as one; \\q\nselect 2;").succeeds().text(), "one\n1\n");
    let outcome = shell(&uri, &["--json"], "select region from sales order by 1;").succeeds();
    assert_eq!(outcome.text(), "{\"region\":\"north\"}\n{\"region\":\"south\"}\n");
    assert_eq!(outcome.json()["rows"], 2);
    shell(&uri, &["--format", "parquet"], "select 1;")
        .fails(USAGE, &["table, vertical, csv or json", "\\o FILE"]);
    shell(&folder.arg("missing.csv"), &[], "select 1;").fails(SOURCE, &["missing.csv"]);
}

#[test]
fn results_go_to_files_and_scripts_come_from_them() {
    let folder = Folder::new();
    let uri = sales(&folder);
    let inner = folder.write("inner.sql", "select count(*) as rows from sales;\n");
    let (parquet, itself) = (folder.arg("out.parquet"), folder.arg("itself.sql"));
    shell(&uri, &[], &format!("\\o {parquet}\nselect nothing;\n")).fails(SOURCE, &["nothing"]);
    assert!(!folder.file("out.parquet").exists());
    let script = format!("\\o {parquet}\nselect * from sales;\n\\i {inner}\n");
    assert_eq!(shell(&uri, &[], &script).succeeds().text(), "rows\n2\n");
    assert_eq!(rows_of(&read_parquet(&folder.file("out.parquet")).1), 2);
    folder.write("itself.sql", format!("\\i {itself}\n"));
    shell(&uri, &[], &format!("\\i {itself}\n")).fails(USAGE, &["too deeply"]);
    shell(&uri, &[], "\\i missing.sql\n").fails(USAGE, &["\\i missing.sql"]);
}

/// Every kind of source lists its tables and their columns.
#[test]
fn tables_and_columns_of_every_source_are_listed() {
    let folder = Folder::new();
    let made = "create table shell_cities (id int not null, name varchar(20), area numeric(10, 2), primary key (id))";
    let (postgres, mariadb) = (postgres(), mariadb());
    postgres.psql(&format!("create schema shell; set search_path = shell; {made}"));
    mariadb.sql(made);
    let sqlite = folder.arg("shell.db");
    rusqlite::Connection::open(&sqlite).expect("a file").execute_batch(made).expect("made");
    let cities = folder.write("shell_cities.csv", "id,name,area\n1,Bern,51.6\n");
    let node = Node::start(&["--table", &format!("shell_cities={cities}")]);
    let places = [
        (postgres.uri().to_owned(), "shell.shell_cities", "id,integer,NO,1", "area,\"numeric(10,2)\",YES,"),
        (mariadb.uri().to_owned(), "shell_cities", "id,int(11),NO,1", "area,\"decimal(10,2)\",YES,"),
        (format!("sqlite:{sqlite}"), "shell_cities", "id,INT,NO,1", "area,\"numeric(10, 2)\",YES,"),
        (node.uri.clone(), "shell_cities", "id,Int64,YES,", "area,Float64,YES,"),
        (cities.clone(), "shell_cities", "id,Int64,YES,", "area,Float64,YES,"),
    ];
    for (uri, table, first, last) in places {
        let outcome = shell(&uri, &[], &format!("\\d\n\\d {table}\n")).succeeds();
        let (tables, columns) = outcome.text().split_once("name,type,nullable,key\n").expect("two results");
        let row = |line: &&str| line.contains("shell_cities") && line.ends_with("table");
        assert_eq!(tables.lines().filter(row).count(), 1, "{uri}: {outcome}");
        let columns: Vec<&str> = columns.lines().collect();
        assert_eq!(columns.len(), 3, "{uri}: {outcome}");
        assert_eq!([columns[0], columns[2]], [first, last], "{uri}");
        shell(&uri, &[], "\\d no_such_table\n").fails(SOURCE, &["no_such_table"]);
    }
}

#[test]
fn a_shell_connects_to_another_source() {
    let folder = Folder::new();
    let uri = sales(&folder);
    let other = folder.write("other.csv", "a\n5\n");
    let script = format!("\\c {other}\nselect a from other;\n\\c {}\n", folder.arg("missing.csv"));
    assert_eq!(shell(&uri, &[], &script).fails(SOURCE, &["missing.csv"]).text(), "a\n5\n");
    let node = Node::start(&["--table", &format!("sales={uri}")]);
    let outcome = shell(&node.uri, &[], "\\explain select count(*) from sales\n\\report\n");
    assert!(outcome.text().contains("plan"), "{outcome}");
    outcome.fails(USAGE, &["no query has succeeded yet"]);
    shell(&uri, &[], "\\explain select 1\n").fails(USAGE, &["only queries on nodes can be explained"]);
}

/// A terminal whose other end is the test.
struct Terminal {
    script: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    /// Starts the shell on a terminal.
    fn start(uri: &str, history: &str) -> Self {
        let command = format!("stty rows 20 cols 100; {} shell '{uri}'", env!("CARGO_BIN_EXE_lightship"));
        let mut script = quiet(Command::new("script").args(["-qefc", &command, "/dev/null"]))
            .env("LIGHTSHIP_SHELL_HISTORY", history)
            .env("TERM", "xterm")
            .env("PAGER", "sed s/^/paged:/")
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("script is there");
        let keyboard = script.stdin.take().expect("a pipe");
        let mut output = script.stdout.take().expect("a pipe");
        let screen = Arc::<Mutex<String>>::default();
        let shown = screen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { script, keyboard, screen }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("typed");
        self.keyboard.flush().expect("typed");
    }

    /// Waits until this was shown, and forgets it and all before it.
    #[track_caller]
    fn shows(&mut self, words: &str) {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let mut screen = self.screen.lock().expect("no panic");
            // The line editor asks the terminal where the cursor is.
            let is_asked = screen.contains("\u{1b}[6n");
            if is_asked {
                *screen = screen.replacen("\u{1b}[6n", "", 1);
            }
            if let Some(at) = screen.find(words) {
                screen.drain(..at + words.len());
                return;
            }
            assert!(std::time::Instant::now() < deadline, "never shown: {words}\n{screen:?}");
            drop(screen);
            if is_asked {
                self.types("\u{1b}[1;1R");
            } else {
                std::thread::park_timeout(std::time::Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn statements_are_typed_at_a_terminal() {
    let folder = Folder::new();
    let node = Node::start(&["--table", &format!("sales={}", sales(&folder))]);
    let mut terminal = Terminal::start(&node.uri, &folder.arg("history"));
    terminal.shows("\\? for help");
    terminal.shows("127.0.0.1> ");
    // A statement of two lines.
    terminal.types("select region, amount\r");
    terminal.types("from sales order by amount;\r");
    terminal.shows("north");
    terminal.shows("2 rows, ");
    // A long result is paged.
    terminal.shows("127.0.0.1> ");
    terminal.types("select value from generate_series(1, 100);\r");
    terminal.shows("paged:   100");
    // An interrupt ends the query, and not the shell.
    terminal.shows("127.0.0.1> ");
    terminal.types(&format!("select max(triple) from ({ENDLESS});\r"));
    node.process.computes();
    terminal.types("\u{3}");
    terminal.shows("cancelled");
    terminal.shows("127.0.0.1> ");
    terminal.types(&format!("\\analyze select max(triple) from ({ENDLESS})\r"));
    node.process.computes();
    terminal.types("\u{3}");
    terminal.shows("cancelled");
    terminal.shows("127.0.0.1> ");
    terminal.types("select 40 + 2 as answer;\r");
    terminal.shows("42");
    terminal.shows("127.0.0.1> ");
    terminal.types("\\d missing\r");
    terminal.shows("there is no table missing");
    terminal.shows("127.0.0.1> ");
    // A name that the source completes, and the end.
    terminal.types("select * from sal\t");
    terminal.shows("sales");
    terminal.types("\u{3}");
    terminal.shows("127.0.0.1> ");
    terminal.types("\\q\r");
    until("the shell ends", || terminal.script.try_wait().expect("a process").is_some());
    let history = std::fs::read_to_string(folder.file("history")).expect("a history");
    assert!(history.contains("select 40 + 2 as answer;"), "{history}");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &folder.file("history").metadata().expect("it").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}
