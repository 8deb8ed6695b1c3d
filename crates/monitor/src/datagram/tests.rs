//! Samples and descriptions as datagrams, and datagrams that are damaged.

use std::net::IpAddr;

use lightship_usage::{
    Entry, Figure, FigureSource, Figures, HostSources, HostSpeeds, LinkSpeeds, Sample, Subject, SubjectKind,
};
use proptest::prelude::*;

use super::*;
use crate::facts::HostFacts;

fn figures() -> impl Strategy<Value = Figures> {
    proptest::collection::btree_map(0..Figure::ALL.len(), any::<u64>(), 1..Figure::ALL.len()).prop_map(
        |values| {
            let mut figures = Figures::default();
            values.into_iter().for_each(|(figure, value)| figures.set(Figure::ALL[figure], value));
            figures
        },
    )
}

fn subject() -> impl Strategy<Value = Subject> {
    prop_oneof![
        Just(Subject::Host),
        "[a-zé]{0,20}".prop_map(Subject::Disk),
        "[a-z0-9:]{0,20}".prop_map(Subject::Interface),
        any::<(u32, u64)>().prop_map(|(pid, began_ns)| Subject::Process { pid, began_ns }),
        any::<(u32, u64, IpAddr)>().prop_map(|(pid, began_ns, address)| Subject::Peer {
            pid,
            began_ns,
            address
        }),
        ("[ -~]{0,80}", any::<(u32, u32)>()).prop_map(|(query, (stage, task))| Subject::Task {
            query,
            stage,
            task
        }),
    ]
}

fn sample() -> impl Strategy<Value = Sample> {
    let entry = (subject(), figures()).prop_map(|(subject, figures)| Entry { subject, figures });
    ("[a-z]{1,64}", any::<(u64, u64)>(), proptest::collection::vec(entry, 0..60))
        .prop_map(|(host, (number, at_ns), entries)| Sample { host, run: 7, number, at_ns, entries })
}

proptest! {
    #[test]
    fn a_sample_comes_back_from_its_parts(sample in sample(), header: (u64, u64, u64), answered: Option<(u64, u64)>) {
        let keys = Keys::of("token");
        let header = DatagramHeader {
            run: 7,
            sequence: header.0,
            session: header.1,
            sent_ns: header.2,
            wants_answer: header.0 % 2 == 0,
            answered: answered.map(|(sequence, received_ns)| Answered { sequence, received_ns }),
        };
        let (bodies, left_out) = SealableBody::of_sample(&sample);
        prop_assert_eq!(left_out, 0);
        let mut entries = Vec::new();
        for (number, body) in bodies.iter().enumerate() {
            let bytes = body.seal(&header, &keys);
            prop_assert!(bytes.len() <= DATAGRAM_BYTES_MAX);
            let (opened, DatagramBody::Sample(part)) = open(&bytes, &keys).unwrap() else { panic!() };
            prop_assert_eq!(opened, header);
            prop_assert_eq!(usize::from(part.part), number);
            prop_assert_eq!(usize::from(part.parts), bodies.len());
            prop_assert_eq!(&part.sample.host, &sample.host);
            prop_assert_eq!((part.sample.number, part.sample.at_ns), (sample.number, sample.at_ns));
            entries.extend(part.sample.entries);
        }
        prop_assert_eq!(entries, sample.entries);
    }

    #[test]
    fn any_change_is_noticed(at in 0..1400_usize, bit in 0..8_u8, cut in 1..100_usize) {
        let keys = Keys::of("token");
        let sample = Sample { host: "h".into(), run: 1, number: 2, at_ns: 3, entries: vec![] };
        let bytes = SealableBody::of_sample(&sample).0[0].seal(&DatagramHeader::default(), &keys);
        let mut changed = bytes.clone();
        let at = at % bytes.len();
        changed[at] ^= 1 << bit;
        prop_assert!(open(&changed, &keys).is_err());
        prop_assert!(open(&bytes[..bytes.len() - cut.min(bytes.len())], &keys).is_err());
    }

    #[test]
    fn any_bytes_of_a_peer_with_the_token_end(kind in 0..4_u8, body in proptest::collection::vec(any::<u8>(), 0..1300)) {
        let keys = Keys::of("token");
        let bytes = SealableBody { kind, bytes: body }.seal(&DatagramHeader::default(), &keys);
        let _ = open(&bytes, &keys);
    }
}

#[test]
fn a_datagram_with_another_token_or_of_the_other_direction_is_forged() {
    let keys = Keys::of("token");
    let answer = Answer { run: 1, sequence: 2, session: 3, run_seen: 4 };
    let bytes = answer.seal(&keys);
    assert_eq!(Answer::open(&bytes, &keys), Ok(answer));
    assert_eq!(Answer::open(&bytes, &Keys::of("other")), Err(DatagramError::Forged));
    assert_eq!(open(&bytes, &keys), Err(DatagramError::Forged));
    assert_eq!(open(&[0; 2000], &keys), Err(DatagramError::Long));
    assert_eq!(open(b"LSU", &keys), Err(DatagramError::Cut));
    assert_eq!(open(b"other bytes", &keys), Err(DatagramError::Foreign));
    assert_eq!(open(b"LSUD\x09", &keys), Err(DatagramError::Version(9)));
}

#[test]
fn a_description_comes_back_in_parts_that_are_useful_alone() {
    let mut sources = HostSources::unread();
    sources.set(
        SubjectKind::Host,
        Figure::CpuUserNs,
        FigureSource::Available { from: "/proc/stat".into(), resolution: 10_000_000 },
    );
    let facts = HostFacts {
        processors: 4,
        processor_limit_milli: Some(1500),
        memory_bytes: Some(1 << 40),
        kernel: "6.1".into(),
        hidden: "in a container".into(),
        processes: 2,
        entries_left_out: u64::MAX,
        ..HostFacts::default()
    };
    let name = |pid| ProcessName { pid, began_ns: 5, parent: 1, name: "postgres".into() };
    let description = Description {
        host: "db1".into(),
        interval_ns: 1_000_000_000,
        facts,
        sources: sources.iter().map(|(scope, figure, row)| (scope, figure, row.clone())).collect(),
        processes: (0..300).map(name).collect(),
        speeds: Some(Box::new(HostSpeeds {
            processors: 4,
            cpu_units_per_second: Some(1e9),
            disk_write_bytes_per_second: Some(2.5e8),
            disk_bytes: Some(1 << 40),
            link: LinkSpeeds { round_trip_seconds: Some(1e-4), ..LinkSpeeds::default() },
            ..HostSpeeds::default()
        })),
    };
    let keys = Keys::of("token");
    let mut read = Description::default();
    let bodies = SealableBody::of_description(&description);
    assert!(bodies.len() > 2);
    for body in bodies {
        let bytes = body.seal(&DatagramHeader::default(), &keys);
        let (_, DatagramBody::Description(part)) = open(&bytes, &keys).unwrap() else { panic!() };
        assert_eq!(part.facts, description.facts);
        read.sources.extend(part.sources);
        read.processes.extend(part.processes);
        read.speeds = read.speeds.or(part.speeds);
        (read.host, read.interval_ns, read.facts) = (part.host, part.interval_ns, part.facts);
    }
    assert_eq!(read, description);
}

#[test]
fn a_sample_that_is_too_large_leaves_entries_out_and_counts_them() {
    let mut figures = Figures::default();
    Figure::ALL.iter().for_each(|figure| figures.set(*figure, u64::MAX));
    let entry =
        |pid| Entry { subject: Subject::Process { pid, began_ns: u64::MAX }, figures: figures.clone() };
    let entries: Vec<_> = (0..3000).map(entry).collect();
    let sample = Sample { host: "h".into(), run: 1, number: 2, at_ns: 3, entries };
    let (bodies, left_out) = SealableBody::of_sample(&sample);
    assert_eq!(bodies.len(), usize::from(PARTS_MAX));
    assert_eq!(left_out, 3000 - 512 * 3);
}

#[test]
fn figures_that_are_not_known_yet_are_skipped() {
    let keys = Keys::of("token");
    let mut bytes = vec![1, b'h', 0, 0, 0, 1, 0];
    bytes::put_varint(&mut bytes, 1 << 63 | 1);
    bytes.extend_from_slice(&[5, 6]);
    let bytes = SealableBody { kind: KIND_SAMPLE, bytes }.seal(&DatagramHeader::default(), &keys);
    let (_, DatagramBody::Sample(part)) = open(&bytes, &keys).unwrap() else { panic!() };
    assert_eq!(part.sample.entries[0].figures.iter().collect::<Vec<_>>(), [(Figure::CpuUserNs, 5)]);
}

#[test]
fn sources_of_unknown_scopes_and_figures_are_skipped() {
    let keys = Keys::of("token");
    let description = Description { host: "h".into(), ..Description::default() };
    let mut body = SealableBody::of_description(&description).remove(0);
    for (scope, figure) in [(99, 0), (0, 99), (5, 0)] {
        body.bytes.extend_from_slice(&[1, scope, figure, 0, 1, b'x']);
    }
    let (_, DatagramBody::Description(read)) =
        open(&body.seal(&DatagramHeader::default(), &keys), &keys).unwrap()
    else {
        panic!()
    };
    let source = FigureSource::Unavailable { reason: "x".into() };
    assert_eq!(read.sources, [(SubjectKind::Task, Figure::CpuUserNs, source)]);
}

#[test]
fn rows_that_only_a_newer_agent_has_are_skipped_and_wrong_speeds_refused() {
    let keys = Keys::of("token");
    let read = |rows: &[u8]| {
        let description = Description { host: "h".into(), ..Description::default() };
        let mut body = SealableBody::of_description(&description).remove(0);
        body.bytes.extend_from_slice(rows);
        open(&body.seal(&DatagramHeader::default(), &keys), &keys)
    };
    let process = [2, 7, 0, 1, 1, b'x'];
    let rows = [&[200, 3, 1, 2, 3, 4, 0][..], &process].concat();
    let (_, DatagramBody::Description(description)) = read(&rows).unwrap() else { panic!() };
    assert_eq!((description.processes.len(), description.speeds), (1, None));
    // Numbers after those that are known belong to the row.
    let speeds = |mask: u8, numbers: &[f64]| {
        let mut row = vec![3, 2 + 8 * numbers.len() as u8, 0, mask];
        row.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        row.extend(process);
        row
    };
    let (_, DatagramBody::Description(description)) = read(&speeds(1, &[5.0, 6.0])).unwrap() else {
        panic!()
    };
    assert_eq!(description.speeds.unwrap().cpu_units_per_second, Some(5.0));
    assert_eq!(description.processes.len(), 1);
    for wrong in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(read(&speeds(1, &[wrong])), Err(DatagramError::Invalid("speeds")));
    }
    assert_eq!(read(&speeds(3, &[5.0])), Err(DatagramError::Cut));
    assert_eq!(read(&[200, 3, 1]), Err(DatagramError::Cut));
}
