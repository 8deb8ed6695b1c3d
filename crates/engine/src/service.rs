//! The engine as the service behind a server.

use std::pin::Pin;

use lightship_transport::net::{Answer, Intake, Service};
use lightship_wire::cluster::Task;
use lightship_wire::control::{ErrorCode, Failure, Query};

use crate::Engine;

impl Service for Engine {
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            let running = Engine::query(self, &query.sql).await.map_err(|error| error.to_failure())?;
            Ok(Answer::new(running.schema().clone(), running.rows_estimate(), running.into_rows()))
        })
    }

    fn task<'a>(
        &'a self,
        task: &'a Task,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            match &self.cluster {
                Some(cluster) => cluster.answer(task).await,
                None => Err(Failure::new(ErrorCode::Forbidden, "this node is not in a cluster")),
            }
        })
    }

    fn beside<'a>(&'a self, intake: Intake) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if let Some(cluster) = &self.cluster {
                cluster.follow_overlays(intake).await;
            }
        })
    }
}
