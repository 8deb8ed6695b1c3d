//! Requests that no client would send: random bytes, and valid ones in which bits are changed. Each is answered, with an
//! error of the client or with rows.

use std::sync::Arc;

use arrow_array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch, StringViewArray};
use arrow_flight::encode::{DictionaryHandling, FlightDataEncoderBuilder};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::{
    ActionCreatePreparedStatementRequest, Any, CommandGetTables, CommandPreparedStatementUpdate,
    CommandStatementIngest, CommandStatementQuery, ProstMessageExt, TableDefinitionOptions,
    TableExistsOption,
};
use arrow_flight::{Action, FlightData, FlightDescriptor, Ticket};
use fastrand::Rng;
use futures::{TryStreamExt, stream};
use prost::Message;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::Running;

type Client = FlightServiceClient<Channel>;

/// Requests of each kind.
const REQUESTS: usize = 400;

fn rng() -> Rng {
    let seed = std::env::var("LIGHTSHIP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    eprintln!("LIGHTSHIP_SEED={seed}");
    Rng::with_seed(seed)
}

/// Bytes in which some are changed, missing, or too many.
fn damaged(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..rng.usize(0..4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.usize(0..bytes.len());
        match rng.u8(0..4) {
            0 => bytes[at] = rng.u8(..),
            1 => bytes[at] ^= 1 << rng.u8(0..8),
            2 => bytes.truncate(at),
            _ => bytes.insert(at, rng.u8(..)),
        }
    }
    bytes
}

/// Fails unless an answer is rows or an error that names what is wrong with the request.
fn check<T>(what: &str, answer: Result<T, Status>) {
    let Err(status) = answer else { return };
    let is_of_client = matches!(
        status.code(),
        Code::InvalidArgument
            | Code::Unimplemented
            | Code::ResourceExhausted
            | Code::NotFound
            | Code::PermissionDenied
            | Code::AlreadyExists
    );
    assert!(is_of_client, "{what}: {status}");
}

async fn get(client: &mut Client, ticket: Vec<u8>) -> Result<(), Status> {
    let rows = client.do_get(Ticket { ticket: ticket.into() }).await?.into_inner();
    rows.try_for_each(|_| async { Ok(()) }).await
}

#[tokio::test]
async fn damaged_commands_and_tickets_are_answered() {
    let running = Running::open().await.0;
    let mut client = FlightServiceClient::new(running.channel().await);
    let mut rng = rng();
    let query = CommandStatementQuery { query: "select * from types".into(), transaction_id: None };
    let tables = CommandGetTables {
        table_name_filter_pattern: Some("%".into()),
        include_schema: true,
        ..CommandGetTables::default()
    };
    let commands =
        [query.as_any().encode_to_vec(), tables.as_any().encode_to_vec(), b"select * from types".to_vec()];
    let prepare = ActionCreatePreparedStatementRequest { query: "echo bigint".into(), transaction_id: None };
    let prepare = prepare.as_any().encode_to_vec();
    for command in &commands {
        let descriptor = FlightDescriptor::new_cmd(command.clone());
        let info = client.get_flight_info(descriptor).await.unwrap().into_inner();
        let ticket = info.endpoint[0].ticket.clone().unwrap().ticket;
        let cancel = arrow_flight::CancelFlightInfoRequest { info: Some(info) }.encode_to_vec();
        for _ in 0..REQUESTS {
            let descriptor = FlightDescriptor::new_cmd(damaged(&mut rng, command));
            check("get_flight_info", client.get_flight_info(descriptor.clone()).await);
            check("get_schema", client.get_schema(descriptor).await);
            check("do_get", get(&mut client, damaged(&mut rng, &ticket)).await);
            for (name, body) in [("CancelFlightInfo", &cancel), ("CreatePreparedStatement", &prepare)] {
                check(name, client.do_action(Action::new(name, damaged(&mut rng, body))).await);
            }
        }
    }
    let random: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(1000).collect();
    check("random", get(&mut client, random).await);
}

/// Messages with rows, of which some are dictionaries and views.
async fn messages(command: &Any) -> Vec<FlightData> {
    let words: DictionaryArray<arrow_array::types::Int32Type> = ["x", "y", "x"].into_iter().collect();
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from(vec![1, 2, 3]))),
        ("name", Arc::new(words)),
        ("view", Arc::new(StringViewArray::from(vec!["a", "a text that is not inline", "c"]))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap().project(&[0, 1]).unwrap();
    let encoder = FlightDataEncoderBuilder::new()
        .with_flight_descriptor(Some(FlightDescriptor::new_cmd(command.encode_to_vec())))
        .with_dictionary_handling(DictionaryHandling::Resend)
        .build(stream::iter([Ok(rows)]));
    encoder.try_collect().await.unwrap()
}

#[tokio::test]
async fn damaged_rows_are_answered() {
    let running = Running::open().await.0;
    let mut client = FlightServiceClient::new(running.channel().await);
    let mut rng = rng();
    let ingest = CommandStatementIngest {
        table: "target".into(),
        table_definition_options: Some(TableDefinitionOptions {
            if_exists: TableExistsOption::Append as i32,
            ..TableDefinitionOptions::default()
        }),
        ..CommandStatementIngest::default()
    };
    let prepare = ActionCreatePreparedStatementRequest {
        query: "insert into target (id, name) values ($1, $2)".into(),
        transaction_id: None,
    };
    let action = Action::new("CreatePreparedStatement", prepare.as_any().encode_to_vec());
    let prepared = client.do_action(action).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let prepared: arrow_flight::sql::ActionCreatePreparedStatementResult =
        Any::decode(prepared.body).unwrap().unpack().unwrap().unwrap();
    let update =
        CommandPreparedStatementUpdate { prepared_statement_handle: prepared.prepared_statement_handle };
    for command in [ingest.as_any(), update.as_any()] {
        let whole = messages(&command).await;
        assert!(client.do_put(stream::iter(whole.clone())).await.is_ok());
        for _ in 0..REQUESTS {
            let mut sent = whole.clone();
            let at = rng.usize(0..sent.len());
            let message = &mut sent[at];
            match rng.u8(0..5) {
                0 => message.data_body = damaged(&mut rng, &message.data_body).into(),
                1 => drop(sent.remove(at)),
                2 => sent.swap(0, at),
                _ => message.data_header = damaged(&mut rng, &message.data_header).into(),
            }
            check("do_put", client.do_put(stream::iter(sent)).await);
        }
    }
    assert!(client.do_put(stream::iter(messages(&ingest.as_any()).await)).await.is_ok());
}
