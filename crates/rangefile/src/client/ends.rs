//! The least and the greatest key of an interval.
//!
//! The bucket at the end of the interval is asked, and those beside it only if it has no row: twice as many each time. A tree
//! of nodes would ask all buckets for what nearly always one of them answers.

use futures::{StreamExt, TryStreamExt};

use super::RangeFile;
use crate::error::{RangeError, Result};
use crate::image::Piece;
use crate::key::{Interval, Key};
use crate::network::body;
use crate::request::RequestKind;

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Least,
    Greatest,
}

impl RangeFile {
    /// The least key of the rows with keys in an interval; `None` if there are no rows.
    /// [`KeyFormat::values`](crate::KeyFormat::values) has its values.
    ///
    /// # Errors
    /// [`RangeError::Missing`] if a bucket does not answer in time.
    pub async fn least_key(&self, interval: &Interval) -> Result<Option<Key>> {
        self.end_key(interval, End::Least).await
    }

    /// The greatest key of the rows with keys in an interval; `None` if there are no rows.
    ///
    /// # Errors
    /// As [`RangeFile::least_key`].
    pub async fn greatest_key(&self, interval: &Interval) -> Result<Option<Key>> {
        self.end_key(interval, End::Greatest).await
    }

    async fn end_key(&self, interval: &Interval, end: End) -> Result<Option<Key>> {
        let (mut rest, mut at_once) = (interval.clone(), 1_usize);
        while !rest.is_empty() {
            let mut pieces: Vec<Piece> = {
                let image = self.locked_image();
                match end {
                    End::Least => image.pieces(&rest).take(at_once).collect(),
                    End::Greatest => image.route(&rest),
                }
            };
            if end == End::Greatest {
                // The last one first.
                pieces.reverse();
                pieces.truncate(at_once);
            }
            let asked = pieces.into_iter().map(|(piece, _)| async {
                let found = self.end_of(&piece, end).await;
                (piece, found)
            });
            let mut asked = futures::stream::iter(asked).buffered(self.shared.options.connections_max.max(1));
            while let Some((piece, found)) = asked.next().await {
                match found {
                    Ok(Some(key)) => return Ok(Some(key)),
                    Ok(None) => match (end, piece.high) {
                        (End::Least, Some(high)) => rest.low = high,
                        (End::Least, None) => return Ok(None),
                        (End::Greatest, _) => rest.high = Some(piece.low),
                    },
                    // It belongs to several buckets now.
                    Err(RangeError::Moved) => break,
                    Err(error) => return Err(error),
                }
            }
            at_once = at_once.saturating_mul(2);
        }
        Ok(None)
    }

    /// The end of what a bucket has of an interval.
    async fn end_of(&self, interval: &Interval, end: End) -> Result<Option<Key>> {
        let format = self.definition().format();
        let columns: Vec<u32> = format.columns().iter().map(|&column| column as u32).collect();
        let row = self.with_owner(interval, |owner| {
            let scan = self.scan_request(&owner, interval, Some(1), Some(&columns));
            let kind = match end {
                End::Least => RequestKind::Scan(scan),
                End::Greatest => RequestKind::Last(scan),
            };
            async move {
                let reply = self.shared.network.request(&owner.node, body(kind)).await?;
                let rows: Vec<_> = reply.rows.try_collect().await?;
                Ok(arrow_select::concat::concat_batches(&reply.schema, &rows)?)
            }
        });
        let row = row.await?;
        if row.num_rows() == 0 {
            return Ok(None);
        }
        let key = format.key(row.slice(0, 1).columns())?;
        match interval.contains(&key) {
            true => Ok(Some(key)),
            false => Err(RangeError::Definition("a bucket answers with a key that was not asked for".into())),
        }
    }
}
