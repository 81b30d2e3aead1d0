//! A name server on loopback that may be silent or slow, and files that name it.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part")]

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::mpsc;

/// The type of a question for addresses of IPv4.
const A: u16 = 1;

/// A file of this process, removed with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tradewind-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// The answer of a server to a question for addresses of IPv4.
#[derive(Clone, Copy)]
pub enum NameReply {
    /// This address, and none of IPv6.
    Address([u8; 4]),
    /// The same, and no answer for IPv6.
    HalfAddress([u8; 4]),
    Nothing,
    NoSuchName,
    Failure,
}

/// A name server, and the files that name it.
pub struct NameServer {
    asked: mpsc::Receiver<(String, u16)>,
    pub port: u16,
    pub hosts: Scratch,
    pub conf: Scratch,
}

impl NameServer {
    /// Starts a server of these names; `test` distinguishes the files of several in one process.
    pub fn new(test: &str, names: &[(&'static str, NameReply)]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let names: BTreeMap<&str, NameReply> = names.iter().copied().collect();
        let (asks, asked) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((count, from)) = socket.recv_from(&mut buffer) {
                let query = &buffer[..count];
                let (name, end) = name_of(query);
                let kind = u16::from_be_bytes([query[end], query[end + 1]]);
                if asks.send((name.clone(), kind)).is_err() {
                    return;
                }
                let reply = names.get(name.as_str()).copied().unwrap_or(NameReply::NoSuchName);
                if let Some(answer) = answer(&query[..end + 4], kind, reply) {
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        let conf = "search corp.test\nnameserver 127.0.0.1\noptions timeout:4 attempts:2 ndots:3\n";
        let conf = Scratch::new(&format!("{test}-conf"), conf);
        let hosts = Scratch::new(&format!("{test}-hosts"), "192.0.2.9 Filed.test other\n");
        Self { asked, port, hosts, conf }
    }

    /// Returns the names whose addresses of IPv4 were queried since the last call.
    pub fn questions(&self) -> Vec<String> {
        let v4 = self.asked.try_iter().filter(|(_, kind)| *kind == A);
        v4.map(|(name, _)| name).collect()
    }
}

/// Returns the name in a query, in lower case, and the position of its end.
fn name_of(query: &[u8]) -> (String, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_ascii_lowercase());
        at = end;
    }
    (labels.join("."), at + 1)
}

/// Returns the answer to a `query` that ends with its question; `None` is silence.
fn answer(query: &[u8], kind: u16, reply: NameReply) -> Option<Vec<u8>> {
    let (code, address) = match reply {
        NameReply::Nothing => return None,
        NameReply::HalfAddress(_) if kind != A => return None,
        NameReply::Address(address) | NameReply::HalfAddress(address) => {
            (0, (kind == A).then_some(address))
        }
        NameReply::NoSuchName => (3, None),
        NameReply::Failure => (2, None),
    };
    let mut answer = query.to_vec();
    answer[2..4].copy_from_slice(&[0x81, 0x80 | code]);
    answer[4..12].copy_from_slice(&[0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    if let Some(address) = address {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0, 0, 4]);
        answer.extend(address);
    }
    Some(answer)
}
