//! Objects as batches of typed columns.

use std::sync::Arc;

use arrow_array::RecordBatch;

use super::columns::Columns;
use super::objects::Objects;
use super::{JsonRules, Origin};
use crate::error::{EngineError, Result};
use crate::files::by_name::Wanted;
use crate::files::text::BATCH_BYTES;

/// Reads objects as batches.
pub(super) struct JsonReader {
    rules: Arc<JsonRules>,
    origin: Origin,
    objects: Objects,
    wanted: Wanted,
    batch_rows: usize,
}

impl JsonReader {
    pub(super) fn new(
        rules: Arc<JsonRules>,
        origin: Origin,
        objects: Objects,
        wanted: &Wanted,
        batch_rows: usize,
    ) -> Self {
        Self { rules, origin, objects, wanted: wanted.clone(), batch_rows: batch_rows.max(1) }
    }

    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        // All columns of the table are read, so that the same objects are refused whatever a query asks for.
        let mut columns = Columns::new(self.wanted.table.clone(), self.batch_rows);
        let (mut rows, mut bytes) = (0, 0);
        while rows < self.batch_rows && bytes < BATCH_BYTES {
            let next = self.objects.next().map_err(|e| self.origin.failed(&e))?;
            let Some((line, object)) = next else { break };
            rows += 1;
            bytes += object.len() as u64;
            columns.add(object).map_err(|problem| {
                let message = format!("{}: {}", self.origin.line(line), problem.message(object));
                EngineError::bad_file(message, self.rules.fields_hint())
            })?;
        }
        if rows == 0 {
            return Ok(None);
        }
        let batch = columns.finish().and_then(|batch| batch.project(&self.wanted.indices));
        batch.map(Some).map_err(|e| EngineError::Internal(e.to_string()))
    }
}
