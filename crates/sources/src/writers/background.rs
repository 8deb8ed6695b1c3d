//! A writer on a thread of its own.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, SchemaRef};
use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use super::BatchWriter;
use super::output::Failures;
use crate::{Destination, Result, SourceError, Written};

/// Batches that wait while one is encoded.
const QUEUE_BATCHES: usize = 1;

enum Order {
    Write(RecordBatch),
    Finish,
}

/// Hands batches to a [`BatchWriter`] on a thread. An error comes back at the
/// next write, or at the end.
pub(super) struct Background {
    orders: Option<mpsc::Sender<Order>>,
    done: oneshot::Receiver<Result<Written>>,
    thread: Option<JoinHandle<()>>,
    schema: SchemaRef,
    failures: Failures,
    /// Whether dropping it waits for the thread. Only where the thread can't be
    /// waiting for somebody: a file's disk, not a pipe's reader.
    joins: bool,
}

impl Background {
    pub(super) fn start(
        writer: Box<dyn BatchWriter>,
        schema: SchemaRef,
        failures: Failures,
        joins: bool,
    ) -> Result<Self> {
        let (orders, queue) = mpsc::channel(QUEUE_BATCHES);
        let (report, done) = oneshot::channel();
        let explain = failures.clone();
        let work = move || {
            if let Some(result) = run(writer, queue).transpose() {
                // Nobody listens when the destination was dropped.
                let _ = report.send(result.map_err(|error| explain.explain(error)));
            }
        };
        let thread = std::thread::Builder::new().name("lightship-write".into()).spawn(work);
        let thread = Some(thread.map_err(|error| failures.error(error))?);
        Ok(Self { orders: Some(orders), done, thread, schema, failures, joins })
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
        Err(ArrowError::SchemaError("a batch has other columns than were announced".into()).into())
    }
}

/// Works until the end, or until the orders end without one (`None`).
fn run(mut writer: Box<dyn BatchWriter>, mut orders: mpsc::Receiver<Order>) -> Result<Option<Written>> {
    let mut rows = 0;
    while let Some(order) = orders.blocking_recv() {
        match order {
            Order::Write(batch) => {
                writer.write(&batch).map_err(|error| error.after_rows(rows))?;
                rows += batch.num_rows() as u64;
                if orders.is_empty() {
                    writer.output().flush_to_reader()?;
                }
            }
            Order::Finish => {
                let bytes = writer.finish()?.commit()?;
                return Ok(Some(Written { rows, bytes }));
            }
        }
    }
    Ok(None)
}

#[async_trait]
impl Destination for Background {
    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        self.check(&batch)?;
        self.send(Order::Write(batch)).await
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
        self.orders = None;
        if let Some(thread) = self.thread.take().filter(|_| self.joins) {
            // A panic there has been reported as a writer that stopped.
            let _ = thread.join();
        }
    }
}
