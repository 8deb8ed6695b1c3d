//! Circuits of two nodes over the one connection that they have.
//!
//! Each message is its length (4 bytes, little-endian) and its bytes, as over a relay (`circuit/header.rs`);
//! here all arrive in order. Who has opened the connection is node 0, the other one node 1.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::Shared;
use crate::error::RelayError;

/// Which end of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The one that opened it.
    Opener,
    /// The one that accepted it.
    Acceptor,
}

impl End {
    /// This node's number.
    pub(super) fn node(self) -> u32 {
        match self {
            Self::Opener => 0,
            Self::Acceptor => 1,
        }
    }

    /// The other's.
    pub(super) fn peer(self) -> u32 {
        1 - self.node()
    }
}

/// Bytes of a message's length.
const LENGTH_BYTES: usize = 4;
/// Small messages come many a read; of a large one no more than this is ever copied.
const AHEAD_BYTES: usize = 8 << 10;
/// So much is handed to the system at a time: who becomes urgent meanwhile waits for no more.
const WRITE_BYTES: usize = 64 << 10;

/// Takes all that comes, so that nobody has to wait for room.
pub(super) async fn receive(
    read: impl AsyncRead + Unpin,
    peer: u32,
    message_bytes_max: usize,
    shared: Arc<Shared>,
) {
    let mut read = BufReader::with_capacity(AHEAD_BYTES, read);
    let error = loop {
        match message(&mut read, peer, message_bytes_max).await {
            Ok(bytes) => shared.with(|table| table.received(peer, &bytes)),
            Err(error) => break error,
        }
    };
    shared.with(|table| table.fail(error));
}

async fn message(
    read: &mut (impl AsyncRead + Unpin),
    peer: u32,
    message_bytes_max: usize,
) -> Result<Bytes, RelayError> {
    let lost = |error: io::Error| RelayError::Lost { node: peer, kind: Some(error.kind()), by: None };
    let bytes = read.read_u32_le().await.map_err(lost)? as usize;
    if bytes > message_bytes_max {
        return Err(RelayError::Malformed { node: peer, reason: "a message larger than any" });
    }
    let mut message = Vec::with_capacity(bytes);
    while message.len() < bytes {
        let missing = (bytes - message.len()) as u64;
        if (&mut *read).take(missing).read_buf(&mut message).await.map_err(lost)? == 0 {
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
    }
    Ok(message.into())
}

/// Sends what there is, for ever.
pub(super) async fn send(mut write: impl AsyncWrite + Unpin, peer: u32, shared: Arc<Shared>) {
    let mut messages: Vec<([u8; LENGTH_BYTES], Bytes)> = Vec::new();
    loop {
        messages.clear();
        let mut next = shared.with(|table| table.next_message());
        if next.is_none() {
            shared.outgoing().await;
            continue;
        }
        let mut bytes = 0;
        while let Some((_, message)) = next {
            bytes += LENGTH_BYTES + message.len();
            messages.push(((message.len() as u32).to_le_bytes(), message));
            next = if bytes < WRITE_BYTES { shared.with(|table| table.another_message()) } else { None };
        }
        if let Err(error) = write_all(&mut write, &messages).await {
            let lost = RelayError::Lost { node: peer, kind: Some(error.kind()), by: None };
            shared.with(|table| table.fail(lost));
            return;
        }
    }
}

async fn write_all(
    write: &mut (impl AsyncWrite + Unpin),
    messages: &[([u8; LENGTH_BYTES], Bytes)],
) -> io::Result<()> {
    let slices = messages.iter().flat_map(|(length, bytes)| [IoSlice::new(length), IoSlice::new(bytes)]);
    let mut slices: Vec<_> = slices.collect();
    let mut rest = slices.as_mut_slice();
    while !rest.is_empty() {
        match write.write_vectored(rest).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut rest, written),
        }
    }
    write.flush().await
}
