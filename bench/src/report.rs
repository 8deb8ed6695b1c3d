//! The report of a benchmark: a section of a page in the results folder, and its plots.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::Result;
use crate::settings::Settings;

/// A page of results that belong together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Page {
    /// Lightship and its peers on one host.
    Transfer,
    /// Files and objects.
    Files,
    /// Clients in Python, and the clients of other protocols.
    Clients,
    /// The experiments of the paper on columnar protocols.
    ColumnarProtocol,
    /// The experiments of the thesis on fetch sizes.
    Mind,
    /// The network alone.
    Network,
    /// Shuffles between many nodes.
    Shuffle,
    /// Range-partitioned files.
    Range,
    /// Where the time of queries goes.
    Usage,
}

impl Page {
    fn file(self) -> &'static str {
        match self {
            Self::Transfer => "transfer.md",
            Self::Files => "files.md",
            Self::Clients => "clients.md",
            Self::ColumnarProtocol => "columnar-protocol.md",
            Self::Mind => "mind.md",
            Self::Network => "network.md",
            Self::Shuffle => "shuffle.md",
            Self::Range => "range.md",
            Self::Usage => "usage.md",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Transfer => "# Transfers, side by side\n",
            Self::Files => "# Files and objects, side by side\n",
            Self::Clients => "# Clients, side by side\n",
            Self::ColumnarProtocol => "# The client protocol, redesigned\n",
            Self::Mind => "# Automatic fetch sizes\n",
            Self::Network => "# The network alone\n",
            Self::Shuffle => "# Shuffles between many nodes\n",
            Self::Range => "# Range files\n",
            Self::Usage => "# Where the time of queries goes\n",
        }
    }
}

/// The content of a report.
pub(crate) struct Report<'a> {
    /// Name of the benchmark and of its files.
    pub(crate) name: &'static str,
    pub(crate) page: Page,
    pub(crate) title: &'static str,
    /// What is measured, and how.
    pub(crate) text: String,
    /// Tables, with the text around them.
    pub(crate) tables: Vec<String>,
    /// Plots as SVG, each with a description.
    pub(crate) plots: Vec<(String, &'a str)>,
    /// Versions of all other software that took part.
    pub(crate) versions: Vec<String>,
    /// Load average at the start.
    pub(crate) load: String,
    pub(crate) settings: &'a Settings,
}

impl Report<'_> {
    /// Prints the section, and writes it in place of the earlier one.
    pub(crate) fn publish(&self) -> Result<()> {
        let section = self.section();
        writeln!(std::io::stdout(), "{section}")?;
        let folder = &self.settings.results();
        put(folder, self.page, self.name, &section)?;
        for (index, (svg, _)) in self.plots.iter().enumerate() {
            fs::write(folder.join(self.plot_file(index)), svg)?;
        }
        Ok(())
    }

    /// File name of a plot. The first has the name of the benchmark.
    fn plot_file(&self, index: usize) -> String {
        match index {
            0 => format!("{}.svg", self.name),
            index => format!("{}-{}.svg", self.name, index + 1),
        }
    }

    fn section(&self) -> String {
        let name = self.name;
        let versions = [vec![ours()], self.versions.clone()].concat().join(", ");
        let mut parts = vec![format!("## {}", self.title), self.text.clone()];
        let plots = self.plots.iter().enumerate();
        parts.extend(plots.map(|(index, (_, shows))| format!("![{shows}]({})", self.plot_file(index))));
        parts.extend(self.tables.clone());
        parts.push(format!(
            "- last run {}; machine: {}; load average {} when it began, {} when it ended\n- versions: {versions}\n\
             - command: `cargo run -p bench --release -- {name} {}`; every run: [{name}.csv]({name}.csv)",
            today(),
            machine(),
            self.load,
            load(),
            self.settings.arguments(),
        ));
        parts.join("\n\n")
    }
}

/// Writes a section into a page in a folder, in place of the earlier one of this name.
pub(crate) fn put(folder: &Path, page: Page, name: &str, section: &str) -> Result<()> {
    fs::create_dir_all(folder)?;
    let path = folder.join(page.file());
    let text = fs::read_to_string(&path).unwrap_or_else(|_| page.title().to_owned());
    Ok(fs::write(path, replace(&text, name, section))?)
}

/// The page with the section of `name` replaced, or appended.
fn replace(page: &str, name: &str, section: &str) -> String {
    let (open, close) = (format!("<!-- bench:{name} -->"), format!("<!-- /bench:{name} -->"));
    let marked = format!("{open}\n{section}\n{close}");
    let old = page.find(&open).and_then(|start| {
        let end = start + page[start..].find(&close)? + close.len();
        Some(start..end)
    });
    match old {
        Some(old) => format!("{}{marked}{}", &page[..old.start], &page[old.end..]),
        None => format!("{}\n\n{marked}\n", page.trim_end()),
    }
}

/// The system's load average over the last minute.
pub(crate) fn load() -> String {
    let averages = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    averages.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// The workspace's version: the measured command is built together with this program.
fn ours() -> String {
    format!("lightship {}", env!("CARGO_PKG_VERSION"))
}

/// The date, as year, month and day.
fn today() -> String {
    let date = std::process::Command::new("date").arg("+%F").output();
    date.map_or_else(
        |_| "unknown date".into(),
        |date| String::from_utf8_lossy(&date.stdout).trim().to_owned(),
    )
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, {cores} cores, Linux {}", model.map_or("unknown processor", |(_, name)| name), kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn a_section_replaces_only_its_own_benchmark() {
        let page = replace("# Results\n", "a", "first");
        let page = replace(&page, "b", "other");
        let page = replace(&page, "a", "second");
        let expected = "# Results\n\n<!-- bench:a -->\nsecond\n<!-- /bench:a -->\n\n\
                        <!-- bench:b -->\nother\n<!-- /bench:b -->\n";
        assert_eq!(page, expected);
    }
}
