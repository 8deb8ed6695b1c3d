//! One connection: who is at the other end, and then frames both ways until both have closed.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use lightship_overlay::forwarder::{ConnectionId, Forwarder, Frame, Packet};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::error::{RelayError, Result};
use crate::frame::{HEADER_BYTES, Header, Kind, TOKEN_BYTES_MAX, Use, Why, crc32c};
use crate::pulse::Pulse;
use crate::relay::Message;
use crate::socket::{Read, Socket, Write};
use crate::state::{Body, Shared};

/// Enough for headers; messages are read past it.
const READ_BUFFER_BYTES: usize = 4 << 10;
/// How long a node that has failed says so to others.
const LINGER: Duration = Duration::from_secs(1);
/// Between two attempts to reach a node that does not listen yet.
const RETRY: Duration = Duration::from_millis(50);
/// Memory for a message is taken in steps, as its bytes arrive.
const STEP_BYTES: usize = 1 << 20;

/// Opens a connection of the topology, and runs it. Tries again as long as the relay waits: the peer may not
/// have started yet, or still be what it was before it starts anew.
pub(crate) async fn dial(shared: Arc<Shared>, connection: ConnectionId, peer: u32) -> Result<()> {
    let opened = async {
        loop {
            let (reason, again) = match open(&shared, peer).await {
                Ok(Ok(socket)) => return Ok(socket),
                Ok(Err(why)) => (refusal(why).to_owned(), why != Why::Token),
                Err(e) => (e.to_string(), is_passing(e.kind())),
            };
            let error = RelayError::Connect { node: peer, reason };
            if !again {
                return Err(error);
            }
            shared.status.send_if_modified(|status| {
                status.attempts.insert(connection, error);
                false
            });
            sleep(RETRY).await;
        }
    };
    let socket = tokio::select! {
        opened = opened => opened?,
        () = shared.stopping() => return Ok(()),
    };
    run(shared, socket, connection, peer).await
}

/// Connects, and is let in or refused.
async fn open(shared: &Shared, peer: u32) -> io::Result<Result<Socket, Why>> {
    let tcp = TcpStream::connect(shared.config.addresses[peer as usize]).await?;
    let mut socket = Socket::opened(tcp, peer, &shared.config.security).await?;
    let refused = greet(shared, &mut socket, peer, Use::Topology).await?;
    Ok(refused.map_or(Ok(socket), Err))
}

fn refusal(why: Why) -> &'static str {
    match why {
        Why::No => "it refuses",
        Why::Overlay => "it refuses: has it the same epoch, topology, queues and largest message?",
        Why::Token => "it refuses: it has another token",
    }
}

/// Whether that is how a node looks that has not started yet, or is just stopping.
fn is_passing(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::TimedOut
    )
}

/// Asks for a direct connection, and runs it. That it is refused is no error.
pub(crate) async fn dial_direct(shared: Arc<Shared>, peer: u32) -> Result<()> {
    let both_ways = shared.config.direct_both_ways;
    let greeted = async {
        let tcp = TcpStream::connect(shared.config.addresses[peer as usize]).await?;
        let mut socket = Socket::opened(tcp, peer, &shared.config.security).await?;
        let of = if both_ways { Use::DirectBothWays } else { Use::DirectOneWay };
        let refused = greet(&shared, &mut socket, peer, of).await?;
        Ok::<_, io::Error>(Some(socket).filter(|_| refused.is_none()))
    };
    let greeted = tokio::select! {
        greeted = timeout(shared.config.connect_timeout, greeted) => greeted,
        // Nobody may be behind the peer's listener to answer.
        () = shared.failed() => return Ok(()),
    };
    // What is wrong with the peer shows on the topology's connections.
    let greeted = greeted.ok().and_then(Result::ok);
    let is_refused = matches!(greeted, Some(None));
    let socket = greeted.flatten();
    let added = shared.with(|state| {
        state.asking.remove(&peer);
        state.unsettled = true;
        let Some(_) = &socket else {
            state.refused_count += u64::from(is_refused);
            state.wanted.refused.insert(peer);
            return Ok(None);
        };
        let connection = state.forwarder.add_direct(peer, true, both_ways);
        state.opened.insert(connection, peer);
        state.opened_count += 1;
        if shared.status.borrow().closing {
            // The peer counts on it: it is closed in good order.
            state.forwarder.close(connection)?;
        }
        Ok(Some(connection))
    });
    shared.direct.notify_one();
    match (socket, added.map_err(RelayError::Unroutable)?) {
        (Some(socket), Some(connection)) => run(shared, socket, connection, peer).await,
        _ => Ok(()),
    }
}

/// Says who this is; and why it is refused, if it is.
async fn greet(shared: &Shared, socket: &mut Socket, peer: u32, of: Use) -> io::Result<Option<Why>> {
    let token = shared.config.security.token.as_deref().unwrap_or_default().as_bytes();
    let hello = Header {
        hops: of as u32,
        id: shared.digest,
        bytes: token.len() as u32,
        crc: crc32c(token),
        ..Header::bare(Kind::Hello, shared.config.node, peer)
    };
    socket.send(&[&hello.encode(), token].concat()).await?;
    let stranger = || io::Error::new(io::ErrorKind::InvalidData, "it is no node of an overlay");
    let answer = read_header(&mut socket.read).await?.map_err(|_| stranger())?;
    match answer.kind {
        Kind::Accept => Ok(None),
        Kind::Refuse => Ok(Some(Why::of(answer.hops))),
        _ => Err(stranger()),
    }
}

/// Answers whoever has connected, and runs the connection. Strangers are no error.
pub(crate) async fn answer(shared: Arc<Shared>, tcp: TcpStream) -> Result<()> {
    let greeted = async {
        let mut socket = Socket::accepted(tcp, &shared.config.security).await?;
        let hello = read_hello(&mut socket.read).await?;
        // One that waited for an answer until it gave up is still among those to be accepted.
        let hello = if hung_up(&mut socket.read).await { None } else { hello };
        Ok::<_, io::Error>((socket, hello))
    };
    let greeted = tokio::select! {
        greeted = timeout(shared.config.connect_timeout, greeted) => greeted,
        () = shared.stopping() => return Ok(()),
    };
    let Ok(Ok((mut socket, Some((hello, token))))) = greeted else { return Ok(()) };
    let (peer, me) = (hello.from, shared.config.node);
    let admitted = admit(&shared, &hello, &token);
    let answer = match admitted {
        Ok(_) => Header::bare(Kind::Accept, me, peer),
        Err(why) => Header { hops: why as u32, ..Header::bare(Kind::Refuse, me, peer) },
    };
    let answered = socket.send(&answer.encode()).await;
    match (admitted, answered) {
        (Err(_), _) => Ok(()),
        (Ok(connection), Ok(())) => run(shared, socket, connection, peer).await,
        (Ok(connection), Err(e)) => {
            // Nothing was sent yet: what waits goes another way, where there is one.
            let closed = shared.with(|state| {
                let closed = state.forwarder.close(connection);
                state.forwarder.gone(connection);
                closed
            });
            closed.map_err(|_| RelayError::Lost { node: peer, kind: Some(e.kind()), by: None })
        }
    }
}

/// A hello and its token; nothing when it is none.
async fn read_hello(read: &mut Read) -> io::Result<Option<(Header, Bytes)>> {
    let Ok(hello) = read_header(read).await? else { return Ok(None) };
    if hello.kind != Kind::Hello || hello.bytes as usize > TOKEN_BYTES_MAX {
        return Ok(None);
    }
    let token = read_body(read, hello.bytes as usize, || ()).await?;
    Ok((crc32c(&token) == hello.crc).then_some((hello, token)))
}

/// Whether the peer has closed, or speaks before it was answered.
async fn hung_up(read: &mut Read) -> bool {
    let mut byte = [0];
    let mut byte = ReadBuf::new(&mut byte);
    poll_fn(|context| Poll::Ready(Pin::new(&mut *read).poll_read(context, &mut byte).is_ready())).await
}

/// Which connection a hello gets, or why none.
fn admit(shared: &Shared, hello: &Header, token: &[u8]) -> Result<ConnectionId, Why> {
    let (peer, me) = (hello.from, shared.config.node);
    let nodes = shared.config.addresses.len();
    if !shared.config.security.admits(token) {
        return Err(Why::Token);
    }
    if hello.id != shared.digest {
        return Err(Why::Overlay);
    }
    if hello.to != me || peer == me || peer as usize >= nodes {
        return Err(Why::No);
    }
    let direct = |both_ways| {
        shared.with(|state| {
            let most = shared.config.accepted_max.unwrap_or(nodes);
            // Asked under the lock, under which a closing node closes what it has.
            if state.accepted.len() >= most || shared.status.borrow().closing {
                return None;
            }
            let connection = state.forwarder.add_direct(peer, both_ways, true);
            state.accepted.insert(connection);
            Some(connection)
        })
    };
    let connection = match Use::of(hello.hops) {
        None => None,
        Some(Use::DirectOneWay) => direct(false),
        Some(Use::DirectBothWays) => direct(true),
        Some(Use::Topology) => {
            let links = Forwarder::<Body>::topology_links(&shared.config.routes, me);
            let link = links.into_iter().find(|link| link.peer == peer && !link.opens);
            link.filter(|link| shared.with(|state| state.greeted.insert(link.id))).map(|link| link.id)
        }
    };
    connection.ok_or(Why::No)
}

/// Frames both ways, until both ends have closed.
async fn run(shared: Arc<Shared>, socket: Socket, connection: ConnectionId, peer: u32) -> Result<()> {
    let Socket { read, write } = socket;
    let wake = Arc::new(Notify::new());
    // What waits since before there was a socket goes out at once: the writer asks before it waits.
    shared.with(|state| {
        state.writers.insert(connection, Arc::clone(&wake));
        state.connections_max = state.connections_max.max(state.writers.len());
    });
    shared.status.send_if_modified(|status| status.missing.remove(&connection));
    let given_up = async {
        shared.failed().await;
        sleep(LINGER).await;
    };
    let frames = async {
        let pulse = Pulse::new(Instant::now(), shared.config.ping_interval);
        let read = async {
            let done = tokio::select! {
                done = read_frames(&shared, read, connection, peer, &pulse) => done,
                () = pulse.lost(&wake) => {
                    Err(RelayError::Lost { node: peer, kind: Some(io::ErrorKind::TimedOut), by: None })
                }
            };
            if let Err(error) = &done {
                // At once, as it is what ends the writer.
                shared.fail(error.clone());
            }
            done
        };
        // An error of the writer shows at the reader, with what the peer had to say before.
        tokio::join!(read, write_frames(&shared, write, connection, &wake, &pulse)).0
    };
    let done = tokio::select! {
        done = frames => done,
        () = given_up => Ok(()),
    };
    shared.with(|state| {
        state.writers.remove(&connection);
        state.forwarder.gone(connection);
    });
    done
}

/// Reads until the peer has closed, or has failed.
async fn read_frames(
    shared: &Shared,
    read: Read,
    connection: ConnectionId,
    peer: u32,
    pulse: &Pulse,
) -> Result<()> {
    let mut read = BufReader::with_capacity(READ_BUFFER_BYTES, read);
    let lost = |e: io::Error| RelayError::Lost { node: peer, kind: Some(e.kind()), by: None };
    let broken = |reason| RelayError::Malformed { node: peer, reason };
    let rules = |refusal| RelayError::Rules { node: peer, refusal };
    loop {
        let header = match read_header(&mut read).await {
            // After a failure there is nothing more to find out.
            Err(_) if shared.error().is_some() => return Ok(()),
            header => header.map_err(lost)?.map_err(broken)?,
        };
        pulse.heard(Instant::now());
        match header.kind {
            Kind::Message => {
                let Header { from, to, hops, id, bytes, crc, .. } = header;
                if bytes > shared.config.message_bytes_max {
                    return Err(broken("a message larger than agreed"));
                }
                let hops = hops as usize;
                let place = shared.with(|state| state.forwarder.admit(connection, (from, to, hops)));
                let place = place.map_err(rules)?;
                let alive = || pulse.heard(Instant::now());
                let bytes = read_body(&mut read, bytes as usize, alive).await.map_err(lost)?;
                let body = Body { bytes, crc };
                if !body.is_whole() {
                    return Err(broken("a damaged message"));
                }
                let packet = Packet { from, to, id, hops, body, place: Some(place) };
                shared
                    .with(|state| {
                        if let Some(packet) = state.forwarder.received(packet)? {
                            let message = Message { from: packet.from, bytes: packet.body.bytes, hops };
                            state.inbox.push_back((message, place));
                            shared.arrived.notify_one();
                        }
                        Ok(())
                    })
                    .map_err(RelayError::Unroutable)?;
            }
            Kind::Credit => {
                let (class, count) = (header.hops as usize, usize::try_from(header.id).unwrap_or(usize::MAX));
                shared.with(|state| state.forwarder.credited(connection, class, count)).map_err(rules)?;
            }
            Kind::Close => {
                return shared
                    .with(|state| state.forwarder.peer_closed(connection))
                    .map_err(RelayError::Unroutable);
            }
            Kind::Failed => {
                shared.fail(RelayError::Lost { node: header.from, kind: None, by: Some(peer) });
            }
            Kind::Alive => {}
            Kind::Hello | Kind::Accept | Kind::Refuse => {
                return Err(broken("a greeting where there was one"));
            }
        }
    }
}

async fn read_header(read: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Result<Header, &'static str>> {
    let mut bytes = [0; HEADER_BYTES];
    read.read_exact(&mut bytes).await?;
    Ok(Header::decode(&bytes))
}

/// Reads so many bytes; `alive` is called as some of them come.
async fn read_body(
    read: &mut (impl AsyncReadExt + Unpin),
    bytes: usize,
    alive: impl Fn(),
) -> io::Result<Bytes> {
    let mut body = Vec::with_capacity(bytes.min(STEP_BYTES));
    while body.len() < bytes {
        let left = bytes - body.len();
        if body.len() == body.capacity() {
            body.reserve_exact(left.min(body.len()));
        }
        if (&mut *read).take(left as u64).read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        alive();
    }
    Ok(body.into())
}

/// Writes what there is, until this end has closed or failed.
async fn write_frames(shared: &Shared, write: Write, connection: ConnectionId, wake: &Notify, pulse: &Pulse) {
    let mut write = write;
    let written = async {
        let mut headers = BytesMut::new();
        loop {
            if let Some(error) = shared.error() {
                let node = error.node().unwrap_or(shared.config.node);
                write.write_all(&Header::bare(Kind::Failed, node, 0).encode()).await?;
                return write.shutdown().await;
            }
            if pulse.take_due() {
                headers.extend_from_slice(&Header::bare(Kind::Alive, shared.config.node, 0).encode());
            }
            // Credit is little, and goes out with what follows it: one of each class at most.
            let frame = loop {
                match shared.with(|state| state.forwarder.next_frame(connection)) {
                    Some(Frame::Credit { class, count }) => {
                        let header = Header {
                            hops: class as u32,
                            id: count as u64,
                            ..Header::bare(Kind::Credit, shared.config.node, 0)
                        };
                        headers.extend_from_slice(&header.encode());
                        if headers.len() >= READ_BUFFER_BYTES {
                            break None;
                        }
                    }
                    other => break other,
                }
            };
            match frame {
                Some(Frame::Message(packet)) => {
                    let header = Header {
                        kind: Kind::Message,
                        from: packet.from,
                        to: packet.to,
                        hops: packet.hops as u32,
                        id: packet.id,
                        bytes: packet.body.bytes.len() as u32,
                        crc: packet.body.crc,
                    };
                    headers.extend_from_slice(&header.encode());
                    write.write_all_buf(&mut headers.split().chain(packet.body.bytes)).await?;
                    shared.with(|state| state.forwarder.left(packet.place, true));
                    if packet.place.is_none() {
                        shared.room.add_permits(1);
                    }
                }
                Some(Frame::Close) => {
                    headers.extend_from_slice(&Header::bare(Kind::Close, shared.config.node, 0).encode());
                    write.write_all_buf(&mut headers).await?;
                    return write.flush().await;
                }
                _ if !headers.is_empty() => write.write_all_buf(&mut headers).await?,
                // Where it is encrypted, some may be held back until then.
                _ => {
                    write.flush().await?;
                    wake.notified().await;
                }
            }
        }
    };
    let _: io::Result<()> = written.await;
    pulse.closed();
}
