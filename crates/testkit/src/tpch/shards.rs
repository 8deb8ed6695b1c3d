//! The tables divided among nodes.

use std::path::{Path, PathBuf};

use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::take::take_record_batch;
use parquet::errors::ParquetError;

use super::file::{self, TableFile};
use super::{TABLES, table};

/// Tables that are not divided: one node has all their rows.
const WHOLE: [&str; 2] = ["region", "nation"];

/// Writes the tables as `folder/NODE/NAME.parquet`, one folder for each of `shares`, and returns the folders.
///
/// Rows are dealt one by one, so that related rows (an order and its items) are seldom on one node. Of as many
/// rows as the sum of `shares`, a node gets its share. A node with a share of 0 gets an empty folder. `region` and
/// `nation` are not divided: the first node with a share has all their rows.
///
/// Complete files of this scale and these shares are kept.
///
/// # Errors
/// When a folder can't be created or a file can't be written.
///
/// # Panics
/// When all shares are 0.
pub fn write_shards(scale: f64, folder: &Path, shares: &[usize]) -> Result<Vec<PathBuf>, ParquetError> {
    let folders: Vec<_> = (0..shares.len()).map(|node| folder.join(node.to_string())).collect();
    folders.iter().try_for_each(std::fs::create_dir_all)?;
    let first = shares.iter().position(|share| *share > 0).expect("a node with a share");
    for name in TABLES {
        let nodes: Vec<usize> = match WHOLE.contains(&name) {
            true => vec![first],
            false => (0..shares.len()).filter(|node| shares[*node] > 0).collect(),
        };
        let paths: Vec<_> = nodes.iter().map(|node| file::path(&folders[*node], name)).collect();
        let marks: Vec<_> = nodes.iter().map(|node| format!("{scale} {node} {shares:?}")).collect();
        if paths.iter().zip(&marks).all(|(path, mark)| file::is_whole(path, mark)) {
            continue;
        }
        let Some(mut batches) = table(name, scale) else { continue };
        let Some(first) = batches.next() else { continue };
        let files = nodes.iter().zip(marks);
        let mut files = files
            .map(|(node, mark)| TableFile::create(&folders[*node], &first.schema(), mark))
            .collect::<Result<Vec<_>, _>>()?;
        // The order of dealing: each node as often as its share.
        let turns: Vec<usize> = match nodes[..] {
            [_] => vec![0],
            _ => nodes.iter().enumerate().flat_map(|(turn, node)| vec![turn; shares[*node]]).collect(),
        };
        let mut row = 0;
        for batch in std::iter::once(first).chain(batches) {
            for (part, file) in deal(&batch, &turns, files.len(), row)?.iter().zip(&mut files) {
                file.write(part)?;
            }
            row += batch.num_rows();
        }
        files.into_iter().zip(paths).try_for_each(|(file, path)| file.finish(&path))?;
    }
    Ok(folders)
}

/// Divides a batch among `count` files. The first row of the batch is the `row`th of its table.
fn deal(
    batch: &RecordBatch,
    turns: &[usize],
    count: usize,
    row: usize,
) -> Result<Vec<RecordBatch>, ParquetError> {
    let mut rows = vec![Vec::new(); count];
    for number in 0..batch.num_rows() {
        rows[turns[(row + number) % turns.len()]].push(number as u32);
    }
    rows.into_iter().map(|rows| Ok(take_record_batch(batch, &UInt32Array::from(rows))?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Order, difference};
    use std::fs::File;

    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    const SCALE: f64 = 0.01;

    fn read(folder: &Path, name: &str) -> Vec<RecordBatch> {
        let Ok(file) = File::open(file::path(folder, name)) else { return vec![] };
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("a file of Parquet");
        reader.build().expect("readable").collect::<Result<_, _>>().expect("whole")
    }

    fn rows(batches: &[RecordBatch]) -> usize {
        batches.iter().map(RecordBatch::num_rows).sum()
    }

    #[test]
    fn the_shards_together_are_the_tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let folders = write_shards(SCALE, folder.path(), &[0, 1, 3, 2]).expect("written");
        assert_eq!(folders.len(), 4);
        for name in TABLES {
            let whole: Vec<_> = table(name, SCALE).expect("a table").collect();
            let parts: Vec<_> = folders.iter().map(|folder| read(folder, name)).collect();
            let counts: Vec<_> = parts.iter().map(|part| rows(part)).collect();
            match (name, rows(&whole)) {
                ("region" | "nation", all) => assert_eq!(counts, [0, all, 0, 0], "{name}"),
                (_, all) => {
                    let fair = [0, 1, 3, 2].map(|share| all as f64 * share as f64 / 6.0);
                    let near =
                        counts.iter().zip(fair).all(|(count, fair)| (*count as f64 - fair).abs() <= 3.0);
                    assert!(near, "{name}: {counts:?}");
                }
            }
            assert_eq!(difference(&whole, &parts.concat(), Order::Any), None, "{name}");
        }
    }

    #[test]
    fn files_are_written_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let written = |folders: &[PathBuf]| {
            let made =
                |path: PathBuf| std::fs::metadata(path).and_then(|file| file.modified()).expect("a file");
            folders.iter().map(|folder| made(file::path(folder, "orders"))).collect::<Vec<_>>()
        };
        let first = written(&write_shards(0.001, folder.path(), &[1, 1]).expect("written"));
        assert_eq!(written(&write_shards(0.001, folder.path(), &[1, 1]).expect("there")), first);
        let other = written(&write_shards(0.001, folder.path(), &[1, 2]).expect("written"));
        assert!(other[0] > first[0] && other[1] > first[1]);
    }
}
