//! Predicted and actual times of transfers, by link.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lightship_session::{Profiles, TransferRecord};
use lightship_sources::Location;
use lightship_tuner::median;
use serde::Serialize;

use crate::commands::manual;
use crate::error::CliError;
use crate::size::{Size, grouped};

/// Number of latest transfers that are shown for a single link.
const SHOWN: usize = 20;

/// The transfers over a link, and the errors of their predictions.
#[derive(Debug, Serialize)]
struct OfLink {
    endpoint: String,
    transfers: usize,
    /// Transfers with a prediction.
    predicted: usize,
    /// Mean and median of the absolute error of the predictions, as a fraction of the actual time.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_error: Option<f64>,
    /// Bytes of rows per second, the median.
    bytes_per_second: f64,
    facts: Vec<TransferRecord>,
}

impl OfLink {
    fn new(endpoint: String, facts: Vec<TransferRecord>) -> Self {
        let errors: Vec<f64> = facts.iter().filter_map(TransferRecord::error).map(f64::abs).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let paces = facts.iter().map(|fact| fact.volume_bytes as f64 / fact.seconds.max(1e-9));
        Self {
            endpoint,
            transfers: facts.len(),
            predicted: errors.len(),
            mean_error: Some(mean).filter(|mean| mean.is_finite()),
            median_error: median(errors),
            bytes_per_second: median(paces).unwrap_or_default(),
            facts,
        }
    }
}

pub(super) fn print(uri: Option<&str>, json: bool) -> Result<(), CliError> {
    let profiles = Profiles::of_user()?;
    let endpoints = match uri {
        Some(uri) => vec![Location::parse(uri)?.to_string()],
        None => profiles.endpoints()?,
    };
    let mut links = Vec::new();
    for endpoint in endpoints {
        let facts = profiles.facts(&endpoint)?;
        if !facts.is_empty() {
            links.push(OfLink::new(endpoint, facts));
        }
    }
    if links.is_empty() && !json {
        let of = uri.map_or(String::new(), |uri| format!(" from {uri}"));
        return Err(CliError::usage(format!(
            "no transfer{of} is recorded in {}",
            profiles.folder().display()
        ))
        .hint("`lightship fetch` from a node records its predicted and its actual time"));
    }
    let text = if json {
        serde_json::to_string(&links).map_err(|e| CliError::internal(e.to_string()))? + "\n"
    } else {
        let mut text = by_link(&links);
        if let ([link], Some(_)) = (links.as_slice(), uri) {
            text += &by_transfer(link);
        }
        text
    };
    manual::print(text.as_bytes())
}

fn percent(part: Option<f64>) -> String {
    part.map_or("-".into(), |part| format!("{:.0}%", part * 100.0))
}

fn by_link(links: &[OfLink]) -> String {
    let width = links.iter().map(|link| link.endpoint.chars().count()).max().unwrap_or(0).max(4);
    let mut out = format!(
        "{:width$}  {:>9}  {:>9}  {:>10}  {:>12}  {:>9}\n",
        "link", "transfers", "predicted", "mean error", "median error", "rows"
    );
    for link in links {
        let rate = format!("{}/s", Size(link.bytes_per_second as u64));
        let _ = writeln!(
            out,
            "{:width$}  {:>9}  {:>9}  {:>10}  {:>12}  {rate:>9}",
            link.endpoint,
            link.transfers,
            link.predicted,
            percent(link.mean_error),
            percent(link.median_error),
        );
    }
    out
}

/// The latest transfers, with the last one at the end.
fn by_transfer(link: &OfLink) -> String {
    let mut out = format!(
        "\n{:>10}  {:>14}  {:>9}  {:>9}  {:>9}  {:>6}  query\n",
        "ago", "rows", "size", "predicted", "took", "error"
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for fact in link.facts.iter().skip(link.facts.len().saturating_sub(SHOWN)) {
        let predicted = fact.predicted_seconds.map_or("-".into(), |seconds| format!("{seconds:.2} s"));
        let took = format!("{:.2} s", fact.seconds);
        let error = fact.error().map_or("-".into(), |error| format!("{:+.0}%", error * 100.0));
        let _ = writeln!(
            out,
            "{:>10}  {:>14}  {:>9}  {predicted:>9}  {took:>9}  {error:>6}  {}",
            ago(now.saturating_sub(Duration::from_secs(fact.at))),
            grouped(fact.rows),
            Size(fact.volume_bytes).to_string(),
            fact.query,
        );
    }
    out
}

fn ago(passed: Duration) -> String {
    let seconds = passed.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
