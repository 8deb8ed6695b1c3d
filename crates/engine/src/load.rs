//! How many queries run, and in how many parts the next one is to. A query counts until its last rows are there, also while
//! its client takes none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All queries together have this many times the parts of one that runs alone. More would not make them faster, and each
/// part of a scan holds what it decodes.
const PARTS_TOGETHER: usize = 2;

/// The queries that run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Load(Arc<AtomicUsize>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Counted {
    load: Load,
    /// With this one.
    running: usize,
}

impl Load {
    pub(crate) fn count(&self) -> Counted {
        Counted { load: self.clone(), running: self.0.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Counted {
    /// In how many parts the query is to run, of those it would have alone.
    pub(crate) fn parts(&self, alone: usize) -> usize {
        (PARTS_TOGETHER * alone / self.running).clamp(1, alone.max(1))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.load.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_queries_run_the_fewer_parts_has_the_next_one() {
        let load = Load::default();
        let all: Vec<_> = (0..100).map(|_| load.count()).collect();
        let parts: Vec<_> = all.iter().map(|counted| counted.parts(8)).collect();
        assert_eq!(&parts[..6], [8, 8, 5, 4, 3, 2]);
        assert!(parts[16..].iter().all(|&parts| parts == 1));
        drop(all);
        assert_eq!(load.count().parts(8), 8);
        assert_eq!(load.count().parts(0), 1);
    }
}
