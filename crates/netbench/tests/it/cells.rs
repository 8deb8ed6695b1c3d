//! Tests of single cells.

use std::time::Duration;

use lightship_netbench::{
    Cell, ConnectionError, Host, NetbenchError, Row, ServerConfig, Settings, Target, measure, measure_link,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use crate::support::*;

const fn cell(connections: u32, message_bytes: u32) -> Cell {
    Cell { connections, message_bytes }
}

/// Checks that everything was measured and is plausible.
#[track_caller]
fn whole(row: &Row) {
    assert!(row.is_whole() && row.failure.is_none(), "{row:?}");
    for latency in [row.latency, row.loaded_latency] {
        let latency = latency.unwrap_or_else(|| panic!("{row:?}"));
        assert!(latency.count > 0 && latency.min_us > 0.0 && latency.min_us <= latency.avg_us, "{row:?}");
        assert!(latency.avg_us <= latency.max_us * 1.01, "{row:?}");
    }
    let rate = row.throughput_bytes_per_second.unwrap_or_else(|| panic!("{row:?}"));
    assert!(rate > 0.0 && row.bytes_arrived > 0, "{row:?}");
    let messages = row.messages_per_second.unwrap_or_else(|| panic!("{row:?}"));
    assert!((messages * f64::from(row.cell.message_bytes) - rate).abs() <= rate * 1e-9, "{row:?}");
    for cpu in [row.client_cpu, row.server_cpu] {
        assert!(cpu.system_percent.is_some_and(|percent| (0.0..=100.0).contains(&percent)), "{row:?}");
        assert!(cpu.process_percent.is_some_and(|percent| percent >= 0.0), "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_smaller_and_larger_than_a_buffer_are_measured() {
    let server = Running::start(ServerConfig::default()).await;
    let targets = [server.target().await];
    for cell in [cell(1, 1), cell(3, 256), cell(2, 65_536), cell(2, 200_001)] {
        let before = server.counters.bytes();
        let row = measure(&targets, &BRIEF, cell).await;
        whole(&row);
        // The server also counts the echoed messages.
        assert!(server.counters.bytes() - before > row.bytes_arrived, "{row:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_can_go_both_ways() {
    let server = Running::start(ServerConfig::default()).await;
    let targets = [server.target().await];
    let settings = Settings { both_ways: true, ..BRIEF };
    for cell in [cell(1, 1), cell(3, 4096), cell(2, 200_001)] {
        let row = measure(&targets, &settings, cell).await;
        whole(&row);
        assert!(row.returned_bytes_per_second.is_some_and(|rate| rate > 0.0), "{row:?}");
    }
    assert_eq!(measure(&targets, &BRIEF, cell(1, 4096)).await.returned_bytes_per_second, None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_phase_has_its_own_length() {
    let server = Running::start(ServerConfig::default()).await;
    let settings = Settings { latency_seconds: 0.01, ..BRIEF };
    let began = std::time::Instant::now();
    whole(&measure(&[server.target().await], &settings, cell(1, 256)).await);
    assert!(began.elapsed() >= Duration::from_secs_f64(BRIEF.seconds + 0.01));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_limit_the_message_rate() {
    let server = Running::start(ServerConfig::default()).await;
    let settings = Settings { delay_ms: 20.0, nodelay: false, ..BRIEF };
    let row = measure(&[server.target().await], &settings, cell(2, 100)).await;
    whole(&row);
    let messages = row.messages_per_second.expect("known");
    assert!(messages <= 2.0 * 60.0, "{row:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hosts_are_measured_and_a_lost_one_is_a_failure_in_the_row() {
    let (one, other) =
        (Running::start(ServerConfig::default()).await, Running::start(ServerConfig::default()).await);
    let targets = [one.target().await, other.target().await];
    let both = measure(&targets, &BRIEF, cell(4, 4096)).await;
    whole(&both);
    assert_eq!(both.hosts, format!("{} {}", one.address, other.address));
    assert!(one.counters.bytes() > 0 && other.counters.bytes() > 0);
    other.stop().await;
    let row = measure(&targets, &BRIEF, cell(3, 4096)).await;
    assert_eq!((row.latency_failures, row.flood_failures), (1, 1), "{row:?}");
    assert!(row.failure.as_deref().is_some_and(|why| why.contains("can't connect")), "{row:?}");
    assert!(row.throughput_bytes_per_second.is_some() && row.latency.is_some(), "{row:?}");
    one.stop().await;
}

/// Measures four connections, and stops the server once it has accepted `connections`.
async fn lost_after(connections: u64, seconds: f64) -> Row {
    let server = Running::start(ServerConfig::default()).await;
    let (targets, counters) = ([server.target().await], server.counters.clone());
    let settings = Settings { seconds, latency_seconds: seconds, ..BRIEF };
    let measuring = tokio::spawn(async move { measure(&targets, &settings, cell(4, 1024)).await });
    until(|| counters.connections() >= connections).await;
    server.stop().await;
    within(measuring).await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_lost_during_a_measurement_is_a_failure_in_the_row() {
    // One connection to find the server, then four for pings.
    let early = lost_after(1 + 4, 600.0).await;
    assert_eq!((early.latency_failures, early.flood_failures), (4, 4), "{early:?}");
    assert_eq!((early.throughput_bytes_per_second, early.loaded_latency), (None, None), "{early:?}");
    assert!(early.failure.is_some(), "{early:?}");
    // Then a control connection, a probe, and four for the flood.
    let late = lost_after(1 + 4 + 2 + 4, 1.0).await;
    assert_eq!((late.latency_failures, late.flood_failures), (0, 4), "{late:?}");
    assert!(late.latency.is_some() && late.throughput_bytes_per_second.is_none(), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_failures() {
    // The control connection and the probe take two of the five.
    let server = Running::start(ServerConfig { connections_max: 5, ..ServerConfig::default() }).await;
    let row = measure(&[server.target().await], &BRIEF, cell(8, 512)).await;
    assert!(row.flood_failures == 5 && row.latency_failures == 3, "{row:?}");
    assert!(row.failure.as_deref().is_some_and(|why| why.contains("--connections-max")), "{row:?}");
    assert!(row.throughput_bytes_per_second.is_some_and(|rate| rate > 0.0), "{row:?}");
    server.stop().await;
}

#[tokio::test]
async fn each_reason_for_an_unusable_host_has_its_fault() {
    let fault = |address: String| async move {
        let host: Host = address.parse().expect("a host");
        match Target::find(&host).await {
            Err(NetbenchError::Host { host, fault }) => (host, fault),
            other => panic!("{other:?}"),
        }
    };
    let gone = Running::start(ServerConfig::default()).await;
    let address = gone.address.clone();
    gone.stop().await;
    let (host, nobody) = fault(address.clone()).await;
    assert!(matches!(nobody, ConnectionError::Connect(_)) && host == address, "{nobody}");
    assert!(matches!(fault("nothing.invalid".into()).await.1, ConnectionError::Resolve(_)));

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("it listens");
    let address = listener.local_addr().expect("an address").to_string();
    let other = tokio::spawn(async move {
        for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
            let (mut stream, _) = listener.accept().await.expect("a client");
            stream.write_all(answer).await.expect("written");
        }
    });
    let web = fault(address.clone()).await.1;
    assert!(matches!(web, ConnectionError::Foreign), "{web}");
    let closed = fault(address).await.1;
    assert!(matches!(closed, ConnectionError::HungUp | ConnectionError::Broke(_)), "{closed}");
    other.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_is_measured_in_both_directions() {
    let server = Running::start(ServerConfig::default()).await;
    let target = server.target().await;
    let rates = measure_link(&target, Duration::from_millis(450)).await.expect("measured");
    // Loopback is faster than this even on a machine that is busy with other work.
    for rate in [rates.sent_bytes_per_second, rates.received_bytes_per_second] {
        assert!(rate.is_finite() && rate > 1e6, "{rates:?}");
    }
    assert!(rates.round_trip_seconds > 0.0 && rates.round_trip_seconds < 1.0, "{rates:?}");
    // The server's tasks have ended: nothing is sent to a client that is gone.
    server.stop().await;
    let error = measure_link(&target, Duration::from_millis(100)).await.expect_err("no server");
    assert!(matches!(error, NetbenchError::Host { .. }), "{error}");
}
