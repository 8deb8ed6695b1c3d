//! Entry points of the fuzz targets; not part of the crate's interface.

use bytes::Bytes;
use lightship_wire::frame::{FrameHeader, FrameKind};

use crate::frame::RoutedFrame;

/// A frame of another node: whether it has accepted the tunnel, the tunnel, the frame's number, whether it ends
/// the tunnel, and the size of its payload.
pub type Frame = (bool, u16, u8, bool, u16);

/// Receives frames of tunnels from another node, while this node has tunnels of its own.
pub fn tunnels(frames: &[Frame]) {
    let frame = |(accepted, tunnel, number, ends, bytes): Frame| {
        let kind = if ends { FrameKind::Close } else { FrameKind::Message };
        let part = Bytes::from(vec![0; bytes.into()]);
        let header = FrameHeader::whole(kind, 0, 1, 0, &part);
        RoutedFrame {
            accepted,
            tunnel: tunnel.into(),
            number: number.into(),
            ..RoutedFrame::new(header, part)
        }
    };
    crate::tunnel::fuzz(frames.iter().copied().map(frame));
}
