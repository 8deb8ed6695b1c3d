//! `lightship tune`: plans a transfer from explicit numbers or a measured link, and explains the plan.

mod answer;
mod args;
mod history;
mod measured;
mod parse;
mod print;
mod settings;

use lightship::node::known;
use lightship_sources::Location;

pub(crate) use args::TuneArgs;

use self::measured::Estimate;
use super::manual::Answer;
use crate::error::CliError;

pub(crate) async fn cmd_tune(args: &TuneArgs, json: bool) -> Result<(), CliError> {
    if args.wants_history() {
        return history::print(args.place().map(|(uri, _)| uri), json);
    }
    answer(args).await?.print(json)
}

/// A plan. The history of transfers is none.
pub(super) async fn answer(args: &TuneArgs) -> Result<Answer, CliError> {
    let (query, link, tried) = match args.place() {
        None => (args.query(&Estimate::default())?, args.link()?, None),
        Some((uri, sql)) => {
            let location = Location::parse(uri)?;
            let profile = measured::profile(&location)?;
            let estimate = match sql.filter(|_| args.wants_estimate()) {
                Some(sql) => measured::estimate(&location, sql).await?,
                None => Estimate::default(),
            };
            (
                args.query(&estimate)?,
                profile.link(),
                Some(measured::tried(
                    &location,
                    &profile,
                    Some(known(&location.to_string(), sql.unwrap_or_default(), "tcp")),
                    args.memory_bytes(),
                )),
            )
        }
    };
    let (limits, ask) = args.ask(tried)?;
    let answer = answer::answer(&link, &query, &limits, &ask)?;
    let json = answer.json().map_err(|e| CliError::internal(e.to_string()))?;
    Ok(Answer { text: print::text(&answer), json })
}
