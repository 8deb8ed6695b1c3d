//! A cluster of Lightship's nodes on hosts of the lab.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::Host;
use lightship_testkit::tpch;
use lightship_usage::{Footprint, Verdict};
use serde::Deserialize;
use tempfile::TempDir;

use super::outcome::Explained;
use super::site::{Site, forget};
use super::system::Configuration;
use crate::process::Process;
use crate::{Result, places};

const PORT: u16 = 4270;
/// Where the first node serves its page, on its own host.
const PAGE: &str = "127.0.0.1:4280";
/// The time between two samples. They cost the nodes processor time, of which these have little.
const INTERVAL: &str = "200ms";
const PATIENCE: Duration = Duration::from_secs(30);

/// Running nodes.
pub(super) struct Cluster {
    _nodes: Vec<Process>,
    folders: Vec<PathBuf>,
    first: SocketAddr,
    _state: TempDir,
}

/// A query in the list of a node.
#[derive(Deserialize)]
struct Listed {
    id: String,
    label: String,
    limit_name: Option<String>,
    reason: Option<String>,
}

/// What a node tells of a query.
#[derive(Deserialize)]
struct Told {
    footprint: Footprint,
    verdict: Verdict,
}

impl Cluster {
    /// Starts nodes, and waits until they answer together.
    pub(super) fn start(site: &Site, scale: f64, configuration: Configuration) -> Result<Self> {
        let Configuration { nodes: count, division } = configuration;
        let whole = places::data().join(format!("tpch-{scale}"));
        tpch::write_parquet(scale, &whole, |_, _| {})?;
        let parts = places::data().join(format!("usage-parts-{scale}-{count}"));
        let parts = tpch::write_shards(scale, &parts, &vec![1; count])?;
        let hosts = &site.nodes[..count];
        let first = SocketAddr::new(hosts[0].address(), PORT);
        let state = tempfile::tempdir()?;
        let mut nodes = Vec::new();
        for (host, part) in hosts.iter().zip(&parts) {
            let own = SocketAddr::new(host.address(), PORT).to_string();
            let folder = state.path().join(host.name()).display().to_string();
            let mut words =
                ["--json", "--log", "error", "node", "--listen", &own, "--insecure", "--advertise", &own]
                    .map(str::to_owned)
                    .to_vec();
            words
                .extend(["--state-folder", &folder, "--expect-nodes", &count.to_string()].map(str::to_owned));
            words.extend(["--usage", "--usage-interval", INTERVAL].map(str::to_owned));
            if own == first.to_string() {
                words.extend(["--http", PAGE].map(str::to_owned));
            } else {
                words.extend(["--join".to_owned(), first.to_string()]);
            }
            for table in tpch::TABLES {
                let (option, from) = match division.tables().contains(&table) {
                    true => ("--table", part),
                    false => ("--shared-table", &whole),
                };
                words.extend([option.to_owned(), format!("{table}={}/{table}.parquet", from.display())]);
            }
            // The nodes tell what their hosts can do.
            let hosts = format!("LIGHTSHIP_HOSTS={}", site.calibrated().display());
            let program = places::lightship()?.display().to_string();
            let words = [vec![hosts, program], words].concat();
            let mut node = Process::spawn(Some(host), "env", words)?;
            node.line()?;
            nodes.push(node);
        }
        let folders = [&[whole], &parts[..]].concat();
        let cluster = Self { _nodes: nodes, folders, first, _state: state };
        let began = Instant::now();
        while cluster.ask(&hosts[0], &["fetch", &cluster.uri(), "select count(*) from lineitem"]).is_err() {
            if began.elapsed() > PATIENCE {
                return Err("the nodes do not answer".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(cluster)
    }

    pub(super) fn uri(&self) -> String {
        format!("lightship://{}", self.first)
    }

    /// Drops the nodes' files from the page cache.
    pub(super) fn forget(&self) -> Result<()> {
        self.folders.iter().try_for_each(|folder| forget(folder))
    }

    /// Runs a command of `lightship` on a host, outside of its limits, and returns its output.
    fn ask(&self, host: &Host, words: &[&str]) -> Result<String> {
        let program = places::lightship()?;
        let run = || {
            let mut command = std::process::Command::new(&program);
            command
                .args(words)
                .stdin(Stdio::null())
                .env("LIGHTSHIP_PROFILES", places::data().join("profiles"));
            command.output()
        };
        let output = host.run(run)?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// What the first node tells of the last query with this text, as soon as it knows.
    pub(super) fn explain_last(&self, site: &Site, sql: &str) -> Result<Explained> {
        let (host, page) = (&site.nodes[0], format!("http://{PAGE}"));
        let began = Instant::now();
        let id = loop {
            let text = self.ask(host, &["--json", "usage", "show", "--node", &page])?;
            let list = text.lines().map(serde_json::from_str).collect::<Result<Vec<Listed>, _>>()?;
            // The latest comes first.
            if let Some(found) = list.iter().find(|query| query.label.trim() == sql.trim()) {
                if found.limit_name.is_some() {
                    break found.id.clone();
                }
                if let Some(reason) = &found.reason {
                    return Err(format!("the node could not assess a query: {reason}").into());
                }
            }
            if began.elapsed() > PATIENCE {
                return Err("the node does not assess a query".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        let text = self.ask(host, &["--json", "usage", "explain", &id, "--node", &page])?;
        let Told { footprint, verdict } = serde_json::from_str(&text)?;
        Ok(Explained { footprint, verdict })
    }
}
