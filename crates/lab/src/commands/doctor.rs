//! `lab doctor`: reports what is missing.

use std::process::ExitCode;

use clap::Args;
use lab::LabError;

/// Report what this machine lacks, and how to get it
///
/// The exit code is 1 if this machine can't run a lab.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn cmd_doctor(args: DoctorArgs) -> Result<ExitCode, LabError> {
    let checks = lab::doctor();
    if args.json {
        println!("{}", serde_json::json!(checks));
    } else {
        for check in &checks {
            let mark = match (check.found, check.required) {
                (true, _) => "ok  ",
                (false, true) => "MISSING",
                (false, false) => "none",
            };
            println!("{mark:<8}{:<16}{}", check.what, check.purpose);
            if !check.found {
                println!("{:24}{}", "", check.hint);
            }
        }
    }
    let able = checks.iter().all(|check| check.found || !check.required);
    Ok(if able { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
