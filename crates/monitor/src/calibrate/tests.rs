//! This host, measured in a short time.

use std::os::fd::AsFd as _;

use super::*;

fn options(folder: &std::path::Path) -> CalibrateOptions {
    CalibrateOptions {
        bytes_max: 8 << 20,
        memory_bytes_max: 256 << 20,
        duration: Duration::from_millis(100),
        ..CalibrateOptions::new(folder)
    }
}

/// A folder on the disk of this crate, and not in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

#[test]
fn every_speed_of_this_host_is_measured_or_has_a_reason_and_no_file_is_left() {
    let folder = folder();
    let mut seen = std::collections::BTreeSet::new();
    let measured = calibrate_host(&options(folder.path()), |progress| {
        // The file of the disk never has a name.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        seen.insert(progress.kind);
    })
    .unwrap();
    for kind in SpeedKind::ALL {
        match &measured.results[&kind] {
            SpeedResult::Measured(spread) => {
                assert!(spread.repetitions >= 5 && spread.min > 0.0, "{kind:?}: {spread:?}");
                assert!(spread.min <= spread.median && spread.median <= spread.max, "{kind:?}: {spread:?}");
                assert!(spread.max.is_finite());
            }
            SpeedResult::Missing { reason } => assert!(reason.len() > 10, "{kind:?}: {reason}"),
        }
    }
    assert!(seen.contains(&SpeedKind::ProcessorOne));
    let speeds = measured.speeds;
    assert!(speeds.processors > 0 && speeds.cpu_units_per_second.unwrap() > 0.0);
    assert!(measured.measured_at > 1_500_000_000 && measured.kernel.starts_with("Linux "));
    assert!(measured.file_bytes <= 8 << 20);
    assert_eq!(measured.disk.is_some(), speeds.disk_bytes.is_some());

    // The link is added, or nothing changes.
    let mut linked = measured.clone();
    let values = |sent| LinkValues {
        sent_bytes_per_second: vec![sent, 3e8, 1e8],
        received_bytes_per_second: vec![5e7],
        round_trip_seconds: vec![2e-4, 4e-4],
    };
    for bad in [values(f64::NAN), values(-2e8), LinkValues::default()] {
        let error = linked.set_link("db", bad.clone()).err();
        let is_bad = bad.sent_bytes_per_second.is_empty();
        assert_eq!(matches!(error, Some(HostCalibrateError::Implausible(_))), is_bad, "{bad:?}");
    }
    linked.set_link("db", values(2e8)).unwrap();
    let link = linked.speeds.link;
    assert_eq!((link.sent_bytes_per_second, link.received_bytes_per_second), (Some(2e8), Some(5e7)));
    assert_eq!(link.round_trip_seconds, Some(3.0000000000000003e-4));
    assert_eq!(linked.speeds.cpu_units_per_second, speeds.cpu_units_per_second);
    assert!(
        matches!(&linked.results[&SpeedKind::LinkSend], SpeedResult::Measured(spread) if spread.min == 1e8)
    );

    let store = HostSpeedsStore::at(folder.path().join("state"));
    assert_eq!(store.find_this_host().unwrap(), None);
    let path = store.keep(&measured).unwrap();
    let found = store.find_this_host().unwrap().unwrap();
    assert_eq!((found.speeds.processors, found.results.len()), (speeds.processors, SpeedKind::ALL.len()));
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to) in [("\"version\": 1", "\"version\": 7"), ("\"processors\": ", "\"processors\": 9999")] {
        assert_ne!(text.replace(from, to), text);
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let error = store.find(&measured.host).unwrap_err();
        assert!(matches!(error, lightship_session::StateError::Damaged { .. }), "{error}");
    }
}

#[test]
fn a_folder_in_memory_has_no_disk() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let kind = rustix::fs::fstatfs(std::fs::File::open(folder.path()).unwrap().as_fd()).unwrap().f_type;
    if kind as u64 != 0x0102_1994 {
        return;
    }
    let measured = calibrate_host(&options(folder.path()), |_| ()).unwrap();
    let SpeedResult::Missing { reason } = &measured.results[&SpeedKind::DiskRead] else {
        panic!("{measured:?}")
    };
    assert!(reason.contains("in memory"), "{reason}");
    assert_eq!((measured.speeds.disk_read_bytes_per_second, measured.file_bytes), (None, 0));
}

#[test]
fn a_missing_folder_is_an_error() {
    let options = options("/not/there".as_ref());
    let error = calibrate_host(&options, |_| panic!("nothing is measured")).unwrap_err();
    assert!(matches!(error, HostCalibrateError::Disk { .. }), "{error}");
    assert!(error.to_string().starts_with("cannot measure the disk of /not/there"), "{error}");
}
