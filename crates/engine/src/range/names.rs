//! The names of tables, with those of range files, which clients create and drop while the node runs.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::error::{DataFusionError, Result};
use lightship_rangefile::RangeError;

use super::RangeFiles;
use super::table::RangeTable;
use crate::error::EngineError;

/// Other tables, and range files.
#[derive(Debug)]
pub(crate) struct WithRangeFiles {
    pub(crate) others: Arc<dyn SchemaProvider>,
    pub(crate) files: Arc<RangeFiles>,
}

#[async_trait]
impl SchemaProvider for WithRangeFiles {
    fn table_names(&self) -> Vec<String> {
        let mut names = self.others.table_names();
        names.extend(self.files.names());
        names.sort();
        names.dedup();
        names
    }

    fn table_exist(&self, name: &str) -> bool {
        self.others.table_exist(name) || self.files.names().iter().any(|file| file == name)
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let other = self.others.table(name).await?;
        let file = match self.files.file(name).await {
            Err(RangeError::NoFile(_)) => return Ok(other),
            found => found.map_err(EngineError::from)?,
        };
        if other.is_some() {
            // Neither may hide the other: who inserts would not read what was inserted.
            return Err(DataFusionError::Plan(format!(
                "{name} is the name of a table and of a range file: drop the range file (`lightship range drop`), or \
                 start the node without the table"
            )));
        }
        Ok(Some(Arc::new(RangeTable::open(file, self.files.clone()).await)))
    }

    fn register_table(
        &self,
        name: String,
        table: Arc<dyn TableProvider>,
    ) -> Result<Option<Arc<dyn TableProvider>>> {
        self.others.register_table(name, table)
    }
}
