//! A server that answers early and resets while its client still uploads: the answer arrives, and
//! then the reset.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use tradewind_desired::Connections;
use tradewind_net::tcp;
use tradewind_units::Bytes;

use crate::support::{
    Chain, Running, content, destination, hash, loopback, patient, relay_config, reset, wait_for,
};

/// The number of sessions of each kind.
const SESSIONS: usize = 20;

/// The bytes that the server reads before it answers.
const READ_FIRST: usize = 64 << 10;

/// Starts a server that answers each upload with `answer` long before its end, and closes with the
/// rest unread.
fn early_answerer(answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            std::thread::spawn(move || {
                patient(&stream);
                stream.read_exact(&mut [0]).unwrap();
                stream.write_all(b"?").unwrap();
                stream.read_exact(&mut [0; READ_FIRST]).unwrap();
                stream.write_all(&answer).unwrap();
                wait_for("more of the upload", || tcp::unread(&stream).unwrap() > Bytes::ZERO);
                // Its answer must have arrived at its peer: a close empties its own queue.
                wait_for("the peer", || tcp::unacknowledged(&stream).unwrap() == Bytes::ZERO);
                drop(stream);
            });
        }
    });
    address
}

/// Uploads until that fails, and then reads the received bytes; calls `ready` once the session is
/// open.
fn upload(mut stream: TcpStream, ready: impl Fn()) -> Vec<u8> {
    stream.write_all(b"!").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    ready();
    let block = content(READ_FIRST);
    let error = loop {
        if let Err(error) = stream.write_all(&block) {
            break error;
        }
    };
    let kind = error.kind();
    assert!(matches!(kind, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
    let mut answer = Vec::new();
    // The write has got the error already.
    let _read = stream.read_to_end(&mut answer);
    answer
}

fn assert_answered(chain: &Chain, answer: &[u8], ready: impl Fn()) {
    let all = || chain.relays.iter().chain([&chain.gateway]);
    let is_answered = |_: &usize| {
        let received = upload(chain.connect(), &ready);
        all().for_each(|one| wait_for("the session's end", || one.handle.snapshot().open == 0));
        received == answer
    };
    let answered = (0..SESSIONS).filter(is_answered).count();
    assert_eq!(answered, SESSIONS, "clients that saw the answer");
    for one in all() {
        let seen = one.handle.snapshot();
        assert_eq!(seen.outcome("broken"), SESSIONS as u64, "{seen:?}");
    }
}

#[test]
fn early_answer_arrives_directly() {
    let answer = content(300);
    let chain = Chain::new(0, early_answerer(answer.clone()));
    assert_answered(&chain, &answer, || {});
}

#[test]
fn early_answer_arrives_over_three_legs() {
    for length in [300, 100_000] {
        let answer = content(length);
        let chain = Chain::new(3, early_answerer(answer.clone()));
        assert_answered(&chain, &answer, || {});
    }
}

#[test]
fn early_answer_arrives_over_striped_legs() {
    let answer = content(100_000);
    let striping = || {
        let mut config = relay_config();
        config.leg.dial.connections = Connections::fixed(4).unwrap();
        config.leg.dial.stripe_after = Bytes::new(0);
        config.leg.dial.send_buffer = Some(Bytes::new(1 << 16));
        config
    };
    let relays: Vec<_> = (0..3).map(|_| Running::relay(&striping())).collect();
    let chain = Chain::of(relays, early_answerer(answer.clone()));
    assert_answered(&chain, &answer, || {
        let striped = |relay: usize| chain.relays[relay].handle.snapshot().striped_connections;
        wait_for("both legs to be striped", || striped(0) == 4 && striped(2) == 4);
    });
}

/// Writes until the path takes no more, resets, and returns the bytes that had arrived at the next
/// host by then.
fn fill_and_reset(mut stream: TcpStream) -> Vec<u8> {
    let block = content(MAX_SENT);
    stream.set_nonblocking(true).unwrap();
    let (mut written, mut idle_rounds) = (0, 0);
    while idle_rounds < 20 && written < block.len() {
        match stream.write(&block[written..]) {
            Ok(count) => (written, idle_rounds) = (written + count, 0),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                idle_rounds += 1;
                std::thread::sleep(Duration::from_millis(25));
            }
        }
    }
    assert!(written < block.len(), "all of it found room");
    let left = usize::try_from(tcp::unacknowledged(&stream).unwrap().as_u64()).unwrap();
    reset(stream);
    block[..written - left].to_vec()
}

/// Reads until the reset, and compares with the bytes in flight by then.
fn assert_has(mut stream: TcpStream, sent: &[u8]) {
    let mut received = Vec::new();
    let ended = stream.read_to_end(&mut received);
    assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let common = received.len().min(sent.len());
    assert!(hash(&received[..common]) == hash(&sent[..common]));
    assert!(received.len() >= sent.len(), "{} of {} bytes", received.len(), sent.len());
}

/// More than all buffers of the path hold.
const MAX_SENT: usize = 100 << 20;

/// Each side of a session in which every buffer is full resets; the other reads only then.
#[test]
fn in_flight_data_arrives_before_the_reset() {
    let (to, served) = destination(fill_and_reset);
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    stream.write_all(b"go").unwrap();
    let sent = served.join().unwrap();
    assert_has(stream, &sent);

    let (sent, is_sent) = mpsc::channel::<Vec<u8>>();
    let (to, served) = destination(move |stream| assert_has(stream, &is_sent.recv().unwrap()));
    let chain = Chain::new(2, to);
    sent.send(fill_and_reset(chain.connect())).unwrap();
    served.join().unwrap();
}
