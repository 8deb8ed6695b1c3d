//! Progress bars on stderr for operations that take longer than a second.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lightship::{NumericRule, Observer};

use crate::size::{Size, grouped};

const SHOWN_AFTER: Duration = Duration::from_secs(1);
const REDRAWN_EVERY: Duration = Duration::from_millis(100);

/// Rows, bytes and rate of a transfer so far, and the time left if the number of rows is known.
pub(crate) struct Progress {
    quiet: bool,
    bar: Option<ProgressBar>,
    began: Instant,
    drawn: Instant,
    rows: u64,
    bytes: u64,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let now = Instant::now();
        Self { quiet, bar: None, began: now, drawn: now, rows: 0, bytes: 0 }
    }
}

impl Observer for Progress {
    fn began(&mut self, rows_estimate: Option<u64>, open_numbers: &[&str]) {
        self.began = Instant::now();
        self.drawn = self.began;
        if self.quiet {
            return;
        }
        if let (NumericRule::Decimal { precision, scale }, [_, ..]) = (NumericRule::RESULT, open_numbers) {
            let names = open_numbers.join(", ");
            crate::say!(
                "note: numbers without a precision are read as decimal({precision}, {scale}): {names}; --numeric \
                 selects another type"
            );
        }
        if !std::io::stderr().is_terminal() {
            return;
        }
        let bar = ProgressBar::with_draw_target(rows_estimate, ProgressDrawTarget::hidden());
        let template = match rows_estimate {
            Some(_) => "{bar:30} {msg}, {eta} left",
            None => "{spinner} {msg}",
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar = Some(bar);
    }

    fn noticed(&mut self, notice: &str) {
        if !self.quiet {
            crate::say!("note: {notice}");
        }
    }

    fn arrived(&mut self, rows: u64, bytes: u64) {
        self.rows += rows;
        self.bytes += bytes;
        let Some(bar) = &self.bar else { return };
        if self.drawn.elapsed() < REDRAWN_EVERY || self.began.elapsed() < SHOWN_AFTER {
            return;
        }
        self.drawn = Instant::now();
        if bar.is_hidden() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        // Extend the bar if the estimate was too low.
        if bar.length().is_some_and(|length| length < self.rows) {
            bar.set_length(self.rows);
        }
        let rate = (self.bytes as f64 / self.began.elapsed().as_secs_f64()) as u64;
        bar.set_message(format!("{} rows, {}, {}/s", grouped(self.rows), Size(self.bytes), Size(rate)));
        bar.set_position(self.rows);
        bar.tick();
    }
}

/// A progress bar that counts finished items.
pub(crate) struct Count {
    bar: Option<ProgressBar>,
    began: Instant,
}

impl Count {
    /// A bar for `total` items called `name`.
    pub(crate) fn new(total: u64, name: &str, quiet: bool) -> Self {
        let wanted = !quiet && std::io::stderr().is_terminal();
        let bar = wanted.then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
            let template = format!("{{bar:30}} {{human_pos}} of {{human_len}} {name}, {{eta}} left");
            bar.set_style(
                ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        Self { bar, began: Instant::now() }
    }

    /// A spinner for a long operation of unknown length, shown at once.
    pub(crate) fn spinner(name: &str, quiet: bool) -> Self {
        let wanted = !quiet && std::io::stderr().is_terminal();
        let bar = wanted.then(|| {
            let bar = ProgressBar::new_spinner().with_message(name.to_owned());
            bar.enable_steady_tick(REDRAWN_EVERY);
            bar
        });
        Self { bar, began: Instant::now() }
    }

    pub(crate) fn set(&self, done: u64) {
        let Some(bar) = &self.bar else { return };
        if self.began.elapsed() < SHOWN_AFTER {
            return;
        }
        // From here on the bar limits how often it is redrawn.
        if bar.is_hidden() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_position(done);
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
