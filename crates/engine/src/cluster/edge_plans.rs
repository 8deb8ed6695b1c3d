//! The sizes of messages and windows of each edge of a plan, which the coordinator chooses from what it expects.
//! The plan carries them to all nodes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header of a plan that has them: `1=65536x2,4=1048576x8`, by the stage that sends, bytes and window.
const HEADER: HeaderName = HeaderName::from_static("lightship-edges");
/// Most batches of a stream that may be in flight, whatever another node asks for.
pub(crate) const WINDOW_BATCHES_MAX: u32 = 64;

/// How the streams of an edge are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EdgePlan {
    /// Bytes of a message, which is a whole batch.
    pub(crate) message_bytes: u32,
    /// Batches of a stream that may be in flight or unconsumed.
    pub(crate) window_batches: u32,
}

/// Those of all edges, by the stage that sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EdgePlans(BTreeMap<usize, EdgePlan>);

impl EdgePlans {
    pub(crate) fn get(&self, stage: usize) -> Option<EdgePlan> {
        self.0.get(&stage).copied()
    }

    pub(crate) fn set(&mut self, stage: usize, plan: EdgePlan) {
        self.0.insert(stage, plan);
    }

    pub(crate) fn to_headers(&self) -> HeaderMap {
        let mut text = String::new();
        for (stage, plan) in &self.0 {
            let comma = if text.is_empty() { "" } else { "," };
            // Writing to a string can't fail.
            let _ = write!(text, "{comma}{stage}={}x{}", plan.message_bytes, plan.window_batches);
        }
        HeaderValue::from_str(&text).into_iter().map(|value| (HEADER, value)).collect()
    }

    /// Parts that can't be read are left out: their edges get the usual sizes.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Self {
        let text = headers.get(HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let plan = |part: &str| {
            let (stage, sizes) = part.split_once('=')?;
            let (message, window) = sizes.split_once('x')?;
            let window_batches = window.parse::<u32>().ok()?.clamp(1, WINDOW_BATCHES_MAX);
            Some((stage.parse().ok()?, EdgePlan { message_bytes: message.parse().ok()?, window_batches }))
        };
        Self(text.split(',').filter_map(plan).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read_as_they_were_written() {
        let mut plans = EdgePlans::default();
        assert_eq!(EdgePlans::of_headers(&plans.to_headers()), plans);
        plans.set(7, EdgePlan { message_bytes: 65536, window_batches: 2 });
        plans.set(12, EdgePlan { message_bytes: 1 << 20, window_batches: 64 });
        let again = EdgePlans::of_headers(&plans.to_headers());
        assert_eq!(again, plans);
        assert_eq!(again.get(7), Some(EdgePlan { message_bytes: 65536, window_batches: 2 }));
        assert_eq!(again.get(8), None);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let of = |text: &'static str| {
            EdgePlans::of_headers(&HeaderMap::from_iter([(HEADER, HeaderValue::from_static(text))]))
        };
        for text in ["", "1", "1=2", "=2x3", "1=x", "1=2x", "-1=2x3", "1=99999999999x3", ",,=", "1=2x3x4"] {
            assert_eq!(of(text), EdgePlans::default(), "{text}");
        }
        let window = |text| of(text).get(1).map(|plan| plan.window_batches);
        assert_eq!((window("1=2x0,2=z"), window("1=2x4000000000")), (Some(1), Some(WINDOW_BATCHES_MAX)));
    }
}
