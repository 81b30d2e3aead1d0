//! A lexer that separates code, comments and literals of a Rust file, line by line.
//!
//! It is no parser: it knows comments (nested ones too), strings (raw and byte ones too),
//! characters and lifetimes, which suffices to look for a word in code or comments only.

/// A Rust file split in two: both texts have the file's lines, with blanks for the other's parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The code, literals blanked.
    pub(crate) code: String,
    /// The comments, documentation included.
    pub(crate) comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Splits `source`.
pub(crate) fn split(source: &str) -> Split {
    let characters: Vec<char> = source.chars().collect();
    let mut split = Split { code: String::new(), comments: String::new() };
    let mut at = 0;
    while at < characters.len() {
        let (kind, length) =
            next_piece(&characters[at..], at.checked_sub(1).map(|i| characters[i]));
        for character in &characters[at..at + length] {
            let blank = if *character == '\n' { '\n' } else { ' ' };
            split.code.push(if kind == Kind::Code { *character } else { blank });
            split.comments.push(if kind == Kind::Comment { *character } else { blank });
        }
        at += length;
    }
    split
}

/// Returns the kind and length of the piece at the start of `rest` (never empty). `before` is the
/// character before it.
fn next_piece(rest: &[char], before: Option<char>) -> (Kind, usize) {
    let starts = |text: &str| text.chars().enumerate().all(|(i, c)| rest.get(i) == Some(&c));
    if starts("//") {
        return (Kind::Comment, rest.iter().take_while(|c| **c != '\n').count());
    }
    if starts("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if let Some(length) = raw_string(rest, before) {
        return (Kind::Literal, length);
    }
    if starts("\"") {
        return (Kind::Literal, quoted(rest, '"'));
    }
    // A lifetime has no closing quote after one character; a character literal has.
    if starts("'") && (rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'')) {
        return (Kind::Literal, quoted(rest, '\''));
    }
    (Kind::Code, 1)
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Returns the length of `r"..."`, `r#"..."#` or their byte and C forms, if `rest` begins with one.
fn raw_string(rest: &[char], before: Option<char>) -> Option<usize> {
    if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let prefix = usize::from(matches!(rest.first(), Some('b' | 'c')));
    if rest.get(prefix) != Some(&'r') {
        return None;
    }
    let hashes = rest[prefix + 1..].iter().take_while(|c| **c == '#').count();
    let open = prefix + 1 + hashes;
    if rest.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: &usize| {
        rest[*at] == '"'
            && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    let end = (open + 1..rest.len()).find(closes);
    Some(end.map_or(rest.len(), |at| at + 1 + hashes))
}

/// Returns the length of a literal between `quote`s, with escapes taken into account.
fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(source: &str) -> String {
        let words: Vec<String> = split(source).code.split_whitespace().map(str::to_owned).collect();
        words.join(" ")
    }

    fn comments(source: &str) -> String {
        split(source).comments.trim().to_owned()
    }

    #[test]
    fn comments_leave_the_code() {
        assert_eq!(code("a // b\nc"), "a c");
        assert_eq!(code("a /* b /* c */ d */ e"), "a e");
        assert_eq!(comments("a // b"), "// b");
        assert_eq!(code("a /* never closed"), "a");
    }

    #[test]
    fn literals_leave_both() {
        assert_eq!(code(r#"f("a // b", 'x', '\'', b"\"", '"')"#), "f( , , , b , )");
        assert_eq!(code("f(r#\"a \" b\"#, br\"c\", r\"\\\")"), "f( , , )");
        assert_eq!(comments("f(\"// no comment\")"), "");
        assert_eq!(code("\"never closed"), "");
        assert_eq!(code("\"ends in an escape\\"), "");
    }

    #[test]
    fn lifetimes_are_code() {
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code("for r in bar"), "for r in bar");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let source = "a\n/* b\nc */ d\n\"e\nf\" g\n";
        let split = split(source);
        assert_eq!(split.code.matches('\n').count(), source.matches('\n').count());
        assert_eq!(split.code.lines().nth(2).unwrap().trim(), "d");
        assert_eq!(split.code.lines().nth(4).unwrap().trim(), "g");
    }
}
