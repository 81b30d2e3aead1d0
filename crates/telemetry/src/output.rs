//! Outputs of a line queue besides standard error: a file that is rotated, or a collector's socket
//! that receives each line as a datagram.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::queue::LineOutput;

/// The rotation of a file: its length when it is rotated, and the number of old files retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Length in bytes at which the file is rotated.
    pub at_bytes: u64,
    /// Files retained beside it, called `NAME.1` (the youngest), `NAME.2` and so on; at least 1.
    pub keep: u32,
}

/// Opens a file to append to, and creates it where there is none.
pub type OpenFile = fn(&Path) -> io::Result<File>;

/// Pause between two checks that the path still names the open file. Chosen: lines written to a
/// file that was moved away meanwhile are not lost, and a check costs two calls.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file of lines. It is reopened once it was moved or removed, as programs that rotate logs do.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    open: OpenFile,
    rotation: Option<Rotation>,
    file: Option<Opened>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    /// The device and inode, which identify the file whatever its name.
    inode: (u64, u64),
    bytes: u64,
    looked: Instant,
}

impl LineFile {
    /// Opens the file at `path` by `open`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path, open: OpenFile, rotation: Option<Rotation>) -> io::Result<Self> {
        let mut file = Self { path: path.to_owned(), open, rotation, file: None };
        file.current()?;
        Ok(file)
    }

    /// Returns the open file, reopened if it was moved or removed.
    fn current(&mut self) -> io::Result<&mut Opened> {
        let is_gone = self.file.as_mut().is_some_and(|opened| {
            if opened.looked.elapsed() < LOOK_EVERY {
                return false;
            }
            opened.looked = Instant::now();
            fs::symlink_metadata(&self.path).map_or(true, |found| inode(&found) != opened.inode)
        });
        if is_gone {
            self.file = None;
        }
        match &mut self.file {
            Some(opened) => Ok(opened),
            none => {
                let file = (self.open)(&self.path)?;
                let metadata = file.metadata()?;
                let (inode, bytes) = (inode(&metadata), metadata.len());
                Ok(none.insert(Opened { file, inode, bytes, looked: Instant::now() }))
            }
        }
    }

    /// Makes space for `more` bytes: rotates the file if it would become too long.
    fn rotate_before(&mut self, more: usize) -> io::Result<()> {
        let Some(rotation) = self.rotation else { return Ok(()) };
        let bytes = self.current()?.bytes;
        if bytes == 0 || bytes + more as u64 <= rotation.at_bytes {
            return Ok(());
        }
        for number in (1..rotation.keep).rev() {
            // Not all old files need exist.
            let _none = fs::rename(self.numbered(number), self.numbered(number + 1));
        }
        fs::rename(&self.path, self.numbered(1))?;
        self.file = None;
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let opened = self.current()?;
        opened.file.write_all(lines)?;
        opened.bytes += lines.len() as u64;
        Ok(())
    }
}

fn inode(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl LineOutput for LineFile {
    fn write_lines(&mut self, mut lines: &[u8]) -> io::Result<()> {
        while let Some(rotation) = self.rotation.filter(|_| !lines.is_empty()) {
            let first = line_end(lines, 0);
            self.rotate_before(first)?;
            let free = rotation.at_bytes.saturating_sub(self.current()?.bytes);
            let mut end = first;
            while end < lines.len() && line_end(lines, end) as u64 <= free {
                end = line_end(lines, end);
            }
            self.append(&lines[..end])?;
            lines = &lines[end..];
        }
        if lines.is_empty() { Ok(()) } else { self.append(lines) }
    }

    fn report_dropped(&mut self, count: u64) {
        let _lost = self.write_lines(dropped_line(count).as_bytes());
    }
}

/// Returns the end of the line that begins at `begin`, its line feed included.
fn line_end(lines: &[u8], begin: usize) -> usize {
    let feed = lines[begin..].iter().position(|byte| *byte == b'\n');
    feed.map_or(lines.len(), |at| begin + at + 1)
}

/// Returns the line that reports `count` dropped lines.
fn dropped_line(count: u64) -> String {
    format!("{{\"dropped_lines\":{count}}}\n")
}

/// A socket to which each line is sent as a datagram, without its line feed.
#[derive(Debug)]
pub struct LineSocket(Socket);

#[derive(Debug)]
enum Socket {
    Unix(UnixDatagram, PathBuf),
    Udp(UdpSocket, SocketAddr),
}

impl LineSocket {
    /// Opens a socket that sends to the datagram socket at `path`, which need not exist yet.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn to_unix(path: &Path) -> io::Result<Self> {
        Ok(Self(Socket::Unix(UnixDatagram::unbound()?, path.to_owned())))
    }

    /// Opens a socket that sends to the UDP port `to`.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn to_udp(to: SocketAddr) -> io::Result<Self> {
        let any = match to {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        Ok(Self(Socket::Udp(UdpSocket::bind(any)?, to)))
    }
}

impl LineOutput for LineSocket {
    fn takes_many(&self) -> bool {
        false
    }

    fn write_lines(&mut self, line: &[u8]) -> io::Result<()> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        match &self.0 {
            Socket::Unix(socket, path) => socket.send_to(line, path).map(drop),
            Socket::Udp(socket, to) => socket.send_to(line, to).map(drop),
        }
    }

    fn report_dropped(&mut self, count: u64) {
        let _lost = self.write_lines(dropped_line(count).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test's own folder, removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("tradewind-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _none = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).unwrap_or_default()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    fn append(path: &Path) -> io::Result<File> {
        File::options().create(true).append(true).open(path)
    }

    #[test]
    fn file_rotates_between_lines() {
        let folder = Folder::new("rotation");
        let path = folder.0.join("a.log");
        fs::write(&path, "old\n").unwrap();
        let rotation = Some(Rotation { at_bytes: 10, keep: 2 });
        let mut file = LineFile::open(&path, append, rotation).unwrap();
        file.write_lines(b"one\ntwo\nthree\nlonger than ten\n").unwrap();
        file.write_lines(b"a\nb\n").unwrap();
        let all = ["a.log", "a.log.1", "a.log.2", "a.log.3"].map(|name| folder.text(name));
        assert_eq!(all, ["a\nb\n", "longer than ten\n", "two\nthree\n", ""]);
    }

    #[test]
    fn moved_file_is_reopened() {
        let folder = Folder::new("moved");
        let path = folder.0.join("a.log");
        let mut file = LineFile::open(&path, append, None).unwrap();
        file.write_lines(b"one\n").unwrap();
        fs::rename(&path, folder.0.join("b.log")).unwrap();
        file.file.as_mut().unwrap().looked -= LOOK_EVERY;
        file.write_lines(b"two\n").unwrap();
        file.report_dropped(3);
        assert_eq!(folder.text("b.log"), "one\n");
        assert_eq!(folder.text("a.log"), "two\n{\"dropped_lines\":3}\n");
    }

    #[test]
    fn socket_gets_one_datagram_per_line() {
        let folder = Folder::new("socket");
        let path = folder.0.join("a.sock");
        let unix = UnixDatagram::bind(&path).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to_udp = LineSocket::to_udp(udp.local_addr().unwrap()).unwrap();
        let mut bytes = [0; 32];
        for mut socket in [LineSocket::to_unix(&path).unwrap(), to_udp] {
            assert!(!socket.takes_many());
            socket.write_lines(b"{}\n").unwrap();
        }
        assert_eq!(unix.recv(&mut bytes).unwrap(), 2);
        assert_eq!(udp.recv(&mut bytes).unwrap(), 2);
        assert_eq!(&bytes[..2], b"{}");
    }

    #[test]
    fn socket_that_is_bound_anew_is_found() {
        let folder = Folder::new("anew");
        let path = folder.0.join("a.sock");
        let mut socket = LineSocket::to_unix(&path).unwrap();
        assert!(socket.write_lines(b"nobody\n").is_err());
        for line in [b"one\n", b"two\n"] {
            let _none = fs::remove_file(&path);
            let collector = UnixDatagram::bind(&path).unwrap();
            socket.write_lines(line).unwrap();
            let mut bytes = [0; 32];
            assert_eq!(collector.recv(&mut bytes).unwrap(), 3);
            assert_eq!(bytes[..3], line[..3]);
            drop(collector);
            assert!(socket.write_lines(b"nobody\n").is_err());
        }
    }
}
