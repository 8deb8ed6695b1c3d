//! The options of `tune`, as a query, a link, limits and a request.

use clap::{Args, ValueEnum};
use lightship_tuner::{Budget, Limits, Link, LinkModel, Plane, Query, Rates, Rules, thesis};
use serde::Serialize;

use super::measured::{Estimate, MeasuredRange};
use super::parse::{self, Between};
use super::settings::Driver;
use crate::commands::fetch::Auto;
use crate::error::CliError;
use crate::size::{MeanSize, Seconds, Size};

/// Find the fetch size: rows per batch, bytes per message, batches in flight
///
/// A result of V bytes is sent as batches of F rows, a batch as messages of at most M bytes. Small
/// batches and messages cost round trips and calls; large ones cost memory and, past a point, time.
/// From the cost of messages on a link this computes F, M and the number of batches in flight, gives
/// the reason, and compares other settings. The link is one that `lightship calibrate` has measured, or
/// is given by --alpha and --beta. With a URI and a query it asks the source for the size of the
/// result and its first rows; with explicit numbers nothing is sent over the network.
///
/// The first message of a batch takes alpha seconds, and every other message beta seconds:
///   alpha = a1 x bytes of the batch + b1 x bytes of the message + c1
///   beta  = a  x bytes of the batch + b  x bytes of the message + c
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_long_help = "Examples:
  lightship tune lightship://db.example 'select * from lineitem'
  lightship tune postgresql://me@db/shop 'select * from orders' \\
      --for psycopg,jdbc
  lightship tune mysql://me@db/shop 'select * from orders' --for jdbc,mysql
  lightship tune lightship://db.example --history
  lightship tune --link 50mbit --rows 4000000 --row-bytes 450
  lightship tune --link 10gbit --rows 4000000 --row-bytes 450 \\
      --for jdbc,psycopg
  lightship tune --alpha 0,8e-9,0.01 --beta 0,8e-9,1e-5 \\
      --volume-bytes 10GB --row-bytes 100
  lightship tune \\
      --alpha 2.02e-11,1.17e-8,4.5e-4 --beta 1.24e-14,2.73e-10,4.35e-6 \\
      --volume-bytes 4454718741 --row-bytes 27 --message-bytes 512..32767 \\
      --batch-bytes-max 30000000 --halt gain=1s --trace

Methods (--method):
  plan     batch, message and window together: the least memory within 2% of
           the least time
  newton   from the smallest sizes upwards, in steps, until a step no longer
           pays off (--halt)
  descent  the same steps with safeguards: no step makes the transfer slower
  grid     the fastest point of a grid over the limits, whatever its memory
plan is the default; with --halt, newton is. Only plan has more than one batch
in flight. For a measured node it gives what `lightship fetch` starts with:
messages of a megabyte, which compress best, or as much as the link carries in
half a second, and a window that covers the round trip.

For a database only batches are planned, for drivers that fetch rows in batches
from a cursor: the messages of a database can't be chosen. PostgreSQL and MySQL
estimate the number of rows; MariaDB does too, except for queries with GROUP BY,
UNION or aggregates: give --rows for these.

Sizes are written 4096, 64KiB or 1.5MB; times 250us, 10ms or 1s; rates 500MB/s
or 10Gbit/s.
docs/cost-model.md derives the model."
)]
pub(crate) struct TuneArgs {
    /// Node or database whose link `lightship calibrate` has measured.
    #[arg(value_name = "URI", conflicts_with_all = ["alpha", "beta", "link"])]
    uri: Option<String>,
    /// Query whose result is to be transferred. Without it, give the size of the result.
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// Show the predicted and actual times of past transfers, from the node at URI or from all nodes.
    #[arg(long, conflicts_with_all = ["sql", "alpha", "beta", "link", "volume_bytes", "rows", "row_bytes", "trace", "drivers", "halt", "method"])]
    history: bool,

    /// Bytes of the result. Without a query, two of this, --rows and --row-bytes are required.
    #[arg(long, value_name = "SIZE", help_heading = "Result")]
    volume_bytes: Option<Size>,
    /// Rows of the result.
    #[arg(long, value_name = "N", help_heading = "Result")]
    rows: Option<u64>,
    /// Mean bytes per row on the wire; may be a fraction.
    #[arg(long, value_name = "SIZE", help_heading = "Result")]
    row_bytes: Option<MeanSize>,

    /// Cost of the first message of a batch: seconds per byte of the batch, seconds per byte of the
    /// message, constant seconds.
    #[arg(long, value_name = "a1,b1,c1", value_parser = parse::plane, help_heading = "Link")]
    alpha: Option<Plane>,
    /// Cost of every other message, in the same units.
    #[arg(long, value_name = "a,b,c", value_parser = parse::plane, help_heading = "Link")]
    beta: Option<Plane>,
    /// Published link (Belghoul 2017) to use instead of --alpha and --beta.
    #[arg(long, value_name = "NAME", help_heading = "Link")]
    link: Option<NamedLink>,
    /// Round-trip time: the part of alpha that more batches in flight can hide. [default: c1 of alpha]
    #[arg(long, value_name = "TIME", help_heading = "Link")]
    rtt: Option<Seconds>,
    /// Rates of the stages that are known: produce, encode, send, decode, consume. No plan is faster
    /// than the slowest stage.
    #[arg(long, value_name = "STAGE=RATE,...", value_parser = parse::rates, help_heading = "Link")]
    rates: Option<Rates>,

    /// Smallest and largest message size, or a single size. [default: 512..1MiB; for a measured link,
    /// the range that was measured]
    #[arg(long, value_name = "MIN..MAX", value_parser = parse::sizes, help_heading = "Limits")]
    message_bytes: Option<Between>,
    /// Largest batch. [default: what fits --memory; for a measured link, the largest that was measured]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    batch_bytes_max: Option<Size>,
    /// Batches in flight: auto (1 to 64), a number, or MIN..MAX. Database drivers have one.
    #[arg(long, value_name = "auto|N|MIN..MAX", default_value = "auto", help_heading = "Limits")]
    window: Auto<Between>,
    /// Memory for rows in flight. [default: 32MiB, or the largest batch if that is larger]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    memory: Option<Size>,

    /// Method that finds the plan; see below. [default: plan; newton with --halt]
    #[arg(long, help_heading = "Method")]
    method: Option<Method>,
    /// When to stop the steps: gain=TIME, if a step saves no more than that; price=RATE, if each second
    /// saved takes that many more bytes per batch; with both, whichever applies first.
    #[arg(long, value_name = "RULE,...", value_parser = parse::rules, help_heading = "Method")]
    halt: Option<Rules>,
    /// Show the steps of the method, also those past the one where it stopped. For plan and grid, which
    /// take no steps, those of newton are shown. This never changes the plan.
    #[arg(long, help_heading = "Method")]
    trace: bool,

    /// Print the settings of these drivers for the plan. Database drivers have one batch in flight, so
    /// the plan has too; `lightship` is `lightship fetch`.
    #[arg(long = "for", value_name = "DRIVER,...", value_delimiter = ',')]
    drivers: Vec<Driver>,
}

/// Messages larger than about a megabyte gain nothing.
const MESSAGES_DEFAULT: Between = Between { min: 512, max: 1 << 20 };

/// A link of the thesis.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum NamedLink {
    /// 10 Gbit/s; the first message of a batch takes 0.45 ms.
    #[value(name = "10gbit")]
    TenGigabit,
    /// 50 Mbit/s; the first message of a batch takes 0.51 ms.
    #[value(name = "50mbit")]
    FiftyMegabit,
}

/// The method that finds the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Method {
    Plan,
    Newton,
    Descent,
    Grid,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Newton => "newton",
            Self::Descent => "descent",
            Self::Grid => "grid",
        }
    }

    /// Whether the method takes steps.
    pub(super) fn walks(self) -> bool {
        matches!(self, Self::Newton | Self::Descent)
    }
}

/// The request, for any link and query.
#[derive(Debug, Clone)]
pub(super) struct PlanRequest {
    pub(super) budget: Budget,
    pub(super) method: Method,
    pub(super) rules: Rules,
    pub(super) trace: bool,
    pub(super) drivers: Vec<Driver>,
    /// The limits of the strategies that the plan is compared with.
    pub(super) compared: Limits,
    /// Whether the size of messages can be chosen.
    pub(super) messages: bool,
}

impl TuneArgs {
    /// The URI and the query.
    pub(super) fn place(&self) -> Option<(&str, Option<&str>)> {
        self.uri.as_deref().map(|uri| (uri, self.sql.as_deref()))
    }

    /// Most bytes of rows in flight, if given.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.memory.map(|memory| memory.0)
    }

    /// Whether the history is requested.
    pub(super) fn wants_history(&self) -> bool {
        self.history
    }

    /// Whether the size of the result must be estimated.
    pub(super) fn wants_estimate(&self) -> bool {
        let said = [self.volume_bytes.is_some(), self.rows.is_some(), self.row_bytes.is_some()];
        said.into_iter().filter(|said| *said).count() < 2
    }

    /// The size of the result, as given or else as estimated.
    pub(super) fn query(&self, estimate: &Estimate) -> Result<Query, CliError> {
        let example = "for example --rows 1000000 --row-bytes 100";
        let (volume, mut rows, mut row) =
            (self.volume_bytes.map(|v| v.0), self.rows, self.row_bytes.map(|r| r.0));
        if self.wants_estimate() {
            row = row.or(estimate.row_bytes);
            rows = rows.or(estimate.rows.filter(|_| volume.is_none()));
        }
        if volume == Some(0) || rows == Some(0) {
            return Err(CliError::usage("the result is empty: there is nothing to plan").hint(example));
        }
        if row == Some(0.0) {
            return Err(
                CliError::usage("--row-bytes must be above 0").hint("a fraction is allowed: --row-bytes 0.5")
            );
        }
        match (volume, rows, row) {
            (Some(volume_bytes), None, Some(row_bytes)) => Ok(Query { volume_bytes, row_bytes }),
            (None, Some(rows), Some(row_bytes)) => {
                Ok(Query { volume_bytes: (rows as f64 * row_bytes).ceil() as u64, row_bytes })
            }
            (Some(volume_bytes), Some(rows), None) => {
                Ok(Query { volume_bytes, row_bytes: volume_bytes as f64 / rows as f64 })
            }
            (Some(_), Some(_), Some(_)) => {
                Err(CliError::usage("--volume-bytes, --rows and --row-bytes: two determine the third")
                    .hint("leave one out"))
            }
            (None, None, Some(_)) if self.sql.is_some() => {
                Err(CliError::usage("the source can't estimate how many rows the result has")
                    .hint("give the number: --rows 1000000"))
            }
            (None, Some(_), None) if self.sql.is_some() => {
                Err(CliError::usage("no row arrived in time to estimate the size of rows")
                    .hint("give the size: --row-bytes 100"))
            }
            _ => Err(CliError::usage(
                "the size of the result is unknown: two of --volume-bytes, --rows and --row-bytes are required",
            )
            .hint(example)),
        }
    }

    pub(super) fn link(&self) -> Result<Link, CliError> {
        let model = match (self.alpha, self.beta, self.link) {
            (Some(first), Some(next), None) => LinkModel { first, next },
            (None, None, Some(NamedLink::TenGigabit)) => thesis::TEN_GIGABIT,
            (None, None, Some(NamedLink::FiftyMegabit)) => thesis::FIFTY_MEGABIT,
            (None, None, None) => {
                return Err(CliError::usage(
                    "the cost of messages is unknown: give a measured URI, --alpha and --beta, or --link",
                )
                .hint("to try it: --link 50mbit or --link 10gbit; to measure: lightship calibrate URI"));
            }
            (Some(_), None, None) => {
                return Err(CliError::usage("--alpha requires --beta")
                    .hint("--beta a,b,c is the cost of every message but the first of a batch"));
            }
            (None, Some(_), None) => {
                return Err(CliError::usage("--beta requires --alpha")
                    .hint("--alpha a1,b1,c1 is the cost of the first message of a batch"));
            }
            (_, _, Some(_)) => {
                return Err(
                    CliError::usage("--link replaces --alpha and --beta").hint("leave out one or the other")
                );
            }
        };
        if model.first == Plane::default() {
            return Err(CliError::usage("--alpha is all zero: if batches cost nothing, all plans are equal")
                .hint("the third number is the time of a message that does not depend on its size"));
        }
        Ok(Link {
            model,
            rtt_seconds: self.rtt.map_or(model.first.constant, |rtt| rtt.0),
            rates: self.rates.unwrap_or_default(),
        })
    }

    /// The limits and the request. Those of a measured link, `tried`, apply where no others are given.
    pub(super) fn ask(&self, tried: Option<MeasuredRange>) -> Result<(Limits, PlanRequest), CliError> {
        let messages = tried.is_none_or(|tried| tried.messages);
        if !messages && self.message_bytes.is_some() {
            return Err(CliError::usage("--message-bytes: the messages of a database can't be chosen")
                .hint("leave it out: for a database only batches are planned"));
        }
        let method = self.method.unwrap_or(if self.halt.is_some() { Method::Newton } else { Method::Plan });
        if self.halt.is_some() && !method.walks() {
            return Err(CliError::usage(format!(
                "--halt stops the steps of a method, and --method {} takes none",
                method.name()
            ))
            .hint("use --method newton or --method descent"));
        }
        let default = Budget::default();
        // The model holds only within the samples of a link.
        let measured = tried.map(|tried| tried.limits).or(self.link.map(|_| thesis::LIMITS));
        let batch_max =
            self.batch_bytes_max.map(|size| size.0).or(measured.map(|limits| limits.batch_bytes_max));
        let sizes =
            self.message_bytes.or(measured
                .map(|limits| Between { min: limits.message_bytes_min, max: limits.message_bytes_max }));
        let sizes = sizes.unwrap_or(MESSAGES_DEFAULT);
        // Without other options, the plan is what `lightship fetch` starts with.
        let own = self.message_bytes.is_none()
            && self.window.given().is_none()
            && self.batch_bytes_max.is_none()
            && method == Method::Plan
            && !self.drivers.iter().any(|driver| driver.has_one_batch());
        let fetch = tried.and_then(|tried| tried.fetch).filter(|_| own);
        let exactly = |size| Between { min: size, max: size };
        let compared = (sizes, batch_max);
        let sizes = fetch.map_or(sizes, |fetch| exactly(fetch.message_bytes));
        let batch_max = fetch.map_or(batch_max, |fetch| Some(fetch.message_bytes));
        // A cursor of a database fetches one batch at a time.
        let one = (!messages).then(|| exactly(1));
        let window = self.window.given().or(fetch.map(|fetch| exactly(fetch.window_batches))).or(one);
        let memory = self
            .memory
            .map_or_else(|| default.memory_bytes_max.max(batch_max.unwrap_or(0)), |memory| memory.0);
        if memory == 0 || batch_max == Some(0) {
            return Err(CliError::usage("--memory and --batch-bytes-max must hold at least one row"));
        }
        let budget = Budget { memory_bytes_max: memory, ..self.window(method, window)? };
        let limits = |sizes: Between, batch_max: Option<u64>| Limits {
            message_bytes_min: sizes.min,
            message_bytes_max: sizes.max,
            batch_bytes_max: batch_max.unwrap_or(memory).min(memory),
        };
        let (compared, limits) = (limits(compared.0, compared.1), limits(sizes, batch_max));
        let (rules, trace, drivers) = (self.halt.unwrap_or_default(), self.trace, self.drivers.clone());
        Ok((limits, PlanRequest { budget, method, rules, trace, drivers, messages, compared }))
    }

    /// The possible windows.
    fn window(&self, method: Method, window: Option<Between>) -> Result<Budget, CliError> {
        let default = Budget::default();
        let Between { min, max } = window.unwrap_or(Between { min: 1, max: default.window_batches_max });
        let one = self.drivers.iter().find(|driver| driver.has_one_batch());
        let max = match one {
            Some(driver) if min > 1 => {
                return Err(CliError::usage(format!(
                    "--window {min}: {} has one batch in flight, and waits for it",
                    driver.name()
                ))
                .hint("leave out --window, or use --for lightship"));
            }
            None if method == Method::Plan => max,
            None if min > 1 => {
                return Err(CliError::usage(format!(
                    "--window {min}: --method {} has one batch in flight",
                    method.name()
                ))
                .hint("--method plan allows more"));
            }
            _ => 1,
        };
        Ok(Budget { window_batches_min: min, window_batches_max: max, ..default })
    }
}
