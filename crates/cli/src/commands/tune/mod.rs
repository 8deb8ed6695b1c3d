//! `lightship tune`: the plan of a transfer from bare numbers, and why.

mod answer;
mod args;
mod parse;
mod print;
mod settings;

pub(crate) use args::TuneArgs;

use crate::error::CliError;

pub(crate) fn cmd_tune(args: &TuneArgs, json: bool) -> Result<(), CliError> {
    let query = args.query()?;
    let link = args.link()?;
    let (limits, ask) = args.ask()?;
    let answer = answer::answer(&link, &query, &limits, &ask)?;
    let text = if json {
        serde_json::to_string(&answer).map_err(|e| CliError::internal(e.to_string()))? + "\n"
    } else {
        print::text(&answer)
    };
    super::manual::print(text.as_bytes())
}
