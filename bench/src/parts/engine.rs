//! An engine without a node around it.

use std::time::Instant;

use futures::TryStreamExt;
use lightship_engine::{Engine, EngineConfig};

use super::Latencies;
use crate::{Error, Result};

/// Warm-up queries, which do not count.
const WARM_UP: u32 = 200;

pub(super) async fn run(sql: &str, count: u32) -> Result<Latencies> {
    let engine = Engine::new(EngineConfig::default())?;
    // As in a node: on a worker thread, not on the thread that waits for the result.
    let sql = sql.to_owned();
    let mut latencies = tokio::spawn(async move {
        let mut latencies = Vec::new();
        for _ in 0..WARM_UP + count {
            let began = Instant::now();
            let rows = engine.query(&sql).await?.into_rows();
            let _batches: Vec<_> = rows.try_collect().await?;
            latencies.push(began.elapsed());
        }
        Ok::<_, Error>(latencies)
    })
    .await??;
    Ok(Latencies::of(&mut latencies[WARM_UP as usize..]))
}
