//! The completion time of one transfer over a connection of its own `[RT IV-A]`: from the SYN until
//! the responder says that it has the last byte. So it takes two round trips at least, and one more
//! for each flight beyond the first.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::{Instant, timeout};

use crate::ProbeError;
use crate::error::in_words;
use crate::protocol::Preface;

/// Most bytes of a transfer. Chosen: ten times the largest of `[RT IV-A]`.
pub const MAX_BYTES: u32 = 1_000_000;
/// Longest time of a transfer. Chosen: a hundred round trips of the longest path on Earth.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Sends so many bytes to the responder at `target` and returns the time that it took; `prepare`
/// sets the socket up before it connects.
///
/// # Errors
/// When the socket cannot be prepared, the target cannot be reached or is no such responder, or the
/// transfer takes longer than [`LIMIT`].
pub async fn measure(
    target: SocketAddr,
    bytes: u32,
    prepare: impl FnOnce(&TcpSocket) -> io::Result<()>,
) -> Result<Duration, ProbeError> {
    let named = target.to_string();
    let failed =
        |error: io::Error| ProbeError::Connect { target: named.clone(), cause: in_words(&error) };
    let socket = if target.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(failed)?;
    // It is reset at the end, and leaves no state in either kernel.
    socket.set_zero_linger().map_err(failed)?;
    prepare(&socket).map_err(|cause| ProbeError::Setting {
        target: named.clone(),
        setting: "the initial window".to_owned(),
        cause,
    })?;
    let mut flight = Preface::Transfer { bytes }.to_bytes().to_vec();
    flight.resize(flight.len() + bytes as usize, 0);
    let started = Instant::now();
    let transfer = async {
        let mut stream = socket.connect(target).await?;
        stream.write_all(&flight).await?;
        stream.read_u8().await
    };
    match timeout(LIMIT, transfer).await {
        Ok(done) => done.map(|_| started.elapsed()).map_err(failed),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Responder, ResponderConfig, Secret};

    async fn responder(change: impl FnOnce(&mut ResponderConfig)) -> SocketAddr {
        let mut config = ResponderConfig::new((Ipv4Addr::LOCALHOST, 0).into());
        change(&mut config);
        let responder = Responder::bind(config).await.unwrap();
        let address = responder.local_addr();
        tokio::spawn(responder.run(std::future::pending()));
        address
    }

    #[tokio::test]
    async fn transfer_ends_when_the_responder_has_all() {
        let address = responder(|_| ()).await;
        for bytes in [1, 10_000, MAX_BYTES] {
            let time = measure(address, bytes, |_| Ok(())).await.unwrap();
            assert!(time < LIMIT);
        }
    }

    #[tokio::test]
    async fn responder_takes_no_more_than_it_offers() {
        let address = responder(|_| ()).await;
        assert!(measure(address, MAX_BYTES + 1, |_| Ok(())).await.is_err());
        // It cannot prove that it knows a secret.
        let secret = Secret::new("0123456789abcdef0123456789abcdef").unwrap();
        let address = responder(|config| config.secret = Some(secret)).await;
        assert!(measure(address, 10, |_| Ok(())).await.is_err());
        let refused = |_: &TcpSocket| Err(io::ErrorKind::PermissionDenied.into());
        let error = measure(address, 10, refused).await.unwrap_err().to_string();
        assert!(error.contains("the initial window cannot be set here"), "{error}");
    }
}
