//! The two systems, in one shape: nodes that a client asks, and what explains a query.

use std::cell::Cell;

use lab::{Lab, Limits};
use lightship_testkit::tpch;

use super::cluster::Cluster;
use super::collect::{Traffic, Watcher, node_names};
use super::outcome::Explained;
use super::postgres::{self, Data, Server};
use super::site::{COORDINATOR, Client, Hardware, Site, forget, name};
use crate::Result;
use crate::settings::Settings;

/// Processors of a node without a limit.
pub(super) const PROCESSORS: f64 = 2.0;
/// The most nodes.
pub(super) const NODES_MAX: usize = 6;
/// The queries, each with its tables.
pub(super) const QUERIES: [(usize, &[&str]); 5] = [
    (1, &["lineitem"]),
    (3, &["customer", "orders", "lineitem"]),
    (4, &["orders", "lineitem"]),
    (8, &["part", "supplier", "lineitem", "orders", "customer", "nation", "region"]),
    (12, &["orders", "lineitem"]),
];

/// Which tables are divided among the nodes; each node has all rows of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// lineitem.
    One,
    /// lineitem and orders, by the key of the order.
    Two,
}

impl Division {
    pub(super) fn tables(self) -> &'static [&'static str] {
        match self {
            Self::One => &["lineitem"],
            Self::Two => &["lineitem", "orders"],
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::One => "1-part",
            Self::Two => "2-part",
        }
    }
}

/// Nodes that divide the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Configuration {
    pub(super) nodes: usize,
    pub(super) division: Division,
}

impl Configuration {
    /// All, in an order in which each comes after those that predict it.
    pub(super) const ALL: [Self; 5] = [
        Self { nodes: 1, division: Division::One },
        Self { nodes: 3, division: Division::One },
        Self { nodes: 3, division: Division::Two },
        Self { nodes: 6, division: Division::One },
        Self { nodes: 6, division: Division::Two },
    ];

    /// How its tables are divided; with one node they are whole.
    pub(super) fn division_name(self) -> &'static str {
        if self.nodes == 1 { "whole" } else { self.division.name() }
    }
}

/// What a client asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Question {
    pub(super) sql: String,
    /// More arguments of `lightship fetch`.
    pub(super) arguments: Vec<String>,
    /// The rate at which the client's output is read, in bytes per second; `None` to drop it.
    pub(super) read_bytes_per_s: Option<f64>,
}

impl Question {
    pub(super) fn of(sql: &str) -> Self {
        Self { sql: sql.to_owned(), ..Self::default() }
    }
}

/// A system on a site.
pub(super) enum System {
    Postgres { data: Data, servers: Vec<Server> },
    Lightship { scale: f64, cluster: Option<Cluster> },
}

pub(super) const POSTGRES: &str = "PostgreSQL";
pub(super) const LIGHTSHIP: &str = "Lightship";

impl System {
    fn open(name: &str, scale: f64) -> Result<Self> {
        Ok(match name {
            POSTGRES => Self::Postgres { data: Data::open(scale)?, servers: Vec::new() },
            _ => Self::Lightship { scale, cluster: None },
        })
    }

    /// Does `work` with each system that is wanted, with rows as a multiple of scale 1.
    pub(super) fn each(
        settings: &Settings,
        scales: &[(&str, f64)],
        mut work: impl FnMut(&mut Self, f64) -> Result<()>,
    ) -> Result<()> {
        for (name, usual) in scales.iter().filter(|(name, _)| settings.wants(name)) {
            let scale = settings.scale_or(*usual);
            work(&mut Self::open(name, scale)?, scale)?;
        }
        Ok(())
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Postgres { .. } => POSTGRES,
            Self::Lightship { .. } => LIGHTSHIP,
        }
    }

    /// The part of a query's work that nodes divide, which is known before it runs: by the bytes of its tables; the
    /// nodes of Lightship divide the reading of all tables.
    pub(super) fn divided(&self, tables: &[&str], division: Division) -> f64 {
        match self {
            Self::Postgres { data, .. } => data.divided(tables, division.tables()),
            Self::Lightship { .. } => 1.0,
        }
    }

    pub(super) fn version(&self) -> Option<String> {
        match self {
            Self::Postgres { data, .. } => Some(data.version.clone()),
            Self::Lightship { .. } => None,
        }
    }
}

/// A system that runs on hosts of the lab, and is watched.
pub(super) struct Running<'a> {
    pub(super) site: Site,
    pub(super) system: &'a mut System,
    client: Client,
    pub(super) watcher: Watcher,
    pub(super) configuration: Configuration,
    /// Processors of each node.
    cpus: Cell<f64>,
    queries: [String; 22],
}

impl<'a> Running<'a> {
    /// Starts hosts, whose disks are calibrated as those of `calibrated`, and what all configurations share.
    pub(super) fn start(
        lab: &Lab,
        link: &str,
        nodes: usize,
        calibrated: Hardware,
        system: &'a mut System,
        scale: f64,
    ) -> Result<Self> {
        let site = Site::open(lab, link, nodes, calibrated)?;
        eprintln!("{link}: {}", site.measured);
        let mut watcher = Watcher::start(&site.coordinator)?;
        watcher.watch(&site.coordinator, COORDINATOR, &Client::watched())?;
        for (host, number) in site.nodes.iter().zip(1..) {
            match &mut *system {
                System::Postgres { data, servers } => {
                    let server = data.start(host, number - 1)?;
                    let pid = server.process.pid().to_string();
                    servers.push(server);
                    watcher.watch(host, &name(number), &["--pid", &pid])?;
                }
                // Its nodes sample themselves; this agent counts the bytes of the host.
                System::Lightship { .. } => watcher.watch(host, &name(number), &["--process", "none"])?,
            }
        }
        watcher.ready()?;
        let configuration = Configuration { nodes: 0, division: Division::One };
        let queries = tpch::queries(scale);
        Ok(Self {
            site,
            system,
            client: Client::new()?,
            watcher,
            configuration,
            cpus: Cell::new(f64::MAX),
            queries,
        })
    }

    /// Makes the nodes of a configuration ready, without limits.
    pub(super) fn configure(&mut self, configuration: Configuration) -> Result<()> {
        self.configuration = configuration;
        if let System::Lightship { scale, cluster } = &mut *self.system {
            // The nodes before end first: they have the same addresses.
            *cluster = None;
            *cluster = Some(Cluster::start(&self.site, *scale, configuration)?);
        }
        Ok(())
    }

    /// The measured link, and the version of the system.
    pub(super) fn circumstances(&self) -> (String, String) {
        let link = format!("{}: {}", self.site.coordinator.link(), self.site.measured);
        (link, self.system.version().unwrap_or_default())
    }

    /// Limits all nodes.
    pub(super) fn limit(&self, hardware: Hardware) -> Result<()> {
        self.cpus.set(hardware.cpus);
        self.site.limit(hardware)
    }

    /// Runs a query of TPC-H.
    pub(super) fn query(&self, number: usize) -> Result<(Explained, Vec<Traffic>)> {
        self.ask(&Question::of(&self.queries[number - 1]), &format!("Q{number}"))
    }

    /// Runs all queries once, without explaining them.
    pub(super) fn warm(&self) -> Result<()> {
        let ask = |(query, _): (usize, &[&str])| {
            self.read(&self.words(&Question::of(&self.queries[query - 1]))?, None).map(drop)
        };
        QUERIES.into_iter().try_for_each(ask)
    }

    /// The client's command for a query on all nodes of the configuration, which have nothing in the page cache.
    fn words(&self, question: &Question) -> Result<Vec<String>> {
        let Configuration { nodes, division } = self.configuration;
        let mut words: Vec<String> = vec!["fetch".into(), "--quiet".into()];
        match &*self.system {
            System::Postgres { data, .. } => {
                for node in 0..NODES_MAX.min(self.site.nodes.len()) {
                    forget(&data.folder(node))?;
                }
                let database = postgres::database(nodes, division);
                let mut uris = self.site.nodes[..nodes].iter().map(|host| postgres::uri(host, &database));
                words.extend([uris.next().unwrap_or_default(), question.sql.clone()]);
                words.extend(uris.flat_map(|uri| ["--also".to_owned(), uri]));
                words.extend(["--numeric".to_owned(), "string".to_owned()]);
            }
            System::Lightship { cluster, .. } => {
                let cluster = cluster.as_ref().ok_or("no cluster")?;
                cluster.forget()?;
                words.extend([cluster.uri(), question.sql.clone()]);
            }
        }
        words.extend(["--format".to_owned(), "csv".to_owned()]);
        words.extend(question.arguments.iter().cloned());
        Ok(words)
    }

    /// Runs a query, and explains it.
    pub(super) fn ask(&self, question: &Question, label: &str) -> Result<(Explained, Vec<Traffic>)> {
        let nodes = self.configuration.nodes;
        let span = self.read(&self.words(question)?, question.read_bytes_per_s)?;
        let explained = match &*self.system {
            System::Postgres { .. } => {
                let hosts = [node_names(nodes), vec![COORDINATOR.to_owned()]].concat();
                self.watcher.explain(label, span, &hosts, self.site.speeds)?
            }
            System::Lightship { cluster, .. } => {
                let explained = self.told(cluster.as_ref().ok_or("no cluster")?, &question.sql)?;
                self.watcher.ready()?;
                explained
            }
        };
        Ok((explained, self.watcher.traffic(span)))
    }

    /// What Lightship's first node tells of a query. Meanwhile it has all processors, so that the next query does not
    /// wait for its answers.
    fn told(&self, cluster: &Cluster, sql: &str) -> Result<Explained> {
        let cpus = |cpus| Limits { cpus: Some(cpus), ..Limits::default() };
        self.site.nodes[0].limit(&cpus(PROCESSORS))?;
        let told = cluster.explain_last(&self.site, sql);
        self.site.nodes[0].limit(&cpus(self.cpus.get().min(PROCESSORS)))?;
        told
    }

    fn read(&self, words: &[String], bytes_per_s: Option<f64>) -> Result<(u64, u64)> {
        let Some(rate) = bytes_per_s else { return self.client.run(&self.site.coordinator, words) };
        self.client.run_with(&self.site.coordinator, words, std::process::Stdio::piped(), |output| {
            super::slow::read(output.ok_or("the client has no output")?, rate)
        })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        match &mut *self.system {
            System::Postgres { servers, .. } => servers.clear(),
            System::Lightship { cluster, .. } => *cluster = None,
        }
    }
}
