//! `lightship calibrate host`: measures what this host can do at most.

use std::path::Path;
use std::time::Duration;

use lightship::usage::{
    CalibrateOptions, HostSpeedsMeasured, HostSpeedsStore, SpeedKind, SpeedResult, calibrate_host,
};

use crate::columns::aligned;
use crate::commands::manual::print;
use crate::error::CliError;
use crate::size::{Seconds, Size, three_digits};

/// How long the host is measured by default, in seconds.
const SECONDS: f64 = 10.0;

/// Measures this host, with a temporary file in `folder`, and saves the result unless `dry_run` is set.
pub(super) async fn measure(
    folder: &Path,
    seconds: Option<f64>,
    dry_run: bool,
    quiet: bool,
    json: bool,
) -> Result<(), CliError> {
    let duration = Duration::from_secs_f64(seconds.unwrap_or(SECONDS));
    let options = CalibrateOptions { duration, ..CalibrateOptions::new(folder) };
    let bar = super::bar(quiet || json);
    let shown = bar.clone();
    let measuring = tokio::task::spawn_blocking(move || {
        calibrate_host(&options, |progress| {
            let all = SpeedKind::ALL.len() as u32 * progress.repetitions;
            let before = SpeedKind::ALL.iter().take_while(|kind| **kind != progress.kind).count() as u32;
            shown.set_length(u64::from(all));
            shown.set_position(u64::from(before * progress.repetitions + progress.repetition));
        })
    });
    let measured = measuring.await.map_err(|error| CliError::internal(error.to_string()))?;
    bar.finish_and_clear();
    let measured = measured.map_err(lightship::Error::from)?;
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

fn report(measured: &HostSpeedsMeasured) -> String {
    let disk = measured.disk.as_deref().unwrap_or("an unknown disk");
    let mut text = format!(
        "{}: processors, memory, and {disk} below {}, by a file of {}\n",
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
