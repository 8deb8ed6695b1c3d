//! Object stores that fail, stall and lie: clear errors in bounded time, and right results if the failure passes.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::objects::without_credentials;
use crate::support::*;

/// What a server does with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    /// What a good server does.
    Right,
    /// An error of S3.
    Status(u16, &'static str),
    /// Half of the body, then a reset.
    Reset,
    /// Half of the body, then the end of the connection.
    Short,
    /// A body of half the announced range, with a length that fits it.
    FewerThanAsked,
    /// Half of the body, then nothing.
    Stall,
    /// Not even a status line.
    Silence,
    /// The whole object, whatever was asked for.
    NoRanges,
    /// The bytes of another version, under another tag.
    OtherTag,
    /// A redirect to itself.
    Redirect,
    /// No HTTP at all.
    Garbage,
}

/// A request: method, target and range.
struct Request {
    method: String,
    target: String,
    range: Option<(usize, usize)>,
    body: usize,
}

type Rule = dyn Fn(&Request, usize) -> Answer + Send + Sync;

/// A server of one object, whatever its name, that answers by a rule. The rule gets the number of the request, from 0.
struct Hostile {
    endpoint: String,
    /// Method and target of each request.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Hostile {
    fn start(object: Vec<u8>, rule: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let (object, rule, count) =
            (Arc::new(object), Arc::new(rule) as Arc<Rule>, Arc::new(AtomicUsize::new(0)));
        let all = seen.clone();
        // The threads end with the test's process.
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (object, rule, count, all) = (object.clone(), rule.clone(), count.clone(), all.clone());
                std::thread::spawn(move || {
                    let mut input = BufReader::new(socket.try_clone().expect("a socket"));
                    while let Some(request) = read_request(&mut input) {
                        all.lock().expect("no panic").push(format!("{} {}", request.method, request.target));
                        let answer = rule(&request, count.fetch_add(1, Ordering::Relaxed));
                        if respond(&socket, &request, &object, answer).is_none() {
                            return;
                        }
                    }
                });
            }
        });
        Self { endpoint, seen }
    }

    fn requests(&self, words: &str) -> usize {
        self.seen.lock().expect("no panic").iter().filter(|request| request.contains(words)).count()
    }

    /// Runs the command, which must end within a minute.
    fn run(&self, args: &[&str]) -> Outcome {
        let began = Instant::now();
        let process = Process::start_with(args, |command| {
            without_credentials(command)
                .env("AWS_ENDPOINT_URL", &self.endpoint)
                .env("AWS_ACCESS_KEY_ID", "AKIATESTER")
                .env("AWS_SECRET_ACCESS_KEY", "hush")
                // A request that stalls is given up after this.
                .env("AWS_TIMEOUT", "1s")
        });
        let outcome = process.end_within(Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(60), "{outcome}");
        outcome
    }
}

fn read_request(input: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let range = headers.get("range").and_then(|range| {
        let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse().ok()?, end.parse::<usize>().ok()? + 1))
    });
    let body: usize = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    std::io::copy(&mut input.by_ref().take(body as u64), &mut std::io::sink()).ok()?;
    Some(Request { method, target, range, body })
}

/// Sends a response; `None` if the connection is to end.
fn respond(mut socket: &TcpStream, request: &Request, object: &[u8], answer: Answer) -> Option<()> {
    let send = |mut socket: &TcpStream, head: &str, body: &[u8]| {
        socket.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).ok()?;
        socket.write_all(body).ok()
    };
    match answer {
        Answer::Status(status, code) => {
            let body = format!(
                "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>Because of {code}.</Message></Error>"
            );
            let length = body.len();
            let body = if request.method == "HEAD" { "" } else { &body };
            return send(socket, &format!("{status} Failed\r\nContent-Length: {length}"), body.as_bytes());
        }
        Answer::Redirect => {
            let target = &request.target;
            return send(socket, &format!("307 Moved\r\nLocation: {target}\r\nContent-Length: 0"), b"");
        }
        Answer::Silence => {
            std::thread::park_timeout(Duration::from_secs(600));
            return None;
        }
        Answer::Garbage => {
            let _ = socket.write_all(b"\x16\x03\x01 not HTTP\r\n\r\n");
            return None;
        }
        _ => {}
    }
    match (request.method.as_str(), request.target.as_str()) {
        ("POST", target) if target.contains("uploads") => {
            let body =
                b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>";
            return send(socket, &format!("200 OK\r\nContent-Length: {}", body.len()), body);
        }
        ("POST", _) => {
            let body = b"<CompleteMultipartUploadResult><ETag>\"e\"</ETag></CompleteMultipartUploadResult>";
            return send(socket, &format!("200 OK\r\nContent-Length: {}", body.len()), body);
        }
        ("PUT", _) => return send(socket, "200 OK\r\nETag: \"e\"\r\nContent-Length: 0", b""),
        ("DELETE", _) => return send(socket, "204 No Content", b""),
        _ => {}
    }
    let dates = "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT";
    let tag = if answer == Answer::OtherTag { "\"two\"" } else { "\"one\"" };
    if request.method == "HEAD" {
        return send(
            socket,
            &format!("200 OK\r\n{dates}\r\nETag: {tag}\r\nContent-Length: {}", object.len()),
            b"",
        );
    }
    let (start, end) = request.range.filter(|_| answer != Answer::NoRanges).unwrap_or((0, object.len()));
    let (start, end) = (start.min(object.len()), end.min(object.len()));
    let body = &object[start..end];
    let half = &body[..body.len() / 2];
    let status = match request.range {
        Some(_) if answer != Answer::NoRanges => {
            format!("206 Partial\r\nContent-Range: bytes {start}-{}/{}", end - 1, object.len())
        }
        _ => "200 OK".to_owned(),
    };
    let head = |length: usize| format!("{status}\r\n{dates}\r\nETag: {tag}\r\nContent-Length: {length}");
    match answer {
        Answer::FewerThanAsked => send(socket, &head(half.len()), half),
        Answer::Short | Answer::OtherTag => {
            send(socket, &head(body.len()), half)?;
            let _ = socket.shutdown(std::net::Shutdown::Both);
            None
        }
        Answer::Reset => {
            send(socket, &head(body.len()), half)?;
            // Closing it sends a reset instead of an orderly end.
            socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO)).expect("a socket");
            None
        }
        Answer::Stall => {
            send(socket, &head(body.len()), half)?;
            std::thread::park_timeout(Duration::from_secs(600));
            None
        }
        _ => send(socket, &head(body.len()), body),
    }
}

/// Rows in CSV of more than a megabyte, and the sum of their column `n`.
fn rows() -> (Vec<u8>, String) {
    let count = 60_000_u64;
    let lines: String = (1..=count).map(|n| format!("{n},some text of row {n}\n")).collect();
    (format!("n,text\n{lines}").into_bytes(), format!("rows,sum\n{count},{}\n", count * (count + 1) / 2))
}

const SUM: &str = "select count(*) as rows, sum(n) as sum from x";
const FETCH: [&str; 4] = ["fetch", "--quiet", "s3://bucket/x.csv", SUM];

fn is_body(request: &Request) -> bool {
    request.method == "GET"
}

#[test]
fn failures_that_pass_do_not_change_the_result() {
    for answer in [
        Answer::Status(500, "InternalError"),
        Answer::Status(503, "SlowDown"),
        Answer::Status(429, "TooManyRequests"),
        Answer::Reset,
        Answer::Short,
        Answer::Stall,
        Answer::Silence,
    ] {
        let (object, expected) = rows();
        // Every third request fails.
        let server = Hostile::start(object, move |request, number| {
            let is_meant = is_body(request) || matches!(answer, Answer::Status(..) | Answer::Silence);
            if is_meant && number % 3 == 1 { answer } else { Answer::Right }
        });
        assert_eq!(server.run(&FETCH).succeeds().text(), expected, "{answer:?}");
    }
}

#[test]
fn failures_that_stay_are_errors_with_the_name_of_the_object() {
    for (answer, code, words) in [
        (Answer::Status(500, "InternalError"), NETWORK, "the server failed (500"),
        (Answer::Status(503, "SlowDown"), NETWORK, "the server failed (503"),
        (Answer::Status(403, "ExpiredToken"), SOURCE, "access denied (403"),
        (Answer::Status(404, "NoSuchBucket"), SOURCE, "there is no such bucket"),
        (Answer::Status(400, "InvalidRequest"), SOURCE, "the request failed (400"),
        (Answer::Status(301, "PermanentRedirect"), SOURCE, "in another region"),
        (Answer::Reset, NETWORK, "the connection failed"),
        (Answer::Short, NETWORK, "the connection failed"),
        (Answer::FewerThanAsked, NETWORK, "fewer bytes than it announced"),
        (Answer::Stall, NETWORK, "did not answer in time"),
        (Answer::Silence, NETWORK, "did not answer in time"),
        (Answer::NoRanges, SOURCE, "does not send parts of files"),
        (Answer::Redirect, SOURCE, "redirect"),
        (Answer::Garbage, NETWORK, "the connection failed"),
    ] {
        let server = Hostile::start(rows().0, move |request, _| {
            let spares_head = matches!(
                answer,
                Answer::Status(403 | 404, _)
                    | Answer::Reset
                    | Answer::Short
                    | Answer::FewerThanAsked
                    | Answer::Stall
                    | Answer::NoRanges
            );
            if spares_head && !is_body(request) { Answer::Right } else { answer }
        });
        let outcome = server.run(&FETCH).fails(code, &["error: s3://bucket/x.csv: ", words]);
        assert!(!outcome.stderr.contains("hush"), "{outcome}");
        assert!(outcome.stdout.is_empty(), "{answer:?}: {outcome}");
    }
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_is_an_error() {
    // The first answer breaks off; when the rest is requested, the object is another one.
    let server = Hostile::start(rows().0, |request, number| match is_body(request) {
        true if number > 3 => Answer::OtherTag,
        true => Answer::Short,
        false => Answer::Right,
    });
    let outcome = server.run(&FETCH);
    assert!(matches!(outcome.code, Some(SOURCE | NETWORK)), "{outcome}");
    assert!(outcome.stderr.contains("s3://bucket/x.csv: "), "{outcome}");
}

#[test]
fn a_node_reports_a_failing_store_to_its_clients() {
    let broken = Arc::new(AtomicUsize::new(0));
    let theirs = broken.clone();
    let (object, expected) = rows();
    let server = Hostile::start(object, move |request, _| match theirs.load(Ordering::Relaxed) {
        1 if is_body(request) => Answer::Status(503, "SlowDown"),
        _ => Answer::Right,
    });
    let node = Node::start_with(&["--table", "x=s3://bucket/x.csv"], |command| {
        without_credentials(command)
            .env("AWS_ENDPOINT_URL", &server.endpoint)
            .env("AWS_ACCESS_KEY_ID", "AKIATESTER")
            .env("AWS_SECRET_ACCESS_KEY", "hush")
            .env("AWS_TIMEOUT", "1s")
    });
    let node = node.unwrap_or_else(|outcome| panic!("{outcome}"));
    assert_eq!(csv(&node.uri, SUM), expected);
    broken.store(1, Ordering::Relaxed);
    let outcome = Process::start(&["fetch", &node.uri, SUM]).end_within(Duration::from_secs(60));
    let outcome = outcome.fails(NETWORK, &["s3://bucket/x.csv: the server failed (503", "hint: "]);
    assert!(!outcome.stderr.contains("hush"), "{outcome}");
    // It recovers with the store.
    broken.store(0, Ordering::Relaxed);
    assert_eq!(csv(&node.uri, SUM), expected);
}

#[test]
fn an_upload_that_fails_is_aborted() {
    let node = Node::start(&[]);
    let sql = "select value, 'some text to fill the parts' as text from generate_series(1, 500000)";
    let is_part = |request: &Request| request.method == "PUT" && request.target.contains("partNumber=2");
    let is_end = |request: &Request| request.method == "POST" && request.target.contains("uploadId");
    type Meant = fn(&Request) -> bool;
    for (meant, answer, code, words) in [
        (is_part as Meant, Answer::Status(500, "InternalError"), NETWORK, "the server failed (500"),
        (is_part, Answer::Status(403, "ExpiredToken"), SOURCE, "access denied (403, ExpiredToken"),
        (is_part, Answer::Silence, NETWORK, "did not answer in time"),
        (is_end, Answer::Status(400, "InvalidPart"), SOURCE, "the request failed (400, InvalidPart"),
    ] {
        let server =
            Hostile::start(Vec::new(), move |request, _| if meant(request) { answer } else { Answer::Right });
        let outcome = server.run(&["fetch", "--quiet", &node.uri, sql, "-o", "s3://bucket/out.csv"]);
        outcome.fails(code, &["error: s3://bucket/out.csv: ", words]);
        assert_eq!(server.requests("DELETE /bucket/out.csv?uploadId=u1"), 1, "{answer:?}");
    }
    // A failure that passes is not seen.
    let server = Hostile::start(Vec::new(), move |request, number| match request.method.as_str() {
        "PUT" if number % 2 == 0 => Answer::Status(503, "SlowDown"),
        _ => Answer::Right,
    });
    server.run(&["fetch", "--quiet", &node.uri, sql, "-o", "s3://bucket/out.csv"]).succeeds();
    assert_eq!(server.requests("POST /bucket/out.csv?uploadId=u1"), 1);
    // A small object is one request.
    let server = Hostile::start(Vec::new(), |request, _| match request.method.as_str() {
        "PUT" if request.body > 0 => Answer::Status(404, "NoSuchBucket"),
        _ => Answer::Right,
    });
    let outcome =
        server.run(&["fetch", "--quiet", &node.uri, "select 1 as one", "-o", "s3://bucket/out.csv"]);
    outcome.fails(SOURCE, &["s3://bucket/out.csv: there is no such bucket"]);
}

#[test]
fn an_upload_to_a_silent_server_can_be_interrupted() {
    let node = Node::start(&[]);
    let server = Hostile::start(Vec::new(), |request, _| match request.method.as_str() {
        "PUT" => Answer::Silence,
        _ => Answer::Right,
    });
    let client =
        Process::start_with(&["fetch", &node.uri, ENDLESS, "-o", "s3://bucket/out.csv"], |command| {
            without_credentials(command)
                .env("AWS_ENDPOINT_URL", &server.endpoint)
                .env("AWS_ACCESS_KEY_ID", "AKIATESTER")
                .env("AWS_SECRET_ACCESS_KEY", "hush")
        });
    until("a part is being sent", || server.requests("PUT") > 0);
    let began = Instant::now();
    client.signal("INT");
    client.end().fails(INTERRUPTED, &["interrupted"]);
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(server.requests("DELETE"), 1);
}

#[test]
fn files_of_a_web_server_are_read() {
    let (object, expected) = rows();
    let server = Hostile::start(object, |request, number| match is_body(request) && number == 1 {
        true => Answer::Short,
        false => Answer::Right,
    });
    let uri = format!("{}/data/x.csv?sig=hush", server.endpoint);
    assert_eq!(csv(&uri, SUM), expected);
    assert!(server.requests("GET /data/x.csv?sig=hush") > 0);
    let parquet = std::fs::read(lineitem()).expect("a file");
    let server = Hostile::start(parquet, |_, _| Answer::Right);
    let sql = "select count(*) as n, sum(l_orderkey) as keys from lineitem";
    assert_eq!(csv(&format!("{}/lineitem.parquet", server.endpoint), sql), csv(lineitem(), sql));
    let gone = Hostile::start(Vec::new(), |_, _| Answer::Status(404, "Gone"));
    let outcome = lightship(&["fetch", &format!("{}/x.csv?sig=hush", gone.endpoint), SUM]);
    let outcome = outcome.fails(SOURCE, &["/x.csv: there is no such object"]);
    assert!(!outcome.stderr.contains("hush"), "{outcome}");
}
