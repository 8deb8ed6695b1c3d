//! Batches of given sizes, timed one after the other, as in the thesis on fetch sizes.

use std::str::FromStr;

use lightship_session::{CalibrationPlan, Client, ClientConfig, NodeProbe, calibrate};
use lightship_tuner::Sample;

use super::fetch::endpoint;
use crate::Result;

/// Rows of a batch, and bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair(pub(crate) u64, pub(crate) u64);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = || {
            let (rows, bytes) = text.split_once(':')?;
            Some(Self(rows.parse().ok()?, bytes.parse().ok()?))
        };
        pair().ok_or_else(|| format!("expected ROWS:BYTES, not `{text}`"))
    }
}

/// Times each pair. The samples are in the order of the pairs.
pub(super) async fn time(host: &str, port: u16, batches: u32, pairs: &[Pair]) -> Result<Vec<Sample>> {
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    let mut client = Client::connect_with(&endpoint(host, port), &config).await?;
    let effort = CalibrationPlan::exactly(pairs.iter().map(|pair| (pair.0, pair.1)).collect(), batches);
    let mut probe = NodeProbe::new(&mut client, "rows");
    Ok(calibrate(&mut probe, "rows", "rows", &effort, |_, _| ()).await?.samples)
}
