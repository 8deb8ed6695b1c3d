//! What clients show of a server: tables, types and abilities.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_flight::sql::{
    CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys, CommandGetImportedKeys,
    CommandGetPrimaryKeys, CommandGetTables, CommandGetXdbcTypeInfo, SqlInfo, XdbcDataType,
};
use arrow_flight::{FlightInfo, IpcMessage};
use arrow_schema::{DataType, Schema};
use arrow_select::concat::concat_batches;

use super::{Client, Running, fetch, names};

async fn rows(client: &mut Client, info: FlightInfo) -> RecordBatch {
    let (schema, batches) = fetch(client, info).await.unwrap();
    concat_batches(&schema, &batches).unwrap()
}

fn texts(batch: &RecordBatch, column: usize) -> Vec<String> {
    batch.column(column).as_string::<i32>().iter().flatten().map(str::to_owned).collect()
}

#[tokio::test]
async fn catalogs_and_schemas_are_listed() {
    let (_running, mut client) = Running::open().await;
    let info = client.get_catalogs().await.unwrap();
    assert_eq!(texts(&rows(&mut client, info).await, 0), ["datafusion"]);
    for (catalog, pattern, expected) in [
        (None, None, &["information_schema", "public"][..]),
        (Some("datafusion"), Some("p%"), &["public"]),
        (Some("other"), None, &[]),
        (Some(""), None, &[]),
        (None, Some("publi"), &[]),
        (None, Some("publi_"), &["public"]),
    ] {
        let request = CommandGetDbSchemas {
            catalog: catalog.map(str::to_owned),
            db_schema_filter_pattern: pattern.map(str::to_owned),
        };
        let info = client.get_db_schemas(request).await.unwrap();
        assert_eq!(texts(&rows(&mut client, info).await, 1), expected, "{catalog:?} {pattern:?}");
    }
}

fn tables(table: Option<&str>, types: &[&str], include_schema: bool) -> CommandGetTables {
    CommandGetTables {
        table_name_filter_pattern: table.map(str::to_owned),
        table_types: types.iter().map(|t| (*t).to_owned()).collect(),
        include_schema,
        ..CommandGetTables::default()
    }
}

#[tokio::test]
async fn tables_are_listed_with_their_columns() {
    let (running, mut client) = Running::open().await;
    for (request, expected) in [
        (tables(None, &["VIEW"], false), &["tables"][..]),
        (tables(Some("%m%"), &["TABLE"], false), &["empty", "line_item", "no_columns", "numbers"]),
        (tables(Some("line\\_item"), &[], false), &["line_item"]),
        (tables(Some("x"), &[], true), &[]),
        (tables(None, &["SYNONYM"], false), &[]),
    ] {
        let info = client.get_tables(request.clone()).await.unwrap();
        let found = rows(&mut client, info).await;
        assert_eq!(texts(&found, 2), expected, "{request:?}");
        assert_eq!(found.num_columns(), if request.include_schema { 5 } else { 4 });
    }
    let info = client.get_tables(tables(Some("types"), &["TABLE", "VIEW"], true)).await.unwrap();
    let found = rows(&mut client, info).await;
    assert_eq!((texts(&found, 0), texts(&found, 3)), (vec!["datafusion".into()], vec!["TABLE".into()]));
    let schema = found.column(4).as_binary::<i32>().value(0).to_vec();
    let schema = Schema::try_from(IpcMessage(schema.into())).unwrap();
    assert_eq!(names(&schema), names(&running.service.table("types").schema()));
    let decimal = schema.field_with_name("decimal").unwrap();
    let metadata = |key: &str| decimal.metadata().get(&format!("ARROW:FLIGHT:SQL:{key}")).unwrap().as_str();
    assert_eq!((metadata("TYPE_NAME"), metadata("PRECISION"), metadata("SCALE")), ("DECIMAL", "20", "3"));
    assert_eq!((metadata("TABLE_NAME"), metadata("DB_SCHEMA_NAME")), ("types", "public"));
    assert_eq!(schema.field_with_name("view").unwrap().data_type(), &DataType::Utf8);
    // A table whose columns are not known is listed nevertheless.
    let info = client.get_tables(tables(Some("tables"), &[], true)).await.unwrap();
    let found = rows(&mut client, info).await;
    let schema = found.column(4).as_binary::<i32>().value(0).to_vec();
    assert!(Schema::try_from(IpcMessage(schema.into())).unwrap().fields().is_empty());
}

#[tokio::test]
async fn primary_keys_are_listed() {
    let (_running, mut client) = Running::open().await;
    for (catalog, schema, table, expected) in [
        (None, None, "numbers", &["text", "n"][..]),
        (Some("datafusion"), Some("public"), "line_item", &["n"]),
        (None, Some("information_schema"), "numbers", &[]),
        (Some("other"), None, "numbers", &[]),
        (None, None, "types", &[]),
    ] {
        let request = CommandGetPrimaryKeys {
            catalog: catalog.map(str::to_owned),
            db_schema: schema.map(str::to_owned),
            table: table.to_owned(),
        };
        let info = client.get_primary_keys(request).await.unwrap();
        let found = rows(&mut client, info).await;
        assert_eq!(texts(&found, 3), expected, "{catalog:?} {schema:?} {table}");
        assert_eq!(texts(&found, 4), vec![format!("{table}_pkey"); expected.len()]);
        let places: Vec<_> = found.column(5).as_primitive::<Int32Type>().values().to_vec();
        assert_eq!(places, (1..=expected.len() as i32).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn other_keys_are_empty_and_types_are_listed() {
    let (_running, mut client) = Running::open().await;
    let info = client.get_table_types().await.unwrap();
    assert_eq!(texts(&rows(&mut client, info).await, 0), ["TABLE", "VIEW"]);
    let table = || "numbers".to_owned();
    let primary = CommandGetPrimaryKeys { table: "types".to_owned(), ..CommandGetPrimaryKeys::default() };
    let imported = CommandGetImportedKeys { table: table(), ..CommandGetImportedKeys::default() };
    let exported = CommandGetExportedKeys { table: table(), ..CommandGetExportedKeys::default() };
    let cross = CommandGetCrossReference { pk_table: table(), fk_table: table(), ..Default::default() };
    let infos = [
        (client.get_primary_keys(primary).await.unwrap(), 6),
        (client.get_imported_keys(imported).await.unwrap(), 13),
        (client.get_exported_keys(exported).await.unwrap(), 13),
        (client.get_cross_reference(cross).await.unwrap(), 13),
    ];
    for (info, columns) in infos {
        let found = rows(&mut client, info).await;
        assert_eq!((found.num_rows(), found.num_columns()), (0, columns));
    }
    let all = client.get_xdbc_type_info(CommandGetXdbcTypeInfo { data_type: None }).await.unwrap();
    assert!(rows(&mut client, all).await.num_rows() > 10);
    let data_type = Some(XdbcDataType::XdbcBigint as i32);
    let some = client.get_xdbc_type_info(CommandGetXdbcTypeInfo { data_type }).await.unwrap();
    assert_eq!(texts(&rows(&mut client, some).await, 0), ["BIGINT", "BIGINT UNSIGNED"]);
}

#[tokio::test]
async fn the_server_says_what_it_can() {
    let (_running, mut client) = Running::open().await;
    let info = client.get_sql_info(Vec::new()).await.unwrap();
    assert_eq!(rows(&mut client, info).await.num_rows(), 91);
    let codes = vec![SqlInfo::FlightSqlServerName, SqlInfo::FlightSqlServerReadOnly];
    let info = client.get_sql_info(codes).await.unwrap();
    let found = rows(&mut client, info).await;
    let values = found.column(1).as_union();
    assert_eq!(values.value(0).as_string::<i32>().value(0), "Lightship");
    assert!(!values.value(1).as_boolean().value(0), "range files can be written");
}
