//! The line editor: history, several lines, completion of names.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, PoisonError, RwLock};

use lightship::Location;
use lightship_session::state_folder;
use nu_ansi_term::{Color, Style};
use reedline::{
    ColumnarMenu, Completer, CompletionResult, DefaultHinter, Emacs, FileBackedHistory, KeyCode,
    KeyModifiers, MenuBuilder, Prompt, PromptEditMode, PromptHistorySearch, Reedline, ReedlineEvent,
    ReedlineMenu, Signal, Span, Suggestion, ValidationResult, Validator, default_emacs_keybindings,
};
use tempfile::TempDir;

use super::statement::{self, Dialect};
use crate::error::CliError;

/// Statements that the history keeps.
const HISTORY_ENTRIES: usize = 10_000;
/// Suggestions that are shown at once.
const SUGGESTIONS_MAX: usize = 200;
const MENU: &str = "names";
/// The mode of the history.
const MODE: u32 = 0o600;
/// Lines that begin with this are not kept: URIs may have passwords.
const UNKEPT: &str = r"\c";

/// What the editor knows of the source.
#[derive(Debug)]
pub(super) struct SourceNames {
    pub(super) dialect: Dialect,
    /// The columns of each table.
    pub(super) tables: BTreeMap<String, BTreeSet<String>>,
}

impl SourceNames {
    /// No names are known yet.
    pub(super) fn none(location: &Location) -> Self {
        Self { dialect: Dialect::of(location), tables: BTreeMap::new() }
    }
}

/// What was typed.
pub(super) enum Typed {
    Text(String),
    /// Ctrl-C cleared the line.
    Cleared,
    /// Ctrl-D.
    End,
}

/// Shared with what fills it.
pub(super) type SharedNames = Arc<RwLock<SourceNames>>;

/// Reads statements from a terminal.
pub(super) struct Editor {
    line: Reedline,
    /// Where $EDITOR finds a statement. Others can't read it.
    _folder: TempDir,
}

impl Editor {
    pub(super) fn new(names: &SharedNames) -> Result<Self, CliError> {
        let mut keys = default_emacs_keybindings();
        let complete = vec![ReedlineEvent::Menu(MENU.into()), ReedlineEvent::MenuNext];
        keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, ReedlineEvent::UntilFound(complete));
        keys.add_binding(KeyModifiers::CONTROL, KeyCode::Char('o'), ReedlineEvent::OpenEditor);
        let mut line = Reedline::create()
            .with_completer(Box::new(Suggestions { names: names.clone() }))
            .with_menu(ReedlineMenu::EngineCompleter(Box::new(ColumnarMenu::default().with_name(MENU))))
            .with_partial_completions(true)
            .with_quick_completions(true)
            .with_hinter(Box::new(DefaultHinter::default().with_style(Style::new().fg(Color::DarkGray))))
            .with_validator(Box::new(Finished { names: names.clone() }))
            .with_history_exclusion_prefix(Some(UNKEPT.into()))
            .with_edit_mode(Box::new(Emacs::new(keys)));
        let folder = tempfile::tempdir().map_err(|error| CliError::internal(format!("a folder: {error}")))?;
        let editor = std::env::var("VISUAL").or_else(|_| std::env::var("EDITOR"));
        if let Some(editor) = editor.ok().filter(|editor| !editor.trim().is_empty()) {
            // It may have arguments. The line editor adds the file.
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{editor} \"$0\"")]);
            line = line.with_buffer_editor(command, folder.path().join("statement.sql"));
        }
        let file = state_folder("shell_history", Some("LIGHTSHIP_SHELL_HISTORY"));
        if let Some(history) = file.and_then(|file| history(&file)) {
            line = line.with_history(Box::new(history));
        }
        Ok(Self { line, _folder: folder })
    }

    /// Waits for a statement or a command.
    pub(super) fn read(&mut self, prompt: &str) -> io::Result<Typed> {
        Ok(match self.line.read_line(&NamedPrompt(format!("{prompt}> ")))? {
            Signal::Success(text) => {
                // The terminal may be closed before the shell ends.
                let _ = self.line.sync_history();
                Typed::Text(text)
            }
            Signal::CtrlD => Typed::End,
            _ => Typed::Cleared,
        })
    }
}

/// The history in a file that only its user can read: statements contain data.
fn history(file: &Path) -> Option<FileBackedHistory> {
    let opened = file.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
        let opened = OpenOptions::new().append(true).create(true).mode(MODE).open(file)?;
        opened.set_permissions(Permissions::from_mode(MODE))
    });
    let history = match opened {
        Ok(()) => {
            FileBackedHistory::with_file(HISTORY_ENTRIES, file.to_owned()).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    history.inspect_err(|error| crate::say!("warning: no history: {}: {error}", file.display())).ok()
}

/// Enter ends the input once everything in it is finished.
struct Finished {
    names: SharedNames,
}

impl Validator for Finished {
    fn validate(&self, line: &str) -> ValidationResult {
        let dialect = self.names.read().unwrap_or_else(PoisonError::into_inner).dialect;
        let is_word = matches!(line.trim(), "exit" | "quit" | "help");
        match is_word || statement::is_complete(line, dialect) {
            true => ValidationResult::Complete,
            false => ValidationResult::Incomplete,
        }
    }
}

/// Suggests tables, columns and words of SQL.
struct Suggestions {
    names: SharedNames,
}

const WORDS: &str = "all and as asc avg between by case cast coalesce count create cross current_date date delete desc \
    distinct else end except exists explain extract false from full group having in inner insert \
    intersect interval into is join left like limit max min not null offset on or order outer over \
    partition right select sum then true union using values when where with";

impl Completer for Suggestions {
    fn complete(&mut self, line: &str, position: usize) -> CompletionResult {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        CompletionResult::fresh(suggest(&names, line.get(..position).unwrap_or(line)))
    }
}

/// What may follow the text before the cursor.
fn suggest(names: &SourceNames, before: &str) -> Vec<Suggestion> {
    let SourceNames { dialect, tables } = names;
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let word = before.rsplit(|c: char| !is_part(c)).next().unwrap_or("");
    let start = before.len() - word.len();
    let span = Span::new(start, before.len());
    let begins = |name: &&str| name.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
    let suggestion = |value: String, description: &str| Suggestion {
        value,
        description: Some(description.to_owned()),
        span,
        append_whitespace: true,
        ..Suggestion::default()
    };
    // If its quote was typed, only the end is missing.
    let is_quoted = before[..start].ends_with(dialect.quote());
    let name = |name: &str, description: &str| {
        let quoted = if is_quoted { dialect.in_quotes(name)[1..].to_owned() } else { dialect.quoted(name) };
        suggestion(quoted, description)
    };
    // After `orders.`, only its columns.
    let qualifier =
        before[..start].strip_suffix('.').map(|all| all.rsplit(|c| !is_part(c)).next().unwrap_or(""));
    let columns_of = qualifier.and_then(|table| {
        tables.iter().find(|(name, _)| name.eq_ignore_ascii_case(table)).map(|(_, columns)| columns)
    });
    if let Some(columns) = columns_of {
        let columns = columns.iter().map(String::as_str).filter(begins);
        return columns.map(|column| name(column, "column")).take(SUGGESTIONS_MAX).collect();
    }
    let columns: BTreeSet<&str> = tables.values().flatten().map(String::as_str).filter(begins).collect();
    let tables = tables.keys().map(String::as_str).filter(begins).map(|table| name(table, "table"));
    // Words of SQL would hide the names if nothing was typed yet.
    let words = WORDS.split(' ').filter(|_| !word.is_empty() && !is_quoted).filter(begins);
    let all = tables.chain(columns.into_iter().map(|column| name(column, "column")));
    all.chain(words.map(|word| suggestion(word.to_owned(), "SQL"))).take(SUGGESTIONS_MAX).collect()
}

/// The name of the source before each statement.
struct NamedPrompt(String);

impl Prompt for NamedPrompt {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.0)
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Owned(format!("{:>width$}", "> ", width = self.0.chars().count()))
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("history: {} ", search.term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(uri: &str, before: &str) -> Vec<(String, usize)> {
        let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let mut names = SourceNames::none(&Location::parse(uri).unwrap());
        names.tables = BTreeMap::from([
            ("orders".to_owned(), columns(&["o_orderkey", "o_orderdate"])),
            ("lineitem".to_owned(), columns(&["l_orderkey"])),
            ("Zebra Data".to_owned(), columns(&["zA"])),
        ]);
        suggest(&names, before).into_iter().map(|one| (one.value, one.span.start)).collect()
    }

    #[test]
    fn names_are_suggested_where_they_fit() {
        let values = |before: &str| values("sales.csv", before);
        let expected =
            |names: &[&str], start: usize| names.iter().map(|n| ((*n).to_owned(), start)).collect::<Vec<_>>();
        assert_eq!(values("select * from or"), expected(&["orders", "or", "order"], 14));
        assert_eq!(values("select * from ORD"), expected(&["orders", "order"], 14));
        assert_eq!(values("select orders.o_orderd"), expected(&["o_orderdate"], 14));
        assert_eq!(values("select x.l_"), expected(&["l_orderkey"], 9));
        assert_eq!(
            values("select 'é'||l"),
            expected(&["lineitem", "l_orderkey", "left", "like", "limit"], 13)
        );
        assert_eq!(values("é"), []);
    }

    #[test]
    fn names_are_quoted_where_they_have_to_be() {
        let check = |uri: &str, before: &str, expected: &[&str]| {
            let values: Vec<String> = values(uri, before).into_iter().map(|(value, _)| value).collect();
            assert_eq!(values, expected, "{uri} {before}");
        };
        check("postgresql://h/d", "select z", &["\"Zebra Data\"", "\"zA\""]);
        check("postgresql://h/d", "select \"z", &["Zebra Data\"", "zA\""]);
        check("mysql://h/d", "select z", &["`Zebra Data`", "zA"]);
        check("sqlite:f", "select z", &["\"Zebra Data\"", "zA"]);
    }
}
