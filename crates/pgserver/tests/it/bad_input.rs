//! What clients must not send.

use super::TestServer;
use super::client::{Client, kinds, message, startup, strings};

/// The code of the error with which the connection ends.
fn ends(client: &mut Client) -> String {
    let code = client.receive().expect("an error").field(b'C').unwrap();
    assert_eq!(client.receive(), None);
    code
}

#[test]
fn hostile_lengths_end_the_connection() {
    let server = TestServer::start();
    let check = |bytes: &[u8], expected: &str| {
        let mut client = server.client();
        client.send_raw(bytes);
        assert_eq!(ends(&mut client), expected, "{bytes:?}");
    };
    check(b"Q\x40\x00\x00\x00", "54000");
    check(b"Q\x00\x00\x00\x00", "08P01");
    check(b"P\xff\xff\xff\xff", "54000");
    check(b"\x00\x00\x00\x00\x00", "08P01");
    check(b"p\x00\x00\x00\x04", "08P01");
    check(&message(b'Q', b"select 1"), "08P01");
    check(&message(b'E', b"\0"), "08P01");
    check(&message(b'B', &[strings(&["", ""]), vec![0x7f, 0xff]].concat()), "08P01");
    check(&message(b'D', b"Z\0"), "08P01");
    // The server goes on.
    assert_eq!(kinds(&server.client().query("select 1")), "TDCZ");
}

#[test]
fn bad_beginnings_are_refused() {
    let server = TestServer::start();
    let check = |bytes: &[u8], expected: &str| {
        let mut client = Client::open(server.address);
        client.send_raw(bytes);
        assert_eq!(ends(&mut client), expected, "{bytes:?}");
    };
    check(&[0x7f, 0xff, 0xff, 0xff], "08P01");
    check(&[0, 0, 0, 4], "08P01");
    check(&startup(0x2_0000, &["user", "me"]), "0A000");
    check(&startup(0x3_0000, &["database", "me"]), "28000");
    check(&startup(0x3_0000, &["user", "me", "client_encoding", "LATIN1"]), "0A000");
    let mut truncated = startup(0x3_0000, &["user", "me"]);
    truncated[3] -= 4;
    check(&truncated[..truncated.len() - 4], "08P01");
}

#[test]
fn a_newer_protocol_is_negotiated() {
    let server = TestServer::start();
    let mut client = Client::open(server.address);
    client.send_raw(&startup(0x3_0002, &["user", "me", "_pq_.x", "1"]));
    let reply = client.receive().unwrap();
    assert_eq!((reply.kind, &reply.body[..8]), (b'v', &[0, 0, 0, 0, 0, 0, 0, 1][..]));
    client.until_ready();
    // Encryption that is not offered.
    let mut client = Client::open(server.address);
    client.send_raw(&[0, 0, 0, 8, 4, 210, 22, 47]);
    assert_eq!(client.byte(), b'N');
    client.send_raw(&startup(0x3_0000, &["user", "me"]));
    client.until_ready();
}

#[test]
fn texts_that_are_no_texts_are_refused() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send(b'Q', b"select '\xff'\0");
    let replies = client.until_ready();
    assert_eq!(replies[0].field(b'C').unwrap(), "22021");
    let long = format!("select '{}'", "x".repeat(2 << 20));
    assert_eq!(client.error(&long).0, "54000");
    client.parse("", "select $1", &[20]);
    client.bind("", "", &[(0, Some(b"a\0b"))], 0);
    client.execute("", 0);
    assert_eq!(client.sync()[2].field(b'C').unwrap(), "22021");
    client.parse("", "select $1", &[23]);
    client.bind("", "", &[(1, Some(b"abc"))], 0);
    client.execute("", 0);
    assert_eq!(client.sync()[2].field(b'C').unwrap(), "22P03");
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_message_is_forgotten() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send_raw(b"Q\x00\x00\x10\x00select");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.receive(), None);
}

#[test]
fn random_messages_end_with_an_error_or_an_answer() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        // Xorshift: the same numbers in each run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..1000 {
        let kind = b"QPBDECSHdcfFp"[random(13) as usize];
        let length = random(40);
        // Many zeros, so that strings end.
        let body: Vec<u8> = (0..length).map(|_| if random(3) == 0 { 0 } else { random(256) as u8 }).collect();
        client.send_raw(&[message(kind, &body), message(b'S', &[])].concat());
        let mut last = None;
        while let Some(reply) = client.receive() {
            let is_ready = reply.kind == b'Z';
            last = Some(reply.kind);
            // A query and a Sync are answered each.
            if is_ready && kind != b'Q' && kind != b'S' {
                break;
            }
            if is_ready && client.is_quiet() {
                break;
            }
        }
        assert!(matches!(last, Some(b'Z' | b'E')), "{kind} {body:?}");
        if last == Some(b'E') {
            client = server.client();
        }
    }
}
