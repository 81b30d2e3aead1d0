//! Text files of a bounded length.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads the text in the file at `path`, which has at most `most_mib` MiB: a file without an
/// end, such as a device, fills no memory.
///
/// # Errors
/// When it cannot be read, is longer, or is no text.
pub fn read(path: &Path, most_mib: u64) -> io::Result<String> {
    let most_bytes = most_mib << 20;
    let mut bytes = Vec::new();
    File::open(path)?.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return Err(io::Error::other(format!("longer than {most_mib} MiB: not a file of ours")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not a text file (UTF-8)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_up_to_a_bound() {
        let name = format!("tradewind-text-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 1).unwrap(), "four");
        std::fs::write(&path, vec![b'a'; (1 << 20) + 1]).unwrap();
        let longer = read(&path, 1).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        let endless = read(Path::new("/dev/zero"), 1).unwrap_err().to_string();
        assert_eq!([longer, endless], ["longer than 1 MiB: not a file of ours"; 2]);
    }
}
