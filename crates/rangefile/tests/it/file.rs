//! One file: writes, reads, names.

use lightship_rangefile::{Capacity, Definition, Interval, RangeError, RangeFile, ScanOptions, WriteMode};

use crate::support::{Cluster, all, expected, interval, key, options, rows, scan, schema, upsert};

#[tokio::test]
async fn rows_are_there_after_a_restart() {
    let cluster = Cluster::start(1).await;
    let file = cluster.create("t", Capacity::default()).await;
    file.write(WriteMode::Insert, &rows([5, 1, 3], "")).await.unwrap();
    upsert(&file, [3, 4], "!").await;
    file.write(WriteMode::Delete, &rows([5, 9], "")).await.unwrap();
    let now = [(1, "1".to_owned()), (3, "3!".to_owned()), (4, "4!".to_owned())];
    assert_eq!(all(&file).await, now);
    cluster.stop(0);
    cluster.begin(0).await;
    let file = cluster.open("t").await;
    assert_eq!(all(&file).await, now);
    assert_eq!(file.get(key(&file, 3)).await.unwrap(), rows([3], "!"));
    assert_eq!(file.get(key(&file, 5)).await.unwrap().num_rows(), 0);
}

/// Blocks and numbers of rows are kept in memory.
#[tokio::test]
async fn what_is_read_again_is_what_is_there_now() {
    let cluster = Cluster::start(1).await;
    let file = cluster.create("t", Capacity::default()).await;
    upsert(&file, 0..10_000, "").await;
    for round in 0..12 {
        let text = format!("!{round}");
        upsert(&file, [5000], &text).await;
        for _ in 0..2 {
            assert_eq!(file.get(key(&file, 5000)).await.unwrap(), rows([5000], &text));
            assert_eq!(file.get(key(&file, 7)).await.unwrap(), rows([7], ""));
            assert_eq!(file.count(&Interval::ALL).await.unwrap(), 10_000 - round);
        }
        file.write(WriteMode::Delete, &rows([5000, 9000 + round as i64], "")).await.unwrap();
        for _ in 0..2 {
            assert_eq!(file.get(key(&file, 5000)).await.unwrap().num_rows(), 0);
            assert_eq!(file.count(&Interval::ALL).await.unwrap(), 10_000 - round - 2);
        }
    }
}

#[tokio::test]
async fn an_existing_key_is_not_inserted() {
    let cluster = Cluster::start(1).await;
    let file = cluster.create("t", Capacity::default()).await;
    file.write(WriteMode::Insert, &rows(0..10_000, "")).await.unwrap();
    let error = file.write(WriteMode::Insert, &rows([10_001, 7], "")).await.unwrap_err();
    assert_eq!(error.to_string(), "key 7 exists already");
    let error = file.write(WriteMode::Insert, &rows([20_001, 20_001], "")).await.unwrap_err();
    assert_eq!(error.to_string(), "key 20001 exists already");
    assert_eq!(all(&file).await, expected(0..10_000, ""));
    // After a deletion, it can be.
    file.write(WriteMode::Delete, &rows([7], "")).await.unwrap();
    file.write(WriteMode::Insert, &rows([7], "")).await.unwrap();
    // An insert whose outcome was unknown is repeated.
    file.write(WriteMode::InsertAgain, &rows([7], "")).await.unwrap();
    assert!(file.write(WriteMode::InsertAgain, &rows([7], "!")).await.is_err());
    assert_eq!(all(&file).await, expected(0..10_000, ""));
}

#[tokio::test]
async fn scans_have_intervals_limits_and_columns() {
    let cluster = Cluster::start(2).await;
    let file = cluster.create("t", Capacity::Records(100)).await;
    upsert(&file, 0..1000, "").await;
    assert_eq!(
        scan(&file, interval(&file, 10, 20), &ScanOptions::default()).await.unwrap(),
        expected(10..20, "")
    );
    let limited = ScanOptions { limit: Some(7), ..ScanOptions::default() };
    assert_eq!(scan(&file, interval(&file, 195, 900), &limited).await.unwrap(), expected(195..202, ""));
    let text = ScanOptions { columns: Some(vec!["text".into()]), ..ScanOptions::default() };
    let scanned = file.scan(Interval::ALL, &text).unwrap();
    assert_eq!(scanned.schema.fields().len(), 1);
    let none = ScanOptions { columns: Some(Vec::new()), ..ScanOptions::default() };
    let scanned = file.scan(interval(&file, 0, 500), &none).unwrap();
    let batches: Vec<_> = futures::TryStreamExt::try_collect(scanned.rows).await.unwrap();
    assert_eq!(batches.iter().map(arrow_array::RecordBatch::num_rows).sum::<usize>(), 500);
    assert!(
        file.scan(Interval::ALL, &ScanOptions { columns: Some(vec!["x".into()]), ..ScanOptions::default() })
            .is_err()
    );
}

#[tokio::test]
async fn files_have_different_names() {
    let cluster = Cluster::start(2).await;
    cluster.create("t", Capacity::default()).await;
    let definition = Definition::new("t", &schema(), &["text".into()], Capacity::default()).unwrap();
    let again = RangeFile::create(cluster.client(), &definition, options()).await.unwrap_err();
    assert_eq!(again.to_string(), "range file t exists already");
    let missing = RangeFile::open(cluster.client(), "x", options()).await.unwrap_err();
    assert!(matches!(missing, RangeError::NoFile(_)), "{missing}");
    RangeFile::drop_file(&cluster.client(), "t", options()).await.unwrap();
    RangeFile::open(cluster.client(), "t", options()).await.unwrap_err();
    cluster.create("t", Capacity::default()).await;
}

#[tokio::test]
async fn many_writers_of_single_rows_are_all_heard() {
    let cluster = Cluster::start(1).await;
    let file = cluster.create("t", Capacity::default()).await;
    let writers = (0..8).map(|writer| {
        let file = file.clone();
        tokio::spawn(async move {
            for id in 0..50 {
                file.write(WriteMode::Insert, &rows([id * 8 + writer], "")).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert_eq!(all(&file).await, expected(0..400, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_reads_a_bucket_as_it_was_when_it_began() {
    use futures::TryStreamExt;
    let cluster = Cluster::start(1).await;
    let file = cluster.create("t", Capacity::default()).await;
    for part in 0..4 {
        upsert(&file, part * 10_000..(part + 1) * 10_000, "").await;
    }
    let mut scanned = file.scan(Interval::ALL, &ScanOptions::default()).unwrap().rows;
    let mut found = vec![scanned.try_next().await.unwrap().unwrap()];
    // The runs that it reads are merged meanwhile, several times.
    for round in 0..70 {
        upsert(&file, [round * 500, 39_999 - round], "!").await;
    }
    file.write(WriteMode::Delete, &rows(20_000..30_000, "")).await.unwrap();
    found.extend(scanned.try_collect::<Vec<_>>().await.unwrap());
    let whole = arrow_select::concat::concat_batches(&found[0].schema(), &found).unwrap();
    assert_eq!(whole, rows(0..40_000, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_and_the_greatest_key_are_found() {
    let cluster = Cluster::start(2).await;
    let file = cluster.create("t", Capacity::Records(20)).await;
    let ends = |file: lightship_rangefile::RangeFile, from: i64, to: i64| async move {
        let within = interval(&file, from, to);
        let found = (file.least_key(&within).await.unwrap(), file.greatest_key(&within).await.unwrap());
        let text = |found: Option<Vec<u8>>| found.map(|key| file.definition().format().display(&key));
        (text(found.0), text(found.1))
    };
    let keys = |least: i64, greatest: i64| (Some(least.to_string()), Some(greatest.to_string()));
    assert_eq!(file.least_key(&Interval::ALL).await.unwrap(), None);
    assert_eq!(file.greatest_key(&Interval::ALL).await.unwrap(), None);
    upsert(&file, (0..1000).map(|id| id * 2), "").await;
    crate::support::until_buckets(&file, 40).await;
    for file in [file.clone(), cluster.open("t").await] {
        assert_eq!(file.least_key(&Interval::ALL).await.unwrap(), Some(key(&file, 0)));
        assert_eq!(file.greatest_key(&Interval::ALL).await.unwrap(), Some(key(&file, 1998)));
        assert_eq!(ends(file.clone(), 101, 1700).await, keys(102, 1698));
        assert_eq!(ends(file.clone(), 500, 501).await, keys(500, 500));
        assert_eq!(ends(file.clone(), 501, 502).await, (None, None));
        assert_eq!(ends(file.clone(), 5000, 6000).await, (None, None));
    }
    // Buckets at the ends have no rows, or deletions only.
    let deleted = (0..1000).map(|id| id * 2).filter(|id| *id < 600 || *id > 700);
    file.write(WriteMode::Delete, &rows(deleted, "")).await.unwrap();
    for file in [file.clone(), cluster.open("t").await] {
        assert_eq!(ends(file.clone(), -5, 5000).await, keys(600, 700));
        assert_eq!(ends(file.clone(), 600, 700).await, keys(600, 698));
        assert_eq!(ends(file.clone(), 0, 600).await, (None, None));
        assert_eq!(ends(file.clone(), 701, 5000).await, (None, None));
    }
}

/// The last block has deletions only, and an older one the greatest key.
#[tokio::test]
async fn the_greatest_key_is_found_before_deleted_rows() {
    let cluster = Cluster::start(1).await;
    let file = cluster.create("t", Capacity::default()).await;
    for part in 0..3 {
        upsert(&file, part * 20_000..(part + 1) * 20_000, "").await;
    }
    for from in [59_999, 41_000, 20_000, 1, 0] {
        file.write(WriteMode::Delete, &rows(from..60_000, "")).await.unwrap();
        let greatest = (from > 0).then(|| key(&file, from - 1));
        assert_eq!(file.greatest_key(&Interval::ALL).await.unwrap(), greatest, "{from}");
    }
}
