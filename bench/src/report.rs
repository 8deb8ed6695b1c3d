//! Results on paper: a CSV file and a section of `docs/results/transfer.md`.

use std::fs;
use std::io::Write;
use std::process::Command;

use crate::comparison::Comparison;
use crate::{Result, places};

/// What stands around a table.
pub(crate) struct Report<'a> {
    /// Of the benchmark and its files.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What is measured, and how.
    pub(crate) text: String,
    /// Versions of all that took part besides ours.
    pub(crate) versions: Vec<String>,
    pub(crate) rounds: u32,
    /// Load when it began.
    pub(crate) load: String,
    pub(crate) comparison: &'a Comparison<'a>,
}

impl Report<'_> {
    /// Prints the section, and replaces that of an earlier run.
    pub(crate) fn publish(&self) -> Result<()> {
        let section = self.section();
        writeln!(std::io::stdout(), "{section}")?;
        let folder = places::root().join("docs/results");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("{}.csv", self.name)), self.comparison.csv())?;
        let path = folder.join("transfer.md");
        let page = fs::read_to_string(&path).unwrap_or_else(|_| "# Transfers, side by side\n".to_owned());
        Ok(fs::write(path, replace(&page, self.name, &section))?)
    }

    fn section(&self) -> String {
        let (name, rounds) = (self.name, self.rounds);
        let versions = [vec![ours()], self.versions.clone()].concat().join(", ");
        format!(
            "## {}\n\n{}\n\n{}\n\n- machine: {}; load average {} when it began, {} when it ended\n- versions: {versions}\n\
             - command: `target/release/bench {name} --rounds {rounds}`; every run: [{name}.csv]({name}.csv)",
            self.title,
            self.text,
            self.comparison.markdown(),
            machine(),
            self.load,
            load(),
        )
    }
}

/// The page with the section of `name` replaced, or put at its end.
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

/// Processes that want a core, averaged over the last minute.
pub(crate) fn load() -> String {
    let averages = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    averages.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// What a program says of its version, in its first line.
pub(crate) fn version(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or("unknown").to_owned()
}

fn ours() -> String {
    places::lightship()
        .map_or_else(|e| e.to_string(), |path| version(&path.display().to_string(), "--version"))
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
    fn a_section_replaces_its_own_and_no_other() {
        let page = replace("# Results\n", "a", "first");
        let page = replace(&page, "b", "other");
        let page = replace(&page, "a", "second");
        let expected = "# Results\n\n<!-- bench:a -->\nsecond\n<!-- /bench:a -->\n\n\
                        <!-- bench:b -->\nother\n<!-- /bench:b -->\n";
        assert_eq!(page, expected);
    }
}
