//! A connection to a node, and the transfer of a result.

use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use lightship_transport::net::{Carrier, ClientConfig, Connection, Incoming, Prepared};
use lightship_transport::proto::Totals;
use lightship_tuner::{ConsumedBatch, Segments, StripeController, WindowController};
use lightship_wire::control::{Plan, Query};
use lightship_wire::tuning::Sizes;
use lightship_wire::{Codec, rows_bytes};

use crate::budget::{Budget, Lease};
use crate::plan::STREAMS_MAX;
use crate::report::{CodecReport, NodeStages, PlanReport, Report, Retune, Stages};
use crate::{Endpoint, LinkPrior, Options, TransportError};

/// An open connection to a node.
pub struct Client {
    connection: Connection,
    budget: Budget,
}

impl Client {
    /// Connects; `token` is empty for none.
    ///
    /// # Errors
    /// When the node can't be reached or refuses the token.
    pub async fn connect(endpoint: &Endpoint, token: &str) -> Result<Self, TransportError> {
        let config = ClientConfig { token: token.to_owned(), ..ClientConfig::default() };
        Self::connect_with(endpoint, &config).await
    }

    /// Connects with the given settings.
    ///
    /// # Errors
    /// When the node can't be reached or refuses the token.
    pub async fn connect_with(endpoint: &Endpoint, config: &ClientConfig) -> Result<Self, TransportError> {
        Ok(Self { connection: Connection::connect(endpoint, config).await?, budget: Budget::of_process() })
    }

    /// Uses `budget` instead of the budget of the process.
    #[must_use]
    pub fn within(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// The carrier of the rows.
    pub fn carrier(&self) -> Carrier {
        self.connection.carrier()
    }

    /// Whether the node is on this host.
    pub fn same_host(&self) -> bool {
        self.connection.same_host()
    }

    /// Begins a transfer. An earlier unfinished one is cancelled.
    ///
    /// # Errors
    /// When the node refuses the query or is lost.
    pub async fn fetch(&mut self, sql: &str, options: &Options) -> Result<Transfer<'_>, TransportError> {
        self.begin(sql, None, options).await
    }

    /// As [`Self::fetch`], with the values of the statement's parameters: the columns of `parameters`, in order, which
    /// has one row.
    ///
    /// # Errors
    /// As [`Self::fetch`]; [`TransportError::TooOld`] if the node does not take parameters.
    pub async fn execute(
        &mut self,
        sql: &str,
        parameters: &RecordBatch,
        options: &Options,
    ) -> Result<Transfer<'_>, TransportError> {
        self.begin(sql, Some(parameters), options).await
    }

    /// The columns and parameters of a statement, which is not executed. An unfinished transfer is cancelled.
    ///
    /// # Errors
    /// As [`Self::fetch`]; [`TransportError::TooOld`] if the node describes no statements.
    pub async fn describe(&mut self, sql: &str) -> Result<Prepared, TransportError> {
        self.connection.describe(sql).await
    }

    async fn begin(
        &mut self,
        sql: &str,
        parameters: Option<&RecordBatch>,
        options: &Options,
    ) -> Result<Transfer<'_>, TransportError> {
        let lease = self.budget.lease(options.on_the_way_bytes());
        // The round trip of this connection's hellos is more recent than any recorded one.
        let known = LinkPrior { rtt_seconds: Some(self.connection.rtt().as_secs_f64()), ..options.known };
        let mut options = Options { known, ..*options };
        let follows = self.carrier() == Carrier::Tcp && self.connection.can_resize();
        if !follows {
            // The sizes can't be corrected later, so start with the defaults.
            options.known.bytes_per_second = None;
        }
        let plan = self.connection.settle(options.plan(self.same_host(), lease.bytes));
        let flight = if follows { options.flight(&plan, lease.bytes) } else { None };
        // Request room for connections that may be tried during the transfer.
        let tries = flight.is_some() && options.streams.is_none() && !self.same_host();
        let most = if tries { Plan { streams: STREAMS_MAX, ..plan } } else { plan };
        let query = Query { sql: sql.to_owned(), plan: self.connection.settle(most) };
        let streams = StripeController::new(
            if tries { query.plan.streams } else { 1 },
            self.connection.rtt().as_secs_f64(),
        );
        let began = Instant::now();
        let joining = if tries { 0 } else { plan.streams };
        let (schema, rows_estimate) = match parameters {
            None => self.connection.query(&query, joining).await?,
            Some(row) => self.connection.execute(&query, row.clone(), joining).await?,
        };
        let totals = Box::default();
        Ok(Transfer {
            connection: &mut self.connection,
            schema,
            rows_estimate,
            plan,
            began,
            rows: 0,
            bytes_arrow: 0,
            receive: began.elapsed(),
            ended: None,
            totals,
            known,
            predicted_seconds: None,
            volume_bytes: None,
            flight,
            asked: false,
            streams: streams.ok(),
            messages: 0,
            joined: 1,
            widened: Vec::new(),
            lease: Some(lease),
        })
    }
}

/// The transfer of a result. Dropping it before its end cancels it.
pub struct Transfer<'a> {
    connection: &'a mut Connection,
    schema: SchemaRef,
    rows_estimate: Option<u64>,
    plan: Plan,
    began: Instant,
    rows: u64,
    bytes_arrow: u64,
    receive: Duration,
    ended: Option<Instant>,
    totals: Box<Totals>,
    known: LinkPrior,
    predicted_seconds: Option<f64>,
    /// Expected bytes of rows in total.
    volume_bytes: Option<u64>,
    /// Adapts the sizes, if they are `auto` and the node can change them.
    flight: Option<WindowController>,
    /// Other sizes were requested, and the answer is pending.
    asked: bool,
    /// Decides whether more connections are tried.
    streams: Option<StripeController>,
    /// Messages received.
    messages: u64,
    /// Connections that may carry the rows, if more are tried.
    joined: u32,
    widened: Vec<Retune>,
    /// Returned to the budget at the end.
    lease: Option<Lease>,
}

impl Transfer<'_> {
    /// The columns of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The number of rows that the node expects, if it has an estimate.
    pub fn rows_estimate(&self) -> Option<u64> {
        self.rows_estimate
    }

    /// The next rows; `None` once all have arrived, and their number has been checked against
    /// the node's count.
    ///
    /// # Errors
    /// If the query fails or the node is lost. A result is never silently short.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>, TransportError> {
        if self.ended.is_some() {
            return Ok(None);
        }
        let waiting = Instant::now();
        let incoming = self.connection.next().await;
        if incoming.is_err() {
            self.end();
        }
        let incoming = incoming?;
        let waited = waiting.elapsed();
        self.receive += waited;
        match incoming {
            Incoming::Rows(batch) => {
                let bytes = rows_bytes(&batch);
                if self.rows == 0 && batch.num_rows() > 0 {
                    self.predict(bytes as f64 / batch.num_rows() as f64);
                }
                self.rows += batch.num_rows() as u64;
                self.bytes_arrow += bytes;
                self.messages += 1;
                self.follow(bytes, waited);
                self.widen(bytes, waited);
                Ok(Some(batch))
            }
            Incoming::Finished(totals) => {
                self.end();
                self.totals = totals;
                Ok(None)
            }
        }
    }

    /// Predicts the time of the transfer, once the first rows show the size of a row.
    fn predict(&mut self, row_bytes: f64) {
        let expected = self.rows_estimate.map(|rows| (rows as f64 * row_bytes) as u64);
        let Some(volume_bytes) = self.known.volume_bytes.or(expected) else { return };
        let sizes = lightship_tuner::Sizes {
            message_bytes: self.plan.message_bytes.into(),
            window_batches: self.plan.window_batches.into(),
        };
        self.volume_bytes = Some(volume_bytes);
        self.predicted_seconds = self.known.predict(volume_bytes, sizes);
    }

    /// Requests other sizes if the measurements call for them.
    fn follow(&mut self, bytes: u64, waited: Duration) {
        let Some(flight) = &mut self.flight else { return };
        if self.asked {
            let Some(granted) = self.connection.sizes() else { return };
            flight.follow(lightship_tuner::Sizes {
                message_bytes: granted.message_bytes.into(),
                window_batches: granted.window_batches.into(),
            });
            self.asked = false;
            if let Some(streams) = &mut self.streams {
                streams.resized();
            }
        }
        let arrived = flight.arrived(self.began.elapsed().as_secs_f64(), bytes, waited.as_secs_f64());
        let Some(wanted) = arrived else { return };
        let capped = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        let message_bytes = capped(wanted.message_bytes);
        let window_batches = capped(wanted.window_batches);
        self.asked =
            self.connection.resize(Sizes { batch_bytes: message_bytes, message_bytes, window_batches });
    }

    /// Adds connections if a trial calls for them.
    fn widen(&mut self, bytes: u64, waited: Duration) {
        let Some(streams) = &mut self.streams else { return };
        let taken = ConsumedBatch {
            at_seconds: self.began.elapsed().as_secs_f64(),
            bytes,
            waited_seconds: waited.as_secs_f64(),
            left_bytes: self.volume_bytes.map(|volume| volume.saturating_sub(self.bytes_arrow)),
        };
        let connection = &mut self.connection;
        let seen = || {
            let seen = connection.segments()?;
            Some(Segments { received: seen.received.into(), out_of_order: seen.out_of_order.into() })
        };
        if let Some(wanted) = streams.taken(&taken, seen) {
            let message = self.messages;
            self.widened.push(Retune::Streams { message, from_streams: self.joined, streams: wanted });
            self.joined = wanted;
            self.connection.widen(wanted);
        }
    }

    fn end(&mut self) {
        self.ended = Some(Instant::now());
        self.lease = None;
    }

    /// Mean uncompressed bytes per row, from the next rows; `None` if there are no more rows.
    ///
    /// # Errors
    /// As [`Transfer::next`].
    pub async fn row_bytes(&mut self) -> Result<Option<f64>, TransportError> {
        while let Some(batch) = self.next().await? {
            if batch.num_rows() > 0 {
                let bytes = lightship_wire::message_bytes(&batch, 0, batch.num_rows());
                return Ok(Some((bytes as f64 / batch.num_rows() as f64).max(1.0)));
            }
        }
        Ok(None)
    }

    /// What has happened so far.
    pub fn report(&self) -> Report {
        let elapsed = self.ended.unwrap_or_else(Instant::now) - self.began;
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        let Totals { producer, resizes, retunes, .. } = &*self.totals;
        let decode_ns = self.connection.progress().decoded.iter().map(|work| work.ns).sum();
        let codecs = Codec::ALL.into_iter().zip(self.totals.codecs).filter(|(_, totals)| totals.messages > 0);
        let mut changes: Vec<Retune> = resizes.iter().map(Retune::from).collect();
        changes.extend(retunes.iter().map(Retune::from));
        changes.extend_from_slice(&self.widened);
        changes.sort_by_key(Retune::message);
        let later = resizes.iter().map(|resized| resized.to);
        Report {
            rows: self.rows,
            bytes_arrow: self.bytes_arrow,
            bytes_wire: self.totals.bytes_wire,
            messages: self.totals.messages,
            messages_joined: self.totals.messages_joined,
            seconds: elapsed.as_secs_f64(),
            plan: PlanReport::new(&self.plan, later, self.predicted_seconds),
            carrier: self.connection.carrier(),
            stages: Stages {
                node: Some(NodeStages {
                    produce: seconds(producer.produce_ns),
                    encode: seconds(producer.encode_ns),
                    send: seconds(producer.send_ns),
                    wait: seconds(producer.wait_ns),
                    decode: seconds(decode_ns),
                }),
                receive: self.receive.as_secs_f64(),
                consume: elapsed.saturating_sub(self.receive).as_secs_f64(),
            },
            codecs: codecs
                .map(|(codec, totals)| CodecReport {
                    codec,
                    messages: totals.messages,
                    bytes_body: totals.bytes_body,
                    bytes_wire: totals.bytes_wire,
                })
                .collect(),
            retunes: changes,
        }
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.connection.cancel();
        }
    }
}
