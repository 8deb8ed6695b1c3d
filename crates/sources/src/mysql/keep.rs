//! What a new table keeps of the one that it replaces: indexes, checks, comments and NOT NULL. Privileges belong to the
//! name of a table, so they stay without further work.

use arrow_schema::SchemaRef;

use super::target::Session;
use crate::select::identifier;
use crate::{Result, SourceError};

/// The table that is replaced.
#[derive(Clone, Copy)]
pub(super) struct Old<'a> {
    pub(super) database: &'a str,
    pub(super) name: &'a str,
}

/// Parts of the old table that are lost: names and reasons.
const LOST: &str = "\
     SELECT CONCAT('trigger ', trigger_name), 'create it again' FROM information_schema.triggers \
         WHERE event_object_schema = ? AND event_object_table = ? UNION ALL \
     SELECT CONCAT('foreign key ', constraint_name), 'create it again' FROM information_schema.referential_constraints \
         WHERE constraint_schema = ? AND table_name = ? UNION ALL \
     SELECT 'partitioning', 'the new table is not partitioned' FROM information_schema.tables \
         WHERE table_schema = ? AND table_name = ? AND create_options LIKE '%partitioned%' UNION ALL \
     SELECT CONCAT('default of column ', column_name), 'set it again' FROM information_schema.columns \
         WHERE table_schema = ? AND table_name = ? AND column_default IS NOT NULL AND column_default <> 'NULL' UNION ALL \
     SELECT CONCAT(extra, ' of column ', column_name), 'set it again' FROM information_schema.columns \
         WHERE table_schema = ? AND table_name = ? AND extra <> '' AND extra NOT LIKE 'DEFAULT_GENERATED%'";

/// Gives the new table, which is empty, what it keeps. Returns in words what is not kept.
pub(super) async fn keep(
    session: &mut Session<'_>,
    old: Old<'_>,
    new: &str,
    schema: &SchemaRef,
) -> Result<Vec<String>> {
    let (database, table) = (old.database, old.name);
    let mut lost = Vec::new();
    let parameters = [database, table].repeat(5);
    for row in session.rows(LOST, parameters).await? {
        lost.push((session.text(&row, 0)?, session.text(&row, 1)?));
    }
    let has =
        |name: &str| schema.fields().iter().any(|field| field.name().to_lowercase() == name.to_lowercase());
    const COLUMNS: &str = "SELECT column_name, is_nullable, column_comment FROM information_schema.columns \
         WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position";
    let mut changes = Vec::new();
    for row in session.rows(COLUMNS, vec![database, table]).await? {
        let (name, is_nullable) = (session.text(&row, 0)?, session.text(&row, 1)? == "YES");
        let comment = session.text(&row, 2)?;
        if !has(&name) {
            lost.push((format!("column {name}"), "the result has no such column".into()));
        } else if !is_nullable || !comment.is_empty() {
            changes.push((name, is_nullable, comment));
        }
    }
    const COMMENT: &str =
        "SELECT table_comment FROM information_schema.tables WHERE table_schema = ? AND table_name = ?";
    let rows = session.rows(COMMENT, vec![database, table]).await?;
    let comment = rows.first().map(|row| session.text(row, 0)).transpose()?.unwrap_or_default();
    if !comment.is_empty() {
        session.run(&format!("ALTER TABLE {new} COMMENT = {}", literal(&comment))).await?;
    }
    for (name, is_nullable, comment) in changes {
        match change_column(session, new, &name, is_nullable, &comment).await {
            Ok(()) => {}
            Err(SourceError::Sql { reason, .. }) => {
                lost.push((format!("what column {name} has beside its type"), reason))
            }
            Err(error) => return Err(error),
        }
    }
    let show = format!("SHOW CREATE TABLE {}.{}", identifier(database), identifier(table));
    let created = session.rows(&show, vec![]).await?;
    let created = created.first().map(|row| session.text(row, 1)).transpose()?.unwrap_or_default();
    for definition in created.lines().filter_map(definition) {
        match session.run(&format!("ALTER TABLE {new} ADD {definition}")).await {
            Ok(()) => {}
            Err(SourceError::Sql { reason, .. }) => lost.push((definition.to_owned(), reason)),
            Err(error) => return Err(error),
        }
    }
    Ok(lost.into_iter().map(|(what, why)| format!("{what} is not kept: {why}")).collect())
}

/// Sets what the definition of a column says beside its type.
async fn change_column(
    session: &mut Session<'_>,
    new: &str,
    name: &str,
    is_nullable: bool,
    comment: &str,
) -> Result<()> {
    let created = session.rows(&format!("SHOW CREATE TABLE {new}"), vec![]).await?;
    let created = created.first().map(|row| session.text(row, 1)).transpose()?.unwrap_or_default();
    let start = format!("  {} ", identifier(name));
    let found = created.lines().find(|line| {
        line.get(..start.len()).is_some_and(|begin| begin.to_lowercase() == start.to_lowercase())
    });
    let Some(line) = found else { return Ok(()) };
    // `int(11) DEFAULT NULL,`
    let definition = line[start.len()..].trim_end_matches(',');
    let made = definition.strip_suffix(" DEFAULT NULL").or(definition.strip_suffix(" NULL DEFAULT NULL"));
    let made = made.unwrap_or(definition).trim_end_matches(" NOT NULL").trim_end_matches(" NULL");
    let null = if is_nullable { "NULL" } else { "NOT NULL" };
    let comment = if comment.is_empty() { String::new() } else { format!(" COMMENT {}", literal(comment)) };
    session.run(&format!("ALTER TABLE {new} MODIFY {} {made} {null}{comment}", identifier(name))).await
}

/// An index or a check in a line of `SHOW CREATE TABLE`.
fn definition(line: &str) -> Option<&str> {
    let line = line.strip_prefix("  ")?.trim_end_matches(',');
    let is_index = ["PRIMARY KEY ", "UNIQUE KEY ", "KEY ", "FULLTEXT KEY ", "SPATIAL KEY "];
    let is_index = is_index.iter().any(|start| line.starts_with(start));
    let is_check = line.starts_with("CONSTRAINT ") && line.contains(" CHECK (");
    (is_index || is_check).then_some(line)
}

/// A text as a literal of sessions in which a backslash escapes, as ours do.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_found_among_the_lines() {
        let check = |line: &str, expected: Option<&str>| assert_eq!(definition(line), expected, "{line}");
        check("CREATE TABLE `t` (", None);
        check("  `key` int(11) DEFAULT NULL,", None);
        check("  PRIMARY KEY (`a`),", Some("PRIMARY KEY (`a`)"));
        check("  UNIQUE KEY `u` (`b`(10),`c`)", Some("UNIQUE KEY `u` (`b`(10),`c`)"));
        check("  CONSTRAINT `c` CHECK (`a` > 0),", Some("CONSTRAINT `c` CHECK (`a` > 0)"));
        check("  CONSTRAINT `f` FOREIGN KEY (`a`) REFERENCES `o` (`a`)", None);
        check(") ENGINE=InnoDB", None);
    }
}
