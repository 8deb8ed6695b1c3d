//! Collects the samples of agents, records queries, and serves both over HTTP.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lightship_engine::{QueryObserver, QueryOutcome, QueryTimes};
#[cfg(feature = "otlp")]
use lightship_monitor::SpanReceiver;
use lightship_monitor::http::HttpOptions;
use lightship_monitor::{
    Collector, CollectorEvent, CollectorOptions, HistoryOptions, HistoryWriter, QueryEnd, QueryLog, Recorder,
    RecorderOptions, bind_collector, http, monotonic_ns, run_collector, run_recorder,
};
use lightship_usage::Known;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;

use crate::error::{Error, ErrorKind, Result};

/// Settings of a [`UsageCollector`].
#[derive(Debug, Clone)]
pub struct CollectOptions {
    /// Where agents send their samples, by UDP.
    pub listen: SocketAddr,
    /// The token that agents must have. Empty: all that reach the address may send.
    pub token: String,
    /// The name of the host that coordinates the recorded queries, as its agent calls it; `None` if no queries are
    /// recorded.
    pub own_host: Option<String>,
    /// Where the page is served, and how; `None` for no page.
    pub http: Option<(SocketAddr, HttpOptions)>,
    /// The folder in which samples and assessed queries are kept; `None` to keep them in memory only.
    pub history: Option<PathBuf>,
}

/// Collects samples of agents, and records the queries that it is told of.
pub struct UsageCollector {
    socket: UdpSocket,
    collector: Mutex<Collector>,
    recorder: Arc<Recorder>,
    http: Option<(TcpListener, HttpOptions)>,
    history: Option<(HistoryWriter, QueryLog)>,
    #[cfg(feature = "otlp")]
    spans: Option<(SpanReceiver, String)>,
}

impl UsageCollector {
    /// Takes the addresses and the folder.
    ///
    /// # Errors
    /// If an address is taken, or the folder can't be used.
    pub async fn bind(options: CollectOptions) -> Result<Self> {
        let CollectOptions { listen, token, own_host, http, history } = options;
        let failed = |what: String| {
            move |error: io::Error| Error::new(ErrorKind::Network, format!("can't {what}: {error}"))
        };
        let socket =
            bind_collector(listen).await.map_err(failed(format!("receive samples on UDP {listen}")))?;
        let http = match http {
            Some((address, options)) => {
                let listener = TcpListener::bind(address).await;
                Some((listener.map_err(failed(format!("serve the page on {address}")))?, options))
            }
            None => None,
        };
        let recorder = Arc::new(Recorder::new(RecorderOptions::new(own_host)));
        let history = match history {
            Some(folder) => Some(open_history(folder, recorder.clone()).await?),
            None => None,
        };
        let mut secret = [0; 32];
        let random = rustls::crypto::ring::default_provider().secure_random.fill(&mut secret);
        random.map_err(|_| Error::new(ErrorKind::Internal, "the system provides no random bytes"))?;
        Ok(Self {
            socket,
            collector: Mutex::new(Collector::new(CollectorOptions::default(), &token, secret)),
            recorder,
            http,
            history,
            #[cfg(feature = "otlp")]
            spans: None,
        })
    }

    /// Also sends spans of queries to an OpenTelemetry receiver. `host` is the name of this host in them.
    #[cfg(feature = "otlp")]
    #[must_use]
    pub fn with_spans(mut self, receiver: SpanReceiver, host: String) -> Self {
        self.spans = Some((receiver, host));
        self
    }

    /// Where agents send their samples, by UDP.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn address(&self) -> Result<SocketAddr> {
        self.socket.local_addr().map_err(unknown_address)
    }

    /// Where the page is served; `None` without a page.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn http_address(&self) -> Result<Option<SocketAddr>> {
        self.http.as_ref().map(|(listener, _)| listener.local_addr().map_err(unknown_address)).transpose()
    }

    /// What is known of hosts and queries.
    pub fn recorder(&self) -> Arc<Recorder> {
        self.recorder.clone()
    }

    /// Is told of the queries of an engine, and records them.
    pub fn observer(&self) -> Arc<dyn QueryObserver> {
        Arc::new(Observer(self.recorder.clone()))
    }

    /// Collects and serves until `stop` is true, and then completes the history. `on_event` must not block.
    ///
    /// # Errors
    /// If a socket fails, or the end of the history can't be written.
    pub async fn run(
        self,
        mut stop: watch::Receiver<bool>,
        mut on_event: impl FnMut(&CollectorEvent),
    ) -> Result<()> {
        #[cfg(feature = "otlp")]
        let spans = self.spans.clone();
        let Self { socket, collector, recorder, http, history, .. } = self;
        let (history, queries) = history.unzip();
        let collect = run_collector(&socket, &collector, |event| {
            if let (CollectorEvent::Sample(sample), Some(history)) = (&event, &history) {
                history.add(sample);
            }
            on_event(&event);
            recorder.observe(event, monotonic_ns());
        });
        let mut stopped = stop.clone();
        let serve = async {
            let Some((listener, options)) = http else { return Ok(()) };
            let stopping = async {
                // A closed channel also means to stop.
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            http::serve(listener, recorder.clone(), options, stopping).await
        };
        let broken =
            |error: io::Error| Error::new(ErrorKind::Network, format!("can't collect samples: {error}"));
        let export = async {
            #[cfg(feature = "otlp")]
            if let Some((receiver, host)) = spans {
                return lightship_monitor::send_spans(&recorder, &receiver, &host).await;
            }
            std::future::pending::<io::Result<Infallible>>().await
        };
        let ended = tokio::select! {
            ended = export => ended.map(|_| ()).map_err(broken),
            ended = collect => ended.map(|_| ()).map_err(broken),
            ended = run_recorder(&recorder, &collector, history.as_ref(), queries) => ended.map(|_| ()).map_err(broken),
            ended = async {
                serve.await?;
                // The page has ended, or there is none.
                let _ = stop.wait_for(|stop| *stop).await;
                Ok::<_, io::Error>(())
            } => ended.map_err(broken),
        };
        if let Some(history) = history {
            let closed = tokio::task::spawn_blocking(move || history.close()).await;
            let closed = closed.unwrap_or_else(|error| Err(io::Error::other(error)));
            closed.map_err(|error| {
                Error::new(ErrorKind::Source, format!("can't write the end of the history: {error}"))
            })?;
        }
        ended
    }
}

/// Opens the samples and queries in a folder, and gives the queries to the recorder.
async fn open_history(folder: PathBuf, recorder: Arc<Recorder>) -> Result<(HistoryWriter, QueryLog)> {
    let shown = folder.display().to_string();
    let open = move || -> io::Result<_> {
        // It locks the folder.
        let samples = HistoryWriter::open(HistoryOptions::new(&folder))?;
        let queries = QueryLog::open(&folder)?;
        recorder.restore(queries.read(RecorderOptions::QUERIES_MAX)?);
        Ok((samples, queries))
    };
    let opened = tokio::task::spawn_blocking(open).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    opened.map_err(|error| {
        Error::new(ErrorKind::Usage, format!("can't keep samples and queries in {shown}: {error}"))
    })
}

fn unknown_address(error: io::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("the address of a socket is not known: {error}"))
}

struct Observer(Arc<Recorder>);

impl QueryObserver for Observer {
    fn began(&self, query: &str, sql: &str, age: Duration) {
        self.0.query_began(query, sql, monotonic_ns().saturating_sub(nanoseconds(age)));
    }

    fn ended(&self, query: &str, outcome: QueryOutcome, times: &QueryTimes) {
        let error = match outcome {
            QueryOutcome::Finished => None,
            QueryOutcome::Failed(message) => Some(message),
            QueryOutcome::Cancelled => Some("cancelled by the client".to_owned()),
        };
        let QueryTimes { planned, queued, client_waits, sent_bytes } = times;
        let queued_ns = queued.iter().map(|(from, to)| (nanoseconds(*from), nanoseconds(*to))).collect();
        let known = Known {
            queued_ns,
            planned_ns: Some(nanoseconds(*planned)),
            // Each wait is for an answer of the client to what was sent before.
            round_trips: Some(*client_waits).filter(|&waits| waits > 0),
            result_bytes: Some(*sent_bytes).filter(|&bytes| bytes > 0),
            ..Known::default()
        };
        self.0.query_ended(query, monotonic_ns(), QueryEnd { error, known });
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
