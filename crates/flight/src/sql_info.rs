//! What the server says about itself. Clients ask for codes one by one, and some fail if one is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, MapArray, RecordBatch, StructArray, UnionArray};
use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::{
    SqlInfo, SqlNullOrdering, SqlOuterJoinsSupportLevel, SqlSupportedCaseSensitivity, SqlSupportedGroupBy,
    SqlSupportedResultSetConcurrency, SqlSupportedResultSetType, SqlSupportedSubqueries,
    SqlSupportedTransaction, SqlSupportedUnions, SqlSupportsConvert, SqlTransactionIsolationLevel,
    SupportedSqlGrammar,
};
use arrow_schema::{ArrowError, DataType, Field, Fields, SchemaRef};
use lightship_transport::{Result as TransportResult, TransportError};

use crate::FlightConfig;
use crate::handle::STATEMENT_BYTES_MAX;

/// The version of Arrow that the messages have.
const ARROW_VERSION: &str = "59";
/// The largest code that the specification lists.
const LAST_CODE: u32 = SqlInfo::SqlStoredFunctionsUsingCallSyntaxSupported as u32;
/// A limit that is unknown, or does not exist.
const UNLIMITED: i64 = 0;

const NUMERIC_FUNCTIONS: [&str; 21] = [
    "ABS", "ACOS", "ASIN", "ATAN", "ATAN2", "CEILING", "COS", "COT", "DEGREES", "EXP", "FLOOR", "LOG",
    "LOG10", "PI", "POWER", "RADIANS", "ROUND", "SIGN", "SIN", "SQRT", "TAN",
];
const STRING_FUNCTIONS: [&str; 14] = [
    "ASCII",
    "CHAR_LENGTH",
    "CHARACTER_LENGTH",
    "CONCAT",
    "LEFT",
    "LENGTH",
    "LTRIM",
    "REPEAT",
    "REPLACE",
    "RIGHT",
    "RTRIM",
    "SUBSTRING",
    "LOWER",
    "UPPER",
];
const DATETIME_FUNCTIONS: [&str; 5] = ["CURRENT_DATE", "CURRENT_TIME", "EXTRACT", "NOW", "TO_TIMESTAMP"];
const SYSTEM_FUNCTIONS: [&str; 2] = ["COALESCE", "NULLIF"];

/// Words that SQL does not have, or not as reserved words.
const KEYWORDS: [&str; 6] = ["ANTI", "ILIKE", "LIMIT", "OFFSET", "QUALIFY", "SEMI"];

/// All codes that the specification lists, with their values.
///
/// # Errors
/// If they can't be encoded.
pub(crate) fn sql_info(config: &FlightConfig, is_read_only: bool) -> TransportResult<SqlInfoData> {
    let mut info = SqlInfoDataBuilder::new();
    server(&mut info, is_read_only);
    syntax(&mut info);
    support(&mut info);
    limits(&mut info, config);
    transactions(&mut info);
    info.build().map_err(|error| TransportError::Config(error.to_string()))
}

/// The values of these codes; all if there are none. Codes that the specification does not list have no value.
///
/// # Errors
/// If the rows can't be selected.
pub(crate) fn selected(info: &SqlInfoData, codes: &[u32]) -> Result<RecordBatch, FlightError> {
    let known: BTreeSet<u32> = codes.iter().copied().filter(|code| *code <= LAST_CODE).collect();
    let selected = match known.is_empty() && !codes.is_empty() {
        true => RecordBatch::new_empty(info.schema()),
        false => info.record_batch(known)?,
    };
    Ok(named(&selected)?)
}

/// The columns of what [`selected`] returns.
///
/// # Errors
/// If the rows can't be selected.
pub(crate) fn columns(info: &SqlInfoData) -> Result<SchemaRef, FlightError> {
    Ok(named(&RecordBatch::new_empty(info.schema()))?.schema())
}

/// The same, with the names of the parts of a map as the specification has them. The driver for JDBC finds nothing in
/// maps whose parts are called otherwise.
fn named(info: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let values = info.column(1).as_union();
    let DataType::Union(fields, _) = values.data_type() else { return Ok(info.clone()) };
    let mut children = Vec::new();
    let mut named = Vec::new();
    for (id, field) in fields.iter() {
        let child = match values.child(id).as_map_opt() {
            Some(map) => Arc::new(named_map(map)?),
            None => values.child(id).clone(),
        };
        named.push((id, Arc::new(field.as_ref().clone().with_data_type(child.data_type().clone()))));
        children.push(child);
    }
    let (ids, offsets) = (values.type_ids().clone(), values.offsets().cloned());
    let values = UnionArray::try_new(named.into_iter().collect(), ids, offsets, children)?;
    let names = info.schema();
    let columns = [
        (names.field(0).name(), info.column(0).clone()),
        (names.field(1).name(), Arc::new(values) as ArrayRef),
    ];
    RecordBatch::try_from_iter(columns)
}

fn named_map(map: &MapArray) -> Result<MapArray, ArrowError> {
    let (_, offsets, entries, nulls, sorted) = map.clone().into_parts();
    let (fields, columns, entry_nulls) = entries.into_parts();
    let names = fields.iter().zip(["key", "value"]);
    let fields: Fields = names.map(|(field, name)| field.as_ref().clone().with_name(name)).collect();
    let entries = StructArray::try_new(fields.clone(), columns, entry_nulls)?;
    let field = Arc::new(Field::new("entries", DataType::Struct(fields), false));
    MapArray::try_new(field, offsets, entries, nulls, sorted)
}

fn server(info: &mut SqlInfoDataBuilder, is_read_only: bool) {
    info.append(SqlInfo::FlightSqlServerName, "Lightship");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, ARROW_VERSION);
    info.append(SqlInfo::FlightSqlServerReadOnly, is_read_only);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    info.append(SqlInfo::FlightSqlServerSubstraitMinVersion, "");
    info.append(SqlInfo::FlightSqlServerSubstraitMaxVersion, "");
    info.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
    info.append(SqlInfo::FlightSqlServerCancel, true);
    info.append(SqlInfo::FlightSqlServerBulkIngestion, !is_read_only);
    info.append(SqlInfo::FlightSqlServerIngestTransactionsSupported, false);
    info.append(SqlInfo::FlightSqlServerStatementTimeout, 0_i32);
    info.append(SqlInfo::FlightSqlServerTransactionTimeout, 0_i32);
}

fn syntax(info: &mut SqlInfoDataBuilder) {
    for code in [SqlInfo::SqlDdlCatalog, SqlInfo::SqlDdlSchema, SqlInfo::SqlDdlTable] {
        info.append(code, false);
    }
    let lower_case = SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32;
    let as_written = SqlSupportedCaseSensitivity::SqlCaseSensitivityUnknown as i32;
    info.append(SqlInfo::SqlIdentifierCase, lower_case);
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    info.append(SqlInfo::SqlQuotedIdentifierCase, as_written);
    info.append(SqlInfo::SqlAllTablesAreSelectable, true);
    info.append(SqlInfo::SqlNullOrdering, SqlNullOrdering::SqlNullsSortedHigh as i32);
    info.append(SqlInfo::SqlKeywords, KEYWORDS.as_slice());
    info.append(SqlInfo::SqlNumericFunctions, NUMERIC_FUNCTIONS.as_slice());
    info.append(SqlInfo::SqlStringFunctions, STRING_FUNCTIONS.as_slice());
    info.append(SqlInfo::SqlSystemFunctions, SYSTEM_FUNCTIONS.as_slice());
    info.append(SqlInfo::SqlDatetimeFunctions, DATETIME_FUNCTIONS.as_slice());
    info.append(SqlInfo::SqlSearchStringEscape, "\\");
    info.append(SqlInfo::SqlExtraNameCharacters, "");
    info.append(SqlInfo::SqlSchemaTerm, "schema");
    info.append(SqlInfo::SqlProcedureTerm, "procedure");
    info.append(SqlInfo::SqlCatalogTerm, "catalog");
    info.append(SqlInfo::SqlCatalogAtStart, true);
}

fn support(info: &mut SqlInfoDataBuilder) {
    for (code, is_supported) in [
        (SqlInfo::SqlSupportsColumnAliasing, true),
        (SqlInfo::SqlNullPlusNullIsNull, true),
        (SqlInfo::SqlSupportsTableCorrelationNames, true),
        (SqlInfo::SqlSupportsDifferentTableCorrelationNames, false),
        (SqlInfo::SqlSupportsExpressionsInOrderBy, true),
        (SqlInfo::SqlSupportsOrderByUnrelated, true),
        (SqlInfo::SqlSupportsLikeEscapeClause, true),
        (SqlInfo::SqlSupportsNonNullableColumns, true),
        (SqlInfo::SqlSupportsIntegrityEnhancementFacility, false),
        (SqlInfo::SqlSelectForUpdateSupported, false),
        (SqlInfo::SqlStoredProceduresSupported, false),
        (SqlInfo::SqlCorrelatedSubqueriesSupported, true),
        (SqlInfo::SqlBatchUpdatesSupported, true),
        (SqlInfo::SqlSavepointsSupported, false),
        (SqlInfo::SqlNamedParametersSupported, false),
        (SqlInfo::SqlLocatorsUpdateCopy, false),
        (SqlInfo::SqlStoredFunctionsUsingCallSyntaxSupported, false),
    ] {
        info.append(code, is_supported);
    }
    info.append(SqlInfo::SqlSupportsConvert, conversions());
    let group_by = SqlSupportedGroupBy::SqlGroupByUnrelated as i32;
    info.append(SqlInfo::SqlSupportedGroupBy, bits(&[group_by]));
    let grammar = [
        SupportedSqlGrammar::SqlMinimumGrammar as i32,
        SupportedSqlGrammar::SqlCoreGrammar as i32,
        SupportedSqlGrammar::SqlExtendedGrammar as i32,
    ];
    info.append(SqlInfo::SqlSupportedGrammar, bits(&grammar));
    // The entry and intermediate levels of the standard of 1992.
    info.append(SqlInfo::SqlAnsi92SupportedLevel, bits(&[0, 1]));
    // The specification says that it is a number, but clients take it for a mask.
    let joins = [
        SqlOuterJoinsSupportLevel::SqlLimitedOuterJoins as i32,
        SqlOuterJoinsSupportLevel::SqlFullOuterJoins as i32,
    ];
    info.append(SqlInfo::SqlOuterJoinsSupportLevel, bits(&joins));
    for code in [
        SqlInfo::SqlSchemasSupportedActions,
        SqlInfo::SqlCatalogsSupportedActions,
        SqlInfo::SqlSupportedPositionedCommands,
    ] {
        info.append(code, 0_i32);
    }
    let subqueries = [
        SqlSupportedSubqueries::SqlSubqueriesInComparisons as i32,
        SqlSupportedSubqueries::SqlSubqueriesInExists as i32,
        SqlSupportedSubqueries::SqlSubqueriesInIns as i32,
    ];
    info.append(SqlInfo::SqlSupportedSubqueries, bits(&subqueries));
    let unions = [SqlSupportedUnions::SqlUnion as i32, SqlSupportedUnions::SqlUnionAll as i32];
    info.append(SqlInfo::SqlSupportedUnions, bits(&unions));
    let forward = SqlSupportedResultSetType::SqlResultSetTypeForwardOnly as i32;
    info.append(SqlInfo::SqlSupportedResultSetTypes, bits(&[forward]));
    let read_only = SqlSupportedResultSetConcurrency::SqlResultSetConcurrencyReadOnly as i32;
    for (code, concurrency) in [
        (SqlInfo::SqlSupportedConcurrenciesForResultSetUnspecified, bits(&[read_only])),
        (SqlInfo::SqlSupportedConcurrenciesForResultSetForwardOnly, bits(&[read_only])),
        (SqlInfo::SqlSupportedConcurrenciesForResultSetScrollSensitive, 0),
        (SqlInfo::SqlSupportedConcurrenciesForResultSetScrollInsensitive, 0),
    ] {
        info.append(code, concurrency);
    }
}

fn limits(info: &mut SqlInfoDataBuilder, config: &FlightConfig) {
    for code in [
        SqlInfo::SqlMaxBinaryLiteralLength,
        SqlInfo::SqlMaxCharLiteralLength,
        SqlInfo::SqlMaxColumnNameLength,
        SqlInfo::SqlMaxColumnsInGroupBy,
        SqlInfo::SqlMaxColumnsInIndex,
        SqlInfo::SqlMaxColumnsInOrderBy,
        SqlInfo::SqlMaxColumnsInSelect,
        SqlInfo::SqlMaxColumnsInTable,
        SqlInfo::SqlMaxCursorNameLength,
        SqlInfo::SqlMaxIndexLength,
        SqlInfo::SqlDbSchemaNameLength,
        SqlInfo::SqlMaxProcedureNameLength,
        SqlInfo::SqlMaxCatalogNameLength,
        SqlInfo::SqlMaxStatements,
        SqlInfo::SqlMaxTableNameLength,
        SqlInfo::SqlMaxTablesInSelect,
        SqlInfo::SqlMaxUsernameLength,
    ] {
        info.append(code, UNLIMITED);
    }
    let connections = i64::try_from(config.connections_max).unwrap_or(UNLIMITED);
    info.append(SqlInfo::SqlMaxConnections, connections);
    info.append(SqlInfo::SqlMaxRowSize, i64::from(config.message_bytes_max));
    info.append(SqlInfo::SqlMaxRowSizeIncludesBlobs, true);
    info.append(SqlInfo::SqlMaxStatementLength, STATEMENT_BYTES_MAX as i64);
}

fn transactions(info: &mut SqlInfoDataBuilder) {
    let none = SqlTransactionIsolationLevel::SqlTransactionNone as i32;
    // The specification has 32 bits, the driver for JDBC fails unless there are 64.
    info.append(SqlInfo::SqlDefaultTransactionIsolation, i64::from(none));
    info.append(SqlInfo::SqlTransactionsSupported, false);
    info.append(SqlInfo::SqlSupportedTransactionsIsolationLevels, bits(&[none]));
    info.append(SqlInfo::SqlDataDefinitionCausesTransactionCommit, false);
    info.append(SqlInfo::SqlDataDefinitionsInTransactionsIgnored, false);
}

/// A mask with these bits.
fn bits(places: &[i32]) -> i32 {
    places.iter().fold(0, |mask, place| mask | 1 << place)
}

/// Which types can be cast to which.
fn conversions() -> BTreeMap<i32, Vec<i32>> {
    use SqlSupportsConvert::*;
    let numbers = [
        SqlConvertBigint,
        SqlConvertDecimal,
        SqlConvertFloat,
        SqlConvertInteger,
        SqlConvertNumeric,
        SqlConvertReal,
        SqlConvertSmallint,
        SqlConvertTinyint,
    ];
    let texts = [SqlConvertChar, SqlConvertVarchar, SqlConvertLongvarchar];
    let times = [SqlConvertDate, SqlConvertTime, SqlConvertTimestamp];
    let others = [SqlConvertBit, SqlConvertBinary, SqlConvertVarbinary];
    let all: Vec<_> = numbers.iter().chain(&texts).chain(&times).chain(&others).collect();
    let codes = |types: &[&SqlSupportsConvert]| types.iter().map(|t| **t as i32).collect::<Vec<_>>();
    let to = |types: &[SqlSupportsConvert]| codes(&types.iter().chain(&texts).collect::<Vec<_>>());
    let from_numbers = numbers.iter().map(|from| (*from as i32, to(&numbers)));
    let from_texts = texts.iter().map(|from| (*from as i32, codes(&all)));
    let from_dates = [(SqlConvertDate as i32, to(&[SqlConvertDate, SqlConvertTimestamp]))];
    let from_times = [(SqlConvertTime as i32, to(&[SqlConvertTime]))];
    let from_timestamps = [(SqlConvertTimestamp as i32, to(&times))];
    let from_bits = [(SqlConvertBit as i32, to(&[SqlConvertBit, SqlConvertInteger, SqlConvertBigint]))];
    let from_bytes = others[1..].iter().map(|from| (*from as i32, to(&others[1..])));
    let simple = from_dates.into_iter().chain(from_times).chain(from_timestamps).chain(from_bits);
    from_numbers.chain(from_texts).chain(simple).chain(from_bytes).collect()
}

#[cfg(test)]
mod tests {
    use arrow_array::types::UInt32Type;

    use super::*;

    #[test]
    fn all_codes_have_a_value() {
        let info = sql_info(&FlightConfig::default(), true).unwrap();
        let all = info.record_batch(Vec::<u32>::new()).unwrap();
        let codes = all.column(0).as_primitive::<UInt32Type>().values().to_vec();
        let expected: Vec<u32> = (0..=11).chain([100, 101]).chain(500..=576).collect();
        assert_eq!(codes, expected);
        for (codes, rows) in [(&[][..], 91), (&[4, 563, 99_999, 4], 2), (&[99_999], 0), (&[577, 13], 0)] {
            let found = selected(&info, codes).unwrap();
            assert_eq!((found.num_rows(), found.schema()), (rows, columns(&info).unwrap()), "{codes:?}");
        }
        let conversions = selected(&info, &[SqlInfo::SqlSupportsConvert as u32]).unwrap();
        let conversions = conversions.column(1).as_union().value(0);
        assert_eq!(conversions.as_map().entries().column_names(), ["key", "value"]);
        assert!(conversions.as_map().keys().len() > 10);
    }
}
