//! The figures of a sweep: what chapter 3 of the thesis shows, and latency under load beside it.

use std::collections::BTreeSet;

use lightship_plot::{Axis, Heat, HeatCell, Lines, LinesPanel, PlotError, Series, Summary, binary_bytes};

use crate::row::{Cell, Row};
use crate::stats::Latency;

/// A picture and the name of its file, without the folder.
#[derive(Debug, Clone)]
pub struct Figure {
    /// With the ending `.svg`.
    pub file: String,
    /// The picture.
    pub svg: String,
}

/// One panel: its title, its axis, what it shows of a row.
struct Panel {
    title: &'static str,
    axis: Axis,
    value: Value,
}

type Value = Box<dyn Fn(&Row) -> Option<f64>>;

impl Panel {
    fn new(title: &'static str, axis: Axis, value: impl Fn(&Row) -> Option<f64> + 'static) -> Self {
        Self { title, axis, value: Box::new(value) }
    }
}

/// One of the two quantities that cells differ in.
#[derive(Clone, Copy)]
enum Quantity {
    Connections,
    MessageBytes,
}

impl Quantity {
    fn of(self, cell: Cell) -> u32 {
        match self {
            Self::Connections => cell.connections,
            Self::MessageBytes => cell.message_bytes,
        }
    }

    fn values(self, rows: &[Row]) -> BTreeSet<u32> {
        rows.iter().map(|row| self.of(row.cell)).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::MessageBytes => "bytes of a message",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::MessageBytes => "message-size",
        }
    }

    fn axis(self) -> Axis {
        let axis = Axis::doubling(self.name());
        match self {
            Self::Connections => axis,
            Self::MessageBytes => axis.binary_bytes(),
        }
    }

    fn shown(self, value: u32) -> String {
        match self {
            Self::Connections => value.to_string(),
            Self::MessageBytes => binary_bytes(f64::from(value)),
        }
    }

    /// In a legend.
    fn label(self, value: u32) -> String {
        match (self, value) {
            (Self::Connections, 1) => "1 connection".into(),
            (Self::Connections, _) => format!("{value} connections"),
            (Self::MessageBytes, _) => self.shown(value),
        }
    }
}

/// All of them, of the rows of one sweep. Lines are drawn over message sizes, with one for each
/// number of connections, and over connections, with one for each message size.
///
/// # Errors
/// [`PlotError`].
pub fn figures(rows: &[Row]) -> Result<Vec<Figure>, PlotError> {
    let mut figures = Vec::new();
    for (name, panels) in [
        ("throughput", throughput()),
        ("latency", latency(|row| row.latency)),
        ("loaded-latency", latency(|row| row.loaded_latency)),
        ("cpu", cpu()),
    ] {
        for (over, by) in
            [(Quantity::MessageBytes, Quantity::Connections), (Quantity::Connections, Quantity::MessageBytes)]
        {
            let file = format!("{name}-by-{}.svg", over.file());
            figures.push(Figure { file, svg: lines(rows, over, by, &panels)? });
        }
    }
    let rate = |row: &Row| match row.throughput_bytes_per_second {
        Some(rate) => HeatCell { value: rate, text: three_digits(rate / 1e6) },
        None => HeatCell { value: f64::NAN, text: "failed".into() },
    };
    let failures = |row: &Row| match row.latency_failures.max(row.flood_failures) {
        0 => HeatCell { value: f64::NAN, text: "0".into() },
        failed => HeatCell { value: row.failed_part(), text: failed.to_string() },
    };
    let svg = heat(rows, "throughput where it arrives, MB/s", rate)?;
    figures.push(Figure { file: "throughput-heat.svg".into(), svg });
    let svg = heat(rows, "connections that failed (coloured by their part)", failures)?;
    figures.push(Figure { file: "failures-heat.svg".into(), svg });
    Ok(figures)
}

fn throughput() -> Vec<Panel> {
    let rate = Axis::log("bytes a second").bytes();
    vec![
        Panel::new("throughput where it arrives", rate, |row| row.throughput_bytes_per_second),
        Panel::new("messages", Axis::log("messages a second").thousands(), |row| row.messages_per_second),
    ]
}

fn latency(of: fn(&Row) -> Option<Latency>) -> Vec<Panel> {
    let panel = |title, us: fn(&Latency) -> f64| {
        let seconds = move |row: &Row| of(row).map(|latency| us(&latency) / 1e6);
        Panel::new(title, Axis::log("there and back").seconds(), seconds)
    };
    vec![
        panel("median", |l| l.p50_us),
        panel("1 % are shorter", |l| l.p1_us),
        panel("25 % are shorter", |l| l.p25_us),
        panel("25 % are longer", |l| l.p75_us),
        panel("1 % are longer", |l| l.p99_us),
        panel("0.1 % are longer", |l| l.p999_us),
    ]
}

fn cpu() -> Vec<Panel> {
    let (one, all) = (|| Axis::linear("% of one core"), || Axis::linear("% of all cores"));
    vec![
        Panel::new("client, its process", one(), |row| row.client_cpu.process_percent),
        Panel::new("client, the host", all(), |row| row.client_cpu.system_percent),
        Panel::new("server, its process", one(), |row| row.server_cpu.process_percent),
        Panel::new("server, the host", all(), |row| row.server_cpu.system_percent),
    ]
}

fn lines(rows: &[Row], over: Quantity, by: Quantity, panels: &[Panel]) -> Result<String, PlotError> {
    let panel = |panel: &Panel| {
        let series = |value: u32| {
            let mut points: Vec<_> = rows
                .iter()
                .filter(|row| by.of(row.cell) == value)
                .filter_map(|row| Some((over.of(row.cell), (panel.value)(row)?)))
                .collect();
            points.sort_by_key(|(at, _)| *at);
            let points = points.into_iter().map(|(at, v)| (f64::from(at), Summary::single(v))).collect();
            Series { name: by.label(value), points }
        };
        let series = by.values(rows).into_iter().map(series).collect();
        LinesPanel { title: panel.title.into(), y: panel.axis.clone(), series }
    };
    Lines::new(over.axis(), panels.iter().map(panel).collect()).in_order().svg()
}

fn heat(rows: &[Row], title: &str, cell: impl Fn(&Row) -> HeatCell) -> Result<String, PlotError> {
    let (columns, lines) = (Quantity::MessageBytes, Quantity::Connections);
    let (sizes, counts) = (columns.values(rows), lines.values(rows));
    let find = |connections: u32, message_bytes: u32| {
        let wanted = Cell { connections, message_bytes };
        rows.iter().find(|row| row.cell == wanted).map(&cell)
    };
    Heat {
        title: title.into(),
        columns: (columns.name().into(), sizes.iter().map(|size| columns.shown(*size)).collect()),
        rows: (lines.name().into(), counts.iter().map(|count| lines.shown(*count)).collect()),
        cells: counts.iter().map(|count| sizes.iter().map(|size| find(*count, *size)).collect()).collect(),
    }
    .svg()
}

/// As few digits as tell cells apart.
fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::some_row;

    #[test]
    fn a_line_for_each_and_a_cell_for_each() {
        let mut rows: Vec<_> = [2, 4, 8]
            .into_iter()
            .flat_map(|c| [256, 1024].map(|s| some_row(c, s, f64::from(c * s) * 1e4)))
            .collect();
        (rows[5].throughput_bytes_per_second, rows[5].messages_per_second) = (None, None);
        rows[5].flood_failures = 8;
        let figures = figures(&rows).expect("drawn");
        let svg = |file: &str| {
            let figure = figures.iter().find(|figure| figure.file == file);
            figure.map(|figure| figure.svg.as_str()).expect(file)
        };
        let by_size = svg("throughput-by-message-size.svg");
        // Two panels of three lines with two marks, the failed cell without; and the legend.
        assert_eq!(by_size.matches("<polygon").count(), 2 * 5 + 3);
        assert!(by_size.contains("8 connections") && by_size.contains("1 KiB"), "{by_size}");
        assert_eq!(svg("latency-by-connections.svg").matches("<polygon").count(), 6 * 6 + 2);
        assert_eq!(svg("cpu-by-connections.svg").matches("<polygon").count(), 2 * 6 + 2);
        assert!(svg("throughput-heat.svg").contains("failed"));
        assert!(svg("failures-heat.svg").contains("connections that failed"));
        assert_eq!(figures.len(), 10);
        assert_eq!(super::figures(&[]).expect("drawn").len(), 10);
    }
}
