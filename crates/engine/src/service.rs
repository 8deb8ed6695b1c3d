//! The engine as the service behind a server.

use std::pin::Pin;

use arrow_array::RecordBatch;
use lightship_transport::net::{Answer, Caller, Intake, Prepared, Service};
use lightship_wire::cluster::{Recipient, Task};
use lightship_wire::control::{ErrorCode, Failure, Query};

use crate::Engine;
use crate::query::Running;

impl Service for Engine {
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            let running = Engine::query(self, &query.sql).await;
            running.map(answer).map_err(|error| error.to_failure())
        })
    }

    fn prepare<'a>(
        &'a self,
        sql: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Prepared, Failure>> + Send + 'a>> {
        Box::pin(async move { Engine::prepare(self, sql).await.map_err(|error| error.to_failure()) })
    }

    fn execute<'a>(
        &'a self,
        sql: &'a str,
        parameters: &'a RecordBatch,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            let running = Engine::execute(self, sql, Some(parameters)).await;
            running.map(answer).map_err(|error| error.to_failure())
        })
    }

    fn task<'a>(
        &'a self,
        task: &'a Task,
        caller: &'a Caller,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            match (task.recipient, &self.cluster, &self.range_files) {
                (Recipient::RangeFiles, _, Some(files)) => files.answer(&task.body, caller).await,
                (Recipient::RangeFiles, _, None) => {
                    Err(Failure::new(ErrorCode::Forbidden, "this node has no range files"))
                }
                (Recipient::Engine, Some(cluster), _) if caller.is_peer => cluster.answer(task).await,
                (Recipient::Engine, ..) => {
                    Err(Failure::new(ErrorCode::Forbidden, "this node is not in a cluster"))
                }
            }
        })
    }

    fn has_range_files(&self) -> bool {
        self.range_files.is_some()
    }

    fn beside<'a>(&'a self, intake: Intake) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if let Some(files) = &self.range_files {
                files.set_intake(intake.clone());
            }
            if let Some(cluster) = &self.cluster {
                cluster.follow_overlays(intake).await;
            }
        })
    }
}

fn answer(running: Running) -> Answer {
    let (schema, rows_estimate, delivery) =
        (running.schema().clone(), running.rows_estimate(), running.delivery());
    Answer { delivery, ..Answer::new(schema, rows_estimate, running.into_rows()) }
}
