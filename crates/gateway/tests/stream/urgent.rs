//! Urgent bytes (`MSG_OOB`): each arrives at its place among the others.

use std::io::{Read, Write};
use std::net::{Shutdown as Half, TcpStream};

use socket2::SockRef;
use tradewind_desired::Connections;
use tradewind_units::Bytes;

use crate::support::{
    Chain, Running, content, destination, digest, echo, hash, relay_config, wait_for,
};

fn send_urgently(stream: &TcpStream, byte: u8) {
    assert_eq!(SockRef::from(stream).send_out_of_band(&[byte]).unwrap(), 1);
}

/// Sends parts of `bytes`, the last byte of each urgent, and the end.
fn send_in_parts(stream: &mut TcpStream, bytes: &[u8]) {
    for part in bytes.chunks(700_001) {
        let (urgent, before) = part.split_last().unwrap();
        stream.write_all(before).unwrap();
        send_urgently(stream, *urgent);
    }
    stream.shutdown(Half::Write).unwrap();
}

/// Nothing follows until all has arrived: bytes behind the urgent byte do not wait for more.
#[test]
fn urgent_byte_arrives_in_line() {
    for relays in [0, 1, 3] {
        let (to, served) = destination(|mut stream| {
            let mut received = [0; 7];
            stream.read_exact(&mut received).unwrap();
            stream.write_all(b"uvw").unwrap();
            send_urgently(&stream, b'?');
            stream.write_all(b"xyz").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            received
        });
        let chain = Chain::new(relays, to);
        let mut stream = chain.connect();
        stream.write_all(b"abc").unwrap();
        send_urgently(&stream, b'!');
        stream.write_all(b"def").unwrap();
        SockRef::from(&stream).set_out_of_band_inline(true).unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"uvw?xyz");
        stream.write_all(b".").unwrap();
        assert_eq!(&served.join().unwrap(), b"abc!def");
    }
}

#[test]
fn urgent_bytes_among_bulk_arrive_in_line() {
    const LENGTH: usize = 8_000_000;
    for relays in [0, 1] {
        let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
        let chain = Chain::new(relays, to);
        let mut stream = chain.connect();
        send_in_parts(&mut stream, &content(LENGTH));
        assert_eq!(served.join().unwrap(), (LENGTH, hash(&content(LENGTH))));
        if relays == 0 {
            assert!(chain.gateway.handle.snapshot().bytes_spliced > 0, "nothing was spliced");
        }
    }
}

#[test]
fn urgent_bytes_arrive_in_line_over_a_striped_leg() {
    const LENGTH: usize = 8_000_000;
    let striping = || {
        let mut config = relay_config();
        config.leg.dial.connections = Connections::fixed(3).unwrap();
        config.leg.dial.stripe_after = Bytes::new(0);
        config
    };
    let chain = Chain::of((0..2).map(|_| Running::relay(&striping())).collect(), echo());
    let mut stream = chain.connect();
    stream.write_all(b"first").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    wait_for("connections to join", || chain.relays[0].handle.snapshot().striped_connections == 3);
    let mut sender = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || send_in_parts(&mut sender, &content(LENGTH)));
    assert_eq!(digest(&mut stream).unwrap(), (LENGTH, hash(&content(LENGTH))));
    sending.join().unwrap();
}
