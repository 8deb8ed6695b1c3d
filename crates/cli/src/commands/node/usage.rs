//! What a node records of its own use and that of other nodes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lightship::usage::{CollectOptions, HttpOptions, UsageCollector};
use lightship_engine::{Engine, TaskMeters};
use lightship_monitor::{Agent, AgentEvent, AgentOptions, HostSpeedsStore, Watch, run_agent, unix_ns};
use lightship_transport::net::{Listen, ServerConfig};
use tokio::sync::watch;

use super::NodeArgs;
use crate::commands::usage::{host_name, interval_ns};
use crate::error::CliError;
use crate::size::Limit;

/// The agent and the collector of a node.
pub(super) struct NodeUsage {
    collector: UsageCollector,
    meters: Arc<TaskMeters>,
    token: String,
    agent: AgentOptions,
}

impl NodeArgs {
    /// Whether the node records what queries use.
    pub(super) fn records_usage(&self) -> bool {
        #[cfg(feature = "otlp")]
        if self.otlp.is_some() {
            return true;
        }
        self.usage || self.usage_interval.is_some() || self.usage_data.is_some() || self.http.is_some()
    }

    /// Begins to listen for samples, and for readers of the page. `name` is the node's in its cluster.
    pub(super) async fn usage(
        &self,
        meters: Arc<TaskMeters>,
        listening: &[Listen],
        name: Option<&str>,
        server: &ServerConfig,
    ) -> Result<NodeUsage, CliError> {
        // The port for samples has the number of the port for queries, by which other nodes know this one.
        let listen = listening.iter().find_map(|listen| match listen {
            Listen::Tcp(address) => Some(*address),
            Listen::Unix(_) => None,
        });
        let token = server.peer_token.clone().or_else(|| server.tokens.first().cloned()).unwrap_or_default();
        let host = name.map_or_else(host_name, str::to_owned);
        let options = CollectOptions {
            listen: listen.unwrap_or((Ipv4Addr::LOCALHOST, 0).into()),
            token: token.clone(),
            own_host: Some(host.clone()),
            http: self.http.as_deref().map(|text| self.page(text, &host, server)).transpose()?,
            history: self.usage_data.clone(),
        };
        let collector = UsageCollector::bind(options).await?;
        #[cfg(feature = "otlp")]
        let collector = match &self.otlp {
            Some(url) => {
                let receiver = url.parse::<lightship_monitor::SpanReceiver>();
                let receiver = receiver.map_err(|error| CliError::usage(format!("--otlp {error}")))?;
                collector.with_spans(receiver, host.clone())
            }
            None => collector,
        };
        meters.observe(collector.observer());
        let interval_ns = interval_ns(self.usage_interval.unwrap_or(Limit(Some(Duration::from_secs(1)))))?;
        let agent =
            AgentOptions { watch: Watch::this_process(), interval_ns, ..AgentOptions::new(host.clone()) };
        Ok(NodeUsage { collector, meters, token, agent })
    }

    /// Where the page is served, and to whom.
    fn page(
        &self,
        text: &str,
        host: &str,
        server: &ServerConfig,
    ) -> Result<(SocketAddr, HttpOptions), CliError> {
        let address = self.safe_address("--http", text, server)?;
        let options = HttpOptions {
            tokens: server.tokens.clone(),
            tls: server.tls.clone(),
            ..HttpOptions::new(host.to_owned())
        };
        Ok((address, options))
    }
}

impl NodeUsage {
    /// Where the page can be read.
    pub(super) fn page(&self, is_encrypted: bool) -> Result<Option<String>, CliError> {
        let scheme = if is_encrypted { "https" } else { "http" };
        Ok(self.collector.http_address()?.map(|address| format!("{scheme}://{address}/")))
    }

    /// Samples and collects until the node stops.
    pub(super) async fn run(self, engine: Arc<Engine>, stop: watch::Receiver<bool>) {
        let Self { collector, meters, token, agent } = self;
        let own = match collector.address() {
            Ok(address) => reachable(address),
            Err(error) => return tracing::error!(%error, "usage is not recorded"),
        };
        let (collectors, targets) = watch::channel(vec![own]);
        let agent = Agent::new(agent, unix_ns())
            .with_entries(Arc::new(move |entries_max| meters.entries(entries_max)))
            .with_speeds(HostSpeedsStore::own_speeds());
        let sampling = run_agent(agent, targets, &token, |event| match event {
            AgentEvent::NameTaken { collector } => {
                tracing::warn!(%collector, "another agent has the name of this node; its samples are used");
            }
            AgentEvent::Forged { collector } => {
                tracing::warn!(%collector, "samples are not accepted: the cluster token is another one");
            }
            _ => {}
        });
        tokio::select! {
            // Ends when the node stops, or when it can't go on.
            ended = collector.run(stop, |event| tracing::debug!(?event, "usage")) => {
                if let Err(error) = ended {
                    tracing::error!(%error, "usage is no longer recorded");
                }
            }
            // The samples of other hosts go on.
            () = async {
                let Err(error) = sampling.await;
                tracing::error!(%error, "this host is no longer sampled");
                std::future::pending().await
            } => {}
            () = follow(&engine, own, &collectors) => {}
        }
    }
}

/// Keeps the list of collectors up to date: this node and all others that have joined. Does not end.
async fn follow(engine: &Engine, own: SocketAddr, collectors: &watch::Sender<Vec<SocketAddr>>) {
    let mut changes = engine.watch_cluster();
    loop {
        let mut all = vec![own];
        for member in engine.cluster_nodes().into_iter().filter(|member| member.is_met()) {
            let found = tokio::net::lookup_host(member.name.clone()).await;
            match found.map(|mut addresses| addresses.next()) {
                Ok(address) => all.extend(address),
                Err(error) => tracing::debug!(node = member.name, %error, "no address for samples"),
            }
        }
        collectors.send_replace(all);
        let changed = match &mut changes {
            Some(changes) => changes.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }
}

/// An address at which this host reaches what it listens on.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
        _ => address,
    }
}
