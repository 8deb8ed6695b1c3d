//! A server with hostile or broken clients.

use std::time::Duration;

use lightship_netbench::{Cell, ServerConfig, measure};

use crate::support::*;

const SWALLOW: u8 = 1;
const ECHO: u8 = 2;
const SIZE: u8 = 3;
const RUN: u8 = 4;
const MALFORMED: u8 = 5;

/// The server's answer to a header: nothing, or the code of its refusal.
async fn said(server: &Running, header: &[u8]) -> Option<u8> {
    let mut raw = server.raw().await;
    raw.send(header).await;
    let rest = raw.rest().await;
    assert!(rest.is_empty() || (rest.len() == 16 && &rest[..5] == b"LSNB\x01"), "{rest:?}");
    rest.get(5).copied()
}

#[tokio::test]
async fn invalid_headers_are_refused() {
    let server = Running::start(ServerConfig::default()).await;
    assert_eq!(said(&server, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n").await, None);
    assert_eq!(said(&server, &[0xff; 4096]).await, None);
    assert_eq!(said(&server, b"LSNB\x09aaaaaaaaaaaaaaaaaaaaaaaaaaa").await, Some(1));
    assert_eq!(said(&server, &header(9, 0, 256)).await, Some(MALFORMED));
    assert_eq!(said(&server, &header(ECHO, 0, 0)).await, Some(SIZE));
    assert_eq!(said(&server, &header(ECHO, 0, u32::MAX)).await, Some(SIZE));
    assert_eq!(said(&server, &header(SWALLOW, 12345, 256)).await, Some(RUN));
    assert_eq!((server.counters.refused(), server.counters.connections()), (7, 0));
    // The server still works.
    let row = measure(&[server.target().await], &BRIEF, Cell { connections: 1, message_bytes: 9 }).await;
    assert!(row.is_whole(), "{row:?}");
    server.stop().await;
}

#[tokio::test]
async fn received_bytes_are_counted_exactly() {
    let server = Running::start(ServerConfig::default()).await;
    let mut control = server.raw().await;
    control.send(&header(0, 0, 0)).await;
    let answer: [u8; 16] = control.receive().await;
    let run = u64::from_le_bytes(*answer.last_chunk().expect("8 bytes"));
    assert_ne!(run, 0);
    let bytes_so_far = async |control: &mut Raw, asked| {
        control.send(&[asked]).await;
        let reading: [u8; 32] = control.receive().await;
        u64::from_le_bytes(*reading[8..].first_chunk().expect("8 bytes"))
    };
    assert_eq!(bytes_so_far(&mut control, 1).await, 0);
    let mut tallies = Vec::new();
    for sent in [0usize, 1, 1000, 300_000] {
        let mut raw = server.raw().await;
        raw.send(&header(SWALLOW, run, 300)).await;
        let _: [u8; 16] = raw.receive().await;
        raw.send(&vec![7; sent]).await;
        tokio::io::AsyncWriteExt::shutdown(&mut raw.0).await.expect("shut down");
        let tally: [u8; 16] = raw.receive().await;
        tallies.push((tally[..8].to_vec(), tally[8..].to_vec()));
        let number = |n: usize| (n as u64).to_le_bytes().to_vec();
        assert_eq!(tallies.last(), Some(&(number(sent), number(sent / 300))));
    }
    assert_eq!(bytes_so_far(&mut control, 2).await, 301_001);
    assert_eq!(server.counters.bytes(), 301_001);
    // An invalid request ends the control connection and its run.
    control.send(&[77]).await;
    control.rest().await;
    assert_eq!(said(&server, &header(SWALLOW, run, 300)).await, Some(RUN));
    server.stop().await;
}

#[tokio::test]
async fn an_echo_equals_its_message() {
    let server = Running::start(ServerConfig::default()).await;
    let mut raw = server.raw().await;
    raw.send(&header(ECHO, 0, 1000)).await;
    let _: [u8; 16] = raw.receive().await;
    for n in 0..3u8 {
        let message: Vec<u8> = (0..1000u32).map(|i| (i % 251) as u8 ^ n).collect();
        // Sent in two parts, and answered as a whole.
        raw.send(&message[..500]).await;
        raw.send(&message[500..]).await;
        let back: [u8; 1000] = raw.receive().await;
        assert_eq!(back[..], message[..]);
    }
    server.stop().await;
}

#[tokio::test]
async fn silent_and_idle_connections_are_closed() {
    let brief = Duration::from_millis(50);
    let config = ServerConfig { header_timeout: brief, idle: brief, ..ServerConfig::default() };
    let server = Running::start(config).await;
    let mut silent = server.raw().await;
    silent.send(b"LSN").await;
    assert_eq!(silent.rest().await, b"");
    let mut idle = server.raw().await;
    idle.send(&header(ECHO, 0, 100)).await;
    idle.send(&[1; 99]).await;
    assert_eq!(idle.rest().await.len(), 16);
    server.stop().await;
}
