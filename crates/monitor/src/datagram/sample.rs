//! Samples, divided into datagrams each of which is useful without the others.

use std::net::IpAddr;

use lightship_usage::{Entry, Figure, Figures, Sample, Subject};

use super::bytes::{Reader, put_text, put_varint};
use super::{BODY_BYTES_MAX, DatagramError, HOST_BYTES_MAX, PARTS_MAX, QUERY_BYTES_MAX};

const NAME_BYTES_MAX: usize = 64;
/// Room for the host, the sample's numbers and the parts.
const START_BYTES_MAX: usize = 1 + HOST_BYTES_MAX + 10 + 10 + 3 + 3;

const HOST: u8 = 0;
const DISK: u8 = 1;
const INTERFACE: u8 = 2;
const PROCESS: u8 = 3;
const PEER_V4: u8 = 4;
const PEER_V6: u8 = 5;
const TASK: u8 = 6;

const _: () = assert!(Figure::ALL.len() <= 64, "the figures of an entry are bits of one number");

/// One datagram of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplePart {
    /// The sample, with the entries of this datagram.
    pub sample: Sample,
    /// The number of the part, from 0.
    pub part: u16,
    /// How many parts the sample has.
    pub parts: u16,
}

/// The bodies of a sample, and the number of entries that were left out.
pub(super) fn encode(sample: &Sample) -> (Vec<Vec<u8>>, u64) {
    let mut parts: Vec<Vec<u8>> = vec![Vec::new()];
    let (mut entry, mut left_out) = (Vec::new(), 0);
    for one in &sample.entries {
        entry.clear();
        put_entry(&mut entry, one);
        if entry.is_empty() {
            continue;
        }
        let room = BODY_BYTES_MAX - START_BYTES_MAX;
        let count = parts.len();
        match parts.last_mut() {
            Some(part) if part.len() + entry.len() <= room => part.extend_from_slice(&entry),
            _ if count < usize::from(PARTS_MAX) => parts.push(entry.clone()),
            _ => left_out += 1,
        }
    }
    let count = parts.len() as u64;
    let bodies = (0..).zip(parts).map(|(number, part)| {
        let mut body = Vec::with_capacity(START_BYTES_MAX + part.len());
        put_text(&mut body, &sample.host, HOST_BYTES_MAX);
        put_varint(&mut body, sample.number);
        put_varint(&mut body, sample.at_ns);
        put_varint(&mut body, number);
        put_varint(&mut body, count);
        body.extend_from_slice(&part);
        body
    });
    (bodies.collect(), left_out)
}

/// Writes an entry; nothing if it has no figures.
fn put_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    let mask = entry.figures.iter().fold(0_u64, |mask, (figure, _)| mask | 1 << figure as u8);
    if mask == 0 {
        return;
    }
    match &entry.subject {
        Subject::Host => bytes.push(HOST),
        Subject::Disk(name) => {
            bytes.push(DISK);
            put_text(bytes, name, NAME_BYTES_MAX);
        }
        Subject::Interface(name) => {
            bytes.push(INTERFACE);
            put_text(bytes, name, NAME_BYTES_MAX);
        }
        Subject::Process { pid, began_ns } => {
            bytes.push(PROCESS);
            put_varint(bytes, (*pid).into());
            put_varint(bytes, *began_ns);
        }
        Subject::Peer { pid, began_ns, address } => {
            bytes.push(if address.is_ipv4() { PEER_V4 } else { PEER_V6 });
            put_varint(bytes, (*pid).into());
            put_varint(bytes, *began_ns);
            match address {
                IpAddr::V4(address) => bytes.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes.extend_from_slice(&address.octets()),
            }
        }
        Subject::Task { query, stage, task } => {
            bytes.push(TASK);
            put_text(bytes, query, QUERY_BYTES_MAX);
            put_varint(bytes, (*stage).into());
            put_varint(bytes, (*task).into());
        }
    }
    put_varint(bytes, mask);
    entry.figures.iter().for_each(|(_, value)| put_varint(bytes, value));
}

pub(super) fn decode(reader: &mut Reader<'_>, run: u64) -> Result<SamplePart, DatagramError> {
    let host = reader.text(HOST_BYTES_MAX)?.to_owned();
    if host.is_empty() {
        return Err(DatagramError::Invalid("host"));
    }
    let (number, at_ns) = (reader.varint()?, reader.varint()?);
    let (part, parts) = (reader.varint()?, reader.varint()?);
    if part >= parts || parts > PARTS_MAX.into() {
        return Err(DatagramError::Invalid("part"));
    }
    let mut entries = Vec::new();
    while !reader.0.is_empty() {
        entries.push(entry(reader)?);
    }
    let sample = Sample { host, run, number, at_ns, entries };
    // Both are at most PARTS_MAX.
    Ok(SamplePart { sample, part: part as u16, parts: parts as u16 })
}

fn entry(reader: &mut Reader<'_>) -> Result<Entry, DatagramError> {
    let subject = match reader.byte()? {
        HOST => Subject::Host,
        DISK => Subject::Disk(reader.text(NAME_BYTES_MAX)?.to_owned()),
        INTERFACE => Subject::Interface(reader.text(NAME_BYTES_MAX)?.to_owned()),
        PROCESS => Subject::Process { pid: reader.varint_u32()?, began_ns: reader.varint()? },
        kind @ (PEER_V4 | PEER_V6) => Subject::Peer {
            pid: reader.varint_u32()?,
            began_ns: reader.varint()?,
            address: match kind {
                PEER_V4 => IpAddr::from(reader.array::<4>()?),
                _ => IpAddr::from(reader.array::<16>()?),
            },
        },
        TASK => Subject::Task {
            query: reader.text(QUERY_BYTES_MAX)?.to_owned(),
            stage: reader.varint_u32()?,
            task: reader.varint_u32()?,
        },
        _ => return Err(DatagramError::Invalid("subject")),
    };
    let mask = reader.varint()?;
    if mask == 0 {
        return Err(DatagramError::Invalid("figures"));
    }
    let mut figures = Figures::default();
    for bit in (0..64).filter(|bit| mask >> bit & 1 == 1) {
        let value = reader.varint()?;
        // Figures that a newer agent counts are skipped.
        if let Some(figure) = Figure::ALL.get(bit) {
            figures.set(*figure, value);
        }
    }
    Ok(Entry { subject, figures })
}

/// An estimate of the memory that entries take, in bytes.
pub(crate) fn figures_bytes(entries: &[Entry]) -> usize {
    let one = |entry: &Entry| {
        let text = match &entry.subject {
            Subject::Disk(text) | Subject::Interface(text) | Subject::Task { query: text, .. } => text.len(),
            _ => 0,
        };
        // A leaf of a B-tree has room for 11 figures.
        size_of::<Entry>() + text + entry.figures.iter().count().div_ceil(6).max(1) * 144
    };
    entries.iter().map(one).sum()
}
