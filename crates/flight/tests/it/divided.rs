//! Results that are divided over several endpoints.

use arrow_array::RecordBatch;
use arrow_flight::error::FlightError;
use arrow_flight::{CancelStatus, FlightInfo, Ticket};
use futures::TryStreamExt;
use futures::future::join_all;
use lightship_flight::FlightConfig;
use tonic::Code;

use super::queries::cancel;
use super::{Client, Running, eventually, status};

const ENDPOINTS: usize = 3;

async fn open() -> (Running, Client) {
    // All streams of a result run as one statement.
    let config = FlightConfig { endpoints: ENDPOINTS, queries_max: 1, ..FlightConfig::default() };
    let running = Running::new(config).await;
    let client = running.client().await;
    (running, client)
}

async fn ask(client: &mut Client, sql: &str) -> FlightInfo {
    client.execute(sql.to_owned(), None).await.unwrap()
}

fn tickets(info: &FlightInfo) -> Vec<Ticket> {
    info.endpoint.iter().map(|endpoint| endpoint.ticket.clone().unwrap()).collect()
}

async fn get(mut client: Client, ticket: Ticket) -> Result<Vec<RecordBatch>, FlightError> {
    client.do_get(ticket).await?.try_collect().await
}

/// The rows of batches as texts, in order.
fn sorted(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows: Vec<String> = batches
        .iter()
        .flat_map(|batch| (0..batch.num_rows()).map(move |row| format!("{:?}", batch.slice(row, 1))))
        .collect();
    rows.sort();
    rows
}

#[tokio::test]
async fn each_row_arrives_once_however_the_endpoints_are_fetched() {
    let (running, mut client) = open().await;
    let expected = sorted(&[running.service.table("numbers")]);

    let info = ask(&mut client, "select * from numbers").await;
    assert_eq!((info.endpoint.len(), info.ordered), (ENDPOINTS, false));
    let together = join_all(tickets(&info).into_iter().map(|ticket| get(client.clone(), ticket))).await;
    let together: Vec<_> = together.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(sorted(&together), expected);

    let mut in_turn = Vec::new();
    for ticket in tickets(&ask(&mut client, "select * from numbers").await) {
        in_turn.extend(get(client.clone(), ticket).await.unwrap());
    }
    assert_eq!(sorted(&in_turn), expected);

    let last = tickets(&ask(&mut client, "select * from numbers").await).pop().unwrap();
    assert_eq!(sorted(&get(client.clone(), last.clone()).await.unwrap()), expected);
    let again = status(get(client.clone(), last).await.unwrap_err());
    assert!(again.message().contains("was fetched before"), "{again}");
    running.stop().await;
}

#[tokio::test]
async fn what_has_an_order_or_changes_rows_has_one_endpoint() {
    let (running, mut client) = open().await;
    running.service.replace("ordered", running.service.table("numbers"));
    let info = ask(&mut client, "select * from ordered").await;
    assert_eq!((info.endpoint.len(), info.ordered), (1, true));
    let info = client.get_catalogs().await.unwrap();
    assert_eq!(info.endpoint.len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_failure_ends_all_streams() {
    let (running, mut client) = open().await;
    let tickets = tickets(&ask(&mut client, "late").await);
    for ticket in tickets {
        let failed = status(get(client.clone(), ticket).await.unwrap_err());
        assert_eq!((failed.code(), failed.message()), (Code::InvalidArgument, "the second batch fails"));
    }
    running.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_left_ends_the_others_and_the_query() {
    let (running, mut client) = open().await;
    let [first, second, third] = tickets(&ask(&mut client, "endless").await).try_into().unwrap();
    let mut left = client.do_get(first).await.unwrap();
    let mut other = client.do_get(second).await.unwrap();
    assert!(left.try_next().await.unwrap().is_some() && other.try_next().await.unwrap().is_some());
    assert_eq!(running.service.running(), 1, "one execution");
    drop(left);
    let ended = loop {
        match other.try_next().await {
            Ok(rows) => assert!(rows.is_some(), "it looks complete"),
            Err(error) => break status(error),
        }
    };
    assert!(ended.message().contains("left before its end"), "{ended}");
    eventually("the query ends", || running.service.running() == 0).await;
    let late = status(get(client.clone(), third).await.unwrap_err());
    assert!(late.message().contains("left before its end"), "{late}");
    running.stop().await;
}

#[tokio::test]
async fn cancelling_ends_all_streams() {
    let (running, mut client) = open().await;
    let info = ask(&mut client, "endless").await;
    let streams = tickets(&info).into_iter().map(|ticket| {
        let mut client = client.clone();
        async move { client.do_get(ticket).await.unwrap() }
    });
    let mut streams = join_all(streams).await;
    for stream in &mut streams {
        assert!(stream.try_next().await.unwrap().is_some());
    }
    assert_eq!(cancel(&mut client, info, true).await, CancelStatus::Cancelled as i32);
    for mut stream in streams {
        let ended = loop {
            match stream.try_next().await {
                Ok(rows) => assert!(rows.is_some(), "it looks complete"),
                Err(error) => break status(error),
            }
        };
        assert!(ended.code() == Code::Cancelled, "{ended}");
    }
    eventually("the query ends", || running.service.running() == 0).await;
    running.stop().await;
}

#[tokio::test]
async fn tickets_of_another_server_are_refused() {
    let (here, mut client) = open().await;
    let (there, _) = open().await;
    let ticket = tickets(&ask(&mut client, "select * from numbers").await).remove(0);
    let refused = status(get(there.client().await, ticket).await.unwrap_err());
    assert!(refused.message().contains("another server"), "{refused}");
    here.stop().await;
    there.stop().await;
}
