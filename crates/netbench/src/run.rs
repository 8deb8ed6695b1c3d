//! Measures one cell: a number of connections and a message size.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::connect::{ClientConnection, FloodConnection, PingConnection};
use crate::cpu::{Cpu, EVERY, Meter, Sampler, open_files_max};
use crate::error::ConnectionError;
use crate::host::Target;
use crate::returned::ReturnedBytes;
use crate::row::{Cell, Row, Settings};
use crate::stats::{Latency, Recorder};
use crate::wire::{BEGIN, END, Mode, Reading, ReceivedCount};

/// The warm-up before the measurement, as a share of the phase: TCP windows open and buffers fill.
pub(crate) const WARM_UP: f64 = 0.2;

/// Connections that failed, and why the first one did.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: u32,
    pub(crate) first: Option<String>,
}

impl Failures {
    fn add(&mut self, fault: &ConnectionError) {
        self.count += 1;
        self.first.get_or_insert_with(|| fault.to_string());
    }
}

/// Measures a cell in two phases: first latency, with one message at a time on each connection; then
/// throughput and loaded latency, with all connections saturated. The phases take
/// [`Settings::latency_seconds`] and [`Settings::seconds`], and a fifth more.
///
/// Failures are recorded in the row. Dropping the future closes its connections.
pub async fn measure(targets: &[Target], settings: &Settings, cell: Cell) -> Row {
    let mut row = Row::new(targets, settings, cell);
    if targets.is_empty() {
        return row;
    }
    // Open these files first, before connections use up the limit.
    let (meter, _) = (Meter::open(), open_files_max());
    let ping = pings(targets, settings, cell).await;
    row.latency = ping.0;
    row.latency_failures = ping.1.count;
    let flood = flood(targets, settings, cell, &meter).await;
    row.flood_failures = flood.failures.count;
    row.loaded_latency = flood.latency;
    // If all connections failed, the few bytes that arrived are not a throughput.
    let rate = flood.bytes_per_second.filter(|_| flood.failures.count < cell.connections);
    row.throughput_bytes_per_second = rate;
    row.messages_per_second = rate.map(|rate| rate / f64::from(cell.message_bytes));
    row.returned_bytes_per_second = flood.returned_bytes_per_second.filter(|_| rate.is_some());
    row.bytes_arrived = flood.bytes;
    row.client_cpu = flood.client_cpu;
    row.server_cpu = flood.server_cpu;
    row.failure = ping.1.first.or(flood.failures.first);
    row
}

/// The time span of a measurement.
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

/// Sends one message after the other, each after the echo of the last, and times those sent within the
/// span, at least one; their echoes may arrive later. If the network is so slow that the first message
/// takes longer than the span, the second one is timed.
async fn ping(
    mut connection: PingConnection,
    delay: Duration,
    span: Span,
    recorder: Arc<Recorder>,
) -> Result<(), ConnectionError> {
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

/// The results of the tasks of a phase.
struct TaskResults<T> {
    values: Vec<T>,
    failures: Failures,
}

impl<T: 'static> TaskResults<T> {
    fn none() -> Self {
        Self { values: Vec::new(), failures: Failures::default() }
    }

    /// Waits until all tasks have ended. Dropping the future loses no results.
    async fn all(&mut self, tasks: &mut JoinSet<Result<T, ConnectionError>>) {
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ok(value)) => self.values.push(value),
                Ok(Err(fault)) => self.failures.add(&fault),
                Err(error) => self.failures.add(&ConnectionError::Broke(error.into())),
            }
        }
    }
}

pub(crate) async fn pings(
    targets: &[Target],
    settings: &Settings,
    cell: Cell,
) -> (Option<Latency>, Failures) {
    let mut ended = TaskResults::none();
    let dealt = targets.iter().cycle().take(cell.connections as usize);
    let wanted = dealt.map(|target| (target.address, 0)).collect();
    let opened = ClientConnection::all(wanted, Mode::Echo, cell.message_bytes, settings.nodelay).await;
    let recorder = Arc::new(Recorder::new());
    let length = settings.latency_length();
    let span = Span::after(length.mul_f64(WARM_UP), length);
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
pub(crate) struct Flood {
    latency: Option<Latency>,
    pub(crate) bytes_per_second: Option<f64>,
    /// What arrived from the servers meanwhile, counted by this host.
    returned_bytes_per_second: Option<f64>,
    bytes: u64,
    client_cpu: Cpu,
    server_cpu: Cpu,
    pub(crate) failures: Failures,
}

/// Sends until stopped, then returns what the server received.
async fn pour(
    connection: FloodConnection,
    delay: Duration,
    mut stop: watch::Receiver<bool>,
) -> Result<ReceivedCount, ConnectionError> {
    let stopped = async {
        // A closed channel also means to stop.
        let _ = stop.wait_for(|&stop| stop).await;
    };
    connection.pour(delay, stopped).await
}

pub(crate) async fn flood(targets: &[Target], settings: &Settings, cell: Cell, meter: &Meter) -> Flood {
    let mut flood = Flood::default();
    let each: Vec<_> = targets.iter().map(|target| (target.address, 0)).collect();
    let mut controls = ClientConnection::all(each.clone(), Mode::Control, 0, true).await;
    let probes = ClientConnection::all(each, Mode::Echo, cell.message_bytes, settings.nodelay).await;

    // Without a run, a host counts no bytes: its connections count as failed.
    let mut ended = TaskResults::none();
    if let Some(fault) = controls.iter().find_map(|control| control.as_ref().err()) {
        ended.failures.first = Some(fault.to_string());
    }
    let runs = targets.iter().zip(&controls);
    let places = runs.map(|(target, control)| Some((target.address, control.as_ref().ok()?.run)));
    let dealt = places.cycle().take(cell.connections as usize);
    let wanted = dealt.flatten().collect();
    let mode = if settings.both_ways { Mode::Both } else { Mode::Swallow };
    let opened = ClientConnection::all(wanted, mode, cell.message_bytes, settings.nodelay).await;
    let returned = settings.both_ways.then(Arc::<ReturnedBytes>::default);
    ended.failures.count = cell.connections.saturating_sub(u32::try_from(opened.len()).unwrap_or(u32::MAX));

    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for opened in opened {
        match opened {
            Ok(opened) => {
                let connection = opened.flooding(cell.message_bytes, returned.clone());
                tasks.spawn(pour(connection, settings.delay(), stopped.clone()));
            }
            Err(fault) => ended.failures.add(&fault),
        }
    }
    // If all connections have failed, there is nothing to wait for.
    tokio::select! {
        () = ended.all(&mut tasks) => {}
        () = tokio::time::sleep(settings.length().mul_f64(WARM_UP)) => {}
    }

    let recorder = Arc::new(Recorder::new());
    let before = readings(&mut controls, BEGIN).await;
    let returned_now = || Some((Instant::now(), returned.as_ref()?.arrived()));
    let returned_before = returned_now();
    let span = Span::after(Duration::ZERO, settings.length());
    let mut probing = JoinSet::new();
    // A failed probe leaves the loaded latency unknown. It does not count as a failed connection.
    for probe in probes.into_iter().flatten() {
        probing.spawn(ping(probe.pinging(cell.message_bytes), settings.delay(), span, recorder.clone()));
    }
    tokio::select! {
        () = ended.all(&mut tasks) => {}
        cpu = sampled(meter, span.to) => flood.client_cpu = cpu,
    }
    let returned_after = returned_now();
    let after = readings(&mut controls, END).await;
    flood.returned_bytes_per_second =
        returned_before.zip(returned_after).map(|((began, before), (ended, after))| {
            // A connection that has failed takes what it had not read with it.
            after.saturating_sub(before) as f64 / ended.duration_since(began).as_secs_f64()
        });
    // Keep the load on until the last probes have returned.
    let mut probed = TaskResults::none();
    tokio::select! {
        () = ended.all(&mut tasks) => {}
        () = probed.all(&mut probing) => {}
    }
    // This fails if no task is left to stop, which is fine.
    let _ = stop.send(true);
    ended.all(&mut tasks).await;
    // If all connections have failed, probes may still be running.
    probing.shutdown().await;
    join_all(controls.into_iter().flatten().map(ClientConnection::close)).await;

    flood.bytes = ended.values.iter().map(|tally| tally.bytes).sum();
    flood.latency = recorder.latency();
    (flood.bytes_per_second, flood.server_cpu) = rates(&before, &after);
    flood.failures = ended.failures;
    flood
}

/// Samples the processor use of this host until `to`.
async fn sampled(meter: &Meter, to: Instant) -> Cpu {
    let mut sampler = Sampler::start(meter);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = tokio::time::sleep_until(to.into());
    tokio::pin!(end);
    // The first tick completes at once; the sampler has taken its first sample already.
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            () = &mut end => return sampler.finish(),
            _ = ticks.tick() => sampler.sample(),
        }
    }
}

async fn readings(
    controls: &mut [Result<ClientConnection, ConnectionError>],
    asked: u8,
) -> Vec<Option<Reading>> {
    join_all(controls.iter_mut().map(|control| reading(control, asked))).await
}

async fn reading(control: &mut Result<ClientConnection, ConnectionError>, asked: u8) -> Option<Reading> {
    control.as_mut().ok()?.reading(asked).await.ok()
}

/// Bytes per second received by all hosts, each by its own clock, and the processor use of the busiest.
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
    fn rates_use_each_hosts_clock_and_are_summed() {
        let reading = |nanoseconds, bytes, percent: f64| {
            Some(Reading { nanoseconds, bytes, process_percent: Some(percent), system_percent: None })
        };
        let before = [reading(0, 0, 0.0), reading(5_000_000_000, 100, 0.0), None];
        let after = [reading(1_000_000_000, 50, 80.0), reading(7_000_000_000, 300, 90.0), reading(1, 1, 1.0)];
        let (rate, cpu) = rates(&before, &after);
        assert_eq!(rate, Some(150.0));
        assert_eq!(cpu, Cpu { process_percent: Some(90.0), system_percent: None });
        // A server whose clock or counter runs backwards is ignored.
        assert_eq!(rates(&after, &before).0, None);
        assert_eq!(rates(&[], &[]), (None, Cpu::default()));
    }
}
