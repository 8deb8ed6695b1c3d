//! A staging table for upserts, and for columns whose text only the server can parse. It is a temporary table
//! that also holds the number of each row.

use std::fmt::Write;

use super::connection::Connection;
use super::copy_in::CORRECT;
use super::limit::Limit;
use super::quote_identifier;
use super::target::{Target, TargetColumn};
use crate::{Result, SourceError};

const STAGE: &str = "pg_temp.lightship_stage";
/// Its name in the context of the server's errors.
pub(super) const RELATION: &str = "lightship_stage";

/// A temporary table through which rows pass on the way to their table.
#[derive(Debug)]
pub(super) struct Stage {
    /// The name of the column with the row's number, quoted.
    row: String,
    /// Names, quoted.
    columns: Vec<String>,
    values: Vec<String>,
    types: Vec<String>,
    texts: Vec<Text>,
    /// The columns of the key, for an upsert.
    key: Vec<String>,
}

#[derive(Debug)]
struct Text {
    column: String,
    quoted: String,
    type_name: String,
    /// An SQL condition that is true for a value that would be changed.
    loss: Option<String>,
}

impl Stage {
    /// A stage for columns of these names, for an upsert if there is a key.
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>, key: &[String]) -> Self {
        let mut row = "row".to_owned();
        let names: std::collections::HashSet<_> = names.collect();
        while names.contains(&*row) {
            row.push('_');
        }
        let row = quote_identifier(&row);
        Self { row, columns: vec![], values: vec![], types: vec![], texts: vec![], key: key.to_vec() }
    }

    /// Adds a column that is copied unchanged.
    pub(super) fn add(&mut self, column: &TargetColumn) {
        let quoted = quote_identifier(&column.described.name);
        self.types.push(column.type_name.with_modifier.clone());
        self.values.push(quoted.clone());
        self.columns.push(quoted);
    }

    /// Adds a column of texts, or of lists of texts.
    pub(super) fn add_text(&mut self, column: &TargetColumn, is_list: bool) {
        let quoted = quote_identifier(&column.described.name);
        self.types.push(if is_list { "text[]" } else { "text" }.into());
        // Without the modifier: an explicit cast would truncate what an assignment refuses.
        self.values.push(format!("{quoted}::{}", column.type_name.plain));
        let loss = loss(column, if is_list { "e" } else { &quoted }).map(|loss| match is_list {
            true => format!("EXISTS (SELECT FROM pg_catalog.unnest({quoted}) e WHERE {loss})"),
            false => format!("({loss})"),
        });
        let type_name = column.type_name.with_modifier.clone();
        self.texts.push(Text {
            column: column.described.name.clone(),
            quoted: quoted.clone(),
            type_name,
            loss,
        });
        self.columns.push(quoted);
    }

    pub(super) fn is_needed(&self) -> bool {
        !self.texts.is_empty() || !self.key.is_empty()
    }

    /// Creates the table, and returns the target of COPY.
    pub(super) async fn open(&self, connection: &mut Connection) -> Result<String> {
        let columns = self.columns.iter().zip(&self.types).fold(String::new(), |mut sql, (name, made)| {
            // Writing to a string can't fail.
            let _ = write!(sql, ", {name} {made}");
            sql
        });
        connection.simple(&format!("CREATE TEMPORARY TABLE {STAGE} ({} int8{columns})", self.row)).await?;
        Ok(format!("{STAGE} ({}, {})", self.row, self.columns.join(", ")))
    }

    /// Moves all rows into `target`.
    ///
    /// # Errors
    /// [`SourceError::EncodeError`] for a text that the column refuses or would change.
    pub(super) async fn close(&self, connection: &mut Connection, target: &Target) -> Result<()> {
        connection.simple("SAVEPOINT lightship_stage").await?;
        match self.judge_and_move(connection, target).await {
            Ok(()) => {
                connection.simple(&format!("DROP TABLE {STAGE}")).await?;
                Ok(())
            }
            // Only for errors about a value: checking each row is slow, and does not find duplicate keys.
            Err(error) if is_about_a_value(&error) => Err(self.located(connection, error).await),
            Err(error) => Err(error),
        }
    }

    async fn judge_and_move(&self, connection: &mut Connection, target: &Target) -> Result<()> {
        let losses = self.texts.iter().enumerate().filter_map(|(i, text)| Some((i, text.loss.as_ref()?)));
        let (mut cases, mut any) = (String::new(), Vec::new());
        for (i, loss) in losses {
            let _ = write!(cases, " WHEN {loss} THEN {i}");
            any.push(loss.as_str());
        }
        if !any.is_empty() {
            let row = &self.row;
            let rows = connection
                .simple(&format!(
                    "SELECT {row}, CASE{cases} END FROM {STAGE} WHERE {} ORDER BY {row} LIMIT 1",
                    any.join(" OR ")
                ))
                .await?;
            let text = |at: usize| rows.first()?.get(at)?.as_deref()?.parse::<u64>().ok();
            if let (Some(row), Some(text)) = (text(0), text(1).and_then(|i| self.texts.get(i as usize))) {
                return Err(SourceError::Unfit {
                    row,
                    column: text.column.clone(),
                    reason: format!("a text that {} would not keep in full", text.type_name),
                    hint: Some("round or cast it in the query, or choose another type for the column".into()),
                });
            }
        }
        self.check_keys(connection).await?;
        target.truncate(connection).await?;
        let (columns, values) = (self.columns.join(", "), self.values.join(", "));
        // Tables have no order, but readers expect the order in which the rows came.
        connection
            .simple(&format!(
                "INSERT INTO {} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {STAGE} ORDER BY {}{}",
                target.name,
                self.row,
                self.on_conflict()
            ))
            .await?;
        Ok(())
    }

    /// Refuses two rows with the same key.
    async fn check_keys(&self, connection: &mut Connection) -> Result<()> {
        if self.key.is_empty() {
            return Ok(());
        }
        let is_key = |quoted: &&String| self.key.iter().any(|key| quote_identifier(key) == **quoted);
        let values = self.columns.iter().zip(&self.values).filter(|(quoted, _)| is_key(quoted));
        let key: Vec<_> = values.map(|(_, value)| value.as_str()).collect();
        let (row, key) = (&self.row, key.join(", "));
        let rows = connection
            .simple(&format!(
                "SELECT min({row}), max({row}) FROM {STAGE} GROUP BY {key} HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
            ))
            .await?;
        let row = |at: usize| rows.first()?.get(at)?.as_deref()?.parse::<u64>().ok();
        match (row(0), row(1)) {
            (Some(first), Some(second)) => {
                Err(SourceError::DuplicateKey { first, second, key: self.key.join(", ") })
            }
            _ => Ok(()),
        }
    }

    /// The clause that updates existing rows, for an upsert.
    fn on_conflict(&self) -> String {
        if self.key.is_empty() {
            return String::new();
        }
        let key: Vec<_> = self.key.iter().map(|name| quote_identifier(name)).collect();
        let others = self.columns.iter().filter(|quoted| !key.contains(quoted));
        let set: Vec<_> = others.map(|quoted| format!("{quoted} = EXCLUDED.{quoted}")).collect();
        let action = match set.is_empty() {
            true => "NOTHING".to_owned(),
            false => format!("UPDATE SET {}", set.join(", ")),
        };
        format!(" ON CONFLICT ({}) DO {action}", key.join(", "))
    }

    /// The error with the first row whose text the server can't parse, if there is one.
    async fn located(&self, connection: &mut Connection, error: SourceError) -> SourceError {
        if connection.simple("ROLLBACK TO SAVEPOINT lightship_stage").await.is_err() {
            return error;
        }
        for text in &self.texts {
            let row = &self.row;
            let found = connection
                .simple(&format!(
                    "DO $lightship$ DECLARE r record; kept {}; BEGIN \
                     FOR r IN SELECT {row} AS number, {} AS value FROM {STAGE} ORDER BY 1 LOOP \
                         BEGIN kept := r.value; \
                         EXCEPTION WHEN OTHERS THEN \
                             RAISE EXCEPTION USING MESSAGE = SQLERRM, ERRCODE = SQLSTATE, HINT = r.number; \
                         END; \
                     END LOOP; END $lightship$",
                    text.type_name, text.quoted
                ))
                .await;
            let Err(SourceError::Sql { reason, hint: Some(hint), .. }) = found else {
                // It is not this column, or the server has no PL/pgSQL.
                if connection.simple("ROLLBACK TO SAVEPOINT lightship_stage").await.is_err() {
                    return error;
                }
                continue;
            };
            if let Ok(row) = hint.parse() {
                return SourceError::Unfit {
                    row,
                    column: text.column.clone(),
                    reason,
                    hint: Some(CORRECT.into()),
                };
            }
        }
        error
    }
}

/// Data exceptions, and violations of a domain's checks.
fn is_about_a_value(error: &SourceError) -> bool {
    matches!(error, SourceError::Sql { code: Some(code), .. } if code.starts_with("22") || code == "23514")
}

/// A condition that is true for the text `e` if the column would lose part of it.
fn loss(column: &TargetColumn, e: &str) -> Option<String> {
    let (plain, with_modifier) = (&column.leaf_name.plain, &column.leaf_name.with_modifier);
    let beyond_modifier =
        (column.limit != Limit::None).then(|| format!("{e}::{plain} <> {e}::{plain}::{with_modifier}"));
    // More precise than a microsecond.
    let too_fine = format!(r"{e} ~ '\.\d{{6}}\d*[1-9]'");
    let own = match column.leaf {
        // "char"
        18 => Some(format!("pg_catalog.octet_length({e}) <> 1")),
        // real, double precision
        700 | 701 => Some(format!("{e} !~* 'inf|nan' AND {e}::{plain}::text::numeric <> {e}::numeric")),
        // money
        790 => Some(format!(r"{e} ~ '\.\d\d\d*[1-9]'")),
        // date
        1082 => Some(format!("{e} !~* '^ *[-0-9]+ *(ad|bc)? *$' AND {e}::timestamp <> {e}::date")),
        // timestamp: the server ignores a zone
        1114 => Some(format!(
            r"{too_fine} OR {e} ~* ':[0-9.]+ *(z|[-+][0-9:]+)$' OR {e}::timestamp::timestamptz <> {e}::timestamptz"
        )),
        // time: the server ignores a date and a zone
        1083 => Some(format!("{too_fine} OR {e} !~* '^ *t?[0-9:.]+ *(am|pm)? *$'")),
        // timetz: it ignores a date
        1266 => Some(format!("{too_fine} OR {e} ~ '^ *[0-9]+[-/.][0-9]+[-/.]'")),
        // timestamptz, interval
        1184 | 1186 => Some(too_fine),
        _ => None,
    };
    match (own, beyond_modifier) {
        (Some(own), Some(beyond)) => Some(format!("{own} OR {beyond}")),
        (own, beyond) => own.or(beyond),
    }
}
