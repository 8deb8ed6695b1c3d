//! What was typed, as a query, a link, limits and what is asked of them.

use clap::{Args, ValueEnum};
use lightship_tuner::{Budget, Limits, Link, LinkModel, Plane, Query, Rates, Rules, thesis};
use serde::Serialize;

use super::measured::{Estimate, Tried};
use super::parse::{self, Between};
use super::settings::Driver;
use crate::commands::fetch::Auto;
use crate::error::CliError;
use crate::size::{MeanSize, Seconds, Size};

/// Find the fetch size: rows of a batch, bytes of a message, batches in flight
///
/// A result of V bytes travels as batches of F rows, a batch as messages of at most M bytes.
/// Small ones cost round trips and calls, large ones memory, and past a point time. From what
/// messages cost on a link this finds F, M and how many batches to have in flight, and says why,
/// and what other settings would come to. The link is one that `lightship calibrate` has measured,
/// or is given by --alpha and --beta; of the query, its result's size is asked for, and its first rows.
///
/// The first message of a batch takes alpha seconds, and every other beta:
///   alpha = a1 x bytes of the batch + b1 x bytes of the message + c1
///   beta  = a  x bytes of the batch + b  x bytes of the message + c
#[derive(Args)]
#[command(
    verbatim_doc_comment,
    after_long_help = "Examples:
  lightship tune lightship://db.example 'select * from lineitem'
  lightship tune postgresql://me@db/shop 'select * from orders' --for psycopg,jdbc
  lightship tune mysql://me@db/shop 'select * from orders' --for jdbc,mysql
  lightship tune lightship://db.example --history
  lightship tune --link 50mbit --rows 4000000 --row-bytes 450
  lightship tune --link 10gbit --rows 4000000 --row-bytes 450 --for jdbc,psycopg
  lightship tune --alpha 0,8e-9,0.01 --beta 0,8e-9,1e-5 --volume-bytes 10GB --row-bytes 100
  lightship tune --alpha 2.02e-11,1.17e-8,4.5e-4 --beta 1.24e-14,2.73e-10,4.35e-6 \\
      --volume-bytes 4454718741 --row-bytes 27 --message-bytes 512..32767 \\
      --batch-bytes-max 30000000 --halt gain=1s --trace

How it is found (--method):
  plan     batch, message and window together: the least memory that is within 2% of the least time
  newton   from the smallest sizes up, by steps, until a step no longer pays (--halt)
  descent  the same walk with safeguards: no step makes it slower
  grid     the fastest of a grid over the limits, whatever its memory
Only plan has more than one batch in flight. Of a node that was measured it is what `lightship fetch`
begins with: messages of a megabyte, which compress best, or as much as half a second carries, and a
window that covers the link. It is the default, but with --halt, which is about
steps, newton is. --trace never changes the plan.

Of a database, batches are planned, for drivers that fetch so many rows at a time from a cursor; it
has no messages of ours. PostgreSQL and MySQL say how many rows they expect; MariaDB does, but for
what is grouped, united or counted: say --rows then.

Sizes are 4096, 64KiB or 1.5MB; times 250us, 10ms or 1s; rates 500MB/s or 10Gbit/s.
docs/cost-model.md derives all of it."
)]
pub(crate) struct TuneArgs {
    /// The other end of a link that was measured.
    #[arg(value_name = "URI", conflicts_with_all = ["alpha", "beta", "link"])]
    uri: Option<String>,
    /// The query whose result is to come; or say how large it is.
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// What was predicted of transfers, and what they took: of the place, or of all.
    #[arg(long, conflicts_with_all = ["sql", "alpha", "beta", "link", "volume_bytes", "rows", "row_bytes", "trace", "drivers", "halt", "method"])]
    history: bool,

    /// Bytes of the result. Two of this, --rows and --row-bytes are needed.
    #[arg(long, value_name = "SIZE", help_heading = "Result")]
    volume_bytes: Option<Size>,
    /// Rows of the result.
    #[arg(long, value_name = "N", help_heading = "Result")]
    rows: Option<u64>,
    /// Mean bytes of a row, as it travels; need not be whole.
    #[arg(long, value_name = "SIZE", help_heading = "Result")]
    row_bytes: Option<MeanSize>,

    /// What the first message of a batch takes: seconds a byte of batch, seconds a byte of
    /// message, seconds.
    #[arg(long, value_name = "a1,b1,c1", value_parser = parse::plane, help_heading = "Link")]
    alpha: Option<Plane>,
    /// What every other message takes.
    #[arg(long, value_name = "a,b,c", value_parser = parse::plane, help_heading = "Link")]
    beta: Option<Plane>,
    /// A link that was measured by others (Belghoul 2017), instead of --alpha and --beta.
    #[arg(long, value_name = "NAME", help_heading = "Link")]
    link: Option<NamedLink>,
    /// The round trip: what more batches in flight can hide of alpha. [default: alpha's c1]
    #[arg(long, value_name = "TIME", help_heading = "Link")]
    rtt: Option<Seconds>,
    /// How fast the stages are, as far as that is known: produce, encode, send, decode, consume.
    /// No plan is faster than the slowest.
    #[arg(long, value_name = "STAGE=RATE,...", value_parser = parse::rates, help_heading = "Link")]
    rates: Option<Rates>,

    /// Smallest and largest message, or the only one. [default: 512..1MiB; of a link that
    /// was measured, what was tried]
    #[arg(long, value_name = "MIN..MAX", value_parser = parse::sizes, help_heading = "Limits")]
    message_bytes: Option<Between>,
    /// Largest batch. [default: what fits into the memory; of a link that was measured, what was
    /// tried]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    batch_bytes_max: Option<Size>,
    /// Batches in flight: auto (1 to 64), a number, or MIN..MAX. Drivers of databases have one.
    #[arg(long, value_name = "auto|N|MIN..MAX", default_value = "auto", help_heading = "Limits")]
    window: Auto<Between>,
    /// Rows in flight take no more than this. [default: 32MiB, or one largest batch]
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    memory: Option<Size>,

    /// How the plan is found. [default: plan; newton with --halt]
    #[arg(long, help_heading = "Method")]
    method: Option<Method>,
    /// When a step no longer pays: gain=TIME, it saves no more than that; price=RATE, each second
    /// saved takes that many more bytes of batch; either, where both are given.
    #[arg(long, value_name = "RULE,...", value_parser = parse::rules, help_heading = "Method")]
    halt: Option<Rules>,
    /// Show the steps of the walk, also those past the one where it halted. Of plan and grid, which
    /// don't walk, newton's are shown beside.
    #[arg(long, help_heading = "Method")]
    trace: bool,

    /// What to write into the settings of drivers for this plan, which then has one batch in
    /// flight, as they do; `lightship` is our own fetch.
    #[arg(long = "for", value_name = "DRIVER,...", value_delimiter = ',')]
    drivers: Vec<Driver>,
}

/// Messages of about a megabyte are the largest that are worth it.
const MESSAGES_DEFAULT: Between = Between { min: 512, max: 1 << 20 };

/// A link of the thesis.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum NamedLink {
    /// 10 Gbit/s, with a first message of 0.45 ms.
    #[value(name = "10gbit")]
    TenGigabit,
    /// 50 Mbit/s, with a first message of 0.51 ms.
    #[value(name = "50mbit")]
    FiftyMegabit,
}

/// Who finds the plan.
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

    /// Whether it goes step by step.
    pub(super) fn walks(self) -> bool {
        matches!(self, Self::Newton | Self::Descent)
    }
}

/// What is asked for, of whatever link and query.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) budget: Budget,
    pub(super) method: Method,
    pub(super) rules: Rules,
    pub(super) trace: bool,
    pub(super) drivers: Vec<Driver>,
    /// Within what the strategies are that the plan is compared with.
    pub(super) compared: Limits,
    /// Whether batches come as messages whose size can be chosen.
    pub(super) messages: bool,
}

impl TuneArgs {
    /// The place that is asked, and the query.
    pub(super) fn place(&self) -> Option<(&str, Option<&str>)> {
        self.uri.as_deref().map(|uri| (uri, self.sql.as_deref()))
    }

    /// Most bytes of rows in flight, where that is said.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.memory.map(|memory| memory.0)
    }

    /// Whether it is about what was.
    pub(super) fn wants_history(&self) -> bool {
        self.history
    }

    /// Whether the result's size is not said.
    pub(super) fn wants_estimate(&self) -> bool {
        let said = [self.volume_bytes.is_some(), self.rows.is_some(), self.row_bytes.is_some()];
        said.into_iter().filter(|said| *said).count() < 2
    }

    /// The result's size: as it is said, and else as it was estimated.
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
                CliError::usage("--row-bytes: a row has bytes").hint("a mean will do: --row-bytes 0.5")
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
                Err(CliError::usage("--volume-bytes, --rows and --row-bytes: two of them say the third")
                    .hint("leave one out"))
            }
            (None, None, Some(_)) if self.sql.is_some() => {
                Err(CliError::usage("how many rows the result has is not known before they come")
                    .hint("say it: --rows 1000000"))
            }
            (None, Some(_), None) if self.sql.is_some() => {
                Err(CliError::usage("how wide its rows are did not show in time")
                    .hint("say it: --row-bytes 100"))
            }
            _ => Err(CliError::usage(
                "how large is the result? two of --volume-bytes, --rows and --row-bytes are needed",
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
                    "what do messages cost? a URI that was measured says it, or --alpha and --beta, or --link",
                )
                .hint("to try it: --link 50mbit or --link 10gbit; to measure: lightship calibrate URI"));
            }
            (Some(_), None, None) => {
                return Err(CliError::usage("--alpha without --beta")
                    .hint("--beta a,b,c is what every message but a batch's first takes"));
            }
            (None, Some(_), None) => {
                return Err(CliError::usage("--beta without --alpha")
                    .hint("--alpha a1,b1,c1 is what the first message of a batch takes"));
            }
            (_, _, Some(_)) => {
                return Err(CliError::usage("--link stands for --alpha and --beta")
                    .hint("leave out one or the other"));
            }
        };
        if model.first == Plane::default() {
            return Err(CliError::usage(
                "--alpha is all zero: where a batch costs nothing, any plan will do",
            )
            .hint("the third number is what a message takes whatever its size"));
        }
        Ok(Link {
            model,
            rtt_seconds: self.rtt.map_or(model.first.constant, |rtt| rtt.0),
            rates: self.rates.unwrap_or_default(),
        })
    }

    /// What is asked for; of a link that was measured, within these limits where no others are given.
    pub(super) fn ask(&self, tried: Option<Tried>) -> Result<(Limits, Ask), CliError> {
        let messages = tried.is_none_or(|tried| tried.messages);
        if !messages && self.message_bytes.is_some() {
            return Err(CliError::usage("--message-bytes: a database has no messages of ours")
                .hint("leave it out: what was measured of it are batches"));
        }
        let method = self.method.unwrap_or(if self.halt.is_some() { Method::Newton } else { Method::Plan });
        if self.halt.is_some() && !method.walks() {
            return Err(CliError::usage(format!(
                "--halt ends a walk, and --method {} makes none",
                method.name()
            ))
            .hint("--method newton and --method descent walk"));
        }
        let default = Budget::default();
        // What lies beyond the samples of a link is nobody's to say.
        let measured = tried.map(|tried| tried.limits).or(self.link.map(|_| thesis::LIMITS));
        let batch_max =
            self.batch_bytes_max.map(|size| size.0).or(measured.map(|limits| limits.batch_bytes_max));
        let sizes =
            self.message_bytes.or(measured
                .map(|limits| Between { min: limits.message_bytes_min, max: limits.message_bytes_max }));
        let sizes = sizes.unwrap_or(MESSAGES_DEFAULT);
        // What a fetch of ours begins with, where nothing else is asked for.
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
        // A cursor of a database brings one batch at a time.
        let one = (!messages).then(|| exactly(1));
        let window = self.window.given().or(fetch.map(|fetch| exactly(fetch.window_batches))).or(one);
        let memory = self
            .memory
            .map_or_else(|| default.memory_bytes_max.max(batch_max.unwrap_or(0)), |memory| memory.0);
        if memory == 0 || batch_max == Some(0) {
            return Err(CliError::usage("--memory and --batch-bytes-max: a row is to fit into them"));
        }
        let budget = Budget { memory_bytes_max: memory, ..self.window(method, window)? };
        let limits = |sizes: Between, batch_max: Option<u64>| Limits {
            message_bytes_min: sizes.min,
            message_bytes_max: sizes.max,
            batch_bytes_max: batch_max.unwrap_or(memory).min(memory),
        };
        let (compared, limits) = (limits(compared.0, compared.1), limits(sizes, batch_max));
        let (rules, trace, drivers) = (self.halt.unwrap_or_default(), self.trace, self.drivers.clone());
        Ok((limits, Ask { budget, method, rules, trace, drivers, messages, compared }))
    }

    /// The windows that are possible.
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
                .hint("leave out --window, or plan for --for lightship"));
            }
            None if method == Method::Plan => max,
            None if min > 1 => {
                return Err(CliError::usage(format!(
                    "--window {min}: --method {} has one batch in flight",
                    method.name()
                ))
                .hint("--method plan has more"));
            }
            _ => 1,
        };
        Ok(Budget { window_batches_min: min, window_batches_max: max, ..default })
    }
}
