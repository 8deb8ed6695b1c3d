//! Authentication, encryption, and what clients may do.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::support::*;

/// A private CA, and a certificate that it signed for this host: `ca.pem`, `cert.pem`, `key.pem`.
pub(crate) fn certificates() -> Folder {
    let folder = Folder::new();
    let authority_key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(vec![]).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    folder.write("ca.pem", authority.self_signed(&authority_key).expect("signed").pem());
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().expect("a key");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate =
        CertificateParams::new(names).expect("parameters").signed_by(&key, &issuer).expect("signed");
    folder.write("cert.pem", certificate.pem());
    folder.write("key.pem", key.serialize_pem());
    folder
}

#[test]
fn a_node_serves_over_tls_and_clients_verify_its_certificate() {
    let ours = certificates();
    let node = Node::start(&[
        "--table",
        &lineitem_table(),
        "--tls-cert",
        &ours.arg("cert.pem"),
        "--tls-key",
        &ours.arg("key.pem"),
    ]);
    let sql = "select count(*) as rows, sum(l_orderkey) as keys from lineitem";
    let with = |folder: &Folder| format!("{}?tls=true&ca={}", node.uri, folder.arg("ca.pem"));
    assert_eq!(csv(&with(&ours), sql), csv(lineitem(), sql));
    assert_eq!(csv(&with(&ours).replace("127.0.0.1", "localhost"), "select 1 as a"), "a\n1\n");
    let whole = lightship(&[
        "--json",
        "fetch",
        &with(&ours),
        "select * from lineitem",
        "-o",
        "/dev/null",
        "--format",
        "csv",
    ]);
    assert_eq!(whole.succeeds().json()["rows"], 60_175);

    let fetch = |uri: &str| lightship(&["fetch", uri, "select 1"]);
    fetch(&with(&certificates())).fails(NETWORK, &["can't reach 127.0.0.1", "certificate"]);
    // The system's CAs did not sign it either.
    fetch(&format!("{}?tls=true", node.uri)).fails(NETWORK, &["127.0.0.1"]);
    let plain = Node::start(&[]);
    fetch(&format!("{}?tls=true&ca={}", plain.uri, ours.arg("ca.pem")))
        .fails(NETWORK, &["can't reach", "TLS"]);
    fetch(&node.uri)
        .fails(NETWORK, &["does not speak Lightship", "hint: the node accepts only TLS", "?tls=true"]);
    fetch(&format!("{}?ca=/nowhere/ca.pem", node.uri)).fails(NETWORK, &["TLS: /nowhere/ca.pem"]);
    fetch(&format!("{}?ca={}", node.uri, ours.arg("key.pem")))
        .fails(NETWORK, &["key.pem", "contains no certificate"]);
    node.serves_at(&with(&ours));
}

impl Node {
    #[track_caller]
    fn serves_at(&self, uri: &str) {
        assert_eq!(csv(uri, "select 1 as one"), "one\n1\n");
    }
}

#[test]
fn certificates_and_keys_that_do_not_match_are_refused() {
    let (ours, theirs) = (certificates(), certificates());
    let empty = ours.write("empty.pem", "");
    for (cert, key, words) in [
        (ours.arg("cert.pem"), theirs.arg("key.pem"), "cert.pem"),
        (empty.clone(), ours.arg("key.pem"), "contains no certificate"),
        (ours.arg("cert.pem"), empty, "empty.pem"),
        ("/nowhere/cert.pem".into(), ours.arg("key.pem"), "/nowhere/cert.pem"),
    ] {
        lightship(&["node", "--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key])
            .fails(NETWORK, &["TLS", words]);
    }
}

#[test]
fn only_clients_with_a_valid_token_are_served() {
    let folder = Folder::new();
    let file = folder.write("tokens", "from-file\n\n  spaced  \n");
    let node = Node::start(&["--token", "s3cret", "--token-file", &file]);
    let with = |token: &str| node.uri.replace("lightship://", &format!("lightship://{token}@"));
    let fetch = |uri: &str| lightship(&["fetch", "--quiet", uri, "select 1 as a"]);
    for token in ["s3cret", "from-file", "spaced", "s3cre%74"] {
        assert_eq!(fetch(&with(token)).succeeds().text(), "a\n1\n");
    }
    for token in ["wrong", "s3cre", "s3cret0", "%20spaced"] {
        let outcome = fetch(&with(token)).fails(SOURCE, &["the token is not known", "LIGHTSHIP_TOKEN"]);
        assert!(!outcome.stderr.contains(token), "{outcome}");
    }
    fetch(&node.uri).fails(SOURCE, &["a token is needed", "hint: give it in the URI", "LIGHTSHIP_TOKEN"]);
    let long = "t".repeat(4097);
    fetch(&with(&long)).fails(USAGE, &["the token has 4097 bytes; the maximum is 4096"]);
    // No token is sent to another host unencrypted, unless requested: the host is not even looked up.
    let elsewhere = |query: &str| fetch(&format!("lightship://s3cret@nowhere.invalid{query}"));
    elsewhere("").fails(
        USAGE,
        &["the token would be sent to nowhere.invalid unencrypted", "?tls=true", "?insecure=true"],
    );
    elsewhere("?insecure=true").fails(NETWORK, &["nowhere.invalid"]);
    let from_environment = |token: &str| {
        Process::start_with(&["fetch", "--quiet", &node.uri, "select 1 as a"], |c| {
            c.env("LIGHTSHIP_TOKEN", token)
        })
        .end()
    };
    assert_eq!(from_environment("s3cret").succeeds().text(), "a\n1\n");
    from_environment("wrong").fails(SOURCE, &["the token is not known"]);
    let outcome = {
        node.process.signal("TERM");
        node.process.end().succeeds()
    };
    assert!(!outcome.stderr.contains("s3cret"), "a token in the log: {outcome}");
}

#[test]
fn listening_beyond_this_host_requires_tls_and_a_token_or_insecure() {
    let folder = certificates();
    let (cert, key) = (folder.arg("cert.pem"), folder.arg("key.pem"));
    let anywhere = ["node", "--listen", "0.0.0.0:0"];
    for args in [&[] as &[&str], &["--token", "t"], &["--tls-cert", &cert, "--tls-key", &key]] {
        lightship(&[&anywhere, args].concat()).fails(
            USAGE,
            &[
                "lightship://0.0.0.0:0 can be reached from other hosts",
                "TLS and a token",
                "hint: ",
                "--insecure",
            ],
        );
    }
    for args in [&["--insecure"] as &[&str], &["--token", "t", "--tls-cert", &cert, "--tls-key", &key]] {
        let node = Node::start(&[&["--listen", "0.0.0.0:0"], args].concat());
        assert!(node.uri.starts_with("lightship://0.0.0.0:"), "{}", node.uri);
    }
}

#[test]
fn a_unix_socket_is_only_for_its_owner() {
    let folder = Folder::new();
    let path = folder.file("node.socket");
    let listen = format!("unix:{}", path.display());
    let mut killed = Node::start(&["--listen", &listen, "--listen", "127.0.0.1:0"]);
    assert_eq!(killed.uri, format!("lightship+unix:{}", path.display()));
    assert_eq!(killed.ready["listening"].as_array().map(Vec::len), Some(2));
    let kind = |path| std::fs::symlink_metadata(path).expect("it is there");
    assert!(kind(&path).file_type().is_socket());
    assert_eq!(kind(&path).permissions().mode() & 0o777, 0o600);
    killed.serves();
    assert_eq!(csv(killed.ready["listening"][1].as_str().expect("TCP"), "select 1 as one"), "one\n1\n");
    // A socket that is in use is not replaced.
    lightship(&["node", "--listen", &listen]).fails(NETWORK, &["node.socket", "in use"]);
    killed.serves();
    // A socket that a killed node left behind is replaced.
    killed.process.kill();
    assert!(path.exists());
    let node = Node::start(&["--listen", &listen]);
    node.serves();
    node.process.signal("TERM");
    node.process.end().succeeds();
    assert!(!path.exists(), "a node takes its socket away with it");
    // A file that is not a socket is never removed.
    std::fs::write(&path, "precious").expect("written");
    lightship(&["node", "--listen", &listen]).fails(NETWORK, &["node.socket", "in use"]);
    assert_eq!(std::fs::read_to_string(&path).expect("read"), "precious");
}

#[test]
fn sql_of_clients_reads_the_tables_and_nothing_else() {
    let folder = Folder::new();
    let secret = folder.write("secret.csv", "a\n42\n");
    let copy = folder.arg("copy.csv");
    let node = Node::start(&["--table", &lineitem_table()]);
    for sql in [
        "select * from '/etc/passwd'",
        &format!("select * from '{secret}'"),
        &format!("select * from \"{secret}\""),
        &format!("copy (select 1) to '{copy}'"),
        &format!("copy lineitem to '{copy}' stored as csv"),
        &format!("create external table t stored as csv location '{secret}'"),
        "create table t as select 1",
        "create view v as select * from lineitem",
        "drop table lineitem",
        "insert into lineitem select * from lineitem",
        "update lineitem set l_tax = 0",
        "delete from lineitem",
        "set datafusion.execution.target_partitions = 1000000",
        "reset datafusion.execution.target_partitions",
        "prepare p as select 1",
        "execute p",
        "begin",
        "create function f() returns int return 1",
        "create schema s",
        "create database d",
        &format!("select * from read_csv('{secret}')"),
        &format!("select * from parquet_metadata('{}')", lineitem()),
        &format!("explain analyze copy lineitem to '{copy}'"),
        &format!("explain copy lineitem to '{copy}'"),
    ] {
        let outcome = node.fetch(&[sql]).fails(SOURCE, &["error: "]);
        assert!(!outcome.stderr.contains("internal"), "{sql}: {outcome}");
    }
    let forbidden = node.fetch(&[&format!("copy (select 1) to '{copy}'")]);
    forbidden.fails(SOURCE, &["COPY", "hint: a node runs only queries that read the tables it serves"]);
    assert_eq!(folder.names(), ["secret.csv"]);
    assert_eq!(csv(&node.uri, "select count(*) as rows from lineitem"), "rows\n60175\n");
}

#[test]
fn a_port_without_tls_recognises_other_protocols() {
    let node = Node::start(&[]);
    let mut stream = TcpStream::connect(node.address()).expect("connected");
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("closed in order");
    assert!(
        answer.starts_with(b"LSHP") && String::from_utf8_lossy(&answer).contains("does not speak Lightship")
    );
    node.process.says("does not speak Lightship");
}
