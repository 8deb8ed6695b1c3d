//! What a client asks for: descriptors and tickets.

use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::sql::{
    Any, Command as SqlCommand, CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys,
    CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTables,
    CommandGetXdbcTypeInfo,
};
use arrow_flight::{FlightDescriptor, Ticket};
use bytes::Bytes;
use prost::Message;
use tonic::Status;

use crate::handle::StatementHandle;
use crate::status::{invalid, unsupported};

/// How the types of the commands of Flight SQL begin.
const TYPE_PREFIX: &str = "type.googleapis.com/";

/// A request for rows.
#[derive(Debug)]
pub(crate) enum Command {
    /// Rows of a statement.
    Statement(StatementHandle),
    /// Rows about the tables, or about the server.
    Metadata(Metadata),
}

/// Rows about the tables, or about the server.
#[derive(Debug, Clone)]
pub(crate) enum Metadata {
    Catalogs,
    Schemas(CommandGetDbSchemas),
    Tables(CommandGetTables),
    TableTypes,
    SqlInfo(CommandGetSqlInfo),
    TypeInfo(CommandGetXdbcTypeInfo),
    PrimaryKeys(CommandGetPrimaryKeys),
    /// No table has foreign keys, so that the tables asked for do not matter.
    ForeignKeys,
}

impl Command {
    /// What a descriptor asks for. A command that is plain text is taken for SQL, for clients that know Flight but not
    /// Flight SQL.
    ///
    /// # Errors
    /// If it asks for nothing that this server has.
    pub(crate) fn of_descriptor(descriptor: &FlightDescriptor) -> Result<Self, Status> {
        if descriptor.r#type() == DescriptorType::Path {
            return Err(invalid("expected a command, not a path"));
        }
        Self::parse(&descriptor.cmd)
    }

    /// What a ticket asks for.
    ///
    /// # Errors
    /// If it is not one of this server.
    pub(crate) fn of_ticket(ticket: &Ticket) -> Result<Self, Status> {
        match sql_command(&ticket.ticket)? {
            Some(SqlCommand::TicketStatementQuery(ticket)) => {
                StatementHandle::read(&ticket.statement_handle).map(Self::Statement)
            }
            _ => Self::parse(&ticket.ticket),
        }
    }

    fn parse(bytes: &Bytes) -> Result<Self, Status> {
        let Some(command) = sql_command(bytes)? else { return plain_sql(bytes).map(Self::Statement) };
        let metadata = match command {
            SqlCommand::CommandStatementQuery(query) => {
                no_transaction(query.transaction_id.as_ref())?;
                return StatementHandle::new(query.query).map(Self::Statement);
            }
            SqlCommand::CommandPreparedStatementQuery(query) => {
                return StatementHandle::read(&query.prepared_statement_handle).map(Self::Statement);
            }
            SqlCommand::CommandGetCatalogs(_) => Metadata::Catalogs,
            SqlCommand::CommandGetDbSchemas(command) => Metadata::Schemas(command),
            SqlCommand::CommandGetTables(command) => Metadata::Tables(command),
            SqlCommand::CommandGetTableTypes(_) => Metadata::TableTypes,
            SqlCommand::CommandGetSqlInfo(command) => Metadata::SqlInfo(command),
            SqlCommand::CommandGetXdbcTypeInfo(command) => Metadata::TypeInfo(command),
            SqlCommand::CommandGetPrimaryKeys(command) => Metadata::PrimaryKeys(command),
            SqlCommand::CommandGetExportedKeys(CommandGetExportedKeys { .. })
            | SqlCommand::CommandGetImportedKeys(CommandGetImportedKeys { .. })
            | SqlCommand::CommandGetCrossReference(CommandGetCrossReference { .. }) => Metadata::ForeignKeys,
            other => return Err(unsupported(format!("{} is not supported", name(&other)))),
        };
        Ok(Self::Metadata(metadata))
    }
}

/// The command in these bytes; `None` if they are none of Flight SQL.
///
/// # Errors
/// If its content is malformed.
pub(crate) fn sql_command(bytes: &Bytes) -> Result<Option<SqlCommand>, Status> {
    let Ok(any) = Any::decode(bytes.clone()) else { return Ok(None) };
    if !any.type_url.starts_with(TYPE_PREFIX) {
        return Ok(None);
    }
    SqlCommand::try_from(any).map(Some).map_err(|error| invalid(error.to_string()))
}

/// The last part of a command's type.
pub(crate) fn name(command: &SqlCommand) -> &str {
    let url = command.type_url();
    url.rsplit(['.', '/']).next().unwrap_or(url)
}

fn plain_sql(bytes: &Bytes) -> Result<StatementHandle, Status> {
    match std::str::from_utf8(bytes) {
        Ok(sql) if !sql.trim().is_empty() => StatementHandle::new(sql.to_owned()),
        _ => Err(invalid("expected a command of Flight SQL, or SQL as text")),
    }
}

/// Refuses statements that belong to a transaction.
pub(crate) fn no_transaction(transaction: Option<&Bytes>) -> Result<(), Status> {
    match transaction {
        Some(id) if !id.is_empty() => Err(no_transactions()),
        _ => Ok(()),
    }
}

/// The refusal of transactions.
pub(crate) fn no_transactions() -> Status {
    unsupported("transactions and savepoints are not supported: each statement stands alone")
}

#[cfg(test)]
mod tests {
    use arrow_flight::sql::{
        CommandGetCatalogs, CommandStatementQuery, CommandStatementSubstraitPlan, ProstMessageExt,
        TicketStatementQuery,
    };

    use super::*;

    fn descriptor(bytes: impl Into<Bytes>) -> Result<Command, Status> {
        Command::of_descriptor(&FlightDescriptor::new_cmd(bytes))
    }

    fn sql(command: Result<Command, Status>) -> String {
        match command.unwrap() {
            Command::Statement(handle) => handle.sql,
            Command::Metadata(metadata) => panic!("{metadata:?}"),
        }
    }

    fn query(sql: &str, transaction_id: Option<&'static [u8]>) -> Vec<u8> {
        let transaction_id = transaction_id.map(Bytes::from_static);
        CommandStatementQuery { query: sql.into(), transaction_id }.as_any().encode_to_vec()
    }

    #[test]
    fn statements_come_as_commands_or_as_text() {
        assert_eq!(sql(descriptor(query("select 1", None))), "select 1");
        assert_eq!(sql(descriptor(query("select 1", Some(b"")))), "select 1");
        for text in ["select 1", "\nselect 1", "with t as (select 1) select * from t", "SELECT 'ä'"] {
            assert_eq!(sql(descriptor(text)), text);
        }
        let handle = StatementHandle::new("select 2".into()).unwrap();
        let ticket = TicketStatementQuery { statement_handle: handle.bytes() }.as_any().encode_to_vec();
        assert_eq!(sql(Command::of_ticket(&Ticket { ticket: ticket.into() })), "select 2");
    }

    #[test]
    fn other_commands_are_refused() {
        let code = |command: Result<Command, Status>| command.unwrap_err().code();
        assert_eq!(code(descriptor(query("select 1", Some(b"t")))), tonic::Code::Unimplemented);
        assert_eq!(code(descriptor(Vec::new())), tonic::Code::InvalidArgument);
        assert_eq!(code(descriptor(vec![0xff, 0xfe])), tonic::Code::InvalidArgument);
        let path = FlightDescriptor::new_path(vec!["t".into()]);
        assert_eq!(code(Command::of_descriptor(&path)), tonic::Code::InvalidArgument);
        let substrait = CommandStatementSubstraitPlan::default().as_any().encode_to_vec();
        let refused = descriptor(substrait).unwrap_err();
        assert_eq!(refused.message(), "CommandStatementSubstraitPlan is not supported");
        let forged = TicketStatementQuery { statement_handle: "x".into() }.as_any().encode_to_vec();
        assert_eq!(code(Command::of_ticket(&Ticket { ticket: forged.into() })), tonic::Code::InvalidArgument);
        let catalogs = CommandGetCatalogs {}.as_any().encode_to_vec();
        assert!(matches!(descriptor(catalogs), Ok(Command::Metadata(Metadata::Catalogs))));
    }
}
