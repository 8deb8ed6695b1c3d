//! Serves one connection, from its header to its end.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::cpu::{Cpu, EVERY, Sampler};
use crate::server::ServerState;
use crate::wire::{
    BEGIN, END, HEADER_BYTES, HeaderError, Mode, Reading, ReceivedCount, Refusal, Reply, RequestHeader,
    answer_to_bytes,
};

/// The most bytes that either end reads or writes at once. After this many bytes a task yields to the
/// others; otherwise one of thousands of connections could wait for seconds.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// The most bytes of a flood that the system queues unsent for a connection (`TCP_NOTSENT_LOWAT`). By default these are
/// megabytes, which for thousands of connections take minutes to arrive after the flood has stopped.
pub(crate) const UNSENT_BYTES_MAX: u32 = 64 << 10;
/// The idle timeout of a control connection. It is silent during a measurement, so this is longer than any.
const RUN_IDLE: Duration = Duration::from_secs(1200);
/// The interval of TCP keep-alive probes, which detect a vanished peer.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionEnd {
    #[error("not a netbench header")]
    Foreign,
    #[error("refused: {0}")]
    Refused(Refusal),
    #[error("idle timeout")]
    Idle,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<tokio::time::error::Elapsed> for ConnectionEnd {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::Idle
    }
}

/// A buffer for messages of the given size.
pub(crate) fn buffer(message_bytes: u32) -> Vec<u8> {
    vec![0; BUFFER_BYTES.min(message_bytes as usize)]
}

/// Serves a connection to its end. A connection that is not admitted is refused as [`Refusal::Full`].
pub(crate) async fn serve(
    stream: &mut TcpStream,
    shared: &ServerState,
    is_admitted: bool,
) -> Result<(), ConnectionEnd> {
    let header = match header(stream, shared).await {
        Ok(_) if !is_admitted => Err(ConnectionEnd::Refused(Refusal::Full)),
        other => other,
    };
    let served = match header {
        Ok(header) => dispatch(stream, shared, header).await,
        Err(error) => Err(error),
    };
    if let Err(ConnectionEnd::Foreign | ConnectionEnd::Refused(_)) = served {
        shared.counters.refused.fetch_add(1, Ordering::Relaxed);
    }
    if let Err(ConnectionEnd::Refused(why)) = served {
        answer(stream, shared, Err(why)).await?;
    }
    served
}

async fn header(stream: &mut TcpStream, shared: &ServerState) -> Result<RequestHeader, ConnectionEnd> {
    let mut bytes = [0; HEADER_BYTES];
    timeout(shared.config.header_timeout, stream.read_exact(&mut bytes)).await??;
    RequestHeader::parse(&bytes).map_err(|error| match error {
        HeaderError::Foreign => ConnectionEnd::Foreign,
        HeaderError::Refused(why) => ConnectionEnd::Refused(why),
    })
}

async fn answer(stream: &mut TcpStream, shared: &ServerState, answer: Reply) -> Result<(), ConnectionEnd> {
    timeout(shared.config.header_timeout, stream.write_all(&answer_to_bytes(answer))).await??;
    Ok(())
}

async fn dispatch(
    stream: &mut TcpStream,
    shared: &ServerState,
    header: RequestHeader,
) -> Result<(), ConnectionEnd> {
    stream.set_nodelay(!header.nagle)?;
    let counted = match header.mode {
        Mode::Swallow | Mode::Both => {
            Some(shared.bytes_of(header.run).ok_or(ConnectionEnd::Refused(Refusal::Run))?)
        }
        Mode::Control | Mode::Echo | Mode::Supply => None,
    };
    shared.counters.connections.fetch_add(1, Ordering::Relaxed);
    match (header.mode, counted) {
        (Mode::Control, _) => control(stream, shared).await,
        (Mode::Supply, _) => {
            answer(stream, shared, Ok(0)).await?;
            supply(&mut stream.split().1, shared, header.message_bytes).await
        }
        (mode, Some(counted)) => {
            answer(stream, shared, Ok(0)).await?;
            let (mut read, mut write) = stream.split();
            let swallowed = swallow(&mut read, shared, &counted);
            let bytes = match mode {
                Mode::Both => tokio::select! {
                    bytes = swallowed => bytes?,
                    ended = supply(&mut write, shared, header.message_bytes) => {
                        // The client has closed the connection without waiting for the tally.
                        return ended;
                    }
                },
                _ => swallowed.await?,
            };
            let tally = ReceivedCount { bytes, messages: bytes / u64::from(header.message_bytes) };
            timeout(shared.config.idle, write.write_all(&tally.to_bytes())).await??;
            Ok(())
        }
        (_, None) => {
            answer(stream, shared, Ok(0)).await?;
            echo(stream, shared, header.message_bytes).await
        }
    }
}

/// Answers each whole message with one of the same size and the same beginning.
async fn echo(stream: &mut TcpStream, shared: &ServerState, message_bytes: u32) -> Result<(), ConnectionEnd> {
    let (mut buffer, size, idle) = (buffer(message_bytes), message_bytes as usize, shared.config.idle);
    loop {
        let mut read = 0;
        while read < size {
            // Bytes that don't fit into the buffer overwrite its second half; the beginning stays.
            let from = if read < buffer.len() { read } else { buffer.len() / 2 };
            let most = (size - read).min(buffer.len() - from);
            let count = timeout(idle, stream.read(&mut buffer[from..from + most])).await??;
            match (count, read) {
                (0, 0) => return Ok(()),
                (0, _) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                _ => read += count,
            }
        }
        shared.counters.bytes.fetch_add(u64::from(message_bytes), Ordering::Relaxed);
        let mut left = size;
        while left > 0 {
            let part = left.min(buffer.len());
            timeout(idle, stream.write_all(&buffer[..part])).await??;
            left -= part;
        }
    }
}

/// Receives messages until the client shuts down. Returns their bytes.
async fn swallow(
    stream: &mut ReadHalf<'_>,
    shared: &ServerState,
    run_bytes: &AtomicU64,
) -> Result<u64, ConnectionEnd> {
    // Small messages are read many at a time; only the sender handles each one separately.
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut bytes, mut turn) = (0, 0);
    loop {
        let count = timeout(shared.config.idle, stream.read(&mut buffer)).await?? as u64;
        if count == 0 {
            break;
        }
        bytes += count;
        run_bytes.fetch_add(count, Ordering::Relaxed);
        shared.counters.bytes.fetch_add(count, Ordering::Relaxed);
        turn += count;
        if turn >= BUFFER_BYTES as u64 {
            turn = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok(bytes)
}

/// Sends until the client closes the connection.
async fn supply(
    stream: &mut WriteHalf<'_>,
    shared: &ServerState,
    message_bytes: u32,
) -> Result<(), ConnectionEnd> {
    SockRef::from(stream.as_ref()).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    let buffer = buffer(message_bytes);
    loop {
        if let Err(error) = timeout(shared.config.idle, stream.write_all(&buffer)).await? {
            let is_closed =
                matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
            return if is_closed { Ok(()) } else { Err(error.into()) };
        }
        tokio::task::yield_now().await;
    }
}

/// Answers requests for the progress of a run, and samples processor use between them.
async fn control(stream: &mut TcpStream, shared: &ServerState) -> Result<(), ConnectionEnd> {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    SockRef::from(&*stream).set_tcp_keepalive(&keepalive)?;
    let run = shared.begin_run();
    answer(stream, shared, Ok(run.number)).await?;
    let mut sampler: Option<Sampler<'_>> = None;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut deadline = Instant::now() + RUN_IDLE;
    let mut asked = [0];
    loop {
        tokio::select! {
            read = stream.read(&mut asked) => if read? == 0 { return Ok(()) },
            _ = ticks.tick(), if sampler.is_some() => {
                if let Some(sampler) = &mut sampler {
                    sampler.sample();
                }
                continue;
            }
            () = tokio::time::sleep_until(deadline) => return Err(ConnectionEnd::Idle),
        }
        deadline = Instant::now() + RUN_IDLE;
        let bytes = run.bytes.load(Ordering::Relaxed);
        let nanoseconds = u64::try_from(shared.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let cpu = match asked {
            [BEGIN] => {
                sampler = Some(Sampler::start(&shared.meter));
                Cpu::default()
            }
            [END] => sampler.take().map(Sampler::finish).unwrap_or_default(),
            _ => return Err(ConnectionEnd::Refused(Refusal::Malformed)),
        };
        let Cpu { process_percent, system_percent } = cpu;
        let reading = Reading { nanoseconds, bytes, process_percent, system_percent };
        timeout(shared.config.header_timeout, stream.write_all(&reading.to_bytes())).await??;
    }
}
