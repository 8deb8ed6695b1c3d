//! Transfers that end early.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use lightship_testkit::mariadb::MariaDb;
use lightship_testkit::postgres::Postgres;

use crate::support::*;

/// A client that is writing an endless result to a file.
fn half_written(uri: &str, sql: &str, folder: &Folder) -> Process {
    let client = Process::start(&["fetch", uri, sql, "-o", &folder.arg("rows.csv")]);
    client.half_written(folder);
    client
}

/// Waits until no backend runs a statement that contains `mark`.
fn no_longer_in_postgres(mark: &str) {
    let running = format!(
        "select count(*) from pg_stat_activity
         where query like '%{mark}%' and state = 'active' and pid <> pg_backend_pid()"
    );
    until("the database is free again", || postgres().psql(&running).trim() == "0");
}

#[track_caller]
fn nothing_left(folder: &Folder) {
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn a_fetch_fails_when_the_node_is_killed() {
    let folder = Folder::new();
    let mut node = Node::start(&[]);
    let client = half_written(&node.uri, ENDLESS, &folder);
    node.process.kill();
    let outcome = client.end().fails(NETWORK, &["error: the ", "(after "]);
    assert!(
        ["closed the connection", "connection failed"].iter().any(|w| outcome.stderr.contains(w)),
        "{outcome}"
    );
    nothing_left(&folder);
}

#[test]
fn a_node_frees_everything_when_the_client_is_killed() {
    let server = postgres();
    server.psql("create view ends_endless as select generate_series(1, 1000000000000) as n");
    let table = format!("endless={}?table=public.ends_endless", server.uri());
    let node = Node::start(&["--connections-max", "1", "--queue-timeout", "0", "--table", &table]);
    for (round, sql) in [ENDLESS, "select n from endless"].into_iter().enumerate() {
        let mut client = Process::start(&["fetch", &node.uri, sql]);
        let _rows = client.stuck_in_rows();
        node.fetch(&["select 1"]).fails(NETWORK, &["all 1 connections of the node are taken"]);
        client.kill();
        // The refused client and the killed one have ended; then one more is served.
        node.process.connections_ended(3 * round + 2);
        node.serves();
        node.process.connections_ended(3 * round + 3);
    }
    no_longer_in_postgres("ends_endless");
}

#[test]
fn a_client_that_takes_no_rows_does_not_hold_a_snapshot_for_ever() {
    let server = postgres();
    server.psql("create view ends_stalled as select generate_series(1, 1000000000000) as n");
    let table = format!("endless={}?table=public.ends_stalled", server.uri());
    let node = Node::start(&["--stall-timeout", "500ms", "--table", &table]);
    let mut client = Process::start(&["fetch", &node.uri, "select n from endless"]);
    let _rows = client.stuck_in_rows();
    no_longer_in_postgres("ends_stalled");
    node.serves();
}

#[test]
fn a_fetch_fails_when_the_database_ends_the_connection() {
    let server = postgres();
    let folder = Folder::new();
    server.psql("create view ends_direct as select generate_series(1, 1000000000000) as n");
    server.psql("create view ends_served as select generate_series(1, 1000000000000) as n");
    let table = format!("served={}?table=public.ends_served", server.uri());
    let node = Node::start(&["--table", &table]);
    for (uri, sql, mark, code) in [
        (server.uri(), "select n from ends_direct", "ends_direct", NETWORK),
        (node.uri.clone(), "select n from served", "ends_served", SOURCE),
    ] {
        let client = half_written(&uri, sql, &folder);
        let killed = server.psql(&format!(
            "select pg_terminate_backend(pid) from pg_stat_activity
             where query like '%{mark}%' and pid <> pg_backend_pid()"
        ));
        assert!(killed.contains('t'), "{killed}");
        // A server that is blocked in sending can't report why it ends.
        client.end().fails(code, &["the connection to 127.0.0.1", "was lost after"]);
        nothing_left(&folder);
    }
    node.serves();
    // The node connects again.
    assert_eq!(csv(&node.uri, "select n from served limit 2"), "n\n1\n2\n");
}

#[test]
fn an_interrupt_ends_a_fetch_and_leaves_no_file() {
    let folder = Folder::new();
    let node = Node::start(&["--connections-max", "1"]);
    for (round, signal) in ["INT", "TERM"].into_iter().enumerate() {
        let client = half_written(&node.uri, ENDLESS, &folder);
        client.signal(signal);
        client.end().fails(INTERRUPTED, &["interrupted; nothing was left half written"]);
        nothing_left(&folder);
        node.process.connections_ended(2 * round + 1);
        node.serves();
        node.process.connections_ended(2 * round + 2);
    }
    // The same with a database.
    let client =
        half_written(&postgres().uri(), "select generate_series(1, 1000000000000) as interrupted", &folder);
    client.signal("INT");
    client.end().fails(INTERRUPTED, &["interrupted"]);
    nothing_left(&folder);
    no_longer_in_postgres("as interrupted");
}

/// Interrupts a fetch of a statement that sends no row for minutes, once the server runs it. Checks
/// that the server stops the statement when the command has ended.
fn interrupted_at(uri: &str, sql: &str, running: impl Fn() -> bool) {
    for signal in ["INT", "TERM"] {
        let client = Process::start(&["fetch", uri, sql]);
        until("the statement runs", &running);
        client.signal(signal);
        let outcome = client.end().fails(INTERRUPTED, &["interrupted"]);
        assert!(!outcome.stderr.contains("warning"), "{outcome}");
        // The server has accepted the request, but its process may need a moment to act on it.
        until("the statement is cancelled", || !running());
    }
}

#[test]
fn an_interrupt_stops_the_statement_in_postgresql_also_over_tls() {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let settings = ["ssl=on", "ssl_cert_file={dir}/cert.pem", "ssl_key_file={dir}/key.pem"];
    let server = Postgres::start_prepared(&settings, |dir| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(dir.join("cert.pem"), certified.cert.pem()).expect("written");
        std::fs::write(dir.join("key.pem"), certified.signing_key.serialize_pem()).expect("written");
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(dir.join("key.pem"), private).expect("private");
    });
    let running = || {
        let count = "select count(*) from pg_stat_activity where query like '%slow_at%' and state = 'active'
                     and pid <> pg_backend_pid()";
        server.psql(count).trim() != "0"
    };
    for mode in ["disable", "require"] {
        let uri = format!("{}?sslmode={mode}", server.uri());
        interrupted_at(&uri, "select pg_sleep(600) as slow_at", running);
    }
}

#[test]
fn an_interrupt_stops_the_statement_in_mariadb_also_over_tls() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    // The server runs as another user.
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable).expect("readable");
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let certificate = folder.write("cert.pem", certified.cert.pem());
    let key = folder.write("key.pem", certified.signing_key.serialize_pem());
    let options = [format!("--ssl-cert={certificate}"), format!("--ssl-key={key}")];
    let server = MariaDb::start_with(&[&options[0], &options[1]]);
    let running = || {
        let list = "select count(*) from information_schema.processlist
                    where info like '%slow_at%' and id <> connection_id()";
        server.sql(list).trim() != "0"
    };
    for tls in ["", &format!("?ssl_ca={certificate}")] {
        interrupted_at(&format!("{}{tls}", server.uri()), "select sleep(600) as slow_at", running);
    }
}

#[test]
fn a_cancel_request_that_can_not_be_sent_is_a_warning() {
    // A proxy to the server that accepts only the first connection.
    let server = postgres();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let to = server.port();
    let way = std::thread::spawn(move || {
        let (near, _) = listener.accept().expect("a client");
        drop(listener);
        let far = std::net::TcpStream::connect(("127.0.0.1", to)).expect("the server");
        let (mut from, mut into) = (near.try_clone().expect("a socket"), far.try_clone().expect("a socket"));
        let back = std::thread::spawn(move || std::io::copy(&mut from, &mut into));
        let (mut from, mut into) = (far, near);
        let _ = std::io::copy(&mut from, &mut into);
        let _ = back.join();
    });
    let uri = server.uri().replace(&format!(":{to}/"), &format!(":{port}/")) + "?sslmode=disable";
    let client = Process::start(&["fetch", &uri, "select pg_sleep(600) as unreachable_at"]);
    let backends = "from pg_stat_activity where query like '%unreachable_at%' and state = 'active'
                    and pid <> pg_backend_pid()";
    until("it runs", || server.psql(&format!("select count(*) {backends}")).trim() == "1");
    client.signal("INT");
    client.end().fails(INTERRUPTED, &["warning: 127.0.0.1", "may still run there"]);
    server.psql(&format!("select pg_terminate_backend(pid) {backends}"));
    way.join().expect("no panic");
}

#[test]
fn a_hang_up_ends_commands_cleanly() {
    let folder = Folder::new();
    let node = Node::start(&[]);
    let client = half_written(&node.uri, ENDLESS, &folder);
    client.signal("HUP");
    client.end().fails(HUNG_UP, &["the terminal hung up; nothing was left half written"]);
    nothing_left(&folder);
    // The same with a copy into a database.
    let server = postgres();
    server.psql("create table ends_hung_up (n bigint)");
    let sql = "select generate_series(1, 1000000000000) as n";
    let copy = Process::start(&["copy", &server.uri(), sql, &server.uri(), "--table", "ends_hung_up"]);
    let copying = "select count(*) from pg_stat_progress_copy where relid = 'ends_hung_up'::regclass
                   and tuples_processed > 1000";
    until("rows are on their way", || server.psql(copying).trim() == "1");
    copy.signal("HUP");
    copy.end().fails(HUNG_UP, &["hung up"]);
    until("the copy is gone", || server.psql(copying).trim() == "0");
    assert_eq!(server.psql("select count(*) from ends_hung_up").trim(), "0");
    // A node ends as after an interrupt.
    node.process.signal("HUP");
    node.process.end().succeeds();
}

#[test]
fn under_nohup_a_hang_up_is_ignored() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let mut client = Process::start_under(
        "trap '' HUP",
        &["fetch", "--quiet", &node.uri, "select * from lineitem", "--window", "1"],
    );
    let mut rows = client.stuck_in_rows();
    client.signal("HUP");
    let mut rest = String::new();
    rows.read_to_string(&mut rest).expect("text");
    assert_eq!(rest.lines().count(), 60_175);
    client.end().succeeds();
}

#[test]
fn a_client_that_is_killed_leaves_no_file() {
    let folder = Folder::new();
    let node = Node::start(&[]);
    let kept = folder.write("kept.csv", "as it was\n");
    for name in ["new.csv", "kept.csv"] {
        let mut client = Process::start(&["fetch", &node.uri, ENDLESS, "-o", &folder.arg(name)]);
        client.half_written(&folder);
        client.kill();
        assert_eq!(folder.names(), ["kept.csv"]);
    }
    assert_eq!(std::fs::read_to_string(&kept).expect("a file"), "as it was\n");
}

#[test]
fn an_interrupt_ends_a_command_whose_output_is_not_read() {
    let node = Node::start(&[]);
    let mut client = Process::start(&["fetch", &node.uri, ENDLESS]);
    let rows = client.stuck_in_rows();
    client.signal("INT");
    client.says("interrupted");
    // A command that is blocked on a pipe ends at the second signal at the latest.
    client.signal("INT");
    client.end().fails(INTERRUPTED, &[]);
    drop(rows);
}

#[test]
fn a_node_interrupted_twice_ends_at_once() {
    let node = Node::start(&[]);
    let mut client = Process::start(&["fetch", &node.uri, ENDLESS]);
    let mut rows = client.stuck_in_rows();
    node.process.signal("INT");
    // When the node no longer listens, its shutdown has begun, and waits for the client.
    until("the node listens no more", || std::net::TcpStream::connect(node.address()).is_err());
    node.process.signal("INT");
    node.process.end().fails(INTERRUPTED, &[]);
    rows.read_to_end(&mut Vec::new()).expect("a pipe");
    drop(rows);
    client.end().fails(NETWORK, &["(after "]);
}

#[test]
fn a_node_ends_while_clients_are_connected() {
    let node = Node::start(&[]);
    let mut stuck = Process::start(&["fetch", &node.uri, ENDLESS]);
    let mut rows = stuck.stuck_in_rows();
    let idle = std::net::TcpStream::connect(node.address()).expect("connected");
    node.process.signal("TERM");
    let outcome = node.process.end().succeeds();
    assert!(outcome.stderr.contains("closing connections whose queries did not end in time"), "{outcome}");
    rows.read_to_end(&mut Vec::new()).expect("a pipe");
    drop(rows);
    stuck.end().fails(NETWORK, &["(after "]);
    drop(idle);
}

#[test]
fn a_result_that_ends_in_time_is_complete_when_the_node_stops() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let mut client =
        Process::start(&["fetch", "--quiet", &node.uri, "select * from lineitem", "--window", "1"]);
    let mut rows = client.stuck_in_rows();
    node.process.signal("TERM");
    until("the node listens no more", || std::net::TcpStream::connect(node.address()).is_err());
    let mut rest = String::new();
    rows.read_to_string(&mut rest).expect("text");
    assert_eq!(rest.lines().count(), 60_175);
    drop(rows);
    client.end().succeeds();
    node.process.end().succeeds();
}

#[test]
fn a_reader_that_closes_the_pipe_is_not_an_error() {
    let node = Node::start(&[]);
    for args in [
        &["fetch", &node.uri, ENDLESS] as &[&str],
        &["fetch", &node.uri, ENDLESS, "--format", "json"],
        &["fetch", &postgres().uri(), "select generate_series(1, 1000000000000) as n"],
    ] {
        let mut client = Process::start(args);
        drop(client.stuck_in_rows());
        let outcome = client.end().succeeds();
        assert_eq!(outcome.stderr, "", "quiet");
    }
    // In a shell pipeline, with the exit code of the first command.
    let line = format!(
        "set -o pipefail; {} fetch {} '{ENDLESS}' | head -n 2",
        env!("CARGO_BIN_EXE_lightship"),
        node.uri
    );
    let output = Command::new("bash").args(["-c", &line]).stdin(Stdio::null()).output().expect("bash");
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8_lossy(&output.stdout);
    assert!(lines.starts_with("value,triple\n") && lines.lines().count() == 2, "{lines}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    node.serves();
}

#[test]
fn a_full_disk_is_an_error_and_leaves_no_file() {
    let node = Node::start(&["--table", &lineitem_table()]);
    for format in ["csv", "json", "arrow", "stream", "parquet"] {
        node.fetch(&["select * from lineitem", "-o", "/dev/full", "--format", format])
            .fails(LIMITS, &["/dev/full: ", "No space left on device"]);
    }
    struct Mounted(Folder);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0.path()).status();
        }
    }
    let folder = Folder::new();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(folder.path()).output();
    if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped the small disk: it takes the right to mount one ({mounted:?})");
        return;
    }
    let disk = Mounted(folder);
    let kept = disk.0.write("kept.csv", "as it was\n");
    for name in ["kept.csv", "new.csv", "new.parquet", "new.arrow"] {
        node.fetch(&["select * from lineitem", "-o", &disk.0.arg(name)])
            .fails(LIMITS, &[name, "No space left on device", "hint: nothing was left half written"]);
        assert_eq!(disk.0.names(), ["kept.csv"]);
    }
    assert_eq!(std::fs::read_to_string(kept).expect("read"), "as it was\n");
    node.fetch(&["select 1 as a", "-o", &disk.0.arg("kept.csv")]).succeeds();
}

#[test]
fn a_server_that_accepts_and_never_answers_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let uri = format!("lightship://{}", listener.local_addr().expect("an address"));
    let began = std::time::Instant::now();
    lightship(&["fetch", &uri, "select 1"])
        .fails(NETWORK, &["can't reach", "no welcome within 20 seconds", "hint: the host can be reached"]);
    assert!(began.elapsed().as_secs() < 40);
}
