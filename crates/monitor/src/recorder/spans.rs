//! Assessed queries as spans, in the JSON of OTLP 1: one trace for each query, a span for the query, and one below it for
//! each phase of its run.

use lightship_usage::{Part, Phase};
use serde_json::{Value, json};

use super::StoredQuery;

/// The kinds of spans: something within a process, and the answer to a request.
const INTERNAL: u32 = 1;
const SERVER: u32 = 2;
/// The states of spans.
const STATUS_OK: u32 = 1;
const STATUS_ERROR: u32 = 2;
/// The most characters in the name of a span.
const NAME_CHARS_MAX: usize = 120;

/// A request to an OTLP receiver with the spans of queries, which ran at the node `host`.
pub(crate) fn spans(queries: &[StoredQuery], host: &str) -> Value {
    let resource = [text("service.name", "lightship"), text("host.name", host)];
    let scope = json!({ "name": "lightship", "version": env!("CARGO_PKG_VERSION") });
    let spans: Vec<Value> = queries.iter().flat_map(of_query).collect();
    json!({
        "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }],
    })
}

fn of_query(query: &StoredQuery) -> Vec<Value> {
    let trace = trace_id(&query.id);
    let root = span_id(&query.id, 0);
    let mut attributes = vec![
        text("db.system.name", "lightship"),
        text("db.query.text", &query.label),
        text("lightship.query.id", &query.id),
        text("lightship.limit", query.verdict.limit.name()),
        text("lightship.verdict", &query.verdict.sentence),
        text("lightship.advice", &query.verdict.advice),
    ];
    let hosts: Vec<Value> = query.hosts.iter().map(|host| json!({ "stringValue": host })).collect();
    attributes.push(json!({ "key": "lightship.hosts", "value": { "arrayValue": { "values": hosts } } }));
    for time in query.parts.iter().filter(|time| time.ns > 0) {
        attributes.push(seconds(time.part, time.ns as f64 / 1e9));
    }
    let status = match &query.error {
        Some(error) => json!({ "code": STATUS_ERROR, "message": error }),
        None => json!({ "code": STATUS_OK }),
    };
    let unix_ns = |since_ns: u64| query.began_unix_ns.saturating_add_unsigned(since_ns).max(0).to_string();
    let mut spans = vec![json!({
        "traceId": trace,
        "spanId": root,
        "name": query.label.chars().take(NAME_CHARS_MAX).collect::<String>(),
        "kind": SERVER,
        "startTimeUnixNano": unix_ns(0),
        "endTimeUnixNano": unix_ns(query.run_ns),
        "attributes": attributes,
        "status": status,
    })];
    let phases = query.footprint.iter().flat_map(|footprint| &footprint.division.phases);
    spans.extend((1..).zip(phases).map(|(number, phase)| {
        json!({
            "traceId": trace,
            "spanId": span_id(&query.id, number),
            "parentSpanId": root,
            "name": phase.largest().name(),
            "kind": INTERNAL,
            "startTimeUnixNano": unix_ns(phase.began_ns),
            "endTimeUnixNano": unix_ns(phase.ended_ns),
            "attributes": of_phase(phase),
        })
    }));
    spans
}

fn of_phase(phase: &Phase) -> Vec<Value> {
    let mut attributes = Vec::new();
    if !phase.host.is_empty() {
        attributes.push(text("lightship.host", &phase.host));
    }
    let parts = Part::ALL.into_iter().zip(phase.seconds).filter(|(_, seconds)| *seconds > 0.0);
    attributes.extend(parts.map(|(part, of_part)| seconds(part, of_part)));
    attributes
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn seconds(part: Part, seconds: f64) -> Value {
    let part = serde_json::to_value(part).unwrap_or_default();
    let key = format!("lightship.seconds.{}", part.as_str().unwrap_or("unknown"));
    json!({ "key": key, "value": { "doubleValue": seconds } })
}

/// The id of a query if it is a UUID, as those of nodes are; otherwise one that is made of it.
fn trace_id(id: &str) -> String {
    let digits = id.replace('-', "");
    let is_uuid = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    // All zeros stands for no trace.
    if is_uuid && digits.bytes().any(|byte| byte != b'0') {
        return digits.to_ascii_lowercase();
    }
    hash(id, u64::MAX, 32)
}

fn span_id(id: &str, number: u64) -> String {
    hash(id, number, 16)
}

fn hash(id: &str, number: u64, digits: usize) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_le_bytes()).update(id.as_bytes());
    hasher.finalize().to_hex().chars().take(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_nodes_have_their_ids_as_traces() {
        assert_eq!(trace_id("7F9A1C5e-0000-4000-8000-00000000000a"), "7f9a1c5e00004000800000000000000a");
        for other in ["q1", "", "00000000-0000-0000-0000-000000000000"] {
            let made = trace_id(other);
            assert_eq!(made.len(), 32);
            assert_ne!(made, "0".repeat(32));
        }
        assert_ne!(span_id("a", 0), span_id("a", 1));
        assert_ne!(span_id("a", 0), span_id("b", 0));
    }
}
