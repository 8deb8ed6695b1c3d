//! Samples as rows: one for each figure of each subject.

use std::sync::{Arc, LazyLock};

use arrow_array::builder::{
    StringBuilder, TimestampNanosecondBuilder, UInt16Builder, UInt32Builder, UInt64Builder,
};
use arrow_array::types::{TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, PrimitiveArray, RecordBatch, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use lightship_usage::{Entry, Figure, Sample, Subject};

use crate::collector::TimedSample;

/// The columns.
pub(super) static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let column = |name, kind, nullable| Field::new(name, kind, nullable);
    Arc::new(Schema::new(vec![
        column("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
        column("bound_ns", DataType::UInt64, true),
        column("host", DataType::Utf8, false),
        column("run", DataType::UInt64, false),
        column("number", DataType::UInt64, false),
        column("at_ns", DataType::UInt64, false),
        column("parts_missing", DataType::UInt16, false),
        column("subject", DataType::Utf8, false),
        column("name", DataType::Utf8, true),
        column("pid", DataType::UInt32, true),
        column("began_ns", DataType::UInt64, true),
        column("address", DataType::Utf8, true),
        column("stage", DataType::UInt32, true),
        column("task", DataType::UInt32, true),
        column("figure", DataType::Utf8, false),
        column("value", DataType::UInt64, false),
    ]))
});

/// The names of figures, in the order of [`Figure::ALL`]: `cpu_user_ns`.
static FIGURES: LazyLock<Vec<String>> =
    LazyLock::new(|| Figure::ALL.iter().map(|figure| snake(*figure)).collect());

fn snake(figure: Figure) -> String {
    let mut name = String::new();
    for c in format!("{figure:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// Rows that are not written yet.
#[derive(Debug, Default)]
pub(super) struct Rows {
    time: TimestampNanosecondBuilder,
    bound_ns: UInt64Builder,
    host: StringBuilder,
    run: UInt64Builder,
    number: UInt64Builder,
    at_ns: UInt64Builder,
    parts_missing: UInt16Builder,
    subject: StringBuilder,
    name: StringBuilder,
    pid: UInt32Builder,
    began_ns: UInt64Builder,
    address: StringBuilder,
    stage: UInt32Builder,
    task: UInt32Builder,
    figure: StringBuilder,
    value: UInt64Builder,
    pub(super) count: usize,
}

impl Rows {
    /// Adds a sample. `unix_ns` is the time of the sample since 1970.
    pub(super) fn add(&mut self, timed: &TimedSample, unix_ns: i64) {
        for entry in &timed.sample.entries {
            for (figure, value) in entry.figures.iter() {
                self.time.append_value(unix_ns);
                self.bound_ns.append_option(timed.bound_ns);
                self.host.append_value(&timed.sample.host);
                self.run.append_value(timed.sample.run);
                self.number.append_value(timed.sample.number);
                self.at_ns.append_value(timed.sample.at_ns);
                self.parts_missing.append_value(timed.parts_missing);
                self.add_subject(&entry.subject);
                self.figure.append_option(FIGURES.get(figure as usize));
                self.value.append_value(value);
                self.count += 1;
            }
        }
    }

    fn add_subject(&mut self, subject: &Subject) {
        let (kind, name, process, address, place) = match subject {
            Subject::Host => ("host", None, None, None, None),
            Subject::Disk(name) => ("disk", Some(name), None, None, None),
            Subject::Interface(name) => ("interface", Some(name), None, None, None),
            Subject::Process { pid, began_ns } => ("process", None, Some((*pid, *began_ns)), None, None),
            Subject::Peer { pid, began_ns, address } => {
                ("peer", None, Some((*pid, *began_ns)), Some(address.to_string()), None)
            }
            Subject::Task { query, stage, task } => ("task", Some(query), None, None, Some((*stage, *task))),
        };
        self.subject.append_value(kind);
        self.name.append_option(name);
        self.pid.append_option(process.map(|(pid, _)| pid));
        self.began_ns.append_option(process.map(|(_, began_ns)| began_ns));
        self.address.append_option(address);
        self.stage.append_option(place.map(|(stage, _)| stage));
        self.task.append_option(place.map(|(_, task)| task));
    }

    /// The rows so far, which are then gone from here.
    pub(super) fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        self.count = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.time.finish().with_timezone("UTC")),
            Arc::new(self.bound_ns.finish()),
            Arc::new(self.host.finish()),
            Arc::new(self.run.finish()),
            Arc::new(self.number.finish()),
            Arc::new(self.at_ns.finish()),
            Arc::new(self.parts_missing.finish()),
            Arc::new(self.subject.finish()),
            Arc::new(self.name.finish()),
            Arc::new(self.pid.finish()),
            Arc::new(self.began_ns.finish()),
            Arc::new(self.address.finish()),
            Arc::new(self.stage.finish()),
            Arc::new(self.task.finish()),
            Arc::new(self.figure.finish()),
            Arc::new(self.value.finish()),
        ];
        RecordBatch::try_new(SCHEMA.clone(), columns)
    }
}

/// Puts samples together from rows.
#[derive(Debug, Default)]
pub(super) struct Reader {
    open: Option<(i64, TimedSample)>,
}

impl Reader {
    /// Reads rows, and calls `each` with the samples that are complete, and their times since 1970 in nanoseconds.
    pub(super) fn read(
        &mut self,
        batch: &RecordBatch,
        each: &mut impl FnMut(i64, TimedSample),
    ) -> Result<(), ArrowError> {
        let time = column::<PrimitiveArray<TimestampNanosecondType>>(batch, "time")?;
        let u64s = |name| column::<PrimitiveArray<UInt64Type>>(batch, name);
        let u32s = |name| column::<PrimitiveArray<UInt32Type>>(batch, name);
        let texts = |name| column::<StringArray>(batch, name);
        let (bound_ns, run, number, at_ns) =
            (u64s("bound_ns")?, u64s("run")?, u64s("number")?, u64s("at_ns")?);
        let (host, subject, name, address) =
            (texts("host")?, texts("subject")?, texts("name")?, texts("address")?);
        let (pid, began_ns) = (u32s("pid")?, u64s("began_ns")?);
        let (stage, task) = (u32s("stage")?, u32s("task")?);
        let (figure, value) = (texts("figure")?, u64s("value")?);
        let parts_missing = column::<PrimitiveArray<UInt16Type>>(batch, "parts_missing")?;
        for row in 0..batch.num_rows() {
            let odd = || ArrowError::ParseError(format!("row {row} is no figure of a sample"));
            let process = || Some((cell(pid, row)?, cell(began_ns, row)?));
            let text = || name.is_valid(row).then(|| name.value(row).to_owned());
            let subject = match subject.value(row) {
                "host" => Some(Subject::Host),
                "disk" => text().map(Subject::Disk),
                "interface" => text().map(Subject::Interface),
                "process" => process().map(|(pid, began_ns)| Subject::Process { pid, began_ns }),
                "peer" => process().and_then(|(pid, began_ns)| {
                    let address = address.is_valid(row).then(|| address.value(row).parse().ok()).flatten()?;
                    Some(Subject::Peer { pid, began_ns, address })
                }),
                "task" => text().and_then(|query| {
                    Some(Subject::Task { query, stage: cell(stage, row)?, task: cell(task, row)? })
                }),
                _ => None,
            };
            let subject = subject.ok_or_else(odd)?;
            let sample = Sample {
                host: host.value(row).to_owned(),
                run: run.value(row),
                number: number.value(row),
                at_ns: at_ns.value(row),
                entries: Vec::new(),
            };
            let same = |open: &Sample| {
                (open.number, open.run, open.at_ns) == (sample.number, sample.run, sample.at_ns)
                    && open.host == sample.host
            };
            if self.open.as_ref().is_none_or(|(_, open)| !same(&open.sample)) {
                self.finish(each);
                let (bound_ns, parts_missing) = (cell(bound_ns, row), parts_missing.value(row));
                let unix_ns = time.value(row);
                let time_ns = u64::try_from(unix_ns).unwrap_or(0);
                self.open = Some((unix_ns, TimedSample { sample, time_ns, bound_ns, parts_missing }));
            }
            // Files of later versions may have figures that are not known here.
            let index = FIGURES.iter().position(|name| name == figure.value(row));
            let (Some(figure), Some((_, open))) =
                (index.and_then(|index| Figure::ALL.get(index)), &mut self.open)
            else {
                continue;
            };
            let entries = &mut open.sample.entries;
            if entries.last().is_none_or(|entry| entry.subject != subject) {
                entries.push(Entry { subject, figures: lightship_usage::Figures::default() });
            }
            if let Some(entry) = entries.last_mut() {
                entry.figures.set(*figure, value.value(row));
            }
        }
        Ok(())
    }

    /// Calls `each` with the last sample.
    pub(super) fn finish(&mut self, each: &mut impl FnMut(i64, TimedSample)) {
        if let Some((unix_ns, timed)) = self.open.take() {
            each(unix_ns, timed);
        }
    }
}

fn cell<T: arrow_array::ArrowPrimitiveType>(column: &PrimitiveArray<T>, row: usize) -> Option<T::Native> {
    column.is_valid(row).then(|| column.value(row))
}

fn column<'a, T: 'static>(batch: &'a RecordBatch, name: &str) -> Result<&'a T, ArrowError> {
    let column = batch.column_by_name(name).and_then(|column| column.as_any().downcast_ref());
    column.ok_or_else(|| ArrowError::SchemaError(format!("no column `{name}` of the expected type")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_names_that_they_have_in_json() {
        assert_eq!(FIGURES[0], "cpu_user_ns");
        assert_eq!(FIGURES[Figure::DiskSequentialBytes as usize], "disk_sequential_bytes");
        assert!(Figure::ALL.iter().enumerate().all(|(index, figure)| *figure as usize == index));
    }
}
