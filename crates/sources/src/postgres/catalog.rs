//! Looks up types in the catalog of a database: how columns are sent, and how the server can compare them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::connection::Connection;
use super::message::Described;
use super::oid::RECORD;
use super::quote_identifier;
use super::types::{PgType, builtin, builtin_element};
use crate::{Comparable, Comparison, InfiniteRule, NumericRule, ReadOptions, Result, SourceError};

/// Maximum nesting: domains over domains, arrays of domains over arrays...
const TYPE_DEPTH_MAX: usize = 16;

/// What the catalog says about a type that is not built in.
#[derive(Debug, Clone, Copy)]
enum Entry {
    /// Text in both formats, one of a set of labels.
    Enum,
    /// Text in both formats, compared case-insensitively.
    Citext,
    Domain {
        base: u32,
        modifier: i32,
    },
    Array {
        element: u32,
    },
    /// Its NULL is not Arrow's: a row that consists of NULLs is NULL.
    Composite,
    Other,
}

/// Types of one database. Each is looked up once, because an OID keeps its meaning.
#[derive(Debug, Clone, Default)]
pub(super) struct Types {
    known: Arc<Mutex<HashMap<u32, Entry>>>,
    money_scale: Arc<Mutex<Option<i8>>>,
}

impl Types {
    /// How each of `columns` is sent.
    pub(super) async fn resolve(
        &self,
        connection: &mut Connection,
        columns: &[Described],
        rule: NumericRule,
    ) -> Result<Vec<PgType>> {
        self.look_up(connection, columns.iter().map(|column| column.oid).collect()).await?;
        let mut kinds: Vec<_> = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            columns.iter().map(|c| kind(&known, c.oid, c.modifier, rule, TYPE_DEPTH_MAX)).collect()
        };
        for kind in &mut kinds {
            let kind = match kind {
                PgType::List(item) => &mut **item,
                kind => kind,
            };
            if let PgType::Money { scale } = kind {
                *scale = self.money_scale(connection).await?;
            }
        }
        Ok(kinds)
    }

    /// How each of `columns` is sent when it is read with `options`.
    pub(super) async fn resolve_for(
        &self,
        connection: &mut Connection,
        columns: &[Described],
        options: &ReadOptions,
    ) -> Result<Vec<PgType>> {
        let mut kinds = self.resolve(connection, columns, options.numeric).await?;
        if options.infinite == InfiniteRule::Text {
            kinds.iter_mut().for_each(PgType::show_infinite);
        }
        Ok(kinds)
    }

    /// How the server can compare each of `columns`, which were read as `kinds`.
    pub(super) fn comparisons(
        &self,
        columns: &[Described],
        kinds: &[PgType],
        infinite: InfiniteRule,
        connection: &Connection,
    ) -> Vec<Comparison> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let text = if connection.takes_any_text() { Comparable::Equal } else { Comparable::EqualAscii };
        let comparison = |(column, kind): (&Described, &PgType)| {
            let (oid, entry) = base(&known, column.oid);
            let comparable = comparable(kind, oid, entry, infinite, text);
            let plain = Comparison::plain(quote_identifier(&column.name), comparable);
            match entry {
                // Comparing an enum with a text that is not one of its labels fails.
                Some(Entry::Enum) => Comparison { operand: format!("{}::text", plain.column), ..plain },
                _ => plain,
            }
        };
        columns.iter().zip(kinds).map(comparison).collect()
    }

    /// The type of an array's elements, for writing the array.
    pub(super) fn element(&self, array: u32) -> Option<u32> {
        builtin_element(array).or_else(|| {
            match self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&array)? {
                Entry::Array { element } => Some(*element),
                Entry::Domain { base, .. } => builtin_element(*base),
                _ => None,
            }
        })
    }

    async fn look_up(&self, connection: &mut Connection, mut wanted: BTreeSet<u32>) -> Result<()> {
        for _ in 0..TYPE_DEPTH_MAX {
            {
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                wanted.retain(|oid| {
                    builtin(*oid, -1, NumericRule::String).is_none() && !known.contains_key(oid)
                });
            }
            if wanted.is_empty() {
                return Ok(());
            }
            let list = wanted.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let rows = connection
                .simple(&format!(
                    "SELECT t.oid, t.typtype, t.typname, t.typbasetype, t.typtypmod, \
                     CASE WHEN t.typcategory = 'A' AND t.typlen = -1 AND e.typdelim = ',' THEN t.typelem ELSE 0 END \
                     FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem \
                     WHERE t.oid IN ({list})"
                ))
                .await?;
            // A type that has been dropped is treated as unknown.
            let mut found: HashMap<u32, Entry> = wanted.iter().map(|oid| (*oid, Entry::Other)).collect();
            wanted.clear();
            for row in rows {
                let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
                let number = |at: usize| text(at).parse::<u32>().unwrap_or(0);
                let entry = match (text(1), text(2), number(5)) {
                    ("e", ..) => Entry::Enum,
                    (_, "citext", _) => Entry::Citext,
                    ("c", ..) => Entry::Composite,
                    ("d", ..) => Entry::Domain { base: number(3), modifier: text(4).parse().unwrap_or(-1) },
                    ("b", _, element) if element != 0 => Entry::Array { element },
                    _ => Entry::Other,
                };
                match entry {
                    Entry::Domain { base: other, .. } | Entry::Array { element: other } => {
                        wanted.insert(other);
                    }
                    Entry::Enum | Entry::Citext | Entry::Composite | Entry::Other => {}
                }
                found.insert(number(0), entry);
            }
            self.known.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        }
        Err(SourceError::Unsupported(format!("a type nested more than {TYPE_DEPTH_MAX} levels deep")))
    }

    /// Decimal places of the server's currency.
    async fn money_scale(&self, connection: &mut Connection) -> Result<i8> {
        if let Some(scale) = *self.money_scale.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(scale);
        }
        let rows = connection.simple("SELECT pg_catalog.scale(1::money::numeric)").await?;
        let text = rows.first().and_then(|row| row.first()).and_then(Option::as_deref);
        let scale =
            text.and_then(|text| text.parse().ok()).filter(|scale| (0..=19).contains(scale)).unwrap_or(2);
        *self.money_scale.lock().unwrap_or_else(PoisonError::into_inner) = Some(scale);
        Ok(scale)
    }
}

fn kind(known: &HashMap<u32, Entry>, oid: u32, modifier: i32, rule: NumericRule, depth: usize) -> PgType {
    if let Some(kind) = builtin(oid, modifier, rule) {
        return kind;
    }
    match known.get(&oid) {
        Some(Entry::Enum | Entry::Citext) => PgType::Utf8,
        Some(Entry::Domain { base, modifier }) if depth > 0 => kind(known, *base, *modifier, rule, depth - 1),
        Some(Entry::Array { element }) if depth > 0 => {
            match kind(known, *element, modifier, rule, depth - 1) {
                // Through a domain, the elements can be arrays themselves; they are read as text then.
                PgType::Text | PgType::TextList => PgType::TextList,
                item => PgType::List(Box::new(item)),
            }
        }
        _ => PgType::Text,
    }
}

/// The base type below all domains, and its catalog entry.
fn base(known: &HashMap<u32, Entry>, mut oid: u32) -> (u32, Option<Entry>) {
    for _ in 0..TYPE_DEPTH_MAX {
        match known.get(&oid) {
            Some(Entry::Domain { base, .. }) => oid = *base,
            other => return (oid, other.copied()),
        }
    }
    (oid, None)
}

/// Which comparisons the server supports for a column of this type that is read as `kind`. `text` is
/// the level for text.
fn comparable(
    kind: &PgType,
    oid: u32,
    entry: Option<Entry>,
    infinite: InfiniteRule,
    text: Comparable,
) -> Comparable {
    match kind {
        PgType::Bool => Comparable::Equal,
        PgType::Int16 | PgType::Int32 | PgType::Int64 | PgType::UInt32 => Comparable::Ordered,
        // The server orders NaN last, as Arrow does. It compares single floats as doubles.
        PgType::Float64 => Comparable::Ordered,
        // Some of Arrow's NULLs are not NULL at the server.
        _ if infinite == InfiniteRule::Null && kind.is_bounded() => Comparable::Nothing,
        PgType::Decimal128 { .. } | PgType::Decimal256 { .. } => Comparable::Ordered,
        PgType::Date | PgType::Timestamp | PgType::TimestampTz => Comparable::Ordered,
        // Collations may treat different texts as equal, and order texts differently.
        PgType::Utf8 => text,
        PgType::Text
            if oid == RECORD || entry.is_none() && builtin(oid, -1, NumericRule::String).is_none() =>
        {
            Comparable::Nothing
        }
        PgType::Text if matches!(entry, Some(Entry::Composite)) => Comparable::Nothing,
        // The server compares these by their type, which may refuse a text that is not a valid value.
        _ => Comparable::Nulls,
    }
}
