//! The real psql, with and without TLS and a password.

use std::process::Command;

use lightship_pgserver::PgConfig;
use rustls::pki_types::PrivateKeyDer;

use super::TestServer;

/// What psql prints and says. `None` if it is not installed.
fn psql(server: &TestServer, password: &str, more: &str, args: &[&str]) -> Option<(bool, String, String)> {
    let address = format!("host=127.0.0.1 port={} user=me dbname=db {more}", server.address.port());
    let output =
        Command::new("psql").args(["-X", "-d", &address]).args(args).env("PGPASSWORD", password).output();
    let Ok(output) = output else {
        eprintln!("psql is not installed: skipped");
        return None;
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Some((output.status.success(), text(output.stdout), text(output.stderr)))
}

fn prints(server: &TestServer, args: &[&str], expected: &str) {
    if let Some((is_ok, out, err)) = psql(server, "", "", args) {
        assert!(is_ok && err.is_empty(), "{args:?}: {err}");
        assert!(out.contains(expected), "{args:?} printed:\n{out}");
    }
}

#[test]
fn psql_shows_tables_and_rows() {
    let server = TestServer::start();
    prints(&server, &["-Atc", "select * from types"], "t|-2|4|8|1.5|123.45|a,\"b\"\n\\|\\x00ff|2024-02-29|");
    prints(&server, &["-c", "\\dt"], " public | numbers | table | me");
    prints(&server, &["-c", "\\d"], " public | types   | table | me");
    prints(&server, &["-c", "\\d types"], " n      | numeric(15,2)");
    prints(&server, &["-c", "\\d+ numbers"], " n      | bigint |           | not null |");
    prints(&server, &["-c", "\\l"], " db");
    prints(&server, &["-c", "\\dn"], " public | me");
    prints(&server, &["-c", "\\du"], " me");
    prints(&server, &["-c", "\\df"], "(0 rows)");
    prints(
        &server,
        &["-c", "\\copy (select t, i4 from types) to stdout csv header"],
        "t,i4\n\"a,\"\"b\"\"\n\\\",4\n",
    );
    prints(
        &server,
        &["-At", "-v", "FETCH_COUNT=3333", "-c", "select * from numbers", "-c", "select 1"],
        "999999\n1\n",
    );
}

#[test]
fn psql_shows_errors() {
    let server = TestServer::start();
    let Some((is_ok, _, err)) =
        psql(&server, "", "", &["-c", "\\set VERBOSITY verbose", "-c", "select * from missing"])
    else {
        return;
    };
    assert!(!is_ok && err.contains("42P01"), "{err}");
}

#[test]
fn any_of_the_tokens_is_the_password() {
    let tokens = vec!["secret".to_owned(), "pässword".to_owned()];
    let server = TestServer::with(PgConfig { tokens, ..PgConfig::default() });
    for (password, expected) in [("secret", true), ("pässword", true), ("other", false)] {
        let Some((is_ok, _, err)) = psql(&server, password, "", &["-c", "select 1"]) else { return };
        assert_eq!(is_ok, expected, "{password}: {err}");
        assert_eq!(err.contains("password authentication failed"), !expected, "{err}");
    }
}

#[test]
fn connections_are_encrypted() {
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
    let tls = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)
        .unwrap();
    let config = PgConfig { tls: Some(tls.into()), tokens: vec!["secret".into()], ..PgConfig::default() };
    let server = TestServer::with(config);
    let Some((is_ok, out, err)) =
        psql(&server, "secret", "sslmode=require", &["-c", "\\conninfo", "-Atc", "select 1"])
    else {
        return;
    };
    assert!(is_ok && out.contains("SSL connection"), "{out}{err}");
    let (is_ok, _, err) = psql(&server, "secret", "sslmode=disable", &["-c", "select 1"]).unwrap();
    assert!(!is_ok && err.contains("requires TLS"), "{err}");
}
