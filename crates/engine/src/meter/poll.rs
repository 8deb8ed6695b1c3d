//! Adds the processor time of polls to meters.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use futures::future::BoxFuture;

use super::Meter;

/// Whether the system has a clock for each thread.
pub(super) const COUNTS: bool = cfg!(target_os = "linux");

thread_local! {
    /// What this thread works for now.
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

struct Current {
    meter: Arc<Meter>,
    /// The time of the thread's clock that is not added to the meter yet begins here.
    since_ns: u64,
}

/// Processor time of this thread, in nanoseconds.
#[cfg(target_os = "linux")]
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Neither is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_cpu_ns() -> u64 {
    0
}

/// While it exists, this thread works for a meter. Work within work counts for the inner meter only.
struct Work {
    /// What the thread worked for before; `None` within a second `Option` if it goes on for the same meter.
    before: Option<Option<Arc<Meter>>>,
}

impl Work {
    fn begin(meter: &Arc<Meter>) -> Self {
        CURRENT.with_borrow_mut(|current| {
            if current.as_ref().is_some_and(|current| Arc::ptr_eq(&current.meter, meter)) {
                return Self { before: None };
            }
            let now_ns = thread_cpu_ns();
            let before = current.replace(Current { meter: meter.clone(), since_ns: now_ns });
            Self { before: Some(before.map(|before| before.settle(now_ns))) }
        })
    }
}

impl Current {
    /// Adds the time until now.
    fn settle(self, now_ns: u64) -> Arc<Meter> {
        self.meter.cpu_ns.fetch_add(now_ns.saturating_sub(self.since_ns), Ordering::Relaxed);
        self.meter
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let Some(before) = self.before.take() else { return };
        CURRENT.with_borrow_mut(|current| {
            let now_ns = thread_cpu_ns();
            let ended = std::mem::replace(current, before.map(|meter| Current { meter, since_ns: now_ns }));
            ended.map(|ended| ended.settle(now_ns));
        });
    }
}

/// The same future, whose polls count for a meter, if there is one. Work that DataFusion spawns in them counts, too.
pub(crate) async fn metered<F: Future>(meter: Option<Arc<Meter>>, work: F) -> F::Output {
    let Some(meter) = meter else { return work.await };
    let mut work = std::pin::pin!(work);
    poll_fn(move |context| {
        let _work = Work::begin(&meter);
        work.as_mut().poll(context)
    })
    .await
}

/// The same batches, and the time of making them counts for a meter, if there is one.
pub(crate) fn metered_batches(
    meter: Option<Arc<Meter>>,
    mut batches: SendableRecordBatchStream,
) -> SendableRecordBatchStream {
    let Some(meter) = meter else { return batches };
    let schema = batches.schema();
    let counted = futures::stream::poll_fn(move |context| {
        let _work = Work::begin(&meter);
        batches.poll_next_unpin(context)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, counted))
}

/// From now on, what DataFusion spawns counts for the meter that its thread works for.
pub(super) fn follow_spawned_work() {
    // It is set once in a process; the first one does the same.
    let _ = set_join_set_tracer(&Spawned);
}

struct Spawned;

fn current() -> Option<Arc<Meter>> {
    CURRENT.with_borrow(|current| current.as_ref().map(|current| current.meter.clone()))
}

impl JoinSetTracer for Spawned {
    fn trace_future(
        &self,
        work: BoxFuture<'static, Box<dyn Any + Send>>,
    ) -> BoxFuture<'static, Box<dyn Any + Send>> {
        match current() {
            None => work,
            meter => Box::pin(metered(meter, work)),
        }
    }

    fn trace_block(
        &self,
        work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>,
    ) -> Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> {
        match current() {
            Some(meter) => Box::new(move || {
                let _work = Work::begin(&meter);
                work()
            }),
            None => work,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use datafusion::common::runtime::SpawnedTask;

    use super::*;

    /// Uses so much processor time.
    fn compute(ns: u64) {
        let began = thread_cpu_ns();
        let mut number = 1u64;
        while thread_cpu_ns() - began < ns {
            number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005));
        }
    }

    fn cpu_ns(meter: &Arc<Meter>) -> u64 {
        meter.cpu_ns.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn each_work_counts_once_and_for_the_innermost_meter() {
        let [outer, inner] = [(); 2].map(|()| Arc::<Meter>::default());
        let again = metered(Some(outer.clone()), async { compute(2_000_000) });
        let nested = metered(Some(inner.clone()), async { compute(5_000_000) });
        let began = thread_cpu_ns();
        metered(Some(outer.clone()), async {
            compute(1_000_000);
            nested.await;
            again.await;
            compute(1_000_000);
        })
        .await;
        let all = thread_cpu_ns() - began;
        assert!(cpu_ns(&inner) >= 5_000_000 && cpu_ns(&outer) >= 4_000_000, "{outer:?} {inner:?}");
        assert!(cpu_ns(&inner) + cpu_ns(&outer) <= all, "{outer:?} {inner:?} of {all}");
        compute(1_000_000);
        assert!(cpu_ns(&inner) + cpu_ns(&outer) <= all);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_that_is_spawned_counts_for_its_meter() {
        follow_spawned_work();
        let meter = Arc::<Meter>::default();
        metered(Some(meter.clone()), async {
            let future = SpawnedTask::spawn(async { compute(3_000_000) });
            let block = SpawnedTask::spawn_blocking(|| compute(3_000_000));
            future.join().await.unwrap();
            block.join().await.unwrap();
        })
        .await;
        assert!(cpu_ns(&meter) >= 6_000_000, "{meter:?}");
        let before = cpu_ns(&meter);
        SpawnedTask::spawn(async { compute(1_000_000) }).join().await.unwrap();
        assert_eq!(cpu_ns(&meter), before);
    }

    #[tokio::test]
    async fn a_panic_ends_the_work() {
        let meter = Arc::<Meter>::default();
        let work = std::panic::AssertUnwindSafe(metered(Some(meter.clone()), async { panic!("in work") }));
        let ended: Result<(), _> = futures::FutureExt::catch_unwind(work).await;
        assert!(ended.is_err() && current().is_none());
    }
}
