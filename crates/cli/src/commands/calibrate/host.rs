//! `lightship calibrate host`: measures what this host and its link can do at most.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;

use lightship::usage::{
    CalibrateOptions, HostSpeedsMeasured, HostSpeedsStore, LinkValues, SpeedKind, SpeedResult, calibrate_host,
};
use lightship_netbench::{Host, Target};

use super::CalibrateArgs;
use crate::columns::aligned;
use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::{Seconds, Size, three_digits};

/// How long the host is measured by default, in seconds.
const SECONDS: f64 = 10.0;

/// How often each speed is measured.
const REPETITIONS: u32 = 5;

/// Measures this host, and its link if another host is named, and saves the result unless `--dry-run` is given.
pub(super) async fn measure(args: CalibrateArgs, json: bool) -> Result<(), CliError> {
    let CalibrateArgs { folder, seconds, dry_run, quiet, link: peer, .. } = args;
    let duration = Duration::from_secs_f64(seconds.unwrap_or(SECONDS));
    let folder = folder.unwrap_or_else(|| PathBuf::from("."));
    let options = CalibrateOptions { duration, repetitions: REPETITIONS, ..CalibrateOptions::new(folder) };
    let bar = super::bar(quiet || json, "measurements");
    bar.set_length(u64::from(REPETITIONS) * SpeedKind::ALL.len() as u64);
    // The link first: if the other host does not answer, the error comes at once.
    let link = match &peer {
        Some(peer) => Some(measure_link(peer, duration, &bar).await?),
        None => None,
    };
    let shown = bar.clone();
    let measuring = tokio::task::spawn_blocking(move || {
        let began = shown.position();
        calibrate_host(&options, |progress| {
            let before = SpeedKind::ALL.iter().take_while(|kind| **kind != progress.kind).count() as u32;
            shown.set_position(began + u64::from(before * progress.repetitions + progress.repetition));
        })
    });
    let measured = measuring.await.map_err(|error| CliError::internal(error.to_string()))?;
    bar.finish_and_clear();
    let mut measured = measured.map_err(lightship::Error::from)?;
    if let Some((peer, values)) = peer.zip(link) {
        measured.set_link(&peer.to_string(), values).map_err(lightship::Error::from)?;
    }
    let kept = match dry_run {
        true => None,
        false => {
            let keep = || HostSpeedsStore::of_user()?.keep(&measured);
            Some(keep().map_err(lightship::Error::from)?)
        }
    };
    if json {
        let text = serde_json::to_string_pretty(&measured).map_err(|e| CliError::internal(e.to_string()))?;
        return print((text + "\n").as_bytes());
    }
    if !quiet {
        print(report(&measured).as_bytes())?;
        if let Some(path) = kept {
            crate::say!("saved in {}", path.display());
        }
    }
    Ok(())
}

/// Measures the link to another host several times, within about `duration` in all.
async fn measure_link(peer: &Host, duration: Duration, bar: &ProgressBar) -> Result<LinkValues, CliError> {
    let target = Target::find(peer).await.map_err(|error| {
        CliError::from(error).hint("run `lightship netbench serve --listen 0.0.0.0` on the other host")
    })?;
    if target.address.ip().is_loopback() {
        crate::say!("warning: {peer} is this host: what is measured is not its link");
    }
    let mut values = LinkValues::default();
    for _ in 0..REPETITIONS {
        let rates = lightship_netbench::measure_link(&target, duration / REPETITIONS).await?;
        values.sent_bytes_per_second.push(rates.sent_bytes_per_second);
        values.received_bytes_per_second.push(rates.received_bytes_per_second);
        values.round_trip_seconds.push(rates.round_trip_seconds);
        bar.inc(3);
    }
    Ok(values)
}

fn report(measured: &HostSpeedsMeasured) -> String {
    let disk = measured.disk.as_deref().unwrap_or("an unknown disk");
    let link = measured.link_peer.as_ref().map_or(String::new(), |peer| format!("; link to {peer}"));
    let mut text = format!(
        "{}: processors, memory, and {disk} below {}, by a file of {}{link}\n",
        measured.host,
        measured.folder.display(),
        Size(measured.file_bytes)
    );
    let mut rows = vec![["", "median", "from", "to"].map(String::from).to_vec()];
    let mut missing = String::new();
    for (kind, result) in &measured.results {
        match result {
            SpeedResult::Measured(spread) => {
                let show = |value| in_unit(*kind, value);
                rows.push(vec![
                    kind.name().to_owned(),
                    show(spread.median),
                    show(spread.min),
                    show(spread.max),
                ]);
            }
            SpeedResult::Missing { reason } => {
                missing.push_str(&format!("  {} unavailable: {reason}\n", kind.name()));
            }
        }
    }
    aligned(&mut text, 2, &rows, 1);
    text + &missing
}

fn in_unit(kind: SpeedKind, value: f64) -> String {
    match kind.unit() {
        "bytes/s" => format!("{}/s", Size(value as u64)),
        "s" => Seconds(value).to_string(),
        unit => format!("{} {unit}", three_digits(value)),
    }
}
