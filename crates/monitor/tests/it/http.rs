//! Routes, access and limits over real sockets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lightship_monitor::http::HttpOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{Reply, Server, exchange};

const BEARER: &str = "authorization: Bearer a long token";
const HOST: &str = "host: localhost";

fn with_token() -> HttpOptions {
    HttpOptions { tokens: vec!["a long token".into(), "another".into()], ..HttpOptions::new("test") }
}

#[tokio::test]
async fn reports_are_json_and_all_answers_have_security_headers() {
    let server = Server::start(HttpOptions::new("test")).await;
    let overview = server.get("/api/overview").await;
    let hosts = overview.json()["hosts"].as_array().unwrap().len();
    let link = overview.json()["hosts"][1]["speeds"]["link"]["sent_bytes_per_second"].clone();
    assert_eq!(link, 1.25e8, "its agent said so");
    assert_eq!(hosts, 4);
    let queries = server.get("/api/queries?limit=7").await.json();
    assert_eq!(queries.as_array().unwrap().len(), 7);
    let query = server.get("/api/queries/0001-00").await.json();
    assert_eq!(query["verdict"]["limit"], "cpu");
    assert_eq!(
        query["footprint"]["division"]["parts"].as_array().unwrap().len(),
        lightship_usage::Part::ALL.len()
    );
    let series = server.get("/api/series?host=node2&group=cpu&points=50").await.json();
    let points = series["at_ns"].as_array().unwrap().len();
    assert!((10..=50).contains(&points), "{points}");
    assert_eq!(series["lines"][0]["values"].as_array().unwrap().len(), points);
    let trace = server.get("/api/trace").await;
    assert!(trace.header("content-disposition").unwrap().contains("lightship-trace.json"));
    assert!(!trace.json()["traceEvents"].as_array().unwrap().is_empty());
    for (path, status) in [
        ("/", 200),
        ("/files/app.js", 200),
        ("/metrics", 200),
        ("/login", 303),
        ("/api/queries/none", 404),
        ("/api/series?host=nobody&group=cpu", 404),
        ("/api/series?host=node1&group=color", 400),
        ("/api/series?host=node1", 400),
        ("/api/queries?limit=-1", 400),
        ("/files/none.js", 404),
        ("/files/..%2findex.html", 404),
        ("/none", 404),
    ] {
        let reply = server.get(path).await;
        assert_eq!(reply.status, status, "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    assert_eq!(server.request("DELETE /api/queries", &[HOST], "").await.status, 405);
    server.stop().await;
}

#[tokio::test]
async fn files_that_did_not_change_are_not_sent_again() {
    let server = Server::start(HttpOptions::new("test")).await;
    let first = server.get("/files/style.css").await;
    assert_eq!(first.header("content-type"), Some("text/css; charset=utf-8"));
    let known = format!("if-none-match: {}", first.header("etag").unwrap());
    let again = server.request("GET /files/style.css", &[HOST, &known], "").await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    server.stop().await;
}

#[tokio::test]
async fn with_tokens_nothing_is_read_without_one() {
    let server = Server::start(with_token()).await;
    for path in [
        "/api/overview",
        "/api/queries",
        "/api/queries/0001-00",
        "/api/series?host=node1&group=cpu",
        "/api/trace",
        "/metrics",
        "/none",
    ] {
        let reply = server.get(path).await;
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")), "{path}");
        assert!(!reply.body.contains("node1"));
        let wrong =
            server.request(&format!("GET {path}"), &[HOST, "authorization: Bearer a long tokem"], "").await;
        assert_eq!(wrong.status, 401, "{path}");
    }
    assert_eq!(server.request("GET /api/overview", &[HOST, BEARER], "").await.status, 200);
    assert_eq!(
        server
            .request("GET /metrics", &["host: any.example", "authorization: bearer another"], "")
            .await
            .status,
        200
    );
    let page = server.get("/").await;
    assert_eq!((page.status, page.header("location")), (303, Some("/login")));
    server.stop().await;
}

#[tokio::test]
async fn people_enter_a_token_once_and_get_a_cookie_that_is_not_the_token() {
    let server = Server::start(with_token()).await;
    assert_eq!(server.get("/login").await.status, 200);
    let form = "content-type: application/x-www-form-urlencoded";
    let wrong = server.request("POST /login", &[HOST, form], "token=wrong%3Cscript%3E").await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, None));
    assert!(wrong.body.contains("The token is wrong.") && !wrong.body.contains("<script>"));
    let right = server.request("POST /login", &[HOST, form], "token=a+long+token").await;
    assert_eq!((right.status, right.header("location")), (303, Some("/")));
    let cookie = right.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains("token"), "{cookie}");
    let cookie = format!("cookie: {}", cookie.split(';').next().unwrap());
    assert_eq!(server.request("GET /", &[HOST, &cookie], "").await.status, 200);
    assert_eq!(server.request("GET /api/overview", &[HOST, &cookie], "").await.status, 200);
    let forged = cookie.replace('.', "1.");
    assert_eq!(server.request("GET /api/overview", &[HOST, &forged], "").await.status, 401);
    let out = server.request("POST /logout", &[HOST, &cookie], "").await;
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    let long = "t".repeat(10_000);
    assert_eq!(server.request("POST /login", &[HOST, form], &format!("token={long}")).await.status, 413);
    server.stop().await;
}

#[tokio::test]
async fn without_a_token_other_names_are_refused() {
    let options = HttpOptions { host_names: vec!["db.example".into()], ..HttpOptions::new("test") };
    let server = Server::start(options).await;
    for path in ["/", "/api/overview", "/files/app.js"] {
        let reply = server.request(&format!("GET {path}"), &["host: evil.example"], "").await;
        assert_eq!(reply.status, 421, "{path}");
        assert!(!reply.body.contains("node1"));
    }
    let own = format!("host: {}", server.address);
    for host in [own.as_str(), "host: localhost:1", "host: db.example"] {
        assert_eq!(server.request("GET /api/overview", &[host], "").await.status, 200, "{host}");
    }
    server.stop().await;
}

#[tokio::test]
async fn text_of_others_is_never_markup() {
    let server = Server::start(HttpOptions::new("</title><script>alert(1)</script>\"")).await;
    let page = server.get("/").await;
    assert!(page.body.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;"));
    assert!(!page.body.contains("<script>alert"));
    // A label with markup is in JSON only, which no browser takes for a page.
    let queries = server.get("/api/queries").await;
    assert!(queries.body.contains("<b>export</b> & \\\"archive\\\""));
    assert_eq!(queries.header("content-type"), Some("application/json"));
    server.stop().await;
}

#[tokio::test]
async fn heads_of_requests_are_bounded_in_bytes_and_time() {
    let options = HttpOptions { head_timeout: Duration::from_millis(300), ..HttpOptions::new("test") };
    let server = Server::start(options).await;
    let long = format!("x: {}", "y".repeat(40_000));
    assert_eq!(server.request("GET /", &[HOST, &long], "").await.status, 431);
    let many: Vec<String> = (0..100).map(|number| format!("x{number}: y")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(server.request("GET /", &many, "").await.status, 431);
    // A head that does not end, and a connection without any request: both are closed.
    let mut slow = server.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nhost: local").await.unwrap();
    assert_ne!(Reply::read(slow).await.status, 200);
    assert_eq!(Reply::read(server.connect().await).await.status, 0);
    server.stop().await;
}

#[tokio::test]
async fn connections_above_the_limit_wait_for_others_to_end() {
    let options = HttpOptions {
        connections_max: 1,
        head_timeout: Duration::from_secs(3600),
        ..HttpOptions::new("test")
    };
    let server = Server::start(options).await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    second.write_all(b"GET /icon HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut buffer = [0; 4096];
    for _ in 0..20 {
        first.write_all(b"GET /icon HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert!(first.read(&mut buffer).await.unwrap() > 0);
    }
    let waits = second.try_read(&mut buffer).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "there is only one place");
    drop(first);
    assert_eq!(Reply::read(second).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_the_end() {
    let server = Server::start(HttpOptions::new("test")).await;
    let idle = server.connect().await;
    let served = server.get("/").await;
    assert_eq!(served.status, 200);
    server.stop().await;
    assert_eq!(Reply::read(idle).await.status, 0);
}

#[tokio::test]
async fn tls_is_spoken_and_its_cookies_are_secure() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let options = HttpOptions { tls: Some(Arc::new(tls)), ..with_token() };
    let server = Server::start(options).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let stream = connector.connect(name, server.connect().await).await.unwrap();
    let form = "content-type: application/x-www-form-urlencoded";
    let reply = exchange(stream, "POST /login", &[HOST, form], "token=another").await;
    assert_eq!(reply.status, 303);
    assert!(reply.header("set-cookie").unwrap().ends_with("; Secure"));
    // Plain HTTP to it is no request.
    assert_eq!(server.get("/").await.status, 0);
    server.stop().await;
}

#[tokio::test]
async fn metrics_are_in_the_text_format() {
    let server = Server::start(HttpOptions::new("test")).await;
    let reply = server.get("/metrics").await;
    assert!(reply.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let lines: Vec<&str> = reply.body.lines().collect();
    assert_eq!(lines.last(), Some(&"# EOF"));
    let mut families = BTreeSet::new();
    let mut samples = BTreeSet::new();
    for line in &lines[..lines.len() - 1] {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            let (keyword, family) = (words.next().unwrap(), words.next().unwrap());
            assert!(["HELP", "TYPE", "UNIT"].contains(&keyword), "{line}");
            assert!(family.starts_with("lightship_"), "{line}");
            if keyword == "TYPE" {
                let kind = words.next().unwrap();
                assert!(families.insert((family, kind)), "{line} twice");
            }
            if keyword == "UNIT" {
                assert!(family.ends_with(words.next().unwrap()), "{line}");
            }
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        assert!(value.is_finite(), "{line}");
        assert!(samples.insert(sample), "{line} twice");
        let name = sample.split('{').next().unwrap();
        let is_counter =
            name.strip_suffix("_total").is_some_and(|family| families.contains(&(family, "counter")));
        assert!(is_counter || families.contains(&(name, "gauge")), "{line}");
    }
    for expected in [
        "lightship_host_cpu_seconds_total{host=\"node1\",mode=\"user\"}",
        "lightship_host_clock_bound_seconds{host=\"node4\"}",
        "lightship_host_datagrams_total{host=\"node4\",result=\"lost\"}",
        "lightship_queries_limited_total{limit=\"cpu\"}",
        "lightship_query_time_seconds_total{part=\"network\"}",
    ] {
        assert!(samples.contains(expected), "{expected}");
    }
    server.stop().await;
}

#[test]
fn the_dashboard_uses_metrics_that_exist() {
    let text = include_str!("../../../../docs/grafana/lightship.json");
    let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 8);
    let mut world = crate::modelled::World::new(0);
    world.advance(250_000_000_000);
    let metrics = world.recorder.metrics(250_000_000_000).unwrap();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten()) {
        let expression = target["expr"].as_str().unwrap();
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for metric in words.filter(|word| word.starts_with("lightship_")) {
            let is_there = metrics.lines().any(|line| line.split(['{', ' ']).next() == Some(metric));
            assert!(is_there, "{metric} of {expression}");
        }
    }
}
