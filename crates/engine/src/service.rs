//! The engine as what a server asks.

use std::pin::Pin;

use lightship_transport::net::{Answer, Service};
use lightship_wire::control::{Failure, Query};

use crate::Engine;

impl Service for Engine {
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move {
            let running = Engine::query(self, &query.sql).await.map_err(|error| error.to_failure())?;
            Ok(Answer {
                schema: running.schema().clone(),
                rows_estimate: running.rows_estimate(),
                rows: running.into_rows(),
            })
        })
    }
}
