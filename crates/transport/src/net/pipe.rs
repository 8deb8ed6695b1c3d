//! Frames over something that is not a socket of this connection, such as a tunnel over other nodes.

use std::io;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use lightship_wire::frame::FrameHeader;

use crate::proto::Frame;
use crate::{Result, TransportError};

/// A header and the part of the payload that follows it.
pub type FramePart = (FrameHeader, Bytes);
/// Frames that arrive, in order.
type FrameStream = Pin<Box<dyn Stream<Item = io::Result<FramePart>> + Send>>;
/// Takes frames to send, and keeps their order.
type FrameSink = Pin<Box<dyn Sink<FramePart, Error = io::Error> + Send>>;

/// Carries the frames of a connection in both directions. Dropping the stream and the sink ends the connection.
pub struct FramePipe {
    pub(super) read: PipeReader,
    pub(super) write: PipeWriter,
}

impl FramePipe {
    /// A pipe whose frames may have payloads of at most `part_bytes_max` bytes; larger payloads are sent in parts.
    pub fn new(
        frames: impl Stream<Item = io::Result<FramePart>> + Send + 'static,
        sink: impl Sink<FramePart, Error = io::Error> + Send + 'static,
        part_bytes_max: u32,
    ) -> Self {
        let read = PipeReader { frames: Box::pin(frames), part: Bytes::new() };
        let part_bytes_max = part_bytes_max.max(1) as usize;
        let write = PipeWriter { sink: Some(Box::pin(sink)), part_bytes_max };
        Self { read, write }
    }
}

/// The receiving direction of a pipe.
pub(super) struct PipeReader {
    frames: FrameStream,
    /// What follows the last header.
    part: Bytes,
}

impl PipeReader {
    /// The next header; `None` at the end.
    pub(super) async fn header(&mut self) -> Result<Option<FrameHeader>> {
        let Some(frame) = self.frames.next().await else { return Ok(None) };
        let (header, part) = frame?;
        if part.len() != header.part_bytes as usize {
            return Err(TransportError::Protocol(format!(
                "{} bytes after a header that states {}",
                part.len(),
                header.part_bytes
            )));
        }
        self.part = part;
        Ok(Some(header))
    }

    /// What follows the last header.
    pub(super) fn part(&mut self) -> Bytes {
        std::mem::take(&mut self.part)
    }
}

/// The sending direction of a pipe.
pub(super) struct PipeWriter {
    /// `None` once it is closed.
    sink: Option<FrameSink>,
    part_bytes_max: usize,
}

impl PipeWriter {
    /// Sends a frame, in parts if it is large. `taken` is called after each part.
    pub(super) async fn send(&mut self, frame: &Frame, taken: impl Fn()) -> io::Result<()> {
        let header = FrameHeader::decode(&frame.header).map_err(io::Error::other)?;
        let mut left = header.part_bytes as usize;
        let mut part = BytesMut::with_capacity(left.min(self.part_bytes_max));
        for mut piece in frame.pieces() {
            while !piece.is_empty() {
                if part.len() == self.part_bytes_max {
                    left -= part.len();
                    self.send_part(header, part.split().freeze()).await?;
                    taken();
                    part.reserve(left.min(self.part_bytes_max));
                }
                let room = piece.len().min(self.part_bytes_max - part.len());
                let (now, later) = piece.split_at(room);
                part.extend_from_slice(now);
                piece = later;
            }
        }
        self.send_part(header, part.freeze()).await?;
        taken();
        Ok(())
    }

    async fn send_part(&mut self, header: FrameHeader, part: Bytes) -> io::Result<()> {
        let part_bytes = part.len() as u32;
        self.sink()?.feed((FrameHeader { part_bytes, ..header }, part)).await
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        self.sink()?.flush().await
    }

    fn sink(&mut self) -> io::Result<&mut FrameSink> {
        self.sink.as_mut().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Ends this direction, after all frames that were sent.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        match self.sink.take() {
            Some(mut sink) => sink.close().await,
            None => Ok(()),
        }
    }
}
