//! Tests against a name server that is slow, silent or wrong.

use std::time::Duration;

use tokio::time::timeout;

use super::*;
use crate::connection::tests::runtime;

#[path = "../../tests/common/names.rs"]
mod names;
use names::{NameReply, NameServer};

/// A name server, and a resolver that asks it.
struct Server {
    names: NameServer,
    resolver: Resolver,
}

impl Server {
    fn new(test: &str, names: &[(&'static str, NameReply)]) -> Self {
        let names = NameServer::new(test, names);
        let (conf, hosts) = (names.conf.0.clone(), names.hosts.0.clone());
        let resolver = Resolver::reading(conf, hosts, names.port);
        Self { names, resolver }
    }

    async fn resolve(&self, name: &str, lookups: &Lookups) -> Result<Vec<String>, String> {
        let found = self.resolver.resolve(name, 80, lookups).await;
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.iter().map(SocketAddr::to_string).collect())
    }

    fn questions(&self) -> Vec<String> {
        self.names.questions()
    }
}

const SOON: Duration = Duration::from_secs(60);

#[test]
fn dead_name_delays_no_other_name() {
    let healthy = ("healthy.test", NameReply::Address([192, 0, 2, 1]));
    let server = Server::new("dead", &[healthy, ("dead.test", NameReply::Nothing)]);
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
            // Once the dead name is being looked up.
            while server.questions().is_empty() {
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
fn lookups_are_shared_and_cached() {
    let server = Server::new("once", &[("a.test", NameReply::Address([192, 0, 2, 1]))]);
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
    let typo = ("typo.example.corp.test", NameReply::Address([10, 9, 9, 9]));
    let server = Server::new("absolute", &[typo, ("dest", NameReply::Address([192, 0, 2, 2]))]);
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
fn unanswered_name_is_not_retried_at_once() {
    let names = [("dead.test", NameReply::Nothing), ("failing.test", NameReply::Failure)];
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
    let server = Server::new("hosts", &[("filed.test", NameReply::Address([192, 0, 2, 1]))]);
    runtime().block_on(async {
        let asker = Lookups::of_one();
        assert_eq!(server.resolve("filed.test", &asker).await.unwrap(), ["192.0.2.9:80"]);
        assert!(server.questions().is_empty());
        std::fs::write(&server.names.hosts.0, "2001:db8::9 filed.test\n192.0.2.77 filed.test\n")
            .unwrap();
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
    let server = Server::new("half", &[("half.test", NameReply::HalfAddress([192, 0, 2, 3]))]);
    runtime().block_on(async {
        // The least time of a whole lookup when one family stays silent.
        let within = Duration::from_secs(1);
        let found = timeout(within, server.resolve("half.test", &Lookups::of_one())).await;
        assert_eq!(found.unwrap().unwrap(), ["192.0.2.3:80"]);
    });
}
