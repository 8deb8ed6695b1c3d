//! Results as text.

use std::fmt::Write;
use std::time::Duration;

use lightship_netbench::{Cpu, Latency, Plateau, Row};
use lightship_plot::binary_bytes;

use crate::size::{Seconds, Size, grouped, three_digits};

/// One pair of connections and message size.
pub(super) fn row(row: &Row) -> String {
    let connections = match row.cell.connections {
        1 => "1 connection".to_owned(),
        count => format!("{} connections", grouped(count.into())),
    };
    let size = binary_bytes(row.cell.message_bytes.into());
    let hosts = row.hosts.replace(' ', ", ");
    let mut text = format!("{connections} to {hosts}, messages of {size}\n");
    let rate = row.throughput_bytes_per_second.zip(row.messages_per_second);
    let throughput = rate.map_or("unknown".to_owned(), |(bytes, messages)| {
        let (bytes, messages) = (Size(bytes as u64), grouped(messages.round() as u64));
        format!("{bytes}/s, {messages} messages/s, counted at the receiver")
    });
    let _ = writeln!(text, "throughput      {throughput}");
    if let Some(returned) = row.returned_bytes_per_second {
        let _ = writeln!(text, "the other way   {}/s, counted here", Size(returned as u64));
    }
    let names = ["min", "p1", "p25", "median", "p75", "p99", "p99.9", "max", "mean"];
    let _ = writeln!(text, "                {}", names.map(|name| format!("{name:>8}")).join(""));
    latency(&mut text, "latency", row.latency.as_ref());
    latency(&mut text, "loaded latency", row.loaded_latency.as_ref());
    let _ = write!(
        text,
        "client          {}\nserver          {}",
        processors(&row.client_cpu),
        processors(&row.server_cpu)
    );
    if !row.is_whole() {
        let _ = write!(
            text,
            "\nfailed          {} connections for latency, {} for throughput: {}",
            row.latency_failures,
            row.flood_failures,
            row.failure.as_deref().unwrap_or("unknown")
        );
    }
    text
}

fn latency(text: &mut String, name: &str, latency: Option<&Latency>) {
    let _ = write!(text, "{name:<16}");
    let Some(l) = latency else {
        text.push_str("unknown\n");
        return;
    };
    let times = [l.min_us, l.p1_us, l.p25_us, l.p50_us, l.p75_us, l.p99_us, l.p999_us, l.max_us, l.avg_us];
    for us in times {
        let time = Seconds(us / 1e6).to_string().replace(' ', "");
        let _ = write!(text, "{time:>8}");
    }
    text.push('\n');
}

fn processors(cpu: &Cpu) -> String {
    let percent = |percent: Option<f64>| percent.map_or("unknown".into(), |p| format!("{p:.0}%"));
    format!(
        "process {} of a core, host {} of all cores",
        percent(cpu.process_percent),
        percent(cpu.system_percent)
    )
}

/// Throughput of a grid, and where its plateau begins.
pub(super) fn sweep(rows: &[Row], plateau: Option<&Plateau>, measured: usize, took: Duration) -> String {
    let column = |of: fn(&Row) -> u32| {
        let mut values: Vec<_> = rows.iter().map(of).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    let (counts, sizes) = (column(|row| row.cell.connections), column(|row| row.cell.message_bytes));
    let mut text = String::from("throughput in MB/s, by message size and connections\n         ");
    for count in &counts {
        let _ = write!(text, "{count:>8}");
    }
    for size in &sizes {
        let _ = write!(text, "\n{:>9}", binary_bytes(f64::from(*size)));
        for count in &counts {
            let row = rows.iter().find(|r| (r.cell.connections, r.cell.message_bytes) == (*count, *size));
            let shown = row.map_or(String::new(), |row| match row.throughput_bytes_per_second {
                Some(rate) if row.is_whole() => three_digits(rate / 1e6),
                Some(rate) => format!("{}!", three_digits(rate / 1e6)),
                None => "failed".into(),
            });
            let _ = write!(text, "{shown:>8}");
        }
    }
    let failed = rows.iter().filter(|row| !row.is_whole()).count();
    let failed = match failed {
        0 => String::new(),
        failed => format!(", {failed} with failures (!)"),
    };
    let _ = write!(
        text,
        "\n{} pairs{failed}, {measured} measured now in {}",
        grouped(rows.len() as u64),
        minutes(took)
    );
    if let Some(plateau) = plateau {
        let connections = plateau.connections;
        let most = plateau.connections_max.map_or_else(String::new, |most| format!(" to {most}"));
        let size = binary_bytes(plateau.message_bytes.into());
        let (rate, best) = (plateau.bytes_per_second as u64, plateau.best_bytes_per_second as u64);
        let _ = write!(
            text,
            "\nplateau from {connections}{most} connections with messages of {size}: {}/s, {}/s at best",
            Size(rate),
            Size(best)
        );
    }
    text
}

/// A time, rounded for people.
pub(super) fn minutes(time: Duration) -> String {
    match time.as_secs() {
        s if s < 60 => format!("{s} s"),
        s if s < 3600 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded() {
        let check = |s, shown| assert_eq!(minutes(Duration::from_secs(s)), shown);
        check(7, "7 s");
        check(61, "1 min 1 s");
        check(7260, "2 h 1 min");
    }
}
