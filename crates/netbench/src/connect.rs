//! Connections of a client, for pings (one message at a time, echoed) and floods (messages without answers).

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connection::{BUFFER_BYTES, UNSENT_BYTES_MAX, buffer};
use crate::error::ConnectionError;
use crate::returned::ReturnedBytes;
use crate::wire::{
    ANSWER_BYTES, Mode, READING_BYTES, Reading, ReceivedCount, RequestHeader, TALLY_BYTES, parse_answer,
};

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for an answer. Long, because thousands of large messages may share a link.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Writes of a flood before others have a turn.
const WRITES_MAX: u32 = 128;
/// Connections opened concurrently. More than fit into a server's backlog would have to wait for the
/// system to retry.
const AT_ONCE: usize = 64;

/// A connection that the server has accepted.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    stream: TcpStream,
    /// The run that a control connection has started.
    pub(crate) run: u64,
}

/// Waits for `work`, at most [`PATIENCE`].
async fn patient<T>(work: impl Future<Output = io::Result<T>>) -> Result<T, ConnectionError> {
    match timeout(PATIENCE, work).await {
        Ok(done) => done.map_err(ConnectionError::Broke),
        Err(_) => Err(ConnectionError::NoAnswer(PATIENCE)),
    }
}

impl ClientConnection {
    /// Connects, and waits until the server accepts the header.
    pub(crate) async fn to(
        address: SocketAddr,
        mode: Mode,
        run: u64,
        message_bytes: u32,
        nodelay: bool,
    ) -> Result<Self, ConnectionError> {
        let agreed = async {
            let mut stream = TcpStream::connect(address).await.map_err(ConnectionError::Connect)?;
            stream.set_nodelay(nodelay).map_err(ConnectionError::Broke)?;
            let header = RequestHeader { mode, nagle: !nodelay, run, message_bytes };
            stream.write_all(&header.to_bytes()).await.map_err(ConnectionError::Broke)?;
            let mut answer = [0; ANSWER_BYTES];
            stream.read_exact(&mut answer).await.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => ConnectionError::HungUp,
                _ => ConnectionError::Broke(error),
            })?;
            let run = parse_answer(&answer).ok_or(ConnectionError::Foreign)??;
            Ok(Self { stream, run })
        };
        timeout(CONNECT_TIMEOUT, agreed).await.unwrap_or(Err(ConnectionError::NoAnswer(CONNECT_TIMEOUT)))
    }

    /// Opens many connections, each to an address for a run, [`AT_ONCE`] at a time. The results are in
    /// the order of `wanted`.
    pub(crate) async fn all(
        wanted: Vec<(SocketAddr, u64)>,
        mode: Mode,
        message_bytes: u32,
        nodelay: bool,
    ) -> Vec<Result<Self, ConnectionError>> {
        let open = move |(address, run)| Self::to(address, mode, run, message_bytes, nodelay);
        stream::iter(wanted).map(open).buffered(AT_ONCE).collect().await
    }

    /// Turns it into a connection for pings.
    pub(crate) fn pinging(self, message_bytes: u32) -> PingConnection {
        PingConnection { stream: self.stream, buffer: buffer(message_bytes), message_bytes, number: 0 }
    }

    /// Turns it into a connection for a flood of messages. `returned` counts what the server sends meanwhile, if the
    /// connection is for both ways.
    pub(crate) fn flooding(
        self,
        message_bytes: u32,
        returned: Option<Arc<ReturnedBytes>>,
    ) -> FloodConnection {
        let stream = Arc::new(self.stream);
        if let Some(returned) = &returned {
            returned.watch(&stream);
        }
        FloodConnection { stream, buffer: buffer(message_bytes), message_bytes, returned }
    }

    /// Receives what the server sends, and counts the bytes in `counted`, until it fails or is dropped.
    pub(crate) async fn receive(mut self, counted: &AtomicU64) -> ConnectionError {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match patient(self.stream.read(&mut buffer)).await {
                Ok(0) => return ConnectionError::HungUp,
                Ok(count) => counted.fetch_add(count as u64, Ordering::Relaxed),
                Err(error) => return error,
            };
            tokio::task::yield_now().await;
        }
    }

    /// Closes it, and waits until the server has closed it too, so that the next connection can take
    /// its place.
    pub(crate) async fn close(self) {
        close(&self.stream).await;
    }

    /// Asks the server for the progress of a run.
    pub(crate) async fn reading(&mut self, asked: u8) -> Result<Reading, ConnectionError> {
        patient(async {
            self.stream.write_all(&[asked]).await?;
            let mut bytes = [0; READING_BYTES];
            self.stream.read_exact(&mut bytes).await?;
            Ok(Reading::parse(&bytes))
        })
        .await
    }
}

async fn close(stream: &TcpStream) {
    let closed = async {
        shut_down(stream)?;
        let mut rest = [0; 64];
        while read_some(stream, &mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // Errors don't matter any more.
    let _ = timeout(CONNECT_TIMEOUT, closed).await;
}

/// A connection with one message at a time, which the server echoes.
pub(crate) struct PingConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    message_bytes: u32,
    number: u64,
}

impl PingConnection {
    /// As [`ClientConnection::close`].
    pub(crate) async fn close(self) {
        close(&self.stream).await;
    }

    /// Sends a message, and waits for the whole answer.
    pub(crate) async fn ping(&mut self) -> Result<(), ConnectionError> {
        self.number += 1;
        let number = self.number.to_le_bytes();
        // A message smaller than the number is marked with as many bytes as it has.
        let marked = number.len().min(self.buffer.len());
        self.buffer[..marked].copy_from_slice(&number[..marked]);
        let (size, buffer, stream) = (self.message_bytes as usize, &mut self.buffer, &mut self.stream);
        patient(async {
            let mut left = size;
            while left > 0 {
                let part = left.min(buffer.len());
                stream.write_all(&buffer[..part]).await?;
                left -= part;
            }
            let mut read = 0;
            while read < size {
                let from = if read < buffer.len() { read } else { buffer.len() / 2 };
                let most = (size - read).min(buffer.len() - from);
                match stream.read(&mut buffer[from..from + most]).await? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    count => read += count,
                }
            }
            Ok(())
        })
        .await?;
        if self.buffer[..marked] == number[..marked] { Ok(()) } else { Err(ConnectionError::Mixed) }
    }
}

/// A connection with messages that get no answer.
pub(crate) struct FloodConnection {
    stream: Arc<TcpStream>,
    buffer: Vec<u8>,
    message_bytes: u32,
    returned: Option<Arc<ReturnedBytes>>,
}

impl FloodConnection {
    /// Sends messages, with a pause after each, until `stop` or a fault. Then checks that the server received as much
    /// as was sent. Returns what it received.
    pub(crate) async fn pour(
        self,
        delay: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<ReceivedCount, ConnectionError> {
        let mut sent = 0;
        let size = self.message_bytes;
        let stream = &*self.stream;
        SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX).map_err(ConnectionError::Broke)?;
        let buffer = &self.buffer;
        let sending = async {
            tokio::select! {
                // Check this first, because the flood may always be ready to send.
                biased;
                () = stop => shut_down(stream).map_err(ConnectionError::Broke),
                fault = flood(stream, buffer, size, delay, &mut sent) => Err(fault),
            }
        };
        let tally = match &self.returned {
            None => {
                sending.await?;
                returning(stream, &ReturnedBytes::default()).await?
            }
            Some(returned) => tokio::try_join!(sending, returning(stream, returned))?.1,
        };
        close(stream).await;
        let tally = ReceivedCount::parse(&tally);
        let expected = ReceivedCount { bytes: sent, messages: sent / u64::from(size) };
        if tally == expected { Ok(tally) } else { Err(ConnectionError::Short { sent, arrived: tally.bytes }) }
    }
}

/// Tells the server that nothing more follows.
fn shut_down(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).shutdown(Shutdown::Write)
}

/// Reads what there is, at least a byte. 0 at the end.
async fn read_some(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// Writes as much as there is room for, at least a byte.
async fn write_some(stream: &TcpStream, buffer: &[u8]) -> io::Result<usize> {
    loop {
        stream.writable().await?;
        match stream.try_write(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return written,
        }
    }
}

/// Sends messages, with a pause after each, until it fails or is dropped.
async fn flood(
    stream: &TcpStream,
    buffer: &[u8],
    message_bytes: u32,
    delay: Duration,
    sent: &mut u64,
) -> ConnectionError {
    let (mut turn, mut writes) = (0, 0);
    loop {
        let mut left = message_bytes as usize;
        while left > 0 {
            let part = left.min(buffer.len());
            match write_some(stream, &buffer[..part]).await {
                Ok(count) => (left, *sent, turn) = (left - count, *sent + count as u64, turn + count),
                Err(error) => return ConnectionError::Broke(error),
            }
            writes += 1;
            if turn >= BUFFER_BYTES || writes == WRITES_MAX {
                (turn, writes) = (0, 0);
                tokio::task::yield_now().await;
            }
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

/// Counts what the server sends until it ends. Returns the last bytes, which are its tally.
async fn returning(
    stream: &TcpStream,
    returned: &ReturnedBytes,
) -> Result<[u8; TALLY_BYTES], ConnectionError> {
    let (mut buffer, mut last) = (vec![0; BUFFER_BYTES], Vec::with_capacity(2 * TALLY_BYTES));
    loop {
        let count = patient(read_some(stream, &mut buffer)).await?;
        if count == 0 {
            let tally: Result<[u8; TALLY_BYTES], _> = last.try_into();
            return tally.map_err(|_| ConnectionError::HungUp);
        }
        returned.add(count);
        last.extend_from_slice(&buffer[count.saturating_sub(TALLY_BYTES)..count]);
        last.drain(..last.len().saturating_sub(TALLY_BYTES));
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;

    #[tokio::test]
    async fn little_of_a_flood_is_left_to_arrive_after_it_has_stopped() {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.set_recv_buffer_size(64 << 10).expect("set");
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bound");
        listener.listen(1).expect("listening");
        listener.set_nonblocking(true).expect("set");
        let listener = tokio::net::TcpListener::from_std(listener.into()).expect("a listener");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let (mut receiver, _) = listener.accept().await.expect("accepted");
        let flood = ClientConnection { stream, run: 0 }.flooding(1 << 20, None);
        // Nobody reads, so that the flood soon waits. Each turn lets it write more.
        let (stopped, is_stopped) = tokio::sync::oneshot::channel();
        let stop = async move {
            for _ in 0..10_000 {
                tokio::task::yield_now().await;
            }
            stopped.send(()).expect("somebody waits");
        };
        let receive = async {
            is_stopped.await.expect("stopped");
            let (mut bytes, mut buffer) = (0, vec![0; BUFFER_BYTES]);
            loop {
                match receiver.read(&mut buffer).await.expect("read") {
                    0 => break,
                    count => bytes += count as u64,
                }
            }
            let tally = ReceivedCount { bytes, messages: bytes >> 20 };
            receiver.write_all(&tally.to_bytes()).await.expect("written");
            drop(receiver);
        };
        let (poured, ()) = tokio::join!(flood.pour(Duration::ZERO, stop), receive);
        let arrived = poured.expect("all of it arrived").bytes;
        assert!((1..512 << 10).contains(&arrived), "{arrived} bytes were left");
    }
}
