//! The answer as text: the plan, the reason, and tables.

use lightship_tuner::{Bound, Explanation, Halt, Plan, Stage, Strategy};

use super::answer::{HaltReport, IterationReport, TuneResult};
use super::settings::{Advice, Setting, Unit};
use crate::columns::columns;
use crate::size::{Seconds, Size, grouped, three_digits};

/// Sentences are wrapped at this width.
const WIDTH: usize = 100;

pub(super) fn text(answer: &TuneResult) -> String {
    let mut text = String::new();
    heading(&mut text, answer);
    why(&mut text, answer);
    text.push('\n');
    columns(&mut text, &plans(answer));
    if let Some(steps) = steps(answer) {
        text.push_str(if answer.method.walks() {
            "\nSteps; those past the plan did not pay off:\n\n"
        } else {
            "\nNewton's steps, for comparison; the plan does not come from them:\n\n"
        });
        columns(&mut text, &steps);
    }
    answer.settings.iter().for_each(|advice| settings(&mut text, advice));
    text
}

fn heading(text: &mut String, answer: &TuneResult) {
    let (query, plan) = (&answer.query, &answer.plan);
    let messages = match answer.messages {
        true => format!("messages of {}, ", counted(plan.message_bytes, "byte", "bytes")),
        false => String::new(),
    };
    line(
        text,
        &[
            "Result: ",
            &Size(query.volume_bytes).to_string(),
            ", ",
            &counted(query.rows, "row", "rows"),
            " of ",
            &short(query.row_bytes),
            if query.row_bytes == 1.0 { " byte" } else { " bytes" },
        ],
    );
    line(
        text,
        &[
            "Plan: batches of ",
            &counted(plan.batch_rows, "row", "rows"),
            " (",
            &Size(plan.batch_bytes).to_string(),
            "), ",
            &messages,
            &counted(plan.window_batches, "batch", "batches"),
            " in flight",
        ],
    );
    line(
        text,
        &[
            "Predicted: ",
            &Seconds(plan.predicted_seconds).to_string(),
            " (",
            &Size((query.volume_bytes as f64 / plan.predicted_seconds) as u64).to_string(),
            "/s), with ",
            &Size(plan.memory_bytes).to_string(),
            " of rows in flight",
        ],
    );
}

fn why(text: &mut String, answer: &TuneResult) {
    let why = &answer.why;
    let waiting = format!("{} waiting for round trips", Seconds(why.waiting_seconds));
    let messages = Seconds(why.messages_seconds);
    let parts = if answer.messages {
        let first = Seconds(why.first_messages_seconds);
        format!("{waiting}, {first} extra for first messages, {messages} for messages")
    } else {
        format!("{waiting}, {messages} for rows")
    };
    wrapped(text, 0, &format!("Limited by {}: {parts}", bound(why)));
    wrapped(text, 0, &format!("Not larger: {}", not_larger(answer)));
    wrapped(text, 0, &format!("Not smaller: {}", not_smaller(answer)));
}

fn bound(why: &Explanation) -> String {
    match (why.bound, why.slowest) {
        (Bound::Stage, Some(slowest)) => format!(
            "the slowest stage, {}, which takes {} with any sizes",
            stage(slowest.stage),
            Seconds(slowest.seconds)
        ),
        (Bound::RoundTrip, _) => "the round trip".into(),
        (Bound::FirstMessages, _) => "the first messages of batches".into(),
        (Bound::Messages | Bound::Stage, _) => "the link".into(),
    }
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Produce => "produce",
        Stage::Encode => "encode",
        Stage::Send => "send",
        Stage::Decode => "decode",
        Stage::Consume => "consume",
    }
}

fn not_larger(answer: &TuneResult) -> String {
    if let Some(reason) = answer.halt.as_ref().and_then(halted) {
        return reason;
    }
    let plan = &answer.plan;
    let Some(double) = &answer.why.double_memory else {
        let whole = plan.memory_bytes >= answer.query.volume_bytes;
        let reason =
            if whole { "the whole result is in flight" } else { "twice the memory is beyond the limits" };
        return reason.into();
    };
    let part = 1.0 - double.predicted_seconds / plan.predicted_seconds;
    match part {
        p if p < 0.0005 => "twice the memory would save nothing".into(),
        p => format!(
            "twice the memory would save {} ({}%)",
            Seconds(plan.predicted_seconds - double.predicted_seconds),
            three_digits(100.0 * p)
        ),
    }
}

/// Why the steps of a method stopped, if a rule or the method itself stopped them.
fn halted(halt: &HaltReport) -> Option<String> {
    let next = halt.k + 1;
    let step = halt.next.as_ref();
    Some(match (halt.reason, step) {
        (Halt::Gain, Some(step)) => format!(
            "step {next} saves {}, but must save more than {}",
            Seconds(step.gain_seconds),
            Seconds(halt.rules.gain_seconds.unwrap_or(0.0)),
        ),
        (Halt::Price, Some(step)) => format!(
            "step {next} takes {} more for each second it saves, but must take less than {}",
            Size((step.more_bytes / step.gain_seconds) as u64),
            Size(halt.rules.price_bytes_per_second.unwrap_or(0.0) as u64),
        ),
        (Halt::NoGain, _) => format!("step {next} would save nothing"),
        (Halt::Limits, _) => "batch and message have reached their limits".into(),
        (Halt::NoStep, _) => "the method finds no next step here; --method descent may find one".into(),
        _ => return None,
    })
}

fn not_smaller(answer: &TuneResult) -> String {
    let Some(half) = &answer.why.half_memory else {
        return "a batch has at least one row".into();
    };
    let more = half.predicted_seconds - answer.plan.predicted_seconds;
    let part = more / answer.plan.predicted_seconds;
    match part {
        p if p < -0.0005 => format!("half the memory would even save {}", Seconds(-more)),
        p if p < 0.0005 => "half the memory would take as long, but this method does not find it".into(),
        p => format!("half the memory would take {} longer ({}%)", Seconds(more), three_digits(100.0 * p)),
    }
}

fn plans(answer: &TuneResult) -> Vec<Vec<String>> {
    let heads = ["", "rows per batch", MESSAGE_BYTES, "in flight", "memory", "time", "vs. plan"];
    let row = |name: &str, plan: &Plan, ratio: f64| {
        [
            name.to_owned(),
            grouped(plan.batch_rows),
            grouped(plan.message_bytes),
            grouped(plan.window_batches),
            Size(plan.memory_bytes).to_string(),
            Seconds(plan.predicted_seconds).to_string(),
            format!("{} x", three_digits(ratio)),
        ]
    };
    let name = |strategy| match name(strategy) {
        DEFAULT if !answer.messages => "default (15 rows)",
        name => name,
    };
    let mut rows = vec![row("plan", &answer.plan, 1.0)];
    rows.extend(answer.strategies.iter().map(|s| row(name(s.strategy), &s.plan, s.ratio)));
    table(answer, heads, rows)
}

const MESSAGE_BYTES: &str = "message bytes";
const DEFAULT: &str = "default (15 rows, 8 KiB)";

/// A heading and rows, without the size of messages if it can't be chosen.
fn table<const N: usize>(answer: &TuneResult, heads: [&str; N], rows: Vec<[String; N]>) -> Vec<Vec<String>> {
    let shown = |cell: &(&str, String)| answer.messages || cell.0 != MESSAGE_BYTES;
    let all = std::iter::once(heads.map(str::to_owned)).chain(rows);
    all.map(|row| heads.into_iter().zip(row).filter(shown).map(|(_, cell)| cell).collect()).collect()
}

fn name(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Default => DEFAULT,
        Strategy::LargestMessage => "largest message",
        Strategy::LargestBatch => "largest batch",
        Strategy::LargestBoth => "largest of both",
        Strategy::BatchOfOneMessage => "one message per batch",
    }
}

fn steps(answer: &TuneResult) -> Option<Vec<Vec<String>>> {
    let heads = ["k", "batch bytes", "rows", MESSAGE_BYTES, "time", "saved", ""];
    let row = |step: &IterationReport| {
        [
            step.k.to_string(),
            grouped(step.batch_bytes),
            grouped(step.batch_rows),
            grouped(step.message_bytes),
            Seconds(step.seconds).to_string(),
            if step.k == 0 { String::new() } else { Seconds(step.gain_seconds).to_string() },
            if step.chosen { "plan".into() } else { String::new() },
        ]
    };
    Some(table(answer, heads, answer.iterations.as_ref()?.iter().map(row).collect()))
}

fn settings(text: &mut String, advice: &Advice) {
    line(text, &["\nFor ", advice.driver.name(), ":"]);
    for setting in &advice.settings {
        line(text, &["\n  ", &setting.write]);
        wrapped(text, 4, &cost(setting));
        setting.notes.iter().for_each(|note| wrapped(text, 4, note));
    }
}

fn cost(setting: &Setting) -> String {
    let of = match setting.unit {
        Unit::Rows => "of rows on the wire",
        Unit::Bytes => "per connection, at both ends",
        Unit::Batches => "of rows in flight",
    };
    let cost = format!("{} {of}", Size(setting.memory_bytes));
    match setting.wanted {
        Some(wanted) => format!(
            "{cost}; the plan's {} is outside the range of this setting, {} to {}",
            grouped(wanted),
            grouped(setting.range.0),
            grouped(setting.range.1)
        ),
        None => cost,
    }
}

fn line(text: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| text.push_str(part));
    text.push('\n');
}

/// Wraps a sentence; all lines but the first are indented further.
fn wrapped(text: &mut String, indent: usize, sentence: &str) {
    let mut width = indent;
    text.extend(std::iter::repeat_n(' ', indent));
    for (i, word) in sentence.split(' ').enumerate() {
        let more = word.chars().count() + usize::from(i > 0);
        if i > 0 && width + more > WIDTH {
            width = indent + 2;
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', width));
        } else if i > 0 {
            text.push(' ');
        }
        text.push_str(word);
        width += more;
    }
    text.push('\n');
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// A mean with up to three decimal places.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_wrapped() {
        let mut text = String::new();
        wrapped(&mut text, 4, &"word ".repeat(30).trim_end().replace("word", "nineteen-letters-ab"));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(
            text.starts_with("    nineteen") && text.lines().skip(1).all(|line| line.starts_with("      n"))
        );
        assert_eq!(text.split_whitespace().count(), 30);
    }

    #[test]
    fn means_are_short() {
        assert_eq!((short(27.0), short(26.99999), short(0.5)), ("27".into(), "27".into(), "0.5".into()));
    }
}
