//! Limits: memory, connections, time; and cancelling.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lightship_pgserver::PgConfig;

use super::TestServer;
use super::client::{Client, kinds, startup, strings};
use super::service::{BATCH_ROWS, BATCHES};

/// Waits for something that happens in the server.
fn eventually(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "it has not happened");
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_reads_slowly_is_waited_for() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send(b'Q', &strings(&["select * from numbers"]));
    // As many batches as fit into the sockets' buffers, which take some MiB.
    let mut seen = 0;
    eventually(|| {
        let before = std::mem::replace(&mut seen, server.tables.batches.load(Ordering::SeqCst));
        std::thread::sleep(Duration::from_millis(100));
        seen > 0 && seen == before
    });
    assert!(seen < BATCHES as u64 * 3 / 4, "{seen} batches were made for a client that has read nothing");
    let replies = client.until_ready();
    assert_eq!(replies.len() as i64, BATCHES * BATCH_ROWS + 3);
    assert_eq!(replies[replies.len() - 2].text(), format!("SELECT {}", BATCHES * BATCH_ROWS));
}

#[test]
fn statements_are_cancelled_by_their_key() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send(b'Q', &strings(&["select * from slow"]));
    eventually(|| server.tables.alive.load(Ordering::SeqCst) == 1);
    let cancel = |key: [u8; 8]| {
        let mut other = Client::open(server.address);
        other.send_raw(&[&[0, 0, 0, 16, 4, 210, 22, 46][..], &key].concat());
        assert_eq!(other.receive(), None);
    };
    let mut wrong = client.key;
    wrong[7] ^= 1;
    cancel(wrong);
    assert_eq!(server.tables.alive.load(Ordering::SeqCst), 1);
    cancel(client.key);
    let replies = client.until_ready();
    assert_eq!(kinds(&replies), "TEZ");
    assert_eq!(replies[1].field(b'C').unwrap(), "57014");
    eventually(|| server.tables.alive.load(Ordering::SeqCst) == 0);
    // It stops no later statement.
    cancel(client.key);
    assert_eq!(kinds(&client.query("select 1")), "TDCZ");
}

#[test]
fn a_client_that_leaves_ends_its_statement() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send(b'Q', &strings(&["select * from slow"]));
    eventually(|| server.tables.alive.load(Ordering::SeqCst) == 1);
    drop(client);
    eventually(|| server.tables.alive.load(Ordering::SeqCst) == 0);
}

#[test]
fn statements_have_a_time_limit() {
    let server = TestServer::start();
    let mut client = server.client();
    client.query("set statement_timeout = '50ms'");
    assert_eq!(client.error("select * from slow").0, "57014");
    assert_eq!(client.rows("show statement_timeout"), [[Some("50".to_owned())]]);
}

#[test]
fn too_many_clients_are_refused() {
    let server = TestServer::with(PgConfig { connections_max: 1, ..PgConfig::default() });
    let first = server.client();
    let mut second = Client::open(server.address);
    second.send_raw(&startup(0x3_0000, &["user", "me"]));
    let refusal = second.receive().unwrap();
    assert_eq!((refusal.kind, refusal.field(b'C').unwrap().as_str()), (b'E', "53300"));
    assert_eq!(second.receive(), None);
    drop(first);
    eventually(|| {
        let mut client = Client::open(server.address);
        client.send_raw(&startup(0x3_0000, &["user", "me"]));
        client.receive().is_some_and(|reply| reply.kind == b'R')
    });
}

#[test]
fn prepared_statements_and_portals_are_limited() {
    let server =
        TestServer::with(PgConfig { prepared_bytes_max: 64 << 10, portals_max: 3, ..PgConfig::default() });
    let mut client = server.client();
    for number in 0..10_000 {
        client.parse(&format!("s{number}"), "select 1", &[]);
        client.send(b'H', &[]);
        let reply = client.receive().unwrap();
        if reply.kind == b'E' {
            assert!(number > 50, "{number}");
            assert_eq!(reply.field(b'C').unwrap(), "53200");
            break;
        }
        assert!(number < 9999, "all were accepted");
    }
    client.sync();
    client.query("deallocate all; begin");
    client.parse("", "select * from numbers", &[]);
    for portal in ["a", "b", "c", "d"] {
        client.bind(portal, "", &[], 0);
    }
    let replies = client.sync();
    assert_eq!(kinds(&replies), "1222EZ");
    assert_eq!(replies[4].field(b'C').unwrap(), "54000");
}

#[test]
fn descriptions_count_as_what_a_client_holds() {
    let server = TestServer::with(PgConfig { prepared_bytes_max: 256 << 10, ..PgConfig::default() });
    let mut client = server.client();
    for number in 0..10 {
        let name = format!("s{number}");
        client.parse(&name, "select * from wide", &[]);
        client.describe(b'S', &name);
        let replies = client.sync();
        if let Some(error) = replies.iter().find(|reply| reply.kind == b'E') {
            assert_eq!(error.field(b'C').unwrap(), "53200");
            return;
        }
    }
    panic!("the columns of 10 statements were kept");
}

#[test]
fn many_small_statements_can_be_cancelled() {
    let server = TestServer::start();
    let mut client = server.client();
    // Their answers are more than the sockets hold.
    client.send(b'Q', &strings(&[&"begin;".repeat(1 << 20)]));
    // It has begun.
    assert_eq!(client.receive().unwrap().kind, b'C');
    let mut other = Client::open(server.address);
    other.send_raw(&[&[0, 0, 0, 16, 4, 210, 22, 46][..], &client.key].concat());
    assert_eq!(other.receive(), None);
    let replies = client.until_ready();
    assert_eq!(replies[replies.len() - 2].field(b'C').as_deref(), Some("57014"));
}

#[test]
fn strangers_send_only_short_messages() {
    let server = TestServer::with(PgConfig { tokens: vec!["secret".into()], ..PgConfig::default() });
    for kind in [b'Q', b'P', b'B', b'd'] {
        let mut client = Client::open(server.address);
        client.send_raw(&startup(0x3_0000, &["user", "me"]));
        assert_eq!(client.receive().unwrap().kind, b'R');
        client.send_raw(&[&[kind][..], &(1i32 << 20).to_be_bytes()].concat());
        assert_eq!(client.receive().unwrap().field(b'C').unwrap(), "54000");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn cancelled_queries_of_the_catalog_leave_no_threads() {
    let server = TestServer::start();
    let mut slow = server.client();
    let endless =
        "with recursive x(a) as (select 1 union all select a + 1 from x, pg_am) select count(*) from x";
    slow.send(b'Q', &strings(&[endless]));
    let mut brief = server.client();
    brief.query("set statement_timeout = 1");
    for _ in 0..100 {
        brief.query("select count(*) from pg_class");
    }
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    let threads = tasks.filter_map(name).filter(|name| name.trim() == "pg-catalog").count();
    assert!(threads < 50, "{threads} threads");
}

#[test]
fn quiet_clients_are_disconnected() {
    let brief = Duration::from_millis(200);
    let server = TestServer::with(PgConfig {
        handshake_timeout: brief,
        idle_timeout: Some(brief),
        ..PgConfig::default()
    });
    let mut silent = Client::open(server.address);
    assert_eq!(silent.receive(), None);
    let mut idle = server.client();
    assert_eq!(idle.receive().unwrap().field(b'C').unwrap(), "57P05");
    assert_eq!(idle.receive(), None);
}

#[test]
fn a_server_that_stops_tells_its_clients() {
    let mut server =
        TestServer::with(PgConfig { shutdown_grace: Duration::from_millis(100), ..PgConfig::default() });
    let mut idle = server.client();
    let mut busy = server.client();
    busy.send(b'Q', &strings(&["select * from slow"]));
    eventually(|| server.tables.alive.load(Ordering::SeqCst) == 1);
    server.stop();
    assert_eq!(idle.receive().unwrap().field(b'C').unwrap(), "57P01");
    assert_eq!(server.tables.alive.load(Ordering::SeqCst), 0);
}

#[test]
fn only_this_host_may_connect_without_a_token() {
    let error = lightship_pgserver::PgServer::bind(([0, 0, 0, 0], 0).into(), PgConfig::default());
    assert!(error.is_err());
}
