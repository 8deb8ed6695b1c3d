//! Runs a writer on its own thread.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use super::Writer;
use super::lines::{self, Encoders, Part};
use super::output::{Failures, Output};
use crate::objects::Cancel;
use crate::{Destination, Result, SourceError, Written};

/// Batches that wait while one is encoded.
const QUEUE_BATCHES: usize = 1;

enum Order {
    Write(RecordBatch),
    Lines(Receiver<Part>),
    Finish,
}

/// Sends batches, or lines that other threads encode from them, to a writer on a thread. The next write, or the
/// end, returns its error.
pub(super) struct Background {
    orders: Option<mpsc::Sender<Order>>,
    encoders: Option<Encoders>,
    done: oneshot::Receiver<Result<Written>>,
    thread: Option<JoinHandle<()>>,
    schema: SchemaRef,
    failures: Failures,
    /// Whether dropping it waits for the thread. Only if the thread can't block for
    /// long: on a file's disk, but not on a pipe's reader.
    joins: bool,
    /// Ends an upload that waits for the server.
    cancel: Option<Cancel>,
    /// Whether it was dropped: batches that still wait are not written.
    is_dropped: Arc<AtomicBool>,
}

impl Background {
    pub(super) fn start(
        writer: Writer,
        schema: SchemaRef,
        failures: Failures,
        joins: bool,
        cancel: Option<Cancel>,
    ) -> Result<Self> {
        let (encoders, waiting) = match &writer {
            Writer::Batches(_) => (None, QUEUE_BATCHES),
            Writer::Lines(format, _) => (Some(Encoders::new(format.clone())), *lines::BATCHES - 1),
        };
        let (orders, queue) = mpsc::channel(waiting.max(1));
        let (report, done) = oneshot::channel();
        let explain = failures.clone();
        let is_dropped = Arc::<AtomicBool>::default();
        let theirs = is_dropped.clone();
        let work = move || {
            if let Some(result) = run(writer, queue, &theirs).transpose() {
                // Nobody listens when the destination was dropped.
                let _ = report.send(result.map_err(|error| explain.explain(error)));
            }
        };
        let thread = std::thread::Builder::new().name("lightship-write".into()).spawn(work);
        let thread = Some(thread.map_err(|error| failures.error(error))?);
        Ok(Self { orders: Some(orders), encoders, done, thread, schema, failures, joins, cancel, is_dropped })
    }

    async fn send(&mut self, order: Order) -> Result<()> {
        let Some(orders) = &self.orders else { return Err(self.stopped()) };
        if orders.send(order).await.is_ok() {
            return Ok(());
        }
        self.orders = None;
        match (&mut self.done).await {
            Ok(Err(error)) => Err(error),
            _ => Err(self.stopped()),
        }
    }

    fn stopped(&self) -> SourceError {
        self.failures.error(io::Error::other("writing has stopped after an error"))
    }

    fn check(&self, batch: &RecordBatch) -> Result<()> {
        let schema = batch.schema_ref();
        let same = Arc::ptr_eq(schema, &self.schema)
            || schema.fields().len() == self.schema.fields().len()
                && schema
                    .fields()
                    .iter()
                    .zip(self.schema.fields())
                    .all(|(a, b)| a.data_type() == b.data_type());
        if same {
            return Ok(());
        }
        Err(ArrowError::SchemaError("the columns of a batch differ from the schema".into()).into())
    }
}

/// Works until [`Order::Finish`]; returns `None` if the orders end without it, or nobody wants the rest.
fn run(
    mut writer: Writer,
    mut orders: mpsc::Receiver<Order>,
    is_dropped: &AtomicBool,
) -> Result<Option<Written>> {
    let mut rows = 0;
    if let Writer::Lines(format, output) = &mut writer
        && !output.continues()
    {
        put(output, &format.header())?;
    }
    while let Some(order) = orders.blocking_recv() {
        if is_dropped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (taken, result) = match (order, &mut writer) {
            (Order::Finish, _) => {
                let bytes = writer.finish()?.commit()?;
                return Ok(Some(Written { rows, bytes }));
            }
            (Order::Write(batch), Writer::Batches(writer)) => (batch.num_rows() as u64, writer.write(&batch)),
            (Order::Lines(parts), Writer::Lines(_, output)) => loop {
                match parts.recv() {
                    Ok(Part::Bytes(lines)) => put(output, &lines)?,
                    Ok(Part::End { rows, result }) => break (rows, result),
                    // Its thread has panicked, and reported that: the result is not complete.
                    Err(_) => return Ok(None),
                }
            },
            (Order::Write(_), Writer::Lines(..)) | (Order::Lines(_), Writer::Batches(_)) => return Ok(None),
        };
        result.map_err(|error| error.after_rows(rows))?;
        rows += taken;
        if orders.is_empty() {
            writer.output().flush_to_reader()?;
        }
    }
    Ok(None)
}

fn put(output: &mut Output, bytes: &[u8]) -> Result<()> {
    output.write_all(bytes).map_err(|source| output.failures().error(source))
}

impl Writer {
    fn output(&mut self) -> &mut Output {
        match self {
            Self::Batches(writer) => writer.output(),
            Self::Lines(_, output) => output,
        }
    }

    fn finish(self) -> Result<Output> {
        match self {
            Self::Batches(writer) => writer.finish(),
            Self::Lines(_, output) => Ok(*output),
        }
    }
}

#[async_trait]
impl Destination for Background {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.check(&batch)?;
        let order = match &mut self.encoders {
            None => Order::Write(batch),
            Some(encoders) => {
                Order::Lines(encoders.start(batch).map_err(|error| self.failures.error(error))?)
            }
        };
        self.send(order).await
    }

    async fn finish(mut self: Box<Self>) -> Result<Written> {
        self.send(Order::Finish).await?;
        match (&mut self.done).await {
            Ok(result) => result,
            Err(_) => Err(self.stopped()),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
        self.orders = None;
        if let Some(thread) = self.thread.take().filter(|_| self.joins) {
            // A panic there has been reported as a writer that stopped.
            let _ = thread.join();
        }
    }
}
