//! A client that knows messages and nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    reader: BufReader<TcpStream>,
    /// The process and the secret of cancel requests.
    pub(crate) key: [u8; 8],
}

/// Bytes of strings that end with NUL.
pub(crate) fn strings(parts: &[&str]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes().chain([0])).collect()
}

/// The startup packet.
pub(crate) fn startup(version: i32, parts: &[&str]) -> Vec<u8> {
    let mut body = version.to_be_bytes().to_vec();
    body.extend(strings(parts));
    body.push(0);
    let mut packet = (body.len() as i32 + 4).to_be_bytes().to_vec();
    packet.extend(body);
    packet
}

/// A message of a client.
pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend((body.len() as i32 + 4).to_be_bytes());
    message.extend(body);
    message
}

impl Reply {
    /// A field of an error or notice.
    pub(crate) fn field(&self, kind: u8) -> Option<String> {
        let mut fields = self.body.split(|&b| b == 0);
        fields.find_map(|field| {
            (field.first() == Some(&kind)).then(|| String::from_utf8_lossy(&field[1..]).into_owned())
        })
    }

    /// The values of a row, as text.
    pub(crate) fn values(&self) -> Vec<Option<String>> {
        self.raw_values()
            .into_iter()
            .map(|value| value.map(|bytes| String::from_utf8(bytes).unwrap()))
            .collect()
    }

    pub(crate) fn raw_values(&self) -> Vec<Option<Vec<u8>>> {
        let mut rest = &self.body[2..];
        let mut values = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = i32::from_be_bytes(*length);
            let (value, after) = after.split_at(usize::try_from(length).unwrap_or(0));
            values.push((length >= 0).then(|| value.to_vec()));
            rest = after;
        }
        values
    }

    /// The text of a command tag, or of another message that is one string.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body[..self.body.len() - 1].to_vec()).unwrap()
    }

    /// The OIDs of the columns of a row description.
    pub(crate) fn types(&self) -> Vec<u32> {
        let mut rest = &self.body[2..];
        let mut types = Vec::new();
        while let Some(end) = rest.iter().position(|&b| b == 0) {
            let fields = &rest[end + 1..];
            types.push(u32::from_be_bytes(fields[6..10].try_into().unwrap()));
            rest = &fields[18..];
        }
        types
    }
}

impl Client {
    /// A client that has sent nothing.
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader, key: [0; 8] }
    }

    /// A client of a server without tokens.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let mut client = Self::open(address);
        client.send_raw(&startup(0x3_0000, &["user", "me", "database", "db"]));
        for reply in client.until_ready() {
            if reply.kind == b'K' {
                client.key = reply.body.try_into().unwrap();
            }
        }
        client
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, kind: u8, body: &[u8]) {
        self.send_raw(&message(kind, body));
    }

    /// A byte that belongs to no message.
    pub(crate) fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.reader.read_exact(&mut byte).unwrap();
        byte[0]
    }

    /// Whether nothing arrives for a moment.
    pub(crate) fn is_quiet(&mut self) -> bool {
        if !self.reader.buffer().is_empty() {
            return false;
        }
        let brief = Some(Duration::from_millis(20));
        self.stream.set_read_timeout(brief).unwrap();
        let quiet =
            matches!(self.reader.fill_buf(), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        self.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        quiet
    }

    /// The next message; `None` if the server has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Reply> {
        let mut head = [0; 5];
        match self.reader.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
            Err(_) => return None,
        }
        let length = i32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).ok()?;
        Some(Reply { kind: head[0], body })
    }

    /// All messages up to the server being ready.
    pub(crate) fn until_ready(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            let reply = self.receive().unwrap_or_else(|| panic!("the server has gone after {replies:?}"));
            let is_ready = reply.kind == b'Z';
            replies.push(reply);
            if is_ready {
                return replies;
            }
        }
    }

    /// What the server answers to a simple query.
    pub(crate) fn query(&mut self, sql: &str) -> Vec<Reply> {
        self.send(b'Q', &strings(&[sql]));
        self.until_ready()
    }

    /// The rows of a simple query.
    pub(crate) fn rows(&mut self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.query(sql).iter().filter(|reply| reply.kind == b'D').map(Reply::values).collect()
    }

    /// The code of a simple query's error, and the state of the transaction after it.
    pub(crate) fn error(&mut self, sql: &str) -> (String, u8) {
        let replies = self.query(sql);
        let error =
            replies.iter().find(|reply| reply.kind == b'E').unwrap_or_else(|| panic!("{sql}: {replies:?}"));
        (error.field(b'C').unwrap(), replies.last().unwrap().body[0])
    }

    pub(crate) fn parse(&mut self, name: &str, sql: &str, types: &[u32]) {
        let mut body = strings(&[name, sql]);
        body.extend((types.len() as i16).to_be_bytes());
        types.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
        self.send(b'P', &body);
    }

    /// All parameters in one format, and all columns in one.
    pub(crate) fn bind(&mut self, portal: &str, name: &str, values: &[(i16, Option<&[u8]>)], format: i16) {
        let mut body = strings(&[portal, name]);
        body.extend((values.len() as i16).to_be_bytes());
        values.iter().for_each(|(format, _)| body.extend(format.to_be_bytes()));
        body.extend((values.len() as i16).to_be_bytes());
        for (_, value) in values {
            body.extend(value.map_or(-1, |value| value.len() as i32).to_be_bytes());
            body.extend(value.unwrap_or_default());
        }
        body.extend(1i16.to_be_bytes());
        body.extend(format.to_be_bytes());
        self.send(b'B', &body);
    }

    pub(crate) fn describe(&mut self, kind: u8, name: &str) {
        let mut body = vec![kind];
        body.extend(strings(&[name]));
        self.send(b'D', &body);
    }

    pub(crate) fn execute(&mut self, portal: &str, rows: i32) {
        let mut body = strings(&[portal]);
        body.extend(rows.to_be_bytes());
        self.send(b'E', &body);
    }

    pub(crate) fn sync(&mut self) -> Vec<Reply> {
        self.send(b'S', &[]);
        self.until_ready()
    }
}

/// The kinds of messages, as text.
pub(crate) fn kinds(replies: &[Reply]) -> String {
    replies.iter().map(|reply| char::from(reply.kind)).collect()
}
