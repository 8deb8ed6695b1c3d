//! Descriptions of hosts, divided into datagrams each of which is useful without the others.

use std::borrow::Cow;

use lightship_usage::{Figure, FigureSource, HostSpeeds, SubjectKind};

use super::bytes::{Reader, put_text, put_varint};
use super::{BODY_BYTES_MAX, DatagramError, HOST_BYTES_MAX};
use crate::facts::HostFacts;

const NAME_BYTES_MAX: usize = 64;
const KERNEL_BYTES_MAX: usize = 64;
/// The most datagrams of one description; further rows are left out.
const DATAGRAMS_MAX: usize = 512;

const AVAILABLE: u8 = 0;
const UNAVAILABLE: u8 = 1;
const PROCESS: u8 = 2;
/// Rows of this kind and of all later ones say how long they are, so that readers can skip those that they don't know.
const SPEEDS: u8 = 3;

/// A row of [`HostSources`](lightship_usage::HostSources).
pub type SourceRow = (SubjectKind, Figure, FigureSource);

/// The name of a process that is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessName {
    /// Its number.
    pub pid: u32,
    /// When it began, in nanoseconds after the host did.
    pub began_ns: u64,
    /// The number of its parent.
    pub parent: u32,
    /// Its name, of which the kernel knows 15 bytes.
    pub name: String,
}

/// What an agent reports about its host besides samples, or the part of it that one datagram has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Description {
    /// The host's name.
    pub host: String,
    /// The time between two samples, in nanoseconds.
    pub interval_ns: u64,
    /// Facts about the host.
    pub facts: HostFacts,
    /// Where figures come from.
    pub sources: Vec<SourceRow>,
    /// The names of processes.
    pub processes: Vec<ProcessName>,
    /// What the host can do at most; `None` if it was not measured, or in another datagram.
    pub speeds: Option<Box<HostSpeeds>>,
}

/// The numbers of speeds, in their order in datagrams. The number of processors is among the facts.
fn numbers(speeds: &mut HostSpeeds) -> [&mut Option<f64>; 10] {
    let link = &mut speeds.link;
    [
        &mut speeds.cpu_units_per_second,
        &mut speeds.cycles_per_instruction,
        &mut speeds.cycles_per_second,
        &mut speeds.disk_read_bytes_per_second,
        &mut speeds.disk_write_bytes_per_second,
        &mut speeds.disk_access_seconds,
        &mut speeds.memory_bytes_per_second,
        &mut link.received_bytes_per_second,
        &mut link.sent_bytes_per_second,
        &mut link.round_trip_seconds,
    ]
}

/// A varint of the numbers that are there, these numbers, and the bytes of the disk.
fn put_speeds(row: &mut Vec<u8>, mut speeds: HostSpeeds) {
    let disk_bytes = speeds.disk_bytes;
    let numbers = numbers(&mut speeds);
    let mask = numbers.iter().rev().fold(0, |mask, number| mask << 1 | u64::from(number.is_some()));
    let mut bytes = Vec::new();
    put_varint(&mut bytes, disk_bytes.map_or(0, |bytes| bytes.saturating_add(1)));
    put_varint(&mut bytes, mask);
    numbers.iter().filter_map(|number| **number).for_each(|number| bytes.extend(number.to_le_bytes()));
    row.push(SPEEDS);
    put_varint(row, bytes.len() as u64);
    row.extend(bytes);
}

fn read_speeds(mut reader: Reader<'_>, processors: u32) -> Result<HostSpeeds, DatagramError> {
    let disk_bytes = reader.varint()?.checked_sub(1);
    let mask = reader.varint()?;
    let mut speeds = HostSpeeds { processors, disk_bytes, ..HostSpeeds::default() };
    for (bit, number) in numbers(&mut speeds).into_iter().enumerate() {
        if mask & 1 << bit != 0 {
            *number = Some(f64::from_le_bytes(reader.array()?));
        }
    }
    speeds.check().map_err(|_| DatagramError::Invalid("speeds"))?;
    Ok(speeds)
}

pub(super) fn encode(description: &Description) -> Vec<Vec<u8>> {
    let facts = &description.facts;
    let mut start = Vec::new();
    put_text(&mut start, &description.host, HOST_BYTES_MAX);
    put_varint(&mut start, description.interval_ns);
    put_varint(&mut start, facts.processors.into());
    for limit in [facts.processor_limit_milli, facts.memory_bytes, facts.memory_limit_bytes] {
        // 0 means that there is no limit.
        put_varint(&mut start, limit.map_or(0, |limit| limit.saturating_add(1)));
    }
    put_text(&mut start, &facts.kernel, KERNEL_BYTES_MAX);
    put_text(&mut start, &facts.hidden, FigureSource::TEXT_BYTES_MAX);
    put_varint(&mut start, facts.processes.into());
    put_varint(&mut start, facts.processes_left_out.into());
    put_varint(&mut start, facts.entries_left_out);
    put_varint(&mut start, facts.sockets_left_out);

    let mut bodies = vec![start.clone()];
    let mut row = Vec::new();
    let sources = description.sources.iter().map(Ok);
    for one in sources.chain(description.processes.iter().map(Err)) {
        row.clear();
        match one {
            Ok((scope, figure, source)) => {
                let (kind, resolution, text) = match source {
                    FigureSource::Available { from, resolution } => (AVAILABLE, *resolution, from),
                    FigureSource::Unavailable { reason } => (UNAVAILABLE, 0, reason),
                };
                row.extend_from_slice(&[kind, *scope as u8, *figure as u8]);
                put_varint(&mut row, resolution);
                put_text(&mut row, text, FigureSource::TEXT_BYTES_MAX);
            }
            Err(process) => {
                row.push(PROCESS);
                put_varint(&mut row, process.pid.into());
                put_varint(&mut row, process.began_ns);
                put_varint(&mut row, process.parent.into());
                put_text(&mut row, &process.name, NAME_BYTES_MAX);
            }
        }
        let count = bodies.len();
        match bodies.last_mut() {
            Some(body) if body.len() + row.len() <= BODY_BYTES_MAX => body.extend_from_slice(&row),
            _ if count < DATAGRAMS_MAX => bodies.push([&start[..], &row].concat()),
            _ => break,
        }
    }
    if let Some(speeds) = description.speeds.as_deref() {
        // Alone, because readers before this kind of row refuse its datagram.
        let mut body = start;
        put_speeds(&mut body, *speeds);
        bodies.push(body);
    }
    bodies
}

pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Description, DatagramError> {
    let host = reader.text(HOST_BYTES_MAX)?.to_owned();
    if host.is_empty() {
        return Err(DatagramError::Invalid("host"));
    }
    let interval_ns = reader.varint()?;
    let processors = reader.varint_u32()?;
    let mut limit = || reader.varint().map(|limit| limit.checked_sub(1));
    let (processor_limit_milli, memory_bytes, memory_limit_bytes) = (limit()?, limit()?, limit()?);
    let facts = HostFacts {
        processors,
        processor_limit_milli,
        memory_bytes,
        memory_limit_bytes,
        kernel: reader.text(KERNEL_BYTES_MAX)?.to_owned(),
        hidden: reader.text(FigureSource::TEXT_BYTES_MAX)?.to_owned(),
        processes: reader.varint_u32()?,
        processes_left_out: reader.varint_u32()?,
        entries_left_out: reader.varint()?,
        sockets_left_out: reader.varint()?,
    };
    let mut description = Description { host, interval_ns, facts, ..Description::default() };
    while !reader.0.is_empty() {
        match reader.byte()? {
            kind @ (AVAILABLE | UNAVAILABLE) => {
                let (scope, figure) = (reader.byte()?, reader.byte()?);
                let resolution = reader.varint()?;
                let text: Cow<'static, str> = reader.text(FigureSource::TEXT_BYTES_MAX)?.to_owned().into();
                // Rows that only a newer agent has are skipped.
                let kind_of = SubjectKind::ALL.get(usize::from(scope));
                let Some((scope, figure)) = kind_of.zip(Figure::ALL.get(usize::from(figure))) else {
                    continue;
                };
                let source = match kind {
                    AVAILABLE => FigureSource::Available { from: text, resolution },
                    _ => FigureSource::Unavailable { reason: text },
                };
                description.sources.push((*scope, *figure, source));
            }
            PROCESS => description.processes.push(ProcessName {
                pid: reader.varint_u32()?,
                began_ns: reader.varint()?,
                parent: reader.varint_u32()?,
                name: reader.text(NAME_BYTES_MAX)?.to_owned(),
            }),
            kind => {
                let length = reader.varint_u32()?;
                let row = Reader(reader.take(length as usize)?);
                if kind == SPEEDS {
                    description.speeds = Some(Box::new(read_speeds(row, processors)?));
                }
            }
        }
    }
    Ok(description)
}
