//! Against a name server that is as bad as they come.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::mpsc;
use std::time::Duration;

use tokio::time::timeout;

use super::*;
use crate::connection::tests::runtime;

/// Addresses of IPv4, as a question asks for them.
const A: u16 = 1;

/// A file of this process's own, gone with it.
struct Scratch(PathBuf);

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

/// What a server says to a question for addresses of IPv4.
#[derive(Clone, Copy)]
enum Says {
    /// This address, and none of IPv6.
    Address([u8; 4]),
    /// The same, and is silent about IPv6.
    HalfAddress([u8; 4]),
    Nothing,
    NoSuchName,
    Failure,
}

/// A name server on loopback, the questions that it was asked, and files that name it.
struct Server {
    asked: mpsc::Receiver<(String, u16)>,
    resolver: Resolver,
    hosts: Scratch,
    _conf: Scratch,
}

impl Server {
    fn new(test: &str, names: &[(&'static str, Says)]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let names: BTreeMap<&str, Says> = names.iter().copied().collect();
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
                let says = names.get(name.as_str()).copied().unwrap_or(Says::NoSuchName);
                if let Some(answer) = answer(&query[..end + 4], kind, says) {
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        let conf = "search corp.test\nnameserver 127.0.0.1\noptions timeout:1 attempts:2 ndots:3\n";
        let conf = Scratch::new(&format!("{test}-conf"), conf);
        let hosts = Scratch::new(&format!("{test}-hosts"), "192.0.2.9 Filed.test other\n");
        let resolver = Resolver::reading(conf.0.clone(), hosts.0.clone(), port);
        Self { asked, resolver, hosts, _conf: conf }
    }

    async fn resolve(&self, name: &str, lookups: &Lookups) -> Result<Vec<String>, String> {
        let found = self.resolver.resolve(name, 80, lookups).await;
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.iter().map(SocketAddr::to_string).collect())
    }

    /// The names whose addresses of IPv4 it was asked for since the last call.
    fn questions(&self) -> Vec<String> {
        let v4 = self.asked.try_iter().filter(|(_, kind)| *kind == A);
        v4.map(|(name, _)| name).collect()
    }
}

/// The name that a query asks for, in lower case, and where it ends.
fn name_of(query: &[u8]) -> (String, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_ascii_lowercase());
        at = end;
    }
    (labels.join("."), at + 1)
}

/// The answer to a `query` that ends with its question; `None` is silence.
fn answer(query: &[u8], kind: u16, says: Says) -> Option<Vec<u8>> {
    let (code, address) = match says {
        Says::Nothing => return None,
        Says::HalfAddress(_) if kind != A => return None,
        Says::Address(address) | Says::HalfAddress(address) => (0, (kind == A).then_some(address)),
        Says::NoSuchName => (3, None),
        Says::Failure => (2, None),
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

const SOON: Duration = Duration::from_secs(60);

#[test]
fn dead_name_delays_no_other_name() {
    let healthy = ("healthy.test", Says::Address([192, 0, 2, 1]));
    let server = Server::new("dead", &[healthy, ("dead.test", Says::Nothing)]);
    runtime().block_on(async {
        let asker = Lookups::of_one();
        let dead = async {
            let asks = (0..30).map(|_| server.resolve("dead.test", &asker));
            let mut set = Vec::new();
            for ask in asks {
                set.push(Box::pin(ask));
            }
            for ask in set {
                ask.await.unwrap_err();
            }
        };
        let healthy = async {
            // Once the dead one is being asked for.
            while server.asked.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            server.resolve("healthy.test", &asker).await
        };
        tokio::select! {
            biased;
            found = healthy => assert_eq!(found.unwrap(), ["192.0.2.1:80"]),
            () = dead => panic!("the healthy name waited for the dead one"),
        }
    });
}

#[test]
fn name_is_asked_for_once_by_many_and_then_kept() {
    let server = Server::new("once", &[("a.test", Says::Address([192, 0, 2, 1]))]);
    runtime().block_on(async {
        let asker = Lookups::of_one();
        let ask = || server.resolve("a.test", &asker);
        let (first, second, third) = tokio::join!(ask(), ask(), ask());
        for found in [first, second, third, ask().await] {
            assert_eq!(found.unwrap(), ["192.0.2.1:80"]);
        }
        assert_eq!(server.questions(), ["a.test"]);
    });
}

#[test]
fn names_are_absolute() {
    let typo = ("typo.example.corp.test", Says::Address([10, 9, 9, 9]));
    let server = Server::new("absolute", &[typo, ("dest", Says::Address([192, 0, 2, 2]))]);
    runtime().block_on(async {
        let asker = Lookups::of_one();
        let why = server.resolve("typo.example", &asker).await.unwrap_err();
        assert_eq!(why, "no such name");
        assert_eq!(server.resolve("dest", &asker).await.unwrap(), ["192.0.2.2:80"]);
        let asked = server.questions();
        assert!(!asked.is_empty() && asked.iter().all(|name| !name.contains("corp")), "{asked:?}");
    });
}

#[test]
fn name_without_an_answer_is_not_asked_for_again_at_once() {
    let names = [("dead.test", Says::Nothing), ("failing.test", Says::Failure)];
    let server = Server::new("again", &names);
    runtime().block_on(async {
        let asker = Lookups::of_one();
        for name in ["dead.test", "failing.test", "missing.test"] {
            let why = server.resolve(name, &asker).await.unwrap_err();
            assert!(!server.questions().is_empty(), "{name}");
            assert_eq!(server.resolve(name, &asker).await.unwrap_err(), why);
            assert!(server.questions().is_empty(), "{name}");
        }
        assert!(asker.rest());
    });
}

#[test]
fn hosts_file_comes_first_and_is_read_again() {
    let server = Server::new("hosts", &[("filed.test", Says::Address([192, 0, 2, 1]))]);
    runtime().block_on(async {
        let asker = Lookups::of_one();
        assert_eq!(server.resolve("filed.test", &asker).await.unwrap(), ["192.0.2.9:80"]);
        assert!(server.questions().is_empty());
        std::fs::write(&server.hosts.0, "2001:db8::9 filed.test\n192.0.2.77 filed.test\n").unwrap();
        let again = async {
            loop {
                let found = server.resolve("filed.test", &asker).await.unwrap();
                if found != ["192.0.2.9:80"] {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = timeout(SOON, again).await.unwrap();
        assert_eq!(found, ["[2001:db8::9]:80", "192.0.2.77:80"]);
    });
}

#[test]
fn family_that_is_silent_holds_up_no_other() {
    let server = Server::new("half", &[("half.test", Says::HalfAddress([192, 0, 2, 3]))]);
    runtime().block_on(async {
        // What a whole lookup takes at least when one family stays silent.
        let within = Duration::from_secs(1);
        let found = timeout(within, server.resolve("half.test", &Lookups::of_one())).await;
        assert_eq!(found.unwrap().unwrap(), ["192.0.2.3:80"]);
    });
}
