//! Control frames of anyone's making.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lightship_wire::cluster::Task;
use lightship_wire::control::{Accepted, BatchEnd, Failure, Hello, Query, Queued, Stats, decode_credit};
use lightship_wire::frame::{HEADER_BYTES, Header};
use lightship_wire::join::{Dealt, Join, Ticket};
use lightship_wire::tuning::{Progress, Retune, Sizes};
use lightship_wire::local::{Meeting, Place, decode_release};

fuzz_target!(|bytes: &[u8]| {
    if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        let _ = Header::decode(header);
    }
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
    let _ = Meeting::decode(bytes);
    let _ = Place::decode(bytes);
    let _ = decode_release(bytes);
    let _ = Task::decode(bytes);
    let _ = Ticket::decode(bytes);
    let _ = Join::decode(bytes);
    let _ = Dealt::decode(bytes);
});
