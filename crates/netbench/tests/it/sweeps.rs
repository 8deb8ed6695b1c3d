//! Tests of sweeps: measuring, continuing and plotting.

use std::ops::ControlFlow;

use lightship_netbench::{ResultTable, Row, SavedPlateau, ServerConfig, Sweep, figures};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_continues_where_it_ended() {
    let server = Running::start(ServerConfig::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("netbench.csv");
    let mut sweep = Sweep {
        targets: vec![server.target().await],
        settings: BRIEF,
        connections: vec![2],
        message_bytes: vec![256, 4096],
        retry: false,
    };
    let mut table = ResultTable::open(&path).expect("none yet");
    // The callback ends it.
    sweep.run(&mut table, |_| ControlFlow::Break(())).await.expect("written");
    assert_eq!(sweep.missing(&table), sweep.cells().skip(1).collect::<Vec<_>>());

    // An extended sweep keeps the earlier rows.
    sweep.connections.push(4);
    let mut table = ResultTable::open(&path).expect("written before");
    let before = sweep.rows(&table);
    let mut told = Vec::new();
    let listen = |row: &Row| {
        told.push(row.cell);
        ControlFlow::Continue(())
    };
    sweep.run(&mut table, listen).await.expect("written");
    assert_eq!(told, sweep.cells().skip(1).collect::<Vec<_>>());
    let rows = sweep.rows(&table);
    assert_eq!((rows.len(), &rows[..1]), (4, &before[..]));

    // Cells measured without a server are also saved as rows.
    let host = server.host();
    server.stop().await;
    sweep.connections.push(8);
    sweep.run(&mut table, |_| ControlFlow::Continue(())).await.expect("written");
    let rows = sweep.rows(&ResultTable::open(&path).expect("written before"));
    assert_eq!(rows.len(), 6);
    assert!(rows[4..].iter().all(|row| row.flood_failures == 8 && row.failure.is_some()), "{rows:?}");
    assert!(sweep.missing(&table).is_empty());
    sweep.retry = true;
    assert_eq!(sweep.missing(&table), sweep.cells().skip(4).collect::<Vec<_>>());

    for figure in figures(&rows).expect("drawn") {
        assert!(figure.svg.starts_with("<svg") && figure.svg.trim_end().ends_with("</svg>"), "{figure:?}");
    }
    let now = std::time::SystemTime::now();
    let outcome = SavedPlateau::of(&host, &sweep.settings, &rows, now).expect("a plateau");
    assert!([2, 4].contains(&outcome.plateau.connections), "{outcome:?}");
}
