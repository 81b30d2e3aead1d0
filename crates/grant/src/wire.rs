//! Strict parsing and encoding of the binary formats: big-endian, no optional bytes, no trailing
//! bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tradewind_units::Timestamp;

use crate::GrantError;

/// Kind bytes of addresses; a name's kind is [`KIND_NAME`].
pub(crate) const KIND_V4: u8 = 4;
pub(crate) const KIND_V6: u8 = 6;
pub(crate) const KIND_NAME: u8 = 1;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Returns the whole milliseconds since the Unix epoch.
pub(crate) fn unix_ms(time: Timestamp) -> u64 {
    time.as_nanos() / NANOS_PER_MILLI
}

/// Returns the point `ms` milliseconds after the Unix epoch, at most the type's maximum.
pub(crate) fn from_unix_ms(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms.saturating_mul(NANOS_PER_MILLI))
}

/// A reader of untrusted bytes.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn malformed(&self, what: &'static str) -> GrantError {
        GrantError::Malformed { what, at: self.at }
    }

    /// Reads the next `count` bytes.
    pub(crate) fn take(
        &mut self,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [u8], GrantError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let part = rest.get(..count).ok_or_else(|| self.malformed(what))?;
        self.at += count;
        Ok(part)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], GrantError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    /// Skips the next byte if it is `byte`.
    pub(crate) fn skip_if(&mut self, byte: u8) -> bool {
        let is_it = self.bytes.get(self.at) == Some(&byte);
        self.at += usize::from(is_it);
        is_it
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, GrantError> {
        Ok(u8::from_be_bytes(self.array(what)?))
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, GrantError> {
        Ok(u16::from_be_bytes(self.array(what)?))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, GrantError> {
        Ok(u32::from_be_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, GrantError> {
        Ok(u64::from_be_bytes(self.array(what)?))
    }

    /// Reads three bytes of magic and one of version.
    pub(crate) fn magic(&mut self, magic: [u8; 4], what: &'static str) -> Result<(), GrantError> {
        let at = self.at;
        if self.array::<4>(what)? == magic {
            Ok(())
        } else {
            Err(GrantError::Malformed { what, at })
        }
    }

    /// Reads one of several magics; returns its index.
    pub(crate) fn either_magic<const N: usize>(
        &mut self,
        magics: [[u8; 4]; N],
        what: &'static str,
    ) -> Result<usize, GrantError> {
        let at = self.at;
        let found = self.array::<4>(what)?;
        let place = magics.iter().position(|magic| *magic == found);
        place.ok_or(GrantError::Malformed { what, at })
    }

    /// Reads an address of the given kind, in its canonical form: never IPv4 mapped into IPv6.
    pub(crate) fn ip(&mut self, kind: u8, what: &'static str) -> Result<IpAddr, GrantError> {
        let at = self.at;
        match kind {
            KIND_V4 => Ok(IpAddr::V4(Ipv4Addr::from(self.array::<4>(what)?))),
            KIND_V6 => {
                let v6 = Ipv6Addr::from(self.array::<16>(what)?);
                match v6.to_ipv4_mapped() {
                    None => Ok(IpAddr::V6(v6)),
                    Some(_) => Err(GrantError::Malformed { what, at }),
                }
            }
            _ => Err(GrantError::Malformed { what, at: at.saturating_sub(1) }),
        }
    }

    /// Reads a port other than 0.
    pub(crate) fn port(&mut self, what: &'static str) -> Result<u16, GrantError> {
        let at = self.at;
        match self.u16(what)? {
            0 => Err(GrantError::Malformed { what, at }),
            port => Ok(port),
        }
    }

    /// Reads text of `count` bytes.
    pub(crate) fn text(&mut self, count: usize, what: &'static str) -> Result<&'a str, GrantError> {
        let at = self.at;
        std::str::from_utf8(self.take(count, what)?).map_err(|_| GrantError::Malformed { what, at })
    }

    /// Checks that no bytes are left.
    pub(crate) fn end(&self, what: &'static str) -> Result<(), GrantError> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.malformed(what)) }
    }
}

/// Appends an address with its kind byte.
pub(crate) fn put_ip(out: &mut Vec<u8>, address: IpAddr) {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            out.push(KIND_V4);
            out.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            out.push(KIND_V6);
            out.extend_from_slice(&v6.octets());
        }
    }
}

/// Appends an address with its kind byte and port.
pub(crate) fn put_socket_addr(out: &mut Vec<u8>, address: SocketAddr) {
    put_ip(out, address.ip());
    out.extend_from_slice(&address.port().to_be_bytes());
}
