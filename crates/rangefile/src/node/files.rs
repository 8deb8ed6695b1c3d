//! Which files there are. The node on which a file is created or dropped tells the others. One that was down then, could not
//! be reached, or joins later learns it from them: from each one when it has started, and later from one at a time.
//!
//! A node remembers the files that it has dropped, so a node that comes back with such a file drops it too.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::timeout;

use super::{File, Node};
use crate::error::{RangeError, Result};
use crate::key::Interval;
use crate::network::{ask, ask_one};
use crate::request::{Directory, FileNumbers, FileRecord, List, Locate, RequestKind};
use crate::store::Change;

/// How long others may take to say whether they know a file.
const FIND_MAX: Duration = Duration::from_secs(2);

impl Node {
    /// The files that this node knows, except those that are just being created: others may refuse them.
    pub(super) fn records(&self) -> Vec<FileRecord> {
        let files = self.files_read();
        let settled = files.values().filter(|file| !file.is_new());
        settled.map(|file| file.record.clone()).collect()
    }

    /// Which of these files this node has dropped.
    pub(super) async fn dropped(&self, files: FileNumbers) -> Result<FileNumbers> {
        Ok(FileNumbers { numbers: self.shared.blocks.store().removed(files.numbers).await? })
    }

    /// Drops the files that another node has dropped, and learns of those that it knows.
    ///
    /// # Errors
    /// If the node does not answer, or something can't be stored.
    pub(super) async fn compare_files(&self, node: &str) -> Result<()> {
        let network = &self.shared.network;
        let numbers = self.records().iter().map(|record| record.id).collect();
        let dropped = RequestKind::Dropped(FileNumbers { numbers });
        let dropped: Vec<FileNumbers> = match ask(network, node, dropped).await {
            // It has no range files.
            Err(error) if error.has_no_file() => return Ok(()),
            dropped => dropped?,
        };
        let known: Vec<FileRecord> = ask(network, node, RequestKind::List(List {})).await?;
        let (this, node) = (self.clone(), node.to_owned());
        // A task of its own: what has begun to change is changed, even if nobody waits for it.
        let changing = tokio::spawn(async move {
            let mut forgotten = Ok(());
            let dropped: Vec<u64> = dropped.into_iter().flat_map(|files| files.numbers).collect();
            for record in this.records().iter().filter(|record| dropped.contains(&record.id)) {
                tracing::info!(
                    file = record.name,
                    node,
                    "the range file was dropped while this node was away"
                );
                match this.forget(&record.name, Some(record.id)).await {
                    Ok(()) | Err(RangeError::NoFile(_)) => {}
                    Err(error) => {
                        tracing::warn!(file = record.name, %error, "a range file can't be dropped yet");
                        forgotten = Err(error);
                    }
                }
            }
            for record in known {
                if let Err(error) = this.learn_file(&record).await {
                    tracing::warn!(file = record.name, node, %error, "a range file of another node is not known here");
                }
            }
            forgotten
        });
        changing.await.map_err(|_| RangeError::Closed)?
    }

    /// The file, which is stored if the node did not know it.
    ///
    /// # Errors
    /// If the node has another file or table of this name, or has dropped the file; or that it can't be stored.
    pub(super) async fn learn_file(&self, record: &FileRecord) -> Result<Arc<File>> {
        if self.file(&record.name).is_err() {
            self.check_name(&record.name)?;
        }
        self.know(record).await
    }

    /// A file that only other nodes know by now.
    ///
    /// # Errors
    /// [`RangeError::NoFile`] if no node that answers soon knows it; or as [`Node::learn_file`].
    pub(super) async fn find_file(&self, name: &str) -> Result<Arc<File>> {
        let no_file = || RangeError::NoFile(name.to_owned());
        if name.is_empty() {
            // Nobody has it: see `patiently`.
            return Err(no_file());
        }
        // No buckets, only whether there is the file.
        let nothing = Interval::new(Vec::new(), Some(Vec::new()));
        let locate =
            Locate { file: name.to_owned(), own: true, within: Some((&nothing).into()), ..Locate::default() };
        let network = &self.shared.network;
        let asked = self.others().into_iter().map(|node| {
            let locate = RequestKind::Locate(locate.clone());
            async move { timeout(FIND_MAX, ask_one::<Directory>(network, &node, locate)).await }
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        while let Some(answer) = asked.next().await {
            if let Ok(Ok(directory)) = answer
                && directory.file.name == name
            {
                return self.learn_file(&directory.file).await;
            }
        }
        Err(no_file())
    }

    /// Removes a file from this node; if a number is given, only the file of this number. If that one is not there, the
    /// node remembers that it was dropped: an announcement of it may be late.
    ///
    /// # Errors
    /// [`RangeError::NoFile`] if there is no such file; or that its removal can't be stored.
    pub(super) async fn forget(&self, name: &str, number: Option<u64>) -> Result<()> {
        let _adding = self.shared.adding.lock().await;
        let known = self.file(name);
        if let Some(number) = number
            && !known.as_ref().is_ok_and(|file| file.record.id == number)
        {
            self.shared.blocks.store().commit(vec![Change::RememberRemoved(number)]).await?;
            return Err(RangeError::NoFile(name.to_owned()));
        }
        let file = known?;
        for bucket in file.all() {
            self.remove_bucket(&file, &bucket, &mut *bucket.writer.lock().await).await?;
        }
        let deleted = Change::DeleteFile(name.to_owned(), file.record.id);
        self.shared.blocks.store().commit(vec![deleted]).await?;
        self.shared.files.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(())
    }
}
