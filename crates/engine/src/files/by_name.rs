//! File formats for DataFusion's scan that find columns by name.
//!
//! DataFusion's own CSV and Arrow readers find the columns of a file by their position in the
//! table. Here the columns are looked up by name when a file is opened. DataFusion still lists the
//! files, divides them into parts, and processes their rows.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::DataSourceExec;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener, FileScanConfig, FileSource};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, apply_expression_roots};
use futures::{FutureExt as _, StreamExt as _};

use super::bytes::Bytes;
use super::columns;
use super::input::FilePath;
use crate::error::{self, EngineError};

/// The rows of a part of a file. Each `next` reads from the file and blocks meanwhile.
pub(super) type Batches = Box<dyn Iterator<Item = error::Result<RecordBatch>> + Send>;

/// Batches up to the last one or the first error.
pub(super) fn until_end(
    mut next: impl FnMut() -> error::Result<Option<RecordBatch>> + Send + 'static,
) -> Batches {
    let mut is_done = false;
    Box::new(std::iter::from_fn(move || {
        if is_done {
            return None;
        }
        let batch = next();
        is_done = !matches!(batch, Ok(Some(_)));
        batch.transpose()
    }))
}

/// The same batches. A reader that panics has met bytes that it did not expect.
pub(super) fn until_panic(path: &Path, mut batches: Batches) -> Batches {
    let path = path.to_owned();
    until_end(move || {
        let next = catch_unwind(AssertUnwindSafe(|| batches.next()));
        next.unwrap_or_else(|_| Some(Err(damaged(&path)))).transpose()
    })
}

fn damaged(path: &Path) -> EngineError {
    EngineError::bad_file(format!("{}: damaged file", path.display()), "write the file again")
}

/// A part of a file.
pub(super) struct FilePart {
    pub(super) path: FilePath,
    /// Size of the whole file.
    pub(super) bytes: u64,
    /// Time of its last change, in nanoseconds since 1970.
    pub(super) changed: i64,
    /// The records that begin in this range are read.
    pub(super) range: Range<u64>,
}

/// The columns of a table to read.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// All columns that files of the table may have.
    pub(super) table: SchemaRef,
    /// The columns to read.
    pub(super) schema: SchemaRef,
    /// Their positions in the table.
    pub(super) indices: Vec<usize>,
}

impl Wanted {
    /// The position of each wanted column in the file; `None` if the file does not have it.
    ///
    /// # Errors
    /// For a file with duplicate column names, or with a column that the table does not have.
    pub(super) fn places(&self, path: &Path, file: &Schema) -> error::Result<Vec<Option<usize>>> {
        columns::unique(path, file)?;
        if let Some(field) = file.fields().iter().find(|field| self.table.index_of(field.name()).is_err()) {
            let name = field.name();
            let message = format!("{}: the table has no column `{name}`", path.display());
            let hint = "the file was added or changed after the table was opened; reopen the table";
            return Err(EngineError::bad_file(message, hint));
        }
        Ok(self.schema.fields().iter().map(|field| file.index_of(field.name()).ok()).collect())
    }
}

/// A kind of file. All methods may block.
pub(super) trait Format: fmt::Debug + Send + Sync + 'static {
    /// Its name in plans.
    fn name(&self) -> &'static str;

    /// The columns of a file; a column has type Null if nothing in the file shows its type.
    fn columns(&self, path: &FilePath) -> error::Result<Schema>;

    /// The type of a column that is Null in all files.
    fn unknown(&self) -> DataType;

    /// A type that holds the values of both, if there is one.
    fn common(&self, a: &DataType, b: &DataType) -> Option<DataType>;

    /// Whether it is cheap to find where a part of a file begins. It is not if all bytes before it must be read, which is
    /// then done only for files of this host.
    fn finds_parts(&self) -> bool {
        true
    }

    /// The rows of a part. However a file is divided, its parts together return each row once.
    fn read(&self, part: FilePart, wanted: &Wanted, batch_rows: usize) -> error::Result<Batches>;
}

/// A kind of text, which can be read while it arrives.
pub(super) trait TextFormat: Format {
    /// Like [`Format::columns`], of bytes that can be read only once, up to where their columns are known.
    fn columns_of_stream(&self, name: &Path, bytes: Bytes) -> error::Result<Schema>;

    /// Like [`Format::read`], of all bytes that can be read only once.
    fn read_stream(
        &self,
        name: &Path,
        bytes: Bytes,
        wanted: &Wanted,
        batch_rows: usize,
    ) -> error::Result<Batches>;
}

/// Makes a [`Format`] usable as DataFusion's [`FileFormat`].
#[derive(Debug)]
pub(super) struct FormatAdapter<F> {
    format: Arc<F>,
    /// The URI of the store that has the files; `None` for files of this host.
    root: Option<String>,
}

impl<F: Format> FormatAdapter<F> {
    pub(super) fn new(format: F, root: Option<String>) -> Self {
        Self { format: Arc::new(format), root }
    }
}

/// The path of a local file.
pub(super) fn path_of(object: &ObjectMeta) -> Result<PathBuf> {
    Ok(LocalFileSystem::new().path_to_filesystem(&object.location)?)
}

async fn blocking<T: Send + 'static>(task: impl FnOnce() -> error::Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(task).await;
    Ok(done.map_err(|e| EngineError::Internal(format!("reading a file failed: {e}")))??)
}

#[async_trait]
impl<F: Format> FileFormat for FormatAdapter<F> {
    fn get_ext(&self) -> String {
        self.format.name().to_owned()
    }

    fn get_ext_with_compression(&self, _: &FileCompressionType) -> Result<String> {
        Ok(self.get_ext())
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        None
    }

    async fn infer_schema(
        &self,
        _: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let paths = objects.iter().map(|object| FilePath::of(self.root.as_deref(), store, object));
        let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
        // Gives the columns the same order on all nodes.
        paths.sort_by(|a, b| Path::cmp(a, b));
        let format = self.format.clone();
        let schema = blocking(move || {
            let mut files = Vec::with_capacity(paths.len());
            for path in paths {
                let schema = catch_unwind(AssertUnwindSafe(|| format.columns(&path)));
                let schema = schema.map_err(|_| damaged(&path))??;
                files.push((path, schema));
            }
            let schema = columns::unite(&files, |a, b| format.common(a, b))?;
            Ok(columns::without_null(&schema, &format.unknown()))
        });
        Ok(Arc::new(schema.await?))
    }

    async fn infer_stats(
        &self,
        _: &dyn Session,
        _: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        _: &ObjectMeta,
    ) -> Result<Statistics> {
        Ok(Statistics::new_unknown(&table_schema))
    }

    async fn create_physical_plan(
        &self,
        _: &dyn Session,
        scan: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(DataSourceExec::from_data_source(scan))
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(Source {
            format: self.format.clone(),
            root: self.root.clone(),
            projection: SplitProjection::unprojected(&table_schema),
            table_schema,
            batch_rows: 8192,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

/// Makes a [`Format`] usable as DataFusion's [`FileSource`].
struct Source<F> {
    format: Arc<F>,
    root: Option<String>,
    projection: SplitProjection,
    table_schema: TableSchema,
    batch_rows: usize,
    metrics: ExecutionPlanMetricsSet,
}

impl<F> Clone for Source<F> {
    fn clone(&self) -> Self {
        Self {
            format: self.format.clone(),
            root: self.root.clone(),
            projection: self.projection.clone(),
            table_schema: self.table_schema.clone(),
            batch_rows: self.batch_rows,
            metrics: self.metrics.clone(),
        }
    }
}

impl<F: Format> FileSource for Source<F> {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _: &FileScanConfig,
        _: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let table = self.table_schema.file_schema();
        let indices = self.projection.file_indices.clone();
        let schema = Arc::new(table.project(&indices)?);
        let wanted = Wanted { table: table.clone(), schema, indices };
        let (format, root) = (self.format.clone(), self.root.clone());
        let opener = Opener { format, root, store, wanted, batch_rows: self.batch_rows };
        ProjectionOpener::try_new(self.projection.clone(), Arc::new(opener), table)
    }

    fn table_schema(&self) -> &TableSchema {
        &self.table_schema
    }

    fn supports_repartitioning(&self) -> bool {
        self.root.is_none() || self.format.finds_parts()
    }

    fn with_batch_size(&self, batch_rows: usize) -> Arc<dyn FileSource> {
        Arc::new(Self { batch_rows, ..self.clone() })
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        Some(&self.projection.source)
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn file_type(&self) -> &str {
        self.format.name()
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        let merged = self.projection.source.try_merge(projection)?;
        let projection = SplitProjection::new(self.table_schema.file_schema(), &merged);
        Ok(Some(Arc::new(Self { projection, ..self.clone() })))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.projection.source.iter(), f)
    }
}

/// Batches whose reader waits for a network, in a thread that may wait.
fn elsewhere(batches: Batches) -> impl futures::Stream<Item = Result<RecordBatch>> + Send {
    futures::stream::try_unfold(Some(batches), |batches| async {
        let Some(mut batches) = batches else { return Ok(None) };
        let next = blocking(move || Ok(batches.next().transpose()?.map(|batch| (batch, Some(batches)))));
        next.await
    })
}

/// Opens one file after the other.
struct Opener<F> {
    format: Arc<F>,
    root: Option<String>,
    store: Arc<dyn ObjectStore>,
    wanted: Wanted,
    batch_rows: usize,
}

impl<F: Format> FileOpener for Opener<F> {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let bytes = file.object_meta.size;
        let offset = |offset: i64| u64::try_from(offset).unwrap_or(0).min(bytes);
        let part = FilePart {
            path: FilePath::of(self.root.as_deref(), &self.store, &file.object_meta)?,
            bytes,
            changed: file.object_meta.last_modified.timestamp_nanos_opt().unwrap_or(0),
            range: file.range.map_or(0..bytes, |range| offset(range.start)..offset(range.end)),
        };
        let (format, wanted, batch_rows) = (self.format.clone(), self.wanted.clone(), self.batch_rows);
        let is_remote = part.path.is_remote();
        let open = blocking(move || {
            let path = part.path.clone();
            let opened = catch_unwind(AssertUnwindSafe(|| format.read(part, &wanted, batch_rows)));
            Ok(until_panic(&path, opened.map_err(|_| damaged(&path))??))
        });
        Ok(async move {
            let batches = open.await?;
            if is_remote {
                return Ok(elsewhere(batches).boxed());
            }
            let batches = batches.map(|batch| batch.map_err(DataFusionError::from));
            Ok(futures::stream::iter(batches).boxed())
        }
        .boxed())
    }
}
