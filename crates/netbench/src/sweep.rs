//! Measures all cells of a grid, one after the other.

use std::ops::ControlFlow;

use crate::error::NetbenchError;
use crate::host::Target;
use crate::row::{Cell, Row, Settings, hosts_text};
use crate::run::measure;
use crate::table::ResultTable;

/// The parameters of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// Servers; at least one.
    pub targets: Vec<Target>,
    /// Settings of every cell.
    pub settings: Settings,
    /// Numbers of connections.
    pub connections: Vec<u32>,
    /// Message sizes.
    pub message_bytes: Vec<u32>,
    /// Whether cells in the table in which connections failed are measured again.
    pub retry: bool,
}

impl Sweep {
    /// All cells, ordered by connections and then by message size.
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        let sizes = |connections: u32| {
            self.message_bytes.iter().map(move |size| Cell { connections, message_bytes: *size })
        };
        self.connections.iter().flat_map(move |connections| sizes(*connections))
    }

    /// Cells that must still be measured.
    pub fn missing(&self, table: &ResultTable) -> Vec<Cell> {
        let hosts = hosts_text(&self.targets);
        let is_there = |cell: &Cell| {
            let row = table.find(&hosts, &self.settings, *cell);
            row.is_some_and(|row| row.is_whole() || !self.retry)
        };
        self.cells().filter(|cell| !is_there(cell)).collect()
    }

    /// The rows of the table that belong to this sweep.
    pub fn rows(&self, table: &ResultTable) -> Vec<Row> {
        let hosts = hosts_text(&self.targets);
        self.cells().filter_map(|cell| table.find(&hosts, &self.settings, cell).cloned()).collect()
    }

    /// Measures the missing cells. Writes the table after each cell, so that an interruption loses
    /// nothing. Calls `told` with each new row once it is written; `told` may end the sweep.
    ///
    /// # Errors
    /// [`NetbenchError::Io`] if the table can't be written. Failures of measurements are recorded in
    /// the rows.
    pub async fn run(
        &self,
        table: &mut ResultTable,
        mut told: impl FnMut(&Row) -> ControlFlow<()>,
    ) -> Result<(), NetbenchError> {
        for cell in self.missing(table) {
            let row = measure(&self.targets, &self.settings, cell).await;
            table.put(row.clone())?;
            if told(&row).is_break() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::some_row;

    #[test]
    fn only_unmeasured_or_retried_cells_are_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut table = ResultTable::open(folder.path().join("results.csv")).expect("none");
        let hosts = ["a:1"]
            .map(|host| Target { host: host.parse().expect("a host"), address: ([127, 0, 0, 1], 1).into() });
        let mut sweep = Sweep {
            targets: hosts.to_vec(),
            settings: Settings::default(),
            connections: vec![2, 4],
            message_bytes: vec![256, 512],
            retry: false,
        };
        let cell = |connections, message_bytes| Cell { connections, message_bytes };
        assert_eq!(sweep.missing(&table), [cell(2, 256), cell(2, 512), cell(4, 256), cell(4, 512)]);
        table.put(some_row(2, 512, 1.0)).expect("written");
        table.put(Row { flood_failures: 1, ..some_row(4, 256, 1.0) }).expect("written");
        assert_eq!(sweep.missing(&table), [cell(2, 256), cell(4, 512)]);
        assert_eq!(sweep.rows(&table).len(), 2);
        sweep.retry = true;
        assert_eq!(sweep.missing(&table), [cell(2, 256), cell(4, 256), cell(4, 512)]);
        sweep.settings.nodelay = false;
        assert_eq!(sweep.missing(&table).len(), 4);
    }
}
