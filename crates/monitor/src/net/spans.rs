//! Sends the spans of assessed queries to an OpenTelemetry receiver, by OTLP over HTTP, as JSON.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, Uri, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::recorder::{Recorder, spans};

/// The time between two looks for queries.
const INTERVAL: Duration = Duration::from_secs(2);
/// The longest wait after errors, which follow each other.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long the receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of an answer, which is not looked at.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The path of spans, unless the endpoint has one.
const PATH: &str = "/v1/traces";
/// The port of OTLP over HTTP.
const PORT: u16 = 4318;

/// Where spans are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanReceiver {
    host: String,
    port: u16,
    path: String,
}

impl std::str::FromStr for SpanReceiver {
    type Err = String;

    /// A URL such as `http://localhost:4318`. Spans are sent to its path, or to `/v1/traces` if it has none.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text}: expected a URL such as http://localhost:{PORT}");
        let url: Uri = text.parse().map_err(|_| expected())?;
        let host = url.host().filter(|_| url.scheme_str() == Some("http")).ok_or_else(expected)?;
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "/" { PATH } else { path };
        let port = url.port_u16().unwrap_or(PORT);
        Ok(Self { host: host.to_owned(), port, path: path.to_owned() })
    }
}

/// Why spans were not accepted.
enum Failure {
    /// They may be later.
    Temporary(String),
    /// They will not be.
    Final(String),
}

/// Sends the spans of the queries that a recorder assesses, until it is dropped. If the receiver does not answer, they are
/// sent later, as long as the recorder keeps the queries. `host` is the name of this host in the spans.
///
/// # Errors
/// If the thread that makes the spans fails.
pub async fn send_spans(
    recorder: &Arc<Recorder>,
    receiver: &SpanReceiver,
    host: &str,
) -> io::Result<Infallible> {
    send_spans_each(recorder, receiver, host, INTERVAL).await
}

async fn send_spans_each(
    recorder: &Arc<Recorder>,
    receiver: &SpanReceiver,
    host: &str,
    interval: Duration,
) -> io::Result<Infallible> {
    let (mut sent, mut wait) = (0, interval);
    loop {
        tokio::time::sleep(wait).await;
        let (recorder, name) = (recorder.clone(), host.to_owned());
        let read = move || {
            let (queries, last) = recorder.assessed_after(sent);
            let body = if queries.is_empty() { None } else { Some(spans(&queries, &name).to_string()) };
            (body, last)
        };
        let (body, last) = tokio::task::spawn_blocking(read).await?;
        let Some(body) = body else { continue };
        let late = |_| Err(Failure::Temporary("it takes too long".to_owned()));
        match tokio::time::timeout(TIMEOUT, send(receiver, body)).await.unwrap_or_else(late) {
            Ok(()) => (sent, wait) = (last, interval),
            Err(Failure::Temporary(error)) => {
                tracing::debug!(receiver = receiver.host, error, "spans are sent later");
                wait = (wait * 2).min(RETRY_MAX);
            }
            Err(Failure::Final(error)) => {
                tracing::warn!(receiver = receiver.host, error, "spans were refused");
                (sent, wait) = (last, interval);
            }
        }
    }
}

async fn send(receiver: &SpanReceiver, body: String) -> Result<(), Failure> {
    let SpanReceiver { host, port, path } = receiver;
    let temporary = |error: &dyn std::fmt::Display| Failure::Temporary(error.to_string());
    let name = host.trim_matches(['[', ']']);
    let stream = TcpStream::connect((name, *port)).await.map_err(|error| temporary(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| temporary(&error))?;
    let request = Request::post(path.as_str())
        .header(header::HOST, format!("{host}:{port}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .map_err(|error| Failure::Final(error.to_string()))?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(|error| temporary(&error))?;
        let status = answer.status();
        // Read to its end, so that the receiver sees that it was taken.
        let _ = axum::body::to_bytes(Body::new(answer.into_body()), ANSWER_BYTES_MAX).await;
        Ok(status)
    };
    tokio::pin!(answer);
    // The connection does the work of the answer, and may end before it is taken.
    let status = tokio::select! {
        answer = &mut answer => answer?,
        ended = connection => match ended {
            Ok(()) => answer.await?,
            Err(error) => return Err(temporary(&error)),
        },
    };
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(temporary(&status)),
        status if status.is_server_error() => Err(temporary(&status)),
        status => Err(Failure::Final(status.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::{Json, State};
    use axum::routing::post;
    use hyper_util::service::TowerToHyperService;
    use serde_json::Value;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;
    use crate::recorder::{QueryEnd, RecorderOptions};

    type Received = (StatusCode, Value);
    /// Where requests go, and the status of the first one.
    type Requests = (UnboundedSender<Received>, Arc<std::sync::Mutex<Option<StatusCode>>>);

    /// Refuses the first request with a status, and takes the others.
    async fn receive(State((sender, first)): State<Requests>, Json(spans): Json<Value>) -> StatusCode {
        let status = first.lock().unwrap().take().unwrap_or(StatusCode::OK);
        sender.send((status, spans)).unwrap();
        status
    }

    fn ran(recorder: &Recorder, id: &str, error: Option<&str>) {
        recorder.query_began(id, "select 1", 1_000);
        let end = QueryEnd { error: error.map(str::to_owned), ..QueryEnd::default() };
        recorder.query_ended(id, 5_000_001_000, end);
        recorder.tick(6_000_000_000);
    }

    #[tokio::test]
    async fn spans_reach_a_receiver_that_was_busy_at_first() {
        for (first, sent) in [(StatusCode::SERVICE_UNAVAILABLE, 2), (StatusCode::BAD_REQUEST, 1)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let receiver: SpanReceiver =
                format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            let (sender, mut received) = unbounded_channel();
            let state: Requests = (sender, Arc::new(std::sync::Mutex::new(Some(first))));
            let router = Router::new().route("/v1/traces", post(receive)).with_state(state);
            let options =
                RecorderOptions { unix_offset_ns: 7, wait_ns: 500_000_000, ..RecorderOptions::new(None) };
            let recorder = Arc::new(Recorder::new(options));
            ran(&recorder, "7f9a1c5e-0000-4000-8000-00000000000a", Some("no table"));
            let look = async {
                for _ in 0..sent {
                    let (status, spans) = received.recv().await.unwrap();
                    let resource = &spans["resourceSpans"][0];
                    assert_eq!(resource["resource"]["attributes"][1]["value"]["stringValue"], "node1");
                    let span = &resource["scopeSpans"][0]["spans"][0];
                    assert_eq!(span["traceId"], "7f9a1c5e00004000800000000000000a", "{status}");
                    assert_eq!(span["spanId"].as_str().unwrap().len(), 16);
                    assert_eq!(span["name"], "select 1");
                    assert_eq!(span["startTimeUnixNano"], "1007");
                    assert_eq!(span["endTimeUnixNano"], "5000001007");
                    assert_eq!(
                        (&span["status"]["code"], &span["status"]["message"]),
                        (&2.into(), &"no table".into())
                    );
                    let phase = &resource["scopeSpans"][0]["spans"][1];
                    assert_eq!(
                        (&phase["parentSpanId"], &phase["name"]),
                        (&span["spanId"], &"unexplained".into())
                    );
                    assert_eq!(phase["endTimeUnixNano"], "5000001007");
                }
                ran(&recorder, "q", None);
                let (_, spans) = received.recv().await.unwrap();
                let spans = &spans["resourceSpans"][0]["scopeSpans"][0]["spans"];
                assert_eq!(spans[0]["status"]["code"], 1);
                assert_eq!(spans.as_array().unwrap().len(), 2, "each query is sent once");
            };
            let serve = async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let service = TowerToHyperService::new(router.clone());
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                }
            };
            tokio::select! {
                () = serve => {}
                ended = send_spans_each(&recorder, &receiver, "node1", Duration::from_millis(10)) => panic!("{ended:?}"),
                () = look => {}
            }
        }
    }

    #[test]
    fn receivers_have_http_urls() {
        let parsed = |text: &str| text.parse::<SpanReceiver>();
        let receiver =
            |host: &str, port, path: &str| SpanReceiver { host: host.into(), port, path: path.into() };
        assert_eq!(parsed("http://localhost"), Ok(receiver("localhost", 4318, "/v1/traces")));
        assert_eq!(parsed("http://[::1]:80/x/traces"), Ok(receiver("[::1]", 80, "/x/traces")));
        for wrong in ["localhost:4318", "https://localhost", "/v1/traces", ""] {
            assert!(parsed(wrong).unwrap_err().contains("http://localhost:4318"), "{wrong}");
        }
    }
}
