//! Arbitrary control frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lightship_wire::cluster::Task;
use lightship_wire::control::{Accepted, BatchEnd, Failure, Hello, Query, Queued, Stats, decode_credit};
use lightship_wire::frame::{FrameHeader, HEADER_BYTES};
use lightship_wire::join::{Join, Placeholder, StripeOffer};
use lightship_wire::overlay::{ClassCredit, LinkNotice, Neighbour, ROUTE_BYTES, Route, decode_lost};
use lightship_wire::shm::{Rendezvous, SegmentSlot, decode_release};
use lightship_wire::statement::{Description, Statement};
use lightship_wire::tuning::{Progress, Retune, Sizes};

fuzz_target!(|bytes: &[u8]| {
    if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        let _ = FrameHeader::decode(header);
    }
    if let Some(route) = bytes.first_chunk::<ROUTE_BYTES>() {
        let _ = Route::decode(route);
    }
    let _ = Neighbour::decode(bytes);
    let _ = ClassCredit::decode(bytes);
    let _ = LinkNotice::decode(bytes);
    let _ = decode_lost(bytes);
    let _ = Hello::decode(bytes);
    let _ = Query::decode(bytes);
    let _ = Queued::decode(bytes);
    let _ = Accepted::decode(bytes);
    let _ = BatchEnd::decode(bytes);
    let _ = Stats::decode(bytes);
    let _ = Failure::decode(bytes);
    let _ = decode_credit(bytes);
    let _ = Progress::decode(bytes);
    let _ = Retune::decode(bytes);
    let _ = Sizes::decode(bytes);
    let _ = Rendezvous::decode(bytes);
    let _ = SegmentSlot::decode(bytes);
    let _ = decode_release(bytes);
    let _ = Task::decode(bytes);
    let _ = StripeOffer::decode(bytes);
    let _ = Join::decode(bytes);
    let _ = Placeholder::decode(bytes);
    if let Ok(statement) = Statement::decode(bytes) {
        let bytes = statement.encode().expect("it was decoded");
        Statement::decode(&bytes).expect("it was encoded");
    }
    let _ = Description::decode(bytes);
});
