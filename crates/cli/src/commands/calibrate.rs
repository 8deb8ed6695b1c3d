//! `lightship calibrate`: measures a link and saves its profile.

mod host;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lightship::ErrorKind;
use lightship::node::endpoint;
use lightship_netbench as netbench;
use lightship_session::{
    CalibrateError, CalibrationPlan, Client, NodeProbe, Pair, Probe, Profile, Profiles, calibrate,
};
use lightship_sources::mysql::MySqlSource;
use lightship_sources::postgres::PostgresSource;
use lightship_sources::{Cursor, Cursors, Location, SourceError};
use lightship_tuner::{Fit, Plane, Sample, Term, Why};
use serde::Serialize;

use super::manual::Answer;
use crate::error::CliError;
use crate::size::Size;

/// What stands for this host in place of a URI.
const HOST: &str = "host";
/// How long a link is measured by default, in seconds.
const SECONDS: f64 = 2.0;
/// Rows of eight bytes, more than any measurement needs.
const NODE_SQL: &str = "select value from generate_series(1, 1000000000000)";
/// The same for PostgreSQL, which generates these rows as they are fetched.
const POSTGRES_SQL: &str = "select generate_series(1, 1000000000000) as value";
/// 100,000 rows of 136 bytes. MySQL and MariaDB first write a cursor's whole result to a temporary table,
/// and this one fits the 16 MiB of memory that such tables have by default.
const MYSQL_SQL: &str = "with d as (select 0 as n union all select 1 union all select 2 union all select 3 \
     union all select 4 union all select 5 union all select 6 union all select 7 union all select 8 \
     union all select 9), v as (select a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n as n \
     from d as a, d as b, d as c, d, d as e) select n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n from v";

/// Measure the link to a node or a database, or this host, and save the result
///
/// Fetches rows in batches of many sizes, and fits the cost of a batch's first message (alpha) and of
/// every other message (beta) to the size of batches (F) and of messages (M). `lightship tune` and
/// `lightship fetch` plan with the profile. There is one for each endpoint, in LIGHTSHIP_PROFILES or
/// ~/.local/state/lightship/profiles.
///
/// `lightship calibrate host` measures this host instead: its processors, memory and disk, and with --link its
/// link to another host, for `lightship usage`. Do it while nothing else runs. The result replaces earlier
/// ones, in LIGHTSHIP_HOSTS or ~/.local/state/lightship/hosts.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship calibrate lightship://db.example
  lightship calibrate lightship://db.example \\
      --sql 'select * from lineitem' --seconds 10
  lightship calibrate postgresql://me@db/shop
  lightship calibrate mysql://me@db/shop
  lightship calibrate host --folder /var/lib/postgresql
  lightship calibrate host --link db.example

For a database it measures a cursor, from which rows are fetched in batches, as
drivers with a fetch size do. Lightship itself does not use one: it reads a
whole result with one request.

MySQL and MariaDB write a cursor's whole result to a temporary table before the
first row is fetched, once for each pair of sizes. That time is not counted, but
it adds up: limit a query given with --sql to about 100,000 rows, as the default
query is. Batches are not larger than the result.")]
pub(crate) struct CalibrateArgs {
    /// Node or database to measure: lightship://[TOKEN@]HOST[:PORT], lightship+unix:PATH, postgresql://…
    /// or mysql://…; or `host` for this host.
    #[arg(value_name = "URI")]
    uri: String,
    /// Query to measure with, which must return many rows. [default: generated numbers]
    #[arg(long)]
    sql: Option<String>,
    /// How many seconds to measure. Over a slow link a few pairs of sizes may take longer. [default: 2; 10
    /// for `host`, and as many for its link]
    #[arg(long, value_parser = positive_seconds, conflicts_with = "thorough")]
    seconds: Option<f64>,
    /// For `host`: folder on the disk to measure, for a temporary file of up to 1 GiB. [default: the
    /// current folder]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// For `host`: also measure the link to this host, on which `lightship netbench serve` must run. Choose one
    /// that has as fast a link as those that queries use: a slower one would be measured instead of this one's.
    #[arg(long, value_name = "HOST[:PORT]")]
    link: Option<netbench::Host>,
    /// Measure all 629 pairs of sizes of Belghoul's thesis, however long it takes. Only for nodes.
    #[arg(long)]
    thorough: bool,
    /// Print the result, but do not save a profile.
    #[arg(long)]
    dry_run: bool,
    /// Print no progress bar and no report.
    #[arg(short, long)]
    quiet: bool,
}

fn positive_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if seconds > 0.0 && seconds <= 3600.0 {
        Ok(seconds)
    } else {
        Err("expected above 0, at most 3600".into())
    }
}

/// The object of `--json`.
#[derive(Serialize)]
struct Found<'a> {
    seconds: f64,
    /// The path of the profile, if it was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
    #[serde(flatten)]
    profile: &'a Profile,
}

pub(crate) async fn cmd_calibrate(args: CalibrateArgs, json: bool) -> Result<(), CliError> {
    if args.uri == HOST {
        if args.sql.is_some() || args.thorough {
            return Err(CliError::usage("--sql and --thorough are for links, not for `host`"));
        }
        return host::measure(args, json).await;
    }
    let quiet = args.quiet;
    let (answer, kept) = measure(args, quiet || json).await?;
    if json || !quiet {
        answer.print(json)?;
    }
    if let Some(path) = kept.filter(|_| !json && !quiet) {
        crate::say!("saved in {}", path.display());
    }
    Ok(())
}

/// The measurement of a link.
pub(super) async fn answer(args: CalibrateArgs) -> Result<Answer, CliError> {
    if args.uri == HOST {
        return Err(CliError::usage("`host` is not a link"));
    }
    let quiet = args.quiet;
    Ok(measure(args, quiet).await?.0)
}

/// Measures a link. Returns the path of the profile, too, if it was saved.
async fn measure(args: CalibrateArgs, quiet: bool) -> Result<(Answer, Option<PathBuf>), CliError> {
    if args.folder.is_some() || args.link.is_some() {
        return Err(CliError::usage("--folder and --link are for `lightship calibrate host`"));
    }
    let location = Location::parse(&args.uri)?;
    let began = Instant::now();
    let budget = Duration::from_secs_f64(args.seconds.unwrap_or(SECONDS));
    let bar = bar(quiet, "pairs of sizes");
    let told = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let profile = match &location {
        Location::Node { .. } | Location::NodeUnix { .. } => {
            let (endpoint, config) = endpoint(&location)?;
            let mut client = Client::connect_with(&endpoint, &config).await?;
            let sql = args.sql.as_deref().unwrap_or(NODE_SQL);
            let effort =
                if args.thorough { CalibrationPlan::thorough() } else { CalibrationPlan::quick(budget) };
            let mut probe = NodeProbe::new(&mut client, sql);
            calibrate(&mut probe, &location.to_string(), sql, &effort, told)
                .await
                .map_err(|e| failed(e, sql))?
        }
        Location::Postgres(_) | Location::MySql(_) if args.thorough => {
            return Err(CliError::usage("--thorough measures sizes of messages, which only a node has"));
        }
        Location::Postgres(uri) => {
            let source = PostgresSource::connect(uri).await?;
            let sql = args.sql.as_deref().unwrap_or(POSTGRES_SQL);
            of_cursor(&source, &location, sql, budget, told).await?
        }
        Location::MySql(uri) => {
            let source = MySqlSource::connect(uri).await?;
            let sql = args.sql.as_deref().unwrap_or(MYSQL_SQL);
            of_cursor(&source, &location, sql, budget, told).await?
        }
        other => {
            return Err(CliError::usage(format!(
                "{other}: neither a node nor a PostgreSQL, MySQL or MariaDB database"
            ))
            .hint("files have no link"));
        }
    };
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    let kept = if args.dry_run { None } else { Some(Profiles::of_user()?.keep(&profile)?) };
    let found =
        Found { seconds, kept: kept.as_ref().map(|path| path.display().to_string()), profile: &profile };
    let json = serde_json::to_string_pretty(&found).map_err(|e| CliError::internal(e.to_string()))?;
    Ok((Answer { text: report(&profile, seconds) + "\n", json }, kept))
}

/// Measures the link to a database with its cursors.
async fn of_cursor(
    source: &impl Cursors,
    location: &Location,
    sql: &str,
    budget: Duration,
    told: impl FnMut(usize, usize),
) -> Result<Profile, CliError> {
    let mut probe = CursorProbe { source, sql };
    let measured =
        calibrate(&mut probe, &location.to_string(), sql, &CalibrationPlan::batches(budget), told).await;
    measured.map_err(|e| failed(e, sql))
}

fn failed<E: std::error::Error>(error: CalibrateError<E>, sql: &str) -> CliError
where
    CliError: From<E>,
{
    match error {
        CalibrateError::Probe(error) => CliError::from(error).in_statement(sql),
        short @ CalibrateError::TooFewRows { .. } => CliError::new(ErrorKind::Usage, short.to_string())
            .hint("leave out --sql, or query a larger table"),
        other => CliError::new(ErrorKind::Data, other.to_string())
            .hint("measure for longer (--seconds 10), or when the link is less busy"),
    }
}

/// A bar that counts `what`.
fn bar(quiet: bool, what: &str) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(&format!("{{bar:30}} {{pos}} of {{len}} {what}"));
    ProgressBar::no_length().with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The result as text.
fn report(profile: &Profile, took: f64) -> String {
    let calibration = &profile.calibration;
    let rate = profile.bytes_per_second.map_or(String::new(), |rate| format!(", {}/s", Size(rate as u64)));
    let error = calibration.relative_error.map_or(String::new(), |error| {
        let (error, rtt_ms) = (error * 100.0, profile.rtt_seconds * 1e3);
        format!("\nmean error of the fit {error:.1}%; round trip {rtt_ms:.2} ms{rate}")
    });
    let doubt = profile
        .doubts(SystemTime::now())
        .iter()
        .map(|doubt| format!("\nwarning about the profile: {doubt}"))
        .collect::<String>();
    let next = match calibration.next.samples {
        0 => String::new(),
        _ => format!("\nother messages            beta  = {}", plane(&calibration.next)),
    };
    format!(
        "{}: {} pairs of sizes in {took:.1} s\nfirst message of a batch  alpha = {}{next}{error}{doubt}",
        profile.endpoint,
        profile.samples.len(),
        plane(&calibration.first),
    )
}

/// A coefficient of a plane, and the size that it multiplies.
type Coefficient = (Term, fn(&Plane) -> f64, &'static str);

/// A plane as a formula, with its standard errors.
fn plane(fit: &Fit) -> String {
    let errors = fit.standard_errors.unwrap_or_default();
    let terms: [Coefficient; 3] = [
        (Term::Batch, |plane| plane.per_batch_byte, " F"),
        (Term::Message, |plane| plane.per_message_byte, " M"),
        (Term::Constant, |plane| plane.constant, ""),
    ];
    let shown: Vec<_> = terms
        .iter()
        .filter(|(term, ..)| !fit.dropped.iter().any(|(dropped, _)| dropped == term))
        .map(|(_, of, size)| format!("({:.3e} ± {:.0e}){size}", of(&fit.plane), of(&errors)))
        .collect();
    let negative: Vec<_> = fit.dropped.iter().filter(|(_, why)| *why == Why::Negative).collect();
    let note = match negative.len() {
        0 => String::new(),
        n => format!(", {n} negative terms left out"),
    };
    let sum = if shown.is_empty() { "0".to_owned() } else { shown.join(" + ") };
    format!("{sum} s   (R² {:.3}{note})", fit.r_squared)
}

/// Measures with cursors of a database, a new one for each pair.
struct CursorProbe<'a, S> {
    source: &'a S,
    sql: &'a str,
}

/// Number of rows from which the size of a row is estimated.
const SAMPLE_ROWS: u32 = 100;

impl<S: Cursors> Probe for CursorProbe<'_, S> {
    type Error = SourceError;

    async fn row_bytes(&mut self) -> Result<Option<f64>, SourceError> {
        let mut cursor = self.source.cursor(self.sql).await?;
        let fetched = cursor.fetch(SAMPLE_ROWS).await?;
        cursor.close().await?;
        Ok((fetched.rows > 0).then(|| fetched.bytes as f64 / fetched.rows as f64))
    }

    /// `None`: a cursor can't stream.
    async fn rate(&mut self, _within: Duration) -> Result<Option<f64>, SourceError> {
        Ok(None)
    }

    async fn time(&mut self, pair: &Pair) -> Result<Option<Sample>, SourceError> {
        let mut cursor = self.source.cursor(self.sql).await?;
        let sample = time(&mut cursor, pair).await?;
        cursor.close().await?;
        Ok(sample)
    }
}

async fn time(cursor: &mut impl Cursor, pair: &Pair) -> Result<Option<Sample>, SourceError> {
    // Not counted: the query starts with the first fetch.
    let begun = cursor.fetch(pair.batch_rows).await?;
    let (began, mut took, mut batches, mut bytes) = (Instant::now(), Duration::ZERO, 0, 0);
    let mut whole = begun.rows == u64::from(pair.batch_rows);
    while whole && !pair.is_enough(batches, took) {
        let fetched = cursor.fetch(pair.batch_rows).await?;
        whole = fetched.rows == u64::from(pair.batch_rows);
        if whole {
            (batches, bytes, took) = (batches + 1, bytes + fetched.bytes, began.elapsed());
        }
    }
    // The result may end before enough batches were fetched.
    Ok((batches >= pair.batches.min).then(|| Sample {
        batch_bytes: bytes as f64 / f64::from(batches.max(1)),
        // A batch arrives as one message.
        message_bytes: f64::from(pair.message_bytes),
        first_seconds: took.as_secs_f64() / f64::from(batches.max(1)),
        first_count: batches.into(),
        next_seconds: 0.0,
        next_count: 0,
    }))
}
