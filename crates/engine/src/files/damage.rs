//! Which Parquet file of a plan is damaged, and where.
//!
//! DataFusion's errors do not say which file they are about, and damaged bytes may make its reader panic. After an
//! error the plan's files are read one by one, to find the one that can't be.

use std::any::Any;
use std::collections::BTreeSet;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::datasource::memory::DataSourceExec;
use datafusion::datasource::physical_plan::ParquetSource;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{FutureExt as _, StreamExt as _};

use super::by_name::path_of;
use crate::error::EngineError;
use crate::threads::{QueryPhase, panicked};

/// The same rows. An error that a damaged Parquet file of the plan explains names the file.
pub(crate) fn named(
    rows: SendableRecordBatchStream,
    plan: Arc<dyn ExecutionPlan>,
) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let named = futures::stream::unfold(Some((rows, plan)), |state| async move {
        let (mut rows, plan) = state?;
        let error = match AssertUnwindSafe(rows.next()).catch_unwind().await {
            Ok(None) => return None,
            Ok(Some(Ok(batch))) => return Some((Ok(batch), Some((rows, plan)))),
            Ok(Some(Err(error))) if !may_be_damage(&error) => error,
            Ok(Some(Err(error))) => find(plan).await.map_or(error, DataFusionError::from),
            Err(panic) => explain(plan, panic).await,
        };
        Some((Err::<RecordBatch, _>(error), None))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, named))
}

async fn explain(plan: Arc<dyn ExecutionPlan>, panic: Box<dyn Any + Send>) -> DataFusionError {
    let other = panicked(QueryPhase::Running, panic);
    find(plan).await.unwrap_or(other).into()
}

/// Whether a damaged file can be the cause of an error: to find out takes as long as reading all files. Errors of our own
/// name their file.
fn may_be_damage(error: &DataFusionError) -> bool {
    use DataFusionError as E;
    match error.find_root() {
        E::ArrowError(fault, _) => matches!(
            **fault,
            ArrowError::ParquetError(_)
                | ArrowError::ExternalError(_)
                | ArrowError::IoError(_, _)
                | ArrowError::InvalidArgumentError(_)
                | ArrowError::SchemaError(_)
        ),
        E::ParquetError(_) | E::IoError(_) | E::ObjectStore(_) | E::Internal(_) | E::ExecutionJoin(_) => true,
        _ => false,
    }
}

/// The error for the first damaged file of a plan.
async fn find(plan: Arc<dyn ExecutionPlan>) -> Option<EngineError> {
    let mut paths = BTreeSet::new();
    let _ = plan.apply(|node| {
        let scan = node.downcast_ref::<DataSourceExec>();
        if let Some((config, _)) = scan.and_then(|scan| scan.downcast_to_file_source::<ParquetSource>()) {
            let files = config.file_groups.iter().flat_map(|group| group.files());
            paths.extend(files.filter_map(|file| path_of(&file.object_meta).ok()));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    let found = tokio::task::spawn_blocking(move || paths.iter().find_map(|path: &PathBuf| damaged(path)));
    found.await.ok().flatten()
}

/// The error for a file, if it can't be read whole.
fn damaged(path: &Path) -> Option<EngineError> {
    let problem = |problem: String| {
        let message = format!("{}: damaged Parquet file: {problem}", path.display());
        EngineError::bad_file(message, "write the file again")
    };
    let builder = match File::open(path).map(ParquetRecordBatchReaderBuilder::try_new) {
        Ok(Ok(builder)) => builder,
        Ok(Err(error)) => return Some(problem(error.to_string())),
        Err(error) => return Some(EngineError::File(format!("{}: {error}", path.display()))),
    };
    let groups = builder.metadata().num_row_groups();
    (0..groups).find_map(|group| {
        let read = catch_unwind(|| -> Result<(), String> {
            let file = File::open(path).map_err(|error| error.to_string())?;
            let builder =
                ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| error.to_string())?;
            let reader = builder.with_row_groups(vec![group]).build().map_err(|error| error.to_string())?;
            reader.into_iter().try_for_each(|batch| batch.map(drop)).map_err(|error| error.to_string())
        });
        let error = read.unwrap_or_else(|_| Err("its pages are not what its footer says".into())).err()?;
        Some(problem(format!("row group {} of {groups}: {error}", group + 1)))
    })
}
