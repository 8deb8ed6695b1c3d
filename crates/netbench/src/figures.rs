//! The figures of a sweep: those of chapter 3 of the thesis, and latency under load.

use std::collections::BTreeSet;

use lightship_plot::{Axis, Heat, HeatCell, Lines, LinesPanel, PlotError, Series, Summary, binary_bytes};

use crate::row::{Cell, Row};
use crate::stats::Latency;

/// A picture and its file name.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The file name, without a folder and with the extension `.svg`.
    pub file: String,
    /// The picture.
    pub svg: String,
}

/// A panel: its title, its axis, and the value it shows for a row.
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

/// One of the two quantities that define a cell.
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
            Self::MessageBytes => "message size",
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

    /// The label of a value in a legend.
    fn label(self, value: u32) -> String {
        match (self, value) {
            (Self::Connections, 1) => "1 connection".into(),
            (Self::Connections, _) => format!("{value} connections"),
            (Self::MessageBytes, _) => self.shown(value),
        }
    }
}

/// Draws all figures for the rows of one sweep. Each line plot is drawn twice: over message sizes, with
/// a line for each number of connections, and over connections, with a line for each message size.
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
    let svg = heat(rows, "throughput at the receiver, MB/s", rate)?;
    figures.push(Figure { file: "throughput-heat.svg".into(), svg });
    let svg = heat(rows, "failed connections (coloured by share)", failures)?;
    figures.push(Figure { file: "failures-heat.svg".into(), svg });
    Ok(figures)
}

fn throughput() -> Vec<Panel> {
    let rate = Axis::log("bytes per second").bytes();
    vec![
        Panel::new("throughput at the receiver", rate, |row| row.throughput_bytes_per_second),
        Panel::new("messages", Axis::log("messages per second").thousands(), |row| row.messages_per_second),
    ]
}

fn latency(of: fn(&Row) -> Option<Latency>) -> Vec<Panel> {
    let panel = |title, us: fn(&Latency) -> f64| {
        let seconds = move |row: &Row| of(row).map(|latency| us(&latency) / 1e6);
        Panel::new(title, Axis::log("round trip").seconds(), seconds)
    };
    vec![
        panel("median", |l| l.p50_us),
        panel("p1", |l| l.p1_us),
        panel("p25", |l| l.p25_us),
        panel("p75", |l| l.p75_us),
        panel("p99", |l| l.p99_us),
        panel("p99.9", |l| l.p999_us),
    ]
}

fn cpu() -> Vec<Panel> {
    let (one, all) = (|| Axis::linear("% of one core"), || Axis::linear("% of all cores"));
    vec![
        Panel::new("client process", one(), |row| row.client_cpu.process_percent),
        Panel::new("client host", all(), |row| row.client_cpu.system_percent),
        Panel::new("server process", one(), |row| row.server_cpu.process_percent),
        Panel::new("server host", all(), |row| row.server_cpu.system_percent),
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

/// About three significant digits, with at most two decimals.
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
    fn figures_have_a_line_per_series_and_a_cell_per_pair() {
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
        // Two panels of three lines with two markers, none for the failed cell; and the legend.
        assert_eq!(by_size.matches("<polygon").count(), 2 * 5 + 3);
        assert!(by_size.contains("8 connections") && by_size.contains("1 KiB"), "{by_size}");
        assert_eq!(svg("latency-by-connections.svg").matches("<polygon").count(), 6 * 6 + 2);
        assert_eq!(svg("cpu-by-connections.svg").matches("<polygon").count(), 2 * 6 + 2);
        assert!(svg("throughput-heat.svg").contains("failed"));
        assert!(svg("failures-heat.svg").contains("failed connections"));
        assert_eq!(figures.len(), 10);
        assert_eq!(super::figures(&[]).expect("drawn").len(), 10);
    }
}
