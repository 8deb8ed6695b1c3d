//! Results larger than the allowed memory.

use std::io::Read;
use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray};

use crate::support::*;

#[test]
fn a_column_of_more_than_two_gigabytes_of_text_is_streamed() {
    const ROWS: usize = 560_000;
    const WIDTH: usize = 4_000;
    const _: () = assert!(ROWS * WIDTH > 1 << 31);
    let folder = Folder::new();
    // The text compresses well: the file is small, its content is not.
    let text = "lightship ".repeat(WIDTH / 10);
    let batch = {
        let column = StringArray::from_iter_values(std::iter::repeat_n(&text, 4_000));
        RecordBatch::try_from_iter([("text", Arc::new(column) as _)]).expect("a batch")
    };
    write_parquet(&folder.file("wide.parquet"), std::iter::repeat_n(batch, ROWS / 4_000));
    let node = Node::start(&["--table", &format!("wide={}", folder.arg("wide.parquet"))]);
    let mut client =
        Process::start(&["--json", "fetch", &node.uri, "select text from wide", "--format", "stream"]);
    // Count the bytes as they arrive, without keeping them.
    let mut stdout = client.stdout();
    let (mut bytes, mut buffer) = (0_u64, vec![0; 1 << 20]);
    loop {
        match stdout.read(&mut buffer).expect("a pipe") {
            0 => break,
            read => bytes += read as u64,
        }
    }
    let outcome = client.end().succeeds();
    let report = outcome.json();
    assert_eq!(report["rows"], ROWS, "{report}");
    assert!(report["bytes_arrow"].as_u64() > Some((ROWS * WIDTH) as u64), "{report}");
    assert!(bytes > (ROWS * WIDTH) as u64, "{bytes}");
    let peak = report["peak_memory_bytes"].as_u64().expect("a peak");
    assert!(peak < 256 << 20, "the client held {peak} bytes");
    let node_peak = node.process.memory_bytes("VmHWM:");
    assert!(node_peak < 1 << 30, "the node held {node_peak} bytes");
    eprintln!("{bytes} bytes in {} s; client {peak}, node {node_peak} bytes at most", report["seconds"]);
}

#[test]
fn a_batch_with_more_text_than_offsets_reach_is_whole_or_an_error() {
    // 2.2 GB in 2 200 rows: a batch of thousands of rows would need offsets beyond 32 bits.
    const ROWS: usize = 2_200;
    let folder = Folder::new();
    let text = "x".repeat(1_000_000);
    let batch = {
        let column = StringArray::from_iter_values(std::iter::repeat_n(&text, 100));
        RecordBatch::try_from_iter([("text", Arc::new(column) as _)]).expect("a batch")
    };
    write_parquet(&folder.file("wide.parquet"), std::iter::repeat_n(batch, ROWS / 100));
    let node = Node::start(&["--table", &format!("wide={}", folder.arg("wide.parquet"))]);
    let fetch = Process::start(&[
        "--json",
        "fetch",
        &node.uri,
        "select text from wide",
        "-o",
        "/dev/null",
        "--format",
        "stream",
    ]);
    // A busy machine takes more than usual for gigabytes.
    let outcome = fetch.end_within(4 * PATIENCE);
    eprintln!("{outcome}");
    // Either a complete result or an error, never a truncated result; and the node survives.
    if outcome.code == Some(0) {
        assert_eq!(outcome.json()["rows"], ROWS, "{outcome}");
    } else {
        assert!(matches!(outcome.code, Some(SOURCE | DATA | LIMITS)), "{outcome}");
    }
    node.serves();
}
