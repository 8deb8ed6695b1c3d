//! Entry points of the fuzz targets; not part of the crate's interface.

use std::net::SocketAddr;

use crate::collector::{Collector, CollectorOptions};
use crate::datagram::{self, DatagramHeader, Keys, SealableBody};
use crate::sender::Sender;

const TOKEN: &str = "token";
const SECOND: u64 = 1_000_000_000;
/// What the collector may hold.
const BYTES_MAX: usize = 1 << 20;

/// A datagram: its kind, its header (run, number, when it was sent, what it answers and when), whether it has the right
/// session, and its body.
pub type Sent = (u8, [u64; 5], bool, Vec<u8>);

/// Gives datagrams of an agent that has the token, but lies, to a collector, and bytes to both ends.
pub fn datagrams(sent: Vec<Sent>) {
    let keys = Keys::of(TOKEN);
    let options = CollectorOptions { bytes_max: BYTES_MAX, hosts_max: 4, ..CollectorOptions::default() };
    let mut collector = Collector::new(options, TOKEN, [1; 32]);
    let mut sender = Sender::new(keys.clone(), 1);
    let from = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut events = Vec::new();
    for (second, (kind, [run, sequence, sent_ns, answered, received_ns], confirmed, body)) in (1..).zip(sent)
    {
        let now_ns = second * SECOND;
        collector.handle(&body, from, now_ns, &mut events);
        let _ = sender.receive(&body, now_ns);
        let mut header =
            DatagramHeader { run, sequence, sent_ns, wants_answer: true, ..DatagramHeader::default() };
        header.answered = Some(datagram::Answered { sequence: answered, received_ns });
        let body = SealableBody::for_fuzzing(kind, body);
        let answer = collector.handle(&body.seal(&header, &keys), from, now_ns, &mut events);
        if let Some(answer) = answer.filter(|_| confirmed)
            && let Ok(answer) = datagram::Answer::open(&answer, &keys)
        {
            header.session = answer.session;
            collector.handle(&body.seal(&header, &keys), from, now_ns, &mut events);
        }
        collector.tick(now_ns, &mut events);
        assert!(collector.bytes() <= BYTES_MAX);
        let _ = collector.hosts(now_ns);
        events.clear();
    }
}
