//! Users of SOCKS5 and HTTP proxies, by hand and by curl.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use tradewind_config::users::{Hashed, User};
use tradewind_desired::Route;
use tradewind_gateway::Gateway;

use super::access_log::{Folder, access_log_in};
use crate::support::{Running, connect, echo, gateway_config, loopback, relay_config, route_over};

/// A gateway over a relay with one user, `ann`, whose password is `correct horse`.
struct Proxy {
    gateway: Running,
    _relay: Vec<Running>,
}

impl Proxy {
    fn new() -> Self {
        let relay = vec![Running::relay(&relay_config())];
        let mut config = gateway_config(route_over(&relay));
        config.socks5 = vec![loopback()];
        config.connect = vec![loopback()];
        config.user = vec![user("ann", b"correct horse")];
        Self { gateway: Running::gateway(&config), _relay: relay }
    }

    fn socks5(&self) -> SocketAddr {
        self.gateway.handle.local_addrs()[0]
    }

    fn connect(&self) -> SocketAddr {
        self.gateway.handle.local_addrs()[1]
    }
}

fn user(name: &str, password: &[u8]) -> User {
    User { name: name.to_owned(), password: Hashed::cheap(password).unwrap() }
}

/// Speaks SOCKS5 with a name and a password, and returns the gateway's answer to them.
fn authenticate(stream: &mut TcpStream, name: &str, password: &str) -> Vec<u8> {
    let (name_bytes, password_bytes) = (name.len() as u8, password.len() as u8);
    let message = [&[5, 2, 0, 2, 1, name_bytes], name.as_bytes(), &[password_bytes]].concat();
    stream.write_all(&[&message, password.as_bytes()].concat()).unwrap();
    let mut answer = vec![0; 4];
    stream.read_exact(&mut answer).unwrap();
    answer
}

#[test]
fn socks5_passwords() {
    let (proxy, to) = (Proxy::new(), echo());
    for _ in 0..2 {
        let mut stream = connect(proxy.socks5());
        assert_eq!(authenticate(&mut stream, "ann", "correct horse"), [5, 2, 1, 0]);
        let SocketAddr::V4(v4) = to else { panic!() };
        let request = [&[5, 1, 0, 1][..], &v4.ip().octets(), &to.port().to_be_bytes()].concat();
        stream.write_all(&[&request[..], b"hi"].concat()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!((answer[1], &answer[10..]), (0, &b"hi"[..]));
    }
    for (name, password) in [("ann", "wrong"), ("eve", "correct horse"), ("", "")] {
        let mut stream = connect(proxy.socks5());
        assert_eq!(authenticate(&mut stream, name, password), [5, 2, 1, 1], "{name}");
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "closed");
    }
    let mut stream = connect(proxy.socks5());
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [5, 0xff], "without a password");
    crate::support::wait_for("the outcomes", || {
        proxy.gateway.handle.snapshot().outcome("not_let_in") == 3
    });
}

#[test]
fn lines_of_the_access_log_name_the_user() {
    let (folder, to) = (Folder::new("users"), echo());
    let mut config = gateway_config(Route::Direct);
    config.access_log = access_log_in(&folder, "gateway");
    (config.socks5, config.connect) = (vec![loopback()], vec![loopback()]);
    config.user = vec![user("ann", b"correct horse")];
    let gateway = Running::gateway(&config);
    let listener = |index: usize| gateway.handle.local_addrs()[index];
    let mut stream = connect(listener(0));
    assert_eq!(authenticate(&mut stream, "ann", "correct horse"), [5, 2, 1, 0]);
    let SocketAddr::V4(v4) = to else { panic!() };
    let request = [&[5, 1, 0, 1][..], &v4.ip().octets(), &to.port().to_be_bytes()].concat();
    stream.write_all(&request).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    drop(stream);
    assert_eq!(folder.lines("gateway", 1)[0]["user"], "ann");
    let mut stream = connect(listener(1));
    // `ann:correct horse`.
    let shown = "Proxy-Authorization: Basic YW5uOmNvcnJlY3QgaG9yc2U=";
    stream.write_all(format!("CONNECT {to} HTTP/1.1\r\n{shown}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(stream);
    assert_eq!(folder.lines("gateway", 2)[1]["user"], "ann");
}

#[test]
fn users_reload_keeps_sessions() {
    let mut config = gateway_config(Route::Direct);
    config.socks5 = vec![loopback()];
    config.user = vec![user("ann", b"correct horse")];
    let gateway = Gateway::bind(&config).unwrap();
    let reloader = gateway.reloader();
    let gateway = Running::gateway_of(gateway);
    let log_in = |name, password| authenticate(&mut connect(gateway.address()), name, password);
    let (right, wrong) = ([5, 2, 1, 0], [5, 2, 1, 1]);
    let mut open = connect(gateway.address());
    assert_eq!(authenticate(&mut open, "ann", "correct horse"), right);
    config.user = vec![user("ann", b"new"), user("bob", b"two")];
    reloader.apply(&config).unwrap();
    assert_eq!(log_in("ann", "correct horse"), wrong);
    assert_eq!((log_in("ann", "new"), log_in("bob", "two")), (right.to_vec(), right.to_vec()));
    let SocketAddr::V4(to) = echo() else { panic!() };
    let request = [&[5, 1, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes()].concat();
    open.write_all(&[&request[..], b"hi"].concat()).unwrap();
    let mut answer = [0; 12];
    open.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[10..], b"hi");
    config.user.clear();
    reloader.apply(&config).unwrap();
    let mut stream = connect(gateway.address());
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [5, 0], "everybody may, on loopback");
}

#[test]
fn reload_cannot_remove_all_users() {
    let mut config = gateway_config(Route::Direct);
    config.connect = vec!["0.0.0.0:0".parse().unwrap()];
    config.expose = true;
    config.user = vec![user("ann", b"one")];
    let gateway = Gateway::bind(&config).unwrap();
    let reloader = gateway.reloader();
    // Keys that a reload does not apply change nothing.
    config.expose_without_password = true;
    config.connect = vec![loopback()];
    config.user.clear();
    let line = reloader.apply(&config).unwrap_err().to_string();
    assert!(line.starts_with("configuration, `user`: missing, and a proxy"), "{line}");
    config.user = vec![user("bob", b"two")];
    reloader.apply(&config).unwrap();
}

#[test]
fn http_proxy_passwords() {
    let (proxy, to) = (Proxy::new(), echo());
    let ask = |first: &str, fields: &str| {
        let mut stream = connect(proxy.connect());
        write!(stream, "{first} HTTP/1.1\r\n{fields}\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        let mut rest = String::new();
        if answer[9..] != *b"200" {
            stream.read_to_string(&mut rest).unwrap();
        }
        (String::from_utf8(answer[9..].to_vec()).unwrap(), rest)
    };
    let right = "Proxy-Authorization: Basic YW5uOmNvcnJlY3QgaG9yc2U=\r\n";
    let wrong = "Proxy-Authorization: Basic YW5uOndyb25n\r\n";
    let tunnel = format!("CONNECT {to}");
    assert_eq!(ask(&tunnel, right).0, "200");
    for (first, fields) in [
        (tunnel.as_str(), ""),
        (&tunnel, wrong),
        (&tunnel, "Authorization: Basic YW5uOmNvcnJlY3QgaG9yc2U=\r\n"),
        (&format!("GET http://{to}/"), wrong),
    ] {
        let (status, rest) = ask(first, fields);
        assert_eq!(status, "407", "{first} {fields}");
        assert!(rest.contains("\r\nProxy-Authenticate: Basic realm="), "{rest}");
    }
    // Each request of a connection must authenticate, not only the first.
    let mut stream = connect(proxy.connect());
    let get = format!("HEAD http://{}/ HTTP/1.1\r\n", crate::http_proxy::empty_server());
    write!(stream, "{get}{right}\r\n{get}\r\n").unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let statuses: Vec<_> = answers.matches("HTTP/1.1 ").collect();
    assert!(answers.starts_with("HTTP/1.1 204 ") && answers.contains("HTTP/1.1 407 "), "{answers}");
    assert_eq!(statuses.len(), 2, "{answers}");
}

#[test]
fn curl_passwords_over_both_proxies() {
    let (proxy, server) = (Proxy::new(), crate::http_proxy::empty_server());
    let curl = |password: &str, arguments: &[&str]| {
        let status = Command::new("curl")
            .env_clear()
            .args(["--silent", "--fail", "--noproxy", "", "--max-time", "60"])
            .args(["--proxy-user", &format!("ann:{password}")])
            .args(arguments)
            .arg(format!("http://{server}/"))
            .status()
            .expect("curl is there: `make setup` installs it");
        status.code().unwrap()
    };
    let socks = format!("socks5h://{}", proxy.socks5());
    let http = format!("http://{}", proxy.connect());
    for arguments in [vec!["-x", &socks], vec!["-x", &http], vec!["-p", "-x", &http]] {
        assert_eq!(curl("correct horse", &arguments), 0, "{arguments:?}");
        assert_ne!(curl("wrong", &arguments), 0, "{arguments:?}");
    }
}
