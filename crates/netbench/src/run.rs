//! One cell: so many connections, messages of such a size.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::connect::{Flooding, Opened, Pinging};
use crate::cpu::{Cpu, EVERY, Meter, Sampler, open_files_max};
use crate::error::Fault;
use crate::host::Target;
use crate::row::{Cell, Row, Settings};
use crate::stats::{Latency, Recorder};
use crate::wire::{BEGIN, END, Mode, Reading, Tally};

/// Of a phase, before what counts: connections open their windows, and buffers fill.
const WARM_UP: f64 = 0.2;

/// Connections that failed, and why the first did.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    first: Option<String>,
}

impl Failures {
    fn add(&mut self, fault: &Fault) {
        self.count += 1;
        self.first.get_or_insert_with(|| fault.to_string());
    }
}

/// Measures a cell: first the latency of messages there and back, one at a time on each
/// connection; then throughput, with all connections full, and latency beside it. Each takes
/// [`Settings::seconds`] and a fifth more.
///
/// Whatever fails is in the row. Dropped, it closes its connections.
pub async fn measure(targets: &[Target], settings: &Settings, cell: Cell) -> Row {
    let mut row = Row::new(targets, settings, cell);
    if targets.is_empty() {
        return row;
    }
    // Both while there are still files to open.
    let (meter, _) = (Meter::open(), open_files_max());
    let ping = pings(targets, settings, cell).await;
    row.latency = ping.0;
    row.latency_failures = ping.1.count;
    let flood = flood(targets, settings, cell, &meter).await;
    row.flood_failures = flood.failures.count;
    row.loaded_latency = flood.latency;
    // Of connections that all failed, the little that arrived is no throughput.
    let rate = flood.bytes_per_second.filter(|_| flood.failures.count < cell.connections);
    row.throughput_bytes_per_second = rate;
    row.messages_per_second = rate.map(|rate| rate / f64::from(cell.message_bytes));
    row.bytes_arrived = flood.bytes;
    row.client_cpu = flood.client_cpu;
    row.server_cpu = flood.server_cpu;
    row.failure = ping.1.first.or(flood.failures.first);
    row
}

/// When a phase is measured.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Instant,
    to: Instant,
}

impl Span {
    fn after(warm_up: Duration, length: Duration) -> Self {
        let from = Instant::now() + warm_up;
        Self { from, to: from + length }
    }
}

/// Sends one message after the other, each once the last came back, and times those that begin
/// within the span, one at least; their answers may come later. Where the network is so slow that
/// the first one takes longer than the span, the second is the one.
async fn ping(
    mut connection: Pinging,
    delay: Duration,
    span: Span,
    recorder: Arc<Recorder>,
) -> Result<(), Fault> {
    let mut times = recorder.times();
    let mut is_timed = false;
    loop {
        let began = Instant::now();
        if is_timed && began >= span.to {
            break;
        }
        connection.ping().await?;
        if began >= span.from {
            times.record(began.elapsed());
            is_timed = true;
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
    connection.close().await;
    Ok(())
}

/// What came of the tasks of a phase.
struct Ended<T> {
    values: Vec<T>,
    failures: Failures,
}

impl<T: 'static> Ended<T> {
    fn none() -> Self {
        Self { values: Vec::new(), failures: Failures::default() }
    }

    /// Waits until all have ended. Dropped, it loses nothing.
    async fn all(&mut self, tasks: &mut JoinSet<Result<T, Fault>>) {
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ok(value)) => self.values.push(value),
                Ok(Err(fault)) => self.failures.add(&fault),
                Err(error) => self.failures.add(&Fault::Broke(error.into())),
            }
        }
    }
}

async fn pings(targets: &[Target], settings: &Settings, cell: Cell) -> (Option<Latency>, Failures) {
    let mut ended = Ended::none();
    let dealt = targets.iter().cycle().take(cell.connections as usize);
    let wanted = dealt.map(|target| (target.address, 0)).collect();
    let opened = Opened::all(wanted, Mode::Echo, cell.message_bytes, settings.nodelay).await;
    let recorder = Arc::new(Recorder::new());
    let span = Span::after(settings.length().mul_f64(WARM_UP), settings.length());
    let mut tasks = JoinSet::new();
    for opened in opened {
        match opened {
            Ok(opened) => {
                let connection = opened.pinging(cell.message_bytes);
                tasks.spawn(ping(connection, settings.delay(), span, recorder.clone()));
            }
            Err(fault) => ended.failures.add(&fault),
        }
    }
    ended.all(&mut tasks).await;
    (recorder.latency(), ended.failures)
}

#[derive(Debug, Default)]
struct Flood {
    latency: Option<Latency>,
    bytes_per_second: Option<f64>,
    bytes: u64,
    client_cpu: Cpu,
    server_cpu: Cpu,
    failures: Failures,
}

/// Sends until it is told to stop, and sees what arrived.
async fn pour(
    mut connection: Flooding,
    delay: Duration,
    mut stop: watch::Receiver<bool>,
) -> Result<Tally, Fault> {
    tokio::select! {
        // First: the flood itself may always have something to do.
        biased;
        _ = stop.wait_for(|&stop| stop) => {}
        fault = connection.flood(delay) => return Err(fault),
    }
    connection.settle().await
}

async fn flood(targets: &[Target], settings: &Settings, cell: Cell, meter: &Meter) -> Flood {
    let mut flood = Flood::default();
    let each: Vec<_> = targets.iter().map(|target| (target.address, 0)).collect();
    let mut controls = Opened::all(each.clone(), Mode::Control, 0, true).await;
    let probes = Opened::all(each, Mode::Echo, cell.message_bytes, settings.nodelay).await;

    // Where no run has begun nothing would be counted: its connections count as failed.
    let mut ended = Ended::none();
    if let Some(fault) = controls.iter().find_map(|control| control.as_ref().err()) {
        ended.failures.first = Some(fault.to_string());
    }
    let runs = targets.iter().zip(&controls);
    let places = runs.map(|(target, control)| Some((target.address, control.as_ref().ok()?.run)));
    let dealt = places.cycle().take(cell.connections as usize);
    let wanted = dealt.flatten().collect();
    let opened = Opened::all(wanted, Mode::Swallow, cell.message_bytes, settings.nodelay).await;
    ended.failures.count = cell.connections.saturating_sub(u32::try_from(opened.len()).unwrap_or(u32::MAX));

    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for opened in opened {
        match opened {
            Ok(opened) => {
                tasks.spawn(pour(opened.flooding(cell.message_bytes), settings.delay(), stopped.clone()));
            }
            Err(fault) => ended.failures.add(&fault),
        }
    }
    // Where all connections have failed, there is nothing to wait for.
    tokio::select! {
        () = ended.all(&mut tasks) => {}
        () = tokio::time::sleep(settings.length().mul_f64(WARM_UP)) => {}
    }

    let recorder = Arc::new(Recorder::new());
    let before = readings(&mut controls, BEGIN).await;
    let span = Span::after(Duration::ZERO, settings.length());
    let mut probing = JoinSet::new();
    // A probe that fails leaves the loaded latency unknown, but is none of the connections.
    for probe in probes.into_iter().flatten() {
        probing.spawn(ping(probe.pinging(cell.message_bytes), settings.delay(), span, recorder.clone()));
    }
    tokio::select! {
        () = ended.all(&mut tasks) => {}
        cpu = sampled(meter, span.to) => flood.client_cpu = cpu,
    }
    let after = readings(&mut controls, END).await;
    // The last probes come back under load, as they went.
    let mut probed = Ended::none();
    tokio::select! {
        () = ended.all(&mut tasks) => {}
        () = probed.all(&mut probing) => {}
    }
    // All of the receivers are in the tasks; whether there are any is no matter.
    let _ = stop.send(true);
    ended.all(&mut tasks).await;
    // Without connections a probe has nothing to see.
    probing.shutdown().await;
    join_all(controls.into_iter().flatten().map(Opened::close)).await;

    flood.bytes = ended.values.iter().map(|tally| tally.bytes).sum();
    flood.latency = recorder.latency();
    (flood.bytes_per_second, flood.server_cpu) = rates(&before, &after);
    flood.failures = ended.failures;
    flood
}

/// How busy this host is until then.
async fn sampled(meter: &Meter, to: Instant) -> Cpu {
    let mut sampler = Sampler::start(meter);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = tokio::time::sleep_until(to.into());
    tokio::pin!(end);
    // The first one is there at once, and the sampler has it.
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            () = &mut end => return sampler.finish(),
            _ = ticks.tick() => sampler.sample(),
        }
    }
}

async fn readings(controls: &mut [Result<Opened, Fault>], asked: u8) -> Vec<Option<Reading>> {
    join_all(controls.iter_mut().map(|control| reading(control, asked))).await
}

async fn reading(control: &mut Result<Opened, Fault>, asked: u8) -> Option<Reading> {
    control.as_mut().ok()?.reading(asked).await.ok()
}

/// Bytes a second that arrived at all hosts, each by its own clock; and the processors of the
/// busiest.
fn rates(before: &[Option<Reading>], after: &[Option<Reading>]) -> (Option<f64>, Cpu) {
    let rate = |before: &Reading, after: &Reading| {
        let nanoseconds = after.nanoseconds.checked_sub(before.nanoseconds).filter(|ns| *ns > 0)?;
        Some(after.bytes.checked_sub(before.bytes)? as f64 * 1e9 / nanoseconds as f64)
    };
    let known = before.iter().zip(after).filter_map(|(from, to)| from.as_ref().zip(to.as_ref()));
    let rates: Vec<f64> = known.filter_map(|(from, to)| rate(from, to)).collect();
    let most = |of: fn(&Reading) -> Option<f64>| after.iter().flatten().filter_map(of).reduce(f64::max);
    let cpu = Cpu {
        process_percent: most(|reading| reading.process_percent),
        system_percent: most(|reading| reading.system_percent),
    };
    ((!rates.is_empty()).then(|| rates.iter().sum()), cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_added_up_by_the_clock_of_each() {
        let reading = |nanoseconds, bytes, percent: f64| {
            Some(Reading { nanoseconds, bytes, process_percent: Some(percent), system_percent: None })
        };
        let before = [reading(0, 0, 0.0), reading(5_000_000_000, 100, 0.0), None];
        let after = [reading(1_000_000_000, 50, 80.0), reading(7_000_000_000, 300, 90.0), reading(1, 1, 1.0)];
        let (rate, cpu) = rates(&before, &after);
        assert_eq!(rate, Some(150.0));
        assert_eq!(cpu, Cpu { process_percent: Some(90.0), system_percent: None });
        // A server whose clock or count runs backwards says nothing.
        assert_eq!(rates(&after, &before).0, None);
        assert_eq!(rates(&[], &[]), (None, Cpu::default()));
    }
}
