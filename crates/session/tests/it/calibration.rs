//! Measures links through the protocol, and checks the errors for links that can't be measured.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use futures::stream;
use lightship_session::{
    CalibrateError, CalibrationPlan, Client, ClientConfig, Endpoint, Failure, NodeProbe, Profiles, calibrate,
};
use lightship_transport::net::{Answer, Listen, Server, ServerConfig, Service};
use lightship_wire::control::Query;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Answers every query with this many batches of 1 MB.
struct Numbers(usize);

impl Service for Numbers {
    fn query<'a>(
        &'a self,
        _: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..131_072));
        let batch = RecordBatch::try_from_iter([("n", column)]).expect("a batch");
        let schema = batch.schema();
        let rows = stream::iter(std::iter::repeat_n(Ok(batch), self.0));
        Box::pin(async { Ok(Answer::new(schema, None, Box::pin(rows))) })
    }
}

/// A client of a [`Numbers`] server. Closing the channel or aborting the task stops the server.
async fn client(batches: usize) -> (Client, watch::Sender<bool>, JoinHandle<()>) {
    let config = ServerConfig { insecure: true, ..ServerConfig::default() };
    let anywhere = Listen::Tcp("127.0.0.1:0".parse().expect("an address"));
    let server = Server::bind(&[anywhere], config).await.expect("bound");
    let Some(Listen::Tcp(address)) = server.local().expect("an address").pop() else { panic!("no TCP") };
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(async move {
        let ended = server.run(Arc::new(Numbers(batches)), stopped).await;
        ended.expect("served");
    });
    let endpoint = Endpoint::Tcp { host: address.ip().to_string(), port: address.port(), tls: None };
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    (Client::connect_with(&endpoint, &config).await.expect("connected"), stop, task)
}

fn effort() -> CalibrationPlan {
    CalibrationPlan::quick(Duration::from_millis(300))
}

#[tokio::test]
async fn a_measured_link_has_a_profile() {
    let (mut client, _stop, _task) = client(usize::MAX).await;
    let mut told = Vec::new();
    let profile =
        calibrate(&mut NodeProbe::new(&mut client, "numbers"), "here", "numbers", &effort(), |done, all| {
            told.push((done, all))
        })
        .await
        .expect("measured");
    assert!((8.0..8.5).contains(&profile.row_bytes), "{}", profile.row_bytes);
    assert!(profile.samples.len() >= 6 && told.len() == profile.samples.len(), "{told:?}");
    assert_eq!(told.first(), Some(&(1, effort().pairs())));
    assert!(profile.rtt_seconds > 0.0 && profile.rtt_seconds < 1.0);
    assert!(profile.link().rates.send.is_some_and(|rate| rate > 1e6), "{:?}", profile.bytes_per_second);
    for sample in &profile.samples {
        assert!(sample.first_count >= 2 && sample.first_seconds > 0.0, "{sample:?}");
        // The other messages hold the rest of the batch. Messages also end at the boundaries of the
        // server's own batches, with a short message on either side.
        let messages = (sample.batch_bytes / sample.message_bytes).ceil();
        let others = sample.next_count as f64 / sample.first_count as f64;
        let parted = sample.batch_bytes / f64::from(1 << 20) + 1.0;
        assert!((messages - 1.1..=1.1 * messages + 2.0 * parted).contains(&others), "{sample:?}");
    }
    assert_eq!(profile.doubts(SystemTime::now()), []);
    let folder = tempfile::tempdir().expect("a folder");
    let profiles = Profiles::at(folder.path());
    profiles.keep(&profile).expect("kept");
    let found = profiles.find("here").expect("read").expect("kept");
    assert_eq!((found.measured_at, found.samples.len()), (profile.measured_at, profile.samples.len()));
}

#[tokio::test]
async fn a_result_with_too_few_rows_is_an_error() {
    for batches in [0, 1] {
        let (mut client, _stop, _task) = client(batches).await;
        let error =
            calibrate(&mut NodeProbe::new(&mut client, "numbers"), "here", "numbers", &effort(), |_, _| ())
                .await
                .expect_err("too short");
        assert!(matches!(error, CalibrateError::TooFewRows { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_link_that_is_lost_during_the_measurement_is_an_error() {
    let (mut client, _stop, task) = client(usize::MAX).await;
    let lost = |done, _| {
        if done == 3 {
            task.abort();
        }
    };
    let error = calibrate(&mut NodeProbe::new(&mut client, "numbers"), "here", "numbers", &effort(), lost)
        .await
        .expect_err("lost");
    assert!(matches!(error, CalibrateError::Probe(_)), "{error}");
}
