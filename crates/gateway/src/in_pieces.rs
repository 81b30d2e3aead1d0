//! A check of parsers of heads, for tests.

use tradewind_stream::connection::head::Progress;

/// Checks that `parse` does not panic on any `bytes`, and returns the same however they are
/// split: a complete head is no shorter or longer for what follows it, before its last byte it
/// is incomplete, and an invalid head stays invalid with more bytes.
pub(crate) fn assert_read_in_any_pieces<T: PartialEq, E>(
    parse: impl Fn(&[u8]) -> Result<Progress<T>, E>,
    bytes: &[u8],
) {
    let (mut whole, mut wrong) = (None, false);
    for length in 0..=bytes.len() {
        match parse(&bytes[..length]) {
            Ok(Progress::Incomplete) => assert!(whole.is_none() && !wrong, "{length}"),
            Ok(Progress::Complete(head, used)) => {
                let (first, at) = whole.get_or_insert((head, used));
                assert!(!wrong && *at == used && used <= length, "{length}");
                let Ok(Progress::Complete(head, _)) = parse(&bytes[..used]) else { panic!() };
                assert!(head == *first, "{length}");
            }
            Err(_) => {
                assert!(whole.is_none(), "{length}");
                wrong = true;
            }
        }
    }
}
