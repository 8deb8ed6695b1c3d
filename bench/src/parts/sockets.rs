//! The plain socket: the time to move the bytes alone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use super::{TransferResult, print};
use crate::Result;

/// Bytes of one read or write.
const CALL_BYTES: usize = 1 << 20;

pub(super) fn serve(bytes: u64) -> Result<()> {
    // All bytes are in memory and each is sent once, as for a table.
    let mut data = vec![0u8; usize::try_from(bytes)?];
    for (word, at) in data.chunks_mut(8).zip(0u64..) {
        word.copy_from_slice(&at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[..word.len()]);
    }
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    print(&listener.local_addr()?.port())?;
    loop {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        // The reader sends a byte when it starts its clock, on the open connection.
        socket.read_exact(&mut [0])?;
        data.chunks(CALL_BYTES).try_for_each(|chunk| socket.write_all(chunk))?;
    }
}

pub(super) fn read(port: u16) -> Result<TransferResult> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_nodelay(true)?;
    let mut buffer = vec![0; CALL_BYTES];
    let began = Instant::now();
    socket.write_all(&[1])?;
    let mut bytes = 0;
    loop {
        match socket.read(&mut buffer)? {
            0 => return TransferResult::since(began, 0, bytes),
            read => bytes += read as u64,
        }
    }
}
