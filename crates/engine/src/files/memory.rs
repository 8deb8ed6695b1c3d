//! Tables that are read into memory.

use std::sync::Arc;

use datafusion::catalog::{MemTable, TableProvider};
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use crate::error::{EngineError, Result};

/// A table read into memory.
pub(crate) struct Loaded {
    pub(crate) table: MemTable,
    pub(crate) rows: u64,
    pub(crate) bytes: usize,
}

/// Reads a table into memory, in `partitions` parts that can be scanned at once.
pub(crate) async fn load(
    context: &SessionContext,
    table: Arc<dyn TableProvider>,
    name: &str,
    bytes_max: usize,
    partitions: usize,
) -> Result<Loaded> {
    let schema = table.schema();
    let mut stream = context.read_table(table)?.execute_stream().await?;
    let mut parts = vec![Vec::new(); partitions];
    let (mut rows, mut bytes, mut count) = (0, 0, 0);
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        if batch.num_rows() == 0 {
            continue;
        }
        rows += batch.num_rows() as u64;
        bytes += batch.get_array_memory_size();
        if bytes > bytes_max {
            return Err(EngineError::Limit {
                message: format!(
                    "table `{name}` does not fit the {bytes_max} bytes left for tables in memory"
                ),
                needed_bytes: None,
            });
        }
        parts[count % partitions].push(batch);
        count += 1;
    }
    Ok(Loaded { table: MemTable::try_new(schema, parts)?, rows, bytes })
}
