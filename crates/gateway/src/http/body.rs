//! The framing of bodies: each is parsed strictly and written anew, so that no two parties differ
//! about its end [RFC 9112 section 6].

use std::io::Write as _;

use super::HttpError;

/// Most digits of a chunk's size. Chosen: enough for 10^18 bytes, and no sum overflows.
const MAX_SIZE_DIGITS: u8 = 15;
/// Longest extension of a chunk, which is dropped. Chosen: no program is known to send any.
const MAX_EXTENSION_BYTES: usize = 256;
/// Longest trailers, which are dropped. Chosen: the length of a small head.
const MAX_TRAILER_BYTES: usize = 8 * 1024;

/// The framing of a body: the way in which its end is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is no body.
    None,
    /// After so many bytes.
    Length(u64),
    /// With a chunk of size zero.
    Chunked,
    /// With the end of the connection.
    UntilEnd,
}

/// A body that is being forwarded, of which the rest is still to come.
#[derive(Debug)]
pub(super) struct Body {
    state: State,
    /// True if it is written in chunks.
    in_chunks: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Over,
    /// So many bytes are still to come.
    Length(u64),
    UntilEnd,
    /// A chunk's size so far, and its digits.
    Size(u64, u8),
    /// After the size: blanks, or an extension of so many bytes.
    Extension(u64, usize),
    /// The size is known, and the line feed is to come.
    SizeEnd(u64),
    /// So many bytes of a chunk are to come.
    Data(u64),
    /// The end of a chunk's data: carriage return, and line feed.
    DataEnd,
    DataNewline,
    /// In a line of the trailers: their length in all so far, and whether the line is empty so far.
    Trailer(usize, bool),
    /// After the carriage return of such a line.
    TrailerEnd(usize, bool),
}

impl Body {
    /// Creates a body that is received in `framing` and written in chunks if `in_chunks`.
    pub(super) fn new(framing: Framing, in_chunks: bool) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Over,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size(0, 0),
            Framing::UntilEnd => State::UntilEnd,
        };
        Self { state, in_chunks }
    }

    /// Returns whether all of it has been forwarded.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Writes the part of the body in `input` to `output`, and returns how many bytes of `input`
    /// belong to the body.
    ///
    /// # Errors
    /// When its chunks are invalid.
    pub(super) fn pass(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<usize, HttpError> {
        let mut used = 0;
        while used < input.len() && !self.is_over() {
            let rest = &input[used..];
            used += match self.state {
                State::Length(left) => {
                    let (consumed, left) = self.put(rest, left, output);
                    self.state = if left == 0 { State::Over } else { State::Length(left) };
                    consumed
                }
                State::Data(left) => {
                    let (consumed, left) = self.put(rest, left, output);
                    self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
                    consumed
                }
                State::UntilEnd => self.put(rest, u64::MAX, output).0,
                line => {
                    self.state = line.after(rest[0])?;
                    if self.is_over() {
                        self.put_end(output);
                    }
                    1
                }
            };
        }
        Ok(used)
    }

    /// Handles the end of the connection that it is received on.
    ///
    /// # Errors
    /// When the body is incomplete.
    pub(super) fn end(&mut self, output: &mut Vec<u8>) -> Result<(), HttpError> {
        match self.state {
            State::Over => Ok(()),
            State::UntilEnd => {
                self.state = State::Over;
                self.put_end(output);
                Ok(())
            }
            _ => Err(HttpError::Cut),
        }
    }

    /// Writes at most `left` bytes of `rest`, and returns how many, and how many are left then.
    fn put(&self, rest: &[u8], left: u64, output: &mut Vec<u8>) -> (usize, u64) {
        let consumed = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if self.in_chunks {
            // Writing to a vector cannot fail.
            let _written = write!(output, "{consumed:x}\r\n");
        }
        output.extend_from_slice(&rest[..consumed]);
        if self.in_chunks {
            output.extend_from_slice(b"\r\n");
        }
        (consumed, left - consumed as u64)
    }

    fn put_end(&self, output: &mut Vec<u8>) {
        if self.in_chunks {
            output.extend_from_slice(b"0\r\n\r\n");
        }
    }
}

impl State {
    /// Returns the state after one byte of a line between chunks.
    fn after(self, byte: u8) -> Result<Self, HttpError> {
        let is_text = matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
        match (self, byte) {
            (Self::Size(size, digits), _) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                match digits {
                    MAX_SIZE_DIGITS => Err(HttpError::Chunk),
                    _ => Ok(Self::Size(size << 4 | u64::from(digit), digits + 1)),
                }
            }
            (Self::Size(size, 1..), b'\r') => Ok(Self::SizeEnd(size)),
            (Self::Size(size, 1..), b';' | b' ' | b'\t') => Ok(Self::Extension(size, 1)),
            (Self::Extension(size, _), b'\r') => Ok(Self::SizeEnd(size)),
            (Self::Extension(size, length), _) if is_text && length < MAX_EXTENSION_BYTES => {
                Ok(Self::Extension(size, length + 1))
            }
            (Self::SizeEnd(0), b'\n') => Ok(Self::Trailer(0, true)),
            (Self::SizeEnd(size), b'\n') => Ok(Self::Data(size)),
            (Self::DataEnd, b'\r') => Ok(Self::DataNewline),
            (Self::DataNewline, b'\n') => Ok(Self::Size(0, 0)),
            (Self::Trailer(length, is_empty), b'\r') => Ok(Self::TrailerEnd(length, is_empty)),
            (Self::Trailer(length, _), _) if is_text && length < MAX_TRAILER_BYTES => {
                Ok(Self::Trailer(length + 1, false))
            }
            (Self::TrailerEnd(_, true), b'\n') => Ok(Self::Over),
            (Self::TrailerEnd(length, false), b'\n') => Ok(Self::Trailer(length, true)),
            _ => Err(HttpError::Chunk),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the output for `input` when it is received in pieces of `size` bytes, and the number
    /// of bytes left of it.
    fn passed(mut body: Body, input: &[u8], size: usize) -> Result<(Vec<u8>, usize), HttpError> {
        let (mut output, mut used) = (Vec::new(), 0);
        for piece in input.chunks(size) {
            let consumed = body.pass(piece, &mut output)?;
            used += consumed;
            if body.is_over() {
                return Ok((output, input.len() - used));
            }
            assert_eq!(consumed, piece.len());
        }
        body.end(&mut output)?;
        Ok((output, 0))
    }

    fn in_one(framing: Framing, in_chunks: bool, input: &[u8]) -> Result<Vec<u8>, HttpError> {
        passed(Body::new(framing, in_chunks), input, input.len().max(1)).map(|(output, _)| output)
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        let (output, left) = passed(Body::new(Framing::Length(5), false), b"helloGET", 3).unwrap();
        assert_eq!((&output[..], left), (&b"hello"[..], 3));
        assert!(Body::new(Framing::Length(0), false).is_over());
        assert_eq!(in_one(Framing::Length(9), false, b"hello"), Err(HttpError::Cut));
        assert_eq!(in_one(Framing::UntilEnd, false, b"hello").unwrap(), b"hello");
        assert_eq!(in_one(Framing::UntilEnd, true, b"hello").unwrap(), b"5\r\nhello\r\n0\r\n\r\n");
        let chunks = b"3;a=b\r\nhel\r\n002 \r\nlo\r\n0\r\nTrailer: x\r\n\r\nGET";
        let (output, left) = passed(Body::new(Framing::Chunked, false), chunks, 99).unwrap();
        assert_eq!((&output[..], left), (&b"hello"[..], 3));
        let output = in_one(Framing::Chunked, true, chunks).unwrap();
        assert_eq!(output, b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n");
    }

    #[test]
    fn ambiguous_chunks_are_refused() {
        for wrong in [
            &b"\r\n"[..],
            b"-1\r\n",
            b"+1\r\n",
            b"0x1\r\n",
            b" 1\r\n",
            b"1_0\r\n",
            b"g\r\n",
            b";\r\n",
            b"1\na\r\n",
            b"1\r\r\na",
            b"1;a\nb\r\n",
            b"1;a\rb\r\n",
            b"1\r\nab",
            b"1\r\na\n",
            b"1\r\na\r0",
            b"10000000000000000\r\n",
            b"0000000000000001\r\n",
            b"0\r\n\n",
            b"0\r\nA: b\n\r\n",
            b"0\r\nA: b\rC: d\r\n\r\n",
        ] {
            let body = Body::new(Framing::Chunked, true);
            let text = String::from_utf8_lossy(wrong);
            assert_eq!(passed(body, wrong, wrong.len()), Err(HttpError::Chunk), "{text:?}");
        }
        let long = [b"1;", &[b'x'; 300][..], b"\r\na"].concat();
        assert_eq!(in_one(Framing::Chunked, true, &long), Err(HttpError::Chunk));
        let long = [b"0\r\n", &[b'x'; 9000][..], b"\r\n\r\n"].concat();
        assert_eq!(in_one(Framing::Chunked, true, &long), Err(HttpError::Chunk));
    }

    proptest! {
        #[test]
        fn fragmented_body_is_the_same(
            content in proptest::collection::vec(any::<u8>(), 0..300),
            first in 1usize..40,
            second in 1usize..40,
        ) {
            let mut chunked = Vec::new();
            for piece in content.chunks(first) {
                chunked.extend(format!("{:X}\r\n", piece.len()).bytes().chain(piece.to_vec()));
                chunked.extend(b"\r\n");
            }
            chunked.extend(b"0\r\n\r\nnext");
            let (plain, left) = passed(Body::new(Framing::Chunked, false), &chunked, second)?;
            prop_assert_eq!((&plain, left < 5), (&content, true));
            let (again, _) = passed(Body::new(Framing::Chunked, true), &chunked, second)?;
            let plain = in_one(Framing::Chunked, false, &again)?;
            prop_assert_eq!(&plain, &content);
        }

        #[test]
        fn arbitrary_bytes_parse_alike_in_any_pieces(
            bytes in "[0-9a-f;\r\n xA:-]{0,60}",
            size in 1usize..20,
        ) {
            let whole = in_one(Framing::Chunked, true, bytes.as_bytes());
            let pieces = passed(Body::new(Framing::Chunked, true), bytes.as_bytes(), size);
            let (whole, pieces) = (whole.map(|out| in_one(Framing::Chunked, false, &out)),
                pieces.map(|(out, _)| in_one(Framing::Chunked, false, &out)));
            prop_assert_eq!(whole, pieces);
        }
    }
}
