//! A server with modelled data, and requests to it.

use std::net::SocketAddr;

use lightship_monitor::http::{HttpOptions, serve};
use lightship_monitor::monotonic_ns;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::modelled::World;

const SECOND: u64 = 1_000_000_000;
/// What has happened before the server starts: one of each kind of query, and some more.
const BEFORE_NS: u64 = 300 * SECOND;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stop: oneshot::Sender<()>,
    done: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub(crate) async fn start(options: HttpOptions) -> Self {
        let began_ns = monotonic_ns().saturating_sub(BEFORE_NS);
        let mut world = World::new(began_ns);
        world.advance(began_ns + BEFORE_NS);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async move { drop(stopped.await) };
        let done = tokio::spawn(serve(listener, world.recorder.clone(), options, stopped));
        Self { address, stop, done }
    }

    /// Ends the server, which must not fail.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.done.await.unwrap().unwrap();
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request with headers, each `name: value`, and returns the answer.
    pub(crate) async fn request(&self, line: &str, headers: &[&str], body: &str) -> Reply {
        exchange(self.connect().await, line, headers, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.request(&format!("GET {path}"), &["host: localhost"], "").await
    }
}

pub(crate) async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    line: &str,
    headers: &[&str],
    body: &str,
) -> Reply {
    let headers = headers.join("\r\n");
    let length = body.len();
    let text = format!(
        "{line} HTTP/1.1\r\n{headers}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    // The server may answer and close before it has read all.
    let _ = stream.write_all(text.as_bytes()).await;
    Reply::read(stream).await
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Reply {
    /// Reads until the server closes.
    pub(crate) async fn read(mut stream: impl AsyncRead + Unpin) -> Self {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        headers.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.head);
        serde_json::from_str(&self.body).unwrap()
    }
}
