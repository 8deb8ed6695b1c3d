//! Which Parquet file of a plan is damaged, and where.
//!
//! DataFusion's errors do not say which file they are about, and damaged bytes may make its reader panic. After an
//! error the plan's files are read one by one, to find the one that can't be.

use std::any::Any;
use std::collections::HashSet;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::datasource::memory::DataSourceExec;
use datafusion::datasource::physical_plan::ParquetSource;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{FutureExt as _, StreamExt as _};

use super::input::FilePath;
use super::parquet;
use crate::error::EngineError;
use crate::threads::{QueryPhase, panicked};

/// The scans of a plan. Its joins would keep their hash tables as long as they exist.
pub(crate) fn scans(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let mut scans = Vec::new();
    // The closure does not fail.
    let _ = plan.apply(|node| {
        scans.extend(node.is::<DataSourceExec>().then(|| node.clone()));
        Ok(TreeNodeRecursion::Continue)
    });
    scans
}

/// The same rows. An error that a damaged Parquet file of the scans explains names the file.
pub(crate) fn named(
    rows: SendableRecordBatchStream,
    scans: Vec<Arc<dyn ExecutionPlan>>,
    runtime: Arc<RuntimeEnv>,
) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let named = futures::stream::unfold(Some((rows, scans, runtime)), |state| async move {
        let (mut rows, scans, runtime) = state?;
        let error = match AssertUnwindSafe(rows.next()).catch_unwind().await {
            Ok(None) => return None,
            Ok(Some(Ok(batch))) => return Some((Ok(batch), Some((rows, scans, runtime)))),
            Ok(Some(Err(error))) if !may_be_damage(&error) => error,
            Ok(Some(Err(error))) => find(&scans, &runtime).await.map_or(error, DataFusionError::from),
            Err(panic) => explain(&scans, &runtime, panic).await,
        };
        Some((Err::<RecordBatch, _>(error), None))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, named))
}

async fn explain(
    scans: &[Arc<dyn ExecutionPlan>],
    runtime: &RuntimeEnv,
    panic: Box<dyn Any + Send>,
) -> DataFusionError {
    let other = panicked(QueryPhase::Running, panic);
    find(scans, runtime).await.unwrap_or(other).into()
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

/// The error for the first damaged file of the scans.
async fn find(scans: &[Arc<dyn ExecutionPlan>], runtime: &RuntimeEnv) -> Option<EngineError> {
    let mut files = HashSet::new();
    for scan in scans {
        let scan = scan.downcast_ref::<DataSourceExec>();
        if let Some((config, _)) = scan.and_then(|scan| scan.downcast_to_file_source::<ParquetSource>())
            && let Ok(store) = runtime.object_store(&config.object_store_url)
        {
            let is_local = config.object_store_url == ObjectStoreUrl::local_filesystem();
            let root = (!is_local).then(|| store.to_string());
            let all = config.file_groups.iter().flat_map(|group| group.files());
            files
                .extend(all.filter_map(|file| FilePath::of(root.as_deref(), &store, &file.object_meta).ok()));
        }
    }
    let mut files: Vec<FilePath> = files.into_iter().collect();
    files.sort_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
    tokio::task::spawn_blocking(move || files.iter().find_map(damaged)).await.ok().flatten()
}

/// The error for a file, if it can't be read whole.
fn damaged(path: &FilePath) -> Option<EngineError> {
    if let Err(error) = path.open() {
        return Some(EngineError::reading(path, &error));
    }
    let builder = match ParquetRecordBatchReaderBuilder::try_new(path.clone()) {
        Ok(builder) => builder,
        Err(error) => return Some(parquet::damaged(path, "damaged Parquet file", &error)),
    };
    let groups = builder.metadata().num_row_groups();
    (0..groups).find_map(|group| {
        let read = catch_unwind(AssertUnwindSafe(|| -> Result<(), Box<dyn Error>> {
            let builder = ParquetRecordBatchReaderBuilder::try_new(path.clone())?;
            let reader = builder.with_row_groups(vec![group]).build()?;
            Ok(reader.into_iter().try_for_each(|batch| batch.map(drop))?)
        }));
        let error = read.unwrap_or_else(|_| Err("its pages are not what its footer says".into())).err()?;
        let what = format!("damaged Parquet file: row group {} of {groups}", group + 1);
        Some(parquet::damaged(path, &what, error.as_ref()))
    })
}
